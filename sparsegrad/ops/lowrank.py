"""Singular values of large matrices: the first few, by products with few columns."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import backends, dtypes, random
from sparsegrad.errors import ShapeError
from sparsegrad.ops.elementwise import cast
from sparsegrad.ops.linalg import qr, svd
from sparsegrad.ops.shape import as_argument

__all__ = ["svd_lowrank"]


def svd_lowrank(A: Any, q: int = 6, niter: int = 2) -> tuple[Any, Any, Any]:
    """U (m, q), the first q singular values S (q,), falling, and V (n, q) of a matrix A (m, n):
    nearly A = U @ diag(S) @ V.T, exactly if its rank is not above q. A may be sparse: it is only
    multiplied with q columns, 2 niter + 2 times.

    q: at most min(m, n); some more than are wanted makes those better. niter: passes; the smaller
    singular values fall off more slowly, the more are needed. Random columns are where it begins,
    drawn on the stream of `sg.manual_seed`. Gradients go through all passes; vectors have a slope
    as in `sg.linalg.svd`.

    Raises ShapeError for anything but a matrix without dense dimensions, and another q.

    Halko, Martinsson, Tropp, "Finding structure with randomness", SIAM Review 53 (2011),
    algorithms 4.4 and 5.1.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 1, 5], [2, 0, 1]], [3.0, 2.0, 1.0], (100, 50))
    >>> [f"{s:.4f}" for s in sg.svd_lowrank(A, q=3)[1].tolist()]
    ['3.0000', '2.0000', '1.0000']
    """
    A = as_argument("svd_lowrank", A)
    if A.ndim != 2 or (A._is_sparse and A.dense_dim):
        raise ShapeError(f"svd_lowrank: A must be a matrix, got shape {tuple(A.shape)}")
    if not 1 <= q <= min(A.shape) or niter < 0:
        raise ShapeError(
            f"svd_lowrank: q must lie in [1, {min(A.shape)}] and niter not be negative, got q {q}, "
            f"niter {niter} and A {tuple(A.shape)}"
        )
    dtype = A.dtype if dtypes.kind(A.dtype) == "f" else dtypes.get_default_dtype()
    A = cast(A, dtypes.accumulator(dtype))
    basis = qr(A @ _columns(A, q))[0]
    for _ in range(niter):
        basis = qr(A @ qr(A.T @ basis)[0])[0]
    v, s, uh = svd(A.T @ basis, full_matrices=False)
    return cast(basis @ uh.T, dtype), cast(s, dtype), cast(v, dtype)


def _columns(A: Any, q: int) -> Any:
    """Standard normal numbers (n, q) in the dtype of A, where it is."""
    from sparsegrad.tensor import Tensor

    n = A.shape[1] * q
    be = backends.for_device(A.device)
    seed, offset = random.generator(A.device).reserve(n * math.ceil(A.dtype.itemsize / 4))
    return Tensor(be.random_normal(seed, offset, n, A.dtype).reshape(A.shape[1], q))
