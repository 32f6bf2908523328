"""What elementwise ops mean for sparse tensors: unions, intersections, and what is refused."""

from __future__ import annotations

from typing import Any

from sparsegrad import dtypes
from sparsegrad.engine.primitive import Primitive, primitive
from sparsegrad.errors import DensifyError, DtypeError, ShapeError
from sparsegrad.ops import activations, binary, composite, special, unary
from sparsegrad.ops import elementwise as dense
from sparsegrad.ops import trigonometric as trig
from sparsegrad.ops.comparisons import eq_p, ge_p, gt_p, le_p, lt_p, ne_p
from sparsegrad.ops.index import take_or_zero_p, take_p
from sparsegrad.ops.shape import (
    as_argument,
    broadcast_p,
    cat_p,
    is_sparse,
    reshape_p,
    slice_p,
)
from sparsegrad.ops.sparse_index import sparse_mask
from sparsegrad.ops.sparse_structure import apply_merge, at_entries, coalesce, onto_dense, to_format
from sparsegrad.structure import plan
from sparsegrad.structure.arrays import Moves

__all__: list[str] = []


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, complex)) or getattr(x, "shape", None) == ()


def _wrap(values: Any, pattern: Any) -> Any:
    from sparsegrad.sparse_tensor import wrap

    return wrap(values, pattern)


# ---- functions of one argument -----------------------------------------------------------------
def _entrywise(op: Primitive, linear: bool) -> None:
    """f(0) = 0: absent entries stay absent. Non-linear functions see each entry once."""

    @op.defsparse
    def apply(x: Any, **static: Any) -> Any:
        if not linear and not x.pattern.core.unique:
            x = coalesce(x)
        return _wrap(op(x.values, **static), x.pattern)


def _refused(op: Primitive, at_zero: str) -> None:
    """f(0) != 0: the result would be dense."""
    name = op.name.removesuffix("_p")

    @op.defsparse
    def refuse(x: Any, **static: Any) -> Any:
        raise DensifyError(
            f"{name}: absent entries of a sparse tensor would become {at_zero}; write "
            f"A.with_values(sg.{name}(A.values)) for stored entries only, or "
            f"sg.{name}(A.to_dense())"
        )


for _op in (dense.neg_p, dense.clone_p):
    _entrywise(_op, linear=True)
for _op in (dense.sqrt_p, dense.tanh_p, dense.relu_p, dense.abs_p, dense.sign_p):
    _entrywise(_op, linear=False)
for _op in (
    *(unary.log1p_p, unary.expm1_p, unary.square_p),
    *(unary.floor_p, unary.ceil_p, unary.trunc_p, unary.round_p, unary.isnan_p, unary.isinf_p),
    *(trig.sin_p, trig.tan_p, trig.asin_p, trig.atan_p),
    *(trig.sinh_p, trig.asinh_p, trig.atanh_p, trig.erf_p),
    *(activations.leaky_relu_p, activations.elu_p, activations.silu_p),
    *(activations.gelu_p, activations.gelu_tanh_p),
    *(special.erfinv_p, composite.nan_to_num_p, unary.signbit_p),
):
    _entrywise(_op, linear=False)
for _op, _at_zero in (
    *((dense.exp_p, "1"), (dense.log_p, "-inf"), (dense.sigmoid_p, "0.5")),
    *((unary.log2_p, "-inf"), (unary.log10_p, "-inf")),
    *((unary.rsqrt_p, "inf"), (unary.reciprocal_p, "inf")),
    *((unary.isfinite_p, "True"), (unary.logical_not_p, "True")),
    *((trig.cos_p, "1"), (trig.acos_p, "1.571"), (trig.cosh_p, "1"), (trig.acosh_p, "nan")),
    *((activations.softplus_p, "0.693"), (binary.bitwise_not_p, "-1 or True")),
):
    _refused(_op, _at_zero)


@unary.clamp_p.defsparse
def _clamp(x: Any, *, low: Any, high: Any, closed: bool = True) -> Any:
    if (low is not None and low > 0) or (high is not None and high < 0):
        raise DensifyError(
            f"clamp: absent entries of a sparse tensor would leave 0; got min {low}, max {high}; "
            "write A.with_values(sg.clamp(A.values, ...)) for stored entries only, or "
            "sg.clamp(A.to_dense(), ...)"
        )
    x = x if x.pattern.core.unique else coalesce(x)
    return _wrap(unary.clamp_p(x.values, low=low, high=high, closed=closed), x.pattern)


def _cotangent(op: Primitive) -> None:
    """f'(y) * dy for a sparse dy and a dense y: read at the entries of dy, which stays sparse."""

    @op.defsparse
    def apply(dy: Any, y: Any, **static: Any) -> Any:
        dy, at = _broadcast(op.name, dy, y)
        return _wrap(op(dy.values, at, **static), dy.pattern)


for _op in (
    *(dense.tanh_grad_p, dense.sigmoid_grad_p, dense.relu_grad_p, dense.abs_grad_p),
    unary.clamp_grad_p,
    *(activations.gelu_grad_p, activations.silu_grad_p),
    *(activations.elu_grad_p, activations.leaky_relu_grad_p, activations.gelu_tanh_grad_p),
    *(trig.asin_grad_p, trig.asinh_grad_p, trig.atanh_grad_p, trig.erf_grad_p),
    *(unary.abs_power_grad_p, unary.root_grad_p),
):
    _cotangent(_op)


@dense.cast_p.defsparse
def _cast(x: Any, *, dtype: Any) -> Any:
    """Linear but for rounding, unless fractions are cut off or bools ("or") become numbers."""
    old, new = dtypes.kind(x.dtype), dtypes.kind(dtypes.as_dtype(dtype))
    linear = old == new or (old in "iu" and new != "b") or not (old in "biu" or new in "biu")
    if not linear and not x.pattern.core.unique:
        x = coalesce(x)
    return _wrap(dense.cast_p(x.values, dtype=dtype), x.pattern)


@dense.where_p.defsparse
def _where(a: Any, b: Any, *, mask: Any) -> Any:
    """A sparse tensor where the mask allows, 0 elsewhere: on its pattern. Of two, their sum."""
    from sparsegrad.tensor import as_tensor

    if is_sparse(a) and is_sparse(b):
        return dense.where_p(a, 0, mask=mask) + dense.where_p(0, b, mask=mask)
    entries, other = (a, b) if is_sparse(a) else (b, a)
    if not isinstance(other, (int, float)) or other != 0:
        raise DensifyError(
            "where: absent entries of a sparse tensor would be filled; the other operand must be "
            f"the number 0, got {type(other).__name__}; write sg.where(mask, A.to_dense(), other)"
        )
    entries, at = _broadcast("where", entries, as_tensor(mask, device=entries.device))
    pair = (entries.values, 0) if is_sparse(a) else (0, entries.values)
    return _wrap(dense.where_p(*pair, mask=at.data), entries.pattern)


@primitive
def where_entries_p(be: Any, a: Any, b: Any, *, mask: Any, left: Moves, right: Moves) -> Any:
    """Entries (e, *D) of two patterns made one: those of `a` (n, *D), at the places `left`, where
    the mask is true of them, those of `b`, at `right`, elsewhere; 0 for one that is absent."""
    return be.pick(mask, a, left.perm, b, right.perm)


where_entries_p.defvjp(
    a=lambda g, mask, left: take_or_zero_p(dense.where_p(g, 0, mask=mask), moves=left.back),
    b=lambda g, mask, right: take_or_zero_p(dense.where_p(0, g, mask=mask), moves=right.back),
)


def where_masked(mask: Any, a: Any, b: Any) -> Any:
    """`a` at the true entries of a sparse mask, `b` at all other cells: sparse or 0, `a` dense or
    sparse or 0."""
    given = is_sparse(a) or hasattr(a, "shape")
    for x in (a, b):
        if hasattr(x, "shape") and tuple(x.shape) != mask.shape:
            raise ShapeError(f"where: shapes differ; got sparse mask: {mask.shape}, {x.shape}")
    zeros = sum(isinstance(x, (int, float)) and x == 0 for x in (a, b))
    if zeros == 2 or given + is_sparse(b) + zeros < 2:
        raise DensifyError(
            "where: with a sparse mask every other cell takes the last operand, which must be a "
            f"SparseTensor or the number 0; got {type(a).__name__} and {type(b).__name__}"
        )
    if given:
        a = coalesce(a) if is_sparse(a) else sparse_mask(a, mask.pattern)
    if not is_sparse(b):
        return _wrap(dense.where_p(a.values, 0, mask=_on(mask, a.pattern)), a.pattern)
    b = coalesce(to_format(b, a.format) if given else b)
    if not given:
        return _wrap(dense.where_p(0, b.values, mask=_on(mask, b.pattern)), b.pattern)
    if a.pattern.same_as(b.pattern):
        at = _on(mask, a.pattern)
        return _wrap(dense.where_p(a.values, b.values, mask=at), a.pattern)
    either = plan.union(a.pattern, b.pattern).pattern
    places = (plan.matching(either, x.pattern) for x in (a, b))
    moves = dict(zip(("left", "right"), places, strict=True))
    return _wrap(where_entries_p(a.values, b.values, mask=_on(mask, either), **moves), either)


def _on(mask: Any, pattern: Any) -> Any:
    """What a sparse mask says of the entries of a pattern: an array that nobody else changes."""
    found = sparse_mask(mask, pattern).values.data
    return found.copy() if found is mask.values.data else found


# ---- comparisons, maxima -----------------------------------------------------------------------
def same_entries(op: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Both on the entries of either, each once, absent ones as 0; in the format of `a`."""
    if a.shape != b.shape:
        raise ShapeError(f"{op}: sparse shapes must be equal; got a: {a.shape}, b: {b.shape}")
    b = to_format(b, a.format)
    one, two = (plan.coalesce(x.pattern).pattern for x in (a, b))
    if one.same_as(two):
        return coalesce(a), coalesce(b)
    either = plan.union(one, two).pattern
    return sparse_mask(a, either), sparse_mask(b, either)


def _compared(op: Primitive) -> None:
    """With a sparse tensor or a number, where the result at absent cells is 0 or False."""
    name = op.name.removesuffix("_p")

    @op.defsparse
    def apply(a: Any, b: Any) -> Any:
        from sparsegrad.tensor import as_tensor

        a, b = (x if is_sparse(x) or _is_number(x) else as_argument(name, x) for x in (a, b))
        entries = a if is_sparse(a) else b
        zero = as_tensor(0, entries.dtype)  # on the host: nothing waits for a device
        refused = not all(is_sparse(x) or _is_number(x) for x in (a, b))
        absent = (zero if is_sparse(x) else getattr(x, "cpu", lambda x=x: x)() for x in (a, b))
        if refused or bool(op(*absent)):
            found = ", ".join(f"{type(x).__name__}{getattr(x, 'shape', (x,))}" for x in (a, b))
            raise DensifyError(
                f"{name}: absent cells would not stay absent; got {found}; write sg.{name} with "
                "A.to_dense(), or with A.values for stored entries only"
            )
        if is_sparse(a) and is_sparse(b):
            a, b = same_entries(name, a, b)
            return _wrap(op(a.values, b.values), a.pattern)
        a, b = (coalesce(x) if is_sparse(x) else x for x in (a, b))
        entries = a if is_sparse(a) else b
        return _wrap(op(*(x.values if is_sparse(x) else x for x in (a, b))), entries.pattern)


for _op in (
    *(binary.remainder_p, binary.fmod_p, binary.floor_divide_p),
    *(binary.logical_and_p, binary.logical_or_p, binary.logical_xor_p),
    *(binary.bitwise_and_p, binary.bitwise_or_p, binary.bitwise_xor_p),
    *(eq_p, ne_p, lt_p, le_p, gt_p, ge_p),
    *(dense.maximum_p, dense.minimum_p),
):
    _compared(_op)


# ---- sums --------------------------------------------------------------------------------------
@primitive
def cat_neg_p(be: Any, a: Any, b: Any) -> Any:
    """`a` (n, *D), then -`b` (m, *D): what a difference sums, (n + m, *D)."""
    out = be.xp.empty((len(a) + len(b), *a.shape[1:]), a.dtype)
    out[: len(a)] = a
    be.xp.negative(b, out=out[len(a) :])
    return out


cat_neg_p.defvjp(
    a=lambda g, a_meta: slice_p(g, axis=0, start=0, stop=a_meta.shape[0]),
    b=lambda g, a_meta: dense.neg_p(slice_p(g, axis=0, start=a_meta.shape[0], stop=g.shape[0])),
)


@dense.add_p.defsparse
def _add(a: Any, b: Any) -> Any:
    if is_sparse(a) and is_sparse(b):
        return _union(dense.add_p, a, b)
    return _with_dense("add", a, b) if is_sparse(a) else _with_dense("add", b, a)


@dense.sub_p.defsparse
def _sub(a: Any, b: Any) -> Any:
    if is_sparse(a) and is_sparse(b):
        return _union(dense.sub_p, a, b)
    if is_sparse(a):
        return _with_dense("sub", a, dense.neg(as_argument("sub", b)))
    return _with_dense("sub", -b, a)


def _union(op: Primitive, a: Any, b: Any) -> Any:
    """Entries of either, in the format of `a`."""
    if a.shape != b.shape:
        name = op.name.removesuffix("_p")
        raise ShapeError(f"{name}: sparse shapes must be equal; got a: {a.shape}, b: {b.shape}")
    if a.pattern.same_as(b.pattern):
        return _wrap(op(a.values, b.values), a.pattern)
    subtract = op is dense.sub_p
    if subtract and a.dtype == b.dtype == bool:
        raise DtypeError("sub: bools have no difference, write a ^ b; got a: bool, b: bool")
    merge = plan.union(a.pattern, b.pattern)
    both = cat_neg_p(a.values, b.values) if subtract else cat_p(a.values, b.values, axis=0)
    return _wrap(apply_merge(both, merge), merge.pattern)


def _with_dense(op: str, a: Any, x: Any) -> Any:
    """Sparse + dense is dense: a copy of `x` with the entries added."""
    from sparsegrad.tensor import as_tensor

    x = x if _is_number(x) else as_argument(op, x)
    if isinstance(x, (int, float, complex)) or (x.ndim == 0 and a.ndim > 0):
        raise DensifyError(
            f"{op}: a number would be added to every absent cell of shape {a.shape}; write "
            f"A.with_values(A.values + c) for stored entries only, or A.to_dense() + c"
        )
    x = as_tensor(x)
    a = _expanded(op, a, x)
    if x.shape != a.shape:
        x = broadcast_p(x, shape=a.shape)
    return onto_dense(a.values, a.pattern, x)


# ---- products ----------------------------------------------------------------------------------
@dense.mul_p.defsparse
def _mul(a: Any, b: Any) -> Any:
    if not is_sparse(a):
        a, b = b, a
    if is_sparse(b):
        return _intersect(a, b)
    if _is_number(b):
        return _wrap(dense.mul_p(a.values, b), a.pattern)
    a, at = _broadcast("mul", a, b)
    return _wrap(dense.mul_p(a.values, at), a.pattern)


@dense.div_p.defsparse
def _div(a: Any, b: Any) -> Any:
    if is_sparse(b):
        raise DensifyError(
            "div: dividing by a sparse tensor divides by its absent zeros; for entries of equal "
            "patterns write A.with_values(A.values / B.values)"
        )
    if _is_number(b):
        return _wrap(dense.div_p(a.values, b), a.pattern)
    a, at = _broadcast("div", a, b)
    return _wrap(dense.div_p(a.values, at), a.pattern)


@dense.pow_p.defsparse
def _pow(a: Any, b: Any) -> Any:
    if not is_sparse(a) or not isinstance(b, (int, float)) or b <= 0:
        raise DensifyError(
            "pow: a sparse tensor can be raised to a positive number; anything else changes "
            "absent entries; write A.with_values(A.values ** b) for stored entries only"
        )
    a = a if a.pattern.core.unique else coalesce(a)
    return _wrap(dense.pow_p(a.values, b), a.pattern)


def _intersect(a: Any, b: Any) -> Any:
    """Entries of both, in the format of `a`; duplicates are summed first (not linear)."""
    if a.shape != b.shape:
        raise ShapeError(f"mul: sparse shapes must be equal; got a: {a.shape}, b: {b.shape}")
    b = to_format(b, a.format)
    one, two = (
        x.pattern if x.pattern.core.unique else plan.coalesce(x.pattern).pattern for x in (a, b)
    )
    if one.same_as(two):
        a, b = coalesce(a), coalesce(b)
        return _wrap(dense.mul_p(a.values, b.values), a.pattern)
    both = plan.intersection(one, two)
    left, right = _shared(a, both, both.left), _shared(b, both, both.right)
    return _wrap(dense.mul_p(left, right), both.pattern)


def _shared(x: Any, both: plan.Intersection, index: Any) -> Any:
    """The values of `x` at the entries that it shares: at `index`, or sums of duplicates."""
    if x.pattern.core.unique:
        return take_p(x.values, index=index, distinct=True)
    return sparse_mask(x, both.pattern).values


# ---- broadcasting against a dense operand ------------------------------------------------------
def _expanded(op: str, a: Any, x: Any) -> Any:
    """`a` with its size-1 dimensions repeated to those of `x`; ShapeError if they do not fit."""
    lead = a.ndim - x.ndim
    sizes = (1,) * lead + tuple(x.shape)
    pairs = list(zip(a.shape, sizes, strict=True)) if lead >= 0 else []
    if lead < 0 or any(n != m and 1 not in (n, m) for n, m in pairs):
        raise ShapeError(f"{op}: shapes do not broadcast; got sparse: {a.shape}, dense: {x.shape}")
    full = tuple(m if n == 1 else n for n, m in pairs)
    if full == a.shape:
        return a
    sparse = a.sparse_dim
    values, pattern = a.values, a.pattern
    if full[sparse:] != a.shape[sparse:]:
        values = broadcast_p(values, shape=(a.nnz, *full[sparse:]))
    if full[:sparse] != a.shape[:sparse]:
        pattern, position = plan.expand(pattern, full[:sparse])
        values = take_p(values, index=position)
    return _wrap(values, pattern)


def _broadcast(op: str, a: Any, x: Any) -> tuple[Any, Any]:
    """`a` expanded against a dense `x`, and the elements of `x` at its entries (nnz, *D)."""
    from sparsegrad.tensor import as_tensor

    x = as_tensor(x)
    a = _expanded(op, a, x)
    padded = reshape_p(x, shape=(1,) * (a.ndim - x.ndim) + tuple(x.shape))
    return a, at_entries(padded, a.pattern)
