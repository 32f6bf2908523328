"""a9a: does a person of the census of 1994 earn more than 50 000 dollars a year?"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from sparsegrad.data.classified import Classified
from sparsegrad.data.fetch import Remote, fetch
from sparsegrad.data.files import local, malformed, read_arrays
from sparsegrad.data.libsvm import Labelled, read_libsvm
from sparsegrad.sparse_tensor import compressed
from sparsegrad.tensor import Tensor

__all__ = ["a9a"]

_SITE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_TRAIN = Remote(_SITE + "a9a", "7ba53cccb27e2e525f0fb173e1f446d49856e3fb007eb43be4ec6d0f5b3335ca")
_TEST = Remote(_SITE + "a9a.t", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9")
_FEATURES = 123


def a9a(folder: str | os.PathLike[str] | None = None) -> Classified:
    """32561 rows of 123 features that are 0 or 1 for training, 16281 for the test; labels -1, 1.

    folder: holds text/a9a.npz, or the originals a9a and a9a.t; by default the one that the
        environment variable SPARSEGRAD_DATA names. Where it has neither, the originals are
        downloaded.

    Raises DataError or FileError for files that are malformed or cannot be had.

    Platt, "Fast training of support vector machines", 1999; UCI Adult.
    """
    path = local("text/a9a.npz", folder)
    if path is None:
        parts = (fetch("a9a", remote, folder) for remote in (_TRAIN, _TEST))
        train, test = (read_libsvm(part, _FEATURES) for part in parts)
        return Classified("a9a", *train, *test)
    held = read_arrays("a9a", path, ("n_features", "train_y", "train_indptr", "train_indices"))
    with malformed("a9a", path):
        return Classified("a9a", *_part(held, "train"), *_part(held, "test"))


def _part(held: dict[str, Any], part: str) -> Labelled:
    indices, y = held[f"{part}_indices"], held[f"{part}_y"].astype(np.int64)
    ones = np.ones(len(indices), np.float32)
    shape = (len(y), int(held["n_features"]))
    return Labelled(compressed("csr", held[f"{part}_indptr"], indices, ones, shape), Tensor(y))
