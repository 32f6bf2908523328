"""DLPack of NumPy arrays, bfloat16 included: NumPy exchanges numbers of its own dtypes only.

A bfloat16 array goes through NumPy as 16-bit integers, with the type corrected in the capsule:
https://dmlc.github.io/dlpack/latest/c_api.html.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from sparsegrad.dtypes import as_dtype

__all__ = ["export", "shared"]

_UINT, _BFLOAT = 1, 4  # DLDataTypeCode


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def _described(capsule: Any) -> _Tensor:
    """What a capsule that nobody has taken over says of its tensor; writing to it changes that."""
    pointer, valid = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_IsValid
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    valid.restype, valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    name = b"dltensor_versioned"
    if valid(capsule, name):
        return _Versioned.from_address(pointer(capsule, name)).tensor
    return _Tensor.from_address(pointer(capsule, b"dltensor"))


def export(array: Any, **options: Any) -> Any:
    """`array.__dlpack__(**options)`."""
    if not isinstance(array, np.ndarray) or array.dtype.kind != "V":
        return array.__dlpack__(**options)
    capsule = array.view(np.uint16).__dlpack__(**options)
    _described(capsule).code = _BFLOAT
    return capsule


class _Words:
    """An exporter whose bfloat16 numbers are shown as integers."""

    def __init__(self, exporter: Any) -> None:
        self.exporter, self.bfloat16 = exporter, False

    def __dlpack_device__(self) -> Any:
        return self.exporter.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.exporter.__dlpack__(**options)
        tensor = _described(capsule)
        if (tensor.code, tensor.bits) == (_BFLOAT, 16):
            self.bfloat16, tensor.code = True, _UINT
        return capsule


def shared(exporter: Any) -> np.ndarray:
    """`numpy.from_dlpack(exporter)`."""
    words = _Words(exporter)
    array = np.from_dlpack(words)
    return array.view(as_dtype("bfloat16")) if words.bfloat16 else array
