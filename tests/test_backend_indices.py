"""Index work of the backends: what the pure reference gives."""

import numpy as np
import pytest

from backend_cases import (
    REFERENCE,
    RUNS,
    Unchanged,
    all_dtypes,
    both_indices,
    every_backend,
    every_pattern,
    fast,
    indptr_of,
    layouts,
    patterns,
    same,
    whole,
)
from sparsegrad.backends.cpu_jit_narrow import CpuJitNarrow
from sparsegrad.errors import PatternError
from sparsegrad.structure import plan
from sparsegrad.structure.arrays import Runs
from sparsegrad.structure.pattern import Pattern


@fast
@both_indices
def test_expand_and_compress(be, index):
    for counts in [*RUNS.values(), np.random.default_rng(0).integers(0, 9, 9000)]:
        indptr = indptr_of(counts, index)
        nnz = int(indptr[-1])
        for array in layouts(indptr):
            if array.strides == (0,):
                continue
            ids = REFERENCE.expand(indptr, nnz)
            with Unchanged(array):
                same(be.expand(array, nnz), ids)
        for array in (ids, np.repeat(ids, 2)[::2]):
            for n in (len(counts), len(counts) + 3):
                same(be.compress(array, n), REFERENCE.compress(ids, n))


@fast
@both_indices
@pytest.mark.parametrize(
    "shape",
    [(1,), (50,), (4, 5), (1, 1), (3000, 7), (7, 3000), (10**6, 10**6), (3, 4, 5), (40, 1, 10**6)],
)
def test_sort_coo_and_order_facts(be, index, shape):
    rng = np.random.default_rng(0)
    for nnz in (0, 1, 2, 30, 5000):
        coords = tuple(rng.integers(0, n, nnz).astype(index) for n in shape)
        with Unchanged(*coords):
            perm, want = be.sort_coo(coords, shape), REFERENCE.sort_coo(coords, shape)
        assert (perm is None) == (want is None)
        if want is not None:
            assert perm.dtype.kind == "i"
            np.testing.assert_array_equal(perm, want)
            coords = tuple(c[want] for c in coords)
            assert be.sort_coo(coords, shape) is None
        assert be.order_facts(coords) == REFERENCE.order_facts(coords)
        reverse = tuple(c[::-1] for c in coords)
        assert be.order_facts(reverse) == REFERENCE.order_facts(reverse)
        unique = tuple(np.unique(np.stack(coords), axis=1))
        assert be.order_facts(unique) == (True, True) == REFERENCE.order_facts(unique)


def surveyed(be, coords, shape):
    with Unchanged(*coords):
        found = be.survey(coords, shape)
    if found is None:  # `sort_coo` and the others are asked instead
        return
    assert found.sorted == REFERENCE.order_facts(coords)[0] == (found.perm is None)
    listed = coords if found.perm is None else tuple(c[found.perm] for c in coords)
    np.testing.assert_array_equal(found.perm, REFERENCE.sort_coo(coords, shape))
    assert found.unique == REFERENCE.order_facts(listed)[1] == (found.runs is None)
    if found.runs is not None:
        cells, offsets = REFERENCE.runs(listed)
        for got, want in zip((*found.runs[0], found.runs[1]), (*cells, offsets), strict=True):
            same(got, want)


@fast
@both_indices
@pytest.mark.parametrize("shape", [(1,), (50,), (3000, 7), (10**6, 10**6), (3, 4, 5)])
def test_survey_says_what_sorting_finds(be, index, shape):
    rng = np.random.default_rng(0)
    for nnz in (0, 1, 2, 30, 5000):
        surveyed(be, tuple(rng.integers(0, n, nnz).astype(index) for n in shape), shape)


@fast
@both_indices
@pytest.mark.parametrize("crowd", ["cells", "few", "row", "column", "band", "power", "spread"])
def test_survey_of_crowded_keys(be, index, crowd):
    """Leading digits that many keys have, that few have, and that nearly all have."""
    rng, nnz = np.random.default_rng(0), 20_000
    some, power = rng.integers(0, 3000, nnz), 3000 * rng.random((2, nnz)) ** 6
    row, col = {
        "cells": (rng.integers(0, 8, nnz), rng.integers(0, 9, nnz)),
        "few": (some // 300 * 300, some % 2),
        "row": (np.full(nnz, 7), some),
        "column": (some, np.full(nnz, 7)),
        "band": (some, some + rng.integers(0, 9, nnz)),
        "power": tuple(power.astype(int)),
        "spread": (some, rng.integers(0, 3000, nnz) // 50 * 50),
    }[crowd]
    coords = row.astype(index), col.astype(index)
    surveyed(be, coords, (3009, 3009))
    same(be.sort_coo(coords, (3009, 3009)).astype(index), np.lexsort((col, row)).astype(index))


@fast
@all_dtypes
@pytest.mark.parametrize("width", [(), (1,), (2,), (3,), (16,), (2, 9), (70,)])
def test_sum_runs(be, dtype, width):
    rng = np.random.default_rng(0)
    for counts in ([], [1], [3, 1, 2], [900, 1, 5000], rng.integers(1, 4, 4000)):
        indptr = indptr_of(counts, "i4")
        values = whole(rng, (indptr[-1], *width), dtype)
        perm = rng.permutation(indptr[-1]).astype("i4")
        with Unchanged(values, perm, indptr):
            same(be.sum_runs(values, perm, indptr), REFERENCE.sum_runs(values, perm, indptr))


@fast
def test_sort_coo_beyond_64_bit_keys(be):
    rng = np.random.default_rng(1)
    shape = (2**40, 2**40)
    coords = tuple(rng.integers(0, 2, 300) * (2**40 - 1) - 0 for _ in shape)
    np.testing.assert_array_equal(be.sort_coo(coords, shape), REFERENCE.sort_coo(coords, shape))


@fast
@both_indices
def test_spans(be, index):
    rng = np.random.default_rng(2)
    for count in (0, 1, 5, 3000):
        starts = rng.integers(0, 100, count).astype(index)
        offsets = indptr_of(rng.integers(0, 9, count), "i8")
        want = [s + i for s, n in zip(starts, np.diff(offsets)) for i in range(n)]
        np.testing.assert_array_equal(be.spans(starts, offsets), want)
        np.testing.assert_array_equal(REFERENCE.spans(starts, offsets), want)


@fast
@both_indices
def test_compact(be, index):
    rng = np.random.default_rng(2)
    for nnz, share in ((0, 0.5), (1, 0), (1, 1), (90, 0.3), (90, 1), (50_000, 0.2), (50_000, 0)):
        keep = rng.random(nnz) < share
        lists = rng.integers(0, 99, nnz).astype(index), rng.random(nnz)
        runs = np.sort(np.append(rng.integers(0, nnz + 1, 30), [0, nnz])).astype(index)
        for offsets in (None, runs, runs[[0, -1]], runs[:1] * 0):
            with Unchanged(keep, *lists):
                entries, kept, after = be.compact(keep, lists, offsets)
            assert (entries is None) == keep.all()
            if entries is not None:
                np.testing.assert_array_equal(entries, np.flatnonzero(keep))
            for got, x in zip(kept, lists, strict=True):
                same(got, x[keep])
            if offsets is None:
                assert after is None
            else:
                upto = np.concatenate(([0], np.cumsum(keep)))
                np.testing.assert_array_equal(after, upto[offsets])


@fast
@both_indices
@all_dtypes
def test_runs_of_lines(be, index, dtype):
    rng = np.random.default_rng(2)
    for m, k, tail in ((1, 0, ()), (1, 3, (2,)), (40, 7, (3, 5)), (40, 7, (0,)), (900, 9000, ())):
        indptr = indptr_of(rng.integers(0, 9, m), index)
        ids = rng.integers(0, m, k)
        want = [np.arange(indptr[i], indptr[i + 1]) for i in ids]
        with Unchanged(indptr, ids):
            starts, offsets = be.line_runs(indptr, ids)
        runs = Runs(starts, offsets)
        np.testing.assert_array_equal(np.diff(offsets), [line.size for line in want])
        np.testing.assert_array_equal(runs.positions, np.concatenate([*want, np.zeros(0, int)]))
        for x in layouts(whole(rng, (indptr[-1], *tail), dtype)):
            with Unchanged(x, starts, offsets):
                same(be.take_runs(x, runs), x[runs.positions])
                same(REFERENCE.take_runs(x, runs), x[runs.positions])


@fast
@every_pattern
@both_indices
def test_find(be, name, index):
    rng = np.random.default_rng(3)
    for pattern in patterns(name, index):
        pattern = plan.coalesce(pattern).pattern
        indptr, cols, _ = pattern.sorted_rows()
        m, n = pattern.shape
        count = 900 if m * n else 0
        row, col = rng.integers(0, max(1, m), count), rng.integers(0, max(1, n), count)
        places = {cell: p for p, cell in enumerate(zip(be.expand(indptr, cols.size), cols))}
        want = [places.get(cell, -1) for cell in zip(row, col)]
        np.testing.assert_array_equal(be.find(indptr, cols, row, col), want)
        np.testing.assert_array_equal(REFERENCE.find(indptr, cols, row, col), want)


@every_pattern
@both_indices
def test_merge_rows(name, index):
    """As sorting both, stably, and looking for runs."""
    be = CpuJitNarrow(always=True)
    for pattern in patterns(name, index):
        a = plan.coalesce(pattern).pattern
        b = Pattern.coo([c[::-3] for c in a.coords], a.shape)  # neither sorted nor CSR
        c = Pattern.coo([(x + 1) % max(n, 1) for x, n in zip(a.coords, a.shape)], a.shape)
        for one, two in ((a, b), (b, a), (a, c), (a, a), (a.T, c.T)):
            if not (merged := be.merge_rows(one, two)):
                assert not one.nnz + two.nnz
                continue
            indptr, cols, perm, runs = merged
            row, col = (np.concatenate(x) for x in zip(one.coords, two.coords))
            order = np.lexsort((col, row))
            (rows, distinct), offsets = REFERENCE.runs((row[order], col[order]))
            np.testing.assert_array_equal(perm, order)
            np.testing.assert_array_equal(cols, distinct)
            np.testing.assert_array_equal(be.expand(indptr, cols.size), rows)
            np.testing.assert_array_equal(runs, offsets)


@fast
@both_indices
def test_group(be, index):
    rng = np.random.default_rng(0)
    for n, nnz in ((0, 0), (5, 0), (1, 9), (7, 40), (300, 3000), (50_000, 40_000)):
        some = rng.integers(0, max(n, 1), nnz).astype(index)
        for ids in (some, np.repeat(some, 2)[::2]):
            with Unchanged(ids):
                for got, want in zip(be.group(ids, n), REFERENCE.group(ids, n), strict=True):
                    same(got, want)


@fast
@both_indices
def test_regroup(be, index):
    rng = np.random.default_rng(0)
    for m, n, nnz in ((0, 0, 0), (3, 5, 0), (1, 1, 9), (9, 7, 40), (2000, 300, 3000)):
        indptr = np.sort(np.append(rng.integers(0, nnz + 1, max(m - 1, 0)), [0, nnz][: m + 1]))
        indptr, ids = indptr.astype(index), rng.integers(0, max(n, 1), nnz).astype(index)
        with Unchanged(indptr, ids):
            for got, want in zip(
                be.regroup(indptr, ids, n), REFERENCE.regroup(indptr, ids, n), strict=True
            ):
                same(got, want)


@fast
def test_group_of_ids_that_nobody_checked(be):
    ids = np.append(np.arange(20_000), [-1, 20_000]).astype("i4")
    with pytest.raises(ValueError):  # NumPy's, which counts no negative ones
        be.group(ids, 20_000)


@fast
@both_indices
def test_line_facts(be, index):
    rng = np.random.default_rng(0)
    for m, nnz in ((1, 0), (1, 1), (1, 9), (9, 40), (700, 50_000)):
        indptr = np.sort(np.append(rng.integers(0, nnz + 1, m - 1), [0, nnz])).astype(index)
        rows = REFERENCE.expand(indptr, nnz)
        ids = rng.integers(0, 3 * nnz + 1, nnz).astype(index)
        rising = ids[np.lexsort((ids, rows))]
        strict = (np.arange(nnz) - indptr[rows]).astype(index)
        swapped = strict.copy()
        swapped[nnz // 2 : nnz // 2 + 2] = swapped[nnz // 2 : nnz // 2 + 2][::-1]
        for minor in (ids, rising, strict, swapped):
            assert be.line_facts(indptr, minor) == REFERENCE.line_facts(indptr, minor)


@every_backend
@pytest.mark.parametrize("index", ["i4", "i8", "u1"])
def test_check_indices(be, index):
    be.check_indices("indices", np.array([], dtype=index), 0)
    be.check_indices("indices", np.array([4, 0, 2], dtype=index), 5)
    with pytest.raises(PatternError, match=r"indices: index 5 at position 1 is outside \[0, 5\)"):
        be.check_indices("indices", np.array([4, 5, 2], dtype=index), 5)
    if index != "u1":
        with pytest.raises(PatternError, match=r"index -1 at position 1 is outside"):
            be.check_indices("indices", np.array([4, -1, 5], dtype=index), 5)  # the first


@every_backend
@pytest.mark.parametrize("index", ["i4", "i8", "u1"])
@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_copy_coords(be, index, dtype):
    ids = np.random.default_rng(0).integers(0, 100, 20_000).astype(index)
    for coords in ([ids], [ids, ids[::-1]], [np.repeat(ids, 2)[::2], ids, ids], [ids[:0]]):
        shape = (100, 200, 100)[: len(coords)]
        with Unchanged(*coords):
            copies, facts = be.copy_coords("indices", coords, shape, np.dtype(dtype))
        assert facts is None
        for copy, given in zip(copies, coords, strict=True):
            same(copy, given.astype(dtype))
            assert not np.shares_memory(copy, given)
    at = int(np.flatnonzero(ids == 99)[0])
    with pytest.raises(PatternError, match=rf"indices\[1\]: index 99 at position {at} is outside"):
        be.copy_coords("indices", [ids, ids], (100, 99), np.dtype(dtype))
    if index != "u1":
        ids[[7, 12_000]] = -1
        with pytest.raises(PatternError, match=r"indices\[0\]: index -1 at position 7 is outside"):
            be.copy_coords("indices", [ids], (100,), np.dtype(dtype))


@every_backend
@pytest.mark.parametrize("index", ["i4", "i8", "u1"])
@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_ids_by_table(be, index, dtype):
    bounds, dtype = (7, 200, 30), np.dtype(dtype)
    ids = np.stack([np.arange(600) % n for n in bounds], 1).astype(index)
    for given in (ids, np.asfortranarray(ids), ids[:1], ids[:0]):
        found = be.ids_by_table("op", given, bounds, dtype)
        same(found, given.T.astype(dtype))
        assert found.flags.c_contiguous and not np.shares_memory(found, given)
    ids[[30, 31], [1, 0]] = 200
    with pytest.raises(PatternError, match=r"op of table 0: index 200 at position 31 is outside"):
        be.ids_by_table("op", ids, bounds, dtype)
