"""Training steps on larger and larger matrices: does time grow as the entries do, and memory too?

    python -m bench scaling --json scaling.json --plot scaling.png

A step is A @ X, the gradients of A's values and of X, and one of SGD. Rows have ten entries, and
where these lie decides how long one takes: in random columns every entry reads a row of X that no
cache holds, the worst case there is; between neighbours, as in meshes, images and graphs of points,
most rows of X are read again soon. What the memory itself does is measured beside it: NumPy's
`take` of the row of X that every entry reads, once, where a step reads three such rows. A size runs
in a process of its own, so that its peak of resident memory is its own; a small one in several, of
which the fastest counts: how much of it lies in the last cache is luck.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine

__all__ = ["ENTRIES", "LIMIT", "SERIES", "plot", "run", "slope", "text"]

ENTRIES = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
SERIES = (("random", 16), ("random", 64), ("near", 16), ("near", 64))  # columns of A, width of X
LIMIT = 20 * 2**30  # bytes in which all of them shall train
_PER_ROW = 10
_SMALL = 10_000_000  # entries below which a size runs several times
_STEPS, _SECONDS = 5, 1.0  # that are timed, at least
_TAKEN = 2048  # rows at a time


def run(
    entries: Sequence[int],
    series: Sequence[tuple[str, int]] = SERIES,
    say: Callable[[str], None] = lambda text: None,
    processes: int = 3,
) -> dict[str, Any]:
    """For each of `series` one row a size: seconds of the first step, of a later one, and of
    NumPy's `take`, and peak bytes; and the slopes of the latter two times."""
    found = []
    for columns, width in series:
        rows = []
        for nnz in entries:
            say(f"scaling: {_name(columns, width)}, {nnz:,} entries")
            times = processes if nnz < _SMALL else 1
            tried = [_row(columns, width, nnz) for _ in range(times)]
            rows.append(min(tried, key=lambda row: row.get("step_s", math.inf)))
        whole = [row for row in rows if "failed" not in row]
        slopes = {"slope": slope(whole), "take_slope": slope(whole, "take_s")}
        found.append({"columns": columns, "width": width, "rows": rows} | slopes)
    return {
        "commit": machine.commit(),
        "machine": machine.fingerprint(),
        "threads": machine.cores(),
        "series": found,
    }


def _row(columns: str, width: int, nnz: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.scaling", columns, str(width), str(nnz)]
    done = subprocess.run(command, cwd=machine.ROOT, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"nnz": nnz, "failed": lines[-1]}
    return json.loads(done.stdout)


def _name(columns: str, width: int) -> str:
    return f"{columns} columns, X of width {width}"


def slope(rows: Sequence[dict[str, Any]], seconds: str = "step_s") -> float | None:
    """Of log(seconds) over log(entries), by least squares: 1 is proportional."""
    if len(rows) < 2:
        return None
    x, y = (np.log([row[key] for row in rows]) for key in ("nnz", seconds))
    return float(np.polyfit(x, y, 1)[0])


def text(document: dict[str, Any]) -> str:
    """The document as lines of text."""
    lines = []
    for series in document["series"]:
        lines.append(f"{_name(series['columns'], series['width'])}:")
        for row in series["rows"]:
            if "failed" in row:
                lines.append(f"{row['nnz']:>12,} entries: failed: {row['failed']}")
                continue
            lines.append(
                f"{row['nnz']:>12,} entries: {row['step_s'] * 1e3:10,.1f} ms a step, "
                f"{row['step_s'] / row['nnz'] * 1e9:5.1f} ns an entry, "
                f"{row['take_s'] / row['nnz'] * 1e9:5.1f} for NumPy's take of a row, first "
                f"{row['first_s'] * 1e3:10,.1f} ms, peak {row['peak_bytes'] / 2**30:5.2f} GiB; A "
                f"takes {row['sparse_bytes'] / 2**20:,.0f} MiB, {row['saved']:.4%} less than dense"
            )
        if series["slope"] is not None:
            lines.append(
                f"slope of log time over log entries: {series['slope']:.2f}, of NumPy's take "
                f"{series['take_slope']:.2f}"
            )
    return "\n".join(lines) + "\n"


def plot(document: dict[str, Any], path: str | Path) -> None:
    """Time of a step for each entry, where a flat line is a slope of 1, and peak memory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    kinds = list(dict.fromkeys(series["columns"] for series in document["series"]))
    widths = list(dict.fromkeys(series["width"] for series in document["series"]))
    for series in document["series"]:
        rows = [row for row in series["rows"] if "failed" not in row]
        nnz, name = [row["nnz"] for row in rows], _name(series["columns"], series["width"])
        style = {
            "color": f"C{kinds.index(series['columns'])}",
            "linestyle": ("-", "--", ":")[widths.index(series["width"]) % 3],
            "marker": "os^"[widths.index(series["width"]) % 3],
        }
        sloped = name
        if series["slope"] is not None:
            sloped += f": slope {series['slope']:.2f} ({series['take_slope']:.2f})"
        each = {key: [row[key] / row["nnz"] * 1e9 for row in rows] for key in ("step_s", "take_s")}
        left.plot(nnz, each["step_s"], label=sloped, **style)
        left.plot(nnz, each["take_s"], **style, alpha=0.5, markerfacecolor="none")
        peaks = [row["peak_bytes"] / 2**30 for row in rows]
        right.loglog(nnz, peaks, label=name, **style)
    right.axhline(LIMIT / 2**30, color="grey", linestyle=":", label="limit")
    left.set(xscale="log", ylim=(0, None), xlabel="stored entries", ylabel="nanoseconds an entry")
    left.set(title="a training step (pale: NumPy's take of a row)")
    right.set(xlabel="stored entries", ylabel="GiB", title="peak of resident memory")
    for axes in (left, right):
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


# ---- one size, in its process --------------------------------------------------------------------
def _columns(kind: str, nnz: int) -> np.ndarray:
    """(n, 10) int32, sorted by row. "random": uniform. "near": a row is a cell of a grid of three
    dimensions, numbered in one line whose ends meet; its entries are ten of the 27 cells around it,
    one from each tenth of them."""
    n, rng = max(1, math.ceil(nnz / _PER_ROW)), np.random.default_rng(0)
    if kind == "random":
        found = rng.integers(0, n, (n, _PER_ROW), dtype=np.int32)
    else:
        side = max(3, round(n ** (1 / 3)))
        steps = np.array([-1, 0, 1], np.int32)
        around = (side * side * steps[:, None, None] + side * steps[:, None] + steps).ravel()
        edges = np.arange(_PER_ROW + 1) * around.size // _PER_ROW
        chosen = rng.integers(edges[:-1], edges[1:], (side**3, _PER_ROW), dtype=np.int8)
        found = around[chosen]
        found += np.arange(side**3, dtype=np.int32)[:, None]
        found %= np.int32(side**3)
    found.sort(axis=1)
    return found


def measure(columns: str, width: int, nnz: int) -> dict[str, Any]:
    """In the process of one size."""
    import sparsegrad as sg

    rng = np.random.default_rng(1)

    def matrix() -> sg.SparseTensor:  # lets go of what it was made of
        indices = _columns(columns, nnz)
        n = len(indices)
        values = rng.standard_normal(indices.size, dtype=np.float32)
        indptr = np.arange(n + 1) * _PER_ROW
        return sg.csr(indptr, indices.ravel(), values, (n, n), requires_grad=True)

    a = matrix()
    n = a.shape[0]
    x = sg.tensor(rng.standard_normal((n, width), dtype=np.float32), requires_grad=True)
    g = sg.from_numpy(rng.standard_normal((n, width), dtype=np.float32))
    optimizer = sg.optim.SGD([a, x], lr=1e-3)

    def step() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        (a @ x).backward(g)
        optimizer.step()
        return time.perf_counter() - start

    def median() -> float:
        times = [step()]
        while len(times) < _STEPS or sum(times) < _SECONDS:
            times.append(step())
        return statistics.median(times)

    first, later, peak = step(), median(), _peak()
    taken = _take(x.detach().numpy(), a.pattern.indices)
    dense = 4 * n * n
    return {
        "nnz": a.nnz,
        "first_s": first,
        "step_s": later,
        "take_s": taken,
        "peak_bytes": peak,
        "sparse_bytes": a.nbytes,
        "dense_bytes": dense,
        "saved": 1 - a.nbytes / dense,
    }


def _take(x: np.ndarray, rows: np.ndarray) -> float:
    """Median seconds to read rows of x on all threads, into memory that stays in the cache."""
    threads = machine.cores()

    def part(t: int) -> None:
        out = np.empty((_TAKEN, x.shape[1]), x.dtype)
        for i in range(t * len(rows) // threads, (t + 1) * len(rows) // threads, _TAKEN):
            ids = rows[i : i + _TAKEN]
            np.take(x, ids, axis=0, out=out[: len(ids)], mode="clip")

    def seconds() -> float:
        start = time.perf_counter()
        list(pool.map(part, range(threads)))
        return time.perf_counter() - start

    with ThreadPoolExecutor(threads) as pool:
        seconds()
        return statistics.median(seconds() for _ in range(_STEPS))


def _peak() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))), flush=True)
    os._exit(0)
