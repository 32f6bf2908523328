"""Normalisation of graphs: a kernel for the scaled entries and one for their gradient, which read
what belongs to rows and columns by index."""

from __future__ import annotations

from math import prod
from typing import Any

import cupy

from sparsegrad.backends.base import Array, Backend
from sparsegrad.backends.degrees import inverse
from sparsegrad.dtypes import accumulator

__all__ = ["CudaDegrees"]


class CudaDegrees(Backend):
    """With the sums of lines, four launches each way at most."""

    def by_degree(self, x: Array, pattern: Any, loops: Any, both: bool) -> tuple[Array, Array]:
        x = self.convert(x, accumulator(x.dtype))
        if loops is not None:
            x = self.put_rows(x, loops.slots, pattern.nnz, loops.distinct)
        added = loops is not None
        scale = self.fused(inverse, self.line_sums(pattern, x), root=both, more=int(added))
        y = cupy.empty(x.shape, x.dtype)
        lines = pattern.row, pattern.col
        _by_degree(x.reshape(-1), *lines, scale, added, both, prod(x.shape[1:]), y.reshape(-1))
        return y, scale

    def by_degree_grad(
        self, g: Array, g_scale: Array, y: Array, scale: Array, pattern: Any, loops: Any, both: bool
    ) -> Array:
        wide = accumulator(g.dtype)
        g, g_scale, y, scale = (self.convert(a, wide) for a in (g, g_scale, y, scale))
        moved, width = g * y, prod(g.shape[1:])
        rows = self.line_sums(pattern, moved)
        columns = self.line_sums(pattern.T, moved) if both else rows
        entries = pattern.nnz if loops is None else loops.slots.size
        slots = pattern.row if loops is None else loops.slots
        out = cupy.empty((entries, *g.shape[1:]), g.dtype)
        lines = pattern.row, pattern.col, slots
        flags = loops is not None, both, width
        _by_degree_grad(g, g_scale, scale, rows, columns, *lines, *flags, out.reshape(-1))
        return out


_by_degree = cupy.ElementwiseKernel(
    "T x, raw I row, raw I col, raw T scale, bool loops, bool both, int64 width",
    "T y",
    """
    const long long e = width == 1 ? i : i / width, d = i - e * width;
    const long long r = row[e], c = both ? col[e] : r;
    y = (loops && r == col[e] ? x + T(1) : x) * scale[r * width + d];
    if (both) y *= scale[c * width + d];
    """,
    "sg_by_degree",
)
_by_degree_grad = cupy.ElementwiseKernel(
    "raw T g, raw T g_scale, raw T scale, raw T rows, raw T columns, raw I row, raw I col,"
    "raw J slots, bool loops, bool both, int64 width",
    "T out",
    """
    long long e = width == 1 ? i : i / width;
    const long long d = i - e * width;
    if (loops) e = slots[e];
    const long long r = row[e] * width + d;
    const T s = scale[r], total = rows[r] + s * g_scale[r];
    const T by = g[e * width + d] * s;
    out = both ? by * scale[col[e] * width + d] - T(0.5) * (s * s) * (total + columns[r])
               : by - s * total;
    """,
    "sg_by_degree_grad",
)
