"""Images and signals in other sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsegrad import backends
from sparsegrad.errors import ShapeError
from sparsegrad.ops.index import take
from sparsegrad.ops.shape import as_argument, permute_p, reshape_p

__all__ = ["interpolate", "pixel_shuffle", "pixel_unshuffle"]

_LINEAR = {"linear": 1, "bilinear": 2, "trilinear": 3}  # and how many dimensions each is of


def interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Any:
    """x (N, C, *n) in another size (N, C, *o), as in PyTorch.

    size, scale_factor: one of them, a number or one a dimension; o = floor(n * scale_factor).
    mode: "nearest", "nearest-exact" (which takes the element under the middle), or "linear",
        "bilinear", "trilinear" for one, two, three dimensions.
    align_corners: whether linear modes keep the outer elements where they are, instead of the
        outer edges.

    Raises ShapeError for other shapes or sizes, ValueError for another mode.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([[[1.0, 3.0]]])
    >>> sg.interpolate(x, size=4), sg.interpolate(x, size=3, mode="linear", align_corners=True)
    (tensor([[[1., 1., 3., 3.]]]), tensor([[[1., 2., 3.]]]))
    """
    x = as_argument("interpolate", x)
    dims = x.ndim - 2
    if mode not in ("nearest", "nearest-exact", *_LINEAR):
        raise ValueError(
            f"interpolate: mode must be one of nearest, nearest-exact, {', '.join(_LINEAR)}, got "
            f"{mode!r}"
        )
    if not 1 <= dims <= 3 or _LINEAR.get(mode, dims) != dims:
        raise ShapeError(f"interpolate: mode {mode!r} does not fit x of shape {tuple(x.shape)}")
    if (size is None) == (scale_factor is None):
        raise ValueError("interpolate: give one of size and scale_factor")
    if align_corners is not None and mode not in _LINEAR:
        raise ValueError(f"interpolate: align_corners is for linear modes, got {mode!r}")
    given = size if scale_factor is None else scale_factor
    each = tuple(given) if hasattr(given, "__len__") else (given,) * dims
    if len(each) != dims:
        raise ShapeError(f"interpolate: expected {dims} sizes or factors, got {given}")
    for d, value in enumerate(each):
        n = x.shape[2 + d]
        out = math.floor(n * value) if size is None else int(value)
        if out < 1 or n < 1:
            raise ShapeError(f"interpolate: cannot resize dimension {2 + d} of {n} to {out}")
        step = 1 / value if size is None else n / out
        x = _resized(x, 2 + d, out, step, mode, bool(align_corners))
    return x


def _resized(x: Any, axis: int, out: int, step: float, mode: str, corners: bool) -> Any:
    """One axis with `out` elements, each `step` old ones from the last."""
    n, places = x.shape[axis], np.arange(out)
    be = backends.for_array(x.data)
    if mode not in _LINEAR:
        at = np.floor((places + (0.5 if mode == "nearest-exact" else 0)) * step)
        index = be.asarray(np.minimum(at, n - 1).astype("int64"))
        return take(x, index, axis, sparse_grad=False)
    if corners:
        at = places * ((n - 1) / (out - 1) if out > 1 else 0)
    else:
        at = np.maximum((places + 0.5) * step - 0.5, 0)
    low = np.minimum(np.floor(at), n - 1)
    share = (at - low).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    first, second = (
        take(x, be.asarray(np.minimum(i, n - 1).astype("int64")), axis, sparse_grad=False)
        for i in (low, low + 1)
    )
    return first + (second - first) * be.asarray(share.astype(x.dtype))


def pixel_shuffle(x: Any, upscale_factor: int) -> Any:
    """Channels spread over space: (*B, C r², h, w) -> (*B, C, h r, w r) for r = upscale_factor.

    Raises ShapeError for channels that r² does not divide.

    Shi et al., "Real-time single image and video super-resolution using an efficient sub-pixel
    convolutional neural network", CVPR 2016.

    >>> import sparsegrad as sg
    >>> sg.pixel_shuffle(sg.arange(4).reshape(4, 1, 1), 2)
    tensor([[[0, 1],
             [2, 3]]])
    """
    x, r = as_argument("pixel_shuffle", x), upscale_factor
    if x.ndim < 3 or r < 1 or x.shape[-3] % (r * r):
        raise ShapeError(
            f"pixel_shuffle: expected x (*B, C r², h, w) for r = {r}, got {tuple(x.shape)}"
        )
    *lead, channels, h, w = x.shape
    b = len(lead)
    x = reshape_p(x, shape=(*lead, channels // (r * r), r, r, h, w))
    x = permute_p(x, axes=(*range(b), b, b + 3, b + 1, b + 4, b + 2))
    return reshape_p(x, shape=(*lead, channels // (r * r), h * r, w * r))


def pixel_unshuffle(x: Any, downscale_factor: int) -> Any:
    """The inverse of `pixel_shuffle`: (*B, C, h r, w r) -> (*B, C r², h, w).

    Raises ShapeError for sizes that r does not divide.

    >>> import sparsegrad as sg
    >>> sg.pixel_unshuffle(sg.tensor([[[0, 1], [2, 3]]]), 2).shape
    (4, 1, 1)
    """
    x, r = as_argument("pixel_unshuffle", x), downscale_factor
    if x.ndim < 3 or r < 1 or x.shape[-1] % r or x.shape[-2] % r:
        raise ShapeError(
            f"pixel_unshuffle: expected x (*B, C, h r, w r) for r = {r}, got {tuple(x.shape)}"
        )
    *lead, channels, h, w = x.shape
    b = len(lead)
    x = reshape_p(x, shape=(*lead, channels, h // r, r, w // r, r))
    x = permute_p(x, axes=(*range(b), b, b + 2, b + 4, b + 1, b + 3))
    return reshape_p(x, shape=(*lead, channels * r * r, h // r, w // r))
