"""Normalisation over a batch, in groups of features, and by the root mean square."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import backends, dtypes
from sparsegrad.backends.quiet import quiet
from sparsegrad.engine.mode import no_grad
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError, memory_for
from sparsegrad.ops.fused import layer_norm_grad_p, layer_norm_p, norm_curvature
from sparsegrad.ops.reduce import mean_p, sum_p
from sparsegrad.ops.shape import as_argument, permute_p, reshape_p
from sparsegrad.ops.unary import rsqrt_p

__all__ = ["batch_norm", "group_norm", "instance_norm", "rms_norm"]


# ---- over a batch ------------------------------------------------------------------------------
# mean and scale (d,) are arrays: those of x, and the rules know that they move with it.
@primitive(promote="float")
def batch_norm_p(
    be: Any, x: Any, weight: Any = None, bias: Any = None, *, mean: Any, scale: Any, eps: float
) -> Any:
    """(x - mean) * scale * weight + bias: x (n, d) or (n, d, l), weight and bias (d,) -> same."""
    return be.batch_norm(x, weight, bias, mean, scale)


@primitive(outputs=("dx", "dw", "db"))
def batch_norm_grad_p(
    be: Any, dy: Any, x: Any, weight: Any = None, *, mean: Any, scale: Any, eps: float
) -> Any:
    """Gradients to x, weight and bias, for dy of the shape of x."""
    return be.batch_norm_grad(dy, x, weight, mean, scale)


def _batch_rule(
    g: Any, x: Any, weight: Any, mean: Any, scale: Any, eps: float, needs: tuple[bool, ...]
) -> Any:
    return batch_norm_grad_p(g, x, weight, mean=mean, scale=scale, eps=eps)


def _batch_slope(g: Any, x: Any, weight: Any, mean: Any, scale: Any, eps: float) -> Any:
    """To dy, in which all three gradients are linear."""
    given = {"mean": mean, "scale": scale, "eps": eps}
    return batch_norm_grad_p(g[0], x, weight, **given)[0] + batch_norm_p(x, g[1], g[2], **given)


def _batch_weight(g: Any, dy: Any, x: Any, mean: Any, scale: Any, eps: float) -> Any:
    to_x = batch_norm_grad_p(dy, x, mean=mean, scale=scale, eps=eps)[0]
    return sum_p(g[0] * to_x, axis=(0, *range(2, x.ndim)))


def _batch_curvature(
    g: Any, dy: Any, x: Any, weight: Any, mean: Any, scale: Any, eps: float
) -> Any:
    """To x: with a row for each channel it is that of `layer_norm`."""
    given = {"mean": mean, "scale": scale, "eps": eps}
    rows, back, up = (_by_channel(t) for t in (x, dy, g[0]))
    first = layer_norm_grad_p(back, rows, **given)
    curved = norm_curvature(up, back, first, rows, None, **given)
    if weight is not None:
        curved = curved * reshape_p(weight, shape=(-1, 1))
    return _from_channels(curved, x) + batch_norm_grad_p(dy, x, g[1], **given)[0]


def _by_channel(x: Any) -> Any:
    axes = (1, 0, *range(2, x.ndim))
    return reshape_p(permute_p(x, axes=axes), shape=(x.shape[1], -1))


def _from_channels(rows: Any, x: Any) -> Any:
    axes = (1, 0, *range(2, x.ndim))
    return permute_p(reshape_p(rows, shape=[x.shape[a] for a in axes]), axes=axes)


batch_norm_p.defvjp(("x", "weight", "bias"), _batch_rule)
batch_norm_grad_p.defvjp(dy=_batch_slope, x=_batch_curvature, weight=_batch_weight)


def batch_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """(x - mean) / sqrt(variance + eps) * weight + bias for each channel: x (N, C, *d) -> same;
    weight, bias, running_mean and running_var (C,), or None.

    training: with mean and variance of the batch over all but the channels, and the running ones,
        if they are given, become (1 - momentum) * running + momentum * new, in place, of the
        unbiased variance. Else with the running ones, which are then constants.

    Raises ShapeError for other sizes, ValueError for one number (or none) a channel in training,
    or nothing running otherwise.

    Ioffe and Szegedy, "Batch normalization: accelerating deep network training by reducing
    internal covariate shift", ICML 2015.

    >>> import sparsegrad as sg
    >>> sg.batch_norm(sg.tensor([[1.0], [3.0]]), training=True, eps=0.0)
    tensor([[-1.],
            [ 1.]])
    """
    stored = {"running_mean": running_mean, "running_var": running_var}
    x = _with_channels("batch_norm", x, **stored, weight=weight, bias=bias)
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm: running_mean and running_var are needed, got None")
        scale = rsqrt_p(running_var + eps)
        centred = x - _column(running_mean, x)
        return _scaled(centred, scale if weight is None else scale * weight, bias)
    count = x.numel() // max(1, x.shape[1])
    if count < 2:
        raise ValueError(
            f"batch_norm: a variance needs more than one row, got shape {tuple(x.shape)}"
        )
    flat = x if x.ndim <= 3 else reshape_p(x, shape=(*x.shape[:2], -1))
    be = backends.for_array(x.data)
    with quiet(), memory_for("batch_norm"):
        mean, variance = be.channel_moments(flat.data)
        scale = 1 / be.xp.sqrt(variance + variance.dtype.type(eps))
    out = batch_norm_p(flat, weight, bias, mean=mean, scale=scale, eps=eps)
    new = mean, variance * variance.dtype.type(count / (count - 1))
    with no_grad():
        for held, now in zip(stored.values(), new, strict=True):
            if held is not None:
                held.mul_(1 - momentum).add_(as_argument("batch_norm", now * momentum))
    return out if flat is x else reshape_p(out, shape=x.shape)


def _with_channels(op: str, x: Any, **each: Any) -> Any:
    """x (N, C, *d), a dense tensor; what each channel has one number of must be (C,)."""
    x = as_argument(op, x)
    if x._is_sparse:
        raise TypeError(f"{op}: x must be dense, got a SparseTensor; write A.to_dense()")
    if x.ndim < 2:
        raise ShapeError(f"{op}: expected x (N, C, *d), got shape {tuple(x.shape)}")
    for name, p in each.items():
        if p is not None and tuple(p.shape) != tuple(x.shape[1:2]):
            raise ShapeError(f"{op}: expected {name} ({x.shape[1]},), got shape {tuple(p.shape)}")
    return x


def _column(each: Any, x: Any) -> Any:
    """One number a channel, beside x."""
    return reshape_p(each, shape=(x.shape[1], *(1,) * (x.ndim - 2)))


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    out = x if weight is None else x * _column(weight, x)
    return out if bias is None else out + _column(bias, x)


# ---- over features -----------------------------------------------------------------------------
def group_norm(
    x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """(x - mean) / sqrt(variance + eps) over the channels of each of `num_groups` groups and all
    positions, of every example: x (N, C, *d) -> same; times weight (C,), plus bias (C,).

    Raises ShapeError for groups that do not divide the channels, or other sizes.

    Wu and He, "Group normalization", ECCV 2018.

    >>> import sparsegrad as sg
    >>> sg.group_norm(sg.tensor([[1.0, 3.0, 5.0, 5.0]]), 2, eps=0.5)[0, 2:]
    tensor([0., 0.])
    """
    return _grouped("group_norm", x, num_groups, weight, bias, eps)


def instance_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """`group_norm` with a group a channel: over the positions of x (N, C, *d) -> same.

    Ulyanov, Vedaldi and Lempitsky, "Instance normalization", 2016.

    >>> import sparsegrad as sg
    >>> sg.instance_norm(sg.tensor([[[1.0, 3.0]]]), eps=0.0)
    tensor([[[-1.,  1.]]])
    """
    x = as_argument("instance_norm", x)
    if x.ndim < 3:
        raise ShapeError(f"instance_norm: expected x (N, C, *d), got shape {tuple(x.shape)}")
    return _grouped("instance_norm", x, x.shape[1], weight, bias, eps)


def _grouped(op: str, x: Any, groups: int, weight: Any, bias: Any, eps: float) -> Any:
    x = _with_channels(op, x, weight=weight, bias=bias)
    if groups < 1 or x.shape[1] % groups:
        raise ShapeError(
            f"{op}: expected x (N, C, *d) with C a multiple of {groups}, got {tuple(x.shape)}"
        )
    n, channels = x.shape[:2]
    width = channels // groups * math.prod(x.shape[2:])
    out = layer_norm_p(reshape_p(x, shape=(n * groups, width)), eps=eps)
    return _scaled(reshape_p(out, shape=tuple(x.shape)), weight, bias)


def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """x / sqrt(mean(x²) + eps) * weight over the last dimensions, x (*B, *D) -> same, with D =
    normalized_shape (or one int) and weight (*D). eps: by default the precision of x.

    Raises ShapeError for sizes that do not fit.

    Zhang and Sennrich, "Root mean square layer normalization", NeurIPS 2019.

    >>> import sparsegrad as sg
    >>> sg.rms_norm(sg.tensor([[3.0, 3.0]]), 2, eps=0.0)
    tensor([[1., 1.]])
    """
    x = as_argument("rms_norm", x)
    sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not sizes or tuple(x.shape)[max(x.ndim - len(sizes), 0) :] != sizes:
        raise ShapeError(f"rms_norm: expected x (..., {sizes}), got shape {tuple(x.shape)}")
    if weight is not None and tuple(weight.shape) != sizes:
        raise ShapeError(f"rms_norm: expected weight {sizes}, got shape {tuple(weight.shape)}")
    axes = tuple(range(x.ndim - len(sizes), x.ndim))
    least = float(dtypes.finfo(x.dtype).eps) if eps is None else eps
    out = x * rsqrt_p(mean_p(x * x, axis=axes, keepdims=True) + least)
    return out if weight is None else out * weight
