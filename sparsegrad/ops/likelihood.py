"""The negative log-likelihood, and what losses of classes share: their targets and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegrad import backends, dtypes
from sparsegrad.engine.mode import anomaly
from sparsegrad.errors import DtypeError, ShapeError
from sparsegrad.ops.elementwise import cast, where_p
from sparsegrad.ops.index import pick_p
from sparsegrad.ops.reduce import mean
from sparsegrad.ops.reduce import sum as sum_
from sparsegrad.ops.shape import as_argument, permute_p, reshape_p

__all__ = ["nll_loss"]


def check_classes(op: str, target: Any, classes: int) -> None:
    """IndexError for a class outside [0, classes); on a GPU PatternError, when something next
    waits for it."""
    be = backends.for_array(target)
    if be.xp is not np:
        be.check_indices(f"{op}: target", target, classes, later=not anomaly.get())
        return
    if target.size and (target.min() < 0 or target.max() >= classes):
        at = int(((target < 0) | (target >= classes)).argmax())
        raise IndexError(f"{op}: target[{at}] = {int(target[at])} is outside [0, {classes})")


def check_reduction(op: str, reduction: str) -> None:
    """ValueError unless a loss has that reduction."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{op}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


def reduced(op: str, losses: Any, reduction: str) -> Any:
    """Losses as they are, their mean or their sum. ValueError for another reduction."""
    check_reduction(op, reduction)
    if reduction == "none":
        return losses
    return mean(losses) if reduction == "mean" else sum_(losses)


def class_ids(op: str, target: Any) -> Any:
    """The array of the classes in `target`, as int64; DtypeError for fractions, TypeError for a
    SparseTensor."""
    if target._is_sparse:
        raise TypeError(f"{op}: target: classes must be dense, got a SparseTensor")
    if target.data.size and dtypes.kind(target.dtype) in "fc":
        raise DtypeError(f"{op}: target: classes are integers, got {target.dtype}")
    return target.data.astype("int64", copy=False)


def rows_of_classes(op: str, x: Any, target: Any, soft: bool = False) -> tuple[Any, Any]:
    """x (n, C) and its target from any shape that a loss of classes takes: (C,), or (n, C, *d) with
    target (n, *d), of probabilities that of x. ShapeError names the op."""
    expected = x.shape if soft else x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
    if not x.ndim or tuple(target.shape) != tuple(expected):
        raise ShapeError(
            f"{op}: expected (n, C) or (n, C, *d) and classes (n,) or (n, *d), got "
            f"{tuple(x.shape)} and {tuple(target.shape)}"
        )
    if x.ndim == 2:
        return x, target
    classes = x.shape[1 if x.ndim > 1 else 0]

    def rows(t: Any) -> Any:
        if t.ndim > 2:
            t = permute_p(t, axes=(0, *range(2, t.ndim), 1))
        return reshape_p(t, shape=(t.data.size // (classes or 1), classes))

    return rows(x), rows(target) if soft else reshape_p(target, shape=(target.data.size,))


def nll_loss(
    log_probs: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Any:
    """Negative of the log-probability of the true class: log_probs (n, C) and target (n,) of
    integers, or (n, C, *d) and (n, *d), or (C,) and ().

    weight: (C,), a factor of each class, a constant; the mean is divided by the sum of the factors
        that were used. ignore_index: a class that is left out.
    reduction: "mean", "sum", or "none" for the shape of `target`.
    Raises ShapeError for other shapes, DtypeError for classes that are no integers, IndexError for
    one outside [0, C).

    >>> import sparsegrad as sg
    >>> sg.nll_loss(sg.tensor([[-1.0, -2.0], [-3.0, -4.0]]), sg.tensor([0, 1]), ignore_index=1)
    tensor(1.)
    """
    from sparsegrad.tensor import Tensor, as_tensor

    check_reduction("nll_loss", reduction)
    log_probs, target = as_argument("nll_loss", log_probs), as_tensor(target)
    if log_probs._is_sparse:
        raise TypeError("nll_loss: log_probs must be dense, got a SparseTensor; write A.to_dense()")
    shape = target.shape
    log_probs, target = rows_of_classes("nll_loss", log_probs, target)
    be = backends.for_array(log_probs.data)
    ids = be.asarray(class_ids("nll_loss", target))
    left_out = ids == ignore_index
    ids = be.xp.where(left_out, 0, ids)
    classes = log_probs.shape[1]
    check_classes("nll_loss", ids, classes)
    wide = dtypes.accumulator(log_probs.dtype)
    loss = -reshape_p(pick_p(log_probs, index=ids.reshape(-1, 1), axis=1), shape=ids.shape)
    loss, factors = cast(loss, wide), (~left_out).astype(wide)
    if weight is not None:
        weight = as_tensor(weight)
        if weight.shape != (classes,):
            raise ShapeError(f"nll_loss: expected weight ({classes},), got {weight.shape}")
        factors = factors * be.asarray(weight.data)[ids].astype(wide)
        loss = loss * Tensor(factors)
    loss = where_p(0, loss, mask=left_out)
    if reduction == "none":
        return cast(reshape_p(loss, shape=shape), log_probs.dtype)
    total = sum_(loss)
    return cast(total if reduction == "sum" else total / sum_(Tensor(factors)), log_probs.dtype)
