"""`sparsegrad warmup`."""

from __future__ import annotations

import time

import typer

from sparsegrad import backends

__all__ = ["warmup"]


def warmup() -> None:
    """Compile every CPU kernel now, so that no later run waits for one."""
    if backends.for_device("cpu").name != "cpu_jit":
        typer.echo("nothing to compile: Numba is not installed")
        return
    from sparsegrad.backends import cpu_jit

    start = time.perf_counter()
    count = cpu_jit.warmup()
    typer.echo(f"{count} kernels are ready after {time.perf_counter() - start:.0f} s")
