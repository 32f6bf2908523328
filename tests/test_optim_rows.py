"""Optimizers and rows: row-sparse gradients, and rows that have none for a step, in every mode."""

import pickle

import numpy as np
import pytest

import sparsegrad as sg
from formulas import SGD, adam, every, numbers, row_sparse, sgd
from sparsegrad import optim

# --- row-sparse gradients ----------------------------------------------------------------------


@every
def test_sparse_equals_dense_where_every_row_is_stored(cls, formula, options):
    start, grads = numbers(4, 3), numbers(5, 4, 3, seed=1)
    p = sg.tensor(start, requires_grad=True)
    optimizer = cls([p], **options)
    for g in grads:
        p.grad = row_sparse([2, 0, 3, 1], g[[2, 0, 3, 1]], (4, 3))
        optimizer.step()
    np.testing.assert_allclose(p.data, formula(start, grads, **options), rtol=1e-12)


@every
def test_lazy_rows_stand_still(cls, formula, options):
    start = numbers(6, 2)
    p = sg.tensor(start, requires_grad=True)
    optimizer = cls([p], **options)
    p.grad = row_sparse([1, 4], numbers(2, 2, seed=1), (6, 2))
    optimizer.step()
    moved = p.data.copy()
    np.testing.assert_array_equal(moved[[0, 2, 3, 5]], start[[0, 2, 3, 5]])
    p.grad = row_sparse([2], numbers(1, 2, seed=2), (6, 2))
    optimizer.step()
    np.testing.assert_array_equal(p.data[[0, 1, 3, 4, 5]], moved[[0, 1, 3, 4, 5]])
    assert (p.data[2] != moved[2]).all()


@every
def test_ac_86_rows_whose_gradient_is_zero(cls, formula, options):
    """Lazy: they stand still, however the zeros are stored. Dense: momentum moves them on."""
    lazy, stored, dense = (sg.tensor(numbers(8, 2), requires_grad=True) for _ in range(3))
    optimizers = [cls([p], **options) for p in (lazy, stored, dense)]
    first = np.zeros((8, 2))
    first[3] = numbers(2, seed=4)
    for step in range(11):
        g = first if step == 0 else np.zeros((8, 2))
        lazy.grad = row_sparse([3] if step == 0 else [], g[3:4] if step == 0 else g[:0], (8, 2))
        stored.grad = row_sparse(np.arange(8), g, (8, 2))
        dense.grad = sg.tensor(g)
        for optimizer in optimizers:
            optimizer.step()
    np.testing.assert_array_equal(lazy.data, stored.data)
    start = numbers(8, 2)
    np.testing.assert_allclose(lazy.data[3], formula(start[3], [first[3]], **options))
    expected = formula(start[3], [first[3]] + [0.0] * 10, **options)
    np.testing.assert_allclose(dense.data[3], expected, rtol=1e-12)


@every
def test_ac_88_ac_62_duplicates_count_once(cls, formula, options):
    twice, once = (sg.ones(3, 2, dtype=sg.float64, requires_grad=True) for _ in range(2))
    optimizers = cls([twice], **options), cls([once], **options)
    for _ in range(3):
        twice.grad = row_sparse([1, 1], np.ones((2, 2)), (3, 2))
        once.grad = row_sparse([1], np.full((1, 2), 2.0), (3, 2))
        for optimizer in optimizers:
            optimizer.step()
    np.testing.assert_array_equal(twice.data, once.data)
    np.testing.assert_allclose(once.data[1], formula(np.ones(2), [2.0] * 3, **options))


@every
def test_ac_73_a_gradient_without_entries_changes_nothing(cls, formula, options):
    weight = sg.ones(5, 1, requires_grad=True)
    optimizer = cls([weight], **options)
    for _ in range(2):
        sg.embedding(weight, sg.tensor([[0, 0]]), padding_idx=0).sum().backward()
        assert weight.grad.nnz == 0
        optimizer.step()
    assert weight.tolist() == [[1.0]] * 5 and optimizer.state == {}


@every
def test_element_sparse_gradients(cls, formula, options):
    start = numbers(3, 4)
    p = sg.tensor(start, requires_grad=True)
    optimizer = cls([p], **options)
    grads = numbers(2, 2, seed=5)
    for a, b in grads:
        p.grad = sg.coo([[0, 2, 2], [1, 3, 3]], np.array([a, b, b]), (3, 4))
        optimizer.step()
    expected = start.copy()
    expected[0, 1] = formula(start[0, 1], grads[:, 0], **options)
    expected[2, 3] = formula(start[2, 3], 2 * grads[:, 1], **options)
    np.testing.assert_allclose(p.data, expected, rtol=1e-12)


@every
@pytest.mark.parametrize("width", [3, 64])  # NumPy, and kernels where they pay
def test_terms_of_several_backward_passes_are_not_merged_for_a_step(cls, formula, options, width):
    start = numbers(900, width)
    p = sg.tensor(start, requires_grad=True)
    optimizer = cls([p], **options)
    ids = np.random.default_rng(3).integers(0, 300, (2, 3, 250))
    grads = np.zeros((2, 900, width))
    for step in range(2):
        optimizer.zero_grad()
        for part in range(3):
            g = numbers(250, width, seed=10 * step + part)
            np.add.at(grads[step], ids[step, part], g)
            p.take(sg.tensor(ids[step, part])).backward(sg.tensor(g))
        optimizer.step()
        if cls is not optim.RMSprop:
            assert len(p._grad.parts) == 3
    touched = grads.any(axis=2)
    both, once = touched.all(axis=0), touched[0] & ~touched[1]
    expected = start.copy()
    expected[both] = formula(start[both], list(grads[:, both]), **options)
    expected[once] = formula(start[once], [grads[0, once]], **options)
    late = ~touched[0] & touched[1]  # bias correction and decay go by the optimizer's step
    same = both | once | ~(touched[0] | touched[1])
    np.testing.assert_allclose(p.data[same], expected[same], rtol=1e-10)
    assert (p.data[late] != start[late]).all()


@every
def test_ac_82_tied_weights(cls, formula, options):
    """An embedding that is also the output layer: one gradient, in either order."""
    start, ids = numbers(6, 3), sg.tensor([1, 4, 1])

    def trained(order, sparse):
        W = sg.tensor(start, requires_grad=True)
        optimizer = cls([W], **options)
        for _ in range(3):
            h = W.take(ids, sparse_grad=sparse)
            parts = (h * h).sum(), (W @ h.detach().T).sum()
            optimizer.zero_grad()
            (parts[order] + parts[1 - order]).backward()
            optimizer.step()
        return W.data

    np.testing.assert_allclose(trained(0, True), trained(0, False), rtol=1e-12)
    np.testing.assert_allclose(trained(1, True), trained(0, False), rtol=1e-12)


def test_ac_83_momentum_of_few_rows_stays_small():
    weight = sg.ones(100, 4, requires_grad=True)
    optimizer = optim.SGD([weight], lr=0.01, momentum=0.9)
    ids = sg.tensor(np.random.default_rng(0).integers(0, 50, 200))
    for _ in range(20):
        optimizer.zero_grad()
        weight.take(ids).sum().backward()
        optimizer.step()
        assert weight.grad.nnz <= 200
    assert set(optimizer.state[weight]) == {"step", "momentum_buffer"}
    assert optimizer.state[weight]["momentum_buffer"].shape == (100, 4)


def test_many_rows_of_many():
    """More than half of the rows: the gradient is stored on all, yet lazy rows stand still."""
    weight = sg.ones(8, 1, requires_grad=True)
    optimizer = optim.Adam([weight], lr=0.1, weight_decay=0.5)
    for ids in ([0, 1, 2], [3, 4, 5]):
        weight.take(sg.tensor(ids)).sum().backward()
    assert isinstance(weight.grad, sg.SparseTensor)
    optimizer.step()
    assert (weight.data[:6] < 1).all() and weight.data[6:].tolist() == [[1.0], [1.0]]


# --- rows without gradient, by name ------------------------------------------------------------


def gradients(kind, rows, values, shape):
    """The same gradient dense, by row, or by element."""
    full = np.zeros(shape)
    full[rows] = values
    if kind == "dense":
        return sg.tensor(full)
    if kind == "rows":
        return row_sparse(rows, values, shape)
    return sg.tensor(full).to_sparse()


@every
@pytest.mark.parametrize("sparse", ["lazy", "dense"])
def test_meaning_does_not_depend_on_the_type_of_the_gradient(cls, formula, options, sparse):
    start, shape = numbers(6, 3), (6, 3)
    found = []
    for kinds in (["dense"] * 4, ["rows"] * 4, ["cells"] * 4, ["dense", "rows", "cells", "dense"]):
        p = sg.tensor(start, requires_grad=True)
        optimizer = cls([p], **options, sparse=sparse)
        for t, kind in enumerate(kinds):
            p.grad = gradients(kind, [t, 5], numbers(2, 3, seed=t), shape)
            optimizer.step()
        found.append(p.data)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-12)
    row4, row0 = found[0][4], found[0][0]
    if sparse == "lazy":
        np.testing.assert_array_equal(row4, start[4])
        np.testing.assert_allclose(row0, formula(start[0], [numbers(2, 3)[0]], **options))
    else:
        zeros = [np.zeros(3)] * 3
        expected = formula(start[0], [numbers(2, 3)[0], *zeros], **options)
        np.testing.assert_allclose(row0, expected, rtol=1e-12)


def test_lazy_without_a_gradient_and_without_dimensions():
    p, x = sg.ones(3, 2, requires_grad=True), sg.tensor(2.0, requires_grad=True)
    optimizer = optim.Adam([p, x], sparse="lazy")
    p.grad, x.grad = sg.zeros(3, 2), sg.tensor(1.0)
    optimizer.step()
    assert p not in optimizer.state and x.item() < 2


def test_rowwise_adagrad():
    start, grads = numbers(5, 3), numbers(4, 2, 3, seed=1)
    for sparse in (True, False):
        p = sg.tensor(start, requires_grad=True)
        optimizer = optim.RowwiseAdagrad([p], lr=0.1)
        expected, s = start.copy(), np.zeros(5)
        for g in grads:
            p.grad = gradients("rows" if sparse else "dense", [1, 3], g, (5, 3))
            optimizer.step()
            s[[1, 3]] += (g * g).mean(1)
            expected[[1, 3]] -= 0.1 * g / (np.sqrt(s[[1, 3]]) + 1e-8)[:, None]
        np.testing.assert_allclose(p.data, expected, rtol=1e-12)
        assert optimizer.state[p]["sum"].shape == (5,)
        again = optim.RowwiseAdagrad([p])
        again.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
        np.testing.assert_allclose(again.state[p]["sum"].data, s)
    cells = sg.tensor(start, requires_grad=True)  # an element stands for its row
    cells.grad = sg.coo([[2], [1]], np.array([3.0]), (5, 3))
    optim.RowwiseAdagrad([cells], lr=0.1).step()
    np.testing.assert_allclose(cells.data[2, 1], start[2, 1] - 0.1 * np.sqrt(3))


@pytest.mark.parametrize("cls", [optim.RowwiseAdagrad, optim.Adam])
@pytest.mark.parametrize("shape", [(), (7,), (70000, 2), (0, 3)])
def test_state_by_row_in_blocks(cls, shape):
    options = {"per_row_step": True} if cls is optim.Adam else {}
    start, g = numbers(*shape), numbers(*shape, seed=1)
    p = sg.tensor(start, requires_grad=True)
    p.grad = sg.tensor(g)
    optimizer = cls([p], lr=0.1, **options)
    optimizer.step()
    if cls is optim.Adam:
        expected = adam(start, [g])
        assert (optimizer.state[p]["row_step"].data == 1).all()
    else:
        mean = (g * g).reshape(len(g), -1).mean(1) if g.ndim and g.size else g * g
        expected = start - 0.1 * g / (np.sqrt(mean).reshape(-1, *(1,) * (g.ndim - 1)) + 1e-8)
    np.testing.assert_allclose(p.data, expected.reshape(shape), rtol=1e-11)


def test_adam_with_a_step_count_a_row():
    start, grads = numbers(4, 2), numbers(3, 2, seed=1)
    p = sg.tensor(start, requires_grad=True)
    optimizer = optim.Adam([p], lr=0.1, per_row_step=True)
    for t, row in enumerate([0, 1, 1]):
        p.grad = row_sparse([row], grads[t : t + 1], (4, 2))
        optimizer.step()
    np.testing.assert_allclose(p.data[0], adam(start[0], grads[:1]), rtol=1e-12)
    np.testing.assert_allclose(p.data[1], adam(start[1], grads[1:]), rtol=1e-12)
    steps = optimizer.state[p]["row_step"]
    assert steps.dtype == sg.int64 and steps.tolist() == [1, 2, 0, 0]
    other = optim.Adam([p], per_row_step=True)
    other.load_state_dict(optimizer.state_dict())
    assert other.state[p]["row_step"].dtype == sg.int64


# --- decay of rows without gradient ------------------------------------------------------------

DECAYS = [
    pytest.param(optim.SGD, sgd, {"weight_decay": 0.1}, id="sgd"),
    pytest.param(optim.SGD, sgd, SGD, id="momentum"),
    pytest.param(optim.SGD, sgd, SGD | {"nesterov": True}, id="nesterov"),
]


@pytest.mark.parametrize(("cls", "formula", "options"), DECAYS)
@pytest.mark.parametrize("decay", ["all", "catch_up"])
@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize("kind", ["rows", "cells"])
def test_all_and_catch_up_equal_dense(cls, formula, options, decay, schedule, kind):
    """The loss depends on the rows it reads: they have to be up to date when they are read."""
    start, draw = numbers(9, 2), np.random.default_rng(3)
    p, q = (sg.tensor(start, requires_grad=True) for _ in range(2))
    late = cls([p], **options, sparse="lazy", decay=decay)
    dense = cls([q], **options, sparse="dense")
    for t in range(30):
        rows = np.unique(draw.integers(0, 8, 2))
        if schedule:
            late.param_groups[0]["lr"] = dense.param_groups[0]["lr"] = 0.1 / (1 + t)
        late.catch_up(p, sg.tensor(rows))
        np.testing.assert_allclose(p.data[rows], q.data[rows], rtol=1e-9)
        for x, o in ((p, late), (q, dense)):
            x.grad = gradients(kind, rows, np.tanh(x.data[rows] + t), (9, 2))
            o.step()
    if decay == "catch_up":
        assert not np.allclose(p.data[8], q.data[8])  # nobody has looked at it
        late.flush()
    np.testing.assert_allclose(p.data, q.data, rtol=1e-9)
    for name in late.moved[: len(late.idle(late.param_groups[0])) - 1]:
        np.testing.assert_allclose(late.state[p][name].data, dense.state[q][name].data, rtol=1e-9)


@pytest.mark.parametrize("decay", ["all", "catch_up"])
def test_adamw_decays_every_row(decay):
    start = numbers(5, 2)
    p, q = (sg.tensor(start, requires_grad=True) for _ in range(2))
    late = optim.AdamW([p], lr=0.1, weight_decay=0.5, sparse="lazy", decay=decay)
    touched = optim.AdamW([q], lr=0.1, weight_decay=0.5, sparse="lazy")
    for _ in range(4):
        for x, o in ((p, late), (q, touched)):
            x.grad = row_sparse([1], np.ones((1, 2)), (5, 2))
            o.step()
    late.flush()
    np.testing.assert_allclose(p.data[1], q.data[1], rtol=1e-12)
    np.testing.assert_allclose(p.data[[0, 2, 3, 4]], start[[0, 2, 3, 4]] * 0.95**4, rtol=1e-12)
    np.testing.assert_array_equal(q.data[0], start[0])


def test_catch_up_survives_saving_and_many_changes_of_the_rate(monkeypatch):
    monkeypatch.setattr("sparsegrad.optim.optimizer._MOST_RUNS", 5)
    start = numbers(6, 2)
    p, q = (sg.tensor(start, requires_grad=True) for _ in range(2))
    late, dense = optim.SGD([p], **SGD, decay="catch_up"), optim.SGD([q], **SGD, sparse="dense")
    for t in range(20):
        if t == 10:
            saved = pickle.loads(pickle.dumps(late.state_dict()))
            late = optim.SGD([p], lr=9.0)
            late.load_state_dict(saved)
        for x, o in ((p, late), (q, dense)):
            o.param_groups[0]["lr"] = 0.1 / (1 + t)
            x.grad = row_sparse([t % 3], np.ones((1, 2)), (6, 2))
            o.step()
        assert len(late.state[p]["runs"]) <= 5
    late.flush()
    np.testing.assert_allclose(p.data, q.data, rtol=1e-9)


def test_a_gradient_without_entries_still_decays():
    p = sg.ones(3, 1, dtype=sg.float64, requires_grad=True)
    for decay in ("all", "catch_up"):
        optimizer = optim.SGD([p], lr=0.5, weight_decay=1.0, decay=decay)
        p.grad = row_sparse([], np.zeros((0, 1)), (3, 1))
        optimizer.step()
        optimizer.flush()
    assert p.tolist() == [[0.25]] * 3
