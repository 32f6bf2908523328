"""The products of `CpuJit` whose patterns are known: sparse @ sparse, and by maximum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsegrad import memory
from sparsegrad.backends import joins
from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu_jit_calls import I4, I8, kernel_of, tasks_of
from sparsegrad.backends.cpu_jit_launch import contiguous, launch
from sparsegrad.backends.cpu_jit_part import CpuJitPart
from sparsegrad.backends.cpu_jit_places import close_gaps, row_cuts, running
from sparsegrad.dtypes import accumulator, kind

__all__ = ["CpuJitProducts", "wide_of"]

_MIN_PAIRS = 1 << 14  # pairs of entries below which SciPy and NumPy serve
_MOST_PAIRS = 1 << 26  # entries for which there is room before it is known how many differ


def wide_of(dtype: np.dtype) -> np.dtype | None:
    """The dtype in which kernels compute, None for a dtype that they do not serve."""
    return accumulator(dtype) if kind(dtype) == "f" else None


class CpuJitProducts(CpuJitPart):
    """Kernels of `cpu_jit_kernels_product`."""

    def spgemm_pattern(self, left: Any, right: Any) -> tuple[Array, Array]:
        pairs = joins.count(np, left, right)
        if not (pairs and self._pays(pairs, _MIN_PAIRS)):
            return super().spgemm_pattern(left, right)
        m, n = left.shape[0], right.shape[1]
        sides = [side.sorted_rows()[:2] for side in (left, right)]
        index = np.dtype(np.result_type(*(lines[0].dtype for lines in sides)))
        if index not in (I4, I8):
            return super().spgemm_pattern(left, right)
        arrays = [contiguous(x, index) for lines in sides for x in lines]
        starts = running(_work(arrays[0], arrays[1], arrays[2]))
        cuts, counts = row_cuts(starts + np.arange(m + 1)), np.empty(m, np.int64)
        kernel = kernel_of("product_pattern", index)
        all_fit = pairs <= _MOST_PAIRS
        if not all_fit:  # count first
            args = (cuts, n, *arrays, False, starts, counts, np.empty(0, index))
            launch(kernel, args, cuts.size - 1, pairs)
            starts = running(counts)
        cols = memory.empty((int(starts[-1]),), index)
        args = (cuts, n, *arrays, all_fit, starts, counts, cols)
        launch(kernel, args, cuts.size - 1, pairs)
        offsets = running(counts)
        return offsets, close_gaps(cuts, starts, cols, offsets)

    def spgemm(self, left: Any, a: Array, right: Any, b: Array, out: Any) -> Array:
        found = self._on_mask(left, a, right, b, out, "mask")
        return super().spgemm(left, a, right, b, out) if found is None else found

    def spgemm_masked(self, left: Any, a: Array, right: Any, b: Array, mask: Any) -> Array:
        found = self._on_mask(left, a, right, b, mask, None)
        return super().spgemm_masked(left, a, right, b, mask) if found is None else found

    def _on_mask(
        self, left: Any, a: Array, right: Any, b: Array, mask: Any, way: str | None
    ) -> Array | None:
        if a.ndim > 1:  # heads, one after the other
            width = math.prod(a.shape[1:])
            heads = zip(*(v.reshape(len(v), width).T for v in (a, b)), strict=True)
            parts: list[Any] = [self._on_mask(left, v, right, w, mask, way) for v, w in heads]
            if not parts or any(part is None for part in parts):
                return None
            return np.stack(parts, axis=1).reshape(mask.nnz, *a.shape[1:])
        wide = wide_of(a.dtype)
        if wide is None or not (left.nnz and right.nnz and mask.nnz):
            return None
        complete, chosen = way is not None, way
        if chosen is None:
            chosen, pairs = joins.cheapest(np, left, right, mask)
        else:
            pairs = joins.count(np, left, right)
        if not self._pays(pairs, _MIN_PAIRS):
            return self._product(left, a, right, b, mask, chosen) if way is None else None
        way = chosen
        if way == "right":  # look B up: the transposed product, the other way round
            left, a, right, b, mask = right.T, b, left.T, a, mask.T
        middle = right if way == "mask" else right.T
        sides = [side.sorted_rows() for side in (left, middle, mask)]
        index = np.dtype(np.result_type(*(lines[0].dtype for lines in sides)))
        if index not in (I4, I8):
            return None
        arrays = [contiguous(x, index) for lines in sides for x in lines[:2]]
        values = [
            contiguous(v if lines[2] is None else v[lines[2]], wide)
            for v, lines in zip((a, b), sides, strict=False)
        ]
        # Rows in chunks of equal work: the runs that are walked, and the row's own entries.
        outer, inner = (sides[0], sides[1]) if way == "mask" else (sides[2], sides[1])
        done = running(_work(*(contiguous(x, index) for x in (*outer[:2], inner[0]))))
        cuts = row_cuts(done + outer[0] + sides[0][0] + sides[2][0])
        width = left.shape[1] if way != "mask" else right.shape[1]
        out = memory.empty((mask.nnz,), wide)
        name = "product_scatter" if way == "mask" else "product_gather"
        name = "product_sum" if complete else name
        args = (cuts, width, *arrays, *values, out)
        launch(kernel_of(name, wide, index), args, cuts.size - 1, pairs)
        at = sides[2][2]
        if at is not None:
            listed = np.empty_like(out)
            listed[at] = out
            out = listed
        return out.astype(a.dtype, copy=False)

    def spmm_extreme(
        self, pattern: Any, values: Array, x: Array, least: bool
    ) -> tuple[Array, Array]:
        wide, nnz, m = wide_of(x.dtype), pattern.nnz, pattern.shape[0]
        heads, k = math.prod(x.shape[1:-1]), x.shape[-1]
        indptr, cols, positions = pattern.sorted_rows()
        work = nnz * heads * k
        if (
            wide is None
            or values.dtype != x.dtype
            or indptr.dtype not in (I4, I8)
            or not work
            or not self._pays(work, _MIN_PAIRS)
        ):
            return super().spmm_extreme(pattern, values, x, least)
        index = indptr.dtype
        v = values if positions is None else values[positions]
        out = np.empty((m, heads, k), dtype=wide)
        entry = np.empty((m, heads, k), dtype=np.int64)
        cuts = row_cuts(indptr.astype(np.int64) + np.arange(m + 1))
        args = (
            cuts,
            contiguous(indptr, index),
            contiguous(cols, index),
            contiguous(v, wide).reshape(nnz, heads),
            contiguous(x, wide).reshape(len(x), heads, k),
            least,
            out,
            entry,
        )
        launch(kernel_of("spmm_extreme", wide, index), args, cuts.size - 1, work)
        if positions is not None:
            entry = np.where(entry < 0, -1, positions[entry])
        shape = (m, *x.shape[1:])
        return out.astype(x.dtype, copy=False).reshape(shape), entry.reshape(shape)


def _work(indptr: Array, cols: Array, r_indptr: Array) -> Array:
    """Pairs of entries (m,) that each row of a product sums."""
    work, tasks = np.empty(indptr.size - 1, np.int64), tasks_of(cols.size)
    args = (tasks, indptr, cols, r_indptr, work)
    launch(kernel_of("product_work", indptr.dtype), args, tasks, 2 * cols.size)
    return work
