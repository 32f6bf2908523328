"""Indexing of dense tensors, and the gathers from which row-sparse gradients start."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegrad import backends, dtypes
from sparsegrad.engine.mode import anomaly
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import PatternError, ShapeError
from sparsegrad.ops.shape import as_argument, as_axis, reshape_p, transpose
from sparsegrad.structure import plan_rows
from sparsegrad.structure.arrays import Runs, index_dtype

__all__ = ["embedding", "take"]


# ---- x[index], with everything NumPy allows ----------------------------------------------------
@primitive(view=True, promote="none")
def getitem_p(xp: Any, x: Any, *, index: Any) -> Any:
    return x[index]


@primitive(promote="none")
def putitem_p(be: Any, x: Any, *, index: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of `shape` with `x` added at `index`; repeated positions add up."""
    out = be.xp.zeros(shape, x.dtype)
    if hasattr(index, "dtype") and index.dtype.kind in "iu" and shape:
        flat, rows = index.reshape(-1), x.reshape(-1, *shape[1:])
        if be.xp is np and flat.size and flat[0] >= 0 and (flat[1:] > flat[:-1]).all():
            out[flat] = rows  # none occurs twice; on a GPU looking would be a wait
        else:
            be.scatter_add(out, be.xp.where(flat < 0, flat + shape[0], flat), rows)
    elif _is_basic(index):
        out[index] = x
    else:
        total = be.convert(out, dtypes.accumulator(x.dtype))
        be.xp.add.at(total, index, be.convert(x, total.dtype))
        out = be.convert(total, x.dtype)
    return out


def _getitem_rule(g: Any, index: Any, x_meta: Any) -> Any:
    of_rows = isinstance(index, slice) or getattr(index, "ndim", 0) == 1
    if of_rows and type(g.data) is np.ndarray and plan_rows.few(len(g), x_meta.shape):
        n = x_meta.shape[0]
        plain = type(index) is np.ndarray and index.dtype != np.bool_
        return _some_rows(g, index if plain else np.arange(n)[index], n)
    return putitem_p(g, index=index, shape=x_meta.shape)


def _some_rows(g: Any, ids: Any, n: int) -> Any:
    """`g` (e, *D) in the rows `ids` (e,) of a dense cotangent (n, *D) that is zero elsewhere."""
    from sparsegrad.sparse_tensor import some_rows

    return some_rows(g, plan_rows.rows(ids, n))


getitem_p.defvjp(x=_getitem_rule)
putitem_p.defvjp(x=lambda g, index: getitem_p(g, index=index))


def _is_basic(index: Any) -> bool:
    """Whether no position can occur twice: slices, numbers, None, Ellipsis, one boolean mask."""
    parts = index if isinstance(index, tuple) else (index,)
    masks = sum(getattr(p, "dtype", None) == np.bool_ for p in parts)
    arrays = sum(hasattr(p, "dtype") for p in parts)
    return arrays == 0 or (arrays == 1 and masks == 1)


def raw_index(index: Any, op: str = "index") -> Any:
    """An index with tensors and lists turned into arrays."""
    if isinstance(index, tuple):
        return tuple(raw_index(part, op) for part in index)
    if isinstance(index, list):
        try:
            index = np.asarray(index, dtype=np.int64 if not index else None)
        except ValueError:
            raise IndexError(f"{op}: a list of lists of different lengths: {index}") from None
    if hasattr(index, "_requires_grad"):
        index = index.data
    if hasattr(index, "dtype") and index.dtype.kind not in "iub":
        raise IndexError(f"{op}: expected integers or a bool mask, got {index.dtype}")
    return index


def getitem(x: Any, index: Any) -> Any:
    """x[index] with a dense gradient, as in PyTorch."""
    index = raw_index(index)
    return getitem_p(x, index=_kept(index) if x.requires_grad else index)


def _kept(index: Any) -> Any:
    """An index whose arrays nobody else can change before the backward pass."""
    if isinstance(index, tuple):
        return tuple(_kept(part) for part in index)
    return index.copy() if hasattr(index, "dtype") else index


# ---- one element per position along an axis ----------------------------------------------------
@primitive(promote="none")
def pick_p(xp: Any, x: Any, *, index: Any, axis: int) -> Any:
    """x[..., index[...], ...] along one axis; index has x's shape but size 1 there."""
    return xp.take_along_axis(x, index, axis=axis)


@primitive(promote="none")
def spread_p(xp: Any, x: Any, *, index: Any, axis: int, n: int) -> Any:
    """The transpose of `pick_p`: size 1 to size n along the axis, zero but at `index`."""
    positions = xp.arange(n).reshape([n if i == axis else 1 for i in range(x.ndim)])
    return xp.where(positions == index, x, x.dtype.type(0)).astype(x.dtype, copy=False)


pick_p.defvjp(
    x=lambda g, index, axis, x_meta: spread_p(g, index=index, axis=axis, n=x_meta.shape[axis])
)
spread_p.defvjp(x=lambda g, index, axis: pick_p(g, index=index, axis=axis))


# ---- rows by index: where row-sparse gradients start -------------------------------------------
@primitive(promote="none", passes_g=True)
def take_p(
    be: Any,
    x: Any,
    *,
    index: Any,
    sparse: bool = False,
    skip: int | None = None,
    distinct: bool = False,
) -> Any:
    """Rows x[index]: x (n, *D), index (e,) -> (e, *D). Indices must be in range.

    sparse: the gradient is a row-sparse SparseTensor. skip: a row that gets no gradient. distinct:
    no row is taken twice.
    """
    return be.gather(x, index)


@primitive(promote="none")
def put_rows_p(be: Any, x: Any, *, index: Any, n: int, distinct: bool = False) -> Any:
    """The transpose of `take_p`: (e, *D) -> (n, *D), rows with the same index add up."""
    return be.put_rows(x, index, n, distinct)


def take_rule(
    g: Any, index: Any, sparse: bool, skip: int | None, distinct: bool, x_meta: Any
) -> Any:
    """The gradient of `take_p`, whose arguments these are."""
    if skip is not None:
        keep = backends.for_array(index).xp.flatnonzero(index != skip)
        g, index = take_p(g, index=keep), index[keep]
    if not sparse:
        if type(index) is np.ndarray and plan_rows.few(index.size, x_meta.shape):
            return _some_rows(g, index, x_meta.shape[0])
        return put_rows_p(g, index=index, n=x_meta.shape[0], distinct=distinct)
    from sparsegrad.sparse_tensor import row_sparse

    return row_sparse(g, index, x_meta.shape)


take_p.defvjp(x=take_rule)


@primitive(promote="none", passes_g=True)
def take_runs_p(be: Any, x: Any, *, runs: Runs) -> Any:
    """Rows of x (n, *D) in `runs` of them, one behind the other: (e, *D)."""
    return be.take_runs(x, runs)


take_runs_p.defvjp(
    x=lambda g, runs, x_meta: take_rule(g, runs.positions, False, None, False, x_meta)
)
put_rows_p.defvjp(x=lambda g, index, distinct: take_p(g, index=index, distinct=distinct))


def entries_of(x: Any, places: Any, distinct: bool = False) -> Any:
    """Rows of x (n, *D) in runs, or at an index (e,) with or without repeats: (e, *D)."""
    if isinstance(places, Runs):
        return take_runs_p(x, runs=places)
    return take_p(x, index=places, distinct=distinct)


@primitive(promote="none")
def take_or_zero_p(be: Any, x: Any, *, moves: Any) -> Any:
    """Rows x[moves.perm]: x (n, *D) -> (e, *D), zeros where that is one past the end. No row is
    taken twice, so the transpose is the way back."""
    return be.gather_or_zero(x, moves.perm)


take_or_zero_p.defvjp(x=lambda g, moves: take_or_zero_p(g, moves=moves.back))


def take(x: Any, index: Any, dim: int = 0, sparse_grad: bool = True) -> Any:
    """Slices of `x` along `dim` by an integer index of any shape, which replaces that dimension.

    With `sparse_grad` and dim 0 the gradient of `x` is row-sparse: a SparseTensor that stores
    only the rows that were taken, however large `x` is. Raises PatternError for an index outside
    [0, n).

    >>> import sparsegrad as sg
    >>> w = sg.ones(1000, 2, requires_grad=True)
    >>> sg.take(w, sg.tensor([7, 7, 3])).sum().backward()
    >>> w.grad
    SparseTensor(shape=(1000, 2), dense_dims=1, nnz=3, density=0.003, format='coo', dtype=float32,
                 device='cpu', (7,): [1., 1.], (7,): [1., 1.], (3,): [1., 1.])
    >>> w.grad.coalesce().values
    tensor([[1., 1.],
            [2., 2.]])
    """
    index = index if hasattr(index, "shape") or isinstance(index, list) else [index]
    ids, x = raw_index(index, "take: index"), as_argument("take", x)
    dim = as_axis("take", dim, x.ndim)
    if not dim:
        return _take_rows("take", x, ids, sparse_grad, None)
    rows = _take_rows("take", transpose(x, 0, dim), ids.reshape(-1), False, None)
    out = transpose(rows, 0, dim)
    return reshape_p(out, shape=(*x.shape[:dim], *ids.shape, *x.shape[dim + 1 :]))


def _take_rows(op: str, x: Any, ids: Any, sparse: bool, skip: int | None) -> Any:
    if x._is_sparse:
        raise TypeError(f"{op}: expected a dense tensor, got a SparseTensor; see index_select")
    if x.ndim == 0:
        raise ShapeError(f"{op}: a tensor of shape () has no rows")
    if ids.dtype.kind not in "iu":
        raise PatternError(f"{op}: index must be integers, got {ids.dtype}")
    be = backends.for_array(x.data)
    flat = be.asarray(ids.reshape(-1))
    be.check_indices(f"{op}: index", flat, x.shape[0], later=not anomaly.get())
    shared = flat is ids or flat.base is not None
    if be.scatter_sorts:  # for the gradient: short ones are sorted sooner
        flat = flat.astype(index_dtype(x.shape[:1], 0), copy=shared)
    elif shared:
        flat = flat.copy()
    out = take_p(x, index=flat, sparse=sparse, skip=skip)
    return out if ids.ndim == 1 else reshape_p(out, shape=(*ids.shape, *x.shape[1:]))


def embedding(
    weight: Any, index: Any, padding_idx: int | None = None, sparse_grad: bool = True
) -> Any:
    """Rows of `weight` (V, D) by integer `index` (*B) -> (*B, D), with a row-sparse gradient, or a
    dense one without `sparse_grad`.

    padding_idx: a row that gets no gradient.

    >>> import sparsegrad as sg
    >>> w = sg.ones(5, 1, requires_grad=True)
    >>> sg.embedding(w, sg.tensor([[0, 0]]), padding_idx=0).sum().backward()
    >>> w.grad.nnz
    0
    """
    ids = raw_index(index, "embedding: index")
    ids = ids if hasattr(ids, "dtype") else np.asarray(ids)
    weight = as_argument("embedding", weight)
    return _take_rows("embedding", weight, ids, sparse_grad, padding_idx)
