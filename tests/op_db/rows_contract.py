# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of einsum and its special cases."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase, Sparse
from op_db.samples import *  # noqa: F403

EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk", (2, 0), (0, 3)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 1)),
    ("ii->i", (3, 3)), ("ii", (3, 3)), ("ij->ji", (2, 3)), ("ij->", (2, 3)), ("ij->j", (2, 3)), ("iij->ji", (3, 3, 2)),
    ("i,j->ij", (2,), (3,)), ("i,i->", (3,), (3,)), ("i,i->i", (3,), (3,)), ("ij,ij->i", (2, 3), (2, 3)),
    ("...ij,...jk->...ik", (5, 1, 2, 3), (4, 3, 2)), ("...,...", (2, 3), (3,)), ("i...,i->...", (3, 2), (3,)),
    ("b...d,bd->b...", (2, 3, 4), (2, 4)), ("ij,kj->ik", (2, 3), (4, 3)), ("ij,k->ik", (2, 3), (4,)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)), ("a,ab,b->", (2,), (2, 3), (3,)), ("ab,ac,ad->bcd", (2, 3), (2, 1), (2, 2)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)), (",i->i", (), (3,)), ("ij,ij,ij->ij", (2, 2), (2, 2), (2, 2)),
]  # fmt: skip


def of(*sizes: tuple[int, ...]) -> Any:
    return lambda d: iter([(tuple(d.dense(*s) for s in sizes), {})])


def cubes(d: Draw) -> Any:
    """Three sparse dimensions, or two and a dense one, and none stored."""
    coords = d.rng.integers(0, 3, (3, 7))
    yield Sparse(coords, d.away(7), (3, 4, 3))
    yield Sparse(coords[:2], d.away(7, 3), (3, 4))
    yield Sparse(np.zeros((3, 0), int), np.zeros(0), (3, 4, 3))


DIMS = {
    "ijk,kj->i": (([1, 2], [1, 0]), (3, 4)),
    "ijk,kl->ijl": (([-1], [0]), (3, 2)),
    "ijk,ijk->": (([0, 1, 2], [0, 1, 2]), (3, 4, 3)),
}
PAIRED = {  # the sizes of the dense operand for a sparse (m, n)
    "ij,jk->ik": lambda m, n: (n, 2),
    "ij,kj->ki": lambda m, n: (2, n),
    "ij,j->i": lambda m, n: (n,),
    "ij,k->ikj": lambda m, n: (2,),
    "ij,ij->": lambda m, n: (m, n),
}


ROWS = [
    *(OpCase(f"einsum[sparse,{eq}]", lambda a, x, eq=eq: sg.einsum(eq, a, x), lambda a, x, eq=eq: np.einsum(eq, a, x),
             lambda d, sizes=sizes: (((a, d.dense(*sizes(*a.shape))), {}) for a in d.every_kind()), None, FORMATS, bilinear=True) for eq, sizes in PAIRED.items()),
    *(OpCase(f"tensordot[sparse,{eq}]", lambda a, x, dims=dims: sg.tensordot(a, x, dims), lambda a, x, dims=dims: np.tensordot(a, x, dims),
             lambda d, sizes=sizes: (((a, d.dense(*sizes)), {}) for a in cubes(d)), None, ("coo",), bilinear=True) for eq, (dims, sizes) in DIMS.items()),
    OpCase("tensordot[sparse,sparse]", lambda a, b: sg.tensordot(a, b, ([1, 2], [0, 1])), lambda a, b: np.tensordot(a, b, ([1, 2], [0, 1])),
           lambda d: (((a, Sparse(np.array([[0, 3, 1], [1, 2, 1]]), d.away(3), (4, 3))), {}) for a in cubes(d)), None, ("coo",), bilinear=True),
    OpCase("inner[sparse]", sg.inner, np.inner, lambda d: (((a, d.dense(a.shape[1])), {}) for a in d.every_kind()), None, FORMATS, bilinear=True),
    OpCase("multi_dot[sparse]", lambda a, b, x: sg.linalg.multi_dot([a, b, x]), lambda a, b, x: a @ b @ x,
           lambda d: (((a, Draw(3).sparse(a.shape[1], 3), d.dense(3, *k)), {}) for a in d.every_kind() for k in ((2,), ())), None, FORMATS, bilinear=True),
    OpCase("multi_dot[dense,sparse]", lambda x, a, b: sg.linalg.multi_dot([x, a, b]), lambda x, a, b: x @ a @ b,
           lambda d: (((d.dense(2, a.shape[0]), a, Draw(3).sparse(a.shape[1], 3)), {}) for a in d.every_kind()), None, FORMATS, bilinear=True),
    *(OpCase(f"matrix_power[sparse,{n}]", lambda a, n=n: sg.matrix_power(a, n), lambda a, n=n: np.linalg.matrix_power(a, n), square, None, FORMATS, tol={"float16": 2e-2, "bfloat16": 0.1}, huge=lambda d: ((d.huge(),), {}), errors=(
        (lambda: sg.matrix_power(eye(), 0), sg.ShapeError, r"matrix_power: a sparse A must be a square matrix and n positive, got n 0 and shape \(2, 2\)"),
        (lambda: sg.matrix_power(eye()[:1], 2), sg.ShapeError, r"matrix_power: a sparse A .* got n 2 and shape \(1, 2\)"),
    )) for n in (1, 3)),
    *(OpCase(f"einsum[{eq}]", lambda *xs, eq=eq: sg.einsum(eq, *xs),
             lambda *xs, eq=eq: np.einsum(eq, *(x.reshape(()) if eq[0] == "," and x.size == 1 else x for x in xs)),
             of(*sizes), bilinear=True) for eq, *sizes in EQUATIONS if () not in sizes),
    OpCase("einsum[errors]", lambda x: sg.einsum("ij -> ji", x), np.transpose, of((2, 3)), bilinear=True, errors=(
        (lambda: sg.einsum("ij,jk", sg.ones(2, 3), sg.ones(2, 3)), sg.ShapeError, r"einsum: 'ij,jk': 'j' is both 3 and 2; shapes are \[\(2, 3\), \(2, 3\)\]"),
        (lambda: sg.einsum("ij", sg.ones(2)), sg.ShapeError, r"einsum: 'ij': operand 0 has shape \(2,\), not the dimensions 'ij'"),
        (lambda: sg.einsum("i,j", sg.ones(2)), sg.ShapeError, "einsum: 'i,j' does not name 1 operands"),
        (lambda: sg.einsum("i->j", sg.ones(2)), sg.ShapeError, r"einsum: 'i->j': \['j'\] of the result is in no operand"),
        (lambda: sg.einsum("ii", sg.ones(2, 3)), sg.ShapeError, "einsum: 'ii': 'i' is both 2 and 3"),
        (lambda: sg.einsum("i1", sg.ones(2, 3)), sg.ShapeError, "einsum: 'i1' does not name"),
        (lambda: sg.einsum("ii,ij->j", eye(), eye()), TypeError, "einsum: 'ii,ij->j': with sparse operands there must be two"),
        (lambda: sg.einsum("ij,ij->ij", eye(), sg.ones(2, 2)), TypeError, "einsum: 'ij,ij->ij': with sparse operands"),)),
    OpCase("outer", sg.outer, np.outer, of((2,), (3,)), bilinear=True, errors=(
        (lambda: sg.outer(sg.ones(2, 2), sg.ones(2)), sg.ShapeError, "outer: expected vectors"),)),
    OpCase("dot", sg.dot, np.dot, of((3,), (3,)), bilinear=True, errors=(
        (lambda: sg.dot(sg.ones(2, 2), sg.ones(2)), sg.ShapeError, "dot: expected vectors"),)),
    OpCase("inner", sg.inner, np.inner, of((2, 3), (4, 3)), bilinear=True),
    OpCase("tensordot", sg.tensordot, lambda a, b: np.tensordot(a, b, 2), of((2, 3, 4), (3, 4, 2)), bilinear=True, errors=(
        (lambda: sg.tensordot(sg.ones(2, 3), sg.ones(2, 3), 1), sg.ShapeError, "tensordot: dims 1 have sizes 3 and 2"),
        (lambda: sg.tensordot(sg.ones(2), sg.ones(2), 2), sg.ShapeError, "tensordot: dims 2 do not fit"),)),
    OpCase("tensordot[lists]", lambda a, b: sg.tensordot(a, b, ([0, -1], [1, 0])), lambda a, b: np.tensordot(a, b, ([0, -1], [1, 0])),
           of((2, 3, 4), (4, 2, 2)), bilinear=True),
    OpCase("baddbmm", lambda x, a, b: sg.baddbmm(x, a, b, beta=0.5, alpha=2), lambda x, a, b: 0.5 * x + 2 * a @ b,
           of((2, 1, 3), (2, 4, 2), (2, 2, 3)), bilinear=False),
    OpCase("addmm[dense]", lambda c, a, b: sg.addmm(c, a, b, beta=2), lambda c, a, b: 2 * c + a @ b, of((3,), (2, 4), (4, 3))),
]  # fmt: skip
