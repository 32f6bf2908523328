"""Numba kernels: a bias and an activation, a pass over rows (n, m), or at the end of a kernel that
makes them. A task is a run of `chunk` rows; `kind` is the place of the activation in
`dense.ACTIVATIONS`.

Several short rows are taken as one, beside as many copies of the bias: whole vectors of any width.
"""

from __future__ import annotations

import numpy as np

from sparsegrad.backends.cpu_jit_exp import exp
from sparsegrad.backends.cpu_jit_vector import FAST, draw, inlined, kernel

_LONG = 256  # numbers that are worth a loop of their own


@inlined(FAST)
def _together(width):
    """How many rows are taken as one."""
    return max(1, _LONG // width)


@inlined(FAST)
def tiled(bias):
    """The bias of as many rows as are taken as one."""
    out = np.empty(_together(max(1, bias.size)) * bias.size, bias.dtype)
    for j in range(out.size):
        out[j] = bias[j % bias.size]
    return out


@inlined(FAST)
def finish(kind, biases, rows):
    """rows = activation(rows + bias), flat: relu, the logistic function, or nothing. `biases`: see
    `tiled`. In place: with another output, vector code would have to know that it is another."""
    F = rows.dtype.type
    for a in range(0, rows.size, biases.size):
        row = rows[a : a + biases.size]
        if kind == 0:
            for j in range(row.size):
                v = row[j] + biases[j]
                row[j] = F(0) if v <= F(0) else v  # NaN stays
        elif kind == 1:
            for j in range(row.size):
                row[j] = F(1) / (F(1) + exp(-(row[j] + biases[j])))
        else:
            for j in range(row.size):
                row[j] += biases[j]


@kernel(">n1 n n <F2 <F1 >F2", "F")
def bias_act(ticket, chunk, kind, x, bias, out):
    """out (n, m) = activation(x + bias)."""
    F, n, width = x.dtype.type, x.shape[0], x.shape[1]
    tasks, xs, outs, biases = (n + chunk - 1) // chunk, x.ravel(), out.ravel(), tiled(bias)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        end = min((t + 1) * chunk, n) * width
        for a in range(t * chunk * width, end, biases.size):
            b = min(a + biases.size, end)
            row, line = xs[a:b], outs[a:b]
            if kind == 0:
                for j in range(row.size):
                    v = row[j] + biases[j]
                    line[j] = F(0) if v <= F(0) else v
            elif kind == 1:
                for j in range(row.size):
                    line[j] = F(1) / (F(1) + exp(-(row[j] + biases[j])))
            else:
                for j in range(row.size):
                    line[j] = row[j] + biases[j]


@kernel(">n1 n n <F2 <F2 >F2 >F2", "F")
def bias_act_grad(ticket, chunk, kind, g, y, out, sums):
    """out (n, m) = g times the slope of the activation with the result y, and sums (tasks, m) of
    the rows of each task."""
    F, n, width = y.dtype.type, y.shape[0], y.shape[1]
    some, gs, ys, outs = _together(width), g.ravel(), y.ravel(), out.ravel()
    totals = np.empty(some * width, y.dtype)
    while True:
        t = draw(ticket)
        if t >= sums.shape[0]:
            return
        totals[:] = 0
        stop = min((t + 1) * chunk, n) * width
        for a in range(t * chunk * width, stop, some * width):
            b = min(a + some * width, stop)
            back, row, line = gs[a:b], ys[a:b], outs[a:b]
            if kind == 0:
                for j in range(row.size):
                    v = back[j] if row[j] > F(0) else F(0)
                    line[j] = v
                    totals[j] += v
            elif kind == 1:
                for j in range(row.size):
                    v = back[j] * (row[j] * (F(1) - row[j]))
                    line[j] = v
                    totals[j] += v
            else:
                for j in range(row.size):
                    v = back[j] * (F(1) - row[j] * row[j])
                    line[j] = v
                    totals[j] += v
        total = sums[t]
        total[:] = totals[:width]
        for r in range(1, some):
            for j in range(width):
                total[j] += totals[r * width + j]
