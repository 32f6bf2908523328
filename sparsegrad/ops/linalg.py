"""Linear algebra on (batches of) dense matrices: `sg.linalg`. float16 is computed in float32.

Sparse systems: `sg.spsolve`, `sg.triangular_solve`, `sg.cg` and their kin.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any, NamedTuple

from sparsegrad import backends, dtypes
from sparsegrad.errors import ShapeError
from sparsegrad.ops import reduce
from sparsegrad.ops.contract import cross, einsum
from sparsegrad.ops.dense_matmul import matmul_p
from sparsegrad.ops.elementwise import abs as abs_
from sparsegrad.ops.elementwise import cast
from sparsegrad.ops.factorizations import (
    cholesky,
    eigh,
    eigvalsh,
    matrix_rank,
    pinv,
    qr,
    svd,
    svdvals,
)
from sparsegrad.ops.linear_systems import (
    as_matrix,
    det,
    inv,
    inv_p,
    slogdet,
    solve,
    solve_triangular,
)
from sparsegrad.ops.rearrange import movedim
from sparsegrad.ops.reduce import sum_p
from sparsegrad.ops.shape import reshape_p, squeeze
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

    A, B = as_matrix("lstsq", A, square=False), as_tensor(B)
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
    A = A if sparse else as_matrix("matrix_power", A)
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
    A = as_matrix("cond", A, square=p not in (None, 2, -2))
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
    A = as_matrix("trace", A, square=False)
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
