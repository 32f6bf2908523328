"""Numba kernel: the entries of dense @ dense on a pattern, four at a time.

Chunks, positions and unsigned indices are as in `cpu_jit_kernels_spmm`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types, uint64
from numba.extending import intrinsic

from sparsegrad.backends.cpu_jit_vector import (
    SHORT,
    WIDE,
    ahead,
    draw,
    inlined,
    kernel,
    lanes,
    load,
    muladd,
    place,
    prefetch_l2,
    zero,
    zero_half,
    zero_short,
)

_AHEAD = uint64(16)  # entries between fetching a row of y and using it, or more: see `ahead`
_AHEAD_NARROW = uint64(32)  # the same where that row is one vector
_FETCH = 256  # bytes of a row to fetch; the processor notices the run and fetches the rest
_0, _1, _2, _3, _4 = uint64(0), uint64(1), uint64(2), uint64(3), uint64(4)


@intrinsic
def _sum_four(typingctx, a, b, c, d):
    """The sums of the elements of four vectors, each pairwise, in one tree of vector additions."""

    def codegen(context, builder, signature, args):
        lane, n = ir.IntType(32), a.lanes

        def pick(x: Any, y: Any, mask: list[int]) -> Any:
            return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(lane, n), mask))

        def join(x: Any, y: Any, groups: int) -> Any:
            """x and y hold `groups` sums each: both halves of every one added, those of x first."""
            size = n // groups
            starts = range(0, 2 * n, size)
            low = [start + i for start in starts for i in range(size // 2)]
            return builder.fadd(pick(x, y, low), pick(x, y, [i + size // 2 for i in low]))

        left, right = join(args[0], args[1], 1), join(args[2], args[3], 1)
        if n == 2:
            places = [(left, 0), (left, 1), (right, 0), (right, 1)]
        else:
            total, size = join(left, right, 2), n // 4
            while size > 1:
                size //= 2
                total = builder.fadd(total, pick(total, total, [(i + size) % n for i in range(n)]))
            places = [(total, group * n // 4) for group in range(4)]
        sums = [builder.extract_element(vector, lane(i)) for vector, i in places]
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(a.element, 4)(a, a, a, a), codegen


@kernel(">n1 <n2 <I1 <I1 <I1 <F3 <F3 >F2")
def sddmm(ticket, cuts, indptr, indices, positions, x, y, out):
    """out (nnz, H) = the entries of x @ y.T on the pattern; x (m, H, k), y (n, H, k)."""
    heads = uint64(x.shape[1])
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        if heads == _1:  # as a constant: an eighth to a quarter less time
            _chunk(_1, t, cuts, indptr, indices, positions, x, y, out)
        else:
            _chunk(heads, t, cuts, indptr, indices, positions, x, y, out)


@inlined(set())
def _chunk(heads, t, cuts, indptr, indices, positions, x, y, out):
    k = uint64(x.shape[2])
    if k == lanes(zero(x)):
        _one_vector(zero(x), heads, t, cuts, indptr, indices, positions, x, y, out)
    elif k == lanes(zero_half(x)):
        _one_vector(zero_half(x), heads, t, cuts, indptr, indices, positions, x, y, out)
    else:
        _any_width(heads, t, cuts, indptr, indices, positions, x, y, out)


@inlined(set())
def _one_vector(none, heads, t, cuts, indptr, indices, positions, x, y, out):
    """Rows that are one vector: that of x stays in a register."""
    k, nnz = lanes(none), uint64(indices.size)
    xs, ys, outs, stride = x.ravel(), y.ravel(), out.ravel(), heads * k
    ahead_y = ahead(y, _AHEAD_NARROW)
    owned, first, last = uint64(cuts[t, 0]), uint64(cuts[t, 1]), uint64(cuts[t + 1, 1])
    i = owned - _1 if first < min(uint64(indptr[owned]), last) else owned
    while i < uint64(cuts[t + 1, 0]):
        begin, end = max(uint64(indptr[i]), first), min(uint64(indptr[i + _1]), last)
        for h in range(heads):
            a, at = load(none, xs, i * stride + h * k), h * k
            e = begin
            while e < end:
                if ahead_y > _0 and e + ahead_y + _3 < nnz:
                    for f in range(e + ahead_y, e + ahead_y + _4):
                        prefetch_l2(ys, uint64(indices[f]) * stride + at)
                        prefetch_l2(ys, uint64(indices[f]) * stride + at + k - _1)
                # The last one again, rather than fewer than four.
                e1, e2, e3 = min(e + _1, end - _1), min(e + _2, end - _1), min(e + _3, end - _1)
                s0, s1, s2, s3 = _sum_four(
                    muladd(none, a, load(none, ys, uint64(indices[e]) * stride + at)),
                    muladd(none, a, load(none, ys, uint64(indices[e1]) * stride + at)),
                    muladd(none, a, load(none, ys, uint64(indices[e2]) * stride + at)),
                    muladd(none, a, load(none, ys, uint64(indices[e3]) * stride + at)),
                )
                outs[place(positions, e, heads) + h] = s0
                outs[place(positions, e1, heads) + h] = s1
                outs[place(positions, e2, heads) + h] = s2
                outs[place(positions, e3, heads) + h] = s3
                e += _4
        i += _1


@inlined(set())
def _any_width(heads, t, cuts, indptr, indices, positions, x, y, out):
    """Rows of any width, by wide vectors, short ones and single numbers."""
    k, nnz = uint64(x.shape[2]), uint64(indices.size)
    xs, ys, outs, stride = x.ravel(), y.ravel(), out.ravel(), heads * k
    wide, short = uint64(WIDE // y.itemsize), uint64(SHORT // y.itemsize)
    fetched, ahead_y = min(k, uint64(_FETCH // y.itemsize)), ahead(y, _AHEAD)
    none = x.dtype.type(0)  # a literal 0.0 would make float32 sums float64
    owned, first, last = uint64(cuts[t, 0]), uint64(cuts[t, 1]), uint64(cuts[t + 1, 1])
    i = owned - _1 if first < min(uint64(indptr[owned]), last) else owned
    while i < uint64(cuts[t + 1, 0]):
        begin, end = max(uint64(indptr[i]), first), min(uint64(indptr[i + _1]), last)
        for h in range(heads):
            row, at = i * stride + h * k, h * k
            e = begin
            while e < end:
                if ahead_y > _0 and e + ahead_y + _3 < nnz:
                    for f in range(e + ahead_y, e + ahead_y + _4):
                        b = uint64(indices[f]) * stride + at
                        for j in range(_0, fetched, wide):
                            prefetch_l2(ys, b + j)
                        prefetch_l2(ys, b + fetched - _1)
                e1, e2, e3 = min(e + _1, end - _1), min(e + _2, end - _1), min(e + _3, end - _1)
                b0 = uint64(indices[e]) * stride + at
                b1 = uint64(indices[e1]) * stride + at
                b2 = uint64(indices[e2]) * stride + at
                b3 = uint64(indices[e3]) * stride + at
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
                    s0, s1, s2, s3 = _sum_four(v0, v1, v2, v3)
                if j + short <= k:
                    w0, w1, w2, w3 = zero_short(y), zero_short(y), zero_short(y), zero_short(y)
                    while j + short <= k:
                        a4 = load(w0, xs, row + j)
                        w0 = muladd(w0, a4, load(w0, ys, b0 + j))
                        w1 = muladd(w1, a4, load(w0, ys, b1 + j))
                        w2 = muladd(w2, a4, load(w0, ys, b2 + j))
                        w3 = muladd(w3, a4, load(w0, ys, b3 + j))
                        j += short
                    r0, r1, r2, r3 = _sum_four(w0, w1, w2, w3)
                    s0, s1, s2, s3 = s0 + r0, s1 + r1, s2 + r2, s3 + r3
                while j < k:
                    s0 += xs[row + j] * ys[b0 + j]
                    s1 += xs[row + j] * ys[b1 + j]
                    s2 += xs[row + j] * ys[b2 + j]
                    s3 += xs[row + j] * ys[b3 + j]
                    j += _1
                outs[place(positions, e, heads) + h] = s0
                outs[place(positions, e1, heads) + h] = s1
                outs[place(positions, e2, heads) + h] = s2
                outs[place(positions, e3, heads) + h] = s3
                e += _4
        i += _1
