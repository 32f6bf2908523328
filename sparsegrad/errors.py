"""Exceptions and warnings. Every message names the op, the argument, and what was found."""

from __future__ import annotations

from numpy.linalg import LinAlgError

__all__ = [
    "AnomalyError",
    "ConvergenceWarning",
    "DensifyError",
    "DeviceError",
    "DtypeError",
    "GraphError",
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


class AnomalyError(SparsegradError, RuntimeError):
    """An op made a NaN while `detect_anomaly` was looking."""


class ConvergenceWarning(UserWarning):
    """An iterative solver stopped before it reached its tolerance."""


class SparseEfficiencyWarning(UserWarning):
    """The result is right, but a slow or memory-hungry path produced it."""
