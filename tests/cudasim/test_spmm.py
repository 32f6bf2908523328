"""kernels/spmm.cu against NumPy in float64: widths, heads, long rows, ties, dtypes, schedules."""

from functools import partial

import numpy as np
import pytest

import cudasim
from cudasim.numbers import FLOATS, INDEX, close, draw, load, notices, same_every_time, store
from sparsegrad import dtypes
from sparsegrad.backends import cuda_spmm as spmm
from sparsegrad.errors import DtypeError
from sparsegrad.structure.pattern import Pattern

N = 23
LENGTHS = {  # entries of each row
    "random": lambda rng: rng.integers(0, 9, 17),
    "none": lambda rng: np.zeros(5, int),
    "no rows": lambda rng: np.zeros(0, int),
    "one a row": lambda rng: np.ones(40, int),
    "long": lambda rng: np.r_[3, 0, 20, 1, 17, 16, 15, 0],
}


class Given:
    """As much of a pattern as `rows_of` reads."""

    def __init__(self, cp, lengths, index="int32", moved=False):
        rng = np.random.default_rng(len(lengths))
        nnz = int(np.sum(lengths))
        self.indptr = np.r_[0, np.cumsum(lengths)].astype(index)
        one_row = [np.sort(rng.choice(N, size)) for size in lengths]
        self.cols = np.concatenate([*one_row, np.zeros(0, int)]).astype(index)
        self.positions = rng.permutation(nnz).astype(index) if moved else None
        arrays = (self.indptr, self.cols, self.positions)
        self._lines = tuple(None if a is None else cp.asarray(a) for a in arrays)

    def rows(self):
        return self._lines

    sorted_rows = rows

    def cached(self, key, build):
        return build()


def problem(cp, *, lengths="random", k=8, heads=(), dtype="float32", index="int32", moved=False,
            one=False, shift=0, numbers=None):  # fmt: skip
    """(what the kernels read, and the same in NumPy): rows, values, x, and a term per entry."""
    rng = np.random.default_rng(k)
    given = Given(cp, LENGTHS[lengths](rng), index, moved)
    nnz = given.cols.size
    make = numbers or (lambda shape: draw(rng, shape, dtype))
    x, values = make((N, *heads, k)), make((1 if one else nnz, *heads))
    flat = cp.zeros(x.size + shift, x.dtype)[shift:]
    flat[...] = cp.asarray(x.ravel())
    there = cp.asarray(values)
    if one:
        values = np.broadcast_to(values, (nnz, *heads))
        there = cp.broadcast_to(there, (nnz, *heads))
    at = np.arange(nnz) if given.positions is None else given.positions
    with np.errstate(invalid="ignore"):  # inf * 0
        terms = load(values[at], dtype)[..., None] * load(x, dtype)[given.cols]
    return (spmm.rows_of(given), there, flat.reshape(x.shape)), given, terms


def check_sum(cp, longest=16, dtype="float32", mean=False, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spmm, "LONGEST", longest)
        on_device, given, terms = problem(cp, dtype=dtype, **options)
        got = spmm.spmm(*on_device, mean=mean, dtype=dtype).get()
    wanted, scale = (np.zeros(got.shape) for _ in range(2))
    row = np.repeat(np.arange(len(got)), np.diff(given.indptr))
    np.add.at(wanted, row, terms)
    np.add.at(scale, row, np.abs(terms))
    assert got.shape == wanted.shape
    count = np.maximum(np.diff(given.indptr), 1) if mean else np.ones(len(got))
    count = count.reshape(-1, *(1,) * (got.ndim - 1))
    close(got, wanted / count, scale / count, dtype)
    return got


def check_mean(cp, **options):
    return check_sum(cp, mean=True, **options)


def check_extreme(cp, longest=16, dtype="float32", least=False, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spmm, "LONGEST", longest)
        on_device, given, terms = problem(cp, dtype=dtype, **options)
        got, entry = (a.get() for a in spmm.spmm_extreme(*on_device, least, dtype=dtype))
    for i in range(len(got)):
        begin, end = given.indptr[i : i + 2]
        if begin == end:
            assert (load(got[i], dtype) == 0).all()
            assert (entry[i] == -1).all()
            continue
        line = (-1 if least else 1) * terms[begin:end].astype("f" if "16" in dtype else dtype)
        place = begin + np.argmax(line, axis=0)  # the first, and nan above all
        at = place if given.positions is None else given.positions[place]
        assert (entry[i] == at).all()
        best = np.take_along_axis(terms[begin:end], (place - begin)[None], 0)[0]
        nan = np.isnan(best)
        assert (np.isnan(load(got[i], dtype)) == nan).all()
        finite = np.isfinite(best)
        assert (load(got[i], dtype)[~(finite | nan)] == best[~(finite | nan)]).all()
        close(got[i][finite], best[finite], np.abs(best[finite]), dtype)
    return got


def check_chosen(cp, longest=4, dtype="float32", index="int32", lengths="long", k=8, heads=(),
                 fmt="csr", one=False):  # fmt: skip
    """The three kernels of the gradient of extremes, for entries that were drawn."""
    rng = np.random.default_rng(k)
    given = Given(cp, LENGTHS[lengths](rng), index)
    m, nnz = given.indptr.size - 1, given.cols.size
    row, col = np.repeat(np.arange(m), np.diff(given.indptr)), given.cols
    if fmt == "csc":  # entries listed by column
        order = np.lexsort((row, col))
        row, col = row[order], col[order]
    pattern = Pattern.coo((row.astype(index), col.astype(index)), (m, N)).to_device("cuda")
    shape = (m, *heads, k)
    entry = np.full(shape, -1)
    for i in np.unique(row):
        entry[i] = rng.choice(np.flatnonzero(row == i), shape[1:])
    values, x, g = (
        draw(rng, s, dtype) for s in ((1 if one else nnz, *heads), (N, *heads, k), shape)
    )
    at = np.nonzero(entry >= 0)
    e, tail = entry[at], at[1:]
    full = np.broadcast_to(values, (nnz, *heads))
    v, xs, gs = (load(a, dtype) for a in (full[(e, *tail[:-1])], x[(col[e], *tail)], g[at]))
    there = cp.asarray(values)
    there = cp.broadcast_to(there, (nnz, *heads)) if one else there
    there, x_there, g_there = (_as(a, dtype) for a in (there, cp.asarray(x), cp.asarray(g)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spmm, "LONGEST", longest)
        chosen = cp.asarray(entry)
        results = (
            (spmm.chosen_products(pattern, there, x_there, chosen), at, v * xs),
            (spmm.chosen_values(pattern, g_there, x_there, chosen), (e, *tail[:-1]), gs * xs),
            (spmm.chosen_x(pattern, g_there, there, chosen), (col[e], *tail), gs * v),
        )
    for got, where, terms in results:
        wanted, scale = (np.zeros(got.shape) for _ in range(2))
        np.add.at(wanted, where, terms)
        np.add.at(scale, where, np.abs(terms))
        bits = got.view(np.uint16) if dtype == "bfloat16" else got
        close(bits.get(), wanted, scale + 1e-3, dtype)
    return results[2][0].get()


def _as(array, dtype):
    """Bits as the dtype that they are of."""
    return array.view(dtypes.as_dtype("bfloat16")) if dtype == "bfloat16" else array


CHECKS = {"sum": check_sum, "mean": check_mean, "extreme": check_extreme}
EVERY = pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)


@pytest.mark.parametrize("dtype", FLOATS)
@EVERY
def test_widths(cp, check, dtype):
    for k in (1, 2, 3, 4, 6, 8, 12, 16, 33, 64, 128, 136):
        check(cp, k=k, dtype=dtype, lengths="long")


@EVERY
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("index", INDEX)
def test_lengths(cp, check, lengths, index):
    for k in (1, 5, 32):
        check(cp, lengths=lengths, k=k, index=index)
        check(cp, lengths=lengths, k=k, index=index, longest=256, moved=True)


@EVERY
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("heads", "k"), [((1,), 8), ((4,), 8), ((8,), 7), ((3,), 1), ((2, 3), 16)])
def test_heads(cp, check, heads, k, dtype):
    check(cp, heads=heads, k=k, dtype=dtype, lengths="long", moved=True)


@EVERY
@pytest.mark.parametrize("dtype", FLOATS)
def test_unaligned_x(cp, check, dtype):
    for shift in (1, 2, 4):
        check(cp, k=16, shift=shift, dtype=dtype)


@EVERY
def test_one_value_for_all_entries(cp, check):
    for heads in ((), (4,)):
        check(cp, one=True, heads=heads, lengths="long")
        check(cp, one=True, heads=heads, lengths="long", moved=True)


@EVERY
def test_degenerate(cp, check):
    check(cp, k=0)
    check(cp, heads=(0,), k=4)
    check(cp, k=1, lengths="long", longest=1)


def test_extreme_of_ties_and_nan(cp):
    """Few distinct numbers, zeros of both signs and nan: which entry wins is the first."""
    some = np.array([0.0, -0.0, 1.0, -1.0, np.nan, np.inf])
    for few in (some[:4], some):
        for dtype, k in (("float32", 33), ("float64", 1), ("bfloat16", 8)):
            rng = np.random.default_rng(k)
            options = {"k": k, "dtype": dtype, "lengths": "long"}
            options["numbers"] = partial(drawn_from, rng, few, dtype)
            check_extreme(cp, **options)
            check_extreme(cp, least=True, **options)


def drawn_from(rng, few, dtype, shape):
    return store(few[rng.integers(0, few.size, shape)], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_chosen(cp, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    for heads, k in (((), 8), ((), 1), ((3,), 5), ((2, 2), 33)):
        check_chosen(cp, heads=heads, k=k, dtype=dtype)
    check_chosen(cp, dtype=dtype, heads=(2,), fmt="csc", one=True, lengths="random")


def test_chosen_shapes(cp, seed):
    for lengths in LENGTHS:
        check_chosen(cp, lengths=lengths, index="int64")
        check_chosen(cp, lengths=lengths, k=40, fmt="csc", longest=256)
    check_chosen(cp, k=0)
    same_every_time(lambda: check_chosen(cp))


@EVERY
def test_schedules(cp, seed, check):
    for k in (1, 40):
        check(cp, k=k, lengths="long", moved=True)


def test_same_every_time(cp):
    for k in (1, 40):
        same_every_time(lambda k=k: check_sum(cp, k=k, lengths="long"))


def test_offsets_beyond_32_bits(cp):
    """The last row of x starts 2^31 elements after the first; the rest is never touched."""
    width, last = 1 << 15, 1 << 16
    if cp.cuda.runtime.memGetInfo()[0] < 5 << 30:
        pytest.skip("reserves 4 GiB")
    x = cp.empty((last + 1, width), "e")
    row = (np.arange(width) % 1000).astype("e")
    x[last].set(row)
    given = Given(cp, [1])
    given._lines = (given._lines[0], cp.asarray(np.array([last], "i")), None)
    rows, values = spmm.rows_of(given), cp.asarray(np.array([2], "e"))
    assert (spmm.spmm(rows, values, x).get() == 2 * row).all()
    for out in spmm.spmm_extreme(rows, values, x, False):
        assert (out.get() == (2 * row if out.dtype == "e" else 0)).all()


def test_refuses_other_dtypes(cp):
    rows, values, x = problem(cp)[0]
    with pytest.raises(DtypeError, match="no instance"):
        spmm.spmm(rows, values.astype("i"), x.astype("i"))


def test_launches(sim, monkeypatch):
    """One kernel; a second where rows are long. Nothing waits."""
    monkeypatch.setattr(spmm, "LONGEST", 16)
    for lengths, names in (("random", ["sg_spmm_f"]), ("long", ["sg_spmm_f", "sg_spmm_j"])):
        rows, values, x = problem(sim, lengths=lengths)[0]
        before = cudasim.synchronisations()
        with cudasim.record_launches() as launches:
            spmm.spmm(rows, values, x)
        assert [launch.kernel[:9] for launch in launches] == names
        assert cudasim.synchronisations() == before


MUTANTS = [  # text, what replaces it, what notices
    ("e + u * strides < work.count", "true", lambda cp: check_sum(cp, k=4)),
    ("min(e + u * strides, work.count - 1)", "e + u * strides", lambda cp: check_sum(cp, k=4)),
    ("count <= longest", "count < longest", lambda cp: check_sum(cp, lengths="long")),
    ("work.f / k", "0", lambda cp: check_sum(cp, heads=(4,))),
    ("work.f < width", "true", lambda cp: check_sum(cp, k=136)),
    ("o <<= 1)\n      #pragma", "o <<= 2)\n      #pragma",
     lambda cp: check_sum(cp, k=1, lengths="long")),
    ("p += 32 / columns", "p += 32", lambda cp: check_sum(cp, k=32, lengths="long", longest=1)),
    ("if (nan_a || a == b) return i < j;", "if (nan_a || a == b) return i > j;",
     test_extreme_of_ties_and_nan),
    ("if (nan_a != nan_b) return nan_a;", "", test_extreme_of_ties_and_nan),
    ("(long long)col[at] * width", "(int)(col[at] * (unsigned)width)",
     test_offsets_beyond_32_bits),
    ("if (entry[from] == value)", "if (entry[from] >= 0)", check_chosen),
    ("entry[to + f] == e", "entry[to + f] >= 0", check_chosen),
    ("values[e * value_step + f / k]", "values[e * value_step]",
     lambda cp: check_chosen(cp, heads=(3,))),
    ("part_begin[p] + place", "place", lambda cp: check_extreme(cp, lengths="long")),
    ("(long long)col[at] * width", "col[at] * k", lambda cp: check_sum(cp, heads=(4,))),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant[0])
def test_mutant_is_noticed(sim, monkeypatch, mutant):
    notices(sim, monkeypatch, ("spmm", *mutant), spmm)
