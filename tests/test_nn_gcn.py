"""Graph convolutions and the normalisation of graphs."""

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg
from modules import as_function, dense, rng, sparse
from sparsegrad import nn


def symmetric(n=8, seed=3):
    A = sp.random_array((n, n), density=0.3, rng=rng(seed), format="csr")
    return sp.csr_array(A + A.T)


def normalised(A):
    A = A.toarray() + np.eye(len(A.toarray()))
    d = A.sum(axis=1) ** -0.5
    return d[:, None] * A * d


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
def test_gcn_norm(fmt):
    A = symmetric()
    A.setdiag(0.5)  # a loop that is there already
    ours = nn.gcn_norm(sg.from_scipy(A.asformat(fmt)))
    assert ours.format == fmt
    np.testing.assert_allclose(ours.to_dense().data, normalised(A), rtol=1e-12)


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
def test_gcn_norm_has_a_gradient_at_every_edge(fmt):
    A = sg.from_scipy(symmetric(5).asformat(fmt), requires_grad=True).coalesce()
    A = A.detach().requires_grad_()
    assert sg.gradcheck(nn.gcn_norm, A)
    assert sg.gradgradcheck(nn.gcn_norm, A)
    nn.gcn_norm(A).to_dense().sum().backward()
    assert A.grad.pattern is A.pattern


def test_gcn_norm_with_duplicates():
    A = sg.coo([[0, 0, 1], [1, 1, 0]], [1.0, 2.0, 3.0], (2, 2), dtype=sg.float64)
    expected = normalised(sp.csr_array([[0.0, 3.0], [3.0, 0.0]]))
    np.testing.assert_allclose(nn.gcn_norm(A).to_dense().data, expected)


def test_gcn_norm_of_graphs_without_edges_and_of_sums_that_are_not_positive():
    empty = sg.coo([[], []], [], (3, 3))
    np.testing.assert_array_equal(nn.gcn_norm(empty).to_dense().data, np.eye(3))
    assert nn.gcn_norm(sg.coo([[], []], [], (0, 0))).shape == (0, 0)
    A = sg.coo([[0], [1]], [-3.0], (2, 2), requires_grad=True)
    out = nn.gcn_norm(A)
    assert np.isfinite(out.values.data).all() and not out.to_dense().detach().data[0].any()
    out.to_dense().sum().backward()
    assert np.isfinite(A.grad.values.data).all()


def test_gcn_norm_does_its_index_work_once():
    A = sg.from_scipy(symmetric())
    first = nn.gcn_norm(A)
    second = nn.gcn_norm(A.with_values(A.values * 2))
    assert first.pattern.core is second.pattern.core


def test_gcn_norm_of_unweighted_and_integer_graphs():
    A = sg.coo([[0, 1], [1, 0]], None, (2, 2))
    assert nn.gcn_norm(A).dtype == sg.float32
    B = sg.coo([[0, 1], [1, 0]], [1, 1], (2, 2))
    np.testing.assert_allclose(nn.gcn_norm(B).to_dense().data, 0.5, rtol=1e-6)


@pytest.mark.parametrize("A", [sg.coo([[0], [0]], [1.0], (2, 3)), sg.coo([[0]], [1.0], (2,))])
def test_gcn_norm_needs_a_square_matrix(A):
    with pytest.raises(sg.ShapeError, match="gcn_norm: A must be a square matrix"):
        nn.gcn_norm(A)
    with pytest.raises(TypeError, match="SparseTensor"):
        nn.gcn_norm(sg.zeros(2, 2))


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
@pytest.mark.parametrize("features", ["dense", "sparse"])
def test_gcn_conv(features, fmt):
    A = sg.from_scipy(symmetric().asformat(fmt)).coalesce().requires_grad_()
    x = dense(8, 3) if features == "dense" else sparse(8, 3, fmt, requires_grad=True)
    conv = nn.GCNConv(3, 2, dtype=sg.float64)
    nn.init.uniform_(conv.bias)
    plain = x.detach() if features == "dense" else x.detach().to_dense()
    expected = A.detach().to_dense().data @ plain.data @ conv.weight.data + conv.bias.data
    np.testing.assert_allclose(conv(x, A).detach().data, expected, rtol=1e-12)
    fn, inputs = as_function(conv, x, A)
    assert sg.gradcheck(fn, inputs)
    assert sg.gradgradcheck(fn, inputs)


def test_gcn_conv_through_the_normalisation():
    A = sg.from_scipy(symmetric(5)).requires_grad_()
    conv = nn.GCNConv(3, 2, bias=False, dtype=sg.float64)
    x = dense(5, 3)
    assert sg.gradcheck(lambda A, x: conv(x, nn.gcn_norm(A)), (A, x))


def test_gcn_conv_errors():
    conv, A = nn.GCNConv(3, 2), sg.from_scipy(symmetric(4)).float()
    with pytest.raises(sg.ShapeError, match=r"GCNConv: expected x \(\.\.\., 3\)"):
        conv(sg.zeros(4, 2), A)
    with pytest.raises(sg.ShapeError, match=r"A_hat \(n, n\), got \(5, 3\) and \(4, 4\)"):
        conv(sg.zeros(5, 3), A)


def test_nothing_dense_of_a_million_nodes():
    """A square array of this many nodes would take 4 TB."""
    n = 10**6
    A = sg.coo([[0, 1, n - 1], [1, 0, 5]], [1.0, 1.0, 1.0], (n, n), requires_grad=True)
    x = sg.coo([[0, n - 1], [3, 0]], [1.0, 2.0], (n, 4))
    conv = nn.GCNConv(4, 2)
    with sg.densify(budget=0, on_exceed="raise"):
        conv(x, nn.gcn_norm(A)).sum().backward()
    assert A.grad.nnz == 3 and conv.weight.grad.shape == (4, 2)
