"""Gradients of indexing, which pass back as the few rows that may not be zero.

The oracle is the same program with those gradients dense from the start. Whoever looks sees a dense
gradient either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg
from sparsegrad.sparse_tensor import SomeRows, SparseTensor
from sparsegrad.structure import plan_rows

N, D = 40, 6
RNG = np.random.default_rng(0)
A = sp.random_array((N, N), density=0.1, rng=RNG, format="csr")
WIDE = sp.random_array((N, 9), density=0.3, rng=RNG, format="csr")
IDS = np.array([3, 31, 8])


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small gradients too are given by rows."""
    monkeypatch.setattr(plan_rows, "_SMALL", 0)
    monkeypatch.setattr(plan_rows, "_TAKEN", 0)


def leaf(*shape: int) -> sg.Tensor:
    return sg.tensor(np.random.default_rng(1).standard_normal(shape), requires_grad=True)


def gradients(program: Callable[..., Any], shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    leaves = [leaf(*shape) for shape in shapes]
    out = program(*leaves)
    (out * sg.tensor(np.random.default_rng(2).standard_normal(out.shape))).sum().backward()
    for x in leaves:
        assert type(x.grad) is sg.Tensor
    return [x.grad.numpy() for x in leaves]


def graph() -> Any:
    return sg.from_scipy(A)


def doubled() -> Any:
    """Entries twice, out of order, none in the last rows."""
    row, col = np.random.default_rng(3).integers(0, N - 2, (2, 90))
    ids = np.array([[*row, *row[::-1]], [*col, *col[::-1]]])
    return sg.coo(ids, np.arange(1.0, 181.0), (N, N), dtype="float64")


def with_heads() -> Any:
    values = np.random.default_rng(4).standard_normal((A.nnz, 2))
    return graph().with_values(sg.tensor(values))


def gcn(x: Any, w: Any, b: Any) -> Any:
    h = sg.relu(graph() @ (x @ w) + b)
    return (graph() @ (h * 2))[IDS]


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "a leaf": (lambda x: x[IDS], [(N, D)]),
    "repeated and negative ids": (lambda x: (2 * x)[np.array([-1, 2, -1])], [(N, D)]),
    "no ids": (lambda x: (2 * x)[np.array([], int)], [(N, D)]),
    "a mask": (lambda x: (2 * x)[np.arange(N) % 20 == 3], [(N, D)]),
    "a slice": (lambda x: (2 * x)[-7:2:-3], [(N, D)]),
    "index_select": (lambda x: sg.index_select(x * x, 0, IDS), [(N, D)]),
    "three dimensions": (lambda x: sg.exp(x)[IDS], [(N, 2, 3)]),
    "two reads": (lambda x: (lambda y: y[IDS] * y[IDS + 1])(x * 3), [(N, D)]),
    "rows and all": (lambda x: (lambda y: y[IDS].sum() + (y * y).sum())(x * 3), [(N, D)]),
    "all and rows": (lambda x: (lambda y: (y * y).sum() + y[IDS].sum())(x * 3), [(N, D)]),
    "a bias": (lambda x, b: (x + b)[IDS], [(N, D), (D,)]),
    "a broadcast column": (lambda x, b: (x * b)[IDS], [(N, D), (N, 1)]),
    "products": (lambda x, w: (x @ w)[IDS], [(N, D), (D, 4)]),
    "a product from the left": (lambda w, x: (w @ x)[IDS], [(N, 5), (5, D)]),
    "batches": (lambda x, w: (x @ w)[IDS], [(N, 3, D), (D, 2)]),
    "activations": (lambda x: sg.gelu(sg.tanh(sg.sigmoid(x)))[IDS], [(N, D)]),
    "along rows": (lambda x: sg.log_softmax(x, 1)[IDS], [(N, D)]),
    "along columns": (lambda x: sg.softmax(x, 0)[IDS], [(N, D)]),
    "a transpose": (lambda x: sg.transpose(sg.transpose(x, 0, 1) * 2, 0, 1)[IDS], [(N, D)]),
    "another shape": (lambda x: (x * 2).reshape(N, 2, 3)[IDS], [(N, D)]),
    "rows of other rows": (lambda x: (x * 2).reshape(2 * N, 3)[IDS], [(N, D)]),
    "parts": (lambda x: sg.cat(sg.split(x * 2, 2, 1)[::-1], 1)[IDS], [(N, D)]),
    "one of two outputs": (lambda x: sg.split(x * 2, 10, 0)[1][np.array([3])], [(N, D)]),
    "a checkpoint": (lambda x: sg.checkpoint(lambda x: sg.exp(x) * 2, x)[IDS], [(N, D)]),
    "a dtype": (lambda x: sg.cast(x * 2, "float32")[IDS], [(N, D)]),
    "spmm": (lambda x: (graph() @ x)[IDS], [(N, D)]),
    "spmm, csc": (lambda x: (graph().to("csc") @ x)[IDS], [(N, D)]),
    "spmm, transposed": (lambda x: (graph().T @ x)[IDS], [(N, D)]),
    "spmm, coo": (lambda x: (graph().to("coo") @ x)[IDS], [(N, D)]),
    "spmm, rectangular": (lambda x: (sg.from_scipy(WIDE) @ x)[IDS], [(9, D)]),
    "spmm, repeated rows": (lambda x: (graph() @ x)[np.array([3, -3, 3])], [(N, D)]),
    "spmm, mean": (lambda x: sg.spmm(graph(), x, reduce="mean")[IDS], [(N, D)]),
    "spmm, duplicates": (lambda x: (doubled() @ x)[IDS], [(N, D)]),
    "spmm, empty rows": (lambda x: (doubled() @ x)[np.array([N - 1, N - 2])], [(N, D)]),
    "spmm, heads": (lambda x: sg.spmm(with_heads(), x)[IDS], [(N, 2, 3)]),
    "spmm, a vector": (lambda x: (graph() @ x)[IDS], [(N,)]),
    "two layers": (gcn, [(N, D), (D, 3), (3,)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_dense_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, shapes = PROGRAMS[name]
    monkeypatch.setattr(plan_rows, "_TAKEN", 0)
    monkeypatch.setattr(plan_rows, "_SMALL", math.inf)
    expected = gradients(program, shapes)
    monkeypatch.setattr(plan_rows, "_SMALL", 0)
    for _ in range(2):  # plans are made, and found again
        with sg.densify(budget=0):  # and none of this is an event
            found = gradients(program, shapes)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_what_passes_is_rows(always: None) -> None:
    class Look(sg.Function):
        seen: Any = None

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            Look.seen = g
            return g

    x = leaf(N, D)
    ops = [graph() @ x, sg.relu(x), x + 1]
    for y in ops:
        node = y[IDS].sum().grad_fn
        while node.name != "getitem":
            node = node.next_functions[0][0]
        g = node.pull(sg.ones(3, D, dtype="float64"), None)[0]
        assert isinstance(g, SomeRows) and g.nnz == 3
        (through,) = y.grad_fn.pull(g, None)[:1]
        assert isinstance(through, SomeRows) and through.nnz < N // 2
    Look.apply(x)[IDS].sum().backward()  # a user's function sees it dense
    assert type(Look.seen) is sg.Tensor and type(x.grad) is sg.Tensor


def test_what_was_sparse_to_the_user_stays_so(always: None) -> None:
    w = leaf(N, D)
    (sg.embedding(w, np.arange(20)) * 2)[np.array([1, 5])].sum().backward()
    assert isinstance(w.grad, SparseTensor)
    expected = np.zeros((N, D))
    expected[[1, 5]] = 2
    np.testing.assert_array_equal(w.grad.to_dense().numpy(), expected)
    both = leaf(N, D)  # dense from the one use, sparse from the other: dense
    (both[IDS].sum() + sg.embedding(both, IDS).sum()).backward()
    assert type(both.grad) is sg.Tensor
    np.testing.assert_array_equal(both.grad.numpy()[IDS], np.full((3, D), 2.0))


def test_hooks_and_kept_gradients_are_dense(always: None) -> None:
    x = leaf(N, D)
    y = x * 2
    seen: list[Any] = []
    y.register_hook(lambda g: seen.append(g))
    y.retain_grad()
    y[IDS].sum().backward()
    expected = np.zeros((N, D))
    expected[IDS] = 1
    for g in (seen[0], y.grad):
        assert type(g) is sg.Tensor
        np.testing.assert_array_equal(g.numpy(), expected)
    y = x * 2
    for z, scale in zip(sg.grad([y[IDS].sum()], [x, y]), (2, 1), strict=True):
        assert type(z) is sg.Tensor
        np.testing.assert_array_equal(z.numpy(), scale * expected)


def test_gradients_are_added_to_those_of_earlier_passes(always: None) -> None:
    x = leaf(N, D)
    for _ in range(3):
        x[IDS].sum().backward()
    expected = np.zeros((N, D))
    expected[IDS] = 3
    np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_second_derivatives(always: None) -> None:
    a = graph()
    assert sg.gradgradcheck(lambda x: (a @ (x * x))[IDS], leaf(N, 2))
    a.requires_grad_()
    assert sg.gradgradcheck(lambda v, x: (a.with_values(v) @ x)[IDS], (a.values, leaf(N, 2)))


def test_plans_are_found_again_for_equal_ids(always: None) -> None:
    kept = plan_rows.rows(IDS, N)
    assert plan_rows.rows(IDS.copy(), N) is kept
    assert plan_rows.rows(IDS, N + 1) is not kept
    pattern = graph().pattern
    part = plan_rows.reached(pattern, kept, D)
    assert part is not None and plan_rows.reached(pattern, kept, D) is part
    assert part.pattern.nnz == sum(np.diff(A.indptr)[IDS])
    for i in range(100):  # few are kept
        plan_rows.rows(np.array([i]), 1000)
    assert len(plan_rows._ROWS) <= plan_rows._ROWS_LIMIT


def test_what_pays() -> None:
    assert plan_rows.few(10, (1000, 100)) and not plan_rows.few(10, (10, 10_000))
    assert not plan_rows.few(1, (100, 2)) and not plan_rows.few(1, (1_000_000,))
    pattern, every = graph().pattern, plan_rows.rows(np.arange(N), N)
    assert plan_rows.reached(pattern, every, 1000) is None
    assert plan_rows.reached(pattern, plan_rows.rows(IDS, N), 1) is None
