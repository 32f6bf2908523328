"""The engine: graphs, walks, hooks, version counters, user functions, primitives.

Every expected number is a derivative worked out by hand.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad.engine.primitive import primitive, registry


def leaf(data: Any, dtype: Any = sg.float64) -> sg.Tensor:
    return sg.tensor(data, dtype=dtype, requires_grad=True)


def const(data: Any, dtype: Any = sg.float64) -> sg.Tensor:
    return sg.tensor(data, dtype=dtype)


def equal(found: Any, expected: Any) -> None:
    assert isinstance(found, sg.Tensor)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12, atol=1e-14)


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# ---- shapes of graphs --------------------------------------------------------------------------
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


# ---- retain_graph, freed graphs ----------------------------------------------------------------
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


# ---- higher derivatives ------------------------------------------------------------------------
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


# ---- recording on and off ----------------------------------------------------------------------
def test_no_grad_and_enable_grad_nest() -> None:
    x = leaf([1.0])
    assert sg.is_grad_enabled()
    with sg.no_grad():
        assert not sg.is_grad_enabled() and not (x * 2).requires_grad
        with sg.enable_grad():
            assert (x * 2).requires_grad
            with sg.set_grad_enabled(False):
                assert not (x * 2).requires_grad
            assert (x * 2).requires_grad
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_recording_comes_back_after_an_error() -> None:
    with pytest.raises(RuntimeError, match="on purpose"), sg.no_grad():
        raise RuntimeError("on purpose")
    assert sg.is_grad_enabled()
    x = leaf([1.0])
    h = x * 2
    h.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        h.sum().backward()
    assert sg.is_grad_enabled()


def test_decorators() -> None:
    x = leaf([1.0])

    @sg.no_grad()
    def quiet(n: int) -> Any:
        return quiet(n - 1) if n else x * 2

    @sg.enable_grad()
    def loud() -> Any:
        return x * 2

    assert not quiet(3).requires_grad
    assert quiet.__name__ == "quiet"
    with sg.no_grad():
        assert loud().requires_grad
        assert not quiet(0).requires_grad
    assert (x * 2).requires_grad


def test_one_switch_object_can_be_entered_again() -> None:
    switch = sg.no_grad()
    with switch:
        with switch:
            assert not sg.is_grad_enabled()
        assert not sg.is_grad_enabled()
    assert sg.is_grad_enabled()


def test_recording_is_per_thread() -> None:
    x = leaf([1.0])
    entered, go = threading.Barrier(2), threading.Barrier(2)
    seen: dict[str, bool] = {}

    def quiet() -> None:
        with sg.no_grad():
            entered.wait()
            seen["quiet"] = (x * 2).requires_grad
            go.wait()

    def loud() -> None:
        entered.wait()
        seen["loud"] = (x * 2).requires_grad
        go.wait()

    threads = [threading.Thread(target=f) for f in (quiet, loud)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert seen == {"quiet": False, "loud": True}
    with sg.no_grad():
        t = threading.Thread(target=lambda: seen.update(inner=(x * 2).requires_grad))
        t.start()
        t.join(30)
    assert seen["inner"]


def test_recording_is_per_task() -> None:
    x = leaf([1.0])

    async def quiet(entered: asyncio.Event, done: asyncio.Event) -> bool:
        with sg.no_grad():
            entered.set()
            await done.wait()
            return (x * 2).requires_grad

    async def loud(entered: asyncio.Event, done: asyncio.Event) -> bool:
        await entered.wait()
        result = (x * 2).requires_grad
        done.set()
        return result

    async def main() -> Any:
        entered, done = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(quiet(entered, done), loud(entered, done))

    assert asyncio.run(main()) == [False, True]


def test_threads_differentiate_their_own_graphs() -> None:
    failures: list[Any] = []

    def work(seed: int) -> None:
        try:
            for n in range(50):
                x = leaf([float(seed + n)])
                h = x
                for _ in range(20):
                    h = h + x
                (h * x).sum().backward()  # 21 x^2
                equal(x.grad, [42.0 * (seed + n)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert failures == []


# ---- detach, in-place changes ------------------------------------------------------------------
def test_detach_cuts_and_shares() -> None:
    x = leaf([2.0])
    d = (x * x).detach()
    assert not d.requires_grad and d.is_leaf
    (x * d).sum().backward()
    equal(x.grad, [4.0])
    assert np.shares_memory(x.detach().numpy(), x.data)


def changed(make: Any, change: Any, op: str) -> None:
    """`make` records with a leaf and a constant, `change` alters something afterwards."""
    x, c = leaf([1.0, 2.0]), const([3.0, 4.0])
    y = make(x, c)
    change(x, c, y)
    with pytest.raises(sg.GraphError, match=rf"{op} saved.*changed in place"):
        y.sum().backward()
    assert x.grad is None


def test_changing_a_saved_input() -> None:
    changed(lambda x, c: x * c, lambda x, c, y: c.zero_(), "mul")


def test_setting_an_item_of_a_saved_input() -> None:
    def set_item(x: Any, c: Any, y: Any) -> None:
        c[0] = 9.0

    changed(lambda x, c: x / c, set_item, "div")


def test_changing_a_saved_input_through_a_view() -> None:
    for view in (
        lambda c: c[:1],
        lambda c: c.reshape(2, 1),
        lambda c: c.T,
        lambda c: c.detach(),
        lambda c: c.detach().reshape(1, 2)[0],
        lambda c: c.astype(sg.float64),
    ):
        changed(lambda x, c: x * c, lambda x, c, y, view=view: view(c).add_(1.0), "mul")


def test_changing_what_a_saved_view_looks_into() -> None:
    x, c = leaf([[1.0], [2.0]]), const([3.0, 4.0])
    y = x * c.reshape(2, 1)
    c.mul_(2.0)
    with pytest.raises(sg.GraphError, match=r"mul saved.*changed in place"):
        y.sum().backward()


def test_changing_a_leaf_under_no_grad() -> None:
    x = leaf([1.0, 2.0])
    y = (x * x).sum()
    with sg.no_grad():
        x.sub_(0.1)
    with pytest.raises(sg.GraphError, match=r"mul saved.*changed in place"):
        y.backward()


def test_changing_a_saved_output() -> None:
    changed(lambda x, c: sg.exp(x), lambda x, c, y: y.detach().zero_(), "exp")
    changed(lambda x, c: sg.tanh(x), lambda x, c, y: y.detach()[:1].zero_(), "tanh")
    x = leaf([1.0, 2.0])
    y = sg.sqrt(x)
    with sg.no_grad():
        y.add_(1.0)
    with pytest.raises(sg.GraphError, match=r"sqrt saved.*changed in place"):
        y.sum().backward()


def test_changing_what_was_not_saved_is_legal() -> None:
    x, c = leaf([1.0, 2.0]), const([3.0, 4.0])
    y = (x + c) * 2.0
    c.zero_()
    with sg.no_grad():
        x.zero_()
        y.zero_()
    y.sum().backward()
    equal(x.grad, [2.0, 2.0])


def test_a_change_before_saving_is_legal() -> None:
    x, c = leaf([1.0, 2.0]), const([3.0, 4.0])
    c.add_(1.0)
    with sg.no_grad():
        x.mul_(2.0)
    (x * c + x * x).sum().backward()
    equal(x.grad, [4.0 + 4.0, 5.0 + 8.0])


def test_changing_a_copy_is_no_change() -> None:
    """Reshaping a transpose, or indexing with arrays, copies: the counters are not shared."""
    c = const(np.arange(6.0).reshape(2, 3))
    for copy in (
        lambda c: c.T.reshape(-1),
        lambda c: c[:, [0, 2]],
        lambda c: c[[1, 0]],
        lambda c: c[c > 1],
        lambda c: c.clone(),
    ):
        v = copy(c)
        x = leaf(np.ones(v.shape))
        y, expected = x * v, v.numpy().copy()
        c.add_(1.0)
        y.sum().backward()
        equal(x.grad, expected)


def test_changing_an_index_afterwards() -> None:
    """The backward of a gather uses the index of its forward, or refuses."""
    for gather in (lambda x, i: x[i], lambda x, i: x.take(i), lambda x, i: x.index_select(0, i)):
        x, i = leaf([1.0, 2.0, 3.0]), sg.tensor([0, 2])
        y = gather(x, i)
        i[0] = 1
        try:
            y.sum().backward()
        except sg.GraphError:
            continue
        g = x.grad
        equal(g.to_dense() if isinstance(g, sg.SparseTensor) else g, [1.0, 0.0, 1.0])


def test_changing_a_mask_afterwards() -> None:
    x, mask = leaf([1.0, 2.0]), sg.tensor([True, False])
    y, z = sg.where(mask, x, 0.0), x[mask]
    mask[0] = False
    try:
        (y.sum() + z.sum()).backward()
    except sg.GraphError:
        return
    equal(x.grad, [2.0, 0.0])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.__setitem__(0, 1.0), r"t\[i\] = v: .*requires a gradient.*sg\.where"),
        (lambda t: t.add_(1.0), r"add_: .*requires a gradient.*sg\.add"),
        (lambda t: t.sub_(1.0), r"sub_: .*requires a gradient.*sg\.sub"),
        (lambda t: t.mul_(2.0), r"mul_: .*requires a gradient.*sg\.mul"),
        (lambda t: t.div_(2.0), r"div_: .*requires a gradient.*sg\.div"),
        (lambda t: t.zero_(), r"zero_: .*requires a gradient.*sg\.zeros"),
        (lambda t: t.fill_(2.0), r"fill_: .*requires a gradient.*sg\.full"),
        (lambda t: t.copy_(const([1.0])), r"copy_: .*requires a gradient"),
    ],
)
def test_in_place_on_what_requires_grad_names_the_functional_form(change: Any, text: str) -> None:
    for t in (leaf([1.0, 2.0]), leaf([1.0, 2.0]) * 1.0):
        before = t.detach().numpy().copy()
        with pytest.raises(sg.GraphError, match=text):
            change(t)
        np.testing.assert_array_equal(t.detach().numpy(), before)


def test_writing_a_value_that_requires_grad_is_refused() -> None:
    t = const([1.0, 2.0])
    with pytest.raises(sg.GraphError, match="value requires a gradient"):
        t[0] = leaf(1.0)
    equal(t, [1.0, 2.0])


def test_in_place_results_keep_shape_and_dtype() -> None:
    t = const([1.0, 2.0])
    with pytest.raises(sg.ShapeError, match=r"add_: .*\(3, 2\)"):
        t.add_(const(np.ones((3, 2))))
    i = sg.tensor([1, 2])
    with pytest.raises(sg.DtypeError, match="mul_: a float32 result"):
        i.mul_(1.5)
    equal(t, [1.0, 2.0])
    assert i.tolist() == [1, 2]


# ---- hooks -------------------------------------------------------------------------------------
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


# ---- backward(inputs=...) ----------------------------------------------------------------------
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


# ---- grad --------------------------------------------------------------------------------------
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


# ---- what is refused ---------------------------------------------------------------------------
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


# ---- who owns .grad ----------------------------------------------------------------------------
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


# ---- Function ----------------------------------------------------------------------------------
class Cube(sg.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class Exp(sg.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = sg.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0]


def test_function_that_saves_an_input() -> None:
    x = leaf([2.0])
    y = Cube.apply(x)
    assert y.grad_fn.name == "Cube"
    equal(y, [8.0])
    y.sum().backward()
    equal(x.grad, [12.0])
    with pytest.raises(sg.GraphError, match="saved by Cube were freed"):
        y.sum().backward()


def test_function_to_third_order() -> None:
    x = leaf([2.0])
    d = Cube.apply(x)
    for expected in (12.0, 12.0, 6.0):
        (d,) = sg.grad(d.sum(), x, create_graph=True)
        equal(d, [expected])
    d = Exp.apply(x)
    for _ in range(3):
        (d,) = sg.grad(d.sum(), x, create_graph=True)
        equal(d, [np.exp(2.0)])
    sg.gradcheck(Cube.apply, x)
    sg.gradgradcheck(Exp.apply, x)


def test_function_checks_what_it_saved() -> None:
    x, c = leaf([2.0]), const([3.0])

    class Scale(sg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, c: Any) -> Any:
            ctx.save_for_backward(c)
            return x * c

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0], None

    y = Scale.apply(x, c)
    c.add_(1.0)
    with pytest.raises(sg.GraphError, match="Scale saved was changed in place"):
        y.sum().backward()
    y = Exp.apply(x)
    y.detach().zero_()
    with pytest.raises(sg.GraphError, match="Exp saved was changed in place"):
        y.sum().backward()


def test_function_knows_which_gradients_are_needed() -> None:
    seen: list[Any] = []

    class Probe(sg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, k: float, b: Any) -> Any:
            return a * k + b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(ctx.needs_input_grad)
            return g * 5, None, g * 7 if ctx.needs_input_grad[2] else None

    a, b = leaf([1.0]), const([2.0])
    Probe.apply(a, 5, b).sum().backward()
    assert seen == [(True, False, False)]
    equal(a.grad, [5.0])
    assert Probe.apply(b, 5, b).grad_fn is None
    with sg.no_grad():
        assert Probe.apply(a, 5, b).grad_fn is None


class TwoOutputs(sg.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2, x * x

    @staticmethod
    def backward(ctx: Any, g0: Any, g1: Any) -> Any:
        assert isinstance(g0, sg.Tensor) and isinstance(g1, sg.Tensor)
        return g0 * 2 + g1 * 10


def test_function_with_several_outputs_gets_zeros_for_unused_ones() -> None:
    x = leaf([3.0, 4.0])
    a, b = TwoOutputs.apply(x)
    assert a.grad_fn is b.grad_fn
    (g,) = sg.grad(a.sum(), x, retain_graph=True)
    equal(g, [2.0, 2.0])
    (g,) = sg.grad(b.sum(), x, retain_graph=True)
    equal(g, [10.0, 10.0])
    (a * b).sum().backward()  # 2 x^2 * 2 + 2x * 10
    equal(x.grad, [2 * 9 + 60.0, 2 * 16 + 80.0])
    ga, gb = sg.grad(sg.cat(TwoOutputs.apply(x)), [x, x], const([1.0, 1.0, 1.0, 1.0]))
    equal(ga, [12.0, 12.0])
    equal(gb, [12.0, 12.0])


def test_function_with_integer_outputs() -> None:
    class Split(sg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2, x.argmax()

        @staticmethod
        def backward(ctx: Any, g: Any, _: Any) -> Any:
            return g * 2

    x = leaf([3.0, 4.0])
    y, at = Split.apply(x)
    assert at.item() == 1 and not at.requires_grad
    y.sum().backward()
    equal(x.grad, [2.0, 2.0])


def test_function_with_no_gradient_at_all() -> None:
    class Stop(sg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return None

    x = leaf([3.0])
    (Stop.apply(x) + x * 2).sum().backward()
    equal(x.grad, [2.0])
    (g,) = sg.grad(Stop.apply(x).sum(), x, allow_unused=True)
    assert g is None


def test_function_with_the_wrong_number_of_gradients() -> None:
    class Wrong(sg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            return a + b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    a, b = leaf([1.0]), leaf([2.0])
    with pytest.raises(sg.GraphError, match=r"Wrong.backward: expected 2 gradients.*got 1"):
        Wrong.apply(a, b).sum().backward()
    assert a.grad is None and b.grad is None


def test_function_whose_gradient_has_the_wrong_shape_or_type() -> None:
    def function(result: Any) -> Any:
        class Odd(sg.Function):
            @staticmethod
            def forward(ctx: Any, a: Any) -> Any:
                return a * 1.0

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return result

        return Odd

    a = leaf([1.0, 2.0])
    with pytest.raises(sg.GraphError, match=r"Odd: a rule returned shape \(3,\) .*\(2,\)"):
        function(const(np.ones(3))).apply(a).sum().backward()
    with pytest.raises(sg.GraphError, match="Odd: a rule returned ndarray"):
        function(np.ones(2)).apply(a).sum().backward()
    with pytest.raises(TypeError, match=r"forward: expected tensors, got float"):
        type("Bad", (sg.Function,), {"forward": staticmethod(lambda ctx, x: 1.0)}).apply(a)
    assert a.grad is None


def test_function_gradients_that_alias_one_another() -> None:
    """backward returns its upstream gradient twice, in two shapes; one leaf then gets more."""

    class Join(sg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            return a + b.reshape(*a.shape)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, g.reshape(1, 2)

    a, b = leaf([1.0, 2.0]), leaf([[3.0, 4.0]])
    early = a * 100.0
    (Join.apply(a, b) * 2.0 + early).sum().backward()
    equal(a.grad, [102.0, 102.0])
    equal(b.grad, [[2.0, 2.0]])


def test_function_gradients_that_the_user_keeps() -> None:
    """What backward returns may be anyone's: the engine never adds into it."""
    kept = const([7.0, 8.0])

    class Fixed(sg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, c: Any) -> Any:
            ctx.save_for_backward(c)
            ctx.by_hand = kept
            return a * 1.0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return (ctx.saved_tensors[0] if ctx.saved_tensors[0].data[0] else ctx.by_hand), None

    a = leaf([1.0, 2.0])
    for c, expected in ((const([3.0, 4.0]), [3.0, 4.0]), (const([0.0, 0.0]), [7.0, 8.0])):
        a.grad = None
        before = c.numpy().copy()
        early = a * 100.0
        (Fixed.apply(a, c) + early).sum().backward()
        equal(a.grad, np.add(expected, 100))
        Fixed.apply(a, c).sum().backward()
        a.grad = None
        Fixed.apply(a, c).sum().backward()
        Fixed.apply(a, c).sum().backward()
        equal(a.grad, np.multiply(expected, 2))
        equal(kept, [7.0, 8.0])
        equal(c, before)


def test_function_that_returns_its_input() -> None:
    class Through(sg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * x

    x = leaf([3.0])
    y = Through.apply(x)
    assert y is not x and y.requires_grad and x.is_leaf
    (g,) = sg.grad(y.sum(), x, create_graph=True)
    equal(g, [3.0])
    (second,) = sg.grad(g.sum(), x)  # the saved x is the input, not the output
    equal(second, [1.0])


def test_function_of_sparse_arguments() -> None:
    class Square(sg.Function):
        @staticmethod
        def forward(ctx: Any, A: Any) -> Any:
            ctx.save_for_backward(A)
            return A.with_values(A.values * A.values)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (A,) = ctx.saved_tensors
            assert isinstance(A, sg.SparseTensor) and isinstance(g, sg.SparseTensor)
            return g.with_values(g.values * 2 * A.values)

    A = sg.coo([[0, 1], [1, 0]], const([2.0, 3.0]), (2, 2), requires_grad=True)
    B = Square.apply(A)
    assert isinstance(B, sg.SparseTensor)
    B.backward(sg.coo([[0, 1], [1, 0]], const([1.0, 10.0]), (2, 2)))
    equal(A.grad.values, [4.0, 60.0])
    (g,) = sg.grad(Square.apply(A).sum(), A, create_graph=True)
    assert g.pattern.same_as(A.pattern)
    (second,) = sg.grad(g.sum(), A)
    equal(second.values, [2.0, 2.0])


def test_function_that_saves_a_sparse_output() -> None:
    class SparseExp(sg.Function):
        @staticmethod
        def forward(ctx: Any, A: Any) -> Any:
            out = A.with_values(sg.exp(A.values))
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (out,) = ctx.saved_tensors
            return g.with_values(g.values * out.values)

    A = sg.coo([[0, 1], [1, 0]], const([2.0, 3.0]), (2, 2), requires_grad=True)
    (g,) = sg.grad(SparseExp.apply(A).sum(), A, create_graph=True)
    equal(g.values, np.exp([2.0, 3.0]))
    (second,) = sg.grad(g.sum(), A)
    equal(second.values, np.exp([2.0, 3.0]))


def test_function_gives_a_sparse_gradient_to_a_dense_argument() -> None:
    class Row(sg.Function):
        @staticmethod
        def forward(ctx: Any, w: Any) -> Any:
            ctx.shape = w.shape
            return w[1] * 1.0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return sg.coo([[1]], g.reshape(1, -1), ctx.shape)

    w = leaf(np.arange(6.0).reshape(3, 2))
    (Row.apply(w) * const([5.0, 7.0])).sum().backward()
    assert isinstance(w.grad, sg.SparseTensor)
    equal(w.grad.to_dense(), [[0, 0], [5, 7], [0, 0]])


def test_function_refuses_a_gradient_off_the_pattern() -> None:
    class Off(sg.Function):
        @staticmethod
        def forward(ctx: Any, A: Any) -> Any:
            return A * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return sg.coo([[1, 0], [1, 0]], const([1.0, 2.0]), (2, 2))

    A = sg.coo([[0, 1], [1, 0]], const([2.0, 3.0]), (2, 2), requires_grad=True)
    with pytest.raises(sg.GraphError, match=r"Off.backward: .*must lie on its pattern"):
        Off.apply(A).sum().backward()
    assert A.grad is None


def test_function_with_a_sparse_upstream_gradient() -> None:
    """A gather after a Function sends a row-sparse gradient back: matrix rules still work."""

    class MatMul(sg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, w: Any) -> Any:
            ctx.save_for_backward(a, w)
            return a @ w

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            a, w = ctx.saved_tensors
            return g @ w.T, a.T @ g

    a, w = leaf(np.arange(6.0).reshape(3, 2)), leaf([[1.0, 2.0], [3.0, 4.0]])
    MatMul.apply(a, w).take(sg.tensor([1])).sum().backward()
    equal(a.grad, [[0, 0], [3, 7], [0, 0]])
    equal(w.grad, [[2, 2], [3, 3]])


def test_function_frees_what_it_saved(no_gc: None) -> None:
    x = leaf([2.0])
    h = x * 2
    y = Cube.apply(h)
    ref = weakref.ref(h)
    del h
    assert ref() is not None
    y.sum().backward()
    assert ref() is None
    node = weakref.ref(y.grad_fn)
    del y
    assert node() is None
    y = Exp.apply(x)
    node = weakref.ref(y.grad_fn)
    del y
    assert node() is None


# ---- primitives --------------------------------------------------------------------------------
@pytest.fixture
def define() -> Iterator[Any]:
    """`primitive`, and a registry without what the test defined afterwards."""
    before = set(registry)
    yield primitive
    for name in set(registry) - before:
        del registry[name]


def test_primitive_with_several_outputs(define: Any) -> None:
    @define(outputs=("s", "d"))
    def sumdiff_p(xp: Any, a: Any, b: Any) -> Any:
        return a + b, a * b

    sumdiff_p.defvjp(a=lambda g, b: g[0] + g[1] * b, b=lambda g, a: g[0] + g[1] * a)
    a, b = leaf([2.0]), leaf([3.0])
    s, d = sumdiff_p(a, b)
    assert s.grad_fn is d.grad_fn
    ga, gb = sg.grad(s.sum(), [a, b], retain_graph=True)
    equal(ga, [1.0])
    ga, gb = sg.grad(d.sum(), [a, b], retain_graph=True)
    equal(ga, [3.0])
    ga, gb = sg.grad((s * d).sum(), [a, b], create_graph=True)  # (a + b) a b
    equal(ga, [2 * 6 + 9.0])
    equal(gb, [4 + 2 * 2 * 3.0])
    (gab,) = sg.grad(ga.sum(), b)
    equal(gab, [2 * 2 + 2 * 3.0])


def test_primitive_with_named_outputs_in_rules(define: Any) -> None:
    @define(outputs=("e", "square"))
    def pair_p(xp: Any, x: Any) -> Any:
        return xp.exp(x), x * x

    pair_p.defvjp(x=lambda g, e, x: g[0] * e + g[1] * 2 * x)
    x = leaf([1.5])
    e, square = pair_p(x)
    (d,) = sg.grad((e * square).sum(), x, create_graph=True)
    ex = np.exp(1.5)
    equal(d, [ex * (2.25 + 3)])
    (d2,) = sg.grad(d.sum(), x)
    equal(d2, [ex * (2.25 + 3 + 3 + 2)])
    e2, _ = pair_p(x)
    e2.detach().zero_()
    with pytest.raises(sg.GraphError, match=r"pair saved.*changed in place"):
        e2.sum().backward()


def test_primitive_with_residuals(define: Any) -> None:
    @define(aux=("mask",))
    def clip_p(xp: Any, x: Any, *, low: float) -> Any:
        mask = x > low
        return xp.where(mask, x, low), mask

    clip_p.defvjp(x=lambda g, mask: g * sg.Tensor(mask))
    x = leaf([1.0, -1.0, 3.0])
    y = clip_p(x, low=0.5)
    assert isinstance(y, sg.Tensor)
    equal(y, [1.0, 0.5, 3.0])
    y.backward(const([2.0, 3.0, 4.0]))
    equal(x.grad, [2.0, 0.0, 4.0])


def test_joint_rule_is_told_what_is_needed(define: Any) -> None:
    seen: list[Any] = []

    @define
    def joint_p(xp: Any, a: Any, b: Any, c: Any) -> Any:
        return a * b + c

    def rule(g: Any, a: Any, b: Any, needs: Any) -> Any:
        seen.append(needs)
        return (g * b if needs[0] else None), (g * a if needs[1] else None)

    joint_p.defvjp(("a", "b"), rule, c=lambda g: g)
    a, b, c = leaf([2.0]), leaf([3.0]), leaf([5.0])
    joint_p(a, b, c).sum().backward()
    equal(a.grad, [3.0])
    equal(b.grad, [2.0])
    equal(c.grad, [1.0])
    sg.grad(joint_p(a, b, c).sum(), b)
    joint_p(a, const([3.0]), c).sum().backward()
    sg.grad(joint_p(a, b, c).sum(), c)  # the joint rule does not run
    assert seen == [(True, True), (False, True), (True, False)]


def test_variadic_primitive(define: Any) -> None:
    @define
    def total_p(xp: Any, *xs: Any, scale: float = 1.0) -> Any:
        return scale * sum(xs)

    total_p.defvjp(
        xs=lambda g, xs_meta, scale, needs: [
            g * scale if n else None for n, m in zip(needs, xs_meta, strict=True)
        ]
    )
    a, b, c = leaf([1.0]), const([2.0]), leaf([3.0])
    out = total_p(a, b, c, scale=4.0)
    equal(out, [24.0])
    out.sum().backward()
    equal(a.grad, [4.0])
    equal(c.grad, [4.0])
    assert total_p(b, b).grad_fn is None
    total_p(a).sum().backward()
    equal(a.grad, [5.0])


def test_variadic_primitive_checks_its_saved_inputs(define: Any) -> None:
    @define
    def product_p(xp: Any, *xs: Any) -> Any:
        return xs[0] * xs[1]

    product_p.defvjp(xs=lambda g, xs, needs: [g * xs[1], g * xs[0]])
    a, b = leaf([2.0]), const([3.0])
    y = product_p(a, b)
    b.add_(1.0)
    with pytest.raises(sg.GraphError, match=r"product saved.*changed in place"):
        y.sum().backward()
    b = const([3.0])
    b.add_(1.0)
    product_p(a, b).sum().backward()
    equal(a.grad, [4.0])


def test_optional_input(define: Any) -> None:
    @define
    def affine_p(xp: Any, x: Any, w: Any, b: Any = None) -> Any:
        return x * w if b is None else x * w + b

    affine_p.defvjp(x=lambda g, w: g * w, w=lambda g, x: g * x, b=lambda g: g)
    x, w, b = leaf([2.0]), leaf([3.0]), leaf([1.0])
    for args in ((x, w), (x, w, None)):
        for t in (x, w):
            t.grad = None
        affine_p(*args).sum().backward()
        equal(x.grad, [3.0])
        equal(w.grad, [2.0])
    affine_p(x, w, b).sum().backward()
    equal(b.grad, [1.0])
    equal(x.grad, [6.0])


def test_optional_input_named_by_a_rule(define: Any) -> None:
    @define
    def scaled_p(xp: Any, x: Any, s: Any = None) -> Any:
        return x * 1.0 if s is None else x * s

    scaled_p.defvjp(x=lambda g, s, s_meta: g if s is None else g * s, s=lambda g, x: g * x)
    x, s = leaf([2.0]), leaf([3.0])
    for args, expected in (((x,), 1.0), ((x, None), 1.0), ((x, s), 3.0)):
        (g,) = sg.grad(scaled_p(*args).sum(), x)
        equal(g, [expected])


def test_statics_with_defaults_reach_rules(define: Any) -> None:
    @define
    def power_p(xp: Any, x: Any, *, n: int = 2) -> Any:
        return x**n

    power_p.defvjp(x=lambda g, x, n: g * n * x ** (n - 1))
    x = leaf([3.0])
    (g,) = sg.grad(power_p(x).sum(), x)
    equal(g, [6.0])
    (g,) = sg.grad(power_p(x, n=3).sum(), x)
    equal(g, [27.0])


def test_meta_gives_shape_and_dtype_without_the_tensor(define: Any, no_gc: None) -> None:
    @define
    def first_p(xp: Any, x: Any) -> Any:
        return x[:1].copy()

    first_p.defvjp(x=lambda g, x_meta: g * sg.ones(x_meta.shape, dtype=x_meta.dtype))
    h = leaf([1.0, 2.0, 3.0]) * 1.0
    y = first_p(h)
    ref = weakref.ref(h)
    del h
    assert ref() is None
    y.sum().backward()


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (lambda p: p.defvjp(z=lambda g: g), r"bad_p: no differentiable input 'z'"),
        (lambda p: p.defvjp(k=lambda g: g), r"bad_p: no differentiable input 'k'"),
        (lambda p: p.defvjp(x=lambda g, q: g), r"bad_p: .*unknown \['q'\]"),
        (lambda p: p.defvjp(x=lambda g, needs: g), r"unknown \['needs'\]"),
        (lambda p: p.defvjp(x=lambda x: x), r"first parameter of a rule must be 'g'"),
        (lambda p: p.defvjp(x=lambda: None), r"first parameter of a rule must be 'g'"),
        (lambda p: p.defvjp(("x", "q"), lambda g: g), r"no differentiable input 'q'"),
        (lambda p: p.defvjp(("x", "y"), lambda g, needs, x: g), r"'needs' must be the last"),
        (lambda p: p.defvjp(x=lambda g: g).defvjp(x=lambda g: g), r"input 'x' has two rules"),
    ],
)
def test_bad_rules_fail_where_they_are_defined(define: Any, rules: Any, text: str) -> None:
    @define
    def bad_p(xp: Any, x: Any, y: Any, *, k: int = 0) -> Any:
        return x + y

    with pytest.raises(TypeError, match=text):
        rules(bad_p)


def test_bad_primitives_fail_where_they_are_defined(define: Any) -> None:
    with pytest.raises(TypeError, match="first parameter must be 'xp' or 'be'"):
        define(lambda x: x)
    with pytest.raises(ValueError, match="promote"):
        define(promote="up")(lambda xp, x: x)

    @define
    def twice_p(xp: Any, x: Any) -> Any:
        return x

    with pytest.raises(TypeError, match="defined twice"):

        @define
        def twice_p(xp: Any, x: Any) -> Any:
            return x


def test_a_rule_that_returns_no_tensor(define: Any) -> None:
    @define
    def wrong_p(xp: Any, x: Any) -> Any:
        return x + 1

    wrong_p.defvjp(x=lambda g: 3.0)
    x = leaf([1.0])
    with pytest.raises(sg.GraphError, match="backward of wrong: a rule returned float"):
        wrong_p(x).sum().backward()
    assert x.grad is None


def test_errors_name_op_and_arguments() -> None:
    a, b = const(np.ones((2, 3))), const(np.ones((4, 3)))
    with pytest.raises(sg.ShapeError, match=r"mul: .*Tensor\(2, 3\) float64.*Tensor\(4, 3\)"):
        a * b
    with pytest.raises(TypeError, match=r"mul: expected a tensor, array or number, got object"):
        sg.mul(a, object())
    with pytest.raises(TypeError, match="exp"):
        sg.exp("text")


# ---- depth and memory --------------------------------------------------------------------------
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


def test_switches_as_functions_and_bare_decorators() -> None:
    x = leaf([1.0])

    @sg.no_grad
    def bare(x: sg.Tensor) -> bool:
        return (x * 2).requires_grad

    @sg.set_grad_enabled(False)
    def off(x: sg.Tensor) -> bool:
        return (x * 2).requires_grad

    @sg.no_grad()
    def three(x: sg.Tensor) -> Iterator[bool]:
        for _ in range(3):
            yield (x * 2).requires_grad

    assert not bare(x)
    assert not off(x)
    seen = []
    for item in three(x):
        seen += [item, (x * 2).requires_grad]
    assert seen == [False, True] * 3
    assert sg.is_grad_enabled()
    sg.set_grad_enabled(False)
    try:
        assert not (x * 2).requires_grad
    finally:
        sg.set_grad_enabled(True)
    assert (x * 2).requires_grad
