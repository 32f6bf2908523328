"""Convolution: windows as strided views, one matrix product.

`windows_p` looks at one axis through a sliding window, `fold_p` adds windows back; each is the
other's gradient. Several dimensions are one after the other.
"""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError
from sparsegrad.ops.dense_matmul import matmul_p
from sparsegrad.ops.rearrange import pad
from sparsegrad.ops.shape import permute_p, reshape_p, slice_p, squeeze, unsqueeze

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]


# ---- one axis ----------------------------------------------------------------------------------
@primitive(promote="none")
def windows_p(xp: Any, x: Any, *, axis: int, size: int, stride: int, dilation: int) -> Any:
    """(..., n, ...) -> (..., o, ..., size): element k of window i is x[i * stride + k * dilation].
    A view."""
    count = (x.shape[axis] - dilation * (size - 1) - 1) // stride + 1
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
    step = x.strides[axis]
    strides = (*x.strides[:axis], step * stride, *x.strides[axis + 1 :], step * dilation)
    return xp.lib.stride_tricks.as_strided(x, shape, strides)


@primitive(promote="none")
def fold_p(xp: Any, x: Any, *, axis: int, n: int, stride: int, dilation: int) -> Any:
    """The transpose of `windows_p`: windows (..., o, ..., size) added up to (..., n, ...). 16 bits
    are added in float32."""
    shape = (*x.shape[:axis], n, *x.shape[axis + 1 : -1])
    out = xp.zeros(shape, dtype=dtypes.accumulator(x.dtype))
    span = (x.shape[axis] - 1) * stride + 1
    for k in range(x.shape[-1]):
        start = k * dilation
        out[(slice(None),) * axis + (slice(start, start + span, stride),)] += x[..., k]
    return out.astype(x.dtype, copy=False)


windows_p.defvjp(
    x=lambda g, x_meta, axis, stride, dilation: fold_p(
        g, axis=axis, n=x_meta.shape[axis], stride=stride, dilation=dilation
    )
)
fold_p.defvjp(
    x=lambda g, x_meta, axis, stride, dilation: windows_p(
        g, axis=axis, size=x_meta.shape[-1], stride=stride, dilation=dilation
    )
)


# ---- arguments ---------------------------------------------------------------------------------
def each(op: str, name: str, value: Any, dims: int, least: int) -> tuple[int, ...]:
    """One number for all spatial dimensions, or one for each."""
    values = (value,) * dims if isinstance(value, int) else tuple(value)
    if len(values) == 1:
        values *= dims
    if len(values) != dims or any(not isinstance(v, int) or v < least for v in values):
        raise ShapeError(
            f"{op}: {name} must be an integer of at least {least}, or {dims} of them; got {value!r}"
        )
    return values


def batched(op: str, x: Any, dims: int) -> tuple[Any, bool]:
    if getattr(x, "_is_sparse", False):
        raise TypeError(f"{op}: needs a dense input, got a SparseTensor of shape {x.shape}")
    if x.ndim not in (dims + 1, dims + 2):
        raise ShapeError(
            f"{op}: expected (N, C, {dims} sizes) or (C, {dims} sizes), got shape {tuple(x.shape)}"
        )
    return (x, True) if x.ndim == dims + 2 else (unsqueeze(x, 0), False)


def windows(
    op: str, x: Any, sizes: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> Any:
    """(N, C, *n) -> (N, C, *o, *sizes)."""
    for i, (size, step, spread) in enumerate(zip(sizes, stride, dilation, strict=True)):
        if x.shape[2 + i] < spread * (size - 1) + 1:
            raise ShapeError(
                f"{op}: a kernel of {size} with dilation {spread} does not fit the (padded) size "
                f"{x.shape[2 + i]}"
            )
        x = windows_p(x, axis=2 + i, size=size, stride=step, dilation=spread)
    return x


# ---- convolution -------------------------------------------------------------------------------
def _conv(
    op: str,
    dims: int,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Any:
    x, with_batch = batched(op, x, dims)
    filters = _filters(op, weight, bias, dims, groups, "F")
    depth, *sizes = weight.shape[1:]
    if x.shape[1] != depth * groups:
        raise ShapeError(
            f"{op}: input has {x.shape[1]} channels, weight {tuple(weight.shape)} with groups = "
            f"{groups} needs {depth * groups}"
        )
    stride = each(op, "stride", stride, dims, 1)
    dilation = each(op, "dilation", dilation, dims, 1)
    x = pad(x, margins(op, padding, sizes, stride, dilation))
    # (N, G * C, *o, *sizes) -> (G, N * o, C * sizes): the only copy.
    cut = windows(op, x, sizes, stride, dilation)
    n, spots = x.shape[0], cut.shape[2 : 2 + dims]
    cut = reshape_p(cut, shape=(n, groups, depth, *spots, *sizes))
    o, k = tuple(range(3, 3 + dims)), tuple(range(3 + dims, 3 + 2 * dims))
    cut = permute_p(cut, axes=(1, 0, *o, 2, *k))
    width = depth * math.prod(sizes)
    cut = reshape_p(cut, shape=(groups, n * math.prod(spots), width))
    kernel = reshape_p(weight, shape=(groups, filters // groups, width))
    out = matmul_p(cut, permute_p(kernel, axes=(0, 2, 1)))
    out = reshape_p(out, shape=(groups, n, *spots, filters // groups))
    out = permute_p(out, axes=(1, 0, 2 + dims, *range(2, 2 + dims)))
    out = reshape_p(out, shape=(n, filters, *spots))
    if bias is not None:
        out = out + reshape_p(bias, shape=(filters, *(1,) * dims))
    return out if with_batch else squeeze(out, 0)


def _filters(op: str, weight: Any, bias: Any, dims: int, groups: int, first: str) -> int:
    """How many filters F there are; `first`: whether weight begins with F or with channels C."""
    second = "C" if first == "F" else "F"
    if weight.ndim != dims + 2 or groups < 1 or weight.shape[0] % groups:
        raise ShapeError(
            f"{op}: expected weight ({first}, {second} / groups, {dims} sizes) with {first} a "
            f"multiple of groups = {groups}, got {tuple(weight.shape)}"
        )
    filters: int = weight.shape[0] if first == "F" else weight.shape[1] * groups
    if bias is not None and tuple(bias.shape) != (filters,):
        raise ShapeError(f"{op}: expected bias ({filters},), got shape {tuple(bias.shape)}")
    return filters


def margins(
    op: str, padding: Any, sizes: Any, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    """A `padding`, numbers, "same" or "valid", as the argument of `pad`: (before, after) of the
    last dimension first."""
    if padding == "valid":
        padding = 0
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ValueError(f"{op}: padding='same' needs stride 1, got {stride}")
        total = [d * (k - 1) for d, k in zip(dilation, sizes, strict=True)]
        return tuple(m for t in reversed(total) for m in (t // 2, t - t // 2))
    if isinstance(padding, str):
        raise ValueError(f"{op}: padding must be numbers, 'same' or 'valid', got {padding!r}")
    return tuple(p for p in reversed(each(op, "padding", padding, len(sizes), 0)) for _ in "ab")


def conv1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Cross-correlation: x (N, C, n) or (C, n), weight (F, C / groups, k), bias (F,) -> (N, F, o);
    arguments as in `conv2d`.

    >>> import sparsegrad as sg
    >>> sg.conv1d(sg.tensor([[1.0, 2.0, 4.0]]), sg.tensor([[[1.0, 1.0]]]))
    tensor([[3., 6.]])
    """
    return _conv("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Cross-correlation, as in PyTorch: x (N, C, h, w) or (C, h, w), weight (F, C / groups, kh,
    kw), bias (F,) -> (N, F, oh, ow).

    stride, padding, dilation: one number, or one a dimension; padding also "same" (stride 1) or
        "valid".
    The windows are copied once (N * oh * ow * C * kh * kw elements) and multiplied in one product.
    Raises ShapeError for sizes that do not fit.

    >>> import sparsegrad as sg
    >>> sg.conv2d(sg.ones(1, 1, 3, 3), sg.ones(1, 1, 2, 2)).tolist()
    [[[[4.0, 4.0], [4.0, 4.0]]]]
    """
    return _conv("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Cross-correlation over three dimensions; arguments as in `conv2d`.

    >>> import sparsegrad as sg
    >>> sg.conv3d(sg.ones(1, 1, 2, 2, 2), sg.ones(1, 1, 2, 2, 2)).item()
    8.0
    """
    return _conv("conv3d", 3, x, weight, bias, stride, padding, dilation, groups)


# ---- its transpose -----------------------------------------------------------------------------
def _conv_transpose(
    op: str,
    dims: int,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Any:
    x, with_batch = batched(op, x, dims)
    filters = _filters(op, weight, bias, dims, groups, "C")
    n, channels, *spots = x.shape
    if channels != weight.shape[0]:
        raise ShapeError(
            f"{op}: input has {channels} channels, weight {tuple(weight.shape)} needs "
            f"{weight.shape[0]}"
        )
    each_filter, *sizes = weight.shape[1:]
    stride = each(op, "stride", stride, dims, 1)
    dilation = each(op, "dilation", dilation, dims, 1)
    cut = each(op, "padding", padding, dims, 0)
    more = each(op, "output_padding", output_padding, dims, 0)
    if any(m >= max(s, d) for m, s, d in zip(more, stride, dilation, strict=True)):
        raise ShapeError(
            f"{op}: output_padding must be smaller than stride or dilation, got {more}, {stride} "
            f"and {dilation}"
        )
    # (G, N * o, C / G) @ (G, C / G, F / G * sizes): what each input adds to its window.
    rows = reshape_p(x, shape=(n, groups, channels // groups, math.prod(spots)))
    rows = permute_p(rows, axes=(1, 0, 3, 2))
    rows = reshape_p(rows, shape=(groups, n * math.prod(spots), channels // groups))
    width = each_filter * math.prod(sizes)
    kernel = reshape_p(weight, shape=(groups, channels // groups, width))
    out = reshape_p(matmul_p(rows, kernel), shape=(groups, n, *spots, each_filter, *sizes))
    o, k = tuple(range(2, 2 + dims)), tuple(range(3 + dims, 3 + 2 * dims))
    out = permute_p(out, axes=(1, 0, 2 + dims, *o, *k))
    out = reshape_p(out, shape=(n, filters, *spots, *sizes))
    for i in reversed(range(dims)):  # the last dimension belongs to axis i
        whole = (spots[i] - 1) * stride[i] + dilation[i] * (sizes[i] - 1) + 1 + more[i]
        if whole <= 2 * cut[i]:
            raise ShapeError(f"{op}: padding {cut} leaves nothing of a size of {whole}")
        out = fold_p(out, axis=2 + i, n=whole, stride=stride[i], dilation=dilation[i])
        out = slice_p(out, axis=2 + i, start=cut[i], stop=whole - cut[i])
    if bias is not None:
        out = out + reshape_p(bias, shape=(filters, *(1,) * dims))
    return out if with_batch else squeeze(out, 0)


def conv_transpose1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """The transpose of `conv1d`: x (N, C, n) or (C, n), weight (C, F / groups, k), bias (F,) ->
    (N, F, o); see `conv_transpose2d`.

    >>> import sparsegrad as sg
    >>> sg.conv_transpose1d(sg.tensor([[1.0, 2.0]]), sg.tensor([[[1.0, 10.0]]]))
    tensor([[ 1., 12., 20.]])
    """
    given = (x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _conv_transpose("conv_transpose1d", 1, *given)


def conv_transpose2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """The transpose of `conv2d`, as in PyTorch: x (N, C, h, w) or (C, h, w), weight (C, F / groups,
    kh, kw), bias (F,) -> (N, F, oh, ow), oh = (h - 1) stride - 2 padding + dilation (kh - 1) + 1 +
    output_padding.

    One product, and a sum of windows. Raises ShapeError for sizes that do not fit.

    >>> import sparsegrad as sg
    >>> sg.conv_transpose2d(sg.ones(1, 1, 2, 2), sg.ones(1, 1, 2, 2), stride=2).shape
    (1, 1, 4, 4)
    """
    given = (x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _conv_transpose("conv_transpose2d", 2, *given)


def conv_transpose3d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """The transpose of `conv3d`; see `conv_transpose2d`.

    >>> import sparsegrad as sg
    >>> sg.conv_transpose3d(sg.ones(1, 1, 1, 1, 1), sg.ones(1, 2, 2, 2, 2)).shape
    (1, 2, 2, 2, 2)
    """
    given = (x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _conv_transpose("conv_transpose3d", 3, *given)
