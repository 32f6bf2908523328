"""Threads and processes: the same bits, however many work at once."""

import multiprocessing
import os
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sparsegrad as sg
from backend_cases import ADAM, coordinates, dense_layers, floats
from sparsegrad.backends import cpu_jit, cpu_jit_launch
from sparsegrad.backends.cpu import Cpu
from sparsegrad.backends.cpu_jit import CpuJit
from sparsegrad.backends.steps import RowGradient
from sparsegrad.structure.pattern import Pattern


def everything(dtype):
    """Results of every threaded method on a problem of several chunks."""
    be, rng = CpuJit(always=True), np.random.default_rng(0)
    shape, row, col = coordinates("long rows")
    pattern = Pattern.coo((row, col), shape)
    x, y = (rng.standard_normal((n, 2, 9)).astype(dtype) for n in shape)
    values = rng.standard_normal((pattern.nnz, 2)).astype(dtype)
    indptr, total = pattern.rows()[0], np.zeros((300, 36), dtype=dtype)
    ids = col.astype("i4")
    be.scatter_add(total, ids, np.tile(values, 18))
    softmax = be.segment_softmax(values, indptr)
    stepped_p, m, v = (np.ones_like(total) for _ in range(3))
    be.adam(ADAM, stepped_p, total, m, v)
    rows, runs = np.arange(300, dtype="i4"), np.searchsorted(np.sort(ids), np.arange(301))
    grad = RowGradient(rows, np.argsort(ids).astype("i4"), runs.astype("i4"), np.tile(values, 18))
    be.adam_rows(ADAM, stepped_p, grad, m, v)
    return [
        *dense_layers(be, 5000, 10, dtype),
        stepped_p,
        m,
        v,
        be.spmm(pattern, values, y),
        be.spmm(pattern, values[:, 0], y[:, 0, :1]),
        be.spmm(pattern.to("csr")[0].T, values, x),
        be.sddmm(pattern, x, y),
        be.segment_sum(values, indptr),
        be.segment_max(values, indptr),
        softmax,
        be.segment_softmax_grad(values, softmax, indptr),
        total,
        be.sort_coo((ids, row.astype("i4")), shape[::-1]),
        *be.group(ids, 300),
        be.expand(indptr, pattern.nnz),
        be.compress(np.sort(ids), 300),
    ]


@floats
def test_results_do_not_depend_on_the_threads(threads, dtype):
    threads(1)
    want = everything(dtype)
    for n in (2, 3, 5):
        threads(n)
        for got, expected in zip(everything(dtype), want, strict=True):
            assert got.tobytes() == expected.tobytes()


def test_several_python_threads_at_once(threads):
    threads(2)
    want = everything("f4")

    def work(_):
        for _ in range(5):
            for got, expected in zip(everything("f4"), want, strict=True):
                assert got.tobytes() == expected.tobytes()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_small_products_of_one_pattern_in_many_threads():
    """They share index arrays that SciPy was given once, never its matrix; and no values stay."""
    be, gone = Cpu(), []
    shape, row, col = coordinates("medium")
    pattern = Pattern.coo((row, col), shape).to("csr")[0]
    x = np.ones((shape[1], 7))
    count = np.diff(pattern.rows()[0])[:, None]

    def work(scale):
        values = np.full(pattern.nnz, float(scale))
        for _ in range(200):
            assert (be.spmm(pattern, values, x) == count * scale).all()
        gone.append(weakref.ref(values))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5)))
    assert [ref() for ref in gone] == [None] * 4


def test_number_of_threads():
    assert cpu_jit.get_num_threads() >= 1
    with pytest.raises(ValueError, match="at least 1, got 0"):
        cpu_jit.set_num_threads(0)


def _forked(queue):
    cpu_jit_launch._PARALLEL = 0
    queue.put([a.tobytes() for a in everything("f4")])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_works(threads):
    threads(2)
    want = [a.tobytes() for a in everything("f4")]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_forked, args=(queue,))
    child.start()
    got = queue.get()
    child.join(60)
    assert child.exitcode == 0
    assert got == want


def _spawned(queue):
    queue.put([a.tobytes() for a in everything("f4")])


def test_a_spawned_child_works_beside_a_busy_parent(threads):
    threads(2)
    want = [a.tobytes() for a in everything("f4")]
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    child = context.Process(target=_spawned, args=(queue,))
    child.start()
    while queue.empty() and child.is_alive():
        assert [a.tobytes() for a in everything("f4")] == want
    got = queue.get()
    child.join(60)
    assert child.exitcode == 0
    assert got == want


def test_two_threads_train_at_once(threads):
    threads(2)
    rng = np.random.default_rng(0)
    A = sg.random_sparse(600, 600, density=0.1)
    x = sg.tensor(rng.standard_normal((600, 16)).astype("f4"))
    start = rng.standard_normal((2, 16, 16)).astype("f4")

    def train(w):
        losses = []
        w = sg.tensor(w, requires_grad=True)
        optimizer = sg.optim.Adam([w])
        for _ in range(10):
            optimizer.zero_grad()
            loss = (sg.softmax(A, 1) @ sg.tanh(x @ w)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    want = [train(w) for w in start]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(train, start)) == want
