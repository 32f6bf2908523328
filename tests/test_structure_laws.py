"""Laws of structural ops: random chains of them agree with dense autograd, and what undoes what."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import sparsegrad as sg

FORMATS = st.sampled_from(["coo", "csr", "csc"])


@st.composite
def matrices(draw: Any, square: bool = False) -> sg.SparseTensor:
    """Any small matrix: empty sizes, duplicates, explicit zeros, any order and format."""
    m, n = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    n = m if square else n
    cells = st.tuples(st.integers(0, m - 1), st.integers(0, n - 1)) if m and n else st.nothing()
    where = draw(st.lists(cells, max_size=9)) if m and n else []
    values = draw(st.lists(st.integers(-3, 3), min_size=len(where), max_size=len(where)))
    indices = np.array(where, int).reshape(-1, 2).T
    A = sg.coo(indices, np.array(values, np.float64), (m, n)).to(draw(FORMATS))
    return A.detach().requires_grad_()


@st.composite
def part(draw: Any, n: int) -> Any:
    """An index of one dimension of size n."""
    kinds = ["slice", "array", "mask"] + (["int"] if n else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "slice":
        return draw(st.slices(n))
    if kind == "int":
        return draw(st.integers(-n, n - 1))
    if kind == "mask":
        return np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
    ids = st.integers(-n, n - 1) if n else st.nothing()
    return np.array(draw(st.lists(ids, max_size=4)) if n else [], int)


def dense_leaf(A: sg.SparseTensor) -> sg.Tensor:
    return sg.Tensor(A.detach().to_dense().numpy().copy(), requires_grad=True)


def same(A: sg.SparseTensor, x: sg.Tensor, out: Any, expected: Any) -> None:
    """Equal results, and equal gradients at the entries under a random upstream."""
    found = out.to_dense() if isinstance(out, sg.SparseTensor) else out
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.detach().data, expected.detach().data, atol=1e-12)
    upstream = sg.Tensor(np.random.default_rng(0).standard_normal(expected.shape))
    found.backward(upstream)
    expected.backward(upstream)
    np.testing.assert_allclose(A.values.grad.data, x.grad.data[A.pattern.coords], atol=1e-12)


@given(matrices(), st.data())
def test_indexing_is_that_of_dense_tensors(A: sg.SparseTensor, data: Any) -> None:
    parts = [data.draw(part(n)) for n in A.shape]
    arrays = [p for p in parts if isinstance(p, np.ndarray)]
    if len(arrays) == 2:  # as NumPy pairs them
        a, b = (p.nonzero()[0] if p.dtype == bool else p for p in arrays)
        parts = [a[: len(b)], b[: len(a)]]
    extra = data.draw(st.integers(0, 2 * len(parts)))
    index = [*parts]
    if extra <= len(parts):
        index.insert(extra, None)
    x = dense_leaf(A)
    out = A[tuple(index)]
    same(A, x, out, x[tuple(index)])


@given(matrices())
def test_the_positive_cells_of_a_matrix(A: sg.SparseTensor) -> None:
    x = dense_leaf(A)
    same(A, x, A[A.detach() > 0], x[x.detach() > 0])


@given(matrices(), st.data())
def test_chains_of_structural_ops(A: sg.SparseTensor, data: Any) -> None:
    x = dense_leaf(A)
    out, expected = A * 1.0, x * 1.0
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(sorted(CHAIN)))
        out, expected = CHAIN[name](data, out, expected)
        if out.ndim == 0:
            break
    same(A, x, out, expected)


def _reshape(data: Any, a: Any, x: Any) -> Any:
    size = int(np.prod(a.shape))
    divisors = [d for d in range(1, size + 1) if size % d == 0] or [0]
    d = data.draw(st.sampled_from(divisors))
    shape = data.draw(st.permutations([d, size // d if d else 3, 1]))
    return sg.reshape(a, shape), sg.reshape(x, shape)


def _permute(data: Any, a: Any, x: Any) -> Any:
    order = data.draw(st.permutations(range(a.ndim)))
    return sg.permute(a, order), sg.permute(x, order)


def _cat(data: Any, a: Any, x: Any) -> Any:
    d = data.draw(st.integers(-a.ndim, a.ndim - 1))
    return sg.cat([a, a * 2.0], d), sg.cat([x, x * 2.0], d)


def _stack(data: Any, a: Any, x: Any) -> Any:
    d = data.draw(st.integers(-a.ndim - 1, a.ndim))
    return (sg.stack([a, -a], d), sg.stack([x, -x], d)) if a.ndim < 4 else (a, x)


def _select(data: Any, a: Any, x: Any) -> Any:
    d = data.draw(st.integers(0, a.ndim - 1))
    n = a.shape[d]
    ids = data.draw(st.lists(st.integers(0, n - 1), max_size=4)) if n else []
    ids = np.array(ids, int)
    return sg.index_select(a, d, ids), sg.index_select(x, d, ids)


def _slice(data: Any, a: Any, x: Any) -> Any:
    index = tuple(data.draw(st.slices(n)) for n in a.shape)
    return a[index], x[index]


def _unsqueeze(data: Any, a: Any, x: Any) -> Any:
    d = data.draw(st.integers(-a.ndim - 1, a.ndim))
    return (sg.unsqueeze(a, d), sg.unsqueeze(x, d)) if a.ndim < 4 else (a, x)


def _matrix_only(op: Any, ref: Any) -> Any:
    return lambda data, a, x: (op(a), ref(x)) if a.ndim == 2 else (a, x)


CHAIN = {
    "reshape": _reshape,
    "permute": _permute,
    "cat": _cat,
    "stack": _stack,
    "select": _select,
    "slice": _slice,
    "unsqueeze": _unsqueeze,
    "squeeze": lambda data, a, x: (sg.squeeze(a), sg.squeeze(x)) if set(a.shape) != {1} else (a, x),
    "coalesce": lambda data, a, x: (sg.coalesce(a), x),
    "block_diag": _matrix_only(lambda a: sg.block_diag(a, a), lambda x: sg.block_diag(x, x)),
    "format": lambda data, a, x: (a.to(data.draw(FORMATS)) if a.ndim == 2 else a, x),
    "loops": _matrix_only(sg.remove_self_loops, lambda x: x * (1 - np.eye(*x.shape))),
}


@given(matrices(), st.data())
def test_what_undoes_what(A: sg.SparseTensor, data: Any) -> None:
    same_as = A.detach().to_dense().data
    m, n = A.shape
    order = np.array(data.draw(st.permutations(range(m))), int)
    for back in (
        A[order][np.argsort(order)],
        A[::-1, ::-1][::-1, ::-1],
        A.reshape(n, m).reshape(m, n),
        A.unsqueeze(1).squeeze(1),
        sg.permute(sg.permute(A, (1, 0)), (1, 0)),
        sg.cat([A[:1], A[1:]]),
        sg.cat([A[:, :2], A[:, 2:]], 1),
        sg.stack([A, A])[1],
        sg.block_diag(A, A)[m:, n:],
        sg.set_diagonal(A, sg.diagonal(A)),
        sg.remove_self_loops(A) + sg.sparse_diags(sg.diagonal(A), 0, (m, n), A.format),
        sg.top_k(A, A.nnz),
        sg.top_k(A, n, dim=1),
        sg.drop_zeros(A),
        sg.sparse_mask(A, A),
        sg.sparse_mask(A.to_dense(), A),
    ):
        np.testing.assert_array_equal(back.detach().to_dense().data, same_as)


@given(matrices(square=True))
def test_symmetrize_is_symmetric_and_idempotent(A: sg.SparseTensor) -> None:
    for how in ("mean", "max"):
        S = sg.symmetrize(A, how)
        dense = S.detach().to_dense().data
        np.testing.assert_array_equal(dense, dense.T)
        np.testing.assert_allclose(sg.symmetrize(S, how).detach().to_dense().data, dense)
        assert S.format == A.format
        assert S.is_coalesced


@given(matrices(), matrices())
def test_repattern_is_sparse_mask_in_place(A: sg.SparseTensor, B: sg.SparseTensor) -> None:
    if A.shape != B.shape:
        B = sg.coo(np.zeros((2, 0), int), None, A.shape).to(B.format)
    A = A.detach().coalesce()
    A = A.with_values(A.values.clone().requires_grad_())
    target = B.coalesce().pattern
    expected = sg.sparse_mask(A, target).detach()
    moved = A.repattern_(target)
    np.testing.assert_array_equal(A.values.data, expected.values.data)
    assert moved.kept.sum() == len(moved.source)


def _random_part(rng: np.random.Generator, n: int) -> Any:
    kind = rng.integers(6)
    if kind == 0:
        ends = [None if rng.random() < 0.4 else int(rng.integers(-n - 2, n + 3)) for _ in range(2)]
        return slice(*ends, int(rng.choice([1, 2, -1, -2])))
    if kind == 1 and n:
        return int(rng.integers(-n, n))
    if kind == 2:
        return rng.random(n) < 0.5
    if kind == 3 and n:
        return rng.integers(-n, n, rng.integers(0, 4))
    if kind == 4 and n:
        return rng.integers(-n, n, (2, 2))
    return slice(None)


@given(st.integers(0, 2**32))
def test_any_index_of_any_tensor(seed: int) -> None:
    """Up to three sparse and two dense dimensions; NumPy's rules, or its refusal."""
    rng = np.random.default_rng(seed)
    sparse = tuple(rng.integers(0, 4, rng.integers(1, 4)).tolist())
    dense = tuple(rng.integers(0, 3, rng.integers(0, 3)).tolist())
    nnz = int(rng.integers(0, 8)) if min(sparse) else 0
    indices = np.array([rng.integers(0, max(1, n), nnz) for n in sparse])
    A = sg.coo(indices, rng.standard_normal((nnz, *dense)), sparse + dense)
    A = A.to(str(rng.choice(["coo", "csr", "csc"])) if len(sparse) == 2 else "coo")
    A = A.detach().requires_grad_()
    index = [_random_part(rng, n) for n in (sparse + dense)[: rng.integers(0, A.ndim + 1)]]
    if rng.random() < 0.5:
        index.insert(int(rng.integers(0, len(index) + 1)), None)
    x = dense_leaf(A)
    try:
        expected = x[tuple(index)]
    except (IndexError, ValueError):
        with np.testing.assert_raises(IndexError):
            A[tuple(index)]
        return
    try:
        out = A[tuple(index)]
    except IndexError as error:
        if "in two steps" in str(error):  # arrays for dense dimensions beside others
            return
        raise
    same(A, x, out, expected)


def test_gradients_of_merges_whose_patterns_come_out_equal() -> None:
    """Equal patterns share one core, and with it what is known of the pattern: never what is known
    of the duplicates that either was made of."""
    A = sg.coo([[0, 0, 1], [0, 0, 0]], [1.0, 2.0, 3.0], (2, 1), requires_grad=True)
    B = sg.coo([[1, 0, 1, 1], [0, 0, 0, 0]], [4.0, 5.0, 6.0, 7.0], (2, 1), requires_grad=True)
    a, b = A.coalesce(), B.coalesce()
    assert a.pattern.same_as(b.pattern)
    g = sg.tensor([10.0, 20.0])
    a.values.backward(g)
    b.values.backward(g)
    np.testing.assert_array_equal(A.values.grad.data, [10, 10, 20])
    np.testing.assert_array_equal(B.values.grad.data, [20, 10, 20, 20])
