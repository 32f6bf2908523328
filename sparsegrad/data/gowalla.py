"""Gowalla: who checked in where; and the text format in which such data is published."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from sparsegrad.data.files import find, local, malformed, read_arrays
from sparsegrad.data.interactions import Interactions, csr_last
from sparsegrad.io.files import FileError, opened
from sparsegrad.sparse_tensor import SparseTensor, compressed

__all__ = ["gowalla", "read_lists"]

_KEYS = ("n_users", "n_items", "train_indptr", "train_items", "test_indptr", "test_items")
_SITE = "https://github.com/xiangwang1223/neural_graph_collaborative_filtering, Data/gowalla"


def gowalla(folder: str | os.PathLike[str] | None = None) -> Interactions:
    """Check-ins of 29858 users at 40981 places, split as in the papers on collaborative filtering:
    810128 for training, 217242 for the test.

    folder: holds rec/gowalla.npz, or the public gowalla/train.txt and gowalla/test.txt; by default
        the one that the environment variable SPARSEGRAD_DATA names.

    Raises DataError or FileError for files that are missing or malformed.

    Cho, Myers and Leskovec, "Friendship and mobility", KDD 2011; split of Wang, He, Wang, Feng and
    Chua, "Neural graph collaborative filtering", SIGIR 2019.
    """
    texts = [local(f"gowalla/{part}.txt", folder) for part in ("train", "test")]
    if local("rec/gowalla.npz", folder) is None and all(texts):
        parts = [read_lists(path) for path in texts]
        users, items = (max(part.shape[d] for part in parts) for d in (0, 1))
        return Interactions("gowalla", *(read_lists(path, (users, items)) for path in texts))
    advice = f"the public gowalla/train.txt and gowalla/test.txt ({_SITE})"
    path = find("gowalla", "rec/gowalla.npz", folder, advice)
    held = read_arrays("gowalla", path, _KEYS)
    with malformed("gowalla", path):
        return Interactions("gowalla", _part(held, "train"), _part(held, "test"))


def _part(held: dict[str, Any], part: str) -> SparseTensor:
    items = held[f"{part}_items"]
    shape = (int(held["n_users"]), int(held["n_items"]))
    ones = np.ones(len(items), np.float32)
    return compressed("csr", held[f"{part}_indptr"], items, ones, shape)


def read_lists(source: Any, shape: tuple[int, int] | None = None) -> SparseTensor:
    """Read lines "user item item ...", numbers from 0, as a CSR matrix (users, items) of ones.

    source: path (.gz and .bz2 are decompressed) or open file.
    shape: by default one more than the largest numbers of the file.

    Items that are repeated count once. Raises FileError, with the number of the line, for what is
    not such a line, or outside the shape.

    >>> import io, sparsegrad as sg
    >>> sg.data.read_lists(io.StringIO("0 2 1\\n2 0\\n1\\n")).to_dense()
    tensor([[0., 1., 1.],
            [0., 0., 0.],
            [1., 0., 0.]])
    """
    name = getattr(source, "name", source)
    rows, items, counts = [], [], []
    limits = (2**31, 2**31) if shape is None else shape
    with opened(source, "rt") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if not words:
                continue
            try:
                user, *chosen = (int(word) for word in words)
            except ValueError as error:
                raise FileError(f"read_lists: {name}, line {number}: {error}") from None
            most = max(chosen, default=0)
            if not (0 <= user < limits[0] and min(chosen, default=0) >= 0 and most < limits[1]):
                raise FileError(
                    f"read_lists: {name}, line {number}: a number is negative, or outside "
                    f"{limits[0]} users and {limits[1]} items"
                )
            rows.append(user)
            items += chosen
            counts.append(len(chosen))
    if shape is None:
        shape = (max(rows, default=-1) + 1, max(items, default=-1) + 1)
    return csr_last(np.repeat(np.array(rows, np.int64), counts), items, np.ones(len(items)), shape)
