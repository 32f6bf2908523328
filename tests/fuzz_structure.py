"""Random ops for the fuzzer that change a pattern: chosen entries, diagonals, shapes, indexing."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz_ops import Var, moved, partner, same_split
from fuzz_sparse import APART, counts, distinct, fold, matrix

__all__ = ["OPS"]


# ---- fewer entries -----------------------------------------------------------------------------
def top_k(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not a.sparse or a.value.dense_dim or narrow:
        return None
    by = str(rng.choice(["magnitude", "value"]))
    key = np.abs(a.dense) if by == "magnitude" else a.dense
    if not distinct(key[a.mask]):
        return None
    k = int(rng.integers(0, 5))
    dim = int(rng.integers(2)) if a.dense.ndim == 2 and rng.random() < 0.6 else None
    rank = np.where(a.mask, -key, np.inf)
    order = rank.argsort(axis=dim).argsort(axis=dim) if dim is not None else (
        rank.argsort(axis=None).argsort().reshape(rank.shape))  # fmt: skip
    keep = a.mask & (order < k)
    code = f"sg.top_k({a.name}, {k}, {dim}, '{by}')"
    return code, a.dense * keep, [(a, lambda g: g * keep)], keep


def drop_zeros(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not a.sparse or a.value.dense_dim or not a.leaf:
        return None
    zero = a.dense == 0
    if (np.abs(a.dense)[~zero] < APART).any() or (zero & (counts(a) > 1)).any():
        return None
    keep = a.mask & ~zero
    return f"sg.drop_zeros({a.name})", a.dense * keep, [(a, lambda g: g * keep)], keep


# ---- diagonals ---------------------------------------------------------------------------------
def diagonal(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.dense.ndim != 2 or (a.sparse and a.value.dense_dim):
        return None
    m, n = a.dense.shape
    k = int(rng.integers(-m, n + 1))
    on = np.eye(m, n, k, dtype=bool)

    def rule(g: np.ndarray) -> np.ndarray:
        out = np.zeros((m, n))
        out[on] = g
        return out

    return f"sg.diagonal({a.name}, {k})", a.dense[on], [(a, rule)]


def set_diagonal(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not matrix(a):
        return None
    m, n = a.dense.shape
    k = int(rng.integers(-m, n + 1))
    on = np.eye(m, n, k, dtype=bool)
    out = a.dense * ~on
    rules: list[Any] = [(a, lambda g: g * ~on)]
    v = partner(rng, pool, lambda v: not v.sparse and v.dense.shape == (on.sum(),))
    if v is not None:
        out[on] = v.dense
        rules.append((v, lambda g: g[on]))
    else:
        out[on] = 1.5
    made = v.name if v is not None else 1.5
    return f"sg.set_diagonal({a.name}, {made}, {k})", out, rules, a.mask | on


def triangle(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.dense.ndim != 2 or (a.sparse and a.value.dense_dim):
        return None
    k, name = int(rng.integers(-3, 4)), str(rng.choice(["tril", "triu"]))
    keep = getattr(np, name)(np.ones(a.dense.shape, bool), k)
    mask = [a.mask & keep] if a.sparse else []
    return f"sg.{name}({a.name}, {k})", a.dense * keep, [(a, lambda g: g * keep)], *mask


# ---- joining, shapes ---------------------------------------------------------------------------
def stack(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not a.dense.ndim:
        return None
    b = partner(rng, pool, lambda v: v.dense.shape == a.dense.shape and v.sparse == a.sparse
                and same_split(a, v))  # fmt: skip
    if b is None:
        return None
    dim = int(rng.integers(a.dense.ndim + 1))
    rules = [(v, lambda g, i=i: g.take(i, dim)) for i, v in enumerate((a, b))]
    return f"sg.stack([{a.name}, {b.name}], {dim})", np.stack([a.dense, b.dense], dim), rules


def block_diag(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not matrix(a):
        return None
    b = partner(rng, pool, matrix)
    (m, n), D, E = a.dense.shape, a.dense, b.dense
    out = np.block([[D, np.zeros((m, E.shape[1]))], [np.zeros((len(E), n)), E]])
    rules = [(a, lambda g: g[:m, :n]), (b, lambda g: g[m:, n:])]
    return f"sg.block_diag({a.name}, {b.name})", out, rules


def unsqueeze(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    dim = int(rng.integers(a.dense.ndim + 1))
    out = np.expand_dims(a.dense, dim)
    return f"{a.name}.unsqueeze({dim})", out, [(a, lambda g: g.squeeze(dim))]


def plus_dense(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    """Sparse + dense, broadcast either way."""

    def fits(v: Var) -> bool:
        if v.sparse or v.dense.ndim > a.dense.ndim or not v.dense.ndim:
            return False
        try:
            np.broadcast_shapes(a.dense.shape, v.dense.shape)
        except ValueError:
            return False
        return True

    b = partner(rng, pool, fits) if a.sparse else None
    if b is None:
        return None
    sign = int(rng.choice([1, -1]))
    rules = [(a, lambda g: fold(g, a.dense.shape)), (b, lambda g: sign * fold(g, b.dense.shape))]
    code = f"{a.name} {'+' if sign > 0 else '-'} {b.name}"
    return code, a.dense + sign * b.dense, rules


# ---- indexing ----------------------------------------------------------------------------------
def getitem(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    """Integers, arrays that broadcast, slices and None, on sparse and dense dimensions."""
    if a.dense.ndim == 0:
        return None
    parts: list[Any] = []
    length = int(rng.integers(0, 4))
    for n in a.dense.shape:
        kind = rng.integers(7)
        if kind == 0 and n:
            parts.append(int(rng.integers(-n, n)))
        elif kind in (1, 2) and n:
            size = 1 if kind == 2 and rng.random() < 0.2 else length
            parts.append([int(i) for i in rng.integers(-n, n, size)])
        elif kind == 3:
            parts.append(slice(None))
        else:
            step = int(rng.choice([1, 1, 2, -1, -2]))
            start, stop = (int(i) for i in rng.integers(-n - 1, n + 2, 2))
            parts.append(slice(start, stop, step))
    if rng.random() < 0.15:
        parts = parts[: rng.integers(len(parts) + 1)]
    if rng.random() < 0.15:
        parts.insert(rng.integers(len(parts) + 1), None)
    index = tuple(np.array(p, int) if isinstance(p, list) else p for p in parts)
    shown = ", ".join(
        f"np.array({p}, int)" if isinstance(p, list)
        else repr(p) if not isinstance(p, slice) else f"slice({p.start}, {p.stop}, {p.step})"
        for p in parts
    )  # fmt: skip
    return (
        f"{a.name}[({shown}{',' * bool(parts)})]",
        np.asarray(a.dense[index]),
        [(a, moved(a, index))],
    )


def masked(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    """A boolean mask over the leading dimensions."""
    if a.dense.ndim == 0:
        return None
    count = int(rng.integers(1, a.dense.ndim + 1))
    mask = rng.random(a.dense.shape[:count]) < 0.5
    code = f"{a.name}[np.array({mask.tolist()}, bool).reshape({mask.shape})]"
    return code, a.dense[mask], [(a, moved(a, mask))]


OPS: list[Any] = [
    *(top_k, drop_zeros),
    *(diagonal, set_diagonal, triangle, stack, block_diag, unsqueeze, plus_dense),
    *(getitem, getitem, masked),
]  # fmt: skip
