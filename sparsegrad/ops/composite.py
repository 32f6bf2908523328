"""Functions that are a few others in a row: what they mean, and all their gradients, follows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsegrad import backends, dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError
from sparsegrad.ops.dense_matmul import matmul_p
from sparsegrad.ops.elementwise import cast, exp, maximum, minimum, sqrt, where_p
from sparsegrad.ops.rearrange import movedim, narrow
from sparsegrad.ops.reduce import amax, amin, axes_of, axis_of, norm, sum_p
from sparsegrad.ops.reduce import sum as sum_
from sparsegrad.ops.shape import as_argument, cat, reshape_p, transpose
from sparsegrad.ops.unary import clamp, isnan_p, log1p, logical_not

__all__ = [
    "addcdiv",
    "addcmul",
    "addmv",
    "aminmax",
    "atleast_1d",
    "atleast_2d",
    "broadcast_tensors",
    "cdist",
    "corrcoef",
    "cosine_similarity",
    "cov",
    "diag_embed",
    "diff",
    "hstack",
    "logaddexp",
    "nan_to_num",
    "nanmean",
    "nansum",
    "trapezoid",
    "vstack",
]


def dense_argument(op: str, x: Any) -> Any:
    """`x` as a tensor; TypeError that names the op if it is a sparse one."""
    x = as_argument(op, x)
    if getattr(x, "_is_sparse", False):
        raise TypeError(f"{op}: needs a dense tensor, got a SparseTensor of shape {x.shape}")
    return x


# ---- arithmetic --------------------------------------------------------------------------------
def addcmul(x: Any, a: Any, b: Any, *, value: float = 1) -> Any:
    """x + value * a * b, broadcast.

    >>> import sparsegrad as sg
    >>> sg.addcmul(sg.ones(2), sg.tensor([1.0, 2.0]), 3.0, value=2)
    tensor([ 7., 13.])
    """
    return x + (a * b if value == 1 else value * (a * b))


def addcdiv(x: Any, a: Any, b: Any, *, value: float = 1) -> Any:
    """x + value * a / b, broadcast.

    >>> import sparsegrad as sg
    >>> sg.addcdiv(sg.ones(2), sg.tensor([2.0, 4.0]), 2.0, value=3)
    tensor([4., 7.])
    """
    return x + (a / b if value == 1 else value * (a / b))


def addmv(x: Any, A: Any, v: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta * x + alpha * (A @ v): x (m,) or broadcast to it, A (m, n), dense or sparse, v (n,).

    >>> import sparsegrad as sg
    >>> sg.addmv(sg.ones(2), sg.sparse_eye(2), sg.tensor([2.0, 3.0]), alpha=2)
    tensor([5., 7.])
    """
    product = A @ v
    product = product if alpha == 1 else alpha * product
    return product if beta == 0 else (x if beta == 1 else beta * x) + product


def logaddexp(a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b)), broadcast, without overflow.

    >>> import sparsegrad as sg
    >>> sg.logaddexp(sg.tensor([0.0, 1000.0]), sg.tensor([0.0, 1000.0]))
    tensor([6.9314718e-01, 1.0006932e+03])
    """
    a, b = dense_argument("logaddexp", a), dense_argument("logaddexp", b)
    top, low = maximum(a, b), minimum(a, b)
    same = (top == low).data  # the difference of two infinities
    gap = where_p(0, low - top, mask=same)
    return top + log1p(exp(gap))


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """sum(x1 * x2) / (max(|x1|, eps) * max(|x2|, eps)) along `dim`, which goes; shapes broadcast.

    Raises ShapeError for shapes that do not, TypeError for sparse tensors.

    >>> import sparsegrad as sg
    >>> sg.cosine_similarity(sg.tensor([[1.0, 0.0]]), sg.tensor([[2.0, 0.0], [0.0, -3.0]]))
    tensor([1., 0.])
    """
    x1, x2 = broadcast_tensors(
        dense_argument("cosine_similarity", x1), dense_argument("cosine_similarity", x2)
    )
    at = axis_of("cosine_similarity", dim, x1.ndim)
    sizes = [clamp(norm(x, 2, at, True), eps) for x in (x1, x2)]
    return sum_p(x1 / sizes[0] * (x2 / sizes[1]), axis=(at,))


@primitive(fuse=True)
def nan_to_num_p(xp: Any, x: Any, *, nan: float, high: float, low: float) -> Any:
    """x with other numbers for nan and both infinities."""
    out = xp.where(x == math.inf, high, xp.where(x == -math.inf, low, x))
    return xp.where(x != x, nan, out).astype(x.dtype)


nan_to_num_p.defvjp(x=lambda g, x, out: where_p(g, 0, mask=(x == out).data))


def nan_to_num(
    x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Any:
    """`x` with NaN and infinities replaced, by default by 0 and the largest and smallest numbers
    of its dtype; same shape. What is replaced gets no gradient. Of a SparseTensor its entries.

    >>> import sparsegrad as sg
    >>> sg.nan_to_num(sg.tensor([float("nan"), float("inf"), 1.0]), posinf=9.0)
    tensor([0., 9., 1.])
    """
    x = as_argument("nan_to_num", x)
    if dtypes.kind(x.dtype) != "f":
        return x
    limits = dtypes.finfo(x.dtype)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    return nan_to_num_p(x, nan=nan, high=high, low=low)


# ---- reductions --------------------------------------------------------------------------------
def nansum(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """`sum` with NaN counted as 0, of sparse tensors too; NaN gets no gradient.

    >>> import sparsegrad as sg
    >>> sg.nansum(sg.tensor([1.0, float("nan"), 2.0]))
    tensor(3.)
    """
    x = as_argument("nansum", x)
    axes_of("nansum", dim, x.ndim)
    x = cast(x, dtype or (dtypes.int64 if x.dtype.kind in "biu" else x.dtype))
    if dtypes.kind(x.dtype) == "f":
        x = nan_to_num_p(x, nan=0.0, high=math.inf, low=-math.inf)
    return sum_(x, dim, keepdim)


def nanmean(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """`mean` of what is not NaN; of nothing it is NaN.

    >>> import sparsegrad as sg
    >>> sg.nanmean(sg.tensor([1.0, float("nan"), 2.0]))
    tensor(1.5)
    """
    x = dense_argument("nanmean", x)
    count = sum_p(
        cast(logical_not(isnan_p(x)), dtypes.int64),
        axis=axes_of("nanmean", dim, x.ndim),
        keepdims=keepdim,
    )
    total = nansum(x, dim, keepdim, dtype)
    return total / cast(count, total.dtype if dtypes.kind(total.dtype) == "f" else dtypes.float32)


def aminmax(x: Any, *, dim: int | None = None, keepdim: bool = False) -> tuple[Any, Any]:
    """Smallest and largest element, of all or along `dim`.

    >>> import sparsegrad as sg
    >>> sg.aminmax(sg.tensor([3.0, 1.0, 2.0]))
    (tensor(1.), tensor(3.))
    """
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


def cov(x: Any, correction: int = 1) -> Any:
    """The covariances (m, m) of m variables, rows of x (m, n), over n observations: products of
    deviations from the mean, summed and divided by (n - correction). Of a vector its variance.

    >>> import sparsegrad as sg
    >>> sg.cov(sg.tensor([[1.0, 2.0, 3.0], [2.0, 1.0, 0.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    x = dense_argument("cov", x)
    if x.ndim > 2:
        raise ShapeError(f"cov: expected (m, n) or (n,), got shape {tuple(x.shape)}")
    rows = x if x.ndim == 2 else reshape_p(x, shape=(1, -1))
    n = rows.shape[1]
    rows = rows - sum_p(rows, axis=(1,), keepdims=True) / n if n else rows
    free = n - correction
    out = matmul_p(rows, transpose(rows, 0, 1)) * (1 / free if free > 0 else math.nan)
    return out if x.ndim == 2 else reshape_p(out, shape=())


def corrcoef(x: Any) -> Any:
    """The correlations (m, m) of m variables, rows of x (m, n): covariances over both standard
    deviations. Of a vector 1.

    >>> import sparsegrad as sg
    >>> sg.corrcoef(sg.tensor([[1.0, 2.0, 3.0], [2.0, 1.0, 0.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    found = cov(dense_argument("corrcoef", x))
    if not found.ndim:
        return found / found
    each = range(found.shape[0])
    spread = sqrt(found[list(each), list(each)])
    return found / (reshape_p(spread, shape=(-1, 1)) * spread)


def trapezoid(y: Any, x: Any = None, *, dx: float = 1.0, dim: int = -1) -> Any:
    """The area under points y along `dim`, which goes, by the trapezoidal rule: at places x, (n,)
    or of the shape of y, or `dx` apart.

    >>> import sparsegrad as sg
    >>> sg.trapezoid(sg.tensor([0.0, 1.0, 2.0])), sg.trapezoid(sg.ones(2), sg.tensor([1.0, 4.0]))
    (tensor(2.), tensor(3.))
    """
    y = dense_argument("trapezoid", y)
    axis = axis_of("trapezoid", dim, y.ndim)
    n = y.shape[axis]
    width: Any = dx
    if x is not None:
        x = dense_argument("trapezoid", x)
        gaps = diff(x, 1, axis if x.ndim == y.ndim else -1)
        line = [-1 if d == axis else 1 for d in range(y.ndim)]
        width = gaps if x.ndim == y.ndim else reshape_p(gaps, shape=tuple(line))
    pairs = narrow(y, axis, 1, n - 1) + narrow(y, axis, 0, n - 1) if n else y
    return sum_p(pairs * width, axis=(axis,)) / 2


def diff(x: Any, n: int = 1, dim: int = -1) -> Any:
    """Differences of neighbours along `dim`, n times: n elements fewer there.

    >>> import sparsegrad as sg
    >>> sg.diff(sg.tensor([1.0, 4.0, 9.0])), sg.diff(sg.tensor([1.0, 4.0, 9.0]), 2)
    (tensor([3., 5.]), tensor([2.]))
    """
    x = dense_argument("diff", x)
    axis = axis_of("diff", dim, x.ndim)
    for _ in range(n):
        size = max(x.shape[axis] - 1, 0)
        x = narrow(x, axis, min(1, x.shape[axis]), size) - narrow(x, axis, 0, size)
    return x


def cdist(a: Any, b: Any, p: float = 2.0) -> Any:
    """p-norms of the differences of all rows: a (*B, m, d), b (*B, n, d) -> (*B, m, n). At 0 the
    subgradient is 0. Takes m n d elements of memory, except for p = 2 with more than 25 rows.

    >>> import sparsegrad as sg
    >>> sg.cdist(sg.tensor([[0.0, 0.0]]), sg.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[5., 1.]])
    """
    from sparsegrad.ops.linalg import vector_norm

    a, b = dense_argument("cdist", a), dense_argument("cdist", b)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-1]:
        raise ShapeError(f"cdist: expected (*B, m, d) and (*B, n, d), got {a.shape} and {b.shape}")
    if p == 2 and max(a.shape[-2], b.shape[-2]) > 25:  # one product, as in PyTorch
        squares = (a * a).sum(-1, keepdim=True) + transpose((b * b).sum(-1, keepdim=True), -1, -2)
        left = squares - 2 * matmul_p(a, transpose(b, -1, -2))
        zero = (left <= 0).data
        return where_p(0, sqrt(where_p(1, left, mask=zero)), mask=zero)
    rows = reshape_p(a, shape=(*a.shape[:-1], 1, a.shape[-1]))
    others = reshape_p(b, shape=(*b.shape[:-2], 1, *b.shape[-2:]))
    return vector_norm(rows - others, p, -1)


# ---- shapes ------------------------------------------------------------------------------------
def atleast_1d(x: Any) -> Any:
    """`x`, dense or sparse, with one dimension at least.

    >>> import sparsegrad as sg
    >>> sg.atleast_1d(sg.tensor(3.0))
    tensor([3.])
    """
    x = as_argument("atleast_1d", x)
    return x if x.ndim else reshape_p(x, shape=(1,))


def atleast_2d(x: Any) -> Any:
    """`x`, dense or sparse, with two dimensions at least: (n,) becomes (1, n).

    >>> import sparsegrad as sg
    >>> sg.atleast_2d(sg.ones(3)).shape
    (1, 3)
    """
    x = as_argument("atleast_2d", x)
    return x if x.ndim > 1 else reshape_p(x, shape=(1, *(x.shape or (1,))))


def hstack(tensors: Any) -> Any:
    """Tensors, dense or sparse, side by side: `cat` along dimension 1, of vectors along 0.

    >>> import sparsegrad as sg
    >>> sg.hstack([sg.ones(1), sg.zeros(2)])
    tensor([1., 0., 0.])
    """
    parts = [atleast_1d(t) for t in tensors]
    return cat(parts, 0 if parts and parts[0].ndim == 1 else 1)


def vstack(tensors: Any) -> Any:
    """Tensors, dense or sparse, below each other: `cat` along dimension 0, vectors as rows.

    >>> import sparsegrad as sg
    >>> sg.vstack([sg.ones(2), sg.zeros(2)])
    tensor([[1., 1.],
            [0., 0.]])
    >>> A = sg.coo([[0], [1]], [3.0], (1, 2))
    >>> sg.vstack([A, A]).to_dense()
    tensor([[0., 3.],
            [0., 3.]])
    """
    return cat([atleast_2d(t) for t in tensors], 0)


def broadcast_tensors(*tensors: Any) -> tuple[Any, ...]:
    """Views of all tensors in the one shape they broadcast to.

    >>> import sparsegrad as sg
    >>> [t.shape for t in sg.broadcast_tensors(sg.ones(3, 1), sg.ones(2))]
    [(3, 2), (3, 2)]
    """
    from sparsegrad.ops.rearrange import broadcast_to

    parts = [dense_argument("broadcast_tensors", t) for t in tensors]
    try:
        shape = np.broadcast_shapes(*(t.shape for t in parts))
    except ValueError:
        raise ShapeError(
            f"broadcast_tensors: shapes do not broadcast; got {[t.shape for t in parts]}"
        ) from None
    return tuple(broadcast_to(t, shape) for t in parts)


def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Matrices with the last dimension of `x` on a diagonal: (*B, n) -> (*B, m, m), m = n +
    |offset|; the matrix dimensions stand at `dim1` and `dim2`.

    >>> import sparsegrad as sg
    >>> sg.diag_embed(sg.tensor([1.0, 2.0]))
    tensor([[1., 0.],
            [0., 2.]])
    """
    from sparsegrad.ops.scattering import put_along_p

    x = dense_argument("diag_embed", x)
    if not x.ndim:
        raise ShapeError("diag_embed: expected at least one dimension, got shape ()")
    n, xp = x.shape[-1], backends.for_array(x.data).xp
    m = n + abs(offset)
    places = xp.arange(n) * (m + 1) + (offset if offset > 0 else -offset * m)
    index = xp.broadcast_to(places, x.shape)
    flat = put_along_p(x, index=index, axis=x.ndim - 1, shape=(*x.shape[:-1], m * m))
    out = reshape_p(flat, shape=(*x.shape[:-1], m, m))
    return movedim(out, (-2, -1), (dim1, dim2))
