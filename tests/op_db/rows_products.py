# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of sparse products and solvers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase, Sample, Sparse
from op_db.samples import *  # noqa: F403
from sparsegrad.ops import spmm_reduce


# ---- samples -----------------------------------------------------------------------------------
def transposed(a: Sparse, d: Draw) -> Sparse:
    return Sparse(a.coords[::-1], d.away(*a.values.shape), a.shape[::-1])


def factors(d: Draw, heads: tuple[int, ...] = ()) -> Iterator[tuple[Sparse, Sparse]]:
    for a in d.every_kind(heads=heads):
        yield a, d.sparse(a.shape[1], 5, heads=heads)
        yield a, transposed(a, d)  # the same kind on the right


def products(d: Draw) -> Iterator[Sample]:
    return (((a, b), {}) for a, b in factors(d))


def head_products(d: Draw) -> Iterator[Sample]:
    return (((a, b), {}) for a, b in factors(d, (2,)))


def masked_products(d: Draw) -> Iterator[Sample]:
    for a, b in factors(d):
        m, n = a.shape[0], b.shape[1]
        at = d.sparse(m, n)
        yield (a, b), {"at": at}
        twice = np.concatenate((at.coords[:, ::-1], at.coords[:, ::2]), axis=1)
        yield (a, b), {"at": Sparse(twice, np.ones(twice.shape[1]), (m, n))}


def meeting(d: Draw) -> tuple[Sparse, Sparse]:
    """Two huge matrices whose product is not empty."""
    a = d.huge()
    return a, Sparse(np.stack((a.coords[1], d.huge().coords[1])), d.away(10), a.shape)


def reducible(d: Draw) -> Iterator[Sample]:
    """At most one explicit zero in a row: two are a tie, where finite differences mean nothing."""
    for heads in ((), (2,)):
        for a in d.every_kind(heads=heads):
            zero = np.flatnonzero((a.values == 0).any(axis=tuple(range(1, a.values.ndim))))
            _, first = np.unique(a.coords[0, zero], return_index=True)
            spare = np.setdiff1d(zero, zero[first])
            a.values[spare] = d.away(spare.size, *heads)
            yield (a, d.away(a.shape[1], *heads, 3)), {}
            yield (a, d.away(a.shape[1], *heads, 0)), {}
            if not heads:
                yield (a, d.away(a.shape[1])), {}
                yield (a, d.away(2, a.shape[1], 2)), {}


def ref_reduced(fn: Any) -> Any:
    def ref(a: Sparse, x: np.ndarray) -> np.ndarray:
        mask, dense = a.mask(), a.dense()
        if x.ndim == 1:
            return ref(a, x[:, None])[:, 0]
        if x.ndim == 3 and dense.ndim == 2:
            return np.stack([ref(a, part) for part in x])
        mask = mask.reshape(*mask.shape, *(1,) * (x.ndim - 1))
        product = np.where(mask, dense[..., None] * x[None], np.nan)
        out = np.zeros((a.shape[0], *x.shape[1:]))
        for i in range(a.shape[0]):
            stored = mask[i].reshape(-1)
            if stored.any():
                out[i] = fn(product[i][stored], axis=0)
        return out

    return ref


def dense_batches(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        yield (a, d.dense(2, a.shape[1], 3)), {}
        yield (a, d.dense(2, 3, a.shape[1], 1)), {}
    yield (d.sparse(4, 3), d.dense(0, 3, 2)), {}


def dense_batches_left(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        yield (d.dense(2, 3, a.shape[0]), a), {}


def batch(d: Draw, lead: tuple[int, ...], m: int, n: int, copies: int = 1) -> Sparse:
    cells = np.flatnonzero(d.rng.random(int(np.prod(lead)) * m * n) < 0.4)
    cells = d.rng.permutation(np.tile(cells, copies))
    coords = np.array(np.unravel_index(cells, (*lead, m, n))).reshape(len(lead) + 2, -1)
    return Sparse(coords, d.away(cells.size), (*lead, m, n))


def batches(d: Draw) -> Iterator[Sparse]:
    for lead in ((2,), (2, 3), (1,), (0,)):
        yield batch(d, lead, 4, 3)
    yield batch(d, (3,), 3, 3, copies=2)
    yield batch(d, (2,), 0, 3)
    yield batch(d, (2,), 3, 0)


def sparse_batches(d: Draw) -> Iterator[Sample]:
    for a in batches(d):
        *lead, _, n = a.shape
        for x in ((*lead, n, 2), (n, 2), (n,), (*(1 for _ in lead), n, 1)):
            yield (a, d.dense(*x)), {}


def sparse_batches_left(d: Draw) -> Iterator[Sample]:
    for a in batches(d):
        *lead, m, _ = a.shape
        for x in ((*lead, 2, m), (2, m), (m,)):
            yield (d.dense(*x), a), {}


def batch_products(d: Draw) -> Iterator[Sample]:
    for a in batches(d):
        yield (a, batch(d, a.shape[:-2], a.shape[-1], 5)), {}
        yield (a, d.sparse(a.shape[-1], 5)), {}


def sampled_batches(d: Draw) -> Iterator[Sample]:
    for a in batches(d):
        *lead, m, n = a.shape
        yield (d.dense(*lead, m, 2), d.dense(*lead, n, 2)), {"at": a}


def sampled_heads(d: Draw) -> Iterator[Sample]:
    for a in batches(d):
        *lead, m, n = a.shape
        yield (d.dense(*lead, m, 3, 2), d.dense(*lead, n, 3, 2)), {"at": a}


def heads_of_batches(d: Draw) -> Iterator[Sample]:
    for a in batches(d):
        *lead, _, n = a.shape
        wide = Sparse(a.coords, d.away(a.coords.shape[1], 3), a.shape)
        yield (wide, d.dense(*lead, n, 3, 2)), {}


def sampled(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        yield (a, d.dense(a.shape[0], 3), d.dense(3, a.shape[1])), {}


def affine(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        yield (d.dense(a.shape[0], 2), a, d.dense(a.shape[1], 2)), {}
        yield (d.dense(2), a, d.dense(a.shape[1], 2)), {}


def vectors(d: Draw, *heads: int) -> Iterator[Sparse]:
    """One sparse dimension: some entries, duplicates out of order, none, a size of 0."""
    for n, at in ((5, [0, 3, 4]), (5, [4, 1, 4, 0]), (5, []), (0, []), (1, [0])):
        coords = np.array([at], int)
        yield Sparse(coords, d.away(len(at), *heads), (n,))
    zero = Sparse(np.array([[1, 2]]), d.away(2, *heads), (4,))
    zero.values[0] = 0
    yield zero


def vector_pairs(d: Draw) -> Iterator[Sample]:
    """Pairs of these, and one of which both are out of order and have no duplicates."""
    yield from (((v, w), {}) for v, w in zip(vectors(d), vectors(Draw(7)), strict=True))
    yield tuple(Sparse(np.array([at]), d.away(3), (5,)) for at in ([3, 0, 4], [4, 1, 0])), {}


def huge_vector(d: Draw) -> Sparse:
    return Sparse(d.rng.integers(0, 10**6, (1, 10)), d.away(10), (10**6,))


def vector_dense(d: Draw) -> Iterator[Sample]:
    for v in vectors(d):
        (n,) = v.shape
        for sizes in ((n,), (n, 3), (n, 0), (2, n, 3)):
            yield (v, d.dense(*sizes)), {}


def dense_vector(d: Draw) -> Iterator[Sample]:
    for v in vectors(d):
        (n,) = v.shape
        for sizes in ((n,), (3, n), (0, n), (2, 3, n)):
            yield (d.dense(*sizes), v), {}


def sparse_vector(d: Draw) -> Iterator[Sample]:
    for v in vectors(d):
        (n,) = v.shape
        for fmt in FORMATS:
            yield (d.sparse(3, n), v), {"fmt": fmt}
        yield (batch(d, (2,), 3, n), v), {"fmt": "coo"}


def rows_dense(d: Draw) -> Iterator[Sample]:
    for v in vectors(d, 3):
        for sizes in ((3, 2), (3,), (3, 0)):
            yield (v, d.dense(*sizes)), {}
        yield (v, d.sparse(3, 2)), {}


def dense_rows(d: Draw) -> Iterator[Sample]:
    for v in vectors(d, 3):
        (n,) = v.shape
        for sizes in ((2, n), (n,), (0, n)):
            yield (d.dense(*sizes), v), {}
        yield (d.sparse(2, n), v), {}


def systems(d: Draw) -> Iterator[Sample]:
    """Square matrices of every kind with a full diagonal, entries unsorted; see `heavy`."""
    for a in [a for a in d.every_kind(5, 5) if a.shape[0] == a.shape[1]]:
        n = a.shape[0]
        coords = np.concatenate((a.coords, np.tile(np.arange(n), (2, 1))), axis=1)
        heavy = np.concatenate((a.values, 1 + d.dense(n, low=0, high=1)))
        order = d.rng.permutation(len(heavy))
        a = Sparse(coords[:, order], heavy[order], a.shape)
        for b in ((n, 2), (n,), (n, 0)):
            yield (a, d.dense(*b)), {}
    yield (Sparse(np.zeros((2, 0), int), np.zeros(0), (0, 0)), d.dense(0, 2)), {}


def breaking(d: Draw) -> Iterator[Sample]:
    """BiCGSTAB breaks down after one iteration unless it starts afresh: its shadow residual is
    orthogonal to the residual (shrunk by the fuzzer)."""
    at = np.array([[0, 0, 1, 2, 2, 0, 1, 2], [1, 2, 1, 0, 1, 0, 1, 2]])
    values = np.array([0.12275, 0.0705, -0.01825, 0.0565, 0.162875, 2, 2, 2])
    yield (Sparse(at, values, (3, 3)), np.array([0, -0.146, 0])), {}
    yield (
        (
            Sparse(np.array([[0, 1], [1, 0]]), np.array([1.0, 2.0]), (2, 2)),
            np.array([[1.0, 0], [0, 1]]),
        ),
        {},
    )


def huge_system(d: Draw) -> Sample:
    a = d.huge()
    n = a.shape[0]
    coords = np.concatenate((a.coords, np.tile(np.arange(n), (2, 1))), axis=1)
    return (Sparse(coords, np.concatenate((a.values, np.ones(n))), a.shape), d.dense(n)), {}


def heavy(a: Any) -> Any:
    """A with its diagonal times 24: regular whatever its values are, ones included."""
    if isinstance(a, np.ndarray):
        return a * (1 + 23 * np.eye(len(a)))
    return a.with_values(a.values * sg.Tensor(np.where(a.row == a.col, 24, 1).astype(a.dtype)))


def ref_triangular(lower: bool, transpose: bool, unit: bool) -> Any:
    def ref(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        t = np.tril(a) if lower else np.triu(a)
        if unit:
            np.fill_diagonal(t, 1)
        return np.linalg.solve(t.T if transpose else t, b)

    return ref


def precise(a: Any) -> dict[str, float]:
    return {
        "rtol": {"float16": 1e-4, "bfloat16": 1e-4, "float32": 1e-6, "float64": 1e-13}[str(a.dtype)]
    }


def symmetric(a: Any) -> Any:
    return a + a.T


def triangle(*values: float) -> Any:
    return sg.csr([0, 1, 3], [0, 0, 1], list(values), (2, 2))


def at_both(x: Any, y: Any, at: Any, **kw: Any) -> Any:
    return sg.sddmm(x, y, at, **kw)


def chosen(primitive: Any, *args: Any) -> Any:
    """A primitive of chosen entries, for the products (3, 2, 2) @ (4, 2, 2) -> (3, 2, 2)."""
    pattern = sg.csr([0, 2, 2, 3], [0, 3, 1], None, (3, 4), device=args[0].device).pattern
    be = pattern.core.backend
    entry = be.asarray(np.array([[[0, 1], [1, 1]], [[-1, -1], [-1, -1]], [[2, 2], [2, 2]]]))
    return primitive(*args, pattern=pattern, at=be.chosen(pattern, entry))


# Of each element that has an entry: row, entry, column of the matrix, head, k.
CHOSEN = np.array([(0, 0, 0, 0, 0), (0, 1, 3, 0, 1), (0, 1, 3, 1, 0), (0, 1, 3, 1, 1),
                   *((2, 2, 1, h, f) for h in (0, 1) for f in (0, 1))]).T  # fmt: skip


def ref_chosen(shape: tuple[int, ...], at: list[int], *factors: tuple[Any, list[int]]) -> Any:
    """The product of the factors, each at some of the indices of CHOSEN, added at others."""
    out = np.zeros(shape)
    terms = math.prod(array[tuple(CHOSEN[where])] for array, where in factors)
    np.add.at(out, tuple(CHOSEN[at]), terms)
    return out


REDUCTIONS = {"mean": np.mean, "max": np.max, "min": np.min}

ROWS = [
    *(
        OpCase(f"spmm[{name}]", lambda a, x, name=name: sg.spmm(a, x, reduce=name), ref_reduced(fn),
               reducible, "spmm_mean_p" if name == "mean" else "spmm_extreme_p", FORMATS, raw=True,
               bilinear=name == "mean", huge=lambda d: ((d.huge(), d.away(10**6, 1)), {}), errors=(
            (lambda: sg.spmm(eye(), sg.ones(2, 1), reduce="prod"), ValueError, "spmm: reduce must be .* got 'prod'"),
            (lambda: sg.spmm(eye(), eye(), reduce="max"), TypeError, "spmm: reduce='max' needs a dense x"),
            (lambda: sg.spmm(eye().astype("complex64"), sg.ones(2), reduce="max"), sg.DtypeError, "spmm: complex numbers have no max"),
        ))
        for name, fn in REDUCTIONS.items()
    ),
    OpCase("chosen", lambda v, x: chosen(spmm_reduce.chosen_p, v, x),
           lambda v, x: ref_chosen((3, 2, 2), [0, 3, 4], (v, [1, 3]), (x, [2, 3, 4])),
           lambda d: iter([((d.dense(3, 2), d.dense(4, 2, 2)), {})]), "chosen_p", bilinear=True),
    OpCase("chosen_values", lambda dy, x: chosen(spmm_reduce.chosen_values_p, dy, x),
           lambda dy, x: ref_chosen((3, 2), [1, 3], (dy, [0, 3, 4]), (x, [2, 3, 4])),
           lambda d: iter([((d.dense(3, 2, 2), d.dense(4, 2, 2)), {})]), "chosen_values_p",
           bilinear=True),
    OpCase("chosen_x", lambda dy, v: chosen(spmm_reduce.chosen_x_p, dy, v),
           lambda dy, v: ref_chosen((4, 2, 2), [2, 3, 4], (dy, [0, 3, 4]), (v, [1, 3])),
           lambda d: iter([((d.dense(3, 2, 2), d.dense(3, 2)), {})]), "chosen_x_p", bilinear=True),
    OpCase("spgemm", sg.spgemm, np.matmul, products, "spgemm_p", FORMATS, bilinear=True,
           huge=lambda d: (meeting(d), {}), errors=(
        (lambda: sg.spgemm(eye(), sg.coo([[0], [0]], [1.0], (3, 3))), sg.ShapeError, r"spgemm: .*A: \(2, 2\), B: \(3, 3\)"),
        (lambda: sg.spgemm(eye(), sg.ones(2, 2)), TypeError, "spgemm: B must be a SparseTensor, got Tensor"),
    )),
    OpCase("matmul[sparse,sparse]", lambda a, b: a @ b, np.matmul, products, None, FORMATS,
           bilinear=True),
    OpCase("spgemm[heads]", sg.spgemm, lambda a, b: np.einsum("mkh,knh->mnh", a, b), head_products,
           None, FORMATS, bilinear=True),
    OpCase("spgemm[square]", lambda a: a @ a.T, lambda a: a @ a.T, one_sparse, None, FORMATS,
           huge=lambda d: ((d.huge(),), {})),
    OpCase("spgemm_masked", lambda a, b, at: sg.spgemm_masked(a, b, at),
           lambda a, b, at: (a @ b) * at.dense(np.ones(at.coords.shape[1])), masked_products,
           "spgemm_masked_p", FORMATS, bilinear=True,
           huge=lambda d: (meeting(d), {"at": d.huge()}), errors=(
        (lambda: sg.spgemm_masked(eye(), eye(), sg.coo([[0], [0]], [1.0], (3, 3))), sg.ShapeError, r"spgemm_masked: .*pattern: \(3, 3\)"),
        (lambda: sg.spgemm_masked(eye(), eye(), 1), TypeError, "spgemm_masked: pattern must be"),
    )),
    OpCase("matmul[sparse,dense batch]", sg.matmul, np.matmul, dense_batches, None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(), d.dense(2, 10**6, 1)), {}), errors=(
        (lambda: eye() @ sg.ones(2, 3, 1), sg.ShapeError, r"spmm: .*x: \(2, 3, 1\)"),
    )),
    OpCase("matmul[dense batch,sparse]", sg.matmul, np.matmul, dense_batches_left, None, FORMATS,
           bilinear=True, huge=lambda d: ((d.dense(2, 1, 10**6), d.huge()), {})),
    OpCase("matmul[sparse batch,dense]", sg.matmul, np.matmul, sparse_batches, None, ("coo",),
           bilinear=True, errors=(
        (lambda: sg.coo([[0], [0], [0]], [1.0], (2, 2, 2)) @ sg.ones(3, 2, 1), sg.ShapeError, r"spmm: .*sparse: \(2, 2, 2\), dense: \(3, 2, 1\)"),
    )),
    OpCase("matmul[dense,sparse batch]", sg.matmul, np.matmul, sparse_batches_left, None, ("coo",),
           bilinear=True),
    OpCase("spmm[batch of heads]", sg.spmm, lambda a, x: np.einsum("...mnh,...nhk->...mhk", a, x), heads_of_batches, None, ("coo",), bilinear=True, errors=(
        (lambda: sg.spmm(sg.coo([[0], [0], [0]], [[1.0, 2.0]], (1, 1, 1, 2)), sg.ones(1, 1, 3, 2)), sg.ShapeError, r"spmm: shapes do not fit; got sparse: \(1, 1, 1, 2\), dense: \(1, 1, 3, 2\)"),)),
    OpCase("sddmm[batch of heads]", at_both, lambda x, y, at: np.einsum("...mhk,...nhk->...mnh", x, y) * at.dense(np.ones((at.coords.shape[1], 1))),
           sampled_heads, None, ("coo",), bilinear=True),
    OpCase("spgemm[batch]", sg.spgemm, np.matmul, batch_products, None, ("coo",), bilinear=True),
    OpCase("sddmm[batch]", at_both, lambda x, y, at: (x @ y.swapaxes(-1, -2)) * at.dense(np.ones(at.coords.shape[1])),
           sampled_batches, None, ("coo",), bilinear=True),
    OpCase("sampled_addmm", lambda c, x, y: sg.sampled_addmm(c.coalesce(), x, y, alpha=2, beta=-3),
           lambda c, x, y: -3 * c.dense() + 2 * (x @ y) * c.mask(), sampled, None, FORMATS,
           raw=True, huge=lambda d: ((d.huge(), d.dense(10**6, 1), d.dense(1, 10**6)), {}), errors=(
        (lambda: sg.sddmm(sg.ones(2, 1), sg.ones(2, 1), eye().pattern, beta=1), TypeError, "sddmm: beta scales the values"),
        (lambda: sg.sampled_addmm(eye(), sg.ones(2, 1), sg.ones(2)), sg.ShapeError, "sampled_addmm: y must be a matrix"),
        (lambda: sg.sampled_addmm(eye(), sg.ones(2, 1), sg.ones(2, 2)), sg.ShapeError, r"sampled_addmm: expected x \(m, k\) and y \(k, n\), got \(2, 1\) and \(2, 2\)"),
    )),
    OpCase("addmm", lambda c, a, x: sg.addmm(c, a, x, alpha=2, beta=-3),
           lambda c, a, x: -3 * c + 2 * (a @ x), affine, None, FORMATS,
           huge=lambda d: ((d.dense(1), d.huge(), d.dense(10**6, 1)), {})),
    OpCase("addmm[scales]", lambda alpha, beta, c, a, x: sg.addmm(c, a, x, alpha=alpha, beta=beta),
           lambda alpha, beta, c, a, x: beta * c + alpha * (a @ x),
           lambda d: iter([((d.dense(), d.dense(), d.dense(4, 2), d.sparse(4, 3), d.dense(3, 2)), {})]), None, FORMATS),
    OpCase("mm", lambda a, x: a.mm(x), np.matmul,
           lambda d: (((a, d.dense(a.shape[1], 2)), {}) for a in d.every_kind()), None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(), d.dense(10**6, 1)), {}), errors=(
        (lambda: sg.mm(eye(), sg.ones(2)), sg.ShapeError, r"mm: expected 2 and 2 dimensions .*b: \(2,\)"),
        (lambda: sg.tensor(eye()), sg.DensifyError, r"array: a SparseTensor of shape \(2, 2\) does not"),
    )),
    OpCase("mv", lambda a, x: a.mv(x), np.matmul,
           lambda d: (((a, d.dense(a.shape[1])), {}) for a in d.every_kind()), None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(), d.dense(10**6)), {}), errors=(
        (lambda: eye().mv(sg.ones(2, 1)), sg.ShapeError, "mv: expected 2 and 1 dimensions"),
    )),
    OpCase("bmm", lambda a, x: a.bmm(x), np.matmul,
           lambda d: (((a, d.dense(a.shape[0], a.shape[2], 2)), {}) for a in batches(d) if len(a.shape) == 3),
           None, ("coo",), bilinear=True, errors=(
        (lambda: sg.bmm(sg.ones(2, 1, 1), sg.ones(3, 1, 1)), sg.ShapeError, "bmm: expected 3 and 3"),
    )),
    OpCase("matmul[vector,dense]", sg.matmul, np.matmul, vector_dense, None, ("coo",), bilinear=True,
           huge=lambda d: ((huge_vector(d), d.dense(10**6, 2)), {}), errors=(
        (lambda: sg.coo([[0]], [1.0], (2,)) @ sg.ones(3), sg.ShapeError, r"matmul: shapes do not fit; got a: \(2,\), b: \(3,\)"),
    )),
    OpCase("matmul[dense,vector]", sg.matmul, np.matmul, dense_vector, None, ("coo",), bilinear=True,
           huge=lambda d: ((d.dense(2, 10**6), huge_vector(d)), {})),
    OpCase("matmul[vector,vector]", sg.matmul, np.matmul,
           vector_pairs, None, ("coo",), bilinear=True, huge=lambda d: ((huge_vector(d), huge_vector(d)), {})),
    OpCase("matmul[sparse,vector]", lambda a, v, fmt: (a.to(fmt) if fmt != a.format else a) @ v, lambda a, v, fmt: a @ v,
           sparse_vector, None, ("coo",), bilinear=True, huge=lambda d: ((d.huge(), huge_vector(d)), {"fmt": "csr"})),
    OpCase("matmul[vector,sparse]", lambda a, v, fmt: v @ (a.to(fmt) if fmt != a.format else a).transpose(-1, -2),
           lambda a, v, fmt: a @ v, sparse_vector, None, ("coo",), bilinear=True, huge=lambda d: ((d.huge(), huge_vector(d)), {"fmt": "csc"})),
    OpCase("matmul[rows,dense]", sg.matmul, np.matmul, rows_dense, None, ("coo",), bilinear=True),
    OpCase("matmul[dense,rows]", sg.matmul, np.matmul, dense_rows, None, ("coo",), bilinear=True, errors=(
        (lambda: sg.ones(2, 2, 2) @ sg.coo([[0]], [[1.0]], (2, 1)), sg.ShapeError, r"matmul: shapes do not fit; got a: \(2, 2, 2\)"),
    )),
    OpCase("spsolve", lambda a, b: sg.spsolve(heavy(a), b), lambda a, b: np.linalg.solve(heavy(a), b), systems, "spsolve_p", FORMATS, huge=huge_system, errors=(
        (lambda: sg.spsolve(sg.coo([[0], [0]], [1.0], (2, 2)), sg.ones(2)), sg.SingularMatrixError, r"spsolve: A of shape \(2, 2\) .* singular"),
        (lambda: sg.spsolve(sg.coo([[0], [0]], [1.0], (2, 3)), sg.ones(2)), sg.ShapeError, r"spsolve: A must be a square .*\(2, 3\)"),
        (lambda: sg.spsolve(eye(), sg.ones(3)), sg.ShapeError, r"spsolve: b must be \(2,\) or \(2, k\) .* got \(3,\)"),
        (lambda: sg.spsolve(sg.ones(2, 2), sg.ones(2)), TypeError, "spsolve: A must be a SparseTensor, got Tensor"),
        (lambda: sg.spsolve(eye(), eye()), TypeError, "spsolve: b must be dense"),
        (lambda: sg.spsolve(eye().astype("complex64"), sg.ones(2)), sg.DtypeError, "spsolve: complex"),
    )),
    *(
        OpCase(f"triangular_solve[{lower:d}{transpose:d}{unit:d}]",
               lambda a, b, kw=(lower, transpose, unit): sg.triangular_solve(heavy(a) * (1 / 24), b, *kw),
               lambda a, b, kw=(lower, transpose, unit): ref_triangular(*kw)(heavy(a) / 24, b),
               systems, "triangular_p", FORMATS, huge=huge_system if lower and not unit else None, errors=(
            (lambda: sg.triangular_solve(triangle(1.0, 2.0, 0.0), sg.ones(2)), sg.SingularMatrixError, r"triangular_solve: .*zero, in row 1"),
        ))
        for lower, transpose, unit in ((1, 0, 0), (1, 1, 0), (0, 0, 0), (0, 1, 1), (1, 0, 1))
    ),
    OpCase("cg", lambda a, b: sg.cg(symmetric(heavy(a)), b, **precise(a)),
           lambda a, b: np.linalg.solve(symmetric(heavy(a)), b), systems, "krylov_p", FORMATS, huge=huge_system,
           errors=(
        (lambda: sg.cg(eye(), sg.ones(2), M=sg.ones(2, 2)), sg.ShapeError, r"cg: M must be a SparseTensor of shape \(2, 2\)"),
        (lambda: sg.cg(eye(), sg.ones(2), x0=sg.ones(3)), sg.ShapeError, r"cg: x0 must have the shape \(2,\)"),
    )),
    OpCase("bicgstab", lambda a, b: sg.bicgstab(heavy(a), b, **precise(a)),
           lambda a, b: np.linalg.solve(heavy(a), b), systems, None,
           FORMATS),
    OpCase("bicgstab[afresh]", lambda a, b: sg.bicgstab(a, b, **precise(a)), np.linalg.solve, breaking, None, FORMATS),
    OpCase("gmres", lambda a, b: sg.gmres(heavy(a), b, x0=b * 0.1, **precise(a)),
           lambda a, b: np.linalg.solve(heavy(a), b), systems, None, FORMATS),
]  # fmt: skip
