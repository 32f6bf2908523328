"""Graph: what a node classification data set is."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sparsegrad.errors import SparsegradError
from sparsegrad.sparse_tensor import SparseTensor, compressed
from sparsegrad.tensor import Tensor

__all__ = ["DataError", "Graph"]


class DataError(SparsegradError, ValueError):
    """A data set is missing or malformed."""


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """Nodes with features and classes, and the edges between them.

    adjacency: SparseTensor (n, n), CSR, symmetric, ones; without self-loops unless the data
        has them.
    features: SparseTensor (n, F), CSR, rows that sum to 1 (or 0); of some data sets a Tensor.
    labels: Tensor (n,), int64, in [0, n_classes); -1 for a node without a class.
    train, val, test: Tensors of node ids, int64, disjoint.

    >>> import sparsegrad as sg
    >>> graph = sg.data.sbm(n=400, seed=0)
    >>> graph.adjacency.shape, graph.labels.shape
    ((400, 400), (400,))
    """

    name: str
    adjacency: SparseTensor
    features: SparseTensor | Tensor
    labels: Tensor
    n_classes: int
    train: Tensor
    val: Tensor
    test: Tensor

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return self.adjacency.shape[0]

    @property
    def n_features(self) -> int:
        """Number of features of a node."""
        return self.features.shape[1]

    def to(self, target: Any) -> Graph:
        """On another device, or with adjacency and features in another floating-point dtype."""
        moved: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            floating = field.name in ("adjacency", "features")
            if floating or (isinstance(value, Tensor) and _device(target)):
                moved[field.name] = value.to(target)
        return replace(self, **moved)

    def __repr__(self) -> str:
        A = self.adjacency
        loops = int((A.row == A.col).sum())
        edges = (A.nnz - loops) // 2 + loops
        split = "/".join(str(len(ids)) for ids in (self.train, self.val, self.test))
        return (
            f"Graph({self.name!r}: {self.n_nodes} nodes, {edges} edges, "
            f"{self.n_features} features, {self.n_classes} classes, split {split})"
        )


def _device(target: Any) -> bool:
    return str(target).partition(":")[0] in ("cpu", "cuda")


def undirected(u: Any, v: Any, n: int) -> SparseTensor:
    """Edges u - v as a symmetric adjacency matrix (n, n) of ones, each once, in CSR."""
    u, v = np.asarray(u, np.int64), np.asarray(v, np.int64)
    cells = np.unique(np.concatenate((u * n + v, v * n + u)))
    row, col = np.divmod(cells, n)
    return csr_rows(row, col, np.ones(len(cells), np.float32), (n, n))


def row_normalised(X: SparseTensor) -> SparseTensor:
    """Rows of a CSR matrix divided by their sums; rows that sum to 0 stay."""
    total = np.zeros(X.shape[0], np.float64)
    np.add.at(total, X.row, X.values.data)
    scale = np.divide(1, total, out=np.zeros_like(total), where=total != 0)
    return X.with_values(Tensor((X.values.data * scale[X.row]).astype(np.float32)))


def csr_rows(row: Any, col: Any, values: Any, shape: tuple[int, int]) -> SparseTensor:
    """Entries sorted by row and column as a CSR matrix."""
    indptr = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=shape[0]))))
    return compressed("csr", indptr, col, values, shape)
