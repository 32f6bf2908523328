"""Reductions of sparse tensors over sparse and dense dimensions."""

from __future__ import annotations

from typing import Any

from sparsegrad.ops.index import put_rows_p
from sparsegrad.ops.reduce import axes_of, sum_p
from sparsegrad.ops.shape import reshape_p
from sparsegrad.structure.pattern import Pattern

__all__: list[str] = []


def sparse_sum(A: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Sum over any dimensions: dense if at most one sparse dimension is left, else sparse."""
    from sparsegrad.ops.sparse_structure import coalesce
    from sparsegrad.sparse_tensor import wrap

    axes = axes_of("sum", dim, A.ndim)
    sparse = A.sparse_dim
    inner = tuple(a - sparse + 1 for a in axes if a >= sparse)
    left = [d for d in range(sparse) if d not in axes]
    values = sum_p(A.values, axis=inner) if inner else A.values
    shape = tuple(n for d, n in enumerate(A.shape) if d not in axes)
    if keepdim:
        shape = tuple(1 if d in axes else n for d, n in enumerate(A.shape))
    if len(left) == sparse:
        dense = shape[sparse:]
        return wrap(reshape_p(values, shape=(A.nnz, *dense)), A.pattern)
    coords = A.pattern.coords
    if not left:
        return reshape_p(sum_p(values, axis=(0,)), shape=shape)
    if len(left) == 1:
        d = left[0]
        out = put_rows_p(values, index=coords[d], n=A.shape[d])
        return reshape_p(out, shape=shape)
    kept = Pattern.coo([coords[d] for d in left], tuple(A.shape[d] for d in left), check=False)
    merged = coalesce(wrap(values, kept))
    if not keepdim:
        return merged
    xp = kept.core.backend.xp
    zeros = xp.zeros(merged.nnz, dtype=kept.row.dtype)
    listed = iter(merged.pattern.coords)
    full = [next(listed) if d in left else zeros for d in range(sparse)]
    pattern = Pattern.coo(full, shape[:sparse], check=False)
    return wrap(reshape_p(merged.values, shape=(merged.nnz, *shape[sparse:])), pattern)
