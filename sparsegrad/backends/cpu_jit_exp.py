"""The exponential function in kernels, and the bits of floats that it is made of."""

from __future__ import annotations

import math

import numpy as np
from numba import float32, float64, types
from numba.extending import intrinsic, overload

from sparsegrad.backends.cpu_jit_vector import inlined

__all__ = ["bitcast", "exp"]


@intrinsic
def bitcast(typingctx, value):
    """A float's bits as a signed integer of its size, and back."""
    pairs = {float32: types.int32, float64: types.int64}
    pairs |= {integer: real for real, integer in list(pairs.items())}
    if value not in pairs:
        return None

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return pairs[value](value), codegen


# exp(x) = 2**n * exp(r) with n = round(x / ln 2): coefficients of Cephes, branch-free so that a
# loop of it becomes vector code (without Intel's library Numba calls exp one number at a time).
# `contract` alone: reordering would undo the two-step reduction.
@inlined({"contract"})
def _exp32(x):
    x = float32(89.0) if x > float32(89.0) else x  # inf; NaN stays
    x = float32(-104.0) if x < float32(-104.0) else x  # 0
    magic = float32(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer in the low bits
    shifted = x * float32(1.44269504088896341) + magic
    n = bitcast(shifted) - np.int32(0x4B400000)
    whole = shifted - magic
    r = x - whole * float32(0.693359375)
    r = r - whole * float32(-2.12194440e-4)
    p = float32(1.9875691500e-4)
    p = p * r + float32(1.3981999507e-3)
    p = p * r + float32(8.3334519073e-3)
    p = p * r + float32(4.1665795894e-2)
    p = p * r + float32(1.6666665459e-1)
    p = p * r + float32(5.0000001201e-1)
    y = p * r * r + r + float32(1.0)
    half = n >> 1  # in two steps: 2**n alone may be out of range where the result is not
    y *= bitcast(np.int32((half + 127) << 23))
    return y * bitcast(np.int32((n - half + 127) << 23))


@inlined({"contract"})
def _exp64(x):
    x = 710.0 if x > 710.0 else x  # inf; NaN stays
    x = -746.0 if x < -746.0 else x  # 0
    magic = 6755399441055744.0  # 1.5 * 2**52
    shifted = x * 1.4426950408889634 + magic
    n = bitcast(shifted) - 0x4338000000000000
    whole = shifted - magic
    r = x - whole * 6.93145751953125e-1
    r = r - whole * 1.42860682030941723212e-6
    rr = r * r
    p = 1.26177193074810590878e-4 * rr + 3.02994407707441961300e-2
    p = (p * rr + 9.99999999999999999910e-1) * r
    q = 3.00198505138664455042e-6 * rr + 2.52448340349684104192e-3
    q = (q * rr + 2.27265548208155028766e-1) * rr + 2.00000000000000000005e0
    y = 1.0 + 2.0 * p / (q - p)
    half = n >> 1
    y *= bitcast((half + 1023) << 52)
    return y * bitcast((n - half + 1023) << 52)


def exp(x):
    """e**x; as here in Python, and as below in kernels."""
    return math.exp(x)


@overload(exp, jit_options={"forceinline": True})
def _exp_of(x):
    return (lambda x: _exp32(x)) if x == float32 else (lambda x: _exp64(x))
