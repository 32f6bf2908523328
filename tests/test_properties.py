"""Laws that hold for every sparse tensor, tried on generated ones; and a short run of the fuzzer.

What a failure shrank to is kept as an `example` or as a test of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fuzz
import sparsegrad as sg
from op_db import FORMATS, Sparse
from sparsegrad.sparse_tensor import SparseTensor
from strategies import arrays, build, coordinates, formats, matrices, numbers, tensors

BACKENDS = ("reference", "cpu", "cpu_jit")
EMPTY = Sparse(np.zeros((2, 0), int), np.zeros(0), (3, 0))
TWICE = Sparse(np.array([[1, 0, 1, 1], [0, 2, 0, 0]]), np.array([1.0, 0.0, -1.0, 2.5]), (2, 3))


def dense(x: Any) -> np.ndarray:
    return (x.to_dense() if isinstance(x, SparseTensor) else x).detach().numpy()


def close(found: Any, expected: Any, tol: float = 1e-12) -> None:
    expected = np.asarray(expected)
    found = dense(found) if not isinstance(found, (np.ndarray, float)) else np.asarray(found)
    assert found.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(found, expected, rtol=tol, atol=tol * scale)


def per_value(a: Sparse, fmt: str, g: np.ndarray) -> np.ndarray:
    """A dense gradient at each stored value of `build(a, fmt)`."""
    return g[tuple(a.listed(fmt).coords)]


# ---- products ----------------------------------------------------------------------------------
@given(st.data(), matrices(), formats, st.integers(0, 3), st.sampled_from(BACKENDS))
def test_adjoint(data: Any, a: Sparse, fmt: str, k: int, backend: str) -> None:
    """<A x, y> = <x, A.T y> = <values, sddmm(y, x)>, and each is the gradient of the others."""
    m, n = a.shape
    x, y = data.draw(arrays((n, k))), data.draw(arrays((m, k)))
    with sg.config(backend=backend):
        A = build(a, fmt)
        tx, ty = sg.Tensor(x, requires_grad=True), sg.Tensor(y)
        left = ((A @ tx) * ty).sum()
        middle = float((x * dense(A.T @ ty)).sum())
        sampled = sg.sddmm(ty, sg.Tensor(x), A)
        right = float((dense(A.values) * dense(sampled.values)).sum())
        want = float(((a.dense() @ x) * y).sum())
        for found in (left.item(), middle, right):
            assert abs(found - want) <= 1e-9 * max(1, np.abs(a.dense()).sum() * 64)
        left.backward()
        close(tx.grad, a.dense().T @ y)
        close(A.values.grad, per_value(a, fmt, y @ x.T))
        close(A.values.grad, dense(sampled.values))


@given(st.data(), matrices(), formats, numbers, numbers)
def test_products_are_linear_in_each_argument(
    data: Any, a: Sparse, fmt: str, s: float, t: float
) -> None:
    m, n = a.shape
    count = a.coords.shape[1]
    x, z = data.draw(arrays((n, 2))), data.draw(arrays((n, 2)))
    v, w = (data.draw(arrays((count,))) for _ in range(2))
    A = build(a, fmt, requires_grad=False)
    close(A @ (s * x + t * z), s * dense(A @ x) + t * dense(A @ z), 1e-10)
    mixed = A.with_values(s * v + t * w)
    for op in (
        lambda M: M @ x, lambda M: M.T @ np.ones((m, 1)), lambda M: M.to_dense(),
        lambda M: M.sum(0), lambda M: M.coalesce(), lambda M: M * np.arange(1.0, n + 1),
        lambda M: M + A * 0.0,
    ):  # fmt: skip
        parts = s * dense(op(A.with_values(v))) + t * dense(op(A.with_values(w)))
        close(op(mixed), parts, 1e-10)
    y, u = data.draw(arrays((m, 2))), data.draw(arrays((m, 2)))
    both = sg.sddmm(sg.Tensor(s * y + t * u), sg.Tensor(x), A).values
    one, two = (sg.sddmm(sg.Tensor(q), sg.Tensor(x), A).values.data for q in (y, u))
    close(both, s * one + t * two, 1e-10)


@given(st.data(), st.tuples(*[st.integers(0, 5)] * 3), formats, formats)
def test_products_of_two_sparse_matrices(
    data: Any, shape: tuple[int, int, int], f: str, g: str
) -> None:
    m, k, n = shape
    a, b = data.draw(matrices((m, k))), data.draw(matrices((k, n)))
    up = data.draw(arrays((m, n)))
    A, B = build(a, f), build(b, g)
    C = A @ B
    close(C, a.dense() @ b.dense())
    reached = (a.mask().astype(int) @ b.mask().astype(int)) > 0
    assert C.nnz == int(reached.sum()) and C.is_coalesced
    C.backward(sg.Tensor(up))
    up = up * reached
    close(A.values.grad, per_value(a, f, up @ b.dense().T))
    close(B.values.grad, per_value(b, g, a.dense().T @ up))


# ---- structure ---------------------------------------------------------------------------------
@given(tensors())
@example(EMPTY)
@example(TWICE)
def test_coalesce_is_idempotent_and_the_same_tensor(a: Sparse) -> None:
    A = build(a)
    C = A.coalesce()
    assert C.coalesce() is C and C.is_coalesced
    close(C, a.dense())
    cells = list(map(tuple, C.indices.T.tolist()))
    assert cells == sorted(set(map(tuple, a.coords.T.tolist())))
    np.testing.assert_array_equal(A.indices, a.coords)
    C.values.backward(sg.ones_like(C.values))
    close(A.values.grad, np.ones(a.values.shape))


@given(st.data(), matrices(), st.lists(formats, min_size=1, max_size=5), formats)
def test_round_trips_carry_values_and_gradients(
    data: Any, a: Sparse, path: list[str], start: str
) -> None:
    """Through any formats and transposes, to dense, and back: the same matrix, and the gradient
    of each stored value is that of its cell."""
    A = B = build(a, start)
    turned = False
    for fmt in path:
        B = B.to(fmt)
        if data.draw(st.booleans()):
            B, turned = B.T, not turned
    D = a.dense().T if turned else a.dense()
    close(B, D)
    assert B.nnz == A.nnz
    g = data.draw(arrays(D.shape))
    B.backward(sg.Tensor(g))
    close(A.values.grad, per_value(a, start, g.T if turned else g))
    x = sg.Tensor(a.dense(), requires_grad=True)
    C = x.to_sparse(start)
    close(C, a.dense())
    assert C.nnz == np.count_nonzero(a.dense())
    g = g.T if turned else g
    C.to(path[0]).to_dense().backward(sg.Tensor(g))
    close(x.grad, g * (a.dense() != 0))


@given(st.data(), tensors())
def test_the_order_of_coo_entries_does_not_matter(data: Any, a: Sparse) -> None:
    count = a.coords.shape[1]
    order = np.array(data.draw(st.permutations(range(count))), int)
    b = Sparse(a.coords[:, order], a.values[order], a.shape)
    A, B = build(a), build(b)
    close(A, a.dense())
    close(B, a.dense())
    assert A.pattern.same_as(B.pattern) == np.array_equal(a.coords, b.coords)
    np.testing.assert_array_equal(A.coalesce().indices, B.coalesce().indices)
    close(B.coalesce(), dense(A.coalesce()))
    for op in (lambda M: M * M, sg.tanh, lambda M: M.sum(0), lambda M: sg.softmax(M, 0)):
        close(op(B), dense(op(A)), 1e-10)
    g = data.draw(arrays(a.dense().shape))
    for M in (A, B):
        (M * M).backward(sg.Tensor(g))
    close(B.values.grad, dense(A.values.grad)[order], 1e-10)
    close(B.grad, dense(A.grad), 1e-10)


@given(matrices(), formats)
def test_with_values_of_the_own_values_is_the_identity(a: Sparse, fmt: str) -> None:
    A = build(a, fmt)
    B = A.with_values(A.values)
    assert B.pattern is A.pattern and B.values is A.values
    close(B, a.dense())
    (B.values * 3).sum().backward()
    close(A.values.grad, np.full(a.values.shape, 3.0))


# ---- elementwise -------------------------------------------------------------------------------
@given(st.data(), st.tuples(*[st.integers(0, 5)] * 2), formats, formats, st.sampled_from(BACKENDS))
def test_union_and_intersection(
    data: Any, shape: tuple[int, int], f: str, g: str, backend: str
) -> None:
    a, b = data.draw(matrices(shape)), data.draw(matrices(shape))
    up = data.draw(arrays(shape))
    da, db = a.dense(), b.dense()
    cases = [
        (lambda A, B: A + B, da + db, a.mask() | b.mask(), up, up),
        (lambda A, B: A - B, da - db, a.mask() | b.mask(), up, -up),
        (lambda A, B: A * B, da * db, a.mask() & b.mask(), up * db, up * da),
    ]
    with sg.config(backend=backend):
        for op, want, mask, ga, gb in cases:
            A, B = build(a, f), build(b, g)
            C = op(A, B)
            close(C, want)
            found = np.zeros(shape, bool)
            found[C.row, C.col] = True
            np.testing.assert_array_equal(found, mask)
            C.backward(sg.Tensor(up))
            close(A.values.grad, per_value(a, f, ga))
            close(B.values.grad, per_value(b, g, gb))
        A, x = build(a, f), sg.Tensor(db, requires_grad=True)
        close(A + x, da + db)
        close(A * x, da * db)
        ((A + x) * (A * x)).backward(sg.Tensor(up))  # (a + x) a x
        close(A.values.grad, per_value(a, f, up * (2 * da * db + db**2)), 1e-10)
        close(x.grad, up * (da**2 + 2 * da * db), 1e-10)


@given(st.data(), matrices(), formats, st.sampled_from([0, 1]), st.sampled_from(BACKENDS))
def test_softmax(data: Any, a: Sparse, fmt: str, dim: int, backend: str) -> None:
    """Over the stored entries: rows that have any sum to 1, and a shift changes nothing."""
    g, mask, D = data.draw(arrays(a.shape)), a.mask(), a.dense()
    with sg.config(backend=backend):
        A = build(a, fmt)
        y = sg.softmax(A, dim)
        e = np.where(mask, np.exp(D), 0)
        total = e.sum(dim, keepdims=True)
        p = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
        close(y, p)
        close(y.sum(dim), mask.any(dim).astype(float), 1e-10)
        C = A.detach().coalesce()
        close(sg.softmax(C.with_values(C.values + 700.0), dim), p, 1e-10)
        close(sg.log_softmax(C, dim).values, np.log(p[C.row, C.col]), 1e-9)
        y.backward(sg.Tensor(g))
        close(A.values.grad, per_value(a, fmt, p * (g - (p * g).sum(dim, keepdims=True))), 1e-10)


# ---- backends ----------------------------------------------------------------------------------
@given(st.data(), matrices(), formats, st.sampled_from([np.float32, np.float64]))
def test_backends_agree(data: Any, a: Sparse, fmt: str, dtype: Any) -> None:
    m, n = a.shape
    x, up = data.draw(arrays((n, 2))).astype(dtype), data.draw(arrays((m, 2))).astype(dtype)
    found: dict[str, list[np.ndarray]] = {}
    for backend in BACKENDS:
        with sg.config(backend=backend):
            A = build(a, fmt, dtype)
            tx = sg.Tensor(x, requires_grad=True)
            y = A @ tx
            y.backward(sg.Tensor(up))
            C = A.detach().coalesce()
            found[backend] = [
                y.data, A.values.grad.data, tx.grad.data, C.indices, C.values.data,
                A.sum(0).data, A.sum(1).data, sg.softmax(C, 1).values.data, (C + C.T.T).values.data,
                sg.spmm(C, sg.Tensor(x), "max").data, sg.spmm(C, sg.Tensor(x), "mean").data,
                (C @ C.T).values.data, (C @ C.T).indices, sg.amax(C, 0).data if m else C.indices,
            ]  # fmt: skip
    tol = 1e-4 if dtype == np.float32 else 1e-11
    for backend in BACKENDS[1:]:
        for one, two in zip(found["reference"], found[backend], strict=True):
            assert one.dtype == two.dtype and one.shape == two.shape
            np.testing.assert_allclose(two, one, rtol=tol, atol=tol * 64)


@given(st.data(), st.integers(1, 5), st.integers(0, 3))
def test_row_sparse_gradients_are_those_of_dense_gathers(data: Any, n: int, d: int) -> None:
    """take, several times, in any order, beside dense uses."""
    terms = data.draw(st.lists(st.lists(st.integers(0, n - 1), max_size=6), max_size=4))
    w = sg.Tensor(data.draw(arrays((n, d))), requires_grad=True)
    want = np.zeros((n, d))
    total: Any = (w * 0.0).sum() if data.draw(st.booleans()) or not terms else None
    for ids in terms:
        g = data.draw(arrays((len(ids), d)))
        np.add.at(want, np.array(ids, int), g)
        term = (w.take(np.array(ids, int)) * sg.Tensor(g)).sum()
        total = term if total is None else total + term
    total.backward()
    close(w.grad, want)


@given(st.data(), st.tuples(*[st.integers(1, 4)] * 2))
def test_masks_of_any_pattern(data: Any, shape: tuple[int, int]) -> None:
    coords = data.draw(coordinates(shape))
    x = sg.Tensor(data.draw(arrays(shape)), requires_grad=True)
    P = Sparse(coords, np.ones(coords.shape[1]), shape)
    for fmt in FORMATS:
        M = sg.sparse_mask(x, build(P, fmt))
        close(M, x.data * P.mask())
        assert M.nnz == int(P.mask().sum())
        (g,) = sg.grad(M.sum(), x)
        close(g, P.mask().astype(float))


# ---- the fuzzer, and what it found -------------------------------------------------------------
def test_two_hundred_chains_of_random_ops() -> None:
    failures, steps = fuzz.fuzz(200, seed=1)
    assert failures == [], "\n".join(failures)
    assert steps > 400


def test_a_sparse_cotangent_of_a_broadcast_operand_with_leading_ones() -> None:
    v, u = np.array([[[0.5, -2.0]]]), np.array([[[1.0], [2.0], [3.0]]])
    a, b = sg.Tensor(v, requires_grad=True), sg.Tensor(u, requires_grad=True)
    g = np.arange(6.0).reshape(1, 3, 2)
    sg.take(a * b, [0]).backward(sg.Tensor(g))
    close(a.grad, (g * u).sum(1, keepdims=True))
    close(b.grad, (g * v).sum(2, keepdims=True))


@pytest.mark.parametrize("first", [True, False])
def test_gradients_that_are_read_only_views_are_not_added_to_in_place(first: bool) -> None:
    """NumPy's broadcast_to returns a read-only view, also where nothing is repeated."""
    x = sg.Tensor(np.array([2.0]), requires_grad=True)
    A = sg.coo([[0]], x, (1,))
    terms = [A.mean(0, keepdim=True).sum(), sg.tanh(x).sum()]
    one, two = terms if first else terms[::-1]
    sg.autograd.backward([one, two])
    close(x.grad, [1 + 1 - np.tanh(2.0) ** 2])
    frozen = np.array([1.0])
    frozen.flags.writeable = False
    y = sg.Tensor(np.array([3.0]), requires_grad=True)
    y.grad = sg.Tensor(frozen)
    (y * 2).sum().backward()
    close(y.grad, [3.0])
    assert frozen[0] == 1
