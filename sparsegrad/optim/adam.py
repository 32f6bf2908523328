"""Adam and AdamW."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad.backends.steps import AdamFactors
from sparsegrad.optim.optimizer import Optimizer

__all__ = ["Adam", "AdamW"]


class Adam(Optimizer):
    """Adam with PyTorch's formula: at step t, with g the gradient plus weight_decay p,

        m = b1 m + (1 - b1) g            v = b2 v + (1 - b2) g²
        p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)

    params: tensors or groups; see `Optimizer`. Parameters, gradients and state share a shape.
    lr, eps, weight_decay >= 0, betas (b1, b2) in [0, 1), or ValueError.
    sparse: rows that have no gradient, see `Optimizer`; a sparse gradient is lazy by itself: rows
        it does not store, and their m and v, stand still.
    per_row_step: t counts the steps in which a row was touched (an int64 a row). Else it counts
        the steps of the whole parameter, as in PyTorch's SparseAdam.
    amsgrad: the greatest v so far in the place of v under the root.
    maximize: go up instead of down.

    Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015. amsgrad: Reddi, Kale and
    Kumar, "On the convergence of Adam and beyond", ICLR 2018.

    >>> import sparsegrad as sg
    >>> w = sg.tensor([1.0, 2.0], dtype=sg.float64, requires_grad=True)
    >>> optimizer = sg.optim.Adam([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.detach()
    tensor([0.5, 1.5], dtype=float64)
    """

    kernel = "adam"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        per_row_step: bool = False,
        sparse: str = "auto",
        decay: str = "touched",
        *,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        defaults |= {"per_row_step": per_row_step, "sparse": sparse, "decay": decay}
        super().__init__(params, defaults | {"amsgrad": amsgrad, "maximize": maximize})

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        if not all(0 <= beta < 1 for beta in group["betas"]) or len(group["betas"]) != 2:
            raise ValueError(
                f"{self._name}: betas must be two numbers in [0, 1), got {group['betas']}"
            )
        if not group["eps"] >= 0:
            raise ValueError(f"{self._name}: eps must be >= 0, got {group['eps']}")

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        greatest = ("max_exp_avg_sq",) if group["amsgrad"] else ()
        return "exp_avg", "exp_avg_sq", *greatest

    def row_slots(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"row_step": "int64"} if group["per_row_step"] else {}

    def factors(self, group: dict[str, Any], step: int) -> AdamFactors:
        b1, b2 = group["betas"]
        corrections = 1 - b1**step, math.sqrt(1 - b2**step)
        decay, kept = self.shares(group)
        return AdamFactors(
            *(b1, b2, group["lr"], *corrections, group["eps"], decay, kept),
            amsgrad=group["amsgrad"],
        )

    def shares(self, group: dict[str, Any]) -> tuple[float, float]:
        """How much of p joins the gradient, and what p is multiplied with beforehand."""
        return group["weight_decay"], 1.0


class AdamW(Adam):
    """Adam whose weight decay does not go through the averages: p *= 1 - lr weight_decay, then
    Adam's step without weight decay; PyTorch's formula.

    Arguments as for `Adam`. decay: whether rows without gradient decay; see `Optimizer`. "all" and
    "catch_up" (after `flush`) decay every row in every step, while m and v of rows that are not
    touched stand still.

    Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.

    >>> import sparsegrad as sg
    >>> w = sg.tensor([1.0, 2.0], dtype=sg.float64, requires_grad=True)
    >>> optimizer = sg.optim.AdamW([w], lr=0.5, weight_decay=0.2)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.detach()
    tensor([0.4, 1.3], dtype=float64)
    """

    decays = ("touched", "all", "catch_up")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        per_row_step: bool = False,
        sparse: str = "auto",
        decay: str = "touched",
        *,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        options = {"amsgrad": amsgrad, "maximize": maximize}
        super().__init__(
            params, lr, betas, eps, weight_decay, per_row_step, sparse, decay, **options
        )

    def shares(self, group: dict[str, Any]) -> tuple[float, float]:
        return 0.0, 1 - group["lr"] * group["weight_decay"]

    def idle(self, group: dict[str, Any]) -> list[list[float]]:
        return [[1 - group["lr"] * group["weight_decay"]]]
