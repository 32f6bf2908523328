"""Launches checked against the kernel's C signature.

CuPy passes what it is given: a Python float for a `float` parameter arrives as zero, an int64 array
for an `int *` is read as twice as many numbers, a strided array as if it had no strides, and a
missing argument as whatever lies there. None of this is an error on a GPU. Here all of it is.
"""

import ctypes
import sys
from typing import Any

import numpy as np

_KINDS = {"f": "f", "i": "ib", "u": "ub"}  # of a C type -> of dtypes that fit
# A NumPy array cannot be of bfloat16 without ml_dtypes; its bits in uint16 are as good.
_HALVES = {"h": ("float16",), "b": ("bfloat16", "uint16")}


class StrictKernel:
    """A kernel of CuPy's whose arguments are compared with its parameters before each launch."""

    __slots__ = ("_kernel", "_library", "_parameters")

    def __init__(self, kernel: Any, library: ctypes.PyDLL) -> None:
        self._kernel, self._library = kernel, library
        self._parameters: list[tuple[int, ...]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Attributes such as `max_dynamic_shared_size_bytes` are the kernel's."""
        if name in StrictKernel.__slots__:
            object.__setattr__(self, name, value)
        else:
            setattr(self._kernel, name, value)

    def __call__(self, grid: Any, block: Any, args: Any, **options: Any) -> None:
        if self._parameters is None:
            out = (ctypes.c_int * (5 * 64))()
            pointer = ctypes.c_ssize_t(self._kernel.kernel.ptr)
            n = self._library.sim_function_params(pointer, out)
            self._parameters = [tuple(out[5 * i : 5 * i + 5]) for i in range(n)]
        name = self._kernel.name
        if len(args) != len(self._parameters):
            raise TypeError(f"{name} takes {len(self._parameters)} arguments, {len(args)} given")
        for i, (arg, parameter) in enumerate(zip(args, self._parameters)):
            _check(f"argument {i} of {name}", arg, *parameter)
        self._kernel(grid, block, args, **options)


def _check(
    what: str, arg: Any, kind: int, size: int, item_kind: int, item_size: int, _: int
) -> None:
    kind_, item = chr(kind), chr(item_kind)
    if isinstance(arg, np.ndarray):  # CuPy passes its bytes: a struct by value
        if kind_ != "s" or arg.nbytes != size or not arg.flags.c_contiguous:
            raise TypeError(f"{what}: {arg.nbytes} bytes for {size} of kind '{kind_}'")
    elif hasattr(arg, "data") and hasattr(arg, "flags") and not isinstance(arg, np.generic):
        if kind_ != "p":
            raise TypeError(f"{what}: an array for a scalar of {size} bytes")
        if not _fits(arg.dtype, item, item_size):
            raise TypeError(f"{what}: {arg.dtype} for a pointer to {item_size}-byte '{item}'")
        if not arg.flags.c_contiguous:
            raise TypeError(f"{what}: not contiguous, shape {arg.shape}, strides {arg.strides}")
    elif arg is None:
        if kind_ != "p":
            raise TypeError(f"{what}: None for a scalar of {size} bytes")
    elif isinstance(arg, bool | int | float | np.generic):
        # What CuPy makes of it.
        native = {bool: np.bool_, int: np.int64, float: np.float64}
        dtype = np.dtype(native.get(type(arg), getattr(arg, "dtype", None)))
        if kind_ == "p" or dtype.itemsize != size or (dtype.kind == "f") != (kind_ == "f"):
            raise TypeError(f"{what}: {dtype} for a parameter of {size} bytes, kind '{kind_}'")


def _fits(dtype: np.dtype, item: str, item_size: int) -> bool:
    if item in _HALVES:
        return dtype.name in _HALVES[item]
    if not item_size or item == "s":  # void, or a struct such as float4: any bytes will do
        return True
    return dtype.itemsize == item_size and dtype.kind in _KINDS[item]


def install(cupy: Any, library: ctypes.PyDLL) -> None:
    """Make `cupy.RawModule` and `cupy.RawKernel` strict, for all callers but CuPy itself."""
    plain_module, plain_kernel = cupy.RawModule, cupy.RawKernel

    class RawModule(plain_module):
        def get_function(self, name: str) -> StrictKernel:
            return StrictKernel(super().get_function(name), library)

    def raw_kernel(*args: Any, **kwargs: Any) -> Any:
        kernel = plain_kernel(*args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
        return kernel if caller in ("cupy", "cupyx") else StrictKernel(kernel, library)

    cupy.RawModule, cupy.RawKernel = RawModule, raw_kernel
