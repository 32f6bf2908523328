"""Variances of runs of entries: the numeric half of `var` and `std` of sparse tensors."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import backends
from sparsegrad.engine.primitive import primitive
from sparsegrad.ops.index import put_rows_p, take_p
from sparsegrad.ops.unary import root_grad_p
from sparsegrad.structure.plan import Sums
from sparsegrad.tensor import Tensor

__all__: list[str] = []


@primitive(promote="float", aux=("total",))
def segment_var_p(
    be: Any, values: Any, *, runs: Sums, cells: int, free: float, root: bool = False
) -> Any:
    """Of each run of values (nnz, *D) and so many zeros that they are `cells` numbers: the sum of
    squared deviations from their mean over `free`, or its root, (s, *D). Residual: the sums."""
    return be.var_of_runs(values, runs, cells, free, root)


@primitive(promote="none")
def segment_var_grad_p(
    be: Any, dy: Any, values: Any, *, total: Any, runs: Sums, cells: int, free: float
) -> Any:
    """The gradient of the variance: dy of the run times 2 / free times the deviation, (nnz, *D)."""
    return be.var_grad_of_runs(dy, values, total, runs, cells, free)


def _var_rule(
    g: Any, values: Any, out: Any, total: Any, runs: Sums, cells: int, free: float, root: bool
) -> Any:
    g = root_grad_p(g, out, p=2) if root else g
    return segment_var_grad_p(g, values, total=total, runs=runs, cells=cells, free=free)


def _slope_rule(
    g: Any, dy_meta: Any, values: Any, total: Any, runs: Sums, cells: int, free: float
) -> Any:
    ones = Tensor(backends.for_array(total).xp.ones(dy_meta.shape, dy_meta.dtype))
    slope = segment_var_grad_p(ones, values, total=total, runs=runs, cells=cells, free=free)
    return put_rows_p(g * slope, index=runs.slots, n=dy_meta.shape[0])


def _curvature_rule(g: Any, dy: Any, runs: Sums, cells: int, free: float) -> Any:
    """A deviation moves with its value, and with the mean of all."""
    moved = g * take_p(dy, index=runs.slots) * (2 / free if free else math.nan)
    mean = put_rows_p(moved, index=runs.slots, n=dy.shape[0]) / cells
    return moved - take_p(mean, index=runs.slots)


segment_var_p.defvjp(values=_var_rule)
segment_var_grad_p.defvjp(dy=_slope_rule, values=_curvature_rule)
