"""Formulas of an element in one launch each: CuPy fuses what the reference says. And what it does
not fuse, reading by index, as kernels that it generates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import cupy
import numpy as np

from sparsegrad.backends.base import Array, Backend
from sparsegrad.dtypes import accumulator

__all__ = ["CudaFused"]


class CudaFused(Backend):
    """Formulas of primitives, and activations. Rows by index, some of which are absent."""

    def fused(self, formula: Callable[..., Array], *arrays: Any, **static: Any) -> Array:
        return _fused(formula, cupy, *arrays, **static)

    def divided(self, name: str, a: Array, b: Array) -> Array:
        if not any(hasattr(x, "dtype") and accumulator(x.dtype) != x.dtype for x in (a, b)):
            return super().divided(name, a, b)
        return _fused(_divided, cupy, a, b, name=name)

    def gather_or_zero(self, x: Array, index: Array) -> Array:
        out = cupy.empty((index.size, *x.shape[1:]), x.dtype)
        if out.size:
            words = _WORDS[min(x.itemsize, 8)]
            flat = out.reshape(-1).view(words)
            rows = cupy.ascontiguousarray(x).reshape(-1).view(words)
            _gather_or_zero(rows, index, len(x), flat.size // index.size, flat)
        return out

    def pick(self, mask: Array, a: Array, left: Array, b: Array, right: Array) -> Array:
        out = cupy.empty(mask.shape, a.dtype)
        if out.size:
            words = _WORDS[min(a.itemsize, 8)]
            flat = out.reshape(-1).view(words)
            rows = (cupy.ascontiguousarray(x).reshape(-1).view(words) for x in (a, b))
            each = flat.size // out.size
            sizes = len(a), len(b), flat.size // len(out), each
            _pick(cupy.ascontiguousarray(mask).reshape(-1), *rows, left, right, *sizes, flat)
        return out

    def take_at(self, x: Array, at: Array) -> Array:
        out = cupy.empty(at.shape, x.dtype)
        if out.size:
            words, width = _WORDS[min(x.itemsize, 8)], out.size // len(out)
            flat = out.reshape(-1).view(words)
            x, at = cupy.ascontiguousarray(x).reshape(-1), cupy.ascontiguousarray(at)
            _take_at(x.view(words), at.reshape(-1), width, flat)
        return out

    def put_at(self, x: Array, at: Array, n: int) -> Array:
        out = cupy.zeros((n, *at.shape[1:]), x.dtype)
        if x.size:
            words, width = _WORDS[min(x.itemsize, 8)], x.size // len(x)
            x, at = (cupy.ascontiguousarray(a).reshape(-1) for a in (x, at))
            _put_at(x.view(words), at, width, out.reshape(-1).view(words))
        return out

    def columns(self, lists: Sequence[Array]) -> Array:
        out = cupy.empty((lists[0].size, len(lists)), np.int64)
        if out.size:
            _columns(len(lists))(*lists, out.reshape(-1))
        return out

    def relu_grad(self, g: Array, y: Array) -> Array:
        return _fused(Backend.relu_grad, self, g, y)

    def leaky_relu(self, x: Array, slope: float) -> Array:
        return _fused(Backend.leaky_relu, self, x, slope)

    def leaky_relu_grad(self, g: Array, x: Array, slope: float) -> Array:
        return _fused(Backend.leaky_relu_grad, self, g, x, slope)

    def elu(self, x: Array, alpha: float) -> Array:
        return _fused(Backend.elu, self, x, alpha)

    def elu_grad(self, g: Array, x: Array, alpha: float) -> Array:
        return _fused(Backend.elu_grad, self, g, x, alpha)

    def gelu(self, x: Array) -> Array:
        return _fused(Backend.gelu, self, x)

    def gelu_grad(self, g: Array, x: Array) -> Array:
        return _fused(Backend.gelu_grad, self, g, x)

    def silu(self, x: Array) -> Array:
        return _fused(Backend.silu, self, x)

    def silu_grad(self, g: Array, x: Array) -> Array:
        return _fused(Backend.silu_grad, self, g, x)


# Rows of any dtype are words.
_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
_gather_or_zero = cupy.ElementwiseKernel(
    "raw T x, raw I index, int64 rows, int64 width",
    "T out",
    """
    const long long row = index[width == 1 ? i : i / width];
    out = row >= rows ? T(0) : x[width == 1 ? row : row * width + i % width];
    """,
    "sg_gather_or_zero",
)


_pick = cupy.ElementwiseKernel(
    "raw bool mask, raw T a, raw T b, raw I left, raw J right, int64 n, int64 m, int64 width, "
    "int64 each",
    "T out",
    """
    const long long e = width == 1 ? i : i / width, d = width == 1 ? 0 : i % width;
    if (mask[each == 1 ? i : i / each]) {
        const long long row = left[e];
        out = row >= n ? T(0) : a[row * width + d];
    } else {
        const long long row = right[e];
        out = row >= m ? T(0) : b[row * width + d];
    }
    """,
    "sg_pick",
)


_take_at = cupy.ElementwiseKernel(
    "raw T x, I at, int64 width", "T out", "out = x[at * width + i % width]", "sg_take_at"
)
_put_at = cupy.ElementwiseKernel(
    "T x, I at, int64 width", "raw T out", "out[at * width + i % width] = x", "sg_put_at"
)


@cache
def _columns(count: int) -> Any:
    """A kernel that puts so many lists side by side."""
    cases = "".join(f"case {d}: out = x{d}[i / {count}]; break;" for d in range(count))
    return cupy.ElementwiseKernel(
        ", ".join(f"raw I x{d}" for d in range(count)),
        "int64 out",
        f"switch (static_cast<int>(i % {count})) {{ {cases} }}",
        "sg_columns",
    )


def _divided(xp: Any, a: Array, b: Array, *, name: str) -> Array:
    return getattr(xp, name)(a, b)


def _fused(formula: Callable[..., Any], lib: Any, *operands: Any, **static: Any) -> Array:
    """formula(lib, *operands, **static) as a kernel of CuPy's. Numbers among the operands are
    arguments of the kernel, and may only meet arrays: what CuPy makes of two of them is rounded to
    16 bits. What is static is compiled in: a kernel for each value."""
    names = tuple(getattr(x, "dtype", np.dtype("f8")).name for x in operands)
    out = _kernel(formula, lib, names, tuple(static.items()))(*map(_bits, operands))
    return out.view("bfloat16") if "bfloat16" in names and out.dtype == np.uint16 else out


def _bits(x: Any) -> Any:
    """What CuPy fuses: it does not know bfloat16."""
    return x.view(np.uint16) if getattr(x, "dtype", None) == "bfloat16" else x


@cache
def _kernel(
    formula: Callable[..., Any],
    lib: Any,
    names: tuple[str, ...],
    static: tuple[tuple[str, Any], ...],
) -> Callable[..., Any]:
    """names: dtypes of the operands. Those of 16 bits are computed in float32, and rounded once."""
    from_bits, to_bits = _of_bfloat16()
    widen = {"float16": lambda x: x.astype("f4"), "bfloat16": from_bits}
    narrow = {"float16": lambda x: x.astype("f2"), "bfloat16": to_bits}
    half = next((name for name in names if name in narrow), None)

    def of_elements(*args: Any) -> Any:
        wide = [widen[n](x) if n in widen else x for x, n in zip(args, names, strict=True)]
        out = formula(lib, *wide, **dict(static))
        return narrow[half](out) if half and out.dtype.kind == "f" else out

    of_elements.__name__ = f"sg_{formula.__name__.strip('_').removesuffix('_p')}"
    return cupy.fuse(of_elements)


@cache
def _of_bfloat16() -> tuple[Any, Any]:
    """From its bits to float32, and back, the nearest one, as functions that CuPy fuses."""
    create = cupy._core.create_ufunc
    return create(
        "sg_from_bfloat16", ("H->f",), "out0 = __uint_as_float((unsigned int)in0 << 16)"
    ), create(
        "sg_to_bfloat16",
        ("f->H",),
        """
        const unsigned int u = __float_as_uint(in0);
        out0 = in0 != in0 ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
        """,
    )
