"""What is asked of tensors, and parts of numbers: no gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsegrad import backends, dtypes
from sparsegrad.errors import DtypeError, ShapeError, memory_for
from sparsegrad.ops.composite import dense_argument
from sparsegrad.ops.shape import as_argument
from sparsegrad.ops.sparse_structure import each_once

__all__ = [
    "angle",
    "bincount",
    "bucketize",
    "conj",
    "imag",
    "is_complex",
    "is_floating_point",
    "is_tensor",
    "isin",
    "numel",
    "real",
    "searchsorted",
    "tril_indices",
    "triu_indices",
]


def _raw(op: str, x: Any) -> Any:
    return dense_argument(op, x).data


def _made(array: Any) -> Any:
    from sparsegrad.tensor import Tensor

    return Tensor(array)


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


def is_complex(x: Any) -> bool:
    """Whether the dtype of `x` is a complex one.

    >>> import sparsegrad as sg
    >>> sg.is_complex(sg.tensor([1j]))
    True
    """
    return dtypes.kind(x.dtype) == "c"


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
    x = as_argument("real", x)
    if x._is_sparse:
        return x.with_values(real(x.values))
    return x if x.dtype.kind != "c" else _made(x.data.real.copy())


def imag(x: Any) -> Any:
    """The imaginary part of a complex `x`, same shape. Raises DtypeError for a real one.

    >>> import sparsegrad as sg
    >>> sg.imag(sg.tensor([1 + 2j]))
    tensor([2.])
    """
    x = as_argument("imag", x)
    if x._is_sparse:
        return x.with_values(imag(x.values))
    if x.dtype.kind != "c":
        raise DtypeError(f"imag: expected complex numbers, got {x.dtype}")
    return _made(x.data.imag.copy())


def conj(x: Any) -> Any:
    """The complex conjugate, same shape; a real `x` itself.

    >>> import sparsegrad as sg
    >>> sg.conj(sg.tensor([1 + 2j])).item()
    (1-2j)
    """
    x = as_argument("conj", x)
    if x._is_sparse:
        return x.with_values(conj(x.values))
    return x if x.dtype.kind != "c" else _made(x.data.conj())


def angle(x: Any) -> Any:
    """The angle of each number in the complex plane, in (-pi, pi], same shape, without gradient.

    >>> import sparsegrad as sg
    >>> sg.angle(sg.tensor([1j, -1.0]))
    tensor([1.5707964, 3.1415927])
    """
    x = as_argument("angle", x)
    if x._is_sparse:
        x = each_once(x)
        return x.with_values(angle(x.values))
    data = x.data
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
