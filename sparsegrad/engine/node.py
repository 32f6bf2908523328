"""A recorded call of a primitive: what it saved, and its rules, run when a walk comes by."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsegrad import backends
from sparsegrad.engine.graph import Node
from sparsegrad.errors import GraphError

if TYPE_CHECKING:
    from sparsegrad.engine.primitive import Primitive
    from sparsegrad.engine.rules import Plan

__all__ = ["Meta", "PrimitiveNode", "versions_of"]

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

    __slots__ = ("n_out", "outs_meta", "passes_g", "plan", "primitive", "versions")

    passes_g: bool
    primitive: Primitive
    plan: Plan
    versions: tuple[Any, ...] | None
    outs_meta: list[Meta]  # where there are several outputs

    @property
    def name(self) -> str:
        return self.primitive.name.removesuffix("_p")

    def pull(self, g: Any, wanted: Any) -> list[Any]:
        plan = self.plan
        saved = self.saved
        for slot in plan.tensors:
            held = saved[slot]
            if type(held) is tuple or getattr(held, "_version", None) is not None:
                self._check_versions(plan.tensors, saved)
                break
        if plan.outs:
            saved = self._rewrap(plan.outs, saved)
        if self.n_out > 1:
            xp = next((backends.for_array(gi.data).xp for gi in g if isinstance(gi, _Tensor)), np)
            g = [
                _zeros(m, xp) if gi is None else gi for gi, m in zip(g, self.outs_meta, strict=True)
            ]
        results: list[Any] = [None] * len(self.edges)
        dense = isinstance(g, _Tensor)
        for fn, slots, edges, joint, needs, sparse_g in plan.steps:
            if not joint:
                edge = edges[0]
                if edge is not None and (wanted is None or wanted[edge]):
                    taken = g if dense or sparse_g else self._dense(g)
                    if len(slots) == 1:
                        results[edge] = fn(taken, saved[slots[0]])
                    elif slots:
                        results[edge] = fn(taken, *[saved[s] for s in slots])
                    else:
                        results[edge] = fn(taken)
                continue
            live = [e is not None and (wanted is None or wanted[e]) for e in edges]
            if not any(live):
                continue
            args = [saved[s] for s in slots]
            if needs:
                args.append(tuple(live))
            taken = g if dense or sparse_g else self._dense(g)
            for e, gi in zip(edges, fn(taken, *args), strict=True):
                if e is not None:
                    results[e] = gi
        return results if dense else self._passed_on(g, results)

    def _passed_on(self, g: Any, results: list[Any]) -> list[Any]:
        """`results`, where sparse ones stand for dense ones if `g` does, or a part of it."""
        given = g if type(g) is list else (g,)
        some = next((gi for gi in given if hasattr(gi, "passed_on")), None)
        if some is not None:
            for _, _, edges, _, _, sparse_g in self.plan.steps:
                for e in edges if sparse_g else ():  # others got `g` dense
                    if e is not None:
                        results[e] = some.passed_on(results[e])
        return results

    def _dense(self, g: Any) -> Any:
        """`g` made dense (an event) for a rule that cannot take a sparse one."""
        if type(g) is list:
            return [gi if isinstance(gi, _Tensor) else gi._densify(self.name) for gi in g]
        return g._densify(f"backward of {self.name}")

    def _check_versions(self, tensors: tuple[int, ...], saved: Any) -> None:
        for k, slot in enumerate(tensors):
            held = saved[slot]
            if type(held) is not tuple and getattr(held, "_version", None) is None:
                continue
            for i, t in enumerate(held if type(held) is tuple else (held,)):
                version = getattr(t, "_version", None)
                if version is not None and version.n != self._expected(k, i):
                    raise GraphError(
                        f"backward: an input that {self.name} saved, of shape {t.shape}, was "
                        f"changed in place afterwards (version {version.n}, expected "
                        f"{self._expected(k, i)}); change a clone instead"
                    )

    def _expected(self, k: int, i: int) -> int:
        if self.versions is None:
            return 0
        held = self.versions[k]
        return held[i] if isinstance(held, tuple) else held

    def _rewrap(self, outs: tuple[tuple[int, int], ...], saved: Any) -> list[Any]:
        """Outputs are kept as bare arrays (a tensor would close the cycle out -> node -> out)
        and get their node back here, so that second derivatives pass through them."""
        saved = list(saved)
        for slot, index in outs:
            array = saved[slot]
            version = self.out_versions and self.out_versions.get(index)
            if version and version.n:
                raise GraphError(
                    f"backward: the output that {self.name} saved, of shape {array.shape}, was "
                    f"changed in place afterwards (version {version.n}, expected 0); change a "
                    "clone instead"
                )
            saved[slot] = _make(array, self, index)
        return saved


def _zeros(meta: Meta, xp: Any) -> Any:
    return _make(xp.broadcast_to(xp.zeros((), meta.dtype), meta.shape), None, 0)


def versions_of(saved: Any, tensors: tuple[int, ...]) -> tuple[Any, ...]:
    """In-place counters of saved inputs at this moment."""
    return tuple(
        tuple(_count(t) for t in saved[s]) if type(saved[s]) is tuple else _count(saved[s])
        for s in tensors
    )


def _count(t: Any) -> int:
    version = getattr(t, "_version", None)
    return 0 if version is None else version.n
