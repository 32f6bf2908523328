# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of statistics, scans, sorting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase, Sample, Sparse
from op_db.samples import *  # noqa: F403
from sparsegrad.ops import scan
from sparsegrad.ops import statistics as stats


def lines(d: Draw) -> Iterator[Sample]:
    return (s for s in along(d) if s[0][0].size)


def several(d: Draw) -> Iterator[Sample]:
    """Reductions over at least two elements."""
    for s, dims in [((3, 4), (None, 0, -1, (0, 1))), ((2, 3, 4), (1, (0, 2)))]:
        for dim in dims:
            yield (d.dense(*s),), {"dim": dim, "keepdim": len(s) == 2}


def zeros_too(d: Draw) -> Iterator[Sample]:
    yield from along(d)
    x = d.dense(4, 5)
    x[0, 1] = x[1, 2] = x[1, 3] = 0
    yield (x,), {"dim": 1}


def mixed(d: Draw) -> Iterator[Sample]:
    """With zeros, for tests and counts."""
    for args, kw in reductions(d):
        yield (np.round(args[0]),), kw


def sparse_mixed(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        for dim in (None, 0, 1):
            yield (a,), {"dim": dim}
    full = np.array(np.unravel_index(np.arange(6), (2, 3)))
    yield (Sparse(full, d.away(6), (2, 3)),), {"dim": 1, "keepdim": True}


def ref_var(correction: int, root: bool = False) -> Any:
    fn = np.std if root else np.var
    return lambda x, dim, keepdim=False: fn(x, axis=dim, keepdims=keepdim, ddof=correction)


def lower_median(x: np.ndarray, dim: int) -> np.ndarray:
    return np.take(np.sort(x, dim), (x.shape[dim] - 1) // 2, dim)


ROWS = [
    OpCase("argmin", sg.argmin, lambda x, dim: np.argmin(x, dim), lines, "argmin_p", order=0),
    OpCase("min", lambda x, dim: sg.min(x, dim).values, lambda x, dim: np.min(x, dim), lines, errors=(
        (lambda: sg.min(sg.ones(0, 2), 0), sg.ShapeError, "min: no minimum over an empty dimension"),
        (lambda: sg.min(sg.coo([[], []], [], (0, 2)), 0), sg.ShapeError, "min: no position in an empty dimension"),)),
    OpCase("min[keepdim]", lambda x: sg.min(x, 1, True).values * sg.min(x), lambda x: x.min(1, keepdims=True) * x.min(),
           lambda d: iter([((d.dense(3, 4),), {})])),
    OpCase("var", lambda x, **kw: stats.var(x, **kw), ref_var(1), several, "var_p"),
    OpCase("var[population]", lambda x, **kw: sg.var(x, unbiased=False, **kw), ref_var(0), nonempty_reductions),
    OpCase("std", sg.std, ref_var(1, True), several),
    OpCase("std_mean", lambda x: sg.cat(list(sg.std_mean(x, 1))), lambda x: np.concatenate([x.std(1, ddof=1), x.mean(1)]),
           lambda d: iter([((d.dense(3, 4),), {})])),
    *(OpCase(name, getattr(sg, name), ref_reduce(ref), mixed, f"{name}_p", order=0) for name, ref in (("any", np.any), ("all", np.all))),
    OpCase("count_nonzero", sg.count_nonzero, ref_reduce(np.count_nonzero), mixed, "counted_p", order=0, errors=(
        (lambda: sg.count_nonzero(sg.ones(2), 1), sg.ShapeError, "count_nonzero: dim 1 is outside"),)),
    *(OpCase(f"{name}[sparse]", getattr(sg, name), ref_reduce(ref), sparse_mixed, None, FORMATS, order=0)
      for name, ref in (("any", np.any), ("all", np.all), ("count_nonzero", np.count_nonzero))),
    OpCase("cumsum", sg.cumsum, lambda x, dim: np.cumsum(x, dim), along, "cumsum_p", bilinear=True, errors=(
        (lambda: sg.cumsum(sg.ones(2), 1), sg.ShapeError, "cumsum: dim 1 is outside"),)),
    OpCase("cumsum[reverse]", lambda x: scan.cumsum_p(x, axis=1, reverse=True), lambda x: np.cumsum(x[:, ::-1], 1)[:, ::-1],
           lambda d: iter([((d.dense(3, 4),), {})]), bilinear=True),
    OpCase("cumprod", sg.cumprod, lambda x, dim: np.cumprod(x, dim), zeros_too),
    OpCase("argsort", sg.argsort, lambda x, dim: np.argsort(x, dim, kind="stable"), along, "argsort_p", order=0, errors=tuple(
        (lambda name=name, args=args: getattr(sg, name)(eye(), *args), TypeError, rf"{name}: needs a dense tensor, got a SparseTensor of shape \(2, 2\)")
        for name, *args in (("sort",), ("argsort",), ("topk", 1), ("kthvalue", 1), ("median",), ("quantile", 0.5), ("unique",), ("cummax", 0), ("cummin", 0),
                            ("logcumsumexp", 0), ("corrcoef",), ("diagflat",), ("index_put", (0,), 1.0), ("masked_fill", sg.ones(2, 2) > 0, 1.0)))),
    OpCase("argsort[descending]", lambda x: sg.argsort(x, 0, descending=True), lambda x: np.argsort(-x, 0, kind="stable"),
           lambda d: iter([((np.round(d.dense(7, 2)),), {})]), order=0),
    OpCase("sort", lambda x, dim: sg.sort(x, dim).values, lambda x, dim: np.sort(x, dim), along),
    OpCase("sort[descending]", lambda x: sg.sort(x, 0, True).values, lambda x: -np.sort(-x, 0), lambda d: iter([((d.dense(5, 3),), {})])),
    OpCase("topk", lambda x: sg.topk(x, 2, 1).values, lambda x: -np.sort(-x, 1)[:, :2], lambda d: iter([((d.dense(3, 4),), {})]), errors=(
        (lambda: sg.topk(sg.ones(3), 4), sg.ShapeError, r"topk: k must lie in \[0, 3\], got 4"),)),
    OpCase("topk[smallest]", lambda x: sg.topk(x, 3, 0, largest=False).values, lambda x: np.sort(x, 0)[:3], lambda d: iter([((d.dense(4, 2),), {})])),
    *(OpCase(f"topk[few,{largest}]", lambda x, largest=largest: sg.topk(x, 2, 0, largest).values,
             lambda x, largest=largest: -np.sort(-x, 0)[:2] if largest else np.sort(x, 0)[:2], lambda d: iter([((d.dense(30, 2),), {})]))
      for largest in (True, False)),
    OpCase("argtopk", lambda x: sg.topk(x, 2).indices, lambda x: np.argsort(-x, -1, kind="stable")[..., :2],
           lambda d: iter([((d.dense(3, 40),), {}), ((d.dense(3),), {}), ((d.dense(0, 20),), {})]), "argtopk_p", order=0),
    OpCase("kthvalue", lambda x: sg.kthvalue(x, 2, 1, True).values, lambda x: np.sort(x, 1)[:, 1:2], lambda d: iter([((d.dense(3, 4),), {})]), errors=(
        (lambda: sg.kthvalue(sg.ones(3), 0), sg.ShapeError, r"kthvalue: k must lie in \[1, 3\], got 0"),)),
    OpCase("argkth", lambda x: sg.kthvalue(x, 3, 1).indices, lambda x: np.argsort(x, 1, kind="stable")[:, 2],
           lambda d: iter([((d.dense(3, 4),), {}), ((np.round(d.dense(20, 9)),), {}), ((np.array([[1, np.nan, 0, np.nan], [np.nan, 2, 2, 2], [np.nan] * 4, [np.inf, -np.inf, 0.0, -0.0]]),), {})]), "argkth_p", order=0),
    OpCase("median[nan]", lambda x: sg.median(x, 1).indices, lambda x: np.array([3, 2, 3]),
           lambda d: iter([((np.array([[1, np.nan, 0, np.nan], [5.0, 2, 2, 2], [np.nan] * 4]),), {})]), order=0),
    OpCase("median", lambda x, dim: sg.median(x, dim).values, lower_median, lines, errors=(
        (lambda: sg.median(sg.ones(0, 2), 0), sg.ShapeError, "median: no median over an empty dimension"),)),
    OpCase("median[all]", lambda x: sg.median(x), lambda x: lower_median(x.reshape(-1), 0), lambda d: iter([((d.dense(3, 4),), {})])),
    OpCase("unique", lambda x: sg.unique(sg.round(x)), lambda x: np.unique(np.round(x)), unary, order=0),
    OpCase("unique[inverse]", lambda x: sg.unique(sg.round(x), return_inverse=True)[1],
           lambda x: np.unique(np.round(x), return_inverse=True)[1].reshape(x.shape), lambda d: iter([((d.dense(3, 4),), {})]), order=0),
    OpCase("unique[dim]", lambda x: sg.unique(sg.round(x), dim=1), lambda x: np.unique(np.round(x), axis=1),
           lambda d: iter([((d.dense(1, 9),), {})]), order=0),
]  # fmt: skip
