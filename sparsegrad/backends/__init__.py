"""Arrays in, arrays out. `for_array` and `for_device` choose who does the work."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from typing import Any

import numpy as np

from sparsegrad.backends.base import Backend, Survey
from sparsegrad.config import current as settings
from sparsegrad.device import CPU, Device
from sparsegrad.errors import DeviceError

__all__ = [
    "Backend",
    "Survey",
    "cuda_problem",
    "device_of",
    "for_array",
    "for_device",
    "is_array",
    "named",
    "span",
]


@cache
def _cpu(name: str) -> Backend:
    if name == "reference":
        return Backend()
    if name == "cpu" or (name == "auto" and importlib.util.find_spec("numba") is None):
        from sparsegrad.backends.cpu import Cpu

        return Cpu()
    from sparsegrad.backends.cpu_jit_narrow import CpuJitNarrow

    return CpuJitNarrow(always=name == "cpu_jit")


@cache
def _cuda() -> Any:
    """The module `backends.cuda`; DeviceError with the reason where it cannot be used."""
    if (problem := cuda_problem()) is not None:
        raise DeviceError(f"device cuda: {problem}; use 'cpu' or 'auto'")
    return importlib.import_module("sparsegrad.backends.cuda")


@cache
def cuda_problem() -> str | None:
    """Why CUDA cannot be used, found out once by running a tiny kernel; None if it can."""
    if importlib.util.find_spec("cupy") is None:
        return (
            "CuPy is not installed (pip install 'sparsegrad-engine[cuda12]', or cuda13 for CUDA 13)"
        )
    try:
        return importlib.import_module("sparsegrad.backends.cuda_probe").problem()
    except ImportError as error:
        return f"CuPy cannot be imported: {_line(error)}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _is_cupy(array: Any) -> bool:
    module = sys.modules.get("cupy")  # who has one of its arrays has imported it
    return module is not None and isinstance(array, module.ndarray)


def is_array(x: Any) -> bool:
    """Whether a backend serves arrays of this type."""
    return isinstance(x, np.ndarray) or _is_cupy(x)


def for_array(array: Any) -> Backend:
    """The backend that serves arrays of this type."""
    if isinstance(array, np.ndarray):
        return _cpu(settings.get().backend)
    if _is_cupy(array):
        return _cuda().serving(array)
    raise DeviceError(f"backend: no backend serves arrays of type {type(array).__name__}")


def device_of(array: Any) -> Device:
    """Where an array lives."""
    if isinstance(array, np.ndarray) or not _is_cupy(array):
        return CPU
    return Device("cuda", array.device.id)


def named(device: str | Device) -> Device:
    """The device that a name means, opened; errors as those of `for_device`."""
    if device == "auto":
        device = "cpu" if cuda_problem() else "cuda"
    parsed = Device.parse(device)
    return CPU if parsed.type == "cpu" else Device("cuda", _cuda().index(device))


def for_device(device: str | Device = "auto") -> Backend:
    """The backend of a device; "auto" falls back to the CPU, "cuda" never does.

    Raises DeviceError with the reason if the device cannot be used.
    """
    if device == "auto":
        device = "cpu" if cuda_problem() else "cuda"
    if Device.parse(device).type == "cuda":
        return _cuda().opened(device)
    return _cpu(settings.get().backend)


def span() -> Any:
    """What times an op on a GPU: the class `cuda_events.Span`; None where no GPU is in use."""
    if not _cuda.cache_info().currsize:
        return None
    return importlib.import_module("sparsegrad.backends.cuda_events").Span
