"""A bias and an activation in one pass, their gradients in another. Each gradient is a primitive
again, so that derivatives of any order exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsegrad import dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError
from sparsegrad.ops.activations import elu, gelu, leaky_relu, silu, softplus
from sparsegrad.ops.elementwise import (
    cast,
    relu,
    relu_grad_p,
    sigmoid,
    sigmoid_grad_p,
    tanh,
    tanh_grad_p,
)
from sparsegrad.ops.shape import as_argument, reshape_p

__all__ = ["bias_act"]

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "elu": elu,
    "gelu": gelu,
    "leaky_relu": leaky_relu,
    "relu": relu,
    "sigmoid": sigmoid,
    "silu": silu,
    "softplus": softplus,
    "tanh": tanh,
}
# Those whose slope follows from their result y, which alone is kept: dy and y to the gradient, and
# the derivative of the slope by y. Of the others arithmetic, not memory, is what takes time.
_SLOPES = {"relu": relu_grad_p, "sigmoid": sigmoid_grad_p, "tanh": tanh_grad_p}
_CURVES = {"relu": lambda y: y * 0, "sigmoid": lambda y: 1 - 2 * y, "tanh": lambda y: -2 * y}


@primitive
def bias_act_p(be: Any, x: Any, bias: Any, *, activation: str) -> Any:
    """activation(x + bias) of rows: x (n, m), bias (m,) -> (n, m)."""
    return be.bias_act(x, bias, activation)


@primitive(outputs=("dx", "db"))
def bias_act_grad_p(be: Any, dy: Any, y: Any, *, activation: str) -> Any:
    """Gradients to x (n, m) and to bias (m,), for dy and the result y (n, m)."""
    return be.bias_act_grad(dy, y, activation)


def _bias_act_rule(g: Any, out: Any, activation: str, needs: tuple[bool, bool]) -> Any:
    return back_to_sum(g, out, activation, needs[1])


bias_act_p.defvjp(("x", "bias"), _bias_act_rule, sparse_g=True)
bias_act_grad_p.defvjp(
    dy=lambda g, y, activation: _SLOPES[activation](g[0] + g[1], y),
    y=lambda g, dy, y, activation: (g[0] + g[1]) * dy * _CURVES[activation](y),
)


def bias_act(x: Any, bias: Any, activation: str | None = None) -> Any:
    """activation(x + bias): x (*B, m), bias (m,) or None -> (*B, m). After a product, in a layer of
    one's own; relu, sigmoid and tanh take one pass over x, and one in the backward pass.

    activation: "relu", "sigmoid", "tanh", "elu", "gelu", "leaky_relu", "silu", "softplus" (each as
        the function of its name), or None.

    Raises ShapeError for a bias of another size, ValueError for another activation.

    >>> import sparsegrad as sg
    >>> sg.bias_act(sg.tensor([[1.0, -2.0]]), sg.tensor([0.5, 0.5]), "relu")
    tensor([[1.5, 0. ]])
    """
    x = as_argument("bias_act", x)
    bias = None if bias is None else as_argument("bias_act", bias)
    check_activation("bias_act", activation)
    if bias is not None and (x.ndim == 0 or tuple(bias.shape) != tuple(x.shape[-1:])):
        raise ShapeError(
            f"bias_act: expected x (*B, m) and bias (m,), got {tuple(x.shape)} and "
            f"{tuple(bias.shape)}"
        )
    return biased(x, bias, activation)


def biased(x: Any, bias: Any, activation: str | None) -> Any:
    """`bias_act` of arguments that fit, in the dtype of `x`: a product in 16 bits stays one."""
    first, then = one_pass(activation)
    if bias is None:
        return x if activation is None else _FUNCTIONS[activation](x)
    bias = cast(bias, x.dtype)
    if x._is_sparse or dtypes.kind(x.dtype) != "f":
        x = x + bias
        return x if activation is None else _FUNCTIONS[activation](x)
    rows = x if x.ndim == 2 else reshape_p(x, shape=(-1, *bias.shape))
    out = bias_act_p(rows, bias, activation=first)
    return then(out if rows is x else reshape_p(out, shape=x.shape))


def one_pass(activation: str | None) -> tuple[str, Callable[[Any], Any]]:
    """What a backend does in one pass with a bias, and what is left to do."""
    if activation in _SLOPES:
        return activation, lambda x: x
    return "identity", (lambda x: x) if activation is None else _FUNCTIONS[activation]


def back_to_sum(g: Any, out: Any, activation: str, bias: bool) -> tuple[Any, Any]:
    """Gradients to x, or what broadcasts to it, and to the bias where that needs one: of
    out = activation(x + bias)."""
    if activation == "identity":
        return g, g
    if g._is_sparse or not bias:
        dx = _SLOPES[activation](g, out)
        return dx, dx
    dx, db = bias_act_grad_p(g, out, activation=activation)
    return dx, db


def check_activation(op: str, activation: str | None) -> None:
    """ValueError unless it is None or the name of an activation."""
    if activation is not None and activation not in _FUNCTIONS:
        raise ValueError(
            f"{op}: activation must be None or one of {', '.join(_FUNCTIONS)}, got {activation!r}"
        )
