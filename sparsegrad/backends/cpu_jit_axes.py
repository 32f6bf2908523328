"""Sums, extremes, scans and softmax along axes of dense arrays for `CpuJit`: NumPy's loops are slow
where an axis is short, and have one core where it is long."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsegrad import memory
from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu_jit_calls import F4, F8, I8, kernel_of
from sparsegrad.backends.cpu_jit_launch import launch
from sparsegrad.backends.cpu_jit_part import MIN_DENSE, CpuJitPart

__all__ = ["CpuJitAxes"]

_GRAIN = 1 << 13  # elements of a task, and of a part of a sum, whose errors stay small
_SHORT = 32  # numbers in a row that BLAS multiplies by ones sooner than a kernel enters its loop
_FEW = 128  # numbers in a row up to which a kernel finds their maximum sooner than NumPy
_WIDE = 512  # numbers in a row from which NumPy's loop, along the row, is as fast


class CpuJitAxes(CpuJitPart):
    """Kernels of `cpu_jit_kernels_axes`. Other reductions than sums are of the last axes alone."""

    def sum(self, x: Array, axis: Any = None, keepdims: bool = False) -> Array:
        if axis == () or not self._served(x):
            return super().sum(x, axis, keepdims)
        given = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        axes = {a % x.ndim for a in given}
        out, left = x, set(axes)
        while left:  # the last axes that are beside each other, then what remains
            first = last = max(left)
            while first - 1 in left:
                first -= 1
            left.difference_update(range(first, last + 1))
            out = self._summed(out, first, last)
        if keepdims:
            return out
        return out.reshape([n for a, n in enumerate(out.shape) if a not in axes])

    def amax(self, x: Array, axis: tuple[int, ...], keepdims: bool = False) -> Array:
        return self._extreme(x, axis, keepdims, False)

    def amin(self, x: Array, axis: tuple[int, ...], keepdims: bool = False) -> Array:
        return self._extreme(x, axis, keepdims, True)

    def _extreme(self, x: Array, axis: tuple[int, ...], keepdims: bool, least: bool) -> Array:
        rows = self._rows(x, axis)
        if rows is None or rows.shape[1] > _FEW:  # along which NumPy has vector code
            return super().amin(x, axis, keepdims) if least else super().amax(x, axis, keepdims)
        out = np.empty(len(rows), x.dtype)
        self._launch("extreme_rows", rows, 2, least, rows, out)
        shape = x.shape[: x.ndim - len(axis)]
        return out.reshape((*shape, *(1,) * len(axis)) if keepdims else shape)

    def argmax(self, x: Array, axis: int | None, keepdims: bool = False) -> Array:
        rows = None if axis is None else self._rows(x, (axis,))
        if rows is None or rows.shape[1] > _FEW:
            return super().argmax(x, axis, keepdims)
        out = np.empty(len(rows), "i8")
        self._launch("argmax_rows", rows, 2, rows, out)
        return out.reshape((*x.shape[:-1], 1) if keepdims else x.shape[:-1])

    def cumsum(self, x: Array, axis: int) -> Array:
        rows = None
        if axis % x.ndim == x.ndim - 1:  # elsewhere NumPy adds whole rows
            rows = self._rows(np.ascontiguousarray(x), (axis,))
        if rows is None:
            return super().cumsum(x, axis)
        out = memory.empty(rows.shape, x.dtype)
        self._launch("cumsum_rows", rows, 4, rows, out)
        return out.reshape(x.shape)

    def argcummax(self, x: Array, axis: int, largest: bool) -> Array:
        turned = np.ascontiguousarray(np.moveaxis(x, axis, -1))
        rows = self._rows(turned, (-1,))
        if rows is None:
            return super().argcummax(x, axis, largest)
        out = memory.empty(rows.shape, I8)
        self._launch("argcummax_rows", rows, 4, largest, rows, out)
        return np.ascontiguousarray(np.moveaxis(out.reshape(turned.shape), -1, axis))

    def softmax(self, x: Array, axis: int) -> Array:
        rows = self._rows(x, (axis,))
        return super().softmax(x, axis) if rows is None else self._softmax(x, rows, False)

    def log_softmax(self, x: Array, axis: int) -> Array:
        rows = self._rows(x, (axis,))
        return super().log_softmax(x, axis) if rows is None else self._softmax(x, rows, True)

    def _softmax(self, x: Array, rows: Array, logarithm: bool) -> Array:
        out = memory.empty(rows.shape, x.dtype)
        self._launch("softmax_rows", rows, 8, logarithm, rows, out)
        return out.reshape(x.shape)

    def logsumexp(self, x: Array, axis: tuple[int, ...]) -> Array:
        rows = self._rows(x, axis)
        if rows is None:
            return super().logsumexp(x, axis)
        out = np.empty(len(rows), x.dtype)
        self._launch("logsumexp_rows", rows, 8, rows, out)
        return out.reshape((*x.shape[: x.ndim - len(axis)], *(1,) * len(axis)))

    def _served(self, x: Array) -> bool:
        """Whether kernels serve: floats of 32 or 64 bits in C order, and enough of them."""
        if not x.size or not x.ndim or not self._pays(x.size, MIN_DENSE):
            return False
        return x.dtype in (F4, F8) and bool(x.flags.c_contiguous)

    def _rows(self, x: Array, axis: tuple[int, ...]) -> Array | None:
        """x as rows along its last axes; None where the kernels do not serve them."""
        last = tuple(range(x.ndim - len(axis), x.ndim))
        if not axis or not self._served(x) or tuple(sorted(a % x.ndim for a in axis)) != last:
            return None
        return x.reshape(math.prod(x.shape[: last[0]]), -1)

    def _launch(self, name: str, rows: Array, work: int, *args: Any) -> None:
        chunk, kernel = max(1, _GRAIN // rows.shape[1]), kernel_of(name, rows.dtype)
        launch(kernel, (chunk, *args), -(-len(rows) // chunk), work * rows.size)

    def _summed(self, x: Array, first: int, last: int) -> Array:
        """The sum over the axes from `first` to `last`, which are kept as size 1."""
        outer, inner = math.prod(x.shape[:first]), math.prod(x.shape[last + 1 :])
        count, kept = math.prod(x.shape[first : last + 1]), x.shape[last + 1 :]
        shape = (*x.shape[:first], *(1,) * (last + 1 - first), *kept)
        if inner == 1 and count < _SHORT:
            return self.matmul(x.reshape(outer, count), np.ones(count, x.dtype)).reshape(shape)
        if inner > _WIDE:
            return x.sum(axis=tuple(range(first, last + 1)), keepdims=True)
        length = count if count * inner < 2 * _GRAIN else max(1, _GRAIN // inner)
        parts = -(-count // length)
        out = np.empty((outer, parts, inner), x.dtype)
        chunk = max(1, _GRAIN // (length * inner))
        name, end = ("sum_rows", ()) if inner == 1 else ("sum_columns", (inner,))
        args = (chunk, length, x.reshape(outer, count, *end), out.reshape(outer, parts, *end))
        launch(kernel_of(name, x.dtype), args, -(-outer * parts // chunk), x.size)
        if out.shape[1] > 1:
            return out.sum(axis=1).reshape(shape)
        return out.reshape(shape)
