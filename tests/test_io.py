"""Archives, lists of edges and objects of other libraries, both ways."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
import zipfile

import numpy as np
import pytest
import scipy
import scipy.io
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import sparsegrad as sg
from files import FORMATS, matrix, same


# ---- npz ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("compressed", [True, False])
def test_npz_is_scipys(tmp_path, fmt, compressed):
    A = matrix(fmt)
    sg.save_npz(tmp_path / "ours", A, compressed)  # the suffix is added, as SciPy does
    theirs = sp.load_npz(tmp_path / "ours.npz")
    assert theirs.format == fmt
    assert isinstance(theirs, sp.sparray)
    np.testing.assert_array_equal(theirs.toarray(), A.to_dense().data)
    sp.save_npz(tmp_path / "theirs.npz", A.to_scipy(), compressed)
    assert same(sg.load_npz(tmp_path / "theirs.npz"), A)


def test_npz_of_scipys_other_formats(tmp_path):
    dense = np.kron(np.eye(3), np.ones((2, 2)))
    for fmt in ("bsr", "dia"):
        sp.save_npz(tmp_path / "x.npz", sp.csr_array(dense).asformat(fmt))
        A = sg.load_npz(tmp_path / "x.npz", requires_grad=True)
        assert (A.format, A.requires_grad) == ("csr", True)
        np.testing.assert_array_equal(A.detach().to_dense().data, dense)


@pytest.mark.skipif(
    np.lib.NumpyVersion(scipy.__version__) < "1.17.0", reason="SciPy's has two dimensions before"
)
def test_npz_of_more_dimensions_is_scipys(tmp_path):
    A = sg.coo([[0, 1], [1, 0], [2, 2]], [1.0, 2.0], (2, 2, 3))
    sg.save_npz(tmp_path / "A.npz", A)
    theirs = sp.load_npz(tmp_path / "A.npz")
    np.testing.assert_array_equal(theirs.toarray(), A.to_dense().data)
    sp.save_npz(tmp_path / "B.npz", theirs)
    assert same(sg.load_npz(tmp_path / "B.npz"), A)


def test_npz_file_objects_and_dense_dimensions():
    A = sg.csr([0, 1, 2], [1, 0], sg.randn(2, 3), (2, 2, 3))
    file = io.BytesIO()
    sg.save_npz(file, A)
    file.seek(0)
    assert same(sg.load_npz(file), A)


def damaged_npz(tmp_path):
    good = tmp_path / "good.npz"
    sg.save_npz(good, matrix("csr"))
    with np.load(good) as held:
        arrays = dict(held)
    yield "text", b"no archive"
    yield "cut", good.read_bytes()[:-40]
    yield "flipped", bytes(b ^ 255 if i == 90 else b for i, b in enumerate(good.read_bytes()))
    for name, change in {
        "missing": {"data": None},
        "format": {"format": None},
        "unknown": {"format": np.array(b"ell")},
        "bounds": {"indices": arrays["indices"] + 9},
        "offsets": {"indptr": arrays["indptr"][::-1]},
        "lengths": {"data": arrays["data"][:-1]},
        "shape": {"shape": np.array([-1, 4])},
        "floats": {"indices": arrays["indices"] + 0.5},
    }.items():
        file = io.BytesIO()
        np.savez(file, **{k: v for k, v in (arrays | change).items() if v is not None})
        yield name, file.getvalue()
    file = io.BytesIO()
    np.savez(file, **(arrays | {"data": np.array([print, 1, 2, 3, 4], object)}))
    yield "pickled", file.getvalue()


def test_npz_that_is_malformed(tmp_path):
    for name, content in damaged_npz(tmp_path):
        path = tmp_path / f"{name}.npz"
        path.write_bytes(content)
        with pytest.raises(sg.FileError, match=f"load_npz: .*{name}"):
            sg.load_npz(path)
    np.save(tmp_path / "plain.npy", np.ones(2))
    with pytest.raises(sg.FileError, match=r"is no \.npz archive"):
        sg.load_npz(tmp_path / "plain.npy")
    (tmp_path / "text.npz").write_text("row,col\n0,1\n")
    with pytest.raises(sg.FileError, match=r"text\.npz is no \.npz archive"):
        sg.load_npz(tmp_path / "text.npz")
    with pytest.raises(FileNotFoundError):
        sg.load_npz(tmp_path / "absent.npz")
    with pytest.raises(TypeError, match="expected a SparseTensor, got Tensor"):
        sg.save_npz(tmp_path / "x.npz", sg.ones(2))


def test_format_of_readers_follows_the_setting(tmp_path):
    sg.mmwrite(tmp_path / "A.mtx", matrix())
    for fmt in FORMATS:
        with sg.config(format=fmt):
            assert sg.mmread(tmp_path / "A.mtx").format == fmt
            assert sg.read_edges(io.StringIO("0 1")).format == fmt
    assert sg.mmread(tmp_path / "A.mtx").format == sg.policy.best_format((5, 4), 5)


# ---- edge lists --------------------------------------------------------------------------------
def test_edges_of_several_layouts(tmp_path):
    expected = [[0.0, 2.5, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    for text in ("0 1 2.5\n1 2 1\n", "0,1,2.5\n1,2,1\n", "# c\n\n0\t1\t2.5 # x\n1\t2\t1\n"):
        assert sg.read_edges(io.StringIO(text)).to_dense().tolist() == expected
        (tmp_path / "e.txt").write_text(text)
        (tmp_path / "e.txt.gz").write_bytes(gzip.compress(text.encode()))
        for name in ("e.txt", "e.txt.gz"):
            assert sg.read_edges(tmp_path / name).to_dense().tolist() == expected
    A = sg.read_edges(io.StringIO("u,v,w\n1,2,2.5\n2,3,1\n"), header=True, one_based=True)
    assert A.to_dense().tolist() == expected
    A = sg.read_edges(io.BytesIO(b"0 1 9\n"), num_nodes=(2, 3), weights=False, dtype="float64")
    assert (A.shape, A.values.tolist(), A.dtype) == ((2, 3), [1.0], sg.float64)


def test_edges_options():
    A = sg.read_edges(io.StringIO("0 1 3\n2 2 4\n"), undirected=True, requires_grad=True)
    assert A.requires_grad
    assert A.detach().to_dense().tolist() == [[0, 3, 0], [3, 0, 0], [0, 0, 4]]
    A = sg.read_edges(io.StringIO("9007199254740993 0\n"), format="coo")  # not a float64
    assert A.row.tolist() == [9007199254740993]
    for text in ("", "# nothing\n"):
        A = sg.read_edges(io.StringIO(text))
        assert (A.shape, A.nnz) == ((0, 0), 0)
    assert sg.read_edges(io.StringIO(""), num_nodes=3).shape == (3, 3)


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        ("0 x\n", {}, sg.FileError, r"read_edges: .*, line 1 \('0 x'\): could not convert"),
        ("# c\n0 1\n\n0\n", {}, sg.FileError, r", line 4 \('0'\)"),
        ("u v\n0 1\n1 2.5\n", {"header": True}, sg.FileError, r", line 3 \('1 2.5'\)"),
        ("0 1 2\n0 1 w\n", {}, sg.FileError, r", line 2 \('0 1 w'\)"),
        ("\n7\n", {}, sg.FileError, "line 2: an edge needs 2 columns"),
        ("0 1\n", {"weights": True}, sg.FileError, "needs 3 columns"),
        ("0 5\n", {"num_nodes": 5}, sg.PatternError, r"index 5 .* outside \[0, 5\)"),
        ("0 -1\n", {}, sg.PatternError, "-1"),
        ("0 1\n", {"one_based": True}, sg.PatternError, "-1"),
    ],
)
def test_edges_that_are_malformed(text, options, error, message):
    with pytest.raises(error, match=message):
        sg.read_edges(io.StringIO(text), **options)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_edges_round_trip(tmp_path, dtype):
    A = matrix("coo", dtype)
    if dtype.startswith("f"):
        A = A / 3
    sg.write_edges(tmp_path / "e.csv.gz", A, delimiter=",")
    B = sg.read_edges(tmp_path / "e.csv.gz", num_nodes=A.shape, format="coo", dtype=dtype)
    if dtype.startswith("f"):
        assert same(B, A)
    else:  # values are rounded after duplicates are summed
        assert same(B, A.coalesce())
    file = io.BytesIO()
    sg.write_edges(file, A, weights=False)
    assert file.getvalue() == b"3 1\n0 2\n3 1\n1 0\n0 0\n"
    with pytest.raises(sg.PatternError, match="needs a matrix"):
        sg.write_edges(file, sg.coo([[0]], [1.0], (3,)))


# ---- networkx ----------------------------------------------------------------------------------
def test_networkx_both_ways():
    nx = pytest.importorskip("networkx")
    graph = nx.Graph()
    graph.add_nodes_from("abcd")
    graph.add_weighted_edges_from([("a", "b", 2.0), ("b", "c", 3.0), ("c", "c", 4.0)])
    A = sg.from_networkx(graph, requires_grad=True)
    expected = [[0, 2, 0, 0], [2, 0, 3, 0], [0, 3, 4, 0], [0, 0, 0, 0]]
    assert A.detach().to_dense().tolist() == expected
    assert A.requires_grad
    assert sg.from_networkx(graph, nodes="ba", weight=None).to_dense().tolist() == [[0, 1], [1, 0]]
    back = sg.to_networkx(A, create_using=nx.Graph)
    assert sorted(back.edges(data="weight")) == [(0, 1, 2.0), (1, 2, 3.0), (2, 2, 4.0)]
    assert sg.to_networkx(matrix().to("csr")[:4]).is_directed()
    multi = nx.MultiDiGraph([(0, 1), (0, 1)])
    assert sg.from_networkx(multi).to_dense().tolist() == [[0, 2], [0, 0]]
    assert sg.from_networkx(nx.Graph()).shape == (0, 0)
    with pytest.raises(TypeError, match="from_networkx: expected a networkx graph, got int"):
        sg.from_networkx(3)
    with pytest.raises(sg.ShapeError, match=r"square matrix, got shape \(5, 4\)"):
        sg.to_networkx(matrix())


# ---- PyTorch -----------------------------------------------------------------------------------
@pytest.fixture
def torch():
    module = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse .* support is in beta")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
        yield module


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
def test_torch_both_ways(torch, fmt, dtype):
    for A in (matrix(fmt, dtype), matrix(fmt, dtype).coalesce()):
        x = sg.to_torch(A)
        assert str(x.layout) == f"torch.sparse_{fmt}"
        assert str(x.dtype) == f"torch.{dtype}"
        np.testing.assert_array_equal(
            x.to_dense().float().numpy(), A.to_dense().data.astype(np.float32)
        )
        kept = A if fmt == "coo" else A.coalesce()  # PyTorch takes no unsorted or repeated entries
        assert same(sg.from_torch(x), kept)


def test_torch_flags_hybrids_and_dense(torch):
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]], requires_grad=True)
    assert sg.from_torch(x).requires_grad
    A = sg.from_torch(x.detach().to_sparse().requires_grad_())
    assert (A.requires_grad, A.is_leaf, A.format) == (True, True, "coo")
    assert sg.to_torch(A).requires_grad
    assert not sg.from_torch(x, requires_grad=False).requires_grad
    hybrid = torch.randn(3, 4, 2).to_sparse(2)
    assert sg.from_torch(hybrid).dense_dim == 1
    np.testing.assert_array_equal(sg.from_torch(hybrid).to_dense().data, hybrid.to_dense().numpy())
    assert torch.equal(sg.to_torch(sg.from_torch(hybrid)).to_dense(), hybrid.to_dense())
    scalar = sg.to_torch(sg.tensor(2.0))
    assert (scalar.shape, scalar.item()) == (torch.Size([]), 2.0)
    ones = sg.to_torch(sg.coo([[0, 1]], None, (3,)))
    assert ones.to_dense().tolist() == [1.0, 1.0, 0.0]
    A.values.data[:] = 0  # copies: nothing is shared
    assert x[0, 1].item() == 2.0


def test_torch_refusals(torch):
    with pytest.raises(TypeError, match=r"expected a torch\.Tensor, got ndarray"):
        sg.from_torch(np.ones(2))
    with pytest.raises(TypeError, match="layout sparse_bsr is not supported"):
        sg.from_torch(torch.ones(2, 2).to_sparse_bsr((1, 1)))
    with pytest.raises(sg.ShapeError, match="batches"):
        sg.from_torch(torch.ones(2, 2, 2).to_sparse_csr())
    with pytest.raises(TypeError, match="got list"):
        sg.to_torch([1.0])


def test_torch_is_never_imported():
    script = (
        "import sys, sparsegrad as sg\n"
        "try: sg.to_torch(sg.ones(2))\n"
        "except ImportError as error: print(error)\n"
        "print('torch' in sys.modules, 'networkx' in sys.modules, 'safetensors' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:2] == [
        "to_torch: import torch first; sparsegrad does not import it",
        "False False False",
    ]


# ---- archives that are cut short or strange ----------------------------------------------------
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "s.npz"
    sg.save_npz(path, matrix())
    before = path.read_bytes()

    def fails(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fails)
    with pytest.raises(OSError, match="disk full"):
        sg.save_npz(path, matrix("csr"))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["s.npz"]


def mutated(content, rng):
    """A few bytes changed, taken out or put in."""
    out = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(out)))
        kind = rng.integers(4)
        if kind < 2:
            out[at] = rng.integers(256)
        elif kind == 2:
            del out[at : at + int(rng.integers(9))]
        else:
            out[at:at] = rng.bytes(4)
    return bytes(out)


def test_mutated_archives_load_or_are_refused(tmp_path):
    pytest.importorskip("safetensors")
    rng = np.random.default_rng(0)
    plain, packed, path = io.BytesIO(), io.BytesIO(), tmp_path / "s"
    sg.save_npz(plain, matrix("csr"), compressed=False)
    sg.save_npz(packed, matrix("coo"))
    sg.save([matrix("csr"), {"x": 1}], path)
    saved = path.read_bytes()
    for _ in range(200):
        for archive in (plain, packed):
            with contextlib.suppress(sg.FileError):
                sg.load_npz(io.BytesIO(mutated(archive.getvalue(), rng))).check_invariants()
        path.write_bytes(mutated(saved, rng))
        with contextlib.suppress(sg.FileError):
            sg.load(path)


def test_nothing_in_a_file_is_unpickled(tmp_path):
    pytest.importorskip("safetensors")

    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("format.npy", pickle.dumps(Trap()))
    (tmp_path / "t.safetensors").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(sg.FileError):
        sg.load_npz(tmp_path / "t.npz")
    with pytest.raises(sg.FileError):
        sg.load(tmp_path / "t.safetensors")
    assert not (tmp_path / "sprung").exists()


# ---- laws --------------------------------------------------------------------------------------
@st.composite
def tensors(draw):
    """Any sparse tensor: dimensions, duplicates, order, format, dtype, dense dimensions."""
    dims = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(1, 6), min_size=dims, max_size=dims))
    nnz = draw(st.integers(0, 12))
    where = [draw(st.lists(st.integers(0, n - 1), min_size=nnz, max_size=nnz)) for n in sizes]
    dense = draw(st.lists(st.integers(0, 3), max_size=2))
    dtype = draw(st.sampled_from(["float16", "float32", "float64", "int64", "complex128", "bool"]))
    values = (np.arange(nnz * int(np.prod(dense))) % 5).reshape(nnz, *dense).astype(dtype)
    A = sg.coo(where, values, (*sizes, *dense))
    if dims == 2:
        A = A.to(draw(st.sampled_from(FORMATS)))
        if not dense and draw(st.booleans()):
            A = A.T
    return A.coalesce() if draw(st.booleans()) else A


@given(tensors())
def test_law_whatever_is_written_is_read_back(A):
    pytest.importorskip("safetensors")
    assert same(pickle.loads(pickle.dumps(A)), A)
    file = io.BytesIO()
    sg.save_npz(file, A)
    file.seek(0)
    assert same(sg.load_npz(file), A)
    with tempfile.TemporaryDirectory() as folder:
        sg.save([A, A.T if A.ndim == 2 and not A.dense_dim else A], os.path.join(folder, "x"))
        first, second = sg.load(os.path.join(folder, "x"))
        assert same(first, A)
        assert second.nnz == A.nnz
        if A.sparse_dim == 2 and not A.dense_dim:
            path = os.path.join(folder, "x.mtx")
            sg.mmwrite(path, A)
            B = sg.mmread(path, format="coo", dtype=A.dtype)
            np.testing.assert_array_equal(B.to_dense().data, A.to_dense().data)
