"""Sparse gradients added up: in any order, who owns them, over many small passes."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from byhand import const, dense, equal_dense, leaf, rows_added
from sparsegrad.sparse_tensor import SparseTensor

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
        equal_dense(found, expected)
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
    equal_dense(w.grad, expected)
    equal_dense(h.grad, expected)


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
            equal_dense(v.grad, sum(parts[i] for i in order[:count]))


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
    equal_dense(w.grad, full + data)


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
        equal_dense(w.grad, expected)


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
            equal_dense(g, 3 * DATA**2 * weight)
            g = g.to_dense() if isinstance(g, SparseTensor) else g
            (second,) = sg.grad((g * const(DATA + 1)).sum(), w)
            equal_dense(second, 6 * DATA * (DATA + 1) * weight)


# ---- who owns what -----------------------------------------------------------------------------
def test_sparse_gradients_own_their_values() -> None:
    g = const(np.ones((2, 2)))
    w = leaf(np.ones((6, 2)))
    w.take([1, 2]).backward(g)
    w.take([3, 4]).backward(g)
    sg.autograd.backward([w.take([0, 1]), w.take([5, 5])], [g, g])
    g.mul_(100.0)  # before anybody read the gradient
    equal_dense(w.grad, np.array([[1.0], [2], [1], [1], [1], [2]]) * np.ones(2))
    z = leaf(np.ones((6, 2)))
    ids = sg.tensor([1, 2])
    z.take(ids).sum().backward()
    ids[0] = 5
    equal_dense(z.grad, rows_added(6, [1, 2], np.ones((2, 2))))


def test_two_leaves_do_not_share_a_sparse_gradient() -> None:
    a, b = leaf(np.ones((4, 2))), leaf(np.ones((4, 2)))
    (a + b).take([1]).sum().backward()
    a.grad.values.zero_()
    equal_dense(b.grad, rows_added(4, [1], np.ones((1, 2))))


def test_a_gradient_that_was_read_is_not_changed_by_the_next_pass() -> None:
    """AC-47: the second pass onto one sparse gradient."""
    w = leaf(np.zeros((10, 3)))
    w.take([7, 1, 3]).sum().backward()
    first = w.grad
    w.take([7, 1, 3]).sum().backward()
    second = w.grad
    w.take([8, 1, 3]).sum().backward()
    equal_dense(first, rows_added(10, [7, 1, 3], np.ones((3, 3))))
    equal_dense(second, rows_added(10, [7, 1, 3], np.full((3, 3), 2)))
    equal_dense(w.grad, rows_added(10, [7, 1, 3, 8, 1, 3], [[2] * 3] * 3 + [[1] * 3] * 3))


def test_changing_the_gradient_that_was_read() -> None:
    """What a clip does: `.grad` is one object until the next pass."""
    w = leaf(np.zeros((10, 2)))
    w.take([1, 2]).sum().backward()
    w.take([2, 3]).sum().backward()
    w.grad.values.mul_(0.5)
    equal_dense(w.grad, rows_added(10, [1, 2, 2, 3], np.full((4, 2), 0.5)))
    w.take([1]).sum().backward()
    equal_dense(w.grad, rows_added(10, [1, 2, 2, 3, 1], [[0.5] * 2] * 4 + [[1] * 2]))


def test_setting_a_sparse_gradient() -> None:
    w = leaf(np.zeros((4, 2)))
    w.grad = sg.coo([[2]], const([[1.0, 2.0]]), (4, 2))
    w.take([2]).sum().backward()
    equal_dense(w.grad, rows_added(4, [2], [[2, 3]]))
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
    equal_dense(w.grad, np.full((10, 1), 300.0))


def test_one_pass_with_thousands_of_terms() -> None:
    w = leaf(np.zeros((50, 1)))
    total = None
    for n in range(3000):
        part = w.take([n % 50]).sum() * float(n % 3)
        total = part if total is None else total + part
    total.backward()
    expected = np.zeros((50, 1))
    np.add.at(expected[:, 0], np.arange(3000) % 50, np.arange(3000) % 3)
    equal_dense(w.grad, expected)
