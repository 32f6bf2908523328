"""Other libraries' objects: networkx graphs and PyTorch tensors, both ways.

Neither library is imported unless its object is at hand: networkx by the functions about it,
PyTorch never (its objects bring what is needed).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from sparsegrad.backends import dlpack
from sparsegrad.dtypes import get_default_dtype
from sparsegrad.errors import ShapeError
from sparsegrad.sparse_tensor import SparseTensor, compressed
from sparsegrad.structure import cost
from sparsegrad.tensor import Tensor

__all__ = ["from_networkx", "from_torch", "to_networkx", "to_torch"]


# ---- networkx ----------------------------------------------------------------------------------
def from_networkx(
    graph: Any,
    weight: str | None = "weight",
    nodes: Any = None,
    format: str | None = None,
    dtype: Any = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """The adjacency (N, N) of a networkx graph; of an undirected one both ways, self-loops once.

    weight: edge attribute with the values, 1 where it is missing; None for ones.
    nodes: the nodes in the order of the rows; by default the graph's own order.
    format: "coo", "csr", "csc" or "auto"; by default `sg.config.format`.
    dtype: of the values, by default float32.

    Parallel edges of a multigraph are added.

    >>> import sparsegrad as sg
    >>> import networkx as nx
    >>> sg.from_networkx(nx.path_graph(3)).to_dense()
    tensor([[0., 1., 0.],
            [1., 0., 1.],
            [0., 1., 0.]])
    """
    if not hasattr(graph, "adj"):
        raise TypeError(f"from_networkx: expected a networkx graph, got {type(graph).__name__}")
    import networkx as nx

    dtype = get_default_dtype() if dtype is None else dtype
    order = list(graph) if nodes is None else list(nodes)
    if order:
        held = nx.to_scipy_sparse_array(graph, order, dtype, weight, format="coo")
        coords, values = [held.row, held.col], held.data
    else:  # networkx refuses graphs without nodes
        coords, values = [[], []], np.zeros(0, dtype)
    n = len(order)
    A = SparseTensor(coords, values, (n, n), dtype=dtype)
    A = A.to(cost.resolve(format, A.shape, A.nnz))
    return A.requires_grad_() if requires_grad else A


def to_networkx(A: SparseTensor, create_using: Any = None, weight: str = "weight") -> Any:
    """A networkx graph with the entries of a square matrix as edges, duplicates summed.

    create_using: kind of graph, by default `networkx.DiGraph`; of a symmetric matrix
        `networkx.Graph` has each edge once.
    weight: edge attribute that takes the values.

    Raises ShapeError unless `A` is square without dense dimensions.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 1], [1, 2]], [2.0, 3.0], (3, 3))
    >>> list(sg.to_networkx(A).edges(data="weight"))
    [(0, 1, 2.0), (1, 2, 3.0)]
    """
    import networkx as nx

    if A.sparse_dim != 2 or A.dense_dim or A.shape[0] != A.shape[1]:
        raise ShapeError(f"to_networkx: needs a square matrix, got shape {A.shape}")
    kind = nx.DiGraph if create_using is None else create_using
    held = A.detach().coalesce().to_scipy()
    return nx.from_scipy_sparse_array(held, create_using=kind, edge_attribute=weight)


# ---- PyTorch -----------------------------------------------------------------------------------
def from_torch(x: Any, requires_grad: bool | None = None) -> Any:
    """A PyTorch tensor as a leaf of the same shape, dtype, layout and entries: COO, CSR and CSC
    (hybrid ones too) as a SparseTensor, a strided one as a Tensor. Copies.

    requires_grad: by default what `x` says.

    Raises TypeError for anything else, and for other layouts; ShapeError for batches of CSR and
    CSC.
    """
    if type(x).__module__.partition(".")[0] != "torch":
        raise TypeError(f"from_torch: expected a torch.Tensor, got {type(x).__name__}")
    grad = bool(x.requires_grad) if requires_grad is None else requires_grad
    x, shape, layout = x.detach(), tuple(x.shape), str(x.layout).removeprefix("torch.")
    if layout == "strided":
        return Tensor(_array(x), requires_grad=grad)
    if layout == "sparse_coo":
        return SparseTensor(list(_array(x._indices())), _array(x._values()), shape, grad)
    if layout not in ("sparse_csr", "sparse_csc"):
        raise TypeError(
            f"from_torch: layout {layout} is not supported; write x.to_sparse_csr() first"
        )
    csr = layout == "sparse_csr"
    indptr, indices = (
        (x.crow_indices(), x.col_indices()) if csr else (x.ccol_indices(), x.row_indices())
    )
    if indptr.ndim != 1:
        raise ShapeError(f"from_torch: batches of {layout} are not supported, got shape {shape}")
    offsets, ids, values = (_array(t) for t in (indptr, indices, x.values()))
    return compressed("csr" if csr else "csc", offsets, ids, values, shape, grad)


def _array(x: Any) -> np.ndarray:
    """A copy in host memory."""
    return dlpack.shared(x.detach().cpu().contiguous()).copy()


def to_torch(A: Any) -> Any:
    """A Tensor or SparseTensor as a PyTorch tensor of the same layout and entries; a leaf that
    requires a gradient if `A` does. Copies. CSR and CSC are coalesced first, as PyTorch demands.

    PyTorch must have been imported (ImportError): this package never does so itself.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise ImportError("to_torch: import torch first; sparsegrad does not import it")

    def made(array: Any) -> Any:
        return torch.from_dlpack(Tensor(np.array(array)))

    if isinstance(A, Tensor):
        out = made(A.detach().numpy())
    elif not isinstance(A, SparseTensor):
        raise TypeError(f"to_torch: expected a Tensor or SparseTensor, got {type(A).__name__}")
    else:
        host = A.pattern.core.backend.to_host
        values = made(A.values.detach().numpy())
        if A.format == "coo":
            ids = made(np.stack([host(c) for c in A.pattern.coords]).astype(np.int64))
            out = torch.sparse_coo_tensor(ids, values, A.shape, is_coalesced=A.is_coalesced)
        else:
            if not A.is_coalesced:  # PyTorch refuses unsorted rows and duplicates
                return to_torch(A.detach().coalesce()).requires_grad_(A.requires_grad)
            indptr, indices = made(host(A.indptr)), made(host(A.indices))
            make = torch.sparse_csr_tensor if A.format == "csr" else torch.sparse_csc_tensor
            out = make(indptr, indices, values, A.shape)
    return out.requires_grad_(A.requires_grad)
