"""Shapes of dense tensors: reshape, permute, expand, cat, stack. Views where NumPy gives views."""

from __future__ import annotations

import builtins
import itertools
import operator
from collections.abc import Sequence
from typing import Any

from sparsegrad.engine import primitive as engine
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError

__all__ = ["cat", "expand", "permute", "reshape", "squeeze", "stack", "transpose", "unsqueeze"]


@primitive(view=True, promote="none")
def reshape_p(xp: Any, x: Any, *, shape: tuple[int, ...]) -> Any:
    return x.reshape(shape)


def _reshape_rule(g: Any, x_meta: Any) -> Any:
    """A row-sparse cotangent stays sparse where its rows stay rows."""
    if getattr(g, "_is_sparse", False):
        try:
            return reshape_p(g, shape=x_meta.shape)
        except ShapeError:
            g = g._densify("backward of reshape")
    return reshape_p(g, shape=x_meta.shape)


reshape_p.defvjp(x=_reshape_rule, sparse_g=True)


@primitive(view=True, promote="none")
def permute_p(xp: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    return x.transpose(axes)


permute_p.defvjp(x=lambda g, axes: permute_p(g, axes=_inverse(axes)), sparse_g=True)


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


@primitive(view=True, promote="none")
def broadcast_p(xp: Any, x: Any, *, shape: tuple[int, ...]) -> Any:
    return xp.broadcast_to(x, shape)


broadcast_p.defvjp(x=lambda g: g, sparse_g=True)  # the engine sums g to the input's shape


@primitive
def cat_p(be: Any, *xs: Any, axis: int) -> Any:
    return be.concatenate(xs, axis)


def _split(g: Any, xs_meta: Any, axis: int, needs: tuple[bool, ...]) -> list[Any]:
    parts, start = [], 0
    for meta, needed in zip(xs_meta, needs, strict=True):
        stop = start + meta.shape[axis]
        parts.append(slice_p(g, axis=axis, start=start, stop=stop) if needed else None)
        start = stop
    return parts


cat_p.defvjp(xs=_split, sparse_g=True)


@primitive(view=True, promote="none")
def slice_p(xp: Any, x: Any, *, axis: int, start: int, stop: int) -> Any:
    return x[(slice(None),) * axis + (slice(start, stop),)]


slice_p.defvjp(
    x=lambda g, x_meta, axis, start, stop: pad_p(
        g, axis=axis, before=start, after=x_meta.shape[axis] - stop
    ),
    sparse_g=True,
)


@primitive(promote="none")
def pad_p(xp: Any, x: Any, *, axis: int, before: int, after: int) -> Any:
    """Zeros before and after along one axis."""
    n = x.shape[axis]  # `xp.pad` takes ten times as long
    out = xp.zeros((*x.shape[:axis], before + n + after, *x.shape[axis + 1 :]), x.dtype)
    out[(slice(None),) * axis + (slice(before, before + n),)] = x
    return out


pad_p.defvjp(
    x=lambda g, x_meta, axis, before: slice_p(
        g, axis=axis, start=before, stop=before + x_meta.shape[axis]
    ),
    sparse_g=True,
)


@primitive
def blocks_p(be: Any, *xs: Any, axis: int) -> Any:
    """xs (n, ..., m, ...) one after the other along axis 0 and along `axis` at once, with zeros
    elsewhere: (sum of n, ..., sum of m, ...)."""
    shape = list(xs[0].shape)
    shape[0], shape[axis] = (builtins.sum(x.shape[a] for x in xs) for a in (0, axis))
    out, first, start = be.xp.zeros(shape, xs[0].dtype), 0, 0
    for x in xs:
        rows = out[first : first + x.shape[0]]
        rows[(slice(None),) * axis + (slice(start, start + x.shape[axis]),)] = x
        first, start = first + x.shape[0], start + x.shape[axis]
    return out


def _block_slices(g: Any, xs_meta: Any, axis: int, needs: tuple[bool, ...]) -> list[Any]:
    rows = _split(g, xs_meta, 0, needs)
    ends = itertools.accumulate(meta.shape[axis] for meta in xs_meta)
    return [
        None if part is None else slice_p(part, axis=axis, start=stop - meta.shape[axis], stop=stop)
        for part, meta, stop in zip(rows, xs_meta, ends, strict=True)
    ]


blocks_p.defvjp(xs=_block_slices)


# ---- public names ------------------------------------------------------------------------------
def is_sparse(x: Any) -> bool:
    """Whether this is a SparseTensor."""
    return getattr(x, "_is_sparse", False)


def check_sparse(op: str, name: str, x: Any) -> None:
    """TypeError that names the op and the argument unless this is a SparseTensor."""
    if not is_sparse(x):
        raise TypeError(f"{op}: {name} must be a SparseTensor, got {type(x).__name__}")


def as_argument(op: str, x: Any) -> Any:
    """`x` if it is a tensor, arrays and numbers as one; TypeError that names the op otherwise."""
    return x if hasattr(x, "_is_sparse") else engine._convert(x, op)


def _sizes(op: str, shape: Any) -> tuple[int, ...]:
    try:
        return tuple(operator.index(n) for n in ((shape,) if isinstance(shape, int) else shape))
    except TypeError:
        raise ShapeError(f"{op}: expected integers, got {shape!r}") from None


def as_axis(op: str, dim: Any, ndim: int) -> int:
    """`dim` as a non-negative axis; ShapeError or TypeError names the op."""
    try:
        dim = operator.index(dim)
    except TypeError:
        raise TypeError(f"{op}: dim must be an integer, got {dim!r}") from None
    if not -ndim <= dim < ndim:
        raise ShapeError(f"{op}: dim {dim} is outside the {ndim} dimensions of the input")
    return dim % ndim


def axes_or_none(op: str, dims: Any, ndim: int) -> list[int]:
    """`dims` as axes; none of a tensor without dimensions, for which 0 and -1 are allowed."""
    if not ndim and all(d in (0, -1) for d in dims):
        return []
    return [as_axis(op, d, ndim) for d in dims]


def reshape(x: Any, shape: Any) -> Any:
    """The same elements in row-major order in another shape; one size may be -1. Sparse dimensions
    stay sparse and dense ones dense; a matrix keeps its format, other shapes are coo.

    >>> import sparsegrad as sg
    >>> sg.reshape(sg.arange(4), (2, -1))
    tensor([[0, 1],
            [2, 3]])
    """
    return reshape_p(x, shape=_sizes("reshape", shape))


def permute(x: Any, dims: Any) -> Any:
    """Dimension `dims[i]` of `x` becomes dimension i of the result. A view.

    >>> import sparsegrad as sg
    >>> sg.permute(sg.ones(2, 3, 4), (2, 0, 1)).shape
    (4, 2, 3)
    """
    x = as_argument("permute", x)
    axes = tuple(as_axis("permute", d, x.ndim) for d in _sizes("permute", dims))
    if sorted(axes) != list(range(x.ndim)):
        raise ShapeError(f"permute: {dims} is not an order of {x.ndim} dimensions")
    return permute_p(x, axes=axes)


def transpose(x: Any, dim0: int, dim1: int) -> Any:
    """Dimensions `dim0` and `dim1` swapped: O(1), a view, for sparse matrices too.

    >>> import sparsegrad as sg
    >>> sg.transpose(sg.zeros(2, 3), 0, 1).shape
    (3, 2)
    """
    x = as_argument("transpose", x)
    swapped = axes_or_none("transpose", (dim0, dim1), x.ndim)
    if not swapped:
        return x
    a, b = swapped
    if a == b and getattr(x, "_is_sparse", False):
        return x
    axes = list(range(x.ndim))
    axes[a], axes[b] = b, a
    return permute_p(x, axes=tuple(axes))


def expand(x: Any, shape: Any) -> Any:
    """`x` broadcast to `shape`; -1 keeps the size of a dimension. A view; of a sparse `x` entries
    are repeated, and new leading dimensions are sparse.

    >>> import sparsegrad as sg
    >>> sg.expand(sg.ones(2, 1), (2, 3)).shape
    (2, 3)
    """
    x, sizes = as_argument("expand", x), _sizes("expand", shape)
    lead = len(sizes) - x.ndim
    if lead < 0:
        raise ShapeError(f"expand: shape {sizes} has fewer dimensions than the input {x.shape}")
    full = tuple(x.shape[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(sizes))
    if any(n < 0 for n in full):
        raise ShapeError(f"expand: {sizes} has negative sizes for an input of shape {x.shape}")
    return broadcast_p(x, shape=full)


def squeeze(x: Any, dim: Any = None) -> Any:
    """`x` without its size-1 dimensions, or without those of `dim` that have size 1. A sparse `x`
    of which no sparse dimension is left becomes dense.

    >>> import sparsegrad as sg
    >>> sg.squeeze(sg.ones(1, 3, 1)).shape
    (3,)
    """
    x = as_argument("squeeze", x)
    if dim is None:
        drop = set(range(x.ndim))
    else:
        drop = set(axes_or_none("squeeze", _sizes("squeeze", dim), x.ndim))
    if getattr(x, "_is_sparse", False):
        from sparsegrad.ops.sparse_shape import sparse_squeeze

        return sparse_squeeze(x, drop)
    return reshape_p(x, shape=tuple(n for i, n in enumerate(x.shape) if n != 1 or i not in drop))


def unsqueeze(x: Any, dim: int) -> Any:
    """`x` with a size-1 dimension inserted at `dim`; of a sparse `x` a sparse one, unless it stands
    behind a dense one.

    >>> import sparsegrad as sg
    >>> sg.unsqueeze(sg.ones(3), 0).shape
    (1, 3)
    """
    x = as_argument("unsqueeze", x)
    axis = as_axis("unsqueeze", dim, x.ndim + 1)
    if getattr(x, "_is_sparse", False):
        from sparsegrad.ops.sparse_shape import sparse_unsqueeze

        return sparse_unsqueeze(x, axis)
    return reshape_p(x, shape=(*x.shape[:axis], 1, *x.shape[axis:]))


def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors joined along an existing dimension; the other sizes must be equal. Dense ones, or
    sparse ones: the result has the format of the first and all their entries.

    >>> import sparsegrad as sg
    >>> sg.cat([sg.zeros(1, 2), sg.ones(2, 2)]).shape
    (3, 2)
    """
    tensors = [as_argument("cat", t) for t in tensors]
    if not tensors:
        raise ShapeError("cat: expected at least one tensor")
    return cat_p(*tensors, axis=as_axis("cat", dim, builtins.max(1, tensors[0].ndim)))


def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors of one shape joined along a new dimension; of sparse ones a sparse dimension, unless
    it stands behind a dense one.

    >>> import sparsegrad as sg
    >>> sg.stack([sg.zeros(2), sg.ones(2)])
    tensor([[0., 0.],
            [1., 1.]])
    """
    tensors = [as_argument("stack", t) for t in tensors]
    if not tensors:
        raise ShapeError("stack: expected at least one tensor")
    dim = as_axis("stack", dim, tensors[0].ndim + 1)
    if len({tuple(t.shape) for t in tensors}) > 1:
        raise ShapeError(f"stack: shapes differ: {[tuple(t.shape) for t in tensors]}")
    return cat([unsqueeze(t, dim) for t in tensors], dim)
