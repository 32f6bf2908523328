"""The loop around every recipe: epochs, validation, early stopping, history, checkpoints."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sparsegrad as sg
from sparsegrad.recipes.checkpoint import Checkpoint, load_weights
from sparsegrad.recipes.stopping import EarlyStopping

__all__ = ["Fit", "TrainingResult", "fit"]

Row = dict[str, float]


@dataclass(frozen=True)
class Fit:
    """What a loop gave."""

    history: list[Row]  # a row an epoch
    best: Row  # the row whose weights the model has now
    seconds_per_epoch: float  # median, without the validation


@dataclass(frozen=True, kw_only=True)
class TrainingResult(Fit):
    """What a recipe gives."""

    test: Row  # read once, with the weights of `best`
    stored_bytes: int  # of the sparse matrix that was multiplied with, indices included
    dense_bytes: int  # of a dense array of its shape and dtype
    model: Any


def fit(
    model: sg.nn.Module,
    optimizer: sg.optim.Optimizer,
    update: Callable[[], Row],
    validate: Callable[[], Row],
    *,
    epochs: int,
    stopping: EarlyStopping,
    keep: Mapping[str, Any] | None = None,
    validate_every: int = 1,
    on_epoch: Callable[[Row], None] | None = None,
    checkpoint: Any = None,
    resume: bool = False,
    save_every: float = 10.0,
    settings: Mapping[str, Any] | None = None,
) -> Fit:
    """Call `update` and `validate` in turn until `stopping` has seen enough, and leave the weights
    of the epoch that it keeps in `model`.

    update: trains for one epoch; returns metrics, such as {"loss": 0.3}.
    validate: returns the metrics of the validation data; called in every `validate_every`-th epoch
        and in the last one. Only these epochs can be kept; patience counts them.
    epochs: at most so many.
    keep: further objects with `state_dict` and `load_state_dict` that belong to the state of the
        run, by name: a schedule, a GradScaler.
    on_epoch: called with each row of the history: epoch, then the metrics. A run that is resumed
        calls it again with the rows it already had.

    checkpoint: file (.safetensors) to go on from, written at the end and at most every `save_every`
        seconds. Killed at any moment and started again with `resume=True`, a run ends with the
        same bits as one that was not. Without `resume` a file that exists is an error.
    settings: what must be the same to go on, or ValueError.

    >>> import sparsegrad as sg
    >>> layer = sg.nn.Linear(1, 1)
    >>> optimizer = sg.optim.SGD(layer.parameters(), lr=0.1)
    >>> x = sg.tensor([[1.0], [2.0]])
    >>> def loss():
    ...     return ((layer(x) - 3 * x) ** 2).mean()
    >>> def update():
    ...     optimizer.zero_grad()
    ...     now = loss()
    ...     now.backward()
    ...     optimizer.step()
    ...     return {"loss": now.item()}
    >>> found = fit(layer, optimizer, update, lambda: {"val_loss": loss().item()}, epochs=100,
    ...             stopping=EarlyStopping("min val_loss", patience=5))
    >>> found.best["val_loss"] < 0.01 * found.history[0]["val_loss"]
    True
    """
    for name, value in (("epochs", epochs), ("validate_every", validate_every)):
        if value < 1:
            raise ValueError(f"fit: {name} must be at least 1, got {value}")
    progress: dict[str, Any] = {"history": [], "seconds": [], "best": {}, "weights": {}}
    file = None
    if checkpoint is not None:
        parts = {"model": model, "optimizer": optimizer, "stopping": stopping, **(keep or {})}
        file = Checkpoint(checkpoint, parts, settings or {}, save_every)
        if resume:
            progress = file.load() or progress
        else:
            file.refuse_to_replace()
    tell = on_epoch or (lambda row: None)
    history = progress["history"]
    for row in history:
        tell(row)
    while len(history) < epochs and not stopping.done:
        start = time.perf_counter()
        row = {"epoch": len(history) + 1, **update()}
        progress["seconds"].append(time.perf_counter() - start)
        if row["epoch"] % validate_every == 0 or row["epoch"] == epochs:
            row.update(validate())
            if stopping.update(row):
                weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                progress |= {"best": row, "weights": weights}
        history.append(row)
        tell(row)
        if file is not None:
            file.save(progress, now=len(history) == epochs or stopping.done)
    load_weights(model, progress["weights"])
    return Fit(history, progress["best"], statistics.median(progress["seconds"]))
