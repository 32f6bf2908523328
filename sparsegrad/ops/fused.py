"""Layers of dense networks in one pass each: linear, cross entropy, layer normalisation, and their
gradients. Each gradient is a primitive again, so that derivatives of any order exist."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsegrad import backends, dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import GraphError, ShapeError
from sparsegrad.ops.bias import biased, check_activation
from sparsegrad.ops.dense_matmul import matmul, matmul_p
from sparsegrad.ops.likelihood import check_classes, check_reduction, class_ids
from sparsegrad.ops.reduce import mean_p, sum_p
from sparsegrad.ops.shape import as_argument, reshape_p, transpose
from sparsegrad.ops.softmaxes import softmax_p
from sparsegrad.ops.unary import rsqrt_p

__all__ = ["cross_entropy", "layer_norm", "linear"]


# ---- linear ------------------------------------------------------------------------------------
@primitive
def linear_p(be: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    """x (n, k) @ weight (m, k).T + bias (m,) -> (n, m)."""
    return be.linear(x, weight, bias)


def _weight_rule(g: Any, x: Any) -> Any:
    if g._is_sparse:  # of a row-sparse one only the stored rows take part
        return transpose(matmul(transpose(x, 0, 1), g), 0, 1)
    return matmul_p(transpose(g, 0, 1), x)


linear_p.defvjp(
    x=lambda g, weight: matmul(g, weight),
    weight=_weight_rule,
    bias=lambda g: g,
    sparse_g=True,
)


# ---- cross entropy -----------------------------------------------------------------------------
# classes (n,), int64, negative for rows that are left out; weight (C,), an array or None; reduction
# of all n losses, those that are left out being 0.
@primitive(aux=("lse",), promote="float")
def cross_entropy_p(
    be: Any, x: Any, *, classes: Any, weight: Any, smoothing: float, reduction: str
) -> Any:
    """Logits (n, C) -> losses (n,), or () if they are reduced; and log(sum(exp(x))) of each row."""
    losses, lse = be.cross_entropy(x, classes, weight, smoothing)
    if reduction == "none":
        return losses, lse
    total = losses.sum()
    return (total / lse.dtype.type(len(x)) if reduction == "mean" else total), lse


@primitive
def cross_entropy_grad_p(
    be: Any, dy: Any, x: Any, *, lse: Any, classes: Any, weight: Any, smoothing: float,
    reduction: str,
) -> Any:  # fmt: skip
    """Gradient of the losses to the logits, for dy (n,), or () if they are reduced: (n, C)."""
    if reduction != "none":
        each = dy / lse.dtype.type(len(x)) if reduction == "mean" else dy
        dy = be.xp.empty(len(x), lse.dtype)
        dy[...] = each
    return be.cross_entropy_grad(dy, x, lse, classes, weight, smoothing)


def _loss_rule(
    g: Any, x: Any, lse: Any, classes: Any, weight: Any, smoothing: float, reduction: str
) -> Any:
    given = {"classes": classes, "weight": weight, "smoothing": smoothing, "reduction": reduction}
    return cross_entropy_grad_p(g, x, lse=lse, **given)


def _loss_slope(
    g: Any, dy_meta: Any, x: Any, lse: Any, classes: Any, weight: Any, smoothing: float,
    reduction: str,
) -> Any:  # fmt: skip
    """To dy, in which the gradient is linear."""
    ones = as_argument("cross_entropy", backends.for_array(lse).xp.ones(dy_meta.shape, x.dtype))
    each = _loss_rule(ones, x, lse, classes, weight, smoothing, reduction)
    return sum_p(g * each, axis=(1,) if reduction == "none" else (0, 1))


def _loss_curvature(
    g: Any, dy: Any, x: Any, classes: Any, weight: Any, smoothing: float, reduction: str
) -> Any:
    """To x: that of softmax, times how much target a row has."""
    xp = backends.for_array(classes).xp
    mass = xp.ones(classes.shape, x.dtype)
    if weight is not None:
        mass = (1 - smoothing) * weight[xp.where(classes < 0, 0, classes)]
        mass = mass + smoothing * weight.mean()
    mass = as_argument("cross_entropy", xp.where(classes < 0, 0, mass).astype(x.dtype))
    p = softmax_p(x, axis=1)
    mixed = p * g
    slope = mixed - p * sum_p(mixed, axis=(1,), keepdims=True)
    if reduction == "mean":
        dy = dy / len(classes)
    return slope * reshape_p(dy * mass, shape=(-1, 1))


cross_entropy_p.defvjp(x=_loss_rule)
cross_entropy_grad_p.defvjp(dy=_loss_slope, x=_loss_curvature)


# ---- layer normalisation -----------------------------------------------------------------------
@primitive(aux=("mean", "scale"), promote="float")
def layer_norm_p(be: Any, x: Any, weight: Any = None, bias: Any = None, *, eps: float) -> Any:
    """x (n, d), weight and bias (d,) -> (n, d), and the mean and the scale of each row."""
    return be.layer_norm(x, weight, bias, eps)


@primitive
def layer_norm_grad_p(
    be: Any, dy: Any, x: Any, weight: Any = None, *, mean: Any, scale: Any, eps: float
) -> Any:
    """Gradient to x, for dy (n, d): (n, d). The Jacobian of a row is symmetric."""
    return be.layer_norm_grad(dy, x, weight, mean, scale)


@primitive
def layer_norm_weight_grad_p(be: Any, dy: Any, x: Any, *, mean: Any, scale: Any, eps: float) -> Any:
    """Gradient to the weight, for dy (n, d): (d,)."""
    return be.layer_norm_weight_grad(dy, x, mean, scale)


def _norm_x(g: Any, x: Any, weight: Any, mean: Any, scale: Any, eps: float) -> Any:
    return layer_norm_grad_p(g, x, weight, mean=mean, scale=scale, eps=eps)


def norm_curvature(
    g: Any, dy: Any, out: Any, x: Any, weight: Any, mean: Any, scale: Any, eps: float
) -> Any:
    """To x: through the normal values, and through their scale r."""
    h = dy if weight is None else dy * weight
    normal = layer_norm_p(x, eps=eps)
    centred = x - mean_p(x, axis=(1,), keepdims=True)
    r = rsqrt_p(mean_p(centred * centred, axis=(1,), keepdims=True) + eps)
    shared = g * mean_p(h * normal, axis=(1,), keepdims=True)
    shared = shared + h * mean_p(g * normal, axis=(1,), keepdims=True)
    through_normal = layer_norm_grad_p(-(r * shared), x, mean=mean, scale=scale, eps=eps)
    return through_normal - normal * (r * mean_p(g * out, axis=(1,), keepdims=True))


layer_norm_p.defvjp(
    x=_norm_x,
    weight=lambda g, x, mean, scale, eps: layer_norm_weight_grad_p(
        g, x, mean=mean, scale=scale, eps=eps
    ),
    bias=lambda g: g,
)
layer_norm_grad_p.defvjp(
    dy=lambda g, x, weight, mean, scale, eps: (
        _norm_x(g, x, None, mean, scale, eps)
        if weight is None
        else _norm_x(g, x, None, mean, scale, eps) * weight
    ),
    x=norm_curvature,
    weight=lambda g, dy, x, mean, scale, eps: dy * _norm_x(g, x, None, mean, scale, eps),
)
layer_norm_weight_grad_p.defvjp(
    dy=lambda g, x, eps: layer_norm_p(x, eps=eps) * g,
    x=lambda g, dy, x, mean, scale, eps: _norm_x(dy, x, g, mean, scale, eps),
)


# ---- public names ------------------------------------------------------------------------------
def linear(x: Any, weight: Any, bias: Any = None, activation: str | None = None) -> Any:
    """x @ weight.T + bias: x (*B, k), weight (m, k), bias (m,) or None -> (*B, m). x (n, k) or
    weight may be a SparseTensor; the result is dense, of two of them without a bias sparse.

    activation: the name of a function that follows, in the same pass as the bias; see `bias_act`.

    Raises ShapeError for sizes that do not fit, ValueError for another activation.

    >>> import sparsegrad as sg
    >>> sg.linear(sg.tensor([[1.0, 2.0]]), sg.tensor([[3.0, 4.0]]), sg.tensor([0.5]))
    tensor([[11.5]])
    """
    x, weight = as_argument("linear", x), as_argument("linear", weight)
    bias = None if bias is None else as_argument("linear", bias)
    if (
        weight.ndim != 2
        or x.ndim == 0
        or x.shape[-1] != weight.shape[1]
        or (bias is not None and tuple(bias.shape) != weight.shape[:1])
    ):
        raise ShapeError(
            f"linear: expected x (*B, k), weight (m, k) and bias (m,), got {tuple(x.shape)}, "
            f"{tuple(weight.shape)} and {bias if bias is None else tuple(bias.shape)}"
        )
    check_activation("linear", activation)
    if x._is_sparse or weight._is_sparse:
        return biased(x @ weight.T, bias, activation)
    rows = x if x.ndim == 2 else reshape_p(x, shape=(-1, x.shape[-1]))
    if activation is None:
        out = linear_p(rows, weight, bias)
    else:
        out = biased(linear_p(rows, weight), bias, activation)
    return out if x.ndim == 2 else reshape_p(out, shape=(*x.shape[:-1], weight.shape[0]))


def class_losses(
    op: str,
    logits: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int | None = None,
    smoothing: float = 0.0,
    reduction: str = "none",
) -> tuple[Any, Any]:
    """Losses (n,) of logits (n, C) with integer classes (n,), a tensor, checked here, or what they
    are reduced to; and how much each row counts in their mean (n,), an array, or None where each
    counts once: a mean is then over all n. weight (C,): a tensor without gradient."""
    xp, classes = backends.for_array(logits.data).xp, class_ids(op, target)
    width, left_out = logits.shape[1], None
    # On a GPU looking would be a wait.
    plain = xp is np and classes.size > 0 and classes.min() >= 0 and classes.max() < width
    if ignore_index is not None and (not plain or 0 <= ignore_index < width):
        left_out = classes == ignore_index
        if xp is np and not left_out.any():
            left_out = None
    if left_out is not None:
        check_classes(op, xp.where(left_out, 0, classes), width)
        classes = xp.where(left_out, -1, classes)
    elif not plain:
        check_classes(op, classes, width)
    factors = None
    if weight is not None:
        if weight.requires_grad:
            raise GraphError(f"{op}: weight is a constant, got a tensor that requires a gradient")
        factors = weight.data.astype(dtypes.accumulator(logits.dtype), copy=False)
    even = factors is None and left_out is None
    losses = cross_entropy_p(
        logits,
        classes=classes,
        weight=factors,
        smoothing=smoothing,
        reduction=reduction if even or reduction != "mean" else "sum",
    )
    if even:
        return losses, None
    counts = (classes >= 0).astype(losses.dtype)
    if factors is not None:
        counts = counts * factors[xp.where(classes < 0, 0, classes)]
    return losses, counts


def cross_entropy(logits: Any, target: Any, reduction: str = "mean") -> Any:
    """-log(softmax(logits)) of the true class: logits (n, C), target (n,) integer. Weights, soft
    targets and more: `sg.nn.functional.cross_entropy`.

    reduction: "mean", "sum", or "none" for shape (n,). Raises ShapeError for other shapes,
    DtypeError for classes that are no integers, IndexError for one outside [0, C).

    >>> import sparsegrad as sg
    >>> sg.cross_entropy(sg.tensor([[0.0, 0.0]]), sg.tensor([1]))
    tensor(0.6931472)
    """
    logits, target = as_argument("cross_entropy", logits), as_argument("cross_entropy", target)
    if logits._is_sparse:
        raise TypeError("cross_entropy: logits must be dense, got a SparseTensor")
    if logits.ndim != 2 or target.shape != logits.shape[:1]:
        raise ShapeError(
            f"cross_entropy: expected logits (n, C) and target (n,), got {logits.shape} and "
            f"{target.shape}"
        )
    check_reduction("cross_entropy", reduction)
    return class_losses("cross_entropy", logits, target, reduction=reduction)[0]


def layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions, x (*B, *D) ->
    same, with D = normalized_shape (or one int); weight and bias (*D) or None.

    Raises ShapeError for sizes that do not fit.

    >>> import sparsegrad as sg
    >>> sg.layer_norm(sg.tensor([[1.0, 3.0]]), 2, eps=0.0)
    tensor([[-1.,  1.]])
    """
    x = as_argument("layer_norm", x)
    sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    given = [p if p is None else as_argument("layer_norm", p) for p in (weight, bias)]
    if tuple(x.shape)[x.ndim - len(sizes) :] != sizes or len(sizes) > x.ndim or not sizes:
        raise ShapeError(f"layer_norm: expected x (..., {sizes}), got shape {tuple(x.shape)}")
    for name, p in zip(("weight", "bias"), given, strict=True):
        if p is not None and tuple(p.shape) != sizes:
            raise ShapeError(f"layer_norm: expected {name} {sizes}, got shape {tuple(p.shape)}")
    if x._is_sparse:
        raise TypeError("layer_norm: x must be dense, got a SparseTensor; write A.to_dense()")
    width, count = math.prod(sizes), math.prod(x.shape[: x.ndim - len(sizes)])
    flat = [p if p is None or len(sizes) == 1 else reshape_p(p, shape=(width,)) for p in given]
    rows = x if x.ndim == 2 and len(sizes) == 1 else reshape_p(x, shape=(count, width))
    out = layer_norm_p(rows, *flat, eps=eps)
    return out if rows is x else reshape_p(out, shape=x.shape)
