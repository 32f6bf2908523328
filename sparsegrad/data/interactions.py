"""Interactions: who chose what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegrad.data.graph import csr_rows
from sparsegrad.ops.shape import check_sparse
from sparsegrad.sparse_tensor import SparseTensor, compressed

__all__ = ["Interactions", "bipartite", "csr_last", "hold_out", "interactions_sbm"]


@dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """Users, items, and which of them belong together.

    train, test: SparseTensors (users, items), CSR, without duplicates and with no entry in common;
        ones, or ratings.

    >>> import sparsegrad as sg
    >>> R = sg.random_sparse(20, 30, 0.5)
    >>> found = sg.data.rated("few", R)
    >>> found.train.nnz + found.test.nnz == R.nnz
    True
    """

    name: str
    train: SparseTensor
    test: SparseTensor

    @property
    def n_users(self) -> int:
        """Number of users."""
        return self.train.shape[0]

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.train.shape[1]

    def __repr__(self) -> str:
        return (
            f"Interactions({self.name!r}: {self.n_users} users, {self.n_items} items, "
            f"{self.train.nnz} for training, {self.test.nnz} for the test)"
        )


def bipartite(R: SparseTensor) -> SparseTensor:
    """The graph between rows and columns of a matrix (m, n): its symmetric adjacency
    (m + n, m + n), CSR, columns after rows, with the values of the matrix.

    >>> import sparsegrad as sg
    >>> sg.data.bipartite(sg.csr([0, 1, 1], [1], [5.0], (2, 2))).to_dense()
    tensor([[0., 0., 0., 5.],
            [0., 0., 0., 0.],
            [0., 0., 0., 0.],
            [5., 0., 0., 0.]])
    """
    R = R.to("csr")
    T = R.T.to("csr")
    m, n = R.shape
    values = np.concatenate((R.values.detach().numpy(), T.values.detach().numpy()))
    host = R.pattern.core.backend.to_host
    indptr = np.concatenate((host(R.indptr), R.nnz + host(T.indptr)[1:].astype(np.int64)))
    indices = np.concatenate((host(R.indices).astype(np.int64) + m, host(T.indices)))
    return compressed("csr", indptr, indices, values, (m + n, m + n), device=R.device)


def hold_out(R: SparseTensor, share: float, seed: int = 0) -> tuple[SparseTensor, SparseTensor]:
    """Entries of a CSR matrix (m, n) as two of that shape: about the `share` of each row, drawn at
    random, goes to the second; every row that has entries keeps one.

    Equal seeds give equal parts. Raises ValueError for a share outside [0, 1).

    >>> import sparsegrad as sg
    >>> kept, held = sg.data.hold_out(sg.csr([0, 4, 5], [0, 1, 2, 3, 0], None, (2, 4)), 0.25)
    >>> kept.nnz, held.nnz
    (4, 1)
    """
    if not 0 <= share < 1:
        raise ValueError(f"hold_out: share must lie in [0, 1), got {share}")
    check_sparse("hold_out", "R", R)
    host = R.to("csr").to("cpu")
    m, n = R.shape
    rng = np.random.Generator(np.random.Philox(seed))
    degree = np.diff(host.indptr).astype(np.int64)
    # A share of 0.1 of 12 entries is one, and a second one in a fifth of such rows.
    count = np.minimum((degree * share + rng.random(len(degree))).astype(np.int64), degree - 1)
    row = np.repeat(np.arange(len(degree)), degree)
    order = np.lexsort((rng.random(len(row)), row))
    place = np.arange(len(row)) - np.repeat(host.indptr[:-1].astype(np.int64), degree)
    held = np.zeros(len(row), bool)
    held[order[place < np.repeat(np.maximum(count, 0), degree)]] = True
    values = host.values.detach().numpy()
    kept, moved = (
        csr_rows(row[which], host.indices[which], values[which], (m, n)) for which in (~held, held)
    )
    return kept.to(R.device), moved.to(R.device)


def csr_last(row: Any, col: Any, values: Any, shape: tuple[int, int]) -> SparseTensor:
    """Entries in any order as a CSR matrix; of several in one place the last counts."""
    row, col = np.asarray(row, np.int64), np.asarray(col, np.int64)
    cells, last = np.unique((row * shape[1] + col)[::-1], return_index=True)
    values = np.asarray(values, np.float32)[::-1][last]
    return csr_rows(*np.divmod(cells, max(1, shape[1])), values, shape)


def interactions_sbm(
    n_users: int = 600,
    n_items: int = 400,
    groups: int = 8,
    degree: int = 40,
    loyalty: float = 0.8,
    test: float = 0.2,
    seed: int = 0,
) -> Interactions:
    """Generated interactions: users and items are of `groups`, a user draws `degree` items, the
    share `loyalty` of them from the own group, and rates those with 4 or 5, others with 1 to 3.

    Popular items are drawn more often (the k-th of a group in proportion to 1 / k). `test`: share
    of each user's items, by `hold_out`. Equal arguments give equal data.

    Raises ValueError unless every group has a user and an item.

    >>> import sparsegrad as sg
    >>> sg.data.interactions_sbm()
    Interactions('interactions_sbm': 600 users, 400 items, ... for training, ... for the test)
    """
    if not 1 <= groups <= min(n_users, n_items):
        raise ValueError(
            f"interactions_sbm: groups must lie in [1, {min(n_users, n_items)}], got {groups}"
        )
    rng = np.random.Generator(np.random.Philox(seed))
    user = np.repeat(np.arange(n_users), degree)
    own = rng.random(len(user)) < loyalty
    group = np.where(own, user % groups, rng.integers(0, groups, len(user)))
    rank = np.arange(1, -(-n_items // groups) + 1)
    upto = np.cumsum(1 / rank)
    place = np.searchsorted(upto, rng.random(len(user)) * upto[-1])
    item = (group + groups * place) % n_items  # the last place of some groups does not exist
    loved = item % groups == user % groups
    stars = np.where(loved, rng.integers(4, 6, len(user)), rng.integers(1, 4, len(user)))
    R = csr_last(user, item, stars, (n_users, n_items))
    return Interactions("interactions_sbm", *hold_out(R, test, seed))
