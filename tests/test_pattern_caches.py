"""Patterns that are the same, what they cache, and index arrays that are nobody's to change."""

from __future__ import annotations

import copy
import itertools
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from patterns import FORMATS, MATRICES, as_format, dense_of, given_triples, triples
from sparsegrad.structure import plan
from sparsegrad.structure.core import Core
from sparsegrad.structure.pattern import Pattern


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
def test_index_work_is_done_once(index_calls: list[str]) -> None:
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
    first = list(index_calls)
    assert first.count("sort_coo") <= 4 and first.count("group") <= 2
    index_calls.clear()
    for _ in range(5):
        step()
    assert [c for c in index_calls if c in ("sort_coo", "group", "order_facts")] == []


def test_handles_of_one_core_share_work(index_calls: list[str]) -> None:
    A = as_format("unsorted", "coo")
    A.to("csr"), A.to("csc"), A.coalesce()
    index_calls.clear()
    B = (A * 3.0).T.with_values(np.arange(A.nnz) * 1.0)
    B.to("csc"), B.to("csr"), B.T.to("csr"), B.T.to("csc"), B.T.coalesce()
    assert index_calls == []


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
