"""Plans that choose entries or give them other places: cuts, lines, cells, joins, other shapes.

Each is a `Select`: applying it is one `take` on values, so none of them needs a gradient rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sparsegrad import backends
from sparsegrad.structure.pattern import Array, Core, Order, Pattern, index_dtype
from sparsegrad.structure.plan import remember

__all__ = [
    "Part",
    "Select",
    "assemble",
    "block_diagonal",
    "cells",
    "choose",
    "concatenate",
    "cut",
    "diagonal_size",
    "lines",
    "off_diagonal",
    "on_diagonal",
    "reshape",
    "with_diagonal",
]

# What a cut leaves of a dimension: the entries at one id (the dimension goes), or a range of ids.
Part = int | range


class Select(NamedTuple):
    """values -> take(values, entries), which lie on `pattern`. entries: None for all in order."""

    pattern: Pattern
    entries: Array | None


def assemble(
    fmt: str,
    coords: Sequence[Array],
    shape: tuple[int, ...],
    index: Array | None = None,
    canonical: bool = False,
) -> Select:
    """Entries at `coords`, in any order, as a pattern in `fmt` (coo unless it is a matrix).

    index: old positions of the entries, brought along. Entries stay in their order where the
    format allows it, unless `canonical`.
    """
    if len(shape) != 2:
        fmt = "coo"
    dtype = index_dtype(shape, int(coords[0].size))
    ids = tuple(c.astype(dtype, copy=False) for c in coords)
    if not canonical and fmt != "coo":
        major = 0 if fmt == "csr" else 1
        if bool((ids[major][1:] >= ids[major][:-1]).all()):
            indptr = backends.for_array(ids[major]).compress(ids[major], shape[major])
            return Select(Pattern(Core(fmt, shape, (indptr, ids[1 - major])), fmt), index)  # type: ignore[arg-type]
    core = Core("coo", shape, ids)
    if not canonical and fmt == "coo":
        return Select(Pattern(core, "coo"), index)
    order: Order = "col" if fmt == "csc" else "row"
    perm = core.perm(order)
    if perm is not None:
        index = perm if index is None else index[perm]
    return Select(Pattern(core, fmt, order), index)  # type: ignore[arg-type]


def choose(pattern: Pattern, keep: Array) -> Select:
    """The entries where the bool array `keep` (nnz,) is true, in their order and format."""
    index = pattern.core.backend.xp.flatnonzero(keep)
    return assemble(pattern.format, [c[index] for c in pattern.coords], pattern.shape, index)


# ---- by index ----------------------------------------------------------------------------------
def cut(pattern: Pattern, parts: tuple[Part, ...]) -> tuple[Pattern | None, Array]:
    """One part for each sparse dimension -> the pattern (None if no dimension is left) and the
    old positions of its entries. A cut along the rows of a CSR pattern (the columns of a CSC one)
    reads no other row."""
    return remember(("cut", parts), (pattern,), lambda: _cut(pattern, parts))


def _cut(pattern: Pattern, parts: tuple[Part, ...]) -> tuple[Pattern | None, Array]:
    xp = pattern.core.backend.xp
    shape = pattern.shape
    left = [i for i, n in enumerate(shape) if parts[i] != range(n)]
    index = None
    major = {"csr": 0, "csc": 1}.get(pattern.format, -1)
    if major in left:
        part = parts[major]
        span = range(part, part + 1) if isinstance(part, int) else part
        ids = span.start + span.step * xp.arange(len(span))
        coords, index = _lines(pattern, major, ids)
        left.remove(major)
    else:
        coords = list(pattern.coords)
    if left:
        keep = xp.ones(coords[0].size, dtype=bool)
        for i in left:
            part = parts[i]
            if isinstance(part, int):
                keep &= coords[i] == part
                continue
            step = abs(part.step)
            steps = coords[i] - part.start if part.step > 0 else part.start - coords[i]
            keep &= (steps >= 0) & (steps < step * len(part)) & (steps % step == 0)
            coords[i] = steps // step
        kept = xp.flatnonzero(keep)
        coords = [c[kept] for c in coords]
        index = kept if index is None else index[kept]
    if index is None:
        index = xp.arange(pattern.nnz)
    spans = [i for i, part in enumerate(parts) if not isinstance(part, int)]
    if not spans:
        return None, index
    sizes = tuple(len(parts[i]) for i in spans)  # type: ignore[arg-type]
    chosen = assemble(pattern.format, [coords[i] for i in spans], sizes, index)
    return chosen.pattern, chosen.entries


def lines(pattern: Pattern, dim: int, ids: Array) -> Select:
    """The rows (slices along `dim`) ids[0], ids[1], ...: ids (k,) in range, repeats allowed."""
    coords, index = _lines(pattern, dim, ids)
    shape = tuple(int(ids.size) if d == dim else n for d, n in enumerate(pattern.shape))
    return assemble(pattern.format, coords, shape, index)


def _lines(pattern: Pattern, dim: int, ids: Array) -> tuple[list[Array], Array]:
    if pattern.ndim != 2:
        index, number = _join(pattern, (dim,), (ids,))
        coords = [c[index] for c in pattern.coords]
        coords[dim] = number
        return coords, index
    indptr, other, positions = (pattern.T if dim else pattern).rows()
    starts = indptr[ids]
    index, number = _ranges(pattern.core.backend, starts, indptr[ids + 1] - starts)
    coords = [other[index]]
    coords.insert(dim, number)
    return coords, index if positions is None else positions[index]


def cells(pattern: Pattern, dims: tuple[int, ...], ids: Sequence[Array], place: int) -> Select:
    """The entries whose ids along `dims` are (ids[0][i], ids[1][i], ...), for every i in turn: a
    dimension of that many cells at `place` replaces `dims`."""
    index, number = _join(pattern, dims, ids)
    rest = [d for d in range(pattern.ndim) if d not in dims]
    coords = [pattern.coords[d][index] for d in rest]
    coords.insert(place, number)
    shape = [pattern.shape[d] for d in rest]
    shape.insert(place, int(ids[0].size))
    return assemble(pattern.format, coords, tuple(shape), index)


def _join(pattern: Pattern, dims: tuple[int, ...], ids: Sequence[Array]) -> tuple[Array, Array]:
    """Every pair of a wanted cell and an entry in it: positions of entries, numbers of cells."""
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
    counts = xp.searchsorted(listed, wanted, side="right") - starts
    at, number = _ranges(be, starts, counts)
    return order[at], number


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


def _ranges(be: Any, starts: Array, counts: Array) -> tuple[Array, Array]:
    """starts[i], starts[i] + 1, ... (counts[i] of them) for every i in turn, and the i of each."""
    xp = be.xp
    offsets = xp.zeros(counts.size + 1, dtype=xp.int64)
    xp.cumsum(counts, out=offsets[1:])
    total = int(offsets[-1])
    number = be.expand(offsets, total)
    return starts[number] + (xp.arange(total) - offsets[number]), number


# ---- joining -----------------------------------------------------------------------------------
def concatenate(patterns: Sequence[Pattern], dim: int) -> Select:
    """Patterns joined along `dim`, in the format of the first: a plan for their values joined."""
    return _joined(("cat", dim), patterns, (dim,))


def block_diagonal(patterns: Sequence[Pattern]) -> Select:
    """Matrices along the diagonal, in the format of the first: a plan for their values joined."""
    return _joined(("block_diag",), patterns, (0, 1))


def _joined(key: tuple[Any, ...], patterns: Sequence[Pattern], dims: tuple[int, ...]) -> Select:
    def build() -> Select:
        xp = patterns[0].core.backend.xp
        shape = [
            sum(p.shape[d] for p in patterns) if d in dims else n
            for d, n in enumerate(patterns[0].shape)
        ]
        coords = []
        for d in range(len(shape)):
            start, parts = 0, []
            for p in patterns:
                parts.append(p.coords[d].astype(xp.int64) + start)
                start += p.shape[d] if d in dims else 0
            coords.append(xp.concatenate(parts))
        return assemble(patterns[0].format, coords, tuple(shape))

    return remember(key, tuple(patterns), build)


# ---- other shapes ------------------------------------------------------------------------------
def reshape(pattern: Pattern, shape: tuple[int, ...]) -> Select:
    """The same cells in row-major order in another shape with as many cells.

    Dimensions are merged and split in the smallest groups with equal sizes, so positions need
    more than 64 bits only where merged dimensions do.
    """
    fmt = pattern.format if pattern.ndim == 2 else "coo"

    def build() -> Select:
        be = pattern.core.backend
        coords = [be.xp.zeros(0, dtype=be.xp.int64)] * len(shape)
        if pattern.nnz:
            coords = []
            for old, new in _groups(pattern.shape, shape):
                ids = [pattern.coords[d] for d in old]
                sizes = [pattern.shape[d] for d in old]
                coords += _relisted(be, pattern.nnz, ids, sizes, [shape[d] for d in new])
        return assemble(fmt, coords, shape)

    return pattern.cached(("reshape", shape), build)


def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[range, range]]:
    """Runs of old and new dimensions, as short as possible, with equal products."""
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        first, second = i, j
        a = b = 1
        while (i == first and j == second) or a != b:
            if (a <= b and i < len(old)) or j == len(new):
                a *= old[i]
                i += 1
            else:
                b *= new[j]
                j += 1
        groups.append((range(first, i), range(second, j)))
    return groups


def _relisted(
    be: Any, nnz: int, ids: list[Array], sizes: list[int], into: list[int]
) -> list[Array]:
    """Coordinates in an array of `sizes` as coordinates in an array of `into`."""
    if sizes == into:
        return ids
    xp = be.xp
    flat = xp.zeros(nnz, dtype=xp.int64)
    if math.prod(sizes) > 2**63 - 1:  # rare: exact integers, on the host
        flat, ids = be.to_host(flat).astype(object), [be.to_host(i) for i in ids]
    for i, n in zip(ids, sizes, strict=True):
        flat = flat * n + i
    out = []
    for n in into[::-1]:
        flat, digit = flat // n, flat % n
        out.append(be.asarray(digit, dtype=xp.int64))
    return out[::-1]


# ---- diagonals ---------------------------------------------------------------------------------
def diagonal_size(shape: tuple[int, ...], offset: int) -> int:
    """Cells (i, i + offset) of a matrix."""
    m, n = shape
    return max(0, min(m, n - offset) if offset >= 0 else min(m + offset, n))


def on_diagonal(pattern: Pattern, offset: int) -> tuple[Array, Array]:
    """Positions of the entries (i, i + offset), and their places along the diagonal."""

    def build() -> tuple[Array, Array]:
        row, col = pattern.coords
        index = pattern.core.backend.xp.flatnonzero(col == row + offset)
        return index, (row if offset >= 0 else col)[index]

    return pattern.cached(("diagonal", offset), build)


def off_diagonal(pattern: Pattern, offset: int = 0) -> Select:
    """All entries but those at (i, i + offset)."""

    def build() -> Select:
        row, col = pattern.coords
        return choose(pattern, col != row + offset)

    return pattern.cached(("off diagonal", offset), build)


def with_diagonal(pattern: Pattern, offset: int) -> tuple[Array, Select]:
    """All cells (i, i + offset) stored, each once: positions of the entries that stay, and the
    plan for their values joined with those of the diagonal."""

    def build() -> tuple[Array, Select]:
        xp = pattern.core.backend.xp
        row, col = pattern.coords
        kept = xp.flatnonzero(col != row + offset)
        ids = xp.arange(diagonal_size(pattern.shape, offset))
        coords = [
            xp.concatenate((row[kept], ids + max(0, -offset))),
            xp.concatenate((col[kept], ids + max(0, offset))),
        ]
        return kept, assemble(pattern.format, coords, pattern.shape, canonical=True)

    return pattern.cached(("with diagonal", offset), build)
