"""Training steps on larger and larger matrices: does time grow as the entries do, and memory too?

    python -m bench scaling --json scaling.json --plot scaling.png

A size runs in a process of its own, so that its peak of resident memory is its own. Rows have ten
entries in random columns; a step is A @ X, the gradients of A's values and of X, and one of SGD.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine

__all__ = ["ENTRIES", "LIMIT", "plot", "run", "slope", "text"]

ENTRIES = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
LIMIT = 20 * 2**30  # bytes in which all of them shall train
_PER_ROW = 10
_WIDTH = 16
_STEPS = 5


def run(entries: Sequence[int], say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """One row a size: seconds of the first step and of a later one, peak bytes; and the slope."""
    rows = []
    for nnz in entries:
        say(f"scaling: {nnz:,} entries")
        command = [sys.executable, "-m", "bench.scaling", str(nnz)]
        done = subprocess.run(command, cwd=machine.ROOT, capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            rows.append({"nnz": nnz, "failed": lines[-1]})
        else:
            rows.append(json.loads(done.stdout))
    return {
        "commit": machine.commit(),
        "machine": machine.fingerprint(),
        "threads": machine.cores(),
        "rows": rows,
        "slope": slope([row for row in rows if "failed" not in row]),
    }


def slope(rows: Sequence[dict[str, Any]]) -> float | None:
    """Of log(seconds) over log(entries), by least squares: 1 is proportional."""
    if len(rows) < 2:
        return None
    x, y = (np.log([row[key] for row in rows]) for key in ("nnz", "step_s"))
    return float(np.polyfit(x, y, 1)[0])


def text(document: dict[str, Any]) -> str:
    """The document as lines of text."""
    lines = []
    for row in document["rows"]:
        if "failed" in row:
            lines.append(f"{row['nnz']:>12,} entries: failed: {row['failed']}")
            continue
        lines.append(
            f"{row['nnz']:>12,} entries: {row['step_s'] * 1e3:10,.1f} ms a step, first "
            f"{row['first_s'] * 1e3:10,.1f} ms, peak {row['peak_bytes'] / 2**30:5.2f} GiB; A takes "
            f"{row['sparse_bytes'] / 2**20:,.0f} MiB, {row['saved']:.4%} less than dense"
        )
    if document["slope"] is not None:
        lines.append(f"slope of log time over log entries: {document['slope']:.2f}")
    return "\n".join(lines) + "\n"


def plot(document: dict[str, Any], path: str | Path) -> None:
    """Time of a step and peak memory over the entries, both axes logarithmic."""
    from matplotlib.figure import Figure

    rows = [row for row in document["rows"] if "failed" not in row]
    nnz = [row["nnz"] for row in rows]
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.loglog(nnz, [row["step_s"] for row in rows], "o-", label="a step")
    left.loglog(nnz, [row["first_s"] for row in rows], "s--", label="the first step")
    left.set(xlabel="stored entries", ylabel="seconds", title=f"slope {document['slope'] or 1:.2f}")
    right.loglog(nnz, [row["peak_bytes"] / 2**30 for row in rows], "o-", label="whole process")
    right.axhline(LIMIT / 2**30, color="grey", linestyle=":", label="limit")
    right.set(xlabel="stored entries", ylabel="GiB", title="peak of resident memory")
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def measure(nnz: int) -> dict[str, Any]:
    """In the process of one size."""
    import sparsegrad as sg

    n = max(1, math.ceil(nnz / _PER_ROW))
    rng = np.random.default_rng(0)
    cols = rng.integers(0, n, (n, _PER_ROW), dtype=np.int32)
    cols.sort(axis=1)
    values = rng.standard_normal(n * _PER_ROW, dtype=np.float32)
    a = sg.csr(np.arange(n + 1) * _PER_ROW, cols.ravel(), values, (n, n), requires_grad=True)
    x = sg.tensor(rng.standard_normal((n, _WIDTH), dtype=np.float32), requires_grad=True)
    g = sg.from_numpy(rng.standard_normal((n, _WIDTH), dtype=np.float32))
    optimizer = sg.optim.SGD([a, x], lr=1e-3)

    def step() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        (a @ x).backward(g)
        optimizer.step()
        return time.perf_counter() - start

    first = step()
    dense = 4 * n * n
    return {
        "nnz": a.nnz,
        "first_s": first,
        "step_s": statistics.median(step() for _ in range(_STEPS)),
        "peak_bytes": _peak(),
        "sparse_bytes": a.nbytes,
        "dense_bytes": dense,
        "saved": 1 - a.nbytes / dense,
    }


def _peak() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))), flush=True)
    os._exit(0)
