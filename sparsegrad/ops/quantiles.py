"""Order statistics: quantiles, the median without NaN, counts in bins. Gradients go to the elements
that were chosen."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import backends
from sparsegrad.errors import ShapeError, memory_for
from sparsegrad.ops.composite import dense_argument
from sparsegrad.ops.elementwise import cast, where_p
from sparsegrad.ops.rearrange import movedim
from sparsegrad.ops.reduce import one_axis
from sparsegrad.ops.scattering import gather_p
from sparsegrad.ops.shape import reshape_p
from sparsegrad.ops.sorting import SortResult, argsort_p
from sparsegrad.ops.statistics import picked

__all__ = ["histc", "nanmedian", "nanquantile", "quantile"]

_BETWEEN = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(
    x: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """The q-th quantiles along `dim`, of all elements by default, as in NumPy: q a number in [0, 1]
    or several (k,), which come first in the shape of the result. NaN where one element is NaN.

    interpolation: between the two nearest elements "linear", or their "midpoint"; or one of them:
        "lower", "higher", "nearest".

    Raises ValueError for q outside [0, 1] or another interpolation, ShapeError for no elements.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([4.0, 1.0, 3.0, 2.0])
    >>> sg.quantile(x, 0.5), sg.quantile(x, [0.0, 0.25])
    (tensor(2.5), tensor([1.  , 1.75]))
    """
    return _quantile("quantile", x, q, dim, keepdim, interpolation, False)


def nanquantile(
    x: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """`quantile` of the elements that are not NaN; NaN where all are.

    >>> import sparsegrad as sg
    >>> sg.nanquantile(sg.tensor([1.0, float("nan"), 3.0]), 0.5)
    tensor(2.)
    """
    return _quantile("nanquantile", x, q, dim, keepdim, interpolation, True)


def _quantile(
    op: str, x: Any, q: Any, dim: int | None, keepdim: bool, interpolation: str, skip: bool
) -> Any:
    x = _floating(op, x)
    if interpolation not in _BETWEEN:
        raise ValueError(
            f"{op}: interpolation must be one of {', '.join(_BETWEEN)}, got {interpolation!r}"
        )
    given = x if x.ndim and dim is not None else reshape_p(x, shape=(-1,))
    flat, axis = one_axis(op, given, 0 if dim is None or not x.ndim else dim)
    be, n = backends.for_array(flat.data), flat.shape[axis]
    share = be.xp.asarray(q.data if hasattr(q, "_is_sparse") else q, "float64")
    if share.ndim > 1 or not bool(((share >= 0) & (share <= 1)).all()):
        raise ValueError(f"{op}: q must be a number or a vector of numbers in [0, 1], got {q!r}")
    if not n:
        raise ShapeError(f"{op}: no quantile over an empty dimension of shape {x.shape}")
    order = argsort_p(flat, axis=axis)  # NaN is last
    bad = be.xp.isnan(flat.data).sum(axis=axis, keepdims=True)
    count = n - bad if skip else be.xp.full_like(bad, n)
    line = [-1 if d == axis else 1 for d in range(flat.ndim)]
    rank = share.reshape(line) * be.xp.maximum(count - 1, 0)  # of every quantile of every line
    if interpolation in ("lower", "higher", "nearest"):
        fn = {"lower": be.xp.floor, "higher": be.xp.ceil, "nearest": be.xp.rint}[interpolation]
        out = _ranked(flat, order, fn(rank), axis)
    else:
        part = rank - be.xp.floor(rank) if interpolation == "linear" else 0.5 + 0 * rank
        low = _ranked(flat, order, be.xp.floor(rank), axis)
        high = _ranked(flat, order, be.xp.ceil(rank), axis)
        out = low + (high - low) * part.astype(flat.dtype)
    lost = be.xp.broadcast_to(count < 1 if skip else bad > 0, out.shape)
    out = where_p(math.nan, out, mask=lost)
    rest = list(flat.shape)
    rest[axis : axis + 1] = [1] if keepdim else []
    if dim is None or not x.ndim:
        rest = [1] * x.ndim if keepdim else []
    return reshape_p(movedim(out, axis, 0), shape=(*share.shape, *rest))


def _ranked(x: Any, order: Any, rank: Any, axis: int) -> Any:
    """The elements of these ranks along an axis: rank has a size of its own there."""
    index = gather_p(order, index=rank.astype("int64"), axis=axis)
    return gather_p(x, index=index.data, axis=axis)


def nanmedian(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median of the elements that are not NaN; with `dim` a pair (values, indices). Of an even
    number the lower of the two in the middle; NaN where all are NaN.

    >>> import sparsegrad as sg
    >>> sg.nanmedian(sg.tensor([1.0, float("nan"), 3.0, 2.0]))
    tensor(2.)
    """
    x = _floating("nanmedian", x)
    if dim is None:
        return nanmedian(reshape_p(x, shape=(-1,)), 0).values
    flat, axis = one_axis("nanmedian", x, dim)
    if not flat.shape[axis]:
        raise ShapeError(f"nanmedian: no median over an empty dimension of shape {x.shape}")
    order = argsort_p(flat, axis=axis)
    xp = backends.for_array(flat.data).xp
    count = (~xp.isnan(flat.data)).sum(axis=axis, keepdims=True)
    index = gather_p(order, index=xp.maximum(count - 1, 0) // 2, axis=axis)
    return SortResult(*picked(flat, index, axis, keepdim and x.ndim > 0))


@memory_for("histc")
def histc(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """How many elements lie in each of `bins` equal parts of [min, max], of the range of the
    elements for min = max = 0: (bins,) in the dtype of x, without gradients. Elements outside do
    not count.

    Raises ValueError for bins < 1 or min > max.

    >>> import sparsegrad as sg
    >>> sg.histc(sg.tensor([1.0, 2.0, 1.0]), bins=4, min=0, max=3)
    tensor([0., 2., 1., 0.])
    """
    from sparsegrad.tensor import Tensor

    x = _floating("histc", x)
    if bins < 1 or min > max:
        raise ValueError(f"histc: needs bins >= 1 and min <= max, got {bins}, {min} and {max}")
    xp, flat = backends.for_array(x.data).xp, x.data.reshape(-1)
    if min == max == 0 and flat.size:
        min, max = float(flat.min()), float(flat.max())  # sync
    if min == max:
        min, max = min - 1, max + 1
    counts = xp.histogram(flat.astype("float64"), bins=bins, range=(min, max))[0]
    return Tensor(counts.astype(x.dtype))


def _floating(op: str, x: Any) -> Any:
    x = dense_argument(op, x)
    return x if x.dtype.kind not in "biu" else cast(x, "float32")
