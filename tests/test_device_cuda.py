"""`sg.cuda`, events and profiles on the devices that --device names."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from on_device import matrix, synchronisations

pytestmark = [
    pytest.mark.device,
    pytest.mark.filterwarnings("ignore::sparsegrad.errors.SparseEfficiencyWarning"),
]


def test_namespace(device: str) -> None:
    assert sg.cuda.is_available()
    assert sg.cuda.problem() is None
    assert sg.cuda.device_count() >= 1
    before = sg.cuda.current_device()
    sg.cuda.set_device(device)
    assert sg.ones(1, device="cuda").device == sg.ones(1).cuda().device
    sg.cuda.set_device(before)
    assert sg.cuda.current_device() == before
    with pytest.raises(sg.DeviceError, match="cuda:99"):
        sg.cuda.set_device(99)
    x = sg.ones(1000, device=device)
    assert sg.cuda.max_memory_allocated() >= sg.cuda.memory_allocated() >= 0
    assert sg.cuda.memory_reserved() >= sg.cuda.memory_allocated()
    free, total = sg.cuda.mem_get_info()
    assert 0 < free <= total
    assert sg.cuda.get_device_name(device) in sg.cuda.describe()["devices"]
    assert sg.cuda.get_device_capability() >= (7, 0)
    card = sg.cuda.get_device_properties(device)
    assert (card.name, card[1:3]) == (sg.cuda.get_device_name(), sg.cuda.get_device_capability())
    assert card.total_memory == total and card.multi_processor_count > 0
    with pytest.raises(sg.DeviceError, match="cuda:99"):
        sg.cuda.get_device_name(99)
    sg.cuda.synchronize()
    sg.cuda.empty_cache()
    assert x.sum().item() == 1000
    assert sg.ones(1, device="auto").device.type == "cuda"
    known = {"devices", "driver", "runtime", "libraries", "cupy", "kernels"}
    assert set(sg.cuda.describe()) == known


def test_functions_take_a_device_as_in_pytorch(device: str) -> None:
    number = sg.ones(1, device=device).device.index
    for where in (None, number, device, sg.device("cuda", number)):
        sg.cuda.synchronize(where)
        assert sg.cuda.memory_reserved(where) >= sg.cuda.memory_allocated(where) >= 0
        assert sg.cuda.max_memory_allocated(where) >= 0
        assert sg.cuda.mem_get_info(where)[1] > 0
        sg.cuda.reset_peak_memory_stats(where)
    with sg.cuda.device(number):
        assert sg.cuda.current_device() == number
    for ask in (sg.cuda.synchronize, sg.cuda.memory_allocated, sg.cuda.get_device_properties):
        with pytest.raises(sg.DeviceError, match="cuda:99"):
            ask(99)
    with pytest.raises(sg.DeviceError, match="cuda:99"), sg.cuda.device(99):
        pass


def test_index_arrays_that_come_again_and_may_have_changed(device: str) -> None:
    """Their index work is kept with a copy of them, on the device or in host memory."""
    A, dense = matrix(device=device).to("csr"), matrix().to_dense().numpy()
    mask = np.array([[True, False, True], [False] * 3, [True] * 3, [False] * 3])
    cases = {
        "rows": (np.array([3, 0]), lambda i: A[i], lambda i: dense[i]),
        "many": (np.tile([3, 0], 100), lambda i: A[i], lambda i: dense[i]),
        "negative": (np.array([-1, 0]), lambda i: A[i], lambda i: dense[i]),
        "cells": (np.array([2, 0]), lambda i: A[i, i], lambda i: dense[i, i]),
        "mesh": (np.array([[2, 0]]), lambda i: A[i.T, i], lambda i: dense[i.T, i]),
        "columns": (np.array([2, 0]), lambda i: A.index_select(1, i), lambda i: dense[:, i]),
        "mask": (mask, lambda i: A[i], lambda i: dense[i]),
    }
    for name, (index, op, expected) in cases.items():
        for given in (index.copy(), sg.tensor(index, device=device), sg.tensor(index)):
            array = given if isinstance(given, np.ndarray) else given.data
            out = op(given)
            np.testing.assert_array_equal(out.to_dense().numpy(), expected(index), name)
            if name != "mesh":  # whose arrays are new views in every call
                assert op(given).pattern is out.pattern, name
            array[(0,) * array.ndim] = name != "mask"  # 1, or False
            changed = np.asarray(array if given is array else given.cpu().numpy())
            assert not np.array_equal(changed, index)
            np.testing.assert_array_equal(op(given).to_dense().numpy(), expected(changed), name)


def test_events_measure_without_waiting(device: str) -> None:
    start, end = sg.cuda.Event(enable_timing=True), sg.cuda.Event(enable_timing=True)
    x = sg.ones(1000, device=device)
    x * 2  # compiled
    before = synchronisations()
    start.record()
    x * 2
    end.record()
    assert synchronisations() == before
    end.synchronize()
    assert start.query() and end.query()
    assert 0 < start.elapsed_time(end) < 60_000


def test_ops_are_ranges_while_a_profile_is_open(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cupy.cuda import nvtx

    sg.backends.for_device(device)
    events: list[str] = []
    monkeypatch.setattr(nvtx, "RangePush", events.append)
    monkeypatch.setattr(nvtx, "RangePop", lambda: events.append("/"))
    A, x = matrix(device=device).requires_grad_(), sg.ones(3, 2, device=device)
    A @ x
    assert events == []
    with sg.profile():
        (A @ x).sum().backward()
        with pytest.raises(sg.ShapeError):
            A @ sg.ones(9, 2, device=device)
    assert events.count("/") == sum(e != "/" for e in events)
    assert {"spmm", "sum", "sddmm"} <= set(events)
    events.clear()
    A @ x
    assert events == []
    monkeypatch.undo()
    with sg.profile():  # CuPy's own
        A @ x


def test_a_profile_times_ops_on_the_device_and_does_not_wait(device: str, tmp_path: Any) -> None:
    A, x = matrix(device=device), sg.ones(3, 2, device=device, requires_grad=True)

    def step() -> None:
        (A @ x).sum().backward()
        A + A

    step()  # what patterns cache is there
    before = synchronisations()
    with sg.profile() as outer, sg.profile() as prof:
        step()
        sg.ones(2) * 2
        with pytest.raises(sg.ShapeError):
            A @ sg.ones(9, 2, device=device)
    assert synchronisations() == before
    for found in (prof, outer):
        ops = {stats.name: stats for stats in found.ops if stats.kind == "op"}
        assert {"spmm", "sum", "add (sparse)"} <= set(ops)
        assert ops["spmm"].calls == 2 and ops["spmm"].device_seconds > 0
        assert ops["mul"].device_seconds == 0  # on the CPU
        # Own times: what an op called itself is not in them, so they add up to a part of the whole.
        assert min(stats.device_seconds for stats in found.ops) >= 0
        assert 0 < found.device_seconds < found.seconds
        assert found.speed_up is None
        assert found.summary()["device_seconds"] == found.device_seconds
        assert "GPU ms" in found.table() and "ms on the GPU" in found.table()
    prof.export_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    rows = {str(e["tid"]) for e in events}
    there = [e for e in events if str(e["tid"]).startswith("cuda:")]
    host = [e for e in events if e not in there and e["name"] != "mul"]  # which is on the CPU
    assert len(rows) == 2 and {e["ph"] for e in events} == {"X"}
    assert [e["name"] for e in there] == [e["name"] for e in host]
    for ours, its in zip(host, there, strict=True):
        assert its["dur"] > 0
        assert ours["ts"] - 1e4 < its["ts"] < ours["ts"] + 1e6  # microseconds: one clock


def test_a_profile_times_the_step_of_an_optimizer(device: str) -> None:
    table = sg.ones(5, 2, device=device, requires_grad=True)
    optimizer = sg.optim.SGD([table], lr=0.1)
    (table**2).sum().backward()
    with sg.profile() as prof:
        optimizer.step()
    (step,) = (stats for stats in prof.ops if stats.kind == "step")
    assert step.name == "SGD.step" and step.device_seconds > 0


def test_a_long_profile_reads_times_as_they_come(device: str) -> None:
    x = sg.ones(3, device=device)
    with sg.profile(max_events=10) as prof:
        for _ in range(40):
            x * 2
    assert len(prof._totals._unread) < 40
    assert prof.ops[0].calls == 40 and prof.device_seconds > 0
