"""A recorded call of a primitive: what it saved, and its rules, run when a walk comes by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from sparsegrad import backends
from sparsegrad.engine.graph import Edge, Node, next_seq
from sparsegrad.errors import GraphError

if TYPE_CHECKING:
    from sparsegrad.engine.rules import Plan

__all__ = ["Meta", "PrimitiveNode", "recorded"]

_Tensor: Any = None
_make: Callable[[Any, Any, int], Any]


def use_tensor_type(cls: Any, make: Callable[..., Any]) -> None:
    """Hand over the tensor class; see `primitive.use_tensor_type`."""
    global _Tensor, _make
    _Tensor, _make = cls, make


class Meta(NamedTuple):
    """What a rule may ask of an input without keeping it alive."""

    shape: tuple[int, ...]
    dtype: np.dtype


class PrimitiveNode(Node):
    """A recorded call of a primitive."""

    __slots__ = ("n_out", "outs_meta", "passes_g", "plan")

    passes_g: bool | Literal["parts"]
    plan: Plan
    outs_meta: list[Meta]  # where there are several outputs

    @property
    def name(self) -> str:
        return self.plan.op.name.removesuffix("_p")

    def pull(self, g: Any, wanted: Any) -> Sequence[Any]:
        plan = self.plan
        saved = self.saved
        for slot in plan.tensors:
            held = saved[slot]
            if type(held) is tuple or getattr(held, "_version", None) is not None:
                self._check(held)
        if plan.outs:
            saved = self._rewrap(plan.outs, saved)
        dense = isinstance(g, _Tensor)
        if dense and plan.lone is not None:  # what `saved` holds are its arguments
            if len(saved) == 1:
                return (plan.lone(g, saved[0]),)
            return (plan.lone(g, *saved) if saved else plan.lone(g),)
        if self.n_out > 1:
            g = self._filled(g)
        results: list[Any] = [None] * len(self.edges)
        for edge, fn, slots, sparse_g in plan.singles:
            if wanted is None or wanted[edge]:
                taken = g if dense or sparse_g else self._dense(g)
                if len(slots) == 1:
                    results[edge] = fn(taken, saved[slots[0]])
                elif slots:
                    results[edge] = fn(taken, *[saved[s] for s in slots])
                else:
                    results[edge] = fn(taken)
        for edges, fn, slots, told, sparse_g in plan.joints:
            live = tuple([e is not None and (wanted is None or wanted[e]) for e in edges])
            if any(live):
                taken = g if dense or sparse_g else self._dense(g)
                args = [saved[s] for s in slots]
                found = fn(taken, *args, live) if told else fn(taken, *args)
                for e, gi in zip(edges, found, strict=True):
                    if e is not None:
                        results[e] = gi
        return results if dense else self._passed_on(g, results)

    def _filled(self, g: Sequence[Any]) -> list[Any]:
        """What arrived at several outputs, zeros where nothing did."""
        xp = next((backends.for_array(gi.data).xp for gi in g if isinstance(gi, _Tensor)), np)
        metas = zip(g, self.outs_meta, strict=True)
        return [_zeros(meta, xp) if gi is None else gi for gi, meta in metas]

    def _passed_on(self, g: Any, results: list[Any]) -> list[Any]:
        """`results`, where sparse ones stand for dense ones if `g` does, or a part of it."""
        given = g if type(g) is list else (g,)
        some = next((gi for gi in given if hasattr(gi, "passed_on")), None)
        if some is not None:
            for e in self.plan.sparse:  # others got `g` dense
                results[e] = some.passed_on(results[e])
        return results

    def _dense(self, g: Any) -> Any:
        """`g` made dense (an event) for a rule that cannot take a sparse one."""
        if type(g) is list:
            return [gi if isinstance(gi, _Tensor) else gi._densify(self.name) for gi in g]
        return g._densify(f"backward of {self.name}")

    def _check(self, t: Any) -> None:
        if type(t) is tuple:
            for each in t:
                self._check(each)
        version = getattr(t, "_version", None)
        if version is not None and version.n > self.seq:
            raise GraphError(
                f"backward: an input that {self.name} saved, of shape {t.shape}, was changed in "
                "place afterwards; change a clone instead"
            )

    def _rewrap(self, outs: tuple[tuple[int, int], ...], saved: Any) -> list[Any]:
        """Outputs are kept as bare arrays (a tensor would close the cycle out -> node -> out)
        and get their node back here, so that second derivatives pass through them."""
        saved = list(saved)
        for slot, index in outs:
            array = saved[slot]
            if self.out_versions is not None:
                version = self.out_versions.get(index)
                if version is not None and version.n > self.seq:
                    raise GraphError(
                        f"backward: the output that {self.name} saved, of shape {array.shape}, was "
                        "changed in place afterwards; change a clone instead"
                    )
            saved[slot] = _make(array, self, index)
        return saved


def _zeros(meta: Meta, xp: Any) -> Any:
    return _make(xp.broadcast_to(xp.zeros((), meta.dtype), meta.shape), None, 0)


_new_node = PrimitiveNode.__new__


def recorded(plan: Plan, edges: Sequence[Edge], saved: Sequence[Any]) -> PrimitiveNode:
    """The node of a call; one per op, so `__init__` would cost as much as the rest."""
    node = _new_node(PrimitiveNode)
    node.plan = plan
    node.edges = edges
    node.saved = saved
    node.seq = next_seq()
    node.n_out = 1
    node.passes_g = plan.passes_g
    node.hooks = node.retains = node.out_versions = None
    return node
