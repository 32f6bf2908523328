"""Products by index of which an operand is sparse: one matrix product, between other shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import matmul
from typing import Any

from sparsegrad.ops.shape import permute_p, reshape_p
from sparsegrad.ops.sparse_structure import split_dense

__all__: list[str] = []


def sparse_tensordot(a: Any, b: Any, left: Sequence[int], right: Sequence[int]) -> Any:
    """Sums of products over pairs of dimensions, of which `left` are those of a, `right` of b;
    sparse if both are."""
    a, b = (split_dense(x, x.dense_dim) if x._is_sparse else x for x in (a, b))
    first = [d for d in range(a.ndim) if d not in left]
    second = [d for d in range(b.ndim) if d not in right]
    k = (math.prod(a.shape[d] for d in left),)
    rows, columns = (a.shape[d] for d in first), (b.shape[d] for d in second)
    shape = (*rows, *columns)
    tall = _as(a, (*first, *left), ((math.prod(shape[: len(first)]),) if first else ()) + k)
    wide = _as(b, (*right, *second), k + ((math.prod(shape[len(first) :]),) if second else ()))
    out = tall @ wide
    return out if out.shape == shape else reshape_p(out, shape=shape)


def _as(x: Any, axes: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    x = x if axes == tuple(range(x.ndim)) else permute_p(x, axes=axes)
    return x if tuple(x.shape) == shape else reshape_p(x, shape=shape)


def sparse_einsum(equation: str, tensors: Sequence[Any], inputs: list[str], output: str) -> Any:
    """einsum of two operands where every label is summed over or kept, and stands once in each."""
    both = set.intersection(*map(set, inputs))
    apart = [c for labels in inputs for c in labels if c not in both]
    once = all(len(set(labels)) == len(labels) for labels in (*inputs, output))
    sizes = [
        dict(zip(labels, x.shape, strict=True)) for labels, x in zip(inputs, tensors, strict=True)
    ]
    alike = all(len({size[c] for size in sizes}) == 1 for c in both)
    if len(tensors) != 2 or not once or not alike or sorted(apart) != sorted(output):
        raise TypeError(
            f"einsum: {equation!r}: with sparse operands there must be two, and labels be summed"
            " over in both or kept; write A.to_dense()"
        )
    dims = [[labels.index(c) for c in sorted(both)] for labels in inputs]
    out = sparse_tensordot(*tensors, *dims)
    axes = tuple(apart.index(c) for c in output)
    return out if axes == tuple(range(len(axes))) else permute_p(out, axes=axes)


def product_of(tensors: Sequence[Any]) -> Any:
    """The product of a chain, begun at the end that is a vector or dense, else at the first."""
    last = tensors[-1]
    if last.ndim == 1 or not getattr(last, "_is_sparse", False):
        return reduce(lambda out, A: A @ out, reversed(tensors[:-1]), last)
    return reduce(matmul, tensors)
