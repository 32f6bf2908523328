"""What a recorded op costs by itself: a chain of 100 on arrays too small to matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.cases import OURS, Candidate, Variant
from bench.oracle import Expected

__all__ = ["Tape"]

_OPS = 100
_SIZE = 16
_MODES = {
    "forward": "forward, nothing recorded",
    "recorded": "forward, recorded",
    "x": "forward + backward to x",
    "xwb": "forward + backward to x, w, b",
}


class Tape:
    """mul, add, tanh, mul, ... on 16 elements: `h * w`, `h + b`, `tanh(h)`."""

    name = "tape"
    title = f"Chain of {_OPS} ops (mul, add, tanh) on {_SIZE} elements, float32"
    threaded = False
    memory = False
    per = _OPS

    def variants(self, size: str) -> list[Variant]:
        modes = ["xwb"] if size == "tiny" else list(_MODES)
        return [{"label": _MODES[mode], "mode": mode} for mode in modes]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        h, dx, dw, db = _by_hand(*(a.astype(np.float64) for a in _inputs()))
        one = 1.0  # errors of a chain are relative to what flows through it, which is about 1
        found = {"y": Expected(h, one, 1e-4)}
        if variant["mode"].startswith("x"):
            found["dx"] = Expected(dx, one, 1e-4)
        if variant["mode"] == "xwb":
            found |= {"dw": Expected(dw, one, 1e-4), "db": Expected(db, one, 1e-4)}
        return found

    def candidates(self, variant: Variant) -> list[Candidate]:
        mode = variant["mode"]
        return [
            Candidate(OURS, lambda: _ours(mode), _result, role="ours"),
            Candidate("torch", lambda: _torch(mode), _result, needs="torch"),
            Candidate("NumPy by hand", lambda: _numpy(mode), _named(mode), role="reference"),
        ]


def _inputs() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x, w, b = rng.standard_normal((3, _SIZE)).astype(np.float32)
    return x, w / 4 + 1, b / 4  # weights about 1: gradients neither vanish nor explode


def _chain(h: Any, w: Any, b: Any, tanh: Callable[[Any], Any]) -> Any:
    for _ in range(_OPS // 3):
        h = h * w
        h = h + b
        h = tanh(h)
    return h * w


def _by_hand(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    """Output and gradients of its sum, without a tape."""
    inputs, h = [], x
    for _ in range(_OPS // 3):
        inputs.append(h)
        h = np.tanh(h * w + b)
    inputs.append(h)
    g = w.copy()
    dw, db = h.copy(), np.zeros_like(b)
    for before, after in zip(inputs[-2::-1], inputs[:0:-1], strict=True):
        g = g * (1 - after * after)
        db += g
        dw += g * before
        g = g * w
    return h * w, g, dw, db


def _named(mode: str) -> Callable[[Any], dict[str, Any]]:
    names = {"forward": "y", "recorded": "y", "x": "y dx", "xwb": "y dx dw db"}[mode].split()
    return lambda raw: dict(zip(names, raw, strict=False))


def _result(raw: Any) -> dict[str, Any]:
    y, *grads = raw
    named = {"y": y.detach().numpy()}
    return named | {n: g.numpy() for n, g in zip(("dx", "dw", "db"), grads)}


def _numpy(mode: str) -> Callable[[], Any]:
    x, w, b = _inputs()
    if mode in ("forward", "recorded"):
        return lambda: (_chain(x, w, b, np.tanh),)
    return lambda: _by_hand(x, w, b)


def _ours(mode: str) -> Callable[[], Any]:
    import sparsegrad as sg

    x, w, b = (sg.tensor(a, requires_grad=_needs(mode, i)) for i, a in enumerate(_inputs()))
    return _run(mode, x, w, b, sg.tanh, sg.grad, sg.tensor(np.ones(_SIZE, np.float32)))


def _torch(mode: str) -> Callable[[], Any]:
    import torch

    x, w, b = (
        torch.from_numpy(a.copy()).requires_grad_(_needs(mode, i)) for i, a in enumerate(_inputs())
    )
    return _run(mode, x, w, b, torch.tanh, torch.autograd.grad, torch.ones(_SIZE))


def _needs(mode: str, position: int) -> bool:
    return mode == "xwb" or (mode != "forward" and position == 0)


def _run(mode: str, x: Any, w: Any, b: Any, tanh: Any, grad: Any, ones: Any) -> Callable[[], Any]:
    leaves = [x, w, b] if mode == "xwb" else [x]

    def forward() -> Any:
        return (_chain(x, w, b, tanh),)

    def both() -> Any:
        y = _chain(x, w, b, tanh)
        return (y, *grad(y, leaves, ones))

    return both if mode.startswith("x") else forward
