"""The entries that stay: counted in one launch, listed in another, and one wait between them
(kernels/select.cu)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparsegrad.backends.base import Array, Backend
from sparsegrad.backends.cuda_coalesce import sort_order
from sparsegrad.backends.cuda_kernels import accumulator_of, ctype_of, kernel, launch
from sparsegrad.dtypes import kind

__all__ = ["CudaSelect"]

_LISTS = ("first", "second", "third")  # that one launch takes
_LONG = 1024  # entries of a run up to which all are compared with all
_LONGEST, _MANY = 1 << 17, 16  # from which all are sorted, unless there are so many such runs
_ROUND, _CHUNKS = 1024, 1024  # SG_ROUND, SG_CHUNKS


class Counted(NamedTuple):
    """How many of n entries stay: up to each one of its chunk of 1 << shift (n,), and in every
    chunk."""

    upto: Array
    counts: Array
    shift: int


class CudaSelect(Backend):
    """What stays is a bool array where the reference is asked, else `Counted`."""

    def beyond(self, x: Array, threshold: float = 0.0, order: Array | None = None) -> Any:
        if not x.size:
            return super().beyond(x, threshold, order)
        if x.dtype != bool and kind(x.dtype) != "f":
            x = super().beyond(x, threshold)
        return _count(x, threshold, order)

    def largest_in_runs(self, x: Array, runs: Any, k: int, magnitude: bool) -> Any:
        """Runs that are not long are compared, all with all; in long ones the k-th is looked for by
        a block each, or, where they are too long and few for that, all are sorted."""
        import cupy

        order = None if runs.order is None else cupy.ascontiguousarray(runs.order)
        if runs.longest > max(_LONGEST, x.size // _MANY):
            return _count(_first_in_runs(self.ranked(x, magnitude), runs, order, k))
        if kind(x.dtype) != "f":
            x, magnitude = -self.ranked(x, magnitude), False
        types = ctype_of(x.dtype), ctype_of(runs.offsets.dtype)
        common = {
            "values": cupy.ascontiguousarray(x),
            "magnitude": int(magnitude),
            "k": k,
            "offsets": runs.offsets,
            "order_or_null": order,
            "most": _LONG,
        }
        top = last = None
        if runs.longest > _LONG:
            count = runs.offsets.size - 1
            top, last = cupy.empty(count, accumulator_of(types[0])), cupy.empty_like(runs.offsets)
            launch(
                kernel("select", "sg_select_kth", *types),
                256 * count,
                **common,
                runs=count,
                top=top,
                last=last,
            )
        counted = _counting(x.size)
        launch(
            kernel("select", "sg_select_top", *types),
            _threads(counted),
            **common,
            segment_or_null=runs.segment if runs.offsets.size > 2 else None,
            listed_or_null=runs.listed,
            top_or_null=top,
            last_or_null=last,
            n=x.size,
            **counted._asdict(),
        )
        return counted

    def compact(
        self, keep: Any, lists: Sequence[Array], offsets: Array | None = None
    ) -> tuple[Array | None, tuple[Array, ...], Array | None]:
        counted = keep if isinstance(keep, Counted) else _count(keep) if keep.size else None
        if counted is None:
            return super().compact(keep, lists, offsets)
        kept, _ = _totals(counted)
        if kept == counted.upto.size:
            return None, tuple(lists), offsets
        return _compact(counted, kept, lists, offsets)

    def true_cells(
        self,
        truth: Array,
        listed: Array | None = None,
        cell: Array | None = None,
        entry: Array | None = None,
    ) -> tuple[Array | None, Array, int]:
        import cupy

        if not truth.size or (cell is not None and not cell.size):
            return super().true_cells(truth, listed, cell, entry)
        counted = _count(truth, order=listed)
        n = counted.upto.size if cell is None else cell.size
        skip = counted.upto.size - n
        count, kept = _totals(counted, skip)
        dtype = np.dtype(np.int32) if entry is None else entry.dtype
        cells, entries = cupy.empty(kept, dtype), cupy.empty(kept, dtype)
        launch(
            kernel("select", "sg_select_cells", ctype_of(dtype)),
            n if kept else 0,
            upto=counted.upto,
            counts=counted.counts,
            shift=counted.shift,
            skip=skip,
            n=n,
            cell_or_null=cell,
            entry_or_null=entry,
            cells=cells,
            entries=entries,
        )
        return None if entry is None and kept == n else entries, cells, count


def _counting(n: int) -> Counted:
    """Room for the counts of n entries."""
    import cupy

    shift = (max(_ROUND, -(-n // _CHUNKS)) - 1).bit_length()
    chunks = -(-n // (1 << shift))
    return Counted(cupy.empty(n, np.int32), cupy.empty(chunks, np.int32), shift)


def _threads(counted: Counted) -> int:
    """A block for each chunk."""
    return 256 * int(counted.counts.size)


def _count(x: Array, threshold: float = 0.0, order: Array | None = None) -> Counted:
    """The entries of x (nnz, *D), listed by `order`, of which any element is true, or beyond the
    threshold."""
    import cupy

    flags = x.dtype.itemsize == 1
    values = cupy.ascontiguousarray(x.view(np.uint8) if flags else x)
    order = None if order is None else cupy.ascontiguousarray(order)
    counted = _counting(len(x) if order is None else order.size)
    index = "int" if order is None else ctype_of(order.dtype)
    launch(
        kernel("select", "sg_select_count", ctype_of(values.dtype), index),
        _threads(counted),
        values=values,
        width=prod(x.shape[1:]),
        threshold=0 if flags else threshold,
        order_or_null=order,
        n=counted.upto.size,
        **counted._asdict(),
    )
    return counted


def _totals(counted: Counted, first: int = 0) -> tuple[int, int]:
    """How many stay: of the `first` ones and of the rest, or, if that is 0, of all, twice."""
    import cupy

    counts = cupy.asnumpy(counted.counts)  # sync: how many stay
    total = int(counts.sum(dtype=np.int64))
    if not first:
        return total, total
    before = counts[: (first - 1) >> counted.shift].sum(dtype=np.int64)
    found = int(before) + int(counted.upto[first - 1])  # sync: a second look, without a wait
    return found, total - found


def _compact(
    counted: Counted, kept: int, lists: Sequence[Array], offsets: Array | None
) -> tuple[Array, tuple[Array, ...], Array | None]:
    import cupy

    dtype = lists[0].dtype if lists else np.dtype(np.int64) if offsets is None else offsets.dtype
    entries = cupy.empty(kept, dtype)
    left, runs = None, 0
    if offsets is not None:
        offsets = cupy.ascontiguousarray(offsets, dtype)
        left, runs = cupy.empty(offsets.size, dtype), offsets.size - 1
    arguments: dict[str, Any] = dict.fromkeys(
        f"{out}{name}_or_null" for name in _LISTS for out in ("", "out_")
    )
    names, found, others = iter(_LISTS), [], []
    for x in lists:
        found.append(cupy.empty(kept, x.dtype))
        name = next(names, None) if x.dtype == dtype else None
        if name is None:
            others.append((x, found[-1]))
        else:
            arguments[f"{name}_or_null"] = cupy.ascontiguousarray(x)
            arguments[f"out_{name}_or_null"] = found[-1]
    launch(
        kernel("select", "sg_select_compact", ctype_of(dtype)),
        max(counted.upto.size, runs + 1),
        upto=counted.upto,
        counts=counted.counts,
        shift=counted.shift,
        n=counted.upto.size,
        offsets_or_null=offsets,
        runs=runs,
        entries=entries,
        out_offsets_or_null=left,
        **arguments,
    )
    for x, to in others:
        cupy.take(x, entries, out=to)
    return entries, tuple(found), left


def _first_in_runs(key: Array, runs: Any, order: Array | None, k: int) -> Array:
    """Which entries have one of the k least keys of their run: sorted by run and by key."""
    import cupy

    perm = _by_run(key, order, runs.segment, runs.offsets.size - 1)
    keep = cupy.empty(key.size, np.uint8)
    launch(
        kernel("select", "sg_select_first", ctype_of(runs.offsets.dtype)),
        key.size,
        sorted=perm,
        order_or_null=order,
        segment=runs.segment,
        offsets=runs.offsets,
        n=key.size,
        k=k,
        keep=keep,
    )
    return keep


def _by_run(key: Array, order: Array | None, segment: Array, runs: int) -> Array:
    """Entries listed by `order`, in the order of their runs, within these of their keys."""
    import cupy

    if key.dtype == np.float32 and 1 < runs < 1 << 32:
        packed = cupy.empty(key.size, np.uint64)
        launch(
            kernel("select", "sg_select_rank", ctype_of(segment.dtype)),
            key.size,
            values=cupy.ascontiguousarray(key),
            order_or_null=order,
            segment=segment,
            n=key.size,
            key=packed,
        )
        return cupy.argsort(packed)
    perm = cupy.argsort(key if order is None else cupy.take(key, order))
    if runs > 1:
        ids = cupy.take(segment, perm).reshape(1, -1)
        perm = cupy.take(perm, sort_order(ids, (runs,)))
    return perm
