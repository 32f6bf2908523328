"""Graph layers against dense formulas."""

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg
from modules import as_function, dense, rng, sparse
from sparsegrad import nn


def graph(n=7, fmt="csr", seed=3, **options):
    A = sp.random_array((n, n), density=0.35, rng=rng(seed), format=fmt)
    return sg.from_scipy(A, **options)


def leaky(x):
    return np.where(x > 0, x, 0.2 * x)


def row_softmax(scores, edges):
    """Softmax over the edges (n, n) of scores (n, n); 0 where there is none."""
    e = np.where(edges, np.exp(scores), 0.0)
    total = e.sum(1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def gat_by_hand(layer, x, edges):
    h = (x @ layer.weight.data).reshape(len(x), layer.heads, -1)
    out = []
    for k in range(layer.heads):
        here, there = h[:, k] @ layer.left.data[k], h[:, k] @ layer.right.data[k]
        out.append(row_softmax(leaky(here[:, None] + there), edges) @ h[:, k])
    return np.stack(out, 1)


def gatv2_by_hand(layer, x, edges):
    here = (x @ layer.left.data).reshape(len(x), layer.heads, -1)
    there = (x @ layer.right.data).reshape(len(x), layer.heads, -1)
    both = leaky(here[:, None] + there[None])  # (n, n, heads, out)
    scores = (both * layer.attention.data).sum(-1)
    out = [row_softmax(scores[..., k], edges) @ there[:, k] for k in range(layer.heads)]
    return np.stack(out, 1)


LAYERS = [(nn.GATConv, gat_by_hand), (nn.GATv2Conv, gatv2_by_hand)]
both_layers = pytest.mark.parametrize(("cls", "by_hand"), LAYERS)


@both_layers
@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("loops", [True, False])
def test_attention(cls, by_hand, fmt, concat, loops):
    A, x = graph(fmt=fmt), dense(7, 3)
    layer = cls(3, 2, heads=2, concat=concat, self_loops=loops, dtype=sg.float64)
    nn.init.uniform_(layer.bias)
    edges = A.to_dense().data != 0
    expected = by_hand(layer, x.data, edges | np.eye(7, dtype=bool) if loops else edges)
    expected = expected.reshape(7, -1) if concat else expected.mean(1)
    found = layer(x, A).detach().data
    np.testing.assert_allclose(found, expected + layer.bias.data, rtol=1e-11)


@both_layers
def test_attention_gradients(cls, by_hand):
    A = graph()
    layer = cls(3, 2, heads=2, dtype=sg.float64)
    fn, inputs = as_function(layer, dense(7, 3))
    assert sg.gradcheck(lambda *args: fn(args[0], A, *args[1:]), inputs)
    assert sg.gradgradcheck(lambda *args: fn(args[0], A, *args[1:]), inputs)


@both_layers
def test_attention_of_sparse_features(cls, by_hand):
    A, x = graph(), sparse(7, 3, "csr")
    layer = cls(3, 2, dtype=sg.float64)
    np.testing.assert_allclose(
        layer(x, A).detach().data, layer(x.to_dense(), A).detach().data, rtol=1e-12
    )


@both_layers
def test_attention_sees_the_pattern_only(cls, by_hand):
    """Explicit zeros are edges, duplicates are one edge, values and their signs do not matter."""
    layer, x = cls(2, 2, self_loops=False, dtype=sg.float64), dense(3, 2)
    given = sg.coo([[0, 0, 1, 1], [1, 1, 0, 2]], np.array([5.0, -5.0, 0.0, 1.0]), (3, 3))
    plain = sg.coo([[0, 1, 1], [1, 0, 2]], None, (3, 3))
    np.testing.assert_array_equal(layer(x, given).detach().data, layer(x, plain).detach().data)
    np.testing.assert_array_equal(layer(x, plain).detach().data[2], layer.bias.data)


@both_layers
def test_attention_dropout(cls, by_hand):
    A, x = graph(20, seed=1), dense(20, 3)
    layer = cls(3, 4, heads=2, dropout=0.5, dtype=sg.float64)
    sg.manual_seed(0)
    first, second = layer(x, A).detach().data, layer(x, A).detach().data
    assert not np.array_equal(first, second)
    layer.eval()
    np.testing.assert_array_equal(layer(x, A).detach().data, layer(x, A).detach().data)


@both_layers
def test_attention_of_graphs_without_edges(cls, by_hand):
    layer = cls(3, 2, heads=2, self_loops=False)
    empty = sg.coo([[], []], [], (4, 4))
    np.testing.assert_array_equal(layer(sg.ones(4, 3), empty).detach().data, 0)
    assert layer(sg.zeros(0, 3), sg.coo([[], []], [], (0, 0))).shape == (0, 4)


@both_layers
def test_attention_of_a_million_nodes(cls, by_hand):
    n = 10**6
    A = sg.coo([[0, 1, n - 1], [1, 0, 5]], None, (n, n))
    layer = cls(2, 1, heads=2)
    with sg.densify(budget=0, on_exceed="raise"):
        layer(sg.ones(n, 2), A).sum().backward()
    assert layer.left.grad is not None


@both_layers
def test_attention_errors(cls, by_hand):
    name = cls.__name__
    with pytest.raises(ValueError, match=f"{name}: heads must be at least 1, got 0"):
        cls(2, 2, heads=0)
    with pytest.raises(ValueError, match=f"{name}: dropout"):
        cls(2, 2, dropout=2)
    with pytest.raises(sg.ShapeError, match=rf"{name}: expected x \(\.\.\., 2\)"):
        cls(2, 2)(sg.ones(3, 4), sg.coo([[0], [1]], None, (3, 3)))
    with pytest.raises(sg.ShapeError, match=r"A \(n, n\), or .*got \(3, 2\) and \(4, 4\)"):
        cls(2, 2)(sg.ones(3, 2), sg.coo([[0], [1]], None, (4, 4)))
    with pytest.raises(TypeError, match=f"{name}: A must be a SparseTensor"):
        cls(2, 2)(sg.ones(3, 2), sg.ones(3, 3))
    assert repr(cls(2, 2)).startswith(f"{name}(2, 2, heads=1")


# --- SAGE, GIN, LightGCN -----------------------------------------------------------------------


def aggregated(A, x, aggregate):
    dense_A = A.to_dense().data
    out = np.zeros_like(x)
    for i in range(len(dense_A)):
        stored = np.flatnonzero(dense_A[i])
        if stored.size:
            products = dense_A[i, stored, None] * x[stored]
            out[i] = getattr(products, aggregate)(0)
    return out


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
@pytest.mark.parametrize("aggregate", ["mean", "max", "sum"])
def test_sage(fmt, aggregate):
    A = graph(fmt=fmt).requires_grad_()
    layer, x = nn.SAGEConv(3, 2, aggregate, dtype=sg.float64), dense(7, 3)
    nn.init.uniform_(layer.bias)
    around = aggregated(A.detach(), x.data, aggregate) @ layer.neighbours.data
    expected = x.data @ layer.own.data + around + layer.bias.data
    np.testing.assert_allclose(layer(x, A).detach().data, expected, rtol=1e-11)
    fn, inputs = as_function(layer, x, A)
    assert sg.gradcheck(fn, inputs)
    assert sg.gradgradcheck(fn, inputs)


def test_sage_errors():
    with pytest.raises(ValueError, match="SAGEConv: aggregate"):
        nn.SAGEConv(2, 2, "median")
    with pytest.raises(sg.ShapeError, match="SAGEConv: expected x"):
        nn.SAGEConv(2, 2)(sg.ones(3, 2), sg.coo([[0], [1]], None, (4, 4)))


@pytest.mark.parametrize("train_eps", [True, False])
def test_gin(train_eps):
    A, x = graph().requires_grad_(), dense(7, 3)
    layer = nn.GINConv(nn.Linear(3, 2, dtype=sg.float64), 0.5, train_eps, dtype=sg.float64)
    expected = (1.5 * x.data + A.detach().to_dense().data @ x.data) @ layer.net.weight.data.T
    np.testing.assert_allclose(layer(x, A).detach().data, expected + layer.net.bias.data)
    assert ("eps" in dict(layer.named_parameters())) == train_eps
    assert "eps" in layer.state_dict()
    fn, inputs = as_function(layer, x, A)
    assert sg.gradcheck(fn, inputs)
    with pytest.raises(sg.ShapeError, match="GINConv"):
        layer(sg.ones(3, 3), A)


def test_light_gcn():
    A = nn.gcn_norm(graph(), self_loops=False)
    x = dense(7, 2)
    M = A.to_dense().data
    expected = (x.data + M @ x.data + M @ M @ x.data) / 3
    np.testing.assert_allclose(nn.LightGCN(2)(x, A).detach().data, expected, rtol=1e-12)
    assert nn.LightGCN(0)(x, A).detach().tolist() == x.detach().tolist()
    assert sg.gradcheck(nn.LightGCN(3), (x, A.detach().requires_grad_()))
    with pytest.raises(ValueError, match="layers"):
        nn.LightGCN(-1)


@pytest.mark.parametrize("cls", [nn.GCNConv, nn.SAGEConv])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_an_activation_in_the_layer(cls, bias, activation):
    A, x = graph(), dense(7, 3)
    layer = cls(3, 2, bias=bias, dtype=sg.float64, activation=activation)
    if bias:
        nn.init.uniform_(layer.bias)
    joined = layer(x, A)
    layer.activation = None
    apart = getattr(sg, activation)(layer(x, A))
    np.testing.assert_allclose(joined.detach().data, apart.detach().data, rtol=1e-12)
    upstream, parameters = dense(7, 2).detach(), list(layer.parameters())
    found = sg.grad(joined, [x, *parameters], upstream)
    for ours, expected in zip(found, sg.grad(apart, [x, *parameters], upstream), strict=True):
        np.testing.assert_allclose(ours.data, expected.data, rtol=1e-9, atol=1e-12)


def test_activations_are_named():
    assert repr(nn.GCNConv(3, 2, activation="relu")).endswith("activation='relu')")
    for cls in (nn.GCNConv, nn.SAGEConv):
        with pytest.raises(ValueError, match=f"{cls.__name__}: activation must be None or one of"):
            cls(3, 2, activation="rule")


@pytest.mark.parametrize(
    "layer", [nn.GCNConv(2, 3), nn.SAGEConv(2, 3), nn.GATConv(2, 3), nn.GINConv(nn.Linear(2, 3))]
)
def test_edges_are_no_matrix(layer):
    name = type(layer).__name__
    for edges in ([[0, 1], [1, 0]], sg.tensor([[0, 1], [1, 0]])):
        with pytest.raises(TypeError, match=rf"{name}: A\w* must be a SparseTensor, .*sg\.coo\("):
            layer(sg.ones(2, 2), edges)
    with pytest.raises(TypeError, match=rf"{name}: A\w* must be a SparseTensor, got Tensor$"):
        layer(sg.ones(2, 2), sg.ones(2, 2))
    if name != "GINConv":
        with pytest.raises(TypeError, match=f"{name}: x must be a tensor, got list"):
            layer([[1.0, 2.0]], sg.sparse_eye(1))


@pytest.mark.parametrize(
    "layer",
    [
        nn.GCNConv(3, 2, dtype=sg.float64),
        *(nn.SAGEConv(3, 2, how, dtype=sg.float64) for how in ("mean", "max", "sum")),
        nn.GATConv(3, 2, heads=2, dtype=sg.float64),
        nn.GATv2Conv(3, 2, heads=2, concat=False, dtype=sg.float64),
        nn.GINConv(nn.Linear(3, 2, dtype=sg.float64), 0.5, dtype=sg.float64),
    ],
)
def test_rows_of_the_first_nodes_alone(layer):
    A, x = graph(7), dense(7, 3)
    part = A[:4]
    np.testing.assert_allclose(layer(x, part).detach(), layer(x, A)[:4].detach(), rtol=1e-12)
    fn, inputs = as_function(layer, x, part)
    assert sg.gradcheck(fn, inputs)
    if not isinstance(layer, nn.GCNConv):  # which has no part of its own in x
        with pytest.raises(sg.ShapeError, match=r"m <= n, got \(4, 3\) and \(7, 4\)"):
            layer(dense(4, 3), A[:, :4])
