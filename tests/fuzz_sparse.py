"""Random ops for the fuzzer: sparse products, solvers, graphs, over stored entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz_ops import Var, partner, same_split

__all__ = ["OPS"]

APART = 1e-4  # numbers closer than this may be in another order in the engine


def matrix(v: Var) -> bool:
    return v.sparse and v.value.sparse_dim == 2 and not v.value.dense_dim


def square(v: Var) -> bool:
    return matrix(v) and v.dense.shape[0] == v.dense.shape[1]


def counts(v: Var) -> np.ndarray:
    """How often each cell is stored."""
    out = np.zeros(v.value.pattern.shape)
    np.add.at(out, tuple(v.value.pattern.coords), 1)
    return out


def distinct(keys: np.ndarray) -> bool:
    return bool((np.diff(np.sort(keys, axis=None)) > APART).all())


# ---- products ----------------------------------------------------------------------------------
def spmm_reduce(reduce: str) -> Any:
    def op(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
        if not matrix(a) or narrow:
            return None
        b = partner(rng, pool, lambda v: not v.sparse and v.dense.ndim in (1, 2)
                    and len(v.dense) == a.dense.shape[1])  # fmt: skip
        if b is None:
            return None
        A, mask = a.dense, a.mask
        X = b.dense if b.dense.ndim == 2 else b.dense[:, None]
        count = mask.sum(1)
        terms = A[:, :, None] * X[None]
        if reduce == "mean":
            won = np.broadcast_to((mask / np.maximum(count, 1)[:, None])[:, :, None], terms.shape)
        else:
            sign = 1 if reduce == "max" else -1
            rank = np.where(mask[:, :, None], sign * terms, -np.inf)
            best = rank.max(1, initial=-np.inf, keepdims=True)
            won = (rank > best - APART) & mask[:, :, None]
            if (won.sum(1) > 1).any():
                return None  # a tie
        out = (won * terms).sum(1)
        shape = (len(A), *b.dense.shape[1:])

        def to_a(g: np.ndarray) -> np.ndarray:
            return np.einsum("mk,mnk,nk->mn", g.reshape(out.shape), won, X)

        def to_b(g: np.ndarray) -> np.ndarray:
            return np.einsum("mk,mnk,mn->nk", g.reshape(out.shape), won, A).reshape(b.dense.shape)

        code = f"sg.spmm({a.name}, {b.name}, '{reduce}')"
        return code, out.reshape(shape), [(a, to_a), (b, to_b)]

    return op


def batch_matmul(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    """A batch of matrices, or a shared one, with a batch of dense ones, or a shared one."""
    if not a.sparse or a.value.dense_dim or a.value.sparse_dim not in (2, 3):
        return None
    *lead, _, n = a.dense.shape
    b = partner(rng, pool, lambda v: not v.sparse and (
        (v.dense.ndim == 3 and v.dense.shape[1] == n and list(v.dense.shape[:1]) in (lead, [1])
         and lead) or (v.dense.ndim in (1, 2) and len(v.dense) == n and lead)
        or (v.dense.ndim == 3 and v.dense.shape[1] == n and not lead)))  # fmt: skip
    if b is None:
        return None
    A, B = a.dense, b.dense if b.dense.ndim > 1 else b.dense[:, None]
    out = A @ B

    def back(g: np.ndarray) -> np.ndarray:
        return g.reshape(out.shape)

    def to_b(g: np.ndarray) -> np.ndarray:
        return fold(A.swapaxes(-1, -2) @ back(g), B.shape).reshape(b.dense.shape)

    rules = [(a, lambda g: fold(back(g) @ B.swapaxes(-1, -2), A.shape)), (b, to_b)]
    return f"{a.name} @ {b.name}", out if b.dense.ndim > 1 else out[..., 0], rules


def fold(g: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    g = g.sum(tuple(range(g.ndim - len(shape))))
    return g.sum(tuple(i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1), keepdims=True)


def heads(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    """Hybrid values (nnz, h) with x (n, h, k)."""
    if not a.sparse or a.value.sparse_dim != 2 or a.value.dense_dim != 1:
        return None
    n, h = a.dense.shape[1:]
    b = partner(rng, pool, lambda v: not v.sparse and v.dense.ndim == 2 and len(v.dense) == n)
    if b is None:
        return None
    k = b.dense.shape[1]
    code = f"sg.spmm({a.name}, {b.name}.reshape({n}, 1, {k}).expand({n}, {h}, {k}))"
    rules = [(a, lambda g: np.einsum("mhk,nk->mnh", g, b.dense)),
             (b, lambda g: np.einsum("mhk,mnh->nk", g, a.dense))]  # fmt: skip
    return code, np.einsum("mnh,nk->mhk", a.dense, b.dense), rules


def spgemm_masked(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not matrix(a):
        return None
    b = partner(rng, pool, lambda v: matrix(v) and len(v.dense) == a.dense.shape[1])
    at = b and partner(rng, pool, lambda v: matrix(v)
                       and v.dense.shape == (len(a.dense), b.dense.shape[1]))  # fmt: skip
    if not at:
        return None
    times = counts(at)
    rules = [(a, lambda g: (g * times) @ b.dense.T), (b, lambda g: a.dense.T @ (g * times))]
    code = f"sg.spgemm_masked({a.name}, {b.name}, {at.name})"
    return code, (a.dense @ b.dense) * times, rules, at.mask


def sddmm(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.sparse or a.dense.ndim != 2:
        return None
    b = partner(rng, pool, lambda v: not v.sparse and v.dense.ndim == 2
                and v.dense.shape[1] == a.dense.shape[1])  # fmt: skip
    at = b and partner(rng, pool, lambda v: matrix(v)
                       and v.dense.shape == (len(a.dense), len(b.dense)))  # fmt: skip
    if not at:
        return None
    times = counts(at)
    alpha, beta = (1, 0) if rng.random() < 0.5 else (-1.5, float(rng.choice([0, 1, 0.5])))
    rules = [(a, lambda g: alpha * (g * times) @ b.dense),
             (b, lambda g: alpha * (g * times).T @ a.dense), (at, lambda g: beta * g)]  # fmt: skip
    out = alpha * (a.dense @ b.dense.T) * times + beta * at.dense
    extra = "" if (alpha, beta) == (1, 0) else f", {alpha}, {beta}"
    return f"sg.sddmm({a.name}, {b.name}, {at.name}{extra})", out, rules, at.mask


def addmm(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not matrix(a):
        return None
    b = partner(rng, pool, lambda v: not v.sparse and v.dense.ndim == 2
                and len(v.dense) == a.dense.shape[1])  # fmt: skip
    c = b and partner(rng, pool, lambda v: not v.sparse and v.dense.ndim in (1, 2)
                      and v.dense.shape[-1] in (1, b.dense.shape[1])
                      and (v.dense.ndim == 1 or len(v.dense) in (1, len(a.dense))))  # fmt: skip
    if not c:
        return None
    rules = [(a, lambda g: 2 * g @ b.dense.T), (b, lambda g: 2 * a.dense.T @ g),
             (c, lambda g: 0.5 * fold(g, c.dense.shape))]  # fmt: skip
    code = f"sg.addmm({c.name}, {a.name}, {b.name}, beta=0.5, alpha=2)"
    return code, 0.5 * c.dense + 2 * a.dense @ b.dense, rules


# ---- solvers -----------------------------------------------------------------------------------
def solve(name: str) -> Any:
    """x of (c A + w I) x = b, which is well conditioned; symmetric for cg."""

    def op(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
        if not square(a) or narrow:
            return None
        b = partner(rng, pool, lambda v: not v.sparse and v.dense.ndim in (1, 2)
                    and len(v.dense) == len(a.dense))  # fmt: skip
        if b is None:
            return None
        D = a.dense
        both = D + D.T
        size = 1 + np.abs(D).sum(1).max(initial=0) + np.abs(D).sum(0).max(initial=0)
        c = 0.5 ** int(np.ceil(np.log2(size)))  # the same when D moves a little
        S = D if name != "cg" else both
        M = c * S + 2 * np.eye(len(D))
        made = a.name if name != "cg" else f"sg.symmetrize({a.name})"
        made = f"sg.add_self_loops({made} * {c}, 2.0)"
        extra, lower, flip, unit = "", True, False, False
        if name in ("cg", "bicgstab", "gmres"):
            extra = ", rtol=1e-13"
        elif name == "triangular_solve":
            lower, flip, unit = (bool(x) for x in rng.random(3) < 0.5)
            extra = f", {lower}, {flip}, {unit}"
        part = np.ones_like(M)
        if name == "triangular_solve":
            part = np.tril(part) if lower else np.triu(part)
            part -= np.eye(len(M)) if unit else 0
            M = M * part + (np.eye(len(M)) if unit else 0)
        T = M.T if flip else M
        B = b.dense if b.dense.ndim == 2 else b.dense[:, None]
        out = np.linalg.solve(T, B) if B.size else np.zeros(B.shape)

        def to_b(g: np.ndarray) -> np.ndarray:
            g = g.reshape(B.shape)
            return np.linalg.solve(T.T, g) if g.size else g

        def to_a(g: np.ndarray) -> np.ndarray:
            dT = -to_b(g) @ out.T
            dM = c * (dT.T if flip else dT) * part * a_pattern
            return dM + dM.T if name == "cg" else dM

        a_pattern = a.mask | a.mask.T if name == "cg" else a.mask
        code = f"sg.{name}({made}, {b.name}{extra})"
        return (
            code,
            out.reshape(b.dense.shape),
            [(a, to_a), (b, lambda g: to_b(g).reshape(b.dense.shape))],
        )

    return op


# ---- graphs ------------------------------------------------------------------------------------
def symmetrize(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not square(a):
        return None
    D, mask = a.dense, a.mask
    reduce = str(rng.choice(["sum", "mean", "max"]))
    code = f"sg.symmetrize({a.name}, '{reduce}')"
    if reduce != "max":
        scale = 1 if reduce == "sum" else 0.5
        return code, scale * (D + D.T), [(a, lambda g: scale * (g + g.T))], mask | mask.T
    twice = mask & mask.T & ~np.eye(len(D), dtype=bool)
    if narrow or (np.abs(D - D.T)[twice] < APART).any():
        return None
    won = mask & (~mask.T | (D > D.T) | np.eye(len(D), dtype=bool))
    out = np.where(won, D, 0) + np.where(won.T & ~won, D.T, 0)
    return code, out, [(a, lambda g: g * won + (g * (won.T & ~won)).T)], mask | mask.T


def gcn_norm(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not square(a):
        return None
    loops = bool(rng.random() < 0.6)
    S = a.dense + (np.eye(len(a.dense)) if loops else 0)
    degree = S.sum(1)
    if (np.abs(degree) < 0.3).any() and len(degree):
        return None
    positive = degree > 0
    s = np.where(positive, np.maximum(degree, 0.1) ** -0.5, 0)

    def rule(g: np.ndarray) -> np.ndarray:
        ds = (g * S) @ s + (g * S).T @ s
        return (g * np.outer(s, s) + (-0.5 * ds * s**3)[:, None]) * a.mask

    mask = a.mask | np.eye(len(S), dtype=bool) if loops else a.mask
    return f"sg.gcn_norm({a.name}, {loops})", S * np.outer(s, s), [(a, rule)], mask


def row_normalize(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not matrix(a):
        return None
    D, sums = a.dense, a.dense.sum(1, keepdims=True)
    if (np.abs(sums)[a.mask.any(1)] < 0.3).any():
        return None
    safe = np.where(sums == 0, 1, sums)
    inv = np.where(sums == 0, 0, 1 / safe)

    def rule(g: np.ndarray) -> np.ndarray:
        return (g * inv - (g * D).sum(1, keepdims=True) * inv**2) * a.mask

    return f"sg.row_normalize({a.name})", D * inv, [(a, rule)], a.mask


def loops(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    eye = np.eye(*a.dense.shape[:2], dtype=bool) if matrix(a) else None
    if eye is None:
        return None
    if rng.random() < 0.5:
        keep = ~eye
        code = f"sg.remove_self_loops({a.name})"
        return code, a.dense * keep, [(a, lambda g: g * keep)], a.mask & keep
    if not square(a):
        return None
    code = f"sg.add_self_loops({a.name}, 0.5)"
    return code, a.dense + 0.5 * eye, [(a, lambda g: g)], a.mask | eye


# ---- over stored entries -----------------------------------------------------------------------
def over_entries(name: str) -> Any:
    def op(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
        if not a.sparse or a.value.dense_dim or np.abs(a.dense).max(initial=0) > 20:
            return None
        axis, mask = int(rng.integers(a.dense.ndim)), a.mask
        e = np.where(mask, np.exp(a.dense), 0)
        total = e.sum(axis, keepdims=True)
        p = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
        log = np.log(np.where(total > 0, total, 1))
        code = f"sg.{name}({a.name}, {axis})"
        if name == "logsumexp":
            left = mask.any(axis) if a.dense.ndim > 2 else None
            return (code, log.squeeze(axis), [(a, lambda g: np.expand_dims(g, axis) * p)],
                    *([] if left is None else [left]))  # fmt: skip
        if name == "log_softmax":
            out = np.where(mask, a.dense - log, 0)
            return (code, out, [(a, lambda g: g * mask - p * (g * mask).sum(axis, keepdims=True))],
                    mask)  # fmt: skip
        return code, p, [(a, lambda g: p * (g - (p * g).sum(axis, keepdims=True)))], mask

    return op


def dense_softmax(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.sparse or not a.dense.ndim or not a.dense.size or np.abs(a.dense).max() > 20:
        return None
    axis = int(rng.integers(a.dense.ndim))
    name = str(rng.choice(["softmax", "log_softmax", "logsumexp"]))
    e = np.exp(a.dense)
    total = e.sum(axis, keepdims=True)
    p, code = e / total, f"sg.{name}({a.name}, {axis})"
    if name == "logsumexp":
        rule = lambda g: np.expand_dims(g, axis) * p
        return code, np.log(total).squeeze(axis), [(a, rule)]
    if name == "log_softmax":
        return code, a.dense - np.log(total), [(a, lambda g: g - p * g.sum(axis, keepdims=True))]
    return code, p, [(a, lambda g: p * (g - (p * g).sum(axis, keepdims=True)))]


def prod(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not a.dense.ndim or not a.dense.size:
        return None
    axis = int(rng.integers(a.dense.ndim))
    x = np.moveaxis(a.dense, axis, -1)
    n = x.shape[-1]
    others = np.where(np.eye(n, dtype=bool), 1, x[..., None, :]).prod(-1)

    def rule(g: np.ndarray) -> np.ndarray:
        return np.moveaxis(g[..., None] * others, -1, axis)

    return f"sg.prod({a.name}, {axis})", np.asarray(x.prod(-1)), [(a, rule)]


def norm_along(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not a.dense.ndim:
        return None
    axis = int(rng.integers(a.dense.ndim))
    out = np.sqrt((a.dense**2).sum(axis, keepdims=True))
    if ((out < 1e-2) & (out != 0)).any():
        return None
    inv = np.where(out == 0, 0, 1 / np.where(out == 0, 1, out))
    rule = lambda g: np.expand_dims(g, axis) * a.dense * inv
    return f"sg.norm({a.name}, 2, {axis})", out.squeeze(axis), [(a, rule)]


def stored_mean(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if not a.sparse or a.value.dense_dim:
        return None
    axis = int(rng.integers(a.dense.ndim))
    count = np.maximum(a.mask.sum(axis, keepdims=True), 1)
    rule = lambda g: np.expand_dims(g, axis) / count * a.mask
    out = (a.dense / count).sum(axis)
    return f"sg.mean({a.name}, {axis}, include_zeros=False)", np.asarray(out), [(a, rule)]


def larger(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    """The larger or the smaller of two sparse tensors, absent entries counted as 0."""
    if not a.sparse or narrow:
        return None
    b = partner(rng, pool, lambda v: v.sparse and v.dense.shape == a.dense.shape
                and v is not a and same_split(a, v))  # fmt: skip
    if b is None:
        return None
    either = a.mask | b.mask
    inside = either.reshape(*either.shape, *(1,) * (a.dense.ndim - either.ndim))
    if (np.abs(a.dense - b.dense)[np.broadcast_to(inside, a.dense.shape)] < APART).any():
        return None
    name = str(rng.choice(["maximum", "minimum"]))
    first = a.dense > b.dense if name == "maximum" else a.dense < b.dense
    rules = [(a, lambda g: g * (first & inside)), (b, lambda g: g * (~first & inside))]
    return f"sg.{name}({a.name}, {b.name})", np.where(first, a.dense, b.dense), rules, either


OPS: list[Any] = [
    *(spmm_reduce("mean"), spmm_reduce("max"), spmm_reduce("min"), batch_matmul, heads),
    *(spgemm_masked, spgemm_masked, sddmm, sddmm, addmm),
    *(solve("spsolve"), solve("triangular_solve"), solve("cg"), solve("bicgstab"), solve("gmres")),
    *(symmetrize, gcn_norm, row_normalize, loops),
    *(over_entries("softmax"), over_entries("log_softmax"), over_entries("logsumexp")),
    *(dense_softmax, prod, norm_along, stored_mean, larger),
]  # fmt: skip
