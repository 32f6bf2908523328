"""Sparse or dense, and in which format: answers from thresholds and from measured costs."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsegrad.config import current as settings
from sparsegrad.errors import ShapeError
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.structure import cost
from sparsegrad.structure.arrays import as_shape
from sparsegrad.tensor import Tensor

__all__ = [
    "best_format",
    "best_layout",
    "calibrate",
    "crossover_density",
    "load_calibration",
    "should_use_sparse",
]


def should_use_sparse(x: Any, estimated_nnz: int | None = None) -> bool:
    """Whether to store `x` sparse: a hint from two thresholds of `sg.config`.

    True if the share of zeros is at least `sparsity_threshold` and there are at least
    `min_nnz_for_sparse` nonzeros. A dense array larger than `densify_budget` bytes is never
    advised for having few nonzeros alone.

    x: Tensor, SparseTensor, array, or only a shape (a tuple of integers).
    estimated_nnz: number of nonzeros, where it is known or `x` is a shape; counted otherwise.

    Raises ShapeError if only a shape is given, or an estimate outside [0, size].

    >>> import sparsegrad as sg
    >>> sg.should_use_sparse((1000, 1000), 5000), sg.should_use_sparse((1000, 1000), 900_000)
    (True, False)
    """
    if isinstance(x, (tuple, list)) and all(isinstance(n, (int, np.integer)) for n in x):
        shape, itemsize = as_shape(x), 4
        if estimated_nnz is None:
            raise ShapeError(f"should_use_sparse: estimated_nnz is needed for a shape, got {x}")
    else:
        x = x if isinstance(x, (Tensor, SparseTensor)) else Tensor(x)
        shape, itemsize = tuple(x.shape), x.dtype.itemsize
    size = 1
    for n in shape:
        size *= n
    if estimated_nnz is None:
        estimated_nnz = _count(x)
    if not 0 <= estimated_nnz <= size:
        raise ShapeError(
            f"should_use_sparse: estimated_nnz must be in [0, {size}] for shape {shape}, "
            f"got {estimated_nnz}"
        )
    now = settings.get()
    if size == 0 or 1 - estimated_nnz / size < now.sparsity_threshold:
        return False
    return estimated_nnz >= now.min_nnz_for_sparse or size * itemsize > now.densify_budget


def _count(x: Any) -> int:
    """Nonzero elements; for a SparseTensor those stored, duplicates counted once each."""
    values = x.values.data if isinstance(x, SparseTensor) else x.data
    return int((values != 0).sum())


def best_format(
    shape: Any, nnz: int, width: int = 32, uses: int = 100, backward: bool = True
) -> str:
    """The sparse format in which a matrix costs least, by the cost table: "csr", "coo" or "csc".

    shape: of the matrix; anything but two dimensions is "coo".
    nnz: stored entries. width: columns of the dense matrices it is multiplied with.
    uses: products it is used for. backward: whether they are differentiated.

    >>> import sparsegrad as sg
    >>> sg.policy.best_format((100_000, 100_000), 1_000_000)
    'csr'
    """
    return cost.best_format(as_shape(shape), nnz, width, uses, backward)


def best_layout(
    shape: Any, nnz: int, width: int = 32, uses: int = 100, backward: bool = True
) -> str:
    """Like `best_format`, with "dense" among the answers: what is fastest, not what is smallest.

    >>> import sparsegrad as sg
    >>> sg.policy.best_layout((64, 64), 2000), sg.policy.best_layout((5000, 5000), 25_000)
    ('dense', 'csr')
    """
    shape = as_shape(shape)
    best = cost.best_format(shape, nnz, width, uses, backward)
    if len(shape) != 2:
        return best
    sparse = cost.format_cost(best, shape, nnz, width, uses, backward)
    return "dense" if cost.dense_cost(shape, width, uses, backward) < sparse else best


def crossover_density(shape: Any, width: int = 32, uses: int = 100, backward: bool = True) -> float:
    """The density below which sparse products of a matrix of this shape are faster than dense
    ones, by the cost table: 0 if never, 1 if always.

    >>> import sparsegrad as sg
    >>> 0 < sg.policy.crossover_density((5000, 5000)) < 1
    True
    """
    shape = as_shape(shape)
    if len(shape) != 2:
        raise ShapeError(f"crossover_density: needs a matrix, got shape {shape}")
    cells = shape[0] * shape[1]
    low, high = 0, cells + 1  # nnz at which sparse still wins, nnz at which it does not
    if best_layout(shape, 0, width, uses, backward) == "dense":
        return 0.0
    while high - low > 1:
        middle = (low + high) // 2
        if best_layout(shape, middle, width, uses, backward) == "dense":
            high = middle
        else:
            low = middle
    return low / cells if cells else 1.0


# ---- measuring ---------------------------------------------------------------------------------
# (rows, entries a row, width): small ones fix the constant, long rows and many rows the slopes.
_GRID = (
    (16, 2, 1), (64, 4, 8), (4096, 1, 8), (4096, 16, 16), (20000, 8, 8),
    (256, 128, 32), (1024, 256, 16), (2048, 100, 64),
)  # fmt: skip
_DENSE = ((16, 1), (64, 8), (256, 32), (512, 32), (1024, 16))
_ROUNDS = 4  # the first one compiles kernels; the smallest time of the others counts

# (format, kind) -> (sizes, work) -> microseconds
Found = dict[tuple[str, str], dict[tuple[int, int], float]]


def calibrate(path: Any = None, repeats: int = 5) -> dict[str, Any]:
    """Measure the cost table on this machine (a few seconds) and put it in use.

    path: a JSON file to write it to, for `load_calibration`.
    repeats: timings of each product in each of three rounds; the smallest counts.

    Returns the table: microseconds, in the form that `sparsegrad.structure.cost` describes.
    """
    rng = np.random.default_rng(0)
    found: Found = {}
    for round_ in range(_ROUNDS):
        for m, per_row, width in _GRID:
            _measure_sparse(rng, m, per_row, width, repeats, found)
        for m, width in _DENSE:
            a, x = (Tensor(rng.standard_normal((m, k)).astype(np.float32)) for k in (m, width))
            spent = _timed(lambda: a @ x, repeats)  # noqa: B023  (called before the next turn)
            _keep(found, ("dense", "product"), 2 * m * width, m * m * width, spent)
        if round_ == 0:
            found.clear()
    new: dict[str, Any] = {
        "measured": f"calibrate() on {platform.machine()}, {_cpus()} CPUs, float32, "
        f"backend {settings.get().backend!r}"
    }
    for (name, kind), times in found.items():
        new.setdefault(name, {})[kind] = _fitted(times)
    cost.use_table(new)
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(new, file, indent=1)
    return new


def _measure_sparse(rng: Any, m: int, per_row: int, width: int, repeats: int, found: Found) -> None:
    nnz = m * per_row
    where = rng.integers(0, m, (2, nnz))
    values = rng.standard_normal(nnz).astype(np.float32)
    x = Tensor(rng.standard_normal((m, width)).astype(np.float32))
    for name in cost.FORMATS:

        def build(name: str = name) -> SparseTensor:
            return SparseTensor(where, values, (m, m)).to(name)

        def both(build: Any = build) -> None:
            A = build()
            A @ x
            A.T @ x

        A = build()
        product = _timed(lambda: A @ x, repeats)  # noqa: B023
        transposed = _timed(lambda: A.T @ x, repeats)  # noqa: B023
        first = max(_timed(both, 2) - product - transposed, 0.1)
        _keep(found, (name, "first"), 2 * m, nnz, first)
        _keep(found, (name, "product"), 2 * m * width, nnz * width, product)
        _keep(found, (name, "transposed"), 2 * m * width, nnz * width, transposed)


def _keep(found: Found, row: tuple[str, str], sizes: int, work: int, spent: float) -> None:
    times = found.setdefault(row, {})
    times[sizes, work] = min(spent, times.get((sizes, work), spent))


def _timed(fn: Callable[[], Any], repeats: int) -> float:
    """Microseconds of the fastest of several calls."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter_ns()
        fn()
        best = min(best, (time.perf_counter_ns() - start) / 1e3)
    return best


def _fitted(times: dict[tuple[int, int], float]) -> list[float]:
    """Coefficients >= 0 of (1, sizes, work) with small relative errors."""
    from scipy.optimize import nnls

    found = np.array([(1.0, *key) for key in times])
    spent = np.array(list(times.values()))
    scale = found.max(axis=0)
    fitted, _ = nnls(found / scale / spent[:, None], np.ones(len(spent)))
    return [float(f"{c:.4g}") for c in fitted / scale]


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_calibration(path: Any) -> dict[str, Any]:
    """Put a table in use that `calibrate(path)` wrote, and return it. ValueError if it is none."""
    with open(path, encoding="utf-8") as file:
        new = json.load(file)
    if not isinstance(new, dict):
        raise ValueError(f"load_calibration: {path} holds no cost table")
    cost.use_table(new)
    return new
