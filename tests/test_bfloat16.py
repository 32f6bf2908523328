"""bfloat16: promotion as in PyTorch, exchange with other libraries, files, training."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg

BF16 = sg.bfloat16
VALUES = [1.5, -2.0, 0.0, 3.140625]


def tensor(requires_grad: bool = False) -> sg.Tensor:
    return sg.tensor(VALUES, dtype=BF16, requires_grad=requires_grad)


def matrix(format: str = "coo", requires_grad: bool = False) -> sg.SparseTensor:
    A = sg.coo([[0, 1, 1, 3], [1, 0, 2, 1]], tensor(), (4, 3)).to(format)
    return A.requires_grad_() if requires_grad else A


# ---- what it is --------------------------------------------------------------------------------
def test_it_is_a_floating_point_dtype() -> None:
    x = tensor(requires_grad=True)
    assert x.is_floating_point() and x.dtype == BF16 == sg.dtypes.as_dtype("bfloat16")
    assert x.nbytes == 8 and x.tolist() == VALUES and x[0].item() == 1.5
    assert repr(x) == (
        "tensor([ 1.5   , -2.    ,  0.    ,  3.1406], dtype=bfloat16, requires_grad=True)"
    )
    assert "dtype=bfloat16" in repr(matrix()) and "(0, 1): 1.5" in repr(matrix())
    assert (sg.tensor([1, 2]).to("bfloat16") / 3).tolist() == [0.333984375, 0.66796875]
    assert (
        x.float().dtype == sg.float32 and x.bfloat16() is x and x.long().tolist() == [1, -2, 0, 3]
    )
    with pytest.raises(sg.DtypeError, match=r"dtype: \|V2 is not supported"):
        sg.zeros(2, dtype="V2")
    with pytest.raises(sg.DtypeError, match=r"tensor: no tensor holds list of dtype object"):
        sg.tensor([1.0, None])
    with pytest.raises(sg.DtypeError, match=r"tensor: no tensor holds str of dtype <U1"):
        matrix() @ sg.tensor("a")


def test_without_ml_dtypes_the_error_names_the_extra() -> None:
    code = """
import sys
sys.modules["ml_dtypes"] = None
import sparsegrad as sg
assert not hasattr(sg, "bfloat16")
for use in (lambda: sg.bfloat16, lambda: sg.zeros(2, dtype="bfloat16")):
    try:
        use()
    except (AttributeError, sg.DtypeError) as error:
        assert "sparsegrad-engine[bf16]" in str(error), error
    else:
        raise SystemExit("no error")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


# ---- promotion ---------------------------------------------------------------------------------
# With (row, as in test_dtypes.py): a tensor with dimensions, a zero-dimensional one, a number.
ORDER = ["b1", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]
BOTH = dict(zip(ORDER, ["bf"] * 6 + ["f4", "f4", "f8", "c8", "c16"], strict=True))
WITH_SCALAR_TENSOR = dict(zip(ORDER, ["bf"] * 9 + ["c8", "c8"], strict=True))


def name(dtype: str) -> Any:
    return BF16 if dtype == "bf" else np.dtype(dtype)


@pytest.mark.parametrize("other", ORDER)
def test_promotion(other: str) -> None:
    x, y = sg.ones(2, dtype=BF16), sg.Tensor(np.ones(2, other))
    assert sg.promote_types(BF16, np.dtype(other)) == name(BOTH[other])
    assert sg.promote_types(np.dtype(other), BF16) == name(BOTH[other])
    assert (x * y).dtype == (y * x).dtype == name(BOTH[other])
    assert (x * y[0]).dtype == (y[0] * x).dtype == name(WITH_SCALAR_TENSOR[other])
    wide = name(other) if other[0] in "fc" else BF16
    assert (y * x[0]).dtype == wide


@pytest.mark.parametrize(("number", "expected"), [(True, "bf"), (2, "bf"), (0.5, "bf"), (2j, "c8")])
def test_promotion_with_numbers(number: Any, expected: str) -> None:
    for x in (sg.ones(2, dtype=BF16), sg.ones((), dtype=BF16)):
        assert (x * number).dtype == (number * x).dtype == name(expected)
        assert sg.result_type(x, number) == name(expected)


def test_promotion_is_that_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    for other in (*(str(np.dtype(d)) for d in ORDER), "bfloat16"):
        for shape, other_shape in (((2,), (2,)), ((2,), ()), ((), (2,)), ((), ())):
            theirs = (
                torch.ones(shape, dtype=torch.bfloat16)
                * torch.ones(other_shape, dtype=getattr(torch, other))
            ).dtype
            ours = sg.ones(shape, dtype=BF16) * sg.ones(other_shape, dtype=other)
            assert str(theirs) == f"torch.{ours.dtype}", (other, shape, other_shape)


# ---- numerics ----------------------------------------------------------------------------------
def test_ops_are_computed_in_float32_and_rounded_once() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1000).astype(np.float32)
    a, b = sg.tensor(x, dtype=BF16), sg.tensor(x[::-1].copy(), dtype=BF16)
    for op in (lambda a, b: a * 0.1 + b, sg.div, sg.sub, lambda a, b: sg.sigmoid(a), sg.maximum,
               lambda a, b: sg.softmax(a, 0), lambda a, b: sg.tanh(a), lambda a, b: a.var(),
               lambda a, b: sg.exp(a).sum(), lambda a, b: a @ b, lambda a, b: sg.cumsum(a, 0)
               ):  # fmt: skip
        wide = op(a.float(), b.float()).numpy()
        ulp = 2.0**-8 * np.abs(wide).max() + 1e-30
        found = op(a, b)
        assert found.dtype == BF16
        assert np.abs(found.float().numpy() - wide).max() <= 1.01 * ulp


def test_sums_do_not_saturate() -> None:
    n = 4096
    x = sg.ones(n, dtype=BF16, requires_grad=True)
    assert x.sum().item() == n and x.mean().item() == 1
    A = sg.coo([np.zeros(n, int), np.arange(n)], sg.ones(n, dtype=BF16), (1, n))
    assert (A @ x.detach()).item() == n
    assert A.sum().item() == n
    w = sg.ones(2, 1, dtype=BF16, requires_grad=True)
    w.take(np.zeros(n, int)).sum().backward()
    assert w.grad.to_dense().float().numpy().ravel().tolist() == [n, 0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("format", ["coo", "csr", "csc"])
def test_sparse_matmul_of_mixed_dtypes(dtype: str, format: str) -> None:
    """AC-78: gradients come back in the dtype of what they belong to."""
    W = sg.coo([[0, 1, 2, 4], [0, 3, 1, 2]], [1.0, 2.0, 3.0, 4.0], (5, 4)).to(format)
    W.requires_grad_()
    x = sg.ones(4, 3, dtype=dtype, requires_grad=True)
    out = W @ x
    assert out.dtype == sg.float32
    out.sum().backward()
    assert W.grad.dtype == sg.float32 and x.grad.dtype == dtype
    narrow = W.detach().to(dtype).requires_grad_()
    y = narrow @ x
    assert y.dtype == dtype
    y.backward(sg.ones(5, 3, dtype=dtype))
    assert narrow.grad.dtype == dtype and narrow.grad.values.float().tolist() == [3, 3, 3, 3]


# ---- exchange ----------------------------------------------------------------------------------
def test_dlpack_shares_memory_with_pytorch() -> None:
    torch = pytest.importorskip("torch")
    x = tensor()
    theirs = torch.from_dlpack(x)
    assert theirs.dtype == torch.bfloat16 and theirs.tolist() == VALUES
    theirs[0] = 7
    assert x[0].item() == 7
    t = torch.tensor([[1.5, 2.5]], dtype=torch.bfloat16)
    ours = sg.from_dlpack(t)
    assert ours.dtype == BF16 and ours.tolist() == [[1.5, 2.5]]
    ours.fill_(3)
    assert t.tolist() == [[3, 3]]
    again = sg.from_dlpack(ours)
    assert again.dtype == BF16 and np.shares_memory(again.data, ours.data)
    for a in (np.arange(3.0), np.arange(3), np.ones(2, np.float16), np.zeros((0, 2))):
        assert sg.from_dlpack(a).dtype == a.dtype


@pytest.mark.filterwarnings("ignore:Sparse")  # PyTorch's own, once in a process
@pytest.mark.parametrize("format", ["coo", "csr", "csc"])
def test_pytorch_tensors(format: str) -> None:
    torch = pytest.importorskip("torch")
    theirs = sg.io.to_torch(matrix(format))
    assert theirs.dtype == torch.bfloat16
    back = sg.io.from_torch(theirs)
    assert back.dtype == BF16 and back.format == format
    np.testing.assert_array_equal(back.to_dense().numpy(), matrix().to_dense().numpy())
    assert sg.io.from_torch(sg.io.to_torch(tensor())).tolist() == VALUES


def test_numpy() -> None:
    array = np.asarray(tensor())
    assert array.dtype == BF16 and sg.from_numpy(array).dtype == BF16
    assert (array * tensor()).dtype == BF16 and np.exp(tensor()).dtype == BF16
    assert sg.tensor(array).tolist() == VALUES


@pytest.mark.parametrize("format", ["coo", "csr", "csc"])
def test_copies_pickles_and_files(format: str, tmp_path: Any) -> None:
    A = matrix(format, requires_grad=True)
    for again in (pickle.loads(pickle.dumps(A)), copy.deepcopy(A), copy.copy(A)):
        assert again.dtype == BF16 and again.requires_grad
        np.testing.assert_array_equal(again.values.detach().numpy(), A.values.detach().numpy())
    sg.save({"A": A, "x": tensor()}, tmp_path / "state.safetensors")
    loaded = sg.load(tmp_path / "state.safetensors")
    assert loaded["A"].dtype == loaded["x"].dtype == BF16 and loaded["x"].tolist() == VALUES
    np.testing.assert_array_equal(loaded["A"].to_dense().numpy(), A.detach().to_dense().numpy())
    for text in (io.BytesIO(), io.BytesIO()):
        sg.io.mmwrite(text, A.detach())
        text.seek(0)
        np.testing.assert_array_equal(
            sg.io.mmread(text).to_dense().numpy(), A.detach().to_dense().float().numpy()
        )


def test_scipy_is_refused_by_name() -> None:
    with pytest.raises(sg.DtypeError, match=r"to_scipy: scipy has no bfloat16; write A.float\(\)"):
        matrix().to_scipy()
    with pytest.raises(sg.DtypeError, match=r"save_npz: .npz knows no bfloat16"):
        sg.io.save_npz(io.BytesIO(), matrix())
    assert matrix().float().to_scipy().dtype == np.float32


# ---- training ----------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: sg.optim.SGD(p, lr=0.05, momentum=0.9),
        lambda p: sg.optim.Adam(p, lr=0.05, eps=1e-4),
        lambda p: sg.optim.AdamW(p, lr=0.05, eps=1e-4),
        lambda p: sg.optim.Adagrad(p, lr=0.2, eps=1e-4),
        lambda p: sg.optim.RMSprop(p, lr=0.02, eps=1e-4),
    ],
    ids=["sgd", "adam", "adamw", "adagrad", "rmsprop"],
)
def test_models_train_in_16_bits(dtype: str, make: Any) -> None:
    sg.manual_seed(0)
    A = sg.random_sparse(30, 30, 0.2, "csr", dtype=dtype)
    x, labels = sg.randn(30, 8, dtype=dtype), sg.randint(3, (30,))
    table = sg.nn.Embedding(30, 8).to(dtype)
    layer = sg.nn.Linear(8, 3).to(dtype)
    optimizer = make([*layer.parameters(), *table.parameters()])
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = sg.cross_entropy(layer(A @ (x + table(np.arange(30)))), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(p.dtype == dtype for p in (*layer.parameters(), *table.parameters()))
    assert isinstance(table.weight.grad, sg.SparseTensor) and table.weight.grad.dtype == dtype
