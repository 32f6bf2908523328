"""The libraries we are compared with. Each is optional, imported only when it is used, and says
why it is not there; what is written here for a peer is the best its users could write."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

__all__ = [
    "PEERS",
    "Peer",
    "jax_bcoo",
    "torch_by_hand",
    "torch_coo",
    "torch_csr",
    "torch_edge_softmax",
    "torch_fixed",
    "torch_gat_layer",
    "torch_index_add",
]


@dataclass(frozen=True)
class Peer:
    """A library, and whether it can be used here."""

    name: str
    module: str
    title: str

    def missing(self) -> str | None:
        """Why it cannot be used, None if it can."""
        return _import_error(self.module)


@cache
def _import_error(module: str) -> str | None:
    try:
        with quiet():
            importlib.import_module(module)
    except ModuleNotFoundError:
        return "not installed"
    except Exception as error:  # an installation that is broken in whatever way
        return f"cannot be imported: {type(error).__name__}: {error}".splitlines()[0]
    return None


def quiet() -> warnings.catch_warnings[None]:
    """Peers warn about their beta APIs, once a process; that is not ours to report."""
    return warnings.catch_warnings(action="ignore")


PEERS = {
    peer.name: peer
    for peer in (
        Peer("scipy", "scipy.sparse", "SciPy"),
        Peer("torch", "torch", "PyTorch"),
        Peer("jax", "jax.experimental.sparse", "JAX"),
    )
}


# ---- PyTorch -----------------------------------------------------------------------------------
def torch_csr(matrix: Any, index: str, values: Any = None) -> Any:
    """A SciPy CSR array as a torch CSR tensor with "int32" or "int64" indices."""
    import torch

    dtype = getattr(torch, index)
    data = torch.from_numpy(matrix.data) if values is None else values
    with quiet():
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr).to(dtype),
            torch.from_numpy(matrix.indices).to(dtype),
            data,
            matrix.shape,
        )


def torch_coo(matrix: Any) -> Any:
    """A SciPy array as a coalesced torch COO tensor."""
    import torch

    coo = matrix.tocoo()
    indices = torch.from_numpy(np.stack([c.astype(np.int64) for c in coo.coords]))
    with quiet():
        made = torch.sparse_coo_tensor(indices, torch.from_numpy(coo.data), coo.shape)
        return made.coalesce()


def torch_by_hand(
    matrix: Any, index: str, product: str, device: str = "cpu"
) -> Callable[[Any, Any], Any]:
    """`values, x -> A @ x` whose backward costs O(nnz), as an expert writes it for torch.

    The forward is a CSR product ("mm", or "reduce": torch's own kernel instead of MKL's); the
    gradient of the values is `sampled_addmm` on the pattern; that of x a product with the
    transpose, whose indices and permutation are made once.
    """
    import torch

    pattern = torch_csr(matrix, index).to(device)
    order = matrix.copy()
    order.data = np.arange(matrix.nnz)
    order = order.T.tocsr()
    perm = torch.from_numpy(order.data).to(device)
    transposed = torch_csr(order, index, torch.zeros(matrix.nnz)).to(device)
    zero = torch_csr(matrix, index, torch.zeros(matrix.nnz)).to(device)

    def csr(like: Any, values: Any) -> Any:
        return torch.sparse_csr_tensor(
            like.crow_indices(), like.col_indices(), values, like.shape, check_invariants=False
        )

    def multiply(a: Any, b: Any) -> Any:
        return torch.sparse.mm(a, b, "sum") if product == "reduce" else a @ b

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: Any, x: Any) -> Any:
            ctx.save_for_backward(values, x)
            return multiply(csr(pattern, values), x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> tuple[Any, Any]:
            values, x = ctx.saved_tensors
            dvalues = torch.sparse.sampled_addmm(zero, g, x.t(), beta=0.0).values()
            return dvalues, multiply(csr(transposed, values[perm]), g)

    return Product.apply


def torch_fixed(matrix: Any, index: str, product: str, device: str = "cpu") -> Callable[[Any], Any]:
    """`x -> A @ x` for a matrix that never changes, with its transpose made once; products as in
    `torch_by_hand`."""
    import torch

    forward, backward = (torch_csr(m, index).to(device) for m in (matrix, matrix.T.tocsr()))

    def multiply(a: Any, b: Any) -> Any:
        return torch.sparse.mm(a, b, "sum") if product == "reduce" else a @ b

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return multiply(forward, x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return multiply(backward, g.contiguous())

    return Product.apply


def torch_edge_softmax(scores: Any, rows: Any, n: int) -> Any:
    """Softmax of scores (nnz, *H) over the entries of each of n rows, shifted by the maxima."""
    shape = (n, *scores.shape[1:])
    where = rows.reshape(-1, *(1,) * (scores.ndim - 1)).expand_as(scores)
    top = scores.new_full(shape, -np.inf).scatter_reduce(0, where, scores.detach(), "amax")
    weights = (scores - top[rows]).exp()
    return weights / scores.new_zeros(shape).index_add(0, rows, weights)[rows]


def torch_index_add(n: int, rows: Any, messages: Any) -> Any:
    """Sums of messages (nnz, ...) by row: (n, ...)."""
    return messages.new_zeros(n, *messages.shape[1:]).index_add(0, rows, messages)


def torch_gat_layer(
    h: Any, left: Any, right: Any, rows: Any, cols: Any, add: Callable[..., Any] = torch_index_add
) -> Any:
    """Attention of GAT over the entries of a matrix: h (n, heads, k), left, right (heads, k) ->
    (n, heads, k). add: how messages are summed by row."""
    import torch

    scores = (h * left).sum(2)[rows] + (h * right).sum(2)[cols]
    weight = torch_edge_softmax(torch.nn.functional.leaky_relu(scores, 0.2), rows, len(h))
    return add(len(h), rows, weight[:, :, None] * h[cols])


# ---- JAX ---------------------------------------------------------------------------------------
def jax_bcoo(matrix: Any) -> Any:
    """A SciPy array as a BCOO matrix with sorted, unique indices."""
    import jax.numpy as jnp
    from jax.experimental import sparse

    coo = matrix.tocoo()
    indices = jnp.asarray(np.stack(coo.coords, axis=1).astype(np.int32))
    return sparse.BCOO(
        (jnp.asarray(coo.data), indices),
        shape=coo.shape,
        indices_sorted=True,
        unique_indices=True,
    )
