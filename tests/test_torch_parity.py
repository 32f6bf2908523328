# ruff: noqa: E501  (a case is read as a line)
"""Values, dtypes and gradients are PyTorch's, at kinks and ties too; skipped where it is absent.

A case is code that runs with `t` as either library, on the same arrays.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg

torch = pytest.importorskip("torch")
F = torch.nn.functional

KINKS = np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.5, 7.0])
POSITIVE = np.array([0.5, 1.0, 2.0, 9.0])
INTS = np.array([-3, 0, 2, 5])
A, B = np.array([-3.5, 3.5, 2.0, -2.0]), np.array([2.0, -2.0, 0.7, -0.3])
M = np.array([[3.0, 1, 2, 2], [0, 5, 5, -1], [2, 2, 2, 2]])
RAMP = M + 0.01 * np.arange(12).reshape(3, 4)  # no ties
rng = np.random.default_rng(0)
MASK = np.array([True, False])


class _Names:
    """sparsegrad, with the functions that PyTorch keeps elsewhere under one name in both."""

    def __init__(self, ours: bool) -> None:
        self.ours = ours

    def __getattr__(self, name: str) -> Any:
        if self.ours:
            return getattr(sg, name)
        return getattr(torch, name) if hasattr(torch, name) else getattr(F, name)

    def pad(self, *args: Any, **kw: Any) -> Any:
        return (sg.pad if self.ours else F.pad)(*args, **kw)


def of(op: str, *arrays: np.ndarray) -> Any:
    return pytest.param(op, arrays, id=op)


def draw(*sizes: tuple[int, ...]) -> list[np.ndarray]:
    return [rng.standard_normal(s) for s in sizes]


SPD = (lambda s: s @ s.T + 3 * np.eye(3))(rng.standard_normal((3, 3)))
UNARY = "expm1 square sign floor ceil trunc round sin cos tan atan sinh cosh asinh erf leaky_relu elu silu gelu softplus logsigmoid relu abs tanh sigmoid isnan isinf isfinite logical_not exp"
CASES = [
    *(of(f"t.{name}(x)", KINKS) for name in UNARY.split()),
    *(of(f"t.{name}(x)", POSITIVE) for name in ["log1p", "log2", "log10", "rsqrt", "reciprocal", "sqrt", "log"]), of("t.acosh(x + 1)", POSITIVE),
    *(of(f"t.{name}(x)", np.array([-0.5, 0.0, 0.7])) for name in ("asin", "acos", "atanh")),
    *(of(f"t.{name}(x + 4)", INTS) for name in ["square", "sign", "floor", "round", "abs", "sin", "exp", "sqrt", "reciprocal", "erf", "logical_not", "log1p"]),
    of("t.gelu(x, approximate='tanh')", KINKS), of("t.round(x, decimals=1)", KINKS),
    of("t.clamp(x, -1, 1)", KINKS), of("t.clamp(x, 1, -1)", KINKS), of("t.clamp(x, y, z)", KINKS, KINKS * 0 - 1, KINKS * 0 + 1),
    of("t.clamp(x, 0.5)", INTS), of("t.clamp(x, 1)", INTS),
    *(of(f"t.{name}(x, y)", A, B) for name in ["remainder", "fmod", "atan2", "maximum", "minimum"]),
    of("t.maximum(x, y)", A, A), of("t.minimum(x, y)", A, A), of("t.lerp(x, y, 0.3)", A, B),
    of("t.floor_divide(x, y)", INTS, np.array([2, 2, -3, 3])), of("x % y", INTS, np.array([2, 2, -3, 3])), of("x // 2", INTS), of("7 // x", INTS + 9), of("x % 2", A),
    *(of(f"t.{name}(x, y)", INTS, A) for name in ("logical_and", "logical_or", "logical_xor")),
    *(of(f"x {op} y", INTS, INTS[::-1].copy()) for op in "&|^"), of("~x", MASK), of("x ^ True", MASK), of("x & (x > 0)", MASK),
    *(of(f"tuple(t.{name}(x, {dim}))", RAMP) for dim in (0, -1) for name in ("min", "max", "median", "sort")),
    *(of(f"t.{name}(x, {dim})", RAMP) for dim in (0, -1) for name in ("argmin", "argmax", "argsort")),
    *(of(f"t.{name}(x, {dim})", M) for dim in (0, -1) for name in ["cumsum", "cumprod", "any", "all", "count_nonzero", "var", "std", "amin", "amax"]),
    *(of(f"t.{name}(x, 1)", M.astype(int)) for name in ["cumsum", "cumprod", "any", "all", "count_nonzero"]),
    of("t.std_mean(x, 1)", M), of("t.var(x)", M), of("t.var(x, 1, unbiased=False, keepdim=True)", M), of("t.var(x, dim=1, correction=0)", M),
    of("tuple(t.topk(x, 2, 1))", RAMP), of("tuple(t.topk(x, 2, largest=False))", RAMP), of("tuple(t.kthvalue(x, 2, 1))", RAMP),
    of("t.min(x)", M), of("t.amin(x, 1)", M), of("t.min(x)", MASK), of("t.min(x)", np.array([3, 0], np.uint8)), of("t.min(x, y)", A, B), of("t.max(x, y)", A, B),
    of("t.unique(x.detach(), return_inverse=True, return_counts=True)", M), of("t.unique(x.detach(), return_inverse=True, return_counts=True, dim=1)", M),
    of("t.flatten(x, 1)", *draw((2, 3, 4))), of("t.unflatten(x, 1, (2, -1))", M), of("t.split(x, [1, 0, 3], 1)", M), of("t.split(x, 3, 1)", M),
    *(of(f"t.chunk(x, {n}, 1)", M) for n in (1, 2, 3, 5)), of("t.unbind(x, 1)", M), of("t.narrow(x, 1, 1, 2)", M),
    of("t.flip(x, (0, 1))", M), of("t.roll(x, (1, -1), (0, 1))", M), of("t.roll(x, 3)", M), of("t.movedim(x, (0, 1), (-1, 0))", *draw((2, 3, 4))),
    *(of(f"t.pad(x, (2, 1), '{mode}')", M) for mode in ("constant", "reflect", "replicate", "circular")), of("t.pad(x, (2, -1, 0, 3), value=4.0)", M),
    of("t.tile(x, (2, 1, 2))", M), of("x.repeat(2, 1, 2)", M), of("t.repeat_interleave(x, 2, 1)", M), of("t.repeat_interleave(x, y, 0)", M, np.array([2, 0, 1])),
    of("t.meshgrid(x, y, indexing='ij')", A, B), of("t.meshgrid(x, y, indexing='xy')", A, B[:2]), of("t.tril(x, 1)", M), of("t.triu(x)", M),
    of("t.gather(x, 1, y)", M, np.array([[0, 2], [1, 1]])), of("t.take_along_dim(x, y, 1)", M, np.array([[1]])),
    of("t.scatter_add(x, 1, z, y)", M, M[:2, :2], np.array([[0, 2], [1, 1]])), of("t.scatter(x, 1, y, 9.0)", M, np.array([[0, 2], [1, 1]])),
    of("t.scatter(x, 1, z, y)", M, M[:2, :2], np.array([[0, 2], [3, 1]])), of("t.index_add(x, 1, z, y, alpha=2)", M, M[:, :2], np.array([1, 1])),
    of("t.index_copy(x, 1, z, y)", M, M[:, :2], np.array([1, 0])), of("t.index_fill(x, 1, y, 7)", M, np.array([1, 0])), of("t.masked_fill(x, x > 2, -1)", M),
    of("t.masked_select(x, x > 2)", M), of("t.nonzero(x.detach())", M), of("t.nonzero(x.detach())", np.array(3.0)), of("t.nonzero(x.detach())", np.array(0.0)),
    of("t.index_put(x, (z, z), y)", M, B[:2], np.array([0, 2])), of("t.index_put(x, (z, z), y, accumulate=True)", M, B[:2], np.array([1, 1])),
    of("t.einsum('bhqd,bhkd->bhqk', x, y)", *draw((2, 2, 3, 4), (2, 2, 5, 4))), of("t.einsum('...ij,j', x, y)", *draw((2, 3, 4), (4,))), of("t.einsum('ab,bc,cd->ad', x, y, z)", *draw((2, 3), (3, 4), (4, 2))),
    of("t.outer(x, y)", A, B), of("t.inner(x, y)", *draw((2, 3), (4, 3))), of("t.tensordot(x, y, ([1], [0]))", *draw((2, 3), (3, 4))), of("t.dot(x, y)", A, B),
    of("t.baddbmm(x, y, z, beta=0.5, alpha=2)", *draw((2, 2, 2), (2, 2, 3), (2, 3, 2))), of("t.addmm(x, y, z, beta=0.5)", *draw((2,), (3, 4), (4, 2))),
    of("t.conv1d(x, y, None, 2, 1)", *draw((2, 4, 7), (6, 4, 3))), of("t.conv2d(x, y, z, (2, 1), (1, 0), (1, 2), 2)", *draw((2, 4, 7, 6), (6, 2, 3, 2), (6,))),
    of("t.conv2d(x, y, padding='same')", *draw((2, 4, 5, 6), (3, 4, 3, 3))), of("t.max_pool2d(x, 3, 2, 1)", *draw((2, 3, 7, 6))), of("t.max_pool1d(x, 2)", *draw((2, 3, 7))),
    of("F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)", *draw((2, 3, 7, 6))), of("F.avg_pool1d(x, 2)", *draw((2, 3, 7))),
    *(of(f"t.linalg.{name}(x)", SPD) for name in ("inv", "det", "cholesky")), of("t.linalg.slogdet(x)[1]", SPD), of("t.linalg.solve(x, y)", SPD, *draw((3, 2))),
    of("t.linalg.qr(x)[1]", *draw((4, 3))), of("t.linalg.eigh(x)[0]", SPD),
    *(of(f"t.{name}(x)", np.ones(4096, np.float16)) for name in ("sum", "mean", "var", "std")),
]  # fmt: skip


# Every dimension argument, on tensors without dimensions and without elements too.
SIZES = [(3, 4), (), (0,), (0, 3), (3, 0)]
ONE_DIM = [", dim=0", ", dim=-1", ", dim=1", ", dim=(0, 1)"]
DIMS = ["", *ONE_DIM, ", dim=(0, 0)", ", dim=0, keepdim=True", ", 0, True"]
REDUCTIONS = [
    *("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "var", "std"),
    *("logsumexp", "any", "all", "count_nonzero", "norm", "median", "var_mean", "std_mean"),
]
# PyTorch has other arguments there, or none.
MORE = {
    *(("norm", ", 0, True"), ("prod", ", dim=(0, 1)")),
    *(("count_nonzero", ", 0, True"), ("count_nonzero", ", dim=0, keepdim=True")),
}
CASES += [
    *(of(f"t.{op}(x{dim})", *draw(s)) for op in REDUCTIONS for dim in DIMS for s in SIZES if (op, dim) not in MORE),
    *(of(f"t.{op}(x{dim})", *draw(s)) for op in ("softmax", "log_softmax", "cumsum", "cumprod") for dim in ONE_DIM for s in SIZES),
    *(of(f"t.norm(x, {p}, 1)", RAMP) for p in (-1, 0, 0.5, float("inf"), -float("inf")) if abs(p) < 99), of("t.norm(x, 'fro')", M),
    *(of(f"t.{op}(x, dtype=t.float32)", M) for op in ("sum", "mean", "prod")), of("t.softmax(x, 0, dtype=t.float32)", M),
]  # fmt: skip


POOLS = [
    (n, k, s, p, c)
    for n in (5, 7, 8)
    for k in (2, 3)
    for s in (None, 1, 2, 3)
    for p in (0, 1)
    for c in (False, True)
]
CASES += [
    *(of(f"F.max_pool2d(x, ({k}, 3), {s}, {p}, {d}, {c}, return_indices=True)", *draw((2, n, 7))) for n, k, s, p, c in POOLS for d in (1, 2)),
    *(of(f"F.avg_pool2d(x, ({k}, 3), {s}, {p}, {c}, {inside})", *draw((2, n, 6))) for n, k, s, p, c in POOLS for inside in (False, True)),
    *(of(f"F.{pool}1d(x, 3, 2, 1, ceil_mode=True)", *draw((2, 3, 8))) for pool in ("max_pool", "avg_pool")),
    *(of(f"F.{pool}3d(x, 2, 2, 1, ceil_mode=True)", *draw((2, 5, 4, 3))) for pool in ("max_pool", "avg_pool")),
    *(of(f"F.adaptive_{kind}_pool2d(x, ({o}, None))", *draw((2, 3, 7, 5))) for kind in ("avg", "max") for o in (1, 2, 3, 7)),
    of("F.avg_pool2d(x, 2, divisor_override=3)", *draw((2, 5, 6))), of("F.max_pool2d(x, 2)", np.arange(16).reshape(1, 4, 4)),
]  # fmt: skip


AT = np.array([[0, 2, 2], [1, 0, 2]])
CASES += [
    *(of(f"t.scatter_reduce(x, 1, t.tensor({AT.tolist()}), y, '{how}', include_self={own})", *draw((3, 4), (2, 3))) for how in ("sum", "prod", "mean", "amax", "amin") for own in (True, False)),
    *(of(f"t.scatter_reduce(x, 1, t.tensor({AT.tolist()}), y, '{how}')", INTS[None] * [[2], [5]], INTS[None, :3] * [[1], [-3]]) for how in ("sum", "prod", "mean", "amax", "amin")),
    of("t.index_reduce(x, 0, t.tensor([2, 0, 2]), y, 'prod')", *draw((3, 4), (3, 4))), of("t.scatter(x.detach(), 1, t.tensor([[0, 0]]), 3.0, reduce='multiply')", KINKS[None, :3]),
]  # fmt: skip


CASES += [
    *(of(f"t.linalg.matrix_norm(x, {ord})", *draw((2, 4, 3))) for ord in ("'fro'", "'nuc'", 1, -1, 2, -2, "float('inf')")), of("t.linalg.norm(x, 1)", *draw((3, 4))),
    of("t.linalg.norm(x, 2)", *draw((3, 4))), of("t.linalg.norm(x, dim=1)", *draw((3, 4))), of("t.linalg.norm(x)", *draw((2, 3, 4))), of("t.linalg.norm(x, 2)", *draw((2, 3, 4))),
    *(of(f"t.linalg.{name}(x)", *draw(s)) for name in ("svdvals", "pinv", "matrix_rank") for s in ((4, 2), (2, 4), (2, 3, 3))), *(of(f"t.linalg.matrix_power(x, {n})", SPD) for n in (1, 5, -2)),
    of("t.linalg.svd(x)[1]", *draw((4, 2))), of("t.linalg.svd(x, full_matrices=False)[0].abs()", *draw((4, 2))), of("t.linalg.eigvalsh(x)", SPD), of("t.linalg.eigh(x)[0]", np.eye(3)),
]  # fmt: skip


WILD = np.array([1.0, np.nan, np.inf, -np.inf, -2.0])
CASES += [
    of("t.add(x, y, alpha=2)", A, B), of("t.sub(x, y, alpha=2)", A, B), of("x.add(y, alpha=2)", A, B), of("t.where(x > 0)", M), of("t.tensor(t.equal(x, y))", A, A),
    *(of(f"t.div(x{how}, y, rounding_mode='{mode}')", INTS, np.array([2, -2, -3, 3])) for mode in ("floor", "trunc") for how in ("", ".float()")),
    *(of(f"t.{name}(x, y, y, value=0.5)", A, B) for name in ("addcmul", "addcdiv")), of("t.addmv(x, y, z, beta=0.5)", *draw((3,), (3, 4), (4,))), of("t.logaddexp(x, y)", A, B),
    of("t.logaddexp(x.detach(), -y.detach())", WILD, WILD), of("t.nan_to_num(x)", WILD), of("t.nan_to_num(x, 1.0, 2.0, 3.0)", WILD), of("t.nansum(x)", WILD), of("t.nanmean(x[:2])", WILD), of("t.nansum(x, 0)", INTS),
    of("t.aminmax(x, dim=0)", M), of("t.diff(x, 2, 0)", M), of("t.diff(x)", A), of("t.cdist(x, y)", *draw((3, 4), (5, 4))), of("t.cdist(x, y)", *draw((30, 4), (5, 4))), of("t.cdist(x, x)", M), of("t.cdist(x, y, p=1.0)", *draw((2, 3, 4), (2, 5, 4))),
    *(of(f"t.{name}(x)", *draw(s)) for name in ("atleast_1d", "atleast_2d") for s in ((), (2,), (2, 3))), *(of(f"t.{name}([x, x])", *draw(s)) for name in ("hstack", "vstack") for s in ((2,), (2, 3))),
    of("t.broadcast_tensors(x, y)", *draw((3, 1), (2,))), *(of(f"t.diag_embed(x, {k})", *draw((2, 3))) for k in (0, 1, -2)), of("t.diag_embed(x, 0, 0, 2)", *draw((2, 3))),
    of("t.bincount(x + 3, minlength=12)", INTS), of("t.bincount(x + 3, y.detach())", INTS, POSITIVE), of("t.isin(x, t.tensor([0, 5]))", INTS), of("t.searchsorted(t.tensor([0, 2, 2, 5]), x)", INTS), of("t.bucketize(x, t.tensor([0, 2, 5]), right=True)", INTS),
    of("t.tril_indices(3, 4, 1)"), of("t.triu_indices(3, 4, -1)"), *(of(f"x.{call}", *draw(())) for call in ("squeeze(0)", "transpose(0, -1)", "flip(0)", "movedim(0, -1)")), of("x.select(-1, 0)", M), of("x.clamp_max(1.0)", A),
    *(of(f"t.{name}(x)", *draw((3, 3))) for name in ("trace", "det", "inverse", "pinverse", "absolute", "negative")), of("t.concat([x, x], 1)", M), of("x.new_full((2,), 3)", M), of("t.matrix_power(x, 2)", SPD),
]  # fmt: skip


CASES += [
    *(of(f"t.{name}(x)", POSITIVE) for name in ("lgamma", "digamma")), of("t.polygamma(1, x)", POSITIVE), of("t.erfc(x)", KINKS), of("t.erfinv(x)", np.array([-0.9, 0.0, 0.3])), of("t.lgamma(x.detach())", KINKS[[0, 2, 3]]), of("t.erfc(x)", INTS),
]  # fmt: skip
CASES += [
    of("t.cov(x)", M), of("t.cov(x, correction=0)", *draw((5,))), of("t.corrcoef(x)", *draw((3, 5))), of("t.corrcoef(x)", *draw((5,))), of("t.trapezoid(x, dim=0)", M), of("t.trapezoid(x, y)", M, A), of("t.trapezoid(x, dx=0.5)", M),
]  # fmt: skip
GAPS = np.array([[3.0, np.nan, 1.5, 2.2], [0, 5, np.nan, np.nan], [2, 7, 1, 4]])
CASES += [
    *(of(f"F.{name}(x)", KINKS) for name in ("relu6", "hardtanh", "hardsigmoid", "hardshrink", "softshrink", "tanhshrink", "softsign", "celu", "selu", "mish")),
    of("F.hardswish(x)", KINKS), of("F.threshold(x, 0.5, 9.0)", KINKS), of("F.celu(x, 2.0)", KINKS), of("F.prelu(x, y)", M, np.array([0.3])), of("F.prelu(x, y)", M, np.arange(4) / 9),
    of("F.glu(x, 1)", M), of("F.glu(x, 0)", M), of("F.softmin(x, dim=1)", M), *(of(f"t.{name}(x)", KINKS) for name in ("exp2", "frac", "deg2rad", "rad2deg", "sinc")), of("t.exp2(x)", INTS),
    of("t.logit(x, 0.2)", np.array([0.1, 0.3, 0.5, 1.0])), of("t.logit(x)", np.array([0.1, 0.5, 0.9])), *(of(f"t.{name}(x, y)", A, B) for name in ("hypot", "logaddexp2", "fmax", "fmin")), of("t.copysign(x, y.detach())", A, B),
    of("t.xlogy(x, y)", np.array([0.0, 1.0, 2.0]), np.array([3.0, 3.0, 5.0])), of("t.xlogy(x.detach(), y.detach())", np.array([0.0, 0.0, 0.0]), np.array([0.0, np.inf, np.nan])), of("t.heaviside(x.detach(), y.detach())", KINKS[:4], B), of("t.float_power(x, 3)", INTS),
    *(of(f"tuple(t.{name}(x, {dim}))", RAMP) for name in ("cummax", "cummin") for dim in (0, -1)), *(of(f"tuple(t.{name}(x, 1))", a) for name in ("cummax", "cummin") for a in (M, GAPS, M.astype(int))),
    *(of(f"t.logcumsumexp(x, {dim})", 400 * M) for dim in (0, 1)), of("t.logcumsumexp(x, 0)", *draw(())),
    *(of(f"t.quantile(x, {q}, {args})", RAMP) for q in (0.3, "t.tensor([0.0, 0.3, 1.0], dtype=t.float64)") for args in ("dim=None", "dim=0", "dim=-1, keepdim=True", "dim=None, keepdim=True")),
    *(of(f"t.quantile(x, 0.4, 1, interpolation='{how}')", RAMP) for how in ("lower", "higher", "nearest", "midpoint", "linear")), of("t.quantile(x.detach(), 0.5, 1)", GAPS), of("t.nanquantile(x, 0.6, 1)", GAPS),
    of("t.nanquantile(x, t.tensor([0.2, 0.9], dtype=t.float64), 0, True)", GAPS), of("tuple(t.nanmedian(x, 1))", GAPS), of("t.nanmedian(x)", GAPS), of("t.histc(x.detach(), 5)", M), of("t.histc(x.detach(), 5, 0, 3)", M),
    *(of(f"t.rot90(x, {k})", M) for k in (0, 1, 2, 3)), of("t.fliplr(x)", M), of("t.flipud(x)", M), of("t.fliplr(x)", A), of("t.column_stack([x, y])", A, B), of("t.dstack([x, y])", A, B), of("t.dstack([x, x])", M),
    *(of(f"t.tensor_split(x, {how}, 1)", M) for how in (1, 3, 9, [1, 3], [3, 1], [-2])), of("t.hsplit(x, 2)", M), of("t.hsplit(x, 3)", M), of("t.vsplit(x, [1])", M), of("x.unfold(1, 2, 2)", M), of("x.unfold(0, 4, 1)", M), of("t.diagflat(x, 1)", M),
    of("t.masked_scatter(x, x > 1, y)", M, np.arange(9.0)), of("t.masked_scatter(x, t.tensor([True, False, False, True]), y)", M, np.arange(5.0)), of("t.cartesian_prod(x, y)", A, B), of("t.combinations(x, 2, True)", A),
    of("t.conv_transpose1d(x, y, z, 2, 1, 1)", *draw((2, 4, 5), (4, 3, 3), (3,))), of("t.conv_transpose2d(x, y, None, (2, 1), (1, 0), (1, 0), 2, (1, 2))", *draw((2, 4, 5, 4), (4, 3, 3, 2))), of("t.conv_transpose3d(x, y)", *draw((1, 2, 2, 3, 2), (2, 1, 2, 2, 2))),
    of("t.conv_transpose2d(x, y, stride=2, output_padding=2)", *draw((1, 2, 3, 3), (2, 1, 2, 2))), of("t.group_norm(x, 2, y, z)", *draw((3, 4, 5), (4,), (4,))), of("t.group_norm(x, 4)", *draw((3, 4))), of("F.instance_norm(x)", *draw((3, 4, 5, 2))), of("F.rms_norm(x, (4,), y)", *draw((3, 4), (4,))), of("F.rms_norm(x, (3, 4), eps=0.1)", *draw((2, 3, 4))),
]  # fmt: skip


CASES += [
    *(of(f"t.linalg.solve_triangular(x, y, upper={u}, unitriangular={one})", SPD, *draw((3, 2))) for u in (True, False) for one in (True, False)), of("t.linalg.solve_triangular(x, y, upper=True, left=False)", SPD, *draw((2, 3))),
    of("t.linalg.lstsq(x, y)[0]", *draw((5, 3), (5, 2))), of("t.linalg.lstsq(x.detach(), y.detach())[2]", *draw((5, 3), (5, 2))), of("t.linalg.lstsq(x, y)[0]", *draw((2, 5, 3), (2, 5, 2))), *(of(f"t.linalg.cond(x, {p})", SPD) for p in ("None", 2, -2)), *(of(f"t.linalg.cond(x.detach(), {p})", SPD) for p in (1, "'fro'", "float('inf')")), of("t.linalg.cond(x)", *draw((2, 4, 3))),
    of("t.linalg.multi_dot([x, y, z])", *draw((2, 3), (3, 4), (4,))), of("t.vdot(x, y)", A, B), of("t.cross(x, y, dim=-1)", *draw((4, 3), (4, 3))), of("t.linalg.cross(x, y, dim=0)", *draw((3, 4), (3, 1))), of("t.cross(x, y, dim=-1)", M, M),
]  # fmt: skip


CASES += [
    *(of(f"F.interpolate(x, {how})", *draw((2, 3, 5))) for how in ("7", "3", "scale_factor=2.5", "scale_factor=0.7, mode='nearest-exact'", "8, mode='linear'", "8, mode='linear', align_corners=True", "scale_factor=1.6, mode='linear'", "1, mode='linear', align_corners=True")),
    *(of(f"F.interpolate(x, {how})", *draw((2, 3, 4, 5))) for how in ("(6, 3), mode='bilinear'", "scale_factor=(2, 0.5), mode='bilinear', align_corners=True", "scale_factor=(1.5, 3)", "(9, 2), mode='nearest-exact'")),
    of("F.interpolate(x, 4, mode='trilinear')", *draw((1, 2, 3, 2, 5))), of("t.pixel_shuffle(x, 2)", *draw((8, 2, 3))), of("t.pixel_unshuffle(x, 3)", *draw((2, 2, 3, 6))), of("t.pixel_shuffle(x, 3)", *draw((8, 2, 3))),
]  # fmt: skip


SIGNS = np.array([1, -1, 1])
CASES += [
    *(of(f"F.{loss}, reduction='{how}')", *draw((3, 4), (3, 4), (3, 4))) for how in ("none", "sum", "mean")
      for loss in ("triplet_margin_loss(x, y, z", "triplet_margin_loss(x, y, z, margin=0.3, p=1.0, swap=True", "gaussian_nll_loss(x, y, z.detach() ** 2", "gaussian_nll_loss(x, y, z * z + 1, full=True",
                   "margin_ranking_loss(x, y, z.detach().sign(), 0.2", "poisson_nll_loss(x, y.detach()", "poisson_nll_loss(x, 4 * y.detach() ** 2, full=True", "poisson_nll_loss(x * x, y.detach(), log_input=False")),
    *(of(f"F.cosine_embedding_loss(x, y, t.tensor({SIGNS.tolist()}), {m})", *draw((3, 4), (3, 4))) for m in (0, 0.4)), of("F.cosine_embedding_loss(x, y, t.tensor(1))", *draw((4,), (4,))),
    *(of(f"F.{loss}(x, t.tensor({SIGNS.tolist()}))", *draw((3,))) for loss in ("hinge_embedding_loss", "soft_margin_loss")), of("F.pairwise_distance(x, y, p=3.0, keepdim=True)", *draw((3, 4), (3, 4))),
    of("F.triplet_margin_loss(x, y, z)", *draw((3, 4), (2, 4), (3, 4)))
]  # fmt: skip


CLASSES = [((5, 3), (5,)), ((5, 3, 4), (5, 4)), ((3,), ()), ((0, 3), (0,))]
CASES += [
    *(of(f"F.{loss}(x, y{weight}{extra}, reduction='{how}')", *draw(s), rng.integers(0, 3, t))
      for loss in ("nll_loss", "cross_entropy") for how in ("none", "sum", "mean") for s, t in CLASSES
      for weight in ("", ", t.tensor([1.0, 2.0, 3.0], dtype=t.float64)") for extra in ("", ", ignore_index=1")),
    *(of(f"t.diagonal(x, {args})", *draw((2, 3, 4))) for args in ("0, -1, -2", "1, 1, 2", "offset=-1, dim1=0, dim2=2")),
]  # fmt: skip


def run(case: str, arrays: tuple[np.ndarray, ...], ours: bool) -> tuple[list[Any], list[Any]]:
    make = sg.tensor if ours else torch.tensor
    inputs = [make(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    names = {"t": _Names(ours), "F": sg.nn.functional if ours else F, **dict(zip("xyz", inputs))}
    out = eval(case, names)
    return inputs, list(out) if isinstance(out, (tuple, list)) else [out]


@pytest.mark.parametrize(("case", "arrays"), CASES)
def test_same_as_pytorch(case: str, arrays: tuple[np.ndarray, ...]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs, expected = run(case, arrays, False)
    except (RuntimeError, IndexError, TypeError):
        with pytest.raises((sg.errors.SparsegradError, IndexError, TypeError)):
            run(case, arrays, True)
        return
    ours, found = run(case, arrays, True)
    assert len(found) == len(expected)
    for f, e in zip(found, expected, strict=True):
        f, e = f.detach().numpy(), e.detach().numpy()
        assert (f.dtype, f.shape) == (e.dtype, e.shape)
        np.testing.assert_allclose(f, e, rtol=1e-6, atol=1e-6)
    if not expected[0].requires_grad or arrays[0].dtype == np.float16:
        return
    upstream = np.random.default_rng(1).standard_normal(tuple(expected[0].shape))
    found[0].backward(sg.tensor(upstream))
    expected[0].backward(torch.tensor(upstream))
    for f, e in zip(ours, theirs, strict=True):
        if e.grad is not None:
            np.testing.assert_allclose(f.grad.numpy(), e.grad.numpy(), rtol=1e-6, atol=1e-6)
