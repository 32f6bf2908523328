"""Training runs have PyTorch's losses, from the same weights on the same data; skipped where it is
absent.

The PyTorch side is written with its own sparse product, softmax by scatter, and optimizers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad.recipes import GAT, GCN

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")

STEPS = 20


@pytest.fixture(scope="module")
def graph() -> sg.data.Graph:
    return sg.data.sbm(n=300, n_features=60, seed=1).to("float64")


def theirs(p: Any) -> Any:
    """A copy of a parameter."""
    return torch.nn.Parameter(torch.tensor(p.data.copy()))


def matrix(A: sg.SparseTensor) -> Any:
    index = torch.tensor(np.stack((A.row, A.col)).astype("i8"))
    return torch.sparse_coo_tensor(index, torch.tensor(A.values.data), A.shape)


def losses(loss: Callable[[], Any], optimizer: Any) -> list[float]:
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        now = loss()
        now.backward()
        optimizer.step()
        found.append(now.item())
    return found


def check(ours: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(ours, expected, rtol=1e-9)
    assert np.std(ours) > 0.01 * np.mean(ours)  # and something was trained


def test_gcn(graph: sg.data.Graph) -> None:
    sg.manual_seed(0)
    A, x, y, nodes = sg.gcn_norm(graph.adjacency), graph.features, graph.labels, graph.train
    model = GCN(graph.n_features, 16, graph.n_classes, dropout=0.0).double()
    W, b, V, c = parameters = [theirs(p) for p in model.parameters()]
    A_t, x_t, y_t = matrix(A), matrix(x), torch.tensor(y.data[nodes.data])

    def loss() -> Any:
        h = torch.relu(torch.sparse.mm(A_t, torch.sparse.mm(x_t, W)) + b)
        return F.cross_entropy((torch.sparse.mm(A_t, h @ V) + c)[torch.tensor(nodes.data)], y_t)

    assert [p.shape for p in parameters] == [p.shape for p in model.parameters()]
    check(
        losses(
            lambda: sg.cross_entropy(model(x, A)[nodes], y[nodes]),
            sg.optim.Adam(
                [
                    {"params": model.first.parameters(), "weight_decay": 5e-2},
                    {"params": model.second.parameters()},
                ],
                lr=0.05,
            ),
        ),
        losses(
            loss,
            torch.optim.Adam(
                [{"params": [W, b], "weight_decay": 5e-2}, {"params": [V, c]}], lr=0.05
            ),
        ),
    )


def test_gat(graph: sg.data.Graph) -> None:
    sg.manual_seed(0)
    A, x, y, nodes = graph.adjacency, graph.features, graph.labels, graph.train
    model = GAT(graph.n_features, 4, graph.n_classes, heads=3, out_heads=2, p=0.0).double()
    own = {name: theirs(p) for name, p in model.named_parameters()}
    looped = sg.add_self_loops(A).coalesce()
    row, col = (torch.tensor(i.astype("i8")) for i in (looped.row, looped.col))
    x_t, y_t = matrix(x), torch.tensor(y.data[nodes.data])
    n = graph.n_nodes

    def attention(h: Any, layer: str, heads: int, concat: bool) -> Any:
        h = h.view(n, heads, -1)
        left, right = ((h * own[f"{layer}.{side}"]).sum(2) for side in ("left", "right"))
        scores = F.leaky_relu(left[row] + right[col], 0.2)
        top = torch.full((n, heads), -torch.inf, dtype=h.dtype)
        top = top.scatter_reduce(0, row[:, None].expand(-1, heads), scores.detach(), "amax")
        weights = torch.exp(scores - top[row])
        weights = weights / torch.zeros_like(top).index_add(0, row, weights)[row]
        out = torch.zeros_like(h).index_add(0, row, weights[..., None] * h[col])
        out = out.flatten(1) if concat else out.mean(1)
        return out + own[f"{layer}.bias"]

    def loss() -> Any:
        h = F.elu(attention(torch.sparse.mm(x_t, own["first.weight"]), "first", 3, True))
        logits = attention(h @ own["second.weight"], "second", 2, False)
        return F.cross_entropy(logits[torch.tensor(nodes.data)], y_t)

    check(
        losses(
            lambda: sg.cross_entropy(model(x, A)[nodes], y[nodes]),
            sg.optim.AdamW(model.parameters(), lr=0.02, weight_decay=5e-2),
        ),
        losses(loss, torch.optim.AdamW(own.values(), lr=0.02, weight_decay=5e-2)),
    )


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "SGD"])
def test_embedding_mf(name: str) -> None:
    """Ratings by users and items, in batches with repeated rows: row-sparse gradients on both
    sides, and rows that a step does not read stand still."""
    rng = np.random.default_rng(0)
    sg.manual_seed(0)
    users, items = rng.integers(0, 50, 400), rng.integers(0, 40, 400)
    rating = rng.standard_normal(400) + (users % 5) - 2.0
    U, V = sg.nn.Embedding(60, 8).double(), sg.nn.Embedding(45, 8).double()
    b = sg.nn.Embedding(60, 1).double()
    tables = [U.weight, V.weight, b.weight]
    U_t, V_t, b_t = parameters = [theirs(p) for p in tables]
    before = [p.data.copy() for p in tables]

    def batches() -> Any:
        for k in range(STEPS):
            yield slice(20 * k, 20 * (k + 1))

    def ours(part: slice) -> Any:
        u, i = sg.tensor(users[part]), sg.tensor(items[part])
        score = (U(u) * V(i)).sum(1) + b(u)[:, 0]
        return ((score - sg.tensor(rating[part])) ** 2).mean()

    def in_torch(part: slice) -> Any:
        u, i = torch.tensor(users[part]), torch.tensor(items[part])
        rows = [F.embedding(k, t, sparse=True) for k, t in ((u, U_t), (i, V_t), (u, b_t))]
        score = (rows[0] * rows[1]).sum(1) + rows[2][:, 0]
        return ((score - torch.tensor(rating[part])) ** 2).mean()

    # SparseAdam adds eps before it corrects the bias, Adam (and ours) after: a small one tells them
    # apart by nothing.
    options: dict[str, Any] = {
        "Adam": {"lr": 0.1, "eps": 1e-15},
        "Adagrad": {"lr": 0.5},
        "SGD": {"lr": 0.5},
    }[name]
    adam = name == "Adam"
    optimizer = getattr(torch.optim, "SparseAdam" if adam else name)(parameters, **options)
    one, other = batches(), batches()
    check(
        losses(lambda: ours(next(one)), getattr(sg.optim, name)(tables, **options)),
        losses(lambda: in_torch(next(other)), optimizer),
    )
    for table, t, start in zip(tables, parameters, before, strict=True):
        np.testing.assert_allclose(table.data, t.detach().numpy(), rtol=1e-7, atol=1e-9)
        assert (table.data[50:] == start[50:]).all()


OPTIONS = [
    ("SGD", {"momentum": 0.9, "dampening": 0.4, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("Adam", {"maximize": True, "weight_decay": 0.1}),
    ("AdamW", {"amsgrad": True, "maximize": True}),
    ("Adagrad", {"maximize": True, "weight_decay": 0.1, "lr_decay": 0.1}),
    ("RMSprop", {"maximize": True, "momentum": 0.5, "centered": True, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_options_of_optimizers(name: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    start, grads = rng.standard_normal((4, 3)), rng.standard_normal((6, 4, 3))
    grads[3:] *= 0.1  # the greatest average of squares is not the last
    p, q = sg.tensor(start, requires_grad=True), torch.nn.Parameter(torch.tensor(start))
    optimizers = (getattr(lib.optim, name) for lib in (sg, torch))
    ours, other = (o([t], lr=0.1, **options) for o, t in zip(optimizers, (p, q), strict=True))
    for g in grads:
        p.grad, q.grad = sg.tensor(g), torch.tensor(g)
        ours.step()
        other.step()
        np.testing.assert_allclose(p.data, q.detach().numpy(), rtol=1e-12)
