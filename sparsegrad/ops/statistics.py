"""Reductions beyond sums and maxima: minima, variance, tests, counts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from sparsegrad import dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError
from sparsegrad.ops import elementwise
from sparsegrad.ops.elementwise import cast
from sparsegrad.ops.index import pick_p
from sparsegrad.ops.reduce import (
    amin,
    axes_of,
    axis_of,
    check_some,
    is_operand,
    mean,
    mean_p,
    one_axis,
    sparse_reduce,
)
from sparsegrad.ops.reduce import sum as sum_
from sparsegrad.ops.shape import as_argument, reshape_p
from sparsegrad.ops.sparse_structure import each_once
from sparsegrad.ops.unary import root_p

__all__ = [
    "MinResult",
    "all",
    "any",
    "argmin",
    "count_nonzero",
    "min",
    "std",
    "std_mean",
    "var",
    "var_mean",
]


@primitive(promote="none")
def argmin_p(xp: Any, x: Any, *, axis: int | None, keepdims: bool = False) -> Any:
    return xp.argmin(x, axis=axis, keepdims=keepdims)


@primitive(promote="none")
def any_p(xp: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    return xp.any(x, axis=axis, keepdims=keepdims)


@primitive(promote="none")
def all_p(xp: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    return xp.all(x, axis=axis, keepdims=keepdims)


@primitive(fuse=True)
def counted_p(xp: Any, x: Any) -> Any:
    """1 for each element that is not 0, else 0: int64."""
    return (x != 0).astype("int64")


@primitive(promote="float")
def var_p(xp: Any, x: Any, *, axis: tuple[int, ...], correction: float) -> Any:
    """Sum of squared deviations over (count - correction), `axis` kept as size 1; 16 bits in
    float32."""
    wide = x.astype(dtypes.accumulator(x.dtype), copy=False)
    count = math.prod(x.shape[a] for a in axis)
    centre = xp.sum(wide, axis=axis, keepdims=True) / wide.dtype.type(count)
    total = xp.sum(xp.square(wide - centre), axis=axis, keepdims=True)
    out = total / wide.dtype.type(max(count - correction, 0))  # of too few elements nan or inf
    return out.astype(x.dtype, copy=False)


def _var_rule(g: Any, x: Any, axis: tuple[int, ...], correction: float) -> Any:
    free = math.prod(x.shape[a] for a in axis) - correction
    slope = 2 / free if free > 0 else math.nan
    return g * ((x - mean_p(x, axis=axis, keepdims=True)) * slope)


var_p.defvjp(x=_var_rule)


# ---- public names ------------------------------------------------------------------------------
class MinResult(NamedTuple):
    """Minima along a dimension and where they are."""

    values: Any
    indices: Any


def argmin(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Position of the first minimum, in the flattened tensor or along `dim`, as int64; NaN is
    least. Of a SparseTensor, and errors, as `argmax`.

    >>> import sparsegrad as sg
    >>> sg.argmin(sg.tensor([[3, 1], [0, 2]]), dim=1)
    tensor([1, 0])
    """
    x = as_argument("argmin", x)
    if x._is_sparse:
        return sparse_reduce().sparse_first("argmin", x, dim, keepdim, True, values=False)[1]
    check_some("argmin", x, dim)
    if dim is None or not x.ndim:
        axes_of("argmin", dim, x.ndim)
        return argmin_p(x, axis=None, keepdims=keepdim)
    return argmin_p(x, axis=axis_of("argmin", dim, x.ndim), keepdims=keepdim)


def min(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Minimum of all elements; with `dim` a pair (values, indices), where the first of equal
    elements wins and gets the gradient; with a tensor in the place of `dim` their `minimum`.
    Absent entries of a SparseTensor are zeros, as in `argmax`.

    >>> import sparsegrad as sg
    >>> sg.min(sg.tensor([[4.0, 5.0], [7.0, 3.0]]), dim=1)
    MinResult(values=tensor([4., 3.]), indices=tensor([0, 1]))
    """
    x = as_argument("min", x)
    if dim is None:
        return amin(x)
    if is_operand(dim):
        return elementwise.minimum(x, dim)
    if x._is_sparse:
        return MinResult(*sparse_reduce().sparse_first("min", x, dim, keepdim, least=True))
    flat, axis = one_axis("min", x, dim)
    if flat.shape[axis] == 0:
        raise ShapeError(f"min: no minimum over an empty dimension of shape {x.shape}")
    index = argmin_p(flat, axis=axis, keepdims=True)
    return MinResult(*picked(flat, index, axis, keepdim and x.ndim > 0))


def picked(x: Any, index: Any, axis: int, keepdim: bool) -> tuple[Any, Any]:
    """Elements of x, one along an axis, and where they are: index has size 1 there."""
    values = pick_p(x, index=index.data, axis=axis)
    if keepdim:
        return values, index
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return reshape_p(values, shape=shape), reshape_p(index, shape=shape)


def _dropped(op: str, out: Any, axes: tuple[int, ...], keepdim: bool) -> Any:
    if keepdim:
        return out
    return reshape_p(out, shape=tuple(n for d, n in enumerate(out.shape) if d not in axes))


def var(
    x: Any,
    dim: Any = None,
    correction: float = 1,
    keepdim: bool = False,
    *,
    unbiased: bool | None = None,
) -> Any:
    """Variance over `dim` (int, tuple, None for all), shapes as `sum`: the squared deviations from
    the mean, summed and divided by (count - correction). NaN where that is 0. 16 bits are
    accumulated in float32. Of a SparseTensor in O(nnz): absent entries are zeros, and count.

    unbiased: the older way to say `correction=1` (True) or 0 (False).
    Raises DensifyError where the absent cells of a sparse result would become NaN.

    >>> import sparsegrad as sg
    >>> sg.var(sg.tensor([1.0, 2.0, 3.0])), sg.var(sg.tensor([1.0, 3.0]), correction=0)
    (tensor(1.), tensor(1.))
    """
    x = as_argument("var", x)
    axes = axes_of("var", dim, x.ndim)
    correction = correction if unbiased is None else int(unbiased)
    if x._is_sparse:
        return sparse_reduce().sparse_var("var", x, dim, correction, keepdim)
    return _dropped("var", var_p(x, axis=axes, correction=correction), axes, keepdim)


def std(
    x: Any,
    dim: Any = None,
    correction: float = 1,
    keepdim: bool = False,
    *,
    unbiased: bool | None = None,
) -> Any:
    """Standard deviation over `dim`: the root of `var`, with its arguments. At 0 the subgradient
    is 0, as in PyTorch.

    >>> import sparsegrad as sg
    >>> sg.std(sg.tensor([[1.0, 3.0], [5.0, 5.0]]), dim=1, correction=0)
    tensor([1., 0.])
    """
    x = as_argument("std", x)
    axes = axes_of("std", dim, x.ndim)
    correction = correction if unbiased is None else int(unbiased)
    if x._is_sparse:
        return sparse_reduce().sparse_var("std", x, dim, correction, keepdim, root=True)
    wide = cast(x, dtypes.accumulator(x.dtype))  # a variance may not fit where its root does
    square = var_p(wide, axis=axes, correction=correction)
    root = _dropped("std", root_p(square, p=2), axes, keepdim)
    return cast(root, x.dtype) if dtypes.kind(x.dtype) == "f" else root


def std_mean(
    x: Any, dim: Any = None, correction: float = 1, keepdim: bool = False
) -> tuple[Any, Any]:
    """Standard deviation and mean over `dim`, each with the arguments of `std`.

    >>> import sparsegrad as sg
    >>> sg.std_mean(sg.tensor([1.0, 3.0]), correction=0)
    (tensor(1.), tensor(2.))
    """
    x = as_argument("std_mean", x)
    return std(x, dim, correction, keepdim), mean(x, dim, keepdim)


def var_mean(
    x: Any, dim: Any = None, correction: float = 1, keepdim: bool = False
) -> tuple[Any, Any]:
    """Variance and mean over `dim`, each with the arguments of `var`.

    >>> import sparsegrad as sg
    >>> sg.var_mean(sg.tensor([1.0, 3.0]), correction=0)
    (tensor(1.), tensor(2.))
    """
    x = as_argument("var_mean", x)
    return var(x, dim, correction, keepdim), mean(x, dim, keepdim)


def _on_values(t: Any, fn: Any) -> Any:
    return t.with_values(fn(t.values)) if getattr(t, "_is_sparse", False) else fn(t)


def count_nonzero(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Number of nonzero elements over `dim`, shapes as `sum`, as int64; NaN is not zero. Of a
    SparseTensor in O(nnz): explicit zeros do not count, duplicates are summed first.

    >>> import sparsegrad as sg
    >>> sg.count_nonzero(sg.tensor([[0, 7], [8, 9]]), dim=1)
    tensor([1, 2])
    >>> sg.count_nonzero(sg.coo([[0, 1], [0, 1]], [0.0, 2.0], (10**6, 10**6)))
    tensor(1)
    """
    x = as_argument("count_nonzero", x)
    if getattr(x, "_is_sparse", False):
        axes_of("count_nonzero", dim, x.ndim)
        x = each_once(x)
        return sum_(x.with_values(counted_p(x.values)), dim, keepdim)
    return sum_(counted_p(x), axes_of("count_nonzero", dim, x.ndim), keepdim)


def any(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether an element over `dim` is nonzero, shapes as `sum`, as bool; False of none. Of a
    SparseTensor in O(nnz).

    >>> import sparsegrad as sg
    >>> sg.any(sg.tensor([[False, True], [False, False]]), dim=1)
    tensor([ True, False])
    """
    x = as_argument("any", x)
    if getattr(x, "_is_sparse", False):
        return _on_values(count_nonzero(x, dim, keepdim), lambda count: count > 0)
    return any_p(x, axis=axes_of("any", dim, x.ndim), keepdims=keepdim)


def all(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether all elements over `dim` are nonzero, shapes as `sum`, as bool; True of none. Absent
    entries of a SparseTensor are zeros; it is read in O(nnz).

    >>> import sparsegrad as sg
    >>> sg.all(sg.tensor([[True, True], [False, True]]), dim=1)
    tensor([ True, False])
    """
    x = as_argument("all", x)
    axes = axes_of("all", dim, x.ndim)
    if getattr(x, "_is_sparse", False):
        cells = math.prod(x.shape[a] for a in axes)
        return _on_values(count_nonzero(x, dim, keepdim), lambda count: count == cells)
    return all_p(x, axis=axes, keepdims=keepdim)
