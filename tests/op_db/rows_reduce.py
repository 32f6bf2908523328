# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of reductions, dense and sparse, beyond the sum."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, OpCase, Sparse
from op_db.samples import *  # noqa: F403
from sparsegrad.ops import reduce as R


def ref_logsumexp(x: np.ndarray, dim: Any, keepdim: bool = False) -> np.ndarray:
    return np.log(np.exp(x).sum(axis=dim, keepdims=keepdim))


def ref_norm(p: float) -> Any:
    def ref(x: np.ndarray, dim: Any, keepdim: bool = False) -> np.ndarray:
        if p == np.inf:
            return np.abs(x).max(axis=dim, keepdims=keepdim, initial=0)
        if p == -np.inf:
            return np.abs(x).min(axis=dim, keepdims=keepdim)
        if p == 0:
            return (x != 0).sum(axis=dim, keepdims=keepdim, dtype=float)
        return (np.abs(x) ** p).sum(axis=dim, keepdims=keepdim) ** (1 / p)

    return ref


def ref_stored(fn: Any, fill: float) -> Any:
    """A reduction of stored entries; 0 where there are none."""

    def ref(a: Sparse, dim: Any, keepdim: bool = False) -> np.ndarray:
        x, mask = a.dense(), a.mask()
        mask = mask.reshape(*mask.shape, *(1,) * (x.ndim - mask.ndim)) & np.ones(x.shape, bool)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = fn(np.where(mask, x, fill), axis=dim, keepdims=keepdim)
        return np.where(mask.any(axis=dim, keepdims=keepdim), out, 0)

    return ref


def stored_mean(x: np.ndarray, axis: Any, keepdims: bool) -> np.ndarray:
    return np.nanmean(x, axis=axis, keepdims=keepdims)


def nonzero_cells(d: Draw) -> Any:
    for args, kw in sparse_reductions(d):
        a, dim = args[0], kw["dim"]
        sizes = (*a.shape, *a.values.shape[1:])
        axes = range(len(sizes)) if dim is None else np.atleast_1d(dim).astype(int)
        if all(sizes[i] for i in axes):
            yield args, kw


def smooth(samples: Any) -> Any:
    """Without stored zeros: they tie with absent ones, which is a kink."""

    def away(d: Draw) -> Any:
        for (a,), kw in samples(d):
            ramp = 0.7 + 0.01 * np.arange(a.values.size).reshape(a.values.shape)
            values = np.where(a.values == 0, ramp, a.values)
            yield (Sparse(a.coords, values, a.shape),), kw

    return away


def sparse_dims(d: Draw) -> Any:
    for a in d.every_kind():
        for dim in (None, 0, 1, (0, 1)):
            yield (a,), {"dim": dim}
    for a in d.every_kind(heads=(2,)):
        yield (a,), {"dim": 1}


def stack3(d: Draw) -> Any:
    """Three sparse dimensions, sorted and not, with duplicates."""
    coords = d.rng.integers(0, 3, (3, 12))
    yield (Sparse(coords, d.away(12), (3, 3, 4)),), {"dim": 1}
    yield (Sparse(coords, d.away(12, 2), (3, 3, 4)),), {"dim": (0, 3)}
    yield (Sparse(coords, d.away(12), (3, 3, 4)),), {"dim": 2, "keepdim": True}


def softmax3(d: Draw) -> Any:
    coords = np.unique(d.rng.integers(0, 3, (3, 14)), axis=1)
    coords = coords[:, d.rng.permutation(coords.shape[1])]
    for dim in (0, 1, 2):
        yield (Sparse(coords, d.away(coords.shape[1]), (3, 3, 4)),), {"dim": dim}
    yield (Sparse(coords, d.away(coords.shape[1], 2), (3, 3, 4)),), {"dim": -1}


def ref_softmax3(a: Sparse, dim: int) -> np.ndarray:
    mask = a.mask().reshape(*a.shape, *(1,) * (a.values.ndim - 1))
    return ref_masked_softmax(a.dense(), mask & np.ones(a.dense().shape, bool), dim)


def shifted(a: Sparse, dim: int) -> np.ndarray:
    p = ref_softmax3(a, dim)
    return np.log(np.where(p > 0, p, 1))


HUGE_ROWS = {"huge": lambda d: ((d.huge(),), {"dim": 1})}

ROWS = [
    OpCase("amax_grad", lambda dy, x: R.amax_grad_p(dy, x=x, top=x.max(1, keepdims=True), axis=(1,)), lambda dy, x: dy * (x == x.max(1, keepdims=True)) / np.array([[2], [1]]),
           lambda d: iter([((d.dense(2, 1),), {"x": np.array([[3.0, 1.0, 3.0], [0.0, 5.0, 1.0]])})]), "amax_grad_p", bilinear=True),
    OpCase("amin", sg.amin, ref_reduce(np.min), nonempty_reductions, "amin_p", errors=(
        (lambda: sg.amin(sg.ones(0, 2), 0), sg.ShapeError, "amin: no minimum over an empty"),)),
    OpCase("prod", sg.prod, ref_reduce(np.prod), lambda d: (
        ((np.where(d.rng.random(x.shape) < 0.2, 0, x),), kw) for (x,), kw in reductions(d))),
    *(OpCase(f"norm[{p}]", lambda x, dim, keepdim, p=p: sg.norm(x, p, dim, keepdim), ref_norm(p),
             nonempty_reductions, errors=(
        (lambda: sg.norm(sg.ones(2), "nuc"), ValueError, "norm: p must be a number or 'fro', got 'nuc'"),)) for p in (-np.inf, -1, 0, 1, 2, 3, np.inf)),
    OpCase("logsumexp", sg.logsumexp, ref_logsumexp, nonempty_reductions, "logsumexp_p"),
    OpCase("sum[sparse,3-D]", sg.sum, ref_reduce(np.sum), stack3, None, ("coo",), bilinear=True),
    OpCase("amax[sparse,3-D]", sg.amax, ref_reduce(np.max), stack3, "segment_amax_p", ("coo",)),
    OpCase("amax[sparse]", sg.amax, ref_reduce(np.max), smooth(nonzero_cells), None, FORMATS, **HUGE_ROWS),
    OpCase("amin[sparse]", sg.amin, ref_reduce(np.min), smooth(nonzero_cells), "segment_amin_p", FORMATS, **HUGE_ROWS),
    OpCase("prod[sparse]", sg.prod, ref_reduce(np.prod), sparse_reductions, None, FORMATS, **HUGE_ROWS),
    *(OpCase(f"norm[sparse,{p}]", lambda x, dim, keepdim=False, p=p: sg.norm(x, p, dim, keepdim),
             ref_norm(p), smooth(sparse_reductions), None, FORMATS, errors=(
        (lambda: sg.norm(eye(), -1), ValueError, "norm: p must be positive"),), **HUGE_ROWS) for p in (1, 2, 3, np.inf)),
    OpCase("mean[stored]", lambda x, **kw: sg.mean(x, include_zeros=False, **kw), ref_stored(stored_mean, np.nan),
           sparse_reductions, None, FORMATS, raw=True, **HUGE_ROWS),
    OpCase("amax[stored]", lambda x, **kw: sg.amax(x, include_zeros=False, **kw),
           ref_stored(lambda x, axis, keepdims: np.max(x, axis=axis, keepdims=keepdims, initial=-np.inf), -np.inf),
           smooth(sparse_reductions), None, FORMATS, raw=True, **HUGE_ROWS),
    OpCase("prod[stored]", lambda x, **kw: sg.prod(x, include_zeros=False, **kw), ref_stored(np.prod, 1),
           sparse_reductions, None, FORMATS, raw=True, **HUGE_ROWS),
    OpCase("logsumexp[hybrid]", sg.logsumexp, ref_stored(lambda x, axis, keepdims: ref_logsumexp(x, axis, keepdims), -np.inf),
           lambda d: (((a,), {"dim": dim}) for a in d.every_kind(heads=(3,)) for dim in (2, (1, 2), (0, 1, 2), 0)), None, FORMATS, raw=True),
    OpCase("logsumexp[sparse]", sg.logsumexp,
           ref_stored(lambda x, axis, keepdims: ref_logsumexp(x, axis, keepdims), -np.inf),
           sparse_dims, "segment_logsumexp_p", FORMATS, raw=True, **HUGE_ROWS),
    *(OpCase(f"log_softmax[sparse,{dim}]", lambda a, dim=dim: sg.log_softmax(a, dim),
             lambda a, dim=dim: shifted(a, dim), one_sparse, "segment_log_softmax_p", FORMATS, raw=True,
             huge=lambda d: ((d.huge(),), {})) for dim in (0, 1)),
    OpCase("softmax[sparse,3-D]", sg.softmax, ref_softmax3, softmax3, None, ("coo",), raw=True),
    OpCase("log_softmax[sparse,3-D]", sg.log_softmax, shifted, softmax3, None, ("coo",), raw=True),
    OpCase("max[sparse]", lambda a: sg.max(a), np.max, smooth(lambda d: (
        ((a,), {}) for a in d.every_kind() if all(a.shape))), None, FORMATS, errors=(
        (lambda: sg.max(eye(), 1), TypeError, "max: a sparse tensor has no positions"),)),
]  # fmt: skip
