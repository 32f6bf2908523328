"""Sparse systems of equations. A solve is closed under differentiation with spmm and sddmm: one
adjoint solve gives every gradient.

    x = A⁻¹ b            db = A⁻ᵀ dx          dA on A's entries = -sddmm(db, x)

A direct solve factorizes once: its factors serve the adjoint solve and derivatives of any order.
"""

from __future__ import annotations

from typing import Any

from sparsegrad.backends.krylov import Options
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import DtypeError, ShapeError
from sparsegrad.ops.index import take_p
from sparsegrad.ops.shape import check_sparse, reshape_p
from sparsegrad.ops.sparse_matmul import sddmm_p
from sparsegrad.ops.sparse_structure import coalesce
from sparsegrad.structure import plan_product

__all__ = ["bicgstab", "cg", "gmres", "spsolve", "triangular_solve"]


@primitive(promote="float", aux=("factor",))
def spsolve_p(
    be: Any, values: Any, b: Any, *, pattern: Any, transposed: bool = False, held: Any = None
) -> Any:
    """x (n, k) of A @ x = b (n, k), or of A.T @ x = b. aux: the factors of A; `held` gives them."""
    factor = be.factorize(pattern, values) if held is None else held
    return factor.solve(b, transposed), factor


@primitive(promote="float")
def triangular_p(be: Any, values: Any, b: Any, *, pattern: Any, lower: bool, unit: bool) -> Any:
    """x (n, k) of A @ x = b (n, k), A triangular; `unit`: A + I is meant, no diagonal is stored."""
    return be.triangular_solve(pattern, values, b, lower, unit)


@primitive(promote="float")
def krylov_p(be: Any, values: Any, b: Any, *, pattern: Any, options: Any) -> Any:
    """x (n, k) of A @ x = b (n, k), iteratively."""
    return be.krylov(pattern, values, b, options)


def _spsolve_rule(
    g: Any,
    values: Any,
    out: Any,
    factor: Any,
    pattern: Any,
    transposed: bool,
    needs: tuple[bool, bool],
) -> tuple[Any, Any]:
    db = spsolve_p(values, g, pattern=pattern, transposed=not transposed, held=factor)
    if not needs[0]:
        return None, db
    pair = (out, db) if transposed else (db, out)
    return -sddmm_p(*pair, pattern=pattern), db


def _triangular_rule(
    g: Any,
    values: Any,
    out: Any,
    pattern: Any,
    lower: bool,
    unit: bool,
    needs: tuple[bool, bool],
) -> tuple[Any, Any]:
    db = triangular_p(values, g, pattern=pattern.T, lower=not lower, unit=unit)
    return -sddmm_p(db, out, pattern=pattern) if needs[0] else None, db


def _krylov_rule(
    g: Any, values: Any, out: Any, pattern: Any, options: Any, needs: tuple[bool, bool]
) -> tuple[Any, Any]:
    adjoint = options._replace(x0=None)
    if options.M is not None:
        adjoint = adjoint._replace(M=(options.M[0].T, options.M[1]))
    db = krylov_p(values, g, pattern=pattern.T, options=adjoint)
    return -sddmm_p(db, out, pattern=pattern) if needs[0] else None, db


spsolve_p.defvjp(("values", "b"), _spsolve_rule)
triangular_p.defvjp(("values", "b"), _triangular_rule)
krylov_p.defvjp(("values", "b"), _krylov_rule)


# ---- public names ------------------------------------------------------------------------------
def spsolve(A: Any, b: Any) -> Any:
    """x of A @ x = b by a direct solve (SuperLU): A (n, n) sparse, b (n,) or (n, k) dense -> b's
    shape.

    Gradients to A, on its pattern, and to b cost one solve with the factors that are there.
    Raises ShapeError for sizes that do not fit, SingularMatrixError for a singular A.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 2, 3], [0, 1, 1], [2.0, 1.0, 4.0], (2, 2), requires_grad=True)
    >>> x = sg.spsolve(A, sg.tensor([4.0, 8.0]))
    >>> x.detach()
    tensor([1., 2.])
    >>> x.sum().backward()
    >>> A.grad.values
    tensor([-0.5 , -1.  , -0.25])
    """
    A, b, shape = _system("spsolve", A, b)
    return reshape_p(spsolve_p(A.values, b, pattern=A.pattern), shape=shape)


def triangular_solve(
    A: Any, b: Any, lower: bool = True, transpose: bool = False, unit_diagonal: bool = False
) -> Any:
    """x of T @ x = b by substitution, T the lower (or upper) triangle of A (n, n): b (n,) or
    (n, k) -> b's shape. Entries of A beyond the triangle do not matter and get no gradient.

    transpose: solve T.T @ x = b. unit_diagonal: T has ones on its diagonal, whatever A stores.
    Raises ShapeError, or SingularMatrixError for a zero on the diagonal.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 1, 3], [0, 0, 1], [2.0, 1.0, 4.0], (2, 2))
    >>> sg.triangular_solve(A, sg.tensor([4.0, 10.0]))
    tensor([2., 2.])
    """
    A, b, shape = _system("triangular_solve", A, b)
    pattern, kept = plan_product.triangle(A.pattern, lower, not unit_diagonal)
    values = A.values if kept is None else take_p(A.values, index=kept)
    if transpose:
        pattern, lower = pattern.T, not lower
    out = triangular_p(values, b, pattern=pattern, lower=lower, unit=unit_diagonal)
    return reshape_p(out, shape=shape)


def cg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
) -> Any:
    """x of A @ x = b by conjugate gradients: A (n, n) symmetric and positive definite, b (n,) or
    (n, k) -> b's shape. A is only multiplied with, once an iteration for all columns that are
    still being solved.

    x0: where to start. rtol, atol: stop at |b - A @ x| <= max(rtol * |b|, atol). maxiter: most
    iterations (10 n). M: a SparseTensor close to the inverse of A (a preconditioner, not
    differentiated).

    The gradients cost one more solve of the same accuracy. Emits ConvergenceWarning (iterations,
    residual) where the tolerance is not reached. Raises ShapeError, SingularMatrixError.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 2, 4], [0, 1, 0, 1], [4.0, 1.0, 1.0, 3.0], (2, 2))
    >>> sg.cg(A, sg.tensor([6.0, 7.0])).numpy().round(3)
    array([1., 2.], dtype=float32)
    """
    return _krylov(A, b, x0, Options("cg", rtol, atol, maxiter, None, M, None))


def bicgstab(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
) -> Any:
    """x of A @ x = b by stabilised biconjugate gradients: any square A. Otherwise as `cg`.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 2, 3], [0, 1, 1], [2.0, 1.0, 4.0], (2, 2))
    >>> sg.bicgstab(A, sg.tensor([4.0, 8.0])).numpy().round(3)
    array([1., 2.], dtype=float32)
    """
    return _krylov(A, b, x0, Options("bicgstab", rtol, atol, maxiter, None, M, None))


def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int | None = None,
    maxiter: int | None = None,
    M: Any = None,
) -> Any:
    """x of A @ x = b by generalised minimal residuals: any square A. Otherwise as `cg`.

    restart: iterations before it starts afresh (20). maxiter: most such cycles.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 2, 3], [0, 1, 1], [2.0, 1.0, 4.0], (2, 2))
    >>> sg.gmres(A, sg.tensor([4.0, 8.0])).numpy().round(3)
    array([1., 2.], dtype=float32)
    """
    return _krylov(A, b, x0, Options("gmres", rtol, atol, maxiter, restart, M, None))


def _krylov(A: Any, b: Any, x0: Any, options: Options) -> Any:
    from sparsegrad.tensor import as_tensor

    op = options.method
    A, b, shape = _system(op, A, b)
    if options.M is not None:
        M = options.M
        if not getattr(M, "_is_sparse", False) or M.shape != A.shape:
            found = getattr(M, "shape", type(M).__name__)
            raise ShapeError(f"{op}: M must be a SparseTensor of shape {A.shape}, got {found}")
        M = M.to(A.device)
        options = options._replace(M=(M.pattern, M.values.data))
    if x0 is not None:
        start = as_tensor(x0, device=b.device).data
        if start.shape != shape:
            raise ShapeError(f"{op}: x0 must have the shape {shape} of b, got {start.shape}")
        options = options._replace(x0=start.reshape(b.shape))
    return reshape_p(krylov_p(A.values, b, pattern=A.pattern, options=options), shape=shape)


def _system(op: str, A: Any, b: Any) -> tuple[Any, Any, tuple[int, ...]]:
    """A coalesced, b as a matrix, and the shape of the answer."""
    from sparsegrad.tensor import as_tensor

    check_sparse(op, "A", A)
    if getattr(b, "_is_sparse", False):
        raise TypeError(f"{op}: b must be dense, got a SparseTensor of shape {b.shape}")
    b = as_tensor(b)
    n = A.shape[0]
    if A.shape != (n, n) or A.sparse_dim != 2:
        raise ShapeError(f"{op}: A must be a square sparse matrix, got shape {A.shape}")
    if b.ndim not in (1, 2) or b.shape[0] != n:
        raise ShapeError(f"{op}: b must be ({n},) or ({n}, k) for A {A.shape}, got {b.shape}")
    if "c" in (A.dtype.kind, b.dtype.kind):
        raise DtypeError(f"{op}: complex systems are not supported; got {A.dtype}, {b.dtype}")
    return coalesce(A), (reshape_p(b, shape=(n, 1)) if b.ndim == 1 else b), tuple(b.shape)
