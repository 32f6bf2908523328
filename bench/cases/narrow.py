"""Sparse @ dense on 16-bit floats, and drawing random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from bench import peers
from bench.cases import OURS, Candidate, Variant
from bench.graphs import power_law
from bench.oracle import Expected

__all__ = ["Narrow", "Random"]

_SIZES = {
    "full": [(100_000, 1_500_000, 64), (169_000, 1_180_000, 128)],
    "quick": [(4_000, 60_000, 16)],
    "tiny": [(60, 300, 4)],
}
_DTYPES = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # and half a unit in the last place
_DRAWN = {"full": [10_000_000, 1_000_000], "quick": [100_000], "tiny": [1000]}


@lru_cache(maxsize=1)
def _problem(n: int, nnz: int, k: int) -> tuple[Any, np.ndarray]:
    """A matrix and x that 16 bits hold exactly."""
    rng = np.random.default_rng(1)
    matrix = power_law(n, nnz)
    matrix.data = rng.integers(-8, 9, nnz).astype(np.float32) / 8
    return matrix, rng.integers(-8, 9, (n, k)).astype(np.float32) / 8


class Narrow:
    """y = A @ x, all three in 16 bits, sums in float32."""

    name = "spmm-16"
    title = "Sparse @ dense, forward, 16-bit floats"
    threaded = True
    memory = True
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [
            {"label": f"{dtype}, {n:,}², nnz {nnz:,}, k {k}", "dtype": dtype, "sizes": [n, nnz, k]}
            for n, nnz, k in _SIZES[size]
            for dtype in _DTYPES
        ]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        matrix, x = _problem(*variant["sizes"])
        y = matrix.astype(np.float64) @ x.astype(np.float64)
        return {"y": Expected(y, abs(matrix) @ abs(x), 1.01 * _DTYPES[variant["dtype"]])}

    def candidates(self, variant: Variant) -> list[Candidate]:
        dtype, sizes = variant["dtype"], variant["sizes"]
        return [
            Candidate(OURS, lambda: _ours(dtype, *sizes), _ours_result, role="ours"),
            Candidate(
                "torch CSR int32 in float32, converted",
                lambda: _torch(dtype, *sizes),
                _torch_result,
                needs="torch",
            ),
            Candidate(
                f"{OURS} float32",
                lambda: _ours("float32", *sizes),
                _ours_result,
                role="reference",
            ),
        ]


def _ours_result(y: Any) -> dict[str, Any]:
    return {"y": y.float().numpy()}


def _torch_result(y: Any) -> dict[str, Any]:
    return {"y": y.float().numpy()}


def _ours(dtype: str, *sizes: int) -> Callable[[], Any]:
    import sparsegrad as sg

    matrix, x = _problem(*sizes)
    a = sg.csr(matrix.indptr, matrix.indices, matrix.data, matrix.shape).to(dtype)
    held = sg.from_numpy(x).to(dtype)
    return lambda: a @ held


def _torch(dtype: str, *sizes: int) -> Callable[[], Any]:
    """PyTorch has no such product on the CPU; who has 16 bits converts what changes each time."""
    import torch

    matrix, x = _problem(*sizes)
    a, held = peers.torch_csr(matrix, "int32"), torch.from_numpy(x).to(getattr(torch, dtype))
    return lambda: (a @ held.float()).to(held.dtype)


class Random:
    """Uniform and normal numbers, and dropout with its gradient, in float32."""

    name = "random"
    title = "Random numbers and dropout (forward + backward), float32"
    threaded = True
    memory = False
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [
            {"label": f"{what}, {n:,}", "what": what, "n": n}
            for n in _DRAWN[size]
            for what in ("uniform", "normal", "dropout")
        ]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        """Mean, and mean square."""
        exact = {"uniform": (0.5, 1 / 3), "normal": (0.0, 1.0), "dropout": (1.0, 2.0)}
        tolerance = 8 / np.sqrt(variant["n"])
        return {"moments": Expected(np.array(exact[variant["what"]]), 1.0, tolerance)}

    def candidates(self, variant: Variant) -> list[Candidate]:
        what, n = variant["what"], variant["n"]
        found = [
            Candidate(OURS, lambda: _our_draw(what, n), _moments, role="ours"),
            Candidate("torch", lambda: _torch_draw(what, n), _moments, needs="torch"),
        ]
        if what != "dropout":
            found.append(
                Candidate("NumPy Philox", lambda: _numpy_draw(what, n), _moments, role="reference")
            )
        return found


def _moments(drawn: Any) -> dict[str, Any]:
    x = np.asarray(drawn, dtype=np.float64)
    return {"moments": np.array([x.mean(), (x * x).mean()])}


def _our_draw(what: str, n: int) -> Callable[[], Any]:
    import sparsegrad as sg

    if what != "dropout":
        return lambda: (sg.rand if what == "uniform" else sg.randn)(n)
    x, g = sg.ones(n, requires_grad=True), sg.ones(n)
    return lambda: sg.grad(sg.dropout(x, 0.5), x, g)[0]


def _torch_draw(what: str, n: int) -> Callable[[], Any]:
    import torch

    if what != "dropout":
        return lambda: (torch.rand if what == "uniform" else torch.randn)(n)
    x, g = torch.ones(n, requires_grad=True), torch.ones(n)
    return lambda: torch.autograd.grad(torch.nn.functional.dropout(x, 0.5), x, g)[0]


def _numpy_draw(what: str, n: int) -> Callable[[], Any]:
    rng = np.random.Generator(np.random.Philox(0))
    draw = rng.random if what == "uniform" else rng.standard_normal
    return lambda: draw(n, dtype=np.float32)
