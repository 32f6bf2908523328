"""Convolutions, pooling and what goes between them and a Linear, for dense inputs."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import create, ops
from sparsegrad.errors import ShapeError
from sparsegrad.nn import init
from sparsegrad.nn.module import Module
from sparsegrad.nn.parameter import Parameter
from sparsegrad.ops.window import each, margins

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "ConstantPad2d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Flatten",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReflectionPad2d",
    "ReplicationPad2d",
    "Unflatten",
    "Upsample",
    "ZeroPad2d",
]

_MODES = ("zeros", "reflect", "replicate", "circular")


class _Conv(Module):
    _dims: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        name, dims = type(self).__name__, self._dims
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{name}: groups must divide in_channels and out_channels, got {groups}, "
                f"{in_channels} and {out_channels}"
            )
        if padding_mode not in _MODES:
            raise ValueError(f"{name}: padding_mode must be one of {_MODES}, got {padding_mode!r}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = each(name, "kernel_size", kernel_size, dims, 1)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.padding_mode = padding_mode
        self.weight = Parameter(create.empty(*self._weight_shape(), dtype=dtype))
        if bias:
            self.bias = Parameter(create.empty(out_channels, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def _weight_shape(self) -> tuple[int, ...]:
        return (self.out_channels, self.in_channels // self.groups, *self.kernel_size)

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        fan_in = math.prod(self.weight.shape[1:])
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Any) -> Any:
        """(N, in_channels, *n) -> (N, out_channels, *o), with or without N."""
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = self._bordered(x), 0
        conv = (ops.conv1d, ops.conv2d, ops.conv3d)[self._dims - 1]
        return conv(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _bordered(self, x: Any) -> Any:
        name, dims = type(self).__name__, self._dims
        stride = each(name, "stride", self.stride, dims, 1)
        dilation = each(name, "dilation", self.dilation, dims, 1)
        sizes = margins(name, self.padding, self.kernel_size, stride, dilation)
        return ops.pad(x, sizes, mode=self.padding_mode)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1)):
            if getattr(self, name) != usual:
                text += f", {name}={getattr(self, name)}"
        return text if self.bias is not None else f"{text}, bias=False"


class Conv1d(_Conv):
    """Cross-correlation: x (N, in, n) or (in, n) -> (N, out, o); see `Conv2d`.

    >>> import sparsegrad as sg
    >>> sg.nn.Conv1d(2, 3, 4)(sg.ones(1, 2, 10)).shape
    (1, 3, 7)
    """

    _dims = 1


class Conv2d(_Conv):
    """Cross-correlation, as in PyTorch: x (N, in, h, w) or (in, h, w) -> (N, out, oh, ow).

    kernel_size, stride, padding, dilation: one number, or one a dimension; padding also "same" or
        "valid". groups: parts of the channels that do not mix. padding_mode: "zeros", "reflect",
        "replicate" or "circular".
    Weight (out, in / groups, kh, kw) and bias (out,) start uniform in ±1 / sqrt(in / groups kh kw),
    as in PyTorch. Raises ValueError for groups that do not divide the channels, ShapeError for
    sizes that do not fit.

    >>> import sparsegrad as sg
    >>> sg.nn.Conv2d(1, 8, 3, padding=1)(sg.ones(2, 1, 5, 5)).shape
    (2, 8, 5, 5)
    """

    _dims = 2


class Conv3d(_Conv):
    """Cross-correlation: x (N, in, d, h, w) or (in, d, h, w); see `Conv2d`.

    >>> import sparsegrad as sg
    >>> sg.nn.Conv3d(1, 2, 2)(sg.ones(1, 1, 3, 3, 3)).shape
    (1, 2, 2, 2, 2)
    """

    _dims = 3


# ---- its transpose -----------------------------------------------------------------------------
class _ConvTranspose(_Conv):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        dtype: Any = None,
    ) -> None:
        sizes = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        super().__init__(*sizes, bias=bias, dtype=dtype)
        self.output_padding = output_padding

    def _weight_shape(self) -> tuple[int, ...]:
        return (self.in_channels, self.out_channels // self.groups, *self.kernel_size)

    def forward(self, x: Any, output_size: Any = None) -> Any:
        """(N, in_channels, *n) -> (N, out_channels, *o), with or without N. output_size: o, which
        several sizes lead to where the stride is not 1."""
        op = (ops.conv_transpose1d, ops.conv_transpose2d, ops.conv_transpose3d)[self._dims - 1]
        more = self.output_padding if output_size is None else self._missing(x, output_size)
        given = (self.stride, self.padding, more, self.groups, self.dilation)
        return op(x, self.weight, self.bias, *given)

    def _missing(self, x: Any, output_size: Any) -> tuple[int, ...]:
        """The output_padding that leads to a size."""
        name, dims = type(self).__name__, self._dims
        step, cut, spread = (
            each(name, what, getattr(self, what), dims, least)
            for what, least in (("stride", 1), ("padding", 0), ("dilation", 1))
        )
        least = [
            (n - 1) * s - 2 * p + d * (k - 1) + 1
            for n, s, p, d, k in zip(
                x.shape[-dims:], step, cut, spread, self.kernel_size, strict=True
            )
        ]
        wanted = each(name, "output_size", tuple(output_size)[-dims:], dims, 1)
        more = tuple(o - n for o, n in zip(wanted, least, strict=True))
        if any(not 0 <= m < s for m, s in zip(more, step, strict=True)):
            raise ShapeError(
                f"{name}: output_size must lie in {least} to "
                f"{[n + s - 1 for n, s in zip(least, step, strict=True)]}, got {wanted}"
            )
        return more


class ConvTranspose1d(_ConvTranspose):
    """The transpose of `Conv1d`: x (N, in, n) or (in, n) -> (N, out, o); see `ConvTranspose2d`.

    >>> import sparsegrad as sg
    >>> sg.nn.ConvTranspose1d(2, 3, 4, stride=2)(sg.ones(1, 2, 5)).shape
    (1, 3, 12)
    """

    _dims = 1


class ConvTranspose2d(_ConvTranspose):
    """The transpose of `Conv2d`, as in PyTorch: x (N, in, h, w) or (in, h, w) -> (N, out, oh, ow);
    see `sg.conv_transpose2d`, which says how large.

    kernel_size, stride, padding, output_padding, dilation: one number, or one a dimension. groups:
        parts of the channels that do not mix.
    Weight (in, out / groups, kh, kw) and bias (out,) start uniform in ±1 / sqrt(out / groups kh
    kw), as in PyTorch. Raises ValueError for groups that do not divide the channels, ShapeError for
    sizes that do not fit.

    >>> import sparsegrad as sg
    >>> up = sg.nn.ConvTranspose2d(8, 1, 3, stride=2, padding=1)
    >>> up(sg.ones(2, 8, 5, 5)).shape, up(sg.ones(2, 8, 5, 5), output_size=(10, 10)).shape
    ((2, 1, 9, 9), (2, 1, 10, 10))
    """

    _dims = 2


class ConvTranspose3d(_ConvTranspose):
    """The transpose of `Conv3d`: x (N, in, d, h, w) or (in, d, h, w); see `ConvTranspose2d`.

    >>> import sparsegrad as sg
    >>> sg.nn.ConvTranspose3d(1, 2, 2)(sg.ones(1, 1, 2, 2, 2)).shape
    (1, 2, 3, 3, 3)
    """

    _dims = 3


# ---- pooling -----------------------------------------------------------------------------------
class _Pool(Module):
    """Calls `sg.<name>` with the arguments it was made with."""

    _op: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.args, self.kwargs = args, kwargs

    def forward(self, x: Any) -> Any:
        """(N, C, *n) -> (N, C, *o), with or without N."""
        return getattr(ops, self._op)(x, *self.args, **self.kwargs)

    def extra_repr(self) -> str:
        named = [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return ", ".join([*map(repr, self.args), *named])


class MaxPool1d(_Pool):
    """The largest element of each window: (N, C, n) -> (N, C, o); takes the arguments of
    `sg.max_pool1d`.

    >>> import sparsegrad as sg
    >>> sg.nn.MaxPool1d(2)(sg.ones(1, 2, 8)).shape
    (1, 2, 4)
    """

    _op = "max_pool1d"


class MaxPool2d(_Pool):
    """The largest element of each window: (N, C, h, w) -> (N, C, oh, ow); takes the arguments of
    `sg.max_pool2d`.

    >>> import sparsegrad as sg
    >>> sg.nn.MaxPool2d(3, stride=2, ceil_mode=True)(sg.ones(1, 2, 6, 6)).shape
    (1, 2, 3, 3)
    """

    _op = "max_pool2d"


class MaxPool3d(_Pool):
    """The largest element of each window: (N, C, d, h, w), smaller; takes the arguments of
    `sg.max_pool3d`.

    >>> import sparsegrad as sg
    >>> sg.nn.MaxPool3d(2)(sg.ones(1, 2, 4, 4, 4)).shape
    (1, 2, 2, 2, 2)
    """

    _op = "max_pool3d"


class AvgPool1d(_Pool):
    """The mean of each window: (N, C, n) -> (N, C, o); takes the arguments of `sg.avg_pool1d`.

    >>> import sparsegrad as sg
    >>> sg.nn.AvgPool1d(2)(sg.ones(1, 2, 8)).shape
    (1, 2, 4)
    """

    _op = "avg_pool1d"


class AvgPool2d(_Pool):
    """The mean of each window: (N, C, h, w) -> (N, C, oh, ow); takes the arguments of
    `sg.avg_pool2d`.

    >>> import sparsegrad as sg
    >>> sg.nn.AvgPool2d(2)(sg.ones(1, 2, 4, 4)).shape
    (1, 2, 2, 2)
    """

    _op = "avg_pool2d"


class AvgPool3d(_Pool):
    """The mean of each window: (N, C, d, h, w), smaller; takes the arguments of
    `sg.avg_pool3d`.

    >>> import sparsegrad as sg
    >>> sg.nn.AvgPool3d(2)(sg.ones(1, 2, 4, 4, 4)).shape
    (1, 2, 2, 2, 2)
    """

    _op = "avg_pool3d"


class AdaptiveAvgPool1d(_Pool):
    """Means of as many windows as asked for: (N, C, n) -> (N, C, output_size); see
    `sg.adaptive_avg_pool1d`.

    >>> import sparsegrad as sg
    >>> sg.nn.AdaptiveAvgPool1d(3)(sg.ones(1, 2, 7)).shape
    (1, 2, 3)
    """

    _op = "adaptive_avg_pool1d"


class AdaptiveAvgPool2d(_Pool):
    """Means of as many windows as asked for: (N, C, h, w) -> (N, C, *output_size); see
    `sg.adaptive_avg_pool2d`.

    >>> import sparsegrad as sg
    >>> sg.nn.AdaptiveAvgPool2d((1, None))(sg.ones(3, 2, 5, 7)).shape
    (3, 2, 1, 7)
    """

    _op = "adaptive_avg_pool2d"


class AdaptiveMaxPool1d(_Pool):
    """The largest elements of as many windows as asked for: (N, C, n) -> (N, C, output_size); see
    `sg.adaptive_max_pool1d`.

    >>> import sparsegrad as sg
    >>> sg.nn.AdaptiveMaxPool1d(3)(sg.ones(1, 2, 7)).shape
    (1, 2, 3)
    """

    _op = "adaptive_max_pool1d"


class AdaptiveMaxPool2d(_Pool):
    """The largest elements of as many windows as asked for: (N, C, h, w) -> (N, C, *output_size);
    see `sg.adaptive_max_pool2d`.

    >>> import sparsegrad as sg
    >>> sg.nn.AdaptiveMaxPool2d(2)(sg.ones(1, 2, 5, 7)).shape
    (1, 2, 2, 2)
    """

    _op = "adaptive_max_pool2d"


# ---- sizes -------------------------------------------------------------------------------------
class Upsample(_Pool):
    """In another size: (N, C, *n) -> (N, C, *o); takes the arguments of `sg.interpolate`.

    >>> import sparsegrad as sg
    >>> sg.nn.Upsample(scale_factor=2)(sg.ones(1, 2, 3, 4)).shape
    (1, 2, 6, 8)
    """

    _op = "interpolate"


class PixelShuffle(_Pool):
    """Channels spread over space: (*B, C r², h, w) -> (*B, C, h r, w r).

    >>> import sparsegrad as sg
    >>> sg.nn.PixelShuffle(2)(sg.ones(4, 3, 3)).shape
    (1, 6, 6)
    """

    _op = "pixel_shuffle"


class PixelUnshuffle(_Pool):
    """The inverse of `PixelShuffle`: (*B, C, h r, w r) -> (*B, C r², h, w).

    >>> import sparsegrad as sg
    >>> sg.nn.PixelUnshuffle(2)(sg.ones(1, 6, 6)).shape
    (4, 3, 3)
    """

    _op = "pixel_unshuffle"


class _Pad(Module):
    """Borders of `sg.pad`; one number for all sides, or (left, right, top, bottom)."""

    _mode, _sides = "constant", 4

    def __init__(self, padding: Any, value: float = 0.0) -> None:
        super().__init__()
        sides = (padding,) * self._sides if isinstance(padding, int) else tuple(padding)
        self.padding, self.value = sides, value

    def forward(self, x: Any) -> Any:
        """(*B, h, w) -> the same with borders."""
        return ops.pad(x, self.padding, self._mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ConstantPad2d(_Pad):
    """Borders of one value: padding, a number or (left, right, top, bottom), and the value.

    >>> import sparsegrad as sg
    >>> sg.nn.ConstantPad2d((1, 0, 0, 0), 7.0)(sg.zeros(1, 1, 2))
    tensor([[[7., 0., 0.]]])
    """


class ZeroPad2d(_Pad):
    """Borders of zeros: padding, a number or (left, right, top, bottom).

    >>> import sparsegrad as sg
    >>> sg.nn.ZeroPad2d((1, 0, 2, 0))(sg.ones(1, 1, 3, 3)).shape
    (1, 1, 5, 4)
    """


class ReflectionPad2d(_Pad):
    """Borders that mirror the inside, without the outermost elements.

    >>> import sparsegrad as sg
    >>> sg.nn.ReflectionPad2d((2, 0, 0, 0))(sg.tensor([[[1.0, 2.0, 3.0]]]))
    tensor([[[3., 2., 1., 2., 3.]]])
    """

    _mode = "reflect"


class ReplicationPad2d(_Pad):
    """Borders of the outermost elements.

    >>> import sparsegrad as sg
    >>> sg.nn.ReplicationPad2d((2, 0, 0, 0))(sg.tensor([[[1.0, 2.0]]]))
    tensor([[[1., 1., 1., 2.]]])
    """

    _mode = "replicate"


# ---- shapes ------------------------------------------------------------------------------------
class Flatten(Module):
    """Dimensions start_dim to end_dim in one: (N, C, h, w) -> (N, C h w) by default.

    >>> import sparsegrad as sg
    >>> sg.nn.Flatten()(sg.ones(2, 3, 4)).shape
    (2, 12)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Any) -> Any:
        """The same elements in fewer dimensions."""
        return ops.flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Dimension `dim` as several of sizes `unflattened_size`, one of which may be -1.

    >>> import sparsegrad as sg
    >>> sg.nn.Unflatten(1, (3, -1))(sg.ones(2, 12)).shape
    (2, 3, 4)
    """

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, x: Any) -> Any:
        """The same elements in more dimensions."""
        return ops.unflatten(x, self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
