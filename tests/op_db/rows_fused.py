# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of layers of dense networks: linear, activations, cross entropy, layer normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase
from op_db.rows_elementwise import ref_erf
from op_db.samples import *  # noqa: F403
from sparsegrad import backends
from sparsegrad.backends.quiet import quiet
from sparsegrad.ops import activations as A
from sparsegrad.ops import bias as B
from sparsegrad.ops import fused as F
from sparsegrad.ops import normalization as N


def linears(d: Draw) -> Any:
    for n, k, m in ((5, 3, 4), (1, 1, 1), (0, 3, 2), (4, 0, 2), (4, 3, 0)):
        yield (d.dense(n, k), d.dense(m, k), d.dense(m)), {}
    yield (d.dense(5, 3), d.dense(4, 3)), {}
    yield (d.dense(3), d.dense(4, 3), d.dense(4)), {}
    yield (d.dense(2, 5, 3), d.dense(4, 3), d.dense(4)), {}


def ref_linear(x: Any, weight: Any, bias: Any = 0) -> Any:
    return x @ weight.T + bias


# ---- a bias and an activation; "away" from the kink of relu --------------------------------------
BIASED = {
    "relu": (lambda x: np.maximum(x, 0), lambda y: y > 0),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), lambda y: y * (1 - y)),
    "tanh": (np.tanh, lambda y: 1 - y * y),
}


def biases(d: Draw) -> Any:
    for n, m in ((4, 5), (1, 1), (0, 3), (3, 0)):
        yield (d.away(n, m) * 4, d.dense(m, low=-0.3, high=0.3)), {}
    yield (d.away(2, 3, 4) * 4, d.dense(4, low=-0.3, high=0.3)), {}


def sparse_bias(d: Draw) -> Any:
    for m, n in ((6, 4), (1, 1), (0, 3)):
        yield (d.sparse(m, n), d.dense(n)), {}


def both_gradients(activation: str) -> Any:
    """That to x, times that to the bias: one number for each element."""

    def op(dy: Any, y: Any) -> Any:
        dx, db = B.bias_act_grad_p(dy, y, activation=activation)
        return dx * db

    return op


def ref_both_gradients(slope: Any) -> Any:
    def ref(dy: Any, y: Any) -> Any:
        return dy * slope(y) * (dy * slope(y)).sum(0)

    return ref


# ---- activations ---------------------------------------------------------------------------------
def ref_gelu_grad(dy: Any, x: Any) -> Any:
    return dy * (0.5 * (1 + ref_erf(x / np.sqrt(2))) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi))


def ref_gelu_tanh_grad(dy: Any, x: Any) -> Any:
    scale = np.sqrt(2 / np.pi)
    t = np.tanh(scale * (x + 0.044715 * x**3))
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * scale * (1 + 3 * 0.044715 * x**2))


def ref_silu_grad(dy: Any, x: Any) -> Any:
    s = 1 / (1 + np.exp(-x))
    return dy * s * (1 + x * (1 - s))


def ref_elu_grad(dy: Any, x: Any) -> Any:
    return dy * np.where(x > 0, 1, 0.7 * np.exp(np.minimum(x, 0)))


# ---- cross entropy: classes, factors of classes and smoothing do not vary ------------------------
CLASSES = np.array([2, -1, 0, 1, 2, 0])
FACTORS = np.array([0.5, 2.0, 0.0])
TARGETS = {
    name: {"classes": CLASSES, "weight": weight, "smoothing": smoothing, "reduction": reduction}
    for name, weight, smoothing, reduction in (
        ("", None, 0.0, "none"),
        ("weight", FACTORS, 0.0, "none"),
        ("smoothing", None, 0.2, "none"),
        ("both", FACTORS, 0.2, "none"),
        ("mean", None, 0.0, "mean"),
        ("sum", FACTORS, 0.2, "sum"),
    )
}


def target(classes: Any, weight: Any, smoothing: float, reduction: str) -> Any:
    """Distributions (n, C), scaled by the factors; 0 for rows that are left out."""
    t = (classes[:, None] == np.arange(3)) * (1 - smoothing) + smoothing / 3
    return t * (1 if weight is None else weight) * (classes[:, None] >= 0)


def held(x: Any, static: dict[str, Any]) -> dict[str, Any]:
    """Static arguments on the device and in the dtype of x."""
    weight = static["weight"]
    made = None if weight is None else sg.tensor(weight, dtype=x.dtype, device=x.device).data
    return {**static, "classes": sg.tensor(CLASSES, device=x.device).data, "weight": made}


def losses(static: dict[str, Any]) -> Any:
    return lambda x: F.cross_entropy_p(x, **held(x, static))


def ref_losses(static: dict[str, Any]) -> Any:
    def ref(x: Any) -> Any:
        lse = np.log(np.exp(x).sum(1, keepdims=True))
        each = (target(**static) * (lse - x)).sum(1)
        return {"none": each, "sum": each.sum(), "mean": each.mean()}[static["reduction"]]

    return ref


def slopes(static: dict[str, Any]) -> Any:
    def op(dy: Any, x: Any) -> Any:
        lse = sg.logsumexp(sg.cast(x.detach(), sg.float32 if x.dtype.itemsize < 8 else x.dtype), 1)
        return F.cross_entropy_grad_p(dy, x, lse=lse.data, **held(x, static))

    return op


def ref_slopes(static: dict[str, Any]) -> Any:
    def ref(dy: Any, x: Any) -> Any:
        t, p = target(**static), np.exp(x) / np.exp(x).sum(1, keepdims=True)
        rows = dy[:, None] if dy.ndim else dy / (len(x) if static["reduction"] == "mean" else 1)
        return rows * (t.sum(1, keepdims=True) * p - t)

    return ref


# ---- layer normalisation -------------------------------------------------------------------------
EPS = 0.1


def norms(*sizes: tuple[int, ...]) -> Any:
    def make(d: Draw) -> Any:
        for n, width in ((4, 5), (1, 2), (3, 1), (0, 3), (3, 0)):
            yield tuple(d.dense(*(n if s == "n" else width for s in size)) for size in sizes), {}

    return make


def ref_normal(x: Any) -> Any:
    if not x.size:
        return x
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPS)


def ref_norm(x: Any, weight: Any = 1, bias: Any = 0) -> Any:
    return ref_normal(x) * weight + bias


def ref_norm_grad(dy: Any, x: Any, weight: Any = 1) -> Any:
    if not x.size:
        return x
    h, normal = dy * weight, ref_normal(x)
    inner = h - h.mean(1, keepdims=True) - normal * (h * normal).mean(1, keepdims=True)
    return inner / np.sqrt(x.var(1, keepdims=True) + EPS)


def ref_affine(x: Any, *affine: Any) -> Any:
    for p, op in zip(affine, (np.multiply, np.add), strict=False):
        x = op(x, p.reshape(-1, *(1,) * (x.ndim - 2)))
    return x


def ref_batch(x: Any, *affine: Any) -> Any:
    axes = (0, *range(2, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    return ref_affine(centred / np.sqrt((centred**2).mean(axes, keepdims=True) + EPS), *affine)


def batch_gradients(dy: Any, x: Any, *weight: Any) -> Any:
    """That to x, times those to weight and bias: one number for each element."""
    be = backends.for_array(x.data)
    with quiet():
        mean, variance = be.channel_moments(x.data)
        scale = 1 / be.xp.sqrt(variance + variance.dtype.type(EPS))
    dx, dw, db = N.batch_norm_grad_p(dy, x, *weight, mean=mean, scale=scale, eps=EPS)
    return dx * sg.reshape(dw * db, (-1, *(1,) * (x.ndim - 2)))


def ref_batch_gradients(dy: Any, x: Any, *weight: Any) -> Any:
    axes, normal = (0, *range(2, x.ndim)), ref_batch(x)
    centred = dy - dy.mean(axes, keepdims=True)
    centred = centred - normal * (dy * normal).mean(axes, keepdims=True)
    dx = ref_affine(centred / np.sqrt(x.var(axes, keepdims=True) + EPS), *weight)
    return dx * ((dy * normal).sum(axes, keepdims=True) * dy.sum(axes, keepdims=True))


def ref_group(x: Any, groups: int, *affine: Any) -> Any:
    n, c = x.shape[:2]
    width = int(np.prod(x.shape[1:])) // groups
    out = ref_normal(x.reshape(n * groups, width)).reshape(x.shape)
    for p, op in zip(affine, (np.multiply, np.add), strict=False):
        out = op(out, p.reshape(c, *(1,) * (x.ndim - 2)))
    return out


def ref_rms(x: Any, weight: Any = 1) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def ref_attention(q: Any, k: Any, v: Any, mask: Any = True) -> Any:
    scores = np.where(mask, q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    e = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e300))
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-300) @ v


def attention_samples(d: Draw) -> Any:
    yield (d.dense(2, 3, 4), d.dense(2, 5, 4), d.dense(2, 5, 2)), {}
    yield (d.dense(3, 2), d.dense(5, 2), d.dense(5, 3)), {}


SEEN = np.array([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)  # one sees nothing


def stats(x: Any) -> dict[str, Any]:
    """What layer_norm returns beside its result."""
    with quiet():
        _, mean, scale = backends.for_array(x.data).layer_norm(x.data, None, None, EPS)
    return {"mean": mean, "scale": scale, "eps": EPS}


ROWS = [
    OpCase("linear", sg.linear, ref_linear, linears, "linear_p", errors=(
        (lambda: sg.linear(sg.ones(2, 3), sg.ones(4, 2)), sg.ShapeError, r"linear: expected .*\(2, 3\), \(4, 2\)"),
        (lambda: sg.linear(sg.ones(2, 3), sg.ones(4, 3), sg.ones(3)), sg.ShapeError, r"and \(3,\)"))),
    *(OpCase(f"bias_act[{name}]", lambda x, b, name=name: sg.bias_act(x, b, name), lambda x, b, f=f: f(x + b), biases, "bias_act_p")
      for name, (f, _) in BIASED.items()),
    OpCase("bias_act", lambda x, b: sg.bias_act(x, b) + sg.bias_act(x, None, "gelu") + sg.bias_act(x, b, "silu"),
           lambda x, b: x + b + x * (1 + ref_erf(x / np.sqrt(2))) / 2 + (x + b) / (1 + np.exp(-x - b)), biases, errors=(
        (lambda: sg.bias_act(sg.ones(2, 3), sg.ones(2)), sg.ShapeError, r"bias_act: expected x \(\*B, m\) and bias \(m,\), got \(2, 3\) and \(2,\)"),
        (lambda: sg.bias_act(sg.ones(2, 3), sg.ones(3), "rule"), ValueError, "bias_act: activation must be None or one of elu, .*, got 'rule'"))),
    OpCase("bias_act[sparse]", lambda A, b: sg.bias_act(A, b, "tanh"), lambda A, b: np.tanh(A + b), sparse_bias, formats=FORMATS),
    *(OpCase(f"bias_act_grad[{name}]", both_gradients(name), ref_both_gradients(slope), lambda d: norms("nd", "nd")(d), "bias_act_grad_p")
      for name, (_, slope) in BIASED.items()),
    OpCase("linear[relu]", lambda *a: sg.linear(*a, activation="relu"), lambda *a: np.maximum(ref_linear(*a), 0), linears, errors=(
        (lambda: sg.linear(sg.ones(2, 3), sg.ones(4, 3), activation="rule"), ValueError, "linear: activation must be"),)),
    OpCase("attention", sg.scaled_dot_product_attention, ref_attention, attention_samples, errors=(
        (lambda: sg.scaled_dot_product_attention(sg.ones(2, 3), sg.ones(2, 2), sg.ones(2, 1)), sg.ShapeError, r"attention: query and key differ in width: \(2, 3\) and \(2, 2\)"),
        (lambda: sg.scaled_dot_product_attention(sg.ones(2, 3), sg.ones(2, 3), sg.ones(3, 1)), sg.ShapeError, "attention: key and value differ in length"),
        (lambda: sg.scaled_dot_product_attention(*[sg.ones(2, 2)] * 3, sg.ones(2, 2), is_causal=True), ValueError, "attn_mask and is_causal exclude each other"))),
    OpCase("attention[causal]", lambda q, k, v: sg.scaled_dot_product_attention(q, k, v, is_causal=True), lambda q, k, v: ref_attention(q, k, v, np.tri(3, 5) > 0), attention_samples),
    OpCase("attention[mask]", lambda q, k, v: sg.scaled_dot_product_attention(q, k, v, sg.Tensor(SEEN, device=q.device)), lambda q, k, v: ref_attention(q, k, v, SEEN), attention_samples),
    OpCase("attention[bias]", lambda q, k, v, m: sg.scaled_dot_product_attention(q, k, v, m, scale=1.0), lambda q, k, v, m: ref_softmax(q @ k.T + m, 1) @ v,
           lambda d: iter([((d.dense(3, 2), d.dense(5, 2), d.dense(5, 3), d.dense(3, 5)), {})])),
    OpCase("gelu_grad", A.gelu_grad_p, ref_gelu_grad, same_shape, "gelu_grad_p"),
    OpCase("gelu_tanh_grad", A.gelu_tanh_grad_p, ref_gelu_tanh_grad, same_shape, "gelu_tanh_grad_p"),
    OpCase("silu_grad", A.silu_grad_p, ref_silu_grad, same_shape, "silu_grad_p"),
    OpCase("elu_grad", lambda dy, x: A.elu_grad_p(dy, x, alpha=0.7), ref_elu_grad, same_shape, "elu_grad_p"),
    OpCase("leaky_relu_grad", lambda dy, x: A.leaky_relu_grad_p(dy, x, slope=0.2), lambda dy, x: dy * np.where(x > 0, 1, 0.2), same_shape, "leaky_relu_grad_p"),
    *(OpCase(f"cross_entropy[{name or 'classes'}]", losses(static), ref_losses(static),
             lambda d: iter([((d.dense(6, 3),), {})]), "cross_entropy_p") for name, static in TARGETS.items()),
    *(OpCase(f"cross_entropy_grad[{name or 'classes'}]", slopes(static), ref_slopes(static),
             lambda d, one=static["reduction"] == "none": iter([((d.dense(*[6] * one), d.dense(6, 3)), {})]), "cross_entropy_grad_p")
      for name, static in TARGETS.items()),
    OpCase("layer_norm", lambda *a: sg.layer_norm(a[0], a[0].shape[1:], *a[1:], eps=EPS), ref_norm,
           lambda d: (s for sizes in (("nd", "d", "d"), ("nd", "d"), ("nd",)) for s in norms(*sizes)(d)), "layer_norm_p", errors=(
        (lambda: sg.layer_norm(sg.ones(2, 3), 2), sg.ShapeError, r"layer_norm: expected x \(\.\.\., \(2,\)\), got shape \(2, 3\)"),
        (lambda: sg.layer_norm(sg.ones(2, 3), 3, sg.ones(2)), sg.ShapeError, r"expected weight \(3,\), got shape \(2,\)"),
        (lambda: sg.layer_norm(sg.ones(2, 3).to_sparse(), 3), TypeError, "layer_norm: x must be dense"))),
    OpCase("layer_norm[dims]", lambda x, w, b: sg.layer_norm(x, (2, 3), w, b, EPS),
           lambda x, w, b: ref_norm(x.reshape(4, 6), w.reshape(6), b.reshape(6)).reshape(x.shape),
           lambda d: iter([((d.dense(4, 2, 3), d.dense(2, 3), d.dense(2, 3)), {})])),
    *(OpCase(f"batch_norm[{name}]", lambda x, *p: sg.batch_norm(x, None, None, *p, training=True, eps=EPS), ref_batch, lambda d, sizes=sizes: (
        (tuple(d.dense(*s) for s in (shape, *[shape[1:2]] * sizes)), {}) for shape in ((4, 3), (2, 3, 5), (2, 3, 2, 2), (2, 1))), "batch_norm_p")
      for name, sizes in (("weight, bias", 2), ("weight", 1), ("plain", 0))),
    OpCase("batch_norm[running]", lambda x, m, v, *p: sg.batch_norm(x, m, v * v, *p, eps=EPS), lambda x, m, v, *p: ref_affine((x - m[:, None]) / np.sqrt(v * v + EPS)[:, None], *p),
           lambda d: iter([((d.dense(2, 3, 4), *(d.dense(3) for _ in range(4))), {}), ((d.dense(0, 3, 4), *(d.dense(3) for _ in range(3))), {})]), errors=(
        (lambda: sg.batch_norm(sg.ones(2, 3)), ValueError, "batch_norm: running_mean and running_var are needed, got None"),
        (lambda: sg.batch_norm(sg.ones(3), training=True), sg.ShapeError, r"batch_norm: expected x \(N, C, \*d\), got shape \(3,\)"),
        (lambda: sg.batch_norm(sg.ones(1, 3), training=True), ValueError, r"batch_norm: a variance needs more than one row, got shape \(1, 3\)"),
        (lambda: sg.batch_norm(sg.ones(2, 3), sg.ones(2), sg.ones(3)), sg.ShapeError, r"batch_norm: expected running_mean \(3,\), got shape \(2,\)"),
        (lambda: sg.batch_norm(eye(), training=True), TypeError, "batch_norm: x must be dense"))),
    OpCase("batch_norm_grad", batch_gradients, ref_batch_gradients, lambda d: (
        (tuple(d.dense(*s) for s in (shape, shape, *[shape[1:2]] * sizes)), {}) for sizes in (1, 0) for shape in ((4, 3), (2, 3, 5))), "batch_norm_grad_p"),
    *(OpCase(f"group_norm[{g}]", lambda x, *p, g=g: sg.group_norm(x, g, *p, eps=EPS), lambda x, *p, g=g: ref_group(x, g, *p),
             lambda d: iter([((d.dense(2, 4, 3), d.dense(4), d.dense(4)), {}), ((d.dense(2, 4), d.dense(4)), {}), ((d.dense(2, 4, 2, 3),), {}), ((d.dense(0, 4, 3),), {})])) for g in (1, 2)),
    OpCase("instance_norm", lambda x, w, b: sg.instance_norm(x, w, b, EPS), lambda x, w, b: ref_group(x, 3, w, b), lambda d: iter([((d.dense(2, 3, 5), d.dense(3), d.dense(3)), {})]), errors=(
        (lambda: sg.instance_norm(sg.ones(2, 3)), sg.ShapeError, r"instance_norm: expected x \(N, C, \*d\), got shape \(2, 3\)"),
        (lambda: sg.group_norm(sg.ones(2, 3), 2), sg.ShapeError, r"group_norm: expected x \(N, C, \*d\) with C a multiple of 2, got \(2, 3\)"),
        (lambda: sg.group_norm(sg.ones(2, 3), 3, sg.ones(2)), sg.ShapeError, r"group_norm: expected weight \(3,\), got shape \(2,\)"),
        (lambda: sg.group_norm(eye(), 1), TypeError, "group_norm: x must be dense"))),
    OpCase("rms_norm", lambda x, *w: sg.rms_norm(x, x.shape[-1], *w, eps=EPS), ref_rms, lambda d: iter([((d.dense(2, 3), d.dense(3)), {}), ((d.dense(3),), {})]), errors=(
        (lambda: sg.rms_norm(sg.ones(2, 3), 2), sg.ShapeError, r"rms_norm: expected x \(\.\.\., \(2,\)\), got shape \(2, 3\)"),)),
    OpCase("layer_norm_grad", lambda dy, x, *w: F.layer_norm_grad_p(dy, x, *w, **stats(x)), ref_norm_grad,
           lambda d: (s for sizes in (("nd", "nd", "d"), ("nd", "nd")) for s in norms(*sizes)(d)), "layer_norm_grad_p"),
    OpCase("layer_norm_weight_grad", lambda dy, x: F.layer_norm_weight_grad_p(dy, x, **stats(x)),
           lambda dy, x: (dy * ref_normal(x)).sum(0), norms("nd", "nd"), "layer_norm_weight_grad_p"),
]  # fmt: skip
