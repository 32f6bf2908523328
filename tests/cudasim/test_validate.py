"""kernels/validate.cu: what is wrong with indices, the first of it, in one launch."""

import threading

import numpy as np
import pytest

import cudasim
from cudasim.numbers import INDEX, notices, same_every_time
from sparsegrad.backends import cuda_validate
from sparsegrad.backends.cuda_instances import BOUNDS
from sparsegrad.errors import PatternError

# Coordinates, shape, what is known of their order.
COORDS = [
    ([[0, 0, 1], [0, 1, 0]], (2, 2), (True, True)),
    ([[0, 1, 1], [5, 0, 0]], (2, 6), (True, False)),
    ([[0, 1, 0], [5, 0, 0]], (2, 6), None),
    ([[1, 1, 0, 0], [1, 1, 3, 3]], (2, 4), None),
    ([[3, 3, 4]], (5,), (True, False)),
    ([[4, 3]], (5,), None),
    ([[0, 1], [0, 0], [1, 1]], (2, 2, 2), None),
    ([[], []], (2, 2), None),
]


def backend():
    from sparsegrad.backends.cuda import Cuda

    return Cuda()


def refused(check, *args):
    """What PatternError says."""
    try:
        check(*args)
    except PatternError as error:
        return str(error)
    return "nothing"


def check_bounds(cp, index="int32", bad=((77, 500), (31, -2), (300, 9))):
    """The first of several, whatever its value; sorted and reversed lists around it."""
    host = np.arange(400, dtype=index) % 9
    for at, value in bad:
        host[at] = value
    there, (at, value) = cp.asarray(host), min(bad)
    message = f"op: index {value} at position {at} is outside [0, 9)"
    assert refused(backend().check_indices, "op", there, 9) == message
    backend().check_indices("op", there, 9, True)
    assert refused(cuda_validate.raise_pending) == message
    assert refused(cuda_validate.raise_pending) == "nothing"  # said once


@pytest.mark.parametrize("index", INDEX)
def test_indices(cp, index):
    check_bounds(cp, index)
    be = backend()
    for later in (False, True):
        be.check_indices("op", cp.asarray([0, 8, 3], index), 9, later=later)
        be.check_indices("op", cp.asarray([], index), 0, later=later)
        be.check_indices("op", cp.asarray([[2, 1], [0, 0]], index)[:, ::-1], 3, later=later)
        cuda_validate.raise_pending()


def test_values_of_64_bits_are_told_whole(cp):
    for value in (-(1 << 63), -1, (1 << 63) - 1, 0x0123456789ABCDEF, 1 << 22, 1 << 44):
        check_bounds(cp, "int64", bad=((5, value),))


def test_other_integers(cp):
    be = backend()
    be.check_indices("op", cp.asarray([200, 3], "u1"), 256)
    with pytest.raises(PatternError, match="index 200 at position 0"):
        be.check_indices("op", cp.asarray([200, 3], "u1"), 200)
    assert be.extent(cp.asarray([200, 3], "u1")) == (3, 200)


@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize(("coords", "shape", "wanted"), COORDS)
def test_coordinates(cp, coords, shape, wanted, index):
    coords = [np.array(c, index) for c in coords]
    found = backend().check_coords("indices", [cp.asarray(c) for c in coords], shape)
    assert found == wanted
    for d in range(len(shape)):
        if coords[d].size:
            wrong = [c.copy() for c in coords]
            wrong[d][-1] = shape[d]
            there = [cp.asarray(c) for c in wrong]
            message = refused(backend().check_coords, "indices", there, shape)
            assert message.startswith(f"indices[{d}]: index {shape[d]} at position")


def check_order(cp):
    """A list that is long enough for several blocks, out of order or twice at one place."""
    cells = np.sort(np.random.default_rng(0).permutation(50 * 700)[:700])
    row, col = (cells // 700).astype("i"), (cells % 700).astype("i")
    be = backend()
    assert be.check_coords("at", [cp.asarray(row), cp.asarray(col)], (50, 700)) == (True, True)
    for at in (1, 300, 699):
        twice, back = (row.copy(), col.copy()), row.copy()
        twice[0][at], twice[1][at] = row[at - 1], col[at - 1]
        if at == 699:
            back[at] = 0
        else:
            back[at - 1] = 49
        assert be.check_coords("at", [*map(cp.asarray, twice)], (50, 700)) == (True, False)
        assert be.check_coords("at", [cp.asarray(back), cp.asarray(col)], (50, 700)) is None


def test_order(cp):
    check_order(cp)


@pytest.mark.parametrize("index", INDEX)
def test_offsets(cp, index):
    be = backend()
    for good in ([0], [0, 0, 3, 3, 7], np.arange(600)):
        be.check_offsets("indptr", cp.asarray(np.array(good, index)), int(good[-1]))
    for bad, end, message in (
        ([], 0, "must start at 0"),
        ([1, 2], 2, "must start at 0, got"),
        ([0, 2], 3, "must end at nnz = 3, got 2"),
        ([0, 5, 2, 7], 7, "must not fall, got 5 then 2 at 1"),
        ([0, -5, 2, 7], 7, "must not fall, got 0 then -5 at 0"),
    ):
        there = cp.asarray(np.array(bad, index))
        assert refused(be.check_offsets, "indptr", there, end).startswith(f"indptr: {message}")


def check_compressed(cp):
    indptr, indices = cp.asarray([0, 1, 3], "i"), cp.asarray([2, 0, 1], "i")
    be = backend()
    be.check_compressed(indptr, indices, 3)
    assert refused(be.check_compressed, indptr, indices, 2).startswith("indices: index 2 at")
    assert refused(be.check_compressed, indptr, indices[:2], 3).startswith("indptr: must end at")


def test_compressed(cp):
    check_compressed(cp)


def check_extent(cp):
    rng = np.random.default_rng(1)
    for n in (1, 31, 32, 33, 1000):
        ids = rng.integers(-(1 << 40), 1 << 40, n)
        for host in (ids, -np.abs(ids), (ids >> 20).astype("i")):
            assert backend().extent(cp.asarray(host)) == (host.min(), host.max())


def test_extent(cp):
    check_extent(cp)


def test_schedules(cp, seed):
    check_bounds(cp)
    check_order(cp)
    check_extent(cp)


def test_is_deterministic(cp):
    def run():
        host = np.arange(600) - 300
        with cuda_validate._board() as board:
            board.indices(cp.asarray(host), 100)
            return board.read()[-1]

    same_every_time(run)


def test_more_checks_than_there_is_room_for(cp):
    """The host goes on, and none is lost."""
    be, good, bad = backend(), cp.asarray([1, 2]), cp.asarray([1, 7])

    def fill():
        for _ in range(2 * cuda_validate._SLOTS):
            be.check_indices("others", good, 5, later=True)
        cuda_validate.raise_pending()

    waits = cudasim.synchronisations()
    be.check_indices("first", bad, 5, later=True)
    assert refused(fill).startswith("first: index 7 at position 1")
    if cudasim.installed():
        assert cudasim.synchronisations() == waits
    cuda_validate.raise_pending()
    assert refused(fill) == "nothing"
    be.check_indices("last", bad, 5, later=True)
    assert refused(cuda_validate.raise_pending).startswith("last: index 7")


def test_what_was_sent_is_waited_for(cp, monkeypatch):
    """Where the device is behind: nothing has come until somebody waits."""
    be, sent = backend(), []
    monkeypatch.setattr(cuda_validate, "_came", lambda event: sent.append(event))
    be.check_indices("first", cp.asarray([1, 7]), 5, later=True)
    for _ in range(2 * cuda_validate._SLOTS):
        be.check_indices("others", cp.asarray([1, 2]), 5, later=True)
    assert len(sent) > 1
    with pytest.raises(PatternError, match="first: index 7 at position 1"):
        cuda_validate.raise_pending()
    cuda_validate.raise_pending()


def test_checks_of_other_streams_and_threads_are_read(cp):
    be, bad = backend(), cp.asarray([7])

    def elsewhere():
        with cp.cuda.Stream(non_blocking=True):
            be.check_indices("elsewhere", bad, 5, later=True)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    be.check_indices("here", cp.asarray([1]), 5)  # reads its own only
    with pytest.raises(PatternError, match="elsewhere: index 7"):
        cuda_validate.raise_pending()


def test_launches_and_waits(sim):
    """One launch a check, and no wait where it may come later; one wait where it may not."""
    be, ids, ptr = backend(), sim.asarray([0, 2, 1], "i"), sim.asarray([0, 1, 3], "i")
    be.check_indices("op", ids, 3)
    for check, launches, waits in (
        (lambda: be.check_indices("op", ids, 3, later=True), 1, 0),
        (cuda_validate.raise_pending, 1, 1),  # clears what it has read
        (cuda_validate.raise_pending, 0, 0),
        (lambda: be.check_indices("op", ids, 3), 2, 1),
        (lambda: be.check_coords("indices", [ids, ids], (3, 3)), 2, 1),
        (lambda: be.check_compressed(ptr, ids, 3), 3, 1),
        (lambda: be.extent(ids), 2, 1),
    ):
        before = cudasim.synchronisations()
        with cudasim.record_launches() as found:
            check()
        assert len(found) == launches
        assert cudasim.synchronisations() - before == waits


def check_tables(cp, index="int32", bounds=(9, 4, 700), n=50, bad=((3, 1, 4), (7, 2, -2))):
    """Ids by table; the first of several wrong ones, at once and later."""
    refused(cuda_validate.raise_pending)  # what mutants have left
    rng, name = np.random.default_rng(0), "op"
    host = np.stack([rng.integers(0, b, n) for b in bounds], 1).astype(index)
    be = backend()
    for later in (False, True):
        for dtype in INDEX:
            got = be.ids_by_table(name, cp.asarray(host), bounds, np.dtype(dtype), later)
            assert got.dtype == dtype and (got.get() == host.T).all()
    cuda_validate.raise_pending()
    for at, table, value in bad:
        host[at, table] = value
    table, at = min((table, at) for at, table, _ in bad)
    message = (
        f"op of table {table}: index {host[at, table]} at position {at} is outside "
        f"[0, {bounds[table]})"
    )
    args = name, cp.asarray(host), bounds, np.dtype("int32")
    assert refused(be.ids_by_table, *args) == message
    be.ids_by_table(*args, True)
    assert refused(cuda_validate.raise_pending) == message


@pytest.mark.parametrize("index", INDEX)
def test_ids_by_table(cp, index):
    check_tables(cp, index)
    check_tables(cp, index, bad=((9, 2, -1), (3, 2, 1 << 30)))
    check_more_tables(cp, index)


def check_more_tables(cp, index="int32"):
    """Than a launch takes."""
    check_tables(cp, index, (5,) * (BOUNDS + 3), 2, ((1, BOUNDS + 1, 5),))


def test_ids_by_table_are_one_launch(sim):
    ids = sim.zeros((4, 3), "i")
    backend().ids_by_table("op", ids, (1, 2, 3), ids.dtype, True)
    before = cudasim.synchronisations()
    with cudasim.record_launches() as found:
        backend().ids_by_table("op", ids, (1, 2, 3), ids.dtype, True)
    assert len(found) == 1 and cudasim.synchronisations() == before


MUTANTS = {
    "bound": ("validate", "a >= bounds.bound[table]", "a > bounds.bound[table]", check_tables),
    "transposed": ("validate", "(i - table * n) * width", "(i - table * n)", check_tables),
    "columns": ("validate", "width + first + table", "width + table", check_more_tables),
    "first": ("validate", "atomicMin(found + part", "atomicMax(found + part", check_bounds),
    "negative": ("validate", "if (a < 0 || a", "if (a",
                 lambda cp: check_bounds(cp, bad=((31, -2),))),
    "second": ("validate", "(b < 0 || b >= second_bound)", "(b < 0)",
               lambda cp: test_coordinates(cp, *COORDS[0], "int32")),
    "beside": ("validate", "(before == a && beside > b)", "beside > b", check_order),
    "same": ("validate", "order |= 2", "order |= 1", check_order),
    "warp": ("validate", "order |= __shfl_xor_sync(SG_ALL_LANES, order, o);", "", check_order),
    "sign": ("validate", "1ull << 63", "0ull", check_extent),
    "falls": ("validate", "here < before ||", "", lambda cp: test_offsets(cp, "int32")),
    "third": ("validate", "SG_FOUND_BITS * part)", "SG_FOUND_BITS)",
              test_values_of_64_bits_are_told_whole),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_noticed(sim, monkeypatch, mutant):
    notices(sim, monkeypatch, MUTANTS[mutant], cuda_validate)
