"""Numba kernels on 16-bit floats, which Numba does not know: arrays of words, read as float32.

A word is an uint16 if it stands for a float16 and an int16 if for a bfloat16, so that the type says
how it is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, int64, types, uint64
from numba.extending import intrinsic

from sparsegrad.backends.cpu_jit_kernels_softmax import (
    block_end,
    roomy,
    softmax_block,
    softmax_grad_block,
)
from sparsegrad.backends.cpu_jit_vector import (
    FAST,
    _address,
    ahead,
    draw,
    inlined,
    kernel,
    lanes,
    load,
    muladd,
    place,
    prefetch_l2,
    store,
    sum_lanes,
    zero,
    zero_half,
    zero_short,
)

_AHEAD = 16  # entries between fetching a row of x and using it
_1 = uint64(1)


# ---- words and numbers -------------------------------------------------------------------------
def _every(like: Any, number: int) -> Any:
    """An integer, or a vector of it if `like` is a vector type."""
    return ir.Constant(like, [number] * like.count if isinstance(like, ir.VectorType) else number)


def _widened(builder: Any, word: Any, word_type: Any, result: Any) -> Any:
    """float32 from words: a number or a vector."""
    if word_type == types.uint16:
        half: Any = ir.HalfType()
        if isinstance(result, ir.VectorType):
            half = ir.VectorType(half, result.count)
        return builder.fpext(builder.bitcast(word, half), result)
    wide: Any = ir.IntType(32)
    if isinstance(result, ir.VectorType):
        wide = ir.VectorType(wide, result.count)
    return builder.bitcast(builder.shl(builder.zext(word, wide), _every(wide, 16)), result)


@intrinsic
def _wide(typingctx, word):
    """The float32 that a word stands for."""

    def codegen(context, builder, signature, args):
        return _widened(builder, args[0], word, ir.FloatType())

    return types.float32(word), codegen


@intrinsic
def _load_wide(typingctx, like, words, offset):
    """The vector of what the words from a flat offset on stand for, as long as `like`."""

    def codegen(context, builder, signature, args):
        result = context.get_value_type(signature.return_type)
        address = _address(context, builder, signature.args[1], *args[1:])
        address = builder.bitcast(address, ir.VectorType(ir.IntType(16), like.lanes).as_pointer())
        return _widened(builder, builder.load(address, align=2), words.dtype, result)

    return like(like, words, types.uint64), codegen


@intrinsic
def _narrow(typingctx, words, number):
    """The word, of the type that `words` has, next to a float32; to even in a tie."""

    def codegen(context, builder, signature, args):
        i16, i32 = ir.IntType(16), ir.IntType(32)
        if words.dtype == types.uint16:
            return builder.bitcast(builder.fptrunc(args[1], ir.HalfType()), i16)
        bits = builder.bitcast(args[1], i32)
        odd = builder.and_(builder.lshr(bits, i32(16)), i32(1))
        rounded = builder.add(bits, builder.add(odd, i32(0x7FFF)))
        nan = builder.fcmp_unordered("uno", args[1], args[1])
        kept = builder.select(nan, builder.or_(bits, i32(0x400000)), rounded)
        return builder.trunc(builder.lshr(kept, i32(16)), i16)

    return words.dtype(words, types.float32), codegen


@inlined(set())
def _widen(words, out):
    for j in range(out.size):  # from 0: an index that may be negative keeps it from vector code
        out[j] = _wide(words[j])


@inlined(set())
def _round(x, out):
    for j in range(out.size):
        out[j] = _narrow(out, x[j])


@kernel(">n1 n <W1 >f1", "W")
def widen_16(ticket, tasks, words, out):
    """out = what the words stand for."""
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        begin, end = t * out.size // tasks, (t + 1) * out.size // tasks
        _widen(words[begin:end], out[begin:end])


@kernel(">n1 n <f1 >W1", "W")
def narrow_16(ticket, tasks, x, out):
    """out = the words next to x."""
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        begin, end = t * out.size // tasks, (t + 1) * out.size // tasks
        _round(x[begin:end], out[begin:end])


@inlined(FAST)
def _dot(xs, ys, b, k):
    """The sum of xs[j] * ys[b + j] over k columns, words in ys."""
    total, like, j = float32(0), zero(xs), uint64(0)
    if k >= lanes(like):
        sums = zero(xs)
        while j + lanes(like) <= k:
            sums = muladd(sums, load(like, xs, j), _load_wide(like, ys, b + j))
            j += lanes(like)
        total += sum_lanes(sums)
    while j < k:
        total += xs[j] * _wide(ys[b + j])
        j += uint64(1)
    return total


# ---- sums of rows ------------------------------------------------------------------------------
@inlined(set())
def _entry(indices, e):
    """The row of x that entry e reads; no indices stand for 0, 1, ..."""
    return uint64(indices[e]) if indices.size > 0 else uint64(e)


@inlined(set())
def _sum_block(like, begin, end, values, positions, step, h, indices, xs, stride, at):
    """A vector of columns of a row of A @ x."""
    total = like
    for e in range(begin, end):
        a = _wide(values[place(positions, e, step), h])
        total = muladd(total, a, _load_wide(like, xs, _entry(indices, e) * stride + at))
    return total


@kernel(">n1 <n2 <I1 <I1 <I1 <W2 n b <W3 >W3 >f3", "WI")
def rows_16(ticket, cuts, indptr, indices, positions, values, step, onto, x, out, parts):
    """out (m, H, k) = A @ x in float32, rounded once; with `onto`, out += A @ x. As `spmm`.

    A row that was cut into chunks is left out: what chunk t found of the one that it begins in is
    parts[2 * t], of the one that it ends in parts[2 * t + 1] (with what was in `out`).
    """
    heads, k = uint64(x.shape[1]), uint64(x.shape[2])
    xs, outs, step_, stride = x.ravel(), out.ravel(), uint64(step), heads * k
    ahead_x = int64(ahead(xs, _AHEAD)) if indices.size > 0 else 0
    sums = np.empty(k, np.float32)
    like, half, short = zero(sums), zero_half(sums), zero_short(sums)
    wide = lanes(like)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        owned, first, last = cuts[t, 0], cuts[t, 1], cuts[t + 1, 1]
        lead = 1 if first < min(int64(indptr[owned]), last) else 0
        for i in range(owned - lead, cuts[t + 1, 0]):
            begin, end = max(int64(indptr[i]), first), min(int64(indptr[i + 1]), last)
            for h in range(heads):
                j, at = uint64(0), h * k
                while j + wide + wide + wide + wide <= k:
                    c0, c1, c2, c3 = zero(sums), zero(sums), zero(sums), zero(sums)
                    for e in range(begin, end):
                        if ahead_x > 0 and e + ahead_x < indices.size:
                            b = uint64(indices[e + ahead_x]) * stride + at + j
                            prefetch_l2(xs, b)
                            prefetch_l2(xs, b + wide + wide)
                            prefetch_l2(xs, b + wide + wide + wide + wide - _1)
                        a = _wide(values[place(positions, e, step_), h])
                        b = _entry(indices, e) * stride + at + j
                        c0 = muladd(c0, a, _load_wide(like, xs, b))
                        c1 = muladd(c1, a, _load_wide(like, xs, b + wide))
                        c2 = muladd(c2, a, _load_wide(like, xs, b + wide + wide))
                        c3 = muladd(c3, a, _load_wide(like, xs, b + wide + wide + wide))
                    store(sums, j, c0)
                    store(sums, j + wide, c1)
                    store(sums, j + wide + wide, c2)
                    store(sums, j + wide + wide + wide, c3)
                    j += wide + wide + wide + wide
                args = (values, positions, step_, h, indices, xs, stride)
                while j < k and k >= wide:
                    j = min(j, k - wide)  # blocks may overlap
                    store(sums, j, _sum_block(like, begin, end, *args, at + j))
                    j += wide
                while j < k and k >= lanes(half):
                    j = min(j, k - lanes(half))
                    store(sums, j, _sum_block(half, begin, end, *args, at + j))
                    j += lanes(half)
                while j < k and k >= lanes(short):
                    j = min(j, k - lanes(short))
                    store(sums, j, _sum_block(short, begin, end, *args, at + j))
                    j += lanes(short)
                while j < k:
                    s = float32(0)
                    for e in range(begin, end):
                        a = _wide(values[place(positions, e, step_), h])
                        s += a * _wide(xs[_entry(indices, e) * stride + at + j])
                    sums[j] = s
                    j += uint64(1)
                row = uint64(i) * stride + at
                if onto and i >= owned:
                    for j in range(k):
                        sums[j] += _wide(outs[row + j])
                if i >= owned and int64(indptr[i + 1]) <= last:
                    for j in range(k):
                        outs[row + j] = _narrow(out, sums[j])
                else:
                    for j in range(k):
                        parts[2 * t + (i >= owned), h, j] = sums[j]


@kernel(">n1 <n2 <I1 <I1 <I1 <W3 <W3 >W2", "WI")
def sddmm_16(ticket, cuts, indptr, indices, positions, x, y, out):
    """out (nnz, H) = the entries of x @ y.T on the pattern; x (m, H, k), y (n, H, k)."""
    heads, k = uint64(x.shape[1]), uint64(x.shape[2])
    ys, stride, one = y.ravel(), heads * k, uint64(1)
    ahead_y = int64(ahead(ys, _AHEAD))
    row = np.empty(k, np.float32)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        owned, first, last = cuts[t, 0], cuts[t, 1], cuts[t + 1, 1]
        lead = 1 if first < min(int64(indptr[owned]), last) else 0
        for i in range(owned - lead, cuts[t + 1, 0]):
            begin, end = max(int64(indptr[i]), first), min(int64(indptr[i + 1]), last)
            for h in range(heads):
                if begin < end:
                    for j in range(k):
                        row[j] = _wide(x[i, h, j])
                for e in range(begin, end):
                    if ahead_y > 0 and e + ahead_y < indices.size:
                        b = uint64(indices[e + ahead_y]) * stride + h * k
                        prefetch_l2(ys, b)
                        prefetch_l2(ys, b + min(k - one, uint64(32)))
                        prefetch_l2(ys, b + min(k - one, uint64(63)))
                    s = _dot(row, ys, uint64(indices[e]) * stride + h * k, k)
                    out[place(positions, e, one), h] = _narrow(out, s)


# ---- maxima ------------------------------------------------------------------------------------
@kernel(">n1 <n2 <I1 <W2 >W2", "WI")
def segment_max_16(ticket, cuts, indptr, values, out):
    """out (s, D) = the maxima of the runs of values (nnz, D), -inf of none; NaN if one is."""
    top = np.empty(values.shape[1], np.float32)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        for i in range(uint64(cuts[t, 0]), uint64(cuts[t + 1, 0])):
            for j in range(top.size):
                top[j] = -np.inf
            for e in range(uint64(indptr[i]), uint64(indptr[i + _1])):
                for j in range(top.size):
                    v = _wide(values[e, j])
                    top[j] = v if (v > top[j]) | (v != v) else top[j]
            for j in range(top.size):
                out[i, j] = _narrow(out, top[j])


@kernel(">n1 <n2 <I1 <I1 <I1 <W2 <W3 b >W3 >n3", "WI")
def extreme_16(ticket, cuts, indptr, cols, positions, values, x, least, out, entry):
    """As `spmm_extreme`, with products in float32; entry = where the values of the chosen are."""
    heads, k = uint64(x.shape[1]), uint64(x.shape[2])
    best = np.empty(k, np.float32)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        for i in range(uint64(cuts[t, 0]), uint64(cuts[t + 1, 0])):
            for h in range(heads):
                for j in range(k):
                    best[j], entry[i, h, j] = 0, -1
                first = uint64(indptr[i])
                for e in range(first, uint64(indptr[i + _1])):
                    place_, line = place(positions, e, _1), uint64(cols[e])
                    scale = _wide(values[place_, h])
                    for j in range(k):
                        p = scale * _wide(x[line, h, j])
                        better = p < best[j] if least else p > best[j]
                        if e == first or better or (p != p and best[j] == best[j]):
                            best[j], entry[i, h, j] = p, place_
                for j in range(k):
                    out[i, h, j] = _narrow(out, best[j])


# ---- softmax -----------------------------------------------------------------------------------
@kernel(">n1 <n2 <I1 <W2 >W2", "WI")
def softmax_16(ticket, cuts, indptr, values, out):
    """out (nnz, D) = softmax within the runs of values, in float32, as `segment_softmax`."""
    width, words, outs = uint64(values.shape[1]), values.ravel(), out.ravel()
    block, spare = np.empty(0, np.float32), np.empty(0, np.float32)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        i, last = uint64(cuts[t, 0]), uint64(cuts[t + 1, 0])
        while i < last:
            stop, size = block_end(indptr, i, last, width)
            lead = uint64(indptr[i]) * width
            block, spare = roomy(block, size + width), roomy(spare, size + width)
            _widen(words[lead : lead + size], block[:size])
            softmax_block(i, stop, size, indptr, width, block, spare)
            _round(block[:size], outs[lead : lead + size])
            i = stop


@kernel(">n1 <n2 <I1 <W2 <W2 >W2", "WI")
def softmax_grad_16(ticket, cuts, indptr, g, y, out):
    """out = y * (g - sum over the run of g * y), all (nnz, D), as `segment_softmax_grad`."""
    width, gs, ys, outs = uint64(y.shape[1]), g.ravel(), y.ravel(), out.ravel()
    a, b, c = np.empty(0, np.float32), np.empty(0, np.float32), np.empty(0, np.float32)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        i, last = uint64(cuts[t, 0]), uint64(cuts[t + 1, 0])
        while i < last:
            stop, size = block_end(indptr, i, last, width)
            lead, room = uint64(indptr[i]) * width, size + width
            a, b, c = roomy(a, room), roomy(b, room), roomy(c, room)
            _widen(gs[lead : lead + size], a[:size])
            _widen(ys[lead : lead + size], b[:size])
            softmax_grad_block(i, stop, size, indptr, width, a, b, c)
            _round(c[:size], outs[lead : lead + size])
            i = stop
