"""Reductions of dense tensors. 16-bit floats accumulate in float32."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from sparsegrad import backends, dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError
from sparsegrad.ops.elementwise import abs as abs_
from sparsegrad.ops.elementwise import cast, maximum, sign_p
from sparsegrad.ops.index import spread_p
from sparsegrad.ops.shape import as_argument, broadcast_p, cat_p, permute_p, reshape_p, slice_p
from sparsegrad.ops.unary import abs_power_p, root_p

__all__ = [
    "MaxResult",
    "amax",
    "amin",
    "argmax",
    "max",
    "mean",
    "norm",
    "prod",
    "sum",
]


def axes_of(op: str, dim: Any, ndim: int) -> tuple[int, ...]:
    """`dim` (None, int or tuple) as sorted non-negative axes; ShapeError names the op."""
    if dim is None:
        return tuple(range(ndim))
    axes = []
    for given in dim if isinstance(dim, (tuple, list)) else (dim,):
        try:
            d = operator.index(given)
        except TypeError:
            raise TypeError(
                f"{op}: dim must be an integer, a tuple of them, or None, got {dim!r}"
            ) from None
        if not -ndim <= d < ndim and not (ndim == 0 and d in (0, -1)):
            raise ShapeError(f"{op}: dim {d} is outside the {ndim} dimensions of the input")
        axes.append(d % ndim if ndim else 0)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{op}: dim {dim} names a dimension twice")
    return tuple(sorted(axes)) if ndim else ()


def axis_of(op: str, dim: Any, ndim: int) -> int:
    """`dim` as one non-negative axis; ShapeError names the op."""
    axes = axes_of(op, dim, ndim)
    if len(axes) != 1:
        raise ShapeError(f"{op}: expected one of {ndim} dimensions, got dim {dim}")
    return axes[0]


def one_axis(op: str, x: Any, dim: Any) -> tuple[Any, int]:
    """x, as one element if it has no dimensions, and `dim` as an axis of that."""
    if x.ndim:
        return x, axis_of(op, dim, x.ndim)
    axes_of(op, dim, 0)
    return reshape_p(x, shape=(1,)), 0


def kept_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def by_rows(
    name: str, g: Any, axes: tuple[int, ...], saved: tuple[Any, ...], rule: Callable[..., Any]
) -> Any:
    """rule(g, *saved, axes); of a sparse g on the rows that it stores, where they are apart."""
    if not getattr(g, "_is_sparse", False):
        return rule(g, *saved, axes)
    from sparsegrad.ops.sparse_rows import on_rows

    return on_rows(name, g, axes, saved, rule)


def _back(g: Any, x_meta: Any, axis: tuple[int, ...], keepdims: bool, name: str = "sum") -> Any:
    """A cotangent of a reduction's result, broadcast to the input's shape."""

    def back(g: Any, axes: tuple[int, ...]) -> Any:
        # What comes before the axes is as in g: all of it, or the rows of a sparse cotangent.
        first = min(axes, default=g.ndim)
        shape = (*g.shape[:first], *x_meta.shape[min(axis, default=first) :])
        if not keepdims and g.ndim:
            g = reshape_p(g, shape=kept_shape(shape, axes))
        return broadcast_p(g, shape=shape)

    return by_rows(name, g, axis, (), back)


# ---- sums and maxima ---------------------------------------------------------------------------
@primitive(promote="none")
def sum_p(be: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    return be.sum(x, axis, keepdims)


sum_p.defvjp(x=lambda g, x_meta, axis, keepdims: _back(g, x_meta, axis, keepdims), sparse_g=True)


@primitive(promote="float")
def mean_p(be: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    wide = dtypes.accumulator(x.dtype)
    total = be.sum(be.convert(x, wide), axis, keepdims)
    count = math.prod(x.shape[a] for a in axis)
    return (total / wide.type(count)).astype(x.dtype, copy=False)  # of none: 0 / 0


def _mean_rule(g: Any, x_meta: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    count = 1
    for a in axis:
        count *= x_meta.shape[a]
    wide = dtypes.accumulator(g.dtype)  # a count may be more than float16 holds
    share = cast(cast(g, wide) / count, g.dtype) if count else g
    return _back(share, x_meta, axis, keepdims, "mean")


mean_p.defvjp(x=_mean_rule, sparse_g=True)


@primitive(promote="none")
def amax_p(be: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    return be.amax(x, axis, keepdims)


def _amax_rule(g: Any, x: Any, out: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Ties share the gradient equally."""

    def shared(g: Any, x: Any, out: Any, axis: tuple[int, ...]) -> Any:
        shape = kept_shape(x.shape, axis)
        fixed = {"x": x.data, "top": out.data.reshape(shape), "axis": axis}
        return amax_grad_p(reshape_p(g, shape=shape), **fixed)

    return by_rows("amax", g, axis, (x, out), shared)


@primitive(promote="none")
def amax_grad_p(be: Any, dy: Any, *, x: Any, top: Any, axis: tuple[int, ...]) -> Any:
    """dy, of size 1 along `axis`, in equal shares to the elements of x that are `top`."""
    return be.convert(be.amax_grad(dy, x, top, axis), dy.dtype)


def _amax_grad_rule(g: Any, x: Any, top: Any, axis: tuple[int, ...]) -> Any:
    ones = as_argument("amax", backends.for_array(top).xp.ones_like(top))
    return sum_p(g * amax_grad_p(ones, x=x, top=top, axis=axis), axis=axis, keepdims=True)


amax_grad_p.defvjp(dy=_amax_grad_rule)


@primitive(promote="none")
def amin_p(be: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    return be.amin(x, axis, keepdims)


for _extreme in (amax_p, amin_p):
    _extreme.defvjp(x=_amax_rule, sparse_g=True)


@primitive(promote="none", aux=("index",))
def max_p(be: Any, x: Any, *, axis: int) -> Any:
    """Maximum along one axis, kept as size 1; the first of equal elements wins."""
    index = be.argmax(x, axis, True)
    return be.xp.take_along_axis(x, index, axis=axis), index


max_p.defvjp(
    x=lambda g, index, axis, x_meta: spread_p(g, index=index, axis=axis, n=x_meta.shape[axis])
)


@primitive(promote="none")
def argmax_p(be: Any, x: Any, *, axis: int | None, keepdims: bool = False) -> Any:
    return be.argmax(x, axis, keepdims)


def product(x: Any, axes: tuple[int, ...]) -> Any:
    """Product over `axes`, which go. Multiplied pairwise in log2(n) rounds, in ops: the gradient
    is right with any number of zeros, and can be differentiated again."""
    kept = tuple(a for a in range(x.ndim) if a not in axes)
    rest = tuple(x.shape[a] for a in kept)
    count = math.prod(x.shape[a] for a in axes)
    wide = cast(x, dtypes.accumulator(x.dtype))
    flat = reshape_p(permute_p(wide, axes=axes + kept), shape=(count, *rest))
    if not count:
        return cast(sum_p(flat, axis=(0,)) + 1, x.dtype)
    while count > 1:
        pairs = reshape_p(
            slice_p(flat, axis=0, start=0, stop=count - count % 2), shape=(count // 2, 2, *rest)
        )
        left, right = (slice_p(pairs, axis=1, start=i, stop=i + 1) for i in (0, 1))
        last = slice_p(flat, axis=0, start=count - count % 2, stop=count)
        flat = cat_p(reshape_p(left * right, shape=(count // 2, *rest)), last, axis=0)
        count = flat.shape[0]
    return cast(reshape_p(flat, shape=rest), x.dtype)


# ---- public names ------------------------------------------------------------------------------
def sparse_reduce() -> Any:
    """The family that reduces sparse tensors; it builds on this one."""
    from sparsegrad.ops import sparse_reduce as family

    return family


def sum(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Sum over `dim` (int, tuple, or None for all): the shape without those dimensions, or with
    size 1 there if `keepdim`. Integers and bools sum to int64, as in PyTorch. Absent entries of
    a SparseTensor count as 0.

    >>> import sparsegrad as sg
    >>> sg.sum(sg.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=1)
    tensor([3., 7.])
    """
    x = as_argument("sum", x)
    if dtype is not None:
        x = cast(x, dtype)
    elif x.dtype.kind in "biu":
        x = cast(x, dtypes.int64)
    if x._is_sparse:
        return sparse_reduce().sparse_sum(x, dim, keepdim)
    return sum_p(x, axis=axes_of("sum", dim, x.ndim), keepdims=keepdim)


def mean(
    x: Any,
    dim: Any = None,
    keepdim: bool = False,
    include_zeros: bool = True,
    *,
    dtype: Any = None,
) -> Any:
    """Arithmetic mean over `dim`, shapes as `sum`; of none it is NaN, of integers floating point.

    include_zeros: for a SparseTensor, count absent cells as the zeros they are (the default,
        equal to dense), or only stored entries (what has none is 0).
    dtype: what `x` is cast to first.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 0], [0, 2]], [1.0, 5.0], (2, 3))
    >>> sg.mean(A, dim=1), sg.mean(A, dim=1, include_zeros=False)
    (tensor([2., 0.]), tensor([3., 0.]))
    """
    x = as_argument("mean", x)
    x = x if dtype is None else cast(x, dtype)
    if x._is_sparse:
        if x.dtype.kind in "biu":  # their sums are of another kind, or do not fit
            x = cast(x, dtypes.get_default_dtype())
        return sparse_reduce().sparse_mean(x, dim, keepdim, include_zeros)
    return mean_p(x, axis=axes_of("mean", dim, x.ndim), keepdims=keepdim)


def amax(x: Any, dim: Any = None, keepdim: bool = False, include_zeros: bool = True) -> Any:
    """Maximum over `dim`, shapes as `sum`; equal maxima share the gradient equally.

    include_zeros: as in `mean`.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 0], [0, 2]], [-1.0, -5.0], (2, 3))
    >>> sg.amax(A, dim=1), sg.amax(A, dim=1, include_zeros=False)
    (tensor([0., 0.]), tensor([-1.,  0.]))
    """
    x = as_argument("amax", x)
    if x._is_sparse:
        return sparse_reduce().sparse_extreme(x, dim, keepdim, include_zeros)
    axes = axes_of("amax", dim, x.ndim)
    if any(x.shape[a] == 0 for a in axes):
        raise ShapeError(f"amax: no maximum over an empty dimension of shape {x.shape}")
    return amax_p(x, axis=axes, keepdims=keepdim)


def amin(x: Any, dim: Any = None, keepdim: bool = False, include_zeros: bool = True) -> Any:
    """Minimum over `dim`; shapes, ties and `include_zeros` as in `amax`.

    >>> import sparsegrad as sg
    >>> sg.amin(sg.tensor([[1.0, 5.0], [4.0, 2.0]]), 1)
    tensor([1., 2.])
    """
    x = as_argument("amin", x)
    if x._is_sparse:
        return sparse_reduce().sparse_extreme(x, dim, keepdim, include_zeros, least=True)
    axes = axes_of("amin", dim, x.ndim)
    if any(x.shape[a] == 0 for a in axes):
        raise ShapeError(f"amin: no minimum over an empty dimension of shape {x.shape}")
    return amin_p(x, axis=axes, keepdims=keepdim)


def prod(
    x: Any,
    dim: Any = None,
    keepdim: bool = False,
    include_zeros: bool = True,
    *,
    dtype: Any = None,
) -> Any:
    """Product over `dim`, shapes as `sum`. The gradient is right with any number of zeros.

    include_zeros: as in `mean`; an absent cell makes the product 0.
    dtype: what `x` is cast to first; by default integers and bools to int64.

    >>> import sparsegrad as sg
    >>> sg.prod(sg.tensor([[2.0, 3.0], [4.0, 0.0]]), dim=1)
    tensor([6., 0.])
    """
    x = as_argument("prod", x)
    if dtype is not None or x.dtype.kind in "biu":
        x = cast(x, dtype or dtypes.int64)
    if x._is_sparse:
        return sparse_reduce().sparse_prod(x, dim, keepdim, include_zeros)
    axes = axes_of("prod", dim, x.ndim)
    out = product(x, axes)
    return reshape_p(out, shape=kept_shape(x.shape, axes)) if keepdim else out


def norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """The p-norm over `dim`, shapes as `sum`. At 0 the subgradient is 0.

    p: any number, infinite ones too, or "fro" for 2; 0 counts what is not zero. Of a SparseTensor
        p > 0, since absent cells make the others 0. dtype: what `x` is cast to first.

    >>> import sparsegrad as sg
    >>> sg.norm(sg.tensor([3.0, 4.0])), sg.norm(sg.coo([[0, 5]], [3.0, 4.0], (9,)))
    (tensor(5.), tensor(5.))
    """
    x = as_argument("norm", x)
    x = x if dtype is None else cast(x, dtype)
    p = 2 if p is None or p == "fro" else p
    if isinstance(p, str):
        raise ValueError(f"norm: p must be a number or 'fro', got {p!r}")
    if x._is_sparse:
        return sparse_reduce().sparse_norm(x, p, dim, keepdim)
    if abs(p) == math.inf:
        return (amax if p > 0 else amin)(abs_(x), dim, keepdim)
    if p == 0:
        return sum(abs_(sign_p(x)), dim, keepdim)
    if p == 1:
        return sum(abs_(x), dim, keepdim)
    return root_p(sum(abs_power_p(x, p=p), dim, keepdim), p=p)


def is_operand(dim: Any) -> bool:
    """Whether what stands in the place of `dim` is a tensor or array to compare with."""
    return hasattr(dim, "_requires_grad") or len(getattr(dim, "shape", ())) > 0


def check_some(op: str, x: Any, dim: Any) -> None:
    """ShapeError unless there is something to choose from along `dim` (None: at all)."""
    if 0 in (x.shape if dim is None else (x.shape[a] for a in axes_of(op, dim, x.ndim) if x.ndim)):
        raise ShapeError(f"{op}: no position in an empty dimension of shape {tuple(x.shape)}")


class MaxResult(NamedTuple):
    """Maxima along a dimension and where they are."""

    values: Any
    indices: Any


def max(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Maximum of all elements; with `dim` a pair (values, indices), where the first of equal
    elements wins and gets the gradient; with a tensor in the place of `dim` their `maximum`.
    Absent entries of a SparseTensor are zeros, as in `argmax`.

    >>> import sparsegrad as sg
    >>> sg.max(sg.tensor([[1.0, 5.0], [7.0, 3.0]]), dim=1).indices
    tensor([1, 0])
    >>> sg.max(sg.coo([[0, 0], [0, 2]], [-1.0, -5.0], (1, 3)), dim=1)
    MaxResult(values=tensor([0.]), indices=tensor([1]))
    """
    x = as_argument("max", x)
    if dim is None:
        return amax(x)
    if is_operand(dim):
        return maximum(x, dim)
    if x._is_sparse:
        return MaxResult(*sparse_reduce().sparse_first("max", x, dim, keepdim, least=False))
    flat, axis = one_axis("max", x, dim)
    if flat.shape[axis] == 0:
        raise ShapeError(f"max: no maximum over an empty dimension of shape {x.shape}")
    values, indices = max_p(flat, axis=axis), argmax_p(flat, axis=axis, keepdims=True)
    if keepdim and x.ndim:
        return MaxResult(values, indices)
    shape = flat.shape[:axis] + flat.shape[axis + 1 :]
    return MaxResult(reshape_p(values, shape=shape), reshape_p(indices, shape=shape))


def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Position of the first maximum, in the flattened tensor or along `dim`, as int64; NaN is
    largest. Absent entries of a SparseTensor are zeros, and count. Raises ShapeError where there is
    nothing to choose from.

    >>> import sparsegrad as sg
    >>> sg.argmax(sg.tensor([[1.0, 5.0], [4.0, 2.0]]), 1)
    tensor([1, 0])
    >>> sg.argmax(sg.coo([[0, 1, 1], [0, 0, 5]], [-1.0, 2.0, 3.0], (2, 10**9)), 1)
    tensor([1, 5])
    """
    x = as_argument("argmax", x)
    if x._is_sparse:
        return sparse_reduce().sparse_first("argmax", x, dim, keepdim, False, values=False)[1]
    check_some("argmax", x, dim)
    if dim is None or not x.ndim:
        axes_of("argmax", dim, x.ndim)
        return argmax_p(x, axis=None, keepdims=keepdim)
    return argmax_p(x, axis=axis_of("argmax", dim, x.ndim), keepdims=keepdim)
