"""Matrix Market files: every field and symmetry, plain or compressed, by SciPy's parser."""

from __future__ import annotations

import io
import os
import zlib
from typing import Any

import numpy as np

from sparsegrad import dtypes
from sparsegrad.errors import DtypeError, ShapeError
from sparsegrad.io.files import FileError, opened, replaced
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.structure import cost
from sparsegrad.tensor import Tensor, as_tensor

__all__ = ["mmread", "mmwrite"]


def mmread(
    source: Any, format: str | None = None, dtype: Any = None, requires_grad: bool = False
) -> Any:
    """Read a Matrix Market file: a SparseTensor of a "coordinate" file, a Tensor of an "array" one.

    source: path (.gz and .bz2 are decompressed) or open file, text or binary.
    format: "coo", "csr", "csc" or "auto"; by default `sg.config.format`.
    dtype: of the values; by default float64, int64, uint64 or complex128 as the file says, and
        float64 ones for a pattern.

    Symmetric, skew-symmetric and Hermitian files are expanded; duplicates are kept, and mean a sum.
    Raises FileError for a malformed file, and OSError for one that cannot be opened.

    >>> import io, sparsegrad as sg
    >>> text = "%%MatrixMarket matrix coordinate real symmetric\\n2 2 2\\n1 1 4.0\\n2 1 5.0\\n"
    >>> sg.mmread(io.StringIO(text)).to_dense()
    tensor([[4., 5.],
            [5., 0.]], dtype=float64)
    """
    from scipy.io import mmread as scipy_mmread

    name = getattr(source, "name", source)
    try:
        held = scipy_mmread(_readable(source), spmatrix=False)
    except (ValueError, OverflowError, MemoryError, EOFError, zlib.error) as error:
        raise FileError(f"mmread: {name}: {str(error) or type(error).__name__}") from error
    except OSError as error:
        if error.errno is not None:  # not found, not allowed; a bad .gz has no number
            raise
        raise FileError(f"mmread: {name}: {error}") from error
    if isinstance(held, np.ndarray):
        return Tensor(held, dtype, requires_grad=requires_grad)
    format = cost.resolve(format, held.shape, held.nnz)
    coords = list(held.coords)
    A = SparseTensor(coords, held.data, held.shape, copy=False).to(format)
    if dtype is not None:
        A = A.astype(dtype)  # of the sums, where duplicates are rounded
    return A.requires_grad_() if requires_grad else A


def _readable(source: Any) -> Any:
    """What SciPy's parser may be given: the path of a plain file, or all bytes, with a line end at
    their end. It ends the process where a stream cannot seek back from a malformed header, and
    where a last line has none."""
    if not hasattr(source, "read"):
        path = os.fspath(source)
        if not path.lower().endswith((".gz", ".bz2")) and _ends_a_line(path):
            return path
    with opened(source) as file:
        content = file.read()
    return io.BytesIO((content.encode("utf-8") if isinstance(content, str) else content) + b"\n")


def _ends_a_line(path: str) -> bool:
    with open(path, "rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def mmwrite(
    target: Any,
    A: Any,
    comment: str = "",
    field: str | None = None,
    precision: int | None = None,
    symmetry: str = "general",
) -> None:
    """Write a SparseTensor (m, n) as a "coordinate" file, or a Tensor (m, n) as an "array" one.

    target: path (compressed if it ends in .gz or .bz2; replaced only when all is written) or
        file.
    field: "real", "complex", "integer" or "pattern" (entries only); by default by the dtype.
    precision: digits of a value; by default as many as it takes to read back the same number.
    symmetry: "general", or "symmetric", "skew-symmetric", "hermitian": only the lower triangle is
        written, and the matrix is taken to be so; "auto" finds out, slowly.

    Raises ShapeError unless `A` is a matrix without dense dimensions.

    >>> import io
    >>> import sparsegrad as sg
    >>> file = io.BytesIO()
    >>> sg.mmwrite(file, sg.sparse_eye(2))
    >>> print(file.getvalue().decode().strip())
    %%MatrixMarket matrix coordinate real general
    %
    2 2 2
    1 1 1
    2 2 1
    """
    from scipy.io import mmwrite as scipy_mmwrite

    if A.ndim != 2 or getattr(A, "dense_dim", 0):
        raise ShapeError(f"mmwrite: needs a matrix without dense dimensions, got shape {A.shape}")
    if (wide := dtypes.accumulator(A.dtype)) != A.dtype:
        A = A.to(wide)
    elif A.dtype == np.bool_:
        A = A.to("int8")  # one entry for duplicates, which would count
    if isinstance(A, SparseTensor):
        held = (A.detach() if symmetry == "general" else A.detach().coalesce()).to_scipy()
    else:
        held = as_tensor(A).detach().numpy()
    chosen = None if symmetry == "auto" else symmetry
    text = io.BytesIO()  # SciPy's writer seeks, which a compressed file cannot
    try:
        scipy_mmwrite(text, held, comment, field, precision, chosen)
    except ValueError as error:
        raise DtypeError(f"mmwrite: {error}") from error
    with replaced(target) as file:
        file.write(text.getbuffer())
