"""Generated power-law matrices: the degree distribution of citation, web and social graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

__all__ = ["power_law"]


def power_law(n: int, nnz: int, seed: int = 0, exponent: float = 2.5, dtype: Any = "f4") -> Any:
    """A square CSR array with exactly `nnz` distinct entries, normal values, int32 indices.

    Rows and columns are drawn with weights whose expected degrees follow a power law of that
    exponent (Chung and Lu), independently, in random order: hubs lie anywhere.
    """
    if nnz > n * n // 4:
        raise ValueError(f"power_law: {nnz} distinct entries do not fit {n} x {n} well")
    rng = np.random.default_rng(seed)
    weights = np.arange(1, n + 1) ** (-1 / (exponent - 1))
    steps = np.cumsum(weights) / weights.sum()
    row_of, col_of = rng.permutation(n), rng.permutation(n)
    keys = np.empty(0, np.int64)
    while len(keys) < nnz:
        rows, cols = (np.searchsorted(steps, rng.random(2 * nnz)).clip(max=n - 1) for _ in "rc")
        keys = np.union1d(keys, row_of[rows] * np.int64(n) + col_of[cols])
    keys = np.sort(rng.choice(keys, nnz, replace=False))
    rows, cols = (keys // n).astype(np.int32), (keys % n).astype(np.int32)
    values = rng.standard_normal(nnz).astype(dtype)
    indptr = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=n), out=indptr[1:])
    return sp.csr_array((values, cols, indptr), shape=(n, n))
