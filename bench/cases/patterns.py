"""Ops whose result has a new pattern, for the first time: only the arrays of the matrix are known.

SciPy's matrix is kept, with what it knows of itself (that its rows are sorted).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from bench.cases import OURS, Candidate, Variant
from bench.oracle import Expected

__all__ = ["Patterns", "entries"]

_SIZES = {"full": (100_000, 1_000_000), "quick": (3_000, 30_000), "tiny": (40, 200)}

Op = Callable[[Any], Any]
# name -> the op on our matrix, and on SciPy's
_OPS: dict[str, tuple[Op, Op]] = {
    "A[A > 0.5]": (lambda A: A[A > 0.5], lambda S: S[S > 0.5]),
    "A * (A > 0.5)": (lambda A: A * (A > 0.5), lambda S: S.multiply(S > 0.5)),
    "A + A.T": (lambda A: A + A.T, lambda S: S + S.T),
    "A @ A": (lambda A: A @ A, lambda S: S @ S),
    "rows": (lambda A: A[_lines(A.shape[0])], lambda S: S[_lines(S.shape[0])]),
    "16 mini-batches of rows": (
        lambda A: [A[ids] for ids in _batches(A.shape[0])][-1],
        lambda S: [S[ids] for ids in _batches(S.shape[0])][-1],
    ),
    "columns": (lambda A: A[:, _lines(A.shape[1])], lambda S: S[:, _lines(S.shape[1])]),
    "cells": (lambda A: A[_cells(A.shape[0])], lambda S: S[_cells(S.shape[0])]),
    "below itself": (lambda A: _sg().cat([A, A]), lambda S: _sp().vstack([S, S], format="csr")),
    "to CSC": (lambda A: A.to("csc"), lambda S: S.tocsc()),
}


def _sg() -> Any:
    import sparsegrad

    return sparsegrad


def _sp() -> Any:
    import scipy.sparse

    return scipy.sparse


@lru_cache(maxsize=1)
def _matrix(n: int, nnz: int) -> Any:
    rng = np.random.default_rng(0)
    values = rng.random(nnz, dtype=np.float32)
    where = rng.integers(0, n, (2, nnz), dtype=np.int32)  # as SciPy's own functions make them
    made = _sp().coo_array((values, where), shape=(n, n)).tocsr()
    made.sum_duplicates()
    return made


@lru_cache(maxsize=1)
def _lines(n: int) -> np.ndarray:
    """A fifth of them, in no order."""
    return np.random.default_rng(1).permutation(n)[: n // 5]


@lru_cache(maxsize=1)
def _batches(n: int) -> np.ndarray:
    """512 rows each."""
    return np.random.default_rng(3).integers(0, n, (16, min(512, n)))


@lru_cache(maxsize=1)
def _cells(n: int) -> tuple[np.ndarray, ...]:
    return tuple(np.random.default_rng(2).integers(0, n, (2, 2 * n)))


class Patterns:
    """One op on a random matrix in CSR, against SciPy's."""

    name = "patterns"
    title = "Ops that make a new pattern, CSR, float32, for the first time"
    threaded = True
    memory = False
    per = 1

    def variants(self, size: str) -> list[Variant]:
        n, nnz = _SIZES[size]
        return [{"label": f"{op}: {n:,}², nnz {nnz:,}", "op": op, "sizes": [n, nnz]} for op in _OPS]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        found = _OPS[variant["op"]][1](_matrix(*variant["sizes"]).astype(np.float64))
        return {name: Expected(array) for name, array in entries(found).items()}

    def candidates(self, variant: Variant) -> list[Candidate]:
        ours, theirs = _OPS[variant["op"]]
        S = _matrix(*variant["sizes"])

        def make() -> Callable[[], Any]:
            values = _sg().from_numpy(S.data)
            arrays = S.indptr, S.indices, values, S.shape
            return lambda: ours(_sg().csr(*arrays, check=False, copy=False))

        def result(raw: Any) -> dict[str, np.ndarray]:
            return entries(raw.to_scipy() if raw.sparse_dim == 2 else raw.to_dense().numpy())

        return [
            Candidate(OURS, make, result, role="ours"),
            Candidate("SciPy", lambda: lambda: theirs(S), entries, needs="scipy"),
        ]


def entries(found: Any) -> dict[str, np.ndarray]:
    """Coordinates and values, sorted; of a line of cells its elements."""
    if not hasattr(found, "tocoo"):
        return {"values": np.asarray(found)}
    if found.ndim == 1:
        return {"values": found.toarray()}
    listed = found.tocoo()
    listed.eliminate_zeros()  # a mask may leave them or not
    order = np.lexsort((listed.col, listed.row))
    return {
        "values": listed.data[order],
        "row": listed.row[order].astype(np.int64),
        "col": listed.col[order].astype(np.int64),
    }
