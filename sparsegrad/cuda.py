"""The CUDA devices: which there are, memory, waiting. CuPy is imported at the first use.

>>> import sparsegrad as sg
>>> sg.cuda.is_available() or sg.cuda.problem() is not None
True
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from sparsegrad import backends, random
from sparsegrad.device import Device

__all__ = [
    "current_device",
    "describe",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_rng_state",
    "is_available",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "problem",
    "set_device",
    "set_rng_state",
    "synchronize",
]


def is_available() -> bool:
    """Whether a GPU can be used: a tiny kernel was compiled and gave the right result."""
    return backends.cuda_problem() is None


def problem() -> str | None:
    """Why no GPU can be used; None if one can."""
    return backends.cuda_problem()


def device_count() -> int:
    """How many devices there are; 0 where none can be used."""
    return _backend().count() if is_available() else 0


def current_device() -> int:
    """The number of the device that "cuda" means."""
    return _opened().index("cuda")


def set_device(device: int | str | Device) -> None:
    """Make this device the one that "cuda" means. DeviceError for one there is not."""
    _opened().use(_named(device))


def get_device_name(device: int | str | Device = "cuda") -> str:
    """What a device is called. DeviceError for one there is not."""
    return _properties(device)[0]


def get_device_capability(device: int | str | Device = "cuda") -> tuple[int, int]:
    """The compute capability of a device: (9, 0) for sm_90. DeviceError for one there is not."""
    return _properties(device)[1]


def describe() -> dict[str, str]:
    """Devices, versions of driver, runtime and CuPy, and the folder of our kernels."""
    return _opened().describe()


def synchronize() -> None:
    """Wait for all work on the current device.

    Raises PatternError if an index that was used before lies outside its bounds.
    """
    _opened().synchronize()


def memory_allocated() -> int:
    """Bytes of the current device that arrays occupy."""
    return _opened().memory_in_use()


def memory_reserved() -> int:
    """Bytes that CuPy's pool has taken from the current device: those of arrays, and free blocks
    that it keeps for the next ones."""
    return _opened().memory_held()


def mem_get_info() -> tuple[int, int]:
    """Bytes of the current device that are free, whoever uses the others, and all of them."""
    return _opened().memory_info()


def max_memory_allocated() -> int:
    """Bytes that CuPy's pool has taken from the current device: the most that arrays and cached
    blocks have occupied since `empty_cache`, which is an upper bound of what arrays did."""
    return _opened().memory_held()


def empty_cache() -> None:
    """Give blocks that no array occupies back to the device."""
    _opened().release_memory()


def manual_seed(seed: int) -> None:
    """Give the current device a stream of random numbers of its own, started at `seed`. Until then
    it shares that of `sg.manual_seed`, which also makes it share it again."""
    random.seed_device(backends.named("cuda"), seed)


def manual_seed_all(seed: int) -> None:
    """`manual_seed` for every device."""
    for number in range(device_count()):
        random.seed_device(Device("cuda", number), seed)


def get_rng_state() -> np.ndarray:
    """Where the stream stands that the current device draws from; see `sg.get_rng_state`."""
    return random.generator(backends.named("cuda")).get_state()


def set_rng_state(state: Any) -> None:
    """Let the stream that the current device draws from go on from `state`."""
    random.generator(backends.named("cuda")).set_state(state)


def _backend() -> Any:
    return importlib.import_module("sparsegrad.backends.cuda")


def _opened() -> Any:
    """The backend's module; DeviceError with the reason where CUDA cannot be used."""
    backends.named("cuda")
    return _backend()


def _named(device: int | str | Device) -> str | Device:
    return f"cuda:{device}" if isinstance(device, int) else device


def _properties(device: int | str | Device) -> tuple[str, tuple[int, int]]:
    opened = _opened()
    return opened.properties(opened.index(_named(device)))
