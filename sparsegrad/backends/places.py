"""Where entries lie: index work on lines, which are entries grouped by row and sorted by column.

Part of the contract; pure array code here.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from sparsegrad.backends import joins

__all__ = ["Places"]

Array = Any


class Places:
    """Positions of runs and of single cells, entries that stay, lines by index, and two patterns
    made one."""

    xp: ModuleType = np

    def expand(self, indptr: Array, nnz: int) -> Array:
        raise NotImplementedError

    def gather(self, x: Array, index: Array) -> Array:
        raise NotImplementedError

    def group(self, ids: Array, n: int) -> tuple[Array, Array]:
        raise NotImplementedError

    def order_facts(self, coords: tuple[Array, ...]) -> tuple[bool, bool]:
        raise NotImplementedError

    def spans(self, starts: Array, offsets: Array) -> Array:
        """Runs one behind the other: starts[i], starts[i] + 1, ... for every run i, of lengths
        diff(offsets): starts (s,), offsets (s + 1,) -> (offsets[-1],)."""
        total = int(offsets[-1])
        shift = starts - offsets[:-1]
        return shift[self.expand(offsets, total)] + self.xp.arange(total)

    def compact(
        self, keep: Array, lists: Sequence[Array], offsets: Array | None = None
    ) -> tuple[Array | None, tuple[Array, ...], Array | None]:
        """The entries where the bool array `keep` (nnz,) is true: their positions, what each of the
        lists (nnz,) says of them, and the offsets (s + 1,) of runs of entries afterwards. Where all
        stay, positions are None and the rest is as it was."""
        entries = self.xp.flatnonzero(keep)
        if entries.size == keep.size:
            return None, tuple(lists), offsets
        if offsets is not None:
            upto = self.xp.zeros(keep.size + 1, dtype=np.int64)
            upto[1:] = self.xp.cumsum(keep, dtype=np.int64)
            offsets = upto[offsets]
        return entries, tuple(self.gather(x, entries) for x in lists), offsets

    def least_in_runs(self, key: Array, offsets: Array, order: Array | None, k: int) -> Array:
        """Which entries (nnz,) are among the k least of their run, of equal ones the first: offsets
        (s + 1,) of the runs of entries listed by `order` (nnz,), None where they are.

        Runs with more than k entries are laid side by side, those of similar length together, and
        partitioned around the k-th: nothing is sorted.
        """
        xp, listed = self.xp, key if order is None else key[order]
        sizes = xp.diff(offsets)
        longest = int(sizes.max()) if sizes.size else 0
        chosen, width = xp.full(key.size, k > 0), k
        while 0 < width < longest:
            shorter, width = width, 2 * width
            alike = xp.flatnonzero((sizes > shorter) & (sizes <= width))
            place = offsets[alike][:, None] + xp.arange(width)
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
