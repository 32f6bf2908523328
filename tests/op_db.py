# ruff: noqa: E501  (a row is read as a row)
"""The op table: one row per op, from which tests/test_ops.py generates every test.

A row names the op, its mathematics on dense float64 arrays, and samples. Sparse arguments are
`Sparse` samples; the reference sees them as dense arrays. Add rows here, not test files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

import sparsegrad as sg
from sparsegrad.ops import elementwise, index, segment, shape
from sparsegrad.sparse_tensor import SparseTensor, compressed, wrap

FORMATS = ("coo", "csr", "csc")


@dataclass(frozen=True)
class Sparse:
    """A sparse sample: coordinates (dims, nnz) in any order, values (nnz, *dense), shape."""

    coords: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]

    def build(self, fmt: str, values: sg.Tensor) -> SparseTensor:
        """As a SparseTensor in `fmt`. Entries stay unsorted within rows, duplicates stay."""
        if fmt == "coo":
            return wrap(values, sg.Pattern.coo(list(self.coords), self.shape))
        major = 0 if fmt == "csr" else 1
        counts = np.bincount(self.coords[major], minlength=self.shape[major])
        indptr = np.concatenate(([0], np.cumsum(counts)))
        return compressed(
            fmt, indptr, self.coords[1 - major], values, (*self.shape, *values.shape[1:])
        )

    def listed(self, fmt: str) -> Sparse:
        """The same entries in the order that `build(fmt, ...)` takes their values in."""
        if fmt == "coo":
            return self
        order = np.argsort(self.coords[0 if fmt == "csr" else 1], kind="stable")
        return Sparse(self.coords[:, order], self.values[order], self.shape)

    def dense(self, values: np.ndarray | None = None) -> np.ndarray:
        values = self.values if values is None else values
        out = np.zeros((*self.shape, *values.shape[1:]), np.float64)
        np.add.at(out, tuple(self.coords), values)
        return out

    def mask(self) -> np.ndarray:
        out = np.zeros(self.shape, bool)
        out[tuple(self.coords)] = True
        return out


Sample = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class OpCase:
    """One row.

    name: unique; the op's own name, with a variant in brackets.
    op: the op on tensors. ref: the same on dense float64 arrays.
    samples: draw -> (arguments, keyword arguments) as arrays and `Sparse`.
    primitive: the primitive this row stands for (completeness is checked against the registry).
    formats: sparse formats of its sparse arguments; () for a dense op.
    bilinear: linear in each argument, so finite differences are exact for any step.
    order: highest derivative checked (0: not differentiable).
    raw: the reference takes `Sparse` samples instead of dense arrays.
    huge: a sample of 10^6 x 10^6 with ten entries, for ops whose result is O(nnz + m + n).
    errors: (arguments as tensors, exception, regex) that must be refused.
    tol: tolerances by dtype where the shared table is wrong, with a comment.
    xfail: generated test -> reason; strict.
    """

    name: str
    op: Callable[..., Any]
    ref: Callable[..., Any]
    samples: Callable[[Draw], Iterator[Sample]]
    primitive: str | None = None
    formats: tuple[str, ...] = ()
    bilinear: bool = False
    order: int = 2
    huge: Callable[[Draw], Sample] | None = None
    raw: bool = False
    errors: tuple[tuple[Callable[[], Any], type[Exception], str], ...] = ()
    tol: dict[str, float] = field(default_factory=dict)
    xfail: dict[str, str] = field(default_factory=dict)


class Draw:
    """Random samples from one seed."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)

    def dense(self, *sizes: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
        return self.rng.uniform(low, high, sizes)

    def away(self, *sizes: int) -> np.ndarray:
        """Away from 0, where some functions have a kink."""
        x = self.dense(*sizes)
        return x + np.sign(x) * 0.1

    def sparse(self, m: int, n: int, density: float = 0.4, heads: tuple[int, ...] = ()) -> Sparse:
        cells = np.flatnonzero(self.rng.random(m * n) < density)
        coords = np.array(np.unravel_index(cells, (m, n))) if cells.size else np.zeros((2, 0), int)
        return Sparse(coords, self.away(cells.size, *heads), (m, n))

    def every_kind(self, m: int = 6, n: int = 4, heads: tuple[int, ...] = ()) -> Iterator[Sparse]:
        """Every kind of matrix that sparse code gets wrong."""
        yield self.sparse(m, n, heads=heads)
        yield self.sparse(n, m, heads=heads)
        yield self.sparse(n, n, heads=heads)
        for shape_ in ((0, n), (m, 0), (1, 1), (m, n)):
            yield Sparse(np.zeros((2, 0), int), np.zeros((0, *heads)), shape_)
        holes = self.sparse(m, n, 0.6, heads)  # an empty row and an empty column
        keep = (holes.coords[0] != 1) & (holes.coords[1] != 2)
        yield Sparse(holes.coords[:, keep], holes.values[keep], (m, n))
        zeros = self.sparse(m, n, heads=heads)  # explicit zeros
        zeros.values[::2] = 0
        yield zeros
        twice = self.sparse(m, n, heads=heads)  # duplicates, unsorted
        coords = np.concatenate((twice.coords, twice.coords[:, ::2]), axis=1)
        order = self.rng.permutation(coords.shape[1])
        yield Sparse(coords[:, order], self.away(coords.shape[1], *heads), (m, n))
        full = np.array([np.full(n, m - 1), np.arange(n)])  # one full row, all others empty
        yield Sparse(full, self.away(n, *heads), (m, n))

    def huge(self) -> Sparse:
        n = 10**6
        return Sparse(self.rng.integers(0, n, (2, 10)), self.away(10), (n, n))


# ---- sample makers -----------------------------------------------------------------------------
def unary(d: Draw, **kw: float) -> Iterator[Sample]:
    for s in [(3, 4), (), (0, 4), (1,)]:
        yield (d.dense(*s, **kw),), {}


def unary_away(d: Draw) -> Iterator[Sample]:
    for s in [(3, 4), (), (0, 4), (1,)]:
        yield (d.away(*s),), {}


def positive(d: Draw) -> Iterator[Sample]:
    return unary(d, low=0.5, high=3.0)


def binary(d: Draw, **kw: float) -> Iterator[Sample]:
    for s, t in [((3, 4), (3, 4)), ((3, 4), (1, 4)), ((3, 4), (4,)), ((0, 4), (1, 4)), ((), (2,))]:
        yield (d.dense(*s, **kw), d.dense(*t, **kw)), {}
    yield (d.dense(2, 1, 3, **kw), d.dense(4, 1, **kw)), {}


def same_shape(d: Draw) -> Iterator[Sample]:
    for s in [(3, 4), (), (0, 4)]:
        yield (d.dense(*s), d.away(*s)), {}


def binary_positive(d: Draw) -> Iterator[Sample]:
    return binary(d, low=0.5, high=2.0)


def reductions(d: Draw) -> Iterator[Sample]:
    for s, dims in [((3, 4), (None, 0, -1, (0, 1))), ((2, 3, 4), (1, (0, 2))), ((0, 3), (0, None))]:
        for dim in dims:
            for keepdim in (False, True):
                yield (d.dense(*s),), {"dim": dim, "keepdim": keepdim}
    yield (d.dense(),), {"dim": None, "keepdim": False}


def nonempty_reductions(d: Draw) -> Iterator[Sample]:
    return (s for s in reductions(d) if s[0][0].size)


def along(d: Draw) -> Iterator[Sample]:
    for s in [(3, 4), (2, 3, 4), (5,), (0, 3)]:
        for dim in range(-1, len(s) - 1):
            yield (d.dense(*s),), {"dim": dim}


def sparse_dense(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        for k in (3, 1, 0):
            yield (a, d.dense(a.shape[1], k)), {}
        yield (a, d.dense(a.shape[1])), {}


def sparse_dense_heads(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind(heads=(2,)):
        yield (a, d.dense(a.shape[1], 2, 3)), {}


def dense_sparse(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        yield (d.dense(3, a.shape[0]), a), {}
        yield (d.dense(a.shape[0]), a), {}


def one_sparse(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        yield (a,), {}


def one_sparse_or_hybrid(d: Draw) -> Iterator[Sample]:
    yield from one_sparse(d)
    for a in d.every_kind(heads=(2,)):
        yield (a,), {}


def one_sparse_positive(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        yield (Sparse(a.coords, np.abs(a.values) + 0.1, a.shape),), {}


def two_sparse(d: Draw) -> Iterator[Sample]:
    for a, b in zip(d.every_kind(), Draw(7).every_kind(), strict=True):
        yield (a, b), {}
        yield (a, Sparse(a.coords, d.away(*a.values.shape), a.shape)), {}


def sparse_and_full(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        yield (a, d.away(*a.shape)), {}


def sparse_broadcast(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        m, n = a.shape
        for other in ((m, n), (1, n), (m, 1), (n,), (1, 1)):
            yield (a, d.away(*other)), {}
    column = Sparse(np.array([[0, 2], [0, 0]]), d.away(2), (3, 1))  # AC-36
    yield (column, d.away(1, 4)), {}
    row = Sparse(np.array([[0, 0], [0, 2]]), d.away(2), (1, 3))
    yield (row, d.away(4, 3)), {}


def sparse_reductions(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        for dim in (None, 0, 1, (0, 1), ()):
            for keepdim in (False, True):
                yield (a,), {"dim": dim, "keepdim": keepdim}
    for a in d.every_kind(heads=(2,)):
        for dim in (0, 2, (0, 2), (0, 1)):
            yield (a,), {"dim": dim}


def sddmm_samples(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        m, n = a.shape
        for k in (3, 1, 0):
            yield (d.dense(m, k), d.dense(n, k)), {"at": a}


def segments(d: Draw) -> Iterator[Sample]:
    for counts in ([2, 0, 3, 1], [0, 0], [5], []):
        indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        for tail in ((), (2,)):
            yield (d.dense(int(indptr[-1]), *tail),), {"indptr": indptr}


# ---- references --------------------------------------------------------------------------------
def ref_reduce(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dim, keepdim=False: fn(x, axis=dim, keepdims=keepdim)


def ref_softmax(x: np.ndarray, dim: int) -> np.ndarray:
    if x.size == 0:
        return x
    e = np.exp(x - x.max(axis=dim, keepdims=True))
    return e / e.sum(axis=dim, keepdims=True)


def ref_masked_softmax(x: np.ndarray, mask: np.ndarray, dim: int) -> np.ndarray:
    e = np.where(mask, np.exp(x), 0)
    total = e.sum(axis=dim, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def ref_segments(x: np.ndarray, indptr: np.ndarray, fn: Callable[..., Any]) -> list[Any]:
    return [fn(x[a:b]) for a, b in pairwise(indptr)]


def ref_segment_sum(x: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    parts = ref_segments(x, indptr, lambda p: p.sum(axis=0))
    return np.array(parts).reshape(len(indptr) - 1, *x.shape[1:])


def ref_segment_softmax(x: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    parts = ref_segments(x, indptr, lambda p: ref_softmax(p, 0))
    return np.concatenate([*parts, np.zeros((0, *x.shape[1:]))])


def ref_put(x: np.ndarray, where: Any, sizes: tuple[int, ...]) -> np.ndarray:
    out = np.zeros(sizes)
    np.add.at(out, where, x)
    return out


# ---- the table ---------------------------------------------------------------------------------
def _tensors(*sizes: tuple[int, ...]) -> list[sg.Tensor]:
    return [sg.ones(*s) for s in sizes]


def _eye() -> SparseTensor:
    return sg.coo([[0, 1], [0, 1]], [1.0, 1.0], (2, 2))


E = elementwise
DENSE = [
    OpCase("add", sg.add, np.add, binary, "add_p", bilinear=True, errors=(
        (lambda: sg.add(*_tensors((3,), (4,))), sg.ShapeError, r"add: .*a: Tensor\(3,\) .*b: Tensor\(4,\)"),
        (lambda: sg.add(sg.ones(2), object()), TypeError, "add: expected a tensor.*object"),
    )),
    OpCase("sub", sg.sub, np.subtract, binary, "sub_p", bilinear=True),
    OpCase("mul", sg.mul, np.multiply, binary, "mul_p", bilinear=True),
    OpCase("div", sg.div, np.divide, binary_positive, "div_p"),
    OpCase("neg", sg.neg, np.negative, unary, "neg_p", bilinear=True),
    OpCase("pow", sg.pow, np.power, binary_positive, "pow_p"),
    OpCase("pow[3]", lambda x: x**3, lambda x: x**3, unary),
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
    OpCase("sign", E.sign_p, np.sign, unary_away, "sign_p", order=0),
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
        (lambda: sg.cross_entropy(sg.ones(2, 3), [0]), sg.ShapeError, "nll_loss: expected"),
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
    OpCase("segment_softmax_grad",
           lambda dy, y: segment.segment_softmax_grad_p(dy, y, indptr=np.array([0, 2, 2, 5])),
           lambda dy, y: y * (dy - (dy * y).T @ np.repeat(np.eye(3)[[0, 2]], (2, 3), 0)
                              @ np.repeat(np.eye(3)[[0, 2]], (2, 3), 0).T),
           lambda d: iter([((d.dense(5), d.dense(5)), {})]), "segment_softmax_grad_p"),
]  # fmt: skip


def _sddmm(x: Any, y: Any, at: Any) -> Any:
    return sg.sddmm(x, y, at)


SPARSE = [
    OpCase("spmm", sg.spmm, np.matmul, sparse_dense, "spmm_p", FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(), d.dense(10**6, 1)), {}), errors=(
        (lambda: sg.spmm(_eye(), sg.ones(3, 1)), sg.ShapeError, r"spmm: .*A: \(2, 2\), x: \(3, 1\)"),
    )),
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
        (lambda: sg.sddmm(sg.ones(2, 3), sg.ones(2, 2), _eye()), sg.ShapeError, "sddmm: shapes do not fit"),
        (lambda: sg.sddmm(sg.ones(2, 3), sg.ones(2, 3), 5), TypeError, "sddmm: pattern must be"),
    )),
    OpCase("add[sparse,sparse]", sg.add, np.add, two_sparse, None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(), d.huge()), {}), errors=(
        (lambda: _eye() + sg.coo([[0], [0]], [1.0], (3, 3)), sg.ShapeError, r"add: .*\(2, 2\), b: \(3, 3\)"),
        (lambda: _eye() + 1, sg.DensifyError, "add: a number would be added to every absent cell"),
    )),
    OpCase("sub[sparse,sparse]", sg.sub, np.subtract, two_sparse, None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(), d.huge()), {})),
    OpCase("add[sparse,dense]", sg.add, np.add, sparse_and_full, "add_rows_p", FORMATS,
           bilinear=True),
    OpCase("sub[dense,sparse]", lambda a, x: x - a, lambda a, x: x - a, sparse_and_full, None,
           FORMATS, bilinear=True),
    OpCase("mul[sparse,sparse]", sg.mul, np.multiply, two_sparse, None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(), d.huge()), {})),
    OpCase("mul[sparse,dense]", sg.mul, np.multiply, sparse_broadcast, None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(), d.dense(1, 10**6)), {}), errors=(
        (lambda: _eye() * sg.ones(3), sg.ShapeError, r"mul: shapes do not broadcast; got sparse: \(2, 2\)"),
    )),
    OpCase("div[sparse,dense]", sg.div, np.divide, sparse_broadcast, None, FORMATS,
           huge=lambda d: ((d.huge(), d.away(10**6, 1)), {}), errors=(
        (lambda: sg.ones(2, 2) / _eye(), sg.DensifyError, "div: dividing by a sparse tensor"),
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
    OpCase("pow[sparse]", lambda a: a**2, lambda a: a**2, one_sparse, None, FORMATS,
           huge=lambda d: ((d.huge(),), {}), errors=(
        (lambda: _eye() ** 0, sg.DensifyError, "pow: a sparse tensor can be raised to a positive"),
        (lambda: sg.exp(_eye()), sg.DensifyError, "exp: absent entries .* would become 1"),
        (lambda: sg.sigmoid(_eye()), sg.DensifyError, "sigmoid: absent entries .* 0.5"),
    )),
    OpCase("sum[sparse]", sg.sum, ref_reduce(np.sum), sparse_reductions, None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(),), {"dim": 1})),
    OpCase("mean[sparse]", sg.mean, ref_reduce(np.mean),
           lambda d: (((d.sparse(4, 3),), {"dim": dim}) for dim in (None, 0, 1)), None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(),), {"dim": 0})),
    OpCase("coalesce", sg.coalesce, np.copy, one_sparse_or_hybrid, None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(),), {})),
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
            (lambda: sg.softmax(_eye(), 2), sg.ShapeError, "softmax: needs two sparse dimensions"),
        ))
        for dim in (0, 1)
    ),
]  # fmt: skip

OP_DB = [*DENSE, *SPARSE]
assert len({case.name for case in OP_DB}) == len(OP_DB)
