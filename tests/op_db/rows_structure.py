# ruff: noqa: E501, F405  (a row is read as a row)
"""Rows of structural ops: indexing, shapes, joining, diagonals, pruning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np

import sparsegrad as sg
from op_db.case import FORMATS, Draw, OpCase, Sample, Sparse
from op_db.samples import *  # noqa: F403

N = 10**6


# ---- sample makers -----------------------------------------------------------------------------
def cube(d: Draw, *sizes: int, heads: tuple[int, ...] = ()) -> Iterator[Sparse]:
    """Tensors of more (or fewer) than two sparse dimensions: some entries, duplicates, none."""
    sizes = sizes or (3, 4, 2)
    cells = np.flatnonzero(d.rng.random(int(np.prod(sizes))) < 0.5)
    coords = np.array(np.unravel_index(cells, sizes))
    yield Sparse(coords, d.away(cells.size, *heads), sizes)
    twice = np.concatenate((coords, coords[:, ::2]), axis=1)[
        :, d.rng.permutation(cells.size + -(-cells.size // 2))
    ]
    yield Sparse(twice, d.away(twice.shape[1], *heads), sizes)
    yield Sparse(np.zeros((len(sizes), 0), int), np.zeros((0, *heads)), sizes)


def indices(m: int, n: int) -> list[Any]:
    """Indices of an (m, n) matrix: every kind, where the sizes allow it."""
    ids = lambda size: np.arange(-size, size)[::2] if size else np.zeros(0, int)
    out: list[Any] = [
        np.s_[:], np.s_[...], np.s_[1:, ::-1], np.s_[::-2], np.s_[5:2:-1, 1:9:2], np.s_[:, -3:],
        np.s_[None], np.s_[:, None, 1:], np.s_[..., None], np.s_[2:2],
        ids(m), np.s_[:, ids(n)], np.ix_(ids(m), ids(n)), (ids(m), slice(1, None)),
        np.arange(m) % 2 == 0, (slice(None), np.arange(n) % 2 == 1),
        np.add.outer(np.arange(m), np.arange(n)) % 3 == 0, ids(m).reshape(1, -1),
    ]  # fmt: skip
    if m:
        out += [0, -1, np.s_[m // 2, ::-1], np.s_[None, 0], (0, ids(n)), (m - 1, None, ids(n))]
    if n:
        out += [np.s_[:, n - 1], np.s_[1:, 0], (ids(m), 0)]
    if m and n:
        out += [(0, 0), (m - 1, -1), np.s_[0, n // 2, None], (np.array([0, m - 1, 0]), np.array([0, -1, 0])),
                (np.array([[0], [m - 1]]), np.array([0, n - 1, 0]))]  # fmt: skip
    return out


def indexed(d: Draw) -> Iterator[Sample]:
    """Every index on a plain matrix and on one with duplicates; a few on the others."""
    for number, a in enumerate(d.every_kind()):
        kinds = indices(*a.shape)
        step = 1 if number in (0, 9) else 5
        for i in kinds[number % step :: step]:
            yield (a,), {"i": i}


def indexed_hybrid(d: Draw) -> Iterator[Sample]:
    kinds = cycle([
        np.s_[1:, :, 0], np.s_[..., ::-1], np.s_[:, ::2, [1, 1, 0]], np.s_[..., None], np.s_[:, :, None, 1:],
        np.s_[::-1], np.s_[:, [0], 1:], np.s_[None, ..., None], np.s_[:, [0], 1], np.s_[[0], :, 1],
    ])  # fmt: skip
    for a in d.every_kind(heads=(2,)):
        for _ in range(3 if min(a.shape) else 0):
            yield (a,), {"i": next(kinds)}
    # Arrays for sparse and dense dimensions together: in their place, or first.
    kinds = cycle([
        np.s_[0, :, [0, 1]], np.s_[:, 0, [1, 0]], np.s_[[0, 0], :, [1, 0, 1][:2]], np.s_[[0], [0], [0, 1, 1]],
        np.s_[0, 0, [0, 1]], np.s_[:, :, [0, 1], [2, 0]], np.s_[:, [0], :, [[0], [2]]], np.s_[:, None, [0], :, 1],
        np.s_[:, :, [1], None, [0, 0]], np.s_[..., 0, [2, 1]], np.s_[None, [[0], [-1]], ..., [0, 1, 0]],
    ])  # fmt: skip
    for a in d.every_kind(heads=(2, 3)):
        for _ in range(4 if min(a.shape) else 0):
            yield (a,), {"i": next(kinds)}


def indexed_cube(d: Draw) -> Iterator[Sample]:
    ids = np.array([1, 0, 1])
    for a in cube(d):
        for i in (
            0,
            np.s_[1, :, 0],
            np.s_[:, ::-2],
            np.s_[..., 1],
            np.s_[0, 1, 1],
            np.s_[:, ids],
            np.s_[ids, :, ids],
            (ids, ids),
            (0, slice(None), ids),
            (slice(None), ids, ids),
            (ids[:, None], ids, 1),
            np.arange(12).reshape(3, 4) % 2 == 0,
            np.arange(24).reshape(3, 4, 2) % 3 == 0,
            np.s_[:, None, 1:, ids, None],
            (ids, None, ids),
            (slice(None), ids.reshape(1, 3)),
        ):
            yield (a,), {"i": i}


def selections(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        for dim in (0, -1):
            for ids in ([], list(range(a.shape[dim]))[::-1] * 2):
                yield (a,), {"dim": dim, "index": np.array(ids, int)}
    for a in d.every_kind(heads=(2,)):
        yield (a,), {"dim": 2, "index": np.array([1, 1])}


def with_each(**options: Any) -> Callable[[Draw], Iterator[Sample]]:
    """Every kind of matrix with each value of an option."""
    ((name, values),) = options.items()

    def samples(d: Draw) -> Iterator[Sample]:
        for a in d.every_kind():
            for value in values:
                yield (a,), {name: value}

    return samples


def cubes(**options: Any) -> Callable[[Draw], Iterator[Sample]]:
    ((name, values),) = options.items()
    return lambda d: (((a,), {name: value}) for a in cube(d) for value in values)


def joined(d: Draw, axis: int) -> Iterator[Sample]:
    for a, b in zip(d.every_kind(), Draw(7).every_kind(), strict=True):
        yield (a, b), {"dim": axis}
        yield (a, a), {"dim": axis - 2}
    extra = d.sparse(6, 2) if axis else d.sparse(2, 4)
    yield (next(iter(d.every_kind())), extra), {"dim": axis}


def pairs(d: Draw) -> Iterator[Sample]:
    for a, b in zip(d.every_kind(), Draw(7).every_kind(), strict=True):
        yield (a, b), {}


def hybrid_pairs(d: Draw) -> Iterator[Sample]:
    for a, b in zip(d.every_kind(heads=(2,)), Draw(7).every_kind(heads=(2,)), strict=True):
        yield (a, b), {}
        yield (a, Sparse(a.coords, d.away(*a.values.shape), a.shape)), {}


def to_set(d: Draw) -> Iterator[Sample]:
    for heads in ((), (2,)):
        for a in d.every_kind(heads=heads):
            for k in (0, 1, -2):
                yield (a, d.away(_length(a.shape, k), *heads)), {"offset": k}


def distinct(d: Draw) -> Iterator[Sparse]:
    """Every kind, with magnitudes so far apart that no finite difference changes their order."""
    for a in d.every_kind():
        size = a.values.size
        values = 1.37 ** np.arange(size) * np.where(np.arange(size) % 3, 1, -1)
        yield Sparse(a.coords, d.rng.permutation(values), a.shape)
    a = d.sparse(3, 40, 0.7)  # rows of several lengths, most much longer than k
    cut = a.coords[1] < np.array([40, 9, 3])[a.coords[0]]
    size = int(cut.sum())
    yield Sparse(a.coords[:, cut], d.rng.permutation(size) / size * 4 - 2.03, a.shape)


def long_runs(d: Draw) -> Iterator[Sample]:
    """More entries in a run than a GPU compares with each other; what stays is far above the rest,
    which is full of ties."""
    for dim, k in ((None, 5), (1, 3), (0, 1000), (1, 1000)):
        a = d.sparse(2, 1500, 0.9)
        values = d.rng.integers(-9, 10, a.values.size) / 10
        for row in (0, 1) if dim is not None else (slice(None),):
            at = np.flatnonzero(a.coords[0] == row) if dim is not None else np.arange(values.size)
            values[d.rng.permutation(at)[:k]] += 5
        coords = a.coords if dim != 0 else a.coords[::-1]
        yield (Sparse(coords, values, a.shape[:: 1 if dim != 0 else -1]),), {"k": k, "dim": dim}


def masks(d: Draw) -> Iterator[Sample]:
    for a in d.every_kind():
        yield (d.dense(*a.shape),), {"at": a}
        yield (d.dense(*a.shape, 2),), {"at": a}


def sparse_masks(d: Draw) -> Iterator[Sample]:
    for a, b in zip(d.every_kind(), Draw(7).every_kind(), strict=True):
        yield (a,), {"at": b}
        yield (a,), {"at": a}


def true_masks(d: Draw) -> Iterator[Sample]:
    return ((args, {"at": static["at"].positive()}) for args, static in sparse_masks(d))


# ---- references --------------------------------------------------------------------------------
def _length(shape: tuple[int, ...], k: int) -> int:
    return len(np.diagonal(np.zeros(shape), k))


def ref_set_diagonal(a: np.ndarray, v: Any, offset: int = 0) -> np.ndarray:
    out = a.copy()
    i = np.arange(_length(a.shape[:2], offset))
    out[i + max(0, -offset), i + max(0, offset)] = v
    return out


def ref_block_diag(*parts: np.ndarray) -> np.ndarray:
    out = np.zeros((sum(p.shape[0] for p in parts), sum(p.shape[1] for p in parts)))
    i = j = 0
    for p in parts:
        out[i : i + p.shape[0], j : j + p.shape[1]] = p
        i, j = i + p.shape[0], j + p.shape[1]
    return out


def ref_top_k(a: np.ndarray, k: int, dim: int | None = None, by: str = "magnitude") -> np.ndarray:
    key = np.abs(a) if by == "magnitude" else np.where(a == 0, -np.inf, a)
    if dim is None:
        order = np.argsort(-key, axis=None, kind="stable")[:k]
        keep = np.zeros(a.size, bool)
        keep[order] = True
        return np.where(keep.reshape(a.shape), a, 0)
    order = np.argsort(-key, axis=dim, kind="stable")
    keep = np.zeros(a.shape, bool)
    np.put_along_axis(keep, order.take(range(min(k, a.shape[dim])), dim), True, dim)
    return np.where(keep, a, 0)


ROWS = [
    # ---- indexing ------------------------------------------------------------------------------
    OpCase("getitem[sparse]", lambda a, i: a[i], lambda a, i: a[i], indexed, None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(),), {"i": np.s_[7::3, ::-1]}), errors=(
        (lambda: eye()[2], IndexError, "index: 2 at position 0 is outside the size 2"),
        (lambda: eye()[0, [0, -3]], IndexError, "index: -3 at position 1 is outside the size 2"),
        (lambda: eye()[0, 0, 0], IndexError, "index: 3 indices for the 2 dimensions"),
        (lambda: eye()[0.5], IndexError, "index: 0.5 is not an integer"),
        (lambda: eye()[[0.5]], IndexError, "index: expected integers or a bool mask"),
        (lambda: eye()[True], IndexError, "index: a single bool"),
        (lambda: eye()[..., ...], IndexError, "more than one Ellipsis"),
        (lambda: eye()[[0, 1], [0, 1, 1]], IndexError, "do not broadcast"),
        (lambda: eye()[np.ones((2, 3), bool)], IndexError, r"index: a mask has size 3 where shape \(2, 2\) has 2"),
        (lambda: eye()[eye()], IndexError, "a sparse index must be a bool mask"),
    )),
    OpCase("getitem[hybrid]", lambda a, i: a[i], lambda a, i: a[i], indexed_hybrid, None, FORMATS, bilinear=True, errors=(
        (lambda: sg.coo([[0], [0]], [[1.0, 2.0]], (2, 2, 2))[[0, 1], :, [0, 1, 0]], IndexError, r"index: arrays of shapes \[\(2,\), \(3,\)\] do not"),
    )),
    OpCase("getitem[cube]", lambda a, i: a[i], lambda a, i: a[i], indexed_cube, None, ("coo",), bilinear=True),
    OpCase("getitem[own mask]", lambda a, at: a[at], lambda a, at: a[at.dense() > 0],
           lambda d: (((a,), {"at": a.positive()}) for a in d.every_kind()), None, FORMATS, bilinear=True),
    OpCase("getitem[sparse mask]", lambda a, at: a[at], lambda a, at: a[at.dense() > 0],
           true_masks, None, FORMATS, bilinear=True),
    OpCase("getitem[sparse,rows]", lambda a, i: a[i], lambda a, i: a[i],
           lambda d: (((a,), {"i": np.arange(a.shape[0])[::-1]}) for a in d.every_kind()), None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(),), {"i": (np.arange(0, N, 3), slice(None))})),
    OpCase("index_select[sparse]", sg.index_select, lambda a, dim, index: np.take(a, index, dim), selections, None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(),), {"dim": 1, "index": np.arange(N)[::-2]}), errors=(
        (lambda: sg.index_select(eye(), 2, [0]), sg.ShapeError, "index_select: dim 2 is outside the 2"),
        (lambda: sg.index_select(eye(), 0, [2]), sg.PatternError, r"index_select: index: index 2 at position 0 is outside \[0, 2\)"),
        (lambda: sg.index_select(eye(), 0, [[0]]), sg.PatternError, r"index_select: index must be integers \(k,\), got int64 of shape \(1, 1\)"),
        (lambda: sg.index_select(eye(), 0, 1), sg.PatternError, "index_select: index must be integers"),
    )),
    OpCase("index_select[cube]", sg.index_select, lambda a, dim, index: np.take(a, index, dim),
           lambda d: (((a,), {"dim": k, "index": np.array([1, 0, 1])}) for a in cube(d) for k in range(3)), None, ("coo",), bilinear=True),
    OpCase("index_select", lambda x: sg.index_select(x, 1, [2, 0, 2]), lambda x: x[:, [2, 0, 2]],
           lambda d: iter([((d.dense(3, 4),), {})]), bilinear=True),
    OpCase("sparse_mask", lambda x, at: sg.sparse_mask(x, at), lambda x, at: x * at.mask().reshape(at.shape + (1,) * (x.ndim - 2)),
           masks, None, FORMATS, bilinear=True, errors=(
        (lambda: sg.sparse_mask(sg.ones(2, 3), eye()), sg.ShapeError, r"sparse_mask: shapes differ; got x: \(2, 3\), pattern: \(2, 2\)"),
        (lambda: sg.sparse_mask(sg.ones(2, 3), 5), TypeError, "sparse_mask: pattern must be a Pattern"),
    )),
    OpCase("sparse_mask[sparse]", lambda x, at: sg.sparse_mask(x, at), lambda x, at: x * at.mask(), sparse_masks, None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(),), {"at": d.huge()})),
    # ---- shapes --------------------------------------------------------------------------------
    OpCase("reshape[sparse]", lambda a, shape: sg.reshape(a, shape(a)), lambda a, shape: a.reshape(shape(a)), with_each(shape=(
        lambda a: (a.shape[1], a.shape[0]), lambda a: (a.shape[0] * a.shape[1],), lambda a: (1, a.shape[0], 1, a.shape[1], 1),
        lambda a: (-1, 2) if a.shape[0] * a.shape[1] == 24 else a.shape,
    )), None, FORMATS, bilinear=True, huge=lambda d: ((d.huge(),), {"shape": lambda a: (1000, 1000 * N)}), errors=(
        (lambda: eye().reshape(3), sg.ShapeError, r"reshape: \(2, 2\) cannot become \(3,\): it has 4 cells"),
        (lambda: eye().reshape(()), sg.ShapeError, r"reshape: \(2, 2\) cannot become \(\)"),
        (lambda: sg.coo([[0]] * 4, [1.0], (N,) * 4).reshape(-1), sg.ShapeError, "does not fit 64 bits"),
    )),
    OpCase("reshape[hybrid]", lambda a, shape: sg.reshape(a, shape(a)), lambda a, shape: a.reshape(shape(a)),
           lambda d: (((a,), {"shape": s}) for a in d.every_kind(heads=(2, 3)) if min(a.shape) for s in (
               lambda a: (-1, 2, 3), lambda a: (*a.shape[:2], 6), lambda a: (a.shape[0] * a.shape[1], 3, 2), lambda a: a.shape,
               lambda a: (-1,), lambda a: (a.shape[0] * 2, a.shape[1] * 3))),
           None, FORMATS, bilinear=True),
    OpCase("reshape[cube]", sg.reshape, np.reshape, cubes(shape=((4, 6), (2, 2, 3, 2), (24,), (1, 12, 2))), None, ("coo",), bilinear=True),
    OpCase("squeeze[sparse]", lambda a: sg.squeeze(sg.unsqueeze(a, 1), 1), np.copy, one_sparse_or_hybrid, None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(),), {})),
    OpCase("squeeze[sparse,all]", lambda a, i: sg.squeeze(a[i]), lambda a, i: np.squeeze(a[i]),
           lambda d: (((a,), {"i": i}) for a in d.every_kind(heads=(2,)) if min(a.shape) for i in (np.s_[:1], np.s_[:, :1], np.s_[:1, :1, :1])),
           None, FORMATS, bilinear=True),
    OpCase("unsqueeze[sparse]", lambda a, dim: sg.unsqueeze(a, dim), lambda a, dim: np.expand_dims(a, dim),
           lambda d: (((a,), {"dim": k}) for a in d.every_kind(heads=(2,)) for k in range(-4, 4, 2)), None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(),), {"dim": 0})),
    OpCase("expand[sparse]", lambda a, i, shape: sg.expand(a[i], shape), lambda a, i, shape: np.broadcast_to(a[i], tuple(n if n != -1 else m for n, m in zip(shape, (1,) * (len(shape) - a[i].ndim) + a[i].shape, strict=True))),
           lambda d: (((a,), {"i": i, "shape": s}) for a in d.every_kind(heads=(2,)) if min(a.shape) for i, s in (
               (np.s_[:1], (3, -1, -1)), (np.s_[:, :1, :1], (2, -1, 2, 3)), (np.s_[:, :, :1], (-1, -1, 0)), (np.s_[:1, :1], (2, 3, -1)))),
           None, FORMATS, bilinear=True, huge=lambda d: ((d.huge(),), {"i": np.s_[:], "shape": (3, -1, -1)}), errors=(
        (lambda: sg.expand(eye(), (3, 2)), sg.ShapeError, r"expand: \(2, 2\) cannot become \(3, 2\)"),
        (lambda: sg.expand(sg.coo([[0]], [1.0], (1,)), (10**20,)), sg.ShapeError, "no array is so long"),
    )),
    OpCase("permute[cube]", sg.permute, lambda a, dims: np.transpose(a, dims), cubes(dims=((2, 0, 1), (1, 0, 2), (0, 1, 2))), None, ("coo",), bilinear=True),
    OpCase("permute[sparse]", lambda a, dims: sg.permute(a, dims), lambda a, dims: np.transpose(a, dims),
           lambda d: (((a,), {"dims": s}) for a in d.every_kind(heads=(2, 3)) for s in ((1, 0, 2, 3), (0, 1, 3, 2), (1, 0, 3, 2), (2, 0, 1, 3))),
           None, FORMATS, bilinear=True),
    OpCase("transpose[cube]", lambda a: sg.transpose(a, 0, -1), lambda a: a.swapaxes(0, -1), lambda d: (((a,), {}) for a in cube(d)),
           None, ("coo",), bilinear=True),
    # ---- joining -------------------------------------------------------------------------------
    *(
        OpCase(f"cat[sparse,{k}]", lambda a, b, dim: sg.cat([a, b], dim), lambda a, b, dim: np.concatenate([a, b], dim),
               lambda d, k=k: joined(d, k), None, FORMATS, bilinear=True, huge=lambda d: ((d.huge(), d.huge()), {"dim": 1}), errors=(
            (lambda: sg.cat([eye(), sg.ones(2, 2)]), TypeError, r"cat: sparse and dense tensors together; tensors\[1\] is a Tensor"),
            (lambda: sg.cat([eye(), sg.coo([[0], [0]], [1.0], (2, 3))]), sg.ShapeError, r"cat: sizes must be equal .*tensors\[1\]: \(2, 3\)"),
        ))
        for k in (0, 1)
    ),
    OpCase("cat[hybrid]", lambda a, b: sg.cat([a, b], 2), lambda a, b: np.concatenate([a, b], 2), hybrid_pairs, None, FORMATS, bilinear=True),
    *(
        OpCase(f"stack[sparse,{k}]", lambda a, b, k=k: sg.stack([a, b], k), lambda a, b, k=k: np.stack([a, b], k), pairs, None, FORMATS,
               bilinear=True, huge=lambda d: ((d.huge(), d.huge()), {}))
        for k in (0, 2)
    ),
    OpCase("block_diag[sparse]", sg.block_diag, ref_block_diag, pairs, None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(), d.huge()), {}), errors=(
        (lambda: sg.block_diag(), sg.ShapeError, "block_diag: expected at least one"),
        (lambda: sg.block_diag(eye(), sg.ones(2, 2)), TypeError, "block_diag: sparse and dense"),
        (lambda: sg.block_diag([eye(), eye()[0]]), sg.ShapeError, r"block_diag: expected matrices, got tensors\[1\]: \(2,\)"),
    )),
    OpCase("block_diag", sg.block_diag, ref_block_diag, lambda d: iter([((d.dense(2, 3), d.dense(1, 1), d.dense(0, 2)), {})]), "blocks_p", bilinear=True),
    # ---- diagonals -----------------------------------------------------------------------------
    OpCase("diagonal[sparse]", sg.diagonal, lambda a, offset: np.moveaxis(np.diagonal(a, offset), -1, 0),
           lambda d: (((a,), {"offset": k}) for h in ((), (2,)) for a in d.every_kind(heads=h) for k in (0, 1, -2, 9)),
           None, FORMATS, bilinear=True, huge=lambda d: ((d.huge(),), {"offset": 1}), errors=(
        (lambda: sg.diagonal(eye()[0]), sg.ShapeError, r"diagonal: x must be a matrix, got shape \(2,\)"),
    )),
    OpCase("diagonal", sg.diagonal, np.diagonal,
           lambda d: (((d.dense(*s),), {"offset": k}) for s in ((3, 4), (2, 2, 3)) for k in (0, 2, -1)), bilinear=True),
    OpCase("diag[offset]", lambda x, k: sg.diag(x, k), np.diag,
           lambda d: (((d.dense(*s),), {"k": k}) for s in ((3, 4), (3,), (0,)) for k in (0, 2, -1)), bilinear=True, errors=(
        (lambda: sg.diag(sg.ones(2, 2, 2)), sg.ShapeError, "diag: x must be a vector or a matrix"),
    )),
    OpCase("diag[sparse]", lambda a, k: sg.diag(a, k), lambda a, k: np.diag(a, k),
           lambda d: (((a,), {"k": k}) for a in cube(d, 5) for k in (0, 2, -1)), None, ("coo",), bilinear=True,
           huge=lambda d: ((Sparse(d.rng.integers(0, N, (1, 10)), d.away(10), (N,)),), {"k": 1})),
    *(
        OpCase(f"sparse_diags[{fmt}]", lambda x, y, fmt=fmt: sg.sparse_diags([x, y], [-1, 2], (4, 5), fmt),
               lambda x, y: ref_set_diagonal(ref_set_diagonal(np.zeros((4, 5)), x, -1), y, 2),
               lambda d: iter([((d.dense(3), d.dense(3)), {})]), bilinear=True, errors=(
            (lambda: sg.sparse_diags(1.0), sg.ShapeError, "sparse_diags: a number .* needs a shape"),
            (lambda: sg.sparse_diags([sg.ones(2)] * 2, [0, 0]), sg.ShapeError, "sparse_diags: .* none twice"),
            (lambda: sg.sparse_diags(sg.ones(2), 0, (3, 3)), sg.ShapeError, r"sparse_diags: diagonal 0 of shape \(3, 3\) has 3 elements, got shape \(2,\)"),
        ))
        for fmt in FORMATS
    ),
    *(
        OpCase(f"{name}[sparse]", getattr(sg, name), lambda a, diagonal, ref=ref: np.moveaxis(ref(np.moveaxis(a, (0, 1), (-2, -1)), diagonal), (-2, -1), (0, 1)),
               lambda d: (((a,), {"diagonal": k}) for h in ((), (2,)) for a in d.every_kind(heads=h) for k in (0, 1, -2)),
               None, FORMATS, bilinear=True, huge=lambda d: ((d.huge(),), {}), errors=(
            (lambda: sg.tril(sg.ones(2)), sg.ShapeError, r"tril: x must be a matrix, got shape \(2,\)"),
        ))
        for name, ref in (("tril", np.tril), ("triu", np.triu))
    ),
    *(
        OpCase(name, getattr(sg, name), ref, lambda d: (((d.dense(*s),), {"diagonal": k}) for s in ((3, 4), (2, 3, 3)) for k in (0, 1, -1)), bilinear=True)
        for name, ref in (("tril", lambda x, diagonal: np.tril(x, diagonal)), ("triu", lambda x, diagonal: np.triu(x, diagonal)))
    ),
    OpCase("set_diagonal", sg.set_diagonal, ref_set_diagonal, to_set, None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(), d.dense(N)), {}), errors=(
        (lambda: sg.set_diagonal(eye(), sg.ones(3)), sg.ShapeError, r"set_diagonal: values must have shape \(2,\), got \(3,\)"),
        (lambda: sg.set_diagonal(sg.ones(2, 2), 1), TypeError, "set_diagonal: A must be a SparseTensor"),
        (lambda: sg.set_diagonal(eye()[0], 1), sg.ShapeError, "set_diagonal: A must have two sparse dimensions"),
    )),
    OpCase("fill_diagonal", lambda a: sg.fill_diagonal(a, 3), lambda a: ref_set_diagonal(a, 3), one_sparse, None, FORMATS,
           huge=lambda d: ((d.huge(),), {})),
    OpCase("add_self_loops", sg.add_self_loops, lambda a, w: a + np.diag(w),
           lambda d: (((a, d.dense(a.shape[0])), {}) for (a,), _ in square(d)), None, FORMATS, bilinear=True,
           huge=lambda d: ((d.huge(), d.dense(N)), {}), errors=(
        (lambda: sg.add_self_loops(sg.coo([[0], [0]], [1.0], (2, 3))), sg.ShapeError, "add_self_loops: A must be a square matrix"),
        (lambda: sg.add_self_loops(eye(), sg.ones(3)), sg.ShapeError, "add_self_loops: weight must be"),
    )),
    OpCase("remove_self_loops", sg.remove_self_loops, lambda a: ref_set_diagonal(a, 0), one_sparse_or_hybrid, None, FORMATS,
           bilinear=True, huge=lambda d: ((d.huge(),), {})),
    # ---- pruning -------------------------------------------------------------------------------
    OpCase("prune", lambda a: sg.prune(a, 4.5), lambda a: np.where(np.abs(a) > 4.5, a, 0),
           lambda d: (((a,), {}) for a in distinct(d)), None, FORMATS, huge=lambda d: ((d.huge(),), {}), errors=(
        (lambda: sg.prune(eye(), -1), ValueError, "prune: threshold must be >= 0, got -1"),
        (lambda: sg.prune(sg.ones(2)), TypeError, "prune: A must be a SparseTensor"),
    )),
    OpCase("prune[hybrid]", lambda a: sg.prune(a, 1.5), lambda a: np.where((np.abs(a) > 1.5).any(-1, keepdims=True), a, 0),
           lambda d: (((a,), {}) for a in d.every_kind(heads=(2,))), None, FORMATS),
    OpCase("drop_zeros", sg.drop_zeros, np.copy, lambda d: (((a,), {}) for a in distinct(d)), None, FORMATS, huge=lambda d: ((d.huge(),), {})),
    *(
        OpCase(f"top_k[{dim},{by}]", lambda a, k, dim=dim, by=by: sg.top_k(a, k, dim, by), lambda a, k, dim=dim, by=by: ref_top_k(a, k, dim, by),
               lambda d: (((a,), {"k": k}) for a in distinct(d) for k in (0, 1, 3, 99)), None, FORMATS, huge=lambda d: ((d.huge(),), {"k": 3}), errors=(
            (lambda: sg.top_k(eye(), -1), ValueError, "top_k: k must be an integer >= 0"),
            (lambda: sg.top_k(eye(), 1, 2), sg.ShapeError, "top_k: dim 2 needs a matrix"),
            (lambda: sg.top_k(eye(), 1, by="size"), ValueError, "top_k: by must be"),
            (lambda: sg.top_k(sg.coo([[0]], [[1.0]], (2, 1)), 1), sg.ShapeError, "top_k: entries with dense dimensions"),
        ))
        for dim in (None, 0, 1) for by in ("magnitude", "value")
    ),
    OpCase("top_k[long]", sg.top_k, ref_top_k, long_runs, None, FORMATS),
    OpCase("trace[sparse]", lambda a: a.trace(), np.trace, one_sparse, None, FORMATS, bilinear=True, huge=lambda d: ((d.huge(),), {})),
    OpCase("outer[sparse]", sg.outer, np.outer, lambda d: (((a, b), {}) for a in cube(d, 4) for b in cube(d, 3)), None, ("coo",), bilinear=True),
    OpCase("outer[dense,sparse]", sg.outer, np.outer, lambda d: (((d.dense(3), a), {}) for a in cube(d, 4)), None, ("coo",), bilinear=True),
    OpCase("outer[sparse,dense]", sg.outer, np.outer, lambda d: (((a, d.dense(3)), {}) for a in cube(d, 4)), None, ("coo",), bilinear=True),
    OpCase("drop_zeros[zeros]", sg.drop_zeros, np.copy, one_sparse_or_hybrid, None, FORMATS, order=0),
]  # fmt: skip
