"""Pattern: where the stored entries of a sparse tensor are.

A Pattern is a light handle on a `Core`. The core owns the index arrays as they were given and
caches whatever is derived from them. Its entries can be listed in up to three *orders*:

    "given"  as the arrays came
    "row"    row-major (lexicographic), stable for duplicates
    "col"    column-major, stable for duplicates (two sparse dimensions only)

A handle names an order (the order in which `values` line up), a format (how that order is
presented) and whether the matrix is read transposed, so `.T` costs nothing and every handle of
one core shares all index work.
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
from sparsegrad.errors import PatternError, memory_for
from sparsegrad.structure.arrays import (
    Array,
    as_ids,
    as_shape,
    frozen,
    index_dtype,
    invert,
    owned,
)

__all__ = ["Core", "Pattern"]

Format = Literal["coo", "csr", "csc"]
Order = Literal["given", "row", "col"]

_numbers = itertools.count()  # of cores, in the order in which they were made
_SCARCE = 8  # lines an entry from which sorting costs less than a counter for each line
_FLIP = {"coo": "coo", "csr": "csc", "csc": "csr", "row": "col", "col": "row", "given": "given"}

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

    def survey(self) -> tuple[tuple[Array, ...], Array] | None:
        """The runs of duplicates in row-major order if a GPU finds them together with that order
        and the facts above, which then are known; else None, and each is found when asked for."""
        if self.kind != "coo" or ("perm", "row") in self._cache or "facts" in self._cache:
            return None
        found = self.backend.survey(self.arrays, self.shape)
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
        be, coords = self.backend, self.coords("given")
        if order == "row" and self.kind == "csc":
            return self._regroup(coords[0], self.perm("col"), self.shape[0])
        if order == "col" and self.kind != "csc":
            return self._regroup(coords[1], self.perm("row"), self.shape[1])
        axes = coords[::-1] if order == "col" else coords
        perm = be.sort_coo(axes, self.shape[::-1] if order == "col" else self.shape)
        return None if perm is None else perm.astype(self.arrays[-1].dtype, copy=False)

    def _regroup(self, ids: Array, first: Array | None, n: int) -> Array | None:
        """`first`, then stably by `ids`: row-major to column-major, or back."""
        be, ids = self.backend, ids if first is None else ids[first]
        if n <= _SCARCE * ids.size:
            perm, _ = be.group(ids, n)
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
        perm = self.perm(order) if order != "given" else None
        if order != "given" and perm is None:
            return self.coords("given")
        return self.cached(("coords", order), lambda: self._list(perm))

    def _list(self, perm: Array | None) -> tuple[Array, ...]:
        if perm is not None:
            return tuple(frozen(self.backend.gather(c, perm)) for c in self.coords("given"))
        if self.kind == "coo":
            return self.arrays
        indptr, minor = self.arrays
        major = self.backend.expand(indptr, self.nnz).astype(minor.dtype, copy=False)
        major = frozen(major)
        return (major, minor) if self.kind == "csr" else (minor, major)

    def ids(self, order: Order, axis: int) -> Array:
        """The ids (nnz,) along one axis: of the minor one in the given order without listing the
        major one."""
        if order == "given" and self.kind == ("csc", "csr")[axis]:
            return self.arrays[1]
        return self.coords(order)[axis]

    def indptr(self, axis: int) -> Array:
        """Offsets (n + 1,) of the rows (axis 0) or columns (axis 1)."""
        if self.kind == ("csr", "csc")[axis]:
            return self.arrays[0]

        def build() -> Array:
            ids = self.coords(("row", "col")[axis])[axis]
            return frozen(self.backend.compress(ids, self.shape[axis]))

        return self.cached(("indptr", axis), build)

    def grouped(self, axis: int) -> Order:
        """The cheapest order in which entries are grouped by `axis`."""
        return "given" if self.kind == ("csr", "csc")[axis] else ("row", "col")[axis]

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


class Pattern:
    """Where the stored entries of a sparse tensor are: immutable, shared, never differentiated.

    Made by the constructors of `SparseTensor`; read it for its index arrays.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3))
    >>> A.pattern
    Pattern(shape=(2, 3), nnz=3, format='csr')
    >>> A.pattern.row, A.pattern.T.format
    (array([0, 0, 1], dtype=int32), 'csc')
    """

    __slots__ = ("core", "format", "order", "transposed")

    def __init__(
        self, core: Core, fmt: Format, order: Order = "given", transposed: bool = False
    ) -> None:
        self.core, self.format, self.order, self.transposed = core, fmt, order, transposed

    # ---- construction --------------------------------------------------------------------------
    @classmethod
    @memory_for("coo")
    def coo(
        cls, indices: Any, shape: tuple[int, ...], *, check: bool = True, copy: bool = True
    ) -> Pattern:
        """From coordinates (ndim, nnz); any order, duplicates allowed.

        Raises PatternError for indices that are not integers, of the wrong shape, or outside
        `shape`. `check=False` skips the bounds, `copy=False` shares the arrays.
        """
        shape = as_shape(shape)
        parts = list(indices) if isinstance(indices, (list, tuple)) else indices
        if len(parts) != len(shape):
            raise PatternError(
                f"indices: expected {len(shape)} rows for shape {shape}, got {len(parts)}"
            )
        if not shape:
            raise PatternError("shape: a sparse tensor needs at least one sparse dimension")
        arrays = [as_ids(f"indices[{d}]", part) for d, part in enumerate(parts)]
        if len({a.size for a in arrays}) > 1:
            raise PatternError(f"indices: lengths differ: {[a.size for a in arrays]}")
        dtype, facts = index_dtype(shape, arrays[0].size), None
        if check:
            facts = backends.for_array(arrays[0]).check_coords("indices", arrays, shape)
        core = Core("coo", shape, tuple(owned(a, dtype, copy) for a in arrays))
        if facts is not None and facts[0]:
            core.know_canonical(facts[1])
        return cls(core, "coo")

    @classmethod
    @memory_for("csr, csc")
    def compressed(
        cls,
        fmt: Format,
        indptr: Any,
        indices: Any,
        shape: tuple[int, ...],
        *,
        check: bool = True,
        copy: bool = True,
    ) -> Pattern:
        """From CSR or CSC arrays: indptr (n + 1,) over the major dimension, indices (nnz,).

        Raises PatternError for a wrong length, an indptr that does not start at 0, end at nnz and
        rise, or indices outside `shape`.
        """
        shape = as_shape(shape)
        if len(shape) != 2:
            raise PatternError(f"{fmt}: needs two sparse dimensions, got shape {shape}")
        major = shape[0 if fmt == "csr" else 1]
        minor = shape[1 if fmt == "csr" else 0]
        ptr, ids = as_ids("indptr", indptr), as_ids("indices", indices)
        if ptr.size != major + 1:
            raise PatternError(
                f"indptr: expected length {major + 1} for {fmt} of shape {shape}, got {ptr.size}"
            )
        if check:
            backends.for_array(ids).check_compressed(ptr, ids, minor)
        dtype = index_dtype(shape, ids.size)
        return cls(Core(fmt, shape, (owned(ptr, dtype, copy), owned(ids, dtype, copy))), fmt)

    # ---- what users read -----------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the sparse dimensions."""
        return self.core.shape[::-1] if self.transposed else self.core.shape

    @property
    def ndim(self) -> int:
        """Number of sparse dimensions."""
        return len(self.core.shape)

    @property
    def nnz(self) -> int:
        """Stored entries, explicit zeros and duplicates included."""
        return self.core.nnz

    @property
    def coords(self) -> tuple[Array, ...]:
        """One id array (nnz,) per sparse dimension, in entry order."""
        coords = self.core.coords(self.order)
        return coords[::-1] if self.transposed else coords

    @property
    def row(self) -> Array:
        """Row of every entry (nnz,)."""
        return self.coords[0]

    @property
    def col(self) -> Array:
        """Column of every entry (nnz,)."""
        self._two_dimensional("col")
        return self.coords[1]

    @property
    def indices(self) -> Array:
        """COO: (ndim, nnz). CSR: column of every entry (nnz,). CSC: row of every entry (nnz,)."""
        if self.format == "coo":
            return self.core.backend.xp.stack(self.coords)
        return self.coords[1 if self.format == "csr" else 0]

    @property
    def indptr(self) -> Array:
        """CSR: offsets of the rows (m + 1,). CSC: offsets of the columns (n + 1,)."""
        if self.format == "coo":
            raise PatternError("indptr: a coo pattern has none; convert with .to('csr') first")
        return self.core.indptr(self._axis(0 if self.format == "csr" else 1))

    @property
    def is_coalesced(self) -> bool:
        """Whether entries are unique and in canonical order (column-major for CSC, else
        row-major)."""
        if self.nnz == 0:
            return True
        canonical = self._canonical()
        return self.core.unique and self.core.moves(self.order, canonical) is None

    @property
    def device(self) -> Device:
        """Where the index arrays live."""
        return self.core.device

    def to_device(self, device: str | Device) -> Pattern:
        """This pattern on another device; the copy is made once and kept."""
        core = self.core.on(backends.named(device))
        if core is self.core:
            return self
        return Pattern(core, self.format, self.order, self.transposed)

    @property
    def T(self) -> Pattern:
        """The transposed pattern: O(1), another handle on the same core."""
        self._two_dimensional("T")
        return Pattern(self.core, _FLIP[self.format], self.order, not self.transposed)  # type: ignore[arg-type]

    @property
    def cache_nbytes(self) -> int:
        """Bytes that cached index arrays hold beyond the given ones."""
        seen = {id(a) for a in self.core.arrays}
        total = 0
        stack = list(self.core._cache.values())
        while stack:
            item = stack.pop()
            if isinstance(item, tuple):
                stack.extend(item)
            elif isinstance(item, Pattern):
                stack.extend(item.core.arrays)
            elif hasattr(item, "nbytes") and id(item) not in seen:
                seen.add(id(item))
                total += int(item.nbytes)
        return total

    def drop_caches(self) -> None:
        """Forget every derived array; they are rebuilt when needed."""
        with self.core._lock:
            self.core._cache.clear()
            self.core._marks.clear()

    # ---- what ops and backends read ------------------------------------------------------------
    def rows(self) -> tuple[Array, Array, Array | None]:
        """Entries grouped by row: indptr (m + 1,), columns (nnz,), positions in this pattern's
        entry order (nnz,) or None where they coincide."""
        self._two_dimensional("rows")
        axis = self._axis(0)
        order = self.core.grouped(axis)
        if self.core.moves(self.order, order) is None:  # already grouped: no values to move
            order = self.order
        return (
            self.core.indptr(axis),
            self.core.ids(order, 1 - axis),
            self.core.moves(self.order, order),
        )

    def sorted_rows(self) -> tuple[Array, Array, Array | None]:
        """Like `rows`, with columns rising within each row."""
        self._two_dimensional("sorted_rows")
        axis = self._axis(0)
        order: Order = ("row", "col")[axis]
        if self.core.moves(self.order, order) is None:
            order = self.order
        return (
            self.core.indptr(axis),
            self.core.ids(order, 1 - axis),
            self.core.moves(self.order, order),
        )

    def to(self, fmt: Format) -> tuple[Pattern, Array | None]:
        """This pattern in another format, and the positions (nnz,) in the old entry order of the
        new entries (None where the order does not change)."""
        if fmt not in ("coo", "csr", "csc"):
            raise PatternError(f"format: expected 'coo', 'csr' or 'csc', got {fmt!r}")
        if fmt == self.format:
            return self, None
        if fmt == "coo":
            order = self.order if self.format == "csr" else self._canonical("row")
        else:
            self._two_dimensional(f"to({fmt!r})")
            order = self.core.grouped(self._axis(0 if fmt == "csr" else 1))
        target = Pattern(self.core, fmt, order, self.transposed)
        return target, self.core.moves(self.order, order)

    def canonical(self) -> tuple[Pattern, Array | None]:
        """The same entries in canonical order (duplicates kept), and their old positions."""
        order = self._canonical()
        return Pattern(self.core, self.format, order, self.transposed), self.core.moves(
            self.order, order
        )

    def cached(self, key: Any, build: Callable[[], Any]) -> Any:
        """A value derived from this handle, kept as long as the core."""
        return self.core.cached((key, self.order, self.transposed), build)

    def same_as(self, other: Pattern) -> bool:
        """Whether values on `other` line up with values on this pattern.

        Patterns of one core are compared by identity; cores that only look different (after
        loading or transport) are compared once by fingerprint, and share one core from then on.
        """
        if self.shape != other.shape or self.nnz != other.nnz:
            return False
        if self.core is not other.core and self.device != other.device:
            return self.same_as(other.to_device(self.device))
        if self.core is not other.core:
            if self.core.fingerprint() != other.core.fingerprint():
                return False
            other.core = self.core
        return (
            self.transposed == other.transposed and self.core.moves(self.order, other.order) is None
        )

    def __repr__(self) -> str:
        return f"Pattern(shape={self.shape}, nnz={self.nnz}, format={self.format!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Pattern, (self.core, self.format, self.order, self.transposed)

    def __copy__(self) -> Pattern:
        return self  # immutable: copies of a tensor share it, and all index work with it

    def __deepcopy__(self, memo: dict[int, Any]) -> Pattern:
        return self

    def _axis(self, axis: int) -> int:
        return 1 - axis if self.transposed else axis

    def _canonical(self, visible: Order | None = None) -> Order:
        order = visible or ("col" if self.format == "csc" else "row")
        return _FLIP[order] if self.transposed else order  # type: ignore[return-value]

    def _two_dimensional(self, op: str) -> None:
        if len(self.core.shape) != 2:
            raise PatternError(f"{op}: needs two sparse dimensions, got shape {self.shape}")


def _rebuild(kind: Format, shape: tuple[int, ...], arrays: tuple[Array, ...]) -> Core:
    return Core(kind, shape, arrays)
