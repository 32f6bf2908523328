"""The CPU with SciPy and NumPy: no compilation, one thread, good for small problems.

SciPy's compiled routines are called on the arrays themselves, as its matrix classes call them: to
make such a matrix, and another one of the result, takes several times as long as a small product.
Their module has a private name; names and arguments are the same in SciPy 1.15, the oldest that
serves, and in 1.17.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import _sparsetools as routines

from sparsegrad import memory
from sparsegrad.backends import joins, nearly_full
from sparsegrad.backends.base import Array, Backend, chunks
from sparsegrad.dtypes import accumulator, kind

__all__ = ["Cpu", "Lines"]

_SUMMED = "fdFDilq"  # dtypes that they sum in themselves
_MOST = int(np.iinfo(np.int32).max)
_INDEX = (np.dtype(np.int32), np.dtype(np.int64))  # what the routines take
_WIDE = 512  # elements in a row from which NumPy's loop along a row is what takes its time
_SCARCE = 8  # lines an entry from which a counter for each line costs more than sorting


class Lines(NamedTuple):
    """A matrix as SciPy's routines take it, by row or by column, whichever is at hand."""

    times_vector: Callable[..., None]
    times_matrix: Callable[..., None]
    m: int
    n: int
    indptr: Array
    ids: Array
    positions: Array | None  # of entries among the values

    @classmethod
    def of(cls, pattern: Any) -> Lines:
        """Those of a pattern, made once."""

        def build() -> Lines:
            if pattern.format == "csc":
                lines, ways = pattern.T.rows(), (routines.csc_matvec, routines.csc_matvecs)
            else:
                lines, ways = pattern.rows(), (routines.csr_matvec, routines.csr_matvecs)
            return cls(*ways, *pattern.shape, *lines)

        return pattern.cached("lines", build)

    def product(self, values: Array, x: Array) -> Array:
        """A @ x of one dtype, that routines know: values (nnz,), x (n, k), contiguous."""
        if self.positions is not None:
            values = values.take(self.positions)
        elif not values.flags.c_contiguous:
            values = values.copy()
        k = x.shape[1]
        out = np.zeros((self.m, k), x.dtype)
        arrays = self.indptr, self.ids, values, x.reshape(-1), out.reshape(-1)
        if k == 1:
            self.times_vector(self.m, self.n, *arrays)
        elif k:
            self.times_matrix(self.m, self.n, k, *arrays)
        return out


class Cpu(Backend):
    """SciPy where SciPy is good, `reduceat` and `repeat` where NumPy is."""

    name = "cpu"

    def sum(self, x: Array, axis: Any = None, keepdims: bool = False) -> Array:
        fold = _WIDE // x.shape[1] if x.ndim == 2 and axis == (0,) and x.shape[1] > 0 else 0
        if fold < 2 or len(x) < 4 * fold or x.dtype.char not in "fd" or not x.flags.c_contiguous:
            return super().sum(x, axis, keepdims)
        # Columns: first of a matrix with fewer rows that are several times as long.
        whole = len(x) - len(x) % fold
        parts = x[:whole].reshape(-1, fold * x.shape[1]).sum(axis=0).reshape(fold, -1)
        return parts.sum(axis=0, keepdims=keepdims) + x[whole:].sum(axis=0)

    def concatenate(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        shape, dtype = list(arrays[0].shape), arrays[0].dtype
        small = sum([x.nbytes for x in arrays]) < memory.LEAST
        if small or dtype.kind not in "fiubc" or any(x.dtype != dtype for x in arrays):
            return np.concatenate(arrays, axis=axis)
        shape[axis] = sum(x.shape[axis] for x in arrays)
        return np.concatenate(arrays, axis=axis, out=memory.empty(tuple(shape), dtype))

    def argkth(self, x: Array, axis: int, k: int) -> Array:
        if x.dtype.kind not in "fiub":
            return super().argkth(x, axis, k)
        value = np.partition(x, k, axis=axis).take([k], axis=axis)
        none = value != value
        before = ((x < value) | (none & (x == x))).sum(axis=axis, keepdims=True)
        equal = (x == value) | (none & (x != x))
        count = equal.cumsum(axis=axis, dtype="int32" if x.shape[axis] < 1 << 31 else "int64")
        return (count > k - before).argmax(axis=axis, keepdims=True)

    def gather(self, x: Array, index: Array) -> Array:
        # Several times as fast where it can be, but it first copies what is not contiguous.
        return x.take(index, axis=0) if x.flags.c_contiguous and x.ndim else x[index]

    def expand(self, indptr: Array, nnz: int) -> Array:
        if indptr.dtype not in _INDEX or indptr[-1] != nnz:
            return np.repeat(np.arange(indptr.size - 1, dtype=indptr.dtype), np.diff(indptr))
        out = np.empty(nnz, indptr.dtype)
        routines.expandptr(indptr.size - 1, indptr, out)
        return out

    def compress(self, ids: Array, n: int) -> Array:
        indptr = np.zeros(n + 1, dtype=ids.dtype)
        np.cumsum(np.bincount(ids, minlength=n), out=indptr[1:])
        return indptr

    def order_facts(self, coords: tuple[Array, ...]) -> tuple[bool, bool]:
        if coords[0].size < 2 or len(coords) > 2:
            return super().order_facts(coords)
        if len(coords) == 1:
            return self.line_facts(np.array((0, coords[0].size), coords[0].dtype), coords[0])
        before, after = coords[0][:-1], coords[0][1:]
        falls, stays = after < before, after == before
        before, after = coords[1][:-1], coords[1][1:]
        falls |= stays & (after < before)
        stays &= after == before
        sorted_ = not falls.any()
        return sorted_, sorted_ and not stays.any()

    def line_facts(self, indptr: Array, minor: Array) -> tuple[bool, bool]:
        if routines.csr_has_canonical_format(indptr.size - 1, indptr, minor):
            return True, True
        return bool(routines.csr_has_sorted_indices(indptr.size - 1, indptr, minor)), False

    def group(self, ids: Array, n: int) -> tuple[Array, Array]:
        perm, offsets, _ = self.regroup(np.array((0, ids.size), ids.dtype), ids, n)
        return perm, offsets

    def regroup(self, indptr: Array, minor: Array, n: int) -> tuple[Array, Array, Array]:
        dtype, nnz = minor.dtype, minor.size
        if dtype not in _INDEX or indptr.dtype != dtype or not _inside(minor, n):
            perm, offsets = super().group(minor, n)
            return perm, offsets, self.gather(self.expand(indptr, nnz), perm)
        perm, lines, offsets = (np.empty(size, dtype) for size in (nnz, nnz, n + 1))
        entries = np.arange(nnz, dtype=dtype)
        routines.csr_tocsc(indptr.size - 1, n, indptr, minor, entries, offsets, lines, perm)
        return perm, offsets, lines

    def sort_coo(self, coords: tuple[Array, ...], shape: tuple[int, ...]) -> Array | None:
        if self.order_facts(coords)[0]:
            return None
        if max(shape) <= _SCARCE * coords[0].size:  # lines are counted, for each list
            perm, _ = self.group(coords[-1], shape[-1])
            for c, n in zip(coords[-2::-1], shape[-2::-1], strict=True):
                perm = perm[self.group(c[perm], n)[0]]
            return perm
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

    def matrix(self, pattern: Any, values: Array) -> Array | None:
        if values.ndim != 1 or values.dtype.char not in _SUMMED:
            return None
        out = np.zeros(pattern.shape, values.dtype)
        if pattern.format == "csr" and (lines := pattern.rows())[2] is None:
            routines.csr_todense(*pattern.shape, *lines[:2], values, out)
        else:
            args = *pattern.shape, pattern.nnz, *pattern.coords, values, out.reshape(-1), False
            routines.coo_todense(*args)
        return out

    def scatter_add(self, out: Array, index: Array, values: Array) -> None:
        width = out[:1].size
        if (
            not (width and index.size)
            or out.dtype.char not in _SUMMED
            or out.dtype != values.dtype
            or values.shape != (index.size, *out.shape[1:])
            or not out.flags.carray
        ):
            super().scatter_add(out, index, values)
        elif width == 1:
            np.add.at(out.reshape(-1), index, values.reshape(-1))
        elif index.dtype in _INDEX and _inside(index, len(out)):
            # A product with a matrix of ones that has a column for every entry: np.add.at is fast
            # in one dimension alone.
            columns, ones = (
                np.arange(index.size + 1, dtype=index.dtype),
                np.ones(index.size, out.dtype),
            )
            arrays = columns, index, ones, values.reshape(-1), out.reshape(-1)
            routines.csc_matvecs(len(out), index.size, width, *arrays)
        else:
            super().scatter_add(out, index, values)

    def sum_runs(self, values: Array, perm: Array, indptr: Array) -> Array:
        width = values[:1].size
        if not width or values.dtype.char not in _SUMMED or not values.flags.c_contiguous:
            return super().sum_runs(values, perm, indptr)
        # A product with a matrix of ones, whose rows are the runs.
        out = np.zeros((indptr.size - 1, *values.shape[1:]), values.dtype)
        ones = np.ones(perm.size, values.dtype)
        arrays = indptr, perm, ones, values.reshape(-1), out.reshape(-1)
        if width == 1:
            routines.csr_matvec(len(out), len(values), *arrays)
        else:
            routines.csr_matvecs(len(out), len(values), width, *arrays)
        return out

    def segment_sum(self, values: Array, indptr: Array) -> Array:
        return self._reduceat(np.add, values, indptr, 0, dtype=accumulator(values.dtype))

    def segment_max(self, values: Array, indptr: Array) -> Array:
        lowest = -np.inf if kind(values.dtype) == "f" else np.iinfo(values.dtype).min
        return self._reduceat(np.maximum, values, indptr, lowest)

    def segment_prod(self, values: Array, runs: Any, zeros: Array) -> Array:
        wide = accumulator(values.dtype)
        out = self._reduceat(np.multiply, values, runs.indptr, 1, dtype=wide)
        out[zeros > 0] = 0
        return out

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
        n, k, dtype = pattern.shape[1], x.shape[-1], x.dtype
        plain = values.shape == (pattern.nnz,) and x.shape == (n, k)
        if not plain or dtype.char not in "fdgFDG":
            return super().spmm(pattern, values, x)
        if (out := nearly_full.spmm(self, pattern, values, x)) is not None:
            return out
        return Lines.of(pattern).product(np.asarray(values, dtype), np.ascontiguousarray(x))

    def sddmm(self, pattern: Any, x: Array, y: Array) -> Array:
        if x.dtype.kind not in "fc" or x.dtype == np.float16 or x.dtype != y.dtype:
            return super().sddmm(pattern, x, y)
        out = np.empty((pattern.nnz, *x.shape[1:-1]), dtype=x.dtype)
        row, col = pattern.row, pattern.col
        for part in chunks(pattern.nnz, math.prod(x.shape[1:])):
            rows, cols = x.take(row[part], axis=0), y.take(col[part], axis=0)
            np.einsum("...k,...k->...", rows, cols, out=out[part])
        return out

    def merge_rows(self, a: Any, b: Any) -> tuple[Array, Array, Array, Array] | None:
        (m, n), total = a.shape, a.nnz + b.nnz
        if not total or total > _MOST or not (a.core.unique and b.core.unique):
            return None
        # A sum of matrices whose values are pairs: the number of an entry of `a`, that of one of
        # `b`, as halves of an integer. They count from 1; 0 is no entry.
        sides = []
        for half, (pattern, first) in enumerate(((a, 1), (b, 1 + a.nnz))):
            indptr, cols, at = pattern.sorted_rows()
            pairs = np.zeros((pattern.nnz, 2), np.int32)
            pairs[:, half] = np.arange(first, first + pattern.nnz) if at is None else at + first
            sides += [indptr, cols, pairs.reshape(-1).view(np.int64)]
        dtype = _index_of(sides[0], sides[1], sides[3], sides[4])
        indptr, cols, found = (np.empty(size, t) for size, t in
                               ((m + 1, dtype), (total, dtype), (total, np.int64)))  # fmt: skip
        routines.csr_plus_csr(m, n, *sides, indptr, cols, found)
        nnz = int(indptr[-1])
        there = (pairs := found[:nnz].view(np.int32)) > 0
        perm = pairs.compress(there)
        perm -= 1
        runs = np.arange(nnz + 1, dtype=dtype)
        runs[1:] += (there[::2] & there[1::2]).cumsum(dtype=dtype)
        return indptr, cols[:nnz], perm.astype(dtype, copy=False), runs

    def shared_rows(self, a: Any, b: Any) -> tuple[Array, Array, Array, Array] | None:
        if max(a.nnz, b.nnz) >= _MOST or not (a.core.unique and b.core.unique):
            return None
        # A product of elements, in which the values of one matrix are the numbers of its entries,
        # counted from 1, and those of the other are ones.
        (a_indptr, a_cols, a_at), (b_indptr, b_cols, b_at) = a.sorted_rows(), b.sorted_rows()
        ones = np.ones(max(a.nnz, b.nnz), np.int32)
        a_ids, b_ids = (np.arange(1, p.nnz + 1, dtype=np.int32) for p in (a, b))
        dtype, room = _index_of(a_indptr, a_cols, b_indptr, b_cols), min(a.nnz, b.nnz)
        indptr, cols = np.empty(a_indptr.size, dtype), np.empty(room, dtype)
        found = []
        for v, w in ((a_ids, ones[: b.nnz]), (ones[: a.nnz], b_ids)):
            at = np.empty(room, np.int32)
            routines.csr_elmul_csr(
                *a.shape, a_indptr, a_cols, v, b_indptr, b_cols, w, indptr, cols, at
            )
            found.append(at[: int(indptr[-1])] - 1)
        left, right = found
        left = left if a_at is None else a_at[left]
        right = right if b_at is None else b_at[right]
        return indptr, cols[: left.size], left, right

    def spmm_extreme(
        self, pattern: Any, values: Array, x: Array, least: bool
    ) -> tuple[Array, Array]:
        indptr, col, positions = pattern.sorted_rows()
        m, nnz, width = pattern.shape[0], pattern.nnz, math.prod(x.shape[1:])
        if not nnz or not width:
            return super().spmm_extreme(pattern, values, x, least)
        better = np.minimum if least else np.maximum
        v = values if positions is None else values[positions]
        out = np.zeros((m, *x.shape[1:]), dtype=x.dtype)
        entry = np.full(out.shape, -1, dtype=np.int64)
        filled = np.flatnonzero(np.diff(indptr))
        starts = indptr[filled].astype(np.int64)
        # Rows in chunks of bounded products; a longer row is a chunk of its own.
        low = 0
        while low < filled.size:
            limit = starts[low] + max(1, joins.CHUNK // width)
            high = max(low + 1, int(np.searchsorted(starts, limit, side="right")) - 1)
            if limit >= nnz:
                high = filled.size
            begin, end = starts[low], (starts[high] if high < filled.size else nnz)
            rows, runs = filled[low:high], starts[low:high] - begin
            product = v[begin:end, ..., None] * x[col[begin:end]]
            best = better.reduceat(product, runs, axis=0)
            out[rows] = best
            owner = np.repeat(np.arange(rows.size), np.diff(np.append(runs, end - begin)))
            hit = (product == best[owner]) | (product != product)
            place = np.arange(begin, end).reshape(-1, *(1,) * (out.ndim - 1))
            entry[rows] = np.minimum.reduceat(np.where(hit, place, nnz), runs, axis=0)
            low = high
        if positions is not None:
            entry = np.where(entry < 0, -1, positions[entry])
        return out, entry

    def spgemm_pattern(self, left: Any, right: Any) -> tuple[Array, Array]:
        # Of bools: nothing cancels.
        ones = (np.ones(p.nnz, dtype=bool) for p in (left, right))
        indptr, cols, found = _product(left, next(ones), right, next(ones))
        routines.csr_sort_indices(indptr.size - 1, indptr, cols, found)
        return indptr, cols

    def spgemm(self, left: Any, a: Array, right: Any, b: Array, out: Any) -> Array:
        if a.ndim != 1 or a.dtype.kind not in "iufc" or a.dtype == np.float16:
            return super().spgemm(left, a, right, b, out)
        indptr, cols, data = _product(left, a, right, b)
        lines = out.sorted_rows()
        if cols.size != out.nnz:  # SciPy may leave entries out that come to 0
            rows = self.expand(indptr, cols.size)
            at, _ = joins.find(np, lines, rows, cols)
            listed = np.zeros(out.nnz, dtype=a.dtype)
            listed[at] = data
        else:  # the columns of a row come in an order that depends on the patterns only
            kept = out.cached("spgemm_order", dict)
            order = kept.get("order")
            if order is None or not np.array_equal(cols[order], lines[1]):
                order = kept["order"] = np.arange(out.nnz, dtype=cols.dtype)
                routines.csr_sort_indices(indptr.size - 1, indptr, cols, order)
            listed = data[order]
        if lines[2] is None:
            return listed
        values = np.empty_like(listed)
        values[lines[2]] = listed
        return values


def _inside(ids: Array, n: int) -> bool:
    """Whether all ids lie in [0, n): as unsigned numbers negative ones are large."""
    return not ids.size or bool(ids.view(f"u{ids.itemsize}").max() < n)


def _index_of(*arrays: Array) -> np.dtype:
    """The dtype of index arrays: the wider one, if there are two."""
    dtype = arrays[0].dtype
    for x in arrays:
        if x.dtype != dtype:
            return np.result_type(*arrays)
    return dtype


def _product(left: Any, a: Array, right: Any, b: Array) -> tuple[Array, Array, Array]:
    """Sparse @ sparse: offsets of the rows, columns in no order, values."""
    m, n = left.shape[0], right.shape[1]
    sides = [(indptr, ids, v if at is None else v[at])
             for (indptr, ids, at), v in ((left.rows(), a), (right.rows(), b))]  # fmt: skip
    indices = [x for indptr, ids, _ in sides for x in (indptr, ids)]
    nnz = routines.csr_matmat_maxnnz(m, n, *indices)
    dtype = np.dtype(np.int64) if nnz > _MOST else _index_of(*indices)
    indptr, cols, data = np.empty(m + 1, dtype), np.empty(nnz, dtype), np.empty(nnz, a.dtype)
    routines.csr_matmat(m, n, *sides[0], *sides[1], indptr, cols, data)
    nnz = int(indptr[-1])
    return indptr, cols[:nnz], data[:nnz]
