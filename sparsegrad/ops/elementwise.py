"""Elementwise ops: arithmetic, powers, exponentials, activations, casts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsegrad import backends, dtypes, random
from sparsegrad.engine.primitive import primitive

if TYPE_CHECKING:
    from sparsegrad.tensor import Tensor

__all__ = [
    "abs",
    "add",
    "cast",
    "clone",
    "div",
    "dropout",
    "exp",
    "log",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "pow",
    "relu",
    "sigmoid",
    "sqrt",
    "sub",
    "tanh",
    "where",
]


# ---- arithmetic --------------------------------------------------------------------------------
@primitive
def add_p(xp: Any, a: Any, b: Any) -> Any:
    return a + b


add_p.defvjp(a=lambda g: g, b=lambda g: g, sparse_g=True)


@primitive
def sub_p(xp: Any, a: Any, b: Any) -> Any:
    return a - b


sub_p.defvjp(a=lambda g: g, b=lambda g: -g, sparse_g=True)


@primitive
def mul_p(xp: Any, a: Any, b: Any) -> Any:
    return a * b


mul_p.defvjp(a=lambda g, b: g * b, b=lambda g, a: g * a, sparse_g=True)


@primitive(promote="float")
def div_p(xp: Any, a: Any, b: Any) -> Any:
    return a / b


div_p.defvjp(a=lambda g, b: g / b, b=lambda g, out, b: -(g * (out / b)), sparse_g=True)


@primitive(fuse=True)
def scaled_sum_p(xp: Any, alpha: Any, a: Any, beta: Any, b: Any) -> Any:
    """alpha * a + beta * b."""
    return alpha * a + beta * b


scaled_sum_p.defvjp(
    alpha=lambda g, a: g * a,
    a=lambda g, alpha: g * alpha,
    beta=lambda g, b: g * b,
    b=lambda g, beta: g * beta,
    sparse_g=True,
)


@primitive
def neg_p(xp: Any, x: Any) -> Any:
    return -x


neg_p.defvjp(x=lambda g: -g, sparse_g=True)


@primitive
def pow_p(xp: Any, a: Any, b: Any) -> Any:
    whole = isinstance(b, (int, float)) and b % 1 == 0 and b not in (-1, 0, 1, 2)
    if xp is np and whole and a.dtype.kind == "f":  # NumPy's vector code is of positive bases alone
        out = np.power(np.abs(a), b)
        return np.copysign(out, a) if b % 2 else out
    return xp.power(a, b)


def _pow_base(g: Any, a: Any, b: Any) -> Any:
    if isinstance(b, (int, float)):
        return g * 0 if b == 0 else g * (b * a ** (b - 1))
    return g * where(b == 0, 0, b * a ** where(b == 0, 1, b - 1))  # x ** 0 is 1 at x = 0 too


def _pow_exponent(g: Any, out: Any, a: Any) -> Any:
    if isinstance(a, (int, float)):
        return g * out * (math.log(a) if a > 0 else 0.0 if a == 0 else float("nan"))
    return g * where(a == 0, 0, out * log(where(a == 0, 1, a)))  # 0 ** b stays 0


pow_p.defvjp(a=_pow_base, b=_pow_exponent, sparse_g=True)


@primitive
def maximum_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.maximum(a, b)


@primitive
def minimum_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.minimum(a, b)


@primitive(fuse=True)
def maximum_grad_p(xp: Any, dy: Any, a: Any, b: Any) -> Any:
    """All of dy where `a` is larger, half of it in a tie, as in PyTorch."""
    return dy * (a > b) + 0.5 * dy * (a == b)


maximum_p.defvjp(
    a=lambda g, a, b: maximum_grad_p(g, a, b), b=lambda g, a, b: maximum_grad_p(g, b, a)
)
minimum_p.defvjp(
    a=lambda g, a, b: maximum_grad_p(g, b, a), b=lambda g, a, b: maximum_grad_p(g, a, b)
)
maximum_grad_p.defvjp(
    dy=lambda g, a, b: maximum_grad_p(g, a, b),
    a=lambda g, dy: g * dy * 0,
    b=lambda g, dy: g * dy * 0,
)


# ---- functions of one argument -----------------------------------------------------------------
@primitive(promote="float")
def exp_p(xp: Any, x: Any) -> Any:
    return xp.exp(x)


exp_p.defvjp(x=lambda g, out: g * out, sparse_g=True)


@primitive(promote="float")
def log_p(xp: Any, x: Any) -> Any:
    return xp.log(x)


log_p.defvjp(x=lambda g, x: g / x, sparse_g=True)


@primitive(promote="float")
def sqrt_p(xp: Any, x: Any) -> Any:
    return xp.sqrt(x)


sqrt_p.defvjp(x=lambda g, out: g / (2 * out), sparse_g=True)


@primitive(promote="float")
def tanh_p(xp: Any, x: Any) -> Any:
    return xp.tanh(x)


@primitive(fuse=True)
def tanh_grad_p(xp: Any, dy: Any, y: Any) -> Any:
    return dy * (1 - y * y)


tanh_p.defvjp(x=lambda g, out: tanh_grad_p.binary(g, out), sparse_g=True)
tanh_grad_p.defvjp(dy=lambda g, y: tanh_grad_p(g, y), y=lambda g, dy, y: g * dy * (-2 * y))


@primitive(promote="float", fuse=True)
def sigmoid_p(xp: Any, x: Any) -> Any:
    # 0.5 * (1 + tanh(x / 2)): no overflow for either sign.
    return 0.5 * (1 + xp.tanh(0.5 * x))


@primitive(fuse=True)
def sigmoid_grad_p(xp: Any, dy: Any, y: Any) -> Any:
    return dy * (y * (1 - y))


sigmoid_p.defvjp(x=lambda g, out: sigmoid_grad_p(g, out), sparse_g=True)
sigmoid_grad_p.defvjp(
    dy=lambda g, y: sigmoid_grad_p(g, y),
    y=lambda g, dy, y: g * dy * (1 - 2 * y),
)


@primitive
def relu_p(xp: Any, x: Any) -> Any:
    return xp.maximum(x, 0)


@primitive
def relu_grad_p(be: Any, dy: Any, y: Any) -> Any:
    """The subgradient at 0 is 0, as in PyTorch."""
    return be.relu_grad(dy, y)


# The output is kept rather than the input: the next op usually keeps it anyway.
relu_p.defvjp(x=lambda g, out: relu_grad_p(g, out), sparse_g=True)
relu_grad_p.defvjp(dy=lambda g, y: relu_grad_p(g, y), y=lambda g, dy, y: g * dy * 0)


@primitive
def abs_p(xp: Any, x: Any) -> Any:
    return xp.abs(x)


@primitive
def sign_p(xp: Any, x: Any) -> Any:
    return xp.sign(x)


@primitive(fuse=True)
def abs_grad_p(xp: Any, dy: Any, x: Any) -> Any:
    return dy * xp.sign(x)


abs_p.defvjp(x=lambda g, x: abs_grad_p(g, x), sparse_g=True)
abs_grad_p.defvjp(dy=lambda g, x: abs_grad_p(g, x), x=lambda g, dy: g * dy * 0)


# ---- choice, copies, dtypes, dropout -----------------------------------------------------------
@primitive
def where_p(xp: Any, a: Any, b: Any, *, mask: Any) -> Any:
    return xp.where(mask, a, b)


where_p.defvjp(
    a=lambda g, mask: where_p(g, 0, mask=mask),
    b=lambda g, mask: where_p(0, g, mask=mask),
    sparse_g=True,
)


@primitive
def clone_p(xp: Any, x: Any) -> Any:
    return x.copy()


clone_p.defvjp(x=lambda g: g, sparse_g=True)


@primitive(view=True, promote="none")
def cast_p(be: Any, x: Any, *, dtype: Any) -> Any:
    return be.convert(x, dtype)


cast_p.defvjp(x=lambda g: g, sparse_g=True)  # the engine casts g back to the input's dtype


@primitive(promote="float")
def dropout_p(be: Any, x: Any, *, p: float, seed: int, offset: int) -> Any:
    return be.dropout(x, p, seed, offset)


def _dropout_rule(g: Any, x_meta: Any, p: float, seed: int, offset: int) -> Any:
    if not g._is_sparse:
        return dropout_p(g, p=p, seed=seed, offset=offset)
    ones = backends.for_array(g.values.data).xp.ones(x_meta.shape, x_meta.dtype)
    return g * dropout_p(ones, p=p, seed=seed, offset=offset)


# The mask is made again: it is a function of seed and offset.
dropout_p.defvjp(x=_dropout_rule, sparse_g=True)


# ---- public names ------------------------------------------------------------------------------
def add(a: Any, b: Any, *, alpha: float = 1) -> Any:
    """a + alpha * b, broadcast; dense or sparse.

    Two sparse tensors give a sparse one on the union of their patterns; sparse plus dense is
    dense. Shapes: broadcastable to one another; sparse operands must have the same shape.

    >>> import sparsegrad as sg
    >>> sg.add(sg.tensor([1.0, 2.0]), 1)
    tensor([2., 3.])
    """
    return add_p(a, b if alpha == 1 else b * alpha)


def sub(a: Any, b: Any, *, alpha: float = 1) -> Any:
    """a - alpha * b, broadcast; dense or sparse as in `add`.

    >>> import sparsegrad as sg
    >>> sg.sub(sg.tensor([1.0, 2.0]), 1)
    tensor([0., 1.])
    """
    return sub_p(a, b if alpha == 1 else b * alpha)


def mul(a: Any, b: Any) -> Any:
    """a * b, broadcast; dense or sparse.

    Sparse times dense keeps the pattern, sparse times sparse gives the intersection.

    >>> import sparsegrad as sg
    >>> sg.mul(sg.tensor([1.0, 2.0]), 3)
    tensor([3., 6.])
    """
    return mul_p.binary(a, b)


def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """a / b, broadcast; integers give floating point. A sparse `a` keeps its pattern.

    rounding_mode: "floor" (as `//`) or "trunc" (towards 0), in the promoted dtype, slope 0.

    >>> import sparsegrad as sg
    >>> sg.div(sg.tensor([1.0, 2.0]), 2)
    tensor([0.5, 1. ])
    """
    if rounding_mode is None:
        return div_p.binary(a, b)
    if rounding_mode not in ("floor", "trunc"):
        raise ValueError(f"div: rounding_mode must be 'floor' or 'trunc', got {rounding_mode!r}")
    from sparsegrad.ops.binary import quotient

    return quotient(a, b, rounding_mode)


def neg(x: Any) -> Any:
    """-x, same shape.

    >>> import sparsegrad as sg
    >>> sg.neg(sg.tensor([-2.0, 3.0]))
    tensor([ 2., -3.])
    """
    return neg_p.unary(x)


def pow(base: Any, exponent: Any) -> Any:
    """base ** exponent, broadcast. The gradient is PyTorch's at 0: 0 for exponent 0, and for the
    exponent where the base is 0.

    >>> import sparsegrad as sg
    >>> sg.pow(sg.tensor([1.0, 2.0]), 3)
    tensor([1., 8.])
    """
    return pow_p.binary(base, exponent)


def maximum(a: Any, b: Any) -> Tensor:
    """The larger of a and b, broadcast; a tie shares the gradient equally.

    >>> import sparsegrad as sg
    >>> sg.maximum(sg.tensor([1.0, 5.0]), 3.0)
    tensor([3., 5.])
    """
    return maximum_p.binary(a, b)


def minimum(a: Any, b: Any) -> Tensor:
    """The smaller of a and b, broadcast; a tie shares the gradient equally.

    >>> import sparsegrad as sg
    >>> sg.minimum(sg.tensor([1.0, 5.0]), 3.0)
    tensor([1., 3.])
    """
    return minimum_p.binary(a, b)


def exp(x: Any) -> Tensor:
    """e ** x, same shape.

    >>> import sparsegrad as sg
    >>> sg.exp(sg.zeros(2))
    tensor([1., 1.])
    """
    return exp_p.unary(x)


def log(x: Any) -> Tensor:
    """Natural logarithm, same shape.

    >>> import sparsegrad as sg
    >>> sg.log(sg.ones(2))
    tensor([0., 0.])
    """
    return log_p.unary(x)


def sqrt(x: Any) -> Any:
    """Square root, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.sqrt(sg.tensor([4.0, 9.0]))
    tensor([2., 3.])
    """
    return sqrt_p.unary(x)


def tanh(x: Any) -> Any:
    """Hyperbolic tangent, same shape; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.tanh(sg.zeros(2))
    tensor([0., 0.])
    """
    return tanh_p.unary(x)


def sigmoid(x: Any) -> Tensor:
    """1 / (1 + exp(-x)), same shape, without overflow for either sign.

    >>> import sparsegrad as sg
    >>> sg.sigmoid(sg.zeros(2))
    tensor([0.5, 0.5])
    """
    return sigmoid_p.unary(x)


def relu(x: Any) -> Any:
    """max(x, 0), same shape, subgradient 0 at 0; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.relu(sg.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    return relu_p.unary(x)


def abs(x: Any) -> Any:
    """Absolute value, same shape, subgradient 0 at 0; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.abs(sg.tensor([-2.0, 3.0]))
    tensor([2., 3.])
    """
    return abs_p.unary(x)


def where(mask: Any, a: Any = None, b: Any = None) -> Any:
    """Elements of `a` where `mask` is true, of `b` elsewhere; all three broadcast. A sparse `a` or
    `b` keeps its entries, those that are left out as zeros: the other must be sparse too, or the
    number 0. So must `b` with a sparse mask, which is false at absent cells.

    With `mask` alone the positions where it is true, one tensor of integers a dimension.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([-1.0, 2.0])
    >>> sg.where(x > 0, x, 0)
    tensor([0., 2.])
    """
    from sparsegrad.tensor import as_tensor

    if a is None and b is None:
        from sparsegrad.ops.rearrange import unbind
        from sparsegrad.ops.scattering import nonzero

        return unbind(nonzero(mask), 1)
    if getattr(mask, "_is_sparse", False):
        from sparsegrad.ops.sparse_elementwise import where_masked

        return where_masked(mask, a, b)
    at = next((x.device for x in (mask, a, b) if hasattr(x, "requires_grad")), None)
    mask = as_tensor(mask, dtypes.bool_, at)
    if not hasattr(a, "shape") and not hasattr(b, "shape"):
        a = as_tensor(a, device=mask.device)
    recorded = getattr(a, "requires_grad", False) or getattr(b, "requires_grad", False)
    return where_p(a, b, mask=mask.data.copy() if recorded else mask.data)


def clone(x: Any) -> Any:
    """A copy of the data, recorded: gradients flow to `x`. Same shape.

    >>> import sparsegrad as sg
    >>> x = sg.ones(2, requires_grad=True)
    >>> sg.clone(x).sum().backward()
    >>> x.grad
    tensor([1., 1.])
    """
    return clone_p.unary(x)


def cast(x: Any, dtype: Any) -> Any:
    """`x` in another dtype, same shape; `x` itself if it has that dtype. Gradients are cast back.

    >>> import sparsegrad as sg
    >>> sg.cast(sg.tensor([1, 2]), "float32")
    tensor([1., 2.])
    """
    target = dtypes.as_dtype(dtype)
    return x if x.dtype == target else cast_p(x, dtype=target)


def dropout(x: Any, p: float = 0.5, training: bool = True) -> Any:
    """Elements set to 0 with probability `p`, the rest scaled by 1 / (1 - p); same shape.

    A SparseTensor keeps its pattern: entries are dropped to explicit zeros. The mask comes from
    the stream that `sg.manual_seed` starts, and is the same on every device.

    >>> import sparsegrad as sg
    >>> sg.manual_seed(0)
    >>> sg.dropout(sg.ones(6), 0.5)
    tensor([0., 2., 2., 2., 2., 0.])
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p must lie in [0, 1], got {p}")
    if not training or p == 0:
        return x
    if getattr(x, "_is_sparse", False):
        return x.with_values(dropout(x.values, p))
    if p == 1:
        return x * 0
    from sparsegrad.tensor import as_tensor

    x = as_tensor(x)
    seed, offset = random.generator(x.device).reserve(x.numel())
    return dropout_p(x, p=p, seed=seed, offset=offset)
