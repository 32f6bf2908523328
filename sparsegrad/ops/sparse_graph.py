"""Matrices as graphs: both directions of every edge, and normalisation by degrees."""

from __future__ import annotations

from typing import Any

from sparsegrad import dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError, memory_for
from sparsegrad.ops.index import take_p
from sparsegrad.ops.reduce import sum as total
from sparsegrad.ops.segment import segment_amax_p
from sparsegrad.ops.shape import reshape_p
from sparsegrad.ops.sparse_diagonal import add_self_loops, check_matrix
from sparsegrad.ops.sparse_structure import coalesce
from sparsegrad.structure import plan
from sparsegrad.structure.pattern import Pattern

__all__ = ["gcn_norm", "row_normalize", "symmetrize"]


@memory_for("symmetrize")
def symmetrize(A: Any, reduce: str = "sum") -> Any:
    """A symmetric matrix with every entry of `A` and its mirror image; same format, coalesced.

    reduce: "sum" A + A.T; "mean" (A + A.T) / 2; "max" the larger of the two where both are
        stored, else the one that is (equal ones share the gradient).

    Raises ShapeError for a matrix that is not square, ValueError for another `reduce`.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 0, 1], [0, 1, 0]], [1.0, 2.0, 5.0], (2, 2))
    >>> sg.symmetrize(A).to_dense(), sg.symmetrize(A, "max").to_dense()
    (tensor([[2., 7.],
            [7., 0.]]), tensor([[1., 5.],
            [5., 0.]]))
    """
    from sparsegrad.sparse_tensor import wrap

    check_matrix("symmetrize", A)
    if A.shape[0] != A.shape[1]:
        raise ShapeError(f"symmetrize: A must be a square matrix, got shape {A.shape}")
    if reduce not in ("sum", "mean", "max"):
        raise ValueError(f"symmetrize: reduce must be 'sum', 'mean' or 'max', got {reduce!r}")
    if reduce != "max":
        both = A + wrap(A.values, A.pattern.T)
        return coalesce(both if reduce == "sum" else both / 2)
    A = coalesce(A)
    pattern, entries, indptr, absent = A.pattern.cached("mirrored", lambda: _mirrored(A.pattern))
    values = take_p(A.values, index=entries)
    out = segment_amax_p(values, indptr=indptr, absent=absent)
    return wrap(out, A.pattern if pattern is None else pattern)


def _mirrored(pattern: Pattern) -> tuple[Pattern | None, Any, Any, Any]:
    """A coalesced pattern with the mirror image of every entry, None if it is there already; the
    entries that meet in each cell, one run a cell; and a count of zero for each run."""
    image, order = pattern.T.to(pattern.format)
    merge, xp = plan.union(pattern, image), pattern.core.backend.xp
    entries = xp.arange(pattern.nnz, dtype=pattern.coords[0].dtype)
    entries = xp.concatenate((entries, entries if order is None else order))
    if merge.perm is not None:
        entries = entries[merge.perm]
    absent = xp.zeros(merge.pattern.nnz, "int64")
    return None if pattern.same_as(image) else merge.pattern, entries, merge.indptr, absent


@primitive(promote="float", fuse=True)
def inverse_degree_p(xp: Any, x: Any, *, root: bool) -> Any:
    """1 / x, and 0 where x is 0; with `root` 1 / sqrt(x), and 0 where x is not positive."""
    if root:
        return xp.where(x > 0, 1 / xp.sqrt(xp.where(x > 0, x, 1)), 0)
    return xp.where(x == 0, 0, 1 / xp.where(x == 0, 1, x))


@primitive(fuse=True)
def inverse_degree_grad_p(xp: Any, dy: Any, y: Any, *, root: bool) -> Any:
    return dy * (-0.5 * (y * y * y) if root else -(y * y))


inverse_degree_p.defvjp(x=lambda g, out, root: inverse_degree_grad_p(g, out, root=root))
inverse_degree_grad_p.defvjp(
    dy=lambda g, y, root: inverse_degree_grad_p(g, y, root=root),
    y=lambda g, dy, y, root: g * dy * (-1.5 * (y * y) if root else -2 * y),
)


def row_normalize(A: Any) -> Any:
    """Every row divided by its sum, so that it sums to 1: A (m, n, *D), same pattern.

    A row that sums to 0 (or has no entries) gives zeros. Gradients take the sums into account.

    >>> import sparsegrad as sg
    >>> sg.row_normalize(sg.csr([0, 2, 3], [0, 1, 0], [1.0, 3.0, 2.0], (2, 2))).values
    tensor([0.25, 0.75, 1.  ])
    """
    check_matrix("row_normalize", A)
    scale = inverse_degree_p(total(A, dim=1), root=False)
    return A * reshape_p(scale, shape=(A.shape[0], 1, *A.shape[2:]))


@memory_for("gcn_norm")
def gcn_norm(A: Any, self_loops: bool = True) -> Any:
    """D^-1/2 (A + I) D^-1/2 of an adjacency matrix (n, n), D = row sums of A + I; same format.

    Every op in it is recorded: if A requires a gradient, training through the result gives one
    at each edge, the effect of the edge on the degrees included. The index work (the pattern of
    A + I) is done once per pattern and kept on it. A row whose sum is not positive gives zeros.

    self_loops: False leaves out the I.

    Raises ShapeError for anything but a square matrix.

    Kipf and Welling, "Semi-supervised classification with graph convolutional networks",
    ICLR 2017, equation 2 (the renormalisation trick).

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 1], [1, 0]], [1.0, 1.0], (2, 2), dtype=sg.float64)
    >>> sg.gcn_norm(A).to_dense()
    tensor([[0.5, 0.5],
            [0.5, 0.5]], dtype=float64)
    """
    if not getattr(A, "_is_sparse", False):
        raise TypeError(f"gcn_norm: A must be a SparseTensor, got {type(A).__name__}")
    if A.sparse_dim != 2 or A.dense_dim or A.shape[0] != A.shape[1]:
        raise ShapeError(f"gcn_norm: A must be a square matrix, got shape {A.shape}")
    if dtypes.kind(A.dtype) not in "fc":
        A = A.float()
    loops = add_self_loops(A) if self_loops else A
    scale = inverse_degree_p(total(loops, dim=1), root=True)
    return loops * reshape_p(scale, shape=(-1, 1)) * scale
