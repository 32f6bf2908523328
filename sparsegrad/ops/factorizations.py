"""Factorizations of (batches of) dense matrices, and what follows from singular values."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegrad import backends, dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError
from sparsegrad.ops.dense_matmul import matmul_p
from sparsegrad.ops.elementwise import where_p
from sparsegrad.ops.linear_systems import as_matrix, lapack, lower, solve_p, transposed
from sparsegrad.ops.shape import cat_p, reshape_p

__all__ = [
    "cholesky",
    "eigh",
    "eigvalsh",
    "matrix_rank",
    "pinv",
    "qr",
    "svd",
    "svdvals",
]


@primitive(promote="float")
def cholesky_p(xp: Any, a: Any) -> Any:
    return lapack(xp.linalg.cholesky, "cholesky", a)


def _cholesky_rule(g: Any, out: Any) -> Any:
    inner = lower(matmul_p(transposed(out), g), 0.5)
    half = solve_p(transposed(out), inner)  # L^-T inner L^-1, from the left and from the right
    whole = transposed(solve_p(transposed(out), transposed(half)))
    return (whole + transposed(whole)) * 0.5


cholesky_p.defvjp(a=_cholesky_rule)


@primitive(promote="float", outputs=("q", "r"))
def qr_p(xp: Any, a: Any) -> Any:
    q, r = lapack(lambda m: tuple(xp.linalg.qr(m)), "qr", a)
    return q, r


def _qr_rule(g: Any, q: Any, r: Any) -> Any:
    gq, gr = g
    m = matmul_p(r, transposed(gr)) - matmul_p(transposed(gq), q)
    both = lower(m, 1) + transposed(lower(m, 0))
    return transposed(solve_p(r, transposed(gq + matmul_p(q, both))))


qr_p.defvjp(a=_qr_rule)


@primitive(promote="float", outputs=("w", "v"))
def eigh_p(xp: Any, a: Any) -> Any:
    w, v = lapack(lambda m: tuple(xp.linalg.eigh(m)), "eigh", a)
    return w, v


def _column(x: Any) -> Any:
    return reshape_p(x, shape=(*x.shape, 1))


def _row(x: Any) -> Any:
    return reshape_p(x, shape=(*x.shape[:-1], 1, x.shape[-1]))


def _diagonal(x: Any) -> Any:
    """(*B, n) -> (*B, n, n)."""
    from sparsegrad.tensor import Tensor

    return _column(x) * Tensor(backends.for_array(x.data).xp.eye(x.shape[-1], dtype=x.dtype))


def _inverse(x: Any) -> Any:
    """1 / x, and 0 where x is 0."""
    zero = x.data == 0
    return where_p(0, 1 / where_p(1, x, mask=zero), mask=zero)


def _turns(w: Any) -> Any:
    """1 / (w_j - w_i), 0 on the diagonal. Also 0 between equal values, whose vectors may turn into
    one another: what does not depend on such a turn, the values above all, has its right slope."""
    return _inverse(_row(w) - _column(w))


def _eigh_rule(g: Any, w: Any, v: Any) -> Any:
    gw, gv = g
    inner = matmul_p(transposed(v), gv) * _turns(w) + _diagonal(gw)
    whole = matmul_p(v, matmul_p(inner, transposed(v)))
    return (whole + transposed(whole)) * 0.5


eigh_p.defvjp(a=_eigh_rule)


@primitive(promote="float", outputs=("u", "s", "vh"))
def svd_p(xp: Any, a: Any) -> Any:
    """U (*B, m, k), singular values, falling, and V^T (*B, k, n), k = min(m, n)."""
    return lapack(lambda m: tuple(xp.linalg.svd(m, full_matrices=False)), "svd", a)


def _svd_rule(g: Any, u: Any, s: Any, vh: Any) -> Any:
    gu, gs, gvh = g
    gv, v, turns = transposed(gvh), transposed(vh), _turns(s * s)
    left, right = matmul_p(transposed(u), gu), matmul_p(vh, gv)
    inner = (left - transposed(left)) * turns * _row(s) + _column(s) * (
        (right - transposed(right)) * turns
    )
    out = matmul_p(u, matmul_p(inner + _diagonal(gs), vh))
    (m, k), n = u.shape[-2:], v.shape[-2]
    if m > k:  # what leaves the space of U
        out = out + matmul_p((gu - matmul_p(u, left)) * _row(_inverse(s)), vh)
    if n > k:
        out = out + matmul_p(u * _row(_inverse(s)), transposed(gv - matmul_p(v, right)))
    return out


svd_p.defvjp(a=_svd_rule)


@primitive(promote="float")
def pinv_p(xp: Any, a: Any, *, rtol: float) -> Any:
    return lapack(lambda m: xp.linalg.pinv(m, rcond=rtol), "pinv", a)


def _pinv_rule(g: Any, a: Any, out: Any) -> Any:
    """Golub and Pereyra, 1973, for matrices that keep their rank."""
    pt, gt = transposed(out), transposed(g)
    outside = gt - matmul_p(a, matmul_p(out, gt))
    beside = gt - matmul_p(matmul_p(gt, out), a)
    ends = matmul_p(outside, matmul_p(out, pt)) + matmul_p(matmul_p(pt, out), beside)
    return ends - matmul_p(pt, matmul_p(g, pt))


pinv_p.defvjp(a=_pinv_rule)


# ---- public names ------------------------------------------------------------------------------
def cholesky(A: Any) -> Any:
    """The lower triangular L of A = L @ L^T for symmetric positive definite A (*N, n, n), of which
    the lower triangle is read. Its gradient is symmetric. Raises SingularMatrixError for any other.

    >>> import sparsegrad as sg
    >>> sg.linalg.cholesky(sg.tensor([[4.0, 0.0], [0.0, 9.0]]))
    tensor([[2., 0.],
            [0., 3.]])
    """
    return cholesky_p(as_matrix("cholesky", A))


def qr(A: Any) -> tuple[Any, Any]:
    """Q (*N, m, k) with orthonormal columns and upper triangular R (*N, k, n) with A = Q @ R, for A
    (*N, m, n), k = min(m, n). Gradients need m >= n and full rank.

    >>> import sparsegrad as sg
    >>> Q, R = sg.linalg.qr(sg.eye(3, 2))
    >>> sg.allclose(Q @ R, sg.eye(3, 2))
    True
    """
    A = as_matrix("qr", A, square=False)
    if A.requires_grad and A.shape[-2] < A.shape[-1]:
        raise ShapeError(f"qr: a gradient needs at least as many rows as columns, got {A.shape}")
    return qr_p(A)


def eigh(A: Any) -> tuple[Any, Any]:
    """Eigenvalues (*N, n), rising, and eigenvectors (*N, n, n), in columns, of symmetric A (*N, n,
    n), of which the lower triangle is read. Eigenvectors have a slope only where eigenvalues are
    distinct; the gradient of A is symmetric.

    >>> import sparsegrad as sg
    >>> sg.linalg.eigh(sg.tensor([[2.0, 0.0], [0.0, 1.0]]))[0]
    tensor([1., 2.])
    """
    return eigh_p(as_matrix("eigh", A))


def eigvalsh(A: Any) -> Any:
    """The eigenvalues of `eigh`, (*N, n).

    >>> import sparsegrad as sg
    >>> sg.linalg.eigvalsh(sg.tensor([[2.0, 0.0], [0.0, 1.0]]))
    tensor([1., 2.])
    """
    return eigh_p(as_matrix("eigvalsh", A))[0]


def svd(A: Any, full_matrices: bool = True) -> tuple[Any, Any, Any]:
    """U, singular values S (*N, k), falling, and V^T of A (*N, m, n), k = min(m, n):
    A = U[..., :k] @ diag(S) @ V^T[..., :k, :].

    full_matrices: U (*N, m, m) and V^T (*N, n, n); otherwise U (*N, m, k) and V^T (*N, k, n). What
        is beyond k has no gradient. Vectors have a slope only where singular values are distinct
        (and positive, unless A is square); signs are LAPACK's.

    >>> import sparsegrad as sg
    >>> U, S, Vh = sg.linalg.svd(sg.tensor([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]]), False)
    >>> S, sg.allclose(U @ sg.diag(S) @ Vh, sg.tensor([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]]))
    (tensor([3., 2.]), True)
    """
    A = as_matrix("svd", A, square=False)
    u, s, vh = svd_p(A)
    if full_matrices and A.shape[-1] != A.shape[-2]:
        tall = A.shape[-2] > A.shape[-1]
        u, vh = (_completed(u), vh) if tall else (u, transposed(_completed(transposed(vh))))
    return u, s, vh


def _completed(u: Any) -> Any:
    """Orthonormal columns (*N, m, k) made a basis (*N, m, m) by columns without gradients."""
    from sparsegrad.tensor import Tensor

    xp = backends.for_array(u.data).xp
    rest = lapack(lambda m: xp.linalg.qr(m, mode="complete")[0], "svd", u.data)
    return cat_p(u, Tensor(rest[..., u.shape[-1] :]), axis=u.ndim - 1)


def svdvals(A: Any) -> Any:
    """The singular values of `svd`, (*N, min(m, n)), with a gradient where they are equal, too.

    >>> import sparsegrad as sg
    >>> sg.linalg.svdvals(sg.tensor([[0.0, 2.0], [3.0, 0.0]]))
    tensor([3., 2.])
    """
    return svd_p(as_matrix("svdvals", A, square=False))[1]


def pinv(A: Any, rtol: float | None = None) -> Any:
    """The pseudo-inverse (*N, n, m) of A (*N, m, n); singular values up to rtol times the largest
    count as 0 (default: max(m, n) times the precision). Its gradient is that of matrices of the
    same rank.

    >>> import sparsegrad as sg
    >>> sg.linalg.pinv(sg.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])).tolist()
    [[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    A = as_matrix("pinv", A, square=False)
    wide = dtypes.accumulator(A.dtype if A.dtype.kind not in "biu" else dtypes.get_default_dtype())
    limit = max(A.shape[-2:]) * float(np.finfo(wide).eps) if rtol is None else rtol
    return pinv_p(A, rtol=limit)


def matrix_rank(A: Any, rtol: float | None = None) -> Any:
    """How many singular values of A (*N, m, n) are larger than rtol times the largest (default as
    in `pinv`): (*N), int64.

    >>> import sparsegrad as sg
    >>> sg.linalg.matrix_rank(sg.ones(3, 2))
    tensor(1)
    """
    from sparsegrad.tensor import Tensor

    A = as_matrix("matrix_rank", A, square=False)
    s = svd_p(A.detach())[1].data
    limit = max(A.shape[-2:]) * float(np.finfo(s.dtype).eps) if rtol is None else rtol
    if not s.shape[-1]:
        return Tensor(backends.for_array(s).xp.zeros(s.shape[:-1], dtype="int64"))
    return Tensor((s > limit * s[..., :1]).sum(axis=-1))
