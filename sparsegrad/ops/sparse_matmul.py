"""Sparse @ dense. {spmm, sddmm} is closed under differentiation: each one's gradient is the other
and its own transpose. That closure is the heart of the engine.

    Y = A @ X            dL/dA on A's entries = sddmm(dY, X)     dL/dX = A.T @ dY
    S = (X @ Y.T)|_P     dL/dX = S' @ Y      dL/dY = S'.T @ X     with S' = dL/dS on P

Batches are one product, never a loop: a dense batch is folded into columns, a sparse one is a
block diagonal whose pattern is kept. Sparse @ sparse is in `sparse_product`.
"""

from __future__ import annotations

import math
from typing import Any

from sparsegrad.dtypes import kind
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import DtypeError, ShapeError
from sparsegrad.ops.bias import back_to_sum, biased, check_activation, one_pass
from sparsegrad.ops.dense_matmul import matmul, matmul_p
from sparsegrad.ops.elementwise import cast, scaled_sum_p
from sparsegrad.ops.index import entries_of, take_p
from sparsegrad.ops.shape import (
    as_argument,
    broadcast_p,
    check_sparse,
    permute_p,
    reshape_p,
    squeeze,
    transpose,
    unsqueeze,
)
from sparsegrad.ops.sparse_index import index_select
from sparsegrad.ops.sparse_product import spgemm
from sparsegrad.ops.sparse_structure import coalesce
from sparsegrad.ops.spmm_reduce import shared_by_rows, spmm_extreme_p, spmm_mean_p
from sparsegrad.structure import plan_product, plan_rows
from sparsegrad.structure.pattern import Pattern

__all__ = ["addmm", "sampled_addmm", "sddmm", "spmm"]


@primitive
def spmm_p(be: Any, values: Any, x: Any, *, pattern: Any) -> Any:
    """Sparse @ dense: values (nnz, *H), x (n, *H, k) -> (m, *H, k), or (nnz,), (n,) -> (m,)."""
    if x.ndim == 1:
        return be.spmm(pattern, values, x[:, None]).reshape(-1)
    return be.spmm(pattern, values, x)


@primitive
def sddmm_p(be: Any, x: Any, y: Any, *, pattern: Any) -> Any:
    """Entries of x @ y.T on a pattern: x (m, *H, k), y (n, *H, k) -> (nnz, *H); of vectors (m,),
    (n,) -> (nnz,)."""
    if x.ndim == 1:
        return be.sddmm(pattern, x[:, None], y[:, None])
    return be.sddmm(pattern, x, y)


def _spmm_x_rule(g: Any, values: Any, pattern: Any) -> Any:
    """A.T @ dY; where dY is zero but for few rows, only those of A take part."""
    if g._is_sparse:
        from sparsegrad.sparse_tensor import SomeRows, wrap

        part = None
        if isinstance(g, SomeRows) and g.sparse_dim == 1:
            part = plan_rows.reached(pattern, g.pattern, math.prod(g.shape[1:]))
        if part is not None:
            out = spmm_p(entries_of(values, part.entries), g.values, pattern=part.pattern.T)
            return out if part.columns is None else wrap(out, part.columns)
        g = g._densify("backward of spmm")
    return spmm_p(values, g, pattern=pattern.T)


spmm_p.defvjp(
    values=lambda g, x, pattern: sddmm_p(g, x, pattern=pattern),
    x=_spmm_x_rule,
    sparse_g=("x",),
)
sddmm_p.defvjp(
    x=lambda g, y, pattern: spmm_p(g, y, pattern=pattern),
    y=lambda g, x, pattern: spmm_p(g, x, pattern=pattern.T),
)

spmm_mean_p.defvjp(
    values=lambda g, x, pattern: sddmm_p(shared_by_rows(g, pattern), x, pattern=pattern),
    x=lambda g, values, pattern: spmm_p(values, shared_by_rows(g, pattern), pattern=pattern.T),
)


@primitive
def spmm_bias_act_p(
    be: Any, values: Any, x: Any, bias: Any, *, pattern: Any, activation: str
) -> Any:
    """activation(A @ x + bias): values (nnz,), x (n, k), bias (k,) -> (m, k)."""
    return be.spmm_bias_act(pattern, values, x, bias, activation)


def _layer_rule(
    g: Any, out: Any, values: Any, x: Any, pattern: Any, activation: str, needs: tuple[bool, ...]
) -> Any:
    back, to_bias = back_to_sum(g, out, activation, needs[2])
    if hasattr(g, "passed_on"):
        back = g.passed_on(back)
    to_x = _spmm_x_rule(back, values, pattern) if needs[1] else None
    if not needs[0]:
        return None, to_x, to_bias
    back = back._densify("backward of spmm") if back._is_sparse else back
    return sddmm_p(back, x, pattern=pattern), to_x, to_bias


spmm_bias_act_p.defvjp(("values", "x", "bias"), _layer_rule, sparse_g=True)


# ---- public names ------------------------------------------------------------------------------
def spmm(
    A: Any, x: Any, reduce: str = "sum", bias: Any = None, activation: str | None = None
) -> Any:
    """Sparse @ dense: A (m, n), x (n, k) -> (m, k), or (n,) -> (m,). Same as `A @ x`.

    Batches: x (*B, n, k) -> (*B, m, k), and A (*B, m, n) with x (*B, n, k), (n, k) or (n,), in one
    product. Heads: values (nnz, *H) and x (n, *H, k) -> (m, *H, k). Both: A (*B, m, n, *H) and
    x (*B, n, *H, k) -> (*B, m, *H, k).

    reduce: "sum", or "mean", "max", "min" of the products A[i, j] * x[j] over the stored entries
        of each row; an empty row gives 0. The first entry of a row wins ties and takes the whole
        gradient; duplicates are summed first.

    bias (k,), activation: activation(A @ x + bias), as `bias_act` after the product; the layer of a
        graph network. With relu, sigmoid, or none, rows are finished while they are in the cache.

    The gradient of A is computed on its entries only, with O(nnz) extra memory.
    Raises ShapeError for sizes that do not fit, ValueError for another `reduce` or activation.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 2, 3, 3], [0, 1, 0], [2.0, 1.0, 3.0], (3, 2))
    >>> x = sg.tensor([[1.0], [4.0]])
    >>> sg.spmm(A, x)
    tensor([[6.],
            [3.],
            [0.]])
    >>> sg.spmm(A, x, reduce="max")
    tensor([[4.],
            [3.],
            [0.]])
    """
    check_sparse("spmm", "A", A)
    if bias is not None or activation is not None:
        return _layer(A, x, reduce, bias, activation)
    if reduce not in ("sum", "mean", "max", "min"):
        raise ValueError(f"spmm: reduce must be 'sum', 'mean', 'max' or 'min', got {reduce!r}")
    if getattr(x, "_is_sparse", False):
        if reduce != "sum":
            raise TypeError(
                f"spmm: reduce={reduce!r} needs a dense x, got a SparseTensor {x.shape}"
            )
        return spgemm(A, x)
    x = as_argument("spmm", x)
    if reduce != "sum":
        A = coalesce(A)
    if reduce in ("max", "min") and "c" in (A.dtype.kind, x.dtype.kind):
        raise DtypeError(f"spmm: complex numbers have no {reduce}; got {A.dtype}, {x.dtype}")
    sizes, heads, dims = A.pattern.shape, A.values.data.shape[1:], x.data.shape
    if len(sizes) > 2:
        return _sparse_batch("spmm", A, x, reduce, False)
    if len(sizes) == 2 and len(dims) > 2 and not heads and dims[-2] == sizes[1]:
        return _dense_batch(A, x, reduce)
    fits = len(sizes) == 2 and len(dims) >= 1 and dims[0] == sizes[1]
    vector = len(dims) == 1 and not heads
    if not fits or not (vector or (len(dims) == 2 + len(heads) and dims[1:-1] == heads)):
        raise ShapeError(f"spmm: shapes do not fit; got A: {A.shape}, x: {x.shape}")
    if vector and reduce == "sum":
        return spmm_p(A.values, x, pattern=A.pattern)
    if vector:
        x = reshape_p(x, shape=(-1, 1))
    out = _reduced(A.values, x, A.pattern, reduce)
    return reshape_p(out, shape=(-1,)) if vector else out


def _layer(A: Any, x: Any, reduce: str, bias: Any, activation: str | None) -> Any:
    if getattr(x, "_is_sparse", False):
        raise TypeError(f"spmm: bias and activation need a dense x, got a SparseTensor {x.shape}")
    check_activation("spmm", activation)
    x = as_argument("spmm", x)
    bias = None if bias is None else as_argument("spmm", bias)
    if bias is not None and (x.ndim < 2 or tuple(bias.shape) != tuple(x.shape[-1:])):
        raise ShapeError(
            f"spmm: expected x (..., k) and bias (k,), got {tuple(x.shape)} and {tuple(bias.shape)}"
        )
    plain = A.ndim == A.sparse_dim == x.ndim == 2 and A.shape[1] == x.shape[0] and reduce == "sum"
    if bias is None or not plain or A.dtype != x.dtype or kind(x.dtype) != "f":
        return biased(spmm(A, x, reduce), bias, activation)
    first, then = one_pass(activation)
    bias = cast(bias, x.dtype)
    return then(spmm_bias_act_p(A.values, x, bias, pattern=A.pattern, activation=first))


def _reduced(values: Any, x: Any, pattern: Any, reduce: str) -> Any:
    if reduce == "sum":
        return spmm_p(values, x, pattern=pattern)
    if reduce == "mean":
        return spmm_mean_p(values, x, pattern=pattern)
    return spmm_extreme_p(values, x, pattern=pattern, least=reduce == "min")


def sddmm(x: Any, y: Any, pattern: Any, alpha: Any = 1, beta: Any = 0) -> Any:
    """Entries of x @ y.T at a pattern, as a SparseTensor on it; the rest is never computed.

    x (m, k), y (n, k), pattern (m, n): a Pattern, or a SparseTensor whose pattern is meant. Heads:
    x (m, *H, k), y (n, *H, k) give values (nnz, *H). Batches: x (*B, m, k), y (*B, n, k) and a
    pattern (*B, m, n); both: x (*B, m, *H, k). Every stored entry gets its product, so each of two
    duplicates does.

    alpha, beta: alpha * (x @ y.T) + beta * C on the pattern of the SparseTensor C given as
        `pattern`; numbers or scalar tensors. With beta = 0 the values of C do not matter.

    >>> import sparsegrad as sg
    >>> P = sg.coo([[0, 1], [1, 0]], [100.0, 200.0], (2, 2))
    >>> x, y = sg.tensor([[1.0, 2.0], [3.0, 4.0]]), sg.tensor([[5.0, 6.0], [7.0, 8.0]])
    >>> sg.sddmm(x, y, P).values, sg.sddmm(x, y, P, alpha=2, beta=1).values
    (tensor([23., 39.]), tensor([146., 278.]))
    """
    from sparsegrad.sparse_tensor import wrap
    from sparsegrad.tensor import as_tensor

    x, y = as_tensor(x), as_tensor(y)
    where = pattern if isinstance(pattern, Pattern) else getattr(pattern, "pattern", None)
    if where is None:
        raise TypeError(f"sddmm: pattern must be a Pattern or SparseTensor, got {type(pattern)}")
    lead = where.shape[:-2]
    m, n = where.shape[-2:] if where.ndim > 1 else (-1, -1)
    at = where
    b = len(lead)
    if lead and x.ndim == y.ndim >= b + 2 and x.shape[:b] == y.shape[:b] == lead:
        count = math.prod(lead)
        x = reshape_p(x, shape=(count * x.shape[b], *x.shape[b + 1 :]))
        y = reshape_p(y, shape=(count * y.shape[b], *y.shape[b + 1 :]))
        m, n, at = count * m, count * n, plan_product.block_diagonal(where)
    fits = at.ndim == 2 and x.ndim >= 2 and y.ndim == x.ndim and x.shape[1:] == y.shape[1:]
    if not fits or (x.shape[0], y.shape[0]) != (m, n):
        raise ShapeError(
            f"sddmm: shapes do not fit; got x: {x.shape}, y: {y.shape}, pattern: {where.shape}"
        )
    values = sddmm_p(x, y, pattern=at)
    if _is_number(beta, 0):
        values = _scaled(alpha, values)
    else:
        if where is pattern:
            raise TypeError("sddmm: beta scales the values of a SparseTensor; got a Pattern")
        if pattern.values.shape != values.shape:
            raise ShapeError(
                f"sddmm: C must have the dense dimensions of the product; got C: {pattern.shape}, "
                f"product values: {values.shape}"
            )
        values = scaled_sum_p(alpha, values, beta, pattern.values)
    return wrap(values, where)


def sampled_addmm(C: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * C + alpha * (x @ y) at the entries of the sparse C (m, n): x (m, k), y (k, n), as in
    `torch.sparse.sampled_addmm`. See `sddmm`.

    >>> import sparsegrad as sg
    >>> C = sg.csr([0, 1, 1], [1], [10.0], (2, 2))
    >>> sg.sampled_addmm(C, sg.ones(2, 3), sg.ones(3, 2)).values
    tensor([13.])
    """
    from sparsegrad.tensor import as_tensor

    y = as_tensor(y)
    if y.ndim < 2:
        raise ShapeError(f"sampled_addmm: y must be a matrix, got shape {y.shape}")
    x = as_tensor(x)
    if x.ndim < 2 or x.shape[-1] != y.shape[-2]:
        raise ShapeError(
            f"sampled_addmm: expected x (m, k) and y (k, n), got {x.shape} and {y.shape}"
        )
    return sddmm(x, transpose(y, -2, -1), C, alpha, beta)


def addmm(C: Any, A: Any, x: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * C + alpha * (A @ x), with A or x sparse or dense: A (m, n), x (n, k), C broadcasts to
    (m, k). Sparse A and x need a sparse C, and give a sparse result.

    alpha, beta: numbers or scalar tensors. With beta = 0 C does not matter, even if it holds nan.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 1, 2], [1, 0], [2.0, 3.0], (2, 2))
    >>> sg.addmm(sg.tensor([1.0]), A, sg.tensor([[1.0], [2.0]]), beta=10)
    tensor([[14.],
            [13.]])
    """
    product = _scaled(alpha, matmul(A, x))
    if _is_number(beta, 0):
        return product
    return _scaled(beta, C) + product


def _is_number(scale: Any, value: int) -> bool:
    return isinstance(scale, (int, float)) and scale == value


def _scaled(scale: Any, t: Any) -> Any:
    return t if _is_number(scale, 1) else t * scale


# ---- matmul with a sparse operand --------------------------------------------------------------
@matmul_p.defsparse
def sparse_matmul(a: Any, b: Any) -> Any:
    """`a @ b` with at least one sparse operand."""
    if _has_one_dim(a) or _has_one_dim(b):
        return _with_lines(a, b)
    if not getattr(b, "_is_sparse", False):
        return spmm(a, b)
    if getattr(a, "_is_sparse", False):
        return spgemm(a, b)
    a = as_argument("matmul", a)
    if a.ndim == 0 or b.sparse_dim < 2 or b.dense_dim or a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"matmul: shapes do not fit; got a: {a.shape}, b: {b.shape}")
    left = a if a.ndim == 1 else transpose(a, -2, -1)  # x @ A = (A.T @ x.T).T
    if b.sparse_dim > 2:
        out = _sparse_batch("matmul", b, left, "sum", True)
    else:
        out = spmm(b.T, left)
    return out if a.ndim == 1 else transpose(out, -2, -1)


def _has_one_dim(t: Any) -> bool:
    return getattr(t, "_is_sparse", False) and t.sparse_dim == 1


def _with_lines(a: Any, b: Any) -> Any:
    """a @ b where one of them has one sparse dimension: a vector (n,), read as a row on the left
    and as a column on the right, or rows (n, d) some of which are stored."""
    from sparsegrad.tensor import as_tensor

    a, b = (t if getattr(t, "_is_sparse", False) else as_tensor(t) for t in (a, b))
    rows = [_has_one_dim(t) and t.dense_dim > 0 for t in (a, b)]
    fits = a.ndim > 0 and b.ndim > 0 and a.shape[-1] == b.shape[0 if b.ndim == 1 else -2]
    if not fits or (any(rows) and max(a.ndim, b.ndim) > 2):
        raise ShapeError(f"matmul: shapes do not fit; got a: {a.shape}, b: {b.shape}")
    if rows[0]:
        return a.with_values(matmul(a.values, b))
    if rows[1]:
        return matmul(_columns(a, b.pattern.row), b.values)
    if a.ndim == b.ndim == 1 and a._is_sparse and b._is_sparse:
        return (a * b).sum()
    if not _has_one_dim(a):
        return squeeze(matmul(a, unsqueeze(b, 1)), -1)
    if b._is_sparse:
        return matmul(transpose(b, -2, -1), a)
    return squeeze(matmul(unsqueeze(a, 0), b), -1 if b.ndim == 1 else -2)


def _columns(a: Any, ids: Any) -> Any:
    """The columns `ids` of a matrix, or those elements of a vector; ids are those of a pattern."""
    if getattr(a, "_is_sparse", False):
        return index_select(a, -1, ids)
    return take_p(a, index=ids) if a.ndim == 1 else take_p(a.T, index=ids).T


def _dense_batch(A: Any, x: Any, reduce: str) -> Any:
    """A (m, n) @ x (*B, n, k): the batch becomes columns of one product."""
    *lead, n, k = x.shape
    count = len(lead)
    first = (count, *range(count), count + 1)
    folded = reshape_p(permute_p(x, axes=first), shape=(n, math.prod(lead) * k))
    out = _reduced(A.values, folded, A.pattern, reduce)
    back = (*range(1, count + 1), 0, count + 1)
    return permute_p(reshape_p(out, shape=(A.shape[0], *lead, k)), axes=back)


def _sparse_batch(op: str, A: Any, x: Any, reduce: str, transposed: bool) -> Any:
    """A (*B, m, n), or its transpose, @ x (*B, n, k), (n, k) or (n,): one product with a block
    diagonal, or with the batches on top of each other where all share one x."""
    pattern, (*lead, m, n) = A.pattern, A.pattern.shape
    heads = A.values.data.shape[1:]
    if heads and not transposed and x.data.shape[:-1] == (*lead, n, *heads):
        rows = reshape_p(x, shape=(math.prod(lead) * n, *heads, x.shape[-1]))
        out = _reduced(A.values, rows, plan_product.block_diagonal(pattern), reduce)
        return reshape_p(out, shape=(*lead, m, *heads, x.shape[-1]))
    if transposed:
        m, n = n, m
    vector = x.ndim == 1
    right = reshape_p(x, shape=(-1, 1)) if vector else x
    fits = not A.dense_dim and right.ndim >= 2 and right.shape[-2] == n
    extra = right.shape[:-2]
    fits = fits and len(extra) <= len(lead) and all(
        e in (1, size) for e, size in zip(extra[::-1], lead[::-1], strict=False)
    )  # fmt: skip
    if not fits:
        raise ShapeError(f"{op}: shapes do not fit; got sparse: {A.shape}, dense: {x.shape}")
    k = right.shape[-1]
    if right.ndim == 2 and not transposed:
        flat = plan_product.stacked(pattern)
    else:
        flat = plan_product.block_diagonal(pattern)
        flat = flat.T if transposed else flat
        if right.shape != (*lead, n, k):
            right = broadcast_p(right, shape=(*lead, n, k))
        right = reshape_p(right, shape=(math.prod(lead) * n, k))
    out = _reduced(A.values, right, flat, reduce)
    return reshape_p(out, shape=(*lead, m) if vector else (*lead, m, k))
