"""The CPU with Numba: threads and vector code where a problem is large enough to pay for them.

Loading Numba and a compiled kernel takes about a second once in a process, so this module does
neither until a call needs a kernel. Any dtype, layout or size that the kernels do not serve goes
to SciPy and NumPy.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from sparsegrad import memory
from sparsegrad.backends import nearly_full
from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu_jit_dense import CpuJitDense
from sparsegrad.backends.cpu_jit_launch import (
    Kernel,
    contiguous,
    get_num_threads,
    launch,
    set_num_threads,
)
from sparsegrad.backends.cpu_jit_products import CpuJitProducts, wide_of
from sparsegrad.backends.cpu_jit_random import CpuJitRandom
from sparsegrad.backends.cpu_jit_steps import CpuJitSteps
from sparsegrad.dtypes import kind

__all__ = ["CpuJit", "get_num_threads", "set_num_threads", "warmup"]

# Elements of work below which SciPy and NumPy are about as fast, or fast enough that a program
# which does nothing larger should not wait for Numba to load.
_MIN_PRODUCT = 1 << 15  # spmm, sddmm: multiplications
_MIN_SEGMENT = 1 << 14  # segment_*: values
_MIN_SCATTER = 1 << 14  # scatter_add: values
_MIN_GATHER = 1 << 16  # gather: bytes
_MIN_SORT = 1 << 13  # sort_coo, group: entries
_MIN_SCAN = 1 << 15  # expand, compress, order_facts, check_indices: entries

_GRAIN = 8192  # entries and rows in a chunk, unless that makes more than _MAX_CHUNKS
_MAX_CHUNKS = 1024
_DIGIT = 12  # bits a sorting pass: its counters fit the L1 cache
_LINE = 64  # bytes, as the longest vector of a kernel
_SHORT = 16  # bytes of the shortest
_CACHED = 1 << 18  # bytes of an output that stays in the cache next to a core
_OUTPUTS = 16  # of them at most, one for each chunk
_APART = 4  # outputs of a sum by index, where there are many entries to an output row

_F4, _F8, _I4, _I8 = (np.dtype(t) for t in ("f4", "f8", "i4", "i8"))
_NONE = {_I4: np.empty(0, _I4), _I8: np.empty(0, _I8)}


class CpuJit(CpuJitProducts, CpuJitDense, CpuJitRandom, CpuJitSteps):
    """Numba kernels over chunks of equal numbers of entries, on top of `Cpu`.

    `always` uses them for every size, which is what tests want.
    """

    name = "cpu_jit"

    def __init__(self, always: bool = False) -> None:
        self.always = always

    def _pays(self, work: int, least: int) -> bool:
        return work >= least or self.always

    # ---- index work ----------------------------------------------------------------------------
    def expand(self, indptr: Array, nnz: int) -> Array:
        arrays = _indices(indptr)
        if arrays is None or not self._pays(nnz, _MIN_SCAN) or int(indptr[-1]) != nnz:
            return super().expand(indptr, nnz)
        out = np.empty(nnz, dtype=indptr.dtype)
        tasks = _tasks(nnz)
        launch(_kernel("expand", out.dtype), (tasks, *arrays, out), tasks, nnz)
        return out

    def compress(self, ids: Array, n: int) -> Array:
        arrays = _indices(ids)
        if arrays is None or not self._pays(ids.size, _MIN_SCAN):
            return super().compress(ids, n)
        if ids.size and (ids[0] < 0 or ids[-1] >= n):  # sorted: these are the extremes
            return super().compress(ids, n)
        out = np.empty(n + 1, dtype=ids.dtype)
        tasks = _tasks(ids.size)
        launch(_kernel("compress", out.dtype), (tasks, *arrays, out), tasks, ids.size)
        return out

    def sort_coo(self, coords: tuple[Array, ...], shape: tuple[int, ...]) -> Array | None:
        arrays, nnz = _indices(*coords), coords[0].size
        cells = math.prod(shape)
        if arrays is None or not self._pays(nnz, _MIN_SORT) or cells > np.iinfo(np.int64).max:
            return super().sort_coo(coords, shape)
        if self.order_facts(coords)[0]:
            return None
        dtype = _I8 if nnz > np.iinfo(np.int32).max else arrays[0].dtype
        key, tasks = arrays[0], _tasks(nnz)
        for minor, width in zip(arrays[1:], shape[1:], strict=True):
            wider = np.empty(nnz, dtype=_I8)
            args = (tasks, key, minor, width, wider)
            launch(_kernel("linear_key", key.dtype, minor.dtype), args, tasks, nnz)
            key = wider
        bits = max(1, (cells - 1).bit_length())
        passes = -(-bits // _DIGIT)
        digit = -(-bits // passes)
        counts = np.empty((_blocks(nnz, 1 << digit), 1 << digit), dtype=_I8)
        perm = _NONE[dtype]
        for p in range(passes):
            out_key = np.empty(0 if p == passes - 1 else nnz, dtype=key.dtype)
            perm = _sort_pass(key, perm, p * digit, counts, out_key, dtype)
            key = out_key
        return perm

    def group(self, ids: Array, n: int) -> tuple[Array, Array]:
        arrays = _indices(ids)
        if arrays is None or not self._pays(ids.size, _MIN_SORT) or not _inside(arrays[0], n):
            return super().group(ids, n)
        counts = np.empty((_blocks(ids.size, n), n), dtype=_I8)
        offsets = np.empty(n + 1, dtype=ids.dtype)
        none = _NONE[ids.dtype]
        perm = _sort_pass(arrays[0], none, 0, counts, none, ids.dtype, offsets)
        return perm, offsets

    def order_facts(self, coords: tuple[Array, ...]) -> tuple[bool, bool]:
        arrays = _indices(*coords)
        if arrays is None or len(coords) > 2 or not self._pays(coords[0].size, _MIN_SCAN):
            return super().order_facts(coords)
        facts = _kernel("order_facts", arrays[0].dtype)(arrays[0], arrays[-1])
        return bool(facts & 1), bool(facts & 2)

    def check_indices(self, name: str, index: Array, bound: int, later: bool = False) -> None:
        arrays = _indices(index)
        if arrays is None or not self._pays(index.size, _MIN_SCAN) or not _inside(arrays[0], bound):
            super().check_indices(name, index, bound)  # which says what is wrong and where

    # ---- rows and sums by index ----------------------------------------------------------------
    def gather(self, x: Array, index: Array) -> Array:
        arrays, row = _indices(index), x[:1].nbytes
        if (
            arrays is None
            or x.ndim == 0
            or x.dtype.alignment not in (4, 8)
            or not (x.flags.c_contiguous and x.flags.aligned)
            or not self._pays(index.size * row, _MIN_GATHER)
            or not _inside(arrays[0], len(x))  # negative ids count from the end in NumPy
        ):
            return super().gather(x, index)
        out = memory.empty((index.size, *x.shape[1:]), x.dtype)
        if out.size:
            word = _I8 if x.dtype.alignment == 8 else _I4
            source, target = (a.reshape(len(a), -1).view(word) for a in (x, out))
            tasks = _tasks(max(index.size, out.nbytes // _LINE))
            args = (tasks, arrays[0], source, target)
            launch(_kernel("gather", word, index.dtype), args, tasks, 4 * index.size + target.size)
        return out

    def scatter_add(self, out: Array, index: Array, values: Array) -> None:
        wide, arrays = wide_of(out.dtype), _indices(index)
        if (
            wide is None
            or arrays is None
            or kind(values.dtype) not in "fiub"
            or values.shape != (index.size, *out.shape[1:])
            or not (out.flags.carray and self._pays(values.size, _MIN_SCATTER))
            or not _inside(arrays[0], len(out))  # negative ids count from the end in NumPy
        ):
            super().scatter_add(out, index, values)
            return
        width = math.prod(out.shape[1:])
        if not index.size or not width:
            return
        total = _array(out, wide, (len(out), width))
        flat = _array(values, wide, (index.size, width))
        if total.nbytes <= 4 * _CACHED and index.size >= 2 * _APART * len(out):
            outs = np.empty((_APART, *total.shape), dtype=wide)
            kernel = _kernel("scatter_add_apart", wide, arrays[0].dtype)
            launch(kernel, (_APART, arrays[0], flat, outs), _APART, values.size)
            total += outs.sum(axis=0)
            if wide != out.dtype:
                out[...] = total.reshape(out.shape)
            return
        # Every task reads all of the ids, which costs as much as adding about eight values.
        parts = 1 << (min(get_num_threads(), 1 + width // 8).bit_length() - 1)
        shift = max(0, (_LINE // (wide.itemsize * width)).bit_length() - 1)
        args = (parts, shift, arrays[0], flat, total)
        launch(_kernel("scatter_add", wide, arrays[0].dtype), args, parts, values.size)
        if wide != out.dtype:
            out[...] = total.reshape(out.shape)

    def segment_sum(self, values: Array, indptr: Array) -> Array:
        plan = self._segments(values, indptr)
        if plan is None:
            return super().segment_sum(values, indptr)
        wide, indptr_, width = plan
        cuts, carried = _row_chunks(indptr_, True)
        rows = len(indptr) - 1
        out = memory.empty((rows + len(cuts) * bool(carried.size), *values.shape[1:]), wide)
        flat = _array(values, wide, (len(values), width))
        args = (cuts, indptr_, flat, out.reshape(len(out), width))
        launch(_kernel("segment_sum", wide, indptr_.dtype), args, len(cuts) - 1, values.size)
        out = _add_carries(out, rows, cuts, carried)
        return _result(out, values.dtype, (rows, *values.shape[1:]))

    def segment_max(self, values: Array, indptr: Array) -> Array:
        plan = self._segments(values, indptr)
        if plan is None:
            return super().segment_max(values, indptr)
        wide, indptr_, width = plan
        cuts, _ = _row_chunks(indptr_, False)
        out = np.empty((len(indptr) - 1, *values.shape[1:]), dtype=wide)
        flat = _array(values, wide, (len(values), width))
        args = (cuts, indptr_, flat, out.reshape(len(out), width))
        launch(_kernel("segment_max", wide, indptr_.dtype), args, len(cuts) - 1, values.size)
        return _result(out, values.dtype, (len(out), *values.shape[1:]))

    def segment_softmax(self, values: Array, indptr: Array) -> Array:
        plan = self._segments(values, indptr)
        if plan is None:
            return super().segment_softmax(values, indptr)
        wide, indptr_, width = plan
        cuts, _ = _row_chunks(indptr_, False)
        out = memory.empty(values.shape, wide)
        flat = (len(values), width)
        args = (cuts, indptr_, _array(values, wide, flat), out.reshape(flat))
        kernel = _kernel("segment_softmax", wide, indptr_.dtype)
        launch(kernel, args, len(cuts) - 1, 8 * values.size)
        return _result(out, values.dtype, values.shape)

    def segment_softmax_grad(self, g: Array, out: Array, indptr: Array) -> Array:
        plan = self._segments(out, indptr)
        if plan is None or g.shape != out.shape or wide_of(g.dtype) is None:
            return super().segment_softmax_grad(g, out, indptr)
        wide, indptr_, width = plan
        cuts, _ = _row_chunks(indptr_, False)
        grad = memory.empty(out.shape, wide)
        flat = (len(out), width)
        args = (cuts, indptr_, _array(g, wide, flat), _array(out, wide, flat), grad.reshape(flat))
        kernel = _kernel("segment_softmax_grad", wide, indptr_.dtype)
        launch(kernel, args, len(cuts) - 1, 2 * out.size)
        return _result(grad, out.dtype, out.shape)

    def _segments(self, values: Array, indptr: Array) -> tuple[np.dtype, Array, int] | None:
        """Dtype to compute in, offsets and width of a call that the kernels serve."""
        wide, arrays = wide_of(values.dtype), _indices(indptr)
        if wide is None or arrays is None or not self._pays(values.size, _MIN_SEGMENT):
            return None
        if not values.size or indptr.size < 2 or indptr[0] != 0 or indptr[-1] != len(values):
            return None
        return wide, arrays[0], math.prod(values.shape[1:])

    # ---- sparse products -----------------------------------------------------------------------
    def spmm(self, pattern: Any, values: Array, x: Array) -> Array:
        nnz = pattern.nnz
        if not self._pays(nnz * math.prod(x.shape[1:]), _MIN_PRODUCT):
            return super().spmm(pattern, values, x)
        wide, (m, n) = wide_of(x.dtype), pattern.shape
        if (
            wide is None
            or kind(values.dtype) not in "fiub"
            or x.ndim < 2
            or len(x) != n
            or values.shape != (nnz, *x.shape[1:-1])
        ):
            return super().spmm(pattern, values, x)
        if (out := nearly_full.spmm(pattern, values, x)) is not None:
            return out
        heads, k = math.prod(x.shape[1:-1]), x.shape[-1]
        if not nnz or not heads * k:
            return np.zeros((m, *x.shape[1:]), dtype=x.dtype)
        step, given = 1, values
        if values.strides[0] == 0 and nnz > 1:  # one value for all entries, stored once
            values, step = values[:1], 0
        scalars = _array(values, wide, (len(values), heads))
        dense = _array(x, wide, (n, heads, k))
        least = _SHORT // wide.itemsize
        if 1 < k < least:  # kernels work in vectors, and such a copy is small
            dense = np.pad(dense, ((0, 0), (0, 0), (0, least - k)))
        width = dense.shape[2]
        work = nnz * heads * width
        if (few := _scatter_plan(pattern, heads * width * wide.itemsize)) is not None:
            parts = np.empty((len(few[0]) - 1, m, heads, width), dtype=wide)
            kernel = _kernel("spmm_scattered", wide, few[1].dtype)
            launch(kernel, (*few, scalars, step, dense, parts), len(parts), work)
            return _result(parts.sum(axis=0)[..., :k], x.dtype, (m, *x.shape[1:]))
        if (plan := _row_plan(pattern)) is None:
            return super().spmm(pattern, given, x)
        indptr, indices, positions, cuts, carried = plan
        rows = m + len(cuts) * bool(carried.size)
        out = memory.empty((rows, *x.shape[1:-1], width), wide)
        target = out.reshape(rows, heads, width)
        args = (cuts, indptr, indices, positions, scalars, step, dense, target)
        kernel = _kernel(_spmm_kernel(heads, width * wide.itemsize), wide, indptr.dtype)
        launch(kernel, args, len(cuts) - 1, work + out.size)
        out = _add_carries(out, m, cuts, carried)
        out = out if width == k else out[..., :k]
        return _result(out, x.dtype, (m, *x.shape[1:]))

    def sddmm(self, pattern: Any, x: Array, y: Array) -> Array:
        nnz = pattern.nnz
        if not self._pays(nnz * math.prod(x.shape[1:]), _MIN_PRODUCT):
            return super().sddmm(pattern, x, y)
        wide, (m, n) = wide_of(x.dtype), pattern.shape
        if (
            wide is None
            or x.dtype != y.dtype
            or x.ndim < 2
            or x.shape != (m, *y.shape[1:])
            or len(y) != n
            or (plan := _row_plan(pattern)) is None
        ):
            return super().sddmm(pattern, x, y)
        heads, k = math.prod(x.shape[1:-1]), x.shape[-1]
        if not nnz or not heads * k:
            return np.zeros((nnz, *x.shape[1:-1]), dtype=x.dtype)
        indptr, indices, positions, cuts, _ = plan
        out = memory.empty((nnz, *x.shape[1:-1]), wide)
        dense = _array(x, wide, (m, heads, k)), _array(y, wide, (n, heads, k))
        args = (cuts, indptr, indices, positions, *dense, out.reshape(nnz, heads))
        launch(_kernel("sddmm", wide, indptr.dtype), args, len(cuts) - 1, nnz * heads * k)
        return _result(out, x.dtype, (nnz, *x.shape[1:-1]))


# ---- kernels -----------------------------------------------------------------------------------
@cache
def _kernels() -> dict[str, Kernel]:
    from sparsegrad.backends import (
        cpu_jit_kernels,
        cpu_jit_kernels_activations,
        cpu_jit_kernels_dense,
        cpu_jit_kernels_index,
        cpu_jit_kernels_narrow,
        cpu_jit_kernels_product,
        cpu_jit_kernels_random,
        cpu_jit_kernels_sddmm,
        cpu_jit_kernels_segment,
        cpu_jit_kernels_spmm,
        cpu_jit_kernels_steps,
    )

    modules = (
        cpu_jit_kernels,
        cpu_jit_kernels_activations,
        cpu_jit_kernels_dense,
        cpu_jit_kernels_index,
        cpu_jit_kernels_narrow,
        cpu_jit_kernels_product,
        cpu_jit_kernels_random,
        cpu_jit_kernels_sddmm,
        cpu_jit_kernels_segment,
        cpu_jit_kernels_spmm,
        cpu_jit_kernels_steps,
    )
    found = [(name, item) for module in modules for name, item in vars(module).items()]
    return {name: item for name, item in found if isinstance(item, Kernel)}


def _kernel(name: str, *dtypes: np.dtype) -> Any:
    return _kernels()[name][dtypes]


def warmup() -> int:
    """Compile every kernel for every dtype, into Numba's cache where it can be written.

    Returns the number of kernels. The first call takes a minute or two, later ones a second.
    """
    types = {"F": (_F4, _F8), "I": (_I4, _I8), "K": (_I4, _I8)}
    types["W"] = np.dtype(np.uint16), np.dtype(np.int16)  # float16, bfloat16
    count = 0
    for kernel in _kernels().values():
        for dtypes in product(*(types[letter] for letter in kernel.letters)):
            kernel[dtypes]
            count += 1
    return count


# ---- arguments as kernels take them ------------------------------------------------------------
def _indices(*arrays: Array) -> tuple[Array, ...] | None:
    """The arrays contiguous and of one index dtype; None if a kernel cannot take them."""
    dtype = arrays[0].dtype
    if dtype not in _NONE:
        return None
    for a in arrays:
        if a.dtype != dtype or a.ndim != 1:
            return None
    return tuple(contiguous(a, dtype) for a in arrays)


def _array(array: Array, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
    return contiguous(array, dtype).reshape(shape)


def _result(out: Array, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
    """`out` itself where it can be: the engine may add to an array that is no view of another."""
    out = out.astype(dtype, copy=False)
    return out if out.shape == shape else out.reshape(shape)


def _inside(index: Array, bound: int) -> bool:
    if not index.size:
        return True
    low, high = _kernel("extremes", index.dtype)(index)
    return low >= 0 and high < bound


def _tasks(n: int) -> int:
    """Tasks for a loop over n entries."""
    return min(max(n // _GRAIN, 1), _MAX_CHUNKS)


def _row_chunks(indptr: Array, split: bool) -> tuple[Array, Array]:
    """Chunks of equal numbers of entries and rows, and those that begin inside a long row."""
    chunks = _tasks(int(indptr[-1]) + indptr.size - 1)
    cuts = np.empty((chunks + 1, 2), dtype=np.int64)
    _kernel("cut_rows", indptr.dtype)(indptr, chunks, split, cuts)
    carried = np.flatnonzero(cuts[:-1, 1] < np.minimum(indptr[cuts[:-1, 0]], cuts[1:, 1]))
    return cuts, carried


def _add_carries(out: Array, rows: int, cuts: Array, carried: Array) -> Array:
    """The rows of `out`, plus what chunks found of rows that began in an earlier one, in order."""
    for t in carried:
        out[cuts[t, 0] - 1] += out[rows + t]
    return out[:rows] if carried.size else out


def _spmm_kernel(heads: int, row_bytes: int) -> str:
    """The kernel for so many heads, each with so many bytes of an output row."""
    if row_bytes <= 8:
        return "spmv"
    if row_bytes > 2 * _LINE:
        return "spmm"
    return "spmm_narrow" if heads == 1 else "spmm_heads"


def _row_plan(pattern: Any) -> tuple[Array, Array, Array, Array, Array] | None:
    """Entries by row, positions (empty for none) and chunks; made once for a pattern."""
    return pattern.cached("row_chunks", lambda: _build_row_plan(pattern))


def _build_row_plan(pattern: Any) -> tuple[Array, Array, Array, Array, Array] | None:
    indptr, indices, positions = pattern.rows()
    arrays = _indices(indptr, indices)
    if arrays is None:
        return None
    dtype = arrays[0].dtype
    positions = _NONE[dtype] if positions is None else contiguous(positions, dtype)
    return (*arrays, positions, *_row_chunks(arrays[0], True))


def _scatter_plan(pattern: Any, row_bytes: int) -> tuple[Array, Array, Array] | None:
    """Chunks of columns, offsets and rows of a product whose entries are listed by column and
    whose output is small: each chunk then adds to an output of its own, and nothing is gathered.
    None for any other. Made once for a pattern."""
    if pattern.format != "csc" or pattern.shape[0] * row_bytes > _CACHED:
        return None
    return pattern.cached("scatter_chunks", lambda: _build_scatter_plan(pattern))


def _build_scatter_plan(pattern: Any) -> tuple[Array, Array, Array] | None:
    indptr, indices, positions = pattern.T.rows()
    arrays = _indices(indptr, indices)
    chunks = min(_OUTPUTS, pattern.nnz // (4 * pattern.shape[0]))
    if arrays is None or positions is not None or chunks < 2:
        return None
    cuts = np.empty((chunks + 1, 2), dtype=np.int64)
    _kernel("cut_rows", arrays[0].dtype)(arrays[0], chunks, False, cuts)
    return cuts, *arrays


# ---- counting sort -----------------------------------------------------------------------------
def _blocks(n: int, digits: int) -> int:
    """Shares of a sorting pass; a stable sort is unique, so their number may follow the threads."""
    return max(1, min(get_num_threads(), n // max(1, _GRAIN, digits)))


def _sort_pass(
    key: Array,
    perm: Array,
    shift: int,
    counts: Array,
    out_key: Array,
    dtype: np.dtype,
    offsets: Array | None = None,
) -> Array:
    """One stable pass by the digit of `key` at `shift`: the new permutation, and `out_key`."""
    blocks, digits = counts.shape
    # A whole number of digits need not be a power of two where the digit is the key itself.
    mask = (1 << max(1, (digits - 1).bit_length())) - 1
    launch(_kernel("count_digits", key.dtype), (key, shift, mask, counts), blocks, key.size)
    _kernel("sum_counts")(counts)
    if offsets is not None:
        offsets[:-1], offsets[-1] = counts[0], key.size
    out_perm = np.empty(key.size, dtype=dtype)
    kernel = _kernel("move_digits", key.dtype, dtype)
    launch(kernel, (key, perm, shift, mask, counts, out_key, out_perm), blocks, 4 * key.size)
    return out_perm
