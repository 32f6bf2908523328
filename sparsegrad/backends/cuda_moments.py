"""Variances of runs by our own kernels, and their gradient, which reads what belongs to a run by
index."""

from __future__ import annotations

from math import nan, prod
from typing import Any

import cupy

from sparsegrad.backends.base import Array, Backend
from sparsegrad.backends.cuda_kernels import ctype_of, kernel, launch, power_of_two
from sparsegrad.dtypes import accumulator, kind

__all__ = ["CudaMoments"]


class CudaMoments(Backend):
    """One launch forward, two where runs are long, and one back."""

    def var_of_runs(
        self, x: Array, runs: Any, cells: int, free: float, root: bool
    ) -> tuple[Array, Array]:
        if kind(x.dtype) != "f":
            return super().var_of_runs(x, runs, cells, free, root)
        x, wide = cupy.ascontiguousarray(x), accumulator(x.dtype)
        segments, tail = runs.indptr.size - 1, x.shape[1:]
        out, totals = (cupy.empty((segments, *tail), dtype) for dtype in (x.dtype, wide))
        if not out.size:
            return out, totals
        bounds, starts = runs.pieces
        types, pieces = (ctype_of(x.dtype), ctype_of(bounds.dtype)), bounds.size - 1
        width = prod(tail)
        columns = min(32, power_of_two(width))
        # Each lane should find the four entries that it keeps in flight.
        lanes = min(32, columns * power_of_two(int(len(x) / pieces + 3) // 4))
        numbers = {"cells": float(cells), "free": float(free), "root": int(root)}
        sums, squares = totals, None
        if starts is not None:
            sums, squares = (cupy.empty((pieces, *tail), wide) for _ in range(2))
        launch(
            kernel("moments", "sg_moments", *types),
            pieces * -(-width // columns) * lanes,
            values=x,
            perm_or_null=runs.perm,
            bounds=bounds,
            pieces=pieces,
            width=width,
            columns=columns,
            lanes=lanes,
            **numbers,
            out_or_null=out if squares is None else None,
            totals=sums,
            squares_or_null=squares,
        )
        if starts is not None:
            launch(
                kernel("moments", "sg_moments_join", *types),
                32 * segments * width,
                sums=sums,
                squares=squares,
                bounds=bounds,
                starts=starts,
                segments=segments,
                width=width,
                **numbers,
                out=out,
                totals=totals,
            )
        return out, totals

    def var_grad_of_runs(
        self, g: Array, x: Array, total: Array, runs: Any, cells: int, free: float
    ) -> Array:
        if not x.size:
            return x.copy()
        numbers = float(cells), 2 / free if free else nan, prod(x.shape[1:])
        out = _var_grad(cupy.ascontiguousarray(x).reshape(-1), g, total, runs.slots, *numbers)
        return out.reshape(x.shape)


_var_grad = cupy.ElementwiseKernel(
    "T x, raw G g, raw W total, raw I slots, float64 cells, float64 slope, int64 width",
    "T out",
    """
    const long long e = width == 1 ? i : i / width;
    const long long at = slots[e] * width + (i - e * width);
    out = T(static_cast<W>(g[at]) * W(slope) * (static_cast<W>(x) - total[at] / W(cells)));
    """,
    "sg_var_grad",
)
