"""Sparse @ sparse. {spgemm, spgemm_masked} is closed under differentiation, as {spmm, sddmm} is:
the gradient of either is the masked product with a transpose, at the entries of the other factor.

    C = A @ B            dA = (dC @ B.T)|_A     dB = (A.T @ dC)|_B
    M = (A @ B)|_P       dA = (dM @ B.T)|_A     dB = (A.T @ dM)|_B     with dM = dL/dM on P

`X|_P` means: at the entries of P only, the rest is never computed. All of them are sums of the
same triples of entries (i, l) of A, (l, j) of B and (i, j) of C or P, read in three ways.
"""

from __future__ import annotations

from typing import Any

from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError
from sparsegrad.ops.index import take_p
from sparsegrad.ops.shape import check_sparse
from sparsegrad.ops.sparse_structure import coalesce, reorder, to_format
from sparsegrad.structure import plan, plan_product
from sparsegrad.structure.pattern import Pattern

__all__ = ["spgemm", "spgemm_masked"]


@primitive
def spgemm_p(be: Any, a: Any, b: Any, *, left: Any, right: Any, product: Any) -> Any:
    """Sparse @ sparse: a (nnz, *H) on left (m, k), b (nnz, *H) on right (k, n) -> values on
    `product` (m, n), which holds every entry. All patterns coalesced."""
    return be.spgemm(left, a, right, b, product)


@primitive
def spgemm_masked_p(be: Any, a: Any, b: Any, *, left: Any, right: Any, mask: Any) -> Any:
    """Entries of sparse @ sparse at a mask (m, n): (nnz of mask, *H). All patterns coalesced."""
    return be.spgemm_masked(left, a, right, b, mask)


spgemm_p.defvjp(
    a=lambda g, b, left, right, product: spgemm_masked_p(
        g, b, left=product, right=right.T, mask=left
    ),
    b=lambda g, a, left, right, product: spgemm_masked_p(
        a, g, left=left.T, right=product, mask=right
    ),
)
spgemm_masked_p.defvjp(
    a=lambda g, b, left, right, mask: spgemm_masked_p(g, b, left=mask, right=right.T, mask=left),
    b=lambda g, a, left, right, mask: spgemm_masked_p(a, g, left=left.T, right=mask, mask=right),
)


# ---- public names ------------------------------------------------------------------------------
def spgemm(A: Any, B: Any) -> Any:
    """Sparse @ sparse: A (m, k), B (k, n) -> a SparseTensor (m, n), coalesced, in A's format; same
    as `A @ B`. Batches: (*B, m, k) @ (*B, k, n) or (k, n). Heads: equal dense dimensions on both.

    Every entry that a product of stored entries reaches is stored, even if it comes to 0. The
    pattern is found once for two patterns and kept. Gradients lie on the entries of A and of B.
    Raises ShapeError for sizes that do not fit, OutOfMemoryError (with the number of products) for
    a result that does not.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 0, 1, 2, 2], [1, 2, 0, 0, 1]], [1.0, 2.0, 3.0, 4.0, 5.0], (3, 3))
    >>> B = sg.coo([[0, 2], [1, 0]], [2.0, 4.0], (3, 2))
    >>> C = sg.spgemm(A, B)
    >>> C.row, C.col, C.values
    (array([0, 1, 2], dtype=int32), array([0, 1, 1], dtype=int32), tensor([8., 6., 8.]))
    """
    _check("spgemm", A, B)
    if A.sparse_dim > 2:
        return _batched(A, B)
    A, B = _coalesced(A, B)
    product = plan_product.product(A.pattern, B.pattern)
    values = spgemm_p(A.values, B.values, left=A.pattern, right=B.pattern, product=product)
    return wrap(values, product)


def spgemm_masked(A: Any, B: Any, pattern: Any) -> Any:
    """Entries of sparse @ sparse at a pattern, as a SparseTensor on it; the rest of the product
    is never computed.

    A (m, k), B (k, n), pattern (m, n): a Pattern, or a SparseTensor whose pattern is meant (its
    values do not matter). An entry the product does not reach is 0; each of two duplicates gets
    the product. Raises ShapeError for sizes that do not fit.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 2, 3], [0, 1, 1], [1.0, 2.0, 3.0], (2, 2))
    >>> sg.spgemm_masked(A, A, A).values
    tensor([1., 8., 9.])
    """
    _check("spgemm_masked", A, B)
    where = pattern if isinstance(pattern, Pattern) else getattr(pattern, "pattern", None)
    if where is None:
        raise TypeError(
            f"spgemm_masked: pattern must be a Pattern or SparseTensor, got {type(pattern)}"
        )
    if A.sparse_dim != 2 or where.shape != (A.shape[0], B.shape[1]):
        raise ShapeError(
            f"spgemm_masked: shapes do not fit; got A: {A.shape}, B: {B.shape}, "
            f"pattern: {where.shape}"
        )
    A, B = _coalesced(A, B)
    mask = plan.coalesce(where).pattern
    values = spgemm_masked_p(A.values, B.values, left=A.pattern, right=B.pattern, mask=mask)
    if mask.core is where.core:
        return wrap(reorder(values, mask, where), where)
    position = where.cached("in_coalesced", lambda: plan.locate(where, mask)[0])
    return wrap(take_p(values, index=position), where)


def _check(op: str, A: Any, B: Any) -> None:
    check_sparse(op, "A", A)
    check_sparse(op, "B", B)
    a, b = A.pattern.shape, B.pattern.shape
    fits = min(len(a), len(b)) >= 2 and a[-1] == b[-2] and b[:-2] in (a[:-2], ())
    if not fits or A.values.shape[1:] != B.values.shape[1:]:
        raise ShapeError(f"{op}: shapes do not fit; got A: {A.shape}, B: {B.shape}")


def _coalesced(A: Any, B: Any) -> tuple[Any, Any]:
    """Both coalesced. Of A @ A and A @ A.T that is done once: both have the same values."""
    first, one, other = coalesce(A), A.pattern, B.pattern
    if B.values is A.values and other.core is one.core:
        if other.same_as(one):
            return first, first
        if other.same_as(one.T):
            by_row = to_format(first, "csr") if first.format == "coo" else first
            return first, wrap(by_row.values, by_row.pattern.T)
    return first, coalesce(B)


def _batched(A: Any, B: Any) -> Any:
    """(*B, m, k) @ (*B, k, n): one product of two block diagonals; of the batches on top of each
    other where all share one B (k, n)."""
    lead, m, n = A.pattern.shape[:-2], A.pattern.shape[-2], B.pattern.shape[-1]
    if B.sparse_dim == 2:
        out = spgemm(wrap(A.values, plan_product.stacked(A.pattern)), B)
    else:
        out = spgemm(*(wrap(t.values, plan_product.block_diagonal(t.pattern)) for t in (A, B)))
    return wrap(out.values, plan_product.unblocked(out.pattern, lead, m, n))


from sparsegrad.sparse_tensor import wrap  # noqa: E402  (the one import cycle)
