"""When training stops, and which epoch is kept: decided on validation alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """Judges the rows of a history one by one.

    monitors: "max NAME" or "min NAME", NAME a metric of the rows; at least one.
    patience: stop after so many rows in a row that did not improve; None: never.
    each: False: a row improves if it beats the best so far, compared by the first metric, then
        by the next where that is equal; the best row is kept. True: a row improves if any metric
        reaches its own best value so far, and is kept where all do (Velickovic et al., ICLR 2018).

    The first row is always kept; NaN never improves. Raises ValueError for anything else.

    >>> stopping = EarlyStopping("max val_accuracy", patience=2)
    >>> [stopping.update({"val_accuracy": a}) for a in (0.5, 0.7, 0.7, 0.6)], stopping.done
    ([True, True, False, False], True)
    """

    def __init__(self, *monitors: str, patience: int | None = None, each: bool = False) -> None:
        if not monitors:
            raise ValueError("EarlyStopping: no metric to monitor")
        for text in monitors:
            if text.split(" ")[0] not in ("max", "min") or len(text.split(" ")) != 2:
                raise ValueError(f"EarlyStopping: expected 'max NAME' or 'min NAME', got {text!r}")
        if patience is not None and patience < 1:
            raise ValueError(f"EarlyStopping: patience must be at least 1, got {patience}")
        self.monitors, self.patience, self.each = monitors, patience, each
        self.best: list[float] = []  # of each metric, larger is better
        self.waited = 0

    @property
    def done(self) -> bool:
        """Whether patience has run out."""
        return self.patience is not None and self.waited >= self.patience

    def update(self, row: Mapping[str, float]) -> bool:
        """Judge the next row; True if it is the one to keep so far."""
        scores = [self._score(text, row) for text in self.monitors]
        first = not self.best
        if first:
            self.best = scores
            return True
        if self.each:
            reached = [score >= best for score, best in zip(scores, self.best)]
            self.best = [max(best, score) for score, best in zip(scores, self.best)]
            improved, keep = any(reached), all(reached)
        else:
            improved = keep = scores > self.best
            self.best = scores if keep else self.best
        self.waited = 0 if improved else self.waited + 1
        return keep

    def _score(self, text: str, row: Mapping[str, float]) -> float:
        sign, name = text.split(" ")
        if name not in row:
            raise ValueError(
                f"EarlyStopping: the history has no {name!r}, only {', '.join(sorted(row))}"
            )
        value = row[name] if sign == "max" else -row[name]
        return value if value == value else -float("inf")

    def state_dict(self) -> dict[str, Any]:
        """What an instance of the same arguments needs to go on."""
        return {"best": list(self.best), "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a `state_dict` was taken."""
        self.best, self.waited = list(state["best"]), state["waited"]
