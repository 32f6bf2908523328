"""Anomaly mode: messages name the op and the line of this file that called it."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest

import sparsegrad as sg
from sparsegrad.engine.graph import Node
from sparsegrad.engine.node import PrimitiveNode
from sparsegrad.engine.primitive import Primitive
from sparsegrad.errors import AnomalyError


def here(text: str) -> str:
    """The place in this file of the only line of the calling function that has `text`."""
    code = inspect.currentframe().f_back.f_code  # type: ignore[union-attr]
    lines, start = inspect.getsourcelines(code)
    (at,) = [i for i, line in enumerate(lines) if text in line and "here(" not in line]
    return f"{__file__}:{start + at}, in {code.co_name}"


def zeros(*more: float) -> sg.Tensor:
    return sg.tensor([0.0, *more], requires_grad=True)


def test_a_result_of_nan() -> None:
    x = sg.tensor([-1.0, 1.0], requires_grad=True)
    with sg.detect_anomaly(), pytest.raises(AnomalyError) as error:
        sg.log(x * 1)
    text = "log: 1 of 2 elements of its result are NaN, none of its inputs is; it was called at "
    assert text + here("sg.log(x * 1)") + ":\n    sg.log(x * 1)" in str(error.value)


def test_nan_that_was_there_before_is_nobodys_fault() -> None:
    x = sg.tensor([float("nan"), 1.0], requires_grad=True)
    with sg.detect_anomaly():
        y = sg.masked_fill(x * 2, sg.tensor([False, True]), float("nan"))
        with sg.no_grad():
            sg.log(-sg.ones(1))  # not recorded, as in PyTorch
    assert sg.isnan(y).all()


def test_a_gradient_of_nan() -> None:
    x = zeros(4.0)
    with sg.detect_anomaly():
        y = sg.sqrt(x) * 0.0
        with pytest.raises(AnomalyError) as error:
            y.sum().backward()
    assert str(error.value) == (
        "backward of sqrt: 1 of 2 elements of the gradient of x are NaN, none of what arrived is; "
        f"sqrt was called at {here('sg.sqrt(x)')}:\n    y = sg.sqrt(x) * 0.0"
    )
    assert x.grad is None


def test_a_forward_that_was_not_watched() -> None:
    y = (sg.sqrt(zeros()) * 0.0).sum()
    with sg.detect_anomaly(), pytest.raises(AnomalyError, match=r"of x are NaN.*; call it inside"):
        y.backward()


def test_a_gradient_of_nan_in_a_sparse_op() -> None:
    A = sg.coo([[0, 1], [1, 0]], [0.0, 1.0], (2, 2), requires_grad=True)
    with sg.detect_anomaly():
        y = sg.sqrt(A) @ sg.zeros(2, 1)
        with pytest.raises(AnomalyError) as error:
            y.sum().backward()
    assert f"sqrt was called at {here('sg.sqrt(A)')}" in str(error.value)
    with sg.detect_anomaly(), pytest.raises(AnomalyError, match="mul: 1 of 2 elements of its"):
        A * (sg.ones(2, 2) * float("inf"))


def test_the_gradient_of_a_gradient() -> None:
    x = zeros()
    with sg.detect_anomaly():
        y = x**1.5
        (g,) = sg.grad(y.sum(), x, create_graph=True)
        with pytest.raises(AnomalyError) as error:
            (g * 0.0).sum().backward()
    text = str(error.value)
    assert f"pow was called at {here('sg.grad(y.sum()')}" in text
    assert f"for the gradient of pow, which was called at {here('y = x**1.5')}" in text


def test_a_checkpoint() -> None:
    def run(x: Any) -> Any:
        return sg.sqrt(x * 2) * 0.0

    with sg.detect_anomaly():
        y = sg.checkpoint(run, zeros()).sum()
        with pytest.raises(AnomalyError) as error:
            y.backward()
    assert "sqrt was called at" in str(error.value)
    assert "in run:\n    return sg.sqrt(x * 2) * 0.0" in str(error.value)
    assert f"for the gradient of checkpoint, which was called at {here('checkpoint(run')}" in str(
        error.value
    )


def test_a_function_of_the_user() -> None:
    class Broken(sg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * float("nan")

    class Never(Broken):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x / 0

    with sg.detect_anomaly():
        y = Broken.apply(zeros())
        with pytest.raises(AnomalyError, match="of the gradient of input 0 are NaN") as error:
            y.sum().backward()
        with pytest.raises(AnomalyError, match=r"^Never: 1 of 1 elements of its result"):
            Never.apply(zeros())
    assert f"Broken was called at {here('Broken.apply')}" in str(error.value)


def test_nan_that_no_rule_made() -> None:
    x, inf = zeros(), float("inf")
    with sg.detect_anomaly():
        with pytest.raises(AnomalyError, match=r"the gradient of a leaf .* a sum of inf and -inf"):
            (sg.sqrt(x) - sg.sqrt(x)).sum().backward()
        with pytest.raises(AnomalyError, match=r"backward of mul: .* was given to backward"):
            (x * 2).backward(sg.tensor([float("nan")]))
        y = x + 1
        with pytest.raises(AnomalyError, match=r"backward of add: .* a sum of inf and -inf"):
            sg.autograd.backward([y, y], [sg.full((1,), inf), sg.full((1,), -inf)])


def test_a_bad_index_has_the_line_as_a_note() -> None:
    with sg.detect_anomaly(), pytest.raises(IndexError) as error:
        zeros()[[7]]
    assert f"getitem was called at {here('[[7]]')}" in error.value.__notes__[0]


def test_a_gradient_on_another_pattern() -> None:
    class Moved(sg.Function):
        @staticmethod
        def forward(ctx: Any, A: Any) -> Any:
            return A * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return sg.sparse_eye(2)

    def cross() -> Any:
        return sg.coo([[0, 1], [1, 0]], [1.0, 1.0], (2, 2), requires_grad=True)

    with sg.detect_anomaly():
        y = Moved.apply(cross())
        with pytest.raises(sg.GraphError, match="must lie on its pattern") as error:
            sg.sum(y).backward()
        assert f"Moved, which was called at {here('Moved.apply')}" in error.value.__notes__[0]
        A = cross()
        A.register_hook(lambda g: sg.sparse_eye(2))
        with pytest.raises(sg.PatternError, match="hook: the gradient it returned lies on"):
            sg.sum(A).backward()
        A = cross()
        y = A @ sg.ones(2, 1)
        A.repattern_(sg.sparse_eye(2).pattern)  # as many entries as before
        with pytest.raises(AnomalyError, match="was given other data or another pattern") as error:
            y.sum().backward()
        assert f"spmm was called at {here('y = A @')}" in str(error.value)


def test_a_leaf_that_changed_its_shape_is_refused_without_the_mode_too() -> None:
    A = sg.coo([[0, 1], [1, 0]], [1.0, 1.0], (2, 2), requires_grad=True)
    y = (A @ sg.ones(2, 1)).sum()
    A.repattern_(sg.coo([[0], [1]], None, (2, 2)).pattern)
    with pytest.raises(sg.GraphError, match=r"a leaf has shape \(1,\), its gradient \(2,\)"):
        y.backward()
    assert A.grad is None


def test_lines_only() -> None:
    x = zeros()
    with sg.detect_anomaly(check_nan=False):
        assert not sg.is_anomaly_check_nan_enabled()
        y = (sg.sqrt(x) * 0.0).sum()
        y.backward()
        assert sg.isnan(x.grad).all()
        with pytest.raises(sg.GraphError) as error:
            y.backward()
    assert f"sum, which was called at {here('sg.sqrt(x)')}" in error.value.__notes__[0]


def test_switching() -> None:
    originals = Primitive._finish, Node.__init__, PrimitiveNode.__init__
    assert not sg.is_anomaly_enabled()
    with sg.detect_anomaly():
        assert sg.is_anomaly_enabled() and sg.is_anomaly_check_nan_enabled()
        with sg.set_detect_anomaly(False):
            assert not sg.is_anomaly_enabled()
            sg.log(-zeros(1.0))
        assert sg.is_anomaly_enabled()
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(sg.is_anomaly_enabled()))
        thread.start()
        thread.join()
        assert elsewhere == [False]  # a switch of this thread, like no_grad
    sg.set_detect_anomaly(True)
    sg.set_detect_anomaly(True, check_nan=False)
    assert sg.is_anomaly_enabled() and not sg.is_anomaly_check_nan_enabled()
    sg.autograd.set_detect_anomaly(False)
    assert not sg.is_anomaly_enabled()
    # Nothing is left in the way of a program that does not look.
    assert (Primitive._finish, Node.__init__, PrimitiveNode.__init__) == originals
    assert not hasattr((zeros() * 2).grad_fn, "origin")
