"""Our kernels against NumPy in float64: shapes, dtypes, tails, alignments, schedules.

On the simulator this says that they compute the right thing without a race or a stray access, and
nothing about a GPU. With --device=cuda the same tests run there.
"""

import numpy as np
import pytest

import cudasim
from cudasim.numbers import (
    FLOATS,
    INDEX,
    TOLERANCE,
    close,
    draw,
    load,
    notices,
    same_every_time,
    store,
)
from sparsegrad.backends import cuda_coalesce as coalesce
from sparsegrad.backends import cuda_kernels as kernels
from sparsegrad.errors import DtypeError, ShapeError

# ---- sddmm


def check_sddmm(cp, *, m=17, n=23, nnz=150, k=8, heads=(), dtype="float32", index="int32",
                pad=0, shift=0, alpha=1.0, beta=0.0, order="random"):  # fmt: skip
    rng = np.random.default_rng(k + nnz)
    row, col = rng.integers(0, m, nnz), rng.integers(0, n, nnz)
    row = np.sort(row) if order == "sorted" else row

    def place(rows):
        """On the device, rows `pad` further apart than they are long, `shift` from an alignment."""
        host = draw(rng, (rows, *heads, k), dtype)
        width = host[0].size + pad
        flat = cp.asarray(np.zeros(rows * width + shift, host.dtype))[shift:].reshape(rows, width)
        whole = store(np.full((rows, width), np.nan), dtype)
        whole[:, : width - pad] = host.reshape(rows, -1)
        flat[...] = cp.asarray(whole)
        there = flat[:, : width - pad]
        return host, there.reshape(host.shape) if not pad else there

    x, x_there = place(m)
    y, y_there = place(n)
    values = draw(rng, (nnz, *heads), dtype)
    got = kernels.sddmm(
        cp.asarray(row.astype(index)),
        cp.asarray(col.astype(index)),
        x_there,
        y_there,
        alpha=alpha,
        beta=beta,
        values=cp.asarray(values) if beta else None,
        dtype=dtype,
    ).get()
    terms = load(x, dtype)[row] * load(y, dtype)[col]
    wanted = alpha * terms.sum(-1) + beta * load(values, dtype)
    scale = abs(alpha) * np.abs(terms).sum(-1) + abs(beta) * np.abs(load(values, dtype))
    close(got, wanted, scale, dtype)
    return got


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("k", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
def test_sddmm_launch_table(cp, k, dtype):
    check_sddmm(cp, k=k, nnz=40 if k > 128 else 150, dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sddmm_ragged_k(cp, dtype):
    for k in (3, 5, 6, 7, 9, 12, 15, 20, 33, 66, 67, 100, 130):
        check_sddmm(cp, k=k, nnz=45, dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sddmm_padded_rows(cp, dtype):
    """Rows that are aligned although k is not: vector loads and a rest of single ones."""
    for k, pad in ((7, 1), (13, 3), (5, 11), (61, 3), (33, 7), (64, 1), (16, 2)):
        check_sddmm(cp, k=k, pad=pad, nnz=45, dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sddmm_unaligned_arrays(cp, dtype):
    for shift in (1, 2, 3, 4, 8):
        check_sddmm(cp, k=16, shift=shift, nnz=45, dtype=dtype)


@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize("nnz", [0, 1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1000])
def test_sddmm_tails(cp, nnz, index):
    for k in (1, 8, 64):
        check_sddmm(cp, nnz=nnz, k=k, index=index)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("heads", "k"), [((1,), 8), ((4,), 8), ((8,), 7), ((3,), 1), ((2, 3), 16)])
def test_sddmm_heads(cp, heads, k, dtype):
    check_sddmm(cp, heads=heads, k=k, nnz=70, dtype=dtype)
    check_sddmm(cp, heads=heads, k=k, nnz=70, dtype=dtype, index="int64", alpha=0.5, beta=2.0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sddmm_alpha_beta(cp, dtype):
    check_sddmm(cp, k=12, dtype=dtype, alpha=-1.5, beta=0.25)


def test_sddmm_schedules(cp, seed):
    for k in (1, 3, 8, 64):
        check_sddmm(cp, k=k, nnz=300, order="sorted")


def test_sddmm_is_deterministic(cp):
    same_every_time(lambda: check_sddmm(cp, k=100, nnz=200))


def test_sddmm_degenerate(cp):
    check_sddmm(cp, k=0)
    check_sddmm(cp, m=1, n=1, k=4, nnz=64)
    check_sddmm(cp, heads=(0,), k=4)


def test_sddmm_offsets_beyond_32_bits(cp):
    """Rows of a slice may lie far apart: the last of these starts 3 GiB after the first."""
    stride, rows = 1 << 28, 4
    if cp.cuda.runtime.memGetInfo()[0] < 4 << 30:
        pytest.skip("reserves 3 GiB")
    base = cp.empty(((rows - 1) * stride + 4,), "f")
    x = cp.ndarray((rows, 4), "f", base.data, (stride * 4, 4))
    host = np.random.default_rng(0).standard_normal((rows, 4)).astype("f")
    for i in range(rows):
        x[i].set(host[i])
    row, col = (np.array(ids, "i") for ids in ([0, 3, 3, 2], [3, 0, 3, 1]))
    got = kernels.sddmm(cp.asarray(row), cp.asarray(col), x, x).get()
    np.testing.assert_allclose(got, (host[row] * host[col]).sum(1), rtol=1e-6)


def test_sddmm_refuses(cp):
    ids, x = cp.zeros(3, "i"), cp.zeros((4, 8), "f")
    with pytest.raises(ShapeError, match="all but rows must agree"):
        kernels.sddmm(ids, ids, x, cp.zeros((4, 9), "f"))
    with pytest.raises(ShapeError, match="contiguous rows"):
        kernels.sddmm(ids, ids, cp.zeros((4, 16), "f")[:, ::2], x)
    with pytest.raises(DtypeError, match="y must be float32, got float64"):
        kernels.sddmm(ids, ids, x, x.astype("d"))
    with pytest.raises(DtypeError, match="no kernel for dtype int16"):
        kernels.sddmm(ids.astype("h"), ids.astype("h"), x, x)
    with pytest.raises(DtypeError, match="no instance"):
        kernels.sddmm(ids, ids, x.astype("i"), x.astype("i"))


# ---- coalesce


def check_plan(cp, positions, shape, index="int32"):
    """The order of positions, then the distinct ones and where their runs begin."""
    there = cp.asarray(positions.astype(index))
    order = np.lexsort(positions[::-1])
    assert (coalesce.sort_order(there, shape).get() == order).all()
    unique, counts = positions, np.zeros(0, int)
    if positions.shape[1]:
        unique, counts = np.unique(positions, axis=1, return_counts=True)
    there = cp.asarray(np.ascontiguousarray(positions[:, order], index))
    found, start = coalesce.runs(there)
    assert (found.get() == unique).all()
    assert (start.get() == np.r_[0, np.cumsum(counts)]).all()
    assert found.dtype == start.dtype == index


def positions_in(shape, nnz, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, size, nnz) for size in shape])


@pytest.mark.parametrize(
    ("shape", "index"),
    [
        ((20, 30), "int32"),
        ((20, 30), "int64"),
        ((1, 30), "int32"),
        ((1, 1), "int32"),
        ((1 << 16, 1 << 16), "int32"),  # 32 bits: the shift by a whole key
        ((1, 1 << 31), "int32"),
        ((1, 1 << 32), "int64"),
        ((1 << 17, 1 << 16), "int32"),  # 33 bits
        ((1 << 31, 1 << 31), "int32"),
        ((1 << 32, 1 << 32), "int64"),  # 64 bits
        ((1 << 33, 1 << 32), "int64"),  # 65 bits: sorted by dimension
        ((1 << 40, 7, 1 << 40), "int64"),
        ((50,), "int32"),
        ((4, 3, 5), "int32"),
        ((2,) * 8, "int32"),
        ((2,) * 9, "int32"),  # more dimensions than the packing has room for
    ],
)
def test_coalesce_plan(cp, shape, index):
    few = positions_in([min(size, 5) for size in shape], 150)
    top = np.array(shape)[:, None] - 1 - few  # the largest positions there are
    check_plan(cp, np.concatenate([few, top], axis=1), shape, index)


@pytest.mark.parametrize("nnz", [0, 1, 2, 255, 256, 257, 1000])
def test_coalesce_plan_tails(cp, nnz):
    check_plan(cp, positions_in((9, 11), nnz), (9, 11))


@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize("e", [1, 2, 33, 300])
def test_touched_rows_of_tables_are_those_of_each(cp, e, index):
    rng = np.random.default_rng(e)
    sizes = (1, 7, 5000, e, 40)
    ids = np.stack([rng.integers(0, n, e) for n in sizes]).astype(index)
    ids[3] = rng.permutation(e)  # each once: no room is left between this table and the next
    with cudasim.record_launches() as launches:
        found = coalesce.touched_tables(cp.asarray(ids), max(sizes))
    assert len(launches) < 32
    for row, table in zip(ids, found, strict=True):
        rows, perm, start, count = (a.get() for a in table)
        wanted, runs = np.unique(row, return_counts=True)
        u = len(wanted)
        assert {a.dtype.name for a in table} == {index} and count == [u]
        assert (rows[:u] == wanted).all()
        assert (start[: u + 1] == np.r_[0, np.cumsum(runs)]).all()
        assert (perm == np.argsort(row, kind="stable")).all()


def test_coalesce_check(cp):
    for positions, wanted in (
        ([[0, 0, 1], [0, 1, 0]], 0),
        ([[0, 1, 1], [5, 0, 0]], 2),
        ([[0, 1, 0], [5, 0, 0]], 1),
        ([[1, 1, 0, 0], [1, 1, 3, 3]], 3),
        ([[0], [0]], 0),
        ([[], []], 0),
    ):
        for index in INDEX:
            array = cp.asarray(np.array(positions, index).reshape(2, -1))
            assert int(coalesce.coalesce_check(array)[0]) == wanted


RUNS = {  # how many entries fall on one position
    "none repeat": lambda rng, n: np.arange(n),
    "pairs": lambda rng, n: np.arange(n) // 2,
    "random": lambda rng, n: np.sort(rng.integers(0, max(n // 7, 1), n)),
    "all on one": lambda rng, n: np.zeros(n, int),
    "one long among short": lambda rng, n: np.clip(np.arange(n) - n // 8, 0, n // 2),
    "whole tiles": lambda rng, n: np.arange(n) // 256,
}


def check_sum(cp, ids, dense, dtype, index="int32", shift=0):
    """Sum values whose positions are `ids`, in a shuffled order."""
    rng = np.random.default_rng(len(ids))
    ids = rng.permutation(ids)
    order = np.argsort(ids, kind="stable")
    unique, inverse = np.unique(ids, return_inverse=True)
    segment = inverse[order]
    if dtype in TOLERANCE:
        values = draw(rng, (len(ids), *dense), dtype)
    else:
        values = rng.integers(-1000, 1000, (len(ids), *dense)).astype(dtype)
    flat = cp.asarray(np.r_[np.zeros(shift, values.dtype), values.ravel()])
    there = flat[shift:].reshape(values.shape)
    indices = (cp.asarray(a.astype(index)) for a in (segment, order))
    got = coalesce.segment_sum(there, *indices, len(unique), dtype=dtype).get()
    wanted, scale = (np.zeros((len(unique), *dense)) for _ in range(2))
    np.add.at(wanted, inverse, load(values, dtype))
    np.add.at(scale, inverse, np.abs(load(values, dtype)))
    if dtype in TOLERANCE:
        close(got, wanted, scale, dtype)
    else:
        assert (got == wanted).all()
    return got


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("dense", [(), (3,), (8,), (64,), (2, 5)], ids=str)
def test_coalesce_sum_runs(cp, runs, dense):
    for n in (1, 33, 256, 257, 1025):
        check_sum(cp, RUNS[runs](np.random.default_rng(n), n), dense, "float32")


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64"])
@pytest.mark.parametrize("index", INDEX)
def test_coalesce_sum_dtypes(cp, dtype, index):
    ids = RUNS["random"](np.random.default_rng(3), 600)
    for dense in ((), (1,), (5,), (16,)):
        check_sum(cp, ids, dense, dtype, index)


def test_coalesce_sum_widths(cp):
    ids = RUNS["random"](np.random.default_rng(4), 300)
    for width in (2, 4, 7, 12, 15, 31, 32, 33, 128, 132, 200):
        check_sum(cp, ids, (width,), "float32")


def test_coalesce_sum_unaligned(cp):
    for dtype in FLOATS:
        check_sum(cp, RUNS["random"](np.random.default_rng(5), 100), (16,), dtype, shift=1)


def test_coalesce_sum_long_chain(cp):
    """One position with so many tiles that the lanes of `join` go round more than once."""
    check_sum(cp, np.zeros(20_000, int), (), "float64")
    check_sum(cp, np.zeros(5_000, int), (2,), "float64")
    check_sum(cp, np.zeros(0, int), (3,), "float32")
    check_sum(cp, np.zeros(5, int), (0,), "float32")


def test_coalesce_schedules(cp, seed):
    check_plan(cp, positions_in((9, 11), 700), (9, 11))
    for dense in ((), (3,), (16,)):
        for runs in RUNS.values():
            check_sum(cp, runs(np.random.default_rng(6), 600), dense, "float32")


def test_coalesce_is_deterministic(cp):
    ids = RUNS["one long among short"](None, 1000)
    for dense in ((), (3,), (16,)):
        same_every_time(lambda dense=dense: check_sum(cp, ids, dense, "float32"))


def test_launches(sim):
    """One of our kernels for the order, two for the runs, two for the sums, one for sddmm."""
    ids = sim.asarray(positions_in((9, 11), 700).astype("i"))
    values, x = sim.zeros((700, 4), "f"), sim.zeros((11, 8), "f")

    def ours(action):
        with cudasim.record_launches() as launches:
            result = action()
        return result, [launch.kernel for launch in launches if launch.kernel.startswith("sg_")]

    perm, launches = ours(lambda: coalesce.sort_order(ids, (9, 11)))
    assert len(launches) == 1
    (_, start), launches = ours(lambda: coalesce.runs(ids[:, perm]))
    assert len(launches) == 2
    segment = sim.searchsorted(start, sim.arange(700), side="right") - 1
    arrays = (segment.astype("i"), perm.astype("i"), start.size - 1)
    before = cudasim.synchronisations()
    assert len(ours(lambda: coalesce.segment_sum(values, *arrays))[1]) == 2
    assert len(ours(lambda: kernels.sddmm(ids[0], ids[1], x, x))[1]) == 1
    assert cudasim.synchronisations() == before
    assert ours(lambda: kernels.sddmm(ids[0, :0], ids[1, :0], x, x))[1] == []


# ---- the tests above notice a change of the kernels

FLOAT_ROWS = ((16,), "float32")
MUTANTS = [  # family, text, what replaces it, what notices
    ("sddmm", "f + V <= k) {", "true) {", lambda cp: check_sddmm(cp, k=7, pad=1)),
    ("sddmm", "for (int g = f; g < k; ++g)", "for (int g = f + 1; g < k; ++g)",
     lambda cp: check_sddmm(cp, k=7, pad=1)),
    ("sddmm", "min(lane, live - 1)", "lane", lambda cp: check_sddmm(cp, nnz=33)),
    ("sddmm", "slot < live", "slot < 32", lambda cp: check_sddmm(cp, nnz=33)),
    ("sddmm", "u = odd ? 2 : 0;", "u = odd ? 1 : 0;", lambda cp: check_sddmm(cp, k=64)),
    ("sddmm", "(unsigned long long)id * stride_bytes", "(int)(id * stride_bytes)",
     lambda cp: test_sddmm_offsets_beyond_32_bits(cp)),
    ("coalesce", "< 8 * (int)sizeof(K) ? packed << width : 0", "< 99 ? packed << width : 0",
     lambda cp: check_plan(cp, positions_in((1, 9), 9), (1, 1 << 32), "int64")),
    ("coalesce", "if (i == n - 1) start[here] = (I)n;", "",
     lambda cp: check_plan(cp, positions_in((9, 11), 70), (9, 11))),
    ("coalesce", "if (lane == 0 && s == open) v = carry + v;", "",
     lambda cp: check_sum(cp, np.arange(200) // 50, (), "float32")),
    ("coalesce", "goes_on = after < n && segment[after] == s", "goes_on = false",
     lambda cp: check_sum(cp, np.zeros(600, int), (), "float32")),
    ("coalesce", "if (i + u >= rows) break;", "",
     lambda cp: check_sum(cp, np.zeros(33, int), *FLOAT_ROWS)),
    ("coalesce", "if (column >= width) continue;", "",
     lambda cp: check_sum(cp, np.arange(70), (36,), "float32")),
    ("coalesce", "t * tile_rows < n && segment[t * tile_rows] == s", "t * tile_rows < n",
     lambda cp: check_sum(cp, np.arange(300) // 150, *FLOAT_ROWS)),
    ("coalesce", "(first > 0 && segment[first - 1] == s) ||", "",
     lambda cp: check_sum(cp, np.zeros(300, int), *FLOAT_ROWS)),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant[1])
def test_mutant_is_noticed(sim, monkeypatch, mutant):
    notices(sim, monkeypatch, mutant, coalesce)
