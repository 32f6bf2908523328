"""Diagonals of matrices: read, replaced, made into a matrix; triangles; self-loops of graphs."""

from __future__ import annotations

from typing import Any

from sparsegrad import backends
from sparsegrad.errors import ShapeError, memory_for
from sparsegrad.ops.elementwise import where_p
from sparsegrad.ops.index import getitem_p, put_rows_p, take_p
from sparsegrad.ops.shape import (
    as_argument,
    broadcast_p,
    cat_p,
    check_sparse,
    is_sparse,
    permute_p,
    reshape_p,
)
from sparsegrad.ops.sparse_index import selected
from sparsegrad.structure import plan_loops, plan_select

__all__ = [
    "add_self_loops",
    "diag",
    "diagonal",
    "fill_diagonal",
    "remove_self_loops",
    "set_diagonal",
    "sparse_diags",
    "tril",
    "triu",
]


def check_matrix(op: str, A: Any) -> None:
    """TypeError or ShapeError unless A is sparse, with two sparse dimensions."""
    check_sparse(op, "A", A)
    if A.sparse_dim != 2:
        raise ShapeError(f"{op}: A must have two sparse dimensions, got shape {A.shape}")


# ---- reading -----------------------------------------------------------------------------------
@memory_for("diagonal")
def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The elements (i, i + offset) of a matrix as a dense vector; absent entries are 0.

    Sparse (m, n, *D) -> dense (length, *D), in O(nnz). Dense (m, n, *D) -> (*D, length), as
    `torch.diagonal` gives it, of the matrices in dimensions dim1 and dim2; a copy. An offset
    outside the matrix gives length 0.

    >>> import sparsegrad as sg
    >>> sg.diagonal(sg.csr([0, 2, 3], [0, 1, 0], [1.0, 2.0, 3.0], (2, 2)))
    tensor([1., 0.])
    """
    x = as_argument("diagonal", x)
    sparse = is_sparse(x)
    if (x.sparse_dim != 2) if sparse else x.ndim < 2:
        raise ShapeError(f"diagonal: x must be a matrix, got shape {x.shape}")
    if (dim1, dim2) != (0, 1):
        from sparsegrad.ops.rearrange import movedim

        x = movedim(x, (dim1, dim2), (0, 1))
    length = plan_select.diagonal_size(x.shape[:2], offset)
    if sparse:
        index, place = plan_select.on_diagonal(x.pattern, offset)
        return put_rows_p(take_p(x.values, index=index), index=place, n=length)
    ids = _arange(x.data, length)
    out = getitem_p(x, index=(ids + max(0, -offset), ids + max(0, offset)))
    return permute_p(out, axes=(*range(1, out.ndim), 0)) if out.ndim > 1 else out


@memory_for("diag")
def diag(x: Any, offset: int = 0) -> Any:
    """A vector as the diagonal of a square matrix, or the diagonal of a matrix as a vector.

    Dense (n,) -> dense (n + |offset|, n + |offset|) and dense (m, n) -> dense vector, as in
    PyTorch. A sparse vector gives a sparse matrix (coo); the diagonal of a sparse matrix is
    dense. `sg.sparse_diags` makes a sparse matrix of dense vectors.

    >>> import sparsegrad as sg
    >>> sg.diag(sg.tensor([1.0, 2.0]))
    tensor([[1., 0.],
            [0., 2.]])
    """
    x = as_argument("diag", x)
    dims = x.sparse_dim if is_sparse(x) else x.ndim
    if dims == 2:
        return diagonal(x, offset)
    if dims != 1:
        raise ShapeError(f"diag: x must be a vector or a matrix, got shape {x.shape}")
    n = x.shape[0] + abs(offset)
    down, right = max(0, -offset), max(0, offset)
    if is_sparse(x):

        def build() -> Any:
            ids = x.pattern.row.astype("int64")
            return plan_select.assemble("coo", (ids + down, ids + right), (n, n))

        return selected(x.values, x.pattern.cached(("as diagonal", offset), build))
    ids = _arange(x.data, x.shape[0])
    flat = put_rows_p(x, index=(ids + down) * n + ids + right, n=n * n)
    return reshape_p(flat, shape=(n, n))


def _arange(array: Any, n: int) -> Any:
    return backends.for_array(array).xp.arange(n)


@memory_for("tril")
def tril(x: Any, diagonal: int = 0) -> Any:
    """The lower triangle of a matrix, up to diagonal k = `diagonal`: elements (i, j) with
    j - i <= k. Sparse: the entries there, same format and order. Dense (*B, m, n): zeros elsewhere.

    >>> import sparsegrad as sg
    >>> sg.tril(sg.ones(2, 3))
    tensor([[1., 0., 0.],
            [1., 1., 0.]])
    """
    return _triangle("tril", x, diagonal)


@memory_for("triu")
def triu(x: Any, diagonal: int = 0) -> Any:
    """The upper triangle of a matrix, from diagonal k = `diagonal` on: elements (i, j) with
    j - i >= k. Sparse: the entries there, same format and order. Dense (*B, m, n): zeros elsewhere.

    >>> import sparsegrad as sg
    >>> sg.triu(sg.coo([[0, 1], [1, 0]], [2.0, 3.0], (2, 2))).values
    tensor([2.])
    """
    return _triangle("triu", x, diagonal)


def _triangle(op: str, x: Any, k: int) -> Any:
    sparse = is_sparse(x)
    if (x.sparse_dim != 2) if sparse else x.ndim < 2:
        raise ShapeError(f"{op}: x must be a matrix, got shape {x.shape}")
    if sparse:
        return selected(x.values, plan_select.triangle(x.pattern, op == "tril", k))
    row, col = _arange(x.data, x.shape[-2])[:, None], _arange(x.data, x.shape[-1])
    return where_p(x, 0, mask=col <= row + k if op == "tril" else col >= row + k)


# ---- making ------------------------------------------------------------------------------------
@memory_for("sparse_diags")
def sparse_diags(diagonals: Any, offsets: Any = 0, shape: Any = None, format: str = "coo") -> Any:
    """A sparse matrix with given diagonals: SciPy's `diags_array`, with gradients to them.

    diagonals: one vector (length, *D) for one offset, or a sequence of them for a sequence of
        offsets; a number stands for a vector of that number where `shape` is given.
    offsets: 0 is the main diagonal, k > 0 the k-th above it, k < 0 below it; no offset twice.
    shape: (m, n); by default the square that the first diagonal needs.

    Zeros in a diagonal are stored like any other element.
    Raises ShapeError for a vector that does not have the length of its diagonal.

    >>> import sparsegrad as sg
    >>> sg.sparse_diags([sg.ones(3), -1.0], [0, 1], (3, 3)).to_dense()
    tensor([[ 1., -1.,  0.],
            [ 0.,  1., -1.],
            [ 0.,  0.,  1.]])
    """
    from sparsegrad.tensor import as_tensor

    one = isinstance(offsets, int)
    vectors = [diagonals] if one else list(diagonals)
    places = [offsets] if one else list(offsets)
    if not vectors or len(vectors) != len(places) or len(set(places)) != len(places):
        raise ShapeError(
            f"sparse_diags: expected one offset for each diagonal and none twice, got "
            f"{len(vectors)} diagonals and offsets {places}"
        )
    vectors = [as_tensor(v) for v in vectors]
    if shape is None:
        if vectors[0].ndim == 0:
            raise ShapeError("sparse_diags: a number for a diagonal needs a shape")
        n = vectors[0].shape[0] + abs(places[0])
        shape = (n, n)
    shape = (int(shape[0]), int(shape[1]))
    tail = next((v.shape[1:] for v in vectors if v.ndim), ())
    rows, cols = [], []
    for i, (v, k) in enumerate(zip(vectors, places, strict=True)):
        length = plan_select.diagonal_size(shape, k)
        if v.ndim == 0:
            vectors[i] = v = broadcast_p(v, shape=(length, *tail))
        if v.shape != (length, *tail):
            raise ShapeError(
                f"sparse_diags: diagonal {k} of shape {shape} has {length} elements, got shape "
                f"{v.shape}"
            )
        ids = _arange(v.data, length)
        rows.append(ids + max(0, -k))
        cols.append(ids + max(0, k))
    xp = backends.for_array(rows[0]).xp
    coords = (xp.concatenate(rows), xp.concatenate(cols))
    chosen = plan_select.assemble(format, coords, shape, canonical=True)
    return selected(vectors[0] if len(vectors) == 1 else cat_p(*vectors, axis=0), chosen)


# ---- changing ----------------------------------------------------------------------------------
@memory_for("set_diagonal")
def set_diagonal(A: Any, values: Any, offset: int = 0) -> Any:
    """A copy of `A` whose cells (i, i + offset) are all stored and equal `values`; same format.

    A (m, n, *D), values (length, *D) or a number. What was on the diagonal gets no gradient;
    other entries and `values` do.
    Raises ShapeError for `values` of another length.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 0], [0, 1]], [1.0, 2.0], (2, 2))
    >>> sg.set_diagonal(A, sg.tensor([5.0, 6.0])).to_dense()
    tensor([[5., 2.],
            [0., 6.]])
    """
    from sparsegrad.tensor import as_tensor

    check_matrix("set_diagonal", A)
    length = plan_select.diagonal_size(A.shape[:2], offset)
    full = (length, *A.shape[2:])
    if isinstance(values, (bool, int, float)):
        values = as_tensor(values, A.dtype, A.device)
    values = as_tensor(values, device=A.device)
    if values.ndim == 0:
        values = broadcast_p(values, shape=full)
    if values.shape != full:
        raise ShapeError(f"set_diagonal: values must have shape {full}, got {values.shape}")
    joined = plan_select.with_diagonal(A.pattern, offset)
    return selected(cat_p(A.values, values, axis=0), joined)


@memory_for("fill_diagonal")
def fill_diagonal(A: Any, value: Any) -> Any:
    """A copy of `A` whose main diagonal is stored and equals one number, as in NumPy and PyTorch.

    >>> import sparsegrad as sg
    >>> sg.fill_diagonal(sg.coo([[0, 0], [0, 1]], [1.0, 2.0], (2, 2)), 7).to_dense()
    tensor([[7., 2.],
            [0., 7.]])
    """
    check_matrix("fill_diagonal", A)
    return set_diagonal(A, value)


@memory_for("add_self_loops")
def add_self_loops(A: Any, weight: Any = 1) -> Any:
    """A + weight * I for a square matrix, coalesced, in the same format: every node of a graph gets
    a loop of that weight, in addition to one it has (`sg.fill_diagonal` replaces it).

    weight: a number, or a tensor () or (n, *D); gradients reach it. The index work is done once
    per pattern.
    Raises ShapeError for a matrix that is not square.

    >>> import sparsegrad as sg
    >>> sg.add_self_loops(sg.coo([[0, 0], [0, 1]], [2.0, 3.0], (2, 2))).to_dense()
    tensor([[3., 3.],
            [0., 1.]])
    """
    from sparsegrad.sparse_tensor import wrap
    from sparsegrad.tensor import as_tensor

    check_matrix("add_self_loops", A)
    n = A.shape[0]
    if A.shape[1] != n:
        raise ShapeError(f"add_self_loops: A must be a square matrix, got shape {A.shape}")
    if isinstance(weight, (bool, int, float)):
        weight = as_tensor(weight, A.dtype, A.device)
    weight = as_tensor(weight, device=A.device)
    if weight.ndim == 0:
        weight = broadcast_p(weight, shape=(n, *A.shape[2:]))
    if weight.shape != (n, *A.shape[2:]):
        raise ShapeError(
            f"add_self_loops: weight must be a number or of shape {(n, *A.shape[2:])}, got "
            f"{weight.shape}"
        )

    return A + wrap(weight, plan_loops.identity(A.pattern))


@memory_for("remove_self_loops")
def remove_self_loops(A: Any) -> Any:
    """`A` without its entries on the main diagonal; same format, other entries as they are.

    >>> import sparsegrad as sg
    >>> sg.remove_self_loops(sg.coo([[0, 0], [0, 1]], [2.0, 3.0], (2, 2))).values
    tensor([3.])
    """
    check_matrix("remove_self_loops", A)
    return selected(A.values, plan_select.off_diagonal(A.pattern))
