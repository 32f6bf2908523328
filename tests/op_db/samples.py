"""Sample makers shared by rows, and references that NumPy has no name for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import Draw, Sample, Sparse
from sparsegrad.sparse_tensor import SparseTensor

__all__ = [
    "along",
    "binary",
    "binary_positive",
    "dense_sparse",
    "eye",
    "nonempty_reductions",
    "nowhere_zero",
    "one_sparse",
    "one_sparse_or_hybrid",
    "one_sparse_positive",
    "positive",
    "reductions",
    "ref_masked_softmax",
    "ref_put",
    "ref_reduce",
    "ref_segment_softmax",
    "ref_segment_sum",
    "ref_segments",
    "ref_softmax",
    "same_shape",
    "sddmm_samples",
    "segments",
    "sparse_and_full",
    "sparse_broadcast",
    "sparse_dense",
    "sparse_dense_heads",
    "sparse_reductions",
    "square",
    "tensors",
    "two_sparse",
    "unary",
    "unary_away",
]


def tensors(*sizes: tuple[int, ...]) -> list[sg.Tensor]:
    return [sg.ones(*s) for s in sizes]


def eye() -> SparseTensor:
    return sg.coo([[0, 1], [0, 1]], [1.0, 1.0], (2, 2))


# ---- sample makers -----------------------------------------------------------------------------
def unary(d: Draw, **kw: float) -> Iterator[Sample]:
    for s in [(3, 4), (), (0, 4), (1,)]:
        yield (d.dense(*s, **kw),), {}


def unary_away(d: Draw) -> Iterator[Sample]:
    for s in [(3, 4), (), (0, 4), (1,)]:
        yield (d.away(*s),), {}


def positive(d: Draw) -> Iterator[Sample]:
    return unary(d, low=0.5, high=3.0)


def binary(d: Draw, **kw: float) -> Iterator[Sample]:
    for s, t in [((3, 4), (3, 4)), ((3, 4), (1, 4)), ((3, 4), (4,)), ((0, 4), (1, 4)), ((), (2,))]:
        yield (d.dense(*s, **kw), d.dense(*t, **kw)), {}
    yield (d.dense(2, 1, 3, **kw), d.dense(4, 1, **kw)), {}


def same_shape(d: Draw) -> Iterator[Sample]:
    for s in [(3, 4), (), (0, 4)]:
        yield (d.dense(*s), d.away(*s)), {}


def binary_positive(d: Draw) -> Iterator[Sample]:
    return binary(d, low=0.5, high=2.0)


def reductions(d: Draw) -> Iterator[Sample]:
    for s, dims in [((3, 4), (None, 0, -1, (0, 1))), ((2, 3, 4), (1, (0, 2))), ((0, 3), (0, None))]:
        for dim in dims:
            for keepdim in (False, True):
                yield (d.dense(*s),), {"dim": dim, "keepdim": keepdim}
    yield (d.dense(),), {"dim": None, "keepdim": False}


def nonempty_reductions(d: Draw) -> Iterator[Sample]:
    return (s for s in reductions(d) if s[0][0].size)


def along(d: Draw) -> Iterator[Sample]:
    for s in [(3, 4), (2, 3, 4), (5,), (0, 3)]:
        for dim in range(-1, len(s) - 1):
            yield (d.dense(*s),), {"dim": dim}


def sparse_dense(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        for k in (3, 1, 0):
            yield (a, d.dense(a.shape[1], k)), {}
        yield (a, d.dense(a.shape[1])), {}


def sparse_dense_heads(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind(heads=(2,)):
        yield (a, d.dense(a.shape[1], 2, 3)), {}


def dense_sparse(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        yield (d.dense(3, a.shape[0]), a), {}
        yield (d.dense(a.shape[0]), a), {}


def one_sparse(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        yield (a,), {}


def one_sparse_or_hybrid(d: Draw) -> Iterator[Sample]:
    yield from one_sparse(d)
    for a in d.every_kind(heads=(2,)):
        yield (a,), {}


def one_sparse_positive(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        yield (Sparse(a.coords, np.abs(a.values) + 0.1, a.shape),), {}


def two_sparse(d: Draw) -> Iterator[Sample]:
    for a, b in zip(d.every_kind(), Draw(7).every_kind(), strict=True):
        yield (a, b), {}
        yield (a, Sparse(a.coords, d.away(*a.values.shape), a.shape)), {}


def nowhere_zero(d: Draw) -> Iterator[Sample]:
    """Two sparse samples without explicit zeros, which tie with absent ones."""
    return (s for s in two_sparse(d) if all((a.values != 0).all() for a in s[0]))


def sparse_and_full(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        yield (a, d.away(*a.shape)), {}


def sparse_broadcast(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        m, n = a.shape
        for other in ((m, n), (1, n), (m, 1), (n,), (1, 1)):
            yield (a, d.away(*other)), {}
    column = Sparse(np.array([[0, 2], [0, 0]]), d.away(2), (3, 1))  # AC-36
    yield (column, d.away(1, 4)), {}
    row = Sparse(np.array([[0, 0], [0, 2]]), d.away(2), (1, 3))
    yield (row, d.away(4, 3)), {}


def sparse_reductions(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        for dim in (None, 0, 1, (0, 1), ()):
            for keepdim in (False, True):
                yield (a,), {"dim": dim, "keepdim": keepdim}
    for a in d.every_kind(heads=(2,)):
        for dim in (0, 2, (0, 2), (0, 1)):
            yield (a,), {"dim": dim}


def square(d: Draw, heads: tuple[int, ...] = (), low: float | None = None) -> Iterator[Sample]:
    for a in d.every_kind(4, 4, heads):
        if a.shape[0] == a.shape[1]:
            yield (
                (Sparse(a.coords, a.values if low is None else np.abs(a.values) + low, a.shape),),
                {},
            )


def sddmm_samples(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        m, n = a.shape
        for k in (3, 1, 0):
            yield (d.dense(m, k), d.dense(n, k)), {"at": a}


def segments(d: Draw) -> Iterator[Sample]:
    for counts in ([2, 0, 3, 1], [0, 0], [5], []):
        indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        for tail in ((), (2,)):
            yield (d.dense(int(indptr[-1]), *tail),), {"indptr": indptr}


# ---- references --------------------------------------------------------------------------------
def ref_reduce(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dim, keepdim=False: fn(x, axis=dim, keepdims=keepdim)


def ref_softmax(x: np.ndarray, dim: int) -> np.ndarray:
    if x.size == 0:
        return x
    e = np.exp(x - x.max(axis=dim, keepdims=True))
    return e / e.sum(axis=dim, keepdims=True)


def ref_masked_softmax(x: np.ndarray, mask: np.ndarray, dim: int) -> np.ndarray:
    e = np.where(mask, np.exp(x), 0)
    total = e.sum(axis=dim, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def ref_segments(x: np.ndarray, indptr: np.ndarray, fn: Callable[..., Any]) -> list[Any]:
    return [fn(x[a:b]) for a, b in pairwise(indptr)]


def ref_segment_sum(x: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    parts = ref_segments(x, indptr, lambda p: p.sum(axis=0))
    return np.array(parts).reshape(len(indptr) - 1, *x.shape[1:])


def ref_segment_softmax(x: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    parts = ref_segments(x, indptr, lambda p: ref_softmax(p, 0))
    return np.concatenate([*parts, np.zeros((0, *x.shape[1:]))])


def ref_put(x: np.ndarray, where: Any, sizes: tuple[int, ...]) -> np.ndarray:
    out = np.zeros(sizes)
    np.add.at(out, where, x)
    return out
