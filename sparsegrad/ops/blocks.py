"""Matrices built of others: Kronecker products and sums, blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from sparsegrad.errors import ShapeError, memory_for
from sparsegrad.ops.shape import as_argument, cat_p, check_sparse, reshape_p
from sparsegrad.ops.sparse_index import selected
from sparsegrad.ops.sparse_structure import coalesce, reorder_p
from sparsegrad.structure import plan_blocks

__all__ = ["block_array", "kron", "kronsum"]


def _sparse(op: str, name: str, x: Any) -> Any:
    """A sparse tensor without dense dimensions as it is, a dense one with all its cells stored."""
    from sparsegrad.sparse_tensor import wrap

    if not x._is_sparse:
        cells = plan_blocks.every_cell(tuple(x.shape), x.device)
        return wrap(reshape_p(x, shape=(math.prod(x.shape),)), cells)
    if x.dense_dim:
        raise ShapeError(f"{op}: {name} must have no dense dimensions, got shape {x.shape}")
    return x


@memory_for("kron")
def kron(a: Any, b: Any) -> Any:
    """Kronecker product: a block a[i, j] * b for each element of `a`, (m, n) and (p, q) ->
    (m p, n q). Any number of dimensions; the shorter shape is filled up with leading ones.

    If either is sparse so is the result: each entry of one with each of the other, in the format of
    `a` (coo if that is dense); all elements of a dense one are entries. Gradients to both, that of
    a dense one is dense. Raises ShapeError for dense dimensions, and sizes beyond 64 bits.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 1], [1, 0]], [2.0, 3.0], (2, 2))
    >>> sg.kron(A, sg.tensor([[1.0, 10.0]])).to_dense()
    tensor([[ 0.,  0.,  2., 20.],
            [ 3., 30.,  0.,  0.]])
    """
    a, b = as_argument("kron", a), as_argument("kron", b)
    ndim = max(a.ndim, b.ndim)
    if not (a._is_sparse or b._is_sparse):
        sizes = [(*(1,) * (ndim - x.ndim), *x.shape) for x in (a, b)]
        left = reshape_p(a, shape=tuple(k for n in sizes[0] for k in (n, 1)))
        right = reshape_p(b, shape=tuple(k for n in sizes[1] for k in (1, n)))
        return reshape_p(left * right, shape=tuple(n * m for n, m in zip(*sizes, strict=True)))
    a, b = (
        _sparse("kron", name, x) for name, x in (("a", _filled(a, ndim)), ("b", _filled(b, ndim)))
    )
    shape = tuple(n * m for n, m in zip(a.shape, b.shape, strict=True))
    if max(shape) >= 2**63:
        raise ShapeError(f"kron: the sizes of {shape} do not fit 64 bits")
    pattern, moves = plan_blocks.kron(a.pattern, b.pattern)
    values = reshape_p(a.values, shape=(a.nnz, 1)) * reshape_p(b.values, shape=(1, b.nnz))
    values = reshape_p(values, shape=(a.nnz * b.nnz,))
    return _wrap(values if moves is None else reorder_p(values, moves=moves), pattern)


def _filled(x: Any, ndim: int) -> Any:
    """x with leading dimensions of size 1."""
    missing = ndim - x.ndim
    return x if not missing else x.reshape(*(1,) * missing, *x.shape)


@memory_for("kronsum")
def kronsum(A: Any, B: Any) -> Any:
    """Kronecker sum of square matrices: kron(I, A) + kron(B, I), (m, m) and (n, n) -> (n m, n m),
    the matrix of X -> A @ X + X @ B.T on the columns of X (m, n) below each other. In the format of
    `A`, coalesced.

    The Laplacian of a grid is one of the Laplacians of its sides. As SciPy's `kronsum`. Raises
    ShapeError for anything but square sparse matrices without dense dimensions.

    >>> import sparsegrad as sg
    >>> L = sg.coo([[0, 0, 1, 1], [0, 1, 0, 1]], [1.0, -1.0, -1.0, 1.0], (2, 2))
    >>> sg.kronsum(L, L).to_dense()
    tensor([[ 2., -1., -1.,  0.],
            [-1.,  2.,  0., -1.],
            [-1.,  0.,  2., -1.],
            [ 0., -1., -1.,  2.]])
    """
    for name, x in (("A", A), ("B", B)):
        check_sparse("kronsum", name, x)
        if x.sparse_dim != 2 or x.dense_dim or x.shape[0] != x.shape[1]:
            raise ShapeError(f"kronsum: {name} must be a square matrix, got shape {x.shape}")
    both = cat_p(A.values, B.values, axis=0)
    return coalesce(selected(both, plan_blocks.kronsum(A.pattern, B.pattern)))


def block_array(blocks: Sequence[Sequence[Any]]) -> Any:
    """A sparse matrix of blocks: rows of matrices, dense or sparse, or None for zeros, as SciPy's
    `block_array`. In the format of the first, with all entries; elements of dense blocks are
    entries. Blocks may have equal dense dimensions.

    Raises ShapeError where blocks of a row differ in height, or those of a column in width, or
    where a row or column has None only.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 1], [1], [2.0], (1, 2))
    >>> sg.block_array([[A, None], [None, sg.ones(1, 1)]]).to_dense()
    tensor([[0., 2., 0.],
            [0., 0., 1.]])
    """
    found: list[tuple[int, int, Any]] = []
    heights: dict[int, int] = {}
    widths: dict[int, int] = {}
    for i, row in enumerate(blocks):
        for j, block in enumerate(row):
            if block is None:
                continue
            x = _sparse_block(f"blocks[{i}][{j}]", as_argument("block_array", block))
            tail = found[0][2].shape[2:] if found else x.shape[2:]
            sizes = heights.setdefault(i, x.shape[0]), widths.setdefault(j, x.shape[1]), *tail
            if tuple(x.shape) != sizes:
                raise ShapeError(f"block_array: blocks[{i}][{j}] must be {sizes}, got {x.shape}")
            found.append((i, j, x))
    count = len(blocks), max((len(row) for row in blocks), default=0)
    if not found or (len(heights), len(widths)) != count:
        raise ShapeError("block_array: every row and every column needs a block that is not None")
    top = [0, *accumulate(heights[i] for i in range(count[0]))]
    left = [0, *accumulate(widths[j] for j in range(count[1]))]
    tensors = [x for _, _, x in found]
    corners = tuple((top[i], left[j]) for i, j, _ in found)
    joined = plan_blocks.blocks([x.pattern for x in tensors], corners, (top[-1], left[-1]))
    return selected(cat_p(*(x.values for x in tensors), axis=0), joined)


def _sparse_block(name: str, x: Any) -> Any:
    if (x.sparse_dim if x._is_sparse else x.ndim) != 2:
        raise ShapeError(f"block_array: {name} must be a matrix, got shape {tuple(x.shape)}")
    return x if x._is_sparse else _sparse("block_array", name, x)


from sparsegrad.sparse_tensor import wrap as _wrap  # noqa: E402  (the one import cycle)
