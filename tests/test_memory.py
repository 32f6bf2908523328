"""The memory pool: blocks come back when the last array dies, and never before."""

import gc
import mmap
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad import memory

SIZE = 1 << 14  # float32: 64 KiB, the least that is pooled


@pytest.fixture(autouse=True)
def pool():
    memory.clear()
    with sg.config(enable_memory_pool=True):
        yield
    memory.clear()


def address(array):
    return array.__array_interface__["data"][0]


def test_a_block_is_used_again_when_its_last_view_is_gone():
    before = memory.counts()
    a = memory.empty((SIZE,), "f4")
    where, view = address(a), a[5:9].reshape(2, 2)
    del a
    assert memory.kept_bytes() == 0  # the view still looks at it
    b = memory.empty((SIZE,), "f4")
    assert address(b) != where
    del view
    assert memory.kept_bytes() == 4 * SIZE
    c = memory.empty((SIZE // 2,), "f8")  # another dtype, the same block
    assert address(c) == where and c.flags.writeable and c.flags.c_contiguous
    done = memory.counts().since(before)
    assert (done.requests, done.hits, done.reused_bytes) == (3, 1, 4 * SIZE)
    assert done.hit_rate == pytest.approx(1 / 3)


def test_sizes_are_rounded_by_an_eighth_at_most():
    for n in (SIZE, SIZE + 1, 3 * SIZE - 7, 5 * SIZE + 123):
        a = memory.empty((n,), "f4")
        nbytes = a.nbytes
        del a
        assert nbytes <= memory.kept_bytes() <= nbytes * 1.126
        memory.clear()


def test_small_arrays_and_a_pool_that_is_off_take_no_part():
    before = memory.counts()
    memory.empty((SIZE - 1,), "f4")
    with sg.config(enable_memory_pool=False):
        memory.empty((SIZE,), "f4")
    assert memory.counts() == before


def test_the_limit_bounds_what_is_kept_and_nothing_else():
    with sg.config(pool_size_limit=4 * SIZE):
        held = [memory.empty((SIZE,), "f4") for _ in range(3)]
        held.clear()
        assert memory.kept_bytes() == 4 * SIZE
    with pytest.raises(ValueError, match="pool_size_limit must be >= 0, got -1"):
        sg.config(pool_size_limit=-1).__enter__()


def test_the_sizes_that_came_back_last_stay():
    with sg.config(pool_size_limit=10 * SIZE):
        for n in (SIZE, 2 * SIZE, SIZE // 2, 2 * SIZE):  # 64 + 128 + 32 KiB: more than the limit
            memory.aligned((n,), "u4")
            assert memory.kept_bytes() <= 10 * SIZE
        assert memory.kept_bytes() == 10 * SIZE  # of 2 * SIZE and SIZE // 2 numbers
        before = memory.counts()
        memory.empty((SIZE,), "f4")
        assert memory.counts().since(before).hits == 0


def test_where_memory_is_short_kept_blocks_go_first(monkeypatch):
    memory.empty((SIZE,), "f4")
    new, kept = memory._Held.new.__func__, []

    def once(cls, size):
        kept.append(memory.kept_bytes())
        if len(kept) == 1:
            raise MemoryError
        return new(cls, size)

    monkeypatch.setattr(memory._Held, "new", classmethod(once))
    memory.empty((2 * SIZE,), "f4")
    assert kept == [4 * SIZE, 0]


def test_the_system_may_have_whole_pages_of_large_blocks(monkeypatch):
    told = []
    monkeypatch.setattr(memory, "_advise", lambda *args: told.append(args))
    monkeypatch.setattr(memory, "_LARGE", 16 * SIZE)
    memory.empty((SIZE,), "f4")
    assert not told
    a = memory.empty((4 * SIZE,), "f4")
    start, end = address(a), address(a) + a.nbytes
    del a
    ((first, size, _),) = told
    assert first % mmap.PAGESIZE == size % mmap.PAGESIZE == 0
    assert start <= first < start + mmap.PAGESIZE and end - mmap.PAGESIZE < first + size <= end


def test_it_keeps_a_quarter_of_what_a_container_may_have(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    settings = sys.modules[type(sg.config).__module__]
    monkeypatch.setattr(settings, "_GROUP_LIMITS", (str(limit), str(tmp_path / "none")))
    whole = settings._pool_size.__wrapped__()
    assert whole >= 1 << 29
    limit.write_text(f"{5 << 30}\n")
    assert settings._pool_size.__wrapped__() == min(whole, 5 << 28)
    limit.write_text("max\n")
    assert settings._pool_size.__wrapped__() == whole
    limit.write_text("1024\n")
    assert settings._pool_size.__wrapped__() == 1 << 29


def test_threads_never_share_a_block():
    def work(number):
        with sg.config(enable_memory_pool=True):
            for turn in range(50):
                a = memory.empty((SIZE,), "i4")
                a[:] = number * 1000 + turn
                assert (a == number * 1000 + turn).all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_gradients_are_the_same_with_and_without():
    rng = np.random.default_rng(0)
    A = sg.random_sparse(3000, 3000, density=0.01).requires_grad_()
    x = sg.tensor(rng.standard_normal((3000, 128), dtype=np.float32), requires_grad=True)

    def gradients():
        loss = sg.tanh(sg.softmax(A, 1) @ x).square().sum()
        return [
            g.values.numpy() if i == 0 else g.numpy() for i, g in enumerate(sg.grad(loss, [A, x]))
        ]

    with sg.config(enable_memory_pool=False):
        want = gradients()
    with sg.profile() as prof:
        for _ in range(3):
            for got, expected in zip(gradients(), want, strict=True):
                np.testing.assert_array_equal(got, expected)
    gc.collect()
    assert prof.memory_pool.hits > 0
    assert prof.summary()["memory_pool"]["hit_rate"] == prof.memory_pool.hit_rate > 0
    assert "arrays in used blocks" in prof.table()


def test_what_rows_are_gathered_from_begins_with_a_cache_line():
    data = np.arange(SIZE + 3, dtype="f4")
    for start in range(3):  # wherever the data lie
        x = sg.tensor(data[start : start + SIZE].reshape(-1, 4), requires_grad=True)
        assert address(x.data) % 64 == 0 and x.is_contiguous()
        assert (x.data.ravel() == data[start : start + SIZE]).all()
    assert address(sg.zeros(SIZE).data) % 64 == 0
