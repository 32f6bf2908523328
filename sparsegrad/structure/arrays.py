"""Index arrays: their dtype, what makes one valid, and small work on them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsegrad import backends
from sparsegrad.errors import PatternError

__all__ = [
    "INT32_MAX",
    "Array",
    "Moves",
    "Runs",
    "as_ids",
    "as_shape",
    "check_offsets",
    "frozen",
    "index_dtype",
    "invert",
    "owned",
]

Array = Any

INT32_MAX = int(np.iinfo(np.int32).max)
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def index_dtype(shape: tuple[int, ...], nnz: int) -> np.dtype:
    """int32 unless a dimension or the number of entries needs int64."""
    return _INT64 if max(*shape, nnz, 0) > INT32_MAX else _INT32


def invert(perm: Array | None) -> Array | None:
    """The inverse permutation."""
    if perm is None:
        return None
    xp = backends.for_array(perm).xp
    out = xp.empty_like(perm)
    out[perm] = xp.arange(perm.size, dtype=perm.dtype)
    return out


class Moves:
    """Positions of entries in another order, and the way back, found when somebody asks for it."""

    __slots__ = ("_find", "_inverse", "perm")

    def __init__(self, perm: Array, find: Callable[[], Array] | None = None) -> None:
        self.perm, self._find, self._inverse = perm, find, None

    @property
    def inverse(self) -> Array:
        if self._inverse is None:
            self._inverse = invert(self.perm) if self._find is None else self._find()
        return self._inverse

    @property
    def back(self) -> Moves:
        """The way back."""
        return Moves(self.inverse, lambda: self.perm)


class Runs:
    """Entries starts[i], starts[i] + 1, ... of every run i, one run behind the other, of lengths
    diff(offsets): starts (s,), offsets (s + 1,). They are listed when somebody asks for it."""

    __slots__ = ("_positions", "offsets", "starts")

    def __init__(self, starts: Array, offsets: Array) -> None:
        self.starts, self.offsets, self._positions = starts, offsets, None

    @property
    def positions(self) -> Array:
        """All of them (offsets[-1],)."""
        if self._positions is None:
            be = backends.for_array(self.starts)
            self._positions = be.spans(self.starts, self.offsets)
        return self._positions


def as_shape(shape: Any) -> tuple[int, ...]:
    """`shape` as a tuple of non-negative ints."""
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        raise PatternError(f"shape: expected a tuple of integers, got {shape!r}") from None
    if sizes and min(sizes) < 0:
        raise PatternError(f"shape: sizes must not be negative, got {sizes}")
    return sizes


def as_ids(name: str, ids: Any) -> Array:
    if type(ids) is np.ndarray and ids.ndim == 1 and ids.dtype.kind in "iu":  # nearly always
        return ids
    try:
        array = ids if hasattr(ids, "dtype") else np.asarray(ids)
    except ValueError:
        raise PatternError(f"{name}: lists of different lengths: {ids!r}") from None
    array = array if backends.is_array(array) else getattr(array, "data", array)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int32)  # an empty Python list
    if array.dtype.kind not in "iu":
        raise PatternError(f"{name}: indices must be integers, got {array.dtype}")
    if array.ndim != 1:
        raise PatternError(f"{name}: expected one dimension, got shape {array.shape}")
    return array


def owned(array: Array, dtype: np.dtype, copy: bool) -> Array:
    out = array.astype(dtype, copy=copy)
    return array[:] if out is array else out  # a view: the user's array stays writable


def frozen(array: Array) -> Array:
    """The array, made read-only where the library can: many handles share it."""
    if isinstance(array, np.ndarray):
        array.setflags(write=False)
    return array


def check_offsets(name: str, offsets: Any, nnz: int) -> Array:
    """Offsets (s + 1,) as an index array; PatternError unless they rise from 0 to nnz."""
    ptr = as_ids(name, offsets)
    backends.for_array(ptr).check_offsets(name, ptr, nnz)
    return ptr.astype(index_dtype((ptr.size,), nnz), copy=False)
