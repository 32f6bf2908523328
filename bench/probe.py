"""Memory and cold start of one candidate, in a process of its own.

    python -m bench.probe '{"case": ..., "variant": {...}, "candidate": ..., "warm_up": {...}}'

Memory is the resident high-water mark of the process (VmHWM), set back through
/proc/self/clear_refs just before the call, less the resident size at that moment. Nothing that
allocates can hide from it, which is not true of tracemalloc (it sees neither torch nor mmap).
Everything that is not the call's own is there before: libraries, thread pools and compiled
kernels are loaded by a call on a small variant, and glibc is told to return large blocks at once
instead of keeping them for later. Other systems only have the peak of the whole process, so there
the number is not given.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.machine import ROOT, thread_env
from sparsegrad import memory

__all__ = ["METHOD", "measure"]

METHOD = "resident high-water mark of a fresh process (VmHWM, reset before the call)"


def measure(
    case: str, variant: Mapping[str, Any], candidate: str, warm_up: Mapping[str, Any], threads: int
) -> dict[str, Any]:
    """Run the probe; what it found, or {"failed": why}."""
    request = {
        "case": case,
        "variant": dict(variant),
        "candidate": candidate,
        "warm_up": dict(warm_up),
    }
    env = thread_env(threads) | {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
    command = [sys.executable, "-m", "bench.probe", json.dumps(request)]
    run = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        lines = run.stderr.strip().splitlines() or [f"exit status {run.returncode}"]
        return {"failed": lines[-1]}
    return json.loads(run.stdout.splitlines()[-1])


def main(request: Mapping[str, Any]) -> dict[str, Any]:
    """In the process of the candidate."""
    from bench.cases import all_cases

    case = all_cases()[request["case"]]
    small = _named(case.candidates(request["warm_up"]), request["candidate"])()
    start = time.perf_counter()
    small()
    found: dict[str, Any] = {"cold_start_s": time.perf_counter() - start}
    small()
    fn = _named(case.candidates(request["variant"]), request["candidate"])()
    for key in ("first_bytes", "steady_bytes"):
        found[key] = _extra(fn)
    return found


def _named(candidates: list[Any], name: str) -> Any:
    return next(c.make for c in candidates if c.name == name)


def _extra(fn: Any) -> int | None:
    """Bytes by which the process grew at most during one call, its results included."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    memory.clear()  # what our pool keeps would count as no memory
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to the present size
    before = _status("VmRSS")
    kept = fn()
    peak = _status("VmHWM")
    del kept
    return max(0, peak - before)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # a thread pool that is slow to end is no concern of ours
