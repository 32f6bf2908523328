"""Gowalla: who checked in where."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from sparsegrad.data.files import find, malformed, read_arrays
from sparsegrad.data.interactions import Interactions
from sparsegrad.sparse_tensor import SparseTensor, compressed

__all__ = ["gowalla"]

_KEYS = ("n_users", "n_items", "train_indptr", "train_items", "test_indptr", "test_items")


def gowalla(folder: str | os.PathLike[str] | None = None) -> Interactions:
    """Check-ins of 29858 users at 40981 places, split as in the papers on collaborative filtering:
    810128 for training, 217242 for the test.

    folder: holds rec/gowalla.npz; by default the one that the environment variable SPARSEGRAD_DATA
        names.

    Raises DataError for a file that is missing or malformed.

    Cho, Myers and Leskovec, "Friendship and mobility", KDD 2011; split of Wang, He, Wang, Feng and
    Chua, "Neural graph collaborative filtering", SIGIR 2019.
    """
    path = find("gowalla", "rec/gowalla.npz", folder, "read other ratings with read_ratings")
    held = read_arrays("gowalla", path, _KEYS)
    with malformed("gowalla", path):
        return Interactions("gowalla", _part(held, "train"), _part(held, "test"))


def _part(held: dict[str, Any], part: str) -> SparseTensor:
    items = held[f"{part}_items"]
    shape = (int(held["n_users"]), int(held["n_items"]))
    ones = np.ones(len(items), np.float32)
    return compressed("csr", held[f"{part}_indptr"], items, ones, shape)
