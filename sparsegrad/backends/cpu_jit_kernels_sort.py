"""Numba kernels: sorting coordinates in linear time, and the runs of equal ones.

A key is major << bits | minor. Its leading bits say in which of about a thousand buckets it goes;
there it becomes a word, the rest of its bits before the position of its entry. Words differ, so
whatever sorts them is stable, and a bucket is sorted within the cache. Whatever ids hold, also
beyond their shape where nobody checked them, nothing is written out of place.
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64, uint32, uint64

from sparsegrad.backends.cpu_jit_vector import draw, inlined, kernel, run_of

_1 = uint64(1)
_LEAD = 13  # bits of a bucket's leading digit at most: its counters fit into the cache
_DIGIT = 9  # bits of its lower digits at most
_NEAR = uint64(24)  # words of one leading digit that are sorted by being compared with each other
_STEP = uint64(4)  # neighbours that are compared at a time
_PAD = uint64(32)  # neighbours before the first and behind the last: at least _NEAR + _STEP


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


@inlined(set())
def _count(words, n, shift, bits, counts):
    """counts (2**bits,) = where words go by the digit of so many bits above `shift`; how many have
    the most frequent one."""
    mask = (_1 << bits) - _1
    for d in range(mask + _1):
        counts[d] = 0
    for e in range(n):
        counts[(uint64(words[e]) >> shift) & mask] += uint32(1)
    total, most = uint32(0), uint32(0)
    for d in range(mask + _1):
        count = counts[d]
        most = max(most, count)
        counts[d] = total
        total = uint32(total + count)
    return uint64(most)


@inlined(set())
def _move(source, target, n, shift, bits, counts):
    """n words to where `_count` says, in their order."""
    mask = (_1 << bits) - _1
    for e in range(n):
        word = source[e]
        d = (uint64(word) >> shift) & mask
        to = counts[d]
        counts[d] = to + uint32(1)
        target[to] = word


@inlined(set())
def _below(a, b):
    return int32(1) if a < b else int32(0)


@inlined(set())
def _rank(keys, n, reach, rank):
    """rank (n,) = the place in order of each key but for the pads, none of which is `reach` places
    away from it. Without a branch, in vectors: which of two neighbours is less is a toss-up."""
    for e in range(_PAD):
        keys[e], keys[_PAD + n + e] = -1, 0x7FFFFFFF
    mine = keys[_PAD:]
    for e in range(n):
        rank[e] = e
    for k in range(_1, reach, _STEP):
        a, b, c, d = mine[k:], mine[k + _1 :], mine[k + uint64(2) :], mine[k + uint64(3) :]
        at = _PAD - k
        p, q, r, s = keys[at:], keys[at - _1 :], keys[at - uint64(2) :], keys[at - uint64(3) :]
        for e in range(n):
            key = mine[e]
            up = _below(a[e], key) + _below(b[e], key) + _below(c[e], key) + _below(d[e], key)
            down = _below(key, p[e]) + _below(key, q[e]) + _below(key, r[e]) + _below(key, s[e])
            rank[e] += int32(up - down)


@kernel(">n1 n <n1 n n >n1 >n1 >I1", "I")
def sort_buckets(ticket, tasks, starts, low, width, words, distinct, perm):
    """Sort each bucket: perm (nnz,) = the positions of its words. distinct (buckets,): how many
    keys it has, and its first words then are these, before where the last of each stands in `perm`;
    an empty array if nobody asks.

    By the leading digit, then by comparing neighbours; where too many words have one such digit, by
    the lower ones first instead.
    """
    w, place = uint64(width), (_1 << uint64(width)) - _1
    lead, counts = np.empty(1 << _LEAD, np.uint32), np.empty(1 << _DIGIT, np.uint32)
    one, two = np.empty(0, np.int64), np.empty(0, np.int64)
    keys, rank = np.empty(0, np.int32), np.empty(0, np.int32)
    while True:
        task, buckets = draw(ticket), starts.size - 1
        if task >= tasks:
            return
        for t in range(task * buckets // tasks, (task + 1) * buckets // tasks):
            base, here = uint64(starts[t]), words[starts[t] : starts[t + 1]]
            n = uint64(here.size)
            if n == 0:
                if distinct.size > 0:
                    distinct[t] = 0
                continue
            if uint64(one.size) < n:
                one, two = np.empty(n, np.int64), np.empty(n, np.int64)
            there, spare = one, two
            bits = uint64(1)
            while _1 << (bits + _1) <= n and bits < uint64(_LEAD):
                bits += _1
            bits = min(bits, uint64(low))
            shift = w + uint64(low) - bits
            most = _count(here, n, shift, bits, lead)
            near = shift > w and most <= _NEAR and low < 32
            if shift > w and not near:
                passes = (shift - w + uint64(_DIGIT) - _1) // uint64(_DIGIT)
                digit, at = (shift - w + passes - _1) // passes, w
                while at < shift:
                    digit = min(digit, shift - at)
                    if _count(here, n, at, digit, counts) < n:
                        _move(here, there, n, at, digit, counts)
                        here, there, spare = there, spare, there
                    at += digit
            if most < n:
                _move(here, there, n, shift, bits, lead)
                here, there, spare = there, spare, there
            if near:
                if uint64(rank.size) < n:
                    keys, rank = np.empty(n + _PAD + _PAD, np.int32), np.empty(n, np.int32)
                for e in range(n):
                    keys[_PAD + e] = uint64(here[e]) >> w
                _rank(keys, n, most, rank)
                for e in range(n):
                    there[uint64(rank[e])] = here[e]
                here, there, spare = there, spare, there
            listed = perm[base : base + n]
            if distinct.size == 0:
                for e in range(n):
                    listed[e] = uint64(here[e]) & place
                continue
            # Without a branch: whether two keys are equal is a toss-up.
            run, before = base, uint64(here[0]) >> w
            for e in range(n):
                word = uint64(here[e])
                listed[e] = word & place
                key = word >> w
                run += uint64(key != before)
                before = key
                words[run] = (key << w) | (base + e)
            distinct[t] = run + _1 - base


@kernel(">n1 n <n1 <n1 n n n <n1 >I1 >I1 >I1", "I")
def list_runs(ticket, tasks, starts, firsts, bits, low, width, words, major, minor, offsets):
    """Distinct keys (u,) and where the run of each ends, offsets[1:] (u,), from what `sort_buckets`
    left. `firsts` (buckets + 1,): the number of the first run of every bucket."""
    w, cols, place = uint64(width), (_1 << uint64(bits)) - _1, (_1 << uint64(width)) - _1
    while True:
        task, buckets = draw(ticket), starts.size - 1
        if task >= tasks:
            return
        for t in range(task * buckets // tasks, (task + 1) * buckets // tasks):
            first, end = firsts[t], firsts[t + 1]
            mine, ends = words[starts[t] :], offsets[first + 1 : end + 1]
            i, j, top = major[first:end], minor[first:end], uint64(t) << uint64(low)
            for e in range(uint64(i.size)):
                i[e] = (uint64(mine[e]) >> w | top) >> uint64(bits)
            for e in range(uint64(ends.size)):
                ends[e] = (uint64(mine[e]) & place) + _1
            for e in range(uint64(j.size)):
                j[e] = (uint64(mine[e]) >> w | top) & cols
