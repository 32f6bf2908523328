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
    "LEAST",
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

SUM, LARGEST, LOGSUMEXP, _TIES, PRODUCT, LEAST = range(6)  # as the kernels number them
_MANY = 512  # tiles from which the pieces of long segments are joined before they are looked at
_WORDS = {2: "uint16", 4: "uint32", 8: "uint64"}  # what rows of any dtype are read as
_FLOAT = {"float16", "bfloat16", "float32", "float64"}
_INDEX = {"int32", "int64"}


def serves(op: int, dtype: Any) -> bool:
    """Whether there are instances for values of this dtype."""
    name = dtype.name
    if name == "uint8":
        return op in (LARGEST, LEAST)
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
    values: Array,
    offsets: Array,
    op: int,
    *,
    absent: Array | None = None,
    longest: int | None = None,
    wide: bool = False,
    dtype: str | None = None,
) -> Array:
    """Sum, largest, least, product or log of the sum of exponentials of each segment:
    (n, *D) -> (s, *D).

    Of an empty segment 0, or the lowest number there is, the highest for the least, or 1 for a
    product. absent (s,), int64: as many zeros are among the factors, or among those of which the
    largest (or least) is found, and that is 0 of none at all. longest: what no segment is longer
    than, where that is known. wide: in the dtype of accumulators. `dtype="bfloat16"` says that
    uint16 arrays hold bfloat16.
    """
    import cupy

    kept = accumulator_of(ctype_of(values.dtype, dtype)) if wide else values.dtype
    out = cupy.empty((offsets.size - 1, *values.shape[1:]), kept)
    if not out.size:
        return out
    values = cupy.ascontiguousarray(values)
    if absent is not None:
        absent = absent.astype("int64", copy=False)
    to = {"wide" if wide else "out": out}
    _Call(values, offsets, dtype, longest).reduce(op, values, absent=absent, **to)
    return out


def largest_grad(
    g: Array, values: Array, out: Array, offsets: Array, absent: Array, *, dtype: str | None = None
) -> Array:
    """The gradient of the largest (or least) from its result `out`, and `absent` as in `reduce`:
    g (s, *D) in equal shares to those that are the largest, (n, *D)."""
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
    call.short("segment", "sg_segment_product_grad", **common)
    if call.may_be_long:
        call.apply("segment", "sg_segment_product_apply", **common)
    return out


def softmax(
    values: Array,
    offsets: Array,
    logarithm: bool = False,
    *,
    longest: int | None = None,
    dtype: str | None = None,
) -> Array:
    """Softmax, or its logarithm, within each segment, `longest` as in `reduce`: (n, *D)."""
    import cupy

    values = cupy.ascontiguousarray(values)
    out = cupy.empty_like(values)
    if not out.size:
        return out
    call = _Call(values, offsets, dtype, longest)
    common = {"values": values, "logarithm": logarithm, "out": out}
    call.short("softmax", "sg_segment_softmax", **common)
    if call.may_be_long:
        whole = call.joined(LOGSUMEXP)
        call.apply("softmax", "sg_segment_softmax_apply", whole_or_null=whole, **common)
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
    call.short("softmax", "sg_segment_softmax_grad", **common)
    if call.may_be_long:
        whole = call.joined(SUM)
        call.apply("softmax", "sg_segment_softmax_grad_apply", whole_or_null=whole, **common)
    return out


class _Call:
    """Launch table, and the arguments that all kernels share."""

    def __init__(
        self, values: Array, offsets: Array, dtype: str | None, longest: int | None = None
    ) -> None:
        import cupy

        offsets = cupy.ascontiguousarray(offsets)
        self._types = ctype_of(values.dtype, dtype), ctype_of(offsets.dtype)
        width, self._n = prod(values.shape[1:]), len(values)
        self._segments = offsets.size - 1
        columns = min(32, power_of_two(width))
        # A warp goes over a tile alone: few rounds where it has 32 strides, many bytes each where
        # it has one.
        tile = 1024 if columns < 8 else 256
        self._tiles = -(-self._n // tile)
        self.may_be_long = (self._n if longest is None else longest) > tile
        self._blocks = -(-width // columns)
        self._common = {"offsets": offsets, "n": self._n, "width": width, "columns": columns}
        self._common["tile"] = tile
        # States of the pieces of long segments in each tile, of two numbers at most, that far from
        # each other; and whose they are.
        self._common["apart"] = apart = 2 * self._tiles * width
        long = self.may_be_long
        self._partial = cupy.empty(2 * apart, self.wide) if long else None
        self._owner = cupy.empty(2 * self._tiles, offsets.dtype) if long else None

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
        self.short(
            "segment", "sg_segment_reduce", str(op), values=values, wanted_or_null=wanted, **results
        )
        if self.may_be_long:
            self._join(op, whole_or_null=None, **results)

    def entries(self, name: str, **arguments: Any) -> None:
        """A kernel that goes over all entries."""
        launch(
            kernel("segment", name, *self._types),
            -(-self._n // 256) * 32,
            offsets=self._common["offsets"],
            segments=self._segments,
            n=self._n,
            width=self._common["width"],
            **arguments,
        )

    def short(self, family: str, name: str, *more: str, **arguments: Any) -> None:
        """The segments that are not too long, and the pieces of those that are."""
        # Each lane should find the four entries that it keeps in flight.
        mean, columns = self._n / max(1, self._segments), self._common["columns"]
        lanes = min(32, columns * power_of_two(int(mean + 3) // 4))
        threads = self._segments * self._blocks * lanes
        launch(
            kernel(family, name, *self._types, *more),
            max(threads, 32 * self._tiles) if self.may_be_long else threads,
            **self._common,
            **arguments,
            segments=self._segments,
            lanes=lanes,
            partial_or_null=self._partial,
            owner_or_null=self._owner,
        )

    def _join(self, op: int, **results: Array | None) -> None:
        """What each long segment comes to."""
        launch(
            kernel("segment", "sg_segment_join", *self._types, str(op)),
            32 * self._tiles * self._blocks,
            **self._common,
            partial=self._partial,
            owner=self._owner,
            **results,
        )

    def joined(self, op: int) -> Array | None:
        """The state of each long segment, at the tile where it begins; None where each piece may
        as well look at all others."""
        import cupy

        if self._tiles <= _MANY:
            return None
        whole = cupy.empty_like(self._partial)
        nothing = dict.fromkeys(("out_or_null", "wide_or_null", "absent_or_null"))
        self._join(op, whole_or_null=whole, **nothing)
        return whole

    def apply(self, family: str, name: str, **arguments: Any) -> None:
        """Write the entries of the long segments."""
        launch(
            kernel(family, name, *self._types),
            64 * self._tiles,
            **self._common,
            **arguments,
            partial=self._partial,
            owner=self._owner,
        )
