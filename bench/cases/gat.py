"""One epoch of the two-layer GAT of Velickovic et al. on real graphs: eight heads, then one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from bench import peers
from bench.cases import OURS, Candidate, Variant, nets
from bench.oracle import Expected

__all__ = ["Gat"]

_HEADS, _WIDTH = 8, 8  # of the hidden layer
_SLOPE = 0.2


class Gat:
    """Forward, backward and a step of Adam; no dropout, so that all compute the same."""

    name = "gat"
    title = "GAT: one epoch (forward, backward, Adam), 8 heads of 8, sparse features, float32"
    threaded = True
    memory = False
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [{"label": v["graph"], "graph": v["graph"]} for v in nets.variants(size)]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        if nets.missing(variant["graph"]):
            return {}
        p = nets.problem(variant["graph"])
        x, rows, cols = p.features.astype("f8"), _rows(p), p.adjacency.indices
        starts = p.adjacency.indptr[:-1]  # no row is empty: every node has a loop

        def layer(h: Any, left: Any, right: Any) -> Any:
            scores = (h * left).sum(2)[rows] + (h * right).sum(2)[cols]
            scores = np.where(scores > 0, scores, _SLOPE * scores)
            weight = np.exp(scores - np.maximum.reduceat(scores, starts)[rows])
            weight /= np.add.reduceat(weight, starts)[rows]
            parts = [
                np.add.reduceat(weight[:, k, None] * h[cols, k], starts) for k in range(h.shape[1])
            ]
            return np.stack(parts, axis=1)

        def loss(w0: Any, l0: Any, r0: Any, b0: Any, w1: Any, l1: Any, r1: Any, b1: Any) -> float:
            h = layer((x @ w0).reshape(-1, _HEADS, _WIDTH), l0, r0).reshape(-1, _HEADS * _WIDTH)
            h = h + b0
            h = np.where(h > 0, h, np.expm1(np.minimum(h, 0)))
            return nets.cross_entropy(layer((h @ w1)[:, None], l1, r1)[:, 0] + b1, p)

        return nets.expected(loss, _shapes(p))

    def candidates(self, variant: Variant) -> list[Candidate]:
        skip = nets.missing(variant["graph"])
        torch = partial(Candidate, result=nets.result, needs="torch", skip=skip)
        return [
            Candidate(OURS, lambda: _ours(variant), nets.result, role="ours", skip=skip),
            torch("torch, index_add", lambda: _torch(variant, peers.torch_index_add)),
            torch("torch, scatter_add", lambda: _torch(variant, _scatter_add)),
        ]


def _shapes(p: nets.Problem) -> list[tuple[int, ...]]:
    hidden, heads = _HEADS * _WIDTH, (_HEADS, _WIDTH)
    first = [(p.features.shape[1], hidden), heads, heads, (hidden,)]
    return [*first, (hidden, p.classes), (1, p.classes), (1, p.classes), (p.classes,)]


def _rows(p: nets.Problem) -> np.ndarray:
    return np.repeat(np.arange(p.adjacency.shape[0]), np.diff(p.adjacency.indptr))


def _ours(variant: Variant) -> Callable[[], Any]:
    import sparsegrad as sg

    p = nets.problem(variant["graph"])
    a, x = sg.from_scipy(p.adjacency), sg.from_scipy(p.features)
    layers = [
        sg.nn.GATConv(p.features.shape[1], _WIDTH, _HEADS),
        sg.nn.GATConv(_HEADS * _WIDTH, p.classes, 1, concat=False),
    ]
    params = [p for layer in layers for p in (layer.weight, layer.left, layer.right, layer.bias)]
    with sg.no_grad():
        for param, w in zip(params, nets.weights(_shapes(p)), strict=True):
            param[:] = w
    labels, train = sg.from_numpy(p.labels[p.train]), sg.from_numpy(p.train)
    optimizer = sg.optim.Adam(params, lr=nets.LR)

    def step() -> Any:
        optimizer.zero_grad()
        h = sg.elu(layers[0](x, a))
        loss = sg.cross_entropy(layers[1](h, a)[train], labels)
        loss.backward()
        optimizer.step()
        return loss, [param.grad for param in params]

    return step


def _scatter_add(n: int, rows: Any, messages: Any) -> Any:
    where = rows[:, None, None].expand_as(messages)
    return messages.new_zeros(n, *messages.shape[1:]).scatter_add(0, where, messages)


def _torch(variant: Variant, add: Callable[..., Any]) -> Callable[[], Any]:
    import torch

    p = nets.problem(variant["graph"])
    n = p.adjacency.shape[0]
    params = [torch.from_numpy(w).requires_grad_() for w in nets.weights(_shapes(p))]
    w0, l0, r0, b0, w1, l1, r1, b1 = params
    rows, cols = torch.from_numpy(_rows(p)), torch.from_numpy(p.adjacency.indices.astype("i8"))
    project = peers.torch_fixed(p.features, "int32", "reduce")
    labels, train = torch.from_numpy(p.labels[p.train]), torch.from_numpy(p.train)
    optimizer = torch.optim.Adam(params, lr=nets.LR)
    layer = partial(peers.torch_gat_layer, rows=rows, cols=cols, add=add)

    def step() -> Any:
        optimizer.zero_grad()
        h = layer(project(w0).view(n, _HEADS, _WIDTH), l0, r0).reshape(n, -1) + b0
        h = torch.nn.functional.elu(h)
        logits = layer((h @ w1).view(n, 1, -1), l1, r1)[:, 0] + b1
        loss = torch.nn.functional.cross_entropy(logits[train], labels)
        loss.backward()
        optimizer.step()
        return loss, [param.grad for param in params]

    return step
