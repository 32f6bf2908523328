"""Losses as functions, and the ops of `sg` that PyTorch keeps under this name.

`reduction` is "mean", "sum", or "none" for one number a row or element. Losses of elements
(`mse_loss`, `l1_loss`, `binary_cross_entropy_with_logits`, ...) take sparse tensors too, and then
mean the stored entries: absent ones neither count nor get a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from sparsegrad import backends, dtypes, ops
from sparsegrad.autograd.autocast import full_precision
from sparsegrad.errors import DtypeError, PatternError, ShapeError
from sparsegrad.nn.margins import (
    cosine_embedding_loss,
    gaussian_nll_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    pairwise_distance,
    poisson_nll_loss,
    soft_margin_loss,
    triplet_margin_loss,
)
from sparsegrad.ops import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    batch_norm,
    celu,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    cosine_similarity,
    dropout,
    elu,
    gelu,
    glu,
    group_norm,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    instance_norm,
    interpolate,
    layer_norm,
    leaky_relu,
    linear,
    log_softmax,
    logsigmoid,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    mish,
    nll_loss,
    pad,
    pixel_shuffle,
    pixel_unshuffle,
    prelu,
    relu,
    relu6,
    rms_norm,
    scaled_dot_product_attention,
    selu,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    threshold,
)
from sparsegrad.ops.fused import class_losses
from sparsegrad.ops.index import put_rows_p, take_p
from sparsegrad.ops.likelihood import check_reduction, reduced, rows_of_classes
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.tensor import Tensor, as_tensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "bpr_loss",
    "celu",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "elu",
    "embedding",
    "embedding_collection",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "group_norm",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsigmoid",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "mish",
    "mse_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
    "sampled_softmax_loss",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "triplet_margin_loss",
]


def embedding(
    index: Any, weight: Any, padding_idx: int | None = None, sparse: bool = True
) -> Tensor:
    """Rows of `weight` (V, d) by integer `index` (*B) -> (*B, d): `sg.embedding`, with the order of
    arguments that PyTorch has here.

    >>> import sparsegrad as sg
    >>> sg.nn.functional.embedding(sg.tensor([1, 1]), sg.tensor([[1.0], [2.0]]))
    tensor([[2.],
            [2.]])
    """
    return ops.embedding(weight, index, padding_idx, sparse)


def embedding_collection(index: Any, weights: Iterable[Any], sparse: bool = True) -> Tensor:
    """Rows of several tables side by side: integers (*B, F), weights f of (V_f, d_f) -> (*B, sum of
    d_f): `sg.embedding_collection`, with the order of arguments of `embedding`.

    >>> import sparsegrad as sg
    >>> tables = sg.tensor([[1.0], [2.0]]), sg.tensor([[3.0, 4.0]])
    >>> sg.nn.functional.embedding_collection(sg.tensor([[1, 0], [0, 0]]), tables)
    tensor([[2., 3., 4.],
            [1., 3., 4.]])
    """
    return ops.embedding_collection(weights, index, sparse)


def normalize(x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    """x / max(|x|, eps), with the p-norm along `dim`: same shape; a SparseTensor keeps its pattern.

    Raises ShapeError for a `dim` that x does not have.

    >>> import sparsegrad as sg
    >>> sg.nn.functional.normalize(sg.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6, 0.8],
            [0. , 0. ]])
    """
    return x / ops.clamp(ops.norm(x, p, dim, True), eps)


def one_hot(index: Any, num_classes: int = -1) -> Tensor:
    """1 at the class of each element and 0 elsewhere: integers (*B) -> int64 (*B, num_classes).

    num_classes: -1 for the greatest class + 1. Linear layers of classes need no such tensor:
        `sg.embedding(weight, index)` is `one_hot(index) @ weight`.

    Raises IndexError for what is no integer, PatternError for a class outside [0, num_classes),
    ValueError for -1 without elements.

    >>> import sparsegrad as sg
    >>> sg.nn.functional.one_hot(sg.tensor([2, 0]))
    tensor([[0, 0, 1],
            [1, 0, 0]])
    """
    index = as_tensor(index)
    if dtypes.kind(index.dtype) not in "iu":
        raise IndexError(f"one_hot: index: expected integers, got {index.dtype}")
    be = backends.for_array(index.data)
    if num_classes == -1:
        if not index.data.size:
            raise ValueError("one_hot: no elements to count classes of; give num_classes")
        num_classes = be.extent(index.data)[1] + 1
    flat = index.data.reshape(-1)
    be.check_indices("one_hot: index", flat, num_classes)
    return Tensor((index.data[..., None] == be.xp.arange(num_classes)).astype("int64"))


def cross_entropy(
    logits: Tensor,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-sum over classes of target * log(softmax(logits)), for each row of logits (n, C).

    target: classes (n,), integers; probabilities (n, C), floating point; or a SparseTensor (n, C)
        of a few probabilities a row: only those are looked at, and they get a gradient if they
        require one. Dense ones also for logits (n, C, *d): classes (n, *d), probabilities (n, C,
        *d); and for logits (C,).
    weight: (C,), a factor of each class, a constant. With classes the mean is divided by the sum
        of the factors of the true ones, with probabilities by n; as in PyTorch.
    ignore_index: a class that is left out. label_smoothing: e in [0, 1) replaces the target t by
        (1 - e) t + e / C.

    Raises ShapeError for sizes that do not fit, IndexError for a class outside [0, C), TypeError
    for sparse logits, ValueError for another reduction or label_smoothing outside [0, 1).

    >>> import sparsegrad as sg
    >>> logits = sg.tensor([[0.0, 0.0], [0.0, 0.0]])
    >>> soft = sg.coo([[0, 1, 1], [1, 0, 1]], [1.0, 0.5, 0.5], (2, 2))
    >>> sg.nn.functional.cross_entropy(logits, soft)
    tensor(0.6931472)
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(
            f"cross_entropy: label_smoothing must lie in [0, 1), got {label_smoothing}"
        )
    check_reduction("cross_entropy", reduction)
    if isinstance(logits, SparseTensor):
        raise TypeError("cross_entropy: logits must be dense, got a SparseTensor")
    logits = as_tensor(logits)
    target = target if isinstance(target, SparseTensor) else as_tensor(target)
    soft = isinstance(target, SparseTensor) or dtypes.kind(target.dtype) == "f"
    if logits.ndim != 2 and not isinstance(target, SparseTensor):
        rows, aims = rows_of_classes("cross_entropy", logits, target, soft)
        loss = cross_entropy(rows, aims, weight, ignore_index, reduction, label_smoothing)
        spots = target.shape if not soft else target.shape[:1] + target.shape[2:]
        return ops.reshape(loss, spots if target.ndim > 1 else ()) if loss.ndim else loss
    weight = None if weight is None else as_tensor(weight)
    _check_sizes(logits, target, weight, soft)
    if not soft:
        return _class_targets(logits, target, weight, ignore_index, label_smoothing, reduction)
    log_probs = ops.log_softmax(logits, 1)
    weighted = log_probs if weight is None else log_probs * weight
    if isinstance(target, SparseTensor):
        loss = _sparse_targets(weighted, target)
    else:
        loss = -ops.sum(weighted * target, 1)
    if label_smoothing:
        uniform = -ops.sum(weighted, 1) / logits.shape[1]
        loss = (1 - label_smoothing) * loss + label_smoothing * uniform
    return reduced("cross_entropy", loss, reduction)


def _check_sizes(logits: Tensor, target: Any, weight: Tensor | None, soft: bool) -> None:
    if logits.ndim != 2 or tuple(target.shape) != (logits.shape if soft else logits.shape[:1]):
        if soft and target.shape == logits.shape[:1]:
            raise DtypeError(f"cross_entropy: target: classes are integers, got {target.dtype}")
        raise ShapeError(
            f"cross_entropy: expected logits (n, C) and target (n,) or (n, C), got "
            f"{tuple(logits.shape)} and {tuple(target.shape)}"
        )
    if weight is not None and weight.shape != logits.shape[1:]:
        raise ShapeError(f"cross_entropy: expected weight ({logits.shape[1]},), got {weight.shape}")


def _class_targets(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    smoothing: float,
    reduction: str,
) -> Tensor:
    (logits,) = full_precision(logits)
    loss, counts = class_losses(
        "cross_entropy", logits, target, weight, ignore_index, smoothing, reduction
    )
    if reduction != "mean" or counts is None:
        return loss
    be = backends.for_array(counts)
    total = be.sum(counts)
    total = be.xp.where(total == 0, math.nan, total)  # of nothing, as the mean of nothing
    return loss / Tensor(be.xp.asarray(total, loss.dtype))


def _sparse_targets(log_probs: Tensor, target: SparseTensor) -> Tensor:
    """-sum of target * log_probs over the stored entries of each row: linear in both, so
    duplicates add up."""
    n, classes = log_probs.shape
    flat = ops.reshape(log_probs, (n * classes,))
    place = target.pattern.row.astype("int64") * classes + target.pattern.col
    return -put_rows_p(target.values * take_p(flat, index=place), index=target.pattern.row, n=n)


def mse_loss(x: Any, target: Any, reduction: str = "mean") -> Any:
    """(x - target)², elementwise: dense tensors of one shape, or a SparseTensor x and a target at
    its entries (a SparseTensor with the same entries, or values of the shape of `x.values`).

    Raises ShapeError for other shapes, PatternError for other entries, ValueError for another
    reduction.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 5], [7, 2]], [1.0, 2.0], (9, 9))
    >>> sg.nn.functional.mse_loss(A, sg.tensor([1.0, 4.0]))
    tensor(2.)
    """
    x, target = _elements("mse_loss", x, target)
    difference = x - target
    return reduced("mse_loss", difference * difference, reduction)


def binary_cross_entropy_with_logits(
    x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: str = "mean"
) -> Any:
    """-(target log(sigmoid(x)) + (1 - target) log(1 - sigmoid(x))), elementwise, without overflow.

    x, target: as in `mse_loss`; targets in [0, 1]. weight, pos_weight: factors of each element,
    and of the first term alone; they broadcast.

    Raises ShapeError for other shapes, PatternError for other entries, ValueError for another
    reduction.

    >>> import sparsegrad as sg
    >>> sg.nn.functional.binary_cross_entropy_with_logits(sg.tensor([0.0]), sg.tensor([1.0]))
    tensor(0.6931472)
    """
    name = "binary_cross_entropy_with_logits"
    x, target = _elements(name, x, target)
    target = ops.cast(target, x.dtype)
    positive = 1 if pos_weight is None else 1 + (as_tensor(pos_weight) - 1) * target
    loss = (1 - target) * x + positive * -ops.logsigmoid(x)
    return reduced(name, loss if weight is None else loss * weight, reduction)


def l1_loss(x: Any, target: Any, reduction: str = "mean") -> Any:
    """|x - target|, elementwise; arguments and errors as of `mse_loss`.

    >>> import sparsegrad as sg
    >>> sg.nn.functional.l1_loss(sg.tensor([1.0, 2.0]), sg.tensor([2.0, 4.0]))
    tensor(1.5)
    """
    x, target = _elements("l1_loss", x, target)
    return reduced("l1_loss", ops.abs(x - target), reduction)


def huber_loss(x: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """d² / 2 for d = |x - target| up to `delta`, then delta (d - delta / 2), elementwise; arguments
    and errors as of `mse_loss`, ValueError for delta <= 0.

    >>> import sparsegrad as sg
    >>> sg.nn.functional.huber_loss(sg.tensor([0.5, 3.0]), sg.tensor([0.0, 0.0]), "none")
    tensor([0.125, 2.5  ])
    """
    if not delta > 0:
        raise ValueError(f"huber_loss: delta must be > 0, got {delta}")
    x, target = _elements("huber_loss", x, target)
    return reduced("huber_loss", _huber(x - target, delta), reduction)


def smooth_l1_loss(x: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """`huber_loss` / beta, which is |x - target| - beta / 2 away from 0; beta = 0 gives `l1_loss`.

    >>> import sparsegrad as sg
    >>> sg.nn.functional.smooth_l1_loss(sg.tensor([0.5, 3.0]), sg.tensor([0.0, 0.0]), "none")
    tensor([0.125, 2.5  ])
    """
    if not beta >= 0:
        raise ValueError(f"smooth_l1_loss: beta must be >= 0, got {beta}")
    x, target = _elements("smooth_l1_loss", x, target)
    difference = x - target
    loss = _huber(difference, beta) / beta if beta else ops.abs(difference)
    return reduced("smooth_l1_loss", loss, reduction)


def _huber(difference: Tensor, delta: float) -> Tensor:
    inner = ops.clamp(difference, -delta, delta)
    return inner * (difference - inner / 2)


def binary_cross_entropy(x: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    """-(target log(x) + (1 - target) log(1 - x)), elementwise, for probabilities x; arguments and
    errors as of `binary_cross_entropy_with_logits`, which is more exact and never saturates.

    Logarithms are at least -100, as in PyTorch; where they are not, the gradient is 0. Raises
    ValueError for an x or a target outside [0, 1] on the CPU; a GPU is not waited for to look.

    >>> import sparsegrad as sg
    >>> x, target = sg.tensor([0.5, 0.0]), sg.tensor([1.0, 1.0])
    >>> sg.nn.functional.binary_cross_entropy(x, target, reduction="sum")
    tensor(100.693146)
    """
    x, target = _elements("binary_cross_entropy", x, target)
    _probabilities("x", x)
    _probabilities("target", target)
    loss = -(target * _log(x) + (1 - target) * _log(1 - x))
    loss = loss if weight is None else loss * weight
    return reduced("binary_cross_entropy", loss, reduction)


def _probabilities(name: str, x: Tensor) -> None:
    if not isinstance(x.data, np.ndarray) or not x.data.size:
        return
    low, high = x.data.min(), x.data.max()  # NaN if one is
    if not (low >= 0 and high <= 1):
        found = high if low >= 0 else low
        raise ValueError(f"binary_cross_entropy: {name} must lie in [0, 1], got {found}")


def _log(x: Tensor) -> Tensor:
    """log(x), or -100 where that is less; without inf - inf in the gradient."""
    positive = x.detach() > 0
    return ops.where(positive, ops.clamp(ops.log(ops.where(positive, x, 1.0)), -100.0), -100.0)


def kl_div(x: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    """target (log(target) - x), elementwise: x are log-probabilities, target probabilities, or
    their logarithms with `log_target`. Arguments and errors as of `mse_loss`.

    reduction: also "batchmean", the sum divided by the number of rows, which is the divergence.

    >>> import sparsegrad as sg
    >>> p = sg.tensor([[0.5, 0.5]])
    >>> sg.nn.functional.kl_div(sg.log(sg.tensor([[0.25, 0.75]])), p, "batchmean")
    tensor(0.14384104)
    """
    rows = x.shape[0] if x.ndim else 1
    x, target = _elements("kl_div", x, target)
    if log_target:
        loss = ops.exp(target) * (target - x)
    else:
        positive = target.detach() > 0
        loss = target * (ops.log(ops.where(positive, target, 1.0)) - x)
    if reduction == "batchmean":
        return ops.sum(loss) / rows
    return reduced("kl_div", loss, reduction)


def bpr_loss(positive: Any, negative: Any, reduction: str = "mean") -> Any:
    """-log(sigmoid(positive - negative)): how far scores of things a user chose lie above those
    of things they did not; dense tensors that broadcast.

    Rendle, Freudenthaler, Gantner and Schmidt-Thieme, "BPR: Bayesian personalized ranking from
    implicit feedback", UAI 2009.

    >>> import sparsegrad as sg
    >>> sg.nn.functional.bpr_loss(sg.tensor([1.0, 2.0]), sg.tensor([1.0, 2.0]))
    tensor(0.6931472)
    """
    positive, negative = full_precision(as_tensor(positive), as_tensor(negative))
    try:
        np.broadcast_shapes(positive.shape, negative.shape)
    except ValueError:
        raise ShapeError(
            f"bpr_loss: shapes do not broadcast; got positive: {tuple(positive.shape)}, negative: "
            f"{tuple(negative.shape)}"
        ) from None
    return reduced("bpr_loss", -ops.logsigmoid(positive - negative), reduction)


def sampled_softmax_loss(
    x: Any,
    weight: Any,
    target: Any,
    samples: Any,
    bias: Any = None,
    probabilities: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy of x W^T + b against classes, over the true class and a few sampled ones
    instead of all: for many classes. Gradients of W and b store only the rows that were looked at.

    x: (n, d). weight, bias: (V, d), (V,). target: the class of each row, (n,) integers.
    samples: classes (s,), the same for all rows, drawn with replacement; where one is the true
        class of a row it is left out for that row.
    probabilities: (V,), q, how samples were drawn; None: uniform. A sampled class stands for
        1 / (s q) classes, so that the sum in the softmax is on average that over all classes.

    Raises ShapeError for sizes that do not fit, PatternError for a class outside [0, V).

    Bengio and Senecal, "Adaptive importance sampling to accelerate training of a neural
    probabilistic language model", IEEE Transactions on Neural Networks 19, 2008.

    >>> import sparsegrad as sg
    >>> W = sg.zeros(1000, 4, requires_grad=True)
    >>> sg.nn.functional.sampled_softmax_loss(sg.ones(2, 4), W, [7, 3], [8, 9, 5]).backward()
    >>> W.grad.coalesce().nnz
    5
    """
    x, weight, target, samples = (as_tensor(t) for t in (x, weight, target, samples))
    n, s = len(target), len(samples)
    fits = x.ndim == weight.ndim == 2 and target.ndim == samples.ndim == 1
    if not fits or x.shape != (n, weight.shape[1]):
        raise ShapeError(
            f"sampled_softmax_loss: expected x (n, d), weight (V, d), target (n,) and samples "
            f"(s,), got {x.shape}, {weight.shape}, {target.shape} and {samples.shape}"
        )
    ids = ops.cat([target, ops.cast(samples, target.dtype)])
    rows = ops.take(weight, ids)
    true, others = ops.sum(x * rows[:n], 1), x @ rows[n:].T
    if bias is not None:
        shift = ops.take(bias, ids)
        true, others = true + shift[:n], others + shift[n:]
    if probabilities is None:
        others = others + math.log(len(weight) / max(1, s))
    else:
        q = ops.take(as_tensor(probabilities), samples, sparse_grad=False)
        others = others - ops.cast(ops.log(s * q), others.dtype)
    others = ops.where(ops.unsqueeze(target, 1) == samples, float("-inf"), others)
    total = ops.logsumexp(ops.cat([ops.unsqueeze(true, 1), others], 1), 1)
    return reduced("sampled_softmax_loss", total - true, reduction)


def _elements(op: str, x: Any, target: Any) -> tuple[Tensor, Tensor]:
    """Two tensors of one shape; those of stored entries where `x` is sparse."""
    if not isinstance(x, SparseTensor):
        if isinstance(target, SparseTensor):
            raise TypeError(f"{op}: a sparse target needs a sparse x, got {type(x).__name__}")
        x, target = as_tensor(x), as_tensor(target)
    elif isinstance(target, SparseTensor):
        if x.shape != target.shape:
            raise ShapeError(f"{op}: expected one shape, got {x.shape} and {target.shape}")
        if not x.pattern.same_as(target.pattern):
            x = x.coalesce()
            target = ops.to_format(target, x.format).coalesce()
        if not x.pattern.same_as(target.pattern):
            raise PatternError(
                f"{op}: the entries of the target (nnz {target.nnz}) are not where those of x "
                f"(nnz {x.nnz}) are"
            )
        x, target = x.values, target.values
    else:
        x, target = x.values, as_tensor(target)
    if x.shape != target.shape:
        raise ShapeError(f"{op}: expected one shape, got {x.shape} and {target.shape}")
    return full_precision(x, target)  # type: ignore[return-value]
