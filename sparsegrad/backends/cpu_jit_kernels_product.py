"""Numba kernels: sparse @ sparse on a known pattern, and sparse @ dense by maximum.

Rows are sorted by column, and values come in that order. Each thread has one array as long as a row
is wide, of sums, positions or bits; a row enters its entries, uses them, and takes them out again,
so the work is that of the products alone.
"""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint64
from numba.extending import intrinsic

from sparsegrad.backends.cpu_jit_vector import draw, inlined, kernel

_SORT = uint64(16)  # words of `top` for each product of a row, above which sorting is quicker
_0, _1, _6, _63 = uint64(0), uint64(1), uint64(6), uint64(63)


@intrinsic
def _lowest(typingctx, word):
    """Position of the lowest bit that is set."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], context.get_constant(types.boolean, 1))

    return types.uint64(types.uint64), codegen


@kernel(">n1 <n1 n <I1 <I1 <I1 <I1 <I1 <I1 <F1 <F1 >F1")
def product_scatter(
    ticket, cuts, n, l_indptr, l_cols, r_indptr, r_cols, m_indptr, m_cols, a, b, out
):
    """out (entries of the mask) = left @ right at the mask, every product of a row looked up in
    the mask's row."""
    at = np.full(n, -1, m_cols.dtype)
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        for i in range(cuts[t], cuts[t + 1]):
            first, last = int64(m_indptr[i]), int64(m_indptr[i + 1])
            for p in range(first, last):
                at[uint64(m_cols[p])] = p
                out[p] = 0
            if first < last:
                for e in range(int64(l_indptr[i]), int64(l_indptr[i + 1])):
                    line = uint64(l_cols[e])
                    scale = a[e]
                    for f in range(int64(r_indptr[line]), int64(r_indptr[line + uint64(1)])):
                        p = int64(at[uint64(r_cols[f])])
                        if p >= 0:
                            out[p] += scale * b[f]
            for p in range(first, last):
                at[uint64(m_cols[p])] = -1


@kernel(">n1 <n1 n <I1 <I1 <I1 <I1 <I1 <I1 <F1 <F1 >F1")
def product_gather(
    ticket, cuts, n, l_indptr, l_cols, c_indptr, c_rows, m_indptr, m_cols, a, b, out
):
    """out (entries of the mask) = left @ right at the mask, a dot product of a row and a column
    each: c_indptr and c_rows list right by columns, b in that order."""
    at = np.full(n, -1, m_cols.dtype)
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        for i in range(cuts[t], cuts[t + 1]):
            first, last = int64(l_indptr[i]), int64(l_indptr[i + 1])
            for e in range(first, last):
                at[uint64(l_cols[e])] = e
            for p in range(int64(m_indptr[i]), int64(m_indptr[i + 1])):
                total = a.dtype.type(0)
                line = uint64(m_cols[p])
                if first < last:
                    for f in range(int64(c_indptr[line]), int64(c_indptr[line + uint64(1)])):
                        e = int64(at[uint64(c_rows[f])])
                        if e >= 0:
                            total += a[e] * b[f]
                out[p] = total
            for e in range(first, last):
                at[uint64(l_cols[e])] = -1


@kernel(">n1 <n1 n <I1 <I1 <I1 <I1 <I1 <I1 <F1 <F1 >F1")
def product_sum(ticket, cuts, n, l_indptr, l_cols, r_indptr, r_cols, m_indptr, m_cols, a, b, out):
    """The same with a mask that holds every product: nothing has to be looked up."""
    row = np.zeros(n, out.dtype)
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        for i in range(cuts[t], cuts[t + 1]):
            for e in range(uint64(l_indptr[i]), uint64(l_indptr[i + 1])):
                line = uint64(l_cols[e])
                scale = a[e]
                for f in range(uint64(r_indptr[line]), uint64(r_indptr[line + _1])):
                    row[uint64(r_cols[f])] += scale * b[f]
            for p in range(uint64(m_indptr[i]), uint64(m_indptr[i + 1])):
                j = uint64(m_cols[p])
                out[p] = row[j]
                row[j] = 0


@kernel(">n1 n <I1 <I1 <I1 >n1", "I")
def product_work(ticket, tasks, l_indptr, l_cols, r_indptr, work):
    """work (m,) = the pairs of entries that each row of left @ right sums."""
    m = int64(work.size)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * m // tasks, (t + 1) * m // tasks):
            total = int64(0)
            for e in range(uint64(l_indptr[i]), uint64(l_indptr[i + 1])):
                line = uint64(l_cols[e])
                total += int64(r_indptr[line + _1]) - int64(r_indptr[line])
            work[i] = total


@inlined(set())
def _mark(bits, top, at, word):
    """Enter 64 columns, a bit for each, and in `top` that there are some."""
    bits[at] |= word
    top[at >> _6] |= uint64(word != _0) << (at & _63)


@kernel(">n1 <n1 n <I1 <I1 <I1 <I1 b <n1 >n1 >I1", "I")
def product_pattern(
    ticket, cuts, n, l_indptr, l_cols, r_indptr, r_cols, all_fit, starts, counts, cols
):
    """Distinct columns of each row of left @ right: how many there are, to `counts` (m,), and
    unless `cols` is empty the columns themselves, sorted, from `starts` (m + 1,) on. all_fit:
    whether there is room for repeated ones as well.

    A row of bits stays in the cache next to a core, and comes out sorted. `top` says where it is
    not empty."""
    fill = cols.size > 0
    bits = np.zeros(n // 64 + 1, np.uint64)
    top = np.zeros(bits.size // 64 + 1, np.uint64)
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        for i in range(cuts[t], cuts[t + 1]):
            begin = p = uint64(starts[i])
            first, last = uint64(l_indptr[i]), uint64(l_indptr[i + 1])
            if all_fit and uint64(starts[i + 1] - starts[i]) * _SORT < uint64(top.size):
                for e in range(first, last):
                    line = uint64(l_cols[e])
                    for f in range(uint64(r_indptr[line]), uint64(r_indptr[line + _1])):
                        cols[p] = r_cols[f]
                        p += _1
                cols[begin:p].sort()
                end, p = p, begin
                for e in range(begin, end):
                    j = cols[e]
                    if p == begin or j != cols[p - _1]:
                        cols[p] = j
                        p += _1
                counts[i] = p - begin
                continue
            for e in range(first, last):
                line, at, word = uint64(l_cols[e]), _0, _0
                for f in range(uint64(r_indptr[line]), uint64(r_indptr[line + _1])):
                    j = uint64(r_cols[f])
                    if j >> _6 != at:
                        _mark(bits, top, at, word)
                        at, word = j >> _6, _0
                    word |= _1 << (j & _63)
                _mark(bits, top, at, word)
            for t_at in range(uint64(top.size)):
                words = top[t_at]
                top[t_at] = _0
                while words != _0:
                    at = (t_at << _6) + _lowest(words)
                    words &= words - _1
                    word = bits[at]
                    bits[at] = _0
                    while word != _0:
                        if fill:
                            cols[p] = (at << _6) + _lowest(word)
                        word &= word - _1
                        p += _1
            counts[i] = p - begin


@kernel(">n1 <n1 <I1 <I1 <F2 <F3 b >F3 >n3")
def spmm_extreme(ticket, cuts, indptr, cols, values, x, least, out, entry):
    """out (m, H, k) = the largest or least values[e] * x[cols[e]] of a row, entry = its e; the
    first wins ties, nan wins over numbers. An empty row gives 0 and -1."""
    heads, k = x.shape[1], x.shape[2]
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        for i in range(cuts[t], cuts[t + 1]):
            first, last = int64(indptr[i]), int64(indptr[i + 1])
            for h in range(heads):
                best, where = out[i, h], entry[i, h]
                for j in range(k):
                    best[j], where[j] = 0, -1
                for e in range(first, last):
                    line, scale = x[uint64(cols[e]), h], values[e, h]
                    if e == first:
                        for j in range(k):
                            best[j], where[j] = scale * line[j], e
                        continue
                    for j in range(k):
                        p = scale * line[j]
                        high = p < best[j] if least else p > best[j]
                        if high or (p != p and best[j] == best[j]):
                            best[j], where[j] = p, e
