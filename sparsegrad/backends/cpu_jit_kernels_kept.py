"""Numba kernel: what tells two arrays of values apart."""

from __future__ import annotations

from numba import uint64

from sparsegrad.backends.cpu_jit_vector import draw, kernel

# Those of SplitMix64, whose mixing this is but for the lengths of its shifts.
_STEP, _FIRST = uint64(0x9E3779B97F4A7C15), uint64(0xBF58476D1CE4E5B9)
_SECOND = uint64(0x94D049BB133111EB)


@kernel(">n1 n <n1 >n1", "")
def digest(ticket, size, words, out):
    """out[t] = the sum of numbers made of the words of chunk t, `size` of them, and their places.

    What makes a number of a word is one to one: sums of arrays that differ in one word differ, and
    those of others are the same once in 2**64 times."""
    while True:
        t = draw(ticket)
        if t >= out.size:
            return
        total, first = uint64(0), uint64(t) * uint64(size)
        for i in range(first, min(first + uint64(size), uint64(words.size))):
            z = uint64(words[i]) + i * _STEP
            z = (z ^ (z >> uint64(32))) * _FIRST
            z = (z ^ (z >> uint64(29))) * _SECOND
            total += z ^ (z >> uint64(32))
        out[t] = total
