"""Rows by index on the GPU: gather, and one kernel a step of an optimizer (kernels/rows.cu)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsegrad.backends.base import Array, Backend
from sparsegrad.backends.cuda_kernels import (
    accumulator_of,
    ctype_of,
    kernel,
    launch,
    power_of_two,
)
from sparsegrad.backends.steps import AdagradFactors, AdamFactors, RowGradient, SgdFactors

__all__ = ["CudaRows", "gather"]

_TILE = 64  # entries of a run that one group of lanes adds up: SG_ROWS_TILE
_WORD = np.dtype(np.uint32)
_FLOATS = ("float16", "bfloat16", "float32", "float64")


class CudaRows(Backend):
    """Steps that change p and its state in place, in one launch, or two where entries of a row may
    be many. Arrays that are no block of memory, states of another dtype, dampening, AMSGrad and
    RMSprop are the reference's.
    """

    def sgd(self, factors: SgdFactors, p: Array, g: Array, velocity: Array | None = None) -> None:
        if not _sgd(factors, p, g, velocity):
            super().sgd(factors, p, g, velocity)

    def sgd_rows(
        self, factors: SgdFactors, p: Array, grad: RowGradient, velocity: Array | None = None
    ) -> None:
        if not _sgd(factors, p, grad, velocity):
            super().sgd_rows(factors, p, grad, velocity)

    def adagrad(self, factors: AdagradFactors, p: Array, g: Array, total: Array) -> None:
        if not _adagrad(factors, p, g, total):
            super().adagrad(factors, p, g, total)

    def adagrad_rows(
        self, factors: AdagradFactors, p: Array, grad: RowGradient, total: Array
    ) -> None:
        if not _adagrad(factors, p, grad, total):
            super().adagrad_rows(factors, p, grad, total)

    def rowwise_adagrad(self, factors: AdagradFactors, p: Array, g: Array, total: Array) -> None:
        if not _rowwise_adagrad(factors, p, g, total):
            super().rowwise_adagrad(factors, p, g, total)

    def rowwise_adagrad_rows(
        self, factors: AdagradFactors, p: Array, grad: RowGradient, total: Array
    ) -> None:
        if not _rowwise_adagrad(factors, p, grad, total):
            super().rowwise_adagrad_rows(factors, p, grad, total)

    def adam(
        self, factors: AdamFactors, p: Array, g: Array, m: Array, v: Array, *state: Array
    ) -> None:
        if not _adam(factors, p, g, m, v, *state):
            super().adam(factors, p, g, m, v, *state)

    def adam_rows(
        self, factors: AdamFactors, p: Array, grad: RowGradient, m: Array, v: Array, *state: Array
    ) -> None:
        if not _adam(factors, p, grad, m, v, *state):
            super().adam_rows(factors, p, grad, m, v, *state)


# ---- one launch a step; False where there is no kernel for the arrays --------------------------
def _sgd(factors: SgdFactors, p: Array, g: Any, velocity: Array | None) -> bool:
    state = () if velocity is None else (velocity,)
    if factors.fresh != 1:
        return False
    return _in_place(p, *state) and _step(
        "sg_rows_sgd",
        p,
        g,
        *state,
        rate=factors.lr,
        momentum=factors.momentum,
        decay=factors.weight_decay,
        nesterov=int(factors.nesterov),
        velocity_or_null=velocity,
    )


def _adagrad(factors: AdagradFactors, p: Array, g: Any, total: Array) -> bool:
    return _in_place(p, total) and _step(
        "sg_rows_adagrad",
        p,
        g,
        total,
        rate=factors.lr,
        decay=factors.weight_decay,
        least=factors.eps,
        total=total,
    )


def _rowwise_adagrad(factors: AdagradFactors, p: Array, g: Any, total: Array) -> bool:
    fits = total.dtype == p.dtype and total.flags.c_contiguous
    return (
        fits
        and _in_place(p)
        and _step(
            "sg_rows_rowwise_adagrad",
            p,
            g,
            rate=factors.lr,
            decay=factors.weight_decay,
            least=factors.eps,
            share=1 / max(_width(p), 1),
            total=total,
        )
    )


def _adam(factors: AdamFactors, p: Array, g: Any, m: Array, v: Array, *state: Array) -> bool:
    top, row_step = factors.named(state)
    if top is not None:
        return False
    return _in_place(p, m, v) and _step(
        "sg_rows_adam",
        p,
        g,
        m,
        v,
        b1=factors.b1,
        new1=1 - factors.b1,
        b2=factors.b2,
        new2=1 - factors.b2,
        log_b1=math.log(factors.b1) if factors.b1 else -math.inf,
        log_b2=math.log(factors.b2) if factors.b2 else -math.inf,
        rate=factors.lr if row_step is not None else factors.lr / factors.first,
        scale=1 / factors.second,
        least=factors.eps,
        decay=factors.weight_decay,
        kept=factors.shrink,
        m=m,
        v=v,
        row_step_or_null=row_step,
    )


def _step(name: str, p: Array, g: Any, *state: Array, **arguments: Any) -> bool:
    """Launch a step with gradient `g`, a RowGradient or an array like p; state has p's shape."""
    import cupy

    everywhere = not isinstance(g, RowGradient)
    rows, perm, indptr, values = (None, None, None, g) if everywhere else g
    width, count = _width(p), len(rows) if rows is not None else p.size // max(_width(p), 1)
    if not (count and width):
        return True
    values = cupy.ascontiguousarray(values, dtype=p.dtype)
    index = np.dtype(np.int32) if rows is None else rows.dtype
    perm, indptr = (a if a is None else cupy.ascontiguousarray(a, index) for a in (perm, indptr))
    types = ctype_of(p.dtype), ctype_of(index), str(_load(width, values, p, *state))
    lanes = min(32, power_of_two(-(-width // int(types[2]))))
    entries = values.size // width
    # The longest run there can be: all the others have one entry.
    parts = None if indptr is None or entries - count < _TILE else _parts(
        types, values, perm, indptr, entries, count, width, lanes
    )  # fmt: skip
    launch(
        kernel("rows", name, *types),
        count * lanes,
        rows_or_null=rows,
        perm_or_null=perm,
        indptr_or_null=indptr,
        values=values,
        parts_or_null=parts,
        count=count,
        limit=p.size // width,
        width=width,
        lanes=lanes,
        every=int(everywhere),
        p=p,
        **arguments,
    )
    return True


def _parts(
    types: tuple[str, ...],
    values: Array,
    perm: Array | None,
    indptr: Array,
    entries: int,
    count: int,
    width: int,
    lanes: int,
) -> Array:
    """Sums of what tiles hold of long runs, two places a tile; the other places hold nothing."""
    import cupy

    tiles, blocks = -(-entries // _TILE), -(-width // (lanes * int(types[2])))
    parts = cupy.empty((2 * tiles, width), accumulator_of(types[0]))
    launch(
        kernel("rows", "sg_rows_parts", *types),
        tiles * blocks * lanes,
        values=values,
        perm_or_null=perm,
        indptr=indptr,
        n=entries,
        count=count,
        width=width,
        lanes=lanes,
        parts=parts,
    )
    return parts


def _width(p: Array) -> int:
    return math.prod(p.shape[1:])


def _in_place(p: Array, *state: Array) -> bool:
    """Whether a kernel can write to these arrays."""
    return p.dtype.name in _FLOATS and all(
        a.flags.c_contiguous and a.dtype == p.dtype and a.shape == p.shape for a in (p, *state)
    )


def _load(width: int, *arrays: Array) -> int:
    """Elements a load: four where all rows begin at a multiple of that; else, and of fp64, one."""
    size = 4 * arrays[0].itemsize
    return 1 if size > 16 or width % 4 or any(a.data.ptr % size for a in arrays) else 4


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
