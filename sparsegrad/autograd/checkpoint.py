"""Checkpointing: a part of the graph is not kept but computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sparsegrad import random
from sparsegrad.engine import graph
from sparsegrad.engine.graph import Node
from sparsegrad.engine.mode import autocasting, enable_grad, recording
from sparsegrad.errors import GraphError
from sparsegrad.sparse_tensor import SparseTensor, wrap
from sparsegrad.tensor import Tensor, _make

__all__ = ["checkpoint"]


class _Call(NamedTuple):
    """What is needed to run the function again."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rng: Any
    casts: Any  # how it was autocast
    versions: list[int]  # in-place counters of the tensors among the arguments
    leaves: list[Tensor]  # what the function reads beside its arguments: parameters


class _CheckpointNode(Node):
    __slots__ = ("n_out",)

    @property
    def name(self) -> str:
        return "checkpoint"

    def pull(self, g: Any, wanted: Sequence[bool] | None) -> list[Any]:
        call: _Call = self.saved
        if call.versions != [_count(t) for t in _tensors(call.args, call.kwargs)]:
            raise GraphError("backward: an argument of checkpoint was changed in place afterwards")
        # Higher derivatives need the graph of the arguments; else a copy without history keeps
        # the second run apart from the first.
        create_graph = recording.get()
        args, kwargs = (call.args, call.kwargs) if create_graph else _cut(call.args, call.kwargs)
        token = autocasting.set(call.casts)
        try:
            with enable_grad(), random.replayed(call.rng):
                outputs = _sequence(call.fn(*args, **kwargs))
        finally:
            autocasting.reset(token)
        roots = [
            (_place(values), gi)
            for values, gi in zip(map(_values, outputs), g if self.n_out > 1 else [g], strict=True)
            if gi is not None and values._requires_grad
        ]
        inputs = [t for t in _tensors(args, kwargs) if t._requires_grad]
        targets = [_place(t) for t in (*inputs, *call.leaves)]
        found = graph.walk(
            roots, create_graph=create_graph, retain_graph=create_graph, capture=targets
        )
        return [found[place] for place in targets]


def checkpoint(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`fn(*args, **kwargs)`, recorded as one op that keeps only its arguments and runs `fn` again
    in the backward pass: memory for time. Sparse gradients stay sparse.

    fn must compute the same again; random numbers are replayed. Tensors that it reads beside its
    arguments (parameters of a module) get their gradients too. Raises GraphError in the backward
    pass if an argument was changed in place.

    Chen et al., "Training deep nets with sublinear memory cost", 2016.

    >>> import sparsegrad as sg
    >>> w = sg.tensor([1.0, 2.0], requires_grad=True)
    >>> sg.checkpoint(lambda x: sg.tanh(x) * w, w * 0).sum().backward()
    >>> w.grad
    tensor([0., 0.])
    """
    if not recording.get():
        return fn(*args, **kwargs)
    rng = random.state()
    cut_args, cut_kwargs = _cut(args, kwargs)
    with enable_grad():
        result = fn(*cut_args, **cut_kwargs)
    outputs = _sequence(result)
    for out in outputs:
        if not isinstance(out, (Tensor, SparseTensor)):
            raise TypeError(f"checkpoint: fn must return tensors, got {type(out).__name__}")
    tensors = _tensors(args, kwargs)
    inputs = [t for t in tensors if t._requires_grad]
    own = {id(t) for t in _tensors(cut_args, cut_kwargs)}
    leaves = [leaf for leaf in _leaves(outputs) if id(leaf) not in own]
    edges = [(*_place(t), t.shape, t.dtype) for t in (*inputs, *leaves)]
    if not edges:
        return result
    versions = [_count(t) for t in tensors]
    call = _Call(fn, args, kwargs, rng, autocasting.get(), versions, leaves)
    node = _CheckpointNode(edges, call)
    node.n_out = len(outputs)
    made = []
    for i, out in enumerate(outputs):
        values = _values(out)
        values = _make(values.data, node, i) if values._requires_grad else values
        made.append(wrap(values, out.pattern) if isinstance(out, SparseTensor) else values)
    return tuple(made) if isinstance(result, (tuple, list)) else made[0]


def _sequence(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)


def _values(x: Any) -> Tensor:
    return x.values if isinstance(x, SparseTensor) else x


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Tensors among the arguments; of sparse ones their values."""
    given = (*args, *kwargs.values())
    return [_values(a) for a in given if isinstance(a, (Tensor, SparseTensor))]


def _cut(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The arguments as leaves without history."""

    def leaf(a: Any) -> Any:
        if not isinstance(a, (Tensor, SparseTensor)):
            return a
        out = a.detach()
        return out.requires_grad_() if a.requires_grad else out

    return tuple(map(leaf, args)), {name: leaf(a) for name, a in kwargs.items()}


def _place(t: Tensor) -> graph.Place:
    return (t if t._node is None else t._node), t._index


def _leaves(outputs: Sequence[Any]) -> list[Tensor]:
    """Every leaf that the outputs depend on."""
    sources = [_place(_values(out))[0] for out in outputs if out.requires_grad]
    seen = {id(s): s for s in sources}
    while sources:
        source = sources.pop()
        if isinstance(source, Node):
            for below, *_ in source.edges:
                if id(below) not in seen:
                    seen[id(below)] = below
                    sources.append(below)
    return [s for s in seen.values() if not isinstance(s, Node)]


def _count(t: Tensor) -> int:
    return 0 if t._version is None else t._version.n
