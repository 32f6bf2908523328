"""The size of gradients, measured and limited: dense, sparse, and both together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from sparsegrad import backends, dtypes
from sparsegrad.backends.quiet import quiet
from sparsegrad.engine.mode import no_grad
from sparsegrad.errors import GraphError
from sparsegrad.sparse_tensor import SparseTensor, wrap
from sparsegrad.tensor import Tensor

__all__ = ["change", "clip_grad_norm_", "clip_grad_value_", "with_grad"]


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients by one number so that their norm, taken as if they were one vector, is
    at most `max_norm`, in place. Returns the norm before, a tensor ().

    parameters: tensors, dense or sparse, or one; those without a gradient are left out. A sparse
        gradient counts each place once: duplicates are summed first, and it stays sparse.
    norm_type: > 0, or infinity. error_if_nonfinite: a norm that is nan or infinite is an error
        (GraphError), and nothing is changed then.

    Raises ValueError for max_norm < 0 or norm_type <= 0.

    >>> import sparsegrad as sg
    >>> w = sg.zeros(5, 1, requires_grad=True)
    >>> (w.take(sg.tensor([2, 2])) * sg.tensor([[3.0], [4.0]])).sum().backward()
    >>> sg.nn.utils.clip_grad_norm_([w], 3.5)
    tensor(7.)
    >>> w.grad.nnz, round(w.grad.values.item(), 3)
    (1, 3.5)
    """
    if not max_norm >= 0:
        raise ValueError(f"clip_grad_norm_: max_norm must be >= 0, got {max_norm}")
    if not norm_type > 0:
        raise ValueError(f"clip_grad_norm_: norm_type must be > 0, got {norm_type}")
    held = with_grad(parameters)
    if not held:
        return Tensor(0.0)
    sizes = [_size(_numbers(p), norm_type) for p in held]
    total = max(sizes, key=lambda n: (math.isnan(n), n))
    if norm_type != math.inf and math.isfinite(total) and total:
        total *= sum((n / total) ** norm_type for n in sizes) ** (1 / norm_type)
    if error_if_nonfinite and not math.isfinite(total):
        raise GraphError(f"clip_grad_norm_: the norm of the gradients is {total}")
    scale = max_norm / (total + 1e-6)
    if not scale >= 1:
        for p in held:
            change(p, lambda xp, g: xp.multiply(g, g.dtype.type(scale), out=g))
    wide = dtypes.accumulator(held[0].dtype)  # the norm of many float16 numbers need not be one
    return Tensor(total, wide).to(held[0].device)


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Every element of every gradient brought into [-clip_value, clip_value], in place.

    parameters: as for `clip_grad_norm_`; duplicates of sparse gradients are summed first.

    Raises ValueError for clip_value < 0.

    >>> import sparsegrad as sg
    >>> w = sg.zeros(5, 1, requires_grad=True)
    >>> (w.take(sg.tensor([2, 2])) * sg.tensor([[3.0], [4.0]])).sum().backward()
    >>> sg.nn.utils.clip_grad_value_(w, 5.0)
    >>> w.grad.values
    tensor([[5.]])
    """
    if not clip_value >= 0:
        raise ValueError(f"clip_grad_value_: clip_value must be >= 0, got {clip_value}")
    for p in with_grad(parameters):
        change(p, lambda xp, g: xp.clip(g, -clip_value, clip_value, out=g))


def with_grad(parameters: Any) -> list[Tensor]:
    """The dense tensors whose `.grad` is meant, each once."""
    if isinstance(parameters, (Tensor, SparseTensor)) or not isinstance(parameters, Iterable):
        parameters = [parameters]
    dense = {}
    for p in parameters:
        if not isinstance(p, (Tensor, SparseTensor)):
            raise TypeError(f"clip_grad: expected a tensor, got {type(p).__name__}")
        target = p.values if isinstance(p, SparseTensor) else p
        if target.grad is not None:
            dense[id(target)] = target
    return list(dense.values())


def _numbers(p: Tensor) -> Any:
    """The gradient as an array in which each place stands once."""
    grad = p.grad
    with no_grad():
        return grad.coalesce().values.data if isinstance(grad, SparseTensor) else grad.data


def _size(g: Any, p: float) -> float:
    """The p-norm, in float64 for powers: squares of float16 overflow at 256."""
    if not g.size:
        return 0.0
    xp = backends.for_array(g).xp
    top = float(xp.abs(g).max())
    if p == math.inf or top == 0 or not math.isfinite(top):
        return top
    wide = xp.abs(g.astype(dtypes.float64)) / top  # large norm_type: powers stay in range
    return top * float((wide**p).sum()) ** (1 / p)


def change(p: Tensor, fn: Any) -> Any:
    """`fn(xp, array)` on an array that the gradient owns, of a sparse one the merged values."""
    grad = p.grad
    xp = backends.for_array(p.data).xp
    if isinstance(grad, SparseTensor):
        with no_grad():
            merged = grad.coalesce()
            values = merged.values.data.copy() if merged is grad else merged.values.data
        with quiet():
            result = fn(xp, values)
        p.grad = wrap(Tensor(values), merged.pattern)
        return result
    if grad.requires_grad or not getattr(grad.data.flags, "writeable", True):
        p.grad = grad = Tensor(grad.data.copy())  # the graph of a higher derivative keeps its own
    with quiet():
        result = fn(xp, grad.data)
    grad._bump()
    return result
