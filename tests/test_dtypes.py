"""Promotion as in PyTorch, and dtypes through ops and gradients. The tables are data: they were
written down from PyTorch's rules, not computed by the code under test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg

ORDER = ["b1", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]

# A tensor with dimensions (row) meets another one (column).
BOTH = """
 b1    b1  u1  i1  i2  i4  i8  f2  f4  f8  c8 c16
 u1    u1  u1  i2  i2  i4  i8  f2  f4  f8  c8 c16
 i1    i1  i2  i1  i2  i4  i8  f2  f4  f8  c8 c16
 i2    i2  i2  i2  i2  i4  i8  f2  f4  f8  c8 c16
 i4    i4  i4  i4  i4  i4  i8  f2  f4  f8  c8 c16
 i8    i8  i8  i8  i8  i8  i8  f2  f4  f8  c8 c16
 f2    f2  f2  f2  f2  f2  f2  f2  f4  f8  c8 c16
 f4    f4  f4  f4  f4  f4  f4  f4  f4  f8  c8 c16
 f8    f8  f8  f8  f8  f8  f8  f8  f8  f8 c16 c16
 c8    c8  c8  c8  c8  c8  c8  c8  c8 c16  c8 c16
c16   c16 c16 c16 c16 c16 c16 c16 c16 c16 c16 c16
"""

# A tensor with dimensions (row) meets a zero-dimensional one (column). float16 with a complex
# number is complex64 here: there is no half-precision complex dtype.
ZERO_DIM = """
 b1    b1  u1  i1  i2  i4  i8  f2  f4  f8  c8 c16
 u1    u1  u1  u1  u1  u1  u1  f2  f4  f8  c8 c16
 i1    i1  i1  i1  i1  i1  i1  f2  f4  f8  c8 c16
 i2    i2  i2  i2  i2  i2  i2  f2  f4  f8  c8 c16
 i4    i4  i4  i4  i4  i4  i4  f2  f4  f8  c8 c16
 i8    i8  i8  i8  i8  i8  i8  f2  f4  f8  c8 c16
 f2    f2  f2  f2  f2  f2  f2  f2  f2  f2  c8  c8
 f4    f4  f4  f4  f4  f4  f4  f4  f4  f4  c8  c8
 f8    f8  f8  f8  f8  f8  f8  f8  f8  f8 c16 c16
 c8    c8  c8  c8  c8  c8  c8  c8  c8  c8  c8  c8
c16   c16 c16 c16 c16 c16 c16 c16 c16 c16 c16 c16
"""

# A tensor of any number of dimensions (row) meets a Python number: bool, int, float, complex.
SCALAR = """
 b1    b1  i8  f4  c8
 u1    u1  u1  f4  c8
 i1    i1  i1  f4  c8
 i2    i2  i2  f4  c8
 i4    i4  i4  f4  c8
 i8    i8  i8  f4  c8
 f2    f2  f2  f2  c8
 f4    f4  f4  f4  c8
 f8    f8  f8  f8 c16
 c8    c8  c8  c8  c8
c16   c16 c16 c16 c16
"""
NUMBERS = (True, 2, 2.0, 2j)


def rows(table: str, columns: Any) -> list[Any]:
    out = []
    for line in table.strip().splitlines():
        name, *results = line.split()
        for column, result in zip(columns, results, strict=True):
            out.append(pytest.param(name, column, result, id=f"{name}-{column}"))
    return out


def ones(dtype: str, *shape: int) -> sg.Tensor:
    return sg.Tensor(np.ones(shape, dtype))


@pytest.fixture
def float64_default() -> Iterator[None]:
    sg.set_default_dtype(sg.float64)
    yield
    sg.set_default_dtype(sg.float32)


# ---- the tables --------------------------------------------------------------------------------
@pytest.mark.parametrize(("a", "b", "expected"), rows(BOTH, ORDER))
def test_two_tensors(a: str, b: str, expected: str) -> None:
    assert sg.promote_types(np.dtype(a), np.dtype(b)) == expected
    for x, y in ((ones(a, 2), ones(b, 3, 1)), (ones(a), ones(b))):
        assert sg.result_type(x, y) == expected
        for out in (x * y, y * x, sg.mul(x, y)):
            assert out.dtype == expected
            np.testing.assert_array_equal(out.numpy(), np.ones(out.shape))


@pytest.mark.parametrize(("a", "b", "expected"), rows(ZERO_DIM, ORDER))
def test_a_tensor_and_a_zero_dimensional_one(a: str, b: str, expected: str) -> None:
    x, y = ones(a, 2), ones(b)
    assert sg.result_type(x, y) == sg.result_type(y, x) == expected
    for out in (x * y, y * x):
        assert out.dtype == expected
        np.testing.assert_array_equal(out.numpy(), np.ones(2))


@pytest.mark.parametrize(("a", "number", "expected"), rows(SCALAR, NUMBERS))
def test_a_tensor_and_a_number(a: str, number: Any, expected: str) -> None:
    for x in (ones(a, 2), ones(a)):
        assert sg.result_type(x, number) == sg.result_type(number, x) == expected
        for out in (x * number, number * x):
            assert out.dtype == expected
            np.testing.assert_array_equal(out.numpy(), np.full(x.shape, number))


@pytest.mark.parametrize(("a", "number", "expected"), rows(SCALAR, NUMBERS))
def test_a_sparse_tensor_and_a_number(a: str, number: Any, expected: str) -> None:
    A = sg.coo([[0, 1]], ones(a, 2), (3,))
    out = A * number
    assert out.dtype == expected
    np.testing.assert_array_equal(out.values.numpy(), np.full(2, number))


def test_numbers_take_the_default_dtype(float64_default: None) -> None:
    for a, number, expected in (("i8", 2.0, "f8"), ("f4", 2.0, "f4"), ("f2", 2.0, "f2"),
                                ("b1", 2.0, "f8"), ("i8", 2j, "c16"), ("f4", 2j, "c8"),
                                ("f8", 2j, "c16")):  # fmt: skip
        assert (ones(a, 2) * number).dtype == expected
    assert (ones("i8", 2) / 2).dtype == "f8"
    assert sg.tensor([1.0]).dtype == "f8"
    assert sg.exp(ones("i4", 2)).dtype == "f8"


def test_three_groups_at_once() -> None:
    assert sg.result_type(ones("u1", 2), ones("f8"), 2) == "f8"
    assert sg.result_type(ones("f4", 2), ones("f8"), 2.0) == "f4"
    assert sg.result_type(ones("b1", 2), ones("i2"), 2) == "i2"
    assert sg.result_type(ones("i8", 2), ones("f2"), 2.0) == "f2"
    assert sg.result_type(2, 2.0) == "f4"
    with pytest.raises(sg.DtypeError, match="no operands"):
        sg.result_type()


@pytest.mark.parametrize("dtype", ORDER)
def test_floating_point_results_of_integers(dtype: str) -> None:
    expected = dtype if dtype[0] in "fc" else "f4"
    x = ones(dtype, 2)
    assert (x / x).dtype == expected
    assert (x / 2).dtype == expected
    for op in (sg.exp, sg.sqrt, sg.tanh):
        assert op(x).dtype == expected
    assert x.mean().dtype == expected
    assert (x == x).dtype == sg.bool
    assert x.sum().dtype == ("i8" if dtype[0] in "biu" else dtype)
    assert (x @ x).dtype == dtype or dtype == "b1"


def test_values_that_promotion_must_not_spoil() -> None:
    big = sg.tensor([2**53 + 1])
    assert (big + 1).tolist() == [2**53 + 2]
    assert (sg.tensor([200], dtype=sg.uint8) + sg.tensor([100], dtype=sg.int8)).tolist() == [300]
    assert (sg.tensor([True, True]) + sg.tensor([True, False])).dtype == sg.bool
    assert (sg.tensor([True]) + 1).tolist() == [2]
    assert (sg.tensor([7]) / 2).tolist() == [3.5]
    a, b = sg.coo([[0]], [1], (2,)), sg.coo([[1]], np.array([1], "u1"), (2,))
    assert (a - b).to_dense().tolist() == [1, -1]


def test_what_is_no_dtype() -> None:
    for bad in ("nope", "U3", "O", "M8[s]", "f16", "V8"):
        with pytest.raises(sg.DtypeError, match="dtype"):
            sg.zeros(2, dtype=bad)
    with pytest.raises(sg.DtypeError, match="must be floating point"):
        sg.set_default_dtype(sg.int32)
    assert sg.get_default_dtype() == sg.float32


# ---- gradients ---------------------------------------------------------------------------------
@pytest.mark.parametrize("a", ["f2", "f4", "f8"])
@pytest.mark.parametrize("b", ORDER[:9])
def test_gradients_have_the_dtype_of_their_input(a: str, b: str) -> None:
    for shape in ((2,), ()):
        x, y = sg.Tensor(np.full(2, 3, a)), sg.Tensor(np.ones(shape, b))
        x.requires_grad = True
        y.requires_grad = b[0] == "f"
        (x * y + x / y - y).sum().backward()
        assert x.grad.dtype == a
        np.testing.assert_array_equal(x.grad.numpy(), [2, 2])
        if y.requires_grad:  # d/dy (3y + 3/y - y) = 3 - 3 - 1 per element
            assert y.grad.dtype == b and y.grad.shape == shape
            np.testing.assert_array_equal(y.grad.numpy(), np.full(shape, -1 if shape else -2))


def test_gradients_through_casts() -> None:
    x = sg.tensor([1.0, 2.0], dtype=sg.float32, requires_grad=True)
    y = x.double() * np.pi
    assert y.dtype == sg.float64
    y.backward(sg.tensor([1.0, 10.0], dtype=sg.float64))
    assert x.grad.dtype == sg.float32
    np.testing.assert_array_equal(x.grad.numpy(), np.array([np.pi, 10 * np.pi], "f4"))
    h = sg.tensor([1.0], dtype=sg.float64, requires_grad=True)
    h.half().sum().backward()
    assert h.grad.dtype == sg.float64


def test_upstream_gradients_are_cast() -> None:
    x = sg.tensor([1.0, 2.0], dtype=sg.float32, requires_grad=True)
    (x * 2).backward(sg.tensor([1.0, 2.0], dtype=sg.float64))
    assert x.grad.dtype == sg.float32
    A = sg.coo([[0, 1]], sg.tensor([1.0, 2.0], dtype=sg.float32), (3,), requires_grad=True)
    (A * 2).backward(sg.coo([[0, 1]], sg.tensor([1, 2]), (3,)))
    assert A.grad.dtype == sg.float32
    np.testing.assert_array_equal(A.grad.values.numpy(), [2, 4])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_one_dtype_throughout(dtype: str) -> None:
    """Python numbers and index arrays never widen anything on the way."""
    rng = np.random.default_rng(0)
    x = sg.Tensor(rng.uniform(0.5, 1, (4, 3)).astype(dtype), requires_grad=True)
    w = sg.Tensor(rng.uniform(0.5, 1, (3, 2)).astype(dtype), requires_grad=True)
    A = sg.coo([[0, 1, 3, 0], [1, 0, 2, 1]], x.detach()[:, 0], (4, 4), requires_grad=True)
    h = A @ x
    for t in (
        A, A.coalesce(), A.to("csr"), A * 2, A / 3.0, -A, A + A, A * A, A.softmax(1), A.to_dense(),
        A.sum(0), A.mean(), A.T @ x, x.T @ A, sg.sddmm(x, x, A), h, h * 2 + 1 - 0.5, h / 3, h**2,
        2.0**h, sg.exp(h), sg.log(h + 10), sg.tanh(h), sg.sigmoid(h), sg.relu(h), sg.sqrt(h + 1),
        h.mean(1), h.sum(), h.max(), sg.max(h, 1).values, sg.softmax(h, 1), sg.log_softmax(h, 1),
        h @ w, h[1:], h[[0, 1]], h.take([0, 1]), sg.cat([h, h]), sg.where(h > 0, h, 0.0),
        sg.maximum(h, 0.5), sg.dropout(h, 0.5), sg.abs(h), h.reshape(-1).expand(2, 12),
    ):  # fmt: skip
        assert t.dtype == dtype, t
        values = t.values if isinstance(t, sg.SparseTensor) else t
        assert values.requires_grad
        grads = sg.grad(values, [x, w, A], sg.ones_like(values), True, allow_unused=True)
        assert all(g is None or g.dtype == dtype for g in grads)
    loss = sg.cross_entropy(h @ w, sg.tensor([0, 1, 0, 1]))
    assert loss.dtype == dtype
    loss.backward(create_graph=True)
    for g in (x.grad, w.grad, A.grad):
        assert g.dtype == dtype
    second = sg.grad((w.grad * w.grad).sum(), [x, w, A])
    assert all(g.dtype == dtype for g in second)


def test_counts_do_not_saturate_in_half_precision() -> None:
    n = 5000
    x = sg.ones(n, dtype=sg.float16, requires_grad=True)
    assert x.sum().item() == 5000
    assert x.mean().item() == 1
    s = sg.tensor(1.0, dtype=sg.float16, requires_grad=True)
    (s * sg.ones(4096, dtype=sg.float16)).sum().backward()  # summed to the shape of s
    assert s.grad.item() == 4096
    w = sg.ones(2, 1, dtype=sg.float16, requires_grad=True)
    w.take(np.zeros(4096, int)).sum().backward()
    assert w.grad.to_dense().numpy().ravel().tolist() == [4096, 0]
    w.grad = None
    w[np.zeros(4096, int)].sum().backward()
    assert w.grad.numpy().ravel().tolist() == [4096, 0]
    w.grad = None
    w[np.zeros(4096, int), np.zeros(4096, int)].sum().backward()
    assert w.grad.numpy().ravel().tolist() == [4096, 0]


# ---- sparse tensors of every dtype -------------------------------------------------------------
@pytest.mark.parametrize("dtype", ORDER)
def test_sparse_forward_in_every_dtype(dtype: str, backend: str) -> None:
    row, col, data = [0, 0, 2, 0], [1, 2, 0, 1], np.array([1, 1, 3, 2]).astype(dtype)
    dense = np.zeros((3, 3), dtype)
    np.add.at(dense, (row, col), data) if dtype != "b1" else dense.__setitem__((row, col), True)
    A = sg.coo([row, col], data, (3, 3))
    assert A.dtype == dtype
    for B in (A, A.coalesce(), A.to("csr"), A.to("csc"), A.to("csr").coalesce()):
        assert B.dtype == dtype
        np.testing.assert_array_equal(B.to_dense().numpy(), dense)
    x = np.array([[1, 0], [1, 1], [0, 1]]).astype(dtype)
    out = A @ sg.Tensor(x)
    assert out.dtype == dtype
    np.testing.assert_array_equal(out.numpy(), dense @ x)
    total = A.sum()
    assert total.dtype == ("i8" if dtype[0] in "biu" else dtype)
    assert total.item() == dense.sum()  # of bools: the cells that hold True, each once


WHOLE = ("b1", "u1", "i1", "i2", "i4", "i8")


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
@pytest.mark.parametrize(
    "name",
    ["sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "var", "std", "any", "all"],
)
def test_reductions_of_sparse_bools_and_integers(name: str, fmt: str, dtype: str) -> None:
    """As of dense ones: the smallest number of a dtype, which has no negative, among them."""
    x = np.array([[2, 0, 0, 3], [0, 0, 0, 0], [1, 5, 2, 2], [0, 0, 7, 0]]).astype(dtype)
    if dtype[0] == "i":
        x[0, 0] = np.iinfo(dtype).min
    A, op = sg.tensor(x).to_sparse(fmt), getattr(sg, name)
    for dim in (None, 0, 1):
        found, expected = op(A, dim), op(sg.tensor(x), dim)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)


def test_pytorchs_names() -> None:
    assert (sg.half, sg.float, sg.double) == (sg.float16, sg.float32, sg.float64)
    assert (sg.short, sg.int, sg.long) == (sg.int16, sg.int32, sg.int64)


# ---- to ------------------------------------------------------------------------------------------
def test_to_takes_what_pytorch_takes() -> None:
    x, A = sg.ones(2), sg.sparse_eye(2)
    assert x.to("cpu") is x.to(sg.float32) is x.to("cpu", sg.float32) is x.to(x) is x
    for out in (
        x.to(sg.float64),
        x.to("cpu", sg.float64, non_blocking=True),
        x.to(dtype="float64", device="cpu"),
        x.to(np.zeros(1)),
        x.to(sg.zeros(1, dtype="float64")),
        A.to("csc", "float64"),
        A.to(sg.zeros(1, dtype="float64")),
    ):
        assert out.dtype == np.float64
    assert A.to("csc", "float64").format == "csc"
    model = sg.nn.Linear(2, 2).to("cpu", dtype=sg.float64)
    assert model.weight.dtype == np.float64 and model.cpu() is model
    for nothing in (x, A, model):
        with pytest.raises(TypeError, match="to: expected a device, a dtype, or a tensor"):
            nothing.to()


def test_bools_have_no_difference() -> None:
    A = sg.coo([[0, 1], [0, 1]], [True, True], (2, 2))
    for B in (A, A.T, sg.coo([[0, 1], [1, 0]], [True, True], (2, 2))):
        with pytest.raises(sg.DtypeError, match=r"^sub: "):
            A - B
