"""Methods of dense tensors: each is the op of its name; in place as everything in place."""

from __future__ import annotations

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad.methods import DenseMethods, SharedMethods


def names(cls: type) -> list[str]:
    return [n for n, v in vars(cls).items() if callable(v) and not n.startswith("_")]


@pytest.mark.parametrize("name", names(DenseMethods) + names(SharedMethods))
def test_method_has_documentation_and_its_own_name(name: str) -> None:
    method = getattr(sg.Tensor, name)
    assert method.__doc__
    assert method.__qualname__.split(".")[0] in ("Tensor", "DenseMethods", "SharedMethods")


@pytest.mark.parametrize("name", [n for n in names(DenseMethods) if n.endswith("_")])
def test_in_place_is_refused_where_a_gradient_is_needed(name: str) -> None:
    x = sg.ones(2, requires_grad=True)
    with pytest.raises(sg.GraphError, match=r"requires a gradient and cannot be changed in place"):
        getattr(x, name)()


def test_in_place_writes_and_counts() -> None:
    x = sg.tensor([-1.0, 4.0])
    data = x.data
    assert x.clamp_(min=0).sqrt_().masked_fill_(x == 0, 7) is x
    assert x.data is data
    assert x.tolist() == [7.0, 2.0]
    x.index_add_(0, sg.tensor([1, 1]), sg.ones(2)).scatter_(0, sg.tensor([0]), 3.0)
    assert x.tolist() == [3.0, 4.0]
    w = sg.ones(2, requires_grad=True)
    out = (w * x).sum()
    x.neg_()
    with pytest.raises(sg.GraphError, match="changed in place"):
        out.backward()
    with pytest.raises(sg.ShapeError, match="lerp_: result has shape"):
        x.lerp_(sg.ones(3, 2), 0.5)
    with pytest.raises(sg.DtypeError, match="reciprocal_: a float32 result does not fit"):
        sg.arange(1, 3).reciprocal_()


def test_augmented_assignment_is_in_place_where_nothing_is_recorded() -> None:
    w = sg.ones(2, requires_grad=True)
    array = w.data
    with sg.no_grad():
        for p in [w]:
            p -= 0.5 * sg.ones(2)  # a training step written by hand
            p *= 2
    assert w.data is array
    assert w.tolist() == [1.0, 1.0]
    assert w.is_leaf
    loss = start = sg.tensor(0.0)
    loss += (w * 3).sum()  # recorded: a new tensor
    loss.backward()
    assert w.grad.tolist() == [3.0, 3.0]
    assert start.item() == 0.0
    h = w * 1.0
    before = h
    h += 1
    assert h is not before and before.tolist() == [1.0, 1.0]
    with pytest.raises(sg.GraphError, match=r"sub_: .* sg.no_grad\(\)"):
        w -= 0.1 * w.grad  # a new tensor would take the parameter's name, without its gradient
    x = sg.arange(3)
    x += 1
    x //= 2
    x **= 2
    assert x.tolist() == [0, 1, 1]
    with pytest.raises(sg.DtypeError, match="div_: a float32 result does not fit a int64 tensor"):
        x /= 2
    with pytest.raises(sg.ShapeError, match=r"add_: result has shape \(2, 3\), tensor \(3,\)"):
        x += sg.ones(2, 3, dtype="int64")
    y = sg.zeros(2, 2)
    y += sg.sparse_eye(2)  # as `y + A`
    assert y.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    mask = sg.tensor([True, False])
    mask &= sg.tensor([False, False])
    assert not mask.any()


def test_casts_and_shapes_by_example() -> None:
    x = sg.tensor([[0.0, 2.7]])
    assert [getattr(x, n)().dtype.name for n in ("bool", "byte", "int", "long", "short")] == [
        *("bool", "uint8", "int32", "int64", "int16")
    ]
    other = sg.zeros(2, 2, dtype="float64")
    assert x.expand_as(other).shape == (2, 2)
    assert x.view_as(sg.zeros(2)).shape == (2,)
    assert x.type_as(other).dtype == np.float64
    assert x.repeat(2, 1).shape == x.repeat((2, 1)).shape == (2, 2)
    assert x.contiguous() is x
    turned = sg.ones(2, 3).T
    assert not turned.is_contiguous() and turned.contiguous().is_contiguous()
    assert x.element_size() == 4
    assert other.new_ones(2).dtype == np.float64
    assert other.new_zeros((2, 3), dtype="int64").tolist() == [[0] * 3] * 2
    assert other.new_full((2,), 7).tolist() == other.new_tensor([7, 7]).tolist() == [7.0, 7.0]
    assert x.select(1, -1).tolist() == [pytest.approx(2.7)]
    assert x.clamp_min(1.0).tolist() == [[1.0, pytest.approx(2.7)]]
    with pytest.raises(IndexError):
        x.select(1, 5)


def test_methods_of_sparse_tensors() -> None:
    A = sg.csr([0, 1, 2], [1, 0], [0.5, -2.0], (2, 2))
    assert A.sin().pattern is A.pattern
    assert A.clamp(max=1).values.tolist() == [0.5, -2.0]
    assert [part.shape for part in A.split(1)] == [(1, 2), (1, 2)]
    assert A.any(dim=1).tolist() == [True, True]
    with pytest.raises(AttributeError):
        A.cos()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: sg.cumsum(x, 0),
        lambda x: sg.sort(x).values,
        lambda x: sg.gather(x, 0, [1, 0]),
        lambda x: sg.masked_fill(x, [True, False], 0.0),
        lambda x: sg.flip(x, 0),
        lambda x: sg.pad(x, (1, 1)),
        lambda x: sg.var(x),
        lambda x: sg.unique(x),
        lambda x: sg.nonzero(x),
        lambda x: sg.einsum("i,i", x, x),
        lambda x: sg.scatter(x, 0, [0], [5.0]),
    ],
)
def test_arrays_and_lists_are_tensors(call: object) -> None:
    expected = call(sg.tensor([3.0, 1.0]))
    for x in ([3.0, 1.0], np.array([3.0, 1.0], np.float32)):
        assert call(x).tolist() == expected.tolist()
    with pytest.raises(TypeError, match="expected a tensor, array or number"):
        sg.cumsum(object(), 0)


def test_a_sparse_tensor_says_what_names_of_other_libraries_are_here() -> None:
    A = sg.sparse_eye(2)
    for name, hint in (
        ("tocsr", r'; see A.to\("csr"\)'),
        ("toarray", r"; see A.to_dense\(\).numpy"),
        ("_nnz", "; see A.nnz"),
        ("eliminate_zeros", r"; see sg.drop_zeros\(A\)"),
        ("tolil", r"; see A.to_scipy\(\).tolil\(\)"),
        ("exp", r"; see A.values.exp for stored entries only, or A.to_dense\(\).exp"),
        ("exp_", "; see A.values.exp_ for stored entries only$"),
        ("nonsense", "$"),
    ):
        with pytest.raises(
            AttributeError, match=f"{name}: a SparseTensor has no such attribute{hint}"
        ):
            getattr(A, name)
    with pytest.raises(AttributeError, match=r"sparse_coo_tensor'; see sg.coo\(indices"):
        sg.sparse_coo_tensor
    with pytest.raises(TypeError, match=r"SparseTensor are fixed; write A\.with_values"):
        sg.sparse_eye(2)[0, 1] = 1.0
    with pytest.raises(ValueError, match="neither true nor false"):
        bool(A)


def test_arrays_of_tensors_that_require_a_gradient() -> None:
    x = sg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(sg.GraphError, match="numpy: the tensor requires a gradient"):
        x.numpy()
    assert np.shares_memory(x.numpy(force=True), x.detach().numpy())
