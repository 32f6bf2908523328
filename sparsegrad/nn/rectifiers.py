"""Activations that are clamped, shrunk or gated, as modules: each calls the function of its name
with the arguments it was made with. `inplace` is there for code written for PyTorch: results are
always new."""

from __future__ import annotations

from typing import Any

from sparsegrad import create, ops
from sparsegrad.nn.module import Module
from sparsegrad.nn.parameter import Parameter

__all__ = [
    "CELU",
    "GLU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LogSigmoid",
    "Mish",
    "PReLU",
    "ReLU6",
    "SELU",
    "Softmin",
    "Softshrink",
    "Softsign",
    "Tanhshrink",
    "Threshold",
]


class _Function(Module):
    _op: str

    def __init__(self, *args: Any, inplace: bool = False, **kwargs: Any) -> None:
        super().__init__()
        self.args, self.kwargs = args, kwargs

    def forward(self, x: Any) -> Any:
        """Same shape as `x` (that of `GLU`: half as wide)."""
        return getattr(ops, self._op)(x, *self.args, **self.kwargs)

    def extra_repr(self) -> str:
        named = [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return ", ".join([*map(repr, self.args), *named])


class Hardtanh(_Function):
    """x between min_val = -1 and max_val = 1; see `sg.hardtanh`.

    >>> import sparsegrad as sg
    >>> sg.nn.Hardtanh(0.0, max_val=2.0)(sg.tensor([-1.0, 3.0]))
    tensor([0., 2.])
    """

    _op = "hardtanh"


class ReLU6(_Function):
    """x between 0 and 6; see `sg.relu6`."""

    _op = "relu6"


class Hardsigmoid(_Function):
    """(x + 3) / 6 between 0 and 1; see `sg.hardsigmoid`."""

    _op = "hardsigmoid"


class Hardswish(_Function):
    """x * hardsigmoid(x); see `sg.hardswish`."""

    _op = "hardswish"


class Threshold(_Function):
    """x where it is above `threshold`, `value` elsewhere; see `sg.threshold`."""

    _op = "threshold"


class Hardshrink(_Function):
    """x where |x| > lambd = 0.5, 0 elsewhere; see `sg.hardshrink`."""

    _op = "hardshrink"


class Softshrink(_Function):
    """x moved by lambd = 0.5 towards 0; see `sg.softshrink`."""

    _op = "softshrink"


class Tanhshrink(_Function):
    """x - tanh(x); see `sg.tanhshrink`."""

    _op = "tanhshrink"


class Softsign(_Function):
    """x / (1 + |x|); see `sg.softsign`."""

    _op = "softsign"


class CELU(_Function):
    """x above 0, alpha (exp(x / alpha) - 1) elsewhere, alpha = 1; see `sg.celu`."""

    _op = "celu"


class SELU(_Function):
    """`ELU` with fixed scale and alpha; see `sg.selu`."""

    _op = "selu"


class Mish(_Function):
    """x * tanh(softplus(x)); see `sg.mish`."""

    _op = "mish"


class LogSigmoid(_Function):
    """log(sigmoid(x)); see `sg.logsigmoid`."""

    _op = "logsigmoid"


class Softmin(_Function):
    """softmax(-x) along dim = -1; see `sg.softmin`."""

    _op = "softmin"


class GLU(_Function):
    """One half of x times the sigmoid of the other, along dim = -1; see `sg.glu`.

    >>> import sparsegrad as sg
    >>> sg.nn.GLU()(sg.ones(2, 6)).shape
    (2, 3)
    """

    _op = "glu"


class PReLU(Module):
    """x above 0, weight * x elsewhere; see `sg.prelu`.

    num_parameters: 1, or a slope for each of the channels of x (N, C, *d). init: their first value.

    >>> import sparsegrad as sg
    >>> sg.nn.PReLU()(sg.tensor([-4.0, 4.0])).tolist()
    [-1.0, 4.0]
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(create.full((num_parameters,), init, dtype=dtype))

    def forward(self, x: Any) -> Any:
        """Same shape as `x`."""
        return ops.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
