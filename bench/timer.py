"""The one timer: interleaved rounds, medians with spread, and a noise floor.

Two programs timed one after the other are compared across whatever else the machine did meanwhile.
Here every round times each candidate once, so that a slow moment hits all alike, and ratios are
taken within rounds. The first candidate runs twice a round: how far its two runs differ (A/A) is
what the machine cannot resolve.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

__all__ = ["AGAIN", "FULL", "QUICK", "Effort", "Samples", "Spread", "Timer", "paired"]

_SLOW = 8  # times as long as the first candidate: much slower
AGAIN = "(again)"  # the name under which the A/A run of the first candidate appears


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    warmup: untimed calls of each candidate before the first round.
    min_rounds, max_rounds, budget_s: rounds, between the two, as many as the budget allows. A
        candidate much slower than the first one leaves after `min_rounds`.
    sample_s: a call shorter than this is repeated until a sample takes as long.
    settle_s: pause before each sample, in which the threads of the candidate before go to sleep:
        OpenMP's keep a core busy for some milliseconds after the work is done.
    """

    warmup: int = 2
    min_rounds: int = 5
    max_rounds: int = 50
    budget_s: float = 6.0
    sample_s: float = 0.01
    settle_s: float = 0.02


FULL = Effort()
QUICK = Effort(warmup=1, min_rounds=5, max_rounds=10, budget_s=1.0, sample_s=0.002, settle_s=0.01)


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        q1, median, q3 = np.percentile(numbers, [25, 50, 75])
        return cls(float(median), float(q1), float(q3))

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Samples:
    """Seconds a call, one number a round (the mean of `inner` calls)."""

    seconds: tuple[float, ...]
    inner: int = 1

    @property
    def spread(self) -> Spread:
        return Spread.of(self.seconds)


def paired(base: Samples, other: Samples) -> Spread:
    """`other` / `base`, taken within each round that both took part in."""
    return Spread.of([b / a for a, b in zip(base.seconds, other.seconds)])


class Timer:
    """Times functions of no arguments. `clock` and `sleep` are parameters for the sake of tests."""

    def __init__(
        self,
        effort: Effort = FULL,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.effort, self.clock, self.sleep = effort, clock, sleep

    def once(self, fn: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds and result of one call: the first one, which is reported apart."""
        with _gc_off():
            start = self.clock()
            result = fn()
            return self.clock() - start, result

    def rounds(self, fns: Mapping[str, Callable[[], Any]]) -> dict[str, Samples]:
        """Samples of every function by name, and of the first one again under `AGAIN`."""
        if not fns:
            return {}
        todo = dict(fns)
        first = next(iter(todo))
        todo[AGAIN] = todo[first]
        order = random.Random(0)
        with _gc_off():
            calls = {name: self._call(fn) for name, fn in fns.items()}
            calls[AGAIN] = calls[first]
            inner = {name: self._inner(call) for name, call in calls.items()}
            rounds = self._rounds(calls, inner, _SLOW * calls[first])
            seconds: dict[str, list[float]] = {name: [] for name in todo}
            for r in range(max(rounds.values())):
                gc.collect()
                names = [name for name in todo if r < rounds[name]]
                order.shuffle(names)  # turning the order would leave each with the same neighbour
                for name in names:
                    seconds[name].append(self._sample(todo[name], inner[name]))
        return {name: Samples(tuple(seconds[name]), inner[name]) for name in todo}

    def _call(self, fn: Callable[[], Any]) -> float:
        """About how long a call takes; warms it up on the way."""
        for _ in range(self.effort.warmup):
            fn()
        call = self._run(fn, 1)
        inner = self._inner(call)
        return call if inner == 1 else self._run(fn, inner) / inner  # a short one is mostly noise

    def _inner(self, call: float) -> int:
        """Calls a sample."""
        enough = self.effort.sample_s
        return 1 if call >= enough else math.ceil(enough / max(call, 1e-7))

    def _rounds(
        self, calls: Mapping[str, float], inner: Mapping[str, int], limit: float
    ) -> dict[str, int]:
        """Rounds by name: the same for all, so that medians are of the same moments, except for
        those whose call is over `limit` and would leave too few for the rest."""
        e = self.effort
        quick = {name for name, call in calls.items() if call <= limit}
        cost = sum(calls[n] * inner[n] * 1.1 + e.settle_s for n in quick)
        rounds = int(min(max(e.budget_s / max(cost, 1e-9), e.min_rounds), e.max_rounds))
        return {name: rounds if name in quick else min(rounds, e.min_rounds) for name in calls}

    def _sample(self, fn: Callable[[], Any], inner: int) -> float:
        self.sleep(self.effort.settle_s)
        if inner > 1:
            # Wakes threads and fills caches, which a long call does for itself.
            self._run(fn, math.ceil(inner / 10))
        return self._run(fn, inner) / inner

    def _run(self, fn: Callable[[], Any], times: int) -> float:
        repeat = range(times)
        start = self.clock()
        for _ in repeat:
            fn()
        return self.clock() - start


@contextmanager
def _gc_off() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()  # what is there already need not be gone through before every round
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
