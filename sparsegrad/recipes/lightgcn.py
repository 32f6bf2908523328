"""LightGCN (He et al., SIGIR 2020) with a sampled softmax loss instead of BPR.

With one random item against each chosen one, BPR needs about a thousand passes over Gowalla. A
softmax over the chosen item and many others, of cosines, gets there in some ten (Wu et al., "On
the effectiveness of sampled softmax loss for item recommendation", TOIS 2024), and all users of a
batch can share the others: one dense product, and one propagation for a large batch. As there,
the others are items of random pairs, so a popular item is compared as often as it is chosen and
directions learn taste rather than popularity; lists are made by inner products, where lengths
bring popularity back.
"""

from __future__ import annotations

from typing import Any

import sparsegrad as sg
from sparsegrad.recipes.fit import TrainingResult, fit
from sparsegrad.recipes.ranking import ranking
from sparsegrad.recipes.stopping import EarlyStopping


class LightGCN(sg.nn.Module):
    """A vector for each user and item: A_hat (n, n) -> (n, dim)."""

    def __init__(self, n: int, dim: int, layers: int) -> None:
        super().__init__()
        self.start = sg.nn.Parameter(0.1 * sg.randn(n, dim))
        self.propagate = sg.nn.LightGCN(layers)

    def forward(self, A_hat: sg.SparseTensor) -> sg.Tensor:
        """The normalised adjacency of the graph of users and items -> (n, dim)."""
        return self.propagate(self.start, A_hat)


def train_lightgcn(
    data: sg.data.Interactions,
    *,
    dim: int = 64,
    layers: int = 3,
    negatives: int = 1024,
    temperature: float = 0.1,
    lr: float = 0.003,
    batch: int = 4096,
    validation: float = 0.05,
    epochs: int = 40,
    patience: int = 5,
    seed: int = 0,
    device: str = "cpu",
    **loop: Any,
) -> TrainingResult:
    """Train on `data.train` without a share of it that is held out for validation, keep the epoch
    with the best recall@20 there, read `data.test` once, with vectors propagated along all of
    `data.train`.

    negatives: items of random pairs of user and item, against which all users of a batch compare
        the ones they chose (some of them they chose too). temperature: cosines are divided by it.
    batch: pairs of user and item in an update. validation: share of each user's items.
    patience: stop after so many epochs without a better validation (of up to 10000 users).
    loop: keywords of `fit`: on_epoch, checkpoint, resume, ...

    Equal arguments give equal results; nothing of shape (n, n) is made dense, or DensifyError.

    >>> found = train_lightgcn(sg.data.interactions_sbm(n_users=100, groups=4), epochs=2)
    >>> sorted(found.test), len(found.history)
    (['ndcg@20', 'recall@20'], 2)
    """
    sg.manual_seed(seed)
    train, held = sg.data.hold_out(data.train, validation, seed)
    n_users, n_items = train.shape
    model = LightGCN(n_users + n_items, dim, layers).to(device)
    optimizer = sg.optim.Adam(model.parameters(), lr=lr)
    user, item = train.row, train.col
    judged = sg.randperm(n_users).numpy()[:10000]

    def unit(x: sg.Tensor) -> sg.Tensor:
        return x / ((x * x).sum(1, keepdim=True) + 1e-12).sqrt()

    def update() -> dict[str, float]:
        order = sg.randperm(len(user)).numpy()
        total = 0.0
        for start in range(0, len(order), batch):
            pairs = order[start : start + batch]
            optimizer.zero_grad()
            vectors = model(A_hat)
            users = unit(vectors[user[pairs]]) / temperature
            chosen = unit(vectors[n_users + item[pairs]])
            others = unit(vectors[n_users + item[sg.randint(0, len(item), (negatives,)).numpy()]])
            margin = sg.logsumexp(users @ others.T, dim=1) - (users * chosen).sum(1)
            loss = sg.softplus(margin).mean()  # -log of the softmax's share of the chosen item
            loss.backward()
            optimizer.step()
            total += loss.item() * len(pairs)
        return {"loss": total / len(order)}

    def judge(graph: Any, seen: Any, truth: Any, which: Any = None) -> dict[str, float]:
        with sg.no_grad():
            vectors = model(graph)
            return ranking(vectors[:n_users], vectors[n_users:], seen, truth, which=which)

    def validate() -> dict[str, float]:
        return {f"val_{name}": value for name, value in judge(A_hat, train, held, judged).items()}

    def normalised(R: sg.SparseTensor) -> sg.SparseTensor:
        return sg.nn.gcn_norm(sg.data.bipartite(R), self_loops=False).to(device)

    with sg.densify(budget=0, on_exceed="raise"):
        A_hat = normalised(train)
        stopping = EarlyStopping("max val_recall@20", patience=patience)
        found = fit(model, optimizer, update, validate, epochs=epochs, stopping=stopping, **loop)
        test = judge(normalised(data.train), data.train, data.test)
    return TrainingResult(
        **vars(found),
        test=test,
        stored_bytes=A_hat.nbytes,
        dense_bytes=A_hat.shape[0] ** 2 * A_hat.dtype.itemsize,
        model=model,
    )
