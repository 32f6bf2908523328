"""Acceptance cases of the sparse core and of coalesce, each named after its id.

Each is a failure that users met in another engine. The expected numbers are the published ones, or
dense algebra in NumPy and SciPy.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg
from op_db import FORMATS, OP_DB, Draw, Sparse
from sparsegrad.backends import base
from sparsegrad.backends.cpu_jit_launch import get_num_threads, set_num_threads
from sparsegrad.sparse_tensor import SparseTensor

every_format = pytest.mark.parametrize("fmt", FORMATS)


def leaf(data: Any, dtype: Any = sg.float64) -> sg.Tensor:
    return sg.tensor(np.asarray(data), dtype=dtype, requires_grad=True)


def sparse_leaf(coords: Any, values: Any, shape: Any, fmt: str = "coo", dtype: Any = None) -> Any:
    """A leaf in `fmt` with the same entries."""
    values = np.asarray(values, np.float64) if dtype is None else np.asarray(values, dtype)
    A = sg.coo(coords, values, shape).to(fmt)
    return A.with_values(sg.Tensor(A.values.data.copy(), requires_grad=True))


def dense(x: Any) -> np.ndarray:
    return (x.to_dense() if isinstance(x, SparseTensor) else x).detach().numpy()


def mask_of(A: Any) -> np.ndarray:
    out = np.zeros(A.pattern.shape, bool)
    out[tuple(A.pattern.coords)] = True
    return out


def equal(found: Any, expected: Any, tol: float = 1e-12) -> None:
    np.testing.assert_allclose(dense(found), expected, rtol=tol, atol=tol)


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


# ---- 4.1 nothing is made dense -----------------------------------------------------------------
@every_format
def test_ac_01_one_adjacency_used_twice(fmt: str) -> None:
    A = sparse_leaf([[0, 1], [1, 0]], [2, 3], (2, 2), fmt)
    X = leaf([[1], [2]])
    Y = A @ (A @ X)
    equal(Y, [[6], [12]])
    Y.sum().backward()
    assert isinstance(A.grad, SparseTensor) and A.grad.format == fmt
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


# ---- 4.2 missing or broken backward ------------------------------------------------------------
@every_format
def test_ac_13_reference_numbers(fmt: str, backend: str) -> None:
    A = sparse_leaf([[0, 0, 1], [0, 2, 1]], [1, 2, 3], (2, 3), fmt)
    B = leaf([[0, 1], [2, 0], [0, 0]])
    Y = A @ B
    equal(Y, [[0, 1], [6, 0]])
    Y.sum().backward()
    assert A.grad.nnz == 3  # the gradient of (0, 2)... and of (0, 0) which is 1, and an explicit 0
    assert sorted(zip(A.grad.row.tolist(), A.grad.col.tolist(), A.grad.values.tolist())) == [
        (0, 0, 1.0), (0, 2, 0.0), (1, 1, 2.0),
    ]  # fmt: skip
    equal(B.grad, [[1, 1], [3, 3], [2, 2]])


@pytest.mark.parametrize("make", [sg.csr, sg.csc], ids=["csr", "csc"])
def test_ac_14_gradients_through_constructors_and_values(make: Any) -> None:
    def sums(a: Any) -> Any:
        return make([0, 2, 2, 3], [0, 1, 2], a, (3, 3)).sum()

    a = leaf([1.0, 2.0, 3.0])
    sums(a).backward()
    equal(a.grad, [1, 1, 1])
    assert sg.gradcheck(sums, a)
    assert sg.gradcheck(lambda a: make([0, 2, 2, 3], [0, 1, 2], a * a, (3, 3)).values, a)
    assert sg.gradgradcheck(lambda a: make([0, 2, 2, 3], [0, 1, 2], a * a, (3, 3)) @ np.eye(3), a)
    for out in FORMATS:
        b = leaf([1.0, 2.0, 3.0])
        (make([0, 2, 2, 3], [0, 1, 2], b, (3, 3)).to(out).to_dense() * np.eye(3)).sum().backward()
        equal(b.grad, [1, 0, 1])  # (0, 1) or (1, 0) lies off the diagonal


def test_ac_15_indices_never_require_a_gradient() -> None:
    x = leaf([[0.0, 2.0], [3.0, 0.0]])
    for fmt in FORMATS:
        A = x.to_sparse(fmt)
        assert A.requires_grad
        arrays = [A.indices, A.row, A.col] + ([A.indptr] if fmt != "coo" else [])
        for array in arrays:
            assert isinstance(array, np.ndarray) and array.dtype.kind == "i"
            assert not hasattr(array, "requires_grad")
        with pytest.raises(sg.DtypeError, match="only floating-point tensors have gradients"):
            sg.tensor(A.row, requires_grad=True)


def double_backward(fmt: str, duplicates: bool) -> None:
    """L = sum((dMSE/dW - t)^2): closed form with c = 2 / size, R = X W - Y."""
    rng = np.random.default_rng(0)
    m, n, k, nnz = 10, 1000, 40, 60
    cells = rng.permutation(m * n)[:nnz]
    if duplicates:
        cells[nnz // 2 :] = cells[: nnz // 2]
    X = sparse_leaf(np.unravel_index(cells, (m, n)), rng.standard_normal(nnz), (m, n), fmt)
    W, Y = leaf(rng.standard_normal((n, k))), leaf(rng.standard_normal((m, k)))
    t = rng.standard_normal((n, k))
    r = X @ W - Y
    (g,) = sg.grad((r * r).mean(), W, create_graph=True)
    e = g - t
    (e * e).sum().backward()
    D, w = dense(X), W.data
    c = 2 / (m * k)
    R = D @ w - Y.data
    G = c * D.T @ R
    H = 2 * (G - t)
    equal(g, G, 1e-10)
    equal(X.grad, (c * R @ H.T + c * (D @ H) @ w.T) * mask_of(X), 1e-10)
    equal(W.grad, c * D.T @ (D @ H), 1e-10)
    equal(Y.grad, -c * D @ H, 1e-10)


@every_format
@pytest.mark.parametrize("duplicates", [False, True])
def test_ac_18_gradient_of_a_gradient(fmt: str, duplicates: bool) -> None:
    double_backward(fmt, duplicates)


@every_format
def test_ac_19_second_derivatives(fmt: str, backend: str) -> None:
    rng = np.random.default_rng(0)
    A = sparse_leaf(np.unravel_index(rng.permutation(20)[:7], (4, 5)), rng.standard_normal(7),
                    (4, 5), fmt)  # fmt: skip
    x, y, b = (leaf(rng.standard_normal((n, 3))) for n in (5, 4, 5))
    assert sg.gradgradcheck(sg.spmm, (A, x))
    assert sg.gradgradcheck(lambda A, y: A.T @ y, (A, y))
    assert sg.gradgradcheck(lambda y, x: sg.sddmm(y, x, A), (y, x))
    assert sg.gradgradcheck(lambda A, y, x: A * sg.sddmm(y, x, A), (A, y, x))
    square = sparse_leaf(
        np.unravel_index([0, 6, 12, 18, 24, 1, 9, 20], (5, 5)),
        [5, 6, 7, 8, 9, 1, 1, 1], (5, 5), fmt,
    )  # fmt: skip
    assert sg.gradgradcheck(sg.spsolve, (square, b))


@every_format
def test_ac_20_dense_plus_sparse(fmt: str, backend: str) -> None:
    for order in (1, -1):
        t = sparse_leaf([[0], [0]], [1.0], (2, 3), fmt)
        d = leaf(np.ones((2, 3)))
        out = d + t if order == 1 else t + d
        equal(out, [[2, 1, 1], [1, 1, 1]])
        out.sum().backward()
        equal(d.grad, np.ones((2, 3)))
        assert t.grad.nnz == 1 and t.grad.values.tolist() == [1.0]
        t = sparse_leaf([[0, 1, 0], [2, 0, 2]], [1.0, 2.0, 5.0], (2, 3), fmt)  # an entry twice
        d, g = leaf(np.ones((2, 3))), np.arange(6.0).reshape(2, 3)
        out = d - t if order == 1 else t - d
        equal(out, order * (np.ones((2, 3)) - dense(t)))
        out.backward(sg.Tensor(g))
        equal(d.grad, order * g)
        equal(t.grad, -order * g * mask_of(t))


@every_format
def test_ac_23_sparse_result_of_a_product(fmt: str) -> None:
    rng = np.random.default_rng(0)
    m = sp.random_array((16, 64), density=0.1, rng=rng)
    A = sparse_leaf(m.coords, m.data, (16, 64), fmt)
    x = leaf(rng.standard_normal((64, 1)))
    (A @ x.to_sparse(fmt)).sum().backward()
    D = dense(A)
    equal(A.grad, np.tile(x.data.T, (16, 1)) * mask_of(A))
    equal(x.grad, D.sum(0)[:, None])
    B, z = A.detach().requires_grad_(), leaf(x.data)
    B.grad = None
    (B @ z).to_sparse(fmt).sum().backward()
    equal(B.grad, np.tile(x.data.T, (16, 1)) * mask_of(A))
    equal(z.grad, D.sum(0)[:, None])


def test_ac_24_a_sparse_upstream_gradient_into_a_dense_op() -> None:
    rng = np.random.default_rng(0)
    data, ids, g = rng.standard_normal((4, 4)), [2, 2, 0], rng.standard_normal((3, 4))
    x = leaf(data)
    sg.take(x @ x, ids).backward(sg.Tensor(g))
    G = np.zeros((4, 4))
    np.add.at(G, ids, g)
    equal(x.grad, G @ data.T + data.T @ G)
    x = leaf(data)
    A = (x @ x).to_sparse("csr")
    A.backward(sg.coo([[1, 3], [2, 0]], np.array([5.0, 7.0]), (4, 4)))
    G = np.zeros((4, 4))
    G[1, 2], G[3, 0] = 5, 7
    equal(x.grad, G @ data.T + data.T @ G)


def test_ac_26_gradients_of_duplicates() -> None:
    S = sg.coo([[0, 0]], [0.3, 0.7], (2,), requires_grad=True)
    S.sum().backward()
    assert S.values.grad.tolist() == [1.0, 1.0]  # per stored value
    assert S.grad.indices.tolist() == [[0]] and S.grad.values.tolist() == [1.0]  # of the matrix
    (S.coalesce().values * 5).sum().backward()
    assert S.values.grad.tolist() == [6.0, 6.0] and S.grad.values.tolist() == [6.0]


def test_ac_28_edge_weights_are_learnable() -> None:
    """Messages along weighted edges, against gather, multiply and scatter."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 6, (2, 14))
    w0, x0, g = rng.standard_normal(14), rng.standard_normal((6, 3)), rng.standard_normal((6, 3))
    w, x = leaf(w0), leaf(x0)
    y = sg.coo([dst, src], w, (6, 6)) @ x
    want = np.zeros((6, 3))
    np.add.at(want, dst, w0[:, None] * x0[src])
    equal(y, want)
    y.backward(sg.Tensor(g))
    equal(w.grad, (g[dst] * x0[src]).sum(1))
    want = np.zeros((6, 3))
    np.add.at(want, src, w0[:, None] * g[dst])
    equal(x.grad, want)


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "strided": lambda a: np.repeat(np.repeat(a, 2, 0), 3, 1)[::2, ::3],
    "reversed": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
}


@every_format
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 2, 2), (3, 3, 3), (2, 3, 4)], ids=str)
def test_ac_30_square_products_of_every_layout(
    fmt: str, layout: str, shape: tuple[int, int, int], backend: str
) -> None:
    m, n, k = shape
    rng = np.random.default_rng(m)
    lay = LAYOUTS[layout]
    for transposed in (False, True):
        D = rng.standard_normal((m, n))
        D[0, 1] = 0
        A = sparse_leaf(np.nonzero(D), D[np.nonzero(D)], (m, n), fmt)
        op, M = (A.T, D.T) if transposed else (A, D)
        rows, cols = M.shape
        x0, c0, g = (rng.standard_normal(s) for s in ((cols, k), (rows, k), (rows, k)))
        x, c = sg.Tensor(lay(x0), requires_grad=True), sg.Tensor(lay(c0), requires_grad=True)
        out = sg.addmm(c, op, x, beta=3, alpha=2)
        equal(out, 3 * c0 + 2 * M @ x0)
        out.backward(sg.Tensor(lay(g)))
        equal(x.grad, 2 * M.T @ g)
        equal(c.grad, 3 * g)
        dA = 2 * g @ x0.T
        equal(A.grad, (dA.T if transposed else dA) * (D != 0))
        left = sg.Tensor(lay(rng.standard_normal((k, rows))))
        equal(left @ op, left.data @ M)


def test_ac_32_indices_are_not_differentiable_and_that_is_said() -> None:
    for ids in (leaf([0.0, 1.0]), [0.0, 1.0], np.array([0.5, 1.0])):
        with pytest.raises(sg.PatternError, match=r"indices\[0\]: indices must be integers, got f"):
            sg.coo([ids, ids], [1.0, 2.0], (2, 2))
    with pytest.raises(IndexError, match="take: index: expected integers or a bool mask, got f"):
        sg.take(sg.ones(3, 2), np.array([0.5]))
    with pytest.raises(IndexError, match="index: expected integers or a bool mask, got float64"):
        sg.ones(3, 2)[leaf([0.0])]


# ---- 4.3 wrong values --------------------------------------------------------------------------
@every_format
def test_ac_33_products_of_duplicates(fmt: str, backend: str) -> None:
    m = sparse_leaf([[0, 1, 0, 0, 1, 1], [1, 0, 1, 2, 0, 2]], range(1, 7), (3, 3), fmt)
    out = m * m
    equal(out, [[0, 16, 16], [49, 0, 36], [0, 0, 0]])
    out.sum().backward()
    per_value = {(0, 1): 8, (1, 0): 14, (0, 2): 8, (1, 2): 12}
    want = [per_value[c] for c in zip(m.row.tolist(), m.col.tolist(), strict=True)]
    assert m.values.grad.tolist() == want
    equal(m.grad, [[0, 8, 8], [14, 0, 12], [0, 0, 0]])


NONLINEAR: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], Any]]] = {
    "tanh": (sg.tanh, np.tanh),
    "abs": (sg.abs, np.abs),
    "relu": (sg.relu, lambda d: np.maximum(d, 0)),
    "sqrt of square": (lambda a: sg.sqrt(a * a), np.abs),
    "cube": (lambda a: a**3, lambda d: d**3),
    "sign": (lambda a: sg.ops.elementwise.sign_p(a), np.sign),
    "self product": (lambda a: a * a, lambda d: d * d),
    "product with another": (lambda a: a * (a * 2.0), lambda d: 2 * d * d),
    "as int": (lambda a: a.to("int64"), lambda d: d.astype(np.int64)),
    "as bool": (lambda a: a.to("bool"), lambda d: d.astype(bool)),
    "norm": (sg.norm, np.linalg.norm),
    "1-norm": (lambda a: sg.norm(a, 1), lambda d: np.abs(d).sum()),
    "max": (lambda a: sg.amax(a, 1), lambda d: d.max(1)),
    "min": (lambda a: sg.amin(a, 0), lambda d: d.min(0)),
    "prod": (lambda a: sg.prod(a, 1), lambda d: d.prod(1)),
    "prune": (lambda a: sg.prune(a, 1.5), lambda d: d * (np.abs(d) > 1.5)),
    "top_k": (lambda a: sg.top_k(a, 1), lambda d: d * (np.abs(d) == np.abs(d).max())),
    "spgemm": (lambda a: a @ a.T, lambda d: d @ d.T),
    "spmm max": (lambda a: sg.spmm(a, np.ones((3, 1)), "max"),
                 lambda d: np.where(d != 0, d, -np.inf).max(1, initial=-np.inf)[:, None]),
}  # fmt: skip


@every_format
@pytest.mark.parametrize("name", NONLINEAR)
def test_ac_33_ac_45_nonlinear_ops_see_the_sum_of_duplicates(
    fmt: str, name: str, backend: str
) -> None:
    """0.6 + 0.6 + 0.5 and 0.75 - 3: what a function does to the parts is not what it does to
    the matrix."""
    op, ref = NONLINEAR[name]
    coords = [[0, 1, 0, 0, 1, 1, 2], [1, 0, 1, 1, 0, 2, 0]]
    values = [0.6, 0.75, 0.6, 0.5, -3.0, -1.25, 4.0]
    A = sg.coo(coords, np.array(values), (3, 3)).to(fmt)
    D = np.zeros((3, 3))
    np.add.at(D, tuple(coords), values)
    np.testing.assert_allclose(dense(op(A)), ref(D), rtol=1e-12, atol=1e-12)


def test_ac_45_when_duplicates_collapse() -> None:
    A = sg.coo([[0, 1, 1], [1, 0, 0]], np.ones(3), (2, 2))
    assert A.nnz == 3 and A.to("csr").nnz == 3 and (A * 2.0).nnz == 3  # not at construction
    assert A.coalesce().nnz == 2
    equal(A, [[0, 1], [2, 0]])
    # A dtype given at construction casts each value; a cast afterwards casts the matrix.
    early = sg.coo([[0, 0, 1], [0, 0, 1]], [0.6, 0.6, 1.2], (2, 2), dtype=sg.int64)
    late = sg.coo([[0, 0, 1], [0, 0, 1]], [0.6, 0.6, 1.2], (2, 2)).to(sg.int64)
    np.testing.assert_array_equal(dense(early), [[0, 0], [0, 1]])
    np.testing.assert_array_equal(dense(late), [[1, 0], [0, 1]])
    both = sg.coo([[0, 0], [0, 0]], [True, True], (1, 1))  # bool "or", and then a number
    np.testing.assert_array_equal(dense(both.to(sg.int64)), [[1]])


@every_format
@pytest.mark.parametrize("op", ["mul", "div", "add", "sub"])
def test_ac_36_broadcasting_of_size_one_dimensions(fmt: str, op: str, backend: str) -> None:
    fn, ref = getattr(sg, op), {"mul": np.multiply, "div": np.divide, "add": np.add,
                                "sub": np.subtract}[op]  # fmt: skip
    rng = np.random.default_rng(0)
    for shape, other in [((2, 1), (1, 2)), ((1, 3), (4, 1)), ((1, 1), (3, 2)), ((3, 1), (2,)),
                         ((4, 3), (3,)), ((1, 3), (2, 3)), ((2, 1), (2, 1))]:  # fmt: skip
        D = rng.uniform(1, 2, shape)
        A = sparse_leaf(np.indices(shape).reshape(2, -1), D.reshape(-1), shape, fmt)
        x = leaf(rng.uniform(1, 2, other))
        out = fn(A, x)
        want = ref(D, x.data)
        equal(out, want)
        g = rng.standard_normal(want.shape)
        out.backward(sg.Tensor(g))
        dA = {"mul": g * x.data, "div": g / x.data, "add": g, "sub": g}[op]
        dx = {"mul": g * D, "div": -g * D / x.data**2, "add": g, "sub": -g}[op]
        equal(A.grad, summed(dA, shape))
        equal(x.grad, summed(dx, other))


def summed(g: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    g = g.sum(tuple(range(g.ndim - len(shape))))
    return g.sum(tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)


def test_ac_36_the_published_numbers() -> None:
    A = sg.coo([[0, 1], [0, 0]], [1.0, 2.0], (2, 1))
    np.testing.assert_array_equal(dense(A * sg.tensor([[3.0, 4.0]])), [[3, 4], [6, 8]])
    a, x = np.arange(1.0, 5).reshape(2, 2, 1), np.arange(1.0, 4).reshape(1, 1, 3)
    B = sparse_leaf(np.indices((2, 2, 1)).reshape(3, -1), a.reshape(-1), (2, 2, 1))
    y = leaf(x)
    g = np.arange(12.0).reshape(2, 2, 3)
    out = B * y
    equal(out, a * x)
    out.backward(sg.Tensor(g))
    equal(B.grad, (g * x).sum(2, keepdims=True))
    equal(y.grad, (g * a).sum((0, 1), keepdims=True))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shift", [-1e7, 1e7, 3e38, 0])
def test_ac_38_log_softmax_of_large_numbers(dim: int, shift: float, backend: str) -> None:
    x = (np.random.default_rng(0).random((4, 3)) + shift).astype(np.float32)
    A = sg.coo(np.indices((4, 3)).reshape(2, -1), x.reshape(-1), (4, 3))
    wide = x.astype(np.float64)
    wide -= wide.max(dim, keepdims=True)
    want = wide - np.log(np.exp(wide).sum(dim, keepdims=True))
    for found in (sg.log_softmax(A, dim), sg.log_softmax(sg.Tensor(x), dim)):
        np.testing.assert_allclose(dense(found), want, rtol=1e-6, atol=1e-6)
    for found in (sg.softmax(A, dim), sg.softmax(sg.Tensor(x), dim)):
        np.testing.assert_allclose(dense(found), np.exp(want), rtol=2e-6)
    total = sg.logsumexp(A, dim).data.astype(np.float64)
    np.testing.assert_allclose(total, x.astype(np.float64).max(dim) - want.max(dim), rtol=1e-6)


@every_format
def test_ac_40_softmax_backward(fmt: str, backend: str) -> None:
    A = sparse_leaf([[0, 0], [0, 2]], [1, 2], (2, 3), fmt)
    y = sg.softmax(A, 1)
    np.testing.assert_allclose(y.values.data, [0.2689, 0.7311], atol=5e-5)
    y.backward(sg.Tensor(np.array([[1.0, 9.0, 0.0], [9.0, 9.0, 9.0]])))  # off the pattern: ignored
    np.testing.assert_allclose(A.grad.to("csr").values.data, [0.1966, -0.1966], atol=5e-5)


def test_ac_47_second_pass_onto_a_sparse_gradient() -> None:
    w = leaf(np.zeros((10, 3)))
    ids = [7, 1, 3]
    for _ in range(2):
        sg.embedding(w, ids).sum().backward()
    want = np.zeros((10, 3))
    want[ids] = 2
    equal(w.grad, want)
    w.grad = None
    for batch in ([7, 1, 3], [8, 1, 3]):
        sg.embedding(w, batch).sum().backward()
    want = np.zeros((10, 3))
    want[[7, 8]], want[[1, 3]] = 1, 2
    equal(w.grad, want)


def test_ac_49_two_queries_that_select_one_key() -> None:
    """Masked attention: the gradient of key 0 and value 0 is the sum over both queries."""
    rng = np.random.default_rng(0)
    q0, k0, v0, g = (rng.standard_normal((n, 4)) for n in (2, 3, 3, 2))
    P = sg.csr([0, 2, 3], [0, 1, 0], None, (2, 3))
    q, k, v = leaf(q0), leaf(k0), leaf(v0)
    (sg.softmax(sg.sddmm(q, k, P), 1) @ v).backward(sg.Tensor(g))
    mask = mask_of(P)
    s = np.where(mask, q0 @ k0.T, -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    dp = g @ v0.T
    ds = p * (dp - (p * dp).sum(1, keepdims=True))
    equal(v.grad, p.T @ g)
    equal(k.grad, ds.T @ q0)
    equal(q.grad, ds @ k0)


def test_ac_51_only_padding() -> None:
    w = leaf(np.ones((5, 1)))
    sg.embedding(w, [[0, 0]], padding_idx=0).sum().backward()
    assert w.grad.nnz == 0 and w.grad.shape == (5, 1)
    np.testing.assert_array_equal(dense(w.grad), np.zeros((5, 1)))


@every_format
def test_ac_54_flags_are_truthful(fmt: str, backend: str) -> None:
    def check(A: Any) -> None:
        flat = (A.row, A.col) if fmt != "csc" else (A.col, A.row)
        order = list(zip(*(f.tolist() for f in flat), strict=True))
        assert A.is_coalesced == (order == sorted(set(order)))

    a = sg.coo([[0, 1, 2], [0, 1, 2]], [2.0, 3.0, 4.0], (3, 3)).to(fmt)
    total = (a + a).coalesce()
    assert total.values.tolist() == [4, 6, 8] and total.is_coalesced
    b = sg.coo([[2, 1, 0], [0, 1, 2]], [1.0, 1.0, 1.0], (3, 3)).to(fmt)
    for A in (
        a, b, a + b, a * b, a - a, a.T, b.T, sg.cat([a, a], 0), sg.cat([b, a], 1), a[[2, 0, 0]],
        a[::-1], b[:, ::-1], a @ b, a.reshape(9, 1), b.with_values(b.values * 2), sg.tanh(b),
        sg.coo([[2, 2, 0], [0, 0, 1]], [1.0, 1.0, 1.0], (3, 3), check=False).to(fmt),
        sg.block_diag(b, a), a.prune(2.5), sg.top_k(b, 2), sg.symmetrize(b), a + a.T + b,
    ):  # fmt: skip
        if A.format == fmt:
            check(A)
        C = A.coalesce()
        assert C.is_coalesced
        np.testing.assert_array_equal(dense(C), dense(A))
    vector = sg.coo([[0, 1, 2]], [2.0, 3.0, 4.0], (3,))
    assert (vector + vector).values.tolist() == [4, 6, 8]


# ---- 4.4 coalesce ------------------------------------------------------------------------------
def test_ac_58_what_is_coalesced_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    for name in ("sort_coo", "group", "order_facts", "check_indices"):
        original = getattr(base.Backend, name)
        monkeypatch.setattr(
            base.Backend,
            name,
            lambda *a, _n=name, _f=original: seen.append(_n) or _f(*a),
        )
    with sg.config(backend="reference"):
        rng = np.random.default_rng(0)
        A = sg.coo(rng.integers(0, 9, (3, 100)), rng.standard_normal(100), (9, 9, 9))
        assert seen == ["check_indices"] * 3  # the user's indices: once for each dimension
        C = A.coalesce()
        assert seen.count("sort_coo") == 1
        seen.clear()
        assert C.coalesce() is C
        A.coalesce(), (C * 2.0).coalesce(), (C + C).coalesce(), (A * 3.0).coalesce()
    assert "sort_coo" not in seen and "check_indices" not in seen


def test_ac_59_entries_sorted_by_another_dimension() -> None:
    rng = np.random.default_rng(0)
    A = sg.coo(rng.integers(0, 5, (2, 12)), rng.standard_normal(12), (5, 5))
    by_column = A.to("csc")
    assert (np.diff(by_column.col) >= 0).all()
    assert by_column.to("coo").nnz == 12
    assert A.to("csc").pattern.col is by_column.pattern.col  # kept
    cube = sg.coo(rng.integers(0, 3, (3, 20)), rng.standard_normal(20), (3, 3, 3))
    for dims in ((1, 0, 2), (2, 1, 0), (2, 0, 1)):
        C = cube.permute(*dims).coalesce()
        order = list(map(tuple, C.indices.T.tolist()))
        assert order == sorted(order)
        np.testing.assert_allclose(dense(C), dense(cube).transpose(dims))


def test_ac_61_ten_runs_are_bitwise_equal(backend: str) -> None:
    """And with any number of threads."""
    rng = np.random.default_rng(0)
    n, nnz = 500, 60_000
    coords = rng.integers(0, n, (2, nnz))
    coords[0, :20_000] = 7  # one long row
    values, x0 = rng.standard_normal(nnz).astype("f4"), rng.standard_normal((n, 5)).astype("f4")
    ids = rng.integers(0, n, 5000)

    def run() -> list[np.ndarray]:
        A = sg.coo(coords, values, (n, n), requires_grad=True)
        x = sg.tensor(x0, requires_grad=True)
        y = A @ x
        y.backward(sg.Tensor(x0))
        w = sg.tensor(x0, requires_grad=True)
        sg.embedding(w, ids).backward(sg.Tensor(x0[ids]))
        z = sg.tensor(x0, requires_grad=True)
        z[ids].backward(sg.Tensor(x0[ids]))
        C = A.detach().coalesce()
        return [
            y.data, A.values.grad.data, x.grad.data, A.sum(0).data, A.sum(1).data, A.sum().data,
            C.values.data, C.indices, sg.softmax(C, 1).values.data, sg.softmax(C, 0).values.data,
            w.grad.coalesce().values.data, z.grad.data, dense(A), (A.detach() + C).values.data,
            A.grad.values.data, sg.norm(C).data,
        ]  # fmt: skip

    threads, first = get_num_threads(), run()
    try:
        for i in range(10):
            set_num_threads(1 + i % 4)
            for a, b in zip(first, run(), strict=True):
                assert a.dtype == b.dtype and a.shape == b.shape
                assert a.tobytes() == b.tobytes()
    finally:
        set_num_threads(threads)


def test_ac_63_one_canonical_order(backend: str) -> None:
    """Row-major, whatever order SciPy's sum_duplicates has."""
    row, col = [2, 1, 2, 0, 2, 1, 2], [0, 0, 1, 0, 2, 1, 0]
    A = sg.coo([row, col], [1.0, 2, 3, 4, 5, 6, 7], (3, 3)).coalesce()
    assert A.row.tolist() == [0, 1, 1, 2, 2, 2] and A.col.tolist() == [0, 0, 1, 0, 1, 2]
    assert A.values.tolist() == [4, 2, 6, 8, 3, 5]
    theirs = sp.coo_matrix(([1.0, 2, 3, 4, 5, 6, 7], (row, col)), shape=(3, 3))
    theirs.sum_duplicates()
    want = sorted(zip(theirs.row.tolist(), theirs.col.tolist(), theirs.data.tolist(), strict=True))
    assert list(zip(A.row.tolist(), A.col.tolist(), A.values.tolist(), strict=True)) == want


# ---- 4.5 bounds --------------------------------------------------------------------------------
def test_ac_67_indices_of_users_are_always_checked(backend: str) -> None:
    cases = [
        (lambda **k: sg.coo([[10], [50], [1]], [1.0], (1, 51, 50), **k), r"indices\[0\]: index 10"),
        (lambda **k: sg.coo([[0], [-1]], [1.0], (2, 3), **k), r"indices\[1\]: index -1"),
        (lambda **k: sg.coo([[2], [0]], [1.0], (2, 3), **k), r"indices\[0\]: index 2"),
        (lambda **k: sg.csr([0, 1, 1], [3], [1.0], (2, 3), **k), "indices: index 3"),
        (lambda **k: sg.csc([0, 1, 1, 1], [2], [1.0], (2, 3), **k), "indices: index 2"),
        (lambda **k: sg.csr([0, 2, 1], [0], [1.0], (2, 3), **k), "indptr: must not fall, got 2"),
    ]
    for make, text in cases:
        with pytest.raises(sg.PatternError, match=text):
            make()
    for make, _ in cases[:-1]:
        assert make(check=False).nnz == 1
    for call, error in (
        (lambda: sg.take(sg.ones(3, 2), [3]), sg.PatternError),
        (lambda: sg.take(sg.ones(3, 2), [-1]), sg.PatternError),
        (lambda: sg.embedding(sg.ones(3, 2), [[0, 5]]), sg.PatternError),
        (lambda: sg.index_select(sg.sparse_eye(3), 0, [3]), sg.PatternError),
        (lambda: sg.sparse_eye(3)[3], IndexError),
        (lambda: sg.sparse_eye(3)[[0, 3]], IndexError),
        (lambda: sg.segment_sum(sg.ones(3), [0, 5]), (sg.PatternError, sg.ShapeError)),
        (lambda: sg.nll_loss(sg.ones(1, 3), [7]), IndexError),
        (lambda: sg.ones(3)[sg.tensor([4])], IndexError),
    ):
        with pytest.raises(error, match=r"\d"):
            call()


# ---- 4.6 nothing stored ------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(3,), (0,), (3, 4), (0, 0), (2, 0, 3)], ids=str)
def test_ac_69_softmax_of_nothing(shape: tuple[int, ...], backend: str) -> None:
    for dim in range(len(shape)):
        for op in (sg.softmax, sg.log_softmax):
            S = sg.coo([[]] * len(shape), np.zeros(0), shape, requires_grad=True)
            out = op(S, dim)
            assert out.nnz == 0 and out.shape == shape
            out.backward(sg.ones_like(out))
            assert S.grad.nnz == 0 and S.values.grad.shape == (0,)


def test_ac_70_nothing_stored_is_coalesced() -> None:
    for x, ndim in ((sg.tensor([]), 1), (sg.rand(2, 0, 3), 3), (sg.zeros(4, 5), 2)):
        A = x.to_sparse()
        assert A.nnz == 0 and A.is_coalesced and A.shape == x.shape
        assert A.indices.shape == (ndim, 0) and A.coalesce().indices.shape == (ndim, 0)
        np.testing.assert_array_equal(dense(A), x.data)
    A = sg.coo([[0, 1], [1, 0]], [1.0, 2.0], (2, 2))
    zeros = sg.zeros_like(A)  # explicit zeros on the pattern of A
    assert zeros.nnz == 2 and zeros.pattern is A.pattern
    np.testing.assert_array_equal(dense(zeros), sg.zeros(2, 2).data)
    assert sg.zeros_like(sg.coo([[], []], [], (2, 2))).nnz == 0


def test_ac_72_gradients_without_entries() -> None:
    x = sg.coo(np.zeros((2, 0), int), np.zeros((0, 2)), (0, 0, 2), requires_grad=True)
    y = sg.coo(np.zeros((2, 0), int), np.zeros((0, 2)), (0, 0, 2), requires_grad=True)
    assert sg.gradcheck(lambda x, y: x + y, (x, y))
    assert sg.gradcheck(lambda x, y: (x + y.coalesce()) * x, (x, y))
    assert sg.gradcheck(sg.relu, x)
    out = sg.relu(x)
    out.backward(sg.ones_like(out))
    assert x.grad.shape == (0, 0, 2) and x.grad.nnz == 0


# ---- 4.7 dtypes --------------------------------------------------------------------------------
@every_format
def test_ac_76_half_precision_sums_in_single(fmt: str, backend: str) -> None:
    """A half stops counting at 2048."""
    n = 4096 + 4096
    ids = np.arange(n)
    A = sg.coo([np.zeros(n, int), ids], np.ones(n, "f2"), (3, n)).to(fmt)
    ones = sg.Tensor(np.ones((n, 2), "f2"))
    for name, out, want in (
        ("spmm", (A @ ones)[0], [n, n]),
        ("mean", sg.spmm(A, ones, "mean")[0], [1, 1]),
        ("vector", (A @ sg.Tensor(np.ones(n, "f2")))[0], n),
        ("sum", A.sum(), n),
        ("sum rows", A.sum(1)[0], n),
        ("sum columns", A.T.sum(0)[0], n),
        ("mean stored", sg.mean(A, 1, include_zeros=False)[0], 1),
        ("segment", sg.segment_sum(sg.Tensor(np.ones(n, "f2")), [0, n])[0], n),
        ("spgemm", (A @ A.T).to_dense()[0, 0], n),
        ("sddmm", sg.sddmm(sg.Tensor(np.ones((1, n), "f2")), sg.Tensor(np.ones((1, n), "f2")),
                           sg.coo([[0], [0]], None, (1, 1))).values[0], n),
        ("dense sum", sg.Tensor(np.ones(n, "f2")).sum(), n),
        ("softmax", sg.softmax(A, 1).values.sum(), 1),
    ):  # fmt: skip
        assert out.dtype == np.float16, name
        np.testing.assert_allclose(out.data.astype(float), want, rtol=1e-3, err_msg=name)
    twice = sg.coo([np.zeros(n, int), np.zeros(n, int)], np.ones(n, "f2"), (2, 2)).to(fmt)
    for name, out in (("coalesce", twice.coalesce()), ("dense", twice)):
        assert dense(out)[0, 0] == n, name
    w = sg.Tensor(np.zeros((3, 1), "f2"), requires_grad=True)
    sg.embedding(w, np.zeros(n, int)).sum().backward()
    assert dense(w.grad)[0, 0] == n
    w = sg.Tensor(np.zeros((3, 1), "f2"), requires_grad=True)
    w[np.zeros(n, int)].sum().backward()
    assert w.grad.data[0, 0] == n


def test_ac_77_ties_are_counted_in_enough_bits() -> None:
    n = 70_000
    x = sg.ones(n, dtype=sg.float16, requires_grad=True)
    x.max().backward()
    np.testing.assert_allclose(x.grad.data.astype(float), 1 / n, rtol=0.005)
    A = sg.coo([np.arange(n)], np.ones(n, "f2"), (n,), requires_grad=True)
    sg.amax(A).backward()
    np.testing.assert_allclose(A.values.grad.data.astype(float), 1 / n, rtol=0.005)
    x = sg.ones(1, n, dtype=sg.float16, requires_grad=True)
    x.max(1).values.sum().backward()  # the first one takes all
    assert x.grad.data[0, 0] == 1 and np.count_nonzero(x.grad.data) == 1
    x = sg.ones(n, dtype=sg.float16, requires_grad=True)
    x.mean().backward()
    np.testing.assert_allclose(x.grad.data.astype(float), 1 / n, rtol=0.005)
    A = sg.coo([np.arange(n)], np.ones(n, "f2"), (n,), requires_grad=True)
    for zeros in (True, False):  # their sum, 70 000, is no half
        A.grad = None
        mean = sg.mean(A, include_zeros=zeros)
        assert mean.item() == 1 and mean.dtype == np.float16
        mean.backward()
        np.testing.assert_allclose(A.values.grad.data.astype(float), 1 / n, rtol=0.005)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "bool"])
@every_format
def test_ac_80_integers_stay_integers(dtype: str, fmt: str, backend: str) -> None:
    values = np.array([1, 0, 1, 1, 1]).astype(dtype)
    A = sg.coo([[0, 1, 0, 2, 2], [1, 0, 2, 1, 1]], values, (3, 3)).to(fmt)
    for out in (A, A.coalesce(), A.T, A.to("csr"), A * A, A + A.T, A[1:], A @ A, A.to_dense()):
        assert out.dtype == np.dtype(dtype)
    x = np.eye(3, dtype=dtype)
    assert (A @ x).dtype == np.dtype(dtype)
    want = np.zeros((3, 3), np.int64)
    np.add.at(want, ([0, 1, 0, 2, 2], [1, 0, 2, 1, 1]), values.astype(int))
    np.testing.assert_array_equal(dense(A @ x), want.astype(dtype))
    big = 2**53 + 1  # not a float64
    if dtype == "int64":
        B = sg.coo([[0, 0], [0, 0]], np.array([big, 1]), (1, 1)).to(fmt)
        assert dense(B)[0, 0] == big + 1 and dense(B.coalesce())[0, 0] == big + 1
        assert (B @ np.ones((1, 1), np.int64)).item() == big + 1


@every_format
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_ac_81_complex_values(fmt: str, dtype: str, backend: str) -> None:
    """Forward as in SciPy; no gradients, and that is said."""
    rng = np.random.default_rng(0)
    coords = rng.integers(0, 3, (2, 6))
    values = (rng.standard_normal(6) + 1j * rng.standard_normal(6)).astype(dtype)
    A = sg.coo(coords, values, (3, 3)).to(fmt)
    D = sp.coo_array((values, tuple(coords)), shape=(3, 3)).toarray()
    x = (rng.standard_normal((3, 2)) + 1j).astype(dtype)
    tol = 1e-5 if dtype == "complex64" else 1e-12
    for found, want in (
        (A, D), (A.coalesce(), D), (A.T, D.T), (A @ x, D @ x), (A.T @ x, D.T @ x),
        (A * (1 + 2j), D * (1 + 2j)), (A + A.T, D + D.T), (A * A, D * D), (A @ A, D @ D),
        (A.sum(), D.sum()), (A.sum(0), D.sum(0)), (-A, -D),
        (sg.sddmm(x, x, A.coalesce()), (x @ x.T) * (mask_of(A))),
    ):  # fmt: skip
        assert found.dtype == np.dtype(dtype)
        equal(found, want, tol)
    with pytest.raises(sg.DtypeError, match=r"requires_grad: only floating-point .* got complex"):
        A.requires_grad_()
    with pytest.raises(sg.DtypeError, match="requires_grad: only floating-point"):
        sg.csc([0, 1, 1, 1], [0], np.array([1j]), (3, 3), requires_grad=True)


# ---- 4.8, 4.9 ----------------------------------------------------------------------------------
def test_ac_90_norms_are_taken_after_duplicates_are_summed() -> None:
    w = leaf(np.zeros((5,)))
    sg.take(w, [2, 2]).backward(sg.tensor([3.0, 4.0], dtype=sg.float64))
    assert w.grad.nnz == 2
    assert sg.norm(w.grad).item() == 7
    assert sg.norm(w.grad, 1).item() == 7
    assert sg.norm(w.grad, float("inf")).item() == 7
    assert sg.amax(w.grad).item() == 7
    clipped = sg.tanh(w.grad)  # any function of the values
    assert clipped.nnz == 1 and clipped.values.item() == np.tanh(7.0)
    assert sg.nn.utils.clip_grad_norm_([w], 3.5).item() == 7
    np.testing.assert_allclose(dense(w.grad), [0, 0, 3.5, 0, 0], rtol=1e-6)
    sg.nn.utils.clip_grad_value_([w], 2.0)
    np.testing.assert_allclose(dense(w.grad), [0, 0, 2, 0, 0], rtol=1e-6)


@every_format
def test_ac_98_cross_entropy_with_sparse_soft_labels(fmt: str) -> None:
    rng = np.random.default_rng(0)
    x0, g = rng.standard_normal((2, 5)), 1.7
    labels = sparse_leaf([[0, 0, 1], [1, 4, 2]], [0.3, 0.7, 0.6], (2, 5), fmt)
    logits = leaf(x0)
    loss = -(labels * sg.log_softmax(logits, 1)).sum()
    logp = x0 - np.log(np.exp(x0).sum(1, keepdims=True))
    V = dense(labels)
    np.testing.assert_allclose(loss.item(), -(V * logp).sum(), rtol=1e-12)
    loss.backward(sg.tensor(g, dtype=sg.float64))
    equal(logits.grad, g * (np.exp(logp) * V.sum(1, keepdims=True) - V))
    equal(labels.grad, -g * logp * mask_of(labels))


def kinds_of(a: Sparse) -> set[str]:
    cells = list(map(tuple, a.coords.T.tolist()))
    out = set()
    if not cells:
        out.add("nothing stored")
    if len(set(cells)) < len(cells):
        out.add("duplicates")
    if cells != sorted(cells):
        out.add("unsorted")
    if cells and cells == sorted(set(cells)):
        out.add("sorted")
    if a.values.size and (a.values == 0).any():
        out.add("explicit zeros")
    if cells and len(a.shape) == 2:
        for d, name in ((0, "empty row"), (1, "empty column")):
            if len({c[d] for c in cells}) < a.shape[d]:
                out.add(name)
    return out


EVERY_KIND = {
    "add", "coalesce", "getitem", "index_select", "mul", "prune", "sddmm", "softmax", "spgemm",
    "spgemm_masked", "spmm", "sub", "sum", "to_dense", "to_format", "transpose",
}  # fmt: skip


def test_ac_101_the_op_table_has_every_kind_of_matrix() -> None:
    every = {"sorted", "unsorted", "duplicates", "empty row", "empty column", "nothing stored",
             "explicit zeros"}  # fmt: skip
    found: dict[str, set[str]] = {}
    for case in OP_DB:
        if case.formats:
            kinds = found.setdefault(case.name.partition("[")[0], set())
            for args, static in case.samples(Draw()):
                for a in (*args, *static.values()):
                    if isinstance(a, Sparse):
                        kinds |= kinds_of(a)
    assert {name: every - found[name] for name in EVERY_KIND if every - found[name]} == {}
    for name, kinds in found.items():
        assert "nothing stored" in kinds, name


def one_matrix_rows() -> list[Any]:
    """Rows of one sparse matrix and nothing else: unary ops and reductions."""
    rows = []
    for case in OP_DB:
        args, static = next(iter(case.samples(Draw())), ((), {1: 1}))
        plain = case.formats == FORMATS and not case.raw and "hybrid" not in case.name
        if plain and len(args) == 1 and not static:
            rows.append(pytest.param(case, id=case.name))
    return rows


@every_format
@pytest.mark.parametrize("case", one_matrix_rows())
def test_ac_101_grid_of_one_matrix(case: Any, fmt: str) -> None:
    """Also where the generated tests must stay away from kinks: explicit zeros, and duplicates
    whose parts are positive and negative."""
    for square in (True, False):
        for a in Draw(1).every_kind(*((5, 5) if square else (5, 3))):
            for values in (a.values * 0.2, np.where(np.arange(a.values.size) % 3, a.values, 0),
                           np.abs(a.values) * 0.2, a.values * 1e-3):  # fmt: skip
                b = Sparse(a.coords, values, a.shape).listed(fmt)
                with np.errstate(all="ignore"):
                    try:
                        want = np.asarray(case.ref(b.dense()))
                    except ValueError:  # square matrices only, or no maximum of nothing
                        continue
                    try:
                        out = case.op(b.build(fmt, sg.Tensor(b.values)))
                    except sg.ShapeError:
                        if 0 in a.shape:  # what this row asks for needs a row or a column
                            continue
                        raise
                assert out.shape == want.shape
                np.testing.assert_allclose(dense(out), want, rtol=1e-9, atol=1e-12)


def test_ac_104_numbers_of_the_engine_this_grew_from() -> None:
    x = leaf(np.ones((2, 2)))
    x.sum(1).backward(sg.tensor([10.0, 20.0], dtype=sg.float64))
    equal(x.grad, [[10, 10], [20, 20]])
    x = leaf(np.arange(4.0))
    x.reshape(2, 2).backward(sg.Tensor(np.array([[1.0, 2.0], [3.0, 4.0]])))
    assert x.grad.shape == (4,)
    equal(x.grad, [1, 2, 3, 4])
    x = leaf(3.0)
    h = 2 * x
    h.backward(retain_graph=True)
    (3 * h).backward()
    equal(x.grad, 8)
    x = leaf(1.0)
    h = x
    for _ in range(50_000):
        h = h + 1.0
    h.backward()
    equal(x.grad, 1)


@every_format
def test_ac_104_long_chains_of_sparse_ops(fmt: str) -> None:
    A = sparse_leaf([[0, 1], [1, 0]], [2, 3], (2, 2), fmt)
    B = A
    for i in range(5000):
        B = (B * -1.0).T if i % 2 else B + A
    B.sum().backward()
    # T swaps the entries and the sign flips each second step: s -> -(s + a), 2500 times.
    coefficient = 1.0
    for _ in range(2500):
        coefficient = -(coefficient + 1)
    equal(A.grad.values, [coefficient] * 2)


def test_op_table_covers_the_formats() -> None:
    """AC-101: whatever takes a sparse matrix takes it in every format."""
    for case in OP_DB:
        for args, static in case.samples(Draw()):
            matrices = [a for a in (*args, *static.values()) if isinstance(a, Sparse)]
            if matrices and all(len(a.shape) == 2 for a in matrices):
                assert case.formats == FORMATS, case.name
            break
