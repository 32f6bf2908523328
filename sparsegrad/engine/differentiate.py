"""`backward` and `grad`: arguments checked, the walk run, results handed out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsegrad.backends.quiet import quiet
from sparsegrad.engine import graph
from sparsegrad.engine.mode import set_grad_enabled
from sparsegrad.errors import GraphError, ShapeError

__all__ = ["backward", "grad"]


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add gradients of `tensors` to `.grad` of the leaves they depend on (or of `inputs` only).

    grad_tensors: upstream gradients, one per tensor; may be None for scalars.
    Raises GraphError (no history, no gradient for a non-scalar, a freed graph, a changed saved
    tensor) or ShapeError; no `.grad` has then changed.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([1.0, 2.0], requires_grad=True)
    >>> sg.autograd.backward(x * 3, sg.tensor([1.0, 10.0]))
    >>> x.grad
    tensor([ 3., 30.])
    """
    outputs = _sequence(tensors)
    roots = _roots("backward", outputs, grad_tensors)
    retain = create_graph if retain_graph is None else retain_graph
    if inputs is None:
        graph.walk(roots, create_graph=create_graph, retain_graph=retain)
        return
    targets = [graph.algebra.place("backward", t) for t in _sequence(inputs)]
    if not targets:
        raise GraphError("backward: inputs must not be empty")
    found = graph.walk(
        roots, create_graph=create_graph, retain_graph=retain, capture=[p for p, _ in targets]
    )
    reached = {  # by tensor: one that is named twice counts once
        id(tensor): (tensor, found[place]) for place, tensor in targets if found[place] is not None
    }.values()
    with set_grad_enabled(create_graph), quiet():
        graph.algebra.deposit([(tensor, g, False) for tensor, g in reached])
        for tensor, _ in reached:
            for hook in tensor._post_hooks():
                hook(tensor)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """Gradients of `outputs` with respect to `inputs`, as a tuple; no `.grad` is touched.

    The gradient of a SparseTensor is a SparseTensor on its pattern; that of a dense tensor that
    was only gathered from is a row-sparse SparseTensor.

    allow_unused: None for an input that does not matter, instead of GraphError.
    materialize_grads: zeros instead of that None.

    >>> import sparsegrad as sg
    >>> x = sg.tensor(3.0, requires_grad=True)
    >>> (dx,) = sg.grad(x * x * x, [x], create_graph=True)
    >>> dx, sg.grad(dx, x)[0]
    (tensor(27., grad_fn=<add>), tensor(18.))
    """
    roots = _roots("grad", _sequence(outputs), grad_outputs)
    wanted = _sequence(inputs)
    targets = [graph.algebra.place("grad", t)[0] for t in wanted]
    found = graph.walk(
        roots,
        create_graph=create_graph,
        retain_graph=create_graph if retain_graph is None else retain_graph,
        capture=targets,
    )
    results = []
    for position, (tensor, place) in enumerate(zip(wanted, targets, strict=True)):
        g = found[place]
        if g is None and not (allow_unused or materialize_grads):
            raise GraphError(
                f"grad: input {position}, of shape {tuple(tensor.shape)}, was not used to compute "
                "the outputs; pass allow_unused=True if that is meant"
            )
        results.append(graph.algebra.present(tensor, g, materialize_grads))
    return tuple(results)


def _sequence(tensors: Any) -> Sequence[Any]:
    return tensors if isinstance(tensors, (list, tuple)) else [tensors]


def _roots(op: str, outputs: Sequence[Any], grads: Any) -> list[tuple[graph.Place, Any]]:
    if not isinstance(grads, (list, tuple)):
        grads = [grads] * len(outputs) if grads is None else [grads]
    if len(grads) != len(outputs):
        raise ShapeError(f"{op}: {len(outputs)} outputs but {len(grads)} upstream gradients")
    return [
        (graph.algebra.place(op, t)[0], graph.algebra.upstream(op, t, g))
        for t, g in zip(outputs, grads, strict=True)
    ]
