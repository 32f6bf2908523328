"""The contract of a backend, and its complete reference in pure array code.

Every method is written in the subset of NumPy's API that CuPy shares, so this class is at once
the specification, the oracle of the fast backends, and their fallback. A `pattern` argument is
any object with `shape`, `nnz`, `row`, `col` (index arrays in entry order), `rows()` (entries
grouped by row: indptr, column indices, and the positions of those entries or None),
`sorted_rows()` (the same with columns rising in each row), `T` and `cached(key, build)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegrad.backends import joins, krylov, solvers
from sparsegrad.backends.basics import Array, Survey
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

__all__ = ["Array", "Backend", "Survey", "chunks"]

# Elements a temporary of the chunked products may hold: a few MiB, whatever nnz and k are.
_CHUNK = 1 << 20


class Backend(Checks, Chosen, Degrees, Dense, Moments, Places, Products, Steps, Draws):
    """Array methods that NumPy's API lacks; pure-`xp` reference. What all are made of: `Basics`;
    those of optimizers: `Steps`; of random numbers: `Draws`; of dense layers: `Dense`; of chosen
    entries: `Chosen`; checks of indices: `Checks`; where entries lie: `Places`; entries by the
    sums of lines: `Degrees`; products of runs: `Products`; their variances: `Moments`.

    Sizes: a pattern is (m, n) with nnz entries, H stands for any number of head dimensions,
    D for trailing dense ones.
    """

    name = "reference"

    # ---- runs of entries ------------------------------------------------------------------------
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

    def spmm_bias_act(
        self, pattern: Any, values: Array, x: Array, bias: Array, activation: str
    ) -> Array:
        """`bias_act` of A @ x, for values (nnz,) of a pattern (m, n) and x (n, k): (m, k)."""
        return self.bias_act(self.spmm(pattern, values, x), bias, activation)

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
