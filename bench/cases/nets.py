"""What the cases that train a network on a graph share: the graph, weights, and the oracle."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.cases import Variant
from bench.oracle import Expected

__all__ = ["LR", "Problem", "expected", "missing", "problem", "result", "variants"]

LR = 0.01
_STEP = 1e-7  # of the difference quotient in float64
# Names, with the width of the hidden layer of the GCN.
_GRAPHS = {
    "full": [("cora", 16), ("pubmed", 16), ("amazon_computers", 64), ("coauthor_physics", 64)],
    "quick": [("sbm", 16)],
    "tiny": [("sbm", 4)],
}


@dataclass(frozen=True)
class Problem:
    """A graph as SciPy CSR arrays (float32, int32): adjacency and its GCN normalisation, with
    self-loops both, and features; labels, training nodes, number of classes."""

    adjacency: Any
    normalised: Any
    features: Any
    labels: np.ndarray
    train: np.ndarray
    classes: int


def variants(size: str) -> list[Variant]:
    return [
        {"label": f"{name}, hidden {hidden}", "graph": name, "hidden": hidden}
        for name, hidden in _GRAPHS[size]
    ]


def missing(name: str) -> str | None:
    """Why the graph cannot be read, None if it can."""
    if name == "sbm" or "SPARSEGRAD_DATA" in os.environ:
        return None
    return f"needs {name} in the folder that SPARSEGRAD_DATA names"


@lru_cache(maxsize=1)
def problem(name: str) -> Problem:
    import sparsegrad as sg

    if name == "sbm":
        graph = sg.data.sbm(n=400, seed=0)
    elif name.startswith("amazon_"):
        graph = sg.data.amazon(name.removeprefix("amazon_"))
    elif name.startswith("coauthor_"):
        graph = sg.data.coauthor(name.removeprefix("coauthor_"))
    else:
        graph = sg.data.planetoid(name)
    looped = sp.csr_array(graph.adjacency.to_scipy() + sp.eye_array(graph.n_nodes))
    looped.data[:] = 1
    scale = sp.diags_array(1 / np.sqrt(looped.sum(axis=1)))
    return Problem(
        _csr(looped),
        _csr(scale @ looped @ scale),
        _csr(graph.features.to_scipy()),
        graph.labels.numpy(),
        graph.train.numpy(),
        graph.n_classes,
    )


def _csr(matrix: Any) -> Any:
    matrix = sp.csr_array(matrix)
    matrix.sort_indices()
    parts = (matrix.data.astype("f4"), matrix.indices.astype("i4"), matrix.indptr.astype("i4"))
    return sp.csr_array(parts, shape=matrix.shape)


def weights(shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Initial weights: uniform within Glorot's bounds; vectors of zeros."""
    rng = np.random.default_rng(0)
    made = []
    for shape in shapes:
        bound = np.sqrt(6 / (shape[0] + shape[-1])) if len(shape) > 1 else 0.0
        made.append(rng.uniform(-bound, bound, shape).astype(np.float32))
    return made


def _directions(shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape) for shape in shapes]


def expected(loss: Callable[..., float], shapes: Sequence[tuple[int, ...]]) -> dict[str, Expected]:
    """Loss at the initial weights, and its slope along a random direction of all of them."""
    start = [w.astype(np.float64) for w in weights(shapes)]
    ways = _directions(shapes)
    ends = [
        loss(*(w + sign * _STEP * d for w, d in zip(start, ways, strict=True))) for sign in (1, -1)
    ]
    slope = (ends[0] - ends[1]) / (2 * _STEP)
    value = loss(*start)
    return {
        "loss": Expected(np.asarray(value), None, 1e-4),
        "slope": Expected(np.asarray(slope), max(abs(slope), abs(value)), 1e-3),
    }


def result(raw: Any) -> dict[str, Any]:
    """Loss and slope of what a training step returns: the loss and the gradients it used."""
    loss, gradients = raw
    arrays = [np.asarray(g.detach().numpy(), np.float64) for g in gradients]
    ways = _directions([a.shape for a in arrays])
    slope = sum(float((a * d).sum()) for a, d in zip(arrays, ways, strict=True))
    return {"loss": np.asarray(loss.item()), "slope": np.asarray(slope)}


def cross_entropy(logits: np.ndarray, p: Problem) -> float:
    """Mean over the training nodes, in float64."""
    chosen = logits[p.train]
    top = chosen.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(chosen - top).sum(axis=1)) + top[:, 0]
    return float((log_sum - chosen[np.arange(len(chosen)), p.labels[p.train]]).mean())
