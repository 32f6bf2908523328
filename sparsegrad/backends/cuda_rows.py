"""Rows by index on the GPU: gather, and one kernel a step of an optimizer (kernels/rows.cu)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsegrad.backends.base import Array, Backend
from sparsegrad.backends.cuda_instances import SOURCES, STRUCTS, TABLES
from sparsegrad.backends.cuda_kernels import (
    accumulator_of,
    ctype_of,
    kernel,
    launch,
    power_of_two,
)
from sparsegrad.backends.steps import (
    AdagradFactors,
    AdamFactors,
    RmspropFactors,
    RowGradient,
    SgdFactors,
)

__all__ = ["CudaRows", "gather"]

_TILE = 64  # entries of a run that one group of lanes adds up: SG_ROWS_TILE
_WORD = np.dtype(np.uint32)
_FLOATS = ("float16", "bfloat16", "float32", "float64")


class CudaRows(Backend):
    """Steps that change p and its state in place, of many parameters in one launch, or two where
    entries of a row may be many. Arrays that are no block of memory and states of another dtype are
    the reference's.
    """

    def sgd(self, factors: SgdFactors, p: Array, g: Array, velocity: Array | None = None) -> None:
        self._step("sgd", factors, p, g, velocity)

    def sgd_rows(
        self, factors: SgdFactors, p: Array, grad: RowGradient, velocity: Array | None = None
    ) -> None:
        self._step("sgd_rows", factors, p, grad, velocity)

    def adagrad(self, factors: AdagradFactors, p: Array, g: Array, total: Array) -> None:
        self._step("adagrad", factors, p, g, total)

    def adagrad_rows(
        self, factors: AdagradFactors, p: Array, grad: RowGradient, total: Array
    ) -> None:
        self._step("adagrad_rows", factors, p, grad, total)

    def rowwise_adagrad(self, factors: AdagradFactors, p: Array, g: Array, total: Array) -> None:
        self._step("rowwise_adagrad", factors, p, g, total)

    def rowwise_adagrad_rows(
        self, factors: AdagradFactors, p: Array, grad: RowGradient, total: Array
    ) -> None:
        self._step("rowwise_adagrad_rows", factors, p, grad, total)

    def rmsprop(
        self, factors: RmspropFactors, p: Array, g: Array, square: Array, *state: Array
    ) -> None:
        self._step("rmsprop", factors, p, g, square, *state)

    def rmsprop_rows(
        self, factors: RmspropFactors, p: Array, grad: RowGradient, square: Array, *state: Array
    ) -> None:
        self._step("rmsprop_rows", factors, p, grad, square, *state)

    def adam(
        self, factors: AdamFactors, p: Array, g: Array, m: Array, v: Array, *state: Array
    ) -> None:
        self._step("adam", factors, p, g, m, v, *state)

    def adam_rows(
        self, factors: AdamFactors, p: Array, grad: RowGradient, m: Array, v: Array, *state: Array
    ) -> None:
        self._step("adam_rows", factors, p, grad, m, v, *state)

    def gather_tables(self, tables: Sequence[Array], index: Array) -> Array:
        found = _gather_tables(tables, index)
        return super().gather_tables(tables, index) if found is None else found

    def rows_of_many(self, name: str, steps: list[tuple[Any, ...]]) -> None:
        made = [_table(name, *step) for step in steps]
        _launch([table for table in made if table is not None])
        for table, (factors, p, grad, *state) in zip(made, steps, strict=True):
            if table is None:
                getattr(super(), f"{name}_rows")(factors, p, grad, *state)

    def _step(self, method: str, factors: Any, p: Array, g: Any, *state: Array | None) -> None:
        table = _table(method.removesuffix("_rows"), factors, p, g, *state)
        if table is None:
            getattr(super(), method)(factors, p, g, *state)
        else:
            _launch([table])


# ---- what the kernels are told of a parameter --------------------------------------------------
class _Numbers(NamedTuple):
    """Of a step: what all rows share, by the names of the kernel; state arrays by those of the
    table."""

    scalars: dict[str, float]
    state: dict[str, Array | None]


def _sgd(factors: SgdFactors, velocity: Array | None = None) -> _Numbers:
    scalars = {
        "rate": factors.lr,
        "momentum": factors.momentum,
        "decay": factors.weight_decay,
        "fresh": factors.fresh,
        "nesterov": int(factors.nesterov),
    }
    return _Numbers(scalars, {"first": velocity})


def _adagrad(factors: AdagradFactors, total: Array) -> _Numbers:
    scalars = {"rate": factors.lr, "decay": factors.weight_decay, "least": factors.eps}
    return _Numbers(scalars, {"first": total})


def _rmsprop(factors: RmspropFactors, square: Array, *state: Array) -> _Numbers:
    average, buffer = factors.named(state)
    scalars = {
        "rate": factors.lr,
        "alpha": factors.alpha,
        "fresh": 1 - factors.alpha,
        "momentum": factors.momentum,
        "decay": factors.weight_decay,
        "least": factors.eps,
    }
    return _Numbers(scalars, {"first": square, "second": average, "third": buffer})


def _adam(factors: AdamFactors, m: Array, v: Array, *state: Array) -> _Numbers:
    top, row_step = factors.named(state)
    scalars = {
        "b1": factors.b1,
        "new1": 1 - factors.b1,
        "b2": factors.b2,
        "new2": 1 - factors.b2,
        "log_b1": math.log(factors.b1) if factors.b1 else -math.inf,
        "log_b2": math.log(factors.b2) if factors.b2 else -math.inf,
        "rate": factors.lr if row_step is not None else factors.lr / factors.first,
        "scale": 1 / factors.second,
        "least": factors.eps,
        "decay": factors.weight_decay,
        "kept": factors.shrink,
    }
    return _Numbers(scalars, {"first": m, "second": v, "third": top, "row_step": row_step})


_NUMBERS: dict[str, Callable[..., _Numbers]] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "rowwise_adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "adam": _adam,
}


class _Table(NamedTuple):
    """One parameter's part of a launch. `fields` are those of the struct: numbers, and arrays,
    which live as long as this does."""

    key: tuple[Any, ...]  # kernel, types, whether every row is meant, scalars: alike in a launch
    fields: dict[str, Any]
    may_be_long: bool  # whether a row may have more entries than a group of lanes adds up

    def warps(self, items: int) -> int:
        """How many warps `items` rows or pieces of rows take."""
        return -(-items * self.fields["lanes"] // 32)


def _table(name: str, factors: Any, p: Array, g: Any, *state: Array | None) -> _Table | None:
    """A step with gradient `g`, a RowGradient or an array like p; None where there is no kernel for
    the arrays."""
    import cupy

    numbers = _NUMBERS[name](factors, *state)
    if not _in_place(name, p, numbers.state):
        return None
    everywhere = not isinstance(g, RowGradient)
    rows, perm, indptr, values, found = (None, None, None, g, None) if everywhere else g
    width = max(_width(p), 1)
    limit = p.size // width
    count = limit if rows is None else len(rows)
    values, stride = _apart(values.astype(p.dtype, copy=False), width)
    index = np.dtype(np.int32) if rows is None else rows.dtype
    perm, indptr, found = (
        a if a is None else cupy.ascontiguousarray(a, index) for a in (perm, indptr, found)
    )
    alike = [a for key, a in numbers.state.items() if a is not None and a.shape == p.shape]
    load = _load((width, stride), values, p, *alike)
    types = ctype_of(p.dtype), ctype_of(index), str(load)
    entries = values.size // width
    counted = numbers.state.get("row_step") is not None
    key = f"sg_rows_{name}", types, everywhere, counted, tuple(numbers.scalars.items())
    fields = {"rows": rows, "perm": perm, "indptr": indptr, "count_at": found, "values": values}
    fields |= {"p": p, **numbers.state, "count": count, "limit": limit, "entries": entries}
    fields |= {"width": width, "stride": stride, "lanes": min(32, power_of_two(-(-width // load)))}
    # The longest run there can be: all the others have one entry.
    least = count if found is None else 1
    return _Table(key, fields, indptr is not None and entries - least >= _TILE)


def _in_place(name: str, p: Array, state: dict[str, Array | None]) -> bool:
    """Whether a kernel can write to these arrays."""
    rows = p.shape[:1] or (1,)
    wanted = dict.fromkeys(state, (p.shape, p.dtype))
    wanted["row_step"] = rows, np.dtype(np.int64)
    if name == "rowwise_adagrad":
        wanted["first"] = rows, p.dtype
    return (
        p.dtype.name in _FLOATS
        and p.flags.c_contiguous
        and all(
            a is None or (a.flags.c_contiguous and (a.shape, a.dtype) == wanted[key])
            for key, a in state.items()
        )
    )


# ---- launches ----------------------------------------------------------------------------------
def _launch(tables: list[_Table]) -> None:
    """Make the steps: in one launch those that differ in their arrays only, and in another before
    it what they need of long runs."""
    alike: dict[Any, list[_Table]] = {}
    for table in tables:
        if table.fields["count"] and table.fields["p"].size:
            alike.setdefault(table.key, []).append(table)
    for (name, types, everywhere, _, scalars), those in alike.items():
        for start in range(0, len(those), TABLES):
            some = those[start : start + TABLES]
            long = [table for table in some if table.may_be_long]
            if long:
                _launch_one("sg_rows_parts", types, long, [_add_parts(table) for table in long])
            warps = [table.warps(table.fields["count"]) for table in some]
            _launch_one(name, types, some, warps, every=int(everywhere), **dict(scalars))


def _add_parts(table: _Table) -> int:
    """Room for the sums of what tiles hold of long runs, two places a tile; places of other runs
    stay as they are. The warps that fill it."""
    import cupy

    fields, (ctype, _, load) = table.fields, table.key[1]
    tiles, blocks = (
        -(-fields["entries"] // _TILE),
        -(-fields["width"] // (fields["lanes"] * int(load))),
    )
    fields["parts"] = cupy.empty((2 * tiles, fields["width"]), accumulator_of(ctype))
    return table.warps(tiles * blocks)


def _launch_one(
    name: str, types: tuple[str, ...], tables: list[_Table], warps: list[int], **scalars: Any
) -> None:
    packed, threads = _packed("SgTables", [table.fields for table in tables], warps)
    launch(kernel("rows", name, *types), threads, tables=packed, **scalars)


def _packed(
    struct: str, tables: Sequence[dict[str, Any]], warps: Iterable[int]
) -> tuple[np.ndarray, int]:
    """The argument that describes tables, numbers and arrays of each by their names, and the
    threads of all of them."""
    packed = np.zeros((), STRUCTS[struct])
    packed["count"] = len(tables)
    total = 0
    for slot, fields, own in zip(packed["table"], tables, warps, strict=False):
        total += own
        slot["until"] = total
        for field, value in fields.items():
            if value is not None:
                slot[field] = value.data.ptr if hasattr(value, "data") else value
    return packed, 32 * total


def _width(p: Array) -> int:
    return math.prod(p.shape[1:])


def _apart(values: Array, width: int) -> tuple[Array, int]:
    """The entries of a gradient, and how far they are apart, in numbers: it may be a part of that
    of several tables."""
    import cupy

    size = values.itemsize
    if values.ndim == 2 and values.strides[1] == size and values.strides[0] >= width * size:
        return values, values.strides[0] // size
    return cupy.ascontiguousarray(values), width


def _load(apart: tuple[int, int], *arrays: Array) -> int:
    """Elements a load: four where all rows begin at a multiple of that; else, and of fp64, one."""
    size = 4 * arrays[0].itemsize
    odd = any(n % 4 for n in apart) or any(a.data.ptr % size for a in arrays)
    return 1 if size > 16 or odd else 4


# ---- gather ------------------------------------------------------------------------------------
def gather(x: Array, index: Array) -> Array | None:
    """x[index] for index (e,); None where rows are no whole words, or not in one piece."""
    import cupy

    size = x.itemsize * _width(x) if x.ndim else 0
    if not (
        x.size
        and x.flags.c_contiguous
        and index.ndim == 1
        and index.dtype.name in ("int32", "int64")
        and size > _WORD.itemsize  # one word a row: CuPy's own is as good
        and size % _WORD.itemsize == 0
        and x.data.ptr % _WORD.itemsize == 0
    ):
        return None
    out = cupy.empty((index.size, *x.shape[1:]), x.dtype)
    width = size // _WORD.itemsize
    load = 4
    while width % load or x.data.ptr % (load * _WORD.itemsize):
        load //= 2
    lanes = min(32, power_of_two(-(-width // load)))
    words = (a.reshape(-1).view(_WORD) for a in (x, out))
    launch(
        kernel("rows", "sg_rows_gather", ctype_of(_WORD), ctype_of(index.dtype), str(load)),
        -(-index.size // 4) * lanes,
        x=next(words),
        index=cupy.ascontiguousarray(index),
        n=index.size,
        limit=len(x),
        width=width,
        lanes=lanes,
        out=next(words),
    )
    return out


def _gather_tables(tables: Sequence[Array], index: Array) -> Array | None:
    """`Backend.gather_tables`; None as for `gather`."""
    import cupy

    size, odd = _WORD.itemsize, 0
    for x in tables:
        odd |= x.shape[1] * x.itemsize | x.data.ptr  # the least bit that is set anywhere counts
    whole = odd % size == 0 and all(x.flags.c_contiguous for x in tables)
    if not whole or index.dtype.name not in ("int32", "int64"):
        return None
    load = 4
    while odd % (load * size):
        load //= 2
    index = cupy.ascontiguousarray(index)
    sources: list[dict[str, Any]] = []
    total = 0
    for x, ids in zip(tables, index, strict=True):
        width = x.shape[1] * x.itemsize // size
        if x.size:
            fields = {"x": x, "index": ids, "limit": len(x), "width": width, "column": total}
            sources.append(fields | {"lanes": min(32, power_of_two(-(-width // load)))})
        total += width
    n = index.shape[1]
    out = cupy.empty((n, sum(x.shape[1] for x in tables)), tables[0].dtype)
    gather = kernel(
        "rows", "sg_rows_gather_tables", ctype_of(_WORD), ctype_of(index.dtype), str(load)
    )
    for start in range(0, len(sources), SOURCES):
        some = sources[start : start + SOURCES]
        warps = (-(-n * fields["lanes"] // (4 * 32)) for fields in some)
        packed, threads = _packed("SgSources", some, warps)
        words = out.reshape(-1).view(_WORD)
        launch(gather, threads, tables=packed, n=n, total=total, out=words)
    return out
