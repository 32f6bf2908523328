"""Coordinates in lexicographic order, in linear time, by the kernels of `cpu_jit_kernels_sort`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparsegrad import memory
from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu_jit_calls import GRAIN, I8, NONE, kernel_of, tasks_of
from sparsegrad.backends.cpu_jit_launch import get_num_threads, launch

__all__ = ["SortedEntries", "blocks_of", "sort_entries"]

_BUCKET = 10  # bits of the entries in a bucket, on average: it is sorted within the L1 cache
_BUCKETS = 10  # bits of their number at most: as many lines of memory are written to at once
_SHARES = 32  # tasks of neighbouring buckets for each thread: it fetches memory ahead of itself


def blocks_of(n: int, digits: int) -> int:
    """Shares of a sorting pass; a stable sort is unique, so their number may follow the threads."""
    return max(1, min(get_num_threads(), n // max(1, GRAIN, digits)))


class SortedEntries(NamedTuple):
    """Entries in order, as words of `cpu_jit_kernels_sort`.

    perm (nnz,): their positions before. starts (buckets + 1,): of the buckets in `words`. words
    (nnz,), distinct (buckets,): as `sort_buckets` leaves them. bits: of the ids of each dimension.
    low, width: bits of a word's key and of its position.
    """

    perm: Array
    words: Array
    starts: Array
    distinct: Array
    bits: tuple[int, ...]
    low: int
    width: int

    def runs(self) -> tuple[tuple[Array, ...], Array]:
        """As `Backend.runs`."""
        dtype, firsts = self.perm.dtype, np.append(0, np.cumsum(self.distinct))
        u = int(firsts[-1])
        wide = dtype if len(self.bits) < 3 else I8  # of several dimensions: the keys themselves
        major, minor = np.empty(u, wide), np.empty(u if len(self.bits) == 2 else 0, wide)
        offsets = np.empty(u + 1, wide)
        offsets[0] = 0
        shift = self.bits[1] if len(self.bits) == 2 else 0
        tasks = min(self.distinct.size, _SHARES * get_num_threads())
        args = (tasks, self.starts, firsts, shift, self.low, self.width, self.words)
        kernel = kernel_of("list_runs", wide)
        launch(kernel, (*args, major, minor, offsets), tasks, 4 * self.words.size)
        if len(self.bits) < 3:
            return (major, minor)[: len(self.bits)], offsets
        coords: list[Array] = []
        for bits in reversed(self.bits):
            coords.append((major & ((1 << bits) - 1)).astype(dtype))
            major >>= bits
        return tuple(reversed(coords)), offsets.astype(dtype)


def sort_entries(
    coords: tuple[Array, ...], shape: tuple[int, ...], runs: bool
) -> SortedEntries | None:
    """Sort coordinates (nnz,) of one index dtype, and find their runs or not; None where a word
    does not hold their ids and a position."""
    nnz, bits = coords[0].size, tuple(max(0, n - 1).bit_length() for n in shape)
    width = max(1, (nnz - 1).bit_length())
    low = sum(bits) - min(sum(bits), _BUCKETS, max(0, width - _BUCKET))
    if sum(bits) > 63 or width > min(32, 64 - low):  # a bucket is counted in 32 bits
        return None
    major, minor, shift = coords[0], NONE[coords[0].dtype], 0
    if len(shape) == 2:
        minor, shift = coords[1], bits[1]
    elif len(shape) > 2:
        major, minor = _packed(coords, bits), NONE[I8]
    last = 0
    for n, count in zip(shape, bits, strict=True):
        last = last << count | max(0, n - 1)
    buckets = (last >> low) + 1
    counts = np.empty((blocks_of(nnz, buckets), buckets), I8)
    key, blocks = (major, minor, shift, low), len(counts)
    launch(kernel_of("count_buckets", major.dtype), (*key, counts), blocks, nnz)
    kernel_of("sum_counts", I8)(counts)
    starts = np.append(counts[0], nnz)
    words, perm = memory.empty((nnz,), I8), np.empty(nnz, coords[0].dtype)
    args = (*key, width, counts, words)
    launch(kernel_of("move_to_buckets", major.dtype), args, blocks, 4 * nnz)
    distinct = np.empty(buckets if runs else 0, I8)
    tasks = min(buckets, _SHARES * get_num_threads())
    order = (tasks, starts, low, width, words, distinct, perm)
    launch(kernel_of("sort_buckets", perm.dtype), order, tasks, 8 * nnz)
    return SortedEntries(perm, words, starts, distinct, bits, low, width)


def _packed(coords: tuple[Array, ...], bits: tuple[int, ...]) -> Array:
    """The ids of all dimensions in one int64, the last in its lowest bits."""
    nnz, key = coords[0].size, coords[0]
    for minor, count in zip(coords[1:], bits[1:], strict=True):
        wider, tasks = np.empty(nnz, I8), tasks_of(nnz)
        kernel = kernel_of("linear_key", key.dtype, minor.dtype)
        launch(kernel, (tasks, key, minor, 1 << count, wider), tasks, nnz)
        key = wider
    return key
