"""`python -m bench gpu`: ops on a CUDA device against the same ops on the CPU, and against CuPy and
PyTorch on the device.

Times on the device are those of CUDA events. Beside them stand, measured in the same run, the
bandwidth of a copy and of a gather of random rows, which bound what any kernel can reach; the
bytes of an op are those it must move at least, every gathered row counted. "From host to host" is
the wall clock from arrays of NumPy to a result of NumPy: tensors and patterns are made, moved and
their index work is done once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import sparsegrad as sg
from bench import gpu_cases
from bench.gpu_measure import FULL, QUICK, Gpu
from bench.machine import commit, fingerprint

__all__ = ["markdown", "run"]

# The table of 64 columns is larger than the cache of any GPU.
SIZES = {"full": (500_000, 5_000_000), "quick": (200, 1_000)}


def run(
    size: str = "full", only: Sequence[str] = (), say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Cases whose names contain one of `only`, or all, as a document; DeviceError where there is no
    GPU, ValueError where no case is meant."""
    gpu, (n, nnz) = Gpu(FULL if size == "full" else QUICK), SIZES[size]
    cases = gpu_cases.all_cases(n, nnz)
    chosen = [c for c in cases if not only or any(text in c.name for text in only)]
    if not chosen:
        raise ValueError(f"no case has {' or '.join(only)} in its name")
    document: dict[str, Any] = {
        "kind": "gpu",
        "size": [n, nnz],
        "machine": fingerprint() | {"threads": sg.get_num_threads()},
        "cuda": sg.cuda.describe(),
        "commit": commit(),
        "limits": gpu.limits(n),
        "results": [],
    }
    start = time.perf_counter()
    for case in chosen:
        row = gpu.measured(case)
        document["results"].append(row)
        gpu.release()
        found = row.get("failed") or f"{row['seconds'] * 1e3:.3f} ms"
        cpu, since = row["cpu_seconds"] * 1e3, time.perf_counter() - start
        say(f"{since:4.0f} s  {case.name}: {found}, CPU {cpu:.1f} ms")
    return document


def markdown(document: dict[str, Any]) -> str:
    """The document as tables."""
    machine, limits, (n, nnz) = document["machine"], document["limits"], document["size"]
    cuda, rows = document["cuda"], document["results"]
    lines = [
        f"{cuda['devices']}; driver {cuda['driver']}, {cuda['libraries']}, CuPy {cuda['cupy']}; "
        f"against {machine['cpu']}, {machine['threads']} threads. {n:,} nodes, {nnz:,} entries. "
        + ", ".join(f"{name} {rate / 1e9:.0f} GB/s" for name, rate in limits.items())
        + ".",
        "",
        *_table(
            "case | GPU | quartiles | cold cache | until the host goes on | first call | "
            "from host to host | GB/s | share of the gather | CPU | CPU / GPU",
            [_cells(row, limits) for row in rows],
        ),
    ]
    found = [(row, name, peer) for row in rows for name, peer in row["peers"].items()]
    peers = [entry for entry in found if "missing" not in entry[2]]
    if peers:
        lines += ["", "Others on the same GPU; a ratio above 1 says that we are faster.", ""]
        lines += _table("case | other | its time | its time / ours", map(_rival, peers))
    timed = [f["seconds"] / r["seconds"] for r, _, f in peers if "seconds" in f and "seconds" in r]
    if timed:
        slower = sum(ratio < 1 for ratio in timed)
        mean = statistics.geometric_mean(timed)
        lines += ["", f"Geometric mean {mean:.2f}; faster than us: {slower} of {len(timed)}."]
    for why in sorted({peer["missing"] for *_, peer in found if "missing" in peer}):
        names = dict.fromkeys(name for _, name, peer in found if peer.get("missing") == why)
        lines += ["", f"Left out, PyTorch {why}: {'; '.join(names)}."]
    return "\n".join(lines) + "\n"


def _table(head: str, rows: Any) -> list[str]:
    names = head.split(" | ")
    rule = ["---", *["---:"] * (len(names) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (names, rule, *rows)]


def _cells(row: dict[str, Any], limits: dict[str, float]) -> list[str]:
    cpu = f"{row['cpu_seconds'] * 1e3:.2f} ms"
    if "failed" in row:
        return [row["case"], row["failed"], *[""] * 7, cpu, ""]
    low, high = row["quartiles"]
    rate = row["bytes"] / row["seconds"]
    return [
        row["case"],
        f"{row['seconds'] * 1e3:.3f} ms",
        f"{low * 1e3:.3f}, {high * 1e3:.3f}",
        f"{row['cold_seconds'] * 1e3:.3f} ms",
        f"{row['host_seconds'] * 1e3:.3f} ms",
        f"{row['first_seconds']:.2f} s",
        f"{row['with_transfers_seconds'] * 1e3:.2f} ms",
        f"{rate / 1e9:.0f}" if rate else "",
        f"{100 * rate / limits['gather of rows']:.0f} %" if rate else "",
        cpu,
        f"{row['cpu_seconds'] / row['seconds']:.1f}",
    ]


def _rival(entry: tuple[dict[str, Any], str, dict[str, Any]]) -> list[str]:
    row, name, found = entry
    if "seconds" not in found:
        return [row["case"], name, found["failed"], ""]
    ratio = f"{found['seconds'] / row['seconds']:.2f}" if "seconds" in row else ""
    return [row["case"], name, f"{found['seconds'] * 1e3:.3f} ms", ratio]
