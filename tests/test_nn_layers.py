"""Embeddings, normalisation, sparse linear layers, activations, containers, hooks."""

import copy
import pickle

import numpy as np
import pytest

import sparsegrad as sg
from modules import as_function, dense, rng, sparse
from sparsegrad import nn

# --- embedding ---------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [[1, 4, 1], [[0, 2], [2, 2]], 3, np.zeros((0, 2), int)])
@pytest.mark.parametrize("sparse_grad", [True, False])
@pytest.mark.parametrize("padding", [None, 2, -3])
def test_embedding(index, sparse_grad, padding):
    table = nn.Embedding(5, 3, padding, sparse=sparse_grad, dtype=sg.float64)
    out = table(sg.tensor(index))
    np.testing.assert_array_equal(out.detach().data, table.weight.data[np.asarray(index)])
    upstream = rng(1).standard_normal(out.shape)
    out.backward(sg.tensor(upstream))
    expected = np.zeros((5, 3))
    np.add.at(expected, np.asarray(index), upstream)
    if padding is not None:
        assert not table.weight.data[2].any()
        expected[2] = 0
    grad = table.weight.grad
    assert isinstance(grad, sg.SparseTensor) == sparse_grad
    np.testing.assert_allclose((grad.to_dense() if sparse_grad else grad).data, expected)
    if padding is None:  # a finite difference would see the padding row
        assert sg.gradcheck(lambda w: with_weight(table, w, sg.tensor(index)), table.weight)


@pytest.mark.parametrize("sparse_grad", [True, False])
@pytest.mark.parametrize("lead", [(), (40,), (3, 2), (0,)])
def test_a_collection_is_its_tables_side_by_side(sparse_grad, lead):
    """Values to the bit, gradients and three steps of an optimizer as far as sums round alike."""
    sizes = [(50, 16), (7, 1), (300, 4)]
    together = nn.EmbeddingCollection(sizes, sparse=sparse_grad)
    apart = nn.EmbeddingCollection(sizes, sparse=sparse_grad)
    apart.load_state_dict(together.state_dict())
    assert [*together.state_dict()] == [f"embeddings.{f}.weight" for f in range(3)]
    optimizers = [sg.optim.Adam(m.parameters(), lr=0.1) for m in (together, apart)]
    for step in range(3):
        ids = np.stack([rng(step).integers(0, n, lead) for n, _ in sizes], -1)
        found = [
            together(ids),
            sg.cat([t(ids[..., f]) for f, t in enumerate(apart.embeddings)], -1),
        ]
        np.testing.assert_array_equal(found[0].detach().data, found[1].detach().data)
        for out, optimizer in zip(found, optimizers, strict=True):
            optimizer.zero_grad()
            (out**2).sum().backward()
        for a, b in zip(together.parameters(), apart.parameters(), strict=True):
            assert isinstance(a.grad, sg.SparseTensor) == sparse_grad
            a, b = ((p.grad.to_dense() if sparse_grad else p.grad).data for p in (a, b))
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        for optimizer in optimizers:
            optimizer.step()
        for a, b in zip(together.parameters(), apart.parameters(), strict=True):
            np.testing.assert_allclose(a.data, b.data, rtol=1e-4)


def test_a_table_for_two_columns_gets_the_gradients_of_both():
    table = sg.ones(5, 2, requires_grad=True)
    sg.nn.functional.embedding_collection([[1, 1], [1, 4]], [table, table]).sum().backward()
    np.testing.assert_array_equal(table.grad.to_dense().data[:, 0], [0, 3, 0, 0, 1])


def test_a_collection_starts_as_its_tables_do():
    sg.manual_seed(0)
    together = nn.EmbeddingCollection([(200, 50), (3, 2)])
    before = together.embeddings[1].weight.tolist()
    together.reset_parameters()
    w = together.embeddings[0].weight.data
    assert abs(w.mean()) < 0.05 and abs(w.std() - 1) < 0.05
    assert together.embeddings[1].weight.tolist() != before


def with_weight(table, weight, *args):
    """The table called with another weight, for gradcheck."""
    held, table._parameters["weight"] = table._parameters["weight"], weight
    try:
        return table(*args)
    finally:
        table._parameters["weight"] = held


def test_embedding_starts_as_in_pytorch():
    sg.manual_seed(0)
    w = nn.Embedding(200, 50).weight.data
    assert abs(w.mean()) < 0.05 and abs(w.std() - 1) < 0.05


@pytest.mark.parametrize("norm_type", [1.0, 2.0])
def test_max_norm(norm_type):
    table = nn.Embedding(4, 3, max_norm=0.5, norm_type=norm_type, dtype=sg.float64)
    with sg.no_grad():
        table.weight[3] = 1e-3
    before = table.weight.data.copy()
    out = table(sg.tensor([1, 3, 1])).detach().data
    norms = np.linalg.norm(out, norm_type, axis=1)
    np.testing.assert_allclose(norms[[0, 2]], 0.5, rtol=1e-6)
    np.testing.assert_array_equal(out[1], before[3])
    np.testing.assert_array_equal(table.weight.data[[0, 2]], before[[0, 2]])
    np.testing.assert_array_equal(table.weight.data[1], out[0])
    np.testing.assert_array_equal(table(sg.tensor([1])).detach().data[0], out[0])  # once is enough


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: nn.Embedding(3, 2, padding_idx=3), ValueError, "Embedding: padding_idx 3"),
        (lambda: nn.Embedding(3, 2, max_norm=0), ValueError, "max_norm"),
        (lambda: nn.Embedding(3, 2)(sg.tensor([3])), sg.PatternError, "index"),
        (lambda: nn.Embedding(3, 2, max_norm=1.0)(sg.tensor([-1])), sg.PatternError, "index"),
        (lambda: nn.Embedding(3, 2)(sg.tensor([0.5])), IndexError, "integers"),
        (lambda: nn.EmbeddingCollection([]), ValueError, "EmbeddingCollection: .* one table"),
        (
            lambda: nn.EmbeddingCollection([(3, 2), (4, 1)])([[0, 4]]),
            sg.PatternError,
            "embedding_collection: index of table 1: index 4 at position 0",
        ),
        (lambda: nn.EmbeddingBag(3, 2, mode="min"), ValueError, "mode"),
        (lambda: nn.EmbeddingBag(3, 2)(sg.tensor([1])), sg.ShapeError, "with offsets"),
        (lambda: nn.EmbeddingBag(3, 2)(sg.tensor([[1]]), [0]), sg.ShapeError, "bags already"),
        (lambda: nn.EmbeddingBag(3, 2)(sg.tensor([1]), [1]), sg.PatternError, "offsets must rise"),
        (lambda: nn.EmbeddingBag(3, 2)(sg.tensor([1]), [0, 2]), sg.PatternError, "at most 1"),
        (lambda: nn.EmbeddingBag(3, 2)(sg.tensor([1]), []), sg.PatternError, "offsets"),
        (lambda: nn.EmbeddingBag(3, 2)(sg.tensor([1]), [0.0]), sg.ShapeError, "integers"),
        (
            lambda: nn.EmbeddingBag(3, 2)(sg.tensor([1]), [0], sg.ones(1)),
            ValueError,
            "need mode='sum'",
        ),
        (
            lambda: nn.EmbeddingBag(3, 2, "sum")(sg.tensor([1]), [0], sg.ones(2)),
            sg.ShapeError,
            "per_sample_weights",
        ),
    ],
)
def test_embedding_errors(make, error, text):
    with pytest.raises(error, match=text):
        make()


def bags_by_hand(weight, index, offsets, mode, scale, padding):
    ends = [*offsets[1:], len(index)]
    out = np.zeros((len(offsets), weight.shape[1]))
    for i, (a, b) in enumerate(zip(offsets, ends, strict=True)):
        kept = [e for e in range(a, b) if index[e] != padding]
        if kept:
            rows = weight[index[kept]] * (1 if scale is None else scale[kept][:, None])
            out[i] = getattr(rows, mode)(0)
    return out


def test_weights_that_are_given():
    weight = sg.randn(5, 3)
    table = nn.Embedding.from_pretrained(weight, padding_idx=1)
    assert not table.weight.requires_grad and table.padding_idx == 1
    np.testing.assert_array_equal(table(sg.tensor([4, 1])).data, weight.data[[4, 1]])
    trained = nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum")
    trained(sg.tensor([[0, 2]])).sum().backward()
    assert trained.weight.grad.nnz == 2 and trained.mode == "sum"
    with pytest.raises(sg.ShapeError, match=r"Embedding: expected embeddings \(V, d\), got \(3,\)"):
        nn.Embedding.from_pretrained([1.0, 2.0, 3.0])


def test_bags_whose_last_offset_is_given():
    weight, index = sg.randn(6, 2), sg.tensor([1, 2, 4, 5, 4])
    plain = nn.EmbeddingBag.from_pretrained(weight)
    full = nn.EmbeddingBag.from_pretrained(weight, include_last_offset=True)
    expected = plain(index, [0, 2, 2]).data
    np.testing.assert_array_equal(full(index, [0, 2, 2, 5]).data, expected)
    with pytest.raises(sg.PatternError, match="offsets must rise from 0 to"):
        full(index, [0, 2, 2])


@pytest.mark.parametrize(
    ("mode", "weighted"), [("sum", False), ("sum", True), ("mean", False), ("max", False)]
)
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("sparse_grad", [True, False])
def test_embedding_bag(mode, weighted, padding, sparse_grad):
    bag = nn.EmbeddingBag(6, 3, mode, padding, sparse=sparse_grad, dtype=sg.float64)
    index, offsets = np.array([1, 5, 2, 1, 2, 4, 4]), np.array([0, 3, 3, 5])
    scale = sg.tensor(rng(2).random(7), requires_grad=True) if weighted else None
    expected = bags_by_hand(
        *(bag.weight.data, index, offsets, mode, scale.data if weighted else None, padding)
    )
    found = bag(sg.tensor(index), sg.tensor(offsets), scale)
    np.testing.assert_allclose(found.detach().data, expected, rtol=1e-12)
    full = index[:6].reshape(2, 3)
    weights = None if scale is None else sg.tensor(scale.data[:6].reshape(2, 3))
    rows = bags_by_hand(
        *(bag.weight.data, index[:6], [0, 3], mode, scale.data if weighted else None, padding)
    )
    np.testing.assert_allclose(bag(full, None, weights).detach().data, rows, rtol=1e-12)

    given = (bag.weight, *([scale] if weighted else []))
    assert sg.gradcheck(lambda w, *scale: with_weight(bag, w, index, offsets, *scale), given)
    found.sum().backward()
    grad = bag.weight.grad
    assert isinstance(grad, sg.SparseTensor) == sparse_grad
    stored = grad.to_dense().data if sparse_grad else grad.data
    assert not stored[[0, 3]].any() and (padding is None or not stored[2].any())


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_without_entries(mode):
    bag = nn.EmbeddingBag(4, 2, mode, padding_idx=0)
    assert not bag(np.zeros((3, 0), int)).detach().data.any()
    out = bag(sg.tensor([[0, 0], [1, 0]]))
    out.sum().backward()
    assert not out.detach().data[0].any()
    np.testing.assert_array_equal(out.detach().data[1], bag.weight.data[1])
    assert bag.weight.grad.coalesce().nnz == 1


def test_a_large_table_is_not_made_dense():
    bag = nn.EmbeddingBag(10**6, 2, "mean")
    with sg.densify(budget=0, on_exceed="raise"):
        bag(sg.tensor([[5, 999_999]])).sum().backward()
    assert bag.weight.grad.nnz == 2 and repr(bag) == "EmbeddingBag(1000000, 2, mode='mean')"


# --- normalisation -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 3), (3,), (2, 5, 3), (0, 3)])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(shape, affine):
    layer, x = nn.LayerNorm(3, eps=1e-3, elementwise_affine=affine, dtype=sg.float64), dense(*shape)
    if affine:
        nn.init.uniform_(layer.weight)
        nn.init.uniform_(layer.bias)
    m, v = x.data.mean(-1, keepdims=True), x.data.var(-1, keepdims=True)
    expected = (x.data - m) / np.sqrt(v + 1e-3)
    if affine:
        expected = expected * layer.weight.data + layer.bias.data
    np.testing.assert_allclose(layer(x).detach().data, expected, rtol=1e-11)
    fn, inputs = as_function(layer, x)
    assert sg.gradcheck(fn, inputs)
    assert sg.gradgradcheck(fn, inputs)


def test_layer_norm_over_several_dimensions():
    layer, x = nn.LayerNorm((5, 3), dtype=sg.float64), dense(2, 5, 3)
    nn.init.uniform_(layer.weight)
    m, v = x.data.mean((1, 2), keepdims=True), x.data.var((1, 2), keepdims=True)
    expected = (x.data - m) / np.sqrt(v + 1e-5) * layer.weight.data
    np.testing.assert_allclose(layer(x).detach().data, expected, rtol=1e-11)
    assert repr(layer) == "LayerNorm((5, 3), eps=1e-05)"
    with pytest.raises(sg.ShapeError, match=r"LayerNorm: expected x \(\.\.\., 5, 3\), got"):
        layer(dense(5, 2))


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5)])
@pytest.mark.parametrize("track", [True, False])
def test_batch_norm(shape, track):
    layer, x = nn.BatchNorm1d(3, track_running_stats=track, dtype=sg.float64), dense(*shape)
    nn.init.uniform_(layer.weight)
    nn.init.uniform_(layer.bias)
    flat = np.moveaxis(x.data, 1, -1).reshape(-1, 3)

    def by_hand(mean, variance):
        out = (np.moveaxis(x.data, 1, -1) - mean) / np.sqrt(variance + 1e-5)
        return np.moveaxis(out * layer.weight.data + layer.bias.data, -1, 1)

    batch = by_hand(flat.mean(0), flat.var(0))
    np.testing.assert_allclose(layer(x).detach().data, batch, rtol=1e-11)
    if track:
        np.testing.assert_allclose(layer.running_mean.data, 0.1 * flat.mean(0))
        np.testing.assert_allclose(layer.running_var.data, 0.9 + 0.1 * flat.var(0, ddof=1))
        assert layer.num_batches_tracked.item() == 1
    fn, inputs = as_function(layer, x)
    assert sg.gradcheck(fn, inputs)
    assert sg.gradgradcheck(fn, inputs)
    layer.eval()
    stored = layer.running_mean, layer.running_var
    expected = by_hand(*(s.data for s in stored)) if track else batch
    np.testing.assert_allclose(layer(x).detach().data, expected, rtol=1e-11)
    assert sg.gradcheck(*as_function(layer, x))
    twin = nn.BatchNorm1d(3, track_running_stats=track, dtype=sg.float64).eval()
    twin.load_state_dict(layer.state_dict())
    np.testing.assert_array_equal(twin(x).detach().data, layer(x).detach().data)


def test_batch_norm_of_all_batches():
    layer = nn.BatchNorm1d(2, momentum=None, affine=False, dtype=sg.float64)
    batches = rng().standard_normal((3, 5, 2))
    for batch in batches:
        layer(sg.tensor(batch))
    np.testing.assert_allclose(layer.running_mean.data, batches.mean((0, 1)))
    np.testing.assert_allclose(layer.running_var.data, batches.var(1, ddof=1).mean(0))


def test_norm_errors():
    with pytest.raises(sg.ShapeError, match="LayerNorm"):
        nn.LayerNorm(3)(sg.ones(2, 4))
    with pytest.raises(sg.ShapeError, match="BatchNorm1d"):
        nn.BatchNorm1d(3)(sg.ones(3))
    with pytest.raises(ValueError, match="more than one row"):
        nn.BatchNorm1d(3)(sg.ones(1, 3))
    with pytest.raises(ValueError, match="eps"):
        nn.LayerNorm(3, eps=-1)


# --- sparse linear -----------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 4), (4,), (2, 5, 4), (0, 4)])
def test_sparse_linear(shape, bias):
    mask = sparse(3, 4, density=0.5)
    layer, x = nn.SparseLinear(4, 3, pattern=mask, bias=bias, dtype=sg.float64), dense(*shape)
    W = layer.weight.detach().to_dense().data
    np.testing.assert_array_equal(W != 0, mask.to_dense().data != 0)
    expected = x.data @ W.T + (layer.bias.data if bias else 0)
    np.testing.assert_allclose(layer(x).detach().data, expected, rtol=1e-12)
    fn, inputs = as_function(layer, x)
    assert sg.gradcheck(fn, inputs)
    assert sg.gradgradcheck(fn, inputs)


@pytest.mark.parametrize("bias", [True, False])
def test_sparse_linear_of_a_dense_layer(bias):
    linear, x = nn.Linear(6, 5, bias=bias, dtype=sg.float64), dense(4, 6)
    pruned = nn.SparseLinear.from_linear(linear, 0.4)
    before = linear.weight.detach().numpy().copy()
    least = np.sort(np.abs(before).ravel())[-12]
    np.testing.assert_array_equal(
        pruned.weight.detach().to_dense(), np.where(np.abs(before) >= least, before, 0)
    )
    whole = nn.SparseLinear.from_linear(linear, 1)
    np.testing.assert_allclose(whole(x).detach(), linear(x).detach(), rtol=1e-12)
    optimizer = sg.optim.SGD(pruned.parameters(), lr=0.1)
    pruned(x).sum().backward()
    optimizer.step()
    np.testing.assert_array_equal(linear.weight.detach(), before)  # which is a copy
    assert pruned.weight.nnz == 12 and (pruned.bias is None) == (not bias)
    assert nn.SparseLinear.from_linear(linear, 0).weight.nnz == 0
    with pytest.raises(TypeError, match="SparseLinear: expected a Linear, got SparseLinear"):
        nn.SparseLinear.from_linear(pruned)
    with pytest.raises(ValueError, match="density must lie in"):
        nn.SparseLinear.from_linear(linear, 1.5)


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
def test_sparse_linear_of_a_sparse_input(fmt):
    x = sparse(6, 4, fmt, requires_grad=True)
    layer = nn.SparseLinear(4, 3, density=0.6, dtype=sg.float64)
    np.testing.assert_allclose(
        layer(x).detach().data, layer(x.detach().to_dense()).detach().data, rtol=1e-12
    )
    assert sg.gradcheck(*as_function(layer, x))


def test_sparse_linear_starts_by_the_entries_of_a_row():
    sg.manual_seed(0)
    mask = sg.coo([np.r_[np.zeros(4, int), np.ones(400, int)], np.r_[:4, :400]], None, (3, 400))
    layer = nn.SparseLinear(400, 3, pattern=mask)
    values = np.abs(layer.weight.values.data)
    assert values[:4].max() <= 0.5 and 0.04 < values[4:].max() <= 0.05
    assert nn.SparseLinear(10, 4, density=0.0)(sg.ones(2, 10)).shape == (2, 4)


def test_sparse_linear_trains_its_entries_only_and_regrows():
    sg.manual_seed(0)
    layer = nn.SparseLinear(6, 2, pattern=sg.coo([[0, 1, 1], [0, 2, 5]], None, (2, 6)), bias=False)
    optimizer = sg.optim.Adam(layer.parameters(), lr=0.05)
    x = sg.randn(50, 6)
    target = x @ sg.tensor([[2.0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, -3]]).T

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(layer(x), target)
            loss.backward()
            optimizer.step()
        return loss.item()

    assert train(200) < 1e-3
    np.testing.assert_allclose(layer.weight.values.data, [2, 1, -3], atol=0.05)
    optimizer.repattern_(layer.weight, sg.csr([0, 1, 3], [0, 2, 4], None, (2, 6)))
    assert train(1) > 1 and layer.weight.nnz == 3


def test_sparse_linear_errors():
    with pytest.raises(sg.ShapeError, match=r"SparseLinear: expected x \(\.\.\., 4\)"):
        nn.SparseLinear(4, 3)(sg.ones(2, 5))
    with pytest.raises(sg.ShapeError, match=r"expected a pattern \(3, 4\), got \(4, 3\)"):
        nn.SparseLinear(4, 3, pattern=sparse(4, 3))
    with pytest.raises(TypeError, match="pattern"):
        nn.SparseLinear(4, 3, pattern=[[1]])
    with pytest.raises(ValueError, match="density"):
        nn.SparseLinear(4, 3, density=2)


# --- activations, containers, hooks ------------------------------------------------------------

ACTIVATIONS = [
    (nn.ReLU(), sg.relu),
    (nn.LeakyReLU(0.2), lambda x: sg.leaky_relu(x, 0.2)),
    (nn.ELU(0.5), lambda x: sg.elu(x, 0.5)),
    (nn.GELU("tanh"), lambda x: sg.gelu(x, "tanh")),
    (nn.SiLU(), sg.silu),
    (nn.Tanh(), sg.tanh),
    (nn.Identity(3, foo=1), lambda x: x),
    (nn.Sigmoid(), sg.sigmoid),
    (nn.Softplus(2.0), lambda x: sg.softplus(x, 2.0)),
    (nn.Softmax(1), lambda x: sg.softmax(x, 1)),
    (nn.LogSoftmax(1), lambda x: sg.log_softmax(x, 1)),
]


@pytest.mark.parametrize(("module", "fn"), ACTIVATIONS)
def test_activations(module, fn):
    x = dense(4, 3)
    np.testing.assert_array_equal(module(x).detach().data, fn(x).detach().data)
    assert sg.gradcheck(module, x)
    assert repr(module).startswith(type(module).__name__)


@pytest.mark.parametrize("module", [m for m, _ in ACTIVATIONS[:7]])
def test_activations_keep_the_pattern(module):
    A = sparse(4, 5)
    assert module(A).pattern is A.pattern


def test_module_list():
    layers = nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])
    layers.append(nn.Linear(2, 1)).extend([nn.Tanh()])
    layers.insert(1, nn.Dropout())
    assert [type(m).__name__ for m in layers] == ["Linear", "Dropout", "ReLU", "Linear", "Tanh"]
    assert len(layers) == 5 and isinstance(layers[1:3], nn.ModuleList) and len(layers[1:3]) == 2
    layers[-1] = nn.ReLU()
    assert repr(layers[4]) == "ReLU()"
    assert list(layers.state_dict()) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    with pytest.raises(TypeError, match="Module"):
        layers.append(3)
    with pytest.raises(NotImplementedError, match="ModuleList"):
        layers(1)


def test_module_dict():
    held = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Linear(1, 1)})
    held["a"] = nn.Tanh()
    assert list(held.keys()) == ["a", "b"] and len(held) == 2 and "c" not in held
    assert [type(m).__name__ for m in held.values()] == ["Tanh", "Linear"]
    assert dict(held.items())["b"] is held["b"]
    del held["a"]
    assert list(held) == ["b"] and list(held.state_dict()) == ["b.weight", "b.bias"]
    with pytest.raises(KeyError):
        held["keys"] = nn.ReLU()


def test_parameter_list():
    held = nn.ParameterList([nn.Parameter([1.0])]).append(nn.Parameter(sparse(2, 3).coalesce()))
    held[0] = nn.Parameter([5.0])
    assert len(held) == 2 and isinstance(held[1], sg.SparseTensor) and held[0].tolist() == [5.0]
    assert list(held.state_dict()) == ["0", "1"] and len(list(held)) == 2
    with pytest.raises(TypeError, match="Parameter"):
        held.append(sg.ones(2))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_everything_can_be_copied(copied):
    model = nn.ModuleList(
        [nn.Embedding(3, 2, 0), nn.BatchNorm1d(2), nn.SparseLinear(4, 2), nn.GATConv(2, 3)]
    )
    twin = copied(model)
    assert twin.load_state_dict(model.state_dict()) == ([], [])
    assert repr(twin) == repr(model)


def test_hooks():
    layer, seen = nn.Linear(2, 1, bias=False, dtype=sg.float64), []
    x = dense(3, 2)
    plain = layer(x).detach().data
    handles = [
        layer.register_forward_pre_hook(lambda m, args: args[0] * 2),
        layer.register_forward_hook(lambda m, args, out: out + 1),
        layer.register_forward_hook(lambda m, args, out: seen.append((m, args[0].shape))),
        layer.register_output_grad_hook(lambda m, g: g * 10),
    ]
    out = layer(x)
    np.testing.assert_allclose(out.detach().data, 2 * plain + 1)
    assert seen == [(layer, (3, 2))]
    out.sum().backward()
    np.testing.assert_allclose(x.grad.data, np.tile(20 * layer.weight.data, (3, 1)))
    for handle in handles:
        handle.remove()
    np.testing.assert_array_equal(layer(x).detach().data, plain)
    with layer.register_forward_hook(lambda m, args, out: 3):
        assert layer(x) == 3
