"""Step sizes from sums and averages of squared gradients: Adagrad, row-wise Adagrad, RMSprop."""

from __future__ import annotations

from typing import Any

from sparsegrad.backends.steps import AdagradFactors, RmspropFactors
from sparsegrad.optim.optimizer import Optimizer

__all__ = ["Adagrad", "RMSprop", "RowwiseAdagrad"]


class _Scaled(Optimizer):
    """What the three share: hyperparameters beside lr that are >= 0."""

    positive: tuple[str, ...] = ("eps",)

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        for name in self.positive:
            if not group[name] >= 0:
                raise ValueError(f"{self._name}: {name} must be >= 0, got {group[name]}")


class Adagrad(_Scaled):
    """s += g² and p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps), with g the gradient plus
    weight_decay p; PyTorch's formula. s starts at `initial_accumulator_value`.

    params: tensors or groups; see `Optimizer`. Numbers are >= 0, or ValueError.
    sparse: rows that have no gradient, see `Optimizer`; a sparse gradient is lazy by itself, which
        without weight decay is the same as dense, since s only grows where there is a gradient.
    maximize: go up instead of down.

    Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization", JMLR 12, 2011.

    >>> import sparsegrad as sg
    >>> w = sg.tensor([1.0, 2.0], dtype=sg.float64, requires_grad=True)
    >>> optimizer = sg.optim.Adagrad([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.detach()
    tensor([0.5, 1.5], dtype=float64)
    """

    positive = ("eps", "lr_decay", "initial_accumulator_value")
    kernel = "adagrad"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        sparse: str = "auto",
        decay: str = "touched",
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        defaults |= {"initial_accumulator_value": initial_accumulator_value}
        super().__init__(
            params, defaults | {"sparse": sparse, "decay": decay, "maximize": maximize}
        )

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("sum",)

    def initial(self, name: str, group: dict[str, Any]) -> float:
        return group["initial_accumulator_value"]

    def factors(self, group: dict[str, Any], step: int) -> AdagradFactors:
        rate = group["lr"] / (1 + (step - 1) * group["lr_decay"])
        return AdagradFactors(rate, group["weight_decay"], group["eps"])


class RowwiseAdagrad(_Scaled):
    """Adagrad with one number a row: s_i += mean(g_i²) and p_i -= lr g_i / (sqrt(s_i) + eps), with
    g the gradient plus weight_decay p. The state of an embedding table (V, D) is (V,).

    params: tensors or groups; see `Optimizer`. Numbers are >= 0, or ValueError.
    sparse, maximize: as for `Adagrad`. A gradient that stores single elements is used row by row.

    Row-wise as in Mudigere et al., "Software-hardware co-design for fast and scalable training of
    deep learning recommendation models", ISCA 2022.

    >>> import sparsegrad as sg
    >>> w = sg.ones(1000, 4, requires_grad=True)
    >>> optimizer = sg.optim.RowwiseAdagrad([w], lr=0.5)
    >>> w.take(sg.tensor([7, 7])).sum().backward()
    >>> optimizer.step()
    >>> w.detach()[7], optimizer.state[w]["sum"].shape
    (tensor([0.5, 0.5, 0.5, 0.5]), (1000,))
    """

    kernel = "rowwise_adagrad"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
        sparse: str = "auto",
        decay: str = "touched",
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "eps": eps}
        super().__init__(
            params, defaults | {"sparse": sparse, "decay": decay, "maximize": maximize}
        )

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ()

    def row_slots(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"sum": None}

    def factors(self, group: dict[str, Any], step: int) -> AdagradFactors:
        return AdagradFactors(group["lr"], group["weight_decay"], group["eps"])


class RMSprop(_Scaled):
    """v = alpha v + (1 - alpha) g² and p -= lr g / (sqrt(v) + eps), with g the gradient plus
    weight_decay p; PyTorch's formula.

    params: tensors or groups; see `Optimizer`. Numbers are >= 0 and alpha < 1, or ValueError.
    centered: v minus the square of the average of g. momentum: p -= lr b with
        b = momentum b + g / (sqrt(v) + eps).
    sparse, maximize: rows that have no gradient, and going up; see `Optimizer`.

    Tieleman and Hinton, "Lecture 6.5 - RMSprop", Neural networks for machine learning, 2012.

    >>> import sparsegrad as sg
    >>> w = sg.tensor([1.0, 2.0], dtype=sg.float64, requires_grad=True)
    >>> optimizer = sg.optim.RMSprop([w], lr=0.05, eps=0)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.detach()
    tensor([0.5, 1.5], dtype=float64)
    """

    positive = ("eps", "momentum")
    kernel = "rmsprop"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        sparse: str = "auto",
        decay: str = "touched",
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay}
        defaults |= {"momentum": momentum, "centered": centered}
        super().__init__(
            params, defaults | {"sparse": sparse, "decay": decay, "maximize": maximize}
        )

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        if not 0 <= group["alpha"] < 1:
            raise ValueError(f"RMSprop: alpha must lie in [0, 1), got {group['alpha']}")

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        centered = ("grad_avg",) if group["centered"] else ()
        return ("square_avg", *centered, *(("momentum_buffer",) if group["momentum"] else ()))

    def factors(self, group: dict[str, Any], step: int) -> RmspropFactors:
        return RmspropFactors(*(group[name] for name in RmspropFactors._fields))
