"""Shapes of sparse tensors: reshape, squeeze, unsqueeze, expand, cat, block_diag."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

from sparsegrad.errors import ShapeError
from sparsegrad.ops.shape import (
    as_argument,
    blocks_p,
    broadcast_p,
    cat_p,
    pad_p,
    reshape_p,
    slice_p,
)
from sparsegrad.ops.sparse_index import selected, sparse_getitem
from sparsegrad.ops.sparse_structure import apply_merge, split_dense, to_dense
from sparsegrad.structure import plan, plan_select

__all__ = ["block_diag"]

_LARGEST = 2**63 - 1


# ---- reshape -----------------------------------------------------------------------------------
def sparse_squeeze(A: Any, drop: set[int]) -> Any:
    """`A` without the size-1 dimensions of `drop`; dense if no sparse one is left."""
    kept = [d for d, n in enumerate(A.shape) if n != 1 or d not in drop]
    sparse = tuple(A.shape[d] for d in kept if d < A.sparse_dim)
    dense = tuple(A.shape[d] for d in kept if d >= A.sparse_dim)
    if not sparse:
        return reshape_p(to_dense(A), shape=dense)  # one cell
    return _reshaped(A, sparse, dense)


def sparse_unsqueeze(A: Any, axis: int) -> Any:
    """`A` with a size-1 dimension at `axis`: a sparse one unless it stands among dense ones."""
    sparse, dense = list(A.pattern.shape), list(A.values.shape[1:])
    if axis <= A.sparse_dim:
        sparse.insert(axis, 1)
    else:
        dense.insert(axis - A.sparse_dim, 1)
    return _reshaped(A, tuple(sparse), tuple(dense))


@reshape_p.defsparse
def _reshape(A: Any, *, shape: tuple[int, ...]) -> Any:
    """Sparse dimensions stay sparse and dense ones dense, unless they are merged with each other:
    then every element of an entry becomes an entry."""
    shape = _complete(A, shape)
    dense = A.values.shape[1:]
    cells, block = math.prod(A.pattern.shape), math.prod(dense)
    cuts = [
        n
        for n in range(1, len(shape) + 1)
        if math.prod(shape[:n]) == cells and math.prod(shape[n:]) == block
    ]
    if not dense:
        cuts = [n for n in cuts if n == len(shape)]
    if not cuts:
        return _reshaped(split_dense(A, A.dense_dim), shape, ())
    same_rank = len(shape) - len(dense)  # with sizes 1 the cut is open: keep as many dense ones
    at = same_rank if same_rank in cuts else cuts[0]
    return _reshaped(A, shape[:at], shape[at:])


def _complete(A: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with -1 filled in."""
    total = math.prod(A.shape)
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known and total % known == 0:
        shape = tuple(total // known if n == -1 else n for n in shape)
    if any(n < 0 for n in shape) or math.prod(shape) != total:
        raise ShapeError(f"reshape: {A.shape} cannot become {shape}: it has {total} cells")
    if not shape:
        raise ShapeError(f"reshape: {A.shape} cannot become (): use .sum() or A[0, 0] for a number")
    return shape


def _reshaped(A: Any, sparse: tuple[int, ...], dense: tuple[int, ...]) -> Any:
    if max(sparse) > _LARGEST:
        raise ShapeError(f"reshape: a dimension of {max(sparse)} cells does not fit 64 bits")
    if dense != A.values.shape[1:]:
        A = A.with_values(reshape_p(A.values, shape=(A.nnz, *dense)))
    if sparse == A.pattern.shape:
        return A
    return selected(A.values, plan_select.reshape(A.pattern, sparse))


# ---- one axis cut or padded: cotangents of cat and slices ---------------------------------------
@slice_p.defsparse
def _slice(A: Any, *, axis: int, start: int, stop: int) -> Any:
    if axis < A.sparse_dim:
        return sparse_getitem(A, (slice(None),) * axis + (slice(start, stop),))
    inner = axis - A.sparse_dim + 1
    return A.with_values(slice_p(A.values, axis=inner, start=start, stop=stop))


@pad_p.defsparse
def _pad(A: Any, *, axis: int, before: int, after: int) -> Any:
    if axis >= A.sparse_dim:
        inner = axis - A.sparse_dim + 1
        return A.with_values(pad_p(A.values, axis=inner, before=before, after=after))
    A = A.to("coo")
    return wrap(A.values, plan_select.pad(A.pattern, axis, before, after))


@broadcast_p.defsparse
def _expand(A: Any, *, shape: tuple[int, ...]) -> Any:
    """Size-1 dimensions repeated: sparse ones entry by entry, dense ones without copying. New
    leading dimensions are sparse."""
    lead = len(shape) - A.ndim
    sizes = (1,) * lead + A.shape
    if any(n not in (1, m) for n, m in zip(sizes, shape, strict=True)):
        raise ShapeError(f"expand: {A.shape} cannot become {shape}: only sizes 1 can change")
    if A.nnz and any(n > _LARGEST for n, m in zip(shape, sizes, strict=True) if n != m):
        raise ShapeError(f"expand: {A.shape} cannot become {shape}: no array is so long")
    sparse, dense = shape[: lead + A.sparse_dim], shape[lead + A.sparse_dim :]
    A = _reshaped(A, sizes[: len(sparse)], A.values.shape[1:])
    values, pattern = A.values, A.pattern
    if dense != values.shape[1:]:
        values = broadcast_p(values, shape=(A.nnz, *dense))
    if sparse == pattern.shape:
        return A.with_values(values)
    return selected(values, plan_select.Select(*plan.expand(pattern, sparse)))


# ---- joining -----------------------------------------------------------------------------------
@cat_p.defsparse
def _cat(*tensors: Any, axis: int) -> Any:
    """In the format of the first; entries, duplicates included, stay what they are."""
    _check_sparse("cat", tensors)
    first = tensors[0]
    for i, A in enumerate(tensors):
        if (
            A.ndim != first.ndim
            or A.sparse_dim != first.sparse_dim
            or any(n != m for d, (n, m) in enumerate(zip(A.shape, first.shape)) if d != axis)
        ):
            raise ShapeError(
                f"cat: sizes must be equal but along dim {axis}; got tensors[0]: {first.shape} "
                f"with {first.dense_dim} dense dimensions, tensors[{i}]: {A.shape} with "
                f"{A.dense_dim}"
            )
    if len(tensors) == 1:
        return first
    if axis < first.sparse_dim:
        joined = plan_select.concatenate([A.pattern for A in tensors], axis)
        return _joined(tensors, joined)
    lead = axis - first.sparse_dim + 1
    if all(A.pattern.same_as(first.pattern) for A in tensors):
        return first.with_values(cat_p(*(A.values for A in tensors), axis=lead))
    return reduce(lambda A, B: _beside(A, B, lead), tensors)


def _beside(A: Any, B: Any, axis: int) -> Any:
    """Values of different entries along their `axis`: each padded with zeros, then a union."""
    merge = plan.union(A.pattern, B.pattern)
    return wrap(apply_merge(blocks_p(A.values, B.values, axis=axis), merge), merge.pattern)


def _joined(tensors: Sequence[Any], joined: plan_select.Select) -> Any:
    return selected(cat_p(*(A.values for A in tensors), axis=0), joined)


def _check_sparse(op: str, tensors: Sequence[Any]) -> None:
    for i, A in enumerate(tensors):
        if not getattr(A, "_is_sparse", False):
            raise TypeError(
                f"{op}: sparse and dense tensors together; tensors[{i}] is a {type(A).__name__}; "
                "write x.to_sparse() or A.to_dense()"
            )


def block_diag(*tensors: Any) -> Any:
    """Matrices along the diagonal of a larger one, zero elsewhere: (m1, n1), (m2, n2), ... ->
    (m1 + m2 + ..., n1 + n2 + ...). Given one by one or as one sequence.

    Sparse matrices give a sparse one in the format of the first, with all their entries; dense
    ones a dense one. Graphs of different sizes become one batch this way, without padding.
    Raises ShapeError for anything but matrices, TypeError for sparse and dense ones together.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 1], [1], [2.0], (1, 2))
    >>> sg.block_diag(A, A).to_dense()
    tensor([[0., 2., 0., 0.],
            [0., 0., 0., 2.]])
    """
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tuple(tensors[0])
    tensors = tuple(as_argument("block_diag", A) for A in tensors)
    if not tensors:
        raise ShapeError("block_diag: expected at least one matrix")
    sparse = any(getattr(A, "_is_sparse", False) for A in tensors)
    if sparse:
        _check_sparse("block_diag", tensors)
    for i, A in enumerate(tensors):
        if (A.sparse_dim if sparse else A.ndim) != 2 or A.shape[2:] != tensors[0].shape[2:]:
            raise ShapeError(f"block_diag: expected matrices, got tensors[{i}]: {A.shape}")
    if sparse:
        if len(tensors) == 1:
            return tensors[0]
        return _joined(tensors, plan_select.block_diagonal([A.pattern for A in tensors]))
    return blocks_p(*tensors, axis=1)


from sparsegrad.sparse_tensor import wrap  # noqa: E402  (the one import cycle)
