"""Running sums and products along a dimension."""

from __future__ import annotations

from typing import Any

from sparsegrad import dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.ops.elementwise import cast
from sparsegrad.ops.reduce import one_axis
from sparsegrad.ops.shape import as_argument, cat_p, reshape_p, slice_p

__all__ = ["cumprod", "cumsum"]


@primitive(promote="none")
def cumsum_p(xp: Any, x: Any, *, axis: int, reverse: bool = False) -> Any:
    """Sums up to each element along one axis, or from it on; 16-bit floats in float32."""
    turn = (slice(None),) * axis + (slice(None, None, -1),)
    out = xp.cumsum(x[turn] if reverse else x, axis=axis, dtype=dtypes.accumulator(x.dtype))
    return (out[turn] if reverse else out).astype(x.dtype, copy=False)


cumsum_p.defvjp(x=lambda g, axis, reverse: cumsum_p(g, axis=axis, reverse=not reverse))


# ---- public names ------------------------------------------------------------------------------
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
    n, reach, out = flat.shape[axis], 1, cast(flat, dtypes.accumulator(flat.dtype))
    # Each round doubles how far back an element looks: log2(n) rounds of products, in ops, so
    # that nothing is divided by and the gradient can be differentiated again.
    while reach < n:
        done = slice_p(out, axis=axis, start=0, stop=reach)
        earlier = slice_p(out, axis=axis, start=0, stop=n - reach)
        out = cat_p(done, slice_p(out, axis=axis, start=reach, stop=n) * earlier, axis=axis)
        reach *= 2
    out = cast(out, flat.dtype)
    return out if x.ndim else reshape_p(out, shape=())
