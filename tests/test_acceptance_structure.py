"""Acceptance cases of structural ops by id, and what the op table cannot express."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg

FORMATS = ("coo", "csr", "csc")


def matrix(fmt: str = "coo", **options: Any) -> sg.SparseTensor:
    """[[1, 0, 2], [0, 3, 0]]."""
    A = sg.coo([[0, 0, 1], [0, 2, 1]], [1.0, 2.0, 3.0], (2, 3)).to(fmt)
    return A.requires_grad_(options.get("requires_grad", False))


# ---- indexing ----------------------------------------------------------------------------------
def test_ac_21_backward_through_one_cell() -> None:
    a = sg.coo([[0]], [1.0], (1,), requires_grad=True)
    a[0].backward()
    assert isinstance(a.grad, sg.SparseTensor)
    assert a.grad.shape == (1,)
    np.testing.assert_array_equal(a.grad.indices, [[0]])
    np.testing.assert_array_equal(a.grad.values.data, [1])


@pytest.mark.parametrize("fmt", FORMATS)
def test_ac_21_siblings(fmt: str) -> None:
    for index, expected in (
        ((0, 2), [0, 1, 0]), ((1, 0), [0, 0, 0]), (0, [1, 1, 0]), ((slice(None), 1), [0, 0, 1]),
        (([0, 0], [2, 2]), [0, 2, 0]), (np.array([[1, 0, 1], [0, 0, 0]], bool), [1, 1, 0]),
    ):  # fmt: skip
        A = matrix(fmt, requires_grad=True)
        out = A[index]
        out.sum().backward()
        assert A.grad.pattern.same_as(A.pattern)
        np.testing.assert_array_equal(sg.coalesce(A.grad.to("coo")).values.data, expected)


def test_a_cell_is_dense_and_duplicates_of_it_add_up() -> None:
    A = sg.coo([[0, 0, 1], [1, 1, 0]], [0.25, 0.5, 9.0], (2, 2), requires_grad=True)
    cell = A[0, 1]
    assert isinstance(cell, sg.Tensor)
    assert cell.shape == ()
    assert cell.item() == 0.75
    cell.backward()
    np.testing.assert_array_equal(A.values.grad.data, [1, 1, 0])  # per stored value
    assert A.grad.to_dense().data[0, 1] == 1  # of the matrix: not 2


def test_what_is_sparse_and_in_which_format() -> None:
    for fmt in FORMATS:
        A = matrix(fmt)
        assert A[1:, ::-1].format == fmt
        assert A[[1, 0]].format == fmt
        assert (A[0].format, A[0].shape) == ("coo", (3,))
        assert A[None].shape == (1, 2, 3)
        assert A[:] is A
        assert A[range(1)].shape == (1, 3)
        assert len(list(A)) == 2
    H = sg.coo([[0, 1], [1, 0]], np.ones((2, 4), np.float32), (2, 2, 4))
    assert isinstance(H[0, 1], sg.Tensor)
    assert H[0, 1].shape == (4,)
    assert (H[0].sparse_dim, H[0].dense_dim) == (1, 1)
    assert (H[..., 0].sparse_dim, H[..., 0].dense_dim) == (2, 0)


def test_an_absent_entry_is_zero_whatever_is_stored_elsewhere() -> None:
    """Not zero times what lies at some other place, which may be infinite or not a number."""
    A = sg.coo([[0, 1], [0, 1]], [np.inf, 2.0], (2, 2), requires_grad=True)
    B = sg.coo([[1], [0]], [1.0], (2, 2))
    assert sg.sparse_mask(A, B).values.tolist() == [0]
    assert sg.maximum(A, B).to_dense().tolist() == [[np.inf, 0], [1, 2]]
    assert (A > B).to_dense().tolist() == [[True, False], [False, True]]
    (g,) = sg.grad(A * 2, A, sg.coo([[0], [1]], [np.nan], (2, 2)))
    assert g.values.tolist() == [0, 0]


def test_a_sparse_mask_is_an_index() -> None:
    A = matrix()
    mask = sg.coo([[0, 1, 0], [2, 1, 0]], [True, True, False], (2, 3))
    np.testing.assert_array_equal(A[mask].to_dense().data, [2, 3])


@pytest.mark.parametrize("fmt", ["csr", "csc"])
def test_rows_of_a_large_matrix_do_not_touch_the_rest(fmt: str) -> None:
    n, per = 200_000, 5
    indptr = np.arange(0, n * per + 1, per)
    make = sg.csr if fmt == "csr" else sg.csc
    A = make(indptr, np.tile(np.arange(per), n), np.ones(n * per, np.float32), (n, n))
    dim = 0 if fmt == "csr" else 1
    ids = np.arange(100) * 1999
    sg.index_select(A, dim, ids)  # which loads kernels
    gc.collect()
    tracemalloc.start()
    rows = sg.index_select(A, dim, ids)
    some = A[5:95] if dim == 0 else A[:, 5:95]
    one = A[7] if dim == 0 else A[:, 7]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (rows.nnz, some.nnz, one.nnz) == (500, 450, 5)
    assert peak < 200_000  # nothing of length n or nnz was made: A has 1 000 000 entries
    assert A.pattern.cache_nbytes == 0


def test_plans_are_kept_once_and_boundedly() -> None:
    A = matrix("csr")
    assert A[0:1].pattern is A[0:1].pattern
    assert sg.cat([A, A]).pattern is sg.cat([A, A]).pattern
    assert A.reshape(3, 2).pattern is A.reshape(3, 2).pattern
    from sparsegrad.structure import plan

    B = sg.random_sparse(300, 3, 0.5)
    for i in range(300):
        B[i]
    assert len(plan._PLANS) <= plan._PLANS_LIMIT
    size = len(plan._PLANS)
    del B
    assert len(plan._PLANS) < size  # plans go with their patterns


# ---- duplicates, padding, shapes ---------------------------------------------------------------
def test_ac_26_sum_of_duplicates_is_per_value_and_one_per_cell() -> None:
    A = sg.coo([[0, 0]], [0.25, 0.75], (2,), requires_grad=True)
    for reach in (lambda a: a.sum(), lambda a: a[0], lambda a: a.reshape(1, 2).sum(),
                  lambda a: sg.cat([a, a])[0], lambda a: sg.index_select(a, 0, [0, 0])[1],
                  lambda a: sg.diag(a)[0, 0]):  # fmt: skip
        A.values.grad = None
        reach(A).backward()
        np.testing.assert_array_equal(A.values.grad.data, [1, 1])
        np.testing.assert_array_equal(A.grad.values.data, [1])


def test_ac_27_the_shape_is_never_guessed() -> None:
    row, col = [0, 1, 2, 3, 4], [2, 2, 3, 4, 5]
    with pytest.raises(TypeError):
        sg.coo([row, col], None)  # type: ignore[call-arg]
    with pytest.raises(sg.PatternError, match=r"index 5 at position 4 is outside \[0, 5\)"):
        sg.coo([row, col], None, (6, 5))
    A = sg.coo([row, col], np.ones(5), (6, 6), requires_grad=True)
    x = sg.tensor(np.random.default_rng(0).standard_normal((6, 5)), requires_grad=True)
    upstream = np.random.default_rng(1).standard_normal((6, 5))
    (sg.gcn_norm(A) @ x).backward(sg.tensor(upstream))
    dense = sg.tensor(A.to_dense().detach().numpy() + np.eye(6), requires_grad=True)
    scale = sg.sum(dense, 1) ** -0.5
    y = sg.tensor(x.detach().numpy(), requires_grad=True)
    ((dense * sg.reshape(scale, (-1, 1)) * scale) @ y).backward(sg.tensor(upstream))
    np.testing.assert_allclose(x.grad.data, y.grad.data)
    np.testing.assert_allclose(A.grad.values.data, dense.grad.data[row, col])


@pytest.mark.parametrize("fmt", FORMATS)
def test_ac_35_batches_of_different_nnz_have_no_padding(fmt: str) -> None:
    one = sg.coo([[0], [2]], [7.0], (2, 3)).to(fmt).requires_grad_()
    two = sg.coo([[0, 1], [0, 1]], [1.0, 2.0], (2, 3)).to(fmt).requires_grad_()
    for join, at in ((sg.block_diag, (2, 2)), (lambda a, b: sg.stack([a, b]), 3)):
        batch = join(one, two)
        assert batch.nnz == 3
        assert batch.sparse_dim == (len(at) if isinstance(at, tuple) else at)
        assert batch.sum().item() == 10
        one.values.grad = two.values.grad = None
        batch.sum().backward()
        np.testing.assert_array_equal(one.grad.values.data, [1])
        np.testing.assert_array_equal(two.grad.values.data, [1, 1])


def test_ac_44_duplicates_of_bool_are_or() -> None:
    A = sg.csr([0, 2, 5], [1, 0, 0, 1, 1], [True, True, True, False, True], (2, 2))
    for B in (A, A.coalesce(), A.T.T, A.to("csc"), A[:, ::-1][:, ::-1], A.reshape(4).reshape(2, 2)):
        assert B.dtype == bool
        np.testing.assert_array_equal(B.to_dense().data, np.ones((2, 2), bool))
    assert A[1, 1].item() is True
    np.testing.assert_array_equal(sg.diagonal(A).data, [True, True])


def test_ac_48_what_is_overwritten_has_no_gradient() -> None:
    A = sg.coo([[0, 0, 0], [0, 0, 1]], [1.0, 2.0, 3.0], (2, 2), requires_grad=True)
    v = sg.tensor([5.0, 6.0], requires_grad=True)
    sg.set_diagonal(A, v).sum().backward()
    np.testing.assert_array_equal(A.values.grad.data, [0, 0, 1])
    np.testing.assert_array_equal(v.grad.data, [1, 1])
    with pytest.raises(TypeError):
        A[0, 0] = 1.0  # type: ignore[index]


# ---- nothing stored ----------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", [(3, 3), (0, 0), (0, 4), (4, 0)])
def test_ac_69_empty_tensors_pass_forward_and_backward(fmt: str, shape: tuple[int, int]) -> None:
    A = sg.coo(np.zeros((2, 0), int), np.zeros(0, np.float32), shape).to(fmt).requires_grad_()
    ops = [
        lambda a: a[:, ::-1], lambda a: a[1:], lambda a: a[None], lambda a: a[np.zeros(0, int)],
        lambda a: sg.reshape(a, (shape[1], shape[0])), lambda a: sg.unsqueeze(a, 1),
        lambda a: sg.cat([a, a]), lambda a: sg.stack([a, a]), lambda a: sg.block_diag(a, a),
        sg.diagonal, lambda a: sg.fill_diagonal(a, 2.0), sg.remove_self_loops, sg.drop_zeros,
        lambda a: sg.top_k(a, 3), lambda a: sg.top_k(a, 3, 0), sg.row_normalize,
        lambda a: sg.sparse_mask(a, a), lambda a: a.T, lambda a: sg.permute(a, (1, 0)),
    ]  # fmt: skip
    if shape[0] == shape[1]:
        ops += [sg.symmetrize, lambda a: sg.symmetrize(a, "max"), sg.gcn_norm, sg.add_self_loops]
    for op in ops:
        out = op(A)
        A.values.grad = None
        out.sum().backward()
        assert A.grad.nnz == 0
        assert A.grad.shape == shape


def test_ac_69_softmax_of_nothing() -> None:
    A = sg.coo(np.zeros((2, 0), int), np.zeros(0, np.float32), (3, 3), requires_grad=True)
    for dim in (0, 1):
        out = sg.softmax(A, dim)
        assert out.nnz == 0
        out.backward(sg.ones_like(out))
        assert A.grad.nnz == 0


def test_ac_70_nothing_stored_is_coalesced_and_has_indices() -> None:
    for A in (
        sg.tensor(np.zeros(0)).to_sparse(), sg.rand(2, 0, 3).to_sparse(),
        sg.coo(np.zeros((2, 0), int), [], (2, 2)), matrix()[:0], sg.prune(matrix(), 9),
        sg.zeros(3, 3).to_sparse(), sg.top_k(matrix(), 0), sg.remove_self_loops(sg.sparse_eye(2)),
        sg.random_sparse(5, 0), sg.sparse_eye(0),
    ):  # fmt: skip
        assert A.nnz == 0
        assert A.is_coalesced
        assert A.indices.shape == (A.sparse_dim, 0)


def test_ac_74_nothing_stored_gives_shapes_and_zero_gradients() -> None:
    A = sg.coo([[], []], np.zeros(0, "f4"), (0, 1))
    w = sg.ones(1, 3, requires_grad=True)
    out = A @ w
    assert out.shape == (0, 3)
    out.sum().backward()
    np.testing.assert_array_equal(w.grad.data, np.zeros((1, 3)))


def test_ac_72_gradients_of_nothing() -> None:
    x, y = (
        sg.coo(np.zeros((2, 0), int), np.zeros((0, 2)), (0, 0, 2), requires_grad=True)
        for _ in range(2)
    )
    for op in (lambda a, b: a + b, lambda a, b: sg.cat([a, b]), lambda a, b: sg.stack([a, b]),
               lambda a, b: sg.cat([a, b], 2), sg.block_diag):  # fmt: skip
        assert sg.gradcheck(op, [x, y])
    assert sg.gradcheck(sg.relu, x)
    for op in (lambda a: a[..., 0], lambda a: a[:, :, ::-1], lambda a: sg.permute(a, (1, 0, 2)),
               lambda a: sg.reshape(a, (0, 5, 2))):  # fmt: skip
        assert sg.gradcheck(op, x)


# ---- shapes beyond 64 bits ---------------------------------------------------------------------
def test_reshape_of_more_cells_than_64_bits() -> None:
    n = 10**6
    indices = np.random.default_rng(0).integers(0, n, (4, 5))
    A = sg.coo(indices, np.arange(5.0), (n, n, n, n))
    B = A.reshape(n * n, n, n)
    assert B.indices.min() >= 0
    assert B.reshape(A.shape).pattern.same_as(A.pattern)
    big = sg.coo([[10**10 - 1, 3], [10**10 - 2, 4]], [1.0, 2.0], (10**10, 10**10))
    odd = big.reshape(10**5, 10**15)  # merged they would need 67 bits
    whole = [i * 10**10 + j for i, j in ((10**10 - 1, 10**10 - 2), (3, 4))]
    assert [tuple(c) for c in odd.indices.T.tolist()] == [divmod(w, 10**15) for w in whole]
    assert odd.reshape(big.shape).pattern.same_as(big.pattern)


# ---- constructors ------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", FORMATS)
def test_sparse_constructors(fmt: str) -> None:
    eye = sg.sparse_eye(3, 5, fmt, requires_grad=True)
    assert (eye.format, eye.requires_grad, eye.is_coalesced) == (fmt, True, True)
    np.testing.assert_array_equal(eye.to_dense().detach().data, sg.eye(3, 5).data)
    sg.manual_seed(3)
    A = sg.random_sparse(30, 40, 0.1, fmt, values="normal", dtype=sg.float64)
    assert (A.format, A.nnz, A.is_coalesced, A.dtype) == (fmt, 120, True, np.float64)
    sg.manual_seed(3)
    B = sg.random_sparse(30, 40, 0.1, fmt, values="normal", dtype=sg.float64)
    np.testing.assert_array_equal(A.to_dense().data, B.to_dense().data)
    assert sg.random_sparse(4, 5, 1.0, fmt).nnz == 20
    d = sg.sparse_diags([sg.ones(3), 2.0], [0, 1], (3, 4), fmt)
    assert (d.format, d.is_coalesced) == (fmt, True)
    np.testing.assert_array_equal(
        d.to_dense().data, sp.diags_array([1.0, 2.0], offsets=[0, 1], shape=(3, 4)).toarray()
    )


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: sg.random_sparse(3, 3, 2),
            "random_sparse: density must be between 0 and 1, got 2",
        ),
        (lambda: sg.random_sparse(3, -3), "random_sparse: sizes must be non-negative"),
        (lambda: sg.random_sparse(3, 3, values="ones"), "random_sparse: values must be"),
        (lambda: sg.sparse_eye(-1), "sparse_eye: sizes must be non-negative"),
    ],
)
def test_constructors_refuse(call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


def test_one_gcn_norm() -> None:
    assert sg.nn.gcn_norm is sg.gcn_norm
    A = sg.coo([[0, 1], [1, 0]], [1, 1], (2, 2))  # integer weights
    np.testing.assert_allclose(sg.gcn_norm(A).to_dense().data, [[0.5, 0.5], [0.5, 0.5]])
    alone = sg.coo([[0], [1]], [1.0], (2, 2), requires_grad=True)  # row 1 has degree 0
    out = sg.gcn_norm(alone, self_loops=False)
    out.sum().backward()
    assert np.isfinite(alone.grad.values.data).all()
    np.testing.assert_array_equal(out.detach().to_dense().data, np.zeros((2, 2)))


# ---- pruning -----------------------------------------------------------------------------------
def test_prune_keeps_nan_and_takes_the_sum_of_duplicates() -> None:
    A = sg.coo([[0, 0, 1, 2]], [1.0, -1.0, np.nan, 0.5], (3,))
    np.testing.assert_array_equal(A.prune(0.1).values.data, [np.nan, 0.5])
    assert A.prune(0.1).indices.tolist() == [[1, 2]]
    np.testing.assert_array_equal(A.top_k(1).values.data, [np.nan])


def test_equal_and_close_compare_entries_wherever_they_are_stored() -> None:
    A = sg.coo([[0, 1, 1], [0, 0, 0]], [1.0, 2.0, -2.0], (2, 2))
    B = sg.csr([0, 1, 2], [0, 1], [1.0, 0.0], (2, 2))
    assert sg.equal(A, B) and sg.allclose(A, B)
    assert not sg.equal(A, B * 1.000001) and sg.allclose(A, B * 1.000001)
    assert not sg.allclose(A, B * 2) and not sg.equal(A, sg.sparse_eye(3))


def test_top_k_ties_keep_the_first() -> None:
    A = sg.coo([[1, 0, 0], [0, 1, 0]], [2.0, 2.0, -2.0], (2, 2))
    assert sg.top_k(A, 2).coalesce().indices.tolist() == [[0, 0], [0, 1]]
    row = sg.csr([0, 9], [8, 7, 6, 5, 4, 3, 2, 1, 0], [1.0, 2, 1, 2, 1, 2, 1, 2, 1], (1, 9))
    assert sorted(sg.top_k(row, 5, 1).col.tolist()) == [0, 1, 3, 5, 7]
    assert sorted(sg.top_k(row.T, 3, 0).row.tolist()) == [1, 3, 5]
    lowest = np.iinfo(np.int64).min
    B = sg.coo([[0, 1]], [lowest, 5], (2,))
    assert sg.top_k(B, 1).indices.tolist() == [[0]]
    assert sg.top_k(B, 1, by="value").indices.tolist() == [[1]]


@pytest.mark.parametrize("fmt", FORMATS)
def test_repattern(fmt: str) -> None:
    A = sg.nn.Parameter(sg.coo([[0, 0, 1], [0, 2, 1]], [1.0, 2.0, 3.0], (2, 3)).to(fmt))
    values, stale = A.values, A * A
    (A * 2).sum().backward()
    momentum = sg.Tensor(np.array([[10.0], [20.0], [30.0]]))
    order = [float(v) for v in A.values.data]
    target = sg.coo([[0, 1, 1], [2, 0, 1]], None, (2, 3)).to(fmt)
    plan = A.repattern_(target)
    assert A.values is values
    assert A.grad is None
    assert A.pattern is target.pattern
    assert A.requires_grad
    np.testing.assert_array_equal(A.detach().to_dense().data, [[0, 0, 2], [0, 3, 0]])
    moved = plan.apply(momentum)
    assert isinstance(moved, sg.Tensor)
    by_value = dict(zip(order, momentum.data[:, 0], strict=True)) | {0.0: 0.0}
    np.testing.assert_array_equal(moved.data[:, 0], [by_value[float(v)] for v in A.values.data])
    np.testing.assert_array_equal(plan.apply(momentum.data), moved.data)
    with pytest.raises(sg.GraphError, match="changed in place"):
        stale.sum().backward()
    (A @ sg.ones(3, 1)).sum().backward()
    np.testing.assert_array_equal(A.grad.values.data, [1, 1, 1])
    optimizer = sg.optim.SGD([A], lr=1.0)
    optimizer.step()
    np.testing.assert_array_equal(A.detach().to_dense().data, [[0, 0, 1], [-1, 2, 0]])


def test_optimizer_state_follows_a_new_pattern() -> None:
    A = sg.nn.Parameter(sg.coo([[0, 0, 1], [0, 2, 1]], [1.0, 2.0, 3.0], (2, 3)))
    optimizer = sg.optim.Adam([A], lr=0.1)
    (A @ sg.ones(3, 1)).sum().backward()
    optimizer.step()
    plan = A.repattern_(sg.coo([[0, 1, 1], [2, 0, 1]], None, (2, 3)))
    (state,) = optimizer.state.values()
    for name, held in state.items():
        if isinstance(held, sg.Tensor):
            before = held.data
            state[name] = plan.apply(held)
            np.testing.assert_array_equal(state[name].data, [before[1], 0, before[2]])
    (A @ sg.ones(3, 1)).sum().backward()
    optimizer.step()
    assert np.isfinite(A.values.data).all()


def test_the_gradient_of_what_is_read_on_a_pattern_is_sparse() -> None:
    x = sg.rand(4, 5, requires_grad=True)
    P = sg.coo([[0, 3], [1, 4]], None, (4, 5))
    (P.mask(x) * 2).sum().backward()
    assert isinstance(x.grad, sg.SparseTensor)
    assert x.grad.nnz == 2
    (x * 1).sum().backward()
    assert isinstance(x.grad, sg.Tensor)
    assert x.grad.data.sum() == 24


def test_repattern_from_and_to_nothing() -> None:
    A = sg.coo(np.zeros((2, 0), int), np.zeros(0, np.float32), (2, 2), requires_grad=True)
    A.repattern_(sg.sparse_eye(2))
    np.testing.assert_array_equal(A.values.data, [0, 0])
    A.repattern_(sg.coo(np.zeros((2, 0), int), None, (2, 2)).pattern)
    assert A.nnz == 0


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda A: sg.repattern_(A * 2, A), sg.GraphError, "repattern_: only leaves"),
        (lambda A: A.repattern_(sg.sparse_eye(3)), sg.ShapeError, "repattern_: shapes differ"),
        (lambda A: A.repattern_(5), TypeError, "repattern_: pattern must be a Pattern"),
        (
            lambda A: A.repattern_(sg.coo([[1, 0], [0, 0]], None, (2, 3))),
            sg.PatternError,
            "repattern_: pattern must be coalesced",
        ),
        (
            lambda A: sg.coo([[0, 0], [0, 0]], [1.0, 2.0], (2, 3)).repattern_(A),
            sg.PatternError,
            "repattern_: A must be coalesced",
        ),
    ],
)
def test_repattern_refuses(call: Any, error: Any, text: str) -> None:
    A = matrix(requires_grad=True)
    with pytest.raises(error, match=text):
        call(A)
    assert A.nnz == 3


# ---- against SciPy -----------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", FORMATS)
def test_indexing_agrees_with_scipy(fmt: str) -> None:
    rng = np.random.default_rng(0)
    M = sp.random_array((8, 6), density=0.4, format="csr", rng=rng)
    A = sg.from_scipy(M).to(fmt)
    for index in (
        np.s_[2:7:2], np.s_[:, ::-1], np.s_[[5, 0, 5]], np.s_[:, [1, 1]], np.s_[3], np.s_[-1, 2:],
        np.ix_([0, 7], [5, 1, 2]), ([0, 3, 7], [5, 5, 0]), (rng.random(8) < 0.5,),
    ):  # fmt: skip
        expected = M[index]
        expected = expected.toarray() if sp.issparse(expected) else np.asarray(expected)
        np.testing.assert_array_equal(sg.to_dense(A[index]).data, expected)
