"""Iterative solvers for all columns of b at once: conjugate gradients, BiCGSTAB, restarted GMRES.

An iteration multiplies with A once for all columns (one `spmm`, on the device where A is; SciPy's
solvers take one vector). Every column has its own step lengths and leaves when it has converged.
Numbers that belong to columns are (k,) in float64, vectors (n, k) in the dtype of A, at least
float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sparsegrad.dtypes import accumulator, kind
from sparsegrad.errors import ConvergenceWarning, DtypeError, SingularMatrixError

__all__ = ["Options", "krylov"]

Array = Any

_RUNNING, _SOLVED, _STUCK, _BROKEN = range(4)
_RESTART = 20  # iterations of GMRES before it starts afresh
_BASIS = 1 << 25  # most numbers in its basis, for which columns are taken in turns


class Options(NamedTuple):
    """What an iterative solve needs to know beside A and b."""

    method: str
    rtol: float
    atol: float
    maxiter: int | None
    restart: int | None
    M: Any  # (pattern, values) of a matrix close to the inverse of A, or None
    x0: Any  # (n, k), or None


def krylov(be: Any, pattern: Any, values: Array, b: Array, options: Options) -> Array:
    """x (n, k) of A @ x = b (n, k). ConvergenceWarning for a column that does not reach the
    tolerance, SingularMatrixError for one whose iteration breaks down."""
    if kind(values.dtype) != "f":
        raise DtypeError(f"{options.method}: needs a floating-point dtype, got {values.dtype}")
    n, k = b.shape
    values = values.astype(accumulator(values.dtype), copy=False)
    limit = 10 * n if options.maxiter is None else options.maxiter
    width = k
    if options.method == "gmres":
        width = max(1, _BASIS // max(1, n * ((options.restart or _RESTART) + 1)))
    out = be.xp.zeros_like(b)
    for first in range(0, k if n else 0, max(width, 1)):
        part = slice(first, first + width)
        run = _Run(be, pattern, values, b[:, part], options, part)
        with np.errstate(all="ignore"):  # a breakdown shows in the numbers
            _METHODS[options.method](run, limit)
            run.put(run.at < 0, run.at >= 0, limit, _STUCK)
        run.report(first)
        out[:, part] = run.out
    return out


class _Run:
    """A system and its columns: x, b, `bound` (of the residual) and `at` (places in the result)
    are those of the columns that are still being solved."""

    def __init__(
        self, be: Any, pattern: Any, values: Array, b: Array, options: Options, part: slice
    ) -> None:
        self.be, self.xp, self.options = be, be.xp, options
        self.pattern, self.values = pattern, values
        self.right = self.b = self.xp.ascontiguousarray(b.astype(values.dtype, copy=False))
        norm = self.norm(self.b)
        self.tolerance = self.bound = self.xp.maximum(options.rtol * norm, options.atol)
        self.x = self.xp.zeros_like(self.b)
        if options.x0 is not None:  # 0 solves for 0 wherever it starts
            self.x = options.x0[:, part].astype(values.dtype) * (norm > 0)
        self.out = self.xp.zeros_like(self.b)
        self.at = self.xp.arange(b.shape[1])
        self.steps = self.xp.zeros(b.shape[1], dtype=np.int64)
        self.state = self.xp.full(b.shape[1], _RUNNING)

    def A(self, x: Array) -> Array:
        return self.be.spmm(self.pattern, self.values, x)

    def M(self, x: Array) -> Array:
        if self.options.M is None:
            return x
        pattern, values = self.options.M
        return self.be.spmm(pattern, values.astype(x.dtype, copy=False), x)

    def dot(self, a: Array, b: Array) -> Array:
        """Each column of a with that of b: (k,)."""
        if a.shape[1] == 1:
            return (a[:, 0] @ b[:, 0]).reshape(1).astype(np.float64)
        return self.xp.einsum("nk,nk->k", a, b, dtype=np.float64)

    def norm(self, a: Array) -> Array:
        return self.xp.sqrt(self.dot(a, a))

    def put(self, solved: Array, lost: Array, step: int, state: Any) -> Array | None:
        """Write down the columns that are solved after so many steps, and those that are lost, in
        their state. The columns that stay, as bools (k,); None if all do."""
        gone = solved | lost
        if not bool(gone.any()):  # sync
            return None
        at, stay = self.at[gone], ~gone
        self.out[:, at] = self.x[:, gone]
        self.steps[at] = step
        self.state[at] = self.xp.where(solved, _SOLVED, state)[gone]
        self.x, self.b = self.x[:, stay], self.b[:, stay]
        self.at, self.bound = self.at[stay], self.bound[stay]
        return stay

    def report(self, first: int) -> None:
        """Warn of columns that missed the tolerance, raise for one that broke down."""
        found = self.norm(self.right - self.A(self.out))
        bad = (self.state != _SOLVED) | ~self.xp.isfinite(found)
        if not bool(bad.any()):  # sync
            return
        found, tolerance, steps, state, bad = (
            self.be.to_host(x) for x in (found, self.tolerance, self.steps, self.state, bad)
        )
        for j in np.flatnonzero(bad):
            said = (
                f"{self.options.method}: column {first + j} of b: residual {found[j]:.3g} after "
                f"{steps[j]} iterations, tolerance {tolerance[j]:.3g}"
            )
            if state[j] == _BROKEN or not np.isfinite(found[j]):
                raise SingularMatrixError(f"{said}; the iteration broke down")
            warnings.warn(
                f"{said}; raise maxiter or rtol, or give a preconditioner M. The gradients of an "
                "inexact solution are inexact too",
                ConvergenceWarning,
                stacklevel=2,
            )


def _times(scale: Array, a: Array) -> Array:
    """Columns times numbers, in the dtype of the columns."""
    return scale.astype(a.dtype) * a


def _cg(run: _Run, limit: int) -> None:
    """Hestenes and Stiefel, 1952."""
    xp = run.xp
    r = run.b - run.A(run.x)
    p = run.M(r)
    rho = run.dot(r, p)
    for step in range(limit + 1):
        stay = run.put(run.norm(r) <= run.bound, ~xp.isfinite(rho), step, _BROKEN)
        if stay is not None:
            r, p, rho = r[:, stay], p[:, stay], rho[stay]
        if step == limit or not run.at.size:
            return
        q = run.A(p)
        alpha = rho / run.dot(p, q)
        run.x += _times(alpha, p)
        r = r - _times(alpha, q)
        z = run.M(r)
        before, rho = rho, run.dot(r, z)
        p = z + _times(rho / before, p)


def _bicgstab(run: _Run, limit: int) -> None:
    """Van der Vorst, 1992; started afresh from the residual where it would break down."""
    xp = run.xp
    r = run.b - run.A(run.x)
    shadow = p = v = r
    rho = alpha = omega = span = xp.ones(r.shape[1])  # span: the norm of the shadow
    fresh = xp.ones(r.shape[1], dtype=bool)
    broken = ~fresh
    tiny = np.finfo(r.dtype).eps
    for step in range(limit + 1):
        size = run.norm(r)
        stay = run.put(size <= run.bound, broken, step, _BROKEN)
        if stay is not None:
            r, shadow, p, v = (t[:, stay] for t in (r, shadow, p, v))
            rho, alpha, omega = (t[stay] for t in (rho, alpha, omega))
            fresh, size, span = (t[stay] for t in (fresh, size, span))
        if step == limit or not run.at.size:
            return
        before, rho = rho, run.dot(shadow, r)
        fresh = fresh | (abs(rho) <= tiny * span * size)
        rho, span = xp.where(fresh, size * size, rho), xp.where(fresh, size, span)
        shadow = xp.where(fresh, r, shadow)
        beta = rho / before * (alpha / omega)
        p = xp.where(fresh, r, r + _times(beta, p - _times(omega, v)))
        ph = run.M(p)
        v = run.A(ph)
        met = run.dot(shadow, v)
        far = run.norm(v)
        lost = abs(met) <= tiny * span * far
        if bool((lost & fresh).any()):  # sync; r is orthogonal to A @ r: another shadow is not
            other = r + _times(size / far, v)
            shadow = xp.where(lost & fresh & (far > 0), other, shadow)
            rho, met, span = run.dot(shadow, r), run.dot(shadow, v), run.norm(shadow)
            lost = abs(met) <= tiny * span * far
        alpha = xp.where(lost, 0, rho / met)
        s = r - _times(alpha, v)
        sh = run.M(s)
        t = run.A(sh)
        length = run.dot(t, t)
        omega = xp.where(length == 0, 0, run.dot(t, s) / length)
        run.x += _times(alpha, ph) + _times(omega, sh)
        r = s - _times(omega, t)
        fresh = (alpha == 0) | (omega == 0)
        broken = ((alpha == 0) & (omega == 0)) | ~xp.isfinite(alpha) | ~xp.isfinite(omega)


def _gmres(run: _Run, limit: int) -> None:
    """Saad and Schultz, 1986; preconditioned from the right, so that residuals are true ones."""
    xp = run.xp
    m = min(run.options.restart or _RESTART, run.b.shape[0])
    before = xp.full(run.b.shape[1], np.inf)
    moved, steps = before > 0, 0
    for cycle in range(limit + 1):
        r = run.b - run.A(run.x)
        size = run.norm(r)
        stuck = ~(size < before)  # then all further cycles would be this one
        stay = run.put(size <= run.bound, stuck, steps, xp.where(moved, _STUCK, _BROKEN))
        if stay is not None:
            r, size = r[:, stay], size[stay]
        if cycle == limit or not run.at.size:
            return
        y, basis = _arnoldi(run, r, size, m)
        steps += len(y)
        before, moved = size, (y != 0).any(axis=0)
        run.x += run.M(_combined(y, basis))


def _arnoldi(run: _Run, r: Array, size: Array, m: int) -> tuple[Array, Array]:
    """At most m steps from the residual r (n, k): the coefficients (j, k) of the least residual in
    an orthonormal basis (j, n, k)."""
    xp = run.xp
    k = size.size
    basis = xp.empty((m + 1, *r.shape), r.dtype)
    basis[0] = _times(1 / size, r)
    triangle, rest = xp.zeros((m, m + 1, k)), xp.zeros((m + 1, k))
    rest[0] = size
    turns: list[tuple[Array, Array]] = []
    tiny = np.finfo(r.dtype).eps
    for j in range(m):
        w = run.A(run.M(basis[j]))
        scale, h = run.norm(w), triangle[j]
        for _ in range(2):  # once is not enough in floating point
            part = _products(run, basis[: j + 1], w)
            w = w - _combined(part, basis[: j + 1])
            h[: j + 1] += part
        h[j + 1] = low = run.norm(w)
        for i, (cos, sin) in enumerate(turns):
            h[i], h[i + 1] = cos * h[i] + sin * h[i + 1], cos * h[i + 1] - sin * h[i]
        length = xp.hypot(h[j], low)
        regular = length > tiny * scale
        cos, sin = xp.where(regular, h[j] / length, 1), xp.where(regular, low / length, 0)
        turns.append((cos, sin))
        h[j] = xp.where(regular, length, 0)
        rest[j], rest[j + 1] = cos * rest[j], -sin * rest[j]
        done = abs(rest[j + 1]) <= run.bound
        if bool(done.all()):  # sync
            break
        basis[j + 1] = _times(xp.where(done | (low == 0), 0, 1 / low), w)
    y = rest[: j + 1]
    for i in reversed(range(j + 1)):
        left = y[i] - (triangle[i + 1 : j + 1, i] * y[i + 1 :]).sum(axis=0)
        y[i] = xp.where(triangle[i, i] == 0, 0, left / triangle[i, i])
    return y, basis[: j + 1]


def _products(run: _Run, basis: Array, w: Array) -> Array:
    """Every vector of a basis (j, n, k) with w (n, k), column by column: (j, k)."""
    if w.shape[1] == 1:
        return (basis[:, :, 0] @ w[:, 0]).astype(np.float64)[:, None]
    return run.xp.stack([run.dot(v, w) for v in basis])


def _combined(y: Array, basis: Array) -> Array:
    """The sum of the vectors of a basis (j, n, k) with coefficients (j, k): (n, k)."""
    if y.shape[1] == 1:
        return (y[:, 0].astype(basis.dtype) @ basis[:, :, 0])[:, None]
    out = _times(y[0], basis[0])
    for i in range(1, len(y)):
        out += _times(y[i], basis[i])
    return out


_METHODS: dict[str, Callable[[_Run, int], None]] = {
    "cg": _cg,
    "bicgstab": _bicgstab,
    "gmres": _gmres,
}
