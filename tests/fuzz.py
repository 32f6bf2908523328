"""Random chains of ops over random patterns, forward and backward, against dense float64.

    python tests/fuzz.py --n 10000 --seed 0

A chain makes sparse and dense leaves (duplicates, unsorted, empty, explicit zeros, hybrid, any
number of dimensions, every format), applies random ops, and compares every result, the entries
that are stored, and every gradient with a tape of dense NumPy arrays. Some steps are hostile: wrong
shapes, dtypes, indices and kinds of argument, huge shapes. They may succeed, or be refused with an
error of sparsegrad, TypeError, ValueError or IndexError that begins with the name of what refused;
anything else but a MemoryError is a failure. A failure is shrunk and printed as a program.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import sparsegrad as sg
from sparsegrad.sparse_tensor import SparseTensor

FORMATS = ("coo", "csr", "csc")
LEGAL = (sg.SparsegradError, TypeError, ValueError, IndexError)
NAMED = re.compile(r"^[A-Za-z_]\w*([.\[(][^:]*)?: ")
HOSTILE = 0.25  # share of steps that are hostile
LIMIT = 1e4  # chains stop where numbers grow beyond it


class Mismatch(AssertionError):
    """A result, a pattern or a gradient that is not that of the dense oracle."""


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


class Chain:
    """One chain; `keep` chooses the steps that are run (for shrinking)."""

    def __init__(self, seed: int, number: int, keep: list[int] | None = None) -> None:
        self.seed, self.number, self.keep = seed, number, keep
        rng = np.random.default_rng([seed, number])
        self.length = int(rng.integers(1, 9))
        self.backend = ("reference", "cpu", "cpu_jit")[rng.integers(3)]
        self.narrow = rng.random() < 0.2  # float32 leaves
        self.tol = 3e-3 if self.narrow else 1e-8
        self.sizes = rng.integers(0 if rng.random() < 0.2 else 1, 6, 3)
        self.vars: list[Var] = []
        self.lines: list[str] = []
        self.env: dict[str, Any] = {"sg": sg, "np": np, "inf": math.inf, "nan": math.nan}
        self.steps = 0

    def run(self) -> None:
        with sg.config(backend=self.backend, densify="record"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for step in range(self.length):
                if self.keep is not None and step not in self.keep:
                    continue
                rng = np.random.default_rng([self.seed, self.number, step])
                if rng.random() < HOSTILE:
                    self.hostile(rng)
                elif len(self.vars) < 2 or rng.random() < 0.25:
                    self.add_leaf(rng)
                else:
                    for _ in range(8):
                        if self.apply(rng):
                            break
                self.steps += 1
            self.backward(np.random.default_rng([self.seed, self.number, 1000]))

    # ---- leaves --------------------------------------------------------------------------------
    def add_leaf(self, rng: np.random.Generator) -> None:
        name = f"v{len(self.vars)}"
        dims = int(rng.choice([1, 2, 2, 2, 2, 2, 3]))
        shape = tuple(int(n) for n in rng.choice(self.sizes, dims))
        dtype = "f4" if self.narrow else "f8"
        if rng.random() < 0.25:
            data = rng.standard_normal(shape).round(3).astype(dtype)
            made = f"np.array({data.tolist()}, '{dtype}').reshape({shape})"
            code = f"sg.tensor({made}, requires_grad=True)"
            self.store(name, code, data.astype(float), leaf=True)
            return
        tail = (2,) if rng.random() < 0.15 else ()
        cells = math.prod(shape)
        nnz = int(rng.integers(0, cells + 1)) if cells else 0
        flat = rng.permutation(cells)[:nnz] if nnz else np.zeros(0, int)
        if nnz and rng.random() < 0.4:  # duplicates
            flat = rng.choice(flat, nnz + int(rng.integers(0, 5)))
        if rng.random() < 0.3:
            flat = np.sort(flat)
        coords = np.stack(np.unravel_index(flat, shape)) if cells else np.zeros((dims, 0), int)
        values = rng.standard_normal((coords.shape[1], *tail)).round(3).astype(dtype)
        if rng.random() < 0.3:
            values[rng.random(len(values)) < 0.3] = 0
        dense = np.zeros((*shape, *tail))
        np.add.at(dense, tuple(coords), values)
        made = f"np.array({values.tolist()}, '{dtype}').reshape({values.shape})"
        ids = f"np.array({coords.tolist()}, int).reshape({coords.shape})"
        code = f"sg.coo({ids}, {made}, {(*shape, *tail)}"
        fmt = FORMATS[rng.integers(3)] if dims == 2 else "coo"
        code += f").to('{fmt}').detach().requires_grad_()"
        self.store(name, code, dense, leaf=True)

    def store(self, name: str, code: str, dense: np.ndarray, parents: Any = (),
              leaf: bool = False, mask: np.ndarray | None = None) -> None:  # fmt: skip
        self.lines.append(f"{name} = {code}")
        value = eval(code, self.env)
        self.env[name] = value
        found = value.to_dense() if isinstance(value, SparseTensor) else value
        compare(f"{name}: forward", found.detach().numpy(), dense, self.tol)
        var = Var(name, value, np.asarray(dense, float), list(parents), leaf)
        if isinstance(value, SparseTensor):
            value.check_invariants()
            if mask is not None and not np.array_equal(var.mask, mask):
                raise Mismatch(f"{name}: stored entries {var.mask.tolist()}, not {mask.tolist()}")
            listed = value.coalesce().pattern.coords
            order = listed[::-1] if value.format == "csc" else listed
            cells = list(zip(*(c.tolist() for c in order), strict=True))
            if cells != sorted(set(cells)):
                raise Mismatch(f"{name}: coalesce gives {cells}")
        self.vars.append(var)

    # ---- ops: expression, dense result, gradients ----------------------------------------------
    def apply(self, rng: np.random.Generator) -> bool:
        op = OPS[rng.integers(len(OPS))]
        a = self.vars[rng.integers(len(self.vars))]
        made = op(rng, a, self.vars, self.narrow)
        if made is None:
            return False
        code, dense, parents, mask = (*made, None)[:4]
        if (
            not np.all(np.isfinite(dense))
            or np.abs(dense).max(initial=0) > LIMIT
            or dense.size > 4000
        ):
            return False
        self.store(f"v{len(self.vars)}", code, dense, parents, mask=mask)
        return True

    # ---- backward ------------------------------------------------------------------------------
    def backward(self, rng: np.random.Generator) -> None:
        leaves = [v for v in self.vars if v.leaf]
        inner = [v for v in self.vars if not v.leaf and v.value.requires_grad]
        if not inner:
            return
        outputs = [inner[-1]] + ([inner[rng.integers(len(inner))]] if rng.random() < 0.3 else [])
        cotangents: dict[int, np.ndarray] = {}
        upstream = []
        for i, v in enumerate(outputs):
            g = rng.standard_normal(v.dense.shape)
            if v.sparse:
                inside = v.mask.reshape(v.mask.shape + (1,) * (g.ndim - v.mask.ndim))
                cotangents[id(v)] = cotangents.get(id(v), 0) + g * inside
            else:
                cotangents[id(v)] = cotangents.get(id(v), 0) + g
            given: Any = sg.Tensor(g)
            if v.sparse and rng.random() < 0.5:
                given = given.to_sparse(dense_dims=v.value.dense_dim)
            self.env[f"g{i}"] = given
            data = f"np.array({g.tolist()}).reshape({g.shape})"
            tail = ""
            if isinstance(given, SparseTensor):
                tail = f".to_sparse(dense_dims={v.value.dense_dim})"
            self.lines.append(f"g{i} = sg.Tensor({data}){tail}")
            upstream.append(f"g{i}")
        names = ", ".join(v.name for v in leaves)
        call = (
            f"sg.grad([{', '.join(v.name for v in outputs)}], [{names}], [{', '.join(upstream)}], "
            "allow_unused=True)"
        )
        self.lines.append(f"grads = {call}")
        for v in reversed(self.vars):
            g = cotangents.get(id(v))
            if g is not None:
                for parent, rule in v.parents:
                    cotangents[id(parent)] = cotangents.get(id(parent), 0) + rule(g)
        found = eval(call, self.env)
        for v, g in zip(leaves, found, strict=True):
            want = np.broadcast_to(cotangents.get(id(v), 0.0), v.dense.shape)
            if g is None:
                compare(f"gradient of {v.name} (None)", np.zeros(v.dense.shape), want, self.tol)
                continue
            if g.dtype != v.value.dtype or g.shape != v.value.shape:
                raise Mismatch(f"gradient of {v.name}: {g.dtype} {g.shape}")
            if v.sparse:
                mask = v.mask.reshape(v.mask.shape + (1,) * (want.ndim - v.mask.ndim))
                if g.nnz > v.value.nnz:
                    raise Mismatch(f"gradient of {v.name} has more entries than {v.name}")
                want = want * mask
            g = g.to_dense() if isinstance(g, SparseTensor) else g
            scale = 30 if self.narrow else 1
            compare(f"gradient of {v.name}", g.detach().numpy(), want, self.tol * scale)

    # ---- what should be refused ----------------------------------------------------------------
    def hostile(self, rng: np.random.Generator) -> None:
        code = hostile_call(rng, self.vars)
        self.lines.append(code)
        try:
            result = eval(code, self.env)
            if isinstance(result, SparseTensor):
                result.check_invariants()
                repr(result)
        except MemoryError:
            pass  # arrays of 10^12 rows: refused by the allocator, nothing broken
        except LEGAL as error:
            if not NAMED.match(str(error)):
                raise Mismatch(
                    f"refused without a name: {type(error).__name__}: {error}"
                ) from error


def compare(what: str, found: np.ndarray, want: np.ndarray, tol: float) -> None:
    want = np.asarray(want)
    if found.shape != want.shape:
        raise Mismatch(f"{what}: shape {found.shape}, not {want.shape}")
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    if not np.allclose(found, want, rtol=tol, atol=tol * scale):
        raise Mismatch(f"{what}:\n{found.tolist()}\nnot\n{want.tolist()}")


# ---- ops ---------------------------------------------------------------------------------------
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
    if a.dense.ndim != 2 or (a.sparse and a.value.dense_dim):
        return None
    b = partner(rng, pool, lambda v: v.dense.ndim in (1, 2) and len(v.dense) == a.dense.shape[1]
                and not (v.sparse and (v.value.dense_dim or v.dense.ndim == 1)))  # fmt: skip
    if b is None:
        return None
    A, B = a.dense, b.dense
    mask = (a.mask.astype(int) @ b.mask.astype(int)) > 0 if a.sparse and b.sparse else None
    if B.ndim == 1:
        rules = [(a, lambda g: np.outer(g, B)), (b, lambda g: A.T @ g)]
    else:
        rules = [(a, lambda g: g @ B.T), (b, lambda g: A.T @ g)]
    return f"{a.name} @ {b.name}", A @ B, rules, mask


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


def masked_softmax(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if (
        not a.sparse
        or a.value.sparse_dim != 2
        or a.value.dense_dim
        or np.abs(a.dense).max(initial=0) > 20
    ):
        return None
    axis, mask = int(rng.integers(2)), a.mask
    e = np.where(mask, np.exp(a.dense), 0)
    total = e.sum(axis, keepdims=True)
    p = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    return (f"sg.softmax({a.name}, {axis})", p,
            [(a, lambda g: p * (g - (p * g).sum(axis, keepdims=True)))], mask)  # fmt: skip


def mask_with(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    b = partner(rng, pool, lambda v: v.sparse and v.mask.shape == a.dense.shape[: v.mask.ndim]
                and (not a.sparse or a.value.sparse_dim == v.value.sparse_dim))  # fmt: skip
    if b is None:
        return None
    inside = b.mask.reshape(b.mask.shape + (1,) * (a.dense.ndim - b.mask.ndim))
    return (f"sg.sparse_mask({a.name}, {b.name})", a.dense * inside,
            [(a, lambda g: g * inside)], b.mask)  # fmt: skip


def sddmm(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.sparse or a.dense.ndim != 2:
        return None
    b = partner(rng, pool, lambda v: not v.sparse and v.dense.ndim == 2
                and v.dense.shape[1] == a.dense.shape[1])  # fmt: skip
    at = b and partner(rng, pool, lambda v: v.sparse and v.value.pattern.shape
                       == (len(a.dense), len(b.dense)) and v.value.is_coalesced)  # fmt: skip
    if not at:
        return None
    mask = at.mask
    return (f"sg.sddmm({a.name}, {b.name}, {at.name})", (a.dense @ b.dense.T) * mask,
            [(a, lambda g: (g * mask) @ b.dense), (b, lambda g: (g * mask).T @ a.dense)],
            mask)  # fmt: skip


def getitem(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.dense.ndim == 0:
        return None
    parts: list[Any] = []
    arrays = 0
    for n in a.dense.shape:
        kind = rng.integers(6)
        if kind == 0 and n:
            parts.append(int(rng.integers(-n, n)))
        elif kind == 1 and n and not arrays and not any(isinstance(p, int) for p in parts):
            parts.append([int(i) for i in rng.integers(-n, n, rng.integers(1, 5))])
            arrays += 1
        elif kind == 2:
            parts.append(slice(None))
        else:
            step = int(rng.choice([1, 1, 2, -1, -2]))
            start, stop = (int(i) for i in rng.integers(-n - 1, n + 2, 2))
            parts.append(slice(start, stop, step))
    if arrays and any(isinstance(p, int) for p in parts):
        return None
    index = tuple(parts)
    if a.sparse and a.value.dense_dim and arrays:
        return None

    def rule(g: np.ndarray) -> np.ndarray:
        out = np.zeros(a.dense.shape)
        np.add.at(out, index, g)
        return out

    shown = ", ".join(
        repr(p) if not isinstance(p, slice) else f"slice({p.start}, {p.stop}, {p.step})"
        for p in parts
    )
    return f"{a.name}[{shown},]", np.asarray(a.dense[index]), [(a, rule)]


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
    if (a.sparse and a.value.dense_dim) or a.dense.ndim == 0:
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


def diagonal(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.dense.ndim != 2 or (a.sparse and a.value.dense_dim):
        return None
    m, n = a.dense.shape

    def rule(g: np.ndarray) -> np.ndarray:
        out = np.zeros((m, n))
        np.fill_diagonal(out, g) if min(m, n) else None
        return out

    return f"sg.diagonal({a.name})", np.diagonal(a.dense), [(a, rule)]


def block_diag(rng: Any, a: Var, pool: Any, narrow: bool) -> Any:
    if a.dense.ndim != 2 or not a.sparse or a.value.dense_dim:
        return None
    (m, n), D = a.dense.shape, a.dense
    out = np.block([[D, np.zeros((m, n))], [np.zeros((m, n)), D]])
    return f"sg.block_diag({a.name}, {a.name})", out, [(a, lambda g: g[:m, :n] + g[m:, n:])]


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
    *(reduce("sum"), reduce("mean"), amax, norm, masked_softmax, mask_with, sddmm),
    *(getitem, getitem, index_select, take_rows, cat, reshape, with_values, prune),
    *(diagonal, block_diag),
]


# ---- hostile calls -----------------------------------------------------------------------------
THINGS = [
    "None", "'csr'", "1.5", "-3", "2", "nan", "True", "[]", "[[1.0, 2.0], [3.0]]", "object()",
    "np.ones((2, 3))", "np.ones((0, 2))", "np.array('x')", "np.array([1, 2], object)", "1j",
    "sg.ones(3)", "sg.ones(2, 2, 2)", "sg.tensor(2.0)", "sg.zeros(0, 3)", "sg.tensor([1, 2, 3])",
    "sg.tensor([True, False])", "sg.tensor([1j, 2.0])", "sg.ones(2, 2, dtype=sg.float16)",
    "sg.coo([[0, 999999]] * 2, [1.0, 2.0], (10**6, 10**6))",
    "sg.coo([[0, 999999]] * 4, [1.0, 2.0], (10**6,) * 4)",
    "sg.coo([[0, 10**12]] * 2, [1.0, 2.0], (10**12 + 1, 10**12 + 1))",
    "sg.coo([[0, 1, 1]] * 2, [1, 2, 3], (2, 2))", "sg.coo([[0, 1, 1]] * 2, None, (2, 3))",
    "sg.coo([[], []], [], (0, 5))", "sg.coo([[1], [1]], [True], (2, 2))",
    "sg.coo([[1, 0]], [1.0, nan], (2,))", "sg.csr([0, 1, 2], [1, 0], [1j, 2.0], (2, 2))",
    "sg.csr([0, 2, 2], [1, 0], [[1.0, 2.0], [3.0, 4.0]], (2, 2, 2))",
    "sg.csc([0, 2, 2], [1, 1], np.ones(2, 'f2'), (2, 2))", "sg.sparse_eye(3, 2, 'csc')",
]  # fmt: skip
DIMS = ["None", "0", "1", "-1", "5", "-7", "(0, 0)", "(0, 1)", "()", "'a'", "1.5", "[0]"]
INDICES = ["0", "-1", "99", "None", "...", "(..., ...)", "'a'", "1.5", "[0, 99]", "[0.5]", "[]",
           "slice(None, None, 0)", "(0, 0, 0, 0, 0)", "np.array([True])", "sg.tensor([0, -1])",
           "[[0], [0, 1]]", "slice(1.5, 2)", "(slice(None), [0, 0])", "True",
           "sg.ones(2)"]  # fmt: skip
SHAPES = ["(-1,)", "(2, -1, -1)", "(0,)", "(7, 13)", "'ab'", "None", "(1.5, 2)", "()", "(-2, 3)",
          "(10**20,)", "(2, 0, -1)"]  # fmt: skip
LISTS = ["[0, 1]", "[0, 5]", "[1, -1]", "[0.5, 1.0]", "[[0, 1]]", "[]", "None", "'ab'", "[2**40]",
         "[True, False]", "[0, 1, 2, 3]", "np.array([0, 3, 1], 'u8')", "5",
         "[None, 1]"]  # fmt: skip
BINARY = ["add", "sub", "mul", "div", "matmul", "spmm", "spgemm", "pow", "maximum", "minimum", "eq",
          "lt", "sparse_mask", "take", "embedding", "segment_sum", "segment_softmax", "nll_loss",
          "cross_entropy", "spsolve", "set_diagonal", "block_diag"]  # fmt: skip
UNARY = ["neg", "exp", "log", "sqrt", "tanh", "sigmoid", "relu", "abs", "clone", "coalesce",
         "to_sparse", "prune", "drop_zeros", "symmetrize", "row_normalize", "gcn_norm", "diag",
         "diagonal", "ones_like", "zeros_like", "norm", "add_self_loops", "remove_self_loops",
         "from_scipy", "sum", "mean", "amax", "squeeze"]  # fmt: skip
UNARY = [name for name in UNARY if hasattr(sg, name)]
ALONG = ["sum", "mean", "amax", "amin", "prod", "norm", "softmax", "log_softmax", "logsumexp",
         "squeeze", "unsqueeze", "max"]  # fmt: skip


def hostile_call(rng: np.random.Generator, pool: list[Var]) -> str:
    def one(options: Any) -> str:
        return str(options[rng.integers(len(options))])

    def thing() -> str:
        return one([v.name for v in pool]) if pool and rng.random() < 0.4 else one(THINGS)

    def tensor() -> str:
        sure = [t for t in THINGS if t.startswith("sg.")]
        return one([v.name for v in pool]) if pool and rng.random() < 0.4 else one(sure)

    kind = rng.integers(12)
    if kind <= 2:
        return f"sg.{one(BINARY)}({thing()}, {thing()})"
    if kind == 3:
        return f"sg.{one(UNARY)}({thing()})"
    if kind == 4:
        name = one(ALONG)
        extra = f", {one(DIMS)}" if name == "norm" else ""
        return f"sg.{name}({tensor()}{', 2' if extra else ''}, {one(DIMS)})"
    if kind == 5:
        return f"({tensor()})[{one(INDICES)}]"
    if kind == 6:
        return f"sg.{one(['reshape', 'permute', 'expand'])}({tensor()}, {one(SHAPES)})"
    if kind == 7:
        make = one(["sg.csr", "sg.csc"])
        return f"{make}({one(LISTS)}, {one(LISTS)}, {one(LISTS)}, {one(['(2, 2)', *SHAPES])})"
    if kind == 8:
        return f"sg.coo([{one(LISTS)}, {one(LISTS)}], {one(LISTS)}, {one(['(2, 2)', *SHAPES])})"
    if kind == 9:
        return f"sg.{one(['cat', 'stack'])}([{thing()}, {thing()}], {one(DIMS)})"
    if kind == 10:
        call = one(["sg.sddmm", "sg.spgemm_masked", "sg.sampled_addmm", "sg.addmm"])
        return f"{call}({thing()}, {thing()}, {thing()})"
    if rng.random() < 0.5:
        return f"sg.index_select({tensor()}, {one(DIMS)}, {one(LISTS)})"
    return f"sg.top_k({tensor()}, {one(['-1', '0', '1', '99', '1.5', 'None'])}, {one(DIMS)})"


# ---- running -----------------------------------------------------------------------------------
def outcome(
    seed: int, number: int, keep: list[int] | None = None
) -> tuple[Chain, Exception | None]:
    chain = Chain(seed, number, keep)
    try:
        chain.run()
    except Exception as error:
        return chain, error
    return chain, None


def shrink(seed: int, number: int, error: Exception) -> tuple[Chain, Exception]:
    """The fewest steps that still fail in the same way."""
    chain, _ = outcome(seed, number)
    keep = list(range(chain.length))
    best = outcome(seed, number)
    for step in reversed(range(chain.length)):
        fewer = [s for s in keep if s != step]
        shorter, found = outcome(seed, number, fewer)
        if type(found) is type(error):
            keep, best = fewer, (shorter, found)
    return best  # type: ignore[return-value]


def report(seed: int, number: int, error: Exception) -> str:
    chain, error = shrink(seed, number, error)
    trace = "".join(traceback.format_exception(error)[-3:]).strip().replace("\n", "\n# ")
    program = "\n".join(chain.lines)
    return (
        f"# chain {number} of seed {seed}: {type(error).__name__}\n"
        "from math import inf, nan\nimport numpy as np\nimport sparsegrad as sg\n"
        f"sg.config.backend = {chain.backend!r}\n{program}\n# {trace}"
    )


def fuzz(n: int, seed: int, first: int = 0, stop_after: int = 10) -> tuple[list[str], int]:
    """Failures as programs, and the number of steps that were run."""
    failures: list[str] = []
    steps = 0
    for number in range(first, first + n):
        chain, error = outcome(seed, number)
        steps += chain.steps
        if error is not None:
            failures.append(report(seed, number, error))
            if len(failures) >= stop_after:
                break
    return failures, steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000, help="number of chains")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first chain")
    parser.add_argument("--stop-after", type=int, default=10, help="failures")
    args = parser.parse_args()
    faulthandler.enable()
    start = time.perf_counter()
    failures, steps = fuzz(args.n, args.seed, args.first, args.stop_after)
    for text in failures:
        print(text, "\n")
    print(f"{args.n} chains, {steps} steps, {time.perf_counter() - start:.0f} s: "
          f"{len(failures)} failures")  # fmt: skip
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
