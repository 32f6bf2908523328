"""Graph convolutions. `gcn_norm`, the normalised adjacency of GCN, is an op, `sg.gcn_norm`."""

from __future__ import annotations

from typing import Any

from sparsegrad import create, ops
from sparsegrad.errors import ShapeError
from sparsegrad.nn import init
from sparsegrad.nn.layers import check_width
from sparsegrad.nn.module import Module
from sparsegrad.nn.parameter import Parameter
from sparsegrad.ops.bias import check_activation
from sparsegrad.ops.sparse_graph import gcn_norm
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.tensor import Tensor

__all__ = ["GCNConv", "GINConv", "LightGCN", "SAGEConv", "gcn_norm"]


class GCNConv(Module):
    """X' = A_hat (X W) + b: x (n, in) -> (n, out).

    x: a Tensor, or a SparseTensor (bag-of-words features: X W is then a sparse product too).
    A_hat: normalised adjacency (n, n), a SparseTensor as `gcn_norm` gives it. If it requires a
        gradient, so do its entries, at the price of one sampled product (SDDMM). Some of its rows,
        (m, n), give as many of the result.
    activation: the name of a function that follows, "relu" for one, in the same pass as the bias;
        see `sg.bias_act`.

    Weight (in, out) starts Glorot-uniform, bias (out,) zero.

    Raises ShapeError for an input whose last dimension is not `in_features`, or whose rows are
    not those of A_hat; ValueError for another activation.

    Kipf and Welling, "Semi-supervised classification with graph convolutional networks",
    ICLR 2017.

    >>> import sparsegrad as sg
    >>> A_hat = sg.nn.gcn_norm(sg.coo([[0, 1], [1, 0]], [1.0, 1.0], (2, 2)))
    >>> sg.nn.GCNConv(3, 4)(sg.ones(2, 3), A_hat).shape
    (2, 4)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: Any = None,
        activation: str | None = None,
    ) -> None:
        super().__init__()
        check_activation("GCNConv", activation)
        self.in_features, self.out_features = in_features, out_features
        self.activation = activation
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
        check_adjacency("GCNConv", "A_hat", A_hat)
        check_width("GCNConv", x, self.in_features)
        if x.ndim != 2 or A_hat.ndim != 2 or A_hat.shape[1] != x.shape[0]:
            raise ShapeError(
                f"GCNConv: expected x (n, {self.in_features}) and A_hat (n, n), got "
                f"{tuple(x.shape)} and {tuple(A_hat.shape)}"
            )
        return ops.spmm(A_hat, x @ self.weight, bias=self.bias, activation=self.activation)

    def extra_repr(self) -> str:
        then = f", activation={self.activation!r}" if self.activation else ""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}{then}"


class SAGEConv(Module):
    """x'_i = S x_i + N (aggregate of A[i, j] x_j over the stored entries of row i) + b:
    x (n, in) -> (n, out).

    x: a Tensor, or with aggregate "sum" also a SparseTensor. A: adjacency matrix (n, n), a
        SparseTensor; its values weigh the neighbours (ones for a plain graph) and get a gradient
        if they require one. One of (m, n), as `data.NeighborSampler` gives them, has the rows of
        the first m nodes, and so has the result.
    aggregate: "mean" of the stored entries, "max" or "sum". A node without neighbours keeps S x_i.
    activation: the name of a function that follows, as in `GCNConv`.

    The weights `own` S and `neighbours` N (in, out) start Glorot-uniform, the bias zero.

    Raises ShapeError for sizes that do not fit, ValueError for another `aggregate` or activation.

    Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs", NIPS 2017.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 1], [1, 0]], [1.0, 1.0], (2, 2))
    >>> sg.nn.SAGEConv(3, 4)(sg.ones(2, 3), A).shape
    (2, 4)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        aggregate: str = "mean",
        bias: bool = True,
        dtype: Any = None,
        activation: str | None = None,
    ) -> None:
        super().__init__()
        check_activation("SAGEConv", activation)
        if aggregate not in ("mean", "max", "sum"):
            raise ValueError(
                f"SAGEConv: aggregate must be 'mean', 'max' or 'sum', got {aggregate!r}"
            )
        self.in_features, self.out_features = in_features, out_features
        self.aggregate, self.activation = aggregate, activation
        self.own = Parameter(create.empty(in_features, out_features, dtype=dtype))
        self.neighbours = Parameter(create.empty(in_features, out_features, dtype=dtype))
        if bias:
            self.bias = Parameter(create.empty(out_features, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both weights anew and set the bias to zero."""
        init.xavier_uniform_(self.own)
        init.xavier_uniform_(self.neighbours)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Tensor | SparseTensor, A: SparseTensor) -> Tensor:
        """x (n, in), A (n, n) -> (n, out), or (m, n) -> (m, out)."""
        check_graph("SAGEConv", x, A, self.in_features)
        if self.aggregate == "max":  # does not commute with the weight
            gathered = ops.spmm(A, x, reduce="max") @ self.neighbours
        else:
            gathered = ops.spmm(A, x @ self.neighbours, reduce=self.aggregate)
        out = first(x, A) @ self.own + gathered
        return ops.bias_act(out, self.bias, self.activation)

    def extra_repr(self) -> str:
        then = f", activation={self.activation!r}" if self.activation else ""
        return f"{self.in_features}, {self.out_features}, aggregate={self.aggregate!r}{then}"


class GINConv(Module):
    """x'_i = net((1 + eps) x_i + sum of A[i, j] x_j): x (n, in) -> (n, out) as `net` gives it.

    net: a module, (n, in) -> (n, out); a small multilayer perceptron in the paper.
    eps: its first value. train_eps: a parameter, else a constant.
    A: adjacency matrix (n, n), a SparseTensor; its values get a gradient if they require one.
        Rows of the first m nodes alone, (m, n), give as many of the result.

    Raises ShapeError for an x whose rows are not those of A.

    Xu, Hu, Leskovec and Jegelka, "How powerful are graph neural networks?", ICLR 2019.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 1], [1, 0]], [1.0, 1.0], (2, 2))
    >>> sg.nn.GINConv(sg.nn.Linear(3, 4))(sg.ones(2, 3), A).shape
    (2, 4)
    """

    def __init__(
        self, net: Module, eps: float = 0.0, train_eps: bool = False, dtype: Any = None
    ) -> None:
        super().__init__()
        self.net = net
        start = create.full((), eps, dtype=dtype)
        if train_eps:
            self.eps = Parameter(start)
        else:
            self.register_buffer("eps", start)

    def forward(self, x: Tensor, A: SparseTensor) -> Tensor:
        """x (n, in), A (n, n) -> (n, out), or (m, n) -> (m, out)."""
        check_graph("GINConv", x, A, None)
        return self.net(first(x, A) * (1 + self.eps) + A @ x)


class LightGCN(Module):
    """Mean of x, A_hat x, ..., A_hat^layers x: embeddings (n, d) -> (n, d); nothing to train here.

    x: embeddings of users and items, one below the other. A_hat: the normalised adjacency (n, n)
        of the graph between them, as `gcn_norm(A, self_loops=False)` gives it.
    layers: number of propagations, >= 0, or ValueError.

    Raises ShapeError for an x whose rows are not those of A_hat.

    He, Deng, Wang, Li, Zhang and Wang, "LightGCN: simplifying and powering graph convolution
    network for recommendation", SIGIR 2020.

    >>> import sparsegrad as sg
    >>> A_hat = sg.nn.gcn_norm(sg.coo([[0, 1], [1, 0]], [1.0, 1.0], (2, 2)), self_loops=False)
    >>> sg.nn.LightGCN(1)(sg.tensor([[1.0], [3.0]]), A_hat)
    tensor([[2.],
            [2.]])
    """

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        if layers < 0:
            raise ValueError(f"LightGCN: layers must be >= 0, got {layers}")
        self.layers = layers

    def forward(self, x: Tensor, A_hat: SparseTensor) -> Tensor:
        """x (n, d), A_hat (n, n) -> (n, d)."""
        check_graph("LightGCN", x, A_hat, None)
        if A_hat.shape[0] != A_hat.shape[1]:
            raise ShapeError(f"LightGCN: A_hat must be square, got shape {tuple(A_hat.shape)}")
        total = x
        for _ in range(self.layers):
            x = A_hat @ x
            total = total + x
        return total / (self.layers + 1)

    def extra_repr(self) -> str:
        return f"layers={self.layers}"


def check_graph(layer: str, x: Any, A: Any, width: int | None) -> None:
    """ShapeError unless x is (n, width) and A a SparseTensor (m, n) with rows for the first m."""
    check_adjacency(layer, "A", A)
    if width is not None:
        check_width(layer, x, width)
    shape = tuple(A.shape)
    if x.ndim != 2 or len(shape) != 2 or shape[1] != x.shape[0] or shape[0] > shape[1]:
        raise ShapeError(
            f"{layer}: expected x (n, {'in' if width is None else width}) and A (n, n), or (m, n) "
            f"with m <= n, got {tuple(x.shape)} and {shape}"
        )


def first(x: Any, A: Any) -> Any:
    """The rows of x of the nodes that A has rows for."""
    return x if A.shape[0] == x.shape[0] else x[: A.shape[0]]


def check_adjacency(layer: str, name: str, A: Any) -> None:
    """TypeError unless `A` is a SparseTensor; lists and integers are edges in other libraries."""
    if isinstance(A, SparseTensor):
        return
    kind = getattr(getattr(A, "dtype", None), "kind", "")
    edges = isinstance(A, (list, tuple)) or kind in ("i", "u")
    hint = "; edges (2, e) from j to i become one with sg.coo([i, j], None, (n, n))"
    raise TypeError(
        f"{layer}: {name} must be a SparseTensor, got {type(A).__name__}{hint if edges else ''}"
    )
