"""Numba kernels: remainders and quotients rounded down, elementwise, exactly NumPy's. Arrays are
flat; a task is a run of `chunk` elements."""

from __future__ import annotations

import math

import numpy as np
from numba import float32, float64
from numba.extending import overload

from sparsegrad.backends.cpu_jit_launch import Kernel
from sparsegrad.backends.cpu_jit_vector import draw, inlined

_EXACT = 2.0**28  # quotients of float32 up to which those of float64 round down alike


def _rest(a, b, out):
    np.fmod(a, b, out=out)


@overload(_rest, jit_options={"forceinline": True})
def _rest_of(a, b, out):
    if a.dtype == float32:
        return lambda a, b, out: _rest32(a, b, out)
    return lambda a, b, out: _rest64(a, b, out)


@inlined(set())
def _rest32(a, b, out):
    """out = fmod(a, b): in float64 the quotient, its product with b and the difference are exact
    enough to be exact, as vector code. What is too large or not finite is left to C."""
    odd = 0
    for i in range(a.size):
        x, y = float64(a[i]), float64(b[i])
        q = abs(x / y)
        fits = (q < _EXACT) & (abs(y) < np.inf)
        odd += not fits
        whole = float64(np.int32(q if fits else 0.0))
        out[i] = float32(math.copysign(abs(x) - whole * abs(y), x))
    if odd:
        for i in range(a.size):
            if not (abs(float64(a[i]) / float64(b[i])) < _EXACT and abs(b[i]) < np.inf):
                out[i] = np.fmod(a[i], b[i])


@inlined(set())
def _rest64(a, b, out):
    for i in range(a.size):
        out[i] = np.fmod(a[i], b[i])


def _kernel(function):
    """Strict: signed zeros count."""
    return Kernel(function, ">n1 n <F1 <F1 >F1", "F", set())


@_kernel
def fmod(ticket, chunk, a, b, out):
    """out = a - b * trunc(a / b)."""
    tasks = (a.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        run = slice(t * chunk, (t + 1) * chunk)
        _rest(a[run], b[run], out[run])


@_kernel
def remainder(ticket, chunk, a, b, out):
    """out = a - b * floor(a / b)."""
    F = a.dtype.type
    tasks = (a.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        run = slice(t * chunk, (t + 1) * chunk)
        divisor, result = b[run], out[run]
        _rest(a[run], divisor, result)
        for i in range(result.size):
            y, rest = divisor[i], result[i]
            turned = rest + y if (y < F(0)) != (rest < F(0)) else rest
            result[i] = turned if rest != F(0) else math.copysign(F(0), y)


@_kernel
def floor_divide(ticket, chunk, a, b, out):
    """out = floor(a / b)."""
    F = a.dtype.type
    tasks = (a.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        run = slice(t * chunk, (t + 1) * chunk)
        dividend, divisor, result = a[run], b[run], out[run]
        _rest(dividend, divisor, result)
        for i in range(result.size):
            x, y, rest = dividend[i], divisor[i], result[i]
            q = (x - rest) / y  # near a whole number
            q = q - F(1) if (rest != F(0)) & ((y < F(0)) != (rest < F(0))) else q
            low = np.floor(q)
            low = low + F(1) if q - low > F(0.5) else low
            low = low if q != F(0) else math.copysign(F(0), x / y)
            result[i] = low if y != F(0) else x / y
