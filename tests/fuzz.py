"""Random chains of ops over random patterns, forward and backward, against dense float64.

    python tests/fuzz.py --n 10000 --seed 0

A chain makes sparse and dense leaves (duplicates, unsorted, empty, explicit zeros, hybrid, any
number of dimensions, every format), applies random ops, and compares every result, the entries
that are stored, and every gradient with a tape of dense NumPy arrays, and second derivatives with
finite differences of that tape's gradients. Some steps are hostile: wrong shapes, dtypes, indices
and kinds of argument, huge shapes. They may succeed, or be refused with an
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
from typing import Any

import numpy as np

import fuzz_ops
import fuzz_sparse
import fuzz_structure
import sparsegrad as sg
from fuzz_hostile import hostile_call
from fuzz_ops import FORMATS, Var
from sparsegrad.sparse_tensor import SparseTensor

LEGAL = (sg.SparsegradError, TypeError, ValueError, IndexError)
NAMED = re.compile(r"^[A-Za-z_]\w*([.\[(][^:]*)?: ")
HOSTILE = 0.25  # share of steps that are hostile
OPS = [*fuzz_ops.OPS, *fuzz_sparse.OPS, *fuzz_structure.OPS]
EPS = 1e-6
LIMIT = 1e4  # chains stop where numbers grow beyond it


class Mismatch(AssertionError):
    """A result, a pattern or a gradient that is not that of the dense oracle."""


class Chain:
    """One chain; `keep` chooses the steps that are run (for shrinking), `shift` moves the leaves in
    a random direction."""

    def __init__(
        self, seed: int, number: int, keep: list[int] | None = None, shift: float = 0.0
    ) -> None:
        self.seed, self.number, self.keep, self.shift = seed, number, keep, shift
        rng = np.random.default_rng([seed, number])
        self.length = int(rng.integers(4, 17))
        self.backend = ("reference", "cpu", "cpu_jit")[rng.integers(3)]
        self.narrow = rng.random() < 0.2  # float32 leaves
        self.tol = 3e-3 if self.narrow else 1e-8
        self.twice = not self.narrow and rng.random() < 0.4  # second derivatives
        self.sizes = rng.integers(0 if rng.random() < 0.2 else 1, 6, rng.integers(1, 4))
        self.vars: list[Var] = []
        self.lines: list[str] = []
        self.env: dict[str, Any] = {"sg": sg, "np": np, "inf": math.inf, "nan": math.nan}
        self.steps = 0
        self.codes: list[str] = []  # ops, in their order
        self.along: list[np.ndarray] = []  # direction in which each leaf is moved
        self.slope = 0.0  # gradients of the leaves by the oracle, times random weights

    def run(self) -> None:
        with sg.config(backend=self.backend, densify="record"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for step in range(self.length):
                if self.keep is not None and step not in self.keep:
                    continue
                rng = np.random.default_rng([self.seed, self.number, step])
                if rng.random() < HOSTILE:
                    self.hostile(rng)
                elif len(self.vars) < 3 or rng.random() < 0.15:
                    self.add_leaf(rng)
                else:
                    for _ in range(16):
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
        if rng.random() < 0.35:
            data = rng.standard_normal(shape).round(3).astype(dtype)
            data = self.moved(data, lambda d: d)
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

        def full(values: np.ndarray) -> np.ndarray:
            dense = np.zeros((*shape, *tail))
            np.add.at(dense, tuple(coords), values)
            return dense

        values = self.moved(values, full)
        dense = full(values)
        made = f"np.array({values.tolist()}, '{dtype}').reshape({values.shape})"
        ids = f"np.array({coords.tolist()}, int).reshape({coords.shape})"
        code = f"sg.coo({ids}, {made}, {(*shape, *tail)}"
        fmt = FORMATS[rng.integers(3)] if dims == 2 else "coo"
        code += f").to('{fmt}').detach().requires_grad_()"
        self.store(name, code, dense, leaf=True)

    def moved(self, data: np.ndarray, full: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """A leaf's numbers moved by `shift`; zeros stay, many ops have a kink there."""
        rng = np.random.default_rng([self.seed, self.number, 2000, len(self.along)])
        step = rng.standard_normal(data.shape) * (data != 0)
        self.along.append(full(step))
        return (data + self.shift * step).astype(data.dtype) if self.shift else data

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
        some = rng.permutation(len(self.vars))
        made = next(
            filter(None, (op(rng, self.vars[i], self.vars, self.narrow) for i in some)), None
        )
        if made is None:
            return False
        code, dense, parents, mask = (*made, None)[:4]
        if (
            not np.all(np.isfinite(dense))
            or np.abs(dense).max(initial=0) > LIMIT
            or dense.size > 4000
        ):
            return False
        self.codes.append(code)
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
            f"allow_unused=True{', create_graph=True' if self.twice else ''})"
        )
        self.lines.append(f"grads = {call}")
        for v in reversed(self.vars):
            g = cotangents.get(id(v))
            if g is not None:
                for parent, rule in v.parents:
                    cotangents[id(parent)] = cotangents.get(id(parent), 0) + rule(g)
        found = self.env["grads"] = eval(call, self.env)
        for v, g in zip(leaves, found, strict=True):
            want = np.broadcast_to(cotangents.get(id(v), 0.0), v.dense.shape)
            if v.sparse:
                want = want * v.mask.reshape(v.mask.shape + (1,) * (want.ndim - v.mask.ndim))
            if g is None:
                compare(f"gradient of {v.name} (None)", np.zeros(v.dense.shape), want, self.tol)
                continue
            if g.dtype != v.value.dtype or g.shape != v.value.shape:
                raise Mismatch(f"gradient of {v.name}: {g.dtype} {g.shape}")
            if v.sparse and g.nnz > v.value.nnz:
                raise Mismatch(f"gradient of {v.name} has more entries than {v.name}")
            g = g.to_dense() if isinstance(g, SparseTensor) else g
            scale = 30 if self.narrow else 1
            compare(f"gradient of {v.name}", g.detach().numpy(), want, self.tol * scale)
        if self.twice:
            self.second(leaves, found, cotangents)

    def second(self, leaves: list[Var], grads: Any, cotangents: dict[int, np.ndarray]) -> None:
        """The gradient of the weighted gradients, along the direction in which leaves are moved,
        against a finite difference of the oracle's gradients."""
        terms, size = [], 1.0
        for i, (v, g) in enumerate(zip(leaves, grads, strict=True)):
            weight = np.random.default_rng([self.seed, self.number, 3000, i]).standard_normal(
                v.dense.shape
            )
            want = np.broadcast_to(cotangents.get(id(v), 0.0), v.dense.shape) * weight
            if v.sparse:
                want = want * v.mask.reshape(v.mask.shape + (1,) * (want.ndim - v.mask.ndim))
            self.slope += float(want.sum())
            size += float(np.abs(want).sum())
            if g is not None and g.requires_grad:
                self.env[f"w{i}"] = sg.Tensor(weight)
                made = f"sg.Tensor(np.array({weight.tolist()}).reshape({weight.shape}))"
                self.lines.append(f"w{i} = {made}")
                terms.append(f"(grads[{i}] * w{i}).sum()")
        if self.shift:
            return
        found = 0.0
        if terms:
            names = ", ".join(v.name for v in leaves)
            call = f"sg.grad({' + '.join(terms)}, [{names}], allow_unused=True)"
            self.lines.append(f"second = {call}")
            for v, g, step in zip(leaves, eval(call, self.env), self.along, strict=True):
                if g is not None:
                    g = g.to_dense() if isinstance(g, SparseTensor) else g
                    if g.shape != v.dense.shape:
                        raise Mismatch(f"second derivative of {v.name}: shape {g.shape}")
                    found += float((g.detach().numpy() * step).sum())
        both = [Chain(self.seed, self.number, self.keep, shift) for shift in (EPS, -EPS)]
        for chain in both:
            chain.run()
            if chain.codes != self.codes:
                return  # a step was left out there: too close to a kink
        want = (both[0].slope - both[1].slope) / (2 * EPS)
        if abs(found - want) > 1e-4 * max(size, abs(found), abs(want)):
            raise Mismatch(f"second derivative: {found}, not {want}")

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
