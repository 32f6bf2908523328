"""Circular and hyperbolic functions, and the error function."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad.engine.primitive import primitive
from sparsegrad.ops.elementwise import sqrt_p

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "sin",
    "sinh",
    "tan",
]


@primitive(promote="float")
def sin_p(xp: Any, x: Any) -> Any:
    return xp.sin(x)


sin_p.defvjp(x=lambda g, x: g * cos_p(x), sparse_g=True)


@primitive(promote="float")
def cos_p(xp: Any, x: Any) -> Any:
    return xp.cos(x)


cos_p.defvjp(x=lambda g, x: -(g * sin_p(x)), sparse_g=True)


@primitive(promote="float")
def tan_p(xp: Any, x: Any) -> Any:
    return xp.tan(x)


tan_p.defvjp(x=lambda g, out: g * (1 + out * out), sparse_g=True)


@primitive(promote="float")
def asin_p(xp: Any, x: Any) -> Any:
    return xp.arcsin(x)


@primitive(fuse=True)
def asin_grad_p(xp: Any, dy: Any, x: Any) -> Any:
    return dy / xp.sqrt(1 - x * x)


asin_p.defvjp(x=lambda g, x: asin_grad_p(g, x), sparse_g=True)
asin_grad_p.defvjp(
    dy=lambda g, x: asin_grad_p(g, x),
    x=lambda g, dy, x: asin_grad_p(g * dy, x) * (x / (1 - x * x)),
)


@primitive(promote="float")
def acos_p(xp: Any, x: Any) -> Any:
    return xp.arccos(x)


acos_p.defvjp(x=lambda g, x: -asin_grad_p(g, x), sparse_g=True)


@primitive(promote="float")
def atan_p(xp: Any, x: Any) -> Any:
    return xp.arctan(x)


atan_p.defvjp(x=lambda g, x: g / (1 + x * x), sparse_g=True)


@primitive(promote="float")
def atan2_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.arctan2(a, b)


atan2_p.defvjp(
    a=lambda g, a, b: g * (b / (a * a + b * b)),
    b=lambda g, a, b: -(g * (a / (a * a + b * b))),
    sparse_g=True,
)


@primitive(promote="float")
def sinh_p(xp: Any, x: Any) -> Any:
    return xp.sinh(x)


sinh_p.defvjp(x=lambda g, x: g * cosh_p(x), sparse_g=True)


@primitive(promote="float")
def cosh_p(xp: Any, x: Any) -> Any:
    return xp.cosh(x)


cosh_p.defvjp(x=lambda g, x: g * sinh_p(x), sparse_g=True)


@primitive(promote="float")
def asinh_p(xp: Any, x: Any) -> Any:
    return xp.arcsinh(x)


@primitive(fuse=True)
def asinh_grad_p(xp: Any, dy: Any, x: Any) -> Any:
    return dy / xp.sqrt(1 + x * x)


asinh_p.defvjp(x=lambda g, x: asinh_grad_p(g, x), sparse_g=True)
asinh_grad_p.defvjp(
    dy=lambda g, x: asinh_grad_p(g, x),
    x=lambda g, dy, x: -asinh_grad_p(g * dy, x) * (x / (1 + x * x)),
)


@primitive(promote="float")
def acosh_p(xp: Any, x: Any) -> Any:
    return xp.arccosh(x)


acosh_p.defvjp(x=lambda g, x: g / (sqrt_p(x - 1) * sqrt_p(x + 1)), sparse_g=True)


@primitive(promote="float")
def atanh_p(xp: Any, x: Any) -> Any:
    return xp.arctanh(x)


@primitive(fuse=True)
def atanh_grad_p(xp: Any, dy: Any, x: Any) -> Any:
    return dy / (1 - x * x)


atanh_p.defvjp(x=lambda g, x: atanh_grad_p(g, x), sparse_g=True)
atanh_grad_p.defvjp(
    dy=lambda g, x: atanh_grad_p(g, x),
    x=lambda g, dy, x: atanh_grad_p(g * dy, x) * (2 * x / (1 - x * x)),
)


@primitive(promote="float")
def erf_p(be: Any, x: Any) -> Any:
    return be.erf(x)


@primitive(fuse=True)
def erf_grad_p(xp: Any, dy: Any, x: Any) -> Any:
    return dy * (2 / math.sqrt(math.pi) * xp.exp(-(x * x)))


erf_p.defvjp(x=lambda g, x: erf_grad_p(g, x), sparse_g=True)
erf_grad_p.defvjp(
    dy=lambda g, x: erf_grad_p(g, x), x=lambda g, dy, x: erf_grad_p(g * dy * (-2 * x), x)
)


# ---- public names ------------------------------------------------------------------------------
def sin(x: Any) -> Any:
    """Sine of x in radians, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.sin(sg.tensor(0.0))
    tensor(0.)
    """
    return sin_p(x)


def cos(x: Any) -> Any:
    """Cosine of x in radians, same shape. DensifyError for a SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.cos(sg.tensor(0.0))
    tensor(1.)
    """
    return cos_p(x)


def tan(x: Any) -> Any:
    """Tangent of x in radians, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.tan(sg.tensor(0.0))
    tensor(0.)
    """
    return tan_p(x)


def asin(x: Any) -> Any:
    """Angle in [-pi/2, pi/2] whose sine is x, NaN outside [-1, 1]; same shape. A SparseTensor keeps
    its pattern.

    >>> import sparsegrad as sg
    >>> sg.asin(sg.tensor(0.0))
    tensor(0.)
    """
    return asin_p(x)


def acos(x: Any) -> Any:
    """Angle in [0, pi] whose cosine is x, NaN outside [-1, 1]; same shape. DensifyError for a
    SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.acos(sg.tensor(1.0))
    tensor(0.)
    """
    return acos_p(x)


def atan(x: Any) -> Any:
    """Angle in [-pi/2, pi/2] whose tangent is x, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.atan(sg.tensor(0.0))
    tensor(0.)
    """
    return atan_p(x)


def atan2(a: Any, b: Any) -> Any:
    """Angle in [-pi, pi] of the point (b, a), broadcast; dense only.

    >>> import sparsegrad as sg
    >>> sg.atan2(sg.tensor(0.0), sg.tensor(1.0))
    tensor(0.)
    """
    return atan2_p(a, b)


def sinh(x: Any) -> Any:
    """Hyperbolic sine, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.sinh(sg.tensor(0.0))
    tensor(0.)
    """
    return sinh_p(x)


def cosh(x: Any) -> Any:
    """Hyperbolic cosine, same shape. DensifyError for a SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.cosh(sg.tensor(0.0))
    tensor(1.)
    """
    return cosh_p(x)


def asinh(x: Any) -> Any:
    """Inverse hyperbolic sine, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.asinh(sg.tensor(0.0))
    tensor(0.)
    """
    return asinh_p(x)


def acosh(x: Any) -> Any:
    """Inverse hyperbolic cosine, NaN below 1; same shape. DensifyError for a SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.acosh(sg.tensor(1.0))
    tensor(0.)
    """
    return acosh_p(x)


def atanh(x: Any) -> Any:
    """Inverse hyperbolic tangent, NaN outside [-1, 1]; same shape. A SparseTensor keeps its
    pattern.

    >>> import sparsegrad as sg
    >>> sg.atanh(sg.tensor(0.0))
    tensor(0.)
    """
    return atanh_p(x)


def erf(x: Any) -> Any:
    """The error function 2 / sqrt(pi) * integral of exp(-t^2) from 0 to x, same shape; a
    SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.erf(sg.tensor([0.0, 10.0]))
    tensor([0., 1.])
    """
    return erf_p(x)
