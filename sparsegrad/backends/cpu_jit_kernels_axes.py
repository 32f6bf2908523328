"""Numba kernels: sums, extremes, scans and softmax along axes of dense arrays. Long sums are cut
into parts that are added later: rounding errors stay small, and few have work for every core."""

from __future__ import annotations

import math

import numpy as np

from sparsegrad.backends.cpu_jit_exp import exp
from sparsegrad.backends.cpu_jit_kernels_dense import LANES, top_of
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


@kernel(">n1 n b <F2 >F1", "F")
def extreme_rows(ticket, chunk, least, x, out):
    """out (m,): the maximum of each row of x (m, r), or the minimum; NaN where there is one."""
    n, lanes, line = x.shape[0], np.empty(LANES, x.dtype), np.empty(x.shape[1], x.dtype)
    tasks = (n + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row, wrong = x[i], 0
            for j in range(row.size):
                wrong += row[j] != row[j]
            if least:
                for j in range(row.size):
                    line[j] = -row[j]
                top = -top_of(line, lanes)
            else:
                top = top_of(row, lanes)
            out[i] = np.nan if wrong else top


@kernel(">n1 n <F2 >n1", "F")
def argmax_rows(ticket, chunk, x, out):
    """out (m,): where the first maximum of each row of x (m, r) is; NaN is largest."""
    n, lanes = x.shape[0], np.empty(LANES, x.dtype)
    tasks = (n + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row, wrong, at = x[i], 0, 0
            for j in range(row.size):
                wrong += row[j] != row[j]
            if wrong:
                while row[at] == row[at]:
                    at += 1
            else:
                top = top_of(row, lanes)
                while row[at] != top:
                    at += 1
            out[i] = at


@kernel(">n1 n b <F2 >n2", "F")
def argcummax_rows(ticket, chunk, largest, x, out):
    """out (m, r): where the largest (or smallest) element of a row of x (m, r) up to each one is,
    the last of equal ones; a NaN stays."""
    n = x.shape[0]
    tasks = (n + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row, places, at = x[i], out[i], 0
            top = row[0]
            for j in range(row.size):
                v = row[j]
                kept = (v >= top if largest else v <= top) | (v != v)
                top = v if kept else top
                at = j if kept else at
                places[j] = at


@kernel(">n1 n <F2 >F2", "F")
def cumsum_rows(ticket, chunk, x, out):
    """out (m, r): the sums up to each element of a row of x (m, r), in order."""
    n = x.shape[0]
    tasks = (n + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row, line = x[i], out[i]
            total = line[0] = row[0]
            for j in range(1, row.size):
                total += row[j]
                line[j] = total


@kernel(">n1 n b <F2 >F2", "F")
def softmax_rows(ticket, chunk, logarithm, x, out):
    """out (m, r): the softmax of each row of x, or its logarithm."""
    F, n, lanes = x.dtype.type, x.shape[0], np.empty(LANES, x.dtype)
    tasks = (n + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row, line = x[i], out[i]
            top, total = top_of(row, lanes), F(0)
            if logarithm:
                for j in range(row.size):
                    line[j] = row[j] - top  # stored: top + low would round large numbers
                    total += exp(row[j] - top)
                low = F(math.log(total))
                for j in range(row.size):
                    line[j] -= low
            else:
                for j in range(row.size):
                    v = exp(row[j] - top)
                    line[j] = v
                    total += v
                share = F(1) / total
                for j in range(row.size):
                    line[j] *= share


@kernel(">n1 n <F2 >F1", "F")
def logsumexp_rows(ticket, chunk, x, out):
    """out (m,): the logarithm of the sum of exp(x) over each row of x (m, r)."""
    F, n, lanes = x.dtype.type, x.shape[0], np.empty(LANES, x.dtype)
    tasks = (n + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row, total = x[i], F(0)
            top = top_of(row, lanes)
            shift = top if abs(top) < F(np.inf) else F(0)
            for j in range(row.size):
                total += exp(row[j] - shift)
            out[i] = F(math.log(total)) + shift
