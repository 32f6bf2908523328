"""An embedding table of which a batch touches few rows: gather, backward, step of the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from bench.cases import OURS, Candidate, Variant
from bench.oracle import Expected

__all__ = ["Embedding"]

_SIZES = {
    "full": [(1_000_000, 64, 65_536)],
    "quick": [(100_000, 64, 8_192)],
    "tiny": [(200, 4, 50)],
}
_EXPONENT = 1.1  # of the Zipf law that ids follow, the frequent ones in random places
_LR, _EPS = 1e-2, 1e-2  # an eps that rounding errors of gradients are below


@lru_cache(maxsize=1)
def _problem(rows: int, width: int, batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Table, ids, and the gradient that comes back for what is gathered."""
    rng = np.random.default_rng(0)
    share = np.arange(1, rows + 1) ** -_EXPONENT
    ids = rng.permutation(rows)[rng.choice(rows, batch, p=share / share.sum())]
    table = rng.standard_normal((rows, width), dtype=np.float32)
    return table, ids, rng.standard_normal((batch, width), dtype=np.float32)


class Embedding:
    """table[ids], its gradient, and Adam on the rows that it touches."""

    name = "embedding"
    title = "Embedding: gather, backward, Adam on touched rows (torch: SparseAdam), float32"
    threaded = True
    memory = False
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [
            {
                "label": f"{rows:,} × {width}, {batch:,} ids, Zipf {_EXPONENT}",
                "sizes": [rows, width, batch],
            }
            for rows, width, batch in _SIZES[size]
        ]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        table, ids, upstream = _problem(*variant["sizes"])
        touched, slots = np.unique(ids, return_inverse=True)
        g = np.zeros((touched.size, table.shape[1]))
        np.add.at(g, slots, upstream)
        moved = table[touched] - _LR * g / (np.abs(g) + _EPS)  # Adam's first step
        return {
            "touched": Expected(moved, _LR, 1e-2),
            "total": Expected(
                np.asarray(table.sum(dtype=np.float64) + (moved - table[touched]).sum()),
                np.abs(table).sum(dtype=np.float64),
                1e-6,
            ),
        }

    def candidates(self, variant: Variant) -> list[Candidate]:
        sizes = variant["sizes"]
        ids = _problem(*sizes)[1]

        def result(raw: Any) -> dict[str, Any]:
            table = raw.detach().numpy()
            return {"touched": table[np.unique(ids)], "total": table.sum(dtype=np.float64)}

        return [
            Candidate(OURS, lambda: _ours(*sizes), result, role="ours"),
            Candidate("torch", lambda: _torch(*sizes), result, needs="torch"),
        ]


def _ours(*sizes: int) -> Callable[[], Any]:
    import sparsegrad as sg

    table, ids, upstream = _problem(*sizes)
    weight = sg.tensor(table, requires_grad=True)
    where, g = sg.tensor(ids), sg.tensor(upstream)
    optimizer = sg.optim.Adam([weight], lr=_LR, eps=_EPS)

    def step() -> Any:
        optimizer.zero_grad()
        sg.embedding(weight, where).backward(g)
        optimizer.step()
        return weight

    return step


def _torch(*sizes: int) -> Callable[[], Any]:
    import torch

    table, ids, upstream = _problem(*sizes)
    weight = torch.tensor(table, requires_grad=True)
    where, g = torch.from_numpy(ids), torch.from_numpy(upstream)
    # Its eps is added before the bias correction: this one is ours in the first step.
    optimizer = torch.optim.SparseAdam([weight], lr=_LR, eps=_EPS * math.sqrt(1 - 0.999))

    def step() -> Any:
        optimizer.zero_grad()
        torch.nn.functional.embedding(where, weight, sparse=True).backward(g)
        optimizer.step()
        return weight

    return step
