"""Plans of matrices that are built of others: products of every cell with every cell, blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparsegrad import backends
from sparsegrad.device import Device
from sparsegrad.structure.arrays import Moves
from sparsegrad.structure.pattern import Pattern
from sparsegrad.structure.plan import remember
from sparsegrad.structure.plan_select import Select, assemble

__all__ = ["blocks", "every_cell", "kron", "kronsum"]


def every_cell(shape: tuple[int, ...], device: Device) -> Pattern:
    """All cells of a shape, in row-major order."""

    def build() -> Pattern:
        be = backends.for_device(device)
        cells = be.xp.arange(math.prod(shape))
        coords = []
        for n in reversed(shape):
            coords.append(cells % max(n, 1))
            cells = cells // max(n, 1)
        pattern = Pattern.coo(coords[::-1], shape, check=False, copy=False)
        pattern.core.know_canonical()
        return pattern

    return remember(("every cell", shape, device), (), build, (), device)


def kron(a: Pattern, b: Pattern) -> tuple[Pattern, Moves | None]:
    """Where each entry of `a` meets each of `b`, in the format of `a`: cell (i * height of b + k,
    j * width of b + l). Values are those of a (n, 1) times those of b (1, m), in row-major order,
    moved. Patterns have as many dimensions."""

    def build() -> tuple[Pattern, Moves | None]:
        xp = a.core.backend.xp
        coords = [
            (p.astype(xp.int64)[:, None] * n + q).reshape(-1)
            for p, q, n in zip(a.coords, b.coords, b.shape, strict=True)
        ]
        shape = tuple(n * m for n, m in zip(a.shape, b.shape, strict=True))
        found = assemble(a.format, coords, shape)
        return found.pattern, None if found.entries is None else Moves(found.entries)

    return remember("kron", (a, b), build)


def kronsum(a: Pattern, b: Pattern) -> Select:
    """The entries of kron(I, a) and kron(b, I) for square a and b, in the format of `a`, those of
    one cell apart: a plan for the values of both joined."""

    def build() -> Select:
        xp, (m, n) = a.core.backend.xp, (a.shape[0], b.shape[0])
        block, within = xp.arange(n), xp.arange(m)
        coords = [
            xp.concatenate(
                (
                    (block[:, None] * m + p).reshape(-1),
                    (q.astype(xp.int64)[:, None] * m + within).reshape(-1),
                )
            )
            for p, q in zip(a.coords, b.coords, strict=True)
        ]
        index = xp.concatenate(
            (xp.tile(xp.arange(a.nnz), n), xp.repeat(a.nnz + xp.arange(b.nnz), m))
        )
        return assemble(a.format, coords, (n * m, n * m), index)

    return remember("kronsum", (a, b), build)


def blocks(
    patterns: Sequence[Pattern], corners: tuple[tuple[int, ...], ...], shape: tuple[int, ...]
) -> Select:
    """Patterns with their first cells at `corners` of a larger shape, in the format of the first: a
    plan for their values joined."""

    def build() -> Select:
        xp = patterns[0].core.backend.xp
        coords = [
            xp.concatenate([p.coords[d].astype(xp.int64) + corner[d] for p, corner in placed])
            for d in range(len(shape))
        ]
        return assemble(patterns[0].format, coords, shape)

    placed = list(zip(patterns, corners, strict=True))
    return remember(("blocks", corners, shape), tuple(patterns), build)
