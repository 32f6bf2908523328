# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of sparse ops."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase, Sparse
from op_db.samples import *  # noqa: F403
from sparsegrad.ops.sparse_structure import unmerge_p
from sparsegrad.structure import plan
from sparsegrad.structure.pattern import Pattern


def layers(size: float) -> Any:
    """Products whose bias decides the sign of what is added to it, or does not."""

    def samples(d: Draw) -> Any:
        for a in d.every_kind():
            for k in (3, 1):
                sign = np.where(np.arange(k) % 2, -1, 1)
                yield (a, d.dense(a.shape[1], k), d.dense(k, low=size, high=size + 1) * sign), {}

    return samples


def _layer(activation: str | None) -> Any:
    return lambda a, x, b: sg.spmm(a, x, bias=b, activation=activation)


def _sddmm(x: Any, y: Any, at: Any) -> Any:
    return sg.sddmm(x, y, at)


ROWS = [
    OpCase("spmm", sg.spmm, np.matmul, sparse_dense, "spmm_p", FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(), d.dense(10**6, 1)), {}), errors=(
        (lambda: sg.spmm(eye(), sg.ones(3, 1)), sg.ShapeError, r"spmm: .*A: \(2, 2\), x: \(3, 1\)"),
    )),
    OpCase("spmm[bias]", _layer(None), lambda a, x, b: a @ x + b, layers(0), "spmm_bias_act_p", FORMATS, errors=(
        (lambda: sg.spmm(eye(), sg.ones(2, 3), bias=sg.ones(2)), sg.ShapeError, r"spmm: expected x \(\.\.\., k\) and bias \(k,\), got \(2, 3\) and \(2,\)"),
        (lambda: sg.spmm(eye(), sg.ones(2), bias=sg.ones(2)), sg.ShapeError, r"spmm: expected x .* got \(2,\) and \(2,\)"),
        (lambda: sg.spmm(eye(), sg.ones(3, 2), bias=sg.ones(2)), sg.ShapeError, r"spmm: .*A: \(2, 2\), x: \(3, 2\)"),
        (lambda: sg.spmm(eye(), sg.ones(2, 2), activation="rule"), ValueError, "spmm: activation must be None or one of elu, .*, got 'rule'"),
        (lambda: sg.spmm(eye(), eye(), activation="relu"), TypeError, "spmm: bias and activation need a dense x"),
    )),
    OpCase("spmm[relu]", _layer("relu"), lambda a, x, b: np.maximum(a @ x + b, 0), layers(30), "spmm_bias_act_p", FORMATS),
    OpCase("spmm[sigmoid]", _layer("sigmoid"), lambda a, x, b: 1 / (1 + np.exp(-a @ x - b)), layers(0), "spmm_bias_act_p", FORMATS),
    OpCase("spmm[silu]", _layer("silu"), lambda a, x, b: (a @ x + b) / (1 + np.exp(-a @ x - b)), layers(0), None, FORMATS),
    OpCase("spmm[activation]", lambda a, x, b: sg.spmm(a, x, activation="tanh") + b, lambda a, x, b: np.tanh(a @ x) + b, layers(0), None, FORMATS),
    OpCase("spmm[heads]", sg.spmm, lambda a, x: np.einsum("mnh,nhk->mhk", a, x),
           sparse_dense_heads, None, FORMATS, bilinear=True),
    OpCase("spmm[transposed]", lambda a, x: a.T @ x, lambda a, x: a.T @ x,
           lambda d: (((a, d.dense(a.shape[0], 2)), {}) for a in d.every_kind()), None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(), d.dense(10**6, 1)), {})),
    OpCase("matmul[dense,sparse]", sg.matmul, np.matmul, dense_sparse, None, FORMATS,
           bilinear=True, huge=lambda d: ((d.dense(1, 10**6), d.huge()), {})),
    OpCase("sddmm", _sddmm, lambda x, y, at: (x @ y.T) * at.dense(np.ones(at.coords.shape[1])),
           sddmm_samples, "sddmm_p",
           FORMATS, bilinear=True,
           huge=lambda d: ((d.dense(10**6, 1), d.dense(10**6, 1)), {"at": d.huge()}), errors=(
        (lambda: sg.sddmm(sg.ones(2, 3), sg.ones(2, 2), eye()), sg.ShapeError, "sddmm: shapes do not fit"),
        (lambda: sg.sddmm(sg.ones(2, 3), sg.ones(2, 3), 5), TypeError, "sddmm: pattern must be"),
    )),
    OpCase("add[sparse,sparse]", sg.add, np.add, two_sparse, None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(), d.huge()), {}), errors=(
        (lambda: eye() + sg.coo([[0], [0]], [1.0], (3, 3)), sg.ShapeError, r"add: .*\(2, 2\), b: \(3, 3\)"),
        (lambda: eye() + 1, sg.DensifyError, "add: a number would be added to every absent cell"),
    )),
    OpCase("sub[sparse,sparse]", sg.sub, np.subtract, two_sparse, None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(), d.huge()), {})),
    OpCase("sub[many]", sg.sub, np.subtract,
           lambda d: iter([((d.sparse(20, 30), d.sparse(20, 30)), {})]), "cat_neg_p", FORMATS,
           bilinear=True),
    OpCase("add[sparse,dense]", sg.add, np.add, sparse_and_full, "add_rows_p", FORMATS,
           bilinear=True),
    OpCase("sub[dense,sparse]", lambda a, x: x - a, lambda a, x: x - a, sparse_and_full, None,
           FORMATS, bilinear=True),
    OpCase("mul[sparse,sparse]", sg.mul, np.multiply, two_sparse, None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(), d.huge()), {})),
    OpCase("mul[sparse,dense]", sg.mul, np.multiply, sparse_broadcast, None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(), d.dense(1, 10**6)), {}), errors=(
        (lambda: eye() * sg.ones(3), sg.ShapeError, r"mul: shapes do not broadcast; got sparse: \(2, 2\)"),
    )),
    OpCase("div[sparse,dense]", sg.div, np.divide, sparse_broadcast, None, FORMATS,
           huge=lambda d: ((d.huge(), d.away(10**6, 1)), {}), errors=(
        (lambda: sg.ones(2, 2) / eye(), sg.DensifyError, "div: dividing by a sparse tensor"),
    )),
    OpCase("mul[sparse,scalar]", lambda a: -a * 2 / 4, lambda a: -a * 2 / 4, one_sparse_or_hybrid,
           None, FORMATS, bilinear=True, huge=lambda d: ((d.huge(),), {})),
    *(
        OpCase(f"{name}[sparse]", getattr(sg, name), ref, maker, None, FORMATS,
               huge=lambda d: ((Sparse(*(lambda h: (h.coords, np.abs(h.values), h.shape))(d.huge())),), {}))
        for name, ref, maker in (
            ("tanh", np.tanh, one_sparse), ("sqrt", np.sqrt, one_sparse_positive),
            ("relu", lambda x: np.maximum(x, 0), one_sparse_positive), ("abs", np.abs, one_sparse_positive),
        )
    ),
    *(
        OpCase(f"{name}[sparse,sparse]", getattr(sg, name), getattr(np, name), nowhere_zero, None, FORMATS,
               huge=lambda d: ((d.huge(), d.huge()), {}), errors=(
            (lambda name=name: getattr(sg, name)(eye(), sg.ones(2, 2)), sg.DensifyError, f"{name}: absent cells .* got SparseTensor.*Tensor"),
            (lambda name=name: getattr(sg, name)(eye(), 1 if name == "maximum" else -1), sg.DensifyError, f"{name}: absent cells would not"),
            (lambda name=name: getattr(sg, name)(eye(), float("nan")), sg.DensifyError, f"{name}: absent cells would not"),
            (lambda name=name: getattr(sg, name)(eye(), sg.sparse_eye(3)), sg.ShapeError, rf"{name}: .*\(2, 2\), b: \(3, 3\)"),
        ))
        for name in ("maximum", "minimum")
    ),
    OpCase("maximum[sparse,number]", lambda a: sg.maximum(a, -0.5) - sg.minimum(0.5, a), lambda a: np.maximum(a, -0.5) - np.minimum(0.5, a),
           lambda d: (((a,), {}) for (a, _), _ in nowhere_zero(d) if (np.abs(np.abs(a.dense()) - 0.5) > 1e-3).all()), None, FORMATS,
           huge=lambda d: ((d.huge(),), {})),
    *(
        OpCase(f"{name}[sparse,sparse]", getattr(sg, name), getattr(np, ref), two_sparse, None, FORMATS, order=0)
        for name, ref in (("ne", "not_equal"), ("lt", "less"), ("gt", "greater"))
    ),
    *(
        OpCase(f"{name}[sparse,number]", lambda a, name=name, c=c: getattr(sg, name)(a, c), lambda a, ref=ref, c=c: getattr(np, ref)(a, c), one_sparse, None,
               FORMATS, order=0, errors=((lambda name=name, c=c: getattr(sg, name)(eye(), 0 if c else 1), sg.DensifyError, f"{name}: absent cells"),) if name != "ne" else ())
        for name, ref, c in (("eq", "equal", 1.0), ("ne", "not_equal", 0.0), ("le", "less_equal", -0.5), ("ge", "greater_equal", 0.5))
    ),
    OpCase("where[mask]", lambda a, b, m: sg.where(m, a, b), lambda a, b, m: np.where(m.dense() > 0, a, b),
           lambda d: (((a, b), {"m": m.positive()}) for (a, b), _ in two_sparse(d) for m in (a, d.sparse(*a.shape))), "where_entries_p", FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(), d.huge()), {"m": d.huge().positive()}), errors=(
        (lambda: sg.where(eye() > 0, eye(), 1), sg.DensifyError, "where: with a sparse mask .* got SparseTensor and int"),
        (lambda: sg.where(eye() > 0, 0, 0), sg.DensifyError, "where: with a sparse mask"),
        (lambda: sg.where(eye() > 0, sg.sparse_eye(3), 0), sg.ShapeError, r"where: shapes differ; got sparse mask: \(2, 2\), \(3, 3\)"),
    )),
    OpCase("where[mask,a]", lambda a, m: sg.where(m, a, 0), lambda a, m: np.where(m.dense() > 0, a, 0),
           lambda d: (((a,), {"m": m.positive()}) for (a, m), _ in two_sparse(d)), None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(),), {"m": d.huge().positive()})),
    OpCase("where[mask,b]", lambda b, m: sg.where(m, 0, b), lambda b, m: np.where(m.dense() > 0, 0, b),
           lambda d: (((b,), {"m": m.positive()}) for (b, m), _ in two_sparse(d)), None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(),), {"m": d.huge().positive()})),
    OpCase("where[mask,dense]", lambda x, m: sg.where(m, x, 0), lambda x, m: np.where(m.dense() > 0, x, 0),
           lambda d: (((d.dense(*m.shape),), {"m": m.positive()}) for m in d.every_kind()), None, FORMATS, bilinear=True),
    *(
        OpCase(f"{name}[sparse,sparse]", lambda a, b, name=name: getattr(sg, name)(a, b), lambda a, b, name=name: getattr(np, name)(a.dense() > 0, b.dense() > 0),
               lambda d: (((), {"a": a.positive(), "b": b.positive()}) for (a, b), _ in two_sparse(d)), None, FORMATS, order=0)
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or", "logical_xor")
    ),
    OpCase("remainder[sparse,number]", lambda a: a % 2 + sg.fmod(a, 1.5), lambda a: np.remainder(a, 2) + np.fmod(a, 1.5),
           lambda d: (((a,), {}) for (a, _), _ in nowhere_zero(d)
                      if all((np.abs(a.dense() / n - np.round(a.dense() / n)) > 1e-3)[a.mask()].all() for n in (2, 1.5))), None, FORMATS),
    OpCase("where[0,sparse]", lambda a, x: sg.where(x > 0, 0, a), lambda a, x: np.where(x > 0, 0, a),
           lambda d: (((a,), {"x": sg.Tensor(d.away(*s[0][1].shape))}) for s in sparse_broadcast(d) for a in [s[0][0]]), None, FORMATS, bilinear=True),
    OpCase("where[sparse]", lambda a, x: sg.where(x > 0, a, 0), lambda a, x: np.where(x > 0, a, 0),
           lambda d: (((a,), {"x": sg.Tensor(d.away(*s[0][1].shape))}) for s in sparse_broadcast(d) for a in [s[0][0]]), None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(),), {"x": sg.ones(1, 10**6)}), errors=(
        (lambda: sg.where(sg.ones(2, 2) > 0, eye(), 1), sg.DensifyError, "where: .* must be the number 0, got int"),
        (lambda: sg.where(sg.ones(2, 2) > 0, eye(), sg.ones(2, 2)), sg.DensifyError, "where: .*, got Tensor"),
    )),
    OpCase("pow[sparse]", lambda a: a**2, lambda a: a**2, one_sparse, None, FORMATS,
           huge=lambda d: ((d.huge(),), {}), errors=(
        (lambda: eye() ** 0, sg.DensifyError, "pow: a sparse tensor can be raised to a positive"),
        (lambda: sg.exp(eye()), sg.DensifyError, "exp: absent entries .* would become 1"),
        (lambda: sg.sigmoid(eye()), sg.DensifyError, "sigmoid: absent entries .* 0.5"),
    )),
    OpCase("sum[sparse]", sg.sum, ref_reduce(np.sum), sparse_reductions, None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(),), {"dim": 1})),
    OpCase("mean[sparse]", sg.mean, ref_reduce(np.mean),
           lambda d: (((d.sparse(4, 3),), {"dim": dim}) for dim in (None, 0, 1)), None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(),), {"dim": 0})),
    OpCase("coalesce", sg.coalesce, np.copy, one_sparse_or_hybrid, "merge_p", FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(),), {})),
    OpCase("unmerge",
           lambda x: unmerge_p(x, merge=plan.coalesce(
               Pattern.coo([[1, 4, 1]], (5,)).to_device(x.device))),
           lambda x: x[[0, 1, 0]], lambda d: iter([((d.dense(2, 3),), {})]), "unmerge_p",
           bilinear=True),
    OpCase("to_dense", sg.to_dense, np.copy, one_sparse_or_hybrid, "put_entries_p", FORMATS,
           bilinear=True),
    *(
        OpCase(f"to_format[{fmt}]", lambda a, fmt=fmt: a.to(fmt), np.copy, one_sparse_or_hybrid,
               "reorder_p", FORMATS, bilinear=True, huge=lambda d: ((d.huge(),), {}))
        for fmt in FORMATS
    ),
    OpCase("transpose[sparse]", lambda a: a.T, np.transpose, one_sparse, None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(),), {})),
    OpCase("to_sparse", lambda x: sg.to_sparse(x * 1.0), np.copy,
           lambda d: iter([((d.away(3, 4),), {}), ((d.away(0, 4),), {})]), "entries_p",
           bilinear=False, order=2),
    *(
        OpCase(f"softmax[sparse,{dim}]", lambda a, dim=dim: sg.softmax(a, dim),
               lambda a, dim=dim: ref_masked_softmax(a.dense(), a.mask(), dim), one_sparse,
               None, FORMATS, raw=True, huge=lambda d: ((d.huge(),), {}), errors=(
            (lambda: sg.softmax(eye(), 2), sg.ShapeError, "softmax: dim 2 is outside the 2 dimensions"),
        ))
        for dim in (0, 1)
    ),
]  # fmt: skip
