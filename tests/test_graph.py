"""Graphs and walks: their shapes, what is freed, higher derivatives, `backward` and `grad`.

Every expected number is a derivative worked out by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from byhand import const, equal, leaf


# ---- shapes of graphs ---------------------------------------------------------------------------
def test_diamond() -> None:
    x = leaf([2.0, 3.0])
    h = x * x
    (h * h + h).sum().backward()  # x^4 + x^2
    equal(x.grad, [4 * 8 + 4, 4 * 27 + 6])


def test_shared_node_waits_for_all_of_its_cotangents() -> None:
    """A short and a long path into one node: a breadth-first walk visits it too early."""
    x = leaf([0.5])
    h = x * x
    long = h
    for _ in range(5):
        long = long * 2
    (long * h).sum().backward()  # 32 h^2 = 32 x^4
    equal(x.grad, [128 * 0.5**3])


def test_chain_of_diamonds_has_the_full_power() -> None:
    x = leaf([1.0])
    h = x
    for _ in range(64):
        h = h + h
    h.sum().backward()
    equal(x.grad, [2.0**64])


def test_reuse_on_both_sides_of_one_op() -> None:
    x = leaf([3.0])
    (x * x - x / x + x**x).sum().backward()
    equal(x.grad, [6 + 27 * (np.log(3) + 1)])


def test_broadcast_operands_get_their_own_shape() -> None:
    a, b, c = leaf(np.ones((3, 1))), leaf(np.ones(4)), leaf(2.0)
    g = np.arange(24.0).reshape(2, 3, 4)
    (a * b * c + const(np.zeros((2, 3, 4)))).backward(const(g))
    equal(a.grad, 2 * g.sum((0, 2)).reshape(3, 1))
    equal(b.grad, 2 * g.sum((0, 1)))
    equal(c.grad, g.sum())


def test_several_roots_and_one_twice() -> None:
    x = leaf([1.0, 2.0])
    y, z = x * 2, x * x
    sg.autograd.backward([y, z, y], [const([1.0, 1.0]), const([1.0, 10.0]), const([5.0, 0.0])])
    equal(x.grad, [2 + 2 + 10, 2 + 40])


def test_a_leaf_can_be_a_root() -> None:
    x = leaf([1.0, 2.0])
    x.backward(const([3.0, 4.0]))
    equal(x.grad, [3, 4])
    (g,) = sg.grad(x, x, const([5.0, 6.0]))
    equal(g, [5, 6])


def test_integer_and_comparison_results_are_not_recorded() -> None:
    x = leaf([1.0, 2.0])
    assert not (x > 1).requires_grad
    assert not x.argmax().requires_grad
    assert (x * (x > 1)).requires_grad


def test_what_needs_no_gradient_is_not_recorded() -> None:
    a, b = const([1.0]), leaf([2.0])
    assert (a * a).grad_fn is None
    assert (a * b).grad_fn.next_functions == ((b, 0),)


# ---- retain_graph, freed graphs -----------------------------------------------------------------
def test_second_backward_names_the_op_and_the_way_out() -> None:
    x = leaf([2.0])
    y = sg.exp(x * 3).sum()
    y.backward()
    before = x.grad.numpy().copy()
    with pytest.raises(sg.GraphError, match=r"saved by sum were freed.*retain_graph=True"):
        y.backward()
    np.testing.assert_array_equal(x.grad.numpy(), before)


def test_a_freed_part_of_a_larger_graph_is_an_error() -> None:
    x = leaf([2.0])
    h = sg.exp(x)
    h.sum().backward()
    with pytest.raises(sg.GraphError, match=r"saved by exp were freed"):
        (h * 2).sum().backward()


def test_retain_graph_allows_as_many_as_are_asked_for() -> None:
    x = leaf([2.0])
    y = (x**3).sum()
    for n in range(1, 4):
        y.backward(retain_graph=n < 3)
        equal(x.grad, [12.0 * n])
    with pytest.raises(sg.GraphError, match="saved by sum were freed"):
        y.backward(inputs=[x])


def test_create_graph_retains_unless_told_otherwise() -> None:
    x = leaf([2.0])
    y = (x**3).sum()
    sg.grad(y, x, create_graph=True)
    (g,) = sg.grad(y, x)
    equal(g, [12.0])
    y = (x**3).sum()
    sg.grad(y, x, create_graph=True, retain_graph=False)
    with pytest.raises(sg.GraphError, match="freed"):
        sg.grad(y, x)


def test_grad_frees_only_what_it_walked() -> None:
    x, z = leaf([2.0]), leaf([3.0])
    side = sg.exp(z)
    y = (sg.exp(x) * side).sum()
    sg.grad(y, side)  # stops at `side`
    (g,) = sg.grad(side.sum(), z)
    equal(g, [np.exp(3.0)])


# ---- higher derivatives -------------------------------------------------------------------------
def test_third_and_fourth_order() -> None:
    x = leaf([0.7, -1.3])
    d = sg.tanh(x)
    t = np.tanh(x.detach().numpy())
    s = 1 - t * t
    expected = [s, -2 * t * s, s * (6 * t * t - 2), s * t * (16 - 24 * t * t)]
    for order in expected:
        (d,) = sg.grad(d.sum(), x, create_graph=True)
        equal(d, order)


def test_mixed_derivatives() -> None:
    x, y = leaf(1.5), leaf(-0.5)
    z = x * x * y + sg.exp(x * y)
    gx, gy = sg.grad(z, [x, y], create_graph=True)
    e = np.exp(-0.75)
    equal(gx, 2 * 1.5 * -0.5 + -0.5 * e)
    equal(gy, 1.5**2 + 1.5 * e)
    gxx, gxy = sg.grad(gx, [x, y], retain_graph=True)
    equal(gxx, 2 * -0.5 + 0.25 * e)
    equal(gxy, 2 * 1.5 + e * (1 - 0.75))
    gyx, gyy = sg.grad(gy, [x, y])
    equal(gyx, 3 + 0.25 * e)
    equal(gyy, 2.25 * e)


def test_backward_with_create_graph_leaves_a_differentiable_grad() -> None:
    x = leaf([2.0])
    (x**3).sum().backward(create_graph=True)
    assert x.grad.requires_grad
    first = x.grad
    x.grad = None
    first.sum().backward()
    equal(x.grad, [12.0])
    assert not x.grad.requires_grad


def test_accumulation_under_create_graph_is_out_of_place() -> None:
    x = leaf([2.0])
    (x**2).sum().backward(create_graph=True)
    first = x.grad
    (x**3).sum().backward(create_graph=True)
    equal(first, [4.0])
    equal(x.grad, [16.0])
    (g,) = sg.grad(x.grad.sum(), x)
    equal(g, [2 + 12.0])


def test_without_create_graph_nothing_is_recorded() -> None:
    x = leaf([2.0])
    (g,) = sg.grad((x**3).sum(), x)
    assert not g.requires_grad
    (x**3).sum().backward()
    assert not x.grad.requires_grad


def test_create_graph_records_inside_no_grad() -> None:
    x = leaf([2.0])
    y = (x**3).sum()
    with sg.no_grad():
        (g,) = sg.grad(y, x, create_graph=True)
        y.backward(create_graph=True)
    assert g.requires_grad and x.grad.requires_grad
    (second,) = sg.grad(g.sum(), x)
    equal(second, [12.0])


def test_gradient_with_respect_to_the_upstream_gradient() -> None:
    x, u = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    (g,) = sg.grad(x * x, x, u, create_graph=True)
    (back,) = sg.grad(g, u, const([1.0, 10.0]))
    equal(back, [2.0, 40.0])


# ---- backward(inputs=...) -----------------------------------------------------------------------
def test_backward_into_chosen_inputs_only() -> None:
    x, z = leaf([2.0]), leaf([3.0])
    h = x * z
    (h * h).sum().backward(inputs=[x, h])
    equal(x.grad, [2 * 6 * 3.0])
    equal(h.grad, [12.0])
    assert z.grad is None


def test_inputs_named_twice_count_once() -> None:
    x = leaf([2.0])
    (x * 3).sum().backward(inputs=[x, x])
    equal(x.grad, [3.0])
    a, b = sg.grad((x * 3).sum(), [x, x])
    equal(a, [3.0])
    equal(b, [3.0])


def test_inputs_own_their_gradient() -> None:
    x = leaf([2.0])
    upstream = const([5.0])
    x.backward(upstream, inputs=[x])
    upstream.zero_()
    equal(x.grad, [5.0])


def test_inputs_with_create_graph_inside_no_grad() -> None:
    x = leaf([2.0])
    y = (x**3).sum()
    with sg.no_grad():
        y.backward(inputs=[x], create_graph=True)
    assert x.grad.requires_grad
    (g,) = sg.grad(x.grad.sum(), x)
    equal(g, [12.0])


def test_empty_inputs_are_refused() -> None:
    x = leaf([2.0])
    with pytest.raises(sg.GraphError, match="inputs must not be empty"):
        (x * 3).sum().backward(inputs=[])


def test_unused_inputs_of_backward_are_left_alone() -> None:
    x, z = leaf([2.0]), leaf([3.0])
    (x * 3).sum().backward(inputs=[x, z])
    assert z.grad is None


# ---- grad ---------------------------------------------------------------------------------------
def test_grad_of_unused_inputs() -> None:
    x, z = leaf([2.0]), leaf([3.0, 4.0])
    y = (x * x).sum()
    with pytest.raises(sg.GraphError, match=r"grad: input 1, of shape \(2,\), was not used"):
        sg.grad(y, [x, z], retain_graph=True)
    g, none = sg.grad(y, [x, z], allow_unused=True, retain_graph=True)
    equal(g, [4.0])
    assert none is None
    g, zeros = sg.grad(y, [x, z], materialize_grads=True)
    equal(zeros, [0.0, 0.0])
    assert zeros.dtype == sg.float64


def test_grad_touches_no_grad_attribute() -> None:
    x = leaf([2.0])
    h = x * x
    h.retain_grad()
    sg.grad((h * 3).sum(), x)
    assert x.grad is None
    assert h.grad is None


def test_grad_of_inner_results() -> None:
    x = leaf([2.0])
    h = x * x
    k = h * 3
    y = (k + h * h).sum()
    gh, gk, gx = sg.grad(y, [h, k, x])
    equal(gh, [3 + 8.0])
    equal(gk, [1.0])
    equal(gx, [44.0])


def test_grad_of_an_output_with_respect_to_itself() -> None:
    x = leaf([2.0])
    y = x * x
    g, gx = sg.grad(y, [y, x], const([3.0]))
    equal(g, [3.0])
    equal(gx, [12.0])


def test_grad_runs_no_rule_off_the_path(define: Any) -> None:
    calls: list[str] = []

    @define
    def tracked_p(xp: Any, a: Any, b: Any) -> Any:
        return a * b

    tracked_p.defvjp(
        a=lambda g, b: calls.append("a") or g * b, b=lambda g, a: calls.append("b") or g * a
    )
    a, b = leaf([2.0]), leaf([3.0])
    (g,) = sg.grad(tracked_p(tracked_p(a, b), b).sum(), a)
    equal(g, [9.0])
    assert calls == ["a", "a"]


def test_grad_of_constants_is_refused() -> None:
    x, c = leaf([2.0]), const([1.0])
    y = (x * c).sum()
    with pytest.raises(sg.GraphError, match=r"grad: .* does not require a gradient"):
        sg.grad(y, c)
    with pytest.raises(sg.GraphError, match=r"grad: .* does not require a gradient"):
        sg.grad((c * c).sum(), x)
    with pytest.raises(TypeError, match="grad: expected a tensor"):
        sg.grad(y, 3.0)


# ---- what is refused ----------------------------------------------------------------------------
def test_a_non_scalar_needs_a_gradient() -> None:
    x = leaf([1.0, 2.0])
    with pytest.raises(sg.GraphError, match=r"backward: a gradient of shape \(2,\) must be given"):
        (x * 2).backward()
    x1 = leaf([[3.0]])
    (x1 * 2).backward()  # one element counts as a scalar
    equal(x1.grad, [[2.0]])


@pytest.mark.parametrize("shape", [(3,), (1,), (), (2, 1), (1, 2)])
def test_an_upstream_gradient_of_another_shape(shape: tuple[int, ...]) -> None:
    x = leaf([1.0, 2.0])
    with pytest.raises(sg.ShapeError, match=r"backward: the gradient has shape .*output has \(2,"):
        (x * 2).backward(const(np.ones(shape)))
    assert x.grad is None


def test_as_many_upstream_gradients_as_outputs() -> None:
    x = leaf([1.0, 2.0])
    y = x * 2
    with pytest.raises(sg.ShapeError, match="2 outputs but 1 upstream"):
        sg.autograd.backward([y, y], [const([1.0, 1.0])])


def test_upstream_gradients_of_every_layout_and_dtype() -> None:
    g = np.arange(6.0).reshape(2, 3)
    wide = np.zeros((2, 3, 2))
    wide[..., 0] = g
    for upstream in (g, np.asfortranarray(g), wide[..., 0], g.astype(np.float32),
                     g.astype(np.int64), g.astype(np.float16)):  # fmt: skip
        x = leaf(np.ones((2, 3)))
        (x * 2).backward(sg.Tensor(upstream))
        x.grad = None
        (x * 2).backward(upstream)
        equal(x.grad, 2 * g)
        assert x.grad.dtype == sg.float64
    x = leaf(np.ones((2, 3)))
    (x * 2).backward(sg.Tensor(np.broadcast_to(np.float64(3.0), (2, 3))))
    equal(x.grad, np.full((2, 3), 6.0))
    x.grad.mul_(2.0)
    equal(x.grad, np.full((2, 3), 12.0))


def test_what_cannot_require_a_gradient() -> None:
    for dtype in (sg.int64, sg.uint8, sg.bool, sg.complex64):
        with pytest.raises(sg.DtypeError, match="requires_grad: only floating-point"):
            sg.tensor([1, 0], dtype=dtype, requires_grad=True)
        t = sg.tensor([1, 0], dtype=dtype)
        with pytest.raises(sg.DtypeError, match=str(np.dtype(dtype))):
            t.requires_grad_()
        assert not t.requires_grad
    with pytest.raises(sg.GraphError, match=r"result of mul.*detach"):
        (leaf([1.0]) * 2).requires_grad = False


def test_no_history_to_walk() -> None:
    with pytest.raises(sg.GraphError, match="does not require a gradient"):
        const(1.0).backward()
    x = leaf(1.0)
    with sg.no_grad():
        y = x * 2
    with pytest.raises(sg.GraphError, match="does not require a gradient"):
        y.backward()


def test_an_error_half_way_changes_no_grad() -> None:
    """Leaves that were reached before the failing op keep what they had."""
    x, late = leaf([2.0]), leaf([3.0])
    (x * 1.0 + late).sum().backward()
    before = x.grad.numpy().copy(), late.grad.numpy().copy()
    c = const([5.0])
    y = (sg.exp(x) * c + late).sum()  # `late` is delivered first
    c.zero_()
    with pytest.raises(sg.GraphError, match="mul"):
        y.backward()
    np.testing.assert_array_equal(x.grad.numpy(), before[0])
    np.testing.assert_array_equal(late.grad.numpy(), before[1])


def test_an_error_in_a_rule_says_where(define: Any) -> None:
    @define
    def broken_p(xp: Any, x: Any) -> Any:
        return x + 1

    broken_p.defvjp(x=lambda g: 1 / 0)
    x = leaf([2.0])
    with pytest.raises(ZeroDivisionError) as info:
        (broken_p(x) * 2).sum().backward()
    assert any("broken" in note for note in info.value.__notes__)
    assert x.grad is None
