"""kernels/select.cu against NumPy: which entries stay, and what is known of them."""

import numpy as np
import pytest

import cudasim
from cudasim.numbers import INDEX, notices, same_every_time
from sparsegrad.backends import cuda_select
from sparsegrad.backends.base import Backend

KEPT = {
    "some": lambda rng, n: rng.random(n) < 0.4,
    "few": lambda rng, n: rng.random(n) < 0.01,
    "none": lambda rng, n: np.zeros(n, bool),
    "all": lambda rng, n: np.ones(n, bool),
    "all but the first": lambda rng, n: np.arange(n) > 0,
    "all but the last": lambda rng, n: np.arange(n) < n - 1,
}


def backend():
    from sparsegrad.backends.cuda import Cuda

    return Cuda()


def check_compact(cp, kept="some", n=300, lists=2, runs=40, index="int32"):
    """The same as the reference; `runs` of random lengths, some of them empty, or None."""
    rng = np.random.default_rng(n)
    keep = KEPT[kept](rng, n)
    given = [rng.integers(0, 1000, n).astype(index) for _ in range(lists)]
    offsets = None
    if runs is not None:
        offsets = np.r_[0, np.sort(rng.integers(0, n + 1, runs)), n].astype(index)
    there = None if offsets is None else cp.asarray(offsets)
    got = backend().compact(cp.asarray(keep), [*map(cp.asarray, given)], there)
    wanted = Backend().compact(keep, given, offsets)
    flat = []
    for a, b in zip((got[0], *got[1], got[2]), (wanted[0], *wanted[1], wanted[2]), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == index
            assert a.tolist() == b.tolist()
            flat.append(a.get())
    return np.concatenate(flat)


@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize("kept", KEPT)
def test_compact(cp, kept, index):
    for n in (1, 2, 31, 255, 256, 257, 1000):
        check_compact(cp, kept, n, index=index)
    for lists in (1, 3, 4, 6):
        check_compact(cp, kept, lists=lists, runs=None, index=index)
    check_compact(cp, kept, n=20, runs=1000, index=index)  # more runs than entries


def test_compact_of_nothing(cp):
    empty = cp.zeros(0, "i")
    entries, (ids,), offsets = backend().compact(empty.astype(bool), (empty,), cp.zeros(4, "i"))
    assert entries is None
    assert ids.size == 0
    assert offsets.tolist() == [0] * 4


def test_compact_of_lists_that_differ_in_dtype(cp):
    keep = cp.asarray([True, False, True])
    lists = cp.arange(3, dtype="i"), cp.arange(3, dtype="q")
    entries, found, _ = backend().compact(keep, lists)
    assert entries.tolist() == [0, 2]
    assert [(x.dtype.char, x.tolist()) for x in found] == [("i", [0, 2]), ("q", [0, 2])]


def test_compact_by_schedule(cp, seed):
    check_compact(cp, n=600, lists=3)


def test_compact_is_deterministic(cp):
    same_every_time(lambda: check_compact(cp))


def check_first(cp, k=2, lengths=(0, 3, 1, 40, 2, 0, 9), index="int32", dtype="f", order=True):
    """The same as the reference; values that repeat, so that the first of them are looked for."""
    rng = np.random.default_rng(k)
    offsets = np.r_[0, np.cumsum(lengths)].astype(index)
    n = int(offsets[-1])
    key = rng.integers(-3, 3, n).astype(dtype)
    key[::7] = -np.inf
    listed = rng.permutation(n).astype(index) if order else None
    wanted = Backend().least_in_runs(key, offsets, listed, k)
    there = None if listed is None else cp.asarray(listed)
    got = backend().least_in_runs(cp.asarray(key), cp.asarray(offsets), there, k).get()
    assert (got.astype(bool) == wanted).all()
    assert wanted.sum() == np.minimum(lengths, k).sum()
    return got


@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize("dtype", ["f", "d"])
def test_first_in_runs(cp, dtype, index):
    for k in (0, 1, 2, 5, 40, 99):
        for order in (False, True):
            check_first(cp, k, index=index, dtype=dtype, order=order)
            check_first(cp, k, (300,), index, dtype, order)
    check_first(cp, 1, (), index, dtype)


def test_first_in_runs_is_deterministic(cp):
    same_every_time(lambda: check_first(cp))


MUTANTS = {
    "rank": ("select", "t - offsets[segment[t]] < k", "t < k", check_first),
    "one more": ("select", "segment[t]] < k", "segment[t]] <= k", check_first),
    "negative": ("select", "bits & 0x80000000u ? ~bits", "bits & 0x80000000u ? bits", check_first),
    "run": ("select", "(unsigned long long)segment[e] << 32 | rising", "rising", check_first),
    "listed": ("select", "order_or_null ? order_or_null[e] : e", "e", check_first),
    "order": ("select", "order_or_null ? (long long)order_or_null[e] : e", "e", check_first),
    "place": ("select", "e ? upto[e - 1] : I(0)", "upto[e] - 1", check_compact),
    "first": ("select", "e ? upto[e - 1] : I(0)", "upto[e - 1]", check_compact),
    "all": ("select", "if (upto[e] == place) continue;", "", check_compact),
    "last offset": ("select", "r <= runs", "r < runs", check_compact),
    "end": ("select", "end ? upto[end - 1] : I(0)", "end ? upto[end] : I(0)", check_compact),
    "no entries": ("select", "end ? upto[end - 1] : I(0)", "upto[end - 1]", check_compact),
    "lists": ("select", "to[place] = from[entry]", "to[place] = from[place]", check_compact),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_noticed(sim, monkeypatch, mutant):
    notices(sim, monkeypatch, MUTANTS[mutant], cuda_select)


def test_launches(sim):
    """A scan, one kernel, and one wait."""
    keep, ids = sim.asarray(np.arange(300) % 3 > 0), sim.arange(300, dtype="i")
    before = cudasim.synchronisations()
    with cudasim.record_launches() as launches:
        backend().compact(keep, (ids, ids), sim.asarray(np.array([0, 100, 300], "i")))
    assert len(launches) == 2
    assert cudasim.synchronisations() - before == 1
