"""`sparsegrad info`: what is installed, what runs on what, and why a device cannot be used."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import Annotated, Any

import typer

import sparsegrad as sg
from sparsegrad import backends
from sparsegrad.cli.report import dumps, versions

__all__ = ["info"]

_Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


def info(as_json: _Json = False) -> None:
    """Say which versions and devices there are, and why a device cannot be used."""
    found = {
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        **versions(),
        "cpu": _cpu(),
        "cuda": _cuda(),
    }
    if as_json:
        typer.echo(dumps(found, indent=1))
        return
    for name, value in found.items():
        if not isinstance(value, dict):
            typer.echo(f"{name} {value}")
            continue
        typer.echo(f"{name}:")
        for key, fact in value.items():
            typer.echo(f"  {key}: {_text(fact)}")


def _text(fact: Any) -> str:
    if isinstance(fact, dict):
        return ", ".join(f"{name} {value}" for name, value in fact.items())
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    return str(fact)


def _cpu() -> dict[str, Any]:
    backend = backends.for_device("cpu").name
    found = {
        "backend": backend,
        "cores": os.cpu_count(),
        "threads": f"{sg.get_num_threads()} (a pool of Python threads)",
        "blas": _blas(),
    }
    if backend == "cpu_jit":
        found["compiled kernels"] = _numba_cache()
    return found


def _blas() -> str:
    """The libraries behind dense products: NumPy and SciPy may bring one each."""
    import scipy.linalg  # noqa: F401  (which loads its own)
    import threadpoolctl

    pools = {
        f"{pool['internal_api']} {pool['version']}, {pool['num_threads']} threads"
        f" ({pool.get('threading_layer', 'unknown')})"
        for pool in threadpoolctl.threadpool_info()
        if pool["user_api"] == "blas"
    }
    return "; ".join(sorted(pools)) or "not known"


def _numba_cache() -> str:
    import numba

    from sparsegrad.backends.cpu_jit_kernels_segment import segment_sum

    try:
        folder = numba.njit(cache=True)(segment_sum.function).stats.cache_path
    except RuntimeError as error:
        return f"not kept on disk ({error})"
    return _files(Path(folder), "*.nbc")


def _cuda() -> dict[str, Any]:
    problem = sg.cuda.problem()
    found: dict[str, Any] = {"available": problem is None}
    if problem is not None:
        found["problem"] = problem
    if importlib.util.find_spec("cupy") is None:
        return found
    if problem is None:
        found |= sg.cuda.describe()
    else:
        found |= _installed()
    # Where CuPy keeps what it compiled, ours and its own.
    folder = os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache"
    return found | {"compiled kernels": _files(Path(folder), "*.cubin")}


def _installed() -> dict[str, Any]:
    """What of CUDA is there although it cannot be used."""
    try:
        from sparsegrad.backends import cuda_probe
    except ImportError:  # which is the problem
        return {}
    return {"libraries": {name: state for name, (state, _) in cuda_probe.libraries().items()}}


def _files(folder: Path, pattern: str) -> str:
    """How much a cache holds."""
    sizes = [path.stat().st_size for path in folder.glob(pattern)]
    return f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB in {folder}"
