"""A two-layer graph attention network, as Velickovic et al. trained it (ICLR 2018)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import sparsegrad as sg
from sparsegrad.recipes.result import TrainingResult


class GAT(sg.nn.Module):
    """Attention, elu, attention: x (n, F) -> logits (n, classes)."""

    def __init__(
        self, n_features: int, hidden: int, n_classes: int, heads: int, out_heads: int, p: float
    ) -> None:
        super().__init__()
        self.first = sg.nn.GATConv(n_features, hidden, heads, dropout=p)
        self.second = sg.nn.GATConv(heads * hidden, n_classes, out_heads, concat=False, dropout=p)
        self.dropout = sg.nn.Dropout(p)

    def forward(self, x: Any, A: sg.SparseTensor) -> sg.Tensor:
        """x (n, F), dense or sparse, and the adjacency A (n, n) -> logits (n, classes)."""
        x = sg.elu(self.first(self.dropout(x), A))
        return self.second(self.dropout(x), A)


def train_gat(
    graph: sg.data.Graph,
    *,
    hidden: int = 8,
    heads: int = 8,
    out_heads: int = 1,
    dropout: float = 0.6,
    lr: float = 0.005,
    weight_decay: float = 5e-4,
    epochs: int = 1000,
    patience: int = 100,
    seed: int = 0,
    device: str = "cpu",
    on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> TrainingResult:
    """Train on `graph.train` until `graph.val` has not improved for `patience` epochs, keep the
    best epoch, read `graph.test` once.

    hidden, heads: width of each head of the hidden layer, and their number. out_heads: heads of
        the last layer, averaged. dropout: of features and of attention weights.
    weight_decay: on all weights but the biases, as published.
    on_epoch: called with each row of the history: epoch, loss, val_loss, val_accuracy.

    An epoch improves if validation loss or accuracy reaches its best value so far; the one that
    is kept is the last where both did. Equal arguments give equal results. Nothing of shape (n, n)
    is ever made dense: the run raises DensifyError rather than do so.

    >>> result = train_gat(sg.data.sbm(n=400, seed=0), epochs=3)
    >>> len(result.history), result.adjacency_bytes < result.dense_adjacency_bytes
    (3, True)
    """
    for name, value in (("epochs", epochs), ("patience", patience)):
        if value < 1:
            raise ValueError(f"train_gat: {name} must be at least 1, got {value}")
    sg.manual_seed(seed)
    graph = graph.to(device)
    model = GAT(graph.n_features, hidden, graph.n_classes, heads, out_heads, dropout).to(device)
    named = dict(model.named_parameters())
    biases = [p for name, p in named.items() if name.endswith("bias")]
    weights = [p for name, p in named.items() if not name.endswith("bias")]
    groups = [{"params": weights, "weight_decay": weight_decay}, {"params": biases}]
    optimizer = sg.optim.Adam(groups, lr=lr)
    x, A, y = graph.features, graph.adjacency, graph.labels

    def loss_and_accuracy(nodes: sg.Tensor) -> tuple[float, float]:
        model.eval()
        with sg.no_grad():
            logits = model(x, A)[nodes]
            hits = sg.argmax(logits, 1) == y[nodes]
            return sg.cross_entropy(logits, y[nodes]).item(), hits.sum().item() / len(nodes)

    history: list[dict[str, float]] = []
    seconds = []
    lowest, highest, waited = float("inf"), 0.0, 0
    with sg.densify(budget=0, on_exceed="raise"):
        for epoch in range(1, epochs + 1):
            start = time.perf_counter()
            model.train()
            optimizer.zero_grad()
            loss = sg.cross_entropy(model(x, A)[graph.train], y[graph.train])
            loss.backward()
            optimizer.step()
            seconds.append(time.perf_counter() - start)
            val_loss, val_accuracy = loss_and_accuracy(graph.val)
            row = {"epoch": epoch, "loss": loss.item(), "val_loss": val_loss}
            history.append(row | {"val_accuracy": val_accuracy})
            waited += 1
            if val_accuracy >= highest or val_loss <= lowest:
                waited = 0
            if epoch == 1 or (val_accuracy >= highest and val_loss <= lowest):
                best_epoch, best_accuracy = epoch, val_accuracy
                state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            highest, lowest = max(val_accuracy, highest), min(val_loss, lowest)
            if on_epoch is not None:
                on_epoch(history[-1])
            if waited == patience:
                break
        model.load_state_dict(state)
        _, test_accuracy = loss_and_accuracy(graph.test)
    return TrainingResult(
        test_accuracy=test_accuracy,
        val_accuracy=best_accuracy,
        best_epoch=best_epoch,
        seconds_per_epoch=statistics.median(seconds),
        adjacency_bytes=A.nbytes,
        dense_adjacency_bytes=graph.n_nodes**2 * A.dtype.itemsize,
        history=history,
        model=model,
    )
