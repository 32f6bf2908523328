"""Indexing of sparse tensors, and dense tensors read on a pattern."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import numpy as np

from sparsegrad import backends
from sparsegrad.device import Device
from sparsegrad.errors import PatternError, ShapeError, memory_for
from sparsegrad.ops.index import entries_of, getitem_p, raw_index, take, take_or_zero_p, take_p
from sparsegrad.ops.reduce import sum_p
from sparsegrad.ops.shape import as_argument, as_axis, permute_p, reshape_p, unsqueeze
from sparsegrad.structure import plan, plan_index
from sparsegrad.structure.pattern import Pattern
from sparsegrad.structure.plan_select import Select

__all__ = ["index_select", "sparse_mask"]


# ---- A[index] ----------------------------------------------------------------------------------
@memory_for("indexing")
def sparse_getitem(A: Any, index: Any) -> Any:
    """A[index] with integers, slices (any step), integer arrays, bool masks, None and Ellipsis,
    and NumPy's rules for what they mean together. Gradients reach the values of `A`.

    A single cell, or whatever leaves no sparse dimension, is a dense tensor. The rest is sparse:
    a matrix in the format of `A`, anything else coo. Rows of a CSR matrix (columns of a CSC one)
    are found through `indptr`: the rest of the matrix is not read. On the dense dimensions of a
    hybrid tensor the index applies to the values; arrays for sparse and dense dimensions together
    give sparse ones.

    Raises IndexError for an index out of range, or of a kind that has no meaning.
    """
    if _is_mask(A, index):
        A, mask = A.coalesce(), index.coalesce()
        return selected(A.values, plan_index.masked(A.pattern, mask.pattern, mask.values.data))
    if _is_array(index) and index.ndim == 1 and index.dtype.kind in "iu":  # of a mini-batch
        return _lines(A, 0, _in_range(index, A.shape[0], 0, A.device))
    items = _expanded(A, index)
    used, cutoff = 0, len(items)
    for position, item in enumerate(items):
        if item is not None and used == A.sparse_dim:
            cutoff = position
            break
        used += item is not None
    sparse, dense = items[:cutoff], items[cutoff:]
    if any(_is_array(item) for item in dense):
        together, first = _special(items)
        if not together or (first < cutoff and any(_is_array(item) for item in sparse)):
            return _mixed(A, sparse, dense, first if together else 0)
    if any(_is_array(item) or item != slice(None) for item in dense):
        A = A.with_values(getitem_p(A.values, index=(slice(None), *dense)))
    together, first = _special(items)
    return _sparse_part(A, sparse, first if together else 0)


def _is_mask(A: Any, index: Any) -> bool:
    """Whether this is a sparse mask of all cells."""
    return (
        getattr(index, "_is_sparse", False)
        and index.dtype == np.bool_
        and not index.dense_dim
        and index.shape == A.pattern.shape
    )


def _is_array(item: Any) -> bool:
    return isinstance(item, np.ndarray) or hasattr(item, "__cuda_array_interface__")


def _expanded(A: Any, index: Any) -> list[Any]:
    """One item for each dimension, and the Nones: masks as arrays of ids, Ellipsis spelled out."""
    items: list[Any] = []
    masks: dict[int, int] = {}  # position of an item that came from a mask -> the mask's size there
    for item in index if isinstance(index, tuple) else (index,):
        found, sizes = _ids_of(item, A.device)
        masks.update({len(items) + i: n for i, n in enumerate(sizes)})
        items += found
    count = sum(item is not None and item is not Ellipsis for item in items)
    if sum(item is Ellipsis for item in items) > 1:
        raise IndexError("index: more than one Ellipsis")
    if count > A.ndim:
        raise IndexError(f"index: {count} indices for the {A.ndim} dimensions of shape {A.shape}")
    out: list[Any] = []
    left = iter(A.shape)
    missing = A.ndim - count
    for position, item in enumerate(items):
        if item is None:
            out.append(None)
        elif item is Ellipsis:
            out += [slice(None)] * missing
            left = itertools.islice(left, missing, None)
            missing = 0
        else:
            n = next(left)
            if masks.get(position, n) != n:
                raise IndexError(
                    f"index: a mask has size {masks[position]} where shape {A.shape} has {n}"
                )
            out.append(item if position in masks else _in_range(item, n, len(out), A.device))
    return out + [slice(None)] * missing


def _ids_of(item: Any, device: Device) -> tuple[list[Any], tuple[int, ...]]:
    """A mask as the ids of its true cells, and its shape; a list or tensor as an array; the rest
    as it is."""
    if isinstance(item, slice):
        try:
            item.indices(1)
        except (TypeError, ValueError) as error:
            raise IndexError(f"index: {item}: {error}") from None
    if item is None or item is Ellipsis or isinstance(item, slice):
        return [item], ()
    if getattr(item, "_is_sparse", False):
        if item.dtype != np.bool_:
            raise IndexError(f"index: a sparse index must be a bool mask, got {item.dtype}")
        mask = item.to("coo").coalesce()  # cells are counted in row-major order
        return [c[mask.values.data].astype(np.int64) for c in mask.pattern.coords], mask.shape
    if isinstance(item, (bool, np.bool_)):
        raise IndexError("index: a single bool selects nothing; use an array of them as a mask")
    item = raw_index(list(item) if isinstance(item, range) else item)
    if not hasattr(item, "dtype") or item.ndim == 0:
        try:
            return [operator.index(item)], ()
        except TypeError:
            raise IndexError(f"index: {item!r} is not an integer, slice, array or mask") from None
    if item.dtype == np.bool_:
        asarray = backends.for_device(device).asarray
        return plan.of_array(
            "mask", item, device, lambda a: [*map(asarray, a.nonzero())]
        ), item.shape
    return [item], ()


def _in_range(item: Any, n: int, position: int, device: Device) -> Any:
    if isinstance(item, int):
        if not -n <= item < n:
            raise IndexError(f"index: {item} at position {position} is outside the size {n}")
        return item % n
    if not _is_array(item):
        return item

    def build(ids: Any) -> Any:
        low, high = backends.for_array(ids).extent(ids) if ids.size else (0, -1)
        if low < -n or high >= n:
            found = low if low < -n else high
            raise IndexError(f"index: {found} at position {position} is outside the size {n}")
        ids = backends.for_device(device).asarray(ids, np.int64)
        return ids % n if low < 0 else ids

    return plan.of_array(("index", n), item, device, build)


def _mixed(A: Any, sparse: list[Any], dense: list[Any], place: int) -> Any:
    """Arrays for sparse and dense dimensions together, or whose dimensions go first: these become
    one sparse dimension at `place`, and every entry reads its values at the cell it came to."""
    from sparsegrad.sparse_tensor import wrap

    items = (*sparse, *dense)
    special = [x for x in items if _is_array(x) or isinstance(x, int)]
    sizes = _broadcast_sizes(special)
    words = tuple("ids" if _is_array(x) else str(x) for x in items)

    def read() -> tuple[Pattern, Any]:
        return _elements_of(A.pattern, A.values.shape[1:], sparse, dense, sizes, place)

    kind = ("mixed", words, place, A.values.shape[1:])
    arrays = tuple(filter(_is_array, special))
    pattern, at = plan_index.of_ids(kind, A.pattern, arrays, read)
    flat = take_p(reshape_p(A.values, shape=(math.prod(A.values.shape),)), index=at.reshape(-1))
    out = wrap(reshape_p(flat, shape=at.shape), pattern)
    if len(sizes) == 1:
        return out
    return reshape_p(out, shape=(*out.shape[:place], *sizes, *out.shape[place + 1 :]))


def _elements_of(
    pattern: Pattern,
    dims: tuple[int, ...],
    sparse: list[Any],
    dense: list[Any],
    sizes: tuple[int, ...],
    place: int,
) -> tuple[Pattern, Any]:
    """The pattern of what `_mixed` reads, and the elements of the values that stand there."""
    from sparsegrad.sparse_tensor import wrap
    from sparsegrad.tensor import Tensor

    xp = pattern.core.backend.xp

    def listed(x: Any) -> Any:
        found = _is_array(x) or isinstance(x, int)
        return xp.broadcast_to(xp.asarray(x), sizes).reshape(-1) if found else x

    sparse, dense = list(map(listed, sparse)), list(map(listed, dense))
    numbers = wrap(Tensor(xp.arange(pattern.nnz)), pattern)  # of the entries, as their values
    if not any(map(_is_array, sparse)):
        numbers = unsqueeze(numbers, 0)
        sparse = [xp.zeros(math.prod(sizes), dtype=xp.int64), *sparse]
    out = _sparse_part(numbers, sparse, place)
    cell, each = out.pattern.coords[place], math.prod(dims)
    inside = xp.broadcast_to(xp.arange(each).reshape(1, *dims), (out.nnz, *dims))
    at = inside[(xp.arange(out.nnz), *(x[cell] if _is_array(x) else x for x in dense))]
    return out.pattern, at + (out.values.data * each).reshape(-1, *(1,) * (at.ndim - 1))


def _sparse_part(A: Any, items: list[Any], place: int) -> Any:
    arrays = [item for item in items if _is_array(item)]
    parts = tuple(
        item if isinstance(item, int) else range(n)[item] if isinstance(item, slice) else range(n)
        for item, n in zip((i for i in items if i is not None), A.pattern.shape, strict=True)
    )
    out = _cut(A, parts)
    # What each dimension of the result is: kept, from the arrays, or new.
    layout = ["new" if item is None else "kept" for item in items
              if item is None or isinstance(item, slice)]  # fmt: skip
    if arrays:
        kept = [item for item in items if item is not None and not isinstance(item, int)]
        dims = tuple(d for d, item in enumerate(kept) if _is_array(item))
        before = sum(kind == "kept" for kind in layout[:place])
        out, count = _cells(out, dims, arrays, before)
        layout[place:place] = ["array"] * count
    for d, kind in enumerate(layout):
        if kind == "new":
            out = unsqueeze(out, d)
    return out


def _special(items: list[Any]) -> tuple[bool, int]:
    """Whether index arrays stand together, and where the first one is: their dimensions go there
    if they do, else first. As in NumPy an integer counts as an array here."""
    special = [i for i, x in enumerate(items) if _is_array(x) or isinstance(x, int)]
    if not special:
        return True, 0
    return special[-1] - special[0] + 1 == len(special), special[0]


def _broadcast_sizes(items: list[Any]) -> tuple[int, ...]:
    shapes = [x.shape if _is_array(x) else () for x in items]
    if len(shapes) == 1:
        return shapes[0]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = [s for s in shapes if s]
        raise IndexError(f"index: arrays of shapes {listed} do not broadcast") from None


def _cut(A: Any, parts: tuple[plan_index.Part, ...]) -> Any:
    from sparsegrad.sparse_tensor import wrap

    if parts == tuple(map(range, A.pattern.shape)):
        return A
    pattern, index = plan_index.cut(A.pattern, parts)
    values = take_p(A.values, index=index, distinct=True)
    return sum_p(values, axis=(0,)) if pattern is None else wrap(values, pattern)


def _cells(A: Any, dims: tuple[int, ...], arrays: list[Any], place: int) -> tuple[Any, int]:
    """`A` with `dims` replaced by the dimensions of index arrays, and how many those are."""
    sizes = _broadcast_sizes(arrays)
    if dims == (0, 1) and A.sparse_dim == 2 and _is_mesh(arrays):
        return _lines(_lines(A, 0, arrays[0]), 1, arrays[1]), 2
    if len(dims) == 1:
        out = _lines(A, dims[0], arrays[0])
        if place != dims[0]:
            order = [d for d in range(out.ndim) if d != dims[0]]
            order.insert(place, dims[0])
            out = permute_p(out, axes=tuple(order))
    else:
        out = selected(A.values, plan_index.cells(A.pattern, dims, arrays, place))
    if len(sizes) > 1:
        out = reshape_p(out, shape=(*out.shape[:place], *sizes, *out.shape[place + 1 :]))
    return out, len(sizes)


def _is_mesh(arrays: list[Any]) -> bool:
    """Whether the arrays are those of `np.ix_`: every row with every column."""
    first, second = arrays
    return first.ndim == second.ndim == 2 and first.shape[1] == second.shape[0] == 1


def _lines(A: Any, dim: int, ids: Any) -> Any:
    return selected(A.values, plan_index.lines(A.pattern, dim, ids))


def selected(values: Any, chosen: Select) -> Any:
    """Values on the pattern of a plan."""
    from sparsegrad.sparse_tensor import wrap

    if chosen.entries is not None:
        values = entries_of(values, chosen.entries, chosen.distinct)
    return wrap(values, chosen.pattern)


# ---- public names ------------------------------------------------------------------------------
@memory_for("index_select")
def index_select(x: Any, dim: int, index: Any) -> Any:
    """Slices of `x` along `dim` by an integer index (k,), in its order, repeats allowed.

    Dense: a dense gradient, as in PyTorch (`sg.take` gives a row-sparse one). Sparse: the result
    is sparse, a matrix in the format of `x`. Rows of a CSR matrix and columns of a CSC one are
    found through `indptr`, without reading the rest.

    Raises ShapeError for a dimension that is not there, PatternError for an index that is not
    integer, not one-dimensional, or outside [0, n).

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3))
    >>> sg.index_select(A, 0, [1, 1, 0]).to_dense()
    tensor([[0., 3., 0.],
            [0., 3., 0.],
            [1., 0., 2.]])
    """
    x = as_argument("index_select", x)
    dim = as_axis("index_select", dim, x.ndim)
    ids = raw_index(index)
    if not hasattr(ids, "dtype") or ids.ndim != 1 or ids.dtype.kind not in "iu":
        found = f"{ids.dtype} of shape {ids.shape}" if hasattr(ids, "dtype") else repr(index)
        raise PatternError(f"index_select: index must be integers (k,), got {found}")
    if not getattr(x, "_is_sparse", False):
        return take(x, ids, dim, sparse_grad=False)
    dim %= x.ndim
    if dim >= x.sparse_dim:
        lead = dim - x.sparse_dim + 1
        return x.with_values(take(x.values, ids, lead, sparse_grad=False))
    n, backend = x.shape[dim], x.pattern.core.backend

    def build(ids: Any) -> Any:
        ids = backend.asarray(ids, np.int64)
        backend.check_indices("index_select: index", ids, n)
        return ids

    return _lines(x, dim, plan.of_array(("index_select", n), ids, x.device, build))


@memory_for("sparse_mask")
def sparse_mask(x: Any, pattern: Any) -> Any:
    """The elements of `x` at the entries of a pattern, as a SparseTensor on it.

    x (*sparse, *D), dense or sparse; pattern (*sparse): a Pattern, or a SparseTensor whose pattern
    is meant (its values do not matter). Each entry counts once: a pattern with duplicates is
    coalesced first. Of a sparse `x`, entries that are absent read as 0.

    The gradient of a dense `x` is sparse: elements outside the pattern get none.
    Raises ShapeError where the shapes differ.

    >>> import sparsegrad as sg
    >>> P = sg.coo([[0, 1], [1, 0]], None, (2, 2))
    >>> x = sg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> y = sg.sparse_mask(x, P)
    >>> y.sum().backward()
    >>> y.values.detach(), x.grad.to_dense()
    (tensor([2., 3.]), tensor([[0., 1.],
            [1., 0.]]))
    """
    from sparsegrad.ops.sparse_structure import apply_merge, entries_p
    from sparsegrad.sparse_tensor import wrap
    from sparsegrad.tensor import as_tensor

    where = pattern if isinstance(pattern, Pattern) else getattr(pattern, "pattern", None)
    if where is None:
        raise TypeError(
            f"sparse_mask: pattern must be a Pattern or SparseTensor, got {type(pattern).__name__}"
        )
    if not getattr(x, "_is_sparse", False):
        x = as_tensor(x)
    sizes = x.pattern.shape if getattr(x, "_is_sparse", False) else x.shape[: where.ndim]
    if tuple(sizes) != where.shape:
        raise ShapeError(f"sparse_mask: shapes differ; got x: {x.shape}, pattern: {where.shape}")
    sparse = getattr(x, "_is_sparse", False)
    if sparse:
        x.pattern.same_as(where)  # if it is, they share from now on what is known of it
    if not where.core.unique:
        where = plan.coalesce(where).pattern
    if not sparse:
        return wrap(entries_p(x, pattern=where), where)
    if x.pattern.same_as(where):
        return wrap(x.values, where)
    if not x.pattern.core.unique:
        return wrap(apply_merge(x.values, plan.sums_at(where, x.pattern)), where)
    return wrap(take_or_zero_p(x.values, moves=plan.matching(where, x.pattern)), where)
