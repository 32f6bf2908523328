"""How compiled kernels are made and run: lazily, on a pool of plain Python threads.

Kernels release the interpreter lock, so ordinary threads run them at once. Compared with Numba's
own `parallel=True`, any number of Python threads may launch at once (Numba's default layer aborts
the process), a forked child works (an OpenMP parent's child dies at its first kernel), and a kernel
compiles several times faster. This module does not import Numba before a kernel is launched.

Waking a thread takes as long as many a kernel. So who has just worked looks out for the next job
for a moment before it sleeps (OpenMP's threads do so for milliseconds, and stall their neighbours
on a busy machine), and a caller never waits for a helper that has not begun: it does by itself
whatever nobody else draws. Linux likes to wake a thread on the CPU of its waker, to wait there for
the next tick, milliseconds, while another CPU is idle: helpers are kept off their caller's CPU.

Signals are handled by the main thread, between two steps of the interpreter: a kernel that may take
long runs on the pool alone while the main thread waits, so that Ctrl-C works.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import inspect
import operator
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from sparsegrad.backends import blas

__all__ = ["Kernel", "contiguous", "get_num_threads", "launch", "set_num_threads"]

# Elements touched below which one thread is as fast as two: waking the other, and results that lie
# in the cache of the wrong core, cost about 100 µs.
_PARALLEL = 1 << 19
# Elements from which the main thread hands a kernel over and waits: about 50 ms of work, or half a
# second of cache misses.
_LONG = 1 << 26
_MOMENT = 50e-6  # seconds that a thread stays awake after work, and while others end theirs
_TICK = 1e-3  # seconds between two changes of the CPUs of all helpers, each a call of the system
_POLL = 0.1  # seconds between looks at signals that another thread received
_PATIENCE = 0.3  # seconds that an interrupted kernel has to end the tasks it is at
_LAST_PATIENCE = 10.0  # the same when the process ends
_NO_MORE = np.iinfo(np.int64).max // 2  # a ticket beyond every task
_TASKS, _DONE, _BOARD = 1, 16, 24  # places on the board beside the ticket, and its size


def _default_threads() -> int:
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 0:
            return int(value)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_num_threads = _default_threads()


def get_num_threads() -> int:
    """Threads that an op on the CPU may use: what `set_num_threads` chose, else NUMBA_NUM_THREADS,
    OMP_NUM_THREADS, or the number of CPUs this process may run on.

    >>> import sparsegrad as sg
    >>> sg.get_num_threads() >= 1
    True
    """
    return _num_threads


def set_num_threads(n: int) -> None:
    """Set the threads that an op on the CPU may use, in sparse kernels and in the BLAS behind dense
    products and solvers alike. No result of a sparse op depends on it.

    It holds for the process, NumPy and SciPy included. Raises ValueError for n < 1.

    >>> import sparsegrad as sg
    >>> before = sg.get_num_threads()
    >>> sg.set_num_threads(1)
    >>> sg.get_num_threads()
    1
    >>> sg.set_num_threads(before)
    """
    global _num_threads
    count = operator.index(n)
    if count < 1:
        raise ValueError(f"set_num_threads: expected at least 1, got {n}")
    blas.set_threads(count)
    _num_threads = count


class _Job:
    """One kernel call that helpers may join until its caller has found no work left."""

    __slots__ = ("args", "done", "ended", "kernel", "lock", "places", "started")

    def __init__(self, kernel: Callable[..., Any], args: tuple[Any, ...], places: int) -> None:
        self.kernel, self.args, self.places = kernel, args, places
        self.lock, self.started, self.ended = threading.Lock(), 0, 0
        self.done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def join(self) -> bool:
        """Help, unless the job is over or has enough helpers."""
        with self.lock:
            if self.started >= self.places:
                return False
            self.started += 1
            args = self.args
        try:
            self.kernel(*args)
        except BaseException as error:  # handed to the caller, who is waiting
            self.done.put(error)
        else:
            self.done.put(None)
        return True

    def close(self) -> int:
        """Take no more helpers; how many there were."""
        with self.lock:
            self.places, self.args = 0, ()
        return self.started

    def finish(self, patience: float | None = None) -> None:
        """Wait for the helpers that joined; those still asleep find the job closed.

        patience: seconds to wait at most for each; queue.Empty beyond."""
        errors, started = [], self.close()
        while self.ended < started:
            errors.append(self.done.get(timeout=patience))
            self.ended += 1
        for error in errors:
            if error is not None:
                raise error

    def wait(self) -> None:
        """Wait until no task is left. What a signal handler raises gets through, and stops it."""
        try:
            while True:
                with suppress(queue.Empty):
                    self.done.put(self.done.get(timeout=_POLL))  # `finish` looks at it
                    break
        except BaseException:
            self.args[0][0] = _NO_MORE
            try:
                self.finish(_PATIENCE)
            except queue.Empty:  # it goes on by itself, in memory that nobody will look at
                _left.append(self)
            raise
        self.finish()


_left: list[_Job] = []  # jobs that went on after an interrupt


@atexit.register
def _at_exit() -> None:
    """Let them end: a BLAS whose library is taken down under it crashes the process."""
    for job in _left:
        with suppress(queue.Empty, Exception):
            job.finish(_LAST_PATIENCE)


def _own_cpu() -> Callable[[], int] | None:
    """What says on which CPU the calling thread is; None where threads cannot be placed."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    return getattr(ctypes.PyDLL(None), "sched_getcpu", None)  # glibc's and musl's


_cpu = _own_cpu()


class _Pool:
    """Threads that sleep until there is a job in `jobs`, and watch the board when they have worked.

    On the board is the ticket of one job at a time. A thread that watches it takes the interpreter
    lock only when that job's caller has released it.
    """

    def __init__(self) -> None:
        self.lock, self.workers = threading.Lock(), 0
        self.threads: list[int] = []  # of the workers, as the system numbers them
        self.placed: tuple[int, bool] | None = None  # what `_place` was told last, and when
        self.changed = -_TICK
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self.shown: _Job | None = None
        self.board, self.free = np.full(_BOARD, _NO_MORE, dtype=np.int64), threading.Lock()
        self.turns = 0  # looks at the board in a moment

    def run(
        self, kernel: Callable[..., Any], args: tuple[Any, ...], tasks: int, helpers: int
    ) -> None:
        if self.workers < helpers:
            self._grow(helpers)
        if not self.free.acquire(blocking=False):  # another thread's job is on the board
            job = _Job(kernel, (np.zeros(1, dtype=np.int64), *args), helpers)
            self._give(job, min(helpers, self.workers))
            try:
                kernel(*job.args)
            finally:
                job.finish()
            return
        board = self.board
        try:
            self._place(True)
            self.shown = job = _Job(kernel, (board, *args), helpers)
            board[_TASKS], board[_DONE], board[0] = tasks, 0, 0
            self._give(job, min(helpers, self.workers))
            try:
                kernel(board, *args)
            finally:
                board[0] = _NO_MORE
                if helping := job.close():
                    _waits().settle[()](board, helping, self.turns)
                job.finish()
        finally:
            self.shown = None
            self.free.release()

    def run_alone(self, kernel: Callable[..., Any], args: tuple[Any, ...], workers: int) -> None:
        """The same without the calling thread, which waits and can be interrupted."""
        if self.workers < workers:
            self._grow(workers)
        ticket = np.zeros(1, dtype=np.int64)
        if not self.workers:
            kernel(ticket, *args)
            return
        self._place(False)
        job = _Job(kernel, (ticket, *args), workers)
        self._give(job, min(workers, self.workers))
        job.wait()

    def _give(self, job: _Job, threads: int) -> None:
        for _ in range(threads):
            self.jobs.put(job)

    def _place(self, working: bool) -> None:
        """Let workers run wherever the calling thread may, except on its CPU. Where that thread is
        not `working`, but waits, one of them takes its place there."""
        if _cpu is None or (place := (_cpu(), working)) == self.placed:
            return
        now, before = time.perf_counter(), self.placed
        if working and now - self.changed < _TICK:
            return  # two callers in turn would move all workers at each call
        cpu, everywhere = {place[0]}, os.sched_getaffinity(0)
        others = self.threads if before is None or before[0] != place[0] else self.threads[:1]
        with suppress(OSError):  # not permitted, or a thread that has ended
            for i, thread in enumerate(others):
                stands_in = i == 0 and not working
                os.sched_setaffinity(thread, cpu if stands_in else everywhere - cpu or everywhere)
        self.placed, self.changed = place, now

    def _grow(self, workers: int) -> None:
        with self.lock:
            if not self.turns:
                self.turns = self._count_turns()
            while self.workers < workers:
                worker = threading.Thread(
                    target=self._work, name=f"sparsegrad-{self.workers}", daemon=True
                )
                try:
                    worker.start()
                except RuntimeError:  # no thread to be had, or the interpreter is ending
                    return
                self.workers += 1
                self.threads += [] if worker.native_id is None else [worker.native_id]
                self.placed = None

    def _count_turns(self) -> int:
        linger, some, best = _waits().linger[()], 1000, float("inf")
        for _ in range(3):
            start = time.perf_counter()
            linger(self.board, some)
            best = min(best, time.perf_counter() - start)
        return max(1, int(some * _MOMENT / best))

    def _work(self) -> None:
        linger = _waits().linger[()]
        while True:
            worked = self.jobs.get().join()
            while worked:
                try:  # one that was given meanwhile; mostly over by now
                    self.jobs.get_nowait().join()
                except queue.Empty:
                    job = self.shown if linger(self.board, self.turns) else None
                    worked = job is not None and job.join()


def _waits() -> Any:
    from sparsegrad.backends import cpu_jit_kernels_wait

    return cpu_jit_kernels_wait


_pool = _Pool()


def launch(kernel: Callable[..., Any], args: tuple[Any, ...], tasks: int, elements: int) -> None:
    """Run `kernel(ticket, *args)` on as many threads as `tasks` and `elements` deserve.

    Each thread draws task numbers from `ticket` until there are none left. What a task computes
    must not depend on who runs it.
    """
    helpers = 0 if elements < _PARALLEL else min(_num_threads, tasks) - 1
    if elements >= _LONG and threading.current_thread() is threading.main_thread():
        _pool.run_alone(kernel, args, helpers + 1)
    elif helpers > 0:
        _pool.run(kernel, args, tasks, helpers)
    else:
        kernel(np.zeros(1, dtype=np.int64), *args)


class Kernel:
    """A Python function compiled once for each combination of dtypes, at its first use.

    `params` gives the type of each parameter: "<I1" is an index array of one dimension that is
    only read, ">F2" a float array of two that is written, "n" an int64, "d" a float64. Arrays are
    C-contiguous. Spelling the types out keeps a read-only flag from compiling yet another
    specialisation.
    Letters: F and I take the dtypes that the kernel is indexed with, in order of `letters`.
    """

    def __init__(self, function: Callable[..., Any], params: str, letters: str, flags: set) -> None:
        self.function, self.params, self.letters = function, params.split(), letters
        self.flags = flags
        self._compiled: dict[tuple[np.dtype, ...], Callable[..., Any]] = {}

    def __getitem__(self, dtypes: tuple[np.dtype, ...]) -> Callable[..., Any]:
        try:
            return self._compiled[dtypes]
        except KeyError:
            with _compiling:
                if dtypes not in self._compiled:
                    self._compiled[dtypes] = self._compile(dtypes)
                return self._compiled[dtypes]

    def _compile(self, dtypes: tuple[np.dtype, ...]) -> Callable[..., Any]:
        import numba
        from numba import types
        from numba.np.numpy_support import from_dtype

        letters = {"n": types.int64, "b": types.boolean}
        letters |= {"h": types.uint16, "f": types.float32, "d": types.float64}
        letters |= zip(self.letters, map(from_dtype, dtypes), strict=True)

        def as_type(param: str) -> Any:
            if param[0] not in "<>":
                return letters[param]
            return types.Array(letters[param[1]], int(param[2]), "C", readonly=param[0] == "<")

        signature = tuple(map(as_type, self.params))
        options = {"nogil": True, "error_model": "numpy", "fastmath": self.flags}
        # Numba's cache on disk watches the file of a kernel, not the parts it is built from; they
        # become a part of its name, so that no machine code outlives a change to them.
        digest = _parts_digest(self.function.__module__)
        if not self.function.__qualname__.endswith(digest):
            self.function.__qualname__ += f"_{digest}"
        try:
            return numba.njit(signature, cache=True, **options)(self.function)
        except Exception:
            # No directory can be written, a full disk, a damaged cache: compile in memory. An
            # error of the kernel itself is raised again here.
            return numba.njit(signature, **options)(self.function)


_compiling = threading.RLock()


@cache
def _parts_digest(home: str) -> str:
    """Of the sources that kernels of a module are built from: beside its own those of vectors, exp
    and modules of kernels whose functions it imports, or they do."""
    from sparsegrad.backends import cpu_jit_exp, cpu_jit_vector

    found = [sys.modules[home]]
    for module in found:  # it grows
        names = {getattr(item, "__module__", None) for item in vars(module).values()}
        parts = sorted(n for n in names if n and n.startswith(f"{__package__}.cpu_jit_kernels"))
        found += [sys.modules[n] for n in parts if sys.modules[n] not in found]
    try:
        source = "".join(map(inspect.getsource, [cpu_jit_exp, cpu_jit_vector, *found[1:]]))
    except OSError:  # shipped without sources
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def _after_fork() -> None:
    """The child has none of the parent's threads, and their locks may be held for ever."""
    global _pool, _compiling
    _pool, _compiling = _Pool(), threading.RLock()
    _left.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def contiguous(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array as kernels read it: itself, or a copy in that dtype, in one piece and aligned."""
    if array.dtype == dtype and array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.array(array, dtype=dtype, order="C")
