"""Numba kernels: sparse products and sums over segments. Imported at the first call that needs one.

Every kernel that is launched draws chunks from `ticket`. A chunk is a fixed share of the entries,
so results do not depend on the number of threads. Indices are unsigned 64-bit inside (no branch
for negative ones, no overflow of offsets). Two-dimensional arrays are (entries or rows, width).
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import float32, float64, int64, njit, types, uint64
from numba.extending import intrinsic, overload

from sparsegrad.backends.cpu_jit_launch import Kernel

# Sums may be reordered (vector accumulators) and fused; NaN and infinity keep their meaning.
_FAST = {"contract", "reassoc", "nsz"}
_AHEAD = 8  # entries between fetching a row of x and using it
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


@intrinsic
def draw(typingctx, ticket):
    """The next task number, atomically."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        one = context.get_constant(types.int64, 1)
        return builder.atomic_rmw("add", array.data, one, "monotonic")

    return types.int64(ticket), codegen


@intrinsic
def prefetch(typingctx, array, index):
    """Start loading the cache line that holds the element at a flat offset."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.gep(data, [args[1]])
        i32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
        name = f"llvm.prefetch.p0{'' if address.type.is_opaque else address.type.pointee}"
        function = builder.module.declare_intrinsic(name, fnty=function_type)
        builder.call(function, [address, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(array, types.uint64), codegen


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
# One function each, not one for a row: a call per row costs as much as a row of eight entries
# (reference counts of the views). Heads are the outer loop, so that the inner one is a plain
# loop over k columns.


@kernel(">n1 <n2 <I1 <I1 <I1 <F2 n <F3 >F3")
def spmm(ticket, cuts, indptr, indices, positions, values, step, x, out):
    """out (m, H, k) = A @ x, four entries a pass over an output row.

    values (nnz, H), or (1, H) with step 0. The values of entry e are at positions[e], or at e if
    there are no positions. What chunk t finds of a row that began in an earlier chunk goes to
    row m + t of `out`.
    """
    m = indptr.size - 1
    heads, k = x.shape[1], x.shape[2]
    flat = x.ravel()
    fetched = uint64(min(k, _FETCH // x.itemsize))
    line = uint64(_LINE // x.itemsize)
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
            for h in range(heads):
                c = out[i if i >= owned else m + t, h]
                for j in range(k):
                    c[j] = 0
                e = begin
                while e + 4 <= end:
                    if e + _AHEAD + 4 <= indices.size:
                        for ahead in range(e + _AHEAD, e + _AHEAD + 4):
                            start = uint64(indices[ahead]) * uint64(heads) + uint64(h)
                            for j in range(uint64(0), fetched, line):
                                prefetch(flat, start * uint64(k) + j)
                    if permuted:
                        p0, p1 = uint64(positions[e]) * by, uint64(positions[e + 1]) * by
                        p2, p3 = uint64(positions[e + 2]) * by, uint64(positions[e + 3]) * by
                    else:
                        p0, p1 = uint64(e) * by, uint64(e + 1) * by
                        p2, p3 = uint64(e + 2) * by, uint64(e + 3) * by
                    a0, a1, a2, a3 = values[p0, h], values[p1, h], values[p2, h], values[p3, h]
                    b0, b1 = x[uint64(indices[e]), h], x[uint64(indices[e + 1]), h]
                    b2, b3 = x[uint64(indices[e + 2]), h], x[uint64(indices[e + 3]), h]
                    for j in range(k):
                        c[j] += a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j]
                    e += 4
                while e < end:
                    a = values[uint64(positions[e]) * by if permuted else uint64(e) * by, h]
                    b = x[uint64(indices[e]), h]
                    for j in range(k):
                        c[j] += a * b[j]
                    e += 1


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
    heads, k = x.shape[1], x.shape[2]
    flat = y.ravel()
    fetched = uint64(min(k, _FETCH // y.itemsize))
    line = uint64(_LINE // y.itemsize)
    permuted = positions.size > 0
    zero = y.dtype.type(0)  # a literal 0.0 would make float32 sums float64
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        owned, first, last = cuts[t, 0], cuts[t, 1], cuts[t + 1, 1]
        lead = 1 if first < min(int64(indptr[owned]), last) else 0
        for i in range(owned - lead, cuts[t + 1, 0]):
            begin, end = max(int64(indptr[i]), first), min(int64(indptr[i + 1]), last)
            for h in range(heads):
                a = x[i, h]
                e = begin
                while e + 4 <= end:
                    if e + _AHEAD + 4 <= indices.size:
                        for ahead in range(e + _AHEAD, e + _AHEAD + 4):
                            start = uint64(indices[ahead]) * uint64(heads) + uint64(h)
                            for j in range(uint64(0), fetched, line):
                                prefetch(flat, start * uint64(k) + j)
                    b0, b1 = y[uint64(indices[e]), h], y[uint64(indices[e + 1]), h]
                    b2, b3 = y[uint64(indices[e + 2]), h], y[uint64(indices[e + 3]), h]
                    s0, s1, s2, s3 = zero, zero, zero, zero
                    for j in range(k):
                        s0 += a[j] * b0[j]
                        s1 += a[j] * b1[j]
                        s2 += a[j] * b2[j]
                        s3 += a[j] * b3[j]
                    if permuted:
                        out[uint64(positions[e]), h] = s0
                        out[uint64(positions[e + 1]), h] = s1
                        out[uint64(positions[e + 2]), h] = s2
                        out[uint64(positions[e + 3]), h] = s3
                    else:
                        out[e, h], out[e + 1, h], out[e + 2, h], out[e + 3, h] = s0, s1, s2, s3
                    e += 4
                while e < end:
                    b = y[uint64(indices[e]), h]
                    s = zero
                    for j in range(k):
                        s += a[j] * b[j]
                    out[uint64(positions[e]) if permuted else uint64(e), h] = s
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
