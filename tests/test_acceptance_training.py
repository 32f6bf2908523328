"""What users of other libraries met when they trained on sparse data, with the right values."""

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad import nn, optim


def leaf(array):
    return sg.tensor(np.asarray(array, dtype=np.float64), requires_grad=True)


# --- AC-49: several queries that look at the same key ------------------------------------------


def attention(q, k, v, pattern):
    """softmax(q k^T at the pattern) v, with scores for the stored pairs only."""
    return sg.softmax(sg.sddmm(q, k, pattern), 1) @ v


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
def test_ac_49_the_gradient_of_a_key_is_the_sum_over_its_queries(fmt):
    draw = np.random.default_rng(0)
    where = sg.coo([[0, 0, 1, 1], [0, 1, 0, 2]], None, (2, 3)).to(fmt)  # both look at key 0
    q, k, v = (leaf(draw.standard_normal((n, 4))) for n in (2, 3, 3))
    upstream = draw.standard_normal((2, 4))

    def gradients(rows):
        for x in (q, k, v):
            x.grad = None
        g = np.zeros((2, 4))
        g[rows] = upstream[rows]
        attention(q, k, v, where).backward(sg.tensor(g))
        return k.grad.data.copy(), v.grad.data.copy()

    (first_k, first_v), (second_k, second_v) = gradients([0]), gradients([1])
    both_k, both_v = gradients([0, 1])
    assert first_k[0].any() and second_k[0].any()
    np.testing.assert_allclose(both_k, first_k + second_k, rtol=1e-12)
    np.testing.assert_allclose(both_v, first_v + second_v, rtol=1e-12)
    assert sg.gradcheck(lambda q, k, v: attention(q, k, v, where), (q, k, v))


@pytest.mark.parametrize("cls", [nn.GATConv, nn.GATv2Conv])
def test_ac_49_in_graph_attention(cls):
    """Two nodes that look at node 0 alone: what reaches its features is the sum."""
    A = sg.coo([[1, 2], [0, 0]], None, (3, 3))
    layer, x = cls(2, 3, self_loops=False, dtype=sg.float64), leaf(np.ones((3, 2)))
    parts = []
    for rows in ([1], [2], [1, 2]):
        x.grad = None
        layer(x, A)[sg.tensor(rows)].sum().backward()
        parts.append(x.grad.data[0].copy())
    np.testing.assert_allclose(parts[2], parts[0] + parts[1], rtol=1e-12)


# --- AC-51: padding and row-sparse gradients ---------------------------------------------------


def test_ac_51_a_batch_of_padding_alone():
    table = nn.Embedding(5, 1, padding_idx=0)
    before = table.weight.data.copy()
    table(sg.tensor([[0, 0]])).sum().backward()
    grad = table.weight.grad
    assert isinstance(grad, sg.SparseTensor) and grad.shape == (5, 1) and grad.nnz == 0
    for cls in (optim.SGD, optim.Adam, optim.Adagrad, optim.RowwiseAdagrad):
        cls([table.weight], lr=0.1).step()
    np.testing.assert_array_equal(table.weight.data, before)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_ac_51_bags_of_padding(mode):
    bag = nn.EmbeddingBag(5, 1, mode, padding_idx=0)
    out = bag(sg.tensor([[0, 0]]))
    out.sum().backward()
    assert out.tolist() == [[0.0]]
    assert bag.weight.grad.nnz == 0 and bag.weight.grad.shape == (5, 1)


def test_ac_51_padding_among_others_stays_what_it_is():
    table = nn.Embedding(5, 2, padding_idx=0)
    optimizer = optim.Adam([table.weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (table(sg.tensor([[0, 3, 0, 1]])) ** 2).sum().backward()
        assert rows(table) == [1, 3]
        optimizer.step()
    assert table.weight.data[0].tolist() == [0.0, 0.0]


def rows(table):
    """The rows that the gradient of a table stores."""
    return table.weight.grad.coalesce().pattern.coords[0].tolist()


# --- AC-52: every weight of a sparse linear layer counts ---------------------------------------


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
@pytest.mark.parametrize("classes", [2, 5])
def test_ac_52_every_weight_of_a_linear_layer_over_hashed_features(fmt, classes):
    """Features are a sparse batch: the classes must not read each other's weights."""
    draw = np.random.default_rng(1)
    hashed = draw.integers(0, 7, (4, 9))  # collisions: duplicates in a row
    rows_ = np.repeat(np.arange(4), 9)
    x = sg.coo([rows_, hashed.reshape(-1)], draw.standard_normal(36), (4, 7)).coalesce().to(fmt)
    assert set(hashed.reshape(-1)) == set(range(7))  # every feature occurs
    layer = nn.Linear(7, classes, dtype=sg.float64)
    y = draw.integers(0, classes, 4)
    held = layer.weight

    def loss(weight):
        layer._parameters["weight"] = weight
        return sg.cross_entropy(layer(x), y)

    assert sg.gradcheck(loss, held)
    loss(held).backward()
    moved = np.zeros_like(held.data)  # by hand, one weight at a time
    for place in np.ndindex(*held.shape):
        up, down = (leaf(held.data.copy()) for _ in range(2))
        up.data[place] += 1e-6
        down.data[place] -= 1e-6
        moved[place] = (loss(up).item() - loss(down).item()) / 2e-6
    np.testing.assert_allclose(held.grad.data, moved, atol=1e-8)
    assert (held.grad.data != 0).all()


def test_ac_52_every_stored_weight_of_a_sparse_layer():
    mask = sg.coo([[0, 0, 1, 2, 2], [0, 3, 1, 2, 3]], None, (3, 4))
    layer = nn.SparseLinear(4, 3, pattern=mask, dtype=sg.float64)
    x = sg.tensor(np.random.default_rng(2).standard_normal((6, 4)))
    held = layer.weight

    def loss(values):
        layer._parameters["weight"] = held.with_values(values)
        return (layer(x) ** 2).sum()

    assert sg.gradcheck(loss, held.values)
    layer._parameters["weight"] = held
    (layer(x) ** 2).sum().backward()
    assert held.grad.nnz == 5 and (held.grad.values.data != 0).all()


# --- AC-84: what momentum and weight decay do to rows without gradient -------------------------

SGDS = [
    {"lr": 0.1, "weight_decay": 0.1},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
]


def rows_at(optimizer, w, touched):
    """Steps in which `touched[t]` lists the rows with a gradient; the gradient depends on w."""
    for ids in touched:
        optimizer.zero_grad()
        optimizer.catch_up(w, ids)
        w.grad = sg.SparseTensor([ids], np.cos(w.data[ids]), w.shape)
        optimizer.step()


@pytest.mark.parametrize("options", SGDS)
@pytest.mark.parametrize("decay", ["touched", "all", "catch_up"])
def test_ac_84_rows_touched_at_steps_1_and_5(options, decay):
    start = np.random.default_rng(0).standard_normal((3, 2))
    touched = [[0], [1], [1], [1], [0], [1]]
    w, dense = leaf(start), leaf(start)
    lazy = optim.SGD([w], **options, sparse="lazy", decay=decay)
    rows_at(lazy, w, touched)
    if decay == "touched":  # row 0 takes two steps, one after the other; row 2 none
        expected, v, momentum = start[0].copy(), 0.0, options.get("momentum", 0.0)
        for _ in range(2):
            g = np.cos(expected) + options.get("weight_decay", 0) * expected
            v = momentum * v + g
            expected = expected - 0.1 * (g + momentum * v if options.get("nesterov") else v)
        np.testing.assert_allclose(w.data[0], expected, rtol=1e-12)
        np.testing.assert_array_equal(w.data[2], start[2])
        return
    rows_at(optim.SGD([dense], **options, sparse="dense"), dense, touched)
    if decay == "catch_up":
        assert not np.allclose(w.data, dense.data, atol=1e-6)
        lazy.flush()
    np.testing.assert_allclose(w.data, dense.data, atol=1e-6)


@pytest.mark.parametrize("decay", ["all", "catch_up"])
@pytest.mark.parametrize("cls", [optim.Adam, optim.Adagrad, optim.RowwiseAdagrad, optim.RMSprop])
def test_ac_84_modes_without_a_meaning_are_refused(cls, decay):
    with pytest.raises(ValueError, match=f"{cls.__name__}: decay='{decay}' has no meaning here"):
        cls([leaf([1.0])], decay=decay)
    with pytest.raises(ValueError, match="with sparse='dense' there are none"):
        optim.SGD([leaf([1.0])], sparse="dense", decay=decay)


def test_ac_84_after_thousands_of_missed_steps():
    """float32 rounds thousands of dense steps, catching up rounds once."""
    start = np.linspace(0.5, 1, 8, dtype="f4").reshape(4, 2)
    w, dense = (sg.tensor(start, requires_grad=True) for _ in range(2))
    options = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01}
    late = optim.SGD([w], **options, sparse="lazy", decay="catch_up")
    full = optim.SGD([dense], **options, sparse="dense")
    for t in range(2000):
        for x, o in ((w, late), (dense, full)):
            x.grad = sg.SparseTensor([[1 if t else 0]], np.ones((1, 2), "f4"), (4, 2))
            o.step()
    late.flush()
    np.testing.assert_allclose(w.data[[0, 2, 3]], dense.data[[0, 2, 3]], atol=1e-5)


# --- AC-90: clipping sparse gradients ----------------------------------------------------------


def duplicated():
    w = sg.zeros(4, 1, requires_grad=True)
    (sg.take(w, [2, 2]) * sg.tensor([[3.0], [4.0]])).sum().backward()
    assert w.grad.nnz == 2
    return w


def test_ac_90_the_norm_is_taken_after_summing_duplicates():
    w = duplicated()
    assert nn.utils.clip_grad_norm_([w], 100.0).item() == 7  # not 5
    w = duplicated()
    assert nn.utils.clip_grad_norm_([w], 1.0).item() == 7
    assert isinstance(w.grad, sg.SparseTensor)
    np.testing.assert_allclose(w.grad.to_dense().data.T, [[0, 0, 1, 0]], rtol=1e-5)


def test_ac_90_values_are_clipped_after_summing_duplicates():
    w = duplicated()
    nn.utils.clip_grad_value_([w], 5.0)
    assert w.grad.to_dense().data.T.tolist() == [[0.0, 0.0, 5.0, 0.0]]


def test_ac_90_dense_and_sparse_gradients_share_one_norm():
    w, b = duplicated(), sg.zeros(2, requires_grad=True)
    b.grad = sg.tensor([24.0, 0.0])
    assert nn.utils.clip_grad_norm_([w, b], 5.0).item() == 25
    np.testing.assert_allclose(b.grad.data, [4.8, 0], rtol=1e-5)
    np.testing.assert_allclose(w.grad.to_dense().data[2], 1.4, rtol=1e-5)


# --- AC-91: a million ids ----------------------------------------------------------------------


@pytest.mark.parametrize("cls", [optim.Adagrad, optim.RowwiseAdagrad])
def test_ac_91_a_million_ids_of_a_few_thousand_rows(cls):
    """Each row moves once, by the sum of all that its ids say; the others do not move."""
    draw = np.random.default_rng(0)
    ids = np.minimum(draw.zipf(1.3, 10**6), 20_000) - 1
    factor = draw.standard_normal((10**6, 2))
    table = leaf(np.ones((30_000, 2)))
    optimizer = cls([table], lr=0.1)
    with sg.densify(budget=0, on_exceed="raise"):
        (table.take(sg.tensor(ids)) * sg.tensor(factor)).sum().backward()
        optimizer.step()
    g = np.stack([np.bincount(ids, factor[:, j], 30_000) for j in range(2)], 1)
    size = np.abs(g) if cls is optim.Adagrad else np.sqrt((g**2).mean(1, keepdims=True))
    expected = 1 - 0.1 * g / (size + 1e-10)
    np.testing.assert_allclose(table.data, np.where(g == 0, 1, expected), rtol=1e-6)
    assert (table.data[20_000:] == 1).all() and (table.data[0] != 1).all()


# --- AC-98: sparse targets ---------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
def test_ac_98_cross_entropy_with_sparse_targets(fmt):
    x = np.random.default_rng(0).standard_normal((2, 5))
    soft = np.array([[0, 0.25, 0, 0.75, 0], [0.5, 0, 0, 0.2, 0.3]])
    target = sg.tensor(soft).to_sparse(fmt)
    log_probs = x - np.log(np.exp(x).sum(1, keepdims=True))
    sparse_x, dense_x = leaf(x), leaf(x)
    for logits, given in ((sparse_x, target), (dense_x, sg.tensor(soft))):
        loss = nn.CrossEntropyLoss(reduction="sum")(logits, given)
        np.testing.assert_allclose(loss.item(), -(soft * log_probs).sum(), rtol=1e-12)
        loss.backward()
    np.testing.assert_allclose(sparse_x.grad.data, np.exp(log_probs) - soft, rtol=1e-12)
    np.testing.assert_allclose(sparse_x.grad.data, dense_x.grad.data, rtol=1e-12)
