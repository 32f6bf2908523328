"""What a training run on a graph gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["TrainingResult"]


@dataclass(frozen=True)
class TrainingResult:
    """What a run gave. Accuracies lie in [0, 1]; `history` has one row an epoch."""

    test_accuracy: float
    val_accuracy: float
    best_epoch: int
    seconds_per_epoch: float  # median, one update without the evaluation
    adjacency_bytes: int  # of the matrix the layers multiply with, indices included
    dense_adjacency_bytes: int  # of an array (n, n) of the same dtype
    history: list[dict[str, float]]
    model: Any
