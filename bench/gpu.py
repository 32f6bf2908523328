"""`python -m bench gpu`: ops on a CUDA device against the same ops on the CPU.

Times on the device are those of CUDA events. Beside them stand, measured in the same run, the
bandwidth of a copy and of a gather of random rows, which bound what any kernel can reach; the
bytes of an op are those it must move at least, every gathered row counted. "From host to host" is
the wall clock from arrays of NumPy to a result of NumPy: tensors and patterns are made, moved and
their index work is done once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import matmul
from typing import Any

import numpy as np

import sparsegrad as sg
from bench import gpu_peers
from bench.graphs import power_law
from bench.machine import commit, fingerprint
from bench.oracle import WrongResult

__all__ = ["markdown", "run"]

SIZES = {"full": (200_000, 5_000_000), "quick": (200, 1_000)}
ROUNDS = {"full": 20, "quick": 2}
TRANSFERS = 3  # rounds from host arrays to a result on the host


@dataclass(frozen=True)
class Case:
    """An op on prepared inputs.

    make: device -> a function without arguments that runs it and returns a Tensor.
    bytes: what it must move; 0 where that says nothing.
    tol: largest error against the CPU in float64, relative to the largest element.
    peers: what others have for it.
    """

    name: str
    make: Callable[[str, str], Callable[[], sg.Tensor]]
    bytes: int = 0
    tol: float = 1e-5
    peers: Callable[[], gpu_peers.Calls] = dict


def _cases(n: int, nnz: int) -> list[Case]:
    rng = np.random.default_rng(0)
    graph = power_law(n, nnz).tocsr()
    nnz = graph.nnz
    x = rng.standard_normal((n, 128))
    pairs = rng.integers(0, n, (2, nnz))
    values = rng.standard_normal(nnz)
    columns, entries = rng.integers(0, n, 8 * n), rng.standard_normal(8 * n)

    def matrix(device: str, dtype: str) -> sg.SparseTensor:
        data = graph.data.astype(dtype)
        return sg.csr(graph.indptr, graph.indices, data, graph.shape, check=False).to(device)

    def product(
        name: str, k: int, run: Callable[[Any, Any], Any] = matmul, stored: str = "float32"
    ) -> Case:
        """Of a matrix and n vectors of k; `stored`: the dtype that stands for float32."""

        def make(device: str, dtype: str) -> Callable[[], sg.Tensor]:
            dtype = stored if dtype == "float32" else dtype
            A, right = matrix(device, dtype), sg.tensor(x[:, :k].astype(dtype), device=device)
            return lambda: run(A, right)

        size = np.dtype(stored).itemsize
        moved = nnz * (size * (k + 1) + 4) + size * n * k
        tol = 1e-5 if size > 2 else 5e-3
        peers = (lambda: gpu_peers.spmm(graph, x[:, :k])) if not name and size == 4 else dict
        return Case(f"spmm, {stored}, k = {k}{name}", make, moved, tol, peers)

    def deterministic(A: Any, right: sg.Tensor) -> sg.Tensor:
        with sg.config(deterministic=True):
            return A @ right

    def heads(device: str, dtype: str) -> Callable[[], sg.Tensor]:
        weights = sg.tensor(np.stack([values[:nnz]] * 4, 1).astype(dtype), device=device)
        indptr, indices = graph.indptr, graph.indices
        A = sg.csr(indptr, indices, weights, (n, n, 4), check=False, device=device)
        right = sg.tensor(x[:, :64].reshape(n, 4, 16).astype(dtype), device=device)
        return lambda: sg.spmm(A, right)

    def square(device: str, dtype: str) -> Callable[[], sg.Tensor]:
        few = sg.coo([np.arange(8 * n) // 8, columns], entries.astype(dtype), (n, n))
        A = few.coalesce().to(device)
        return lambda: (A @ A).values

    def softmax_gradient(device: str, dtype: str) -> Callable[[], sg.Tensor]:
        A = matrix(device, dtype).requires_grad_()
        g = sg.tensor(values[:nnz].astype(dtype), device=device)
        return lambda: sg.grad(sg.softmax(A, 1).values, [A.values], g)[0]

    def sddmm(k: int) -> Case:
        def make(device: str, dtype: str) -> Callable[[], sg.Tensor]:
            A, left = matrix(device, dtype), sg.tensor(x[:, :k].astype(dtype), device=device)
            return lambda: sg.sddmm(left, left, A.pattern).values

        def peers() -> gpu_peers.Calls:
            return gpu_peers.sddmm(graph, x[:, :k])

        return Case(f"sddmm, float32, k = {k}", make, nnz * (8 * k + 12), peers=peers)

    def coalesce(device: str, dtype: str) -> Callable[[], sg.Tensor]:
        where = sg.tensor(pairs, dtype="int32", device=device).data
        numbers = sg.tensor(values.astype(dtype), device=device)
        options = {"check": False, "copy": False}
        return lambda: sg.coo(list(where), numbers, (n, n), **options).coalesce().values

    def sums(device: str, dtype: str) -> Callable[[], sg.Tensor]:
        A = sg.coo(list(pairs), values.astype(dtype), (n, n)).to(device)
        A.coalesce()
        return lambda: A.coalesce().values

    def softmax(device: str, dtype: str) -> Callable[[], sg.Tensor]:
        A = matrix(device, dtype)
        return lambda: sg.softmax(A, 1).values

    def backward(device: str, dtype: str) -> Callable[[], sg.Tensor]:
        A = matrix(device, dtype).requires_grad_()
        right = sg.tensor(x[:, :64].astype(dtype), device=device, requires_grad=True)

        def step() -> sg.Tensor:
            return sg.grad((A @ right).sum(), [right, A.values])[0]

        return step

    def step(cls: Any) -> Case:
        """Of an optimizer, on a table with the gradient of 4 n gathered rows of 64."""

        def make(device: str, dtype: str) -> Callable[[], sg.Tensor]:
            table = sg.tensor(x[:, :64].astype(dtype), device=device, requires_grad=True)
            optimizer = cls([table], lr=0.01)
            index = sg.tensor(columns[: 4 * n], dtype="int32", device=device)
            (sg.embedding(table, index) ** 2).sum().backward()

            def run() -> sg.Tensor:
                optimizer.step()
                return table

            return run

        return Case(f"{cls.__name__}, rows of 64, 4 n of them", make, tol=1e-4)

    def epoch(name: str, first: Callable[[], Any], second: Callable[[], Any]) -> Case:
        """Forward, backward and a step of Adam over the whole graph: the loss."""

        def make(device: str, dtype: str) -> Callable[[], sg.Tensor]:
            sg.manual_seed(0)
            model = sg.nn.ModuleList([first(), second()]).to(dtype).to(device)
            optimizer = sg.optim.Adam(model.parameters(), lr=0.01)
            A, right = matrix(device, dtype), sg.tensor(x.astype(dtype), device=device)
            target = sg.tensor(columns[:n] % 16, device=device)

            def run() -> sg.Tensor:
                optimizer.zero_grad()
                loss = sg.cross_entropy(model[1](sg.relu(model[0](right, A)), A), target)
                loss.backward()
                optimizer.step()
                return loss

            return run

        return Case(f"epoch of {name}", make, tol=1e-4)

    nn, optim = sg.nn, sg.optim
    optimizers = (optim.SGD, optim.Adagrad, optim.RowwiseAdagrad, optim.Adam)
    return [
        *(product("", k) for k in (1, 16, 64, 128)),
        product(", deterministic", 64, deterministic),
        product(", transposed", 64, lambda A, right: A.T @ right),
        product(", max", 64, lambda A, right: sg.spmm(A, right, "max")),
        product("", 64, stored="float16"),
        Case("spmm, float32, 4 heads of 16", heads, nnz * (4 * 68 + 4) + 4 * n * 64),
        *map(sddmm, (64, 128)),
        Case(
            "coalesce, new pattern",
            coalesce,
            peers=lambda: gpu_peers.coalesce(pairs, values, n),
        ),
        Case("coalesce, known pattern", sums, 40 * nnz),
        Case("softmax of rows", softmax, 8 * nnz),
        Case("softmax of rows and its gradient", softmax_gradient, 20 * nnz),
        Case("sparse @ sparse, 8 entries a row", square),
        Case("spmm and its gradients, k = 64", backward, tol=1e-4),
        *map(step, optimizers),
        epoch("GCN, 128, 64, 16", lambda: nn.GCNConv(128, 64), lambda: nn.GCNConv(64, 16)),
        epoch("GAT, 128, 8 x 8, 16", lambda: nn.GATConv(128, 8, 8), lambda: nn.GATConv(64, 16)),
    ]


def _events(cupy: Any, call: Callable[[], Any], rounds: int) -> list[float]:
    """Seconds of each round on the device."""
    spans = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(rounds)]
    for start, end in spans:
        start.record()
        call()
        end.record()
    sg.cuda.synchronize()
    return [cupy.cuda.get_elapsed_time(*span) / 1e3 for span in spans]


def _clock(call: Callable[[], Any], rounds: int) -> list[float]:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def _limits(cupy: Any, n: int, rounds: int) -> dict[str, float]:
    """Bytes a second of a copy, and of a gather of random rows of 64 floats."""
    table = cupy.ones((n, 64), np.float32)
    index = cupy.asarray(np.random.default_rng(0).integers(0, n, n))
    out = cupy.empty_like(table)
    found = {}
    for name, call in (
        ("copy", lambda: cupy.copyto(out, table)),
        ("gather of rows", lambda: cupy.take(table, index, axis=0, out=out)),
    ):
        call()
        found[name] = 2 * table.nbytes / statistics.median(_events(cupy, call, rounds))
    return found


def run(size: str = "full", say: Callable[[str], None] = print) -> dict[str, Any]:
    """All cases, as a document; DeviceError where there is no GPU, WrongResult for a wrong one."""
    from sparsegrad.backends import for_device

    cupy, rounds, (n, nnz) = for_device("cuda").xp, ROUNDS[size], SIZES[size]
    document: dict[str, Any] = {
        "size": size,
        "machine": fingerprint(),
        "cuda": sg.cuda.describe(),
        "commit": commit(),
        "limits": _limits(cupy, n, rounds),
        "results": [],
    }
    for case in _cases(n, nnz):
        row = _measured(cupy, case, rounds)
        document["results"].append(row)
        say(f"{case.name}: {row['seconds'] * 1e3:.3f} ms, CPU {row['cpu_seconds'] * 1e3:.1f} ms")
    return document


def _measured(cupy: Any, case: Case, rounds: int) -> dict[str, Any]:
    def on_gpu() -> Callable[[], sg.Tensor]:
        return case.make("cuda", "float32")

    exact = case.make("cpu", "float64")().detach().numpy()
    call = on_gpu()
    start = time.perf_counter()
    found = call().detach().numpy()
    first = time.perf_counter() - start
    error = _checked(case.name, case, found, exact)
    device = _events(cupy, call, rounds)
    del call
    with_transfers = _clock(lambda: on_gpu()().detach().numpy(), TRANSFERS)
    peers = {}
    for name, peer in case.peers().items():
        array = peer()
        on_host = array.get() if hasattr(array, "get") else array.cpu().numpy()
        _checked(f"{case.name}, {name}", case, on_host, exact)
        peers[name] = statistics.median(_events(cupy, peer, rounds))
    on_cpu = case.make("cpu", "float32")
    on_cpu()
    host = _clock(on_cpu, max(2, rounds // 4))
    return {
        "case": case.name,
        "error": error,
        "first_seconds": first,
        "seconds": statistics.median(device),
        "spread": [min(device), max(device)],
        "with_transfers_seconds": statistics.median(with_transfers),
        "cpu_seconds": statistics.median(host),
        "peers": peers,
        "bytes": case.bytes,
    }


def _checked(name: str, case: Case, found: np.ndarray, exact: np.ndarray) -> float:
    """The error of a result; WrongResult for one that is too large."""
    error = float(np.abs(found - exact).max(initial=0) / max(1.0, np.abs(exact).max(initial=0)))
    if not error <= case.tol:
        raise WrongResult(f"{name}: error {error:.2g} exceeds {case.tol:.2g}")
    return error


def markdown(document: dict[str, Any]) -> str:
    """The document as a table."""
    machine, limits = document["machine"], document["limits"]
    lines = [
        f"{document['cuda']['devices']}; driver {document['cuda']['driver']}, CuPy "
        f"{document['cuda']['cupy']}; against {machine['cpu']}, {machine['cores']} cores. "
        + ", ".join(f"{name} {rate / 1e9:.0f} GB/s" for name, rate in limits.items())
        + ".",
        "",
        "| case | GPU | from, to | first call | from host to host | GB/s | share of the gather |"
        " CPU | CPU / GPU | others on the GPU |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for r in document["results"]:
        rate = r["bytes"] / r["seconds"]
        share = f"{100 * rate / limits['gather of rows']:.0f} %" if rate else ""
        low, high = (f"{t * 1e3:.3f}" for t in r["spread"])
        cells = [
            r["case"],
            f"{r['seconds'] * 1e3:.3f} ms",
            f"{low}, {high}",
            f"{r['first_seconds']:.2f} s",
            f"{r['with_transfers_seconds'] * 1e3:.2f} ms",
            f"{rate / 1e9:.0f}" if rate else "",
            share,
            f"{r['cpu_seconds'] * 1e3:.2f} ms",
            f"{r['cpu_seconds'] / r['seconds']:.1f}",
            ", ".join(f"{name} {t * 1e3:.3f} ms" for name, t in r["peers"].items()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
