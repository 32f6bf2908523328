"""Numba kernels: random numbers, the same bits as `philox.py` makes. A task makes whole blocks.

Compiled without the freedom to fuse or reorder that other kernels have: see `philox.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, float64, int32, int64, uint32, uint64

from sparsegrad.backends import philox
from sparsegrad.backends.cpu_jit_exp import bitcast
from sparsegrad.backends.cpu_jit_launch import Kernel
from sparsegrad.backends.cpu_jit_vector import draw, inlined

_M0, _M1 = philox.MULTIPLIERS
_W0, _W1 = philox.WEYL
_CENTRE, _MIDDLE, _TAIL = philox.CENTRE, philox.MIDDLE, philox.TAIL
_LOG, _LN2, _ROOT_HALF = philox.LOG, philox.LN2, philox.ROOT_HALF
_BUFFER = 1024  # numbers that are made at a time: stay in the L1 cache


def _exact(params: str, letters: str = "") -> Any:
    return lambda function: Kernel(function, params, letters, set())


@inlined(set())
def block(at, k0, k1):
    """The four words of a block."""
    c0, c1, c2, c3 = uint32(at), uint32(at >> uint64(32)), uint32(0), uint32(0)
    for r in range(10):
        first, second = uint64(c0) * uint64(_M0), uint64(c2) * uint64(_M1)
        c0 = uint32((second >> uint64(32)) ^ uint64(c1) ^ (k0 + uint64(r * _W0)))
        c2 = uint32((first >> uint64(32)) ^ uint64(c3) ^ (k1 + uint64(r * _W1)))
        c1, c3 = uint32(second), uint32(first)
    return c0, c1, c2, c3


@_exact(">n1 n n n n n >f1")
def random_uniform_32(ticket, tasks, k0, k1, offset, bits, out):
    """out = words, cut to `bits`, as fractions."""
    n, k0, k1, offset = out.size, uint64(k0), uint64(k1), uint64(offset)
    shift, scale = uint32(32 - bits), float32(1.0) / float32(1 << bits)
    blocks = (n + 3) // 4
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        first, last = t * blocks // tasks, (t + 1) * blocks // tasks
        for b in range(first, min(last, n // 4)):
            w0, w1, w2, w3 = block(offset + uint64(b), k0, k1)
            e = uint64(4 * b)
            out[e] = float32(int32(w0 >> shift)) * scale
            out[e + uint64(1)] = float32(int32(w1 >> shift)) * scale
            out[e + uint64(2)] = float32(int32(w2 >> shift)) * scale
            out[e + uint64(3)] = float32(int32(w3 >> shift)) * scale
        if last == blocks:
            rest = block(offset + uint64(blocks - 1), k0, k1)
            for e in range(n // 4 * 4, n):
                out[e] = float32(int32(rest[e % 4] >> shift)) * scale


@inlined(set())
def pair(at, k0, k1):
    """The two numbers of 64 bits of a block."""
    w0, w1, w2, w3 = block(at, k0, k1)
    return uint64(w0) | uint64(w1) << uint64(32), uint64(w2) | uint64(w3) << uint64(32)


@_exact(">n1 n n n n >d1")
def random_uniform_64(ticket, tasks, k0, k1, offset, out):
    """out = 53 bits of two words as a fraction."""
    n, k0, k1, offset = out.size, uint64(k0), uint64(k1), uint64(offset)
    scale, shift = 2.0**-53, uint64(11)
    blocks = (n + 1) // 2
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for b in range(t * blocks // tasks, (t + 1) * blocks // tasks):
            u0, u1 = pair(offset + uint64(b), k0, k1)
            e = uint64(2 * b)
            out[e] = float64(int64(u0 >> shift)) * scale
            if e + uint64(1) < n:
                out[e + uint64(1)] = float64(int64(u1 >> shift)) * scale


@inlined(set())
def _upper(u, b1, b0):
    """The upper half of u * (b1 << 32 | b0)."""
    half, mask = uint64(32), uint64(0xFFFFFFFF)
    a1, a0 = u >> half, u & mask
    middle = a1 * b0 + ((a0 * b0) >> half)
    return a1 * b1 + (middle >> half) + ((a0 * b1 + (middle & mask)) >> half)


@_exact(">n1 n n n n n n >n1")
def random_integers(ticket, tasks, k0, k1, offset, low, span, out):
    """out = low + the upper half of 64 bits times span; span 0 stands for 2**64."""
    n, k0, k1, offset = out.size, uint64(k0), uint64(k1), uint64(offset)
    b1, b0 = uint64(span) >> uint64(32), uint64(span) & uint64(0xFFFFFFFF)
    blocks = (n + 1) // 2
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        for b in range(t * blocks // tasks, (t + 1) * blocks // tasks):
            u0, u1 = pair(offset + uint64(b), k0, k1)
            e = uint64(2 * b)
            out[e] = int64(u0 if span == 0 else _upper(u0, b1, b0)) + low
            if e + uint64(1) < n:
                out[e + uint64(1)] = int64(u1 if span == 0 else _upper(u1, b1, b0)) + low


# ---- normal numbers: without branches, so that the loop becomes vector code ----------------------
@inlined(set())
def _polynomial(x, c):
    high = (((c[0] * x + c[1]) * x + c[2]) * x + c[3]) * x + c[4]
    return ((high * x + c[5]) * x + c[6]) * x + c[7]


@inlined(set())
def _log(x):
    bits = bitcast(x)
    k = (bits >> 52) - 1022
    m = bitcast((bits & 0xFFFFFFFFFFFFF) | 0x3FE0000000000000)  # in [0.5, 1)
    small = m < _ROOT_HALF
    f = (m * 2.0 if small else m) - 1.0
    exponent = float64(k - 1 if small else k)
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    c = _LOG
    p = (((((c[0] * z + c[1]) * z + c[2]) * z + c[3]) * z + c[4]) * z + c[5]) * z + c[6]
    inner = s * (half + z * p) + exponent * _LN2[1]
    return exponent * _LN2[0] - ((half - inner) - f)


@inlined(set())
def _inverse_normal(u):
    q = u - 0.5
    x = 0.180625 - q * q
    centre = q * (_polynomial(x, _CENTRE[0]) / _polynomial(x, _CENTRE[1]))
    beyond = 1.0 - u
    r = np.sqrt(-_log(u if u < beyond else beyond))
    y, z = r - 1.6, r - 5.0
    middle = _polynomial(y, _MIDDLE[0]) / _polynomial(y, _MIDDLE[1])
    tail = _polynomial(z, _TAIL[0]) / _polynomial(z, _TAIL[1])
    outer = middle if r <= 5.0 else tail
    outer = -outer if q < 0.0 else outer
    return centre if abs(q) <= 0.425 else outer


@_exact(">n1 n n n n >f1")
def random_normal_32(ticket, tasks, k0, k1, offset, out):
    """out = the inverse of the normal distribution function at 32 random bits."""
    n, k0, k1, offset = out.size, uint64(k0), uint64(k1), uint64(offset)
    blocks = (n + 3) // 4
    u = np.empty(_BUFFER, np.float64)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        first, last = t * blocks // tasks, (t + 1) * blocks // tasks
        for begin in range(first, last, _BUFFER // 4):
            end = min(last, begin + _BUFFER // 4)
            for b in range(end - begin):
                w0, w1, w2, w3 = block(offset + uint64(begin + b), k0, k1)
                e = uint64(4 * b)
                u[e], u[e + uint64(1)] = float64(int64(w0)), float64(int64(w1))
                u[e + uint64(2)], u[e + uint64(3)] = float64(int64(w2)), float64(int64(w3))
            part = out[4 * begin : min(4 * end, n)]
            for i in range(part.size):
                part[i] = float32(_inverse_normal((u[i] + 0.5) * 2.0**-32))


@_exact(">n1 n n n n >d1")
def random_normal_64(ticket, tasks, k0, k1, offset, out):
    """out = the inverse of the normal distribution function at 52 random bits."""
    n, k0, k1, offset = out.size, uint64(k0), uint64(k1), uint64(offset)
    blocks = (n + 1) // 2
    u = np.empty(_BUFFER, np.float64)
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        first, last = t * blocks // tasks, (t + 1) * blocks // tasks
        for begin in range(first, last, _BUFFER // 2):
            end = min(last, begin + _BUFFER // 2)
            for b in range(end - begin):
                u0, u1 = pair(offset + uint64(begin + b), k0, k1)
                e = uint64(2 * b)
                u[e] = float64(int64(u0 >> uint64(12)))
                u[e + uint64(1)] = float64(int64(u1 >> uint64(12)))
            part = out[2 * begin : min(2 * end, n)]
            for i in range(part.size):
                part[i] = _inverse_normal((u[i] + 0.5) * 2.0**-52)


# ---- dropout -----------------------------------------------------------------------------------
@_exact(">n1 n n n n n d <F1 >F1", "F")
def dropout(ticket, tasks, k0, k1, offset, least, scale, x, out):
    """out = x * scale where the word is at least `least`, else 0."""
    n, k0, k1, offset = x.size, uint64(k0), uint64(k1), uint64(offset)
    factor, none, least_ = x.dtype.type(scale), x.dtype.type(0), uint64(least)
    blocks = (n + 3) // 4
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        first, last = t * blocks // tasks, (t + 1) * blocks // tasks
        for b in range(first, min(last, n // 4)):
            w0, w1, w2, w3 = block(offset + uint64(b), k0, k1)
            e = uint64(4 * b)
            e1, e2, e3 = e + uint64(1), e + uint64(2), e + uint64(3)
            x0, x1, x2, x3 = x[e] * factor, x[e1] * factor, x[e2] * factor, x[e3] * factor
            out[e] = x0 if uint64(w0) >= least_ else none
            out[e1] = x1 if uint64(w1) >= least_ else none
            out[e2] = x2 if uint64(w2) >= least_ else none
            out[e3] = x3 if uint64(w3) >= least_ else none
        if last == blocks:
            rest = block(offset + uint64(blocks - 1), k0, k1)
            for e in range(n // 4 * 4, n):
                out[e] = x[e] * factor if uint64(rest[e % 4]) >= least_ else none
