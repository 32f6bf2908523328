"""The citation graphs Cora, CiteSeer and PubMed, from a local folder."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from sparsegrad.data.graph import DataError, Graph, row_normalised, undirected
from sparsegrad.sparse_tensor import compressed
from sparsegrad.tensor import Tensor

__all__ = ["FOLDER_VARIABLE", "planetoid"]

FOLDER_VARIABLE = "SPARSEGRAD_DATA"
_NAMES = ("cora", "citeseer", "pubmed")
_KEYS = ("shape", "x_indptr", "x_indices", "edge_u", "edge_v", "y", "train_idx", "test_idx")
_VALIDATION = 500  # nodes after the training nodes, as in Kipf and Welling


def planetoid(name: str, folder: str | os.PathLike[str] | None = None) -> Graph:
    """Cora, CiteSeer or PubMed with the standard split: 20 training nodes a class, 500 for
    validation, 1000 for the test; undirected adjacency (n, n), features (n, F) with rows that sum
    to 1.

    name: "cora", "citeseer" or "pubmed".
    folder: holds planetoid/<name>.npz; by default the one that the environment variable
        SPARSEGRAD_DATA names. Files are read without unpickling anything.

    Raises DataError for another name, and for a file that is missing or malformed.

    Yang, Cohen and Salakhutdinov, "Revisiting semi-supervised learning with graph embeddings",
    ICML 2016.
    """
    if name not in _NAMES:
        raise DataError(f"planetoid: name must be one of {', '.join(_NAMES)}, got {name!r}")
    path = _find(name, folder)
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            held = {key: file[key] for key in file}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"planetoid: {path} is not a readable .npz file: {error}") from None
    if missing := [key for key in _KEYS if key not in held]:
        raise DataError(f"planetoid: {path} lacks {', '.join(missing)}; fetch the file anew")
    try:
        return _graph(name, held)
    except (ValueError, TypeError, IndexError, KeyError) as error:
        raise DataError(f"planetoid: {path} is malformed: {error}") from None


def _find(name: str, folder: str | os.PathLike[str] | None) -> Path:
    if folder is None:
        folder = os.environ.get(FOLDER_VARIABLE)
        if not folder:
            raise DataError(
                f"planetoid: {name} is read from a local folder, and the environment variable "
                f"{FOLDER_VARIABLE} does not name one; set it to the folder that holds "
                f"planetoid/{name}.npz, or use the generated data set 'sbm'"
            )
    path = Path(folder) / "planetoid" / f"{name}.npz"
    if not path.is_file():
        raise DataError(
            f"planetoid: there is no {path.relative_to(folder)} in the folder {folder}; put it "
            f"there, let {FOLDER_VARIABLE} name the folder that holds it, or use the generated "
            "data set 'sbm'"
        )
    return path


def _graph(name: str, held: dict[str, Any]) -> Graph:
    n, width = (int(size) for size in held["shape"])
    indptr, indices = held["x_indptr"], held["x_indices"]
    X = compressed("csr", indptr, indices, _feature_values(held, len(indices)), (n, width))
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


def _feature_values(held: dict[str, Any], nnz: int) -> Any:
    """The three ways a file keeps them: in full, as codes into a table, or one for all."""
    if "x_data" in held:
        return held["x_data"].astype(np.float32)
    if "x_code" in held:
        return held["x_levels"][held["x_code"]].astype(np.float32)
    return np.full(nnz, held["x_value"][0], np.float32)
