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

__all__ = [
    "LARGEST",
    "LOGSUMEXP",
    "PRODUCT",
    "SUM",
    "expand",
    "largest_grad",
    "product_grad",
    "reduce",
    "serves",
    "softmax",
    "softmax_grad",
    "spread",
]

Array = Any

SUM, LARGEST, LOGSUMEXP, _TIES, PRODUCT = range(5)  # as the kernels number them
_WORDS = {2: "uint16", 4: "uint32", 8: "uint64"}  # what rows of any dtype are read as
_FLOAT = {"float16", "bfloat16", "float32", "float64"}
_INDEX = {"int32", "int64"}


def serves(op: int, dtype: Any) -> bool:
    """Whether there are instances for values of this dtype."""
    name = dtype.name
    if name == "uint8":
        return op == LARGEST
    return name in _FLOAT or (op != LOGSUMEXP and name in _INDEX)


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


def spread(x: Array, offsets: Array, n: int) -> Array | None:
    """The row of its segment for each of n entries: x (s, *D) -> (n, *D); None where numbers are of
    a size that the kernel does not know."""
    import cupy

    word = _WORDS.get(x.itemsize)
    width = prod(x.shape[1:])
    if word is None or width >> 24:
        return None
    out = cupy.empty((n, *x.shape[1:]), x.dtype)
    offsets, x = cupy.ascontiguousarray(offsets), cupy.ascontiguousarray(x)
    if out.size:
        launch(
            kernel(
                "segment", "sg_segment_spread", ctype_of(x.dtype, word), ctype_of(offsets.dtype)
            ),
            -(-n // 256) * 32,
            x=x.reshape(-1).view(word),
            offsets=offsets,
            segments=offsets.size - 1,
            n=n,
            width=width,
            out=out.reshape(-1).view(word),
        )
    return out


def reduce(
    values: Array, offsets: Array, op: int, *, absent: Array | None = None, dtype: str | None = None
) -> Array:
    """Sum, largest, product or log of the sum of exponentials of each segment: (n, *D) -> (s, *D).

    Of an empty segment 0, or the lowest number there is, or for a product 1. absent (s,), int64: as
    many zeros are among the factors, or among those of which the largest is found, and that is 0 of
    none at all. `dtype="bfloat16"` says
    that uint16 arrays hold bfloat16.
    """
    import cupy

    out = cupy.empty((offsets.size - 1, *values.shape[1:]), values.dtype)
    if not out.size:
        return out
    values = cupy.ascontiguousarray(values)
    if absent is not None:
        absent = absent.astype("int64", copy=False)
    _Call(values, offsets, dtype).reduce(op, values, out=out, absent=absent)
    return out


def largest_grad(
    g: Array, values: Array, out: Array, offsets: Array, absent: Array, *, dtype: str | None = None
) -> Array:
    """The gradient of the largest from its result `out`, and `absent` as in `reduce`: g (s, *D) in
    equal shares to those that are the largest, (n, *D)."""
    import cupy

    values, g, top = map(cupy.ascontiguousarray, (values, g, out))
    grad = cupy.empty_like(values)
    if not grad.size:
        return grad
    call = _Call(values, offsets, dtype)
    ties = cupy.empty(top.shape, call.wide)
    call.reduce(_TIES, values, wanted=top, wide=ties)
    call.entries(
        "sg_segment_largest_grad",
        g=g,
        values=values,
        top=top,
        ties=ties,
        absent=absent.astype("int64", copy=False),
        out=grad,
    )
    return grad


def product_grad(
    g: Array, values: Array, offsets: Array, absent: Array, *, dtype: str | None = None
) -> Array:
    """The gradient of the product, and `absent` as in `reduce`: g (s, *D) times all other factors,
    (n, *D)."""
    import cupy

    values, g = cupy.ascontiguousarray(values), cupy.ascontiguousarray(g)
    out = cupy.empty_like(values)
    if not out.size:
        return out
    call = _Call(values, offsets, dtype)
    absent = absent.astype("int64", copy=False)
    held = out if out.dtype == call.wide else cupy.empty(out.shape, call.wide)
    common = {"g": g, "values": values, "absent": absent, "held": held, "out": out}
    call.short("sg_segment_product_grad", **common)
    if call.may_be_long:
        partial, owner = call.parts(PRODUCT, values, None)
        whole = call.others(partial, owner)
        call.apply("sg_segment_product_grad_apply", owner, whole, **common)
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
        whole = call.join(LOGSUMEXP, (partial, owner))
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
        whole = call.join(SUM, (partial, owner))
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

    @property
    def wide(self) -> Any:
        """The dtype that sums are kept in."""
        return accumulator_of(self._types[0])

    def reduce(
        self,
        op: int,
        values: Array,
        *,
        out: Array | None = None,
        wide: Array | None = None,
        wanted: Array | None = None,
        absent: Array | None = None,
    ) -> None:
        """Numbers of each segment, to `out` or `wide`."""
        results = {"out_or_null": out, "wide_or_null": wide, "absent_or_null": absent}
        self.short("sg_segment_reduce", str(op), values=values, wanted_or_null=wanted, **results)
        if self.may_be_long:
            self.join(op, self.parts(op, values, None, wanted), **results)

    def entries(self, name: str, **arguments: Any) -> None:
        """A kernel that goes over all entries."""
        launch(
            kernel("segment", name, *self._types),
            -(-self._n // 256) * 32,
            offsets=self._common["offsets"],
            segments=self._segments,
            n=self._n,
            width=self._width,
            **arguments,
        )

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

    def parts(
        self, op: int, values: Array, by: Array | None, wanted: Array | None = None
    ) -> tuple[Array, Array]:
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
            wanted_or_null=wanted,
            segments=self._segments,
            n=self._n,
            apart=self.apart,
            partial=partial,
            owner=owner,
        )
        return partial, owner

    def join(self, op: int, parts: tuple[Array, Array], **results: Array | None) -> Array | None:
        """What each long segment comes to: to `results`, or its state, at the tile where it
        begins."""
        import cupy

        partial, owner = parts
        whole = None if results else cupy.empty_like(partial)
        results = results or dict.fromkeys(("out_or_null", "wide_or_null", "absent_or_null"))
        launch(
            kernel("segment", "sg_segment_join", *self._types, str(op)),
            32 * self._tiles * self._blocks,
            **self._common,
            partial=partial,
            owner=owner,
            n=self._n,
            apart=self.apart,
            **results,
            whole_or_null=whole,
        )
        return whole

    def others(self, partial: Array, owner: Array) -> Array:
        """For each piece of a long segment, the product of the states of all others."""
        import cupy

        whole = cupy.empty_like(partial)
        launch(
            kernel("segment", "sg_segment_product_others", *self._types),
            32 * self._tiles * self._blocks,
            **self._common,
            partial=partial,
            owner=owner,
            n=self._n,
            whole=whole,
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
