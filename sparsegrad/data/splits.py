"""Which nodes or rows are for training, validation and test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sparsegrad.tensor import Tensor

__all__ = ["k_fold", "per_class_split", "random_split"]


def random_split(n: int, shares: Sequence[float], seed: int = 0) -> tuple[Tensor, ...]:
    """The numbers 0 to n - 1 in disjoint parts, each sorted, drawn at random; all of them if the
    shares sum to 1.

    Equal seeds give equal parts. Raises ValueError for shares below 0 or of a sum above 1.

    >>> import sparsegrad as sg
    >>> train, val, test = sg.data.random_split(10, (0.6, 0.2, 0.2))
    >>> len(train), len(val), len(test)
    (6, 2, 2)
    """
    total = sum(shares)
    if min(shares, default=0) < 0 or total > 1 + 1e-9:
        raise ValueError(f"random_split: shares must be >= 0 and sum to at most 1, got {shares}")
    ends = np.rint(np.cumsum((0.0, *shares)) * n).astype(np.int64)
    order = _rng(seed).permutation(n)
    return tuple(Tensor(np.sort(order[a:b])) for a, b in pairwise(ends))


def per_class_split(
    labels: Any, train: int = 20, val: int = 30, test: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers of `train` and of `val` random things of each class, and of `test` random others (by
    default all): three disjoint sorted Tensors of positions. Things of class -1 are in none.

    labels: classes (n,), integers. The defaults are those of Shchur et al., "Pitfalls of graph
        neural network evaluation", 2018.

    Equal seeds give equal parts. Raises ValueError for a class of fewer than train + val things.

    >>> import sparsegrad as sg
    >>> train, val, test = sg.data.per_class_split([0, 1, 0, 1, 0, 1, 0], train=1, val=1)
    >>> len(train), len(val), len(test)
    (2, 2, 3)
    """
    y = np.asarray(labels.numpy() if isinstance(labels, Tensor) else labels)
    order = _rng(seed).permutation(len(y))
    parts: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for c in range(int(y.max(initial=-1)) + 1):
        own = order[y[order] == c]
        if len(own) < train + val:
            raise ValueError(
                f"per_class_split: class {c} has {len(own)} members, fewer than train + val = "
                f"{train + val}"
            )
        for part, ids in zip(parts, np.split(own, [train, train + val])):
            part.append(ids)
    first, second, rest = (np.concatenate(part or [order[:0]]) for part in parts)
    rest = order[np.isin(order, rest)][:test]
    return Tensor(np.sort(first)), Tensor(np.sort(second)), Tensor(np.sort(rest))


def k_fold(n: int, k: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """k pairs (train, test) of sorted positions; every number below n is in one test part.

    Equal seeds give equal parts. Raises ValueError unless 2 <= k <= n.

    >>> import sparsegrad as sg
    >>> [len(test) for train, test in sg.data.k_fold(5, 2)]
    [3, 2]
    """
    if not 2 <= k <= n:
        raise ValueError(f"k_fold: k must lie in [2, {n}], got {k}")
    part = _rng(seed).permutation(np.arange(n) % k)
    return (
        (Tensor(np.flatnonzero(part != i)), Tensor(np.flatnonzero(part == i))) for i in range(k)
    )


def _rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))
