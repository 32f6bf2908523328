"""The citation graphs Cora, CiteSeer and PubMed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from sparsegrad.data.files import local, malformed, read_arrays
from sparsegrad.data.graph import DataError, Graph, row_normalised, undirected
from sparsegrad.data.graphs import feature_values
from sparsegrad.data.planetoid_files import original
from sparsegrad.sparse_tensor import compressed
from sparsegrad.tensor import Tensor

__all__ = ["planetoid"]

_NAMES = ("cora", "citeseer", "pubmed")
_KEYS = ("shape", "x_indptr", "x_indices", "edge_u", "edge_v", "y", "train_idx", "test_idx")
_VALIDATION = 500  # nodes after the training nodes, as in Kipf and Welling


def planetoid(name: str, folder: str | os.PathLike[str] | None = None) -> Graph:
    """Cora, CiteSeer or PubMed with the standard split: 20 training nodes a class, 500 for
    validation, 1000 for the test; undirected adjacency (n, n), features (n, F) with rows that sum
    to 1.

    name: "cora", "citeseer" or "pubmed".
    folder: holds planetoid/<name>.npz, or the originals ind.<name>.x, ...; by default the one that
        the environment variable SPARSEGRAD_DATA names. Where it has neither, the originals of
        CiteSeer and PubMed are downloaded. They are pickles: only arrays, matrices, dictionaries
        and lists are read from them, nothing is executed.

    Raises DataError for another name, and for a file that is missing or malformed.

    Yang, Cohen and Salakhutdinov, "Revisiting semi-supervised learning with graph embeddings",
    ICML 2016.
    """
    if name not in _NAMES:
        raise DataError(f"planetoid: name must be one of {', '.join(_NAMES)}, got {name!r}")
    path = local(f"planetoid/{name}.npz", folder)
    if path is None:
        path, held = original(name, folder)
    else:
        held = read_arrays("planetoid", path, _KEYS)
    with malformed("planetoid", path):
        return _graph(name, held)


def _graph(name: str, held: dict[str, Any]) -> Graph:
    n, width = (int(size) for size in held["shape"])
    indptr, indices = held["x_indptr"], held["x_indices"]
    X = compressed("csr", indptr, indices, feature_values(held, len(indices)), (n, width))
    u, v = held["edge_u"].astype(np.int64), held["edge_v"].astype(np.int64)
    labels = held["y"].astype(np.int64)
    train, test = held["train_idx"].astype(np.int64), held["test_idx"].astype(np.int64)
    val = np.arange(len(train), len(train) + _VALIDATION)
    for key, ids in {"edge_u": u, "edge_v": v, "train_idx": train, "test_idx": test}.items():
        if ids.ndim != 1 or (ids.size and not 0 <= ids.min() <= ids.max() < n):
            raise ValueError(f"{key} must hold node ids in [0, {n})")
    if len(u) != len(v):
        raise ValueError(f"edge_u and edge_v must be of one length, got {len(u)} and {len(v)}")
    if labels.shape != (n,):
        raise ValueError(f"y must have shape ({n},), got {labels.shape}")
    everyone = np.concatenate((train, val, test))
    if len(np.unique(everyone)) != len(everyone) or int(everyone.max()) >= n:
        raise ValueError("training, validation and test nodes overlap or do not exist")
    if int(labels[everyone].min()) < 0:
        raise ValueError("a node of the split has no class")
    return Graph(
        name=name,
        adjacency=undirected(u, v, n),
        features=row_normalised(X),
        labels=Tensor(labels),
        n_classes=int(labels.max()) + 1,
        train=Tensor(train),
        val=Tensor(val),
        test=Tensor(test),
    )
