"""Clipping, moving averages, schedules of the learning rate."""

import math
import pickle

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad import nn, optim
from sparsegrad.optim import lr_scheduler as lrs


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# --- clipping ----------------------------------------------------------------------------------


def mixed():
    """A dense, a row-sparse (duplicates) and a sparse-layout parameter, and their gradients."""
    w = sg.zeros(5, 3, dtype=sg.float64, requires_grad=True)
    e = sg.zeros(6, 2, dtype=sg.float64, requires_grad=True)
    A = nn.Parameter(sg.coo([[0, 1], [1, 0]], np.zeros(2), (2, 2)))
    w.grad = sg.tensor(numbers(5, 3))
    e.grad = sg.SparseTensor([[2, 4, 2]], numbers(3, 2, seed=1), (6, 2))
    A.values.grad = sg.tensor(numbers(2, seed=2))
    full = [w.grad.data.copy(), e.grad.to_dense().data, A.values.grad.data.copy()]
    return [w, e, A, sg.zeros(3, requires_grad=True)], full


def after(held):
    w, e, A, _ = held
    return [w.grad.data, e.grad.to_dense().data, A.values.grad.data]


@pytest.mark.parametrize("norm_type", [1, 2, 3.5, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 1e9, 0.0])
def test_clip_grad_norm(norm_type, max_norm):
    held, full = mixed()
    flat = np.concatenate([g.reshape(-1) for g in full])
    norm = np.linalg.norm(flat, norm_type)
    found = nn.utils.clip_grad_norm_(iter(held), max_norm, norm_type)
    assert found.shape == () and found.item() == pytest.approx(norm, rel=1e-12)
    scale = min(1.0, max_norm / (norm + 1e-6))
    for g, expected in zip(after(held), full, strict=True):
        np.testing.assert_allclose(g, expected * scale, rtol=1e-12)
    assert isinstance(held[1].grad, sg.SparseTensor)


def test_clip_grad_value():
    held, full = mixed()
    optim.clip_grad_value_(held, 0.3)
    for g, expected in zip(after(held), full, strict=True):
        np.testing.assert_allclose(g, np.clip(expected, -0.3, 0.3))
    assert isinstance(held[1].grad, sg.SparseTensor)


def test_clipping_a_gradient_that_others_hold():
    w = sg.tensor([1.0, 2.0], requires_grad=True)
    (w**3).sum().backward(create_graph=True)
    kept = w.grad
    optim.clip_grad_norm_(w, 1.0)
    assert w.grad.norm().item() == pytest.approx(1, rel=1e-5)
    kept.sum().backward()  # the graph of the second derivative is whole
    v = sg.ones(2, requires_grad=True)
    v.grad = sg.Tensor(np.broadcast_to(np.float32(3.0), (2,)))
    optim.clip_grad_value_(v, 1.0)
    assert v.grad.tolist() == [1.0, 1.0]
    e = sg.ones(3, 1, requires_grad=True)
    e.grad = given = sg.SparseTensor([[1]], [[4.0]], (3, 1))
    optim.clip_grad_value_(e, 1.0)
    assert e.grad.values.tolist() == [[1.0]] and given.values.tolist() == [[4.0]]


def test_clip_edges():
    assert optim.clip_grad_norm_([sg.ones(2, requires_grad=True)], 1.0).item() == 0
    w = sg.ones(4, dtype="float16", requires_grad=True)
    w.grad = sg.full((4,), 30000.0, dtype="float16")
    assert optim.clip_grad_norm_(w, 1.0).item() == pytest.approx(60000)
    assert w.grad.dtype == "float16"
    e = sg.ones(3, 1, requires_grad=True)
    e.grad = sg.SparseTensor([[]], np.zeros((0, 1), "f4"), (3, 1))
    assert optim.clip_grad_norm_(e, 1.0).item() == 0 and e.grad.nnz == 0
    w.grad = sg.tensor([1.0, math.nan, 2.0, 3.0], dtype="float16")
    assert math.isnan(optim.clip_grad_norm_(w, 1e9).item())
    w.grad = sg.tensor([1.0, math.inf, 2.0, 3.0], dtype="float16")
    with pytest.raises(sg.GraphError, match="norm of the gradients is inf"):
        optim.clip_grad_norm_(w, 1.0, error_if_nonfinite=True)
    assert w.grad.tolist()[2] == 2.0


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda w: optim.clip_grad_norm_(w, -1), ValueError, "max_norm must be >= 0, got -1"),
        (lambda w: optim.clip_grad_norm_(w, 1, 0), ValueError, "norm_type must be > 0"),
        (lambda w: optim.clip_grad_value_(w, -2), ValueError, "clip_value must be >= 0, got -2"),
        (lambda w: optim.clip_grad_norm_([3], 1), TypeError, "expected a tensor, got int"),
    ],
)
def test_clip_errors(call, error, text):
    with pytest.raises(error, match=text):
        call(sg.ones(2, requires_grad=True))


# --- moving averages ---------------------------------------------------------------------------


@pytest.mark.parametrize("warm_up", [False, True])
def test_ema(warm_up):
    w = sg.tensor(numbers(3), requires_grad=True)
    A = nn.Parameter(sg.coo([[0, 1], [1, 0]], numbers(2), (2, 2)))
    ema = optim.EMA([w, A], decay=0.9, warm_up=warm_up)
    expected = [w.data.copy(), A.values.data.copy()]
    for t in range(1, 6):
        with sg.no_grad():
            w.copy_(numbers(3, seed=t))
            A.values.copy_(numbers(2, seed=t))
        ema.update()
        d = min(0.9, (1 + t) / (10 + t)) if warm_up else 0.9
        for i, now in enumerate((w.data, A.values.data)):
            expected[i] = d * expected[i] + (1 - d) * now
    now = w.data.copy()
    with ema.averaged():
        np.testing.assert_allclose(w.data, expected[0])
        np.testing.assert_allclose(A.values.data, expected[1])
    np.testing.assert_array_equal(w.data, now)
    other = optim.EMA([w, A], decay=0.9)
    other.load_state_dict(pickle.loads(pickle.dumps(ema.state_dict())))
    other.copy_to()
    np.testing.assert_allclose(w.data, expected[0])
    assert other.step == 5
    other.remap(A, A.repattern_(sg.coo([[0, 0], [0, 1]], None, (2, 2))))
    np.testing.assert_allclose(other.shadows[1].data, [0, expected[1][0]])
    A.repattern_(sg.coo([[0], [0]], None, (2, 2)))
    with pytest.raises(sg.ShapeError, match=r"ema\.remap"):
        other.update()


def test_ema_gives_the_parameters_back_after_an_error():
    w = sg.ones(2, requires_grad=True)
    ema = optim.EMA([w], decay=0.5)
    w.data[...] = 3
    ema.update()
    with pytest.raises(RuntimeError), ema.averaged():
        raise RuntimeError
    assert w.tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match="decay"):
        optim.EMA([w], decay=1.0)
    with pytest.raises(ValueError, match="shapes"):
        ema.load_state_dict({"step": 1, "shadows": [sg.ones(3)]})


# --- schedules ---------------------------------------------------------------------------------


def sgd(lr=1.0, **options):
    params = [sg.ones(1, requires_grad=True), sg.ones(1, requires_grad=True)]
    return optim.SGD(
        [{"params": params[0]}, {"params": params[1], "lr": 10 * lr}], lr=lr, **options
    )


def rates(schedule, steps):
    out = []
    for _ in range(steps):
        out.append(schedule.get_last_lr())
        schedule.step()
    return np.array(out)


COS = [0.1 + 0.9 * (1 + math.cos(math.pi * t / 4)) / 2 for t in range(6)]
SCHEDULES = [
    pytest.param(lambda o: lrs.StepLR(o, 2, 0.5), [1, 1, 0.5, 0.5, 0.25, 0.25], id="step"),
    pytest.param(lambda o: lrs.LambdaLR(o, lambda t: 1 / (1 + t)), [1 / (1 + t) for t in range(6)]),
    pytest.param(lambda o: lrs.MultiStepLR(o, [4, 1], 0.5), [1, 0.5, 0.5, 0.5, 0.25, 0.25]),
    pytest.param(lambda o: lrs.ExponentialLR(o, 0.5), [0.5**t for t in range(6)]),
    pytest.param(
        lambda o: lrs.LinearLR(o, 0.5, total_iters=4), [0.5, 0.625, 0.75, 0.875, 1, 1], id="linear"
    ),
    pytest.param(
        lambda o: lrs.OneCycleLR(o, [1.0, 10.0], 5, 0.4, "linear", False, div_factor=4),
        [0.25, 1, 2 / 3 + 0.25e-4 / 3, 1 / 3 + 0.25e-4 * 2 / 3, 0.25e-4, 0.25e-4],
        id="one-cycle",
    ),
]


@pytest.mark.parametrize(("make", "expected"), SCHEDULES)
def test_schedules(make, expected):
    found, expected = rates(make(sgd()), 5), expected[:5]
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-10)
    np.testing.assert_allclose(found[:, 1], 10 * np.array(expected), rtol=1e-10)


def test_cosine():
    found = rates(lrs.CosineAnnealingLR(sgd(), 4, 0.1), 6)
    np.testing.assert_allclose(found[:, 0], COS, rtol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        *(param.values[0] for param in SCHEDULES),
        lambda o: lrs.CosineAnnealingLR(o, 4),
        lambda o: lrs.SequentialLR(
            o, [lrs.LinearLR(o, 0.5, total_iters=2), lrs.StepLR(o, 1, 0.5)], [2]
        ),
    ],
)
def test_schedules_go_on_from_their_state(make):
    expected = rates(make(sgd()), 5)[2:]
    first = make(sgd())
    for _ in range(2):
        first.step()
    second = make(sgd())
    second.load_state_dict(first.state_dict())
    np.testing.assert_allclose(rates(second, 3), expected, rtol=1e-12)


def test_one_cycle_moves_the_momentum():
    optimizer = sgd(momentum=0.9)
    schedule = lrs.OneCycleLR(optimizer, 1.0, total_steps=11, pct_start=0.5)
    seen = []
    for _ in range(11):
        seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        schedule.step()
    lr, momentum = np.array(seen).T
    assert lr[0] == pytest.approx(1 / 25) and lr[-1] == pytest.approx(1 / 25e4)
    assert lr.argmax() == momentum.argmin() and 3 < lr.argmax() < 6
    assert momentum[0] == momentum[-1] == 0.95
    with pytest.raises(ValueError, match="cycle is over"):
        schedule.step()
    adam = optim.Adam([sg.ones(1, requires_grad=True)], betas=(0.9, 0.99))
    lrs.OneCycleLR(adam, 0.1, 10)
    assert adam.param_groups[0]["betas"] == (0.95, 0.99)


def test_warm_up_and_then_cosine():
    optimizer = sgd()
    parts = [lrs.LinearLR(optimizer, 0.25, total_iters=3), lrs.CosineAnnealingLR(optimizer, 4)]
    found = rates(lrs.SequentialLR(optimizer, parts, [3]), 7)[:, 0]
    cosine = [(1 + math.cos(math.pi * t / 4)) / 2 for t in range(4)]
    np.testing.assert_allclose(found, [0.25, 0.5, 0.75, *cosine], rtol=1e-12)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_plateau(mode):
    optimizer = sgd()
    schedule = lrs.ReduceLROnPlateau(optimizer, mode, 0.1, 2, cooldown=1, min_lr=[0.05, 0.0])
    sign = 1 if mode == "min" else -1
    seen = []
    for metric in [3, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1.00001]:
        schedule.step(sg.tensor(float(sign * metric)))
        seen.append(optimizer.param_groups[0]["lr"])
    expected = [1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05]
    np.testing.assert_allclose(seen, expected, rtol=1e-12)
    other = lrs.ReduceLROnPlateau(optimizer, mode)
    other.load_state_dict(schedule.state_dict())
    assert other.best == sign and other.state_dict() == schedule.state_dict()


def test_plateau_absolute():
    optimizer = sgd()
    schedule = lrs.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5, threshold_mode="abs")
    for metric in (3.0, 2.4, 2.2):
        schedule.step(metric)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda o: lrs.StepLR(o, 0), "step_size must be at least 1"),
        (lambda o: lrs.LinearLR(o, 0.0), "start_factor"),
        (lambda o: lrs.LinearLR(o, total_iters=0), "total_iters"),
        (lambda o: lrs.CosineAnnealingLR(o, 0), "T_max"),
        (lambda o: lrs.LambdaLR(o, [abs]), "1 functions for 2"),
        (lambda o: lrs.OneCycleLR(o, 1.0, 10), "needs an optimizer with a momentum"),
        (lambda o: lrs.OneCycleLR(o, [1.0], 10, cycle_momentum=False), "1 values of max_lr for 2"),
        (lambda o: lrs.OneCycleLR(o, 1.0, 0), "total_steps"),
        (lambda o: lrs.OneCycleLR(o, 1.0, 9, pct_start=2), "pct_start"),
        (lambda o: lrs.OneCycleLR(o, 1.0, 9, anneal_strategy="up"), "anneal_strategy"),
        (lambda o: lrs.SequentialLR(o, [lrs.StepLR(o, 1)], [3]), "need 0 rising milestones"),
        (lambda o: lrs.ReduceLROnPlateau(o, "least"), "mode"),
        (lambda o: lrs.ReduceLROnPlateau(o, factor=1.5), "factor"),
        (lambda o: lrs.ReduceLROnPlateau(o, threshold_mode="x"), "threshold_mode"),
        (lambda o: lrs.ReduceLROnPlateau(o, min_lr=[0.1]), "min_lr"),
        (lambda o: lrs.StepLR(o, 1).load_state_dict({"base_lrs": [1]}), "1 groups"),
    ],
)
def test_schedule_errors(make, text):
    with pytest.raises(ValueError, match=text):
        make(sgd())
    with pytest.raises(TypeError, match="expected an Optimizer, got int"):
        lrs.StepLR(3, 1)
