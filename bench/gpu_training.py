"""Steps of optimizers and epochs of graph networks in `python -m bench gpu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import sparsegrad as sg
from bench import gpu_peers as peers
from bench.gpu_measure import Call, Case

__all__ = ["training"]

WIDTH = 64  # of the rows of a table
TABLES, NARROW = 26, 16  # of a log of clicks
CLASSES = 16


def training(p: Any) -> list[Case]:
    """For a `Problem`."""
    nn, optim = sg.nn, sg.optim
    return [
        *(_rows(p, cls) for cls in (optim.SGD, optim.Adagrad, optim.RowwiseAdagrad, optim.Adam)),
        _dense(p),
        _embedding(p),
        _tables(p),
        _epoch(p, "GCN", lambda: [nn.GCNConv(128, 64), nn.GCNConv(64, CLASSES)]),
        _epoch(p, "GAT", lambda: [_gat(128, 8, 8), _gat(64, CLASSES)]),
    ]


def _gat(*sizes: int) -> sg.nn.Module:
    """Attention over the entries as they are."""
    return sg.nn.GATConv(*sizes, self_loops=False)


def _rows(p: Any, cls: Any) -> Case:
    """A step of an optimizer on a table whose gradient has the rows of n ids, added up."""

    def make(device: str, dtype: str) -> Call:
        table = sg.tensor(p.x[:, :WIDTH].astype(dtype), device=device, requires_grad=True)
        optimizer = cls([table], lr=0.01)
        index = sg.tensor(p.ids[: p.n].astype(np.int32), device=device)
        (sg.embedding(table, index) ** 2).sum().backward()
        table.grad = table.grad.coalesce()

        def run() -> sg.Tensor:
            optimizer.step()
            return table

        return run

    name = f"{cls.__name__}, row-sparse gradient, rows of {WIDTH}"
    return Case(name, make, tol=1e-4, peers=peers.rows(p, cls.__name__, WIDTH))


def _dense(p: Any) -> Case:
    def make(device: str, dtype: str) -> Call:
        table = sg.tensor(p.x.astype(dtype), device=device, requires_grad=True)
        optimizer = sg.optim.Adam([table], lr=0.01)
        (table**2).sum().backward()

        def run() -> sg.Tensor:
            optimizer.step()
            return table

        return run

    # Parameter and two moments are read and written, the gradient is read.
    return Case("Adam, dense gradient", make, 7 * p.x.nbytes, 1e-4, peers.dense_adam(p))


def _embedding(p: Any) -> Case:
    """Gather, backward, Adam on the rows that were touched: the whole of a step."""

    def make(device: str, dtype: str) -> Call:
        table = sg.tensor(p.x[:, :WIDTH].astype(dtype), device=device, requires_grad=True)
        optimizer = sg.optim.Adam([table], lr=0.01)
        index = sg.tensor(p.ids[: p.n].astype(np.int32), device=device)

        def run() -> sg.Tensor:
            optimizer.zero_grad()
            (sg.embedding(table, index) ** 2).sum().backward()
            optimizer.step()
            return table

        return run

    return Case("embedding step with Adam, n ids", make, tol=1e-4, peers=peers.embedding(p, WIDTH))


def _tables(p: Any) -> Case:
    """The same of many tables, an id of each for every sample."""

    def make(device: str, dtype: str) -> Call:
        raw, ids = peers.columns(p, TABLES, NARROW)
        tables = [sg.tensor(x.astype(dtype), device=device, requires_grad=True) for x in raw]
        optimizer = sg.optim.Adam(tables, lr=0.01)
        index = sg.tensor(ids, device=device)

        def run() -> sg.Tensor:
            optimizer.zero_grad()
            (sg.embedding_collection(tables, index) ** 2).sum().backward()
            optimizer.step()
            return tables[-1]

        return run

    name = f"{TABLES} tables: embedding step with Adam, n ids"
    return Case(name, make, tol=1e-4, peers=peers.tables(p, TABLES, NARROW))


def _epoch(p: Any, name: str, layers: Callable[[], list[sg.nn.Module]]) -> Case:
    """Forward, backward and a step of Adam over the whole graph: the loss, compared after a step,
    so that the gradients are too."""

    def model() -> sg.nn.ModuleList:
        sg.manual_seed(0)
        return sg.nn.ModuleList(layers())

    def make(device: str, dtype: str) -> Call:
        net = model().to(dtype).to(device)
        optimizer = sg.optim.Adam(net.parameters(), lr=0.01)
        A, x = p.matrix(device, dtype, p.mean), p.right(128, device, dtype)
        target = sg.tensor(p.ids[: p.n] % CLASSES, device=device)

        def run() -> sg.Tensor:
            optimizer.zero_grad()
            loss = sg.cross_entropy(net[1](sg.relu(net[0](x, A)), A), target)
            loss.backward()
            optimizer.step()
            return loss

        return run

    def weights() -> list[dict[str, np.ndarray]]:
        return [
            {key: value.detach().numpy() for key, value in layer.state_dict().items()}
            for layer in model()
        ]

    found = peers.epoch(p, name, weights, p.ids[: p.n] % CLASSES)
    return Case(f"epoch of {name}", make, tol=1e-3, peers=found, calls=2)
