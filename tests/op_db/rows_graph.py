# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of matrices as graphs: symmetric ones, normalisation by degrees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase, Sample, Sparse
from op_db.samples import *  # noqa: F403
from sparsegrad.ops import sparse_graph as G
from sparsegrad.structure.plan_loops import with_loops

# Of primitives: whether rows are scaled, or rows and columns, or also of A + I.
DEGREES = ("row", "both", "loops")


def ref_gcn_norm(a: np.ndarray) -> np.ndarray:
    a = a + np.eye(len(a))
    degree = a.sum(1)
    scale = np.where(degree > 0, np.maximum(degree, 1e-30) ** -0.5, 0)
    return a * scale[:, None] * scale


def ref_row_normalize(a: np.ndarray) -> np.ndarray:
    sums = a.sum(1, keepdims=True)
    return np.divide(a, sums, out=np.zeros_like(a), where=sums != 0)


def ref_symmetrize_max(a: Sparse) -> np.ndarray:
    low = np.where(a.mask(), a.dense(), -np.inf)
    both = np.maximum(low, low.T)
    return np.where(np.isinf(both), 0, both)


def degrees(kind: str, device: Any = "cpu") -> dict[str, Any]:
    """The static arguments: of a matrix with duplicates, an empty row and an empty column."""
    pattern = sg.Pattern.coo([[2, 0, 0, 2, 2], [3, 1, 2, 0, 3]], (4, 4)).to_device(device)
    loops = with_loops(pattern) if kind == "loops" else None
    return {
        "pattern": pattern if loops is None else loops.pattern,
        "loops": loops,
        "both": kind != "row",
    }


def of_degrees(d: Draw, kind: str) -> Iterator[Sample]:
    for tail in ((),) if kind == "loops" else ((), (2,)):
        yield (d.dense(5, *tail, low=0.3),), {}


def of_degree_grads(d: Draw, kind: str) -> Iterator[Sample]:
    entries = degrees(kind)["pattern"].nnz
    for tail in ((),) if kind == "loops" else ((), (2,)):
        yield tuple(d.dense(n, *tail) for n in (entries, 4, entries, 4)), {}


def line_sums(x: np.ndarray, ids: np.ndarray, n: int) -> np.ndarray:
    out = np.zeros((n, *x.shape[1:]))
    np.add.at(out, ids, x)
    return out


def ref_by_degree(x: np.ndarray, pattern: Any, loops: Any, both: bool) -> np.ndarray:
    row, col = pattern.coords
    if loops is not None:
        x = line_sums(x, loops.slots, pattern.nnz) + (row == col)
    total = line_sums(x, row, 4)
    scale = np.where(total > 0, np.maximum(total, 1e-30) ** (-0.5 if both else -1), 0)
    y = x * scale[row] * (scale[col] if both else 1)
    return np.concatenate((y.ravel(), scale.ravel()))


def ref_by_degree_grad(
    dy: Any, dscale: Any, y: Any, scale: Any, pattern: Any, loops: Any, both: bool
) -> np.ndarray:
    row, col = pattern.coords
    total = line_sums(dy * y, row, 4) + (line_sums(dy * y, col, 4) if both else 0) + scale * dscale
    through = total * (scale**2 / 2 if both else scale)
    out = dy * scale[row] * (scale[col] if both else 1) - through[row]
    return out if loops is None else out[loops.slots]


ROWS = [
    *(
        OpCase(f"symmetrize[{how}]", lambda a, how=how: sg.symmetrize(a, how), lambda a, s=s: (a + a.swapaxes(0, 1)) * s,
               square, None, FORMATS, bilinear=True, huge=lambda d: ((d.huge(),), {}), errors=(
            (lambda: sg.symmetrize(sg.coo([[0], [0]], [1.0], (2, 3))), sg.ShapeError, "symmetrize: A must be a square matrix"),
            (lambda: sg.symmetrize(eye(), "min"), ValueError, "symmetrize: reduce must be"),
        ))
        for how, s in (("sum", 1), ("mean", 0.5))
    ),
    OpCase("symmetrize[max]", lambda a: sg.symmetrize(a, "max"), ref_symmetrize_max, square, None, FORMATS, raw=True,
           huge=lambda d: ((d.huge(),), {})),
    OpCase("symmetrize[max,bool]", lambda a: sg.symmetrize(a > 0, "max"), lambda a: (a > 0) | (a > 0).T, square, None, FORMATS, order=0),
    *(
        OpCase(f"by_degree[{kind}]", lambda x, kind=kind: sg.cat([out.reshape(-1) for out in G.by_degree_p(x, **degrees(kind, x.device))]),
               lambda x, kind=kind: ref_by_degree(x, **degrees(kind)), lambda d, kind=kind: of_degrees(d, kind), "by_degree_p")
        for kind in DEGREES
    ),
    *(
        OpCase(f"by_degree_grad[{kind}]", lambda *given, kind=kind: G.by_degree_grad_p(*given, **degrees(kind, given[0].device)),
               lambda *given, kind=kind: ref_by_degree_grad(*given, **degrees(kind)), lambda d, kind=kind: of_degree_grads(d, kind), "by_degree_grad_p")
        for kind in DEGREES
    ),
    OpCase("gcn_norm", sg.gcn_norm, ref_gcn_norm, lambda d: square(d, low=0.1), None, FORMATS,
           huge=lambda d: ((d.huge(),), {}), errors=(
        (lambda: sg.gcn_norm(sg.coo([[0], [0]], [1.0], (2, 3))), sg.ShapeError, "gcn_norm: A must be a square matrix"),
        (lambda: sg.gcn_norm(sg.ones(2, 2)), TypeError, "gcn_norm: A must be a SparseTensor"),
    )),
    OpCase("row_normalize", sg.row_normalize, ref_row_normalize,
           lambda d: (((Sparse(a.coords, np.abs(a.values) + 0.5, a.shape),), {}) for h in ((), (2,)) for a in d.every_kind(heads=h)),
           None, FORMATS, huge=lambda d: ((d.huge(),), {})),
]  # fmt: skip
