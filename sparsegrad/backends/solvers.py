"""Direct solvers over SciPy, on arrays in host memory: SuperLU, and substitution."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegrad.dtypes import accumulator, kind
from sparsegrad.errors import DtypeError, SingularMatrixError

__all__ = ["Factor", "triangular"]

Array = Any
Csr = tuple[np.ndarray, np.ndarray, np.ndarray]  # data, indices, indptr


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


def _int32(op: str, *arrays: np.ndarray) -> list[np.ndarray]:
    """Index arrays as SuperLU takes them."""
    if any(a.size and a.max() > np.iinfo(np.int32).max for a in arrays):
        raise DtypeError(f"{op}: SuperLU takes 32-bit indices; the matrix has more entries")
    return [a.astype(np.int32, copy=False) for a in arrays]
