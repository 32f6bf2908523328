"""Elementwise functions of one argument: logarithms, powers, rounding, clamping, tests."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import DensifyError
from sparsegrad.ops.comparisons import eq_p, gt_p, lt_p
from sparsegrad.ops.elementwise import cast, sign_p, where_p

__all__ = [
    "ceil",
    "clamp",
    "clip",
    "expm1",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "log10",
    "log1p",
    "log2",
    "logical_not",
    "reciprocal",
    "round",
    "rsqrt",
    "sign",
    "signbit",
    "square",
    "trunc",
]


# ---- logarithms and powers ---------------------------------------------------------------------
@primitive(promote="float")
def log1p_p(xp: Any, x: Any) -> Any:
    return xp.log1p(x)


log1p_p.defvjp(x=lambda g, x: g / (1 + x), sparse_g=True)


@primitive(promote="float")
def expm1_p(xp: Any, x: Any) -> Any:
    return xp.expm1(x)


expm1_p.defvjp(x=lambda g, out: g * (out + 1), sparse_g=True)


@primitive(promote="float")
def log2_p(xp: Any, x: Any) -> Any:
    return xp.log2(x)


log2_p.defvjp(x=lambda g, x: g / (x * math.log(2)), sparse_g=True)


@primitive(promote="float")
def log10_p(xp: Any, x: Any) -> Any:
    return xp.log10(x)


log10_p.defvjp(x=lambda g, x: g / (x * math.log(10)), sparse_g=True)


@primitive(promote="float", fuse=True)
def rsqrt_p(xp: Any, x: Any) -> Any:
    return xp.reciprocal(xp.sqrt(x))


rsqrt_p.defvjp(x=lambda g, out: g * (-0.5 * (out * out * out)), sparse_g=True)


@primitive(promote="float")
def reciprocal_p(xp: Any, x: Any) -> Any:
    return xp.reciprocal(x)


reciprocal_p.defvjp(x=lambda g, out: -(g * (out * out)), sparse_g=True)


@primitive
def square_p(xp: Any, x: Any) -> Any:
    return xp.square(x if x.dtype.kind != "b" else x.astype("int64"))


square_p.defvjp(x=lambda g, x: g * (2 * x), sparse_g=True)


# ---- powers and roots of norms ------------------------------------------------------------------
@primitive(promote="float", fuse=True)
def abs_power_p(xp: Any, x: Any, *, p: float) -> Any:
    """|x| ** p."""
    return x * x if p == 2 else xp.abs(x) ** p


@primitive(fuse=True)
def abs_power_grad_p(xp: Any, dy: Any, x: Any, *, p: float) -> Any:
    return dy * (2 * x if p == 2 else p * xp.abs(x) ** (p - 1) * xp.sign(x))


def _power_curvature(g: Any, dy: Any, p: float, x: Any) -> Any:
    curve = g * dy * (p * (p - 1))
    return curve if p == 2 else curve * abs_power_p(x, p=p - 2)


abs_power_p.defvjp(x=lambda g, x, p: abs_power_grad_p(g, x, p=p), sparse_g=True)
abs_power_grad_p.defvjp(dy=lambda g, x, p: abs_power_grad_p(g, x, p=p), x=_power_curvature)


@primitive(promote="float", fuse=True)
def root_p(xp: Any, x: Any, *, p: float) -> Any:
    """x ** (1 / p); its slope at 0, where it has none, is 0."""
    return xp.sqrt(x) if p == 2 else xp.where(x == 0, 0, x ** (1 / p))


@primitive(fuse=True)
def root_grad_p(xp: Any, dy: Any, y: Any, *, p: float) -> Any:
    return xp.where(y == 0, 0, dy / (2 * y if p == 2 else p * y ** (p - 1)))


def _root_curvature(g: Any, dy: Any, y: Any, p: float) -> Any:
    zero = (y == 0).data
    return root_grad_p(g * dy, y, p=p) * ((1 - p) / where_p(1, y, mask=zero))


root_p.defvjp(x=lambda g, out, p: root_grad_p(g, out, p=p), sparse_g=True)
root_grad_p.defvjp(dy=lambda g, y, p: root_grad_p(g, y, p=p), y=_root_curvature)


# ---- rounding: steps, whose slope is 0 wherever they have one -----------------------------------
@primitive
def floor_p(xp: Any, x: Any) -> Any:
    return xp.floor(x) if dtypes.kind(x.dtype) == "f" else x.copy()


@primitive
def ceil_p(xp: Any, x: Any) -> Any:
    return xp.ceil(x) if dtypes.kind(x.dtype) == "f" else x.copy()


@primitive
def trunc_p(xp: Any, x: Any) -> Any:
    return xp.trunc(x) if dtypes.kind(x.dtype) == "f" else x.copy()


@primitive
def round_p(xp: Any, x: Any, *, decimals: int) -> Any:
    return xp.round(x, decimals)


for _step in (floor_p, ceil_p, trunc_p, round_p, sign_p):
    _step.defvjp(x=lambda g: g * 0, sparse_g=True)


# ---- clamping ----------------------------------------------------------------------------------
@primitive
def clamp_p(xp: Any, x: Any, *, low: Any, high: Any, closed: bool = True) -> Any:
    """closed: on a bound the slope is that of x, otherwise 0."""
    if low is None or high is None:
        return xp.minimum(x, high) if low is None else xp.maximum(x, low)
    return xp.clip(x, low, high)


@primitive
def clamp_grad_p(be: Any, dy: Any, x: Any, *, low: Any, high: Any, closed: bool = True) -> Any:
    """All of dy inside the bounds, and on them if they are `closed`; nothing outside."""
    bounds = (-math.inf if low is None else low, math.inf if high is None else high)
    return be.fused(_inside if closed else _strictly_inside, dy, x, *bounds)


def _inside(xp: Any, dy: Any, x: Any, low: Any, high: Any) -> Any:
    return dy * ((x >= low) & (x <= high))


def _strictly_inside(xp: Any, dy: Any, x: Any, low: Any, high: Any) -> Any:
    return xp.where((x <= low) | (x >= high), 0, dy).astype(dy.dtype)


clamp_p.defvjp(
    x=lambda g, x, low, high, closed: clamp_grad_p(g, x, low=low, high=high, closed=closed),
    sparse_g=True,
)
clamp_grad_p.defvjp(
    dy=lambda g, x, low, high, closed: clamp_grad_p(g, x, low=low, high=high, closed=closed),
    x=lambda g, dy: g * dy * 0,
)


# ---- tests (no gradient) -----------------------------------------------------------------------
@primitive
def isnan_p(xp: Any, x: Any) -> Any:
    return xp.isnan(x)


@primitive
def isinf_p(xp: Any, x: Any) -> Any:
    return xp.isinf(x)


@primitive
def signbit_p(xp: Any, x: Any) -> Any:
    return xp.signbit(x) if dtypes.kind(x.dtype) == "f" else x < 0


@primitive
def isfinite_p(xp: Any, x: Any) -> Any:
    return xp.isfinite(x)


@primitive
def logical_not_p(xp: Any, x: Any) -> Any:
    return xp.logical_not(x)


# ---- public names ------------------------------------------------------------------------------
def log1p(x: Any) -> Any:
    """log(1 + x) without cancellation near 0, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.log1p(sg.tensor([0.0, 1e-10]))
    tensor([0.e+00, 1.e-10])
    """
    return log1p_p(x)


def expm1(x: Any) -> Any:
    """exp(x) - 1 without cancellation near 0, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.expm1(sg.tensor([0.0, 1e-10]))
    tensor([0.e+00, 1.e-10])
    """
    return expm1_p(x)


def log2(x: Any) -> Any:
    """Logarithm to base 2, same shape. DensifyError for a SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.log2(sg.tensor([1.0, 8.0]))
    tensor([0., 3.])
    """
    return log2_p(x)


def log10(x: Any) -> Any:
    """Logarithm to base 10, same shape. DensifyError for a SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.log10(sg.tensor([1.0, 10.0]))
    tensor([0., 1.])
    """
    return log10_p(x)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x), same shape. DensifyError for a SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.rsqrt(sg.tensor([1.0, 4.0]))
    tensor([1. , 0.5])
    """
    return rsqrt_p(x)


def reciprocal(x: Any) -> Any:
    """1 / x, same shape; integers give floating point. DensifyError for a SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.reciprocal(sg.tensor([1.0, 4.0]))
    tensor([1.  , 0.25])
    """
    return reciprocal_p(x)


def square(x: Any) -> Any:
    """x * x, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.square(sg.tensor([1.0, -3.0]))
    tensor([1., 9.])
    """
    return square_p(x)


def sign(x: Any) -> Any:
    """-1, 0 or 1, same shape, slope 0; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.sign(sg.tensor([-2.0, 0.0, 5.0]))
    tensor([-1.,  0.,  1.])
    """
    return sign_p(x)


def floor(x: Any) -> Any:
    """The largest integer not above x, in the dtype of x; slope 0. A SparseTensor keeps its
    pattern.

    >>> import sparsegrad as sg
    >>> sg.floor(sg.tensor([-0.5, 1.7]))
    tensor([-1.,  1.])
    """
    return floor_p(x)


def ceil(x: Any) -> Any:
    """The smallest integer not below x, in the dtype of x; slope 0. A SparseTensor keeps its
    pattern.

    >>> import sparsegrad as sg
    >>> sg.ceil(sg.tensor([1.2, 1.0]))
    tensor([2., 1.])
    """
    return ceil_p(x)


def trunc(x: Any) -> Any:
    """x without its fraction, in the dtype of x; slope 0. A SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.trunc(sg.tensor([-1.7, 1.7]))
    tensor([-1.,  1.])
    """
    return trunc_p(x)


def round(x: Any, decimals: int = 0) -> Any:
    """x rounded to `decimals` places, halves to even; slope 0. A SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.round(sg.tensor([0.5, 1.5, 1.26]), decimals=1), sg.round(sg.tensor([0.5, 1.5]))
    (tensor([0.5, 1.5, 1.3]), tensor([0., 2.]))
    """
    return round_p(x, decimals=decimals)


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """x, but at least `min` and at most `max`: numbers or tensors that broadcast; `max` wins.

    On a bound the gradient is that of x, as in PyTorch; outside it goes to the bound. A
    SparseTensor takes numbers with min <= 0 <= max and keeps its pattern; others would change
    its absent entries (DensifyError). Raises ValueError if both bounds are missing.

    >>> import sparsegrad as sg
    >>> sg.clamp(sg.tensor([-3.0, 0.5, 7.0]), 0, 1)
    tensor([0. , 0.5, 1. ])
    """
    if min is None and max is None:
        raise ValueError("clamp: at least one of min and max must be given")
    bounds = [b for b in (min, max) if b is not None]
    if any(hasattr(b, "shape") for b in bounds):
        if getattr(x, "_is_sparse", False):
            raise DensifyError("clamp: the bounds of a sparse tensor must be numbers")
        return _between(x, min, max)
    dtype = dtypes.result_type(x, *bounds)
    return clamp_p(cast(x, dtype), low=min, high=max)


def _between(x: Any, low: Any, high: Any) -> Any:
    """Bounds that are tensors: they get the gradient of what they replace."""
    if low is not None:
        x = where_p(low, x, mask=lt_p(x, low).data)
    return x if high is None else where_p(high, x, mask=gt_p(x, high).data)


def clip(x: Any, min: Any = None, max: Any = None) -> Any:
    """`clamp` by NumPy's name.

    >>> import sparsegrad as sg
    >>> sg.clip(sg.tensor([-3.0, 7.0]), max=1)
    tensor([-3.,  1.])
    """
    return clamp(x, min, max)


def isnan(x: Any) -> Any:
    """Whether an element is NaN, as bool, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.isnan(sg.tensor([float("nan"), 1.0]))
    tensor([ True, False])
    """
    return isnan_p(x)


def isinf(x: Any) -> Any:
    """Whether an element is infinite, as bool, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.isinf(sg.tensor([float("inf"), 1.0]))
    tensor([ True, False])
    """
    return isinf_p(x)


def isposinf(x: Any) -> Any:
    """Whether an element is +inf, as bool, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.isposinf(sg.tensor([float("inf"), float("-inf")]))
    tensor([ True, False])
    """
    return eq_p(x, math.inf)


def isneginf(x: Any) -> Any:
    """Whether an element is -inf, as bool, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.isneginf(sg.tensor([float("inf"), float("-inf")]))
    tensor([False,  True])
    """
    return eq_p(x, -math.inf)


def signbit(x: Any) -> Any:
    """Whether the sign of an element is a minus, that of -0.0 too, as bool, same shape; a
    SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.signbit(sg.tensor([-0.0, 0.0, -2.0]))
    tensor([ True, False,  True])
    """
    return signbit_p(x)


def isfinite(x: Any) -> Any:
    """Whether an element is neither infinite nor NaN, as bool, same shape. DensifyError for a
    SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.isfinite(sg.tensor([float("inf"), 1.0]))
    tensor([False,  True])
    """
    return isfinite_p(x)


def logical_not(x: Any) -> Any:
    """Whether an element is 0 or False, as bool, same shape. DensifyError for a SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.logical_not(sg.tensor([0, 2]))
    tensor([ True, False])
    """
    return logical_not_p(x)
