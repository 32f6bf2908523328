"""Runs one seed after the other, and says how it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sparsegrad.cli import report
from sparsegrad.cli.data import Source
from sparsegrad.recipes import TrainingResult

__all__ = ["Recipe", "Surroundings", "train"]

Row = dict[str, float]


@dataclass(frozen=True)
class Recipe:
    """A training function on the command line."""

    run: Callable[..., TrainingResult]  # run(data, *, seed, device, ..., **keywords of `fit`)
    about: str
    data: Source
    options: Mapping[str, str] = field(default_factory=dict)  # keywords of `run`, and their help
    matrix: str = "the graph"  # what `stored_bytes` counts
    step: str = "epoch"  # what a row of the history is


@dataclass(frozen=True)
class Surroundings:
    """What is around a training run, and does not change its result."""

    seeds: list[int]  # empty: the recipe draws nothing
    data: str
    device: str
    json_file: Path | None = None
    log: Path | None = None
    plot: Path | None = None
    checkpoint: Path | None = None
    resume: bool = False
    save_every: float = 10.0


def train(
    name: str,
    recipe: Recipe,
    load: Callable[[int], Any],
    settings: dict[str, Any],
    around: Surroundings,
) -> None:
    """Run each seed; print and write the results."""
    data: Any = None
    if around.plot is not None:
        report.check_picture(around.plot)
    head = report.head(name, around.data, settings, around.device)
    results: dict[int, TrainingResult] = {}
    with _log(around.log, head) as log:
        for seed in around.seeds or [0]:
            data, before = load(seed), data
            if data is not before:
                typer.echo(repr(data))
            options = _options(name, settings, around, seed)
            title = f"seed {seed}" if around.seeds else name
            with _progress(title, settings.get("epochs"), len(around.seeds) > 1) as show:

                def told(row: Row, seed: int = seed, show: Any = show) -> None:
                    log({"seed": seed, **row})
                    show(row)

                if around.checkpoint is not None or "epochs" in settings:
                    options["on_epoch"] = told
                results[seed] = recipe.run(data, **settings, **options)
            log({"seed": seed, "test": results[seed].test, "best": results[seed].best})
            typer.echo(report.line(title, recipe.step, results[seed]))
    if around.json_file is not None:
        report.write(around.json_file, report.record(head, results))
    if around.plot is not None:
        report.draw(around.plot, f"{name}, {around.data}", results)
    typer.echo(report.summary(recipe.matrix, recipe.step, list(results.values())))


def _options(
    name: str, settings: dict[str, Any], around: Surroundings, seed: int
) -> dict[str, Any]:
    """Keywords of the recipe that are not among its settings."""
    options: dict[str, Any] = {"device": around.device}
    if around.seeds:
        options["seed"] = seed
    if around.checkpoint is not None:
        options["checkpoint"] = around.checkpoint / f"seed-{seed}.safetensors"
        options["resume"] = around.resume
        options["save_every"] = around.save_every
        # More epochs, or more patience, are a reason to go on.
        fixed = {k: v for k, v in settings.items() if k not in ("epochs", "patience")}
        options["settings"] = {"recipe": name, "data": around.data, "seed": seed, **fixed}
    return options


@contextmanager
def _log(path: Path | None, head: dict[str, Any]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that writes JSON lines: first `head`, then what it is called with."""
    if path is None:
        yield lambda row: None
        return
    with path.open("w", encoding="utf-8") as file:
        _line(file, head)
        yield lambda row: _line(file, row)


def _line(file: TextIO, row: dict[str, Any]) -> None:
    file.write(report.dumps(row) + "\n")
    file.flush()  # whoever follows the file sees the epoch now


@contextmanager
def _progress(title: str, epochs: int | None, several: bool) -> Iterator[Callable[[Row], None]]:
    """A function that moves the bar on, with the metrics of the epoch."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("epoch {task.completed}/{task.total} {task.fields[metrics]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # A bar that is wiped leaves blank lines in a log.
    quiet = epochs is None or (several and not console.is_terminal)
    with Progress(*columns, console=console, transient=several, disable=quiet) as progress:
        task = progress.add_task(title, total=epochs, metrics="")

        def show(row: Row) -> None:
            progress.update(task, advance=1, metrics=report.metrics(row))

        yield show
