"""Numba kernels: steps of optimizers, one pass over parameter, gradient and state.

The formulas are those of `steps.py`, each written once for a run of elements: a part of the whole
arrays, or a row. State that is not there is an empty array.
"""

from __future__ import annotations

import math

import numpy as np
from numba import int64, uint64

from sparsegrad.backends.cpu_jit_vector import FAST, draw, inlined, kernel, prefetch_l2

_AHEAD = 16  # rows that are on their way from memory while one is changed
_LINE = 64  # bytes


# ---- formulas ----------------------------------------------------------------------------------
@inlined(FAST)
def _sgd(lr, momentum, weight_decay, nesterov, fresh, p, g, velocity):
    F = p.dtype.type
    rate, keep, decay, new = F(lr), F(momentum), F(weight_decay), F(fresh)
    if not velocity.size:
        for i in range(p.size):
            p[i] -= rate * (g[i] + decay * p[i])
        return
    own = F(1) if nesterov else F(0)
    share = keep if nesterov else F(1)
    for i in range(p.size):
        move = g[i] + decay * p[i]
        fast = keep * velocity[i] + new * move
        velocity[i] = fast
        p[i] -= rate * (own * move + share * fast)


@inlined(FAST)
def _adagrad(lr, weight_decay, eps, p, g, total):
    F = p.dtype.type
    rate, decay, least = F(lr), F(weight_decay), F(eps)
    for i in range(p.size):
        move = g[i] + decay * p[i]
        s = total[i] + move * move
        total[i] = s
        p[i] -= rate * move / (math.sqrt(s) + least)


@inlined(FAST)
def _rowwise_adagrad(lr, weight_decay, eps, p, g, total):
    """Of one row; returns its new total."""
    F = p.dtype.type
    decay, squares = F(weight_decay), F(0)
    for j in range(p.size):
        move = g[j] + decay * p[j]
        squares += move * move
    s = total + squares / F(p.size)
    rate = F(lr / (math.sqrt(s) + eps))
    for j in range(p.size):
        p[j] -= rate * (g[j] + decay * p[j])
    return s


@inlined(FAST)
def _rmsprop(lr, alpha, eps, weight_decay, momentum, centered, p, g, square, average, buffer):
    F = p.dtype.type
    rate, keep, new, least = F(lr), F(alpha), F(1 - alpha), F(eps)
    decay, speed = F(weight_decay), F(momentum)
    for i in range(p.size):
        move = g[i] + decay * p[i]
        s = keep * square[i] + new * (move * move)
        square[i] = s
        if average.size:
            a = keep * average[i] + new * move
            average[i] = a
            s = max(s - a * a, F(0))
        move /= math.sqrt(s) + least
        if buffer.size:
            move += speed * buffer[i]
            buffer[i] = move
        p[i] -= rate * move


@inlined(FAST)
def _adam(b1, b2, lr, first, second, eps, weight_decay, shrink, amsgrad, p, g, m, v, top):
    F = p.dtype.type
    keep1, new1, keep2, new2 = F(b1), F(1 - b1), F(b2), F(1 - b2)
    rate, scale, least = F(lr / first), F(1 / second), F(eps)
    decay, left = F(weight_decay), F(shrink)
    for i in range(p.size):
        held = left * p[i]
        move = g[i] + decay * held
        mean = keep1 * m[i] + new1 * move
        square = keep2 * v[i] + new2 * (move * move)
        m[i] = mean
        v[i] = square
        if top.size:
            square = max(square, top[i])
            top[i] = square
        p[i] = held - rate * mean / (math.sqrt(square) * scale + least)


# ---- every element -----------------------------------------------------------------------------
@kernel(">n1 n d d d b d >F1 <F1 >F1", "F")
def sgd(ticket, chunk, lr, momentum, weight_decay, nesterov, fresh, p, g, velocity):
    tasks = (p.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        a, b = t * chunk, (t + 1) * chunk
        _sgd(lr, momentum, weight_decay, nesterov, fresh, p[a:b], g[a:b], velocity[a:b])


@kernel(">n1 n d d d >F1 <F1 >F1", "F")
def adagrad(ticket, chunk, lr, weight_decay, eps, p, g, total):
    tasks = (p.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        a, b = t * chunk, (t + 1) * chunk
        _adagrad(lr, weight_decay, eps, p[a:b], g[a:b], total[a:b])


@kernel(">n1 n d d d >F2 <F2 >F1", "F")
def rowwise_adagrad(ticket, chunk, lr, weight_decay, eps, p, g, total):
    tasks = (total.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for r in range(t * chunk, min((t + 1) * chunk, total.size)):
            total[r] = _rowwise_adagrad(lr, weight_decay, eps, p[r], g[r], total[r])


@kernel(">n1 n d d d d d b >F1 <F1 >F1 >F1 >F1", "F")
def rmsprop(
    ticket, chunk, lr, alpha, eps, weight_decay, momentum, centered, p, g, square, average, buffer
):
    tasks = (p.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        a, b = t * chunk, (t + 1) * chunk
        parts = p[a:b], g[a:b], square[a:b], average[a:b], buffer[a:b]
        _rmsprop(lr, alpha, eps, weight_decay, momentum, centered, *parts)


@kernel(">n1 n d d d d d d d d b >F1 <F1 >F1 >F1 >F1", "F")
def adam(
    ticket, chunk, b1, b2, lr, first, second, eps, weight_decay, shrink, amsgrad, p, g, m, v, top
):
    tasks = (p.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        a, b = t * chunk, (t + 1) * chunk
        parts = p[a:b], g[a:b], m[a:b], v[a:b], top[a:b]
        _adam(b1, b2, lr, first, second, eps, weight_decay, shrink, amsgrad, *parts)


# ---- rows --------------------------------------------------------------------------------------
@inlined(FAST)
def _summed(i, perm, indptr, values, g):
    """g = the gradient of touched row i; whether it is not zero."""
    begin, end = i, i + 1
    if indptr.size:
        begin, end = int64(indptr[i]), int64(indptr[i + 1])
    for e in range(begin, end):
        source = e
        if perm.size:
            source = int64(perm[e])
            if e + _AHEAD < perm.size:
                _fetch(values, int64(perm[e + _AHEAD]), g.size)
        if e == begin:
            for j in range(g.size):
                g[j] = values[source, j]
        else:
            for j in range(g.size):
                g[j] += values[source, j]
    live = False
    for j in range(g.size):
        live |= g[j] != 0
    return live


@inlined(FAST)
def _fetch(array, row, width):
    """Start loading a row, or the first numbers of a longer one."""
    first = row * array.shape[1]
    for j in range(0, width, _LINE // array.itemsize):
        prefetch_l2(array, uint64(first + j))
    prefetch_l2(array, uint64(first + width - 1))  # a row may begin anywhere in a line


@kernel(">n1 <n1 <I1 <I1 <I1 <F2 d d d b d >F2 >F2")
def sgd_rows(
    ticket,
    cuts,
    rows,
    perm,
    indptr,
    values,
    lr,
    momentum,
    weight_decay,
    nesterov,
    fresh,
    p,
    velocity,
):
    g = np.empty(p.shape[1], p.dtype)
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        for i in range(cuts[t], cuts[t + 1]):
            if i + _AHEAD < rows.size:
                _fetch(p, int64(rows[i + _AHEAD]), g.size)
                if velocity.size:
                    _fetch(velocity, int64(rows[i + _AHEAD]), g.size)
            if _summed(i, perm, indptr, values, g):
                r = int64(rows[i])
                v = velocity[r] if velocity.size else g[:0]
                _sgd(lr, momentum, weight_decay, nesterov, fresh, p[r], g, v)


@kernel(">n1 <n1 <I1 <I1 <I1 <F2 d d d >F2 >F2")
def adagrad_rows(ticket, cuts, rows, perm, indptr, values, lr, weight_decay, eps, p, total):
    g = np.empty(p.shape[1], p.dtype)
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        for i in range(cuts[t], cuts[t + 1]):
            if i + _AHEAD < rows.size:
                _fetch(p, int64(rows[i + _AHEAD]), g.size)
                _fetch(total, int64(rows[i + _AHEAD]), g.size)
            if _summed(i, perm, indptr, values, g):
                r = int64(rows[i])
                _adagrad(lr, weight_decay, eps, p[r], g, total[r])


@kernel(">n1 <n1 <I1 <I1 <I1 <F2 d d d >F2 >F1")
def rowwise_adagrad_rows(ticket, cuts, rows, perm, indptr, values, lr, weight_decay, eps, p, total):
    g = np.empty(p.shape[1], p.dtype)
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        for i in range(cuts[t], cuts[t + 1]):
            if i + _AHEAD < rows.size:
                _fetch(p, int64(rows[i + _AHEAD]), g.size)
                prefetch_l2(total, uint64(rows[i + _AHEAD]))
            if _summed(i, perm, indptr, values, g):
                r = int64(rows[i])
                total[r] = _rowwise_adagrad(lr, weight_decay, eps, p[r], g, total[r])


@kernel(">n1 <n1 <I1 <I1 <I1 <F2 d d d d d b >F2 >F2 >F2 >F2")
def rmsprop_rows(
    ticket,
    cuts,
    rows,
    perm,
    indptr,
    values,
    lr,
    alpha,
    eps,
    weight_decay,
    momentum,
    centered,
    p,
    square,
    average,
    buffer,
):
    g = np.empty(p.shape[1], p.dtype)
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        for i in range(cuts[t], cuts[t + 1]):
            if i + _AHEAD < rows.size:
                _fetch(p, int64(rows[i + _AHEAD]), g.size)
                _fetch(square, int64(rows[i + _AHEAD]), g.size)
            if _summed(i, perm, indptr, values, g):
                r = int64(rows[i])
                a = average[r] if average.size else g[:0]
                b = buffer[r] if buffer.size else g[:0]
                state = p[r], g, square[r], a, b
                _rmsprop(lr, alpha, eps, weight_decay, momentum, centered, *state)


@kernel(">n1 <n1 <I1 <I1 <I1 <F2 d d d d d d d d b >F2 >F2 >F2 >F2 >n1")
def adam_rows(
    ticket,
    cuts,
    rows,
    perm,
    indptr,
    values,
    b1,
    b2,
    lr,
    first,
    second,
    eps,
    weight_decay,
    shrink,
    amsgrad,
    p,
    m,
    v,
    top,
    row_step,
):
    g = np.empty(p.shape[1], p.dtype)
    while True:
        t = draw(ticket)
        if t >= cuts.size - 1:
            return
        for i in range(cuts[t], cuts[t + 1]):
            if i + _AHEAD < rows.size:
                ahead = int64(rows[i + _AHEAD])
                _fetch(p, ahead, g.size)
                _fetch(m, ahead, g.size)
                _fetch(v, ahead, g.size)
            if not _summed(i, perm, indptr, values, g):
                continue
            r = int64(rows[i])
            if row_step.size:
                row_step[r] += 1
                first = 1 - b1 ** row_step[r]
                second = math.sqrt(1 - b2 ** row_step[r])
            parts = p[r], g, m[r], v[r], top[r] if top.size else g[:0]
            _adam(b1, b2, lr, first, second, eps, weight_decay, shrink, amsgrad, *parts)
