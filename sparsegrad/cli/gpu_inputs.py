"""What cases of `sparsegrad check-gpu` are made of: the same numbers on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import sparsegrad as sg

__all__ = ["WIDE", "Case", "Inputs"]

_FLOATS = ("float32", "float64", "float16", "bfloat16")
WIDE = ("float32", "float64")


class Inputs:
    """The same numbers on any device; `leaves` are those whose gradients are compared."""

    def __init__(self, device: str, dtype: str) -> None:
        self.device, self.dtype = device, dtype
        self.leaves: list[sg.Tensor] = []
        self._rng = np.random.default_rng(0)

    def leaf(self, *shape: int) -> sg.Tensor:
        """Numbers that need a gradient."""
        x = sg.tensor(self._rng.uniform(-1, 1, shape).astype("f"), dtype=self.dtype)
        self.leaves.append(x.to(self.device).detach().requires_grad_())
        return self.leaves[-1]

    def ids(self, n: int, count: int) -> np.ndarray:
        """Indices below n, with repetitions."""
        return self._rng.integers(0, n, count)

    def ones(self, m: int = 30, n: int = 400, fmt: str = "csr") -> sg.SparseTensor:
        """A matrix with an empty row, and one so long that it is split."""
        mask = self._rng.random((m, n)) < 0.02
        mask[2], mask[3] = False, True
        return (
            sg.coo(list(np.nonzero(mask)), None, (m, n), dtype=self.dtype).to(fmt).to(self.device)
        )

    def matrix(
        self, m: int = 30, n: int = 400, fmt: str = "csr", heads: int = 0
    ) -> sg.SparseTensor:
        """The same with a leaf as values."""
        A = self.ones(m, n, fmt)
        return A.with_values(self.leaf(A.nnz, heads) if heads else self.leaf(A.nnz))

    def listed(self, shape: tuple[int, ...], *tail: int) -> sg.SparseTensor:
        """600 entries in any order, most positions more than once."""
        where = [self.ids(min(n, 9), 600) for n in shape]
        values = self.leaf(600, *tail)
        return sg.coo(where, values, (*shape, *tail), device=self.device)


class Case(NamedTuple):
    """run: inputs -> a tensor, dense or sparse."""

    name: str
    run: Callable[[Inputs], Any]
    dtypes: tuple[str, ...] = _FLOATS
