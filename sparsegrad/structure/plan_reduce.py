"""Plans of reductions: entries grouped by the dimensions that are left."""

from __future__ import annotations

import math
from typing import NamedTuple

from sparsegrad import backends
from sparsegrad.structure.arrays import Array, Moves, index_dtype
from sparsegrad.structure.pattern import Pattern
from sparsegrad.structure.plan import flat_index

__all__ = ["Candidates", "Groups", "Halvings", "candidates", "groups"]


class Groups(NamedTuple):
    """Entries of a pattern in consecutive runs, one run a cell of the result.

    moves: positions (nnz,) of the grouped entries in the pattern's order, None for identity.
    indptr: runs (s + 1,). pattern: where the runs lie, None if there is one run for each index of
    the one dimension left (or one in all).
    """

    moves: Moves | None
    indptr: Array
    pattern: Pattern | None


def groups(pattern: Pattern, left: tuple[int, ...]) -> Groups:
    """Entries grouped by their coordinates in the dimensions `left` (sorted)."""
    return pattern.cached(("groups", left), lambda: _build(pattern, left))


def _build(pattern: Pattern, left: tuple[int, ...]) -> Groups:
    be = pattern.core.backend
    dtype = pattern.coords[0].dtype
    if not left:
        return Groups(None, be.xp.asarray([0, pattern.nnz], dtype=dtype), None)
    if len(left) == 1:
        if pattern.ndim == 2:
            indptr, _, perm = (pattern if left[0] == 0 else pattern.T).rows()
        elif pattern.ndim == 1 and be.order_facts(pattern.coords)[0]:
            indptr, perm = be.compress(pattern.coords[0], pattern.shape[0]), None
        else:
            perm, indptr = be.group(pattern.coords[left[0]], pattern.shape[left[0]])
        return Groups(None if perm is None else Moves(perm), indptr, None)
    coords = tuple(pattern.coords[d] for d in left)
    shape = tuple(pattern.shape[d] for d in left)
    perm = be.sort_coo(coords, shape)
    if perm is not None:
        perm = perm.astype(dtype, copy=False)
        coords = tuple(c[perm] for c in coords)
    new = be.xp.ones(pattern.nnz, dtype=bool)
    new[1:] = False
    for c in coords:
        new[1:] |= c[1:] != c[:-1]
    starts = be.xp.flatnonzero(new).astype(dtype)
    end = be.xp.asarray([pattern.nnz], dtype=dtype)
    kept = Pattern.coo([c[starts] for c in coords], shape, check=False, copy=False)
    moves = None if perm is None else Moves(perm)
    return Groups(moves, be.xp.concatenate((starts, end)), kept)


class Candidates(NamedTuple):
    """Where the extreme of each cell of a result may be: at an entry, or at the first absent cell,
    which is 0.

    moves: the entry of each candidate, one past the end for an absent cell. place: where along the
    reduced dimension it is, int64. rows: a CSR matrix with a row for each cell of the result, and
    its candidates as entries in rising place. pattern: where the rows lie, as in `Groups`.
    """

    moves: Moves
    place: Array
    rows: Pattern
    pattern: Pattern | None


def candidates(pattern: Pattern, dim: int | None) -> Candidates:
    """Those along one dimension, or of all cells in row-major order. Entries are unique."""
    return pattern.cached(("candidates", dim), lambda: _candidates(pattern, dim))


def _candidates(pattern: Pattern, dim: int | None) -> Candidates:
    be, nnz = pattern.core.backend, pattern.nnz
    xp = be.xp
    left = tuple(d for d in range(pattern.ndim) if dim is not None and d != dim)
    along = flat_index(pattern, pattern.shape) if dim is None else pattern.coords[dim]
    length = math.prod(pattern.shape) if dim is None else pattern.shape[dim]
    sizes = tuple(pattern.shape[d] for d in left)
    coords = (*(pattern.coords[d] for d in left), along.astype(xp.int64))
    perm = be.sort_coo(tuple(c.astype(xp.int64) for c in coords), (*sizes, length))
    perm = xp.arange(nnz) if perm is None else perm
    *lines, along = (c[perm] for c in coords)
    kept = None
    if len(left) < 2:
        ends = [0, nnz] if not left else be.compress(lines[0].astype(xp.int64), *sizes)
        indptr = xp.asarray(ends, xp.int64)
    else:
        cells, indptr = be.runs(tuple(lines))
        indptr = indptr.astype(xp.int64)
        kept = Pattern.coo(list(cells), sizes, check=False, copy=False)
    # Places rise, so the entries at 0, 1, 2, ... lead a run, and the first absent cell is next.
    run = be.expand(indptr, nnz)
    leading = (along == xp.arange(nnz) - indptr[run]).astype(xp.int64)
    first = be.segment_sum(leading, indptr)
    absent = first < length
    before = xp.concatenate((xp.zeros(1, xp.int64), xp.cumsum(absent)))
    at = xp.arange(nnz) + before[:-1][run] + ((leading == 0) & absent[run])
    cell = (indptr[:-1] + before[:-1] + first)[absent]
    total = nnz + int(before[-1])
    entry, place = xp.full(total, nnz, xp.int64), xp.zeros(total, xp.int64)
    entry[at], place[at], place[cell] = perm, along, first[absent]
    back = xp.empty(nnz, xp.int64)
    back[perm] = at
    offsets = indptr + before
    numbers = xp.arange(total) - offsets[be.expand(offsets, total)]
    width = int(xp.diff(offsets).max()) if offsets.size > 1 else 0
    dtype = index_dtype((width,), total)
    arrays = offsets.astype(dtype), numbers.astype(dtype)
    rows = Pattern.compressed("csr", *arrays, (offsets.size - 1, width), check=False, copy=False)
    rows.core.know_canonical()
    return Candidates(Moves(entry, lambda: back), place, rows, kept)


class Halvings:
    """Runs with offsets `indptr`, and the rounds that multiply their entries pairwise until each
    has one product left: O(nnz) work in all, found when somebody asks for it. Behind the entries
    stands a 1, which every round leaves there.

    rounds: per round the positions of left and of right factors. last: the product of each run,
    the 1 for an empty one.
    """

    __slots__ = ("_found", "indptr")

    def __init__(self, indptr: Array) -> None:
        self.indptr = indptr
        self._found: tuple[list[tuple[Array, Array]], Array] | None = None

    @property
    def rounds(self) -> list[tuple[Array, Array]]:
        return self._halved()[0]

    @property
    def last(self) -> Array:
        return self._halved()[1]

    def _halved(self) -> tuple[list[tuple[Array, Array]], Array]:
        if self._found is None:
            self._found = _halve(self.indptr)
        return self._found


def _halve(indptr: Array) -> tuple[list[tuple[Array, Array]], Array]:
    be = backends.for_array(indptr)
    xp = be.xp
    indptr = indptr.astype("int64")
    rounds = []
    while indptr.size > 1 and int(xp.diff(indptr).max()) > 1:
        counts = (xp.diff(indptr) + 1) // 2
        after = xp.concatenate((xp.zeros(1, "int64"), xp.cumsum(counts)))
        run = be.expand(after, int(after[-1]))
        first = indptr[run] + 2 * (xp.arange(int(after[-1])) - after[run])
        second = xp.where(first + 1 < indptr[run + 1], first + 1, int(indptr[-1]))
        one = indptr[-1:]
        rounds.append((xp.concatenate((first, one)), xp.concatenate((second, one))))
        indptr = after
    filled = xp.diff(indptr) == 1
    return rounds, xp.where(filled, indptr[:-1], int(indptr[-1]))
