"""What Numba kernels are made of; above all short vectors, a few machine registers as one value.

LLVM turns plain loops into vector code well, but keeps a sum over entries in memory (it cannot
know that output and input rows do not overlap) and pays for entering each loop. With these a
kernel holds a block of an output row in registers: 64 bytes are one AVX-512 register, two of AVX2
and four of NEON or SSE.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import int64, njit, types, uint64
from numba.extending import intrinsic, models, register_model

from sparsegrad.backends.cpu_jit_launch import Kernel

__all__ = [
    "FAST",
    "HALF",
    "SHORT",
    "WIDE",
    "add",
    "ahead",
    "draw",
    "far",
    "inlined",
    "kernel",
    "lanes",
    "load",
    "muladd",
    "place",
    "prefetch",
    "prefetch_l2",
    "run_of",
    "store",
    "sum_lanes",
    "zero",
    "zero_half",
    "zero_short",
]

WIDE, HALF, SHORT = 64, 32, 16  # bytes
_NEAR = 1 << 21  # bytes that the cache next to a core may hold: nothing is fetched ahead
_FAR = 1 << 23  # bytes of which the last cache may not hold most

# Sums may be reordered (vector accumulators) and fused; NaN and infinity keep their meaning.
FAST = {"contract", "reassoc", "nsz"}


def kernel(params: str, letters: str = "FI") -> Any:
    """Decorator: a `Kernel` of the function below it."""
    return lambda function: Kernel(function, params, letters, FAST)


def inlined(flags: set[str]) -> Any:
    """Decorator: a part of kernels. A call that passes views counts their references, which
    costs as much as a short row."""
    return njit(fastmath=flags, error_model="numpy", forceinline=True)


@inlined(set())
def place(positions, e, step):
    """Where the values of entry e are; no positions stands for 0, 1, ..."""
    return uint64(positions[e]) * step if positions.size > 0 else uint64(e) * step


@inlined(set())
def run_of(offsets, e):
    """The last run that starts at or before e, by its offsets."""
    low, high = int64(0), int64(offsets.size) - 2
    while low < high:
        middle = (low + high + 1) // 2
        if int64(offsets[middle]) <= e:
            low = middle
        else:
            high = middle - 1
    return low


@inlined(set())
def far(array):
    """Whether rows of an array are to be fetched ahead of their use."""
    return array.size * array.itemsize > _NEAR


@inlined(set())
def ahead(array, entries):
    """How many entries ahead of its use a row of an array is fetched, `entries` of them, or twice
    as many from main memory; 0: not at all."""
    size = array.size * array.itemsize
    if size <= _NEAR:
        return uint64(0)
    return uint64(entries) if size <= _FAR else uint64(2 * entries)


class Vector(types.Type):
    """Numba's type of a vector of floats."""

    def __init__(self, element: Any, size: int) -> None:
        self.element, self.lanes = element, size * 8 // element.bitwidth
        super().__init__(name=f"Vector({element} x {self.lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        element = manager.lookup(vector.element).get_value_type()
        super().__init__(manager, vector, ir.VectorType(element, vector.lanes))


def _address(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [offset])


def _zero(size: int) -> Any:
    @intrinsic
    def zero(typingctx, array):
        """A vector of zeros of the array's dtype."""

        def codegen(context, builder, signature, args):
            return ir.Constant(context.get_value_type(signature.return_type), None)

        return Vector(array.dtype, size)(array), codegen

    return zero


zero, zero_half, zero_short = _zero(WIDE), _zero(HALF), _zero(SHORT)


@intrinsic
def load(typingctx, like, array, offset):
    """The vector that starts at a flat offset, as long as `like`."""

    def codegen(context, builder, signature, args):
        vector = context.get_value_type(signature.return_type)
        address = _address(context, builder, signature.args[1], *args[1:])
        address = builder.bitcast(address, vector.as_pointer())
        return builder.load(address, align=like.element.bitwidth // 8)

    return like(like, array, types.uint64), codegen


@intrinsic
def lanes(typingctx, like):
    """How many numbers a vector holds."""

    def codegen(context, builder, signature, args):
        return context.get_constant(types.uint64, like.lanes)

    return types.uint64(like), codegen


@intrinsic
def store(typingctx, array, offset, vector):
    """Write a vector at a flat offset."""

    def codegen(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], *args[:2])
        address = builder.bitcast(address, args[2].type.as_pointer())
        builder.store(args[2], address, align=vector.element.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.uint64, vector), codegen


@intrinsic
def muladd(typingctx, total, factor, vector):
    """total + factor * vector, where the factor is a number or a vector."""

    def codegen(context, builder, signature, args):
        total_, factor_, vector_ = args
        if not isinstance(factor, Vector):
            shape, lane = total_.type, ir.IntType(32)
            undefined = ir.Constant(shape, ir.Undefined)
            factor_ = builder.insert_element(undefined, factor_, lane(0))
            everywhere = ir.Constant(ir.VectorType(lane, shape.count), [0] * shape.count)
            factor_ = builder.shuffle_vector(factor_, undefined, everywhere)
        product = builder.fmul(factor_, vector_, flags=("contract",))
        return builder.fadd(total_, product, flags=("contract",))

    kind = factor if isinstance(factor, Vector) else total.element
    return total(total, kind, total), codegen


@intrinsic
def add(typingctx, left, right):
    """left + right, both vectors."""

    def codegen(context, builder, signature, args):
        return builder.fadd(*args)

    return left(left, right), codegen


@intrinsic
def sum_lanes(typingctx, vector):
    """The sum of a vector's elements, pairwise."""

    def codegen(context, builder, signature, args):
        (part,) = args
        lane, count = ir.IntType(32), vector.lanes
        while count > 1:
            count //= 2
            halves = [
                builder.shuffle_vector(
                    part,
                    ir.Constant(part.type, ir.Undefined),
                    ir.Constant(ir.VectorType(lane, count), list(range(first, first + count))),
                )
                for first in (0, count)
            ]
            part = builder.fadd(*halves)
        return builder.extract_element(part, lane(0))

    return vector.element(vector), codegen


def _prefetch(locality: int) -> Any:
    @intrinsic
    def prefetch(typingctx, array, offset):
        """Start loading the cache line that holds the element at a flat offset."""

        def codegen(context, builder, signature, args):
            byte, i32 = ir.IntType(8), ir.IntType(32)
            address = _address(context, builder, signature.args[0], *args)
            address = builder.bitcast(address, byte.as_pointer())
            function_type = ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
            # Since LLVM 17 pointers have no type, and intrinsics no name for it.
            opaque = str(address.type) == "ptr"
            name = "llvm.prefetch.p0" if opaque else "llvm.prefetch.p0i8"
            function = builder.module.declare_intrinsic(name, fnty=function_type)
            builder.call(function, [address, i32(0), i32(locality), i32(1)])
            return context.get_dummy_value()

        return types.void(array, types.uint64), codegen

    return prefetch


# Into all caches, and into all but the first: that waits for a dozen lines at once, the second for
# several times as many, so what reads little else gets twice as many rows a second from memory.
prefetch, prefetch_l2 = _prefetch(3), _prefetch(2)


@intrinsic
def draw(typingctx, ticket):
    """The next task number, atomically."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        one = context.get_constant(types.int64, 1)
        return builder.atomic_rmw("add", array.data, one, "monotonic")

    return types.int64(ticket), codegen
