"""Rows that were chosen, one for each column, and products of entries, one for each element of a
result: what the gradient of a maximum is made of.

Part of the contract; pure array code here. `entry` (m, *H, k) names the entry of a pattern (m, n)
that each element takes, -1 for none; values are (nnz, *H), x is (n, *H, k).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from sparsegrad.backends.basics import Array, Basics
from sparsegrad.dtypes import accumulator

__all__ = ["Chosen"]


class Sources(NamedTuple):
    """Flat positions of the elements (m, *H, k) that have an entry (None for all), of the values
    they came from and of the elements of x."""

    shape: tuple[int, ...]
    kept: Array | None
    value: Array
    element: Array

    def of(self, t: Array) -> Array:
        """The elements of t (m, *H, k) that have an entry."""
        return t.reshape(-1) if self.kept is None else t.reshape(-1)[self.kept]


class Chosen(Basics):
    """Gathers by chosen entries, and their transposes."""

    def take_at(self, x: Array, at: Array) -> Array:
        """Of each column d the elements of x (n, *D) in the rows at[:, d]: at is (m, *D)."""
        return x.reshape(-1)[self._flat(at)].reshape(at.shape)

    def put_at(self, x: Array, at: Array, n: int) -> Array:
        """The transpose: x and at (m, *D) -> (n, *D), zeros but there; the rows of a column
        differ."""
        out = self.xp.zeros((n, *at.shape[1:]), x.dtype)
        out.reshape(-1)[self._flat(at)] = x.reshape(-1)
        return out

    def _flat(self, at: Array) -> Array:
        width = math.prod(at.shape[1:])
        return (at.reshape(len(at), width) * width + self.xp.arange(width)).reshape(-1)

    def chosen(self, pattern: Any, entry: Array) -> Any:
        """What the methods below read of chosen entries, made once for all three."""
        xp, tail = self.xp, entry.shape[1:]
        place = xp.arange(math.prod(tail)).reshape(tail)  # of an element in its row
        head = xp.arange(math.prod(tail[:-1])).reshape(*tail[:-1], 1)
        if not pattern.nnz:
            none = xp.zeros(0, dtype="int64")
            return Sources(entry.shape, none, none, none)
        value = (entry * head.size + head).reshape(-1)
        element = (pattern.col.astype("int64")[entry] * place.size + place).reshape(-1)
        # Which rows are empty is the pattern's to know: asked once, not in every backward pass.
        full = pattern.cached("no_empty_row", lambda: bool((xp.diff(pattern.rows()[0]) > 0).all()))
        if full:
            return Sources(entry.shape, None, value, element)
        kept = xp.flatnonzero(entry.reshape(-1) >= 0)
        return Sources(entry.shape, kept, value[kept], element[kept])

    def chosen_products(self, pattern: Any, values: Array, x: Array, at: Any) -> Array:
        """values[e] * x[col(e)] of the chosen entries e, (m, *H, k); 0 where there is none."""
        products = values.reshape(-1)[at.value] * x.reshape(-1)[at.element]
        if at.kept is not None:
            out = self.xp.zeros(math.prod(at.shape), dtype=products.dtype)
            out[at.kept] = products
            products = out
        return products.reshape(at.shape)

    def chosen_values(self, pattern: Any, dy: Array, x: Array, at: Any) -> Array:
        """dy * x[col(e)], summed where an entry was chosen: dy (m, *H, k) -> (nnz, *H)."""
        shape = (pattern.nnz, *at.shape[1:-1])
        return self._put(shape, at.value, at.of(dy), x.reshape(-1)[at.element])

    def chosen_x(self, pattern: Any, dy: Array, values: Array, at: Any) -> Array:
        """dy * values[e], summed in row col(e): dy (m, *H, k) -> (n, *H, k)."""
        shape = (pattern.shape[1], *at.shape[1:])
        return self._put(shape, at.element, at.of(dy), values.reshape(-1)[at.value])

    def _put(self, shape: tuple[int, ...], index: Array, a: Array, b: Array) -> Array:
        wide = accumulator(a.dtype)
        out = self.xp.zeros(math.prod(shape), dtype=wide)
        self.scatter_add(out, index, a.astype(wide, copy=False) * b.astype(wide, copy=False))
        return out.reshape(shape).astype(a.dtype, copy=False)
