"""Numba kernels: losses and normalisation of dense rows, a pass over each row while it is in the
cache. A task is a run of `chunk` rows; arrays that are not there are empty."""

from __future__ import annotations

import math

import numpy as np

from sparsegrad.backends.cpu_jit_exp import exp
from sparsegrad.backends.cpu_jit_vector import FAST, draw, inlined, kernel

LANES = 32  # maxima that are taken side by side: one of all would wait for the one before


# ---- cross entropy -----------------------------------------------------------------------------
@inlined(FAST)
def top_of(row, lanes):
    """The maximum of a row."""
    top, j = row[0], 0
    if row.size >= 2 * LANES:
        lanes[:] = top
        while j + LANES <= row.size:
            for k in range(LANES):
                v = row[j + k]
                lanes[k] = v if v > lanes[k] else lanes[k]
            j += LANES
        for k in range(LANES):
            top = lanes[k] if lanes[k] > top else top
    while j < row.size:
        top = row[j] if row[j] > top else top
        j += 1
    return top


@inlined(FAST)
def _mass(weight, classes):
    """The sum of the weights of all classes, each 1 where none are given."""
    if not weight.size:
        return classes
    total = weight.dtype.type(0)
    for j in range(weight.size):
        total += weight[j]
    return total


@kernel(">n1 n <F2 <n1 <F1 d >F1 >F1", "F")
def cross_entropy(ticket, chunk, x, classes, weight, smoothing, loss, lse):
    """loss (n,) and lse (n,) = log(sum(exp(x))) of logits x (n, C)."""
    F, n, width = x.dtype.type, x.shape[0], x.shape[1]
    own, spread = F(1 - smoothing), F(smoothing / width)
    mass = _mass(weight, F(width))
    lanes = np.empty(LANES, x.dtype)
    tasks = (n + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row = x[i]
            top, total = top_of(row, lanes), F(0)
            for j in range(width):
                total += exp(row[j] - top)
            high = math.log(total) + top
            lse[i] = high
            k = classes[i]
            if k < 0:
                loss[i] = 0
                continue
            value = own * (high - row[k])
            if weight.size:
                value *= weight[k]
            if smoothing:
                sums = F(0)
                if weight.size:
                    for j in range(width):
                        sums += weight[j] * row[j]
                else:
                    for j in range(width):
                        sums += row[j]
                value += spread * (mass * high - sums)
            loss[i] = value


@kernel(">n1 n <F1 <F2 <F1 <n1 <F1 d >F2", "F")
def cross_entropy_grad(ticket, chunk, g, x, lse, classes, weight, smoothing, out):
    """out (n, C) = g * (softmax(x) times the mass of the target - the target)."""
    F, n, width = x.dtype.type, x.shape[0], x.shape[1]
    own, spread = F(1 - smoothing), F(smoothing / width)
    mass = _mass(weight, F(width))
    tasks = (n + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row, line, k = x[i], out[i], classes[i]
            if k < 0:
                line[:] = 0
                continue
            share = own * weight[k] if weight.size else own
            scale, high = g[i], lse[i]
            factor = scale * (share + spread * mass)
            for j in range(width):
                line[j] = factor * exp(row[j] - high)
            if smoothing:
                if weight.size:
                    for j in range(width):
                        line[j] -= scale * spread * weight[j]
                else:
                    for j in range(width):
                        line[j] -= scale * spread
            line[k] -= scale * share


# ---- layer normalisation -----------------------------------------------------------------------
@kernel(">n1 n <F2 <F1 <F1 d >F2 >F1 >F1", "F")
def layer_norm(ticket, chunk, x, weight, bias, eps, out, mean, scale):
    """out (n, d) = (x - mean) * scale * weight + bias, with mean and scale (n,) of the rows."""
    F, n, width = x.dtype.type, x.shape[0], x.shape[1]
    tasks = (n + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row, line = x[i], out[i]
            total = F(0)
            for j in range(width):
                total += row[j]
            centre = total / F(width)
            squares = F(0)
            for j in range(width):
                squares += (row[j] - centre) * (row[j] - centre)
            r = F(1 / math.sqrt(squares / F(width) + F(eps)))
            mean[i], scale[i] = centre, r
            if weight.size:
                for j in range(width):
                    line[j] = (row[j] - centre) * r * weight[j]
            else:
                for j in range(width):
                    line[j] = (row[j] - centre) * r
            if bias.size:
                for j in range(width):
                    line[j] += bias[j]


@inlined(FAST)
def _back(g, row, weight, centre, r, line):
    """line = r * (h - mean(h) - z * mean(h * z)) with h = g * weight, z the normal row."""
    F = row.dtype.type
    sums, products = F(0), F(0)
    if weight.size:
        for j in range(row.size):
            h = g[j] * weight[j]
            line[j] = h
            sums += h
            products += h * (row[j] - centre)
    else:
        for j in range(row.size):
            line[j] = g[j]
            sums += g[j]
            products += g[j] * (row[j] - centre)
    a, b = sums / F(row.size), products * r * r / F(row.size)
    for j in range(row.size):
        line[j] = r * (line[j] - a - b * (row[j] - centre))


@kernel(">n1 n <F2 <F2 <F1 <F1 <F1 >F2", "F")
def layer_norm_grad(ticket, chunk, g, x, weight, mean, scale, out):
    """out (n, d): the gradient of `layer_norm` to x."""
    n = x.shape[0]
    tasks = (n + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            _back(g[i], x[i], weight, mean[i], scale[i], out[i])


@kernel(">n1 n <F2 <F2 <F1 <F1 >F2", "F")
def layer_norm_weight_grad(ticket, chunk, g, x, mean, scale, out):
    """out (tasks, d): the sums over the rows of a task of g times the normal x."""
    n, width = x.shape[0], x.shape[1]
    while True:
        t = draw(ticket)
        if t >= out.shape[0]:
            return
        total = out[t]
        total[:] = 0
        for i in range(t * chunk, min((t + 1) * chunk, n)):
            row, back, centre, r = x[i], g[i], mean[i], scale[i]
            for j in range(width):
                total[j] += back[j] * ((row[j] - centre) * r)
