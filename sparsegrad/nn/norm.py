"""Normalisation of features."""

from __future__ import annotations

from typing import Any

from sparsegrad import create, ops
from sparsegrad.engine.mode import no_grad
from sparsegrad.errors import ShapeError
from sparsegrad.nn import init
from sparsegrad.nn.layers import check_width
from sparsegrad.nn.module import Module
from sparsegrad.nn.parameter import Parameter
from sparsegrad.tensor import Tensor

__all__ = ["BatchNorm1d", "BatchNorm2d", "LayerNorm"]


class _Norm(Module):
    """A scale and a shift, (d,) each, that start as ones and zeros."""

    def __init__(self, features: int, eps: float, affine: bool, bias: bool, dtype: Any) -> None:
        super().__init__()
        if not eps >= 0:
            raise ValueError(f"{type(self).__name__}: eps must be >= 0, got {eps}")
        self.features, self.eps = features, eps
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            held = Parameter(create.empty(features, dtype=dtype)) if wanted else None
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

    def extra_repr(self) -> str:
        return f"{self.features}, eps={self.eps}"


class LayerNorm(_Norm):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension, (*B, d) -> same.

    affine: whether there are weight and bias (d,); bias: whether there is a bias.

    Raises ShapeError for an input whose last dimension is not `features`.

    Ba, Kiros and Hinton, "Layer normalization", 2016.

    >>> import sparsegrad as sg
    >>> sg.nn.LayerNorm(2, eps=0)(sg.tensor([[1.0, 3.0]]))
    tensor([[-1.,  1.]], grad_fn=<layer_norm>)
    """

    def __init__(
        self,
        features: int,
        eps: float = 1e-5,
        affine: bool = True,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__(features, eps, affine, bias, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x (*B, d) -> (*B, d)."""
        check_width("LayerNorm", x, self.features)
        return ops.layer_norm(x, self.features, self.weight, self.bias, self.eps)


class BatchNorm1d(_Norm):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the rows of x (n, d), or over n and l
    of x (n, d, l), for each of the d features; same shape.

    In training mode with mean and (biased) variance of the batch, which also move the buffers
    `running_mean` and (unbiased) `running_var`: r = (1 - momentum) r + momentum * new; with
    momentum None they are the averages of all batches. In evaluation mode with the buffers.

    track: False keeps no buffers and always uses those of the batch.

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
        features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__(features, eps, affine, True, dtype)
        self.momentum, self.track = momentum, track
        self.register_buffer("running_mean", create.zeros(features, dtype=dtype) if track else None)
        self.register_buffer("running_var", create.ones(features, dtype=dtype) if track else None)
        self.register_buffer("num_batches", create.zeros((), dtype="int64") if track else None)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, d) or (n, d, l) -> same."""
        name, d = type(self).__name__, self.features
        if x.ndim not in self._ndims or x.shape[1] != d:
            shapes = self._shapes.format(d=d)
            raise ShapeError(f"{name}: expected x {shapes}, got shape {tuple(x.shape)}")
        flat = x if x.ndim == 2 else ops.movedim(x, 1, -1)  # features last: the rest broadcasts
        axes = tuple(range(flat.ndim - 1))
        if self.training or not self.track:
            count = flat.numel() // max(1, self.features)
            if count < 2:
                raise ValueError(
                    f"{name}: a variance needs more than one row, got shape {tuple(x.shape)}"
                )
            mean = ops.mean(flat, axes)
            centred = flat - mean
            variance = ops.mean(centred * centred, axes)
            if self.training and self.track:
                self._remember(mean, variance * (count / (count - 1)))
        else:
            centred, variance = flat - self.running_mean, self.running_var
        out = self._scaled(centred * ops.rsqrt(variance + self.eps))
        return out if x.ndim == 2 else ops.movedim(out, -1, 1)

    _ndims: tuple[int, ...] = (2, 3)
    _shapes = "(n, {d}) or (n, {d}, l)"

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        with no_grad():
            self.num_batches.add_(1)
            share = 1 / self.num_batches.item() if self.momentum is None else self.momentum
            for held, new in ((self.running_mean, mean), (self.running_var, variance)):
                held.mul_(1 - share).add_(new.detach() * share)


class BatchNorm2d(BatchNorm1d):
    """`BatchNorm1d` over n, h and w of x (n, d, h, w), for each of the d features; same shape.

    >>> import sparsegrad as sg
    >>> sg.nn.BatchNorm2d(3)(sg.randn(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    _ndims = (4,)
    _shapes = "(n, {d}, h, w)"
