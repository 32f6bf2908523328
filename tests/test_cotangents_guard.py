"""Gradients made dense: the guard that reports or refuses it, and who else decides."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from byhand import const, dense, leaf


def through_matmul(n: int = 50, k: int = 4) -> tuple[Any, Any]:
    """A loss whose backward must make an (n, k) float64 cotangent dense: softmax down columns."""
    w = leaf(np.ones((n, k)))
    return w, sg.softmax(w, 0).take([1, 2]).sum()


def test_the_guard_reports_op_shape_and_bytes() -> None:
    w, loss = through_matmul()
    with sg.densify(on_exceed="record") as report:
        loss.backward()
    (event,) = report.events
    assert "softmax" in event.op and event.shape == (50, 4) and event.nbytes == 1600
    assert report.nbytes == 1600
    assert isinstance(w.grad, sg.Tensor)


def test_the_guard_raises_before_anything_is_done() -> None:
    w, loss = through_matmul()
    w.sum().backward()
    before = dense(w.grad).copy()
    with (
        sg.densify(budget=1599) as report,
        pytest.raises(sg.DensifyError, match=r"softmax.*\(50, 4\).*1600 bytes"),
    ):
        loss.backward(retain_graph=True)
    assert report.events == []
    np.testing.assert_array_equal(dense(w.grad), before)
    with sg.densify(budget=1600) as report:
        loss.backward()
    assert report.nbytes == 1600


def test_the_guard_raises_before_memory_is_used() -> None:
    n = 300_000
    w = sg.zeros(n, 50, requires_grad=True)
    h = sg.cat([w.take([1, 2]), w.take([3])])
    big = sg.zeros(n, 50, requires_grad=True)
    y = sg.maximum(big, w).take([5]).sum() + h.sum()
    gc.collect()
    tracemalloc.start()
    try:
        with sg.densify(), pytest.raises(sg.DensifyError, match="maximum"):
            y.backward()
        assert tracemalloc.get_traced_memory()[1] < n
    finally:
        tracemalloc.stop()


def test_the_guard_warns() -> None:
    _, loss = through_matmul()
    with (
        sg.densify(budget=0, on_exceed="warn") as report,
        pytest.warns(sg.SparseEfficiencyWarning, match=r"softmax.*\(50, 4\).*1600 bytes"),
    ):
        loss.backward()
    assert len(report.events) == 1


def test_the_budget_is_for_all_events_together() -> None:
    with sg.densify(budget=3200) as report:
        through_matmul()[1].backward()
        through_matmul()[1].backward()
        with pytest.raises(sg.DensifyError):
            through_matmul()[1].backward()
    assert report.nbytes == 3200


def test_guards_nest() -> None:
    with sg.densify(on_exceed="record") as outer:
        through_matmul()[1].backward()
        with sg.densify(budget=1600) as inner:
            through_matmul()[1].backward()
            with pytest.raises(sg.DensifyError):
                through_matmul()[1].backward()
        with sg.densify(on_exceed="record") as last:
            through_matmul(10)[1].backward()
    assert [e.nbytes for e in inner.events] == [1600]
    assert [e.nbytes for e in last.events] == [320]
    assert [e.nbytes for e in outer.events] == [1600, 1600, 320]
    with sg.densify(budget=0) as outer, sg.densify(on_exceed="record") as inner:  # noqa: SIM117
        with pytest.raises(sg.DensifyError):
            through_matmul()[1].backward()
    assert outer.events == [] and inner.events == []


def test_guards_are_per_thread() -> None:
    result: list[Any] = []

    def work() -> None:
        through_matmul()[1].backward()
        result.append("done")

    with sg.densify(budget=0):
        t = threading.Thread(target=work)
        t.start()
        t.join(30)
    assert result == ["done"]


def test_settings_decide_where_no_guard_stands() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        through_matmul()[1].backward()  # small: no consequence
        with sg.config(densify="record", densify_budget=0):
            through_matmul()[1].backward()
    with (
        sg.config(densify="raise", densify_budget=1599),
        pytest.raises(sg.DensifyError, match="1600"),
    ):
        through_matmul()[1].backward()
    with (
        sg.config(densify_budget=0),
        pytest.warns(sg.SparseEfficiencyWarning, match="softmax"),
    ):
        through_matmul()[1].backward()
    with sg.config(densify="raise", densify_budget=0), sg.densify(budget=10**6):
        through_matmul()[1].backward()  # the guard decides


def test_what_is_asked_for_is_no_event() -> None:
    w = leaf([[0, 1.0], [2, 0], [0, 0], [0, 3], [0, 0], [4, 5]])
    A = sg.coo([[0, 1], [1, 0]], const([2.0, 3.0]), (2, 2), requires_grad=True)
    with sg.densify(budget=0) as report:
        (A.to_dense() * 2).sum().backward()
        (A @ const(np.ones((2, 2)))).sum().backward()
        (A + const(np.ones((2, 2)))).sum().backward()
        w.to_sparse().to_dense().sum().backward()
        w.take([1], sparse_grad=False).sum().backward()
        (w.take([1]).sum() + w.sum()).backward()
        w.grad.numpy()
    assert report.events == []


def test_bad_guards() -> None:
    with pytest.raises(ValueError, match="on_exceed must be"):
        sg.densify(on_exceed="panic")
