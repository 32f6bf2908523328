"""CUDA kernels and the real CuPy on a machine without a GPU. README.md says how, and how far.

Call `install()` before the first import of cupy.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from .errors import CompileError, KernelError

__all__ = [
    "CompileError",
    "KernelError",
    "Launch",
    "install",
    "installed",
    "record_launches",
    "schedule",
    "step_limit",
    "synchronisations",
]


class Launch(NamedTuple):
    """One kernel launch, as `record_launches` lists it."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int


@dataclass
class _Installed:
    library: ctypes.PyDLL
    check: bool
    seed: int
    recordings: list[list[Launch]]


_state: _Installed | None = None
_DEVICE_BYTES = 8 << 30
_DRIVER_ERRORS = {
    1: "CUDA_ERROR_INVALID_VALUE: invalid argument",
    500: "CUDA_ERROR_NOT_FOUND: named symbol not found",
}


def installed() -> bool:
    """Whether this process runs CuPy on the simulator."""
    return _state is not None


def install(seed: int = 0, check: bool = True) -> Any:
    """Make CuPy usable without a GPU, in this process and for good; return the module.

    Call it before anything imports cupy. `check` compiles kernels with all checks; without it they
    run three to ten times as fast and many bugs pass. With seed 0 threads run in order; any other
    seed chooses a random but repeatable order of blocks, warps and lanes, with preemption.
    """
    global _state
    if _state is not None:
        if _state.check != check:
            raise RuntimeError(f"the simulator is already installed, with check={_state.check}")
        _set_seed(seed)
        return sys.modules["cupy"]
    if any(name.partition(".")[0] in ("cupy", "cupy_backends") for name in sys.modules):
        raise RuntimeError("install the simulator before the first import of cupy")

    from . import build, capi, nvrtc, standins, strict
    from .standins import blas, rand, sorting, sparse

    os.environ["CUPY_ACCELERATORS"] = ""  # CUB's block reductions need its headers
    kind = "check" if check else "plain"
    os.environ["CUPY_CACHE_DIR"] = str(
        build.cache_dir() / f"cupy-{kind}-{build.device_digest()[:12]}"
    )
    # Global: libraries of kernels find the simulator's symbols without being linked to it.
    library = ctypes.PyDLL(str(build.native_library()), mode=ctypes.RTLD_GLOBAL)
    library.sim_add_module.argtypes = [ctypes.c_char_p]
    library.sim_add_module(os.path.basename(library._name).encode())
    library.sim_mark_written.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    library.sim_set_seed.argtypes = library.sim_set_step_limit.argtypes = [ctypes.c_uint64]
    library.sim_synchronisations.restype = ctypes.c_size_t
    standins.set_marker(library.sim_mark_written)

    runtime = import_module("cupy_backends.cuda.api.runtime")
    version = runtime.runtimeGetVersion()
    capi.swap(runtime, capi.RUNTIME, "rt_", library)
    driver = import_module("cupy_backends.cuda.api.driver")
    capi.swap(driver, capi.DRIVER, "drv_", library)
    blas.install()
    rand.install()
    sparse.install_binding()

    recordings: list[list[Launch]] = []
    _state = _Installed(library, check, seed, recordings)
    _set_up_native(library, runtime, driver, recordings, version, check)

    import cupy
    from cupy.cuda import compiler, thrust

    nvrtc.install(compiler, check)
    sorting.install(thrust)
    strict.install(cupy, library)
    # CuPy's pool rounds sizes up and keeps freed blocks: an access out of bounds would hit them.
    cupy.cuda.set_allocator(None)
    cupy._core.set_routine_accelerators([])
    cupy._core.set_reduction_accelerators([])
    sparse.install_conversions(cupy)
    _set_seed(seed)
    return cupy


def _set_up_native(
    library: ctypes.PyDLL,
    runtime: Any,
    driver: Any,
    recordings: list[list[Launch]],
    version: int,
    check: bool,
) -> None:
    """Hand native code the Python objects it raises, returns and calls."""

    def driver_error(status: int) -> Exception:
        # The constructor would ask the driver for the text, and there is none.
        error = driver.CUDADriverError.__new__(driver.CUDADriverError, status)
        RuntimeError.__init__(error, _DRIVER_ERRORS.get(status, f"CUDA_ERROR_{status}"))
        error.status = status
        return error

    def device_properties(device: int) -> dict[str, Any]:
        return {
            "name": b"cudasim",
            "totalGlobalMem": _DEVICE_BYTES,
            "sharedMemPerBlock": 48 << 10,
            "maxThreadsPerBlock": 1024,
            "multiProcessorCount": 132,
            "major": 9,
            "minor": 0,
            "warpSize": 32,
        }

    def on_launch(kernel: str, grid: Any, block: Any, shared_bytes: int) -> None:
        for recording in recordings:
            recording.append(Launch(kernel, grid, block, shared_bytes))

    objects = (
        runtime.CUDARuntimeError,
        driver_error,
        KernelError,
        runtime.PointerAttributes,
        device_properties,
        on_launch,
    )
    library.sim_setup.argtypes = [ctypes.py_object, ctypes.c_int, ctypes.c_int]
    library.sim_setup.restype = None
    library.sim_setup(objects, version, int(check))


def _current() -> _Installed:
    if _state is None:
        raise RuntimeError("the simulator is not installed: call cudasim.install() first")
    return _state


def _set_seed(seed: int) -> None:
    state = _current()
    state.seed = seed
    state.library.sim_set_seed(seed)


@contextmanager
def schedule(seed: int) -> Iterator[None]:
    """Run the launches inside in the order that `seed` gives (0: threads one after another)."""
    before = _current().seed
    _set_seed(seed)
    try:
        yield
    finally:
        _set_seed(before)


@contextmanager
def step_limit(steps: int) -> Iterator[None]:
    """Stop a launch inside after that many accesses, barriers and collectives: endless loops."""
    _current().library.sim_set_step_limit(steps)
    try:
        yield
    finally:
        _current().library.sim_set_step_limit(200_000_000)


@contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """List the kernel launches inside, CuPy's own included."""
    recording: list[Launch] = []
    _current().recordings.append(recording)
    try:
        yield recording
    finally:
        _current().recordings.remove(recording)


def synchronisations() -> int:
    """How often the host has waited for the device so far."""
    return _current().library.sim_synchronisations()
