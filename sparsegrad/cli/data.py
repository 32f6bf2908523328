"""What `--data` names, for each kind of recipe."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import sparsegrad as sg
from sparsegrad.data.files import FOLDER_VARIABLE

__all__ = ["CHOICES", "NETWORKS", "NODES", "ROWS", "Source", "source"]


@dataclass(frozen=True)
class Source:
    """How a recipe comes by its data."""

    default: str
    help: str
    load: Callable[[str], Callable[[int], Any]]  # name -> seed of a run -> its data


def source(named: Mapping[str, Callable[..., Any]], read: Callable[..., Any], what: str) -> Source:
    """Data sets by name, the first is the default; any other name is that of a file to `read`.

    What takes a `split` has no published one, or several: the seed of a run says which it is.
    """
    names = ", ".join(named)

    def load(name: str) -> Callable[[int], Any]:
        if name not in named and not os.path.exists(name):
            raise ValueError(f"--data must be one of {names}, or a file; got {name!r}")
        make = named[name] if name in named else partial(read, name)
        if "split" in inspect.signature(make).parameters:
            return lambda seed: make(split=seed)
        data = make()
        return lambda seed: data

    first, *others = named
    text = (
        f"{first} (generated), {', '.join(others)} (from the folder that {FOLDER_VARIABLE} names, "
        f"see sg.data), or the path of {what}."
    )
    return Source(first, text, load)


# Graphs whose nodes are classified.
_GRAPHS: dict[str, Callable[..., sg.data.Graph]] = {
    "sbm": lambda: sg.data.sbm(),
    **{name: partial(sg.data.planetoid, name) for name in ("cora", "citeseer", "pubmed")},
    **{f"amazon-{name}": partial(sg.data.amazon, name) for name in ("photo", "computers")},
    "coauthor-physics": partial(sg.data.coauthor, "physics"),
    **{name: partial(sg.data.heterophilous, name) for name in ("tolokers", "minesweeper")},
}
NODES = source(
    _GRAPHS,
    sg.data.read_graph,
    "an .npz file in a layout of sg.data.read_graph",
)


# Who chose what.
def _choices(path: str, split: int = 0) -> sg.data.Interactions:
    return sg.data.rated(os.path.basename(path), sg.data.read_ratings(path).R, seed=split)


CHOICES = source(
    {
        "sbm": lambda: sg.data.interactions_sbm(),
        "gowalla": sg.data.gowalla,
        "movielens": sg.data.movielens,
    },
    _choices,
    "a file with lines of user and item, and a rating or none; a fifth of them is the test",
)


# Rows with labels.
def _rows(path: str, split: int = 0) -> sg.data.Classified:
    return sg.data.labelled(os.path.basename(path), sg.data.read_libsvm(path), seed=split)


ROWS = source(
    {"words": lambda: sg.data.bag_of_words(), "a9a": sg.data.a9a},
    _rows,
    "a libsvm file; a fifth of its rows is the test",
)


# Sparse networks.
NETWORKS = source(
    {"random": lambda: sg.data.sparse_network(), "graphchallenge": sg.data.graphchallenge},
    sg.data.read_network,
    "an .npz file in the layout of sg.data.read_network",
)
