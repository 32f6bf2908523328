"""How good a list of recommendations is."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsegrad as sg

__all__ = ["ranking"]


def ranking(
    users: sg.Tensor,
    items: sg.Tensor,
    seen: sg.SparseTensor,
    truth: sg.SparseTensor,
    k: int = 20,
    which: Any = None,
    batch: int = 500,
) -> dict[str, float]:
    """Recall and NDCG of the k items with the largest products users @ items.T, without those of
    `seen`, against those of `truth`: {"recall@k": ..., "ndcg@k": ...}.

    users (m, d), items (n, d); seen, truth: SparseTensors (m, n), of which only the entries count.
    which: rows to judge (by default all); those without an entry in `truth` are left out.
    batch: users at a time, whose products (batch, n) are in memory.

    Recall is the share of a user's true items that are found; NDCG weights a hit at place p (from
    1) with 1 / log2(1 + p), and the best list possible has 1. Both are means over users.

    >>> import sparsegrad as sg
    >>> seen, truth = (sg.coo([[0], [item]], None, (1, 3)) for item in (0, 2))
    >>> ranking(sg.ones(1, 1), sg.tensor([[3.0], [2.0], [1.0]]), seen, truth, k=2)
    {'recall@2': 1.0, 'ndcg@2': 0.630...}
    """
    m, n = truth.shape
    length = min(k, n)
    seen, truth = (A.to("cpu").to("csr") for A in (seen, truth))
    size = np.diff(truth.indptr)
    chosen = np.arange(m) if which is None else np.asarray(which)
    chosen = chosen[size[chosen] > 0]
    gain = 1 / np.log2(np.arange(2, length + 2))
    ideal = np.concatenate(([0], np.cumsum(gain)))
    true = np.sort(truth.row.astype(np.int64) * n + truth.col)
    recall = ndcg = 0.0
    with sg.no_grad():
        for start in range(0, len(chosen), batch):
            ids = chosen[start : start + batch]
            scores = users[ids] @ items.T
            old = seen[ids]
            scores[old.row, old.col] = -np.inf
            best = sg.topk(scores, length, dim=1).indices.numpy()
            cells = ids[:, None] * n + best
            place = np.minimum(np.searchsorted(true, cells), len(true) - 1)
            hits = true[place] == cells
            recall += float((hits.sum(1) / size[ids]).sum())
            ndcg += float(((hits @ gain) / ideal[np.minimum(size[ids], length)]).sum())
    count = max(1, len(chosen))
    return {f"recall@{k}": recall / count, f"ndcg@{k}": ndcg / count}
