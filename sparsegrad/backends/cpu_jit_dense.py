"""Activations, losses and normalisation of dense rows for `CpuJit`: one pass each."""

from __future__ import annotations

import numpy as np

from sparsegrad import memory
from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu_jit_calls import ELEMENTS, F4, F8, I8, kernel_of, row_tasks
from sparsegrad.backends.cpu_jit_channels import CpuJitChannels
from sparsegrad.backends.cpu_jit_launch import contiguous, launch
from sparsegrad.backends.cpu_jit_matmul import matmul
from sparsegrad.backends.dense import ACTIVATIONS

__all__ = ["CpuJitDense"]

_LOSS = 128  # passes in whose time NumPy does a cross entropy of a few rows


class CpuJitDense(CpuJitChannels):
    """Kernels of `cpu_jit_kernels_activations`, `cpu_jit_kernels_bias`, `cpu_jit_kernels_dense` and
    `cpu_jit_kernels_elementwise`."""

    def matmul(self, a: Array, b: Array) -> Array:
        if a.dtype.char in "fdFD" and a.dtype == b.dtype:
            return matmul(a, b)
        return super().matmul(a, b)

    def bias_act(self, x: Array, bias: Array, activation: str) -> Array:
        dtype = self._dense_dtype(x)
        if dtype is None or activation == "tanh":  # NumPy's has vector code, a kernel would not
            return super().bias_act(x, bias, activation)
        tasks, chunk = row_tasks(*x.shape)
        out = memory.empty(x.shape, dtype)
        args = (chunk, ACTIVATIONS.index(activation), contiguous(x, dtype), contiguous(bias, dtype))
        launch(kernel_of("bias_act", dtype), (*args, out), tasks, 2 * x.size)
        return out

    def bias_act_grad(self, g: Array, y: Array, activation: str) -> tuple[Array, Array]:
        dtype = self._dense_dtype(y)
        if dtype is None:
            return super().bias_act_grad(g, y, activation)
        tasks, chunk = row_tasks(*y.shape)
        out, sums = memory.empty(y.shape, dtype), np.empty((tasks, y.shape[1]), dtype)
        args = (chunk, ACTIVATIONS.index(activation), contiguous(g, dtype), contiguous(y, dtype))
        launch(kernel_of("bias_act_grad", dtype), (*args, out, sums), tasks, 3 * y.size)
        return out, sums.sum(axis=0)

    def relu_grad(self, g: Array, y: Array) -> Array:
        out = None if g.dtype != y.dtype else self._elementwise("relu_grad", g, y)
        return super().relu_grad(g, y) if out is None else out

    def leaky_relu(self, x: Array, slope: float) -> Array:
        out = self._elementwise("leaky_relu", x, factor=slope)
        return super().leaky_relu(x, slope) if out is None else out

    def leaky_relu_grad(self, g: Array, x: Array, slope: float) -> Array:
        out = self._elementwise("leaky_relu_grad", g, x, factor=slope)
        return super().leaky_relu_grad(g, x, slope) if out is None else out

    def elu(self, x: Array, alpha: float) -> Array:
        out = self._elementwise("elu", x, factor=alpha)
        return super().elu(x, alpha) if out is None else out

    def elu_grad(self, g: Array, x: Array, alpha: float) -> Array:
        out = self._elementwise("elu_grad", g, x, factor=alpha)
        return super().elu_grad(g, x, alpha) if out is None else out

    def erf(self, x: Array) -> Array:
        out = self._elementwise("erf", x)
        return super().erf(x) if out is None else out.astype(x.dtype, copy=False)

    def gelu(self, x: Array) -> Array:
        out = self._elementwise("gelu", x)
        return super().gelu(x) if out is None else out

    def gelu_grad(self, g: Array, x: Array) -> Array:
        out = self._elementwise("gelu_grad", g, x)
        return super().gelu_grad(g, x) if out is None else out

    def silu(self, x: Array) -> Array:
        out = self._elementwise("silu", x)
        return super().silu(x) if out is None else out

    def silu_grad(self, g: Array, x: Array) -> Array:
        out = self._elementwise("silu_grad", g, x)
        return super().silu_grad(g, x) if out is None else out

    def divided(self, name: str, a: Array, b: Array) -> Array:
        kinds = {x.dtype for x in (a, b) if hasattr(x, "dtype")}
        x, y = np.broadcast_arrays(a, b)
        out = None
        if len(kinds) == 1 and x.size and kinds <= {F4, F8}:
            dtype = kinds.pop()
            out = self._elementwise(name, contiguous(x, dtype), contiguous(y, dtype))
        return super().divided(name, a, b) if out is None else out

    def _elementwise(self, name: str, *arrays: Array, factor: float | None = None) -> Array | None:
        """The result of a kernel on a factor and arrays of one shape; None where NumPy serves."""
        shape, dtype = arrays[0].shape, self._dense_dtype(arrays[-1])
        if dtype is None or any(a.shape != shape for a in arrays):
            return None
        out = memory.empty(shape, dtype)
        flat = [contiguous(a, dtype).reshape(-1) for a in arrays]
        launch(
            kernel_of(name, dtype),
            (ELEMENTS, *(() if factor is None else (factor,)), *flat, out.reshape(-1)),
            -(-out.size // ELEMENTS),
            4 * out.size,
        )
        return out

    def cross_entropy(
        self, x: Array, classes: Array, weight: Array | None, smoothing: float
    ) -> tuple[Array, Array]:
        dtype = self._dense_dtype(x, _LOSS)
        if dtype is None:
            return super().cross_entropy(x, classes, weight, smoothing)
        tasks, chunk = row_tasks(*x.shape)
        loss, lse = np.empty(len(x), dtype), np.empty(len(x), dtype)
        rows = contiguous(x, dtype), contiguous(classes, I8), _optional(weight, dtype)
        args = (chunk, *rows, smoothing, loss, lse)
        launch(kernel_of("cross_entropy", dtype), args, tasks, 4 * x.size)
        return loss, lse

    def cross_entropy_grad(
        self,
        g: Array,
        x: Array,
        lse: Array,
        classes: Array,
        weight: Array | None,
        smoothing: float,
    ) -> Array:
        dtype = self._dense_dtype(x, _LOSS)
        if dtype is None:
            return super().cross_entropy_grad(g, x, lse, classes, weight, smoothing)
        tasks, chunk = row_tasks(*x.shape)
        out = memory.empty(x.shape, dtype)
        rows = [contiguous(a, dtype) for a in (g, x, lse)]
        rows += [contiguous(classes, I8), _optional(weight, dtype)]
        args = (chunk, *rows, smoothing, out)
        launch(kernel_of("cross_entropy_grad", dtype), args, tasks, 4 * x.size)
        return out

    def layer_norm(
        self, x: Array, weight: Array | None, bias: Array | None, eps: float
    ) -> tuple[Array, Array, Array]:
        dtype = self._dense_dtype(x)
        if dtype is None:
            return super().layer_norm(x, weight, bias, eps)
        tasks, chunk = row_tasks(*x.shape)
        out = memory.empty(x.shape, dtype)
        mean, scale = np.empty(len(x), dtype), np.empty(len(x), dtype)
        rows = contiguous(x, dtype), _optional(weight, dtype), _optional(bias, dtype)
        args = (chunk, *rows, eps, out, mean, scale)
        launch(kernel_of("layer_norm", dtype), args, tasks, 2 * x.size)
        return out, mean, scale

    def layer_norm_grad(
        self, g: Array, x: Array, weight: Array | None, mean: Array, scale: Array
    ) -> Array:
        dtype = self._dense_dtype(x)
        if dtype is None:
            return super().layer_norm_grad(g, x, weight, mean, scale)
        tasks, chunk = row_tasks(*x.shape)
        out = memory.empty(x.shape, dtype)
        rows = contiguous(g, dtype), contiguous(x, dtype), _optional(weight, dtype)
        args = (chunk, *rows, contiguous(mean, dtype), contiguous(scale, dtype), out)
        launch(kernel_of("layer_norm_grad", dtype), args, tasks, 3 * x.size)
        return out

    def layer_norm_weight_grad(self, g: Array, x: Array, mean: Array, scale: Array) -> Array:
        dtype = self._dense_dtype(x)
        if dtype is None:
            return super().layer_norm_weight_grad(g, x, mean, scale)
        tasks, chunk = row_tasks(*x.shape)
        parts = np.empty((tasks, x.shape[1]), dtype)
        rows = [contiguous(a, dtype) for a in (g, x, mean, scale)]
        launch(kernel_of("layer_norm_weight_grad", dtype), (chunk, *rows, parts), tasks, 2 * x.size)
        return parts.sum(axis=0)


def _optional(array: Array | None, dtype: np.dtype) -> Array:
    return np.empty(0, dtype) if array is None else contiguous(array, dtype)
