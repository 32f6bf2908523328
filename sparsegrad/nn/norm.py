"""Normalisation of features."""

from __future__ import annotations

from typing import Any

from sparsegrad import create, ops
from sparsegrad.errors import ShapeError
from sparsegrad.nn import init
from sparsegrad.nn.layers import check_tensor
from sparsegrad.nn.module import Module
from sparsegrad.nn.parameter import Parameter
from sparsegrad.tensor import Tensor

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "LayerNorm",
    "RMSNorm",
]


class _Norm(Module):
    """A scale and a shift, of one shape, that start as ones and zeros."""

    def __init__(
        self, shape: tuple[int, ...], eps: float, affine: bool, bias: bool, dtype: Any
    ) -> None:
        super().__init__()
        if not eps >= 0:
            raise ValueError(f"{type(self).__name__}: eps must be >= 0, got {eps}")
        self.eps: Any = eps
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            held = Parameter(create.empty(*shape, dtype=dtype)) if wanted else None
            self.register_parameter(name, held)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1 and shift 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _scaled(self, x: Tensor) -> Tensor:
        if self.weight is not None:
            x = x * self.weight
        return x if self.bias is None else x + self.bias


class LayerNorm(_Norm):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions, (*B, *D) -> same.

    normalized_shape: D, or its one size. elementwise_affine: whether there are weight and bias
        (*D); bias: whether there is a bias.

    Raises ShapeError for an input whose last dimensions are not D.

    Ba, Kiros and Hinton, "Layer normalization", 2016.

    >>> import sparsegrad as sg
    >>> sg.nn.LayerNorm(2, eps=0)(sg.tensor([[1.0, 3.0]]))
    tensor([[-1.,  1.]], grad_fn=<layer_norm>)
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        one = isinstance(normalized_shape, int)
        shape = (normalized_shape,) if one else tuple(normalized_shape)
        super().__init__(shape, eps, elementwise_affine, bias, dtype)
        self.normalized_shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """x (*B, *D) -> (*B, *D)."""
        shape = self.normalized_shape
        check_tensor("LayerNorm", x)
        if tuple(x.shape[-len(shape) :]) != shape:
            sizes = ", ".join(str(n) for n in shape)
            raise ShapeError(f"LayerNorm: expected x (..., {sizes}), got shape {tuple(x.shape)}")
        return ops.layer_norm(x, shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class RMSNorm(_Norm):
    """x / sqrt(mean(x²) + eps) * weight over the last dimensions, (*B, *D) -> same; see
    `sg.rms_norm`.

    normalized_shape: D, or its one size. eps: None for the precision of x. elementwise_affine:
        whether there is a weight (*D).

    >>> import sparsegrad as sg
    >>> sg.nn.RMSNorm(2, eps=0.0)(sg.tensor([[3.0, 3.0]])).tolist()
    [[1.0, 1.0]]
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        dtype: Any = None,
    ) -> None:
        one = isinstance(normalized_shape, int)
        shape = (normalized_shape,) if one else tuple(normalized_shape)
        super().__init__(shape, 0.0 if eps is None else eps, elementwise_affine, False, dtype)
        self.normalized_shape, self.eps = shape, eps

    def forward(self, x: Tensor) -> Tensor:
        """x (*B, *D) -> (*B, *D)."""
        return ops.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class GroupNorm(_Norm):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the channels of each of `num_groups`
    groups and all positions: x (N, C, *d) -> same; see `sg.group_norm`.

    affine: whether there are weight and bias (C,).

    Raises ValueError for groups that do not divide the channels.

    >>> import sparsegrad as sg
    >>> sg.nn.GroupNorm(2, 4)(sg.randn(3, 4, 5)).shape
    (3, 4, 5)
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        dtype: Any = None,
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: num_groups must divide num_channels, got {num_groups} and "
                f"{num_channels}"
            )
        super().__init__((num_channels,), eps, affine, True, dtype)
        self.num_groups, self.num_channels = num_groups, num_channels

    def forward(self, x: Tensor) -> Tensor:
        """x (N, C, *d) -> same."""
        check_tensor("GroupNorm", x)
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(
                f"GroupNorm: expected x (N, {self.num_channels}, ...), got shape {tuple(x.shape)}"
            )
        return ops.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


class InstanceNorm1d(_Norm):
    """(x - mean) / sqrt(variance + eps) over the positions of each channel, x (N, C, l) -> same;
    see `sg.instance_norm`. affine: times a weight (C,), plus a bias (C,).

    Raises ShapeError for another number of dimensions or channels.

    >>> import sparsegrad as sg
    >>> sg.nn.InstanceNorm1d(2)(sg.randn(3, 2, 5)).shape
    (3, 2, 5)
    """

    _ndim = 3

    def __init__(
        self, num_features: int, eps: float = 1e-5, affine: bool = False, dtype: Any = None
    ) -> None:
        super().__init__((num_features,), eps, affine, True, dtype)
        self.num_features = num_features

    def forward(self, x: Tensor) -> Tensor:
        """x (N, C, *d) -> same."""
        check_tensor(type(self).__name__, x)
        if x.ndim != self._ndim or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: expected {self._ndim} dimensions and "
                f"{self.num_features} channels, got shape {tuple(x.shape)}"
            )
        return ops.instance_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}"


class InstanceNorm2d(InstanceNorm1d):
    """`InstanceNorm1d` for x (N, C, h, w).

    >>> import sparsegrad as sg
    >>> sg.nn.InstanceNorm2d(2)(sg.randn(3, 2, 5, 5)).shape
    (3, 2, 5, 5)
    """

    _ndim = 4


class BatchNorm1d(_Norm):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the rows of x (n, d), or over n and l
    of x (n, d, l), for each of the d features; same shape.

    In training mode with mean and (biased) variance of the batch, which also move the buffers
    `running_mean` and (unbiased) `running_var`: r = (1 - momentum) r + momentum * new; with
    momentum None they are the averages of all batches. In evaluation mode with the buffers.

    track_running_stats: False keeps no buffers and always uses those of the batch.

    Raises ShapeError for another shape, and ValueError for one row (or less) in training mode.

    Ioffe and Szegedy, "Batch normalization: accelerating deep network training by reducing
    internal covariate shift", ICML 2015.

    >>> import sparsegrad as sg
    >>> norm = sg.nn.BatchNorm1d(1, eps=0, affine=False)
    >>> norm(sg.tensor([[1.0], [3.0]])), norm.running_mean, norm.running_var
    (tensor([[-1.],
            [ 1.]]), tensor([0.2]), tensor([1.1]))
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__((num_features,), eps, affine, True, dtype)
        self.num_features, self.momentum = num_features, momentum
        self.track_running_stats = track_running_stats
        held: dict[str, Any] = {
            "running_mean": create.zeros(num_features, dtype=dtype),
            "running_var": create.ones(num_features, dtype=dtype),
            "num_batches_tracked": create.zeros((), dtype="int64"),
        }
        for name, buffer in held.items():
            self.register_buffer(name, buffer if track_running_stats else None)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, d) or (n, d, l) -> same."""
        name, d = type(self).__name__, self.num_features
        check_tensor(name, x)
        if x.ndim not in self._ndims or x.shape[1] != d:
            shapes = self._shapes.format(d=d)
            raise ShapeError(f"{name}: expected x {shapes}, got shape {tuple(x.shape)}")
        tracked = self.track_running_stats
        counted = self.training and tracked
        share = self.momentum
        if share is None:
            share = 1 / (self.num_batches_tracked.item() + 1) if counted else 0.0
        stored: tuple[Any, Any] = (self.running_mean, self.running_var) if tracked else (None, None)
        batch = self.training or not tracked
        out = ops.batch_norm(x, *stored, self.weight, self.bias, batch, share, self.eps)
        if counted:
            self.num_batches_tracked.add_(1)
        return out

    _ndims: tuple[int, ...] = (2, 3)
    _shapes = "(n, {d}) or (n, {d}, l)"

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class BatchNorm2d(BatchNorm1d):
    """`BatchNorm1d` over n, h and w of x (n, d, h, w), for each of the d features; same shape.

    >>> import sparsegrad as sg
    >>> sg.nn.BatchNorm2d(3)(sg.randn(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    _ndims = (4,)
    _shapes = "(n, {d}, h, w)"


class BatchNorm3d(BatchNorm1d):
    """`BatchNorm1d` over n and three dimensions of x (n, d, t, h, w), for each of the d features.

    >>> import sparsegrad as sg
    >>> sg.nn.BatchNorm3d(3)(sg.randn(2, 3, 2, 4, 4)).shape
    (2, 3, 2, 4, 4)
    """

    _ndims = (5,)
    _shapes = "(n, {d}, t, h, w)"
