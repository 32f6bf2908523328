"""What CuPy and PyTorch offer for the ops of `bench gpu`, written as their users would at best.

Each function gives peers for a `Problem`. They run on the device that they are told, so that tests
compare PyTorch's on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench.gpu_measure import Call, Peer
from bench.peers import (
    quiet,
    torch_by_hand,
    torch_coo,
    torch_csr,
    torch_edge_softmax,
    torch_fixed,
    torch_gat_layer,
)

__all__ = [
    "coalesce",
    "columns",
    "dense_adam",
    "embedding",
    "epoch",
    "gradients",
    "heads",
    "rows",
    "sddmm",
    "softmax",
    "softmax_gradient",
    "spmm",
    "spmm_max",
    "spmm_transposed",
    "square",
    "tables",
]


# ---- products ----------------------------------------------------------------------------------
def spmm(p: Any, k: int, dtype: str) -> list[Peer]:
    """The graph @ x (n, k)."""

    def cupyx(device: str) -> Call:
        A, x = _cupyx(p.graph), _cupy(p.x[:, :k])
        return lambda: A @ x

    def by_csr(index: str) -> Callable[[str], Call]:
        def make(device: str) -> Call:
            x, values = (_torch(array, device, dtype) for array in (p.x[:, :k], p.graph.data))
            A = torch_csr(p.graph, index, values.cpu()).to(device)
            return lambda: A @ x

        return make

    def by_coo(device: str) -> Call:
        import torch

        A, x = torch_coo(p.graph).to(device), _torch(p.x[:, :k], device)
        return lambda: torch.sparse.mm(A, x)

    found = [Peer("torch CSR, int32", by_csr("int32"))]
    if dtype != "float32":
        return found
    found += [Peer("torch CSR, int64", by_csr("int64")), Peer("torch COO", by_coo)]
    return [Peer("cupyx", cupyx), *found]


def spmm_transposed(p: Any, k: int) -> list[Peer]:
    """graph.T @ x, with a transpose that was built before."""

    def cupyx(device: str) -> Call:
        A, x = _cupyx(p.graph.T.tocsr()), _cupy(p.x[:, :k])
        return lambda: A @ x

    def by_torch(device: str) -> Call:
        A, x = torch_csr(p.graph.T.tocsr(), "int32").to(device), _torch(p.x[:, :k], device)
        return lambda: A @ x

    name = ", CSR of the transpose"
    return [Peer("cupyx" + name, cupyx), Peer("torch" + name, by_torch)]


def spmm_max(p: Any, k: int) -> list[Peer]:
    """The largest product of each row and column."""

    def by_torch(device: str) -> Call:
        import torch

        x, values = _torch(p.x[:, :k], device), _torch(p.graph.data, device)
        row, col = _entries(p.graph, device)
        where = row[:, None].expand(-1, k)
        empty = torch.zeros(p.n, k, device=device)

        def run() -> Any:
            products = values[:, None] * x[col]
            return empty.scatter_reduce(0, where, products, "amax", include_self=False)

        return run

    return [Peer("torch gather, scatter_reduce", by_torch)]


def heads(p: Any) -> list[Peer]:
    """Four heads of 16, each with the graph's values."""

    def by_torch(device: str) -> Call:
        import torch

        x = _torch(p.x[:, :64], device).view(p.n, 4, 16)
        values = _torch(np.stack([p.graph.data] * 4, 1), device)
        row, col = _entries(p.graph, device)
        zero = torch.zeros(p.n, 4, 16, device=device)
        return lambda: zero.index_add(0, row, values[:, :, None] * x[col])

    return [Peer("torch gather, index_add", by_torch)]


def gradients(p: Any, k: int) -> list[Peer]:
    """Forward, and gradients of both arguments: that of x."""

    def by_torch(device: str) -> Call:
        import torch

        values = _torch(p.graph.data, device).requires_grad_()
        x = _torch(p.x[:, :k], device).requires_grad_()
        multiply = torch_by_hand(p.graph, "int32", "mm", device)
        return lambda: torch.autograd.grad(multiply(values, x).sum(), [x, values])[0]

    return [Peer("torch, sampled_addmm and transposes kept", by_torch)]


def sddmm(p: Any, k: int) -> list[Peer]:
    """x @ x.T on the entries of the graph."""

    def by_torch(device: str) -> Call:
        import torch

        mask, x = torch_csr(p.graph, "int32").to(device), _torch(p.x[:, :k], device)
        return lambda: torch.sparse.sampled_addmm(mask, x, x.T, beta=0).values()

    return [Peer("torch sampled_addmm", by_torch)]


def square(p: Any) -> list[Peer]:
    """A matrix times itself."""

    def cupyx(device: str) -> Call:
        A = _cupyx(p.few)
        return lambda: A @ A

    def by_torch(device: str) -> Call:
        A = torch_csr(p.few, "int32").to(device)
        return lambda: A @ A

    return [Peer("cupyx", cupyx), Peer("torch CSR", by_torch)]


# ---- duplicates, rows --------------------------------------------------------------------------
def coalesce(p: Any, count: int) -> list[Peer]:
    """The first entries at pairs (2, nnz), sorted and summed: the values."""
    pairs, numbers = p.pairs[:, :count], p.values[:count]

    def cupyx(device: str) -> Call:
        from cupyx.scipy import sparse

        (row, col), values = _cupy(pairs), _cupy(numbers)

        def run() -> Any:
            found = sparse.coo_matrix((values, (row, col)), (p.n, p.n))
            found.sum_duplicates()
            return found.data

        return run

    def by_torch(device: str) -> Call:
        import torch

        where, values = _torch(pairs.astype(np.int64), device), _torch(numbers, device)
        shape = p.n, p.n
        made = partial(torch.sparse_coo_tensor, where, values, shape, check_invariants=False)
        return lambda: made().coalesce().values()

    return [Peer("cupyx", cupyx), Peer("torch COO", by_torch)]


def softmax(p: Any) -> list[Peer]:
    """Along the entries of each row."""

    def by_hand(device: str) -> Call:
        values, (row, _) = _torch(p.graph.data, device), _entries(p.graph, device)
        return lambda: torch_edge_softmax(values, row, p.n)

    def built_in(device: str) -> Call:
        import torch

        A = torch_coo(p.graph).to(device)
        return lambda: torch.sparse.softmax(A, 1)._values()

    return [
        Peer("torch scatter_reduce, index_add", by_hand),
        Peer("torch.sparse.softmax", built_in),
    ]


def softmax_gradient(p: Any) -> list[Peer]:
    """The same, and the gradient of the values for a given one of the result."""

    def by_torch(device: str) -> Call:
        import torch

        values, (row, _) = _torch(p.graph.data, device).requires_grad_(), _entries(p.graph, device)
        g = _torch(p.values, device)
        return lambda: torch.autograd.grad(torch_edge_softmax(values, row, p.n), [values], g)[0]

    return [Peer("torch scatter_reduce, index_add", by_torch)]


# ---- training ----------------------------------------------------------------------------------
def rows(p: Any, name: str, width: int) -> list[Peer]:
    """A step on a table with a row-sparse gradient."""

    def make(device: str) -> Call:
        import torch

        table = _torch(p.x[:, :width], device).clone().requires_grad_()
        index = _torch(p.ids[: p.n], device)
        gathered = torch.nn.functional.embedding(index, table, sparse=True)
        (gathered**2).sum().backward()
        table.grad = table.grad.coalesce()
        return _stepping(_optimizer(name, table), table)

    if name == "RowwiseAdagrad":
        return []  # PyTorch itself has none
    return [Peer(f"torch {'SparseAdam' if name == 'Adam' else name}", make)]


def dense_adam(p: Any) -> list[Peer]:
    """A step on a table with a dense gradient."""

    def make(device: str) -> Call:
        import torch

        table = _torch(p.x, device).clone().requires_grad_()
        (table**2).sum().backward()
        return _stepping(torch.optim.Adam([table], lr=0.01, fused=True), table)

    return [Peer("torch Adam, fused", make)]


def embedding(p: Any, width: int) -> list[Peer]:
    """Gather, backward, and a step on the rows that were touched."""

    def make(device: str) -> Call:
        import torch

        table = _torch(p.x[:, :width], device).clone().requires_grad_()
        index = _torch(p.ids[: p.n], device)
        optimizer = _optimizer("Adam", table)

        def run() -> Any:
            optimizer.zero_grad()
            (torch.nn.functional.embedding(index, table, sparse=True) ** 2).sum().backward()
            optimizer.step()
            return table

        return run

    return [Peer("torch SparseAdam", make)]


def columns(p: Any, count: int, width: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Tables (n, width), and ids (batch, count), n in all."""
    starts = np.arange(count) * (p.x.shape[1] - width) // count
    batch = p.n // count
    ids = p.ids[: batch * count].reshape(batch, count)
    return [np.ascontiguousarray(p.x[:, at : at + width]) for at in starts], ids


def tables(p: Any, count: int, width: int) -> list[Peer]:
    """`embedding` of many tables, one after the other."""

    def make(device: str) -> Call:
        import torch

        raw, ids = columns(p, count, width)
        weights = [_torch(x, device).clone().requires_grad_() for x in raw]
        index = [_torch(np.ascontiguousarray(column), device) for column in ids.T]
        optimizer = _optimizer("Adam", *weights)
        lookup = torch.nn.functional.embedding

        def run() -> Any:
            optimizer.zero_grad()
            rows = [lookup(i, w, sparse=True) for i, w in zip(index, weights, strict=True)]
            (torch.cat(rows, 1) ** 2).sum().backward()
            optimizer.step()
            return weights[-1]

        return run

    return [Peer("torch SparseAdam", make)]


def _optimizer(name: str, *tables: Any) -> Any:
    import torch

    if name == "Adam":  # its eps is added before the bias correction: this one is ours in a step
        return torch.optim.SparseAdam(tables, lr=0.01, eps=1e-8 * math.sqrt(1 - 0.999))
    return getattr(torch.optim, name)(tables, lr=0.01)


def _stepping(optimizer: Any, table: Any) -> Call:
    def run() -> Any:
        optimizer.step()
        return table

    return run


def epoch(
    p: Any, name: str, weights: Callable[[], list[dict[str, Any]]], target: np.ndarray
) -> list[Peer]:
    """Forward, backward and Adam of two layers with these weights: the loss."""

    def layers(device: str) -> tuple[Callable[[Any, dict[str, Any]], Any], list[dict[str, Any]]]:
        held = [
            {key: _torch(w, device).requires_grad_() for key, w in layer.items()}
            for layer in weights()
        ]
        if name == "GCN":
            spread = torch_fixed(p.mean, "int32", "mm", device)
            return lambda x, w: spread(x @ w["weight"]) + w["bias"], held
        row, col = _entries(p.mean, device)

        def attend(x: Any, w: dict[str, Any]) -> Any:
            h = (x @ w["weight"]).view(p.n, *w["left"].shape)
            out = torch_gat_layer(h, w["left"], w["right"], row, col)
            return out.reshape(p.n, -1) + w["bias"]

        return attend, held

    def make(device: str) -> Call:
        import torch

        layer, held = layers(device)
        optimizer = torch.optim.Adam(
            [w for part in held for w in part.values()], lr=0.01, fused=device != "cpu"
        )
        x, wanted = _torch(p.x, device), _torch(target, device)

        def run() -> Any:
            optimizer.zero_grad()
            logits = layer(torch.relu(layer(x, held[0])), held[1])
            loss = torch.nn.functional.cross_entropy(logits, wanted)
            loss.backward()
            optimizer.step()
            return loss

        return run

    return [Peer("torch CSR" if name == "GCN" else "torch gather, index_add", make)]


# ---- arrays ------------------------------------------------------------------------------------
def _cupy(array: np.ndarray) -> Any:
    import cupy

    return cupy.asarray(np.ascontiguousarray(array))


def _cupyx(matrix: Any) -> Any:
    import scipy.sparse as sp
    from cupyx.scipy import sparse

    return sparse.csr_matrix(sp.csr_matrix(matrix))


def _torch(array: np.ndarray, device: str, dtype: str | None = None) -> Any:
    import torch

    return torch.tensor(np.ascontiguousarray(array, dtype=dtype), device=device)


def _entries(matrix: Any, device: str) -> tuple[Any, Any]:
    """Row and column of each entry, as PyTorch indexes: 64 bits."""
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    with quiet():
        return _torch(row, device), _torch(matrix.indices.astype(np.int64), device)
