"""Running sums, products, logsumexps and extremes along a dimension."""

from __future__ import annotations

from typing import Any, NamedTuple

from sparsegrad import dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.ops.composite import dense_argument, logaddexp
from sparsegrad.ops.elementwise import cast
from sparsegrad.ops.reduce import one_axis
from sparsegrad.ops.scattering import gather_p
from sparsegrad.ops.shape import as_argument, cat_p, reshape_p, slice_p

__all__ = ["ScanResult", "cummax", "cummin", "cumprod", "cumsum", "logcumsumexp"]


@primitive(promote="none")
def cumsum_p(be: Any, x: Any, *, axis: int, reverse: bool = False) -> Any:
    """Sums up to each element along one axis, or from it on; 16-bit floats in float32."""
    turn = (slice(None),) * axis + (slice(None, None, -1),)
    out = be.cumsum(x[turn] if reverse else x, axis)
    return (out[turn] if reverse else out).astype(x.dtype, copy=False)


cumsum_p.defvjp(x=lambda g, axis, reverse: cumsum_p(g, axis=axis, reverse=not reverse))


@primitive(promote="none")
def argcummax_p(be: Any, x: Any, *, axis: int, largest: bool) -> Any:
    """Where the largest (or smallest) element up to each one is, the last of equal ones; a NaN
    stays."""
    return be.argcummax(x, axis, largest)


def _rounds(x: Any, axis: int, join: Any) -> Any:
    """join(earlier, later) of all elements up to each one. Each round doubles how far back an
    element looks: log2(n) rounds in ops, so that the gradient can be differentiated again."""
    n, reach = x.shape[axis], 1
    while reach < n:
        done = slice_p(x, axis=axis, start=0, stop=reach)
        earlier = slice_p(x, axis=axis, start=0, stop=n - reach)
        x = cat_p(done, join(earlier, slice_p(x, axis=axis, start=reach, stop=n)), axis=axis)
        reach *= 2
    return x


# ---- public names ------------------------------------------------------------------------------
class ScanResult(NamedTuple):
    """Extremes up to each element and where they are."""

    values: Any
    indices: Any


def cumsum(x: Any, dim: int, dtype: Any = None) -> Any:
    """Sums of the elements up to each one along `dim`, same shape; integers and bools give int64.

    >>> import sparsegrad as sg
    >>> sg.cumsum(sg.tensor([1.0, 2.0, 3.0]), 0)
    tensor([1., 3., 6.])
    """
    x = as_argument("cumsum", x)
    flat, axis = one_axis("cumsum", x, dim)
    if dtype is not None or x.dtype.kind in "biu":
        flat = cast(flat, dtype or dtypes.int64)
    out = cumsum_p(flat, axis=axis)
    return out if x.ndim else reshape_p(out, shape=())


def cumprod(x: Any, dim: int, dtype: Any = None) -> Any:
    """Products of the elements up to each one along `dim`, same shape; integers and bools give
    int64. The gradient is right with any number of zeros.

    >>> import sparsegrad as sg
    >>> sg.cumprod(sg.tensor([2.0, 3.0, 4.0]), 0)
    tensor([ 2.,  6., 24.])
    """
    x = as_argument("cumprod", x)
    flat, axis = one_axis("cumprod", x, dim)
    if dtype is not None or x.dtype.kind in "biu":
        flat = cast(flat, dtype or dtypes.int64)
    wide = cast(flat, dtypes.accumulator(flat.dtype))
    out = cast(_rounds(wide, axis, lambda a, b: b * a), flat.dtype)
    return out if x.ndim else reshape_p(out, shape=())


def logcumsumexp(x: Any, dim: int) -> Any:
    """log(cumsum(exp(x))) along `dim` without overflow, same shape.

    >>> import sparsegrad as sg
    >>> sg.logcumsumexp(sg.tensor([1000.0, 0.0]), 0)
    tensor([1000., 1000.])
    """
    x = dense_argument("logcumsumexp", x)
    flat, axis = one_axis("logcumsumexp", x, dim)
    if flat.dtype.kind in "biu":
        flat = cast(flat, dtypes.get_default_dtype())
    wide = cast(flat, dtypes.accumulator(flat.dtype))
    out = cast(_rounds(wide, axis, logaddexp), flat.dtype)
    return out if x.ndim else reshape_p(out, shape=())


def _extremes(op: str, x: Any, dim: int, largest: bool) -> ScanResult:
    x = dense_argument(op, x)
    flat, axis = one_axis(op, x, dim)
    index = argcummax_p(flat, axis=axis, largest=largest)
    values = gather_p(flat, index=index.data, axis=axis)
    return ScanResult(reshape_p(values, shape=x.shape), reshape_p(index, shape=x.shape))


def cummax(x: Any, dim: int) -> ScanResult:
    """The largest element up to each one along `dim`, and where it is: a pair (values, indices) of
    the shape of `x`. The last of equal elements wins and gets the gradient; a NaN stays.

    >>> import sparsegrad as sg
    >>> sg.cummax(sg.tensor([1.0, 3.0, 2.0]), 0)
    ScanResult(values=tensor([1., 3., 3.]), indices=tensor([0, 1, 1]))
    """
    return _extremes("cummax", x, dim, True)


def cummin(x: Any, dim: int) -> ScanResult:
    """The smallest element up to each one along `dim`, and where it is; see `cummax`.

    >>> import sparsegrad as sg
    >>> sg.cummin(sg.tensor([2.0, 1.0, 3.0]), 0).values
    tensor([2., 1., 1.])
    """
    return _extremes("cummin", x, dim, False)
