"""`.npz` files, SciPy's layout both ways.

A file holds `format`, `shape`, `data` and `_is_array` with `indices` and `indptr` (csr, csc), `row`
and `col` (coo matrices) or `coords` (coo of any other number of dimensions): what
`scipy.sparse.save_npz` writes. Dense dimensions are an extension: `data` is then (nnz, *dense
dims), `shape` is that of the sparse dimensions, and `dense_shape` holds the others.
"""

from __future__ import annotations

import lzma
import zipfile
import zlib
from typing import Any

import numpy as np

from sparsegrad.errors import DtypeError, SparsegradError
from sparsegrad.io.files import FileError, opened, replaced
from sparsegrad.sparse_tensor import SparseTensor, compressed

__all__ = ["load_npz", "save_npz"]

# What reading a damaged archive raises: RuntimeError is "encrypted", NotImplementedError an
# unknown compression, OSError an offset outside the file, MemoryError an absurd size.
_MALFORMED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, KeyError,
    TypeError, RuntimeError, OverflowError, MemoryError, IndexError, SyntaxError,
)  # fmt: skip


def save_npz(file: Any, A: SparseTensor, compressed: bool = True) -> None:
    """Write a SparseTensor to a `.npz` file that `scipy.sparse.load_npz` reads.

    file: path (".npz" is added if it is missing) or binary file. A path is replaced only when all
        is written.
    compressed: deflate the arrays.

    Entries, their order, duplicates and explicit zeros stay what they are; gradients are not
    stored. SciPy reads no dense dimensions (see the module's description).

    >>> import sparsegrad as sg, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "A.npz")
    >>> sg.save_npz(path, sg.csr([0, 1, 2], [1, 0], [2.0, 3.0], (2, 2)))
    >>> sg.load_npz(path).to_dense()
    tensor([[0., 2.],
            [3., 0.]])
    """
    if not isinstance(A, SparseTensor):
        raise TypeError(f"save_npz: expected a SparseTensor, got {type(A).__name__}")
    if A.dtype.kind == "V":
        raise DtypeError("save_npz: .npz knows no bfloat16; use sg.save, or write A.float()")
    host = A.pattern.core.backend.to_host
    arrays: dict[str, Any] = {}
    if A.format != "coo":
        arrays |= {"indices": host(A.indices), "indptr": host(A.indptr)}
    elif A.sparse_dim == 2:
        arrays |= {"row": host(A.row), "col": host(A.col)}
    else:
        arrays["coords"] = np.stack([host(c) for c in A.pattern.coords])
    arrays |= {
        "format": np.array(A.format.encode("ascii")),
        "shape": np.array(A.pattern.shape, np.int64),
        "data": A.values.detach().numpy(),
        "_is_array": np.array(True),
    }
    if A.dense_dim:
        arrays["dense_shape"] = np.array(A.values.shape[1:], np.int64)
    if not hasattr(file, "write") and not str(file).endswith(".npz"):
        file = f"{file}.npz"
    with replaced(file, compress=False) as out:
        (np.savez_compressed if compressed else np.savez)(out, **arrays)


def load_npz(file: Any, requires_grad: bool = False) -> SparseTensor:
    """Read a SparseTensor that `save_npz` or `scipy.sparse.save_npz` wrote.

    SciPy's bsr and dia matrices become csr. Nothing in the file is executed (no pickles), and
    indices are checked.

    Raises FileError for anything that is not such a file.

    >>> import io
    >>> import sparsegrad as sg
    >>> file = io.BytesIO()
    >>> sg.save_npz(file, sg.sparse_eye(3))
    >>> _ = file.seek(0)
    >>> sg.load_npz(file).nnz
    3
    """
    with opened(file) as raw:  # np.load would leave a malformed file open
        try:
            try:
                held = np.load(raw, allow_pickle=False)
            except ValueError as error:  # to which any other file is a pickle
                raise FileError(f"load_npz: {file} is no .npz archive") from error
            if not isinstance(held, np.lib.npyio.NpzFile):
                raise FileError(f"load_npz: {file} is no .npz archive")
            with held:
                arrays = {name: held[name] for name in held.files}
            if others := [name for name, a in arrays.items() if not isinstance(a, np.ndarray)]:
                raise FileError(f"load_npz: {file}: {others[0]} is no array")
            return _read(file, arrays, requires_grad)
        except FileError:
            raise
        except _MALFORMED as error:
            kind = f"no entry {error}" if isinstance(error, KeyError) else str(error)
            raise FileError(f"load_npz: {file}: {kind or type(error).__name__}") from error


def _read(file: Any, arrays: dict[str, Any], requires_grad: bool) -> SparseTensor:
    if "format" not in arrays:
        raise FileError(f"load_npz: {file} holds no sparse array: it has {sorted(arrays)}")
    fmt = arrays["format"].item()
    fmt = fmt.decode("ascii") if isinstance(fmt, bytes) else fmt
    if fmt in ("bsr", "dia"):
        return _from_scipy(fmt, arrays, requires_grad)
    shape = tuple(int(n) for n in arrays["shape"])
    data = arrays["data"]
    full = shape + tuple(int(n) for n in arrays.get("dense_shape", ()))
    try:
        if fmt == "coo":
            both = ("row", "col")
            coords = arrays["coords"] if "coords" in arrays else [arrays[name] for name in both]
            return SparseTensor(list(coords), data, full, requires_grad, copy=False)
        if fmt in ("csr", "csc"):
            parts = arrays["indptr"], arrays["indices"], data
            return compressed(fmt, *parts, full, requires_grad, copy=False)
    except SparsegradError as error:
        raise FileError(f"load_npz: {file}: {error}") from error
    raise FileError(f"load_npz: {file}: unknown format {fmt!r}")


def _from_scipy(fmt: str, arrays: dict[str, Any], requires_grad: bool) -> SparseTensor:
    import scipy.sparse as sp

    shape = tuple(int(n) for n in arrays["shape"])
    if fmt == "dia":
        held = sp.dia_array((arrays["data"], arrays["offsets"]), shape=shape)
    else:
        parts = arrays["data"], arrays["indices"], arrays["indptr"]
        held = sp.bsr_array(parts, shape=shape)
        held.check_format()
    A = held.tocsr()
    return compressed("csr", A.indptr, A.indices, A.data, A.shape, requires_grad, copy=False)
