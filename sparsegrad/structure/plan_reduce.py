"""Plans of reductions: entries grouped by the dimensions that are left."""

from __future__ import annotations

from typing import NamedTuple

from sparsegrad import backends
from sparsegrad.structure.arrays import Array, Moves
from sparsegrad.structure.pattern import Pattern

__all__ = ["Groups", "Halvings", "groups"]


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
