"""Losses against their formulas."""

import numpy as np
import pytest

import sparsegrad as sg
from modules import dense, rng
from sparsegrad import nn
from sparsegrad.nn import functional as F

LABELS = np.array([1, 0, 4, 1])


def log_softmax(x):
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def one_hot(labels, n=5):
    return np.eye(n)[labels]


def soft():
    p = rng(4).random((4, 5))
    p[0, 2] = p[3] = 0
    return p


def cross_entropy(x, target, weight=None, reduction="mean", smoothing=0.0, divide=None):
    w = np.ones(5) if weight is None else weight
    target = (1 - smoothing) * target + smoothing / 5
    loss = -(w * target * log_softmax(x)).sum(1)
    if reduction == "none":
        return loss
    return loss.sum() / (divide if reduction == "mean" else 1)


# --- cross-entropy -----------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("kind", ["classes", "dense", "coo", "csr", "csc"])
def test_cross_entropy(reduction, weighted, smoothing, kind):
    x, weight = dense(4, 5), rng(2).random(5) if weighted else None
    if kind == "classes":
        target, full = sg.tensor(LABELS), one_hot(LABELS)
        divide = weight[LABELS].sum() if weighted else 4
    else:
        target, full, divide = sg.tensor(soft()), soft(), 4
        target = target if kind == "dense" else target.to_sparse(kind)
    loss = nn.CrossEntropyLoss(weight, reduction=reduction, label_smoothing=smoothing)
    expected = cross_entropy(x.data, full, weight, reduction, smoothing, divide)
    np.testing.assert_allclose(loss(x, target).detach().data, expected, rtol=1e-12)
    assert sg.gradcheck(lambda x: loss(x, target), x)
    assert sg.gradgradcheck(lambda x: loss(x, target), x)


def test_cross_entropy_agrees_with_that_of_the_ops():
    x = dense(4, 5)
    assert F.cross_entropy(x, LABELS).item() == sg.cross_entropy(x, LABELS).item()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_ignored_classes(smoothing):
    x, labels = dense(4, 5), np.array([1, -1, 4, -1])
    kept = [0, 2]
    expected = cross_entropy(x.data[kept], one_hot(labels[kept]), smoothing=smoothing, divide=2)
    found = F.cross_entropy(x, labels, ignore_index=-1, label_smoothing=smoothing)
    np.testing.assert_allclose(found.item(), expected, rtol=1e-12)
    found.backward()
    assert not x.grad.data[[1, 3]].any()


@pytest.mark.filterwarnings("error")
def test_the_mean_of_no_classes_is_nan():
    x = dense(4, 5)
    assert np.isnan(F.cross_entropy(x, [7, 7, 7, 7], ignore_index=7).item())
    assert np.isnan(F.cross_entropy(sg.zeros(0, 3), np.zeros(0, int)).item())
    assert F.cross_entropy(x, [7, 7, 7, 7], ignore_index=7, reduction="sum").item() == 0


def test_gradient_of_sparse_targets():
    target = sg.coo([[0, 3, 0], [1, 2, 2]], rng().random(3), (4, 5), requires_grad=True)
    x = dense(4, 5)
    twice = sg.coo([[0, 0, 1], [1, 1, 2]], rng().random(3), (4, 5))
    once = F.cross_entropy(x, twice.coalesce()).item()
    np.testing.assert_allclose(F.cross_entropy(x, twice).item(), once, rtol=1e-12)
    assert sg.gradcheck(F.cross_entropy, (x, target))
    assert sg.gradgradcheck(F.cross_entropy, (x, target))
    plain = F.cross_entropy(x, target.detach().to_dense())
    np.testing.assert_allclose(F.cross_entropy(x, target).item(), plain.item(), rtol=1e-12)


def test_sparse_targets_of_many_classes_are_not_made_dense():
    n, classes = 3, 10**5
    target = sg.coo([[0, 2], [5, 99999]], [1.0, 1.0], (n, classes), requires_grad=True)
    x = sg.zeros(n, classes, requires_grad=True)
    with sg.densify(budget=0, on_exceed="raise"):
        F.cross_entropy(x, target).backward()
    assert target.grad.nnz == 2


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: F.cross_entropy(x, [0, 9, 1, 1]), IndexError, "outside"),
        (lambda x: F.nll_loss(x, [0.0, 1.7, 1, 1]), sg.DtypeError, "nll_loss: target: classes are"),
        (lambda x: sg.cross_entropy(x, [0.0, 1.7, 1, 1]), sg.DtypeError, "integers, got float32"),
        (lambda x: F.cross_entropy(x, [0.0, 1, 1, 1]), sg.DtypeError, "classes are integers, got"),
        (lambda x: F.cross_entropy(x, [0, 1]), sg.ShapeError, r"logits \(n, C\) and target"),
        (lambda x: F.cross_entropy(x, sg.zeros(4, 4)), sg.ShapeError, r"\(4, 5\) and \(4, 4\)"),
        (lambda x: F.cross_entropy(x.to_sparse(), LABELS), TypeError, "logits must be dense"),
        (lambda x: F.cross_entropy(x, LABELS, weight=[1.0]), sg.ShapeError, r"weight \(5,\)"),
        (lambda x: F.cross_entropy(x, LABELS, reduction="max"), ValueError, "reduction"),
        (lambda x: F.cross_entropy(x, LABELS, label_smoothing=1), ValueError, "label_smoothing"),
        (lambda x: nn.CrossEntropyLoss(reduction="max"), ValueError, "CrossEntropyLoss: reduc"),
    ],
)
def test_cross_entropy_errors(call, error, text):
    with pytest.raises(error, match=text):
        call(dense(4, 5))


# --- losses of elements ------------------------------------------------------------------------


def bce(x, t, weight=1.0, pos_weight=1.0):
    s = 1 / (1 + np.exp(-x))
    return -weight * (pos_weight * t * np.log(s) + (1 - t) * np.log(1 - s))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_bce_with_logits(reduction):
    x, t = dense(4, 3), rng(5).random((4, 3))
    weight, pos_weight = rng(6).random((4, 1)), rng(7).random(3) + 0.5
    loss = nn.BCEWithLogitsLoss(weight, reduction, pos_weight)
    expected = bce(x.data, t, weight, pos_weight)
    expected = expected if reduction == "none" else getattr(expected, reduction)()
    np.testing.assert_allclose(loss(x, t).detach().data, expected, rtol=1e-11)
    assert sg.gradcheck(lambda x: loss(x, t), x)
    assert sg.gradgradcheck(lambda x: loss(x, t), x)


def test_bce_of_large_logits():
    x = sg.tensor([1000.0, -1000.0, 30.0, 0.0], dtype=sg.float64, requires_grad=True)
    found = F.binary_cross_entropy_with_logits(x, [0.0, 1.0, 1.0, 1.0], reduction="none")
    np.testing.assert_allclose(found.detach().data, [1000, 1000, np.exp(-30), np.log(2)], rtol=1e-9)
    found.sum().backward()
    np.testing.assert_allclose(x.grad.data, [1, -1, -np.exp(-30), -0.5], atol=1e-15)


def test_mse():
    x, t = dense(4, 3), dense(4, 3, seed=5)
    np.testing.assert_allclose(nn.MSELoss()(x, t).item(), ((x.data - t.data) ** 2).mean())
    assert F.mse_loss(x, t, "none").shape == (4, 3)
    assert sg.gradcheck(F.mse_loss, (x, t))


def huber(d, delta):
    return np.where(abs(d) <= delta, d**2 / 2, delta * (abs(d) - delta / 2))


ELEMENTS = {
    "l1": (nn.L1Loss, {}, lambda x, t: abs(x - t)),
    "huber": (nn.HuberLoss, {"delta": 0.7}, lambda x, t: huber(x - t, 0.7)),
    "smooth l1": (nn.SmoothL1Loss, {"beta": 0.7}, lambda x, t: huber(x - t, 0.7) / 0.7),
    "smooth l1, beta 0": (nn.SmoothL1Loss, {"beta": 0.0}, lambda x, t: abs(x - t)),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ELEMENTS)
def test_robust_losses(name, reduction):
    cls, options, formula = ELEMENTS[name]
    loss, x, t = cls(reduction, **options), dense(4, 3), dense(4, 3, seed=5)
    expected = formula(x.data, t.data)
    expected = expected if reduction == "none" else getattr(expected, reduction)()
    np.testing.assert_allclose(loss(x, t).data, expected, rtol=1e-12)
    assert sg.gradcheck(loss, (x, t))
    P = sg.coo([[0, 3], [5, 1]], [1.0, -2.0], (9, 9))
    found = loss(P, sg.tensor([0.5, 2.0]))
    expected = formula(np.array([1.0, -2]), np.array([0.5, 2]))
    expected = expected if reduction == "none" else getattr(expected, reduction)()
    np.testing.assert_allclose(found.data, expected, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_bce_of_probabilities(reduction):
    x = sg.tensor(rng(4).random((4, 3)), requires_grad=True)
    t, weight = rng(5).random((4, 3)), rng(6).random((4, 1))
    expected = -weight * (t * np.log(x.data) + (1 - t) * np.log(1 - x.data))
    expected = expected if reduction == "none" else getattr(expected, reduction)()
    loss = nn.BCELoss(weight, reduction)
    np.testing.assert_allclose(loss(x, t).data, expected, rtol=1e-12)
    assert sg.gradcheck(lambda x: loss(x, t), x)


def test_bce_of_certainty():
    x = sg.tensor([0.0, 1.0, 0.0, 1.0, 1e-300], dtype="float64", requires_grad=True)
    found = F.binary_cross_entropy(x, [0.0, 1.0, 1.0, 0.0, 1.0], reduction="none")
    assert found.tolist() == [0, 0, 100, 100, 100]
    found.sum().backward()
    np.testing.assert_array_equal(x.grad.data[1:], [-1, 0, 0, 0])
    assert x.grad.data[0] == 1


@pytest.mark.parametrize("bad", [-0.25, 1.5, np.nan])
def test_bce_refuses_what_is_no_probability(bad):
    good = sg.tensor([0.5, 1.0])
    for name, x, target in (("x", [bad, 0.5], good), ("target", good, [0.5, bad])):
        with pytest.raises(ValueError, match=rf"{name} must lie in \[0, 1\], got {bad}"):
            F.binary_cross_entropy(x, target)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "batchmean"])
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div(reduction, log_target):
    x, t = dense(4, 3), rng(4).random((4, 3))
    t[1, 1] = 0 if not log_target else t[1, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.where(t > 0, t * (np.log(t) - x.data), 0)
    size = {"mean": 12, "batchmean": 4}.get(reduction, 1)
    expected = expected if reduction == "none" else expected.sum() / size
    given = sg.tensor(np.log(t) if log_target else t, requires_grad=True)
    loss = nn.KLDivLoss(reduction, log_target)
    np.testing.assert_allclose(loss(x, given).data, expected, rtol=1e-12)
    assert sg.gradcheck(lambda x: loss(x, given), x)
    if log_target:
        assert sg.gradcheck(loss, (x, given))


def test_nll():
    x = sg.log_softmax(dense(4, 5), 1)
    np.testing.assert_allclose(
        nn.NLLLoss()(x, LABELS).item(), F.cross_entropy(dense(4, 5), LABELS).item(), rtol=1e-12
    )
    assert nn.NLLLoss(reduction="none")(x, LABELS).shape == (4,)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: nn.HuberLoss(delta=0), "HuberLoss: delta must be > 0, got 0"),
        (lambda: nn.SmoothL1Loss(beta=-1), "SmoothL1Loss: beta must be >= 0, got -1"),
        (lambda: F.huber_loss(sg.ones(1), sg.ones(1), delta=-1), "delta must be > 0"),
        (lambda: F.smooth_l1_loss(sg.ones(1), sg.ones(1), beta=-1), "beta must be >= 0"),
        (lambda: nn.KLDivLoss("max"), "reduction must be"),
        (lambda: F.kl_div(sg.ones(1), sg.ones(1), "max"), "reduction must be"),
    ],
)
def test_robust_loss_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_functional_has_the_ops_that_pytorch_keeps_there():
    x = sg.randn(2, 3)
    assert F.relu is sg.relu and F.softmax is sg.softmax and F.pad is sg.pad
    assert F.linear(x, sg.ones(4, 3)).shape == (2, 4)


def test_one_hot():
    index = np.array([[2, 0], [1, 2]])
    np.testing.assert_array_equal(F.one_hot(index).data, np.eye(3, dtype="i8")[index])
    np.testing.assert_array_equal(F.one_hot(sg.tensor(index), 5).data, np.eye(5, dtype="i8")[index])
    assert F.one_hot(np.zeros((0, 2), "i8"), 4).shape == (0, 2, 4)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: F.one_hot([0.0]), IndexError, "one_hot: index: expected integers, got float32"),
        (lambda: F.one_hot([0, 3], 3), sg.PatternError, r"one_hot: index: index 3 at position 1"),
        (lambda: F.one_hot([0, -1]), sg.PatternError, r"one_hot: index: index -1 at position 1"),
        (lambda: F.one_hot(np.zeros(0, "i8")), ValueError, "one_hot: no elements .* num_classes"),
    ],
)
def test_one_hot_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_rows_of_length_one():
    x = dense(4, 5).requires_grad_()
    A = sg.coo([[0, 0, 2], [1, 3, 2]], [3.0, 4.0, -2.0], (3, 5))
    assert F.normalize(A).pattern is A.pattern
    np.testing.assert_allclose(F.normalize(A).values.data, [0.6, 0.8, -1.0], rtol=1e-6)
    np.testing.assert_allclose(sg.norm(F.normalize(x), 2, 1).detach().data, 1.0, rtol=1e-6)
    np.testing.assert_array_equal(F.normalize(sg.zeros(2, 3)).data, 0)


def test_bpr():
    p, n = dense(4, 1), dense(4, 3, seed=5)
    expected = np.log1p(np.exp(n.data - p.data)).mean()
    np.testing.assert_allclose(nn.BPRLoss()(p, n).item(), expected, rtol=1e-12)
    assert sg.gradcheck(F.bpr_loss, (p, n))
    assert F.bpr_loss(sg.tensor([0.0]), sg.tensor([1000.0])).item() == 1000


@pytest.mark.parametrize("loss", [F.mse_loss, F.binary_cross_entropy_with_logits])
@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
def test_losses_on_a_pattern(loss, fmt):
    where, t = [[3, 0, 2], [1, 4, 0]], rng(3).random(3)
    P = sg.coo(where, t, (4, 5))
    x, y = dense(4, 2), dense(5, 2, seed=2)
    target = P.to(fmt)
    predicted = x.data[where[0]] * y.data[where[1]]
    expected = loss(sg.tensor(predicted.sum(1)), sg.tensor(t)).item()

    def fit(x, y):
        return loss(sg.sddmm(x, y, P), target)  # entries in another order: lined up

    np.testing.assert_allclose(fit(x, y).item(), expected, rtol=1e-12)
    assert sg.gradcheck(fit, (x, y))
    given = loss(sg.sddmm(x, y, P), sg.tensor(t))  # values in the order of the entries
    np.testing.assert_allclose(given.item(), expected, rtol=1e-12)


@pytest.mark.parametrize("loss", [F.mse_loss, F.binary_cross_entropy_with_logits])
def test_losses_on_a_pattern_of_a_million(loss):
    n = 10**6
    P = sg.coo([[0, n - 1], [5, 7]], [1.0, 0.0], (n, n))
    x = sg.ones(n, 1, requires_grad=True)
    with sg.densify(budget=0, on_exceed="raise"):
        loss(sg.sddmm(x, x, P), P).backward()


@pytest.mark.parametrize("loss", [F.mse_loss, F.binary_cross_entropy_with_logits])
def test_element_loss_errors(loss):
    A, B = sg.coo([[0], [1]], [1.0], (2, 2)), sg.coo([[1], [1]], [1.0], (2, 2))
    name = loss.__name__
    with pytest.raises(sg.PatternError, match=f"{name}: the entries of the target"):
        loss(A, B)
    with pytest.raises(sg.ShapeError, match=rf"{name}: expected one shape, got \(2, 2\) and"):
        loss(A, sg.coo([[0], [1]], [1.0], (2, 3)))
    with pytest.raises(sg.ShapeError, match=rf"{name}: expected one shape, got \(1,\) and \(2,"):
        loss(A, sg.ones(2, 2))
    with pytest.raises(sg.ShapeError, match=r"got \(2,\) and \(3,\)"):
        loss(sg.ones(2), sg.ones(3))
    with pytest.raises(TypeError, match="needs a sparse x"):
        loss(sg.ones(2, 2), A)
    with pytest.raises(ValueError, match="reduction"):
        loss(sg.ones(2), sg.ones(2), reduction="most")


# --- sampled softmax ---------------------------------------------------------------------------


def table(n_classes=5, d=3):
    return dense(n_classes, d), sg.tensor(rng(3).standard_normal(n_classes), requires_grad=True)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_every_class_sampled_once_is_the_full_softmax(reduction, with_bias):
    x, (W, b) = dense(4, 3), table()
    bias = b if with_bias else None
    uniform = sg.full((5,), 0.2, dtype="float64")
    for probabilities in (None, uniform):
        found = F.sampled_softmax_loss(
            x, W, LABELS, np.arange(5), bias, probabilities, reduction=reduction
        )
        logits = x @ W.T if bias is None else x @ W.T + b
        expected = F.cross_entropy(logits, LABELS, reduction=reduction)
        np.testing.assert_allclose(found.data, expected.data, rtol=1e-12)


def test_sampled_softmax_by_hand():
    x, (W, b) = dense(4, 3), table()
    q, samples = np.array([0.1, 0.2, 0.3, 0.25, 0.15]), np.array([3, 3, 0])
    found = F.sampled_softmax_loss(x, W, LABELS, samples, b, q, reduction="none")
    logits = x.data @ W.data.T + b.data
    for row, label in enumerate(LABELS):
        others = sum(np.exp(logits[row, j]) / (3 * q[j]) for j in samples if j != label)
        expected = np.log(np.exp(logits[row, label]) + others) - logits[row, label]
        assert found.data[row] == pytest.approx(expected, rel=1e-12)

    def loss(x, W, b):
        return F.sampled_softmax_loss(x, W, LABELS, samples, b, q)

    assert sg.gradcheck(loss, [x, W, b])
    assert sg.gradgradcheck(loss, [x, W, b])


def test_sampled_softmax_touches_few_of_a_million_classes():
    layer = nn.SampledSoftmaxLoss(4, 10**6, n_samples=50)
    optimizer = sg.optim.Adagrad(layer.parameters(), lr=0.1)
    with sg.densify(budget=0, on_exceed="raise"):
        layer(sg.ones(3, 4), [5, 6, 999_999]).backward()
        optimizer.step()
    for p in layer.parameters():
        assert isinstance(p.grad, sg.SparseTensor) and p.grad.coalesce().nnz <= 53


@pytest.mark.parametrize("uniform", [True, False])
def test_sampled_softmax_is_about_the_full_one(uniform):
    """On average over draws, and exactly it in evaluation mode."""
    sg.manual_seed(0)
    p = None if uniform else np.arange(1.0, 41.0)
    layer, x, target = nn.SampledSoftmaxLoss(6, 40, 30, p), sg.randn(20, 6), np.arange(20)
    layer.weight.data[...] *= 4
    full = F.cross_entropy(layer.logits(x), target).item()
    assert layer.eval()(x, target).item() == pytest.approx(full)
    layer.train()
    drawn = [layer(x, target).item() for _ in range(100)]
    assert np.mean(drawn) == pytest.approx(full, rel=0.03) and np.std(drawn) > 0


def test_samples_follow_their_probabilities():
    sg.manual_seed(0)
    layer = nn.SampledSoftmaxLoss(1, 4, 20_000, [0.0, 3.0, 1.0, 0.0])
    assert np.bincount(layer.sample().data, minlength=4) / 20_000 == pytest.approx(
        [0, 0.75, 0.25, 0], abs=0.02
    )
    counts = np.bincount(nn.SampledSoftmaxLoss(1, 4, 20_000).sample().data, minlength=4)
    assert counts / 20_000 == pytest.approx([0.25] * 4, abs=0.02)


def test_sampled_softmax_learns():
    sg.manual_seed(0)
    layer, x = nn.SampledSoftmaxLoss(8, 100, n_samples=10), sg.randn(100, 8)
    optimizer = sg.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        layer(x, np.arange(100)).backward()
        optimizer.step()
    layer.eval()
    assert (layer.logits(x).data.argmax(1) == np.arange(100)).mean() > 0.9


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: F.sampled_softmax_loss(dense(4, 2), table()[0], LABELS, [1]), sg.ShapeError,
         r"got \(4, 2\), \(5, 3\), \(4,\) and \(1,\)"),
        (lambda: F.sampled_softmax_loss(dense(4, 3), table()[0], LABELS, [5]), sg.PatternError,
         "5"),
        (lambda: nn.SampledSoftmaxLoss(3, 5, 0), ValueError, "n_samples must be at least 1"),
        (lambda: nn.SampledSoftmaxLoss(3, 5, 1, [1.0]), sg.ShapeError, r"\(5,\), got \(1,\)"),
        (lambda: nn.SampledSoftmaxLoss(3, 2, 1, [1.0, -1.0]), ValueError, "not be negative"),
        (lambda: nn.SampledSoftmaxLoss(3, 2, 1, [0.0, 0.0]), ValueError, "sum not 0"),
    ],
)  # fmt: skip
def test_sampled_softmax_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


# --- pairs, triplets, counts -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "function", "count"),
    [
        ("MarginRankingLoss(0.3)", "margin_ranking_loss", 3),
        ("HingeEmbeddingLoss(margin=0.5)", "hinge_embedding_loss", 2),
        ("SoftMarginLoss()", "soft_margin_loss", 2),
        ("TripletMarginLoss(0.5, p=1.0)", "triplet_margin_loss", 3),
        ("PoissonNLLLoss(True, full=True)", "poisson_nll_loss", 2),
        ("GaussianNLLLoss(eps=0.5)", "gaussian_nll_loss", 3),
    ],
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_margins_as_modules(code, function, count, reduction):
    loss = eval(f"nn.{code[:-1]}{', ' * (code[-2] != '(')}reduction={reduction!r})", {"nn": nn})
    tensors = [sg.tensor(rng(i).random((3, 4)), requires_grad=i == 0) for i in range(count)]
    expected = getattr(F, function)(*tensors, **loss.options, reduction=reduction)
    np.testing.assert_array_equal(loss(*tensors).detach().data, expected.detach().data)
    assert sg.gradcheck(lambda x: loss(x, *tensors[1:]), tensors[0])
    assert sg.gradgradcheck(lambda x: loss(x, *tensors[1:]), tensors[0])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: nn.MarginRankingLoss(1, 2), TypeError, "takes margin, reduction, got 2 posit"),
        (lambda: nn.SoftMarginLoss(margin=1), TypeError, "SoftMarginLoss: takes .*, got margin"),
        (lambda: nn.TripletMarginLoss(reduction="max"), ValueError, "TripletMarginLoss: reduction"),
        (
            lambda: F.margin_ranking_loss(sg.ones(2), sg.ones(3), sg.ones(2)),
            sg.ShapeError,
            r"margin_ranking_loss: expected one shape, got \[\(2,\), \(3,\), \(2,\)\]",
        ),
        (
            lambda: F.cosine_embedding_loss(sg.ones(2, 3), sg.ones(2, 3), sg.ones(3)),
            sg.ShapeError,
            r"cosine_embedding_loss: expected target \(2,\), got shape \(3,\)",
        ),
        (
            lambda: F.gaussian_nll_loss(sg.ones(2), sg.ones(2), -sg.ones(2)),
            ValueError,
            "gaussian_nll_loss: var has negative elements",
        ),
        (
            lambda: F.bpr_loss(sg.ones(2), sg.ones(3)),
            sg.ShapeError,
            r"bpr_loss: shapes do not broadcast; got positive: \(2,\), negative: \(3,\)",
        ),
    ],
)
def test_margin_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()
