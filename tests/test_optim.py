"""Optimizers against their formulas, for every layout of parameter and gradient."""

import copy
import pickle

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad import nn, optim

SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
ADAM = {"lr": 0.1, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.01}


# --- the formulas, one element at a time -------------------------------------------------------


def sgd(p, grads, lr=0.1, momentum=0.0, weight_decay=0.0, nesterov=False, dampening=0.0):
    v = 0.0
    for t, g in enumerate(grads):
        g = g + weight_decay * p
        v = momentum * v + (1 - dampening if t else 1) * g
        p = p - lr * (g + momentum * v if nesterov else v)
    return p


def adam(p, grads, lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False):
    m = v = top = 0.0
    for t, g in enumerate(grads, 1):
        g = g + weight_decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        top = np.maximum(top, v) if amsgrad else v
        p = p - lr / (1 - betas[0] ** t) * m / (np.sqrt(top) / np.sqrt(1 - betas[1] ** t) + eps)
    return p


def adamw(p, grads, weight_decay=0.01, lr=0.1, **options):
    steps, before = [], p
    for t in range(len(grads)):  # Adam on the same gradients, its moves added to the decayed p
        moved = adam(before, grads[: t + 1], lr=lr, **options)
        steps.append(moved - adam(before, grads[:t], lr=lr, **options))
    for step in steps:
        p = p * (1 - lr * weight_decay) + step
    return p


def adagrad(p, grads, lr=0.1, lr_decay=0.0, weight_decay=0.0, start=0.0, eps=1e-10):
    s = start
    for t, g in enumerate(grads):
        g = g + weight_decay * p
        s = s + g * g
        p = p - lr / (1 + t * lr_decay) * g / (np.sqrt(s) + eps)
    return p


def rmsprop(p, grads, lr=0.1, alpha=0.99, weight_decay=0.0, momentum=0.0, centered=False):
    v = a = b = 0.0
    for g in grads:
        g = g + weight_decay * p
        v = alpha * v + (1 - alpha) * g * g
        a = alpha * a + (1 - alpha) * g
        b = momentum * b + g / (np.sqrt(v - a * a if centered else v) + 1e-8)
        p = p - lr * b
    return p


def upwards(formula):
    return lambda p, grads, maximize, **options: formula(p, [-g for g in grads], **options)


RMS = {"lr": 0.01, "alpha": 0.9, "momentum": 0.5, "weight_decay": 0.01, "centered": True}
CASES = [
    pytest.param(optim.SGD, sgd, {"lr": 0.1}, id="sgd"),
    pytest.param(optim.SGD, sgd, {"lr": 0.1, "weight_decay": 0.1}, id="sgd-decay"),
    pytest.param(optim.SGD, sgd, SGD, id="sgd-momentum"),
    pytest.param(optim.Adam, adam, {"lr": 0.1}, id="adam"),
    pytest.param(optim.Adam, adam, ADAM, id="adam-decay"),
    pytest.param(optim.SGD, sgd, SGD | {"nesterov": True}, id="sgd-nesterov"),
    pytest.param(optim.SGD, sgd, SGD | {"dampening": 0.4}, id="sgd-dampening"),
    pytest.param(optim.SGD, upwards(sgd), SGD | {"maximize": True}, id="sgd-maximize"),
    pytest.param(optim.AdamW, adamw, ADAM | {"weight_decay": 0.1}, id="adamw"),
    pytest.param(optim.Adam, adam, ADAM | {"betas": (0.8, 0.1), "amsgrad": True}, id="amsgrad"),
    pytest.param(optim.AdamW, upwards(adamw), ADAM | {"maximize": True}, id="adamw-maximize"),
    pytest.param(optim.Adagrad, adagrad, {"lr": 0.1}, id="adagrad"),
    pytest.param(
        optim.Adagrad,
        adagrad,
        {"lr": 0.1, "lr_decay": 0.5, "weight_decay": 0.1},
        id="adagrad-decay",
    ),
    pytest.param(optim.RMSprop, rmsprop, {"lr": 0.01}, id="rmsprop"),
    pytest.param(optim.RMSprop, rmsprop, RMS, id="rmsprop-centered"),
]
every = pytest.mark.parametrize(("cls", "formula", "options"), CASES)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def row_sparse(rows, values, shape):
    return sg.SparseTensor([rows], values, shape)


# --- dense -------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (0, 2), (70001,)])
def test_dense(cls, formula, options, shape):
    start, grads = numbers(*shape), numbers(4, *shape, seed=1)
    p = sg.tensor(start, requires_grad=True)
    optimizer = cls([p], **options)
    kept = p.data
    for g in grads:
        p.grad = sg.tensor(g)
        optimizer.step()
        np.testing.assert_array_equal(p.grad.data, g)  # the gradient is the user's
    assert p.data is kept
    np.testing.assert_allclose(p.data, formula(start, grads, **options), rtol=1e-12, atol=1e-13)


@every
def test_dense_that_is_not_contiguous(cls, formula, options):
    base = numbers(400, 300)
    p = sg.Tensor(base.copy().T, requires_grad=True)
    p.grad = sg.Tensor(np.broadcast_to(numbers(400, seed=2), (300, 400)))
    expected = formula(base.T, [p.grad.data], **options)
    cls([p], **options).step()
    np.testing.assert_allclose(p.data, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_dtypes_stay(dtype):
    p = sg.ones(3, dtype=dtype, requires_grad=True)
    optimizer = optim.Adam([p], lr=0.5, eps=1e-3)
    (p * p).sum().backward()
    optimizer.step()
    assert p.dtype == dtype and optimizer.state[p]["exp_avg"].dtype == dtype
    np.testing.assert_allclose(p.data, 0.5, rtol=2e-3)


def test_parameters_without_a_gradient_stay():
    p, q = sg.ones(2, requires_grad=True), sg.ones(2, requires_grad=True)
    optimizer = optim.Adam([p, q], weight_decay=1.0)
    p.sum().backward()
    optimizer.step()
    assert q.tolist() == [1.0, 1.0] and q not in optimizer.state


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


# --- sparse parameters -------------------------------------------------------------------------


@every
@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_ac_87_sparse_parameters(cls, formula, options, fmt, wrapped):
    made = sg.tensor(numbers(20, 10)).to_sparse(fmt)
    W = nn.Parameter(made) if wrapped else made.requires_grad_()
    start, x = W.values.data.copy(), sg.tensor(numbers(10, 4, seed=1))
    optimizer = cls([W], **options)
    grads = []
    for _ in range(3):
        optimizer.zero_grad()
        y = W @ x
        (y * y).sum().backward()
        grads.append(W.grad.values.data.copy())
        optimizer.step()
    assert W.pattern is made.pattern
    expected = formula(start, grads, **options)
    np.testing.assert_allclose(W.values.data, expected, rtol=1e-11, atol=1e-12)


def test_implicit_ones_get_memory_when_they_are_trained():
    A = sg.coo([[0, 1], [1, 0]], None, (2, 2), requires_grad=True)
    optimizer = optim.SGD([A], lr=0.25)
    (A @ sg.ones(2, 1)).sum().backward()
    optimizer.step()
    assert A.values.tolist() == [0.75, 0.75]


# --- groups, state, errors ---------------------------------------------------------------------


def test_ac_89_state_and_step_count():
    p = sg.tensor(numbers(3), requires_grad=True)
    optimizer = optim.Adam([p], **ADAM)
    for _ in range(3):
        p.grad = sg.ones(3, dtype=sg.float64)
        optimizer.step()
    held = optimizer.state_dict()
    assert held["state"][0]["step"] == 3
    modes = {"sparse": "auto", "decay": "touched", "per_row_step": False}
    modes |= {"amsgrad": False, "maximize": False}
    assert held["param_groups"] == [{"params": [0], **ADAM, **modes}]
    optimizer.state.clear()  # starts the bias correction anew
    q, other = sg.tensor(p.data, requires_grad=True), copy.deepcopy(ADAM)
    fresh = optim.Adam([q], **other)
    for x, o in ((p, optimizer), (q, fresh)):
        x.grad = sg.ones(3, dtype=sg.float64)
        o.step()
    np.testing.assert_array_equal(p.data, q.data)


@every
@pytest.mark.parametrize("sparse", [True, False])
def test_state_dict_continues_the_run(cls, formula, options, sparse):
    def gradient(i):
        g = numbers(2, 3, seed=10 + i)
        return row_sparse([0, 3], g, (4, 3)) if sparse else sg.tensor(numbers(4, 3, seed=i))

    def run(p, optimizer, steps):
        for i in steps:
            p.grad = gradient(i)
            optimizer.step()
        return p.data

    straight = sg.tensor(numbers(4, 3), requires_grad=True)
    expected = run(straight, cls([straight], **options), range(6))
    p = sg.tensor(numbers(4, 3), requires_grad=True)
    before = cls([p], **options)
    run(p, before, range(3))
    q = sg.tensor(p.data, requires_grad=True)
    after = cls([q], lr=99.0)
    after.load_state_dict(pickle.loads(pickle.dumps(before.state_dict())))
    np.testing.assert_array_equal(run(q, after, range(3, 6)), expected)


def test_load_state_dict_that_does_not_fit():
    p, q = sg.ones(3, requires_grad=True), sg.ones(4, requires_grad=True)
    ours, theirs = optim.Adam([p]), optim.Adam([q])
    q.grad = sg.ones(4)
    theirs.step()
    with pytest.raises(ValueError, match="exp_avg has shape"):
        ours.load_state_dict(theirs.state_dict())
    with pytest.raises(ValueError, match="groups"):
        ours.load_state_dict(optim.Adam([p, q]).state_dict())
    assert ours.state == {}


def test_groups():
    p, q = sg.ones(2, requires_grad=True), sg.ones(2, requires_grad=True)
    optimizer = optim.SGD([{"params": [p], "lr": 0.5}, {"params": iter([q])}], lr=0.1)
    (p.sum() + q.sum()).backward()
    optimizer.param_groups[1]["lr"] = 0.25
    optimizer.step()
    assert p.tolist() == [0.5, 0.5] and q.tolist() == [0.75, 0.75]
    assert "lr=0.25" in repr(optimizer)
    optimizer.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0.0, 0.0]
    optimizer.zero_grad()
    assert p.grad is None


def test_closure():
    p = sg.tensor([2.0], requires_grad=True)
    optimizer = optim.SGD([p], lr=0.25)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with sg.no_grad():
        assert optimizer.step(closure).item() == 4.0
    assert p.tolist() == [1.0]


def test_a_step_counts_as_an_in_place_change():
    p = sg.tensor([2.0], requires_grad=True)
    optimizer = optim.SGD([p], lr=0.1)
    y = (p * p).sum()
    y.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(sg.GraphError, match="changed in place"):
        y.backward()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda p: optim.SGD(p), TypeError, "iterable"),
        (lambda p: optim.SGD(sg.nn.Linear(1, 1)), TypeError, r"one Linear; see its parameters\(\)"),
        (lambda p: optim.SGD([]), ValueError, "no parameters"),
        (lambda p: optim.SGD([{"lr": 0.1}]), ValueError, "SGD: a group needs 'params', got"),
        (lambda p: optim.SGD([p, 3]), TypeError, "got int"),
        (lambda p: optim.SGD([p * 2]), sg.GraphError, "leaves"),
        (lambda p: optim.SGD([sg.tensor([1])]), sg.DtypeError, "int64"),
        (lambda p: optim.SGD([p, p]), ValueError, "twice"),
        (lambda p: optim.SGD([{"params": [p]}, {"params": [p]}]), ValueError, "twice"),
        (lambda p: optim.SGD([{"params": p, "speed": 1}]), ValueError, "unknown .*speed"),
        (lambda p: optim.SGD([p], lr=-1), ValueError, "lr must be >= 0, got -1"),
        (lambda p: optim.SGD([p], momentum=-0.5), ValueError, "momentum"),
        (lambda p: optim.SGD([p], nesterov=True), ValueError, "nesterov needs a momentum"),
        (lambda p: optim.SGD([p], sparse="rows"), ValueError, "sparse must be"),
        (lambda p: optim.SGD([p], decay="some"), ValueError, "decay must be"),
        (lambda p: optim.AdamW([p], betas=(0.9, 1.0)), ValueError, "AdamW: betas"),
        (lambda p: optim.Adagrad([p], lr_decay=-1), ValueError, "Adagrad: lr_decay"),
        (lambda p: optim.RowwiseAdagrad([p], eps=-1), ValueError, "RowwiseAdagrad: eps"),
        (lambda p: optim.RMSprop([p], alpha=1.0), ValueError, "alpha"),
        (lambda p: optim.RMSprop([p], momentum=-1.0), ValueError, "momentum"),
        (lambda p: optim.Adam([p], betas=(0.9, 1.0)), ValueError, "betas"),
        (lambda p: optim.Adam([p], eps=-1.0), ValueError, "eps"),
        (lambda p: optim.Adam([p], weight_decay=float("nan")), ValueError, "weight_decay"),
    ],
)
def test_bad_arguments(make, error, text):
    with pytest.raises(error, match=text):
        make(sg.ones(2, requires_grad=True))


@every
def test_training_lowers_the_loss(cls, formula, options):
    sg.manual_seed(0)
    x = sg.randn(64, 3)
    y = sg.tanh(x.sum(1, keepdim=True))  # what can be learnt
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = cls(model.parameters(), **(options | {"lr": 0.05}))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        (-loss if "maximize" in options else loss).backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]


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


# --- patterns that change ----------------------------------------------------------------------


@every
def test_state_follows_the_pattern(cls, formula, options):
    A = nn.Parameter(sg.coo([[0, 1, 2], [0, 1, 2]], np.array([1.0, 2.0, 3.0]), (3, 3)))
    optimizer = cls([A], **options)
    grads = [np.array([0.5, -1.0, 2.0]), np.array([3.0, 0.25, -2.0])]
    A.values.grad = sg.tensor(grads[0])
    optimizer.step()
    target = sg.coo([[0, 1, 2], [1, 1, 2]], None, (3, 3))  # (0, 0) goes, (0, 1) comes
    plan = optimizer.repattern_(A, target)
    assert plan.kept.tolist() == [False, True, True] and A.pattern is target.pattern
    A.values.grad = sg.tensor(grads[1])
    optimizer.step()
    kept = formula(np.array([2.0, 3.0]), [grads[0][1:], grads[1][1:]], **options)
    np.testing.assert_allclose(A.values.data[1:], kept, rtol=1e-12)
    for name in optimizer.slots(optimizer.param_groups[0]):
        assert optimizer.state[A][name].shape == (3,)


def test_patterns_that_changed_behind_the_back_of_the_optimizer():
    A = nn.Parameter(sg.coo([[0, 1], [0, 1]], [1.0, 2.0], (2, 2)))
    optimizer = optim.Adam([A])
    A.values.grad = sg.ones(2)
    optimizer.step()
    A.repattern_(sg.coo([[0], [0]], None, (2, 2)))
    A.values.grad = sg.ones(1)
    with pytest.raises(sg.ShapeError, match=r"optimizer\.repattern_"):
        optimizer.step()
    with pytest.raises(ValueError, match="not a parameter"):
        optimizer.repattern_(sg.coo([[0], [0]], [1.0], (2, 2)), A)
