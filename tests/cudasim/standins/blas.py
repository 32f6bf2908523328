"""cuBLAS on NumPy: the matrix products and transposes that CuPy's `@`, dot and einsum call."""

from types import ModuleType
from typing import Any

import numpy as np

from . import mark_written, replace_library, view

_DTYPES = {0: np.float32, 1: np.float64, 2: np.float16, 4: np.complex64, 5: np.complex128}
_CONSTANTS = (
    "GEMM_DEFAULT",
    "GEMM_DEFAULT_TENSOR_OP",
    "COMPUTE_32F",
    "COMPUTE_32F_PEDANTIC",
    "COMPUTE_32F_FAST_TF32",
    "COMPUTE_64F",
    "COMPUTE_64F_PEDANTIC",
    "DEFAULT_MATH",
    "TENSOR_OP_MATH",
    "POINTER_MODE_HOST",
    "POINTER_MODE_DEVICE",
)


def _columns(pointer: int, rows: int, columns: int, ld: int, dtype: Any) -> np.ndarray:
    """A column-major matrix with leading dimension `ld`."""
    return view(pointer, (columns, ld), dtype)[:, :rows].T


def _operand(pointer: int, op: int, rows: int, columns: int, ld: int, dtype: Any) -> np.ndarray:
    """op(matrix), of shape (rows, columns)."""
    if not op:
        return _columns(pointer, rows, columns, ld, dtype)
    matrix = _columns(pointer, columns, rows, ld, dtype).T
    return matrix.conj() if op == 2 else matrix


def _gemm(
    handle: Any, op_a: int, op_b: int, m: int, n: int, k: int, alpha: int, a: int, type_a: int,
    lda: int, b: int, type_b: int, ldb: int, beta: int, c: int, type_c: int, ldc: int,
    compute: int = 0, algorithm: int = 0,
) -> None:  # fmt: skip
    dtype = _DTYPES[type_c]
    wide = np.float32 if dtype is np.float16 else dtype
    left = _operand(a, op_a, m, k, lda, _DTYPES[type_a]).astype(wide)
    right = _operand(b, op_b, k, n, ldb, _DTYPES[type_b]).astype(wide)
    out = _columns(c, m, n, ldc, dtype)
    scale_new, scale_old = view(alpha, (1,), wide)[0], view(beta, (1,), wide)[0]
    result = scale_new * (left @ right)
    out[...] = result + scale_old * out if scale_old else result
    mark_written(view(c, (n, ldc), dtype))


def _gemm_strided(
    handle: Any, op_a: int, op_b: int, m: int, n: int, k: int, alpha: int, a: int, type_a: int,
    lda: int, stride_a: int, b: int, type_b: int, ldb: int, stride_b: int, beta: int, c: int,
    type_c: int, ldc: int, stride_c: int, batch: int, compute: int, algorithm: int = 0,
) -> None:  # fmt: skip
    step = [
        stride * np.dtype(_DTYPES[t]).itemsize
        for stride, t in ((stride_a, type_a), (stride_b, type_b), (stride_c, type_c))
    ]
    for i in range(batch):
        _gemm(
            handle, op_a, op_b, m, n, k, alpha, a + i * step[0], type_a, lda, b + i * step[1],
            type_b, ldb, beta, c + i * step[2], type_c, ldc,
        )  # fmt: skip


def _gemm_batched(cuda_type: int) -> Any:
    def gemm(
        handle: Any, op_a: int, op_b: int, m: int, n: int, k: int, alpha: int, a: int, lda: int,
        b: int, ldb: int, beta: int, c: int, ldc: int, batch: int,
    ) -> None:  # fmt: skip
        for pa, pb, pc in zip(*(view(p, (batch,), np.intp) for p in (a, b, c))):
            _gemm(
                handle, op_a, op_b, m, n, k, alpha, int(pa), cuda_type, lda, int(pb), cuda_type,
                ldb, beta, int(pc), cuda_type, ldc,
            )  # fmt: skip

    return gemm


def _geam(dtype: Any) -> Any:
    def geam(
        handle: Any, op_a: int, op_b: int, m: int, n: int, alpha: int, a: int, lda: int,
        beta: int, b: int, ldb: int, c: int, ldc: int,
    ) -> None:  # fmt: skip
        total = np.zeros((m, n), dtype)
        for op, scale, pointer, ld in ((op_a, alpha, a, lda), (op_b, beta, b, ldb)):
            factor = view(scale, (1,), dtype)[0]
            if factor:
                total += factor * _operand(pointer, op, m, n, ld, dtype)
        _columns(c, m, n, ldc, dtype)[...] = total
        mark_written(view(c, (n, ldc), dtype))

    return geam


def install() -> None:
    """Replace CuPy's cuBLAS binding."""
    blas = ModuleType("cupy_backends.cuda.libs.cublas")
    for value, name in enumerate(("CUBLAS_OP_N", "CUBLAS_OP_T", "CUBLAS_OP_C")):
        setattr(blas, name, value)
    for value, name in enumerate(_CONSTANTS, 100):
        setattr(blas, "CUBLAS_" + name, value)
    blas.create = lambda: 0x77
    for name in ("destroy", "setStream", "setMathMode", "setPointerMode"):
        setattr(blas, name, lambda *args: None)
    blas.getMathMode = lambda handle: 0
    blas.getPointerMode = lambda handle: blas.CUBLAS_POINTER_MODE_HOST
    blas.gemmEx, blas.gemmStridedBatchedEx = _gemm, _gemm_strided
    blas.sgemmBatched, blas.dgemmBatched = _gemm_batched(0), _gemm_batched(1)
    for letter, dtype in zip("sdcz", (np.float32, np.float64, np.complex64, np.complex128)):
        setattr(blas, letter + "geam", _geam(dtype))

    def missing(name: str) -> Any:
        raise AttributeError(f"the simulator has no stand-in for cuBLAS's {name}")

    blas.__getattr__ = missing
    replace_library("cublas", blas)
