"""Reductions, scans and functions of dense rows, batch normalisation: what stands around the sparse
products."""

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
_NORM = "batch norm, forward + backward"
# Of x, with `lib` sparsegrad or PyTorch: they have the same names.
_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda lib, x: x.sum(1),
    "softmax": lambda lib, x: x.softmax(1),
    "amax": lambda lib, x: x.amax(1),
    "max": lambda lib, x: x.max(1).values,
    "cumsum": lambda lib, x: x.cumsum(1),
    "cummax": lambda lib, x: lib.cummax(x, 1).values,
    "median": lambda lib, x: lib.median(x, 1).values,
    "%": lambda lib, x: x % 0.75,
    "//": lambda lib, x: x // 0.75,
    "erf": lambda lib, x: lib.erf(x),
    "hardswish": lambda lib, x: lib.nn.functional.hardswish(x),
}


def _erf(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return erf(x)


def _softmax(x: np.ndarray) -> np.ndarray:
    y = np.exp(x - x.max(1, keepdims=True))
    return y / y.sum(1, keepdims=True)


_REFERENCES: dict[str, Callable[[np.ndarray], Expected]] = {
    "sum": lambda x: Expected(x.sum(1), abs(x).sum(1)),
    "softmax": lambda x: Expected(_softmax(x), None, 1e-5),
    "amax": lambda x: Expected(x.max(1), None, 1e-7),
    "max": lambda x: Expected(x.max(1), None, 1e-7),
    "cumsum": lambda x: Expected(np.cumsum(x, 1), np.cumsum(abs(x), 1)),
    "cummax": lambda x: Expected(np.maximum.accumulate(x, 1), None, 1e-7),
    "median": lambda x: Expected(np.sort(x, 1)[:, (x.shape[1] - 1) // 2], None, 1e-7),
    "%": lambda x: Expected(x % 0.75, None, 1e-6),
    "//": lambda x: Expected(x // 0.75, None, 1e-6),
    "erf": lambda x: Expected(_erf(x), None, 1e-6),
    "hardswish": lambda x: Expected(x * np.clip(x + 3, 0, 6) / 6, None, 1e-6),
}


@lru_cache(maxsize=1)
def _problem(n: int, width: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((n, width), dtype=np.float32)


class Rows:
    """Of x (n, d): reductions, scans and functions of rows; gradients of batch normalisation."""

    name = "rows"
    title = "Dense rows: reductions, scans, functions of elements, batch normalisation, float32"
    threaded = True
    memory = False
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [
            {"label": f"{op}, {n:,} × {width}", "op": op, "sizes": [n, width]}
            for op in (*_OPS, _NORM)
            for n, width in _SIZES[size]
        ]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        x, op = _problem(*variant["sizes"]).astype(np.float64), variant["op"]
        if op in _REFERENCES:
            return {"y": _REFERENCES[op](x)}
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
    if op in _OPS:
        return lambda: _OPS[op](sg, x)
    held, g = x.detach().requires_grad_(), sg.from_numpy(_upstream(*sizes))
    return lambda: sg.grad(sg.batch_norm(held, training=True), held, g)[0]


def _torch(op: str, *sizes: int) -> Callable[[], Any]:
    import torch

    x = torch.from_numpy(_problem(*sizes))
    if op in _OPS:
        return lambda: _OPS[op](torch, x)
    held, g = x.detach().requires_grad_(), torch.from_numpy(_upstream(*sizes))
    norm = torch.nn.functional.batch_norm
    return lambda: torch.autograd.grad(norm(held, None, None, training=True), held, g)[0]


def _upstream(n: int, width: int) -> np.ndarray:
    """Every second row."""
    return np.ones((n, width), np.float32) * (np.arange(n, dtype=np.float32) % 2)[:, None]
