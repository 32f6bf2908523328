# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of convolution and pooling."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import OpCase
from op_db.samples import *  # noqa: F403
from sparsegrad.ops import window as W


def of(*sizes: tuple[int, ...]) -> Any:
    return lambda d: iter([(tuple(d.dense(*s) for s in sizes), {})])


def ref_windows(
    x: np.ndarray, sizes: Any, stride: Any, padding: Any, dilation: Any, fill: float = 0.0
) -> np.ndarray:
    """(N, C, *o, prod(sizes)) by loops."""
    dims = len(sizes)
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)], constant_values=fill)
    parts = []
    for at in itertools.product(*map(range, sizes)):
        cuts = []
        for i in range(dims):
            count = (x.shape[2 + i] - dilation[i] * (sizes[i] - 1) - 1) // stride[i] + 1
            start = at[i] * dilation[i]
            cuts.append(slice(start, start + (count - 1) * stride[i] + 1, stride[i]))
        parts.append(x[(slice(None), slice(None), *cuts)])
    return np.stack(parts, axis=-1)


def ref_conv(
    x: np.ndarray,
    w: np.ndarray,
    b: Any = None,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
) -> np.ndarray:
    cut = ref_windows(x, w.shape[2:], stride, padding, dilation)
    outs = []
    for g in range(groups):
        c, f = w.shape[1], w.shape[0] // groups
        outs.append(
            np.einsum(
                "nc...k,fck->nf...",
                cut[:, g * c : (g + 1) * c],
                w[g * f : (g + 1) * f].reshape(f, c, -1),
            )
        )
    out = np.concatenate(outs, 1)
    return out if b is None else out + b.reshape(-1, *(1,) * (x.ndim - 2))


def row(
    name: str, op: Any, ref: Any, samples: Any, primitive: str | None = None, **kw: Any
) -> OpCase:
    return OpCase(name, op, ref, samples, primitive, bilinear=True, **kw)


ROWS = [
    row("windows", lambda x: W.windows_p(x, axis=1, size=3, stride=2, dilation=1) * 1.0,
        lambda x: np.stack([x[:, 0:5:2], x[:, 1:6:2], x[:, 2:7:2]], -1), of((2, 7)), "windows_p"),
    row("fold", lambda x: W.fold_p(x, axis=1, n=6, stride=2, dilation=2),
        lambda x: np.stack([x[:, 0, 0], 0 * x[:, 0, 0], x[:, 0, 1] + x[:, 1, 0], 0 * x[:, 0, 0], x[:, 1, 1], 0 * x[:, 0, 0]], 1),
        of((3, 2, 2)), "fold_p"),
    row("conv1d", lambda x, w, b: sg.conv1d(x, w, b, 2, 1, 2), lambda x, w, b: ref_conv(x, w, b, (2,), (1,), (2,)),
        of((2, 3, 9), (4, 3, 3), (4,))),
    row("conv2d", sg.conv2d, ref_conv, of((2, 3, 5, 4), (2, 3, 3, 2), (2,)), errors=(
        (lambda: sg.conv2d(sg.ones(2, 2), sg.ones(1, 1, 1, 1)), sg.ShapeError, r"conv2d: expected \(N, C, 2 sizes\)"),
        (lambda: sg.conv2d(sg.ones(1, 3, 4, 4), sg.ones(1, 2, 1, 1)), sg.ShapeError, "conv2d: input has 3 channels, weight .* needs 2"),
        (lambda: sg.conv2d(sg.ones(1, 1, 4, 4), sg.ones(2, 1, 1)), sg.ShapeError, r"conv2d: expected weight \(F, C / groups"),
        (lambda: sg.conv2d(sg.ones(1, 1, 2, 2), sg.ones(1, 1, 3, 3)), sg.ShapeError, "conv2d: a kernel of 3 with dilation 1 does not fit the .* size 2"),
        (lambda: sg.conv2d(sg.ones(1, 1, 2, 2), sg.ones(1, 1, 1, 1), sg.ones(2)), sg.ShapeError, r"conv2d: expected bias \(1,\)"),
        (lambda: sg.conv2d(sg.ones(1, 1, 2, 2), sg.ones(1, 1, 1, 1), stride=0), sg.ShapeError, "conv2d: stride must be an integer of at least 1"),
        (lambda: sg.conv2d(sg.ones(1, 1, 2, 2), sg.ones(1, 1, 1, 1), padding="full"), ValueError, "conv2d: padding must be"),
        (lambda: sg.conv2d(eye(), sg.ones(1, 1, 1, 1)), TypeError, "conv2d: needs a dense input"),)),
    row("conv2d[groups]", lambda x, w: sg.conv2d(x, w, None, (2, 1), (1, 0), (1, 2), 2),
        lambda x, w: ref_conv(x, w, None, (2, 1), (1, 0), (1, 2), 2), of((2, 4, 5, 6), (6, 2, 2, 3))),
    row("conv2d[same]", lambda x, w: sg.conv2d(x, w, padding="same"), lambda x, w: ref_conv(x[None], w, None, (1, 1), (1, 2))[0],
        of((2, 4, 5), (3, 2, 3, 5))),
    row("conv2d[no batch]", lambda x, w: sg.conv2d(x, w, padding="valid"), ref_conv, of((0, 2, 3, 3), (1, 2, 2, 2))),
    row("conv3d", sg.conv3d, lambda x, w: ref_conv(x, w, None, (1, 1, 1), (0, 0, 0), (1, 1, 1)), of((1, 2, 3, 3, 2), (2, 2, 2, 2, 2))),
    OpCase("max_pool1d", lambda x: sg.max_pool1d(x, 3, 2, 1), lambda x: ref_windows(x, (3,), (2,), (1,), (1,), -np.inf).max(-1), of((2, 3, 7))),
    OpCase("max_pool2d", lambda x: sg.max_pool2d(x, (2, 3)), lambda x: ref_windows(x, (2, 3), (2, 3), (0, 0), (1, 1)).max(-1), of((2, 3, 5, 6)), errors=(
        (lambda: sg.max_pool2d(sg.ones(1, 4, 4), 2, padding=2), sg.ShapeError, "max_pool2d: padding .* is more than half"),)),
    OpCase("max_pool2d[no batch]", lambda x: sg.max_pool2d(x, 2, 1, 1, 2),
           lambda x: ref_windows(x[None], (2, 2), (1, 1), (1, 1), (2, 2), -np.inf).max(-1)[0], of((2, 5, 6))),
    row("avg_pool1d", lambda x: sg.avg_pool1d(x, 2), lambda x: ref_windows(x, (2,), (2,), (0,), (1,)).mean(-1), of((2, 3, 7))),
    row("avg_pool2d", lambda x: sg.avg_pool2d(x, 3, 2, 1), lambda x: ref_windows(x, (3, 3), (2, 2), (1, 1), (1, 1)).mean(-1), of((2, 3, 5, 6))),
    row("avg_pool2d[inside]", lambda x: sg.avg_pool2d(x, 3, 2, 1, False),
        lambda x: (ref_windows(x[None], (3, 3), (2, 2), (1, 1), (1, 1)).sum(-1) / ref_windows(np.ones((1, *x.shape)), (3, 3), (2, 2), (1, 1), (1, 1)).sum(-1))[0],
        of((3, 5, 6))),
]  # fmt: skip
