"""Numba kernels: a bias and an activation, a pass over rows (n, m). A task is a run of `chunk`
rows; `kind` is the place of the activation in `dense.ACTIVATIONS`.

Several short rows are taken as one, beside as many copies of the bias: whole vectors of any width.
"""

from __future__ import annotations

import numpy as np

from sparsegrad.backends.cpu_jit_kernels_segment import _exp
from sparsegrad.backends.cpu_jit_vector import FAST, draw, inlined, kernel

_LONG = 256  # numbers that are worth a loop of their own


@inlined(FAST)
def _together(width):
    """How many rows are taken as one."""
    return max(1, _LONG // width)


@kernel(">n1 n n <F2 <F1 >F2", "F")
def bias_act(ticket, chunk, kind, x, bias, out):
    """out (n, m) = activation(x + bias): relu, the logistic function, or nothing."""
    F, n, width = x.dtype.type, x.shape[0], x.shape[1]
    tasks, some = (n + chunk - 1) // chunk, _together(width)
    xs, outs = x.ravel(), out.ravel()
    biases = np.empty(some * width, x.dtype)
    for j in range(biases.size):
        biases[j] = bias[j % width]
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        stop = min((t + 1) * chunk, n) * width
        for a in range(t * chunk * width, stop, some * width):
            b = min(a + some * width, stop)
            row, line = xs[a:b], outs[a:b]
            if kind == 0:
                for j in range(row.size):
                    v = row[j] + biases[j]
                    line[j] = F(0) if v <= F(0) else v  # NaN stays
            elif kind == 1:
                for j in range(row.size):
                    line[j] = F(1) / (F(1) + _exp(-(row[j] + biases[j])))
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
