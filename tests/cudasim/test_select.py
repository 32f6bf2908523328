"""kernels/select.cu against NumPy: which entries stay, and what is known of them."""

import numpy as np
import pytest

import cudasim
from cudasim.numbers import INDEX, notices, same_every_time
from sparsegrad.backends import cuda_kernels, cuda_select
from sparsegrad.backends.base import Backend
from sparsegrad.structure.plan_select import Ranked

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


# ---- what stays --------------------------------------------------------------------------------
def positions(kept, n):
    """The positions (n,) of what stays, as the backend lists them."""
    entries = backend().compact(kept, ())[0]
    return np.arange(n) if entries is None else entries.get()


def check_beyond(cp, dtype="float32", n=300, tail=(), listed=False, threshold=0.5):
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((n, *tail)) * (2 if dtype[0] == "i" else 0.6)).astype(dtype)
    if dtype[0] == "f":
        x[n // 2 :: 7] = np.nan
        x[::3] = threshold
    order = rng.permutation(n)[: n - n // 3].astype("i") if listed else None
    wanted = np.flatnonzero(Backend().beyond(x, threshold, order))
    there = None if order is None else cp.asarray(order)
    kept = backend().beyond(cp.asarray(x), threshold, there)
    got = positions(kept, n if order is None else order.size)
    assert got.tolist() == wanted.tolist()
    return got


@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "float64", "int32", "complex64"])
def test_beyond(cp, dtype):
    for n in (0, 1, 31, 256, 1023, 1024, 1025, 3000):
        check_beyond(cp, dtype, n)
    for tail in ((1,), (3,), (2, 40), (0,)):
        check_beyond(cp, dtype, 100, tail)
    check_beyond(cp, dtype, 100, (2,), listed=True)
    check_beyond(cp, dtype, 1500, listed=True, threshold=0)


def test_beyond_in_bfloat16(cp):
    bf16 = pytest.importorskip("ml_dtypes").bfloat16
    x = np.array([0.0, -2.0, 0.5, np.nan, np.inf, -0.25]).astype(bf16)
    kept = backend().beyond(cp.asarray(x), 0.5)
    assert positions(kept, x.size).tolist() == [1, 3, 4]


def check_chunks(cp, most=2, n=5000):
    """Chunks of many rounds, as more than a million entries have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_select, "_CHUNKS", most)
        check_beyond(cp, n=n)
        check_compact(cp, n=n)
        check_cells(cp, n=n, m=n // 3)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_chunks_of_many_rounds(cp, most):
    for n in (1024, 1025, 5000):
        check_chunks(cp, most, n)


def check_top(
    cp, k=2, lengths=(0, 3, 1, 40, 2, 0, 9), index="int32", dtype="f", order=True, magnitude=False
):
    """The same as the reference; values that repeat, so that the first of them are looked for."""
    rng = np.random.default_rng(k)
    offsets = np.r_[0, np.cumsum(lengths)].astype(index)
    n = int(offsets[-1])
    x = rng.integers(-3, 3, n).astype(dtype)
    x[::7], x[::11] = np.inf, np.nan
    listed = rng.permutation(n).astype(index) if order else None
    longest = max(lengths, default=0)
    keep = Backend().largest_in_runs(x, Ranked(offsets, longest, n, listed), k, magnitude)
    there = Ranked(cp.asarray(offsets), longest, n, None if listed is None else cp.asarray(listed))
    if not n:
        return keep
    got = positions(backend().largest_in_runs(cp.asarray(x), there, k, magnitude), n)
    assert got.tolist() == np.flatnonzero(keep).tolist()
    assert got.size == np.minimum(lengths, k).sum()
    return got


LIMITS = {  # of runs that are compared, of those of which the k-th is found; others are sorted
    "compared": (1024, 1 << 17),
    "found": (3, 1 << 17),
    "sorted": (-1, -1),
}


def limited(monkeypatch, most, longest):
    for name, limit in (("_LONG", most), ("_LONGEST", longest), ("_MANY", 1 << 60)):
        monkeypatch.setattr(cuda_select, name, limit)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize("dtype", ["e", "f", "d"])
def test_largest_in_runs(cp, monkeypatch, dtype, index, limits):
    limited(monkeypatch, *LIMITS[limits])
    for k in (0, 1, 2, 5, 40, 99):
        for order in (False, True):
            check_top(cp, k, index=index, dtype=dtype, order=order, magnitude=order)
            check_top(cp, k, (300,), index, dtype, order)
    check_top(cp, 1, (), index, dtype)


def check_sorted(cp):
    """Runs that are sorted: floats by one key, with their run."""
    with pytest.MonkeyPatch.context() as patch:
        limited(patch, *LIMITS["sorted"])
        check_top(cp, 3, (1500, 0, 700))


def check_long(cp):
    """Runs of which the k-th is found, by its number and, of equal ones, by its place."""
    for k in (1, 300, 1300):
        check_top(cp, k, (1500, 0, 4, 1100, 2500))


def test_long_runs(cp):
    check_long(cp)
    check_sorted(cp)


@pytest.mark.parametrize("dtype", ["e", "f", "d"])
def test_long_runs_of_all_sorts_of_numbers(cp, dtype):
    """The bits of numbers of both signs rise with them; -0 is 0."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(3000) * 10.0 ** rng.integers(-4, 4, 3000)).astype(dtype)
    x[::5], x[1::50], x[2::70], x[3::90] = 0.0, -0.0, np.inf, -np.inf
    x[4::40] = np.nan
    for k in (1, 40, 1000, 1700, 2950, 2999):
        for magnitude in (False, True):
            runs = np.array([0, 3000], "i"), 3000, 3000, None
            keep = Backend().largest_in_runs(x, Ranked(*runs), k, magnitude)
            there = Ranked(cp.asarray(runs[0]), *runs[1:])
            got = backend().largest_in_runs(cp.asarray(x), there, k, magnitude)
            assert positions(got, 3000).tolist() == np.flatnonzero(keep).tolist()


def test_more_runs_than_blocks_look_at(cp, monkeypatch):
    """A few of them long."""
    limited(monkeypatch, 5, 1 << 17)
    monkeypatch.setattr(cuda_kernels, "_multiprocessors", lambda device: 1)
    lengths = np.random.default_rng(0).integers(0, 3, 9000)
    lengths[[0, 31, 32, 255, 8200, 8999]] = 40, 17, 8, 20, 33, 60
    check_top(cp, 6, tuple(lengths.tolist()))


def test_largest_in_runs_by_schedule(cp, seed):
    check_top(cp, 2, (700, 5, 600))
    check_top(cp, 700, (1100, 5, 1300))


def test_largest_in_runs_is_deterministic(cp):
    same_every_time(lambda: check_top(cp))
    same_every_time(lambda: check_top(cp, 500, (1200, 3)))


def check_cells(cp, n=300, m=40, own=False, ordered=True, index="int32", share=0.4):
    """Cells of a mask with n entries, of which a matrix has m."""
    rng = np.random.default_rng(n + m)
    truth = rng.random(n) < share
    order = rng.permutation(n).astype(index) if ordered else np.arange(n, dtype=index)
    if own:
        args = (order, None, order) if ordered else (None, None, None)
    else:
        cell = np.sort(rng.permutation(n)[:m]).astype(index)
        args = np.r_[order, order[cell]], cell, rng.permutation(m).astype(index)
    wanted = Backend().true_cells(truth, *args)
    there = [None if a is None else cp.asarray(a) for a in args]
    got = backend().true_cells(cp.asarray(truth), *there)
    assert got[2] == wanted[2] == truth.sum()
    flat = []
    for a, b in zip(got[:2], wanted[:2], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.tolist() == b.tolist()
            flat.append(a.get())
    return np.concatenate(flat)


@pytest.mark.parametrize("index", INDEX)
def test_true_cells(cp, index):
    for n, m in ((0, 0), (1, 0), (1, 1), (300, 0), (300, 1), (300, 300), (1024, 40), (2500, 2000)):
        check_cells(cp, n, m, index=index)
        check_cells(cp, n, m, ordered=False, index=index)
    for n in (0, 1, 300, 1025):
        for ordered in (False, True):
            for share in (0, 0.5, 1):
                check_cells(cp, n, own=True, ordered=ordered, index=index, share=share)


MUTANTS = {
    "rank": ("select", "t - offsets[segment[t]] < k", "t < k", check_sorted),
    "one more": ("select", "segment[t]] < k", "segment[t]] <= k", check_sorted),
    "run": ("select", "<< 32 | sg_rising", "* 0 | sg_rising", check_sorted),
    "listed": ("select", "order_or_null ? order_or_null[e] : e", "e", check_sorted),
    "order": ("select", "order_or_null ? (long long)order_or_null[e] : e] =", "e] =", check_sorted),
    "negative": ("select", "return bits >> 31 ? ~bits", "return bits >> 31 ? bits", check_long),
    "next digit": ("select", "(key & ~mask) == top >> low ?", "true ?", check_long),
    "places": ("select", "if (need == have) return top;", "return top;", check_long),
    "next place": ("select", "if ((key & ~mask) != back >> low)", "if (false)", check_long),
    "first place": ("select", "(end - 1 - p) >> low", "(p - begin) >> low", check_long),
    "bins": ("select", "b += 256) bins[b] = 0;", "b += 256) {}", check_long),
    "few": ("select", "0 < k && k < end - begin", "0 < k", check_long),
    "equal": ("select", "&& place <= last_or_null[run]", "&& true", check_long),
    "long": ("select", "offsets[mine] > most;", "offsets[mine] > most + 100;", check_long),
    "k": ("select", "better < k;\n  }", "better <= k;\n  }", check_top),
    "ties": ("select", "other == own && p < place", "other == own && p > place", check_top),
    "the first": ("select", "listed_or_null ? (long long)listed_or_null[e] : e", "e", check_top),
    "nan": ("select", "x != x ? ", "x == x + 1 ? ", check_top),
    "nan stays": ("select", "!(fabsf(x) <= threshold)", "fabsf(x) > threshold", check_beyond),
    "sign": ("select", "!(fabsf(x) <=", "!(x <=", check_beyond),
    "all but itself": ("select", "SG_ALL_LANES >> (31 - lane)", "(1u << lane) - 1", check_beyond),
    "warps": ("select", "before + earlier + __popc", "before + __popc", check_beyond),
    "rounds": ("select", "before += __shfl_sync(SG_ALL_LANES, sum, 31)", "", check_chunks),
    "chunks": ("select", "before[e >> shift] + upto[e]", "upto[e]", check_chunks),
    "barrier": ("select", "__syncthreads();\n      const int own", "const int own", check_chunks),
    "written again": (
        "select",
        "__syncthreads();  // before `sums`",
        "// before `sums`",
        check_chunks,
    ),
    "place": ("select", "place = sg_upto(before, upto, shift, e - 1)", "place = e", check_compact),
    "all": ("select", "if (sg_upto(before, upto, shift, e) == place) continue;", "", check_compact),
    "last offset": ("select", "r <= runs", "r < runs", check_compact),
    "end": (
        "select",
        "(long long)offsets_or_null[r] - 1",
        "(long long)offsets_or_null[r]",
        check_compact,
    ),
    "lists": ("select", "to[place] = from[entry]", "to[place] = from[place]", check_compact),
    "numbers": (
        "select",
        "sg_upto(before, upto, shift, cell_or_null[e]) - 1",
        "cell_or_null[e]",
        check_cells,
    ),
    "of the mask": ("select", "place = sum - of_mask", "place = sum", check_cells),
    "where": ("select", "entry_or_null ? entry_or_null[e] : (I)e", "(I)e", check_cells),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_noticed(sim, monkeypatch, mutant):
    notices(sim, monkeypatch, MUTANTS[mutant], cuda_select)


def test_launches(sim):
    """Counted, listed, and one wait."""
    values, ids = sim.asarray(np.arange(300) % 3, dtype="f"), sim.arange(300, dtype="i")
    offsets = sim.asarray(np.array([0, 100, 300], "i"))
    runs = Ranked(offsets, 200, 300, None)
    longer = sim.asarray(np.arange(2000) % 7, dtype="f")
    long_runs = Ranked(sim.asarray(np.array([0, 2000], "i")), 2000, 2000, None)
    calls = (
        lambda be: be.compact(be.beyond(values), (ids, ids), offsets),
        lambda be: be.compact(values > 0, (ids, ids), offsets),
        lambda be: be.compact(be.largest_in_runs(values, runs, 3, True), (ids, ids), offsets),
        lambda be: be.compact(be.largest_in_runs(longer, long_runs, 3, True), ()),
        lambda be: be.true_cells(values > 0, ids, None, ids),
    )
    for call, expected in zip(calls, (2, 3, 3, 3, 3), strict=True):
        before = cudasim.synchronisations()
        with cudasim.record_launches() as launches:
            call(backend())
        assert len(launches) == expected
        assert cudasim.synchronisations() - before == 1
