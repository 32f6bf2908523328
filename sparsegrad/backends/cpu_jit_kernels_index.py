"""Numba kernels: index work. Offsets, rows by index, and checks in one pass that stop early."""

from __future__ import annotations

from numba import int32, int64, uint64

from sparsegrad.backends.cpu_jit_vector import (
    SHORT,
    WIDE,
    draw,
    far,
    kernel,
    load,
    prefetch,
    run_of,
    store,
    zero,
    zero_short,
)

_BLOCK = 4096  # entries between looking whether the rest can be skipped
_AHEAD = 16  # rows between fetching and using one
_FETCH = 256  # bytes of a row to fetch; the processor notices the run and fetches the rest


@kernel("<I1 <I1", "I")
def order_facts(major, minor):
    """Bit 0: (major, minor) is sorted; bit 1: and no pair occurs twice."""
    n = int64(major.size)
    first, unique = int64(1), True
    while first < n:
        last = min(n, first + _BLOCK)
        i0, i1 = major[first - 1 : last - 1], major[first:last]
        j0, j1 = minor[first - 1 : last - 1], minor[first:last]
        falls, repeats = int32(0), int32(0)
        for e in range(i1.size):  # no branch: vector code
            same = i1[e] == i0[e]
            falls |= int32((i1[e] < i0[e]) | (same & (j1[e] < j0[e])))
            repeats |= int32(same & (j1[e] == j0[e]))
        if falls:
            return 0
        unique = unique and not repeats
        first = last
    return 3 if unique else 1


@kernel("<I1", "I")
def extremes(index):
    """The smallest and the largest element."""
    low = high = index[0]
    for e in range(index.size):
        low, high = min(low, index[e]), max(high, index[e])
    return int64(low), int64(high)


@kernel(">n1 n <I1 >I1", "I")
def expand(ticket, tasks, indptr, out):
    """out (nnz,) = the run of every entry; a task takes an equal share of runs and entries."""
    n = int64(out.size)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        begin, end = t * n // tasks, (t + 1) * n // tasks
        low = run_of(indptr, begin)
        e = begin
        while e < end:
            stop = min(end, int64(indptr[low + 1]))
            while e < stop:
                out[e] = low
                e += 1
            low += 1


@kernel(">n1 n <I1 >I1", "I")
def compress(ticket, tasks, ids, indptr):
    """indptr (n + 1,) = the offsets of sorted ids; each step from one id to the next fills."""
    n = int64(ids.size)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for e in range(t * n // tasks, (t + 1) * n // tasks):
            before = int64(ids[e - 1]) if e > 0 else int64(-1)
            for i in range(before + 1, int64(ids[e]) + 1):
                indptr[i] = e
        if t == tasks - 1:
            for i in range(int64(ids[n - 1]) + 1 if n > 0 else int64(0), indptr.size):
                indptr[i] = n


@kernel(">n1 n <K1 <I1 n >n1", "KI")
def linear_key(ticket, tasks, major, minor, width, key):
    """key = major * width + minor."""
    n = int64(major.size)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for e in range(t * n // tasks, (t + 1) * n // tasks):
            key[e] = int64(major[e]) * width + int64(minor[e])


@kernel(">n1 n <I1 <K2 >K2 >n1", "KI")
def gather(ticket, tasks, index, x, out, wrong):
    """out (e, w) = x[index], words of 4 or 8 bytes, at least one of them. What vectors do not
    divide is copied by vectors that overlap. Sets `wrong` (1,) for an index outside [0, n)."""
    n, w, rows = int64(index.size), uint64(x.shape[1]), int64(x.shape[0])
    xs, outs = x.ravel(), out.ravel()
    wide, short = uint64(WIDE // x.itemsize), uint64(SHORT // x.itemsize)
    fetched = min(w, uint64(_FETCH // x.itemsize))
    ahead_pays, ahead = far(x), uint64(_AHEAD)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        first, last = uint64(t * n // tasks), uint64((t + 1) * n // tasks)
        low = high = index[first]
        for e in range(first, last):
            low, high = min(low, index[e]), max(high, index[e])
        if low < 0 or high >= rows:
            wrong[0] = 1
            return
        if w == uint64(1):
            for e in range(first, last):
                outs[uint64(e)] = xs[uint64(index[e])]
            continue
        for e in range(first, last):
            if ahead_pays and e + ahead < uint64(n):
                b = uint64(index[e + ahead]) * w
                for j in range(uint64(0), fetched, wide):
                    prefetch(xs, b + j)
            b, to, j = uint64(index[e]) * w, uint64(e) * w, uint64(0)
            while j < w and w >= wide:
                j = min(j, w - wide)
                store(outs, to + j, load(zero(x), xs, b + j))
                j += wide
            while j < w and w >= short:
                j = min(j, w - short)
                store(outs, to + j, load(zero_short(x), xs, b + j))
                j += short
            while j < w:
                outs[to + j] = xs[b + j]
                j += uint64(1)
