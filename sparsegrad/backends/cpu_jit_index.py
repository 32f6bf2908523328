"""Index work on the CPU: offsets and ids, sorting, checks."""

from __future__ import annotations

import numpy as np

from sparsegrad import memory
from sparsegrad.backends.base import Array, Survey
from sparsegrad.backends.cpu_jit_calls import I4, I8, NONE, inside, kernel_of, same_index, tasks_of
from sparsegrad.backends.cpu_jit_launch import contiguous, launch
from sparsegrad.backends.cpu_jit_part import CpuJitPart
from sparsegrad.backends.cpu_jit_sort import blocks_of, sort_entries

__all__ = ["CpuJitIndex"]

_MIN_SORT = 1 << 13  # sort_coo, group: entries
_MIN_IDS = 1 << 12  # ids_by_table: ids
_MIN_SCAN = 1 << 15  # expand, compress, order_facts, check_indices: entries


class CpuJitIndex(CpuJitPart):
    """Kernels of `cpu_jit_kernels_index` and `cpu_jit_kernels_sort`."""

    def expand(self, indptr: Array, nnz: int) -> Array:
        arrays = same_index(indptr) if self._pays(nnz, _MIN_SCAN) else None
        if arrays is None or int(indptr[-1]) != nnz:
            return super().expand(indptr, nnz)
        out = np.empty(nnz, dtype=indptr.dtype)
        tasks = tasks_of(nnz)
        launch(kernel_of("expand", out.dtype), (tasks, *arrays, out), tasks, nnz)
        return out

    def compress(self, ids: Array, n: int) -> Array:
        arrays = same_index(ids) if self._pays(ids.size, _MIN_SCAN) else None
        if arrays is None:
            return super().compress(ids, n)
        if ids.size and (ids[0] < 0 or ids[-1] >= n):  # sorted: these are the extremes
            return super().compress(ids, n)
        out = np.empty(n + 1, dtype=ids.dtype)
        tasks = tasks_of(ids.size)
        launch(kernel_of("compress", out.dtype), (tasks, *arrays, out), tasks, ids.size)
        return out

    def sort_coo(self, coords: tuple[Array, ...], shape: tuple[int, ...]) -> Array | None:
        arrays = same_index(*coords) if self._pays(coords[0].size, _MIN_SORT) else None
        if arrays is None:
            return super().sort_coo(coords, shape)
        if self.order_facts(coords)[0]:
            return None
        found = sort_entries(arrays, shape, runs=False)
        return super().sort_coo(coords, shape) if found is None else found.perm

    def survey(self, coords: tuple[Array, ...], shape: tuple[int, ...]) -> Survey | None:
        arrays = same_index(*coords) if self._pays(coords[0].size, _MIN_SORT) else None
        if arrays is None:
            return super().survey(coords, shape)
        if self.order_facts(coords)[0]:
            return super().survey(coords, shape)
        if (found := sort_entries(arrays, shape, runs=True)) is None:
            return super().survey(coords, shape)
        unique = int(found.distinct.sum()) == coords[0].size
        return Survey(found.perm, False, unique, None if unique else found.runs())

    def group(self, ids: Array, n: int) -> tuple[Array, Array]:
        counted = self._counted(ids, n)
        if counted is None:
            return super().group(ids, n)
        (ids,), counts, offsets = counted
        perm = memory.empty((ids.size,), ids.dtype)
        launch(kernel_of("group_ids", ids.dtype), (ids, counts, perm), len(counts), 4 * ids.size)
        return perm, offsets

    def regroup(self, indptr: Array, minor: Array, n: int) -> tuple[Array, Array, Array]:
        counted = self._counted(minor, n, indptr)
        if counted is None:
            return super().regroup(indptr, minor, n)
        (ids, ptr), counts, offsets = counted
        perm, lines = (memory.empty((ids.size,), ids.dtype) for _ in range(2))
        args = (ptr, ids, counts, perm, lines)
        launch(kernel_of("group_lines", ids.dtype), args, len(counts), 8 * ids.size)
        return perm, offsets, lines

    def _counted(
        self, ids: Array, n: int, *others: Array
    ) -> tuple[tuple[Array, ...], Array, Array] | None:
        """The arrays as kernels take them, where each block of ids puts the first of each kind,
        and the offsets of these; None where kernels do not serve."""
        if not (n and ids.size and self._pays(ids.size, _MIN_SORT)):
            return None
        arrays = same_index(ids, *others)
        if arrays is None:
            return None
        counts, wrong = np.empty((blocks_of(ids.size, n), n), ids.dtype), np.zeros(1, I8)
        kernel = kernel_of("count_ids", ids.dtype)
        launch(kernel, (arrays[0], counts, wrong), len(counts), ids.size)
        if wrong[0]:
            return None
        kernel_of("sum_counts", counts.dtype)(counts)
        return arrays, counts, np.append(counts[0], ids.dtype.type(ids.size))

    def order_facts(self, coords: tuple[Array, ...]) -> tuple[bool, bool]:
        many = len(coords) < 3 and self._pays(coords[0].size, _MIN_SCAN)
        arrays = same_index(*coords) if many else None
        if arrays is None:
            return super().order_facts(coords)
        facts = kernel_of("order_facts", arrays[0].dtype)(arrays[0], arrays[-1])
        return bool(facts & 1), bool(facts & 2)

    def copy_coords(
        self, name: str, coords: list[Array], shape: tuple[int, ...], dtype: np.dtype
    ) -> tuple[tuple[Array, ...], tuple[bool, bool] | None]:
        arrays = same_index(*coords) if self._pays(coords[0].size, _MIN_SCAN) else None
        if arrays is None:
            return super().copy_coords(name, coords, shape, dtype)
        kernel, tasks = kernel_of("copy_ids", arrays[0].dtype, dtype), tasks_of(arrays[0].size)
        copies, wrong = tuple(np.empty(ids.size, dtype) for ids in arrays), np.zeros(1, I8)
        lists = [*zip(arrays, shape, copies, strict=True), (NONE[arrays[0].dtype], 0, NONE[dtype])]
        for (one, m, to_one), (two, n, to_two) in zip(lists[:-1:2], lists[1::2], strict=True):
            args = (tasks, one, two, m, n, to_one, to_two, wrong)
            launch(kernel, args, tasks, 4 * one.size)
        if wrong[0]:
            self.check_coords(name, coords, shape)  # which says what is wrong and where
        return copies, None

    def check_indices(self, name: str, index: Array, bound: int, later: bool = False) -> None:
        arrays = same_index(index) if self._pays(index.size, _MIN_SCAN) else None
        if arrays is None or not inside(arrays[0], bound):
            super().check_indices(name, index, bound)  # which says what is wrong and where

    def ids_by_table(
        self, name: str, ids: Array, bounds: tuple[int, ...], dtype: np.dtype, later: bool = False
    ) -> Array:
        if ids.dtype not in (I4, I8) or not self._pays(ids.size, _MIN_IDS):
            return super().ids_by_table(name, ids, bounds, dtype)
        listed, wrong = np.empty(ids.shape[::-1], dtype), np.zeros(1, I8)
        tasks = tasks_of(ids.size)
        args = (tasks, contiguous(ids, ids.dtype), np.array(bounds, I8), listed, wrong)
        launch(kernel_of("ids_by_table", ids.dtype, listed.dtype), args, tasks, ids.size)
        return super().ids_by_table(name, ids, bounds, dtype) if wrong[0] else listed
