"""A row of the op table, and the samples it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import sparsegrad as sg
from sparsegrad.sparse_tensor import SparseTensor, compressed, wrap

FORMATS = ("coo", "csr", "csc")


@dataclass(frozen=True)
class Sparse:
    """A sparse sample: coordinates (dims, nnz) in any order, values (nnz, *dense), shape."""

    coords: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]

    def build(self, fmt: str, values: sg.Tensor) -> SparseTensor:
        """As a SparseTensor in `fmt`. Entries stay unsorted within rows, duplicates stay."""
        if fmt == "coo":
            return wrap(values, sg.Pattern.coo(list(self.coords), self.shape))
        major = 0 if fmt == "csr" else 1
        counts = np.bincount(self.coords[major], minlength=self.shape[major])
        indptr = np.concatenate(([0], np.cumsum(counts)))
        return compressed(
            fmt, indptr, self.coords[1 - major], values, (*self.shape, *values.shape[1:])
        )

    def listed(self, fmt: str) -> Sparse:
        """The same entries in the order that `build(fmt, ...)` takes their values in."""
        if fmt == "coo":
            return self
        order = np.argsort(self.coords[0 if fmt == "csr" else 1], kind="stable")
        return Sparse(self.coords[:, order], self.values[order], self.shape)

    def dense(self, values: np.ndarray | None = None) -> np.ndarray:
        values = self.values if values is None else values
        out = np.zeros((*self.shape, *values.shape[1:]), np.float64)
        np.add.at(out, tuple(self.coords), values)
        return out

    def positive(self) -> Sparse:
        """A bool for each of its cells, once: whether the sum of the entries there is positive."""
        cells, place = np.unique(self.coords, axis=1, return_inverse=True)
        sums = np.zeros((cells.shape[1], *self.values.shape[1:]))
        np.add.at(sums, place.reshape(-1), self.values)
        return Sparse(cells, sums > 0, self.shape)

    def mask(self) -> np.ndarray:
        out = np.zeros(self.shape, bool)
        out[tuple(self.coords)] = True
        return out


Sample = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class OpCase:
    """One row.

    name: unique; the op's own name, with a variant in brackets.
    op: the op on tensors. ref: the same on dense float64 arrays.
    samples: draw -> (arguments, keyword arguments) as arrays and `Sparse`.
    primitive: the primitive this row stands for (completeness is checked against the registry).
    formats: sparse formats of its sparse arguments; () for a dense op.
    bilinear: linear in each argument, so finite differences are exact for any step.
    order: highest derivative checked (0: not differentiable).
    raw: the reference takes `Sparse` samples instead of dense arrays.
    huge: a sample of 10^6 x 10^6 with ten entries, for ops whose result is O(nnz + m + n).
    errors: (arguments as tensors, exception, regex) that must be refused.
    tol: tolerances by dtype where the shared table is wrong, with a comment.
    xfail: generated test -> reason; strict.
    """

    name: str
    op: Callable[..., Any]
    ref: Callable[..., Any]
    samples: Callable[[Draw], Iterator[Sample]]
    primitive: str | None = None
    formats: tuple[str, ...] = ()
    bilinear: bool = False
    order: int = 2
    huge: Callable[[Draw], Sample] | None = None
    raw: bool = False
    errors: tuple[tuple[Callable[[], Any], type[Exception], str], ...] = ()
    tol: dict[str, float] = field(default_factory=dict)
    xfail: dict[str, str] = field(default_factory=dict)


class Draw:
    """Random samples from one seed."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)

    def dense(self, *sizes: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
        return self.rng.uniform(low, high, sizes)

    def away(self, *sizes: int) -> np.ndarray:
        """Away from 0, where some functions have a kink."""
        x = self.dense(*sizes)
        return x + np.sign(x) * 0.1

    def sparse(self, m: int, n: int, density: float = 0.4, heads: tuple[int, ...] = ()) -> Sparse:
        cells = np.flatnonzero(self.rng.random(m * n) < density)
        coords = np.array(np.unravel_index(cells, (m, n))) if cells.size else np.zeros((2, 0), int)
        return Sparse(coords, self.away(cells.size, *heads), (m, n))

    def every_kind(self, m: int = 6, n: int = 4, heads: tuple[int, ...] = ()) -> Iterator[Sparse]:
        """Every kind of matrix that sparse code gets wrong."""
        yield self.sparse(m, n, heads=heads)
        yield self.sparse(n, m, heads=heads)
        yield self.sparse(n, n, heads=heads)
        for shape_ in ((0, n), (m, 0), (1, 1), (m, n)):
            yield Sparse(np.zeros((2, 0), int), np.zeros((0, *heads)), shape_)
        holes = self.sparse(m, n, 0.6, heads)  # an empty row and an empty column
        keep = (holes.coords[0] != 1) & (holes.coords[1] != 2)
        yield Sparse(holes.coords[:, keep], holes.values[keep], (m, n))
        zeros = self.sparse(m, n, heads=heads)  # explicit zeros
        zeros.values[::2] = 0
        yield zeros
        twice = self.sparse(m, n, heads=heads)  # duplicates, unsorted
        coords = np.concatenate((twice.coords, twice.coords[:, ::2]), axis=1)
        order = self.rng.permutation(coords.shape[1])
        yield Sparse(coords[:, order], self.away(coords.shape[1], *heads), (m, n))
        full = np.array([np.full(n, m - 1), np.arange(n)])  # one full row, all others empty
        yield Sparse(full, self.away(n, *heads), (m, n))

    def huge(self) -> Sparse:
        n = 10**6
        return Sparse(self.rng.integers(0, n, (2, 10)), self.away(10), (n, n))
