# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of linear algebra."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase, Sample
from op_db.samples import *  # noqa: F403

L = sg.linalg


def regular(d: Draw) -> Iterator[Sample]:
    """Well-conditioned square matrices; the op adds the diagonal."""
    for s in [(3, 3), (2, 3, 3), (1, 1)]:
        yield (d.dense(*s, low=-1, high=1),), {}


def systems(d: Draw) -> Iterator[Sample]:
    for s, t in [
        ((3, 3), (3, 2)),
        ((2, 3, 3), (3, 1)),
        ((3, 3), (2, 3, 2)),
        ((3, 3), (3,)),
        ((0, 0), (0, 2)),
    ]:
        yield (d.dense(*s, low=-1, high=1), d.dense(*t)), {}


def far(x: Any) -> Any:
    """x + 4 I, in the dtype of x."""
    n = x.shape[-1]
    if isinstance(x, np.ndarray):
        return x + 4 * np.eye(n)
    return x + sg.Tensor(4 * np.eye(n, dtype=x.dtype), device=x.device)


def spd(x: Any) -> Any:
    return far(x @ (np.swapaxes(x, -1, -2) if isinstance(x, np.ndarray) else x.mT))


def spread(x: Any) -> Any:
    """Symmetric, with distinct eigenvalues."""
    n = x.shape[-1]
    ramp = np.diag(np.arange(n) * 3.0)
    if isinstance(x, np.ndarray):
        return x + np.swapaxes(x, -1, -2) + ramp
    return x + x.mT + sg.Tensor(ramp.astype(x.dtype), device=x.device)


def ref_solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.linalg.solve(far(a), b[:, None])[:, 0] if b.ndim == 1 else np.linalg.solve(far(a), b)


def tall(d: Draw) -> Iterator[Sample]:
    for s in [(4, 2), (2, 3, 3)]:
        yield (d.dense(*s, low=1, high=2) + 2 * np.eye(*s[-2:]),), {}


def shapes(d: Draw) -> Iterator[Sample]:
    """Tall, wide and square matrices with distinct singular values."""
    for s in [(4, 2), (2, 4), (3, 3), (2, 3, 2), (1, 1)]:
        yield (d.dense(*s, low=-0.5, high=0.5) + np.eye(*s[-2:]) * np.arange(1, s[-1] + 1),), {}


def low_rank(d: Draw) -> Iterator[Sample]:
    yield (d.dense(4, 2), d.dense(2, 3)), {}


def parts_of_svd(u: Any, s: Any, vh: Any) -> Any:
    """What does not depend on signs: U^2, S, (V^T)^2, and U V^T, which turns with neither."""
    lib = np if isinstance(s, np.ndarray) else sg
    k = s.shape[-1]
    pieces = (u[..., :k] ** 2, s, 2 * vh[..., :k, :] ** 2, u[..., :k] @ vh[..., :k, :])
    flat = [lib.reshape(p, (-1,)) for p in pieces]
    return np.concatenate(flat) if lib is np else sg.cat(flat)


def few(a: Any, q: int, niter: int = 2) -> Any:
    sg.manual_seed(0)
    u, s, v = sg.svd_lowrank(a, q, niter)
    return u, s, v.T


def matrices(d: Draw) -> Iterator[Sample]:
    return (s for s in shapes(d) if s[0][0].ndim == 2)


def both(parts: Any) -> Any:
    q, r = parts
    return sg.cat([sg.reshape(q, (-1,)), 2 * sg.reshape(r, (-1,))])


def ref_both(parts: Any) -> Any:
    return np.concatenate([parts[0].reshape(-1), 2 * parts[1].reshape(-1)])


def triangles(d: Draw) -> Iterator[Sample]:
    for s, t in [((3, 3), (3, 2)), ((2, 3, 3), (2, 3, 1))]:
        yield (d.dense(*s, low=-1, high=1), d.dense(*t)), {}


def triangular(x: Any, upper: bool, unit: bool) -> Any:
    """The triangle that is read of far(x)."""
    out = (np.triu if upper else np.tril)(far(x))
    return out - np.eye(x.shape[-1]) * (np.diagonal(out, 0, -2, -1)[..., None] - 1) if unit else out


ROWS = [
    *(OpCase(f"solve_triangular[{'upper' if upper else 'lower'}{', unit' * unit}]", lambda a, b, upper=upper, unit=unit: L.solve_triangular(far(a), b, upper=upper, unitriangular=unit),
             lambda a, b, upper=upper, unit=unit: np.linalg.solve(triangular(a, upper, unit), b), triangles, errors=(
        (lambda: L.solve_triangular(sg.ones(2, 2), sg.ones(3, 1), upper=True), sg.ShapeError, r"solve_triangular: shapes do not fit; got A: \(2, 2\), B: \(3, 1\)"),))
      for upper in (True, False) for unit in (True, False)),
    OpCase("solve_triangular[right]", lambda a, b: L.solve_triangular(far(a), b.mT, upper=True, left=False), lambda a, b: np.swapaxes(b, -1, -2) @ np.linalg.inv(np.triu(far(a))), triangles),
    *(OpCase(f"lstsq[{m}, {n}]", lambda a, b: L.lstsq(a, b).solution, lambda a, b: np.linalg.lstsq(a, b, None)[0], lambda d, m=m, n=n: iter([((d.dense(m, n) + 2 * np.eye(m, n), d.dense(m, 2)), {})]))
      for m, n in ((5, 3), (3, 5), (3, 3))),
    OpCase("lstsq[residuals]", lambda a, b: L.lstsq(a, b).residuals, lambda a, b: np.linalg.lstsq(a, b, None)[1][0], lambda d: iter([((d.dense(5, 3) + 2 * np.eye(5, 3), d.dense(5)), {})]), errors=(
        (lambda: L.lstsq(sg.ones(3, 2), sg.ones(2)), sg.ShapeError, r"lstsq: shapes do not fit; got A: \(3, 2\), B: \(2,\)"),)),
    *(OpCase(f"cond[{p}]", lambda a, p=p: L.cond(far(a), p), lambda a, p=p: np.linalg.cond(far(a), p), lambda d: iter([((d.dense(3, 3, low=-1, high=1),), {})])) for p in (None, -2, 1, "fro")),
    OpCase("multi_dot", lambda *a: L.multi_dot(a), lambda *a: np.linalg.multi_dot(a), lambda d: iter([((d.dense(2, 3), d.dense(3, 4), d.dense(4, 2)), {}), ((d.dense(3), d.dense(3, 4), d.dense(4)), {})]), bilinear=True, errors=(
        (lambda: L.multi_dot([sg.ones(2)]), sg.ShapeError, r"multi_dot: expected at least two matrices, vectors at the ends, got \[\(2,\)\]"),)),
    OpCase("cross", sg.cross, np.cross, lambda d: iter([((d.dense(4, 3), d.dense(4, 3)), {}), ((d.dense(3), d.dense(3)), {})]), bilinear=True, errors=(
        (lambda: sg.cross(sg.ones(2), sg.ones(2)), sg.ShapeError, r"cross: expected two tensors with size 3 in dim -1, got \(2,\) and \(2,\)"),)),
    OpCase("vdot", sg.vdot, np.vdot, lambda d: iter([((d.dense(4), d.dense(4)), {})]), bilinear=True),
    OpCase("solve[shifted]", lambda a, b: L.solve(far(a), b), ref_solve, systems, "solve_p", errors=(
        (lambda: L.solve(sg.zeros(2, 2), sg.ones(2)), sg.errors.SingularMatrixError, r"solve: A of shape \(2, 2\): Singular"),
        (lambda: L.solve(sg.ones(2, 3), sg.ones(2)), sg.ShapeError, r"solve: expected square matrices, got shape \(2, 3\)"),
        (lambda: L.solve(sg.ones(2, 2), sg.ones(3)), sg.ShapeError, r"solve: shapes do not fit; got A: \(2, 2\), B: \(3,\)"),
        (lambda: L.solve(eye(), sg.ones(2)), TypeError, "solve: A must be dense"),)),
    OpCase("inv[shifted]", lambda a: L.inv(far(a)), lambda a: np.linalg.inv(far(a)), regular, "inv_p", errors=(
        (lambda: L.inv(sg.zeros(2, 2)), sg.errors.SingularMatrixError, "inv: A of shape"),)),
    OpCase("det[shifted]", lambda a: L.det(far(a)), lambda a: np.linalg.det(far(a)), regular, "det_p"),
    OpCase("slogdet[shifted]", lambda a: L.slogdet(far(a))[1], lambda a: np.linalg.slogdet(far(a))[1], regular, "slogdet_p"),
    OpCase("cholesky[shifted]", lambda a: L.cholesky(spd(a)), lambda a: np.linalg.cholesky(spd(a)), regular, "cholesky_p", errors=(
        (lambda: L.cholesky(-sg.eye(2)), sg.errors.SingularMatrixError, "cholesky: A of shape .* not positive definite"),)),
    OpCase("qr", lambda a: both(L.qr(a)), lambda a: ref_both(np.linalg.qr(a)), tall, "qr_p", errors=(
        (lambda: L.qr(sg.ones(2, 3, requires_grad=True)), sg.ShapeError, "qr: a gradient needs at least as many rows"),)),
    OpCase("eigh[shifted]", lambda a: L.eigh(spread(a))[0], lambda a: np.linalg.eigh(spread(a))[0], regular, "eigh_p"),
    OpCase("eigh[vectors]", lambda a: L.eigh(spread(a))[1] ** 2, lambda a: np.linalg.eigh(spread(a))[1] ** 2, regular),
    OpCase("svd", lambda a: parts_of_svd(*L.svd(a, full_matrices=False)), lambda a: parts_of_svd(*np.linalg.svd(a, full_matrices=False)), shapes, "svd_p", errors=(
        (lambda: L.svd(sg.ones(3)), sg.ShapeError, r"svd: expected matrices, got shape \(3,\)"),
        (lambda: L.svd(eye()), TypeError, "svd: A must be dense"),)),
    OpCase("svd[full]", lambda a: parts_of_svd(*L.svd(a)), lambda a: parts_of_svd(*np.linalg.svd(a)), shapes),
    *(OpCase(f"svd[low rank{more}]", lambda a, as_=as_: parts_of_svd(*few(as_(a), min(a.shape))), lambda a: parts_of_svd(*np.linalg.svd(a, full_matrices=False)), matrices, tol={"float16": 2e-2, "bfloat16": 0.1}, errors=(
        (lambda: sg.svd_lowrank(eye(), 3), sg.ShapeError, r"svd_lowrank: q must lie in \[1, 2\] and niter not be negative, got q 3, niter 2 and A \(2, 2\)"),
        (lambda: sg.svd_lowrank(sg.ones(3)), sg.ShapeError, r"svd_lowrank: A must be a matrix, got shape \(3,\)"),
    )) for more, as_ in (("", lambda a: a), (", sparse", lambda a: sg.to_sparse(a, "csr")))),
    OpCase("svd[low rank, one of several]", lambda a: few(sg.to_sparse(a), 1, 30)[1], lambda a: np.linalg.svd(a)[1][:1], matrices),
    OpCase("svdvals", L.svdvals, lambda a: np.linalg.svd(a)[1], shapes),
    OpCase("svdvals[equal]", lambda a: L.svdvals(a * 0.001 + sg.Tensor(np.eye(3, dtype=a.dtype), device=a.device)).sum(), lambda a: np.linalg.svd(a * 0.001 + np.eye(3))[1].sum(),
           lambda d: iter([((np.zeros((3, 3)),), {})]), order=1),
    OpCase("eigvalsh[shifted]", lambda a: L.eigvalsh(spread(a)), lambda a: np.linalg.eigvalsh(spread(a)), regular),
    OpCase("eigvalsh[equal]", lambda a: (L.eigvalsh((a + a.mT) * 0.001 + sg.Tensor(np.eye(3, dtype=a.dtype), device=a.device)) ** 2).sum(), lambda a: (np.linalg.eigvalsh((a + a.T) * 0.001 + np.eye(3)) ** 2).sum(),
           lambda d: iter([((np.zeros((3, 3)),), {})]), order=1),
    OpCase("pinv", L.pinv, np.linalg.pinv, shapes, "pinv_p"),
    OpCase("pinv[low rank]", lambda a, b: L.pinv(a @ b, rtol=1e-3), lambda a, b: np.linalg.pinv(a @ b, rcond=1e-3), low_rank),
    OpCase("matrix_rank", lambda a, b: L.matrix_rank(a @ b, rtol=1e-3), lambda a, b: np.linalg.matrix_rank(a @ b), low_rank, order=0),
    *(OpCase(f"matrix_power[{n}]", lambda a, n=n: L.matrix_power(far(a), n), lambda a, n=n: np.linalg.matrix_power(far(a), n), regular, tol={"float16": 2e-2}) for n in (1, 3, 4, -2)),
    OpCase("matrix_power[0]", lambda a: L.matrix_power(a, 0), lambda a: np.linalg.matrix_power(a, 0), regular, order=0),
    *(OpCase(f"matrix_norm[{ord}]", lambda a, ord=ord: L.matrix_norm(a, ord), lambda a, ord=ord: np.linalg.norm(a, ord, axis=(-2, -1)), shapes, errors=(
        (lambda: L.matrix_norm(sg.ones(2, 2), 3), ValueError, "matrix_norm: ord must be"),)) for ord in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)),
    OpCase("matrix_norm[dims]", lambda a: L.norm(a, 1, (0, -1), True), lambda a: np.linalg.norm(a, 1, (0, 2), True), lambda d: iter([((d.away(2, 3, 4),), {})])),
    *(OpCase(f"matrix_norm[sparse,{ord}]", lambda a, ord=ord: L.matrix_norm(a, ord), lambda a, ord=ord: np.linalg.norm(a, ord), lambda d: iter([((d.sparse(6, 4, p),), {}) for p in (0.4, 0)]), None, FORMATS) for ord in (1, np.inf, "fro")),
    OpCase("trace", L.trace, lambda a: np.trace(a, axis1=-2, axis2=-1), lambda d: iter([((d.dense(3, 4),), {}), ((d.dense(2, 3, 3),), {})]), bilinear=True),
    OpCase("linalg.norm", lambda x: L.norm(x) + L.vector_norm(x, 1), lambda x: np.sqrt((x * x).sum()) + np.abs(x).sum(), unary_away, errors=(
        (lambda: L.norm(sg.ones(1, 2, 3), 2), sg.ShapeError, r"norm: ord without dim needs 1 or 2 dimensions, got \(1, 2, 3\)"),)),
]  # fmt: skip
