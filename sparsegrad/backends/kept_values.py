"""Values in the order in which a kernel takes them, kept while a program multiplies by the same.

A product with a transposed matrix meets its values out of order, which costs up to half of its
time; graphs and features that a network is trained on have the same values in every step. Which
array holds them says little: anybody may write to one that `.numpy()` gave away. So the values
themselves are compared with those that were put in order before, a fast read from start to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sparsegrad.backends.base import Array

__all__ = ["KeptValues"]

_SAMPLE = 64  # values that are looked at to see whether any are worth keeping
_LOSSES = 4  # times that kept values turn out to have changed, before no more are kept


class _Kept(NamedTuple):
    sample: bytes
    values: Array | None  # as they came; None if only a sample of them was seen
    moved: Array | None  # the same in order


class KeptValues:
    """The latest values (nnz,) of a pattern in the order of `positions` (nnz,). Values are put in
    order when they come for the second time in a row, and never seen by anybody who may change
    them. Threads may share it: they replace what is kept, as a whole."""

    __slots__ = ("_kept", "_losses")

    def __init__(self) -> None:
        self._kept: _Kept | None = None
        self._losses = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the values that are kept."""
        kept = self._kept
        return 0 if kept is None or kept.values is None else 2 * kept.values.nbytes

    def moved(
        self, values: Array, positions: Array, gather: Callable[[Array, Array], Array]
    ) -> Array | None:
        """gather(values, positions), where these values came before; None where they did not."""
        if self._losses >= _LOSSES:
            return None
        bits = values.view(f"u{values.itemsize}")  # nan is nan here
        sample = bits[:: max(1, bits.size // _SAMPLE)].tobytes()
        kept = self._kept
        if kept is None or kept.sample != sample:
            self._kept = _Kept(sample, None, None)
            return None
        if kept.values is None:
            kept = self._kept = _Kept(sample, values.copy(), gather(values, positions))
        elif not np.array_equal(bits, kept.values.view(bits.dtype)):
            self._losses += 1
            self._kept = _Kept(sample, None, None)
            return None
        return kept.moved
