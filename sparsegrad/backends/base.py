"""The contract of a backend, and its complete reference in pure array code.

Every method is written in the subset of NumPy's API that CuPy shares, so this class is at once
the specification, the oracle of the fast backends, and their fallback. A `pattern` argument is
any object with `shape`, `nnz`, `row`, `col` (index arrays in entry order), `rows()` (entries
grouped by row: indptr, column indices, and the positions of those entries or None),
`sorted_rows()` (the same with columns rising in each row), `T` and `cached(key, build)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from sparsegrad.backends import joins, krylov, solvers
from sparsegrad.backends.checks import Checks
from sparsegrad.backends.chosen import Chosen
from sparsegrad.backends.degrees import Degrees
from sparsegrad.backends.dense import Dense
from sparsegrad.backends.moments import Moments
from sparsegrad.backends.philox import Draws
from sparsegrad.backends.places import Places
from sparsegrad.backends.products import Products
from sparsegrad.backends.steps import Steps
from sparsegrad.dtypes import accumulator, kind

__all__ = ["Backend", "chunks"]

Array = Any  # numpy.ndarray, or cupy.ndarray with the same API

# Elements a temporary of the chunked products may hold: a few MiB, whatever nnz and k are.
_CHUNK = 1 << 20


class Survey(NamedTuple):
    """Coordinate lists (nnz,) in lexicographic order.

    perm: their positions in that order, None if they are sorted. sorted, unique: as `order_facts`.
    runs: as `runs` of the sorted lists, None if none is longer than 1.
    """

    perm: Array | None
    sorted: bool
    unique: bool
    runs: tuple[tuple[Array, ...], Array] | None


class Backend(Checks, Chosen, Degrees, Dense, Moments, Places, Products, Steps, Draws):
    """Array methods that NumPy's API lacks; pure-`xp` reference. Those of optimizers: `Steps`;
    of random numbers: `Draws`; of dense layers: `Dense`; of chosen entries: `Chosen`; checks of
    indices: `Checks`; where entries lie: `Places`; entries by the sums of lines: `Degrees`;
    products of runs: `Products`; their variances: `Moments`.

    Sizes: a pattern is (m, n) with nnz entries, H stands for any number of head dimensions,
    D for trailing dense ones.
    """

    name = "reference"
    xp: ModuleType = np
    scatter_sorts = False  # whether `scatter_add` sorts its ids: runs that are kept are better
    keeps_ids = False  # whether to look at a user's index costs more than to compare it

    # ---- creation and transfer -----------------------------------------------------------------
    def asarray(self, x: Any, dtype: Any = None) -> Array:
        """`x` as an array of this device; copies only if it must."""
        return self.xp.asarray(x, dtype=dtype)

    def convert(self, x: Array, dtype: np.dtype) -> Array:
        """`x` in another dtype; itself if it has that one."""
        return x.astype(dtype, copy=False)

    def concatenate(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        """Arrays of one dtype joined along an axis."""
        return self.xp.concatenate(arrays, axis=axis)

    def to_host(self, array: Array) -> np.ndarray:
        """The array in host memory."""
        return np.asarray(array)

    def mark(self) -> Any:
        """This moment in the work of the device, for `wait`; None where work is done when a call
        returns."""
        return None

    def wait(self, mark: Any) -> None:
        """Let work that is queued from now on come after what was queued before `mark`."""

    def fused(self, formula: Callable[..., Array], *arrays: Any, **static: Any) -> Array:
        """formula(xp, *arrays, **static), each element from those at its place: arrays broadcast,
        numbers stand for themselves. In one pass where that is possible."""
        return formula(self.xp, *arrays, **static)

    # ---- dense sums that need a wider accumulator ----------------------------------------------
    def sum(self, x: Array, axis: Any = None, keepdims: bool = False) -> Array:
        """Sum over `axis`; 16-bit floats are summed in float32."""
        # The method, here and elsewhere: a function of NumPy costs as much again.
        wide = accumulator(x.dtype)
        out = x.sum(axis=axis, keepdims=keepdims, dtype=wide)
        return out if wide is x.dtype else out.astype(x.dtype)

    def matmul(self, a: Array, b: Array) -> Array:
        """Matrix product with NumPy's broadcasting; 16-bit floats accumulate in float32."""
        wide = accumulator(a.dtype)
        if wide == a.dtype:
            return self.xp.matmul(a, b)
        return self.convert(self.xp.matmul(*(self.convert(x, wide) for x in (a, b))), a.dtype)

    # ---- functions that the array libraries lack ---------------------------------------------
    def erf(self, x: Array) -> Array:
        """The error function, elementwise, in the dtype of x: SciPy on the host."""
        from scipy.special import erf

        return self.asarray(erf(self.to_host(x)), x.dtype)

    def divided(self, name: str, a: Array, b: Array) -> Array:
        """`remainder`, `fmod` or `floor_divide` of `xp`, of arrays and numbers; 16 bits in
        float32."""
        wide = [self.convert(x, accumulator(x.dtype)) if hasattr(x, "dtype") else x for x in (a, b)]
        return getattr(self.xp, name)(*wide)

    def special(self, name: str, *args: Any) -> Array:
        """A function of `scipy.special` of numbers and, last, an array, on the host; 16 bits in
        float32."""
        from scipy import special

        *numbers, x = args
        found = getattr(special, name)(*numbers, self.to_host(x).astype(accumulator(x.dtype)))
        return self.asarray(found, accumulator(x.dtype))

    # ---- index work ----------------------------------------------------------------------------
    def same(self, a: Array, b: Array) -> bool:
        """Whether arrays of one shape and dtype are equal everywhere."""
        return bool((a == b).all())

    def expand(self, indptr: Array, nnz: int) -> Array:
        """Offsets (n + 1,) to sorted ids (nnz,): the row of every entry."""
        entries = self.xp.arange(nnz, dtype=indptr.dtype)
        return (self.xp.searchsorted(indptr, entries, side="right") - 1).astype(indptr.dtype)

    def compress(self, ids: Array, n: int) -> Array:
        """Sorted ids (nnz,) in [0, n) to offsets (n + 1,), in the dtype of `ids`."""
        edges = self.xp.arange(n + 1, dtype=ids.dtype)
        return self.xp.searchsorted(ids, edges).astype(ids.dtype)

    def sort_coo(self, coords: tuple[Array, ...], shape: tuple[int, ...]) -> Array | None:
        """The stable permutation (nnz,) to lexicographic order; None if sorted already."""
        if self.order_facts(coords)[0]:
            return None
        return self.xp.lexsort(self.xp.stack(coords[::-1]))

    def group(self, ids: Array, n: int) -> tuple[Array, Array]:
        """Stable grouping of unsorted ids in [0, n): permutation (nnz,) and offsets (n + 1,)."""
        perm = self.xp.argsort(ids, kind="stable").astype(ids.dtype)
        return perm, self.compress(ids[perm], n)

    def order_facts(self, coords: tuple[Array, ...]) -> tuple[bool, bool]:
        """(lexicographically sorted, and free of duplicates) of coordinate lists."""
        if coords[0].size < 2:
            return True, True
        after = self.xp.zeros(coords[0].size - 1, dtype=bool)
        equal = self.xp.ones(coords[0].size - 1, dtype=bool)
        for c in coords:
            after |= equal & (c[1:] > c[:-1])
            equal &= c[1:] == c[:-1]
        return bool((after | equal).all()), bool(after.all())

    def runs(self, coords: tuple[Array, ...]) -> tuple[tuple[Array, ...], Array]:
        """Distinct coordinates (u,) of sorted lists (nnz,), and where the run of each begins:
        (u + 1,), in their dtype."""
        xp, nnz, dtype = self.xp, coords[0].size, coords[0].dtype
        new = xp.ones(nnz, dtype=bool)
        new[1:] = False
        for c in coords:
            new[1:] |= c[1:] != c[:-1]
        starts = xp.flatnonzero(new).astype(dtype)
        offsets = xp.concatenate((starts, xp.asarray([nnz], dtype=dtype)))
        return tuple(c[starts] for c in coords), offsets

    def touched(self, ids: Array, n: int) -> tuple[Array, Array, Array, Array] | None:
        """Rows, perm, indptr and n_rows of a `RowGradient` with entries in the rows `ids` (e,) of
        n, where that means no waiting for a device; None where `runs` is as good."""
        return None

    def touched_tables(
        self, ids: Array, bound: int
    ) -> list[tuple[Array, Array, Array, Array]] | None:
        """`touched` of several tables of at most `bound` rows, with entries in the rows ids[f] (e,)
        of table f."""
        return None

    def survey(self, coords: tuple[Array, ...], shape: tuple[int, ...]) -> Survey | None:
        """What `sort_coo`, `order_facts` and `runs` find, where each of them has to wait for a
        device and one wait will do; None where they are to be asked."""
        return None

    # ---- rows and sums by index ----------------------------------------------------------------
    def gather(self, x: Array, index: Array) -> Array:
        """Rows x[index]: x (n, *D), index (e,) -> (e, *D)."""
        return x[index]

    def gather_tables(self, tables: Sequence[Array], index: Array) -> Array:
        """Rows tables[f][index[f]] side by side: tables f of (V_f, D_f), of one dtype, index (F, e)
        -> (e, sum of D_f)."""
        out = self.xp.empty((index.shape[1], sum(x.shape[1] for x in tables)), tables[0].dtype)
        column = 0
        for x, ids in zip(tables, index, strict=True):
            out[:, column : column + x.shape[1]] = self.gather(x, ids)
            column += x.shape[1]
        return out

    def gather_or_zero(self, x: Array, index: Array) -> Array:
        """`gather`, with zeros where an index is one past the end."""
        zero = self.xp.zeros((1, *x.shape[1:]), x.dtype)
        return self.gather(self.xp.concatenate((x, zero)), index)

    def matrix(self, pattern: Any, values: Array) -> Array | None:
        """A matrix (m, n) of zeros with values (nnz,) added at the entries of a pattern; None where
        `put_rows` at the cells is as good."""
        return None

    def put_rows(self, values: Array, index: Array, n: int, distinct: bool = False) -> Array:
        """The transpose of `gather`: values (e, *D), index (e,) in [0, n) -> (n, *D); rows with
        the same index add up, unless it is known that there are none (`distinct`). Index work may
        be kept as long as that array lives: nobody may change it."""
        out = self.xp.zeros((n, *values.shape[1:]), values.dtype)
        self.scatter_add(out, index, values)
        return out

    def scatter_add(self, out: Array, index: Array, values: Array) -> None:
        """out[index[e]] += values[e] in place; ids in any order, duplicates add up.

        `out` is (n, *D), values (nnz, *D). 16-bit floats are accumulated in float32. Of `index` the
        same holds as in `put_rows`.
        """
        if out.dtype == bool:
            hits = self.xp.zeros(out.shape, dtype=np.int32)
            self.xp.add.at(hits, index, values.astype(np.int32))
            out |= hits > 0
            return
        wide = accumulator(out.dtype)
        if out.dtype.kind == "c":
            self.scatter_add(out.real, index, values.real)
            self.scatter_add(out.imag, index, values.imag)
        elif wide != out.dtype:
            total = out.astype(wide)
            self.xp.add.at(total, index, values.astype(wide))
            out[...] = total
        else:
            self.xp.add.at(out, index, values)

    def add_rows(self, x: Array, index: Array, values: Array) -> Array:
        """`scatter_add` to a copy of x (n, *D), for index (e,), values (e, *D)."""
        out = x.copy()
        self.scatter_add(out, index, values)
        return out

    def segment_sum(self, values: Array, indptr: Array) -> Array:
        """Sums of consecutive runs: values (nnz, *D), offsets (s + 1,) -> (s, *D)."""
        out = self.xp.zeros((indptr.size - 1, *values.shape[1:]), dtype=values.dtype)
        self.scatter_add(out, self.expand(indptr, len(values)), values)
        return out

    def sum_runs(self, values: Array, perm: Array, indptr: Array) -> Array:
        """`segment_sum` of the rows values[perm], of a permutation perm (nnz,)."""
        return self.segment_sum(self.gather(values, perm), indptr)

    def segment_spread(self, x: Array, indptr: Array, nnz: int) -> Array:
        """The transpose of `segment_sum`: every run takes its row, (s, *D) -> (nnz, *D)."""
        return self.gather(x, self.expand(indptr, nnz))

    def segment_amax(self, values: Array, indptr: Array, absent: Array) -> Array:
        """Maxima of each run and of as many zeros as `absent` (s,), int64, says: (s, *D); 0 for
        neither."""
        return self._with_zeros(self.segment_max(values, indptr), indptr, absent, self.xp.maximum)

    def segment_amin(self, values: Array, indptr: Array, absent: Array) -> Array:
        """Minima, as `segment_amax` finds maxima."""
        if kind(values.dtype) == "f":
            return -self.segment_amax(-values, indptr, absent)
        out = ~self.segment_max(~values, indptr)  # -values need not be one of integers
        return self._with_zeros(out, indptr, absent, self.xp.minimum)

    def _with_zeros(self, out: Array, indptr: Array, absent: Array, meet: Any) -> Array:
        """Extremes of runs, and of as many zeros as `absent` says; 0 of neither."""
        xp, zero = self.xp, out.dtype.type(0)
        lead = (-1, *(1,) * (out.ndim - 1))
        out = xp.where((absent > 0).reshape(lead), meet(out, zero), out)
        empty = (xp.diff(indptr) == 0).reshape(lead)
        return xp.where(empty, zero, out).astype(out.dtype, copy=False)

    def segment_amax_grad(
        self, g: Array, values: Array, out: Array, indptr: Array, absent: Array
    ) -> Array:
        """The gradient of `segment_amax` (or `segment_amin`) from its result, (nnz, *D): ties share
        it equally, absent zeros among them. They are counted in float64: float32 stops at 2^24."""
        xp, nnz, wide = self.xp, len(values), np.float64
        hit = values == self.segment_spread(out, indptr, nnz)
        zeros = absent.reshape(-1, *(1,) * (out.ndim - 1)).astype(wide)
        ties = self.segment_sum(hit.astype(wide), indptr) + (out == 0) * zeros
        share = (g.astype(wide) / xp.maximum(ties, 1)).astype(g.dtype)
        return self.segment_spread(share, indptr, nnz) * hit.astype(g.dtype)

    def extreme_at(self, out: Array, index: Array, values: Array, least: bool) -> None:
        """out[index[e]] becomes the larger (or lesser) of itself and values[e], in place; nan wins.

        `out` is (n, *D), values (nnz, *D).
        """
        with np.errstate(invalid="ignore"):
            (self.xp.minimum if least else self.xp.maximum).at(out, index, values)

    def segment_max(self, values: Array, indptr: Array) -> Array:
        """Maxima of consecutive runs (s, *D); the lowest value of the dtype for an empty run."""
        lowest = -np.inf if kind(values.dtype) == "f" else np.iinfo(values.dtype).min
        out = self.xp.full((indptr.size - 1, *values.shape[1:]), lowest, dtype=values.dtype)
        self.extreme_at(out, self.expand(indptr, len(values)), values, least=False)
        return out

    def segment_softmax(self, values: Array, indptr: Array) -> Array:
        """Softmax within consecutive runs, shifted by each run's maximum: (nnz, *D)."""
        ids = self.expand(indptr, len(values))
        wide = values.astype(accumulator(values.dtype), copy=False)
        top = self.segment_max(wide, indptr)
        top[~self.xp.isfinite(top)] = 0  # a run of -inf alone is 0/0 = nan, as in dense softmax
        with np.errstate(over="ignore", invalid="ignore"):
            weight = self.xp.exp(wide - top[ids])
            out = weight / self.segment_sum(weight, indptr)[ids]
        return out.astype(values.dtype, copy=False)

    def segment_softmax_grad(self, g: Array, out: Array, indptr: Array) -> Array:
        """out * (g - sum over the run of g * out): gradient of `segment_softmax`, (nnz, *D)."""
        ids = self.expand(indptr, len(out))
        wide = accumulator(out.dtype)
        out_wide, g_wide = out.astype(wide, copy=False), g.astype(wide, copy=False)
        dot = self.segment_sum(g_wide * out_wide, indptr)
        return (out_wide * (g_wide - dot[ids])).astype(out.dtype, copy=False)

    def segment_logsumexp(self, values: Array, indptr: Array) -> Array:
        """log(sum(exp(values))) of each run (s, *D), shifted by its maximum; 0 for an empty run."""
        _, shift, total = self._shifted(values, indptr)
        with np.errstate(divide="ignore"):  # a run of -inf alone: log(0) is the right answer
            return (self.xp.log(total) + shift).astype(values.dtype, copy=False)

    def segment_log_softmax(self, values: Array, indptr: Array) -> Array:
        """(values - max) - log(sum(exp(values - max))) of each run (nnz, *D): no cancellation for
        values of large magnitude."""
        wide, shift, total = self._shifted(values, indptr)
        ids = self.expand(indptr, len(values))
        with np.errstate(divide="ignore"):
            out = wide - shift[ids] - self.xp.log(total)[ids]
        return out.astype(values.dtype, copy=False)

    def segment_log_softmax_grad(self, g: Array, out: Array, indptr: Array) -> Array:
        """g - exp(out) * sum over the run of g: gradient of `segment_log_softmax`, (nnz, *D)."""
        wide = accumulator(out.dtype)
        total = self.segment_sum(g.astype(wide, copy=False), indptr)
        weight = self.xp.exp(out.astype(wide, copy=False))
        total = total[self.expand(indptr, len(out))]
        return (g - weight * total).astype(out.dtype, copy=False)

    def _shifted(self, values: Array, indptr: Array) -> tuple[Array, Array, Array]:
        """Values in the accumulator's dtype, the (finite) maximum of each run, and the sum of
        exp(values - maximum); 0 and 1 for an empty run."""
        xp = self.xp
        wide = values.astype(accumulator(values.dtype), copy=False)
        top = self.segment_max(wide, indptr)
        shift = xp.where(xp.isfinite(top), top, top.dtype.type(0))
        total = self.segment_sum(xp.exp(wide - shift[self.expand(indptr, len(values))]), indptr)
        empty = (xp.diff(indptr) == 0).reshape(-1, *(1,) * (top.ndim - 1))
        return wide, shift, xp.where(empty, top.dtype.type(1), total)

    # ---- sparse products -----------------------------------------------------------------------
    def spmm(self, pattern: Any, values: Array, x: Array) -> Array:
        """Sparse @ dense: values (nnz, *H), x (n, *H, k) -> (m, *H, k); absent rows are 0."""
        shape = (pattern.shape[0], *x.shape[1:])
        out = self.xp.zeros(shape, dtype=accumulator(x.dtype))
        row, col = pattern.row, pattern.col
        for part in chunks(pattern.nnz, x.size // max(1, len(x))):
            scaled = values[part, ..., None].astype(out.dtype, copy=False) * x[col[part]]
            self.scatter_add(out, row[part], scaled)
        return out.astype(x.dtype, copy=False)

    def spmm_mean(self, pattern: Any, values: Array, x: Array) -> Array:
        """Like `spmm`, divided by the number of entries of each row; 0 in an empty row."""
        wide = accumulator(x.dtype)  # a sum may overflow float16 where its mean does not
        total = self.spmm(pattern, values.astype(wide, copy=False), x.astype(wide, copy=False))
        count = self.entries_of_rows(pattern, x.ndim).astype(wide)
        return (total / count).astype(x.dtype, copy=False)

    def entries_of_rows(self, pattern: Any, ndim: int) -> Array:
        """How many entries each row has, at least 1, in as many dimensions: (m, 1, ...)."""
        count = pattern.cached(
            "entries_of_rows", lambda: self.xp.maximum(self.xp.diff(pattern.rows()[0]), 1)
        )
        return count.reshape(-1, *(1,) * (ndim - 1))

    def sddmm(self, pattern: Any, x: Array, y: Array) -> Array:
        """Entries of x @ y.T on the pattern: x (m, *H, k), y (n, *H, k) -> (nnz, *H)."""
        out = self.xp.empty((pattern.nnz, *x.shape[1:-1]), dtype=x.dtype)
        row, col, wide = pattern.row, pattern.col, accumulator(x.dtype)
        for part in chunks(pattern.nnz, x.size // max(1, len(x))):
            out[part] = (x[row[part]] * y[col[part]].astype(wide, copy=False)).sum(axis=-1)
        return out

    def spmm_extreme(
        self, pattern: Any, values: Array, x: Array, least: bool
    ) -> tuple[Array, Array]:
        """Largest (or least) products values[e] * x[col] of each row: values (nnz, *H),
        x (n, *H, k) -> (m, *H, k), and the entry each came from.

        The first entry by column wins ties, nan wins over numbers; an empty row gives 0 and
        entry -1. The pattern must be coalesced.
        """
        xp, (m, nnz) = self.xp, (pattern.shape[0], pattern.nnz)
        out = xp.full((m, *x.shape[1:]), _worst(x.dtype, least), dtype=x.dtype)
        entry = xp.full(out.shape, nnz, dtype=np.int64)  # in row-major order at first
        indptr, col, positions = pattern.sorted_rows()
        row = self.expand(indptr, nnz)
        v = values if positions is None else values[positions]
        parts = chunks(nnz, x.size // max(1, len(x)))
        with np.errstate(invalid="ignore"):
            for part in parts:
                self.extreme_at(out, row[part], v[part, ..., None] * x[col[part]], least)
        for part in parts:
            product, best = v[part, ..., None] * x[col[part]], out[row[part]]
            hit = (product == best) | (product != product)
            place = xp.arange(part.start, part.stop).reshape(-1, *(1,) * (out.ndim - 1))
            xp.minimum.at(entry, row[part], xp.where(hit, place, nnz))
        return _listed(xp, out, entry, positions, nnz)

    def spgemm_pattern(self, left: Any, right: Any) -> tuple[Array, Array]:
        """The entries of a sparse @ sparse product: offsets of its rows (m + 1,), and columns,
        which rise in each row.

        Counts are 64-bit; what is held at a time is a chunk of products and the distinct entries
        found so far.
        """
        xp, shape = self.xp, (left.shape[0], right.shape[1])
        indptr, cols, _ = left.sorted_rows()
        rows = self.expand(indptr, cols.size)
        r_indptr, r_cols, _ = right.sorted_rows()
        found = [(rows[:0], r_cols[:0])]
        for e, f in joins.pairs(self, cols, r_indptr):
            found.append(self._distinct(rows[e], r_cols[f], shape))
        row, col = (xp.concatenate(c) for c in zip(*found, strict=True))
        row, col = self._distinct(row, col, shape)
        return self.compress(row, shape[0]), col

    def _distinct(self, row: Array, col: Array, shape: tuple[int, int]) -> tuple[Array, Array]:
        order = self.sort_coo((row, col), shape)
        if order is not None:
            row, col = row[order], col[order]
        new = self.xp.ones(row.size, dtype=bool)
        new[1:] = (row[1:] != row[:-1]) | (col[1:] != col[:-1])
        return row[new], col[new]

    def spgemm(self, left: Any, a: Array, right: Any, b: Array, out: Any) -> Array:
        """Sparse @ sparse: a (nnz, *H) on left (m, k), b (nnz, *H) on right (k, n) -> values
        (nnz, *H) on `out` (m, n), which holds every entry of the product. Patterns are coalesced.
        """
        return self._product(left, a, right, b, out, "mask")

    def spgemm_masked(self, left: Any, a: Array, right: Any, b: Array, mask: Any) -> Array:
        """Entries of sparse @ sparse at a coalesced pattern only: (nnz of mask, *H); the rest of
        the product is never stored."""
        return self._product(left, a, right, b, mask, None)

    def _product(
        self, left: Any, a: Array, right: Any, b: Array, mask: Any, way: str | None
    ) -> Array:
        out = self.xp.zeros((mask.nnz, *a.shape[1:]), dtype=accumulator(a.dtype))
        for e, f, t in joins.triples(self, left, right, mask, way):
            self.scatter_add(out, t, a[e].astype(out.dtype, copy=False) * b[f])
        return out.astype(a.dtype, copy=False)

    # ---- sparse solvers: direct ones by SciPy on the host --------------------------------------
    def factorize(self, pattern: Any, values: Array) -> Any:
        """An LU factorization of the square matrix: `.solve(b, transposed)` gives x (n, k)."""
        return solvers.Factor(self, pattern.shape, self._csr(pattern, values))

    def triangular_solve(
        self, pattern: Any, values: Array, b: Array, lower: bool, unit: bool
    ) -> Array:
        """x (n, k) of A @ x = b (n, k) for a coalesced triangular A; `unit`: A + I is meant, and
        no diagonal is stored."""
        args = self._csr(pattern, values), self.to_host(b), lower, unit
        return self.asarray(solvers.triangular(*args))

    def krylov(self, pattern: Any, values: Array, b: Array, options: Any) -> Array:
        """x (n, k) of A @ x = b (n, k), iteratively, by `options.method`."""
        return krylov.krylov(self, pattern, values, b, options)

    def _csr(self, pattern: Any, values: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(data, indices, indptr) in host memory, columns sorted."""
        indptr, cols, positions = pattern.sorted_rows()
        data = values if positions is None else values[positions]
        return self.to_host(data), self.to_host(cols), self.to_host(indptr)


def chunks(n: int, width: int) -> list[slice]:
    """Slices of n rows of `width` elements, so that a temporary of one stays small."""
    step = max(1, _CHUNK // max(1, width))
    return [slice(i, min(i + step, n)) for i in range(0, n, step)]


def _worst(dtype: np.dtype, least: bool) -> Any:
    if kind(dtype) == "f":
        return np.inf if least else -np.inf
    if dtype.kind == "b":
        return least
    return np.iinfo(dtype).max if least else np.iinfo(dtype).min


def _listed(
    xp: Any, out: Array, entry: Array, positions: Array | None, nnz: int
) -> tuple[Array, Array]:
    """Row-major entries as entries of the pattern; 0 and -1 where a row has none."""
    none = entry == nnz
    out[none] = 0
    if nnz and positions is not None:
        entry = positions[xp.where(none, 0, entry)]
    return out, xp.where(none, -1, entry)
