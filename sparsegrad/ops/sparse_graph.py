"""Matrices as graphs: both directions of every edge, and normalisation by degrees."""

from __future__ import annotations

from functools import reduce
from operator import add, mul
from typing import Any

from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError, memory_for
from sparsegrad.ops.index import put_rows_p, take_p
from sparsegrad.ops.segment import segment_amax_p
from sparsegrad.ops.shape import check_sparse
from sparsegrad.ops.sparse_diagonal import check_matrix
from sparsegrad.ops.sparse_structure import coalesce
from sparsegrad.structure import plan
from sparsegrad.structure.pattern import Pattern
from sparsegrad.structure.plan_loops import Loops, with_loops

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


# ---- entries scaled by the sums of lines -------------------------------------------------------
@primitive(promote="float", outputs=("y", "scale"))
def by_degree_p(be: Any, x: Any, *, pattern: Pattern, loops: Loops | None, both: bool) -> Any:
    """Entries x (nnz, *D) divided by the sum of their row; `both`: by the roots of the sums of the
    rows that have the numbers of their row and column. And the scale of each row (m, *D), which
    they were multiplied by. loops: x are those of A, the results those of A + I, on `pattern`."""
    return be.by_degree(x, pattern, loops, both)


@primitive
def by_degree_grad_p(
    be: Any,
    dy: Any,
    dscale: Any,
    y: Any,
    scale: Any,
    *,
    pattern: Pattern,
    loops: Loops | None,
    both: bool,
) -> Any:
    """The gradient of x from both results and theirs. In row r and column c it is

        dy * scale[r] - scale[r] * total[r]                              or, `both`,
        dy * scale[r] * scale[c] - scale[r] ** 2 / 2 * total[r]

    where total, of a row (and column), is the sum of y * dy, plus scale * dscale."""
    return be.by_degree_grad(dy, dscale, y, scale, pattern, loops, both)


by_degree_p.defvjp(
    x=lambda g, y, scale, pattern, loops, both: by_degree_grad_p(
        *g, y, scale, pattern=pattern, loops=loops, both=both
    )
)


def _by_degree_curvature(
    g: Any, dy: Any, dscale: Any, y: Any, scale: Any, pattern: Any, loops: Any, both: bool
) -> tuple[Any, ...]:
    """Of all inputs of `by_degree_grad_p`, in ops: derivatives of any order follow."""
    row, n = pattern.row, scale.shape[0]
    lines = (row, pattern.col) if both else (row,)
    if loops is not None:
        g = put_rows_p(g, index=loops.slots, n=pattern.nnz, distinct=loops.distinct)

    def at(x: Any) -> list[Any]:
        return [take_p(x, index=line) for line in lines]

    def sums(values: list[Any]) -> Any:
        return reduce(
            add, [put_rows_p(v, index=i, n=n) for v, i in zip(values, lines, strict=True)]
        )

    scales, moved = at(scale), g * dy
    weight = put_rows_p(g, index=row, n=n) * (-0.5 * scale if both else -1)
    to_total = reduce(add, at(weight * scale))
    total = sums([y * dy] * len(lines))
    return (
        g * reduce(mul, scales) + y * to_total,
        weight * scale * scale,
        dy * to_total,
        sums([moved * s for s in reversed(scales)] if both else [moved])
        + weight * (2 * total + 3 * scale * dscale if both else total + 2 * scale * dscale),
    )


by_degree_grad_p.defvjp(("dy", "dscale", "y", "scale"), _by_degree_curvature)


def row_normalize(A: Any) -> Any:
    """Every row divided by its sum, so that it sums to 1: A (m, n, *D), same pattern.

    A row that sums to 0 (or has no entries) gives zeros. Gradients take the sums into account.

    >>> import sparsegrad as sg
    >>> sg.row_normalize(sg.csr([0, 2, 3], [0, 1, 0], [1.0, 3.0, 2.0], (2, 2))).values
    tensor([0.25, 0.75, 1.  ])
    """
    from sparsegrad.sparse_tensor import wrap

    check_matrix("row_normalize", A)
    values, _ = by_degree_p(A.values, pattern=A.pattern, loops=None, both=False)
    return wrap(values, A.pattern)


@memory_for("gcn_norm")
def gcn_norm(A: Any, self_loops: bool = True) -> Any:
    """D^-1/2 (A + I) D^-1/2 of an adjacency matrix (n, n), D = row sums of A + I; same format.

    If A requires a gradient, training through the result gives one at each edge, the effect of the
    edge on the degrees included. The index work (the pattern of A + I) is done once per pattern and
    kept on it. A row whose sum is not positive gives zeros.

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
    from sparsegrad.sparse_tensor import wrap

    check_sparse("gcn_norm", "A", A)
    if A.sparse_dim != 2 or A.dense_dim or A.shape[0] != A.shape[1]:
        raise ShapeError(f"gcn_norm: A must be a square matrix, got shape {A.shape}")
    loops = with_loops(A.pattern) if self_loops else None
    pattern = A.pattern if loops is None else loops.pattern
    values, _ = by_degree_p(A.values, pattern=pattern, loops=loops, both=True)
    return wrap(values, pattern)
