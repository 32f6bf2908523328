"""Products by index: einsum and its special cases. Everything becomes matrix products."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsegrad.errors import ShapeError
from sparsegrad.ops.dense_matmul import bmm, matmul_p
from sparsegrad.ops.index import getitem_p
from sparsegrad.ops.rearrange import roll
from sparsegrad.ops.reduce import sum_p
from sparsegrad.ops.shape import as_argument, permute_p, reshape_p

__all__ = ["baddbmm", "cross", "dot", "einsum", "inner", "outer", "tensordot", "vdot"]

# A tensor and the label of each of its dimensions.
_Term = tuple[Any, str]


def _sparse() -> Any:
    """The family of sparse operands; it builds on others that build on this one."""
    from sparsegrad.ops import sparse_contract

    return sparse_contract


# ---- einsum ------------------------------------------------------------------------------------
def einsum(equation: str, *operands: Any) -> Any:
    """Sums of products by index, as `numpy.einsum`: "ij,jk->ik" is a matrix product.

    Repeated labels of one operand are its diagonal, "..." stands for further dimensions that
    broadcast, and without "->" the result has the labels that occur once, in alphabetical order.
    Of several operands the cheapest order of pairs is found first; each pair is one (batched)
    matrix product, so float16 accumulates in float32 and gradients of any order are einsums too.
    Of two operands one or both may be sparse, if each label is summed over or kept and stands once
    in each. Raises ShapeError for an equation that does not fit the shapes, TypeError for others of
    sparse operands.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> sg.einsum("ij,j->i", x, sg.tensor([1.0, 10.0])), sg.einsum("ii", x)
    (tensor([21., 43.]), tensor(5.))
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    tensors = [as_argument("einsum", x) for x in operands]
    inputs, output = _parsed(equation, tensors)
    if any(x._is_sparse for x in tensors):
        return _sparse().sparse_einsum(equation, tensors, inputs, output)
    _sizes(equation, inputs, tensors)
    terms = [_diagonal(x, labels) for x, labels in zip(tensors, inputs, strict=True)]
    for pair in _path(inputs, output, tensors):
        taken = [terms.pop(i) for i in sorted(pair, reverse=True)][::-1]
        while len(taken) > 1:
            later = "".join(labels for _, labels in (*terms, *taken[2:])) + output
            taken[:2] = [_pair(taken[0], taken[1], later)]
        terms += taken
    (result,) = terms
    x, labels = _summed(result, output)
    if missing := [label for label in output if label not in labels]:
        raise ShapeError(f"einsum: {equation!r}: {missing} of the result is in no operand")
    return permute_p(x, axes=tuple(labels.index(label) for label in output))


def _parsed(equation: str, tensors: Sequence[Any]) -> tuple[list[str], str]:
    """Labels of each operand and of the result, with "..." replaced by labels of its own."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    inputs = left.split(",")
    plain = left.replace(",", "").replace("...", "") + right.replace("...", "")
    if len(inputs) != len(tensors) or not all(c in string.ascii_letters for c in plain):
        raise ShapeError(
            f"einsum: {equation!r} does not name {len(tensors)} operands by letters and '...'"
        )
    free = [c for c in string.ascii_letters if c not in plain]
    extra = [x.ndim - len(t.replace("...", "")) for t, x in zip(inputs, tensors, strict=True)]
    for position, (term, n, x) in enumerate(zip(inputs, extra, tensors, strict=True)):
        if n < 0 or (n and "..." not in term):
            raise ShapeError(
                f"einsum: {equation!r}: operand {position} has shape {tuple(x.shape)}, not the "
                f"dimensions {term!r}"
            )
    width = max((n for t, n in zip(inputs, extra) if "..." in t), default=0)
    if width > len(free):
        raise ShapeError(f"einsum: {equation!r}: no letters left for '...'")
    broadcast = "".join(free[:width])
    inputs = [
        term.replace("...", broadcast[width - n :] if n else "")
        for term, n in zip(inputs, extra, strict=True)
    ]
    if arrow:
        return inputs, right.replace("...", broadcast)
    every = "".join(inputs)
    once = sorted(c for c in set(every) if every.count(c) == 1 and c not in broadcast)
    return inputs, broadcast + "".join(once)


def _sizes(equation: str, inputs: list[str], tensors: Sequence[Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for labels, x in zip(inputs, tensors, strict=True):
        for label, n in zip(labels, x.shape, strict=True):
            held = sizes.get(label, 1)
            if n != held and 1 not in (n, held):
                raise ShapeError(
                    f"einsum: {equation!r}: {label!r} is both {held} and {n}; shapes are "
                    f"{[tuple(t.shape) for t in tensors]}"
                )
            sizes[label] = n if held == 1 else held
    return sizes


def _path(inputs: list[str], output: str, tensors: Sequence[Any]) -> list[tuple[int, ...]]:
    """Which operands to multiply, in what order; results go to the end of the list."""
    if len(tensors) < 3:
        return [tuple(range(len(tensors)))]
    # Stand-ins without memory: the search looks at shapes only.
    shapes = [np.broadcast_to(np.float32(0), x.shape) for x in tensors]
    equation = f"{','.join(inputs)}->{output}"
    return np.einsum_path(equation, *shapes, optimize="greedy")[0][1:]


def _diagonal(x: Any, labels: str) -> _Term:
    """Every label once: repeated ones as the diagonal of their dimensions."""
    for label in dict.fromkeys(labels):
        axes = [d for d, c in enumerate(labels) if c == label]
        if len(axes) == 1:
            continue
        sizes = {x.shape[d] for d in axes}
        if len(sizes) > 1:
            raise ShapeError(f"einsum: {label!r} is both {min(sizes)} and {max(sizes)}")
        rest = [d for d in range(x.ndim) if d not in axes]
        x = permute_p(x, axes=(*axes, *rest))
        ids = np.arange(sizes.pop())
        x = getitem_p(x, index=(ids,) * len(axes))
        labels = label + "".join(labels[d] for d in rest)
    return x, labels


def _summed(term: _Term, kept: str) -> _Term:
    """Without the dimensions that nobody asks for later."""
    x, labels = term
    axes = tuple(d for d, label in enumerate(labels) if label not in kept)
    if not axes:
        return term
    return sum_p(x, axis=axes), "".join(label for label in labels if label in kept)


def _pair(a: _Term, b: _Term, later: str) -> _Term:
    """The product of two terms, with what is not needed later summed: one matrix product."""
    a, b = _summed(a, later + b[1]), _summed(b, later + a[1])
    a, b = _without_ones(a, b), _without_ones(b, a)
    (x, left), (y, right) = a, b
    batch = [c for c in left if c in right and c in later]
    inner = [c for c in left if c in right and c not in later]
    mine, theirs = [c for c in left if c not in right], [c for c in right if c not in left]
    sizes = {**dict(zip(right, y.shape)), **dict(zip(left, x.shape))}

    def grouped(t: Any, labels: str, *groups: list[str]) -> Any:
        axes = tuple(labels.index(c) for group in groups for c in group)
        lead = tuple(sizes[c] for c in groups[0])
        flat = tuple(math.prod(sizes[c] for c in group) for group in groups[1:])
        return reshape_p(permute_p(t, axes=axes), shape=(*lead, *flat))

    out = matmul_p(grouped(x, left, batch, mine, inner), grouped(y, right, batch, inner, theirs))
    labels = [*batch, *mine, *theirs]
    return reshape_p(out, shape=tuple(sizes[c] for c in labels)), "".join(labels)


def _without_ones(a: _Term, b: _Term) -> _Term:
    """Size-1 dimensions that broadcast against a larger one of the other term are dropped."""
    x, labels = a
    other = dict(zip(b[1], b[0].shape))
    kept = [d for d, c in enumerate(labels) if x.shape[d] != 1 or other.get(c, 1) == 1]
    if len(kept) == len(labels):
        return a
    return reshape_p(x, shape=tuple(x.shape[d] for d in kept)), "".join(labels[d] for d in kept)


# ---- special cases -----------------------------------------------------------------------------
def _vectors(op: str, *tensors: Any) -> None:
    if any(t.ndim != 1 for t in tensors):
        raise ShapeError(f"{op}: expected vectors, got {[tuple(t.shape) for t in tensors]}")


def outer(a: Any, b: Any) -> Any:
    """The products of every pair of elements: (m,), (n,) -> (m, n), sparse if either is.

    >>> import sparsegrad as sg
    >>> sg.outer(sg.tensor([1.0, 2.0]), sg.tensor([3.0, 4.0]))
    tensor([[3., 4.],
            [6., 8.]])
    """
    _vectors("outer", a, b)
    column, row = reshape_p(a, shape=(-1, 1)), reshape_p(b, shape=(1, -1))
    both = getattr(a, "_is_sparse", False) and getattr(b, "_is_sparse", False)
    return column @ row if both else column * row


def dot(a: Any, b: Any) -> Any:
    """The sum of products of two vectors: (k,), (k,) -> ().

    >>> import sparsegrad as sg
    >>> sg.dot(sg.tensor([1.0, 2.0]), sg.tensor([3.0, 4.0]))
    tensor(11.)
    """
    _vectors("dot", a, b)
    return a @ b


def vdot(a: Any, b: Any) -> Any:
    """The sum of products of two vectors, the first conjugated: (k,), (k,) -> ().

    >>> import sparsegrad as sg
    >>> sg.vdot(sg.tensor([1.0, 2.0]), sg.tensor([3.0, 4.0]))
    tensor(11.)
    """
    from sparsegrad.ops.questions import conj

    return dot(conj(a), b)


def cross(a: Any, b: Any, dim: int = -1) -> Any:
    """The vector product along a dimension of size 3; the other dimensions broadcast.

    Raises ShapeError for another size.

    >>> import sparsegrad as sg
    >>> sg.cross(sg.tensor([1.0, 0.0, 0.0]), sg.tensor([0.0, 1.0, 0.0]))
    tensor([0., 0., 1.])
    """
    if a.ndim != b.ndim or not -a.ndim <= dim < a.ndim or {a.shape[dim], b.shape[dim]} != {3}:
        raise ShapeError(
            f"cross: expected two tensors with size 3 in dim {dim}, got {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    return roll(a, -1, dim) * roll(b, -2, dim) - roll(a, -2, dim) * roll(b, -1, dim)


def inner(a: Any, b: Any) -> Any:
    """Sums of products along the last dimensions: (*A, k), (*B, k) -> (*A, *B).

    >>> import sparsegrad as sg
    >>> sg.inner(sg.tensor([[1.0, 2.0]]), sg.tensor([3.0, 4.0]))
    tensor([11.])
    """
    if not a.ndim or not b.ndim:
        return a * b
    return tensordot(a, b, ([a.ndim - 1], [b.ndim - 1]))


def tensordot(a: Any, b: Any, dims: Any = 2) -> Any:
    """Sums of products over pairs of dimensions: the last `dims` of `a` with the first of `b`, or
    those of two lists. What is left of `a` comes first, then what is left of `b`. Sparse if both
    are.

    >>> import sparsegrad as sg
    >>> sg.tensordot(sg.ones(2, 3, 4), sg.ones(3, 4, 5)).shape
    (2, 5)
    """
    a, b = as_argument("tensordot", a), as_argument("tensordot", b)
    if isinstance(dims, int):
        left, right = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        left, right = ([d] if isinstance(d, int) else list(d) for d in dims)
    bad = len(left) != len(right) or any(not -a.ndim <= d < a.ndim for d in left)
    if bad or any(not -b.ndim <= d < b.ndim for d in right):
        raise ShapeError(f"tensordot: dims {dims} do not fit {tuple(a.shape)}, {tuple(b.shape)}")
    letters = iter(string.ascii_letters)
    a_labels = [next(letters) for _ in range(a.ndim)]
    b_labels = [next(letters) for _ in range(b.ndim)]
    for i, j in zip(left, right, strict=True):
        if a.shape[i] != b.shape[j]:
            raise ShapeError(
                f"tensordot: dims {dims} have sizes {a.shape[i]} and {b.shape[j]} in "
                f"{tuple(a.shape)}, {tuple(b.shape)}"
            )
        b_labels[j] = a_labels[i]
    if a._is_sparse or b._is_sparse:
        return _sparse().sparse_tensordot(
            a, b, [d % a.ndim for d in left], [d % b.ndim for d in right]
        )
    both = set(a_labels) & set(b_labels)
    out = [c for c in (*a_labels, *b_labels) if c not in both]
    return einsum(f"{''.join(a_labels)},{''.join(b_labels)}->{''.join(out)}", a, b)


def baddbmm(x: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta * x + alpha * bmm(a, b): a (B, m, k), b (B, k, n), x broadcasts to (B, m, n). With
    beta = 0 x does not matter, even if it holds nan.

    >>> import sparsegrad as sg
    >>> sg.baddbmm(sg.ones(1), sg.ones(2, 1, 3), sg.ones(2, 3, 1)).tolist()
    [[[4.0]], [[4.0]]]
    """
    product = bmm(a, b)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (x if beta == 1 else x * beta)
