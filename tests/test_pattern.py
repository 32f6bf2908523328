"""Patterns: validation, orders and formats, transposes, widths of indices.

The oracle is SciPy, or coordinates written out by hand.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg
from patterns import (
    FORMATS,
    MATRICES,
    as_format,
    dense_of,
    every_matrix,
    given_triples,
    offsets,
    triples,
)
from sparsegrad import backends
from sparsegrad.structure import arrays as index_arrays
from sparsegrad.structure import plan, plan_tables
from sparsegrad.structure.core import Core
from sparsegrad.structure.pattern import Pattern

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


def test_the_check_can_be_left_out(index_calls: list[str]) -> None:
    Pattern.coo([[5], [0]], (2, 2), check=False)
    Pattern.compressed("csr", [0, 1, 1], [7], (2, 2), check=False)
    assert index_calls == []
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
def test_transpose_is_a_view(name: str, fmt: str, index_calls: list[str]) -> None:
    A = as_format(name, fmt)
    index_calls.clear()
    B = A.T
    assert index_calls == []  # no index work at all
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
