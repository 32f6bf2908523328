"""Reductions of sparse tensors over sparse and dense dimensions, and softmax over stored entries.

Entries are grouped by the dimensions that are left (a cached plan), then reduced run by run. A
result with at most one sparse dimension is dense, any other is sparse. With `include_zeros` (the
default) absent entries count as the zeros they stand for, so the result is that of the dense
tensor; without, only stored entries count, and what has none is 0. Non-linear reductions see each
entry once: duplicates are summed first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from sparsegrad import dtypes
from sparsegrad.errors import DensifyError, ShapeError
from sparsegrad.ops.elementwise import abs as abs_
from sparsegrad.ops.elementwise import cast, div_p
from sparsegrad.ops.index import put_rows_p, take_or_zero_p
from sparsegrad.ops.reduce import (
    amax_p,
    amin_p,
    argmax_p,
    axes_of,
    axis_of,
    check_some,
    sum_p,
)
from sparsegrad.ops.segment import (
    segment_amax_p,
    segment_amin_p,
    segment_log_softmax_p,
    segment_logsumexp_p,
    segment_prod_p,
    segment_softmax_p,
    segment_sum_p,
)
from sparsegrad.ops.segment_extreme import segment_first_p, take_chosen_p
from sparsegrad.ops.segment_var import segment_var_p
from sparsegrad.ops.shape import permute_p, reshape_p
from sparsegrad.ops.softmaxes import logsumexp_p
from sparsegrad.ops.sparse_structure import apply_merge, coalesce, reorder_p, split_dense
from sparsegrad.ops.statistics import argmin_p
from sparsegrad.ops.unary import abs_power_p, root_p
from sparsegrad.structure import plan_reduce
from sparsegrad.structure.arrays import index_dtype
from sparsegrad.structure.pattern import Pattern
from sparsegrad.structure.plan import Sums
from sparsegrad.structure.plan import coalesce as merged
from sparsegrad.structure.plan_reduce import Candidates, Groups, Halvings
from sparsegrad.tensor import Tensor

__all__: list[str] = []


class _Split(NamedTuple):
    """A reduction taken apart: what is reduced inside `values`, what across entries."""

    inner: tuple[int, ...]  # axes of values (nnz, *D)
    left: tuple[int, ...]  # sparse dimensions that stay
    shape: tuple[int, ...]  # of the result
    cells: int  # sparse cells that meet in one cell of the result


def _split(op: str, A: Any, dim: Any, keepdim: bool) -> _Split:
    axes = axes_of(op, dim, A.ndim)
    sparse = A.sparse_dim
    shape = tuple(1 if d in axes else n for d, n in enumerate(A.shape) if keepdim or d not in axes)
    return _Split(
        tuple(a - sparse + 1 for a in axes if a >= sparse),
        tuple(d for d in range(sparse) if d not in axes),
        shape,
        math.prod(A.shape[d] for d in range(sparse) if d in axes),
    )


def _grouped(A: Any, left: tuple[int, ...]) -> tuple[Pattern, Groups, Any]:
    """The pattern of A with each entry once, how its entries are grouped, and the values so listed:
    duplicates are summed and moved in one pass."""
    if A.pattern.core.unique:
        plan = plan_reduce.groups(A.pattern, left)
        values = A.values if plan.moves is None else reorder_p(A.values, moves=plan.moves)
        return A.pattern, plan, values
    merge: Any = merged(A.pattern)
    pattern, plan = merge.pattern, plan_reduce.groups(merge.pattern, left)
    if plan.moves is not None:
        perm = plan.moves.perm
        merge = A.pattern.cached(("listed", left), lambda: merge.listed(perm))
    return pattern, plan, apply_merge(A.values, merge)


class _Runs(NamedTuple):
    """Values (nnz * each, *rest) of a pattern without duplicates in runs, in which stands what is
    reduced inside the values too; how many elements an entry brings along."""

    pattern: Pattern
    plan: Groups
    values: Any
    indptr: Any
    each: int


def _in_runs(A: Any, split: _Split) -> _Runs:
    pattern, plan, values = _grouped(A, split.left)
    if not split.inner:
        return _Runs(pattern, plan, values, plan.indptr, 1)
    values, each = _elements(values, split.inner)
    key = ("runs of elements", split.left, each)
    indptr = pattern.cached(key, lambda: plan.indptr * each)
    return _Runs(pattern, plan, values, indptr, each)


def _elements(values: Any, inner: tuple[int, ...]) -> tuple[Any, int]:
    """Values (nnz, *D) as (nnz * each, *rest), what is reduced inside them side by side."""
    each = math.prod(values.shape[a] for a in inner)
    order = sorted(range(values.ndim), key=lambda a: a > 0 and a not in inner)
    if order != list(range(values.ndim)):
        values = permute_p(values, axes=tuple(order))
    return reshape_p(values, shape=(len(values) * each, *values.shape[1 + len(inner) :])), each


def _every(pattern: Pattern, runs: int, each: int) -> Any:
    """Offsets (runs + 1,) of runs of `each` elements."""
    xp, dtype = pattern.core.backend.xp, index_dtype((), runs * each)
    key = ("runs of", runs, each)
    return pattern.cached(key, lambda: xp.arange(runs + 1, dtype=dtype) * dtype.type(each))


def _placed(A: Any, split: _Split, plan: Groups | Candidates, out: Any) -> Any:
    """One value a run (s, *D) as the result of shape `split.shape`."""
    if plan.pattern is None:
        return reshape_p(out, shape=split.shape)
    return _with_dims(wrap(out, plan.pattern), split, A.sparse_dim)


def _with_dims(A: Any, split: _Split, sparse: int) -> Any:
    """A sparse result with the reduced dimensions back as size 1, if `split.shape` has them."""
    if len(split.shape) == A.ndim:
        return A

    def build() -> Pattern:
        zeros = A.pattern.core.backend.xp.zeros(A.nnz, dtype=A.pattern.coords[0].dtype)
        listed = iter(A.pattern.coords)
        coords = [next(listed) if d in split.left else zeros for d in range(sparse)]
        return Pattern.coo(coords, split.shape[:sparse], check=False, copy=False)

    pattern = A.pattern.cached(("with dims", split.left, sparse), build)
    return wrap(reshape_p(A.values, shape=(A.nnz, *split.shape[sparse:])), pattern)


def _entrywise(A: Any, split: _Split, values: Any) -> Any:
    """A result that no sparse dimension was reduced for: on the pattern of A."""
    return wrap(reshape_p(values, shape=(A.nnz, *split.shape[A.sparse_dim :])), A.pattern)


# ---- linear ------------------------------------------------------------------------------------
def sparse_sum(A: Any, dim: Any, keepdim: bool) -> Any:
    """Sum of stored entries; absent ones add nothing."""
    split = _split("sum", A, dim, keepdim)
    values = sum_p(A.values, axis=split.inner) if split.inner else A.values
    if len(split.left) == A.sparse_dim:
        return _entrywise(A, split, values)
    if not split.left:
        return reshape_p(sum_p(values, axis=(0,)), shape=split.shape)
    if len(split.left) == 1 and not A.pattern.core.backend.scatter_sorts:
        (d,) = split.left  # straight into the rows: no sorting
        out = put_rows_p(values, index=A.pattern.ids(d), n=A.shape[d])
        return out if out.shape == split.shape else reshape_p(out, shape=split.shape)
    plan = plan_reduce.groups(A.pattern, split.left)
    return _placed(A, split, plan, apply_merge(values, _sums(A.pattern, split.left, plan)))


def _sums(pattern: Pattern, left: tuple[int, ...], plan: Groups) -> Sums:
    perm = None if plan.moves is None else plan.moves.perm
    return pattern.cached(("sum", left), lambda: Sums(perm, plan.indptr))


def sparse_mean(A: Any, dim: Any, keepdim: bool, include_zeros: bool) -> Any:
    """Sum over the number of cells, or of stored entries without `include_zeros`."""
    if (wide := dtypes.accumulator(A.dtype)) != A.dtype:  # neither sum nor count need fit
        return cast(sparse_mean(cast(A, wide), dim, keepdim, include_zeros), A.dtype)
    split = _split("mean", A, dim, keepdim)
    inner = math.prod(A.values.shape[a] for a in split.inner)
    if include_zeros:
        cells = split.cells * inner
        total = sparse_sum(A, dim, keepdim)
        return total / cells if cells else total * float("nan")
    A = _once(A)
    total = sparse_sum(A, dim, keepdim)
    if len(split.left) == A.sparse_dim:
        return total / inner
    dtype = total.dtype
    counts = A.pattern.cached(
        ("mean", split.left, inner, dtype),
        lambda: (_counts(A.pattern, split) * inner).clip(1).astype(dtype),
    )
    counts = Tensor(counts)
    if getattr(total, "_is_sparse", False):
        sizes = reshape_p(counts, shape=(-1, *(1,) * total.dense_dim))
        return total.with_values(cast(div_p(total.values, sizes), total.dtype))
    trailing = A.dense_dim if keepdim else A.dense_dim - len(split.inner)
    lead = total.shape[: total.ndim - trailing]
    out = div_p(total, reshape_p(counts, shape=(*lead, *(1,) * trailing)))
    return cast(out, total.dtype)


def _counts(pattern: Pattern, split: _Split) -> Any:
    return pattern.core.backend.xp.diff(plan_reduce.groups(pattern, split.left).indptr)


def _once(A: Any) -> Any:
    """Each entry once: non-linear functions must not see duplicates apart."""
    return A if A.pattern.core.unique else coalesce(A)


# ---- not linear --------------------------------------------------------------------------------
def sparse_var(
    op: str, A: Any, dim: Any, correction: float, keepdim: bool, root: bool = False
) -> Any:
    """Variance of the cells, or its root; absent ones are zeros."""
    A = _once(A)
    split = _split(op, A, dim, keepdim)
    cells = split.cells * math.prod(A.values.shape[a] for a in split.inner)
    free = max(cells - correction, 0)
    entrywise = len(split.left) == A.sparse_dim
    if not free and (entrywise or len(split.left) > 1):
        raise DensifyError(
            f"{op}: of {cells} elements with correction {correction} every absent cell of the"
            " result would become nan or inf; write A.to_dense()"
        )
    if entrywise:
        values, each = _elements(A.values, split.inner)
        indptr = _every(A.pattern, len(A.values), each)
        runs = A.pattern.cached(("inside", len(A.values), each), lambda: Sums(None, indptr))
        out = segment_var_p(values, runs=runs, cells=cells, free=free, root=root)
        return _entrywise(A, split, out)
    if split.inner:
        _, plan, values, indptr, each = _in_runs(A, split)
        runs = A.pattern.cached(("elements", split.left, each), lambda: Sums(None, indptr))
    else:
        plan, values = plan_reduce.groups(A.pattern, split.left), A.values
        runs = _sums(A.pattern, split.left, plan)
    out = segment_var_p(values, runs=runs, cells=cells, free=free, root=root)
    return _placed(A, split, plan, out)


def sparse_first(
    op: str, A: Any, dim: int | None, keepdim: bool, least: bool, values: bool = True
) -> tuple[Any, Any]:
    """Largest (or least) cells along one dimension, or of all, if `values` are asked for, and where
    the first of each is, as int64. Absent cells are zeros."""
    dim = None if dim is None else axis_of(op, dim, A.ndim)
    split = _split(op, A, dim, keepdim)
    check_some(op, A, dim)
    if len(split.left) == A.sparse_dim:
        A = _once(A)
        at = (argmin_p if least else argmax_p)(A.values, axis=split.inner[0])
        found = _entrywise(A, split, _taken(A.values, at, *split.inner)) if values else None
        return found, _entrywise(A, split, at)
    if dim is None:
        A = split_dense(A, A.dense_dim)
        if math.prod(A.shape) >= 2**63:
            raise ShapeError(f"{op}: positions in shape {A.shape} do not fit 64 bits; give a dim")
    plan, listed = _candidates(A, dim)
    out, at = segment_first_p(listed, rows=plan.rows, least=least)
    be = A.pattern.core.backend
    place = be.gather(plan.place, at.data.reshape(-1)).reshape(at.shape)
    return _placed(A, split, plan, out), _placed(A, split, plan, Tensor(place))


def _candidates(A: Any, dim: int | None) -> tuple[Candidates, Any]:
    """Where the extreme of each run may be, and the values there; duplicates are summed and listed
    in one pass, in which an absent cell is a sum of nothing."""
    if A.pattern.core.unique:
        plan = plan_reduce.candidates(A.pattern, dim)
        return plan, take_or_zero_p(A.values, moves=plan.moves)
    merge: Any = merged(A.pattern)
    plan = plan_reduce.candidates(merge.pattern, dim)
    sums = A.pattern.cached(("candidates listed", dim), lambda: merge.listed(plan.moves.perm))
    return plan, apply_merge(A.values, sums)


def _taken(x: Any, at: Any, axis: int) -> Any:
    """The elements of x at positions along one axis, which goes."""
    lead = permute_p(x, axes=(axis, *(a for a in range(x.ndim) if a != axis)))
    return take_chosen_p(lead, at=at.data[None])


def _absent(runs: _Runs, split: _Split, include_zeros: bool) -> Any:
    """How many absent zeros meet in each run (s,), of `each` for an absent entry."""

    def build() -> Any:
        counts = _counts(runs.pattern, split).astype("int64") * runs.each
        return min(split.cells * runs.each, 1 << 62) - counts if include_zeros else counts * 0

    return runs.pattern.cached(("absent", split.left, include_zeros, runs.each), build)


def sparse_extreme(
    A: Any,
    dim: Any,
    keepdim: bool,
    include_zeros: bool,
    least: bool = False,
    magnitude: bool = False,
) -> Any:
    """Largest (or least) cell, or stored entry without `include_zeros`, or its magnitude."""
    op, name = ("amin", "minimum") if least else ("amax", "maximum")
    split = _split(op, A, dim, keepdim)
    if len(split.left) == A.sparse_dim:
        A = abs_(_once(A)) if magnitude else _once(A)
        inside = amin_p if least else amax_p
        return _entrywise(A, split, inside(A.values, axis=split.inner))
    runs = _in_runs(A, split)
    if (runs.each == 0 or (include_zeros and split.cells == 0)) and 0 not in split.shape:
        raise ShapeError(f"{op}: no {name} over an empty dimension of shape {A.shape}")
    absent = _absent(runs, split, include_zeros)
    run = segment_amin_p if least else segment_amax_p
    values = abs_(runs.values) if magnitude else runs.values
    return _placed(A, split, runs.plan, run(values, indptr=runs.indptr, absent=absent))


def sparse_prod(A: Any, dim: Any, keepdim: bool, include_zeros: bool) -> Any:
    """Product of all cells (0 where one is absent), or of stored entries without
    `include_zeros`."""
    split = _split("prod", A, dim, keepdim)
    if len(split.left) == A.sparse_dim:
        A = _once(A)
        return _entrywise(A, split, _product_inside(A, split.inner) if split.inner else A.values)
    runs = _in_runs(A, split)
    pattern, indptr = runs.pattern, runs.indptr
    steps = pattern.cached(("product", split.left, runs.each), lambda: Halvings(indptr))
    if include_zeros:
        zeros = _absent(runs, split, include_zeros)
    else:  # and what has no stored entry is 0
        zeros = pattern.cached(
            ("none", split.left), lambda: (_counts(pattern, split) == 0).astype("int64")
        )
    return _placed(A, split, runs.plan, segment_prod_p(runs.values, runs=steps, zeros=zeros))


def _product_inside(A: Any, inner: tuple[int, ...]) -> Any:
    values, each = _elements(A.values, inner)
    count, xp = len(A.values), A.pattern.core.backend.xp
    runs = A.pattern.cached(
        ("product inside", count, each), lambda: Halvings(_every(A.pattern, count, each))
    )
    zeros = A.pattern.cached(("no zeros", count), lambda: xp.zeros(count, "int64"))
    return segment_prod_p(values, runs=runs, zeros=zeros)


def sparse_norm(A: Any, p: float, dim: Any, keepdim: bool) -> Any:
    """The p-norm of the cells; absent ones add nothing to it."""
    if p == math.inf:
        return sparse_extreme(A, dim, keepdim, include_zeros=False, magnitude=True)
    if p <= 0:
        raise ValueError(f"norm: p must be positive for a sparse tensor, got {p}")
    if p == 1:
        return sparse_sum(abs_(_once(A)), dim, keepdim)
    split = _split("norm", A, dim, keepdim)
    if split.inner and len(split.left) < A.sparse_dim:  # across entries and inside them at once
        runs = _in_runs(A, split)
        powers = segment_sum_p(abs_power_p(runs.values, p=p), indptr=runs.indptr)
        total = _placed(A, split, runs.plan, powers)
    else:
        A = _once(A)
        total = sparse_sum(A.with_values(abs_power_p(A.values, p=p)), dim, keepdim)
    if getattr(total, "_is_sparse", False):
        return total.with_values(root_p(total.values, p=p))
    return root_p(total, p=p)


# ---- over stored entries -----------------------------------------------------------------------
def sparse_logsumexp(A: Any, dim: Any, keepdim: bool) -> Any:
    """log(sum(exp)) of stored entries: absent ones count as minus infinity; 0 where none is."""
    split = _split("logsumexp", A, dim, keepdim)
    if len(split.left) == A.sparse_dim:
        A = _once(A)
        return _entrywise(A, split, logsumexp_p(A.values, axis=split.inner))
    runs = _in_runs(A, split)
    return _placed(A, split, runs.plan, segment_logsumexp_p(runs.values, indptr=runs.indptr))


def sparse_softmax(A: Any, dim: int) -> Any:
    """Softmax over the stored entries along one dimension."""
    return _along(A, dim, "softmax", segment_softmax_p)


def sparse_log_softmax(A: Any, dim: int) -> Any:
    """Logarithm of the softmax over the stored entries along one dimension."""
    return _along(A, dim, "log_softmax", segment_log_softmax_p)


def _along(A: Any, dim: int, name: str, run: Callable[..., Any]) -> Any:
    axis = axis_of(name, dim, A.ndim)
    if axis >= A.sparse_dim:  # each row of elements is a run
        A = _once(A)
        shape, at = A.values.shape, axis - A.sparse_dim + 1
        count = math.prod(shape[:at])
        values = reshape_p(A.values, shape=(count * shape[at], *shape[at + 1 :]))
        out = run(values, indptr=_every(A.pattern, count, shape[at]))
        return wrap(reshape_p(out, shape=shape), A.pattern)
    left = tuple(d for d in range(A.sparse_dim) if d != axis)
    pattern, plan, values = _grouped(A, left)
    out = run(values, indptr=plan.indptr)
    if plan.moves is not None:
        out = reorder_p(out, moves=plan.moves.back)
    return wrap(out, pattern)


from sparsegrad.sparse_tensor import wrap  # noqa: E402  (the one import cycle)
