"""Sparse @ sparse in pure array code: products of entries that meet, found chunk by chunk.

A masked product M = (A @ B)|_P sums a[e] * b[f] into m[t] over the *triples* of entries
e = (i, l) of A, f = (l, j) of B, t = (i, j) of P. Any two of the three patterns can be joined on
their common index and the third looked up, so there are three ways to the same sums; `cheapest`
counts what each would expand. Nothing larger than a chunk of triples is ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["CHUNK", "Lines", "cheapest", "count", "find", "pairs", "triples"]

Array = Any
# Entries grouped by row and sorted by column within it: offsets, columns, and the positions of
# those entries in the order of the values (None where they coincide).
Lines = tuple[Array, Array, Array | None]

CHUNK = 1 << 18  # pairs of entries in a temporary


def pairs(be: Any, runs: Array, indptr: Array, chunk: int = 0) -> Iterator[tuple[Array, Array]]:
    """Every entry of run `runs[o]` for every outer entry o, in order: (outer, inner) positions.

    runs (o,): a run for each outer entry. indptr (s + 1,): offsets of the runs. Counts are 64-bit.
    """
    xp, chunk = be.xp, chunk or CHUNK
    starts = indptr[:-1].astype("int64")
    lengths = xp.diff(indptr.astype("int64"))[runs]
    ends = xp.cumsum(lengths)
    total = int(ends[-1]) if lengths.size else 0
    low = 0
    for bound in range(chunk, total + chunk, chunk):
        high = int(xp.searchsorted(ends, xp.asarray([bound]), side="right")[0])
        high = min(max(high, low + 1), lengths.size)  # one run may exceed a chunk, but is O(nnz)
        if low >= lengths.size:
            break
        offsets = xp.concatenate((xp.zeros(1, dtype="int64"), xp.cumsum(lengths[low:high])))
        count = int(offsets[-1])
        if count:
            outer = be.expand(offsets, count)
            inner = xp.arange(count) + (starts[runs[low:high]] - offsets[:-1])[outer]
            yield outer + low, inner
        low = high


def find(xp: Any, lines: Lines, row: Array, col: Array) -> tuple[Array, Array]:
    """Where (row[q], col[q]) stands among sorted, unique lines: position (q,), and whether it is
    there (q,). A binary search within the row: no key that could overflow."""
    indptr, cols, _ = lines
    low, end = indptr[row].astype("int64"), indptr[row + 1].astype("int64")
    if not cols.size:
        return low, xp.zeros(row.size, dtype=bool)
    high = end
    longest = int(xp.diff(indptr).max())
    for _ in range(longest.bit_length()):
        middle = (low + high) >> 1
        open_ = low < high
        less = open_ & (cols[xp.minimum(middle, cols.size - 1)] < col)
        low = xp.where(less, middle + 1, low)
        high = xp.where(open_ & ~less, middle, high)
    at = xp.minimum(low, cols.size - 1)
    return at, (low < end) & (cols[at] == col)


def count(xp: Any, left: Any, right: Any) -> int:
    """Products that left @ right sums: pairs of entries that meet on the inner dimension."""
    return int((_lengths(xp, left.T) * _lengths(xp, right)).sum())


def _lengths(xp: Any, pattern: Any) -> Array:
    """Entries of each row, without grouping them where they are not."""

    def build() -> Array:
        if pattern.format == "csr":
            return xp.diff(pattern.rows()[0].astype("int64"))
        return xp.bincount(pattern.row, minlength=pattern.shape[0])

    return pattern.cached("row_lengths", build)


def cheapest(xp: Any, left: Any, right: Any, mask: Any) -> tuple[str, int]:
    """The pattern to look up ("mask", "left" or "right") and how many pairs that expands."""
    ways = {
        "mask": count(xp, left, right),
        "right": count(xp, mask.T, left),
        "left": count(xp, mask, right.T),
    }
    best = min(ways, key=lambda way: ways[way])
    return best, ways[best]


def triples(
    be: Any, left: Any, right: Any, mask: Any, way: str | None = None
) -> Iterator[tuple[Array, Array, Array]]:
    """Positions (e, f, t), in entry order of each pattern, of all triples, chunk by chunk.

    The patterns must be coalesced; left (m, k), right (k, n), mask (m, n).
    """
    xp = be.xp
    way = way or cheapest(xp, left, right, mask)[0]
    if way == "mask":  # join A and B on l, look (i, j) up in P
        indptr, cols, e_at = left.sorted_rows()
        rows = be.expand(indptr, cols.size)
        r_indptr, r_cols, f_at = right.sorted_rows()
        lines = mask.sorted_rows()
        for e, f in pairs(be, cols, r_indptr):
            t, hit = find(xp, lines, rows[e], r_cols[f])
            yield _at(e_at, e[hit]), _at(f_at, f[hit]), _at(lines[2], t[hit])
    elif way == "right":  # join P and A on i, look (l, j) up in B
        indptr, cols, t_at = mask.sorted_rows()
        rows = be.expand(indptr, cols.size)
        l_indptr, l_cols, e_at = left.sorted_rows()
        lines = right.sorted_rows()
        for t, e in pairs(be, rows, l_indptr):
            f, hit = find(xp, lines, l_cols[e], cols[t])
            yield _at(e_at, e[hit]), _at(lines[2], f[hit]), _at(t_at, t[hit])
    else:  # join P and B on j, look (i, l) up in A: the transposed product, the other way round
        for f, e, t in triples(be, right.T, left.T, mask.T, "right"):
            yield e, f, t


def _at(positions: Array | None, index: Array) -> Array:
    return index if positions is None else positions[index]
