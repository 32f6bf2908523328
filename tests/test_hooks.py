"""Hooks on leaves and results, retained gradients.

Every expected number is a derivative worked out by hand.
"""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import sparsegrad as sg
from byhand import const, equal, leaf


def test_hooks_see_the_complete_gradient_once() -> None:
    x = leaf([2.0])
    h = x * x
    seen: list[float] = []
    h.register_hook(lambda g: seen.append(g.item()))
    x.register_hook(lambda g: seen.append(g.item()))
    (h * 3 + h * h).sum().backward()  # d/dh = 3 + 2h = 11, d/dx = 44
    assert seen == [11.0, 44.0]


def test_hooks_replace_and_chain_in_order() -> None:
    x = leaf([2.0])
    h = x * 5
    h.register_hook(lambda g: g + 1)
    h.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: -g)
    h.sum().backward()
    equal(x.grad, [-100.0])  # ((1 + 1) * 10) * 5


def test_hooks_can_be_removed() -> None:
    x = leaf([2.0])
    handle = x.register_hook(lambda g: g * 100)
    with x.register_hook(lambda g: g * 7):
        (x * 1.0).sum().backward()
    equal(x.grad, [700.0])
    handle.remove()
    handle.remove()
    x.grad = None
    (x * 1.0).sum().backward()
    equal(x.grad, [1.0])


def test_hooks_run_for_grad_too_and_are_recorded() -> None:
    x = leaf([2.0])
    h = x * x
    h.register_hook(lambda g: g * x)  # gives 2 x * x: not a gradient, but differentiable
    (g,) = sg.grad(h.sum(), x, create_graph=True)
    equal(g, [8.0])
    (second,) = sg.grad(g.sum(), x)
    equal(second, [8.0])
    (at_h,) = sg.grad((x * x).sum(), x)
    equal(at_h, [4.0])


def test_a_hook_of_the_wrong_shape_changes_nothing() -> None:
    x, z = leaf([2.0]), leaf([1.0])
    y = (x * z).sum()
    x.register_hook(lambda g: const([1.0, 2.0]))
    with pytest.raises(sg.ShapeError, match=r"hook: expected a gradient of shape \(1,\)"):
        y.backward()
    assert x.grad is None and z.grad is None


def test_a_hook_that_raises_changes_nothing() -> None:
    x, z = leaf([2.0]), leaf([1.0])
    (x * z).sum().backward()
    kept = x.grad.numpy().copy(), z.grad.numpy().copy()
    for culprit in (x, z):
        with culprit.register_hook(lambda g: 1 / 0), pytest.raises(ZeroDivisionError):
            (x * z).sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), kept[0])
        np.testing.assert_array_equal(z.grad.numpy(), kept[1])


def test_hooks_need_a_gradient() -> None:
    with pytest.raises(sg.GraphError, match="register_hook"):
        const([1.0]).register_hook(print)
    with pytest.raises(sg.GraphError, match="only for leaves"):
        (leaf([1.0]) * 2).register_post_accumulate_grad_hook(print)
    with pytest.raises(sg.GraphError, match="retain_grad"):
        const([1.0]).retain_grad()


def test_retain_grad() -> None:
    x = leaf([2.0])
    h = x * x
    h.retain_grad()
    h.retain_grad()
    x.retain_grad()  # nothing to do for a leaf
    assert h.retains_grad and not x.retains_grad
    h.register_hook(lambda g: g * 10)
    (h * 3).sum().backward(retain_graph=True)
    equal(h.grad, [30.0])  # after hooks
    equal(x.grad, [120.0])
    assert not np.shares_memory(h.grad.data, x.grad.data)


def test_retain_grad_does_not_keep_the_tensor_alive(no_gc: None) -> None:
    x = leaf([2.0])
    h = x * x
    h.retain_grad()
    y = (h * 3).sum()
    ref = weakref.ref(h)
    del h
    y.backward()
    assert ref() is None
    equal(x.grad, [12.0])


def test_post_accumulate_hooks_see_the_updated_grad() -> None:
    x = leaf([2.0])
    seen: list[float] = []

    def step(t: sg.Tensor) -> None:
        assert t is x
        seen.append(t.grad.item())
        t.grad = None

    handle = x.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        (x * x + x).sum().backward()
        assert x.grad is None
    assert seen == [5.0, 5.0]
    sg.grad((x * x).sum(), x)
    assert len(seen) == 2
    (x * x).sum().backward(inputs=[x])
    assert seen == [5.0, 5.0, 4.0]
    handle.remove()
    (x * x).sum().backward()
    equal(x.grad, [4.0])
