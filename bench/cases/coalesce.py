"""Summing duplicates: coordinates in any order to unique, sorted ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.cases import OURS, Candidate, Variant
from bench.oracle import Expected

__all__ = ["Coalesce"]

# (cells of each sparse dimension), entries, width of an entry
_SIZES = {
    "full": [((100_000, 100_000), 1_000_000, 0), ((1_000_000,), 65_536, 64)],
    "quick": [((4_000, 4_000), 40_000, 0), ((50_000,), 4_096, 64)],
    "tiny": [((30, 30), 100, 0), ((40,), 60, 3)],
}
_ZIPF = 1.1


@lru_cache(maxsize=1)
def _problem(shape: tuple[int, ...], nnz: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices (dims, nnz) and values. Of a matrix every second entry repeats another one; rows of
    an embedding follow Zipf's law."""
    rng = np.random.default_rng(0)
    if len(shape) == 2:
        half = rng.choice(shape[0] * shape[1], nnz // 2, replace=False)
        cells = rng.permutation(np.concatenate((half, rng.choice(half, nnz - nnz // 2))))
        indices = np.stack(np.divmod(cells, shape[1]))
    else:
        share = np.arange(1, shape[0] + 1) ** -_ZIPF
        indices = rng.permutation(shape[0])[rng.choice(shape[0], (1, nnz), p=share / share.sum())]
    values = rng.standard_normal((nnz, width) if width else nnz, dtype=np.float32)
    return indices, values


class Coalesce:
    """A new tensor of unsorted entries with duplicates, and its coalesced form."""

    name = "coalesce"
    title = "Coalesce: build from unsorted entries and sum duplicates, float32"
    threaded = True
    memory = True
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [
            {
                "label": f"{nnz:,} entries"
                + (f" of {width}, ids by Zipf {_ZIPF}" if width else ", half of them duplicates"),
                "shape": list(shape),
                "nnz": nnz,
                "width": width,
            }
            for shape, nnz, width in _SIZES[size]
        ]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        indices, values = _of(variant)
        key = np.ravel_multi_index(tuple(indices), variant["shape"])
        cells, slots = np.unique(key, return_inverse=True)
        total = np.zeros((cells.size, *values.shape[1:]))
        scale = total.copy()
        np.add.at(total, slots, values)
        np.add.at(scale, slots, np.abs(values))
        return {"cells": Expected(cells.astype(np.float64)), "values": Expected(total, scale)}

    def candidates(self, variant: Variant) -> list[Candidate]:
        flat = partial(_flat, variant["shape"])
        found = [
            Candidate(
                OURS,
                lambda: _ours(variant),
                lambda a: {"cells": flat(a.indices), "values": a.values.numpy()},
                role="ours",
            ),
            Candidate(
                "torch",
                lambda: _torch(variant),
                lambda a: {"cells": flat(a.indices().numpy()), "values": a.values().numpy()},
                needs="torch",
            ),
        ]
        if len(variant["shape"]) == 2:
            found.append(
                Candidate(
                    "SciPy COO to CSR",
                    lambda: _scipy(variant),
                    lambda a: {"cells": flat(np.stack(a.tocoo().coords)), "values": a.data},
                    needs="scipy",
                )
            )
        return found


def _of(variant: Variant) -> tuple[np.ndarray, np.ndarray]:
    return _problem(tuple(variant["shape"]), variant["nnz"], variant["width"])


def _flat(shape: list[int], indices: np.ndarray) -> np.ndarray:
    return np.ravel_multi_index(tuple(np.asarray(indices, np.int64)), shape)


def _ours(variant: Variant) -> Callable[[], Any]:
    import sparsegrad as sg

    indices, values = _of(variant)
    held = sg.from_numpy(values)
    shape = (*variant["shape"], *values.shape[1:])
    return lambda: sg.coo(indices, held, shape).coalesce()


def _torch(variant: Variant) -> Callable[[], Any]:
    import torch

    indices, values = map(torch.from_numpy, _of(variant))
    shape = (*variant["shape"], *values.shape[1:])
    return lambda: torch.sparse_coo_tensor(indices, values, shape).coalesce()


def _scipy(variant: Variant) -> Callable[[], Any]:
    """The whole work too: `tocsr` sorts the columns of each row and sums duplicates."""
    indices, values = _of(variant)

    def step() -> Any:
        return sp.coo_array((values, tuple(indices)), variant["shape"]).tocsr()

    return step
