"""Softmax over the stored entries of each row, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from bench import peers
from bench.cases import OURS, Candidate, Variant
from bench.graphs import power_law
from bench.oracle import Expected

__all__ = ["Softmax"]

_SIZES = {
    "full": [(100_000, 1_500_000, heads) for heads in (1, 4, 8)],
    "quick": [(4_000, 60_000, 4)],
    "tiny": [(60, 300, 2)],
}


@lru_cache(maxsize=1)
def _problem(n: int, nnz: int, heads: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """Pattern, values and the gradient that comes back."""
    rng = np.random.default_rng(1)
    shape = (nnz, heads) if heads > 1 else nnz
    values, g = rng.standard_normal((2, *np.atleast_1d(shape)), dtype=np.float32)
    return power_law(n, nnz), values, g


class Softmax:
    """y = softmax of each row's entries, then the gradient of the values for a given one of y."""

    name = "softmax"
    title = "Row softmax over stored entries, forward + backward, float32"
    threaded = True
    memory = True
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [
            {
                "label": f"{n:,} rows, nnz {nnz:,}, {heads} head{'s' * (heads > 1)}",
                "sizes": [n, nnz, heads],
            }
            for n, nnz, heads in _SIZES[size]
        ]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        matrix, values, g = _problem(*variant["sizes"])
        filled = np.flatnonzero(np.diff(matrix.indptr))
        starts, run = matrix.indptr[filled], np.diff(matrix.indptr)[filled]

        def spread(a: np.ndarray, ufunc: Any) -> np.ndarray:
            return np.repeat(ufunc.reduceat(a, starts, axis=0), run, axis=0)

        wide = values.astype(np.float64)
        y = np.exp(wide - spread(wide, np.maximum))
        y /= spread(y, np.add)
        gy = g * y
        return {
            "y": Expected(y, None, 1e-5),
            "dv": Expected(gy - y * spread(gy, np.add), np.abs(gy) + y * spread(abs(gy), np.add)),
        }

    def candidates(self, variant: Variant) -> list[Candidate]:
        sizes = variant["sizes"]
        found = [Candidate(OURS, lambda: _ours(*sizes), _result, role="ours")]
        found.append(
            Candidate(
                "torch scatter_reduce, index_add",
                lambda: _torch(*sizes),
                _result,
                needs="torch",
            )
        )
        if sizes[2] == 1:
            found.append(
                Candidate(
                    "torch.sparse.softmax", lambda: _torch_sparse(*sizes), _result, needs="torch"
                )
            )
        return found


def _result(raw: Any) -> dict[str, Any]:
    y, dv = raw
    return {"y": y.detach().numpy(), "dv": dv.numpy()}


def _ours(*sizes: int) -> Callable[[], Any]:
    import sparsegrad as sg

    matrix, values, upstream = _problem(*sizes)
    shape = (*matrix.shape, *values.shape[1:])
    a = sg.csr(matrix.indptr, matrix.indices, values, shape, requires_grad=True)
    g = sg.from_numpy(upstream)

    def step() -> Any:
        y = sg.softmax(a, 1).values
        return (y, sg.grad(y, a, g)[0].values)

    return step


def _torch(*sizes: int) -> Callable[[], Any]:
    import torch

    matrix, values, upstream = _problem(*sizes)
    held, g = torch.tensor(values, requires_grad=True), torch.from_numpy(upstream)
    rows = torch.from_numpy(np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)))

    def step() -> Any:
        y = peers.torch_edge_softmax(held, rows, matrix.shape[0])
        return (y, torch.autograd.grad(y, held, g)[0])

    return step


def _torch_sparse(*sizes: int) -> Callable[[], Any]:
    import torch

    matrix, values, upstream = _problem(*sizes)
    a = peers.torch_coo(matrix)
    held, g = torch.tensor(values, requires_grad=True), torch.from_numpy(upstream)
    indices, shape = a.indices(), a.shape

    def step() -> Any:
        made = torch.sparse_coo_tensor(indices, held, shape, is_coalesced=True)
        y = torch.sparse.softmax(made, 1).coalesce().values()
        return (y, torch.autograd.grad(y, held, g)[0])

    return step
