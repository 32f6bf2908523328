"""Sparse @ dense with most cells stored: through a dense temporary, and without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from bench.cases import OURS, Candidate, Variant
from bench.oracle import Expected

__all__ = ["NearlyFull"]

_SIZES = {
    "full": [(1000, 256), (1000, 512), (2000, 512)],
    "quick": [(1000, 256)],
    "tiny": [(40, 4)],
}
_STORED = 0.9


@lru_cache(maxsize=1)
def _problem(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((n, n), dtype=np.float32)
    dense[rng.random((n, n)) >= _STORED] = 0
    return dense, rng.standard_normal((n, k), dtype=np.float32)


class NearlyFull:
    """Y = A @ X, nine in ten cells of A stored."""

    name = "spmm-nearly-full"
    title = "SpMM of a nearly full matrix, float32"
    threaded = True
    memory = False
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [{"label": f"{n:,}², k {k}", "n": n, "k": k} for n, k in _SIZES[size]]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        a, x = (array.astype(np.float64) for array in _problem(variant["n"], variant["k"]))
        return {"y": Expected(a @ x, np.abs(a) @ np.abs(x))}

    def candidates(self, variant: Variant) -> list[Candidate]:
        def ours(threshold: float) -> Callable[[], Callable[[], Any]]:
            return lambda: _ours(*_problem(variant["n"], variant["k"]), threshold)

        return [
            Candidate(OURS, ours(0.2), _result, role="ours"),
            Candidate("auto_convert_threshold=0", ours(0.0), _result, role="reference"),
            Candidate("NumPy, dense", lambda: _dense(variant), _arrays, role="reference"),
        ]


def _ours(dense: np.ndarray, x: np.ndarray, threshold: float) -> Callable[[], Any]:
    import sparsegrad as sg

    a, x = sg.from_dense(dense, "csr"), sg.from_numpy(x)

    def step() -> Any:
        with sg.config(auto_convert_threshold=threshold):
            return a @ x

    return step


def _dense(variant: Variant) -> Callable[[], Any]:
    a, x = _problem(variant["n"], variant["k"])
    return lambda: a @ x


def _result(raw: Any) -> dict[str, Any]:
    return {"y": raw.numpy()}


def _arrays(raw: Any) -> dict[str, Any]:
    return {"y": raw}
