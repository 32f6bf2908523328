"""Sparse @ sparse on matrices of the SuiteSparse collection: A @ A, and its gradient on A."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

from bench import peers
from bench.cases import OURS, Candidate, Variant
from bench.graphs import power_law
from bench.oracle import Expected

__all__ = ["Product", "ProductBackward"]

_NAMES = {
    "full": ["bcsstk13", "bayer10", "pushpull", "ca-CondMat", "p2p-Gnutella31"],
    "quick": ["bcsstk13"],
    "tiny": [""],  # a generated matrix: tests need no data
}


def _path(name: str) -> Path:
    return Path(os.environ.get("SPARSEGRAD_DATA", "")) / "matrices" / f"{name}.mtx.gz"


def _missing(name: str) -> str | None:
    if not name or ("SPARSEGRAD_DATA" in os.environ and _path(name).is_file()):
        return None
    return f"needs matrices/{name}.mtx.gz in the folder that SPARSEGRAD_DATA names"


@lru_cache(maxsize=1)
def _problem(name: str) -> tuple[Any, Any]:
    """A with the pattern of the file and normal values, and a gradient on the product."""
    rng = np.random.default_rng(0)
    if name:
        with gzip.open(_path(name)) as file:
            matrix = sp.csr_array(scipy.io.mmread(file))
    else:
        matrix = power_law(40, 200)
    matrix.sum_duplicates()
    matrix.indices, matrix.indptr = (a.astype(np.int32) for a in (matrix.indices, matrix.indptr))
    matrix.data = rng.standard_normal(matrix.nnz, dtype=np.float32)
    ones = sp.csr_array((np.ones(matrix.nnz, bool), matrix.indices, matrix.indptr), matrix.shape)
    g = sp.csr_array(ones @ ones)
    g.sort_indices()
    g.data = rng.standard_normal(g.nnz, dtype=np.float32)
    return matrix, g


def _wide(a: Any) -> Any:
    return a.astype(np.float64)


class Product:
    """C = A @ A; the pattern of C is found in the first call and kept."""

    name = "spgemm"
    title = "Sparse @ sparse, A @ A, float32"
    threaded = True
    memory = False
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [{"label": name or "generated", "name": name} for name in _NAMES[size]]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        if _missing(variant["name"]):
            return {}
        matrix, g = _problem(variant["name"])
        pattern = sp.csr_array((np.zeros(g.nnz), g.indices, g.indptr), g.shape)
        value, scale = (_on(pattern, a @ a) for a in (_wide(matrix), abs(_wide(matrix))))
        return {"c": Expected(value, scale)}

    def candidates(self, variant: Variant) -> list[Candidate]:
        name = variant["name"]
        skip = _missing(name)

        def result(raw: Any) -> dict[str, Any]:
            _, g = _problem(name)
            return {"c": _on(g, raw)}

        return [
            Candidate(
                OURS, lambda: _ours(name), lambda c: result(c.to_scipy()), None, "ours", skip
            ),
            Candidate("SciPy", lambda: _scipy(name), result, "scipy", skip=skip),
            Candidate(
                "torch CSR",
                lambda: _torch(name),
                lambda c: result(_from_torch(c)),
                "torch",
                skip=skip,
            ),
        ]


def _on(pattern: Any, matrix: Any) -> np.ndarray:
    """Values of a matrix at the entries of a pattern that holds all of its own, in its order."""
    rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
    cells = rows * np.int64(pattern.shape[1]) + pattern.indices
    found = sp.coo_array(matrix)
    out = np.zeros(pattern.nnz)
    key = found.coords[0].astype(np.int64) * pattern.shape[1] + found.coords[1]
    out[np.searchsorted(cells, key)] = found.data
    return out


def _ours(name: str) -> Callable[[], Any]:
    import sparsegrad as sg

    a = sg.from_scipy(_problem(name)[0])
    return lambda: a @ a


def _scipy(name: str) -> Callable[[], Any]:
    matrix, _ = _problem(name)
    return lambda: matrix @ matrix


def _torch(name: str) -> Callable[[], Any]:
    a = peers.torch_csr(_problem(name)[0], "int64")
    return lambda: a @ a


def _from_torch(c: Any) -> Any:
    parts = (c.values(), c.col_indices(), c.crow_indices())
    return sp.csr_array(tuple(t.numpy() for t in parts), shape=tuple(c.shape))


class ProductBackward(Product):
    """The gradient of A's values for a given one on the product: two products masked by A."""

    name = "spgemm-grad"
    title = "Gradient of A @ A on the entries of A, float32"

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        if _missing(variant["name"]):
            return {}
        matrix, g = map(_wide, _problem(variant["name"]))
        value, scale = (_masked(a, b) for a, b in ((matrix, g), (abs(matrix), abs(g))))
        return {"da": Expected(value, scale)}

    def candidates(self, variant: Variant) -> list[Candidate]:
        name = variant["name"]
        make = partial(Candidate, skip=_missing(name))
        return [
            make(OURS, lambda: _ours_grad(name), lambda da: {"da": da.values.numpy()}, role="ours"),
            make(
                "SciPy, products formed and masked",
                lambda: lambda: _masked(*_problem(name)),
                lambda da: {"da": da},
                needs="scipy",
            ),
            make(
                "torch.sparse.mm",
                lambda: _torch_grad(name),
                lambda da: {"da": da.coalesce().values().numpy()},
                needs="torch",
            ),
        ]


def _masked(matrix: Any, g: Any) -> np.ndarray:
    """G A' + A' G at the entries of A, by forming both."""
    formed = sp.csr_array(g @ matrix.T + matrix.T @ g)
    ones = sp.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), matrix.shape)
    return _on(matrix, formed.multiply(ones))


def _ours_grad(name: str) -> Callable[[], Any]:
    import sparsegrad as sg

    matrix, upstream = _problem(name)
    a = sg.from_scipy(matrix, requires_grad=True)
    c = a @ a
    g = c.detach().with_values(sg.from_numpy(_on(c.detach().to_scipy(), upstream).astype("f4")))
    return lambda: sg.grad(c, a, g, retain_graph=True)[0]


def _torch_grad(name: str) -> Callable[[], Any]:
    import torch

    matrix, upstream = _problem(name)
    a, g = peers.torch_coo(matrix).requires_grad_(), peers.torch_coo(upstream)
    c = torch.sparse.mm(a, a)
    return lambda: torch.autograd.grad(c, a, g, retain_graph=True)[0]
