"""NumPy and SciPy in the place of NVIDIA's closed libraries. See ../README.md for their limits."""

import ctypes
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import numpy as np

_mark: list[Callable[[int, int], None]] = []


def set_marker(mark: Callable[[int, int], None]) -> None:
    """Give `mark(address, bytes)` of the simulator, which tracks uninitialised memory."""
    _mark[:] = [mark]


def mark_written(array: np.ndarray) -> None:
    """Say that host code has filled `array`, which lies in device memory."""
    low, high = np.lib.array_utils.byte_bounds(array)
    if array.size:
        _mark[0](low, high - low)


def view(pointer: int, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
    """Device memory as a NumPy array, without a copy."""
    dtype, size = np.dtype(dtype), int(np.prod(shape))
    if not size:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(pointer)
    return np.frombuffer(memory, dtype, size).reshape(shape)


def replace_library(name: str, module: ModuleType) -> None:
    """Make `module` what CuPy gets for one of its bindings, before it looks for the library."""
    sys.modules[f"cupy_backends.cuda.libs.{name}"] = module
    setattr(import_module("cupy_backends.cuda.libs"), name, module)
