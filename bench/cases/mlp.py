"""A training step of a small dense network: what a PyTorch user's first program does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from bench.cases import OURS, Candidate, Variant
from bench.oracle import Expected

__all__ = ["Mlp"]

_SIZES = {"full": (512, 784, 256, 10), "quick": (512, 784, 256, 10), "tiny": (8, 5, 4, 3)}
_LR, _BETAS, _EPS = 1e-3, (0.9, 0.999), 1e-5  # an eps that rounding errors of gradients are below
_NAMES = ("w1", "b1", "w2", "b2")


@lru_cache(maxsize=1)
def _problem(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
    """Images, classes, and the parameters that every candidate starts with."""
    n, width, hidden, classes = sizes
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, width), dtype=np.float32)
    shapes = (hidden, width), (hidden,), (classes, hidden), (classes,)
    limits = width**-0.5, width**-0.5, hidden**-0.5, hidden**-0.5
    start = tuple(
        rng.uniform(-limit, limit, shape).astype(np.float32)
        for shape, limit in zip(shapes, limits, strict=True)
    )
    return x, rng.integers(0, classes, n), start


class Mlp:
    """Linear, relu, linear, cross entropy, backward, Adam."""

    name = "mlp"
    title = "Training step of a two-layer network (relu, cross entropy, Adam), float32"
    threaded = True
    memory = False
    per = 1

    def variants(self, size: str) -> list[Variant]:
        n, *widths = _SIZES[size]
        return [{"label": f"batch {n}, {'-'.join(map(str, widths))}", "sizes": list(_SIZES[size])}]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        x, target, start = _problem(tuple(variant["sizes"]))
        loss, grads = _by_hand(x, target, start)
        found = {"loss": Expected(loss, rtol=1e-5)}
        for name, p, g in zip(_NAMES, start, grads, strict=True):
            moved = p - _LR * g / (np.abs(g) + _EPS)  # Adam's first step
            found[name] = Expected(moved, _LR, 1e-3)
        return found

    def candidates(self, variant: Variant) -> list[Candidate]:
        sizes = tuple(variant["sizes"])
        return [
            Candidate(OURS, lambda: _ours(sizes), _result, role="ours"),
            Candidate("torch", lambda: _torch(sizes, False), _result, needs="torch"),
            Candidate("torch, fused Adam", lambda: _torch(sizes, True), _result, needs="torch"),
        ]


def _by_hand(
    x: np.ndarray, target: np.ndarray, start: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    x, w1, b1, w2, b2 = (a.astype(np.float64) for a in (x, *start))
    h = x @ w1.T + b1
    logits = np.maximum(h, 0) @ w2.T + b2
    shifted = logits - logits.max(1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = np.arange(len(x))
    g = np.exp(log_probs)
    g[rows, target] -= 1
    g /= len(x)
    back = (g @ w2) * (h > 0)
    grads = back.T @ x, back.sum(0), g.T @ np.maximum(h, 0), g.sum(0)
    return np.asarray(-log_probs[rows, target].mean()), grads


def _ours(sizes: tuple[int, ...]) -> Callable[[], Any]:
    import sparsegrad as sg

    x, target, start = _problem(sizes)
    _, width, hidden, classes = sizes
    model = sg.nn.Sequential(
        sg.nn.Linear(width, hidden), sg.nn.ReLU(), sg.nn.Linear(hidden, classes)
    )
    return _training(sg, model, sg.tensor(x), sg.tensor(target), start, {})


def _torch(sizes: tuple[int, ...], fused: bool) -> Callable[[], Any]:
    import torch

    x, target, start = _problem(sizes)
    _, width, hidden, classes = sizes
    model = torch.nn.Sequential(
        torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes)
    )
    data = torch.from_numpy(x), torch.from_numpy(target)
    return _training(torch, model, *data, start, {"fused": True} if fused else {})


def _training(
    lib: Any, model: Any, x: Any, target: Any, start: tuple[np.ndarray, ...], options: Any
) -> Callable[[], Any]:
    """The same program for both: their names are the same."""
    parameters = list(model.parameters())
    with lib.no_grad():
        for p, value in zip(parameters, start, strict=True):
            p.copy_(lib.tensor(value))
    optimizer = lib.optim.Adam(parameters, lr=_LR, betas=_BETAS, eps=_EPS, **options)

    def step() -> Any:
        optimizer.zero_grad()
        loss = lib.nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss, parameters

    return step


def _result(raw: Any) -> dict[str, Any]:
    loss, parameters = raw
    named = zip(_NAMES, parameters, strict=True)
    return {"loss": loss.detach().numpy()} | {n: p.detach().numpy() for n, p in named}
