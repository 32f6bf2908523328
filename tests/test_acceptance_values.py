"""Acceptance cases of values that came out wrong elsewhere, each named after its id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from acceptance import equal, every_format, mask_of, sparse_leaf
from byhand import dense, leaf


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
