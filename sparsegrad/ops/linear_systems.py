"""Systems of (batches of) dense matrices, their inverses and determinants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsegrad import backends, dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError, SingularMatrixError
from sparsegrad.ops.dense_matmul import matmul_p
from sparsegrad.ops.elementwise import mul_p
from sparsegrad.ops.rearrange import flip
from sparsegrad.ops.shape import reshape_p, transpose

__all__ = [
    "det",
    "inv",
    "slogdet",
    "solve",
    "solve_triangular",
]


def lapack(fn: Callable[..., Any], op: str, *arrays: Any) -> Any:
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


def transposed(x: Any) -> Any:
    return transpose(x, -2, -1)


# ---- systems -----------------------------------------------------------------------------------
@primitive(promote="float")
def solve_p(xp: Any, a: Any, b: Any) -> Any:
    """x of a @ x = b: a (*B, n, n), b (*B, n, k)."""
    return lapack(xp.linalg.solve, "solve", a, b)


def _solve_rule(g: Any, a: Any, out: Any, needs: tuple[bool, bool]) -> list[Any]:
    """One solve with the transpose serves both."""
    back = solve_p(transposed(a), g)
    return [-matmul_p(back, transposed(out)) if needs[0] else None, back if needs[1] else None]


solve_p.defvjp(("a", "b"), _solve_rule)


@primitive(promote="float")
def inv_p(xp: Any, a: Any) -> Any:
    return lapack(xp.linalg.inv, "inv", a)


inv_p.defvjp(a=lambda g, out: -matmul_p(transposed(out), matmul_p(g, transposed(out))))


# ---- determinants ------------------------------------------------------------------------------
@primitive(promote="float")
def det_p(xp: Any, a: Any) -> Any:
    return xp.asarray(lapack(xp.linalg.det, "det", a))


def _corner(g: Any) -> Any:
    """(*B) as (*B, 1, 1)."""
    return reshape_p(g, shape=(*g.shape, 1, 1))


det_p.defvjp(a=lambda g, a, out: _corner(g * out) * transposed(inv_p(a)))


@primitive(promote="float", outputs=("sign", "logabsdet"))
def slogdet_p(xp: Any, a: Any) -> Any:
    sign, logabsdet = lapack(lambda m: tuple(xp.linalg.slogdet(m)), "slogdet", a)
    return sign, logabsdet


slogdet_p.defvjp(a=lambda g, a: _corner(g[1]) * transposed(inv_p(a)))


def lower(x: Any, diagonal: float) -> Any:
    """The lower triangle, with the diagonal times a number."""
    from sparsegrad.tensor import Tensor

    xp, n = backends.for_array(x.data).xp, x.shape[-1]
    mask = xp.tril(xp.ones((n, n), dtype=x.dtype), -1) + diagonal * xp.eye(n, dtype=x.dtype)
    return mul_p(x, Tensor(mask.astype(x.dtype, copy=False)))


# ---- public names ------------------------------------------------------------------------------
def as_matrix(op: str, A: Any, square: bool = True) -> Any:
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

    A, B = as_matrix("solve", A), as_tensor(B)
    if not B.ndim or A.shape[-1] != B.shape[0 if B.ndim == 1 else -2]:
        raise ShapeError(f"solve: shapes do not fit; got A: {A.shape}, B: {B.shape}")
    if B.ndim > 1:
        return solve_p(A, B)
    out = solve_p(A, reshape_p(B, shape=(-1, 1)))
    return reshape_p(out, shape=out.shape[:-1])


def solve_triangular(
    A: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """X of A @ X = B for a triangular A (*N, n, n), B (*N, n, k); of X @ A = B for left=False, B
    (*N, k, n). The other triangle is not read, and with `unitriangular` nor is the diagonal, which
    counts as ones. Raises SingularMatrixError for a 0 on the diagonal.

    By LAPACK's general solver, which has nothing to eliminate then.

    >>> import sparsegrad as sg
    >>> A = sg.tensor([[2.0, 9.0], [2.0, 1.0]])
    >>> sg.linalg.solve_triangular(A, sg.tensor([[2.0], [3.0]]), upper=False).tolist()
    [[1.0], [1.0]]
    """
    from sparsegrad.tensor import Tensor, as_tensor

    A, B = as_matrix("solve_triangular", A), as_tensor(B)
    if B.ndim < 2 or A.shape[-1] != B.shape[-2 if left else -1]:
        raise ShapeError(f"solve_triangular: shapes do not fit; got A: {A.shape}, B: {B.shape}")
    if not left:
        options: dict[str, Any] = {"upper": not upper, "unitriangular": unitriangular}
        return transposed(solve_triangular(transposed(A), transposed(B), **options))
    if (
        not upper
    ):  # the rows and columns in reverse: an upper triangle, in which no rows are swapped
        A, B = flip(A, -2, -1), flip(B, -2)
    A = transposed(lower(transposed(A), 0 if unitriangular else 1))
    if unitriangular:
        A = A + Tensor(backends.for_array(A.data).xp.eye(A.shape[-1], dtype=A.dtype))
    out = solve_p(A, B)
    return out if upper else flip(out, -2)


def inv(A: Any) -> Any:
    """The inverse of A (*N, n, n), same shape. Raises SingularMatrixError for a singular A.

    >>> import sparsegrad as sg
    >>> sg.linalg.inv(sg.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([[0.5 , 0.  ],
            [0.  , 0.25]])
    """
    return inv_p(as_matrix("inv", A))


def det(A: Any) -> Any:
    """The determinant of A (*N, n, n) -> (*N). Its gradient needs an inverse: it raises
    SingularMatrixError where the determinant is 0.

    >>> import sparsegrad as sg
    >>> sg.linalg.det(sg.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor(8.)
    """
    return det_p(as_matrix("det", A))


def slogdet(A: Any) -> tuple[Any, Any]:
    """Sign and logarithm of the absolute value of the determinant of A (*N, n, n) -> (*N) each; the
    sign has no gradient.

    >>> import sparsegrad as sg
    >>> sg.linalg.slogdet(sg.tensor([[-1.0, 0.0], [0.0, 1.0]]))
    (tensor(-1.), tensor(0.))
    """
    return slogdet_p(as_matrix("slogdet", A))
