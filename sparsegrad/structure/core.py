"""Core: the index arrays of a pattern, as they were given, and whatever is derived from them.

Its entries can be listed in up to three *orders*:

    "given"  as the arrays came
    "row"    row-major (lexicographic), stable for duplicates
    "col"    column-major, stable for duplicates (two sparse dimensions only)
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from sparsegrad import backends
from sparsegrad.config import current as settings
from sparsegrad.device import Device
from sparsegrad.errors import memory_for
from sparsegrad.structure.arrays import Array, frozen, invert

__all__ = ["Core", "Format", "Order", "watch_builds"]

Format = Literal["coo", "csr", "csc"]
Order = Literal["given", "row", "col"]

_numbers = itertools.count()  # of cores, in the order in which they were made
_SCARCE = 8  # lines an entry from which sorting costs less than a counter for each line

_watched: Callable[[Core, Any, Callable[[], Any]], Any] | None = None


def watch_builds(fn: Callable[[Core, Any, Callable[[], Any]], Any] | None) -> None:
    """Let `fn(core, key, build)` call `Core.built`; None ends that. For profiles."""
    global _watched
    _watched = fn


class Core:
    """Index arrays of one pattern and every cache derived from them.

    kind "coo": arrays = one id array (nnz,) per sparse dimension.
    kind "csr"/"csc": arrays = (indptr over the rows/columns, ids of the other dimension).
    """

    __slots__ = (
        "__weakref__", "_cache", "_lock", "_marks", "arrays", "kind", "nnz", "shape", "summary"
    )  # fmt: skip

    def __init__(self, kind: Format, shape: tuple[int, ...], arrays: tuple[Array, ...]) -> None:
        self.kind: Format = kind
        self.shape = shape
        self.arrays = tuple(frozen(a) for a in arrays)
        self.nnz = int(arrays[-1].size) if arrays else 0
        self.summary = (next(_numbers), kind, shape, self.nnz)  # what a profile keeps of it
        self._cache: dict[Any, Any] = {}
        self._marks: dict[Any, Any] = {}  # when a GPU will have built what is in the cache
        self._lock = threading.RLock()
        if settings.get().check_invariants:
            self.validate()

    def cached(self, key: Any, build: Callable[[], Any]) -> Any:
        """The value under `key`, built once, published under a lock. Work on another stream of a
        GPU that reads it comes after the work that writes it."""
        try:
            value = self._cache[key]
        except KeyError:
            with self._lock:
                if key not in self._cache:
                    value = (_watched or Core.built)(self, key, build)
                    mark = self.backend.mark()
                    if mark is not None:
                        self._marks[key] = mark
                    self._cache[key] = value
                value = self._cache[key]
        if self._marks and (mark := self._marks.get(key)) is not None:
            self.backend.wait(mark)
        return value

    def built(self, key: Any, build: Callable[[], Any]) -> Any:
        """What `cached` keeps, made now; OutOfMemoryError says what it was for."""
        while isinstance(key, tuple):
            key = key[0]
        with memory_for(f"{key} of a pattern of shape {self.shape} with {self.nnz} entries"):
            return build()

    def validate(self) -> None:
        """PatternError unless every index lies in the shape and offsets rise from 0 to nnz."""
        be = self.backend
        if self.kind == "coo":
            be.check_coords("indices", list(self.arrays), self.shape)
            return
        indptr, minor = self.arrays
        be.check_compressed(indptr, minor, self.shape[1 if self.kind == "csr" else 0])

    @property
    def backend(self) -> backends.Backend:
        return backends.for_array(self.arrays[-1])

    @property
    def device(self) -> Device:
        return backends.device_of(self.arrays[-1])

    def on(self, device: Device) -> Core:
        """This core on another device: copied once, and the copy knows the way back, weakly."""
        if self.device == device:
            return self
        home = self._cache.get("home", lambda: None)()
        if home is not None and home.device == device:
            return home

        def build() -> Core:
            host = [self.backend.to_host(a) for a in self.arrays]
            target = backends.for_device(device)
            copy = Core(self.kind, self.shape, tuple(target.asarray(a) for a in host))
            copy._cache["home"] = weakref.ref(self)
            if "facts" in self._cache:
                copy._cache["facts"] = self._cache["facts"]
            return copy

        return self.cached(("on", device), build)

    # ---- facts ---------------------------------------------------------------------------------
    def know_canonical(self, unique: bool = True) -> None:
        """Take it as known that entries were given in the canonical order of `kind`, and whether
        they are unique."""
        if self.kind == "csc":
            self._cache["perm", "col"] = None
        else:
            self._cache["perm", "row"] = None
            self._cache["facts"] = True, unique

    @property
    def row_sorted(self) -> bool:
        """Whether the given order is row-major."""
        return self._facts[0]

    @property
    def unique(self) -> bool:
        """Whether no coordinate is stored twice."""
        return self._facts[1]

    @property
    def _facts(self) -> tuple[bool, bool]:
        return self.cached("facts", self._find_facts)

    @property
    def is_sorted_out(self) -> bool:
        """Whether something is known of the row-major order already."""
        return ("perm", "row") in self._cache or "facts" in self._cache

    def survey(self) -> tuple[tuple[Array, ...], Array] | None:
        """The runs of duplicates in row-major order if a GPU finds them together with that order
        and the facts above, which then are known; else None, and each is found when asked for."""
        if self.kind != "coo" or self.is_sorted_out:
            return None
        found = self.built("perm", lambda: self.backend.survey(self.arrays, self.shape))
        if found is None:
            return None
        perm = found.perm
        if perm is not None:
            perm = perm.astype(self.arrays[-1].dtype, copy=False)
        self.cached(("perm", "row"), lambda: perm)
        self.cached("facts", lambda: (found.sorted, found.unique))
        return found.runs

    def _find_facts(self) -> tuple[bool, bool]:
        sorted_, unique = self.backend.order_facts(self.coords("given"))
        if not sorted_:
            coords = self.coords("col" if self.kind == "csc" else "row")
            ordered = coords[::-1] if self.kind == "csc" else coords
            unique = self.backend.order_facts(ordered)[1]
        return sorted_, unique

    # ---- orders --------------------------------------------------------------------------------
    def perm(self, order: Order) -> Array | None:
        """Positions in the given order of the entries listed in `order`; None for identity."""
        if order == "given":
            return None
        return self.cached(("perm", order), lambda: self._sort(order))

    def _sort(self, order: Order) -> Array | None:
        if order == "row" and self.kind == "csc":
            return self._regroup(0, self.perm("col"))
        if order == "col" and self.kind != "csc":
            return self._regroup(1, self.perm("row"))
        turned = slice(None, None, -1 if order == "col" else 1)
        perm = self.backend.sort_coo(self.coords("given")[turned], self.shape[turned])
        return None if perm is None else perm.astype(self.arrays[-1].dtype, copy=False)

    def _regroup(self, axis: int, first: Array | None) -> Array | None:
        """`first`, then stably by the ids along `axis`: row-major to column-major, or back."""
        ids, n = self.ids("given", axis), self.shape[axis]
        be, ids = self.backend, ids if first is None else ids[first]
        if n <= _SCARCE * ids.size:
            perm, offsets = be.group(ids, n)
            self.cached(("indptr", axis), lambda: frozen(offsets))
        else:  # a counter for each of n mostly empty lines may not even fit
            perm = be.sort_coo((ids,), (n,))
        if perm is None:
            return first
        perm = perm.astype(ids.dtype, copy=False)
        perm = perm if first is None else first[perm]
        return None if bool((perm[1:] > perm[:-1]).all()) else perm  # rising: nothing moves

    def inverse(self, order: Order) -> Array | None:
        """Positions in `order` of the entries as given; None for identity."""
        return self.cached(("inverse", order), lambda: invert(self.perm(order)))

    def moves(self, source: Order, target: Order) -> Array | None:
        """Positions in `source` order of the entries listed in `target`; None for identity."""
        if source == target:
            return None

        def build() -> Array | None:
            back, forth = self.inverse(source), self.perm(target)
            if back is None or forth is None:
                return forth if back is None else back
            both = back[forth]
            same = bool((both == self.backend.xp.arange(both.size, dtype=both.dtype)).all())
            return None if same else both

        return self.cached(("moves", source, target), build)

    # ---- arrays --------------------------------------------------------------------------------
    def coords(self, order: Order) -> tuple[Array, ...]:
        """One id array (nnz,) per sparse dimension, listed in `order`."""
        return tuple([self.ids(order, axis) for axis in range(len(self.shape))])

    def ids(self, order: Order, axis: int) -> Array:
        """The ids (nnz,) along one axis, listed in `order`; no others are listed for it."""
        if order != "given" and self.perm(order) is None:
            order = "given"
        if order == "given":
            if self.kind == "coo":
                return self.arrays[axis]
            if self.kind != self._by(axis):
                return self.arrays[1]
        return self.cached(("coords", order, axis), lambda: frozen(self._list(order, axis)))

    def _list(self, order: Order, axis: int) -> Array:
        grouped = {"row": 0, "col": 1}.get(order, axis)
        if axis == grouped and (self.kind == self._by(axis) or ("indptr", axis) in self._cache):
            dtype = self.arrays[-1].dtype
            return self.backend.expand(self.indptr(axis), self.nnz).astype(dtype, copy=False)
        return self.backend.gather(self.ids("given", axis), self.perm(order))

    def indptr(self, axis: int) -> Array:
        """Offsets (n + 1,) of the rows (axis 0) or columns (axis 1)."""
        if self.kind == self._by(axis):
            return self.arrays[0]

        def build() -> Array:
            ids = self.ids(("row", "col")[axis], axis)
            return frozen(self.backend.compress(ids, self.shape[axis]))

        return self.cached(("indptr", axis), build)

    def grouped(self, axis: int) -> Order:
        """The cheapest order in which entries are grouped by `axis`."""
        return "given" if self.kind == self._by(axis) else ("row", "col")[axis]

    @staticmethod
    def _by(axis: int) -> Format:
        """The kind that groups entries by this axis."""
        return "csc" if axis else "csr"

    def fingerprint(self) -> bytes:
        """Digest of the given coordinates: equal for equal index arrays."""

        def build() -> bytes:
            digest = hashlib.blake2b(repr((self.kind, self.shape, self.nnz)).encode())
            for array in self.arrays:
                digest.update(np.ascontiguousarray(self.backend.to_host(array), np.int64).tobytes())
            return digest.digest()

        return self.cached("fingerprint", build)

    def __reduce__(self) -> tuple[Any, ...]:
        host = tuple(self.backend.to_host(a) for a in self.arrays)
        return _rebuild, (self.kind, self.shape, host)


def _rebuild(kind: Format, shape: tuple[int, ...], arrays: tuple[Array, ...]) -> Core:
    return Core(kind, shape, arrays)
