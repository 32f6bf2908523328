# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of functions of one or two numbers, quantiles, further arrangements."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
from scipy import special

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase, Sparse
from op_db.samples import *  # noqa: F403
from sparsegrad.ops.special import erfinv_grad_p

HOLES = np.array([[1.0, np.nan, 2.0, 0.7], [np.nan, np.nan, np.nan, np.nan], [0.5, -1.0, 3.0, 9.0]])
WILD = np.array([1.0, np.nan, 0.0, -2.0])
HALF = np.array([True, False, True, False])
LEVELS = [0.0, 0.3, 0.5, 1.0]


def of(*sizes: tuple[int, ...]) -> Any:
    return lambda d: iter([(tuple(d.dense(*s) for s in sizes), {})])


def fixed(*arrays: np.ndarray) -> Any:
    return lambda d: iter([(arrays, {})])


def apart(d: Draw) -> Any:
    """Away from whole numbers, where frac jumps and quantiles tie."""
    for s in ((3, 4), (5,), ()):
        yield (
            (
                d.rng.permutation(np.arange(np.prod(s, dtype=int))).reshape(s)
                + d.dense(*s, low=0.1, high=0.4),
            ),
            {},
        )


def ref_masked_scatter(x: Any, source: Any) -> Any:
    out = x.copy()
    out[:, HALF] = source[:4].reshape(2, 2)
    return out


def windows(x: Any, size: int, step: int) -> Any:
    return np.lib.stride_tricks.sliding_window_view(x, size, 1)[:, ::step]


def both(x: Any, dim: Any) -> Any:
    """Along `dim` with q as a number and as a vector, kept and not."""
    one, many = sg.quantile(x, 0.3, dim), sg.quantile(x, LEVELS, dim, True)
    return sg.cat([sg.reshape(one, (-1,)), sg.reshape(many, (-1,))])


def ref_both(x: Any, dim: Any) -> Any:
    return np.concatenate(
        [np.quantile(x, 0.3, dim).reshape(-1), np.quantile(x, LEVELS, dim).reshape(-1)]
    )


def ref_scan(fn: Any) -> Any:
    return lambda x, dim: fn.accumulate(x, dim) if x.ndim else x


def ref_logcumsumexp(x: Any, dim: int) -> Any:
    return np.log(np.cumsum(np.exp(x), dim)) if x.ndim else x


ROWS = [
    # ---- numbers -------------------------------------------------------------------------------
    OpCase("exp2", sg.exp2, np.exp2, unary),
    OpCase("frac", sg.frac, lambda x: x - np.trunc(x), apart),
    OpCase("frac[sparse]", sg.frac, lambda x: x - np.trunc(x), one_sparse, formats=FORMATS, order=0),
    OpCase("deg2rad", lambda x: sg.rad2deg(sg.deg2rad(x) * 2), lambda x: 2 * x, unary, bilinear=True),
    OpCase("sinc", sg.sinc, np.sinc, lambda d: iter([((d.dense(3, 4),), {}), ((d.dense(4) * 1e-6,), {}), ((np.zeros(2),), {})])),
    OpCase("logit", sg.logit, lambda x: np.log(x / (1 - x)), lambda d: iter([((d.dense(3, 4, low=0.1, high=0.9),), {})])),
    OpCase("logit[eps]", lambda x: sg.logit(x, 0.1), lambda x: (lambda c: np.log(c / (1 - c)))(np.clip(x, 0.1, 0.9)), fixed(np.array([-0.5, 0.05, 0.3, 0.95, 2.0]))),
    OpCase("erfc", sg.erfc, special.erfc, unary, "erfc_p"),
    OpCase("erfinv_grad", erfinv_grad_p, lambda dy, y: dy * np.sqrt(np.pi) / 2 * np.exp(y * y), lambda d: iter([((d.dense(3, 4), d.dense(3, 4, low=-1, high=1)), {})]), "erfinv_grad_p"),
    OpCase("erfinv[sparse]", sg.erfinv, special.erfinv,
           lambda d: (((Sparse(a.coords, a.values / 6, a.shape),), {}) for a in d.every_kind()), None, FORMATS),
    OpCase("erfinv", sg.erfinv, special.erfinv, lambda d: iter([((d.dense(3, 4, low=-0.9, high=0.9),), {})]), "erfinv_p"),
    OpCase("lgamma", sg.lgamma, special.gammaln, positive, "lgamma_p"),
    OpCase("digamma", sg.digamma, special.digamma, positive),
    OpCase("polygamma", lambda x: sg.polygamma(1, x) / 9, lambda x: special.polygamma(1, x) / 9, lambda d: iter([((d.dense(3, 4, low=1, high=3),), {})]), "polygamma_p", errors=(
        (lambda: sg.polygamma(-1, sg.ones(2)), ValueError, "polygamma: n must be >= 0, got -1"),
        (lambda: sg.lgamma(eye()), TypeError, "lgamma: needs a dense tensor"))),
    OpCase("hypot", sg.hypot, np.hypot, of((3, 4), (4,)), "hypot_p", errors=(
        (lambda: sg.hypot(eye(), 1.0), TypeError, "hypot: needs a dense tensor, got a SparseTensor"),)),
    OpCase("logaddexp2", sg.logaddexp2, np.logaddexp2, of((3, 4), (4,))),
    OpCase("xlogy", lambda x, y: sg.xlogy(x, y * y), lambda x, y: x * np.log(y * y), of((3, 4), (4,))),
    OpCase("xlogy[0]", sg.xlogy, lambda x, y: np.array([0.0, np.nan, 0.0, 2 * np.log(3)]), fixed(np.array([0.0, 0, 0, 2]), np.array([0, np.nan, np.inf, 3])), order=0),
    OpCase("heaviside", lambda x, y: sg.heaviside(sg.round(x), y), lambda x, y: np.heaviside(np.round(x), y), of((3, 4), (4,)), order=0),
    OpCase("copysign", lambda a, b: sg.copysign(a, b.detach()), np.copysign, lambda d: iter([((d.away(3, 4), d.away(4)), {})]), order=0),
    OpCase("copysign[number]", lambda a: sg.copysign(a, -2.0), lambda a: -np.abs(a), unary_away),
    *(OpCase(f"{name}[nan]", lambda x, name=name: getattr(sg, name)(x, 0.5), lambda x, name=name: getattr(np, name)(x, 0.5), fixed(WILD), order=0) for name in ("fmax", "fmin")),
    *(OpCase(name, getattr(sg, name), getattr(np, name), of((3, 4), (4,))) for name in ("fmax", "fmin")),
    OpCase("float_power", lambda x: sg.cast(sg.float_power(x, 3), x.dtype), lambda x: x**3, unary),
    # ---- scans, quantiles ----------------------------------------------------------------------
    OpCase("argcummax", lambda x: sg.cummax(x, 0).indices, lambda x: np.array([[0, 0], [1, 0], [1, 2], [3, 2]]), fixed(np.array([[1.0, 5], [2, 3], [0, 5], [2, 1]])), "argcummax_p", order=0),
    *(OpCase(name, lambda x, dim, name=name: getattr(sg, name)(x, dim).values, ref_scan(fn), along, errors=(
        (lambda name=name: getattr(sg, name)(sg.ones(2), 1), sg.ShapeError, f"{name}: dim 1 is outside"),))
      for name, fn in (("cummax", np.maximum), ("cummin", np.minimum))),
    OpCase("logcumsumexp", sg.logcumsumexp, ref_logcumsumexp, along),
    *(OpCase(f"quantile[{dim}]", lambda x, dim=dim: both(x, dim), lambda x, dim=dim: ref_both(x, dim), of((3, 4))) for dim in (None, 0, -1)),
    *(OpCase(f"quantile[{how}]", lambda x, how=how: sg.quantile(x, LEVELS, 0, interpolation=how), lambda x, how=how: np.quantile(x, LEVELS, 0, method=how), of((6, 2)))
      for how in ("lower", "higher", "nearest", "midpoint")),
    OpCase("nanquantile", lambda x: sg.nanquantile(x, LEVELS, 1), lambda x: np.nanquantile(x, LEVELS, 1), fixed(HOLES[[0, 2]]), order=0, errors=(
        (lambda: sg.quantile(sg.ones(2), 1.5), ValueError, "quantile: q must be a number or a vector of numbers in"),
        (lambda: sg.quantile(sg.ones(2), 0.5, interpolation="best"), ValueError, "quantile: interpolation must be one of linear, .* got 'best'"),
        (lambda: sg.quantile(sg.ones(0), 0.5), sg.ShapeError, "quantile: no quantile over an empty dimension"))),
    OpCase("quantile[nan]", lambda x: sg.quantile(x, 0.5, 1), lambda x: np.array([np.nan, np.nan, 1.75]), fixed(HOLES), order=0),
    OpCase("nanquantile[none]", lambda x: sg.nanquantile(x, 0.5, 1), lambda x: np.array([1.0, np.nan, 1.75]), fixed(HOLES), order=0),
    OpCase("nanmedian", lambda x: sg.nanmedian(x, 1).values, lambda x: np.array([1, np.nan, 0.5]), fixed(HOLES), order=0, errors=(
        (lambda: sg.nanmedian(sg.ones(0, 2), 0), sg.ShapeError, "nanmedian: no median over an empty dimension"),)),
    OpCase("nanmedian[all]", sg.nanmedian, lambda x: np.sort(x.reshape(-1))[(x.size - 1) // 2], of((3, 4))),
    OpCase("histc", lambda x: sg.histc(x, 4, -1, 1) + sg.histc(x, 4), lambda x: np.histogram(x, 4, (-1, 1))[0] + np.histogram(x, 4)[0], of((3, 4)), order=0, errors=(
        (lambda: sg.histc(sg.ones(2), 0), ValueError, "histc: needs bins >= 1 and min <= max, got 0"),)),
    # ---- arrangements --------------------------------------------------------------------------
    *(OpCase(f"rot90[{k}]", lambda x, k=k: sg.rot90(x, k, (0, 2)), lambda x, k=k: np.rot90(x, k, (0, 2)), of((2, 3, 4)), bilinear=True) for k in (0, 1, 2, -1)),
    *(OpCase(name, getattr(sg, name), getattr(np, name), of((3, 4)), bilinear=True) for name in ("fliplr", "flipud", "diagflat")),
    OpCase("rot90[errors]", lambda x: sg.rot90(x), np.rot90, of((2, 3)), bilinear=True, errors=(
        (lambda: sg.rot90(sg.ones(2, 2), 1, (0, 0)), sg.ShapeError, "rot90: needs two different dimensions"),
        (lambda: sg.fliplr(sg.ones(2)), sg.ShapeError, r"fliplr: expected at least 2 dimensions, got shape \(2,\)"))),
    *(OpCase(f"{op}[{len(s)}]", lambda a, b, op=op: getattr(sg, op)([a, b]), lambda a, b, op=op: getattr(np, op)([a, b]), of(s, s), bilinear=True)
      for op in ("column_stack", "dstack") for s in ((3,), (2, 3), (2, 1, 3))),
    OpCase("tensor_split", lambda x: sg.cat([2 * p for p in sg.tensor_split(x, 3, 1)] + list(sg.tensor_split(x, [1, -1], 1)), 1),
           lambda x: np.concatenate([2 * x, x], 1), of((2, 7)), bilinear=True, errors=(
        (lambda: sg.tensor_split(sg.ones(3), 0), sg.ShapeError, "tensor_split: needs at least one section, got 0"),
        (lambda: sg.hsplit(sg.ones(3), 2), sg.ShapeError, r"hsplit: 2 parts do not divide dimension 0 of \(3,\)"))),
    *(OpCase(op, lambda x, op=op: getattr(sg, op)(x, 2)[1], lambda x, op=op: getattr(np, op)(x, 2)[1], of((2, 4, 6)), bilinear=True) for op in ("hsplit", "vsplit", "dsplit")),
    OpCase("select", lambda x: sg.select(x, 1, -1), lambda x: x[:, -1], of((2, 3, 4)), bilinear=True),
    OpCase("unfold", lambda x: sg.unfold(x, 1, 3, 2), lambda x: windows(x, 3, 2), of((2, 8)), bilinear=True, errors=(
        (lambda: sg.unfold(sg.ones(3), 0, 4, 1), sg.ShapeError, r"unfold: size must lie in \[0, 3\]"),)),
    OpCase("masked_scatter", lambda x, s: sg.masked_scatter(x, sg.Tensor(HALF, device=x.device), s), ref_masked_scatter, of((2, 4), (5,)), bilinear=True, errors=(
        (lambda: sg.masked_scatter(sg.ones(3), sg.ones(3) > 0, sg.ones(2)), sg.ShapeError, "masked_scatter: the mask chooses 3 elements, source has 2"),
        (lambda: sg.masked_scatter(sg.ones(3), sg.ones(3), sg.ones(3)), TypeError, "masked_scatter: mask must be bool, got float32"))),
    OpCase("cartesian_prod", sg.cartesian_prod, lambda a, b: np.array(list(product(a, b))), of((3,), (2,)), bilinear=True),
    OpCase("combinations", lambda x: sg.combinations(x, 3), lambda x: np.array(list(combinations(x, 3))), of((5,)), bilinear=True, errors=(
        (lambda: sg.combinations(sg.ones(2, 2)), sg.ShapeError, "combinations: expected a vector and r >= 0"),)),
]  # fmt: skip
