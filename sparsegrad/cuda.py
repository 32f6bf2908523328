"""The CUDA devices: which there are, memory, waiting, time. CuPy is imported at the first use.

Names and arguments are PyTorch's. A device is named "cuda:1" or 1; None and "cuda" mean the one
that `set_device` chose. Without a usable GPU, `is_available`, `problem`, `device_count`,
`empty_cache` and the seeds still work; anything else is a DeviceError with the reason.

>>> import sparsegrad as sg
>>> sg.cuda.is_available() or sg.cuda.problem() is not None
True
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from sparsegrad import backends, random
from sparsegrad.device import Device

__all__ = [
    "DeviceProperties",
    "Event",
    "current_device",
    "describe",
    "device",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "is_available",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "problem",
    "reset_peak_memory_stats",
    "set_device",
    "set_rng_state",
    "synchronize",
]


_Which = int | str | Device | None


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


@contextmanager
def device(device: int | str | Device) -> Iterator[None]:
    """`set_device` for the length of a `with` block."""
    before = current_device()
    set_device(device)
    try:
        yield
    finally:
        set_device(before)


class DeviceProperties(NamedTuple):
    """What a card is: name, compute capability (major, minor), bytes, multiprocessors."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def get_device_properties(device: _Which = None) -> DeviceProperties:
    """What a device is. DeviceError for one there is not."""
    card = _opened().runtime.getDeviceProperties(_number(device))
    facts = (card[key] for key in ("major", "minor", "totalGlobalMem", "multiProcessorCount"))
    return DeviceProperties(card["name"].decode(), *map(int, facts))


def get_device_name(device: _Which = None) -> str:
    """What a device is called. DeviceError for one there is not."""
    return get_device_properties(device).name


def get_device_capability(device: _Which = None) -> tuple[int, int]:
    """The compute capability of a device: (9, 0) for sm_90. DeviceError for one there is not."""
    return get_device_properties(device)[1:3]


def describe() -> dict[str, str]:
    """Devices, versions of driver, runtime and CuPy, and the folder of our kernels."""
    return _opened().describe()


def synchronize(device: _Which = None) -> None:
    """Wait for all work on a device.

    Raises PatternError if an index that was used before lies outside its bounds.
    """
    with _on(device):
        _opened().synchronize()


class Event:
    """A point in the work of the device that "cuda" means, for measuring:

        start, end = sg.cuda.Event(enable_timing=True), sg.cuda.Event(enable_timing=True)
        start.record()
        A @ x
        end.record()
        end.synchronize()
        start.elapsed_time(end)  # milliseconds

    Nothing waits but `synchronize`.
    """

    def __init__(self, enable_timing: bool = False) -> None:
        with _on(None):  # an event belongs to the device that it is made on
            self._device = current_device()
            self._event = _opened().cupy.cuda.Event(disable_timing=not enable_timing)

    def record(self) -> None:
        """Put it behind the work that was asked for so far, on the current stream."""
        with _on(self._device):
            _opened().cupy.cuda.get_current_stream().record(self._event)

    def query(self) -> bool:
        """Whether the device has come to it."""
        return bool(self._event.done)

    def synchronize(self) -> None:
        """Wait until the device has come to it."""
        self._event.synchronize()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this one to another; both have timing and the device has come to both,
        else RuntimeError."""
        return float(_opened().cupy.cuda.get_elapsed_time(self._event, end._event))


def memory_allocated(device: _Which = None) -> int:
    """Bytes of a device that arrays occupy."""
    with _on(device):
        return _opened().memory_in_use()


def memory_reserved(device: _Which = None) -> int:
    """Bytes that CuPy's pool has taken from a device: those of arrays, and free blocks that it
    keeps for the next ones."""
    with _on(device):
        return _opened().memory_held()


def mem_get_info(device: _Which = None) -> tuple[int, int]:
    """Bytes of a device that are free, whoever uses the others, and all of them."""
    with _on(device):
        return _opened().memory_info()


def max_memory_allocated(device: _Which = None) -> int:
    """Bytes that CuPy's pool has taken from a device: the most that arrays and cached blocks have
    occupied since `empty_cache`, which is an upper bound of what arrays did."""
    return memory_reserved(device)


def reset_peak_memory_stats(device: _Which = None) -> None:
    """Let `max_memory_allocated` start from what arrays occupy now, by giving back the rest."""
    with _on(device):
        _opened().release_memory()


def empty_cache() -> None:
    """Give blocks that no array occupies back to the device that "cuda" means. Nothing where there
    is no GPU."""
    if is_available():
        reset_peak_memory_stats()


def manual_seed(seed: int) -> None:
    """Give the current device a stream of random numbers of its own, started at `seed`. Until then
    it shares that of `sg.manual_seed`, which also makes it share it again. Nothing where there is
    no GPU."""
    if is_available():
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


def _named(device: _Which) -> str | Device:
    if device is None:
        return "cuda"
    return f"cuda:{device}" if isinstance(device, int) else device


def _number(device: _Which) -> int:
    return _opened().index(_named(device))


def _on(device: _Which) -> Any:
    """A context in which CuPy works on a device."""
    return _opened().cupy.cuda.Device(_number(device))
