"""Who owns the memory of a gradient: `.grad`, cotangents, what rules saved.

Every expected number is a derivative worked out by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from byhand import const, equal, leaf


def test_grad_is_not_the_upstream_array() -> None:
    x = leaf([1.0, 2.0])
    upstream = const([3.0, 4.0])
    for make in (lambda x: x, lambda x: x + 0.0, lambda x: x.reshape(2, 1).reshape(2),
                 lambda x: x.clone(), lambda x: x.T):  # fmt: skip
        x.grad = None
        make(x).backward(upstream)
        make(x).backward(upstream)
        assert not np.shares_memory(x.grad.data, upstream.data)
        equal(upstream, [3.0, 4.0])
        equal(x.grad, [6.0, 8.0])


def test_two_leaves_do_not_share_a_gradient() -> None:
    a, b = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    ((a + b) * 3.0).sum().backward()
    assert not np.shares_memory(a.grad.data, b.grad.data)
    a.grad.zero_()
    equal(b.grad, [3.0, 3.0])
    (a - b).sum().backward()
    equal(a.grad, [1.0, 1.0])
    equal(b.grad, [2.0, 2.0])


def test_views_of_one_cotangent_stay_apart() -> None:
    """cat hands slices of one array to two leaves; one of them gets more afterwards."""
    a, b = leaf([1.0]), leaf([2.0, 3.0])
    more = a * 10.0 + b.sum() * 100.0
    ((sg.cat([a, b]) * const([1.0, 2.0, 3.0])).sum() + more.sum()).backward()
    equal(a.grad, [11.0])
    equal(b.grad, [102.0, 103.0])
    a.grad.zero_()
    equal(b.grad, [102.0, 103.0])


def test_a_saved_tensor_is_not_written_to() -> None:
    """d(x * c)/dx is c times 1: the engine must not add into c."""
    x, c = leaf([1.0, 2.0]), const([3.0, 4.0])
    other = x * 10.0
    (x * c + other).sum().backward()
    (x * c).sum().backward()
    equal(c, [3.0, 4.0])
    equal(x.grad, [16.0, 18.0])


def test_two_rules_that_return_one_memory_in_two_shapes(define: Any) -> None:
    @define
    def join_p(xp: Any, a: Any, b: Any) -> Any:
        return a + b.reshape(a.shape)

    join_p.defvjp(a=lambda g: g, b=lambda g, b_meta: g.reshape(*b_meta.shape))
    a, b = leaf([1.0, 2.0]), leaf([[3.0, 4.0]])
    early = a * 100.0
    (join_p(a, b) * 2.0 + early).sum().backward()
    equal(a.grad, [102.0, 102.0])
    equal(b.grad, [[2.0, 2.0]])


def test_a_rule_that_returns_what_it_saved(define: Any) -> None:
    @define
    def odd_p(xp: Any, a: Any, b: Any) -> Any:
        return a * b

    odd_p.defvjp(a=lambda g, b: b, b=lambda g, a: a)

    @define
    def odd_out_p(xp: Any, x: Any) -> Any:
        return xp.exp(x)

    odd_out_p.defvjp(x=lambda g, out: out)

    @define
    def odd_many_p(xp: Any, *xs: Any) -> Any:
        return xs[0] * xs[1]

    odd_many_p.defvjp(xs=lambda g, xs, needs: [xs[1], xs[0]])  # right for g = 1

    x, c = leaf([1.0, 2.0]), const([3.0, 4.0])
    for op in (lambda: odd_p(x, c), lambda: odd_many_p(x, c)):
        x.grad = None
        other = x * 10.0
        (op() + other).sum().backward()
        op().sum().backward()
        equal(c, [3.0, 4.0])
        equal(x.grad, [16.0, 18.0])
    x.grad = None
    other = x * 10.0
    y = odd_out_p(x)
    (y + other).sum().backward()
    equal(y, np.exp([1.0, 2.0]))
    equal(x.grad, np.exp([1.0, 2.0]) + 10)


def test_grad_accumulates_in_place_as_in_pytorch() -> None:
    x = leaf([1.0])
    (x * 2).sum().backward()
    held = x.grad
    (x * 2).sum().backward()
    assert x.grad is held
    equal(held, [4.0])


def test_parts_of_one_cotangent_are_gradients_that_share_nothing(define: Any) -> None:
    """Where the engine made it they are views of it, where the user did they are not."""
    given = const(np.ones((2, 5)))
    for mine in (False, True):
        tables = [leaf(np.ones((3, n))) for n in (2, 3)]
        out = sg.embedding_collection(tables, [[0, 1], [2, 1]])
        (out if mine else out * 2.0).backward(given)
        first, second = (table.grad.values for table in tables)
        assert (first.data.base is second.data.base is not None) != mine
        first.zero_()
        equal(second, np.full((2, 3), 1.0 if mine else 2.0))
        equal(given, np.ones((2, 5)))


def test_results_of_grad_are_not_changed_by_later_walks() -> None:
    x = leaf([1.0])
    y = (x * 2).sum()
    (g,) = sg.grad(y, x, retain_graph=True)
    y.backward(retain_graph=True)
    y.backward()
    equal(g, [2.0])
    h = x * 3
    z = (h + h * 1.0).sum()
    gh, gx = sg.grad(z, [h, x])
    gh.zero_()
    equal(gx, [6.0])


def test_setting_grad() -> None:
    x = leaf([1.0, 2.0])
    with pytest.raises(sg.ShapeError, match=r"grad: expected shape \(2,\)"):
        x.grad = const([1.0])
    with pytest.raises(TypeError, match="grad: expected a tensor"):
        x.grad = np.ones(2)
    x.grad = const([10.0, 20.0])
    (x * 2).sum().backward()
    equal(x.grad, [12.0, 22.0])
