"""Numba kernels: softmax within runs, and its gradient. Values are (entries, columns).

Whole runs that fit the cache together are copied into a block, worked on, and copied back. In the
block a run is read and written in whole vectors: what lies beyond its end is masked where it is
read, and written again by the run after it. A vector holds the columns of several entries where
their number divides it; any other number of columns is walked column by column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types, uint64
from numba.extending import intrinsic

from sparsegrad.backends.cpu_jit_exp import exp
from sparsegrad.backends.cpu_jit_vector import (
    FAST,
    add,
    draw,
    inlined,
    kernel,
    lanes,
    load,
    store,
    zero,
)

_BLOCK = uint64(2048)  # elements of a block, unless a run is longer: stays in the L1 cache
_1 = uint64(1)


# ---- vectors -----------------------------------------------------------------------------------
def _both(name: str) -> Any:
    @intrinsic
    def operation(typingctx, left, right):
        def codegen(context, builder, signature, args):
            return getattr(builder, name)(*args)

        return left(left, right), codegen

    return operation


_minus, _times, _over = _both("fsub"), _both("fmul"), _both("fdiv")


@intrinsic
def _larger(typingctx, left, right):
    """The larger of each pair of lanes; NaN if one is."""

    def codegen(context, builder, signature, args):
        left_, right_ = args
        above = builder.fcmp_ordered(">", right_, left_)
        nan = builder.fcmp_unordered("uno", right_, right_)
        return builder.select(builder.or_(above, nan), right_, left_)

    return left(left, right), codegen


@intrinsic
def _finite(typingctx, vector):
    """The lanes that are finite; 0 for others."""

    def codegen(context, builder, signature, args):
        none = ir.Constant(args[0].type, None)
        itself = builder.fcmp_ordered("==", builder.fsub(*args, *args), none)
        return builder.select(itself, args[0], none)

    return vector(vector), codegen


@intrinsic
def _every(typingctx, like, number):
    """A vector of one number."""

    def codegen(context, builder, signature, args):
        shape, lane = args[0].type, ir.IntType(32)
        one = builder.insert_element(ir.Constant(shape, ir.Undefined), args[1], lane(0))
        everywhere = ir.Constant(ir.VectorType(lane, shape.count), [0] * shape.count)
        return builder.shuffle_vector(one, one, everywhere)

    return like(like, like.element), codegen


@intrinsic
def _first(typingctx, vector, count, rest):
    """The first `count` lanes of a vector, those of `rest` beyond."""

    def codegen(context, builder, signature, args):
        lane, n = ir.IntType(32), vector.lanes
        shape = ir.VectorType(lane, n)
        bound = builder.trunc(args[1], lane)
        bounds = builder.insert_element(ir.Constant(shape, ir.Undefined), bound, lane(0))
        bounds = builder.shuffle_vector(bounds, bounds, ir.Constant(shape, [0] * n))
        mask = builder.icmp_unsigned("<", ir.Constant(shape, list(range(n))), bounds)
        return builder.select(mask, args[0], args[2])

    return vector(vector, types.uint64, vector), codegen


def _turned(by: int) -> Any:
    @intrinsic
    def turned(typingctx, vector):
        """Every lane from so many lanes ahead, around the end."""

        def codegen(context, builder, signature, args):
            n = vector.lanes
            ahead = [(i + by) % n for i in range(n)]
            mask = ir.Constant(ir.VectorType(ir.IntType(32), n), ahead)
            return builder.shuffle_vector(args[0], args[0], mask)

        return vector(vector), codegen

    return turned


_turned_1, _turned_2, _turned_4, _turned_8 = map(_turned, (1, 2, 4, 8))


@inlined(set())
def _largest(v, width):
    """In every lane the largest of the lanes of its column."""
    if lanes(v) > 8 and width <= 8:
        v = _larger(v, _turned_8(v))
    if lanes(v) > 4 and width <= 4:
        v = _larger(v, _turned_4(v))
    if lanes(v) > 2 and width <= 2:
        v = _larger(v, _turned_2(v))
    return _larger(v, _turned_1(v)) if width <= 1 else v


@inlined(set())
def _total(v, width):
    """In every lane the sum of the lanes of its column."""
    if lanes(v) > 8 and width <= 8:
        v = add(v, _turned_8(v))
    if lanes(v) > 4 and width <= 4:
        v = add(v, _turned_4(v))
    if lanes(v) > 2 and width <= 2:
        v = add(v, _turned_2(v))
    return add(v, _turned_1(v)) if width <= 1 else v


# ---- blocks ------------------------------------------------------------------------------------
@inlined(set())
def block_end(indptr, i, last, width):
    """The run at which a block that starts with run i ends, and the elements in it."""
    stop, lead = i + _1, uint64(indptr[i])
    while stop < last and (uint64(indptr[stop]) - lead) * width < _BLOCK:
        stop += _1
    return stop, (uint64(indptr[stop]) - lead) * width


@inlined(set())
def roomy(block, size):
    """The block, or a larger one, for so many elements and a vector beyond them."""
    enough = size + lanes(zero(block))
    return block if uint64(block.size) >= enough else np.empty(enough, block.dtype)


@inlined(FAST)
def _exponentials(block, size):
    for j in range(size):
        block[j] = exp(block[j])


@inlined(set())
def softmax_block(i, stop, size, indptr, width, block, spare):
    """The softmax within runs i to stop of what is in the block, in place."""
    none, lead = zero(block), uint64(indptr[i]) * width
    step = lanes(none)
    if step % width != 0:
        _softmax_columns(i, stop, size, indptr, width, block, spare)
        return
    lowest = _every(none, block.dtype.type(-np.inf))
    for r in range(i, stop):
        begin, end = uint64(indptr[r]) * width - lead, uint64(indptr[r + _1]) * width - lead
        top = lowest
        for j in range(begin, end, step):
            top = _larger(top, _first(load(none, block, j), end - j, lowest))
        top = _finite(_largest(top, width))  # a run of -inf alone is 0/0 = nan, as if dense
        for j in range(begin, end, step):
            store(spare, j, _minus(load(none, block, j), top))
    _exponentials(spare, size)
    one = _every(none, block.dtype.type(1))
    for r in range(i, stop):
        begin, end = uint64(indptr[r]) * width - lead, uint64(indptr[r + _1]) * width - lead
        total = none
        for j in range(begin, end, step):
            total = add(total, _first(load(none, spare, j), end - j, none))
        share = _over(one, _total(total, width))
        for j in range(begin, end, step):
            store(block, j, _times(load(none, spare, j), share))


@inlined(FAST)
def _softmax_columns(i, stop, size, indptr, width, block, spare):
    lead, some = uint64(indptr[i]) * width, spare[:width]
    for r in range(i, stop):
        begin, end = uint64(indptr[r]) * width - lead, uint64(indptr[r + _1]) * width - lead
        for j in range(width):
            some[j] = -np.inf
        for at in range(begin, end, width):
            for j in range(width):
                v = block[at + j]
                some[j] = v if (v > some[j]) | (v != v) else some[j]
        for j in range(width):
            some[j] = some[j] if np.isfinite(some[j]) else 0
        for at in range(begin, end, width):
            for j in range(width):
                block[at + j] -= some[j]
    _exponentials(block, size)
    for r in range(i, stop):
        begin, end = uint64(indptr[r]) * width - lead, uint64(indptr[r + _1]) * width - lead
        for j in range(width):
            some[j] = 0
        for at in range(begin, end, width):
            for j in range(width):
                some[j] += block[at + j]
        for j in range(width):
            some[j] = 1 / some[j]
        for at in range(begin, end, width):
            for j in range(width):
                block[at + j] *= some[j]


@inlined(set())
def softmax_grad_block(i, stop, size, indptr, width, g, y, out):
    """out = y * (g - sum over the run of g * y) within runs i to stop; three blocks."""
    none, lead = zero(y), uint64(indptr[i]) * width
    step = lanes(none)
    if step % width != 0:
        _softmax_grad_columns(i, stop, size, indptr, width, g, y, out)
        return
    for r in range(i, stop):
        begin, end = uint64(indptr[r]) * width - lead, uint64(indptr[r + _1]) * width - lead
        dot = none
        for j in range(begin, end, step):
            product = _times(load(none, g, j), load(none, y, j))
            dot = add(dot, _first(product, end - j, none))
        dot = _total(dot, width)
        for j in range(begin, end, step):
            store(out, j, _times(load(none, y, j), _minus(load(none, g, j), dot)))


@inlined(FAST)
def _softmax_grad_columns(i, stop, size, indptr, width, g, y, out):
    lead, dot = uint64(indptr[i]) * width, out[size : size + width]
    for r in range(i, stop):
        begin, end = uint64(indptr[r]) * width - lead, uint64(indptr[r + _1]) * width - lead
        for j in range(width):
            dot[j] = 0
        for at in range(begin, end, width):
            for j in range(width):
                dot[j] += g[at + j] * y[at + j]
        for at in range(begin, end, width):
            for j in range(width):
                out[at + j] = y[at + j] * (g[at + j] - dot[j])


# ---- kernels -----------------------------------------------------------------------------------
@inlined(set())
def _copied(source, target):
    for j in range(target.size):
        target[j] = source[j]


@kernel(">n1 <n2 <I1 <F2 >F2")
def segment_softmax(ticket, cuts, indptr, values, out):
    """out (nnz, D) = softmax within the runs of values."""
    width, vs, outs = uint64(values.shape[1]), values.ravel(), out.ravel()
    block, spare = np.empty(0, values.dtype), np.empty(0, values.dtype)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        i, last = uint64(cuts[t, 0]), uint64(cuts[t + 1, 0])
        while i < last:
            stop, size = block_end(indptr, i, last, width)
            lead = uint64(indptr[i]) * width
            block, spare = roomy(block, size + width), roomy(spare, size + width)
            _copied(vs[lead : lead + size], block[:size])
            softmax_block(i, stop, size, indptr, width, block, spare)
            _copied(block[:size], outs[lead : lead + size])
            i = stop


@kernel(">n1 <n2 <I1 <F2 <F2 >F2")
def segment_softmax_grad(ticket, cuts, indptr, g, y, out):
    """out = y * (g - sum over the run of g * y), all (nnz, D)."""
    width, gs, ys, outs = uint64(y.shape[1]), g.ravel(), y.ravel(), out.ravel()
    a, b, c = np.empty(0, y.dtype), np.empty(0, y.dtype), np.empty(0, y.dtype)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        i, last = uint64(cuts[t, 0]), uint64(cuts[t + 1, 0])
        while i < last:
            stop, size = block_end(indptr, i, last, width)
            lead = uint64(indptr[i]) * width
            room = size + width
            a, b, c = roomy(a, room), roomy(b, room), roomy(c, room)
            _copied(gs[lead : lead + size], a[:size])
            _copied(ys[lead : lead + size], b[:size])
            softmax_grad_block(i, stop, size, indptr, width, a, b, c)
            _copied(c[:size], outs[lead : lead + size])
            i = stop
