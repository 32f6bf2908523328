"""Softmax and its kin along dimensions. 16-bit floats accumulate in float32."""

from __future__ import annotations

from typing import Any

from sparsegrad.engine.primitive import primitive
from sparsegrad.ops.elementwise import cast, exp_p
from sparsegrad.ops.reduce import axes_of, by_rows, kept_shape, one_axis, sparse_reduce, sum_p
from sparsegrad.ops.shape import as_argument, reshape_p

__all__ = ["log_softmax", "logsumexp", "softmax"]


@primitive(promote="float")
def softmax_p(be: Any, x: Any, *, axis: int) -> Any:
    return be.softmax(x, axis) if x.size else x.copy()


def _softmax_rule(g: Any, out: Any, axes: tuple[int, ...]) -> Any:
    return out * (g - sum_p(g * out, axis=axes, keepdims=True))


softmax_p.defvjp(
    x=lambda g, out, axis: by_rows("softmax", g, (axis,), (out,), _softmax_rule), sparse_g=True
)


@primitive(promote="float")
def log_softmax_p(be: Any, x: Any, *, axis: int) -> Any:
    return be.log_softmax(x, axis) if x.size else x.copy()


@primitive(promote="float")
def logsumexp_p(be: Any, x: Any, *, axis: tuple[int, ...]) -> Any:
    """log(sum(exp(x))) over `axis`, kept as size 1; -inf where there is nothing to sum."""
    if x.size == 0:
        return be.xp.full(kept_shape(x.shape, axis), -be.xp.inf, x.dtype)
    return be.logsumexp(x, axis)


logsumexp_p.defvjp(
    x=lambda g, x, out, axis: by_rows(
        "logsumexp", g, axis, (x, out), lambda g, x, out, axes: g * exp_p(x - out)
    ),
    sparse_g=True,
)
log_softmax_p.defvjp(
    x=lambda g, out, axis: by_rows(
        "log_softmax",
        g,
        (axis,),
        (out,),
        lambda g, out, axes: g - exp_p(out) * sum_p(g, axis=axes, keepdims=True),
    ),
    sparse_g=True,
)


# ---- public names ------------------------------------------------------------------------------
def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """log(sum(exp(x))) over `dim` without overflow, shapes as `sum`. For a SparseTensor over the
    stored entries: absent ones count as minus infinity, and what has none is 0.

    >>> import sparsegrad as sg
    >>> sg.logsumexp(sg.tensor([[0.0, 0.0]]), dim=1)
    tensor([0.6931472])
    """
    x = as_argument("logsumexp", x)
    if x._is_sparse:
        return sparse_reduce().sparse_logsumexp(x, dim, keepdim)
    axes = axes_of("logsumexp", dim, x.ndim)
    out = logsumexp_p(x, axis=axes)
    if keepdim:
        return out
    return reshape_p(out, shape=tuple(n for i, n in enumerate(x.shape) if i not in axes))


def softmax(x: Any, dim: int = -1, dtype: Any = None) -> Any:
    """exp(x) / sum(exp(x)) along `dim`, same shape. For a SparseTensor over the stored entries of
    each row (dim 1) or column (dim 0): absent entries count as minus infinity.

    dtype: what `x` is cast to first.

    >>> import sparsegrad as sg
    >>> sg.softmax(sg.tensor([0.0, 0.0]), dim=0)
    tensor([0.5, 0.5])
    """
    x = as_argument("softmax", x)
    x = x if dtype is None else cast(x, dtype)
    if x._is_sparse:
        return sparse_reduce().sparse_softmax(x, dim)
    flat, axis = one_axis("softmax", x, dim)
    out = softmax_p(flat, axis=axis)
    return out if flat is x else reshape_p(out, shape=())


def log_softmax(x: Any, dim: int = -1, dtype: Any = None) -> Any:
    """log(softmax(x)) along `dim`, computed without cancellation, same shape; of a SparseTensor
    over its stored entries, as `softmax`. dtype: what `x` is cast to first.

    >>> import sparsegrad as sg
    >>> sg.log_softmax(sg.zeros(1, 4), 1).exp()
    tensor([[0.25, 0.25, 0.25, 0.25]])
    """
    x = as_argument("log_softmax", x)
    x = x if dtype is None else cast(x, dtype)
    if x._is_sparse:
        return sparse_reduce().sparse_log_softmax(x, dim)
    flat, axis = one_axis("log_softmax", x, dim)
    out = log_softmax_p(flat, axis=axis)
    return out if flat is x else reshape_p(out, shape=())
