"""The `sparsegrad` command: train a model on a data set, say what is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import sparsegrad as sg
from sparsegrad import backends
from sparsegrad.data.planetoid import FOLDER_VARIABLE
from sparsegrad.recipes import TrainingResult, train_gat, train_gcn

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
except ImportError as _error:  # an extra: the engine does without
    _missing: str | None = _error.name
else:
    _missing = None

__all__ = ["app"]

_DATA = ("sbm", "cora", "citeseer", "pubmed")
_DEVICES = ("auto", "cpu", "cuda")


# ---- sparsegrad train --------------------------------------------------------------------------
if _missing is None:
    _Data = Annotated[
        str,
        typer.Option(
            help="sbm (generated, needs no file), cora, citeseer or pubmed (from the folder that "
            f"the environment variable {FOLDER_VARIABLE} names)."
        ),
    ]
    _Seed = Annotated[int, typer.Option(help="Seed of initialisation and dropout.")]
    _Seeds = Annotated[
        str | None, typer.Option(help="Several runs: 0-9, or 1,5,7. Prints mean ± deviation.")
    ]
    _Epochs = Annotated[int, typer.Option(help="Updates of the weights.")]
    _MostEpochs = Annotated[int, typer.Option(help="Updates of the weights, at most.")]
    _Patience = Annotated[
        int, typer.Option(help="Epochs without a better validation before it stops.")
    ]
    _Hidden = Annotated[int, typer.Option(help="Width of the hidden layer (of each head).")]
    _Heads = Annotated[int, typer.Option(help="Attention heads of the hidden layer.")]
    _Rate = Annotated[float, typer.Option(help="Learning rate of Adam.")]
    _Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
    _Json = Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results of each run.")
    ]


def gcn(
    data: _Data = "sbm",
    seed: _Seed = 0,
    seeds: _Seeds = None,
    epochs: _Epochs = 200,
    hidden: _Hidden = 16,
    lr: _Rate = 0.01,
    device: _Device = "auto",
    json_file: _Json = None,
) -> None:
    """Train a two-layer graph convolutional network (Kipf and Welling, ICLR 2017)."""
    settings = {"epochs": epochs, "hidden": hidden, "lr": lr}
    _train("gcn", train_gcn, data, seed, seeds, device, json_file, settings)


def gat(
    data: _Data = "sbm",
    seed: _Seed = 0,
    seeds: _Seeds = None,
    epochs: _MostEpochs = 1000,
    patience: _Patience = 100,
    hidden: _Hidden = 8,
    heads: _Heads = 8,
    lr: _Rate = 0.005,
    device: _Device = "auto",
    json_file: _Json = None,
) -> None:
    """Train a two-layer graph attention network (Velickovic et al., ICLR 2018)."""
    settings = {"epochs": epochs, "patience": patience, "hidden": hidden, "heads": heads, "lr": lr}
    _train("gat", train_gat, data, seed, seeds, device, json_file, settings)


def _train(
    recipe: str,
    run: Callable[..., TrainingResult],
    data: str,
    seed: int,
    seeds: str | None,
    device: str,
    json_file: Path | None,
    settings: dict[str, Any],
) -> None:
    """Check the arguments, run each seed, print and write the results."""
    try:
        chosen = _seeds(seeds) if seeds is not None else [seed]
        _check_one_of("--data", data, _DATA)
        _check_one_of("--device", device, _DEVICES)
        for option, value in settings.items():
            if option != "lr" and value < 1:
                raise ValueError(f"--{option} must be at least 1, got {value}")
        if not settings["lr"] > 0:
            raise ValueError(f"--lr must be greater than 0, got {settings['lr']}")
        if min(chosen) < 0:
            raise ValueError(f"a seed must not be negative, got {min(chosen)}")
        if json_file is not None:
            _check_writable(json_file)
        where = _device(device)
        graph = sg.data.sbm() if data == "sbm" else sg.data.planetoid(data)
        typer.echo(repr(graph))
        results = _runs(run, graph, chosen, {**settings, "device": where})
        if json_file is not None:
            _write(json_file, _record(recipe, data, where, settings, results))
    except (sg.SparsegradError, ValueError, OSError) as error:
        _fail(error)
    typer.echo(_summary(results))


def _runs(
    run: Callable[..., TrainingResult], graph: Any, seeds: list[int], settings: dict[str, Any]
) -> dict[int, TrainingResult]:
    results: dict[int, TrainingResult] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("epoch {task.completed}/{task.total}, validation {task.fields[accuracy]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    several = len(seeds) > 1
    quiet = several and not console.is_terminal  # a bar that is wiped leaves blank lines in a log
    for seed in seeds:
        with Progress(*columns, console=console, transient=several, disable=quiet) as progress:
            task = progress.add_task(f"seed {seed}", total=settings["epochs"], accuracy="-")

            def show(row: dict[str, float], progress: Any = progress, task: Any = task) -> None:
                progress.update(task, advance=1, accuracy=_percent(row["val_accuracy"]))

            results[seed] = run(graph, seed=seed, on_epoch=show, **settings)
        found = results[seed]
        typer.echo(
            f"seed {seed}: test accuracy {_percent(found.test_accuracy)}, validation "
            f"{_percent(found.val_accuracy)} at epoch {found.best_epoch}"
        )
    return results


def _summary(results: dict[int, TrainingResult]) -> str:
    """The line that a newcomer reads."""
    runs = list(results.values())
    mean, deviation = _mean_and_deviation([run.test_accuracy for run in runs])
    accuracy = _percent(mean)
    if len(runs) > 1:
        accuracy = f"{100 * mean:.2f} ± {100 * deviation:.2f} % (mean of {len(runs)} runs)"
    milliseconds = 1000 * statistics.median(run.seconds_per_epoch for run in runs)
    sparse, dense = runs[0].adjacency_bytes, runs[0].dense_adjacency_bytes
    return (
        f"Test accuracy {accuracy}; {milliseconds:.1f} ms per epoch; stored sparse, the graph "
        f"takes {_bytes(sparse)} of memory, as a dense matrix it would take {_bytes(dense)} "
        f"({_percent(1 - sparse / dense)} saved)."
    )


def _record(
    recipe: str,
    data: str,
    device: str,
    settings: dict[str, Any],
    results: dict[int, TrainingResult],
) -> dict[str, Any]:
    """What --json writes: settings, versions, and one entry a run."""
    mean, deviation = _mean_and_deviation([run.test_accuracy for run in results.values()])
    first = next(iter(results.values()))
    return {
        "recipe": recipe,
        "data": data,
        "settings": settings,
        "device": device,
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), **_versions()},
        "test_accuracy": {"mean": mean, "deviation": deviation, "runs": len(results)},
        "adjacency_bytes": first.adjacency_bytes,
        "dense_adjacency_bytes": first.dense_adjacency_bytes,
        "runs": [
            {
                "seed": seed,
                "test_accuracy": run.test_accuracy,
                "val_accuracy": run.val_accuracy,
                "best_epoch": run.best_epoch,
                "epochs": len(run.history),
                "final_loss": run.history[-1]["loss"],
                "ms_per_epoch": round(1000 * run.seconds_per_epoch, 3),
            }
            for seed, run in results.items()
        ],
    }


# ---- sparsegrad info ---------------------------------------------------------------------------
def info() -> None:
    """Say which versions and devices there are, and why a device cannot be used."""
    typer.echo(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for name, version in _versions().items():
        typer.echo(f"{name} {version}")
    typer.echo(f"cores {os.cpu_count()}")
    typer.echo(f"cpu: {backends.for_device('cpu').name}")
    if (problem := sg.cuda.problem()) is not None:
        typer.echo(f"cuda: not available ({problem})")
        return
    typer.echo(f"cuda: {sg.cuda.device_count()} devices")
    for name, found in sg.cuda.describe().items():
        typer.echo(f"  {name}: {found}")


# ---- parts -------------------------------------------------------------------------------------
def _seeds(text: str) -> list[int]:
    """ "0-9", "3" or "1,5,7-9" as a list without repetitions."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"--seeds: expected 0-9 or 1,5,7, got {text!r}")
        seeds += range(int(first), int(last if dash else first) + 1)
    if not seeds:
        raise ValueError(f"--seeds: {text!r} names no seed")
    return list(dict.fromkeys(seeds))


def _check_one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{option} must be one of {', '.join(allowed)}, got {value!r}")


def _check_writable(path: Path) -> None:
    """Before the training, not after it."""
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"--json: the folder of {path} does not exist or cannot be written to")
    if path.is_dir():
        raise ValueError(f"--json: {path} is a folder, not a file")


def _device(name: str) -> str:
    """The device to use; only "auto" falls back to the CPU."""
    if name != "auto":
        backends.for_device(name)
        return name
    try:
        backends.for_device("cuda")
    except sg.DeviceError:
        return "cpu"
    return "cuda"


def _versions() -> dict[str, str]:
    found = {"sparsegrad": sg.__version__}
    for name in ("numpy", "scipy", "numba"):
        if importlib.util.find_spec(name) is not None:
            found[name] = importlib.metadata.version(name)
    return found


def _write(path: Path, record: dict[str, Any]) -> None:
    """As a whole or not at all: a file that is there before is replaced at the end."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def _mean_and_deviation(numbers: list[float]) -> tuple[float, float]:
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} GB"


def _fail(error: Exception) -> NoReturn:
    text = " ".join(str(error).split())
    typer.echo(f"error: {text}", err=True)
    raise typer.Exit(2)


def _without_extra() -> NoReturn:
    sys.stderr.write(
        f"error: the command line needs {_missing}, which is not installed; "
        'pip install "sparsegrad-engine[cli]"\n'
    )
    sys.exit(2)


def _application() -> Any:
    if _missing is not None:
        return _without_extra
    application = typer.Typer(
        name="sparsegrad",
        help="A sparse autograd engine: train a model, or say what is installed.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    train = typer.Typer(help="Train a model.", no_args_is_help=True, rich_markup_mode=None)
    train.command("gcn")(gcn)
    train.command("gat")(gat)
    application.add_typer(train, name="train")
    application.command("info")(info)
    return application


app = _application()

if __name__ == "__main__":
    app()
