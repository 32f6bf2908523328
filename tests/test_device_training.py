"""Layers, losses and optimizers on a device give what they give on the CPU."""

import copy

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad import nn, optim
from sparsegrad.recipes import (
    infer_graphchallenge,
    train_lightgcn,
    train_logreg,
    train_mf,
    train_sparse_mlp,
)

pytestmark = [
    pytest.mark.device,
    pytest.mark.filterwarnings("ignore::sparsegrad.SparseEfficiencyWarning"),
]

IDS = np.array([1, 2, 0, 3])


def graph():
    return sg.coo([[0, 1, 2, 2], [1, 0, 1, 2]], np.array([1.0, 2.0, 3.0, 0.5], "f4"), (3, 3))


def features(n=3, k=2):
    return sg.tensor(np.random.default_rng(0).standard_normal((n, k)), dtype=sg.float32)


def moved(value, device):
    return value.to(device) if isinstance(value, (sg.Tensor, sg.SparseTensor)) else value


def host(t):
    t = t.to_dense() if isinstance(t, sg.SparseTensor) else t
    return t.detach().cpu().data


GRAPHS = (features(), graph())
LAYERS = [
    pytest.param(lambda: nn.GATConv(2, 2, 2), GRAPHS, id="gat"),
    pytest.param(lambda: nn.GATv2Conv(2, 2), GRAPHS, id="gatv2"),
    pytest.param(lambda: nn.SAGEConv(2, 2), GRAPHS, id="sage"),
    pytest.param(lambda: nn.SAGEConv(2, 2, "max"), GRAPHS, id="sage-max"),
    pytest.param(lambda: nn.GINConv(nn.Linear(2, 2)), GRAPHS, id="gin"),
    pytest.param(lambda: nn.Embedding(5, 2, 0, max_norm=1.0), (sg.tensor(IDS),), id="embedding"),
    *(
        pytest.param(
            lambda mode=mode: nn.EmbeddingBag(5, 2, mode, 0),
            (sg.tensor(IDS), sg.tensor([0, 2])),
            id=f"bag-{mode}",
        )
        for mode in ("sum", "mean", "max")
    ),
    pytest.param(lambda: nn.EmbeddingBag(5, 2), (IDS, [0, 2]), id="bag-of-host-numbers"),
    pytest.param(lambda: nn.LayerNorm(2), (features(),), id="layer-norm"),
    pytest.param(lambda: nn.BatchNorm1d(2), (features(),), id="batch-norm"),
    pytest.param(lambda: nn.SparseLinear(2, 3, 1.0), (features(),), id="sparse-linear"),
]


@pytest.mark.parametrize(("make", "args"), LAYERS)
def test_layers(device, make, args):
    here = make()
    there = copy.deepcopy(here).to(device)
    expected, found = here(*args), there(*(moved(a, device) for a in args))
    assert str(found.device).startswith("cuda")
    np.testing.assert_allclose(host(found), host(expected), rtol=1e-5, atol=1e-6)
    for out in (expected, found):
        (out * out).sum().backward()
    for p, q in zip(here.parameters(), there.parameters(), strict=True):
        np.testing.assert_allclose(host(q.grad), host(p.grad), rtol=1e-4, atol=1e-5)


SOFT = sg.tensor([[0.0, 1.0], [0.5, 0.0], [0.0, 2.0]])
LOSSES = [
    pytest.param(
        nn.CrossEntropyLoss([1.0, 2.0], 1), (features(), sg.tensor([0, 1, 0])), id="classes"
    ),
    pytest.param(nn.CrossEntropyLoss(), (features(), SOFT.to_sparse()), id="sparse-targets"),
    pytest.param(nn.MSELoss(), (graph(), graph() * 2), id="pattern"),
    pytest.param(nn.BCEWithLogitsLoss(), (features(), SOFT), id="bce"),
    pytest.param(nn.BPRLoss(), (features(), SOFT), id="bpr"),
]


@pytest.mark.parametrize(("loss", "args"), LOSSES)
def test_losses(device, loss, args):
    there = copy.deepcopy(loss).to(device)
    found = there(*(moved(a, device) for a in args)).item()
    assert found == pytest.approx(loss(*args).item(), rel=1e-5)


OPTIMIZERS = [
    pytest.param(optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, id="sgd"),
    pytest.param(
        optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "decay": "catch_up"},
        id="sgd-catch-up",
    ),
    pytest.param(optim.Adam, {"per_row_step": True}, id="adam"),
    pytest.param(optim.AdamW, {"sparse": "lazy", "decay": "all"}, id="adamw"),
    pytest.param(optim.Adagrad, {"sparse": "dense"}, id="adagrad"),
    pytest.param(optim.RowwiseAdagrad, {}, id="rowwise-adagrad"),
    pytest.param(optim.RMSprop, {"centered": True, "momentum": 0.5}, id="rmsprop"),
]


@pytest.mark.parametrize(("cls", "options"), OPTIMIZERS)
def test_optimizers(device, cls, options):
    grads = [
        sg.SparseTensor([[1, 1, 3]], np.arange(1, 7, dtype="f4").reshape(3, 2), (4, 2)),
        features(4),
        sg.coo([[2], [1]], np.array([3.0], "f4"), (4, 2)),
    ]

    def trained(where):
        w = nn.Parameter(features(4).to(where))
        optimizer, ema = cls([w], **options), optim.EMA([w], 0.5)
        for g in grads:
            w.grad = g.to(where)
            norm = nn.utils.clip_grad_norm_([w], 3.0)
            nn.utils.clip_grad_value_([w], 2.0)
            optimizer.catch_up(w, [0, 1])
            optimizer.step()
            ema.update()
        optimizer.flush()
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.step()
        return host(w), norm.item(), host(ema.shadows[0])

    for found, expected in zip(trained(device), trained("cpu"), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_state_follows_the_pattern(device):
    def trained(where):
        A = nn.Parameter(graph().coalesce().to(where))
        optimizer = optim.Adam([A], lr=0.1)
        target = sg.coo([[0, 0, 2], [0, 1, 1]], np.ones(3, "f4"), (3, 3)).to(where)
        for change in (False, True):
            if change:
                optimizer.repattern_(A, target)
            (A @ features().to(where)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return host(A)

    np.testing.assert_allclose(trained(device), trained("cpu"), rtol=1e-5)


# --- recipes -----------------------------------------------------------------------------------

CHOICES = sg.data.interactions_sbm(n_users=12, n_items=10, groups=2, degree=6)
ROWS = sg.data.bag_of_words(n=30, n_features=8, words=3)
RECIPES = {
    "lightgcn": lambda **k: train_lightgcn(CHOICES, dim=2, negatives=4, batch=32, epochs=2, **k),
    "mf": lambda **k: train_mf(CHOICES, dim=2, batch=32, epochs=2, **k),
    "logreg": lambda **k: train_logreg(ROWS, epochs=3, **k),
    "sparse-mlp": lambda **k: train_sparse_mlp(ROWS, hidden=4, density=0.5, epochs=2, **k),
    "graphchallenge": lambda **k: infer_graphchallenge(
        sg.data.sparse_network(neurons=16, layers=2, fan=4, images=10), **k
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes(device, name):
    expected, found = RECIPES[name](), RECIPES[name](device=device)
    for a, b in zip(found.history, expected.history, strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-3)
    assert found.test == pytest.approx(expected.test, abs=0.1)
