"""Deep graphs, what keeps a graph alive, and the memory of a backward pass."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import numpy as np

import sparsegrad as sg
from byhand import Cube, const, equal, leaf


def test_fifty_thousand_ops_without_recursion(no_gc: None) -> None:
    x = leaf([1.0])
    h = x
    for _ in range(50_000):
        h = h + 0.0
    (g,) = sg.grad(h.sum(), x, retain_graph=True)
    equal(g, [1.0])
    h.sum().backward()
    equal(x.grad, [1.0])
    ref = weakref.ref(h.grad_fn)
    del h, g
    assert ref() is None
    h = x
    for _ in range(50_000):
        h = h * 1.0
    ref = weakref.ref(h.grad_fn)
    del h  # never differentiated: deallocation of the whole chain
    assert ref() is None


def test_a_deep_second_derivative() -> None:
    x = leaf([1.0])
    h = x
    for _ in range(2_000):
        h = h * 1.0 + 0.0
    (g,) = sg.grad((h * h).sum(), x, create_graph=True)
    equal(g, [2.0])
    (second,) = sg.grad(g.sum(), x)
    equal(second, [2.0])
    del h, g


def test_the_graph_dies_with_its_output(no_gc: None) -> None:
    x, A = leaf([[1.0], [2.0]]), sg.coo([[0, 1], [1, 0]], const([2.0, 3.0]), (2, 2), True)
    for make in (
        lambda: sg.exp(x * 2).sum(),
        lambda: sg.softmax(x, 0).sum(),
        lambda: sg.max(x, 0).values.sum(),
        lambda: (A @ (A @ x)).sum(),
        lambda: (A * A + A).sum(),
        lambda: sg.softmax(A, 1).sum(),
        lambda: sg.cat([x, x]).sum(),
        lambda: A.coalesce().sum(),
        lambda: A.to("csr").sum(),
        lambda: Cube.apply(x).sum(),
    ):
        y = make()
        nodes, stack = [], [y.grad_fn]
        while stack:
            node = stack.pop()
            if hasattr(node, "next_functions"):
                nodes.append(weakref.ref(node))
                stack.extend(source for source, _ in node.next_functions)
        del stack, node, y
        assert [r() for r in nodes if r() is not None] == []
        y = make()
        y.backward()
        ref = weakref.ref(y.grad_fn)
        del y
        assert ref() is None


def test_nothing_is_left_for_the_collector(no_gc: None) -> None:
    x, w = leaf(np.ones((4, 3))), leaf(np.ones((5, 3)))
    A = sg.coo([[0, 1, 1], [1, 0, 0]], const([2.0, 3.0, 4.0]), (4, 4), requires_grad=True)

    def step() -> None:
        for t in (x, w, A):
            t.grad = None
        h = sg.tanh(A @ x) + w.take(sg.tensor([0, 1, 1, 2]))
        loss = sg.cross_entropy(h, sg.tensor([0, 1, 2, 0])) + (A.coalesce() * A).sum()
        loss.backward()
        assert isinstance(A.grad, sg.SparseTensor) and isinstance(w.grad, sg.SparseTensor)

    step()
    gc.collect()
    step()
    assert gc.collect() == 0


def test_memory_is_flat_over_repeated_backward(no_gc: None) -> None:
    x, w = leaf(np.ones((40, 30))), leaf(np.ones((500, 30)))
    A = sg.coo([[0, 1, 1], [1, 0, 0]], const([2.0, 3.0, 4.0]), (40, 40), requires_grad=True)
    ids = sg.tensor([0, 1, 1, 2])

    def step() -> None:
        h = sg.tanh(A @ x).take(ids) + w.take(ids)
        (h * h).sum().backward()

    for _ in range(50):
        step()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(50):
            step()
        before, objects = tracemalloc.get_traced_memory()[0], len(gc.get_objects())
        for _ in range(200):
            step()
        after = tracemalloc.get_traced_memory()[0]
        assert abs(len(gc.get_objects()) - objects) < 100
    finally:
        tracemalloc.stop()
    # The smallest array that a step makes has 9600 bytes; the interpreter's free lists may grow.
    assert after - before < 200 * 960


def test_values_are_freed_as_the_walk_passes(no_gc: None) -> None:
    x = leaf(np.ones(4))
    h1 = sg.exp(x)
    h2 = sg.log(h1)
    h3 = h2 * h2
    refs = [weakref.ref(h) for h in (h1, h2)]
    alive: list[list[bool]] = []
    h1.register_hook(lambda g: alive.append([r() is not None for r in refs]))
    y = h3.sum()
    del h1, h2, h3
    assert [r() is not None for r in refs] == [True, True]
    y.backward()
    assert alive == [[False, False]]  # log and mul are done: what they saved is gone
