"""Learning rates that change while training; PyTorch's names and formulas.

Call `step()` after each epoch (or update) and after the optimizer's step.

>>> import sparsegrad as sg
>>> optimizer = sg.optim.SGD([sg.ones(1, requires_grad=True)], lr=1.0)
>>> schedule = sg.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
>>> rates = []
>>> for _ in range(5):
...     rates += schedule.get_last_lr()
...     schedule.step()
>>> rates
[1.0, 1.0, 0.5, 0.5, 0.25]
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsegrad.optim.optimizer import Optimizer

__all__ = [
    "CosineAnnealingLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


class LRScheduler:
    """Base class: a subclass defines `rate(base, epoch)`; epochs count from 0.

    optimizer: its groups' lr at this moment are the bases. Creating a scheduler sets the rates of
    epoch 0.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{self._name}: expected an Optimizer, got {type(optimizer).__name__}")
        self.optimizer = optimizer
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]
        self.last_epoch = 0
        self._set()

    @property
    def _name(self) -> str:
        return type(self).__name__

    def rate(self, base: float, epoch: int) -> float:
        """The learning rate at an epoch of a group that started with `base`."""
        raise NotImplementedError

    def step(self) -> None:
        """Go to the next epoch and set its rates."""
        self.last_epoch += 1
        self._set()

    def get_last_lr(self) -> list[float]:
        """The rates of the groups now."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def _set(self) -> None:
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = self.rate(base, self.last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """What a scheduler of the same arguments needs to go on."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a `state_dict` was taken; ValueError for another number of groups."""
        if len(state["base_lrs"]) != len(self.optimizer.param_groups):
            raise ValueError(
                f"{self._name}: the state has {len(state['base_lrs'])} groups, the optimizer "
                f"{len(self.optimizer.param_groups)}"
            )
        self.last_epoch, self.base_lrs = state["last_epoch"], list(state["base_lrs"])
        self._set()


class StepLR(LRScheduler):
    """base * gamma^(epoch // step_size). ValueError for step_size < 1."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        if step_size < 1:
            raise ValueError(f"StepLR: step_size must be at least 1, got {step_size}")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        """base * gamma^(epoch // step_size)."""
        return base * self.gamma ** (epoch // self.step_size)


class MultiStepLR(LRScheduler):
    """base * gamma^(number of milestones that are at most the epoch)."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        """base * gamma^(number of milestones that are at most the epoch)."""
        return base * self.gamma ** bisect.bisect_right(self.milestones, epoch)


class ExponentialLR(LRScheduler):
    """base * gamma^epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        """base * gamma^epoch."""
        return base * self.gamma**epoch


class LambdaLR(LRScheduler):
    """base * lr_lambda(epoch), with one function for all groups or a list of one a group."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
    ) -> None:
        groups = optimizer.param_groups
        self.factors = [lr_lambda] * len(groups) if callable(lr_lambda) else list(lr_lambda)
        if len(self.factors) != len(groups):
            raise ValueError(
                f"LambdaLR: {len(self.factors)} functions for {len(groups)} parameter groups"
            )
        super().__init__(optimizer)

    def _set(self) -> None:
        for group, base, factor in zip(
            self.optimizer.param_groups, self.base_lrs, self.factors, strict=True
        ):
            group["lr"] = base * factor(self.last_epoch)


class LinearLR(LRScheduler):
    """Linear warm-up: base times a factor that goes from `start_factor` to `end_factor` in
    `total_iters` epochs and stays there. ValueError for start_factor outside (0, 1] or
    total_iters < 1."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:
        if not 0 < start_factor <= 1:
            raise ValueError(f"LinearLR: start_factor must lie in (0, 1], got {start_factor}")
        if total_iters < 1:
            raise ValueError(f"LinearLR: total_iters must be at least 1, got {total_iters}")
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        """base * (start + (end - start) * min(1, epoch / total_iters))."""
        share = min(1.0, epoch / self.total_iters)
        return base * (self.start_factor + (self.end_factor - self.start_factor) * share)


class CosineAnnealingLR(LRScheduler):
    """From base to `eta_min` along half a cosine in `T_max` epochs (and back, if it goes on).
    ValueError for T_max < 1.

    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        if T_max < 1:
            raise ValueError(f"CosineAnnealingLR: T_max must be at least 1, got {T_max}")
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def rate(self, base: float, epoch: int) -> float:
        """eta_min + (base - eta_min) (1 + cos(pi epoch / T_max)) / 2."""
        return (
            self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * epoch / self.T_max)) / 2
        )


class OneCycleLR(LRScheduler):
    """Up from max_lr / div_factor to max_lr in the first `pct_start` of `total_steps`, then down
    to the first rate / final_div_factor. Call `step()` after every update.

    max_lr: a number, or one a group. anneal_strategy: "cos" or "linear".
    cycle_momentum: momentum (of Adam: b1) goes the other way, from max_momentum to base_momentum
        and back; groups without a momentum raise ValueError.

    A step past the end raises ValueError.

    Smith and Topin, "Super-convergence: very fast training of neural networks using large
    learning rates", 2017.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
    ) -> None:
        groups = optimizer.param_groups
        if total_steps < 1:
            raise ValueError(f"OneCycleLR: total_steps must be at least 1, got {total_steps}")
        if not 0 <= pct_start <= 1:
            raise ValueError(f"OneCycleLR: pct_start must lie in [0, 1], got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"OneCycleLR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}"
            )
        if cycle_momentum and not all(g.get("momentum") or "betas" in g for g in groups):
            raise ValueError("OneCycleLR: cycle_momentum needs an optimizer with a momentum")
        peaks = [max_lr] * len(groups) if isinstance(max_lr, (int, float)) else list(max_lr)
        if len(peaks) != len(groups):
            raise ValueError(
                f"OneCycleLR: {len(peaks)} values of max_lr for {len(groups)} parameter groups"
            )
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak / div_factor
        self.total_steps, self.pct_start = total_steps, pct_start
        self.anneal_strategy, self.cycle_momentum = anneal_strategy, cycle_momentum
        self.base_momentum, self.max_momentum = base_momentum, max_momentum
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        super().__init__(optimizer)

    def _between(self, first: float, top: float, last: float, step: int) -> float:
        peak, end = self.pct_start * self.total_steps - 1, self.total_steps - 1
        if step <= peak:
            start, stop, share = first, top, step / peak if peak > 0 else 1.0
        else:
            start, stop = top, last
            share = (step - peak) / (end - peak) if end > peak else 1.0
        if self.anneal_strategy == "linear":
            return start + (stop - start) * share
        return stop + (start - stop) / 2 * (1 + math.cos(math.pi * share))

    def rate(self, base: float, epoch: int) -> float:
        """The rate of one update."""
        if epoch >= self.total_steps:
            raise ValueError(
                f"OneCycleLR: step {epoch + 1} of {self.total_steps}; the cycle is over"
            )
        return self._between(base, base * self.div_factor, base / self.final_div_factor, epoch)

    def step(self) -> None:
        """Go to the next update; its last `step()`, after the last update, changes nothing."""
        if self.last_epoch + 1 == self.total_steps:
            self.last_epoch += 1
        else:
            super().step()

    def _set(self) -> None:
        if self.last_epoch == self.total_steps:
            return
        super()._set()
        if not self.cycle_momentum:
            return
        high, low = self.max_momentum, self.base_momentum
        momentum = self._between(high, low, high, self.last_epoch)
        for group in self.optimizer.param_groups:
            if "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            else:
                group["momentum"] = momentum


class SequentialLR:
    """One scheduler after another: `schedulers[i + 1]` starts, at its epoch 0, at epoch
    `milestones[i]`. A warm-up before another schedule, for instance.

    ValueError unless there is one milestone fewer than schedulers, and they rise.

    >>> import sparsegrad as sg
    >>> from sparsegrad.optim import lr_scheduler
    >>> optimizer = sg.optim.SGD([sg.ones(1, requires_grad=True)], lr=1.0)
    >>> warm_up = lr_scheduler.LinearLR(optimizer, start_factor=0.5, total_iters=2)
    >>> cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
    >>> schedule = lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[2])
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(optimizer.param_groups[0]["lr"])
    ...     schedule.step()
    >>> rates
    [0.5, 0.75, 1.0, 0.5]
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]
    ) -> None:
        if len(milestones) != len(schedulers) - 1 or sorted(set(milestones)) != list(milestones):
            raise ValueError(
                f"SequentialLR: {len(schedulers)} schedulers need {len(schedulers) - 1} rising "
                f"milestones, got {list(milestones)}"
            )
        self.optimizer, self.schedulers = optimizer, list(schedulers)
        self.milestones, self.last_epoch = list(milestones), 0
        for scheduler in schedulers:  # each took the rate its forerunner had set for a base
            scheduler.base_lrs = list(schedulers[0].base_lrs)
        self.schedulers[0]._set()

    def step(self) -> None:
        """Go to the next epoch and set its rates."""
        self.last_epoch += 1
        active = sum(self.last_epoch >= m for m in self.milestones)
        scheduler = self.schedulers[active]
        if self.last_epoch in self.milestones:
            scheduler.last_epoch = 0
            scheduler._set()
        else:
            scheduler.step()

    def get_last_lr(self) -> list[float]:
        """The rates of the groups now."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What schedulers of the same arguments need to go on."""
        return {
            "last_epoch": self.last_epoch,
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a `state_dict` was taken."""
        self.last_epoch = state["last_epoch"]
        for scheduler, held in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(held)
        self.schedulers[sum(self.last_epoch >= m for m in self.milestones)]._set()


class ReduceLROnPlateau:
    """Rates times `factor` when a metric has not improved for more than `patience` steps.

    mode: "min" or "max". threshold: what counts as better, relative (threshold_mode "rel") or
        absolute ("abs"). cooldown: steps after a reduction in which none counts. min_lr: a number,
        or one a group. eps: smaller changes of the rate are not made.

    Raises ValueError for another mode or factor >= 1.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f"ReduceLROnPlateau: mode must be 'min' or 'max', got {mode!r}")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(
                f"ReduceLROnPlateau: threshold_mode must be 'rel' or 'abs', got {threshold_mode!r}"
            )
        if not 0 < factor < 1:
            raise ValueError(f"ReduceLROnPlateau: factor must lie in (0, 1), got {factor}")
        self.optimizer, self.mode, self.factor = optimizer, mode, factor
        self.patience, self.threshold, self.threshold_mode = patience, threshold, threshold_mode
        self.cooldown, self.eps = cooldown, eps
        groups = len(optimizer.param_groups)
        self.min_lrs = [min_lr] * groups if isinstance(min_lr, (int, float)) else list(min_lr)
        if len(self.min_lrs) != groups:
            raise ValueError(
                f"ReduceLROnPlateau: {len(self.min_lrs)} values of min_lr for {groups} groups"
            )
        self.best = math.inf if mode == "min" else -math.inf
        self.bad, self.cooling, self.last_epoch = 0, 0, 0

    def step(self, metric: Any) -> None:
        """Take note of a metric, a number or a tensor ()."""
        value = float(metric)
        self.last_epoch += 1
        if self._better(value):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.cooling:
            self.cooling, self.bad = self.cooling - 1, 0
        if self.bad > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                rate = max(group["lr"] * self.factor, least)
                if group["lr"] - rate > self.eps:
                    group["lr"] = rate
            self.cooling, self.bad = self.cooldown, 0

    def _better(self, value: float) -> bool:
        sign = -1 if self.mode == "min" else 1
        if self.threshold_mode == "abs" or math.isinf(self.best):
            bar = self.best + sign * self.threshold
        else:
            bar = self.best + sign * self.threshold * abs(self.best)
        return value * sign > bar * sign

    def get_last_lr(self) -> list[float]:
        """The rates of the groups now."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What a scheduler of the same arguments needs to go on; the rates are the optimizer's."""
        names = ("best", "bad", "cooling", "last_epoch")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a `state_dict` was taken."""
        for name in ("best", "bad", "cooling", "last_epoch"):
            setattr(self, name, state[name])
