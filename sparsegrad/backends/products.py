"""Products of consecutive runs, and of all but one of each.

Part of the contract; pure array code here: rounds of pairs, so that nothing is divided and zeros do
no harm. `runs` has `indptr` (s + 1,), the offsets; `rounds`, positions of left and of right factors
for each round that halves all runs, a 1 standing behind the entries; and `last`, where the product
of each run then is. zeros (s,), int64: how many zeros are factors as well.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from sparsegrad.dtypes import accumulator

__all__ = ["Products"]

Array = Any


class Products:
    """Products of runs of values (nnz, *D); of nothing it is 1."""

    xp: ModuleType = np

    def segment_prod(self, values: Array, runs: Any, zeros: Array) -> Array:
        """The product of each run: (s, *D)."""
        out = self._levels(values, runs)[-1][runs.last]
        return self._or_zero(out, zeros).astype(values.dtype, copy=False)

    def segment_prod_grad(self, g: Array, values: Array, runs: Any, zeros: Array) -> Array:
        """The gradient of `segment_prod`: g (s, *D) times all other factors, (nnz, *D)."""
        levels = self._levels(values, runs)
        out = self.xp.zeros_like(levels[-1])
        out[runs.last] = self._or_zero(g, zeros)
        for (left, right), x in zip(reversed(runs.rounds), reversed(levels[:-1]), strict=True):
            product, out = out, self.xp.zeros_like(x)
            out[right] = product * x[left]  # that of the 1 behind the entries has no meaning
            out[left] = product * x[right]
        return out[: len(values)].astype(values.dtype, copy=False)

    def _levels(self, values: Array, runs: Any) -> list[Array]:
        one = self.xp.ones((1, *values.shape[1:]), accumulator(values.dtype))
        levels = [self.xp.concatenate((values.astype(one.dtype, copy=False), one))]
        for left, right in runs.rounds:
            levels.append(levels[-1][left] * levels[-1][right])
        return levels

    def _or_zero(self, x: Array, zeros: Array) -> Array:
        return self.xp.where((zeros > 0).reshape(-1, *(1,) * (x.ndim - 1)), x.dtype.type(0), x)
