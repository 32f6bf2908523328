"""Numba kernels: a bias and an activation, a pass over rows (n, m). A task is a run of `chunk`
rows; `kind` is the place of the activation in `dense.ACTIVATIONS`."""

from __future__ import annotations

from sparsegrad.backends.cpu_jit_kernels_segment import _exp
from sparsegrad.backends.cpu_jit_vector import draw, kernel


@kernel(">n1 n n <F2 <F1 >F2", "F")
def bias_act(ticket, chunk, kind, x, bias, out):
    """out (n, m) = activation(x + bias): relu, or else the logistic function."""
    F, n, width = x.dtype.type, x.shape[0], x.shape[1]
    tasks = (n + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row, line = x[i], out[i]
            if kind == 0:
                for j in range(width):
                    v = row[j] + bias[j]
                    line[j] = F(0) if v <= F(0) else v  # NaN stays
            else:
                for j in range(width):
                    line[j] = F(1) / (F(1) + _exp(-(row[j] + bias[j])))


@kernel(">n1 n n <F2 <F2 >F2 >F2", "F")
def bias_act_grad(ticket, chunk, kind, g, y, out, sums):
    """out (n, m) = g times the slope of the activation with the result y, and sums (tasks, m) of
    the rows of each task."""
    F, n, width = y.dtype.type, y.shape[0], y.shape[1]
    while True:
        t = draw(ticket)
        if t >= sums.shape[0]:
            return
        total = sums[t]
        total[:] = 0
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            back, row, line = g[i], y[i], out[i]
            if kind == 0:
                for j in range(width):
                    v = back[j] if row[j] > F(0) else F(0)
                    line[j] = v
                    total[j] += v
            elif kind == 1:
                for j in range(width):
                    v = back[j] * (row[j] * (F(1) - row[j]))
                    line[j] = v
                    total[j] += v
            else:
                for j in range(width):
                    v = back[j] * (F(1) - row[j] * row[j])
                    line[j] = v
                    total[j] += v
