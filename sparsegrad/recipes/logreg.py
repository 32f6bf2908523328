"""Logistic regression on sparse rows, to the optimum: SciPy's Newton method with our gradients and
products with the Hessian, neither of which stores a matrix of features by features."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import sparsegrad as sg
from sparsegrad.recipes.fit import TrainingResult


def train_logreg(
    data: sg.data.Classified,
    *,
    l2: float = 1.0,
    epochs: int = 100,
    device: str = "cpu",
    on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> TrainingResult:
    """The minimum of sum log(1 + exp(-y (x w + b))) + l2 / 2 |w|² over the weights w and a bias b,
    which is not penalised, for rows x with labels y of two kinds; in float64.

    epochs: Newton steps, at most; it ends before when the gradient is 1e-9 of the first one.
    on_epoch: called with each row of the history: epoch, objective, gradient (its norm).

    Nothing is drawn, and nothing of the data is made dense. Raises ValueError unless there are two
    kinds of labels.

    >>> result = train_logreg(sg.data.bag_of_words(n=2000, seed=0))
    >>> result.test["accuracy"] > 0.8
    True
    """
    from scipy.optimize import minimize

    kinds = np.unique(data.y.numpy())
    if len(kinds) != 2:
        raise ValueError(f"train_logreg: needs labels of two kinds, got {kinds[:5].tolist()}")
    x = data.x.to(sg.float64).to(device)
    y = sg.tensor(np.where(data.y.numpy() == kinds[1], 1.0, -1.0), device=device)
    n = data.n_features

    def objective(w: sg.Tensor) -> sg.Tensor:
        margin = y * (x @ w[:n] + w[n])
        return sg.softplus(-margin).sum() + (l2 / 2) * (w[:n] * w[:n]).sum()

    def value_and_gradient(array: np.ndarray) -> tuple[float, np.ndarray]:
        w = sg.tensor(array, requires_grad=True, device=device)
        loss = objective(w)
        loss.backward()
        return loss.item(), w.grad.numpy()

    def product(array: np.ndarray, direction: np.ndarray) -> np.ndarray:
        w, v = sg.tensor(array, device=device), sg.tensor(direction, device=device)
        return sg.autograd.hvp(objective, w, v)[1].numpy()

    history: list[dict[str, float]] = []
    times = [time.perf_counter()]

    def note(intermediate_result: Any) -> None:
        times.append(time.perf_counter())
        value, gradient = value_and_gradient(intermediate_result.x)
        row = {"epoch": len(history) + 1, "objective": value}
        history.append(row | {"gradient": float(np.linalg.norm(gradient))})
        if on_epoch is not None:
            on_epoch(history[-1])

    with sg.densify(budget=0, on_exceed="raise"):
        start = np.zeros(n + 1)
        scale = float(np.linalg.norm(value_and_gradient(start)[1]))
        found = minimize(
            value_and_gradient, start, jac=True, hessp=product, method="trust-ncg", callback=note,
            options={"maxiter": epochs, "gtol": 1e-9 * scale},
        )  # fmt: skip
        w = sg.tensor(found.x, device=device)
        scores = data.test_x.to(sg.float64).to(device) @ w[:n] + w[n]
        hits = np.where(scores.numpy() > 0, kinds[1], kinds[0]) == data.test_y.numpy()
    return TrainingResult(
        history=history,
        best=history[-1],
        seconds_per_epoch=statistics.median(np.diff(times)),
        test={"accuracy": float(hits.mean())},
        stored_bytes=data.x.nbytes,
        dense_bytes=data.x.shape[0] * n * data.x.dtype.itemsize,
        model=w,
    )
