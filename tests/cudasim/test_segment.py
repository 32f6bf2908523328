"""kernels/segment.cu and softmax.cu against NumPy in float64: widths, lengths, long segments,
dtypes."""

from itertools import pairwise

import numpy as np
import pytest

import cudasim
from cudasim.numbers import FLOATS, INDEX, close, draw, load, notices, same_every_time, store
from sparsegrad.backends import cuda_segment as segment

LENGTHS = {
    "random": lambda rng: rng.integers(0, 9, 37),
    "none": lambda rng: np.zeros(5, int),
    "no segments": lambda rng: np.zeros(0, int),
    "one each": lambda rng: np.ones(40, int),
    "middling": lambda rng: np.array([0, 31, 33, 64, 0, 200, 256]),
    # Tiles have 1024 entries, or 256: segments that begin, end and lie in every place of them.
    "long": lambda rng: np.array([3, 0, 1024, 1030, 0, 1018, 1025, 1, 5000, 0]),
    "exact": lambda rng: np.array([2048, 1024, 1025, 1023]),
    "long and wide": lambda rng: np.array([3, 257, 0, 252, 300, 256, 1, 600]),
}


def drawn(cp, lengths, dense=(), dtype="float32", index="int32", count=1, numbers=None):
    """Arrays in NumPy, arrays on the device, offsets in NumPy and on the device."""
    lengths = LENGTHS[lengths](np.random.default_rng(1)) if isinstance(lengths, str) else lengths
    offsets = np.r_[0, np.cumsum(lengths)].astype(index)
    rng = np.random.default_rng(offsets[-1])
    shape = (int(offsets[-1]), *dense)
    if dtype in INDEX:
        arrays = [rng.integers(-1000, 1000, shape).astype(dtype) for _ in range(count)]
    else:
        arrays = [draw(rng, shape, dtype) for _ in range(count)]
    if numbers is not None:
        arrays = [store(numbers(rng, shape), dtype) for _ in range(count)]
    return arrays, [cp.asarray(a) for a in arrays], offsets, cp.asarray(offsets)


def runs(offsets):
    return [slice(*pair) for pair in pairwise(offsets)]


def check_sum(cp, dtype="float32", **options):
    (values,), (there,), offsets, offsets_there = drawn(cp, dtype=dtype, **options)
    got = segment.reduce(there, offsets_there, segment.SUM, dtype=dtype).get()
    wide = segment.reduce(there, offsets_there, segment.SUM, wide=True, dtype=dtype).get()
    assert wide.dtype.itemsize >= 4 and (store(wide, dtype) == got).all()  # rounded once
    x = load(values, dtype)
    for i, run in enumerate(runs(offsets)):
        if dtype in INDEX:
            assert (got[i] == x[run].sum(0)).all()
        else:
            close(got[i], x[run].sum(0), np.abs(x[run]).sum(0), dtype)
    return got


def check_largest(cp, dtype="float32", **options):
    (values,), (there,), offsets, offsets_there = drawn(cp, dtype=dtype, **options)
    got = load(segment.reduce(there, offsets_there, segment.LARGEST, dtype=dtype).get(), dtype)
    x = load(values, dtype)
    lowest = float(np.iinfo(dtype).min) if dtype in INDEX else -np.inf
    for i, run in enumerate(runs(offsets)):
        np.testing.assert_array_equal(got[i], x[run].max(0, initial=lowest))
    return got


def check_least(cp, dtype="float32", **options):
    (values,), (there,), offsets, offsets_there = drawn(cp, dtype=dtype, **options)
    got = load(segment.reduce(there, offsets_there, segment.LEAST, dtype=dtype).get(), dtype)
    x = load(values, dtype)
    highest = float(np.iinfo(dtype).max) if dtype in INDEX else np.inf
    for i, run in enumerate(runs(offsets)):
        np.testing.assert_array_equal(got[i], x[run].min(0, initial=highest))
    return got


def dense_softmax(x, logarithm):
    with np.errstate(all="ignore"):
        top = x.max(0, initial=-np.inf)
        shift = np.where(np.isfinite(top), top, 0)
        weight = np.exp(x - shift)
        if logarithm:
            return x - shift - np.log(weight.sum(0))
        return weight / weight.sum(0)


TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 4e-6, "float64": 4e-14}


def agree(got, wanted, dtype, scale=1.0):
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(wanted))
    np.testing.assert_array_equal(got[~np.isfinite(got)], wanted[~np.isfinite(wanted)])
    got, wanted = (np.where(np.isfinite(a), a, 0) for a in (got, wanted))
    limit = TOLERANCE[dtype] * (np.abs(wanted) + 1e-3 * np.abs(scale))
    assert (np.abs(got - wanted) <= limit).all(), (np.abs(got - wanted) / limit).max()


def check_softmax(cp, dtype="float32", logarithm=False, **options):
    (values,), (there,), offsets, offsets_there = drawn(cp, dtype=dtype, **options)
    out = segment.softmax(there, offsets_there, logarithm, dtype=dtype).get()
    x, got = load(values, dtype), load(out, dtype)
    for run in runs(offsets):
        wanted = dense_softmax(x[run], logarithm)
        size = np.abs(x[run], where=np.isfinite(x[run]), out=np.ones(x[run].shape))
        agree(got[run], wanted, dtype, size.max(initial=1) if logarithm else 1e-3)
    return out


def check_log(cp, **options):
    return check_softmax(cp, logarithm=True, **options)


def check_logsumexp(cp, dtype="float32", **options):
    (values,), (there,), offsets, offsets_there = drawn(cp, dtype=dtype, **options)
    out = segment.reduce(there, offsets_there, segment.LOGSUMEXP, dtype=dtype).get()
    x, got = load(values, dtype), load(out, dtype)
    for i, run in enumerate(runs(offsets)):
        if run.start == run.stop:
            assert (got[i] == 0).all()
            continue
        with np.errstate(all="ignore"):
            top = x[run].max(0)
            shift = np.where(np.isfinite(top), top, 0)
            agree(got[i], np.log(np.exp(x[run] - shift).sum(0)) + shift, dtype, 1e3)
    return out


def check_grad(cp, dtype="float32", logarithm=False, **options):
    (g, y), there, offsets, offsets_there = drawn(cp, dtype=dtype, count=2, **options)
    out = segment.softmax_grad(*there, offsets_there, logarithm, dtype=dtype).get()
    g, y = load(g, dtype), load(y, dtype)
    for run in runs(offsets):
        terms = g[run] if logarithm else g[run] * y[run]
        factor = np.exp(y[run]) if logarithm else y[run]
        wanted = g[run] - factor * terms.sum(0) if logarithm else factor * (g[run] - terms.sum(0))
        close(
            out[run],
            wanted,
            np.abs(g[run]) + 2 * np.abs(factor) * (1 + np.abs(terms).sum(0)),
            dtype,
        )
    return out


def check_log_grad(cp, **options):
    return check_grad(cp, logarithm=True, **options)


def few_numbers(rng, shape):
    return rng.integers(-2, 2, shape).astype("f")


def absent_zeros(segments):
    return np.arange(segments) % 3 * 1000  # none in every third segment


def check_largest_of_few(cp, dtype="float32", numbers=few_numbers, least=False, **options):
    """Also the zeros of absent entries; 0 of nothing at all."""
    drawn_ = drawn(cp, dtype=dtype, numbers=numbers, **options)
    (values,), (there,), offsets, offsets_there = drawn_
    absent = absent_zeros(offsets.size - 1)
    op = segment.LEAST if least else segment.LARGEST
    got = segment.reduce(there, offsets_there, op, absent=cp.asarray(absent), dtype=dtype).get()
    x = load(values, dtype)
    for i, run in enumerate(runs(offsets)):
        zeros = np.zeros((int(absent[i] > 0 or run.start == run.stop), *x.shape[1:]))
        wanted = np.concatenate((x[run], zeros))
        wanted = wanted.min(0) if least else wanted.max(0)
        np.testing.assert_array_equal(load(got[i], dtype), wanted)
    return got


def check_least_of_few(cp, **options):
    return check_largest_of_few(cp, least=True, **options)


def check_largest_grad(cp, dtype="float32", numbers=few_numbers, **options):
    """Ties, and absent zeros, get equal shares."""
    drawn_ = drawn(cp, dtype=dtype, numbers=numbers, **options)
    (values,), (there,), offsets, offsets_there = drawn_
    absent = absent_zeros(offsets.size - 1)
    zeros = cp.asarray(absent)
    top = segment.reduce(there, offsets_there, segment.LARGEST, absent=zeros, dtype=dtype)
    g = draw(np.random.default_rng(3), top.shape, dtype)
    out = segment.largest_grad(cp.asarray(g), there, top, offsets_there, zeros, dtype=dtype).get()
    x, top, g = (load(a, dtype) for a in (values, top.get(), g))
    for i, run in enumerate(runs(offsets)):
        hit = x[run] == top[i]
        share = g[i] / np.maximum(hit.sum(0) + (top[i] == 0) * absent[i], 1)
        close(out[run], hit * share, hit * np.abs(share), dtype)
    return out


def factors(rng, shape):
    """So near 1 that thousands of them have a product; some are zeros."""
    return np.where(rng.random(shape) < 0.002, 0, rng.uniform(0.97, 1.03, shape))


def check_product(cp, dtype="float32", numbers=factors, **options):
    """Also with absent zeros; 1 of nothing."""
    (values,), (there,), offsets, offsets_there = drawn(cp, dtype=dtype, numbers=numbers, **options)
    absent = absent_zeros(offsets.size - 1)
    zeros = cp.asarray(absent)
    got = segment.reduce(there, offsets_there, segment.PRODUCT, absent=zeros, dtype=dtype).get()
    x = load(values, dtype)
    for i, run in enumerate(runs(offsets)):
        wanted = x[run].prod(0) * (absent[i] == 0)
        agree(load(got[i], dtype), wanted, dtype, (run.stop - run.start) * 1e3)
    return got


def check_product_grad(cp, dtype="float32", numbers=factors, **options):
    """Of all others, zeros among them; nothing with absent ones."""
    (values,), (there,), offsets, offsets_there = drawn(cp, dtype=dtype, numbers=numbers, **options)
    absent = absent_zeros(offsets.size - 1)
    g = draw(np.random.default_rng(3), (offsets.size - 1, *values.shape[1:]), dtype)
    arrays = (cp.asarray(g), there, offsets_there, cp.asarray(absent))
    out = load(segment.product_grad(*arrays, dtype=dtype).get(), dtype)
    x, g = load(values, dtype), load(g, dtype)
    for i, run in enumerate(runs(offsets)):
        ones = np.ones((1, *x.shape[1:]))
        before = np.concatenate((ones, np.cumprod(x[run], 0)))[:-1]
        after = np.concatenate((ones, np.cumprod(x[run][::-1], 0)))[:-1][::-1]
        wanted = g[i] * before * after * (absent[i] == 0)
        agree(out[run], wanted, dtype, (run.stop - run.start) * 1e3)
    return out


def check_spread(cp, dtype="float32", **options):
    """Each entry takes the row of its segment."""
    (_,), (_,), offsets, offsets_there = drawn(cp, dtype=dtype, **options)
    dense = options.get("dense", ())
    x = draw(np.random.default_rng(2), (offsets.size - 1, *dense), dtype)
    out = segment.spread(cp.asarray(x), offsets_there, int(offsets[-1])).get()
    assert out.dtype == x.dtype
    assert (out == np.repeat(x, np.diff(offsets), axis=0)).all()
    return out


CHECKS = {
    "largest of few": check_largest_of_few,
    "least of few": check_least_of_few,
    "largest_grad": check_largest_grad,
    "product": check_product,
    "product_grad": check_product_grad,
    "spread": check_spread,
    "sum": check_sum,
    "largest": check_largest,
    "least": check_least,
    "logsumexp": check_logsumexp,
    "softmax": check_softmax,
    "log_softmax": check_log,
    "softmax_grad": check_grad,
    "log_softmax_grad": check_log_grad,
}
EVERY = pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)


@EVERY
@pytest.mark.parametrize("lengths", [*LENGTHS])
def test_lengths(cp, check, lengths):
    check(cp, lengths=lengths)
    if lengths != "long":
        check(cp, lengths=lengths, dense=(3,), index="int64")
        check(cp, lengths=lengths, dense=(8,))


@EVERY
@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes(cp, check, dtype):
    for dense in ((), (4,)):
        check(cp, lengths="middling", dense=dense, dtype=dtype)
        check(cp, lengths="long and wide", dense=(9,), dtype=dtype)


@EVERY
def test_widths(cp, check):
    for dense in ((1,), (2,), (2, 3), (31,), (32,), (33,), (70,)):
        check(cp, lengths="random", dense=dense)
    check(cp, lengths="random", dense=(0,))
    check(cp, lengths="long and wide", dense=(40,))


@pytest.mark.parametrize("dtype", INDEX)
def test_integers(cp, dtype):
    for check in (check_sum, check_largest, check_least):
        for lengths in ("random", "long", "none"):
            check(cp, lengths=lengths, dtype=dtype)


SPECIAL = np.array([0.0, 1.0, -np.inf, np.inf, np.nan, 300.0, -300.0, 5.0])


@pytest.mark.parametrize(
    "check", [check_softmax, check_log, check_logsumexp, check_largest, check_least]
)
@pytest.mark.parametrize(
    "few", [(2,), (2, 6), (0, 2), (0, 3, 1), (0, 4), (5, 6), (2, 3, 4)], ids=str
)
def test_special_numbers(cp, check, few):
    """-inf alone, inf, nan and sizes that exp cannot bear, as plain arithmetic has them."""

    def numbers(rng, shape):
        return SPECIAL[list(few)][rng.integers(0, len(few), shape)]

    for dtype in ("float32", "float64"):
        for lengths in ("random", "middling", "exact"):
            check(cp, lengths=lengths, dtype=dtype, numbers=numbers)


@EVERY
def test_schedules(cp, seed, check):
    check(cp, lengths="middling", dense=(3,))
    check(cp, lengths="long and wide", dense=(9,))


@EVERY
def test_same_every_time(cp, check):
    same_every_time(lambda: check(cp, lengths="long and wide", dense=(8,)))


def test_the_gradient_of_nan_is_zero(cp):
    def numbers(rng, shape):
        return np.where(rng.random(shape) < 0.5, np.nan, 1.0)

    check_largest_grad(cp, lengths="random", numbers=numbers)


def test_integers_are_compared_with_absent_zeros(cp):
    for dtype in INDEX:
        values, offsets = cp.asarray([-3, -1, -2, 5], dtype), cp.asarray([0, 2, 2, 3, 4])
        absent = cp.asarray([1, 0, 0, 7])
        got = segment.reduce(values, offsets, segment.LARGEST, absent=absent)
        assert got.tolist() == [0, 0, -2, 5]


def test_extremes_of_bytes(cp):
    for lengths in ("random", "long", "none"):
        (values,), (there,), offsets, offsets_there = drawn(cp, lengths, dtype="int32")
        values, there = (x.astype("uint8") for x in (values, there))
        absent = cp.zeros(offsets.size - 1, "int64")
        for op, fn in ((segment.LARGEST, np.max), (segment.LEAST, np.min)):
            got = segment.reduce(there, offsets_there, op, absent=absent).get()
            parts = [values[run] for run in runs(offsets)]
            assert got.tolist() == [int(fn(part)) if part.size else 0 for part in parts]


def test_rows_of_a_known_length_take_one_launch(sim):
    """Beside the offsets, which are made there."""
    import sparsegrad as sg

    x = sg.tensor(np.random.default_rng(0).standard_normal((40, 60)), device="cuda")
    for op in (sg.softmax, sg.log_softmax, sg.logsumexp):
        with cudasim.record_launches() as launches:
            op(x, 1)
        assert len(launches) == 2


@pytest.mark.parametrize("check", [check_softmax, check_log, check_grad, check_log_grad])
def test_pieces_that_are_joined_first(cp, monkeypatch, check):
    """Those of more tiles than a piece may look at."""
    monkeypatch.setattr(segment, "_MANY", 1)
    for lengths, dense in (("long", ()), ("exact", ()), ("long and wide", (40,))):
        check(cp, lengths=lengths, dense=dense)


def test_spread_of_numbers_of_other_sizes(cp):
    offsets = cp.asarray([0, 2, 3])
    wide = cp.asarray([1, 2], "int64")
    assert segment.spread(wide, offsets, 3).tolist() == [1, 1, 2]
    assert segment.spread(wide.astype(bool), offsets, 3) is None
    assert segment.spread(wide.astype("complex128"), offsets, 3) is None


@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_expand(cp, lengths, index):
    counts = LENGTHS[lengths](np.random.default_rng(1))
    offsets = np.r_[0, np.cumsum(counts)].astype(index)
    got = segment.expand(cp.asarray(offsets), int(offsets[-1])).get()
    assert got.dtype == index
    assert (got == np.repeat(np.arange(counts.size), counts)).all()


def test_launches(sim):
    """One kernel where no segment can be long, else two; nothing waits."""
    for lengths, many in (("random", 1), ("long", 2)):
        (_, _), (x, g), _, offsets = drawn(sim, lengths, count=2)
        absent = sim.zeros(offsets.size - 1, "int64")
        before = cudasim.synchronisations()
        for wanted, run in (
            (many, lambda x=x, offsets=offsets: segment.reduce(x, offsets, segment.SUM)),
            (many, lambda x=x, offsets=offsets: segment.softmax(x, offsets)),
            (many, lambda x=x, g=g, offsets=offsets: segment.softmax_grad(g, x, offsets)),
            (many, lambda x=x, o=offsets, a=absent: segment.product_grad(x[: a.size], x, o, a)),
            (1, lambda x=x, offsets=offsets: segment.spread(x, offsets, x.size)),
        ):
            with cudasim.record_launches() as launches:
                run()
            assert len(launches) == wanted
        assert cudasim.synchronisations() == before


def with_joined_pieces(cp, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "_MANY", 1)
        check_softmax(cp, **options)


MUTANTS = [  # text, what replaces it, what notices; of softmax.cu, where it stands there
    ("if (e + u * step >= count)", "if (false)", lambda cp: check_sum(cp, lengths="random")),
    ("return b > a || b != b ? b : a;", "return b > a ? b : a;",
     lambda cp: test_special_numbers(cp, check_largest, (0, 4))),
    ("return b < a || b != b ? b : a;", "return b < a ? b : a;",
     lambda cp: test_special_numbers(cp, check_least, (0, 4))),
    ("softmax: if (top != missing()) sum *=", "sum *=",
     lambda cp: test_special_numbers(cp, check_softmax, (2, 6))),
    ("return v - v == A(0) ? v : A(0);", "return v;",
     lambda cp: test_special_numbers(cp, check_logsumexp, (2,))),
    ("(begin < first) == (slot == 0)", "(begin <= first) == (slot == 0)",
     lambda cp: check_sum(cp, lengths="exact")),
    ("offsets[segment + 1] < after", "false", lambda cp: check_sum(cp, lengths="long")),
    ("work.live = count <= tile;", "work.live = count < tile;",
     lambda cp: check_sum(cp, lengths="exact")),
    ("(t == first ? 1 : 0)", "0", lambda cp: check_sum(cp, lengths="long")),
    ("softmax: begin / tile * width", "0 * width",
     lambda cp: with_joined_pieces(cp, lengths="long")),
    ("if (t == without) continue;", "", lambda cp: check_product_grad(cp, lengths="long")),
    ("offsets[low + probe] <= entry", "offsets[low + probe] < entry",
     lambda cp: check_sum(cp, lengths="exact")),
    ("o <<= 1", "o <<= 2", lambda cp: check_sum(cp, lengths="middling")),
    ("empty ? A(0) : log", "log", lambda cp: check_logsumexp(cp, lengths="none")),
    ("return zeros ? SgMeet<A, OP>::of(state.number, A(0)) :", "return",
     lambda cp: check_largest_of_few(cp, lengths="random")),
    ("empty ? A(0) : state.number", "state.number",
     lambda cp: check_largest_of_few(cp, lengths="none")),
    ("sg_result<OP>(state, false, absent_or_null,", "sg_result<OP>(state, false, nullptr,",
     lambda cp: check_largest_of_few(cp, lengths="long", numbers=lambda _, n: -np.ones(n))),
    ("missing() { return A(0) / A(0); }", "missing() { return A(0); }",
     lambda cp: check_largest_grad(cp, lengths="random")),
    ("wanted_or_null, piece.segment * width", "wanted_or_null, 0",
     lambda cp: check_largest_grad(cp, lengths="long", numbers=None)),
    ("A(absent[segment])", "A(1)", lambda cp: check_largest_grad(cp, lengths="random")),
    ("held(e) = all;", "held(e) = A(1);", lambda cp: check_product_grad(cp, lengths="long")),
    ("others *= theirs;", "", lambda cp: check_product_grad(cp, lengths="middling")),
    ("others *= v;", "", lambda cp: check_product_grad(cp, lengths="long")),
    ("none() { return A(1); }", "none() { return A(0); }",
     lambda cp: check_product(cp, lengths="random")),
    ("by * (away * others)", "by * others", lambda cp: check_product_grad(cp, lengths="exact")),
    ("zero ? A(0) : by * others", "by * others",
     lambda cp: check_product_grad(cp, lengths="random")),
    ("? to : from;", "? from : from;", lambda cp: check_spread(cp, lengths="random")),
    ("at - i * width);", "0);", lambda cp: check_spread(cp, lengths="random", dense=(3,))),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant[0])
def test_mutant_is_noticed(sim, monkeypatch, mutant):
    text, *more = mutant
    family = "softmax" if text.startswith("softmax: ") else "segment"
    notices(sim, monkeypatch, (family, text.removeprefix("softmax: "), *more), segment)
