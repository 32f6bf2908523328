"""The contract of backends: every fast method gives what the pure reference gives.

Most inputs are small whole numbers, so that sums are exact in every dtype and every order and the
results can be compared for equality.
"""

import inspect
import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
import weakref

import numpy as np
import pytest
import threadpoolctl

import sparsegrad as sg
from sparsegrad.backends import blas, cpu_jit, cpu_jit_launch, cpu_jit_matmul, cpu_jit_tiles
from sparsegrad.backends.base import Backend
from sparsegrad.backends.cpu import Cpu
from sparsegrad.backends.cpu_jit import CpuJit
from sparsegrad.backends.cpu_jit_narrow import CpuJitNarrow
from sparsegrad.backends.steps import (
    AdagradFactors,
    AdamFactors,
    RmspropFactors,
    RowGradient,
    SgdFactors,
)
from sparsegrad.errors import PatternError
from sparsegrad.structure import plan
from sparsegrad.structure.arrays import Runs
from sparsegrad.structure.pattern import Pattern
from sparsegrad.structure.plan_reduce import Halvings

REFERENCE = Backend()
FAST = [pytest.param(Cpu(), id="cpu"), pytest.param(CpuJitNarrow(always=True), id="cpu_jit")]
FLOATS = ["f2", "f4", "f8"]
OTHERS = ["i8", "?", "c16"]


# --- the contract ------------------------------------------------------------------------------


def methods(cls):
    return {
        name: member
        for base in cls.__mro__[:-1]
        for name, member in vars(base).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


@pytest.mark.parametrize("cls", [Cpu, CpuJitNarrow])
def test_overrides_keep_the_signature(cls):
    contract = methods(Backend)
    for base in cls.__mro__[: cls.__mro__.index(Backend)]:
        for name, member in methods(base).items():
            assert name in contract, f"{base.__name__}.{name} is not in the contract"
            assert inspect.signature(member) == inspect.signature(contract[name]), name


def test_names():
    assert [b.name for b in (REFERENCE, Cpu(), CpuJitNarrow())] == ["reference", "cpu", "cpu_jit"]


# --- inputs ------------------------------------------------------------------------------------


def whole(rng, shape, dtype):
    """Small whole numbers of a dtype."""
    if dtype == "?":
        return rng.random(shape) < 0.5
    low = -3 if np.dtype(dtype).kind in "fic" else 0
    return rng.integers(low, 4, shape).astype(dtype)


def layouts(array):
    """The same values in every memory layout a caller may bring."""
    yield array
    yield np.asfortranarray(array)
    wide = np.repeat(array[..., None], 2, axis=-1)
    yield wide[..., 0]
    locked = array.copy()
    locked.flags.writeable = False
    yield locked
    if len(array):
        yield np.broadcast_to(array[:1], array.shape)


def same(got, want, exact=True, rtol=None):
    assert type(got) is np.ndarray
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if exact:
        np.testing.assert_array_equal(got, want)
    else:
        rtol = rtol or {"f2": 2e-3, "f4": 2e-6, "f8": 1e-13}[got.dtype.str[1:]]
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * 1e-3)


class Unchanged:
    """Fails if an array is changed within the block."""

    def __init__(self, *arrays):
        self.arrays = arrays

    def __enter__(self):
        self.copies = [a.copy() for a in self.arrays]

    def __exit__(self, *error):
        for array, copy in zip(self.arrays, self.copies):
            np.testing.assert_array_equal(array, copy)


def coordinates(name):
    rng = np.random.default_rng(7)
    if name == "long rows":  # cut into chunks; the last chunk lies inside a row
        shape, lengths = (40, 300), np.full(40, 3)
        lengths[[1, 2, 39]] = 18_000, 9_000, 10_000
        row = np.repeat(np.arange(40), lengths)
        return shape, row, rng.integers(0, 300, row.size)
    shape, nnz = {
        "nothing": ((0, 0), 0),
        "no rows": ((0, 5), 0),
        "no columns": ((5, 0), 0),
        "no entries": ((4, 3), 0),
        "one": ((1, 1), 1),
        "full row": ((3, 50), 50),
        "duplicates": ((4, 5), 60),
        "wide": ((6, 4000), 300),
        "tall": ((4000, 6), 300),
        "medium": ((300, 200), 3000),
    }[name]
    row, col = rng.integers(0, max(1, shape[0]), nnz), rng.integers(0, max(1, shape[1]), nnz)
    if name == "full row":
        row, col = np.full(50, 1), np.arange(50)
    if name == "medium":
        row[row % 7 == 0] = 1  # empty rows, and a crowded one
        col[col % 5 == 0] = 3
    return shape, row, col


SMALL = ["nothing", "no rows", "no columns", "no entries", "one", "full row", "duplicates"]
ALL = [*SMALL, "wide", "tall", "medium", "long rows"]


def patterns(name, index="i4"):
    """The entries in every order and format: as given, CSR, CSC and transposed."""
    shape, row, col = coordinates(name)
    if index == "i8":  # what a dimension beyond int32 does to every index array
        given = Pattern.coo((row, col), shape)
        given.core.arrays = tuple(a.astype(np.int64) for a in given.core.arrays)
    else:
        given = Pattern.coo((row, col), shape)
    yield given
    yield given.T
    yield given.to("csr")[0]
    yield given.to("csc")[0]
    indptr, indices, _ = given.rows()
    compressed = Pattern.compressed("csr", indptr, indices, shape)
    yield compressed
    yield compressed.T
    yield compressed.to("csc")[0]


# --- products ----------------------------------------------------------------------------------

# Every kind of block in which columns are taken, for float32 and float64 (16 and 8 to a vector).
TAILS = [(0,), (1,), (3,), (5,), (16,), (23,), (64,), (77,), (2, 5), (2, 0), (0, 3)]


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("index", ["i4", "i8"])
def test_spmm(be, name, dtype, index):
    rng = np.random.default_rng(0)
    tails = [(3,)] if name == "long rows" else TAILS
    for pattern in patterns(name, index):
        for tail in tails:
            values = whole(rng, (pattern.nnz, *tail[:-1]), dtype)
            x = whole(rng, (pattern.shape[1], *tail), dtype)
            with Unchanged(values, x):
                same(be.spmm(pattern, values, x), REFERENCE.spmm(pattern, values, x))


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("activation", ["relu", "identity", "sigmoid"])
def test_spmm_bias_act(be, name, dtype, activation):
    rng = np.random.default_rng(0)
    widths = [3, 24] if name == "long rows" else [1, 2, 3, 5, 16, 23, 77, 0]
    for pattern in patterns(name):
        for k in widths:
            values, bias = whole(rng, pattern.nnz, dtype), whole(rng, k, dtype)
            x = whole(rng, (pattern.shape[1], k), dtype)
            with Unchanged(values, x, bias):
                got = be.spmm_bias_act(pattern, values, x, bias, activation)
            want = REFERENCE.spmm_bias_act(pattern, values, x, bias, activation)
            assert got.shape == want.shape
            atol = {"f2": 2e-3, "f4": 1e-6, "f8": 1e-14}[dtype] * (activation == "sigmoid")
            np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=0, atol=atol)


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("index", ["i4", "i8"])
def test_sddmm(be, name, dtype, index):
    rng = np.random.default_rng(1)
    tails = [(3,)] if name == "long rows" else TAILS
    for pattern in patterns(name, index):
        for tail in tails:
            x, y = (whole(rng, (n, *tail), dtype) for n in pattern.shape)
            with Unchanged(x, y):
                same(be.sddmm(pattern, x, y), REFERENCE.sddmm(pattern, x, y))


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("dtype", OTHERS)
def test_products_of_other_dtypes(be, dtype):
    rng = np.random.default_rng(2)
    for pattern in patterns("medium"):
        x, y = (whole(rng, (n, 3), dtype) for n in pattern.shape)
        values = whole(rng, pattern.nnz, dtype)
        same(be.spmm(pattern, values, y), REFERENCE.spmm(pattern, values, y))
        same(be.sddmm(pattern, x, y), REFERENCE.sddmm(pattern, x, y))


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("dtype", FLOATS)
def test_products_of_every_layout(be, dtype):
    rng = np.random.default_rng(3)
    for pattern in patterns("medium"):
        for tail in [(1,), (4,), (2, 3)]:
            for values in layouts(whole(rng, (pattern.nnz, *tail[:-1]), dtype)):
                for y in layouts(whole(rng, (pattern.shape[1], *tail), dtype)):
                    same(be.spmm(pattern, values, y), REFERENCE.spmm(pattern, values, y))
            for x in layouts(whole(rng, (pattern.shape[0], *tail), dtype)):
                for y in layouts(whole(rng, (pattern.shape[1], *tail), dtype)):
                    same(be.sddmm(pattern, x, y), REFERENCE.sddmm(pattern, x, y))


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_products_of_real_numbers(be, dtype):
    rng = np.random.default_rng(4)
    for name in ("medium", "long rows"):
        shape, row, col = coordinates(name)
        pattern = Pattern.coo((row, col), shape)
        values, x, y = (
            rng.random(s).astype(dtype) for s in (pattern.nnz, (shape[0], 17), (shape[1], 17))
        )
        rtol = {"f4": 2e-5, "f8": 1e-13}[dtype]
        got, want = be.spmm(pattern, values, y), REFERENCE.spmm(pattern, values.astype("f8"), y)
        same(got, want.astype(dtype), exact=False, rtol=rtol)
        same(be.sddmm(pattern, x, y), REFERENCE.sddmm(pattern, x, y), exact=False, rtol=rtol)


@pytest.mark.parametrize("be", FAST)
def test_spmm_casts_values_to_x(be):
    (pattern, *_) = patterns("medium")
    rng = np.random.default_rng(5)
    for values in (whole(rng, pattern.nnz, "f8"), whole(rng, pattern.nnz, "?")):
        x = whole(rng, (pattern.shape[1], 4), "f4")
        same(be.spmm(pattern, values, x), REFERENCE.spmm(pattern, values, x))


@pytest.mark.parametrize("be", FAST)
def test_spmm_keeps_nan_and_infinity_where_they_are(be):
    pattern = Pattern.coo(([0, 0, 1, 2], [0, 1, 1, 2]), (4, 3))
    x = np.array([[np.inf, 1], [1, np.nan], [2, -np.inf]], dtype="f4")
    values = np.array([1, 2, 3, 0], dtype="f4")
    with np.errstate(invalid="ignore"):
        same(be.spmm(pattern, values, x), REFERENCE.spmm(pattern, values, x))


# --- sums by index -----------------------------------------------------------------------------

RUNS = {
    "no runs": [],
    "empty runs": [0, 0, 0],
    "one run": [50],
    "mixed": [0, 3, 1, 0, 0, 40, 7, 0],
    "long": [3, 12_000, 0, 9_000, 1],
}


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS])
def test_segment_sum_and_max(be, runs, index, dtype):
    rng = np.random.default_rng(0)
    indptr = np.concatenate(([0], np.cumsum(RUNS[runs]))).astype(index)
    for tail in [(), (1,), (3,), (2, 4), (0,)]:
        for values in layouts(whole(rng, (int(indptr[-1]), *tail), dtype)):
            if dtype == "f2" and runs == "long":
                values = values % 2  # sums beyond 2048 are not exact
            with Unchanged(values, indptr):
                same(be.segment_sum(values, indptr), REFERENCE.segment_sum(values, indptr))
                if dtype not in ("?", "c16"):
                    same(be.segment_max(values, indptr), REFERENCE.segment_max(values, indptr))


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_segment_amax_with_absent_zeros(be, runs, index, dtype):
    rng = np.random.default_rng(0)
    indptr = np.concatenate(([0], np.cumsum(RUNS[runs]))).astype(index)
    absent = rng.integers(0, 3, len(indptr) - 1)
    for tail in [(), (3,), (0,)]:
        for values in layouts(whole(rng, (int(indptr[-1]), *tail), dtype)):
            with Unchanged(values, indptr, absent):
                out = be.segment_amax(values, indptr, absent)
                same(out, REFERENCE.segment_amax(values, indptr, absent))
                g = rng.normal(size=out.shape).astype(dtype)
                args = g, values, out, indptr, absent
                got, want = be.segment_amax_grad(*args), REFERENCE.segment_amax_grad(*args)
                same(got, want, exact=False)


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_segment_prod(be, runs, index, dtype):
    rng = np.random.default_rng(0)
    indptr = np.concatenate(([0], np.cumsum(RUNS[runs]))).astype(index)
    zeros = rng.integers(0, 5, len(indptr) - 1) // 4
    steps = Halvings(indptr)
    for tail in [(), (3,), (0,)]:
        shape = (int(indptr[-1]), *tail)
        signs = np.where(rng.random(shape) < 1e-4, 0, rng.choice([-1.0, 1.0], shape))
        for values in layouts(signs.astype(dtype)):
            with Unchanged(values, indptr, zeros):
                out = be.segment_prod(values, steps, zeros)
                same(out, REFERENCE.segment_prod(values, steps, zeros))
                args = rng.normal(size=out.shape).astype(dtype), values, steps, zeros
                same(be.segment_prod_grad(*args), REFERENCE.segment_prod_grad(*args))


@pytest.mark.parametrize("be", FAST)
def test_segment_max_keeps_nan(be):
    values = np.array([1, np.nan, 2, -np.inf, np.inf, np.nan], dtype="f4")
    indptr = np.array([0, 3, 3, 4, 6], dtype="i4")
    want = np.array([np.nan, -np.inf, -np.inf, np.nan], dtype="f4")
    for v, w in ((values, want), (np.stack([values] * 2, 1), np.stack([want] * 2, 1))):
        same(be.segment_max(v, indptr), w)


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_segment_softmax(be, runs, index, dtype):
    rng = np.random.default_rng(1)
    indptr = np.concatenate(([0], np.cumsum(RUNS[runs]))).astype(index)
    for tail in [(), (1,), (2,), (3,), (4,), (2, 4), (16,), (20,), (0,)]:
        for values in layouts((rng.standard_normal((int(indptr[-1]), *tail)) * 4).astype(dtype)):
            with Unchanged(values, indptr):
                out = be.segment_softmax(values, indptr)
                want = REFERENCE.segment_softmax(values.astype("f8"), indptr).astype(dtype)
                rtol = {"f2": 2e-3, "f4": 1e-4, "f8": 1e-12}[dtype]
                same(out, want, exact=False, rtol=rtol)
        for g in layouts(rng.standard_normal(out.shape).astype(dtype)):
            with Unchanged(g, out, indptr):
                got = be.segment_softmax_grad(g, out, indptr)
                wide = g.astype("f8"), out.astype("f8"), indptr
                want = REFERENCE.segment_softmax_grad(*wide).astype(dtype)
                assert got.dtype == want.dtype and got.shape == want.shape
                scale = np.abs(wide[0] * wide[1]).max(initial=0)
                assert np.abs(got.astype("f8") - want).max(initial=0) <= rtol * scale


@pytest.mark.parametrize("be", [pytest.param(REFERENCE, id="reference"), *FAST])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [None, 1, 2, 3, 16])
def test_segment_softmax_of_extreme_values(be, dtype, width):
    big = np.finfo(dtype).max
    runs = [[-np.inf] * 2, [-np.inf, 0, 1], [np.inf, 0], [np.nan, 1], [big, big], [-big, big], [7]]
    third = [0, 1 / (1 + np.e), np.e / (1 + np.e)]
    want = [[np.nan] * 2, third, [np.nan, 0], [np.nan] * 2, [0.5, 0.5], [0, 1], [1]]
    values, want = (np.concatenate(v).astype(dtype) for v in (runs, want))
    indptr = np.cumsum([0] + [len(r) for r in runs]).astype("i4")
    if width:
        values, want = (np.stack([v] * width, axis=1) for v in (values, want))
    same(be.segment_softmax(values, indptr), want, exact=False)


def test_exp_over_its_range():
    for dtype, low, high, rtol in (("f4", -87, 0, 3e-7), ("f8", -708, 0, 5e-16)):
        x = np.linspace(low, high, 20_001).astype(dtype)
        pairs = np.stack([np.zeros_like(x), x], axis=1).ravel()  # softmax of (0, x)
        out = CpuJit(always=True).segment_softmax(pairs, np.arange(0, pairs.size + 1, 2))
        e = np.exp(x.astype(np.longdouble))
        want = (e / (1 + e)).astype("f8")
        np.testing.assert_allclose(out[1::2], want, rtol=4 * rtol)


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS, "c8", "u1"])
def test_gather(be, index, dtype):
    rng = np.random.default_rng(0)
    for tail in [(), (1,), (3,), (16,), (19,), (2, 7), (0,)]:
        ids = rng.integers(-40, 40, 101).astype(index)  # negative ones count from the end
        for x in layouts(whole(rng, (40, *tail), dtype)):
            same(be.gather(x, ids), x[ids])
            same(be.gather(x, ids % 40), x[ids % 40])
        same(be.gather(x, ids[:0]), x[:0])
    with pytest.raises(IndexError):
        be.gather(x, np.array([40], index))


@pytest.mark.parametrize("be", [pytest.param(REFERENCE, id="reference"), *FAST])
@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS, "c8", "u1"])
def test_gather_of_tables(be, index, dtype):
    rng = np.random.default_rng(0)
    for widths in [(1,), (3, 16, 0, 19), (64, 1, 7)]:
        tables = [whole(rng, (rng.integers(1, 300), w), dtype) for w in widths]
        ids = np.stack([rng.integers(0, len(x), 601) for x in tables]).astype(index)
        want = np.concatenate([x[i] for x, i in zip(tables, ids, strict=True)], 1)
        same(be.gather_tables(tables, ids), want)
        same(be.gather_tables([np.asfortranarray(x) for x in tables], ids), want)
        same(be.gather_tables(tables, ids[:, :0]), want[:0])
    ids[1, 600] = 300
    with pytest.raises(IndexError):
        be.gather_tables(tables, ids)


@pytest.mark.parametrize("be", [pytest.param(REFERENCE, id="reference"), *FAST])
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


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS])
def test_scatter_add(be, index, dtype):
    rng = np.random.default_rng(2)
    for n, nnz in ((0, 0), (5, 0), (1, 9), (7, 40), (300, 3000)):
        ids = rng.integers(0, max(n, 1), nnz).astype(index)
        for tail in [(), (1,), (3,), (2, 4), (64,), (0,)]:
            start = whole(rng, (n, *tail), dtype)
            for values in layouts(whole(rng, (nnz, *tail), dtype)):
                got, want = start.copy(), start.copy()
                with Unchanged(values, ids):
                    assert be.scatter_add(got, ids, values) is None
                    REFERENCE.scatter_add(want, ids, values)
                same(got, want)
            if dtype in FLOATS:  # a view is updated in place
                twice = np.repeat(start[..., None], 2, axis=-1)
                be.scatter_add(twice[..., 0], ids, values)
                same(np.ascontiguousarray(twice[..., 0]), want)
                np.testing.assert_array_equal(twice[..., 1], start)


@pytest.mark.parametrize("be", [pytest.param(REFERENCE, id="reference"), *FAST])
def test_scatter_add_outside_raises(be):
    out = np.zeros((3, 2), dtype="f4")
    with pytest.raises(IndexError):
        be.scatter_add(out, np.array([0, 3]), np.ones((2, 2), dtype="f4"))


@pytest.mark.parametrize("be", [pytest.param(REFERENCE, id="reference"), *FAST])
def test_float16_sums_in_float32(be):
    ones = np.ones(5000, dtype="f2")
    indptr = np.array([0, 5000], dtype="i4")
    pattern = Pattern.compressed("csr", indptr, np.zeros(5000, "i4"), (1, 1))
    assert be.segment_sum(ones, indptr) == 5000
    assert be.spmm(pattern, ones, np.ones((1, 1), "f2")) == 5000
    assert be.sddmm(Pattern.coo(([0], [0]), (1, 1)), ones[None], ones[None]) == 5000
    out = np.zeros((1, 2), dtype="f2")
    be.scatter_add(out, np.zeros(5000, "i4"), np.ones((5000, 2), "f2"))
    assert (out == 5000).all()


# --- index work --------------------------------------------------------------------------------


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("index", ["i4", "i8"])
def test_expand_and_compress(be, index):
    for counts in [*RUNS.values(), np.random.default_rng(0).integers(0, 9, 9000)]:
        indptr = np.concatenate(([0], np.cumsum(counts))).astype(index)
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


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("index", ["i4", "i8"])
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


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("shape", [(1,), (50,), (3000, 7), (10**6, 10**6), (3, 4, 5)])
def test_survey_says_what_sorting_finds(be, index, shape):
    rng = np.random.default_rng(0)
    for nnz in (0, 1, 2, 30, 5000):
        surveyed(be, tuple(rng.integers(0, n, nnz).astype(index) for n in shape), shape)


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("index", ["i4", "i8"])
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


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS])
@pytest.mark.parametrize("width", [(), (1,), (2,), (3,), (16,), (2, 9), (70,)])
def test_sum_runs(be, dtype, width):
    rng = np.random.default_rng(0)
    for counts in ([], [1], [3, 1, 2], [900, 1, 5000], rng.integers(1, 4, 4000)):
        indptr = np.concatenate(([0], np.cumsum(counts))).astype("i4")
        values = whole(rng, (indptr[-1], *width), dtype)
        perm = rng.permutation(indptr[-1]).astype("i4")
        with Unchanged(values, perm, indptr):
            same(be.sum_runs(values, perm, indptr), REFERENCE.sum_runs(values, perm, indptr))


@pytest.mark.parametrize("be", FAST)
def test_sort_coo_beyond_64_bit_keys(be):
    rng = np.random.default_rng(1)
    shape = (2**40, 2**40)
    coords = tuple(rng.integers(0, 2, 300) * (2**40 - 1) - 0 for _ in shape)
    np.testing.assert_array_equal(be.sort_coo(coords, shape), REFERENCE.sort_coo(coords, shape))


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("index", ["i4", "i8"])
def test_spans(be, index):
    rng = np.random.default_rng(2)
    for count in (0, 1, 5, 3000):
        starts = rng.integers(0, 100, count).astype(index)
        offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 9, count)))).astype("i8")
        want = [s + i for s, n in zip(starts, np.diff(offsets)) for i in range(n)]
        np.testing.assert_array_equal(be.spans(starts, offsets), want)
        np.testing.assert_array_equal(REFERENCE.spans(starts, offsets), want)


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("index", ["i4", "i8"])
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


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS])
def test_runs_of_lines(be, index, dtype):
    rng = np.random.default_rng(2)
    for m, k, tail in ((1, 0, ()), (1, 3, (2,)), (40, 7, (3, 5)), (40, 7, (0,)), (900, 9000, ())):
        indptr = np.concatenate(([0], np.cumsum(rng.integers(0, 9, m)))).astype(index)
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


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("index", ["i4", "i8"])
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


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("index", ["i4", "i8"])
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


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("index", ["i4", "i8"])
def test_group(be, index):
    rng = np.random.default_rng(0)
    for n, nnz in ((0, 0), (5, 0), (1, 9), (7, 40), (300, 3000), (50_000, 40_000)):
        some = rng.integers(0, max(n, 1), nnz).astype(index)
        for ids in (some, np.repeat(some, 2)[::2]):
            with Unchanged(ids):
                for got, want in zip(be.group(ids, n), REFERENCE.group(ids, n), strict=True):
                    same(got, want)


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("index", ["i4", "i8"])
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


@pytest.mark.parametrize("be", FAST)
def test_group_of_ids_that_nobody_checked(be):
    ids = np.append(np.arange(20_000), [-1, 20_000]).astype("i4")
    with pytest.raises(ValueError):  # NumPy's, which counts no negative ones
        be.group(ids, 20_000)


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("index", ["i4", "i8"])
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


@pytest.mark.parametrize("be", [pytest.param(REFERENCE, id="reference"), *FAST])
@pytest.mark.parametrize("index", ["i4", "i8", "u1"])
def test_check_indices(be, index):
    be.check_indices("indices", np.array([], dtype=index), 0)
    be.check_indices("indices", np.array([4, 0, 2], dtype=index), 5)
    with pytest.raises(PatternError, match=r"indices: index 5 at position 1 is outside \[0, 5\)"):
        be.check_indices("indices", np.array([4, 5, 2], dtype=index), 5)
    if index != "u1":
        with pytest.raises(PatternError, match=r"index -1 at position 1 is outside"):
            be.check_indices("indices", np.array([4, -1, 5], dtype=index), 5)  # the first


@pytest.mark.parametrize("be", [pytest.param(REFERENCE, id="reference"), *FAST])
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


# --- steps of optimizers -----------------------------------------------------------------------

ADAM = AdamFactors(0.9, 0.99, 0.1, 0.3, 0.2, 1e-8, 0.1, 0.9)
STEPS = [  # name, factors, state arrays of p's shape, and of one number a row
    pytest.param("sgd", SgdFactors(1, 0, 0.1, False), 0, None, id="sgd"),
    pytest.param("sgd", SgdFactors(0.1, 0.9, 0.1, False), 1, None, id="momentum"),
    pytest.param("sgd", SgdFactors(0.1, 0.9, 0.1, True), 1, None, id="nesterov"),
    pytest.param("sgd", SgdFactors(0.1, 0.9, 0.1, False, 0.3), 1, None, id="dampening"),
    pytest.param("adagrad", AdagradFactors(0.1, 0.1, 1e-8), 1, None, id="adagrad"),
    pytest.param("rowwise_adagrad", AdagradFactors(0.1, 0.1, 1e-8), 0, "sum", id="rowwise"),
    # centered: the root of a difference has few digits, which a large eps hides
    pytest.param("rmsprop", RmspropFactors(0.1, 0.9, 1e-8, 0, 0, False), 1, None, id="rmsprop"),
    pytest.param("rmsprop", RmspropFactors(0.1, 0.9, 10, 0.1, 0, True), 2, None, id="centered"),
    pytest.param("rmsprop", RmspropFactors(0.1, 0.9, 0.1, 0, 0.5, False), 2, None, id="speed"),
    pytest.param("rmsprop", RmspropFactors(0.1, 0.9, 10, 0.1, 0.5, True), 3, None, id="both"),
    pytest.param("adam", ADAM, 2, None, id="adam"),
    pytest.param("adam", ADAM, 2, "count", id="adam-per-row"),
    pytest.param("adam", ADAM._replace(amsgrad=True), 3, None, id="amsgrad"),
    pytest.param("adam", ADAM._replace(amsgrad=True), 3, "count", id="amsgrad-per-row"),
]
steps = pytest.mark.parametrize(("name", "factors", "wide", "by_row"), STEPS)


def stepped(be, name, factors, p, grad, wide, by_row):
    """p and state after a step from the same start."""
    rng = np.random.default_rng(1)
    arrays = [p.copy(order="A")]
    arrays += [np.abs(rng.standard_normal(p.shape)).astype(p.dtype) for _ in range(wide)]
    if by_row:
        arrays.append(np.arange(len(p)) if by_row == "count" else np.ones(len(p), p.dtype))
    getattr(be, name)(factors, arrays[0], grad, *arrays[1:])
    return arrays


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_steps_of_many_tables_are_those_of_each(threads, name):
    """To the bit, whichever thread makes them; gradients are parts of one array."""
    rng = np.random.default_rng(0)
    factors = ADAM if name == "adam" else SgdFactors(0.1, 0, 0.1, False)
    whole_g = rng.standard_normal((3000, 5 * 16)).astype("f4")
    rows = np.unique(rng.integers(0, 9000, 3000)).astype("i4")
    entries = [np.ascontiguousarray(whole_g[: len(rows), 16 * f : 16 * f + 16]) for f in range(5)]
    grads = [whole_g[: len(rows), 16 * f : 16 * f + 16] for f in range(5)]
    found = []
    for n in (0, 1, 2):
        tables = [np.full((9000, 16), f, "f4") for f in range(5)]
        state = [[np.ones_like(p) for _ in range(2 * (name == "adam"))] for p in tables]
        steps = [
            (factors, p, RowGradient(rows, None, None, g), *s)
            for p, g, s in zip(tables, grads if n else entries, state, strict=True)
        ]
        if n:
            threads(n)
            CpuJit().rows_of_many(name, steps)
        else:
            for step in steps:
                getattr(CpuJit(), f"{name}_rows")(*step)
        found.append([a.tobytes() for _, p, _, *held in steps for a in (p, *held)])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("be", FAST)
@steps
@pytest.mark.parametrize("shape", [(0, 3), (7,), (5, 0), (5, 3), (6, 2, 4), (70_001,)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_steps(be, name, factors, wide, by_row, shape, dtype):
    rng = np.random.default_rng(0)
    p, g = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    for grad in (g, np.asfortranarray(g), np.broadcast_to(g[:1], g.shape) if len(g) else g):
        with Unchanged(grad):
            got = stepped(be, name, factors, p, grad, wide, by_row)
        want = stepped(REFERENCE, name, factors, p, grad, wide, by_row)
        for a, b in zip(got, want, strict=True):
            assert a.dtype == b.dtype
            tol = {"f2": 4e-3, "f4": 1e-5, "f8": 1e-13}[dtype]
            np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


@pytest.mark.parametrize("be", FAST)
@steps
@pytest.mark.parametrize("shape", [(9,), (9, 0), (9, 3), (9, 40), (9, 2, 4)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_steps_of_rows(be, name, factors, wide, by_row, shape, dtype):
    rng = np.random.default_rng(0)
    p = rng.standard_normal(shape).astype(dtype)
    values = rng.integers(-3, 4, (12, *shape[1:])).astype(dtype)
    perm, indptr = rng.permutation(12).astype("i4"), np.array([0, 1, 9, 10, 12], "i4")
    values[perm[9]] = 0  # one row's entries are zero, another's sum
    values[perm[10]] = -values[perm[11]]
    rows = np.array([1, 2, 5, 8], "i4")
    summed = np.add.reduceat(values[perm].astype("f8"), indptr[:-1]).astype(dtype)
    gradients = [
        RowGradient(rows, perm, indptr, values),
        RowGradient(rows, None, indptr, values[perm]),
        RowGradient(rows.astype("i8"), None, None, summed),
        RowGradient(rows[:0], perm[:0], None, values[:0]),
    ]
    if p.ndim == 2:  # a part of the gradient of several tables
        part = np.pad(values, ((0, 0), (2, 1)), constant_values=9)[:, 2:-1]
        gradients.append(RowGradient(rows, perm, indptr, part))
    still = [0, 3, 4, 5, 6, 7, 8]
    for kind, grad in enumerate(gradients):
        got = stepped(be, f"{name}_rows", factors, p, grad, wide, by_row)
        want = stepped(REFERENCE, f"{name}_rows", factors, p, grad, wide, by_row)
        for a, b in zip(got, want, strict=True):
            assert a.dtype == b.dtype
            tol = {"f2": 4e-3, "f4": 1e-5, "f8": 1e-13}[dtype]
            np.testing.assert_allclose(a, b, rtol=tol, atol=tol)
        np.testing.assert_array_equal(got[0][still], p[still])
        if kind < 3 and p.size:
            assert (got[0][[1, 2]] != p[[1, 2]]).any(axis=tuple(range(1, p.ndim))).all()


def test_steps_of_16_bit_arrays_are_taken_in_float32():
    p, g = np.ones(3, "f2"), np.full(3, 1e-3, "f2")
    REFERENCE.adagrad(AdagradFactors(1, 0, 0), p, g, total := np.zeros(3, "f2"))
    np.testing.assert_allclose(p, 0, atol=2e-2)  # g² alone would lose its digits in float16
    assert total.dtype == "f2"


# --- layers of dense networks ------------------------------------------------------------------


def dense_layers(be, n, width, dtype, order="C"):
    """Results of every fused method on the same rows."""
    rng = np.random.default_rng(n)
    x, g = (np.asarray(rng.standard_normal((n, width)), dtype, order=order) for _ in range(2))
    weight, bias = (rng.standard_normal(width).astype(dtype) for _ in range(2))
    classes, factors = rng.integers(-1, width, n), np.abs(weight)
    out = []
    with Unchanged(x, g, weight, bias, classes, factors):
        out += [be.gelu(x), be.silu(x), be.gelu_grad(g, x), be.silu_grad(g, x)]
        out += [be.leaky_relu(x, 0.2), be.leaky_relu_grad(g, x, 0.2)]
        out += [be.elu(x, 0.7), be.elu_grad(g, x, 0.7)]
        for chosen, smoothing in ((None, 0.0), (factors, 0.0), (None, 0.1), (factors, 0.1)):
            loss, lse = be.cross_entropy(x, classes, chosen, smoothing)
            back = be.cross_entropy_grad(g[:, 0], x, lse, classes, chosen, smoothing)
            out += [loss, lse, back]
        for scale, shift in ((None, None), (weight, bias), (weight, None), (None, bias)):
            y, mean, factor = be.layer_norm(x, scale, shift, 1e-3)
            out += [y, mean, factor, be.layer_norm_grad(g, x, scale, mean, factor)]
        out.append(be.layer_norm_weight_grad(g, x, mean, factor))
    return out


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize(("n", "width"), [(1, 1), (5, 3), (70, 63), (40, 64), (9, 300), (5000, 4)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_layers_of_dense_networks(be, n, width, dtype):
    want = dense_layers(REFERENCE, n, width, dtype)
    for order in "CF":
        for got, expected in zip(dense_layers(be, n, width, dtype, order), want, strict=True):
            assert got.dtype == expected.dtype
            tol = 1e-12 if dtype == "f8" else 2e-4 * max(1, np.abs(expected).max())
            np.testing.assert_allclose(got, expected, rtol=tol, atol=tol)


@pytest.mark.parametrize("be", FAST)
def test_losses_of_logits_that_are_not_finite(be):
    x = np.array([[np.inf, 0], [-np.inf, -np.inf], [np.nan, 0], [-np.inf, 0], [1e4, -1e4]])
    with np.errstate(all="ignore"):
        got, want = (b.cross_entropy(x, np.ones(5, int), None, 0.0) for b in (be, REFERENCE))
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[0], [np.nan, np.nan, np.nan, 0, 2e4])


# --- what other columns of the table share -----------------------------------------------------


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS])
def test_sum_and_matmul(be, dtype):
    rng = np.random.default_rng(0)
    a, b = whole(rng, (5, 7), dtype), whole(rng, (7, 3), dtype)
    for axis in (None, 0, (0, 1)):
        same(np.asarray(be.sum(a, axis)), np.asarray(REFERENCE.sum(a, axis)))
    same(be.matmul(a, b), REFERENCE.matmul(a, b))


@pytest.mark.parametrize("be", FAST)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", [(2003, 7), (1024, 1), (9000, 200), (5000, 16), (3, 7), (0, 3)])
def test_sums_of_columns(be, shape, keepdims):
    a = np.random.default_rng(0).standard_normal(shape)
    for x in (a, np.asfortranarray(a), a[::2]):
        np.testing.assert_allclose(
            be.sum(x, (0,), keepdims), x.sum(axis=0, keepdims=keepdims), rtol=1e-12, atol=1e-12
        )


def with_index(pattern, index):
    """A new pattern with index arrays of that dtype."""
    pattern.core.arrays = tuple(a.astype(index) for a in pattern.core.arrays)
    return pattern


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("dims", [(1, 8), (1, 19), (2, 5), (3, 33)])
@pytest.mark.parametrize("shape", [(20, 2000), (20_000, 70)], ids=["few rows", "empty rows"])
def test_products_of_entries_listed_by_column(dims, index, dtype, shape):
    """Few rows: of each chunk of columns an output of its own, then their sum. Rows that mostly
    stay empty: one output."""
    rng, (m, n) = np.random.default_rng(0), shape
    cells = np.sort(rng.choice(m * n, 5000, replace=False))
    pattern = with_index(Pattern.coo([cells % m, cells // m], (m, n)), index).to("csc")[0]
    heads, k = dims
    x = whole(rng, (n, heads, k) if heads > 1 else (n, k), dtype)
    width = (5000, heads) if heads > 1 else 5000
    be = CpuJit(always=True)
    for values in (whole(rng, width, dtype), np.broadcast_to(whole(rng, 1, dtype), width)):
        same(be.spmm(pattern, values, x), REFERENCE.spmm(pattern, values, x))
    cuts, *_ = cpu_jit._scatter_plan(pattern, 4 * heads * k)
    assert len(cuts) == 2 if m > n else len(cuts) > 2


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("given", ["sorted", "transposed", "shuffled"])
def test_products_in_tiles(given, index, dtype, threads, monkeypatch):
    rng, (m, n), k = np.random.default_rng(0), (600, 300), {"f2": 64, "f4": 80, "f8": 48}[dtype]
    be, made = CpuJit(always=True), []
    monkeypatch.setattr(
        cpu_jit_tiles, "_plan", lambda *a, f=cpu_jit_tiles._plan: made.append(f(*a)) or made[-1]
    )
    where = np.argwhere(rng.random((m, n)) < 0.4)
    where = rng.permutation(where) if given == "shuffled" else where
    if given == "transposed":
        pattern = with_index(Pattern.coo(list(where.T[::-1]), (n, m)), index).T
    else:
        pattern = with_index(Pattern.coo(list(where.T), (m, n)), index)
    x = whole(rng, (n, k), dtype)
    for values in (
        whole(rng, len(where), dtype),
        np.broadcast_to(whole(rng, 1, dtype), len(where)),
    ):
        want = REFERENCE.spmm(pattern, values, x)
        for count in (1, 3, 1):  # and the third time with values that were kept in order
            threads(count)
            same(be.spmm(pattern, values, x), want)
    assert len(made) == 1 and made[0].tiles > 1
    with monkeypatch.context() as alone:
        alone.setattr(cpu_jit_tiles, "_MIN_ENTRIES", len(where))
        same(be.spmm(pattern, values, x), want)


# --- threads, processes, compilation -----------------------------------------------------------


@pytest.fixture
def threads(monkeypatch):
    """Sets the number of threads, and lets them share even small problems."""
    monkeypatch.setattr(cpu_jit_launch, "_PARALLEL", 0)
    before = cpu_jit.get_num_threads()
    yield cpu_jit.set_num_threads
    cpu_jit.set_num_threads(before)


def everything(dtype):
    """Results of every threaded method on a problem of several chunks."""
    be, rng = CpuJit(always=True), np.random.default_rng(0)
    shape, row, col = coordinates("long rows")
    pattern = Pattern.coo((row, col), shape)
    x, y = (rng.standard_normal((n, 2, 9)).astype(dtype) for n in shape)
    values = rng.standard_normal((pattern.nnz, 2)).astype(dtype)
    indptr, total = pattern.rows()[0], np.zeros((300, 36), dtype=dtype)
    ids = col.astype("i4")
    be.scatter_add(total, ids, np.tile(values, 18))
    softmax = be.segment_softmax(values, indptr)
    stepped_p, m, v = (np.ones_like(total) for _ in range(3))
    be.adam(ADAM, stepped_p, total, m, v)
    rows, runs = np.arange(300, dtype="i4"), np.searchsorted(np.sort(ids), np.arange(301))
    grad = RowGradient(rows, np.argsort(ids).astype("i4"), runs.astype("i4"), np.tile(values, 18))
    be.adam_rows(ADAM, stepped_p, grad, m, v)
    return [
        *dense_layers(be, 5000, 10, dtype),
        stepped_p,
        m,
        v,
        be.spmm(pattern, values, y),
        be.spmm(pattern, values[:, 0], y[:, 0, :1]),
        be.spmm(pattern.to("csr")[0].T, values, x),
        be.sddmm(pattern, x, y),
        be.segment_sum(values, indptr),
        be.segment_max(values, indptr),
        softmax,
        be.segment_softmax_grad(values, softmax, indptr),
        total,
        be.sort_coo((ids, row.astype("i4")), shape[::-1]),
        *be.group(ids, 300),
        be.expand(indptr, pattern.nnz),
        be.compress(np.sort(ids), 300),
    ]


@pytest.mark.parametrize("dtype", FLOATS)
def test_results_do_not_depend_on_the_threads(threads, dtype):
    threads(1)
    want = everything(dtype)
    for n in (2, 3, 5):
        threads(n)
        for got, expected in zip(everything(dtype), want, strict=True):
            assert got.tobytes() == expected.tobytes()


def test_several_python_threads_at_once(threads):
    threads(2)
    want = everything("f4")
    failures = []

    def work():
        try:
            for _ in range(5):
                for got, expected in zip(everything("f4"), want, strict=True):
                    assert got.tobytes() == expected.tobytes()
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not failures


def test_small_products_of_one_pattern_in_many_threads():
    """They share index arrays that SciPy was given once, never its matrix; and no values stay."""
    be, failures = Cpu(), []
    shape, row, col = coordinates("medium")
    pattern = Pattern.coo((row, col), shape).to("csr")[0]
    x = np.ones((shape[1], 7))
    count = np.diff(pattern.rows()[0])[:, None]

    def work(scale):
        values = np.full(pattern.nnz, float(scale))
        for _ in range(200):
            got = be.spmm(pattern, values, x)
            if not (got == count * scale).all():
                failures.append(scale)
        gone.append(weakref.ref(values))

    gone = []
    workers = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not failures
    assert [ref() for ref in gone] == [None] * 4


def test_number_of_threads():
    assert cpu_jit.get_num_threads() >= 1
    with pytest.raises(ValueError, match="at least 1, got 0"):
        cpu_jit.set_num_threads(0)


DENSE_PRODUCTS = [
    *(((m, k), (k, n)) for m, k, n in [(300, 300, 300), (5000, 64, 10), (64, 20000, 10)]),
    *(((m, k), (k, n)) for m, k, n in [(10, 500, 3000), (3, 2, 4), (0, 5, 9), (9, 0, 5)]),
    *(((m, k), (k, n)) for m, k, n in [(1, 90000, 1), (1, 300, 9000), (9000, 300, 1)]),
    *[((9000,), (9000,)), ((300, 900), (900,)), ((900,), (900, 300)), ((4, 100, 64), (64,))],
    *[((8, 100, 200), (200, 300)), ((8, 100, 200), (8, 200, 300)), ((100, 200), (8, 200, 300))],
    *[((1, 100, 200), (8, 200, 300)), ((3, 8, 100, 200), (8, 200, 30)), ((0, 9, 9), (0, 9, 9))],
]


@pytest.mark.parametrize("shapes", DENSE_PRODUCTS, ids=str)
def test_dense_products_on_our_threads(threads, shapes):
    threads(3)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape) for shape in shapes)
    for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b)), (a + 1j, b - 2j)):
        got, want = CpuJit(always=True).matmul(x, y), np.matmul(x, y)
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-10)


@pytest.mark.skipif(not blas.can_stand_in(), reason="another BLAS")
def test_dense_products_leave_blas_its_threads(threads):
    threads(3)
    count = lambda: {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
    seen = []

    def multiply(ticket, todo):
        seen.append(count())

    a = np.full((300, 300), np.inf)
    a[:, 0] = -np.inf
    with warnings.catch_warnings():  # where NumPy would warn, on any thread
        warnings.simplefilter("error")
        assert np.isnan((sg.tensor(a) @ sg.ones(300, 300, dtype="float64")).numpy()).all()
    assert 3 in count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_jit_matmul, "_multiply", multiply)
        cpu_jit_matmul.matmul(a, a)
    assert seen and all(1 in found for found in seen)  # NumPy's
    assert 3 in count()
    other = threading.Thread(target=threads, args=(2,))  # any thread may set the number
    other.start()
    other.join()
    assert count() == {2}


def _forked(queue):
    cpu_jit_launch._PARALLEL = 0
    queue.put([a.tobytes() for a in everything("f4")])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_works(threads):
    threads(2)
    want = [a.tobytes() for a in everything("f4")]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_forked, args=(queue,))
    child.start()
    got = queue.get()
    child.join(60)
    assert child.exitcode == 0
    assert got == want


def _spawned(queue):
    queue.put([a.tobytes() for a in everything("f4")])


def test_a_spawned_child_works_beside_a_busy_parent(threads):
    threads(2)
    want = [a.tobytes() for a in everything("f4")]
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    child = context.Process(target=_spawned, args=(queue,))
    child.start()
    while queue.empty() and child.is_alive():
        assert [a.tobytes() for a in everything("f4")] == want
    got = queue.get()
    child.join(60)
    assert child.exitcode == 0
    assert got == want


def test_two_threads_train_at_once(threads):
    threads(2)
    rng = np.random.default_rng(0)
    A = sg.random_sparse(600, 600, density=0.1)
    x = sg.tensor(rng.standard_normal((600, 16)).astype("f4"))
    start = rng.standard_normal((2, 16, 16)).astype("f4")

    def train(w, losses):
        w = sg.tensor(w, requires_grad=True)
        optimizer = sg.optim.Adam([w])
        for _ in range(10):
            optimizer.zero_grad()
            loss = (sg.softmax(A, 1) @ sg.tanh(x @ w)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    want, got = [[], []], [[], []]
    for w, losses in zip(start, want, strict=True):
        train(w, losses)
    workers = [threading.Thread(target=train, args=args) for args in zip(start, got, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert got == want and len(want[0]) == 10


def test_small_problems_do_not_load_numba():
    code = """
import sys
import numpy as np
from sparsegrad.backends.cpu_jit import CpuJit
from sparsegrad.backends.steps import AdagradFactors, AdamFactors, RowGradient, SgdFactors
from sparsegrad.structure.pattern import Pattern
be = CpuJit()
p = Pattern.coo(([0, 1, 0], [1, 0, 1]), (2, 2))
be.spmm(p, np.ones(3, "f4"), np.ones((2, 2), "f4"))
be.sddmm(p, np.ones((2, 2), "f4"), np.ones((2, 2), "f4"))
be.segment_softmax(np.ones(3, "f4"), np.array([0, 3]))
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_kernels_run_where_nothing_can_be_cached(tmp_path):
    code = """
import numpy as np
from numba.core import caching
def denied(self, path=None):
    raise PermissionError("read-only")
caching._CacheLocator.ensure_cache_path = denied
from sparsegrad.backends.cpu_jit import CpuJit
from sparsegrad.backends.steps import AdagradFactors, AdamFactors, RowGradient, SgdFactors
assert CpuJit(always=True).segment_sum(np.ones(3, "f4"), np.array([0, 3])) == 3
"""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    assert not list(tmp_path.iterdir())
