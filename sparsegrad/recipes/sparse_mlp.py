"""A perceptron whose layers stay sparse while their connections move (SET: Mocanu et al., Nature
Communications 9, 2018): after each epoch the smallest weights are pruned and as many random
connections grow. Neither weights nor gradients nor the optimizer's state are ever dense."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsegrad as sg
from sparsegrad.recipes.fit import TrainingResult, fit
from sparsegrad.recipes.stopping import EarlyStopping


class SparseMLP(sg.nn.Module):
    """Two sparse layers with relu, and a dense one: x (b, F), dense or sparse -> (b, classes)."""

    def __init__(self, n_features: int, hidden: int, n_classes: int, density: float) -> None:
        super().__init__()
        self.first = sg.nn.SparseLinear(n_features, hidden, density)
        self.second = sg.nn.SparseLinear(hidden, hidden, density)
        self.last = sg.nn.Linear(hidden, n_classes)

    def forward(self, x: Any) -> sg.Tensor:
        """Rows (b, F) -> logits (b, classes)."""
        return self.last(sg.relu(self.second(sg.relu(self.first(x)))))


def regrow(weight: sg.SparseTensor, share: float, optimizer: sg.optim.Optimizer) -> None:
    """Give the `share` of a weight's entries that are smallest in magnitude other places, at random
    among those without an entry (fewer if there are not so many), where they start at 0; the state
    of the others moves along.

    >>> layer = sg.nn.SparseLinear(20, 10, 0.1)
    >>> before = set(zip(layer.weight.row.tolist(), layer.weight.col.tolist()))
    >>> regrow(layer.weight, 0.5, sg.optim.Adam(layer.parameters()))
    >>> after = set(zip(layer.weight.row.tolist(), layer.weight.col.tolist()))
    >>> len(before), len(after), len(before & after)
    (20, 20, 10)
    """
    held = weight.detach().to("cpu")
    m, n = held.shape
    count = min(int(share * held.nnz), m * n - held.nnz)
    taken = held.row.astype(np.int64) * n + held.col
    free = np.zeros(0, np.int64)
    while len(free) < count:
        drawn = sg.randint(m * n, (2 * count + 16,)).numpy()
        free = np.setdiff1d(np.concatenate((free, drawn)), taken)
    grown = np.divmod(free[sg.randperm(len(free)).numpy()[:count]], n)
    kept = sg.top_k(held, held.nnz - count)
    row, col = (np.concatenate(pair) for pair in zip((kept.row, kept.col), grown, strict=True))
    placed = sg.coo([row, col], None, (m, n)).to("csr")
    pattern = sg.csr(placed.indptr, placed.indices, None, (m, n), device=weight.device)
    optimizer.repattern_(weight, pattern)


def train_sparse_mlp(
    data: sg.data.Classified,
    *,
    hidden: int = 128,
    density: float = 0.1,
    share: float = 0.3,
    lr: float = 0.002,
    batch: int = 128,
    validation: float = 0.1,
    epochs: int = 20,
    patience: int = 5,
    seed: int = 0,
    device: str = "cpu",
    **loop: Any,
) -> TrainingResult:
    """Train on the training rows without a share that is held out for validation, keep the epoch
    that is best there, read the test once.

    density: of the two sparse layers. share: of their weights, moved after each epoch (0: none).
    batch: rows in an update. validation: share of the training rows.
    loop: keywords of `fit`: on_epoch, checkpoint, resume, ...

    Equal arguments give equal results. The run raises DensifyError rather than make a sparse weight
    or its gradient dense.

    >>> found = train_sparse_mlp(sg.data.bag_of_words(n=200), hidden=16, epochs=2)
    >>> len(found.history), found.stored_bytes < found.dense_bytes
    (2, True)
    """
    sg.manual_seed(seed)
    kinds, classes = np.unique(data.y.numpy(), return_inverse=True)
    train, val = sg.data.random_split(len(classes), (1 - validation, validation), seed)
    y = sg.tensor(classes, device=device)
    x, test_x = data.x.to(device), data.test_x.to(device)
    model = SparseMLP(data.n_features, hidden, len(kinds), density).to(device)
    sparse = [model.first.weight, model.second.weight]
    optimizer = sg.optim.Adam(model.parameters(), lr=lr)
    rows = sg.data.TensorDataset(x[train], y[train])
    batches = sg.data.DataLoader(rows, batch, shuffle=True)

    def update() -> dict[str, float]:
        if optimizer.state:  # not before the first epoch; and never after what is validated
            for weight in sparse:
                regrow(weight, share, optimizer)
        model.train()
        total = 0.0
        for part, labels in batches:
            optimizer.zero_grad()
            loss = sg.cross_entropy(model(part), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
        return {"loss": total / len(rows)}

    def validate() -> dict[str, float]:
        model.eval()
        with sg.no_grad():
            logits = model(x[val])
            hits = sg.argmax(logits, 1) == y[val]
            loss = sg.cross_entropy(logits, y[val]).item()
        return {"val_loss": loss, "val_accuracy": hits.sum().item() / len(val)}

    stopping = EarlyStopping("max val_accuracy", "min val_loss", patience=patience)
    keep = {"batches": batches}
    with sg.densify(budget=0, on_exceed="raise"):
        found = fit(
            model, optimizer, update, validate, epochs=epochs, stopping=stopping, keep=keep, **loop
        )
        with sg.no_grad():
            guess = kinds[sg.argmax(model(test_x), 1).numpy()]
    return TrainingResult(
        **vars(found),
        test={"accuracy": float((guess == data.test_y.numpy()).mean())},
        stored_bytes=sum(w.nbytes for w in sparse),
        dense_bytes=sum(w.shape[0] * w.shape[1] * w.dtype.itemsize for w in sparse),
        model=model,
    )
