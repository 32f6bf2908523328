"""What CuPy, and PyTorch where it sees the GPU, offer for the ops of `bench gpu`."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Calls", "coalesce", "sddmm", "spmm"]

# By name: runs the op on prepared inputs, and gives the same numbers as ours.
Calls = dict[str, Callable[[], Any]]


def spmm(graph: Any, x: np.ndarray) -> Calls:
    """A SciPy CSR matrix times x (n, k), in float32."""
    import cupy
    from cupyx.scipy import sparse

    A, right = sparse.csr_matrix(graph.astype("f")), cupy.asarray(x, "f")
    calls: Calls = {"cupyx": lambda: A @ right}
    if (torch := _torch()) is not None:
        B, there = _torch_csr(torch, graph), torch.tensor(x, dtype=torch.float32, device="cuda")
        calls["torch CSR"] = lambda: B @ there
    return calls


def sddmm(graph: Any, x: np.ndarray) -> Calls:
    """x @ x.T on the entries of a matrix."""
    if (torch := _torch()) is None:
        return {}
    mask, there = _torch_csr(torch, graph), torch.tensor(x, dtype=torch.float32, device="cuda")
    return {
        "torch sampled_addmm": lambda: torch.sparse.sampled_addmm(
            mask, there, there.T, beta=0
        ).values()
    }


def coalesce(pairs: np.ndarray, values: np.ndarray, n: int) -> Calls:
    """Entries (nnz,) at pairs (2, nnz), sorted and summed: the values."""
    import cupy
    from cupyx.scipy import sparse

    index, numbers = cupy.asarray(pairs, np.int32), cupy.asarray(values, "f")

    def cupyx() -> Any:
        found = sparse.coo_matrix((numbers, (index[0], index[1])), (n, n))
        found.sum_duplicates()
        return found.data

    calls: Calls = {"cupyx": cupyx}
    if (torch := _torch()) is not None:
        where = torch.tensor(pairs, device="cuda")
        stored = torch.tensor(values, dtype=torch.float32, device="cuda")
        calls["torch COO"] = lambda: (
            torch.sparse_coo_tensor(where, stored, (n, n)).coalesce().values()
        )
    return calls


def _torch() -> Any:
    """PyTorch, where it is installed and sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch if torch.cuda.is_available() else None


def _torch_csr(torch: Any, graph: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its CSR is in beta state
        return torch.sparse_csr_tensor(
            torch.tensor(graph.indptr),
            torch.tensor(graph.indices),
            torch.tensor(graph.data, dtype=torch.float32),
            graph.shape,
            device="cuda",
        )
