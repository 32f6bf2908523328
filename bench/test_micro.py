"""What one small op costs: `pytest bench/`, with pytest-benchmark as the harness.

For looking at one change on one machine (`--benchmark-save`, `--benchmark-compare`). Comparisons
with peers are the cases of `python -m bench`.
"""

import numpy as np
import pytest

import sparsegrad as sg
from bench.graphs import power_law


@pytest.fixture
def small():
    rng = np.random.default_rng(0)
    return [sg.tensor(a, requires_grad=True) for a in rng.standard_normal((2, 16)).astype("f4")]


@pytest.fixture(params=[16, 64])
def product(request):
    """A with 4096 entries and x of so many columns."""
    a = sg.from_scipy(power_law(1024, 4096), requires_grad=True)
    x = np.random.default_rng(0).standard_normal((1024, request.param), dtype=np.float32)
    return a, sg.tensor(x, requires_grad=True)


def test_add(benchmark, small):
    a, b = small
    benchmark(lambda: a + b)


def test_mul(benchmark, small):
    a, b = small
    benchmark(lambda: a * b)


def test_tanh(benchmark, small):
    benchmark(sg.tanh, small[0])


def test_mul_not_recorded(benchmark, small):
    a, b = small[0].detach(), small[1].detach()
    benchmark(lambda: a * b)


def test_mul_backward(benchmark, small):
    a, b = small
    out, g = a * b, sg.ones_like(a)
    benchmark(lambda: sg.grad(out, [a, b], g, retain_graph=True))


def test_spmm_forward(benchmark, product):
    a, x = product
    benchmark(lambda: a @ x)


def test_spmm_backward(benchmark, product):
    a, x = product
    out = a @ x
    g = sg.ones_like(x)
    benchmark(lambda: sg.grad(out, [a, x], g, retain_graph=True))


def test_take(benchmark):
    table = sg.zeros(1000, 16, requires_grad=True)
    index = sg.tensor(np.random.default_rng(0).integers(0, 1000, 256))
    benchmark(lambda: table.take(index))


def test_take_backward(benchmark):
    table = sg.zeros(1000, 16, requires_grad=True)
    index = sg.tensor(np.random.default_rng(0).integers(0, 1000, 256))
    out = table.take(index)
    g = sg.ones_like(out)
    benchmark(lambda: sg.grad(out, table, g, retain_graph=True))
