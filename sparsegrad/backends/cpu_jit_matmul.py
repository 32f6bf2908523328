"""Dense products on the threads of `cpu_jit_launch`, with BLAS at one part in each.

The threads of OpenBLAS look out for more work for tens of milliseconds after each product, and take
half a core from whoever computes next: the sparse products of a network that has both. Ours take
somewhat longer for a large product (bench: mlp), and leave the core alone.
"""

from __future__ import annotations

import math

import numpy as np

from sparsegrad import memory
from sparsegrad.backends import blas
from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu_jit_calls import kernel_of
from sparsegrad.backends.cpu_jit_launch import get_num_threads, launch
from sparsegrad.backends.quiet import SILENT, restore, silence

__all__ = ["matmul"]

# Multiplications from which OpenBLAS uses several threads: of two matrices, and of a vector.
_MIN_MATRIX, _MIN_VECTOR = 1 << 20, 1 << 13
_PART = 1 << 21  # multiplications in a part, about 50 µs
_LONG = 1 << 30  # multiplications in a part, at most, about 30 ms
_MAX_SUMS = 8  # parts of a sum, on which its bits depend
_MIN_SIDE = 128  # rows or columns in a part
_SPEED = 16  # multiplications in the time of an element of other kernels


def matmul(a: Array, b: Array) -> Array:
    """`np.matmul` of arrays of one float or complex dtype."""
    if not (a.ndim and b.ndim and a.shape[-1] == b.shape[max(b.ndim - 2, 0)]):
        return np.matmul(a, b)  # raises
    matrices = a.ndim > 1 and b.ndim > 1
    work = a.size * b.shape[-1] if matrices else max(a.size, b.size)
    thin = not matrices or a.shape[-2] == 1 or b.shape[-1] == 1
    if work < (_MIN_VECTOR if thin else _MIN_MATRIX) or not blas.can_stand_in():
        return np.matmul(a, b)
    with blas.one_thread():
        if not matrices:
            return np.matmul(a, b)
        if a.ndim > 2 and b.ndim == 2 and a.flags.c_contiguous:  # one product
            out = memory.empty((*a.shape[:-1], b.shape[1]), a.dtype)
            _matrices(a.reshape(-1, a.shape[-1]), b, out.reshape(-1, b.shape[1]))
            return out
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        out = memory.empty((*batch, a.shape[-2], b.shape[-1]), a.dtype)
        if not batch:
            _matrices(a, b, out)
        else:
            # Stacks are dealt out along the first dimension that both have.
            alike = len(batch) == a.ndim - 2 == b.ndim - 2 and a.shape[0] == b.shape[0]
            cuts = _cuts(batch[0], _parts(work) if alike else 1)
            _launch([(a[i:j], b[i:j], out[i:j]) if alike else (a, b, out) for i, j in cuts], work)
        return out


def _matrices(a: Array, b: Array, out: Array) -> None:
    (m, k), n = a.shape, b.shape[1]
    work = m * k * n
    parts = _parts(work)
    rows, columns = min(parts, m // _MIN_SIDE), min(parts, n // _MIN_SIDE)
    sums = min(_MAX_SUMS, work // _PART, k // max(m, n))  # each is written, and read, once
    if sums > max(rows, columns, 1):
        partial = memory.empty((sums, m, n), a.dtype)
        todo = [(a[:, i:j], b[i:j], partial[t]) for t, (i, j) in enumerate(_cuts(k, sums))]
        _launch(todo, work)
        np.sum(partial, axis=0, out=out)
    elif rows >= columns:
        _launch([(a[i:j], b, out[i:j]) for i, j in _cuts(m, rows)], work)
    else:
        _launch([(a, b[:, i:j], out[:, i:j]) for i, j in _cuts(n, columns)], work)


def _parts(work: int) -> int:
    """One for each thread, because BLAS packs anew for each what parts have in common; and more of
    those that would keep Ctrl-C waiting."""
    return max(min(get_num_threads(), work // _PART), work // _LONG)


def _cuts(size: int, parts: int) -> list[tuple[int, int]]:
    step = math.ceil(size / max(parts, 1))
    return [(i, min(i + step, size)) for i in range(0, size, step)]


def _launch(todo: list[tuple[Array, Array, Array]], work: int) -> None:
    if len(todo) == 1:
        np.matmul(todo[0][0], todo[0][1], out=todo[0][2])
    else:
        launch(_multiply, (todo,), len(todo), work // _SPEED)


def _multiply(ticket: Array, todo: list[tuple[Array, Array, Array]]) -> None:
    """A kernel in Python: nearly all of its time NumPy is without the interpreter lock."""
    draw, token = kernel_of("next_task"), silence(SILENT)
    try:
        while (t := draw(ticket)) < len(todo):
            a, b, out = todo[t]
            np.matmul(a, b, out=out)
    finally:
        restore(token)
