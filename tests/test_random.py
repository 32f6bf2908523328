"""Random numbers: known answers, the same bits from every backend, distributions, seeds, states."""

from __future__ import annotations

import math
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import sparsegrad as sg
from sparsegrad import backends
from sparsegrad.backends import philox

U64 = 2**64
FLOATS = ("float16", "bfloat16", "float32", "float64")


def dtype_of(name: str) -> np.dtype:
    return sg.dtypes.as_dtype(name)


# ---- known answers -----------------------------------------------------------------------------
# From the file kat_vectors of Random123: philox 4x32, 10 rounds.
KNOWN = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
)  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    start = np.array([[int(w, 16)] for w in counter.split()], np.uint64)
    low, high = (int(w, 16) for w in key.split())
    found = philox.rounds(np, start, high << 32 | low)
    assert [f"{int(w):08x}" for w in found[:, 0]] == expected.split()


def test_words_are_those_of_the_blocks_from_an_offset() -> None:
    seed, offset = 0x123456789ABCDEF0, 2**32 - 2  # the counter carries into its second word
    found = philox.words(np, seed, offset, 19)
    for i, word in enumerate(found):
        at = offset + i // 4
        start = np.array([[at % 2**32], [at // 2**32], [0], [0]], np.uint64)
        assert word == philox.rounds(np, start, seed)[i % 4, 0]


def test_inverse_of_the_normal_distribution() -> None:
    tails = 2.0 ** -np.arange(2, 54)
    u = np.concatenate([np.linspace(0, 1, 9999)[1:-1], tails, 1 - tails])
    found, exact = philox.inverse_normal(np, u), special.ndtri(u)
    np.testing.assert_allclose(found, exact, rtol=4e-15, atol=1e-16)


# ---- the same bits -----------------------------------------------------------------------------
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 6, 100_003])
@pytest.mark.parametrize(("seed", "offset"), [(0, 0), (U64 - 1, 2**32 - 3), (77, U64 - 40_000)])
def test_every_backend_makes_the_same_bits(n: int, seed: int, offset: int, backend: str) -> None:
    be, reference = backends.for_device("cpu"), backends.Backend()
    for name in FLOATS:
        dtype = dtype_of(name)
        for method in ("random_uniform", "random_normal"):
            found, expected = (getattr(b, method)(seed, offset, n, dtype) for b in (be, reference))
            assert found.dtype == dtype and found.shape == (n,)
            np.testing.assert_array_equal(found, expected)
        x = np.linspace(-3, 3, n).astype(dtype)
        for p in (1e-12, 0.3, 1 - 1e-12):
            found, expected = (b.dropout(x, p, seed, offset) for b in (be, reference))
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, expected)
    for low, span in ((0, 10), (-(2**63), U64), (-5, 2**40 + 3), (3, 1), (2**62, 2**62)):
        found, expected = (b.random_integers(seed, offset, n, low, span) for b in (be, reference))
        assert ((found >= low) & (found <= low + span - 1)).all()
        np.testing.assert_array_equal(found, expected)


def test_draws_do_not_depend_on_how_they_are_split() -> None:
    """Any part of a stream can be made by itself, which is what threads and devices do."""
    be = backends.Backend()
    whole = be.random_uniform(9, 0, 64, np.dtype("f4"))
    for block in (0, 3, 15):
        part = be.random_uniform(9, block, 4, np.dtype("f4"))
        np.testing.assert_array_equal(part, whole[4 * block : 4 * block + 4])


def test_integers_are_the_upper_half_of_a_product() -> None:
    words = philox.words(np, 5, 1, 20).astype(object)
    for span in (7, 2**31, 2**33 + 1, U64 - 1):
        found = backends.Backend().random_integers(5, 1, 10, 0, span).view(np.uint64)
        exact = [int(words[2 * i] + (words[2 * i + 1] << 32)) * span >> 64 for i in range(10)]
        assert found.tolist() == exact


# ---- distributions (seeds are fixed: these pass or fail for ever) --------------------------------
N = 200_000


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_numbers(dtype: str) -> None:
    sg.manual_seed(11)
    x = sg.rand(N, dtype=dtype).numpy().astype(np.float64)
    assert x.min() >= 0 and x.max() < 1
    assert stats.kstest(x, "uniform").pvalue > 0.01
    assert abs(x.mean() - 0.5) < 4 * math.sqrt(1 / 12 / N)
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 4 / math.sqrt(N)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_numbers(dtype: str) -> None:
    sg.manual_seed(12)
    x = sg.randn(N, dtype=dtype).numpy().astype(np.float64)
    assert stats.kstest(x, "norm").pvalue > 0.01
    assert abs(x.mean()) < 4 / math.sqrt(N)
    assert abs(x.var() - 1) < 4 * math.sqrt(2 / N)
    assert abs(stats.skew(x)) < 4 * math.sqrt(6 / N)
    assert abs(stats.kurtosis(x)) < 4 * math.sqrt(24 / N)


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_narrow_uniform_numbers_are_equally_likely(dtype: str, bits: int) -> None:
    sg.manual_seed(13)
    x = sg.rand(N, dtype=dtype).float().numpy()
    levels = np.bincount((x * 2**bits).astype(int), minlength=2**bits)
    assert x.max() < 1 and levels.size == 2**bits
    assert stats.chisquare(levels).pvalue > 0.01


def test_narrow_normal_numbers_are_rounded_ones() -> None:
    draws = []
    for dtype in ("float32", "float16", "bfloat16"):
        sg.manual_seed(14)
        draws.append(sg.randn(1000, dtype=dtype))
    for x in draws[1:]:
        np.testing.assert_array_equal(x.numpy(), draws[0].to(x.dtype).numpy())


def test_integers_and_permutations() -> None:
    sg.manual_seed(15)
    x = sg.randint(-3, 4, (N,))
    assert x.dtype == sg.int64
    counts = np.bincount(x.numpy() + 3)
    assert counts.size == 7 and stats.chisquare(counts).pvalue > 0.01
    # Where number 0 of five lands, and which of the 24 orders of four comes up.
    places = np.array([sg.randperm(5).numpy().argmin() for _ in range(2000)])
    assert stats.chisquare(np.bincount(places, minlength=5)).pvalue > 0.01
    orders = np.unique([sg.randperm(4).tolist() for _ in range(2400)], axis=0, return_counts=True)
    assert len(orders[1]) == 24 and stats.chisquare(orders[1]).pvalue > 0.01
    for n in (0, 1, 2, 3, 1000):
        assert sorted(sg.randperm(n).tolist()) == list(range(n))
    assert sg.randint(2**62, 2**63, (3,)).numpy().min() >= 2**62


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_as_often_as_it_says(p: float) -> None:
    sg.manual_seed(16)
    x = sg.ones(N, requires_grad=True)
    y = sg.dropout(x, p)
    kept = (y.detach().numpy() != 0).mean()
    assert abs(kept - (1 - p)) < 4 * math.sqrt(p * (1 - p) / N)
    np.testing.assert_allclose(y.detach().numpy().max(), 1 / (1 - p), rtol=1e-6)
    y.sum().backward()  # the same elements, made again
    np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())


def test_dropout_keeps_no_mask() -> None:
    x = sg.ones(1000, requires_grad=True)
    saved = sg.dropout(x, 0.5).grad_fn.saved
    assert not any(isinstance(s, (np.ndarray, sg.Tensor)) for s in saved)


def test_dropout_of_a_gathered_table_has_a_sparse_gradient() -> None:
    table = sg.ones(1000, 4, requires_grad=True)
    sg.manual_seed(3)
    dropped = sg.dropout(table, 0.5)
    sg.embedding(dropped, [7, 3]).sum().backward()
    assert isinstance(table.grad, sg.SparseTensor)
    rows = table.grad.coalesce()
    assert rows.row.tolist() == [3, 7]
    np.testing.assert_array_equal(rows.values.numpy(), dropped.detach().numpy()[[3, 7]])


def test_uniform_and_normal_with_parameters() -> None:
    sg.manual_seed(17)
    x = sg.uniform(-3, 5, (N,)).numpy()
    assert x.min() >= -3 and x.max() < 5
    assert stats.kstest(x, "uniform", (-3, 8)).pvalue > 0.01
    assert (sg.uniform(1, np.nextafter(np.float32(1), np.float32(2)), (1000,)).numpy() == 1).all()
    y = sg.normal(sg.tensor([0.0, 100.0]), sg.tensor([[1.0], [0.0]]))
    assert y.shape == (2, 2) and y.numpy()[1].tolist() == [0, 100]
    b = sg.bernoulli(sg.full((N,), 0.2)).numpy()
    assert set(b.tolist()) == {0.0, 1.0} and abs(b.mean() - 0.2) < 0.004


def test_multinomial() -> None:
    sg.manual_seed(21)
    weights = np.array([[1.0, 0.0, 3.0, 6.0], [2.0, 2.0, 0.0, 0.0]])
    drawn = sg.multinomial(sg.tensor(weights), N // 10, replacement=True).numpy()
    for w, places in zip(weights, drawn, strict=True):
        counts, kept = np.bincount(places, minlength=4), w > 0
        assert not counts[~kept].any()
        assert stats.chisquare(counts[kept], w[kept] / w.sum() * places.size).pvalue > 0.01
    first = [0, 0]
    for _ in range(3000):
        a, b = sg.multinomial(sg.tensor([1.0, 3.0]), 2).tolist()
        assert a != b
        first[a] += 1
    assert stats.chisquare(first, [750, 2250]).pvalue > 0.01
    assert sg.multinomial(sg.tensor(weights), 2).shape == (2, 2)
    assert (sg.multinomial(sg.tensor(weights[1]), 2).sort().values == sg.tensor([0, 1])).all()


@pytest.mark.parametrize(("m", "n", "density"), [(300, 200, 0.05), (40, 30, 0.9), (7, 5, 1.0)])
def test_random_sparse_fills_all_cells_alike(m: int, n: int, density: float) -> None:
    sg.manual_seed(18)
    hits = np.zeros((m, n))
    for _ in range(20):
        A = sg.random_sparse(m, n, density, values="normal")
        assert A.nnz == round(density * m * n) and A.is_coalesced
        hits[A.row, A.col] += 1
    assert stats.chisquare(hits.sum(1)).pvalue > 0.01 and stats.chisquare(hits.sum(0)).pvalue > 0.01
    assert sg.random_sparse(10**9, 10**9, 1e-16).nnz == 100
    with pytest.raises(sg.ShapeError, match="too many cells"):
        sg.random_sparse(2**32, 2**31, 0.0)


# ---- seeds and states --------------------------------------------------------------------------
DRAWS: tuple[Any, ...] = (
    lambda **kw: sg.rand(5, **kw),
    lambda **kw: sg.rand(3, dtype=sg.float64, **kw),
    lambda **kw: sg.randn(6, **kw),
    lambda **kw: sg.randint(9, (4,), **kw),
    lambda **kw: sg.randperm(8, **kw),
    lambda **kw: sg.normal(0.0, 1.0, (3,), **kw),
    lambda **kw: sg.uniform(0.0, 1.0, (3,), **kw),
    lambda **kw: sg.bernoulli(sg.full((9,), 0.5), **kw),
    lambda **kw: sg.multinomial(sg.ones(9), 5, **kw),
    lambda **kw: sg.multinomial(sg.ones(9), 5, True, **kw),
    lambda **kw: sg.random_sparse(9, 9, 0.2, **kw).values,
    lambda **kw: sg.nn.init.normal_(sg.zeros(3), **kw),
    lambda **kw: sg.nn.init.xavier_uniform_(sg.zeros(3, 2), **kw),
)


@pytest.mark.parametrize("draw", DRAWS)
def test_a_seed_gives_the_same_numbers(draw: Any) -> None:
    def drawn(seed: int) -> list[np.ndarray]:
        sg.manual_seed(seed)
        return [draw().numpy(), draw().numpy()]

    first, again, other = drawn(1), drawn(1), drawn(2)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1]) and not np.array_equal(first, other)
    g = sg.Generator().manual_seed(1)
    np.testing.assert_array_equal([draw(generator=g).numpy() for _ in range(2)], first)


def test_a_generator_leaves_the_common_stream_alone() -> None:
    sg.manual_seed(4)
    first = sg.rand(3).numpy()
    sg.manual_seed(4)
    sg.rand(100, generator=sg.Generator())
    np.testing.assert_array_equal(sg.rand(3).numpy(), first)


def test_states() -> None:
    g = sg.Generator().manual_seed(-1)
    assert g.initial_seed() == U64 - 1
    sg.rand(7, generator=g)
    state, copy = g.get_state(), pickle.loads(pickle.dumps(g))
    expected = sg.randn(5, generator=g).numpy()
    np.testing.assert_array_equal(sg.randn(5, generator=copy).numpy(), expected)
    g.set_state(sg.Tensor(state))
    np.testing.assert_array_equal(sg.randn(5, generator=g).numpy(), expected)
    assert state.nbytes == 16 and g.seed() == g.initial_seed()
    assert sg.Generator().initial_seed() != sg.Generator().initial_seed()
    for bad in (state[:8], state.astype(float), 3, None):
        before = g.get_state()
        with pytest.raises(ValueError, match="set_state: expected the 16 bytes"):
            g.set_state(bad)
        np.testing.assert_array_equal(g.get_state(), before)
    for seed in (U64, -(2**63) - 1):
        with pytest.raises(ValueError, match="manual_seed: the seed must fit 64 bits"):
            sg.manual_seed(seed)
    with pytest.raises(TypeError):
        sg.manual_seed(1.5)


def test_threads_never_draw_the_same_numbers() -> None:
    g = sg.Generator().manual_seed(5)
    taken: list[int] = []

    def take() -> None:
        for _ in range(500):
            taken.append(g.reserve(4)[1])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(taken) == list(range(2000))


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_float_dtype(dtype: str) -> None:
    for make in (sg.rand, sg.randn):
        x = make(2, 3, dtype=dtype, requires_grad=True)
        assert x.dtype == dtype and x.shape == (2, 3) and x.requires_grad
    with pytest.raises(sg.DtypeError, match="rand: dtype must be floating point, got int64"):
        sg.rand(2, dtype=sg.int64)


def test_what_is_refused() -> None:
    for call, error, text in (
        (lambda: sg.randint(3, 3, (2,)), ValueError, "randint: low must be less than high"),
        (lambda: sg.randint(0, 2**63 + 1, (2,)), ValueError, "randint: the numbers must fit int64"),
        (lambda: sg.uniform(2.0, 1.0, (2,)), ValueError, "uniform: low must not exceed high"),
        (lambda: sg.normal(0.0, -1.0, (2,)), ValueError, "normal: std must not be negative"),
        (lambda: sg.bernoulli(sg.tensor([2.0])), ValueError, "bernoulli: probabilities"),
        (lambda: sg.multinomial(sg.ones(2), 3), ValueError, "multinomial: 3 samples without"),
        (lambda: sg.multinomial(sg.zeros(2), 1), ValueError, "multinomial: weights must be finite"),
        (lambda: sg.multinomial(sg.ones(()), 1), sg.ShapeError, r"multinomial: expected weights"),
        (lambda: sg.rand(2, -1), sg.ShapeError, "rand: sizes must be non-negative"),
        (lambda: sg.random_sparse(2, 2, 1.5), ValueError, "random_sparse: density"),
    ):
        with pytest.raises(error, match=text):
            call()
