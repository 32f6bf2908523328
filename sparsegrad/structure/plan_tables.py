"""Rows of several tables that one batch reads: listed in order together, when the first of them is
asked for, as one matrix with a row for each table."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from sparsegrad import backends
from sparsegrad.backends.base import Survey
from sparsegrad.structure.arrays import Array
from sparsegrad.structure.pattern import Pattern

__all__ = ["patterns"]


def patterns(ids: Array, sizes: tuple[int, ...], wanted: tuple[bool, ...]) -> list[Pattern | None]:
    """The rows ids[f] (e,) of each wanted table of `sizes` rows; None for others."""
    together = _Together(ids, sizes)
    found: list[Pattern | None] = []
    for f, (n, want) in enumerate(zip(sizes, wanted, strict=True)):
        pattern = Pattern.coo([ids[f]], (n,), check=False, copy=False) if want else None
        if pattern is not None:
            pattern.core.look_with(_Table(together, f))
        found.append(pattern)
    return found


class _Together:
    """What is to be known of all tables, found at once: to sort many short lists takes longer, and
    on a GPU each is several launches, and waited for."""

    def __init__(self, ids: Array, sizes: tuple[int, ...]) -> None:
        self._ids, self._sizes, self._lock = ids, sizes, threading.Lock()
        self._surveys: list[Survey | None] | None = None
        self._touched: Any = ()  # not looked at yet

    def survey(self, f: int) -> Survey | None:
        """Of table f; None where there is nothing to be sorted."""
        with self._lock:
            if self._surveys is None:
                self._surveys = self._surveyed()
            return self._surveys[f]

    def touched(self, f: int) -> Any:
        """`Backend.touched` of table f."""
        with self._lock:
            if self._touched == ():
                be = backends.for_array(self._ids)
                self._touched = be.touched_tables(self._ids, max(self._sizes))
            return self._touched and self._touched[f]

    def _surveyed(self) -> list[Survey | None]:
        ids, be = self._ids, backends.for_array(self._ids)
        (tables, e), xp = ids.shape, be.xp
        number = xp.arange(tables, dtype=ids.dtype)
        start, owner = number * e, xp.repeat(number, e)
        coords, shape = (owner, ids.reshape(-1)), (tables, max(self._sizes))
        whole = be.survey(coords, shape) or _sorted(be, coords, shape)
        if whole is None or whole.perm is None:
            return [None] * tables
        perm = whole.perm.reshape(tables, e) - start[:, None]
        kept = (perm == xp.arange(e, dtype=perm.dtype)).all(axis=1)
        row, offsets, cuts = None, None, start
        if whole.runs is not None:
            (table, row), offsets = whole.runs
            cuts = xp.searchsorted(table, xp.arange(tables + 1, dtype=table.dtype))
        host = be.to_host(xp.concatenate((kept, cuts))).tolist()  # sync: how long each list is
        return [
            _part(perm[f], bool(host[f]), f * e, row, offsets, host[tables + f :])
            for f in range(tables)
        ]


class _Table(NamedTuple):
    """One of them."""

    together: _Together
    number: int

    def survey(self) -> Survey | None:
        return self.together.survey(self.number)

    def touched(self) -> Any:
        return self.together.touched(self.number)


def _sorted(be: Any, coords: tuple[Array, ...], shape: tuple[int, ...]) -> Survey | None:
    """What a survey finds, of a backend that has none; None for what is sorted already."""
    perm = be.sort_coo(coords, shape)
    if perm is None:
        return None
    return Survey(perm, False, False, be.runs(tuple(c[perm] for c in coords)))


def _part(perm: Array, kept: bool, start: int, rows: Any, offsets: Any, cuts: list[int]) -> Survey:
    """The survey of a table whose entries begin at `start`, its runs at the first of `cuts`."""
    unique, runs = True, None
    if offsets is not None:
        low, high = cuts[:2]
        unique = high - low == perm.size
        if not unique:
            runs = (rows[low:high],), offsets[low : high + 1] - offsets.dtype.type(start)
    return Survey(None if kept else perm, kept, unique, runs)
