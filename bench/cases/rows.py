"""Reductions of dense rows, and batch normalisation: what stands around the sparse products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from bench.cases import OURS, Candidate, Variant
from bench.oracle import Expected

__all__ = ["Rows"]

_SIZES = {
    "full": [(100_000, 16), (4096, 64)],
    "quick": [(4096, 64)],
    "tiny": [(30, 4)],
}
_OPS = ("sum", "softmax", "amax", "batch norm, forward + backward")


@lru_cache(maxsize=1)
def _problem(n: int, width: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((n, width), dtype=np.float32)


class Rows:
    """Of x (n, d): sums, maxima and softmax of rows; the gradients of batch normalisation."""

    name = "rows"
    title = "Dense rows: reductions, batch normalisation, float32"
    threaded = True
    memory = False
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [
            {"label": f"{op}, {n:,} × {width}", "op": op, "sizes": [n, width]}
            for op in _OPS
            for n, width in _SIZES[size]
        ]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        x = _problem(*variant["sizes"]).astype(np.float64)
        if variant["op"] == "sum":
            return {"y": Expected(x.sum(1), abs(x).sum(1))}
        if variant["op"] == "amax":
            return {"y": Expected(x.max(1), None, 1e-7)}
        if variant["op"] == "softmax":
            y = np.exp(x - x.max(1, keepdims=True))
            return {"y": Expected(y / y.sum(1, keepdims=True), None, 1e-5)}
        normal = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
        upstream = np.ones_like(x) * (np.arange(len(x)) % 2)[:, None]
        inner = upstream - upstream.mean(0) - normal * (upstream * normal).mean(0)
        return {"y": Expected(inner / np.sqrt(x.var(0) + 1e-5), None, 1e-4)}

    def candidates(self, variant: Variant) -> list[Candidate]:
        op, sizes = variant["op"], variant["sizes"]
        return [
            Candidate(OURS, lambda: _ours(op, *sizes), _result, role="ours"),
            Candidate("torch", lambda: _torch(op, *sizes), _result, needs="torch"),
        ]


def _result(raw: Any) -> dict[str, Any]:
    return {"y": raw.numpy()}


def _ours(op: str, *sizes: int) -> Callable[[], Any]:
    import sparsegrad as sg

    x = sg.from_numpy(_problem(*sizes))
    if op != _OPS[3]:
        return lambda: getattr(x, op)(1)
    held, g = x.detach().requires_grad_(), sg.from_numpy(_upstream(*sizes))
    return lambda: sg.grad(sg.batch_norm(held, training=True), held, g)[0]


def _torch(op: str, *sizes: int) -> Callable[[], Any]:
    import torch

    x = torch.from_numpy(_problem(*sizes))
    if op != _OPS[3]:
        return lambda: getattr(x, op)(1)
    held, g = x.detach().requires_grad_(), torch.from_numpy(_upstream(*sizes))
    norm = torch.nn.functional.batch_norm
    return lambda: torch.autograd.grad(norm(held, None, None, training=True), held, g)[0]


def _upstream(n: int, width: int) -> np.ndarray:
    """Every second row."""
    return np.ones((n, width), np.float32) * (np.arange(n, dtype=np.float32) % 2)[:, None]
