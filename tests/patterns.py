"""Samples of matrices: coordinates in any order, with their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparsegrad as sg

FORMATS = ("coo", "csr", "csc")


# ---- samples: coordinates in any order, with their values ---------------------------------------
def matrices() -> dict[str, tuple[np.ndarray, np.ndarray, tuple[int, int]]]:
    rng = np.random.default_rng(0)
    out: dict[str, Any] = {}

    def add(name: str, coords: Any, shape: tuple[int, int], values: Any = None) -> None:
        coords = np.asarray(coords, np.int64).reshape(2, -1)
        if values is None:
            values = rng.integers(1, 100, coords.shape[1]) + 0.5
        out[name] = (coords, np.asarray(values, np.float64), shape)

    cells = rng.permutation(35)[:17]
    add("unsorted", np.unravel_index(cells, (5, 7)), (5, 7))
    add("sorted", np.unravel_index(np.sort(cells), (5, 7)), (5, 7))
    add("column-major", np.unravel_index(np.sort(cells), (7, 5))[::-1], (5, 7))
    add("duplicates", rng.integers(0, 3, (2, 30)), (4, 3))
    add("sorted duplicates", [[0, 0, 0, 2, 2], [1, 1, 1, 0, 0]], (3, 2))
    add("one entry many times", [[1] * 9, [2] * 9], (2, 4))
    add("zeros", [[2, 0, 1, 0], [0, 1, 1, 1]], (3, 3), [0.0, 2.0, 0.0, -2.0])
    add("square", np.unravel_index(rng.permutation(16)[:9], (4, 4)), (4, 4))
    add("full", np.unravel_index(rng.permutation(12), (3, 4)), (3, 4))
    add("none", [[], []], (3, 4))
    add("no rows", [[], []], (0, 4))
    add("no columns", [[], []], (4, 0))
    add("nothing", [[], []], (0, 0))
    add("one cell", [[0], [0]], (1, 1))
    add("row", [[0, 0, 0], [4, 1, 1]], (1, 5))
    add("column", [[4, 1, 1], [0, 0, 0]], (5, 1))
    return out


MATRICES = matrices()
every_matrix = pytest.mark.parametrize("name", MATRICES)


def dense_of(name: str) -> np.ndarray:
    coords, values, shape = MATRICES[name]
    out = np.zeros(shape)
    np.add.at(out, tuple(coords), values)
    return out


def as_format(name: str, fmt: str) -> Any:
    """In `fmt`, made from raw arrays: entries unsorted within a row, duplicates kept."""
    coords, values, shape = MATRICES[name]
    if fmt == "coo":
        return sg.coo(coords, values, shape)
    major = 0 if fmt == "csr" else 1
    order = np.argsort(coords[major], kind="stable")
    indptr = np.searchsorted(coords[major][order], np.arange(shape[major] + 1))
    make = sg.csr if fmt == "csr" else sg.csc
    return make(indptr, coords[1 - major][order], values[order], shape)


def triples(A: Any) -> list[tuple[int, int, float]]:
    """Stored entries as a multiset."""
    return sorted(zip(A.row.tolist(), A.col.tolist(), A.values.detach().tolist(), strict=True))


def offsets(name: str, fmt: str) -> np.ndarray:
    coords, _, shape = MATRICES[name]
    major = 0 if fmt == "csr" else 1
    return np.concatenate(([0], np.cumsum(np.bincount(coords[major], minlength=shape[major]))))


def given_triples(name: str) -> list[tuple[int, int, float]]:
    coords, values, _ = MATRICES[name]
    return sorted(zip(*coords.tolist(), values.tolist(), strict=True))
