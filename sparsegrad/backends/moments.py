"""Variances of runs of entries.

Part of the contract; pure array code here. `runs` has `perm` (nnz,), which lists the entries run by
run (None: as they are), `indptr` (s + 1,), the offsets, and `slots` (nnz,), the run of each entry.
Of each run `cells` numbers count: its entries, and as many zeros as are missing. The sum of their
squared deviations is divided by `free`. A GPU asks for `pieces` too, see `plan.Sums`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegrad.backends.basics import Array, Basics
from sparsegrad.dtypes import accumulator

__all__ = ["Moments"]


class Moments(Basics):
    """Two passes: the sums, then the squared deviations from the means."""

    def var_of_runs(
        self, x: Array, runs: Any, cells: int, free: float, root: bool
    ) -> tuple[Array, Array]:
        """The variance of each run of x (nnz, *D), or its root: (s, *D); and the sums of the runs
        (s, *D), in the dtype of accumulators."""
        wide = self.convert(x, accumulator(x.dtype))
        total = self._sums(wide, runs)
        deviations = self._deviations(wide, total, runs, cells)
        squares = self._sums(deviations * deviations, runs)
        mean = total / total.dtype.type(cells)
        absent = (cells - self.xp.diff(runs.indptr)).astype(total.dtype)
        squares += absent.reshape(-1, *(1,) * (x.ndim - 1)) * mean * mean
        out = squares / total.dtype.type(free)
        out = self.xp.sqrt(out) if root else out
        return self.convert(out, x.dtype), total

    def var_grad_of_runs(
        self, g: Array, x: Array, total: Array, runs: Any, cells: int, free: float
    ) -> Array:
        """The gradient of the variance: g (s, *D) times twice the deviation from the mean over
        `free`, (nnz, *D). Those of all numbers sum to 0, so the mean passes nothing on."""
        wide = self.convert(x, total.dtype)
        slope = self.convert(g, total.dtype) * total.dtype.type(2 / free if free else np.nan)
        moved = self.gather(slope, runs.slots) * self._deviations(wide, total, runs, cells)
        return self.convert(moved, x.dtype)

    def _sums(self, x: Array, runs: Any) -> Array:
        if runs.perm is None:
            return self.segment_sum(x, runs.indptr)
        return self.sum_runs(x, runs.perm, runs.indptr)

    def _deviations(self, x: Array, total: Array, runs: Any, cells: int) -> Array:
        return x - self.gather(total / total.dtype.type(cells), runs.slots)
