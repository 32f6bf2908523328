"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from sparsegrad.optim.optimizer import Optimizer

__all__ = ["SGD"]


class SGD(Optimizer):
    """p -= lr v, with v = momentum v + (g + weight_decay p); PyTorch's formula.

    params: tensors or groups; see `Optimizer`. Parameters, gradients and state share a shape.
    lr, momentum, weight_decay: numbers >= 0, or ValueError.

    A sparse gradient is lazy: rows it does not store keep their value and their momentum.

    >>> import sparsegrad as sg
    >>> w = sg.tensor([1.0, 2.0], requires_grad=True)
    >>> optimizer = sg.optim.SGD([w], lr=0.1, momentum=0.9)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     w.sum().backward()
    ...     optimizer.step()
    >>> w.detach()
    tensor([0.71, 1.71])
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        if not group["momentum"] >= 0:
            raise ValueError(f"SGD: momentum must be >= 0, got {group['momentum']}")

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def factors(self, group: dict[str, Any], step: int) -> Any:
        return group["lr"], group["momentum"], group["weight_decay"]

    def update(self, xp: Any, factors: Any, p: Any, g: Any, *state: Any) -> None:
        lr, momentum, weight_decay = factors
        scratch = xp.empty_like(p)
        if state:
            (velocity,) = state
            velocity *= momentum
            velocity += g
            if weight_decay:
                velocity += xp.multiply(p, weight_decay, out=scratch)
            xp.multiply(velocity, lr, out=scratch)
        else:
            xp.multiply(p, weight_decay, out=scratch)
            scratch += g
            scratch *= lr
        p -= scratch
