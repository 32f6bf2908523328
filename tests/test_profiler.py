"""What a profile counts, that it costs nothing when off, and that it ends however it ends."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import threading
import weakref

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad.engine import primitive as engine
from sparsegrad.structure import core as structure


@pytest.fixture(autouse=True)
def _nothing_is_left_installed():
    yield
    assert engine._watched is None
    assert engine._shortcut
    assert structure._watched is None


def matrix(n=50, nnz=200, seed=0, **options):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(nnz).astype(np.float32)
    return sg.coo(rng.integers(0, n, (2, nnz)), values, (n, n), **options)


def ops(prof, kind="op"):
    return {stats.name: stats for stats in prof.ops if stats.kind == kind}


def test_forward_and_backward_are_counted():
    A, x = matrix(requires_grad=True), sg.randn(50, 4, requires_grad=True)
    with sg.profile() as prof:
        for _ in range(3):
            (A @ x).sum().backward()
    found = ops(prof)
    assert found["spmm"].calls == 6  # forward, and the gradient of x
    assert found["sddmm"].calls == 3
    assert (found["spmm"].nnz, found["sddmm"].nnz) == (1200, 600)
    assert found["spmm"].nbytes == 6 * 50 * 4 * 4
    assert 0 < prof.busy_seconds <= prof.seconds
    with sg.profile() as other:
        pass
    assert other.ops == []
    assert other.memory_saved == other.conversion_share == 0.0


def test_steps_of_optimizers_are_counted():
    table = sg.ones(50, 4, requires_grad=True)
    optimizer = sg.optim.Adam([table], lr=0.1)
    with sg.profile() as prof:
        for _ in range(2):
            optimizer.zero_grad()
            sg.embedding(table, [1, 2, 2]).sum().backward()
            optimizer.step()
    (step,) = (stats for stats in prof.ops if stats.kind == "step")
    assert (step.name, step.calls) == ("Adam.step", 2)
    # Index work of a step is listed by itself, and not once more in it.
    assert 0 < step.seconds < prof.busy_seconds <= prof.seconds
    assert "Adam.step" in prof.table()


def test_results_are_the_same():
    def run():
        A, x = matrix(requires_grad=True), sg.ones(50, 4)
        y = ((A + A.T) * A).softmax(1) @ x
        y.sum().backward()
        return y.data, A.grad.values.data

    plain = run()
    with sg.profile():
        profiled = run()
    for ours, theirs in zip(plain, profiled, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_own_time_excludes_what_is_listed_itself():
    A = matrix(requires_grad=True)
    with sg.profile() as prof:
        B = A * A + A
    assert B.nnz
    found = ops(prof)
    assert "mul (sparse)" in found
    assert "add (sparse)" in found
    assert prof.busy_seconds <= prof.seconds


def test_memory_saved():
    A = sg.csr([0, 1, 2], [1, 0], [1.0, 2.0], (2, 1000))
    with sg.profile() as prof:
        A @ sg.ones(1000, 1)
        A @ sg.ones(1000, 1)  # the same pattern counts once
    assert prof.memory_saved == pytest.approx(1 - (4 * (3 + 2) + 4 * 2) / (4 * 2000))


def test_speed_up_is_estimated_from_the_table():
    with sg.profile() as prof:
        sg.ones(3) * 2
    assert prof.speed_up is None
    A, x = matrix(40_000, 4000), sg.ones(40_000, 32)
    A @ x
    with sg.profile() as prof:
        A @ x
        A.T @ x
    assert prof.speed_up > 1  # 1.6e9 cells for 4000 entries: a second, if dense
    with sg.profile() as layer:
        sg.spmm(A, x, bias=sg.ones(32), activation="relu")
    assert layer.speed_up > 1
    tall = sg.coo([[0], [0]], [1.0], (1, 10**6))
    with sg.profile() as one:
        tall @ sg.ones(10**6, 2)
    assert "dense by table" in one.table()


def test_conversion_share_and_index_work():
    A = matrix(2000, 20_000)
    with sg.profile() as prof:
        A.to("csr").to("csc")
    assert {"perm", "moves"} <= set(ops(prof, "index"))
    assert 0.5 < prof.conversion_share <= 1
    with sg.profile() as again:  # done once, kept on the pattern
        A.to("csr")
    assert "perm" not in ops(again, "index")


def test_accumulation_efficiency():
    w = sg.ones(100, 2, requires_grad=True)
    with sg.profile() as prof:
        for rows in ([1, 2, 3], [3, 2, 1], [2, 1, 3], [1, 3, 2]):
            sg.take(w, sg.tensor(rows)).sum().backward()
        w.grad.coalesce()
    merged = prof.accumulation
    assert merged["entries_in"] == 12
    assert merged["entries_out"] == 3
    assert merged["efficiency"] == 4
    assert merged["seconds"] > 0


def test_densify_events_are_seen_and_still_guarded():
    def backward():
        x = sg.ones(1000, 2, requires_grad=True)
        sg.take(sg.softmax(x, 0), sg.tensor([1])).sum().backward()

    with sg.densify(on_exceed="record") as report:
        backward()
    with sg.profile() as prof:
        backward()
    assert prof.densify_events == report.events
    prof = sg.profile()
    with sg.config(densify="raise", densify_budget=0), prof, pytest.raises(sg.DensifyError):
        backward()
    assert len(report.events) == 1
    assert prof.densify_events == report.events


def test_nested_profiles_both_see():
    x = sg.ones(3)
    with sg.profile() as outer:
        x * 2
        with sg.profile() as inner:
            x * 3
            x + 1
        x * 4
    assert {n: s.calls for n, s in ops(outer).items()} == {"mul": 3, "add": 1}
    assert {n: s.calls for n, s in ops(inner).items()} == {"mul": 1, "add": 1}


def test_one_profile_over_several_blocks():
    prof = sg.profile()
    for _ in range(3):
        with prof:
            sg.ones(2) * 2
        sg.ones(2) * 2
    assert ops(prof)["mul"].calls == 3
    with prof, pytest.raises(RuntimeError, match="open already"):
        prof.__enter__()


def test_errors_leave_nothing_behind():
    with sg.profile() as prof:
        with pytest.raises(sg.ShapeError):
            sg.ones(2) + sg.ones(3)
        with pytest.raises(ZeroDivisionError), sg.profile():
            raise ZeroDivisionError
        sg.ones(2) * 2
    assert ops(prof)["mul"].calls == 1
    with pytest.raises(ZeroDivisionError), sg.profile():
        raise ZeroDivisionError


def test_other_threads_are_not_counted_unless_given_the_context():
    def work():
        for _ in range(50):
            sg.ones(2) * 2

    with sg.profile() as prof:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert "mul" not in ops(prof)
    with sg.profile() as prof:
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(work,)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ops(prof)["mul"].calls == 200


def test_tasks_have_profiles_of_their_own():
    async def work(n):
        with sg.profile() as prof:
            for _ in range(n):
                sg.ones(2) * 2
                await asyncio.sleep(0)
        return ops(prof)["mul"].calls

    async def both():
        return await asyncio.gather(work(3), work(5))

    assert asyncio.run(both()) == [3, 5]


def test_tensors_are_not_kept_alive():
    with sg.profile() as prof:
        A = matrix()
        y = A @ sg.ones(50, 1)
        refs = [weakref.ref(A.pattern.core), weakref.ref(y)]
        del A, y
        gc.collect()
        assert [ref() for ref in refs] == [None, None]
    assert ops(prof)["spmm"].calls == 1


def test_events_beyond_the_limit_are_only_counted(tmp_path):
    x = sg.ones(2)
    with sg.profile(max_events=10) as prof:
        for _ in range(35):
            x * 2
    assert ops(prof)["mul"].calls == 35
    prof.export_chrome_trace(tmp_path / "t.json")
    assert len(json.loads((tmp_path / "t.json").read_text())["traceEvents"]) == 10


def test_table_json_and_trace(tmp_path, monkeypatch):
    A = matrix(requires_grad=True)
    with sg.profile() as prof:
        (A @ sg.ones(50, 2)).sum().backward()
    drawn = prof.table()
    for text in ("spmm", "sddmm", "memory saved", "format conversion", "densify events"):
        assert text in drawn
    monkeypatch.setitem(__import__("sys").modules, "rich", None)  # as if it were not installed
    plain = prof.table(rows=1)
    assert plain.startswith("op ")
    assert "memory saved" in plain
    assert repr(prof).startswith("<profile: ")

    summary = json.loads(prof.to_json())
    assert {op["name"] for op in summary["ops"]} >= {"spmm", "sddmm", "sum"}
    assert summary["accumulation"]["efficiency"] == 1.0

    prof.export_chrome_trace(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spmm = next(event for event in events if event["name"] == "spmm")
    assert spmm["ph"] == "X"
    assert spmm["args"]["nnz"] == 200
    assert all(event["dur"] >= 0 for event in events)
