"""A recipe as a command: options from the signature of its function, and their checks."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import sparsegrad as sg
from sparsegrad import backends
from sparsegrad.cli.training import Recipe, Surroundings, train

__all__ = ["command"]


# Options that mean the same for every recipe which has them.
_COMMON = {
    "epochs": "Passes over the training data, at most.",
    "patience": "Epochs without a better validation before it stops.",
}
_DEVICES = ("auto", "cpu", "cuda")

_Seed = Annotated[
    int,
    typer.Option(help="Seed of initialisation and dropout, and of a split that is not published."),
]
_Seeds = Annotated[
    str | None, typer.Option(help="Several runs: 0-9, or 1,5,7. Prints mean ± deviation.")
]
_Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
_Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the results of each run.")
]
_Log = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a JSON line for each epoch, at once.")
]
_Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the learning curve (PNG).")]
_Checkpoint = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Keep there what --resume needs, a file for each seed."),
]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on from --checkpoint.")]
_SaveEvery = Annotated[float, typer.Option(help="Seconds between two checkpoints, at least.")]


def command(name: str, recipe: Recipe) -> Callable[..., None]:
    """The function that typer makes a command of."""
    own = _own_options(recipe)

    def run(**given: Any) -> None:
        settings = {option: given[option] for option in own}
        try:
            surroundings = _checked(recipe, settings, given)
            load = recipe.data.load(given["data"])
            train(name, recipe, load, settings, surroundings)
        except (sg.SparsegradError, ValueError, OSError, ImportError) as error:
            fail(error)
        except KeyboardInterrupt:
            kept = given.get("checkpoint") is not None
            advice = "; the same command with --resume goes on" if kept else ""
            typer.echo(f"interrupted{advice}", err=True)
            raise typer.Exit(130) from None

    signature = [
        _parameter("data", Annotated[str, typer.Option(help=recipe.data.help)], recipe.data.default)
    ]
    takes = inspect.signature(recipe.run).parameters
    if "seed" in takes:
        signature += [_parameter("seed", _Seed, 0), _parameter("seeds", _Seeds, None)]
    signature += own.values()
    signature += [_parameter("device", _Device, "auto"), _parameter("json_file", _Json, None)]
    if "loop" in takes:
        signature += [
            _parameter("log", _Log, None),
            _parameter("plot", _Plot, None),
            _parameter("checkpoint", _Checkpoint, None),
            _parameter("resume", _Resume, False),
            _parameter("save_every", _SaveEvery, 10.0),
        ]
    run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    run.__doc__ = recipe.about
    return run


def _own_options(recipe: Recipe) -> dict[str, inspect.Parameter]:
    """Those that not every recipe has; types and defaults are those of its function."""
    takes = inspect.signature(recipe.run, eval_str=True).parameters
    common = {name: text for name, text in _COMMON.items() if name in takes}
    return {
        name: _parameter(
            name, Annotated[takes[name].annotation, typer.Option(help=text)], takes[name].default
        )
        for name, text in (common | dict(recipe.options)).items()
    }


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


# ---- checks ------------------------------------------------------------------------------------
def _checked(recipe: Recipe, settings: dict[str, Any], given: dict[str, Any]) -> Surroundings:
    """Everything that can be wrong is said before the training, not after it."""
    defaults = inspect.signature(recipe.run).parameters
    for name, value in settings.items():
        _check_number("--" + name.replace("_", "-"), value, defaults[name].default)
    _check_number("--save-every", given.get("save_every"), 0)
    seeds = given.get("seeds")
    chosen = parsed_seeds(seeds) if seeds is not None else [given.get("seed", 0)]
    if min(chosen) < 0:
        raise ValueError(f"a seed must not be negative, got {min(chosen)}")
    for option, name in (("--json", "json_file"), ("--log", "log"), ("--plot", "plot")):
        if given.get(name) is not None:
            _check_writable(option, given[name])
    if given.get("resume") and given["checkpoint"] is None:
        raise ValueError("--resume needs --checkpoint, the folder to go on from")
    if given["device"] not in _DEVICES:
        raise ValueError(f"--device must be one of {', '.join(_DEVICES)}, got {given['device']!r}")
    kept = ("json_file", "log", "plot", "checkpoint", "resume", "save_every")
    return Surroundings(
        seeds=chosen if "seed" in defaults else [],
        data=given["data"],
        device=found_device(given["device"]),
        **{name: given[name] for name in kept if name in given},
    )


def _check_number(option: str, value: Any, default: Any) -> None:
    """Counts whose default is not 0 are at least 1; other numbers are finite and not negative."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    if option == "--lr" and not value > 0:
        raise ValueError(f"--lr must be greater than 0, got {value}")
    least = 1 if isinstance(value, int) and default != 0 else 0
    if not least <= value < math.inf:
        raise ValueError(f"{option} must be at least {least}, got {value}")


def parsed_seeds(text: str) -> list[int]:
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


def _check_writable(option: str, path: Path) -> None:
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{option}: the folder of {path} does not exist or cannot be written to")
    if path.is_dir():
        raise ValueError(f"{option}: {path} is a folder, not a file")


def found_device(name: str) -> str:
    """The device to use; only "auto" falls back to the CPU."""
    if name != "auto":
        backends.for_device(name)
        return name
    try:
        backends.for_device("cuda")
    except sg.DeviceError:
        return "cpu"
    return "cuda"


def fail(error: Exception) -> NoReturn:
    """One line, and exit status 2."""
    text = " ".join(str(error).split())
    typer.echo(f"error: {text}", err=True)
    raise typer.Exit(2)
