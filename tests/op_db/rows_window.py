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


def pooled(
    fn: Any, fill: float, *, sizes: Any, stride: Any, padding: Any, dilation: Any = (1, 1)
) -> Any:
    """ceil_mode by loops: windows that start inside, cut off at the far border, `fn` of each."""

    def ref(x: np.ndarray) -> np.ndarray:
        lead, spatial = x.shape[:-2], x.shape[-2:]
        border = [(p, p) for p in padding]
        wide = np.pad(x, [(0, 0)] * len(lead) + border, constant_values=fill)
        starts = [
            [s * i for i in range(n) if s * i < n + p] for n, s, p in zip(spatial, stride, padding)
        ]
        for i, (n, k, s, p, d) in enumerate(zip(spatial, sizes, stride, padding, dilation)):
            enough = -(-(n + 2 * p - d * (k - 1) - 1) // s) + 1
            starts[i] = starts[i][:enough]
        out = [
            [
                fn(
                    wide[
                        ...,
                        a : a + dilation[0] * sizes[0] : dilation[0],
                        b : b + dilation[1] * sizes[1] : dilation[1],
                    ]
                )
                for b in starts[1]
            ]
            for a in starts[0]
        ]
        return np.moveaxis(np.array(out), (0, 1), (-2, -1))

    return ref


def top(x: np.ndarray) -> np.ndarray:
    return x.max(axis=(-2, -1))


def mean(x: np.ndarray) -> np.ndarray:
    return x.mean(axis=(-2, -1))


def adaptive(fn: Any, *sizes: int) -> Any:
    def ref(x: np.ndarray) -> np.ndarray:
        edges = [
            [(i * n // o, -(-(i + 1) * n // o)) for i in range(o)]
            for n, o in zip(x.shape[-2:], sizes)
        ]
        out = [[fn(x[..., a:b, c:d]) for c, d in edges[1]] for a, b in edges[0]]
        return np.moveaxis(np.array(out), (0, 1), (-2, -1))

    return ref


def row(
    name: str, op: Any, ref: Any, samples: Any, primitive: str | None = None, **kw: Any
) -> OpCase:
    return OpCase(name, op, ref, samples, primitive, bilinear=True, **kw)


def ref_transposed(
    x: np.ndarray, w: np.ndarray, b: Any, stride: Any, padding: Any, more: Any, dilation: Any
) -> np.ndarray:
    """Every input adds its multiple of the kernel at its place, by loops; two dimensions."""
    full = [
        (n - 1) * s + d * (k - 1) + 1 + m
        for n, k, s, d, m in zip(x.shape[2:], w.shape[2:], stride, dilation, more, strict=True)
    ]
    out = np.zeros((len(x), w.shape[1], *full))
    for i, j, k, m in itertools.product(*map(range, (*x.shape[2:], *w.shape[2:]))):
        at = i * stride[0] + k * dilation[0], j * stride[1] + m * dilation[1]
        out[:, :, at[0], at[1]] += x[:, :, i, j] @ w[:, :, k, m]
    (p, q), (h, v) = padding, full
    return out[:, :, p : h - p, q : v - q] + b.reshape(-1, 1, 1)


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
        (lambda: sg.max_pool2d(sg.ones(1, 4, 4), 2, padding=2), sg.ShapeError, r"max_pool2d: padding \(2, 2\) is more than half of kernel_size \(2, 2\)"),
        (lambda: sg.max_pool2d(sg.ones(4, 4), 2), sg.ShapeError, r"max_pool2d: expected \(N, C, 2 sizes\)"),
        (lambda: sg.max_pool2d(sg.ones(1, 1, 1), 2), sg.ShapeError, "max_pool2d: a kernel of 2 with dilation 1 does not fit"),)),
    OpCase("max_pool2d[ceil]", lambda x: sg.max_pool2d(x, (2, 3), 2, (0, 1), (2, 1), ceil_mode=True),
           pooled(top, -np.inf, sizes=(2, 3), stride=(2, 2), padding=(0, 1), dilation=(2, 1)), of((2, 3, 6, 6))),
    OpCase("max_pool2d[indices]", lambda x: sg.gather(sg.flatten(x, 1), 1, sg.flatten(sg.max_pool2d(x, 2, 2, 1, return_indices=True)[1], 1)),
           lambda x: ref_windows(x[None], (2, 2), (2, 2), (1, 1), (1, 1), -np.inf).max(-1)[0].reshape(3, -1), of((3, 5, 6))),
    OpCase("max_pool3d", lambda x: sg.max_pool3d(x, 2, 1), lambda x: ref_windows(x, (2, 2, 2), (1, 1, 1), (0, 0, 0), (1, 1, 1)).max(-1), of((1, 2, 3, 3, 2))),
    OpCase("adaptive_max_pool1d", lambda x: sg.adaptive_max_pool1d(x, 3), lambda x: adaptive(top, 1, 3)(x[:, :, None])[:, :, 0], of((2, 2, 7))),
    OpCase("adaptive_max_pool2d", lambda x: sg.adaptive_max_pool2d(x, (3, 2)), adaptive(top, 3, 2), of((2, 2, 7, 5)), errors=(
        (lambda: sg.adaptive_max_pool2d(sg.ones(1, 0, 2), 1), sg.ShapeError, "adaptive_max_pool2d: nothing to pool in the empty"),
        (lambda: sg.adaptive_max_pool2d(sg.ones(1, 2, 2), (1, 1, 1)), sg.ShapeError, "adaptive_max_pool2d: output_size must be"),)),
    row("adaptive_avg_pool1d", lambda x: sg.adaptive_avg_pool1d(x, 2), lambda x: x.reshape(2, 3, 2, 4).mean(-1), of((2, 3, 8))),
    row("adaptive_avg_pool2d", lambda x: sg.adaptive_avg_pool2d(x, (3, 1)), adaptive(mean, 3, 1), of((2, 3, 7, 5))),
    row("avg_pool2d[ceil]", lambda x: sg.avg_pool2d(x, 3, 2, ceil_mode=True), pooled(mean, 0, sizes=(3, 3), stride=(2, 2), padding=(0, 0)), of((2, 6, 4))),
    row("avg_pool2d[divisor]", lambda x: sg.avg_pool2d(x, 2, divisor_override=3), lambda x: ref_windows(x, (2, 2), (2, 2), (0, 0), (1, 1)).sum(-1) / 3, of((2, 3, 5, 6)), errors=(
        (lambda: sg.avg_pool2d(sg.ones(1, 2, 2), 2, divisor_override=0), ValueError, "avg_pool2d: divisor_override must not be 0"),)),
    row("avg_pool3d", lambda x: sg.avg_pool3d(x, 2, 1), lambda x: ref_windows(x, (2, 2, 2), (1, 1, 1), (0, 0, 0), (1, 1, 1)).mean(-1), of((1, 2, 3, 3, 2))),
    OpCase("max_pool2d[no batch]", lambda x: sg.max_pool2d(x, 2, 1, 1, 2),
           lambda x: ref_windows(x[None], (2, 2), (1, 1), (1, 1), (2, 2), -np.inf).max(-1)[0], of((2, 5, 6))),
    row("avg_pool1d", lambda x: sg.avg_pool1d(x, 2), lambda x: ref_windows(x, (2,), (2,), (0,), (1,)).mean(-1), of((2, 3, 7))),
    row("avg_pool2d", lambda x: sg.avg_pool2d(x, 3, 2, 1), lambda x: ref_windows(x, (3, 3), (2, 2), (1, 1), (1, 1)).mean(-1), of((2, 3, 5, 6))),
    row("avg_pool2d[inside]", lambda x: sg.avg_pool2d(x, 3, 2, 1, False, False),
        lambda x: (ref_windows(x[None], (3, 3), (2, 2), (1, 1), (1, 1)).sum(-1) / ref_windows(np.ones((1, *x.shape)), (3, 3), (2, 2), (1, 1), (1, 1)).sum(-1))[0],
        of((3, 5, 6))),
    OpCase("conv_transpose2d", lambda x, w, b: sg.conv_transpose2d(x, w, b, (2, 1), (1, 0), (1, 0), 1, (1, 2)),
           lambda x, w, b: ref_transposed(x, w, b, (2, 1), (1, 0), (1, 0), (1, 2)), of((2, 3, 4, 3), (3, 2, 3, 2), (2,)), bilinear=True, errors=(
        (lambda: sg.conv_transpose2d(sg.ones(1, 2, 3, 3), sg.ones(3, 1, 2, 2)), sg.ShapeError, r"conv_transpose2d: input has 2 channels, weight \(3, 1, 2, 2\) needs 3"),
        (lambda: sg.conv_transpose2d(sg.ones(1, 2, 3, 3), sg.ones(2, 1, 2, 2), output_padding=1), sg.ShapeError, "conv_transpose2d: output_padding must be smaller than stride or dilation"),
        (lambda: sg.conv_transpose2d(sg.ones(1, 2, 1, 1), sg.ones(2, 1, 1, 1), padding=1), sg.ShapeError, r"conv_transpose2d: padding \(1, 1\) leaves nothing of a size of 1"))),
    OpCase("interpolate", lambda x: sg.interpolate(x, 6), lambda x: x.repeat(2, -1), of((1, 2, 3)), bilinear=True, errors=(
        (lambda: sg.interpolate(sg.ones(1, 1, 2), 2, mode="cubic"), ValueError, "interpolate: mode must be one of nearest, .* got 'cubic'"),
        (lambda: sg.interpolate(sg.ones(1, 1, 2), 2, mode="bilinear"), sg.ShapeError, "interpolate: mode 'bilinear' does not fit x of shape"),
        (lambda: sg.interpolate(sg.ones(1, 1, 2)), ValueError, "interpolate: give one of size and scale_factor"),
        (lambda: sg.interpolate(sg.ones(1, 1, 2), 2, align_corners=True), ValueError, "interpolate: align_corners is for linear modes"),
        (lambda: sg.interpolate(sg.ones(1, 1, 2), (2, 2)), sg.ShapeError, "interpolate: expected 1 sizes or factors"),
        (lambda: sg.interpolate(sg.ones(1, 1, 2), 0), sg.ShapeError, "interpolate: cannot resize dimension 2 of 2 to 0"))),
    OpCase("interpolate[linear]", lambda x: sg.interpolate(x, 5, mode="linear", align_corners=True), lambda x: np.stack([x[..., 0], (x[..., 0] + x[..., 1]) / 2, x[..., 1], (x[..., 1] + x[..., 2]) / 2, x[..., 2]], -1), of((1, 2, 3)), bilinear=True),
    OpCase("pixel_shuffle", lambda x: sg.pixel_unshuffle(sg.pixel_shuffle(x, 2) * 3, 2), lambda x: 3 * x, of((2, 8, 3, 2)), bilinear=True, errors=(
        (lambda: sg.pixel_shuffle(sg.ones(3, 2, 2), 2), sg.ShapeError, r"pixel_shuffle: expected x .* for r = 2, got \(3, 2, 2\)"),
        (lambda: sg.pixel_unshuffle(sg.ones(3, 2, 3), 2), sg.ShapeError, r"pixel_unshuffle: expected x .* for r = 2, got \(3, 2, 3\)"))),
    OpCase("conv_transpose1d", lambda x, w: sg.conv_transpose1d(x, w, stride=2, groups=2), lambda x, w: np.concatenate(
        [ref_transposed(x[:, g : g + 1, :, None], w[g : g + 1, :, :, None], np.zeros(1), (2, 1), (0, 0), (0, 0), (1, 1))[..., 0] for g in (0, 1)], 1), of((2, 2, 4), (2, 1, 3)), bilinear=True),
]  # fmt: skip
