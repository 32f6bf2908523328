"""Random numbers as a function of a seed and a position: Philox4x32-10, in pure array code.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A block of four
32-bit words is ten rounds on a counter (the position, as 128 bits) under a key (the seed, as 64),
so any part of the stream can be made anywhere, in any order. Every device makes the same bits: the
words are integers, and uniform and normal numbers are made of them by operations that IEEE 754
rounds alike (no fused multiply-add, no function of a mathematical library).

A draw of n numbers starts at a block; number i takes word i, or for 64 bits words 2i (low) and
2i + 1 (high).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from sparsegrad.dtypes import accumulator

__all__ = [
    "CENTRE",
    "LN2",
    "LOG",
    "MIDDLE",
    "MULTIPLIERS",
    "ROOT_HALF",
    "TAIL",
    "UNIFORM_BITS",
    "WEYL",
    "Draws",
    "inverse_normal",
    "rounds",
    "threshold",
    "words",
]

Array = Any

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # the golden ratio and the root of 3, less 1: added to the key
_LOW = 0xFFFFFFFF

# Uniform numbers are the multiples of 2**-bits that their dtype holds exactly: none rounds up to 1.
UNIFORM_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}


def rounds(xp: Any, counter: Array, seed: int) -> Array:
    """Four rows of words from four rows of counter words (4, blocks), all held as uint64."""
    keys = [
        [((seed >> half) + r * weyl) & _LOW for half, weyl in zip((0, 32), WEYL, strict=True)]
        for r in range(10)
    ]
    key = xp.asarray(np.array(keys, np.uint64)[..., None])
    factors = xp.asarray(np.array(MULTIPLIERS, np.uint64)[:, None])
    low, half = np.uint64(_LOW), np.uint64(32)
    even, odd = counter[0::2], counter[1::2]
    for r in range(10):
        product = (even * factors)[::-1]
        even = (product >> half) ^ odd ^ key[r]
        odd = product & low
    return xp.stack((even, odd), axis=1).reshape(4, -1)


def words(xp: Any, seed: int, offset: int, n: int) -> Array:
    """n words (uint32) from block `offset` on."""
    blocks = -(-n // 4)
    at = xp.arange(blocks, dtype=np.uint64) + np.uint64(offset)
    counter = xp.zeros((4, blocks), dtype=np.uint64)
    counter[0], counter[1] = at & np.uint64(_LOW), at >> np.uint64(32)
    return rounds(xp, counter, seed).T.astype(np.uint32, order="C").reshape(-1)[:n]


def _pairs(xp: Any, seed: int, offset: int, n: int) -> Array:
    """n numbers of 64 bits."""
    return words(xp, seed, offset, 2 * n).view(np.uint64)


def threshold(p: float) -> int:
    """What a word is below with probability p."""
    return round(p * 2.0**32)


# ---- normal numbers: the inverse of the distribution function -----------------------------------
# Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics
# 37 (1988), PPND16: relative error about 1e-16. Coefficients from the highest power down.
CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852545925, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
MIDDLE = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177,
     1.27045825245236838258, 3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959,
     1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966,
     0.14810397642748007459, 0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187,
     1.0),
)  # fmt: skip
TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386,
     0.026532189526576123093, 0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699,
     6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5,
     7.868691311456132591e-4, 0.0148753612908506148525, 0.13692988092273580531,
     0.59983220655588793769, 1.0),
)  # fmt: skip
# log(1 + f) = f - (f*f/2 - s * (f*f/2 + z * LOG(z))), s = f / (2 + f), z = s * s: fdlibm's e_log.c.
LOG = (
    1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
    2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
    6.666666666666735130e-01,
)  # fmt: skip
LN2 = (6.93147180369123816490e-01, 1.90821492927058770002e-10)
ROOT_HALF = 0.7071067811865476


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    out = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        out = out * x + c
    return out


def _ratio(x: Array, fraction: tuple[tuple[float, ...], tuple[float, ...]]) -> Array:
    return _polynomial(x, fraction[0]) / _polynomial(x, fraction[1])


def _log(xp: Any, x: Array) -> Array:
    mantissa, exponent = xp.frexp(x)
    small = mantissa < ROOT_HALF
    f = xp.where(small, mantissa * 2.0, mantissa) - 1.0
    k = exponent.astype(np.float64) - small
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    inner = s * (half + z * _polynomial(z, LOG)) + k * LN2[1]
    return k * LN2[0] - ((half - inner) - f)


def inverse_normal(xp: Any, u: Array) -> Array:
    """Where the normal distribution function is u, for u in (0, 1), float64."""
    q = u - 0.5
    centre = q * _ratio(0.180625 - q * q, CENTRE)
    r = xp.sqrt(-_log(xp, xp.minimum(u, 1.0 - u)))
    outer = xp.where(r <= 5.0, _ratio(r - 1.6, MIDDLE), _ratio(r - 5.0, TAIL))
    return xp.where(xp.abs(q) <= 0.425, centre, xp.where(q < 0.0, -outer, outer))


# ---- the contract ------------------------------------------------------------------------------
class Draws:
    """Random numbers of a backend: a function of seed and offset alone, on every device the same.

    seed: 64 bits. offset: the first block of four words. dtype: a floating-point one.
    """

    xp: ModuleType

    def random_uniform(self, seed: int, offset: int, n: int, dtype: np.dtype) -> Array:
        """(n,) numbers in [0, 1): multiples of 2**-bits, each equally likely. Two words each for
        float64, else one."""
        bits = UNIFORM_BITS[dtype.name]
        if dtype == np.float64:
            drawn = _pairs(self.xp, seed, offset, n) >> np.uint64(64 - bits)
            return drawn.astype(dtype) * 2.0**-bits
        top = words(self.xp, seed, offset, n) >> np.uint32(32 - bits)
        return (top.astype(np.float32) * np.float32(2.0**-bits)).astype(dtype, copy=False)

    def random_normal(self, seed: int, offset: int, n: int, dtype: np.dtype) -> Array:
        """(n,) numbers of mean 0 and deviation 1. Two words each for float64, else one."""
        if dtype == np.float64:
            u = (_pairs(self.xp, seed, offset, n) >> np.uint64(12)).astype(np.float64)
            return inverse_normal(self.xp, (u + 0.5) * 2.0**-52)
        u = words(self.xp, seed, offset, n).astype(np.float64)
        drawn = inverse_normal(self.xp, (u + 0.5) * 2.0**-32).astype(np.float32)
        return drawn.astype(dtype, copy=False)

    def random_integers(self, seed: int, offset: int, n: int, low: int, span: int) -> Array:
        """(n,) of int64 in [low, low + span), 0 < span <= 2**64: the upper half of 64 random bits
        times span, which favours no number by more than span / 2**64. Two words each."""
        drawn = _pairs(self.xp, seed, offset, n)
        if span < 2**64:
            half, mask = np.uint64(32), np.uint64(_LOW)
            a1, a0 = drawn >> half, drawn & mask
            b1, b0 = np.uint64(span >> 32), np.uint64(span & _LOW)
            middle = a1 * b0 + ((a0 * b0) >> half)
            drawn = a1 * b1 + (middle >> half) + ((a0 * b1 + (middle & mask)) >> half)
        return (drawn + np.uint64(low % 2**64)).view(np.int64)  # modulo 2**64

    def dropout(self, x: Array, p: float, seed: int, offset: int) -> Array:
        """x / (1 - p) where word i is at least threshold(p), else 0; i counts in row-major order.
        0 < p < 1. One word each. Its own gradient: nothing need be kept but seed and offset."""
        least = threshold(p)
        drawn = words(self.xp, seed, offset, x.size).reshape(x.shape)
        keep = drawn > np.uint32(least - 1) if least else self.xp.ones(x.shape, bool)
        wide = accumulator(x.dtype)
        scaled = x.astype(wide, copy=False) * wide.type(1 / (1 - p))
        return self.xp.where(keep, scaled, wide.type(0)).astype(x.dtype, copy=False)
