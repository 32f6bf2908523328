"""Layers and containers for dense and sparse inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from sparsegrad import create, ops
from sparsegrad.errors import ShapeError
from sparsegrad.nn import init
from sparsegrad.nn.module import Module
from sparsegrad.nn.parameter import Parameter

__all__ = ["Dropout", "Linear", "ReLU", "Sequential"]


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

    def forward(self, x: Any) -> Any:
        """x (*B, in) -> (*B, out)."""
        check_width("Linear", x, self.in_features)
        out = x @ self.weight.T
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Dropout(Module):
    """Elements set to 0 with probability `p`, the rest scaled by 1 / (1 - p), in training mode
    only; same shape. A SparseTensor keeps its pattern: stored entries are dropped to zeros.

    Raises ValueError for `p` outside [0, 1].

    Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting",
    JMLR 15, 2014.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p must lie in [0, 1], got {p}")
        self.p = p

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class ReLU(Module):
    """max(x, 0), same shape, subgradient 0 at 0; a SparseTensor keeps its pattern."""

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.relu(x)


class Sequential(Module):
    """Modules called one after another, each on what the one before returned.

    modules: Modules, or one mapping of names to Modules.

    >>> import sparsegrad as sg
    >>> model = sg.nn.Sequential(sg.nn.Linear(3, 4), sg.nn.ReLU())
    >>> len(model), model[1]
    (2, ReLU())
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        named: Any = enumerate(modules)
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            named = modules[0].items()
        for name, module in named:
            self.add_module(str(name), module)

    def forward(self, x: Any) -> Any:
        """What the last module returns."""
        for module in self._modules.values():
            x = module(x)
        return x

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: int | slice) -> Any:
        chosen = list(self._modules.items())[index]
        return Sequential(dict(chosen)) if isinstance(chosen, list) else chosen[1]


def check_width(layer: str, x: Any, width: int) -> None:
    """ShapeError unless the last dimension of `x` is `width`."""
    if x.ndim == 0 or x.shape[-1] != width:
        raise ShapeError(f"{layer}: expected x (..., {width}), got shape {tuple(x.shape)}")
