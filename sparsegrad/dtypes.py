"""Dtypes, and PyTorch's promotion rules in one function.

NumPy has no bfloat16: ml_dtypes adds it (extra `bf16`), as a dtype whose `kind` is "V". So the
package asks `dtypes.kind(dtype)`, never `dtype.kind`, where a bfloat16 may come along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sparsegrad.errors import DtypeError

__all__ = [
    "accumulator",
    "as_dtype",
    "bool_",
    "complex64",
    "complex128",
    "finfo",
    "float16",
    "float32",
    "float64",
    "get_default_dtype",
    "iinfo",
    "int8",
    "int16",
    "int32",
    "int64",
    "kind",
    "promote_types",
    "result_type",
    "set_default_dtype",
    "uint8",
]

bool_ = np.dtype(np.bool_)
uint8 = np.dtype(np.uint8)
int8, int16, int32, int64 = (np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
float16, float32, float64 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))
complex64, complex128 = np.dtype(np.complex64), np.dtype(np.complex128)

# PyTorch's ladder: a value of a higher kind decides, one of a lower kind never widens it.
_RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
_KNOWN = {np.dtype(c): np.dtype(c) for c in "?bBhHiIlLqQefdFD"}  # as they are found most often
_default = float32


def _bfloat16() -> np.dtype:
    try:
        import ml_dtypes
    except ImportError:
        raise DtypeError(
            "bfloat16: NumPy has none; ml_dtypes has: pip install 'sparsegrad-engine[bf16]'"
        ) from None
    return np.dtype(ml_dtypes.bfloat16)


if TYPE_CHECKING:
    bfloat16: np.dtype
else:

    def __getattr__(name):  # an AttributeError, so that hasattr() is an answer
        if name != "bfloat16":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return _bfloat16()
        except DtypeError as error:
            raise AttributeError(str(error)) from None


def kind(dtype: np.dtype) -> str:
    """NumPy's letter for what a dtype holds: "b" bool, "u" and "i" integers, "f" floating point
    (bfloat16 too), "c" complex.

    >>> kind(float16), kind(uint8)
    ('f', 'u')
    """
    letter = dtype.kind
    return "f" if letter == "V" and dtype.name == "bfloat16" else letter


def get_default_dtype() -> np.dtype:
    """The dtype of floating-point tensors made from Python numbers (float32 unless changed).

    >>> import sparsegrad as sg
    >>> sg.get_default_dtype()
    dtype('float32')
    """
    return _default


def set_default_dtype(dtype: Any) -> None:
    """Change the dtype that Python floats and float results of integer tensors take.

    Raises DtypeError unless `dtype` is floating point.

    >>> import sparsegrad as sg
    >>> sg.set_default_dtype(sg.float64)
    >>> sg.tensor([1.5]).dtype
    dtype('float64')
    >>> sg.set_default_dtype(sg.float32)
    """
    global _default
    dtype = as_dtype(dtype)
    if kind(dtype) != "f":
        raise DtypeError(f"set_default_dtype: dtype must be floating point, got {dtype}")
    _default = dtype


def as_dtype(dtype: Any) -> np.dtype:
    """`dtype` as a NumPy dtype that tensors can have; DtypeError for any other.

    >>> as_dtype("float32"), as_dtype(bool)
    (dtype('float32'), dtype('bool'))
    """
    if isinstance(dtype, np.dtype) and (known := _KNOWN.get(dtype)) is not None:
        return known
    if dtype is float:
        return _default
    if isinstance(dtype, str) and dtype == "bfloat16":
        return _bfloat16()
    try:
        dtype = np.dtype(dtype)
    except (TypeError, ValueError):
        raise DtypeError(f"dtype: {dtype!r} is not a dtype") from None
    if kind(dtype) not in _RANK or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise DtypeError(f"dtype: {dtype} is not supported")
    return dtype.newbyteorder("=")


def promote_types(a: np.dtype, b: np.dtype) -> np.dtype:
    """The dtype that holds both, as in PyTorch: integer with float32 is float32, float16 with
    bfloat16 too.

    >>> promote_types(int64, float16), promote_types(uint8, int8)
    (dtype('float16'), dtype('int16'))
    """
    if a == b:
        return a
    rank_a, rank_b = _RANK[kind(a)], _RANK[kind(b)]
    if rank_a == rank_b or (3 in (rank_a, rank_b) and 2 in (rank_a, rank_b)):
        dtype = np.promote_types(*map(accumulator, (a, b)) if "V" in (a.kind, b.kind) else (a, b))
        if _RANK[dtype.kind] != max(rank_a, rank_b):  # uint64 with a signed integer
            raise DtypeError(f"promotion: no integer dtype holds both {a} and {b}")
        return dtype
    return a if rank_a > rank_b else b


def result_type(*operands: Any) -> np.dtype:
    """The dtype of an op on `operands` (tensors, arrays, Python numbers), by PyTorch's rules.

    Tensors with dimensions decide before zero-dimensional ones, and those before Python numbers;
    a later group matters only if it is of a higher kind (bool < integer < float < complex).

    >>> result_type(np.ones(3, "f4"), 2.0), result_type(np.ones(3, "i8"), 2.0)
    (dtype('float32'), dtype('float32'))
    >>> result_type(np.ones(3, "f4"), np.ones((), "f8"))
    dtype('float32')
    """
    groups: list[np.dtype | None] = [None, None, None]
    for x in operands:
        if isinstance(x, (bool, int, float, complex)):
            level, dtype = 2, _scalar_dtype(x)
        else:
            level, dtype = (0 if x.ndim else 1), x.dtype
        held = groups[level]
        groups[level] = dtype if held is None else promote_types(held, dtype)
    result: np.dtype | None = None
    for held in groups:
        if result is None:
            result = held
        elif held is not None and _RANK[kind(held)] > _RANK[kind(result)]:
            if kind(result) == "f":  # a complex number does not widen the float it meets
                result = complex128 if result == float64 else complex64
            else:
                result = promote_types(result, held)
    if result is None:
        raise DtypeError("promotion: no operands")
    return result


def _scalar_dtype(x: bool | int | float | complex) -> np.dtype:
    if isinstance(x, bool):
        return bool_
    if isinstance(x, int):
        return int64
    if isinstance(x, float):
        return _default
    return complex128 if _default == float64 else complex64


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype in which `dtype` is computed with: float32 for the 16-bit floats, else itself."""
    return float32 if dtype.itemsize == 2 and kind(dtype) == "f" else dtype


def finfo(dtype: Any) -> Any:
    """Limits of a floating-point dtype, as NumPy's: `eps`, `max`, `min`, `tiny`, `bits`.

    >>> import sparsegrad as sg
    >>> float(sg.finfo(sg.float16).max)
    65504.0
    """
    dtype = as_dtype(dtype)
    if dtype.kind == "V":
        import ml_dtypes

        return ml_dtypes.finfo(dtype)
    return np.finfo(dtype)


def iinfo(dtype: Any) -> Any:
    """Limits of an integer dtype, as NumPy's: `max`, `min`, `bits`.

    >>> import sparsegrad as sg
    >>> sg.iinfo(sg.int8).max
    127
    """
    return np.iinfo(as_dtype(dtype))
