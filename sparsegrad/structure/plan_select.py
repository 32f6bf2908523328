"""Plans that choose entries or give them other places: joins, other shapes, diagonals. Those of
indices are in `plan_index`.

Each is a `Select`: applying it is one `take` on values, so none of them needs a gradient rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sparsegrad import backends
from sparsegrad.structure.arrays import Array, Runs, index_dtype, invert
from sparsegrad.structure.core import Core, Order
from sparsegrad.structure.pattern import Pattern
from sparsegrad.structure.plan import remember

__all__ = [
    "Select",
    "assemble",
    "block_diagonal",
    "choose",
    "compressed",
    "concatenate",
    "diagonal_size",
    "grouped",
    "off_diagonal",
    "on_diagonal",
    "pad",
    "ranked",
    "reshape",
    "row_major",
    "triangle",
    "with_diagonal",
]


class Select(NamedTuple):
    """values -> take(values, entries), which lie on `pattern`. entries: None for all in order.
    distinct: whether it is known that none of them comes twice."""

    pattern: Pattern
    entries: Array | Runs | None
    distinct: bool = False


def assemble(
    fmt: str,
    coords: Sequence[Array],
    shape: tuple[int, ...],
    index: Any = None,
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
            return Select(compressed(fmt, shape, indptr, ids[1 - major]), index)
    core = Core("coo", shape, ids)
    if not canonical and fmt == "coo":
        return Select(Pattern(core, "coo"), index)
    order: Order = "col" if fmt == "csc" else "row"
    perm = core.perm(order)
    if perm is not None:
        index = perm if index is None else index[perm]
    return Select(Pattern(core, fmt, order), index)  # type: ignore[arg-type]


def compressed(fmt: str, shape: tuple[int, ...], indptr: Array, minor: Array) -> Pattern:
    dtype = index_dtype(shape, int(minor.size))
    arrays = indptr.astype(dtype, copy=False), minor.astype(dtype, copy=False)
    return Pattern(Core(fmt, shape, arrays), fmt)  # type: ignore[arg-type]


def grouped(pattern: Pattern) -> tuple[Array, Array, Array | None]:
    """Offsets, minor ids and positions of a CSR pattern by row, of a CSC one by column."""
    return (pattern if pattern.format == "csr" else pattern.T).rows()


def row_major(pattern: Pattern) -> tuple[Pattern, Array | None]:
    """The same entries as coo in row-major order, and their old positions."""
    return Pattern(pattern.core, "coo", pattern.order, pattern.transposed).canonical()


def choose(pattern: Pattern, keep: Any) -> Select:
    """The entries that stay, in their order and format; `keep` (nnz,) says which, see `Places`."""
    compact, fmt, shape = pattern.core.backend.compact, pattern.format, pattern.shape
    indptr, minor, positions = grouped(pattern) if fmt != "coo" else (None, None, None)
    if minor is not None and positions is None:
        entries, (minor,), indptr = compact(keep, (minor,), indptr)
        chosen = compressed(fmt, shape, indptr, minor)
    else:
        entries, coords, _ = compact(keep, pattern.coords)
        chosen, entries, _ = assemble(fmt, coords, shape, entries)
    if chosen.core.kind == fmt and pattern.is_coalesced:
        chosen.core.know_canonical()
    return Select(chosen, entries, distinct=True)


class Ranked:
    """Entries that are ranked together: offsets (s + 1,) of runs, how many entries the longest of
    them and all have, and the positions (nnz,) of entries listed so, None where they are. Where in
    that list an entry is, and the run of each listed one, is found when somebody asks for it."""

    __slots__ = ("_listed", "_segment", "longest", "nnz", "offsets", "order")

    def __init__(self, offsets: Array, longest: int, nnz: int, order: Array | None) -> None:
        self.offsets, self.longest, self.nnz, self.order = offsets, longest, nnz, order
        self._listed = self._segment = None

    @property
    def listed(self) -> Array | None:
        if self._listed is None:
            self._listed = invert(self.order)
        return self._listed

    @property
    def segment(self) -> Array:
        if self._segment is None:
            be = backends.for_array(self.offsets)
            self._segment = be.expand(self.offsets, self.nnz)
        return self._segment


def ranked(pattern: Pattern, dim: int | None) -> Ranked:
    """All entries, or those of each row (dim 1) or column (dim 0), in canonical order."""

    def build() -> Ranked:
        xp, nnz = pattern.core.backend.xp, pattern.nnz
        if dim is None:
            offsets = xp.asarray([0, nnz], index_dtype(pattern.shape, nnz))
            return Ranked(offsets, nnz, nnz, pattern.canonical()[1])
        offsets, _, order = (pattern if dim % 2 else pattern.T).sorted_rows()
        sizes = xp.diff(offsets)
        longest = int(sizes.max()) if sizes.size else 0  # sync
        return Ranked(offsets, longest, nnz, order)

    return pattern.cached(("ranked", dim), build)


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
        if (behind := _behind(patterns, dims, tuple(shape))) is not None:
            return Select(behind, None)
        coords = []
        for d in range(len(shape)):
            start, parts = 0, []
            for p in patterns:
                parts.append(p.coords[d].astype(xp.int64) + start)
                start += p.shape[d] if d in dims else 0
            coords.append(xp.concatenate(parts))
        return assemble(patterns[0].format, coords, tuple(shape))

    return remember(key, tuple(patterns), build)


def _behind(
    patterns: Sequence[Pattern], dims: tuple[int, ...], shape: tuple[int, ...]
) -> Pattern | None:
    """CSR matrices below each other or CSC ones side by side, also along the diagonal: their arrays
    joined. None for any others."""
    fmt = patterns[0].format
    axis = 1 if fmt == "csc" else 0
    if fmt == "coo" or axis not in dims or any(p.format != fmt for p in patterns):
        return None
    parts = [grouped(p) for p in patterns]
    if any(positions is not None for _, _, positions in parts):
        return None
    be, dtype = patterns[0].core.backend, index_dtype(shape, sum(p.nnz for p in patterns))
    indptr, minor, count, width = [parts[0][0][:1].astype(dtype)], [], 0, 0
    for p, (offsets, ids, _) in zip(patterns, parts, strict=True):
        indptr.append(offsets[1:].astype(dtype, copy=False) + count)
        minor.append(ids.astype(dtype, copy=False) + width if width else ids)
        count += p.nnz
        width += p.shape[1 - axis] if 1 - axis in dims else 0
    return compressed(fmt, shape, be.concatenate(indptr), be.concatenate(minor))


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


def pad(pattern: Pattern, axis: int, before: int, after: int) -> Pattern:
    """Empty cells before and after those of one dimension of a COO pattern."""

    def build() -> Pattern:
        shape, coords = list(pattern.shape), list(pattern.coords)
        shape[axis] += before + after
        coords[axis] = coords[axis].astype(index_dtype(tuple(shape), pattern.nnz)) + before
        return Pattern.coo(coords, tuple(shape), check=False, copy=False)

    return remember(("pad", axis, before, after), (pattern,), build)


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


def triangle(pattern: Pattern, lower: bool, k: int) -> Select:
    """The entries (i, j) with j - i <= k, or >= k."""

    def build() -> Select:
        row, col = pattern.coords
        return choose(pattern, col <= row + k if lower else col >= row + k)

    return pattern.cached(("triangle", lower, k), build)


def with_diagonal(pattern: Pattern, offset: int) -> Select:
    """All cells (i, i + offset) stored, each once: the plan for the values of all entries joined
    with those of the diagonal, which take the place of what is there."""

    def build() -> Select:
        xp = pattern.core.backend.xp
        row, col = pattern.coords
        kept = xp.flatnonzero(col != row + offset)
        ids = xp.arange(diagonal_size(pattern.shape, offset))
        coords = [
            xp.concatenate((row[kept], ids + max(0, -offset))),
            xp.concatenate((col[kept], ids + max(0, offset))),
        ]
        index = xp.concatenate((kept, pattern.nnz + ids))
        return assemble(pattern.format, coords, pattern.shape, index, True)._replace(distinct=True)

    return pattern.cached(("with diagonal", offset), build)
