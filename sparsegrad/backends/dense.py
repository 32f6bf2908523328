"""What layers of dense networks do over and over, each a method that needs one pass.

Part of the contract; pure array code here. Arrays are rows, (n, C) or (n, d), except where a method
says otherwise. 16-bit floats are computed in float32, and results may come out in float32: ops
round them once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsegrad.backends.basics import Array, Basics
from sparsegrad.backends.channels import Channels
from sparsegrad.dtypes import accumulator

__all__ = ["ACTIVATIONS", "Dense"]


# Activations that come with a bias in one pass: their slope follows from their result.
ACTIVATIONS = ("relu", "sigmoid", "tanh", "identity")


class Dense(Channels, Basics):
    """Fused methods for dense layers, and gradients; those of batch normalisation: `Channels`."""

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """x (n, k) @ weight (m, k).T + bias (m,) -> (n, m); the bias is added in place."""
        out = self.matmul(x, weight.T)
        if bias is not None:
            out += bias
        return out

    def bias_act(self, x: Array, bias: Array, activation: str) -> Array:
        """activation(x + bias) for x (n, m), bias (m,) and one of `ACTIVATIONS`: (n, m)."""
        return self.fused(_activated, x, bias, activation=activation)

    def bias_act_grad(self, g: Array, y: Array, activation: str) -> tuple[Array, Array]:
        """Gradients of `bias_act` to x (n, m) and to bias (m,), for g and its result y (n, m), of
        any activation but "identity"."""
        out = self.fused(_before_activation, g, y, activation=activation)
        return out, self.sum(out, 0)

    # ---- activations, of any shape -------------------------------------------------------------
    def relu_grad(self, g: Array, y: Array) -> Array:
        """g where relu, whose result is y, has slope 1, and 0 elsewhere."""
        return self.xp.where(y > 0, g, 0)

    def leaky_relu(self, x: Array, slope: float) -> Array:
        """x above 0, slope * x elsewhere."""
        x = _wide(x)
        return self.xp.where(x > 0, x, x * slope)

    def leaky_relu_grad(self, g: Array, x: Array, slope: float) -> Array:
        """g where x is above 0, slope * g elsewhere."""
        g = _wide(g)
        return self.xp.where(x > 0, g, g * slope)

    def elu(self, x: Array, alpha: float) -> Array:
        """x above 0, alpha * (exp(x) - 1) elsewhere."""
        x = _wide(x)
        return self.xp.where(x > 0, x, alpha * self.xp.expm1(self.xp.minimum(x, 0)))

    def elu_grad(self, g: Array, x: Array, alpha: float) -> Array:
        """g times the derivative of `elu` at x."""
        g, x = _wide(g), _wide(x)
        return self.xp.where(x > 0, g, g * (alpha * self.xp.exp(self.xp.minimum(x, 0))))

    def gelu(self, x: Array) -> Array:
        """x times the normal distribution function."""
        x = _wide(x)
        return 0.5 * x * (1 + self.erf(x * math.sqrt(0.5)))

    def gelu_grad(self, g: Array, x: Array) -> Array:
        """g times the derivative of `gelu` at x."""
        x = _wide(x)
        density = self.xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        return _wide(g) * (0.5 * (1 + self.erf(x * math.sqrt(0.5))) + x * density)

    def silu(self, x: Array) -> Array:
        """x times the logistic function."""
        x = _wide(x)
        return x * (0.5 * (1 + self.xp.tanh(0.5 * x)))

    def silu_grad(self, g: Array, x: Array) -> Array:
        """g times the derivative of `silu` at x."""
        x = _wide(x)
        s = 0.5 * (1 + self.xp.tanh(0.5 * x))
        return _wide(g) * (s * (1 + x * (1 - s)))

    # ---- along axes, of any shape --------------------------------------------------------------
    def amax_grad(self, g: Array, x: Array, top: Array, axis: tuple[int, ...]) -> Array:
        """g, of size 1 along `axis`, in equal shares to the elements of x that are `top`."""
        hit, g = x == top, _wide(g)  # half precision stops counting at 2048
        ties = hit.sum(axis=axis, keepdims=True, dtype=np.int64)
        return hit * (g / ties.astype(g.dtype))

    def amax(self, x: Array, axis: tuple[int, ...], keepdims: bool = False) -> Array:
        """The maximum over axes; NaN where there is one."""
        return x.max(axis=axis, keepdims=keepdims)

    def amin(self, x: Array, axis: tuple[int, ...], keepdims: bool = False) -> Array:
        """The minimum over axes; NaN where there is one."""
        return x.min(axis=axis, keepdims=keepdims)

    def argmax(self, x: Array, axis: int | None, keepdims: bool = False) -> Array:
        """Where the first maximum along an axis is, int64; NaN is largest."""
        return self.xp.argmax(x, axis=axis, keepdims=keepdims)

    def argkth(self, x: Array, axis: int, k: int) -> Array:
        """Where the k-th element (from 0) in the stable order along an axis is, kept as size 1; NaN
        is largest."""
        order = self.xp.argsort(x, axis=axis, kind="stable")
        return order[(slice(None),) * axis + (slice(k, k + 1),)]

    def cumsum(self, x: Array, axis: int) -> Array:
        """Sums up to each element along an axis."""
        return self.xp.cumsum(x, axis=axis, dtype=accumulator(x.dtype))

    def argcummax(self, x: Array, axis: int, largest: bool) -> Array:
        """Where the largest (or smallest) element up to each one along an axis is, int64, the last
        of equal ones; a NaN stays. In log2(n) rounds, each of which doubles how far back an element
        looks."""
        xp = self.xp
        places = xp.arange(x.shape[axis]).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
        best, where = x.copy(), xp.broadcast_to(places, x.shape).copy()
        lead, reach = (slice(None),) * axis, 1
        while reach < x.shape[axis]:
            early, late = (*lead, slice(None, -reach)), (*lead, slice(reach, None))
            old, new = best[early], best[late]
            keep = (new >= old if largest else new <= old) | (new != new)
            # Both are read before one is written: they overlap.
            held, at = xp.where(keep, new, old), xp.where(keep, where[late], where[early])
            best[late], where[late] = held, at
            reach *= 2
        return where

    def softmax(self, x: Array, axis: int) -> Array:
        """exp(x) over its sum along an axis."""
        wide = _wide(x)
        weight = self.xp.exp(wide - wide.max(axis=axis, keepdims=True))
        weight /= weight.sum(axis=axis, keepdims=True)
        return weight.astype(x.dtype, copy=False)

    def log_softmax(self, x: Array, axis: int) -> Array:
        """The logarithm of `softmax`."""
        wide = _wide(x)
        shifted = wide - wide.max(axis=axis, keepdims=True)
        shifted -= self.xp.log(self.xp.exp(shifted).sum(axis=axis, keepdims=True))
        return shifted.astype(x.dtype, copy=False)

    def logsumexp(self, x: Array, axis: tuple[int, ...]) -> Array:
        """log(sum(exp(x))) over axes, which are kept as size 1."""
        xp, wide = self.xp, _wide(x)
        top = wide.max(axis=axis, keepdims=True)
        shift = xp.where(xp.isfinite(top), top, 0)
        total = xp.exp(wide - shift).sum(axis=axis, keepdims=True)
        return (xp.log(total) + shift).astype(x.dtype, copy=False)  # of -inf alone: log(0)

    # ---- cross entropy -------------------------------------------------------------------------
    def cross_entropy(
        self, x: Array, classes: Array, weight: Array | None, smoothing: float
    ) -> tuple[Array, Array]:
        """Losses (n,) of logits x (n, C), and log(sum(exp(x))) of each row (n,).

        classes (n,): int64, negative for a row that is left out: its loss is 0. weight (C,): a
        factor of each class. The target is 1 - smoothing at the class plus smoothing / C at all.
        """
        xp, x = self.xp, _wide(x)
        if not x.size:
            return xp.zeros(len(x), x.dtype), xp.zeros(len(x), x.dtype)
        kept = classes >= 0
        at = xp.where(kept, classes, 0)
        top = x.max(axis=1)
        lse = xp.log(xp.exp(x - top[:, None]).sum(axis=1)) + top
        loss = lse - x[xp.arange(len(x)), at]
        if weight is not None:
            loss = loss * weight[at]
        if smoothing:
            if weight is None:
                spread = x.shape[1] * lse - x.sum(axis=1)
            else:
                spread = weight.sum() * lse - x @ weight
            loss = (1 - smoothing) * loss + smoothing / x.shape[1] * spread
        return xp.where(kept, loss, 0).astype(x.dtype, copy=False), lse

    def cross_entropy_grad(
        self,
        g: Array,
        x: Array,
        lse: Array,
        classes: Array,
        weight: Array | None,
        smoothing: float,
    ) -> Array:
        """Gradient of `cross_entropy` to x, for g (n,) and what it returned: (n, C)."""
        xp, g, x = self.xp, _wide(g), _wide(x)
        if not x.size:
            return xp.zeros_like(x)
        kept, every = classes >= 0, x.shape[1]
        at = xp.where(kept, classes, 0)
        share = (1 - smoothing) * (xp.ones(len(x), x.dtype) if weight is None else weight[at])
        total = every if weight is None else weight.sum()
        scale = xp.where(kept, g, 0)
        rows = (scale * (share + smoothing * total / every)).astype(x.dtype, copy=False)
        out = xp.exp(x - lse[:, None]) * rows[:, None]
        if smoothing:
            each = smoothing / every * (1 if weight is None else weight)
            out -= (scale[:, None] * each).astype(x.dtype, copy=False)
        out[xp.arange(len(x)), at] -= scale * share
        return out

    # ---- layer normalisation -------------------------------------------------------------------
    def layer_norm(
        self, x: Array, weight: Array | None, bias: Array | None, eps: float
    ) -> tuple[Array, Array, Array]:
        """(x - mean) * scale * weight + bias by rows of x (n, d), with scale =
        1 / sqrt(variance + eps), and the means and scales (n,). weight and bias are (d,)."""
        x = _wide(x)
        mean = x.mean(axis=1) if x.shape[1] else self.xp.zeros(len(x), x.dtype)
        out = x - mean[:, None]
        total = (out * out).sum(axis=1)
        scale = 1 / self.xp.sqrt(total / max(1, x.shape[1]) + eps)
        out *= scale[:, None]
        if weight is not None:
            out *= weight
        if bias is not None:
            out += bias
        return out, mean, scale

    def layer_norm_grad(
        self, g: Array, x: Array, weight: Array | None, mean: Array, scale: Array
    ) -> Array:
        """Gradient of `layer_norm` to x for g (n, d) and what it returned: (n, d)."""
        g, x = _wide(g), _wide(x)
        if not x.size:
            return self.xp.zeros_like(x)
        normal = (x - mean[:, None]) * scale[:, None]
        h = g if weight is None else g * weight
        out = h - h.mean(axis=1)[:, None]
        out -= normal * (h * normal).mean(axis=1)[:, None]
        out *= scale[:, None]
        return out

    def layer_norm_weight_grad(self, g: Array, x: Array, mean: Array, scale: Array) -> Array:
        """Gradient of `layer_norm` to weight: the sum over rows of g times the normal x, (d,)."""
        return (_wide(g) * ((_wide(x) - mean[:, None]) * scale[:, None])).sum(axis=0)


def _activated(xp: Any, x: Array, bias: Array, *, activation: str) -> Array:
    out = _wide(x) + _wide(bias)
    if activation == "identity":
        return out
    if activation == "relu":
        return xp.maximum(out, 0, out=out)
    if activation == "tanh":
        return xp.tanh(out, out=out)
    out *= 0.5
    xp.tanh(out, out=out)
    out += 1
    out *= 0.5
    return out


def _before_activation(xp: Any, g: Array, y: Array, *, activation: str) -> Array:
    """The gradient to what an activation was of, from g and its result y."""
    g, y = _wide(g), _wide(y)
    if activation == "relu":
        return xp.where(y > 0, g, 0)
    return g * (1 - y * y) if activation == "tanh" else g * (y * (1 - y))


def _wide(x: Array) -> Array:
    return x.astype(accumulator(x.dtype), copy=False)
