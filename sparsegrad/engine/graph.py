"""The recorded graph: nodes, edges, and the backward walk.

The engine knows tensors only through `Algebra`, the handful of methods it is handed; it imports
neither tensors nor ops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Literal, Protocol

from sparsegrad.backends.quiet import SILENT, restore, silence
from sparsegrad.engine.mode import anomaly, autocasting, recording
from sparsegrad.errors import AnomalyError, GraphError

__all__ = ["FREED", "Algebra", "Edge", "Node", "Version", "install_algebra", "walk"]

Cotangent = Any  # Tensor or SparseTensor


class Version:
    """When one storage was last changed in place: a number of the series that numbers nodes, so
    that a node older than its inputs is stale. Shared by all views."""

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
    foreign = False  # a user's rule, which may return memory that the user holds

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
    def passes_g(self) -> bool | Literal["parts"]:
        """Whether its rules may return the memory of g itself; "parts" if no two share any."""
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


# A place where cotangents arrive: (node, output index), or (leaf tensor, 0). Both hash by identity.
Place = tuple[Any, int]


class Algebra(Protocol):
    """What the engine needs of tensors; `sparsegrad.autograd.accumulate` says what each does."""

    tensor_type: Any

    def place(self, op: str, tensor: Any) -> tuple[Place, Any]: ...
    def upstream(self, op: str, tensor: Any, g: Any) -> Cotangent: ...
    def present(self, tensor: Any, g: Cotangent | None, materialize: bool) -> Any: ...
    def conform(self, g: Cotangent, shape: tuple[int, ...], dtype: Any, op: str) -> Cotangent: ...
    def add(self, a: Cotangent, b: Cotangent, owned: bool) -> Cotangent: ...
    def settle(self, g: Cotangent) -> Cotangent: ...
    def fresh(
        self, result: Cotangent, g: Any, g_owned: bool, saved: Any, results: Sequence[Any]
    ) -> bool: ...
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
) -> dict[Place, Cotangent]:
    """Run the rules from `roots` down, each node once, after all of its cotangents have arrived.

    Without `capture`, deposits into every leaf that requires a gradient and returns nothing. With
    `capture`, visits only paths to those places and returns what arrived there. Leaves are changed
    after the whole walk succeeded, never half-way.
    """
    order, wanted = _route([source for (source, _), _ in roots], capture)
    state = _Walk(wanted, create_graph, retain_graph, capture or ())
    token, floats = recording.set(create_graph), silence(SILENT)
    casts = autocasting.set(None)  # rules run in the dtypes of the forward pass
    try:
        for (source, index), g in roots:
            key = (source, index) if index else source
            if key in state.arrived:
                state.add(key, g)
            else:
                state.arrived[key] = g
        state.run(order)
        return _finish(state.leaves(), state.retained, None if capture is None else state.captured)
    finally:
        restore(floats)
        autocasting.reset(casts)
        recording.reset(token)


class _Walk:
    """What one walk knows: cotangents on their way, and those that are to be handed out."""

    __slots__ = (
        "arrived", "captured", "create_graph", "marked", "owned", "retain_graph", "retained",
        "wanted", "watch",
    )  # fmt: skip

    def __init__(
        self,
        wanted: dict[Any, list[bool] | None] | None,
        create_graph: bool,
        retain_graph: bool,
        capture: Sequence[Place],
    ) -> None:
        self.wanted = wanted
        self.create_graph, self.retain_graph = create_graph, retain_graph
        self.captured: dict[Place, Any] = dict.fromkeys(capture)
        self.marked = {source for source, _ in capture}
        self.retained: list[tuple[Any, Cotangent]] = []
        # What has arrived where: a leaf or the first output of a node is its own key, another
        # output is (node, index). Those in `owned` lie in memory that nobody but the engine holds.
        self.arrived: dict[Any, Cotangent] = {}
        self.owned: set[Any] = set()
        self.watch = anomaly.get()

    def add(self, key: Any, g: Cotangent) -> None:
        """Add to what has arrived at a place."""
        owned = key in self.owned and not self.create_graph
        self.arrived[key] = algebra.add(self.arrived[key], g, owned)
        self.owned.add(key)  # a sum is the engine's own

    def run(self, order: Iterable[Node]) -> None:
        """Hand what has arrived at each node on to its inputs."""
        arrived, marked, wanted = self.arrived, self.marked, self.wanted
        for node in order:
            g = arrived.pop(node, None)
            if node.n_out > 1:
                g = [g, *(arrived.pop((node, i), None) for i in range(1, node.n_out))]
                if all(gi is None for gi in g):
                    continue
            elif g is None:  # no rule sent anything here
                continue
            if node.hooks or node.retains or node in marked:
                g = self.shown(node, g) if node.n_out > 1 else self.shown(node, [g])[0]
            if wanted is not None and node not in wanted:
                continue
            try:
                self.differentiate(node, g, None if wanted is None else wanted[node])
            except AnomalyError:
                raise  # it says where
            except Exception as error:
                origin = origin_of(node) or ""
                error.add_note(f"while differentiating {node.name}{origin and f', which{origin}'}")
                raise

    def shown(self, node: Node, gs: list[Any]) -> list[Any]:
        """What arrived at a node, by output, after hooks; kept where that was asked for."""
        for index, hooks in (node.hooks or {}).items():
            if gs[index] is not None:
                gs[index] = algebra.run_hooks(hooks.values(), gs[index])
        for index, ref in (node.retains or {}).items():
            tensor = ref()
            if tensor is not None and gs[index] is not None:
                self.retained.append((tensor, gs[index]))
        for index, g in enumerate(gs):
            if (node, index) in self.captured:
                self.captured[node, index] = g
        self.owned.discard(node)
        return gs

    def differentiate(self, node: Node, g: Any, live: list[bool] | None) -> None:
        """Run the rules of a node, for the edges that are live, and send out what they give."""
        saved, arrived, tensor_type = node.saved, self.arrived, algebra.tensor_type
        if saved is FREED:
            raise GraphError(
                f"backward: the values saved by {node.name} were freed by an earlier backward; "
                "pass retain_graph=True to the first one to differentiate twice"
            )
        if not isinstance(g, tensor_type):
            g = _settled(g)
        watch = self.watch
        results = node.pull(g, live) if watch is None else watch.pull(node, g, live)
        if not self.retain_graph:
            node.saved = FREED
        for i, (source, index, shape, dtype) in enumerate(node.edges):
            result = results[i]
            if result is None or (live is not None and not live[i]):
                continue
            if (
                not isinstance(result, tensor_type)
                or (data := result.data).shape != shape
                or data.dtype is not dtype
            ):
                result = algebra.conform(result, shape, dtype, node.name)
            key = (source, index) if index else source
            if key in arrived:
                self.add(key, result)
                continue
            arrived[key] = result
            # Who owns the first that arrives matters to leaves, and to rules that hand it on.
            if not isinstance(source, Node) or source.passes_g:
                mine = node in self.owned
                shared = (result,) if node.passes_g == "parts" else results
                if not node.foreign and algebra.fresh(result, g, mine, saved, shared):
                    self.owned.add(key)

    def leaves(self) -> list[tuple[Any, Cotangent, bool]]:
        """What has arrived at leaves, and whether it is owned: all that is left at the end."""
        if self.watch is not None:
            for leaf, g in self.arrived.items():
                self.watch.leaf(leaf, g)
        return [
            (leaf, g, leaf in self.owned and not self.create_graph)
            for leaf, g in self.arrived.items()
        ]


def _settled(g: Any) -> Any:
    """What arrived, a list for several outputs, as a rule can take it."""
    if type(g) is list:
        return [None if gi is None else algebra.settle(gi) for gi in g]
    return algebra.settle(g)


def _finish(
    leaves: list[tuple[Any, Cotangent, bool]],
    retained: list[tuple[Any, Cotangent]],
    captured: dict[Place, Any] | None,
) -> dict[Place, Cotangent]:
    """Leaves and what arrived at them, and whether that is owned: hooks run, all handed out."""
    done = []
    for leaf, g, owned in leaves:
        if leaf.data.shape != g.shape:
            raise GraphError(
                f"backward: a leaf has shape {leaf.data.shape}, its gradient {g.shape}: it was "
                "given other data after the forward, by repattern_ for example"
            )
        hooks = leaf._leaf_hooks()
        if hooks:
            g, owned = algebra.run_hooks(hooks, g), False
        done.append((leaf, g, owned))
    if captured is not None:
        for leaf, g, _ in done:
            if (leaf, 0) in captured:
                captured[leaf, 0] = g
        return captured
    algebra.deposit([*((tensor, g, False) for tensor, g in retained), *done])
    for leaf, _, _ in done:
        for hook in leaf._post_hooks():
            hook(leaf)
    return {}


def _route(
    roots: Iterable[Any], targets: Sequence[Place] | None
) -> tuple[list[Node], dict[Any, list[bool] | None] | None]:
    """Nodes below `roots`, youngest first; and those from which a target can be reached, with which
    of their edges matter. None stands for all edges, or all nodes."""
    order = list(dict.fromkeys(source for source in roots if isinstance(source, Node)))
    reached: set[Any] = set(order)
    leaves = []
    for node in order:  # which grows meanwhile
        for edge in node.edges:
            source = edge[0]
            if source not in reached:
                reached.add(source)
                if isinstance(source, Node):
                    order.append(source)
                else:
                    leaves.append(source)
    order.sort(key=attrgetter("seq"), reverse=True)
    if targets is None:
        return order, None
    ends = set(targets)
    if all((leaf, 0) in ends for leaf in leaves):
        return order, None
    wanted: dict[Any, list[bool] | None] = {}
    for node in reversed(order):  # inputs before what they feed
        live = [e[0] in wanted or e[:2] in ends for e in node.edges]
        if any(live):
            wanted[node] = None if all(live) else live
    return order, wanted
