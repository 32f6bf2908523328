"""Ops of `python -m bench gpu`: each on the GPU, on the CPU, and by what others have for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import matmul
from typing import Any

import numpy as np

import sparsegrad as sg
from bench import gpu_peers as peers
from bench.gpu_measure import Call, Case, Peer
from bench.graphs import power_law

__all__ = ["Problem", "all_cases", "products", "structures"]


class Problem:
    """A power-law graph of n nodes and nnz entries, and numbers for it, the same at every size."""

    def __init__(self, n: int, nnz: int) -> None:
        rng = np.random.default_rng(0)
        self.n, self.graph = n, power_law(n, nnz).tocsr()
        self.nnz = self.graph.nnz
        self.x = rng.standard_normal((n, 128), dtype=np.float32)
        self.pairs = rng.integers(0, n, (2, nnz)).astype(np.int32)
        self.values = rng.standard_normal(nnz, dtype=np.float32)
        self.ids = rng.integers(0, n, 8 * n)

    @cached_property
    def mean(self) -> Any:
        """The graph with rows that sum to 1."""
        made = self.graph.copy()
        counts = np.diff(made.indptr)
        made.data = np.repeat(1 / np.maximum(counts, 1), counts).astype(np.float32)
        return made

    @cached_property
    def few(self) -> Any:
        """Eight entries a row, some of them at one place."""
        import scipy.sparse as sp

        rows = np.arange(8 * self.n) // 8
        values = np.resize(self.values, 8 * self.n)
        return sp.coo_array((values, (rows, self.ids)), shape=(self.n, self.n)).tocsr()

    def matrix(self, device: str, dtype: str, graph: Any = None) -> sg.SparseTensor:
        """The graph, or another one, of values of a dtype."""
        g = self.graph if graph is None else graph
        data = g.data.astype(dtype)
        return sg.csr(g.indptr, g.indices, data, g.shape, check=False).to(device)

    def right(self, k: int, device: str, dtype: str) -> sg.Tensor:
        """n vectors of k."""
        return sg.tensor(self.x[:, :k].astype(dtype), device=device)


def all_cases(n: int, nnz: int) -> list[Case]:
    """Every case, on a graph of n nodes and nnz entries."""
    from bench.gpu_training import training

    p = Problem(n, nnz)
    return [*products(p), *structures(p), *training(p)]


# ---- products ----------------------------------------------------------------------------------
def products(p: Problem) -> list[Case]:
    """Sparse @ dense and its kin, sampled products, sparse @ sparse."""
    return [
        *(_spmm(p, k) for k in (1, 16, 64, 128)),
        _spmm(p, 64, ", deterministic", _deterministic, others=()),
        _spmm(p, 64, ", transposed", lambda A, x: A.T @ x, peers.spmm_transposed(p, 64)),
        _spmm(p, 64, ", max", lambda A, x: sg.spmm(A, x, "max"), peers.spmm_max(p, 64)),
        _spmm(p, 64, stored="float16", others=peers.spmm(p, 64, "float16")),
        _heads(p),
        _gradients(p),
        *(_sddmm(p, k) for k in (64, 128)),
        _square(p),
    ]


def _spmm(
    p: Problem,
    k: int,
    name: str = "",
    run: Callable[[Any, Any], Any] = matmul,
    others: Sequence[Peer] | None = None,
    stored: str = "float32",
) -> Case:
    """Of a matrix and n vectors of k; `stored`: the dtype that stands for float32."""

    def make(device: str, dtype: str) -> Call:
        dtype = stored if dtype == "float32" else dtype
        A, x = p.matrix(device, dtype), p.right(k, device, dtype)
        return lambda: run(A, x)

    size = np.dtype(stored).itemsize
    moved = p.nnz * (size * (k + 1) + 4) + size * p.n * k
    found = peers.spmm(p, k, stored) if others is None else others
    return Case(f"spmm, {stored}, k = {k}{name}", make, moved, 1e-5 if size > 2 else 5e-3, found)


def _deterministic(A: Any, x: sg.Tensor) -> sg.Tensor:
    with sg.config(deterministic=True):
        return A @ x


def _heads(p: Problem) -> Case:
    def make(device: str, dtype: str) -> Call:
        weights = sg.tensor(np.stack([p.graph.data] * 4, 1).astype(dtype), device=device)
        g = p.graph
        A = sg.csr(g.indptr, g.indices, weights, (p.n, p.n, 4), check=False, device=device)
        x = p.right(64, device, dtype).reshape(p.n, 4, 16)
        return lambda: sg.spmm(A, x)

    moved = p.nnz * (4 * 68 + 4) + 4 * p.n * 64
    return Case("spmm, float32, 4 heads of 16", make, moved, peers=peers.heads(p))


def _gradients(p: Problem) -> Case:
    def make(device: str, dtype: str) -> Call:
        A = p.matrix(device, dtype).requires_grad_()
        x = p.right(64, device, dtype).requires_grad_()
        return lambda: sg.grad((A @ x).sum(), [x, A.values])[0]

    return Case("spmm and its gradients, k = 64", make, tol=1e-4, peers=peers.gradients(p, 64))


def _sddmm(p: Problem, k: int) -> Case:
    def make(device: str, dtype: str) -> Call:
        A, x = p.matrix(device, dtype), p.right(k, device, dtype)
        return lambda: sg.sddmm(x, x, A.pattern).values

    return Case(f"sddmm, float32, k = {k}", make, p.nnz * (8 * k + 12), peers=peers.sddmm(p, k))


def _square(p: Problem) -> Case:
    def make(device: str, dtype: str) -> Call:
        A = p.matrix(device, dtype, p.few)
        return lambda: (A @ A).values

    return Case("sparse @ sparse, 8 entries a row", make, peers=peers.square(p))


# ---- duplicates, rows --------------------------------------------------------------------------
COUNTS = {", 100 entries": 100, ", 100,000 entries": 100_000, "": 1 << 62}


def _coalesce(p: Problem, count: int, name: str) -> Case:
    """Few entries are where the launches and the wait for a size are what takes the time."""

    def make(device: str, dtype: str) -> Call:
        where = list(sg.tensor(np.ascontiguousarray(p.pairs[:, :count]), device=device).data)
        values = sg.tensor(p.values[:count].astype(dtype), device=device)
        options: dict[str, Any] = {"check": False, "copy": False}
        return lambda: sg.coo(where, values, (p.n, p.n), **options).coalesce().values

    return Case(f"coalesce, new pattern{name}", make, peers=peers.coalesce(p, count))


def structures(p: Problem) -> list[Case]:
    """Coalescing, and what runs along the entries of rows."""

    def sums(device: str, dtype: str) -> Call:
        A = sg.coo(list(p.pairs), p.values.astype(dtype), (p.n, p.n)).to(device)
        A.coalesce()
        return lambda: A.coalesce().values

    def softmax(device: str, dtype: str) -> Call:
        A = p.matrix(device, dtype)
        return lambda: sg.softmax(A, 1).values

    def softmax_gradient(device: str, dtype: str) -> Call:
        A = p.matrix(device, dtype).requires_grad_()
        g = sg.tensor(p.values.astype(dtype), device=device)
        return lambda: sg.grad(sg.softmax(A, 1).values, [A.values], g)[0]

    return [
        *(_coalesce(p, min(count, p.nnz), name) for name, count in COUNTS.items()),
        Case("coalesce, known pattern", sums, 40 * p.nnz),
        Case("softmax of rows", softmax, 8 * p.nnz, peers=peers.softmax(p)),
        Case(
            "softmax of rows and its gradient",
            softmax_gradient,
            20 * p.nnz,
            peers=peers.softmax_gradient(p),
        ),
    ]
