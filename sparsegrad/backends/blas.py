"""The threads of the BLAS behind NumPy and SciPy, by threadpoolctl."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

__all__ = ["can_stand_in", "one_thread", "set_threads"]

_lock = threading.Lock()


def set_threads(count: int) -> None:
    """Let every product and solver have so many threads."""
    import scipy.linalg  # noqa: F401  (SciPy brings a BLAS of its own, which must be there by now)
    import threadpoolctl

    with _lock:
        threadpoolctl.threadpool_limits(limits=count, user_api="blas")
        for library in threadpoolctl.ThreadpoolController().lib_controllers:
            # Where one thread controls the number, let the next one that asks be the one.
            getattr(library, "clear_controlling_thread", lambda: None)()


@cache
def can_stand_in() -> bool:
    """Whether ours may take the place of NumPy's: of OpenBLAS, whose number is that of a process.
    OpenMP counts them for each thread, and Apple's cannot be told."""
    found = [vars(library) for library in _controller().select(user_api="blas").lib_controllers]
    return bool(found) and all(x.get("threading_layer") == "pthreads" for x in found)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for each product of NumPy in this block, in whatever thread it is made."""
    if not _lock.acquire(blocking=False):  # a block of another thread, which ends it as well
        yield
        return
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        _lock.release()


@cache
def _controller() -> Any:
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
