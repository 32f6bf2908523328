"""Steps of optimizers for `CpuJit`: one pass over parameter, gradient and state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsegrad.backends.base import Array
from sparsegrad.backends.cpu import Cpu
from sparsegrad.backends.cpu_jit_launch import contiguous, launch
from sparsegrad.backends.steps import AdagradFactors, AdamFactors, RowGradient, SgdFactors

__all__ = ["CpuJitSteps"]

_MIN_STEP = 1 << 15  # elements below which NumPy serves
_CHUNK = 1 << 14  # elements of a task, at least
_MAX_TASKS = 1024
_FLOATS = (np.dtype("f4"), np.dtype("f8"))
_INDEX = (np.dtype("i4"), np.dtype("i8"))


class CpuJitSteps(Cpu):
    """Kernels of `cpu_jit_kernels_steps`."""

    def _pays(self, work: int, least: int) -> bool:
        raise NotImplementedError

    def sgd(self, factors: SgdFactors, p: Array, g: Array, velocity: Array | None = None) -> None:
        held = () if velocity is None else (velocity,)
        if not self._step("sgd", factors, p, g, held, 1):
            super().sgd(factors, p, g, velocity)

    def adagrad(self, factors: AdagradFactors, p: Array, g: Array, total: Array) -> None:
        if not self._step("adagrad", factors, p, g, (total,), 1):
            super().adagrad(factors, p, g, total)

    def adam(
        self,
        factors: AdamFactors,
        p: Array,
        g: Array,
        m: Array,
        v: Array,
        row_step: Array | None = None,
    ) -> None:
        if row_step is not None or not self._step("adam", factors, p, g, (m, v), 2):
            super().adam(factors, p, g, m, v, row_step)

    def sgd_rows(
        self, factors: SgdFactors, p: Array, grad: RowGradient, velocity: Array | None = None
    ) -> None:
        held = () if velocity is None else (velocity,)
        empty = () if held else (np.empty((0, 0), p.dtype),)
        if not self._step_rows("sgd_rows", factors, p, grad, held, empty):
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

    def adam_rows(
        self,
        factors: AdamFactors,
        p: Array,
        grad: RowGradient,
        m: Array,
        v: Array,
        row_step: Array | None = None,
    ) -> None:
        counts = np.empty(0, np.int64) if row_step is None else row_step
        if not self._step_rows("adam_rows", factors, p, grad, (m, v), (counts,)):
            super().adam_rows(factors, p, grad, m, v, row_step)

    def _step(
        self, name: str, factors: Any, p: Array, g: Array, state: tuple[Array, ...], slots: int
    ) -> bool:
        """Whether a kernel with `slots` state arrays has made the step."""
        if not (self._pays(p.size, _MIN_STEP) and _in_place(p, *state)) or g.shape != p.shape:
            return False
        flat = [a.reshape(-1) for a in (p, contiguous(g, p.dtype), *state)]
        flat += [np.empty(0, p.dtype)] * (slots - len(state))
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
        state: tuple[Array, ...],
        rest: tuple[Array, ...] = (),
    ) -> bool:
        """Whether a kernel has made the step in touched rows. `state` has the shape of p; `rest`
        are arguments that go to the kernel as they are."""
        rows, perm, indptr, values = grad
        width = math.prod(p.shape[1:])
        if not (
            self._pays(values.size, _MIN_STEP)
            and width
            and rows.dtype in _INDEX
            and _in_place(p, *state)
            and all(a.flags.carray for a in rest)
            and (name != "rowwise_adagrad_rows" or rest[0].dtype == p.dtype)
        ):
            return False
        none = np.empty(0, rows.dtype)
        index = [none if a is None else contiguous(a, rows.dtype) for a in (rows, perm, indptr)]
        wide = [a.reshape(len(p), width) for a in (p, *state)]
        entries = contiguous(values, p.dtype).reshape(len(values), width)
        cuts = _cuts(len(rows), index[2], width)
        args = (cuts, *index, entries, *factors, *wide, *rest)
        kernel = _kernel(name, p.dtype, rows.dtype)
        launch(kernel, args, len(cuts) - 1, entries.size + 2 * len(rows) * width)
        return True


def _cuts(rows: int, indptr: Array, width: int) -> Array:
    """Chunks of about equal numbers of entries."""
    entries = int(indptr[-1]) if indptr.size else rows
    tasks = min(max(entries * width // _CHUNK, 1), _MAX_TASKS)
    at = np.arange(tasks + 1) * entries // tasks
    return np.searchsorted(indptr, at).astype(np.int64) if indptr.size else at


def _in_place(p: Array, *state: Array) -> bool:
    """Whether a kernel can write to these arrays."""
    return p.dtype in _FLOATS and all(
        a.flags.carray and a.dtype == p.dtype and a.shape == p.shape for a in (p, *state)
    )


def _kernel(name: str, *dtypes: np.dtype) -> Any:
    from sparsegrad.backends import cpu_jit_kernels_steps

    return getattr(cpu_jit_kernels_steps, name)[dtypes]
