"""Numba kernels: activation functions and their slopes, elementwise, branch-free where that makes
vector code. Arrays are flat; a task is a run of `chunk` elements."""

from __future__ import annotations

import math

from numba import float32
from numba.extending import overload

from sparsegrad.backends.cpu_jit_exp import exp
from sparsegrad.backends.cpu_jit_vector import draw, inlined, kernel

_ROOT_HALF = math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)
_INVERSES = tuple(1 / k for k in range(13, 1, -1))


# The normal distribution function from erf and erfc, with Cephes' coefficients: erf(a) is a times
# a polynomial in a² up to 1, erfc(a) is exp(-a²) / a times one in 1 / a² up to 2, and one beyond.
@inlined({"contract"})
def _near(a):
    """erf(a) / a up to 1."""
    s = a * a
    p = float32(7.853861353153693e-5)
    p = p * s + float32(-8.010193625184903e-4)
    p = p * s + float32(5.188327685732524e-3)
    p = p * s + float32(-2.685381193529856e-2)
    p = p * s + float32(1.128358514861418e-1)
    p = p * s + float32(-3.761262582423300e-1)
    return p * s + float32(1.128379165726710)


@inlined({"contract"})
def _tail(a, bell):
    """erfc(a) from 1 on, for `bell` = exp(-a²)."""
    q = float32(1) / (a if a > float32(1) else float32(1))
    y = q * q
    u = float32(2.326819970068386e-2)
    u = u * y + float32(-1.387039388740657e-1)
    u = u * y + float32(3.687424674597105e-1)
    u = u * y + float32(-5.824733027278666e-1)
    u = u * y + float32(6.210004621745983e-1)
    u = u * y + float32(-4.944515323274145e-1)
    u = u * y + float32(3.404879937665872e-1)
    u = u * y + float32(-2.741127028184656e-1)
    u = u * y + float32(5.638259427386472e-1)
    v = float32(-1.047766399936249e1)
    v = v * y + float32(1.297719955372516e1)
    v = v * y + float32(-7.495518717768503)
    v = v * y + float32(2.921019019210786)
    v = v * y + float32(-1.015265279202700)
    v = v * y + float32(4.218463358204948e-1)
    v = v * y + float32(-2.820767439740514e-1)
    v = v * y + float32(5.641895067754075e-1)
    return bell * q * (u if a < float32(2) else v)


@inlined({"contract"})
def _normal32(x, bell):
    """For `bell` = exp(-x² / 2)."""
    a = abs(x) * float32(_ROOT_HALF)
    low = float32(0.5) + float32(0.5) * x * float32(_ROOT_HALF) * _near(a)
    tail = float32(0.5) * _tail(a, bell)
    high = tail if x < float32(0) else float32(1) - tail
    return low if a < float32(1) else high


def _normal(x, bell):
    return 0.5 * math.erfc(-x * _ROOT_HALF)


@overload(_normal, jit_options={"forceinline": True})
def _normal_of(x, bell):
    if x == float32:
        return lambda x, bell: _normal32(x, bell)
    return lambda x, bell: 0.5 * math.erfc(-x * _ROOT_HALF)


@inlined({"contract"})
def _erf32(x):
    a = abs(x)
    high = float32(1) - _tail(a, exp(-a * a))
    return x * _near(a) if a < float32(1) else (-high if x < float32(0) else high)


def _erf(x):
    return math.erf(x)


@overload(_erf, jit_options={"forceinline": True})
def _erf_of(x):
    return (lambda x: _erf32(x)) if x == float32 else (lambda x: math.erf(x))


@kernel(">n1 n <F1 >F1", "F")
def erf(ticket, chunk, x, out):
    """out = the error function."""
    tasks = (x.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        source, result = x[t * chunk : (t + 1) * chunk], out[t * chunk : (t + 1) * chunk]
        for i in range(source.size):
            result[i] = _erf(source[i])


@kernel(">n1 n <F1 >F1", "F")
def gelu(ticket, chunk, x, out):
    """out = x times the normal distribution function."""
    F = x.dtype.type
    tasks = (x.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        source, result = x[t * chunk : (t + 1) * chunk], out[t * chunk : (t + 1) * chunk]
        for i in range(source.size):
            v = source[i]
            result[i] = v * _normal(v, exp(F(-0.5) * v * v))


@kernel(">n1 n <F1 <F1 >F1", "F")
def gelu_grad(ticket, chunk, g, x, out):
    """out = g times the derivative of gelu."""
    F = x.dtype.type
    tasks = (x.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        source, result = x[t * chunk : (t + 1) * chunk], out[t * chunk : (t + 1) * chunk]
        back = g[t * chunk : (t + 1) * chunk]
        for i in range(source.size):
            v = source[i]
            bell = exp(F(-0.5) * v * v)
            result[i] = back[i] * (_normal(v, bell) + v * bell * F(_DENSITY))


@kernel(">n1 n <F1 >F1", "F")
def silu(ticket, chunk, x, out):
    """out = x times the logistic function."""
    F = x.dtype.type
    tasks = (x.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        source, result = x[t * chunk : (t + 1) * chunk], out[t * chunk : (t + 1) * chunk]
        for i in range(source.size):
            v = source[i]
            result[i] = v / (F(1) + exp(-v))


@kernel(">n1 n <F1 <F1 >F1", "F")
def silu_grad(ticket, chunk, g, x, out):
    """out = g times the derivative of silu."""
    F = x.dtype.type
    tasks = (x.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        source, result = x[t * chunk : (t + 1) * chunk], out[t * chunk : (t + 1) * chunk]
        back = g[t * chunk : (t + 1) * chunk]
        for i in range(source.size):
            v = source[i]
            s = F(1) / (F(1) + exp(-v))
            result[i] = back[i] * (s * (F(1) + v * (F(1) - s)))


@kernel(">n1 n <F1 <F1 >F1", "F")
def relu_grad(ticket, chunk, g, y, out):
    """out = g where y > 0, else 0."""
    F = y.dtype.type
    tasks = (y.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        source, result = y[t * chunk : (t + 1) * chunk], out[t * chunk : (t + 1) * chunk]
        back = g[t * chunk : (t + 1) * chunk]
        for i in range(source.size):
            result[i] = back[i] if source[i] > F(0) else F(0)


@kernel(">n1 n d <F1 >F1", "F")
def leaky_relu(ticket, chunk, slope, x, out):
    """out = x above 0, slope * x elsewhere."""
    factor = x.dtype.type(slope)
    tasks = (x.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        source, result = x[t * chunk : (t + 1) * chunk], out[t * chunk : (t + 1) * chunk]
        for i in range(source.size):
            v = source[i]
            result[i] = v if v > 0 else factor * v


@kernel(">n1 n d <F1 <F1 >F1", "F")
def leaky_relu_grad(ticket, chunk, slope, g, x, out):
    """out = g where x is above 0, slope * g elsewhere."""
    factor = x.dtype.type(slope)
    tasks = (x.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        source, result = x[t * chunk : (t + 1) * chunk], out[t * chunk : (t + 1) * chunk]
        back = g[t * chunk : (t + 1) * chunk]
        for i in range(source.size):
            v = back[i]
            result[i] = v if source[i] > 0 else factor * v


@kernel(">n1 n d <F1 >F1", "F")
def elu(ticket, chunk, alpha, x, out):
    """out = x above 0, alpha * (exp(x) - 1) elsewhere."""
    F = x.dtype.type
    factor, near = F(alpha), F(-0.35)
    tasks = (x.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        source, result = x[t * chunk : (t + 1) * chunk], out[t * chunk : (t + 1) * chunk]
        for i in range(source.size):
            v = source[i]
            # Near 0 the sum of powers, because the first digits of exp(x) - 1 cancel.
            power = F(1)
            for j in range(len(_INVERSES)):
                power = F(1) + v * F(_INVERSES[j]) * power
            low = v * power if v > near else exp(v) - F(1)
            result[i] = v if v > 0 else factor * low


@kernel(">n1 n d <F1 <F1 >F1", "F")
def elu_grad(ticket, chunk, alpha, g, x, out):
    """out = g times the derivative of elu."""
    factor = x.dtype.type(alpha)
    tasks = (x.size + chunk - 1) // chunk
    while True:
        t = draw(ticket)
        if t >= tasks:
            return
        source, result = x[t * chunk : (t + 1) * chunk], out[t * chunk : (t + 1) * chunk]
        back = g[t * chunk : (t + 1) * chunk]
        for i in range(source.size):
            v = back[i]
            result[i] = v if source[i] > 0 else v * factor * exp(source[i])
