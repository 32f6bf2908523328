"""`sparsegrad info`."""

from __future__ import annotations

import os
import platform

import typer

import sparsegrad as sg
from sparsegrad import backends
from sparsegrad.cli.report import versions

__all__ = ["info"]


def info() -> None:
    """Say which versions and devices there are, and why a device cannot be used."""
    typer.echo(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for name, version in versions().items():
        typer.echo(f"{name} {version}")
    typer.echo(f"cores {os.cpu_count()}")
    typer.echo(f"threads {sg.get_num_threads()}")
    typer.echo(f"cpu: {backends.for_device('cpu').name}")
    if (problem := sg.cuda.problem()) is not None:
        typer.echo(f"cuda: not available ({problem})")
        return
    typer.echo(f"cuda: {sg.cuda.device_count()} devices")
    for name, found in sg.cuda.describe().items():
        typer.echo(f"  {name}: {found}")
