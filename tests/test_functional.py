"""vjp, jvp, jacobian, hessian, hvp against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad.autograd import hessian, hvp, jacobian, jvp, vjp

X = np.array([[0.3, -1.2, 0.7], [1.1, 0.4, -0.6]])
W = np.array([[1.0, 2.0], [-1.0, 0.5], [0.25, 3.0]])
V = np.array([[0.5, -2.0], [1.5, 0.25]])


def test_vjp_and_jvp_of_a_product() -> None:
    x, w = sg.from_numpy(X), sg.from_numpy(W)
    out, (gx, gw) = vjp(sg.matmul, (x, w), sg.from_numpy(V))
    np.testing.assert_allclose(out.numpy(), X @ W)
    np.testing.assert_allclose(gx.numpy(), V @ W.T)
    np.testing.assert_allclose(gw.numpy(), X.T @ V)
    dx, dw = np.cos(X), np.sin(W)
    out, tangent = jvp(sg.matmul, (x, w), (sg.from_numpy(dx), sg.from_numpy(dw)))
    np.testing.assert_allclose(tangent.numpy(), dx @ W + X @ dw)
    assert not tangent.requires_grad


def test_jacobian_has_the_shapes_of_output_and_input() -> None:
    j = jacobian(lambda x: sg.tanh(x).sum(0), sg.from_numpy(X))
    assert j.shape == (3, 2, 3)
    expected = np.zeros((3, 2, 3))
    for k in range(3):
        expected[k, :, k] = 1 - np.tanh(X[:, k]) ** 2
    np.testing.assert_allclose(j.numpy(), expected)
    a, b = jacobian(lambda x, y: x * 2.0, (sg.ones(2), sg.ones(3)))
    np.testing.assert_array_equal(a.numpy(), 2 * np.eye(2))
    np.testing.assert_array_equal(b.numpy(), np.zeros((2, 3)))
    np.testing.assert_array_equal(
        jacobian(lambda x: sg.ones(2), sg.ones(3)).numpy(), np.zeros((2, 3))
    )


def test_hessian_and_hvp() -> None:
    h = hessian(lambda x: (x**3).sum() + x[0] * x[1], sg.tensor([1.0, 2.0], dtype=sg.float64))
    np.testing.assert_allclose(h.numpy(), [[6.0, 1.0], [1.0, 12.0]])
    value, product = hvp(lambda x: (x**3).sum(), sg.tensor([1.0, 2.0]), sg.tensor([1.0, -1.0]))
    assert value.item() == 9
    np.testing.assert_allclose(product.numpy(), [6.0, -12.0])
    np.testing.assert_array_equal(hvp(lambda x: x.sum(), sg.ones(2), sg.ones(2))[1].numpy(), [0, 0])


def test_on_a_pattern() -> None:
    """L = |A x|^2: the Hessian in A's entries times V is 2 (V x) x^T there."""
    x = np.array([2.0, -1.0])
    A = sg.coo([[0, 1], [1, 0]], [2.0, 3.0], (2, 2), dtype=sg.float64)
    v = A.with_values(sg.tensor([1.0, 10.0], dtype=sg.float64))
    _, product = hvp(lambda A: ((A @ sg.from_numpy(x)) ** 2).sum(), A, v)
    expected = 2 * np.outer(v.to_dense().numpy() @ x, x)
    np.testing.assert_allclose(product.values.numpy(), expected[[0, 1], [1, 0]])
    _, g = vjp(lambda A: A @ sg.from_numpy(x), A, sg.tensor([1.0, 1.0], dtype=sg.float64))
    np.testing.assert_allclose(g.values.numpy(), [-1.0, 2.0])


def test_create_graph_differentiates_again() -> None:
    x = sg.tensor([0.5, 1.5], dtype=sg.float64, requires_grad=True)
    j = jacobian(lambda x: x**3, x, create_graph=True)
    (g,) = sg.grad(j.sum(), x)
    np.testing.assert_allclose(g.numpy(), 6 * x.detach().numpy())


def test_what_is_refused() -> None:
    with pytest.raises(TypeError, match="jacobian: dense inputs only"):
        jacobian(lambda A: A.sum(), sg.coo([[0], [0]], [1.0], (1, 1)))
    with pytest.raises(sg.GraphError, match="must return a scalar tensor"):
        hessian(lambda x: x * x, sg.ones(2))
    with pytest.raises(sg.ShapeError, match="jvp: 1 inputs but 2 directions"):
        jvp(lambda x: x, sg.ones(2), (sg.ones(2), sg.ones(2)))


def test_hessian_and_hvp_of_several_inputs() -> None:
    """Of f = (a . a) (1 . b), by hand."""
    a, b = (sg.tensor(x, dtype=sg.float64) for x in ([1.0, 2.0], [3.0, 4.0, 5.0]))

    def fn(a, b):
        return (a * a).sum() * b.sum()

    (aa, ab), (ba, bb) = hessian(fn, (a, b))
    np.testing.assert_array_equal(aa.numpy(), 24 * np.eye(2))
    np.testing.assert_array_equal(ab.numpy(), [[2, 2, 2], [4, 4, 4]])
    np.testing.assert_array_equal(ba.numpy(), ab.numpy().T)
    np.testing.assert_array_equal(bb.numpy(), np.zeros((3, 3)))
    value, (to_a, to_b) = hvp(fn, (a, b), (sg.tensor([1.0, -1.0]), sg.tensor([0.0, 1.0, 0.0])))
    assert value.item() == 60
    np.testing.assert_array_equal(to_a.numpy(), [24 + 2, -24 + 4])
    np.testing.assert_array_equal(to_b.numpy(), [-2, -2, -2])
    A, x = sg.coo([[0, 1], [1, 0]], [2.0, 3.0], (2, 2)), sg.tensor([1.0, 2.0])
    # Of degree 4, so the Hessian times the point itself is three times the gradient.
    _, (to_A, to_x) = hvp(lambda A, x: ((A @ x) ** 2).sum(), (A, x), (A, x))
    np.testing.assert_array_equal(to_A.values.numpy(), [3 * 16, 3 * 6])
    np.testing.assert_array_equal(to_x.numpy(), [3 * 18, 3 * 16])
    with pytest.raises(sg.ShapeError, match="hvp: 2 inputs but 1 directions"):
        hvp(fn, (a, b), a)
    with pytest.raises(TypeError, match="hessian: dense inputs only"):
        hessian(lambda A: A.sum(), A)


def test_gradcheck_says_when_the_dtype_is_to_blame():
    x = sg.tensor([0.3, 0.7], requires_grad=True)
    with pytest.raises(sg.autograd.GradcheckError, match="float32 is too coarse for eps=1e-06"):
        sg.gradcheck(lambda x: sg.tanh(x) ** 3, x)
