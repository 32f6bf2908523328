"""Graphs of co-purchases, co-authors and unlike neighbours, from their .npz files.

Three layouts are read, told apart by their keys: that of shchur/gnn-benchmark (`adj_indptr`, ...,
`labels`), that of yandex-research/heterophilous-graphs (`edges`, `node_features`, `node_labels`),
and a compact one (`edge_u`, `edge_v`, `x` or `x_indptr`, ..., `y`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from sparsegrad.data.files import find, local, malformed, read_arrays
from sparsegrad.data.graph import DataError, Graph, row_normalised, undirected
from sparsegrad.data.splits import per_class_split
from sparsegrad.sparse_tensor import compressed
from sparsegrad.tensor import Tensor

__all__ = ["amazon", "coauthor", "feature_values", "heterophilous", "read_graph"]

_AMAZON = {"photo": "amazon_electronics_photo", "computers": "amazon_electronics_computers"}
_COAUTHOR = {"physics": "ms_academic_phy", "cs": "ms_academic_cs"}
_HETEROPHILOUS = (
    "tolokers", "minesweeper", "questions", "amazon_ratings", "roman_empire",
    "chameleon_filtered", "squirrel_filtered",
)  # fmt: skip
_SHCHUR = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz/"
_YANDEX = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data/"


def amazon(name: str, split: int = 0, folder: str | os.PathLike[str] | None = None) -> Graph:
    """Things bought together: "photo" (7650 nodes, 8 classes) or "computers" (13752, 10), with 20
    training and 30 validation nodes of each class, drawn with the seed `split`; the others are the
    test.

    folder: holds graphs/amazon_<name>.npz, or the public amazon_electronics_<name>.npz; by default
        the one that the environment variable SPARSEGRAD_DATA names.

    Raises DataError for another name, and for a file that is missing or malformed.

    Shchur, Mumme, Bojchevski and Günnemann, "Pitfalls of graph neural network evaluation", 2018.
    """
    return _by_name("amazon", name, _AMAZON, f"graphs/amazon_{name}.npz", split, folder)


def coauthor(name: str, split: int = 0, folder: str | os.PathLike[str] | None = None) -> Graph:
    """Authors who wrote together: "physics" (34493 nodes, 5 classes) or "cs"; split as `amazon`.

    folder: holds graphs/coauthor_<name>.npz, or the public ms_academic_phy.npz or
        ms_academic_cs.npz; by default the one that the environment variable SPARSEGRAD_DATA names.

    Raises DataError for another name, and for a file that is missing or malformed.

    Shchur, Mumme, Bojchevski and Günnemann, "Pitfalls of graph neural network evaluation", 2018.
    """
    return _by_name("coauthor", name, _COAUTHOR, f"graphs/coauthor_{name}.npz", split, folder)


def heterophilous(name: str, split: int = 0, folder: str | os.PathLike[str] | None = None) -> Graph:
    """Graphs whose neighbours are often of unlike classes, with their ten published splits.

    name: "tolokers", "minesweeper", "chameleon_filtered", "squirrel_filtered", "questions",
        "amazon_ratings", "roman_empire".
    split: 0 to 9.
    folder: holds graphs/<name>.npz or <name>.npz; by default the one that the environment variable
        SPARSEGRAD_DATA names.

    Raises DataError for another name or split, and for a file that is missing or malformed.

    Platonov, Kuznedelev, Diskin, Babenko and Prokhorenkova, "A critical look at the evaluation of
    GNNs under heterophily: are we really making progress?", ICLR 2023.
    """
    if name not in _HETEROPHILOUS:
        known = ", ".join(_HETEROPHILOUS)
        raise DataError(f"heterophilous: name must be one of {known}, got {name!r}")
    path = _found("heterophilous", f"graphs/{name}.npz", f"{_YANDEX}{name}.npz", folder)
    return read_graph(path, split, name)


def _by_name(
    loader: str,
    name: str,
    public: dict[str, str],
    path: str,
    split: int,
    folder: str | os.PathLike[str] | None,
) -> Graph:
    if name not in public:
        raise DataError(f"{loader}: name must be one of {', '.join(public)}, got {name!r}")
    found = _found(loader, path, f"{_SHCHUR}{public[name]}.npz", folder)
    return read_graph(found, split, f"{loader} {name}")


def _found(loader: str, path: str, url: str, folder: str | os.PathLike[str] | None) -> Path:
    """The compact file, or the public one beside it."""
    public = local(url.rpartition("/")[2], folder)
    if public is not None and local(path, folder) is None:
        return public
    return find(loader, path, folder, f"the public file {url}")


def read_graph(path: str | os.PathLike[str], split: int = 0, name: str | None = None) -> Graph:
    """A graph from an .npz file of one of the three layouts that the module describes; its edges
    are read both ways. Nothing of a file is unpickled.

    split: which of the splits that the file holds; where it holds none, the seed of one as that of
        `amazon`.

    Sparse features get rows that sum to 1, dense ones stay as they are.

    Raises DataError for a file that is malformed, of another layout, or without that split.
    """
    path = Path(path)
    held = read_arrays("read_graph", path)
    with malformed("read_graph", path):
        u, v, features, labels = _parts(path, held)
        n = len(labels)
        if len(u) != len(v):
            raise ValueError(f"as many sources as targets of edges, got {len(u)} and {len(v)}")
        for ids in (u, v):
            if ids.ndim != 1 or (ids.size and not 0 <= ids.min() <= ids.max() < n):
                raise ValueError(f"edges must be between nodes in [0, {n})")
        if features.shape[0] != n:
            raise ValueError(f"{n} labels, but features of {features.shape[0]} nodes")
        parts = _split(path, held, labels, split)
        return Graph(
            name=path.stem if name is None else name,
            adjacency=undirected(u, v, n),
            features=features if isinstance(features, Tensor) else row_normalised(features),
            labels=Tensor(labels),
            n_classes=int(labels.max(initial=-1)) + 1,
            train=parts[0],
            val=parts[1],
            test=parts[2],
        )


def _parts(path: Path, held: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Edges, features and labels, whichever the layout."""
    if "edge_u" in held:
        if "x" in held:
            features: Any = Tensor(held["x"].astype(np.float32))
        else:
            values = feature_values(held, len(held["x_indices"]))
            shape = tuple(int(size) for size in held["x_shape"])
            features = compressed("csr", held["x_indptr"], held["x_indices"], values, shape)
        u, v, labels = held["edge_u"], held["edge_v"], held["y"]
    elif "node_features" in held:
        (u, v), labels = held["edges"].T, held["node_labels"]
        features = Tensor(held["node_features"].astype(np.float32))
    elif "adj_indptr" in held:
        u = np.repeat(np.arange(len(held["adj_indptr"]) - 1), np.diff(held["adj_indptr"]))
        v, labels = held["adj_indices"], held["labels"]
        values, shape = held["attr_data"], tuple(int(size) for size in held["attr_shape"])
        parts = held["attr_indptr"], held["attr_indices"], values.astype(np.float32)
        features = compressed("csr", *parts, shape)
    else:
        raise DataError(
            f"read_graph: {path} has none of the known layouts; it holds {', '.join(held)}"
        )
    return u.astype(np.int64), v.astype(np.int64), features, labels.astype(np.int64)


def feature_values(held: dict[str, Any], nnz: int) -> Any:
    """The three ways a compact file keeps them: in full, as codes into a table, or one for all."""
    if "x_data" in held:
        return held["x_data"].astype(np.float32)
    if "x_code" in held:
        return held["x_levels"][held["x_code"]].astype(np.float32)
    return np.full(nnz, held["x_value"][0], np.float32)


def _split(path: Path, held: dict[str, Any], labels: Any, split: int) -> tuple[Any, Any, Any]:
    keys = [f"{part}_masks" for part in ("train", "val", "test")]
    n = len(labels)
    if f"{keys[0]}_packed" in held:
        masks = [np.unpackbits(held[f"{key}_packed"], axis=1)[:, :n] for key in keys]
    elif keys[0] in held:
        masks = [held[key] for key in keys]
    else:
        return per_class_split(labels, seed=split)
    if not 0 <= split < len(masks[0]):
        raise DataError(f"read_graph: {path} holds splits 0 to {len(masks[0]) - 1}, got {split}")
    train, val, test = (mask[split].astype(bool) for mask in masks)
    if (train & val | train & test | val & test).any() or len(train) != n:
        raise ValueError(f"split {split}: training, validation and test nodes overlap")
    first, second, third = (Tensor(np.flatnonzero(part)) for part in (train, val, test))
    return first, second, third
