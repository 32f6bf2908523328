"""Indices that a user gave: the part of the contract that refuses wrong ones."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from sparsegrad.errors import PatternError

__all__ = ["Checks"]

Array = Any


class Checks:
    """Each method that finds nothing wrong returns; PatternError says what is, and where."""

    xp: ModuleType = np

    def check_indices(self, name: str, index: Array, bound: int, later: bool = False) -> None:
        """Raise PatternError unless every index lies in [0, bound); where that means waiting for
        a device and `later` is set, at the next synchronisation."""
        if index.size == 0:
            return
        if int(index.min()) < 0 or int(index.max()) >= bound:
            at = int(self.xp.argmax((index < 0) | (index >= bound)))
            raise outside(name, int(index[at]), at, bound)

    def ids_by_table(
        self, name: str, ids: Array, bounds: tuple[int, ...], dtype: np.dtype, later: bool = False
    ) -> Array:
        """A copy of ids (e, f), a column for each of f tables, listed by table: (f, e), in a dtype
        that holds them. PatternError, as from `check_indices`, unless those of a table lie in
        [0, its bound)."""
        if ids.size:
            low, high = ids.min(axis=0), ids.max(axis=0)
            wrong = (low < 0) | (high >= self.xp.asarray(bounds))
            if bool(wrong.any()):
                table = int(wrong.argmax())
                self.check_indices(f"{name} of table {table}", ids[:, table], bounds[table])
        return ids.T.astype(dtype, order="C")

    def check_coords(
        self, name: str, coords: list[Array], shape: tuple[int, ...]
    ) -> tuple[bool, bool] | None:
        """`check_indices` of the coordinates (nnz,) of each dimension. What `order_facts` would
        say of them if that became known on the way, else None."""
        for d, ids in enumerate(coords):
            self.check_indices(f"{name}[{d}]", ids, shape[d])
        return None

    def copy_coords(
        self, name: str, coords: list[Array], shape: tuple[int, ...], dtype: np.dtype
    ) -> tuple[tuple[Array, ...], tuple[bool, bool] | None]:
        """`check_coords`, and the coordinates anew, in that dtype: copies, and what is known."""
        facts = self.check_coords(name, coords, shape)
        return tuple(ids.astype(dtype) for ids in coords), facts

    def check_offsets(self, name: str, offsets: Array, end: int) -> None:
        """Raise PatternError unless offsets (s + 1,) rise from 0 to `end`."""
        if offsets.size == 0 or int(offsets[0]) != 0:
            raise PatternError(f"{name}: must start at 0, got {offsets[:1].tolist()}")
        if int(offsets[-1]) != end:
            raise PatternError(f"{name}: must end at nnz = {end}, got {int(offsets[-1])}")
        falls = offsets[1:] < offsets[:-1]
        if bool(falls.any()):
            at = int(falls.argmax())
            raise PatternError(
                f"{name}: must not fall, got {int(offsets[at])} then {int(offsets[at + 1])} at {at}"
            )

    def check_compressed(self, indptr: Array, indices: Array, bound: int) -> None:
        """The arrays of a CSR or CSC pattern with a minor dimension of size `bound`."""
        self.check_offsets("indptr", indptr, indices.size)
        self.check_indices("indices", indices, bound)

    def extent(self, index: Array) -> tuple[int, int]:
        """The least and the largest index, of one at least."""
        return int(index.min()), int(index.max())


def outside(name: str, found: int, at: int, bound: int) -> PatternError:
    """The error for an index that is not in [0, bound)."""
    return PatternError(f"{name}: index {found} at position {at} is outside [0, {bound})")
