"""What `sparsegrad check-gpu` runs on dense tensors: a case is a family of ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sparsegrad as sg
from sparsegrad.cli.gpu_inputs import WIDE, Case, Inputs

__all__ = ["DENSE"]

# On numbers between 0.1 and 0.9, in which all of these are smooth.
_UNARY = (
    sg.abs, sg.neg, sg.sign, sg.square, sg.sqrt, sg.rsqrt, sg.reciprocal,
    sg.exp, sg.expm1, sg.log, sg.log1p, sg.log2, sg.log10,
    sg.sin, sg.cos, sg.tan, sg.asin, sg.acos, sg.atan, sg.sinh, sg.cosh, sg.asinh, sg.atanh,
    lambda x: sg.acosh(x + 1), sg.erf, sg.clone, lambda x: sg.clamp(x, 0.3, 0.6),
)  # fmt: skip
_SPECIAL = (sg.erfc, sg.erfinv, sg.lgamma, sg.digamma)
_ACTIVATIONS = (
    sg.relu, sg.sigmoid, sg.tanh, sg.silu, sg.softplus, sg.elu, sg.leaky_relu, sg.gelu,
    lambda x: sg.gelu(x, approximate="tanh"),
)  # fmt: skip
_STEPS = (sg.floor, sg.ceil, sg.round, sg.trunc)
_FACTS = (sg.isnan, sg.isinf, sg.isfinite, sg.signbit, sg.logical_not)
_BINARY = (
    sg.add, sg.sub, sg.mul, sg.div, sg.pow, sg.maximum, sg.minimum, sg.atan2, sg.hypot,
)  # fmt: skip
_COMPARED = (
    sg.eq, sg.ne, sg.lt, sg.le, sg.gt, sg.ge, sg.fmod, sg.remainder, sg.floor_divide,
    sg.logical_and, sg.logical_or, sg.logical_xor,
)  # fmt: skip
_BITS = (sg.bitwise_and, sg.bitwise_or, sg.bitwise_xor)


def _joined(t: Inputs, *parts: Any) -> sg.Tensor:
    """Several results as one vector."""
    return sg.cat([part.to(t.dtype).reshape(-1) for part in parts])


def _positive(t: Inputs, *shape: int) -> sg.Tensor:
    return t.leaf(*shape) * 0.4 + 0.5


def _unary(*ops: Callable[[Any], Any]) -> Callable[[Inputs], sg.Tensor]:
    return lambda t: _joined(t, *(op(_positive(t, 40)) for op in ops))


def _activations(t: Inputs) -> sg.Tensor:
    return _joined(t, *(op(3 * t.leaf(40)) for op in _ACTIVATIONS))


def _steps(t: Inputs) -> sg.Tensor:
    return _joined(t, *(op(5 * t.leaf(40).detach()) for op in (*_STEPS, *_FACTS)))


def _binary(t: Inputs) -> sg.Tensor:
    return _joined(t, *(op(_positive(t, 8, 5), _positive(t, 5)) for op in _BINARY))


def _compared(t: Inputs) -> sg.Tensor:
    """On small integers, many of them equal."""
    x, y = (sg.tensor(t.ids(4, 60) + 1, device=t.device) for _ in range(2))
    numbers = [op(x.to(t.dtype), y.to(t.dtype)) for op in _COMPARED]
    bits = [op(x, y) for op in _BITS]
    return _joined(t, *numbers, *bits, sg.bitwise_not(x), sg.where(x > y, x, -y))


def _reductions(t: Inputs) -> sg.Tensor:
    x = _positive(t, 6, 50)
    values = [x.sum(0), x.mean(1), x.amax(1), x.amin(0), x.max(1)[0], x.prod(1)]
    values += [x.var(1), sg.std(x, 0), sg.norm(x, dim=1), sg.cumsum(x, 1), sg.cummax(x, 1)[0]]
    values += [sg.nansum(x, 1), sg.logsumexp(x, 1), sg.softmax(x, 1), sg.log_softmax(x, 0)]
    values += [x.argmax(1), x.argmin(0), (x > 0.8).any(1), (x > 0.2).all(1), x.count_nonzero(0)]
    return _joined(t, *values)


def _sorted(t: Inputs) -> sg.Tensor:
    x = t.leaf(7, 40)
    return _joined(t, sg.sort(x, 1)[0], sg.argsort(x, 0), *sg.topk(x, 5), sg.median(x, 1)[0])


def _indexing(t: Inputs) -> sg.Tensor:
    x, rows = t.leaf(20, 6), t.ids(20, 9)
    index = sg.tensor(t.ids(20, 24).reshape(4, 6), device=t.device)
    moved = [x[rows], x[3:9, ::2], sg.gather(x, 0, index), sg.index_add(x, 0, rows, t.leaf(9, 6))]
    moved += [sg.pad(x, (1, 2)), sg.flip(x, (0,)), sg.stack([x, x + 1]), x.T, x.expand(2, 20, 6)]
    moved += [sg.block_diag(x, x.T)]
    return _joined(t, *moved, sg.masked_fill(x, x > 0.5, 0.0), sg.index_put(x, (rows,), x[rows]))


def _layers(t: Inputs) -> sg.Tensor:
    x, weight, bias = t.leaf(30, 20), t.leaf(10, 20), t.leaf(10)
    out = sg.linear(x, weight, bias)
    sparse = sg.spmm(t.matrix(30, 30), sg.bias_act(out, bias, "tanh"), bias=bias, activation="relu")
    norm = sg.batch_norm(out, None, None, t.leaf(10), t.leaf(10), training=True)
    norms = sg.layer_norm(out, (10,), t.leaf(10), t.leaf(10)), norm
    return _joined(t, *norms, out @ out.T, sparse)


def _pictures(t: Inputs) -> sg.Tensor:
    x = t.leaf(2, 3, 9, 9)
    y = sg.conv2d(x, t.leaf(4, 3, 3, 3), t.leaf(4), stride=2, padding=1)
    return _joined(t, y, sg.max_pool2d(x, 3), sg.avg_pool2d(x, 2))


def _linalg(t: Inputs) -> sg.Tensor:
    """On a positive definite matrix. What is unique only up to signs is put together again."""
    half = t.leaf(6, 6)
    A, b = half @ half.T + 3 * sg.eye(6, dtype=t.dtype, device=t.device), t.leaf(6, 2)
    lower, (q, r) = sg.linalg.cholesky(A), sg.linalg.qr(A)
    (u, s, vh), (low, vectors) = sg.linalg.svd(A), sg.linalg.eigh(A)
    whole = [lower, q @ r, (u * s) @ vh, (vectors * low) @ vectors.T]
    numbers = [sg.linalg.solve(A, b), sg.linalg.inv(A), sg.linalg.pinv(A), sg.linalg.det(A)]
    return _joined(t, *whole, *numbers, sg.slogdet(A)[1])


DENSE = (
    Case("functions of numbers", _unary(*_UNARY)),
    Case("special functions", _unary(*_SPECIAL), WIDE),
    Case("activations", _activations),
    Case("rounding and tests", _steps),
    Case("arithmetic with broadcasting", _binary),
    Case("comparisons, logic, bits", _compared),
    Case("reductions", _reductions),
    Case("sorting", _sorted, WIDE),
    Case("indexing and shapes", _indexing),
    Case("linear layers and norms", _layers),
    Case("convolution and pooling", _pictures, WIDE),
    Case("dense linear algebra", _linalg, WIDE),
)
