"""The recorded graph: nodes, edges, and the backward walk.

The engine knows tensors only through `Algebra`, the handful of methods it is handed; it imports
neither tensors nor ops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, Protocol

from sparsegrad.backends.quiet import SILENT, restore, silence
from sparsegrad.engine.mode import anomaly, autocasting, recording
from sparsegrad.errors import AnomalyError, GraphError

__all__ = ["FREED", "Algebra", "Edge", "Node", "Version", "install_algebra", "walk"]

Cotangent = Any  # Tensor or SparseTensor


class Version:
    """Counts in-place changes of one storage; shared by all views of it."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


class _Freed:
    def __repr__(self) -> str:
        return "FREED"


FREED: Any = _Freed()  # stands where saved values were, after a backward pass used them

# An edge: what an input of a recorded op came from. A plain tuple, because one is made per input
# and op: (source node, or the leaf tensor itself; output index; shape; dtype).
Edge = tuple[Any, int, tuple[int, ...], Any]

next_seq = itertools.count().__next__


class Node:
    """One recorded op: edges to where its inputs came from, and what its rules asked to keep.

    Subclasses give `name`, `pull(g, wanted)` and `n_out`. `seq` rises with creation, so
    descending `seq` is a topological order.
    """

    __slots__ = (
        "__weakref__", "edges", "hooks", "origin", "out_versions", "retains", "saved", "seq"
    )  # fmt: skip

    n_out: int
    hooks: dict[int, dict[int, Callable[[Cotangent], Any]]] | None  # per output
    retains: dict[int, Any] | None  # output index -> weakref of the tensor
    out_versions: dict[int, Version] | None  # counters of outputs that have one
    origin: Any  # where it was called from: set in anomaly mode only

    def __init__(self, edges: Sequence[Edge], saved: Any) -> None:
        self.edges = edges
        self.saved = saved
        self.seq = next_seq()
        self.hooks = self.retains = self.out_versions = None

    @property
    def name(self) -> str:
        """Name of the op."""
        raise NotImplementedError

    @property
    def passes_g(self) -> bool:
        """Whether its rules may return the memory of g itself."""
        return False

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """(node or leaf tensor, output index) of every differentiable input."""
        return tuple((source, index) for source, index, _, _ in self.edges)

    def pull(self, g: Any, wanted: Sequence[bool] | None) -> Sequence[Cotangent | None]:
        """Cotangents of the inputs, one per edge. `g`: cotangent of the output, or a list of
        them (None where nothing arrived) for several outputs. `wanted`: edges that matter."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{self.name}>"


def origin_of(node: Node) -> Any:
    """Where the op was called from, if that was recorded."""
    return getattr(node, "origin", None)


# A place where cotangents arrive: (node, output index), or (leaf tensor, 0). Looked up by
# identity: tensors compare elementwise.
Place = tuple[Any, int]
Key = tuple[int, int]


class Algebra(Protocol):
    """What the engine needs of tensors; `sparsegrad.autograd.accumulate` says what each does."""

    tensor_type: Any

    def place(self, op: str, tensor: Any) -> tuple[Place, Any]: ...
    def upstream(self, op: str, tensor: Any, g: Any) -> Cotangent: ...
    def present(self, tensor: Any, g: Cotangent | None, materialize: bool) -> Any: ...
    def conform(self, g: Cotangent, shape: tuple[int, ...], dtype: Any, op: str) -> Cotangent: ...
    def add(self, a: Cotangent, b: Cotangent, owned: bool) -> Cotangent: ...
    def settle(self, g: Cotangent) -> Cotangent: ...
    def fresh(self, result: Cotangent, g: Any, g_owned: bool, saved: Any) -> bool: ...
    def alone(self, results: Sequence[Cotangent | None], i: int) -> bool: ...
    def run_hooks(self, hooks: Iterable[Callable[..., Any]], g: Cotangent) -> Cotangent: ...
    def deposit(self, gradients: Iterable[tuple[Any, Cotangent, bool]]) -> None: ...


algebra: Algebra


def install_algebra(methods: Algebra) -> None:
    """Hand the engine its methods; called once, by `sparsegrad.autograd.accumulate`."""
    global algebra
    algebra = methods


def walk(
    roots: Sequence[tuple[Place, Cotangent]],
    *,
    create_graph: bool,
    retain_graph: bool,
    capture: Sequence[Place] | None = None,
) -> dict[Key, Cotangent]:
    """Run the rules from `roots` down, each node once, after all of its cotangents have arrived.

    Without `capture`, deposits into every leaf that requires a gradient and returns nothing. With
    `capture`, visits only paths to those places and returns what arrived there, by
    (id of the source, output index). Leaves are changed
    after the whole walk succeeded, never half-way.
    """
    expand = None if capture is None else _on_path([source for (source, _), _ in roots], capture)
    captured: dict[Key, Any] | None = None
    if capture is not None:
        captured = {(id(source), index): None for source, index in capture}
    marked = {id(source) for source, _ in capture or ()}
    inbox: dict[Any, list[Any]] = {}  # node -> per output: None or [cotangent, owned]
    leaves: dict[int, list[Any]] = {}  # id(leaf) -> [cotangent, owned, leaf]
    heap: list[tuple[int, Node]] = []
    retained: list[tuple[Any, Cotangent]] = []
    add, conform, tensor_type = algebra.add, algebra.conform, algebra.tensor_type

    def waiting(source: Any) -> list[Any]:
        """What has arrived at a node, by output."""
        slots = inbox[source] = [None] * source.n_out
        heappush(heap, (-source.seq, source))
        return slots

    def visit(node: Node, slots: list[Any]) -> None:
        saved = node.saved
        if saved is FREED:
            raise GraphError(
                f"backward: the values saved by {node.name} were freed by an earlier backward; "
                "pass retain_graph=True to the first one to differentiate twice"
            )
        if node.n_out == 1:
            g, g_owned = slots[0]
            if not isinstance(g, tensor_type):
                g = algebra.settle(g)
        else:
            g = [None if held is None else algebra.settle(held[0]) for held in slots]
            g_owned = False
        edges = node.edges
        wanted = None if expand is None else expand[node]
        results = node.pull(g, wanted) if watch is None else watch.pull(node, g, wanted)
        if not retain_graph:
            node.saved = FREED
        for i, (source, index, shape, dtype) in enumerate(edges):
            result = results[i]
            if result is None or (wanted is not None and not wanted[i]):
                continue
            if not isinstance(result, tensor_type):
                result = conform(result, shape, dtype, node.name)
            else:
                data = result.data
                if data.shape != shape or data.dtype is not dtype:
                    result = conform(result, shape, dtype, node.name)
            inner = isinstance(source, Node)
            if inner:
                arrived = inbox.get(source) or waiting(source)
                held = arrived[index]
            else:
                held = leaves.get(id(source))
            if held is not None:  # a sum is the engine's own
                held[0] = add(held[0], result, held[1] and not create_graph)
                held[1] = True
                continue
            # Who owns the first that arrives matters to leaves, and to rules that hand it on.
            owned = False
            if not inner or source.passes_g:
                owned = algebra.fresh(result, g, g_owned, saved)
                if owned and len(edges) > 1:  # memory that two edges share is nobody's own
                    owned = algebra.alone(results, i)
            if inner:
                arrived[index] = [result, owned]
            else:
                leaves[id(source)] = [result, owned, source]

    watch = anomaly.get()
    token, floats = recording.set(create_graph), silence(SILENT)
    casts = autocasting.set(None)  # rules run in the dtypes of the forward pass
    try:
        for (source, index), g in roots:
            if isinstance(source, Node):
                slots = inbox.get(source) or waiting(source)
                held = slots[index]
                slots[index] = [g if held is None else add(held[0], g, False), held is not None]
            else:
                held = leaves.get(id(source))
                g = g if held is None else add(held[0], g, False)
                leaves[id(source)] = [g, held is not None, source]
        while heap:
            node = heappop(heap)[1]
            slots = inbox.pop(node)
            if node.hooks is not None:
                for index, hooks in node.hooks.items():
                    if slots[index] is not None:
                        slots[index] = [algebra.run_hooks(hooks.values(), slots[index][0]), False]
            if node.retains is not None:
                for index, ref in node.retains.items():
                    tensor = ref()
                    if tensor is not None and slots[index] is not None:
                        retained.append((tensor, slots[index][0]))
                        slots[index][1] = False
            if captured is not None:
                for index, held in enumerate(slots if id(node) in marked else ()):
                    if held is not None and (id(node), index) in captured:
                        captured[id(node), index] = held[0]
                        held[1] = False
                if node not in expand:  # type: ignore[operator]
                    continue
            try:
                visit(node, slots)
            except AnomalyError:
                raise  # it says where
            except Exception as error:
                origin = origin_of(node) or ""
                error.add_note(f"while differentiating {node.name}{origin and f', which{origin}'}")
                raise
        if watch is not None:
            for g, _, leaf in leaves.values():
                watch.leaf(leaf, g)
        return _finish(leaves, retained, captured, create_graph)
    finally:
        restore(floats)
        autocasting.reset(casts)
        recording.reset(token)


def _finish(
    leaves: dict[int, list[Any]],
    retained: list[tuple[Any, Cotangent]],
    captured: dict[Key, Any] | None,
    create_graph: bool,
) -> dict[Key, Cotangent]:
    done = []
    for g, owned, leaf in leaves.values():
        if leaf.data.shape != g.shape:
            raise GraphError(
                f"backward: a leaf has shape {leaf.data.shape}, its gradient {g.shape}: it was "
                "given other data after the forward, by repattern_ for example"
            )
        hooks = leaf._leaf_hooks()
        if hooks:
            g, owned = algebra.run_hooks(hooks, g), False
        done.append((leaf, g, owned and not create_graph))
    if captured is not None:
        for leaf, g, _ in done:
            if (id(leaf), 0) in captured:
                captured[id(leaf), 0] = g
        return captured
    algebra.deposit([*((tensor, g, False) for tensor, g in retained), *done])
    for leaf, _, _ in done:
        for hook in leaf._post_hooks():
            hook(leaf)
    return {}


def _on_path(roots: Iterable[Any], targets: Sequence[Place]) -> dict[Any, list[bool] | None]:
    """Nodes from which a target can be reached, with the edges that matter: None if all do."""
    ends = {(id(source), index) for source, index in targets}
    order = [source for source in roots if isinstance(source, Node)]
    reached = set(order)
    for node in order:  # which grows meanwhile
        for source, _, _, _ in node.edges:
            if source not in reached and isinstance(source, Node):
                reached.add(source)
                order.append(source)
    order.sort(key=attrgetter("seq"))  # inputs before what they feed
    expand: dict[Any, list[bool] | None] = {}
    for node in order:
        hits = 0
        for source, index, _, _ in node.edges:
            hits += source in expand or (id(source), index) in ends
        if hits == len(node.edges):
            expand[node] = None
        elif hits:
            expand[node] = [e[0] in expand or (id(e[0]), e[1]) in ends for e in node.edges]
    return expand
