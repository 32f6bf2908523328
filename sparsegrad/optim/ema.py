"""Moving averages of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sparsegrad.errors import ShapeError
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.tensor import Tensor

__all__ = ["EMA"]


class EMA:
    """Exponential moving average of parameters: s = d s + (1 - d) p after each update.

    params: tensors, dense or sparse (the average lies on the same pattern). decay: d in [0, 1),
        or ValueError.
    warm_up: d of step t is min(decay, (1 + t) / (10 + t)), so that the first, random values are
        soon forgotten.

    >>> import sparsegrad as sg
    >>> w = sg.tensor([0.0], requires_grad=True)
    >>> ema = sg.optim.EMA([w], decay=0.75)
    >>> with sg.no_grad():
    ...     _ = w.fill_(8.0)
    >>> ema.update()
    >>> with ema.averaged():
    ...     print(w.tolist())
    [2.0]
    >>> w.tolist()
    [8.0]
    """

    def __init__(self, params: Any, decay: float = 0.999, warm_up: bool = False) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"EMA: decay must lie in [0, 1), got {decay}")
        self.params = [p.values if isinstance(p, SparseTensor) else p for p in params]
        self.decay, self.warm_up, self.step = decay, warm_up, 0
        self.shadows = [Tensor(p.data.copy()) for p in self.params]

    def update(self) -> None:
        """Move the averages towards the parameters as they are now."""
        self.step += 1
        d = self.decay
        if self.warm_up:
            d = min(d, (1 + self.step) / (10 + self.step))
        for p, shadow in zip(self.params, self.shadows, strict=True):
            if p.shape != shadow.shape:
                raise ShapeError(
                    f"EMA: a parameter changed its shape from {shadow.shape} to {p.shape}; use "
                    f"ema.remap(p, plan) with what repattern_ returned"
                )
            shadow.data *= d
            shadow.data += (1 - d) * p.data

    def copy_to(self) -> None:
        """Write the averages into the parameters."""
        for p, shadow in zip(self.params, self.shadows, strict=True):
            p.data[...] = shadow.data
            p._bump()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averages in the place of the parameters, for evaluation; afterwards they are back."""
        kept = [p.data.copy() for p in self.params]
        self.copy_to()
        try:
            yield
        finally:
            for p, data in zip(self.params, kept, strict=True):
                p.data[...] = data
                p._bump()

    def remap(self, p: SparseTensor, plan: Any) -> None:
        """Follow `p` to another pattern: `plan` is what `repattern_` returned for it."""
        for i, held in enumerate(self.params):
            if held is p.values:
                self.shadows[i] = plan.apply(self.shadows[i])

    def state_dict(self) -> dict[str, Any]:
        """Averages (shared with this object) and step count."""
        return {"step": self.step, "shadows": list(self.shadows)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over copies of a `state_dict`; ValueError if shapes do not match."""
        shapes = [s.shape for s in state["shadows"]]
        own = [p.shape for p in self.params]
        if shapes != own:
            raise ValueError(f"EMA: the state has shapes {shapes}, the parameters {own}")
        self.step = state["step"]
        self.shadows = [
            Tensor(s.to(p.device).data.astype(p.dtype, copy=True))
            for s, p in zip(state["shadows"], self.params, strict=True)
        ]
