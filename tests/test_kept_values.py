"""Values kept in the order of a transposed product: never those of yesterday."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegrad as sg
from sparsegrad.backends import cpu_jit_kept
from sparsegrad.backends.cpu_jit_kept import KeptValues

N, NNZ, K = 3000, 40_000, 4
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, K)).astype(np.float32)


def matrix() -> Any:
    rng = np.random.default_rng(1)
    coords = rng.integers(0, N, (2, NNZ))
    return sg.from_scipy(
        sp.coo_array((rng.standard_normal(NNZ).astype(np.float32), coords), (N, N)).tocsr()
    )


def check(A: Any) -> None:
    """A.T @ X and its gradient to X are those of the values as they are now."""
    host = A.to_scipy().astype(np.float64)
    for _ in range(3):  # seen, kept, found
        x = sg.tensor(X, requires_grad=True)
        y = A.T @ x
        np.testing.assert_allclose(y.detach().numpy(), host.T @ X, rtol=1e-4, atol=1e-4)
        (A @ x).backward(sg.from_numpy(X))  # which multiplies by the transpose
        np.testing.assert_allclose(x.grad.numpy(), host.T @ X, rtol=1e-4, atol=1e-4)


def kept(A: Any) -> KeptValues:
    return A.pattern.T.cached("kept values", KeptValues)


def by_numpy(A: Any) -> None:
    A.values.numpy()[17] += 1


def by_data(A: Any) -> None:
    A.values.data[:] = A.values.data[::-1].copy()


def by_op(A: Any) -> None:
    A.values.mul_(2)


def by_index(A: Any) -> None:
    A.values[NNZ // 3] = 5.0


def by_detached(A: Any) -> None:
    A.detach().values.fill_(1.0)


def by_sign(A: Any) -> None:
    A.values.mul_(-1)


@pytest.mark.parametrize("write", [by_numpy, by_data, by_op, by_index, by_detached, by_sign])
def test_values_written_to_in_place(write: Callable[[Any], None]) -> None:
    A = matrix()
    check(A)
    assert kept(A).nbytes == A.values.nbytes  # or this test would show nothing
    for _ in range(2):
        write(A)
        check(A)


def test_other_values_on_the_same_pattern() -> None:
    A = matrix()
    B = A.with_values(A.values * 3)
    for _ in range(3):
        check(A)
        check(B)


def test_an_optimizer_step() -> None:
    A = matrix().requires_grad_()
    x = sg.from_numpy(X)
    optimizer = sg.optim.SGD([A], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        y = A.T @ x
        np.testing.assert_allclose(
            y.detach().numpy(), A.detach().to_scipy().T @ X, rtol=1e-4, atol=1e-4
        )
        y.sum().backward()
        optimizer.step()
    check(A.detach())


def test_a_new_pattern() -> None:
    A = sg.nn.Parameter(matrix())
    check(A.detach())
    A.repattern_(sg.prune(A.detach(), 0.5).pattern)
    check(A.detach())


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda A: pickle.loads(pickle.dumps(A))]
)
def test_copies(copied: Callable[[Any], Any]) -> None:
    A = matrix()
    check(A)
    B = copied(A)
    check(B)
    B.values.mul_(3)
    check(B)
    check(A)


def test_dropped_with_the_caches_of_the_pattern() -> None:
    A = matrix()
    check(A)
    assert A.pattern.cache_nbytes >= kept(A).nbytes > 0
    A.pattern.drop_caches()
    assert A.pattern.cache_nbytes == 0
    check(A)


def test_results_are_the_same_bits_with_and_without() -> None:
    A, x = matrix(), sg.from_numpy(X)
    first, *others = [(A.T @ x).numpy() for _ in range(4)]
    for y in others:
        np.testing.assert_array_equal(y, first)


def test_values_that_change_every_time_are_given_up() -> None:
    keeper, positions = KeptValues(), np.arange(1000)[::-1].copy()
    calls = []

    def gather(values: Any, index: Any) -> Any:
        calls.append(1)
        return values[index]

    values = np.zeros(1000, np.float32)
    for step in range(1, 50):
        values[:] = step  # another sample each time: nothing is kept
        assert keeper.moved(values, positions, gather) is None
    assert not calls and keeper.nbytes == 0
    for _ in range(50):
        values[501] += 1  # the sample, every 15th, does not see it
        for _ in range(2):
            found = keeper.moved(values, positions, gather)
            assert found is None or np.array_equal(found, values[positions])
    assert 0 < len(calls) <= cpu_jit_kept._LOSSES and keeper.nbytes == 0


def test_nan_is_kept() -> None:
    keeper, positions = KeptValues(), np.arange(100)[::-1].copy()
    values = np.full(100, np.nan)
    found = [keeper.moved(values, positions, np.take) for _ in range(3)]
    assert found[0] is None and found[1] is found[2] is not None
