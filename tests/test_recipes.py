"""Data sets, and training runs on them."""

import dataclasses
import inspect
import io
import os

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg
from sparsegrad.recipes import (
    infer_graphchallenge,
    ranking,
    regrow,
    train_gat,
    train_gcn,
    train_lightgcn,
    train_logreg,
    train_mf,
    train_sparse_mlp,
)

FOLDER = os.environ.get("SPARSEGRAD_DATA")
needs_data = pytest.mark.skipif(
    not FOLDER, reason="SPARSEGRAD_DATA does not name a folder with planetoid/cora.npz"
)


@pytest.fixture(scope="module")
def graph():
    return sg.data.sbm(n=1000, n_features=400, seed=0)


def without_edges(graph):
    n = graph.n_nodes
    nothing = sg.csr(np.zeros(n + 1, int), np.zeros(0, int), np.zeros(0, "f4"), (n, n))
    return dataclasses.replace(graph, adjacency=nothing)


# --- the block model ---------------------------------------------------------------------------


def same(a, b):
    if isinstance(a, sg.SparseTensor):
        return a.pattern.same_as(b.pattern) and bool((a.values == b.values).data.all())
    return bool((a == b).data.all()) if isinstance(a, sg.Tensor) else a == b


def test_sbm_is_reproducible():
    first, second, other = (sg.data.sbm(n=600, seed=seed) for seed in (3, 3, 4))
    for field in dataclasses.fields(first):
        assert same(getattr(first, field.name), getattr(second, field.name)), field.name
    assert not same(first.adjacency, other.adjacency)
    sg.manual_seed(0)
    drawn = sg.randn(2)
    sg.manual_seed(0)
    sg.data.sbm(n=300, seed=1)  # has a generator of its own
    assert same(drawn, sg.randn(2))


def test_sbm_is_what_it_says():
    graph = sg.data.sbm(n=3000, degree=6.0, homophily=0.8, seed=1)
    A, X, y = graph.adjacency, graph.features, graph.labels.data
    assert A.format == X.format == "csr" and A.is_coalesced and X.is_coalesced
    B = A.T.to("csr")
    assert (A.indices == B.indices).all() and (A.indptr == B.indptr).all()
    assert not (A.row == A.col).any()
    assert (A.values.data == 1).all()
    assert abs(A.nnz / 3000 - 6) < 0.3
    assert abs((y[A.row] == y[A.col]).mean() - 0.8) < 0.02
    np.testing.assert_allclose(X.sum(1).data, 1, rtol=1e-5)
    assert 10 < X.nnz / 3000 <= 15
    assert np.bincount(y).tolist() == [600] * 5
    train, val, test = (ids.data for ids in (graph.train, graph.val, graph.test))
    assert np.bincount(y[train]).tolist() == [20] * 5
    assert len(val) == 500 and len(test) == 1000
    assert len(np.unique(np.concatenate((train, val, test)))) == 1600
    assert repr(graph).startswith("Graph('sbm': 3000 nodes,")


def test_sbm_at_the_edges_of_its_arguments():
    lonely = sg.data.sbm(n=250, degree=0.0, words=0)
    assert lonely.adjacency.nnz == lonely.features.nnz == 0
    A = sg.data.sbm(n=250, homophily=1.0).adjacency
    y = sg.data.sbm(n=250, homophily=1.0).labels.data
    assert (y[A.row] == y[A.col]).all()
    assert sg.data.sbm(n=200, n_classes=1, train_per_class=100).n_classes == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n": 100}, "n must be at least"),
        ({"degree": -1.0}, "degree"),
        ({"homophily": 1.5}, "homophily"),
        ({"topic": float("nan")}, "topic"),
        ({"n_features": 2}, "n_features"),
    ],
)
def test_sbm_errors(options, text):
    with pytest.raises(ValueError, match=f"sbm: .*{text}"):
        sg.data.sbm(**options)


def test_graph_to(graph):
    wide = graph.to(sg.float64)
    assert wide.adjacency.dtype == wide.features.dtype == sg.float64
    assert wide.labels is graph.labels
    assert graph.to("cpu").n_features == graph.n_features
    with pytest.raises(sg.DeviceError):
        graph.to("cuda:9")


# --- citation graphs ---------------------------------------------------------------------------


def small(tmp_path, **changes):
    """A file in the layout of cora.npz, of 1600 nodes."""
    n = 1600
    rng = np.random.default_rng(0)
    X = sp.random_array((n, 30), density=0.1, format="csr", rng=rng)
    held = {
        "shape": np.array([n, 30]),
        "x_indptr": X.indptr,
        "x_indices": X.indices.astype(np.uint16),
        "x_value": np.array([0.5], np.float32),
        "edge_u": np.array([0, 1, 2, 5], np.uint16),
        "edge_v": np.array([1, 2, 3, 5], np.uint16),
        "y": (np.arange(n) % 3).astype(np.int8),
        "train_idx": np.arange(60, dtype=np.int32),
        "test_idx": np.arange(600, 1600, dtype=np.int32),
    }
    held |= changes
    (tmp_path / "planetoid").mkdir()
    np.savez(
        tmp_path / "planetoid" / "cora.npz", **{k: v for k, v in held.items() if v is not None}
    )
    return held


def test_planetoid(tmp_path, monkeypatch):
    held = small(tmp_path)
    monkeypatch.setenv("SPARSEGRAD_DATA", str(tmp_path))
    graph = sg.data.planetoid("cora")
    A = graph.adjacency
    assert list(zip(A.row.tolist(), A.col.tolist(), strict=True)) == [
        (0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (5, 5)
    ]  # fmt: skip
    assert "4 edges" in repr(graph) and graph.n_classes == 3
    total = graph.features.sum(1).data
    filled = np.diff(held["x_indptr"]) > 0
    np.testing.assert_allclose(total[filled], 1, rtol=1e-6)
    assert not total[~filled].any()
    assert graph.val.tolist() == list(range(60, 560))


@pytest.mark.parametrize("values", ["x_data", "x_code"])
def test_planetoid_keeps_features_in_three_ways(tmp_path, values):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    nnz = len(small(tmp_path / "a")["x_indices"])
    data = np.arange(1, nnz + 1, dtype=np.float32)
    changes = {"x_data": data, "x_value": None}
    if values == "x_code":
        changes = {"x_levels": data, "x_code": np.arange(nnz), "x_value": None}
    small(tmp_path / "b", **changes)
    X = sg.data.planetoid("cora", tmp_path / "b").features
    first = X.indptr[1]
    np.testing.assert_allclose(X.values.data[:first], data[:first] / data[:first].sum(), rtol=1e-6)


def test_planetoid_without_a_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARSEGRAD_DATA", raising=False)
    with pytest.raises(sg.data.DataError, match=r"SPARSEGRAD_DATA .* set it to the folder"):
        sg.data.planetoid("cora")
    monkeypatch.setenv("SPARSEGRAD_DATA", str(tmp_path))
    with pytest.raises(sg.data.DataError, match=r"no planetoid.cora\.npz in the folder"):
        sg.data.planetoid("cora")
    with pytest.raises(sg.data.DataError, match="must be one of cora, citeseer, pubmed"):
        sg.data.planetoid("../cora")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"y": None}, "lacks y"),
        ({"y": np.zeros(3, int)}, r"y must have shape \(1600,\)"),
        ({"y": np.full(1600, -1)}, "no class"),
        ({"edge_u": np.array([9999])}, r"edge_u must hold node ids in \[0, 1600\)"),
        ({"edge_u": np.array([1])}, "one length"),
        ({"x_indices": np.array([1])}, "indptr"),
        ({"x_value": None}, "x_value"),
        ({"test_idx": np.arange(100, 200)}, "overlap"),
        ({"shape": np.array(["a"], object)}, "not a readable .npz file"),
    ],
)
def test_malformed_files(tmp_path, changes, text):
    small(tmp_path, **changes)
    with pytest.raises(sg.data.DataError, match=text):
        sg.data.planetoid("cora", tmp_path)


def test_a_file_that_is_no_archive(tmp_path):
    (tmp_path / "planetoid").mkdir()
    file = tmp_path / "planetoid" / "cora.npz"
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    for content in (b"", b"hello", b"PK\x03\x04 cut off", array.getvalue()):
        file.write_bytes(content)
        with pytest.raises(sg.data.DataError, match=r"cora\.npz is not a readable"):
            sg.data.planetoid("cora", tmp_path)


# --- the graph network -------------------------------------------------------------------------


def test_gcn_learns_and_needs_the_edges(graph):
    result = train_gcn(graph, epochs=60)
    assert result.test["accuracy"] > 0.85
    assert result.history[-1]["loss"] < 0.7 * result.history[0]["loss"]
    alone = train_gcn(without_edges(graph), epochs=60)
    assert alone.test["accuracy"] < result.test["accuracy"] - 0.15


def test_gcn_result(graph):
    rows = []
    result = train_gcn(graph, epochs=4, on_epoch=rows.append)
    assert rows == result.history
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    best = max(rows, key=lambda row: (row["val_accuracy"], -row["val_loss"]))
    assert result.best == best
    assert result.dense_bytes == 4 * 1000**2
    assert result.stored_bytes < result.dense_bytes / 50
    A_hat = sg.nn.gcn_norm(graph.adjacency)
    logits = result.model.eval()(graph.features, A_hat).detach().data[graph.test.data]
    hits = logits.argmax(1) == graph.labels.data[graph.test.data]
    assert result.test["accuracy"] == hits.mean()


def test_gcn_is_reproducible(graph):
    first, second, other = (train_gcn(graph, epochs=5, seed=seed) for seed in (7, 7, 8))
    assert first.history == second.history and first.test == second.test
    assert first.history != other.history


def test_gcn_errors(graph):
    with pytest.raises(ValueError, match="epochs"):
        train_gcn(graph, epochs=0)
    with pytest.raises(sg.DeviceError):
        train_gcn(graph, epochs=1, device="cuda")


def test_gradient_to_the_adjacency_on_request(graph):
    """The forum's question: which edges matter? No square array is made to answer it."""
    result = train_gcn(graph, epochs=2)
    A = graph.adjacency.detach().clone().requires_grad_()
    with sg.densify(budget=0, on_exceed="raise"):
        logits = result.model.eval()(graph.features, sg.nn.gcn_norm(A))
        sg.cross_entropy(logits[graph.test], graph.labels[graph.test]).backward()
    assert A.grad.pattern.same_as(A.pattern)
    assert np.count_nonzero(A.grad.values.data) > A.nnz / 2


@needs_data
@pytest.mark.parametrize(
    ("name", "nodes", "links", "features", "classes"),
    [
        ("cora", 2708, 5278, 1433, 7),
        ("citeseer", 3327, 4676, 3703, 6),
        ("pubmed", 19717, 44327, 500, 3),
    ],
)
def test_planetoid_files(name, nodes, links, features, classes):
    if not os.path.exists(os.path.join(FOLDER, "planetoid", f"{name}.npz")):
        pytest.skip(f"SPARSEGRAD_DATA has no planetoid/{name}.npz")
    graph = sg.data.planetoid(name)
    assert f"{nodes} nodes, {links} edges, {features} features" in repr(graph)
    split = tuple(len(ids) for ids in (graph.train, graph.val, graph.test))
    assert graph.n_classes == classes and split == (20 * classes, 500, 1000)


@needs_data
def test_cora():
    """One seed of ten; all of them: bench/results/gcn-cora.json."""
    result = train_gcn(sg.data.planetoid("cora"), seed=0)
    assert result.test["accuracy"] > 0.79


# --- the attention network ---------------------------------------------------------------------


def test_gat_learns(graph):
    result = train_gat(graph, epochs=60, hidden=4, heads=4)
    assert result.test["accuracy"] > 0.8
    assert result.history[-1]["loss"] < result.history[0]["loss"] - 0.1


def test_gat_result(graph):
    rows = []
    result = train_gat(graph, epochs=4, hidden=2, heads=2, on_epoch=rows.append)
    assert rows == result.history and [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert result.best is rows[result.best["epoch"] - 1]
    logits = result.model.eval()(graph.features, graph.adjacency).detach().data[graph.test.data]
    hits = logits.argmax(1) == graph.labels.data[graph.test.data]
    assert result.test["accuracy"] == hits.mean()


def test_gat_stops_when_validation_does_not_improve(graph):
    result = train_gat(graph, epochs=60, patience=3, hidden=1, heads=1, lr=10.0)
    last = len(result.history)
    assert last < 60
    before, after = result.history[: last - 3], result.history[last - 3 :]
    assert max(r["val_accuracy"] for r in after) < max(r["val_accuracy"] for r in before)
    assert min(r["val_loss"] for r in after) > min(r["val_loss"] for r in before)


def test_gat_is_reproducible(graph):
    first, second, other = (
        train_gat(graph, epochs=3, hidden=2, heads=2, seed=seed) for seed in (7, 7, 8)
    )
    assert first.history == second.history != other.history


def test_gat_errors(graph):
    for name in ("epochs", "patience"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            train_gat(graph, **{name: 0})


@pytest.mark.parametrize("recipe", [train_gcn, train_gat])
def test_recipes_are_short(recipe):
    assert len(inspect.getsource(recipe).splitlines()) < 100


# --- recommendation ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def choices():
    return sg.data.interactions_sbm(n_users=150, n_items=120, groups=5, degree=20, seed=1)


def test_ranking_against_a_loop():
    rng = np.random.default_rng(0)
    users, items = rng.standard_normal((30, 4)), rng.standard_normal((25, 4))
    truth, seen = (sg.random_sparse(30, 25, 0.1, "csr") for _ in range(2))
    found = ranking(sg.tensor(users), sg.tensor(items), seen, truth, k=6, batch=7)
    recalls, gains = [], []
    for u in range(30):
        true = set(truth[u].indices[0].tolist())
        scores = users[u] @ items.T
        scores[seen[u].indices[0]] = -np.inf
        best = np.argsort(-scores)[:6]
        hits = [item in true for item in best]
        if true:
            recalls.append(sum(hits) / len(true))
            ideal = sum(1 / np.log2(p + 2) for p in range(min(6, len(true))))
            gains.append(sum(h / np.log2(p + 2) for p, h in enumerate(hits)) / ideal)
    np.testing.assert_allclose(found["recall@6"], np.mean(recalls), rtol=1e-12)
    np.testing.assert_allclose(found["ndcg@6"], np.mean(gains), rtol=1e-12)
    some = ranking(sg.tensor(users), sg.tensor(items), seen, truth, k=6, which=[3, 4])
    assert some != found and ranking(
        sg.tensor(users), sg.tensor(items), seen, sg.coo([[], []], None, (30, 25))
    ) == {"recall@20": 0.0, "ndcg@20": 0.0}


def test_lightgcn_learns_who_chooses_what(choices):
    options = {"dim": 16, "negatives": 64, "batch": 256, "lr": 0.02}
    rows = []
    found = train_lightgcn(choices, epochs=8, on_epoch=rows.append, **options)
    assert found.test["recall@20"] > 0.5  # 0.17 by chance; 24 items of one's own group
    assert rows[-1]["loss"] < rows[0]["loss"] and rows == found.history
    assert found.best["val_recall@20"] == max(row["val_recall@20"] for row in rows)
    again = train_lightgcn(choices, epochs=8, **options)
    assert again.history == found.history and again.test == found.test


def test_mf_fits_ratings():
    ratings = sg.data.interactions_sbm(n_users=200, n_items=60, groups=3, seed=1)
    found = train_mf(ratings, epochs=20, dim=8, batch=128, lr=0.01)
    assert found.test["rmse"] < 0.8 * ratings.test.values.numpy().std()
    assert found.best["val_rmse"] == min(row["val_rmse"] for row in found.history)
    again = train_mf(ratings, epochs=20, dim=8, batch=128, lr=0.01)
    assert again.history == found.history and again.test == found.test


def test_mf_orders_choices(choices):
    ones = dataclasses.replace(choices, train=sg.ones_like(choices.train))
    found = train_mf(ones, epochs=10, dim=8, batch=128, lr=0.02, weight_decay=0.1)
    assert found.test["recall@20"] > 0.4  # 0.17 by chance
    assert sorted(found.test) == ["ndcg@20", "recall@20"]


# --- rows with labels --------------------------------------------------------------------------


def test_logreg_finds_the_optimum():
    data = sg.data.bag_of_words(n=150, n_features=40, seed=2)
    rows = []
    found = train_logreg(data, l2=0.5, on_epoch=rows.append)
    assert rows == found.history and rows[-1]["gradient"] < 1e-6
    x, y = data.x.to_dense().numpy().astype(float), 2.0 * data.y.numpy() - 1
    w = np.zeros(41)  # Newton's method, written out
    wide = np.c_[x, np.ones(len(x))]
    penalty = 0.5 * np.r_[np.ones(40), 0]
    for _ in range(20):
        p = 1 / (1 + np.exp(y * (wide @ w)))
        gradient = -wide.T @ (y * p) + penalty * w
        w -= np.linalg.solve(wide.T @ (wide * (p * (1 - p))[:, None]) + np.diag(penalty), gradient)
    objective = np.logaddexp(0, -y * (wide @ w)).sum() + 0.25 * (w[:40] ** 2).sum()
    np.testing.assert_allclose(found.best["objective"], objective, rtol=1e-12)
    np.testing.assert_allclose(found.model.numpy(), w, atol=1e-6)
    with pytest.raises(ValueError, match=r"two kinds, got \[0, 1, 2\]"):
        train_logreg(sg.data.bag_of_words(n=60, n_classes=3))


@pytest.mark.skipif(not FOLDER, reason="SPARSEGRAD_DATA does not name a folder with text/a9a.npz")
def test_logreg_a9a():
    if not os.path.exists(os.path.join(FOLDER, "text", "a9a.npz")):
        pytest.skip("SPARSEGRAD_DATA has no text/a9a.npz")
    found = train_logreg(sg.data.a9a())
    assert abs(found.best["objective"] - 10528.57) < 0.05
    assert found.test["accuracy"] >= 0.8497


def test_sparse_mlp_learns_and_moves_connections():
    data = sg.data.bag_of_words(n=600, n_features=120, n_classes=3, topic=0.5, seed=3)
    options = {"hidden": 24, "density": 0.2, "epochs": 6, "lr": 0.01, "batch": 64}
    found = train_sparse_mlp(data, **options)
    still = train_sparse_mlp(data, **options, share=0.0)
    assert found.test["accuracy"] > 0.75 and still.test["accuracy"] > 0.75  # 0.33 by chance
    for layer in ("first", "second"):
        moved, fixed = (getattr(run.model, layer).weight for run in (found, still))
        assert moved.nnz == fixed.nnz and moved.is_coalesced
        assert not moved.pattern.same_as(fixed.pattern)
    assert train_sparse_mlp(data, **options).history == found.history


def test_regrow_keeps_the_large_and_starts_others_at_zero():
    sg.manual_seed(0)
    layer = sg.nn.SparseLinear(20, 10, density=0.3)
    optimizer = sg.optim.Adam(layer.parameters())
    layer(sg.ones(4, 20)).sum().backward()
    optimizer.step()
    before = layer.weight.detach().to_dense().numpy()
    state = optimizer.state[layer.weight]["exp_avg"].numpy().copy()
    regrow(layer.weight, 0.25, optimizer)
    after = layer.weight.detach().to_dense().numpy()
    assert layer.weight.nnz == 60 and layer.weight.is_coalesced
    kept = np.abs(before) >= np.sort(np.abs(before[before != 0]))[15]
    np.testing.assert_array_equal(after, np.where(kept, before, 0))
    moments = optimizer.state[layer.weight]["exp_avg"].numpy()
    assert moments.shape == state.shape and np.count_nonzero(moments) == 45
    full = sg.nn.SparseLinear(3, 3, density=1.0)  # nowhere to go
    regrow(full.weight, 0.5, sg.optim.SGD([full.weight], lr=0.1))
    assert full.weight.nnz == 9


# --- inference ---------------------------------------------------------------------------------


def test_graphchallenge_categories():
    network = sg.data.sparse_network(neurons=64, layers=4, fan=6, images=80, seed=1)
    rows = []
    found = infer_graphchallenge(network, on_epoch=rows.append)
    assert 0 < len(network.categories) < 80
    assert found.model.tolist() == network.categories.tolist()
    assert found.test["accuracy"] == 1 and found.test["categories"] == len(network.categories)
    assert rows == found.history and [row["epoch"] for row in rows] == [1, 2, 3, 4]
    wrong = dataclasses.replace(network, categories=network.categories[1:])
    assert infer_graphchallenge(wrong).test["accuracy"] == 1 - 1 / 80


@pytest.mark.skipif(not FOLDER, reason="SPARSEGRAD_DATA does not name a folder with dnn/")
def test_graphchallenge_1024():
    file = os.path.join(FOLDER, "dnn", "graphchallenge_n1024_l30.npz")
    if not os.path.exists(file):
        pytest.skip("SPARSEGRAD_DATA has no dnn/graphchallenge_n1024_l30.npz")
    network = sg.data.graphchallenge()
    found = infer_graphchallenge(network)
    assert found.model.tolist() == network.categories.tolist() and len(found.model) == 19
    assert found.history[-1]["nnz"] == 19456


# --- every recipe with a loop ------------------------------------------------------------------

LOOPS = {
    "lightgcn": (train_lightgcn, {"dim": 4, "negatives": 16, "batch": 256}),
    "mf": (train_mf, {"dim": 4, "batch": 128}),
    "sparse-mlp": (train_sparse_mlp, {"hidden": 8, "density": 0.3}),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_run_that_is_resumed_gives_the_same_bits(name, choices, tmp_path):
    train, options = LOOPS[name]
    data = sg.data.bag_of_words(n=120, n_features=30) if name == "sparse-mlp" else choices
    whole = train(data, epochs=4, **options)
    file = tmp_path / "run.safetensors"
    train(data, epochs=2, checkpoint=file, **options)
    sg.manual_seed(99)
    found = train(data, epochs=4, checkpoint=file, resume=True, **options)
    assert found.history == whole.history and found.test == whole.test
    for name, tensor in whole.model.state_dict().items():
        other = found.model.state_dict()[name]
        if isinstance(tensor, sg.SparseTensor):
            assert other.pattern.same_as(tensor.pattern)
            tensor, other = tensor.values, other.values
        np.testing.assert_array_equal(other.detach().numpy(), tensor.detach().numpy())
