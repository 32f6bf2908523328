"""Matrix factorization: of ratings (Koren, Bell and Volinsky, Computer 42, 2009), or by pairs where
there are only choices (BPR: Rendle et al., UAI 2009). Gradients of the tables store the rows of the
batch, and only those are updated."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsegrad as sg
from sparsegrad.recipes.fit import TrainingResult, fit
from sparsegrad.recipes.ranking import ranking
from sparsegrad.recipes.stopping import EarlyStopping


class Factorization(sg.nn.Module):
    """mean + b_u + c_i + p_u . q_i for pairs of users u (e,) and items i (e,) -> (e,)."""

    def __init__(self, n_users: int, n_items: int, dim: int, mean: float) -> None:
        super().__init__()
        self.users, self.items = sg.nn.Embedding(n_users, dim), sg.nn.Embedding(n_items, dim)
        self.user_bias, self.item_bias = sg.nn.Embedding(n_users, 1), sg.nn.Embedding(n_items, 1)
        with sg.no_grad():
            for table in (self.users, self.items):
                table.weight.mul_(0.1)
            for table in (self.user_bias, self.item_bias):
                table.weight.zero_()
        self.mean = mean

    def forward(self, user: Any, item: Any) -> sg.Tensor:
        """Integers (e,) and (e,) -> (e,)."""
        bias = (self.user_bias(user) + self.item_bias(item)).squeeze(1)
        return self.mean + bias + (self.users(user) * self.items(item)).sum(1)

    def vectors(self) -> tuple[sg.Tensor, sg.Tensor]:
        """Users (m, dim + 1) and items (n, dim + 1) whose products order the items of a user."""
        ones = sg.ones_like(self.user_bias.weight)
        users = sg.cat((self.users.weight, ones), 1)
        return users, sg.cat((self.items.weight, self.item_bias.weight), 1)


def train_mf(
    data: sg.data.Interactions,
    *,
    dim: int = 32,
    lr: float = 0.005,
    weight_decay: float = 2.0,
    batch: int = 512,
    validation: float = 0.1,
    epochs: int = 30,
    patience: int = 3,
    seed: int = 0,
    device: str = "cpu",
    **loop: Any,
) -> TrainingResult:
    """Train on `data.train` without a share of it that is held out for validation, keep the epoch
    that is best there, read `data.test` once.

    Ratings of several values are fitted by least squares and judged by the root of the mean squared
    error (rmse); where all are equal, a choice is to score higher than a random item (BPR), and
    lists are judged by recall@20 and ndcg@20.

    lr, weight_decay: of lazy AdamW; biases decay by a tenth of it. batch: ratings in an update.
    validation: share of each user's ratings.
    loop: keywords of `fit`: on_epoch, checkpoint, resume, ...

    Equal arguments give equal results.

    >>> found = train_mf(sg.data.interactions_sbm(n_users=100, groups=4), epochs=2)
    >>> sorted(found.test), len(found.history)
    (['rmse'], 2)
    """
    sg.manual_seed(seed)
    train, held = sg.data.hold_out(data.train, validation, seed)
    stars = train.values.numpy()
    rated = len(np.unique(stars)) > 1
    n_users, n_items = train.shape
    mean = float(stars.mean()) if rated else 0.0
    model = Factorization(n_users, n_items, dim, mean).to(device)
    vectors = [model.users.weight, model.items.weight]
    biases = [model.user_bias.weight, model.item_bias.weight]
    groups = [{"params": vectors}, {"params": biases, "weight_decay": weight_decay / 10}]
    optimizer = sg.optim.AdamW(groups, lr, weight_decay=weight_decay, sparse="lazy")
    rows = sg.data.TensorDataset(sg.tensor(train.row), sg.tensor(train.col), train.values)
    batches = sg.data.DataLoader(rows, batch, shuffle=True)
    negatives = None if rated else sg.data.NegativeSampler(train)

    def loss_of(user: Any, item: Any, value: Any) -> sg.Tensor:
        if negatives is None:
            return sg.nn.functional.mse_loss(model(user, item), value)
        other = negatives.draw(user).squeeze(1)
        return sg.nn.functional.bpr_loss(model(user, item), model(user, other))

    def update() -> dict[str, float]:
        total = 0.0
        for pairs in batches:
            optimizer.zero_grad()
            loss = loss_of(*(part.to(device) for part in pairs))
            loss.backward()
            optimizer.step()
            total += loss.item() * len(pairs[0])
        return {"loss": total / len(rows)}

    def judge(seen: Any, truth: Any) -> dict[str, float]:
        with sg.no_grad():
            if negatives is not None:
                return ranking(*model.vectors(), seen, truth)
            error = (model(truth.row, truth.col) - truth.values.to(device)) ** 2
            return {"rmse": error.mean().item() ** 0.5}

    def validate() -> dict[str, float]:
        return {f"val_{name}": value for name, value in judge(train, held).items()}

    stopping = EarlyStopping("min val_rmse" if rated else "max val_recall@20", patience=patience)
    keep = {"batches": batches}
    with sg.densify(budget=0, on_exceed="raise"):
        found = fit(
            model, optimizer, update, validate, epochs=epochs, stopping=stopping, keep=keep, **loop
        )
        test = judge(data.train, data.test)
    return TrainingResult(
        **vars(found),
        test=test,
        stored_bytes=train.nbytes,
        dense_bytes=n_users * n_items * train.dtype.itemsize,
        model=model,
    )
