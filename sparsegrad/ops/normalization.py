"""Normalisation in groups of features, and by the root mean square."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import dtypes
from sparsegrad.errors import ShapeError
from sparsegrad.ops.fused import layer_norm_p
from sparsegrad.ops.reduce import mean_p
from sparsegrad.ops.shape import as_argument, reshape_p
from sparsegrad.ops.unary import rsqrt_p

__all__ = ["group_norm", "instance_norm", "rms_norm"]


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
    x = as_argument(op, x)
    if x._is_sparse:
        raise TypeError(f"{op}: x must be dense, got a SparseTensor; write A.to_dense()")
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ShapeError(
            f"{op}: expected x (N, C, *d) with C a multiple of {groups}, got {tuple(x.shape)}"
        )
    for name, p in (("weight", weight), ("bias", bias)):
        if p is not None and tuple(p.shape) != tuple(x.shape[1:2]):
            raise ShapeError(f"{op}: expected {name} ({x.shape[1]},), got shape {tuple(p.shape)}")
    n, channels = x.shape[:2]
    width = channels // groups * math.prod(x.shape[2:])
    out = layer_norm_p(reshape_p(x, shape=(n * groups, width)), eps=eps)
    out = reshape_p(out, shape=tuple(x.shape))
    each = (channels, *(1,) * (x.ndim - 2))
    out = out if weight is None else out * reshape_p(weight, shape=each)
    return out if bias is None else out + reshape_p(bias, shape=each)


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
