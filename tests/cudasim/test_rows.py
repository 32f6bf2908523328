"""kernels/rows.cu: steps of optimizers against the reference in float64, gather against NumPy."""

import numpy as np
import pytest

import cudasim
from cudasim.numbers import FLOATS, INDEX, draw, load, notices, same_every_time, store
from sparsegrad.backends import cuda_rows
from sparsegrad.backends.base import Backend
from sparsegrad.backends.cuda_instances import SOURCES, TABLES
from sparsegrad.backends.steps import (
    AdagradFactors,
    AdamFactors,
    RmspropFactors,
    RowGradient,
    SgdFactors,
)

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-13}

# Name, factors, state arrays like p, whether one number a row is kept, of which dtype.
STEPS = {
    "sgd": ("sgd", SgdFactors(0.1, 0.0, 0.01, False), 0, None),
    "momentum": ("sgd", SgdFactors(0.1, 0.9, 0.01, False), 1, None),
    "nesterov": ("sgd", SgdFactors(0.1, 0.9, 0.0, True), 1, None),
    "dampened": ("sgd", SgdFactors(0.1, 0.9, 0.01, False, 0.7), 1, None),
    "adagrad": ("adagrad", AdagradFactors(0.1, 0.01, 1e-3), 1, None),
    "rowwise": ("rowwise_adagrad", AdagradFactors(0.1, 0.01, 1e-3), 0, "p"),
    "rmsprop": ("rmsprop", RmspropFactors(0.1, 0.9, 1e-3, 0.01, 0.0, False), 1, None),
    "centered": ("rmsprop", RmspropFactors(0.1, 0.9, 1e-1, 0.01, 0.0, True), 2, None),
    "rms momentum": ("rmsprop", RmspropFactors(0.1, 0.9, 1e-1, 0.0, 0.9, False), 2, None),
    "rms whole": ("rmsprop", RmspropFactors(0.1, 0.9, 1e-1, 0.01, 0.9, True), 3, None),
    "adam": ("adam", AdamFactors(0.9, 0.999, 0.01, 0.2, 0.05, 1e-3, 0.01, 0.99), 2, None),
    "amsgrad": ("adam", AdamFactors(0.9, 0.999, 0.01, 0.2, 0.05, 1e-3, 0, 1, True), 3, None),
    "adam by row": ("adam", AdamFactors(0.9, 0.99, 0.01, 1.0, 1.0, 1e-3, 0.0, 1.0), 2, "int64"),
}

# Entries of each touched row.
LENGTHS = {
    "single": np.ones(19, int),
    "several": np.array([1, 3, 2, 5, 1, 7]),
    "none": np.zeros(0, int),
    "long": np.array([1, 200, 64, 65, 3, 128, 129, 1, 63]),
    "tiles": np.array([64, 65, 127, 64]),
    "one": np.array([300]),
}


def backend():
    from sparsegrad.backends.cuda import Cuda

    return Cuda()


def ml_dtype(array, dtype):
    """What a backend is given: bits of bfloat16 as an array of that dtype."""
    if dtype != "bfloat16":
        return array
    return array.view(pytest.importorskip("ml_dtypes").bfloat16)


def drawn(step, lengths, width=8, dtype="float32", index="int32", order=True):
    """Arrays in NumPy: p, gradient, state."""
    rng = np.random.default_rng(width)
    count, n = len(lengths), 3 * len(lengths) + 2
    rows = np.sort(rng.permutation(n)[:count]).astype(index)
    entries = int(lengths.sum())
    perm = rng.permutation(entries).astype(index) if order else None
    indptr = np.r_[0, np.cumsum(lengths)].astype(index)
    values = draw(rng, (entries, width), dtype)
    alone = indptr[:-1][lengths == 1]
    alone = alone if perm is None else perm[alone]
    values[alone, : width // 2] = 0  # what some lanes see of a row is zero
    if len(alone) > 1:
        values[alone[1]] = 0  # and this one is not touched
    _, _, slots, by_row = STEPS[step]
    p = draw(rng, (n, width), dtype)
    state = [store(np.abs(rng.standard_normal(p.shape)), dtype) for _ in range(slots)]
    if by_row == "int64":
        state.append(rng.integers(0, 5, n))
    elif by_row:
        state.append(store(np.abs(rng.standard_normal(n)), dtype))
    return p, RowGradient(rows, perm, indptr, values), state


def reference(method, factors, p, grad, state, dtype):
    """p and state after a step of the reference in float64."""
    wide = [a if a.dtype == np.int64 else load(a, dtype) for a in (p, *state)]
    wide = [a.copy() for a in wide]
    if isinstance(grad, RowGradient):
        grad = grad._replace(values=load(grad.values, dtype))
    else:
        grad = load(grad, dtype)
    getattr(Backend(), method)(factors, wide[0], grad, *wide[1:])
    return wide


def placed(cp, a, dtype):
    if a is None:
        return None
    return cp.asarray(a if a.dtype.name in INDEX else ml_dtype(a, dtype))


def uncounted(cp, grad):
    """The same where only the device knows how many rows there are; the rest is never written."""
    e, u = len(grad.values), len(grad.rows)
    rows, indptr = cp.empty(e, grad.rows.dtype), cp.empty(e + 1, grad.rows.dtype)
    rows[:u], indptr[: u + 1] = grad.rows, grad.indptr
    return grad._replace(rows=rows, indptr=indptr, n_rows=cp.asarray([u], grad.rows.dtype))


def check_step(cp, step="adam", lengths="several", dtype="float32", everywhere=False,
               counted=True, apart=0, **options):  # fmt: skip
    method, factors, _, _ = STEPS[step]
    p, grad, state = drawn(step, LENGTHS[lengths], dtype=dtype, **options)
    if everywhere:
        grad = draw(np.random.default_rng(2), p.shape, dtype)
    wanted = reference(method, factors, p, grad, state, dtype) if everywhere else None
    if wanted is None:
        wanted = reference(f"{method}_rows", factors, p, grad, state, dtype)

    def place(a):
        return placed(cp, a, dtype)

    there = [place(a) for a in (p, *state)]
    given = place(grad) if everywhere else RowGradient(*map(place, grad))
    if not counted:
        given = uncounted(cp, given)
    if apart:  # a part of the gradient of several tables
        whole = cp.zeros((len(given.values), p.shape[1] + apart), given.values.dtype)
        whole[:, apart:] = given.values
        given = given._replace(values=whole[:, apart:])
    name = method if everywhere else f"{method}_rows"
    getattr(backend(), name)(factors, there[0], given, *there[1:])
    got = [a.get() for a in there]
    for found, value in zip(got, wanted, strict=True):
        found = (
            found.view(np.uint16) if dtype == "bfloat16" and found.dtype.itemsize == 2 else found
        )
        if value.dtype == np.int64:
            assert (found == value).all()
        else:
            error = np.abs(load(found, dtype) - value)
            scale = 1 + np.abs(value)
            assert (error <= TOLERANCE[dtype] * scale * (1 + LENGTHS[lengths].max(initial=0))).all()
    return np.concatenate([a.astype(float).ravel() for a in got])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("step", STEPS)
def test_steps(cp, step, dtype):
    for lengths in ("several", "single", "none"):
        check_step(cp, step, lengths, dtype)
    check_step(cp, step, "several", dtype, everywhere=True)


@pytest.mark.parametrize("step", STEPS)
def test_long_runs(cp, step):
    for lengths in ("long", "tiles", "one"):
        check_step(cp, step, lengths)
    check_step(cp, step, "long", "float16", width=3, order=False)


@pytest.mark.parametrize("step", STEPS)
def test_a_count_that_only_the_device_knows(cp, step):
    for lengths in ("several", "single", "long", "one"):
        check_step(cp, step, lengths, counted=False)
    check_step(cp, step, "long", "float16", counted=False, index="int64")


@pytest.mark.parametrize("apart", [4, 3])
def test_entries_that_lie_apart(cp, apart):
    for lengths in ("several", "long"):
        check_step(cp, "adam", lengths, apart=apart)
        check_step(cp, "rowwise", lengths, "float16", apart=apart, width=12)


def check_many(cp, step="adam", dtype="float32", count=5, launches=None):
    """Many parameters of all lengths and widths come to the same bits as each alone."""
    method, factors, _, _ = STEPS[step]
    alone, together, steps = [], [], []
    for i in range(count):
        lengths = [*LENGTHS.values()][i % len(LENGTHS)]
        width = (8, 3, 260, 1, 64, 12)[i % 6]
        p, grad, state = drawn(step, lengths, width, dtype, order=i % 2 == 0)
        for held in (alone, together):
            held.append([placed(cp, a, dtype) for a in (p, *state)])
        given = RowGradient(*(placed(cp, a, dtype) for a in grad))
        given = uncounted(cp, given) if i % 3 == 1 and len(grad.values) else given
        getattr(backend(), f"{method}_rows")(factors, alone[-1][0], given, *alone[-1][1:])
        steps.append((factors, together[-1][0], given, *together[-1][1:]))
    with cudasim.record_launches() if launches is not None else memoryview(b"") as found:
        backend().rows_of_many(method, steps)
    if launches is not None:
        assert len(found) == launches, [launch.kernel for launch in found]
    for a, b in zip(alone, together, strict=True):
        for x, y in zip(a, b, strict=True):
            assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("step", STEPS)
def test_many_parameters(cp, step, dtype):
    check_many(cp, step, dtype)


def test_more_parameters_than_a_launch_takes(cp):
    check_many(cp, count=2 * TABLES + 3)


def test_many_parameters_by_schedule(cp, seed):
    check_many(cp, "rowwise", count=9)


def test_many_parameters_of_different_kinds(cp):
    """Other dtypes, other factors, and arrays that no kernel takes, in one call."""
    p = [cp.ones((4, 3), "f"), cp.ones((4, 3), "d"), cp.ones((3, 4), "f").T, cp.ones((4, 3), "f")]
    rates = (0.5, 0.5, 0.5, 0.25)
    rows = cp.asarray([0, 2], "i")
    steps = [
        (SgdFactors(rate, 0.0, 0.0, False), x, RowGradient(rows, None, None, cp.ones((2, 3))))
        for rate, x in zip(rates, p, strict=True)
    ]
    backend().rows_of_many("sgd", steps)
    for rate, x in zip(rates, p, strict=True):
        assert x.tolist() == [[1 - rate] * 3, [1.0] * 3, [1 - rate] * 3, [1.0] * 3]


@pytest.mark.parametrize("step", ["adam", "rowwise"])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 12, 64, 130, 140, 260])
def test_widths(cp, step, width):
    """Rows shorter and longer than 32 lanes, aligned or not."""
    for dtype in ("float32", "bfloat16", "float64"):
        check_step(cp, step, "several", dtype, width=width)
    check_step(cp, step, "long", width=width, index="int64")


def test_steps_by_schedule(cp, seed):
    check_step(cp, "adam by row", "long", width=140)
    check_step(cp, "rowwise", "long", width=140)


def test_steps_are_deterministic(cp):
    same_every_time(lambda: check_step(cp, "adam", "long", width=12))


def test_rows_out_of_range_are_left_alone(cp):
    """An index whose check still waits must not write anywhere."""
    p = cp.ones((4, 8), "f")
    grad = RowGradient(cp.asarray([-1, 2, 4], "i"), None, None, cp.ones((3, 8), "f"))
    backend().sgd_rows(SgdFactors(0.5, 0.0, 0.0, False), p, grad)
    assert (p.get() == [[1.0], [1.0], [0.5], [1.0]]).all()


@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "complex128"])
def test_gather(cp, dtype, index):
    rng = np.random.default_rng(0)
    for n, width, count in ((7, 4, 50), (5, 3, 1), (9, 130, 33), (3, 6, 0), (4, 2, 1000)):
        x = rng.integers(-9, 9, (n, width)).astype(dtype)
        ids = rng.integers(-n, n, count).astype(index)
        got = cuda_rows.gather(cp.asarray(x), cp.asarray(ids))
        if got is None:
            assert x[0].nbytes % 4 or x[0].nbytes == 4
        else:
            assert (got.get() == x[ids]).all()


def test_gather_of_shifted_rows(cp):
    x = np.arange(44, dtype="f")
    for shift in range(4):
        there = cp.asarray(x)[shift : shift + 40].reshape(10, 4)
        got = cuda_rows.gather(there, cp.asarray([9, 0, 3]))
        assert (got.get() == x[shift : shift + 40].reshape(10, 4)[[9, 0, 3]]).all()


def test_gather_stays_inside(cp):
    x = cp.arange(20, dtype="f").reshape(5, 4)
    got = cuda_rows.gather(x, cp.asarray([5, -6, 1 << 40]))
    assert (got.get()[:, 0] == [16, 0, 16]).all()


def check_tables(cp, widths=(4, 130, 16, 8), n=37, dtype="float32", index="int32", shift=0):
    """Against NumPy; launches, none where the kernel does not serve."""
    rng = np.random.default_rng(0)
    tables = [rng.integers(-9, 9, (rng.integers(3, 20), w)).astype(dtype) for w in widths]
    ids = np.stack([rng.integers(0, len(x), n) for x in tables]).astype(index)
    there = []
    for x in tables:
        flat = cp.zeros(x.size + shift, dtype)
        flat[shift:] = cp.asarray(x.ravel())
        there.append(flat[shift:].reshape(x.shape))
    listed = cp.asarray(ids)
    with cudasim.record_launches() as found:
        got = cuda_rows._gather_tables(there, listed)
    if got is not None:
        assert (got.get() == np.concatenate([x[i] for x, i in zip(tables, ids)], 1)).all()
        return len(found)
    return 0


@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_gather_of_tables(cp, dtype, index):
    assert check_tables(cp, dtype=dtype, index=index) == 1
    assert check_tables(cp, (3, 1, 0, 70), dtype=dtype, index=index) == (dtype != "float16")
    assert check_tables(cp, (4,), 1000, dtype, index) == 1
    assert check_tables(cp, (4, 2), 0, dtype, index) == 0


def test_gather_of_shifted_tables_and_of_many(cp):
    for shift in range(4):
        assert check_tables(cp, shift=shift) == 1
    assert check_tables(cp, (4, 2) * SOURCES, 5) == 2


def test_gather_of_tables_stays_inside(cp):
    x = cp.arange(20, dtype="f").reshape(5, 4)
    got = cuda_rows._gather_tables([x, x], cp.asarray([[5, -6], [1 << 40, 1]]))
    assert (got.get()[:, ::4] == [[16, 16], [0, 4]]).all()


MUTANTS = {
    "stride": ("rows", "entry * stride", "entry * table.width",
               lambda cp: check_step(cp, "sgd", apart=4)),
    "column": ("rows", "total + table.column + column", "total + column", check_tables),
    "clamp of tables": ("rows", "min(max((long long)index[e + u], 0ll), table.limit - 1)",
                        "(long long)index[e + u]", test_gather_of_tables_stays_inside),
    "half a run": ("rows", "e < end; e += FLIGHT", "e < end - 1; e += FLIGHT",
                   lambda cp: check_step(cp, "sgd")),
    "side": ("rows", "(tile == first)) * table.width", "(tile != first)) * table.width",
             lambda cp: check_step(cp, "sgd", "long")),
    "every row": ("rows", "int live = every;", "int live = 1;",
                  lambda cp: check_step(cp, "adam", "single")),
    "limit": ("rows", "&& row < table.limit", "", test_rows_out_of_range_are_left_alone),
    "lanes": ("rows", "live |= __shfl_xor_sync(SG_ALL_LANES, live, o);", "live |= 0;",
              lambda cp: check_step(cp, "adam", "single", width=12)),
    "all warps": ("rows", "tables.table[tables.count - 1].until", "tables.table[0].until",
                  lambda cp: check_many(cp, "sgd")),
    "own warp": ("rows", "warp -= tables.table[t - 1].until;", "warp -= 0;",
                 lambda cp: check_many(cp, "sgd")),
    "other table": ("rows", "warp >= tables.table[t].until", "warp > tables.table[t].until",
                    lambda cp: check_many(cp, "sgd")),
    "count": ("rows", "table.count_at ? (long long)*(const I*)table.count_at : table.count",
              "table.count", lambda cp: check_step(cp, "sgd", counted=False)),
    "greatest": ("rows", "square[i] > top[i] ? square[i] : top[i]", "square[i]",
                 lambda cp: check_step(cp, "amsgrad")),
    "average": ("rows", "square[v] - mean[v] * mean[v]", "square[v]",
                lambda cp: check_step(cp, "centered")),
    "root": ("rows", "spread < A(0) ? A(0) : spread", "spread",
             lambda cp: check_step(cp, "centered")),
    "buffer": ("rows", "momentum * fast[v] + move[v]", "move[v]",
               lambda cp: check_step(cp, "rms momentum")),
    "root of the mean square": ("rows", "sqrt(root[v]) + least", "root[v] + least",
                                lambda cp: check_step(cp, "rmsprop")),
    "fresh": ("rows", "fresh * move;", "move;", lambda cp: check_step(cp, "dampened")),
    "clamp": ("rows", "min(max(from < 0 ? from + limit : from, 0ll), limit - 1)", "from",
              test_gather_stays_inside),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_noticed(sim, monkeypatch, mutant):
    notices(sim, monkeypatch, MUTANTS[mutant], cuda_rows)


def test_launches(sim):
    """One, or two where a run may be long; nothing waits."""
    before = cudasim.synchronisations()
    for lengths, wanted in (("several", 1), ("long", 2)):
        p, grad, state = drawn("adam", LENGTHS[lengths])
        there = [sim.asarray(a) for a in (p, *state)]
        given = RowGradient(*(placed(sim, a, "float32") for a in grad))
        with cudasim.record_launches() as launches:
            backend().adam_rows(STEPS["adam"][1], there[0], given, *there[1:])
        assert len(launches) == wanted
    assert cudasim.synchronisations() == before


def test_launches_of_many(sim):
    """One for all parameters that have one width of loads, and one for their long runs."""
    check_many(sim, "sgd", count=1, launches=1)
    many = [LENGTHS["several"]] * 20 + [LENGTHS["long"]] * 3
    steps = []
    for lengths in many:
        p, grad, state = drawn("adam", lengths)
        given = RowGradient(*(placed(sim, a, "float32") for a in grad))
        steps.append((STEPS["adam"][1], sim.asarray(p), given, *map(sim.asarray, state)))
    before = cudasim.synchronisations()
    with cudasim.record_launches() as launches:
        backend().rows_of_many("adam", steps)
    assert len(launches) == 2
    assert cudasim.synchronisations() == before
