"""Modules, optimizers and training on the devices that --device names, and how often they wait."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from on_device import matrix, recorded, synchronisations
from sparsegrad.recipes import train_gcn
from sparsegrad.recipes.gcn import GCN

pytestmark = [
    pytest.mark.device,
    pytest.mark.filterwarnings("ignore::sparsegrad.errors.SparseEfficiencyWarning"),
]


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
