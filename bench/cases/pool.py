"""The memory pool on and off: time and page faults of steps whose arrays are large."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.cases import OURS, Candidate, Variant, nets, spmm
from bench.cases.gcn import Gcn
from bench.oracle import Expected

__all__ = ["Pool"]


class Pool:
    """Forward and both gradients of a product, and an epoch of GCN, with the pool and without."""

    name = "memory-pool"
    title = "Memory pool on, against off"
    threaded = True
    memory = True
    per = 1

    def variants(self, size: str) -> list[Variant]:
        products = [{**v, "of": "spmm-grad"} for v in spmm.Backward().variants(size)[1:3]]
        nets_ = [{**v, "of": "gcn"} for v in nets.variants(size)[3:]]
        return products + nets_ or [{**nets.variants(size)[0], "of": "gcn"}]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        return _case(variant).expected(variant)

    def candidates(self, variant: Variant) -> list[Candidate]:
        ours = _case(variant).candidates(variant)[0]
        return [
            Candidate(OURS, _with_pool(True, ours.make), ours.result, None, "ours", ours.skip),
            Candidate(
                "pool off", _with_pool(False, ours.make), ours.result, None, "reference", ours.skip
            ),
        ]


def _case(variant: Variant) -> Any:
    return Gcn() if variant["of"] == "gcn" else spmm.Backward()


def _with_pool(on: bool, make: Callable[[], Callable[[], Any]]) -> Callable[[], Callable[[], Any]]:
    def made() -> Callable[[], Any]:
        import sparsegrad as sg

        step = make()

        def run() -> Any:
            with sg.config(enable_memory_pool=on):
                return step()

        return run

    return made
