"""Methods that only call the op of their name, one line each.

`_op("sin")` is `def sin(self, *args, **kwargs): return ops.sin(self, *args, **kwargs)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsegrad import backends, display
from sparsegrad.backends import dlpack
from sparsegrad.dtypes import as_dtype
from sparsegrad.engine.mode import recording
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


def _augmented(name: str, sign: str) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        recorded = self.requires_grad or getattr(other, "requires_grad", False)
        parameter = self.requires_grad and self.is_leaf  # whose gradient a new tensor would lose
        if parameter or not ((recorded and recording.get()) or getattr(other, "_is_sparse", False)):
            return self._update(name, getattr(ops, name), other)
        return NotImplemented  # then Python takes the result of the operator instead

    method.__name__ = method.__qualname__ = f"__i{name}__"
    method.__doc__ = (
        f"`t {sign}= other`: in place where that need not be recorded, else a new t. GraphError for"
        " a leaf that requires a gradient, outside of `sg.no_grad()`."
    )
    return method


def _new(name: str) -> Callable[..., Any]:
    def method(self: Any, *size: Any, dtype: Any = None, requires_grad: Any = False) -> Any:
        shape = size[0] if len(size) == 1 and not hasattr(size[0], "__index__") else size
        xp = backends.for_array(self.data).xp
        array = getattr(xp, name)(tuple(shape), as_dtype(dtype or self.dtype))
        return _tensor(array).requires_grad_(requires_grad)

    method.__name__, method.__qualname__ = f"new_{name}", f"Tensor.new_{name}"
    method.__doc__ = f"`sg.{name}` in the dtype of this tensor, on its device."
    return method


def _tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
    from sparsegrad.tensor import Tensor

    return Tensor(data, dtype, device=device)


def _cast(name: str, dtype: str) -> Callable[..., Any]:
    def method(self: Any) -> Any:
        return ops.cast(self, dtype)

    method.__name__, method.__qualname__ = name, f"Tensor.{name}"
    method.__doc__ = f"In {dtype}."
    return method


class SharedMethods:
    """What dense and sparse tensors have in common; an op refuses what would become dense."""

    __slots__ = ()

    add = _op("add")
    addcmul = _op("addcmul")
    all = _op("all")
    allclose = _op("allclose")
    amax = _op("amax")
    amin = _op("amin")
    angle = _op("angle")
    any = _op("any")
    argmax = _op("argmax")
    argmin = _op("argmin")
    asin = arcsin = _op("asin")
    asinh = arcsinh = _op("asinh")
    atan = arctan = _op("atan")
    atanh = arctanh = _op("atanh")
    bitwise_and = _op("bitwise_and")
    bitwise_or = _op("bitwise_or")
    bitwise_xor = _op("bitwise_xor")
    broadcast_to = _op("broadcast_to")
    ceil = _op("ceil")
    chunk = _op("chunk")
    clamp = _op("clamp")
    clip = _op("clip")
    conj = _op("conj")
    count_nonzero = _op("count_nonzero")
    deg2rad = _op("deg2rad")
    diagonal = _op("diagonal")
    div = divide = true_divide = _op("div")
    eq = _op("eq")
    equal = _op("equal")
    erf = _op("erf")
    erfinv = _op("erfinv")
    expm1 = _op("expm1")
    flip = _op("flip")
    fliplr = _op("fliplr")
    flipud = _op("flipud")
    float_power = _op("float_power")
    floor = _op("floor")
    floor_divide = _op("floor_divide")
    fmod = _op("fmod")
    ge = _op("ge")
    gt = _op("gt")
    hsplit = _op("hsplit")
    inner = _op("inner")
    is_complex = _op("is_complex")
    is_floating_point = _op("is_floating_point")
    isinf = _op("isinf")
    isnan = _op("isnan")
    isneginf = _op("isneginf")
    isposinf = _op("isposinf")
    kron = _op("kron")
    le = _op("le")
    lerp = _op("lerp")
    log1p = _op("log1p")
    log_softmax = _op("log_softmax")
    logical_and = _op("logical_and")
    logical_or = _op("logical_or")
    logical_xor = _op("logical_xor")
    logsumexp = _op("logsumexp")
    lt = _op("lt")
    masked_select = _op("masked_select")
    matrix_power = _op("matrix_power")
    max = _op("max")
    maximum = _op("maximum")
    mean = _op("mean")
    min = _op("min")
    minimum = _op("minimum")
    movedim = moveaxis = _op("movedim")
    mul = multiply = _op("mul")
    nan_to_num = _op("nan_to_num")
    nansum = _op("nansum")
    narrow = _op("narrow")
    ne = _op("ne")
    nonzero = _op("nonzero")
    norm = _op("norm")
    outer = _op("outer")
    prod = _op("prod")
    rad2deg = _op("rad2deg")
    ravel = _op("ravel")
    remainder = _op("remainder")
    repeat_interleave = _op("repeat_interleave")
    roll = _op("roll")
    rot90 = _op("rot90")
    round = _op("round")
    select = _op("select")
    sgn = _op("sgn")
    sign = _op("sign")
    signbit = _op("signbit")
    sin = _op("sin")
    sinh = _op("sinh")
    softmax = _op("softmax")
    split = _op("split")
    square = _op("square")
    squeeze = _op("squeeze")
    std = _op("std")
    sub = subtract = _op("sub")
    sum = _op("sum")
    swapaxes = swapdims = _op("swapaxes")
    tan = _op("tan")
    tensor_split = _op("tensor_split")
    tile = _op("tile")
    trace = _op("trace")
    tril = _op("tril")
    triu = _op("triu")
    trunc = _op("trunc")
    unbind = _op("unbind")
    unflatten = _op("unflatten")
    unsqueeze = _op("unsqueeze")
    var = _op("var")
    vdot = _op("vdot")
    vsplit = _op("vsplit")

    bool = _cast("bool", "bool")
    byte = _cast("byte", "uint8")
    int = _cast("int", "int32")
    long = _cast("long", "int64")
    short = _cast("short", "int16")

    def expand_as(self, other: Any) -> Any:
        """Size-1 dimensions repeated to the shape of `other`."""
        return ops.expand(self, other.shape)

    def repeat(self, *sizes: Any) -> Any:
        """This tensor `sizes` times along its dimensions, at least one number a dimension."""
        times = sizes[0] if len(sizes) == 1 and not hasattr(sizes[0], "__index__") else sizes
        ndim = len(self.shape)  # type: ignore[attr-defined]
        if len(times) < ndim:
            raise ShapeError(f"repeat: {len(times)} numbers for the {ndim} dimensions")
        return ops.tile(self, tuple(times))

    def view_as(self, other: Any) -> Any:
        """The same elements in the shape of `other`."""
        return ops.reshape(self, other.shape)

    reshape_as = view_as

    def type_as(self, other: Any) -> Any:
        """In the dtype of `other`."""
        return ops.cast(self, other.dtype)

    def clamp_min(self, min: Any) -> Any:
        """At least `min`; see `sg.clamp`."""
        return ops.clamp(self, min=min)

    def clamp_max(self, max: Any) -> Any:
        """At most `max`; see `sg.clamp`."""
        return ops.clamp(self, max=max)


class DenseMethods:
    """What dense tensors have beside that."""

    __slots__ = ()

    __hash__ = object.__hash__

    acos = arccos = _op("acos")
    acosh = arccosh = _op("acosh")
    addcdiv = _op("addcdiv")
    addmv = _op("addmv")
    aminmax = _op("aminmax")
    argsort = _op("argsort")
    atan2 = arctan2 = _op("atan2")
    baddbmm = _op("baddbmm")
    bincount = _op("bincount")
    bitwise_not = _op("bitwise_not")
    copysign = _op("copysign")
    cos = _op("cos")
    cosh = _op("cosh")
    cross = _op("cross")
    cummax = _op("cummax")
    cummin = _op("cummin")
    cumprod = _op("cumprod")
    cumsum = _op("cumsum")
    det = _op("det")
    diag_embed = _op("diag_embed")
    diagflat = _op("diagflat")
    diff = _op("diff")
    digamma = _op("digamma")
    dot = _op("dot")
    dsplit = _op("dsplit")
    erfc = _op("erfc")
    exp2 = _op("exp2")
    fmax = _op("fmax")
    fmin = _op("fmin")
    frac = _op("frac")
    gather = _op("gather")
    heaviside = _op("heaviside")
    histc = _op("histc")
    hypot = _op("hypot")
    index_add = _op("index_add")
    index_copy = _op("index_copy")
    index_fill = _op("index_fill")
    index_put = _op("index_put")
    index_reduce = _op("index_reduce")
    inverse = _op("inverse")
    isclose = _op("isclose")
    isfinite = _op("isfinite")
    isin = _op("isin")
    kthvalue = _op("kthvalue")
    lgamma = _op("lgamma")
    log10 = _op("log10")
    log2 = _op("log2")
    logaddexp = _op("logaddexp")
    logaddexp2 = _op("logaddexp2")
    logcumsumexp = _op("logcumsumexp")
    logical_not = _op("logical_not")
    logit = _op("logit")
    masked_fill = _op("masked_fill")
    masked_scatter = _op("masked_scatter")
    median = _op("median")
    nanmean = _op("nanmean")
    nanmedian = _op("nanmedian")
    nanquantile = _op("nanquantile")
    pinverse = _op("pinverse")
    quantile = _op("quantile")
    reciprocal = _op("reciprocal")
    rsqrt = _op("rsqrt")
    scatter = _op("scatter")
    scatter_add = _op("scatter_add")
    scatter_reduce = _op("scatter_reduce")
    sinc = _op("sinc")
    slogdet = _op("slogdet")
    sort = _op("sort")
    take_along_dim = _op("take_along_dim")
    topk = _op("topk")
    unfold = _op("unfold")
    unique = _op("unique")
    xlogy = _op("xlogy")

    abs_ = _in_place("abs")
    addcdiv_ = _in_place("addcdiv")
    addcmul_ = _in_place("addcmul")
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
    nan_to_num_ = _in_place("nan_to_num")
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

    new_empty = _new("empty")
    new_ones = _new("ones")
    new_zeros = _new("zeros")

    def new_full(self, size: Any, fill_value: Any, dtype: Any = None) -> Any:
        """One value everywhere, of shape `size`, in the dtype of this tensor and on its device."""
        return self.new_empty(size, dtype=dtype).fill_(fill_value)

    def new_tensor(self, data: Any, dtype: Any = None) -> Any:
        """A copy of `data` in the dtype of this tensor, on its device."""
        at: Any = self
        return _tensor(data, dtype or at.dtype, at.device).clone()

    def is_contiguous(self) -> Any:
        """Whether the elements lie in memory in row-major order, without gaps."""
        return self.data.flags.c_contiguous  # type: ignore[attr-defined]

    def contiguous(self) -> Any:
        """This tensor if it is contiguous, else a copy that is."""
        return self if self.is_contiguous() else ops.clone(self)

    @property
    def real(self) -> Any:
        """The real part; see `sg.real`."""
        return ops.real(self)

    @property
    def imag(self) -> Any:
        """The imaginary part; see `sg.imag`."""
        return ops.imag(self)

    def element_size(self) -> Any:
        """Bytes of an element."""
        return self.data.itemsize  # type: ignore[attr-defined]

    __iadd__ = _augmented("add", "+")
    __isub__ = _augmented("sub", "-")
    __imul__ = _augmented("mul", "*")
    __itruediv__ = _augmented("div", "/")
    __ifloordiv__ = _augmented("floor_divide", "//")
    __imod__ = _augmented("remainder", "%")
    __ipow__ = _augmented("pow", "**")
    __iand__ = _augmented("bitwise_and", "&")
    __ior__ = _augmented("bitwise_or", "|")
    __ixor__ = _augmented("bitwise_xor", "^")

    def __dlpack__(self, **options: Any) -> Any:
        if self.requires_grad:  # type: ignore[attr-defined]
            raise GraphError("__dlpack__: the tensor requires a gradient; use .detach()")
        return dlpack.export(self.data, **options)  # type: ignore[attr-defined]

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        return display.dense_as_html(self)


from sparsegrad import ops  # noqa: E402  (ops and tensors are the one import cycle)
