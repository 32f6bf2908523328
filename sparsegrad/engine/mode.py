"""Switches of the engine, one context variable each: recording, anomaly mode, the densify guard."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sparsegrad.config import current as settings
from sparsegrad.errors import DensifyError, SparseEfficiencyWarning

__all__ = [
    "DensifyEvent",
    "DensifyReport",
    "densify",
    "enable_grad",
    "is_grad_enabled",
    "no_grad",
    "set_grad_enabled",
]

F = TypeVar("F", bound=Callable[..., Any])

recording: ContextVar[bool] = ContextVar("sparsegrad_recording", default=True)


# What anomaly mode looks at in this thread or task; `sparsegrad.engine.anomaly`.
anomaly: ContextVar[Any] = ContextVar("sparsegrad_anomaly", default=None)

# What ops are cast to in this thread or task, or None; `sparsegrad.autograd.autocast`.
autocasting: ContextVar[Any] = ContextVar("sparsegrad_autocasting", default=None)

# Who is told of densify events and merges of sparse terms: a profile, or nobody.
watcher: ContextVar[Any] = ContextVar("sparsegrad_watcher", default=None)


def is_grad_enabled() -> bool:
    """Whether ops are being recorded in this thread or task.

    >>> import sparsegrad as sg
    >>> with sg.no_grad():
    ...     sg.is_grad_enabled()
    False
    """
    return recording.get()


class _Mode:
    """Recording on or off inside a `with` block, or in a decorated function or generator."""

    _mode: bool

    def __init__(self) -> None:
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> None:
        self._tokens.append(recording.set(self._mode))

    def __exit__(self, *exc: object) -> None:
        recording.reset(self._tokens.pop())

    def __call__(self, fn: F) -> F:
        mode = self._mode
        if inspect.isgeneratorfunction(fn):

            @functools.wraps(fn)
            def generating(*args: Any, **kwargs: Any) -> Any:
                # The mode holds while the generator runs, not while its user does.
                run, sent = fn(*args, **kwargs), None
                while True:
                    token = recording.set(mode)
                    try:
                        item = run.send(sent)
                    except StopIteration as stop:
                        return stop.value
                    finally:
                        recording.reset(token)
                    sent = yield item

            return generating  # type: ignore[return-value]

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            token = recording.set(mode)
            try:
                return fn(*args, **kwargs)
            finally:
                recording.reset(token)

        return wrapped  # type: ignore[return-value]


class _Switch(_Mode):
    def __new__(cls, fn: Callable[..., Any] | None = None) -> Any:
        made = super().__new__(cls)
        if fn is None:
            return made
        made.__init__()  # type: ignore[misc]
        return made(fn)  # a bare decorator: `@sg.no_grad`


class no_grad(_Switch):
    """Nothing is recorded inside: a context manager, and a decorator with or without parentheses.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([1.0], requires_grad=True)
    >>> with sg.no_grad():
    ...     (x * 2).requires_grad
    False
    """

    _mode = False


class enable_grad(_Switch):
    """Ops are recorded inside, also within `no_grad`.

    >>> import sparsegrad as sg
    >>> x = sg.ones(1, requires_grad=True)
    >>> with sg.no_grad(), sg.enable_grad():
    ...     y = x * 2
    >>> y.requires_grad
    True
    """

    _mode = True


class set_grad_enabled(_Mode):
    """Turn recording on or off: from now on, inside a `with` block, or in a decorated function.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([1.0], requires_grad=True)
    >>> with sg.set_grad_enabled(False):
    ...     (x * 2).requires_grad
    False
    """

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._mode = bool(mode)
        self._tokens.append(recording.set(self._mode))  # as in PyTorch, it takes effect at once

    def __enter__(self) -> None:
        if not self._tokens:
            super().__enter__()

    def __call__(self, fn: F) -> F:
        recording.reset(self._tokens.pop())  # a decorator: only the function is meant
        return super().__call__(fn)


@dataclass(frozen=True, slots=True)
class DensifyEvent:
    """One array that the library made dense without being asked: op name, shape, bytes."""

    op: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(slots=True)
class DensifyReport:
    """What a `densify` guard saw."""

    events: list[DensifyEvent] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes over all events."""
        return sum(event.nbytes for event in self.events)


@dataclass(frozen=True, slots=True)
class _Guard:
    budget: int
    on_exceed: str
    report: DensifyReport
    outer: _Guard | None


_guard: ContextVar[_Guard | None] = ContextVar("sparsegrad_densify", default=None)


class densify:
    """A guard on dense arrays that nobody asked for.

    budget: bytes that all events inside may take together.
    on_exceed: "raise" (DensifyError), "warn" (SparseEfficiencyWarning) or "record".

    An explicit `to_dense()` is asked for and is no event.

    >>> import sparsegrad as sg
    >>> w = sg.ones(4, 2, requires_grad=True)
    >>> y = sg.tanh(w).take(sg.tensor([1, 1]), sparse_grad=True).sum()
    >>> with sg.densify(on_exceed="record") as report:
    ...     y.backward()
    >>> [(event.op, event.shape) for event in report.events]
    []
    """

    def __init__(self, budget: int = 0, on_exceed: str = "raise") -> None:
        if on_exceed not in ("raise", "warn", "record"):
            raise ValueError(
                f"densify: on_exceed must be 'raise', 'warn' or 'record', got {on_exceed!r}"
            )
        self._args = (int(budget), on_exceed)
        self._tokens: list[Token[_Guard | None]] = []

    def __enter__(self) -> DensifyReport:
        guard = _Guard(*self._args, DensifyReport(), _guard.get())
        self._tokens.append(_guard.set(guard))
        return guard.report

    def __exit__(self, *exc: object) -> None:
        _guard.reset(self._tokens.pop())


def report_densify(op: str, shape: tuple[int, ...], itemsize: int) -> None:
    """Tell the guards that `op` is about to make a dense array; may raise, before it is made."""
    nbytes = itemsize
    for n in shape:
        nbytes *= n
    event = DensifyEvent(op, tuple(shape), nbytes)
    watching = watcher.get()
    if watching is not None:
        watching.densified(event)
    guard = _guard.get()
    text = f"{op}: makes a dense array of shape {event.shape} ({nbytes} bytes) of a sparse tensor"
    if guard is None:
        now = settings.get()
        if nbytes > now.densify_budget:
            _act(now.densify, text)
        return
    guards = []
    while guard is not None:
        guards.append(guard)
        guard = guard.outer
    exceeded = {g.on_exceed for g in guards if g.report.nbytes + nbytes > g.budget}
    for action in ("raise", "warn"):  # an event that one guard forbids happens for none
        if action in exceeded:
            _act(action, text)
    for g in guards:
        g.report.events.append(event)


def _act(action: str, text: str) -> None:
    if action == "raise":
        raise DensifyError(text)
    if action == "warn":
        warnings.warn(text, SparseEfficiencyWarning, stacklevel=2)
