"""Linear algebra on (batches of) dense matrices: `sg.linalg`. float16 is computed in float32.

Sparse systems: `sg.spsolve`, `sg.triangular_solve`, `sg.cg` and their kin.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsegrad import backends, dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError, SingularMatrixError
from sparsegrad.ops import reduce
from sparsegrad.ops.contract import cross, einsum
from sparsegrad.ops.dense_matmul import matmul_p
from sparsegrad.ops.elementwise import abs as abs_
from sparsegrad.ops.elementwise import cast, mul_p, where_p
from sparsegrad.ops.rearrange import flip, movedim
from sparsegrad.ops.reduce import sum_p
from sparsegrad.ops.shape import cat_p, reshape_p, squeeze, transpose
from sparsegrad.ops.sparse_contract import product_of

__all__ = [
    "LstsqResult",
    "cholesky",
    "cond",
    "cross",
    "det",
    "eigh",
    "eigvalsh",
    "inv",
    "lstsq",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "trace",
    "vector_norm",
]


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
    inner = matmul_p(_t(v), gv) * _turns(w) + _diagonal(gw)
    whole = matmul_p(v, matmul_p(inner, _t(v)))
    return (whole + _t(whole)) * 0.5


eigh_p.defvjp(a=_eigh_rule)


@primitive(promote="float", outputs=("u", "s", "vh"))
def svd_p(xp: Any, a: Any) -> Any:
    """U (*B, m, k), singular values, falling, and V^T (*B, k, n), k = min(m, n)."""
    return _wide(lambda m: tuple(xp.linalg.svd(m, full_matrices=False)), "svd", a)


def _svd_rule(g: Any, u: Any, s: Any, vh: Any) -> Any:
    gu, gs, gvh = g
    gv, v, turns = _t(gvh), _t(vh), _turns(s * s)
    left, right = matmul_p(_t(u), gu), matmul_p(vh, gv)
    inner = (left - _t(left)) * turns * _row(s) + _column(s) * ((right - _t(right)) * turns)
    out = matmul_p(u, matmul_p(inner + _diagonal(gs), vh))
    (m, k), n = u.shape[-2:], v.shape[-2]
    if m > k:  # what leaves the space of U
        out = out + matmul_p((gu - matmul_p(u, left)) * _row(_inverse(s)), vh)
    if n > k:
        out = out + matmul_p(u * _row(_inverse(s)), _t(gv - matmul_p(v, right)))
    return out


svd_p.defvjp(a=_svd_rule)


@primitive(promote="float")
def pinv_p(xp: Any, a: Any, *, rtol: float) -> Any:
    return _wide(lambda m: xp.linalg.pinv(m, rcond=rtol), "pinv", a)


def _pinv_rule(g: Any, a: Any, out: Any) -> Any:
    """Golub and Pereyra, 1973, for matrices that keep their rank."""
    pt, gt = _t(out), _t(g)
    outside = gt - matmul_p(a, matmul_p(out, gt))
    beside = gt - matmul_p(matmul_p(gt, out), a)
    ends = matmul_p(outside, matmul_p(out, pt)) + matmul_p(matmul_p(pt, out), beside)
    return ends - matmul_p(pt, matmul_p(g, pt))


pinv_p.defvjp(a=_pinv_rule)


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

    A, B = _matrix("solve_triangular", A), as_tensor(B)
    if B.ndim < 2 or A.shape[-1] != B.shape[-2 if left else -1]:
        raise ShapeError(f"solve_triangular: shapes do not fit; got A: {A.shape}, B: {B.shape}")
    if not left:
        options: dict[str, Any] = {"upper": not upper, "unitriangular": unitriangular}
        return _t(solve_triangular(_t(A), _t(B), **options))
    if (
        not upper
    ):  # the rows and columns in reverse: an upper triangle, in which no rows are swapped
        A, B = flip(A, -2, -1), flip(B, -2)
    A = _t(_lower(_t(A), 0 if unitriangular else 1))
    if unitriangular:
        A = A + Tensor(backends.for_array(A.data).xp.eye(A.shape[-1], dtype=A.dtype))
    out = solve_p(A, B)
    return out if upper else flip(out, -2)


class LstsqResult(NamedTuple):
    """What `lstsq` finds."""

    solution: Any
    residuals: Any
    rank: Any
    singular_values: Any


def lstsq(A: Any, B: Any, rcond: float | None = None) -> LstsqResult:
    """X with the least sum of squares of A @ X - B, of all those the shortest: A (*N, m, n), B
    (*N, m, k), or (*N, m) for one vector -> (*N, n, k). Gradients are those for an A that keeps its
    rank. Through singular values, for any rank.

    rcond: singular values up to that times the largest count as 0, as in `pinv`.

    Also the sums of squares that are left, (*N, k), if m > n (else none, (0,)); the rank of A and
    its singular values, without gradients.

    >>> import sparsegrad as sg
    >>> A = sg.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> line = sg.linalg.lstsq(A, sg.tensor([1.0, 3.0, 5.0])).solution
    >>> sg.allclose(line, sg.tensor([1.0, 2.0]))
    True
    """
    from sparsegrad.tensor import Tensor, as_tensor

    A, B = _matrix("lstsq", A, square=False), as_tensor(B)
    vector = B.ndim == A.ndim - 1
    if B.ndim not in (A.ndim - 1, A.ndim) or A.shape[-2] != B.shape[-1 if vector else -2]:
        raise ShapeError(f"lstsq: shapes do not fit; got A: {A.shape}, B: {B.shape}")
    dtype, wide = A.dtype, dtypes.accumulator(A.dtype)
    columns = cast(reshape_p(B, shape=(*B.shape, 1)) if vector else B, wide)
    A = cast(A, wide)
    found = matmul_p(pinv(A, rcond), columns)
    rest: Any = Tensor(backends.for_array(A.data).xp.zeros(0, dtype=found.dtype))
    if A.shape[-2] > A.shape[-1]:
        gap = matmul_p(A, found) - columns
        rest = sum_p(gap * gap, axis=(gap.ndim - 2,))
        rest = reshape_p(rest, shape=rest.shape[:-1]) if vector else rest
    found = reshape_p(found, shape=found.shape[:-1]) if vector else found
    values = cast(svdvals(A.detach()), dtype)
    return LstsqResult(cast(found, dtype), cast(rest, dtype), matrix_rank(A, rcond), values)


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
    n), of which the lower triangle is read. Eigenvectors have a slope only where eigenvalues are
    distinct; the gradient of A is symmetric.

    >>> import sparsegrad as sg
    >>> sg.linalg.eigh(sg.tensor([[2.0, 0.0], [0.0, 1.0]]))[0]
    tensor([1., 2.])
    """
    return eigh_p(_matrix("eigh", A))


def eigvalsh(A: Any) -> Any:
    """The eigenvalues of `eigh`, (*N, n).

    >>> import sparsegrad as sg
    >>> sg.linalg.eigvalsh(sg.tensor([[2.0, 0.0], [0.0, 1.0]]))
    tensor([1., 2.])
    """
    return eigh_p(_matrix("eigvalsh", A))[0]


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
    A = _matrix("svd", A, square=False)
    u, s, vh = svd_p(A)
    if full_matrices and A.shape[-1] != A.shape[-2]:
        tall = A.shape[-2] > A.shape[-1]
        u, vh = (_completed(u), vh) if tall else (u, _t(_completed(_t(vh))))
    return u, s, vh


def _completed(u: Any) -> Any:
    """Orthonormal columns (*N, m, k) made a basis (*N, m, m) by columns without gradients."""
    from sparsegrad.tensor import Tensor

    xp = backends.for_array(u.data).xp
    rest = _wide(lambda m: xp.linalg.qr(m, mode="complete")[0], "svd", u.data)
    return cat_p(u, Tensor(rest[..., u.shape[-1] :]), axis=u.ndim - 1)


def svdvals(A: Any) -> Any:
    """The singular values of `svd`, (*N, min(m, n)), with a gradient where they are equal, too.

    >>> import sparsegrad as sg
    >>> sg.linalg.svdvals(sg.tensor([[0.0, 2.0], [3.0, 0.0]]))
    tensor([3., 2.])
    """
    return svd_p(_matrix("svdvals", A, square=False))[1]


def pinv(A: Any, rtol: float | None = None) -> Any:
    """The pseudo-inverse (*N, n, m) of A (*N, m, n); singular values up to rtol times the largest
    count as 0 (default: max(m, n) times the precision). Its gradient is that of matrices of the
    same rank.

    >>> import sparsegrad as sg
    >>> sg.linalg.pinv(sg.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])).tolist()
    [[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    A = _matrix("pinv", A, square=False)
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

    A = _matrix("matrix_rank", A, square=False)
    s = svd_p(A.detach())[1].data
    limit = max(A.shape[-2:]) * float(np.finfo(s.dtype).eps) if rtol is None else rtol
    if not s.shape[-1]:
        return Tensor(backends.for_array(s).xp.zeros(s.shape[:-1], dtype="int64"))
    return Tensor((s > limit * s[..., :1]).sum(axis=-1))


def matrix_power(A: Any, n: int) -> Any:
    """A @ A @ ... @ A, n times, for A (*N, m, m), in log2(n) products; of the inverse for n < 0.
    Of a sparse matrix n must be positive: see `sg.spsolve` and its kin for inverses.

    >>> import sparsegrad as sg
    >>> sg.linalg.matrix_power(sg.tensor([[1.0, 1.0], [0.0, 1.0]]), 5).tolist()
    [[1.0, 5.0], [0.0, 1.0]]
    """
    from sparsegrad.tensor import Tensor

    sparse = getattr(A, "_is_sparse", False)
    if sparse and (n < 1 or A.sparse_dim != 2 or A.dense_dim or A.shape[0] != A.shape[1]):
        raise ShapeError(
            f"matrix_power: a sparse A must be a square matrix and n positive, got n {n} and "
            f"shape {A.shape}"
        )
    A = A if sparse else _matrix("matrix_power", A)
    factor, left, out = (inv_p(A) if n < 0 else A), abs(n), None
    while left:
        if left & 1:
            out = factor if out is None else out @ factor
        left >>= 1
        factor = factor @ factor if left else factor
    if out is None:
        xp = backends.for_array(A.data).xp
        return Tensor(xp.zeros(A.shape, A.dtype) + xp.eye(A.shape[-1], dtype=A.dtype))
    return out


def multi_dot(tensors: Sequence[Any]) -> Any:
    """The product of several matrices in the cheapest order; the first and the last may be vectors.
    Where one is sparse, from the end that is a vector or dense.

    >>> import sparsegrad as sg
    >>> sg.linalg.multi_dot([sg.ones(2, 3), sg.ones(3, 4), sg.ones(4)])
    tensor([12., 12.])
    """
    n, vectors = len(tensors), [t.ndim == 1 for t in tensors]
    if n < 2 or any(vectors[1:-1]) or any(t.ndim not in (1, 2) for t in tensors):
        raise ShapeError(
            f"multi_dot: expected at least two matrices, vectors at the ends, got "
            f"{[tuple(t.shape) for t in tensors]}"
        )
    if any(getattr(t, "_is_sparse", False) for t in tensors):
        return product_of(tensors)
    labels = string.ascii_letters
    terms = [labels[i : i + 2] for i in range(n)]
    if vectors[0]:
        terms[0] = terms[0][1:]
    if vectors[-1]:
        terms[-1] = terms[-1][:1]
    ends = "" if vectors[0] else labels[0]
    ends += "" if vectors[-1] else labels[n]
    return einsum(f"{','.join(terms)}->{ends}", *tensors)


def cond(A: Any, p: Any = None) -> Any:
    """How much A (*N, m, n) may magnify relative errors: its largest singular value over the
    smallest, for p = None or 2 (-2: the other way round); else the `matrix_norm` of order p times
    that of the inverse: (*N).

    >>> import sparsegrad as sg
    >>> sg.linalg.cond(sg.tensor([[4.0, 0.0], [0.0, 2.0]]))
    tensor(2.)
    """
    A = _matrix("cond", A, square=p not in (None, 2, -2))
    if p in (None, 2, -2):
        s = svdvals(A)
        largest, least = s[..., 0], s[..., -1]
        return least / largest if p == -2 else largest / least
    return matrix_norm(A, p) * matrix_norm(inv_p(A), p)


def trace(A: Any) -> Any:
    """The sum of the diagonal of A (*N, m, n) -> (*N); of a sparse matrix too.

    >>> import sparsegrad as sg
    >>> sg.linalg.trace(sg.eye(3))
    tensor(3.)
    """
    from sparsegrad.tensor import Tensor

    if getattr(A, "_is_sparse", False):
        from sparsegrad.ops.sparse_diagonal import diagonal

        return sum_p(diagonal(A), axis=(0,))
    A = _matrix("trace", A, square=False)
    eye = Tensor(backends.for_array(A.data).xp.eye(*A.shape[-2:], dtype=A.dtype))
    return sum_p(A * eye, axis=(A.ndim - 2, A.ndim - 1))


# ---- norms -------------------------------------------------------------------------------------
def vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    """The norm of order `ord` (a number, infinite ones too) over `dim`, of all elements by default;
    see `sg.norm`, also for sparse tensors.

    >>> import sparsegrad as sg
    >>> sg.linalg.vector_norm(sg.tensor([[3.0, -4.0]])), sg.linalg.vector_norm(sg.ones(5), 0)
    (tensor(5.), tensor(5.))
    """
    return reduce.norm(x, ord, dim, keepdim)


def matrix_norm(A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False) -> Any:
    """The norm of the matrices that A holds in two dimensions `dim`.

    ord: "fro", "nuc" (the sum of the singular values), 2 or -2 (the largest or smallest of them),
        1 or -1 (the largest or smallest sum of a column), infinity or its negative (of a row).
    A SparseTensor takes those that need no singular values. Raises ValueError for another.

    >>> import sparsegrad as sg
    >>> A = sg.tensor([[3.0, 0.0], [4.0, 0.0]])
    >>> sg.linalg.matrix_norm(A), sg.linalg.matrix_norm(A, 2), sg.linalg.matrix_norm(A, math.inf)
    (tensor(5.), tensor(5.), tensor(4.))
    """
    if ord == "fro":
        return reduce.norm(A, 2, dim, keepdim)
    row, col = (d % A.ndim for d in dim)
    if ord in (1, -1, math.inf, -math.inf):
        summed, other = (row, col) if abs(ord) == 1 else (col, row)
        total = reduce.sum(abs_(A), summed, keepdim=True)
        out = (reduce.amax if ord > 0 else reduce.amin)(total, other, keepdim=True)
    elif ord in (2, -2, "nuc"):
        last = A if (row, col) == (A.ndim - 2, A.ndim - 1) else movedim(A, (row, col), (-2, -1))
        s = svdvals(last)
        pick = reduce.sum if ord == "nuc" else reduce.amax if ord > 0 else reduce.amin
        out = pick(s, -1)
        out = reshape_p(
            out, shape=tuple(1 if d in (row, col) else n for d, n in enumerate(A.shape))
        )
    else:
        raise ValueError(f"matrix_norm: ord must be 'fro', 'nuc', 1, 2 or inf, got {ord!r}")
    return out if keepdim else squeeze(out, (row, col))


def norm(x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Any:
    """`vector_norm` over one `dim`, `matrix_norm` over two. Without `dim`, that of a vector or
    matrix; without `ord` either, the root of the sum of all squares. Raises ShapeError for `ord`
    without `dim` and more than two dimensions.

    >>> import sparsegrad as sg
    >>> sg.linalg.norm(sg.tensor([3.0, 4.0])), sg.linalg.norm(sg.tensor([3.0, -4.0]), math.inf)
    (tensor(5.), tensor(4.))
    """
    from sparsegrad.tensor import as_tensor

    x = x if getattr(x, "_is_sparse", False) else as_tensor(x)
    if ord is None:
        return vector_norm(x, 2, dim, keepdim)
    if dim is None:
        if x.ndim not in (1, 2):
            raise ShapeError(f"norm: ord without dim needs 1 or 2 dimensions, got {tuple(x.shape)}")
        dim = tuple(range(x.ndim))
    one = not isinstance(dim, (tuple, list)) or len(dim) == 1
    return (vector_norm if one else matrix_norm)(x, ord, dim, keepdim)
