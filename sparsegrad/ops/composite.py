"""Functions that are a few others in a row: what they mean, and all their gradients, follows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsegrad import backends, dtypes
from sparsegrad.errors import DtypeError, ShapeError, memory_for
from sparsegrad.ops.dense_matmul import matmul_p
from sparsegrad.ops.elementwise import cast, exp, maximum, minimum, sqrt, where_p
from sparsegrad.ops.rearrange import movedim, narrow
from sparsegrad.ops.reduce import amax, amin, axes_of, axis_of, norm, sum_p
from sparsegrad.ops.shape import as_argument, cat, reshape_p, transpose
from sparsegrad.ops.unary import clamp, isnan_p, log1p, logical_not

__all__ = [
    "addcdiv",
    "addcmul",
    "addmv",
    "aminmax",
    "angle",
    "atleast_1d",
    "atleast_2d",
    "bincount",
    "broadcast_tensors",
    "bucketize",
    "cdist",
    "conj",
    "cosine_similarity",
    "diag_embed",
    "diff",
    "hstack",
    "imag",
    "is_floating_point",
    "is_tensor",
    "isin",
    "logaddexp",
    "nan_to_num",
    "nanmean",
    "nansum",
    "numel",
    "real",
    "searchsorted",
    "tril_indices",
    "triu_indices",
    "vstack",
]


def _dense(op: str, x: Any) -> Any:
    x = as_argument(op, x)
    if getattr(x, "_is_sparse", False):
        raise TypeError(f"{op}: needs a dense tensor, got a SparseTensor of shape {x.shape}")
    return x


def _raw(op: str, x: Any) -> Any:
    return _dense(op, x).data


def _made(array: Any) -> Any:
    from sparsegrad.tensor import Tensor

    return Tensor(array)


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
    a, b = _dense("logaddexp", a), _dense("logaddexp", b)
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
    x1, x2 = broadcast_tensors(_dense("cosine_similarity", x1), _dense("cosine_similarity", x2))
    at = axis_of("cosine_similarity", dim, x1.ndim)
    sizes = [clamp(norm(x, 2, at, True), eps) for x in (x1, x2)]
    return sum_p(x1 / sizes[0] * (x2 / sizes[1]), axis=(at,))


def nan_to_num(
    x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Any:
    """`x` with NaN and infinities replaced, by default by 0 and the largest and smallest numbers
    of its dtype; same shape. What is replaced gets no gradient.

    >>> import sparsegrad as sg
    >>> sg.nan_to_num(sg.tensor([float("nan"), float("inf"), 1.0]), posinf=9.0)
    tensor([0., 9., 1.])
    """
    x = _dense("nan_to_num", x)
    if dtypes.kind(x.dtype) != "f":
        return x
    limits = dtypes.finfo(x.dtype)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    data = x.data
    for value, bad in ((nan, data != data), (high, data == math.inf), (low, data == -math.inf)):
        x = where_p(value, x, mask=bad)
    return x


# ---- reductions --------------------------------------------------------------------------------
def nansum(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """`sum` with NaN counted as 0; NaN gets no gradient.

    >>> import sparsegrad as sg
    >>> sg.nansum(sg.tensor([1.0, float("nan"), 2.0]))
    tensor(3.)
    """
    x = _dense("nansum", x)
    x = cast(x, dtype or (dtypes.int64 if x.dtype.kind in "biu" else x.dtype))
    return sum_p(
        where_p(0, x, mask=isnan_p(x).data), axis=axes_of("nansum", dim, x.ndim), keepdims=keepdim
    )


def nanmean(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """`mean` of what is not NaN; of nothing it is NaN.

    >>> import sparsegrad as sg
    >>> sg.nanmean(sg.tensor([1.0, float("nan"), 2.0]))
    tensor(1.5)
    """
    x = _dense("nanmean", x)
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


def diff(x: Any, n: int = 1, dim: int = -1) -> Any:
    """Differences of neighbours along `dim`, n times: n elements fewer there.

    >>> import sparsegrad as sg
    >>> sg.diff(sg.tensor([1.0, 4.0, 9.0])), sg.diff(sg.tensor([1.0, 4.0, 9.0]), 2)
    (tensor([3., 5.]), tensor([2.]))
    """
    x = _dense("diff", x)
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

    a, b = _dense("cdist", a), _dense("cdist", b)
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
    """`x` with one dimension at least.

    >>> import sparsegrad as sg
    >>> sg.atleast_1d(sg.tensor(3.0))
    tensor([3.])
    """
    x = _dense("atleast_1d", x)
    return x if x.ndim else reshape_p(x, shape=(1,))


def atleast_2d(x: Any) -> Any:
    """`x` with two dimensions at least: (n,) becomes (1, n).

    >>> import sparsegrad as sg
    >>> sg.atleast_2d(sg.ones(3)).shape
    (1, 3)
    """
    x = _dense("atleast_2d", x)
    return x if x.ndim > 1 else reshape_p(x, shape=(1, x.data.size))


def hstack(tensors: Any) -> Any:
    """Tensors side by side: `cat` along dimension 1, of vectors along 0.

    >>> import sparsegrad as sg
    >>> sg.hstack([sg.ones(1), sg.zeros(2)])
    tensor([1., 0., 0.])
    """
    parts = [atleast_1d(t) for t in tensors]
    return cat(parts, 0 if parts and parts[0].ndim == 1 else 1)


def vstack(tensors: Any) -> Any:
    """Tensors below each other: `cat` along dimension 0, vectors as rows.

    >>> import sparsegrad as sg
    >>> sg.vstack([sg.ones(2), sg.zeros(2)])
    tensor([[1., 1.],
            [0., 0.]])
    """
    return cat([atleast_2d(t) for t in tensors], 0)


def broadcast_tensors(*tensors: Any) -> tuple[Any, ...]:
    """Views of all tensors in the one shape they broadcast to.

    >>> import sparsegrad as sg
    >>> [t.shape for t in sg.broadcast_tensors(sg.ones(3, 1), sg.ones(2))]
    [(3, 2), (3, 2)]
    """
    from sparsegrad.ops.rearrange import broadcast_to

    parts = [_dense("broadcast_tensors", t) for t in tensors]
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

    x = _dense("diag_embed", x)
    if not x.ndim:
        raise ShapeError("diag_embed: expected at least one dimension, got shape ()")
    n, xp = x.shape[-1], backends.for_array(x.data).xp
    m = n + abs(offset)
    places = xp.arange(n) * (m + 1) + (offset if offset > 0 else -offset * m)
    index = xp.broadcast_to(places, x.shape)
    flat = put_along_p(x, index=index, axis=x.ndim - 1, shape=(*x.shape[:-1], m * m))
    out = reshape_p(flat, shape=(*x.shape[:-1], m, m))
    return movedim(out, (-2, -1), (dim1, dim2))


# ---- questions ---------------------------------------------------------------------------------
def is_tensor(x: Any) -> bool:
    """Whether this is a Tensor or a SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.is_tensor(sg.ones(2)), sg.is_tensor(2.0)
    (True, False)
    """
    return hasattr(x, "_is_sparse") and hasattr(x, "requires_grad")


def is_floating_point(x: Any) -> bool:
    """Whether the dtype of `x` is a floating-point one.

    >>> import sparsegrad as sg
    >>> sg.is_floating_point(sg.tensor([1]))
    False
    """
    return dtypes.kind(x.dtype) == "f"


def numel(x: Any) -> int:
    """Number of elements; of a SparseTensor of cells.

    >>> import sparsegrad as sg
    >>> sg.numel(sg.ones(2, 3))
    6
    """
    return math.prod(x.shape)


# ---- complex numbers (no gradient) -------------------------------------------------------------
def real(x: Any) -> Any:
    """The real part, same shape; a real `x` itself.

    >>> import sparsegrad as sg
    >>> sg.real(sg.tensor([1 + 2j]))
    tensor([1.])
    """
    x = _dense("real", x)
    return x if x.dtype.kind != "c" else _made(x.data.real.copy())


def imag(x: Any) -> Any:
    """The imaginary part of a complex `x`, same shape. Raises DtypeError for a real one.

    >>> import sparsegrad as sg
    >>> sg.imag(sg.tensor([1 + 2j]))
    tensor([2.])
    """
    x = _dense("imag", x)
    if x.dtype.kind != "c":
        raise DtypeError(f"imag: expected complex numbers, got {x.dtype}")
    return _made(x.data.imag.copy())


def conj(x: Any) -> Any:
    """The complex conjugate, same shape; a real `x` itself.

    >>> import sparsegrad as sg
    >>> sg.conj(sg.tensor([1 + 2j])).item()
    (1-2j)
    """
    x = _dense("conj", x)
    return x if x.dtype.kind != "c" else _made(x.data.conj())


def angle(x: Any) -> Any:
    """The angle of each number in the complex plane, in (-pi, pi], same shape, without gradient.

    >>> import sparsegrad as sg
    >>> sg.angle(sg.tensor([1j, -1.0]))
    tensor([1.5707964, 3.1415927])
    """
    data = _raw("angle", x)
    return _made(backends.for_array(data).xp.angle(data))


# ---- integers (no gradient) --------------------------------------------------------------------
@memory_for("bincount")
def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    """How often each of 0, 1, ... occurs in `x`, integers (n,); or the sum of its `weights` (n,).

    >>> import sparsegrad as sg
    >>> sg.bincount(sg.tensor([0, 2, 2]))
    tensor([1, 0, 2])
    """
    data = _raw("bincount", x)
    if data.ndim != 1 or data.dtype.kind not in "iu" or (data.size and int(data.min()) < 0):
        raise ShapeError(
            f"bincount: expected non-negative integers (n,), got {data.dtype} of shape {data.shape}"
        )
    be = backends.for_array(data)
    given = None if weights is None else be.asarray(_raw("bincount", weights))
    return _made(be.xp.bincount(data, given, minlength))


def isin(x: Any, test: Any, *, invert: bool = False) -> Any:
    """Whether each element of `x` is among the elements of `test`, as bool, in the shape of `x`.

    >>> import sparsegrad as sg
    >>> sg.isin(sg.tensor([1, 2, 3]), sg.tensor([3, 1]))
    tensor([ True, False,  True])
    """
    data = _raw("isin", x)
    be = backends.for_array(data)
    return _made(be.xp.isin(data, be.asarray(_raw("isin", test)), invert=invert))


@memory_for("searchsorted")
def searchsorted(sequence: Any, values: Any, *, right: bool = False) -> Any:
    """Where `values`, of any shape, would stand in a rising `sequence` (n,): int64, in their shape.
    Before equal elements, or after them (`right`).

    >>> import sparsegrad as sg
    >>> sg.searchsorted(sg.tensor([1, 3, 3, 5]), sg.tensor([3, 9]))
    tensor([1, 4])
    """
    data = _raw("searchsorted", sequence)
    if data.ndim != 1:
        raise ShapeError(f"searchsorted: expected a sequence (n,), got shape {data.shape}")
    be = backends.for_array(data)
    places = be.asarray(_raw("searchsorted", values))
    found = be.xp.searchsorted(data, places, "right" if right else "left")
    return _made(be.xp.asarray(found, dtype="int64"))


def bucketize(x: Any, boundaries: Any, *, right: bool = False) -> Any:
    """`searchsorted` with the arguments in the other order.

    >>> import sparsegrad as sg
    >>> sg.bucketize(sg.tensor([0.5, 2.0]), sg.tensor([1.0, 2.0]))
    tensor([0, 1])
    """
    return searchsorted(boundaries, x, right=right)


def tril_indices(row: int, col: int, offset: int = 0) -> Any:
    """Rows and columns of the lower triangle of a (row, col) matrix: (2, n), int64.

    >>> import sparsegrad as sg
    >>> sg.tril_indices(2, 2)
    tensor([[0, 1, 1],
            [0, 0, 1]])
    """
    return _made(np.stack(np.tril_indices(row, offset, col)))


def triu_indices(row: int, col: int, offset: int = 0) -> Any:
    """Rows and columns of the upper triangle of a (row, col) matrix: (2, n), int64.

    >>> import sparsegrad as sg
    >>> sg.triu_indices(2, 2)
    tensor([[0, 0, 1],
            [0, 1, 1]])
    """
    return _made(np.stack(np.triu_indices(row, offset, col)))
