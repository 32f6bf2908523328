"""The engine this grew from, by its own calls: what it had is here, what was wrong is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparsegrad as torch

A, B = 3.0, 10.0
# c = 2 + N / D with N = a + b^2, D = a + b + a b; the quotient's derivatives by hand:
N, D = A + B**2, A + B + A * B
N_B, D_A, D_B = 2 * B, 1 + B, 1 + A
C = 4.395348837209302
C_A = (1 - N / D * D_A) / D
C_B = (N_B - N / D * D_B) / D
C_AA = -2 * C_A * D_A / D
C_AB = -(C_A * D_B + C_B * D_A + N / D) / D
C_BB = (2 - 2 * C_B * D_B) / D
PRECISION = [("float64", 1e-12), ("float32", 1e-6)]


def inputs(dtype: str) -> tuple[Any, Any]:
    return (
        torch.tensor(A, dtype=dtype, requires_grad=True),
        torch.tensor(B, dtype=dtype, requires_grad=True),
    )


def formula(a: Any, b: Any) -> Any:
    return 2 + (a + b**2) / (a + b + a * b)


@pytest.mark.parametrize(("dtype", "tol"), PRECISION)
def test_values_and_first_derivatives(dtype: str, tol: float) -> None:
    assert pytest.approx(-0.5895078420767983, abs=1e-15) == C_A
    a, b = inputs(dtype)
    c = formula(a, b)
    assert c.dtype == dtype
    assert c.item() == pytest.approx(C, rel=tol)
    c.backward()
    assert a.grad.dtype == b.grad.dtype == dtype
    assert a.grad.item() == pytest.approx(C_A, rel=tol)
    assert b.grad.item() == pytest.approx(C_B, rel=tol)


@pytest.mark.parametrize(("dtype", "tol"), PRECISION)
def test_second_derivatives(dtype: str, tol: float) -> None:
    a, b = inputs(dtype)
    da, db = torch.autograd.grad(formula(a, b), [a, b], create_graph=True)
    daa, dab = torch.autograd.grad(da, [a, b], retain_graph=True)
    dba, dbb = torch.autograd.grad(db, [a, b])
    found = [t.item() for t in (daa, dab, dba, dbb)]
    assert found == pytest.approx([C_AA, C_AB, C_AB, C_BB], rel=10 * tol, abs=tol)
    assert {t.dtype.name for t in (da, db, daa, dab, dba, dbb)} == {dtype}


def test_third_derivative() -> None:
    x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    d = x**5 + torch.log(x)
    for expected in (80 + 0.5, 160 - 0.25, 240 + 0.25, 240 - 0.375):
        (d,) = torch.autograd.grad(d, x, create_graph=True)
        assert d.item() == pytest.approx(expected, rel=1e-12)


def test_float32_is_the_default() -> None:
    a, b = torch.tensor(A, requires_grad=True), torch.tensor(B, requires_grad=True)
    c = formula(a, b)
    c.backward()
    assert c.dtype == a.grad.dtype == torch.float32


def test_constructors() -> None:
    assert torch.tensor([[1.0, 2.0]]).shape == (1, 2)
    for size in ((2, 3), [(2, 3)], [[2, 3]]):
        np.testing.assert_array_equal(torch.zeros(*size).numpy(), np.zeros((2, 3)))
        np.testing.assert_array_equal(torch.ones(*size).numpy(), np.ones((2, 3)))
        assert torch.rand(*size).shape == torch.randn(*size).shape == (2, 3)
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    np.testing.assert_array_equal(torch.zeros_like(x).numpy(), [[0.0], [0.0]])
    np.testing.assert_array_equal(torch.ones_like(x).numpy(), [[1.0], [1.0]])
    assert torch.ones_like(x).dtype == torch.float64
    assert torch.arange(4).tolist() == [0, 1, 2, 3]
    assert torch.arange(1, 2, 0.5).tolist() == [1.0, 1.5]
    assert torch.ensure_tensor(x) is x
    assert torch.ensure_tensor([1.0, 2.0]).tolist() == [1.0, 2.0]
    assert torch.ensure_tensor(3.0).shape == ()
    torch.manual_seed(3)
    r, n = torch.rand(10_000).numpy(), torch.randn(10_000).numpy()
    assert r.min() >= 0 and r.max() < 1 and abs(r.mean() - 0.5) < 0.02
    assert abs(n.mean()) < 0.05 and abs(n.std() - 1) < 0.05
    assert r.dtype == n.dtype == np.float32
    torch.manual_seed(3)
    np.testing.assert_array_equal(torch.rand(10_000).numpy(), r)


@pytest.mark.parametrize(
    ("op", "value", "grad"),
    [
        (lambda x: torch.add(x, 5), 7.0, 1.0),
        (lambda x: x + 5, 7.0, 1.0),
        (lambda x: 5 + x, 7.0, 1.0),
        (lambda x: torch.sub(x, 5), -3.0, 1.0),
        (lambda x: x - 5, -3.0, 1.0),
        (lambda x: 5 - x, 3.0, -1.0),
        (lambda x: torch.mul(x, 5), 10.0, 5.0),
        (lambda x: x * 5, 10.0, 5.0),
        (lambda x: 5 * x, 10.0, 5.0),
        (lambda x: torch.div(x, 4), 0.5, 0.25),
        (lambda x: x / 4, 0.5, 0.25),
        (lambda x: 4 / x, 2.0, -1.0),
        (lambda x: torch.neg(x), -2.0, -1.0),
        (lambda x: -x, -2.0, -1.0),
        (lambda x: torch.pow(x, 3), 8.0, 12.0),
        (lambda x: x**3, 8.0, 12.0),
        (lambda x: 3**x, 9.0, 9 * np.log(3)),
        (lambda x: torch.log(x), np.log(2), 0.5),
        (lambda x: torch.sum(x), 2.0, 1.0),
        (lambda x: torch.reshape(x, (1, 1)), [[2.0]], [[1.0]]),
        (lambda x: np.float64(5) * x, 10.0, 5.0),
        (lambda x: np.array(5.0) - x, 3.0, -1.0),
    ],
)
def test_ops_and_operators_on_either_side(op: Any, value: Any, grad: Any) -> None:
    x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    y = op(x)
    assert isinstance(y, torch.Tensor)
    np.testing.assert_allclose(y.detach().numpy(), value, rtol=1e-15)
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), np.asarray(grad).reshape(()), rtol=1e-15)


def test_backward_with_a_gradient_and_chosen_inputs() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = torch.tensor([3.0, 4.0], requires_grad=True)
    z = x * y
    z.backward(torch.tensor([1.0, 10.0]), retain_graph=True)
    assert x.grad.tolist() == [3.0, 40.0] and y.grad.tolist() == [1.0, 20.0]
    torch.autograd.backward(z, grad_tensors=torch.tensor([1.0, 1.0]), inputs=[x])
    assert x.grad.tolist() == [6.0, 44.0] and y.grad.tolist() == [1.0, 20.0]


def test_grad_with_a_gradient_and_unused_inputs() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = torch.tensor([3.0], requires_grad=True)
    z = x * x
    dx, dy = torch.autograd.grad(z, [x, y], torch.tensor([1.0, 10.0]), allow_unused=True)
    assert dx.tolist() == [2.0, 40.0] and dy is None
    with pytest.raises(torch.GraphError, match="input 1"):
        torch.autograd.grad((x * x).sum(), [x, y])


# ---- what was wrong there ----------------------------------------------------------------------
def test_sum_over_one_dimension() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    x.sum(dim=1).backward(torch.tensor([10.0, 20.0]))
    assert x.grad.tolist() == [[10.0, 10.0], [20.0, 20.0]]
    x.grad = None
    x.sum(dim=0).backward(torch.tensor([10.0, 20.0]))
    assert x.grad.tolist() == [[10.0, 20.0], [10.0, 20.0]]


def test_gradient_of_reshape_has_the_shape_of_the_input() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    x.reshape(2, 2).backward(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert x.grad.shape == (4,) and x.grad.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_backward_of_two_results_that_share_a_part() -> None:
    x = torch.tensor(1.0, requires_grad=True)
    h = x * 2
    h.backward(retain_graph=True)
    (h * 3).backward()
    assert x.grad.item() == 8.0


def test_a_deep_chain() -> None:
    x = torch.tensor(1.0, requires_grad=True)
    h = x
    for _ in range(50_000):
        h = h + 1
    h.backward()
    assert h.item() == 50_001.0 and x.grad.item() == 1.0


def test_gradients_of_broadcast_operands() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = torch.tensor([10.0, 20.0], requires_grad=True)
    (x * y).backward(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert x.grad.tolist() == [[10.0, 40.0], [30.0, 80.0]]
    assert y.grad.tolist() == [1 + 9.0, 4 + 16.0]
