"""Values in the order in which a kernel takes them, kept while a program multiplies by the same.

A product with a transposed matrix meets its values out of order, which costs up to half of its
time; graphs and features that a network is trained on have the same values in every step. Which
array holds them says little: anybody may write to one that `.numpy()` gave away. So what counts is
the values themselves, in a digest that takes one read from start to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu_jit_calls import I8, kernel_of
from sparsegrad.backends.cpu_jit_launch import contiguous, launch

__all__ = ["KeptValues"]

_SAMPLE = 64  # values that are looked at to see whether any are worth keeping
_LOSSES = 4  # times that kept values turn out to have changed, before no more are kept
_CHUNK = 1 << 16  # words in a part of a digest


class _Kept(NamedTuple):
    sample: bytes
    digest: bytes  # empty if only a sample was seen
    moved: Array | None


class KeptValues:
    """The latest values (nnz,) of a pattern in the order of `positions` (nnz,). Values are put in
    order when they come for the second time in a row. Threads may share it: they replace what is
    kept, as a whole."""

    __slots__ = ("_kept", "_losses")

    def __init__(self) -> None:
        self._kept = _Kept(b"", b"", None)
        self._losses = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the values that are kept."""
        moved = self._kept.moved
        return 0 if moved is None else moved.nbytes

    def moved(
        self, values: Array, positions: Array, gather: Callable[[Array, Array], Array]
    ) -> Array | None:
        """gather(values, positions), where these values came before; None where they did not."""
        if self._losses >= _LOSSES:
            return None
        kept = self._kept
        sample = values[:: max(1, values.size // _SAMPLE)].tobytes()
        if kept.sample != sample:
            self._kept = _Kept(sample, b"", None)
            return None
        digest = _digest(values)
        if not kept.digest:
            kept = self._kept = _Kept(sample, digest, gather(values, positions))
        elif kept.digest != digest:
            self._losses += 1
            self._kept = _Kept(sample, b"", None)
            return None
        return kept.moved


def _digest(values: Array) -> bytes:
    data = values.view(np.uint8)
    whole = data.size // 8 * 8
    words = contiguous(data[:whole].view(np.int64), I8)
    out = np.empty(-(-words.size // _CHUNK), np.int64)
    launch(kernel_of("digest"), (_CHUNK, words, out), out.size, words.size)
    return out.tobytes() + data[whole:].tobytes()
