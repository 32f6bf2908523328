"""16-bit floats on the CPU: stored and read as 16 bits, computed in float32, rounded once.

NumPy converts a whole array before and after; the kernels here convert on the way.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu_jit import MIN_PRODUCT, CpuJit, by_row, row_plan
from sparsegrad.backends.cpu_jit_calls import (
    NONE,
    array_of,
    inside,
    kernel_of,
    row_chunks,
    same_index,
    tasks_of,
)
from sparsegrad.backends.cpu_jit_launch import contiguous, launch
from sparsegrad.backends.cpu_jit_segments import MIN_SCATTER
from sparsegrad.dtypes import accumulator

__all__ = ["CpuJitNarrow"]

_MIN_CONVERT = 1 << 13  # elements below which NumPy serves


class CpuJitNarrow(CpuJit):
    """`CpuJit`, with the kernels of `cpu_jit_kernels_narrow` for arrays of 16-bit floats."""

    def convert(self, x: Array, dtype: np.dtype) -> Array:
        """Between a 16-bit float and float32; NumPy converts float16 one number after the other."""
        if x.dtype == dtype or not self._pays(x.size, _MIN_CONVERT):
            return super().convert(x, dtype)
        tasks = tasks_of(x.size)
        if dtype == np.float32 and (word := _word(x)) is not None:
            out = np.empty(x.size, dtype)
            args: Any = (tasks, _words(x, word, (x.size,)), out)
            launch(kernel_of("widen_16", word), args, tasks, x.size)
        elif x.dtype == np.float32 and (word := _word(np.empty(0, dtype))) is not None:
            out = np.empty(x.size, word)
            args = (tasks, array_of(x, x.dtype, (x.size,)), out)
            launch(kernel_of("narrow_16", word), args, tasks, x.size)
        else:
            return super().convert(x, dtype)
        return out.view(dtype).reshape(x.shape)

    def spmm(self, pattern: Any, values: Array, x: Array) -> Array:
        word = _word(x, values)
        if word is None:  # nearly always: leave at once
            return super().spmm(pattern, values, x)
        nnz, (m, n) = pattern.nnz, pattern.shape
        if (
            x.ndim < 2
            or len(x) != n
            or values.shape != (nnz, *x.shape[1:-1])
            or not x.size
            or not self._pays(nnz * math.prod(x.shape[1:]), MIN_PRODUCT)
            or (plan := row_plan(pattern)) is None
        ):
            return super().spmm(pattern, values, x)
        heads, k, step = math.prod(x.shape[1:-1]), x.shape[-1], 1
        if values.strides[0] == 0 and nnz > 1:  # one value for all entries, stored once
            values, step = values[:1], 0
        out = np.empty((m, heads, k), word)
        scalars = _words(values, word, (len(values), heads))
        _sum_rows(x.dtype, plan, scalars, step, False, _words(x, word, (n, heads, k)), out)
        return out.view(x.dtype).reshape(m, *x.shape[1:])

    def sddmm(self, pattern: Any, x: Array, y: Array) -> Array:
        word = _word(x, y)
        if word is None:
            return super().sddmm(pattern, x, y)
        pattern, x, y = by_row(pattern, x, y)
        nnz, (m, n) = pattern.nnz, pattern.shape
        if (
            x.ndim < 2
            or x.shape != (m, *y.shape[1:])
            or len(y) != n
            or not x.size
            or not self._pays(nnz * math.prod(x.shape[1:]), MIN_PRODUCT)
            or (plan := row_plan(pattern)) is None
        ):
            return super().sddmm(pattern, x, y)
        heads, k = math.prod(x.shape[1:-1]), x.shape[-1]
        indptr, indices, positions, cuts, _ = plan
        out = np.empty((nnz, heads), word)
        dense = _words(x, word, (m, heads, k)), _words(y, word, (n, heads, k))
        args = (cuts, indptr, indices, positions, *dense, out)
        kernel = kernel_of("sddmm_16", word, indptr.dtype)
        launch(kernel, args, len(cuts) - 1, nnz * heads * k)
        return out.view(x.dtype).reshape(nnz, *x.shape[1:-1])

    def sum(self, x: Array, axis: Any = None, keepdims: bool = False) -> Array:
        return self._in_float32(super().sum, x, axis, keepdims)

    def amax(self, x: Array, axis: tuple[int, ...], keepdims: bool = False) -> Array:
        return self._in_float32(super().amax, x, axis, keepdims)

    def amin(self, x: Array, axis: tuple[int, ...], keepdims: bool = False) -> Array:
        return self._in_float32(super().amin, x, axis, keepdims)

    def softmax(self, x: Array, axis: int) -> Array:
        return self._in_float32(super().softmax, x, axis)

    def log_softmax(self, x: Array, axis: int) -> Array:
        return self._in_float32(super().log_softmax, x, axis)

    def logsumexp(self, x: Array, axis: tuple[int, ...]) -> Array:
        return self._in_float32(super().logsumexp, x, axis)

    def _in_float32(self, method: Callable[..., Array], x: Array, *args: Any) -> Array:
        """What a method gives for `x`, of 16-bit floats by way of float32."""
        wide = accumulator(x.dtype)
        if wide == x.dtype:
            return method(x, *args)
        return self.convert(method(self.convert(x, wide), *args), x.dtype)

    def segment_sum(self, values: Array, indptr: Array) -> Array:
        word = _word(values)
        runs = None if word is None else self._segments(values, indptr)
        if word is None or runs is None:
            return super().segment_sum(values, indptr)
        none, rows = NONE[runs.indptr.dtype], len(indptr) - 1
        out = np.empty((rows, 1, runs.width), word)
        every = (runs.indptr, none, none, *row_chunks(runs.indptr, True))
        words = _words(values, word, (len(values), 1, runs.width))
        _sum_rows(values.dtype, every, _one(values.dtype, word), 0, False, words, out)
        return out.view(values.dtype).reshape(rows, *values.shape[1:])

    def sum_runs(self, values: Array, perm: Array, indptr: Array) -> Array:
        word = _word(values)
        runs = None if word is None else self._segments(values, indptr, perm.size)
        arrays = None if runs is None else same_index(indptr, perm)
        if word is None or runs is None or arrays is None:
            return super().sum_runs(values, perm, indptr)
        (offsets, perm), rows = arrays, indptr.size - 1
        out = np.empty((rows, 1, runs.width), word)
        plan = (offsets, perm, NONE[perm.dtype], *row_chunks(offsets, True))
        words = _words(values, word, (len(values), 1, runs.width))
        _sum_rows(values.dtype, plan, _one(values.dtype, word), 0, False, words, out)
        return out.view(values.dtype).reshape(rows, *values.shape[1:])

    def segment_max(self, values: Array, indptr: Array) -> Array:
        word = _word(values)
        runs = None if word is None else self._segments(values, indptr)
        if word is None or runs is None:
            return super().segment_max(values, indptr)
        out = np.empty((indptr.size - 1, runs.width), word)
        words = _words(values, word, (len(values), runs.width))
        runs.launch("segment_max_16", values.size, words, out)
        return out.view(values.dtype).reshape(len(out), *values.shape[1:])

    def spmm_extreme(
        self, pattern: Any, values: Array, x: Array, least: bool
    ) -> tuple[Array, Array]:
        word, m, shape = _word(x, values), pattern.shape[0], x.shape
        lines = pattern.sorted_rows()
        arrays = same_index(*(a for a in lines if a is not None))
        heads, k = math.prod(shape[1:-1]), shape[-1]
        if (
            word is None
            or arrays is None
            or not pattern.nnz * heads * k
            or not self._pays(pattern.nnz * heads * k, MIN_PRODUCT)
        ):
            return super().spmm_extreme(pattern, values, x, least)
        cuts, _ = row_chunks(arrays[0], False)
        out, entry = np.empty((m, heads, k), word), np.empty((m, heads, k), np.int64)
        listed = arrays if len(arrays) == 3 else (*arrays, NONE[arrays[0].dtype])
        scalars = _words(values, word, (len(values), heads))
        dense = _words(x, word, (len(x), heads, k))
        args = (cuts, *listed, scalars, dense, least, out, entry)
        kernel = kernel_of("extreme_16", word, arrays[0].dtype)
        launch(kernel, args, len(cuts) - 1, 4 * pattern.nnz * heads * k)
        return out.view(x.dtype).reshape(m, *shape[1:]), entry.reshape(m, *shape[1:])

    def scatter_add(self, out: Array, index: Array, values: Array) -> None:
        word = _word(out, values)
        arrays = None if word is None else same_index(index)
        if (
            word is None
            or arrays is None
            or values.shape != (index.size, *out.shape[1:])
            or not values.size
            or not (out.flags.carray and self._pays(values.size, MIN_SCATTER))
            or not inside(arrays[0], len(out))  # negative ids count from the end in NumPy
        ):
            super().scatter_add(out, index, values)
            return
        perm, indptr = self.group(arrays[0], len(out))
        width = math.prod(out.shape[1:])
        plan = (indptr, perm, NONE[indptr.dtype], *row_chunks(indptr, True))
        onto = out.view(word).reshape(len(out), 1, width)
        words = _words(values, word, (index.size, 1, width))
        _sum_rows(out.dtype, plan, _one(out.dtype, word), 0, True, words, onto)

    def segment_softmax(self, values: Array, indptr: Array) -> Array:
        word = _word(values)
        runs = None if word is None else self._segments(values, indptr)
        if word is None or runs is None:
            return super().segment_softmax(values, indptr)
        out = np.empty((len(values), runs.width), word)
        runs.launch("softmax_16", 8 * values.size, _words(values, word, out.shape), out)
        return out.view(values.dtype).reshape(values.shape)

    def segment_softmax_grad(self, g: Array, out: Array, indptr: Array) -> Array:
        word = _word(out, g)
        runs = None if word is None else self._segments(out, indptr)
        if word is None or runs is None or g.shape != out.shape:
            return super().segment_softmax_grad(g, out, indptr)
        grad = np.empty((len(out), runs.width), word)
        words = (_words(a, word, grad.shape) for a in (g, out))
        runs.launch("softmax_grad_16", 4 * out.size, *words, grad)
        return grad.view(out.dtype).reshape(out.shape)


@cache
def _converts() -> bool:
    """Whether the processor converts float16, as those of x86 do since 2012."""
    from llvmlite import binding

    if platform.machine().lower() not in ("x86_64", "amd64"):
        return platform.machine().lower() in ("arm64", "aarch64")
    return bool(binding.get_host_cpu_features().get("f16c"))


def _word(*arrays: Array) -> np.dtype | None:
    """What stands for the elements of arrays of one 16-bit dtype; None for any others."""
    dtype = arrays[0].dtype
    if dtype.itemsize != 2 or any(a.dtype != dtype for a in arrays):
        return None
    if dtype == np.float16:
        return np.dtype(np.uint16) if _converts() else None
    return np.dtype(np.int16) if dtype.kind == "V" else None


def _words(array: Array, word: np.dtype, shape: tuple[int, ...]) -> Array:
    return contiguous(array, array.dtype).view(word).reshape(shape)


def _one(dtype: np.dtype, word: np.dtype) -> Array:
    return np.ones((1, 1), dtype).view(word)


def _sum_rows(
    dtype: np.dtype,
    plan: tuple[Array, ...],
    values: Array,
    step: int,
    onto: bool,
    x: Array,
    out: Array,
) -> None:
    """out (m, H, k) = A @ x, or with `onto` out += A @ x; `plan` is a row plan of A."""
    indptr, indices, positions, cuts, carried = plan
    parts = np.empty((2 * len(cuts) * bool(carried.size), *out.shape[1:]), np.float32)
    args = (cuts, indptr, indices, positions, values, step, onto, x, out, parts)
    work = int(indptr[-1]) * math.prod(out.shape[1:]) + out.size
    launch(kernel_of("rows_16", out.dtype, indptr.dtype), args, len(cuts) - 1, work)
    rows: dict[int, Array] = {}  # those that were cut, their parts added up in order
    for t in carried.tolist():
        row = int(cuts[t, 0]) - 1
        if row not in rows:
            rows[row] = parts[2 * t - 1].copy()
        rows[row] += parts[2 * t]
    for row, total in rows.items():
        out[row] = total.astype(dtype).view(out.dtype)
