"""Sums, products, softmax over consecutive runs of rows: the numeric half of many sparse ops."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from sparsegrad import backends
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError
from sparsegrad.ops.elementwise import exp_p, where_p
from sparsegrad.ops.index import put_rows_p, take_p
from sparsegrad.ops.shape import as_argument, cat_p, slice_p
from sparsegrad.structure.plan_reduce import Halvings
from sparsegrad.tensor import Tensor

__all__ = ["segment_softmax", "segment_sum"]


@primitive(promote="none")
def segment_sum_p(be: Any, values: Any, *, indptr: Any) -> Any:
    """Values (nnz, *D), offsets (s + 1,) -> (s, *D)."""
    return be.segment_sum(values, indptr)


@primitive(promote="none")
def segment_expand_p(be: Any, x: Any, *, indptr: Any, nnz: int) -> Any:
    """The transpose of `segment_sum_p`: every run takes its row, (s, *D) -> (nnz, *D)."""
    return be.segment_spread(x, indptr, nnz)


segment_sum_p.defvjp(
    values=lambda g, indptr, values_meta: segment_expand_p(
        g, indptr=indptr, nnz=values_meta.shape[0]
    )
)
segment_expand_p.defvjp(x=lambda g, indptr: segment_sum_p(g, indptr=indptr))


@primitive(promote="float")
def segment_softmax_p(be: Any, values: Any, *, indptr: Any) -> Any:
    """Softmax within each run, shifted by its maximum: (nnz, *D)."""
    return be.segment_softmax(values, indptr)


@primitive
def segment_softmax_grad_p(be: Any, dy: Any, y: Any, *, indptr: Any) -> Any:
    """y * (dy - sum over the run of dy * y), fused: all (nnz, *D)."""
    return be.segment_softmax_grad(dy, y, indptr)


def _spread(a: Any, indptr: Any) -> Any:
    """sum over the run of a, at every entry of the run."""
    return segment_expand_p(segment_sum_p(a, indptr=indptr), indptr=indptr, nnz=a.shape[0])


def _spread_dot(a: Any, b: Any, indptr: Any) -> Any:
    return _spread(a * b, indptr)


segment_softmax_p.defvjp(
    values=lambda g, out, indptr: segment_softmax_grad_p(g, out, indptr=indptr)
)
segment_softmax_grad_p.defvjp(
    # Linear and symmetric in dy; in y it is y * (dy - <dy, y>).
    dy=lambda g, y, indptr: segment_softmax_grad_p(g, y, indptr=indptr),
    y=lambda g, dy, y, indptr: (
        g * (dy - _spread_dot(dy, y, indptr)) - dy * _spread_dot(g, y, indptr)
    ),
)


# ---- largest entry, logarithms -----------------------------------------------------------------
@primitive(promote="none")
def segment_amax_p(be: Any, values: Any, *, indptr: Any, absent: Any) -> Any:
    """Maximum of each run and of as many zeros as `absent` (s,) says: (s, *D); 0 for neither."""
    return _extreme(be.segment_amax, values, indptr, absent)


@primitive(promote="none")
def segment_amin_p(be: Any, values: Any, *, indptr: Any, absent: Any) -> Any:
    """Minimum, as `segment_amax_p` finds the maximum."""
    return _extreme(be.segment_amin, values, indptr, absent)


def _extreme(find: Any, values: Any, indptr: Any, absent: Any) -> Any:
    if values.dtype.kind == "b":
        return find(values.view("uint8"), indptr, absent).view(bool)
    return find(values, indptr, absent)


@primitive(promote="none")
def segment_amax_grad_p(
    be: Any, dy: Any, *, values: Any, top: Any, indptr: Any, absent: Any
) -> Any:
    """The gradient of either, (s, *D) -> (nnz, *D): ties share it equally, the absent zeros among
    them."""
    return be.segment_amax_grad(dy, values, top, indptr, absent)


def _amax_rule(g: Any, values: Any, out: Any, indptr: Any, absent: Any) -> Any:
    fixed = {"values": values.data, "top": out.data, "indptr": indptr, "absent": absent}
    return segment_amax_grad_p(g, **fixed)


def _amax_grad_rule(g: Any, values: Any, top: Any, indptr: Any, absent: Any) -> Any:
    ones = Tensor(backends.for_array(top).xp.ones_like(top))
    fixed = {"values": values, "top": top, "indptr": indptr, "absent": absent}
    return segment_sum_p(g * segment_amax_grad_p(ones, **fixed), indptr=indptr)


segment_amax_p.defvjp(values=_amax_rule)
segment_amin_p.defvjp(values=_amax_rule)
segment_amax_grad_p.defvjp(dy=_amax_grad_rule)


@primitive(promote="float")
def segment_logsumexp_p(be: Any, values: Any, *, indptr: Any) -> Any:
    """log(sum(exp(values))) of each run (s, *D), shifted by its maximum; 0 for an empty run."""
    return be.segment_logsumexp(values, indptr)


segment_logsumexp_p.defvjp(
    values=lambda g, values, indptr, values_meta: (
        segment_expand_p(g, indptr=indptr, nnz=values_meta.shape[0])
        * segment_softmax_p(values, indptr=indptr)
    )
)


@primitive(promote="float")
def segment_log_softmax_p(be: Any, values: Any, *, indptr: Any) -> Any:
    """Logarithm of the softmax within each run: (nnz, *D)."""
    return be.segment_log_softmax(values, indptr)


@primitive
def segment_log_softmax_grad_p(be: Any, dy: Any, y: Any, *, indptr: Any) -> Any:
    """dy - exp(y) * (sum over the run of dy), fused: all (nnz, *D)."""
    return be.segment_log_softmax_grad(dy, y, indptr)


segment_log_softmax_p.defvjp(
    values=lambda g, out, indptr: segment_log_softmax_grad_p(g, out, indptr=indptr)
)
segment_log_softmax_grad_p.defvjp(
    dy=lambda g, y, indptr: g - _spread_dot(g, exp_p(y), indptr),
    y=lambda g, dy, y, indptr: -(exp_p(y) * g * _spread(dy, indptr)),
)


# ---- products ----------------------------------------------------------------------------------
@primitive(promote="none")
def segment_prod_p(be: Any, values: Any, *, runs: Halvings, zeros: Any) -> Any:
    """Product of each run and of as many zeros as `zeros` (s,) says: (nnz, *D) -> (s, *D)."""
    return be.segment_prod(values, runs, zeros)


@primitive
def segment_prod_grad_p(be: Any, dy: Any, values: Any, *, runs: Halvings, zeros: Any) -> Any:
    """Its gradient: dy (s, *D) times all other factors, (nnz, *D). Nothing is divided: it is right
    with any number of zeros."""
    return be.segment_prod_grad(dy, values, runs, zeros)


def _prod_grad_slope(g: Any, dy: Any, values: Any, runs: Halvings, zeros: Any) -> Any:
    """The products of all other factors have a symmetric Jacobian, so this is how they change as
    the values move along g: in rounds of pairs, in ops."""
    none = (zeros > 0).reshape(-1, *(1,) * (dy.ndim - 1))
    spread = segment_expand_p(where_p(0, dy, mask=none), indptr=runs.indptr, nnz=len(values))
    xp, tail, dtype = backends.for_array(values.data).xp, values.shape[1:], values.dtype
    x = cat_p(values, Tensor(xp.ones((1, *tail), dtype)), axis=0)
    dx = cat_p(g, Tensor(xp.zeros((1, *tail), dtype)), axis=0)
    levels = []
    for left, right in runs.rounds:
        (a, da), (b, db) = ((take_p(x, index=i), take_p(dx, index=i)) for i in (left, right))
        levels.append((left, right, len(x), a, da, b, db))
        x, dx = a * b, da * b + a * db
    others, slope = Tensor(xp.ones(x.shape, dtype)), Tensor(xp.zeros(x.shape, dtype))
    for left, right, n, a, da, b, db in reversed(levels):
        pairs = ((left, b, db), (right, a, da))
        slope = reduce(
            add, [put_rows_p(slope * x + others * dx, index=i, n=n) for i, x, dx in pairs]
        )
        others = reduce(add, [put_rows_p(others * x, index=i, n=n) for i, x, _ in pairs])
    return spread * slice_p(slope, axis=0, start=0, stop=len(values))


def _prod_grad_rule(g: Any, dy_meta: Any, values: Any, runs: Halvings, zeros: Any) -> Any:
    ones = Tensor(backends.for_array(values.data).xp.ones(dy_meta.shape, values.dtype))
    others = segment_prod_grad_p(ones, values, runs=runs, zeros=zeros)
    return segment_sum_p(g * others, indptr=runs.indptr)


segment_prod_p.defvjp(
    values=lambda g, values, runs, zeros: segment_prod_grad_p(g, values, runs=runs, zeros=zeros)
)
segment_prod_grad_p.defvjp(dy=_prod_grad_rule, values=_prod_grad_slope)


# ---- public names ------------------------------------------------------------------------------
def _offsets(op: str, values: Any, indptr: Any) -> Any:
    from sparsegrad.structure.arrays import check_offsets

    if values.ndim == 0:
        raise ShapeError(f"{op}: values need a leading dimension, got shape ()")
    offsets = check_offsets(f"{op}: indptr", indptr, values.shape[0])
    return backends.for_array(values.data).asarray(offsets)


def segment_sum(values: Any, indptr: Any) -> Any:
    """Sums of consecutive runs of rows: values (nnz, *D), offsets (s + 1,) -> (s, *D).

    Run i is values[indptr[i]:indptr[i + 1]]; an empty run sums to 0. Raises PatternError for
    offsets that do not start at 0, end at nnz and rise.

    >>> import sparsegrad as sg
    >>> sg.segment_sum(sg.tensor([1.0, 2.0, 3.0]), [0, 2, 2, 3])
    tensor([3., 0., 3.])
    """
    values = as_argument("segment_sum", values)
    return segment_sum_p(values, indptr=_offsets("segment_sum", values, indptr))


def segment_softmax(values: Any, indptr: Any) -> Any:
    """Softmax within consecutive runs of rows: values (nnz, *D), offsets (s + 1,) -> (nnz, *D).

    >>> import sparsegrad as sg
    >>> sg.segment_softmax(sg.tensor([0.0, 0.0, 5.0]), [0, 2, 3])
    tensor([0.5, 0.5, 1. ])
    """
    values = as_argument("segment_softmax", values)
    return segment_softmax_p(values, indptr=_offsets("segment_softmax", values, indptr))
