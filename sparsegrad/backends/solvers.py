"""Sparse solvers over SciPy, on arrays in host memory: direct, triangular, iterative."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from sparsegrad.dtypes import accumulator, kind
from sparsegrad.errors import ConvergenceWarning, DtypeError, SingularMatrixError

__all__ = ["Factor", "Options", "krylov", "triangular"]

Array = Any
Csr = tuple[np.ndarray, np.ndarray, np.ndarray]  # data, indices, indptr


class Options(NamedTuple):
    """What an iterative solve needs to know beside A and b."""

    method: str
    rtol: float
    atol: float
    maxiter: int | None
    restart: int | None
    M: Any  # scipy.sparse array close to the inverse of A, or None
    x0: Any  # (n, k), or None


def _solver_dtype(op: str, dtype: np.dtype) -> np.dtype:
    """SuperLU computes in float32 and float64 (and their complex counterparts)."""
    if kind(dtype) not in "fc":
        raise DtypeError(f"{op}: needs a floating-point dtype, got {dtype}")
    return accumulator(dtype)


class Factor:
    """P A Q = L U of a square matrix by SuperLU, kept to solve with A and with its transpose."""

    def __init__(self, be: Any, shape: tuple[int, int], csr: Csr) -> None:
        import scipy.sparse as sp
        from scipy.sparse.linalg import splu

        self.dtype = _solver_dtype("spsolve", csr[0].dtype)
        self.be = be
        self.lu: Any = None
        if not shape[0]:
            return
        data = csr[0].astype(self.dtype, copy=False)
        # CSR read as CSC is the transpose, so no conversion is needed: `trans` is the other way.
        matrix = sp.csc_array((data, *_int32("spsolve", *csr[1:])), shape=shape)
        try:
            self.lu = splu(matrix)
        except RuntimeError as error:
            raise SingularMatrixError(
                f"spsolve: A of shape {shape} with {data.size} entries is singular ({error})"
            ) from None

    def solve(self, b: Array, transposed: bool) -> Array:
        """x (n, k) of A @ x = b, or A.T @ x = b, in the dtype of b."""
        if self.lu is None or not b.size:
            return self.be.asarray(np.zeros(b.shape, b.dtype))
        host = np.ascontiguousarray(self.be.to_host(b), dtype=self.dtype)
        x = self.lu.solve(host, trans="N" if transposed else "T")
        return self.be.asarray(np.ascontiguousarray(x, dtype=b.dtype))


def triangular(csr: Csr, b: np.ndarray, lower: bool, unit: bool) -> np.ndarray:
    """x (n, k) of a triangular system; only entries of the triangle may be stored."""
    import scipy.sparse as sp
    from scipy.sparse.linalg import spsolve_triangular

    data, indices, indptr = csr
    n = indptr.size - 1
    dtype = _solver_dtype("triangular_solve", data.dtype)
    if not b.size:
        return np.zeros(b.shape, b.dtype)
    indices, indptr = _int32("triangular_solve", indices, indptr)
    matrix = sp.csr_array((data.astype(dtype), indices, indptr), shape=(n, n))
    if unit:
        matrix = sp.csr_array(matrix + sp.eye_array(n, dtype=dtype, format="csr"))
    else:
        diagonal = matrix.diagonal()
        if (zero := np.flatnonzero(diagonal == 0)).size:
            raise SingularMatrixError(
                f"triangular_solve: A of shape {(n, n)} is singular: no diagonal entry, or a zero, "
                f"in row {int(zero[0])}"
            )
    right = np.array(b, dtype=dtype, order="F")
    x = spsolve_triangular(matrix.tocsc(), right, lower=lower, unit_diagonal=unit)
    return np.ascontiguousarray(x, dtype=b.dtype)


def krylov(csr: Csr, shape: tuple[int, int], b: np.ndarray, options: Options) -> np.ndarray:
    """x (n, k), a column at a time. ConvergenceWarning where the tolerance is not reached,
    SingularMatrixError where the method breaks down."""
    import scipy.sparse as sp
    from scipy.sparse import linalg

    name = options.method
    dtype = _solver_dtype(name, csr[0].dtype)
    matrix = sp.csr_array((csr[0].astype(dtype, copy=False), *csr[1:]), shape=shape)
    out = np.empty(b.shape, dtype=b.dtype)
    method = getattr(linalg, name)
    extra: dict[str, Any] = {}
    if name == "gmres":
        extra = {"restart": options.restart, "callback_type": "pr_norm"}
    for j in range(b.shape[1]):
        right = np.ascontiguousarray(b[:, j], dtype=dtype)
        if not right.any():  # SciPy's iterations divide by the norm of the residual
            out[:, j] = 0
            continue
        steps = 0

        def count(_: Any) -> None:
            nonlocal steps
            steps += 1

        start = None if options.x0 is None else options.x0[:, j].astype(dtype)
        x, info = method(
            matrix, right, x0=start, rtol=options.rtol, atol=options.atol,
            maxiter=options.maxiter, M=options.M, callback=count, **extra,
        )  # fmt: skip
        if info:
            residual = float(np.linalg.norm(right - matrix @ x))
            norm = float(np.linalg.norm(right))
            said = (
                f"{name}: column {j} of b: residual {residual:.3g} after {steps} iterations, "
                f"tolerance {max(options.rtol * norm, options.atol):.3g}"
            )
            if info < 0 or not np.isfinite(residual):
                raise SingularMatrixError(f"{said}; the iteration broke down")
            warnings.warn(
                f"{said}; raise maxiter or rtol, or give a preconditioner M. The gradients of an "
                "inexact solution are inexact too",
                ConvergenceWarning,
                stacklevel=2,
            )
        out[:, j] = x
    return out


def _int32(op: str, *arrays: np.ndarray) -> list[np.ndarray]:
    """Index arrays as SuperLU takes them."""
    if any(a.size and a.max() > np.iinfo(np.int32).max for a in arrays):
        raise DtypeError(f"{op}: SuperLU takes 32-bit indices; the matrix has more entries")
    return [a.astype(np.int32, copy=False) for a in arrays]
