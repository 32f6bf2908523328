"""Rows with labels: a training part and a test part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegrad.data.libsvm import Labelled
from sparsegrad.data.sbm import draw_words
from sparsegrad.data.splits import random_split
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.tensor import Tensor

__all__ = ["Classified", "bag_of_words", "labelled"]


@dataclass(frozen=True, eq=False, repr=False)
class Classified:
    """Rows with a label, for training and for the test.

    x, test_x: SparseTensors (n, F) and (n', F), CSR. y, test_y: Tensors (n,) and (n',), int64.

    >>> import sparsegrad as sg
    >>> rows = sg.data.Labelled(sg.sparse_eye(10), sg.arange(10))
    >>> found = sg.data.labelled("ten", rows, share=0.3)
    >>> found.y.shape
    (7,)
    """

    name: str
    x: SparseTensor
    y: Tensor
    test_x: SparseTensor
    test_y: Tensor

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.x.shape[1]

    def __repr__(self) -> str:
        return (
            f"Classified({self.name!r}: {len(self.y)} rows for training, {len(self.test_y)} for "
            f"the test, {self.n_features} features, {self.x.nnz + self.test_x.nnz} entries)"
        )


def labelled(name: str, rows: Labelled, share: float = 0.2, seed: int = 0) -> Classified:
    """Rows with labels, of which a `share`, drawn at random, is the test.

    Equal seeds give equal parts. Raises ValueError for a share outside [0, 1].

    >>> import sparsegrad as sg
    >>> rows = sg.data.Labelled(sg.sparse_eye(10), sg.arange(10))
    >>> found = sg.data.labelled("ten", rows, share=0.3)
    >>> found.x.shape, found.test_x.shape
    ((7, 10), (3, 10))
    """
    train, test = random_split(len(rows.y), (1 - share, share), seed)
    return Classified(name, rows.X[train], rows.y[train], rows.X[test], rows.y[test])


def bag_of_words(
    n: int = 3000,
    n_classes: int = 2,
    n_features: int = 1000,
    words: int = 15,
    topic: float = 0.3,
    seed: int = 0,
) -> Classified:
    """Generated texts: a row has up to `words` of `n_features` words, each from its class's
    own part of the vocabulary with probability `topic`, else from all of it; a row sums to 1. A
    fifth of them is the test. Equal arguments give equal data.

    Raises ValueError for arguments out of range.

    >>> import sparsegrad as sg
    >>> sg.data.bag_of_words(n=100)
    Classified('bag_of_words': 80 rows for training, 20 for the test, 1000 features, ... entries)
    """
    if not (0 <= topic <= 1 and 1 <= n_classes <= n_features and words >= 0 and n >= 0):
        raise ValueError(
            f"bag_of_words: needs n >= 0, 1 <= n_classes <= n_features, words >= 0 and topic in "
            f"[0, 1], got {n}, {n_classes}, {n_features}, {words} and {topic}"
        )
    rng = np.random.Generator(np.random.Philox(seed))
    y = rng.permutation(np.arange(n) % n_classes)
    X = draw_words(rng, y, n_classes, n_features, words, topic)
    return labelled("bag_of_words", Labelled(X, Tensor(y)), seed=seed)
