"""What the parts of `CpuJit` share: when a kernel pays."""

from __future__ import annotations

import numpy as np

from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu import Cpu
from sparsegrad.backends.cpu_jit_calls import F4, F8
from sparsegrad.dtypes import accumulator

__all__ = ["MIN_DENSE", "CpuJitPart"]

MIN_DENSE = 1 << 14  # elements of dense arrays below which NumPy serves


class CpuJitPart(Cpu):
    """A part of `CpuJit`. `always` uses kernels for every size, which is what tests want."""

    def __init__(self, always: bool = False) -> None:
        self.always = always

    def _pays(self, work: int, least: int) -> bool:
        """Whether so much work is worth a kernel, from `least` on."""
        return work >= least or self.always

    def _dense_dtype(self, x: Array, passes: int = 1) -> np.dtype | None:
        """The dtype to compute in; None where NumPy serves, in about so many passes."""
        dtype = accumulator(x.dtype)
        if not x.size or dtype not in (F4, F8) or not self._pays(passes * x.size, MIN_DENSE):
            return None
        return dtype
