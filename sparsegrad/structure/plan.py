"""Plans: the index half of structural operations, done once and cached.

Applying a plan is `take` and `segment_sum` on values, so none of these needs a gradient rule.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparsegrad import backends
from sparsegrad.device import Device
from sparsegrad.errors import ShapeError, memory_for
from sparsegrad.structure.arrays import Array, Moves, Runs, index_dtype
from sparsegrad.structure.core import Core, Order
from sparsegrad.structure.pattern import Pattern

__all__ = [
    "Intersection",
    "Merge",
    "Sums",
    "canonical_like",
    "coalesce",
    "expand",
    "flat_index",
    "intersection",
    "locate",
    "matching",
    "of_array",
    "of_lines",
    "remember",
    "sums_at",
    "union",
]

T = TypeVar("T")


class Sums:
    """values -> segment_sum(take(values, perm), indptr).

    perm: positions (nnz,), None for identity. indptr: runs (s + 1,), None if none is longer
    than 1. nnz: how many values there are, where `perm` leaves some out.
    """

    __slots__ = ("_nnz", "_pieces", "_slots", "indptr", "perm")

    def __init__(self, perm: Array, indptr: Array, nnz: int | None = None) -> None:
        self.perm, self.indptr, self._nnz = perm, indptr, nnz
        self._slots: Array = None
        self._pieces: tuple[Array, Array] | None = None

    @property
    def whole(self) -> bool:
        """Whether every value is in a run."""
        return self._nnz is None

    @property
    def slots(self) -> Array:
        """The run of each value (nnz,), where there are runs, one past the last for a value that is
        in none: the way back of gradients, found when there is one."""
        if self._slots is None:
            be = backends.for_array(self.indptr)
            nnz = int(self.indptr[-1]) if self.perm is None else int(self.perm.size)
            slots = runs = be.expand(self.indptr, nnz)
            if self.perm is not None:
                size = nnz if self._nnz is None else self._nnz
                slots = be.xp.full(size, self.indptr.size - 1, runs.dtype)
                slots[self.perm] = runs
            self._slots = slots  # whole: another thread may read it at once
        return self._slots

    @property
    def pieces(self) -> tuple[Array, Array]:
        """Offsets (p + 1,) of pieces of at most `_PIECE` entries that the runs are cut into, and of
        the pieces of each run (s + 1,), None where no run is longer than one."""
        if self._pieces is None:
            self._pieces = _pieces(self.indptr)
        return self._pieces


_PIECE = 1024


def _pieces(indptr: Array) -> tuple[Array, Array]:
    be, dtype = backends.for_array(indptr), indptr.dtype
    xp, counts = be.xp, be.xp.diff(indptr)
    if not counts.size or int(counts.max()) <= _PIECE:  # sync
        return indptr, None
    starts = xp.zeros(indptr.size, dtype)
    starts[1:] = xp.cumsum(xp.maximum(-(-counts // _PIECE), 1))
    total = int(starts[-1])
    run = be.expand(starts, total)
    begin = indptr[run] + (xp.arange(total, dtype=dtype) - starts[run]) * _PIECE
    return be.concatenate((begin.astype(dtype, copy=False), indptr[-1:])), starts


class Merge(Sums):
    """Duplicates summed: the runs, which lie on `pattern`."""

    __slots__ = ("pattern",)

    def __init__(self, pattern: Pattern, perm: Array, indptr: Array) -> None:
        super().__init__(perm, indptr)
        self.pattern = pattern

    def listed(self, order: Array, nnz: int | None = None) -> Sums:
        """The same sums in another order, a permutation of theirs: summed and moved in one pass.
        The number behind the last one stands for a sum of nothing, and may come often. With `nnz`,
        how many values there are, some of the sums may be left out."""
        be = backends.for_array(order)
        starts, offsets = be.line_runs(be.concatenate((self.indptr, self.indptr[-1:])), order)
        at, dtype = Runs(starts, offsets).positions, self.indptr.dtype
        perm = at if self.perm is None else self.perm[at]
        left_out = nnz if nnz != at.size else None
        return Sums(perm.astype(dtype, copy=False), offsets.astype(dtype, copy=False), left_out)


class Intersection(NamedTuple):
    """Entries that two patterns share, in canonical order, and their positions in either."""

    pattern: Pattern
    left: Array
    right: Array


def coalesce(pattern: Pattern) -> Merge:
    """Unique entries in canonical order (column-major for CSC, else row-major)."""
    runs = _survey(pattern)
    if pattern.is_coalesced:
        return Merge(pattern, None, None)
    target, perm = pattern.canonical()
    if pattern.core.unique:
        return Merge(target, perm, None)
    # The plan holds no handle on its own core (a cycle): the merged pattern has a new one.
    return pattern.cached("coalesce", lambda: _merge(target, perm, runs))


def _survey(pattern: Pattern) -> Any:
    """`Core.survey` where its order is the canonical one."""
    plain = not pattern.transposed and pattern.format != "csc"
    return pattern.core.survey() if plain else None


def _merge(listed: Pattern, perm: Array | None, runs: Any = None) -> Merge:
    coords, offsets = runs or listed.core.backend.runs(listed.coords)
    return Merge(canonical_like(listed, coords), perm, offsets)


def canonical_like(pattern: Pattern, coords: tuple[Array, ...], shape: Any = None) -> Pattern:
    """Canonical coordinates as a pattern in the format of `pattern`."""
    shape = pattern.shape if shape is None else shape
    dtype = index_dtype(shape, int(coords[0].size))
    coords = tuple(c.astype(dtype, copy=False) for c in coords)
    if pattern.format == "coo":
        core = Core("coo", shape, coords)
    else:
        major = 0 if pattern.format == "csr" else 1
        indptr = pattern.core.backend.compress(coords[major], shape[major])
        core = Core(pattern.format, shape, (indptr, coords[1 - major]))
    core.know_canonical()
    return Pattern(core, pattern.format)


def of_lines(pattern: Pattern, shape: tuple[int, ...], indptr: Array, minor: Array) -> Pattern:
    """Rows with rising columns (columns with rising rows, if `pattern` is CSC) as a pattern in the
    format of `pattern`: offsets and minor ids."""
    fmt, dtype = pattern.format, index_dtype(shape, int(minor.size))
    indptr, minor = (x.astype(dtype, copy=False) for x in (indptr, minor))
    if fmt == "coo":
        major = pattern.core.backend.expand(indptr, int(minor.size))
        core = Core("coo", shape, (major, minor))
    else:
        core = Core(fmt, shape, (indptr, minor))
    core.know_canonical()
    return Pattern(core, fmt)


def union(a: Pattern, b: Pattern) -> Merge:
    """Entries of either pattern: values -> the plan applied to cat(values of a, values of b)."""
    _same_shape("union", a, b)

    def build() -> Merge:
        if (found := _by_line("merge_rows", a, b)) is not None:
            indptr, minor, perm, runs = found
            return Merge(of_lines(a, a.shape, indptr, minor), perm, runs)
        xp = a.core.backend.xp
        coords = tuple(xp.concatenate((x, y)) for x, y in zip(a.coords, b.coords, strict=True))
        both = Pattern(Core("coo", a.shape, coords), "coo")
        order: Order = "col" if a.format == "csc" else "row"
        listed = Pattern(both.core, a.format, order)
        runs = _survey(listed)
        return _merge(listed, both.core.perm(order), runs)

    return remember("union", (a, b), build)


def _by_line(how: str, a: Pattern, b: Pattern) -> tuple[Array, Array, Array, Array] | None:
    """What a method of the backend finds of two matrices without duplicates whose rows (columns, if
    `a` is CSC) are sorted, or sorted once and for all; None where sorting everything is to be
    done."""
    if a.ndim != 2 or (a.format == "coo" and a.shape[0] > a.nnz + b.nnz):
        return None
    method = getattr(a.core.backend, how)
    return method(a.T, b.T) if a.format == "csc" else method(a, b)


def intersection(a: Pattern, b: Pattern) -> Intersection:
    """Entries of both, in any order; neither pattern may have duplicates."""
    _same_shape("intersection", a, b)

    def build() -> Intersection:
        one, two = coalesce(a), coalesce(b)
        pattern, left, right = _intersection(one.pattern, two.pattern)
        left = left if one.perm is None else one.perm[left]
        return Intersection(pattern, left, right if two.perm is None else two.perm[right])

    return remember("intersection", (a, b), build)


def _intersection(a: Pattern, b: Pattern) -> Intersection:
    if (found := _by_line("shared_rows", a, b)) is not None:
        indptr, minor, left, right = found
        return Intersection(of_lines(a, a.shape, indptr, minor), left, right)
    plan = union(a, b)
    xp = a.core.backend.xp
    indptr = plan.indptr
    both = xp.flatnonzero(xp.diff(indptr) == 2)
    start = indptr[both]
    perm = plan.perm if plan.perm is not None else xp.arange(a.nnz + b.nnz)
    first, second = perm[start], perm[start + 1]  # stable: the entry of `a` comes first
    kept = tuple(c[both] for c in plan.pattern.coords)
    return Intersection(canonical_like(a, kept), first, second - a.nnz)


def locate(entries: Pattern, target: Pattern) -> tuple[Array, Array]:
    """Where each entry of `entries` lies in the coalesced `target`: positions (nnz,), 0 where
    it is absent, and whether it is there (nnz,)."""
    return remember("locate", (entries, target), lambda: _locate(entries, target))


def _locate(entries: Pattern, target: Pattern) -> tuple[Array, Array]:
    merged = coalesce(entries)
    shared = intersection(merged.pattern, target)
    xp = entries.core.backend.xp
    position = xp.zeros(merged.pattern.nnz, dtype=shared.right.dtype)
    found = xp.zeros(merged.pattern.nnz, dtype=bool)
    position[shared.left] = shared.right
    found[shared.left] = True
    if merged.indptr is not None:  # back from unique entries to each duplicate
        ids = entries.core.backend.expand(merged.indptr, entries.nnz)
        position, found = position[ids], found[ids]
    if merged.perm is not None:
        back = xp.empty(entries.nnz, dtype=merged.perm.dtype)
        back[merged.perm] = xp.arange(entries.nnz, dtype=merged.perm.dtype)
        position, found = position[back], found[back]
    return position, found


def matching(target: Pattern, source: Pattern) -> Moves:
    """Where each entry of `target` lies in `source` (nnz of target,), one past the end for one that
    is absent there; neither has duplicates, so the way back is of the same kind."""

    def build() -> Moves:
        both, xp = intersection(target, source), target.core.backend.xp
        index = xp.full(target.nnz, source.nnz, both.left.dtype)
        back = xp.full(source.nnz, target.nnz, both.left.dtype)
        index[both.left], back[both.right] = both.right, both.left
        return Moves(index, lambda: back)

    return remember("matching", (target, source), build)


def sums_at(target: Pattern, source: Pattern) -> Sums:
    """What `source`, which has duplicates, sums to at each entry of the coalesced `target`: 0 for
    one that is absent there. Summed and moved in one pass."""

    def build() -> Sums:
        merge = coalesce(source)
        if merge.pattern.same_as(target):
            return merge
        return merge.listed(matching(target, merge.pattern).perm, source.nnz)

    return remember("sums_at", (target, source), build)


def expand(pattern: Pattern, shape: tuple[int, ...]) -> tuple[Pattern, Array]:
    """Size-1 dimensions repeated to `shape`: the pattern, and the old position of each entry."""

    def build() -> tuple[Pattern, Array]:
        xp = pattern.core.backend.xp
        coords = list(pattern.coords)
        position = xp.arange(pattern.nnz)
        for d, (old, new) in enumerate(zip(pattern.shape, shape, strict=True)):
            count = int(position.size)
            if old == new or not count:
                continue
            position = xp.repeat(position, new)
            coords = [xp.repeat(c, new) for c in coords]
            coords[d] = xp.tile(xp.arange(new), count)
        dtype = index_dtype(shape, int(position.size))
        core = Core("coo", shape, tuple(c.astype(dtype) for c in coords))
        target, order = Pattern(core, "coo").to(pattern.format)
        return target, position if order is None else position[order]

    return pattern.cached(("expand", shape), build)


def flat_index(pattern: Pattern, sizes: tuple[int, ...]) -> Array:
    """Row-major position (nnz,) of every entry in an array of `sizes`: the pattern's shape, with
    1 where the array is broadcast."""

    def build() -> Array:
        xp = pattern.core.backend.xp
        flat = xp.zeros(pattern.nnz, dtype="int64")
        for c, n in zip(pattern.coords, sizes, strict=True):
            flat *= n
            if n != 1:
                flat += c
        return flat

    return pattern.cached(("flat", sizes), build)


# ---- plans of several patterns: a small bounded cache that keeps none of them alive -------------
_PLANS: OrderedDict[Any, tuple[tuple[Any, ...], Any, Any, Any]] = OrderedDict()
_PLANS_LIMIT = 64
_SHORT = 1024  # bytes of an index that are looked up sooner than compared
_plans_lock = threading.RLock()


def remember(
    kind: Any,
    patterns: tuple[Pattern, ...],
    build: Callable[[], T],
    arrays: tuple[Array, ...] = (),
    device: Device | None = None,
) -> T:
    """The plan of that kind for these patterns and index arrays, built once; the oldest ones are
    forgotten. For plans of one pattern that come in many kinds (slices), and of several patterns.
    Work on another stream of a GPU that reads it comes after the work that writes it.

    arrays: those that nobody changes, as `of_array` returns them. device: where the plan lies, if
    there are no patterns.
    """
    key = (kind, *map(_handle, patterns), *map(id, arrays))
    holders = (*(p.core for p in patterns), *arrays)
    with _plans_lock:
        held = _PLANS.get(key)
        if held is not None and all(
            ref() is holder for ref, holder in zip(held[0], holders, strict=True)
        ):
            _PLANS.move_to_end(key)
        else:
            held = None
    if held is not None:
        _, plan, be, mark = held
        if mark is not None:
            be.wait(mark)
        return plan
    try:
        plan = build()
    except Exception as error:
        sizes = " and ".join(f"{p.shape} with {p.nnz} entries" for p in patterns)
        while isinstance(kind, tuple):
            kind = kind[0]
        memory_for(f"{kind} of patterns of shape {sizes}" if patterns else kind).explain(error)
        raise
    be = backends.for_device(device) if device else patterns[0].core.backend
    mark = be.mark()

    def forget(_: Any) -> None:
        with _plans_lock:
            _PLANS.pop(key, None)

    with _plans_lock:
        _PLANS[key] = (tuple(weakref.ref(h, forget) for h in holders), plan, be, mark)
        while len(_PLANS) > _PLANS_LIMIT:
            _PLANS.popitem(last=False)
    return plan


def of_array(kind: Any, array: Array, device: Device, build: Callable[[Array], T]) -> T:
    """What `build` makes of an index array of a user, who may change it afterwards.

    For a device where looking at an index means waiting, it is kept with a copy of the array as
    long as that lives, and made anew where they differ: one launch, and the wait that there was
    before. A short array in host memory, such as a list, is known by what it holds. Plans may then
    be remembered for the result.
    """
    if not backends.for_device(device).keeps_ids:
        return build(array)
    if isinstance(array, np.ndarray) and array.nbytes <= _SHORT:
        held = array.dtype.str, array.shape, array.tobytes()
        return remember((kind, device, held), (), lambda: build(array.copy()), (), device)
    made = []

    def make() -> tuple[Array, T]:
        made.append(array.copy())
        return made[0], build(made[0])

    copy, found = remember((kind, device), (), make, (array,), device)
    if not made and not backends.for_array(array).same(copy, array):
        with _plans_lock:
            _PLANS.pop(((kind, device), id(array)), None)
        found = remember((kind, device), (), make, (array,), device)[1]
    return found


def _handle(p: Pattern) -> tuple[Any, ...]:
    return id(p.core), p.format, p.order, p.transposed


def _same_shape(op: str, a: Pattern, b: Pattern) -> None:
    if a.shape != b.shape:
        raise ShapeError(f"{op}: patterns have shapes {a.shape} and {b.shape}")
