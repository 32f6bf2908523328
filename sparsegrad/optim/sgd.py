"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from sparsegrad.backends.steps import SgdFactors
from sparsegrad.optim.optimizer import Optimizer

__all__ = ["SGD"]


class SGD(Optimizer):
    """p -= lr v, with v = momentum v + (1 - dampening) (g + weight_decay p); PyTorch's formula.
    With `nesterov` p -= lr (g + weight_decay p + momentum v) for the new v.

    params: tensors or groups; see `Optimizer`. Parameters, gradients and state share a shape.
    lr, momentum, weight_decay: numbers >= 0, or ValueError; `nesterov` needs a momentum.
    dampening: in the first step 0, as in PyTorch. Not with `nesterov`, nor with another `decay`
        than "touched", or ValueError.
    maximize: go up instead of down.
    sparse, decay: rows that have no gradient, see `Optimizer`. "all" and "catch_up" give what
        dense SGD gives (the latter after `flush`).

    Without them a sparse gradient is lazy: rows it does not store keep value and momentum.

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

    decays = ("touched", "all", "catch_up")
    moved = ("momentum_buffer",)
    kernel = "sgd"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        sparse: str = "auto",
        decay: str = "touched",
        *,
        dampening: float = 0.0,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        defaults |= {"nesterov": nesterov, "dampening": dampening}
        super().__init__(
            params, defaults | {"sparse": sparse, "decay": decay, "maximize": maximize}
        )

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        if not group["momentum"] >= 0:
            raise ValueError(f"SGD: momentum must be >= 0, got {group['momentum']}")
        if group["nesterov"] and not group["momentum"]:
            raise ValueError("SGD: nesterov needs a momentum > 0, got 0")
        if group["dampening"] and (group["nesterov"] or group["decay"] != "touched"):
            raise ValueError(
                f"SGD: dampening={group['dampening']} needs nesterov=False and decay='touched', "
                f"got {group['nesterov']} and {group['decay']!r}"
            )

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def idle(self, group: dict[str, Any]) -> list[list[float]]:
        lr, momentum, weight_decay = group["lr"], group["momentum"], group["weight_decay"]
        if not momentum:
            return [[1 - lr * weight_decay]]
        if group["nesterov"]:
            now = [1 - lr * weight_decay * (1 + momentum), -lr * momentum**2]
        else:
            now = [1 - lr * weight_decay, -lr * momentum]
        return [now, [weight_decay, momentum]]

    def factors(self, group: dict[str, Any], step: int) -> SgdFactors:
        numbers = group["lr"], group["momentum"], group["weight_decay"]
        return SgdFactors(*numbers, group["nesterov"], 1.0 if step == 1 else 1 - group["dampening"])
