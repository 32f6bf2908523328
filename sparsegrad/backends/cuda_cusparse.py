"""cuSPARSE through CuPy: sparse @ dense in row-major order, and sparse @ sparse."""

from __future__ import annotations

import contextlib
import threading
from functools import cache
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from sparsegrad.backends.cuda_spmm import Rows

__all__ = ["DTYPES", "library", "spgemm", "spmm", "version"]

Array = Any

DTYPES = {np.dtype(np.float32): runtime.CUDA_R_32F, np.dtype(np.float64): runtime.CUDA_R_64F}


@cache
def library() -> Any:
    """CuPy's binding of cuSPARSE; importing it loads the library."""
    from cupy_backends.cuda.libs import cusparse

    return cusparse


def version() -> str:
    """Of the library."""
    number = library().getVersion(cupy.cuda.device.get_cusparse_handle())
    return f"{number // 1000}.{number % 1000 // 100}.{number % 100}"


def spmm(pattern: Any, rows: Rows, values: Array, x: Array) -> Array:
    """CSR (m, n) @ x (n, k) -> (m, k): values (nnz,) in the order of `rows`, not empty.

    CuPy itself offers column-major operands only, cuSPARSE's slow path.
    """
    kept = pattern.cached("cusparse", dict)
    key = x.shape[1], x.dtype.char
    product = kept.get(key)
    if product is None:  # two threads may both make one; the last is kept, both are right
        product = kept[key] = _Product(rows, values, x)
    return product(values, x)


class _Product:
    """Descriptors of one matrix and of dense ones of one width, made once, and the size of the
    workspace. A call only tells them where the numbers are."""

    def __init__(self, rows: Rows, values: Array, x: Array) -> None:
        lib, ctype = library(), DTYPES[x.dtype]
        (n, k), self._m = x.shape, rows.indptr.size - 1
        wide = rows.cols.dtype.itemsize == 8
        index = lib.CUSPARSE_INDEX_64I if wide else lib.CUSPARSE_INDEX_32I
        self._rows = rows  # whose memory the descriptor names
        self._scale = tuple(np.array(v, x.dtype) for v in (1, 0))
        self._lock = threading.Lock()  # from the first pointer to the launch, which reads them
        self._a = lib.createCsr(
            self._m, n, rows.cols.size, rows.indptr.data.ptr, rows.cols.data.ptr,
            values.data.ptr, index, index, lib.CUSPARSE_INDEX_BASE_ZERO, ctype,
        )  # fmt: skip
        order = lib.CUSPARSE_ORDER_ROW
        self._x = lib.createDnMat(n, k, k, x.data.ptr, ctype, order)
        out = cupy.empty((self._m, k), x.dtype)
        self._out = lib.createDnMat(self._m, k, k, out.data.ptr, ctype, order)
        plain, (one, zero) = lib.CUSPARSE_OPERATION_NON_TRANSPOSE, self._scale
        self._call = (
            plain, plain, one.ctypes.data, self._a, self._x, zero.ctypes.data, self._out, ctype,
            lib.CUSPARSE_SPMM_CSR_ALG2,
        )  # fmt: skip
        self._bytes = max(1, lib.spMM_bufferSize(self._handle(lib), *self._call))

    def __call__(self, values: Array, x: Array) -> Array:
        lib, out = library(), cupy.empty((self._m, x.shape[1]), x.dtype)
        workspace = cupy.empty(self._bytes, np.int8)  # one that is kept would be shared by streams
        with self._lock:
            lib.spMatSetValues(self._a, values.data.ptr)
            lib.dnMatSetValues(self._x, x.data.ptr)
            lib.dnMatSetValues(self._out, out.data.ptr)
            lib.spMM(self._handle(lib), *self._call, workspace.data.ptr)
        return out

    @staticmethod
    def _handle(lib: Any) -> Any:
        """The handle of this thread, on the current stream."""
        handle = cupy.cuda.device.get_cusparse_handle()
        lib.setPointerMode(handle, lib.CUSPARSE_POINTER_MODE_HOST)
        lib.setStream(handle, cupy.cuda.get_current_stream().ptr)
        return handle

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # not fully made, or the interpreter is ending
            library().destroySpMat(self._a)
            library().destroyDnMat(self._x)
            library().destroyDnMat(self._out)


def spgemm(left: Any, a: Array, right: Any, b: Array) -> Any:
    """The product of two coalesced matrices as CuPy's csr_matrix, columns in any order."""
    from cupyx import cusparse
    from cupyx.scipy.sparse import csr_matrix

    factors = []
    for pattern, values in ((left, a), (right, b)):
        indptr, cols, positions = pattern.sorted_rows()
        data = values if positions is None else values[positions]
        factor = csr_matrix._from_parts(cupy.ascontiguousarray(data), cols, indptr, pattern.shape)
        factor.has_canonical_format = True  # known: asking would sort
        factors.append(factor)
    return cusparse.spgemm(*factors)  # sync: the size of the product
