"""The workspace pool: blocks of memory for results of CPU kernels, used again and again.

The allocator of the C library gives large blocks back to the system and gets them anew, page by
page, each cleared first. The pool keeps a block instead, when the last array in it dies, and hands
it to the next array of about that size. On CUDA this is what CuPy's own pool does. Linux is told
that it may take the pages of a large block as soon as memory is scarce; until then they are as they
were.

`sg.config(enable_memory_pool=False)` turns it off; `pool_size_limit` bounds the bytes kept for
later, never those in use.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sparsegrad.config import current

__all__ = [
    "LEAST",
    "PoolCounts",
    "aligned",
    "clear",
    "copied",
    "counts",
    "empty",
    "kept_bytes",
    "on_lines",
    "owner",
]

LEAST = 1 << 16  # bytes below which the C library keeps blocks itself
_STEPS = 3  # size classes double in 2 ** _STEPS steps: a block is at most an eighth too large
_LARGE = 1 << 28  # bytes of a block that the system may take back: for less the call takes too long
_LINE = 64  # bytes of a cache line, where blocks begin: a vector across two takes longer to load


class PoolCounts(NamedTuple):
    """What the pool has done: arrays asked of it, those that got a block used before, and the
    sizes of these together."""

    requests: int = 0
    hits: int = 0
    reused_bytes: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of requests that were hits; 0 without any."""
        return self.hits / self.requests if self.requests else 0.0

    def since(self, earlier: PoolCounts) -> PoolCounts:
        """What was done after `earlier`."""
        return PoolCounts(
            self.requests - earlier.requests,
            self.hits - earlier.hits,
            self.reused_bytes - earlier.reused_bytes,
        )


class _Block:
    """Memory of an array and its views; goes back to the pool with the last of them."""

    held: _Held

    def __del__(self) -> None:
        if _pool is not None:  # the interpreter is ending
            _pool.give(self.held)


class _Held(NamedTuple):
    """Memory of the pool, and the kind of block that is made of it."""

    size: int
    address: int
    kind: Any
    memory: np.ndarray

    @classmethod
    def new(cls, size: int) -> _Held:
        memory = _aligned(size)
        return cls(size, memory.ctypes.data, _of_size(size), memory)


def _advice() -> Callable[[int, int, int], int] | None:
    """`madvise`, where MADV_FREE keeps the pages of memory that is used again in time."""
    if sys.platform != "linux":
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise


_advise = _advice()
_FREE = 8  # MADV_FREE, which Python's mmap does not name everywhere


def _let_go(held: _Held) -> None:
    """Let the system have the pages that lie wholly in a block, if it needs them before we do."""
    first = -(-held.address // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = (held.address + held.size - first) // mmap.PAGESIZE
    if _advise is not None:
        _advise(first, pages * mmap.PAGESIZE, _FREE)  # where it may not, the pages just stay


@cache
def _of_size(size: int) -> Any:
    """Blocks of so many bytes, to which NumPy gives access as to any buffer."""
    return type("_Block", (_Block, ctypes.c_char * size), {})


class _Pool:
    def __init__(self) -> None:
        # A block may come back in the middle of any of these, in the same thread: when garbage is
        # collected.
        self.lock = threading.RLock()
        self.free: OrderedDict[int, list[_Held]] = OrderedDict()
        self.requests = self.hits = self.reused = self.kept = self.limit = 0

    def array(self, nbytes: int, shape: tuple[int, ...], dtype: np.dtype, limit: int) -> np.ndarray:
        """An array of so many bytes, in a block that it gives back."""
        step = 1 << max(0, nbytes.bit_length() - 1 - _STEPS)
        size = -(-nbytes // step) * step
        with self.lock:
            self.limit = limit
            self.requests += 1
            free = self.free.get(size)
            held = free.pop() if free else None
            if held is not None:
                self.kept -= size
                self.hits += 1
                self.reused += nbytes
        if held is None:
            held = self.new(size)
        block = held.kind.from_address(held.address)
        block.held = held
        return np.ndarray(shape, dtype, block)

    def new(self, size: int) -> _Held:
        try:
            return _Held.new(size)
        except MemoryError:
            if not self.kept:
                raise
            self.clear()
            return _Held.new(size)

    def give(self, held: _Held) -> None:
        size = held.size
        if size > self.limit:
            return
        if size >= _LARGE:
            _let_go(held)
        with self.lock:
            self.free.setdefault(size, []).append(held)
            self.free.move_to_end(size)
            self.kept += size
            while self.kept > self.limit:  # the sizes that nothing had for longest go
                oldest = next(iter(self.free))
                if blocks := self.free[oldest]:
                    blocks.pop(0)
                    self.kept -= oldest
                else:
                    del self.free[oldest]

    def clear(self) -> None:
        with self.lock:
            self.free.clear()
            self.kept = 0


_pool = _Pool()


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """`np.empty`, from the pool where it is on and the array is large."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < LEAST or not (settings := current.get()).enable_memory_pool:
        return np.empty(shape, dtype)
    return _pool.array(nbytes, shape, dtype, settings.pool_size_limit)


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An empty array that begins with a cache line, from the pool where it is on."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes and (settings := current.get()).enable_memory_pool:
        return _pool.array(nbytes, shape, dtype, settings.pool_size_limit)
    return on_lines(np.empty, shape, dtype)


def on_lines(make: Callable[..., np.ndarray], shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """`make(shape, dtype)` for `np.empty` or `np.zeros`, in memory that begins with a cache line
    and is not the pool's: for what is there to stay."""
    dtype = np.dtype(dtype)
    try:
        return _aligned(math.prod(shape) * dtype.itemsize, make).view(dtype).reshape(shape)
    except (MemoryError, ValueError, OverflowError):
        return make(shape, dtype)  # or the error that names them


def copied(array: Any) -> Any:
    """A copy; of a large array on the CPU, whose rows a kernel may gather, as `on_lines`."""
    if not isinstance(array, np.ndarray) or array.nbytes < LEAST:
        return array.copy()
    out = on_lines(np.empty, array.shape, array.dtype)
    np.copyto(out, array)
    return out


def _aligned(nbytes: int, make: Callable[..., np.ndarray] = np.empty) -> np.ndarray:
    memory = make(nbytes + _LINE, np.uint8)
    first = -memory.ctypes.data % _LINE
    return memory[first : first + nbytes]


def owner(array: Any) -> Any:
    """The array whose memory this one looks into: itself, unless it is a view.

    >>> import numpy as np
    >>> from sparsegrad import memory
    >>> a = np.zeros(3)
    >>> memory.owner(a[1:]) is memory.owner(a) is a
    True
    """
    base = array.base
    return array if base is None or isinstance(base, _Block) else base


def counts() -> PoolCounts:
    """What the pool did since the process began.

    >>> from sparsegrad import memory
    >>> memory.counts().hit_rate <= 1
    True
    """
    with _pool.lock:
        return PoolCounts(_pool.requests, _pool.hits, _pool.reused)


def kept_bytes() -> int:
    """Bytes of blocks that wait for an array."""
    return _pool.kept


def clear() -> None:
    """Give the blocks that wait for an array back to the system."""
    _pool.clear()
