"""How compiled kernels are made and run: lazily, on a pool of plain Python threads.

Kernels release the interpreter lock, so ordinary threads run them at once. Compared with Numba's
own `parallel=True` this costs about 15 µs a launch instead of 2, and in exchange any number of
Python threads may launch at once (Numba's default layer aborts the process), a forked child works
(an OpenMP parent's child dies at its first kernel), no spinning worker stalls its neighbours on a
busy machine, and a kernel compiles several times faster. This module does not import Numba.

Signals are handled by the main thread, between two steps of the interpreter: a kernel that may take
long runs on the pool alone while the main thread waits, so that Ctrl-C works.
"""

from __future__ import annotations

import hashlib
import inspect
import operator
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

__all__ = ["Kernel", "contiguous", "get_num_threads", "launch", "set_num_threads"]

# Elements touched below which one thread is at least as fast as waking another (about 50 µs).
_PARALLEL = 1 << 17
# Elements from which the main thread hands a kernel over and waits: about 50 ms of work, or half a
# second of cache misses.
_LONG = 1 << 26
_POLL = 0.1  # seconds between looks at signals that another thread received
_PATIENCE = 0.3  # seconds that an interrupted kernel has to end the tasks it is at
_NO_MORE = np.iinfo(np.int64).max // 2  # a ticket beyond every task


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
    import scipy.linalg  # noqa: F401  (SciPy brings a BLAS of its own, which must be there by now)
    import threadpoolctl

    threadpoolctl.threadpool_limits(limits=count, user_api="blas")
    _num_threads = count


class _Job:
    """One kernel call that helpers may join until its caller has found no work left."""

    __slots__ = ("args", "done", "kernel", "lock", "open", "started")

    def __init__(self, kernel: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.kernel, self.args = kernel, args
        self.lock, self.open, self.started = threading.Lock(), True, 0
        self.done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def join(self) -> None:
        with self.lock:
            if not self.open:
                return
            self.started += 1
            args = self.args
        try:
            self.kernel(*args)
        except BaseException as error:  # handed to the caller, who is waiting
            self.done.put(error)
        else:
            self.done.put(None)

    def finish(self, patience: float | None = None) -> None:
        """Wait for the helpers that joined; those still asleep find the job closed.

        patience: seconds to wait at most for each; queue.Empty beyond."""
        with self.lock:
            self.open, self.args = False, ()
        errors = [self.done.get(timeout=patience) for _ in range(self.started)]
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
            # A long task goes on by itself, in memory that nobody will look at.
            with suppress(queue.Empty):
                self.finish(_PATIENCE)
            raise
        self.finish()


class _Pool:
    def __init__(self) -> None:
        self.lock, self.workers = threading.Lock(), 0
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()

    def run(self, kernel: Callable[..., Any], args: tuple[Any, ...], helpers: int) -> None:
        if self.workers < helpers:
            self._grow(helpers)
        job = _Job(kernel, args)
        for _ in range(min(helpers, self.workers)):
            self.jobs.put(job)
        try:
            kernel(*args)
        finally:
            job.finish()

    def run_alone(self, kernel: Callable[..., Any], args: tuple[Any, ...], workers: int) -> None:
        """The same without the calling thread, which waits and can be interrupted."""
        if self.workers < workers:
            self._grow(workers)
        if not self.workers:
            kernel(*args)
            return
        job = _Job(kernel, args)
        for _ in range(min(workers, self.workers)):
            self.jobs.put(job)
        job.wait()

    def _grow(self, workers: int) -> None:
        with self.lock:
            while self.workers < workers:
                worker = threading.Thread(
                    target=_work,
                    args=(self.jobs,),
                    name=f"sparsegrad-{self.workers}",
                    daemon=True,
                )
                try:
                    worker.start()
                except RuntimeError:  # no thread to be had, or the interpreter is ending
                    return
                self.workers += 1


def _work(jobs: queue.SimpleQueue[_Job]) -> None:
    while True:
        jobs.get().join()


_pool = _Pool()


def launch(kernel: Callable[..., Any], args: tuple[Any, ...], tasks: int, elements: int) -> None:
    """Run `kernel(ticket, *args)` on as many threads as `tasks` and `elements` deserve.

    Each thread draws task numbers from `ticket` until there are none left. What a task computes
    must not depend on who runs it.
    """
    ticket = np.zeros(1, dtype=np.int64)
    helpers = 0 if elements < _PARALLEL else min(_num_threads, tasks) - 1
    if elements >= _LONG and threading.current_thread() is threading.main_thread():
        _pool.run_alone(kernel, (ticket, *args), helpers + 1)
    elif helpers > 0:
        _pool.run(kernel, (ticket, *args), helpers)
    else:
        kernel(ticket, *args)


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
        # Numba's cache on disk watches the file of a kernel, not the vectors it is built from;
        # they become a part of its name, so that no machine code outlives a change to them.
        if not self.function.__qualname__.endswith(_vector_digest()):
            self.function.__qualname__ += f"_{_vector_digest()}"
        try:
            return numba.njit(signature, cache=True, **options)(self.function)
        except Exception:
            # No directory can be written, a full disk, a damaged cache: compile in memory. An
            # error of the kernel itself is raised again here.
            return numba.njit(signature, **options)(self.function)


_compiling = threading.RLock()


@cache
def _vector_digest() -> str:
    from sparsegrad.backends import cpu_jit_vector

    try:
        source = inspect.getsource(cpu_jit_vector)
    except OSError:  # shipped without sources
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def _after_fork() -> None:
    """The child has none of the parent's threads, and their locks may be held for ever."""
    global _pool, _compiling
    _pool, _compiling = _Pool(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def contiguous(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array as kernels read it: itself, or a copy in that dtype, in one piece and aligned."""
    if array.dtype == dtype and array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.array(array, dtype=dtype, order="C")
