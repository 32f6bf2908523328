"""Optimizers against their formulas, for every layout of parameter and gradient."""

import copy
import pickle

import numpy as np
import pytest

import sparsegrad as sg
from formulas import ADAM, every, numbers, row_sparse
from sparsegrad import nn, optim

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
