"""Calls of Numba kernels: kernels by name, arguments as they take them, work in chunks."""

from __future__ import annotations

import importlib
import os
import pkgutil
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from sparsegrad import memory
from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu_jit_launch import Kernel, contiguous

__all__ = [
    "ELEMENTS",
    "F4",
    "F8",
    "GRAIN",
    "I4",
    "I8",
    "LINE",
    "NONE",
    "add_carries",
    "aligned",
    "array_of",
    "inside",
    "kernel_of",
    "kernels",
    "product_work",
    "reads_often",
    "result",
    "row_chunks",
    "row_tasks",
    "same_index",
    "tasks_of",
    "warmup",
]

F4, F8, I4, I8 = (np.dtype(t) for t in ("f4", "f8", "i4", "i8"))
NONE = {I4: np.empty(0, I4), I8: np.empty(0, I8)}
GRAIN = 8192  # entries and rows in a chunk, unless that makes more than _MAX_CHUNKS
ELEMENTS = 1 << 14  # of dense arrays in a task, at least
LINE = 64  # bytes, as the longest vector of a kernel
_MAX_CHUNKS = 1024
_MAX_TASKS = 256  # over dense rows
_FIND, _VECTOR = 40, 8  # see `product_work`
_MIN_READS = 64  # of every row, that are worth moving it


# ---- kernels -----------------------------------------------------------------------------------
@cache
def kernels() -> dict[str, Kernel]:
    """Every kernel by name: those of the files `cpu_jit_kernels*` beside this one."""
    files = [item.name for item in pkgutil.iter_modules([os.path.dirname(__file__)])]
    families = [name for name in files if name.startswith("cpu_jit_kernels")]
    modules = [importlib.import_module(f"sparsegrad.backends.{family}") for family in families]
    found = [(name, item) for module in modules for name, item in vars(module).items()]
    return {name: item for name, item in found if isinstance(item, Kernel)}


@cache
def kernel_of(name: str, *dtypes: np.dtype) -> Any:
    """The kernel of that name, compiled for these dtypes."""
    return kernels()[name][dtypes]


def warmup() -> int:
    """Compile every kernel for every dtype, into Numba's cache where it can be written.

    Returns the number of kernels. The first call takes a minute or two, later ones a second.
    """
    types = {"F": (F4, F8), "I": (I4, I8), "K": (I4, I8)}
    types["W"] = np.dtype(np.uint16), np.dtype(np.int16)  # float16, bfloat16
    count = 0
    for kernel in kernels().values():
        for dtypes in product(*(types[letter] for letter in kernel.letters)):
            kernel[dtypes]
            count += 1
    return count


# ---- arguments as kernels take them ------------------------------------------------------------
def same_index(*arrays: Array) -> tuple[Array, ...] | None:
    """The arrays contiguous and of one index dtype; None if a kernel cannot take them."""
    dtype = arrays[0].dtype
    if dtype not in NONE:
        return None
    for a in arrays:
        if a.dtype != dtype or a.ndim != 1:
            return None
    return tuple(contiguous(a, dtype) for a in arrays)


def array_of(array: Array, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
    """The array contiguous, in that dtype and shape."""
    return contiguous(array, dtype).reshape(shape)


def reads_often(reads: int, rows: int, width: int) -> bool:
    """Whether rows of so many bytes are worth being moved for so many reads."""
    return reads >= _MIN_READS * rows and width % LINE == 0


def aligned(rows: Array, reads: int) -> Array:
    """The rows (n, *D) as they are, or a copy, so that vectors of a row begin with a cache line;
    where `reads` reads of a row are so many that this pays. One across two lines takes half as long
    again."""
    width = rows.nbytes // max(1, len(rows))
    if not reads_often(reads, len(rows), width) or rows.ctypes.data % LINE == 0:
        return rows
    out = memory.aligned(rows.shape, rows.dtype)
    np.copyto(out, rows)
    return out


def result(out: Array, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
    """`out` itself where it can be: the engine may add to an array that is no view of another."""
    out = out.astype(dtype, copy=False)
    return out if out.shape == shape else out.reshape(shape)


def inside(index: Array, bound: int) -> bool:
    """Whether every index lies in [0, bound)."""
    if not index.size:
        return True
    low, high = kernel_of("extremes", index.dtype)(index)
    return low >= 0 and high < bound


def tasks_of(n: int) -> int:
    """Tasks for a loop over n entries."""
    return min(max(n // GRAIN, 1), _MAX_CHUNKS)


def row_tasks(n: int, width: int) -> tuple[int, int]:
    """Tasks for a loop over n dense rows, and the rows of each: by the shape alone."""
    rows = max(1, ELEMENTS // width, -(-n // _MAX_TASKS))
    return -(-n // rows), rows


def row_chunks(indptr: Array, split: bool) -> tuple[Array, Array]:
    """Chunks of equal numbers of entries and rows, and those that begin inside a long row."""
    chunks = tasks_of(int(indptr[-1]) + indptr.size - 1)
    cuts = np.empty((chunks + 1, 2), dtype=np.int64)
    kernel_of("cut_rows", indptr.dtype)(indptr, chunks, split, cuts)
    if not split:
        return cuts, np.empty(0, dtype=np.int64)
    carried = np.flatnonzero(cuts[:-1, 1] < np.minimum(indptr[cuts[:-1, 0]], cuts[1:, 1]))
    return cuts, carried


def product_work(entries: int, width: int) -> int:
    """Elements of other kernels in the time of a product that reads a row of `width` numbers for
    each entry: it computes in vectors, and finding a row takes as long as computing a short one."""
    return entries * max(width, _FIND) // _VECTOR


def add_carries(out: Array, rows: int, cuts: Array, carried: Array) -> Array:
    """The rows of `out`, plus what chunks found of rows that began in an earlier one, in order."""
    for t in carried:
        out[cuts[t, 0] - 1] += out[rows + t]
    return out[:rows] if carried.size else out
