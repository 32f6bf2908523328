"""Plans of sparse products: the pattern of sparse @ sparse, block diagonals, triangles."""

from __future__ import annotations

from typing import Any

from sparsegrad.errors import OutOfMemoryError, ShapeError
from sparsegrad.structure.arrays import Array, index_dtype
from sparsegrad.structure.core import Core
from sparsegrad.structure.pattern import Pattern
from sparsegrad.structure.plan import canonical_like, of_lines, remember

__all__ = ["block_diagonal", "product", "stacked", "triangle", "unblocked"]


def product(a: Pattern, b: Pattern) -> Pattern:
    """The pattern of a @ b, coalesced, in the format of `a`; the patterns must be coalesced.

    Counts are 64-bit; index arrays are int64 where the shape or the number of entries needs it.
    """

    def build() -> Pattern:
        be = a.core.backend
        shape = (a.shape[0], b.shape[1])
        try:
            # Of a CSC one the columns: they are the rows of b.T @ a.T.
            factors = (b.T, a.T) if a.format == "csc" else (a, b)
            indptr, minor = be.spgemm_pattern(*factors)
        except MemoryError:
            pairs = int(be.xp.diff(b.rows()[0].astype("int64"))[a.col].sum())
            raise OutOfMemoryError(
                f"spgemm: the product of A {a.shape} with {a.nnz} entries and B {b.shape} with "
                f"{b.nnz} sums {pairs} products and does not fit in memory; spgemm_masked "
                "computes chosen entries only"
            ) from None
        return of_lines(a, shape, indptr, minor)

    if a.shape[1] != b.shape[0]:
        raise ShapeError(f"spgemm: patterns have shapes {a.shape} and {b.shape}")
    return remember("product", (a, b), build)


# ---- batches -----------------------------------------------------------------------------------
def _flat(pattern: Pattern, shape: tuple[int, int], row: Array, col: Array) -> Pattern:
    dtype = index_dtype(shape, pattern.nnz)
    core = Core("coo", shape, (row.astype(dtype, copy=False), col.astype(dtype, copy=False)))
    return Pattern(core, "coo")


def _batch_index(pattern: Pattern) -> tuple[Array, int]:
    """Row-major position of every entry's leading dimensions, and how many there are."""
    *lead, last = pattern.coords[:-2]
    flat, count = last.astype("int64"), pattern.shape[len(lead)]
    scale = count
    for c, n in zip(reversed(lead), reversed(pattern.shape[: len(lead)]), strict=True):
        flat = flat + c.astype("int64") * scale
        scale *= n
    return flat, scale


def block_diagonal(pattern: Pattern) -> Pattern:
    """(*B, m, n) as one matrix (B m, B n) with a block for each batch; same entry order."""

    def build() -> Pattern:
        batch, count = _batch_index(pattern)
        m, n = pattern.shape[-2:]
        row, col = batch * m + pattern.coords[-2], batch * n + pattern.coords[-1]
        return _flat(pattern, (count * m, count * n), row, col)

    return pattern.cached("block_diagonal", build)


def stacked(pattern: Pattern) -> Pattern:
    """(*B, m, n) as one matrix (B m, n): the batches on top of each other; same entry order."""

    def build() -> Pattern:
        batch, count = _batch_index(pattern)
        m, n = pattern.shape[-2:]
        return _flat(pattern, (count * m, n), batch * m + pattern.coords[-2], pattern.coords[-1])

    return pattern.cached("stacked", build)


def unblocked(pattern: Pattern, lead: tuple[int, ...], m: int, n: int) -> Pattern:
    """The entries of a block diagonal (B m, B n) as a pattern (*lead, m, n); same entry order."""

    def build() -> Pattern:
        batch, row, col = pattern.row // max(m, 1), pattern.row % max(m, 1), pattern.col % max(n, 1)
        coords: list[Array] = [row, col]
        for size in reversed(lead):
            coords.insert(0, batch % size)
            batch = batch // size
        shape = (*lead, m, n)
        dtype = index_dtype(shape, pattern.nnz)
        core = Core("coo", shape, tuple(c.astype(dtype, copy=False) for c in coords))
        return Pattern(core, "coo")

    return pattern.cached(("unblocked", lead, m, n), build)


# ---- triangles ---------------------------------------------------------------------------------
def triangle(pattern: Pattern, lower: bool, diagonal: bool) -> tuple[Pattern, Any]:
    """Entries on one side of the diagonal, with it or without: the pattern, and the positions of
    those entries (None where all are). The pattern must be coalesced."""

    def build() -> tuple[Pattern, Any]:
        xp = pattern.core.backend.xp
        row, col = pattern.row, pattern.col
        low, high = (col, row) if lower else (row, col)
        kept = xp.flatnonzero(low <= high if diagonal else low < high)
        coords = tuple(c[kept] for c in (row, col))
        return canonical_like(pattern, coords), kept

    xp = pattern.core.backend.xp
    beyond = pattern.row < pattern.col if lower else pattern.row > pattern.col
    if diagonal and not bool(xp.any(beyond)):
        return pattern, None
    return pattern.cached(("triangle", lower, diagonal), build)
