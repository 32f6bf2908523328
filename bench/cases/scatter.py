"""Sums by index: out[index[e]] += values[e], into dense rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from bench.cases import OURS, Candidate, Variant
from bench.oracle import Expected

__all__ = ["Scatter"]

_SIZES = {
    "full": [(100_000, 1_500_000, 1), (100_000, 1_500_000, 16)],
    "quick": [(4_000, 60_000, 1)],
    "tiny": [(20, 100, 1), (20, 100, 3)],
}


@lru_cache(maxsize=1)
def _problem(n: int, nnz: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, n, nnz), rng.standard_normal((nnz, width), dtype=np.float32)


class Scatter:
    """Rows of values, added up by ids in any order."""

    name = "scatter-add"
    title = "Scatter-add of rows into zeros, float32"
    threaded = True
    memory = False
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [
            {"label": f"{nnz:,} × {width} into {n:,}", "sizes": [n, nnz, width]}
            for n, nnz, width in _SIZES[size]
        ]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        n, _, width = variant["sizes"]
        index, values = _problem(*variant["sizes"])
        out, scale = np.zeros((2, n, width))
        np.add.at(out, index, values)
        np.add.at(scale, index, np.abs(values))
        return {"out": Expected(out, scale)}

    def candidates(self, variant: Variant) -> list[Candidate]:
        sizes = variant["sizes"]

        def result(raw: Any) -> dict[str, Any]:
            return {"out": raw.numpy()}

        return [
            Candidate(OURS, lambda: _ours(*sizes), result, role="ours"),
            Candidate("torch index_add", lambda: _index_add(*sizes), result, needs="torch"),
            Candidate("torch scatter_add", lambda: _scatter_add(*sizes), result, needs="torch"),
        ]


def _ours(n: int, nnz: int, width: int) -> Callable[[], Any]:
    import sparsegrad as sg

    index, values = map(sg.from_numpy, _problem(n, nnz, width))
    return lambda: sg.index_add(sg.zeros(n, width), 0, index, values)


def _index_add(n: int, nnz: int, width: int) -> Callable[[], Any]:
    import torch

    index, values = map(torch.from_numpy, _problem(n, nnz, width))
    return lambda: torch.zeros(n, width).index_add_(0, index, values)


def _scatter_add(n: int, nnz: int, width: int) -> Callable[[], Any]:
    import torch

    index, values = map(torch.from_numpy, _problem(n, nnz, width))
    index = index[:, None].expand(-1, width).contiguous()
    return lambda: torch.zeros(n, width).scatter_add_(0, index, values)
