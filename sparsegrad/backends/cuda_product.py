"""Sparse @ sparse at a known pattern by our own kernels."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from sparsegrad.backends import cuda_spmm
from sparsegrad.backends.cuda_kernels import (
    accumulator_of,
    ctype_of,
    kernel,
    launch,
    power_of_two,
)
from sparsegrad.backends.cuda_spmm import rows_of

__all__ = ["spgemm", "spgemm_masked"]

Array = Any

_HEADS = 4  # whose sums a lane keeps at once


def spgemm_masked(left: Any, a: Array, right: Any, b: Array, mask: Any) -> Array:
    """Entries of left @ right at `mask`, the same bits every time: a, b and the result (nnz, *H),
    patterns coalesced."""
    import cupy

    out = cupy.empty((mask.nnz, *a.shape[1:]), a.dtype)
    _dots(out, left, a, right, b, mask, -1)
    return out


def spgemm(left: Any, a: Array, right: Any, b: Array, out: Any) -> Array:
    """All of left @ right, whose entries are those of `out`: row by row, which takes one step for
    each product and not for each entry of a row that one might meet."""
    import cupy

    dtype, heads = _index_dtype(left, right, out), prod(a.shape[1:])
    ctype = ctype_of(a.dtype)
    total = cupy.zeros((out.nnz, *a.shape[1:]), accumulator_of(ctype))
    lanes = _lanes(right)
    launch(
        kernel("spgemm_masked", "sg_spgemm_rows", ctype, ctype_of(dtype)),
        left.shape[0] * lanes if total.size else 0,
        **_lines("l", "cols", left, dtype),
        **_lines("r", "cols", right, dtype),
        **_lines("o", "cols", out, dtype),
        a=cupy.ascontiguousarray(a),
        b=cupy.ascontiguousarray(b, dtype=a.dtype),
        rows=left.shape[0],
        heads=heads,
        lanes=lanes,
        longest=cuda_spmm.LONGEST,
        out=total,
    )
    product = total.astype(a.dtype, copy=False)
    if rows_of(left, in_order=True).long_row.size:
        _dots(product, left, a, right, b, out, cuda_spmm.LONGEST)
    return product


def _dots(
    out: Array, left: Any, a: Array, right: Any, b: Array, mask: Any, longer_than: int
) -> None:
    """Write the entries of `mask` that lie in rows of left of more than `longer_than` entries."""
    import cupy

    dtype, heads = _index_dtype(left, right, mask), prod(a.shape[1:])
    block = 1 if heads <= 1 else _HEADS
    lanes = min(_lanes(left), _lanes(right.T))
    launch(
        kernel("spgemm_masked", "sg_spgemm_masked", ctype_of(a.dtype), ctype_of(dtype), str(block)),
        mask.nnz * -(-heads // block) * lanes,
        **_lines("l", "cols", left, dtype),
        **_lines("r", "rows", right.T, dtype),
        a=cupy.ascontiguousarray(a),
        b=cupy.ascontiguousarray(b, dtype=a.dtype),
        row=cupy.ascontiguousarray(mask.row, dtype=dtype),
        col=cupy.ascontiguousarray(mask.col, dtype=dtype),
        entries=mask.nnz,
        heads=heads,
        lanes=lanes,
        longer_than=longer_than,
        out=out,
    )


def _index_dtype(*patterns: Any) -> np.dtype:
    return np.result_type(*(p.row.dtype for p in patterns))


def _lines(side: str, minor: str, pattern: Any, dtype: np.dtype) -> dict[str, Any]:
    """Arguments of a kernel: rows of a pattern, sorted, in the index dtype that all sides share."""
    lines = rows_of(pattern, in_order=True)
    arrays = {
        f"{side}_indptr": lines.indptr,
        f"{side}_{minor}": lines.cols,
        f"{side}_positions_or_null": lines.positions,
    }
    return {k: v if v is None else v.astype(dtype, copy=False) for k, v in arrays.items()}


def _lanes(pattern: Any) -> int:
    """Lanes that walk a row together: about as many as it has entries."""
    return min(32, power_of_two(-(-pattern.nnz // max(1, pattern.shape[0]))))
