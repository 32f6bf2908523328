"""Where time and memory go: `with sg.profile() as prof: ...`, then `print(prof.table())`.

While a profile is open anywhere, calls of primitives and index work pass through the functions
below, which record those of threads and tasks whose context has a profile. When the last one is
closed the originals are back, so a program without a profile pays nothing.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import Token
from dataclasses import asdict, dataclass
from typing import Any

from sparsegrad import backends, memory
from sparsegrad.display import as_table
from sparsegrad.engine import primitive as engine
from sparsegrad.engine.mode import DensifyEvent, watcher
from sparsegrad.engine.primitive import Primitive, swap
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.structure import cost
from sparsegrad.structure.arrays import index_dtype
from sparsegrad.structure.pattern import Core, Pattern
from sparsegrad.tensor import Tensor

__all__ = ["OpStats", "profile"]

_clock = time.perf_counter_ns
_thread = threading.get_ident
_watching = watcher.get

_OP, _INDEX, _MERGE = "op", "index", "merge"  # kinds of events
_NESTED = 10_000  # events that one event in progress may have called

# Index work and ops that only change how the same entries are stored.
_CONVERSIONS = frozenset(("perm", "inverse", "moves", "coords", "indptr"))
_CONVERTING_OPS = frozenset(("reorder", "put_entries", "entries"))
# Static arguments that are the pattern of the result, where it is not called "pattern".
_PLACES = {"spgemm_p": "product", "spgemm_masked_p": "mask"}


@dataclass(slots=True)
class OpStats:
    """Totals of one op, or of one kind of index work.

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
        self.seconds = 0.0  # that the block was open
        # Arrays asked of the memory pool meanwhile, by whatever thread.
        self.memory_pool = memory.PoolCounts()
        self._pending: deque[tuple[Any, ...]] = deque()  # events that no statistic has yet
        self._kept: list[tuple[Any, ...]] = []
        self._stats: dict[tuple[Any, bool], OpStats] = {}
        self._patterns: dict[tuple[Any, ...], int] = {}  # pattern -> bytes of an element
        self._dense: dict[tuple[Any, ...], float] = {}  # kind of call -> microseconds, if dense
        # thread -> (start, spent, statistics, spans) of events
        self._done: dict[int, list[tuple[int, int, OpStats, tuple[Any, ...]]]] = {}
        self._unread: list[tuple[OpStats, Any, tuple[Any, ...]]] = []  # a span and those inside it
        self._merged = [0, 0]  # entries in, entries out
        self._products = [0.0, 0.0]  # microseconds of spmm, and of dense products by the table
        self._lock = threading.Lock()
        self._open: tuple[Token[Any], int] | None = None
        self._outer: profile | None = None

    def __enter__(self) -> profile:
        if self._open is not None:
            raise RuntimeError("profile: this profile is open already; make another one")
        self._outer = watcher.get()
        _install()
        self._pool = memory.counts().since(self.memory_pool)  # of earlier blocks of this profile
        self._open = watcher.set(self), _clock()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._open is not None
        token, start = self._open
        watcher.reset(token)
        _uninstall()
        self.seconds += (_clock() - start) / 1e9
        self.memory_pool = memory.counts().since(self._pool)
        if self._outer is not None:  # else counting waits until somebody looks
            self._fold()
        self._open = self._outer = None

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
            out = _timed(self, _MERGE, name, lambda: merge(parts), entries, where)
            held: profile | None = self
            while held is not None:
                with held._lock:
                    held._merged[0] += entries
                    held._merged[1] += out.nnz
                held = held._outer
            return out

        return timed

    # ---- statistics ----------------------------------------------------------------------------
    def _fold(self) -> None:
        """Count pending events, keep those for which there is room, pass them on."""
        with self._lock:
            pending = [self._pending.popleft() for _ in range(len(self._pending))]
            self._kept.extend(pending[: max(self.max_events - len(self._kept), 0)])
            for event in pending:
                if len(event) == 2:
                    self._time(*event)
                else:
                    self._count(*event)
            self._read(wait=False)
            for done in self._done.values():  # what no event in progress can still have called
                del done[:-_NESTED]
        if self._outer is not None:
            self._outer._pending.extend(pending)
            if len(self._outer._pending) > self._outer.max_events:
                self._outer._fold()

    def _count(
        self, what: Any, start: int, end: int, facts: Any, size: Any, dtype: Any, thread: int
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
            kind, name = _named(what, facts)
            stats = self._stats[what, facts is True] = OpStats(name, kind)
        done.append((start, spent, stats, inner))
        stats.calls += 1
        stats.seconds += own / 1e9
        stats.nbytes += _nbytes(size, dtype)
        if type(facts) is int:
            stats.nnz += facts
        elif facts is not None and facts is not True:
            stats.nnz += facts[3]
            key = what, facts, size, dtype
            dense = self._dense.get(key)
            if dense is None:
                dense = self._dense[key] = self._weigh(*key)
            if dense:
                self._products[0] += own / 1e3
                self._products[1] += dense

    def _time(self, thread: int, span: Any) -> None:
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

    def _weigh(self, what: Any, facts: Any, size: Any, dtype: Any) -> float:
        """A kind of call that is new: note its pattern; microseconds of the dense product by the
        cost table if it is a sparse one, else 0."""
        itemsize = dtype.itemsize if dtype is not None else 0
        self._patterns[facts] = max(itemsize, self._patterns.get(facts, 0))
        if _named(what, facts)[1] != "spmm":
            return 0.0
        return cost.dense_cost(facts[2], math.prod(size[1:]), 1, False)

    @property
    def ops(self) -> list[OpStats]:
        """Ops, index work and merges, the most expensive first. Waits for a GPU in use."""
        self._fold()
        with self._lock:
            self._read(wait=True)
        return sorted(self._stats.values(), key=lambda s: -max(s.seconds, s.device_seconds))

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
        sparse = dense = 0
        for (_, kind, shape, nnz), itemsize in self._patterns.items():
            cells = 1
            for n in shape:
                cells *= n
            offsets = 0 if kind == "coo" else shape[kind == "csc"] + 1
            ids = nnz * (len(shape) if kind == "coo" else 1) + offsets
            sparse += ids * index_dtype(shape, nnz).itemsize + nnz * itemsize
            dense += cells * itemsize
        return 1 - sparse / dense if dense else 0.0

    @property
    def conversion_share(self) -> float:
        """Share of `busy_seconds`, where a GPU was used of `device_seconds`, spent on changing
        formats: sorting, grouping and reordering entries, to dense and from dense."""
        busy = converting = 0.0
        clock = "device_seconds" if self.device_seconds else "seconds"
        for stats in self.ops:
            seconds = getattr(stats, clock)
            busy += seconds
            listed = _CONVERTING_OPS if stats.kind == _OP else _CONVERSIONS
            if stats.kind != _MERGE and stats.name in listed:
                converting += seconds
        return converting / busy if busy else 0.0

    @property
    def speed_up(self) -> float | None:
        """Dense time / sparse time of the products A @ x, dense time by the cost table of
        `sparsegrad.policy`, not measured; None if there were none, or where a GPU was used, which
        the table does not know. Below 1, dense would be faster."""
        on_host = not self.device_seconds
        sparse, dense = self._products
        return dense / sparse if sparse and on_host else None

    @property
    def accumulation(self) -> dict[str, float]:
        """Merges of sparse gradients: entries in, entries out, efficiency (in / out: how many
        terms an entry of the result took in; 1 if nothing was merged), seconds."""
        entries_in, entries_out = self._merged
        seconds = sum(stats.seconds for stats in self.ops if stats.kind == _MERGE)
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
            "memory_pool": asdict(self.memory_pool) | {"hit_rate": self.memory_pool.hit_rate},
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
        """Write the calls that were kept as a trace for chrome://tracing or Perfetto: when the host
        was in them, and where a GPU was used, how long it took (`device_us`)."""
        self._fold()
        pid = os.getpid()
        events = []
        latest: dict[int, dict[str, Any]] = {}  # event of each thread
        for event in self._kept:
            if len(event) == 2:
                latest[event[0]]["args"]["device_us"] = event[1].seconds() * 1e6
                continue
            what, start, end, facts, size, dtype, thread = event
            kind, name = _named(what, facts)
            nnz = facts if type(facts) is int else facts[3] if type(facts) is tuple else 0
            latest[thread] = {
                "name": name, "cat": kind, "ph": "X", "pid": pid, "tid": thread,
                "ts": start / 1e3, "dur": (end - start) / 1e3,
                "args": {"nnz": nnz, "nbytes": _nbytes(size, dtype)},
            }  # fmt: skip
            events.append(latest[thread])
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)

    def __repr__(self) -> str:
        return f"<profile: {self.seconds * 1e3:.2f} ms, {len(self.ops)} kinds of ops>"


def _named(what: Any, facts: Any) -> tuple[str, str]:
    """Kind and name of an event."""
    if type(what) is tuple:
        return what
    name = what.name.removesuffix("_p")
    return _OP, f"{name} (sparse)" if facts is True else name


def _nbytes(size: Any, dtype: Any) -> int:
    return size if type(size) is int else math.prod(size) * dtype.itemsize


# ---- recording ---------------------------------------------------------------------------------
# Events are (what, start, end, facts, size, dtype, thread): a primitive, or (kind, name); facts are
# the summary of the pattern it was called with, a number of entries, True for a call with sparse
# arguments (what its rule calls is listed itself), or None; size is the shape of the result, the
# bytes of several, or 0. Tensors are not kept, and what takes time is left to `_fold`.
_call = Primitive.__call__
_cached = Core.cached
_users = 0
_span: Any = None  # what times an op on a GPU, while a profile is open and one in use
_users_lock = threading.Lock()


def _install() -> None:
    global _users, _span
    with _users_lock:
        _users += 1
        if _users == 1:
            _span = backends.span()
            swap("__call__", _profiled_call if _span is None else _spanned(_span))
            Core.cached = _profiled_cached  # type: ignore[method-assign]


def _uninstall() -> None:
    global _users, _span
    with _users_lock:
        _users -= 1
        if not _users:
            _span = None
            swap("__call__")
            Core.cached = _cached  # type: ignore[method-assign]


def _spanned(begin: Callable[[str, Any], Any]) -> Callable[..., Any]:
    """`_profiled_call` with a span around it. One of a device is an event of its own, that follows
    the event of the op."""

    def call(self: Primitive, *args: Any, **static: Any) -> Any:
        held = _watching()
        if held is None:
            return _call(self, *args, **static)
        span = begin(self.name.removesuffix("_p"), _array(args))
        try:
            out = _profiled_call(self, *args, **static)
        finally:
            span.close()
        if span.timed:
            held._pending.append((_thread(), span))
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


def _profiled_call(self: Primitive, *args: Any, **static: Any) -> Any:
    held = _watching()
    if held is None:
        return _call(self, *args, **static)
    facts: Any = None
    start = _clock()
    # What `__call__` does, without another call where most ops go.
    if static:
        out = self._general(args, static)
        end = _clock()
        pattern = static.get(_PLACES.get(self.name, "pattern"))
        if type(pattern) is Pattern:
            facts = pattern.core.summary
    elif self._simple and engine._straight and 0 < len(args) < 3:
        out = engine._binary(self, *args) if len(args) == 2 else engine._unary(self, *args)
        end = _clock()
    else:
        out = _call(self, *args)
        end = _clock()
    if type(out) is Tensor:
        data = out.data
        size, dtype = data.shape, data.dtype
    else:
        size, dtype = _bytes(out), None
    if facts is None and (type(args[0]) is not Tensor or type(args[-1]) is not Tensor):
        for a in args:
            if isinstance(a, SparseTensor):
                facts, size = True, 0
                break
    pending = held._pending
    pending.append((self, start, end, facts, size, dtype, _thread()))
    if len(pending) > held.max_events:
        held._fold()
    return out


def _bytes(out: Any) -> int:
    """Bytes of several results; 0 of a sparse one, which is listed with what its rule calls."""
    return sum(t.data.nbytes for t in out) if type(out) is tuple else 0


def _profiled_cached(self: Core, key: Any, build: Callable[[], Any]) -> Any:
    try:
        value = self._cache[key]
    except KeyError:
        held = _watching()
    else:  # the usual case costs what it costs without a profile
        return _cached(self, key, build) if self._marks else value
    if held is None:
        return _cached(self, key, build)
    label = key
    while type(label) is tuple:
        label = label[0]
    name, where = str(label), self.arrays[-1]
    return _timed(held, _INDEX, name, lambda: _cached(self, key, build), self.nnz, where)


def _timed(held: profile, kind: str, name: str, fn: Callable[[], Any], nnz: int, where: Any) -> Any:
    """`fn()` as an event; `where`: an array that says on which device it works."""
    span = None if _span is None else _span(name, where)
    start = _clock()
    try:
        return fn()
    finally:
        held._pending.append(((kind, name), start, _clock(), nnz, 0, None, _thread()))
        if span is not None:
            span.close()
            if span.timed:
                held._pending.append((_thread(), span))
