"""Exceptions and warnings. Every message names the op, the argument, and what was found."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from numpy.linalg import LinAlgError

F = TypeVar("F", bound=Callable[..., Any])

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


def named(fn: F) -> F:
    """A function whose errors about shapes, dtypes and indices begin with its name."""

    @wraps(fn)
    def inner(*args: Any, **options: Any) -> Any:
        try:
            return fn(*args, **options)
        except (ShapeError, DtypeError, PatternError) as error:
            if not str(error).startswith(f"{fn.__name__}:"):
                error.args = (f"{fn.__name__}: {error}",)
            raise

    return inner  # type: ignore[return-value]


def lacks_memory(error: Any) -> bool:
    """Whether an error says that memory is short, and not yet in our words."""
    if isinstance(error, SparsegradError):
        return False
    # CuPy without its pool raises a RuntimeError.
    return isinstance(error, MemoryError) or "MemoryAllocation" in str(error)


def out_of_memory(error: BaseException, shape: Any = None, dtype: Any = None) -> str:
    """What an array library's error says, with the bytes it asked for: of an array of this shape
    and dtype, if the error does not know them. CuPy's says the bytes itself."""
    shape, dtype = getattr(error, "shape", shape), getattr(error, "dtype", dtype)
    if shape is None or dtype is None:
        return f"out of memory: {error}" if str(error) else "out of memory"
    nbytes = dtype.itemsize * math.prod(shape)
    return f"out of memory: {nbytes:,} bytes for an array of shape {tuple(shape)} and dtype {dtype}"


class memory_for:
    """Where memory is short inside, an OutOfMemoryError says for what, and how much was asked for.
    A context manager, and a decorator. For arrays that are made outside of primitives, which do
    the same (`engine/refusal.py`).

    shape, dtype: of an array that is made, where no error of the library may know them; a
        ValueError means then that no address space holds it.
    """

    def __init__(self, what: str, shape: Any = None, dtype: Any = None) -> None:
        self.what, self.shape, self.dtype = what, shape, dtype

    def __call__(self, fn: F) -> F:
        @wraps(fn)  # without `with`, which costs something where nothing goes wrong
        def inner(*args: Any, **options: Any) -> Any:
            try:
                return fn(*args, **options)
            except Exception as error:
                self.explain(error)
                raise

        return inner  # type: ignore[return-value]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.explain(error)

    def explain(self, error: BaseException) -> None:
        """Raise the OutOfMemoryError that an error stands for, if it does."""
        absurd = self.shape is not None and type(error) is ValueError
        if absurd or lacks_memory(error):
            text = out_of_memory(error, self.shape, self.dtype)
            raise OutOfMemoryError(f"{self.what}: {text}") from error
