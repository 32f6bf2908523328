"""Linear algebra on (batches of) dense matrices: `sg.linalg`. float16 is computed in float32.

Sparse systems: `sg.spsolve`, `sg.triangular_solve`, `sg.cg` and their kin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsegrad import backends, dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError, SingularMatrixError
from sparsegrad.ops import reduce
from sparsegrad.ops.dense_matmul import matmul_p
from sparsegrad.ops.elementwise import mul_p
from sparsegrad.ops.reduce import sum_p
from sparsegrad.ops.shape import reshape_p, transpose

__all__ = ["cholesky", "det", "eigh", "inv", "norm", "qr", "slogdet", "solve", "trace"]


def _wide(fn: Callable[..., Any], op: str, *arrays: Any) -> Any:
    """fn in a dtype that LAPACK has; SingularMatrixError names the op and the shape."""
    dtype = arrays[0].dtype
    wide = [a.astype(dtypes.accumulator(dtype), copy=False) for a in arrays]
    try:
        found = fn(*wide)
    except np.linalg.LinAlgError as error:
        raise SingularMatrixError(f"{op}: A of shape {arrays[0].shape}: {error}") from None
    if isinstance(found, tuple):
        return tuple(f.astype(dtype, copy=False) for f in found)
    return found.astype(dtype, copy=False)


def _t(x: Any) -> Any:
    return transpose(x, -2, -1)


# ---- systems -----------------------------------------------------------------------------------
@primitive(promote="float")
def solve_p(xp: Any, a: Any, b: Any) -> Any:
    """x of a @ x = b: a (*B, n, n), b (*B, n, k)."""
    return _wide(xp.linalg.solve, "solve", a, b)


def _solve_rule(g: Any, a: Any, out: Any, needs: tuple[bool, bool]) -> list[Any]:
    """One solve with the transpose serves both."""
    back = solve_p(_t(a), g)
    return [-matmul_p(back, _t(out)) if needs[0] else None, back if needs[1] else None]


solve_p.defvjp(("a", "b"), _solve_rule)


@primitive(promote="float")
def inv_p(xp: Any, a: Any) -> Any:
    return _wide(xp.linalg.inv, "inv", a)


inv_p.defvjp(a=lambda g, out: -matmul_p(_t(out), matmul_p(g, _t(out))))


# ---- determinants ------------------------------------------------------------------------------
@primitive(promote="float")
def det_p(xp: Any, a: Any) -> Any:
    return xp.asarray(_wide(xp.linalg.det, "det", a))


def _corner(g: Any) -> Any:
    """(*B) as (*B, 1, 1)."""
    return reshape_p(g, shape=(*g.shape, 1, 1))


det_p.defvjp(a=lambda g, a, out: _corner(g * out) * _t(inv_p(a)))


@primitive(promote="float", outputs=("sign", "logabsdet"))
def slogdet_p(xp: Any, a: Any) -> Any:
    sign, logabsdet = _wide(lambda m: tuple(xp.linalg.slogdet(m)), "slogdet", a)
    return sign, logabsdet


slogdet_p.defvjp(a=lambda g, a: _corner(g[1]) * _t(inv_p(a)))


# ---- factorizations ----------------------------------------------------------------------------
@primitive(promote="float")
def cholesky_p(xp: Any, a: Any) -> Any:
    return _wide(xp.linalg.cholesky, "cholesky", a)


def _lower(x: Any, diagonal: float) -> Any:
    """The lower triangle, with the diagonal times a number."""
    from sparsegrad.tensor import Tensor

    xp, n = backends.for_array(x.data).xp, x.shape[-1]
    mask = xp.tril(xp.ones((n, n), dtype=x.dtype), -1) + diagonal * xp.eye(n, dtype=x.dtype)
    return mul_p(x, Tensor(mask.astype(x.dtype, copy=False)))


def _cholesky_rule(g: Any, out: Any) -> Any:
    inner = _lower(matmul_p(_t(out), g), 0.5)
    half = solve_p(_t(out), inner)  # L^-T inner L^-1, from the left and from the right
    whole = _t(solve_p(_t(out), _t(half)))
    return (whole + _t(whole)) * 0.5


cholesky_p.defvjp(a=_cholesky_rule)


@primitive(promote="float", outputs=("q", "r"))
def qr_p(xp: Any, a: Any) -> Any:
    q, r = _wide(lambda m: tuple(xp.linalg.qr(m)), "qr", a)
    return q, r


def _qr_rule(g: Any, q: Any, r: Any) -> Any:
    gq, gr = g
    m = matmul_p(r, _t(gr)) - matmul_p(_t(gq), q)
    both = _lower(m, 1) + _t(_lower(m, 0))
    return _t(solve_p(r, _t(gq + matmul_p(q, both))))


qr_p.defvjp(a=_qr_rule)


@primitive(promote="float", outputs=("w", "v"))
def eigh_p(xp: Any, a: Any) -> Any:
    w, v = _wide(lambda m: tuple(xp.linalg.eigh(m)), "eigh", a)
    return w, v


def _eigh_rule(g: Any, w: Any, v: Any) -> Any:
    from sparsegrad.tensor import Tensor

    gw, gv = g
    xp, n = backends.for_array(w.data).xp, w.shape[-1]
    eye = Tensor(xp.eye(n, dtype=w.dtype))
    gap = reshape_p(w, shape=(*w.shape[:-1], 1, n)) - reshape_p(w, shape=(*w.shape, 1))
    turn = matmul_p(_t(v), gv) * ((1 - eye) / (gap + eye))
    inner = turn + reshape_p(gw, shape=(*gw.shape, 1)) * eye
    whole = matmul_p(v, matmul_p(inner, _t(v)))
    return (whole + _t(whole)) * 0.5


eigh_p.defvjp(a=_eigh_rule)


# ---- public names ------------------------------------------------------------------------------
def _matrix(op: str, A: Any, square: bool = True) -> Any:
    from sparsegrad.tensor import as_tensor

    if getattr(A, "_is_sparse", False):
        raise TypeError(f"{op}: A must be dense, got a SparseTensor; see sg.spsolve and its kin")
    A = as_tensor(A)
    if A.ndim < 2 or (square and A.shape[-1] != A.shape[-2]):
        kind = "square matrices" if square else "matrices"
        raise ShapeError(f"{op}: expected {kind}, got shape {A.shape}")
    return A


def solve(A: Any, B: Any) -> Any:
    """x of A @ x = B: A (*N, n, n), B (*N, n, k), or (n,) for one vector -> the shape of B. Both
    have gradients. Raises SingularMatrixError for a singular A, ShapeError for sizes that do not
    fit.

    >>> import sparsegrad as sg
    >>> sg.linalg.solve(sg.tensor([[2.0, 0.0], [0.0, 4.0]]), sg.tensor([2.0, 2.0]))
    tensor([1. , 0.5])
    """
    from sparsegrad.tensor import as_tensor

    A, B = _matrix("solve", A), as_tensor(B)
    if not B.ndim or A.shape[-1] != B.shape[0 if B.ndim == 1 else -2]:
        raise ShapeError(f"solve: shapes do not fit; got A: {A.shape}, B: {B.shape}")
    if B.ndim > 1:
        return solve_p(A, B)
    out = solve_p(A, reshape_p(B, shape=(-1, 1)))
    return reshape_p(out, shape=out.shape[:-1])


def inv(A: Any) -> Any:
    """The inverse of A (*N, n, n), same shape. Raises SingularMatrixError for a singular A.

    >>> import sparsegrad as sg
    >>> sg.linalg.inv(sg.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([[0.5 , 0.  ],
            [0.  , 0.25]])
    """
    return inv_p(_matrix("inv", A))


def det(A: Any) -> Any:
    """The determinant of A (*N, n, n) -> (*N). Its gradient needs an inverse: it raises
    SingularMatrixError where the determinant is 0.

    >>> import sparsegrad as sg
    >>> sg.linalg.det(sg.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor(8.)
    """
    return det_p(_matrix("det", A))


def slogdet(A: Any) -> tuple[Any, Any]:
    """Sign and logarithm of the absolute value of the determinant of A (*N, n, n) -> (*N) each; the
    sign has no gradient.

    >>> import sparsegrad as sg
    >>> sg.linalg.slogdet(sg.tensor([[-1.0, 0.0], [0.0, 1.0]]))
    (tensor(-1.), tensor(0.))
    """
    return slogdet_p(_matrix("slogdet", A))


def cholesky(A: Any) -> Any:
    """The lower triangular L of A = L @ L^T for symmetric positive definite A (*N, n, n), of which
    the lower triangle is read. Its gradient is symmetric. Raises SingularMatrixError for any other.

    >>> import sparsegrad as sg
    >>> sg.linalg.cholesky(sg.tensor([[4.0, 0.0], [0.0, 9.0]]))
    tensor([[2., 0.],
            [0., 3.]])
    """
    return cholesky_p(_matrix("cholesky", A))


def qr(A: Any) -> tuple[Any, Any]:
    """Q (*N, m, k) with orthonormal columns and upper triangular R (*N, k, n) with A = Q @ R, for A
    (*N, m, n), k = min(m, n). Gradients need m >= n and full rank.

    >>> import sparsegrad as sg
    >>> Q, R = sg.linalg.qr(sg.eye(3, 2))
    >>> sg.allclose(Q @ R, sg.eye(3, 2))
    True
    """
    A = _matrix("qr", A, square=False)
    if A.requires_grad and A.shape[-2] < A.shape[-1]:
        raise ShapeError(f"qr: a gradient needs at least as many rows as columns, got {A.shape}")
    return qr_p(A)


def eigh(A: Any) -> tuple[Any, Any]:
    """Eigenvalues (*N, n), rising, and eigenvectors (*N, n, n), in columns, of symmetric A (*N, n,
    n), of which the lower triangle is read. Gradients of eigenvectors need distinct eigenvalues;
    the gradient of A is symmetric.

    >>> import sparsegrad as sg
    >>> sg.linalg.eigh(sg.tensor([[2.0, 0.0], [0.0, 1.0]]))[0]
    tensor([1., 2.])
    """
    return eigh_p(_matrix("eigh", A))


def trace(A: Any) -> Any:
    """The sum of the diagonal of A (*N, m, n) -> (*N).

    >>> import sparsegrad as sg
    >>> sg.linalg.trace(sg.eye(3))
    tensor(3.)
    """
    from sparsegrad.tensor import Tensor

    A = _matrix("trace", A, square=False)
    eye = Tensor(backends.for_array(A.data).xp.eye(*A.shape[-2:], dtype=A.dtype))
    return sum_p(A * eye, axis=(A.ndim - 2, A.ndim - 1))


def norm(x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Any:
    """The vector norm of order `ord` (2 by default) over `dim`; with `ord` "fro" that of a matrix.
    See `sg.norm`, also for sparse tensors.

    >>> import sparsegrad as sg
    >>> sg.linalg.norm(sg.tensor([3.0, 4.0])), sg.linalg.norm(sg.tensor([3.0, -4.0]), math.inf)
    (tensor(5.), tensor(4.))
    """
    p = 2 if ord is None or ord == "fro" else math.inf if ord in ("inf", math.inf) else ord
    return reduce.norm(x, p, dim, keepdim)
