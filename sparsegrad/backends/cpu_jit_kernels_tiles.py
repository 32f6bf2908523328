"""Numba kernels: sparse @ dense in tiles of columns, whose rows of x stay in the fastest cache."""

from __future__ import annotations

import numpy as np
from numba import uint64

from sparsegrad.backends.cpu_jit_vector import WIDE, draw, kernel, load, muladd, place, store, zero

_1 = uint64(1)


@kernel(">n1 <n1 n n <I1 <I1 <I1 >I1 >I1 >I1", "I")
def list_tiles(ticket, cuts, tiles, shift, indptr, cols, positions, offsets, indices, places):
    """Entries by chunk, tile of 2**shift columns and row, as `spmm_tiles` takes them. A chunk's
    entries are one run before and after."""
    count, shift_ = uint64(tiles), uint64(shift)
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        first, last = uint64(cuts[t]), uint64(cuts[t + 1])
        rows, base = last - first, first * count
        after = np.zeros(rows * count, np.int64)  # where the next entry of each list goes
        for i in range(first, last):
            for e in range(uint64(indptr[i]), uint64(indptr[i + _1])):
                after[(uint64(cols[e]) >> shift_) * rows + i - first] += 1
        total = indptr[first]
        for v in range(rows * count):
            offsets[base + v] = total
            after[v], total = total, total + after[v]
        offsets[base + rows * count] = total
        for i in range(first, last):
            for e in range(uint64(indptr[i]), uint64(indptr[i + _1])):
                v = (uint64(cols[e]) >> shift_) * rows + i - first
                p = uint64(after[v])
                after[v] += 1
                indices[p] = cols[e]
                places[p] = positions[e] if positions.size > 0 else e


@kernel(">n1 <n1 n <I1 <I1 <I1 <F1 n <F2 >F2")
def spmm_tiles(ticket, cuts, tiles, indptr, indices, positions, values, step, x, out):
    """out (m, k) = A @ x, where whole vectors make up a row. Chunk t has the rows cuts[t] to
    cuts[t + 1] and lists them once for each tile, one list after the other; `indptr` has an offset
    for every row of every list, and an entry is the same for all: position, value, row of x."""
    xs, outs, k, by = x.ravel(), out.ravel(), uint64(x.shape[1]), uint64(step)
    one = uint64(WIDE // x.itemsize)
    two, three, four = uint64(2) * one, uint64(3) * one, uint64(4) * one
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        first, last = uint64(cuts[t]), uint64(cuts[t + 1])
        out[cuts[t] : cuts[t + 1]] = 0
        listed = first * uint64(tiles)
        begin = uint64(indptr[listed])
        for _ in range(tiles):
            for i in range(first, last):
                listed += _1
                end, j, stop = uint64(indptr[listed]), i * k, i * k + k
                away = uint64(0)  # from the beginning of a row
                while begin < end and j + four <= stop:
                    c0, c1 = load(zero(x), outs, j), load(zero(x), outs, j + one)
                    c2, c3 = load(zero(x), outs, j + two), load(zero(x), outs, j + three)
                    for e in range(begin, end):
                        a, b = values[place(positions, e, by)], uint64(indices[e]) * k + away
                        c0 = muladd(c0, a, load(c0, xs, b))
                        c1 = muladd(c1, a, load(c1, xs, b + one))
                        c2 = muladd(c2, a, load(c2, xs, b + two))
                        c3 = muladd(c3, a, load(c3, xs, b + three))
                    store(outs, j, c0)
                    store(outs, j + one, c1)
                    store(outs, j + two, c2)
                    store(outs, j + three, c3)
                    j, away = j + four, away + four
                while begin < end and j < stop:
                    c0 = load(zero(x), outs, j)
                    for e in range(begin, end):
                        b = uint64(indices[e]) * k + away
                        c0 = muladd(c0, values[place(positions, e, by)], load(c0, xs, b))
                    store(outs, j, c0)
                    j, away = j + one, away + one
                begin = end
