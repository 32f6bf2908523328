"""Ratings: text lines "user item rating", and MovieLens."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from sparsegrad.data.files import find, malformed, read_arrays
from sparsegrad.data.graph import DataError
from sparsegrad.data.interactions import Interactions, csr_last, hold_out
from sparsegrad.io.files import FileError, opened
from sparsegrad.sparse_tensor import SparseTensor

__all__ = ["Ratings", "movielens", "rated", "read_ratings"]


class Ratings(NamedTuple):
    """A matrix of ratings, and the names of its rows and columns.

    >>> import sparsegrad as sg
    >>> sg.data.Ratings(sg.sparse_eye(2), ["ann", "bob"], ["tea", "milk"]).users
    ['ann', 'bob']
    """

    R: SparseTensor  # (users, items), CSR
    users: list[str]
    items: list[str]


def read_ratings(
    source: Any,
    *,
    delimiter: str | None = None,
    header: bool | None = None,
    columns: tuple[int, int, int | None] = (0, 1, 2),
) -> Ratings:
    """Read lines "user item rating ..." as a matrix (users, items); rows and columns are numbered
    in the order in which names first appear.

    source: path (.gz and .bz2 are decompressed) or open file.
    delimiter: between columns; by default the first of tab, "::", comma, semicolon that the first
        line has, else white space. Quotes are those of CSV files.
    header: whether the first line names the columns; by default if its rating is not a number.
    columns: places of user, item and rating; None for the rating: every line is a one, as it is
        where lines have only two columns.

    Of several ratings of an item by a user the last counts. Raises FileError, with the number of
    the line, for a line with too few columns, an empty name, or a rating that is not a number.

    >>> import io, sparsegrad as sg
    >>> text = "userId,movieId,rating\\nann,7,4.5\\nbob,3,2\\nann,3,1\\n"
    >>> R, users, items = sg.data.read_ratings(io.StringIO(text))
    >>> users, items, R.to_dense()
    (['ann', 'bob'], ['7', '3'], tensor([[4.5, 1. ],
            [0. , 2. ]]))
    """
    name = getattr(source, "name", source)
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    row, col, values = [], [], []
    with opened(source, "rt") as file:
        for number, parts in _lines(file, delimiter):
            unsure = header is None and _is_header(parts, columns[2])
            if number[1] == 0 and (header or unsure):
                continue
            try:
                user, item, value = _rating(parts, columns)
            except ValueError as error:
                raise FileError(f"read_ratings: {name}, line {number[0]}: {error}") from None
            row.append(users.setdefault(user, len(users)))
            col.append(items.setdefault(item, len(items)))
            values.append(value)
    return Ratings(csr_last(row, col, values, (len(users), len(items))), list(users), list(items))


def _rating(parts: list[str], columns: tuple[int, int, int | None]) -> tuple[str, str, float]:
    """User, item and value of a line; ValueError where one is missing or makes no sense."""
    try:
        user, item = parts[columns[0]].strip(), parts[columns[1]].strip()
        implied = columns[2] is None or (len(parts) == 2 and columns == (0, 1, 2))
        value = 1.0 if implied else float(parts[columns[2]])  # type: ignore[index]
    except IndexError:
        raise ValueError(f"{len(parts)} columns are too few") from None
    if not (user and item):
        raise ValueError("a name is empty")
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return user, item, value


def _lines(file: Any, delimiter: str | None) -> Iterator[tuple[tuple[int, int], list[str]]]:
    """((number of the line, how many came before that are not empty), its columns)."""
    seen = 0
    for number, line in enumerate(file, 1):
        text = (line.decode("utf-8") if isinstance(line, bytes) else line).rstrip("\r\n")
        if not text.strip():
            continue
        if delimiter is None:
            delimiter = next((d for d in ("\t", "::", ",", ";") if d in text), " ")
        if delimiter == " ":
            parts = text.split()
        elif len(delimiter) > 1:
            parts = text.split(delimiter)
        else:
            parts = next(csv.reader([text], delimiter=delimiter))
        yield (number, seen), parts
        seen += 1


def _is_header(parts: list[str], place: int | None) -> bool:
    if place is None or place >= len(parts):
        return False
    try:
        float(parts[place])
    except ValueError:
        return True
    return False


def rated(name: str, R: SparseTensor, share: float = 0.2, seed: int = 0) -> Interactions:
    """Ratings (users, items) with about the `share` of each user's for the test, by `hold_out`.

    >>> import sparsegrad as sg
    >>> R = sg.random_sparse(20, 30, 0.5)
    >>> sg.data.rated("few", R, share=0.2).train.shape
    (20, 30)
    """
    train, test = hold_out(R, share, seed)
    return Interactions(name, train, test)


def movielens(
    name: str = "latest-small", split: int = 0, folder: str | os.PathLike[str] | None = None
) -> Interactions:
    """100836 ratings, 0.5 to 5, of 9724 films by 610 people; a fifth of each one's, drawn with the
    seed `split`, is the test.

    name: "latest-small", the only one so far; others are read by `read_ratings`.
    folder: holds rec/ml_latest_small.npz; by default the one that the environment variable
        SPARSEGRAD_DATA names.

    Raises DataError for another name, and for a file that is missing or malformed.

    Harper and Konstan, "The MovieLens datasets", ACM Transactions on Interactive Intelligent
    Systems 5, 2015.
    """
    if name != "latest-small":
        raise DataError(f"movielens: name must be 'latest-small', got {name!r}")
    otherwise = "give the ratings.csv of https://grouplens.org/datasets/movielens to read_ratings"
    path = find("movielens", "rec/ml_latest_small.npz", folder, otherwise)
    held = read_arrays("movielens", path, ("user", "item", "rating_x2"))
    with malformed("movielens", path):
        row, col, values = (held[key].astype(np.int64) for key in ("user", "item", "rating_x2"))
        shape = (int(row.max(initial=-1)) + 1, int(col.max(initial=-1)) + 1)
        return rated("movielens latest-small", csr_last(row, col, values / 2, shape), seed=split)
