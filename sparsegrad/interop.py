"""sparsegrad functions inside a PyTorch model, without copying.

PyTorch is never imported: who has PyTorch tensors has imported it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from sparsegrad.create import from_dlpack
from sparsegrad.engine.differentiate import backward as run_backward
from sparsegrad.engine.mode import enable_grad
from sparsegrad.errors import GraphError
from sparsegrad.tensor import Tensor

__all__ = ["torch_function"]


def torch_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, a function of sparsegrad Tensors, as a function of PyTorch tensors.

    fn: takes Tensors (and whatever else it is given, unchanged) and returns one Tensor or a tuple
        of them. Sparse tensors, weights and constants may live in it.
    The result takes torch.Tensors in the places of Tensors and gives torch.Tensors, of any shape.
    Memory is shared in both directions. PyTorch's backward pass runs sparsegrad's; a row-sparse or
    element-sparse gradient arrives as a sparse torch tensor. The same pass gives leaves that `fn`
    brings along their `.grad`. Differentiates once: not for `create_graph=True`.

    Raises GraphError if PyTorch has not been imported.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 1, 2], [1, 0], [2.0, 3.0], (2, 2))
    >>> propagate = sg.interop.torch_function(lambda x: A @ x)
    """

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        out = _bridge().apply(fn, *args)
        return out if len(out) > 1 else out[0]

    return call


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise GraphError("torch_function: PyTorch has not been imported")
    return torch


@functools.cache
def _bridge() -> Any:
    torch = _torch()

    class Bridge(torch.autograd.Function):  # type: ignore[name-defined]
        """One call of a sparsegrad function as one node of PyTorch's graph."""

        @staticmethod
        def forward(ctx: Any, fn: Any, *args: Any) -> Any:
            inputs = []
            for a in args:
                if isinstance(a, torch.Tensor):
                    needs = a.requires_grad and a.is_floating_point()
                    a = from_dlpack(a.detach()).requires_grad_(needs)
                inputs.append(a)
            with enable_grad():
                out = fn(*inputs)
            ctx.inputs, ctx.outputs = inputs, out if isinstance(out, tuple) else (out,)
            # A result may be an input itself: PyTorch must see another tensor of that memory.
            shared = [torch.from_dlpack(t.detach()) for t in ctx.outputs]
            for t, s in zip(ctx.outputs, shared, strict=True):
                if not t.requires_grad:
                    ctx.mark_non_differentiable(s)
            return tuple(shared)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *grads: Any) -> Any:
            pairs = [
                (t, from_dlpack(g.contiguous()))
                for t, g in zip(ctx.outputs, grads, strict=True)
                if t.requires_grad
            ]
            leaves = [t if isinstance(t, Tensor) and t.requires_grad else None for t in ctx.inputs]
            for t in leaves:
                if t is not None:
                    t.grad = None
            if pairs:
                run_backward([t for t, _ in pairs], [g for _, g in pairs], retain_graph=True)
            return (None, *(None if t is None else _to_torch(torch, t.grad) for t in leaves))

    return Bridge


def _to_torch(torch: Any, g: Any) -> Any:
    if g is None:
        return None
    if not g._is_sparse:
        return torch.from_dlpack(g.detach())
    indices = torch.stack([torch.from_dlpack(Tensor(c.astype("int64"))) for c in g.pattern.coords])
    values = torch.from_dlpack(g.values.detach())
    return torch.sparse_coo_tensor(indices, values, g.shape, check_invariants=False)
