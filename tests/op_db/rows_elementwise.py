# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of elementwise functions: unary, trigonometric, activations, binary."""

from __future__ import annotations

from collections.abc import Iterator
from math import erf
from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase, Sample, Sparse
from op_db.samples import *  # noqa: F403
from sparsegrad.ops import binary as B
from sparsegrad.ops import elementwise as E
from sparsegrad.ops import trigonometric as T
from sparsegrad.ops import unary as U

ref_erf = np.vectorize(erf, otypes=[np.float64])


def within(low: float, high: float) -> Any:
    return lambda d: unary(d, low=low, high=high)


def between_integers(d: Draw) -> Iterator[Sample]:
    """Away from the steps of floor, ceil and round."""
    for s in [(3, 4), (), (0, 4)]:
        yield (np.floor(d.dense(*s)) + d.dense(*s, low=0.1, high=0.4),), {}


def no_wrap(d: Draw) -> Iterator[Sample]:
    """Pairs whose quotient is no integer."""
    for s, t in [((3, 4), (3, 4)), ((3, 4), (4,)), ((0, 4), (1, 4)), ((), ())]:
        b = d.dense(*t, low=1.0, high=2.0)
        yield (b * (np.floor(d.dense(*s)) + d.dense(*s, low=0.1, high=0.9)), b), {}


def bounded(d: Draw, lowest: float = -0.44, highest: float = 0.44) -> Iterator[Sample]:
    """Sparse matrices of every kind with values in a range."""
    for a in d.every_kind():
        steps = np.linspace(lowest, highest, max(2, a.values.size))[: a.values.size]
        yield (Sparse(a.coords, steps + 0.011, a.shape),), {}


def unique(d: Draw) -> Iterator[Sample]:
    """Without duplicates: their sum could fall on a kink."""
    for (a,), kw in bounded(d):
        if len({*map(tuple, a.coords.T)}) == a.coords.shape[1]:
            yield (a,), kw


def huge_small(d: Draw) -> Sample:
    a = d.huge()
    return (Sparse(a.coords, a.values / 10, a.shape),), {}


def ref_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + ref_erf(x / np.sqrt(2)))


def ref_gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def special(d: Draw) -> Iterator[Sample]:
    yield (np.array([1.0, np.nan, np.inf, -np.inf, 0.0]),), {}
    yield (d.dense(0, 2),), {}


# name, op, reference, samples
SMOOTH: list[Any] = [
    ("log1p", sg.log1p, np.log1p, within(-0.5, 3)),
    ("expm1", sg.expm1, np.expm1, unary),
    ("square", sg.square, np.square, unary),
    ("sin", sg.sin, np.sin, unary),
    ("tan", sg.tan, np.tan, within(-1, 1)),
    ("asin", sg.asin, np.arcsin, within(-0.9, 0.9)),
    ("atan", sg.atan, np.arctan, unary),
    ("sinh", sg.sinh, np.sinh, unary),
    ("asinh", sg.asinh, np.arcsinh, unary),
    ("atanh", lambda x: sg.atanh(x * 0.4), lambda x: np.arctanh(x * 0.4), unary),
    ("erf", sg.erf, ref_erf, unary),
    ("leaky_relu", sg.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x), unary_away),
    ("elu", lambda x: sg.elu(x, 0.7), lambda x: np.where(x > 0, x, 0.7 * np.expm1(x)), unary_away),
    ("silu", sg.silu, lambda x: x / (1 + np.exp(-x)), unary),
    ("gelu", sg.gelu, ref_gelu, unary),
    ("gelu_tanh", lambda x: sg.gelu(x, "tanh"), ref_gelu_tanh, unary),
]
STEPS: list[Any] = [
    ("floor", sg.floor, np.floor), ("ceil", sg.ceil, np.ceil), ("trunc", sg.trunc, np.trunc),
    ("round", sg.round, np.round),
]  # fmt: skip
NOT_SPARSE: list[Any] = [
    ("log2", np.log2, positive), ("log10", np.log10, positive),
    ("rsqrt", lambda x: x**-0.5, positive), ("reciprocal", lambda x: 1 / x, positive),
    ("cos", np.cos, unary), ("acos", np.arccos, within(-0.9, 0.9)), ("cosh", np.cosh, unary),
    ("acosh", np.arccosh, within(1.2, 3)), ("softplus", lambda x: np.log1p(np.exp(x)), unary),
]  # fmt: skip

ROWS = [
    *(OpCase(name + "[scaled]" * (name == "atanh"), op, ref, samples, f"{name}_p") for name, op, ref, samples in SMOOTH),
    *(OpCase(f"{name}[sparse]", op, ref, unique if "elu" in name else bounded, None, FORMATS, huge=huge_small)
      for name, op, ref, _ in SMOOTH if name not in ("log1p", "asin")),
    OpCase("asin[sparse]", lambda a: sg.asin(a * 0.4), lambda x: np.arcsin(x * 0.4), bounded, None, FORMATS, huge=huge_small),
    OpCase("log1p[sparse]", sg.log1p, np.log1p, one_sparse_positive, None, FORMATS, huge=lambda d: (
        (Sparse(*(lambda h: (h.coords, np.abs(h.values), h.shape))(d.huge())),), {})),
    *(OpCase(name, op, ref, between_integers, f"{name}_p") for name, op, ref in STEPS),
    *(OpCase(f"{name}[sparse]", op, ref, unique, None, FORMATS, huge=huge_small) for name, op, ref in STEPS),
    OpCase("round[decimals]", lambda x: sg.round(x, 1), lambda x: np.round(x, 1), lambda d: iter([
        ((np.array([0.12, -3.46, 2.78]),), {})])),
    OpCase("sign", sg.sign, np.sign, unary_away, "sign_p"),
    OpCase("sign[sparse]", sg.sign, np.sign, unique, None, FORMATS, huge=huge_small),
    *(OpCase(name, getattr(sg, name), ref, samples, f"{name}_p", errors=(
        (lambda name=name: getattr(sg, name)(eye()), sg.DensifyError, f"{name}: absent entries .* would become"),
    )) for name, ref, samples in NOT_SPARSE),
    OpCase("softplus[beta]", lambda x: sg.softplus(x, 2.0, 1.0),
           lambda x: np.where(2 * x > 1, x, np.log1p(np.exp(2 * x)) / 2), lambda d: iter([
        ((np.array([-1.0, 0.3, 0.7, 4.0]),), {})])),
    OpCase("logsigmoid", sg.logsigmoid, lambda x: -np.log1p(np.exp(-x)), unary),
    OpCase("clamp", lambda x: sg.clamp(x, -1, 0.5), lambda x: np.clip(x, -1, 0.5),
           lambda d: iter([((np.array([[-3.0, -0.3], [0.2, 4.0]]),), {}), ((d.dense(0, 2),), {})]), "clamp_p", errors=(
        (lambda: sg.clamp(sg.ones(2)), ValueError, "clamp: at least one of min and max"),
        (lambda: sg.clamp(eye(), 0.5), sg.DensifyError, "clamp: absent entries .* min 0.5, max None"),
        (lambda: sg.clamp(eye(), sg.ones(2)), sg.DensifyError, "clamp: the bounds of a sparse tensor"),
    )),
    OpCase("clamp[min]", lambda x: sg.clip(x, 0.1), lambda x: np.maximum(x, 0.1), unary),
    OpCase("clamp[max]", lambda x: sg.clamp(x, max=0.1), lambda x: np.minimum(x, 0.1), unary),
    OpCase("clamp[tensors]", sg.clamp, lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi),
           lambda d: iter([((d.dense(3, 4), d.dense(4, high=-0.5), d.dense(3, 1, low=0.5)), {})])),
    OpCase("clamp[sparse]", lambda a: sg.clamp(a, -0.5, 0.6), lambda x: np.clip(x, -0.5, 0.6), unique, None, FORMATS,
           huge=huge_small),
    OpCase("abs_power", lambda x: U.abs_power_p(x, p=3.0) - U.abs_power_p(x, p=2), lambda x: np.abs(x) ** 3 - x * x, unary_away, "abs_power_p"),
    OpCase("abs_power_grad", lambda dy, x: U.abs_power_grad_p(dy, x, p=3.0) - U.abs_power_grad_p(dy, x, p=2), lambda dy, x: dy * (3 * x * np.abs(x) - 2 * x), same_shape,
           "abs_power_grad_p"),
    OpCase("root", lambda x: U.root_p(x, p=3.0) - U.root_p(x, p=2), lambda x: np.cbrt(x) - np.sqrt(x), positive, "root_p"),
    OpCase("root_grad", lambda dy, y: U.root_grad_p(dy, y, p=3.0) - U.root_grad_p(dy, y, p=2), lambda dy, y: dy * (1 / (3 * y * y) - 1 / (2 * y)),
           lambda d: (((dy, np.abs(y) + 0.3), {}) for (dy, y), _ in same_shape(d)), "root_grad_p"),
    OpCase("maximum_grad", E.maximum_grad_p, lambda dy, a, b: dy * (a > b), lambda d: (((x, *p), {}) for (x, _), _ in same_shape(d) for p in [(d.dense(*x.shape), d.dense(*x.shape))]),
           "maximum_grad_p"),
    *(OpCase(f"{op.name[:-2]}", op, lambda dy, x, slope=slope: dy * slope(x), lambda d: (((dy, x / 2.5), {}) for (dy, x), _ in same_shape(d)), op.name)
      for op, slope in ((T.asin_grad_p, lambda x: (1 - x * x) ** -0.5), (T.asinh_grad_p, lambda x: (1 + x * x) ** -0.5),
                        (T.atanh_grad_p, lambda x: 1 / (1 - x * x)),
                        (T.erf_grad_p, lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x)))),
    OpCase("clamp_grad", lambda dy, x: U.clamp_grad_p(dy, x, low=-0.6, high=0.6),
           lambda dy, x: dy * (np.abs(x) <= 0.6), same_shape, "clamp_grad_p"),
    OpCase("clamp_grad[open]", lambda dy, x: U.clamp_grad_p(dy, x, low=0, high=6, closed=False), lambda dy, x: np.array([0, 2, 3, 0, 0.0]),
           lambda d: iter([((np.array([1.0, 2, 3, 4, np.inf]), np.array([0.0, 0.5, np.nan, 6, 9])), {})]), order=0),
    *(OpCase(name, getattr(sg, name), ref, special, f"{name}_p", order=0) for name, ref in (
        ("isnan", np.isnan), ("isinf", np.isinf), ("isfinite", np.isfinite), ("logical_not", np.logical_not), ("signbit", np.signbit))),
    *(OpCase(name, getattr(sg, name), getattr(np, name), special, order=0) for name in ("isposinf", "isneginf")),
    *(OpCase(f"{name}[sparse]", getattr(sg, name), ref, one_sparse, None, FORMATS, order=0) for name, ref in (
        ("isnan", np.isnan), ("isinf", np.isinf), ("signbit", np.signbit), ("isposinf", np.isposinf), ("isneginf", np.isneginf))),
    OpCase("atan2", sg.atan2, np.arctan2, binary_positive, "atan2_p"),
    OpCase("remainder", sg.remainder, np.remainder, no_wrap, "remainder_p"),
    OpCase("fmod", sg.fmod, np.fmod, no_wrap, "fmod_p"),
    OpCase("remainder[scalar]", lambda x: x % 3 + 7 % (x + 9), lambda x: x % 3 + 7 % (x + 9), within(0.5, 1)),
    OpCase("floor_divide", sg.floor_divide, np.floor_divide, no_wrap, "floor_divide_p", order=0),
    OpCase("floor_divide[scalar]", lambda x: x // 3, lambda x: x // 3, unary, order=0),
    OpCase("lerp", sg.lerp, lambda a, b, w: a + w * (b - a), lambda d: iter([
        ((d.dense(3, 4), d.dense(4), d.dense(3, 1)), {}), ((d.dense(0), d.dense(0), d.dense()), {})])),
    *(OpCase(name, getattr(sg, name), ref, binary, f"{name}_p", order=0) for name, ref in (
        ("logical_and", np.logical_and), ("logical_or", np.logical_or), ("logical_xor", np.logical_xor))),
    *(OpCase(name, lambda a, b, op=op: op(a > 0, b > 0), lambda a, b, ref=ref: ref(a > 0, b > 0), binary,
             f"{name}_p", order=0, errors=(
        (lambda name=name: getattr(sg, name)(sg.ones(2), 1), sg.DtypeError, f"{name}: .*Tensor"),
    )) for name, op, ref in (
        ("bitwise_and", lambda a, b: a & b, np.logical_and), ("bitwise_or", lambda a, b: a | b, np.logical_or),
        ("bitwise_xor", lambda a, b: a ^ b, np.logical_xor))),
    OpCase("bitwise_not", lambda x: ~(x > 0), lambda x: ~(x > 0), unary, "bitwise_not_p", order=0),
    OpCase("isclose", lambda a: B.isclose(a, sg.tensor([1.0, 2.0]), rtol=0.1), lambda a: np.isclose(a, [1.0, 2.0], rtol=0.1),
           lambda d: iter([((np.array([1.01, 3.0]),), {})]), order=0),
]  # fmt: skip
