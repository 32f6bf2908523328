"""Random ops for the fuzzer: a value and its dense twin, and ops of every tensor.

An op gets a random generator, a value, all values, and whether they are float32. It gives None
where it does not apply, else the expression, its dense result, pairs of an operand and a function
from the cotangent of the result to that of the operand, and, where they are known, the cells that
are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsegrad.sparse_tensor import SparseTensor

__all__ = ["FORMATS", "OPS", "Var", "moved", "partner", "same_split"]

FORMATS = ("coo", "csr", "csc")


@dataclass
class Var:
    """A value: as the engine has it, as a dense array, and how the dense array was made."""

    name: str
    value: Any
    dense: np.ndarray
    parents: list[tuple[Var, Callable[[np.ndarray], np.ndarray]]] = field(default_factory=list)
    leaf: bool = False

    @property
    def sparse(self) -> bool:
        return isinstance(self.value, SparseTensor)

    @property
    def mask(self) -> np.ndarray:
        """Where entries are, over the sparse dimensions."""
        out = np.zeros(self.value.pattern.shape, bool)
        out[tuple(self.value.pattern.coords)] = True
        return out


def moved(a: Var, index: Any) -> Callable[[np.ndarray], np.ndarray]:
    """From the cotangent of a[index] to that of a."""

    def rule(g: np.ndarray) -> np.ndarray:
        out = np.zeros(a.dense.shape)
        np.add.at(out, index, g)
        return out

    return rule


def unary(code: str, fn: Any, derivative: Any, kink: bool = False) -> Any:
    def op(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
        d = a.dense
        if kink and (narrow or ((np.abs(d) < 1e-6) & (d != 0)).any()):
            return None
        mask = a.mask if a.sparse else None
        return code.format(a=a.name), fn(d), [(a, lambda g: g * derivative(d))], mask

    return op


def partner(rng: Any, pool: Any, fits: Any) -> Any:
    chosen = [v for v in pool if fits(v)]
    return chosen[rng.integers(len(chosen))] if chosen else None


def same_split(a: Var, b: Var) -> bool:
    return not (a.sparse and b.sparse) or a.value.dense_dim == b.value.dense_dim


def sums(sign: int) -> Any:
    def op(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
        b = partner(rng, pool, lambda v: v.dense.shape == a.dense.shape and same_split(a, v))
        if b is None:
            return None
        mask = a.mask | b.mask if a.sparse and b.sparse else None
        out = a.dense + sign * b.dense
        rules = [(a, lambda g: g), (b, lambda g: sign * g)]
        return f"{a.name} {'+' if sign > 0 else '-'} {b.name}", out, rules, mask

    return op


def unbroadcast(g: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    g = g.sum(tuple(range(g.ndim - len(shape))))
    return g.sum(tuple(i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1), keepdims=True)


def mul(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    def fits(v: Var) -> bool:
        if a.sparse and v.sparse:
            return v.dense.shape == a.dense.shape and same_split(a, v)
        try:
            np.broadcast_shapes(a.dense.shape, v.dense.shape)
        except ValueError:
            return False
        big, small = (a, v) if a.sparse else (v, a)
        return not big.sparse or small.dense.ndim <= big.dense.ndim

    b = partner(rng, pool, fits)
    if b is None:
        return None
    mask = a.mask & b.mask if a.sparse and b.sparse else None
    rules = [(a, lambda g: unbroadcast(g * b.dense, a.dense.shape)),
             (b, lambda g: unbroadcast(g * a.dense, b.dense.shape))]  # fmt: skip
    return f"{a.name} * {b.name}", a.dense * b.dense, rules, mask


def div(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    b = partner(rng, pool, lambda v: not v.sparse and v.dense.shape == a.dense.shape
                and (np.abs(v.dense) > 0.1).all())  # fmt: skip
    if b is None:
        return None
    rules = [(a, lambda g: g / b.dense), (b, lambda g: -g * a.dense / b.dense**2)]
    return f"{a.name} / {b.name}", a.dense / b.dense, rules, a.mask if a.sparse else None


def matmul(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    """Matrices and vectors, dense and sparse, and stored rows (n, d)."""

    def fits(v: Var) -> bool:
        rows = v.sparse and v.value.dense_dim
        return v.dense.ndim in (1, 2) and (not rows or v.value.sparse_dim == 1)

    if not fits(a):
        return None
    b = partner(rng, pool, lambda v: fits(v) and len(v.dense) == a.dense.shape[-1])
    if b is None:
        return None
    A, B = np.atleast_2d(a.dense), b.dense if b.dense.ndim == 2 else b.dense[:, None]
    whole = all(v.sparse and v.dense.ndim == 2 and not v.value.dense_dim for v in (a, b))
    mask = (a.mask.astype(int) @ b.mask.astype(int)) > 0 if whole else None
    shape = (len(A), B.shape[1])
    rules = [(a, lambda g: (g.reshape(shape) @ B.T).reshape(a.dense.shape)),
             (b, lambda g: (A.T @ g.reshape(shape)).reshape(b.dense.shape))]  # fmt: skip
    return f"{a.name} @ {b.name}", np.asarray(a.dense @ b.dense), rules, mask


def transpose(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.dense.ndim != 2 or (a.sparse and a.value.dense_dim):
        return None
    return f"{a.name}.T", a.dense.T, [(a, lambda g: g.T)], a.mask.T if a.sparse else None


def permute(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    order = [int(d) for d in rng.permutation(a.dense.ndim)]
    if not order:
        return None
    back = np.argsort(order)
    return (f"{a.name}.permute({order})", a.dense.transpose(order),
            [(a, lambda g: g.transpose(back))])  # fmt: skip


def convert(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not a.sparse or a.value.sparse_dim != 2:
        return None
    return f"{a.name}.to('{FORMATS[rng.integers(3)]}')", a.dense, [(a, lambda g: g)], a.mask


def coalesce(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    return (f"{a.name}.coalesce()", a.dense, [(a, lambda g: g)], a.mask) if a.sparse else None


def densify(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    return (f"{a.name}.to_dense()", a.dense, [(a, lambda g: g)]) if a.sparse else None


def sparsify(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.sparse or a.dense.ndim == 0 or (np.abs(a.dense) < 1e-6).any():
        return None  # elements that are zero get no gradient: the dense oracle would give one
    fmt = FORMATS[rng.integers(3)] if a.dense.ndim == 2 else "coo"
    return f"{a.name}.to_sparse('{fmt}')", a.dense, [(a, lambda g: g)]


def reduce(name: str) -> Any:
    def op(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
        ndim = a.dense.ndim
        dims = (
            sorted(int(d) for d in rng.permutation(ndim)[: rng.integers(1, ndim + 1)])
            if ndim
            else []
        )
        axes = tuple(dims) or None
        keep = bool(rng.random() < 0.3)
        arg = f"dim={axes}, keepdim={keep}"
        if name == "mean" and (a.dense.size == 0 or 0 in a.dense.shape):
            return None
        fn = np.sum if name == "sum" else np.mean
        out = fn(a.dense, axis=axes, keepdims=keep)
        count = a.dense.size / max(1, out.size) if name == "mean" else 1

        def rule(g: np.ndarray) -> np.ndarray:
            if not keep and axes is not None:
                g = np.expand_dims(g, axes)
            return np.broadcast_to(g / count, a.dense.shape)

        return f"{a.name}.{name}({arg})", np.asarray(out), [(a, rule)]

    return op


def amax(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if narrow or a.dense.size == 0 or a.dense.ndim == 0:
        return None
    axis = int(rng.integers(a.dense.ndim))
    top = a.dense.max(axis, keepdims=True)
    hit = np.abs(a.dense - top) < 1e-6
    if (hit.sum(axis) != 1).any():
        return None
    return (f"sg.amax({a.name}, {axis})", a.dense.max(axis),
            [(a, lambda g: np.expand_dims(g, axis) * hit)])  # fmt: skip


def mask_with(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    b = partner(rng, pool, lambda v: v.sparse and v.mask.shape == a.dense.shape[: v.mask.ndim]
                and (not a.sparse or a.value.sparse_dim == v.value.sparse_dim))  # fmt: skip
    if b is None:
        return None
    inside = b.mask.reshape(b.mask.shape + (1,) * (a.dense.ndim - b.mask.ndim))
    return (f"sg.sparse_mask({a.name}, {b.name})", a.dense * inside,
            [(a, lambda g: g * inside)], b.mask)  # fmt: skip


def index_select(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.dense.ndim == 0:
        return None
    dim = int(rng.integers(a.dense.ndim))
    n = a.dense.shape[dim]
    ids = [int(i) for i in rng.integers(0, n, rng.integers(0, 6))] if n else []

    def rule(g: np.ndarray) -> np.ndarray:
        out = np.zeros(a.dense.shape)
        np.add.at(np.moveaxis(out, dim, 0), np.array(ids, int), np.moveaxis(g, dim, 0))
        return out

    return (f"sg.index_select({a.name}, {dim}, np.array({ids}, int))",
            a.dense.take(np.array(ids, int), dim), [(a, rule)])  # fmt: skip


def take_rows(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.sparse or a.dense.ndim == 0 or not len(a.dense):
        return None
    ids = [int(i) for i in rng.integers(0, len(a.dense), rng.integers(0, 6))]

    def rule(g: np.ndarray) -> np.ndarray:
        out = np.zeros(a.dense.shape)
        np.add.at(out, np.array(ids, int), g)
        return out

    return f"sg.take({a.name}, np.array({ids}, int))", a.dense[np.array(ids, int)], [(a, rule)]


def gather(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    """Elements along a dimension, with an element-sparse gradient or a dense one."""
    if a.sparse or not a.dense.size or not a.dense.ndim:
        return None
    dim = int(rng.integers(a.dense.ndim))
    shape = tuple(int(rng.integers(1, n + 1)) for n in a.dense.shape)
    ids = rng.integers(0, a.dense.shape[dim], shape)
    at = list(np.indices(shape))
    at[dim] = ids
    made = f"sg.tensor(np.array({ids.tolist()}, int))"
    code = f"sg.gather({a.name}, {dim}, {made}, sparse_grad={bool(rng.random() < 0.7)})"
    return code, a.dense[tuple(at)], [(a, moved(a, tuple(at)))]


def where(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    keep = rng.random(a.dense.shape[-2:]) < 0.6
    made = f"np.array({keep.tolist()}, bool).reshape({keep.shape})"
    mask = [a.mask] if a.sparse else []
    full = np.broadcast_to(keep, a.dense.shape)
    code = f"sg.where({made}, {a.name}, 0)"
    return code, a.dense * full, [(a, lambda g: g * full)], *mask


def expand(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    shape = tuple(int(rng.integers(1, 4)) if n == 1 else n for n in a.dense.shape)
    if not shape or (a.sparse and a.dense.ndim != a.value.sparse_dim):
        return None
    rule = lambda g: unbroadcast(g, a.dense.shape)
    return f"{a.name}.expand({shape})", np.broadcast_to(a.dense, shape), [(a, rule)]


def cat(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.dense.ndim == 0:
        return None
    dim = int(rng.integers(a.dense.ndim))

    def fits(v: Var) -> bool:
        s, t = list(v.dense.shape), list(a.dense.shape)
        if len(s) != len(t) or v.sparse != a.sparse or not same_split(a, v):
            return False
        s[dim] = t[dim] = 0
        return s == t

    b = partner(rng, pool, fits)
    n = a.dense.shape[dim]
    rules = [(a, lambda g: np.split(g, [n], dim)[0]), (b, lambda g: np.split(g, [n], dim)[1])]
    return f"sg.cat([{a.name}, {b.name}], {dim})", np.concatenate([a.dense, b.dense], dim), rules


def reshape(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.dense.ndim == 0:
        return None
    size, shape = a.dense.size, []
    for _ in range(rng.integers(0, 3)):
        options = [n for n in range(1, 7) if size and size % n == 0]
        if options:
            shape.append(int(rng.choice(options)))
            size //= shape[-1]
    shape.append(size)
    return (f"{a.name}.reshape({tuple(shape)})", a.dense.reshape(shape),
            [(a, lambda g: g.reshape(a.dense.shape))])  # fmt: skip


def norm(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    out = float(np.sqrt((a.dense**2).sum()))
    if out < 1e-3:
        return None
    return f"sg.norm({a.name})", np.asarray(out), [(a, lambda g: g * a.dense / out)]


def with_values(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not a.sparse:
        return None
    return (
        f"{a.name}.with_values({a.name}.values * 3.0)",
        a.dense * 3,
        [(a, lambda g: g * 3)],
        a.mask,
    )


def prune(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not a.sparse or a.value.dense_dim or (np.abs(np.abs(a.dense) - 0.5) < 1e-3).any():
        return None
    keep = np.abs(a.dense) > 0.5
    return f"sg.prune({a.name}, 0.5)", a.dense * keep, [(a, lambda g: g * keep)], keep


OPS: list[Any] = [
    unary("-{a}", np.negative, lambda d: -np.ones_like(d)),
    unary("{a} * 2.5", lambda d: d * 2.5, lambda d: np.full_like(d, 2.5)),
    unary("0.5 * {a} / 2", lambda d: d / 4, lambda d: np.full_like(d, 0.25)),
    unary("sg.tanh({a})", np.tanh, lambda d: 1 - np.tanh(d) ** 2),
    unary("{a} ** 2", np.square, lambda d: 2 * d),
    unary("sg.relu({a})", lambda d: np.maximum(d, 0), lambda d: d > 0, kink=True),
    unary("sg.abs({a})", np.abs, np.sign, kink=True),
    unary("{a}.clone()", np.copy, np.ones_like),
    *(sums(1), sums(1), sums(-1), mul, mul, div, matmul, matmul, matmul),
    *(transpose, transpose, permute, convert, convert, coalesce, densify, sparsify),
    *(reduce("sum"), reduce("mean"), amax, norm, mask_with),
    *(index_select, take_rows, take_rows, gather, where, expand, cat, reshape, with_values, prune),
]
