"""What a result was measured on: the machine without its name, versions, threads, commit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = [
    "Others",
    "available_memory",
    "commit",
    "cores",
    "fingerprint",
    "page_faults",
    "set_threads",
    "thread_env",
]

ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("numpy", "scipy", "numba", "torch", "jax", "jaxlib", "threadpoolctl")
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fingerprint() -> dict[str, Any]:
    """The machine and the versions, without host names or paths."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "ram_gib": round(_memory("MemTotal") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
        "blas": _blas(),
    }


def _cpu_model() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory(field: str) -> int:
    """Bytes from /proc/meminfo; 0 where there is none."""
    for line in _lines("/proc/meminfo"):
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def available_memory() -> int:
    """Bytes that can be had without swapping (a generous guess where the system does not say)."""
    return _memory("MemAvailable") or 8 * 2**30


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


class Others:
    """Cores that other processes kept busy since this was made; None where that is unknown."""

    def __init__(self) -> None:
        self._start = self._now()

    def cores(self) -> float | None:
        """On average."""
        now = self._now()
        if self._start is None or now is None:
            return None
        elapsed, busy, own = (b - a for a, b in zip(self._start, now, strict=True))
        return max(0.0, busy - own) / elapsed if elapsed > 0 else None

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Seconds: the clock, those all cores were busy, those this process (and children) used."""
        first = next(iter(_lines("/proc/stat")), "")
        if not first.startswith("cpu "):
            return None
        user, nice, system, _idle, _iowait, irq, softirq, *rest = map(int, first.split()[1:])
        ticks = user + nice + system + irq + softirq + (rest[0] if rest else 0)  # rest: stolen
        own = os.times()
        used = own.user + own.system + own.children_user + own.children_system
        return own.elapsed, ticks / os.sysconf("SC_CLK_TCK"), used


def page_faults(fn: Callable[[], Any]) -> int | None:
    """Pages that the system had to map during a call; None where it does not say."""
    try:
        import resource
    except ImportError:
        return None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    fn()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _blas() -> list[str]:
    try:
        import threadpoolctl
    except ImportError:
        return []
    return sorted(
        {
            " ".join(str(pool.get(key) or "") for key in ("internal_api", "version")).strip()
            for pool in threadpoolctl.threadpool_info()
        }
    )


def commit() -> str:
    """The commit of the code that ran, marked where tracked files of the package differ."""
    git = ("git", "-C", str(ROOT))
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        status = [*git, "status", "--porcelain", "--", "sparsegrad", "bench", ":!bench/results"]
        changed = subprocess.run(status, capture_output=True, text=True)
    except OSError:
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def thread_env(n: int) -> dict[str, str]:
    """Environment of a subprocess in which every library uses `n` threads."""
    return {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(n))}


@contextmanager
def set_threads(n: int, torch: bool) -> Iterator[dict[str, int]]:
    """Every library at `n` threads; yields what each then says it uses."""
    from sparsegrad.backends import cpu_jit

    said: dict[str, int] = {}
    before = cpu_jit.get_num_threads()
    limits: Any = None
    cpu_jit.set_num_threads(n)
    said["sparsegrad"] = cpu_jit.get_num_threads()
    said["scipy.sparse"] = 1  # it has no parallel product
    if "jax" in sys.modules:
        said["jax"] = cores()  # its pool is made at import and cannot be resized
    if torch:
        import torch as library

        torch_before = library.get_num_threads()
        library.set_num_threads(n)
        said["torch"] = library.get_num_threads()
    try:
        import threadpoolctl
    except ImportError:
        pass
    else:
        limits = threadpoolctl.threadpool_limits(n)
        for pool in threadpoolctl.threadpool_info():
            said[pool["internal_api"]] = pool["num_threads"]
    try:
        yield said
    finally:
        if limits is not None:
            limits.restore_original_limits()
        cpu_jit.set_num_threads(before)
        if torch:
            library.set_num_threads(torch_before)
