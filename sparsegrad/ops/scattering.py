"""Elements by index along a dimension: gather, scatter and their kin, on dense tensors."""

from __future__ import annotations

from typing import Any

from sparsegrad import backends, dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import DtypeError, PatternError, ShapeError, memory_for
from sparsegrad.ops.composite import dense_argument
from sparsegrad.ops.elementwise import cast, where_p
from sparsegrad.ops.index import getitem_p, putitem_p, raw_index, take_p
from sparsegrad.ops.shape import (
    as_argument,
    as_axis,
    broadcast_p,
    reshape_p,
    slice_p,
    transpose,
)
from sparsegrad.ops.sparse_structure import add_rows_p, each_once
from sparsegrad.structure import plan_select
from sparsegrad.structure.pattern import Pattern

__all__ = [
    "argwhere",
    "gather",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "masked_fill",
    "masked_select",
    "nonzero",
    "scatter",
    "scatter_add",
    "take_along_dim",
]


def _grid(xp: Any, index: Any, axis: int) -> tuple[Any, ...]:
    """Index arrays of every dimension that broadcast to the shape of `index`."""
    return tuple(
        index
        if d == axis
        else xp.arange(n).reshape([n if i == d else 1 for i in range(index.ndim)])
        for d, n in enumerate(index.shape)
    )


def flat_positions(xp: Any, index: Any, axis: int, shape: tuple[int, ...]) -> Any:
    """The positions that `index` means along one axis, in a row-major array of `shape`."""
    lines, along, stride = 0, index, 1  # of the line along the axis, small; and within it
    for d in reversed(range(index.ndim)):
        if d == axis:
            along = index * stride if stride > 1 else index
        else:
            ids = xp.arange(index.shape[d], dtype="int64") * stride
            lines = lines + ids.reshape([-1 if i == d else 1 for i in range(index.ndim)])
        stride *= shape[d]
    return (along + lines).astype("int64", copy=False).reshape(-1)


# ---- the pair: reading along an axis, and adding back ------------------------------------------
@primitive(promote="none")
def gather_p(xp: Any, x: Any, *, index: Any, axis: int, sparse: bool = False) -> Any:
    """x[..., index[...], ...] along one axis, in the shape of `index`, which may be smaller than x
    along the others. sparse: the gradient is an element-sparse SparseTensor."""
    return x.reshape(-1)[flat_positions(xp, index, axis, x.shape)].reshape(index.shape)


@primitive(promote="none")
def put_along_p(be: Any, x: Any, *, index: Any, axis: int, shape: tuple[int, ...]) -> Any:
    """The transpose of `gather_p`: zeros of `shape` with x added; the same place adds up."""
    out = be.xp.zeros(shape, x.dtype)
    be.scatter_add(out.reshape(-1), flat_positions(be.xp, index, axis, shape), x.reshape(-1))
    return out


def _gather_rule(g: Any, index: Any, axis: int, sparse: bool, x_meta: Any) -> Any:
    if not sparse:
        return put_along_p(g, index=index, axis=axis, shape=x_meta.shape)
    from sparsegrad.sparse_tensor import wrap

    xp = backends.for_array(index).xp
    coords = [xp.broadcast_to(c, index.shape).reshape(-1) for c in _grid(xp, index, axis)]
    pattern = Pattern.coo(coords, x_meta.shape, check=False, copy=False)
    return wrap(reshape_p(g, shape=(-1,)), pattern)


gather_p.defvjp(x=_gather_rule)
put_along_p.defvjp(x=lambda g, index, axis: gather_p(g, index=index, axis=axis))


# ---- arguments ---------------------------------------------------------------------------------
def _index(op: str, x: Any, index: Any, size: int) -> Any:
    """An index as its own array of integers in [0, size) on the device of x."""
    if getattr(x, "_is_sparse", False):
        raise TypeError(f"{op}: needs a dense input, got a SparseTensor of shape {x.shape}")
    ids = raw_index(index)
    if not hasattr(ids, "dtype") or (ids.dtype.kind not in "iu"):
        raise PatternError(f"{op}: index must be integers, got {getattr(ids, 'dtype', ids)}")
    be = backends.for_array(x.data)
    ids = be.asarray(ids).astype("int64")  # a copy: nobody else can change it
    be.check_indices(f"{op}: index", ids.reshape(-1), size)
    return ids


def along(op: str, x: Any, dim: int, index: Any) -> tuple[int, Any]:
    """The axis, and an index whose other sizes do not exceed those of x."""
    axis = as_axis(op, dim, x.ndim)
    ids = _index(op, x, index, x.shape[axis])
    small = ids.ndim == x.ndim and all(
        n <= m or d == axis for d, (n, m) in enumerate(zip(ids.shape, x.shape))
    )
    if not small:
        raise ShapeError(
            f"{op}: index must have as many dimensions as the input, and be no larger but along "
            f"dim {dim}; got index: {ids.shape}, input: {x.shape}"
        )
    return axis, ids


def slices_of(op: str, x: Any, dim: int, index: Any) -> tuple[int, Any] | None:
    """The axis, and the ids (k,) along it of an index that repeats them along all other dimensions
    of x, without copies, as `ids.unsqueeze(1).expand(-1, d)` does; None for another index."""
    axis = as_axis(op, dim, x.ndim)
    ids = index.data if hasattr(index, "_requires_grad") else index
    if x.ndim < 2 or getattr(ids, "ndim", -1) != x.ndim or not hasattr(ids, "strides"):
        return None
    others = [d for d in range(x.ndim) if d != axis]
    if any(ids.shape[d] != x.shape[d] or ids.strides[d] or not x.shape[d] for d in others):
        return None
    one = ids[tuple(slice(None) if d == axis else 0 for d in range(x.ndim))]
    return axis, _index(op, x, one, x.shape[axis])


def axis_and_index(op: str, x: Any, dim: int, index: Any) -> tuple[int, Any]:
    """The axis, and an index (k,) along it."""
    axis = as_axis(op, dim, x.ndim)
    return axis, _index(op, x, index, x.shape[axis]).reshape(-1)


def cut_to(op: str, src: Any, shape: tuple[int, ...]) -> Any:
    """The leading part of `src` of the shape of an index."""
    from sparsegrad.tensor import as_tensor

    src = as_tensor(src)
    if src.ndim != len(shape) or any(n > m for n, m in zip(shape, src.shape)):
        raise ShapeError(f"{op}: src must cover the index; got {src.shape}, index: {shape}")
    for axis, n in enumerate(shape):
        if n != src.shape[axis]:
            src = slice_p(src, axis=axis, start=0, stop=n)
    return src


def _replaced(x: Any, flat: Any, src: Any) -> Any:
    """x with the elements at row-major positions `flat` (e,) taken from `src` (e elements, or a
    number). Of equal positions the last one counts, and it alone gets a gradient."""
    xp = backends.for_array(x.data).xp
    last = xp.full(x.data.size, -1, dtype="int64")
    xp.maximum.at(last, flat, xp.arange(flat.size))
    kept = (last < 0).reshape(x.shape)
    if not flat.size or not hasattr(src, "shape"):
        return where_p(x, src if not hasattr(src, "shape") else 0, mask=kept)
    rows = reshape_p(cast(src, x.dtype), shape=(-1,))
    taken = take_p(rows, index=xp.where(last < 0, 0, last))
    return where_p(x, reshape_p(taken, shape=x.shape), mask=kept)


# ---- public names ------------------------------------------------------------------------------
def gather(x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    """out[i, j, ...] = x[index[i, j, ...], j, ...] for dim 0, and so on; the shape of `index`.

    index: integers, as many dimensions as `x`, no larger than it but along `dim`.
    sparse_grad: the gradient of `x` is a SparseTensor with one entry for each element of `index`,
        however large `x` is.
    Raises ShapeError for sizes that do not fit, PatternError for an index outside [0, n).

    >>> import sparsegrad as sg
    >>> x = sg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> sg.gather(x, 1, sg.tensor([[0], [1]]), sparse_grad=True).sum().backward()
    >>> x.grad
    SparseTensor(shape=(2, 2), nnz=2, density=0.5, format='coo', dtype=float32, device='cpu',
                 (0, 0): 1., (1, 1): 1.)
    """
    x = as_argument("gather", x)
    slices = None if sparse_grad else slices_of("gather", x, dim, index)
    if slices is not None:
        axis, ids = slices
        return getitem_p(x, index=(*[slice(None)] * axis, ids))
    axis, ids = along("gather", x, dim, index)
    return gather_p(x, index=ids, axis=axis, sparse=sparse_grad)


def take_along_dim(x: Any, indices: Any, dim: int | None = None) -> Any:
    """`gather` with `x` and `indices` broadcast to each other but along `dim`, so that
    `take_along_dim(x, argsort(x, dim), dim)` is sorted; without `dim`, of the flattened `x`.

    >>> import sparsegrad as sg
    >>> sg.take_along_dim(sg.tensor([[3, 1], [4, 2]]), sg.tensor([[1]]), dim=1)
    tensor([[1],
            [2]])
    """
    x = as_argument("take_along_dim", x)
    if dim is None:
        ids = raw_index(indices)
        return gather(reshape_p(x, shape=(-1,)), 0, ids.reshape(-1))
    axis = as_axis("take_along_dim", dim, x.ndim)
    ids = _index("take_along_dim", x, indices, x.shape[axis])
    if ids.ndim != x.ndim or any(
        1 not in (n, m) and n != m and d != axis for d, (n, m) in enumerate(zip(ids.shape, x.shape))
    ):
        raise ShapeError(f"take_along_dim: indices {ids.shape} do not broadcast with {x.shape}")
    full = [max(n, m) if n and m else 0 for n, m in zip(ids.shape, x.shape)]
    sizes, full[axis] = list(full), ids.shape[axis]
    sizes[axis] = x.shape[axis]
    ids = backends.for_array(ids).xp.broadcast_to(ids, full)
    return gather_p(broadcast_p(x, shape=tuple(sizes)), index=ids, axis=axis)


def scatter_add(x: Any, dim: int, index: Any, src: Any) -> Any:
    """`x` with src[i, j, ...] added at (index[i, j, ...], j, ...) for dim 0, and so on; places that
    are named twice get both. The transpose of `gather`; gradients to `x` and `src`.

    >>> import sparsegrad as sg
    >>> sg.scatter_add(sg.zeros(3), 0, sg.tensor([2, 0, 2]), sg.tensor([1.0, 2.0, 3.0]))
    tensor([2., 0., 4.])
    """
    x = as_argument("scatter_add", x)
    slices = slices_of("scatter_add", x, dim, index)
    if slices is not None:
        axis, ids = slices
        src = transpose(cast(cut_to("scatter_add", src, tuple(index.shape)), x.dtype), 0, axis)
        return transpose(add_rows_p(transpose(x, 0, axis), src, index=ids), 0, axis)
    axis, ids = along("scatter_add", x, dim, index)
    src = cast(cut_to("scatter_add", src, ids.shape), x.dtype)
    return x + put_along_p(src, index=ids, axis=axis, shape=tuple(x.shape))


def scatter(x: Any, dim: int, index: Any, src: Any, *, reduce: str | None = None) -> Any:
    """`x` with src[i, j, ...] (or a number) at (index[i, j, ...], j, ...) for dim 0, and so on.

    Where a place is named twice the last value counts, and it alone gets a gradient; what is
    overwritten in `x` gets none.
    reduce: "add" or "multiply" instead; more of that: `scatter_reduce`.

    >>> import sparsegrad as sg
    >>> sg.scatter(sg.zeros(3), 0, sg.tensor([2, 2]), sg.tensor([5.0, 6.0]))
    tensor([0., 0., 6.])
    """
    x = as_argument("scatter", x)
    axis, ids = along("scatter", x, dim, index)
    if reduce is not None:
        return _combined(x, dim, ids, src, reduce)
    if hasattr(src, "shape") or isinstance(src, (list, tuple)):
        src = cut_to("scatter", src, ids.shape)
    return _replaced(x, flat_positions(backends.for_array(ids).xp, ids, axis, tuple(x.shape)), src)


def _combined(x: Any, dim: int, ids: Any, src: Any, reduce: str) -> Any:
    from sparsegrad.ops.scatter_runs import scatter_reduce
    from sparsegrad.tensor import Tensor

    if reduce not in ("add", "multiply"):
        raise ValueError(f"scatter: reduce must be 'add' or 'multiply', got {reduce!r}")
    if not hasattr(src, "shape") and not isinstance(src, (list, tuple)):
        src = Tensor(backends.for_array(ids).xp.full(ids.shape, src, dtype=x.dtype))
    return scatter_reduce(x, dim, ids, src, "sum" if reduce == "add" else "prod")


def _slices(op: str, x: Any, dim: int, index: Any, source: Any) -> tuple[int, Any, Any]:
    """The axis, an index (k,), and slices (k, ...) with that axis first."""
    source = dense_argument(op, source)
    axis, ids = axis_and_index(op, x, dim, index)
    expected = (*x.shape[:axis], ids.size, *x.shape[axis + 1 :])
    if tuple(source.shape) != expected:
        raise ShapeError(f"{op}: source must have shape {expected}, got {source.shape}")
    return axis, ids, transpose(cast(source, x.dtype), 0, axis)


def index_add(x: Any, dim: int, index: Any, source: Any, alpha: float = 1) -> Any:
    """`x` with alpha * the slices of `source` added to its slices `index` (k,) along `dim`;
    repeated ones add up. Gradients to `x` and `source`.

    >>> import sparsegrad as sg
    >>> sg.index_add(sg.zeros(3, 1), 0, sg.tensor([2, 2]), sg.ones(2, 1)).tolist()
    [[0.0], [0.0], [2.0]]
    """
    x = as_argument("index_add", x)
    axis, ids, rows = _slices("index_add", x, dim, index, source)
    rows = rows if alpha == 1 else rows * alpha
    return transpose(add_rows_p(transpose(x, 0, axis), rows, index=ids), 0, axis)


def index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    """`x` with the slices of `source` in the place of its slices `index` (k,) along `dim`; of
    repeated ones the last counts.

    >>> import sparsegrad as sg
    >>> sg.index_copy(sg.zeros(3), 0, sg.tensor([2, 0]), sg.tensor([5.0, 6.0]))
    tensor([6., 0., 5.])
    """
    x = as_argument("index_copy", x)
    axis, ids, rows = _slices("index_copy", x, dim, index, source)
    if not ids.size:
        return x
    xp = backends.for_array(ids).xp
    last = xp.full(x.shape[axis], -1, dtype="int64")
    xp.maximum.at(last, ids, xp.arange(ids.size))
    taken = transpose(take_p(rows, index=xp.where(last < 0, 0, last)), 0, axis)
    return where_p(x, taken, mask=_on_axis(last < 0, axis, x.ndim))


def index_fill(x: Any, dim: int, index: Any, value: Any) -> Any:
    """`x` with a number in its slices `index` (k,) along `dim`, which get no gradient.

    >>> import sparsegrad as sg
    >>> sg.index_fill(sg.zeros(3), 0, sg.tensor([2, 0]), 7)
    tensor([7., 0., 7.])
    """
    x = as_argument("index_fill", x)
    axis, ids = axis_and_index("index_fill", x, dim, index)
    kept = backends.for_array(ids).xp.ones(x.shape[axis], dtype=bool)
    kept[ids] = False
    return where_p(x, _fitting("index_fill", x, value), mask=_on_axis(kept, axis, x.ndim))


def _on_axis(mask: Any, axis: int, ndim: int) -> Any:
    return mask.reshape([-1 if d == axis else 1 for d in range(ndim)])


def index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """`x[indices] = values`, as a new tensor with gradients to `x` and `values`.

    indices: whatever may stand in `x[...]`. values: broadcast to the shape of `x[indices]`.
    accumulate: add instead; places that are named twice get both. Otherwise the last one counts,
        and what is overwritten gets no gradient.

    >>> import sparsegrad as sg
    >>> sg.index_put(sg.zeros(2, 2), (sg.tensor([0, 1]), sg.tensor([1, 1])), sg.tensor([5.0, 6.0]))
    tensor([[0., 5.],
            [0., 6.]])
    """
    x = dense_argument("index_put", x)
    from sparsegrad.tensor import as_tensor

    be = backends.for_array(x.data)
    index = raw_index(tuple(indices) if isinstance(indices, list) else indices)
    try:
        places = be.xp.arange(x.data.size).reshape(x.shape)[index]
    except IndexError as error:
        raise IndexError(f"index_put: {error}") from None
    values = as_tensor(values)
    if values.ndim > places.ndim or any(
        n not in (1, m) for n, m in zip(reversed(values.shape), reversed(places.shape))
    ):
        raise ShapeError(
            f"index_put: values {values.shape} do not broadcast to the shape {places.shape} of "
            "the indices"
        )
    values = broadcast_p(cast(values, x.dtype), shape=places.shape)
    if accumulate:
        flat = reshape_p(values, shape=(-1,))
        spread = putitem_p(flat, index=places.reshape(-1), shape=(x.data.size,))
        return x + reshape_p(spread, shape=x.shape)
    return _replaced(x, places.reshape(-1), values)


def _fitting(op: str, x: Any, value: Any) -> Any:
    """A number or zero-dimensional tensor in the dtype of x."""
    if getattr(value, "shape", ()) != ():
        raise ShapeError(f"{op}: value must be a number, got shape {value.shape}")
    if dtypes.result_type(x, value) != x.dtype:
        raise DtypeError(f"{op}: {value!r} does not fit the dtype {x.dtype} of the input")
    return cast(value, x.dtype) if hasattr(value, "shape") else value


def _bool(op: str, mask: Any) -> Any:
    from sparsegrad.tensor import as_tensor

    mask = as_tensor(mask)
    if mask.dtype != dtypes.bool_:
        raise DtypeError(f"{op}: mask must be bool, got {mask.dtype}")
    return mask


def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """`x` with a number (or tensor without dimensions) where `mask` is true; the mask broadcasts
    to the shape of `x`. Elements that are filled get no gradient.

    >>> import sparsegrad as sg
    >>> sg.masked_fill(sg.ones(3), sg.tensor([True, False, True]), 5)
    tensor([5., 1., 5.])
    """
    x = dense_argument("masked_fill", x)
    mask = broadcast_p(_bool("masked_fill", mask), shape=tuple(x.shape))
    return where_p(_fitting("masked_fill", x, value), x, mask=mask.data.copy())


def masked_select(x: Any, mask: Any) -> Any:
    """The elements of `x` where `mask` is true, in one dimension; both broadcast. Of a SparseTensor
    `x[mask]`: sparse, for a dense or sparse mask of its shape.

    >>> import sparsegrad as sg
    >>> sg.masked_select(sg.tensor([1.0, 2.0, 3.0]), sg.tensor([True, False, True]))
    tensor([1., 3.])
    """
    x = as_argument("masked_select", x)
    if x._is_sparse:
        return x[mask]
    held = _bool("masked_select", mask).data
    xp = backends.for_array(held).xp
    try:
        shape = xp.broadcast_shapes(x.shape, held.shape)
    except ValueError as error:
        raise ShapeError(f"masked_select: x {x.shape}, mask {held.shape}: {error}") from None
    return getitem_p(broadcast_p(x, shape=shape), index=xp.broadcast_to(held, shape).copy())


@memory_for("nonzero")
def nonzero(x: Any, as_tuple: bool = False) -> Any:
    """Where the nonzero elements are, in row-major order: integers (n, ndim), or a tuple of ndim
    vectors (n,) with `as_tuple`. Of a SparseTensor in O(nnz), without its dense dimensions.

    >>> import sparsegrad as sg
    >>> sg.nonzero(sg.tensor([[0, 7], [8, 0]]))
    tensor([[0, 1],
            [1, 0]])
    """
    x = as_argument("nonzero", x)
    from sparsegrad.tensor import Tensor

    if getattr(x, "_is_sparse", False):
        x = each_once(x)
        be, (listed, order) = x.pattern.core.backend, plan_select.row_major(x.pattern)
        _, found, _ = be.compact(be.beyond(x.values.data, order=order), listed.coords)
    else:
        be = backends.for_array(x.data)
        found = be.xp.nonzero(x.data) if x.ndim else be.xp.nonzero(x.data.reshape(1))[:0]
    if as_tuple:
        return tuple(Tensor(c.astype("int64")) for c in found)
    if not found:
        return Tensor(be.xp.zeros((int(x.data != 0), 0), dtype="int64"))
    return Tensor(be.columns(found))


def argwhere(x: Any) -> Any:
    """`nonzero` by NumPy's name.

    >>> import sparsegrad as sg
    >>> sg.argwhere(sg.tensor([0, 3]))
    tensor([[1]])
    """
    return nonzero(x)
