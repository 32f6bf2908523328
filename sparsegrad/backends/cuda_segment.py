"""Reductions and softmax over segments by our own kernels, and the segment of every entry."""

from __future__ import annotations

from math import prod
from typing import Any

from sparsegrad.backends.cuda_kernels import (
    accumulator_of,
    ctype_of,
    kernel,
    launch,
    power_of_two,
)

__all__ = ["LARGEST", "LOGSUMEXP", "SUM", "expand", "reduce", "serves", "softmax", "softmax_grad"]

Array = Any

SUM, LARGEST, LOGSUMEXP = range(3)  # as the kernels number them
_FLOAT = {"float16", "bfloat16", "float32", "float64"}
_INDEX = {"int32", "int64"}


def serves(op: int, dtype: Any) -> bool:
    """Whether there are instances for values of this dtype."""
    return dtype.name in _FLOAT or (op != LOGSUMEXP and dtype.name in _INDEX)


def expand(offsets: Array, n: int) -> Array:
    """The segment (n,) of each of the entries 0 to n - 1, which all lie in one."""
    import cupy

    offsets = cupy.ascontiguousarray(offsets)
    ids = cupy.empty(n, offsets.dtype)
    launch(
        kernel("segment", "sg_segment_expand", ctype_of(offsets.dtype)),
        -(-n // 256) * 32,
        offsets=offsets,
        segments=offsets.size - 1,
        n=n,
        ids=ids,
    )
    return ids


def reduce(values: Array, offsets: Array, op: int, *, dtype: str | None = None) -> Array:
    """Sum, largest or log of the sum of exponentials of each segment: (n, *D) -> (s, *D).

    Of an empty segment 0, or the lowest number there is. `dtype="bfloat16"` says that uint16 arrays
    hold bfloat16.
    """
    import cupy

    out = cupy.empty((offsets.size - 1, *values.shape[1:]), values.dtype)
    if not out.size:
        return out
    values = cupy.ascontiguousarray(values)
    call = _Call(values, offsets, dtype)
    call.short("sg_segment_reduce", str(op), values=values, out=out)
    if call.may_be_long:
        call.join(op, call.parts(op, values, None), out)
    return out


def softmax(
    values: Array, offsets: Array, logarithm: bool = False, *, dtype: str | None = None
) -> Array:
    """Softmax, or its logarithm, within each segment: (n, *D)."""
    import cupy

    values = cupy.ascontiguousarray(values)
    out = cupy.empty_like(values)
    if not out.size:
        return out
    call = _Call(values, offsets, dtype)
    common = {"values": values, "logarithm": logarithm, "out": out}
    call.short("sg_segment_softmax", **common)
    if call.may_be_long:
        partial, owner = call.parts(LOGSUMEXP, values, None)
        whole = call.join(LOGSUMEXP, (partial, owner), None)
        call.apply("sg_segment_softmax_apply", owner, whole, apart=call.apart, **common)
    return out


def softmax_grad(
    g: Array, y: Array, offsets: Array, logarithm: bool = False, *, dtype: str | None = None
) -> Array:
    """The gradient of `softmax` from its result `y`: y * (g - sum(g * y)) in each segment, or
    g - exp(y) * sum(g)."""
    import cupy

    g, y = cupy.ascontiguousarray(g), cupy.ascontiguousarray(y)
    out = cupy.empty_like(y)
    if not out.size:
        return out
    call = _Call(y, offsets, dtype)
    common = {"g": g, "y": y, "logarithm": logarithm, "out": out}
    call.short("sg_segment_softmax_grad", **common)
    if call.may_be_long:
        partial, owner = call.parts(SUM, g, None if logarithm else y)
        whole = call.join(SUM, (partial, owner), None)
        call.apply("sg_segment_softmax_grad_apply", owner, whole, **common)
    return out


class _Call:
    """Launch table, and the arguments that all kernels share."""

    def __init__(self, values: Array, offsets: Array, dtype: str | None) -> None:
        import cupy

        offsets = cupy.ascontiguousarray(offsets)
        self._types = ctype_of(values.dtype, dtype), ctype_of(offsets.dtype)
        self._width, self._n = prod(values.shape[1:]), len(values)
        self._segments = offsets.size - 1
        self._columns = min(32, power_of_two(self._width))
        # A warp goes over a tile alone: few rounds where it has 32 strides, many bytes each where
        # it has one.
        self._tile = 1024 if self._columns < 8 else 256
        self._tiles = -(-self._n // self._tile)
        self.may_be_long = self._n > self._tile
        self._blocks = -(-self._width // self._columns)
        self._common = {"offsets": offsets, "width": self._width, "columns": self._columns}
        self._common["tile"] = self._tile
        self.apart = 2 * self._tiles * self._width  # between the two numbers of a state

    def short(self, name: str, *more: str, **arguments: Any) -> None:
        """The kernel of the segments that are not too long."""
        # Each lane should find the four entries that it keeps in flight.
        mean = self._n / max(1, self._segments)
        lanes = min(32, self._columns * power_of_two(int(mean + 3) // 4))
        launch(
            kernel("segment", name, *self._types, *more),
            self._segments * self._blocks * lanes,
            **self._common,
            **arguments,
            segments=self._segments,
            lanes=lanes,
        )

    def parts(self, op: int, values: Array, by: Array | None) -> tuple[Array, Array]:
        """States of the pieces of long segments in each tile, and whose they are."""
        import cupy

        numbers = 2 if op == LOGSUMEXP else 1
        partial = cupy.empty(numbers * self.apart, accumulator_of(self._types[0]))
        owner = cupy.empty(2 * self._tiles, self._common["offsets"].dtype)
        launch(
            kernel("segment", "sg_segment_parts", *self._types, str(op)),
            32 * self._tiles,
            **self._common,
            values=values,
            by_or_null=by,
            segments=self._segments,
            n=self._n,
            apart=self.apart,
            partial=partial,
            owner=owner,
        )
        return partial, owner

    def join(self, op: int, parts: tuple[Array, Array], out: Array | None) -> Array | None:
        """What each long segment comes to: to `out`, or its state, at the tile where it begins."""
        import cupy

        partial, owner = parts
        whole = cupy.empty_like(partial) if out is None else None
        launch(
            kernel("segment", "sg_segment_join", *self._types, str(op)),
            32 * self._tiles * self._blocks,
            **self._common,
            partial=partial,
            owner=owner,
            n=self._n,
            apart=self.apart,
            out_or_null=out,
            whole_or_null=whole,
        )
        return whole

    def apply(self, name: str, owner: Array, whole: Array | None, **arguments: Any) -> None:
        """Write the entries of the long segments."""
        launch(
            kernel("segment", name, *self._types),
            64 * self._tiles,
            **self._common,
            **arguments,
            owner=owner,
            n=self._n,
            whole=whole,
        )
