"""Batches normalised channel by channel: x (n, d) or (n, d, l), all over n and l.

Part of the contract; pure array code here. What belongs to a channel is (d,). 16-bit floats are
computed in float32, and results may come out in float32: ops round them once.
"""

from __future__ import annotations

from sparsegrad.backends.basics import Array
from sparsegrad.dtypes import accumulator

__all__ = ["Channels"]


class Channels:
    """Batch normalisation and its gradient."""

    def channel_moments(self, x: Array) -> tuple[Array, Array]:
        """The mean and the variance of each channel, which has at least one number."""
        x = _wide(x)
        mean = x.mean(axis=_others(x))
        centred = x - _column(mean, x)
        return mean, (centred * centred).mean(axis=_others(x))

    def batch_norm(
        self, x: Array, weight: Array | None, bias: Array | None, mean: Array, scale: Array
    ) -> Array:
        """(x - mean) * scale * weight + bias."""
        x = _wide(x)
        out = x - _column(mean, x)
        out *= _column(scale if weight is None else scale * weight, x)
        if bias is not None:
            out += _column(bias, x)
        return out

    def batch_norm_grad(
        self, g: Array, x: Array, weight: Array | None, mean: Array, scale: Array
    ) -> tuple[Array, Array, Array]:
        """Gradients of `batch_norm` to x, weight and bias, where mean and scale are those of x."""
        g, x = _wide(g), _wide(x)
        normal = (x - _column(mean, x)) * _column(scale, x)
        to_bias, to_weight = g.sum(axis=_others(x)), (g * normal).sum(axis=_others(x))
        share = 1 / max(1, x.size // max(1, mean.size))
        out = g - _column(to_bias * share, x)
        out -= normal * _column(to_weight * share, x)
        out *= _column(scale if weight is None else scale * weight, x)
        return out, to_weight, to_bias


def _wide(x: Array) -> Array:
    return x.astype(accumulator(x.dtype), copy=False)


def _others(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _column(each: Array, x: Array) -> Array:
    """One number a channel, in the dtype of x, beside x."""
    return each.astype(x.dtype, copy=False).reshape(-1, *(1,) * (x.ndim - 2))
