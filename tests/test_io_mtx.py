"""Matrix Market files: those of SciPy, malformed ones, and both ways."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import scipy
import scipy.io
import scipy.sparse as sp

import sparsegrad as sg
from files import matrix, same

FOLDER = os.environ.get("SPARSEGRAD_DATA")
MTX = Path(FOLDER or ".") / "mtx_tests"
HEADER = "%%MatrixMarket matrix coordinate"


@pytest.fixture(scope="module")
def parser_files(tmp_path_factory):
    if not (MTX / "mtx_parser_tests.tar.gz").exists():
        pytest.skip("SPARSEGRAD_DATA does not name a folder with mtx_tests/")
    folder = tmp_path_factory.mktemp("mtx")
    with tarfile.open(MTX / "mtx_parser_tests.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_mtx_parser_files_give_scipys_outcome(parser_files):
    # SciPy's outcome was recorded without the decompression it does by itself.
    better = {"fast_matrix_market/python_matrix_coordinate_real_general.mtx.bz2": "ok (3, 3) nnz=3"}
    lines = (MTX / "EXPECTED_scipy.tsv").read_text(encoding="utf-8").splitlines()
    wrong = []
    for line in lines:
        name, _, expected, *_ = line.split("\t")
        expected = better.get(name, "ERR" if expected.startswith("ERR") else expected)
        try:
            A = sg.mmread(parser_files / name)
            nnz = A.nnz if isinstance(A, sg.SparseTensor) else "dense"
            found = f"ok {tuple(A.shape)} nnz={nnz}"
        except sg.FileError:
            found = "ERR"
        if found != expected:
            wrong.append((name, expected, found))
    assert len(lines) == 208
    assert wrong == []


def test_mtx_values_are_scipys(parser_files):
    for path in sorted(parser_files.rglob("*.mtx*")):
        try:
            expected = scipy.io.mmread(str(path), spmatrix=False)
        except (ValueError, OverflowError, MemoryError):
            continue
        if np.prod([float(n) for n in expected.shape]) > 1e6:
            continue
        A = sg.mmread(path)
        dense = expected.toarray() if sp.issparse(expected) else expected
        found = A.to_dense().data if isinstance(A, sg.SparseTensor) else A.data
        np.testing.assert_array_equal(found, dense, err_msg=str(path))


@pytest.mark.parametrize("ending", ["\n", "", " ", " \r\n", "\n\n", " \x13"])
@pytest.mark.parametrize("kind", ["text", "bytes", "path", "gz", "bz2"])
def test_mtx_last_line_and_source_of_any_kind(tmp_path, ending, kind):
    """SciPy's parser ends the process for some of these; run apart, so that it would be seen."""
    body = f"{HEADER} pattern symmetric\n3 3 2\n2 1 \n3 1{ending}"
    path = tmp_path / ("A.mtx" + {"gz": ".gz", "bz2": ".bz2"}.get(kind, ""))
    pack = {"gz": gzip.compress, "bz2": bz2.compress}.get(kind, bytes)
    path.write_bytes(pack(body.encode()))
    source = {"text": io.StringIO(body), "bytes": io.BytesIO(body.encode())}.get(kind, path)
    A = sg.mmread(source, format="csr")
    assert (A.format, A.nnz, A.dtype) == ("csr", 4, sg.float64)


def test_mtx_malformed_headers_of_streams_do_not_end_the_process(tmp_path):
    path = tmp_path / "bad.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real spd\n" + "%\n" * 60 + "1 1 1\n1 1 4.0\n")
    packed = tmp_path / "bad.mtx.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    script = (
        "import sys, sparsegrad as sg\n"
        "for make in (str, lambda p: open(p, 'rb'), open):\n"
        "    for path in sys.argv[1:2 if make is open else 3]:\n"
        "        try: sg.mmread(make(path))\n"
        "        except (sg.FileError, UnicodeDecodeError): print('refused')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, path, packed], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["refused"] * 5


def test_mtx_of_mutated_files_never_crash():
    rng = np.random.default_rng(0)
    plain = f"{HEADER} real general\n% note\n5 4 3\n1 1 1.5\n5 4 -2e3\n2 2 7\n".encode()
    pieces = [b"-1 ", b"99999999999999999999 ", b"\n", b"nan", b"1e999", b"%%", b"0 ", b"\x00"]
    for _ in range(300):
        text = bytearray(plain)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(text) + 1))
            kind = rng.integers(3)
            if kind == 0:
                text[at:at] = pieces[rng.integers(len(pieces))]
            elif kind == 1:
                del text[at : at + int(rng.integers(12))]
            else:
                text[at : at + 1] = bytes([rng.integers(256)])
        try:
            A = sg.mmread(io.BytesIO(bytes(text)))
        except sg.SparsegradError:
            continue
        if isinstance(A, sg.SparseTensor):
            A.check_invariants()


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "bool"])
def test_mtx_round_trip(tmp_path, suffix, dtype):
    A = matrix("csr", dtype)
    path = tmp_path / f"A.mtx{suffix}"
    sg.mmwrite(path, A, comment="made here")
    B = sg.mmread(path, format="csr", dtype=dtype, requires_grad=dtype.startswith("f"))
    assert same(B.detach(), A.coalesce() if dtype == "bool" else A)
    assert os.listdir(tmp_path) == [path.name]
    assert scipy.io.mmread(str(path)).shape == A.shape


def test_mtx_fields_and_symmetries():
    file = io.BytesIO()
    z = sg.coo([[0, 0, 1], [0, 1, 0]], np.array([2, 1 + 1j, 1 - 1j]), (2, 2))
    sg.mmwrite(file, z, symmetry="hermitian")
    assert b"complex hermitian" in file.getvalue()
    assert b"2 2 2" in file.getvalue()
    file.seek(0)
    np.testing.assert_array_equal(sg.mmread(file).to_dense().data, z.to_dense().data)
    file = io.BytesIO()
    sg.mmwrite(file, matrix(), field="pattern")
    file.seek(0)
    np.testing.assert_array_equal(sg.mmread(file).values.data, np.ones(5))
    file = io.BytesIO()
    sg.mmwrite(file, sg.tensor([[1.0, 2.0], [3.0, 4.0]]))
    file.seek(0)
    assert sg.mmread(file).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    file = io.BytesIO()
    sg.mmwrite(file, sg.coo([[0, 1], [1, 0]], [5.0, 5.0], (2, 2)), symmetry="auto")
    assert b"symmetric" in file.getvalue()
    with pytest.raises(sg.ShapeError, match=r"mmwrite: .*\(2, 3\)"):
        sg.mmwrite(io.BytesIO(), sg.coo([[0]], sg.ones(1, 3), (2, 3)))


def test_mtx_precision_is_kept():
    values = np.random.default_rng(0).standard_normal(200) * 10.0 ** np.arange(-100, 100)
    A = sg.coo([np.arange(200), np.arange(200)], values, (200, 200))
    file = io.BytesIO()
    sg.mmwrite(file, A)
    file.seek(0)
    np.testing.assert_array_equal(sg.mmread(file, format="coo").values.data, values)


def test_text_files_can_be_written_too():
    for write, read in ((sg.mmwrite, sg.mmread), (sg.write_edges, sg.read_edges)):
        file = io.StringIO()
        write(file, matrix())
        file.seek(0)
        np.testing.assert_array_equal(
            read(file).to_dense().data[:4], matrix().to_dense().data[:4].astype(np.float32)
        )


def test_mtx_missing_file_is_an_os_error(tmp_path):
    for name in ("none.mtx", "none.mtx.gz"):
        with pytest.raises(FileNotFoundError):
            sg.mmread(tmp_path / name)
    (tmp_path / "bad.mtx.gz").write_bytes(b"no gzip")
    with pytest.raises(sg.FileError, match=r"bad\.mtx\.gz"):
        sg.mmread(tmp_path / "bad.mtx.gz")
