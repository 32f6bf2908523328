"""Numba kernels: where entries lie. Rows are sorted by column."""

from __future__ import annotations

from numba import int64, uint64

from sparsegrad.backends.cpu_jit_vector import (
    draw,
    far,
    kernel,
    lanes,
    load,
    place,
    prefetch,
    run_of,
    store,
    zero,
)

_AHEAD = 8  # runs between fetching and copying one
_0, _1 = uint64(0), uint64(1)


@kernel(">n1 n <I1 <I1 >I1", "I")
def spans(ticket, tasks, starts, offsets, out):
    """out = starts[i], starts[i] + 1, ... for every run i; a task takes an equal share of it."""
    n = int64(out.size)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        e, end = t * n // tasks, (t + 1) * n // tasks
        low = run_of(offsets, e)
        while e < end:
            shift = int64(starts[low]) - int64(offsets[low])
            stop = min(end, int64(offsets[low + 1]))
            while e < stop:
                out[e] = shift + e
                e += 1
            low += 1


@kernel("<I1 <n1 >I1 >I1", "I")
def line_runs(indptr, ids, starts, offsets):
    """starts (k,) and offsets (k + 1,) of the lines `ids`; returns their end, which may not fit."""
    total = int64(0)
    offsets[0] = 0
    for i in range(uint64(ids.size)):
        line = uint64(ids[i])
        starts[i] = indptr[line]
        total += int64(indptr[line + _1]) - int64(indptr[line])
        offsets[i + _1] = total
    return total


@kernel(">n1 n n <I1 <I1 <K1 >K1", "KI")
def take_runs(ticket, tasks, w, starts, offsets, x, out):
    """out = the rows of x in the runs, w words of 4 or 8 bytes each."""
    n, runs, fetch, step = int64(offsets[-1]), int64(starts.size), far(x), int64(lanes(zero(x)))
    last = int64(x.size) - step  # the last place of a whole vector
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        e, end = t * n // tasks, (t + 1) * n // tasks
        i, to, end = run_of(offsets, e), e * w, end * w
        while to < end:
            if fetch and i + _AHEAD < runs:
                prefetch(x, uint64(int64(starts[i + _AHEAD]) * w))
            source = int64(starts[i]) * w + to - int64(offsets[i]) * w
            stop = min(end, int64(offsets[i + 1]) * w)
            # Vectors write beyond a short run, where the next one comes: lengths that cannot be
            # foreseen then cost nothing. Not beyond the share of this task.
            while to < stop and to + step <= end and source <= last:
                store(out, uint64(to), load(zero(x), x, uint64(source)))
                to, source = to + step, source + step
            while to < stop:
                out[uint64(to)] = x[uint64(source)]
                to, source = to + 1, source + 1
            to, i = stop, i + 1


@kernel(">n1 n <I1 <b1 >n1", "I")
def count_kept(ticket, tasks, offsets, keep, counts):
    """counts (s,) = the entries of each run that stay."""
    runs = int64(counts.size)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * runs // tasks, (t + 1) * runs // tasks):
            count = int64(0)
            for e in range(uint64(offsets[i]), uint64(offsets[i + 1])):
                count += keep[e]
            counts[i] = count


@kernel(">n1 <n1 <n1 <b1 >I1", "I")
def list_kept(ticket, bounds, firsts, keep, entries):
    """entries = the positions of those that stay. A share from bounds[t] on fills its places from
    firsts[t] on; whether one stays is a toss-up, on which no branch may depend."""
    while True:
        t = draw(ticket)
        if t >= bounds.size - 1:
            return
        e, to, end = uint64(bounds[t]), uint64(firsts[t]), uint64(firsts[t + 1])
        while to < end:
            entries[to] = e
            to += uint64(keep[e])
            e += _1


@kernel(">n1 n <I1 <I1 <K1 <K1 >I1", "IK")
def find(ticket, tasks, indptr, cols, row, col, out):
    """out (q,) = the position of (row[q], col[q]), -1 if it is not there: a binary search without
    a branch, of a line fetched ahead."""
    n, last, ahead = int64(row.size), uint64(cols.size - 1), uint64(_AHEAD)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for q in range(uint64(t * n // tasks), uint64((t + 1) * n // tasks)):
            if q + ahead + ahead < uint64(n):
                prefetch(indptr, uint64(row[q + ahead + ahead]))
                prefetch(cols, uint64(indptr[uint64(row[q + ahead])]))
            i, j = uint64(row[q]), int64(col[q])
            low, end = uint64(indptr[i]), uint64(indptr[i + _1])
            left = end - low
            while left > _0:
                half = (left + _1) >> _1
                low += half if int64(cols[low + half - _1]) < j else _0
                left -= half
            found = (low < end) & (int64(cols[min(low, last)]) == j)
            out[q] = int64(low) if found else int64(-1)


@kernel(">n1 <I1 <I1 >n2", "I")
def line_facts(ticket, indptr, minor, found):
    """found (tasks, 2): how many steps from one entry to the next fall, and how many stay, without
    those from one line to the next. Every step is counted by vectors; then those are taken off."""
    tasks, n, lines = found.shape[0], int64(minor.size), int64(indptr.size - 1)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        falls, stays = int64(0), int64(0)
        first, last = max(t * n // tasks, 1), (t + 1) * n // tasks
        before, after = minor[first - 1 : max(last, first) - 1], minor[first : max(last, first)]
        for e in range(after.size):
            falls += after[e] < before[e]
            stays += after[e] == before[e]
        for i in range(t * lines // tasks, (t + 1) * lines // tasks):
            e = uint64(indptr[i])
            if e > _0 and e < uint64(indptr[i + 1]):
                falls -= minor[e] < minor[e - _1]
                stays -= minor[e] == minor[e - _1]
        found[t, 0], found[t, 1] = falls, stays


@kernel(">n1 <n1 <I1 <I1 <I1 <I1 <I1 <I1 >n1 >I1 >I1 >I1", "I")
def merge_rows(
    ticket, cuts, a_indptr, a_cols, a_at, b_indptr, b_cols, b_at, counts, cols, perm, runs
):
    """cols of the rows of either pattern, perm: where their values are among those of `a` and `b`
    joined, runs: which of these are one entry. A row has room for its entries in both; counts (m,):
    how many there are. No branch: which row is ahead cannot be foreseen."""
    behind = int64(a_cols.size)
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        for i in range(cuts[t], cuts[t + 1]):
            p, p_end = int64(a_indptr[i]), int64(a_indptr[i + 1])
            q, q_end = int64(b_indptr[i]), int64(b_indptr[i + 1])
            e = o = p + q
            counts[i] = -o
            while p < p_end and q < q_end:
                left, right = int64(a_cols[p]), int64(b_cols[q])
                runs[o], cols[o] = e, min(left, right)
                first, second = int64(place(a_at, p, 1)), behind + int64(place(b_at, q, 1))
                perm[e] = first if left <= right else second
                if left == right:
                    e += 1
                    perm[e] = second
                p += int64(left <= right)
                q += int64(right <= left)
                e += 1
                o += 1
            while p < p_end:
                runs[o], cols[o], perm[e] = e, a_cols[p], int64(place(a_at, p, 1))
                p, e, o = p + 1, e + 1, o + 1
            while q < q_end:
                runs[o], cols[o], perm[e] = e, b_cols[q], behind + int64(place(b_at, q, 1))
                q, e, o = q + 1, e + 1, o + 1
            counts[i] += o


@kernel(">n1 <n1 <n1 <I1 <n1 >I1", "I")
def close_gaps(ticket, cuts, starts, listed, offsets, closed):
    """The rows of `listed` that begin at `starts`, one behind the other."""
    step = uint64(lanes(zero(listed)))
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        for i in range(cuts[t], cuts[t + 1]):
            source, to, end = uint64(starts[i]), uint64(offsets[i]), uint64(offsets[i + 1])
            while to + step <= end:
                store(closed, to, load(zero(listed), listed, source))
                source, to = source + step, to + step
            while to < end:
                closed[to] = listed[source]
                source, to = source + _1, to + _1
