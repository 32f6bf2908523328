"""Random numbers of `CpuJit`: made and used in one pass, on all threads."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu_jit_calls import F4, F8, kernel_of
from sparsegrad.backends.cpu_jit_launch import launch
from sparsegrad.backends.cpu_jit_part import CpuJitPart
from sparsegrad.backends.philox import UNIFORM_BITS, threshold
from sparsegrad.dtypes import accumulator

__all__ = ["CpuJitRandom"]

_LEAST = 1 << 12  # numbers below which NumPy serves
_CALL = 1 << 10  # numbers that a call of NumPy's code costs
_MANY = 1 << 22  # numbers drawn by NumPy in the time that it takes to load Numba
_GRAIN = 1 << 14  # numbers a task


class CpuJitRandom(CpuJitPart):
    """Kernels of `cpu_jit_kernels_random`."""

    _drawn = 0

    def _draws(self, n: int) -> bool:
        """Whether a kernel draws: where there is much to draw, where that has been so up to now, or
        where Numba has been loaded anyway."""
        self._drawn += n + _CALL
        return self._pays(n, _LEAST) or self._drawn > _MANY or "numba" in sys.modules

    def random_uniform(self, seed: int, offset: int, n: int, dtype: np.dtype) -> Array:
        if not self._draws(n):
            return super().random_uniform(seed, offset, n, dtype)
        out = np.empty(n, accumulator(dtype))
        if dtype == F8:
            _fill("random_uniform_64", n, seed, offset, out)
        else:
            _fill("random_uniform_32", n, seed, offset, UNIFORM_BITS[dtype.name], out)
        return out.astype(dtype, copy=False)

    def random_normal(self, seed: int, offset: int, n: int, dtype: np.dtype) -> Array:
        if not self._draws(n):
            return super().random_normal(seed, offset, n, dtype)
        out = np.empty(n, accumulator(dtype))
        name = "random_normal_64" if dtype == F8 else "random_normal_32"
        _fill(name, 8 * n, seed, offset, out)
        return out.astype(dtype, copy=False)

    def random_integers(self, seed: int, offset: int, n: int, low: int, span: int) -> Array:
        if not self._draws(n):
            return super().random_integers(seed, offset, n, low, span)
        out = np.empty(n, np.int64)
        _fill("random_integers", n, seed, offset, low, _signed(span), out)
        return out

    def dropout(self, x: Array, p: float, seed: int, offset: int) -> Array:
        if x.dtype not in (F4, F8) or not self._draws(x.size):
            return super().dropout(x, p, seed, offset)
        flat = np.require(x, requirements=("C", "A")).reshape(-1)
        out = np.empty_like(flat)
        tail = (threshold(p), 1 / (1 - p), flat, out)
        _fill("dropout", x.size, seed, offset, *tail, dtypes=(x.dtype,))
        return out.reshape(x.shape)


def _fill(
    name: str, work: int, seed: int, offset: int, *args: Any, dtypes: tuple[np.dtype, ...] = ()
) -> None:
    """Run a kernel whose last argument is the flat array that it writes."""
    tasks = max(1, args[-1].size // _GRAIN)
    head = (tasks, seed & 0xFFFFFFFF, seed >> 32, _signed(offset))
    launch(kernel_of(name, *dtypes), (*head, *args), tasks, work)


def _signed(n: int) -> int:
    """The int64 with the low 64 bits of n."""
    return (n + 2**63) % 2**64 - 2**63
