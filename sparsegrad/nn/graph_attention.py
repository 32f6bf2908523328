"""Graph attention: weights of edges that follow from the features at their ends."""

from __future__ import annotations

from typing import Any

from sparsegrad import create, ops
from sparsegrad.nn import init
from sparsegrad.nn.graph import check_graph
from sparsegrad.nn.module import Module
from sparsegrad.nn.parameter import Parameter
from sparsegrad.ops.index import take_p
from sparsegrad.sparse_tensor import SparseTensor, wrap
from sparsegrad.structure import plan, plan_select
from sparsegrad.structure.pattern import Pattern
from sparsegrad.tensor import Tensor

__all__ = ["GATConv", "GATv2Conv"]


class _Attention(Module):
    """What both layers share: edges, softmax over each row, and the weighted sum of heads."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        self_loops: bool = True,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if heads < 1:
            raise ValueError(f"{self._name}: heads must be at least 1, got {heads}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"{self._name}: dropout must lie in [0, 1], got {dropout}")
        self.in_features, self.out_features, self.heads = in_features, out_features, heads
        self.concat, self.negative_slope = concat, negative_slope
        self.dropout, self.self_loops = dropout, self_loops
        if bias:
            width = heads * out_features if concat else out_features
            self.bias = Parameter(create.empty(width, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        for name, shape in self._shapes().items():
            setattr(self, name, Parameter(create.empty(*shape, dtype=dtype)))
        self.reset_parameters()

    def _shapes(self) -> dict[str, tuple[int, int]]:
        """Of the weights, by name."""
        raise NotImplementedError

    @property
    def _name(self) -> str:
        return type(self).__name__

    def reset_parameters(self) -> None:
        """Draw all weights anew, Glorot-uniform, and set the bias to zero."""
        for name, parameter in self.named_parameters():
            (init.zeros_ if name == "bias" else init.xavier_uniform_)(parameter)

    def _edges(self, x: Any, A: SparseTensor) -> Pattern:
        """Each edge once, row by row; with loops if they are wanted. Kept on the pattern of `A`."""
        check_graph(self._name, x, A, self.in_features)
        pattern, _ = plan.coalesce(A.pattern).pattern.to("csr")
        return plan_select.with_diagonal(pattern, 0).pattern if self.self_loops else pattern

    def _columns(self, vectors: Tensor) -> Tensor:
        """Vectors (heads, out) as columns (heads * out, heads), each zero outside its head: their
        dot products with all heads are one dense product."""
        own = create.eye(self.heads, dtype=vectors.dtype, device=vectors.device)
        columns = ops.unsqueeze(vectors, 2) * ops.unsqueeze(own, 1)
        return ops.reshape(columns, (self.heads * self.out_features, self.heads))

    def _heads(self, x: Any, weight: Any) -> Tensor:
        """x (n, in) @ weight (in, heads * out) -> (n, heads, out)."""
        return ops.reshape(x @ weight, (x.shape[0], self.heads, self.out_features))

    def _attend(self, scores: Tensor, pattern: Pattern, values: Tensor) -> Tensor:
        """Scores (e, heads), values (n, heads, out) -> (m, heads * out), or the mean of heads."""
        weights = ops.softmax(wrap(scores, pattern), 1)
        out = ops.spmm(ops.dropout(weights, self.dropout, self.training), values)
        if self.concat:
            out = ops.reshape(out, (pattern.shape[0], self.heads * self.out_features))
        else:
            out = ops.mean(out, 1)
        return ops.bias_act(out, self.bias)

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, heads={self.heads}, concat={self.concat}, "
            f"dropout={self.dropout}"
        )


class GATConv(_Attention):
    """x'_i = sum of a_ij W x_j over the stored entries (i, j) of A, for each head, with
    a_ij = softmax over j of leaky_relu(l . W x_i + r . W x_j): x (n, in) -> (n, heads * out).

    x: a Tensor, or a SparseTensor (W x is then a sparse product). A: an adjacency matrix (n, n);
        row i lists what node i looks at. Only its pattern counts, each entry once: its values
        neither matter nor get a gradient. A row without entries gives the bias. Rows of the first
        m nodes alone, (m, n), give as many of the result.
    concat: heads side by side; False gives their mean, (n, out).
    negative_slope: of the leaky relu. dropout: probability that an attention weight is dropped.
    self_loops: every node looks at itself too.

    Weight (in, heads * out) and the vectors l and r (heads, out) start Glorot-uniform, the bias
    zero. Memory is O(entries * heads): no (n, n) array, no features copied to edges.

    Raises ShapeError for sizes that do not fit, ValueError for heads < 1 or dropout outside [0, 1].

    Velickovic, Cucurull, Casanova, Romero, Lio and Bengio, "Graph attention networks", ICLR 2018.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 1, 2], [1, 0, 1]], None, (3, 3))
    >>> sg.nn.GATConv(4, 8, heads=2)(sg.ones(3, 4), A).shape
    (3, 16)
    """

    def _shapes(self) -> dict[str, tuple[int, int]]:
        vectors = (self.heads, self.out_features)
        wide = (self.in_features, self.heads * self.out_features)
        return {"weight": wide, "left": vectors, "right": vectors}

    def forward(self, x: Tensor | SparseTensor, A: SparseTensor) -> Tensor:
        """x (n, in), A (n, n) or (m, n) -> (m, heads * out), or (m, out) without `concat`."""
        pattern = self._edges(x, A)
        h = self._heads(x, self.weight)
        flat = ops.reshape(h, (h.shape[0], self.heads * self.out_features))
        here = take_p(flat @ self._columns(self.left), index=pattern.row)
        there = take_p(flat @ self._columns(self.right), index=pattern.col)
        return self._attend(ops.leaky_relu(here + there, self.negative_slope), pattern, h)


class GATv2Conv(_Attention):
    """As `GATConv`, with a_ij = softmax over j of v . leaky_relu(L x_i + R x_j), and R x_j summed:
    what a node looks at can depend on the node.

    Arguments as in `GATConv`. L `left` and R `right` (in, heads * out) and v `attention`
    (heads, out) start Glorot-uniform, the bias zero. Memory is O(entries * heads * out).

    Raises ShapeError and ValueError as `GATConv`.

    Brody, Alon and Yahav, "How attentive are graph attention networks?", ICLR 2022.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 1, 2], [1, 0, 1]], None, (3, 3))
    >>> sg.nn.GATv2Conv(4, 8, heads=2, concat=False)(sg.ones(3, 4), A).shape
    (3, 8)
    """

    def _shapes(self) -> dict[str, tuple[int, int]]:
        wide = (self.in_features, self.heads * self.out_features)
        return {"left": wide, "right": wide, "attention": (self.heads, self.out_features)}

    def forward(self, x: Tensor | SparseTensor, A: SparseTensor) -> Tensor:
        """x (n, in), A (n, n) or (m, n) -> (m, heads * out), or (m, out) without `concat`."""
        pattern = self._edges(x, A)
        here, there = self._heads(x, self.left), self._heads(x, self.right)
        both = take_p(here, index=pattern.row) + take_p(there, index=pattern.col)
        scores = ops.sum(ops.leaky_relu(both, self.negative_slope) * self.attention, 2)
        return self._attend(scores, pattern, there)
