"""What `--data` names, for each kind of recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import sparsegrad as sg
from sparsegrad.data.planetoid import FOLDER_VARIABLE

__all__ = ["NODES", "Source", "one_of"]


@dataclass(frozen=True)
class Source:
    """How a recipe comes by its data."""

    default: str
    help: str
    load: Callable[[str], Any]


def one_of(named: Mapping[str, Callable[[], Any]]) -> Source:
    """Data sets by name; the first is the default."""
    names = ", ".join(named)

    def load(name: str) -> Any:
        if name not in named:
            raise ValueError(f"--data must be one of {names}, got {name!r}")
        return named[name]()

    text = f"{names} (read from the folder that the environment variable {FOLDER_VARIABLE} names)."
    return Source(next(iter(named)), text.replace("sbm", "sbm (generated)"), load)


# Graphs whose nodes are classified.
NODES: dict[str, Callable[[], sg.data.Graph]] = {
    "sbm": lambda: sg.data.sbm(),
    **{name: partial(sg.data.planetoid, name) for name in ("cora", "citeseer", "pubmed")},
}
