"""Patterns: validation, orders and formats, coalesce, what is shared, cached and frozen.

The oracle is SciPy, or coordinates written out by hand.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg
from sparsegrad import backends
from sparsegrad.backends import base
from sparsegrad.structure import arrays as index_arrays
from sparsegrad.structure import plan, plan_tables
from sparsegrad.structure.core import Core
from sparsegrad.structure.pattern import Pattern

FORMATS = ("coo", "csr", "csc")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The index work of the reference backend, by method name."""
    seen: list[str] = []
    for name in ("sort_coo", "group", "expand", "compress", "order_facts", "check_indices"):
        original = getattr(base.Backend, name)

        def counted(self: Any, *args: Any, _name: str = name, _fn: Any = original) -> Any:
            seen.append(_name)
            return _fn(self, *args)

        monkeypatch.setattr(base.Backend, name, counted)
    with sg.config(backend="reference"):
        yield seen


# ---- samples: coordinates in any order, with their values ---------------------------------------
def matrices() -> dict[str, tuple[np.ndarray, np.ndarray, tuple[int, int]]]:
    rng = np.random.default_rng(0)
    out: dict[str, Any] = {}

    def add(name: str, coords: Any, shape: tuple[int, int], values: Any = None) -> None:
        coords = np.asarray(coords, np.int64).reshape(2, -1)
        if values is None:
            values = rng.integers(1, 100, coords.shape[1]) + 0.5
        out[name] = (coords, np.asarray(values, np.float64), shape)

    cells = rng.permutation(35)[:17]
    add("unsorted", np.unravel_index(cells, (5, 7)), (5, 7))
    add("sorted", np.unravel_index(np.sort(cells), (5, 7)), (5, 7))
    add("column-major", np.unravel_index(np.sort(cells), (7, 5))[::-1], (5, 7))
    add("duplicates", rng.integers(0, 3, (2, 30)), (4, 3))
    add("sorted duplicates", [[0, 0, 0, 2, 2], [1, 1, 1, 0, 0]], (3, 2))
    add("one entry many times", [[1] * 9, [2] * 9], (2, 4))
    add("zeros", [[2, 0, 1, 0], [0, 1, 1, 1]], (3, 3), [0.0, 2.0, 0.0, -2.0])
    add("square", np.unravel_index(rng.permutation(16)[:9], (4, 4)), (4, 4))
    add("full", np.unravel_index(rng.permutation(12), (3, 4)), (3, 4))
    add("none", [[], []], (3, 4))
    add("no rows", [[], []], (0, 4))
    add("no columns", [[], []], (4, 0))
    add("nothing", [[], []], (0, 0))
    add("one cell", [[0], [0]], (1, 1))
    add("row", [[0, 0, 0], [4, 1, 1]], (1, 5))
    add("column", [[4, 1, 1], [0, 0, 0]], (5, 1))
    return out


MATRICES = matrices()
every_matrix = pytest.mark.parametrize("name", MATRICES)


def dense_of(name: str) -> np.ndarray:
    coords, values, shape = MATRICES[name]
    out = np.zeros(shape)
    np.add.at(out, tuple(coords), values)
    return out


def as_format(name: str, fmt: str) -> Any:
    """In `fmt`, made from raw arrays: entries unsorted within a row, duplicates kept."""
    coords, values, shape = MATRICES[name]
    if fmt == "coo":
        return sg.coo(coords, values, shape)
    major = 0 if fmt == "csr" else 1
    order = np.argsort(coords[major], kind="stable")
    indptr = np.searchsorted(coords[major][order], np.arange(shape[major] + 1))
    make = sg.csr if fmt == "csr" else sg.csc
    return make(indptr, coords[1 - major][order], values[order], shape)


def triples(A: Any) -> list[tuple[int, int, float]]:
    """Stored entries as a multiset."""
    return sorted(zip(A.row.tolist(), A.col.tolist(), A.values.detach().tolist(), strict=True))


def offsets(name: str, fmt: str) -> np.ndarray:
    coords, _, shape = MATRICES[name]
    major = 0 if fmt == "csr" else 1
    return np.concatenate(([0], np.cumsum(np.bincount(coords[major], minlength=shape[major]))))


def given_triples(name: str) -> list[tuple[int, int, float]]:
    coords, values, _ = MATRICES[name]
    return sorted(zip(*coords.tolist(), values.tolist(), strict=True))


# ---- validation --------------------------------------------------------------------------------
COO_ERRORS: list[tuple[str, Any, Any, str]] = [
    ("negative", [[0, -1], [0, 0]], (2, 2), r"indices\[0\]: index -1 at position 1 is outside"),
    ("narrow", np.array([[-1]] * 2, "i1"), (999, 9), r"indices\[0\]: index -1 at position 0"),
    ("wide", np.array([[-1]] * 2, "i4"), (2**40, 9), r"indices\[0\]: index -1 at position 0"),
    ("too large", [[0, 0], [0, 2]], (2, 2), r"indices\[1\]: index 2 at position 1 is outside \[0"),
    ("empty shape", [[0], [0]], (2, 0), r"indices\[1\]: index 0 at position 0 is outside \[0, 0\)"),
    ("third", [[0], [0], [9]], (1, 1, 9), r"indices\[2\]: index 9 at position 0 is outside"),
    ("floats", [[0.0], [1.0]], (2, 2), r"indices\[0\]: indices must be integers, got float64"),
    ("bools", [[True], [True]], (2, 2), r"indices\[0\]: indices must be integers, got bool"),
    ("text", [["a"], ["b"]], (2, 2), r"indices\[0\]: indices must be integers"),
    ("lengths", [[0, 1], [0]], (2, 2), r"indices: lengths differ: \[2, 1\]"),
    ("ranks", [[[0]], [[0]]], (2, 2), r"indices\[0\]: expected one dimension, got shape \(1, 1\)"),
    ("rows", [[0], [0], [0]], (2, 2), r"indices: expected 2 rows for shape \(2, 2\), got 3"),
    ("scalars", [0, 1], (2, 2), r"indices\[0\]: expected one dimension, got shape \(\)"),
    ("no dims", [], (), "shape: a sparse tensor needs at least one sparse dimension"),
    ("shape", [[0], [0]], (2, -1), r"shape: sizes must not be negative, got \(2, -1\)"),
    ("shape type", [[0], [0]], (2, 1.5), "shape: expected a tuple of integers"),
    ("shape none", [[0], [0]], None, "shape: expected a tuple of integers, got None"),
    ("huge", [[2**63], [0]], (2, 2), r"indices\[0\]: index 9223372036854775808 .* outside \[0, 2"),
]  # fmt: skip


@pytest.mark.parametrize(("indices", "shape", "text"), [c[1:] for c in COO_ERRORS],
                         ids=[c[0] for c in COO_ERRORS])  # fmt: skip
def test_bad_coordinates(indices: Any, shape: Any, text: str, backend: str) -> None:
    with pytest.raises(sg.PatternError, match=text):
        Pattern.coo(indices, shape)


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", ">i4", ">i8"])
def test_every_integer_dtype_is_checked_and_kept_apart(dtype: str, backend: str) -> None:
    """Also beyond the small sizes that fast paths leave to NumPy."""
    n = 100
    ids = np.arange(20_000) % n
    good = ids.astype(dtype)
    P = Pattern.coo([good, good], (n, n))
    assert P.row.dtype == np.int32
    np.testing.assert_array_equal(P.row, ids)
    bad = good.copy()
    bad[12_345] = n
    with pytest.raises(sg.PatternError, match=r"indices\[1\]: index 100 at position 12345 is outs"):
        Pattern.coo([good, bad], (n, n))
    if np.dtype(dtype).kind == "i":
        bad[12_345] = -3
        with pytest.raises(sg.PatternError, match=r"indices\[0\]: index -3 at position 12345"):
            Pattern.coo([bad, good], (n, n))


@pytest.mark.parametrize("count", [1, 20_000])
def test_indices_beyond_32_bits_are_not_cut_off_before_they_are_checked(
    count: int, backend: str
) -> None:
    for bad in (2**32, 2**32 + 1, -(2**32), 2**40 + 3):
        ids = np.zeros(count, np.int64)
        ids[-1] = bad
        with pytest.raises(sg.PatternError, match=f"index {bad} at position {count - 1} "):
            Pattern.coo([ids, ids], (2, 2))
        with pytest.raises(sg.PatternError, match=f"index {bad} at position {count - 1} "):
            Pattern.compressed("csr", [0, count], ids, (1, 2))


COMPRESSED_ERRORS: list[tuple[str, Any, Any, Any, str]] = [
    ("short", [0, 1], [0], (2, 2), r"indptr: expected length 3 for csr of shape \(2, 2\), got 2"),
    ("long", [0, 1, 1, 1], [0], (2, 2), "indptr: expected length 3 for csr .*, got 4"),
    ("start", [1, 1, 1], [0], (2, 2), r"indptr: must start at 0, got \[1\]"),
    ("end", [0, 1, 2], [0], (2, 2), "indptr: must end at nnz = 1, got 2"),
    ("end short", [0, 0, 1], [0, 1], (2, 2), "indptr: must end at nnz = 2, got 1"),
    ("falls", [0, 2, 1, 2], [0, 1], (3, 2), "indptr: must not fall, got 2 then 1 at 1"),
    ("negative offset", [0, -1, 1], [0], (2, 2), "indptr: must not fall, got 0 then -1 at 0"),
    ("index", [0, 1, 1], [5], (2, 2), r"indices: index 5 at position 0 is outside \[0, 2\)"),
    ("negative", [0, 1, 1], [-1], (2, 2), r"indices: index -1 at position 0 is outside \[0, 2\)"),
    ("float offsets", [0.0, 1.0, 1.0], [0], (2, 2), "indptr: indices must be integers"),
    ("float ids", [0, 1, 1], [0.5], (2, 2), "indices: indices must be integers, got float64"),
    ("rank", [[0, 1, 1]], [0], (2, 2), r"indptr: expected one dimension, got shape \(1, 3\)"),
    ("dims", [0, 1], [0], (1,), r"csr: needs two sparse dimensions, got shape \(1,\)"),
    ("three dims", [0, 1], [0], (1, 1, 1), r"csr: needs two sparse dimensions"),
    ("shape", [0, 1], [0], (-1, 2), "shape: sizes must not be negative"),
]  # fmt: skip


@pytest.mark.parametrize(("indptr", "indices", "shape", "text"),
                         [c[1:] for c in COMPRESSED_ERRORS],
                         ids=[c[0] for c in COMPRESSED_ERRORS])  # fmt: skip
@pytest.mark.parametrize("fmt", ["csr", "csc"])
def test_bad_compressed_arrays(
    fmt: str, indptr: Any, indices: Any, shape: Any, text: str, backend: str
) -> None:
    if fmt == "csc":
        shape, text = shape[::-1], text.replace("csr", "csc")
    with pytest.raises(sg.PatternError, match=text):
        Pattern.compressed(fmt, indptr, indices, shape)


def test_unsigned_offsets_that_fall(backend: str) -> None:
    """Their difference wraps around: a subtraction would not see it."""
    for dtype in (np.uint8, np.uint32, np.uint64):
        with pytest.raises(sg.PatternError, match="indptr: must not fall, got 3 then 1 at 1"):
            Pattern.compressed("csr", np.array([0, 3, 1, 3], dtype), [0, 0, 0], (3, 1))


def test_bad_values() -> None:
    with pytest.raises(sg.ShapeError, match=r"values: expected shape \(2,\), got \(3,\)"):
        sg.coo([[0, 1], [0, 1]], [1.0, 2.0, 3.0], (2, 2))
    with pytest.raises(sg.ShapeError, match=r"values: expected shape \(2, 3\), got \(2,\)"):
        sg.coo([[0, 1], [0, 1]], [1.0, 2.0], (2, 2, 3))
    with pytest.raises(sg.ShapeError, match=r"values: expected shape \(1,\), got \(\)"):
        sg.coo([[0], [0]], 5.0, (2, 2))
    with pytest.raises(sg.ShapeError, match=r"values: expected shape \(1,\), got \(2,\)"):
        sg.csr([0, 1, 1], [0], [1.0, 2.0], (2, 2))
    with pytest.raises(sg.PatternError, match=r"indices: expected \(sparse dims, nnz\), got 3"):
        sg.coo(3, [1.0], (2, 2))
    with pytest.raises(sg.DtypeError, match="requires_grad: only floating-point"):
        sg.coo([[0], [0]], [1], (2, 2), requires_grad=True)
    with pytest.raises(sg.ShapeError, match="with_values: expected 1 values, got shape"):
        sg.coo([[0], [0]], [1.0], (2, 2)).with_values([1.0, 2.0])


def test_the_check_can_be_left_out(calls: list[str]) -> None:
    Pattern.coo([[5], [0]], (2, 2), check=False)
    Pattern.compressed("csr", [0, 1, 1], [7], (2, 2), check=False)
    assert calls == []
    with sg.config(check_invariants=True), pytest.raises(sg.PatternError, match=r"indices\[0\]"):
        Pattern.coo([[5], [0]], (2, 2), check=False)
    broken = sg.coo([[5], [0]], [1.0], (2, 2), check=False)
    with pytest.raises(sg.PatternError, match=r"indices\[0\]: index 5"):
        broken.check_invariants()


def test_what_does_not_fit_the_format() -> None:
    P = Pattern.coo([[0], [1], [2]], (1, 2, 3))
    for what, text in (
        (lambda: P.T, "T: needs two sparse dimensions"),
        (lambda: P.col, "col: needs two sparse dimensions"),
        (lambda: P.to("csr"), r"to\('csr'\): needs two sparse dimensions, got shape \(1, 2, 3\)"),
        (lambda: P.to("dia"), "format: expected 'coo', 'csr' or 'csc', got 'dia'"),
        (lambda: P.indptr, "indptr: a coo pattern has none"),
        (lambda: P.rows(), "rows: needs two sparse dimensions"),
    ):
        with pytest.raises(sg.PatternError, match=text):
            what()
    with pytest.raises(sg.ShapeError, match="T: needs a matrix without dense dimensions"):
        sg.coo([[0], [0]], [[1.0, 2.0]], (2, 2, 2)).T


def test_row_exists_on_every_number_of_sparse_dimensions() -> None:
    assert Pattern.coo([[2, 0]], (3,)).row.tolist() == [2, 0]
    assert Pattern.coo([[1], [0], [2]], (2, 1, 3)).row.tolist() == [1]


# ---- formats and their conversions -------------------------------------------------------------
@every_matrix
@pytest.mark.parametrize("fmt", FORMATS)
def test_arrays_of_each_format_are_those_of_scipy(name: str, fmt: str, backend: str) -> None:
    """With duplicates and unsorted entries kept: SciPy keeps them too, in the same order."""
    A = as_format(name, fmt)
    coords, values, shape = MATRICES[name]
    want = sp.coo_array((values, tuple(coords)), shape=shape)
    if fmt == "coo":
        np.testing.assert_array_equal(A.indices, coords)
        np.testing.assert_array_equal(A.values.data, values)
    else:
        np.testing.assert_array_equal(A.indptr, offsets(name, fmt))
        assert A.indices.shape == (len(values),)
    assert A.shape == shape and A.nnz == len(values) and A.format == fmt
    assert triples(A) == given_triples(name)
    np.testing.assert_array_equal(A.to_dense().data, want.toarray())
    np.testing.assert_array_equal(A.to_scipy().toarray(), want.toarray())
    assert A.to_scipy().format == fmt


@pytest.mark.parametrize("path", list(itertools.product(FORMATS, repeat=3)), ids="-".join)
def test_round_trips(path: tuple[str, ...], backend: str) -> None:
    for name in MATRICES:
        start = as_format(name, path[0])
        A, transposed = start, start.T
        for fmt in (*path[1:], path[0]):
            A, transposed = A.to(fmt), transposed.to(fmt)
            assert A.format == transposed.format == fmt
            assert A.nnz == transposed.nnz == start.nnz
            assert triples(A) == given_triples(name)
            np.testing.assert_array_equal(A.to_dense().data, dense_of(name))
            np.testing.assert_array_equal(transposed.to_dense().data, dense_of(name).T)
            assert A.pattern.core is start.pattern.core  # index work is shared, not repeated


@every_matrix
@pytest.mark.parametrize(
    ("fmt", "target"), [("coo", "csr"), ("coo", "csc"), ("csr", "csc"), ("csc", "csr")]
)
def test_converted_order_is_canonical_and_stable(
    name: str, fmt: str, target: str, backend: str
) -> None:
    A = as_format(name, fmt)
    B = A.to(target)
    first, second = (B.row, B.col) if target == "csr" else (B.col, B.row)
    order = np.lexsort((second, first))  # stable: identity if and only if it is sorted
    np.testing.assert_array_equal(order, np.arange(B.nnz))
    # Stable: duplicates keep the order in which they stood in A.
    n = A.shape[1] if target == "csr" else A.shape[0]
    lead, minor = (A.row, A.col) if target == "csr" else (A.col, A.row)
    perm = np.argsort(lead.astype(np.int64) * max(1, n) + minor, kind="stable")
    np.testing.assert_array_equal(B.values.data, A.values.data[perm])
    np.testing.assert_array_equal(B.indptr, offsets(name, target))


@every_matrix
@pytest.mark.parametrize("fmt", FORMATS)
def test_rows_and_sorted_rows(name: str, fmt: str, backend: str) -> None:
    """What backends read: the same matrix, whichever handle is asked."""
    A, D = as_format(name, fmt), dense_of(name)
    handles = [(A, D), (A.T, D.T), (A.to("csr"), D), (A.to("csc").T, D.T), (A.T.to("coo"), D.T)]
    for B, want in handles:
        for read, sorted_ in ((B.pattern.rows, False), (B.pattern.sorted_rows, True)):
            indptr, cols, positions = read()
            values = B.values.data if positions is None else B.values.data[positions]
            rows = np.repeat(np.arange(B.shape[0]), np.diff(indptr))
            out = np.zeros(B.shape)
            np.add.at(out, (rows, cols), values)
            np.testing.assert_array_equal(out, want)
            if positions is not None:
                assert sorted(positions.tolist()) == list(range(B.nnz))
            if sorted_:
                assert (np.diff(cols.astype(np.int64))[rows[1:] == rows[:-1]] >= 0).all()


def test_scipy_round_trip_of_every_format() -> None:
    rng = np.random.default_rng(0)
    for fmt in (*FORMATS, "lil", "dok", "bsr", "dia"):
        m = sp.random_array((6, 5), density=0.4, rng=rng).asformat(fmt)
        A = sg.from_scipy(m)
        assert A.format == (fmt if fmt in FORMATS else "csr")
        np.testing.assert_array_equal(A.to_dense().data, m.toarray())
        np.testing.assert_array_equal(A.to_scipy().toarray(), m.toarray())
    with pytest.raises(TypeError, match=r"from_scipy: expected a scipy\.sparse array, got ndarray"):
        sg.from_scipy(np.eye(2))


# ---- transpose ---------------------------------------------------------------------------------
@every_matrix
@pytest.mark.parametrize("fmt", FORMATS)
def test_transpose_is_a_view(name: str, fmt: str, calls: list[str]) -> None:
    A = as_format(name, fmt)
    calls.clear()
    B = A.T
    assert calls == []  # no index work at all
    assert B.values is A.values and B.pattern.core is A.pattern.core
    assert B.shape == A.shape[::-1]
    assert B.format == {"coo": "coo", "csr": "csc", "csc": "csr"}[fmt]
    assert B.row is A.col and B.col is A.row
    if fmt != "coo":
        assert B.indptr is A.indptr and B.indices is A.indices
    assert B.T.pattern.same_as(A.pattern) and B.T.format == fmt and B.T.shape == A.shape
    assert A.pattern.same_as(B.pattern) is False or A.nnz == 0 or A.shape[0] == A.shape[1]


def test_a_transpose_is_another_pattern_unless_it_lists_the_same_entries() -> None:
    A = sg.coo([[0, 1], [1, 0]], [1.0, 2.0], (2, 2))
    assert not A.pattern.same_as(A.T.pattern)
    np.testing.assert_array_equal((A + A.T).to_dense().data, [[0, 3], [3, 0]])
    np.testing.assert_array_equal((A * A.T).to_dense().data, [[0, 2], [2, 0]])


def test_gradients_of_a_transpose() -> None:
    A = sg.coo([[0, 2, 1], [1, 0, 1]], np.array([1.0, 2.0, 3.0]), (3, 2), requires_grad=True)
    x = np.array([[1.0], [10.0], [100.0]])
    (A.T @ x).backward(sg.tensor([[2.0], [3.0]], dtype=sg.float64))
    # dA[i, j] = x[i] * g[j]
    np.testing.assert_array_equal(A.grad.values.data, [1 * 3, 100 * 2, 10 * 3])


# ---- index dtype -------------------------------------------------------------------------------
def test_index_dtype_is_the_smallest_that_holds_shape_and_entries() -> None:
    """AC-64: the number of entries counts as much as the sizes (nothing of that size is made)."""
    top = 2**31 - 1
    for shape, nnz, want in (
        ((3, 3), 5, np.int32), ((top, 1), 0, np.int32), ((top + 1, 1), 0, np.int64),
        ((1, 2**40), 7, np.int64), ((3, 3), top, np.int32), ((3, 3), top + 1, np.int64),
        ((), 0, np.int32),
    ):  # fmt: skip
        assert index_arrays.index_dtype(shape, nnz) == want


def test_int64_input_becomes_int32_and_back() -> None:
    ids = np.array([0, 1], np.int64)
    assert Pattern.coo([ids, ids], (2, 2)).row.dtype == np.int32
    wide = Pattern.coo([ids.astype(np.int8), ids.astype(np.uint16)], (2, 2**33))
    assert wide.row.dtype == wide.col.dtype == np.int64
    assert wide.to("csr")[0].indptr.dtype == np.int64


@pytest.mark.parametrize("fmt", FORMATS)
def test_ac_64_results_widen_where_their_entries_need_it(
    fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the limit of 32-bit indices lowered to 20: unions of 12 + 12 entries cross it."""
    monkeypatch.setattr(index_arrays, "INT32_MAX", 20)
    rng = np.random.default_rng(0)
    a, b = (np.unravel_index(np.sort(rng.permutation(36)[:12]), (6, 6)) for _ in range(2))
    va, vb = rng.standard_normal(12), rng.standard_normal(12)
    A, B = (sg.coo(list(c), v, (6, 6)).to(fmt) for c, v in ((a, va), (b, vb)))
    assert A.row.dtype == np.int32
    C = A + B
    assert C.nnz <= 20 or C.row.dtype == np.int64
    want = np.zeros((6, 6))
    want[a] += va
    want[b] += vb
    np.testing.assert_allclose(C.to_dense().data, want, atol=1e-14)
    big = sg.coo(np.indices((6, 6)).reshape(2, -1), np.arange(36.0), (6, 6)).to(fmt)
    assert big.nnz == 36 and big.row.dtype == np.int64 and big.col.dtype == np.int64
    assert (big.indptr.dtype == np.int64) if fmt != "coo" else True
    np.testing.assert_array_equal((big @ np.eye(6)).data, np.arange(36.0).reshape(6, 6))
    np.testing.assert_allclose((A + big).to_dense().data - A.to_dense().data,
                               np.arange(36.0).reshape(6, 6), atol=1e-14)  # fmt: skip


def test_ac_64_more_entries_than_32_bits_count() -> None:
    """nnz = 2^31 + 3, all in one cell: the arrays are stride-0 and take no memory."""
    nnz = 2**31 + 3
    ids = np.broadcast_to(np.int64(0), (nnz,))
    core = Core("coo", (1, 1), (ids, ids))
    P = Pattern(core, "coo")
    assert P.nnz == nnz > 0
    assert repr(P) == f"Pattern(shape=(1, 1), nnz={nnz}, format='coo')"
    A = sg.SparseTensor.__new__(sg.SparseTensor)
    A.pattern, A.values = P, sg.Tensor(np.broadcast_to(np.float32(1), (nnz,)))
    assert A.nnz == nnz and A.density == nnz
    with pytest.raises(sg.PatternError, match=f"indptr: must end at nnz = {nnz}, got -214748364"):
        index_arrays.check_offsets("indptr", np.array([0, -(2**31) + 3]), nnz)


# ---- coalesce ----------------------------------------------------------------------------------
@every_matrix
@pytest.mark.parametrize("fmt", FORMATS)
def test_coalesce_is_that_of_scipy(name: str, fmt: str, backend: str) -> None:
    A = as_format(name, fmt)
    given = triples(A)
    flat = A.col.astype(np.int64) * max(1, A.shape[0]) + A.row
    if fmt != "csc":
        flat = A.row.astype(np.int64) * max(1, A.shape[1]) + A.col
    assert A.is_coalesced == bool((np.diff(flat) > 0).all())  # the flag is truthful
    C = A.coalesce()
    assert triples(A) == given  # A is what it was
    assert C.is_coalesced and C.format == fmt and C.shape == A.shape
    assert C.coalesce() is C  # idempotent
    want = A.to_scipy().copy()
    want.sum_duplicates()
    want = want.tocsc() if fmt == "csc" else want.tocsr()
    want.sort_indices()
    assert C.nnz == len({(i, j) for i, j, _ in given})
    listed = want.tocoo()
    np.testing.assert_array_equal(C.row, listed.coords[0])
    np.testing.assert_array_equal(C.col, listed.coords[1])
    np.testing.assert_allclose(C.values.data, listed.data, rtol=1e-15)


def test_explicit_zeros_stay_and_sums_that_come_to_zero_too() -> None:
    for fmt in FORMATS:
        C = as_format("zeros", fmt).coalesce()
        assert C.nnz == 3
        assert triples(C) == [(0, 1, 0.0), (1, 1, 0.0), (2, 0, 0.0)]


def test_flags_follow_every_handle() -> None:
    """Row-major entries are coalesced as coo and csr, not as csc; their transpose the other way."""
    A = sg.coo([[0, 0, 1], [0, 2, 1]], [1.0, 2.0, 3.0], (2, 3))
    assert A.is_coalesced
    assert not A.T.is_coalesced  # (0,0), (2,0), (1,1): column-major
    assert A.T.coalesce().row.tolist() == [0, 1, 2]
    csr, csc = A.to("csr"), A.to("csc")
    assert csr.is_coalesced and csc.is_coalesced
    assert csr.T.is_coalesced and csr.T.format == "csc"
    assert csc.T.is_coalesced and csc.T.format == "csr"
    unsorted = sg.csr([0, 2], [1, 0], [1.0, 2.0], (1, 2))
    assert not unsorted.is_coalesced and not unsorted.T.is_coalesced
    assert unsorted.coalesce().values.tolist() == [2.0, 1.0]
    assert unsorted.T.coalesce().format == "csc"
    # Column ids that rise only because a row ends: still in order.
    assert sg.csr([0, 1, 2], [1, 0], [1.0, 2.0], (2, 2)).is_coalesced
    # Sorted, but an entry twice.
    assert not sg.csr([0, 2, 2], [1, 1], [1.0, 2.0], (2, 2)).is_coalesced


def test_nothing_stored_is_coalesced() -> None:
    for fmt in FORMATS:
        for shape in ((3, 4), (0, 4), (3, 0), (0, 0)):
            A = sg.coo([[], []], [], shape).to(fmt)
            assert A.nnz == 0 and A.is_coalesced and A.coalesce() is A
            assert A.T.is_coalesced and A.T.shape == shape[::-1]
            assert A.density == 0
            assert A.row.shape == A.col.shape == (0,)
            assert A.indices.shape == ((2, 0) if fmt == "coo" else (0,))
            if fmt != "coo":
                assert A.indptr.tolist() == [0] * ((shape[0] if fmt == "csr" else shape[1]) + 1)


# ---- any number of dimensions ------------------------------------------------------------------
SHAPES = [(7,), (4, 3), (3, 2, 4), (2, 3, 2, 3), (2, 1, 3, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dense", [(), (2,), (2, 0), (1, 3)], ids=str)
def test_coo_of_any_rank_with_dense_dimensions(
    shape: tuple[int, ...], dense: tuple[int, ...], backend: str
) -> None:
    rng = np.random.default_rng(len(shape))
    coords = np.stack([rng.integers(0, n, 20) for n in shape])
    values = rng.standard_normal((20, *dense))
    want, cells = np.zeros((*shape, *dense)), int(np.prod(shape))
    np.add.at(want, tuple(coords), values)
    A = sg.coo(coords, values, (*shape, *dense), requires_grad=True)
    assert (A.sparse_dim, A.dense_dim, A.ndim) == (len(shape), len(dense), len(shape) + len(dense))
    assert A.shape == want.shape and A.numel() == want.size
    np.testing.assert_allclose(A.to_dense().detach().numpy(), want, atol=1e-13)
    C = A.coalesce()
    order = np.unique(np.ravel_multi_index(tuple(coords), shape))
    np.testing.assert_array_equal(C.indices, np.stack(np.unravel_index(order, shape)))
    np.testing.assert_allclose(C.values.detach().numpy(), want.reshape(cells, *dense)[order],
                               atol=1e-13)  # fmt: skip
    g = rng.standard_normal(C.values.shape)
    C.values.backward(sg.Tensor(g))
    full = np.zeros(want.shape)
    full.reshape(cells, *dense)[order] = g
    np.testing.assert_array_equal(A.values.grad.data, full[tuple(coords)])
    np.testing.assert_array_equal(A.grad.indices, C.indices)
    np.testing.assert_array_equal(A.grad.values.data, g)


@pytest.mark.parametrize("fmt", FORMATS)
def test_hybrid_matrices_convert(fmt: str, backend: str) -> None:
    coords, values, shape = MATRICES["duplicates"]
    values = values[:, None] * [1.0, -2.0, 0.0]
    A = sg.coo(coords, values, (*shape, 3)).to(fmt)
    want = dense_of("duplicates")[..., None] * [1.0, -2.0, 0.0]
    for other in FORMATS:
        np.testing.assert_array_equal(A.to(other).to_dense().data, want)
        np.testing.assert_array_equal(A.to(other).coalesce().to_dense().data, want)
    with pytest.raises(sg.ShapeError, match="to_scipy: scipy has no dense dimensions"):
        A.to_scipy()


@pytest.mark.parametrize("dims", [4, 7])
def test_ac_55_ac_56_keys_that_overflow_64_bits(dims: int, backend: str) -> None:
    """(10^6)^4 and seven dimensions of 2584 to 75025: sorted without being linearised."""
    shape = (10**6,) * 4 if dims == 4 else (2584, 4181, 6765, 10946, 17711, 28657, 75025)
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, n, 30_000) for n in shape])
    coords[:, 10_000:20_000] = coords[:, :10_000]  # duplicates
    coords[:, 0] = [n - 1 for n in shape]
    values = rng.integers(1, 100, 30_000).astype(float)
    A = sg.coo(coords, values, shape, requires_grad=True)
    C = A.coalesce()
    want: dict[tuple[int, ...], float] = {}
    for cell, v in zip(map(tuple, coords.T.tolist()), values.tolist(), strict=True):
        want[cell] = want.get(cell, 0.0) + v
    assert C.is_coalesced and not A.is_coalesced
    assert C.indices.min() >= 0
    assert list(map(tuple, C.indices.T.tolist())) == sorted(want)
    np.testing.assert_array_equal(C.values.detach().numpy(), [want[c] for c in sorted(want)])
    C.sum().backward()
    np.testing.assert_array_equal(A.values.grad.data, np.ones(30_000))
    assert 0 <= A.density < 1e-15
    total = A.detach() + A.detach()
    np.testing.assert_array_equal(total.coalesce().values.data, 2 * C.values.detach().numpy())
    product = A.detach() * C.detach()
    np.testing.assert_array_equal(product.values.data, C.values.detach().numpy() ** 2)


def test_ac_55_matrices_with_more_cells_than_64_bits(backend: str) -> None:
    """2^40 x 2^40: the dimension that would overflow in rows * n + column."""
    n = 2**40
    rng = np.random.default_rng(0)
    coords = rng.integers(0, n, (2, 10_000))
    coords[:, 5000:] = coords[:, :5000]
    A = sg.coo(coords, np.ones(10_000), (n, n))
    C = A.coalesce()
    assert C.row.dtype == np.int64 and C.nnz == 5000
    order = np.lexsort((coords[1, :5000], coords[0, :5000]))
    np.testing.assert_array_equal(C.indices, coords[:, :5000][:, order])
    np.testing.assert_array_equal(C.values.data, np.full(5000, 2.0))
    T = A.T.coalesce()
    order = np.lexsort((coords[0, :5000], coords[1, :5000]))
    np.testing.assert_array_equal(T.indices, coords[::-1, :5000][:, order])


# ---- what is the same pattern ------------------------------------------------------------------
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", ["unsorted", "duplicates", "none", "square"])
def test_same_as_after_pickling_and_copying(name: str, fmt: str) -> None:
    A = as_format(name, fmt)
    for B in (
        pickle.loads(pickle.dumps(A)), copy.deepcopy(A), copy.copy(A),
        pickle.loads(pickle.dumps(A.T)).T, as_format(name, fmt),
    ):  # fmt: skip
        assert B.format == fmt and B.shape == A.shape
        assert A.pattern.same_as(B.pattern) and B.pattern.same_as(A.pattern)
        assert B.pattern.core is A.pattern.core  # compared once, then shared
        np.testing.assert_array_equal(B.values.data, A.values.data)
        np.testing.assert_array_equal(B.indices, A.indices)


def test_cores_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    A = as_format("unsorted", "coo")
    B = pickle.loads(pickle.dumps(A))
    (A + B).values
    assert B.pattern.core is A.pattern.core
    monkeypatch.setattr(Core, "fingerprint", lambda self: pytest.fail("compared again"))
    assert A.pattern.same_as(B.pattern)
    np.testing.assert_array_equal((A * B).values.data, A.coalesce().values.data ** 2)


def test_what_is_not_the_same() -> None:
    P = Pattern.coo([[0, 1], [1, 0]], (2, 2))
    for Q in (
        Pattern.coo([[0, 1], [1, 0]], (2, 3)),  # another shape
        Pattern.coo([[0, 1], [1, 1]], (2, 2)),  # other entries
        Pattern.coo([[1, 0], [0, 1]], (2, 2)),  # another order: values would not line up
        Pattern.coo([[0], [1]], (2, 2)),
        Pattern.coo([[0, 1, 1], [1, 0, 0]], (2, 2)),
    ):
        assert not P.same_as(Q) and not Q.same_as(P)
    R = Pattern.coo([[1, 0], [0, 1]], (2, 2))
    assert R.same_as(R) and not R.same_as(R.to("csr")[0])  # csr lists them in another order
    assert P.same_as(P.to("csr")[0])  # already in that order: values line up


def test_index_width_does_not_make_patterns_differ() -> None:
    narrow = Core("coo", (2, 2), (np.array([0, 1], np.int32), np.array([1, 0], np.int32)))
    wide = Core("coo", (2, 2), (np.array([0, 1]), np.array([1, 0])))
    assert Pattern(narrow, "coo").same_as(Pattern(wide, "coo"))


def test_pickles_are_small_and_hold_no_caches() -> None:
    rng = np.random.default_rng(0)
    A = sg.coo(rng.integers(0, 1000, (2, 5000)), rng.standard_normal(5000), (1000, 1000))
    before = len(pickle.dumps(A))
    A.to("csr"), A.to("csc"), A.coalesce(), A.T.coalesce()
    assert A.pattern.cache_nbytes > 0
    assert len(pickle.dumps(A)) == before
    assert pickle.loads(pickle.dumps(A)).pattern.cache_nbytes == 0


# ---- caches ------------------------------------------------------------------------------------
def test_index_work_is_done_once(calls: list[str]) -> None:
    A = as_format("duplicates", "coo").requires_grad_()
    x = np.ones((3, 2))

    def step() -> None:
        B = A * 2.0
        total = (B @ x).sum() + (B.T @ np.ones((4, 1))).sum() + B.to("csr").values.sum()
        total = total + B.to("csc").coalesce().values.sum() + (B + A).values.sum()
        total = total + (B * A).values.sum() + sg.softmax(B, 1).values.sum() + B.sum(0).sum()
        total.backward()
        A.grad.to("csr")

    step()
    first = list(calls)
    assert first.count("sort_coo") <= 4 and first.count("group") <= 2
    calls.clear()
    for _ in range(5):
        step()
    assert [c for c in calls if c in ("sort_coo", "group", "order_facts")] == []


def test_handles_of_one_core_share_work(calls: list[str]) -> None:
    A = as_format("unsorted", "coo")
    A.to("csr"), A.to("csc"), A.coalesce()
    calls.clear()
    B = (A * 3.0).T.with_values(np.arange(A.nnz) * 1.0)
    B.to("csc"), B.to("csr"), B.T.to("csr"), B.T.to("csc"), B.T.coalesce()
    assert calls == []


def test_handles_of_one_core_keep_their_formats() -> None:
    A = sg.csr([0, 2, 3], [1, 1, 0], [1.0, 2.0, 3.0], (2, 2))
    for B in (A, A.to("coo"), A.to("csc")):
        for out in (B.coalesce(), sg.tril(B), sg.fill_diagonal(B, 1), sg.symmetrize(B, "max")):
            assert out.format == B.format


def test_drop_caches_and_their_size() -> None:
    A = as_format("unsorted", "coo")
    P = A.pattern
    before = A.to("csr").to_dense().data.copy()
    A.to("csc")
    index_bytes = 4 * A.nnz
    assert P.cache_nbytes >= 4 * index_bytes  # two permutations and two listings at least
    assert P.cache_nbytes <= 40 * index_bytes + 8 * 16
    assert P.T.cache_nbytes == P.cache_nbytes  # the core's
    P.drop_caches()
    assert P.cache_nbytes == 0
    np.testing.assert_array_equal(A.to("csr").to_dense().data, before)
    np.testing.assert_array_equal(A.values.data, MATRICES["unsorted"][1])


def test_results_outlive_the_caches_they_came_from() -> None:
    A = as_format("duplicates", "coo").requires_grad_()
    C = A.coalesce()
    y = (C * C).sum()
    A.pattern.drop_caches()
    C.pattern.drop_caches()
    y.backward()
    want = 2 * dense_of("duplicates")[tuple(MATRICES["duplicates"][0])]
    np.testing.assert_allclose(A.values.grad.data, want, rtol=1e-14)


def test_plans_of_two_patterns_keep_neither_alive(no_gc: None) -> None:
    A, B = as_format("unsorted", "coo"), as_format("sorted", "csr").to("coo")
    (A + B), (A * B)
    refs = [weakref.ref(A.pattern.core), weakref.ref(B.pattern.core)]
    del A, B
    assert [r() for r in refs] == [None, None]


def test_the_plan_cache_is_bounded() -> None:
    kept = [sg.coo([[i], [0]], [1.0], (300, 1)) for i in range(200)]
    for A, B in itertools.pairwise(kept):
        np.testing.assert_array_equal((A + B).values.data, [1.0, 1.0])
    assert len(plan._PLANS) <= plan._PLANS_LIMIT
    np.testing.assert_array_equal((kept[0] + kept[1]).row, [0, 1])


def test_a_recycled_address_is_not_mistaken_for_an_old_pattern() -> None:
    """Plans are found by id(core): thousands of short-lived cores reuse the same addresses."""
    fixed = sg.coo([[0], [0]], [10.0], (50, 1))
    for i in range(2000):
        A = sg.coo([[i % 50], [0]], [1.0], (50, 1))
        total = (A + fixed).to_dense().data[:, 0]
        want = np.zeros(50)
        want[0] += 10
        want[i % 50] += 1
        np.testing.assert_array_equal(total, want)
        assert A[i % 50, 0].item() == 1.0


@pytest.mark.parametrize("fmt", FORMATS)
def test_no_reference_cycles(fmt: str, no_gc: None) -> None:
    A = as_format("duplicates", fmt).requires_grad_()
    core = weakref.ref(A.pattern.core)
    values = weakref.ref(A.values)
    for other in FORMATS:
        A.to(other)
    C = A.coalesce()
    other_core = weakref.ref(C.pattern.core)
    ((A.T @ np.ones((4, 2))).sum() + sg.softmax(A, 0).sum() + (C * C).sum()).backward()
    (A + A.T.T).sum().backward()
    A.grad, A.T.coalesce(), A[1:], A.pattern.rows(), A.pattern.sorted_rows()
    A.pattern.core.fingerprint()
    del A, C
    assert core() is None and values() is None and other_core() is None


def test_caches_are_safe_to_build_from_many_threads() -> None:
    rng = np.random.default_rng(0)
    coords = rng.integers(0, 200, (2, 20_000))
    values = rng.standard_normal(20_000)
    want = np.zeros((200, 200))
    np.add.at(want, tuple(coords), values)
    x = rng.standard_normal((200, 2))
    for _ in range(3):
        A = sg.coo(coords, values, (200, 200))
        gate = threading.Barrier(8)

        def work(n: int, A: Any = A, gate: Any = gate) -> None:
            gate.wait(30)
            todo = [
                lambda: np.testing.assert_allclose(A.coalesce().to_dense().data, want),
                lambda: np.testing.assert_allclose((A @ x).data, want @ x),
                lambda: np.testing.assert_allclose((A.T @ x).data, want.T @ x),
                lambda: np.testing.assert_allclose(A.to("csc").to_dense().data, want),
                lambda: np.testing.assert_allclose((A + A.T).to_dense().data, want + want.T),
                lambda: A.pattern.drop_caches(),
            ]
            for i in range(12):
                todo[(i + n) % (6 if n == 0 else 5)]()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    A = sg.coo(coords, values, (200, 200))
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(A.coalesce())) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert len({id(C.pattern.core) for C in found}) == 1  # published once


# ---- index arrays are nobody's to change -------------------------------------------------------
@pytest.mark.parametrize("fmt", FORMATS)
def test_index_arrays_are_read_only(fmt: str) -> None:
    A = as_format("unsorted", fmt)
    B = A.to("csc" if fmt == "csr" else "csr")
    for M in (A, B, A.T, A.coalesce(), A + A.T.T, A[1:], A.to("coo")):
        arrays = [M.row, M.col, *M.pattern.rows()[:2], *M.pattern.sorted_rows()[:2]]
        if M.format != "coo":
            arrays += [M.indptr, M.indices]
        for array in arrays:
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
    assert triples(A) == given_triples("unsorted")


def test_changing_what_indices_returns_changes_nothing() -> None:
    A = as_format("unsorted", "coo")
    got = A.indices
    try:
        got[...] = 0
    except ValueError:
        return
    assert triples(A) == given_triples("unsorted")


def test_arrays_are_copied_in_by_default() -> None:
    row, col, values = np.array([0, 1], np.int32), np.array([1, 0], np.int32), np.array([1.0, 2.0])
    A = sg.coo([row, col], values, (2, 2))
    indptr = np.array([0, 1, 2], np.int32)
    B = sg.csr(indptr, col, values, (2, 2))
    row[:], col[:], indptr[:], values[:] = 9, 9, 9, 9.0  # the user's arrays stay writable
    for M in (A, B):
        assert triples(M) == [(0, 1, 1.0), (1, 0, 2.0)]


def test_copy_false_shares_and_leaves_the_users_arrays_writable() -> None:
    row, col = np.array([0, 1], np.int32), np.array([1, 0], np.int32)
    indptr = np.array([0, 1, 2], np.int32)
    both = np.stack([row, col])
    P = Pattern.coo([row, col], (2, 2), copy=False)
    Q = Pattern.compressed("csr", indptr, col, (2, 2), copy=False)
    R = Pattern.coo(both, (2, 2), copy=False)
    assert np.shares_memory(P.row, row) and np.shares_memory(P.col, col)
    assert np.shares_memory(Q.indptr, indptr) and np.shares_memory(Q.indices, col)
    assert np.shares_memory(R.row, both)
    for array in (row, col, indptr, both):
        assert array.flags.writeable
    for array in (P.row, P.col, Q.indptr, Q.indices, R.row):
        assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        P.row[0] = 1


def test_a_read_only_array_of_the_user_is_accepted() -> None:
    row = np.array([0, 1], np.int32)
    row.flags.writeable = False
    for share in (True, False):
        assert Pattern.coo([row, row], (2, 2), copy=share).row.tolist() == [0, 1]


def test_index_arrays_of_any_layout() -> None:
    wide = np.array([[0, 9, 1, 9], [1, 9, 0, 9]])
    for arrays in (wide[:, ::2], np.asfortranarray(wide[:, ::2]), wide[:, ::2].astype(">i8")):
        for share in (True, False):
            P = Pattern.coo(arrays, (2, 2), copy=share)
            assert P.indices.tolist() == [[0, 1], [1, 0]]
            assert P.to("csc")[0].indices.tolist() == [1, 0]
    A = sg.coo(sg.tensor([[0, 1], [1, 0]]), [1.0, 2.0], (2, 2))
    assert A.indices.tolist() == [[0, 1], [1, 0]]
    assert sg.coo([sg.tensor([0, 1]), sg.tensor([1, 0])], [1.0, 2.0], (2, 2)).nnz == 2


# ---- nothing stored, everywhere ----------------------------------------------------------------
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (3, 0), (0, 0), (1, 1)], ids=str)
def test_no_entries_in_every_op(fmt: str, shape: tuple[int, int], backend: str) -> None:
    m, n = shape
    zero = np.zeros(shape)

    def fresh() -> Any:
        return sg.coo([[], []], np.zeros(0), shape).to(fmt).requires_grad_()

    A = fresh()
    sparse = {
        "coalesce": A.coalesce(), "neg": -A, "scale": A * 2.0, "union": A + A, "product": A * A,
        "softmax": sg.softmax(A, 1), "log_softmax": sg.log_softmax(A, 0), "tanh": sg.tanh(A),
        "dense product": A * np.ones(shape), "mask": A.mask(sg.Tensor(np.ones(shape))),
        "prune": A.prune(0.5), "clone": A.clone(),
    }  # fmt: skip
    for name, out in sparse.items():
        assert out.nnz == 0 and out.shape == shape, name
        np.testing.assert_array_equal(out.to_dense().detach().numpy(), zero)
        out.backward(sg.ones_like(out)) if out.requires_grad else None
    dense = {
        "spmm": (A @ np.ones((n, 2)), np.zeros((m, 2))),
        "transposed": (A.T @ np.ones((m, 2)), np.zeros((n, 2))),
        "left": (np.ones((2, m)) @ A, np.zeros((2, n))),
        "vector": (A @ np.ones(n), np.zeros(m)),
        "sum": (A.sum(), np.zeros(())),
        "rows": (A.sum(1), np.zeros(m)),
        "columns": (A.sum(0, keepdim=True), np.zeros((1, n))),
        "plus dense": (A + np.ones(shape), np.ones(shape)),
        "dense": (A.to_dense(), zero),
    }
    for name, (out, want) in dense.items():
        np.testing.assert_array_equal(out.detach().numpy(), want, err_msg=name)
        out.sum().backward()
    B = fresh()
    leaf = B.values
    (B @ np.ones((n, 2))).sum().backward(inputs=[leaf])
    assert leaf.grad.shape == (0,)
    spgemm = A @ A.T
    assert spgemm.nnz == 0 and spgemm.shape == (m, m)
    for part in (A[: m // 2], A[:, 1:], sg.cat([A, A], 0), A.T, A.reshape(n, m)):
        assert part.nnz == 0
    x = sg.ones(m, 2, requires_grad=True, dtype=sg.float64)
    y = sg.ones(n, 2, requires_grad=True, dtype=sg.float64)
    s = sg.sddmm(x, y, A)
    assert s.nnz == 0 and s.shape == shape
    s.sum().backward()
    np.testing.assert_array_equal(x.grad.data, np.zeros((m, 2)))
    np.testing.assert_array_equal(y.grad.data, np.zeros((n, 2)))
    assert repr(A).startswith(f"SparseTensor(shape={shape}, nnz=0")


@pytest.mark.parametrize("e", [1, 2, 40, 5000])
def test_rows_of_several_tables_are_listed_together_as_each_alone(
    e: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(e)
    sizes = (1, 3, e, 70_000, 9)
    ids = np.stack([rng.integers(0, n, e) for n in sizes]).astype(np.int32)
    ids[2] = rng.permutation(e)  # each once
    ids[4] = np.sort(ids[4])
    kind, calls = type(backends.for_array(ids)), []
    survey = kind.survey

    def counted(*args: Any) -> Any:
        calls.append(args)
        return survey(*args)

    monkeypatch.setattr(kind, "survey", counted)
    together = plan_tables.patterns(ids, sizes, (True,) * 5)
    merged = [plan.coalesce(p) for p in together]
    assert len(calls) == 1 or e < 5000  # few are not sorted by kernels
    for row, n, pattern, merge in zip(ids, sizes, together, merged, strict=True):
        alone = Pattern.coo([row], (n,))
        wanted = plan.coalesce(alone)
        assert pattern.is_coalesced == alone.is_coalesced
        assert pattern.core.unique == alone.core.unique
        for a, b in ((merge.perm, wanted.perm), (merge.indptr, wanted.indptr)):
            assert (a is None) == (b is None)
            assert a is None or (a == b).all()
        assert (merge.pattern.row == wanted.pattern.row).all()
    assert plan_tables.patterns(ids, sizes, (False, True, *(False,) * 3))[0] is None


def test_errors_begin_with_the_function() -> None:
    for name, made in (
        ("coo: indices", lambda: sg.coo([[0, 5], [0, 1]], None, (2, 3))),
        ("csr: indptr", lambda: sg.csr([0, 3, 2], [0, 2, 1], None, (2, 3))),
        ("csc: needs two", lambda: sg.csc([0, 1], [0], None, (3,))),
        ("coo: tensor: no tensor holds", lambda: sg.coo([[0]], ["a"], (1,))),
    ):
        with pytest.raises(sg.SparsegradError, match=f"^{name}"):
            made()
