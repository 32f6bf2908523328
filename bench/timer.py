"""The one timer: interleaved rounds, medians with spread, and a noise floor.

Two programs timed one after the other are compared across whatever else the machine did meanwhile.
Here every round times each candidate once, so that a slow moment hits all alike, and ratios are
taken within rounds. The first candidate runs twice a round: how far its two runs differ (A/A) is
what the machine cannot resolve.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

__all__ = ["AGAIN", "FULL", "QUICK", "Effort", "Samples", "Spread", "Timer", "paired"]

AGAIN = "(again)"  # the name under which the A/A run of the first candidate appears


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    warmup: untimed calls of each candidate before the first round.
    min_rounds, max_rounds, budget_s: rounds of a candidate, between the two, as many as its share
        of the budget allows; a slow candidate leaves after `min_rounds`.
    sample_s: a call shorter than this is repeated until a sample takes as long.
    settle_s: pause before each sample, in which the threads of the candidate before go to sleep:
        OpenMP's keep a core busy for some milliseconds after the work is done.
    """

    warmup: int = 2
    min_rounds: int = 10
    max_rounds: int = 50
    budget_s: float = 20.0
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
        with _gc_off():
            plans = {name: self._plan(fn, len(todo)) for name, fn in fns.items()}
            plans[AGAIN] = plans[first]
            seconds: dict[str, list[float]] = {name: [] for name in todo}
            names = list(todo)
            for r in range(max(rounds for _, rounds in plans.values())):
                gc.collect()
                turn = r % len(names)  # nobody always comes after the same neighbour
                for name in names[turn:] + names[:turn]:
                    inner, rounds = plans[name]
                    if r < rounds:
                        seconds[name].append(self._sample(todo[name], inner))
        return {name: Samples(tuple(seconds[name]), plans[name][0]) for name in names}

    def _plan(self, fn: Callable[[], Any], candidates: int) -> tuple[int, int]:
        """Calls a sample, and rounds, for one function; warms it up on the way."""
        e = self.effort
        for _ in range(e.warmup):
            fn()
        call = self._run(fn, 1)
        inner = 1 if call >= e.sample_s else math.ceil(e.sample_s / max(call, 1e-7))
        if inner > 1:  # one short call is mostly noise: look again
            call = self._run(fn, inner) / inner
            inner = max(1, math.ceil(e.sample_s / max(call, 1e-7)))
        untimed = call if inner > 1 else 0.0
        cost = max(call * inner + untimed + e.settle_s, 1e-9)
        share = e.budget_s / candidates
        return inner, int(min(max(share / cost, e.min_rounds), e.max_rounds))

    def _sample(self, fn: Callable[[], Any], inner: int) -> float:
        self.sleep(self.effort.settle_s)
        if inner > 1:
            fn()  # wakes threads and fills caches, which a long call does for itself
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
