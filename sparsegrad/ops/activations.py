"""Activation functions beyond relu, sigmoid and tanh."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.ops.elementwise import exp_p, sigmoid_p, tanh_p, where

__all__ = ["elu", "gelu", "leaky_relu", "logsigmoid", "silu", "softplus"]

_ROOT_2_PI = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


@primitive(promote="float")
def leaky_relu_p(be: Any, x: Any, *, slope: float) -> Any:
    return be.leaky_relu(x, slope)


@primitive
def leaky_relu_grad_p(be: Any, dy: Any, x: Any, *, slope: float) -> Any:
    return be.leaky_relu_grad(dy, x, slope)


leaky_relu_p.defvjp(x=lambda g, x, slope: leaky_relu_grad_p(g, x, slope=slope), sparse_g=True)
leaky_relu_grad_p.defvjp(
    dy=lambda g, x, slope: leaky_relu_grad_p(g, x, slope=slope), x=lambda g, dy: g * dy * 0
)


@primitive(promote="float")
def elu_p(be: Any, x: Any, *, alpha: float) -> Any:
    return be.elu(x, alpha)


@primitive
def elu_grad_p(be: Any, dy: Any, x: Any, *, alpha: float) -> Any:
    return be.elu_grad(dy, x, alpha)


def _elu_curvature(g: Any, dy: Any, x: Any, alpha: float) -> Any:
    above = x > 0
    return g * dy * where(above, 0.0, alpha * exp_p(where(above, 0.0, x)))


elu_p.defvjp(x=lambda g, x, alpha: elu_grad_p(g, x, alpha=alpha), sparse_g=True)
elu_grad_p.defvjp(dy=lambda g, x, alpha: elu_grad_p(g, x, alpha=alpha), x=_elu_curvature)


@primitive(promote="float")
def silu_p(be: Any, x: Any) -> Any:
    return be.silu(x)


@primitive
def silu_grad_p(be: Any, dy: Any, x: Any) -> Any:
    return be.silu_grad(dy, x)


def _silu_curvature(g: Any, dy: Any, x: Any) -> Any:
    s = sigmoid_p(x)
    return g * dy * (s * (1 - s) * (2 + x * (1 - 2 * s)))


silu_p.defvjp(x=lambda g, x: silu_grad_p(g, x), sparse_g=True)
silu_grad_p.defvjp(dy=lambda g, x: silu_grad_p(g, x), x=_silu_curvature)


@primitive(promote="float")
def gelu_p(be: Any, x: Any) -> Any:
    """x times the normal distribution function."""
    return be.gelu(x)


@primitive
def gelu_grad_p(be: Any, dy: Any, x: Any) -> Any:
    return be.gelu_grad(dy, x)


def _gelu_curvature(g: Any, dy: Any, x: Any) -> Any:
    squares = x * x
    return g * dy * (exp_p(squares * -0.5) * (2 - squares) * (0.5 * _ROOT_2_PI))


gelu_p.defvjp(x=lambda g, x: gelu_grad_p(g, x), sparse_g=True)
gelu_grad_p.defvjp(dy=lambda g, x: gelu_grad_p(g, x), x=_gelu_curvature)


@primitive(promote="float", fuse=True)
def gelu_tanh_p(xp: Any, x: Any) -> Any:
    """x times 0.5 * (1 + tanh(inner)), which is nearly the normal distribution function."""
    wide = x.astype(dtypes.accumulator(x.dtype), copy=False)
    inner = _ROOT_2_PI * (wide + _CUBIC * wide * wide * wide)
    return (0.5 * wide * (1 + xp.tanh(inner))).astype(x.dtype, copy=False)


@primitive(fuse=True)
def gelu_tanh_grad_p(xp: Any, dy: Any, x: Any) -> Any:
    wide = x.astype(dtypes.accumulator(x.dtype), copy=False)
    squares = wide * wide
    t = xp.tanh(_ROOT_2_PI * wide * (1 + _CUBIC * squares))
    inner_slope = _ROOT_2_PI * (1 + 3 * _CUBIC * squares)
    slope = 0.5 * (1 + t) + 0.5 * wide * (1 - t * t) * inner_slope
    return (dy * slope).astype(dy.dtype, copy=False)


def _gelu_tanh_curvature(g: Any, dy: Any, x: Any) -> Any:
    squares = x * x
    t = tanh_p(_ROOT_2_PI * x * (1 + _CUBIC * squares))
    slope = _ROOT_2_PI * (1 + 3 * _CUBIC * squares)
    bend = 6 * _CUBIC * _ROOT_2_PI * x - 2 * t * (slope * slope)
    return g * dy * ((1 - t * t) * (slope + 0.5 * x * bend))


gelu_tanh_p.defvjp(x=lambda g, x: gelu_tanh_grad_p(g, x), sparse_g=True)
gelu_tanh_grad_p.defvjp(dy=lambda g, x: gelu_tanh_grad_p(g, x), x=_gelu_tanh_curvature)


@primitive(promote="float", fuse=True)
def softplus_p(xp: Any, x: Any, *, beta: float, threshold: float) -> Any:
    scaled = x * beta
    soft = xp.maximum(scaled, 0) + xp.log1p(xp.exp(-xp.abs(scaled)))  # logaddexp has no vector code
    return xp.where(scaled > threshold, x, soft / beta)


def _softplus_rule(g: Any, x: Any, beta: float, threshold: float) -> Any:
    scaled = x if beta == 1 else x * beta
    slope = sigmoid_p(scaled)
    return g * (slope if threshold == math.inf else where(scaled > threshold, 1.0, slope))


softplus_p.defvjp(x=_softplus_rule, sparse_g=True)


# ---- public names ------------------------------------------------------------------------------
def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    """x above 0, negative_slope * x elsewhere; same shape. At 0 the slope is negative_slope, as in
    PyTorch. A SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.leaky_relu(sg.tensor([-2.0, 3.0]), 0.5)
    tensor([-1.,  3.])
    """
    return leaky_relu_p(x, slope=negative_slope)


def elu(x: Any, alpha: float = 1.0) -> Any:
    """x above 0, alpha * (exp(x) - 1) elsewhere; same shape. A SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.elu(sg.tensor([-100.0, 3.0]))
    tensor([-1.,  3.])
    """
    return elu_p(x, alpha=alpha)


def silu(x: Any) -> Any:
    """x * sigmoid(x) ("swish"), same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.silu(sg.tensor([0.0, 100.0]))
    tensor([  0., 100.])
    """
    return silu_p(x)


def gelu(x: Any, approximate: str = "none") -> Any:
    """x times the normal distribution function, same shape; a SparseTensor keeps its pattern.

    approximate: "none" for the error function, "tanh" for the approximation of the paper.
    Raises ValueError for any other.

    >>> import sparsegrad as sg
    >>> sg.gelu(sg.tensor([0.0, 100.0]))
    tensor([  0., 100.])
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return gelu_p(x) if approximate == "none" else gelu_tanh_p(x)


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """log(1 + exp(beta * x)) / beta without overflow, and x itself where beta * x > threshold;
    same shape. DensifyError for a SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.softplus(sg.tensor([0.0, 1000.0]))
    tensor([6.931472e-01, 1.000000e+03])
    """
    return softplus_p(x, beta=beta, threshold=threshold)


def logsigmoid(x: Any) -> Any:
    """log(sigmoid(x)) without overflow, same shape. DensifyError for a SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.logsigmoid(sg.tensor([-1000.0]))
    tensor([-1000.])
    """
    return -softplus_p(-x, beta=1.0, threshold=math.inf)
