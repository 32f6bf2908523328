"""What the memory of the machine gives: bytes a second of a copy and of a gather of rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

__all__ = ["measure"]

_WIDTH = 64  # float32 numbers of a row: 256 bytes
_ROWS = 1 << 20  # 256 MiB, which no cache holds
_TIMES = 5


def measure(threads: int, rows: int = _ROWS) -> dict[str, float]:
    """Bytes read and written a second, the median of a few runs: {"copy": ..., "gather": ...}."""
    table, out = np.ones((2, rows, _WIDTH), np.float32)
    index = np.random.default_rng(0).integers(0, rows, rows)
    parts = [slice(t * rows // threads, (t + 1) * rows // threads) for t in range(threads)]

    def copy(part: slice) -> None:
        np.copyto(out[part], table[part])

    def gather(part: slice) -> None:
        np.take(table, index[part], axis=0, out=out[part], mode="clip")

    with ThreadPoolExecutor(threads) as pool:

        def seconds(work: Callable[[slice], None]) -> float:
            start = time.perf_counter()
            list(pool.map(work, parts))
            return time.perf_counter() - start

        return {
            work.__name__: 2
            * table.nbytes
            / statistics.median(seconds(work) for _ in range(_TIMES))
            for work in (copy, gather)
        }
