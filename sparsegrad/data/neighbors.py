"""Mini-batches of a graph: some nodes, and a sample of those they can see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsegrad import create, ops, sampling
from sparsegrad.errors import DtypeError
from sparsegrad.ops.shape import check_sparse
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.tensor import Tensor

__all__ = ["NeighborSampler"]


class NeighborSampler:
    """Nodes of a graph as a data set for a `DataLoader`; a batch is `sample(nodes)`.

    A: adjacency matrix (n, n), a SparseTensor; row i lists what node i gathers from.
    fanouts: how many entries of a row are drawn, without repetition, for each layer, the one next
        to the batch first; -1: all. A row with fewer keeps what it has.
    nodes: those to make batches of, ids or a mask (n,), by default all.

    Draws come from the generator of `sg.manual_seed`, inside a `DataLoader` from that of the batch.
    Raises TypeError for an A that is no SparseTensor, ValueError for other fanouts or an A that is
    not square, DtypeError for nodes that are neither.

    Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs", NIPS 2017.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 3, 4, 5, 6], [1, 2, 3, 0, 0, 0], None, (4, 4))
    >>> layer, x = sg.nn.SAGEConv(2, 8), sg.ones(4, 2)
    >>> for nodes, layers in sg.data.DataLoader(sg.data.NeighborSampler(A, [2]), batch_size=3):
    ...     h = x[nodes]
    ...     for adjacency in layers:  # one for each layer of the network
    ...         h = layer(h, adjacency)
    ...     h.shape
    (3, 8)
    (1, 8)
    """

    def __init__(self, A: SparseTensor, fanouts: Sequence[int], nodes: Any = None) -> None:
        check_sparse("NeighborSampler", "A", A)
        if A.ndim != 2 or A.shape[0] != A.shape[1]:
            raise ValueError(f"NeighborSampler: A must be (n, n), got shape {tuple(A.shape)}")
        if not all(isinstance(k, int) and k >= -1 for k in fanouts):
            raise ValueError(f"NeighborSampler: fanouts must be integers >= -1, got {fanouts}")
        self.fanouts = tuple(fanouts)
        self.A = ops.coalesce(A.detach().to("cpu").to("csr"))
        self.nodes = self._ids(np.arange(A.shape[0]) if nodes is None else nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, i: Any) -> Any:
        return self.batch([i])

    def batch(self, ids: Any) -> tuple[np.ndarray, list[SparseTensor]]:
        """`sample` of the nodes at these places of `nodes`."""
        return self.sample(self.nodes[np.asarray(ids)])

    def sample(self, nodes: Any) -> tuple[np.ndarray, list[SparseTensor]]:
        """What the layers of a network read to find the outputs of `nodes` (b,): the ids of all
        nodes they read, int64, the b first; and a CSR matrix for each layer in the order they are
        called, (m, n), whose rows and columns are the first m and n of those ids.

        Raises ValueError for a node that is not in the graph, or is given twice.
        """
        found, layers = self._ids(nodes), []
        place = np.full(self.A.shape[0], -1)  # of each node among those found
        place[found] = np.arange(len(found))
        for fanout in self.fanouts:
            drawn = self._drawn(found, fanout)
            new = np.unique(drawn.indices[place[drawn.indices] < 0])
            place[new] = len(found) + np.arange(len(new))
            shape = len(found), len(found) + len(new)
            columns = place[drawn.indices]
            layer = create.csr(drawn.indptr, columns, drawn.values, shape, check=False)
            layers.append(ops.coalesce(layer))
            found = np.concatenate([found, new])
        return found, layers[::-1]

    def _drawn(self, nodes: np.ndarray, fanout: int) -> SparseTensor:
        rows = ops.index_select(self.A, 0, nodes)
        if fanout < 0:
            return rows
        kept = ops.top_k(rows.with_values(sampling.rand(rows.nnz)), fanout, dim=1)
        return ops.sparse_mask(rows, kept.pattern)

    def _ids(self, nodes: Any) -> np.ndarray:
        ids, n = np.asarray(nodes.numpy() if isinstance(nodes, Tensor) else nodes), self.A.shape[0]
        if ids.dtype == bool and ids.shape == (n,):
            return np.flatnonzero(ids)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise DtypeError(
                f"NeighborSampler: nodes must be integers (b,) or a mask ({n},), got {ids.dtype} "
                f"of shape {ids.shape}"
            )
        ids = ids.astype(np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < n:
            raise ValueError(
                f"NeighborSampler: nodes must lie in [0, {n}), got {ids.min()} to {ids.max()}"
            )
        if len(np.unique(ids)) < ids.size:
            again = int(np.bincount(ids).argmax())
            raise ValueError(f"NeighborSampler: node {again} is given twice")
        return ids
