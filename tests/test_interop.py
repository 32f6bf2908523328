"""Tensors among NumPy arrays and other libraries; constructors of dense tensors."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse

import sparsegrad as sg

UFUNCS = [
    *("exp", "log", "sqrt", "sin", "cos", "tanh", "absolute", "negative", "rint", "floor"),
    *("square", "reciprocal", "log1p", "expm1", "sign", "arctan", "isnan", "logical_not"),
]


@pytest.mark.parametrize("name", UFUNCS)
def test_ufunc_of_one_argument(name: str) -> None:
    array = np.array([0.3, 1.2, 2.6])
    x = sg.tensor(array, requires_grad=True)
    out = getattr(np, name)(x)
    assert isinstance(out, sg.Tensor)
    assert out.requires_grad == (out.dtype.kind == "f")
    np.testing.assert_allclose(out.detach().numpy(), getattr(np, name)(array), rtol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        *("add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "remainder"),
        *("floor_divide", "arctan2", "greater", "less_equal", "equal", "not_equal", "matmul"),
    ],
)
def test_ufunc_of_an_array_and_a_tensor(name: str) -> None:
    a, b = np.array([1.0, 2.5, 3.0]), np.array([2.0, 0.7, 3.0])
    ufunc = getattr(np, name)
    for args in ((a, sg.tensor(b)), (sg.tensor(a), b), (sg.tensor(a), sg.tensor(b))):
        out = ufunc(*args)
        assert isinstance(out, sg.Tensor)
        np.testing.assert_allclose(out.numpy(), ufunc(a, b))


def test_operators_with_an_array_on_the_left_are_recorded() -> None:
    x = sg.tensor([1.0, 2.0], requires_grad=True)
    out = np.array([3.0, 4.0], np.float32) * x - np.float64(1)
    assert out.dtype == np.float32
    out.sum().backward()
    assert x.grad.tolist() == [3.0, 4.0]
    A = sg.coo([[0], [1]], [2.0], (2, 2), requires_grad=True)
    product = np.ones((2, 2), np.float32) * A
    assert isinstance(product, sg.SparseTensor)
    assert np.sin(A).pattern is A.pattern


def test_ufunc_that_cannot_be_recorded() -> None:
    x = sg.tensor([1.0, 2.0])
    with pytest.raises(TypeError, match=r"cbrt: no op of this meaning; write numpy\.cbrt"):
        np.cbrt(x)
    array = np.ones(2)
    array += x
    np.testing.assert_array_equal(array, [2, 3])
    assert np.add.reduce(x) == 3
    with pytest.raises(sg.GraphError, match="requires a gradient"):
        array += x.requires_grad_()
    with pytest.raises(TypeError, match="add: a SparseTensor does not turn into an array"):
        array += sg.coo([[0]], [1.0], (2,))


def test_numpy_reductions_and_names() -> None:
    a = np.arange(6.0).reshape(2, 3)
    x = sg.tensor(a, requires_grad=True)
    for name in ("sum", "mean", "prod", "max", "min", "std", "var", "any", "all", "argmax"):
        out = getattr(np, name)(x)
        assert isinstance(out, sg.Tensor)
        np.testing.assert_allclose(out.detach(), getattr(np, name)(a))
    assert np.mean(x, axis=0).requires_grad
    assert x.sum(axis=1, keepdims=True).shape == sg.sum(x, axis=1, keepdims=True).shape == (2, 1)
    assert sg.cat([x, x], axis=1).shape == (2, 6)
    with pytest.raises(TypeError, match="sum: out= is not supported"):
        np.sum(x, out=a[0, :1])
    with pytest.raises(TypeError, match="sum: got dim twice"):
        x.sum(dim=0, axis=1)
    assert pickle.loads(pickle.dumps(sg.softmax)) is sg.softmax


def test_one_element_is_formatted_as_a_number() -> None:
    assert f"{sg.tensor(2.5, requires_grad=True) * 2:.3f}" == "5.000"
    assert f"{sg.ones(2)}" == repr(sg.ones(2))
    with pytest.raises(TypeError, match="format"):
        f"{sg.ones(2):.3f}"


def test_matrices_of_other_libraries_are_not_guessed_at() -> None:
    S = scipy.sparse.csr_array(np.eye(2))
    for call in (lambda: sg.tensor(S), lambda: sg.ones(2, 2) @ S, lambda: sg.sparse_eye(2) + S):
        with pytest.raises(TypeError, match=r"got scipy.csr_array; see sg.from_scipy"):
            call()


def test_subclasses_of_arrays_become_plain_arrays() -> None:
    sums = scipy.sparse.csr_matrix(np.eye(2)).sum(axis=0)  # an np.matrix, whose `*` is `@`
    for x in (sg.tensor(sums), sg.from_numpy(sums), sg.Tensor(sums)):
        assert type(x.data) is np.ndarray and (x * x).tolist() == [[1.0, 1.0]]


def test_asarray_shares_memory() -> None:
    x = sg.tensor([1.0, 2.0])
    assert np.asarray(x) is x.data
    with pytest.raises(sg.GraphError, match=r"use \.detach\(\)"):
        np.asarray(x.requires_grad_())


def test_dlpack_shares_memory_both_ways() -> None:
    torch = pytest.importorskip("torch")
    x = sg.tensor([1.0, 2.0])
    theirs = torch.from_dlpack(x)
    theirs[0] = 5
    assert x.tolist() == [5.0, 2.0]
    source = torch.arange(3.0)
    ours = sg.from_dlpack(source)
    source[2] = 7
    assert ours.tolist() == [0.0, 1.0, 7.0]
    with pytest.raises(sg.GraphError, match="__dlpack__: the tensor requires a gradient"):
        torch.from_dlpack(x.requires_grad_())
    with pytest.raises(TypeError, match="from_dlpack: list does not speak DLPack"):
        sg.from_dlpack([1.0])


def test_copy_shares_storage_and_counts_its_changes() -> None:
    x = sg.tensor([1.0, 2.0])
    y = copy.copy(x)
    assert y.data is x.data
    w = sg.tensor([1.0, 1.0], requires_grad=True)
    out = (w * x).sum()
    y.mul_(2)
    with pytest.raises(sg.GraphError, match="changed in place"):
        out.backward()
    with pytest.raises(sg.GraphError, match="copy: only leaves"):
        copy.copy(w * 2)


def test_html_names_shape_and_dtype() -> None:
    text = sg.ones(2, 3, requires_grad=True)._repr_html_()
    assert "shape=(2, 3), dtype=float32" in text
    assert "requires_grad=True" in text


# ---- constructors ------------------------------------------------------------------------------
def test_spaced() -> None:
    np.testing.assert_allclose(sg.linspace(-1, 1, 5).numpy(), np.linspace(-1, 1, 5))
    assert sg.linspace(0, 1, 0).shape == (0,)
    assert sg.linspace(0, 1, 3, dtype="float64", requires_grad=True).requires_grad
    np.testing.assert_allclose(sg.logspace(0, 2, 3, base=2).numpy(), [1, 2, 4])
    with pytest.raises(sg.ShapeError, match="linspace: sizes must be non-negative"):
        sg.linspace(0, 1, -1)


@pytest.mark.parametrize("make", [sg.empty_like, sg.rand_like, sg.randn_like, sg.zeros_like])
def test_like_another(make: object) -> None:
    x = sg.ones(2, 3, dtype="float64")
    made = make(x, requires_grad=True)
    assert (made.shape, made.dtype, made.requires_grad) == ((2, 3), np.float64, True)
    assert make(x, dtype="float16").dtype == np.float16
    A = sg.csr([0, 1, 1], [1], [2.0], (2, 2))
    assert make(A).pattern is A.pattern


def test_full_like_keeps_the_dtype() -> None:
    assert sg.full_like(sg.arange(2), 7).tolist() == [7, 7]
    assert sg.full_like(sg.arange(2), 7).dtype == np.int64


def test_drawn_numbers() -> None:
    sg.manual_seed(3)
    assert sg.uniform(2.0, 3.0, (1000,)).numpy().min() >= 2
    drawn = sg.normal(5.0, 2.0, (20_000,)).numpy()
    assert abs(drawn.mean() - 5) < 0.1
    assert abs(drawn.std() - 2) < 0.1
    assert sg.normal(sg.zeros(3, 1, dtype="float64"), sg.ones(4)).shape == (3, 4)
    assert sorted(sg.randperm(9).tolist()) == list(range(9))
    numbers = sg.randint(-2, 3, (500,))
    assert set(numbers.tolist()) == {-2, -1, 0, 1, 2}
    assert numbers.dtype == np.int64
    assert abs(sg.bernoulli(sg.full((10_000,), 0.3)).numpy().mean() - 0.3) < 0.03
    sg.manual_seed(3)
    first = sg.randint(100, (5,)).tolist()
    sg.manual_seed(3)
    assert sg.randint(100, (5,)).tolist() == first


def test_uniform_numbers_stay_below_one() -> None:
    sg.manual_seed(0)
    assert sg.rand(100_000, dtype="float16").numpy().max() < 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: sg.randint(3, 3, (2,)), "randint: low must be less than high, got 3 and 3"),
        (lambda: sg.normal(0.0, -1.0, (2,)), "normal: std must not be negative"),
        (lambda: sg.bernoulli(sg.tensor([1.5])), r"bernoulli: probabilities must lie in \[0, 1\]"),
    ],
)
def test_bad_arguments_are_refused(call: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


# ---- inside a PyTorch model --------------------------------------------------------------------
def test_function_inside_a_pytorch_graph() -> None:
    torch = pytest.importorskip("torch")
    A = sg.csr([0, 1, 3], [1, 0, 2], [2.0, 3.0, 4.0], (2, 3), dtype="float64")
    propagate = sg.interop.torch_function(lambda x, scale: sg.tanh(A @ x) * scale)
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: propagate(x, 2.0), (x,))
    dense = torch.tensor(A.to_dense().numpy())
    torch.testing.assert_close(propagate(x, 2.0), torch.tanh(dense @ x) * 2)
    out = propagate(x, 1.0).sum()
    out.backward(retain_graph=True)
    first = x.grad.clone()
    out.backward()
    torch.testing.assert_close(x.grad, 2 * first)


def test_sparse_gradients_reach_pytorch_and_inner_leaves_theirs() -> None:
    torch = pytest.importorskip("torch")
    A = sg.coo([[0, 1], [1, 0]], [2.0, 3.0], (2, 2), requires_grad=True)
    weight = torch.ones(1000, 2, requires_grad=True)
    look_up = sg.interop.torch_function(lambda w: A @ sg.embedding(w, [7, 7]))
    look_up(weight).sum().backward()
    assert weight.grad.is_sparse
    assert weight.grad.coalesce().indices().tolist() == [[7]]
    assert weight.grad.coalesce().values().tolist() == [[5.0, 5.0]]
    assert A.values.grad.tolist() == [2.0, 2.0]


def test_several_results_and_shared_memory() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, requires_grad=True)
    both = sg.interop.torch_function(lambda x: (x * 2, sg.argmax(x)))
    double, place = both(x)
    assert not place.requires_grad
    double.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    seen = []
    plain = torch.zeros(2)
    sg.interop.torch_function(lambda t: seen.append(t) or t * 1)(plain)
    plain[0] = 5
    assert seen[0].tolist() == [5.0, 0.0]
