"""Function: a forward and a backward written by the user, as in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sparsegrad import dtypes
from sparsegrad.engine.graph import Node
from sparsegrad.engine.mode import anomaly, no_grad, recording
from sparsegrad.engine.primitive import Meta
from sparsegrad.errors import GraphError
from sparsegrad.sparse_tensor import SomeRows, SparseTensor, wrap
from sparsegrad.tensor import Tensor, _make

__all__ = ["Function", "FunctionContext"]


class FunctionContext:
    """What `forward` hands to `backward`: `save_for_backward`, `saved_tensors`,
    `needs_input_grad`, and any attribute that is set on it."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._saved: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep inputs or outputs for `backward`."""
        self._saved = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` kept."""
        return self._saved


class _Saved(NamedTuple):
    """One tensor of `save_for_backward`: an input as it is, an output as a bare array."""

    tensor: Any
    output: int | None
    expected: int


class _FunctionNode(Node):
    __slots__ = ("ctx", "function", "n_out", "outs", "patterns", "positions")

    foreign = True
    function: type[Function]
    ctx: FunctionContext
    positions: tuple[int, ...]  # arguments that have an edge
    patterns: tuple[Any, ...]  # of those arguments, None for dense ones
    outs: tuple[tuple[Meta, Any], ...]  # of each output: shape and dtype of values, pattern

    @property
    def name(self) -> str:
        return self.function.__name__

    def pull(self, g: Any, wanted: Sequence[bool] | None) -> list[Any]:
        upstream = [
            _as_output(self._dense(gi, pattern), meta, pattern)
            for gi, (meta, pattern) in zip(g if self.n_out > 1 else [g], self.outs, strict=True)
        ]
        self.ctx._saved = tuple(self._recall(entry) for entry in self.saved)
        try:
            results = self.function.backward(self.ctx, *upstream)
        finally:
            self.ctx._saved = ()
        results = results if isinstance(results, tuple) else (results,)
        expected = len(self.ctx.needs_input_grad)
        if all(g is None for g in results[expected:]):  # of arguments that took their defaults
            results = results[:expected]
        if len(results) != expected:
            raise GraphError(
                f"{self.name}.backward: expected {expected} gradients, one "
                f"per argument of forward, got {len(results)}"
            )
        return [
            g if pattern is None or g is None else self._values(results[i], pattern)
            for i, pattern in zip(self.positions, self.patterns, strict=True)
            for g in (results[i],)
        ]

    def _dense(self, g: Any, pattern: Any) -> Any:
        """`g` itself, or made dense (an event) if `backward` does not take a sparse one."""
        if not isinstance(g, SparseTensor):
            return g
        if pattern is None and self.function.sparse_g and not isinstance(g, SomeRows):
            return g
        if pattern is not None:  # sparse over entries: O(nnz)
            return g.to_dense()
        return g._densify(f"backward of {self.name}")

    def _values(self, g: Any, pattern: Any) -> Any:
        if isinstance(g, SparseTensor):
            if not g.pattern.same_as(pattern):
                raise GraphError(
                    f"{self.name}.backward: the gradient of a sparse argument must lie on its "
                    f"pattern {pattern}, got {g.pattern}"
                )
            return g.values
        return g

    def _recall(self, entry: _Saved) -> Any:
        if entry.output is None:
            now = _count(entry.tensor)
        else:
            version = (self.out_versions or {}).get(entry.output)
            now = 0 if version is None else version.n
        if now != entry.expected:
            raise GraphError(f"backward: a tensor that {self.name} saved was changed in place")
        if entry.output is None:
            return entry.tensor
        return _as_output(_make(entry.tensor, self, entry.output), *self.outs[entry.output])


def _as_output(values: Any, meta: Meta, pattern: Any) -> Any:
    if values is None:  # no gradient arrived: zeros
        values = Tensor(0.0, meta.dtype).expand(meta.shape)
    return values if pattern is None else wrap(values, pattern)


def _values_of(x: Any) -> Any:
    return x.values if isinstance(x, SparseTensor) else x


def _count(x: Any) -> int:
    counter = getattr(_values_of(x), "_version", None)
    return 0 if counter is None else counter.n


class Function:
    """A differentiable function with its own gradient. Subclass it and call `.apply`.

        class Double(sg.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g * 2

    `forward` takes the arguments of `apply` and returns a tensor or a tuple of them; nothing in it
    is recorded. `backward` takes one gradient per output and returns one per argument (None where
    there is none); it is written in ops, so that it can be differentiated again. The gradient of
    a dense argument may be a SparseTensor; that of a sparse argument is a SparseTensor on its
    pattern.

    sparse_g: set it to True in a class whose `backward` takes a row-sparse gradient of a dense
        output (what a gather sends back); otherwise that is made dense, which is an event.

    >>> import sparsegrad as sg
    >>> class Double(sg.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x * 2
    ...
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         return g * 2
    >>> x = sg.ones(2, requires_grad=True)
    >>> Double.apply(x).sum().backward()
    >>> x.grad
    tensor([2., 2.])
    """

    sparse_g = False

    @staticmethod
    def forward(ctx: FunctionContext, *args: Any, **kwargs: Any) -> Any:
        """The result, from the arguments of `apply`."""
        raise NotImplementedError("Function: subclasses define forward(ctx, *args)")

    @staticmethod
    def backward(ctx: FunctionContext, *grads: Any) -> Any:
        """Gradients of the arguments, from those of the outputs."""
        raise NotImplementedError("Function: subclasses define backward(ctx, *grads)")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` and record the call."""
        needs = tuple(bool(getattr(a, "requires_grad", False)) for a in args)
        ctx = FunctionContext(needs)
        with no_grad():
            result = cls.forward(ctx, *args, **kwargs)
        single = not isinstance(result, tuple)
        results = (result,) if single else result
        for r in results:
            if not isinstance(r, (Tensor, SparseTensor)):
                raise TypeError(f"{cls.__name__}.forward: expected tensors, got {type(r).__name__}")
        watch = anomaly.get()
        if watch is not None:
            watch.result(cls.__name__, args, results)
        if any(needs) and recording.get():
            results = _record(cls, ctx, args, results)
        ctx._saved = ()
        return results[0] if single else results


def _record(cls: Any, ctx: Any, args: tuple[Any, ...], results: tuple[Any, ...]) -> Any:
    positions = tuple(i for i, needed in enumerate(ctx.needs_input_grad) if needed)
    edges = []
    for i in positions:
        values = _values_of(args[i])
        source = values if values._node is None else values._node
        edges.append((source, values._index, values.data.shape, values.data.dtype))
    patterns = [getattr(r, "pattern", None) for r in results]
    arrays = [_values_of(r).data for r in results]
    saved = []
    for t in ctx._saved:
        at = next((i for i, r in enumerate(results) if r is t), None)
        if at is None or any(t is a for a in args):  # an input, even if it is also returned
            saved.append(_Saved(t, None, _count(t)))
        else:
            saved.append(_Saved(arrays[at], at, _count(t)))
    node = _FunctionNode(tuple(edges), tuple(saved))
    node.function, node.ctx, node.positions, node.n_out = cls, ctx, positions, len(results)
    node.patterns = tuple(getattr(args[i], "pattern", None) for i in positions)
    node.outs = tuple(
        (Meta(array.shape, array.dtype), pattern)
        for array, pattern in zip(arrays, patterns, strict=True)
    )
    outs = []
    for i, (array, pattern) in enumerate(zip(arrays, patterns, strict=True)):
        if dtypes.kind(array.dtype) != "f":
            outs.append(results[i])
            continue
        values = _make(array, node, i)
        made = _values_of(results[i])
        shared = made._counter() if any(results[i] is a for a in args) else made._version
        if shared is not None:  # an input or a view of one
            values._version = shared
            node.out_versions = {**(node.out_versions or {}), i: shared}
        outs.append(values if pattern is None else wrap(values, pattern))
    return tuple(outs)
