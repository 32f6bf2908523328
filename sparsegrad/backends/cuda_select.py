"""The entries that stay, found in one launch and one wait (kernels/select.cu)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsegrad.backends.base import Array, Backend
from sparsegrad.backends.cuda_coalesce import sort_order
from sparsegrad.backends.cuda_kernels import ctype_of, kernel, launch

__all__ = ["CudaSelect"]

_LISTS = ("first", "second", "third")  # that one launch takes
_INDEX = ("int32", "int64")


class CudaSelect(Backend):
    """Lists that differ in dtype, or are of another than int32 and int64, are the reference's."""

    def compact(
        self, keep: Array, lists: Sequence[Array], offsets: Array | None = None
    ) -> tuple[Array | None, tuple[Array, ...], Array | None]:
        given = [*lists] if offsets is None else [*lists, offsets]
        dtype = given[0].dtype if given else np.dtype(np.int64)
        if not keep.size or dtype.name not in _INDEX or any(a.dtype != dtype for a in given):
            return super().compact(keep, lists, offsets)
        return _compact(keep, lists, offsets, dtype)

    def least_in_runs(self, key: Array, offsets: Array, order: Array | None, k: int) -> Array:
        """Sorted, within runs too: one by one, they would be found in a round for every length."""
        import cupy

        dtype, segment = offsets.dtype, self.expand(offsets, key.size)
        order = None if order is None else cupy.ascontiguousarray(order, dtype)
        perm = _by_run(key, order, segment, offsets.size - 1)
        keep = cupy.empty(key.size, dtype)
        launch(
            kernel("select", "sg_select_first", ctype_of(dtype)),
            key.size,
            sorted=perm,
            order_or_null=order,
            segment=segment,
            offsets=cupy.ascontiguousarray(offsets),
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


def _compact(
    keep: Array, lists: Sequence[Array], offsets: Array | None, dtype: np.dtype
) -> tuple[Array | None, tuple[Array, ...], Array | None]:
    import cupy

    upto = cupy.cumsum(keep, dtype=dtype)
    count = int(upto[-1])  # sync: how many stay
    if count == keep.size:
        return None, tuple(lists), offsets
    entries = cupy.empty(count, dtype)
    found = [cupy.empty(count, dtype) for _ in lists]
    left = None if offsets is None else cupy.empty(offsets.size, dtype)
    arguments = dict.fromkeys(f"{out}{name}_or_null" for name in _LISTS for out in ("", "out_"))
    for name, from_, to in zip(_LISTS, lists, found, strict=False):
        arguments |= {f"{name}_or_null": cupy.ascontiguousarray(from_), f"out_{name}_or_null": to}
    runs = 0 if offsets is None else offsets.size - 1
    launch(
        kernel("select", "sg_select_compact", ctype_of(dtype)),
        max(keep.size, runs + 1),
        upto=upto,
        n=keep.size,
        offsets_or_null=None if offsets is None else cupy.ascontiguousarray(offsets),
        runs=runs,
        entries=entries,
        out_offsets_or_null=left,
        **arguments,
    )
    for from_, to in zip(lists[len(_LISTS) :], found[len(_LISTS) :], strict=True):
        cupy.take(from_, entries, out=to)
    return entries, tuple(found), left
