"""Scatter with any reduction: what meets at one place is one run of a list, a segment."""

from __future__ import annotations

from typing import Any, NamedTuple

from sparsegrad import backends, dtypes
from sparsegrad.errors import ShapeError
from sparsegrad.ops.binary import floor_divide
from sparsegrad.ops.elementwise import cast, where_p
from sparsegrad.ops.index import take_p
from sparsegrad.ops.scattering import along, axis_and_index, cut_to, flat_positions, slices_of
from sparsegrad.ops.segment import segment_amax_p, segment_amin_p, segment_sum_p
from sparsegrad.ops.shape import as_argument, cat_p, reshape_p, transpose

__all__ = ["index_reduce", "scatter_reduce"]

_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


class _Runs(NamedTuple):
    """Elements, or rows, in the order of the places they go to."""

    places: Any  # (s,) rising
    order: Any  # (e,) which element comes next
    offsets: Any  # (s + 1,) where the run of a place begins


def _runs(be: Any, flat: Any, n: int, with_own: bool) -> _Runs:
    """Runs of elements that go to places `flat` (e,) of n; `with_own` puts before these elements
    one for each place, which comes first in its run."""
    xp, perm = be.xp, be.sort_coo((flat,), (n,))
    order = xp.arange(flat.size) if perm is None else perm.astype("int64", copy=False)
    (places,), offsets = be.runs((flat if perm is None else flat[perm],))
    if with_own:
        own, count = xp.arange(places.size + 1), places.size
        joined = xp.empty(flat.size + count, dtype="int64")
        joined[offsets[:-1] + own[:-1]] = own[:-1]
        joined[xp.arange(flat.size) + be.expand(offsets, flat.size) + 1] = order + count
        order, offsets = joined, offsets + own
    return _Runs(places, order, offsets)


def _offsets(xp: Any, counts: Any) -> Any:
    """Where runs of these lengths begin, and where the last one ends: (s + 1,)."""
    return xp.concatenate((xp.zeros(1, dtype="int64"), xp.cumsum(counts)))


def _products(be: Any, values: Any, offsets: Any) -> Any:
    """Product of each run (none is empty): pairwise in log2(longest) rounds, in ops, so that the
    gradient is right with any number of zeros, and can be differentiated again."""
    xp = be.xp
    counts = xp.diff(offsets)
    while int(counts.max()) > 1:  # sync
        halved = (counts + 1) // 2
        half = _offsets(xp, halved)
        run = be.expand(half, int(half[-1]))  # sync
        pair = xp.arange(run.size) - half[run]
        left = offsets[run] + 2 * pair
        paired = 2 * pair + 1 < counts[run]
        right = take_p(values, index=xp.where(paired, left + 1, left))
        values = take_p(values, index=left) * where_p(right, 1, mask=_beside(paired, values))
        counts, offsets = halved, half
    return values


def _reduced(be: Any, values: Any, offsets: Any, reduce: str) -> Any:
    from sparsegrad.tensor import Tensor

    xp = be.xp
    if reduce == "prod":
        return _products(be, values, offsets)
    if reduce in ("sum", "mean"):
        total = segment_sum_p(values, indptr=offsets)
        if reduce == "sum":
            return total
        counts = Tensor(_beside(xp.diff(offsets), values).astype(values.dtype))
        return floor_divide(total, counts) if values.dtype.kind in "iu" else total / counts
    absent = xp.zeros(offsets.size - 1, dtype="int64")
    if reduce == "amax":
        return segment_amax_p(values, indptr=offsets, absent=absent)
    return segment_amin_p(values, indptr=offsets, absent=absent)


def _beside(each: Any, rows: Any) -> Any:
    """One number a row (n,), as it meets rows (n, *D)."""
    return each.reshape(-1, *(1,) * (rows.ndim - 1))


def _scattered(op: str, x: Any, ids: Any, src: Any, reduce: str, own: bool) -> Any:
    """x (n, *D) with src (e, *D) brought together in the rows `ids` (e,)."""
    if reduce not in _REDUCTIONS:
        raise ValueError(f"{op}: reduce must be one of {_REDUCTIONS}, got {reduce!r}")
    if not ids.size:
        return x
    be = backends.for_array(ids)
    xp = be.xp
    runs = _runs(be, ids, len(x.data), own)
    elements = cast(src, x.dtype)
    if own:
        elements = cat_p(take_p(x, index=runs.places), elements, axis=0)
    wide = cast(elements, dtypes.accumulator(x.dtype))
    found = _reduced(be, take_p(wide, index=runs.order), runs.offsets, reduce)
    slot = xp.zeros(len(x.data), dtype="int64")
    slot[runs.places] = xp.arange(runs.places.size)
    changed = xp.zeros(len(x.data), dtype=bool)
    changed[runs.places] = True
    return where_p(take_p(cast(found, x.dtype), index=slot), x, mask=_beside(changed, x))


def _in_slices(op: str, x: Any, axis: int, ids: Any, src: Any, reduce: str, own: bool) -> Any:
    """`_scattered` along an axis."""
    rows, parts = transpose(x, 0, axis), transpose(src, 0, axis)
    return transpose(_scattered(op, rows, ids, parts, reduce, own), 0, axis)


# ---- public names ------------------------------------------------------------------------------
def scatter_reduce(
    x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """`x` with src[i, j, ...] brought together at (index[i, j, ...], j, ...) for dim 0, and so on.

    reduce: "sum", "prod", "mean", "amax" or "amin" of what arrives at a place.
    include_self: of the element of `x` at that place too; otherwise it is replaced. Places where
        nothing arrives keep theirs.

    Gradients to `x` and `src`: equal maxima share it equally, products are right with any number of
    zeros. index, src: as in `scatter_add`. Raises ShapeError for sizes that do not fit,
    PatternError for an index outside [0, n), ValueError for another reduction.

    >>> import sparsegrad as sg
    >>> x, index, src = sg.ones(3), sg.tensor([2, 0, 2]), sg.tensor([5.0, 3.0, 7.0])
    >>> sg.scatter_reduce(x, 0, index, src, "amax")
    tensor([3., 1., 7.])
    >>> sg.scatter_reduce(x, 0, index, src, "mean", include_self=False)
    tensor([3., 1., 6.])
    """
    x = as_argument("scatter_reduce", x)
    slices = slices_of("scatter_reduce", x, dim, index)
    if slices is not None:
        src = cut_to("scatter_reduce", src, tuple(index.shape))
        return _in_slices("scatter_reduce", x, *slices, src, reduce, include_self)
    axis, ids = along("scatter_reduce", x, dim, index)
    src = reshape_p(cut_to("scatter_reduce", src, ids.shape), shape=(-1,))
    flat = flat_positions(backends.for_array(ids).xp, ids, axis, tuple(x.shape))
    elements = reshape_p(x, shape=(-1,))
    out = _scattered("scatter_reduce", elements, flat, src, reduce, include_self)
    return reshape_p(out, shape=x.shape)


def index_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """`x` with the slices of `source` brought together at its slices `index` (k,) along `dim`; see
    `scatter_reduce`.

    >>> import sparsegrad as sg
    >>> sg.index_reduce(sg.ones(2, 1), 0, sg.tensor([1, 1]), sg.full((2, 1), 3.0), "prod").tolist()
    [[1.0], [9.0]]
    """
    from sparsegrad.tensor import as_tensor

    x, source = as_argument("index_reduce", x), as_tensor(source)
    axis, ids = axis_and_index("index_reduce", x, dim, index)
    expected = (*x.shape[:axis], ids.size, *x.shape[axis + 1 :])
    if tuple(source.shape) != expected:
        raise ShapeError(f"index_reduce: source must have shape {expected}, got {source.shape}")
    return _in_slices("index_reduce", x, axis, ids, source, reduce, include_self)
