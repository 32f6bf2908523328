"""Reductions along axes of dense arrays. Softmax: the kernels of segments, all of one length."""

from __future__ import annotations

from math import prod
from typing import Any

import cupy
import numpy as np

from sparsegrad.backends import cuda_segment as segment
from sparsegrad.backends.base import Array, Backend
from sparsegrad.dtypes import kind

__all__ = ["CudaDense"]


class CudaDense(Backend):
    """Softmax of floats, along axes that lie side by side; the rest is the reference's. Where one
    number is +inf, NaN stands in its place alone. 16-bit floats are read and written as they are,
    and computed in float32."""

    def sum(self, x: Array, axis: Any = None, keepdims: bool = False) -> Array:
        if kind(x.dtype) != "f" or x.itemsize != 2 or axis == ():
            return super().sum(x, axis, keepdims)
        return _sum_narrow(x, axis=axis, keepdims=keepdims)

    def amax_grad(self, g: Array, x: Array, top: Array, axis: tuple[int, ...]) -> Array:
        ties = _ties(x, top, axis=axis, keepdims=True) if axis else cupy.ones((), np.int64)
        return self.fused(_to_hits, g, x, top, ties)

    def softmax(self, x: Array, axis: int) -> Array:
        found = _segments(x, (axis,))
        if found is None:
            return super().softmax(x, axis)
        rows, offsets, length = found
        return segment.softmax(rows, offsets, longest=length).reshape(x.shape)

    def log_softmax(self, x: Array, axis: int) -> Array:
        found = _segments(x, (axis,))
        if found is None:
            return super().log_softmax(x, axis)
        rows, offsets, length = found
        return segment.softmax(rows, offsets, logarithm=True, longest=length).reshape(x.shape)

    def logsumexp(self, x: Array, axis: tuple[int, ...]) -> Array:
        found = _segments(x, axis)
        if found is None:
            return super().logsumexp(x, axis)
        kept = tuple(1 if a in axis else n for a, n in enumerate(x.shape))
        rows, offsets, length = found
        return segment.reduce(rows, offsets, segment.LOGSUMEXP, longest=length).reshape(kept)


_sum_narrow = cupy.ReductionKernel(
    "T x",
    "T out",
    "static_cast<float>(x)",
    "a + b",
    "out = T(a)",
    "0",
    "sg_sum_narrow",
    reduce_type="float",
)

_ties = cupy.ReductionKernel(
    "T x, T top", "int64 ties", "x == top", "a + b", "ties = a", "0", "sg_ties"
)


def _to_hits(xp: Any, g: Array, x: Array, top: Array, ties: Array) -> Array:
    return (x == top) * (g / ties.astype(g.dtype))


def _segments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array, int] | None:
    """Rows (n, *D), and offsets (s + 1,) and length, that make each row of axes a segment; None
    where there are no kernels for them."""
    first, last = min(axes, default=0), max(axes, default=-1)
    if last - first + 1 != len(axes) or not axes or not segment.serves(segment.LOGSUMEXP, x.dtype):
        return None
    outer, length, inner = (
        prod(part) for part in (x.shape[:first], x.shape[first : last + 1], x.shape[last + 1 :])
    )
    rows = outer * length
    dtype = np.int32 if rows < 2**31 else np.int64
    offsets = cupy.arange(0, rows + 1, length, dtype=dtype)
    return cupy.ascontiguousarray(x).reshape(rows, inner), offsets, length
