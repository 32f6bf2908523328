"""Products with Jacobians, and whole Jacobians and Hessians, of functions of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsegrad import backends
from sparsegrad.engine.differentiate import grad
from sparsegrad.engine.mode import enable_grad
from sparsegrad.errors import GraphError, ShapeError
from sparsegrad.ops.shape import reshape, stack
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.tensor import Tensor, as_tensor

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vjp"]


def vjp(fn: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False) -> Any:
    """The outputs of `fn(*inputs)` and their cotangents v pulled back: v^T J for each input.

    inputs: a tensor or a tuple; v: of the outputs' shapes, may be left out for a scalar output.
    Gradients of SparseTensors lie on their patterns. An input that does not matter gets zeros.

    >>> import sparsegrad as sg
    >>> sg.autograd.vjp(lambda x: x * x, sg.tensor([1.0, 2.0]), sg.tensor([1.0, 10.0]))
    (tensor([1., 4.]), tensor([ 2., 40.]))
    """
    xs, single = _leaves(inputs, create_graph)
    with enable_grad():
        outputs = fn(*xs)
    g = grad(outputs, list(xs), v, create_graph=create_graph, materialize_grads=True)
    result = outputs if create_graph else _detached(outputs)
    return result, g[0] if single else g


def jvp(fn: Callable[..., Any], inputs: Any, v: Any, create_graph: bool = False) -> Any:
    """The output of `fn(*inputs)` and its derivative along v: J v, of the output's shape.

    v: of the inputs' shapes. `fn` returns one dense tensor. Computed by differentiating the
    pulled-back gradient with respect to its cotangent, so `fn` must be twice differentiable.

    >>> import sparsegrad as sg
    >>> sg.autograd.jvp(lambda x: x * x, sg.tensor([1.0, 2.0]), sg.tensor([1.0, 10.0]))
    (tensor([1., 4.]), tensor([ 2., 40.]))
    """
    xs, _ = _leaves(inputs, create_graph)
    directions = v if isinstance(v, (tuple, list)) else (v,)
    if len(directions) != len(xs):
        raise ShapeError(f"jvp: {len(xs)} inputs but {len(directions)} directions")
    with enable_grad():
        output = _dense_output("jvp", fn(*xs))
        xp = backends.for_array(output.data).xp
        dual = Tensor(xp.zeros(output.shape, output.dtype), requires_grad=True)
        pulled = grad(output, list(xs), dual, create_graph=True, materialize_grads=True)
        pairs = [(p, d) for p, d in zip(pulled, directions, strict=True) if p.requires_grad]
        if not pairs:
            tangent = output * 0
        else:
            tangent = grad([p for p, _ in pairs], dual, [d for _, d in pairs],
                           create_graph=create_graph, materialize_grads=True)[0]  # fmt: skip
    return (output, tangent) if create_graph else (output.detach(), tangent.detach())


def jacobian(fn: Callable[..., Any], inputs: Any, create_graph: bool = False) -> Any:
    """Derivatives of every element of the output with respect to every element of each input:
    (*output shape, *input shape), a tuple of them for a tuple of inputs. Dense tensors only: for
    a SparseTensor differentiate with respect to its values.

    >>> import sparsegrad as sg
    >>> sg.autograd.jacobian(lambda x: x * x, sg.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    xs, single = _leaves(inputs, create_graph)
    if any(isinstance(x, SparseTensor) for x in xs):
        raise TypeError("jacobian: dense inputs only; for a SparseTensor pass A.values")
    with enable_grad():
        output = _dense_output("jacobian", fn(*xs))
        flat = reshape(output, (-1,))
        rows = [
            grad(flat[i], list(xs), retain_graph=True, create_graph=create_graph,
                 materialize_grads=True)
            for i in range(flat.shape[0])
        ] if output.requires_grad else []  # fmt: skip
        result = tuple(
            reshape(stack([_dense(row[k]) for row in rows], 0), (*output.shape, *x.shape))
            if rows
            else as_tensor(x.data * 0).expand((*output.shape, *x.shape))
            for k, x in enumerate(xs)
        )
    result = result if create_graph else _detached(result)
    return result[0] if single else result


def hessian(fn: Callable[..., Any], inputs: Any, create_graph: bool = False) -> Any:
    """Second derivatives of a scalar function of one dense tensor: (*shape, *shape). Of several, a
    tuple: for each a tuple with those by it and by each, as in PyTorch.

    >>> import sparsegrad as sg
    >>> sg.autograd.hessian(lambda x: (x * x * x).sum(), sg.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    xs, single = _leaves(inputs, create_graph)
    if any(isinstance(x, SparseTensor) for x in xs):
        raise TypeError("hessian: dense inputs only; for a SparseTensor pass A.values, or see hvp")

    def slope(i: int) -> Callable[..., Any]:
        def of(*xs: Any) -> Any:
            output = _scalar("hessian", fn(*xs))
            return _dense(grad(output, xs[i], create_graph=True, materialize_grads=True)[0])

        return of

    rows = tuple(jacobian(slope(i), xs, create_graph) for i in range(len(xs)))
    return rows[0][0] if single else rows


def hvp(fn: Callable[..., Any], inputs: Any, v: Any, create_graph: bool = False) -> Any:
    """The Hessian of a scalar function times v, without the Hessian: the value of the function,
    and a tensor of the input's shape. Works on SparseTensors, on their pattern.

    inputs: a tensor or a tuple; v: of their shapes, and so is the product.

    >>> import sparsegrad as sg
    >>> sg.autograd.hvp(lambda x: (x * x * x).sum(), sg.tensor([1.0, 2.0]), sg.tensor([1.0, 1.0]))
    (tensor(9.), tensor([ 6., 12.]))
    """
    xs, single = _leaves(inputs, create_graph)
    directions = v if isinstance(v, (tuple, list)) else (v,)
    if len(directions) != len(xs):
        raise ShapeError(f"hvp: {len(xs)} inputs but {len(directions)} directions")
    with enable_grad():
        output = _scalar("hvp", fn(*xs))
        slopes = grad(output, list(xs), create_graph=True, materialize_grads=True)
        pairs = [(g, d) for g, d in zip(slopes, directions, strict=True) if g.requires_grad]
        if pairs:
            second = grad([g for g, _ in pairs], list(xs), [d for _, d in pairs],
                          create_graph=create_graph, materialize_grads=True)  # fmt: skip
        else:
            second = tuple(g * 0 for g in slopes)
    if not create_graph:
        output, second = output.detach(), _detached(second)
    return output, second[0] if single else tuple(second)


def _scalar(op: str, output: Any) -> Tensor:
    if not isinstance(output, Tensor) or output.data.size != 1:
        found = getattr(output, "shape", type(output).__name__)
        raise GraphError(f"{op}: the function must return a scalar tensor, got {found}")
    return output


def _dense_output(op: str, output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise TypeError(f"{op}: the function must return one tensor, got {type(output).__name__}")
    return output


def _leaves(inputs: Any, create_graph: bool) -> tuple[tuple[Any, ...], bool]:
    """The inputs as leaves of their own, or, under create_graph, as they are."""
    single = not isinstance(inputs, (tuple, list))
    given = (inputs,) if single else tuple(inputs)
    made = []
    for x in given:
        x = x if isinstance(x, SparseTensor) else as_tensor(x)
        made.append(x if create_graph and x.requires_grad else x.detach().requires_grad_())
    return tuple(made), single


def _detached(result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        return tuple(_detached(r) for r in result)
    return result.detach()


def _dense(g: Any) -> Any:
    return g.to_dense() if isinstance(g, SparseTensor) else g
