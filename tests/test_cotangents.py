"""Sparse cotangents: where they start, how they add up, which rules keep them sparse.

The oracle is dense algebra in NumPy: whatever the representation, the numbers are those of dense
autograd.
"""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from byhand import const, dense, leaf
from sparsegrad.sparse_tensor import SparseTensor


def equal(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(dense(found), expected, rtol=1e-12, atol=1e-14)


def rows_added(n: int, ids: Any, rows: Any) -> np.ndarray:
    rows = np.asarray(rows, np.float64)
    out = np.zeros((n, *rows.shape[1:]))
    np.add.at(out, np.asarray(ids, int), rows)
    return out


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
    equal(w.grad, rows_added(5, ids.reshape(-1), g.reshape(-1, *shape[1:])))


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
        equal(w.grad, rows_added(5, [1, 1], np.ones((2, 2))))


def test_embedding_skips_its_padding() -> None:
    w = leaf(np.ones((6, 2)))
    g = np.arange(12.0).reshape(2, 3, 2)
    sg.embedding(w, [[0, 3, 0], [5, 3, 0]], padding_idx=0).backward(const(g))
    assert isinstance(w.grad, SparseTensor)
    assert 0 not in w.grad.row.tolist()
    equal(w.grad, rows_added(6, [3, 5, 3], [g[0, 1], g[1, 0], g[1, 1]]))


def test_to_sparse_gives_an_element_sparse_gradient() -> None:
    x = leaf([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
    for fmt, order in (("coo", [2, 3, 4]), ("csr", [2, 3, 4]), ("csc", [3, 2, 4])):
        x.grad = None
        A = x.to_sparse(fmt)
        assert A.values.detach().tolist() == order
        A.values.backward(const(np.multiply(order, 10.0)))
        assert isinstance(x.grad, SparseTensor)
        assert x.grad.nnz == 3 and x.grad.sparse_dim == 2
        equal(x.grad, [[0, 20, 0], [30, 0, 40]])


def test_hybrid_to_sparse() -> None:
    x = leaf([[0.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    A = x.to_sparse(dense_dims=1)
    assert A.sparse_dim == 1 and A.row.tolist() == [1, 2]
    A.values.backward(const([[1.0, 2.0], [3.0, 4.0]]))
    assert isinstance(x.grad, SparseTensor) and x.grad.values.shape == (2, 2)
    equal(x.grad, [[0, 0], [1, 2], [3, 4]])


def test_an_empty_gather_gives_an_empty_gradient() -> None:
    w = leaf(np.ones((5, 2)))
    w.take([]).sum().backward()
    assert isinstance(w.grad, SparseTensor) and w.grad.nnz == 0 and w.grad.shape == (5, 2)
    w.take([3]).sum().backward()
    equal(w.grad, rows_added(5, [3], np.ones((1, 2))))


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
    equal(w.grad, full)
    equal(b.grad, full.sum(0))
    equal(s.grad, full.sum())
    equal(c.grad, (full * [2.0, 3.0]).sum(1, keepdims=True))
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
    equal(w.grad, expected)


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
            equal(w.grad, full.transpose(np.argsort(dims)))


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
    equal(g, want.numpy())
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
        equal(x.grad, dense(z.grad))


# ---- adding up ---------------------------------------------------------------------------------
TERMS: dict[str, Any] = {
    "rows": (
        lambda w: (w.take([3, 1, 3]) * const([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])).sum(),
        rows_added(6, [3, 1, 3], [[1, 2], [3, 4], [5, 6]]),
    ),
    "same rows": (lambda w: w.take([3, 1, 3]).sum(), rows_added(6, [3, 1, 3], np.ones((3, 2)))),
    "other rows": (
        lambda w: (w.take([0, 5]) * 10.0).sum(), rows_added(6, [0, 5], np.full((2, 2), 10.0)),
    ),
    "no rows": (lambda w: w.take([]).sum(), np.zeros((6, 2))),
    "cells": (lambda w: (w.to_sparse().values * 7.0).sum(), None),
    "transposed": (lambda w: w.T.take([1]).sum(), np.tile([0.0, 1.0], (6, 1))),
    "dense": (lambda w: (w * const(np.arange(12.0).reshape(6, 2))).sum(),
              np.arange(12.0).reshape(6, 2)),
    "broadcast": (lambda w: w.sum(), np.ones((6, 2))),
}  # fmt: skip
DATA = np.array([[0, 1.0], [2, 0], [0, 0], [0, 3], [0, 0], [4, 5]])
TERMS["cells"] = (TERMS["cells"][0], 7.0 * (DATA != 0))


@pytest.mark.parametrize("names", list(itertools.permutations(TERMS, 2)), ids="+".join)
def test_two_terms_in_either_order(names: tuple[str, str]) -> None:
    expected = sum(TERMS[n][1] for n in names)
    one, two = leaf(DATA), leaf(DATA)
    a, b = (TERMS[n][0](one) for n in names)
    (a + b).backward()  # in one walk
    for n in names:
        TERMS[n][0](two).backward()  # in two
    (g,) = sg.grad(sum(TERMS[n][0](two) for n in names), two)
    for found in (one.grad, two.grad, g):
        equal(found, expected)
        assert isinstance(found, sg.Tensor) == bool({"dense", "broadcast"} & set(names))


@pytest.mark.parametrize("seed", range(12))
def test_many_terms_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = list(rng.choice(list(TERMS), 9))
    w = leaf(DATA)
    h = w * 1.0
    h.retain_grad()
    with sg.densify(on_exceed="record"):
        sum(TERMS[n][0](h) for n in names).backward()
    expected = sum(TERMS[n][1] for n in names)
    equal(w.grad, expected)
    equal(h.grad, expected)


def test_rows_of_different_depth_meet() -> None:
    """Terms that are sparse in one, two and three dimensions."""
    data = np.zeros((3, 2, 4))
    data[0, 1, 2], data[2, 0, 0], data[2, 1, 3] = 1, 2, 3
    makers = (
        lambda v: (v.take([2, 0]) * 10.0).sum(),
        lambda v: (v.to_sparse(dense_dims=1).values * 100.0).sum(),
        lambda v: (v.to_sparse().values * 1000.0).sum(),
    )
    parts = [np.zeros(data.shape) for _ in makers]
    parts[0][[2, 0]] = 10
    parts[1][data.any(2)] = 100
    parts[2][data != 0] = 1000
    for order in itertools.permutations(range(3)):
        for count in (2, 3):
            v = leaf(data)
            sum(makers[i](v) for i in order[:count]).backward()
            assert isinstance(v.grad, SparseTensor)
            equal(v.grad, sum(parts[i] for i in order[:count]))


def test_rows_and_cells_meet_where_less_is_stored() -> None:
    n, d = 1000, 10
    data = np.zeros((n, d))
    data[500:503, 4] = 1.0
    w = leaf(data)
    (w.take([1, 2]).sum() + w.to_sparse().values.sum()).backward()
    assert w.grad.sparse_dim == 2 and w.grad.nnz == 2 * d + 3  # 23 cells, not 5 whole rows
    w = leaf(data)
    (w.take([500, 501, 502, 7]).sum() + w.to_sparse().values.sum()).backward()
    assert w.grad.sparse_dim == 1 and w.grad.values.numel() == 4 * d  # no more than the cells
    full = np.zeros((n, d))
    full[[500, 501, 502, 7]] = 1
    equal(w.grad, full + data)


def test_tied_weights_in_either_order() -> None:
    """AC-82: one table is gathered from and multiplied with."""
    rng = np.random.default_rng(0)
    data, h, ids = rng.standard_normal((7, 3)), rng.standard_normal((2, 3)), [5, 2, 5]
    g1, g2 = rng.standard_normal((3, 3)), rng.standard_normal((2, 7))
    expected = rows_added(7, ids, g1) + g2.T @ h
    for order in (1, -1):
        w = leaf(data)
        parts = [(w.take(ids) * const(g1)).sum(), ((const(h) @ w.T) * const(g2)).sum()][::order]
        (parts[0] + parts[1]).backward()
        assert isinstance(w.grad, sg.Tensor)
        equal(w.grad, expected)


# ---- who owns what -----------------------------------------------------------------------------
def test_sparse_gradients_own_their_values() -> None:
    g = const(np.ones((2, 2)))
    w = leaf(np.ones((6, 2)))
    w.take([1, 2]).backward(g)
    w.take([3, 4]).backward(g)
    sg.autograd.backward([w.take([0, 1]), w.take([5, 5])], [g, g])
    g.mul_(100.0)  # before anybody read the gradient
    equal(w.grad, np.array([[1.0], [2], [1], [1], [1], [2]]) * np.ones(2))
    z = leaf(np.ones((6, 2)))
    ids = sg.tensor([1, 2])
    z.take(ids).sum().backward()
    ids[0] = 5
    equal(z.grad, rows_added(6, [1, 2], np.ones((2, 2))))


def test_two_leaves_do_not_share_a_sparse_gradient() -> None:
    a, b = leaf(np.ones((4, 2))), leaf(np.ones((4, 2)))
    (a + b).take([1]).sum().backward()
    a.grad.values.zero_()
    equal(b.grad, rows_added(4, [1], np.ones((1, 2))))


def test_a_gradient_that_was_read_is_not_changed_by_the_next_pass() -> None:
    """AC-47: the second pass onto one sparse gradient."""
    w = leaf(np.zeros((10, 3)))
    w.take([7, 1, 3]).sum().backward()
    first = w.grad
    w.take([7, 1, 3]).sum().backward()
    second = w.grad
    w.take([8, 1, 3]).sum().backward()
    equal(first, rows_added(10, [7, 1, 3], np.ones((3, 3))))
    equal(second, rows_added(10, [7, 1, 3], np.full((3, 3), 2)))
    equal(w.grad, rows_added(10, [7, 1, 3, 8, 1, 3], [[2] * 3] * 3 + [[1] * 3] * 3))


def test_changing_the_gradient_that_was_read() -> None:
    """What a clip does: `.grad` is one object until the next pass."""
    w = leaf(np.zeros((10, 2)))
    w.take([1, 2]).sum().backward()
    w.take([2, 3]).sum().backward()
    w.grad.values.mul_(0.5)
    equal(w.grad, rows_added(10, [1, 2, 2, 3], np.full((4, 2), 0.5)))
    w.take([1]).sum().backward()
    equal(w.grad, rows_added(10, [1, 2, 2, 3, 1], [[0.5] * 2] * 4 + [[1] * 2]))


def test_setting_a_sparse_gradient() -> None:
    w = leaf(np.zeros((4, 2)))
    w.grad = sg.coo([[2]], const([[1.0, 2.0]]), (4, 2))
    w.take([2]).sum().backward()
    equal(w.grad, rows_added(4, [2], [[2, 3]]))
    with pytest.raises(sg.ShapeError, match=r"grad: expected shape \(4, 2\)"):
        w.grad = sg.coo([[2]], const([[1.0, 2.0]]), (5, 2))


def test_parallel_passes_into_their_own_leaves() -> None:
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        w, total = leaf(np.zeros((50, 2))), np.zeros((50, 2))
        for _ in range(40):
            ids, g = rng.integers(0, 50, 8), rng.standard_normal((8, 2))
            w.take(ids).backward(const(g))
            total += rows_added(50, ids, g)
        np.testing.assert_allclose(dense(w.grad), total, atol=1e-12)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


# ---- many small passes -------------------------------------------------------------------------
def test_memory_is_flat_over_thousands_of_micro_batches() -> None:
    """Ids from a small set in a large table: what is stored is bounded by the set."""
    rng = np.random.default_rng(0)
    n, d, hot = 100_000, 8, rng.choice(100_000, 200, replace=False)
    w = sg.zeros(n, d, requires_grad=True)
    counts = np.zeros(n)

    def steps(count: int) -> None:
        for _ in range(count):
            ids = rng.choice(hot, 16)
            np.add.at(counts, ids, 1)
            w.take(ids).sum().backward()

    steps(500)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        steps(2500)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    term = 16 * d * 4
    assert after - before < 1000 * term  # 2500 terms would be 2.5 times that, plus their indices
    assert peak - before < n * d * 4 / 2
    merged = w.grad.coalesce()
    assert merged.nnz <= 200
    np.testing.assert_array_equal(dense(merged), np.repeat(counts[:, None], d, 1))


def test_pending_terms_are_bounded() -> None:
    w = leaf(np.zeros((10, 1)))
    for n in range(3000):
        w.take([n % 10]).sum().backward()
        w.take([]).sum().backward()
    held = w._grad
    stored = sum(p.nnz for p in getattr(held, "parts", [held]))
    assert stored <= 4096
    assert len(getattr(held, "parts", [held])) <= 4096
    equal(w.grad, np.full((10, 1), 300.0))


def test_one_pass_with_thousands_of_terms() -> None:
    w = leaf(np.zeros((50, 1)))
    total = None
    for n in range(3000):
        part = w.take([n % 50]).sum() * float(n % 3)
        total = part if total is None else total + part
    total.backward()
    expected = np.zeros((50, 1))
    np.add.at(expected[:, 0], np.arange(3000) % 50, np.arange(3000) % 3)
    equal(w.grad, expected)


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
    equal(w.grad, 3 * rows_added(n, ids, g))
    w.take(np.arange(n)[::-1]).sum().backward()
    w.take([0]).sum().backward()
    assert type(w.grad) is SparseTensor
    expected = 3 * rows_added(n, ids, g) + 1
    expected[0] += 1
    equal(w.grad, expected)
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
    equal(w.grad, np.repeat(expected[:, None], 2, 1))


def test_dense_stays_dense() -> None:
    w = leaf(np.zeros((10, 2)))
    w.sum().backward()
    for _ in range(3):
        w.take([1]).sum().backward()
        assert isinstance(w.grad, sg.Tensor)
    equal(w.grad, 1 + rows_added(10, [1, 1, 1], np.ones((3, 2))))


# ---- hooks, higher derivatives -----------------------------------------------------------------
def test_hooks_see_one_merged_sparse_gradient() -> None:
    w = leaf(np.ones((6, 2)))
    seen: list[Any] = []
    w.register_hook(lambda g: seen.append(g))
    w.register_hook(lambda g: g * 2.0)
    (w.take([1]).sum() + w.take([1, 4]).sum()).backward()
    assert len(seen) == 1 and isinstance(seen[0], SparseTensor)
    equal(seen[0], rows_added(6, [1, 1, 4], np.ones((3, 2))))
    assert isinstance(w.grad, SparseTensor)
    equal(w.grad, rows_added(6, [1, 1, 4], np.full((3, 2), 2.0)))


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
    equal(w.grad, rows_added(6, [2], np.ones((1, 2))))


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
    equal(g, 3 * data**2 * counts)
    (second,) = sg.grad((g.to_dense() * const(data)).sum(), w)
    equal(second, 6 * data * counts * data)
    w.take(ids).sum().backward(create_graph=True)
    (w.take([4, 0]) ** 3).sum().backward(create_graph=True)
    assert isinstance(w.grad, SparseTensor) and w.grad.requires_grad
    (second,) = sg.grad(w.grad.to_dense().sum(), w)
    equal(second, 6 * data * rows_added(6, [4, 0], np.ones((2, 2))))


def test_second_derivatives_where_kinds_meet() -> None:
    """dense + rows + cells, merged under create_graph: L = sum w^3 over each."""
    for names in itertools.permutations(("rows", "cells", "dense")):
        w = leaf(DATA)
        terms = {
            "rows": lambda w: (w.take([3, 1, 3]) ** 3).sum(),
            "cells": lambda w: (w.to_sparse().values ** 3).sum(),
            "dense": lambda w: (w**3).sum(),
        }
        counts = {
            "rows": rows_added(6, [3, 1, 3], np.ones((3, 2))),
            "cells": (DATA != 0).astype(float),
            "dense": np.ones((6, 2)),
        }
        for count in (2, 3):
            used = names[:count]
            (g,) = sg.grad(sum(terms[n](w) for n in used), w, create_graph=True)
            weight = sum(counts[n] for n in used)
            equal(g, 3 * DATA**2 * weight)
            g = g.to_dense() if isinstance(g, SparseTensor) else g
            (second,) = sg.grad((g * const(DATA + 1)).sum(), w)
            equal(second, 6 * DATA * (DATA + 1) * weight)


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
