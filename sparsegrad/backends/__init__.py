"""Arrays in, arrays out. `for_array` and `for_device` choose who does the work."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np

from sparsegrad.backends.base import Backend
from sparsegrad.config import current as settings
from sparsegrad.device import Device
from sparsegrad.errors import DeviceError

__all__ = ["Backend", "for_array", "for_device"]


@cache
def _cpu(name: str) -> Backend:
    if name == "reference":
        return Backend()
    if name == "cpu" or (name == "auto" and importlib.util.find_spec("numba") is None):
        from sparsegrad.backends.cpu import Cpu

        return Cpu()
    from sparsegrad.backends.cpu_jit import CpuJit

    return CpuJit(always=name == "cpu_jit")


def for_array(array: Any) -> Backend:
    """The backend that serves arrays of this type."""
    if isinstance(array, np.ndarray):
        return _cpu(settings.get().backend)
    raise DeviceError(f"backend: no backend serves arrays of type {type(array).__name__}")


def for_device(device: str | Device = "auto") -> Backend:
    """The backend of a device; "auto" falls back to the CPU, "cuda" never does.

    Raises DeviceError with the reason if the device cannot be used.
    """
    if device != "auto" and Device.parse(device).type == "cuda":
        raise DeviceError(f"device {device}: this version has no CUDA backend; use 'cpu' or 'auto'")
    return _cpu(settings.get().backend)
