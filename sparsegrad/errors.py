"""Exceptions and warnings. Every message names the op, the argument, and what was found."""

from __future__ import annotations

import math
from typing import Any

from numpy.linalg import LinAlgError

__all__ = [
    "AnomalyError",
    "ConvergenceWarning",
    "DensifyError",
    "DeviceError",
    "DtypeError",
    "GraphError",
    "OutOfMemoryError",
    "PatternError",
    "ShapeError",
    "SingularMatrixError",
    "SparseEfficiencyWarning",
    "SparsegradError",
]


class SparsegradError(Exception):
    """Base class of every error that sparsegrad raises on purpose."""


class ShapeError(SparsegradError, ValueError):
    """Shapes of the arguments do not fit the op."""


class DtypeError(SparsegradError, TypeError):
    """A dtype is not supported, or cannot require a gradient."""


class DeviceError(SparsegradError, RuntimeError):
    """A device is not available, or the arguments live on different ones."""


class GraphError(SparsegradError, RuntimeError):
    """The recorded graph cannot be differentiated as asked."""


class DensifyError(SparsegradError, RuntimeError):
    """A sparse tensor would have been turned dense where that is forbidden or meaningless."""


class PatternError(SparsegradError, ValueError):
    """Index arrays do not describe a sparse tensor of the given shape."""


class SingularMatrixError(SparsegradError, LinAlgError):
    """A system of equations has no unique solution."""


class OutOfMemoryError(SparsegradError, MemoryError):
    """An array did not fit into memory. Nothing was changed."""


class AnomalyError(SparsegradError, RuntimeError):
    """An op made a NaN while `detect_anomaly` was looking."""


class ConvergenceWarning(UserWarning):
    """An iterative solver stopped before it reached its tolerance."""


class SparseEfficiencyWarning(UserWarning):
    """The result is right, but a slow or memory-hungry path produced it."""


def out_of_memory(error: Exception, shape: Any = None, dtype: Any = None) -> str:
    """What an array library's error says, with the bytes it asked for: of an array of this shape
    and dtype, if the error does not know them. CuPy's says the bytes itself."""
    shape, dtype = getattr(error, "shape", shape), getattr(error, "dtype", dtype)
    if shape is None or dtype is None:
        return f"out of memory: {error}" if str(error) else "out of memory"
    nbytes = dtype.itemsize * math.prod(shape)
    return f"out of memory: {nbytes:,} bytes for an array of shape {tuple(shape)} and dtype {dtype}"
