"""Numba kernels: sums of dense arrays along an axis. What is summed is cut into parts, whose sums
are added later: rounding errors stay small, and a few long sums have work for every core."""

from __future__ import annotations

import numpy as np

from sparsegrad.backends.cpu_jit_vector import draw, kernel

_LONG = 256  # numbers that are worth a loop of their own


@kernel(">n1 n n <F2 >F2", "F")
def sum_rows(ticket, chunk, length, x, out):
    """out (m, s) of x (m, r): out[i, k] is the sum of the k-th run of `length` numbers of row i. A
    task is a run of `chunk` elements of out."""
    F, parts, width = x.dtype.type, out.shape[1], x.shape[1]
    sums, tasks = out.ravel(), (out.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for e in range(t * chunk, min((t + 1) * chunk, out.size)):
            start = (e % parts) * length
            row, total = x[e // parts, start : min(start + length, width)], F(0)
            for j in range(row.size):
                total += row[j]
            sums[e] = total


@kernel(">n1 n n <F3 >F3", "F")
def sum_columns(ticket, chunk, length, x, out):
    """out (m, s, b) of x (m, r, b): out[i, k] is the sum of the k-th run of `length` rows of x[i].
    A task is a run of `chunk` of them. Several short rows are taken as one: whole vectors."""
    parts, width, count = out.shape[1], x.shape[2], x.shape[0] * out.shape[1]
    some = max(1, min(_LONG // width, length // 8))
    totals, tasks = np.empty(some * width, x.dtype), (count + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for e in range(t * chunk, min((t + 1) * chunk, count)):
            start = (e % parts) * length
            rows = x[e // parts, start : min(start + length, x.shape[1])].ravel()
            totals[:] = 0
            for a in range(0, rows.size, totals.size):
                row = rows[a : min(a + totals.size, rows.size)]
                for j in range(row.size):
                    totals[j] += row[j]
            total = out[e // parts, e % parts]
            total[:] = totals[:width]
            for r in range(1, some):
                for j in range(width):
                    total[j] += totals[r * width + j]
