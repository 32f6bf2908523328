"""Steps of optimizers on arrays: the part of the contract that changes parameters in place.

Each optimizer has two methods. `adam(factors, p, g, m, v)` changes every element of arrays of one
shape; `adam_rows(factors, p, grad, m, v)` changes the rows that a row-sparse gradient touches and
no other: its entries, of which several may belong to one row, are summed on the way. Rows whose
sum is zero are not touched. 16-bit arrays are updated in float32 and stored in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from sparsegrad.dtypes import accumulator

__all__ = [
    "AdagradFactors",
    "AdamFactors",
    "RmspropFactors",
    "RowGradient",
    "SgdFactors",
    "Steps",
    "blocks",
]

Array = Any

# Elements a step works on at a time: parameter, gradient, state and scratch stay in the cache.
_BLOCK = 1 << 16


class RowGradient(NamedTuple):
    """The gradient of p (n, *D), zero but in some rows, before entries of one row are summed.

    rows (u,): distinct row numbers, rising. values (e, *D): entries. perm (e,): the entries by
    row, None if they are in order. indptr (u + 1,): the runs of a row's entries in that order,
    None if each row has one. n_rows (1,): how many rows there are, where only the device knows;
    then `rows` and the runs are as long as if each entry had its own, and the rest means nothing.
    """

    rows: Array
    perm: Array | None
    indptr: Array | None
    values: Array
    n_rows: Array | None = None

    def summed(self, be: Any) -> tuple[Array, Array]:
        """Rows (r,) whose sum is not zero, and their sums (r, *D)."""
        if self.n_rows is not None:
            u = int(self.n_rows[0])  # sync: for what no kernel does
            cut = self.indptr if self.indptr is None else self.indptr[: u + 1]
            return RowGradient(self.rows[:u], self.perm, cut, self.values).summed(be)
        g = self.values if self.perm is None else self.values[self.perm]
        if self.indptr is not None:
            g = be.segment_sum(g.astype(accumulator(g.dtype), copy=False), self.indptr)
        live = (g != 0).any(axis=tuple(range(1, g.ndim)))
        return (self.rows, g) if bool(live.all()) else (self.rows[live], g[live])


class SgdFactors(NamedTuple):
    """v = momentum v + fresh d with d = g + weight_decay p; p -= lr v, or lr (d + momentum v)."""

    lr: float
    momentum: float
    weight_decay: float
    nesterov: bool
    fresh: float = 1.0


class AdagradFactors(NamedTuple):
    """s += d², or its mean over a row, with d = g + weight_decay p; p -= lr d / (sqrt(s) + eps)."""

    lr: float
    weight_decay: float
    eps: float


class RmspropFactors(NamedTuple):
    """v = alpha v + (1 - alpha) d² with d = g + weight_decay p; p -= lr d / (sqrt(v) + eps).

    centered: v minus a² in the root, with the average a = alpha a + (1 - alpha) d. momentum:
    p -= lr b with b = momentum b + d / (sqrt(v) + eps). State is v, then a and b if they are used.
    """

    lr: float
    alpha: float
    eps: float
    weight_decay: float
    momentum: float
    centered: bool

    def named(self, state: tuple[Array, ...]) -> tuple[Array | None, Array | None]:
        """a and b of the state behind v."""
        return state[0] if self.centered else None, state[-1] if self.momentum else None


class AdamFactors(NamedTuple):
    """p *= shrink; d = g + weight_decay p; m = b1 m + (1 - b1) d; v = b2 v + (1 - b2) d²;
    p -= lr / first * m / (sqrt(v) / second + eps).

    first and second are 1 - b1^t and sqrt(1 - b2^t). With a count a row, `row_step` (n,), int64,
    which the step raises by one, t is that of the row. amsgrad: the greatest v so far, `top`, in
    the root. State is m, v, then `top` and `row_step` if they are used.
    """

    b1: float
    b2: float
    lr: float
    first: float
    second: float
    eps: float
    weight_decay: float
    shrink: float
    amsgrad: bool = False

    def named(self, state: tuple[Array, ...]) -> tuple[Array | None, Array | None]:
        """`top` and `row_step` of the state behind m and v."""
        top, *rest = state if self.amsgrad else (None, *state)
        return top, rest[0] if rest else None


class Steps:
    """Steps in pure array code. p, g and state have one shape (n, *D) and p's dtype, except where
    a method says otherwise; p and state change in place, g does not."""

    xp: ModuleType = np

    def sgd(self, factors: SgdFactors, p: Array, g: Array, velocity: Array | None = None) -> None:
        """Gradient descent; `velocity` where there is a momentum."""
        self._everywhere(_sgd, factors, p, g, velocity)

    def sgd_rows(
        self, factors: SgdFactors, p: Array, grad: RowGradient, velocity: Array | None = None
    ) -> None:
        """`sgd` in touched rows."""
        self._on_rows(_sgd, factors, p, grad, velocity)

    def adagrad(self, factors: AdagradFactors, p: Array, g: Array, total: Array) -> None:
        """Adagrad; `total` is s."""
        self._everywhere(_adagrad, factors, p, g, total)

    def adagrad_rows(
        self, factors: AdagradFactors, p: Array, grad: RowGradient, total: Array
    ) -> None:
        """`adagrad` in touched rows."""
        self._on_rows(_adagrad, factors, p, grad, total)

    def rowwise_adagrad(self, factors: AdagradFactors, p: Array, g: Array, total: Array) -> None:
        """Adagrad with one number a row: `total` (n,) adds up the means of d² over rows."""
        self._everywhere(_rowwise_adagrad, factors, p, g, total)

    def rowwise_adagrad_rows(
        self, factors: AdagradFactors, p: Array, grad: RowGradient, total: Array
    ) -> None:
        """`rowwise_adagrad` in touched rows."""
        self._on_rows(_rowwise_adagrad, factors, p, grad, total)

    def rmsprop(
        self, factors: RmspropFactors, p: Array, g: Array, square: Array, *state: Array
    ) -> None:
        """RMSprop; `square` is v."""
        self._everywhere(_rmsprop, factors, p, g, square, *state)

    def rmsprop_rows(
        self, factors: RmspropFactors, p: Array, grad: RowGradient, square: Array, *state: Array
    ) -> None:
        """`rmsprop` in touched rows."""
        self._on_rows(_rmsprop, factors, p, grad, square, *state)

    def adam(
        self, factors: AdamFactors, p: Array, g: Array, m: Array, v: Array, *state: Array
    ) -> None:
        """Adam and AdamW."""
        self._everywhere(_adam, factors, p, g, m, v, *state)

    def adam_rows(
        self, factors: AdamFactors, p: Array, grad: RowGradient, m: Array, v: Array, *state: Array
    ) -> None:
        """`adam` in touched rows."""
        self._on_rows(_adam, factors, p, grad, m, v, *state)

    def rows_of_many(self, name: str, steps: list[tuple[Any, ...]]) -> None:
        """`<name>_rows` for several parameters: (factors, p, grad, *state) of each."""
        for factors, p, grad, *state in steps:
            getattr(self, f"{name}_rows")(factors, p, grad, *state)

    def steps_of_many(self, name: str, steps: list[tuple[Any, ...]]) -> None:
        """The step `name` of several parameters: (factors, p, g, *state) of each."""
        for factors, p, g, *state in steps:
            getattr(self, name)(factors, p, g, *state)

    # ---- how the reference does it -------------------------------------------------------------
    def _everywhere(self, formula: Any, factors: Any, *arrays: Any) -> None:
        held = [a for a in arrays if a is not None]
        by_row = any(a.shape != held[0].shape for a in held)
        for part in blocks(self.xp, held, by_row):
            self._apply(formula, factors, part)

    def _on_rows(
        self, formula: Any, factors: Any, p: Array, grad: RowGradient, *state: Array | None
    ) -> None:
        rows, g = grad.summed(self)
        arrays = [p, *(a for a in state if a is not None)]
        parts = [a[rows] for a in arrays]
        self._apply(formula, factors, (parts[0], g, *parts[1:]))
        for array, changed in zip(arrays, parts, strict=True):
            array[rows] = changed

    def _apply(self, formula: Any, factors: Any, arrays: tuple[Array, ...]) -> None:
        wide = accumulator(arrays[0].dtype)
        work = [a.astype(wide, copy=False) if a.dtype.kind != "i" else a for a in arrays]
        formula(self.xp, factors, *work)
        for i, (array, done) in enumerate(zip(arrays, work, strict=True)):
            if i != 1 and done is not array:  # 1 is the gradient
                array[...] = done


def blocks(xp: ModuleType, arrays: list[Array], by_row: bool) -> Iterator[tuple[Array, ...]]:
    """Views of equal parts of arrays, small enough for the cache: runs of rows, or of elements of
    arrays of one shape."""
    first = arrays[0]
    if by_row:
        arrays = [a.reshape(1) if a.ndim == 0 else a for a in arrays]
        step = max(1, _BLOCK * len(arrays[0]) // max(1, first.size))
    else:
        step = _BLOCK
    small = first.size <= _BLOCK or xp.__name__ != "numpy"
    if small or not (by_row or all(a.flags.c_contiguous for a in arrays)):
        yield tuple(arrays)
        return
    flat = arrays if by_row else [a.reshape(-1) for a in arrays]
    for start in range(0, len(flat[0]), step):
        yield tuple(a[start : start + step] for a in flat)


# ---- formulas ----------------------------------------------------------------------------------
def _sgd(xp: Any, factors: SgdFactors, p: Array, g: Array, velocity: Array | None = None) -> None:
    lr, momentum, weight_decay, nesterov, fresh = factors
    move = xp.multiply(p, weight_decay, out=xp.empty_like(p))
    move += g
    if velocity is not None:
        velocity *= momentum
        velocity += move if fresh == 1 else fresh * move
        if nesterov:
            move += velocity * momentum
        else:
            move[...] = velocity
    move *= lr
    p -= move


def _adagrad(xp: Any, factors: AdagradFactors, p: Array, g: Array, total: Array) -> None:
    lr, weight_decay, eps = factors
    if weight_decay:
        g = g + weight_decay * p
    scratch = xp.multiply(g, g, out=xp.empty_like(p))
    total += scratch
    xp.sqrt(total, out=scratch)
    scratch += eps
    xp.divide(g, scratch, out=scratch)
    scratch *= lr
    p -= scratch


def _rowwise_adagrad(xp: Any, factors: AdagradFactors, p: Array, g: Array, total: Array) -> None:
    lr, weight_decay, eps = factors
    if weight_decay:
        g = g + weight_decay * p
    if g.size:
        total += (g * g).mean(axis=tuple(range(1, g.ndim)))
    scale = lr / (xp.sqrt(total) + eps)
    p -= g * scale.reshape(-1, *(1,) * (p.ndim - 1))


def _rmsprop(
    xp: Any, factors: RmspropFactors, p: Array, g: Array, square: Array, *state: Array
) -> None:
    lr, alpha, eps, weight_decay, momentum, _ = factors
    average, buffer = factors.named(state)
    if weight_decay:
        g = g + weight_decay * p
    square *= alpha
    square += (1 - alpha) * (g * g)
    scale = square
    if average is not None:
        average *= alpha
        average += (1 - alpha) * g
        scale = xp.maximum(square - average * average, 0)
    scale = xp.sqrt(scale)
    scale += eps
    move = g / scale
    if buffer is not None:
        buffer *= momentum
        buffer += move
        move = buffer
    p -= lr * move


def _adam(
    xp: Any, factors: AdamFactors, p: Array, g: Array, m: Array, v: Array, *state: Array
) -> None:
    b1, b2, lr, first, second, eps, weight_decay, shrink, _ = factors
    top, row_step = factors.named(state)
    if row_step is not None:
        row_step += 1
        t = row_step.reshape(-1, *(1,) * (p.ndim - 1)).astype(xp.float64)
        first = (1 - b1**t).astype(p.dtype)
        second = xp.sqrt(1 - b2**t).astype(p.dtype)
    if shrink != 1:
        p *= shrink
    s = xp.empty_like(p)  # the one temporary: the gradient is the user's
    if weight_decay:
        xp.multiply(p, weight_decay, out=s)
        s += g
    else:
        s[...] = g
    # m += (1 - b1) (g - m) and v += (1 - b2) (g² - v) would need a second one.
    s *= 1 - b1
    m *= b1
    m += s
    xp.multiply(s, s, out=s)
    s *= (1 - b2) / (1 - b1) ** 2
    v *= b2
    v += s
    if top is not None:
        xp.maximum(top, v, out=top)
    xp.sqrt(v if top is None else top, out=s)
    s /= second
    s += eps
    xp.divide(m, s, out=s)
    s *= lr / first
    p -= s
