"""Row-sparse cotangents of ops that work along trailing dimensions, each row by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsegrad.ops.index import put_rows_p
from sparsegrad.ops.shape import reshape_p
from sparsegrad.ops.sparse_structure import at_entries
from sparsegrad.structure import plan
from sparsegrad.structure.pattern import Pattern

__all__: list[str] = []


def on_rows(
    name: str, g: Any, axes: tuple[int, ...], saved: tuple[Any, ...], rule: Callable[..., Any]
) -> Any:
    """`rule(g, *saved, axes)` for a sparse cotangent `g` of an op along `axes`: computed on the
    rows that `g` touches, and row-sparse. A row is an index over the dimensions before the first
    axis; where that is dimension 0 the result would be dense, and `g` is made so (an event)."""
    first = min(axes, default=g.ndim)
    if g.sparse_dim > first:
        if not first:
            return rule(g._densify(f"backward of {name}"), *saved, axes)
        g = join_dense(g, first)
    shift = g.sparse_dim - 1
    read = [at_entries(x, g.pattern) for x in saved]
    return g.with_values(rule(g.values, *read, tuple(a - shift for a in axes)))


def join_dense(A: Any, lead: int) -> Any:
    """The sparse dimensions after the first `lead` made dense: one entry for each index over those
    that is stored. The opposite of `split_dense`."""
    listed = Pattern.coo(
        list(A.pattern.coords[:lead]), A.pattern.shape[:lead], check=False, copy=False
    )
    touched = plan.coalesce(listed).pattern
    return as_rows(A, touched, plan.locate(listed, touched)[0])


def as_rows(cells: Any, touched: Pattern, slots: Any) -> Any:
    """Entries of finer cells as rows on the coalesced `touched`; slots: their rows (nnz,)."""
    from sparsegrad.sparse_tensor import wrap

    flat, count = slots.astype("int64"), touched.nnz
    sizes = cells.pattern.shape[touched.ndim :]
    for c, n in zip(cells.pattern.coords[touched.ndim :], sizes, strict=True):
        flat = flat * n + c
        count *= n
    values = put_rows_p(cells.values, index=flat, n=count)
    return wrap(reshape_p(values, shape=(touched.nnz, *cells.shape[touched.ndim :])), touched)
