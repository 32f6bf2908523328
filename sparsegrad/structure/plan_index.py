"""Plans of what an index takes out of a pattern: cuts, lines, cells, what a mask is true of.

Each is a `Select`: applying it is one `take` on values, so none of them needs a gradient rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from sparsegrad.structure.arrays import Array, Moves, Runs, index_dtype
from sparsegrad.structure.core import Core
from sparsegrad.structure.pattern import Pattern
from sparsegrad.structure.plan import intersection, remember
from sparsegrad.structure.plan_select import Select, assemble, compressed, concatenate, grouped

__all__ = ["Part", "cells", "cut", "lines", "masked", "of_ids", "rolled"]

T = TypeVar("T")

_FEW = 1024  # entries that are looked at sooner than the pattern is asked whether it is sorted

# What a cut leaves of a dimension: the entries at one id (the dimension goes), or a range of ids.
Part = int | range


# ---- slices and numbers ------------------------------------------------------------------------
def cut(pattern: Pattern, parts: tuple[Part, ...]) -> tuple[Pattern | None, Array]:
    """One part for each sparse dimension -> the pattern (None if no dimension is left) and the
    old positions of its entries. A cut along the rows of a CSR pattern (the columns of a CSC one)
    reads no other row."""
    build = _cut if pattern.format == "coo" else _cut_compressed
    return remember(("cut", parts), (pattern,), lambda: build(pattern, parts))


def _cut(pattern: Pattern, parts: tuple[Part, ...]) -> tuple[Pattern | None, Array]:
    xp = pattern.core.backend.xp
    coords = pattern.coords
    keep = xp.ones(pattern.nnz, dtype=bool)
    for c, n, part in zip(coords, pattern.shape, parts, strict=True):
        if part != range(n):
            keep &= _inside(c, part)
    index = xp.flatnonzero(keep)
    left = [
        (_renumbered(c[index], part), len(part))
        for c, part in zip(coords, parts, strict=True)
        if not isinstance(part, int)
    ]
    if not left:
        return None, index
    return assemble("coo", [c for c, _ in left], tuple(n for _, n in left)).pattern, index


def _cut_compressed(pattern: Pattern, parts: tuple[Part, ...]) -> tuple[Pattern | None, Array]:
    be, fmt = pattern.core.backend, pattern.format
    xp = be.xp
    axis = 0 if fmt == "csr" else 1
    major, minor = parts[axis], parts[1 - axis]
    indptr, ids, positions = grouped(pattern)
    index = None
    if major != range(pattern.shape[axis]):
        rows = range(major, major + 1) if isinstance(major, int) else major
        if rows.step == 1:
            start, stop = int(indptr[rows.start]), int(indptr[max(rows.start, rows.stop)])
            indptr = indptr[rows.start : max(rows.start, rows.stop) + 1] - start
            index, ids = xp.arange(start, stop), ids[start:stop].copy()
        else:
            listed = rows.start + rows.step * xp.arange(len(rows))
            starts, indptr = be.line_runs(indptr, listed)
            index = be.spans(starts, indptr)
            ids = be.gather(ids, index)
    if minor != range(pattern.shape[1 - axis]):
        kept, (ids,), indptr = be.compact(_inside(ids, minor), (ids,), indptr)
        ids = _renumbered(ids, minor)
        if kept is not None:
            index = kept if index is None else index[kept]
    index = xp.arange(pattern.nnz) if index is None else index
    index = index if positions is None else positions[index]
    if isinstance(major, int):
        if isinstance(minor, int):
            return None, index
        return assemble("coo", [ids], (len(minor),)).pattern, index
    if isinstance(minor, int):
        return assemble("coo", [be.expand(indptr, int(ids.size))], (len(major),)).pattern, index
    shape = (len(major), len(minor)) if axis == 0 else (len(minor), len(major))
    return compressed(fmt, shape, indptr, ids), index


def _inside(ids: Array, part: Part) -> Array:
    if isinstance(part, int):
        return ids == part
    part = part if part.step > 0 else part[::-1]
    inside = (ids >= part.start) & (ids < part.stop)
    return inside if part.step == 1 else inside & ((ids - part.start) % part.step == 0)


def _renumbered(ids: Array, part: Part) -> Array:
    """Ids inside a part by their place in it."""
    if isinstance(part, int) or part == range(part.stop):
        return ids
    if part.step == 1:
        return ids - part.start
    return (ids - part.start) // part.step


def rolled(pattern: Pattern, dim: int, first: int) -> tuple[Pattern, Moves]:
    """The slices along a sparse `dim` from `first` on, and behind them those before it: the
    pattern, in the format of the given one, and where its entries were."""

    def build() -> tuple[Pattern, Moves]:
        be, whole = pattern.core.backend, [range(n) for n in pattern.shape]
        halves = [
            cut(pattern, (*whole[:dim], part, *whole[dim + 1 :]))
            for part in (whole[dim][first:], whole[dim][:first])
        ]
        # Ranges alone leave every dimension, so each half has a pattern.
        joined = concatenate([half for half, _ in halves if half is not None], dim)
        perm = be.concatenate([positions for _, positions in halves])
        if joined.entries is not None:
            perm = be.gather(perm, joined.entries)
        dtype = index_dtype(pattern.shape, pattern.nnz)
        return joined.pattern, Moves(perm.astype(dtype, copy=False))

    return remember(("roll", dim, first), (pattern,), build)


# ---- index arrays ------------------------------------------------------------------------------
def lines(pattern: Pattern, dim: int, ids: Array) -> Select:
    """The rows (slices along `dim`) ids[0], ids[1], ...: ids of any shape in range, repeats
    allowed."""
    return of_ids(("lines", dim), pattern, (ids,), lambda: _lines(pattern, dim, ids.reshape(-1)))


def of_ids(kind: Any, pattern: Pattern, ids: tuple[Array, ...], build: Callable[[], T]) -> T:
    """A plan that depends on index arrays too: those that `of_array` keeps come again."""
    return remember(kind, (pattern,), build, ids) if pattern.core.backend.keeps_ids else build()


def _lines(pattern: Pattern, dim: int, ids: Array) -> Select:
    shape = tuple(int(ids.size) if d == dim else n for d, n in enumerate(pattern.shape))
    across = pattern.ndim == 2 and pattern.format == ("csc", "csr")[dim]
    many = across and 8 * int(ids.size) >= pattern.shape[dim]
    if many and (chosen := _renumbered_lines(pattern, dim, ids, shape)) is not None:
        return chosen
    if not _has_offsets(pattern, dim, int(ids.size)):
        index, number = _join(pattern, (dim,), (ids,))
        coords = [c[index] for c in pattern.coords]
        coords[dim] = number
        return assemble(pattern.format, coords, shape, index)
    be, fmt = pattern.core.backend, pattern.format
    indptr, other, positions = (pattern.T if dim else pattern).rows()
    runs = Runs(*be.line_runs(indptr, ids))
    offsets, minor = runs.offsets, be.take_runs(other, runs)
    if positions is not None:
        index = be.take_runs(positions, runs)
    else:
        index = runs.positions if across else runs
    if fmt == ("csr", "csc")[dim]:
        return Select(compressed(fmt, shape, offsets, minor), index)
    coords = [minor]
    coords.insert(dim, be.expand(offsets, int(minor.size)))
    return assemble(fmt, coords, shape, index)


def _renumbered_lines(
    pattern: Pattern, dim: int, ids: Array, shape: tuple[int, ...]
) -> Select | None:
    """A good part of the columns of a CSR matrix (rows of a CSC one): every entry is asked where
    its line goes, in one pass. Entries stay in order. None if a line is wanted twice."""
    be = pattern.core.backend
    xp, numbers = be.xp, be.xp.arange(ids.size, dtype="int32")
    places = xp.full(pattern.shape[dim], -1, dtype="int32")
    places[ids] = numbers
    if not bool((places[ids] == numbers).all()):  # sync
        return None
    indptr, minor, positions = grouped(pattern)
    to = be.gather(places, minor)
    entries, (to,), offsets = be.compact(to >= 0, (to,), indptr)
    if positions is not None:
        entries = positions if entries is None else be.gather(positions, entries)
    return Select(compressed(pattern.format, shape, offsets, to), entries, distinct=True)


def _has_offsets(pattern: Pattern, dim: int, wanted: int) -> bool:
    """Whether the offsets of a dimension are there, or not much longer than what is asked for."""
    if pattern.ndim != 2:
        return False
    if pattern.format == ("csr", "csc")[dim]:
        return True
    return pattern.shape[dim] <= 8 * (pattern.nnz + wanted) + 1024


def cells(pattern: Pattern, dims: tuple[int, ...], ids: Sequence[Array], place: int) -> Select:
    """The entries whose ids along `dims` are (ids[0][i], ids[1][i], ...), for every i in turn: a
    dimension of that many cells at `place` replaces `dims`. ids: arrays that broadcast."""

    def build() -> Select:
        xp, sizes = pattern.core.backend.xp, np.broadcast_shapes(*(i.shape for i in ids))
        return _cells(pattern, dims, [xp.broadcast_to(i, sizes).reshape(-1) for i in ids], place)

    return of_ids(("cells", dims, place), pattern, tuple(ids), build)


def _cells(pattern: Pattern, dims: tuple[int, ...], ids: Sequence[Array], place: int) -> Select:
    index, number = _matches(pattern, dims, ids)
    rest = [d for d in range(pattern.ndim) if d not in dims]
    coords = [pattern.coords[d][index] for d in rest]
    coords.insert(place, number)
    shape = [pattern.shape[d] for d in rest]
    shape.insert(place, int(ids[0].size))
    return assemble(pattern.format, coords, tuple(shape), index)


def _matches(pattern: Pattern, dims: tuple[int, ...], ids: Sequence[Array]) -> tuple[Array, Array]:
    """Every pair of a wanted cell and an entry in it: positions of entries, numbers of cells."""
    axis, count = 1 if pattern.format == "csc" else 0, int(ids[0].size)
    if not _has_offsets(pattern, axis, count):
        return _join(pattern, dims, ids)
    be, turned = pattern.core.backend, pattern.T if axis else pattern
    row, col = ids[axis], ids[1 - axis]
    indptr, minor, positions = turned.rows()
    starts = indptr[row]
    offsets = _running(be.xp, indptr[row + 1] - starts)
    total = int(offsets[-1])
    if total > 4 * count + _FEW and pattern.core.unique:
        indptr, minor, positions = turned.sorted_rows()
        at = be.find(indptr, minor, row, col)
        number = be.xp.flatnonzero(at >= 0)
        index = at[number]
    elif total <= pattern.nnz + 16 * count:  # every entry of the rows is looked at
        index, number = be.spans(starts, offsets), be.expand(offsets, total)
        hit = be.xp.flatnonzero(minor[index] == col[number])
        index, number = index[hit], number[hit]
    else:
        return _join(pattern, dims, ids)
    return index if positions is None else positions[index], number


def _join(pattern: Pattern, dims: tuple[int, ...], ids: Sequence[Array]) -> tuple[Array, Array]:
    """The same by sorting the entries."""
    be = pattern.core.backend
    xp = be.xp
    entry, wanted = pattern.coords[dims[0]], ids[0]
    if len(dims) > 1:  # cells as ranks among all that occur: no key that could overflow
        both = tuple(
            xp.concatenate((pattern.coords[d].astype(i.dtype), i))
            for d, i in zip(dims, ids, strict=True)
        )
        rank = _ranks(be, both, tuple(pattern.shape[d] for d in dims))
        entry, wanted = rank[: pattern.nnz], rank[pattern.nnz :]
    order = xp.argsort(entry, kind="stable")
    listed = entry[order]
    starts = xp.searchsorted(listed, wanted, side="left")
    offsets = _running(xp, xp.searchsorted(listed, wanted, side="right") - starts)
    at = be.spans(starts, offsets)
    return order[at], be.expand(offsets, int(offsets[-1]))


def _ranks(be: Any, coords: tuple[Array, ...], shape: tuple[int, ...]) -> Array:
    """Equal numbers for equal coordinates, rising with them."""
    xp = be.xp
    perm = be.sort_coo(coords, shape)
    listed = coords if perm is None else tuple(c[perm] for c in coords)
    new = xp.zeros(coords[0].size, dtype=bool)
    for c in listed:
        new[1:] |= c[1:] != c[:-1]
    number = xp.cumsum(new)
    if perm is None:
        return number
    out = xp.empty_like(number)
    out[perm] = number
    return out


def _running(xp: Any, counts: Array) -> Array:
    """Offsets (n + 1,) of runs with these lengths (n,)."""
    offsets = xp.zeros(counts.size + 1, dtype=xp.int64)
    offsets[1:] = xp.cumsum(counts, dtype=xp.int64)
    return offsets


# ---- masks -------------------------------------------------------------------------------------
def masked(pattern: Pattern, mask: Pattern, truth: Array) -> Select:
    """The entries in cells where a mask is true, truth (nnz of the mask,), on a line of as many
    cells as are true, in row-major order. Both patterns are coalesced; on the very pattern of the
    mask, as A > 0 is, nothing has to be found."""
    if pattern.same_as(mask):
        _, order = pattern.to("coo")
        met = order, None, order
    else:
        met = remember("masked", (pattern, mask), lambda: _met(pattern, mask))
    entries, cells, count = pattern.core.backend.true_cells(truth, *met)
    core = Core("coo", (count,), (cells.astype(index_dtype((count,), count), copy=False),))
    core.know_canonical()
    return Select(Pattern(core, "coo"), entries, distinct=True)


def _met(pattern: Pattern, mask: Pattern) -> tuple[Array, Array, Array]:
    """What `true_cells` asks: entries of the mask in row-major order and, behind them, those that
    the pattern has too; of the latter, their numbers in that list and in the pattern."""
    (a, first), (b, second) = pattern.to("coo"), mask.to("coo")
    both, be = intersection(a, b), pattern.core.backend
    second = be.xp.arange(b.nnz) if second is None else second
    entry = both.left if first is None else first[both.left]
    dtype = index_dtype((), a.nnz + b.nnz)
    found = second, second[both.right], both.right, entry
    listed, again, cell, entry = (x.astype(dtype, copy=False) for x in found)
    return be.concatenate((listed, again)), cell, entry
