"""What an open `sg.profile()` adds to an op: a chain of 100 small ones, with it and without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.cases import OURS, Candidate, Variant
from bench.oracle import Expected

__all__ = ["Profile"]

_OPS = 100
_ROWS, _ENTRIES, _WIDTH = 50, 200, 4


class Profile:
    """`h * w` on 16 elements, and `A @ x` with 200 entries."""

    name = "profile"
    title = f"{_OPS} small ops, float32: without a profile, in one, and in one that is read"
    threaded = False
    memory = False
    per = _OPS

    def variants(self, size: str) -> list[Variant]:
        return [{"label": "h * w, 16 elements"}, {"label": f"A @ x, {_ENTRIES} entries"}]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        h, w, A, x = _inputs()
        dense = np.zeros((_ROWS, _ROWS))
        np.add.at(dense, tuple(A), 1.0)
        want = h.astype(np.float64) * w if "h * w" in variant["label"] else dense @ x
        return {"y": Expected(want, 1.0, 1e-4)}

    def candidates(self, variant: Variant) -> list[Candidate]:
        def make(wrapped: Callable[[Callable[[], Any]], Any]) -> Callable[[], Callable[[], Any]]:
            chain = _chain(variant)
            return lambda: lambda: wrapped(chain)

        result = lambda raw: {"y": raw.numpy()}
        return [
            Candidate(OURS, make(lambda chain: chain()), result, role="ours"),
            Candidate("in a profile", make(_profiled), result, role="reference"),
            Candidate("in a profile, read", make(_read), result, role="reference"),
        ]


def _inputs() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    h, w = rng.standard_normal((2, 16)).astype(np.float32)
    where = rng.integers(0, _ROWS, (2, _ENTRIES))
    return h, w, where, rng.standard_normal((_ROWS, _WIDTH)).astype(np.float32)


def _chain(variant: Variant) -> Callable[[], Any]:
    import sparsegrad as sg

    h, w, where, x = _inputs()
    ones = np.ones(_ENTRIES, np.float32)
    left, right = (
        (sg.tensor(h), sg.tensor(w))
        if "h * w" in variant["label"]
        else (sg.coo(where, ones, (_ROWS, _ROWS)).to("csr"), sg.tensor(x))
    )
    op = sg.mul if "h * w" in variant["label"] else sg.matmul

    def run() -> Any:
        for _ in range(_OPS):
            out = op(left, right)
        return out

    return run


def _profiled(chain: Callable[[], Any]) -> Any:
    import sparsegrad as sg

    with sg.profile():
        return chain()


def _read(chain: Callable[[], Any]) -> Any:
    import sparsegrad as sg

    with sg.profile() as prof:
        out = chain()
    assert prof.ops
    return out
