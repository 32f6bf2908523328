"""Acceptance cases of coalesce, bounds, emptiness, dtypes and the op table, named after their ids.

Each is a failure that users met in another engine. The expected numbers are the published ones, or
dense algebra in NumPy and SciPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg
from acceptance import equal, every_format, mask_of, sparse_leaf
from byhand import dense, leaf
from op_db import FORMATS, OP_DB, Draw, Sparse
from sparsegrad.backends import base
from sparsegrad.backends.cpu_jit_launch import get_num_threads, set_num_threads


# ---- 4.4 coalesce ------------------------------------------------------------------------------
def test_ac_58_what_is_coalesced_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    for name in ("sort_coo", "group", "order_facts", "check_indices"):
        original = getattr(base.Backend, name)
        monkeypatch.setattr(
            base.Backend,
            name,
            lambda *a, _n=name, _f=original: seen.append(_n) or _f(*a),
        )
    with sg.config(backend="reference"):
        rng = np.random.default_rng(0)
        A = sg.coo(rng.integers(0, 9, (3, 100)), rng.standard_normal(100), (9, 9, 9))
        assert seen == ["check_indices"] * 3  # the user's indices: once for each dimension
        C = A.coalesce()
        assert seen.count("sort_coo") == 1
        seen.clear()
        assert C.coalesce() is C
        A.coalesce(), (C * 2.0).coalesce(), (C + C).coalesce(), (A * 3.0).coalesce()
    assert "sort_coo" not in seen and "check_indices" not in seen


def test_ac_59_entries_sorted_by_another_dimension() -> None:
    rng = np.random.default_rng(0)
    A = sg.coo(rng.integers(0, 5, (2, 12)), rng.standard_normal(12), (5, 5))
    by_column = A.to("csc")
    assert (np.diff(by_column.col) >= 0).all()
    assert by_column.to("coo").nnz == 12
    assert A.to("csc").pattern.col is by_column.pattern.col  # kept
    cube = sg.coo(rng.integers(0, 3, (3, 20)), rng.standard_normal(20), (3, 3, 3))
    for dims in ((1, 0, 2), (2, 1, 0), (2, 0, 1)):
        C = cube.permute(*dims).coalesce()
        order = list(map(tuple, C.indices.T.tolist()))
        assert order == sorted(order)
        np.testing.assert_allclose(dense(C), dense(cube).transpose(dims))


def test_ac_61_ten_runs_are_bitwise_equal(backend: str) -> None:
    """And with any number of threads."""
    rng = np.random.default_rng(0)
    n, nnz = 500, 60_000
    coords = rng.integers(0, n, (2, nnz))
    coords[0, :20_000] = 7  # one long row
    values, x0 = rng.standard_normal(nnz).astype("f4"), rng.standard_normal((n, 5)).astype("f4")
    ids = rng.integers(0, n, 5000)

    def run() -> list[np.ndarray]:
        A = sg.coo(coords, values, (n, n), requires_grad=True)
        x = sg.tensor(x0, requires_grad=True)
        y = A @ x
        y.backward(sg.Tensor(x0))
        w = sg.tensor(x0, requires_grad=True)
        sg.embedding(w, ids).backward(sg.Tensor(x0[ids]))
        z = sg.tensor(x0, requires_grad=True)
        z[ids].backward(sg.Tensor(x0[ids]))
        C = A.detach().coalesce()
        return [
            y.data, A.values.grad.data, x.grad.data, A.sum(0).data, A.sum(1).data, A.sum().data,
            C.values.data, C.indices, sg.softmax(C, 1).values.data, sg.softmax(C, 0).values.data,
            w.grad.coalesce().values.data, z.grad.data, dense(A), (A.detach() + C).values.data,
            A.grad.values.data, sg.norm(C).data,
        ]  # fmt: skip

    threads, first = get_num_threads(), run()
    try:
        for i in range(10):
            set_num_threads(1 + i % 4)
            for a, b in zip(first, run(), strict=True):
                assert a.dtype == b.dtype and a.shape == b.shape
                assert a.tobytes() == b.tobytes()
    finally:
        set_num_threads(threads)


def test_ac_63_one_canonical_order(backend: str) -> None:
    """Row-major, whatever order SciPy's sum_duplicates has."""
    row, col = [2, 1, 2, 0, 2, 1, 2], [0, 0, 1, 0, 2, 1, 0]
    A = sg.coo([row, col], [1.0, 2, 3, 4, 5, 6, 7], (3, 3)).coalesce()
    assert A.row.tolist() == [0, 1, 1, 2, 2, 2] and A.col.tolist() == [0, 0, 1, 0, 1, 2]
    assert A.values.tolist() == [4, 2, 6, 8, 3, 5]
    theirs = sp.coo_matrix(([1.0, 2, 3, 4, 5, 6, 7], (row, col)), shape=(3, 3))
    theirs.sum_duplicates()
    want = sorted(zip(theirs.row.tolist(), theirs.col.tolist(), theirs.data.tolist(), strict=True))
    assert list(zip(A.row.tolist(), A.col.tolist(), A.values.tolist(), strict=True)) == want


# ---- 4.5 bounds --------------------------------------------------------------------------------
def test_ac_67_indices_of_users_are_always_checked(backend: str) -> None:
    cases = [
        (lambda **k: sg.coo([[10], [50], [1]], [1.0], (1, 51, 50), **k), r"indices\[0\]: index 10"),
        (lambda **k: sg.coo([[0], [-1]], [1.0], (2, 3), **k), r"indices\[1\]: index -1"),
        (lambda **k: sg.coo([[2], [0]], [1.0], (2, 3), **k), r"indices\[0\]: index 2"),
        (lambda **k: sg.csr([0, 1, 1], [3], [1.0], (2, 3), **k), "indices: index 3"),
        (lambda **k: sg.csc([0, 1, 1, 1], [2], [1.0], (2, 3), **k), "indices: index 2"),
        (lambda **k: sg.csr([0, 2, 1], [0], [1.0], (2, 3), **k), "indptr: must not fall, got 2"),
    ]
    for make, text in cases:
        with pytest.raises(sg.PatternError, match=text):
            make()
    for make, _ in cases[:-1]:
        assert make(check=False).nnz == 1
    for call, error in (
        (lambda: sg.take(sg.ones(3, 2), [3]), sg.PatternError),
        (lambda: sg.take(sg.ones(3, 2), [-1]), sg.PatternError),
        (lambda: sg.embedding(sg.ones(3, 2), [[0, 5]]), sg.PatternError),
        (lambda: sg.index_select(sg.sparse_eye(3), 0, [3]), sg.PatternError),
        (lambda: sg.sparse_eye(3)[3], IndexError),
        (lambda: sg.sparse_eye(3)[[0, 3]], IndexError),
        (lambda: sg.segment_sum(sg.ones(3), [0, 5]), (sg.PatternError, sg.ShapeError)),
        (lambda: sg.nll_loss(sg.ones(1, 3), [7]), IndexError),
        (lambda: sg.ones(3)[sg.tensor([4])], IndexError),
    ):
        with pytest.raises(error, match=r"\d"):
            call()


# ---- 4.6 nothing stored ------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(3,), (0,), (3, 4), (0, 0), (2, 0, 3)], ids=str)
def test_ac_69_softmax_of_nothing(shape: tuple[int, ...], backend: str) -> None:
    for dim in range(len(shape)):
        for op in (sg.softmax, sg.log_softmax):
            S = sg.coo([[]] * len(shape), np.zeros(0), shape, requires_grad=True)
            out = op(S, dim)
            assert out.nnz == 0 and out.shape == shape
            out.backward(sg.ones_like(out))
            assert S.grad.nnz == 0 and S.values.grad.shape == (0,)


def test_ac_70_nothing_stored_is_coalesced() -> None:
    for x, ndim in ((sg.tensor([]), 1), (sg.rand(2, 0, 3), 3), (sg.zeros(4, 5), 2)):
        A = x.to_sparse()
        assert A.nnz == 0 and A.is_coalesced and A.shape == x.shape
        assert A.indices.shape == (ndim, 0) and A.coalesce().indices.shape == (ndim, 0)
        np.testing.assert_array_equal(dense(A), x.data)
    A = sg.coo([[0, 1], [1, 0]], [1.0, 2.0], (2, 2))
    zeros = sg.zeros_like(A)  # explicit zeros on the pattern of A
    assert zeros.nnz == 2 and zeros.pattern is A.pattern
    np.testing.assert_array_equal(dense(zeros), sg.zeros(2, 2).data)
    assert sg.zeros_like(sg.coo([[], []], [], (2, 2))).nnz == 0


def test_ac_72_gradients_without_entries() -> None:
    x = sg.coo(np.zeros((2, 0), int), np.zeros((0, 2)), (0, 0, 2), requires_grad=True)
    y = sg.coo(np.zeros((2, 0), int), np.zeros((0, 2)), (0, 0, 2), requires_grad=True)
    assert sg.gradcheck(lambda x, y: x + y, (x, y))
    assert sg.gradcheck(lambda x, y: (x + y.coalesce()) * x, (x, y))
    assert sg.gradcheck(sg.relu, x)
    out = sg.relu(x)
    out.backward(sg.ones_like(out))
    assert x.grad.shape == (0, 0, 2) and x.grad.nnz == 0


# ---- 4.7 dtypes --------------------------------------------------------------------------------
@every_format
def test_ac_76_half_precision_sums_in_single(fmt: str, backend: str) -> None:
    """A half stops counting at 2048."""
    n = 4096 + 4096
    ids = np.arange(n)
    A = sg.coo([np.zeros(n, int), ids], np.ones(n, "f2"), (3, n)).to(fmt)
    ones = sg.Tensor(np.ones((n, 2), "f2"))
    for name, out, want in (
        ("spmm", (A @ ones)[0], [n, n]),
        ("mean", sg.spmm(A, ones, "mean")[0], [1, 1]),
        ("vector", (A @ sg.Tensor(np.ones(n, "f2")))[0], n),
        ("sum", A.sum(), n),
        ("sum rows", A.sum(1)[0], n),
        ("sum columns", A.T.sum(0)[0], n),
        ("mean stored", sg.mean(A, 1, include_zeros=False)[0], 1),
        ("segment", sg.segment_sum(sg.Tensor(np.ones(n, "f2")), [0, n])[0], n),
        ("spgemm", (A @ A.T).to_dense()[0, 0], n),
        ("sddmm", sg.sddmm(sg.Tensor(np.ones((1, n), "f2")), sg.Tensor(np.ones((1, n), "f2")),
                           sg.coo([[0], [0]], None, (1, 1))).values[0], n),
        ("dense sum", sg.Tensor(np.ones(n, "f2")).sum(), n),
        ("softmax", sg.softmax(A, 1).values.sum(), 1),
    ):  # fmt: skip
        assert out.dtype == np.float16, name
        np.testing.assert_allclose(out.data.astype(float), want, rtol=1e-3, err_msg=name)
    twice = sg.coo([np.zeros(n, int), np.zeros(n, int)], np.ones(n, "f2"), (2, 2)).to(fmt)
    for name, out in (("coalesce", twice.coalesce()), ("dense", twice)):
        assert dense(out)[0, 0] == n, name
    w = sg.Tensor(np.zeros((3, 1), "f2"), requires_grad=True)
    sg.embedding(w, np.zeros(n, int)).sum().backward()
    assert dense(w.grad)[0, 0] == n
    w = sg.Tensor(np.zeros((3, 1), "f2"), requires_grad=True)
    w[np.zeros(n, int)].sum().backward()
    assert w.grad.data[0, 0] == n


def test_ac_77_ties_are_counted_in_enough_bits() -> None:
    n = 70_000
    x = sg.ones(n, dtype=sg.float16, requires_grad=True)
    x.max().backward()
    np.testing.assert_allclose(x.grad.data.astype(float), 1 / n, rtol=0.005)
    A = sg.coo([np.arange(n)], np.ones(n, "f2"), (n,), requires_grad=True)
    sg.amax(A).backward()
    np.testing.assert_allclose(A.values.grad.data.astype(float), 1 / n, rtol=0.005)
    x = sg.ones(1, n, dtype=sg.float16, requires_grad=True)
    x.max(1).values.sum().backward()  # the first one takes all
    assert x.grad.data[0, 0] == 1 and np.count_nonzero(x.grad.data) == 1
    x = sg.ones(n, dtype=sg.float16, requires_grad=True)
    x.mean().backward()
    np.testing.assert_allclose(x.grad.data.astype(float), 1 / n, rtol=0.005)
    A = sg.coo([np.arange(n)], np.ones(n, "f2"), (n,), requires_grad=True)
    for zeros in (True, False):  # their sum, 70 000, is no half
        A.grad = None
        mean = sg.mean(A, include_zeros=zeros)
        assert mean.item() == 1 and mean.dtype == np.float16
        mean.backward()
        np.testing.assert_allclose(A.values.grad.data.astype(float), 1 / n, rtol=0.005)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "bool"])
@every_format
def test_ac_80_integers_stay_integers(dtype: str, fmt: str, backend: str) -> None:
    values = np.array([1, 0, 1, 1, 1]).astype(dtype)
    A = sg.coo([[0, 1, 0, 2, 2], [1, 0, 2, 1, 1]], values, (3, 3)).to(fmt)
    for out in (A, A.coalesce(), A.T, A.to("csr"), A * A, A + A.T, A[1:], A @ A, A.to_dense()):
        assert out.dtype == np.dtype(dtype)
    x = np.eye(3, dtype=dtype)
    assert (A @ x).dtype == np.dtype(dtype)
    want = np.zeros((3, 3), np.int64)
    np.add.at(want, ([0, 1, 0, 2, 2], [1, 0, 2, 1, 1]), values.astype(int))
    np.testing.assert_array_equal(dense(A @ x), want.astype(dtype))
    big = 2**53 + 1  # not a float64
    if dtype == "int64":
        B = sg.coo([[0, 0], [0, 0]], np.array([big, 1]), (1, 1)).to(fmt)
        assert dense(B)[0, 0] == big + 1 and dense(B.coalesce())[0, 0] == big + 1
        assert (B @ np.ones((1, 1), np.int64)).item() == big + 1


@every_format
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_ac_81_complex_values(fmt: str, dtype: str, backend: str) -> None:
    """Forward as in SciPy; no gradients, and that is said."""
    rng = np.random.default_rng(0)
    coords = rng.integers(0, 3, (2, 6))
    values = (rng.standard_normal(6) + 1j * rng.standard_normal(6)).astype(dtype)
    A = sg.coo(coords, values, (3, 3)).to(fmt)
    D = sp.coo_array((values, tuple(coords)), shape=(3, 3)).toarray()
    x = (rng.standard_normal((3, 2)) + 1j).astype(dtype)
    tol = 1e-5 if dtype == "complex64" else 1e-12
    for found, want in (
        (A, D), (A.coalesce(), D), (A.T, D.T), (A @ x, D @ x), (A.T @ x, D.T @ x),
        (A * (1 + 2j), D * (1 + 2j)), (A + A.T, D + D.T), (A * A, D * D), (A @ A, D @ D),
        (A.sum(), D.sum()), (A.sum(0), D.sum(0)), (-A, -D),
        (sg.sddmm(x, x, A.coalesce()), (x @ x.T) * (mask_of(A))),
    ):  # fmt: skip
        assert found.dtype == np.dtype(dtype)
        equal(found, want, tol)
    with pytest.raises(sg.DtypeError, match=r"requires_grad: only floating-point .* got complex"):
        A.requires_grad_()
    with pytest.raises(sg.DtypeError, match="requires_grad: only floating-point"):
        sg.csc([0, 1, 1, 1], [0], np.array([1j]), (3, 3), requires_grad=True)


# ---- 4.8, 4.9 ----------------------------------------------------------------------------------
def test_ac_90_norms_are_taken_after_duplicates_are_summed() -> None:
    w = leaf(np.zeros((5,)))
    sg.take(w, [2, 2]).backward(sg.tensor([3.0, 4.0], dtype=sg.float64))
    assert w.grad.nnz == 2
    assert sg.norm(w.grad).item() == 7
    assert sg.norm(w.grad, 1).item() == 7
    assert sg.norm(w.grad, float("inf")).item() == 7
    assert sg.amax(w.grad).item() == 7
    clipped = sg.tanh(w.grad)  # any function of the values
    assert clipped.nnz == 1 and clipped.values.item() == np.tanh(7.0)
    assert sg.nn.utils.clip_grad_norm_([w], 3.5).item() == 7
    np.testing.assert_allclose(dense(w.grad), [0, 0, 3.5, 0, 0], rtol=1e-6)
    sg.nn.utils.clip_grad_value_([w], 2.0)
    np.testing.assert_allclose(dense(w.grad), [0, 0, 2, 0, 0], rtol=1e-6)


@every_format
def test_ac_98_cross_entropy_with_sparse_soft_labels(fmt: str) -> None:
    rng = np.random.default_rng(0)
    x0, g = rng.standard_normal((2, 5)), 1.7
    labels = sparse_leaf([[0, 0, 1], [1, 4, 2]], [0.3, 0.7, 0.6], (2, 5), fmt)
    logits = leaf(x0)
    loss = -(labels * sg.log_softmax(logits, 1)).sum()
    logp = x0 - np.log(np.exp(x0).sum(1, keepdims=True))
    V = dense(labels)
    np.testing.assert_allclose(loss.item(), -(V * logp).sum(), rtol=1e-12)
    loss.backward(sg.tensor(g, dtype=sg.float64))
    equal(logits.grad, g * (np.exp(logp) * V.sum(1, keepdims=True) - V))
    equal(labels.grad, -g * logp * mask_of(labels))


def kinds_of(a: Sparse) -> set[str]:
    cells = list(map(tuple, a.coords.T.tolist()))
    out = set()
    if not cells:
        out.add("nothing stored")
    if len(set(cells)) < len(cells):
        out.add("duplicates")
    if cells != sorted(cells):
        out.add("unsorted")
    if cells and cells == sorted(set(cells)):
        out.add("sorted")
    if a.values.size and (a.values == 0).any():
        out.add("explicit zeros")
    if cells and len(a.shape) == 2:
        for d, name in ((0, "empty row"), (1, "empty column")):
            if len({c[d] for c in cells}) < a.shape[d]:
                out.add(name)
    return out


EVERY_KIND = {
    "add", "coalesce", "getitem", "index_select", "mul", "prune", "sddmm", "softmax", "spgemm",
    "spgemm_masked", "spmm", "sub", "sum", "to_dense", "to_format", "transpose",
}  # fmt: skip


def test_ac_101_the_op_table_has_every_kind_of_matrix() -> None:
    every = {"sorted", "unsorted", "duplicates", "empty row", "empty column", "nothing stored",
             "explicit zeros"}  # fmt: skip
    found: dict[str, set[str]] = {}
    for case in OP_DB:
        if case.formats:
            kinds = found.setdefault(case.name.partition("[")[0], set())
            for args, static in case.samples(Draw()):
                for a in (*args, *static.values()):
                    if isinstance(a, Sparse):
                        kinds |= kinds_of(a)
    assert {name: every - found[name] for name in EVERY_KIND if every - found[name]} == {}
    for name, kinds in found.items():
        assert "nothing stored" in kinds, name


def one_matrix_rows() -> list[Any]:
    """Rows of one sparse matrix and nothing else: unary ops and reductions."""
    rows = []
    for case in OP_DB:
        args, static = next(iter(case.samples(Draw())), ((), {1: 1}))
        plain = case.formats == FORMATS and not case.raw and "hybrid" not in case.name
        if plain and len(args) == 1 and not static:
            rows.append(pytest.param(case, id=case.name))
    return rows


@every_format
@pytest.mark.parametrize("case", one_matrix_rows())
def test_ac_101_grid_of_one_matrix(case: Any, fmt: str) -> None:
    """Also where the generated tests must stay away from kinks: explicit zeros, and duplicates
    whose parts are positive and negative."""
    for square in (True, False):
        for a in Draw(1).every_kind(*((5, 5) if square else (5, 3))):
            for values in (a.values * 0.2, np.where(np.arange(a.values.size) % 3, a.values, 0),
                           np.abs(a.values) * 0.2, a.values * 1e-3):  # fmt: skip
                b = Sparse(a.coords, values, a.shape).listed(fmt)
                with np.errstate(all="ignore"):
                    try:
                        want = np.asarray(case.ref(b.dense()))
                    except ValueError:  # square matrices only, or no maximum of nothing
                        continue
                    try:
                        out = case.op(b.build(fmt, sg.Tensor(b.values)))
                    except sg.ShapeError:
                        if 0 in a.shape:  # what this row asks for needs a row or a column
                            continue
                        raise
                assert out.shape == want.shape
                np.testing.assert_allclose(dense(out), want, rtol=1e-9, atol=1e-12)


def test_ac_104_numbers_of_the_engine_this_grew_from() -> None:
    x = leaf(np.ones((2, 2)))
    x.sum(1).backward(sg.tensor([10.0, 20.0], dtype=sg.float64))
    equal(x.grad, [[10, 10], [20, 20]])
    x = leaf(np.arange(4.0))
    x.reshape(2, 2).backward(sg.Tensor(np.array([[1.0, 2.0], [3.0, 4.0]])))
    assert x.grad.shape == (4,)
    equal(x.grad, [1, 2, 3, 4])
    x = leaf(3.0)
    h = 2 * x
    h.backward(retain_graph=True)
    (3 * h).backward()
    equal(x.grad, 8)
    x = leaf(1.0)
    h = x
    for _ in range(50_000):
        h = h + 1.0
    h.backward()
    equal(x.grad, 1)


@every_format
def test_ac_104_long_chains_of_sparse_ops(fmt: str) -> None:
    A = sparse_leaf([[0, 1], [1, 0]], [2, 3], (2, 2), fmt)
    B = A
    for i in range(5000):
        B = (B * -1.0).T if i % 2 else B + A
    B.sum().backward()
    # T swaps the entries and the sign flips each second step: s -> -(s + a), 2500 times.
    coefficient = 1.0
    for _ in range(2500):
        coefficient = -(coefficient + 1)
    equal(A.grad.values, [coefficient] * 2)


def test_op_table_covers_the_formats() -> None:
    """AC-101: whatever takes a sparse matrix takes it in every format."""
    for case in OP_DB:
        for args, static in case.samples(Draw()):
            matrices = [a for a in (*args, *static.values()) if isinstance(a, Sparse)]
            if matrices and all(len(a.shape) == 2 for a in matrices):
                assert case.formats == FORMATS, case.name
            break
