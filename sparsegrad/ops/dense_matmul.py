"""Dense matrix products."""

from __future__ import annotations

from typing import Any

from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError
from sparsegrad.ops.shape import reshape_p, transpose

__all__ = ["matmul"]


@primitive
def matmul_p(be: Any, a: Any, b: Any) -> Any:
    """(*B, m, k) @ (*B, k, n) -> (*B, m, n); leading dimensions broadcast."""
    return be.matmul(a, b)


matmul_p.defvjp(
    a=lambda g, b: matmul_p(g, transpose(b, -2, -1)),
    b=lambda g, a: matmul_p(transpose(a, -2, -1), g),
)


def matmul(a: Any, b: Any) -> Any:
    """Matrix product with PyTorch's rules: vectors, matrices, broadcast batches; dense or sparse.

    Shapes: (k,) @ (k,) -> (); (m, k) @ (k,) -> (m,); (*B, m, k) @ (*B, k, n) -> (*B, m, n).
    A SparseTensor (m, n) may stand on either side of a dense vector or matrix.
    Raises ShapeError for sizes that do not fit.

    >>> import sparsegrad as sg
    >>> sg.matmul(sg.tensor([[1.0, 2.0]]), sg.tensor([3.0, 4.0]))
    tensor([11.])
    """
    if getattr(a, "_is_sparse", False) or getattr(b, "_is_sparse", False):
        from sparsegrad.ops.sparse_matmul import sparse_matmul

        return sparse_matmul(a, b)
    from sparsegrad.tensor import as_tensor

    a, b = as_tensor(a), as_tensor(b)
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[0 if b.ndim == 1 else -2]:
        raise ShapeError(f"matmul: shapes do not fit; got a: {a.shape}, b: {b.shape}")
    left, right = a, b
    if a.ndim == 1:
        left = reshape_p(a, shape=(1, -1))
    if b.ndim == 1:
        right = reshape_p(b, shape=(-1, 1))
    lead = left.shape[:-1]
    if right.ndim == 2 and left.ndim > 2:  # one product, and one gradient of b, not a batch
        left = reshape_p(left, shape=(-1, left.shape[-1]))
    out = matmul_p(left, right)
    if right.ndim == 2 and len(lead) > 1:
        out = reshape_p(out, shape=(*lead, right.shape[-1]))
    if a.ndim == 1:
        out = reshape_p(out, shape=(*out.shape[:-2], out.shape[-1]))
    return reshape_p(out, shape=out.shape[:-1]) if b.ndim == 1 else out
