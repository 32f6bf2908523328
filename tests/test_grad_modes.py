"""Recording on and off; detached tensors and in-place changes of what a graph holds.

Every expected number is a derivative worked out by hand.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from byhand import const, equal, leaf


# ---- recording on and off -----------------------------------------------------------------------
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
    def work(seed: int) -> None:
        for n in range(50):
            x = leaf([float(seed + n)])
            h = x
            for _ in range(20):
                h = h + x
            (h * x).sum().backward()  # 21 x^2
            equal(x.grad, [42.0 * (seed + n)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


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


# ---- detach, in-place changes -------------------------------------------------------------------
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
