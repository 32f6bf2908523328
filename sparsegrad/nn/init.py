"""First values of parameters, drawn on the host: from the stream of `sg.manual_seed`, or from a
`generator`.

Each function fills its tensor in place and returns it. In sizes, `fan_in` is the last but one
dimension and `fan_out` the last: weights here multiply from the right, (in, out). `Linear` keeps
PyTorch's (out, in); the Glorot bound is the same for both.
"""

from __future__ import annotations

import math
from typing import Any

from sparsegrad.engine.mode import no_grad
from sparsegrad.errors import ShapeError
from sparsegrad.sampling import normal, uniform

__all__ = ["normal_", "ones_", "uniform_", "xavier_uniform_", "zeros_"]


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
    """Uniform numbers in ±gain sqrt(6 / (fan_in + fan_out)); a matrix, or ShapeError.

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", AISTATS 2010.
    """
    if tensor.ndim != 2:
        raise ShapeError(f"xavier_uniform_: needs two dimensions, got shape {tensor.shape}")
    fans = tensor.shape[0] + tensor.shape[1]
    bound = gain * math.sqrt(6 / fans) if fans else 0.0
    return uniform_(tensor, -bound, bound, generator)


def ones_(tensor: Any) -> Any:
    """Ones; any shape."""
    with no_grad():
        return tensor.fill_(1)


def zeros_(tensor: Any) -> Any:
    """Zeros; any shape."""
    with no_grad():
        return tensor.zero_()
