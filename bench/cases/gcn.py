"""One epoch of the two-layer GCN of Kipf and Welling on real graphs, with sparse features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from bench import peers
from bench.cases import OURS, Candidate, Variant, nets
from bench.machine import available_memory
from bench.oracle import Expected

__all__ = ["Gcn"]


class Gcn:
    """Forward, backward and a step of Adam; no dropout, so that all compute the same."""

    name = "gcn"
    title = "GCN: one epoch (forward, backward, Adam), sparse features, float32"
    threaded = True
    memory = True
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return nets.variants(size)

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        if nets.missing(variant["graph"]):
            return {}
        p = nets.problem(variant["graph"])
        a, x = p.normalised.astype("f8"), p.features.astype("f8")

        def loss(w0: Any, b0: Any, w1: Any, b1: Any) -> float:
            h = np.maximum(a @ (x @ w0) + b0, 0)
            return nets.cross_entropy(a @ (h @ w1) + b1, p)

        return nets.expected(loss, _shapes(p, variant["hidden"]))

    def candidates(self, variant: Variant) -> list[Candidate]:
        skip = nets.missing(variant["graph"])
        torch = partial(Candidate, result=nets.result, needs="torch")
        found = [Candidate(OURS, lambda: _ours(variant), nets.result, role="ours", skip=skip)]
        for index, product in (("int32", "mm"), ("int32", "reduce"), ("int64", "reduce")):
            name = f"torch, CSR {index}, transposes kept" + ", reduce" * (product == "reduce")
            make = partial(_torch_csr, variant, index, product)
            found.append(torch(name, make, skip=skip))
        found.append(torch("torch.sparse.mm, COO", partial(_torch_coo, variant), skip=skip))
        found.append(
            torch(
                "torch, dense features",
                partial(_torch_dense, variant),
                skip=skip or _large(variant),
            )
        )
        return found


def _shapes(p: nets.Problem, hidden: int) -> list[tuple[int, ...]]:
    return [(p.features.shape[1], hidden), (hidden,), (hidden, p.classes), (p.classes,)]


def _large(variant: Variant) -> str | None:
    n, width = nets.problem(variant["graph"]).features.shape
    need = 2 * 4 * n * width
    return None if need < available_memory() // 4 else f"needs {need / 2**30:.0f} GiB"


def _ours(variant: Variant) -> Callable[[], Any]:
    import sparsegrad as sg

    p = nets.problem(variant["graph"])
    a, x = sg.from_scipy(p.normalised), sg.from_scipy(p.features)
    first = sg.nn.GCNConv(p.features.shape[1], variant["hidden"], activation="relu")
    second = sg.nn.GCNConv(variant["hidden"], p.classes)
    params = [first.weight, first.bias, second.weight, second.bias]
    with sg.no_grad():
        for param, w in zip(params, nets.weights(_shapes(p, variant["hidden"])), strict=True):
            param[:] = w
    labels, train = sg.from_numpy(p.labels[p.train]), sg.from_numpy(p.train)
    optimizer = sg.optim.Adam(params, lr=nets.LR)

    def step() -> Any:
        optimizer.zero_grad()
        loss = sg.cross_entropy(second(first(x, a), a)[train], labels)
        loss.backward()
        optimizer.step()
        return loss, [param.grad for param in params]

    return step


def _torch_csr(variant: Variant, index: str, product: str) -> Callable[[], Any]:
    p = nets.problem(variant["graph"])
    multiply = (peers.torch_fixed(m, index, product) for m in (p.normalised, p.features))
    return _torch(variant, *multiply)


def _torch_coo(variant: Variant) -> Callable[[], Any]:
    import torch

    p = nets.problem(variant["graph"])
    coo = (peers.torch_coo(m) for m in (p.normalised, p.features))
    return _torch(variant, *(partial(torch.sparse.mm, m) for m in coo))


def _torch_dense(variant: Variant) -> Callable[[], Any]:
    import torch

    p = nets.problem(variant["graph"])
    dense = torch.from_numpy(p.features.toarray())
    return _torch(variant, peers.torch_fixed(p.normalised, "int32", "reduce"), dense.mm)


def _torch(variant: Variant, spread: Any, project: Any) -> Callable[[], Any]:
    """spread: h -> A_hat @ h; project: w -> X @ w."""
    import torch

    p = nets.problem(variant["graph"])
    params = [
        torch.from_numpy(w).requires_grad_() for w in nets.weights(_shapes(p, variant["hidden"]))
    ]
    w0, b0, w1, b1 = params
    labels, train = torch.from_numpy(p.labels[p.train]), torch.from_numpy(p.train)
    optimizer = torch.optim.Adam(params, lr=nets.LR)

    def step() -> Any:
        optimizer.zero_grad()
        h = torch.relu(spread(project(w0)) + b0)
        loss = torch.nn.functional.cross_entropy((spread(h @ w1) + b1)[train], labels)
        loss.backward()
        optimizer.step()
        return loss, [param.grad for param in params]

    return step
