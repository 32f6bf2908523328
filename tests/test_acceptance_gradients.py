"""Acceptance cases of gradients that were missing or broken elsewhere, each named after its id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg
from acceptance import equal, every_format, mask_of, sparse_leaf
from byhand import dense, leaf
from op_db import FORMATS


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
