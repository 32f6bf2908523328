"""Reductions and softmax of dense tensors. float16 accumulates in float32."""

from __future__ import annotations

from typing import Any, NamedTuple

from sparsegrad import dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError
from sparsegrad.ops.elementwise import cast, exp_p
from sparsegrad.ops.index import pick_p, spread_p
from sparsegrad.ops.shape import broadcast_p, reshape_p

__all__ = [
    "MaxResult",
    "amax",
    "argmax",
    "cross_entropy",
    "log_softmax",
    "max",
    "mean",
    "nll_loss",
    "softmax",
    "sum",
]


def axes_of(op: str, dim: Any, ndim: int) -> tuple[int, ...]:
    """`dim` (None, int or tuple) as sorted non-negative axes; ShapeError names the op."""
    if dim is None:
        return tuple(range(ndim))
    axes = []
    for d in dim if isinstance(dim, (tuple, list)) else (dim,):
        if not -ndim <= d < ndim and not (ndim == 0 and d in (0, -1)):
            raise ShapeError(f"{op}: dim {d} is outside the {ndim} dimensions of the input")
        axes.append(d % ndim if ndim else 0)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{op}: dim {dim} names a dimension twice")
    return tuple(sorted(axes)) if ndim else ()


def _kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _back(g: Any, x_meta: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """A cotangent of a reduction's result, broadcast to the input's shape."""
    if not keepdims:
        g = reshape_p(g, shape=_kept(x_meta.shape, axis))
    return broadcast_p(g, shape=x_meta.shape)


# ---- sums and maxima ---------------------------------------------------------------------------
@primitive(promote="none")
def sum_p(be: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    return be.sum(x, axis, keepdims)


sum_p.defvjp(x=_back)


@primitive(promote="float")
def mean_p(be: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    wide = dtypes.accumulator(x.dtype)
    return be.xp.mean(x, axis=axis, keepdims=keepdims, dtype=wide).astype(x.dtype, copy=False)


def _mean_rule(g: Any, x_meta: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    count = 1
    for a in axis:
        count *= x_meta.shape[a]
    return _back(g / count if count else g, x_meta, axis, keepdims)


mean_p.defvjp(x=_mean_rule)


@primitive(promote="none")
def amax_p(xp: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    return xp.amax(x, axis=axis, keepdims=keepdims)


def _amax_rule(g: Any, x: Any, out: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Ties share the gradient equally; the count is exact and the division in float32 or wider,
    since half precision stops counting at 2048."""
    shape = _kept(x.shape, axis)
    hit = x == reshape_p(out, shape=shape)
    wide = dtypes.accumulator(x.dtype)
    weight = cast(hit, wide) / cast(sum_p(hit, axis=axis, keepdims=True), wide)
    return reshape_p(g, shape=shape) * cast(weight, g.dtype)


amax_p.defvjp(x=_amax_rule)


@primitive(promote="none", aux=("index",))
def max_p(xp: Any, x: Any, *, axis: int) -> Any:
    """Maximum along one axis, kept as size 1; the first of equal elements wins."""
    index = xp.expand_dims(xp.argmax(x, axis=axis), axis)
    return xp.take_along_axis(x, index, axis=axis), index


max_p.defvjp(
    x=lambda g, index, axis, x_meta: spread_p(g, index=index, axis=axis, n=x_meta.shape[axis])
)


@primitive(promote="none")
def argmax_p(xp: Any, x: Any, *, axis: int | None, keepdims: bool = False) -> Any:
    return xp.argmax(x, axis=axis, keepdims=keepdims)


# ---- softmax -----------------------------------------------------------------------------------
@primitive(promote="float")
def softmax_p(xp: Any, x: Any, *, axis: int) -> Any:
    wide = x.astype(dtypes.accumulator(x.dtype), copy=False)
    if x.size == 0:
        return x.copy()
    weight = xp.exp(wide - xp.amax(wide, axis=axis, keepdims=True))
    weight /= weight.sum(axis=axis, keepdims=True)
    return weight.astype(x.dtype, copy=False)


softmax_p.defvjp(
    x=lambda g, out, axis: out * (g - sum_p(g * out, axis=(axis,), keepdims=True)),
)


@primitive(promote="float")
def log_softmax_p(xp: Any, x: Any, *, axis: int) -> Any:
    wide = x.astype(dtypes.accumulator(x.dtype), copy=False)
    if x.size == 0:
        return x.copy()
    shifted = wide - xp.amax(wide, axis=axis, keepdims=True)
    shifted -= xp.log(xp.exp(shifted).sum(axis=axis, keepdims=True))
    return shifted.astype(x.dtype, copy=False)


log_softmax_p.defvjp(
    x=lambda g, out, axis: g - exp_p(out) * sum_p(g, axis=(axis,), keepdims=True),
)


# ---- public names ------------------------------------------------------------------------------
def sum(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Sum over `dim` (int, tuple, or None for all): the shape without those dimensions, or with
    size 1 there if `keepdim`. Integers and bools sum to int64, as in PyTorch. Absent entries of
    a SparseTensor count as 0.

    >>> import sparsegrad as sg
    >>> sg.sum(sg.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=1)
    tensor([3., 7.])
    """
    if dtype is not None:
        x = cast(x, dtype)
    elif x.dtype.kind in "biu":
        x = cast(x, dtypes.int64)
    if getattr(x, "_is_sparse", False):
        from sparsegrad.ops.sparse_reduce import sparse_sum

        return sparse_sum(x, dim, keepdim)
    return sum_p(x, axis=axes_of("sum", dim, x.ndim), keepdims=keepdim)


def mean(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Arithmetic mean over `dim`; absent entries of a SparseTensor count as 0. Shapes as `sum`."""
    if getattr(x, "_is_sparse", False):
        count = 1
        for a in axes_of("mean", dim, x.ndim):
            count *= x.shape[a]
        return sum(x, dim, keepdim) / count
    return mean_p(x, axis=axes_of("mean", dim, x.ndim), keepdims=keepdim)


def amax(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Maximum over `dim`, shapes as `sum`; equal maxima share the gradient equally."""
    axes = axes_of("amax", dim, x.ndim)
    if any(x.shape[a] == 0 for a in axes):
        raise ShapeError(f"amax: no maximum over an empty dimension of shape {x.shape}")
    return amax_p(x, axis=axes, keepdims=keepdim)


class MaxResult(NamedTuple):
    """Maxima along a dimension and where they are."""

    values: Any
    indices: Any


def max(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Maximum of all elements; with `dim` a pair (values, indices), where the first of equal
    elements wins and gets the gradient.

    >>> import sparsegrad as sg
    >>> sg.max(sg.tensor([[1.0, 5.0], [7.0, 3.0]]), dim=1).indices
    tensor([1, 0])
    """
    if dim is None:
        return amax(x)
    (axis,) = axes_of("max", dim, x.ndim)
    if x.shape[axis] == 0:
        raise ShapeError(f"max: no maximum over an empty dimension of shape {x.shape}")
    values, indices = max_p(x, axis=axis), argmax_p(x, axis=axis, keepdims=True)
    if keepdim:
        return MaxResult(values, indices)
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return MaxResult(reshape_p(values, shape=shape), reshape_p(indices, shape=shape))


def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Position of the first maximum, in the flattened tensor or along `dim`, as int64."""
    axis = None if dim is None else axes_of("argmax", dim, x.ndim)[0]
    return argmax_p(x, axis=axis, keepdims=keepdim)


def softmax(x: Any, dim: int = -1) -> Any:
    """exp(x) / sum(exp(x)) along `dim`, same shape. For a SparseTensor over the stored entries of
    each row (dim 1) or column (dim 0): absent entries count as minus infinity.

    >>> import sparsegrad as sg
    >>> sg.softmax(sg.tensor([0.0, 0.0]), dim=0)
    tensor([0.5, 0.5])
    """
    if getattr(x, "_is_sparse", False):
        from sparsegrad.ops.segment import sparse_softmax

        return sparse_softmax(x, dim)
    return softmax_p(x, axis=axes_of("softmax", dim, x.ndim)[0])


def log_softmax(x: Any, dim: int = -1) -> Any:
    """log(softmax(x)) along `dim`, computed without cancellation, same shape."""
    return log_softmax_p(x, axis=axes_of("log_softmax", dim, x.ndim)[0])


def nll_loss(log_probs: Any, target: Any, reduction: str = "mean") -> Any:
    """Negative of the log-probability of the true class: log_probs (n, C), target (n,) integer.

    reduction: "mean", "sum", or "none" for shape (n,). Raises ShapeError for other shapes and
    IndexError for a class outside [0, C).
    """
    from sparsegrad.tensor import as_tensor

    target = as_tensor(target)
    if log_probs.ndim != 2 or target.shape != log_probs.shape[:1]:
        raise ShapeError(
            f"nll_loss: expected log_probs (n, C) and target (n,), got {log_probs.shape} and "
            f"{target.shape}"
        )
    classes = log_probs.shape[1]
    bad = (target.data < 0) | (target.data >= classes)
    if bool(bad.any()):
        at = int(bad.argmax())
        raise IndexError(
            f"nll_loss: target[{at}] = {int(target.data[at])} is outside [0, {classes})"
        )
    index = target.data.astype("int64").reshape(-1, 1)
    loss = -reshape_p(pick_p(log_probs, index=index, axis=1), shape=target.shape)
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise ValueError(f"nll_loss: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    return mean(loss) if reduction == "mean" else sum(loss)


def cross_entropy(logits: Any, target: Any, reduction: str = "mean") -> Any:
    """Cross-entropy of logits (n, C) against integer classes (n,); see `nll_loss`.

    >>> import sparsegrad as sg
    >>> sg.cross_entropy(sg.tensor([[0.0, 0.0]]), sg.tensor([1]))
    tensor(0.6931472)
    """
    return nll_loss(log_softmax(logits, 1), target, reduction)
