"""Batch normalisation for `CpuJit`: two passes forward, two back."""

from __future__ import annotations

import numpy as np

from sparsegrad import memory
from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu_jit_calls import kernel_of, row_tasks
from sparsegrad.backends.cpu_jit_launch import contiguous, launch
from sparsegrad.backends.cpu_jit_part import CpuJitPart

__all__ = ["CpuJitChannels"]


class CpuJitChannels(CpuJitPart):
    """Kernels of `cpu_jit_kernels_channels`."""

    def channel_moments(self, x: Array) -> tuple[Array, Array]:
        dtype = self._dense_dtype(x)
        if dtype is None:
            return super().channel_moments(x)
        rows, length, chunk, tasks = _rows(x, dtype)
        means, squares = (np.empty((tasks, x.shape[1]), dtype) for _ in range(2))
        args = (chunk, length, rows, means, squares)
        launch(kernel_of("channel_moments", dtype), args, tasks, 2 * x.size)
        # Of all tasks from those of each (Chan, Golub and LeVeque 1979).
        share = np.full((tasks, 1), chunk / len(x))
        share[-1] = (len(x) - chunk * (tasks - 1)) / len(x)
        mean = (share * means).sum(axis=0)
        variance = squares.sum(axis=0, dtype=np.float64) / (len(x) * length)
        variance += (share * (means - mean) ** 2).sum(axis=0)
        return mean.astype(dtype), variance.astype(dtype)

    def batch_norm(
        self, x: Array, weight: Array | None, bias: Array | None, mean: Array, scale: Array
    ) -> Array:
        dtype = self._dense_dtype(x)
        if dtype is None:
            return super().batch_norm(x, weight, bias, mean, scale)
        rows, length, chunk, tasks = _rows(x, dtype)
        factor = scale if weight is None else scale * weight
        shift = np.zeros(len(scale), dtype) if bias is None else bias
        each = (contiguous(a, dtype) for a in (mean, factor, shift))
        out = memory.empty(rows.shape, dtype)
        args = (chunk, length, rows, *each, out)
        launch(kernel_of("channels_scaled", dtype), args, tasks, x.size)
        return out.reshape(x.shape)

    def batch_norm_grad(
        self, g: Array, x: Array, weight: Array | None, mean: Array, scale: Array
    ) -> tuple[Array, Array, Array]:
        dtype = self._dense_dtype(x)
        if dtype is None:
            return super().batch_norm_grad(g, x, weight, mean, scale)
        rows, length, chunk, tasks = _rows(x, dtype)
        back = contiguous(g, dtype).reshape(rows.shape)
        mean, scale = contiguous(mean, dtype), contiguous(scale, dtype)
        sums, products = (np.empty((tasks, x.shape[1]), dtype) for _ in range(2))
        both = (chunk, length, back, rows, mean)
        launch(kernel_of("channel_products", dtype), (*both, sums, products), tasks, 2 * x.size)
        to_bias, to_weight = sums.sum(axis=0), products.sum(axis=0) * scale
        factor = contiguous(scale if weight is None else scale * weight, dtype)
        share = dtype.type(1 / (len(x) * length))
        slope, shift = -factor * scale * to_weight * share, -factor * to_bias * share
        out = memory.empty(rows.shape, dtype)
        args = (*both, factor, slope, shift, out)
        launch(kernel_of("channels_back", dtype), args, tasks, 3 * x.size)
        return out.reshape(x.shape), to_weight, to_bias


def _rows(x: Array, dtype: np.dtype) -> tuple[Array, int, int, int]:
    """x as rows (n, d * length), length, the rows of a task, and how many tasks."""
    rows = contiguous(x, dtype).reshape(len(x), -1)
    tasks, chunk = row_tasks(*rows.shape)
    return rows, rows.shape[1] // x.shape[1], chunk, tasks
