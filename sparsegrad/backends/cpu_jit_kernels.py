"""Numba kernels: sparse products and sums over segments. Imported at the first call that needs one.

Every kernel that is launched draws chunks from `ticket`. A chunk is a fixed share of the entries,
so results do not depend on the number of threads. Indices are unsigned 64-bit inside (no branch
for negative ones, no overflow of offsets). Two-dimensional arrays are (entries or rows, width).
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int64, njit, types, uint64
from numba.extending import intrinsic, overload

from sparsegrad.backends.cpu_jit_launch import Kernel
from sparsegrad.backends.cpu_jit_vector import (
    SHORT,
    WIDE,
    draw,
    load,
    load_short,
    muladd,
    prefetch,
    store,
    sum_lanes,
    zero,
    zero_short,
)

# Sums may be reordered (vector accumulators) and fused; NaN and infinity keep their meaning.
_FAST = {"contract", "reassoc", "nsz"}
_AHEAD = 8  # entries between fetching a row of x and using it
_NEAR = 1 << 21  # bytes of x that the cache next to a core may hold: nothing is fetched ahead
_LINE = 64  # bytes
_FETCH = 4 * _LINE  # bytes of a row to fetch; the processor notices the run and fetches the rest
_NARROW = 16  # columns below which a loop over them is too short for vector code
_BLOCK = 2048  # elements of a softmax block: stays in the L1 cache


def kernel(params: str, letters: str = "FI", flags: set[str] = _FAST):
    """Decorator: a `Kernel` of the function below it."""
    return lambda function: Kernel(function, params, letters, flags)


def inlined(flags: set[str]):
    """Decorator: a part of kernels. A call that passes views counts their references, which
    costs as much as a short row."""
    return njit(fastmath=flags, error_model="numpy", forceinline=True)


# ---- chunks ------------------------------------------------------------------------------------
@kernel("<I1 n b >n2", "I")
def cut_rows(indptr, n, split, cuts):
    """Cut rows and their entries into n chunks of equal size.

    cuts (n + 1, 2): the first row that starts in a chunk, and its first entry. An entry before
    the start of that row belongs to a row so long that it was cut; only where `split`.
    """
    m = indptr.size - 1
    total = int64(indptr[m]) + m
    longest = max(int64(1), total // n)
    for c in range(n + 1):
        target = c * total // n
        low, high = int64(0), int64(m)  # the last row with indptr[row] + row <= target
        while low < high:
            middle = (low + high + 1) // 2
            if int64(indptr[middle]) + middle <= target:
                low = middle
            else:
                high = middle - 1
        cuts[c, 0], cuts[c, 1] = low, indptr[low]
        long = split and low < m and indptr[low + 1] - indptr[low] > longest
        if long and target - low > indptr[low]:
            cuts[c, 0], cuts[c, 1] = low + 1, target - low


# ---- sparse products ---------------------------------------------------------------------------
# Rows are walked in one function each: a call per row costs as much as a row of eight entries
# (reference counts of the views). Heads are an outer loop.


@inlined(set())
def _place(positions, e, step):
    """Where the values of entry e are; no positions stands for 0, 1, ..."""
    return uint64(positions[e]) * step if positions.size > 0 else uint64(e) * step


@kernel(">n1 <n2 <I1 <I1 <I1 <F2 n <F3 >F3")
def spmm(ticket, cuts, indptr, indices, positions, values, step, x, out):
    """out (m, H, k) = A @ x, with a block of an output row in registers.

    values (nnz, H), or (1, H) with step 0. The values of entry e are at positions[e], or at e if
    there are no positions. What chunk t finds of a row that began in an earlier chunk goes to
    row m + t of `out`.
    """
    m, heads, k = indptr.size - 1, uint64(x.shape[1]), uint64(x.shape[2])
    xs, outs = x.ravel(), out.ravel()
    stride, step_ = heads * k, uint64(step)
    none = x.dtype.type(0)
    wide, short = uint64(WIDE // x.itemsize), uint64(SHORT // x.itemsize)
    four = uint64(4) * wide
    far = x.size * x.itemsize > _NEAR
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        owned, first, last = cuts[t, 0], cuts[t, 1], cuts[t + 1, 1]
        lead = 1 if first < min(int64(indptr[owned]), last) else 0
        for i in range(owned - lead, cuts[t + 1, 0]):
            begin, end = max(int64(indptr[i]), first), min(int64(indptr[i + 1]), last)
            row = uint64(i if i >= owned else m + t) * stride
            for h in range(heads):
                j, stop = h * k, (h + uint64(1)) * k
                while j + four <= stop:
                    c0, c1, c2, c3 = zero(x), zero(x), zero(x), zero(x)
                    for e in range(begin, end):
                        if far and e + _AHEAD < indices.size:
                            b = uint64(indices[e + _AHEAD]) * stride + j
                            prefetch(xs, b)
                            prefetch(xs, b + wide)
                            prefetch(xs, b + wide + wide)
                            prefetch(xs, b + wide + wide + wide)
                        a = values[_place(positions, e, step_), h]
                        b = uint64(indices[e]) * stride + j
                        c0 = muladd(c0, a, load(xs, b))
                        c1 = muladd(c1, a, load(xs, b + wide))
                        c2 = muladd(c2, a, load(xs, b + wide + wide))
                        c3 = muladd(c3, a, load(xs, b + wide + wide + wide))
                    store(outs, row + j, c0)
                    store(outs, row + j + wide, c1)
                    store(outs, row + j + wide + wide, c2)
                    store(outs, row + j + wide + wide + wide, c3)
                    j += four
                while j + wide < stop and k >= wide:
                    j2 = min(j + wide, stop - wide)  # blocks may overlap
                    c0, c1 = zero(x), zero(x)
                    for e in range(begin, end):
                        b = uint64(indices[e]) * stride
                        if far and e + _AHEAD < indices.size:
                            ahead = uint64(indices[e + _AHEAD]) * stride
                            prefetch(xs, ahead + j)
                            prefetch(xs, ahead + j2)
                        a = values[_place(positions, e, step_), h]
                        c0 = muladd(c0, a, load(xs, b + j))
                        c1 = muladd(c1, a, load(xs, b + j2))
                    store(outs, row + j, c0)
                    store(outs, row + j2, c1)
                    j += wide + wide
                while j < stop and k >= wide:
                    j = min(j, stop - wide)
                    c0 = zero(x)
                    for e in range(begin, end):
                        if far and e + _AHEAD < indices.size:
                            prefetch(xs, uint64(indices[e + _AHEAD]) * stride + j)
                        a = values[_place(positions, e, step_), h]
                        c0 = muladd(c0, a, load(xs, uint64(indices[e]) * stride + j))
                    store(outs, row + j, c0)
                    j += wide
                while j < stop and k >= short:
                    j = min(j, stop - short)
                    c = zero_short(x)
                    for e in range(begin, end):
                        a = values[_place(positions, e, step_), h]
                        c = muladd(c, a, load_short(xs, uint64(indices[e]) * stride + j))
                    store(outs, row + j, c)
                    j += short
                while j < stop:
                    s = none
                    for e in range(begin, end):
                        a = values[_place(positions, e, step_), h]
                        s += a * xs[uint64(indices[e]) * stride + j]
                    outs[row + j] = s
                    j += uint64(1)


@kernel(">n1 <n2 <I1 <I1 <I1 <F2 n <F3 >F3")
def spmv(ticket, cuts, indptr, indices, positions, values, step, x, out):
    """`spmm` for k = 1: sums along the entries instead of across the columns."""
    m = indptr.size - 1
    permuted = positions.size > 0
    by = uint64(step)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        owned, first, last = cuts[t, 0], cuts[t, 1], cuts[t + 1, 1]
        lead = 1 if first < min(int64(indptr[owned]), last) else 0
        for i in range(owned - lead, cuts[t + 1, 0]):
            begin, end = max(int64(indptr[i]), first), min(int64(indptr[i + 1]), last)
            for h in range(x.shape[1]):
                total = x.dtype.type(0)
                if permuted:
                    for e in range(begin, end):
                        p = uint64(positions[e]) * by
                        total += values[p, h] * x[uint64(indices[e]), h, 0]
                else:
                    for e in range(begin, end):
                        total += values[uint64(e) * by, h] * x[uint64(indices[e]), h, 0]
                out[i if i >= owned else m + t, h, 0] = total


@kernel(">n1 <n2 <I1 <I1 <I1 <F3 <F3 >F2")
def sddmm(ticket, cuts, indptr, indices, positions, x, y, out):
    """out (nnz, H) = the entries of x @ y.T on the pattern; x (m, H, k), y (n, H, k).

    Four entries a pass over a row of x, each with its own accumulator.
    """
    heads, k = uint64(x.shape[1]), uint64(x.shape[2])
    xs, ys = x.ravel(), y.ravel()
    stride, one = heads * k, uint64(1)
    none = x.dtype.type(0)  # a literal 0.0 would make float32 sums float64
    wide, short = uint64(WIDE // y.itemsize), uint64(SHORT // y.itemsize)
    fetched = min(k, uint64(_FETCH // y.itemsize))
    far = y.size * y.itemsize > _NEAR
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        owned, first, last = cuts[t, 0], cuts[t, 1], cuts[t + 1, 1]
        lead = 1 if first < min(int64(indptr[owned]), last) else 0
        for i in range(owned - lead, cuts[t + 1, 0]):
            begin, end = max(int64(indptr[i]), first), min(int64(indptr[i + 1]), last)
            for h in range(heads):
                row = uint64(i) * stride + h * k
                e = begin
                while e + 4 <= end:
                    if far and e + _AHEAD + 4 <= indices.size:
                        for ahead in range(e + _AHEAD, e + _AHEAD + 4):
                            b = uint64(indices[ahead]) * stride + h * k
                            for j in range(uint64(0), fetched, wide):
                                prefetch(ys, b + j)
                    b0 = uint64(indices[e]) * stride + h * k
                    b1 = uint64(indices[e + 1]) * stride + h * k
                    b2 = uint64(indices[e + 2]) * stride + h * k
                    b3 = uint64(indices[e + 3]) * stride + h * k
                    s0, s1, s2, s3 = none, none, none, none
                    j = uint64(0)
                    if k >= wide:
                        v0, v1, v2, v3 = zero(y), zero(y), zero(y), zero(y)
                        while j + wide <= k:
                            a = load(xs, row + j)
                            v0 = muladd(v0, a, load(ys, b0 + j))
                            v1 = muladd(v1, a, load(ys, b1 + j))
                            v2 = muladd(v2, a, load(ys, b2 + j))
                            v3 = muladd(v3, a, load(ys, b3 + j))
                            j += wide
                        s0, s1, s2, s3 = sum_lanes(v0), sum_lanes(v1), sum_lanes(v2), sum_lanes(v3)
                    if j + short <= k:
                        w0, w1, w2, w3 = zero_short(y), zero_short(y), zero_short(y), zero_short(y)
                        while j + short <= k:
                            a4 = load_short(xs, row + j)
                            w0 = muladd(w0, a4, load_short(ys, b0 + j))
                            w1 = muladd(w1, a4, load_short(ys, b1 + j))
                            w2 = muladd(w2, a4, load_short(ys, b2 + j))
                            w3 = muladd(w3, a4, load_short(ys, b3 + j))
                            j += short
                        s0 += sum_lanes(w0)
                        s1 += sum_lanes(w1)
                        s2 += sum_lanes(w2)
                        s3 += sum_lanes(w3)
                    while j < k:
                        s0 += xs[row + j] * ys[b0 + j]
                        s1 += xs[row + j] * ys[b1 + j]
                        s2 += xs[row + j] * ys[b2 + j]
                        s3 += xs[row + j] * ys[b3 + j]
                        j += uint64(1)
                    out[_place(positions, e, one), h] = s0
                    out[_place(positions, e + 1, one), h] = s1
                    out[_place(positions, e + 2, one), h] = s2
                    out[_place(positions, e + 3, one), h] = s3
                    e += 4
                while e < end:
                    b0 = uint64(indices[e]) * stride + h * k
                    s0 = none
                    j = uint64(0)
                    if k >= wide:
                        v0 = zero(y)
                        while j + wide <= k:
                            v0 = muladd(v0, load(xs, row + j), load(ys, b0 + j))
                            j += wide
                        s0 = sum_lanes(v0)
                    while j < k:
                        s0 += xs[row + j] * ys[b0 + j]
                        j += uint64(1)
                    out[_place(positions, e, one), h] = s0
                    e += 1


# ---- sums by index -----------------------------------------------------------------------------
@inlined(_FAST)
def _sum_rows(begin, end, values, c):
    """c = the sum of values[begin:end]."""
    width = values.shape[1]
    if width == 1:
        total = values.dtype.type(0)
        for e in range(begin, end):
            total += values[e, 0]
        c[0] = total
        return
    for j in range(width):
        c[j] = 0
    e = begin
    while e + 4 <= end:
        for j in range(width):
            c[j] += values[e, j] + values[e + 1, j] + values[e + 2, j] + values[e + 3, j]
        e += 4
    while e < end:
        for j in range(width):
            c[j] += values[e, j]
        e += 1


@kernel(">n1 <n2 <I1 <F2 >F2")
def segment_sum(ticket, cuts, indptr, values, out):
    """out (s, D) = the sums of the runs of values (nnz, D); parts of long runs as in `spmm`."""
    m = indptr.size - 1
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        owned, first, last = cuts[t, 0], cuts[t, 1], cuts[t + 1, 1]
        lead = 1 if first < min(int64(indptr[owned]), last) else 0
        for i in range(owned - lead, cuts[t + 1, 0]):
            begin, end = max(int64(indptr[i]), first), min(int64(indptr[i + 1]), last)
            _sum_rows(begin, end, values, out[i if i >= owned else m + t])


@inlined(set())
def _max_rows(begin, end, values, c):
    """c = the maximum of values[begin:end], -inf if there are none; NaN if one is."""
    width, lowest = values.shape[1], values.dtype.type(-np.inf)
    if width < _NARROW:  # column by column, with the result in a register
        for j in range(width):
            high = lowest
            for e in range(begin, end):
                v = values[e, j]
                high = v if (v > high) | (v != v) else high
            c[j] = high
        return
    for j in range(width):
        c[j] = lowest
    for e in range(begin, end):
        for j in range(width):
            v = values[e, j]
            c[j] = v if (v > c[j]) | (v != v) else c[j]


@kernel(">n1 <n2 <I1 <F2 >F2")
def segment_max(ticket, cuts, indptr, values, out):
    """out (s, D) = the maxima of the runs of values (nnz, D)."""
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        for i in range(cuts[t, 0], cuts[t + 1, 0]):
            _max_rows(int64(indptr[i]), int64(indptr[i + 1]), values, out[i])


@intrinsic
def _bits(typingctx, value):
    """A float's bits as a signed integer of its size, and back."""
    pairs = {float32: types.int32, float64: types.int64}
    pairs |= {integer: real for real, integer in list(pairs.items())}
    if value not in pairs:
        return None

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return pairs[value](value), codegen


# exp(x) = 2**n * exp(r) with n = round(x / ln 2): coefficients of Cephes, branch-free so that a
# loop of it becomes vector code (without Intel's library Numba calls exp one number at a time).
# `contract` alone: reordering would undo the two-step reduction.
@inlined({"contract"})
def _exp32(x):
    x = float32(89.0) if x > float32(89.0) else x  # inf; NaN stays
    x = float32(-104.0) if x < float32(-104.0) else x  # 0
    magic = float32(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer in the low bits
    shifted = x * float32(1.44269504088896341) + magic
    n = _bits(shifted) - np.int32(0x4B400000)
    whole = shifted - magic
    r = x - whole * float32(0.693359375)
    r = r - whole * float32(-2.12194440e-4)
    p = float32(1.9875691500e-4)
    p = p * r + float32(1.3981999507e-3)
    p = p * r + float32(8.3334519073e-3)
    p = p * r + float32(4.1665795894e-2)
    p = p * r + float32(1.6666665459e-1)
    p = p * r + float32(5.0000001201e-1)
    y = p * r * r + r + float32(1.0)
    half = n >> 1  # in two steps: 2**n alone may be out of range where the result is not
    y *= _bits(np.int32((half + 127) << 23))
    return y * _bits(np.int32((n - half + 127) << 23))


@inlined({"contract"})
def _exp64(x):
    x = 710.0 if x > 710.0 else x  # inf; NaN stays
    x = -746.0 if x < -746.0 else x  # 0
    magic = 6755399441055744.0  # 1.5 * 2**52
    shifted = x * 1.4426950408889634 + magic
    n = _bits(shifted) - 0x4338000000000000
    whole = shifted - magic
    r = x - whole * 6.93145751953125e-1
    r = r - whole * 1.42860682030941723212e-6
    rr = r * r
    p = 1.26177193074810590878e-4 * rr + 3.02994407707441961300e-2
    p = (p * rr + 9.99999999999999999910e-1) * r
    q = 3.00198505138664455042e-6 * rr + 2.52448340349684104192e-3
    q = (q * rr + 2.27265548208155028766e-1) * rr + 2.00000000000000000005e0
    y = 1.0 + 2.0 * p / (q - p)
    half = n >> 1
    y *= _bits((half + 1023) << 52)
    return y * _bits((n - half + 1023) << 52)


def _exp(x):
    raise NotImplementedError("compiled only")


@overload(_exp, jit_options={"forceinline": True})
def _exp_of(x):
    return (lambda x: _exp32(x)) if x == float32 else (lambda x: _exp64(x))


@kernel(">n1 <n2 <I1 <F2 >F2")
def segment_softmax(ticket, cuts, indptr, values, out):
    """out (nnz, D) = softmax within the runs of values.

    Blocks of whole runs that fit the cache: subtract the maxima, one long loop of exp over the
    block, divide by the sums.
    """
    width = values.shape[1]
    some = np.empty(width, dtype=values.dtype)
    exps = out.ravel()
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        first, last = cuts[t, 0], cuts[t + 1, 0]
        while first < last:
            stop = first
            begin = int64(indptr[first])
            while stop < last and (int64(indptr[stop]) - begin) * width < _BLOCK:
                stop += 1
            for i in range(first, stop):
                _shift_rows(int64(indptr[i]), int64(indptr[i + 1]), values, some, out)
            block = exps[begin * width : int64(indptr[stop]) * width]
            for j in range(block.size):
                block[j] = _exp(block[j])
            for i in range(first, stop):
                _scale_rows(int64(indptr[i]), int64(indptr[i + 1]), some, out)
            first = stop


@inlined(set())
def _shift_rows(begin, end, values, top, out):
    """out = values - their maximum over [begin, end), where that is finite."""
    _max_rows(begin, end, values, top)
    for j in range(top.size):
        if not np.isfinite(top[j]):  # a run of -inf alone is 0/0 = nan, as in dense softmax
            top[j] = 0
    for e in range(begin, end):
        for j in range(values.shape[1]):
            out[e, j] = values[e, j] - top[j]


@inlined(_FAST)
def _scale_rows(begin, end, total, out):
    """out /= its sum over [begin, end)."""
    _sum_rows(begin, end, out, total)
    for j in range(total.size):
        total[j] = 1 / total[j]
    for e in range(begin, end):
        for j in range(out.shape[1]):
            out[e, j] *= total[j]


@kernel(">n1 <n2 <I1 <F2 <F2 >F2")
def segment_softmax_grad(ticket, cuts, indptr, g, y, out):
    """out = y * (g - sum over the run of g * y), all (nnz, D)."""
    width = y.shape[1]
    dot = np.empty(width, dtype=y.dtype)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        for i in range(cuts[t, 0], cuts[t + 1, 0]):
            begin, end = int64(indptr[i]), int64(indptr[i + 1])
            if width == 1:
                total = y.dtype.type(0)
                for e in range(begin, end):
                    total += g[e, 0] * y[e, 0]
                for e in range(begin, end):
                    out[e, 0] = y[e, 0] * (g[e, 0] - total)
                continue
            for j in range(width):
                dot[j] = 0
            for e in range(begin, end):
                for j in range(width):
                    dot[j] += g[e, j] * y[e, j]
            for e in range(begin, end):
                for j in range(width):
                    out[e, j] = y[e, j] * (g[e, j] - dot[j])


@kernel(">n1 n n <I1 <F2 >F2")
def scatter_add(ticket, parts, shift, index, values, out):
    """out[index[e]] += values[e], each output row in the order of the entries.

    A task owns the output rows whose number, shifted, is its own modulo `parts` (a power of two):
    it reads every index and adds only the rows that it owns.
    """
    while True:
        t = draw(ticket)
        if t >= parts:
            return
        for e in range(index.size):
            i = uint64(index[e])
            if (i >> uint64(shift)) & uint64(parts - 1) == uint64(t):
                for j in range(values.shape[1]):
                    out[i, j] += values[e, j]
