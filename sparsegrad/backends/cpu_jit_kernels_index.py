"""Numba kernels: index work. Offsets, rows by index, and checks in one pass that stop early."""

from __future__ import annotations

from numba import carray, int32, int64, types, uint64
from numba.extending import intrinsic

from sparsegrad.backends.cpu_jit_vector import (
    SHORT,
    WIDE,
    ahead,
    draw,
    inlined,
    kernel,
    load,
    prefetch_l2,
    run_of,
    store,
    zero,
    zero_short,
)

_BLOCK = 4096  # entries between looking whether the rest can be skipped
_AHEAD = 16  # rows between fetching and using one
_SAMPLES = 256  # of several tables that are taken at once: their rows lie in the nearest caches
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


@inlined(set())
def _copy_ids(ids, bound, out):
    """out = ids; whether one lies outside [0, bound)."""
    outside = int32(0)
    for e in range(ids.size):  # no branch: vector code
        outside |= int32(uint64(ids[e]) >= uint64(bound))
        out[e] = ids[e]
    return outside > 0


@kernel(">n1 n <K1 <K1 n n >I1 >I1 >n1", "KI")
def copy_ids(ticket, tasks, one, two, m, n, to_one, to_two, wrong):
    """Copies of two lists of ids, or of one, the other being empty. Sets `wrong` (1,) where an id
    of `one` lies outside [0, m), or of `two` outside [0, n)."""
    count = int64(one.size)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        begin, end = t * count // tasks, (t + 1) * count // tasks
        outside = _copy_ids(one[begin:end], m, to_one[begin:end])
        if outside | _copy_ids(two[begin:end], n, to_two[begin:end]):
            wrong[0] = 1


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


@kernel(">n1 n <I2 <n1 >K2 >n1", "IK")
def ids_by_table(ticket, tasks, ids, bounds, listed, wrong):
    """listed (f, n) = ids (n, f), an id of each table. Sets `wrong` (1,) for one outside [0, its
    bound)."""
    n, tables = int64(ids.shape[0]), int64(ids.shape[1])
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        first, stop = t * n // tasks, (t + 1) * n // tasks
        for begin in range(first, stop, _SAMPLES):
            end = min(begin + _SAMPLES, stop)
            for f in range(tables):
                bound, bad = bounds[f], int32(0)
                for e in range(begin, end):  # no branch: vector code
                    i = int64(ids[e, f])
                    bad |= int32((i < 0) | (i >= bound))
                    listed[f, e] = i
                if bad:
                    wrong[0] = 1
                    return


@kernel(">n1 n <I2 <n2 >K2 >n1", "KI")
def gather(ticket, tasks, index, tables, out, wrong):
    """out (n, sum of w) = rows of f tables side by side, table f at index[f] (n,). tables (f, 3):
    address, rows, and words w of a row, of 4 or 8 bytes. What vectors do not divide is copied by
    vectors that overlap. Sets `wrong` (1,) for an index outside a table."""
    n, total = int64(index.shape[1]), uint64(out.shape[1])
    ids, outs = index.ravel(), out.ravel()
    wide, short = uint64(WIDE // out.itemsize), uint64(SHORT // out.itemsize)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        first, stop = t * n // tasks, (t + 1) * n // tasks
        for begin in range(first, stop, _SAMPLES):
            end = min(begin + _SAMPLES, stop)
            column = uint64(begin) * total
            for f in range(index.shape[0]):
                rows, w, to = tables[f, 1], uint64(tables[f, 2]), column
                column += w
                xs = carray(_pointer(outs, tables[f, 0]), rows * int64(w))
                at, last = uint64(f * n + begin), uint64(f * n + end)
                known = uint64(f * n + n)
                low = high = ids[at]
                for e in range(at, last):
                    low, high = min(low, ids[e]), max(high, ids[e])
                if low < 0 or high >= rows:
                    wrong[0] = 1
                    return
                if w == uint64(1):
                    for e in range(at, last):
                        outs[to] = xs[uint64(ids[e])]
                        to += total
                    continue
                fetched, ahead_x = min(w, uint64(_FETCH // out.itemsize)), ahead(xs, _AHEAD)
                for e in range(at, last):
                    if ahead_x > uint64(0) and e + ahead_x < known:  # in the next samples as well
                        b = uint64(ids[e + ahead_x]) * w
                        for j in range(uint64(0), fetched, wide):
                            prefetch_l2(xs, b + j)
                        prefetch_l2(xs, b + fetched - uint64(1))
                    b, j = uint64(ids[e]) * w, uint64(0)
                    while j < w and w >= wide:
                        j = min(j, w - wide)
                        store(outs, to + j, load(zero(xs), xs, b + j))
                        j += wide
                    while j < w and w >= short:
                        j = min(j, w - short)
                        store(outs, to + j, load(zero_short(xs), xs, b + j))
                        j += short
                    while j < w:
                        outs[to + j] = xs[b + j]
                        j += uint64(1)
                    to += total


@intrinsic
def _pointer(typingctx, like, address):
    """The memory at an address, as a pointer to elements like those of an array."""

    def codegen(context, builder, signature, args):
        pointer = context.get_value_type(signature.return_type)
        return builder.inttoptr(args[1], pointer)

    return types.CPointer(like.dtype)(like, types.int64), codegen
