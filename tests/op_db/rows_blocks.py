# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of matrices that are built of others."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase, Sparse
from op_db.samples import *  # noqa: F403


def pairs(d: Draw) -> Any:
    """Every kind of matrix with an ordinary one and one with duplicates, in either order."""
    others = list(d.every_kind(2, 3))
    for a in d.every_kind(3, 2):
        yield (a, others[0]), {}
        yield (others[-2], a), {}


def squares(d: Draw) -> Any:
    for a in d.every_kind(3, 3):
        for b in (*list(Draw(5).every_kind(2, 2))[:2], *list(Draw(5).every_kind(2, 2))[-2:]):
            if a.shape[0] == a.shape[1] and b.shape[0] == b.shape[1]:
                yield (a, b), {}


def ref_kronsum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.kron(np.eye(len(b)), a) + np.kron(b, np.eye(len(a)))


def three_blocks(d: Draw) -> Any:
    for a in d.every_kind():
        yield (a, d.dense(a.shape[0], 2), a), {}


def ref_blocks(a: np.ndarray, x: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.block([[a, x], [b, np.zeros((b.shape[0], 2))]])


def vectors(d: Draw) -> Any:
    for n in (3, 1):
        line = Sparse(np.array([[2, 0]]), d.away(2), (4,))
        yield (line, Sparse(np.array([[0] * n, list(range(n))]), d.away(n), (2, 3))), {}


HUGE = {"huge": lambda d: ((d.huge(), Draw(9).sparse(2, 3)), {})}

ROWS = [
    OpCase("kron", sg.kron, np.kron, lambda d: (((d.dense(*s), d.dense(*t)), {}) for s, t in (((2, 3), (3, 2)), ((), (2,)), ((3,), (2, 2)), ((0, 2), (2, 3)), ((2, 1, 2), (3, 1)))), bilinear=True),
    OpCase("kron[sparse]", sg.kron, np.kron, pairs, None, FORMATS, bilinear=True, **HUGE, errors=(
        (lambda: sg.kron(eye(), sg.coo([[0], [0]], [[1.0, 2.0]], (1, 1, 2))), sg.ShapeError, r"kron: b must have no dense dimensions, got shape \(1, 1, 2\)"),
        (lambda: sg.kron(sg.coo([[0]], [1.0], (2**62,)), sg.ones(4)), sg.ShapeError, "kron: the sizes of .* do not fit 64 bits"),
    )),
    OpCase("kron[sparse,dense]", sg.kron, np.kron, lambda d: (((a, d.dense(*s)), {}) for a in d.every_kind(3, 2) for s in ((2, 3), (2,), ())), None, FORMATS, bilinear=True),
    OpCase("kron[dense,sparse]", sg.kron, np.kron, lambda d: (((d.dense(*s), a), {}) for a in d.every_kind(3, 2) for s in ((2, 3), (1, 0))), None, FORMATS, bilinear=True),
    OpCase("kron[1-D]", sg.kron, np.kron, vectors, None, ("coo",), bilinear=True),
    OpCase("kronsum", sg.kronsum, ref_kronsum, squares, None, FORMATS, bilinear=True, errors=(
        (lambda: sg.kronsum(eye(), sg.ones(2, 2)), TypeError, "kronsum: B must be a SparseTensor, got Tensor"),
        (lambda: sg.kronsum(eye()[:1], eye()), sg.ShapeError, r"kronsum: A must be a square matrix, got shape \(1, 2\)"),
    )),
    OpCase("block_array", lambda a, x, b: sg.block_array([[a, x], [b, None]]), ref_blocks, three_blocks, None, FORMATS, bilinear=True, errors=(
        (lambda: sg.block_array([[eye(), None], [None, None]]), sg.ShapeError, "block_array: every row and every column needs a block"),
        (lambda: sg.block_array([[eye(), sg.ones(3, 2)]]), sg.ShapeError, r"block_array: blocks\[0\]\[1\] must be \(2, 2\), got \(3, 2\)"),
        (lambda: sg.block_array([[sg.ones(2)]]), sg.ShapeError, r"block_array: blocks\[0\]\[0\] must be a matrix, got shape \(2,\)"),
        (lambda: sg.block_array([]), sg.ShapeError, "block_array: every row and every column"),
    )),
]  # fmt: skip
