"""Embedding tables, one and many, of which a batch touches few rows: gather, backward, step of the
optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from bench.cases import OURS, Candidate, Variant
from bench.oracle import Expected

__all__ = ["Embedding", "Tables"]

_SIZES = {
    "full": [(1_000_000, 64, 65_536)],
    "quick": [(100_000, 64, 8_192)],
    "tiny": [(200, 4, 50)],
}
_EXPONENT = 1.1  # of the Zipf law that ids follow, the frequent ones in random places
_LR, _EPS = 1e-2, 1e-2  # an eps that rounding errors of gradients are below


@lru_cache(maxsize=1)
def _problem(rows: int, width: int, batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Table, ids, and the gradient that comes back for what is gathered."""
    rng = np.random.default_rng(0)
    share = np.arange(1, rows + 1) ** -_EXPONENT
    ids = rng.permutation(rows)[rng.choice(rows, batch, p=share / share.sum())]
    table = rng.standard_normal((rows, width), dtype=np.float32)
    return table, ids, rng.standard_normal((batch, width), dtype=np.float32)


class Embedding:
    """table[ids], its gradient, and Adam on the rows that it touches."""

    name = "embedding"
    title = "Embedding: gather, backward, Adam on touched rows (torch: SparseAdam), float32"
    threaded = True
    memory = False
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [
            {
                "label": f"{rows:,} × {width}, {batch:,} ids, Zipf {_EXPONENT}",
                "sizes": [rows, width, batch],
            }
            for rows, width, batch in _SIZES[size]
        ]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        table, ids, upstream = _problem(*variant["sizes"])
        touched, slots = np.unique(ids, return_inverse=True)
        g = np.zeros((touched.size, table.shape[1]))
        np.add.at(g, slots, upstream)
        moved = table[touched] - _LR * g / (np.abs(g) + _EPS)  # Adam's first step
        return {
            "touched": Expected(moved, _LR, 1e-2),
            "total": Expected(
                np.asarray(table.sum(dtype=np.float64) + (moved - table[touched]).sum()),
                np.abs(table).sum(dtype=np.float64),
                1e-6,
            ),
        }

    def candidates(self, variant: Variant) -> list[Candidate]:
        sizes = variant["sizes"]
        ids = _problem(*sizes)[1]

        def result(raw: Any) -> dict[str, Any]:
            table = raw.detach().numpy()
            return {"touched": table[np.unique(ids)], "total": table.sum(dtype=np.float64)}

        return [
            Candidate(OURS, lambda: _ours(*sizes), result, role="ours"),
            Candidate("torch", lambda: _torch(*sizes), result, needs="torch"),
        ]


def _ours(*sizes: int) -> Callable[[], Any]:
    import sparsegrad as sg

    table, ids, upstream = _problem(*sizes)
    weight = sg.tensor(table, requires_grad=True)
    where, g = sg.tensor(ids), sg.tensor(upstream)
    optimizer = sg.optim.Adam([weight], lr=_LR, eps=_EPS)

    def step() -> Any:
        optimizer.zero_grad()
        sg.embedding(weight, where).backward(g)
        optimizer.step()
        return weight

    return step


def _torch(*sizes: int) -> Callable[[], Any]:
    import torch

    table, ids, upstream = _problem(*sizes)
    weight = torch.tensor(table, requires_grad=True)
    where, g = torch.from_numpy(ids), torch.from_numpy(upstream)
    # Its eps is added before the bias correction: this one is ours in the first step.
    optimizer = torch.optim.SparseAdam([weight], lr=_LR, eps=_EPS * math.sqrt(1 - 0.999))

    def step() -> Any:
        optimizer.zero_grad()
        torch.nn.functional.embedding(where, weight, sparse=True).backward(g)
        optimizer.step()
        return weight

    return step


# ---- many tables -------------------------------------------------------------------------------
# Distinct values of the 26 categorical columns of the Criteo logs (Kaggle, 2014), as in DLRM.
_CRITEO = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
_MOST = {"full": 100_000, "quick": 10_000, "tiny": 50}  # rows of a table, as if ids were hashed
_MANY = {"full": [(16, 8192), (64, 8192), (16, 256)], "quick": [(16, 1024)], "tiny": [(4, 20)]}


class _Columns:
    """Tables, an id of each for every sample, and the gradient that comes back."""

    def __init__(self, most: int, width: int, batch: int) -> None:
        rng = np.random.default_rng(0)
        self.sizes = [min(rows, most) for rows in _CRITEO]
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.tables = [rng.standard_normal((n, width), dtype=np.float32) for n in self.sizes]
        columns = []
        for n in self.sizes:
            share = np.arange(1, n + 1) ** -_EXPONENT
            columns.append(rng.permutation(n)[rng.choice(n, batch, p=share / share.sum())])
        self.ids = np.stack(columns, 1)
        self.upstream = rng.standard_normal((batch, width * len(columns)), dtype=np.float32)

    def touched(self, tables: list[np.ndarray]) -> dict[str, np.ndarray]:
        """The rows of all tables that ids name, and the sum of all rows."""
        rows = [table[np.unique(ids)] for table, ids in zip(tables, self.ids.T, strict=True)]
        total = sum(table.sum(dtype=np.float64) for table in tables)
        return {"touched": np.concatenate(rows), "total": np.asarray(total)}


_columns = lru_cache(maxsize=1)(_Columns)


class Tables:
    """Rows of 26 tables side by side, their gradients, and Adam on the rows that they touch.

    Ours: as one op, one lookup after the other, or as one table, where ids count on; PyTorch: the
    last two.
    """

    name = "embedding-tables"
    title = (
        "26 embedding tables: gather, backward, Adam on touched rows (torch: SparseAdam), float32"
    )
    threaded = True
    memory = False
    per = 1

    def variants(self, size: str) -> list[Variant]:
        most = _MOST[size]
        return [
            {
                "label": f"26 × at most {most:,} × {width}, batch {batch:,}, Zipf {_EXPONENT}",
                "sizes": [most, width, batch],
            }
            for width, batch in _MANY[size]
        ]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        columns = _columns(*variant["sizes"])
        moved = []
        for f, table in enumerate(columns.tables):
            wide, ids = table.astype(np.float64), columns.ids[:, f]
            width = table.shape[1]
            g = np.zeros_like(wide)
            np.add.at(g, ids, 2 * columns.upstream[:, f * width : (f + 1) * width])
            moved.append(wide - _LR * g / (np.abs(g) + _EPS))  # Adam's first step
        found = columns.touched(moved)
        size = sum(np.abs(table).sum(dtype=np.float64) for table in columns.tables)
        return {
            "touched": Expected(found["touched"], _LR, 1e-2),
            "total": Expected(found["total"], size, 1e-6),
        }

    def candidates(self, variant: Variant) -> list[Candidate]:
        columns = _columns(*variant["sizes"])

        def result(raw: Any) -> dict[str, Any]:
            tables = [table.detach().numpy() for table in raw]
            if len(tables) == 1:
                tables = np.split(tables[0], columns.starts[1:])
            return columns.touched(tables)

        ours, torch = _our_tables, _torch_tables
        return [
            Candidate(OURS, lambda: ours(columns, "at once"), result, role="ours"),
            Candidate(
                f"{OURS}, one by one", lambda: ours(columns, "apart"), result, role="reference"
            ),
            Candidate(
                f"{OURS}, one table", lambda: ours(columns, "joined"), result, role="reference"
            ),
            Candidate("torch", lambda: torch(columns, False), result, needs="torch"),
            Candidate("torch, one table", lambda: torch(columns, True), result, needs="torch"),
        ]


def _our_tables(columns: _Columns, how: str) -> Callable[[], Any]:
    import sparsegrad as sg

    given = [np.concatenate(columns.tables)] if how == "joined" else columns.tables
    weights = [sg.tensor(table, requires_grad=True) for table in given]
    g, ids = sg.tensor(columns.upstream), sg.tensor(columns.ids)
    apart = [sg.tensor(np.ascontiguousarray(column)) for column in columns.ids.T]
    counted = sg.tensor(columns.ids + columns.starts)
    optimizer = sg.optim.Adam(weights, lr=_LR, eps=_EPS)

    def gathered() -> Any:
        if how == "at once":
            return sg.embedding_collection(weights, ids)
        if how == "joined":
            return sg.embedding(weights[0], counted).reshape(len(ids), -1)
        return sg.cat([sg.embedding(w, i) for w, i in zip(weights, apart, strict=True)], 1)

    def step() -> Any:
        optimizer.zero_grad()
        (2 * gathered()).backward(g)  # as below a network, whose gradients nobody else holds
        optimizer.step()
        return weights

    return step


def _torch_tables(columns: _Columns, joined: bool) -> Callable[[], Any]:
    import torch

    given = [np.concatenate(columns.tables)] if joined else columns.tables
    weights = [torch.tensor(table, requires_grad=True) for table in given]
    g = torch.from_numpy(columns.upstream)
    apart = [torch.from_numpy(np.ascontiguousarray(column)) for column in columns.ids.T]
    counted = torch.from_numpy(columns.ids + columns.starts)
    optimizer = torch.optim.SparseAdam(weights, lr=_LR, eps=_EPS * math.sqrt(1 - 0.999))
    lookup = torch.nn.functional.embedding

    def gathered() -> Any:
        if joined:
            return lookup(counted, weights[0], sparse=True).reshape(len(counted), -1)
        return torch.cat([lookup(i, w, sparse=True) for w, i in zip(weights, apart)], 1)

    def step() -> Any:
        optimizer.zero_grad()
        (2 * gathered()).backward(g)
        optimizer.step()
        return weights

    return step
