"""What a process shares or runs out of: threads, Ctrl-C, memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import threadpoolctl

import sparsegrad as sg
from sparsegrad.backends import cpu_jit_launch

# ---- threads -----------------------------------------------------------------------------------


def blas() -> set[int]:
    return {
        pool["num_threads"]
        for pool in threadpoolctl.threadpool_info()
        if pool["user_api"] == "blas"
    }


def test_one_number_governs_kernels_and_blas() -> None:
    before = sg.get_num_threads()
    try:
        for n in (1, 2):
            sg.set_num_threads(n)
            assert sg.get_num_threads() == n
            assert blas() == {n}
    finally:
        sg.set_num_threads(before)
    with pytest.raises(ValueError, match="set_num_threads: expected at least 1, got 0"):
        sg.set_num_threads(0)
    with pytest.raises(TypeError):
        sg.set_num_threads(1.5)  # type: ignore[arg-type]
    assert sg.get_num_threads() == before


def test_a_long_kernel_has_no_more_threads_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_jit_launch, "_num_threads", 2)
    ran, together = set(), threading.Barrier(2, timeout=30)

    def kernel(ticket: np.ndarray, tasks: int) -> None:
        ran.add(threading.current_thread().name)
        together.wait()

    cpu_jit_launch.launch(kernel, (8,), 8, cpu_jit_launch._LONG)
    assert len(ran) == 2
    assert threading.main_thread().name not in ran  # it waits, for signals too


def test_an_error_in_a_long_kernel_arrives() -> None:
    def kernel(ticket: np.ndarray) -> None:
        raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here"):
        cpu_jit_launch.launch(kernel, (), 8, cpu_jit_launch._LONG)


def test_threads_stay_usable_after_an_error_and_forget_what_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_jit_launch, "_num_threads", 3)
    pool, main = cpu_jit_launch._Pool(), threading.current_thread()
    monkeypatch.setattr(cpu_jit_launch, "_pool", pool)
    both = threading.Barrier(2, timeout=30)

    def failing(ticket: np.ndarray, here: bool) -> None:
        both.wait()
        if (threading.current_thread() is main) == here:
            raise ZeroDivisionError

    for here in (True, False, True):
        with pytest.raises(ZeroDivisionError):
            cpu_jit_launch.launch(failing, (here,), 2, cpu_jit_launch._PARALLEL)

    ran: list[str] = []
    for _ in range(300):
        kernel = lambda ticket: ran.append(threading.current_thread().name)
        cpu_jit_launch.launch(kernel, (), 3, cpu_jit_launch._PARALLEL)
    assert ran.count(main.name) == 300 and len(ran) <= 900
    until = time.monotonic() + 30
    while not pool.jobs.empty():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert pool.shown is None and not pool.free.locked()


@pytest.mark.skipif(cpu_jit_launch._cpu is None, reason="threads cannot be placed here")
def test_helpers_keep_off_the_cpu_of_their_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Linux would wake them, to wait for a tick beside an idle CPU."""
    monkeypatch.setattr(cpu_jit_launch, "_num_threads", 3)
    monkeypatch.setattr(cpu_jit_launch, "_TICK", 0)
    pool = cpu_jit_launch._Pool()
    monkeypatch.setattr(cpu_jit_launch, "_pool", pool)
    everywhere = os.sched_getaffinity(0)
    here = min(everywhere)
    try:
        os.sched_setaffinity(0, everywhere)
    except OSError:
        pytest.skip("threads may not be placed here")

    def launch(elements: int) -> list[set[int]]:
        cpu_jit_launch.launch(lambda ticket: None, (), 3, elements)
        return [os.sched_getaffinity(thread) for thread in pool.threads]

    for cpu in everywhere:
        monkeypatch.setattr(cpu_jit_launch, "_cpu", lambda cpu=cpu: cpu)
        elsewhere = everywhere - {cpu} or everywhere
        assert launch(cpu_jit_launch._PARALLEL) == [elsewhere, elsewhere]
    # A kernel that may take long runs without its caller, and has a helper more in its place.
    assert launch(cpu_jit_launch._LONG) == [{cpu}, elsewhere, elsewhere]
    try:  # a caller that may run on one CPU alone
        os.sched_setaffinity(0, {here})
        monkeypatch.setattr(cpu_jit_launch, "_cpu", lambda: here)
        assert launch(cpu_jit_launch._PARALLEL) == 3 * [{here}]
    finally:
        os.sched_setaffinity(0, everywhere)


def test_a_thread_that_has_worked_finds_the_next_job_on_the_board() -> None:
    from sparsegrad.backends.cpu_jit_kernels_wait import linger, settle

    board = np.full(cpu_jit_launch._BOARD, cpu_jit_launch._NO_MORE, np.int64)
    tasks, done = cpu_jit_launch._TASKS, cpu_jit_launch._DONE
    board[done] = 0
    assert not linger[()](board, 10)  # there is none
    board[0], board[tasks] = 0, 8
    assert not linger[()](board, 10)  # its caller has not begun, and holds the interpreter lock
    board[0] = 3
    assert linger[()](board, 10)
    board[0] = 8
    assert not linger[()](board, 10)  # no task is left
    assert board[done] == 4  # each time a helper was done
    settle[()](board, 4, 1 << 62)  # at once


# ---- Ctrl-C ------------------------------------------------------------------------------------
SLOW = pytest.mark.slow
INTERRUPTED = """
    import os, signal, threading, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    import numpy as np
    import sparsegrad as sg
    from sparsegrad.backends import cpu_jit_launch
    cpu_jit_launch.launch(lambda ticket: None, (), 1, cpu_jit_launch._LONG)  # there are threads
    {setup}
    def interrupt():
        started.wait()
        time.sleep(0.2)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    started, sent = threading.Event(), []
    threading.Thread(target=interrupt).start()
    try:
        started.set()
        while True:
            run()
    except KeyboardInterrupt:
        waited = time.monotonic() - sent[0]
        assert waited < 5, waited  # on a busy machine; without interruption a run takes longer
    {after}
    print("usable")
"""

PRODUCT = """
    n, k = 1000, 8192
    rng = np.random.default_rng(0)
    row, col = np.divmod(np.flatnonzero(rng.random(n * n) < 0.4), n)
    A = sg.coo([row, col], np.ones(row.size, "f4"), (n, n)).to("csr")
    x = sg.ones(n, k)
    A @ sg.ones(n, 256)  # compiled by now
    run = lambda: A @ x
"""
SORTING = """
    n = 1 << 24
    key = np.random.default_rng(0).integers(0, n, n)
    shape = (n, n)
    coords = (key, key[::-1].copy())
    from sparsegrad.backends.cpu_jit import CpuJit
    CpuJit().sort_coo(tuple(c[:100_000] for c in coords), shape)
    run = lambda: CpuJit().sort_coo(coords, shape)
"""
DENSE = """
    a = sg.ones(4000, 4000)
    sg.ones(300, 300) @ sg.ones(300, 300)
    run = lambda: a @ a
"""
SLOW_TASKS = """
    def slow(ticket, tasks):  # a minute
        while ticket[0] < tasks:
            ticket[0] += 1
            time.sleep(0.01)
            at.append(ticket[0])
    at = []
    run = lambda: cpu_jit_launch.launch(slow, (10_000,), 10_000, cpu_jit_launch._LONG)
"""
STUCK = """
    def stuck(ticket):  # one task that looks at nothing, and ends before the process
        time.sleep(3)
        print("ended")
    run = lambda: cpu_jit_launch.launch(stuck, (), 1, cpu_jit_launch._LONG)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT between processes")
@pytest.mark.parametrize(
    ("setup", "after"),
    [
        pytest.param(SLOW_TASKS, "n = len(at); time.sleep(0.2); assert len(at) == n", id="tasks"),
        pytest.param(STUCK, "assert float((sg.ones(3, 3) @ sg.ones(3)).sum()) == 9", id="stuck"),
        pytest.param(DENSE, "assert float((sg.ones(9, 300) @ a[:300, :1])[0]) == 300", id="dense"),
        pytest.param(PRODUCT, "assert (A @ x)[0, 0] == A.indptr[1]", id="spmm", marks=SLOW),
        pytest.param(SORTING, "assert run().size == n", id="sort", marks=SLOW),
    ],
)  # fmt: skip
def test_ctrl_c_in_a_long_kernel(setup: str, after: str) -> None:
    code = textwrap.dedent(INTERRUPTED).format(setup=textwrap.dedent(setup).strip(), after=after)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    # What cannot be stopped is waited for, but not by the program that goes on.
    printed = ["usable", "ended"] if "ended" in setup else ["usable"]
    assert (done.stdout.split(), done.returncode) == (printed, 0), done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT between processes")
def test_ctrl_c_that_nobody_catches_ends_the_process() -> None:
    code = f"""
import os, signal, threading, time
from sparsegrad.backends import cpu_jit_launch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
cpu_jit_launch.launch(lambda ticket: time.sleep(60), (), 1, {cpu_jit_launch._LONG})
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert "KeyboardInterrupt" in done.stderr
    assert done.returncode in (130, -signal.SIGINT)


# ---- memory ------------------------------------------------------------------------------------
def test_out_of_memory_names_the_op_and_the_bytes() -> None:
    x = sg.ones(10**7, 1, requires_grad=True)
    text = (
        r"mul: out of memory: 400,000,000,000,000 bytes for an array of shape "
        r"\(10000000, 10000000\) and dtype float32; got a: Tensor\(10000000, 1\) float32, b: "
    )
    with pytest.raises(sg.OutOfMemoryError, match=text):
        x * x.T
    text = r"zeros: out of memory: 8,000,000,000,000 bytes for an array of shape \(1000000, 10"
    with pytest.raises(MemoryError, match=text):  # a MemoryError for who knows no better
        sg.zeros(10**6, 10**6, dtype="float64")
    with pytest.raises(sg.OutOfMemoryError, match="full: out of memory: 4,000,000,000,000,000,00"):
        sg.full((10**9, 10**9), 1.0)  # more than addresses reach
    A = sg.sparse_eye(10**7)
    with pytest.raises(sg.OutOfMemoryError, match=r"out of memory: 400,000,000,000,000 bytes"):
        A.to_dense()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs RLIMIT_AS")
def test_out_of_memory_in_a_backward_pass_changes_nothing() -> None:
    code = """
import resource
import sparsegrad as sg

def room(nbytes):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + nbytes if nbytes else hard, hard))

small = sg.ones(1, requires_grad=True)
x = sg.ones(1 << 25, requires_grad=True)  # 128 MB
y = small.sum() + (x * sg.ones(1 << 25)).sum()
room(64 << 20)
try:
    y.backward(retain_graph=True)
except sg.OutOfMemoryError as error:
    assert str(error).startswith("mul: out of memory: 134,217,728 bytes"), error
    assert any("while differentiating mul" in note for note in error.__notes__)
else:
    raise SystemExit("no error")
assert small.grad is None and x.grad is None
room(0)
y.backward()
assert small.grad == 1 and float(x.grad.sum()) == 1 << 25
"""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=60)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs RLIMIT_AS")
def test_out_of_memory_in_index_work_names_it_and_the_bytes() -> None:
    code = """
import resource
import numpy as np
import sparsegrad as sg

n, e = 1 << 22, 1 << 22
rng = np.random.default_rng(0)
row, col = (rng.integers(0, n, e, dtype=np.int32) for _ in range(2))
indptr = np.searchsorted(np.sort(row), np.arange(n + 1)).astype(np.int32)
A, B = (sg.coo([row, col], np.ones(e, np.float32), (n, n)) for _ in range(2))
C = sg.csr(indptr, col, np.ones(e, np.float32), (n, n))
x = sg.tensor(row)
mask, some = sg.tensor(row > 9), sg.tensor(row[: e // 2])
C.index_select(0, some[:9])
cases = [
    ("coo", lambda: sg.coo([row, col], A.values, (n, n))),
    ("csr, csc", lambda: sg.csr(indptr, col, C.values, (n, n))),
    ("perm of a pattern", lambda: A.to("csr")),
    ("perm of a pattern", lambda: A.coalesce()),
    ("put_rows", lambda: A.sum(1)),
    ("fingerprint of a pattern", lambda: A + B),
    ("cut of patterns", lambda: A[5 : n - 5]),
    ("index_select", lambda: C.index_select(0, some)),
    ("indexing", lambda: C[some, some]),
    ("coords of a pattern", lambda: sg.prune(C, 0.5)),
    ("reshape of a pattern", lambda: A.reshape(n // 2, 2 * n)),
    ("triangle of a pattern", lambda: sg.tril(A)),
    ("unique", lambda: sg.unique(x)),
    ("nonzero", lambda: sg.nonzero(x)),
    ("repeat_interleave", lambda: sg.repeat_interleave(x, 9)),
    ("to_sparse", lambda: x.to_sparse()),
]
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), -1))
for name, call in cases:
    try:
        call()
    except sg.OutOfMemoryError as error:
        if not (str(error).startswith(name) and " bytes for an array of shape " in str(error)):
            raise SystemExit(f"{name}: {error}")
    else:
        raise SystemExit(f"{name}: no error")
"""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=60)


# ---- numbers -----------------------------------------------------------------------------------
# Every op is tried on infinities and NaN in test_ops.py; a warning is an error here, too.
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30])
def test_no_warning_from_a_training_step(name: str, value: float) -> None:
    table, p = sg.nn.Parameter(sg.ones(9, 2)), sg.nn.Parameter(sg.ones(300))
    optimizer = getattr(sg.optim, name)([table, p], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (sg.embedding(table, [1, 2, 1]) * value).sum().backward()
        (p * value).sum().backward()
        sg.nn.utils.clip_grad_norm_([table, p], 1.0)
        optimizer.step()


def test_no_warning_from_making_and_changing_tensors() -> None:
    assert sg.tensor([1e300]).item() == np.inf  # float32
    assert sg.full_like(sg.ones(1), 1e300).item() == np.inf
    assert sg.tensor([1e30]).half().item() == np.inf
    assert sg.logspace(0, 1000, 2)[1].item() == np.inf
    x = sg.zeros(2)
    x[0] = 1e300
    x += 3e38
    x += 3e38
    assert x.tolist() == [np.inf, np.inf]
    w = sg.tensor([1.0], requires_grad=True)
    for _ in range(2):  # gradients add up to inf - inf
        (w * np.inf).sum().backward()
    (w * -np.inf).sum().backward()
    assert sg.isnan(w.grad).item()
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        np.log(np.zeros(1))  # the user's own arrays warn as before
