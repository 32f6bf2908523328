"""Tensors, modules, optimizers and training on the devices that --device names."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad.recipes import train_gcn
from sparsegrad.recipes.gcn import GCN

pytestmark = [
    pytest.mark.device,
    pytest.mark.filterwarnings("ignore::sparsegrad.errors.SparseEfficiencyWarning"),
]

ROW, COL, VALUES = [0, 0, 2, 3], [1, 0, 2, 0], [1.0, 2.0, 3.0, 4.0]


def matrix(**options: Any) -> sg.SparseTensor:
    return sg.coo([ROW, COL], VALUES, (4, 3), **options)


def recorded() -> Any:
    """What is launched inside, on the simulator."""
    return sys.modules["cudasim"].record_launches()


def synchronisations() -> int | None:
    """How often the host has waited for the device; None on a GPU, which does not say."""
    simulator = sys.modules.get("cudasim")
    return simulator.synchronisations() if simulator and simulator.installed() else None


# ---- where tensors are -------------------------------------------------------------------------
def test_tensors_go_there_and_come_back(device: str) -> None:
    x = sg.tensor([[1.0, 2.0]], requires_grad=True)
    there = x.to(device)
    assert there.device.type == "cuda"
    assert there.device == sg.Device.parse(str(there.device))
    assert there.to(device) is there
    assert x.cpu() is x
    assert "device='cuda:" in repr(there)
    (there * 3).sum().backward()  # the gradient comes back to where the leaf is
    assert x.grad.device.type == "cpu"
    assert x.grad.tolist() == [[3.0, 3.0]]
    np.testing.assert_array_equal(there.detach().numpy(), x.detach().numpy())
    np.testing.assert_array_equal(np.asarray(there.detach().cpu()), [[1, 2]])
    assert there.sum().item() == 3
    assert 2.0 in there
    assert [float(v) for v in there[0]] == [1.0, 2.0]


def test_device_and_dtype_in_one_call_as_in_pytorch(device: str) -> None:
    x, A = sg.ones(3, requires_grad=True), matrix()
    for out in (
        x.to(device, sg.float64),
        x.to(device=device, dtype=sg.float64, non_blocking=True),
        x.to(sg.zeros(1, dtype="float64", device=device)),
        A.to(device, "csr", sg.float64),
        A.to(dtype=sg.float64, device=device),
    ):
        assert out.device.type == "cuda" and out.dtype == np.float64
    x.to(device, sg.float64).sum().backward()
    assert x.grad.device.type == "cpu" and x.grad.dtype == np.float32
    model = sg.nn.Linear(2, 2)
    weight = model.weight
    assert model.to(device, dtype=sg.float64) is model and model.weight is weight
    assert weight.device.type == "cuda" and weight.dtype == np.float64
    assert model.cpu().weight.device.type == "cpu"
    assert model.cuda().weight.device.type == "cuda"
    with pytest.raises(sg.DtypeError, match="floating-point dtypes, got int32"):
        model.to("cpu", "int32")
    assert weight.device.type == "cuda"  # nothing was changed


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
def test_sparse_tensors_go_there_and_come_back(device: str, fmt: str) -> None:
    A = matrix().to(fmt).requires_grad_()
    B = A.to(device)
    assert B.device.type == B.pattern.device.type == "cuda"
    assert B.pattern.T.device == B.device
    assert A.to(device).pattern.core is B.pattern.core  # copied once
    assert B.cpu().pattern.core is A.pattern.core  # and the copy knows the way back
    assert B.pattern.same_as(A.pattern)
    assert "device='cuda:" in repr(B)
    (B * 2).sum().backward()
    assert A.grad.device.type == "cpu"
    assert A.grad.values.tolist() == [2.0] * 4
    np.testing.assert_array_equal(B.detach().to_dense().numpy(), A.detach().to_dense().numpy())
    assert (B.detach().to_scipy() != A.detach().to_scipy()).nnz == 0


def test_a_copy_of_a_pattern_keeps_nothing_alive(device: str) -> None:
    A = matrix()
    there = A.to(device)
    core = A.pattern.core
    home = there.pattern.core._cache["home"]
    assert home() is core
    del A, core
    assert home() is None


def test_creation(device: str) -> None:
    made = [
        sg.tensor([1, 2], device=device),
        sg.zeros(2, 3, device=device),
        sg.ones(2, device=device),
        sg.full((2,), 7.0, device=device),
        sg.empty(2, device=device),
        sg.rand(2, device=device),
        sg.randn(2, device=device),
        sg.arange(3, device=device),
        sg.eye(3, device=device),
        sg.sparse_eye(3, device=device),
        sg.random_sparse(5, 5, 0.2, device=device),
        sg.csr([0, 1, 2], [1, 0], [1.0, 2.0], (2, 2), device=device),
        sg.csc([0, 1, 2], [1, 0], None, (2, 2), device=device),
        matrix(device=device, requires_grad=True),
    ]
    made += [sg.zeros_like(made[1]), sg.ones_like(made[-1])]
    for x in made:
        assert x.device.type == "cuda"
        if isinstance(x, sg.SparseTensor):
            assert x.pattern.device == x.device
    assert made[3].tolist() == [7.0, 7.0]
    assert made[13].is_leaf
    sg.manual_seed(1)
    drawn = sg.rand(4)
    sg.manual_seed(1)
    assert sg.rand(4, device=device).tolist() == drawn.tolist()  # the same bits


def test_what_lies_in_host_memory_follows(device: str) -> None:
    values = sg.tensor(VALUES, device=device)
    assert sg.coo([ROW, COL], values, (4, 3)).pattern.device == values.device
    x = sg.ones(4, 2, device=device)
    assert x[np.array([0, 3])].device == x[[True, False, True, False]].device == x.device
    assert sg.take(x, [1, 1]).device == x.device
    assert sg.where(x > 0, 1.0, 0.0).device == x.device
    assert sg.segment_sum(x, [0, 1, 4]).tolist() == [[1, 1], [3, 3]]


def test_different_devices_are_refused_by_name(device: str) -> None:
    x, y = sg.ones(3, 2, device=device), sg.ones(3, 2)
    with pytest.raises(sg.DeviceError, match=r"add: .*different devices, cpu and cuda:\d"):
        x + y
    with pytest.raises(sg.DeviceError, match=r"spmm: .*different devices, cpu and cuda:\d"):
        matrix() @ x
    with pytest.raises(sg.DeviceError, match=r"spmm: .*different devices, cpu and cuda:\d"):
        matrix(device=device) @ y
    with pytest.raises(sg.DeviceError, match=r"sddmm: .*different devices, cpu and cuda:\d"):
        sg.sddmm(sg.ones(4, 2, device=device), x, matrix().pattern)
    with pytest.raises(sg.DeviceError, match=r"cuda:99: there (is|are) \d"):
        x.to("cuda:99")


def test_copies_stay_and_pickles_come_to_the_host(device: str) -> None:
    x, A = sg.ones(2, device=device, requires_grad=True), matrix(device=device)
    assert copy.deepcopy(x).device == x.device
    assert copy.deepcopy(A).device == A.device
    for back in (pickle.loads(pickle.dumps(x)), pickle.loads(pickle.dumps(A))):
        assert back.device.type == "cpu"
    assert pickle.loads(pickle.dumps(x)).requires_grad
    assert pickle.loads(pickle.dumps(A)).pattern.device.type == "cpu"


def test_in_place(device: str) -> None:
    x = sg.zeros(3, device=device)
    x[1] = 5.0
    x.add_(sg.ones(3, device=device)).mul_(2)
    assert x.tolist() == [2.0, 12.0, 2.0]
    assert x.fill_(4).zero_().tolist() == [0, 0, 0]


def test_what_a_pattern_caches_is_waited_for_on_other_streams(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy = sg.backends.for_device(device).xp
    waited: list[Any] = []
    wait = type(cupy.cuda.Stream.null).wait_event
    monkeypatch.setattr(
        cupy.cuda.Stream, "wait_event", lambda s, e: waited.append(e) or wait(s, e), raising=False
    )
    A = matrix(device=device)
    built = A.to("csr")
    assert A.to("csr").pattern.core is built.pattern.core
    assert not waited  # one stream is in order by itself
    with cupy.cuda.Stream(non_blocking=True):
        again = A.to("csr").values.tolist()
    assert waited
    assert again == built.values.tolist()
    rows = sg.tensor([2, 0], device=device)
    picked = A[rows].values.tolist()  # a plan of the pattern and an index
    del waited[:]
    with cupy.cuda.Stream(non_blocking=True):
        assert A[rows].values.tolist() == picked
    assert len(waited) >= 2
    A.pattern.drop_caches()
    assert not A.pattern.core._marks


def test_slow_paths_say_so_once(device: str) -> None:
    from sparsegrad.backends import cuda

    cuda._warn_once.cache_clear()
    A, x = matrix(device=device).to("int32"), sg.ones(3, 2, dtype="int32", device=device)
    with pytest.warns(sg.SparseEfficiencyWarning, match="spmm on CUDA: values of int32"):
        A @ x
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        A @ x


def test_out_of_memory_names_the_op(device: str) -> None:
    x = sg.ones(1 << 22, device=device)
    with pytest.raises(MemoryError, match=r"add: .*Tensor\(4194304, 1\) float32"):
        x.reshape(-1, 1) + x.reshape(1, -1)


# ---- indices are checked when something next waits ---------------------------------------------
def test_an_index_out_of_bounds_is_raised_at_the_next_wait(device: str) -> None:
    table = sg.ones(5, 2, device=device)
    out = sg.embedding(table, sg.tensor([0, 5], device=device))
    with pytest.raises(
        sg.PatternError, match=r"embedding: index: index 5 at position 1 is outside"
    ):
        out.sum().item()
    sg.embedding(table, sg.tensor([-1], device=device))
    with pytest.raises(sg.PatternError, match="index -1"):
        sg.cuda.synchronize()
    sg.cross_entropy(sg.ones(1, 3, device=device), sg.tensor([3], device=device))
    with pytest.raises(sg.PatternError, match="cross_entropy: target: index 3"):
        sg.cuda.synchronize()
    sg.cuda.synchronize()  # said once
    for _ in range(5):
        sg.embedding(table, sg.tensor([1, 4], device=device))
    before = synchronisations()
    sg.cuda.synchronize()
    if before is not None:  # for the work, and once for all checks
        assert synchronisations() - before <= 2
    with pytest.raises(sg.PatternError, match=r"indices\[0\]: index 9"):
        sg.coo(sg.tensor([[9], [0]], device=device), sg.ones(1, device=device), (4, 3))


# ---- sg.cuda -----------------------------------------------------------------------------------
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


# ---- modules, optimizers, training -------------------------------------------------------------
def test_modules_move_in_place(device: str) -> None:
    class Net(sg.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = sg.nn.Linear(3, 2)
            self.A = sg.nn.Parameter(matrix().coalesce())

        def forward(self, x: Any) -> Any:
            return self.A @ self.linear(x)

    net = Net()
    weight = net.linear.weight
    x = sg.rand(3, 3)
    expected = net(x).detach().numpy()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert net.to(device) is net
    assert net.linear.weight is weight
    assert all(p.device.type == "cuda" for p in net.parameters())
    assert net.A.pattern.device.type == "cuda"
    np.testing.assert_allclose(net(x.to(device)).detach().numpy(), expected, rtol=1e-6)
    net.load_state_dict(state)  # from the host
    assert net.to("cpu").linear.weight.device.type == "cpu"
    np.testing.assert_allclose(net(x).detach().numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_optimizers_agree_with_the_cpu(device: str, kind: str, sparse: bool) -> None:
    def run(where: str) -> tuple[list[Any], Any]:
        w = sg.tensor(np.linspace(-1, 1, 12).reshape(6, 2), device=where, requires_grad=True)
        options = {"momentum": 0.9} if kind == "SGD" and not sparse else {}
        optimizer = getattr(sg.optim, kind)([w], lr=0.1, **options)
        index = sg.tensor([0, 3, 3], device=where)
        for _ in range(3):
            optimizer.zero_grad()
            loss = ((sg.embedding(w, index) if sparse else w[index]) ** 2).sum()
            loss.backward()
            assert isinstance(w.grad, sg.SparseTensor) == sparse
            optimizer.step()
        return w.tolist(), optimizer

    (expected, _), (found, optimizer) = run("cpu"), run(device)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    for held in optimizer.state.values():
        assert all(v.device.type == "cuda" for v in held.values() if isinstance(v, sg.Tensor))


def test_the_benchmark_runs(device: str, tmp_path: Any, capsys: Any) -> None:
    """Every case is right, by CuPy too where it has the op; times mean nothing on the simulator."""
    from bench import gpu_cases
    from bench.__main__ import main

    assert main(["gpu", "--quick", "--json", str(tmp_path / "gpu.json")]) == 0
    said = capsys.readouterr()
    assert "share of the gather" in said.out
    document = json.loads((tmp_path / "gpu.json").read_text())
    found = {row["case"]: row for row in document["results"]}
    assert list(found) == [case.name for case in gpu_cases.all_cases(200, 1000)]
    for name, row in found.items():
        assert f"| {name} |" in said.out
        assert min(row["seconds"], row["cold_seconds"], row["with_transfers_seconds"]) > 0
        assert row["cpu_seconds"] > 0
        for peer, its in row["peers"].items():
            assert its.get("seconds", 0) > 0 or its.get("missing"), (peer, its)
            assert "seconds" in its or not peer.startswith("cupyx")
    assert {"copy", "gather of rows", "from the host"} == set(document["limits"])
    assert main(["table", str(tmp_path / "gpu.json")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(said.out.splitlines())
    assert main(["gpu", "--quick", "--case", "no such"]) == 2


def test_the_benchmark_goes_on_after_what_is_wrong(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from bench import gpu_cases
    from bench.__main__ import main
    from bench.gpu_measure import Case, Peer

    def make(where: str, dtype: str) -> Any:
        return lambda: sg.full((2,), 1.0 if where == "cpu" else 1.1, dtype=dtype, device=where)

    def right(where: str, dtype: str) -> Any:
        return lambda: sg.full((2,), 1.0, dtype=dtype, device=where)

    rival = Peer("cupyx", lambda where: lambda: sg.full((2,), 2.0, device=where))
    cases = [Case("wrong", make), Case("right", right, peers=[rival])]
    monkeypatch.setattr(gpu_cases, "all_cases", lambda n, nnz: cases)
    assert main(["gpu", "--quick"]) == 1
    said = capsys.readouterr().out
    assert "| wrong | WrongResult: error 0.1 exceeds 1e-05 |" in said
    assert "| right | cupyx | WrongResult: error 1 exceeds 1e-05 |" in said


def graph() -> Any:
    return sg.data.sbm(n=200, n_features=40, seed=0)


def test_loss_curves_agree_with_the_cpu(device: str) -> None:
    options: dict[str, Any] = {"epochs": 5, "hidden": 8, "seed": 3, "lr": 0.05}
    expected = train_gcn(graph(), **options)
    found = train_gcn(graph(), device=device, **options)
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(
            [row[name] for row in found.history],
            [row[name] for row in expected.history],
            rtol=1e-4,
        )
    assert found.test["accuracy"] == pytest.approx(expected.test["accuracy"], abs=0.05)


def test_a_training_step_never_waits_for_the_device(device: str) -> None:
    if synchronisations() is None:
        pytest.skip("only the simulator counts how often the host waits")
    data = graph().to(device)
    model = GCN(data.n_features, 8, data.n_classes, 0.5).to(device)
    optimizer = sg.optim.Adam(model.parameters(), lr=0.01)
    A_hat = sg.nn.gcn_norm(data.adjacency)
    waits = []
    for _ in range(3):
        before = synchronisations()
        optimizer.zero_grad()
        logits = model(data.features, A_hat)[data.train]
        loss = sg.cross_entropy(logits, data.labels[data.train])
        loss.backward()
        optimizer.step()
        waits.append(synchronisations() - before)
    assert waits[1:] == [0, 0]  # the first step builds what patterns cache


@pytest.mark.parametrize("cls", [sg.optim.SGD, sg.optim.RowwiseAdagrad, sg.optim.Adam])
def test_ac_91_a_row_sparse_step_never_waits(device: str, cls: Any) -> None:
    """How many rows are touched stays on the device; several tables are stepped together."""
    if synchronisations() is None:
        pytest.skip("only the simulator counts how often the host waits")

    def run(where: str) -> list[Any]:
        tables = [sg.ones(300, 4, device=where, requires_grad=True) for _ in range(3)]
        optimizer = cls(tables, lr=0.1)
        for seed in range(2):
            ids = np.random.default_rng(seed).integers(0, 300, (3, 200))
            index = [sg.tensor(one, device=where) for one in ids]
            before = synchronisations()
            optimizer.zero_grad()
            sum((sg.embedding(t, i) ** 2).sum() for t, i in zip(tables, index)).backward()
            with recorded() as launches:
                optimizer.step()
            if where != "cpu":
                assert synchronisations() == before
                assert sum("sg_rows" in launch.kernel for launch in launches) == 2
        return [t.tolist() for t in tables]

    np.testing.assert_allclose(run(device), run("cpu"), rtol=1e-5)


def test_rows_of_many_tables_are_few_launches(device: str) -> None:
    """One that checks ids, one that takes rows; gradients are parts of what comes back, which the
    step reads where they are."""
    if synchronisations() is None:
        pytest.skip("only the simulator counts launches")
    sizes = [(30, 4), (7, 8), (300, 4)] * 9
    ids = np.stack([np.random.default_rng(0).integers(0, n, 40) for n, _ in sizes], 1)

    def run(where: str, count: Any) -> list[Any]:
        tables = [sg.ones(*size, device=where, requires_grad=True) for size in sizes]
        optimizer = sg.optim.Adam(tables, lr=0.1)
        index = sg.tensor(ids, device=where)
        for _ in range(2):
            optimizer.zero_grad()
            before = synchronisations()
            with recorded() as forward:
                out = sg.embedding_collection(tables, index)
            loss = (out * out).sum()
            with recorded() as backward:
                loss.backward()
            with recorded() as step:
                optimizer.step()
            if where != "cpu":
                assert synchronisations() == before
        before = synchronisations()
        merged = [table.grad.coalesce() for table in tables]
        if where != "cpu":
            assert synchronisations() - before <= 3  # of all tables together
        count([x.kernel for x in forward], [x.kernel for x in backward], [x.kernel for x in step])
        return [table.tolist() for table in [*tables, *(g.to_dense() for g in merged)]]

    def few(forward: list[str], backward: list[str], step: list[str]) -> None:
        assert len(forward) == 2, forward
        assert len(backward) <= 4, backward
        assert len(step) <= 32, step  # of all tables together
        assert sum("sg_rows" in name for name in step) == 1
        assert not any("copy" in name and "float" in name for name in step), step

    found, expected = run(device, few), run("cpu", lambda *names: None)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("ids", [[1, 2, 2], [0, 3, 5], [5, 0, 3], [4, 1, 4]])
def test_coalesce_waits_once(device: str, ids: list[int]) -> None:
    """Sorted or not, duplicates or not; what was seen when indices were checked is not asked."""
    there = sg.tensor([ids], device=device)
    A = sg.coo(there, sg.tensor([1.0, 2.0, 3.0], device=device), (6,), requires_grad=True)
    before = synchronisations()
    found = A.coalesce()
    if before is not None:
        assert synchronisations() - before == (ids != [0, 3, 5])
    assert found.pattern.row.tolist() == sorted(set(ids))
    assert (found is A) == (ids == [0, 3, 5])
    assert found.pattern.is_coalesced and A.pattern.core.unique == (len(set(ids)) == 3)
    expected = np.zeros(6)
    np.add.at(expected, ids, [1.0, 2.0, 3.0])
    assert found.to_dense().tolist() == expected.tolist()


def test_descriptors_of_cusparse_are_kept(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the matrix for each width of x, told anew where the numbers are, and freed with it."""
    sg.backends.for_device(device)
    from sparsegrad.backends import cuda_cusparse

    library = cuda_cusparse.library()
    calls: list[str] = []

    def count(name: str) -> None:
        real = getattr(library, name)
        monkeypatch.setattr(library, name, lambda *args: (calls.append(name), real(*args))[1])

    count("createCsr")
    count("destroySpMat")
    A = matrix(device=device).coalesce()
    dense = A.detach().to_dense()
    for scale in (1.0, 2.0, 3.0):
        x = sg.randn(3, 9, device=device)
        expected = scale * (dense.numpy() @ x.numpy())
        np.testing.assert_allclose(((A * scale) @ x).numpy(), expected, rtol=1e-5)
    assert calls == ["createCsr"]
    A @ sg.randn(3, 10, device=device)
    assert calls == ["createCsr"] * 2
    A.pattern.drop_caches()
    assert calls[2:] == ["destroySpMat"] * 2


def test_a_sparse_op_is_few_launches(device: str) -> None:
    """At most four, forward and backward, once patterns keep their index work; none waits."""
    if synchronisations() is None:
        pytest.skip("only the simulator counts launches")
    import cudasim

    A = sg.random_sparse(50, 40, 0.2, device=device).to("csr").requires_grad_()
    twice = sg.coo([[0, 1, 0], [1, 2, 1]], [1.0, 2.0, 3.0], (50, 40), device=device)
    twice = twice.requires_grad_()
    x, v = (sg.randn(*shape, device=device, requires_grad=True) for shape in ((40, 16), (40,)))
    y, z = (sg.randn(50, 16, device=device, requires_grad=True) for _ in range(2))
    mask, index = (A @ A.T).pattern, sg.tensor([[0, 1], [49, 39]], device=device)
    ops: dict[str, Any] = {
        "spmm": lambda: A @ x,
        "spmv": lambda: A @ v,
        "transposed": lambda: A.T @ y,
        "mean": lambda: sg.spmm(A, x, "mean"),
        "max": lambda: sg.spmm(A, x, "max"),
        "sddmm": lambda: sg.sddmm(y, z, mask),
        "spgemm": lambda: A @ A.T,
        "masked": lambda: sg.spgemm_masked(A, A.T, mask),
        "softmax": lambda: sg.softmax(A, 1),
        "softmax of columns": lambda: sg.softmax(A, 0),
        "log_softmax": lambda: sg.log_softmax(A, 1),
        "logsumexp": lambda: sg.logsumexp(A, 1),
        "sum of rows": lambda: sg.sum(A, 1),
        "sum of columns": lambda: sg.sum(A, 0),
        "coalesce": lambda: sg.coalesce(twice),
        "embedding_collection": lambda: sg.embedding_collection([y, x], index),
    }
    leaves = [A.values, twice.values, x, v, y, z]
    for name, op in ops.items():
        for kept in (False, True):
            before = synchronisations()
            with cudasim.record_launches() as forward:
                out = op()
            values = out.values if isinstance(out, sg.SparseTensor) else out
            g = sg.Tensor(values.data)
            with cudasim.record_launches() as backward:
                sg.grad(values, leaves, g, allow_unused=True)
            if kept:
                assert len(forward) <= 4, (name, [launch.kernel for launch in forward])
                assert len(backward) <= 4, (name, [launch.kernel for launch in backward])
                assert synchronisations() == before, name
