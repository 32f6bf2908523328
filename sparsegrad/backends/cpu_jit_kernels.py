"""Numba kernels: chunks of rows, and products of one column.

Every kernel that is launched draws chunks from `ticket`. A chunk is a fixed share of the entries,
so results do not depend on the number of threads. Gathered indices are unsigned 64-bit inside: no
branch for negative ones, no overflow of offsets.
"""

from __future__ import annotations

from numba import int64, uint64

from sparsegrad.backends.cpu_jit_kernels_bias import tiled
from sparsegrad.backends.cpu_jit_kernels_spmm import SPMM, finish_chunk
from sparsegrad.backends.cpu_jit_vector import draw, kernel, place


# ---- chunks ------------------------------------------------------------------------------------
@kernel("<I1 n b >n2", "I")
def cut_rows(indptr, n, split, cuts):
    """Cut rows and their entries into n chunks of equal size.

    cuts (n + 1, 2): the first row that starts in a chunk, and its first entry. An entry before
    the start of that row belongs to a row so long that it was cut; only where `split`.
    """
    m = indptr.size - 1
    total = int64(indptr[m]) + m
    longest = max(int64(1), total // n)
    for c in range(n + 1):
        target = c * total // n
        low, high = int64(0), int64(m)  # the last row with indptr[row] + row <= target
        while low < high:
            middle = (low + high + 1) // 2
            if int64(indptr[middle]) + middle <= target:
                low = middle
            else:
                high = middle - 1
        cuts[c, 0], cuts[c, 1] = low, indptr[low]
        long = split and low < m and indptr[low + 1] - indptr[low] > longest
        if long and target - low > indptr[low]:
            cuts[c, 0], cuts[c, 1] = low + 1, target - low


# ---- products of one column ----------------------------------------------------------------------
@kernel(SPMM)
def spmv(ticket, cuts, indptr, indices, positions, values, step, x, kind, bias, out):
    """`spmm` for k = 1: sums along the entries instead of across the columns."""
    m = indptr.size - 1
    permuted = positions.size > 0
    by, one, heads = uint64(step), uint64(1), uint64(x.shape[1])
    xs, scales, outs, biases = x.ravel(), values.ravel(), out.ravel(), tiled(bias)
    while True:
        t = draw(ticket)
        if t >= cuts.shape[0] - 1:
            return
        owned, first, last = cuts[t, 0], cuts[t, 1], cuts[t + 1, 1]
        lead = 1 if first < min(int64(indptr[owned]), last) else 0
        if x.shape[1] == 1:  # no heads: on from entry to entry, one bound a row
            entry, bound = uint64(first), uint64(last)
            for i in range(owned - lead, cuts[t + 1, 0]):
                stop = min(uint64(indptr[uint64(i) + one]), bound)
                total = x.dtype.type(0)
                if permuted:
                    while entry < stop:
                        scale = scales[uint64(positions[entry]) * by]
                        total += scale * xs[uint64(indices[entry])]
                        entry += one
                else:
                    while entry < stop:
                        total += scales[entry * by] * xs[uint64(indices[entry])]
                        entry += one
                outs[uint64(i if i >= owned else m + t)] = total
            if biases.size > 0:
                finish_chunk(t, cuts, indptr, kind, biases, outs, 1)
            continue
        for i in range(owned - lead, cuts[t + 1, 0]):
            begin = uint64(max(int64(indptr[i]), first))
            end = uint64(min(int64(indptr[i + 1]), last))
            row = uint64(i if i >= owned else m + t) * heads
            for h in range(heads):
                total = x.dtype.type(0)
                for entry in range(begin, end):
                    scale = scales[place(positions, entry, by * heads) + h]
                    total += scale * xs[uint64(indices[entry]) * heads + h]
                outs[row + h] = total
        if biases.size > 0:
            finish_chunk(t, cuts, indptr, kind, biases, outs, bias.size)
