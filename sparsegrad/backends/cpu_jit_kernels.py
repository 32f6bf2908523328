"""Numba kernels: sparse products. Imported at the first call that needs one.

Every kernel that is launched draws chunks from `ticket`. A chunk is a fixed share of the entries,
so results do not depend on the number of threads. Gathered indices are unsigned 64-bit inside: no
branch for negative ones, no overflow of offsets.
"""

from __future__ import annotations

from numba import int64, uint64

from sparsegrad.backends.cpu_jit_vector import (
    SHORT,
    WIDE,
    draw,
    far,
    kernel,
    load,
    muladd,
    place,
    prefetch,
    sum_lanes,
    zero,
    zero_short,
)

_AHEAD = 8  # entries between fetching a row of x and using it
_FETCH = 256  # bytes of a row to fetch; the processor notices the run and fetches the rest


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


@kernel(">n1 <n2 <I1 <I1 <I1 <F2 n <F3 >F3")
def spmv(ticket, cuts, indptr, indices, positions, values, step, x, out):
    """`spmm` for k = 1: sums along the entries instead of across the columns."""
    m = indptr.size - 1
    permuted = positions.size > 0
    by, one = uint64(step), uint64(1)
    xs, scales, outs = x.ravel(), values.ravel(), out.ravel()
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        owned, first, last = cuts[t, 0], cuts[t, 1], cuts[t + 1, 1]
        lead = 1 if first < min(int64(indptr[owned]), last) else 0
        if x.shape[1] == 1:  # no heads: on from entry to entry, one bound a row
            entry, bound = uint64(first), uint64(last)
            for i in range(owned - lead, cuts[t + 1, 0]):
                stop = min(uint64(indptr[uint64(i) + one]), bound)
                total = x.dtype.type(0)
                if permuted:
                    while entry < stop:
                        scale = scales[uint64(positions[entry]) * by]
                        total += scale * xs[uint64(indices[entry])]
                        entry += one
                else:
                    while entry < stop:
                        total += scales[entry * by] * xs[uint64(indices[entry])]
                        entry += one
                outs[uint64(i if i >= owned else m + t)] = total
            continue
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
    ahead_pays = far(y)
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
                    if ahead_pays and e + _AHEAD + 4 <= indices.size:
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
                            a = load(v0, xs, row + j)
                            v0 = muladd(v0, a, load(v0, ys, b0 + j))
                            v1 = muladd(v1, a, load(v0, ys, b1 + j))
                            v2 = muladd(v2, a, load(v0, ys, b2 + j))
                            v3 = muladd(v3, a, load(v0, ys, b3 + j))
                            j += wide
                        s0, s1, s2, s3 = sum_lanes(v0), sum_lanes(v1), sum_lanes(v2), sum_lanes(v3)
                    if j + short <= k:
                        w0, w1, w2, w3 = zero_short(y), zero_short(y), zero_short(y), zero_short(y)
                        while j + short <= k:
                            a4 = load(w0, xs, row + j)
                            w0 = muladd(w0, a4, load(w0, ys, b0 + j))
                            w1 = muladd(w1, a4, load(w0, ys, b1 + j))
                            w2 = muladd(w2, a4, load(w0, ys, b2 + j))
                            w3 = muladd(w3, a4, load(w0, ys, b3 + j))
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
                    out[place(positions, e, one), h] = s0
                    out[place(positions, e + 1, one), h] = s1
                    out[place(positions, e + 2, one), h] = s2
                    out[place(positions, e + 3, one), h] = s3
                    e += 4
                while e < end:
                    b0 = uint64(indices[e]) * stride + h * k
                    s0 = none
                    j = uint64(0)
                    if k >= wide:
                        v0 = zero(y)
                        while j + wide <= k:
                            v0 = muladd(v0, load(v0, xs, row + j), load(v0, ys, b0 + j))
                            j += wide
                        s0 = sum_lanes(v0)
                    while j < k:
                        s0 += xs[row + j] * ys[b0 + j]
                        j += uint64(1)
                    out[place(positions, e, one), h] = s0
                    e += 1
