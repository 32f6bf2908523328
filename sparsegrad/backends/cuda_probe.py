"""Whether CUDA can be used, and if not, why and what would help: found out step by step, the last
of which runs a tiny kernel."""

from __future__ import annotations

import importlib
import os
import re

import cupy
import numpy as np
from cupy.cuda import runtime

__all__ = ["libraries", "problem", "too_old", "version"]

_OLDEST_CARD = 7, 0  # compute capability: from here on lanes of a warp run independently
_OLDEST_CUPY = 14, 2
_EXTRAS = "pip install 'sparsegrad-engine[cuda12]', or cuda13 for CUDA 13"
_ERRORS = RuntimeError, ImportError, OSError, cupy.cuda.compiler.CompileException


def problem() -> str | None:
    """Why no GPU can be used; None if one can."""
    try:
        return _cupy() or _driver() or _devices() or _first_card() or _libraries() or _kernel()
    except _ERRORS as error:
        return _said(error)


def _cupy() -> str | None:
    found = tuple(map(int, re.findall(r"\d+", cupy.__version__)[:2]))
    if found >= _OLDEST_CUPY:
        return None
    return f"CuPy is {cupy.__version__}, and {_dotted(_OLDEST_CUPY)} or newer is needed ({_EXTRAS})"


def _driver() -> str | None:
    driver, built_for = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if not driver:
        return (
            "no NVIDIA driver is found; it is part of the system, not of a package "
            "(in a container: docker run --gpus all)"
        )
    if driver // 1000 < built_for // 1000:
        return (
            f"CuPy is built for CUDA {version(built_for)}, and the driver knows CUDA up to "
            f"{version(driver)}; update the driver, or install the CuPy of CUDA {driver // 1000}"
        )
    return None


def _devices() -> str | None:
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        if "NoDevice" not in str(error):
            raise
        count = 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hint = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
    return None if count else f"no device is visible{hint}"


def _first_card() -> str | None:
    complaint = too_old(0)
    if complaint and runtime.getDeviceCount() > 1:
        return f"{complaint}; CUDA_VISIBLE_DEVICES=1 would leave it out"
    return complaint


def too_old(number: int) -> str | None:
    """What is said of a card that our kernels do not run on; None of the others."""
    card = runtime.getDeviceProperties(number)
    capability = card["major"], card["minor"]
    if capability >= _OLDEST_CARD:
        return None
    return (
        f"{card['name'].decode()} has compute capability {_dotted(capability)}, and "
        f"{_dotted(_OLDEST_CARD)} or newer is needed"
    )


def libraries() -> dict[str, tuple[str, str | None]]:
    """CuPy, and those of the CUDA toolkit that are used: the version of each, where it can be asked
    for without a device, and why it cannot be loaded."""
    found: dict[str, tuple[str, str | None]] = {"cupy": (cupy.__version__, None)}
    for name in ("nvrtc", "cublas", "cusparse"):
        try:
            library = importlib.import_module(f"cupy_backends.cuda.libs.{name}")
            known = _dotted(library.getVersion()) if name == "nvrtc" else "found"
            found[name] = known, None
        except _ERRORS as error:
            why = f"{name} of the CUDA toolkit cannot be loaded: {_said(error)} ({_EXTRAS})"
            found[name] = "missing", why
    return found


def _libraries() -> str | None:
    return next((why for _, why in libraries().values() if why), None)


def _kernel() -> str | None:
    total = int(cupy.arange(3, dtype=np.int32).sum())  # sync
    return None if total == 3 else f"a kernel gave a wrong result: 0 + 1 + 2 = {total}"


def version(number: int) -> str:
    """12090 as 12.9."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
