"""Activation functions as modules: same shape in and out. Those with f(0) = 0 keep the pattern of
a SparseTensor. `inplace` is there for code written for PyTorch: results are always new."""

from __future__ import annotations

from typing import Any

from sparsegrad import ops
from sparsegrad.nn.module import Module

__all__ = [
    "ELU",
    "GELU",
    "Identity",
    "LeakyReLU",
    "LogSoftmax",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
]


class ReLU(Module):
    """max(x, 0), same shape, subgradient 0 at 0; a SparseTensor keeps its pattern.

    >>> import sparsegrad as sg
    >>> sg.nn.ReLU()(sg.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.relu(x)


class LeakyReLU(Module):
    """x where x > 0, else negative_slope * x.

    >>> import sparsegrad as sg
    >>> sg.nn.LeakyReLU(0.5)(sg.tensor([-2.0, 2.0]))
    tensor([-1.,  2.])
    """

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """x where x > 0, else alpha * (exp(x) - 1).

    >>> import sparsegrad as sg
    >>> sg.nn.ELU()(sg.tensor([0.0, 2.0]))
    tensor([0., 2.])
    """

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class GELU(Module):
    """x times the normal distribution function; approximate="tanh" for its usual approximation.

    >>> import sparsegrad as sg
    >>> sg.nn.GELU()(sg.zeros(2))
    tensor([0., 0.])
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(Module):
    """x * sigmoid(x).

    >>> import sparsegrad as sg
    >>> sg.nn.SiLU()(sg.zeros(2))
    tensor([0., 0.])
    """

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.silu(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x)).

    >>> import sparsegrad as sg
    >>> sg.nn.Sigmoid()(sg.zeros(2))
    tensor([0.5, 0.5])
    """

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.sigmoid(x)


class Tanh(Module):
    """The hyperbolic tangent.

    >>> import sparsegrad as sg
    >>> sg.nn.Tanh()(sg.zeros(2))
    tensor([0., 0.])
    """

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.tanh(x)


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x > threshold.

    >>> import sparsegrad as sg
    >>> sg.nn.Softplus()(sg.tensor([50.0]))
    tensor([50.])
    """

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Softmax(Module):
    """exp(x) / sum(exp(x)) along `dim`; over stored entries for a SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.nn.Softmax(1)(sg.zeros(1, 2))
    tensor([[0.5, 0.5]])
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.softmax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """The logarithm of `Softmax`.

    >>> import sparsegrad as sg
    >>> sg.nn.LogSoftmax(1)(sg.zeros(1, 2)).exp()
    tensor([[0.5, 0.5]])
    """

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.log_softmax(x, self.dim)


class Identity(Module):
    """Its input; takes and ignores any arguments when it is made.

    >>> import sparsegrad as sg
    >>> sg.nn.Identity()(sg.ones(2))
    tensor([1., 1.])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        """`x`."""
        return x
