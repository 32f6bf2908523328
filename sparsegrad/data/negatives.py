"""Negative samples: items that a user did not choose."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegrad import sampling
from sparsegrad.ops.shape import check_sparse
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.tensor import Tensor

__all__ = ["NegativeSampler"]

# How often what was chosen is drawn anew, before the rest is drawn from a list of what is left.
_ROUNDS = 20


class NegativeSampler:
    """Draws columns that a row of a matrix (m, n) has no entry in.

    R: SparseTensor (m, n); explicit zeros are entries too.
    power: columns are drawn with probability proportional to (number of entries)^power: 0 is
        uniform, 1 is by popularity, 0.75 is word2vec's choice. A column without entries is then
        drawn only where nothing else is left.

    Draws come from the generator of `sg.manual_seed`. Raises ValueError for a negative power, and
    in `draw` for a row that has an entry in every column.

    >>> import sparsegrad as sg
    >>> sampler = sg.data.NegativeSampler(sg.csr([0, 2, 3], [0, 1, 1], None, (2, 3)))
    >>> sampler.draw([0, 0, 1], 2).shape, sampler.draw([0])
    ((3, 2), tensor([[2]]))
    """

    def __init__(self, R: SparseTensor, power: float = 0.0) -> None:
        check_sparse("NegativeSampler", "R", R)
        if not power >= 0:
            raise ValueError(f"NegativeSampler: power must be >= 0, got {power}")
        host = R.detach().to("cpu").to("csr")
        self.m, self.n = host.shape
        self._cells = np.unique(host.row.astype(np.int64) * self.n + host.col)
        self._degree = np.bincount(self._cells // max(1, self.n), minlength=self.m)
        self._weights = None
        if power:
            self._weights = np.bincount(host.col, minlength=self.n).astype(np.float64) ** power
            self._weights[np.bincount(host.col, minlength=self.n) == 0] = 0
            self._upto = np.cumsum(self._weights)

    def draw(self, rows: Any, count: int = 1) -> Tensor:
        """`count` columns for each of the rows (b,), with repetitions: int64 (b, count)."""
        ids = np.asarray(rows.numpy() if isinstance(rows, Tensor) else rows, np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.m:
            raise ValueError(
                f"NegativeSampler: rows must lie in [0, {self.m}), got {ids.min()} to {ids.max()}"
            )
        if ids.size and (full := self._degree[ids] >= self.n).any():
            raise ValueError(
                f"NegativeSampler: row {ids[full.argmax()]} has an entry in every column"
            )
        row = np.repeat(ids, count)
        drawn = np.empty(len(row), np.int64)
        left = np.arange(len(row))
        for _ in range(_ROUNDS):
            if not len(left):
                break
            drawn[left] = self._columns(len(left))
            left = left[self._chosen(row[left], drawn[left])]
        for e in left:
            drawn[e] = self._of_the_rest(row[e])
        return Tensor(drawn.reshape(len(ids), count))

    def _columns(self, size: int) -> Any:
        if self._weights is None or not self._upto[-1]:
            return sampling.randint(self.n, (size,)).numpy()
        return _by_weight(self._upto, size)

    def _chosen(self, row: Any, col: Any) -> Any:
        cells = row * self.n + col
        if not len(self._cells):
            return np.zeros(len(cells), bool)
        place = np.minimum(np.searchsorted(self._cells, cells), len(self._cells) - 1)
        return self._cells[place] == cells

    def _of_the_rest(self, row: int) -> int:
        """From the list of columns that are left."""
        start, end = np.searchsorted(self._cells, (row * self.n, (row + 1) * self.n))
        rest = np.setdiff1d(np.arange(self.n), self._cells[start:end] - row * self.n)
        upto = np.cumsum(np.ones(len(rest)) if self._weights is None else self._weights[rest])
        if not upto[-1]:
            upto = np.arange(1.0, len(rest) + 1)
        return int(rest[_by_weight(upto, 1)[0]])


def _by_weight(upto: Any, size: int) -> Any:
    """Positions with probabilities in proportion to weights, given the cumulated ones."""
    drawn = sampling.rand(size, dtype="float64").numpy() * upto[-1]
    return np.minimum(
        np.searchsorted(upto, drawn, side="right"), np.flatnonzero(np.diff(upto, prepend=0))[-1]
    )
