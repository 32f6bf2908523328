"""Pattern: where the stored entries of a sparse tensor are.

A Pattern is a light handle on a `Core`, which owns the index arrays and caches what is derived
from them. A handle names an order of its entries (the one in which `values` line up), a format (how
that order is presented) and whether the matrix is read transposed, so `.T` costs nothing and every
handle of one core shares all index work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsegrad import backends
from sparsegrad.device import Device
from sparsegrad.errors import PatternError, memory_for
from sparsegrad.structure.arrays import Array, as_ids, as_shape, index_dtype, owned
from sparsegrad.structure.core import Core, Format, Order

__all__ = ["Pattern"]

_FLIP = {"coo": "coo", "csr": "csc", "csc": "csr", "row": "col", "col": "row", "given": "given"}


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
        be = backends.for_array(arrays[0])
        if check and copy:
            kept, facts = be.copy_coords("indices", arrays, shape, dtype)
        else:
            if check:
                facts = be.check_coords("indices", arrays, shape)
            kept = tuple(owned(a, dtype, copy) for a in arrays)
        core = Core("coo", shape, kept)
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
        return self.ids(0)

    @property
    def col(self) -> Array:
        """Column of every entry (nnz,)."""
        self._two_dimensional("col")
        return self.ids(1)

    @property
    def indices(self) -> Array:
        """COO: (ndim, nnz). CSR: column of every entry (nnz,). CSC: row of every entry (nnz,)."""
        if self.format == "coo":
            return self.core.backend.xp.stack(self.coords)
        return self.ids(1 if self.format == "csr" else 0)

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
            if self.core._marks:
                self.core._marks.clear()

    # ---- what ops and backends read ------------------------------------------------------------
    def ids(self, dim: int) -> Array:
        """`coords[dim]` (nnz,), without the others."""
        axis = len(self.core.shape) - 1 - dim if self.transposed else dim
        return self.core.ids(self.order, axis)

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
        return self.core.cached((key, self.format, self.order, self.transposed), build)

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
            if not self.core.looks_like(other.core):
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
