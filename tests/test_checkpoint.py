"""Checkpointing gives the gradients of the plain call, with sparse ones sparse."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg


def gradients(run: Any, checkpointed: bool) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = sg.tensor(rng.standard_normal((4, 3)), requires_grad=True)
    w = sg.tensor(rng.standard_normal((3, 3)), requires_grad=True)
    A = sg.coo([[0, 1, 3], [2, 0, 1]], rng.standard_normal(3), (4, 4), requires_grad=True)
    sg.manual_seed(1)
    call = sg.checkpoint if checkpointed else (lambda fn, *args: fn(*args))
    out = run(call, x * 2, w, A)
    (out * sg.tensor(rng.standard_normal(out.shape))).sum().backward()
    return x.grad.numpy(), w.grad.numpy(), A.grad.values.numpy()


RUNS = {
    "arguments": lambda call, x, w, A: call(lambda x, w, A: sg.tanh(A @ x @ w), x, w, A),
    "closure": lambda call, x, w, A: call(lambda x: sg.tanh(A @ x @ w), x),
    "dropout": lambda call, x, w, A: call(lambda x: sg.dropout(A @ x, 0.5) @ w, x),
    "sparse result": lambda call, x, w, A: call(lambda A: A * A, A) @ (x @ w),
    "several": lambda call, x, w, A: (lambda p: p[0] * p[1])(
        call(lambda x, w: ((A @ x) @ w, sg.tanh(x)), x, w)
    ),
    "nested": lambda call, x, w, A: call(lambda x: call(lambda y: sg.tanh(A @ y), x) @ w, x),
}


@pytest.mark.parametrize("run", RUNS)
def test_gradients_are_those_of_the_plain_call(run: str) -> None:
    plain, again = gradients(RUNS[run], False), gradients(RUNS[run], True)
    for expected, found in zip(plain, again, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_random_numbers_go_on_as_without() -> None:
    x = sg.ones(3, requires_grad=True)
    draws = []
    for call in (sg.checkpoint, lambda fn, *args: fn(*args)):
        sg.manual_seed(3)
        out = call(lambda x: sg.dropout(x), x)
        first = sg.randn(2).numpy()
        out.sum().backward()
        draws.append((first, sg.randn(2).numpy()))
    np.testing.assert_array_equal(draws[0], draws[1])


def test_second_derivatives() -> None:
    x = sg.tensor([0.3, -0.7], dtype=sg.float64, requires_grad=True)
    assert sg.gradgradcheck(lambda x: sg.checkpoint(lambda y: sg.tanh(y) * y, x * 2), x)


def test_sparse_gradients_stay_sparse() -> None:
    w = sg.ones(1000, 2, requires_grad=True)
    with sg.densify(budget=0, on_exceed="raise"):
        sg.checkpoint(
            lambda ids: sg.tanh(sg.embedding(w, ids)), sg.tensor([7, 3, 7])
        ).sum().backward()
    assert isinstance(w.grad, sg.SparseTensor)
    assert w.grad.coalesce().row.tolist() == [3, 7]
    slope = 1 - np.tanh(1) ** 2
    np.testing.assert_allclose(
        w.grad.coalesce().values.numpy(), [[slope] * 2, [2 * slope] * 2], 1e-6
    )


def test_nothing_inside_is_kept() -> None:
    kept: list[Any] = []

    def fn(x: sg.Tensor) -> sg.Tensor:
        y = x * 3.0
        kept.append(weakref.ref(y))
        return y * y

    x = sg.ones(4, requires_grad=True)
    out = sg.checkpoint(fn, x * 1.0)
    gc.collect()
    assert kept[0]() is None
    out.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [18.0] * 4)


def test_what_is_refused() -> None:
    x = sg.ones(2, requires_grad=True)
    c = sg.ones(2)
    out = sg.checkpoint(lambda x, c: x * c, x, c)
    c.zero_()
    with pytest.raises(sg.GraphError, match="argument of checkpoint was changed in place"):
        out.sum().backward()
    out = sg.checkpoint(lambda x: x * 2, x).sum()
    out.backward()
    with pytest.raises(sg.GraphError, match="freed by an earlier backward"):
        out.backward()
    with pytest.raises(TypeError, match="checkpoint: fn must return tensors, got int"):
        sg.checkpoint(lambda x: 3, x)
    with sg.no_grad():
        assert not sg.checkpoint(lambda x: x * 2, x).requires_grad
