"""Failures that users met elsewhere, about storing and sending tensors: each test is named after
its case."""

from __future__ import annotations

import copy
import multiprocessing
import operator
import pickle

import numpy as np
import pytest

import sparsegrad as sg

FORMATS = ("coo", "csr", "csc")


def one_entry(fmt="coo", **options):
    return sg.coo([[1], [2]], [5.0], (3, 3), **options).to(fmt)


def unsorted(fmt, requires_grad=True):
    """Unsorted, with a duplicate and an explicit zero, an empty row and an empty column."""
    where = np.array([[3, 0, 3, 1, 0], [1, 2, 1, 0, 0]])
    A = sg.coo(where, np.array([1.0, 2.0, 3.0, 0.0, 5.0]), (4, 4)).to(fmt)
    return A.detach().requires_grad_(requires_grad)


def assert_same(A, B):
    """Same kind, same entries in the same order, same flags."""
    assert type(A) is type(B)
    assert (A.format, A.shape, A.dtype) == (B.format, B.shape, B.dtype)
    assert (A.requires_grad, A.is_coalesced, A.is_leaf) == (
        B.requires_grad,
        B.is_coalesced,
        B.is_leaf,
    )
    for ours, theirs in zip(A.pattern.coords, B.pattern.coords, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    if A.format != "coo":
        np.testing.assert_array_equal(A.indptr, B.indptr)
    np.testing.assert_array_equal(A.values.data, B.values.data)


def ways(tmp_path):
    """Functions that store a tensor and bring it back."""

    def npz(A):
        sg.save_npz(tmp_path / "A.npz", A)
        return sg.load_npz(tmp_path / "A.npz", requires_grad=A.requires_grad)

    def safetensors(A):
        sg.save({"A": A}, tmp_path / "A.safetensors")
        return sg.load(tmp_path / "A.safetensors")["A"].requires_grad_(A.requires_grad)

    return {
        "pickle": lambda A: pickle.loads(pickle.dumps(A)),
        "npz": npz,
        "safetensors": safetensors,
        "deepcopy": copy.deepcopy,
        "copy": copy.copy,
    }


WAYS = ("pickle", "npz", "safetensors", "deepcopy", "copy")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fmt", FORMATS)
def test_ac_94_stored_tensor_loads_as_it_was(tmp_path, way, fmt):
    for A in (one_entry(fmt), one_entry(fmt, dtype=sg.float64).requires_grad_(), unsorted(fmt)):
        assert_same(ways(tmp_path)[way](A), A)
    empty = sg.coo([[], []], [], (0, 4)).to(fmt)
    assert_same(ways(tmp_path)[way](empty), empty)


@pytest.mark.parametrize("way", WAYS)
def test_ac_94_more_dimensions_and_transposes(tmp_path, way):
    store = ways(tmp_path)[way]
    cube = sg.coo([[0, 1], [1, 0], [2, 2]], [1.0, 2.0], (2, 2, 3))
    hybrid = sg.coo([[4, 0]], sg.ones(2, 3, 2), (5, 3, 2))
    hybrid_csr = sg.csr([0, 1, 2], [1, 0], sg.ones(2, 3), (2, 2, 3))
    for A in (cube, hybrid, hybrid_csr, unsorted("csr").T, unsorted("coo").T):
        assert_same(store(A), A)


@pytest.mark.parametrize("fmt", FORMATS)
def test_ac_95_pickle_and_deepcopy_of_every_layout(fmt):
    A = unsorted(fmt)
    (A @ sg.ones(4, 2, dtype=sg.float64)).sum().backward()
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert_same(pickle.loads(pickle.dumps(A, protocol)), A)
    B = copy.deepcopy(A)
    assert_same(B, A)
    np.testing.assert_array_equal(B.grad.values.data, A.grad.values.data)
    with sg.no_grad():
        B.values.mul_(2)
        B.values.grad.mul_(2)
    assert A.values.data[0] != B.values.data[0]
    assert A.values.grad.data[0] != B.values.grad.data[0]
    B.values.grad = None
    assert A.grad is not None


def test_ac_95_handles_of_one_core_share_it_after_pickling():
    A = unsorted("csr")
    B, transposed, coo = pickle.loads(pickle.dumps((A, A.T, A.detach().to("coo"))))
    assert B.pattern.core is transposed.pattern.core
    assert B.pattern.core is coo.pattern.core
    assert_same(transposed, A.T)
    assert B.pattern.same_as(A.pattern)
    assert B.pattern.core is A.pattern.core  # compared once, shared since


def test_ac_95_result_of_an_op_is_refused_with_advice():
    y = unsorted("csr") * 2
    with pytest.raises(sg.GraphError, match="detach"):
        pickle.dumps(y)
    with pytest.raises(sg.GraphError, match="detach"):
        copy.deepcopy(y)


def test_ac_95_processes_exchange_every_layout():
    x = sg.ones(4, 2, dtype=sg.float64)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for fmt in FORMATS:
            A = unsorted(fmt, requires_grad=False)
            y = pool.apply(operator.matmul, (A, x))
            np.testing.assert_array_equal(y.data, (A @ x).data)
            assert_same(pool.apply(operator.methodcaller("to", "csc"), (A,)), A.to("csc"))
        assert_same(pool.apply(copy.copy, (unsorted("coo").T,)), unsorted("coo").T)


def test_ac_96_batches_of_sparse_samples_from_worker_processes():
    """Two spawned workers make sparse samples, of several formats and counts of entries (none
    too); the parent stacks them to one batch."""
    dense = [np.eye(3, 4) * i for i in range(6)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        samples = pool.map(sg.from_dense, dense)
        csr = pool.map(operator.methodcaller("to", "csr"), samples)
    assert samples[0].nnz == 0
    for fmt, parts in (("coo", samples), ("csr", csr)):
        assert [part.format for part in parts] == [fmt] * 6
        batch = sg.stack([part.to("coo") for part in parts])
        assert batch.shape == (6, 3, 4)
        np.testing.assert_array_equal(batch.to_dense().numpy(), np.stack(dense))
        rows = sg.cat(parts)
        np.testing.assert_array_equal(rows.to_dense().numpy(), np.concatenate(dense))


class SparseSamples:
    """Every second sample has no entry."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return sg.from_dense(np.eye(3, 4) * (i % 2) * i), i


def test_ac_96_a_loader_with_two_workers_and_the_default_collate():
    loader = sg.data.DataLoader(SparseSamples(), batch_size=3, num_workers=2)
    for number, (A, ids) in enumerate(loader):
        expected = [np.eye(3, 4) * (i % 2) * i for i in ids.tolist()]
        assert ids.tolist() == [3 * number, 3 * number + 1, 3 * number + 2]
        assert isinstance(A, sg.SparseTensor) and A.shape == (3, 3, 4)
        np.testing.assert_array_equal(A.to_dense().numpy(), expected)
    loader.close()


def test_ac_68_empty_lists_follow_the_values():
    for values in ([], np.zeros(0, np.float32), sg.zeros(0)):
        A = sg.coo([[], []], values, (2, 3))
        assert (A.nnz, A.dtype, A.shape) == (0, sg.float32, (2, 3))
        assert A.device == A.values.device
        assert sg.csr([0, 0, 0], [], values, (2, 3)).nnz == 0


def test_ac_68_indices_of_any_kind_mix_on_one_device():
    kinds = ([[0, 1], [1, 0]], np.array([[0, 1], [1, 0]]), sg.tensor([[0, 1], [1, 0]]))
    for indices in kinds:
        for values in ([1.0, 2.0], np.ones(2, np.float32), sg.ones(2)):
            A = sg.coo(indices, values, (2, 2))
            assert str(A.device) == "cpu"


def test_ac_68_a_device_that_is_not_there_is_named():
    with pytest.raises(sg.DeviceError, match="cuda"):
        one_entry().to("cuda:1")


# The policy: what is small or nearly full is faster dense.


@pytest.mark.parametrize("n", [50, 200, 1000, 5000])
def test_ac_102_policy_picks_dense_where_it_is_faster(n):
    layouts = [
        sg.policy.best_layout((n, n), int(density * n * n))
        for density in (0.0001, 0.0025, 0.03, 0.12, 0.5, 0.9)
    ]
    dense = [layout == "dense" for layout in layouts]
    assert dense == sorted(dense)  # once dense pays, it does for every higher density
    assert dense[-1]
    assert dense[1] == (n <= 200)
    assert all(layout in ("dense", *FORMATS) for layout in layouts)


def test_ac_102_crossover_is_reported_and_rises_with_size():
    found = [sg.policy.crossover_density((n, n)) for n in (50, 500, 5000)]
    assert found == sorted(found)
    assert found[0] == 0.0
    assert 0.05 < found[-1] < 0.6
    for n, density in ((500, found[1]), (5000, found[2])):
        assert sg.policy.best_layout((n, n), int(density * n * n * 0.9)) != "dense"
        assert sg.policy.best_layout((n, n), int(density * n * n * 1.1) + 10) == "dense"
