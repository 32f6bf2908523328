"""Steps of optimizers for `CpuJit`: one pass over parameter, gradient and state."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu import Cpu
from sparsegrad.backends.cpu_jit_calls import F4, F8, I4, I8, kernel_of
from sparsegrad.backends.cpu_jit_launch import contiguous, launch
from sparsegrad.backends.cpu_jit_part import CpuJitPart
from sparsegrad.backends.quiet import SILENT, restore, silence
from sparsegrad.backends.steps import (
    AdagradFactors,
    AdamFactors,
    RmspropFactors,
    RowGradient,
    SgdFactors,
)

__all__ = ["CpuJitSteps"]

_MIN_STEP = 1 << 12  # elements below which NumPy serves
_CHUNK = 1 << 14  # elements of a task, at least
_MAX_TASKS = 1024
_NONE = {dtype: np.empty(0, dtype) for dtype in (F4, F8)}


class CpuJitSteps(CpuJitPart):
    """Kernels of `cpu_jit_kernels_steps`."""

    def sgd(self, factors: SgdFactors, p: Array, g: Array, velocity: Array | None = None) -> None:
        if not self._step("sgd", factors, p, g, velocity):
            super().sgd(factors, p, g, velocity)

    def adagrad(self, factors: AdagradFactors, p: Array, g: Array, total: Array) -> None:
        if not self._step("adagrad", factors, p, g, total):
            super().adagrad(factors, p, g, total)

    def rowwise_adagrad(self, factors: AdagradFactors, p: Array, g: Array, total: Array) -> None:
        width = math.prod(p.shape[1:])
        fits = p.ndim and _in_place(p) and total.flags.carray and total.dtype == p.dtype
        if not (fits and width and self._pays(p.size, _MIN_STEP)) or g.shape != p.shape:
            return super().rowwise_adagrad(factors, p, g, total)
        wide = [a.reshape(len(p), width) for a in (p, contiguous(g, p.dtype))]
        chunk = max(1, _CHUNK // width, -(-len(p) // _MAX_TASKS))
        args = (chunk, *factors, *wide, total)
        launch(_kernel("rowwise_adagrad", p.dtype), args, -(-len(p) // chunk), 4 * p.size)
        return None

    def rmsprop(
        self, factors: RmspropFactors, p: Array, g: Array, square: Array, *state: Array
    ) -> None:
        if not self._step("rmsprop", factors, p, g, square, *factors.named(state)):
            super().rmsprop(factors, p, g, square, *state)

    def adam(
        self, factors: AdamFactors, p: Array, g: Array, m: Array, v: Array, *state: Array
    ) -> None:
        top, row_step = factors.named(state)
        if row_step is not None or not self._step("adam", factors, p, g, m, v, top):
            super().adam(factors, p, g, m, v, *state)

    def sgd_rows(
        self, factors: SgdFactors, p: Array, grad: RowGradient, velocity: Array | None = None
    ) -> None:
        if not self._step_rows("sgd_rows", factors, p, grad, (velocity,)):
            super().sgd_rows(factors, p, grad, velocity)

    def adagrad_rows(
        self, factors: AdagradFactors, p: Array, grad: RowGradient, total: Array
    ) -> None:
        if not self._step_rows("adagrad_rows", factors, p, grad, (total,)):
            super().adagrad_rows(factors, p, grad, total)

    def rowwise_adagrad_rows(
        self, factors: AdagradFactors, p: Array, grad: RowGradient, total: Array
    ) -> None:
        if not self._step_rows("rowwise_adagrad_rows", factors, p, grad, (), (total,)):
            super().rowwise_adagrad_rows(factors, p, grad, total)

    def rmsprop_rows(
        self, factors: RmspropFactors, p: Array, grad: RowGradient, square: Array, *state: Array
    ) -> None:
        held = square, *factors.named(state)
        if not self._step_rows("rmsprop_rows", factors, p, grad, held):
            super().rmsprop_rows(factors, p, grad, square, *state)

    def adam_rows(
        self, factors: AdamFactors, p: Array, grad: RowGradient, m: Array, v: Array, *state: Array
    ) -> None:
        top, row_step = factors.named(state)
        counts = np.empty(0, np.int64) if row_step is None else row_step
        if not self._step_rows("adam_rows", factors, p, grad, (m, v, top), (counts,)):
            super().adam_rows(factors, p, grad, m, v, *state)

    def rows_of_many(self, name: str, steps: list[tuple[Any, ...]]) -> None:
        # A step that is too small to be shared out is made by one thread, others beside it.
        sizes = [step[2].values.size for step in steps]
        if len(steps) < 2 or not self._pays(max(sizes), _MIN_STEP):
            super().rows_of_many(name, steps)
        else:
            launch(_each, (getattr(self, f"{name}_rows"), steps), len(steps), 4 * sum(sizes))

    def steps_of_many(self, name: str, steps: list[tuple[Any, ...]]) -> None:
        # Small ones by a kernel as well, where it is needed for others anyway.
        pays = len(steps) > 1 and self._pays(sum(step[1].size for step in steps), _MIN_STEP)
        every: Any = type(self)
        Cpu.steps_of_many(every(always=True) if pays else self, name, steps)

    def _step(self, name: str, factors: Any, p: Array, g: Array, *state: Array | None) -> bool:
        """Whether a kernel has made the step; state that is not used is None."""
        if not self._pays(p.size, _MIN_STEP) or g.shape != p.shape or not _in_place(p, *state):
            return False
        arrays = (p, contiguous(g, p.dtype), *state)
        flat = [_NONE[p.dtype] if a is None else a.reshape(-1) for a in arrays]
        chunk = max(_CHUNK, -(-p.size // _MAX_TASKS))
        args = (chunk, *factors, *flat)
        launch(_kernel(name, p.dtype), args, -(-p.size // chunk), 4 * p.size)
        return True

    def _step_rows(
        self,
        name: str,
        factors: Any,
        p: Array,
        grad: RowGradient,
        state: tuple[Array | None, ...],
        rest: tuple[Array, ...] = (),
    ) -> bool:
        """Whether a kernel has made the step in touched rows. `state` has the shape of p, or is
        None where it is not used; `rest` are arguments that go to the kernel as they are."""
        rows, perm, indptr, values, _ = grad
        width = math.prod(p.shape[1:])
        if not (
            self._pays(values.size, _MIN_STEP)
            and width
            and rows.dtype in (I4, I8)
            and _in_place(p, *state)
            and all(a.flags.carray for a in rest)
            and (name != "rowwise_adagrad_rows" or rest[0].dtype == p.dtype)
        ):
            return False
        none = np.empty(0, rows.dtype)
        index = [none if a is None else contiguous(a, rows.dtype) for a in (rows, perm, indptr)]
        unused = np.empty((0, 0), p.dtype)
        wide = [unused if a is None else a.reshape(len(p), width) for a in (p, *state)]
        if self._pays(values.size, _CHUNK):
            entries = _rows(values, p.dtype, width)
        else:
            entries = contiguous(values, p.dtype).reshape(len(values), width)
        cuts = _cuts(len(rows), index[2], width)
        args = (cuts, *index, entries, *factors, *wide, *rest)
        kernel = _kernel(name, p.dtype, rows.dtype)
        launch(kernel, args, len(cuts) - 1, entries.size + 2 * len(rows) * width)
        return True


def _each(ticket: Array, step: Callable[..., None], steps: list[tuple[Any, ...]]) -> None:
    """A kernel in Python, of steps that do not depend on each other: nearly all of their time is
    without the interpreter lock."""
    draw, token = kernel_of("next_task"), silence(SILENT)
    try:
        while (t := draw(ticket)) < len(steps):
            step(*steps[t])
    finally:
        restore(token)


def _rows(values: Array, dtype: np.dtype, width: int) -> Array:
    """The entries (e, width) of a gradient, as kernels take them: of a part of a wider array, rows
    as far as the next one begins, of which they read the first `width` numbers only."""
    size = dtype.itemsize
    apart, rest = divmod(values.strides[0], size)
    part = values.ndim == 2 and values.strides[1] == size and values.flags.aligned
    if not part or values.dtype != dtype or apart <= width or rest:
        return contiguous(values, dtype).reshape(len(values), width)
    shape = len(values), apart
    return np.lib.stride_tricks.as_strided(values, shape, values.strides, writeable=False)


def _cuts(rows: int, indptr: Array, width: int) -> Array:
    """Chunks of about equal numbers of entries."""
    entries = int(indptr[-1]) if indptr.size else rows
    tasks = min(max(entries * width // _CHUNK, 1), _MAX_TASKS)
    if tasks == 1:
        return np.array((0, rows))
    at = np.arange(tasks + 1) * entries // tasks
    return np.searchsorted(indptr, at).astype(np.int64) if indptr.size else at


def _in_place(p: Array, *state: Array | None) -> bool:
    """Whether a kernel can write to these arrays."""
    dtype, shape = p.dtype, p.shape
    if dtype not in _NONE or not p.flags.carray:
        return False
    for a in state:
        if a is not None and not (a.flags.carray and a.dtype == dtype and a.shape == shape):
            return False
    return True


@cache
def _kernel(name: str, *dtypes: np.dtype) -> Any:
    from sparsegrad.backends import cpu_jit_kernels_steps

    return getattr(cpu_jit_kernels_steps, name)[dtypes]
