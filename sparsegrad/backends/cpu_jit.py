"""The CPU with Numba: threads and vector code where a problem is large enough to pay for them.

Loading Numba and a compiled kernel takes about a second once in a process, so this module does
neither until a call needs a kernel. Any dtype, layout or size that the kernels do not serve goes
to SciPy and NumPy.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from sparsegrad import memory
from sparsegrad.backends import nearly_full
from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu import Lines
from sparsegrad.backends.cpu_jit_axes import CpuJitAxes
from sparsegrad.backends.cpu_jit_calls import (
    F4,
    F8,
    LINE,
    NONE,
    add_carries,
    aligned,
    array_of,
    kernel_of,
    product_work,
    reads_often,
    result,
    row_chunks,
    same_index,
    warmup,
)
from sparsegrad.backends.cpu_jit_dense import CpuJitDense
from sparsegrad.backends.cpu_jit_index import CpuJitIndex
from sparsegrad.backends.cpu_jit_kept import KeptValues
from sparsegrad.backends.cpu_jit_launch import (
    contiguous,
    get_num_threads,
    launch,
    set_num_threads,
)
from sparsegrad.backends.cpu_jit_places import CpuJitPlaces
from sparsegrad.backends.cpu_jit_products import CpuJitProducts, wide_of
from sparsegrad.backends.cpu_jit_random import CpuJitRandom
from sparsegrad.backends.cpu_jit_segments import CpuJitSegments
from sparsegrad.backends.cpu_jit_steps import CpuJitSteps
from sparsegrad.backends.cpu_jit_tiles import spmm_tiles, tiles_of
from sparsegrad.backends.dense import ACTIVATIONS, Dense
from sparsegrad.dtypes import kind

__all__ = [
    "MIN_PRODUCT",
    "CpuJit",
    "by_row",
    "get_num_threads",
    "row_plan",
    "set_num_threads",
    "warmup",
]

# Elements of work below which SciPy and NumPy are about as fast, or fast enough that a program
# which does nothing larger should not wait for Numba to load; as in the other files of `CpuJit`.
MIN_PRODUCT = 1 << 15  # spmm, sddmm: multiplications

_NO_BIAS = {F4: np.empty(0, F4), F8: np.empty(0, F8)}
_SHORT = 16  # bytes of the shortest vector of a kernel
_CACHED = 1 << 18  # bytes of an output that stays in the cache next to a core
_OUTPUTS = 16  # of them at most, one for each chunk
_CLEARED = 1 << 24  # bytes of an output, mostly zeros, that one thread makes
_RUNS = 64  # entries that each chunk adds to a row of its output, for clearing it to pay
_MIN_KEPT = 1 << 15  # values that are kept in another order: fewer are fast to find


class CpuJit(
    CpuJitAxes,
    CpuJitIndex,
    CpuJitPlaces,
    CpuJitSegments,
    CpuJitProducts,
    CpuJitDense,
    CpuJitRandom,
    CpuJitSteps,
):
    """Numba kernels over chunks of equal numbers of entries, on top of `Cpu`."""

    name = "cpu_jit"

    def spmm(self, pattern: Any, values: Array, x: Array) -> Array:
        return self._spmm(pattern, values, x, None)[0]

    def spmm_bias_act(
        self, pattern: Any, values: Array, x: Array, bias: Array, activation: str
    ) -> Array:
        if x.dtype.char not in "fd" or activation == "tanh":  # NumPy's has vector code
            return super().spmm_bias_act(pattern, values, x, bias, activation)
        then = ACTIVATIONS.index(activation), contiguous(bias, x.dtype)
        out, done = self._spmm(pattern, values, x, then)
        return out if done else self.bias_act(out, bias, activation)

    def _spmm(
        self, pattern: Any, values: Array, x: Array, then: tuple[int, Array] | None
    ) -> tuple[Array, bool]:
        """`spmm`; and whether the rows went through the activation and with the bias `then`."""
        nnz = pattern.nnz
        if x.ndim == 2 and x.dtype == values.dtype and x.flags.carray and values.flags.carray:
            key = "product", x.shape[1], x.dtype.char, self.always
            ready = pattern.cached(key, lambda: self._ready(pattern, x.shape[1], x.dtype))
            if ready is not None and len(x) == pattern.shape[1] and values.shape == (nnz,):
                if isinstance(ready, Lines):
                    return ready.product(values, x), False
                return self._product_of_rows(
                    ready, values[:, None], 1, x[:, None], x.shape[1:], then
                )
        wide, (m, n) = wide_of(x.dtype), pattern.shape
        if (
            not self._pays(nnz * math.prod(x.shape[1:]), MIN_PRODUCT)
            or wide is None
            or kind(values.dtype) not in "fiub"
            or x.ndim < 2
            or len(x) != n
            or values.shape != (nnz, *x.shape[1:-1])
        ):
            return super().spmm(pattern, values, x), False
        if (out := nearly_full.spmm(self, pattern, values, x)) is not None:
            return out, False
        heads, k = math.prod(x.shape[1:-1]), x.shape[-1]
        if not nnz or not heads * k:
            return np.zeros((m, *x.shape[1:]), dtype=x.dtype), False
        one = values.strides[0] == 0 and nnz > 1  # one value for all entries, stored once
        scalars, step = values[:1] if one else values, 0 if one else 1
        scalars = array_of(scalars, wide, (len(scalars), heads))
        dense = _rows_of(x, wide, heads, nnz)
        out = spmm_tiles(self, pattern, scalars[:, 0], step, dense[:, 0]) if heads == 1 else None
        dims, done = (*x.shape[1:-1], dense.shape[2]), False
        if out is None:
            out = _scattered(pattern, scalars, step, dense, dims)
        if out is None:
            if (plan := row_plan(pattern)) is None:
                return super().spmm(pattern, values, x), False
            known = None if one else _known(pattern, plan)
            ready = _Ready.of(plan, heads, dense.shape[2], wide, known)
            then = then if heads == 1 else None
            out, done = self._product_of_rows(ready, scalars, step, dense, dims, then)
        return result(out if dims[-1] == k else out[..., :k], x.dtype, (m, *x.shape[1:])), done

    def _ready(self, pattern: Any, k: int, dtype: np.dtype) -> _Ready | Lines | None:
        """What is the same for all products with a dense matrix of k columns; None where more than
        one kernel, which reads values and matrix as they are, may serve."""
        nnz, row = pattern.nnz, k * dtype.itemsize
        if dtype not in (F4, F8) or k >= nearly_full.MIN_WIDTH:
            return None
        if not self._pays(nnz * k, MIN_PRODUCT):
            return Lines.of(pattern)
        if (
            not nnz * k
            or reads_often(nnz, pattern.shape[1], row)
            or tiles_of(pattern, row) is not None
            or _scatter_plan(pattern, row) is not None
            or (plan := row_plan(pattern)) is None
        ):
            return None
        return _Ready.of(plan, 1, k, dtype, _known(pattern, plan))

    def _product_of_rows(
        self,
        ready: _Ready,
        values: Array,
        step: int,
        x: Array,
        dims: tuple[int, ...],
        then: tuple[int, Array] | None,
    ) -> tuple[Array, bool]:
        if ready.known is not None:
            kept = ready.known.moved(values[:, 0], ready.given[3], self.gather)
            if kept is not None:
                values, ready = kept[:, None], ready.in_order
        out = _row_product(ready, values, step, x, dims, then)
        if then is not None and ready.carried.size:
            whole = np.unique(ready.cuts[ready.carried, 0] - 1)
            out[whole] = Dense.bias_act(self, out[whole], then[1], ACTIVATIONS[then[0]])
        return out, then is not None

    def sum_runs(self, values: Array, perm: Array, indptr: Array) -> Array:
        runs = self._segments(values, indptr, perm.size)
        arrays = None if runs is None else same_index(indptr, perm)
        if runs is None or arrays is None:
            return super().sum_runs(values, perm, indptr)
        wide, width, (offsets, perm), dims = runs.wide, runs.width, arrays, values.shape[1:]
        if width == 1:
            cuts, _ = row_chunks(offsets, False)
            out = memory.empty((offsets.size - 1, *dims), wide)
            flat = array_of(values, wide, (len(values), 1)), out.reshape(len(out), 1)
            kernel = kernel_of("sum_runs", wide, perm.dtype)
            launch(kernel, (cuts, offsets, perm, *flat), len(cuts) - 1, 4 * perm.size)
        else:  # a product with a matrix of ones, whose rows are the runs
            entries = (offsets, perm, NONE[perm.dtype], *row_chunks(offsets, True))
            dense = array_of(values, wide, (len(values), 1, width))
            ready = _Ready.of(entries, 1, width, wide)
            out = _row_product(ready, np.ones((1, 1), wide), 0, dense, dims)
        return result(out, values.dtype, (offsets.size - 1, *dims))

    def sddmm(self, pattern: Any, x: Array, y: Array) -> Array:
        pattern, x, y = by_row(pattern, x, y)
        nnz = pattern.nnz
        if not self._pays(nnz * math.prod(x.shape[1:]), MIN_PRODUCT):
            return super().sddmm(pattern, x, y)
        wide, (m, n) = wide_of(x.dtype), pattern.shape
        if (
            wide is None
            or x.dtype != y.dtype
            or x.ndim < 2
            or x.shape != (m, *y.shape[1:])
            or len(y) != n
            or (plan := row_plan(pattern)) is None
        ):
            return super().sddmm(pattern, x, y)
        heads, k = math.prod(x.shape[1:-1]), x.shape[-1]
        if not nnz or not heads * k:
            return np.zeros((nnz, *x.shape[1:-1]), dtype=x.dtype)
        indptr, indices, positions, cuts, _ = plan
        out = memory.empty((nnz, *x.shape[1:-1]), wide)
        dense = array_of(x, wide, (m, heads, k)), array_of(y, wide, (n, heads, k))
        args = (cuts, indptr, indices, positions, *dense, out.reshape(nnz, heads))
        work = product_work(nnz, heads * k)
        launch(kernel_of("sddmm", wide, indptr.dtype), args, len(cuts) - 1, work)
        return result(out, x.dtype, (nnz, *x.shape[1:-1]))


class _Ready(NamedTuple):
    """A kernel for products of a matrix, with the arguments that follow from its pattern."""

    kernel: Any
    given: tuple[Array, ...]  # cuts, indptr, indices, positions
    cuts: Array
    carried: Array
    rows: int  # of the result
    made: int  # rows that the kernel makes, parts of long ones included
    work: int
    known: KeptValues | None = None  # where values may be kept in the order of entries
    in_order: Any = None  # the same for such values

    @classmethod
    def of(
        cls,
        plan: tuple[Array, ...],
        heads: int,
        k: int,
        dtype: np.dtype,
        known: KeptValues | None = None,
    ) -> _Ready:
        """From a row plan, for a dense matrix with so many heads and columns."""
        indptr, indices, positions, cuts, carried = plan
        m = indptr.size - 1
        kernel = kernel_of(_spmm_kernel(heads, k, k * dtype.itemsize), dtype, indptr.dtype)
        made = m + len(cuts) * bool(carried.size)
        work = product_work(indices.size, heads * k) + made * heads * k
        ready = cls(kernel, (cuts, indptr, indices, positions), cuts, carried, m, made, work)
        if known is None or heads > 1:
            return ready
        in_order = ready._replace(given=(cuts, indptr, indices, positions[:0]))
        return ready._replace(known=known, in_order=in_order)


def _known(pattern: Any, plan: tuple[Array, ...]) -> KeptValues | None:
    """Where values of a pattern are kept in the order of a row plan; None if they are in it, or so
    few that they are found fast."""
    return pattern.cached("kept values", KeptValues) if plan[2].size >= _MIN_KEPT else None


def _row_product(
    ready: _Ready,
    values: Array,
    step: int,
    x: Array,
    dims: tuple[int, ...],
    then: tuple[int, Array] | None = None,
) -> Array:
    """A @ x for x (n, H, k), as (m, *dims). `then`: an activation and a bias for the rows that are
    in one chunk."""
    out = memory.empty((ready.made, *dims), x.dtype)
    act, bias = (0, _NO_BIAS[x.dtype]) if then is None else then
    args = (values, step, x, act, bias, out.reshape(ready.made, *x.shape[1:]))
    launch(ready.kernel, (*ready.given, *args), len(ready.cuts) - 1, ready.work)
    return add_carries(out, ready.rows, ready.cuts, ready.carried)


def _rows_of(x: Array, dtype: np.dtype, heads: int, reads: int) -> Array:
    """x (n, *H, k) as (n, H, k) in a dtype, for so many reads of a row. Kernels work in vectors:
    heads of fewer columns than one has get more of them, zeros."""
    k, least = x.shape[-1], _SHORT // dtype.itemsize
    dense = array_of(x, dtype, (len(x), heads, k))
    if 1 < k < least and heads > 1:
        dense = np.pad(dense, ((0, 0), (0, 0), (0, least - k)))
    return aligned(dense, reads)


def _spmm_kernel(heads: int, k: int, row_bytes: int) -> str:
    """The kernel for so many heads, each with so many columns and bytes of an output row."""
    if k == 1:
        return "spmv"
    if row_bytes < _SHORT:
        return "spmm_few"
    if row_bytes > 2 * LINE:
        return "spmm"
    return "spmm_narrow" if heads == 1 else "spmm_heads"


def by_row(pattern: Any, x: Array, y: Array) -> tuple[Any, Array, Array]:
    """Pattern and matrices of an `sddmm` with the same entries in the same order, which are listed
    by row: where they are by column, x and y trade places, and nothing is moved or grouped."""
    by_column = pattern.format == "csc" or (pattern.format == "coo" and pattern.transposed)
    return (pattern.T, y, x) if by_column else (pattern, x, y)


def row_plan(pattern: Any) -> tuple[Array, Array, Array, Array, Array] | None:
    """Entries by row, positions (empty for none) and chunks; made once for a pattern."""
    return pattern.cached("row_chunks", lambda: _build_row_plan(pattern))


def _build_row_plan(pattern: Any) -> tuple[Array, Array, Array, Array, Array] | None:
    indptr, indices, positions = pattern.rows()
    arrays = same_index(indptr, indices)
    if arrays is None:
        return None
    dtype = arrays[0].dtype
    positions = NONE[dtype] if positions is None else contiguous(positions, dtype)
    return (*arrays, positions, *row_chunks(arrays[0], True))


def _scatter_plan(pattern: Any, row_bytes: int) -> tuple[Array, Array, Array] | None:
    """Chunks of columns, offsets and rows of a product whose entries are listed by column, and
    which adds them to its output in that order: one for each chunk where an output is small, one
    for all where most of its rows stay empty. Nothing is gathered or grouped, which costs more
    than a product with rows that were just taken from a matrix. None for any other."""
    m, nbytes = pattern.shape[0], pattern.shape[0] * row_bytes
    if pattern.format != "csc":
        return None
    chunks = min(_OUTPUTS, pattern.nnz // (_RUNS * m)) if nbytes <= _CACHED else 0
    if chunks < 2:
        if 2 * pattern.nnz > m or nbytes > _CLEARED:
            return None
        chunks = 1
    return pattern.cached(("scatter_chunks", chunks), lambda: _build_scatter_plan(pattern, chunks))


def _build_scatter_plan(pattern: Any, chunks: int) -> tuple[Array, Array, Array] | None:
    indptr, indices, positions = pattern.T.rows()
    arrays = same_index(indptr, indices)
    if arrays is None or positions is not None:
        return None
    cuts = np.empty((chunks + 1, 2), dtype=np.int64)
    kernel_of("cut_rows", arrays[0].dtype)(arrays[0], chunks, False, cuts)
    return cuts, *arrays


def _scattered(
    pattern: Any, values: Array, step: int, x: Array, dims: tuple[int, ...]
) -> Array | None:
    """A @ x for x (n, H, k), as (m, *dims), its entries in the order of `_scatter_plan`; None where
    there is no such plan."""
    heads, k = x.shape[1:]
    plan = _scatter_plan(pattern, heads * k * x.itemsize)
    if plan is None:
        return None
    chunks, shape = len(plan[0]) - 1, (pattern.shape[0], *dims)
    out = memory.empty(shape if chunks == 1 else (chunks, *shape), x.dtype)
    parts = out.reshape(chunks, pattern.shape[0], heads, k)
    kernel = kernel_of("spmm_scattered", x.dtype, plan[1].dtype)
    work = product_work(pattern.nnz, heads * k)
    launch(kernel, (*plan, values, step, x, parts), chunks, work)
    return out if chunks == 1 else out.sum(axis=0)
