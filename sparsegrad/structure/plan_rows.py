"""Plans of gradients that reach few rows of a dense tensor: which rows, and what of a matrix they
meet in a product. A program that takes the same rows in every step makes each plan once.

What pays must depend on the arguments alone, not on what was done before: results are then the
same bits every time.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from sparsegrad.structure.arrays import Array, Runs, index_dtype
from sparsegrad.structure.core import Core
from sparsegrad.structure.pattern import Pattern
from sparsegrad.structure.plan import remember

__all__ = ["Reached", "few", "reached", "rows"]

# Work on a row that is kept apart from the others costs two to three times as much.
_FEW = 4  # as many times the rows of an index must there be to keep those apart
_STILL_FEW = 2  # the same of rows in a product of such rows
_SMALL = 1 << 15  # elements of a gradient that is cheap in any form
_TAKEN = 64  # multiplications that cost as much as taking an entry out of its matrix

_ROWS: OrderedDict[tuple[int, bytes], Pattern] = OrderedDict()
_ROWS_LIMIT = 4
_LARGE = 1 << 16  # ids that take as long to compare as to look at anew
_lock = threading.Lock()


class Reached(NamedTuple):
    """The part of a matrix that lies in some of its rows.

    pattern: (rows, columns). entries: positions of its values among those of the matrix, or the
    runs of them. columns: the ones that have entries, as a pattern (n,); None if all n are there.
    """

    pattern: Pattern
    entries: Array | Runs
    columns: Pattern | None


def few(count: int, shape: tuple[int, ...]) -> bool:
    """Whether a gradient of that shape (n, *D) is better given by the `count` rows that may not
    be zero."""
    return len(shape) > 1 and count * _FEW <= shape[0] and math.prod(shape) >= _SMALL


def rows(index: Array, n: int) -> Pattern:
    """Rows `index` (e,) of n, repeated ones and negative ones (from the end) too; the same pattern
    again for the same rows."""
    key = (n, index.tobytes()) if index.size <= _LARGE else None
    with _lock:
        pattern = _ROWS.get(key) if key else None
        if pattern is None:
            ids = np.where(index < 0, index + n, index)
            pattern = Pattern.coo([ids], (n,), check=False)
            if key:
                _ROWS[key] = pattern
                while len(_ROWS) > _ROWS_LIMIT:
                    _ROWS.popitem(last=False)
        elif key:
            _ROWS.move_to_end(key)
    return pattern


def reached(pattern: Pattern, chosen: Pattern, width: int) -> Reached | None:
    """The part of a matrix (m, n) in the rows `chosen` (m,); None where a product that is `width`
    wide costs no less with it."""
    offsets = remember("offsets", (pattern, chosen), lambda: _offsets(pattern, chosen.row))
    if int(offsets[-1]) * (_TAKEN + width) > pattern.nnz * width:
        return None
    return remember("reached", (pattern, chosen), lambda: _reached(pattern, chosen.row, offsets))


def _offsets(pattern: Pattern, row: Array) -> Array:
    """Where the entries of each chosen row begin if they are listed one row after the other."""
    indptr = pattern.rows()[0]
    return np.concatenate(([0], np.cumsum(indptr[row + 1] - indptr[row], dtype=np.int64)))


def _reached(pattern: Pattern, row: Array, offsets: Array) -> Reached:
    indptr, cols, positions = pattern.rows()
    be, n = pattern.core.backend, pattern.shape[1]
    runs = Runs(indptr[row], offsets.astype(indptr.dtype, copy=False))
    ids = be.take_runs(cols, runs)
    touched = np.zeros(n, bool)
    touched[ids] = True
    columns = np.flatnonzero(touched)
    listed, width = None, n
    if columns.size * _STILL_FEW <= n:
        listed, width = Pattern.coo([columns], (n,), check=False), int(columns.size)
        slot = np.empty(n, cols.dtype)
        slot[columns] = np.arange(width)
        ids = be.gather(slot, ids)
    shape = (int(row.size), width)
    dtype = index_dtype(shape, int(ids.size))
    core = Core("csr", shape, (offsets.astype(dtype), ids.astype(dtype, copy=False)))
    entries = runs if positions is None else be.take_runs(positions, runs)
    return Reached(Pattern(core, "csr"), entries, listed)
