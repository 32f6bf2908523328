"""Activation functions that are a few other functions in a row: clamped, shrunk, gated.

On a SparseTensor they are what their parts are: those with f(0) = 0 that need no shift keep its
pattern.
"""

from __future__ import annotations

from typing import Any

from sparsegrad import dtypes
from sparsegrad.errors import ShapeError
from sparsegrad.ops.activations import elu, softplus
from sparsegrad.ops.elementwise import abs as abs_
from sparsegrad.ops.elementwise import cast, sigmoid, tanh, where
from sparsegrad.ops.reduce import axis_of
from sparsegrad.ops.shape import as_argument, reshape_p, slice_p
from sparsegrad.ops.softmaxes import softmax
from sparsegrad.ops.sparse_structure import each_once
from sparsegrad.ops.unary import clamp, clamp_p

__all__ = [
    "celu",
    "glu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "mish",
    "prelu",
    "relu6",
    "selu",
    "softmin",
    "softshrink",
    "softsign",
    "tanhshrink",
    "threshold",
]

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


# ---- clamped -----------------------------------------------------------------------------------
def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """x between min_val and max_val; same shape. On a bound the slope is 0, as in PyTorch (that of
    `clamp` is 1).

    >>> import sparsegrad as sg
    >>> sg.hardtanh(sg.tensor([-3.0, 0.5]))
    tensor([-1. ,  0.5])
    """
    x = as_argument("hardtanh", x)
    x = cast(x, dtypes.result_type(x, min_val, max_val))
    return clamp_p(x, low=min_val, high=max_val, closed=False)


def relu6(x: Any) -> Any:
    """x between 0 and 6; same shape.

    >>> import sparsegrad as sg
    >>> sg.relu6(sg.tensor([-3.0, 0.5, 9.0]))
    tensor([0. , 0.5, 6. ])
    """
    return hardtanh(x, 0.0, 6.0)


def hardsigmoid(x: Any) -> Any:
    """(x + 3) / 6 between 0 and 1; same shape.

    >>> import sparsegrad as sg
    >>> sg.hardsigmoid(sg.tensor([-4.0, 0.0, 4.0]))
    tensor([0. , 0.5, 1. ])
    """
    return hardtanh(as_argument("hardsigmoid", x) + 3, 0.0, 6.0) / 6


def hardswish(x: Any) -> Any:
    """x * hardsigmoid(x), same shape.

    Howard et al., "Searching for MobileNetV3", ICCV 2019.

    >>> import sparsegrad as sg
    >>> sg.hardswish(sg.tensor([-4.0, 1.0, 4.0])).tolist()[2]
    4.0
    """
    x = as_argument("hardswish", x)
    return x * hardsigmoid(x)


def threshold(x: Any, threshold: float, value: float) -> Any:
    """x where it is above the threshold, `value` elsewhere; same shape.

    >>> import sparsegrad as sg
    >>> sg.threshold(sg.tensor([-3.0, 0.5]), 0.1, 20.0)
    tensor([20. ,  0.5])
    """
    x = as_argument("threshold", x)
    return where(x > threshold, x, value)


# ---- shrunk ------------------------------------------------------------------------------------
def hardshrink(x: Any, lambd: float = 0.5) -> Any:
    """x where |x| > lambd, 0 elsewhere; same shape.

    >>> import sparsegrad as sg
    >>> sg.hardshrink(sg.tensor([-3.0, 0.4]))
    tensor([-3.,  0.])
    """
    x = as_argument("hardshrink", x)
    return where(abs_(x) > lambd, x, 0.0)


def softshrink(x: Any, lambd: float = 0.5) -> Any:
    """x moved by lambd >= 0 towards 0, and 0 within; same shape: the proximal step of an L1 norm.

    >>> import sparsegrad as sg
    >>> sg.softshrink(sg.tensor([-3.0, 0.4]))
    tensor([-2.5,  0. ])
    """
    if lambd < 0:
        raise ValueError(f"softshrink: lambd must be >= 0, got {lambd}")
    x = each_once(x)
    return x - clamp(x, -lambd, lambd)


def tanhshrink(x: Any) -> Any:
    """x - tanh(x), same shape.

    >>> import sparsegrad as sg
    >>> sg.tanhshrink(sg.tensor([0.0, 100.0]))
    tensor([ 0., 99.])
    """
    x = each_once(x)
    return x - tanh(x)


def softsign(x: Any) -> Any:
    """x / (1 + |x|), same shape.

    >>> import sparsegrad as sg
    >>> sg.softsign(sg.tensor([-1.0, 3.0]))
    tensor([-0.5 ,  0.75])
    """
    return x / (abs_(x) + 1)


# ---- exponential -------------------------------------------------------------------------------
def celu(x: Any, alpha: float = 1.0) -> Any:
    """x above 0, alpha * (exp(x / alpha) - 1) elsewhere; same shape. Raises ValueError for
    alpha <= 0.

    Barron, "Continuously differentiable exponential linear units", 2017.

    >>> import sparsegrad as sg
    >>> sg.celu(sg.tensor([-100.0, 3.0]), 2.0)
    tensor([-2.,  3.])
    """
    if not alpha > 0:
        raise ValueError(f"celu: alpha must be > 0, got {alpha}")
    return elu(x / alpha) * alpha


def selu(x: Any) -> Any:
    """`elu` with the scale and alpha that keep mean 0 and variance 1 from layer to layer.

    Klambauer et al., "Self-normalizing neural networks", NIPS 2017.

    >>> import sparsegrad as sg
    >>> sg.selu(sg.tensor([0.0, 1.0]))
    tensor([0.      , 1.050701])
    """
    return elu(x, _SELU_ALPHA) * _SELU_SCALE


def mish(x: Any) -> Any:
    """x * tanh(softplus(x)), same shape.

    Misra, "Mish: a self regularized non-monotonic activation function", BMVC 2020.

    >>> import sparsegrad as sg
    >>> sg.mish(sg.tensor([0.0, 100.0]))
    tensor([  0., 100.])
    """
    return x * tanh(softplus(x))


# ---- with weights, gates, along a dimension ----------------------------------------------------
def prelu(x: Any, weight: Any) -> Any:
    """x above 0, weight * x elsewhere: weight (1,), or (C,) for the channels of x (N, C, *d).

    Raises ShapeError for a weight of another size.

    He, Zhang, Ren and Sun, "Delving deep into rectifiers", ICCV 2015.

    >>> import sparsegrad as sg
    >>> sg.prelu(sg.tensor([[-2.0, -2.0]]), sg.tensor([0.5, 1.0]))
    tensor([[-1., -2.]])
    """
    x, weight = as_argument("prelu", x), as_argument("prelu", weight)
    channels = x.shape[1] if x.ndim > 1 else 1
    if weight.data.size not in (1, channels):
        raise ShapeError(
            f"prelu: expected weight (1,) or ({channels},) for x of shape {tuple(x.shape)}, got "
            f"{tuple(weight.shape)}"
        )
    shape = (-1, *(1,) * (x.ndim - 2)) if weight.data.size > 1 else (1,) * x.ndim
    return where(x > 0, x, x * reshape_p(weight, shape=shape))


def glu(x: Any, dim: int = -1) -> Any:
    """a * sigmoid(b) for the two halves a, b of x along `dim`. Raises ShapeError for an odd size.

    Dauphin, Fan, Auli and Grangier, "Language modeling with gated convolutional networks", ICML
    2017.

    >>> import sparsegrad as sg
    >>> sg.glu(sg.tensor([4.0, 0.0]))
    tensor([2.])
    """
    x = as_argument("glu", x)
    axis = axis_of("glu", dim, x.ndim)
    n = x.shape[axis] if x.ndim else 1
    if n % 2:
        raise ShapeError(f"glu: needs an even size in dim {dim}, got shape {tuple(x.shape)}")
    a = slice_p(x, axis=axis, start=0, stop=n // 2)
    return a * sigmoid(slice_p(x, axis=axis, start=n // 2, stop=n))


def softmin(x: Any, dim: int = -1) -> Any:
    """softmax(-x) along `dim`; same shape.

    >>> import sparsegrad as sg
    >>> sg.softmin(sg.tensor([1.0, 1.0]))
    tensor([0.5, 0.5])
    """
    return softmax(-as_argument("softmin", x), dim)
