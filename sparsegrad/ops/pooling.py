"""Pooling: the largest element or the mean of windows, PyTorch's rules at the borders."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsegrad import backends, dtypes
from sparsegrad.errors import ShapeError
from sparsegrad.ops.dense_matmul import matmul_p
from sparsegrad.ops.elementwise import cast
from sparsegrad.ops.rearrange import pad
from sparsegrad.ops.reduce import argmax_p, max_p, mean_p, sum_p
from sparsegrad.ops.scattering import gather_p
from sparsegrad.ops.shape import reshape_p, squeeze, transpose
from sparsegrad.ops.window import batched, each, windows

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]


# ---- where windows lie -------------------------------------------------------------------------
class _Layout:
    """Windows over the spatial dimensions of one input."""

    def __init__(
        self,
        op: str,
        spatial: tuple[int, ...],
        kernel_size: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil_mode: bool,
    ) -> None:
        dims = len(spatial)
        self.op, self.spatial = op, spatial
        self.sizes = each(op, "kernel_size", kernel_size, dims, 1)
        self.stride = self.sizes if stride is None else each(op, "stride", stride, dims, 1)
        self.padding = each(op, "padding", padding, dims, 0)
        self.dilation = each(op, "dilation", dilation, dims, 1)
        reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.sizes, strict=True)]
        if any(2 * p > r for p, r in zip(self.padding, reach, strict=True)):
            raise ShapeError(
                f"{op}: padding {self.padding} is more than half of kernel_size {self.sizes}"
                f" with dilation {self.dilation}"
            )
        counts, extra = [], []
        for n, r, s, p in zip(spatial, reach, self.stride, self.padding, strict=True):
            room = n + 2 * p - r
            count = (-(-room // s) if ceil_mode else room // s) + 1
            if ceil_mode and (count - 1) * s >= n + p:
                count -= 1  # a window must start inside the input or its left border
            counts.append(count)
            extra.append(max(0, (count - 1) * s + r - n - 2 * p))
        # What a last window reaches beyond the border: it counts for no mean.
        self.counts, self.extra = tuple(counts), tuple(extra)

    def border(self, x: Any, value: Any, beyond: bool = True) -> Any:
        """x with its borders, and with what windows reach beyond them."""
        pairs = zip(reversed(self.padding), reversed(self.extra), strict=True)
        return pad(x, tuple(m for p, e in pairs for m in (p, p + e * beyond)), value=value)

    def cut(self, x: Any) -> Any:
        """(N, C, *n) with borders -> (N, C, *o, *sizes)."""
        return windows(self.op, x, self.sizes, self.stride, self.dilation)


# ---- maxima ------------------------------------------------------------------------------------
def _max_pool(
    op: str,
    dims: int,
    x: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    x, with_batch = batched(op, x, dims)
    at = _Layout(op, x.shape[2:], kernel_size, stride, padding, dilation, ceil_mode)
    cut = at.cut(at.border(x, _least(x)))
    lead = tuple(cut.shape[: 2 + dims])
    flat = reshape_p(cut, shape=(*lead, math.prod(at.sizes)))
    out = reshape_p(max_p(flat, axis=2 + dims), shape=lead)
    out = out if with_batch else squeeze(out, 0)
    if not return_indices:
        return out
    index = _positions(at, argmax_p(flat, axis=2 + dims).data)
    return out, index if with_batch else squeeze(index, 0)


def _least(x: Any) -> Any:
    if x.dtype.kind in "iu":
        return int(np.iinfo(x.dtype).min)
    return -math.inf if x.dtype.kind != "b" else False


def _positions(at: _Layout, winner: Any) -> Any:
    """Row-major positions in the input of elements that won their window, as int64."""
    from sparsegrad.tensor import Tensor

    xp, dims = backends.for_array(winner).xp, len(at.spatial)
    flat = xp.zeros(winner.shape, dtype="int64")
    rest, below = winner, 1
    for d in reversed(range(dims)):
        rest, inside = xp.divmod(rest, at.sizes[d])
        starts = xp.arange(at.counts[d]) * at.stride[d] - at.padding[d]
        starts = starts.reshape([-1 if i == 2 + d else 1 for i in range(winner.ndim)])
        flat += (starts + inside * at.dilation[d]) * below
        below *= at.spatial[d]
    return Tensor(flat)


def max_pool1d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Largest element of each window: x (N, C, n) or (C, n); arguments as in `max_pool2d`.

    >>> import sparsegrad as sg
    >>> sg.max_pool1d(sg.tensor([[1.0, 3.0, 2.0, 0.0]]), 2)
    tensor([[3., 2.]])
    """
    args = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _max_pool("max_pool1d", 1, x, *args)


def max_pool2d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Largest element of each window: x (N, C, h, w) or (C, h, w) -> (N, C, oh, ow). The first of
    equal ones gets the gradient.

    kernel_size, stride (default: kernel_size), padding (at most half of the kernel, with -inf),
    dilation: one number, or one a dimension.
    ceil_mode: also a last window that reaches beyond the border, if it starts before it.
    return_indices: also where the elements are, as row-major positions in (h, w): a pair.
    Raises ShapeError for sizes that do not fit.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([[[0.0, 5.0, 1.0], [2.0, 3.0, 4.0]]])
    >>> sg.max_pool2d(x, 2, ceil_mode=True, return_indices=True)
    (tensor([[[5., 4.]]]), tensor([[[1, 5]]]))
    """
    args = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _max_pool("max_pool2d", 2, x, *args)


def max_pool3d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Largest element of each window: x (N, C, d, h, w) or (C, d, h, w); arguments as in
    `max_pool2d`.

    >>> import sparsegrad as sg
    >>> sg.max_pool3d(sg.reshape(sg.arange(8), (1, 2, 2, 2)), 2).item()
    7
    """
    args = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _max_pool("max_pool3d", 3, x, *args)


# ---- means -------------------------------------------------------------------------------------
def _avg_pool(
    op: str,
    dims: int,
    x: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Any:
    from sparsegrad.tensor import Tensor

    if divisor == 0:
        raise ValueError(f"{op}: divisor_override must not be 0")
    x, with_batch = batched(op, x, dims)
    at = _Layout(op, x.shape[2:], kernel_size, stride, padding, 1, ceil_mode)
    axes = tuple(range(2 + dims, 2 + 2 * dims))
    total = sum_p(at.cut(at.border(x, 0)), axis=axes)
    if divisor is None and count_include_pad and not any(at.extra):
        divisor = math.prod(at.sizes)
    if divisor is None:
        ones = Tensor(backends.for_array(x.data).xp.ones((1, 1, *at.spatial), dtype=x.dtype))
        if count_include_pad:
            ones = at.border(ones, 1, beyond=False)
            ones = pad(ones, tuple(m for e in reversed(at.extra) for m in (0, e)))
        else:
            ones = at.border(ones, 0)
        out = total / sum_p(at.cut(ones), axis=axes)
    else:
        out = total / divisor
    return out if with_batch else squeeze(out, 0)


def avg_pool1d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """Mean of each window: x (N, C, n) or (C, n); arguments as in `avg_pool2d`.

    >>> import sparsegrad as sg
    >>> sg.avg_pool1d(sg.tensor([[1.0, 3.0, 2.0, 0.0]]), 2)
    tensor([[2., 1.]])
    """
    args = (kernel_size, stride, padding, ceil_mode, count_include_pad, None)
    return _avg_pool("avg_pool1d", 1, x, *args)


def avg_pool2d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Mean of each window: x (N, C, h, w) or (C, h, w) -> (N, C, oh, ow).

    kernel_size, stride (default: kernel_size), padding (zeros, at most half of the kernel): one
    number, or one a dimension.
    ceil_mode: also a last window that reaches beyond the border, if it starts before it.
    count_include_pad: divide by the elements in the window with its border, or only by what lies
        in `x`. divisor_override: divide by this number instead.
    Raises ShapeError for sizes that do not fit.

    >>> import sparsegrad as sg
    >>> sg.avg_pool2d(sg.ones(1, 2, 2), 2, padding=1, count_include_pad=False).tolist()
    [[[1.0, 1.0], [1.0, 1.0]]]
    """
    args = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg_pool("avg_pool2d", 2, x, *args)


def avg_pool3d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Mean of each window: x (N, C, d, h, w) or (C, d, h, w); arguments as in `avg_pool2d`.

    >>> import sparsegrad as sg
    >>> sg.avg_pool3d(sg.ones(1, 2, 2, 2), 2).item()
    1.0
    """
    args = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg_pool("avg_pool3d", 3, x, *args)


# ---- as many windows as asked for --------------------------------------------------------------
def _adaptive(op: str, dims: int, x: Any, output_size: Any, pool: Any) -> Any:
    """`pool` on one axis after the other: a mean of means of equally many, a maximum of maxima."""
    x, with_batch = batched(op, x, dims)
    wanted = (output_size,) * dims if isinstance(output_size, int) else tuple(output_size)
    if len(wanted) == dims:
        wanted = tuple(n if o is None else o for o, n in zip(wanted, x.shape[2:], strict=True))
    sizes = each(op, "output_size", wanted, dims, 1)
    for d, o in enumerate(sizes):
        if not x.shape[2 + d]:
            raise ShapeError(f"{op}: nothing to pool in the empty dimensions of {tuple(x.shape)}")
        x = pool(x, 2 + d, o)
    return x if with_batch else squeeze(x, 0)


def _bounds(xp: Any, n: int, o: int) -> tuple[Any, Any]:
    """Windows i n / o, rounded down, to (i + 1) n / o, rounded up."""
    i = xp.arange(o)
    return i * n // o, -(-(i + 1) * n // o)


def _mean_of(x: Any, axis: int, o: int) -> Any:
    from sparsegrad.tensor import Tensor

    n = x.shape[axis]
    if n % o == 0:
        cut = reshape_p(x, shape=(*x.shape[:axis], o, n // o, *x.shape[axis + 1 :]))
        return mean_p(cut, axis=(axis + 1,))
    xp = backends.for_array(x.data).xp
    start, stop = _bounds(xp, n, o)
    places = xp.arange(n).reshape(-1, 1)
    share = ((places >= start) & (places < stop)) / (stop - start)
    wide = cast(transpose(x, axis, -1), dtypes.accumulator(x.dtype))
    out = matmul_p(wide, Tensor(share.astype(wide.dtype)))
    return cast(transpose(out, axis, -1), x.dtype)


def _max_of(x: Any, axis: int, o: int) -> Any:
    xp, n = backends.for_array(x.data).xp, x.shape[axis]
    start, stop = _bounds(xp, n, o)
    most = -(-n // o) + 1
    # A window that is shorter than others names its last element again: the first one wins.
    places = xp.minimum(start.reshape(-1, 1) + xp.arange(most), stop.reshape(-1, 1) - 1)
    last = transpose(x, axis, -1)
    index = xp.broadcast_to(places.reshape(-1), (*last.shape[:-1], o * most))
    cut = reshape_p(gather_p(last, index=index, axis=x.ndim - 1), shape=(*last.shape[:-1], o, most))
    out = reshape_p(max_p(cut, axis=x.ndim), shape=(*last.shape[:-1], o))
    return transpose(out, axis, -1)


def adaptive_avg_pool1d(x: Any, output_size: Any) -> Any:
    """Means of `output_size` windows: x (N, C, n) or (C, n); see `adaptive_avg_pool2d`.

    >>> import sparsegrad as sg
    >>> sg.adaptive_avg_pool1d(sg.tensor([[1.0, 2.0, 6.0]]), 2)
    tensor([[1.5, 4. ]])
    """
    return _adaptive("adaptive_avg_pool1d", 1, x, output_size, _mean_of)


def adaptive_avg_pool2d(x: Any, output_size: Any) -> Any:
    """Means of as many windows as asked for: x (N, C, h, w) or (C, h, w) -> (N, C, oh, ow).

    output_size: one number, or one a dimension; None for that of `x`. Window i of n elements goes
    from i n / o, rounded down, to (i + 1) n / o, rounded up.

    >>> import sparsegrad as sg
    >>> sg.adaptive_avg_pool2d(sg.ones(1, 5, 7), 1).item()
    1.0
    """
    return _adaptive("adaptive_avg_pool2d", 2, x, output_size, _mean_of)


def adaptive_max_pool1d(x: Any, output_size: Any) -> Any:
    """Largest elements of `output_size` windows: x (N, C, n) or (C, n); windows as in
    `adaptive_avg_pool2d`.

    >>> import sparsegrad as sg
    >>> sg.adaptive_max_pool1d(sg.tensor([[1.0, 2.0, 6.0]]), 2)
    tensor([[2., 6.]])
    """
    return _adaptive("adaptive_max_pool1d", 1, x, output_size, _max_of)


def adaptive_max_pool2d(x: Any, output_size: Any) -> Any:
    """Largest elements of as many windows as asked for: x (N, C, h, w) or (C, h, w); windows as in
    `adaptive_avg_pool2d`.

    >>> import sparsegrad as sg
    >>> sg.adaptive_max_pool2d(sg.reshape(sg.arange(6), (1, 2, 3)), 1).item()
    5
    """
    return _adaptive("adaptive_max_pool2d", 2, x, output_size, _max_of)
