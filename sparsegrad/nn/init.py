"""First values of parameters, drawn on the host: from the stream of `sg.manual_seed`, or from a
`generator`.

Each function fills its tensor in place and returns it. As in PyTorch, a weight is (out, in,
*kernel): `fan_in` is in * kernel, `fan_out` is out * kernel. Graph layers multiply by (in, out)
from the right: for theirs "fan_out" is what "fan_in" is elsewhere.
"""

from __future__ import annotations

import math
from typing import Any

from sparsegrad.engine.mode import no_grad
from sparsegrad.errors import ShapeError
from sparsegrad.sampling import normal, uniform

__all__ = [
    "calculate_gain",
    "constant_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

_GAINS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "sigmoid"), 1.0),
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "selu": 3 / 4,
}


def uniform_(tensor: Any, low: float = 0.0, high: float = 1.0, generator: Any = None) -> Any:
    """Uniform numbers in [low, high); any shape.

    >>> import sparsegrad as sg
    >>> x = sg.nn.init.uniform_(sg.zeros(1000), -1, 1)
    >>> bool((sg.abs(x) <= 1).data.all())
    True
    """
    with no_grad():
        return tensor.copy_(
            uniform(low, high, tensor.shape, dtype=tensor.dtype, generator=generator)
        )


def normal_(tensor: Any, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Any:
    """Normal numbers; any shape.

    >>> import sparsegrad as sg
    >>> abs(sg.nn.init.normal_(sg.zeros(1000), std=0.01).mean().item()) < 0.005
    True
    """
    with no_grad():
        return tensor.copy_(
            normal(mean, std, tensor.shape, dtype=tensor.dtype, generator=generator)
        )


def xavier_uniform_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Uniform numbers in ±gain sqrt(6 / (fan_in + fan_out)); ShapeError for less than two
    dimensions.

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", AISTATS 2010.

    >>> import sparsegrad as sg
    >>> x = sg.nn.init.xavier_uniform_(sg.zeros(8, 16))
    >>> sg.abs(x).max().item() <= 0.5
    True
    """
    bound = gain * _spread("xavier_uniform_", tensor, 6)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Normal numbers of deviation gain sqrt(2 / (fan_in + fan_out)): see `xavier_uniform_`.

    >>> import sparsegrad as sg
    >>> sg.nn.init.xavier_normal_(sg.zeros(64, 128)).std().item() < 0.2
    True
    """
    return normal_(tensor, 0.0, gain * _spread("xavier_normal_", tensor, 2), generator)


def kaiming_uniform_(
    tensor: Any,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Any:
    """Uniform numbers of deviation gain / sqrt(fan), with `calculate_gain(nonlinearity, a)` and
    the fan of `mode`, "fan_in" or "fan_out".

    Raises ShapeError for less than two dimensions, ValueError for another mode or nonlinearity.

    He, Zhang, Ren and Sun, "Delving deep into rectifiers", ICCV 2015.

    >>> import sparsegrad as sg
    >>> w = sg.nn.init.kaiming_uniform_(sg.zeros(200, 50), nonlinearity="relu")
    >>> abs(w.std().item() - (2 / 50) ** 0.5) < 0.01
    True
    """
    bound = math.sqrt(3) * _kaiming("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Any,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Any:
    """Normal numbers of that deviation: see `kaiming_uniform_`.

    >>> import sparsegrad as sg
    >>> sg.nn.init.kaiming_normal_(sg.zeros(64, 128)).std().item() < 0.2
    True
    """
    std = _kaiming("kaiming_normal_", tensor, a, mode, nonlinearity)
    return normal_(tensor, 0.0, std, generator)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the deviation of values behind an activation; `param` is the slope of
    "leaky_relu" (0.01). ValueError for a name that is not known.

    >>> import sparsegrad as sg
    >>> round(sg.nn.init.calculate_gain("relu"), 4)
    1.4142
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        known = ", ".join(sorted((*_GAINS, "leaky_relu")))
        raise ValueError(
            f"calculate_gain: nonlinearity must be one of {known}; got {nonlinearity!r}"
        )
    return _GAINS[nonlinearity]


def _spread(op: str, tensor: Any, n: int) -> float:
    fans = sum(_fans(op, tensor).values())
    return math.sqrt(n / fans) if fans else 0.0


def _kaiming(op: str, tensor: Any, a: float, mode: str, nonlinearity: str) -> float:
    fans = _fans(op, tensor)
    if mode not in fans:
        raise ValueError(f"{op}: mode must be 'fan_in' or 'fan_out', got {mode!r}")
    gain = calculate_gain(nonlinearity, a)
    return gain / math.sqrt(fans[mode]) if fans[mode] else 0.0


def _fans(op: str, tensor: Any) -> dict[str, int]:
    if tensor.ndim < 2:
        raise ShapeError(f"{op}: needs two dimensions, got shape {tensor.shape}")
    spots = math.prod(tensor.shape[2:])
    return {"fan_in": tensor.shape[1] * spots, "fan_out": tensor.shape[0] * spots}


def constant_(tensor: Any, val: float) -> Any:
    """`val` everywhere; any shape.

    >>> import sparsegrad as sg
    >>> sg.nn.init.constant_(sg.zeros(2), 3.0)
    tensor([3., 3.])
    """
    with no_grad():
        return tensor.fill_(val)


def ones_(tensor: Any) -> Any:
    """Ones; any shape.

    >>> import sparsegrad as sg
    >>> sg.nn.init.ones_(sg.zeros(2))
    tensor([1., 1.])
    """
    return constant_(tensor, 1)


def zeros_(tensor: Any) -> Any:
    """Zeros; any shape.

    >>> import sparsegrad as sg
    >>> sg.nn.init.zeros_(sg.ones(2))
    tensor([0., 0.])
    """
    with no_grad():
        return tensor.zero_()
