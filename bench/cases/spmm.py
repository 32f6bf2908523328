"""Sparse @ dense, forward alone and with both gradients, on generated power-law matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from bench import peers
from bench.cases import OURS, Candidate, Variant
from bench.graphs import power_law
from bench.machine import available_memory
from bench.oracle import Expected

__all__ = ["Backward", "Forward"]

_SIZES = {
    "full": [
        (100_000, 1_500_000, 64),
        (100_000, 1_500_000, 256),
        (169_000, 1_180_000, 128),
        (20_000, 200_000, 16),
    ],
    "quick": [(4_000, 60_000, 16)],
    "tiny": [(60, 300, 4)],
}


class Problem:
    """Inputs in float32, shared by all candidates of a size, and products in float64."""

    def __init__(self, n: int, nnz: int, k: int) -> None:
        self.matrix = power_law(n, nnz)
        rng = np.random.default_rng(1)
        self.x = rng.standard_normal((n, k), dtype=np.float32)
        self.g = rng.standard_normal((n, k), dtype=np.float32)  # upstream gradient
        self._y: Expected | None = None

    def y(self) -> Expected:
        if self._y is None:
            self._y = _product(self.matrix, self.x)
        return self._y

    def dx(self) -> Expected:
        return _product(self.matrix.T.tocsr(), self.g)

    def da(self) -> Expected:
        """Gradient of every stored value, in CSR order."""
        matrix, chunk = self.matrix, 1 << 16
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        value = np.empty(matrix.nnz)
        for start in range(0, matrix.nnz, chunk):
            part = slice(start, start + chunk)
            g, x = self.g[rows[part]], self.x[matrix.indices[part]]
            value[part] = np.einsum("ek,ek->e", g, x, dtype=np.float64)
        lengths = (np.linalg.norm(a.astype(np.float64), axis=1) for a in (self.g, self.x))
        of_g, of_x = lengths
        return Expected(value, of_g[rows] * of_x[matrix.indices])  # Cauchy-Schwarz


def _product(matrix: Any, x: np.ndarray) -> Expected:
    return Expected(matrix.astype(np.float64) @ x.astype(np.float64), abs(matrix) @ abs(x))


@lru_cache(maxsize=1)
def problem(n: int, nnz: int, k: int) -> Problem:
    """The inputs of a size; the latest are kept, for the next case and thread count."""
    return Problem(n, nnz, k)


def _of(variant: Variant) -> Problem:
    return problem(variant["n"], variant["nnz"], variant["k"])


class _Spmm:
    threaded = True
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [
            {"label": f"{n:,}², nnz {nnz:,}, k {k}", "n": n, "nnz": nnz, "k": k}
            for n, nnz, k in _SIZES[size]
        ]


# ---- forward -----------------------------------------------------------------------------------
class Forward(_Spmm):
    """Y = A @ X."""

    name = "spmm"
    title = "SpMM forward, float32"
    memory = False

    def traffic(self, variant: Variant) -> int:
        """Bytes of a product that reads a row of X for every entry."""
        n, nnz, row = variant["n"], variant["nnz"], 4 * variant["k"]
        return nnz * (8 + row) + n * (4 + row)

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        return {"y": _of(variant).y()}

    def candidates(self, variant: Variant) -> list[Candidate]:
        p = partial(_of, variant)

        def torch_result(raw: Any) -> dict[str, Any]:
            return {"y": raw.numpy()}

        def torch(name: str, multiply: Callable[[], Callable[[], Any]]) -> Candidate:
            return Candidate(name, multiply, torch_result, needs="torch")

        return [
            Candidate(OURS, lambda: _ours(p()), lambda y: {"y": y.numpy()}, role="ours"),
            Candidate("SciPy CSR", lambda: _scipy(p()), lambda y: {"y": y}, needs="scipy"),
            torch("torch CSR int32", lambda: _torch_csr(p(), "int32", "mm")),
            torch("torch CSR int64", lambda: _torch_csr(p(), "int64", "mm")),
            torch("torch CSR int32, reduce", lambda: _torch_csr(p(), "int32", "reduce")),
            torch("torch CSR int64, reduce", lambda: _torch_csr(p(), "int64", "reduce")),
            torch("torch COO", lambda: _torch_coo(p())),
            Candidate("JAX BCOO", lambda: _jax(p()), lambda y: {"y": y}, needs="jax"),
        ]


def _ours(p: Problem) -> Callable[[], Any]:
    import sparsegrad as sg

    a, x = sg.from_scipy(p.matrix), sg.from_numpy(p.x)
    return lambda: a @ x


def _scipy(p: Problem) -> Callable[[], Any]:
    return lambda: p.matrix @ p.x


def _torch_csr(p: Problem, index: str, product: str) -> Callable[[], Any]:
    import torch

    a, x = peers.torch_csr(p.matrix, index), torch.from_numpy(p.x)
    if product == "reduce":
        return lambda: torch.sparse.mm(a, x, "sum")
    return lambda: a @ x


def _torch_coo(p: Problem) -> Callable[[], Any]:
    import torch

    a, x = peers.torch_coo(p.matrix), torch.from_numpy(p.x)
    return lambda: a @ x


def _jax(p: Problem) -> Callable[[], Any]:
    import jax

    a, x = peers.jax_bcoo(p.matrix), jax.numpy.asarray(p.x)
    multiply = jax.jit(lambda a, x: a @ x)
    return lambda: multiply(a, x).block_until_ready()


# ---- forward and both gradients ----------------------------------------------------------------
class Backward(_Spmm):
    """Y = A @ X, then the gradients of A's values and of X for a given gradient of Y."""

    name = "spmm-grad"
    title = "SpMM forward + both gradients, float32"
    memory = True

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        p = _of(variant)
        return {"y": p.y(), "dx": p.dx(), "da": p.da()}

    def candidates(self, variant: Variant) -> list[Candidate]:
        p = partial(_of, variant)
        found = [Candidate(OURS, lambda: _ours_grad(p()), _ours_result, role="ours")]
        for index in ("int32", "int64"):
            for product in ("mm", "reduce"):
                make = partial(_by_hand, p, index, product)
                name = f"torch by hand, CSR {index}" + ", reduce" * (product == "reduce")
                found.append(Candidate(name, make, _torch_result, needs="torch"))
        found.append(
            Candidate(
                "torch.sparse.mm",
                lambda: _torch_plain(p()),
                _torch_result,
                needs="torch",
                skip=_too_large(variant),
            )
        )
        found.append(
            Candidate("JAX BCOO", lambda: _jax_grad(p()), _arrays, needs="jax", skip=_rows(variant))
        )
        return found


def _too_large(variant: Variant) -> str | None:
    """Its backward forms the dense gradient of A, n × n, and a copy."""
    need = 2 * 4 * variant["n"] ** 2
    if need < available_memory() // 2:
        return None
    return f"backward forms the dense {variant['n']:,}² gradient: {need / 2**30:.0f} GiB"


def _rows(variant: Variant) -> str | None:
    """JAX gathers a row of X for every entry."""
    need = 4 * 4 * variant["nnz"] * variant["k"]
    return None if need < available_memory() // 2 else f"needs {need / 2**30:.0f} GiB"


def _ours_grad(p: Problem) -> Callable[[], Any]:
    import sparsegrad as sg

    a = sg.from_scipy(p.matrix, requires_grad=True)
    x = sg.tensor(p.x, requires_grad=True)
    g = sg.from_numpy(p.g)

    def step() -> Any:
        y = a @ x
        return (y, *sg.grad(y, [a, x], g))

    return step


def _ours_result(raw: Any) -> dict[str, Any]:
    y, da, dx = raw
    return {"y": y.detach().numpy(), "da": da.values.numpy(), "dx": dx.numpy()}


def _by_hand(p: Callable[[], Problem], index: str, product: str) -> Callable[[], Any]:
    import torch

    multiply = peers.torch_by_hand(p().matrix, index, product)
    values = torch.from_numpy(p().matrix.data.copy()).requires_grad_()
    x, g = torch.from_numpy(p().x.copy()).requires_grad_(), torch.from_numpy(p().g)

    def step() -> Any:
        y = multiply(values, x)
        return (y, *torch.autograd.grad(y, [values, x], g))

    return step


def _torch_plain(p: Problem) -> Callable[[], Any]:
    import torch

    a = peers.torch_coo(p.matrix).requires_grad_()
    x, g = torch.from_numpy(p.x.copy()).requires_grad_(), torch.from_numpy(p.g)

    def step() -> Any:
        y = torch.sparse.mm(a, x)
        return (y, *torch.autograd.grad(y, [a, x], g))

    return step


def _torch_result(raw: Any) -> dict[str, Any]:
    y, da, dx = raw
    if da.is_sparse:
        da = da.coalesce().values()
    return {"y": y.detach().numpy(), "da": da.numpy(), "dx": dx.numpy()}


def _jax_grad(p: Problem) -> Callable[[], Any]:
    import jax
    from jax.experimental import sparse

    a, x, g = peers.jax_bcoo(p.matrix), jax.numpy.asarray(p.x), jax.numpy.asarray(p.g)

    @jax.jit
    def step(values: Any, x: Any, g: Any) -> Any:
        def product(values: Any, x: Any) -> Any:
            made = (values, a.indices)
            flags = {"indices_sorted": True, "unique_indices": True}
            return sparse.BCOO(made, shape=a.shape, **flags) @ x

        y, pull = jax.vjp(product, values, x)
        return (y, *pull(g))

    return lambda: jax.block_until_ready(step(a.data, x, g))


def _arrays(raw: Any) -> dict[str, Any]:
    return dict(zip(("y", "da", "dx"), map(np.asarray, raw), strict=True))
