"""What the events of a profile add up to.

Events are (what, start, end, facts, turned, size, dtype, thread): a primitive, or (kind, name);
facts are the summary of the pattern it was called with, a number of entries, True for a call with
sparse arguments (what its rule calls is listed itself), or None; turned: whether that pattern was
transposed; size is the number of elements of the result or, without dtype, the bytes of several.
One on a GPU is followed by another, of which only its span and the thread matter.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sparsegrad.structure import cost
from sparsegrad.structure.arrays import index_dtype

__all__ = [
    "FIELDS",
    "INDEX",
    "MERGE",
    "OP",
    "STEP",
    "OpStats",
    "Totals",
    "is_span",
    "named",
    "nbytes",
]

OP, INDEX, MERGE, STEP = "op", "index", "merge", "step"  # kinds of events
FIELDS = 8  # of an event
_NESTED = 10_000  # events that one event in progress may have called


@dataclass(slots=True)
class OpStats:
    """Totals of one op, one kind of index work, or the steps of one kind of optimizer.

    seconds: time inside it, without what it called that is listed itself.
    device_seconds: the same on the GPU, by events of CUDA around it; where the GPU had nothing
        to do it includes waiting for the host. 0 for work on the CPU.
    nnz: entries of the patterns it was called with. nbytes: size of its results.
    """

    name: str
    kind: str
    calls: int = 0
    seconds: float = 0.0
    nnz: int = 0
    nbytes: int = 0
    device_seconds: float = 0.0


_PRODUCTS = frozenset(("spmm", "spmm_bias_act"))  # what the cost table says of dense ones


class Totals:
    """Events by kind, counted once somebody looks or there are many."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, ...]] = []  # events, for a trace
        self.merged = [0, 0]  # entries in, entries out
        self.products = [0.0, 0.0]  # microseconds of spmm, and of dense products by the table
        self.lock = threading.Lock()
        self._stats: dict[tuple[Any, bool], OpStats] = {}
        self._patterns: dict[tuple[Any, ...], int] = {}  # pattern -> bytes of an element
        self._dense: dict[tuple[Any, ...], float] = {}  # kind of call -> microseconds, if dense
        # thread -> (start, spent, statistics, spans) of events
        self._done: dict[int, list[tuple[int, int, OpStats, tuple[Any, ...]]]] = {}
        self._unread: list[tuple[OpStats, Any, tuple[Any, ...]]] = []  # a span and those inside it

    def add(self, events: Iterable[tuple[Any, ...]]) -> None:
        """Count events, in the order in which they ended."""
        for event in events:
            if is_span(event[0]):
                self._time(event[0], event[-1])
            else:
                self._count(*event)
        self._read(wait=False)
        for done in self._done.values():  # what no event in progress can still have called
            del done[:-_NESTED]

    def listed(self) -> list[OpStats]:
        """Statistics of each kind, the most expensive first. Waits for a GPU in use."""
        self._read(wait=True)
        return sorted(self._stats.values(), key=lambda s: -max(s.seconds, s.device_seconds))

    @property
    def memory_saved(self) -> float:
        """1 - sparse bytes / dense bytes of the patterns that ops were called with."""
        sparse = dense = 0
        for (_, kind, shape, nnz), itemsize in self._patterns.items():
            offsets = 0 if kind == "coo" else shape[kind == "csc"] + 1
            ids = nnz * (len(shape) if kind == "coo" else 1) + offsets
            sparse += ids * index_dtype(shape, nnz).itemsize + nnz * itemsize
            dense += math.prod(shape) * itemsize
        return 1 - sparse / dense if dense else 0.0

    def _count(
        self,
        what: Any,
        start: int,
        end: int,
        facts: Any,
        turned: bool,
        size: int,
        dtype: Any,
        thread: int,
    ) -> None:
        spent = own = end - start
        inner: tuple[Any, ...] = ()
        done = self._done.setdefault(thread, [])
        while done and done[-1][0] >= start:  # events end after those they contain
            _, its, _, spans = done.pop()
            own -= its
            inner += spans
        stats = self._stats.get((what, facts is True))
        if stats is None:
            kind, name = named(what, facts)
            stats = self._stats[what, facts is True] = OpStats(name, kind)
        done.append((start, spent, stats, inner))
        stats.calls += 1
        stats.seconds += own / 1e9
        stats.nbytes += nbytes(size, dtype)
        if type(facts) is int:
            stats.nnz += facts
        elif facts is not None and facts is not True:
            stats.nnz += facts[3]
            key = what, facts, turned, size, dtype
            dense = self._dense.get(key)
            if dense is None:
                dense = self._dense[key] = self._weigh(*key)
            if dense:
                self.products[0] += own / 1e3
                self.products[1] += dense

    def _time(self, span: Any, thread: int) -> None:
        """The latest event of a thread was on a device, where it took this span."""
        start, spent, stats, inner = self._done[thread][-1]
        self._done[thread][-1] = start, spent, stats, (span,)
        self._unread.append((stats, span, inner))

    def _read(self, wait: bool) -> None:
        """Add up what devices took: everything, or what can be had without a wait."""
        unread, self._unread = self._unread, []
        for entry in unread:
            stats, span, inner = entry
            if wait or span.done:
                stats.device_seconds += span.seconds() - sum(s.seconds() for s in inner)
            else:
                self._unread.append(entry)

    def _weigh(self, what: Any, facts: Any, turned: bool, size: int, dtype: Any) -> float:
        """A kind of call that is new: note its pattern; microseconds of the dense product by the
        cost table if it is a sparse one, else 0."""
        itemsize = dtype.itemsize if dtype is not None else 0
        self._patterns[facts] = max(itemsize, self._patterns.get(facts, 0))
        if named(what, facts)[1] not in _PRODUCTS:
            return 0.0
        shape = facts[2]
        return cost.dense_cost(shape, size // max(1, shape[turned]), 1, False)


def is_span(what: Any) -> bool:
    """Whether an event only says how long the one before it took on a GPU."""
    return hasattr(what, "timed")


def named(what: Any, facts: Any) -> tuple[str, str]:
    """Kind and name of an event."""
    if type(what) is tuple:
        return what
    name = what.name.removesuffix("_p")
    return OP, f"{name} (sparse)" if facts is True else name


def nbytes(size: int, dtype: Any) -> int:
    """Bytes of the result of an event."""
    return size if dtype is None else size * int(dtype.itemsize)
