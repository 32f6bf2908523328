"""kernels/philox.cu against the reference on the CPU: the very same bits."""

from functools import partial

import numpy as np
import pytest

import sparsegrad as sg
from cudasim.numbers import FLOATS, notices, same_every_time
from sparsegrad.backends import Backend
from sparsegrad.backends import cuda_random as philox

CPU = Backend()
STARTS = [(0, 0), (2**64 - 1, 2**32 - 3), (77, 2**64 - 9)]  # words that carry, a stream's end


def dtype_of(name):
    return sg.dtypes.as_dtype(name)


def check_numbers(cp, method="uniform", dtype="float32", n=1001, seed=77, offset=5):
    dtype = dtype_of(dtype)
    got = getattr(philox, method)(seed, offset, n, dtype)
    assert got.dtype == dtype and got.shape == (n,)
    expected = getattr(CPU, f"random_{method}")(seed, offset, n, dtype)
    np.testing.assert_array_equal(cp.asnumpy(got), expected)


@pytest.mark.parametrize("method", ["uniform", "normal"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 4099])
def test_numbers(cp, method, dtype, n):
    for seed, offset in STARTS:
        check_numbers(cp, method, dtype, n, seed, offset)


def check_integers(cp, n=101, low=-5, span=2**40 + 3, seed=9, offset=1):
    got = philox.integers(seed, offset, n, low, span)
    np.testing.assert_array_equal(cp.asnumpy(got), CPU.random_integers(seed, offset, n, low, span))


@pytest.mark.parametrize("n", [0, 1, 2, 5, 2048])
@pytest.mark.parametrize(
    ("low", "span"), [(0, 10), (-(2**63), 2**64), (-5, 2**40 + 3), (2**62, 2**62), (3, 1)]
)
def test_integers(cp, n, low, span):
    for seed, offset in STARTS:
        check_integers(cp, n, low, span, seed, offset)


def check_dropout(cp, dtype="float32", n=1001, shift=0, p=0.3, seed=7, offset=2):
    x = np.random.default_rng(n).standard_normal(n + shift).astype(dtype_of(dtype))[shift:]
    there = cp.asarray(np.concatenate((x[:shift], x)))[shift:]
    got = philox.dropout(there, p, seed, offset)
    np.testing.assert_array_equal(cp.asnumpy(got), CPU.dropout(x, p, seed, offset))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [0, 1, 3, 4, 6, 4099])
@pytest.mark.parametrize("shift", [0, 1])
def test_dropout(cp, dtype, n, shift):
    for p in (1e-12, 0.3, 1 - 1e-12):
        check_dropout(cp, dtype, n, shift, p)


def test_the_same_under_every_schedule(cp):
    same_every_time(lambda: cp.asnumpy(philox.normal(3, 4, 999, dtype_of("float32"))))


def test_streams_of_devices(cp):
    """One stream for all devices, until one is seeded apart."""
    draws = {}
    for device in ("cpu", "cuda"):
        sg.manual_seed(5)
        made = (sg.rand(7, device=device), sg.randn(3, device=device),
                sg.randint(99, (5,), device=device), sg.randperm(9, device=device),
                sg.random_sparse(9, 9, 0.3, device=device).values,
                sg.dropout(sg.ones(20).to(device), 0.5))  # fmt: skip
        draws[device] = [x.cpu().numpy() for x in made]
    for ours, theirs in zip(*draws.values(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    sg.manual_seed(5)
    sg.cuda.manual_seed(6)
    state = sg.cuda.get_rng_state()
    first = sg.rand(4, device="cuda").cpu().numpy()
    assert sg.rand(7).tolist() == draws["cpu"][0].tolist()  # untouched
    sg.cuda.set_rng_state(state)
    np.testing.assert_array_equal(sg.rand(4, device="cuda").cpu().numpy(), first)
    sg.cuda.manual_seed_all(6)
    np.testing.assert_array_equal(sg.rand(4, device="cuda").cpu().numpy(), first)
    sg.manual_seed(6)
    np.testing.assert_array_equal(sg.rand(4).numpy(), first)


MUTANTS = [
    ("philox", "k1 += 0xBB67AE85u;", "", check_numbers),
    ("philox", "(unsigned int)(at >> 32)", "0u",
     partial(check_numbers, n=64, offset=2**32 - 3)),
    ("philox", "words.w[2 * i + 1] << 32 | words.w[2 * i]",
     "words.w[2 * i] << 32 | words.w[2 * i + 1]", check_integers),
    ("philox", "if (first + COUNT <= n) {", "if (true) {", check_numbers),
    ("philox", "fabs(q) <= 0.425", "fabs(q) <= 0.4",
     partial(check_numbers, method="normal", dtype="float64")),
    ("philox", "words.w[part + i] >= least", "words.w[i] >= least",
     partial(check_dropout, dtype="float64")),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m[1])
def test_tests_notice(cp, monkeypatch, mutant):
    notices(cp, monkeypatch, mutant, philox)
