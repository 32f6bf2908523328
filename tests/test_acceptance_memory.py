"""Acceptance cases of memory: nothing is made dense and nothing leaks. Each named after its id."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg
from acceptance import equal, every_format, mask_of, sparse_leaf
from byhand import dense, leaf
from sparsegrad.sparse_tensor import SparseTensor


@contextmanager
def peak_below(limit: float) -> Iterator[None]:
    """New memory in the block stays below `limit` bytes."""
    gc.collect()
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak / 2**20:.1f} MiB, limit {limit / 2**20:.1f} MiB"


@contextmanager
def flat_memory(limit: int = 60_000) -> Iterator[Callable[[Callable[[], None], int], None]]:
    """`repeat(step, n)` runs a step n times; what stays after it, the collector off, is small."""

    def repeat(step: Callable[[], None], n: int) -> None:
        for _ in range(10):
            step()
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(n):
                step()
            assert gc.collect() == 0, "reference cycles"  # and Python's free lists are emptied
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
            gc.enable()
        assert grown < limit, f"{grown} bytes more after {n} steps"

    yield repeat


@every_format
def test_ac_01_one_adjacency_used_twice(fmt: str) -> None:
    A = sparse_leaf([[0, 1], [1, 0]], [2, 3], (2, 2), fmt)
    X = leaf([[1], [2]])
    Y = A @ (A @ X)
    equal(Y, [[6], [12]])
    Y.sum().backward()
    assert isinstance(A.grad, SparseTensor) and A.grad.format == fmt
    assert A.grad.pattern is A.pattern
    equal(A.grad, [[0, 9], [6, 0]])
    equal(X.grad, [[6], [6]])  # (A.T @ A.T @ 1)


@every_format
@pytest.mark.parametrize("shape", [(5, 5), (6, 4)], ids=str)
def test_ac_01_random_upstream_and_duplicates(fmt: str, shape: tuple[int, int]) -> None:
    """A.T @ (A @ X): two uses, one of them transposed; entries stored twice."""
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, n, 12) for n in shape])
    A = sparse_leaf(coords, rng.standard_normal(12), shape, fmt)
    D, X, G = dense(A), rng.standard_normal((shape[1], 3)), rng.standard_normal((shape[1], 3))
    (A.T @ (A @ sg.Tensor(X))).backward(sg.Tensor(G))
    equal(A.grad, ((D @ X) @ G.T + (D @ G) @ X.T) * mask_of(A))
    assert A.grad.is_coalesced or A.pattern.core.unique


@every_format
def test_ac_02_memory_of_both_products(fmt: str) -> None:
    """n^2 floats would be 45 GiB; what is needed is a few times the dense operands."""
    n, nnz, k = 110_000, 860_000, 200
    rng = np.random.default_rng(0)
    coords, values = rng.integers(0, n, (2, nnz)), rng.random(nnz, "f4")
    x = sg.Tensor(rng.random((n, k), "f4"), requires_grad=True)
    A = sg.coo(coords, values, (n, n)).to(fmt).detach().requires_grad_()
    A.pattern.rows(), A.T.pattern.rows()  # index work is kept with the pattern, not here
    with peak_below(4 * x.nbytes + 16 * nnz * 4):
        (A @ x).sum().backward()
    want = x.data.sum(1, dtype=np.float64)[A.col]
    np.testing.assert_allclose(A.values.grad.data, want, rtol=1e-4)
    want = np.bincount(coords[1], values.astype(np.float64), n)
    np.testing.assert_allclose(x.grad.data[:, 7], want, rtol=1e-4, atol=1e-5)
    assert A.grad.nnz <= nnz and A.grad.is_coalesced


def test_ac_02_memory_of_the_first_backward_pass() -> None:
    """With the index work that it does, too: a small multiple of the dense operand."""
    n, nnz, k = 110_000, 860_000, 200
    draw = np.random.default_rng(0)
    A = sg.coo(draw.integers(0, n, (2, nnz)), draw.random(nnz, "f4"), (n, n), requires_grad=True)
    x = sg.tensor(draw.random((n, k), "f4"), requires_grad=True)
    tracemalloc.start()
    try:
        (A @ x).sum().backward()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * x.nbytes + 20 * A.nbytes
    assert A.values.grad.shape == (nnz,)
    assert A.grad.is_coalesced and A.grad.shape == (n, n)
    e = 12345  # dA[i, j] is the sum of row j of x
    found = A.values.grad.data[e]
    np.testing.assert_allclose(found, x.data[A.col[e]].sum(), rtol=1e-5)


def test_ac_03_sampled_product_of_long_factors() -> None:
    n, k, nnz = 50_000, 8, 1000
    rng = np.random.default_rng(0)
    coords = rng.integers(0, n, (2, nnz))
    P = sg.coo(coords, None, (n, n))
    a, b, g = leaf(rng.standard_normal((n, k))), leaf(rng.standard_normal((n, k))), np.ones(nnz)
    P.pattern.rows(), P.T.pattern.rows()
    with peak_below(8 * a.nbytes), sg.densify(budget=0):
        out = sg.sddmm(a, b, P)
        out.values.sum().backward()
    np.testing.assert_allclose(
        out.values.data, (a.data[coords[0]] * b.data[coords[1]]).sum(1), rtol=1e-10, atol=1e-12
    )
    M = sp.coo_array((g, tuple(coords)), shape=(n, n)).tocsr()
    equal(a.grad, M @ b.data)
    equal(b.grad, M.T @ a.data)


def test_ac_04_constructor_of_a_huge_matrix() -> None:
    x = leaf([1.0], sg.float32)
    with peak_below(100_000), sg.densify(budget=0):
        S = sg.coo([[0], [0]], x, (100_000, 100_000))
        S.sum().backward()
    assert x.grad.tolist() == [1.0]


@pytest.mark.parametrize("n", [10**6, 10**9], ids=str)
def test_ac_04_every_way_out_of_a_huge_matrix(n: int) -> None:
    """Sizes in every sparse dimension that no array of rows, let alone cells, should follow."""
    for use in (
        lambda A: (A * A).sum(), lambda A: (A + A.T).sum(), lambda A: A.coalesce().values.sum(),
        lambda A: sg.tanh(A).sum(), lambda A: (-A * 2).T.sum(), lambda A: A.T.coalesce().sum(),
        lambda A: A[n - 1, n - 1] + A[0, 5], lambda A: sg.norm(A) ** 2, lambda A: sg.amax(A),
        lambda A: A.reshape(n // 10, n * 10).sum(), lambda A: A.prune(0.1).sum(),
        lambda A: sg.cat([A, A], 0).sum(), sg.mean, lambda A: sg.symmetrize(A).sum(),
    ):  # fmt: skip
        x = leaf([1.0, 2.0, 3.0])
        with peak_below(300_000), sg.densify(budget=0):
            A = sg.coo([[0, n - 1, n - 1], [5, n - 1, 7]], x, (n, n))
            use(A).backward()
        assert x.grad.shape == (3,)


@every_format
def test_ac_06_memory_is_flat_over_backward_passes(fmt: str) -> None:
    rng = np.random.default_rng(0)
    A = sparse_leaf(rng.integers(0, 50, (2, 400)), rng.standard_normal(400), (50, 50), fmt)
    x = sg.randn(50, 3, dtype=sg.float64)

    def product() -> None:
        A.grad = None
        (A @ x).sum().backward()

    def square() -> None:
        (A @ A).sum().backward()
        A.grad

    with flat_memory() as repeat:
        repeat(product, 400)
        repeat(square, 400)
    assert A.grad.shape == (50, 50)


@every_format
def test_ac_07_coalesce_leaks_nothing(fmt: str) -> None:
    coords = [[0, 0, 1, 1], [1, 1, 0, 2]]

    def fresh() -> None:
        S = sparse_leaf(coords, [1, 2, 3, 4], (2, 3), fmt)
        C = S.coalesce()
        assert C.requires_grad and S.requires_grad
        S.coalesce(), C.coalesce()

    S = sparse_leaf(coords, [1, 2, 3, 4], (2, 3), fmt)
    with flat_memory() as repeat:
        repeat(fresh, 400)
        repeat(lambda: S.coalesce().values.sum().backward(), 400)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for _ in range(50):
            fresh()
        assert len(gc.get_objects()) - before < 50
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_ac_08_an_embedding_is_not_made_dense_and_who_does_it_is_named() -> None:
    w = sg.zeros(1_000_000, 64, requires_grad=True)
    with peak_below(1 << 20), sg.densify(budget=0):
        sg.embedding(w, [3, 999_999, 3]).mean().backward()
    assert isinstance(w.grad, SparseTensor)
    want = {3: 2 / 192, 999_999: 1 / 192}
    for row, values in zip(*(lambda g: (g.row, g.values.data))(w.grad.coalesce()), strict=True):
        np.testing.assert_allclose(values, want[int(row)], rtol=1e-6)
    small = sg.ones(5000, 64, requires_grad=True)
    loss = sg.embedding(sg.softmax(small, 0), [1]).sum()
    with pytest.warns(sg.SparseEfficiencyWarning, match=r"softmax.*\(5000, 64\).*1280000 bytes"):
        loss.backward()
    v = sg.ones(100, 4, requires_grad=True)  # a dense gradient of the same weight is asked for
    with sg.densify(budget=0):
        (sg.embedding(v, [7, 7]).sum() + (v * v).sum()).backward()
    want = np.full((100, 4), 2.0)
    want[7] += 2
    np.testing.assert_array_equal(v.grad.data, want)


def test_ac_09_gradient_memory_is_that_of_the_rows_that_were_read() -> None:
    vocab, dim = 250_002, 768
    ids = np.arange(16) * 15_000
    w = sg.zeros(vocab, dim, requires_grad=True)
    with peak_below(40 * 16 * dim * 4), sg.densify(budget=0):
        sg.embedding(w, ids).backward(sg.Tensor(np.ones((16, dim), "f4")))
    assert w.grad.values.nbytes == 16 * dim * 4 and w.grad.row.tolist() == ids.tolist()
    np.testing.assert_array_equal(w.grad.values.data, 1)


def test_ac_10_gradient_to_values_never_multiplies_the_factors(backend: str) -> None:
    n, nnz, k = 20_000, 100_000, 16
    rng = np.random.default_rng(0)
    coords = rng.integers(0, n, (2, nnz))
    A = sg.coo(coords, rng.standard_normal(nnz), (n, n), requires_grad=True)
    x, g = rng.standard_normal((n, k)), rng.standard_normal((n, k))
    y = A @ x
    with peak_below(64 << 20):  # n * n would be 3 GiB
        y.backward(sg.Tensor(g))
    want = np.einsum("ek,ek->e", g[coords[0]], x[coords[1]])
    np.testing.assert_allclose(A.values.grad.data, want, rtol=1e-10, atol=1e-10)


def test_ac_11_no_temporary_of_entries_times_width(backend: str) -> None:
    """One gather of the rows would be 512 MiB in float32."""
    m, nnz, k = 10_000, 2_000_000, 64
    rng = np.random.default_rng(0)
    coords = rng.integers(0, m, (2, nnz), dtype=np.int32)
    P = sg.Pattern.coo(list(coords), (m, m), copy=False)
    x, y = leaf(rng.random((m, k)), sg.float32), leaf(rng.random((m, k)), sg.float32)
    P.rows(), P.T.rows()
    with peak_below(150 << 20):
        out = sg.sddmm(x, y, P)
        out.values.sum().backward()
    at = rng.integers(0, nnz, 1000)
    want = np.einsum("ek,ek->e", x.data[coords[0, at]], y.data[coords[1, at]], dtype=np.float64)
    np.testing.assert_allclose(out.values.data[at], want, rtol=1e-5)
    M = sp.coo_array((np.ones(nnz), tuple(coords)), shape=(m, m)).tocsr()
    np.testing.assert_allclose(x.grad.data, M @ y.data, rtol=1e-4)
    np.testing.assert_allclose(y.grad.data, M.T @ x.data, rtol=1e-4)
