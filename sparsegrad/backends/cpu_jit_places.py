"""Where entries lie, by the kernels of `cpu_jit_kernels_places`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsegrad import memory
from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu_jit_calls import I4, I8, LINE, NONE, kernel_of, same_index, tasks_of
from sparsegrad.backends.cpu_jit_launch import contiguous, get_num_threads, launch
from sparsegrad.backends.cpu_jit_part import CpuJitPart

__all__ = ["CpuJitPlaces", "close_gaps", "row_cuts", "running"]

_MIN_PLACES = 1 << 13  # spans, merge_rows: entries below which NumPy serves
_MIN_SHARED = 1 << 16  # shared_rows: entries
_MIN_SCAN = 1 << 15  # line_facts, compact: entries
_MIN_FIND = 1 << 12  # find: cells


class CpuJitPlaces(CpuJitPart):
    """Kernels of `cpu_jit_kernels_places`."""

    def spans(self, starts: Array, offsets: Array) -> Array:
        dtype, total = starts.dtype, int(offsets[-1])
        if dtype not in NONE or not (total and self._pays(total, _MIN_PLACES)):
            return super().spans(starts, offsets)
        if total > np.iinfo(dtype).max:
            dtype = I8
        out = np.empty(total, dtype)
        args = contiguous(starts, dtype), contiguous(offsets, dtype), out
        tasks = tasks_of(total)
        launch(kernel_of("spans", dtype), (tasks, *args), tasks, total)
        return out

    def compact(
        self, keep: Array, lists: Sequence[Array], offsets: Array | None = None
    ) -> tuple[Array | None, tuple[Array, ...], Array | None]:
        known = offsets is None or offsets.dtype in NONE
        if not (known and keep.size and self._pays(keep.size, _MIN_SCAN)):
            return super().compact(keep, lists, offsets)
        keep = contiguous(keep, np.dtype(bool))
        bounds = np.arange(tasks_of(keep.size) + 1) * keep.size // tasks_of(keep.size)
        firsts = running(_kept(bounds, keep))
        if firsts[-1] == keep.size:
            return None, tuple(lists), offsets
        entries = memory.empty((int(firsts[-1]),), I4 if keep.size <= np.iinfo(I4).max else I8)
        args = (bounds, firsts, keep, entries)
        launch(kernel_of("list_kept", entries.dtype), args, bounds.size - 1, 2 * keep.size)
        if offsets is not None:
            offsets = running(_kept(contiguous(offsets, offsets.dtype), keep))
        return entries, tuple(self.gather(x, entries) for x in lists), offsets

    def line_runs(self, indptr: Array, ids: Array) -> tuple[Array, Array]:
        # The size of the matrix decides: its other ops have loaded kernels by now.
        many = ids.dtype == I8 and self._pays(int(indptr[-1]), _MIN_PLACES)
        lines = same_index(indptr) if many else None
        if lines is None:
            return super().line_runs(indptr, ids)
        starts, offsets = np.empty(ids.size, indptr.dtype), np.empty(ids.size + 1, indptr.dtype)
        kernel = kernel_of("line_runs", indptr.dtype)
        total = kernel(*lines, contiguous(ids, I8), starts, offsets)
        if total > np.iinfo(indptr.dtype).max:
            return super().line_runs(indptr, ids)
        return starts, offsets

    def take_runs(self, x: Array, runs: Any) -> Array:
        many = x.dtype.alignment in (4, 8) and x.size and self._pays(len(x), _MIN_PLACES)
        served = many and x.flags.c_contiguous and x.flags.aligned
        lists = same_index(runs.starts, runs.offsets) if served else None
        if lists is None:
            return super().take_runs(x, runs)
        total = int(runs.offsets[-1])
        out = memory.empty((total, *x.shape[1:]), x.dtype)
        word = I8 if x.dtype.alignment == 8 else I4
        source, target = x.reshape(-1).view(word), out.reshape(-1).view(word)
        tasks = tasks_of(max(total, out.nbytes // LINE))
        args = (tasks, source.size // len(x), *lists, source, target)
        work = 2 * target.size + lists[0].size
        launch(kernel_of("take_runs", word, lists[0].dtype), args, tasks, work)
        return out

    def line_facts(self, indptr: Array, minor: Array) -> tuple[bool, bool]:
        many = minor.size and self._pays(minor.size, _MIN_SCAN)
        lines = same_index(indptr, minor) if many else None
        if lines is None:
            return super().line_facts(indptr, minor)
        found = np.empty((tasks_of(minor.size), 2), I8)
        launch(kernel_of("line_facts", minor.dtype), (*lines, found), len(found), minor.size)
        falls, stays = found.sum(axis=0)
        return not falls, not (falls or stays)

    def find(self, indptr: Array, cols: Array, row: Array, col: Array) -> Array:
        dtype, wide = np.result_type(indptr, cols), np.result_type(row, col)
        known = dtype in NONE and wide in NONE
        if not (known and row.size and cols.size and self._pays(row.size, _MIN_FIND)):
            return super().find(indptr, cols, row, col)
        out = np.empty(row.size, dtype)
        lines = contiguous(indptr, dtype), contiguous(cols, dtype)
        cells = contiguous(row, wide), contiguous(col, wide)
        tasks = tasks_of(row.size)
        kernel = kernel_of("find", dtype, wide)
        launch(kernel, (tasks, *lines, *cells, out), tasks, 16 * row.size)
        return out

    def merge_rows(self, a: Any, b: Any) -> tuple[Array, Array, Array, Array] | None:
        total, m = a.nnz + b.nnz, a.shape[0]
        if not (total and self._pays(total + m, _MIN_PLACES)):
            return super().merge_rows(a, b)
        if not (a.core.unique and b.core.unique):
            return None
        lines = [(x, y, x[:0] if at is None else at) for x, y, at in map(_sorted_rows, (a, b))]
        dtype = np.result_type(*(x for line in lines for x in line))
        if dtype not in NONE or total > np.iinfo(dtype).max:
            return None
        a_lines, b_lines = (tuple(contiguous(x, dtype) for x in line) for line in lines)
        starts = a_lines[0] + b_lines[0].astype(np.int64)
        cuts, counts = row_cuts(starts + np.arange(m + 1)), np.empty(m, np.int64)
        perm = memory.empty((total,), dtype)
        cols, runs = (memory.empty((total + 1,), dtype) for _ in range(2))
        args = (cuts, *a_lines, *b_lines, counts, cols, perm, runs)
        launch(kernel_of("merge_rows", dtype), args, cuts.size - 1, 4 * total)
        indptr = running(counts)
        nnz = int(indptr[-1])
        cols, runs = (close_gaps(cuts, starts, x, indptr) for x in (cols, runs))
        runs[nnz] = total
        return indptr.astype(dtype), cols[:nnz], perm, runs

    def shared_rows(self, a: Any, b: Any) -> tuple[Array, Array, Array, Array] | None:
        many = self._pays(a.nnz + b.nnz, _MIN_SHARED)
        return None if many else super().shared_rows(a, b)


def running(counts: Array) -> Array:
    """Offsets (n + 1,) of runs with these lengths (n,)."""
    return np.concatenate(([0], np.cumsum(counts)))


def close_gaps(cuts: Array, starts: Array, listed: Array, offsets: Array) -> Array:
    """What rows that begin at `starts` (m + 1,) list, one behind the other, and as much behind them
    as there was."""
    if offsets[-1] == starts[-1]:
        return listed
    closed = memory.empty((int(offsets[-1]) + listed.size - int(starts[-1]),), listed.dtype)
    args = (cuts, starts, listed, offsets, closed)
    launch(kernel_of("close_gaps", listed.dtype), args, cuts.size - 1, closed.size)
    return closed


def _kept(offsets: Array, keep: Array) -> Array:
    """How many entries of each run stay."""
    counts = np.empty(offsets.size - 1, np.int64)
    tasks = min(tasks_of(keep.size), counts.size)
    args = (tasks, offsets, keep, counts)
    launch(kernel_of("count_kept", offsets.dtype), args, tasks, keep.size)
    return counts


def _sorted_rows(pattern: Any) -> Any:
    return pattern.sorted_rows()


def row_cuts(done: Array) -> Array:
    """Rows at which chunks of equal work begin; done (m + 1,): the work before each row."""
    chunks = min(max(1, int(done[-1]) >> 14), 16 * get_num_threads())
    targets = np.arange(1, chunks) * (int(done[-1]) // chunks)
    inner = np.searchsorted(done, targets).astype(np.int64)
    return np.concatenate(([0], inner, [done.size - 1])).astype(np.int64)
