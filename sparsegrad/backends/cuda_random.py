"""Random numbers on the GPU: kernels/philox.cu, the bits of `philox.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegrad.backends.cuda_kernels import ctype_of, kernel, launch
from sparsegrad.backends.philox import threshold

__all__ = ["dropout", "integers", "normal", "uniform"]

Array = Any


def uniform(seed: int, offset: int, n: int, dtype: np.dtype) -> Array:
    """(n,) numbers in [0, 1)."""
    return _filled("sg_random_uniform", seed, offset, n, dtype)


def normal(seed: int, offset: int, n: int, dtype: np.dtype) -> Array:
    """(n,) normal numbers."""
    return _filled("sg_random_normal", seed, offset, n, dtype)


def _filled(name: str, seed: int, offset: int, n: int, dtype: np.dtype) -> Array:
    import cupy

    out = cupy.empty(n, dtype)
    threads = -(-n // (4 if dtype.itemsize < 8 else 2))
    made = kernel("philox", name, ctype_of(dtype))
    launch(made, threads, seed=seed, offset=offset, n=n, out=out)
    return out


def integers(seed: int, offset: int, n: int, low: int, span: int) -> Array:
    """(n,) of int64 in [low, low + span)."""
    import cupy

    out = cupy.empty(n, np.int64)
    launch(
        kernel("philox", "sg_random_integers", ctype_of(out.dtype)),
        -(-n // 2),
        seed=seed,
        offset=offset,
        n=n,
        low=low % 2**64,
        span=span % 2**64,
        out=out,
    )
    return out


def dropout(x: Array, p: float, seed: int, offset: int) -> Array:
    """x / (1 - p) where word i is at least threshold(p), else 0; x in one piece."""
    import cupy

    out = cupy.empty(x.shape, x.dtype)
    width = min(4, 16 // x.itemsize)
    if x.data.ptr % (width * x.itemsize):
        width = 1
    launch(
        kernel("philox", "sg_dropout", ctype_of(x.dtype), str(width)),
        -(-x.size // 4),
        seed=seed,
        offset=offset,
        n=x.size,
        least=threshold(p),
        scale=1 / (1 - p),
        x=x,
        out=out,
    )
    return out
