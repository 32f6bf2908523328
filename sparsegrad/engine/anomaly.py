"""Anomaly mode: which op made a NaN or went wrong, and the line of the user's code that called it.

While the mode is on anywhere, calls of primitives and new nodes pass through the functions below,
which look at those of threads and tasks whose context has it. When it is off the originals are
back, so a program without it pays nothing.
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from sparsegrad.engine.graph import Edge, Node, origin_of
from sparsegrad.engine.mode import anomaly, recording
from sparsegrad.engine.node import PrimitiveNode
from sparsegrad.engine.primitive import Primitive, watch_results
from sparsegrad.errors import AnomalyError

__all__ = [
    "detect_anomaly",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
    "set_detect_anomaly",
]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

# The node whose rule is running: ops that it records have no line of their own in the forward.
_differentiating: ContextVar[Node | None] = ContextVar("sparsegrad_differentiating", default=None)


class _Origin(NamedTuple):
    """The line of the user's code that a recorded op was called from."""

    file: str
    line: int
    function: str
    under: Node | None  # the op whose gradient it computes a part of
    leaves: tuple[tuple[Any, Any], ...] = ()  # that it depends on, and the arrays they held

    def __str__(self) -> str:
        text = f" was called at {self.file}:{self.line}, in {self.function}"
        source = linecache.getline(self.file, self.line).strip()
        text += f":\n    {source}" if source else ""
        if self.under is not None:
            text += f"\nfor the gradient of {self.under.name}" + _called(self.under, ", which")
        return text


def _caller(edges: Sequence[Edge] = ()) -> _Origin:
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    code = frame.f_code
    leaves = tuple((e[0], e[0].data) for e in edges if not isinstance(e[0], Node))
    return _Origin(code.co_filename, frame.f_lineno, code.co_name, _differentiating.get(), leaves)


def _called(node: Node, subject: str) -> str:
    """Where an op was called from, as the end of a sentence about `subject`."""
    origin = origin_of(node)
    return "" if origin is None else f"{subject}{origin}"


class _Watch(NamedTuple):
    """What is looked at in a context where the mode is on."""

    check_nan: bool

    def result(self, op: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """AnomalyError if an op that was just called made a NaN of none."""
        inside = _differentiating.get() is not None  # `pull` looks at what rules return
        if not self.check_nan or inside or not recording.get():
            return
        bad = next((out for out in outputs if _nans(out)), None)
        if bad is not None and not any(map(_nans, inputs)):
            raise AnomalyError(f"{op}: {_share(bad)} of its result are NaN, none of its inputs"
                               f" is; it{_caller()}")  # fmt: skip

    def pull(self, node: Node, g: Any, wanted: Sequence[bool] | None) -> Sequence[Any]:
        """`node.pull`, and AnomalyError if the rules made a NaN of none."""
        if self.check_nan:
            for arrived in g if isinstance(g, list) else [g]:
                if _nans(arrived):
                    raise AnomalyError(
                        f"backward of {node.name}: {_share(arrived)} of the gradient that arrived "
                        "are NaN, which no rule made: it was given to backward, came from a hook, "
                        f"or is a sum of inf and -inf{_called(node, f'; {node.name}')}"
                    )
        for source, array in getattr(origin_of(node), "leaves", ()):
            if source.data is not array:
                raise AnomalyError(
                    f"backward of {node.name}: a leaf it depends on, now of shape "
                    f"{source.data.shape}, was given other data or another pattern since, so its "
                    f"gradient would not be its own{_called(node, f'; {node.name}')}"
                )
        token = _differentiating.set(node)
        try:
            results = node.pull(g, wanted)
        finally:
            _differentiating.reset(token)
        if self.check_nan:
            for edge, result in enumerate(results):
                if (wanted is None or wanted[edge]) and _nans(result):
                    missing = "; call it inside detect_anomaly() too, to learn from which line"
                    raise AnomalyError(
                        f"backward of {node.name}: {_share(result)} of the gradient of "
                        f"{_input(node, edge)} are NaN, none of what arrived is"
                        f"{_called(node, f'; {node.name}') or missing}"
                    )
        return results

    def leaf(self, leaf: Any, g: Any) -> None:
        """AnomalyError if a sum of gradients that is ready for a leaf is NaN."""
        if self.check_nan and _nans(g):
            raise AnomalyError(
                f"backward: {_share(g)} of the gradient of a leaf of shape {tuple(leaf.shape)} are "
                "NaN, which no rule made: it was given to backward or is a sum of inf and -inf"
            )


def _arrays(x: Any) -> Iterator[Any]:
    """The arrays of floats that a tensor, sparse tensor, sum of them or sequence is made of."""
    if x is None or isinstance(x, (str, bytes)):
        return
    if hasattr(x, "parts"):
        x = x.parts
    if isinstance(x, (tuple, list)):
        for part in x:
            yield from _arrays(part)
    elif getattr(x, "_is_sparse", False):
        yield x.values.data
    elif hasattr(x, "_requires_grad"):
        yield x.data
    elif hasattr(x, "dtype") or isinstance(x, (float, complex)):
        yield x


def _nans(x: Any) -> int:
    """How many elements are not equal to themselves."""
    return sum(int((a != a).sum()) if hasattr(a, "sum") else a != a for a in _arrays(x))


def _share(x: Any) -> str:
    return f"{_nans(x)} of {sum(getattr(a, 'size', 1) for a in _arrays(x))} elements"


def _input(node: Node, edge: int) -> str:
    if not isinstance(node, PrimitiveNode):
        return f"input {edge}"
    op, position = node.plan.op, node.plan.inputs[edge]
    return f"{op.variadic}[{position}]" if op.variadic else op.inputs[position]


# ---- in the place of the originals, while the mode is on ----------------------------------------
_finish = Primitive._finish
_node_init, _record = Node.__init__, Primitive._record
_users = 0
_users_lock = threading.Lock()


def _watched_finish(
    self: Primitive,
    args: Any,
    static: dict[str, Any],
    needs: int,
    lib: Any,
    arrays: Any,
    *rest: Any,
) -> Any:
    watch = anomaly.get()
    if watch is None:
        return _finish(self, args, static, needs, lib, arrays, *rest)
    try:
        out = _finish(self, args, static, needs, lib, arrays, *rest)
    except Exception as error:
        error.add_note(f"{self.name.removesuffix('_p')}{_caller()}")
        raise
    outs = out if isinstance(out, tuple) else (out,)
    watch.result(self.name.removesuffix("_p"), [*arrays, *static.values()], outs)
    return out


def _traced_node(self: Node, *args: Any) -> None:
    _node_init(self, *args)
    if anomaly.get() is not None:
        self.origin = _caller(self.edges)


def _traced_record(self: Primitive, *args: Any) -> Any:
    out = _record(self, *args)
    node = (out[0] if isinstance(out, tuple) else out)._node
    if node is not None and anomaly.get() is not None:
        node.origin = _caller(node.edges)
    return out


_SWAPS: tuple[tuple[type, str, Any, Any], ...] = (
    (Node, "__init__", _node_init, _traced_node),
    (Primitive, "_record", _record, _traced_record),
)


def _switch(watch: _Watch | None) -> None:
    """Turn the mode on or off in this context."""
    global _users
    was = anomaly.get() is not None
    anomaly.set(watch)
    with _users_lock:
        _users += (watch is not None) - was
        on = _users > 0
        for cls, name, plain, watched in _SWAPS:
            setattr(cls, name, watched if on else plain)
        watch_results(_watched_finish if on else None)


# ---- public names ------------------------------------------------------------------------------
class set_detect_anomaly:
    """Turn anomaly mode on or off: from now on, or inside a `with` block. See `detect_anomaly`.

    >>> import sparsegrad as sg
    >>> with sg.set_detect_anomaly(True, check_nan=False):
    ...     sg.is_anomaly_enabled(), sg.is_anomaly_check_nan_enabled()
    (True, False)
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = anomaly.get()
        _switch(_Watch(bool(check_nan)) if mode else None)  # as in PyTorch, it takes effect at once

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        _switch(self._before)


class detect_anomaly:
    """Find out where a NaN comes from: a `with` block for the forward and the backward pass.

    An op that makes a NaN of numbers that are none, in its result or in a gradient, raises
    AnomalyError, which names it and the line of code that called it. Whatever else goes wrong in an
    op or in a backward pass, a bad index or a gradient on another pattern, has the same line as a
    note; on a GPU indices are checked at once. For debugging: every array is read once more.

    check_nan: look for NaN. Without it only the lines are kept.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([4.0, 0.0], requires_grad=True)
    >>> with sg.detect_anomaly():
    ...     y = (sg.sqrt(x) * 0.0).sum()
    ...     y.backward()
    Traceback (most recent call last):
    sparsegrad.errors.AnomalyError: backward of sqrt: 1 of 2 elements of the gradient of x are NaN,
    none of what arrived is; sqrt was called at <doctest ...>:2, in <module>:
        y = (sg.sqrt(x) * 0.0).sum()
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._watch = _Watch(bool(check_nan))
        self._before: list[Any] = []

    def __enter__(self) -> None:
        self._before.append(anomaly.get())
        _switch(self._watch)

    def __exit__(self, *exc: object) -> None:
        _switch(self._before.pop())


def is_anomaly_enabled() -> bool:
    """Whether anomaly mode is on in this thread or task.

    >>> import sparsegrad as sg
    >>> with sg.detect_anomaly():
    ...     sg.is_anomaly_enabled()
    True
    """
    return anomaly.get() is not None


def is_anomaly_check_nan_enabled() -> bool:
    """Whether it also looks for NaN.

    >>> import sparsegrad as sg
    >>> with sg.detect_anomaly(check_nan=False):
    ...     sg.is_anomaly_check_nan_enabled()
    False
    """
    watch = anomaly.get()
    return watch is not None and watch.check_nan
