"""Numba kernels: sums over segments and by index. Two-dimensional arrays are (entries, columns)."""

from __future__ import annotations

import numpy as np
from numba import int64, uint64

from sparsegrad.backends.cpu_jit_vector import FAST, draw, inlined, kernel, prefetch

_NARROW = 16  # columns below which a loop over them is too short for vector code
_AHEAD = uint64(64)  # entries between fetching a value and using it
_1, _2, _3, _4 = uint64(1), uint64(2), uint64(3), uint64(4)


@inlined(FAST)
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


@kernel(">n1 <n2 <I1 <I1 <F2 >F2")
def sum_runs(ticket, cuts, indptr, perm, values, out):
    """out (s, 1) = the sums of the runs of values[perm], four at a time, or two where most runs are
    single: whether a short run goes on is a toss-up, on which no branch may depend."""
    zero, last = values.dtype.type(0), uint64(perm.size - 1)
    vs, outs, pairs = values.ravel(), out.ravel(), perm.size < 2 * out.size
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        e = uint64(cuts[t, 1])
        for i in range(uint64(cuts[t, 0]), uint64(cuts[t + 1, 0])):
            end, total = uint64(indptr[i + _1]), zero
            while e < end:
                prefetch(vs, uint64(perm[min(e + _AHEAD, last)]))
                prefetch(vs, uint64(perm[min(e + _AHEAD + _1, last)]))
                a = vs[uint64(perm[e])]
                b = vs[uint64(perm[min(e + _1, end - _1)])]
                if pairs:
                    total += a + (b if e + _1 < end else zero)
                    e = min(e + _2, end)
                    continue
                c = vs[uint64(perm[min(e + _2, end - _1)])]
                d = vs[uint64(perm[min(e + _3, end - _1)])]
                b = b if e + _1 < end else zero
                c = c if e + _2 < end else zero
                d = d if e + _3 < end else zero
                total += (a + b) + (c + d)
                e = min(e + _4, end)
            outs[i] = total


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


@kernel(">n1 <n2 <I1 <n1 <F2 >F2")
def segment_max(ticket, cuts, indptr, absent, values, out):
    """out (s, D) = the maxima of the runs of values (nnz, D); with `absent` (s,), of so many zeros
    too, and 0 of nothing."""
    zero = out.dtype.type(0)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        for i in range(cuts[t, 0], cuts[t + 1, 0]):
            begin, end, row = int64(indptr[i]), int64(indptr[i + 1]), out[i]
            _max_rows(begin, end, values, row)
            if absent.size > 0 and (absent[i] > 0 or begin == end):
                for j in range(row.size):
                    row[j] = zero if row[j] < zero else row[j]


@kernel(">n1 <n2 <I1 <n1 <F2 <F2 <F2 >F2")
def segment_amax_grad(ticket, cuts, indptr, absent, g, values, top, out):
    """out (nnz, D) = g (s, D) in equal shares to the values that are `top` (s, D), which `absent`
    (s,) zeros may be too."""
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        for i in range(cuts[t, 0], cuts[t + 1, 0]):
            begin, end = int64(indptr[i]), int64(indptr[i + 1])
            for j in range(values.shape[1]):
                high = top[i, j]
                ties = absent[i] if high == 0 else 0
                for e in range(begin, end):
                    ties += values[e, j] == high
                share = g[i, j] / max(ties, 1)
                for e in range(begin, end):
                    out[e, j] = share if values[e, j] == high else 0


@kernel(">n1 <n2 <I1 <n1 <F2 >F2")
def segment_prod(ticket, cuts, indptr, zeros, values, out):
    """out (s, D) = the products of the runs of values (nnz, D) and of `zeros` (s,) zeros."""
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        for i in range(cuts[t, 0], cuts[t + 1, 0]):
            begin, end, row = int64(indptr[i]), int64(indptr[i + 1]), out[i]
            if zeros[i] > 0:
                row[:] = 0
                continue
            if row.size == 1:
                product = values.dtype.type(1)
                for e in range(begin, end):
                    product *= values[e, 0]
                row[0] = product
                continue
            row[:] = 1
            for e in range(begin, end):
                for j in range(row.size):
                    row[j] *= values[e, j]


@kernel(">n1 <n2 <I1 <n1 <F2 <F2 >F2")
def segment_prod_grad(ticket, cuts, indptr, zeros, g, values, out):
    """out (nnz, D) = g (s, D) times all other values of the run, and zeros: what comes before each,
    then what comes after it."""
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        for i in range(cuts[t, 0], cuts[t + 1, 0]):
            begin, end = int64(indptr[i]), int64(indptr[i + 1])
            if zeros[i] > 0:
                out[begin:end] = 0
                continue
            for j in range(values.shape[1]):
                product = values.dtype.type(1)
                for e in range(begin, end):
                    out[e, j] = product
                    product *= values[e, j]
                product = g[i, j]
                for e in range(end - 1, begin - 1, -1):
                    out[e, j] *= product
                    product *= values[e, j]


@kernel(">n1 n <I1 <F2 >F3")
def scatter_add_apart(ticket, tasks, index, values, outs):
    """outs[t] (n, D) = what the entries of task t add: each task has an output of its own."""
    nnz = int64(index.size)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        out = outs[t]
        out[:] = 0
        for e in range(t * nnz // tasks, (t + 1) * nnz // tasks):
            i = uint64(index[e])
            for j in range(values.shape[1]):
                out[i, j] += values[e, j]


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
