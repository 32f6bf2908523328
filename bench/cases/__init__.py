"""What is measured. A case has variants (sizes); a variant has candidates: us and peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bench.oracle import Expected

__all__ = ["OURS", "Candidate", "Case", "Variant", "all_cases"]

OURS = "sparsegrad"
Variant = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """One way to do the work of a variant.

    make: prepares inputs and returns the function to time; anything it builds beforehand (a
        matrix in its own format) is not timed.
    result: the value of that function as named NumPy arrays, for the oracle.
    needs: name of the peer library, None for what is always there.
    role: "ours", "peer", or "reference": shown beside us, but nobody's rival.
    skip: a reason not to run it at this size.
    """

    name: str
    make: Callable[[], Callable[[], Any]]
    result: Callable[[Any], Mapping[str, Any]] = lambda raw: {}
    needs: str | None = None
    role: str = "peer"
    skip: str | None = None


class Case(Protocol):
    """A benchmark. `threaded`: runs at several thread counts; `memory`: peaks are measured;
    `per`: operations in one call, where the time of one matters. A case whose calls are
    short and many may have a `budget_s` of its own."""

    name: str
    title: str
    threaded: bool
    memory: bool
    per: int

    def variants(self, size: str) -> list[Variant]:
        """Variants of size "full", "quick" or "tiny"; each has a "label"."""

    def candidates(self, variant: Variant) -> list[Candidate]:
        """Ours first."""

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        """Results in float64; empty if there is nothing to compare."""


def all_cases() -> dict[str, Case]:
    """Every case by name."""
    from bench.cases import (
        coalesce,
        embedding,
        gat,
        gcn,
        import_time,
        mlp,
        narrow,
        nearly_full,
        patterns,
        pool,
        profile,
        rows,
        scatter,
        small_ops,
        softmax,
        spgemm,
        spmm,
        tape,
    )

    cases: list[Case] = [
        spmm.Forward(),
        spmm.Backward(),
        narrow.Narrow(),
        nearly_full.NearlyFull(),
        coalesce.Coalesce(),
        scatter.Scatter(),
        softmax.Softmax(),
        spgemm.Product(),
        spgemm.ProductBackward(),
        patterns.Patterns(),
        gcn.Gcn(),
        gat.Gat(),
        pool.Pool(),
        embedding.Embedding(),
        embedding.Tables(),
        mlp.Mlp(),
        rows.Rows(),
        narrow.Random(),
        small_ops.SmallOps(),
        tape.Tape(),
        profile.Profile(),
        import_time.ImportTime(),
    ]
    return {case.name: case for case in cases}
