"""The text format of LIBSVM and SVMlight: a label, then column:value of the entries of a row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from sparsegrad.dtypes import get_default_dtype
from sparsegrad.io.files import FileError, opened
from sparsegrad.sparse_tensor import SparseTensor, compressed
from sparsegrad.tensor import Tensor

__all__ = ["Labelled", "read_libsvm"]


class Labelled(NamedTuple):
    """Rows with a label each.

    >>> import sparsegrad as sg
    >>> rows = sg.data.Labelled(sg.sparse_eye(2), sg.tensor([0, 1]))
    >>> rows.X.shape, rows.y
    ((2, 2), tensor([0, 1]))
    """

    X: SparseTensor  # (n, F), CSR
    y: Tensor  # (n,)


def read_libsvm(
    source: Any, n_features: int | None = None, *, zero_based: bool = False, dtype: Any = None
) -> Labelled:
    """Read lines "label column:value column:value ..." as a pair (X, y): a CSR matrix (n, F) and
    labels (n,), int64 if all are whole numbers, else of X's dtype.

    source: path (.gz and .bz2 are decompressed) or open file. What follows a # is a comment.
    n_features: F; by default the largest column of the file, which a second file (the test) may
        exceed or not reach: give it there.
    zero_based: columns count from 0, not from 1.
    dtype: of the values; the default dtype if None.

    Raises FileError, with the number of the line, for what is not such a line: columns must rise
    and lie within F, labels and values must be finite numbers.

    >>> import io, sparsegrad as sg
    >>> X, y = sg.data.read_libsvm(io.StringIO("+1 1:0.5 3:2\\n-1 2:1  # a comment\\n"))
    >>> X.to_dense(), y
    (tensor([[0.5, 0. , 2. ],
            [0. , 1. , 0. ]]), tensor([ 1, -1]))
    """
    name = getattr(source, "name", source)
    labels: list[float] = []
    counts, columns, values = [0], [], []
    first = 0 if zero_based else 1
    with opened(source, "rt") as file:
        for number, line in enumerate(file, 1):
            text = line.decode("utf-8") if isinstance(line, bytes) else line
            words = text.partition("#")[0].split()
            if not words:
                continue
            try:
                labels.append(_finite(words[0]))
                for column, value in _entries(words[1:], first, n_features):
                    columns.append(column)
                    values.append(value)
            except (ValueError, OverflowError) as error:
                raise FileError(f"read_libsvm: {name}, line {number}: {error}") from None
            counts.append(len(columns))
    indices = np.array(columns, np.int64) - first
    width = int(indices.max(initial=-1)) + 1 if n_features is None else n_features
    kind = get_default_dtype() if dtype is None else dtype
    X = compressed("csr", counts, indices, np.array(values), (len(labels), width), copy=False)
    y = np.array(labels)
    whole = bool((y == np.rint(y)).all()) and bool((abs(y) < 2**53).all())
    X = X.astype(kind)
    return Labelled(X, Tensor(y.astype(np.int64) if whole else y.astype(X.dtype)))


def _entries(words: list[str], first: int, n_features: int | None) -> Iterator[tuple[int, float]]:
    """Columns and values of a line; ValueError for columns that do not rise from `first` or reach
    beyond `n_features`."""
    last = first - 1
    for word in words:
        column, _, value = word.partition(":")
        here = int(column)
        if here <= last:
            raise ValueError(f"column {here} after {last}")
        last = here
        yield here, _finite(value)
    if n_features is not None and last - first >= n_features:
        raise ValueError(f"column {last} of {n_features}")


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word!r} is not a finite number")
    return number
