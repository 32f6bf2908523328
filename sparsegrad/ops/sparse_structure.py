"""Structure of sparse tensors: formats, coalesce, dense and back. Index work is in plans."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import backends
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError, memory_for
from sparsegrad.ops.index import take_p
from sparsegrad.ops.segment import segment_sum_p
from sparsegrad.ops.shape import as_argument, permute_p, reshape_p
from sparsegrad.structure import cost, plan
from sparsegrad.structure.arrays import Moves
from sparsegrad.structure.pattern import Pattern

__all__ = ["coalesce", "to_dense", "to_format", "to_sparse"]


@primitive(promote="none")
def reorder_p(be: Any, values: Any, *, moves: Moves) -> Any:
    """Values (nnz, *D) in another order; a permutation, so its transpose is its inverse and
    nothing is scattered."""
    return be.gather(values, moves.perm)


reorder_p.defvjp(values=lambda g, moves: reorder_p(g, moves=moves.back))


@primitive(promote="none")
def merge_p(be: Any, values: Any, *, merge: plan.Sums) -> Any:
    """Values (nnz, *D) summed over each run of values[perm]: (s, *D)."""
    return be.sum_runs(values, merge.perm, merge.indptr)


@primitive(promote="none")
def unmerge_p(be: Any, x: Any, *, merge: plan.Sums) -> Any:
    """The transpose of `merge_p`: every entry takes the row of its run, or 0."""
    return be.gather(x, merge.slots) if merge.whole else be.gather_or_zero(x, merge.slots)


merge_p.defvjp(values=lambda g, merge: unmerge_p(g, merge=merge))
unmerge_p.defvjp(x=lambda g, merge: merge_p(g, merge=merge))


@primitive(promote="none")
def entries_p(be: Any, x: Any, *, pattern: Any) -> Any:
    """Elements (nnz, *D) of a dense x (*sparse, *D) at the entries of a pattern."""
    if not x.flags.c_contiguous:  # no copy of all of it for a few
        return x[pattern.coords]
    rows = x.reshape(math.prod(pattern.shape), *x.shape[len(pattern.shape) :])
    return be.gather(rows, plan.flat_index(pattern, pattern.shape))


@primitive(promote="none")
def put_entries_p(be: Any, values: Any, *, pattern: Any) -> Any:
    """The transpose of `entries_p`: zeros with values added at the entries, (*sparse, *D)."""
    shape = pattern.shape
    if len(shape) == 2 and (out := be.matrix(pattern, values)) is not None:
        return out
    cells = 1
    for n in shape:
        cells *= n
    out = be.put_rows(values, plan.flat_index(pattern, shape), cells)
    return out.reshape(*shape, *values.shape[1:])


def _entries_rule(g: Any, pattern: Pattern) -> Any:
    return wrap(g, pattern)


# The cotangent of a dense tensor that was read at few places is sparse, and stays so.
entries_p.defvjp(x=_entries_rule)
put_entries_p.defvjp(values=lambda g, pattern: entries_p(g, pattern=pattern))


# ---- public names ------------------------------------------------------------------------------
def _check_sparse(op: str, A: Any) -> None:
    if not getattr(A, "_is_sparse", False):
        raise TypeError(f"{op}: expected a SparseTensor, got {type(A).__name__}")


def reorder(values: Any, pattern: Pattern, target: Pattern) -> Any:
    """Values on `pattern` as values on `target`, a handle of the same core."""
    core, old, new = pattern.core, pattern.order, target.order
    perm = core.moves(old, new)
    if perm is None:
        return values
    return reorder_p(values, moves=Moves(perm, lambda: core.moves(new, old)))


def to_format(A: Any, format: Any) -> Any:
    """`A` as "coo", "csr", "csc", or "auto", the cheapest of them; entries, duplicates included,
    stay what they are. The index work is done once and kept on the pattern.

    >>> import sparsegrad as sg
    >>> sg.to_format(sg.coo([[1, 0], [0, 1]], [5.0, 6.0], (2, 2)), "csr").values
    tensor([6., 5.])
    """
    _check_sparse("to_format", A)
    target, _ = A.pattern.to(cost.resolve(format, A.pattern.shape, A.nnz))
    return A if target is A.pattern else wrap(reorder(A.values, A.pattern, target), target)


def coalesce(A: Any) -> Any:
    """Unique entries in canonical order (column-major for CSC, else row-major), duplicates
    summed; `A` itself if it is so already. Explicit zeros stay.

    >>> import sparsegrad as sg
    >>> sg.coalesce(sg.coo([[1, 0, 1]], [1.0, 2.0, 3.0], (2,))).values
    tensor([2., 4.])
    """
    _check_sparse("coalesce", A)
    merge = plan.coalesce(A.pattern)
    if merge.indptr is None:
        if merge.perm is None:
            return A
        return wrap(reorder(A.values, A.pattern, merge.pattern), merge.pattern)
    return wrap(apply_merge(A.values, merge), merge.pattern)


def each_once(x: Any) -> Any:
    """A sparse tensor with duplicates summed, in whatever order; all else as it is."""
    plain = not getattr(x, "_is_sparse", False) or x.pattern.core.unique
    return x if plain else coalesce(x)


def apply_merge(values: Any, merge: plan.Sums) -> Any:
    """Values (nnz, *D) summed over the runs of a plan."""
    if merge.perm is None:
        return values if merge.indptr is None else segment_sum_p(values, indptr=merge.indptr)
    return merge_p(values, merge=merge)


def first_of_each(A: Any) -> Any:
    """Like `coalesce`, but each entry takes the value of its first duplicate: the gradient of a
    matrix from the (equal) gradients of its stored values."""
    merge = plan.coalesce(A.pattern)
    values = A.values if merge.perm is None else take_p(A.values, index=merge.perm)
    return wrap(take_p(values, index=merge.indptr[:-1]), merge.pattern)


def to_dense(A: Any) -> Any:
    """Every cell as a dense tensor of the same shape; duplicates summed, absent cells 0. Recorded.

    >>> import sparsegrad as sg
    >>> sg.to_dense(sg.coo([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)))
    tensor([[0., 3.],
            [0., 0.]])
    """
    _check_sparse("to_dense", A)
    return put_entries_p(A.values, pattern=A.pattern)


@memory_for("to_sparse")
def to_sparse(x: Any, format: Any = "coo", dense_dims: int = 0) -> Any:
    """The nonzero elements of a dense tensor as a SparseTensor of the same shape.

    dense_dims: trailing dimensions that stay dense; a slice with any nonzero is stored whole.
    The gradient of `x` is sparse: elements that were zero get none.

    >>> import sparsegrad as sg
    >>> sg.to_sparse(sg.tensor([[0.0, 2.0], [3.0, 0.0]]), "csr")
    SparseTensor(shape=(2, 2), nnz=2, density=0.5, format='csr', dtype=float32, device='cpu',
                 (0, 1): 2., (1, 0): 3.)
    """
    x = as_argument("to_sparse", x)
    if x._is_sparse:
        raise TypeError("to_sparse: expected a dense tensor, got a SparseTensor")
    sparse_dims = x.ndim - dense_dims
    if not 0 < sparse_dims <= x.ndim:
        raise ShapeError(f"to_sparse: dense_dims {dense_dims} leaves no sparse one of {x.shape}")
    xp = backends.for_array(x.data).xp
    stored = x.data != 0
    if dense_dims:
        stored = stored.any(axis=tuple(range(sparse_dims, x.ndim)))
    coords = xp.nonzero(stored)
    pattern = Pattern.coo(list(coords), x.shape[:sparse_dims], check=False, copy=False)
    pattern, _ = pattern.to(cost.resolve(format, pattern.shape, pattern.nnz))
    return wrap(entries_p(x, pattern=pattern), pattern)


def split_dense(A: Any, count: int) -> Any:
    """The first `count` dense dimensions made sparse: every cell of them becomes an entry."""
    if not count:
        return A
    sizes = A.values.shape[1 : 1 + count]
    pattern = A.pattern.cached(("split", sizes), lambda: _split(A.pattern, sizes))
    return wrap(reshape_p(A.values, shape=(pattern.nnz, *A.values.shape[1 + count :])), pattern)


def _split(pattern: Pattern, sizes: tuple[int, ...]) -> Pattern:
    grid = pattern.core.backend.xp.indices((pattern.nnz, *sizes)).reshape(1 + len(sizes), -1)
    coords = [*(c[grid[0]] for c in pattern.coords), *grid[1:]]
    return Pattern.coo(coords, (*pattern.shape, *sizes), check=False, copy=False)


@permute_p.defsparse
def _permute(A: Any, *, axes: tuple[int, ...]) -> Any:
    """Sparse dimensions lead; a dense one that moves before a sparse one becomes sparse. A matrix
    is transposed in O(1)."""
    lead = next(n for n in range(A.sparse_dim, A.ndim + 1) if set(axes[:n]) == set(range(n)))
    A = split_dense(A, lead - A.sparse_dim)
    pattern, order = A.pattern, axes[:lead]
    if order == (1, 0):
        pattern = pattern.T
    elif order != tuple(range(lead)):
        pattern = pattern.cached(("permute", order), lambda: _permuted(A.pattern, order))
    tail = (0, *(a - lead + 1 for a in axes[lead:]))
    values = A.values if tail == tuple(range(len(tail))) else permute_p(A.values, axes=tail)
    return wrap(values, pattern)


def _permuted(pattern: Pattern, order: tuple[int, ...]) -> Pattern:
    coords, shape = pattern.coords, pattern.shape
    ids = [coords[a] for a in order]
    return Pattern.coo(ids, tuple(shape[a] for a in order), check=False, copy=False)


def at_entries(x: Any, pattern: Pattern) -> Any:
    """Elements (nnz, *D) of a dense `x` that broadcasts over the sparse dimensions of a pattern:
    sizes 1 and missing leading dimensions are read without being expanded."""
    sparse = len(pattern.shape)
    sizes = x.shape[:sparse]
    cells = 1
    for n in sizes:
        cells *= n
    flat = plan.flat_index(pattern, sizes)
    return take_p(reshape_p(x, shape=(cells, *x.shape[sparse:])), index=flat)


def onto_dense(values: Any, pattern: Pattern, x: Any) -> Any:
    """A dense x (*sparse, *D) with the entries added: a copy, no other dense array."""
    cells = 1
    for n in pattern.shape:
        cells *= n
    flat = plan.flat_index(pattern, pattern.shape)
    rows = reshape_p(x, shape=(cells, *x.shape[len(pattern.shape) :]))
    return reshape_p(add_rows_p(rows, values, index=flat), shape=x.shape)


@primitive
def add_rows_p(be: Any, x: Any, values: Any, *, index: Any) -> Any:
    """x (n, *D) with values (e, *D) added to the rows `index` (e,)."""
    return be.add_rows(x, index, values)


add_rows_p.defvjp(x=lambda g: g, values=lambda g, index: take_p(g, index=index))


from sparsegrad.sparse_tensor import wrap  # noqa: E402  (the one import cycle)
