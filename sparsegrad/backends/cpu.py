"""The CPU with SciPy and NumPy: no compilation, one thread, good for small problems."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsegrad.backends.base import Array, Backend
from sparsegrad.dtypes import accumulator

__all__ = ["Cpu"]


class Cpu(Backend):
    """SciPy where SciPy is good, `reduceat` and `repeat` where NumPy is."""

    name = "cpu"

    def expand(self, indptr: Array, nnz: int) -> Array:
        return np.repeat(np.arange(indptr.size - 1, dtype=indptr.dtype), np.diff(indptr))

    def compress(self, ids: Array, n: int) -> Array:
        indptr = np.zeros(n + 1, dtype=ids.dtype)
        np.cumsum(np.bincount(ids, minlength=n), out=indptr[1:])
        return indptr

    def sort_coo(self, coords: tuple[Array, ...], shape: tuple[int, ...]) -> Array | None:
        if self.order_facts(coords)[0]:
            return None
        cells = 1
        for n in shape:
            cells *= n
        if cells > np.iinfo(np.int64).max:  # the key would wrap around
            return np.lexsort(coords[::-1])
        key = coords[0].astype(np.int64)
        for c, n in zip(coords[1:], shape[1:], strict=True):
            key *= n
            key += c
        return np.argsort(key, kind="stable")

    def scatter_add(self, out: Array, index: Array, values: Array) -> None:
        if out.ndim == 1 or out.dtype.kind not in "fc" or len(index) * out[:1].size < 4096:
            super().scatter_add(out, index, values)
            return
        # Rows: np.add.at is slow beyond one dimension; sort the few ids and sum their rows.
        order = np.argsort(index, kind="stable")
        ids = index[order]
        first = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
        wide = accumulator(out.dtype)
        summed = np.add.reduceat(values[order], first, axis=0, dtype=wide)
        out[ids[first]] = out[ids[first]] + summed

    def segment_sum(self, values: Array, indptr: Array) -> Array:
        return self._reduceat(np.add, values, indptr, 0, dtype=accumulator(values.dtype))

    def segment_max(self, values: Array, indptr: Array) -> Array:
        lowest = -np.inf if values.dtype.kind == "f" else np.iinfo(values.dtype).min
        return self._reduceat(np.maximum, values, indptr, lowest)

    def _reduceat(
        self, ufunc: np.ufunc, values: Array, indptr: Array, empty: Any, dtype: Any = None
    ) -> Array:
        out = np.full((indptr.size - 1, *values.shape[1:]), empty, dtype=values.dtype)
        filled = np.diff(indptr) > 0  # reduceat gives an empty run its successor's first value
        if values.dtype == bool and ufunc is np.add:
            ufunc, dtype = np.logical_or, None
        if filled.any():
            out[filled] = ufunc.reduceat(values, indptr[:-1][filled], axis=0, dtype=dtype)
        return out

    def spmm(self, pattern: Any, values: Array, x: Array) -> Array:
        if values.ndim != 1 or x.ndim != 2 or x.dtype.kind not in "fc" or x.dtype == np.float16:
            return super().spmm(pattern, values, x)
        indptr, indices, positions = pattern.rows()
        data = values if positions is None else values[positions]
        data = np.ascontiguousarray(data, dtype=x.dtype)
        return sp.csr_array((data, indices, indptr), shape=pattern.shape) @ x
