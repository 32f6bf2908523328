"""Sparse @ dense by our own kernels: sums, maxima and minima, with heads, in every float dtype."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparsegrad.backends.cuda_kernels import (
    accumulator_of,
    ctype_of,
    kernel,
    launch,
    power_of_two,
)

__all__ = [
    "Rows",
    "broadcast_value",
    "chosen_products",
    "chosen_values",
    "chosen_x",
    "rows_of",
    "spmm",
    "spmm_extreme",
]

Array = Any

# Entries of a row that one group of lanes takes; longer rows are cut into parts of as many.
LONGEST = 256


class Rows(NamedTuple):
    """Entries by row, and the parts of rows that are too long for one group of lanes."""

    indptr: Array  # (m + 1,)
    cols: Array  # (nnz,)
    positions: Array | None  # (nnz,): where in the entry order of the values
    begin: Array  # (parts,): where each part begins
    end: Array  # (parts,)
    long_row: Array  # (long rows,)
    slot: Array  # (long rows + 1,): the first part of each


def rows_of(pattern: Any, in_order: bool = False) -> Rows:
    """What the kernels read of a pattern, made once; `in_order`: columns rise within a row."""
    name = "cuda_sorted_rows" if in_order else "cuda_rows"
    return pattern.cached(name, lambda: _build(pattern, in_order))


def _build(pattern: Any, in_order: bool) -> Rows:
    import cupy

    lines = pattern.sorted_rows() if in_order else pattern.rows()
    dtype = np.result_type(np.int32, *(a.dtype for a in lines if a is not None))
    indptr, cols = (cupy.ascontiguousarray(a, dtype=dtype) for a in lines[:2])
    positions = None if lines[2] is None else cupy.ascontiguousarray(lines[2], dtype=dtype)
    counts = cupy.diff(indptr)
    long_row = cupy.flatnonzero(counts > LONGEST).astype(dtype)  # sync: how many
    if not long_row.size:
        none = cupy.empty(0, dtype)
        return Rows(indptr, cols, positions, none, none, none, cupy.zeros(1, dtype))
    parts = -(-counts[long_row] // LONGEST)
    slot = cupy.zeros(long_row.size + 1, dtype)
    cupy.cumsum(parts, out=slot[1:])
    part = cupy.arange(int(slot[-1]), dtype=dtype)  # sync
    owner = cupy.searchsorted(slot, part, side="right") - 1
    row = long_row[owner]
    begin = indptr[row] + (part - slot[owner]) * LONGEST
    end = cupy.minimum(begin + LONGEST, indptr[row + 1])
    return Rows(indptr, cols, positions, begin.astype(dtype), end.astype(dtype), long_row, slot)


def broadcast_value(values: Array) -> bool:
    """Whether all entries share one value, which is stored once (a mask, an unweighted graph)."""
    return len(values) > 1 and values.strides[0] == 0


def spmm(
    rows: Rows, values: Array, x: Array, *, mean: bool = False, dtype: str | None = None
) -> Array:
    """values (nnz, *H), x (n, *H, k) -> (m, *H, k), the same bits every time.

    `dtype="bfloat16"` says that uint16 arrays hold bfloat16.
    """
    import cupy

    out = cupy.empty((rows.indptr.size - 1, *x.shape[1:]), x.dtype)
    call = _Call(rows, values, x, dtype)
    if not out.size:
        return out
    partial = call.partial()
    launch(
        kernel("spmm", "sg_spmm", *call.types, str(call.load)),
        call.threads,
        **call.arguments,
        mean=mean,
        out=out,
        partial_or_null=partial,
    )
    call.join(partial, out, mean)
    return out


def spmm_extreme(
    rows: Rows, values: Array, x: Array, least: bool, *, dtype: str | None = None
) -> tuple[Array, Array]:
    """Largest or least values[e] * x[col] of each row, (m, *H, k), and the entry it came from.

    The first entry of `rows`, which are sorted, wins ties, nan wins over numbers; an empty row
    gives 0 and entry -1.
    """
    import cupy

    out = cupy.empty((rows.indptr.size - 1, *x.shape[1:]), x.dtype)
    entry = cupy.empty(out.shape, np.int64)
    call = _Call(rows, values, x, dtype, all_widths=False)
    if not out.size:
        return out, entry
    partial = call.partial()
    place = None if partial is None else cupy.empty(partial.shape, np.int32)
    found = {"least": least, "out": out, "entry": entry}
    call.arguments["positions_or_null"] = rows.positions  # which name the entry, too
    launch(
        kernel("spmm", "sg_spmm_extreme", *call.types, str(call.load)),
        call.threads,
        **call.arguments,
        **found,
        partial_or_null=partial,
        place_or_null=place,
    )
    if partial is not None:
        launch(
            kernel("spmm", "sg_spmm_extreme_join", *call.types),
            call.join_threads,
            **call.join_arguments,
            **found,
            partial=partial,
            place=place,
            part_begin=rows.begin,
            positions_or_null=rows.positions,
        )
    return out, entry


def chosen_products(pattern: Any, values: Array, x: Array, entry: Array) -> Array:
    """values[e] * x[col(e)] of the entries (m, *H, k) that elements took; 0 where it is -1."""
    import cupy

    out = cupy.empty(entry.shape, x.dtype)
    k, heads, shared = entry.shape[-1], prod(entry.shape[1:-1]), broadcast_value(values)
    col = cupy.ascontiguousarray(pattern.col)
    launch(
        kernel("spmm", "sg_spmm_chosen", ctype_of(x.dtype), ctype_of(col.dtype)),
        out.size,
        col=col,
        values=cupy.ascontiguousarray(values[:1] if shared else values),
        value_step=0 if shared else heads,
        x=cupy.ascontiguousarray(x),
        entry=entry,
        elements=out.size,
        heads=heads,
        k=k,
        out=out,
    )
    return out


def chosen_values(pattern: Any, g: Array, x: Array, entry: Array) -> Array:
    """g * x[col(e)] summed over the elements (m, *H, k) that took an entry: (nnz, *H)."""
    import cupy

    out = cupy.empty((pattern.nnz, *entry.shape[1:-1]), x.dtype)
    row, col = cupy.ascontiguousarray(pattern.row), cupy.ascontiguousarray(pattern.col)
    k = entry.shape[-1]
    lanes = min(32, power_of_two(k))
    launch(
        kernel("spmm", "sg_spmm_chosen_values", ctype_of(x.dtype), ctype_of(col.dtype)),
        out.size * lanes,
        row=row,
        col=col,
        g=cupy.ascontiguousarray(g),
        x=cupy.ascontiguousarray(x),
        entry=entry,
        items=out.size,
        heads=prod(entry.shape[1:-1]),
        k=k,
        lanes=lanes,
        out=out,
    )
    return out


def chosen_x(pattern: Any, g: Array, values: Array, entry: Array) -> Array:
    """g * values[e] summed over the elements (m, *H, k) that took an entry e of a column:
    (n, *H, k)."""
    import cupy

    rows = rows_of(pattern.T)
    out = cupy.empty((rows.indptr.size - 1, *entry.shape[1:]), g.dtype)
    if not out.size:
        return out
    call = _Call(rows, values, g, None, load=1)
    call.arguments["positions_or_null"] = rows.positions
    call.arguments["g"] = call.arguments.pop("x")
    partial = call.partial()
    launch(
        kernel("spmm", "sg_spmm_chosen_x", *call.types),
        call.threads,
        **call.arguments,
        entry=entry,
        out=out,
        partial_or_null=partial,
    )
    call.join(partial, out)
    return out


class _Call:
    """Arguments and launch table that sums and extremes share."""

    def __init__(
        self,
        rows: Rows,
        values: Array,
        x: Array,
        dtype: str | None,
        all_widths: bool = True,
        load: int = 0,
    ) -> None:
        import cupy

        self.types = ctype_of(x.dtype, dtype), ctype_of(rows.cols.dtype)
        self._rows, x = rows, cupy.ascontiguousarray(x)
        k, heads = x.shape[-1], prod(x.shape[1:-1])
        self._width = heads * k
        shared = broadcast_value(values)
        self.load = load or _load_width(k if heads > 1 else self._width, x, all_widths)
        columns = min(32, power_of_two(-(-self._width // self.load)))
        m, parts = rows.indptr.size - 1, rows.begin.size
        # Each lane should find the four entries that it keeps in flight.
        mean = rows.cols.size / max(1, m)
        lanes = min(32, columns * power_of_two(int(mean + 3) // 4))
        self.threads = (parts + m) * -(-self._width // (columns * self.load)) * lanes
        self.arguments = {
            "indptr": rows.indptr,
            "col": rows.cols,
            "positions_or_null": None if shared else rows.positions,
            "values": cupy.ascontiguousarray(values[:1] if shared else values, dtype=x.dtype),
            "value_step": 0 if shared else heads,
            "x": x,
            "heads": heads,
            "k": k,
            "part_begin_or_null": rows.begin if parts else None,
            "part_end_or_null": rows.end if parts else None,
            "parts": parts,
            "rows": m,
            "longest": LONGEST,
            "columns": columns,
            "lanes": lanes,
        }
        columns = min(32, power_of_two(self._width))
        self.join_threads = 32 * rows.long_row.size * -(-self._width // columns)
        self.join_arguments = {
            "long_row": rows.long_row,
            "slot": rows.slot,
            "long_rows": rows.long_row.size,
            "width": self._width,
            "columns": columns,
        }

    def join(self, partial: Array | None, out: Array, mean: bool = False) -> None:
        """Sum the parts of long rows."""
        if partial is not None:
            launch(
                kernel("spmm", "sg_spmm_join", *self.types),
                self.join_threads,
                **self.join_arguments,
                partial=partial,
                indptr=self._rows.indptr,
                mean=mean,
                out=out,
            )

    def partial(self) -> Array | None:
        """Room for what the parts of long rows come to; None without such rows."""
        import cupy

        if not self._rows.begin.size:
            return None
        return cupy.empty((self._rows.begin.size, self._width), accumulator_of(self.types[0]))


def _load_width(k: int, x: Array, all_widths: bool) -> int:
    """Elements a load, up to 16 bytes: what divides k and the address of x."""
    width = 16 // x.itemsize
    while width > 1 and (k % width or x.data.ptr % (width * x.itemsize)):
        width = width // 2 if all_widths else 1
    return width
