"""Graph convolutions. `gcn_norm`, the normalised adjacency they work on, is an op: `sg.gcn_norm`."""

from __future__ import annotations

from typing import Any

from sparsegrad import create
from sparsegrad.errors import ShapeError
from sparsegrad.nn import init
from sparsegrad.nn.layers import check_width
from sparsegrad.nn.module import Module
from sparsegrad.nn.parameter import Parameter
from sparsegrad.ops.sparse_graph import gcn_norm
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.tensor import Tensor

__all__ = ["GCNConv", "gcn_norm"]


class GCNConv(Module):
    """X' = A_hat (X W) + b: x (n, in) -> (n, out).

    x: a Tensor, or a SparseTensor (bag-of-words features: X W is then a sparse product too).
    A_hat: normalised adjacency (n, n), a SparseTensor as `gcn_norm` gives it. If it requires a
        gradient, so do its entries, at the price of one sampled product (SDDMM).

    Weight (in, out) starts Glorot-uniform, bias (out,) zero.

    Raises ShapeError for an input whose last dimension is not `in_features`, or whose rows are
    not those of A_hat.

    Kipf and Welling, "Semi-supervised classification with graph convolutional networks",
    ICLR 2017.

    >>> import sparsegrad as sg
    >>> A_hat = sg.nn.gcn_norm(sg.coo([[0, 1], [1, 0]], [1.0, 1.0], (2, 2)))
    >>> sg.nn.GCNConv(3, 4)(sg.ones(2, 3), A_hat).shape
    (2, 4)
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(create.empty(in_features, out_features, dtype=dtype))
        if bias:
            self.bias = Parameter(create.empty(out_features, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew and set the bias to zero."""
        init.xavier_uniform_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Tensor | SparseTensor, A_hat: SparseTensor) -> Tensor:
        """x (n, in), A_hat (n, n) -> (n, out)."""
        check_width("GCNConv", x, self.in_features)
        if x.ndim != 2 or A_hat.ndim != 2 or A_hat.shape[1] != x.shape[0]:
            raise ShapeError(
                f"GCNConv: expected x (n, {self.in_features}) and A_hat (n, n), got "
                f"{tuple(x.shape)} and {tuple(A_hat.shape)}"
            )
        out = A_hat @ (x @ self.weight)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
