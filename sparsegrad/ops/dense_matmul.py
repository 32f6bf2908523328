"""Dense matrix products."""

from __future__ import annotations

from typing import Any

from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError
from sparsegrad.ops.shape import permute_p, reshape_p, transpose

__all__ = ["bmm", "matmul", "mm", "mv"]


@primitive
def matmul_p(be: Any, a: Any, b: Any) -> Any:
    """(*B, m, k) @ (*B, k, n) -> (*B, m, n); leading dimensions broadcast."""
    return be.matmul(a, b)


matmul_p.defvjp(
    a=lambda g, b: _times(g, _turned(b)),
    b=lambda g, a: _times_left(_turned(a), g),
    sparse_g=True,
)


def _turned(x: Any) -> Any:
    """The last two dimensions swapped."""
    return permute_p(x, axes=(1, 0)) if x.ndim == 2 else transpose(x, -2, -1)


def _times(g: Any, b: Any) -> Any:
    """g @ b for a cotangent: a row-sparse one (n, *D) stays row-sparse."""
    if not getattr(g, "_is_sparse", False):
        return matmul_p(g, b)
    if g.ndim != 2 or b.ndim != 2:
        return matmul_p(g._densify("backward of matmul"), b)
    return matmul(g, b)


def _times_left(a: Any, g: Any) -> Any:
    """a @ g for a cotangent: of a row-sparse one only the stored rows take part."""
    if not getattr(g, "_is_sparse", False):
        return matmul_p(a, g)
    if g.ndim != 2 or a.ndim != 2:
        return matmul_p(a, g._densify("backward of matmul"))
    return matmul(a, g)


def matmul(a: Any, b: Any) -> Any:
    """Matrix product with PyTorch's rules: vectors, matrices, broadcast batches; dense or sparse.

    Shapes: (k,) @ (k,) -> (); (m, k) @ (k,) -> (m,); (*B, m, k) @ (*B, k, n) -> (*B, m, n).
    A SparseTensor may stand on either side: (n,) and (m, n) with dense vectors, matrices and
    batches or another SparseTensor (the result is then sparse, of two vectors a number),
    (*B, m, n) with the same or shared matrices, stored rows (n, d) with vectors and matrices.
    Raises ShapeError for sizes that do not fit.

    >>> import sparsegrad as sg
    >>> sg.matmul(sg.tensor([[1.0, 2.0]]), sg.tensor([3.0, 4.0]))
    tensor([11.])
    """
    if getattr(a, "_is_sparse", False) or getattr(b, "_is_sparse", False):
        return matmul_p.sparse(a, b)
    from sparsegrad.tensor import as_tensor

    a, b = as_tensor(a), as_tensor(b)
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[0 if b.ndim == 1 else -2]:
        raise ShapeError(f"matmul: shapes do not fit; got a: {a.shape}, b: {b.shape}")
    if a.ndim == b.ndim == 2:
        return matmul_p(a, b)
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


def mm(a: Any, b: Any) -> Any:
    """Product of two matrices, dense or sparse: (m, k) @ (k, n) -> (m, n). ShapeError for any
    other number of dimensions; otherwise `matmul`.

    >>> import sparsegrad as sg
    >>> sg.mm(sg.coo([[0], [1]], [3.0], (1, 2)), sg.ones(2, 2))
    tensor([[3., 3.]])
    """
    return _matmul_of("mm", a, 2, b, 2)


def mv(a: Any, b: Any) -> Any:
    """Product of a matrix, dense or sparse, and a vector: (m, k) @ (k,) -> (m,). ShapeError for any
    other number of dimensions; otherwise `matmul`.

    >>> import sparsegrad as sg
    >>> sg.mv(sg.coo([[0], [1]], [3.0], (1, 2)), sg.ones(2))
    tensor([3.])
    """
    return _matmul_of("mv", a, 2, b, 1)


def bmm(a: Any, b: Any) -> Any:
    """Products of two batches of matrices, dense or sparse: (B, m, k) @ (B, k, n) -> (B, m, n).
    ShapeError for any other number of dimensions; otherwise `matmul`.

    >>> import sparsegrad as sg
    >>> sg.bmm(sg.coo([[0], [0], [1]], [3.0], (1, 1, 2)), sg.ones(1, 2, 2))
    tensor([[[3., 3.]]])
    """
    return _matmul_of("bmm", a, 3, b, 3)


def _matmul_of(op: str, a: Any, a_dims: int, b: Any, b_dims: int) -> Any:
    if (a.ndim, b.ndim) != (a_dims, b_dims) or (op == "bmm" and a.shape[0] != b.shape[0]):
        raise ShapeError(
            f"{op}: expected {a_dims} and {b_dims} dimensions that fit; got a: {tuple(a.shape)}, "
            f"b: {tuple(b.shape)}"
        )
    return matmul(a, b)
