"""The commands, put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

import sparsegrad as sg
from sparsegrad.cli.check_gpu import check_gpu
from sparsegrad.cli.command import command
from sparsegrad.cli.info import info
from sparsegrad.cli.recipes import RECIPES
from sparsegrad.cli.warmup import warmup

__all__ = ["app"]

COMMANDS: dict[str, Callable[..., None]] = {"check-gpu": check_gpu, "info": info, "warmup": warmup}

app = typer.Typer(
    name="sparsegrad",
    help="A sparse autograd engine: train a model, say what is installed, check a GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"sparsegrad {sg.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say which, and leave."),
    ] = False,
) -> None:
    pass


_train = typer.Typer(help="Train a model.", no_args_is_help=True, rich_markup_mode=None)
for _name, _recipe in RECIPES.items():
    _train.command(_name, short_help=_recipe.about)(command(_name, _recipe))
app.add_typer(_train, name="train")
for _name, _function in COMMANDS.items():
    app.command(_name)(_function)
