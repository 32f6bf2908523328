# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of reductions, dense and sparse, beyond the sum."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase, Sparse
from op_db.samples import *  # noqa: F403
from sparsegrad import backends
from sparsegrad.dtypes import accumulator
from sparsegrad.ops import reduce as R
from sparsegrad.ops.segment_extreme import put_chosen_p, take_chosen_p
from sparsegrad.ops.segment_var import segment_var_grad_p
from sparsegrad.structure.plan import Sums


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


def several(d: Draw) -> Any:
    """Reductions of more than one element, which have a variance."""
    for args, kw in nonzero_cells(d):
        dim = kw["dim"]
        sizes = (*args[0].shape, *args[0].values.shape[1:])
        axes = range(len(sizes)) if dim is None else np.atleast_1d(dim).astype(int)
        if np.prod([sizes[i] for i in axes]) > 1:
            yield args, kw


def ref_ddof(fn: Any, default: int = 1) -> Any:
    return lambda x, dim, keepdim=False, correction=default: fn(
        x, axis=dim, keepdims=keepdim, ddof=correction
    )


def one_dim(d: Draw) -> Any:
    for args, kw in nonzero_cells(d):
        if np.ndim(kw["dim"]) == 0:
            yield args, kw
    for a in d.every_kind(heads=(2,)):
        if all(a.shape):
            for dim in (None, 1, -1):
                yield (a,), {"dim": dim, "keepdim": True}


def given_dim(d: Draw) -> Any:
    return (s for s in one_dim(d) if s[1]["dim"] is not None)


def one_of_3(d: Draw) -> Any:
    for args, kw in stack3(d):
        yield args, {**kw, "dim": 1}
        yield args, {"dim": -1}


def ref_var_grad(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Runs of three entries and one, each with zeros to make six numbers."""
    out = np.zeros_like(x)
    for i, run in enumerate(([0, 2, 3], [1])):
        out[run] = dy[i] * (x[run] - x[run].sum(0) / 6) * 2 / 5
    return out


def var_grad(dy: Any, x: Any) -> Any:
    be = backends.for_array(x.data)
    runs = Sums(be.asarray(np.array([0, 2, 3, 1])), be.asarray(np.array([0, 3, 4])))
    total = be.sum_runs(be.convert(x.data, accumulator(x.dtype)), runs.perm, runs.indptr)
    return segment_var_grad_p(dy, x, total=total, runs=runs, cells=6, free=5)


AT = np.array([[0, 4], [3, 1], [2, 0]])
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
        (lambda: sg.max(sg.coo([[], []], [], (2, 0)), 1), sg.ShapeError, r"max: no position in an empty dimension of shape \(2, 0\)"),)),
    *(OpCase(f"{name}[sparse]", getattr(sg, name), ref_ddof(ref), samples, primitive, FORMATS, huge=lambda d: ((d.huge(),), {"dim": 1}), errors=(
        (lambda name=name: getattr(sg, name)(eye(), ()), sg.DensifyError, f"{name}: of 1 elements with correction 1 every absent cell"),
        (lambda name=name: getattr(sg, name)(eye(), 2), sg.ShapeError, f"{name}: dim 2 is outside"),
    )) for name, ref, samples, primitive in (("var", np.var, several, "segment_var_p"), ("std", np.std, smooth(several), None))),
    *(OpCase(f"{name}[sparse,3-D]", lambda a, name=name, **kw: getattr(sg, name)(a, correction=0, **kw), ref_ddof(ref, 0), stack3, None, ("coo",))
      for name, ref in (("var", np.var), ("std", np.std))),
    OpCase("segment_var_grad", var_grad, ref_var_grad, lambda d: iter([((d.dense(2, 3), d.dense(4, 3)), {})]), "segment_var_grad_p", bilinear=True),
    *(OpCase(f"{name}[sparse{more}]", getattr(sg, name), ref_reduce(getattr(np, name)), samples, None, formats, order=0, errors=(
        (lambda name=name: getattr(sg, name)(sg.coo([[], []], [], (0, 3))), sg.ShapeError, f"{name}: no position in an empty dimension"),
        (lambda name=name: getattr(sg, name)(sg.coo([[0], [0]], [1.0], (2**40, 2**40))), sg.ShapeError, f"{name}: positions in shape .* do not fit 64 bits; give a dim"),
    )) for name in ("argmax", "argmin") for more, samples, formats in (("", one_dim, FORMATS), (",3-D", one_of_3, ("coo",)))),
    *(OpCase(f"{name}[sparse,dim{more}]", lambda a, dim, name=name, **kw: getattr(sg, name)(a, dim, **kw).values, ref_reduce(ref), smooth(samples), "segment_first_p", formats,
             huge=None if more else lambda d: ((d.huge(),), {"dim": 1}))
      for name, ref in (("max", np.max), ("min", np.min)) for more, samples, formats in (("", given_dim, FORMATS), (",3-D", one_of_3, ("coo",)))),
    OpCase("put_chosen", lambda x: put_chosen_p(x, at=AT, n=5), lambda x: ref_put(x, (AT, [[0, 1]]), (5, 2)), lambda d: iter([((d.dense(3, 2),), {})]), "put_chosen_p", bilinear=True),
    OpCase("take_chosen", lambda x: take_chosen_p(x, at=AT), lambda x: np.take_along_axis(x, AT, 0), lambda d: iter([((d.dense(5, 2),), {})]), "take_chosen_p", bilinear=True),
]  # fmt: skip
