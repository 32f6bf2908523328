"""Rows by index, sums by index, and reductions of runs, on the CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsegrad import memory
from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu_jit_calls import (
    I4,
    I8,
    LINE,
    NONE,
    add_carries,
    array_of,
    inside,
    kernel_of,
    result,
    row_chunks,
    same_index,
    tasks_of,
)
from sparsegrad.backends.cpu_jit_launch import contiguous, get_num_threads, launch
from sparsegrad.backends.cpu_jit_part import CpuJitPart
from sparsegrad.backends.cpu_jit_products import wide_of
from sparsegrad.dtypes import kind

__all__ = ["MIN_SCATTER", "CpuJitSegments"]

_MIN_SEGMENT = 1 << 14  # segment_*: values
MIN_SCATTER = 1 << 14  # scatter_add: values
_MIN_GATHER = 1 << 16  # gather: bytes
_CACHED = 1 << 20  # bytes of an output of which every task may have its own
_APART = 4  # outputs of a sum by index, where there are many entries to an output row


class CpuJitSegments(CpuJitPart):
    """Kernels of `cpu_jit_kernels_segment` and `cpu_jit_kernels_softmax`, and `gather`."""

    def gather(self, x: Array, index: Array) -> Array:
        nbytes = index.size * x[:1].nbytes if x.ndim else 0
        if (
            not (nbytes and self._pays(nbytes, _MIN_GATHER))
            or x.dtype.alignment not in (4, 8)
            or not (x.flags.c_contiguous and x.flags.aligned)
            or (arrays := same_index(index)) is None
        ):
            return super().gather(x, index)
        out = memory.empty((index.size, *x.shape[1:]), x.dtype)
        # Negative ids count from the end in NumPy, which also refuses what is outside.
        found = _gather((x.reshape(len(x), -1),), arrays[0][None], out)
        return out if found else super().gather(x, index)

    def gather_tables(self, tables: Sequence[Array], index: Array) -> Array:
        dtype, width = tables[0].dtype, sum(x.shape[1] for x in tables)
        nbytes = index.shape[1] * width * dtype.itemsize
        if (
            not (nbytes and self._pays(nbytes, _MIN_GATHER))
            or dtype.alignment not in (4, 8)
            or not all(x.flags.c_contiguous and x.flags.aligned for x in tables)
            or index.dtype not in (I4, I8)
        ):
            return super().gather_tables(tables, index)
        out = memory.empty((index.shape[1], width), dtype)
        found = _gather(tables, contiguous(index, index.dtype), out)
        return out if found else super().gather_tables(tables, index)

    def matrix(self, pattern: Any, values: Array) -> Array | None:
        many = self._pays(values.size, MIN_SCATTER)
        return None if many else super().matrix(pattern, values)

    def scatter_add(self, out: Array, index: Array, values: Array) -> None:
        many = out.flags.carray and self._pays(values.size, MIN_SCATTER)
        wide, arrays = wide_of(out.dtype), same_index(index) if many else None
        if (
            wide is None
            or arrays is None
            or kind(values.dtype) not in "fiub"
            or values.shape != (index.size, *out.shape[1:])
            or not inside(arrays[0], len(out))  # negative ids count from the end in NumPy
        ):
            super().scatter_add(out, index, values)
            return
        width = math.prod(out.shape[1:])
        if not index.size or not width:
            return
        total = array_of(out, wide, (len(out), width))
        flat = array_of(values, wide, (index.size, width))
        if total.nbytes <= _CACHED and index.size >= 2 * _APART * len(out):
            outs = np.empty((_APART, *total.shape), dtype=wide)
            kernel = kernel_of("scatter_add_apart", wide, arrays[0].dtype)
            launch(kernel, (_APART, arrays[0], flat, outs), _APART, values.size)
            total += outs.sum(axis=0)
            if wide != out.dtype:
                out[...] = total.reshape(out.shape)
            return
        # Every task reads all of the ids, which costs as much as adding about eight values.
        parts = 1 << (min(get_num_threads(), 1 + width // 8).bit_length() - 1)
        shift = max(0, (LINE // (wide.itemsize * width)).bit_length() - 1)
        args = (parts, shift, arrays[0], flat, total)
        launch(kernel_of("scatter_add", wide, arrays[0].dtype), args, parts, values.size)
        if wide != out.dtype:
            out[...] = total.reshape(out.shape)

    def segment_sum(self, values: Array, indptr: Array) -> Array:
        runs = self._segments(values, indptr)
        if runs is None:
            return super().segment_sum(values, indptr)
        cuts, carried = row_chunks(runs.indptr, True)
        rows = len(indptr) - 1
        out = memory.empty((rows + len(cuts) * bool(carried.size), *values.shape[1:]), runs.wide)
        args = (cuts, runs.indptr, runs.rows(values), runs.rows(out))
        kernel = kernel_of("segment_sum", runs.wide, runs.indptr.dtype)
        launch(kernel, args, len(cuts) - 1, values.size)
        out = add_carries(out, rows, cuts, carried)
        return result(out, values.dtype, (rows, *values.shape[1:]))

    def segment_max(self, values: Array, indptr: Array) -> Array:
        runs = self._segments(values, indptr)
        if runs is None:
            return super().segment_max(values, indptr)
        return runs.made("segment_max", len(indptr) - 1, 1, NONE[I8], runs.rows(values))

    def segment_amax(self, values: Array, indptr: Array, absent: Array) -> Array:
        runs = self._segments(values, indptr)
        if runs is None or values.dtype.itemsize == 2:  # of which `segment_max` needs no copy
            return super().segment_amax(values, indptr, absent)
        arrays = contiguous(absent, I8), runs.rows(values)
        return runs.made("segment_max", len(indptr) - 1, 1, *arrays)

    def segment_amax_grad(
        self, g: Array, values: Array, out: Array, indptr: Array, absent: Array
    ) -> Array:
        runs = self._segments(values, indptr)
        if runs is None or not g.dtype == values.dtype == out.dtype:
            return super().segment_amax_grad(g, values, out, indptr, absent)
        arrays = (runs.rows(a) for a in (g, values, out))
        return runs.made("segment_amax_grad", len(values), 2, contiguous(absent, I8), *arrays)

    def segment_prod(self, values: Array, runs: Any, zeros: Array) -> Array:
        served = self._segments(values, runs.indptr)
        if served is None:
            return super().segment_prod(values, runs, zeros)
        arrays = contiguous(zeros, I8), served.rows(values)
        return served.made("segment_prod", len(runs.indptr) - 1, 1, *arrays)

    def segment_prod_grad(self, g: Array, values: Array, runs: Any, zeros: Array) -> Array:
        served = self._segments(values, runs.indptr)
        if served is None or g.dtype != values.dtype:
            return super().segment_prod_grad(g, values, runs, zeros)
        arrays = (served.rows(a) for a in (g, values))
        return served.made("segment_prod_grad", len(values), 4, contiguous(zeros, I8), *arrays)

    def segment_softmax(self, values: Array, indptr: Array) -> Array:
        runs = self._segments(values, indptr)
        if runs is None:
            return super().segment_softmax(values, indptr)
        return runs.made("segment_softmax", len(values), 8, runs.rows(values))

    def segment_softmax_grad(self, g: Array, out: Array, indptr: Array) -> Array:
        runs = self._segments(out, indptr)
        if runs is None or g.shape != out.shape or wide_of(g.dtype) is None:
            return super().segment_softmax_grad(g, out, indptr)
        return runs.made("segment_softmax_grad", len(out), 2, runs.rows(g), runs.rows(out))

    def _segments(
        self, values: Array, indptr: Array, entries: int | None = None
    ) -> _Segments | None:
        """The runs of a call that the kernels serve, of all values or of so many entries."""
        if not self._pays(values.size, _MIN_SEGMENT):
            return None
        wide, arrays = wide_of(values.dtype), same_index(indptr)
        if wide is None or arrays is None:
            return None
        if not values.size or indptr.size < 2 or indptr[0] != 0:
            return None
        if entries == 0 or indptr[-1] != (len(values) if entries is None else entries):
            return None
        return _Segments(values, math.prod(values.shape[1:]), wide, arrays[0])


class _Segments(NamedTuple):
    """Runs of values (nnz, *D) that the kernels serve."""

    values: Array
    width: int  # of all D together
    wide: np.dtype  # in which kernels compute
    indptr: Array

    def rows(self, array: Array) -> Array:
        """An array (n, *D) as kernels take it: two-dimensional."""
        return array_of(array, self.wide, (len(array), self.width))

    def made(self, kernel: str, n: int, effort: int, *arrays: Array) -> Array:
        """The array (n, *D) that a kernel fills, in the time of `effort` additions a value."""
        out = memory.empty((n, *self.values.shape[1:]), self.wide)
        work = effort * self.values.size
        self.launch(kernel, work, *arrays, out.reshape(n, self.width))
        return result(out, self.values.dtype, out.shape)

    def launch(self, kernel: str, work: int, *arrays: Array) -> None:
        """Run a kernel over whole runs; the last array is what it fills, in its dtype."""
        cuts, _ = row_chunks(self.indptr, False)
        compiled = kernel_of(kernel, arrays[-1].dtype, self.indptr.dtype)
        launch(compiled, (cuts, self.indptr, *arrays), len(cuts) - 1, work)


def _gather(tables: Sequence[Array], index: Array, out: Array) -> bool:
    """Fill `out` with rows of tables (V, D) side by side; False if an index lies outside."""
    word = I8 if out.dtype.alignment == 8 else I4
    words = out.itemsize // word.itemsize
    where = [(x.ctypes.data, len(x), x.shape[1] * words) for x in tables]
    target, wrong = out.reshape(len(out), -1).view(word), np.zeros(1, I8)
    tasks = tasks_of(max(index.size, out.nbytes // LINE))
    args = (tasks, index, np.array(where, I8), target, wrong)
    launch(kernel_of("gather", word, index.dtype), args, tasks, 4 * index.size + target.size)
    return not wrong[0]
