"""Normalisation of graphs: a kernel for the scaled entries and one for their gradient, which read
what belongs to rows and columns by index."""

from __future__ import annotations

from math import prod
from typing import Any

import cupy

from sparsegrad.backends import cuda_segment as segment
from sparsegrad.backends.base import Array, Backend
from sparsegrad.dtypes import accumulator

__all__ = ["CudaDegrees"]


class CudaDegrees(Backend):
    """With the sums of lines, four launches each way at most. 16-bit floats are read and written as
    they are, and computed in float32."""

    def by_degree(self, x: Array, pattern: Any, loops: Any, both: bool) -> tuple[Array, Array]:
        narrow, wide = x.dtype, accumulator(x.dtype)
        if loops is not None:
            x = x if loops.distinct else self.convert(x, wide)
            x = self.put_rows(x, loops.slots, pattern.nnz, loops.distinct)
        indptr, _, perm = pattern.rows()
        if perm is None:
            total = segment.reduce(x, indptr, segment.SUM, wide=True)
        else:
            total = self.sum_runs(self.convert(x, wide), perm, indptr)
        y, scale = cupy.empty(x.shape, narrow), cupy.empty(total.shape, narrow)
        lines = pattern.row, pattern.col
        flags = loops is not None, both, prod(x.shape[1:]), y.size, scale.size
        _by_degree(x, *lines, total, *flags, y, scale, size=max(y.size, scale.size))
        return y, scale

    def by_degree_grad(
        self, g: Array, g_scale: Array, y: Array, scale: Array, pattern: Any, loops: Any, both: bool
    ) -> Array:
        moved, width = cupy.empty(g.shape, accumulator(g.dtype)), prod(g.shape[1:])
        _moved(g, y, moved)
        rows = self.line_sums(pattern, moved)
        columns = self.line_sums(pattern.T, moved) if both else rows
        entries = pattern.nnz if loops is None else loops.slots.size
        slots = pattern.row if loops is None else loops.slots
        out = cupy.empty((entries, *g.shape[1:]), g.dtype)
        lines = pattern.row, pattern.col, slots
        flags = loops is not None, both, width
        _by_degree_grad(g, g_scale, scale, rows, columns, *lines, *flags, out.reshape(-1))
        return out


# T: the dtype of entries. W: that of accumulators. The scale is computed where it is needed, for
# each entry and for each line.
_by_degree = cupy.ElementwiseKernel(
    "raw X x, raw I row, raw I col, raw W total, bool loops, bool both, int64 width,"
    "int64 entries, int64 lines",
    "raw T y, raw T scale",
    """
    const auto inverse = [&](long long at) {
        const W sum = total[at] + W(loops);
        return both ? (sum > W(0) ? W(1) / sqrt(sum) : W(0)) : sum == W(0) ? W(0) : W(1) / sum;
    };
    if (i < lines) scale[i] = T(inverse(i));
    if (i < entries) {
        const long long e = width == 1 ? i : i / width, d = i - e * width;
        const long long r = row[e], c = both ? col[e] : r;
        W out = static_cast<W>(x[i]);
        if (loops && r == col[e]) out += W(1);
        out *= inverse(r * width + d);
        if (both) out *= inverse(c * width + d);
        y[i] = T(out);
    }
    """,
    "sg_by_degree",
)
_moved = cupy.ElementwiseKernel(
    "T g, T y", "W moved", "moved = static_cast<W>(g) * static_cast<W>(y);", "sg_moved"
)
_by_degree_grad = cupy.ElementwiseKernel(
    "raw T g, raw T g_scale, raw T scale, raw W rows, raw W columns, raw I row, raw I col,"
    "raw J slots, bool loops, bool both, int64 width",
    "T out",
    """
    long long e = width == 1 ? i : i / width;
    const long long d = i - e * width;
    if (loops) e = slots[e];
    const long long r = row[e] * width + d;
    const W s = static_cast<W>(scale[r]), total = rows[r] + s * static_cast<W>(g_scale[r]);
    const W by = static_cast<W>(g[e * width + d]) * s;
    out = T(both ? by * static_cast<W>(scale[col[e] * width + d])
                       - W(0.5) * (s * s) * (total + columns[r])
                 : by - s * total);
    """,
    "sg_by_degree_grad",
)
