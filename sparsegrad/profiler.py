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
from collections.abc import Callable, Sequence
from contextvars import Token
from dataclasses import asdict, dataclass
from typing import Any

from sparsegrad import backends, memory
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
    nnz: entries of the patterns it was called with. nbytes: size of its results.
    """

    name: str
    kind: str
    calls: int = 0
    seconds: float = 0.0
    nnz: int = 0
    nbytes: int = 0


class profile:
    """Counts and times every op inside a `with` block, in this thread or task.

    Blocks may be nested: the outer one has what the inner one saw. A block covers backward
    passes, hooks and whatever else runs inside it; other threads only if they run in a copy of its
    context. While it is open an op costs about a microsecond more, nothing otherwise; what was
    recorded is counted when it is looked at, or when there are `max_events`. Where a GPU was used
    before, ops and index work are ranges of NVTX too, which Nsight Systems shows beside kernels.

    max_events: single calls that are kept for `export_chrome_trace`; later ones are only counted.

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
        self._done: dict[int, list[tuple[int, int]]] = {}  # thread -> (start, spent) of events
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
            out = _timed(self, _MERGE, "merge of sparse gradients", lambda: merge(parts), entries)
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
                self._count(*event)
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
        done = self._done.setdefault(thread, [])
        while done and done[-1][0] >= start:  # events end after those they contain
            own -= done.pop()[1]
        done.append((start, spent))
        stats = self._stats.get((what, facts is True))
        if stats is None:
            kind, name = _named(what, facts)
            stats = self._stats[what, facts is True] = OpStats(name, kind)
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
        """Ops, index work and merges, the most expensive first."""
        self._fold()
        return sorted(self._stats.values(), key=lambda stats: -stats.seconds)

    @property
    def busy_seconds(self) -> float:
        """Time inside everything listed in `ops`."""
        return sum(stats.seconds for stats in self.ops)

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
        """Share of `busy_seconds` spent on changing formats: sorting, grouping and reordering
        entries, to dense and from dense."""
        busy = converting = 0.0
        for stats in self.ops:
            busy += stats.seconds
            listed = _CONVERTING_OPS if stats.kind == _OP else _CONVERSIONS
            if stats.kind != _MERGE and stats.name in listed:
                converting += stats.seconds
        return converting / busy if busy else 0.0

    @property
    def speed_up(self) -> float | None:
        """Dense time / sparse time of the products A @ x, dense time by the cost table of
        `sparsegrad.policy`, not measured; None if there were none.
        Below 1, dense would be faster."""
        self._fold()
        sparse, dense = self._products
        return dense / sparse if sparse else None

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
        installed."""
        busy = self.busy_seconds or 1.0
        names = ("op", "kind", "calls", "ms", "share", "µs a call", "entries", "result bytes")
        body = [
            (
                s.name, s.kind, f"{s.calls:,}", f"{s.seconds * 1e3:,.2f}",
                f"{s.seconds / busy:.1%}", f"{s.seconds / s.calls * 1e6:,.1f}",
                f"{s.nnz:,}", f"{s.nbytes:,}",
            )
            for s in self.ops[:rows]
        ]  # fmt: skip
        return _drawn(names, body) + "\n" + "\n".join(self._facts()) + "\n"

    def _facts(self) -> list[str]:
        merged, pool = self.accumulation, self.memory_pool
        wasted = sum(event.nbytes for event in self.densify_events)
        times = "none" if self.speed_up is None else f"{self.speed_up:.2f}"
        return [
            f"{self.seconds * 1e3:,.2f} ms, of which {self.busy_seconds * 1e3:,.2f} ms in "
            f"{len(self.ops)} kinds of ops and index work",
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
        """Write the calls that were kept as a trace for chrome://tracing or Perfetto."""
        self._fold()
        pid = os.getpid()
        events = []
        for what, start, end, facts, size, dtype, thread in self._kept:
            kind, name = _named(what, facts)
            nnz = facts if type(facts) is int else facts[3] if type(facts) is tuple else 0
            events.append({
                "name": name, "cat": kind, "ph": "X", "pid": pid, "tid": thread,
                "ts": start / 1e3, "dur": (end - start) / 1e3,
                "args": {"nnz": nnz, "nbytes": _nbytes(size, dtype)},
            })  # fmt: skip
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


def _drawn(names: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> str:
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(map(len, column)) for column in zip(names, *body, strict=True)]

        def line(row: tuple[str, ...]) -> str:
            cells = zip(row, widths, strict=True)
            return "  ".join(
                text.ljust(w) if i < 2 else text.rjust(w) for i, (text, w) in enumerate(cells)
            ).rstrip()

        return "\n".join([line(names), "  ".join("-" * w for w in widths), *map(line, body)])
    import io

    drawn = Table(box=box.SIMPLE_HEAD)
    for i, name in enumerate(names):
        drawn.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    for row in body:
        drawn.add_row(*row)
    out = io.StringIO()
    Console(file=out, width=120, color_system=None).print(drawn)
    return out.getvalue().rstrip("\n")


# ---- recording ---------------------------------------------------------------------------------
# Events are (what, start, end, facts, size, dtype, thread): a primitive, or (kind, name); facts are
# the summary of the pattern it was called with, a number of entries, True for a call with sparse
# arguments (what its rule calls is listed itself), or None; size is the shape of the result, the
# bytes of several, or 0. Tensors are not kept, and what takes time is left to `_fold`.
_call = Primitive.__call__
_cached = Core.cached
_users = 0
_ranges: Any = None  # begin and end of a range of NVTX, while a profile is open and a GPU in use
_users_lock = threading.Lock()


def _install() -> None:
    global _users, _ranges
    with _users_lock:
        _users += 1
        if _users == 1:
            _ranges = backends.ranges()
            swap("__call__", _profiled_call if _ranges is None else _in_range(*_ranges))
            Core.cached = _profiled_cached  # type: ignore[method-assign]


def _uninstall() -> None:
    global _users, _ranges
    with _users_lock:
        _users -= 1
        if not _users:
            _ranges = None
            swap("__call__")
            Core.cached = _cached  # type: ignore[method-assign]


def _in_range(begin: Callable[[str], None], end: Callable[[], None]) -> Callable[..., Any]:
    """`_profiled_call` in a range with the name of the op."""

    def call(self: Primitive, *args: Any, **static: Any) -> Any:
        begin(self.name.removesuffix("_p"))
        try:
            return _profiled_call(self, *args, **static)
        finally:
            end()

    return call


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
    return _timed(held, _INDEX, str(label), lambda: _cached(self, key, build), self.nnz)


def _timed(held: profile, kind: str, name: str, fn: Callable[[], Any], nnz: int) -> Any:
    ranges = _ranges
    start = _clock()
    if ranges is not None:
        ranges[0](name)
    try:
        return fn()
    finally:
        if ranges is not None:
            ranges[1]()
        held._pending.append(((kind, name), start, _clock(), nnz, 0, None, _thread()))
