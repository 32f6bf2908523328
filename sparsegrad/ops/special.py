"""Functions of one or two numbers, most of them a few others in a row."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import backends, dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.ops.composite import dense_argument, logaddexp
from sparsegrad.ops.elementwise import abs as abs_
from sparsegrad.ops.elementwise import cast, exp_p, log, maximum, minimum, where, where_p
from sparsegrad.ops.shape import as_argument
from sparsegrad.ops.sparse_structure import each_once
from sparsegrad.ops.trigonometric import sin
from sparsegrad.ops.unary import clamp, isnan_p, log1p, trunc

__all__ = [
    "copysign",
    "deg2rad",
    "digamma",
    "erfc",
    "erfinv",
    "exp2",
    "float_power",
    "fmax",
    "fmin",
    "frac",
    "heaviside",
    "hypot",
    "lgamma",
    "logaddexp2",
    "logit",
    "polygamma",
    "rad2deg",
    "sinc",
    "xlogy",
]


@primitive(promote="float")
def hypot_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.hypot(a, b)


hypot_p.defvjp(a=lambda g, out, a: g * (a / out), b=lambda g, out, b: g * (b / out))


# ---- of the error function and the gamma function ----------------------------------------------
@primitive(promote="float")
def erfc_p(be: Any, x: Any) -> Any:
    return be.special("erfc", x)


@primitive(promote="float")
def erfinv_p(be: Any, x: Any) -> Any:
    return be.special("erfinv", x)


@primitive(promote="float")
def lgamma_p(be: Any, x: Any) -> Any:
    return be.special("gammaln", x)


@primitive(promote="float")
def polygamma_p(be: Any, x: Any, *, n: int) -> Any:
    return be.special("polygamma", n, x) if n else be.special("digamma", x)


erfc_p.defvjp(x=lambda g, x: g * (-2 / math.sqrt(math.pi) * exp_p(-(x * x))))


@primitive(fuse=True)
def erfinv_grad_p(xp: Any, dy: Any, y: Any) -> Any:
    return dy * (math.sqrt(math.pi) / 2 * xp.exp(y * y))


erfinv_p.defvjp(x=lambda g, out: erfinv_grad_p(g, out))
erfinv_grad_p.defvjp(
    dy=lambda g, y: erfinv_grad_p(g, y), y=lambda g, dy, y: erfinv_grad_p(g * dy, y) * (2 * y)
)
lgamma_p.defvjp(x=lambda g, x: g * polygamma_p(x, n=0))
polygamma_p.defvjp(x=lambda g, x, n: g * polygamma_p(x, n=n + 1))


def _dense(op: str, *args: Any) -> list[Any]:
    """Dense tensors; a number becomes one in the dtype it gives the others, on their device."""
    from sparsegrad.tensor import Tensor

    first = next((a for a in args if hasattr(a, "_is_sparse")), None)
    made = []
    for x in args:
        if type(x) in (bool, int, float) and first is not None:
            xp = backends.for_array(first.data).xp
            x = Tensor(xp.asarray(x, dtypes.result_type(first.data, x)))
        made.append(dense_argument(op, x))
    return made


# ---- of one number -----------------------------------------------------------------------------
def exp2(x: Any) -> Any:
    """2 to the power of x, same shape.

    >>> import sparsegrad as sg
    >>> sg.exp2(sg.tensor([3.0, -1.0]))
    tensor([8. , 0.5])
    """
    return 2.0 ** as_argument("exp2", x)


def frac(x: Any) -> Any:
    """x - trunc(x), same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.frac(sg.tensor([2.5, -2.25]))
    tensor([ 0.5 , -0.25])
    """
    x = each_once(x)
    return x - trunc(x)


def deg2rad(x: Any) -> Any:
    """Degrees to radians, same shape.

    >>> import sparsegrad as sg
    >>> sg.deg2rad(sg.tensor([180.0]))
    tensor([3.1415927])
    """
    return x * (math.pi / 180)


def rad2deg(x: Any) -> Any:
    """Radians to degrees, same shape.

    >>> import sparsegrad as sg
    >>> sg.rad2deg(sg.tensor([math.pi]))
    tensor([180.])
    """
    return x * (180 / math.pi)


def sinc(x: Any) -> Any:
    """sin(pi x) / (pi x), and 1 at 0; same shape.

    >>> import sparsegrad as sg
    >>> sg.sinc(sg.tensor([0.0])), f"{sg.sinc(sg.tensor(0.5)).item():.5f}"
    (tensor([1.]), '0.63662')
    """
    (x,) = _dense("sinc", x)
    angle = x * math.pi
    # Below that 1 - angle² / 6 is exact, and its slopes are right where sin(x) / x has none.
    near = (abs_(angle) < float(dtypes.finfo(angle.dtype).eps) ** 0.25).data
    far = where_p(1.0, angle, mask=near)
    return where_p(1 - angle * angle / 6, sin(far) / far, mask=near)


def logit(x: Any, eps: float | None = None) -> Any:
    """log(x / (1 - x)), same shape: the inverse of sigmoid. eps: x is first clamped to
    [eps, 1 - eps].

    >>> import sparsegrad as sg
    >>> sg.logit(sg.tensor([0.5, 1.0]))
    tensor([ 0., inf])
    """
    (x,) = _dense("logit", x)
    x = x if eps is None else clamp(x, eps, 1 - eps)
    return log(x) - log1p(-x)


def erfc(x: Any) -> Any:
    """1 - erf(x), without loss of digits for large x; same shape.

    >>> import sparsegrad as sg
    >>> sg.erfc(sg.tensor([0.0])), f"{sg.erfc(sg.tensor(5.0)).item():.3g}"
    (tensor([1.]), '1.54e-12')
    """
    return erfc_p(*_dense("erfc", x))


def erfinv(x: Any) -> Any:
    """The y with erf(y) = x, same shape: infinite at ±1, NaN beyond.

    >>> import sparsegrad as sg
    >>> sg.erfinv(sg.tensor([0.0, 1.0]))
    tensor([ 0., inf])
    """
    return erfinv_p(as_argument("erfinv", x))


def lgamma(x: Any) -> Any:
    """The logarithm of |gamma(x)|, same shape.

    >>> import sparsegrad as sg
    >>> sg.lgamma(sg.tensor([1.0, 3.0]))
    tensor([0.       , 0.6931472])
    """
    return lgamma_p(*_dense("lgamma", x))


def digamma(x: Any) -> Any:
    """The derivative of `lgamma`, same shape.

    >>> import sparsegrad as sg
    >>> sg.digamma(sg.tensor([1.0]))
    tensor([-0.5772157])
    """
    return polygamma_p(*_dense("digamma", x), n=0)


def polygamma(n: int, x: Any) -> Any:
    """The n-th derivative of `digamma`, same shape. Raises ValueError for n < 0.

    >>> import sparsegrad as sg
    >>> f"{sg.polygamma(1, sg.tensor(1.0)).item():.5f}"
    '1.64493'
    """
    if n < 0:
        raise ValueError(f"polygamma: n must be >= 0, got {n}")
    return polygamma_p(*_dense("polygamma", x), n=n)


# ---- of two ------------------------------------------------------------------------------------
def hypot(a: Any, b: Any) -> Any:
    """sqrt(a² + b²), broadcast, without overflow.

    >>> import sparsegrad as sg
    >>> sg.hypot(sg.tensor([3.0, 3e30]), sg.tensor([4.0, 4e30]))
    tensor([5.e+00, 5.e+30])
    """
    return hypot_p(*_dense("hypot", a, b))


def logaddexp2(a: Any, b: Any) -> Any:
    """log2(2^a + 2^b), broadcast, without overflow.

    >>> import sparsegrad as sg
    >>> sg.logaddexp2(sg.tensor([1.0]), 1.0)
    tensor([2.])
    """
    a, b = _dense("logaddexp2", a, b)
    return logaddexp(a * math.log(2), b * math.log(2)) / math.log(2)


def xlogy(x: Any, y: Any) -> Any:
    """x log(y), broadcast, and 0 where x is 0 (unless y is NaN), even for a y of 0 or infinity.

    >>> import sparsegrad as sg
    >>> sg.xlogy(sg.tensor([0.0, 2.0]), sg.tensor([0.0, 1.0]))
    tensor([0., 0.])
    """
    x, y = _dense("xlogy", x, y)
    none = ((x == 0) & ((y <= 0) | (y == math.inf))).data
    return where_p(x * 0, x * log(where_p(1.0, y, mask=none)), mask=none)


def heaviside(x: Any, values: Any) -> Any:
    """0 below 0, 1 above, `values` at 0, broadcast; without gradients.

    >>> import sparsegrad as sg
    >>> sg.heaviside(sg.tensor([-2.0, 0.0, 2.0]), 0.5)
    tensor([0. , 0.5, 1. ])
    """
    x, values = _dense("heaviside", x, values)
    return where(x == 0, values.detach(), cast(x.detach() > 0, x.dtype))


def copysign(a: Any, b: Any) -> Any:
    """|a| with the sign of b (that of zeros too), broadcast. The gradient is that to a.

    >>> import sparsegrad as sg
    >>> sg.copysign(sg.tensor([1.0, -2.0]), -0.0)
    tensor([-1., -2.])
    """
    a, b = _dense("copysign", a, b)
    size = abs_(a)
    return where_p(-size, size, mask=backends.for_array(b.data).xp.signbit(b.data))


def fmax(a: Any, b: Any) -> Any:
    """The larger of two elements, broadcast; of a number and a NaN the number.

    >>> import sparsegrad as sg
    >>> sg.fmax(sg.tensor([1.0, float("nan")]), 0.0)
    tensor([1., 0.])
    """
    a, b = _dense("fmax", a, b)
    return where(isnan_p(a), b, where(isnan_p(b), a, maximum(a, b)))


def fmin(a: Any, b: Any) -> Any:
    """The smaller of two elements, broadcast; of a number and a NaN the number.

    >>> import sparsegrad as sg
    >>> sg.fmin(sg.tensor([1.0, float("nan")]), 0.0)
    tensor([0., 0.])
    """
    a, b = _dense("fmin", a, b)
    return where(isnan_p(a), b, where(isnan_p(b), a, minimum(a, b)))


def float_power(x: Any, exponent: Any) -> Any:
    """x ** exponent in float64, broadcast.

    >>> import sparsegrad as sg
    >>> sg.float_power(sg.tensor([3]), 2)
    tensor([9.], dtype=float64)
    """
    x = as_argument("float_power", x)
    return cast(x, dtypes.float64) ** exponent
