"""Order: sort, the largest elements, the median, distinct elements. Positions are integers
without gradients; the values that are found there have them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from sparsegrad import backends
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError, memory_for
from sparsegrad.ops.composite import dense_argument
from sparsegrad.ops.reduce import axis_of, one_axis, sum_p
from sparsegrad.ops.scattering import gather_p
from sparsegrad.ops.shape import reshape_p
from sparsegrad.ops.statistics import picked

__all__ = ["SortResult", "argsort", "kthvalue", "median", "sort", "topk", "unique"]


@primitive(promote="none")
def argsort_p(xp: Any, x: Any, *, axis: int, descending: bool = False) -> Any:
    """The stable order along one axis; NaN is larger than any number, whichever way."""
    return _order(xp, x, axis, descending)


def _order(xp: Any, x: Any, axis: int, descending: bool) -> Any:
    if not descending:
        return xp.argsort(x, axis=axis, kind="stable")
    turn = (slice(None),) * axis + (slice(None, None, -1),)
    return x.shape[axis] - 1 - xp.argsort(x[turn], axis=axis, kind="stable")[turn]


@primitive(promote="none")
def argkth_p(be: Any, x: Any, *, axis: int, k: int) -> Any:
    """Position along one axis of the k-th element (from 0) in stable order, kept as size 1."""
    return be.argkth(x, axis, k)


@primitive(promote="none")
def argtopk_p(xp: Any, x: Any, *, axis: int, k: int, largest: bool) -> Any:
    """Positions of the k largest (or smallest) along one axis, in order. A few of many are set
    apart before they are sorted: O(n) instead of O(n log n)."""
    n = x.shape[axis]
    lead = (slice(None),) * axis
    if k == 0 or 8 * k > n:
        return _order(xp, x, axis, largest)[(*lead, slice(k))]
    if largest:
        cut = xp.argpartition(x, n - k, axis=axis)[(*lead, slice(n - k, None))]
    else:
        cut = xp.argpartition(x, k - 1, axis=axis)[(*lead, slice(k))]
    cut = xp.sort(cut, axis=axis)  # equal elements in the order they stand in
    order = _order(xp, xp.take_along_axis(x, cut, axis=axis), axis, largest)
    return xp.take_along_axis(cut, order, axis=axis)


# ---- public names ------------------------------------------------------------------------------
class SortResult(NamedTuple):
    """Elements in order and where they were."""

    values: Any
    indices: Any


def argsort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """Positions that put the elements along `dim` in order, int64, same shape. Equal elements keep
    their order (whatever `stable` says); NaN counts as larger than any number.

    >>> import sparsegrad as sg
    >>> sg.argsort(sg.tensor([3.0, 1.0, 2.0]))
    tensor([1, 2, 0])
    """
    x = dense_argument("argsort", x)
    flat, axis = one_axis("argsort", x, dim)
    return reshape_p(argsort_p(flat, axis=axis, descending=descending), shape=x.shape)


def sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> SortResult:
    """Elements in order along `dim`, and where they were (`argsort`): a pair (values, indices) of
    the shape of `x`. Gradients pass to the elements' places.

    >>> import sparsegrad as sg
    >>> sg.sort(sg.tensor([3.0, 1.0, 2.0]), descending=True)
    SortResult(values=tensor([3., 2., 1.]), indices=tensor([0, 2, 1]))
    """
    x = dense_argument("sort", x)
    flat, axis = one_axis("sort", x, dim)
    order = argsort_p(flat, axis=axis, descending=descending)
    values = gather_p(flat, index=order.data, axis=axis)
    return SortResult(reshape_p(values, shape=x.shape), reshape_p(order, shape=x.shape))


def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> SortResult:
    """The k largest (or smallest) elements along `dim` and where they are: a pair (values, indices)
    with size k there, in order (whatever `sorted` says). Raises ShapeError unless 0 <= k <= n.

    Of the entries of a SparseTensor: `sg.top_k`.

    >>> import sparsegrad as sg
    >>> sg.topk(sg.tensor([3.0, 1.0, 2.0]), 2)
    SortResult(values=tensor([3., 2.]), indices=tensor([0, 2]))
    """
    x = dense_argument("topk", x)
    flat, axis = one_axis("topk", x, dim)
    if not 0 <= k <= flat.shape[axis]:
        raise ShapeError(f"topk: k must lie in [0, {flat.shape[axis]}], got {k}")
    order = argtopk_p(flat, axis=axis, k=k, largest=largest)
    values = gather_p(flat, index=order.data, axis=axis)
    if not x.ndim and k:
        values, order = reshape_p(values, shape=()), reshape_p(order, shape=())
    return SortResult(values, order)


def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> SortResult:
    """The k-th smallest element along `dim`, counted from 1, and where it is: a pair (values,
    indices). Raises ShapeError unless 1 <= k <= n.

    >>> import sparsegrad as sg
    >>> sg.kthvalue(sg.tensor([3.0, 1.0, 2.0]), 2)
    SortResult(values=tensor(2.), indices=tensor(2))
    """
    x = dense_argument("kthvalue", x)
    flat, axis = one_axis("kthvalue", x, dim)
    if not 1 <= k <= flat.shape[axis]:
        raise ShapeError(f"kthvalue: k must lie in [1, {flat.shape[axis]}], got {k}")
    index = argkth_p(flat, axis=axis, k=k - 1)
    return SortResult(*picked(flat, index, axis, keepdim and x.ndim > 0))


def median(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median of all elements; with `dim` a pair (values, indices). Of an even number of
    elements the lower of the two in the middle, as in PyTorch; NaN if one is NaN, and of none.

    >>> import sparsegrad as sg
    >>> sg.median(sg.tensor([4.0, 1.0, 3.0, 2.0]))
    tensor(2.)
    """
    from sparsegrad.tensor import Tensor

    x = dense_argument("median", x)
    if dim is None:
        flat = reshape_p(x, shape=(-1,))
        if not flat.shape[0] and x.dtype.kind not in "biu":
            return sum_p(flat, axis=(0,)) + math.nan
        return median(flat, 0).values
    flat, axis = one_axis("median", x, dim)
    n = flat.shape[axis]
    if not n:
        raise ShapeError(f"median: no median over an empty dimension of shape {x.shape}")
    index = argkth_p(flat, axis=axis, k=(n - 1) // 2)
    be = backends.for_array(flat.data)
    bad = be.xp.isnan(flat.data)
    latest = n - 1 - be.argmax(be.xp.flip(bad, axis), axis, True)
    index = Tensor(be.xp.where(bad.any(axis=axis, keepdims=True), latest, index.data))
    return SortResult(*picked(flat, index, axis, keepdim and x.ndim > 0))


@memory_for("unique")
def unique(
    x: Any,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements in rising order (whatever `sorted` says), or distinct slices along
    `dim`; without gradients. Every NaN is distinct.

    return_inverse: also where each element of `x` is among them (the shape of `x`, or (n,)).
    return_counts: also how often each occurs. The result is then a tuple.

    >>> import sparsegrad as sg
    >>> sg.unique(sg.tensor([3, 1, 3]), return_counts=True)
    (tensor([1, 3]), tensor([1, 2]))
    """
    x = dense_argument("unique", x)
    from sparsegrad.tensor import Tensor

    xp: Any = backends.for_array(x.data).xp
    axis = None if dim is None else axis_of("unique", dim, x.ndim)
    options = {"axis": axis} if xp is not np else {"axis": axis, "equal_nan": False}
    found, inverse, counts = xp.unique(x.data, return_inverse=True, return_counts=True, **options)
    parts = [Tensor(found)]
    if return_inverse:
        shape = x.shape if axis is None else (x.shape[axis],)
        parts.append(Tensor(inverse.reshape(shape)))
    if return_counts:
        parts.append(Tensor(counts))
    return tuple(parts) if len(parts) > 1 else parts[0]
