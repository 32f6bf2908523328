"""Layers for dense and sparse inputs."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import create, ops
from sparsegrad.engine.mode import no_grad
from sparsegrad.errors import ShapeError
from sparsegrad.nn import init
from sparsegrad.nn.module import Module
from sparsegrad.nn.parameter import Parameter
from sparsegrad.sampling import random_sparse
from sparsegrad.sparse_tensor import SparseTensor, wrap
from sparsegrad.structure.pattern import Pattern

__all__ = ["Dropout", "Dropout2d", "Linear", "SparseLinear"]


class Linear(Module):
    """x W^T + b: x (*B, in) -> (*B, out), or a SparseTensor (n, in) -> a dense (n, out).

    Weight (out, in) and bias (out,) start uniform in ±1 / sqrt(in), as in PyTorch.

    Raises ShapeError for an input whose last dimension is not `in_features`.

    >>> import sparsegrad as sg
    >>> layer = sg.nn.Linear(3, 2)
    >>> layer(sg.ones(5, 3)).shape, layer(sg.coo([[0], [2]], [1.0], (5, 3))).shape
    ((5, 2), (5, 2))
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(create.empty(out_features, in_features, dtype=dtype))
        if bias:
            self.bias = Parameter(create.empty(out_features, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Any, activation: str | None = None) -> Any:
        """x (*B, in) -> (*B, out). activation: as of `sg.linear`, "relu" for one."""
        check_width("Linear", x, self.in_features)
        return ops.linear(x, self.weight, self.bias, activation)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Dropout(Module):
    """Elements set to 0 with probability `p`, the rest scaled by 1 / (1 - p), in training mode
    only; same shape. A SparseTensor keeps its pattern: stored entries are dropped to zeros.
    `inplace` is there for code written for PyTorch: the result is always new.

    Raises ValueError for `p` outside [0, 1].

    Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting",
    JMLR 15, 2014.

    >>> import sparsegrad as sg
    >>> layer = sg.nn.Dropout(0.5).eval()
    >>> layer(sg.ones(3))
    tensor([1., 1., 1.])
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p must lie in [0, 1], got {p}")
        self.p = p

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Dropout2d(Dropout):
    """`Dropout` of whole channels of x (N, C, *d), in training mode only; same shape.

    Tompson et al., "Efficient object localization using convolutional networks", CVPR 2015.

    >>> import sparsegrad as sg
    >>> dropped = sg.nn.Dropout2d(0.5)(sg.ones(8, 4, 3, 3))
    >>> sg.equal(dropped[..., 0, 0], dropped.mean((2, 3)))
    True
    """

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        if x.ndim < 3:
            raise ShapeError(f"Dropout2d: expected x (N, C, *d), got shape {tuple(x.shape)}")
        if not self.training:
            return x
        sizes = (*x.shape[:2], *(1,) * (x.ndim - 2))
        return x * ops.dropout(create.ones(*sizes, dtype=x.dtype, device=x.device), self.p)


class SparseLinear(Module):
    """x W^T + b with a sparse W (out, in): x (*B, in) -> (*B, out), or a SparseTensor (n, in) ->
    a dense (n, out). Only the stored entries of W are multiplied, trained and kept.

    pattern: where W has entries, a Pattern or SparseTensor (out, in); its values do not matter.
        By default round(density * in * out) entries at random places.
    density: in [0, 1]; not used with a pattern.

    `weight` is a sparse Parameter in CSR. Its mask is fixed, until `repattern_` (or that of the
    optimizer, which moves its state along) gives it another one: pruning, regrowth. Entries of a
    row with k of them start uniform in ±1 / sqrt(k), the bias in ±1 / sqrt(mean of k).

    Raises ShapeError for an input whose last dimension is not `in_features`, or a pattern that is
    not (out, in); ValueError for density outside [0, 1].

    >>> import sparsegrad as sg
    >>> layer = sg.nn.SparseLinear(1000, 10, density=0.01)
    >>> layer(sg.ones(5, 1000)).shape, layer.weight.nnz
    ((5, 10), 100)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        density: float = 0.1,
        pattern: Any = None,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        shape = (out_features, in_features)
        if pattern is None:
            if not 0 <= density <= 1:
                raise ValueError(f"SparseLinear: density must lie in [0, 1], got {density}")
            made = random_sparse(*shape, density=density)
        else:
            where = pattern if isinstance(pattern, Pattern) else getattr(pattern, "pattern", None)
            if where is None:
                raise TypeError(
                    f"SparseLinear: pattern must be a Pattern or SparseTensor, got "
                    f"{type(pattern).__name__}"
                )
            if where.shape != shape:
                raise ShapeError(f"SparseLinear: expected a pattern {shape}, got {where.shape}")
            made = wrap(create.ones(where.nnz), where)
        place = ops.coalesce(ops.to_format(made, "csr")).pattern
        self.weight: Any = Parameter(wrap(create.zeros(place.nnz, dtype=dtype), place))
        if bias:
            self.bias = Parameter(create.empty(out_features, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    @classmethod
    def from_linear(cls, linear: Linear, density: float = 0.1) -> SparseLinear:
        """A trained `Linear` (out, in) that is pruned: the round(density * in * out) entries of its
        weight that are largest in magnitude, and its bias, copied.

        Raises TypeError for another layer, ValueError for density outside [0, 1].

        >>> import sparsegrad as sg
        >>> dense = sg.nn.Linear(100, 10)
        >>> pruned = sg.nn.SparseLinear.from_linear(dense, 0.05)
        >>> pruned.weight.nnz, pruned(sg.ones(2, 100)).shape
        (50, (2, 10))
        """
        if not isinstance(linear, Linear):
            raise TypeError(f"{cls.__name__}: expected a Linear, got {type(linear).__name__}")
        if not 0 <= density <= 1:
            raise ValueError(f"{cls.__name__}: density must lie in [0, 1], got {density}")
        weight = linear.weight.detach()
        kept = ops.top_k(ops.to_sparse(weight, "csr"), round(density * weight.numel()))
        bias = linear.bias is not None
        rows, columns = weight.shape
        out = cls(columns, rows, pattern=kept, bias=bias, dtype=weight.dtype)
        out.weight = Parameter(kept)
        if bias:
            out.bias = Parameter(linear.bias.detach().clone())
        return out

    def reset_parameters(self) -> None:
        """Draw the entries of the weight and the bias anew."""
        values, pattern = self.weight.values, self.weight.pattern
        ones = wrap(create.ones(pattern.nnz, dtype=values.dtype, device=values.device), pattern)
        with no_grad():
            per_row = ops.take(ops.sum(ones, 1), pattern.row, sparse_grad=False)
            init.uniform_(values, -1, 1)
            values.mul_(ops.rsqrt(per_row))
        if self.bias is not None:
            mean = pattern.nnz / max(1, self.out_features)
            bound = 1 / math.sqrt(mean) if mean else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Any) -> Any:
        """x (*B, in) -> (*B, out)."""
        check_width("SparseLinear", x, self.in_features)
        out = x @ self.weight.T
        out = out.to_dense() if isinstance(out, SparseTensor) else out
        return ops.bias_act(out, self.bias)

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, nnz={self.weight.nnz}, "
            f"bias={self.bias is not None}"
        )


def check_width(layer: str, x: Any, width: int) -> None:
    """ShapeError unless the last dimension of `x` is `width`."""
    check_tensor(layer, x)
    if x.ndim == 0 or x.shape[-1] != width:
        raise ShapeError(f"{layer}: expected x (..., {width}), got shape {tuple(x.shape)}")


def check_tensor(layer: str, x: Any) -> None:
    """TypeError for a list or a number: a layer takes tensors, and arrays."""
    if not hasattr(x, "ndim"):
        raise TypeError(f"{layer}: x must be a tensor, got {type(x).__name__}")
