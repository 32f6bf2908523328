"""Coalesce on the GPU: sort positions, find duplicates, sum runs of values."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np

from sparsegrad.backends.base import Survey
from sparsegrad.backends.cuda_kernels import (
    accumulator_of,
    ctype_of,
    kernel,
    launch,
    power_of_two,
)

__all__ = [
    "coalesce_check",
    "listed_ids",
    "runs",
    "segment_sum",
    "sort_order",
    "sums",
    "survey",
    "touched",
    "touched_tables",
]

Array = Any

_KEYS = (np.dtype(np.uint32), np.dtype(np.uint64))
_SUMMED = {"float16", "bfloat16", "float32", "float64", "int32", "int64"}


def coalesce_check(indices: Array) -> Array:
    """One int32 on the device: bit 0 if entries are out of order, bit 1 if positions repeat."""
    import cupy

    ndim, nnz = indices.shape
    flags = cupy.zeros(1, np.int32)
    launch(
        kernel("coalesce", "sg_coalesce_check", ctype_of(indices.dtype)),
        nnz - 1,
        indices=indices,
        stride=nnz,
        ndim=ndim,
        n=nnz,
        flags=flags,
    )
    return flags


def sort_order(indices: Array, shape: tuple[int, ...]) -> Array:
    """The stable permutation (nnz,) of the positions `indices` (ndim, nnz) to row-major order."""
    import cupy

    ndim, nnz = indices.shape
    widths = [max(int(size) - 1, 0).bit_length() for size in shape]
    if sum(widths) > 64 or ndim > 8:  # the sort is stable, so from the last dimension to the first
        perm = cupy.argsort(indices[ndim - 1])
        for d in range(ndim - 2, -1, -1):
            perm = perm[cupy.argsort(indices[d][perm])]
        return perm
    key_dtype = _KEYS[0 if sum(widths) <= 32 else 1]
    if ndim == 1 and indices.itemsize == key_dtype.itemsize:  # not negative: a key as they are
        return cupy.argsort(indices[0])
    key = cupy.empty(nnz, key_dtype)
    packed = sum(width << (8 * d) for d, width in enumerate(widths))
    pack = kernel("coalesce", "sg_coalesce_pack", ctype_of(key_dtype), ctype_of(indices.dtype))
    launch(pack, nnz, indices=indices, stride=nnz, ndim=ndim, n=nnz, widths=packed, key=key)
    return cupy.argsort(key)


def listed_ids(order: Array, ids: Array) -> tuple[Array, Array]:
    """The permutation `order` (e,) in the dtype of the ids (e,), and the ids listed by it."""
    perm, found = _listing()(order, ids)
    return perm, found


@cache
def _listing() -> Any:
    import cupy

    return cupy.ElementwiseKernel(
        "int64 place, raw I ids",
        "I perm, I found",
        "perm = place; found = ids[place];",
        "sg_listed",
    )


def runs(indices: Array) -> tuple[Array, Array]:
    """Distinct ones of the sorted positions `indices` (ndim, nnz): (ndim, u), and where the run of
    each begins: (u + 1,). Waits once for the device, to learn how many there are."""
    import cupy

    if not indices.shape[1]:
        return indices, cupy.zeros(1, indices.dtype)
    upto = _run_numbers(indices)
    return _listed_runs(indices, upto, int(upto[-1]))  # sync


def survey(indices: Array, shape: tuple[int, ...]) -> Survey:
    """All that coalescing asks of positions `indices` (ndim, nnz), two at least. Waits once for the
    device; for that it sorts without knowing whether there is a need."""
    import cupy

    nnz, flags = indices.shape[1], coalesce_check(indices)
    perm = sort_order(indices, shape)
    listed = cupy.take(indices, perm, axis=1)
    upto = _run_numbers(listed)
    found, u = cupy.concatenate((flags, upto[-1:])).tolist()  # sync
    rising = not found & 1
    runs = None
    if u < nnz:
        coords, start = _listed_runs(listed, upto, u)
        runs = tuple(coords), start
    return Survey(None if rising else perm, rising, u == nnz, runs)


def touched(indices: Array, n: int) -> tuple[Array, Array, Array, Array]:
    """Distinct ones of the indices (1, e), the permutation that sorts them, where the run of each
    begins, and how many there are, (1,): known to the device only, so that nothing waits. The
    first has room for e, the third for e + 1."""
    perm, ids = listed_ids(sort_order(indices, (n,)), indices[0])
    upto = _run_numbers(ids[None])
    found, start = _listed_runs(ids[None], upto, indices.shape[1])
    return found[0], perm, start, upto[-1:]


def touched_tables(ids: Array, bound: int) -> list[tuple[Array, Array, Array, Array]]:
    """`touched` of the indices ids[f] (e,) of each of several tables of at most `bound` rows, in as
    many launches as of one. The runs of table f begin at place f e of what all share."""
    import cupy

    tables, e = ids.shape
    number = cupy.arange(tables, dtype=ids.dtype)
    first = (number * e)[:, None]
    indices = cupy.stack((cupy.repeat(number, e), ids.reshape(-1)))
    perm = sort_order(indices, (tables, bound))
    listed = cupy.take(indices, perm, axis=1)
    upto = _run_numbers(listed).reshape(tables, e)
    counts = cupy.diff(upto[:, -1], prepend=cupy.zeros(1, ids.dtype))
    places = upto + (first - upto[:, -1:] + counts[:, None])
    found, start = _listed_runs(listed, places.reshape(-1), tables * e)
    start[first[:, 0] + counts] = first[:, 0] + e  # the end of the last run, unless it is there
    start = cupy.take(start, first + cupy.arange(e + 1, dtype=ids.dtype)) - first
    perm = perm.reshape(tables, e).astype(ids.dtype) - first
    rows = found[1].reshape(tables, e)
    return [(rows[f], perm[f], start[f], counts[f : f + 1]) for f in range(tables)]


def _run_numbers(indices: Array) -> Array:
    """How many runs of equal positions begin up to each entry (nnz,)."""
    import cupy

    ndim, nnz = indices.shape
    head = cupy.empty(nnz, indices.dtype)
    launch(
        kernel("coalesce", "sg_coalesce_flag", ctype_of(indices.dtype)),
        nnz,
        indices=indices,
        stride=nnz,
        ndim=ndim,
        n=nnz,
        head=head,
    )
    return cupy.cumsum(head, dtype=head.dtype)


def _listed_runs(indices: Array, upto: Array, u: int) -> tuple[Array, Array]:
    """The u runs that `upto` numbers: positions (ndim, u), and where each begins (u + 1,)."""
    import cupy

    ndim, nnz = indices.shape
    found, start = cupy.empty((ndim, u), indices.dtype), cupy.empty(u + 1, indices.dtype)
    launch(
        kernel("coalesce", "sg_coalesce_scatter", ctype_of(indices.dtype)),
        nnz,
        indices=indices,
        stride=nnz,
        ndim=ndim,
        n=nnz,
        upto=upto,
        out_indices=found,
        out_stride=u,
        start=start,
    )
    return found, start


def segment_sum(
    values: Array, segment: Array, order: Array, count: int, *, dtype: str | None = None
) -> Array:
    """Sums of runs: values (nnz, *D) -> (count, *D), 0 for an empty run, the same bits every time.

    segment (e,): the run of each entry, rising; order (e,): which values are meant. Index arrays
    have one dtype. `dtype="bfloat16"` says that uint16 arrays hold bfloat16. The sum of bools is
    whether any is true.
    """
    import cupy

    out = cupy.zeros((count, *values.shape[1:]), values.dtype)
    types = (ctype_of(values.dtype, dtype), ctype_of(segment.dtype))
    n, width = segment.size, prod(values.shape[1:])
    if not out.size or not n:
        return out
    wide = accumulator_of(types[0])
    # Rows of many columns keep a group of lanes busy for longer, so their tiles are shorter.
    tile = 256 if width == 1 else 64 if width >= 16 else 32
    tiles = -(-n // tile)
    partial = cupy.empty((2 * tiles, width), wide)
    common = {"segment": segment, "n": n, "out": out, "partial": partial}
    if width == 1:
        first = kernel("coalesce", "sg_coalesce_sum", *types)
        launch(first, 32 * tiles, **common, values=values, order=order)
    else:
        full = 16 // values.itemsize
        aligned = width % full == 0 and values.data.ptr % 16 == 0
        load = full if aligned else 1
        lanes = min(32, power_of_two(-(-width // load)))
        blocks = -(-width // (lanes * load))
        launch(
            kernel("coalesce", "sg_coalesce_sum_rows", *types, str(load)),
            lanes * tiles * blocks,
            **common,
            values=values,
            order=order,
            width=width,
            lanes=lanes,
            tile_rows=tile,
        )
    columns = min(32, power_of_two(width))
    launch(
        kernel("coalesce", "sg_coalesce_join", *types),
        32 * (tiles - 1) * -(-width // columns),
        **common,
        tile_rows=tile,
        width=width,
        columns=columns,
    )
    return out


def sums(values: Array) -> bool:
    """Whether there are instances of `segment_sum` for these values (nnz, *D)."""
    name = values.dtype.name
    return name in _SUMMED or (name == "bool" and prod(values.shape[1:]) == 1)
