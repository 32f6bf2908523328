"""Sparse cotangents: where they start, which rules keep them sparse, hooks, second derivatives.

The oracle is dense algebra in NumPy: whatever the representation, the numbers are those of dense
autograd.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from byhand import const, dense, equal_dense, leaf, rows_added
from sparsegrad.sparse_tensor import SparseTensor


# ---- where they start --------------------------------------------------------------------------
def test_take_stores_only_the_rows_that_were_taken() -> None:
    w = leaf(np.ones((1000, 3)))
    g = np.arange(9.0).reshape(3, 3)
    w.take([7, 5, 7]).backward(const(g))
    assert isinstance(w.grad, SparseTensor)
    assert w.grad.sparse_dim == 1 and w.grad.dense_dim == 1 and w.grad.shape == (1000, 3)
    assert w.grad.values.shape == (3, 3)
    merged = w.grad.coalesce()
    assert merged.row.tolist() == [5, 7]
    np.testing.assert_array_equal(merged.values.numpy(), [g[1], g[0] + g[2]])


@pytest.mark.parametrize("shape", [(5,), (5, 2), (5, 2, 3)])
@pytest.mark.parametrize("index", [[0, 4, 0], [[1, 2], [3, 1]], [], 3])
def test_take_of_every_rank(shape: tuple[int, ...], index: Any) -> None:
    ids = np.array(index, int)
    rng = np.random.default_rng(0)
    w = leaf(rng.standard_normal(shape))
    y = w.take(index)
    expected = np.take(w.detach().numpy(), ids if ids.ndim else ids.reshape(1), axis=0)
    np.testing.assert_array_equal(y.detach().numpy(), expected)
    g = rng.standard_normal(y.shape)
    y.backward(const(g))
    assert isinstance(w.grad, SparseTensor)
    equal_dense(w.grad, rows_added(5, ids.reshape(-1), g.reshape(-1, *shape[1:])))


def test_who_gives_dense_gradients() -> None:
    w = leaf(np.ones((5, 2)))
    for op in (
        lambda w: w.take([1, 1], sparse_grad=False),
        lambda w: w[[1, 1]],
        lambda w: w.index_select(0, [1, 1]),
        lambda w: sg.take(w.T, [1, 1], dim=1).T,
    ):
        w.grad = None
        op(w).sum().backward()
        assert isinstance(w.grad, sg.Tensor)
        equal_dense(w.grad, rows_added(5, [1, 1], np.ones((2, 2))))


def test_embedding_skips_its_padding() -> None:
    w = leaf(np.ones((6, 2)))
    g = np.arange(12.0).reshape(2, 3, 2)
    sg.embedding(w, [[0, 3, 0], [5, 3, 0]], padding_idx=0).backward(const(g))
    assert isinstance(w.grad, SparseTensor)
    assert 0 not in w.grad.row.tolist()
    equal_dense(w.grad, rows_added(6, [3, 5, 3], [g[0, 1], g[1, 0], g[1, 1]]))


def test_to_sparse_gives_an_element_sparse_gradient() -> None:
    x = leaf([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
    for fmt, order in (("coo", [2, 3, 4]), ("csr", [2, 3, 4]), ("csc", [3, 2, 4])):
        x.grad = None
        A = x.to_sparse(fmt)
        assert A.values.detach().tolist() == order
        A.values.backward(const(np.multiply(order, 10.0)))
        assert isinstance(x.grad, SparseTensor)
        assert x.grad.nnz == 3 and x.grad.sparse_dim == 2
        equal_dense(x.grad, [[0, 20, 0], [30, 0, 40]])


def test_hybrid_to_sparse() -> None:
    x = leaf([[0.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    A = x.to_sparse(dense_dims=1)
    assert A.sparse_dim == 1 and A.row.tolist() == [1, 2]
    A.values.backward(const([[1.0, 2.0], [3.0, 4.0]]))
    assert isinstance(x.grad, SparseTensor) and x.grad.values.shape == (2, 2)
    equal_dense(x.grad, [[0, 0], [1, 2], [3, 4]])


def test_an_empty_gather_gives_an_empty_gradient() -> None:
    w = leaf(np.ones((5, 2)))
    w.take([]).sum().backward()
    assert isinstance(w.grad, SparseTensor) and w.grad.nnz == 0 and w.grad.shape == (5, 2)
    w.take([3]).sum().backward()
    equal_dense(w.grad, rows_added(5, [3], np.ones((1, 2))))


# ---- ops that a sparse cotangent passes through ------------------------------------------------
@pytest.mark.parametrize(
    ("name", "fn", "derivative"),
    [
        ("neg", lambda w: -w, lambda w: -np.ones_like(w)),
        ("scale", lambda w: w * 3.0, lambda w: np.full_like(w, 3)),
        ("divide", lambda w: w / 4.0, lambda w: np.full_like(w, 0.25)),
        ("multiply", lambda w: w * const([2.0, 5.0]), lambda w: np.tile([2.0, 5.0], (6, 1))),
        ("column", lambda w: w * const(np.arange(6.0)[:, None]), lambda w: np.repeat(
            np.arange(6.0)[:, None], 2, 1)),
        ("add", lambda w: w + const(np.ones((6, 2))), lambda w: np.ones_like(w)),
        ("subtract", lambda w: 1.0 - w, lambda w: -np.ones_like(w)),
        ("clone", lambda w: w.clone(), lambda w: np.ones_like(w)),
        ("cast", lambda w: w.float().double(), lambda w: np.ones_like(w)),
        ("tanh", sg.tanh, lambda w: 1 - np.tanh(w) ** 2),
        ("exp", sg.exp, np.exp),
        ("log", sg.log, lambda w: 1 / w),
        ("sqrt", sg.sqrt, lambda w: 0.5 / np.sqrt(w)),
        ("sigmoid", sg.sigmoid, lambda w: np.exp(-w) / (1 + np.exp(-w)) ** 2),
        ("relu", lambda w: sg.relu(w - 1.0), lambda w: (w > 1).astype(float)),
        ("abs", lambda w: sg.abs(w - 1.0), lambda w: np.sign(w - 1)),
        ("pow", lambda w: w**3, lambda w: 3 * w**2),
        ("square", lambda w: w * w, lambda w: 2 * w),
        ("transposes", lambda w: w.T.T, lambda w: np.ones_like(w)),
    ],
)  # fmt: skip
def test_rules_that_keep_a_cotangent_sparse(name: str, fn: Any, derivative: Any) -> None:
    data = np.random.default_rng(1).uniform(0.5, 2, (6, 2))
    w, ids = leaf(data), [4, 1, 4]
    g = np.random.default_rng(2).standard_normal((3, 2))
    with sg.densify(budget=0, on_exceed="raise"):
        fn(w).take(ids).backward(const(g))
    assert isinstance(w.grad, SparseTensor)
    tol = 1e-6 if name == "cast" else 1e-12
    np.testing.assert_allclose(
        dense(w.grad), rows_added(6, ids, g) * derivative(data), rtol=tol, atol=tol
    )


def test_a_cotangent_summed_to_a_smaller_shape() -> None:
    """b (d,), c (n, 1) and s () broadcast against w (n, d), of which rows are taken."""
    w, b, c, s = leaf(np.ones((6, 2))), leaf([1.0, 2.0]), leaf(np.ones((6, 1))), leaf(3.0)
    ids, g = [4, 1, 4], np.random.default_rng(2).standard_normal((3, 2))
    with sg.densify(budget=0, on_exceed="raise"):
        ((w + b) * c + s).take(ids).backward(const(g))
    full = rows_added(6, ids, g)
    equal_dense(w.grad, full)
    equal_dense(b.grad, full.sum(0))
    equal_dense(s.grad, full.sum())
    equal_dense(c.grad, (full * [2.0, 3.0]).sum(1, keepdims=True))
    assert isinstance(w.grad, SparseTensor) and isinstance(c.grad, SparseTensor)
    assert isinstance(b.grad, sg.Tensor) and isinstance(s.grad, sg.Tensor)


def test_a_transposed_gather() -> None:
    """Columns of w through its transpose: sparse, but no longer by rows."""
    w = leaf(np.ones((3, 5)))
    g = np.arange(6.0).reshape(2, 3)
    with sg.densify(budget=0, on_exceed="raise"):
        w.T.take([4, 0]).backward(const(g))
    expected = np.zeros((3, 5))
    expected[:, 4], expected[:, 0] = g[0], g[1]
    assert isinstance(w.grad, SparseTensor) and w.grad.nnz == 6
    equal_dense(w.grad, expected)


def test_every_permutation_of_a_sparse_cotangent() -> None:
    for dims in itertools.permutations(range(4)):
        for dense_dims in range(4):
            data = np.random.default_rng(3).standard_normal((2, 3, 4, 2))
            data[np.random.default_rng(4).random(data.shape) < 0.6] = 0
            w = leaf(data)
            view = w.permute(*dims)
            A = view.to_sparse(dense_dims=dense_dims)
            g = np.random.default_rng(5).standard_normal(A.values.shape)
            with sg.densify(budget=0, on_exceed="raise"):
                A.values.backward(const(g))
            full = np.zeros(view.shape)
            full[A.pattern.coords] = g
            assert isinstance(w.grad, SparseTensor)
            equal_dense(w.grad, full.transpose(np.argsort(dims)))


ROWWISE = {
    "softmax": lambda x: sg.softmax(x, 1),
    "log_softmax": lambda x: sg.log_softmax(x, -1),
    "logsumexp": lambda x: sg.logsumexp(x, 1, keepdim=True) * x,
    "sum": lambda x: x.sum(1, keepdim=True) + x,
    "sum, without the dimension": lambda x: x.sum(1),
    "mean": lambda x: x - x.mean(1, keepdim=True),
    "amax": lambda x: x.amax(1) - x.amin(1),
    "a unit norm": lambda x: x / x.norm(2, 1, keepdim=True),
    "where": lambda x: sg.where(x > 0.7, x, 0.0),
    "two trailing dimensions": lambda x: x.reshape(5, 2, 2).sum((1, 2)),
    "one of two trailing dimensions": lambda x: sg.softmax(x.reshape(5, 2, 2), 1),
}


@pytest.mark.parametrize("read", ["rows", "cells"])
@pytest.mark.parametrize("case", ROWWISE)
def test_ops_along_trailing_dimensions_keep_a_cotangent_row_sparse(case: str, read: str) -> None:
    x0 = np.random.default_rng(8).uniform(0.5, 1, (5, 4))

    def loss(x: Any, sparse: bool = True) -> Any:
        y = ROWWISE[case](x)
        if read == "rows":
            picked = sg.take(y, [3, 1, 3], sparse_grad=sparse)
        else:
            y = y if y.ndim > 1 else y.reshape(5, 1)
            first = sg.tensor(np.zeros((2, 1, *y.shape[2:]), int))
            picked = sg.gather(y, 1, first, sparse_grad=sparse)
        weights = np.random.default_rng(9).standard_normal(picked.shape)
        return ((picked + picked * picked) * const(weights)).sum()

    x, other = leaf(x0), leaf(x0)
    with sg.densify(budget=0, on_exceed="raise"):
        (g,) = sg.grad(loss(x), x)
    (want,) = sg.grad(loss(other, False), other)
    assert isinstance(g, SparseTensor)
    assert g.coalesce().nnz <= 2 * 4
    equal_dense(g, want.numpy())
    assert sg.gradgradcheck(loss, [leaf(x0)])


def test_dense_ops_accept_a_sparse_upstream_gradient() -> None:
    """Rules that need a dense cotangent get one, whatever the op (an event, never an error)."""
    rng = np.random.default_rng(6)
    x0, u0, ids, g = rng.uniform(0.5, 1, (4, 4)), rng.uniform(0.5, 1, (4, 4)), [2, 2, 0], None
    cases = [
        lambda x: x @ x,
        lambda x: x.reshape(16).reshape(4, 4),
        lambda x: sg.softmax(x, 1),
        lambda x: sg.log_softmax(x, 0),
        lambda x: sg.cat([x, x * 2])[2:6],
        lambda x: sg.maximum(x, const(u0)),
        lambda x: sg.where(const(u0) > 0.7, x, x * 3),
        lambda x: x.sum(1, keepdim=True) * x,
        lambda x: x.expand(2, 4, 4)[1],
        lambda x: sg.stack([x, x], 1)[:, 0],
        lambda x: x / (x + 1),
        lambda x: const(u0) ** x,
    ]
    for case in cases:
        with sg.densify(on_exceed="record"):
            x, z = leaf(x0), leaf(x0)
            y = case(x).take(ids)
            g = rng.standard_normal(y.shape)
            y.backward(const(g))
            case(z).backward(const(rows_added(4, ids, g)))
        equal_dense(x.grad, dense(z.grad))


# ---- the type never depends on density ---------------------------------------------------------
@pytest.mark.parametrize("taken", [0, 1, 5, 50, 51, 99, 100, 250])
def test_the_type_of_a_gradient_does_not_depend_on_density(taken: int) -> None:
    n = 100
    ids = np.random.default_rng(taken).permutation(max(n, taken))[:taken] % n
    g = np.random.default_rng(1).standard_normal((taken, 3))
    w = leaf(np.zeros((n, 3)))
    for _ in range(3):
        w.take(ids).backward(const(g))
    assert type(w.grad) is SparseTensor
    equal_dense(w.grad, 3 * rows_added(n, ids, g))
    w.take(np.arange(n)[::-1]).sum().backward()
    w.take([0]).sum().backward()
    assert type(w.grad) is SparseTensor
    expected = 3 * rows_added(n, ids, g) + 1
    expected[0] += 1
    equal_dense(w.grad, expected)
    (g2,) = sg.grad(w.take(np.arange(n)).sum() + w.take([0]).sum(), w)
    assert type(g2) is SparseTensor


def test_full_range_storage() -> None:
    """Past the threshold the values are the dense array, and more terms do not add entries."""
    n = 100
    w = leaf(np.zeros((n, 2)))
    for start in (0, 30, 60):
        w.take(np.arange(start, start + 40)).sum().backward()
    assert isinstance(w.grad, SparseTensor)
    assert w.grad.nnz == n and w.grad.row.tolist() == list(range(n))
    np.testing.assert_array_equal(w.grad.values.numpy(), dense(w.grad))
    for _ in range(300):
        w.take(np.arange(50)).sum().backward()
    assert w.grad.nnz == n
    expected = np.ones(n)
    expected[30:40] += 1
    expected[60:70] += 1
    expected[:50] += 300
    equal_dense(w.grad, np.repeat(expected[:, None], 2, 1))


def test_dense_stays_dense() -> None:
    w = leaf(np.zeros((10, 2)))
    w.sum().backward()
    for _ in range(3):
        w.take([1]).sum().backward()
        assert isinstance(w.grad, sg.Tensor)
    equal_dense(w.grad, 1 + rows_added(10, [1, 1, 1], np.ones((3, 2))))


# ---- hooks, higher derivatives -----------------------------------------------------------------
def test_hooks_see_one_merged_sparse_gradient() -> None:
    w = leaf(np.ones((6, 2)))
    seen: list[Any] = []
    w.register_hook(lambda g: seen.append(g))
    w.register_hook(lambda g: g * 2.0)
    (w.take([1]).sum() + w.take([1, 4]).sum()).backward()
    assert len(seen) == 1 and isinstance(seen[0], SparseTensor)
    equal_dense(seen[0], rows_added(6, [1, 1, 4], np.ones((3, 2))))
    assert isinstance(w.grad, SparseTensor)
    equal_dense(w.grad, rows_added(6, [1, 1, 4], np.full((3, 2), 2.0)))


def test_a_hook_may_turn_a_gradient_dense_or_sparse() -> None:
    w = leaf(np.ones((6, 2)))
    handle = w.register_hook(lambda g: g.to_dense())
    w.take([1]).sum().backward()
    assert isinstance(w.grad, sg.Tensor)
    handle.remove()
    w.grad = None
    w.register_hook(lambda g: sg.coo([[2]], const([[1.0, 1.0]]), (6, 2)))
    w.sum().backward()
    assert isinstance(w.grad, SparseTensor)
    equal_dense(w.grad, rows_added(6, [2], np.ones((1, 2))))


def test_post_accumulate_hooks_see_sparse_gradients() -> None:
    w = leaf(np.ones((6, 2)))
    seen: list[Any] = []
    w.register_post_accumulate_grad_hook(lambda t: seen.append(dense(t.grad)))
    w.take([1]).sum().backward()
    np.testing.assert_array_equal(seen[0], rows_added(6, [1], np.ones((1, 2))))


def test_second_derivatives_through_gathers() -> None:
    rng = np.random.default_rng(0)
    data, ids = rng.standard_normal((6, 2)), [4, 1, 4]
    w = leaf(data)
    (g,) = sg.grad((w.take(ids) ** 3).sum(), w, create_graph=True)
    counts = rows_added(6, ids, np.ones((3, 2)))
    assert isinstance(g, SparseTensor) and g.requires_grad
    equal_dense(g, 3 * data**2 * counts)
    (second,) = sg.grad((g.to_dense() * const(data)).sum(), w)
    equal_dense(second, 6 * data * counts * data)
    w.take(ids).sum().backward(create_graph=True)
    (w.take([4, 0]) ** 3).sum().backward(create_graph=True)
    assert isinstance(w.grad, SparseTensor) and w.grad.requires_grad
    (second,) = sg.grad(w.grad.to_dense().sum(), w)
    equal_dense(second, 6 * data * rows_added(6, [4, 0], np.ones((2, 2))))


def test_gradgradcheck_with_sparse_gradients() -> None:
    w = leaf(np.random.default_rng(0).standard_normal((5, 2)))
    sg.gradcheck(lambda w: sg.tanh(w).take([3, 1, 3]), w)
    sg.gradgradcheck(lambda w: sg.tanh(w.take([3, 1, 3])) * w.take([3, 3, 0]), w)
    sg.gradgradcheck(lambda w: (w.T.take([1]) ** 2) @ w.take([0, 1, 3, 2, 4]), w)


SPARSE_ROUTES = {
    "reshape": lambda w: w.reshape(6, 2, 2).reshape(6, 4),
    "cat rows": lambda w: sg.cat([w, sg.zeros(2, 4, dtype="float64")], 0),
    "cat columns": lambda w: sg.cat([w, w * 2.0], 1),
    "transpose": lambda w: w.T.T,
    "matmul": lambda w: w @ sg.tensor(np.arange(12.0).reshape(4, 3)),
    "neg, scale, cast": lambda w: (-w * 3.0).float().double(),
    "tanh": sg.tanh,
}


@pytest.mark.parametrize("route", SPARSE_ROUTES)
def test_rules_that_stay_sparse(route: str) -> None:
    """Section 5 of the design: these keep a row-sparse cotangent row-sparse."""
    data = np.linspace(-1.0, 1.0, 24).reshape(6, 4)
    through = SPARSE_ROUTES[route]
    found = sg.tensor(data, requires_grad=True)
    with sg.densify(budget=0, on_exceed="raise"):
        rows = sg.take(through(found), [1, 4, 1])
        upstream = np.arange(1.0, 1.0 + rows.data.size).reshape(rows.shape)
        rows.backward(sg.tensor(upstream))
    assert isinstance(found.grad, sg.SparseTensor)
    assert found.grad.nnz <= 12  # a transposed row-sparse gradient is element-sparse
    expected = sg.tensor(data, requires_grad=True)
    sg.take(through(expected), [1, 4, 1], sparse_grad=False).backward(sg.tensor(upstream))
    np.testing.assert_allclose(found.grad.to_dense().numpy(), expected.grad.numpy(), rtol=1e-12)
