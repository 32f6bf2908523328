"""Laws of products and solvers: adjoints, associativity, what undoes what, and dense autograd."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparsegrad as sg

FORMATS = st.sampled_from(["coo", "csr", "csc"])
BACKENDS = st.sampled_from(["reference", "cpu", "cpu_jit"])
SIZES = st.integers(0, 5)


@st.composite
def matrix(draw: Any, m: int, n: int) -> sg.SparseTensor:
    """A small matrix of whole numbers: duplicates, explicit zeros, any order and format."""
    cells = st.tuples(st.integers(0, m - 1), st.integers(0, n - 1)) if m and n else st.nothing()
    where = draw(st.lists(cells, max_size=10)) if m and n else []
    values = draw(st.lists(st.integers(-3, 3), min_size=len(where), max_size=len(where)))
    indices = np.array(where, int).reshape(-1, 2).T
    A = sg.coo(indices, np.array(values, np.float64), (m, n)).to(draw(FORMATS))
    return A.detach().requires_grad_()


@st.composite
def chain(draw: Any, count: int) -> list[sg.SparseTensor]:
    """Matrices that can be multiplied one after the other."""
    sizes = draw(st.lists(SIZES, min_size=count + 1, max_size=count + 1))
    return [draw(matrix(m, n)) for m, n in pairwise(sizes)]


def dense(x: Any) -> np.ndarray:
    return (x.to_dense() if isinstance(x, sg.SparseTensor) else x).detach().numpy()


def numbers(*sizes: int, seed: int = 0) -> sg.Tensor:
    """Whole numbers, so that every law is exact."""
    return sg.Tensor(np.random.default_rng(seed).integers(-4, 5, sizes).astype(np.float64))


def inner(a: Any, b: Any) -> float:
    return float((dense(a) * dense(b)).sum())


@given(chain(1), BACKENDS)
def test_spmm_and_sddmm_are_adjoint(matrices: list[sg.SparseTensor], backend: str) -> None:
    """<A x, y> = <x, A.T y> = <values of A, sddmm(y, x)>."""
    (A,) = matrices
    x, y = numbers(A.shape[1], 2), numbers(A.shape[0], 2, seed=1)
    with sg.config(backend=backend):
        expected = inner(A @ x, y)
        assert inner(x, A.T @ y) == expected
        assert inner(A.values, sg.sddmm(y, x, A).values) == expected


@given(chain(2), st.data(), BACKENDS)
def test_spgemm_and_spgemm_masked_are_adjoint(
    matrices: list[sg.SparseTensor], data: Any, backend: str
) -> None:
    """<(A @ B)|_P, G> = <A, (G @ B.T)|_A> = <B, (A.T @ G)|_B>, entry by entry."""
    A, B = matrices
    P = data.draw(matrix(A.shape[0], B.shape[1]))
    with sg.config(backend=backend):
        expected = inner(sg.spgemm_masked(A, B, P).values, P.values)
        assert inner(A.values, sg.spgemm_masked(P, B.T, A).values) == expected
        assert inner(B.values, sg.spgemm_masked(A.T, P, B).values) == expected


@given(chain(3), BACKENDS)
def test_products_associate_and_transpose(matrices: list[sg.SparseTensor], backend: str) -> None:
    A, B, C = matrices
    with sg.config(backend=backend):
        np.testing.assert_array_equal(dense((A @ B) @ C), dense(A @ (B @ C)))
        np.testing.assert_array_equal(dense((A @ B).T), dense(B.T @ A.T))
        x = numbers(C.shape[1], 2)
        np.testing.assert_array_equal(dense(A @ B @ C @ x), dense(A @ (B @ (C @ x))))


@given(chain(3), st.data(), BACKENDS)
def test_chains_of_products_agree_with_dense_autograd(
    matrices: list[sg.SparseTensor], data: Any, backend: str
) -> None:
    A, B, C = matrices
    P = data.draw(matrix(A.shape[0], B.shape[1])).detach()
    leaves = [sg.Tensor(dense(M).copy(), requires_grad=True) for M in matrices]
    with sg.config(backend=backend):
        out = (A @ B + sg.spgemm_masked(A, B, P.coalesce())) @ C
        mask = sg.Tensor((dense(sg.ones_like(P)) > 0).astype(np.float64))
        product = leaves[0] @ leaves[1]
        expected = (product + product * mask) @ leaves[2]
        np.testing.assert_array_equal(dense(out), dense(expected))
        upstream = numbers(*expected.shape, seed=2)
        out.backward(upstream)
        expected.backward(upstream)
    for M, leaf in zip(matrices, leaves, strict=True):
        np.testing.assert_array_equal(M.values.grad.data, leaf.grad.data[M.pattern.coords])


@given(chain(1), st.sampled_from(["mean", "max", "min"]), st.permutations(range(10)), BACKENDS)
def test_reductions_do_not_depend_on_the_order_of_entries(
    matrices: list[sg.SparseTensor], reduce: str, order: list[int], backend: str
) -> None:
    A = matrices[0].to("coo")
    order = np.array([i for i in order if i < A.nnz], int)
    B = sg.coo([c[order] for c in A.pattern.coords], A.values.data[order], A.shape).requires_grad_()
    x, g = numbers(A.shape[1], 2).requires_grad_(), numbers(A.shape[0], 2, seed=1)
    A = A.detach().requires_grad_()
    with sg.config(backend=backend):
        out, other = sg.spmm(A, x, reduce=reduce), sg.spmm(B, x, reduce=reduce)
        np.testing.assert_array_equal(dense(out), dense(other))
        da, dx = sg.grad(out, [A.values, x], g)
        db, dx2 = sg.grad(other, [B.values, x], g)
    np.testing.assert_allclose(da.data[order], db.data, atol=1e-12)
    np.testing.assert_allclose(dx.data, dx2.data, atol=1e-12)


@given(SIZES, st.data(), st.booleans(), st.booleans())
def test_solves_undo_products(n: int, data: Any, lower: bool, transpose: bool) -> None:
    A = data.draw(matrix(n, n)) + sg.coo([np.arange(n)] * 2, np.full(n, 40.0), (n, n))
    x = numbers(n, 2)
    np.testing.assert_allclose(dense(sg.spsolve(A, A @ x)), x.data, atol=1e-9)
    np.testing.assert_allclose(dense(sg.gmres(A, A @ x, rtol=1e-12)), x.data, atol=1e-7)
    T = A.coalesce().to("coo")
    keep = T.row >= T.col if lower else T.row <= T.col
    T = sg.coo([T.row[keep], T.col[keep]], T.values.data[keep], (n, n))
    b = (T.T if transpose else T) @ x
    found = sg.triangular_solve(A, b, lower=lower, transpose=transpose)
    np.testing.assert_allclose(dense(found), x.data, atol=1e-9)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=2), st.data(), BACKENDS)
def test_batches_are_stacks_of_products(lead: list[int], data: Any, backend: str) -> None:
    count = int(np.prod(lead))
    m, k, n = data.draw(SIZES), data.draw(SIZES), data.draw(SIZES)
    As = [data.draw(matrix(m, k)) for _ in range(count)]
    Bs = [data.draw(matrix(k, n)) for _ in range(count)]

    def stack(parts: list[sg.SparseTensor]) -> sg.SparseTensor:
        batch = np.repeat(np.arange(count), [p.nnz for p in parts])
        coords = [*np.unravel_index(batch, lead)]
        coords += [np.concatenate([p.pattern.coords[d] for p in parts]) for d in (0, 1)]
        values = np.concatenate([p.values.data for p in parts])
        return sg.coo(coords, values, (*lead, *parts[0].shape))

    x = numbers(*lead, k, 2)
    with sg.config(backend=backend):
        A, B = stack(As), stack(Bs)
        parts = x.reshape(count, k, 2)
        np.testing.assert_array_equal(
            dense(A @ x).reshape(count, m, 2),
            [dense(a @ part) for a, part in zip(As, parts, strict=True)],
        )
        np.testing.assert_array_equal(
            dense(A @ B).reshape(count, m, n),
            [dense(a @ b) for a, b in zip(As, Bs, strict=True)],
        )


@pytest.mark.parametrize(("m", "k", "n", "nnz"), [(50, 40, 100_000, 400), (30, 30, 300, 600)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_backends_agree_on_wide_and_dense_products(
    m: int, k: int, n: int, nnz: int, dtype: str
) -> None:
    """Rows of a product that are listed by sorting, and rows that are read off a bit map."""
    rng = np.random.default_rng(0)

    def random(m: int, n: int) -> sg.SparseTensor:
        values = rng.integers(-4, 5, nnz).astype(dtype)
        return sg.coo([rng.integers(0, m, nnz), rng.integers(0, n, nnz)], values, (m, n))

    A, B, P = random(m, k), random(k, n), random(m, n)
    found = {}
    for backend in ("reference", "cpu", "cpu_jit"):
        with sg.config(backend=backend):
            left = sg.SparseTensor(A.pattern.indices, A.values, A.shape)  # nothing cached
            C = left @ B
            masked = sg.spgemm_masked(left, B, P)
            found[backend] = (C.row, C.col, C.values.data, masked.values.data)
            assert C.is_coalesced
    for backend in ("cpu", "cpu_jit"):
        for ours, theirs in zip(found[backend], found["reference"], strict=True):
            np.testing.assert_array_equal(ours, theirs)
