"""Adam."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad.optim.optimizer import Optimizer

__all__ = ["Adam"]


class Adam(Optimizer):
    """Adam with PyTorch's formula: at step t, with g the gradient plus weight_decay p,

        m = b1 m + (1 - b1) g            v = b2 v + (1 - b2) g²
        p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)

    params: tensors or groups; see `Optimizer`. Parameters, gradients and state share a shape.
    lr, eps, weight_decay >= 0, betas (b1, b2) in [0, 1), or ValueError.

    A sparse gradient is lazy: rows it does not store, and their m and v, stand still. t counts
    the steps of the whole parameter, as in PyTorch's SparseAdam.

    Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015.

    >>> import sparsegrad as sg
    >>> w = sg.tensor([1.0, 2.0], dtype=sg.float64, requires_grad=True)
    >>> optimizer = sg.optim.Adam([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.detach()
    tensor([0.5, 1.5], dtype=float64)
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        if not all(0 <= beta < 1 for beta in group["betas"]) or len(group["betas"]) != 2:
            raise ValueError(f"Adam: betas must be two numbers in [0, 1), got {group['betas']}")
        if not group["eps"] >= 0:
            raise ValueError(f"Adam: eps must be >= 0, got {group['eps']}")

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def factors(self, group: dict[str, Any], step: int) -> Any:
        b1, b2 = group["betas"]
        step_size = group["lr"] / (1 - b1**step)
        return b1, b2, step_size, math.sqrt(1 - b2**step), group["eps"], group["weight_decay"]

    def update(self, xp: Any, factors: Any, p: Any, g: Any, *state: Any) -> None:
        b1, b2, step_size, correction, eps, weight_decay = factors
        m, v = state
        s = xp.empty_like(p)  # the one temporary: the gradient is the user's
        if weight_decay:
            xp.multiply(p, weight_decay, out=s)
            s += g
        else:
            s[...] = g
        # m += (1 - b1) (g - m) and v += (1 - b2) (g² - v) would need a second one.
        s *= 1 - b1
        m *= b1
        m += s
        xp.multiply(s, s, out=s)
        s *= (1 - b2) / (1 - b1) ** 2
        v *= b2
        v += s
        xp.sqrt(v, out=s)
        s /= correction
        s += eps
        xp.divide(m, s, out=s)
        s *= step_size
        p -= s
