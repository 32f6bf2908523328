"""How `python -m bench gpu` measures: events of CUDA around each call, after the result was
compared; nothing waits for the device between them."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import sparsegrad as sg
from bench.oracle import WrongResult
from bench.peers import PEERS

__all__ = ["FULL", "QUICK", "Call", "Case", "Effort", "Gpu", "Peer", "checked", "on_host"]

Call = Callable[[], Any]


@dataclass(frozen=True)
class Peer:
    """What another library has for an op.

    make: device -> a function without arguments that runs it on prepared inputs and gives the same
        numbers as ours.
    """

    name: str
    make: Callable[[str], Call]

    def missing(self) -> str | None:
        """Why it cannot be used on a GPU, None if it can."""
        if self.name.startswith("cupyx"):
            return None  # we could not be here without it
        if (why := PEERS["torch"].missing()) is not None:
            return why
        import torch

        return None if torch.cuda.is_available() else "finds no GPU"


@dataclass(frozen=True)
class Case:
    """An op on prepared inputs.

    make: device, dtype -> a function without arguments that runs it and returns a Tensor.
    bytes: what it must move; 0 where that says nothing.
    tol: largest error against the CPU in float64, relative to the largest element.
    calls: which call's result is compared; later ones also depend on what earlier ones changed.
    """

    name: str
    make: Callable[[str, str], Call]
    bytes: int = 0
    tol: float = 1e-5
    peers: Sequence[Peer] = ()
    calls: int = 1


@dataclass(frozen=True)
class Effort:
    """Calls before measuring, then as many as fit into the seconds, within these limits."""

    warmup: int
    least: int
    most: int
    seconds: float

    def rounds(self, one: float) -> int:
        return int(min(self.most, max(self.least, self.seconds / max(one, 1e-9))))


FULL = Effort(warmup=10, least=10, most=50, seconds=2.0)
QUICK = Effort(warmup=0, least=2, most=2, seconds=0.0)


def on_host(result: Any) -> np.ndarray:
    """A result of whatever library as an array; of a matrix the values, row by row."""
    if isinstance(result, sg.Tensor):
        return result.detach().numpy()
    if hasattr(result, "get"):  # CuPy's arrays and matrices
        result = result.get()
    elif hasattr(result, "cpu"):
        result = result.detach().cpu()
        if str(result.layout) == "torch.sparse_csr":
            import scipy.sparse as sp

            parts = result.values(), result.col_indices(), result.crow_indices()
            result = sp.csr_array(tuple(t.numpy() for t in parts), shape=tuple(result.shape))
        else:
            result = result.numpy()
    if hasattr(result, "sorted_indices"):
        return result.sorted_indices().data
    return np.asarray(result)


def checked(case: Case, found: np.ndarray, exact: np.ndarray) -> float:
    """The error of a result; WrongResult for one that is too large."""
    if found.shape != exact.shape:
        raise WrongResult(f"shape {found.shape}, expected {exact.shape}")
    error = float(np.abs(found - exact).max(initial=0) / max(1.0, np.abs(exact).max(initial=0)))
    if not error <= case.tol:
        raise WrongResult(f"error {error:.2g} exceeds {case.tol:.2g}")
    return error


def _called(call: Call, times: int) -> np.ndarray:
    for _ in range(times - 1):
        call()
    return on_host(call())


class Gpu:
    """The current device, through CuPy."""

    def __init__(self, effort: Effort) -> None:
        from sparsegrad.backends import for_device

        self.cupy, self.effort = for_device("cuda").xp, effort
        cache = self.cupy.cuda.Device().attributes.get("L2CacheSize", 0)
        self._flush = self.cupy.empty(max(2 * cache, 1 << 20), np.uint8)

    def timed(self, call: Call, cold: bool = False) -> tuple[list[float], list[float]]:
        """Seconds of each call on the device, and on the host until it came back. `cold`: what the
        device's cache held before is written over."""
        for _ in range(self.effort.warmup):
            call()
        (one,), _ = self._events(call, 1, cold)
        return self._events(call, self.effort.rounds(one), cold)

    def _events(self, call: Call, rounds: int, cold: bool) -> tuple[list[float], list[float]]:
        event = self.cupy.cuda.Event
        spans = [(event(), event()) for _ in range(rounds)]
        host = []
        for start, end in spans:
            if cold:
                self._flush.fill(0)
            start.record()
            before = time.perf_counter()
            call()
            host.append(time.perf_counter() - before)
            end.record()
        sg.cuda.synchronize()
        return [self.cupy.cuda.get_elapsed_time(*span) / 1e3 for span in spans], host

    def release(self) -> None:
        """Give what libraries keep for the next arrays back to the device."""
        sg.cuda.empty_cache()
        if (torch := sys.modules.get("torch")) is not None:
            torch.cuda.empty_cache()

    def limits(self, n: int) -> dict[str, float]:
        """Bytes a second of a copy, of a gather of random rows of 64 floats, both reading and
        writing, and of what comes from host memory."""
        cupy, table = self.cupy, self.cupy.ones((n, 64), np.float32)
        index = cupy.asarray(np.random.default_rng(0).integers(0, n, n))
        out, there = cupy.empty_like(table), table.get()

        def rate(call: Call, nbytes: int) -> float:
            return nbytes / statistics.median(self.timed(call)[0])

        return {
            "copy": rate(lambda: cupy.copyto(out, table), 2 * table.nbytes),
            "gather of rows": rate(
                lambda: cupy.take(table, index, axis=0, out=out), 2 * table.nbytes
            ),
            "from the host": rate(lambda: out.set(there), table.nbytes),
        }

    def measured(self, case: Case) -> dict[str, Any]:
        """A case with its peers. What fails or is wrong says so and is not timed."""
        exact = _called(case.make("cpu", "float64"), case.calls)
        row: dict[str, Any] = {"case": case.name, "bytes": case.bytes}
        try:
            row |= self._ours(case, exact)
        except Exception as error:  # whatever a kernel or a library does; the others go on
            row["failed"] = _line(error)
        row["peers"] = {peer.name: self._peer(case, peer, exact) for peer in case.peers}
        call = case.make("cpu", "float32")
        call()
        row["cpu_seconds"] = statistics.median(_clock(call, 5, 3.0))
        return row

    def _ours(self, case: Case, exact: np.ndarray) -> dict[str, Any]:
        call = case.make("cuda", "float32")
        start = time.perf_counter()
        found = on_host(call())
        first = time.perf_counter() - start
        if case.calls > 1:
            found = _called(call, case.calls - 1)
        error = checked(case, found, exact)
        (device, host), (cold, _) = self.timed(call), self.timed(call, cold=True)
        del call
        whole = _clock(lambda: on_host(case.make("cuda", "float32")()), 3, 10.0)
        return {
            "error": error,
            "first_seconds": first,
            "seconds": statistics.median(device),
            "quartiles": np.percentile(device, (25, 75)).tolist(),
            "rounds": len(device),
            "cold_seconds": statistics.median(cold),
            "host_seconds": statistics.median(host),
            "with_transfers_seconds": statistics.median(whole),
        }

    def _peer(self, case: Case, peer: Peer, exact: np.ndarray) -> dict[str, Any]:
        if (why := peer.missing()) is not None:
            return {"missing": why}
        try:
            call = peer.make("cuda")
            error = checked(case, _called(call, case.calls), exact)
            device, _ = self.timed(call)
        except Exception as error:
            return {"failed": _line(error)}
        return {"seconds": statistics.median(device), "error": error}


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _clock(call: Call, most: int, budget: float) -> list[float]:
    """Seconds of each call, which ends when its result is there: at most so many, two at least."""
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < most and sum(seconds) < budget):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds
