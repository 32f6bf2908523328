"""Numba kernels: sparse @ dense, with a block of an output row in registers while entries pass.

All but the last take the same arguments and compute out (m, H, k) = A @ x. values (nnz, H), or
(1, H) with step 0. The values of entry e are at positions[e], or at e if there are no positions.
What chunk t finds of a row that began in an earlier chunk goes to row m + t of `out`. With a `bias`
(H k,), rows that are whole become activation(row + bias) while they are in the cache; see
`cpu_jit_kernels_bias.finish`.

A row that whole vectors do not divide is covered by vectors that overlap: what lies in two of them
is computed twice, and no loop over single columns is left. The functions that walk a chunk are
apart from the kernels so that the compiler moves what is the same for a whole call (are there
positions, is x far away) out of the loops over entries. What counts is unsigned: an index that may
be negative is looked at before every use.
"""

from __future__ import annotations

from numba import int64, uint64

from sparsegrad.backends.cpu_jit_kernels_bias import finish, tiled
from sparsegrad.backends.cpu_jit_vector import (
    HALF,
    SHORT,
    WIDE,
    add,
    ahead,
    draw,
    inlined,
    kernel,
    lanes,
    load,
    muladd,
    place,
    prefetch_l2,
    store,
    zero,
    zero_half,
    zero_short,
)

_AHEAD = uint64(16)  # entries between fetching a row of x and using it, or more: see `ahead`
_AHEAD_NARROW = uint64(32)  # the same where that row is one or two vectors
_0, _1, _2 = uint64(0), uint64(1), uint64(2)
SPMM = ">n1 <n2 <I1 <I1 <I1 <F2 n <F3 n <F1 >F3"


@inlined(set())
def finish_chunk(t, cuts, indptr, kind, biases, outs, width):
    """The last pass over the rows of a chunk that have all of their entries in it."""
    owned, stop = cuts[t, 0], cuts[t + 1, 0]
    if stop > owned and indptr[stop] > cuts[t + 1, 1]:
        stop -= 1
    finish(kind, biases, outs[owned * width : stop * width])


@kernel(SPMM)
def spmm(ticket, cuts, indptr, indices, positions, values, step, x, kind, bias, out):
    """Rows of more than two wide vectors a head: four at a time, the rest by two or one."""
    m, heads, k = uint64(indptr.size - 1), uint64(x.shape[1]), uint64(x.shape[2])
    xs, outs = x.ravel(), out.ravel()
    stride, by, nnz = heads * k, uint64(step) * heads, uint64(indices.size)
    wide = uint64(WIDE // x.itemsize)
    two, three, four = uint64(2) * wide, uint64(3) * wide, uint64(4) * wide
    scales = values.ravel()
    ahead_x, ahead_a = ahead(x, _AHEAD), ahead(values, _AHEAD) if positions.size > 0 else _0
    biases = tiled(bias)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        owned, first, last = uint64(cuts[t, 0]), uint64(cuts[t, 1]), uint64(cuts[t + 1, 1])
        i, end_row = owned, uint64(cuts[t + 1, 0])
        if first < min(uint64(indptr[owned]), last):
            i -= _1
        while i < end_row:
            begin, end = max(uint64(indptr[i]), first), min(uint64(indptr[i + _1]), last)
            row = (i if i >= owned else m + uint64(t)) * stride
            for h in range(heads):
                j, stop = h * k, (h + uint64(1)) * k
                while j + two < stop:
                    j0 = j if j + four <= stop or k < four else stop - four
                    j1, j2 = j0 + wide, min(j0 + two, stop - wide)
                    j3 = min(j0 + three, stop - wide)
                    c0, c1, c2, c3 = zero(x), zero(x), zero(x), zero(x)
                    for e in range(begin, end):
                        if ahead_x > _0 and e + ahead_x < nnz:
                            b = uint64(indices[e + ahead_x]) * stride
                            prefetch_l2(xs, b + j0)
                            prefetch_l2(xs, b + j1)
                            prefetch_l2(xs, b + j2)
                            prefetch_l2(xs, b + j3)
                            prefetch_l2(xs, b + j3 + wide - _1)
                        if ahead_a > _0 and e + ahead_a < nnz:
                            prefetch_l2(scales, uint64(positions[e + ahead_a]) * heads + h)
                        a = scales[place(positions, e, by) + h]
                        b = uint64(indices[e]) * stride
                        c0 = muladd(c0, a, load(c0, xs, b + j0))
                        c1 = muladd(c1, a, load(c1, xs, b + j1))
                        c2 = muladd(c2, a, load(c2, xs, b + j2))
                        c3 = muladd(c3, a, load(c3, xs, b + j3))
                    store(outs, row + j0, c0)
                    store(outs, row + j1, c1)
                    store(outs, row + j2, c2)
                    store(outs, row + j3, c3)
                    j += four
                if j < stop:
                    j0, j1 = min(j, stop - wide), stop - wide
                    c0, c1 = zero(x), zero(x)
                    for e in range(begin, end):
                        if ahead_x > _0 and e + ahead_x < nnz:
                            b = uint64(indices[e + ahead_x]) * stride
                            prefetch_l2(xs, b + j0)
                            prefetch_l2(xs, b + j1)
                            prefetch_l2(xs, b + j1 + wide - _1)
                        if ahead_a > _0 and e + ahead_a < nnz:
                            prefetch_l2(scales, uint64(positions[e + ahead_a]) * heads + h)
                        a = scales[place(positions, e, by) + h]
                        b = uint64(indices[e]) * stride
                        c0 = muladd(c0, a, load(c0, xs, b + j0))
                        c1 = muladd(c1, a, load(c1, xs, b + j1))
                    store(outs, row + j0, c0)
                    store(outs, row + j1, c1)
            i += _1
        if biases.size > 0:
            finish_chunk(t, cuts, indptr, kind, biases, outs, int64(stride))


@kernel(SPMM)
def spmm_narrow(ticket, cuts, indptr, indices, positions, values, step, x, kind, bias, out):
    """Rows of at most two wide vectors and at least a short one, without heads."""
    k = uint64(x.shape[2])
    wide, half = uint64(WIDE // x.itemsize), uint64(HALF // x.itemsize)
    short, biases, outs = uint64(SHORT // x.itemsize), tiled(bias), out.ravel()
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        if k > wide:
            _two_vectors(zero(x), t, cuts, indptr, indices, positions, values, step, x, out)
        elif k == wide:
            _one_vector(zero(x), t, cuts, indptr, indices, positions, values, step, x, out)
        elif k > half:
            _two_vectors(zero_half(x), t, cuts, indptr, indices, positions, values, step, x, out)
        elif k == half:
            _one_vector(zero_half(x), t, cuts, indptr, indices, positions, values, step, x, out)
        elif k > short:
            _two_vectors(zero_short(x), t, cuts, indptr, indices, positions, values, step, x, out)
        else:
            _one_vector(zero_short(x), t, cuts, indptr, indices, positions, values, step, x, out)
        if biases.size > 0:
            finish_chunk(t, cuts, indptr, kind, biases, outs, int64(k))


# Two entries at a time, each with its own sum: a single one would wait for every addition.
@inlined(set())
def _one_vector(none, t, cuts, indptr, indices, positions, values, step, x, out):
    m, k, by, nnz = uint64(indptr.size - 1), lanes(none), uint64(step), uint64(indices.size)
    xs, outs, scales = x.ravel(), out.ravel(), values.ravel()
    ahead_x = ahead(x, _AHEAD_NARROW)
    ahead_a = ahead(values, _AHEAD_NARROW) if positions.size > 0 else _0
    owned, first, last = uint64(cuts[t, 0]), uint64(cuts[t, 1]), uint64(cuts[t + 1, 1])
    i, stop, e = owned, uint64(cuts[t + 1, 0]), first
    if first < min(uint64(indptr[owned]), last):
        i -= _1
    while i < stop:
        end = min(uint64(indptr[i + _1]), last)
        c0, c1 = none, none
        while e + _2 <= end:
            if ahead_x > _0 and e + ahead_x + _1 < nnz:
                for f in range(e + ahead_x, e + ahead_x + _2):
                    prefetch_l2(xs, uint64(indices[f]) * k)
                    prefetch_l2(xs, uint64(indices[f]) * k + k - _1)
            if ahead_a > _0 and e + ahead_a + _1 < nnz:
                prefetch_l2(scales, uint64(positions[e + ahead_a]))
                prefetch_l2(scales, uint64(positions[e + ahead_a + _1]))
            a0, a1 = scales[place(positions, e, by)], scales[place(positions, e + _1, by)]
            c0 = muladd(c0, a0, load(none, xs, uint64(indices[e]) * k))
            c1 = muladd(c1, a1, load(none, xs, uint64(indices[e + _1]) * k))
            e += _2
        if e < end:
            a0 = scales[place(positions, e, by)]
            c0 = muladd(c0, a0, load(none, xs, uint64(indices[e]) * k))
            e += _1
        store(outs, (i if i >= owned else m + uint64(t)) * k, add(c0, c1))
        i += _1


@inlined(set())
def _two_vectors(none, t, cuts, indptr, indices, positions, values, step, x, out):
    m, k, by, nnz = uint64(indptr.size - 1), uint64(x.shape[2]), uint64(step), uint64(indices.size)
    xs, outs, scales = x.ravel(), out.ravel(), values.ravel()
    ahead_x = ahead(x, _AHEAD_NARROW)
    ahead_a = ahead(values, _AHEAD_NARROW) if positions.size > 0 else _0
    second = k - lanes(none)
    owned, first, last = uint64(cuts[t, 0]), uint64(cuts[t, 1]), uint64(cuts[t + 1, 1])
    i, stop, e = owned, uint64(cuts[t + 1, 0]), first
    if first < min(uint64(indptr[owned]), last):
        i -= _1
    while i < stop:
        end = min(uint64(indptr[i + _1]), last)
        c0, c1, d0, d1 = none, none, none, none
        while e + _2 <= end:
            if ahead_x > _0 and e + ahead_x + _1 < nnz:
                for f in range(e + ahead_x, e + ahead_x + _2):
                    prefetch_l2(xs, uint64(indices[f]) * k)
                    prefetch_l2(xs, uint64(indices[f]) * k + second)
                    prefetch_l2(xs, uint64(indices[f]) * k + k - _1)
            if ahead_a > _0 and e + ahead_a + _1 < nnz:
                prefetch_l2(scales, uint64(positions[e + ahead_a]))
                prefetch_l2(scales, uint64(positions[e + ahead_a + _1]))
            a0, a1 = scales[place(positions, e, by)], scales[place(positions, e + _1, by)]
            b0, b1 = uint64(indices[e]) * k, uint64(indices[e + _1]) * k
            c0 = muladd(c0, a0, load(none, xs, b0))
            d0 = muladd(d0, a0, load(none, xs, b0 + second))
            c1 = muladd(c1, a1, load(none, xs, b1))
            d1 = muladd(d1, a1, load(none, xs, b1 + second))
            e += _2
        if e < end:
            a0, b0 = scales[place(positions, e, by)], uint64(indices[e]) * k
            c0 = muladd(c0, a0, load(none, xs, b0))
            d0 = muladd(d0, a0, load(none, xs, b0 + second))
            e += _1
        row = (i if i >= owned else m + uint64(t)) * k
        store(outs, row, add(c0, c1))
        store(outs, row + second, add(d0, d1))
        i += _1


@kernel(SPMM)
def spmm_few(ticket, cuts, indptr, indices, positions, values, step, x, kind, bias, out):
    """Rows of two or three numbers, which no vector is as short as, without heads."""
    m, k, by, nnz = uint64(indptr.size - 1), uint64(x.shape[2]), uint64(step), uint64(indices.size)
    xs, outs, scales, third = x.ravel(), out.ravel(), values.ravel(), uint64(x.shape[2]) - _1
    ahead_x, biases = ahead(x, _AHEAD_NARROW), tiled(bias)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        owned, first, last = uint64(cuts[t, 0]), uint64(cuts[t, 1]), uint64(cuts[t + 1, 1])
        i, stop, e = owned, uint64(cuts[t + 1, 0]), first
        if first < min(uint64(indptr[owned]), last):
            i -= _1
        while i < stop:
            end = min(uint64(indptr[i + _1]), last)
            c0 = c1 = c2 = x.dtype.type(0)
            while e < end:
                if ahead_x > _0 and e + ahead_x < nnz:
                    prefetch_l2(xs, uint64(indices[e + ahead_x]) * k)
                a, b = scales[place(positions, e, by)], uint64(indices[e]) * k
                c0 += a * xs[b]
                c1 += a * xs[b + _1]
                c2 += a * xs[b + third]  # of two numbers the second again
                e += _1
            row = (i if i >= owned else m + uint64(t)) * k
            outs[row] = c0
            outs[row + _1] = c1
            outs[row + third] = c2
            i += _1
        if biases.size > 0:
            finish_chunk(t, cuts, indptr, kind, biases, outs, int64(k))


@kernel(SPMM)
def spmm_heads(ticket, cuts, indptr, indices, positions, values, step, x, kind, bias, out):
    """As `spmm_narrow`, with several heads: four of them in one pass over the entries of a row."""
    k, biases, outs = uint64(x.shape[2]), tiled(bias), out.ravel()
    wide, half = uint64(WIDE // x.itemsize), uint64(HALF // x.itemsize)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        if k >= wide:
            _four_heads(zero(x), t, cuts, indptr, indices, positions, values, step, x, out)
        elif k >= half:
            _four_heads(zero_half(x), t, cuts, indptr, indices, positions, values, step, x, out)
        else:
            _four_heads(zero_short(x), t, cuts, indptr, indices, positions, values, step, x, out)
        if biases.size > 0:
            finish_chunk(t, cuts, indptr, kind, biases, outs, bias.size)


@inlined(set())
def _four_heads(none, t, cuts, indptr, indices, positions, values, step, x, out):
    m, heads, k = uint64(indptr.size - 1), uint64(x.shape[1]), uint64(x.shape[2])
    xs, outs, scales = x.ravel(), out.ravel(), values.ravel()
    stride, by, width, nnz = heads * k, uint64(step) * heads, lanes(none), uint64(indices.size)
    ahead_x, ahead_a = ahead(x, _AHEAD), ahead(values, _AHEAD) if positions.size > 0 else _0
    owned, first, last = uint64(cuts[t, 0]), uint64(cuts[t, 1]), uint64(cuts[t + 1, 1])
    i, stop = owned, uint64(cuts[t + 1, 0])
    if first < min(uint64(indptr[owned]), last):
        i -= _1
    while i < stop:
        begin, end = max(uint64(indptr[i]), first), min(uint64(indptr[i + _1]), last)
        row = (i if i >= owned else m + uint64(t)) * stride
        h = uint64(0)
        while h < heads:
            # The last ones again, rather than fewer than four.
            h1, h2 = min(h + _1, heads - _1), min(h + _2, heads - _1)
            h3 = min(h2 + _1, heads - _1)
            j = uint64(0)
            while j < k:
                j = min(j, k - width)
                j0, j1, j2, j3 = h * k + j, h1 * k + j, h2 * k + j, h3 * k + j
                c0, c1, c2, c3 = none, none, none, none
                for e in range(begin, end):
                    if ahead_x > _0 and e + ahead_x < nnz:
                        b = uint64(indices[e + ahead_x]) * stride
                        prefetch_l2(xs, b + j0)
                        prefetch_l2(xs, b + j1)
                        prefetch_l2(xs, b + j2)
                        prefetch_l2(xs, b + j3)
                    if ahead_a > _0 and e + ahead_a < nnz:
                        prefetch_l2(scales, uint64(positions[e + ahead_a]) * by + h)
                    a, b = place(positions, e, by), uint64(indices[e]) * stride
                    c0 = muladd(c0, scales[a + h], load(none, xs, b + j0))
                    c1 = muladd(c1, scales[a + h1], load(none, xs, b + j1))
                    c2 = muladd(c2, scales[a + h2], load(none, xs, b + j2))
                    c3 = muladd(c3, scales[a + h3], load(none, xs, b + j3))
                store(outs, row + j0, c0)
                store(outs, row + j1, c1)
                store(outs, row + j2, c2)
                store(outs, row + j3, c3)
                j += width
            h += uint64(4)
        i += _1


@kernel(">n1 <n2 <I1 <I1 <F2 n <F3 >F4")
def spmm_scattered(ticket, cuts, indptr, indices, values, step, x, parts):
    """parts[t] (m, H, k) = what the columns of chunk t give to A @ x; A lists entries by column.

    Values and x are read in order, and a vector of x stays in a register for its whole column.
    """
    heads, k = uint64(x.shape[1]), uint64(x.shape[2])
    xs, outs, one = x.ravel(), parts.ravel(), uint64(1)
    stride, by = heads * k, uint64(step)
    wide, short = uint64(WIDE // x.itemsize), uint64(SHORT // x.itemsize)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        parts[t] = 0
        base = uint64(t) * uint64(parts.shape[1]) * stride
        for i in range(cuts[t, 0], cuts[t + 1, 0]):
            begin, end = int64(indptr[i]), int64(indptr[i + 1])
            for h in range(heads):
                row, to = uint64(i) * stride + h * k, base + h * k
                j = uint64(0)
                while j + wide <= k:
                    v = load(zero(x), xs, row + j)
                    for e in range(begin, end):
                        b = to + uint64(indices[e]) * stride + j
                        store(outs, b, muladd(load(v, outs, b), values[uint64(e) * by, h], v))
                    j += wide
                while j + short <= k:
                    w = load(zero_short(x), xs, row + j)
                    for e in range(begin, end):
                        b = to + uint64(indices[e]) * stride + j
                        store(outs, b, muladd(load(w, outs, b), values[uint64(e) * by, h], w))
                    j += short
                while j < k:
                    for e in range(begin, end):
                        b = to + uint64(indices[e]) * stride + j
                        outs[b] += values[uint64(e) * by, h] * xs[row + j]
                    j += one
