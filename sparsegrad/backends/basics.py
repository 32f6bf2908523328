"""What the other families of a backend's methods are made of: arrays made, moved and converted,
entries grouped and sorted, rows and sums by index.

Part of the contract; pure array code here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from sparsegrad.dtypes import accumulator

__all__ = ["Basics", "Survey"]

Array = Any  # numpy.ndarray, or cupy.ndarray with the same API


class Survey(NamedTuple):
    """Coordinate lists (nnz,) in lexicographic order.

    perm: their positions in that order, None if they are sorted. sorted, unique: as `order_facts`.
    runs: as `runs` of the sorted lists, None if none is longer than 1.
    """

    perm: Array | None
    sorted: bool
    unique: bool
    runs: tuple[tuple[Array, ...], Array] | None


class Basics:
    """Sizes are those of `Backend`."""

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
        """`segment_sum` of the rows values[perm], for positions perm (e,), none of them twice."""
        return self.segment_sum(self.gather(values, perm), indptr)

    def segment_spread(self, x: Array, indptr: Array, nnz: int) -> Array:
        """The transpose of `segment_sum`: every run takes its row, (s, *D) -> (nnz, *D)."""
        return self.gather(x, self.expand(indptr, nnz))
