"""Tensors on the devices that --device names."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from on_device import COL, ROW, VALUES, matrix, synchronisations

pytestmark = [
    pytest.mark.device,
    pytest.mark.filterwarnings("ignore::sparsegrad.errors.SparseEfficiencyWarning"),
]


# ---- where tensors are -------------------------------------------------------------------------
def test_tensors_go_there_and_come_back(device: str) -> None:
    x = sg.tensor([[1.0, 2.0]], requires_grad=True)
    there = x.to(device)
    assert there.device.type == "cuda"
    assert there.device == sg.Device.parse(str(there.device))
    assert there.to(device) is there
    assert x.cpu() is x
    assert "device='cuda:" in repr(there)
    (there * 3).sum().backward()  # the gradient comes back to where the leaf is
    assert x.grad.device.type == "cpu"
    assert x.grad.tolist() == [[3.0, 3.0]]
    np.testing.assert_array_equal(there.detach().numpy(), x.detach().numpy())
    np.testing.assert_array_equal(np.asarray(there.detach().cpu()), [[1, 2]])
    assert there.sum().item() == 3
    assert 2.0 in there
    assert [float(v) for v in there[0]] == [1.0, 2.0]


def test_device_and_dtype_in_one_call_as_in_pytorch(device: str) -> None:
    x, A = sg.ones(3, requires_grad=True), matrix()
    for out in (
        x.to(device, sg.float64),
        x.to(device=device, dtype=sg.float64, non_blocking=True),
        x.to(sg.zeros(1, dtype="float64", device=device)),
        A.to(device, "csr", sg.float64),
        A.to(dtype=sg.float64, device=device),
    ):
        assert out.device.type == "cuda" and out.dtype == np.float64
    x.to(device, sg.float64).sum().backward()
    assert x.grad.device.type == "cpu" and x.grad.dtype == np.float32
    model = sg.nn.Linear(2, 2)
    weight = model.weight
    assert model.to(device, dtype=sg.float64) is model and model.weight is weight
    assert weight.device.type == "cuda" and weight.dtype == np.float64
    assert model.cpu().weight.device.type == "cpu"
    assert model.cuda().weight.device.type == "cuda"
    with pytest.raises(sg.DtypeError, match="floating-point dtypes, got int32"):
        model.to("cpu", "int32")
    assert weight.device.type == "cuda"  # nothing was changed


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
def test_sparse_tensors_go_there_and_come_back(device: str, fmt: str) -> None:
    A = matrix().to(fmt).requires_grad_()
    B = A.to(device)
    assert B.device.type == B.pattern.device.type == "cuda"
    assert B.pattern.T.device == B.device
    assert A.to(device).pattern.core is B.pattern.core  # copied once
    assert B.cpu().pattern.core is A.pattern.core  # and the copy knows the way back
    assert B.pattern.same_as(A.pattern)
    assert "device='cuda:" in repr(B)
    (B * 2).sum().backward()
    assert A.grad.device.type == "cpu"
    assert A.grad.values.tolist() == [2.0] * 4
    np.testing.assert_array_equal(B.detach().to_dense().numpy(), A.detach().to_dense().numpy())
    assert (B.detach().to_scipy() != A.detach().to_scipy()).nnz == 0


def test_a_copy_of_a_pattern_keeps_nothing_alive(device: str) -> None:
    A = matrix()
    there = A.to(device)
    core = A.pattern.core
    home = there.pattern.core._cache["home"]
    assert home() is core
    del A, core
    assert home() is None


def test_creation(device: str) -> None:
    made = [
        sg.tensor([1, 2], device=device),
        sg.zeros(2, 3, device=device),
        sg.ones(2, device=device),
        sg.full((2,), 7.0, device=device),
        sg.empty(2, device=device),
        sg.rand(2, device=device),
        sg.randn(2, device=device),
        sg.arange(3, device=device),
        sg.eye(3, device=device),
        sg.sparse_eye(3, device=device),
        sg.random_sparse(5, 5, 0.2, device=device),
        sg.csr([0, 1, 2], [1, 0], [1.0, 2.0], (2, 2), device=device),
        sg.csc([0, 1, 2], [1, 0], None, (2, 2), device=device),
        matrix(device=device, requires_grad=True),
    ]
    made += [sg.zeros_like(made[1]), sg.ones_like(made[-1])]
    for x in made:
        assert x.device.type == "cuda"
        if isinstance(x, sg.SparseTensor):
            assert x.pattern.device == x.device
    assert made[3].tolist() == [7.0, 7.0]
    assert made[13].is_leaf
    sg.manual_seed(1)
    drawn = sg.rand(4)
    sg.manual_seed(1)
    assert sg.rand(4, device=device).tolist() == drawn.tolist()  # the same bits


def test_what_lies_in_host_memory_follows(device: str) -> None:
    values = sg.tensor(VALUES, device=device)
    assert sg.coo([ROW, COL], values, (4, 3)).pattern.device == values.device
    x = sg.ones(4, 2, device=device)
    assert x[np.array([0, 3])].device == x[[True, False, True, False]].device == x.device
    assert sg.take(x, [1, 1]).device == x.device
    assert sg.where(x > 0, 1.0, 0.0).device == x.device
    assert sg.segment_sum(x, [0, 1, 4]).tolist() == [[1, 1], [3, 3]]


def test_different_devices_are_refused_by_name(device: str) -> None:
    x, y = sg.ones(3, 2, device=device), sg.ones(3, 2)
    with pytest.raises(sg.DeviceError, match=r"add: .*different devices, cpu and cuda:\d"):
        x + y
    with pytest.raises(sg.DeviceError, match=r"spmm: .*different devices, cpu and cuda:\d"):
        matrix() @ x
    with pytest.raises(sg.DeviceError, match=r"spmm: .*different devices, cpu and cuda:\d"):
        matrix(device=device) @ y
    with pytest.raises(sg.DeviceError, match=r"sddmm: .*different devices, cpu and cuda:\d"):
        sg.sddmm(sg.ones(4, 2, device=device), x, matrix().pattern)
    with pytest.raises(sg.DeviceError, match=r"cuda:99: there (is|are) \d"):
        x.to("cuda:99")


def test_copies_stay_and_pickles_come_to_the_host(device: str) -> None:
    x, A = sg.ones(2, device=device, requires_grad=True), matrix(device=device)
    assert copy.deepcopy(x).device == x.device
    assert copy.deepcopy(A).device == A.device
    for back in (pickle.loads(pickle.dumps(x)), pickle.loads(pickle.dumps(A))):
        assert back.device.type == "cpu"
    assert pickle.loads(pickle.dumps(x)).requires_grad
    assert pickle.loads(pickle.dumps(A)).pattern.device.type == "cpu"


def test_in_place(device: str) -> None:
    x = sg.zeros(3, device=device)
    x[1] = 5.0
    x.add_(sg.ones(3, device=device)).mul_(2)
    assert x.tolist() == [2.0, 12.0, 2.0]
    assert x.fill_(4).zero_().tolist() == [0, 0, 0]


def test_what_a_pattern_caches_is_waited_for_on_other_streams(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy = sg.backends.for_device(device).xp
    waited: list[Any] = []
    wait = type(cupy.cuda.Stream.null).wait_event
    monkeypatch.setattr(
        cupy.cuda.Stream, "wait_event", lambda s, e: waited.append(e) or wait(s, e), raising=False
    )
    A = matrix(device=device)
    built = A.to("csr")
    assert A.to("csr").pattern.core is built.pattern.core
    assert not waited  # one stream is in order by itself
    with cupy.cuda.Stream(non_blocking=True):
        again = A.to("csr").values.tolist()
    assert waited
    assert again == built.values.tolist()
    rows = sg.tensor([2, 0], device=device)
    picked = A[rows].values.tolist()  # a plan of the pattern and an index
    del waited[:]
    with cupy.cuda.Stream(non_blocking=True):
        assert A[rows].values.tolist() == picked
    assert len(waited) >= 2
    A.pattern.drop_caches()
    assert not A.pattern.core._marks


def test_slow_paths_say_so_once(device: str) -> None:
    from sparsegrad.backends import cuda

    cuda._warn_once.cache_clear()
    A, x = matrix(device=device).to("int32"), sg.ones(3, 2, dtype="int32", device=device)
    with pytest.warns(sg.SparseEfficiencyWarning, match="spmm on CUDA: values of int32"):
        A @ x
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        A @ x


def test_out_of_memory_names_the_op(device: str) -> None:
    x = sg.ones(1 << 22, device=device)
    with pytest.raises(MemoryError, match=r"add: .*Tensor\(4194304, 1\) float32"):
        x.reshape(-1, 1) + x.reshape(1, -1)


# ---- indices are checked when something next waits ---------------------------------------------
def test_an_index_out_of_bounds_is_raised_at_the_next_wait(device: str) -> None:
    table = sg.ones(5, 2, device=device)
    out = sg.embedding(table, sg.tensor([0, 5], device=device))
    with pytest.raises(
        sg.PatternError, match=r"embedding: index: index 5 at position 1 is outside"
    ):
        out.sum().item()
    sg.embedding(table, sg.tensor([-1], device=device))
    with pytest.raises(sg.PatternError, match="index -1"):
        sg.cuda.synchronize()
    sg.cross_entropy(sg.ones(1, 3, device=device), sg.tensor([3], device=device))
    with pytest.raises(sg.PatternError, match="cross_entropy: target: index 3"):
        sg.cuda.synchronize()
    sg.cuda.synchronize()  # said once
    for _ in range(5):
        sg.embedding(table, sg.tensor([1, 4], device=device))
    before = synchronisations()
    sg.cuda.synchronize()
    if before is not None:  # for the work, and once for all checks
        assert synchronisations() - before <= 2
    with pytest.raises(sg.PatternError, match=r"indices\[0\]: index 9"):
        sg.coo(sg.tensor([[9], [0]], device=device), sg.ones(1, device=device), (4, 3))
