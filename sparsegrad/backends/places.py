"""Where entries lie: index work on lines, which are entries grouped by row and sorted by column.

Part of the contract; pure array code here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsegrad.backends import joins
from sparsegrad.backends.basics import Array, Basics

__all__ = ["Places"]


class Places(Basics):
    """Positions of runs and of single cells, entries that stay, lines by index, and two patterns
    made one."""

    def spans(self, starts: Array, offsets: Array) -> Array:
        """Runs one behind the other: starts[i], starts[i] + 1, ... for every run i, of lengths
        diff(offsets): starts (s,), offsets (s + 1,) -> (offsets[-1],)."""
        total = int(offsets[-1])
        shift = starts - offsets[:-1]
        return shift[self.expand(offsets, total)] + self.xp.arange(total)

    # Which entries stay is a bool array (nnz,), or whatever of that meaning a backend likes better
    # and takes itself.
    def beyond(self, x: Array, threshold: float = 0.0, order: Array | None = None) -> Any:
        """The entries, listed by `order` (None: as they are), of which an element of x (nnz, *D) is
        true, or a number with |x| > threshold, or nan."""
        if x.dtype != bool:
            x = self.fused(_beyond, x, threshold=float(threshold))
        if x.ndim > 1:
            x = x.any(axis=tuple(range(1, x.ndim)))
        return x if order is None else self.gather(x, order)

    def compact(
        self, keep: Any, lists: Sequence[Array], offsets: Array | None = None
    ) -> tuple[Array | None, tuple[Array, ...], Array | None]:
        """The entries that stay, `keep` (nnz,) says which: their positions, what each of the lists
        (nnz,) says of them, and the offsets (s + 1,) of runs of entries afterwards. Where all
        stay, positions are None and the rest is as it was."""
        entries = self.xp.flatnonzero(keep)
        if entries.size == keep.size:
            return None, tuple(lists), offsets
        if offsets is not None:
            upto = self.xp.zeros(keep.size + 1, dtype=np.int64)
            upto[1:] = self.xp.cumsum(keep, dtype=np.int64)
            offsets = upto[offsets]
        return entries, tuple(self.gather(x, entries) for x in lists), offsets

    def pick(self, mask: Array, a: Array, left: Array, b: Array, right: Array) -> Array:
        """Elements of the rows a[left] where a mask (e, *D) is true, of b[right] elsewhere, zeros
        where an index is one past the end: a (n, *D), b (m, *D), left and right (e,) -> (e, *D)."""
        return self.xp.where(mask, self.gather_or_zero(a, left), self.gather_or_zero(b, right))

    def columns(self, lists: Sequence[Array]) -> Array:
        """Lists of integers (n,) of one dtype side by side, as int64 (n, d)."""
        return self.xp.stack(lists, axis=1, dtype=np.int64)

    def true_cells(
        self,
        truth: Array,
        listed: Array | None = None,
        cell: Array | None = None,
        entry: Array | None = None,
    ) -> tuple[Array | None, Array, int]:
        """The entries of a matrix in true cells of a mask, in which of these cells each of them is,
        and how many cells there are.

        truth: of the entries of the mask, bool. listed: all of these in the order in which true
        cells are numbered and, behind them, those that are entries of the matrix too. cell, entry
        (e,): the number in `listed` of each of the latter, and where it is in the matrix. Without
        `cell` the matrix has the entries of the mask, and they are listed once. None stands for
        0, 1, 2, ...
        """
        truth = truth if listed is None else self.gather(truth, listed)
        if cell is None:
            entries, found, _ = self.compact(truth, () if entry is None else (entry,))
            count = int(truth.size if entries is None else entries.size)
            return found[0] if found else entries, self.xp.arange(count), count
        first = truth.size - cell.size
        number = self.xp.cumsum(truth[:first], dtype=cell.dtype)
        _, (cell, entry), _ = self.compact(truth[first:], (cell, entry))
        return entry, number[cell] - 1, int(number[-1]) if first else 0

    def ranked(self, x: Array, magnitude: bool) -> Array:
        """What rises as the numbers x fall: nan before all, no zero before another."""
        return self.fused(_ranked, x, magnitude=magnitude)

    def largest_in_runs(self, x: Array, runs: Any, k: int, magnitude: bool) -> Any:
        """The entries that are among the k largest of their run, of equal ones the first; by
        |x| if `magnitude`, nan the largest. x (nnz,).

        runs: an object with `offsets` (s + 1,), `longest`, the entries of the longest one, and of
        what the offsets count the `order` (nnz,), with its inverse `listed`, None for as they
        are, and `segment` (nnz,), the run.

        Runs with more than k entries are laid side by side, those of similar length together, and
        partitioned around the k-th: nothing is sorted.
        """
        xp, order, key = self.xp, runs.order, self.ranked(x, magnitude)
        listed = key if order is None else key[order]
        sizes = xp.diff(runs.offsets)
        chosen, width = xp.full(key.size, k > 0), k
        while 0 < width < runs.longest:
            shorter, width = width, 2 * width
            alike = xp.flatnonzero((sizes > shorter) & (sizes <= width))
            place = runs.offsets[alike][:, None] + xp.arange(width)
            inside = xp.arange(width) < sizes[alike][:, None]
            place = xp.where(inside, place, 0)
            block = xp.where(inside, listed[place], xp.inf)
            last = xp.partition(block, k - 1, axis=1)[:, k - 1 : k]
            less, equal = block < last, block == last
            room = k - less.sum(axis=1, keepdims=True)
            first = less | (equal & (xp.cumsum(equal, axis=1) <= room))
            chosen[place[inside]] = first[inside]
        if order is None:
            return chosen
        keep = xp.empty_like(chosen)
        keep[order] = chosen
        return keep

    def line_runs(self, indptr: Array, ids: Array) -> tuple[Array, Array]:
        """The lines ids[0], ids[1], ... one behind the other: indptr (m + 1,), ids (k,) in range ->
        where each begins (k,), and the offsets (k + 1,)."""
        starts = indptr[ids]
        offsets = self.xp.zeros(ids.size + 1, dtype=np.int64)
        offsets[1:] = self.xp.cumsum(indptr[ids + 1] - starts)
        return starts, offsets

    def take_runs(self, x: Array, runs: Any) -> Array:
        """Rows of x (n, *D) in runs, an object with `starts` (s,), `offsets` (s + 1,) and
        `positions`, as `spans` lists them: (offsets[-1], *D)."""
        return self.gather(x, runs.positions)

    def line_facts(self, indptr: Array, minor: Array) -> tuple[bool, bool]:
        """(minor ids never fall within a line, and none occurs twice in one): `order_facts` of
        lines (m + 1,), (nnz,)."""
        return self.order_facts((self.expand(indptr, minor.size), minor))

    def regroup(self, indptr: Array, minor: Array, n: int) -> tuple[Array, Array, Array]:
        """`group` of the minor ids (nnz,) of lines (m + 1,): permutation (nnz,), offsets (n + 1,),
        and the line of every entry in its new place (nnz,)."""
        perm, offsets = self.group(minor, n)
        return perm, offsets, self.gather(self.expand(indptr, minor.size), perm)

    def shared_rows(self, a: Any, b: Any) -> tuple[Array, Array, Array, Array] | None:
        """The entries of both of two patterns of one shape without duplicates: offsets of the rows
        (m + 1,), columns, and their positions in `a` and in `b`. None where they are to be looked
        for among those of either."""
        return None

    def find(self, indptr: Array, cols: Array, row: Array, col: Array) -> Array:
        """Where the cells (row[q], col[q]) stand among lines without duplicates: indptr (m + 1,),
        cols (nnz,), row and col (q,) in range -> positions (q,), -1 for a cell that is not there.
        """
        at, there = joins.find(self.xp, (indptr, cols, None), row, col)
        return self.xp.where(there, at, -1)

    def merge_rows(self, a: Any, b: Any) -> tuple[Array, Array, Array, Array] | None:
        """The entries of either of two patterns of one shape without duplicates: offsets of the
        rows (m + 1,), columns, and for the values of `a` and `b` joined the order in which they
        stand there and the runs (entries + 1,) that are one entry. None where all of them are to
        be sorted."""
        return None


def _beyond(xp: Any, x: Any, threshold: float) -> Any:
    return ~(xp.abs(x) <= threshold)


def _ranked(xp: Any, x: Any, magnitude: bool) -> Any:
    return xp.where(xp.isnan(x), -xp.inf, 0 - (xp.abs(x) if magnitude else x))
