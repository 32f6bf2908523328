# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of ops that put elements in other places."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, OpCase
from op_db.samples import *  # noqa: F403


def of(*sizes: tuple[int, ...]) -> Any:
    return lambda d: (((d.dense(*s),), {}) for s in sizes)


def joined(parts: Any) -> Any:
    """Several results as one: in order, with different weights."""
    return sg.cat([(i + 1.0) * sg.reshape(p, (-1,)) for i, p in enumerate(parts)])


def ref_joined(parts: Any) -> Any:
    return np.concatenate([(i + 1.0) * p.reshape(-1) for i, p in enumerate(parts)])


def row(name: str, op: Any, ref: Any, samples: Any, **kw: Any) -> OpCase:
    return OpCase(name, op, ref, samples, None, bilinear=True, **kw)


def sparse_row(name: str, op: Any, ref: Any, samples: Any = one_sparse, **kw: Any) -> OpCase:
    return OpCase(f"{name}[sparse]", op, ref, samples, None, FORMATS, bilinear=True,
                  huge=lambda d: ((d.huge(),), {}), **kw)  # fmt: skip


PADS = [
    ("constant", "constant"),
    ("reflect", "reflect"),
    ("replicate", "edge"),
    ("circular", "wrap"),
]
ROWS = [
    row("flatten", lambda x: sg.flatten(x, 1), lambda x: x.reshape(x.shape[0], -1), lambda d: iter([((d.dense(2, 3, 4),), {})]), errors=(
        (lambda: sg.flatten(sg.ones(2, 2), 1, 0), sg.ShapeError, "flatten: start_dim 1 lies behind end_dim 0"),)),
    row("flatten[all]", sg.flatten, np.ravel, of((2, 3), (), (0, 2))),
    row("unflatten", lambda x: sg.unflatten(x, -1, (3, -1)), lambda x: x.reshape(2, 3, 2), of((2, 6)), errors=(
        (lambda: sg.unflatten(sg.ones(5), 0, (2, 2)), sg.ShapeError, r"unflatten: sizes \(2, 2\) do not make dim 0"),)),
    row("movedim", lambda x: sg.movedim(x, (0, 1), (-1, 0)), lambda x: np.moveaxis(x, (0, 1), (-1, 0)), of((2, 3, 4)), errors=(
        (lambda: sg.movedim(sg.ones(2, 2), (0, 0), (0, 1)), sg.ShapeError, "movedim: .* cannot move"),)),
    row("swapaxes", lambda x: sg.swapaxes(x, 0, 2), lambda x: np.swapaxes(x, 0, 2), of((2, 3, 4))),
    row("broadcast_to", lambda x: sg.broadcast_to(x, (2, 3)), lambda x: np.broadcast_to(x, (2, 3)), of((3,), (2, 1))),
    row("meshgrid", lambda x, y: joined(sg.meshgrid(x, y)), lambda x, y: ref_joined(np.meshgrid(x, y, indexing="ij")),
        lambda d: iter([((d.dense(2), d.dense(3)), {})]), errors=(
        (lambda: sg.meshgrid(sg.ones(2, 2)), sg.ShapeError, "meshgrid: expected vectors"),
        (lambda: sg.meshgrid(sg.ones(2), indexing="x"), ValueError, "meshgrid: indexing must be"),)),
    row("meshgrid[xy]", lambda x, y: joined(sg.meshgrid(x, y, indexing="xy")), lambda x, y: ref_joined(np.meshgrid(x, y)),
        lambda d: iter([((d.dense(2), d.dense(3)), {})])),
    row("narrow", lambda x: sg.narrow(x, 1, -3, 2), lambda x: x[:, -3:-1], of((2, 4)), errors=(
        (lambda: sg.narrow(sg.ones(3), 0, 2, 2), sg.ShapeError, "narrow: 2 from 2 on do not fit dim 0"),)),
    row("split", lambda x: joined(sg.split(x, 2, 1)), lambda x: ref_joined([x[:, :2], x[:, 2:4], x[:, 4:]]), of((3, 5)), errors=(
        (lambda: sg.split(sg.ones(3), 0), sg.ShapeError, "split: the size of a part must be positive, got 0"),)),
    row("split[sections]", lambda x: joined(sg.split(x, [1, 0, 2])), lambda x: ref_joined([x[:1], x[1:1], x[1:]]), of((3, 2)), errors=(
        (lambda: sg.split(sg.ones(3), [1, 1]), sg.ShapeError, r"split: sections \[1, 1\] do not add up"),)),
    row("chunk", lambda x: joined(sg.chunk(x, 3)), lambda x: ref_joined([x[:2], x[2:4], x[4:]]), of((5, 2)), errors=(
        (lambda: sg.chunk(sg.ones(3), 0), ValueError, "chunk: chunks must be positive"),)),
    row("unbind", lambda x: joined(sg.unbind(x, 1)), lambda x: ref_joined(list(np.moveaxis(x, 1, 0))), of((3, 2))),
    row("flip", lambda x: sg.flip(x, 0, -1), lambda x: np.flip(x, (0, -1)), of((3, 2, 2), (0, 2))),
    row("roll", lambda x: sg.roll(x, (1, -1), (0, 1)), lambda x: np.roll(x, (1, -1), (0, 1)), of((3, 4), (0, 2)), errors=(
        (lambda: sg.roll(sg.ones(3), (1, 1), 0), sg.ShapeError, "roll: 2 shifts but 1 dims"),)),
    row("roll[flat]", lambda x: sg.roll(x, 2), lambda x: np.roll(x, 2), of((3, 2))),
    *(row(f"pad[{mode}]", lambda x, mode=mode: sg.pad(x, (1, 2, 2, 0), mode),
          lambda x, ref=ref: np.pad(x, ((2, 0), (1, 2)), mode=ref), of((4, 3))) for mode, ref in PADS),
    OpCase("pad[value]", lambda x: sg.pad(x, (1, 2), value=7.0), lambda x: np.pad(x, ((0, 0), (1, 2)), constant_values=7.0),
           of((2, 3), (2, 0)), errors=(
        (lambda: sg.pad(sg.ones(3), (1,)), sg.ShapeError, "pad: expected pairs for at most 1 dim"),
        (lambda: sg.pad(sg.ones(3), (1, 1), "mirror"), ValueError, "pad: mode must be"),
        (lambda: sg.pad(sg.ones(3), (3, 0), "reflect"), sg.ShapeError, "pad: .* is too much for reflect of 3"),
        (lambda: sg.pad(sg.ones(3), (-2, -2)), sg.ShapeError, "pad: .* takes more than there is"),
        (lambda: sg.pad(eye(), (1, 1), value=1), TypeError, "pad: a sparse tensor is padded with zeros only"),)),
    row("pad[negative]", lambda x: sg.pad(x, (-1, 1)), lambda x: np.pad(x[:, 1:], ((0, 0), (0, 1))), of((2, 3))),
    row("tile", lambda x: sg.tile(x, 2, 3), lambda x: np.tile(x, (2, 3)), of((3,), (2, 2), (2, 1, 2), ()), errors=(
        (lambda: sg.tile(sg.ones(2), -1), sg.ShapeError, "tile: dims must not be negative"),)),
    row("repeat", lambda x: x.repeat(2, 1, 3), lambda x: np.tile(x, (2, 1, 3)), of((2, 3)), errors=(
        (lambda: sg.ones(2, 2).repeat(2), sg.ShapeError, "repeat: 1 numbers for the 2 dimensions"),)),
    row("repeat_interleave", lambda x: sg.repeat_interleave(x, 2, 1), lambda x: np.repeat(x, 2, 1), of((2, 3), (2, 0)), errors=(
        (lambda: sg.repeat_interleave(sg.ones(3), sg.tensor([1, 2]), 0), sg.ShapeError, "repeat_interleave: repeats must be"),
        (lambda: sg.repeat_interleave(sg.ones(3), -1), ValueError, "repeat_interleave: repeats must not be negative"),)),
    row("repeat_interleave[each]", lambda x: sg.repeat_interleave(x, sg.tensor([2, 0, 1]), 0),
        lambda x: np.repeat(x, [2, 0, 1], 0), of((3, 2))),
    sparse_row("repeat_interleave", lambda a: sg.repeat_interleave(a, 2, 1), lambda x: np.repeat(x, 2, 1)),
    sparse_row("repeat", lambda a: a.repeat(2, 1, 3), lambda x: np.tile(x, (2, 1, 3))),
    sparse_row("flip", lambda a: sg.flip(a, 1), lambda x: np.flip(x, 1)),
    sparse_row("roll", lambda a: sg.roll(a, 1, 0), lambda x: np.roll(x, 1, 0)),
    sparse_row("pad", lambda a: sg.pad(a, (1, 0, 2, 1)), lambda x: np.pad(x, ((2, 1), (1, 0)))),
    sparse_row("split", lambda a: sg.split(a, [1, a.shape[1] - 1], 1)[1], lambda x: x[:, 1:],
               lambda d: (s for s in one_sparse(d) if s[0][0].shape[1])),
]  # fmt: skip
