"""Numba kernels: sorting coordinates in linear time, and the runs of equal ones.

A key is major << bits | minor. Its leading bits say in which of about a thousand buckets it goes;
there it becomes a word, the rest of its bits before the position of its entry. Words differ, so
whatever sorts them is stable, and a bucket is sorted by digits within the cache. Whatever ids
hold, also beyond their shape where nobody checked them, nothing is written out of place.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint32, uint64

from sparsegrad.backends.cpu_jit_vector import draw, inlined, kernel, run_of

_1 = uint64(1)


# ---- by ids of few values: count each one, sum up, move -----------------------------------------
@kernel(">n1 <I1 >I2 >n1", "I")
def count_ids(ticket, ids, counts, wrong):
    """counts (blocks, n): how often each id occurs in each block of them. Sets `wrong` (1,) for an
    id outside [0, n)."""
    blocks, kinds, n = counts.shape[0], counts.shape[1], int64(ids.size)
    while True:
        t = draw(ticket)
        if t >= blocks:
            return
        mine, first, last = counts[t], uint64(t * n // blocks), uint64((t + 1) * n // blocks)
        mine[:] = 0
        low = high = ids[first]
        for e in range(first, last):
            low, high = min(low, ids[e]), max(high, ids[e])
        if low < 0 or high >= kinds:
            wrong[0] = 1
            return
        for e in range(first, last):
            mine[uint64(ids[e])] += 1


@kernel(">I2", "I")
def sum_counts(counts):
    """Counts to the position where each block puts the first entry of each kind."""
    total = int64(0)
    for kind in range(counts.shape[1]):
        for block in range(counts.shape[0]):
            count = counts[block, kind]
            counts[block, kind] = total
            total += count


@kernel(">n1 <I1 >I2 >I1", "I")
def group_ids(ticket, ids, starts, perm):
    """perm (nnz,) = the positions of the ids, stably by id."""
    blocks, n = starts.shape[0], int64(ids.size)
    while True:
        t = draw(ticket)
        if t >= blocks:
            return
        mine = starts[t]
        for e in range(uint64(t * n // blocks), uint64((t + 1) * n // blocks)):
            to = mine[uint64(ids[e])]
            mine[uint64(ids[e])] = to + 1
            perm[uint64(to)] = e


@kernel(">n1 <I1 <I1 >I2 >I1 >I1", "I")
def group_lines(ticket, indptr, ids, starts, perm, lines):
    """The same of the entries of lines, and the line of each in its new place: lines (nnz,)."""
    blocks, n = starts.shape[0], int64(ids.size)
    while True:
        t = draw(ticket)
        if t >= blocks:
            return
        mine, e, end = starts[t], t * n // blocks, (t + 1) * n // blocks
        line = run_of(indptr, e)
        while e < end:
            stop = min(end, int64(indptr[line + 1]))
            for at in range(uint64(e), uint64(stop)):
                kind = uint64(ids[at])
                to = uint64(mine[kind])
                mine[kind] = to + _1
                perm[to], lines[to] = at, line
            e, line = stop, line + 1


# ---- by coordinates: into buckets, and within each by digits ------------------------------------
@inlined(set())
def _key(major, minor, bits, e):
    """An empty `minor` stands for zeros."""
    key = uint64(major[e]) << bits
    return key | uint64(minor[e]) if minor.size > 0 else key


@kernel(">n1 <I1 <I1 n n >n2", "I")
def count_buckets(ticket, major, minor, bits, low, counts):
    """counts (blocks, buckets): how many entries of each block go into each bucket."""
    blocks, n, top = counts.shape[0], int64(major.size), uint64(counts.shape[1]) - _1
    while True:
        t = draw(ticket)
        if t >= blocks:
            return
        mine = counts[t]
        mine[:] = 0
        for e in range(uint64(t * n // blocks), uint64((t + 1) * n // blocks)):
            mine[min(_key(major, minor, uint64(bits), e) >> uint64(low), top)] += 1


@kernel(">n1 <I1 <I1 n n n >n2 >n1", "I")
def move_to_buckets(ticket, major, minor, bits, low, width, starts, words):
    """words (nnz,) by bucket, each block's from `starts` on. Positions have `width` bits."""
    blocks, n, top = starts.shape[0], int64(major.size), uint64(starts.shape[1]) - _1
    rest = (_1 << uint64(low)) - _1
    while True:
        t = draw(ticket)
        if t >= blocks:
            return
        mine = starts[t]
        for e in range(uint64(t * n // blocks), uint64((t + 1) * n // blocks)):
            key = _key(major, minor, uint64(bits), e)
            bucket = min(key >> uint64(low), top)
            to = mine[bucket]
            mine[bucket] = to + 1
            words[uint64(to)] = ((key & rest) << uint64(width)) | e


@kernel(">n1 <n1 n n n >n1 >n1 >I1", "I")
def sort_buckets(ticket, starts, width, digit, passes, words, distinct, perm):
    """Sort each bucket by so many digits. `distinct`: how many keys it has; perm (nnz,) = the
    positions of its words."""
    mask, place = (_1 << uint64(digit)) - _1, (_1 << uint64(width)) - _1
    counts, spare = np.empty(mask + _1, np.uint32), np.empty(0, np.int64)
    while True:
        t = draw(ticket)
        if t >= starts.size - 1:
            return
        bucket, listed = words[starts[t] : starts[t + 1]], perm[starts[t] : starts[t + 1]]
        n, shift = uint64(bucket.size), uint64(width)
        if uint64(spare.size) < n:
            spare = np.empty(n, np.int64)
        here, there = bucket, spare[:n]
        for _ in range(passes):
            for d in range(mask + _1):
                counts[d] = 0
            for e in range(n):
                counts[(uint64(here[e]) >> shift) & mask] += 1
            total = uint32(0)
            for d in range(mask + _1):
                count = counts[d]
                counts[d] = total
                total = uint32(total + count)
            for e in range(n):
                word = here[e]
                d = (uint64(word) >> shift) & mask
                to = counts[d]
                counts[d] = to + uint32(1)
                there[to] = word
            here, there = there, here
            shift += uint64(digit)
        if passes % 2:
            for e in range(n):  # an assignment of slices takes seconds to compile
                bucket[e] = here[e]
        found = int64(n > 0)
        for e in range(_1, n):
            found += (uint64(here[e]) >> uint64(width)) != (uint64(here[e - _1]) >> uint64(width))
        for e in range(n):
            listed[e] = uint64(here[e]) & place
        distinct[t] = found


@kernel(">n1 <n1 <n1 n n n <n1 >I1 >I1 >I1", "I")
def list_runs(ticket, starts, firsts, bits, low, width, words, major, minor, offsets):
    """Distinct keys (u,) and where the run of each ends, offsets[1:] (u,). `firsts`: the number of
    the first run of every bucket. Without a branch: whether two keys are equal is a toss-up."""
    cols, w = (_1 << uint64(bits)) - _1, uint64(width)
    while True:
        t = draw(ticket)
        if t >= starts.size - 1:
            return
        e, end = uint64(starts[t]), uint64(starts[t + 1])
        if e == end:
            continue
        top, run, before = uint64(t) << uint64(low), uint64(firsts[t]), uint64(words[e]) >> w
        while e < end:
            key = uint64(words[e]) >> w
            run += uint64(key != before)
            before = key
            key |= top
            major[run] = key >> uint64(bits)
            if minor.size > 0:
                minor[run] = key & cols
            e += _1
            offsets[run + _1] = e
