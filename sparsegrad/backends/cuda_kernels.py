"""Our own CUDA kernels: the sources, one checked launch, and the launch table of sddmm.

`kernels/*.cu` are templates. Each instance is compiled when it is first used and kept on disk by
CuPy. Parameters are read from the source, so `launch` can check every argument by name; nothing
below it does: CuPy passes a Python float for a `float` as zero and an int64 array for an `int *` as
garbage, without an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from sparsegrad.backends.cuda_instances import INSTANCES, STRUCTS
from sparsegrad.errors import DtypeError, ShapeError

__all__ = [
    "Kernel",
    "accumulator_of",
    "all_kernels",
    "compiled",
    "ctype_of",
    "directory",
    "instances",
    "kernel",
    "launch",
    "power_of_two",
    "sddmm",
    "source",
]

Array = Any

_OPTIONS = ("-std=c++17",)
_BLOCK = 256  # threads; what __launch_bounds__ promises

# NumPy has no bfloat16: an array is one of ml_dtypes, or its bits are uint16 and the caller names
# the dtype.
_CTYPES = {
    "bool": "bool",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
}
_DTYPES: dict[str, np.dtype] = {
    "bool": np.dtype(np.bool_),
    "__half": np.dtype(np.float16),
    "__nv_bfloat16": np.dtype(np.uint16),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "int": np.dtype(np.int32),
    "long long": np.dtype(np.int64),
    "unsigned char": np.dtype(np.uint8),
    "unsigned short": np.dtype(np.uint16),
    "unsigned int": np.dtype(np.uint32),
    "unsigned long long": np.dtype(np.uint64),
}
_ACCUMULATORS = {"__half": "float", "__nv_bfloat16": "float", "bool": "long long"}

_HEADERS = {"segment": ("segments.cuh",), "softmax": ("segments.cuh",)}  # beside common.cuh


# ---- sources and instances


def directory() -> Path:
    """The folder of the sources."""
    here = Path(__file__).resolve()
    installed = (
        here.parents[1] / "_kernels"
    )  # in a wheel; in a checkout they lie beside the package
    return installed if installed.is_dir() else here.parents[2] / "kernels"


@cache
def source(family: str) -> str:
    """The text that is compiled for `kernels/<family>.cu`, its headers included."""
    files = ("common.cuh", *_HEADERS.get(family, ()), f"{family}.cu")
    folder = directory()
    return "".join(
        f'#line 1 "{name}"\n{(folder / name).read_text(encoding="utf-8")}' for name in files
    )


def instances() -> dict[str, list[str]]:
    """For each file of `kernels/`, the name expressions of all its template instances."""
    return {
        family: [_expression(name, args) for name, all_args in kernels.items() for args in all_args]
        for family, kernels in INSTANCES.items()
    }


def _expression(name: str, args: Iterable[str]) -> str:
    return f"{name}<{', '.join(args)}>"


# ---- kernels and the checked launch


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel instance."""

    name: str
    dtype: np.dtype
    pointer: bool
    nullable: bool
    real: bool  # floating point


_KERNEL = re.compile(
    r"template\s*<(?P<template>[^>]*)>\s*__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?"
    r"(?P<name>\w+)\s*\((?P<parameters>.*?)\)\s*\{",
    re.S,
)
_PARAMETER = re.compile(
    r"(?:const\s+)?(?P<type>[\w ()]+?)\s*(?P<pointer>\*)?\s*(?:__restrict__)?\s*(?P<name>\w+)"
)


@cache
def _signatures(family: str) -> dict[str, tuple[list[str], str]]:
    """Kernel name -> names of its template parameters, text of its parameter list."""
    return {
        match["name"]: ([p.split()[-1] for p in match["template"].split(",")], match["parameters"])
        for match in _KERNEL.finditer(source(family))
    }


def _parameter(text: str, types: dict[str, str]) -> Parameter:
    match = _PARAMETER.fullmatch(" ".join(text.split()))
    assert match, text
    ctype = types.get(match["type"], match["type"])
    if accumulator := re.fullmatch(r"SG_ACC\((\w+)\)", ctype):
        ctype = types[accumulator[1]]
        ctype = _ACCUMULATORS.get(ctype, ctype)
    name = match["name"]
    dtype = STRUCTS[ctype] if ctype in STRUCTS else _DTYPES[ctype]
    nullable = name.endswith("_or_null")
    return Parameter(name, dtype, bool(match["pointer"]), nullable, dtype.kind == "f")


class Kernel:
    """One template instance, compiled at its first launch."""

    __slots__ = ("_function", "expression", "family", "parameters")

    def __init__(self, family: str, name: str, args: tuple[str, ...]) -> None:
        if args not in INSTANCES[family][name]:
            raise DtypeError(f"kernel {name}: there is no instance for <{', '.join(args)}>")
        template, parameters = _signatures(family)[name]
        types = dict(zip(template, args))
        self.family, self.expression = family, _expression(name, args)
        self.parameters = tuple(_parameter(text, types) for text in parameters.split(","))
        self._function: Any = None

    def function(self) -> Any:
        """CuPy's function object."""
        if self._function is None:
            import cupy

            module = cupy.RawModule(
                code=source(self.family),
                options=_OPTIONS,
                name_expressions=(self.expression,),
            )
            self._function = module.get_function(self.expression)
        return self._function


@cache
def kernel(family: str, name: str, *args: str) -> Kernel:
    """The kernel `name` of `kernels/<family>.cu` for these template arguments."""
    return Kernel(family, name, args)


def all_kernels() -> list[Kernel]:
    """Every instance there is."""
    return [
        kernel(family, name, *args)
        for family, templates in INSTANCES.items()
        for name, instances in templates.items()
        for args in instances
    ]


def compiled(every: list[Kernel]) -> Iterator[tuple[str, str | None]]:
    """Compile kernels for the current device, on all cores: the name of each, and what went wrong.
    CuPy keeps the result on disk, so a later process need not wait."""
    import cupy

    device = cupy.cuda.Device()

    def build(kernel: Kernel) -> tuple[str, str | None]:
        try:
            with device:
                kernel.function()
        except (RuntimeError, OSError, cupy.cuda.compiler.CompileException) as error:
            return kernel.expression, f"{type(error).__name__}: {' '.join(str(error).split())}"
        return kernel.expression, None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(build, every)


def launch(kernel: Kernel, threads: int, **arguments: Any) -> None:
    """Run a kernel on `threads` threads, rounded up to blocks; on many, as many as are useful.

    Arguments are named as in the source. Scalars are cast to the kernel's types; arrays must have
    the very dtype and be contiguous, for a kernel sees neither. Raises TypeError for a missing or
    unknown argument, DtypeError and ShapeError for an array that does not fit, OverflowError for
    a scalar that does not.
    """
    if len(arguments) != len(kernel.parameters):
        expected = {p.name for p in kernel.parameters}
        wrong = sorted(expected ^ set(arguments))
        raise TypeError(f"{kernel.expression}: missing or unknown arguments {wrong}")
    array, packed = _array_type(), []
    for p in kernel.parameters:
        try:
            value = arguments[p.name]
        except KeyError:
            raise TypeError(f"{kernel.expression}: missing argument {p.name!r}") from None
        if not p.pointer:
            value = _scalar(kernel, p, value)
        elif not (
            type(value) is array and _fits(value.dtype, p.dtype) and value.flags.c_contiguous
        ) and not (value is None and p.nullable):
            _refuse(kernel, p, value)
        packed.append(value)
    if threads > 0:
        blocks = -(-threads // _BLOCK)
        if blocks > 1024:
            blocks = min(blocks, 32 * _multiprocessors(_device()))
        kernel.function()((blocks,), (_BLOCK,), tuple(packed))


def _fits(found: np.dtype, expected: np.dtype) -> bool:
    return found == expected or (expected.char == "H" and found.name == "bfloat16")


def _refuse(kernel: Kernel, p: Parameter, value: Any) -> NoReturn:
    """Say why `value` is no argument for the pointer `p`."""
    if type(value) is not _array_type():
        found = type(value).__name__
        raise TypeError(f"{kernel.expression}: {p.name} must be a cupy array, not {found}")
    if not _fits(value.dtype, p.dtype):
        raise DtypeError(f"{kernel.expression}: {p.name} must be {p.dtype}, got {value.dtype}")
    raise ShapeError(
        f"{kernel.expression}: {p.name} must be contiguous, got shape {value.shape} with"
        f" strides {value.strides}"
    )


@cache
def _array_type() -> Any:
    import cupy

    return cupy.ndarray


def _scalar(kernel: Kernel, p: Parameter, value: Any) -> np.generic | np.ndarray:
    if p.dtype.names:
        if getattr(value, "dtype", None) != p.dtype or value.shape != ():
            raise TypeError(f"{kernel.expression}: {p.name} must be one struct, an array of NumPy")
        return value
    if p.real:
        return p.dtype.type(float(value))
    if not isinstance(value, int | np.integer):
        found = type(value).__name__
        raise TypeError(f"{kernel.expression}: {p.name} must be an integer, not {found}")
    return p.dtype.type(int(value))  # OverflowError if it does not fit


def _device() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDevice())


@cache
def _multiprocessors(device: int) -> int:
    import cupy

    return int(cupy.cuda.Device(device).attributes["MultiProcessorCount"])


def ctype_of(dtype: np.dtype, name: str | None = None) -> str:
    """The type of C++ for arrays of this dtype, or of the dtype called `name`."""
    try:
        return _CTYPES[name or dtype.name]
    except KeyError:
        raise DtypeError(f"no kernel for dtype {name or dtype}") from None


def accumulator_of(ctype: str) -> np.dtype:
    """The dtype in which kernels sum values of a type of C++."""
    return _DTYPES[_ACCUMULATORS.get(ctype, ctype)]


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


# ---- sddmm


def sddmm(
    row: Array,
    col: Array,
    x: Array,
    y: Array,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    values: Array | None = None,
    dtype: str | None = None,
) -> Array:
    """alpha * (x @ y.T on the entries) + beta * values: x (m, *H, k), y (n, *H, k) -> (nnz, *H).

    Without heads the rows of x and y may lie apart (a slice of columns); all else is contiguous.
    `dtype="bfloat16"` says that uint16 arrays hold bfloat16.
    """
    import cupy

    if x.shape[1:] != y.shape[1:]:
        raise ShapeError(f"sddmm: x is {x.shape} and y is {y.shape}: all but rows must agree")
    k, heads = x.shape[-1], prod(x.shape[1:-1])
    out = cupy.empty((row.size, *x.shape[1:-1]), x.dtype)
    (x_flat, x_stride), (y_flat, y_stride) = _rows("x", x), _rows("y", y)
    width = _load_width(k, x_flat, x_stride, y_flat, y_stride)
    lanes = _lanes(-(-k // width), x.dtype.itemsize)
    launch(
        kernel("sddmm", "sg_sddmm", ctype_of(x.dtype, dtype), ctype_of(row.dtype), str(width)),
        out.size,
        row=row,
        col=col,
        x=x_flat,
        y=y_flat,
        x_stride_bytes=x_stride * x.itemsize,
        y_stride_bytes=y_stride * y.itemsize,
        k=k,
        heads=heads,
        lanes=lanes,
        items=out.size,
        alpha=alpha,
        beta=beta,
        values_or_null=values,
        out=out,
    )
    return out


def _rows(name: str, x: Array) -> tuple[Array, int]:
    """A flat array over the same memory, and how far apart its vectors are, in elements."""
    import cupy

    k = x.shape[-1]
    if x.flags.c_contiguous:
        flat, stride, vectors = x.reshape(-1), k, x.size // max(k, 1)
    elif x.ndim == 2 and x.strides[1] == x.itemsize and x.strides[0] >= x.itemsize * k:
        stride, vectors = x.strides[0] // x.itemsize, len(x)
        flat = cupy.ndarray(((vectors - 1) * stride + k,), x.dtype, x.data)
    else:
        raise ShapeError(
            f"sddmm: {name} must have contiguous rows, got shape {x.shape}, strides {x.strides}"
        )
    if vectors >> 32 or stride * x.itemsize >> 32:
        raise ShapeError(f"sddmm: {name} has too many or too long vectors: {x.shape}")
    return flat, stride


def _load_width(k: int, x: Array, x_stride: int, y: Array, y_stride: int) -> int:
    """The most elements, up to 16 bytes, that every load may have."""
    width = 16 // x.itemsize
    odd = x_stride | y_stride
    addresses = x.data.ptr | y.data.ptr
    while width > 1 and (
        width > max(k, 1)
        or odd % width
        or addresses % (width * x.itemsize)
        or (width == 2 and k % 2)  # the kernel loads the rest of a ragged k for wider ones only
    ):
        width //= 2
    return width


def _lanes(loads: int, itemsize: int) -> int:
    """Lanes that share an item of `loads` loads. Eight keep four entries each in flight; more only
    where the loop along k would pass eight rounds (four, for halves and doubles)."""
    if loads <= (64 if itemsize == 4 else 32):
        return min(8, power_of_two(loads))
    return 16 if loads <= 128 else 32
