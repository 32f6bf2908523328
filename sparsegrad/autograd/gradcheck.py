"""gradcheck: gradient rules against finite differences along random directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsegrad.engine.differentiate import grad
from sparsegrad.engine.mode import enable_grad, no_grad
from sparsegrad.sparse_tensor import SparseTensor, wrap
from sparsegrad.tensor import Tensor

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]


class GradcheckError(AssertionError):
    """A gradient rule disagrees with finite differences."""


def gradcheck(
    fn: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-6,
    rtol: float = 1e-4,
    seed: int = 0,
    raise_exception: bool = True,
) -> bool:
    """Whether the gradients of `fn` agree with central differences.

    Each input that requires a gradient is moved along one random direction, on its pattern if it
    is sparse, and every output is weighted with a random upstream gradient. Use float64 and
    `eps=1e-6`, or any step for a function that is linear in each input.

    Raises GradcheckError (or returns False) with the input and both numbers.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([0.3, 0.7], dtype=sg.float64, requires_grad=True)
    >>> sg.gradcheck(sg.tanh, x)
    True
    """
    inputs = _as_tuple(inputs)
    rng = np.random.default_rng(seed)
    checked = [i for i, x in enumerate(inputs) if getattr(x, "requires_grad", False)]
    if not checked:
        raise ValueError("gradcheck: no input requires a gradient")
    with enable_grad():
        outputs = _values(fn(*inputs))
    outputs = [o for o in outputs if o.requires_grad]
    upstream = [_random(rng, o) for o in outputs]
    found = grad(outputs, [inputs[i] for i in checked], upstream, allow_unused=True)
    for i, g in zip(checked, found, strict=True):
        x = inputs[i]
        values = x.values if isinstance(x, SparseTensor) else x
        direction = _random(rng, values).data
        exact = _dot(_per_value(x, g), direction)
        plus, minus = (
            _weighted(fn, _replaced(inputs, i, values.data + sign * eps * direction), upstream)
            for sign in (1, -1)
        )
        numeric = (plus - minus) / (2 * eps)
        if not np.isclose(exact, numeric, rtol=rtol, atol=atol, equal_nan=True):
            if not raise_exception:
                return False
            coarse = f"; {x.dtype} is too coarse for eps={eps:g}, use float64"
            raise GradcheckError(
                f"gradcheck: input {i} of shape {tuple(x.shape)}: along a random direction the "
                f"rules give {exact:.10g}, finite differences {numeric:.10g}"
                f"{coarse if x.dtype != np.float64 and eps < 1e-3 else ''}"
            )
    return True


def gradgradcheck(fn: Callable[..., Any], inputs: Any, **options: Any) -> bool:
    """Whether second derivatives of `fn` agree with central differences of its gradients: with
    respect to the inputs and the upstream gradient. Options as in `gradcheck`.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([0.3, 0.7], dtype=sg.float64, requires_grad=True)
    >>> sg.gradgradcheck(sg.tanh, x)
    True
    """
    inputs = _as_tuple(inputs)
    rng = np.random.default_rng(options.get("seed", 0) + 1)
    outputs = [o for o in _values(fn(*inputs)) if o.requires_grad]
    upstream = [_random(rng, o).requires_grad_() for o in outputs]
    checked = [i for i, x in enumerate(inputs) if getattr(x, "requires_grad", False)]

    def gradients(*args: Any) -> tuple[Any, ...]:
        xs, us = args[: len(inputs)], args[len(inputs) :]
        outs = [o for o in _values(fn(*xs)) if o.requires_grad]
        got = grad(outs, [xs[i] for i in checked], list(us), create_graph=True, allow_unused=True)
        dense = (_per_value(xs[i], g) for i, g in zip(checked, got, strict=True))
        return tuple(g for g in dense if isinstance(g, Tensor) and g.requires_grad)

    if not gradients(*inputs, *upstream):
        return True
    return gradcheck(gradients, (*inputs, *upstream), **options)


def _as_tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def _values(outputs: Any) -> list[Tensor]:
    outputs = _as_tuple(outputs)
    return [o.values if isinstance(o, SparseTensor) else o for o in outputs]


def _random(rng: np.random.Generator, like: Tensor) -> Tensor:
    return Tensor(rng.standard_normal(like.shape).astype(like.dtype))


def _per_value(x: Any, g: Any) -> Any:
    """Gradient with respect to the values of `x`, dense."""
    if g is None:
        return None
    if isinstance(x, SparseTensor):
        g = g.values
        if g.shape != x.values.shape:  # duplicates: each stored value has its entry's gradient
            raise ValueError("gradcheck: sparse inputs with duplicates: check A.values instead")
        return g
    return g.to_dense() if isinstance(g, SparseTensor) else g


def _dot(g: Any, direction: np.ndarray) -> float:
    return 0.0 if g is None else float((g.data.astype(np.float64) * direction).sum())


def _replaced(inputs: Sequence[Any], i: int, data: Any) -> list[Any]:
    old = inputs[i]
    dtype = (old.values if isinstance(old, SparseTensor) else old).dtype
    moved = Tensor(data.astype(dtype), requires_grad=True)
    new = wrap(moved, old.pattern) if isinstance(old, SparseTensor) else moved
    return [new if j == i else x for j, x in enumerate(inputs)]


def _weighted(fn: Callable[..., Any], inputs: list[Any], upstream: list[Tensor]) -> float:
    """The outputs weighted with the upstream gradients, in float64."""
    with enable_grad():  # functions may differentiate inside
        outputs = [o for o in _values(fn(*inputs)) if o.requires_grad]
    with no_grad():
        return sum(
            float((o.data.astype(np.float64) * u.data).sum())
            for o, u in zip(outputs, upstream, strict=True)
        )
