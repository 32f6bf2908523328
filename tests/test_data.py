"""Data sets and files: what is read, and what a malformed file is told."""

import functools
import hashlib
import http.server
import io
import os
import pickle
import threading

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg
from sparsegrad.data import fetch
from sparsegrad.data.planetoid_files import _unpickled

FOLDER = os.environ.get("SPARSEGRAD_DATA")


def needs(path):
    """The real file, or the reason why the test is skipped."""
    if not FOLDER or not os.path.exists(os.path.join(FOLDER, path)):
        pytest.skip(f"SPARSEGRAD_DATA does not name a folder with {path}")


@pytest.fixture(autouse=True)
def no_folder(monkeypatch, request):
    if "real" not in request.node.name:
        monkeypatch.delenv("SPARSEGRAD_DATA", raising=False)


# --- graphs ------------------------------------------------------------------------------------


def ring(layout, n=120, classes=2, **changes):
    """A ring of n nodes with sparse features, in one of the layouts."""
    u, v, y = np.arange(n), (np.arange(n) + 1) % n, np.arange(n) % classes
    X = sp.random_array((n, 5), density=0.3, format="csr", rng=np.random.default_rng(0))
    masks = np.arange(n)[None] % 3 == np.array([[0], [1]])
    if layout == "compact":
        held = {"n": np.array(n), "edge_u": u.astype("u2"), "edge_v": v.astype("u2"), "y": y}
        held |= {"x_indptr": X.indptr, "x_indices": X.indices, "x_data": X.data}
        held["x_shape"] = np.array(X.shape)
    elif layout == "dense":
        held = {"edge_u": u, "edge_v": v, "y": y, "x": X.toarray()}
        packed = [np.packbits(np.roll(masks, i, axis=1), axis=1) for i in range(3)]
        held |= {f"{k}_masks_packed": m for k, m in zip(("train", "val", "test"), packed)}
    elif layout == "yandex":
        held = {"edges": np.stack((u, v), 1), "node_features": X.toarray(), "node_labels": y}
        rolled = [np.roll(masks, i, axis=1) for i in range(3)]
        held |= {f"{k}_masks": m for k, m in zip(("train", "val", "test"), rolled)}
    else:
        A = sp.coo_array((np.ones(n), (u, v)), (n, n)).tocsr()
        held = {"adj_indptr": A.indptr, "adj_indices": A.indices, "labels": y}
        held |= {"attr_indptr": X.indptr, "attr_indices": X.indices, "attr_data": X.data}
        held["attr_shape"] = np.array(X.shape)
    return {k: v for k, v in (held | changes).items() if v is not None}


@pytest.mark.parametrize("layout", ["compact", "dense", "yandex", "shchur"])
def test_read_graph(layout, tmp_path):
    path = tmp_path / "ring.npz"
    np.savez(path, **ring(layout))
    graph = sg.data.read_graph(path, split=1)
    assert repr(graph).startswith("Graph('ring': 120 nodes, 120 edges, 5 features, 2 classes")
    A = graph.adjacency.to_scipy()
    assert (A != A.T).nnz == 0 and A.nnz == 240
    dense = sp.random_array((120, 5), density=0.3, format="csr", rng=np.random.default_rng(0))
    found = graph.features.to_dense().numpy() if layout in ("compact", "shchur") else None
    if found is None:
        np.testing.assert_allclose(graph.features.numpy(), dense.toarray(), rtol=1e-6)
        assert graph.to(sg.float64).features.dtype == sg.float64
        parts = [ids.numpy() % 3 for ids in (graph.train, graph.val, graph.test)]
        assert [set(part.tolist()) for part in parts] == [{1}, {2}, {0}]
    else:
        total = dense.sum(1)[:, None]
        expected = np.divide(dense.toarray(), total, out=np.zeros((120, 5)), where=total > 0)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert [len(part) for part in (graph.train, graph.val, graph.test)] == [40, 60, 20]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"edge_u": np.array([0, 500])}, "as many sources"),
        ({"edge_u": np.full(120, 500)}, r"nodes in \[0, 120\)"),
        ({"y": np.zeros(7, int)}, r"nodes in \[0, 7\)"),
        ({"x_indptr": np.arange(121)}, "malformed"),
        ({"x_shape": np.array([120, 2])}, "malformed"),
        ({"x_data": None}, "x_value"),
        ({"edge_u": None}, "none of the known layouts; it holds"),
    ],
)
def test_a_malformed_graph(changes, text, tmp_path):
    path = tmp_path / "ring.npz"
    np.savez(path, **ring("compact", **changes))
    with pytest.raises(sg.data.DataError, match=rf"ring\.npz.*{text}|{text}.*ring\.npz"):
        sg.data.read_graph(path)


def test_splits_that_are_not_there_or_overlap(tmp_path):
    np.savez(tmp_path / "a.npz", **ring("yandex"))
    with pytest.raises(sg.data.DataError, match="holds splits 0 to 1, got 2"):
        sg.data.read_graph(tmp_path / "a.npz", split=2)
    np.savez(tmp_path / "b.npz", **ring("yandex", val_masks=ring("yandex")["train_masks"]))
    with pytest.raises(sg.data.DataError, match="overlap"):
        sg.data.read_graph(tmp_path / "b.npz")


def test_graphs_by_name(tmp_path, monkeypatch):
    (tmp_path / "graphs").mkdir()
    np.savez(tmp_path / "graphs" / "amazon_photo.npz", **ring("compact"))
    np.savez(tmp_path / "ms_academic_phy.npz", **ring("shchur"))
    np.savez(tmp_path / "tolokers.npz", **ring("yandex"))
    first, second = (sg.data.amazon("photo", split=s, folder=tmp_path) for s in (0, 1))
    assert first.name == "amazon photo" and (first.train.numpy() != second.train.numpy()).any()
    monkeypatch.setenv("SPARSEGRAD_DATA", str(tmp_path))
    assert sg.data.coauthor("physics").n_nodes == sg.data.heterophilous("tolokers", 1).n_nodes
    for loader in (sg.data.amazon, sg.data.coauthor, sg.data.heterophilous):
        with pytest.raises(sg.data.DataError, match="name must be one of"):
            loader("elsewhere")
    with pytest.raises(sg.data.DataError, match=r"no graphs.amazon_computers\.npz .*https://"):
        sg.data.amazon("computers")


REAL_GRAPHS = {
    "amazon_photo": ("amazon", "photo", 7650, 119082, (160, 240, 7250)),
    "amazon_computers": ("amazon", "computers", 13752, 245861, (200, 300, 13252)),
    "coauthor_physics": ("coauthor", "physics", 34493, 247962, (100, 150, 34243)),
    "tolokers": ("heterophilous", "tolokers", 11758, 519000, (5879, 2939, 2940)),
    "minesweeper": ("heterophilous", "minesweeper", 10000, 39402, (5000, 2500, 2500)),
    "chameleon_filtered": ("heterophilous", "chameleon_filtered", 890, 8854, (409, 287, 194)),
}


@pytest.mark.parametrize("file", REAL_GRAPHS)
def test_real_graphs(file):
    needs(f"graphs/{file}.npz")
    loader, name, nodes, edges, sizes = REAL_GRAPHS[file]
    graph = getattr(sg.data, loader)(name)
    assert f"{nodes} nodes, {edges} edges" in repr(graph)
    assert tuple(len(ids) for ids in (graph.train, graph.val, graph.test)) == sizes


# --- the originals of Planetoid ----------------------------------------------------------------


def planetoid_files(folder, name="citeseer"):
    """Eight files as their authors wrote them (Python 2's pickle protocol), of 1300 nodes."""
    rng = np.random.default_rng(0)
    X = sp.csr_matrix(sp.random_array((1300, 20), density=0.2, format="csr", rng=rng))
    y = np.eye(3, dtype=np.int32)[np.arange(1300) % 3]
    order = 600 + rng.permutation(700)
    order = order[order != 700]  # a node that only the graph knows
    graph = {i: [(i + 1) % 1300, (i - 1) % 1300] for i in range(1300)}
    parts = {"x": X[:60], "y": y[:60], "tx": X[order], "ty": y[order], "allx": X[:600]}
    parts |= {"ally": y[:600], "graph": graph}
    for part, value in parts.items():
        (folder / f"ind.{name}.{part}").write_bytes(pickle.dumps(value, protocol=2))
    (folder / f"ind.{name}.test.index").write_text("\n".join(map(str, order)) + "\n")
    return X, y


def test_planetoid_originals(tmp_path):
    X, y = planetoid_files(tmp_path)
    graph = sg.data.planetoid("citeseer", tmp_path)
    assert "1300 nodes, 1300 edges, 20 features, 3 classes" in repr(graph)
    assert [len(ids) for ids in (graph.train, graph.val, graph.test)] == [60, 500, 699]
    dense, total = X.toarray(), np.maximum(X.sum(1), 1e-9)
    dense, labels = np.asarray(dense / total), y.argmax(1)
    dense[700], labels[700] = 0, -1
    np.testing.assert_allclose(graph.features.to_dense().numpy(), dense, rtol=1e-5)
    np.testing.assert_array_equal(graph.labels.numpy(), labels)


class Evil:
    def __reduce__(self):
        return os.system, ("echo executed",)


@pytest.mark.parametrize("value", [Evil(), io.StringIO, np.random.default_rng, len])
def test_pickles_that_would_execute_something(value, tmp_path, capfd):
    planetoid_files(tmp_path)
    path = tmp_path / "ind.citeseer.allx"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(sg.data.DataError, match=r"ind\.citeseer\.allx is not .* asks for"):
        sg.data.planetoid("citeseer", tmp_path)
    assert "executed" not in capfd.readouterr().out


def test_planetoid_originals_that_are_damaged(tmp_path):
    planetoid_files(tmp_path)
    path = tmp_path / "ind.citeseer.graph"
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"\x80\x02]q\x00.", b"text"):
        path.write_bytes(content)
        with pytest.raises(sg.data.DataError, match="citeseer"):
            sg.data.planetoid("citeseer", tmp_path)
    path.write_bytes(whole)
    (tmp_path / "ind.citeseer.test.index").write_text("1\nx\n")
    with pytest.raises(
        sg.data.DataError, match=r"ind\.citeseer\.test\.index or a file beside it is malformed"
    ):
        sg.data.planetoid("citeseer", tmp_path)


def test_later_pickle_protocols_are_read_too(tmp_path):
    path = tmp_path / "part"
    for protocol in (2, 3, 4):
        A = sp.csr_matrix(np.eye(3, dtype=np.float32))
        path.write_bytes(pickle.dumps(A, protocol=protocol))
        np.testing.assert_array_equal(_unpickled(path).csr().toarray(), np.eye(3))


# --- downloads ---------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder that is served on this machine, and an empty cache."""
    pytest.importorskip("pooch", reason="downloads are an extra")
    (tmp_path / "public").mkdir()
    monkeypatch.setenv("SPARSEGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=tmp_path / "public")
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield tmp_path, f"http://127.0.0.1:{served.server_port}/"
    served.shutdown()
    thread.join()
    served.server_close()


def test_a_download_is_checked_and_cached(server):
    folder, site = server
    content = b"+1 1:1\n"
    (folder / "public" / "a9a").write_bytes(content)
    remote = fetch.Remote(site + "a9a", hashlib.sha256(content).hexdigest())
    path = fetch.fetch("a9a", remote)
    assert path.parent == folder / "cache" and path.read_bytes() == content
    (folder / "public" / "a9a").unlink()
    assert fetch.fetch("a9a", remote) == path  # it is not asked for again
    own = folder / "own"
    own.mkdir()
    (own / "a9a").write_bytes(b"mine")
    assert fetch.fetch("a9a", remote, own).read_bytes() == b"mine"  # the local folder first


def test_downloads_that_fail(server):
    folder, site = server
    (folder / "public" / "a9a").write_bytes(b"another content")
    for name in ("a9a", "absent"):
        remote = fetch.Remote(site + name, hashlib.sha256(b"expected").hexdigest())
        with pytest.raises(sg.data.DataError, match=f"a9a: {site}{name} cannot be downloaded.*put"):
            fetch.fetch("a9a", remote)
    assert not any(path.is_file() for path in (folder / "cache").glob("*"))


def test_a_download_without_pooch(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pooch", None)
    with pytest.raises(sg.data.DataError, match=r"sparsegrad-engine\[data\].*or put a9a into"):
        sg.data.a9a()


# --- LIBSVM ------------------------------------------------------------------------------------


def test_read_libsvm(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("# made by hand\n-1 1:0.5 3:2\n\n+1\n1 2:1e-3 # why\n")
    X, y = sg.data.read_libsvm(path)
    np.testing.assert_allclose(X.to_dense().numpy(), [[0.5, 0, 2], [0, 0, 0], [0, 1e-3, 0]])
    assert y.tolist() == [-1, 1, 1] and y.dtype == sg.int64 and X.dtype == sg.float32
    X, y = sg.data.read_libsvm(io.BytesIO(b"0.5 0:1\n"), 4, zero_based=True, dtype=sg.float64)
    assert X.shape == (1, 4) and y.dtype == X.dtype == sg.float64
    X, y = sg.data.read_libsvm(io.StringIO(""))
    assert X.shape == (0, 0) and len(y) == 0


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("one 1:1", "'one'"),
        ("1 1:1 1:2", "column 1 after 1"),
        ("1 3:1 2:1", "column 2 after 3"),
        ("1 0:1", "column 0 after 0"),
        ("1 -4:1", "column -4 after 0"),
        ("1 2", "''"),
        ("1 2:", "''"),
        ("1 2:1:3", "'1:3'"),
        ("1 a:1", "'a'"),
        ("1 qid:3 1:1", "'qid'"),
        ("1 1:nan", "'nan' is not a finite"),
        ("inf 1:1", "'inf' is not a finite"),
        ("1 9:1", "column 9 of 5"),
    ],
)
def test_libsvm_errors_name_file_and_line(line, text, tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text(f"+1 1:1\n\n{line}\n-1 1:1\n")
    with pytest.raises(sg.FileError, match=rf"read_libsvm: .*rows\.txt, line 3: .*{text}"):
        sg.data.read_libsvm(path, 5)


def test_a9a(tmp_path):
    (tmp_path / "a9a").write_text("-1 3:1 123:1 \n+1 1:1\n")
    (tmp_path / "a9a.t").write_text("+1 2:1\n")
    data = sg.data.a9a(tmp_path)
    assert repr(data) == (
        "Classified('a9a': 2 rows for training, 1 for the test, 123 features, 4 entries)"
    )


def test_a9a_real_file_is_the_original():
    needs("text/a9a.npz")
    data = sg.data.a9a()
    assert (len(data.y), len(data.test_y), data.n_features) == (32561, 16281, 123)
    text = original_a9a(data.test_x, data.test_y)
    assert hashlib.sha256(text.encode()).hexdigest() == sg.data.a9a.__globals__["_TEST"].sha256


def original_a9a(X, y):
    rows = np.split(X.indices + 1, X.indptr[1:-1])
    return "".join(
        f"{label:+d} {' '.join(f'{j}:1' for j in row)} \n" for label, row in zip(y.tolist(), rows)
    )


# --- interactions and ratings ------------------------------------------------------------------


def test_hold_out():
    R = sg.data.interactions_sbm(n_users=200, seed=3).train
    kept, held = sg.data.hold_out(R, 0.25, seed=1)
    assert kept.shape == held.shape == R.shape and kept.is_coalesced and held.is_coalesced
    assert abs((kept + held) - R).sum().item() == 0 and (kept * held).nnz == 0
    assert abs(held.nnz / R.nnz - 0.25) < 0.02
    assert (np.diff(kept.indptr)[np.diff(R.indptr) > 0] >= 1).all()
    again = sg.data.hold_out(R, 0.25, seed=1)[1]
    assert again.pattern.same_as(held.pattern)
    assert not sg.data.hold_out(R, 0.25, seed=2)[1].pattern.same_as(held.pattern)
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="share"):
            sg.data.hold_out(R, share)
    for made in (lambda: sg.data.hold_out(R.to_dense(), 0.1),
                 lambda: sg.data.NegativeSampler(R.to_dense())):  # fmt: skip
        with pytest.raises(TypeError, match="R must be a SparseTensor, got Tensor"):
            made()
    with pytest.raises(ValueError, match=r"rows must lie in \[0, 200\), got 3 to 200"):
        sg.data.NegativeSampler(R).draw([3, 200])


def test_bipartite():
    R = sg.data.interactions_sbm(n_users=30, n_items=20, groups=4).train
    A = sg.data.bipartite(R)
    dense = R.to_dense().numpy()
    expected = np.block([[np.zeros((30, 30)), dense], [dense.T, np.zeros((20, 20))]])
    np.testing.assert_array_equal(A.to_dense().numpy(), expected)
    assert A.format == "csr" and A.is_coalesced


def test_gowalla(tmp_path):
    (tmp_path / "rec").mkdir()
    held = {"n_users": 2, "n_items": 3, "train_indptr": [0, 2, 3], "train_items": [0, 2, 1]}
    held |= {"test_indptr": [0, 1, 1], "test_items": [1]}
    np.savez(tmp_path / "rec" / "gowalla.npz", **held)
    data = sg.data.gowalla(tmp_path)
    assert data.train.to_dense().tolist() == [[1, 0, 1], [0, 1, 0]]
    np.savez(tmp_path / "rec" / "gowalla.npz", **held | {"train_items": [0, 9, 1]})
    with pytest.raises(sg.data.DataError, match=r"gowalla\.npz is malformed"):
        sg.data.gowalla(tmp_path)
    with pytest.raises(sg.data.DataError, match="SPARSEGRAD_DATA"):
        sg.data.gowalla()


def test_gowalla_as_it_was_published(tmp_path):
    (tmp_path / "gowalla").mkdir()
    (tmp_path / "gowalla" / "train.txt").write_text("0 2 0 2\n1 1\n")
    (tmp_path / "gowalla" / "test.txt").write_text("0 1\n2 \n1 3\n")
    data = sg.data.gowalla(tmp_path)
    assert data.train.to_dense().tolist() == [[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert data.test.to_dense().tolist() == [[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("line", "text"),
    [("0 x", "'x'"), ("0 -1", "negative"), ("-1 0", "negative"), ("9 1", "outside 5")],
)
def test_lists_that_are_malformed(line, text, tmp_path):
    path = tmp_path / "lists.txt"
    path.write_text(f"0 1\n\n{line}\n")
    with pytest.raises(sg.FileError, match=rf"read_lists: .*lists\.txt, line 3: .*{text}"):
        sg.data.read_lists(path, (5, 5))


def test_gowalla_real_file():
    needs("rec/gowalla.npz")
    data = sg.data.gowalla()
    assert repr(data) == (
        "Interactions('gowalla': 29858 users, 40981 items, 810128 for training, 217242 for the "
        "test)"
    )
    assert (data.train * data.test).nnz == 0


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("ann\t7\t4.5\t99\nbob\t3\t2\t98\nann\t3\t1\t97\n", {}),
        ("ann::7::4.5::99\nbob::3::2::98\nann::3::1::97\n", {}),
        ('user,item,r\nann,7,3\n"bob",3,2\n\nann,3,1\nann,7,4.5\n', {}),
        ("u i r\nann 7 4.5\nbob 3 2\nann 3 1\n", {"header": True}),
        ("4.5;7;ann\n2;3;bob\n1;3;ann\n", {"columns": (2, 1, 0)}),
    ],
)
def test_read_ratings(text, options):
    R, users, items = sg.data.read_ratings(io.StringIO(text), **options)
    assert (users, items) == (["ann", "bob"], ["7", "3"])
    assert R.format == "csr" and R.to_dense().tolist() == [[4.5, 1], [0, 2]]


def test_read_ratings_without_ratings():
    for options in ({}, {"columns": (0, 1, None)}):
        R, _, _ = sg.data.read_ratings(io.BytesIO(b"ann 7\nbob 3\n"), **options)
        assert R.to_dense().tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("ann", "1 columns are too few"),
        ("ann,7,good", "good"),
        ("ann,7,nan", "not a finite number"),
        ("ann,,3", "a name is empty"),
    ],
)
def test_rating_errors_name_file_and_line(line, text, tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text(f"ann,7,4\n\n{line}\n")
    with pytest.raises(sg.FileError, match=rf"read_ratings: .*ratings\.csv, line 3: .*{text}"):
        sg.data.read_ratings(path)


def test_movielens_real_file():
    needs("rec/ml_latest_small.npz")
    data = sg.data.movielens()
    assert data.train.shape == (610, 9724) and data.train.nnz + data.test.nnz == 100836
    assert set(np.unique(data.train.values.numpy())) == {i / 2 for i in range(1, 11)}


# --- splits ------------------------------------------------------------------------------------


def test_splits_are_disjoint_and_repeatable():
    y = np.repeat([0, 1, 2, -1], [30, 40, 50, 10])
    parts = sg.data.per_class_split(y, train=5, val=10, seed=4)
    ids = [part.numpy() for part in parts]
    assert [np.bincount(y[part]).tolist() for part in ids[:2]] == [[5] * 3, [10] * 3]
    assert len(np.unique(np.concatenate(ids))) == 120
    again = sg.data.per_class_split(sg.tensor(y), train=5, val=10, test=7, seed=4)
    assert (again[0].numpy() == ids[0]).all() and len(again[2]) == 7
    with pytest.raises(ValueError, match="class 0 has 30 members, fewer than train"):
        sg.data.per_class_split(y, train=25, val=10)
    whole = np.concatenate([part.numpy() for part in sg.data.random_split(11, (0.5, 0.5))])
    assert sorted(whole) == list(range(11))
    with pytest.raises(ValueError, match="shares"):
        sg.data.random_split(11, (0.7, 0.7))


def test_k_fold():
    folds = [(a.numpy(), b.numpy()) for a, b in sg.data.k_fold(11, 3, seed=5)]
    assert sorted(np.concatenate([test for _, test in folds])) == list(range(11))
    for train, test in folds:
        assert len(np.intersect1d(train, test)) == 0 and len(train) + len(test) == 11
    with pytest.raises(ValueError, match=r"k must lie in \[2, 3\]"):
        sg.data.k_fold(3, 4)
