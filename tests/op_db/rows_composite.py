# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of functions that are a few others in a row."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase
from op_db.samples import *  # noqa: F403

HOLES = np.array([[1.0, np.nan, 2.0], [np.nan, np.nan, np.nan], [0.5, -1.0, 3.0]])
INFINITE = np.array([1.0, np.nan, np.inf, -np.inf, -2.0])


def of(*sizes: tuple[int, ...]) -> Any:
    return lambda d: iter([(tuple(d.dense(*s) for s in sizes), {})])


def fixed(*arrays: np.ndarray) -> Any:
    return lambda d: iter([(arrays, {})])


def ref_cdist(a: np.ndarray, b: np.ndarray, p: float = 2) -> np.ndarray:
    return (np.abs(a[..., :, None, :] - b[..., None, :, :]) ** p).sum(-1) ** (1 / p)


def ref_cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def ref_embed(x: np.ndarray, offset: int) -> np.ndarray:
    return np.stack([np.diag(row, offset) for row in x])


ROWS = [
    OpCase("addcmul", lambda x, a, b: sg.addcmul(x, a, b, value=3), lambda x, a, b: x + 3 * a * b, of((2, 3), (3,), (2, 1))),
    OpCase("addcdiv", lambda x, a, b: sg.addcdiv(x, a, b * b + 1, value=3), lambda x, a, b: x + 3 * a / (b * b + 1), of((2, 3), (3,), (2, 1))),
    OpCase("addmv", lambda x, a, v: sg.addmv(x, a, v, beta=2, alpha=3), lambda x, a, v: 2 * x + 3 * a @ v, of((2,), (2, 3), (3,))),
    OpCase("logaddexp", sg.logaddexp, np.logaddexp, of((3, 4), (4,)), errors=(
        (lambda: sg.logaddexp(eye(), sg.ones(2)), TypeError, "logaddexp: needs a dense tensor"),)),
    OpCase("nan_to_num", lambda x: sg.nan_to_num(x, 7.0, 8.0, -9.0) ** 2, lambda x: np.nan_to_num(x, nan=7.0, posinf=8.0, neginf=-9.0) ** 2, fixed(INFINITE), order=0),
    OpCase("nan_to_num[finite]", lambda x: sg.nan_to_num(x) ** 2, lambda x: x**2, of((3, 4)), "nan_to_num_p"),
    OpCase("nan_to_num[sparse]", lambda a: sg.nan_to_num(sg.sqrt(a), nan=0.25), lambda a: np.where(a < 0, 0.25, np.sqrt(np.abs(a))), one_sparse, None, FORMATS, order=0),
    OpCase("nansum[sparse]", lambda a, **kw: sg.nansum(sg.sqrt(a), **kw), lambda a, dim, keepdim=False: np.sqrt(np.maximum(a, 0)).sum(axis=dim, keepdims=keepdim), sparse_reductions, None, FORMATS, order=0),
    OpCase("nansum[sparse,finite]", sg.nansum, ref_reduce(np.sum), sparse_reductions, None, FORMATS, bilinear=True, huge=lambda d: ((d.huge(),), {"dim": 1})),
    OpCase("nansum", lambda x: sg.nansum(x, 1), lambda x: np.nansum(x, 1), fixed(HOLES), order=0),
    OpCase("nansum[finite]", lambda x: sg.nansum(x * x, (0, 1), True), lambda x: (x * x).sum((0, 1), keepdims=True), of((3, 4))),
    OpCase("nanmean", lambda x: sg.nanmean(x, 0), lambda x: np.nanmean(x, 0), fixed(HOLES), order=0),
    OpCase("nanmean[finite]", lambda x: sg.nanmean(x * x), lambda x: np.asarray((x * x).mean()), of((3, 4))),
    OpCase("aminmax", lambda x: sg.aminmax(x, dim=1)[0] * sg.aminmax(x, dim=1)[1], lambda x: x.min(1) * x.max(1), of((3, 4))),
    OpCase("diff", lambda x: sg.diff(x, 2, 0), lambda x: np.diff(x, 2, 0), of((4, 3)), bilinear=True),
    OpCase("cov", sg.cov, np.cov, lambda d: iter([((d.dense(3, 5),), {}), ((d.dense(5),), {})]), errors=(
        (lambda: sg.cov(sg.ones(2, 2, 2)), sg.ShapeError, r"cov: expected \(m, n\) or \(n,\), got shape \(2, 2, 2\)"),)),
    OpCase("corrcoef", sg.corrcoef, np.corrcoef, of((3, 5))),
    OpCase("trapezoid", lambda y: sg.trapezoid(y, dx=0.5, dim=0), lambda y: np.trapezoid(y, dx=0.5, axis=0), lambda d: iter([((d.dense(4, 3),), {}), ((d.dense(1, 3),), {})]), bilinear=True),
    OpCase("trapezoid[x]", lambda y, x: sg.trapezoid(y, x) * sg.trapezoid(y, sg.expand(x, (3, 4))), lambda y, x: np.trapezoid(y, x) ** 2, of((3, 4), (4,))),
    OpCase("diff[too few]", lambda x: sg.diff(x, 2), lambda x: np.diff(x, 2), of((3, 1)), bilinear=True),
    OpCase("cosine_similarity", lambda a, b: sg.cosine_similarity(a, b, -1), ref_cosine, of((2, 3, 4), (3, 4)), errors=(
        (lambda: sg.cosine_similarity(sg.ones(2), sg.ones(2), 1), sg.ShapeError, "cosine_similarity: dim 1"),
        (lambda: sg.cosine_similarity(eye(), eye()), TypeError, "cosine_similarity: needs a dense tensor"))),
    OpCase("normalize", lambda x: sg.nn.functional.normalize(x, 3.0, 0), lambda x: x / (np.abs(x) ** 3).sum(0) ** (1 / 3), of((3, 4))),
    OpCase("cdist", sg.cdist, ref_cdist, of((2, 3, 4), (5, 4)), errors=(
        (lambda: sg.cdist(sg.ones(2, 3), sg.ones(2, 4)), sg.ShapeError, r"cdist: expected .* got \(2, 3\) and \(2, 4\)"),)),
    OpCase("cdist[1]", lambda a, b: sg.cdist(a, b, 1), lambda a, b: ref_cdist(a, b, 1), of((3, 2), (4, 2))),
    OpCase("cdist[many]", sg.cdist, ref_cdist, of((30, 3), (2, 3)), tol={"float32": 1e-3}),  # a difference of squares
    *(OpCase(op, lambda x, op=op: getattr(sg, op)(x), lambda x, op=op: getattr(np, op)(x), lambda d: iter([((d.dense(*s),), {}) for s in ((), (3,), (2, 3))]), bilinear=True)
      for op in ("atleast_1d", "atleast_2d")),
    *(OpCase(op, lambda a, b, op=op: getattr(sg, op)([a, b]), lambda a, b, op=op: getattr(np, op)([a, b]), lambda d: iter([((d.dense(3), d.dense(3)), {}), ((d.dense(2, 2), d.dense(2, 2)), {})]), bilinear=True)
      for op in ("hstack", "vstack")),
    *(OpCase(f"{op}[sparse]", lambda a, b, op=op: getattr(sg, op)([a, b]), lambda a, b, op=op: getattr(np, op)([a, b]),
             lambda d: (((a, b), {}) for a, b in zip(d.every_kind(), Draw(7).every_kind(), strict=True)), None, FORMATS, bilinear=True, huge=lambda d: ((d.huge(), d.huge()), {}))
      for op in ("hstack", "vstack")),
    OpCase("broadcast_tensors", lambda a, b: sg.stack(sg.broadcast_tensors(a, b)), lambda a, b: np.stack(np.broadcast_arrays(a, b)), of((3, 1), (2,)), bilinear=True, errors=(
        (lambda: sg.broadcast_tensors(sg.ones(2), sg.ones(3)), sg.ShapeError, r"broadcast_tensors: shapes do not broadcast; got \[\(2,\), \(3,\)\]"),)),
    *(OpCase(f"diag_embed[{k}]", lambda x, k=k: sg.diag_embed(x, k), lambda x, k=k: ref_embed(x, k), of((2, 3)), bilinear=True) for k in (0, 1, -2)),
    OpCase("diag_embed[dims]", lambda x: sg.diag_embed(x, 0, 0, 2), lambda x: np.moveaxis(ref_embed(x, 0), 0, 1), of((2, 3)), bilinear=True, errors=(
        (lambda: sg.diag_embed(sg.ones(())), sg.ShapeError, "diag_embed: expected at least one dimension"),)),
    OpCase("searchsorted", lambda x: sg.searchsorted(sg.sort(x).values, x, right=True), lambda x: np.searchsorted(np.sort(x), x, "right"), of((9,)), order=0, errors=(
        (lambda: sg.searchsorted(sg.ones(2, 2), 1.0), sg.ShapeError, r"searchsorted: expected a sequence \(n,\)"),)),
    OpCase("bucketize", lambda x: sg.bucketize(x, sg.Tensor([-1.0, 0.0, 1.0], device=x.device)), lambda x: np.searchsorted([-1, 0, 1], x), of((3, 4)), order=0),
    OpCase("bincount", lambda x: sg.bincount(sg.cast(sg.floor(x + 2), "int64"), minlength=6), lambda x: np.bincount(np.floor(x + 2).astype(int), minlength=6), of((9,)), order=0, errors=(
        (lambda: sg.bincount(sg.tensor([-1])), sg.ShapeError, "bincount: expected non-negative integers"),)),
    OpCase("bincount[weights]", lambda x: sg.bincount(sg.cast(sg.floor(x + 2), "int64"), x), lambda x: np.bincount(np.floor(x + 2).astype(int), x), of((9,)), order=0),
    *(OpCase(op, lambda x, op=op: getattr(sg, op)(x * 1j + 2.0), lambda x, op=op: getattr(np, op)(x * 1j + 2.0), of((3, 4)), order=0) for op in ("imag", "angle")),
    OpCase("real", lambda x: sg.real(sg.conj(x * 1j) * 1j), lambda x: x, of((3, 4)), order=0),
    OpCase("angle[sparse]", sg.angle, np.angle, one_sparse, None, FORMATS, order=0),
    OpCase("conj[sparse]", lambda a: sg.conj(sg.real(a)), np.conj, one_sparse, None, FORMATS, bilinear=True),
    OpCase("imag[sparse]", lambda a: sg.imag(a * 2j), lambda x: 2 * x, one_sparse, None, FORMATS, order=0),
    OpCase("conj[real]", lambda x: sg.conj(sg.real(x)), lambda x: x, of((3, 4)), bilinear=True, errors=(
        (lambda: sg.imag(sg.ones(2)), sg.DtypeError, "imag: expected complex numbers, got float32"),)),
    OpCase("isin", lambda x: sg.isin(sg.floor(x), [0.0, 1.0], invert=True), lambda x: np.isin(np.floor(x), [0, 1], invert=True), of((3, 4)), order=0),
]  # fmt: skip
