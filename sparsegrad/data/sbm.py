"""A stochastic block model with bag-of-words features: a data set that needs no download."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegrad.data.graph import Graph, csr_rows, row_normalised, undirected
from sparsegrad.tensor import Tensor

__all__ = ["sbm"]


def sbm(
    n: int = 3000,
    n_classes: int = 5,
    degree: float = 5.0,
    homophily: float = 0.75,
    n_features: int = 1000,
    words: int = 15,
    topic: float = 0.3,
    train_per_class: int = 20,
    seed: int = 0,
) -> Graph:
    """A planted partition (n nodes) with sparse features, the same for the same arguments.

    Each of two nodes' edges exists independently, with a probability that depends on whether
    they are of one class: `degree` edges a node on average, the share `homophily` of them inside
    the class. A node has up to `words` of `n_features` words, each from its class's own part of
    the vocabulary with probability `topic`, else from all of it. With the defaults words
    alone tell little and neighbours much: about 90 % for the graph network of
    `sparsegrad.recipes`, 43 % for the same network without the edges.

    Training nodes: `train_per_class` of each class; of the others, up to 500 for validation and
    1000 for the test, drawn at random (fewer in a small graph: in proportion 1 : 2 at most).

    Raises ValueError for arguments out of range.

    Holland, Laskey and Leinhardt, "Stochastic blockmodels: first steps", Social Networks 5, 1983.

    >>> import sparsegrad as sg
    >>> graph = sg.data.sbm(n=500, seed=1)
    >>> graph.adjacency.shape, graph.features.shape, graph.n_classes
    ((500, 500), (500, 1000), 5)
    """
    _check(n, n_classes, degree, homophily, n_features, words, topic, train_per_class)
    rng = np.random.Generator(np.random.Philox(seed))
    labels = rng.permutation(np.arange(n) % n_classes)
    u, v = _edges(rng, labels, n_classes, degree, homophily)
    train, val, test = _split(rng, labels, n_classes, train_per_class)
    return Graph(
        name="sbm",
        adjacency=undirected(u, v, n),
        features=draw_words(rng, labels, n_classes, n_features, words, topic),
        labels=Tensor(labels.astype(np.int64)),
        n_classes=n_classes,
        train=Tensor(train),
        val=Tensor(val),
        test=Tensor(test),
    )


def _edges(rng: Any, labels: Any, k: int, degree: float, homophily: float) -> tuple[Any, Any]:
    """Pairs u < v. Per pair of blocks, how many edges there are is binomial and where they are
    is a draw without replacement, so the work is O(edges), not O(n²)."""
    blocks = [np.flatnonzero(labels == c) for c in range(k)]
    size = len(labels) / k
    inside = min(1.0, degree * homophily / max(1.0, size - 1))
    across = min(1.0, degree * (1 - homophily) / max(1.0, len(labels) - size))
    us, vs = [], []
    for a in range(k):
        for b in range(a, k):
            cells = len(blocks[a]) * len(blocks[b])
            count = rng.binomial(cells, inside if a == b else across)
            i, j = np.divmod(rng.choice(cells, count, replace=False), len(blocks[b]))
            if a == b:  # a square of cells: each pair once, no self-loops
                i, j = i[i < j], j[i < j]
            us.append(blocks[a][i])
            vs.append(blocks[b][j])
    return np.concatenate(us), np.concatenate(vs)


def draw_words(rng: Any, labels: Any, k: int, vocabulary: int, words: int, topic: float) -> Any:
    """Words (n, vocabulary) of rows with labels (n,), see `sbm`; rows sum to 1."""
    n, part = len(labels), vocabulary // k
    of_topic = rng.random((n, words)) < topic
    own = labels[:, None] * part + rng.integers(0, part, (n, words))
    word = np.where(of_topic, own, rng.integers(0, vocabulary, (n, words)))
    cells = np.unique(np.arange(n)[:, None] * vocabulary + word)
    row, col = np.divmod(cells, vocabulary)
    return row_normalised(csr_rows(row, col, np.ones(len(cells), np.float32), (n, vocabulary)))


def _split(rng: Any, labels: Any, k: int, per_class: int) -> tuple[Any, Any, Any]:
    order = rng.permutation(len(labels))
    train = np.concatenate([order[labels[order] == c][:per_class] for c in range(k)])
    rest = order[~np.isin(order, train)]
    n_val = min(500, len(rest) // 4)
    n_test = min(1000, len(rest) - n_val)
    return np.sort(train), np.sort(rest[:n_val]), np.sort(rest[n_val : n_val + n_test])


def _check(
    n: int, k: int, degree: float, homophily: float, vocabulary: int, words: int, topic: float,
    per_class: int,
) -> None:  # fmt: skip
    if k < 1 or per_class < 1 or n < 2 * k * per_class:
        raise ValueError(
            f"sbm: n must be at least twice n_classes * train_per_class = {k * per_class}, got {n}"
        )
    if not 0 <= degree < n / k:
        raise ValueError(f"sbm: degree must lie in [0, n / n_classes), got {degree}")
    for name, share in (("homophily", homophily), ("topic", topic)):
        if not 0 <= share <= 1:
            raise ValueError(f"sbm: {name} must lie in [0, 1], got {share}")
    if vocabulary < k or words < 0:
        raise ValueError(f"sbm: needs n_features >= {k} and words >= 0, got {vocabulary}, {words}")
