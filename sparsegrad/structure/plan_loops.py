"""Plan of self-loops: where the entries of a matrix lie once every diagonal cell is stored."""

from __future__ import annotations

from typing import NamedTuple

from sparsegrad.structure import plan, plan_select
from sparsegrad.structure.arrays import Array
from sparsegrad.structure.pattern import Pattern

__all__ = ["Loops", "identity", "with_loops"]


class Loops(NamedTuple):
    """The coalesced pattern of A + I; the entry of it that each entry of A (nnz,) adds to, whether
    none is added to twice; and its entries on the diagonal (n,)."""

    pattern: Pattern
    slots: Array
    distinct: bool
    diagonal: Array


def identity(pattern: Pattern) -> Pattern:
    """The diagonal of a square matrix, in its format. Kept on its pattern, so that plans of both
    live as long as that."""

    def build() -> Pattern:
        n = pattern.shape[0]
        ids = pattern.core.backend.xp.arange(n)
        return plan_select.assemble(pattern.format, (ids, ids), (n, n)).pattern

    return pattern.cached("identity", build)


def with_loops(pattern: Pattern) -> Loops:
    """The plan of A + I for a square A on `pattern`."""
    return pattern.cached("with loops", lambda: _with_loops(pattern))


def _with_loops(pattern: Pattern) -> Loops:
    merge = plan.union(pattern, identity(pattern))
    nnz = pattern.nnz
    if merge.perm is None:
        slots = pattern.core.backend.expand(merge.indptr, nnz + pattern.shape[0])
    else:
        slots = merge.slots
    # Copies: index work is kept by the array.
    return Loops(merge.pattern, slots[:nnz].copy(), pattern.core.unique, slots[nnz:].copy())
