"""Methods that only call the op of their name, one line each.

`_op("sin")` is `def sin(self, *args, **kwargs): return ops.sin(self, *args, **kwargs)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsegrad import display
from sparsegrad.backends import dlpack
from sparsegrad.errors import GraphError, ShapeError

__all__ = ["DenseMethods", "SharedMethods"]


def _op(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(ops, name)(self, *args, **kwargs)

    method.__name__ = name
    method.__qualname__ = f"Tensor.{name}"
    method.__doc__ = f"See `sg.{name}`, with this tensor as its first argument."
    return method


def _in_place(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._update(name, lambda t, _: getattr(ops, name)(t, *args, **kwargs), None)

    method.__name__ = f"{name}_"
    method.__qualname__ = f"Tensor.{name}_"
    method.__doc__ = f"`{name}` in place, and the tensor itself. See `sg.{name}`."
    return method


def _cast(name: str, dtype: str) -> Callable[..., Any]:
    def method(self: Any) -> Any:
        return ops.cast(self, dtype)

    method.__name__, method.__qualname__ = name, f"Tensor.{name}"
    method.__doc__ = f"In {dtype}."
    return method


class SharedMethods:
    """What dense and sparse tensors have in common; an op refuses what would become dense."""

    __slots__ = ()

    asin = arcsin = _op("asin")
    asinh = arcsinh = _op("asinh")
    atan = arctan = _op("atan")
    atanh = arctanh = _op("atanh")
    all = _op("all")
    any = _op("any")
    ceil = _op("ceil")
    chunk = _op("chunk")
    clamp = _op("clamp")
    clip = _op("clip")
    count_nonzero = _op("count_nonzero")
    erf = _op("erf")
    expm1 = _op("expm1")
    flip = _op("flip")
    floor = _op("floor")
    isinf = _op("isinf")
    isnan = _op("isnan")
    log1p = _op("log1p")
    movedim = moveaxis = _op("movedim")
    narrow = _op("narrow")
    nonzero = _op("nonzero")
    ravel = _op("ravel")
    roll = _op("roll")
    round = _op("round")
    sign = _op("sign")
    sin = _op("sin")
    sinh = _op("sinh")
    split = _op("split")
    square = _op("square")
    swapaxes = swapdims = _op("swapaxes")
    tan = _op("tan")
    tril = _op("tril")
    triu = _op("triu")
    trunc = _op("trunc")
    unbind = _op("unbind")
    unflatten = _op("unflatten")


class DenseMethods:
    """What dense tensors have beside that."""

    __slots__ = ()

    __hash__ = object.__hash__

    acos = arccos = _op("acos")
    acosh = arccosh = _op("acosh")
    allclose = _op("allclose")
    argmin = _op("argmin")
    argsort = _op("argsort")
    atan2 = arctan2 = _op("atan2")
    baddbmm = _op("baddbmm")
    bitwise_and = _op("bitwise_and")
    bitwise_not = _op("bitwise_not")
    bitwise_or = _op("bitwise_or")
    bitwise_xor = _op("bitwise_xor")
    broadcast_to = _op("broadcast_to")
    cos = _op("cos")
    cosh = _op("cosh")
    cumprod = _op("cumprod")
    cumsum = _op("cumsum")
    dot = _op("dot")
    eq = _op("eq")
    equal = _op("equal")
    floor_divide = _op("floor_divide")
    fmod = _op("fmod")
    gather = _op("gather")
    ge = _op("ge")
    gt = _op("gt")
    index_add = _op("index_add")
    index_copy = _op("index_copy")
    index_fill = _op("index_fill")
    index_put = _op("index_put")
    index_reduce = _op("index_reduce")
    inner = _op("inner")
    isclose = _op("isclose")
    isfinite = _op("isfinite")
    kthvalue = _op("kthvalue")
    le = _op("le")
    lerp = _op("lerp")
    log10 = _op("log10")
    log2 = _op("log2")
    logical_and = _op("logical_and")
    logical_not = _op("logical_not")
    logical_or = _op("logical_or")
    logical_xor = _op("logical_xor")
    lt = _op("lt")
    masked_fill = _op("masked_fill")
    masked_select = _op("masked_select")
    maximum = _op("maximum")
    median = _op("median")
    min = _op("min")
    minimum = _op("minimum")
    ne = _op("ne")
    outer = _op("outer")
    reciprocal = _op("reciprocal")
    remainder = _op("remainder")
    repeat_interleave = _op("repeat_interleave")
    rsqrt = _op("rsqrt")
    scatter = _op("scatter")
    scatter_add = _op("scatter_add")
    scatter_reduce = _op("scatter_reduce")
    sort = _op("sort")
    std = _op("std")
    take_along_dim = _op("take_along_dim")
    tile = _op("tile")
    topk = _op("topk")
    unique = _op("unique")
    var = _op("var")

    bool = _cast("bool", "bool")
    byte = _cast("byte", "uint8")
    int = _cast("int", "int32")
    long = _cast("long", "int64")
    short = _cast("short", "int16")

    abs_ = _in_place("abs")
    ceil_ = _in_place("ceil")
    clamp_ = clip_ = _in_place("clamp")
    exp_ = _in_place("exp")
    floor_ = _in_place("floor")
    index_add_ = _in_place("index_add")
    index_copy_ = _in_place("index_copy")
    index_fill_ = _in_place("index_fill")
    index_put_ = _in_place("index_put")
    index_reduce_ = _in_place("index_reduce")
    lerp_ = _in_place("lerp")
    log_ = _in_place("log")
    masked_fill_ = _in_place("masked_fill")
    neg_ = _in_place("neg")
    pow_ = _in_place("pow")
    reciprocal_ = _in_place("reciprocal")
    relu_ = _in_place("relu")
    remainder_ = _in_place("remainder")
    round_ = _in_place("round")
    rsqrt_ = _in_place("rsqrt")
    scatter_ = _in_place("scatter")
    scatter_add_ = _in_place("scatter_add")
    scatter_reduce_ = _in_place("scatter_reduce")
    sigmoid_ = _in_place("sigmoid")
    sqrt_ = _in_place("sqrt")
    tanh_ = _in_place("tanh")
    trunc_ = _in_place("trunc")

    def expand_as(self, other: Any) -> Any:
        """Size-1 dimensions repeated to the shape of `other`."""
        return ops.expand(self, other.shape)

    def view_as(self, other: Any) -> Any:
        """The same elements in the shape of `other`."""
        return ops.reshape(self, other.shape)

    reshape_as = view_as

    def type_as(self, other: Any) -> Any:
        """In the dtype of `other`."""
        return ops.cast(self, other.dtype)

    def __dlpack__(self, **options: Any) -> Any:
        if self.requires_grad:  # type: ignore[attr-defined]
            raise GraphError("__dlpack__: the tensor requires a gradient; use .detach()")
        return dlpack.export(self.data, **options)  # type: ignore[attr-defined]

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        return display.dense_as_html(self)

    def repeat(self, *sizes: Any) -> Any:
        """This tensor `sizes` times along its dimensions, at least one number a dimension."""
        times = sizes[0] if len(sizes) == 1 and not hasattr(sizes[0], "__index__") else sizes
        ndim = len(self.shape)  # type: ignore[attr-defined]
        if len(times) < ndim:
            raise ShapeError(f"repeat: {len(times)} numbers for the {ndim} dimensions")
        return ops.tile(self, tuple(times))

    def __mod__(self, other: Any) -> Any:
        return ops.remainder(self, other)

    def __rmod__(self, other: Any) -> Any:
        return ops.remainder(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return ops.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return ops.floor_divide(other, self)

    def __and__(self, other: Any) -> Any:
        return ops.bitwise_and(self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return ops.bitwise_or(self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Any:
        return ops.bitwise_xor(self, other)

    __rxor__ = __xor__

    def __invert__(self) -> Any:
        return ops.bitwise_not(self)


from sparsegrad import ops  # noqa: E402  (ops and tensors are the one import cycle)
