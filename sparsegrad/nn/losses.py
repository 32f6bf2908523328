"""Losses as modules; each calls the function of `sg.nn.functional` that its doc names."""

from __future__ import annotations

from typing import Any

from sparsegrad.nn import functional
from sparsegrad.nn.module import Module
from sparsegrad.tensor import as_tensor

__all__ = ["BCEWithLogitsLoss", "BPRLoss", "CrossEntropyLoss", "MSELoss"]


class _Loss(Module):
    """A reduction, checked at once."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(
                f"{type(self).__name__}: reduction must be 'mean', 'sum' or 'none', got "
                f"{reduction!r}"
            )
        self.reduction = reduction

    def _constant(self, name: str, value: Any) -> None:
        """A buffer, so that it moves with the module."""
        self.register_buffer(name, None if value is None else as_tensor(value))

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class CrossEntropyLoss(_Loss):
    """Logits (n, C) against classes (n,), probabilities (n, C), or a SparseTensor (n, C) of a few
    probabilities a row; see `functional.cross_entropy`.

    >>> import sparsegrad as sg
    >>> sg.nn.CrossEntropyLoss()(sg.zeros(3, 2), sg.tensor([0, 1, 1]))
    tensor(0.6931472)
    """

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        self._constant("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, logits: Any, target: Any) -> Any:
        """logits (n, C), target (n,) or (n, C) -> (), or (n,) for reduction "none"."""
        return functional.cross_entropy(
            *(logits, target, self.weight, self.ignore_index),
            *(self.reduction, self.label_smoothing),
        )


class BCEWithLogitsLoss(_Loss):
    """Logits against probabilities of one shape, dense or at the entries of a SparseTensor; see
    `functional.binary_cross_entropy_with_logits`.

    >>> import sparsegrad as sg
    >>> sg.nn.BCEWithLogitsLoss()(sg.zeros(3), sg.tensor([0.0, 1.0, 1.0]))
    tensor(0.6931472)
    """

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self._constant("weight", weight)
        self._constant("pos_weight", pos_weight)

    def forward(self, x: Any, target: Any) -> Any:
        """One shape -> (), or that shape (of stored entries: (nnz, *D)) for reduction "none"."""
        return functional.binary_cross_entropy_with_logits(
            x, target, self.weight, self.pos_weight, self.reduction
        )


class MSELoss(_Loss):
    """Squared differences of one shape, dense or at the entries of a SparseTensor (the loss of a
    factorization of a matrix of which only some entries are known); see `functional.mse_loss`.

    >>> import sparsegrad as sg
    >>> users, items = sg.ones(3, 2), sg.ones(4, 2)
    >>> ratings = sg.coo([[0, 2], [1, 3]], [5.0, 2.0], (3, 4))
    >>> sg.nn.MSELoss()(sg.sddmm(users, items, ratings), ratings)
    tensor(4.5)
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, x: Any, target: Any) -> Any:
        """One shape -> (), or that shape (of stored entries: (nnz, *D)) for reduction "none"."""
        return functional.mse_loss(x, target, self.reduction)


class BPRLoss(_Loss):
    """Scores of chosen things against scores of others; see `functional.bpr_loss`.

    >>> import sparsegrad as sg
    >>> sg.nn.BPRLoss()(sg.zeros(3), sg.zeros(3))
    tensor(0.6931472)
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, positive: Any, negative: Any) -> Any:
        """Shapes that broadcast -> (), or their shape for reduction "none"."""
        return functional.bpr_loss(positive, negative, self.reduction)
