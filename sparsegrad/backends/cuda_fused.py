"""Formulas of an element in one launch each: CuPy fuses what the reference says."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import cupy

from sparsegrad.backends.base import Array, Backend

__all__ = ["CudaFused"]


class CudaFused(Backend):
    """Activations; bfloat16, which CuPy does not fuse, is the reference's."""

    def gelu(self, x: Array) -> Array:
        return _fused(self, "gelu", x)

    def gelu_grad(self, g: Array, x: Array) -> Array:
        return _fused(self, "gelu_grad", g, x)

    def silu(self, x: Array) -> Array:
        return _fused(self, "silu", x)

    def silu_grad(self, g: Array, x: Array) -> Array:
        return _fused(self, "silu_grad", g, x)


def _fused(be: Backend, name: str, *arrays: Array) -> Array:
    if any(a.dtype.name == "bfloat16" for a in arrays):
        return getattr(Backend, name)(be, *arrays)
    return _kernel(be, name, len(arrays))(*arrays)


@cache
def _kernel(be: Backend, name: str, count: int) -> Callable[..., Any]:
    formula = getattr(Backend, name)

    def of_one(x: Any) -> Any:
        return formula(be, x)

    def of_two(g: Any, x: Any) -> Any:
        return formula(be, g, x)

    function = of_one if count == 1 else of_two
    function.__name__ = f"sg_{name}"
    return cupy.fuse(function)
