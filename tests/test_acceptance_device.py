"""Cases of failures that users met on GPUs, each on the devices that --device names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad.structure import arrays

pytestmark = [
    pytest.mark.device,
    pytest.mark.filterwarnings("ignore::sparsegrad.errors.SparseEfficiencyWarning"),
]

HALVES = ["float16", "bfloat16"]


def dense(x: Any) -> np.ndarray:
    x = x.detach()
    return (x.to_dense() if isinstance(x, sg.SparseTensor) else x).numpy()


def launches(run: Callable[[], Any]) -> list[str] | None:
    """Kernels that run; None on a GPU, which does not say."""
    simulator = sys.modules.get("cudasim")
    if not simulator or not simulator.installed():
        run()
        return None
    with simulator.record_launches() as found:
        run()
    return [launch.kernel for launch in found]


# ---- duplicates and order ----------------------------------------------------------------------
def test_ac_44_duplicates_of_bool_are_or(device: str) -> None:
    values = [True, True, True, False, True]
    A = sg.csr([0, 2, 5], [1, 0, 0, 1, 1], values, (2, 2), device=device)
    for B in (A, A.coalesce(), A.to("csc"), A.T):
        assert B.dtype == bool
        np.testing.assert_array_equal(dense(B), np.ones((2, 2), bool))


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
def test_ac_54_flags_are_truthful_and_the_same_on_both_devices(device: str, fmt: str) -> None:
    for ids in ([0, 1, 2], [2, 0, 1], [1, 1, 0]):
        made = [
            sg.coo([ids, [0, 0, 0]], [2.0, 3.0, 4.0], (3, 1), device=where).to(fmt)
            for where in ("cpu", device)
        ]
        host, there = ([A, A + A, A.coalesce(), (A + A).coalesce()] for A in made)
        for x, y in zip(host, there, strict=True):
            assert x.pattern.is_coalesced == y.pattern.is_coalesced
            np.testing.assert_array_equal(dense(x), dense(y))
    A = sg.coo([[0, 1, 2]], [2.0, 3.0, 4.0], (3,), device=device)
    assert (A + A).coalesce().values.tolist() == [4, 6, 8]


@pytest.mark.parametrize("shape", [(10**6,) * 4, (2584, 75025) * 3 + (2584,)])
def test_ac_55_ac_56_more_cells_than_64_bits_count(device: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, n, 1000) for n in shape])
    coords = np.concatenate((coords, coords[:, :300]), 1)  # some twice
    A = sg.coo(coords, np.ones(1300), shape, device=device).coalesce()
    expected, counts = np.unique(coords, axis=1, return_counts=True)
    found = sg.tensor(A.indices).numpy()
    assert found.min() >= 0
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(A.values.numpy(), counts)


def test_ac_58_what_is_coalesced_is_not_looked_at_again(device: str) -> None:
    A = sg.coo([[2, 0, 1], [0, 1, 2], [1, 1, 0]], [1.0, 2.0, 3.0], (3, 3, 3), device=device)
    C = A.coalesce()
    assert launches(C.coalesce) in ([], None)
    assert C.coalesce() is C


def test_ac_63_one_canonical_order(device: str) -> None:
    row, col = [2, 1, 2, 0, 2, 1, 2], [0, 0, 1, 0, 2, 1, 0]
    A = sg.coo([row, col], [1.0, 2, 3, 4, 5, 6, 7], (3, 3), device=device).coalesce()
    assert A.row.tolist() == [0, 1, 1, 2, 2, 2] and A.col.tolist() == [0, 0, 1, 0, 1, 2]
    assert A.values.tolist() == [4, 2, 6, 8, 3, 5]


def test_ac_61_ten_runs_are_bitwise_equal(device: str) -> None:
    rng = np.random.default_rng(0)
    n, nnz = 60, 3000
    coords = rng.integers(0, n, (2, nnz))
    coords[0, :1500] = 7  # one long row
    values, x0 = rng.standard_normal(nnz).astype("f4"), rng.standard_normal((n, 5)).astype("f4")
    ids = rng.integers(0, n, 500)

    def run() -> list[bytes]:
        A = sg.coo(coords, values, (n, n), device=device, requires_grad=True)
        x = sg.tensor(x0, device=device, requires_grad=True)
        g = sg.tensor(x0[ids], device=device)
        (A @ x).backward(sg.tensor(x0, device=device))
        w, z = (sg.tensor(x0, device=device, requires_grad=True) for _ in range(2))
        sg.embedding(w, ids).backward(g)
        z[ids].backward(g)
        C = A.detach().coalesce()
        added = sg.index_add(x.detach(), 0, ids, g)
        found = [A.values.grad, x.grad, A.sum(0), A.sum(1), C.values, sg.softmax(C, 1).values]
        found += [w.grad.coalesce().values, z.grad, added]
        return [t.detach().numpy().tobytes() for t in found]

    with sg.config(deterministic=True):
        first = run()
        for _ in range(9):
            assert run() == first


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "RowwiseAdagrad", "Adam"])
def test_ac_62_duplicate_ids_are_summed_first(device: str, name: str) -> None:
    def run(where: str, ids: list[int], weight: float) -> np.ndarray:
        table = sg.ones(5, 2, device=where, requires_grad=True)
        optimizer = getattr(sg.optim, name)([table], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            (sg.embedding(table, ids) * weight).sum().backward()
            optimizer.step()
        return table.detach().numpy()

    expected = run("cpu", [3], 3.0)
    np.testing.assert_allclose(run(device, [3, 3, 3], 1.0), expected, rtol=1e-6)


# ---- bounds, devices ---------------------------------------------------------------------------
def test_ac_65_indices_widen_where_the_product_needs_it(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    A, B = (sg.random_sparse(60, 60, 0.2, device=device).to("csr") for _ in range(2))
    assert A.indices.dtype == np.int32
    monkeypatch.setattr(arrays, "INT32_MAX", 2000)  # each factor fits, the product does not
    C = A @ B
    assert C.nnz > 2000
    assert C.indices.dtype == C.indptr.dtype == np.int64
    np.testing.assert_allclose(dense(C), dense(A) @ dense(B), rtol=1e-5, atol=1e-6)


def test_ac_67_indices_of_users_are_always_checked(device: str) -> None:
    def there(*ids: list[int]) -> list[sg.Tensor]:
        return [sg.tensor(i, device=device) for i in ids]

    def coo(ids: list[list[int]], shape: tuple[int, ...]) -> Callable[[], Any]:
        return lambda: sg.coo(there(*ids), sg.ones(1, device=device), shape)

    one = sg.ones(1, device=device)
    cases = [
        (coo([[10], [50], [1]], (1, 51, 50)), r"indices\[0\]: index 10"),
        (coo([[0], [-1]], (2, 3)), r"indices\[1\]: index -1"),
        (coo([[2], [0]], (2, 3)), r"indices\[0\]: index 2"),
        (lambda: sg.csr(*there([0, 1, 1], [3]), one, (2, 3)), "indices: index 3"),
        (lambda: sg.csc(*there([0, 1, 1, 1], [2]), one, (2, 3)), "indices: index 2"),
        (lambda: sg.csr(*there([0, 2, 1], [0]), one, (2, 3)), "indptr"),
    ]
    for make, text in cases:
        with pytest.raises(sg.PatternError, match=text):
            make()
    x = sg.ones(3, 2, device=device)
    for op, wrong in ((sg.take, 3), (sg.embedding, -1)):
        op(x, there([wrong])[0])
        with pytest.raises(sg.PatternError, match=f"index {wrong}"):  # said at the next wait
            sg.cuda.synchronize()
    assert x.sum().item() == 6  # the device goes on


def test_ac_68_indices_follow_the_values_and_mixtures_are_named(device: str) -> None:
    values = sg.tensor([1.0, 2.0], device=device)
    A = sg.coo([[0, 1], [1, 0]], values, (2, 2))
    assert A.pattern.device == A.device == values.device
    assert sg.coo([[], []], sg.zeros(0, device=device), (2, 2)).pattern.device == values.device
    with pytest.raises(sg.DeviceError, match=r"cpu and cuda:\d"):
        A + A.cpu()
    with pytest.raises(sg.DeviceError, match=r"cpu and cuda:\d"):
        A.cpu() @ sg.ones(2, 1, device=device)


def test_ac_74_nothing_stored_gives_shapes_and_zero_gradients(device: str) -> None:
    A = sg.coo([[], []], sg.zeros(0, device=device), (0, 1))
    w = sg.ones(1, 3, device=device, requires_grad=True)
    out = A @ w
    assert out.shape == (0, 3)
    out.sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), np.zeros((1, 3)))


# ---- dtypes ------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
def test_ac_76_half_precision_sums_in_single(device: str, fmt: str, dtype: str) -> None:
    """A half stops counting at 2048, a bfloat16 at 256."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    n = 4096
    one: dict[str, Any] = {"dtype": dtype, "device": device}
    A = sg.coo([np.zeros(n, int), np.arange(n)], sg.ones(n, **one), (3, n)).to(fmt)
    x = sg.ones(n, 2, **one)
    for out, expected in (
        (A @ x, n),
        (sg.spmm(A, x, "mean"), 1),
        (A.sum(1), n),
        (sg.segment_sum(sg.ones(n, **one), [0, n]), n),
        (sg.softmax(A, 1).values.sum(), 1),
        (sg.sddmm(sg.ones(1, n, **one), sg.ones(1, n, **one), sg.coo([[0], [0]], None, (1, 1),
                                                                    device=device).pattern), n),
    ):  # fmt: skip
        values = out.values if isinstance(out, sg.SparseTensor) else out
        assert str(values.dtype) == dtype
        assert values.numpy().astype(float).max() == pytest.approx(expected, rel=5e-3)
    w = sg.zeros(3, 1, requires_grad=True, **one)
    sg.embedding(w, np.zeros(n, int)).sum().backward()
    assert float(dense(w.grad)[0, 0]) == n


def test_ac_77_ties_are_counted_in_enough_bits(device: str) -> None:
    n = 70_000
    x = sg.ones(n, dtype="float16", device=device, requires_grad=True)
    x.max().backward()
    np.testing.assert_allclose(x.grad.numpy().astype(float), 1 / n, rtol=0.005)
    y = sg.ones(1, n, dtype="float16", device=device, requires_grad=True)
    y.max(1).values.sum().backward()  # the first one takes all
    assert y.grad.numpy()[0, 0] == 1 and np.count_nonzero(y.grad.numpy()) == 1


@pytest.mark.parametrize("dtype", HALVES)
def test_ac_78_autocast_and_gradients_in_the_dtype_of_the_parameter(
    device: str, dtype: str
) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    W = sg.random_sparse(5, 4, 0.5, device=device).requires_grad_()
    x = sg.randn(4, 3, device=device, requires_grad=True)
    mask = sg.coo([[0, 4], [2, 1]], None, (5, 3), device=device)
    with sg.amp.autocast(dtype=dtype):
        out = W @ x
        sampled = sg.sddmm(out, sg.ones(3, 3, device=device), mask.pattern)
    assert str(out.dtype) == str(sampled.dtype) == dtype
    (out.sum() + sampled.sum()).backward()
    assert W.grad.dtype == x.grad.dtype == np.float32


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "bool"])
def test_ac_80_integers_stay_integers(device: str, dtype: str) -> None:
    values = np.array([1, 0, 1, 1, 1]).astype(dtype)
    host = sg.coo([[0, 1, 0, 2, 2], [1, 0, 2, 1, 1]], values, (3, 3))
    A = host.to(device)
    for x, y in (
        (host, A), (host.coalesce(), A.coalesce()), (host.T, A.T), (host.to("csr"), A.to("csr")),
        (host * host, A * A), (host + host.T, A + A.T), (host[1:], A[1:]),
        (host @ np.eye(3, dtype=dtype), A @ sg.tensor(np.eye(3, dtype=dtype), device=device)),
    ):  # fmt: skip
        assert y.dtype == np.dtype(dtype)
        assert y.device.type == "cuda"
        np.testing.assert_array_equal(dense(y), dense(x))
    if dtype == "int64":
        big = 2**53 + 1  # not a float64
        B = sg.coo([[0, 0], [0, 0]], np.array([big, 1]), (1, 1), device=device)
        assert dense(B)[0, 0] == dense(B.coalesce())[0, 0] == big + 1
        assert B.values.cpu().tolist() == [big, 1]


# ---- workers -----------------------------------------------------------------------------------
class Samples:
    """Matrices, and whether the process that made them has CuPy."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> tuple[sg.SparseTensor, int]:
        return sg.from_dense(np.eye(2, 3) * i), int("cupy" in sys.modules)


def test_ac_96_workers_of_a_loader_do_not_touch_the_device(device: str) -> None:
    loader = sg.data.DataLoader(Samples(), batch_size=3, num_workers=1)
    ((batch, touched),) = list(loader)
    loader.close()
    assert touched.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(dense(batch.to(device)), dense(batch))
