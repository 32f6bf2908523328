"""Kernels on 16-bit floats: every word, sums against float64, no float32 copy of an array."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad.backends.cpu_jit import CpuJit
from sparsegrad.backends.cpu_jit_narrow import CpuJitNarrow

BE = CpuJitNarrow(always=True)
DTYPES = [np.dtype(np.float16), sg.bfloat16]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def close(found: np.ndarray, exact: np.ndarray, size: np.ndarray | float, dtype: np.dtype) -> None:
    """Rounded once: half a unit in the last place, and what float32 sums of `size` may lose."""
    assert found.dtype == dtype and found.shape == exact.shape
    half = 2.0**-11 if dtype == np.float16 else 2.0**-8
    error = np.abs(found.astype(np.float64) - exact)
    assert (error <= half * np.abs(exact) + 3e-5 * size + 1e-7).all()


def matrix(rng: np.random.Generator, m: int, n: int, nnz: int, long: int) -> sg.SparseTensor:
    row, col = rng.integers(0, m, nnz), rng.integers(0, n, nnz)
    row[:long] = m // 2  # so long that it is cut into chunks
    return sg.coo([row, col], rng.standard_normal(nnz), (m, n))


@every_dtype
@pytest.mark.parametrize("format", ["coo", "csr", "csc"])
@pytest.mark.parametrize("heads", [(), (3,)])
@pytest.mark.parametrize("k", [1, 3, 4, 8, 15, 16, 31, 64, 100])
def test_products(dtype: Any, format: str, heads: tuple[int, ...], k: int) -> None:
    rng = np.random.default_rng(k)
    for m, n, nnz, long in ((40, 30, 200, 0), (60, 20, 20_000, 15_000), (3, 50, 2, 0)):
        pattern = matrix(rng, m, n, nnz, long).to(format).pattern
        values = rng.standard_normal((nnz, *heads)).astype(dtype)
        x = rng.standard_normal((n, *heads, k)).astype(dtype)
        y = rng.standard_normal((m, *heads, k)).astype(dtype)
        row, col = pattern.row, pattern.col
        for v in (values, np.broadcast_to(np.ones((), dtype), values.shape)):
            terms = v.astype(np.float64)[..., None] * x.astype(np.float64)[col]
            exact, size = np.zeros((m, *heads, k)), np.zeros((m, *heads, k))
            np.add.at(exact, row, terms)
            np.add.at(size, row, np.abs(terms))
            close(BE.spmm(pattern, v, x), exact, size, dtype)
        terms = y.astype(np.float64)[row] * x.astype(np.float64)[col]
        close(BE.sddmm(pattern, y, x), terms.sum(-1), np.abs(terms).sum(-1), dtype)


@every_dtype
@pytest.mark.parametrize("format", ["coo", "csr", "csc"])
@pytest.mark.parametrize("heads", [(), (3,)])
def test_extremes(dtype: Any, format: str, heads: tuple[int, ...]) -> None:
    """Products of two such floats are exact in float32, so ties are those of float64."""
    rng = np.random.default_rng(0)
    for m, n, nnz, long in ((40, 30, 200, 0), (60, 20, 9000, 5000)):
        pattern = matrix(rng, m, n, nnz, long).to(format).pattern
        values = rng.integers(-3, 4, (nnz, *heads)).astype(dtype)
        x = rng.standard_normal((n, *heads, 7)).astype(dtype)
        wide = values.astype(np.float64), x.astype(np.float64)
        for least in (False, True):
            found, entry = BE.spmm_extreme(pattern, values, x, least)
            exact, where = CpuJit(always=True).spmm_extreme(pattern, *wide, least)
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, exact.astype(dtype))
            np.testing.assert_array_equal(entry, where)


@every_dtype
@pytest.mark.parametrize("tail", [(), (1,), (5,), (40,), (2, 3)])
def test_segments(dtype: Any, tail: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    counts = [0, 3, 1, 0, 9000, 17, 2, 0]
    indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    nnz = int(indptr[-1])
    values, g = (rng.standard_normal((nnz, *tail)).astype(dtype) for _ in range(2))
    wide, reference = values.astype(np.float64), CpuJit(always=True)
    runs = [wide[a:b] for a, b in pairwise(indptr)]
    sums = np.array([r.sum(0) for r in runs])
    sizes = np.array([np.abs(r).sum(0) for r in runs])
    close(BE.segment_sum(values, indptr), sums, sizes, dtype)
    most = np.array([r.max(0) if len(r) else np.full(tail, -np.inf) for r in runs])
    np.testing.assert_array_equal(BE.segment_max(values, indptr), most.astype(dtype))
    out = BE.segment_softmax(values, indptr)
    close(out, reference.segment_softmax(wide, indptr), 1.0, dtype)
    out_, g_ = out.astype(np.float64), g.astype(np.float64)
    exact = reference.segment_softmax_grad(g_, out_, indptr)
    close(BE.segment_softmax_grad(g, out, indptr), exact, out_, dtype)
    for ids in (rng.integers(0, 50, nnz), np.full(nnz, 7)):
        start = rng.standard_normal((50, *tail)).astype(dtype)
        exact, size = start.astype(np.float64), np.abs(start.astype(np.float64))
        np.add.at(exact, ids, wide)
        np.add.at(size, ids, np.abs(wide))
        BE.scatter_add(start, ids, values)
        close(start, exact, size, dtype)


@every_dtype
def test_every_word_is_read_and_written(dtype: Any) -> None:
    """Subnormal numbers, infinities and NaN too; products with 1 round nothing."""
    words = np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(-1, 16)
    pattern = sg.sparse_eye(len(words), format="csr").pattern
    found = BE.spmm(pattern, np.ones(len(words), dtype), words)
    nan = np.isnan(words.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    np.testing.assert_array_equal(found[~nan], words[~nan])


@every_dtype
def test_results_are_rounded_to_nearest_and_even(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 1 << 16, 40_000, np.uint16).view(dtype) for _ in range(2))
    ids = np.arange(a.size)
    pattern = sg.coo([ids, ids], np.ones(a.size), (a.size, a.size)).pattern
    with np.errstate(all="ignore"):
        expected = (a.astype(np.float32) * b.astype(np.float32)).astype(dtype)
    found = BE.sddmm(pattern, a[:, None], b[:, None])
    nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    np.testing.assert_array_equal(found[~nan], expected[~nan])


@every_dtype
def test_no_array_is_copied_to_float32(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    n, k = 4000, 64
    A = matrix(rng, n, n, 20_000, 0).to("csr")
    pattern, values = A.pattern, A.values.data.astype(dtype)
    x = rng.standard_normal((n, k)).astype(dtype)
    indptr, ids = pattern.rows()[0], rng.integers(0, n, 20_000).astype(np.int32)
    rows = rng.standard_normal((20_000, k)).astype(dtype)
    for call, result in (
        (lambda: BE.spmm(pattern, values, x), x.nbytes),
        (lambda: BE.sddmm(pattern, x, x), values.nbytes),
        (lambda: BE.spmm_extreme(pattern, values, x, False)[0], 5 * x.nbytes),  # and 64-bit places
        (lambda: BE.segment_sum(rows, indptr), x.nbytes),
        (lambda: BE.segment_max(rows, indptr), x.nbytes),
        (lambda: BE.segment_softmax(rows, indptr), rows.nbytes),
        (lambda: BE.segment_softmax_grad(rows, rows, indptr), rows.nbytes),
        (lambda: BE.scatter_add(x, ids, rows), 0),
    ):
        call()  # plans and machine code
        tracemalloc.start()
        call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < result + 400_000  # sorting ids, chunks; float32 copies would be megabytes


@every_dtype
@pytest.mark.parametrize("n", [0, 1, 7, 100_003])
def test_conversions_are_those_of_numpy(dtype: Any, n: int) -> None:
    rng = np.random.default_rng(n)
    x = np.concatenate(
        (rng.integers(0, 1 << 32, n, np.uint32).view(np.float32), np.array([65519, 65520], "f"))
    )
    with np.errstate(all="ignore"):
        expected = x.astype(dtype)
    narrow = BE.convert(x, dtype)
    wide = BE.convert(narrow, np.dtype(np.float32))
    assert narrow.dtype == dtype and wide.dtype == np.float32
    np.testing.assert_array_equal(wide, expected.astype(np.float32))  # nan where nan is
    np.testing.assert_array_equal(BE.convert(narrow[::2], np.dtype(np.float32)), wide[::2])
    assert BE.convert(x, x.dtype) is x
    assert BE.convert(narrow.reshape(-1, 1), np.dtype(np.float64)).dtype == np.float64
