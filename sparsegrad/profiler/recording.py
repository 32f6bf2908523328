"""`sg.profile()`, and how calls are recorded.

While a profile is open anywhere, calls of primitives and index work pass through the functions
below, which record those of threads and tasks whose context has a profile. A program without a
profile pays nothing.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextvars import Token
from dataclasses import asdict
from typing import Any

from sparsegrad import backends, memory
from sparsegrad.display import as_table
from sparsegrad.engine import primitive as engine
from sparsegrad.engine.mode import DensifyEvent, watcher
from sparsegrad.engine.primitive import Primitive, watch_calls
from sparsegrad.profiler.totals import (
    FIELDS,
    INDEX,
    MERGE,
    OP,
    STEP,
    OpStats,
    Totals,
    is_span,
    named,
    nbytes,
)
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.structure.core import Core, watch_builds
from sparsegrad.tensor import Tensor

__all__ = ["profile"]

_clock = time.perf_counter_ns
_thread = threading.get_ident
_watching = watcher.get
# When a block began and ended, and what the memory pool had done by then.
_Block = tuple[int, int, memory.PoolCounts, memory.PoolCounts]

# Index work and ops that only change how the same entries are stored.
_CONVERSIONS = frozenset(("perm", "inverse", "moves", "coords", "indptr"))
_CONVERTING_OPS = frozenset(("reorder", "put_entries", "entries"))
# Static arguments that are the pattern of the result, where it is not called "pattern".
_PLACES = {"spgemm_p": "product", "spgemm_masked_p": "mask"}


class profile:
    """Counts and times every op inside a `with` block, in this thread or task.

    Blocks may be nested: the outer one has what the inner one saw. A block covers backward
    passes, hooks and whatever else runs inside it; other threads only if they run in a copy of its
    context. While it is open an op costs about a microsecond more, nothing otherwise; what was
    recorded is counted when it is looked at, or when there are `max_events`. Where a GPU was used
    before, ops and index work are timed on it too, without a wait until somebody looks, and they
    are ranges of NVTX, which Nsight Systems shows beside kernels.

    max_events: single calls that are kept for `export_chrome_trace` (of those on a GPU half as
        many); later ones are only counted.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 1], [1, 0]], [2.0, 3.0], (2, 2))
    >>> with sg.profile() as prof:
    ...     y = A @ sg.ones(2, 1)
    >>> [(op.name, op.calls, op.nnz) for op in prof.ops if op.kind == "op"]
    [('spmm', 1, 2)]
    """

    def __init__(self, max_events: int = 100_000) -> None:
        self.max_events = max_events
        self.densify_events: list[DensifyEvent] = []
        # Events that no statistic has yet, one behind the other: no tuples, which the garbage
        # collector would come to look at.
        self._pending: list[Any] = []
        self._most = FIELDS * max_events
        self._blocks: list[_Block] = []
        self._totals = Totals()
        self._open: tuple[Token[Any], memory.PoolCounts, int] | None = None
        self._outer: profile | None = None

    # Short programs are profiled too: what can wait until somebody looks is no work of a block.
    def __enter__(self) -> profile:
        if self._open is not None:
            raise RuntimeError("profile: this profile is open already; make another one")
        self._outer = _watching()
        _install()
        self._open = watcher.set(self), memory.counts(), _clock()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._open is not None
        token, pool, start = self._open
        self._blocks.append((start, _clock(), pool, memory.counts()))
        watcher.reset(token)
        _uninstall()
        if self._outer is not None:  # else counting waits until somebody looks
            self._fold()
        self._open = self._outer = None

    @property
    def seconds(self) -> float:
        """How long the block was open."""
        return sum(end - start for start, end, _, _ in self._blocks) / 1e9

    @property
    def memory_pool(self) -> memory.PoolCounts:
        """Arrays asked of the memory pool meanwhile, by whatever thread."""
        counts = [after.since(before) for _, _, before, after in self._blocks]
        return memory.PoolCounts(*map(sum, zip(*counts, strict=True)))

    # ---- what the engine tells -----------------------------------------------------------------
    def densified(self, event: DensifyEvent) -> None:
        """An array was made dense without being asked for."""
        self.densify_events.append(event)
        if self._outer is not None:
            self._outer.densified(event)

    def merging(self, merge: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`merge`, a function from sparse terms to their sum, timed and counted."""

        def timed(parts: Any) -> Any:
            entries = sum(part.nnz for part in parts)
            name, where = "merge of sparse gradients", parts[0].values.data
            out = _timed(self, MERGE, name, lambda: merge(parts), entries, where)
            held: profile | None = self
            while held is not None:
                with held._totals.lock:
                    held._totals.merged[0] += entries
                    held._totals.merged[1] += out.nnz
                held = held._outer
            return out

        return timed

    def stepping(self, optimizer: str, step: Callable[[], None], where: Any) -> None:
        """`step()` of an optimizer, timed; `where`: an array of a parameter."""
        _timed(self, STEP, f"{optimizer}.step", step, 0, where)

    # ---- statistics ----------------------------------------------------------------------------
    def _fold(self) -> None:
        """Count pending events, keep those for which there is room, pass them on."""
        totals = self._totals
        with totals.lock:
            pending = self._pending[:]
            del self._pending[: len(pending)]  # others may have come
            events = list(zip(*[iter(pending)] * FIELDS, strict=True))
            totals.kept.extend(events[: max(self.max_events - len(totals.kept), 0)])
            totals.add(events)
        if self._outer is not None:
            self._outer._pending += pending
            if len(self._outer._pending) > self._outer._most:
                self._outer._fold()

    @property
    def ops(self) -> list[OpStats]:
        """Ops, index work and merges, the most expensive first. Waits for a GPU in use."""
        self._fold()
        with self._totals.lock:
            return self._totals.listed()

    @property
    def busy_seconds(self) -> float:
        """Time inside everything listed in `ops`, on the host."""
        return sum(stats.seconds for stats in self.ops)

    @property
    def device_seconds(self) -> float:
        """The same on the GPU; 0 where none was used."""
        return sum(stats.device_seconds for stats in self.ops)

    @property
    def memory_saved(self) -> float:
        """1 - sparse bytes / dense bytes, over the distinct patterns that ops were called with:
        indices as stored and one value an entry, against every cell. 0 if there were none."""
        self._fold()
        return self._totals.memory_saved

    @property
    def conversion_share(self) -> float:
        """Share of `busy_seconds`, where a GPU was used of `device_seconds`, spent on changing
        formats: sorting, grouping and reordering entries, to dense and from dense."""
        busy = converting = 0.0
        clock = "device_seconds" if self.device_seconds else "seconds"
        for stats in self.ops:
            seconds = getattr(stats, clock)
            busy += seconds
            listed = _CONVERTING_OPS if stats.kind == OP else _CONVERSIONS
            if stats.kind != MERGE and stats.name in listed:
                converting += seconds
        return converting / busy if busy else 0.0

    @property
    def speed_up(self) -> float | None:
        """Dense time / sparse time of the products A @ x, dense time by the cost table of
        `sparsegrad.policy`, not measured; None if there were none, or where a GPU was used, which
        the table does not know. Below 1, dense would be faster."""
        on_host = not self.device_seconds
        sparse, dense = self._totals.products
        return dense / sparse if sparse and on_host else None

    @property
    def accumulation(self) -> dict[str, float]:
        """Merges of sparse gradients: entries in, entries out, efficiency (in / out: how many
        terms an entry of the result took in; 1 if nothing was merged), seconds."""
        entries_in, entries_out = self._totals.merged
        seconds = sum(stats.seconds for stats in self.ops if stats.kind == MERGE)
        return {
            "entries_in": entries_in,
            "entries_out": entries_out,
            "efficiency": entries_in / entries_out if entries_out else 1.0,
            "seconds": seconds,
        }

    # ---- output --------------------------------------------------------------------------------
    def summary(self) -> dict[str, Any]:
        """Everything that is known, as plain Python values."""
        return {
            "seconds": self.seconds,
            "busy_seconds": self.busy_seconds,
            "device_seconds": self.device_seconds,
            "memory_saved": self.memory_saved,
            "speed_up": self.speed_up,
            "conversion_share": self.conversion_share,
            "accumulation": self.accumulation,
            "memory_pool": self.memory_pool._asdict() | {"hit_rate": self.memory_pool.hit_rate},
            "densify_events": [asdict(event) for event in self.densify_events],
            "ops": [asdict(stats) for stats in self.ops],
        }

    def to_json(self, indent: int | None = None) -> str:
        """The summary as JSON."""
        return json.dumps(self.summary(), indent=indent)

    def table(self, rows: int = 20) -> str:
        """The summary as text, the most expensive `rows` ops listed; drawn by rich where it is
        installed. Where a GPU was used, shares are those of its time."""
        device = self.device_seconds
        busy = device or self.busy_seconds or 1.0
        names = ["op", "kind", "calls", "ms", "share", "µs a call", "entries", "result bytes"]
        body = [
            [
                s.name, s.kind, f"{s.calls:,}", f"{s.seconds * 1e3:,.2f}",
                f"{(s.device_seconds if device else s.seconds) / busy:.1%}",
                f"{s.seconds / s.calls * 1e6:,.1f}", f"{s.nnz:,}", f"{s.nbytes:,}",
            ]
            for s in self.ops[:rows]
        ]  # fmt: skip
        if device:
            names.insert(4, "GPU ms")
            for row, s in zip(body, self.ops, strict=False):
                row.insert(4, f"{s.device_seconds * 1e3:,.2f}")
        return as_table(names, body) + "\n" + "\n".join(self._facts()) + "\n"

    def _facts(self) -> list[str]:
        merged, pool = self.accumulation, self.memory_pool
        wasted = sum(event.nbytes for event in self.densify_events)
        times = "none" if self.speed_up is None else f"{self.speed_up:.2f}"
        return [
            f"{self.seconds * 1e3:,.2f} ms, of which {self.busy_seconds * 1e3:,.2f} ms in "
            f"{len(self.ops)} kinds of ops and index work"
            + (f"; {device * 1e3:,.2f} ms on the GPU" if (device := self.device_seconds) else ""),
            f"memory saved by sparse storage     {self.memory_saved:.1%}",
            f"products, dense by table / sparse  {times}",
            f"time in format conversion          {self.conversion_share:.1%}",
            f"sparse gradients merged            {merged['entries_in']:,} entries to "
            f"{merged['entries_out']:,} ({merged['efficiency']:.2f} each, "
            f"{merged['seconds'] * 1e3:,.2f} ms)",
            f"memory pool                        {pool.hits:,} of {pool.requests:,} arrays in "
            f"used blocks ({pool.reused_bytes:,} bytes)",
            f"densify events                     {len(self.densify_events)} ({wasted:,} bytes)",
        ]

    def export_chrome_trace(self, path: Any) -> None:
        """Write the calls that were kept as a trace for chrome://tracing or Perfetto: a row for
        each thread, and where a GPU was used, one for it that shows when it was at them."""
        self._fold()
        pid = os.getpid()
        events = []
        latest: dict[int, dict[str, Any]] = {}  # event of each thread
        anchors: dict[str, Any] = {}
        for what, start, end, facts, _, size, dtype, thread in self._totals.kept:
            if is_span(what):
                row, began = what.started(anchors)
                there = {"tid": row, "ts": began / 1e3, "dur": what.seconds() * 1e6}
                events.append(latest[thread] | there)
                continue
            kind, name = named(what, facts)
            nnz = facts if type(facts) is int else facts[3] if type(facts) is tuple else 0
            latest[thread] = {
                "name": name, "cat": kind, "ph": "X", "pid": pid, "tid": thread,
                "ts": start / 1e3, "dur": (end - start) / 1e3,
                "args": {"nnz": nnz, "nbytes": nbytes(size, dtype)},
            }  # fmt: skip
            events.append(latest[thread])
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)

    def __repr__(self) -> str:
        return f"<profile: {self.seconds * 1e3:.2f} ms, {len(self.ops)} kinds of ops>"


# ---- recording ---------------------------------------------------------------------------------
# Tensors are not kept, and what takes time is left to `Totals`.
_users = 0
_span: Any = None  # what times an op on a GPU, while a profile is open and one in use
_users_lock = threading.Lock()


def _install() -> None:
    global _users, _span
    with _users_lock:
        _users += 1
        if _users == 1:
            _span = backends.span()
            watch_calls(_profiled_call if _span is None else _spanned(_span))
            watch_builds(_profiled_built)


def _uninstall() -> None:
    global _users, _span
    with _users_lock:
        _users -= 1
        if not _users:
            _span = None
            watch_calls(None)
            watch_builds(None)


def _spanned(begin: Callable[[str, Any], Any]) -> Callable[..., Any]:
    """`_profiled_call` with a span around it. One of a device is an event of its own, that follows
    the event of the op."""

    def call(self: Primitive, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        held = _watching()
        if held is None:
            return _profiled_call(self, args, static)
        span = begin(self.name.removesuffix("_p"), _array(args))
        try:
            out = _profiled_call(self, args, static)
        finally:
            span.close()
        if span.timed:
            held._pending += (span, 0, 0, None, False, 0, None, _thread())
        return out

    return call


def _array(args: tuple[Any, ...]) -> Any:
    """That of the first tensor, which says where the op runs."""
    for a in args:
        if isinstance(a, Tensor):
            return a.data
        if isinstance(a, SparseTensor):
            return a.values.data
    return None


def _profiled_call(self: Primitive, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
    held = _watching()
    facts: Any = None
    turned = False
    start = _clock()
    if not static and self._simple and engine._straight and 0 < len(args) < 3:
        # What `__call__` does, without another call where most ops go.
        if len(args) == 2:
            out = engine._binary(self, args[0], args[1])
        else:
            out = engine._unary(self, args[0])
        end = _clock()
    else:
        out = self._general(args, static)
        end = _clock()
        if "pattern" in static:
            pattern = static["pattern"]
            facts, turned = pattern.core.summary, pattern.transposed
        elif self.name in _PLACES:
            facts = static[_PLACES[self.name]].core.summary
    if held is None:
        return out
    if type(out) is Tensor:
        data = out.data
        size, dtype = data.size, data.dtype
    else:
        size, dtype = _bytes(out), None
    if facts is None and (type(args[0]) is not Tensor or type(args[-1]) is not Tensor):
        for a in args:
            if isinstance(a, SparseTensor):
                facts, size = True, 0
                break
    pending = held._pending
    pending += (self, start, end, facts, turned, size, dtype, _thread())
    if len(pending) > held._most:
        held._fold()
    return out


def _bytes(out: Any) -> int:
    """Bytes of several results; 0 of a sparse one, which is listed with what its rule calls."""
    return sum(t.data.nbytes for t in out) if type(out) is tuple else 0


def _profiled_built(self: Core, key: Any, build: Callable[[], Any]) -> Any:
    held = _watching()
    if held is None:
        return Core.built(self, key, build)
    label = key
    while type(label) is tuple:
        label = label[0]
    name, where = str(label), self.arrays[-1]
    return _timed(held, INDEX, name, lambda: Core.built(self, key, build), self.nnz, where)


def _timed(held: profile, kind: str, name: str, fn: Callable[[], Any], nnz: int, where: Any) -> Any:
    """`fn()` as an event; `where`: an array that says on which device it works."""
    span = None if _span is None else _span(name, where)
    start = _clock()
    try:
        return fn()
    finally:
        held._pending += ((kind, name), start, _clock(), nnz, False, 0, None, _thread())
        if span is not None:
            span.close()
            if span.timed:
                held._pending += (span, 0, 0, None, False, 0, None, _thread())
