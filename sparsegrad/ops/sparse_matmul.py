"""Sparse products. {spmm, sddmm} is closed under differentiation: each one's gradient is the
other and its own transpose. That closure is the heart of the engine.

    Y = A @ X            dL/dA on A's entries = sddmm(dY, X)     dL/dX = A.T @ dY
    S = (X @ Y.T)|_P     dL/dX = S' @ Y      dL/dY = S'.T @ X     with S' = dL/dS on P
"""

from __future__ import annotations

from typing import Any

from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError
from sparsegrad.ops.shape import reshape_p, transpose
from sparsegrad.structure.pattern import Pattern

__all__ = ["sddmm", "spmm"]


@primitive
def spmm_p(be: Any, values: Any, x: Any, *, pattern: Any) -> Any:
    """Sparse @ dense: values (nnz, *H), x (n, *H, k) -> (m, *H, k)."""
    return be.spmm(pattern, values, x)


@primitive
def sddmm_p(be: Any, x: Any, y: Any, *, pattern: Any) -> Any:
    """Entries of x @ y.T on a pattern: x (m, *H, k), y (n, *H, k) -> (nnz, *H)."""
    return be.sddmm(pattern, x, y)


spmm_p.defvjp(
    values=lambda g, x, pattern: sddmm_p(g, x, pattern=pattern),
    x=lambda g, values, pattern: spmm_p(values, g, pattern=pattern.T),
)
sddmm_p.defvjp(
    x=lambda g, y, pattern: spmm_p(g, y, pattern=pattern),
    y=lambda g, x, pattern: spmm_p(g, x, pattern=pattern.T),
)


# ---- public names ------------------------------------------------------------------------------
def spmm(A: Any, x: Any) -> Any:
    """Sparse @ dense: A (m, n), x (n, k) -> (m, k), or (n,) -> (m,). Heads: values (nnz, *H) and
    x (n, *H, k) -> (m, *H, k). Same as `A @ x`.

    The gradient of A is computed on its entries only, with O(nnz) extra memory.
    Raises ShapeError for sizes that do not fit.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 1, 2], [1, 0], [2.0, 3.0], (2, 2))
    >>> sg.spmm(A, sg.tensor([[1.0], [2.0]]))
    tensor([[4.],
            [3.]])
    """
    from sparsegrad.tensor import as_tensor

    x = as_tensor(x)
    heads = A.values.shape[1:]
    fits = A.sparse_dim == 2 and x.ndim >= 1 and x.shape[0] == A.pattern.shape[1]
    vector = x.ndim == 1 and not heads
    if not fits or not (vector or (x.ndim == 2 + len(heads) and x.shape[1:-1] == heads)):
        raise ShapeError(f"spmm: shapes do not fit; got A: {A.shape}, x: {x.shape}")
    if vector:
        x = reshape_p(x, shape=(-1, 1))
    out = spmm_p(A.values, x, pattern=A.pattern)
    return reshape_p(out, shape=(-1,)) if vector else out


def sddmm(x: Any, y: Any, pattern: Any) -> Any:
    """Entries of x @ y.T at a pattern, as a SparseTensor on it; the rest is never computed.

    x (m, k), y (n, k), pattern (m, n): a Pattern, or a SparseTensor whose pattern is meant (its
    values do not matter). Heads: x (m, *H, k), y (n, *H, k) give values (nnz, *H). Every stored
    entry gets its product, so each of two duplicates does.

    >>> import sparsegrad as sg
    >>> P = sg.coo([[0, 1], [1, 0]], None, (2, 2))
    >>> x, y = sg.tensor([[1.0, 2.0], [3.0, 4.0]]), sg.tensor([[5.0, 6.0], [7.0, 8.0]])
    >>> sg.sddmm(x, y, P).values
    tensor([23., 39.])
    """
    from sparsegrad.sparse_tensor import wrap
    from sparsegrad.tensor import as_tensor

    x, y = as_tensor(x), as_tensor(y)
    where = pattern if isinstance(pattern, Pattern) else getattr(pattern, "pattern", None)
    if where is None:
        raise TypeError(f"sddmm: pattern must be a Pattern or SparseTensor, got {type(pattern)}")
    fits = where.ndim == 2 and x.ndim >= 2 and y.ndim == x.ndim and x.shape[1:] == y.shape[1:]
    if not fits or (x.shape[0], y.shape[0]) != where.shape:
        raise ShapeError(
            f"sddmm: shapes do not fit; got x: {x.shape}, y: {y.shape}, pattern: {where.shape}"
        )
    return wrap(sddmm_p(x, y, pattern=where), where)


def sparse_matmul(a: Any, b: Any) -> Any:
    """`a @ b` with at least one sparse operand."""
    if not getattr(b, "_is_sparse", False):
        return spmm(a, b)
    if getattr(a, "_is_sparse", False):
        raise TypeError(
            f"matmul: sparse @ sparse is not supported yet; got a: {a.shape}, b: {b.shape}; "
            "write a @ b.to_dense() if b is small"
        )
    from sparsegrad.tensor import as_tensor

    a = as_tensor(a)
    if a.ndim > 2 or b.ndim != 2:
        raise ShapeError(f"matmul: shapes do not fit; got a: {a.shape}, b: {b.shape}")
    if a.ndim == 1:
        return spmm(b.T, a)
    return transpose(spmm(b.T, transpose(a, 0, 1)), 0, 1)  # x @ A = (A.T @ x.T).T
