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
_GLANCE = 256  # entries of two patterns that are compared before all are looked at

_NOTHING = object()
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
        self.arrays = tuple(map(frozen, arrays))
        self.nnz = int(arrays[-1].size) if arrays else 0
        self.summary = (next(_numbers), kind, shape, self.nnz)  # what a profile keeps of it
        self._cache: dict[Any, Any] = {}
        # When a GPU will have built what is in the cache.
        self._marks: dict[Any, Any] | None = None if isinstance(arrays[-1], np.ndarray) else {}
        self._lock = threading.RLock()
        if settings.get().check_invariants:
            self.validate()

    def cached(self, key: Any, build: Callable[[], Any]) -> Any:
        """The value under `key`, built once, published under a lock. Work on another stream of a
        GPU that reads it comes after the work that writes it."""
        value = self._cache.get(key, _NOTHING)
        if value is _NOTHING:
            with self._lock:
                if key not in self._cache:
                    value = (_watched or Core.built)(self, key, build)
                    if self._marks is not None and (mark := self.backend.mark()) is not None:
                        self._marks[key] = mark
                    self._cache[key] = value
                value = self._cache[key]
        if self._marks and (mark := self._marks.get(key)) is not None:
            self.backend.wait(mark)
        return value

    def built(self, key: Any, build: Callable[[], Any]) -> Any:
        """What `cached` keeps, made now; OutOfMemoryError says what it was for."""

        try:
            return build()
        except Exception as error:
            while isinstance(key, tuple):
                key = key[0]
            what = f"{key} of a pattern of shape {self.shape} with {self.nnz} entries"
            memory_for(what).explain(error)
            raise

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
            for fact in ("given", "unique"):
                if fact in self._cache:
                    copy._cache[fact] = self._cache[fact]
            return copy

        return self.cached(("on", device), build)

    # ---- facts ---------------------------------------------------------------------------------
    def know_canonical(self, unique: bool = True) -> None:
        """Take it as known that entries were given in the canonical order of `kind`, and whether
        they are unique."""
        self._cache["perm", "col" if self.kind == "csc" else "row"] = None
        self._cache["given"], self._cache["unique"] = (True, unique), unique

    @property
    def unique(self) -> bool:
        """Whether no coordinate is stored twice."""
        return self.cached("unique", self._is_unique)

    @property
    def _given(self) -> tuple[bool, bool]:
        """Whether entries were given in the canonical order of `kind`, and moreover each once."""

        def build() -> tuple[bool, bool]:
            be, coo = self.backend, self.kind == "coo"
            facts = be.order_facts(self.arrays) if coo else be.line_facts(*self.arrays)
            if facts[0]:
                self.know_canonical(facts[1])
            return facts

        return self.cached("given", build)

    @property
    def is_sorted_out(self) -> bool:
        """Whether something is known of the row-major order already."""
        return ("perm", "row") in self._cache or "given" in self._cache

    def look_with(self, group: Any) -> None:
        """Let `survey` and `touched` first ask the functions of these names of `group`, which
        answers for other cores as well."""
        self._cache["group"] = group

    def touched(self) -> tuple[Array, Array, Array, Array] | None:
        """`Backend.touched`, of entries along one dimension."""
        group = self._cache.get("group")
        found = None if group is None else group.touched()
        return found or self.backend.touched(self.arrays[0], self.shape[0])

    def survey(self) -> tuple[tuple[Array, ...], Array] | None:
        """The runs of duplicates in row-major order if a GPU finds them together with that order
        and the facts above, which then are known; else None, and each is found when asked for."""
        if self.kind != "coo" or self.is_sorted_out:
            return None
        group = self._cache.get("group")
        look = (lambda: None) if group is None else group.survey
        found = self.built("perm", lambda: look() or self.backend.survey(self.arrays, self.shape))
        if found is None:
            return None
        perm = found.perm
        if perm is not None:
            perm = perm.astype(self.arrays[-1].dtype, copy=False)
        self.cached(("perm", "row"), lambda: perm)
        self.cached("given", lambda: (found.sorted, found.sorted and found.unique))
        self.cached("unique", lambda: found.unique)
        return found.runs

    def _is_unique(self) -> bool:
        sorted_, unique = self._given
        if sorted_:
            return unique
        ordered = self.coords("col")[::-1] if self.kind == "csc" else self.coords("row")
        return self.backend.order_facts(ordered)[1]

    # ---- orders --------------------------------------------------------------------------------
    def perm(self, order: Order) -> Array | None:
        """Positions in the given order of the entries listed in `order`; None for identity."""
        if order == "given":
            return None
        return self.cached(("perm", order), lambda: self._sort(order))

    def _sort(self, order: Order) -> Array | None:
        be, dtype = self.backend, self.arrays[-1].dtype
        if order == ("col" if self.kind == "csc" else "row"):
            # Sorting coordinates begins with a look at them.
            if (self.kind != "coo" or "given" in self._cache) and self._given[0]:
                return None
        elif self.kind == "coo":
            return self._by_column()
        else:
            return self._turned(1 if order == "col" else 0)
        turned = slice(None, None, -1 if order == "col" else 1)
        perm = be.sort_coo(self.coords("given")[turned], self.shape[turned])
        return None if perm is None else perm.astype(dtype, copy=False)

    def _turned(self, axis: int) -> Array | None:
        """Lines along the other axis: stably by the ids along this one."""
        be, (indptr, ids), n = self.backend, self.arrays, self.shape[axis]
        if be.order_facts((ids,))[0]:
            return None
        if n > _SCARCE * ids.size:  # a counter for each of n mostly empty lines may not even fit
            found = be.sort_coo((ids,), (n,))
            return None if found is None else found.astype(ids.dtype, copy=False)
        perm, offsets, lines = be.regroup(indptr, ids, n)
        self.cached(("indptr", axis), lambda: frozen(offsets))
        self.cached(("coords", ("row", "col")[axis], 1 - axis), lambda: frozen(lines))
        return perm

    def _by_column(self) -> Array | None:
        """Coordinates in row-major order, then stably by column."""
        be, first, n = self.backend, self.perm("row"), self.shape[1]
        if be.order_facts(self.arrays[::-1])[0]:
            return None
        ids = self.arrays[1] if first is None else self.arrays[1][first]
        if n <= _SCARCE * ids.size:
            perm, offsets = be.group(ids, n)
            self.cached(("indptr", 1), lambda: frozen(offsets))
        else:
            perm = be.sort_coo((ids,), (n,))
        perm = None if perm is None else perm.astype(ids.dtype, copy=False)
        return perm if first is None else first if perm is None else first[perm]

    def inverse(self, order: Order) -> Array | None:
        """Positions in `order` of the entries as given; None for identity."""
        if order == "given" or self.perm(order) is None:
            return None
        return self.cached(("inverse", order), lambda: invert(self.perm(order)))

    def moves(self, source: Order, target: Order) -> Array | None:
        """Positions in `source` order of the entries listed in `target`; None for identity."""
        if source == target:
            return None
        if source == "given":
            return self.perm(target)
        if target == "given":
            return self.inverse(source)

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

    def looks_like(self, other: Core) -> bool:
        """Whether another core on the same device has equal arrays: by their first entries, which
        mostly differ where any do, and then by fingerprint."""
        if self.kind != other.kind:
            return False
        for a, b in zip(self.arrays, other.arrays, strict=True):
            if isinstance(a, np.ndarray) and not np.array_equal(a[:_GLANCE], b[:_GLANCE]):
                return False
        return self.fingerprint() == other.fingerprint()

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
