"""cuSPARSE on SciPy.

The generic interface (descriptors, SpMV, SpMM, SpGEMM) is stood in for call by call, so code that
uses CuPy's binding directly runs as it is. The older routines, which CuPy's own sparse matrices use
for conversions and sorting, are replaced a level higher, in `cupyx.cusparse`.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp

from . import mark_written, replace_library, view

_VALUES = {
    "CUSPARSE_OPERATION_NON_TRANSPOSE": 0,
    "CUSPARSE_OPERATION_TRANSPOSE": 1,
    "CUSPARSE_OPERATION_CONJUGATE_TRANSPOSE": 2,
    "CUSPARSE_INDEX_BASE_ZERO": 0,
    "CUSPARSE_INDEX_16U": 1,
    "CUSPARSE_INDEX_32I": 2,
    "CUSPARSE_INDEX_64I": 3,
    "CUSPARSE_ORDER_COL": 1,
    "CUSPARSE_ORDER_ROW": 2,
    "CUSPARSE_SPMM_ALG_DEFAULT": 0,
    "CUSPARSE_SPMM_CSR_ALG1": 4,
    "CUSPARSE_SPMM_CSR_ALG2": 6,
    "CUSPARSE_SPMM_CSR_ALG3": 12,
}
_INDEX = {2: np.int32, 3: np.int64}
_DTYPES = {0: np.float32, 1: np.float64, 2: np.float16, 4: np.complex64, 5: np.complex128}


@dataclass
class _Matrix:
    """A descriptor: where the arrays of a sparse or dense matrix or vector are."""

    format: str  # csr, csc, coo, dense or vector
    shape: tuple[int, ...]
    dtype: Any
    values: int
    nnz: int = 0
    index: int = 0
    pointer: int = 0  # of coo: the row indices
    index_dtype: Any = None
    pointer_dtype: Any = None
    ld: int = 0
    row_major: bool = False

    def array(self) -> np.ndarray:
        """A dense matrix or vector, in device memory."""
        if self.format == "vector":
            return view(self.values, self.shape, self.dtype)
        rows, columns = self.shape
        if self.row_major:
            return view(self.values, (rows, self.ld), self.dtype)[:, :columns]
        return view(self.values, (columns, self.ld), self.dtype)[:, :rows].T

    def scipy(self) -> Any:
        """A sparse matrix, with the entries in device memory; wide enough to compute with."""
        data = view(self.values, (self.nnz,), self.dtype)
        data = data.astype(np.float32) if self.dtype is np.float16 else data
        index = view(self.index, (self.nnz,), self.index_dtype)
        if self.format == "coo":
            rows = view(self.pointer, (self.nnz,), self.pointer_dtype)
            return sp.coo_array((data, (rows, index)), self.shape)
        major = self.shape[self.format == "csc"]
        pointer = view(self.pointer, (major + 1,), self.pointer_dtype)
        make = sp.csr_array if self.format == "csr" else sp.csc_array
        return make((data, index, pointer), self.shape)


def _apply(op: int, matrix: Any) -> Any:
    return matrix if op == 0 else matrix.T if op == 1 else matrix.conj().T


def install_binding() -> None:
    """Replace CuPy's cuSPARSE binding; before `import cupy`."""
    module = ModuleType("cupy_backends.cuda.libs.cusparse")
    backends = Path(import_module("cupy_backends.cuda.libs").__file__).parent
    known = b"".join(path.read_bytes() for path in backends.glob("cusparse.*"))
    table: dict[int, _Matrix] = {}
    products: dict[int, Any] = {}
    other_constants: dict[str, int] = {}

    def add(matrix: _Matrix) -> int:
        table[len(table) + 1] = matrix
        return len(table)

    def compressed(kind: str) -> Any:
        def create(
            rows: int, cols: int, nnz: int, pointer: int, index: int, values: int,
            pointer_type: int, index_type: int, base: int, dtype: int,
        ) -> int:  # fmt: skip
            types = {"index_dtype": _INDEX[index_type], "pointer_dtype": _INDEX[pointer_type]}
            shape = (rows, cols)
            return add(_Matrix(kind, shape, _DTYPES[dtype], values, nnz, index, pointer, **types))

        return create

    def create_coo(
        rows: int, cols: int, nnz: int, row: int, col: int, values: int, index_type: int,
        base: int, dtype: int,
    ) -> int:  # fmt: skip
        types = {"index_dtype": _INDEX[index_type], "pointer_dtype": _INDEX[index_type]}
        return add(_Matrix("coo", (rows, cols), _DTYPES[dtype], values, nnz, col, row, **types))

    def create_dense(rows: int, cols: int, ld: int, values: int, dtype: int, order: int) -> int:
        row_major = order == _VALUES["CUSPARSE_ORDER_ROW"]
        if ld < (cols if row_major else rows):
            raise ValueError(f"leading dimension {ld} of a {rows} by {cols} matrix")
        shape = (rows, cols)
        return add(_Matrix("dense", shape, _DTYPES[dtype], values, ld=ld, row_major=row_major))

    def multiply(
        handle: int, op_a: int, op_b: int, alpha: int, a: int, b: int, beta: int, c: int,
        compute: int, algorithm: int, buffer: int,
    ) -> None:  # fmt: skip
        left, right, out = table[a], table[b], table[c].array()
        wide = _DTYPES[compute]
        new, old = view(alpha, (1,), wide)[0], view(beta, (1,), wide)[0]
        dense = right.array()
        dense = dense.astype(np.float32) if dense.dtype == np.float16 else dense
        result = new * (_apply(op_a, left.scipy()) @ _apply(op_b, dense))
        out[...] = result + old * out if old else result
        mark_written(out)

    def multiply_vector(
        handle: int, op_a: int, alpha: int, a: int, x: int, beta: int, y: int, compute: int,
        algorithm: int, buffer: int,
    ) -> None:  # fmt: skip
        multiply(handle, op_a, 0, alpha, a, x, beta, y, compute, algorithm, buffer)

    def compute_product(
        handle: int, op_a: int, op_b: int, alpha: int, a: int, b: int, beta: int, c: int,
        compute: int, algorithm: int, product: int, size: int, buffer: int,
    ) -> int:  # fmt: skip
        if buffer or size:
            left, right = _apply(op_a, table[a].scipy()), _apply(op_b, table[b].scipy())
            result = (view(alpha, (1,), _DTYPES[compute])[0] * (left @ right)).tocsr()
            result.sort_indices()
            products[product] = result
            table[c].nnz = result.nnz
        return 16

    def set_pointers(matrix: int, pointer: int, index: int, values: int) -> None:
        m = table[matrix]
        m.pointer, m.index, m.values = pointer, index, values

    def set_values(matrix: int, values: int) -> None:
        table[matrix].values = values

    def get_size(matrix: int, *results: int) -> None:
        for pointer, value in zip(results, (*table[matrix].shape, table[matrix].nnz)):
            view(pointer, (1,), np.int64)[0] = value

    def copy_product(*args: int) -> None:
        m, result = table[args[7]], products[args[10]]
        for address, source, dtype in (
            (m.pointer, result.indptr, m.pointer_dtype),
            (m.index, result.indices, m.index_dtype),
            (m.values, result.data, m.dtype),
        ):
            out = view(address, source.shape, dtype)
            out[...] = source
            mark_written(out)

    def create_product() -> int:
        products[len(products) + 1] = None
        return len(products)

    module.createCsr, module.createCsc = compressed("csr"), compressed("csc")
    module.createCoo, module.createDnMat = create_coo, create_dense
    module.createDnVec = lambda n, values, dtype: add(
        _Matrix("vector", (n,), _DTYPES[dtype], values)
    )
    module.csrSetPointers, module.spMatGetSize = set_pointers, get_size
    module.spMatSetValues = module.dnMatSetValues = set_values
    module.spMM_bufferSize = module.spMV_bufferSize = lambda *args: 16
    module.spMM, module.spMV = multiply, multiply_vector
    module.spGEMM_createDescr, module.spGEMM_copy = create_product, copy_product
    module.spGEMM_workEstimation, module.spGEMM_compute = lambda *args: 16, compute_product
    module.create, module.getVersion = lambda: 0x99, lambda handle: 12700
    module.get_build_version, module.is_cuda_python_build = lambda: 12700, lambda: False
    module.CuSparseError = type("CuSparseError", (RuntimeError,), {})

    def attribute(name: str) -> Any:
        if name.encode() not in known:
            raise AttributeError(f"CuPy's cuSPARSE binding has no {name}")
        if name.startswith("CUSPARSE_"):
            return _VALUES.get(name) or other_constants.setdefault(
                name, 1000 + len(other_constants)
            )
        if name.startswith(("create", "set", "destroy", "spGEMM_destroy")):
            return lambda *args: 1

        def missing(*args: Any) -> Any:  # to look one up is no harm, CuPy does
            raise NotImplementedError(f"the simulator has no stand-in for cuSPARSE's {name}")

        return missing

    for name, value in _VALUES.items():
        setattr(module, name, value)
    module.__getattr__ = attribute
    replace_library("cusparse", module)


def install_conversions(cupy: Any) -> None:
    """Replace the functions of `cupyx.cusparse` behind CuPy's own sparse matrices."""
    import cupyx.scipy.sparse as csp
    from cupyx import cusparse

    classes = {"csr": csp.csr_matrix, "csc": csp.csc_matrix}

    def up(matrix: Any, like: Any = None) -> Any:
        """SciPy to CuPy, with the index dtype of `like`."""
        index = (
            np.int32 if like is None else (like.row if like.format == "coo" else like.indices).dtype
        )
        if matrix.format == "coo":
            where = tuple(cupy.asarray(i.astype(index)) for i in (matrix.row, matrix.col))
            return csp.coo_matrix((cupy.asarray(matrix.data), where), shape=matrix.shape)
        parts = (matrix.indices.astype(index), matrix.indptr.astype(index))
        return classes[matrix.format]._from_parts(
            cupy.asarray(matrix.data), *map(cupy.asarray, parts), matrix.shape
        )

    def down(x: Any) -> Any:
        if x.format == "coo":
            return sp.coo_matrix((x.data.get(), (x.row.get(), x.col.get())), shape=x.shape)
        make = sp.csr_matrix if x.format == "csr" else sp.csc_matrix
        return make((x.data.get(), x.indices.get(), x.indptr.get()), shape=x.shape)

    def sort_compressed(x: Any) -> None:
        matrix = down(x)
        matrix.sort_indices()
        x.data[...] = cupy.asarray(matrix.data)
        x.indices[...] = cupy.asarray(matrix.indices.astype(x.indices.dtype))

    def sort_coo(x: Any, sort_by: str = "r") -> None:
        row, col = x.row.get(), x.col.get()
        order = np.lexsort((col, row) if sort_by == "r" else (row, col))
        for name, array in (("row", row), ("col", col), ("data", x.data.get())):
            getattr(x, name)[...] = cupy.asarray(array[order])
        if sort_by == "c":
            x.has_canonical_format = False

    def pointer(index: Any, n: int) -> Any:
        counts = np.bincount(index.get(), minlength=n)
        return cupy.asarray(np.r_[0, np.cumsum(counts)].astype(index.dtype))

    def majors(x: Any) -> Any:
        rows = np.repeat(np.arange(len(x.indptr) - 1), np.diff(x.indptr.get()))
        return cupy.asarray(rows.astype(x.indices.dtype))

    def dense(x: Any, out: Any = None) -> Any:
        result = cupy.asarray(np.asfortranarray(down(x).toarray()), order="F")
        if out is None:
            return result
        out[...] = result
        return out

    def coo(x: Any, row: Any, col: Any, data: Any) -> Any:
        return csp.coo_matrix((data, (row, col)), shape=x.shape)

    def add(a: Any, b: Any, alpha: Any = 1, beta: Any = 1) -> Any:
        return up((alpha * down(a) + beta * down(b)).tocsr(), a)

    def to(kind: str) -> Any:
        return lambda x: up(down(x).asformat(kind), x)

    def from_dense(kind: str) -> Any:
        return lambda x: up(sp.csr_matrix(x.get()).asformat(kind))

    replaced = {
        "getVersion": lambda: 12700,
        "csrsort": sort_compressed,
        "cscsort": sort_compressed,
        "coosort": sort_coo,
        "coo2csr": lambda x: csp.csr_matrix._from_parts(
            x.data, x.col, pointer(x.row, x.shape[0]), x.shape
        ),
        "coo2csc": lambda x: csp.csc_matrix._from_parts(
            x.data, x.row, pointer(x.col, x.shape[1]), x.shape
        ),
        "csr2coo": lambda x, data, indices: coo(x, majors(x), indices, data),
        "csc2coo": lambda x, data, indices: coo(x, indices, majors(x), data),
        "csr2csc": to("csc"),
        "csr2cscEx2": to("csc"),
        "csc2csr": to("csr"),
        "csc2csrEx2": to("csr"),
        "csrgeam2": add,
        "spgeam": add,
        "sparseToDense": dense,
        "csr2dense": dense,
        "csc2dense": dense,
        "denseToSparse": lambda x, format="csr": from_dense(format)(x),
        "dense2csr": from_dense("csr"),
        "dense2csc": from_dense("csc"),
    }
    for name, function in replaced.items():
        assert hasattr(cusparse, name), name
        setattr(cusparse, name, function)
