"""Which rows a step touches, and what the steps that a row missed come to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sparsegrad import backends
from sparsegrad.sparse_tensor import SparseTensor

__all__ = ["blocks", "live_rows", "missed", "touched", "touched_rows"]

# Elements a step works on at a time: parameter, gradient, state and scratch stay in the cache.
_BLOCK = 1 << 16


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


def blocks(arrays: list[Any], by_row: bool) -> Iterator[tuple[Any, ...]]:
    """Views of equal parts of arrays, small enough for the cache: runs of rows, or of elements of
    arrays of one shape."""
    xp = backends.for_array(arrays[0]).xp
    first = arrays[0]
    if by_row:
        arrays = [a.reshape(1) if a.ndim == 0 else a for a in arrays]
        step = max(1, _BLOCK * len(arrays[0]) // max(1, first.size))
    else:
        step = _BLOCK
    small = first.size <= _BLOCK or xp.__name__ != "numpy"
    if small or not (by_row or all(a.flags.c_contiguous for a in arrays)):
        yield tuple(arrays)
        return
    flat = arrays if by_row else [a.reshape(-1) for a in arrays]
    for start in range(0, len(flat[0]), step):
        yield tuple(a[start : start + step] for a in flat)


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
