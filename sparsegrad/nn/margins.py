"""Losses of pairs, triplets and counts: functions of `sg.nn.functional`. They are means of what
they give for each element or row, for reduction "mean"; see `functional`."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import ops
from sparsegrad.errors import ShapeError
from sparsegrad.ops.likelihood import reduced
from sparsegrad.tensor import as_tensor

__all__ = [
    "cosine_embedding_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "pairwise_distance",
    "poisson_nll_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
]


def _alike(op: str, *tensors: Any) -> list[Any]:
    """Dense tensors of one shape."""
    made = [as_tensor(t) for t in tensors]
    if len({tuple(t.shape) for t in made}) > 1:
        raise ShapeError(f"{op}: expected one shape, got {[tuple(t.shape) for t in made]}")
    return made


def _of_rows(op: str, target: Any, rows: Any) -> Any:
    target = as_tensor(target)
    if tuple(target.shape) != tuple(rows.shape):
        raise ShapeError(
            f"{op}: expected target {tuple(rows.shape)}, got shape {tuple(target.shape)}"
        )
    return target


# ---- distances ---------------------------------------------------------------------------------
def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    """The p-norm of x1 - x2 + eps along the last dimension: (*B, d), (*B, d) -> (*B).

    >>> import sparsegrad as sg
    >>> sg.nn.functional.pairwise_distance(sg.tensor([[3.0, 4.0]]), sg.zeros(1, 2), eps=0.0)
    tensor([5.])
    """
    return ops.norm(as_tensor(x1) - as_tensor(x2) + eps, p, -1, keepdim)


def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """max(0, margin + |anchor - positive| - |anchor - negative|), with `pairwise_distance`: three
    tensors (*B, d) -> (*B) of losses. swap: the smaller of the negative's distances to the anchor
    and to the positive.

    Raises ShapeError for different shapes, ValueError for another reduction.

    Balntas, Riba, Ponsa and Mikolajczyk, "Learning local feature descriptors with triplets and
    shallow convolutional neural networks", BMVC 2016.

    >>> import sparsegrad as sg
    >>> a, far = sg.zeros(1, 2), sg.tensor([[3.0, 4.0]])
    >>> sg.nn.functional.triplet_margin_loss(a, far, a, eps=0.0)
    tensor(6.)
    """
    op = "triplet_margin_loss"
    anchor, positive, negative = _alike(op, anchor, positive, negative)
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = ops.minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced(op, ops.relu(near - far + margin), reduction)


def cosine_embedding_loss(
    x1: Any, x2: Any, target: Any, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    """1 - cos(x1, x2) for rows of target 1, max(0, cos(x1, x2) - margin) for -1: (n, d) or (d,),
    and target (n,) or () -> (n,) of losses.

    Raises ShapeError for other shapes, ValueError for another reduction.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([[1.0, 0.0]])
    >>> sg.nn.functional.cosine_embedding_loss(x, x, sg.tensor([-1]), margin=0.25)
    tensor(0.75)
    """
    op, tiny = "cosine_embedding_loss", 1e-12
    x1, x2 = _alike(op, x1, x2)
    sizes = [ops.sum(x * x, -1) + tiny for x in (x1, x2)]
    cosine = ops.sum(x1 * x2, -1) / ops.sqrt(sizes[0] * sizes[1])
    target = _of_rows(op, target, cosine)
    other = ops.where(target == -1, ops.relu(cosine - margin), 0.0)
    return reduced(op, ops.where(target == 1, 1 - cosine, other), reduction)


# ---- margins -----------------------------------------------------------------------------------
def margin_ranking_loss(
    x1: Any, x2: Any, target: Any, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    """max(0, margin - target (x1 - x2)), elementwise: target 1 where x1 should be larger, else -1.

    Raises ShapeError for different shapes, ValueError for another reduction.

    >>> import sparsegrad as sg
    >>> x1, x2 = sg.tensor([1.0, 5.0]), sg.tensor([2.0, 2.0])
    >>> sg.nn.functional.margin_ranking_loss(x1, x2, sg.tensor([1, 1]), reduction="none")
    tensor([1., 0.])
    """
    op = "margin_ranking_loss"
    x1, x2, target = _alike(op, x1, x2, target)
    return reduced(op, ops.relu(margin - target * (x1 - x2)), reduction)


def hinge_embedding_loss(x: Any, target: Any, margin: float = 1.0, reduction: str = "mean") -> Any:
    """x where the target is 1, max(0, margin - x) where it is -1; elementwise, x a distance.

    Raises ShapeError for different shapes, ValueError for another reduction.

    >>> import sparsegrad as sg
    >>> sg.nn.functional.hinge_embedding_loss(sg.tensor([0.25, 0.25]), sg.tensor([1, -1]))
    tensor(0.5)
    """
    op = "hinge_embedding_loss"
    x, target = _alike(op, x, target)
    near = ops.where(target != -1, x, 0.0)
    return reduced(op, near + ops.where(target != 1, ops.relu(margin - x), 0.0), reduction)


def soft_margin_loss(x: Any, target: Any, reduction: str = "mean") -> Any:
    """log(1 + exp(-target x)), elementwise, target 1 or -1; without overflow.

    Raises ShapeError for different shapes, ValueError for another reduction.

    >>> import sparsegrad as sg
    >>> sg.nn.functional.soft_margin_loss(sg.tensor([0.0, 1000.0]), sg.tensor([1, 1]), "sum")
    tensor(0.6931472)
    """
    op = "soft_margin_loss"
    x, target = _alike(op, x, target)
    return reduced(op, -ops.logsigmoid(target * x), reduction)


# ---- likelihoods -------------------------------------------------------------------------------
def poisson_nll_loss(
    x: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Any:
    """exp(x) - target x, elementwise, for the logarithm x of a rate; for the rate itself (log_input
    False) x - target log(x + eps). full: with Stirling's formula of log(target!) for targets > 1.

    Raises ShapeError for different shapes, ValueError for another reduction.

    >>> import sparsegrad as sg
    >>> sg.nn.functional.poisson_nll_loss(sg.zeros(2), sg.tensor([1.0, 3.0]))
    tensor(1.)
    """
    op = "poisson_nll_loss"
    x, target = _alike(op, x, target)
    loss = ops.exp(x) - target * x if log_input else x - target * ops.log(x + eps)
    if full:
        many = target > 1
        t = ops.where(many, target, 1.0)
        stirling = t * ops.log(t) - t + 0.5 * ops.log(2 * math.pi * t)
        loss = loss + ops.where(many, stirling, 0.0)
    return reduced(op, loss, reduction)


def gaussian_nll_loss(
    x: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """(log(var) + (x - target)² / var) / 2, elementwise; var, at least eps, broadcasts. full: with
    the constant log(2 pi) / 2.

    Raises ShapeError for x and target of different shapes, ValueError for a negative variance or
    another reduction.

    >>> import sparsegrad as sg
    >>> sg.nn.functional.gaussian_nll_loss(sg.zeros(2), sg.tensor([1.0, 3.0]), sg.ones(2))
    tensor(2.5)
    """
    op = "gaussian_nll_loss"
    (x, target), var = _alike(op, x, target), as_tensor(var)
    if bool((var.data < 0).any()):  # sync
        raise ValueError(f"{op}: var has negative elements")
    var = ops.clamp(var, eps)
    gap = x - target
    loss = 0.5 * (ops.log(var) + gap * gap / var)
    return reduced(op, loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)
