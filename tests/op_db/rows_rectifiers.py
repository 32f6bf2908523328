# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of activations that are clamped, shrunk or gated."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase
from op_db.samples import *  # noqa: F403


def apart(d: Draw) -> Any:
    """Away from the kinks at 0, ±0.5, ±1, ±3 and 6."""
    for shape in ((3, 4), (), (0, 2)):
        x = d.rng.choice([-4.3, -2.1, -0.8, -0.3, 0.2, 0.7, 1.4, 3.6, 7.2], shape)
        yield (x + d.dense(*shape, low=-0.05, high=0.05),), {}


def elu(x: Any, alpha: float = 1) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


REFS = {
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardshrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "softshrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    "tanhshrink": lambda x: x - np.tanh(x),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "celu": elu,
    "selu": lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
}

ROWS = [
    *(OpCase(name, getattr(sg, name), ref, apart) for name, ref in REFS.items()),
    *(OpCase(f"{name}[sparse]", getattr(sg, name), REFS[name], one_sparse, formats=FORMATS)
      for name in ("hardtanh", "softshrink", "tanhshrink")),
    OpCase("celu[alpha]", lambda x: sg.celu(x, 2.0), lambda x: 2 * elu(x / 2), apart, errors=(
        (lambda: sg.celu(sg.ones(2), 0.0), ValueError, "celu: alpha must be > 0, got 0"),
        (lambda: sg.softshrink(sg.ones(2), -1.0), ValueError, "softshrink: lambd must be >= 0, got -1.0"))),
    OpCase("threshold", lambda x: sg.threshold(x, 0.5, 9.0), lambda x: np.where(x > 0.5, x, 9), apart),
    OpCase("prelu", sg.prelu, lambda x, w: np.where(x > 0, x, w * x), lambda d: iter([((d.away(3, 4), d.dense(1)), {}), ((d.away(3, 4), d.dense(4)), {}), ((d.away(3), d.dense(1)), {})]), errors=(
        (lambda: sg.prelu(sg.ones(2, 3), sg.ones(2)), sg.ShapeError, r"prelu: expected weight \(1,\) or \(3,\) for x of shape \(2, 3\), got \(2,\)"),)),
    OpCase("prelu[channels]", sg.prelu, lambda x, w: np.where(x > 0, x, w[:, None] * x), lambda d: iter([((d.away(2, 3, 4), d.dense(3)), {})])),
    OpCase("glu", lambda x: sg.glu(x, 1), lambda x: x[:, :3] * sigmoid(x[:, 3:]), lambda d: iter([((d.dense(2, 6),), {}), ((d.dense(0, 6),), {})]), errors=(
        (lambda: sg.glu(sg.ones(2, 3)), sg.ShapeError, r"glu: needs an even size in dim -1, got shape \(2, 3\)"),)),
    OpCase("softmin", lambda x: sg.softmin(x, 1), lambda x: ref_softmax(-x, 1), lambda d: iter([((d.dense(2, 6),), {})])),
]  # fmt: skip
