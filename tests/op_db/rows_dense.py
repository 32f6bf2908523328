# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of dense ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import Draw, OpCase, Sample
from op_db.samples import *  # noqa: F403
from sparsegrad.ops import elementwise, index, segment, shape
from sparsegrad.structure.arrays import Moves, Runs
from sparsegrad.structure.plan_reduce import Halvings

E = elementwise


def ref_dropout(x: np.ndarray) -> np.ndarray:
    """Which of the first twelve words of seed 5, block 3, are at least a quarter of 2**32."""
    kept = np.array([c == "1" for c in "110110111101"])
    return np.where(kept[: x.size].reshape(x.shape), x / 0.75, 0)


def ref_tables(*tables: np.ndarray, index: np.ndarray) -> np.ndarray:
    return np.concatenate([x[index[..., f]] for f, x in enumerate(tables)], -1)


def of_tables(d: Draw) -> Iterator[Sample]:
    for sizes, lead in (
        (((3, 2), (4, 1)), (5,)), (((7, 16), (2, 8), (5, 16)), (40,)), (((3, 0), (2, 2)), (2, 3)),
        (((3, 2),), ()), (((0, 2), (4, 3)), (0,)), (((200, 3), (60, 21)), (300,)),
    ):  # fmt: skip
        ids = [d.rng.integers(0, max(rows, 1), lead) for rows, _ in sizes]
        yield tuple(d.dense(*size) for size in sizes), {"index": np.stack(ids, -1)}


def products(device: Any) -> dict[str, Any]:
    """Runs of 4, 0, 2 and 3 factors; a zero is one of those of the last as well."""
    be = sg.backends.for_device(device)
    return {
        "runs": Halvings(be.asarray(np.array([0, 4, 4, 6, 9]))),
        "zeros": be.asarray(np.array([0, 0, 0, 2])),
    }


def zeroed(x: np.ndarray) -> np.ndarray:
    """One zero in the first run; in the second column, if there is one, two of them."""
    x[1] = 0
    if x.ndim > 1:
        x[2, 1:] = 0
    return x


def ref_products(x: np.ndarray) -> np.ndarray:
    return np.stack([x[:4].prod(0), x[4:4].prod(0), x[4:6].prod(0), 0 * x[0]])


def ref_products_grad(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    run = [0, 0, 0, 0, 2, 2, 3, 3, 3]
    rows = [[f for f in range(9) if run[f] == run[e] != 3 and f != e] for e in range(9)]
    return np.stack([dy[run[e]] * x[rows[e]].prod(0) * (run[e] != 3) for e in range(9)])


ROWS = [
    OpCase("add", sg.add, np.add, binary, "add_p", bilinear=True, errors=(
        (lambda: sg.add(*tensors((3,), (4,))), sg.ShapeError, r"add: .*a: Tensor\(3,\) .*b: Tensor\(4,\)"),
        (lambda: sg.add(sg.ones(2), object()), TypeError, "add: expected a tensor.*object"),
    )),
    OpCase("scaled_sum", E.scaled_sum_p, lambda alpha, a, beta, b: alpha * a + beta * b,
           lambda d: (((d.dense(), a, d.dense(), b), {}) for (a, b), _ in binary(d)), "scaled_sum_p", bilinear=True),
    OpCase("sub", sg.sub, np.subtract, binary, "sub_p", bilinear=True),
    OpCase("mul", sg.mul, np.multiply, binary, "mul_p", bilinear=True),
    OpCase("div", sg.div, np.divide, binary_positive, "div_p"),
    OpCase("neg", sg.neg, np.negative, unary, "neg_p", bilinear=True),
    OpCase("pow", sg.pow, np.power, binary_positive, "pow_p"),
    OpCase("pow[3]", lambda x: x**3, lambda x: x**3, unary),
    OpCase("pow[4]", lambda x: x**4.0, lambda x: x**4, unary),
    OpCase("pow[-3]", lambda x: (x - 9) ** -3, lambda x: (x - 9) ** -3.0, unary),
    OpCase("pow[2**x]", lambda x: 2**x, lambda x: 2.0**x, unary),
    OpCase("mul[scalar]", lambda x: 2.5 * x - 1 + x / 2, lambda x: 2.5 * x - 1 + x / 2, unary),
    OpCase("rdiv[scalar]", lambda x: 1 - 2 / x, lambda x: 1 - 2 / x, unary_away),
    OpCase("maximum", sg.maximum, np.maximum, binary, "maximum_p"),
    OpCase("minimum", sg.minimum, np.minimum, binary, "minimum_p"),
    OpCase("exp", sg.exp, np.exp, unary, "exp_p"),
    OpCase("log", sg.log, np.log, positive, "log_p"),
    OpCase("sqrt", sg.sqrt, np.sqrt, positive, "sqrt_p"),
    OpCase("tanh", sg.tanh, np.tanh, unary, "tanh_p"),
    OpCase("sigmoid", sg.sigmoid, lambda x: 1 / (1 + np.exp(-x)), unary, "sigmoid_p"),
    OpCase("relu", sg.relu, lambda x: np.maximum(x, 0), unary_away, "relu_p"),
    OpCase("tanh_grad", E.tanh_grad_p, lambda dy, y: dy * (1 - y * y), same_shape, "tanh_grad_p"),
    OpCase("sigmoid_grad", E.sigmoid_grad_p, lambda dy, y: dy * y * (1 - y), same_shape,
           "sigmoid_grad_p"),
    OpCase("relu_grad", E.relu_grad_p, lambda dy, y: dy * (y > 0), same_shape, "relu_grad_p"),
    OpCase("abs", sg.abs, np.abs, unary_away, "abs_p"),
    OpCase("abs_grad", E.abs_grad_p, lambda dy, x: dy * np.sign(x), same_shape, "abs_grad_p"),
    *(
        OpCase(name, getattr(sg, name), ref, binary, f"{name}_p", order=0)
        for name, ref in (
            ("eq", np.equal), ("ne", np.not_equal), ("lt", np.less),
            ("le", np.less_equal), ("gt", np.greater), ("ge", np.greater_equal),
        )
    ),
    OpCase("where", lambda a, b: sg.where(sg.tensor([True, False, True, False]), a, b),
           lambda a, b: np.where([True, False, True, False], a, b),
           lambda d: iter([((d.dense(3, 4), d.dense(1, 4)), {}), ((d.dense(4), d.dense()), {})]),
           "where_p", bilinear=True),
    OpCase("clone", sg.clone, np.copy, unary, "clone_p", bilinear=True),
    OpCase("dropout", lambda x: E.dropout_p(x, p=0.25, seed=5, offset=3), ref_dropout, unary,
           "dropout_p", bilinear=True, errors=(
        (lambda: sg.dropout(sg.ones(2), 1.5), ValueError, r"dropout: p must lie in \[0, 1\], got 1.5"),
    )),
    OpCase("cast", lambda x: E.cast_p(x, dtype=x.dtype), np.copy, unary, "cast_p",
           bilinear=True),
    OpCase("sum", sg.sum, ref_reduce(np.sum), reductions, "sum_p", bilinear=True, errors=(
        (lambda: sg.sum(sg.ones(2, 2), 2), sg.ShapeError, "sum: dim 2 is outside the 2 dim"),
        (lambda: sg.sum(sg.ones(2, 2), (0, -2)), sg.ShapeError, "sum: .* names a dimension twice"),
    )),
    OpCase("mean", sg.mean, ref_reduce(np.mean), nonempty_reductions, "mean_p", bilinear=True),
    OpCase("amax", sg.amax, ref_reduce(np.max), nonempty_reductions, "amax_p", errors=(
        (lambda: sg.amax(sg.ones(0, 2), 0), sg.ShapeError, "amax: no maximum over an empty"),
    )),
    OpCase("max", lambda x, dim: sg.max(x, dim).values, lambda x, dim: np.max(x, dim),
           lambda d: (s for s in along(d) if s[0][0].size), "max_p"),
    OpCase("argmax", lambda x, dim: sg.argmax(x, dim), lambda x, dim: np.argmax(x, dim),
           lambda d: (s for s in along(d) if s[0][0].size), "argmax_p", order=0),
    OpCase("softmax", sg.softmax, ref_softmax, along, "softmax_p"),
    OpCase("log_softmax", sg.log_softmax, lambda x, dim: np.log(ref_softmax(x, dim)), along,
           "log_softmax_p"),
    OpCase("cross_entropy", lambda x: sg.cross_entropy(x, [1, 0, 2]),
           lambda x: -np.log(ref_softmax(x, 1))[np.arange(3), [1, 0, 2]].mean(),
           lambda d: iter([((d.dense(3, 4),), {})]), errors=(
        (lambda: sg.cross_entropy(sg.ones(2, 3), [0, 3]), IndexError, r"target\[1\] = 3 is outside \[0, 3\)"),
        (lambda: sg.cross_entropy(sg.ones(2, 3), [0]), sg.ShapeError, "cross_entropy: expected"),
        (lambda: sg.cross_entropy(sg.ones(2, 3), sg.coo([[0]], [1], (2,))), TypeError, "cross_entropy: target: classes must be dense"),
    )),
    OpCase("reshape", lambda x: sg.reshape(x, (2, -1)), lambda x: x.reshape(2, -1),
           lambda d: iter([((d.dense(3, 4),), {}), ((d.dense(4),), {})]), "reshape_p", bilinear=True,
           errors=((lambda: sg.reshape(sg.ones(4), (3,)), sg.ShapeError, "reshape: .*Tensor\\(4,\\)"),)),
    OpCase("permute", lambda x: sg.permute(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1),
           lambda d: iter([((d.dense(2, 3, 4),), {}), ((d.dense(2, 0, 1),), {})]), "permute_p",
           bilinear=True),
    OpCase("transpose", lambda x: sg.transpose(x, 0, -1), lambda x: x.swapaxes(0, -1),
           lambda d: iter([((d.dense(2, 3, 4),), {})]), bilinear=True),
    OpCase("expand", lambda x: sg.expand(x, (2, 3, -1)), lambda x: np.broadcast_to(x, (2, 3, 4)),
           lambda d: iter([((d.dense(3, 4),), {}), ((d.dense(1, 4),), {})]), "broadcast_p",
           bilinear=True),
    OpCase("cat", lambda a, b, c: sg.cat([a, b, c], 1), lambda a, b, c: np.concatenate([a, b, c], 1),
           lambda d: iter([((d.dense(3, 4), d.dense(3, 1), d.dense(3, 0)), {})]), "cat_p",
           bilinear=True, errors=(
        (lambda: sg.cat([sg.ones(2, 2), sg.ones(3, 3)]), sg.ShapeError, r"cat: .*xs\[1\]: Tensor\(3, 3\)"),
    )),
    OpCase("stack", lambda a, b: sg.stack([a, b], -1), lambda a, b: np.stack([a, b], -1),
           lambda d: iter([((d.dense(3, 4), d.dense(3, 4)), {})]), bilinear=True),
    OpCase("slice", lambda x: shape.slice_p(x, axis=1, start=1, stop=3), lambda x: x[:, 1:3],
           lambda d: iter([((d.dense(3, 4),), {})]), "slice_p", bilinear=True),
    OpCase("pad", lambda x: shape.pad_p(x, axis=0, before=1, after=2),
           lambda x: np.pad(x, [(1, 2), (0, 0)]),
           lambda d: iter([((d.dense(3, 4),), {}), ((d.dense(0, 4),), {})]), "pad_p", bilinear=True),
    *(
        OpCase(f"getitem[{name}]", lambda x, i=i: x[i], lambda x, i=i: x[i],
               lambda d: iter([((d.dense(3, 4, 2),), {})]), "getitem_p", bilinear=True)
        for name, i in (
            ("int", 1), ("slice", np.s_[::-2, 1:]), ("none", np.s_[None, ..., 0]),
            ("array", np.array([2, 0, 2, -1])), ("arrays", (np.array([0, 0, 1]), np.array([3, 3, 1]))),
            ("mask", np.array([True, False, True])), ("mixed", (slice(None), np.array([1, 1]), 0)),
        )
    ),
    OpCase("putitem", lambda x: index.putitem_p(x, index=np.array([2, 0, 2]), shape=(4, 3)),
           lambda x: ref_put(x, np.array([2, 0, 2]), (4, 3)),
           lambda d: iter([((d.dense(3, 3),), {})]), "putitem_p", bilinear=True),
    OpCase("pick", lambda x: index.pick_p(x, index=np.array([[1], [0], [3]]), axis=1),
           lambda x: np.take_along_axis(x, np.array([[1], [0], [3]]), 1),
           lambda d: iter([((d.dense(3, 4),), {})]), "pick_p", bilinear=True),
    OpCase("spread", lambda x: index.spread_p(x, index=np.array([[1], [0], [3]]), axis=1, n=4),
           lambda x: ref_put(x[:, 0], (np.arange(3), np.array([1, 0, 3])), (3, 4)),
           lambda d: iter([((d.dense(3, 1),), {})]), "spread_p", bilinear=True),
    OpCase("take_or_zero", lambda x, at: index.take_or_zero_p(x, moves=Moves(at, lambda: at)), lambda x, at: np.concatenate((x, 0 * x[:1]))[at],
           lambda d: (((x,), {"at": np.array([2, 3, 0])}) for x in (d.dense(3), d.dense(3, 2), d.dense(3, 0))), "take_or_zero_p", bilinear=True),
    OpCase("take_runs", lambda x, at: index.take_runs_p(x, runs=Runs(*at)), lambda x, at: x[[1, 2, 0, 1]],
           lambda d: (((x,), {"at": (np.array([1, 2, 0]), np.array([0, 2, 2, 4]))}) for x in (d.dense(3), d.dense(3, 2), d.dense(3, 0))), "take_runs_p", bilinear=True),
    *(
        OpCase(f"take[{kind}]", lambda x, kind=kind: sg.take(x, sg.tensor([[2, 0], [2, 1]]), sparse_grad=kind == "sparse"),
               lambda x: x[np.array([[2, 0], [2, 1]])],
               lambda d: iter([((d.dense(3, 2),), {}), ((d.dense(4),), {})]), "take_p", bilinear=True,
               errors=(
            (lambda: sg.take(sg.ones(3, 2), [3]), sg.PatternError, r"take: index: index 3 at position 0 is outside \[0, 3\)"),
            (lambda: sg.take(sg.ones(3, 2), [-1]), sg.PatternError, "take: index: index -1"),
            (lambda: sg.take(sg.ones(3, 2), [0.5]), IndexError, "expected integers"),
        ))
        for kind in ("sparse", "dense")
    ),
    OpCase("put_rows", lambda x: index.put_rows_p(x, index=np.array([2, 0, 2]), n=4),
           lambda x: ref_put(x, np.array([2, 0, 2]), (4, *x.shape[1:])),
           lambda d: iter([((d.dense(3, 2),), {}), ((d.dense(3),), {})]), "put_rows_p", bilinear=True),
    OpCase("embedding", lambda w: sg.embedding(w, [[0, 2], [2, 1]]),
           lambda w: w[np.array([[0, 2], [2, 1]])], lambda d: iter([((d.dense(3, 2),), {})]),
           bilinear=True),
    *(
        OpCase(f"embedding_collection[{kind}]", lambda *w, index, kind=kind: sg.embedding_collection(w, index, sparse_grad=kind == "sparse"),
               ref_tables, of_tables, "take_tables_p" if kind == "sparse" else None, bilinear=True, errors=(
            (lambda: sg.embedding_collection(tensors((3, 2), (4, 1)), [[0, 1], [2, 4]]), sg.PatternError,
             r"embedding_collection: index of table 1: index 4 at position 1 is outside \[0, 4\)"),
            (lambda: sg.embedding_collection(tensors((3, 2), (4, 1)), [[-1, 1]]), sg.PatternError, "index of table 0: index -1"),
            (lambda: sg.embedding_collection(tensors((3, 2), (4, 1)), [[0.5, 1]]), IndexError, "embedding_collection: index: expected integers"),
            (lambda: sg.embedding_collection(tensors((3, 2)), [[True]]), sg.PatternError, "embedding_collection: index must be integers, got bool"),
            (lambda: sg.embedding_collection(tensors((3, 2), (4, 1)), [0, 1, 2]), sg.ShapeError, r"embedding_collection: expected an index \(\*B, 2\)"),
            (lambda: sg.embedding_collection([], [[]]), sg.ShapeError, "embedding_collection: expected at least one weight"),
            (lambda: sg.embedding_collection(tensors((3, 2), (4,)), [[0, 1]]), sg.ShapeError, r"expected weights\[1\] \(V, D\), got \(4,\)"),
            (lambda: sg.embedding_collection([eye()], [[0]]), TypeError, r"embedding_collection: weights\[0\] must be dense"),
            (lambda: sg.embedding_collection([sg.ones(3, 2), sg.ones(3, 2, dtype="int64")], [[0, 1]]), sg.DtypeError,
             "embedding_collection: weights differ in dtype: float32 and, at 1, int64"),
        ))
        for kind in ("sparse", "dense")
    ),
    OpCase("matmul", sg.matmul, np.matmul, lambda d: iter([
        ((d.dense(3, 4), d.dense(4, 2)), {}), ((d.dense(3), d.dense(3)), {}),
        ((d.dense(2, 3), d.dense(3)), {}), ((d.dense(3), d.dense(3, 2)), {}),
        ((d.dense(2, 3, 4), d.dense(4, 2)), {}), ((d.dense(2, 3, 4), d.dense(2, 4, 1)), {}),
        ((d.dense(5, 1, 2, 3), d.dense(4, 3, 2)), {}), ((d.dense(0, 3), d.dense(3, 2)), {}),
        ((d.dense(2, 0), d.dense(0, 3)), {}), ((d.dense(4), d.dense(2, 4, 3)), {}),
        ((d.dense(2, 3, 4), d.dense(4)), {}),
    ]), "matmul_p", bilinear=True, errors=(
        (lambda: sg.ones(2, 3) @ sg.ones(2, 3), sg.ShapeError, r"matmul: .*a: \(2, 3\), b: \(2, 3\)"),
    )),
    OpCase("segment_sum", sg.segment_sum, ref_segment_sum, segments, "segment_sum_p", bilinear=True,
           errors=(
        (lambda: sg.segment_sum(sg.ones(3), [0, 2]), sg.PatternError, "segment_sum: indptr: must end at nnz = 3, got 2"),
        (lambda: sg.segment_sum(sg.ones(3), [0, 2, 1, 3]), sg.PatternError, "must not fall, got 2 then 1"),
    )),
    OpCase("segment_expand",
           lambda x: segment.segment_expand_p(x, indptr=np.array([0, 2, 2, 3]), nnz=3),
           lambda x: x[[0, 0, 2]], lambda d: iter([((d.dense(3, 2),), {})]), "segment_expand_p",
           bilinear=True),
    OpCase("segment_softmax", sg.segment_softmax, ref_segment_softmax, segments,
           "segment_softmax_p"),
    OpCase("segment_prod", lambda x: segment.segment_prod_p(x, **products(x.device)), lambda x: ref_products(x),
           lambda d: (((zeroed(x),), {}) for x in (d.away(9), d.away(9, 2), d.away(9, 0))), "segment_prod_p"),
    OpCase("segment_prod_grad", lambda dy, x: segment.segment_prod_grad_p(dy, x, **products(x.device)), lambda dy, x: ref_products_grad(dy, x),
           lambda d: (((dy, zeroed(x)), {}) for dy, x in ((d.dense(4), d.away(9)), (d.dense(4, 2), d.away(9, 2)))), "segment_prod_grad_p"),
    OpCase("segment_amax_grad",
           lambda dy: segment.segment_amax_grad_p(
               dy, values=np.array([3.0, 3, -1, 2, 0]), top=np.array([3.0, 0, 2, 0]),
               indptr=np.array([0, 2, 2, 4, 5]), absent=np.array([0, 4, 1, 3])),
           lambda dy: np.array([dy[0] / 2, dy[0] / 2, 0, dy[2], dy[3] / 4]),
           lambda d: iter([((d.dense(4),), {})]), "segment_amax_grad_p", bilinear=True),
    OpCase("segment_softmax_grad",
           lambda dy, y: segment.segment_softmax_grad_p(dy, y, indptr=np.array([0, 2, 2, 5])),
           lambda dy, y: y * (dy - (dy * y).T @ np.repeat(np.eye(3)[[0, 2]], (2, 3), 0)
                              @ np.repeat(np.eye(3)[[0, 2]], (2, 3), 0).T),
           lambda d: iter([((d.dense(5), d.dense(5)), {})]), "segment_softmax_grad_p"),
    OpCase("segment_log_softmax_grad",
           lambda dy, y: segment.segment_log_softmax_grad_p(dy, y, indptr=np.array([0, 2, 2, 5])),
           lambda dy, y: dy - np.exp(y) * (dy.T @ np.repeat(np.eye(3)[[0, 2]], (2, 3), 0)
                                           @ np.repeat(np.eye(3)[[0, 2]], (2, 3), 0).T),
           lambda d: iter([((d.dense(5), d.dense(5)), {})]), "segment_log_softmax_grad_p"),
]  # fmt: skip
