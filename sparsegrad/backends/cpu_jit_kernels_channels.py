"""Numba kernels: batches normalised channel by channel. Rows are (n, d * length), a run of `length`
numbers for each of d channels; a task is a run of `chunk` rows. What belongs to a channel is (d,).
"""

from __future__ import annotations

from sparsegrad.backends.cpu_jit_vector import draw, kernel


@kernel(">n1 n n <F2 >F2 >F2", "F")
def channel_moments(ticket, chunk, length, x, means, squares):
    """The mean of each channel (tasks, d) in the rows of each task, and the squared deviations
    from it: the rows are still in the cache when they are read again."""
    F, n, d = x.dtype.type, x.shape[0], means.shape[1]
    while True:
        t = draw(ticket)
        if t >= means.shape[0]:
            return
        start, stop = t * chunk, min((t + 1) * chunk, n)
        mean, square = means[t], squares[t]
        mean[:] = 0
        square[:] = 0
        for i in range(start, stop):
            row = x[i]
            if length == 1:
                for j in range(d):
                    mean[j] += row[j]
            else:
                for j in range(d):
                    run, total = row[j * length : (j + 1) * length], F(0)
                    for p in range(run.size):
                        total += run[p]
                    mean[j] += total
        for j in range(d):
            mean[j] /= F((stop - start) * length)
        for i in range(start, stop):
            row = x[i]
            if length == 1:
                for j in range(d):
                    square[j] += (row[j] - mean[j]) * (row[j] - mean[j])
            else:
                for j in range(d):
                    run, centre, total = row[j * length : (j + 1) * length], mean[j], F(0)
                    for p in range(run.size):
                        total += (run[p] - centre) * (run[p] - centre)
                    square[j] += total


@kernel(">n1 n n <F2 <F1 <F1 <F1 >F2", "F")
def channels_scaled(ticket, chunk, length, x, mean, factor, shift, out):
    """out = (x - mean) * factor + shift."""
    n, d = x.shape[0], mean.size
    tasks = (n + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row, line = x[i], out[i]
            if length == 1:
                for j in range(d):
                    line[j] = (row[j] - mean[j]) * factor[j] + shift[j]
            else:
                for j in range(d):
                    start, stop = j * length, (j + 1) * length
                    run, made = row[start:stop], line[start:stop]
                    centre, a, b = mean[j], factor[j], shift[j]
                    for p in range(run.size):
                        made[p] = (run[p] - centre) * a + b


@kernel(">n1 n n <F2 <F2 <F1 >F2 >F2", "F")
def channel_products(ticket, chunk, length, g, x, mean, sums, products):
    """Of each channel the sum of g and of g * (x - mean) over the rows of each task: (tasks, d)."""
    F, n, d = x.dtype.type, x.shape[0], mean.size
    while True:
        t = draw(ticket)
        if t >= sums.shape[0]:
            return
        total, product = sums[t], products[t]
        total[:] = 0
        product[:] = 0
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row, back = x[i], g[i]
            if length == 1:
                for j in range(d):
                    total[j] += back[j]
                    product[j] += back[j] * (row[j] - mean[j])
            else:
                for j in range(d):
                    start, stop = j * length, (j + 1) * length
                    run, up = row[start:stop], back[start:stop]
                    centre, a, b = mean[j], F(0), F(0)
                    for p in range(run.size):
                        a += up[p]
                        b += up[p] * (run[p] - centre)
                    total[j] += a
                    product[j] += b


@kernel(">n1 n n <F2 <F2 <F1 <F1 <F1 <F1 >F2", "F")
def channels_back(ticket, chunk, length, g, x, mean, factor, slope, shift, out):
    """out = g * factor + (x - mean) * slope + shift."""
    n, d = x.shape[0], mean.size
    tasks = (n + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row, back, line = x[i], g[i], out[i]
            if length == 1:
                for j in range(d):
                    line[j] = back[j] * factor[j] + (row[j] - mean[j]) * slope[j] + shift[j]
            else:
                for j in range(d):
                    start, stop = j * length, (j + 1) * length
                    run, up, made = row[start:stop], back[start:stop], line[start:stop]
                    centre, a, b, c = mean[j], factor[j], slope[j], shift[j]
                    for p in range(run.size):
                        made[p] = up[p] * a + (run[p] - centre) * b + c
