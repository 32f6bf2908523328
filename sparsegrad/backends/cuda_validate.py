"""Checks of indices on the GPU: one launch each, read at the next wait or at once.

What is read at the next wait may come sooner: a board that is full is copied to the host, and read
when it has come. Nothing waits for that.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from sparsegrad.backends.base import Array, Backend
from sparsegrad.backends.checks import outside
from sparsegrad.backends.cuda_instances import BOUNDS, STRUCTS
from sparsegrad.backends.cuda_kernels import ctype_of, kernel, launch
from sparsegrad.errors import PatternError

__all__ = ["CudaChecks", "raise_pending"]

_WORDS = 6  # that a launch reports in: kernels/validate.cu says how
_BITS = 22  # SG_FOUND_BITS
_SLOTS = 256  # of checks that wait for the next synchronisation; when few are left, they are sent
_MOST = 32  # launches of one check: NumPy's most dimensions, two each
_ONES = (1 << 64) - 1
_SIGN = 1 << 63


class CudaChecks(Backend):
    """The reference says what is wrong, once a kernel has seen that something is."""

    def check_indices(self, name: str, index: Array, bound: int, later: bool = False) -> None:
        if index.size == 0:
            return
        with _board() as board:
            board.indices(_ids(index), bound, say=partial(_outside, name, bound) if later else None)
            if later:
                return
            found = board.read()[-1]
        if _is_wrong(found):
            super().check_indices(name, index, bound)

    def ids_by_table(
        self, name: str, ids: Array, bounds: tuple[int, ...], dtype: np.dtype, later: bool = False
    ) -> Array:
        import cupy

        n, flat = len(ids), _ids(ids)
        listed = cupy.empty((len(bounds), n), dtype)
        if not n:
            return listed
        wrong = False
        for first in range(0, len(bounds), BOUNDS):
            some = bounds[first : first + BOUNDS]
            say = partial(_outside_table, name, first, some, n) if later else None
            with _board() as board:
                board.tables(flat, some, len(bounds), first, listed, say)
                wrong = wrong or (not later and _is_wrong(board.read()[-1]))
        return super().ids_by_table(name, ids, bounds, dtype) if wrong else listed

    def check_coords(
        self, name: str, coords: list[Array], shape: tuple[int, ...]
    ) -> tuple[bool, bool] | None:
        if not coords[0].size:
            return None
        dtype = np.result_type(*map(_ids, coords))
        ids = [_ids(c).astype(dtype, copy=False) for c in coords]
        pairs = range(0, len(ids), 2)
        with _board() as board:
            for d in pairs:
                board.indices(ids[d], shape[d], *ids[d + 1 : d + 2], *shape[d + 1 : d + 2])
            found = board.read()[-len(pairs) :]
        if any(map(_is_wrong, found)):
            super().check_coords(name, coords, shape)
        order = ~int(found[0, 3])
        if len(ids) > 2 or order & 1:
            return None
        return True, not order & 2

    def check_offsets(self, name: str, offsets: Array, end: int) -> None:
        found = None
        if offsets.size:
            with _board() as board:
                board.offsets(_ids(offsets), end)
                found = board.read()[-1]
        if found is None or _is_wrong(found):
            super().check_offsets(name, offsets, end)

    def check_compressed(self, indptr: Array, indices: Array, bound: int) -> None:
        with _board() as board:
            board.offsets(_ids(indptr), indices.size)
            board.indices(_ids(indices), bound)
            found = board.read()[-2:]
        if any(map(_is_wrong, found)):
            super().check_compressed(indptr, indices, bound)

    def extent(self, index: Array) -> tuple[int, int]:
        with _board() as board:
            board.indices(_ids(index), 0)
            least, most = map(int, board.read()[-1, 4:])
        return _signed(least ^ _SIGN), _signed(_ONES ^ most ^ _SIGN)


def _ids(index: Array) -> Array:
    """An index as the kernels take it."""
    import cupy

    dtype = index.dtype if index.dtype.name in ("int32", "int64") else np.dtype(np.int64)
    return cupy.ascontiguousarray(index, dtype).reshape(-1)


_Say = Callable[[int, int], PatternError] | None  # of a value and its place


def _outside(name: str, bound: int, found: int, at: int) -> PatternError:
    return outside(name, found, at, bound)


def _outside_table(
    name: str, first: int, bounds: tuple[int, ...], n: int, found: int, at: int
) -> PatternError:
    table, at = divmod(at, n)
    return outside(f"{name} of table {first + table}", found, at, bounds[table])


class _Board:
    """Where the checks on one stream report, a slot each; read and cleared together. What was
    launched and is not read yet may be of any thread that uses the stream."""

    def __init__(self, stream: Any) -> None:
        import cupy

        self._stream, self._lock = stream, threading.RLock()
        self._words = cupy.full((_SLOTS, _WORDS), _ONES, np.uint64)
        self._waiting: list[_Say] = []  # what to say of each
        self._sent: deque[tuple[Any, np.ndarray, list[_Say]]] = deque()  # when it is here, copy

    def __enter__(self) -> _Board:
        """Alone with the board, and with room for all launches of one check."""
        self._lock.acquire()
        try:
            if len(self._waiting) > _SLOTS - _MOST:
                self._send()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self._lock.release()

    def indices(
        self,
        first: Array,
        bound: int,
        second: Array | None = None,
        second_bound: int = 0,
        say: _Say = None,
    ) -> None:
        """Check one list, or two that are coordinates. say: what `read` says if it is wrong."""
        self._launch(
            "sg_validate_indices",
            say,
            first=first,
            second_or_null=second,
            n=first.size,
            first_bound=bound,
            second_bound=second_bound,
        )

    def tables(
        self,
        ids: Array,
        bounds: tuple[int, ...],
        width: int,
        first: int,
        listed: Array,
        say: _Say = None,
    ) -> None:
        """Check the columns from `first` on of ids (n, width), all rows one behind the other, and
        write them to those rows of `listed`."""
        packed = np.zeros((), STRUCTS["SgBounds"])
        packed["count"] = count = len(bounds)
        packed["bound"][:count] = bounds
        rows = listed[first : first + count]
        launch(
            kernel("validate", "sg_validate_tables", ctype_of(ids.dtype), ctype_of(rows.dtype)),
            rows.size,
            bounds=packed,
            ids=ids,
            n=rows.shape[1],
            width=width,
            first=first,
            listed=rows,
            found=self._words[len(self._waiting)],
        )
        self._waiting.append(say)

    def offsets(self, offsets: Array, end: int) -> None:
        """Check that offsets rise from 0 to `end`."""
        self._launch("sg_validate_offsets", None, offsets=offsets, n=offsets.size, end=end)

    def _launch(self, name: str, say: _Say, **arguments: Any) -> None:
        index = next(iter(arguments.values()))
        launch(
            kernel("validate", name, ctype_of(index.dtype)),
            index.size,
            found=self._words[len(self._waiting)],
            **arguments,
        )
        self._waiting.append(say)

    def _send(self) -> None:
        """Start anew, and copy what is there to the host in the meantime; look at what has come."""
        import cupy
        import cupyx

        used = self._words[: len(self._waiting)]
        with self._words.device, self._stream:
            copy = cupyx.empty_pinned(used.shape, used.dtype)
            used.get(stream=self._stream, out=copy, blocking=False)
            here = cupy.cuda.Event(disable_timing=True)
            here.record(self._stream)
            used.fill(_ONES)
        self._sent.append((here, copy, self._waiting))
        self._waiting = []
        while self._sent and _came(self._sent[0][0]):
            _, found, waiting = self._sent.popleft()
            _raise_first(found, waiting)

    def read(self) -> np.ndarray:
        """What the checks since the last `read` found, a row each, if there were any. Raises
        PatternError for the first that is wrong among those that say something then."""
        sent, self._sent = self._sent, deque()
        waiting, self._waiting = self._waiting, []
        found = np.empty((0, _WORDS), np.uint64)
        if waiting:
            used = self._words[: len(waiting)]
            with self._words.device, self._stream:
                found = used.get()  # sync
                used.fill(_ONES)
        elif sent:
            sent[-1][0].synchronize()  # sync
        for _, copy, those in sent:
            _raise_first(copy, those)
        _raise_first(found, waiting)
        return found


def _came(event: Any) -> bool:
    """Whether the device has got there; asking is no waiting."""
    return event.done


def _raise_first(found: np.ndarray, waiting: list[_Say]) -> None:
    for say, row in zip(waiting, found, strict=True):
        if say is not None and _is_wrong(row):
            place = int(row[0]) >> _BITS
            mask = (1 << _BITS) - 1
            value = sum((int(row[part]) & mask) << (_BITS * part) for part in range(3))
            raise say(_signed(value & _ONES), place // 2)


def _is_wrong(row: np.ndarray) -> bool:
    return int(row[0]) != _ONES


def _signed(word: int) -> int:
    return word - (1 << 64) if word & _SIGN else word


_boards: dict[tuple[int, int], _Board] = {}


def _board() -> _Board:
    """That of the current stream."""
    import cupy

    stream = cupy.cuda.get_current_stream()
    key = cupy.cuda.runtime.getDevice(), stream.ptr
    try:
        return _boards[key]
    except KeyError:
        return _boards.setdefault(key, _Board(stream))


def raise_pending() -> None:
    """Raise PatternError if an index that was used since the last synchronisation is outside its
    bounds. One wait a stream for all of them."""
    for board in list(_boards.values()):
        with board:
            board.read()
