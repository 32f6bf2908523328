"""Acceptance cases of sparse products and solvers, each named after its id."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg
from sparsegrad.backends import cpu_jit_products, joins
from sparsegrad.structure import arrays, plan_product

FORMATS = ("coo", "csr", "csc")


def _leaf(A: Any, fmt: str, requires_grad: bool = True) -> Any:
    out = A.to(fmt)
    return out.with_values(sg.Tensor(out.values.data.copy(), requires_grad=requires_grad))


def _random(m: int, n: int, density: float, seed: int, fmt: str = "csr") -> Any:
    return sg.from_scipy(
        sp.random_array((m, n), density=density, rng=np.random.default_rng(seed), format=fmt)
    )


# ---- AC-16: sparse @ sparse has gradients, in the given entry order ----------------------------
def _factors() -> tuple[Any, Any]:
    A = sg.coo([[0, 0, 1, 2, 2], [1, 2, 0, 0, 1]], [1.0, 2.0, 3.0, 4.0, 5.0], (3, 3))
    B = sg.coo([[0, 2], [1, 0]], [2.0, 4.0], (3, 2))
    return A, B


@pytest.mark.parametrize("left", FORMATS)
@pytest.mark.parametrize("right", FORMATS)
def test_ac_16_spgemm_has_gradients(left: str, right: str) -> None:
    A, B = _factors()
    A, B = _leaf(A, left), _leaf(B, right)
    C = A @ B
    assert C.requires_grad
    assert C.format == left
    cells = sorted(zip(C.row.tolist(), C.col.tolist(), C.values.data.tolist(), strict=True))
    assert cells == [(0, 0, 8), (1, 1, 6), (2, 1, 8)]
    C.sum().backward()
    np.testing.assert_array_equal(A.grad.to("coo").coalesce().values.data, [0, 4, 2, 2, 0])
    np.testing.assert_array_equal(B.grad.to("coo").coalesce().values.data, [7, 2])


@pytest.mark.parametrize("seed", range(5))
def test_ac_16_gradients_come_in_the_given_entry_order(seed: int) -> None:
    A, B = _factors()
    order = np.random.default_rng(seed).permutation(5)
    A = sg.coo([A.row[order], A.col[order]], A.values.data[order], (3, 3), requires_grad=True)
    B = sg.coo([[2, 0], [0, 1]], [4.0, 2.0], (3, 2), requires_grad=True)
    (A @ B).sum().backward()
    np.testing.assert_array_equal(A.grad.values.data, np.array([0, 4, 2, 2, 0])[order])
    np.testing.assert_array_equal(B.grad.values.data, [2, 7])


def test_ac_16_duplicates_and_cancellation() -> None:
    A = sg.coo([[0, 0, 0], [0, 0, 1]], [1.0, 2.0, 3.0], (1, 2), requires_grad=True)
    B = sg.coo([[0, 1], [0, 0]], [1.0, -1.0], (2, 1), requires_grad=True)
    C = A @ B
    np.testing.assert_array_equal(C.values.data, [0])  # stored although it comes to 0
    C.backward(sg.ones_like(C))
    np.testing.assert_array_equal(A.values.grad.data, [1, 1, -1])
    np.testing.assert_array_equal(B.values.grad.data, [3, 3])
    with sg.config(backend="cpu"):  # again with the cached order
        np.testing.assert_array_equal((A @ B).values.data, [0])


# ---- AC-17: the upstream gradient of a sparse product may be dense -----------------------------
def _eye(m: int, n: int) -> Any:
    k = min(m, n)
    return sg.coo([list(range(k))] * 2, [1.0] * k, (m, n), requires_grad=True)


@pytest.mark.parametrize("kind", ["sum", "dense", "sparse", "broadcast", "fortran"])
def test_ac_17_upstream_dense_or_sparse(kind: str) -> None:
    A, B = _eye(3, 4), _eye(4, 5)
    C = A @ B
    if kind == "sum":
        C.sum().backward()
    elif kind == "sparse":
        C.backward(sg.ones_like(C))
    else:
        ones = np.ones((3, 5), "f4")
        if kind == "broadcast":
            ones = np.broadcast_to(np.float32(1), (3, 5))
        C.backward(sg.Tensor(np.asfortranarray(ones) if kind == "fortran" else ones))
    np.testing.assert_array_equal(A.grad.values.data, [1, 1, 1])
    np.testing.assert_array_equal(B.grad.values.data, [1, 1, 1, 0])


def test_ac_17_product_feeds_a_dense_op() -> None:
    A, B = _eye(3, 4), _eye(4, 5)
    x = sg.ones(5, 2, requires_grad=True)
    ((A @ B) @ x).sum().backward()
    np.testing.assert_array_equal(A.grad.values.data, [2, 2, 2])
    np.testing.assert_array_equal(x.grad.data[:, 0], [1, 1, 1, 0, 0])


# ---- AC-31: gradients through a solve ----------------------------------------------------------
SOLVERS = {
    "spsolve": sg.spsolve,
    "triangular_solve": lambda A, b: sg.triangular_solve(A, b, lower=False),
    "bicgstab": lambda A, b: sg.bicgstab(A, b, rtol=1e-12),
    "gmres": lambda A, b: sg.gmres(A, b, rtol=1e-12),
}


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("solve", SOLVERS)
def test_ac_31_gradient_through_a_sparse_solve(solve: str, fmt: str) -> None:
    A = sg.coo([[0, 0, 1], [0, 1, 1]], np.array([2.0, 1.0, 4.0]), (2, 2))
    A = _leaf(A, fmt)
    b = sg.tensor([4.0, 8.0], dtype=sg.float64, requires_grad=True)
    x = SOLVERS[solve](A, b)
    np.testing.assert_allclose(x.data, [1, 2], rtol=1e-12)
    x.sum().backward()
    np.testing.assert_allclose(b.grad.data, [0.5, 0.125], rtol=1e-12)
    assert A.grad.pattern.same_as(A.pattern)
    np.testing.assert_allclose(A.grad.to("csr").values.data, [-0.5, -1, -0.25], rtol=1e-12)


def test_ac_31_cg_and_second_derivatives() -> None:
    A = _random(12, 12, 0.2, 0)
    b = sg.randn(12, dtype=sg.float64, requires_grad=True)
    A.requires_grad = True

    def solve(A: Any, b: Any) -> Any:
        spd = A @ A.T + sg.coo([list(range(12))] * 2, np.full(12, 3.0), (12, 12))
        return sg.cg(spd, b, rtol=1e-13)

    assert sg.gradcheck(solve, (A, b))
    assert sg.gradgradcheck(solve, (A, b))


def test_ac_31_one_factorization_serves_every_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.sparse import linalg

    calls = []
    splu = linalg.splu
    monkeypatch.setattr(linalg, "splu", lambda *a, **k: calls.append(1) or splu(*a, **k))
    A = _leaf(sg.coo([[0, 0, 1], [0, 1, 1]], np.array([2.0, 1.0, 4.0]), (2, 2)), "csr")
    b = sg.tensor([4.0, 8.0], dtype=sg.float64, requires_grad=True)
    (db,) = sg.grad(sg.spsolve(A, b).sum(), b, create_graph=True)
    db.sum().backward()
    assert len(calls) == 1


def test_ac_31_preconditioner_and_start() -> None:
    n = 200
    rng = np.random.default_rng(0)
    scale = 10.0 ** rng.uniform(-3, 3, n)
    A = _random(n, n, 0.02, 1) * 0.1
    A = (A + A.T).to("csr") + sg.coo([np.arange(n)] * 2, scale + 2, (n, n))
    M = sg.coo([np.arange(n)] * 2, 1 / (scale + 2), (n, n))
    b = sg.randn(n, 2, dtype=sg.float64)
    x = sg.cg(A, b, rtol=1e-12, M=M)
    np.testing.assert_allclose((A @ x).data, b.data, atol=1e-8)
    again = sg.cg(A, b, x0=x, rtol=1e-8, M=M, maxiter=1)
    np.testing.assert_allclose(again.data, x.data, rtol=1e-6)


@pytest.mark.parametrize("method", [sg.cg, sg.bicgstab, sg.gmres])
def test_ac_31_columns_share_products_and_leave_when_solved(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One product an iteration for all columns; those that have converged no longer take part."""
    from sparsegrad.backends.base import Backend

    widths: list[int] = []
    spmm = Backend.spmm
    monkeypatch.setattr(
        Backend, "spmm", lambda be, p, v, x: widths.append(x.shape[1]) or spmm(be, p, v, x)
    )
    n = 60
    A = sg.coo([np.arange(n)] * 2, np.linspace(1.0, 2.0, n), (n, n))
    b = np.random.default_rng(0).standard_normal((n, 4))
    b[:, 1] = 0  # solved before the first iteration
    b[1:, 2] = 0  # after it
    with sg.config(backend="reference"):
        x = method(A, sg.Tensor(b), rtol=1e-9)
        alone = [len(widths)]
        for j in (0, 3):
            widths.clear()
            method(A, sg.Tensor(b[:, j]), rtol=1e-9)
            alone.append(len(widths))
    np.testing.assert_allclose(x.data, b / np.linspace(1.0, 2.0, n)[:, None], atol=1e-8)
    assert alone[0] <= max(alone[1:]) + 1


@pytest.mark.parametrize("method", [sg.cg, sg.bicgstab, sg.gmres])
def test_ac_31_no_convergence_is_said(method: Any) -> None:
    n = 50
    A = sg.coo([np.arange(n)] * 2, np.logspace(0, 8, n), (n, n))
    kw = {"restart": 2} if method is sg.gmres else {}
    with pytest.warns(
        sg.ConvergenceWarning, match=rf"{method.__name__}: column 0 of b: residual .* after \d+ it"
    ):
        method(A, sg.ones(n, dtype=sg.float64), maxiter=3, **kw)


def test_ac_31_singular_systems_are_refused() -> None:
    zero = sg.coo([[0, 1], [0, 0]], [1.0, 2.0], (2, 2))
    for method in (sg.cg, sg.bicgstab, sg.gmres):
        with pytest.raises(sg.SingularMatrixError, match=f"{method.__name__}: column 0 .* broke"):
            method(sg.coo([[], []], [], (2, 2)), sg.ones(2))
    with pytest.raises(sg.SingularMatrixError, match="spsolve: A of shape"):
        sg.spsolve(zero, sg.ones(2))
    with pytest.raises(np.linalg.LinAlgError, match=r"triangular_solve: .*no diagonal entry"):
        sg.triangular_solve(zero, sg.ones(2))


# ---- AC-42: products with transposes -----------------------------------------------------------
@pytest.mark.parametrize("fmt", FORMATS)
def test_ac_42_transposed_products(fmt: str, backend: str) -> None:
    A = _random(1000, 1000, 0.01, 0, fmt)
    w = np.random.default_rng(1).uniform(1, 2, 1000)
    W = sg.coo([np.arange(1000)] * 2, w, (1000, 1000)).to(fmt)
    expected = A.to_scipy().T @ sp.diags_array(w) @ A.to_scipy()
    found = (A.T @ W @ A).to_scipy()
    assert abs(found - expected).max() < 1e-10
    small, x = _random(2, 3, 0.7, 3, fmt), sg.randn(2, 4, dtype=sg.float64)
    np.testing.assert_allclose((small.T @ x).data, small.to_dense().data.T @ x.data, atol=1e-10)


# ---- AC-43: right-hand sides of any layout -----------------------------------------------------
@pytest.mark.parametrize("solve", SOLVERS)
def test_ac_43_non_contiguous_right_hand_side(solve: str) -> None:
    n = 30
    A = sg.from_dense(
        sg.Tensor(np.triu(np.random.default_rng(0).uniform(0.1, 1, (n, n))) + 5 * np.eye(n))
    )
    wide = np.random.default_rng(1).standard_normal((n, 4))
    for b in (
        wide[:, 0],
        wide[:, ::2],
        np.asfortranarray(wide),
        wide[::-1],
        np.broadcast_to(1.0, (n, 2)),
    ):
        exact = SOLVERS[solve](A, sg.Tensor(np.ascontiguousarray(b)))
        found = SOLVERS[solve](A, sg.Tensor(b))
        np.testing.assert_allclose(found.data, exact.data, rtol=1e-9)
        np.testing.assert_allclose((A @ found).data, b, atol=1e-8)


# ---- AC-65: counts of products and entries are 64-bit ------------------------------------------
def test_ac_65_indices_widen_where_the_product_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    A = _random(60, 60, 0.2, 0)
    B = _random(60, 60, 0.2, 1)
    assert A.indices.dtype == np.int32
    monkeypatch.setattr(arrays, "INT32_MAX", 2000)  # each factor fits, the product does not
    C = A @ B
    assert C.nnz > 2000
    assert C.indices.dtype == C.indptr.dtype == np.int64
    np.testing.assert_allclose(C.to_dense().data, A.to_dense().data @ B.to_dense().data)


def test_ac_65_pairs_are_counted_in_64_bits() -> None:
    """46 341 entries meet 46 341: 2.1e9 products, which a 32-bit count would make negative."""
    n = 46_341
    A = sg.coo([np.arange(n), np.zeros(n, int)], None, (n, 1), dtype="f4")
    B = A.T
    mask = sg.coo([[0, n - 1], [n - 1, 0]], None, (n, n))
    xp = np
    at_l = int(xp.diff(B.pattern.sorted_rows()[0].astype("int64"))[A.pattern.col].sum())
    assert at_l == n * n > 2**31
    # Three entries of it cost three lookups, not 2.1e9 products.
    assert joins.cheapest(np, A.pattern, B.pattern, mask.pattern)[1] == 2
    np.testing.assert_array_equal(sg.spgemm_masked(A, B, mask).values.data, [1, 1])


def test_ac_65_a_product_that_does_not_fit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    A = _random(20, 20, 0.2, 5)
    backend = type(A.pattern.core.backend)

    def full(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(backend, "spgemm_pattern", full)
    products = int(
        (A.to_scipy().astype(bool).astype(int) @ A.to_scipy().astype(bool).astype(int)).sum()
    )
    with pytest.raises(MemoryError, match=rf"{A.nnz} entries .* sums {products} products"):
        A @ A


@pytest.mark.parametrize("most", [0, 1 << 26])
def test_a_pattern_is_the_same_whether_entries_are_counted_first(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_jit_products, "_MOST_PAIRS", most)
    # A few of very many columns in a row are sorted, bits of others read in order.
    for density, width in ((0.004, 300), (0.05, 300), (0.5, 300), (0.004, 300_000)):
        A, B = _random(300, 300, density, 3), _random(300, width, density * 300 / width, 4)
        with sg.config(backend="cpu_jit"):
            C = A @ B
        want = A.to_scipy() @ B.to_scipy()
        want.sort_indices()
        np.testing.assert_array_equal(C.pattern.to("csr")[0].indptr, want.indptr)
        np.testing.assert_array_equal(C.pattern.to("csr")[0].indices, want.indices)


def test_spgemm_gradients_stay_small() -> None:
    """Neither a dense array nor all products at once: 2e6 products, one full row and column."""
    n = 2000
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, n, (2, 20_000))
    lines = np.concatenate(
        (
            np.stack((rows, cols)),
            [np.zeros(n, int), np.arange(n)],
            [np.arange(n), np.zeros(n, int)],
        ),
        axis=1,
    )
    A = sg.coo(lines, rng.standard_normal(lines.shape[1]), (n, n)).coalesce()
    A.requires_grad = True
    for _ in range(2):
        C = A @ A
        g = sg.grad(C, A, sg.ones_like(C))
    tracemalloc.start()
    C = A @ A
    (g,) = sg.grad(C, A, sg.ones_like(C))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 * C.nnz + 160 * joins.CHUNK
    dense = A.to_dense().data
    reached = ((dense != 0).astype(float) @ (dense != 0)) > 0
    full = reached @ dense.T + dense.T @ reached
    np.testing.assert_allclose(g.values.data, full[g.row, g.col], rtol=1e-9, atol=1e-9)


def test_the_pattern_of_a_product_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    A, B = _random(30, 20, 0.2, 0), _random(20, 10, 0.2, 1)
    first = A @ B
    monkeypatch.setattr(plan_product, "canonical_like", None)
    second = (A * 2) @ B
    assert second.pattern.core is first.pattern.core


# ---- AC-78: half precision ---------------------------------------------------------------------
@pytest.mark.parametrize("fmt", FORMATS)
def test_ac_78_half_precision_products_and_gradients(fmt: str, backend: str) -> None:
    W = _leaf(_random(5, 4, 0.6, 0).astype("float32"), fmt)
    x = sg.randn(4, 3, requires_grad=True)
    out = W.astype("float16") @ x.astype("float16")
    assert out.dtype == sg.float16
    out.astype("float32").sum().backward()
    assert W.grad.dtype == x.grad.dtype == sg.float32
    expected = (np.ones((5, 3)) @ x.data.T)[W.row, W.col]
    np.testing.assert_allclose(W.grad.values.data, expected, rtol=5e-3, atol=5e-3)


def test_ac_78_mixed_dtypes_meet_in_the_wider_one(backend: str) -> None:
    C = sg.csr([0, 1, 2], [1, 0], [1.0, 2.0], (2, 2), dtype="float16", requires_grad=True)
    x = sg.randn(2, 3, requires_grad=True)
    S = sg.sampled_addmm(C, x, sg.randn(3, 2))
    assert S.dtype == sg.float32
    S.backward(sg.ones_like(S))
    assert (C.grad.dtype, x.grad.dtype) == (sg.float16, sg.float32)
    P = C @ C.astype("float32")
    assert P.dtype == sg.float32


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_ac_78_half_precision_sums_in_float32(reduce: str, backend: str) -> None:
    n = 8192
    A = sg.coo([np.zeros(n, int), np.arange(n)], np.ones(n, "f2"), (1, n))
    x = sg.Tensor(np.full((n, 1), 16 if reduce == "mean" else 1, "f2"))
    assert float(sg.spmm(A, x, reduce=reduce).data[0, 0]) == (16 if reduce == "mean" else n)
    ones = A @ sg.coo([np.arange(n), np.zeros(n, int)], np.ones(n, "f2"), (n, 1))
    assert float(ones.values.data[0]) == n
