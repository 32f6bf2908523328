# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of gather, scatter and their kin."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, OpCase
from op_db.samples import *  # noqa: F403
from sparsegrad.ops import scattering as S

I1 = np.array([[0, 2], [1, 1], [2, 0]])  # along dim 0 of (3, 4): smaller along dim 1
I2 = np.array([[3, 0, 0], [1, 1, 2]])  # along dim 1 of (3, 4): smaller along dim 0
DOUBLE = np.array([2, 0, 2])
MASK = np.array([True, False, True, True])


def of(*sizes: tuple[int, ...]) -> Any:
    return lambda d: iter([(tuple(d.dense(*s) for s in sizes), {})])


def ref_gather(x: np.ndarray, axis: int, index: np.ndarray) -> np.ndarray:
    part = x[tuple(slice(None) if d == axis else slice(n) for d, n in enumerate(index.shape))]
    return np.take_along_axis(part, index, axis)


def ref_scatter(
    x: np.ndarray, axis: int, index: np.ndarray, src: np.ndarray, add: bool = False
) -> np.ndarray:
    out = x.copy()
    for at in np.ndindex(index.shape):
        place = (*at[:axis], index[at], *at[axis + 1 :])
        out[place] = out[place] * add + src[at]
    return out


def slices(x: Any, axis: int) -> np.ndarray:
    """Ids along an axis, repeated along all others without copies."""
    ids = np.array([1, 4, 1, 0]).reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])
    return np.broadcast_to(ids, [4 if d == axis % x.ndim else n for d, n in enumerate(x.shape)])


def ref_reduce_at(
    x: np.ndarray, axis: int, index: np.ndarray, src: np.ndarray, fn: Any, own: bool
) -> np.ndarray:
    runs: dict[Any, list[float]] = {}
    for at in np.ndindex(index.shape):
        place = (*at[:axis], index[at], *at[axis + 1 :])
        runs.setdefault(place, [x[place]] if own else []).append(src[at])
    out = x.copy()
    for place, run in runs.items():
        out[place] = fn(run)
    return out


def ref_index(x: np.ndarray, axis: int, source: np.ndarray, add: bool) -> np.ndarray:
    out, src = np.moveaxis(x.copy(), axis, 0), np.moveaxis(source, axis, 0)
    for e, i in enumerate(DOUBLE):
        out[i] = out[i] * add + src[e]
    return np.moveaxis(out, 0, axis)


def assigned(x: np.ndarray, at: Any, values: Any) -> np.ndarray:
    out = x.copy()
    out[at] = values
    return out


def row(
    name: str, op: Any, ref: Any, samples: Any, primitive: str | None = None, **kw: Any
) -> OpCase:
    return OpCase(name, op, ref, samples, primitive, bilinear=True, **kw)


ROWS = [
    *(row(f"gather[{kind},{axis}]", lambda x, i=i, axis=axis, kind=kind: sg.gather(x, axis, sg.tensor(i), kind == "sparse"),
          lambda x, i=i, axis=axis: ref_gather(x, axis, i), of((3, 4)), "gather_p")
      for kind in ("sparse", "dense") for axis, i in ((0, I1), (1, I2))),
    *(row(f"gather[{axis},slices]", lambda x, axis=axis: sg.gather(x, axis, slices(x, axis)), lambda x, axis=axis: ref_gather(x, axis % x.ndim, slices(x, axis)), of(size))
      for axis, size in ((0, (5, 2)), (1, (2, 5, 2)), (-1, (2, 5)))),
    row("gather[empty]", lambda x: sg.gather(x, -1, np.zeros((3, 0), int)), lambda x: x[:, :0], of((3, 2)), errors=(
        (lambda: sg.gather(sg.ones(2, 2), 0, sg.tensor([0])), sg.ShapeError, r"gather: index must .*index: \(1,\), input: \(2, 2\)"),
        (lambda: sg.gather(sg.ones(2, 2), 0, [[0, 1, 0]]), sg.ShapeError, r"gather: .* index: \(1, 3\)"),
        (lambda: sg.gather(sg.ones(2, 2), 0, [[2, 0]]), sg.PatternError, r"gather: index: index 2 at position 0 is outside \[0, 2\)"),
        (lambda: sg.gather(sg.ones(2, 2), 0, [[0.5, 0]]), IndexError, "expected integers"),
        (lambda: sg.gather(sg.ones(2, 2), 2, [[0, 0]]), sg.ShapeError, "gather: dim 2 is outside the 2"),
        (lambda: sg.gather(eye(), 0, [[0, 0]]), TypeError, "gather: needs a dense input"),)),
    row("put_along", lambda x: S.put_along_p(x, index=I1, axis=0, shape=(3, 4)),
        lambda x: ref_scatter(np.zeros((3, 4)), 0, I1, x, True), of((3, 2)), "put_along_p"),
    row("take_along_dim", lambda x: sg.take_along_dim(x, [[1, 1, 0]], 1), lambda x: np.take_along_axis(x, np.array([[1, 1, 0]]), 1),
        of((3, 4)), errors=(
        (lambda: sg.take_along_dim(sg.ones(3, 4), sg.tensor([[0], [0]]), 1), sg.ShapeError, "take_along_dim: indices"),)),
    row("take_along_dim[broadcast]", lambda x: sg.take_along_dim(x, I2, 1), lambda x: np.take_along_axis(np.repeat(x, 2, 0), I2, 1), of((1, 4))),
    row("take_along_dim[flat]", lambda x: sg.take_along_dim(x, [5, 0, 5]), lambda x: x.reshape(-1)[[5, 0, 5]], of((2, 3))),
    *(row(f"scatter_add[{axis}]", lambda x, s, i=i, axis=axis: sg.scatter_add(x, axis, sg.tensor(i), s),
          lambda x, s, i=i, axis=axis: ref_scatter(x, axis, i, s, True), of((3, 4), (3, 4)), errors=(
        (lambda: sg.scatter_add(sg.ones(3), 0, [0, 1], sg.ones(1)), sg.ShapeError, "scatter_add: src must cover the index"),
        (lambda: sg.scatter_add(sg.ones(3), 0, [0, 3], sg.ones(2)), sg.PatternError, "scatter_add: index: index 3"),))
      for axis, i in ((0, I1), (1, I2))),
    *(row(f"scatter[{axis}]", lambda x, s, i=i, axis=axis: sg.scatter(x, axis, sg.tensor(i), s),
          lambda x, s, i=i, axis=axis: ref_scatter(x, axis, i, s), of((3, 4), (3, 4))) for axis, i in ((0, I1), (1, I2))),
    OpCase("scatter[number]", lambda x: sg.scatter(x, 0, I1, 7.0), lambda x: ref_scatter(x, 0, I1, np.full((3, 2), 7.0)), of((3, 4))),
    *(row(f"{op}[{axis}]", lambda x, s, op=op, axis=axis: getattr(sg, op)(x, axis, sg.tensor(DOUBLE), s),
          lambda x, s, op=op, axis=axis: ref_index(x, axis, s, op == "index_add"), of(*sizes), errors=(
        (lambda op=op: getattr(sg, op)(sg.ones(3, 2), 0, [0], sg.ones(1, 3)), sg.ShapeError, rf"{op}: source must have shape \(1, 2\)"),))
      for op in ("index_add", "index_copy") for axis, sizes in ((0, ((3, 4), (3, 4))), (-1, ((2, 5), (2, 3))))),
    row("index_add[alpha]", lambda x, s: sg.index_add(x, 0, DOUBLE, s, alpha=-2), lambda x, s: ref_index(x, 0, -2 * s, True), of((4,), (3,))),
    *(OpCase(f"scatter_reduce[{how},{axis},{own}]", lambda x, s, i=i, axis=axis, how=how, own=own: sg.scatter_reduce(x, axis, i, s, how, include_self=own),
             lambda x, s, i=i, axis=axis, fn=fn, own=own: ref_reduce_at(x, axis, i, s, fn, own), of((3, 4), (3, 4)))
      for how, fn in (("sum", np.sum), ("prod", np.prod), ("mean", np.mean), ("amax", np.max), ("amin", np.min)) for axis, i in ((0, I1), (1, I2)) for own in (True, False)),
    *(OpCase(f"scatter_reduce[{how},{axis},slices]", lambda x, s, axis=axis, how=how: sg.scatter_reduce(x, axis, slices(x, axis), s, how),
             lambda x, s, axis=axis, fn=fn: ref_reduce_at(x, axis, slices(x, axis), s, fn, True), of(*sizes))
      for how, fn in (("sum", np.sum), ("prod", np.prod), ("mean", np.mean), ("amax", np.max), ("amin", np.min))
      for axis, sizes in ((0, ((5, 2), (4, 3))), (1, ((2, 5, 2), (2, 4, 2))))),
    *(row(f"scatter_add[{axis},slices]", lambda x, s, axis=axis: sg.scatter_add(x, axis, slices(x, axis), s),
          lambda x, s, axis=axis: ref_reduce_at(x, axis % x.ndim, slices(x, axis), s, np.sum, True), of(*sizes), errors=(
        (lambda: sg.scatter_add(sg.ones(2, 2), 0, slices(np.ones((2, 2)), 0), sg.ones(4, 2)), sg.PatternError, "scatter_add: index: index 4 at position 1"),
        (lambda: sg.scatter_add(sg.ones(5, 2), 0, slices(np.ones((5, 2)), 0), sg.ones(3, 2)), sg.ShapeError, "scatter_add: src must cover the index"),))
      for axis, sizes in ((0, ((5, 2), (4, 3))), (1, ((2, 5, 2), (2, 4, 2))), (-1, ((2, 5), (3, 4))))),
    OpCase("scatter_reduce[zeros]", lambda x, s: sg.scatter_reduce(x, 0, np.array([[1], [1], [1], [1]]), s, "prod"),
           lambda x, s: ref_reduce_at(x, 0, np.array([[1], [1], [1], [1]]), s, np.prod, True), lambda d: iter([((d.dense(3, 1), np.array(s)[:, None]), {}) for s in ([0.0, 2, 3, 4], [0.0, 2, 0, 4])]), errors=(
        (lambda: sg.scatter_reduce(sg.ones(3), 0, [0], sg.ones(1), "max"), ValueError, "scatter_reduce: reduce must be one of"),
        (lambda: sg.scatter_reduce(sg.ones(3), 0, [0, 1], sg.ones(1), "sum"), sg.ShapeError, "scatter_reduce: src must cover"),
        (lambda: sg.scatter_reduce(sg.ones(3), 0, [3], sg.ones(1), "sum"), sg.PatternError, "scatter_reduce: index: index 3"),)),
    OpCase("index_reduce", lambda x, s: sg.index_reduce(x, -1, DOUBLE, s, "prod"),
           lambda x, s: ref_reduce_at(x, 1, np.broadcast_to(DOUBLE, (2, 3)), s, np.prod, True), of((2, 5), (2, 3)), errors=(
        (lambda: sg.index_reduce(sg.ones(3), 0, [0], sg.ones(2), "prod"), sg.ShapeError, r"index_reduce: source must have shape \(1,\)"),)),
    *(OpCase(f"scatter[{how}]", lambda x, s, how=how: sg.scatter(x, 0, I1, s, reduce=how), lambda x, s, fn=fn: ref_reduce_at(x, 0, I1, s, fn, True), of((3, 4), (3, 4)), errors=(
        (lambda: sg.scatter(sg.ones(3), 0, [0], 1.0, reduce="max"), ValueError, "scatter: reduce must be 'add' or 'multiply', got 'max'"),)) for how, fn in (("add", np.sum), ("multiply", np.prod))),
    OpCase("index_fill", lambda x: sg.index_fill(x, 1, [0, 2], -1), lambda x: assigned(x, (slice(None), [0, 2]), -1), of((2, 4)), errors=(
        (lambda: sg.index_fill(sg.arange(3), 0, [0], 0.5), sg.DtypeError, "index_fill: 0.5 does not fit the dtype int64"),)),
    *(row(f"index_put[{kind}]", lambda x, v, at=at: sg.index_put(x, at, v), lambda x, v, at=at: assigned(x, at, v), of((3, 4), size))
      for kind, at, size in (("array", DOUBLE, (3, 4)), ("arrays", (np.array([0, 2]), np.array([1, -1])), (2,)),
                             ("slice", np.s_[:2, ::2], (2, 1)), ("mask", np.array([True, False, True]), (4,)))),
    row("index_put[accumulate]", lambda x, v: sg.index_put(x, (DOUBLE,), v, accumulate=True),
        lambda x, v: ref_index(x, 0, v, True), of((3, 4), (3, 4)), errors=(
        (lambda: sg.index_put(sg.ones(3), 5, 1.0), IndexError, "index_put: index 5 is out of bounds"),
        (lambda: sg.index_put(sg.ones(3), [DOUBLE], sg.ones(2)), sg.ShapeError, r"index_put: values \(2,\) do not broadcast"),)),
    OpCase("masked_fill", lambda x: sg.masked_fill(x, sg.tensor(MASK), 3.0), lambda x: np.where(MASK, 3.0, x), of((3, 4)), errors=(
        (lambda: sg.masked_fill(sg.ones(2), sg.ones(2), 0), sg.DtypeError, "masked_fill: mask must be bool, got float32"),
        (lambda: sg.masked_fill(sg.ones(2), [True, False], sg.ones(2)), sg.ShapeError, "masked_fill: value must be a number"),
        (lambda: sg.masked_fill(sg.arange(2), [True, False], 0.5), sg.DtypeError, "masked_fill: 0.5 does not fit"),)),
    row("masked_fill[tensor]", lambda x, v: sg.masked_fill(x, MASK, v.sum()), lambda x, v: np.where(MASK, v.sum(), x), of((3, 4), (2,))),
    row("masked_select", lambda x: sg.masked_select(x, MASK), lambda x: np.broadcast_to(x, (3, 4))[:, MASK].reshape(-1), of((3, 4)), errors=(
        (lambda: sg.masked_select(sg.ones(2), MASK), sg.ShapeError, "masked_select: .*mask"),)),
    OpCase("masked_select[sparse]", lambda a, mask: sg.masked_select(a, mask), lambda x, mask: x[mask.dense() > 0],
           lambda d: (((a,), {"mask": b.positive()}) for (a, b), _ in two_sparse(d)), None, FORMATS, bilinear=True),
    row("masked_select[broadcast]", lambda x: sg.masked_select(x, MASK), lambda x: np.broadcast_to(x, (3, 4))[:, MASK].reshape(-1), of((3, 1))),
    OpCase("nonzero", lambda x: sg.nonzero(x > 0), lambda x: np.argwhere(x > 0), lambda d: iter([((d.dense(3, 4),), {}), ((d.dense(0, 4),), {})]), order=0),
    OpCase("nonzero[sparse]", lambda a: sg.nonzero(a), np.argwhere, one_sparse, None, FORMATS, order=0),
]  # fmt: skip
