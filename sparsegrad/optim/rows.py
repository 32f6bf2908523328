"""Which rows a step touches, and what the steps that a row missed come to."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegrad import backends
from sparsegrad.backends.steps import RowGradient
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.structure import plan
from sparsegrad.structure.pattern import Pattern

__all__ = ["live_rows", "missed", "pending", "touched", "touched_rows"]


# ---- where a gradient is not zero --------------------------------------------------------------
def touched(grad: SparseTensor) -> tuple[Any, Any]:
    """Where a sparse gradient is not zero, each place once, and its values there.

    Rows of zeros count as not touched: a gradient that reaches most rows is stored on all of
    them (docs/gradients.md), and how it is stored must not change what a step does.
    """
    grad = grad.coalesce()
    values = grad.values.data
    xp = backends.for_array(values).xp
    live = (values != 0).any(axis=tuple(range(1, values.ndim)))
    coords = grad.pattern.coords
    if not bool(live.all()):
        live = xp.flatnonzero(live)
        coords, values = tuple(c[live] for c in coords), values[live]
    return coords[0] if len(coords) == 1 else coords, values


def pending(grad: Any) -> RowGradient | None:
    """A gradient of whole rows as it was accumulated, duplicates and unmerged terms included;
    None for one that is dense, or of single elements.
    """
    parts = getattr(grad, "parts", [grad])
    if not all(isinstance(part, SparseTensor) and part.sparse_dim == 1 for part in parts):
        return None
    if any(part.nnz == part.shape[0] for part in parts):
        parts = [getattr(grad, "merged", lambda: grad)()]  # into those rows, nothing is sorted
    pattern, values = parts[0].pattern, parts[0].values.data
    if len(parts) > 1:
        xp = backends.for_array(values).xp
        rows = xp.concatenate([part.row for part in parts])
        pattern = Pattern.coo([rows], pattern.shape, check=False, copy=False)
        values = xp.concatenate([part.values.data for part in parts])
    ids = pattern.coords[0]
    if not pattern.core.is_sorted_out:
        found = pattern.core.touched() if ids.size else None
        if found is not None:
            row, perm, indptr, count = found
            return RowGradient(row, perm, indptr, values, count)
    merge = plan.coalesce(pattern)
    return RowGradient(merge.pattern.coords[0], merge.perm, merge.indptr, values)


def touched_rows(grad: SparseTensor) -> tuple[Any, Any]:
    """As `touched`, but whole rows, whatever the gradient stores: rows (r,), values (r, *D)."""
    where, values = touched(grad)
    if not isinstance(where, tuple):
        return where, values
    xp = backends.for_array(values).xp
    rows, slot = xp.unique(where[0], return_inverse=True)
    wide = xp.zeros((rows.size, *grad.shape[1:]), values.dtype)
    wide[(slot.reshape(-1), *where[1:])] = values
    return rows, wide


def live_rows(g: Any) -> Any:
    """Rows of an array that are not zero, (r,); None if all are, or if it has no dimensions."""
    if g.ndim == 0:
        return None
    xp = backends.for_array(g).xp
    live = (g != 0).any(axis=tuple(range(1, g.ndim)))
    return None if bool(live.all()) else xp.flatnonzero(live)


# ---- steps that were missed --------------------------------------------------------------------
def missed(runs: list[Any], last: np.ndarray, upto: int) -> tuple[np.ndarray, np.ndarray]:
    """What the steps last + 1, ..., upto do to a row, as one matrix a distinct value of `last`.

    runs: [first step, map] in order; a map (k, k) is what a step without gradient does to (p,
    *state) of a row, the same for all steps until the next run. Returns matrices (u, k, k) and
    which of them each row takes.
    """
    values, which = np.unique(last, return_inverse=True)
    k = len(runs[0][1])
    out = np.tile(np.eye(k), (values.size, 1, 1))
    after, end = np.eye(k), upto  # the product of all later runs
    for first, step in reversed(runs):
        if end < first:
            continue
        inside = values < end  # rows that miss steps of this run or of earlier ones
        if not inside.any():
            break
        counts = end - np.maximum(values[inside], first - 1)
        out[inside] = after @ _powers(np.asarray(step), counts)
        after = after @ np.linalg.matrix_power(np.asarray(step), end - first + 1)
        end = first - 1
    return out, which.reshape(-1)


def _powers(matrix: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """matrix ** e for every exponent: (u, k, k), by repeated squaring."""
    out = np.tile(np.eye(len(matrix)), (exponents.size, 1, 1))
    while exponents.any():
        odd = exponents % 2 == 1
        out[odd] = out[odd] @ matrix
        matrix, exponents = matrix @ matrix, exponents // 2
    return out
