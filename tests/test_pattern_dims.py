"""Patterns of any number of dimensions, and of more cells than 64 bits count."""

from __future__ import annotations

import numpy as np
import pytest

import sparsegrad as sg
from patterns import FORMATS, MATRICES, dense_of

# ---- any number of dimensions ------------------------------------------------------------------
SHAPES = [(7,), (4, 3), (3, 2, 4), (2, 3, 2, 3), (2, 1, 3, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dense", [(), (2,), (2, 0), (1, 3)], ids=str)
def test_coo_of_any_rank_with_dense_dimensions(
    shape: tuple[int, ...], dense: tuple[int, ...], backend: str
) -> None:
    rng = np.random.default_rng(len(shape))
    coords = np.stack([rng.integers(0, n, 20) for n in shape])
    values = rng.standard_normal((20, *dense))
    want, cells = np.zeros((*shape, *dense)), int(np.prod(shape))
    np.add.at(want, tuple(coords), values)
    A = sg.coo(coords, values, (*shape, *dense), requires_grad=True)
    assert (A.sparse_dim, A.dense_dim, A.ndim) == (len(shape), len(dense), len(shape) + len(dense))
    assert A.shape == want.shape and A.numel() == want.size
    np.testing.assert_allclose(A.to_dense().detach().numpy(), want, atol=1e-13)
    C = A.coalesce()
    order = np.unique(np.ravel_multi_index(tuple(coords), shape))
    np.testing.assert_array_equal(C.indices, np.stack(np.unravel_index(order, shape)))
    np.testing.assert_allclose(C.values.detach().numpy(), want.reshape(cells, *dense)[order],
                               atol=1e-13)  # fmt: skip
    g = rng.standard_normal(C.values.shape)
    C.values.backward(sg.Tensor(g))
    full = np.zeros(want.shape)
    full.reshape(cells, *dense)[order] = g
    np.testing.assert_array_equal(A.values.grad.data, full[tuple(coords)])
    np.testing.assert_array_equal(A.grad.indices, C.indices)
    np.testing.assert_array_equal(A.grad.values.data, g)


@pytest.mark.parametrize("fmt", FORMATS)
def test_hybrid_matrices_convert(fmt: str, backend: str) -> None:
    coords, values, shape = MATRICES["duplicates"]
    values = values[:, None] * [1.0, -2.0, 0.0]
    A = sg.coo(coords, values, (*shape, 3)).to(fmt)
    want = dense_of("duplicates")[..., None] * [1.0, -2.0, 0.0]
    for other in FORMATS:
        np.testing.assert_array_equal(A.to(other).to_dense().data, want)
        np.testing.assert_array_equal(A.to(other).coalesce().to_dense().data, want)
    with pytest.raises(sg.ShapeError, match="to_scipy: scipy has no dense dimensions"):
        A.to_scipy()


@pytest.mark.parametrize("dims", [4, 7])
def test_ac_55_ac_56_keys_that_overflow_64_bits(dims: int, backend: str) -> None:
    """(10^6)^4 and seven dimensions of 2584 to 75025: sorted without being linearised."""
    shape = (10**6,) * 4 if dims == 4 else (2584, 4181, 6765, 10946, 17711, 28657, 75025)
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, n, 30_000) for n in shape])
    coords[:, 10_000:20_000] = coords[:, :10_000]  # duplicates
    coords[:, 0] = [n - 1 for n in shape]
    values = rng.integers(1, 100, 30_000).astype(float)
    A = sg.coo(coords, values, shape, requires_grad=True)
    C = A.coalesce()
    want: dict[tuple[int, ...], float] = {}
    for cell, v in zip(map(tuple, coords.T.tolist()), values.tolist(), strict=True):
        want[cell] = want.get(cell, 0.0) + v
    assert C.is_coalesced and not A.is_coalesced
    assert C.indices.min() >= 0
    assert list(map(tuple, C.indices.T.tolist())) == sorted(want)
    np.testing.assert_array_equal(C.values.detach().numpy(), [want[c] for c in sorted(want)])
    C.sum().backward()
    np.testing.assert_array_equal(A.values.grad.data, np.ones(30_000))
    assert 0 <= A.density < 1e-15
    total = A.detach() + A.detach()
    np.testing.assert_array_equal(total.coalesce().values.data, 2 * C.values.detach().numpy())
    product = A.detach() * C.detach()
    np.testing.assert_array_equal(product.values.data, C.values.detach().numpy() ** 2)


def test_ac_55_matrices_with_more_cells_than_64_bits(backend: str) -> None:
    """2^40 x 2^40: the dimension that would overflow in rows * n + column."""
    n = 2**40
    rng = np.random.default_rng(0)
    coords = rng.integers(0, n, (2, 10_000))
    coords[:, 5000:] = coords[:, :5000]
    A = sg.coo(coords, np.ones(10_000), (n, n))
    C = A.coalesce()
    assert C.row.dtype == np.int64 and C.nnz == 5000
    order = np.lexsort((coords[1, :5000], coords[0, :5000]))
    np.testing.assert_array_equal(C.indices, coords[:, :5000][:, order])
    np.testing.assert_array_equal(C.values.data, np.full(5000, 2.0))
    T = A.T.coalesce()
    order = np.lexsort((coords[0, :5000], coords[1, :5000]))
    np.testing.assert_array_equal(T.indices, coords[::-1, :5000][:, order])
