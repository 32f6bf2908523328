"""Rows by index, sums by index and over runs: what the pure reference gives."""

import numpy as np
import pytest

from backend_cases import (
    FLOATS,
    OTHERS,
    REFERENCE,
    RUNS,
    Unchanged,
    all_dtypes,
    both_indices,
    every_backend,
    every_runs,
    fast,
    floats,
    indptr_of,
    layouts,
    same,
    whole,
)
from sparsegrad.backends.cpu_jit import CpuJit
from sparsegrad.structure.pattern import Pattern
from sparsegrad.structure.plan_reduce import Halvings


@fast
@every_runs
@both_indices
@all_dtypes
def test_segment_sum_and_max(be, runs, index, dtype):
    rng = np.random.default_rng(0)
    indptr = indptr_of(RUNS[runs], index)
    for tail in [(), (1,), (3,), (2, 4), (0,)]:
        for values in layouts(whole(rng, (int(indptr[-1]), *tail), dtype)):
            if dtype == "f2" and runs == "long":
                values = values % 2  # sums beyond 2048 are not exact
            with Unchanged(values, indptr):
                same(be.segment_sum(values, indptr), REFERENCE.segment_sum(values, indptr))
                if dtype not in ("?", "c16"):
                    same(be.segment_max(values, indptr), REFERENCE.segment_max(values, indptr))


@fast
@every_runs
@both_indices
@floats
def test_segment_amax_with_absent_zeros(be, runs, index, dtype):
    rng = np.random.default_rng(0)
    indptr = indptr_of(RUNS[runs], index)
    absent = rng.integers(0, 3, len(indptr) - 1)
    for tail in [(), (3,), (0,)]:
        for values in layouts(whole(rng, (int(indptr[-1]), *tail), dtype)):
            with Unchanged(values, indptr, absent):
                least = be.segment_amin(values, indptr, absent)
                same(least, REFERENCE.segment_amin(values, indptr, absent))
                out = be.segment_amax(values, indptr, absent)
                same(out, REFERENCE.segment_amax(values, indptr, absent))
                g = rng.normal(size=out.shape).astype(dtype)
                args = g, values, out, indptr, absent
                got, want = be.segment_amax_grad(*args), REFERENCE.segment_amax_grad(*args)
                same(got, want, exact=False)


@every_backend
def test_the_least_of_integers(be):
    """The lowest has no negative, and bools as bytes have none at all."""
    indptr, absent = np.array([0, 2, 3, 3, 4]), np.array([0, 1, 2, 0])
    for dtype, wanted in (("i4", [-(2**31), 0, 0, 7]), ("u1", [1, 0, 0, 7])):
        values = np.array([5, np.iinfo(dtype).min or 1, 3, 7], dtype)
        out = be.segment_amin(values, indptr, absent)
        assert out.dtype == dtype
        assert out.tolist() == wanted


@fast
@every_runs
@both_indices
@floats
def test_segment_prod(be, runs, index, dtype):
    rng = np.random.default_rng(0)
    indptr = indptr_of(RUNS[runs], index)
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


@fast
def test_segment_max_keeps_nan(be):
    values = np.array([1, np.nan, 2, -np.inf, np.inf, np.nan], dtype="f4")
    indptr = np.array([0, 3, 3, 4, 6], dtype="i4")
    want = np.array([np.nan, -np.inf, -np.inf, np.nan], dtype="f4")
    for v, w in ((values, want), (np.stack([values] * 2, 1), np.stack([want] * 2, 1))):
        same(be.segment_max(v, indptr), w)


@fast
@every_runs
@both_indices
@floats
def test_segment_softmax(be, runs, index, dtype):
    rng = np.random.default_rng(1)
    indptr = indptr_of(RUNS[runs], index)
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


@every_backend
@floats
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


@fast
@both_indices
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


@every_backend
@both_indices
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


@fast
@both_indices
@all_dtypes
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


@every_backend
def test_scatter_add_outside_raises(be):
    out = np.zeros((3, 2), dtype="f4")
    with pytest.raises(IndexError):
        be.scatter_add(out, np.array([0, 3]), np.ones((2, 2), dtype="f4"))


@every_backend
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
