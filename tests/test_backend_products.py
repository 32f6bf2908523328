"""Sparse products of the backends: what the pure reference gives."""

import numpy as np
import pytest

from backend_cases import (
    OTHERS,
    REFERENCE,
    Unchanged,
    both_indices,
    coordinates,
    every_pattern,
    fast,
    floats,
    layouts,
    patterns,
    same,
    whole,
    with_index,
)
from sparsegrad.backends import cpu_jit, cpu_jit_tiles
from sparsegrad.backends.cpu_jit import CpuJit
from sparsegrad.structure.pattern import Pattern

# Every kind of block in which columns are taken, for float32 and float64 (16 and 8 to a vector).
TAILS = [(0,), (1,), (3,), (5,), (16,), (23,), (64,), (77,), (2, 5), (2, 0), (0, 3)]


@fast
@every_pattern
@floats
@both_indices
def test_spmm(be, name, dtype, index):
    rng = np.random.default_rng(0)
    tails = [(3,)] if name == "long rows" else TAILS
    for pattern in patterns(name, index):
        for tail in tails:
            values = whole(rng, (pattern.nnz, *tail[:-1]), dtype)
            x = whole(rng, (pattern.shape[1], *tail), dtype)
            with Unchanged(values, x):
                same(be.spmm(pattern, values, x), REFERENCE.spmm(pattern, values, x))


@fast
@every_pattern
@floats
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


@fast
@every_pattern
@floats
@both_indices
def test_sddmm(be, name, dtype, index):
    rng = np.random.default_rng(1)
    tails = [(3,)] if name == "long rows" else TAILS
    for pattern in patterns(name, index):
        for tail in tails:
            x, y = (whole(rng, (n, *tail), dtype) for n in pattern.shape)
            with Unchanged(x, y):
                same(be.sddmm(pattern, x, y), REFERENCE.sddmm(pattern, x, y))


@fast
@pytest.mark.parametrize("dtype", OTHERS)
def test_products_of_other_dtypes(be, dtype):
    rng = np.random.default_rng(2)
    for pattern in patterns("medium"):
        x, y = (whole(rng, (n, 3), dtype) for n in pattern.shape)
        values = whole(rng, pattern.nnz, dtype)
        same(be.spmm(pattern, values, y), REFERENCE.spmm(pattern, values, y))
        same(be.sddmm(pattern, x, y), REFERENCE.sddmm(pattern, x, y))


@fast
@floats
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


@fast
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


@fast
def test_spmm_casts_values_to_x(be):
    (pattern, *_) = patterns("medium")
    rng = np.random.default_rng(5)
    for values in (whole(rng, pattern.nnz, "f8"), whole(rng, pattern.nnz, "?")):
        x = whole(rng, (pattern.shape[1], 4), "f4")
        same(be.spmm(pattern, values, x), REFERENCE.spmm(pattern, values, x))


@fast
def test_spmm_keeps_nan_and_infinity_where_they_are(be):
    pattern = Pattern.coo(([0, 0, 1, 2], [0, 1, 1, 2]), (4, 3))
    x = np.array([[np.inf, 1], [1, np.nan], [2, -np.inf]], dtype="f4")
    values = np.array([1, 2, 3, 0], dtype="f4")
    with np.errstate(invalid="ignore"):
        same(be.spmm(pattern, values, x), REFERENCE.spmm(pattern, values, x))


@floats
@both_indices
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


@floats
@both_indices
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
