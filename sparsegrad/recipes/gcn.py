"""A two-layer graph convolutional network, as Kipf and Welling trained it (ICLR 2017)."""

from __future__ import annotations

from typing import Any

import sparsegrad as sg
from sparsegrad.recipes.fit import TrainingResult, fit
from sparsegrad.recipes.stopping import EarlyStopping


class GCN(sg.nn.Module):
    """softmax(A_hat relu(A_hat X W0) W1), without the softmax: x (n, F) -> logits (n, classes)."""

    def __init__(self, n_features: int, hidden: int, n_classes: int, dropout: float) -> None:
        super().__init__()
        self.first = sg.nn.GCNConv(n_features, hidden, activation="relu")
        self.second = sg.nn.GCNConv(hidden, n_classes)
        self.dropout = sg.nn.Dropout(dropout)

    def forward(self, x: Any, A_hat: sg.SparseTensor) -> sg.Tensor:
        """x (n, F), dense or sparse, and A_hat (n, n) -> logits (n, classes)."""
        x = self.first(self.dropout(x), A_hat)
        return self.second(self.dropout(x), A_hat)


def train_gcn(
    graph: sg.data.Graph,
    *,
    hidden: int = 16,
    dropout: float = 0.5,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    epochs: int = 200,
    patience: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    **loop: Any,
) -> TrainingResult:
    """Train on `graph.train`, keep the epoch that is best on `graph.val`, read `graph.test` once.

    weight_decay: on the first layer only, as published.
    patience: stop after so many epochs without a better validation; None: never.
    loop: keywords of `fit`: on_epoch, checkpoint, resume, ...

    Equal arguments give equal results. Nothing of shape (n, n) is ever made dense: the run raises
    DensifyError rather than do so.

    >>> result = train_gcn(sg.data.sbm(n=400, seed=0), epochs=5)
    >>> len(result.history), result.stored_bytes < result.dense_bytes
    (5, True)
    """
    sg.manual_seed(seed)
    graph = graph.to(device)
    model = GCN(graph.n_features, hidden, graph.n_classes, dropout).to(device)
    optimizer = sg.optim.Adam(
        [
            {"params": model.first.parameters(), "weight_decay": weight_decay},
            {"params": model.second.parameters()},
        ],
        lr=lr,
    )
    x, y = graph.features, graph.labels

    def loss_and_accuracy(nodes: sg.Tensor) -> tuple[float, float]:
        model.eval()
        with sg.no_grad():
            logits = model(x, A_hat)[nodes]
            hits = sg.argmax(logits, 1) == y[nodes]
            return sg.cross_entropy(logits, y[nodes]).item(), hits.sum().item() / len(nodes)

    def update() -> dict[str, float]:
        model.train()
        optimizer.zero_grad()
        loss = sg.cross_entropy(model(x, A_hat)[graph.train], y[graph.train])
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()}

    def validate() -> dict[str, float]:
        loss, accuracy = loss_and_accuracy(graph.val)
        return {"val_loss": loss, "val_accuracy": accuracy}

    stopping = EarlyStopping("max val_accuracy", "min val_loss", patience=patience)
    with sg.densify(budget=0, on_exceed="raise"):
        A_hat = sg.nn.gcn_norm(graph.adjacency)
        found = fit(model, optimizer, update, validate, epochs=epochs, stopping=stopping, **loop)
        _, accuracy = loss_and_accuracy(graph.test)
    return TrainingResult(
        **vars(found),
        test={"accuracy": accuracy},
        stored_bytes=A_hat.nbytes,
        dense_bytes=graph.n_nodes**2 * A_hat.dtype.itemsize,
        model=model,
    )
