"""A two-layer graph attention network, as Velickovic et al. trained it (ICLR 2018)."""

from __future__ import annotations

from typing import Any

import sparsegrad as sg
from sparsegrad.recipes.fit import TrainingResult, fit
from sparsegrad.recipes.stopping import EarlyStopping


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
    **loop: Any,
) -> TrainingResult:
    """Train on `graph.train` until `graph.val` has not improved for `patience` epochs, keep the
    best epoch, read `graph.test` once.

    hidden, heads: width of each head of the hidden layer, and their number. out_heads: heads of
        the last layer, averaged. dropout: of features and of attention weights.
    weight_decay: on all weights but the biases, as published.
    loop: keywords of `fit`: on_epoch, checkpoint, resume, ...

    An epoch improves if validation loss or accuracy reaches its best value so far; the one that
    is kept is the last where both did. Equal arguments give equal results. Nothing of shape (n, n)
    is ever made dense: the run raises DensifyError rather than do so.

    >>> result = train_gat(sg.data.sbm(n=400, seed=0), epochs=3)
    >>> len(result.history), result.stored_bytes < result.dense_bytes
    (3, True)
    """
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

    def update() -> dict[str, float]:
        model.train()
        optimizer.zero_grad()
        loss = sg.cross_entropy(model(x, A)[graph.train], y[graph.train])
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()}

    def validate() -> dict[str, float]:
        loss, accuracy = loss_and_accuracy(graph.val)
        return {"val_loss": loss, "val_accuracy": accuracy}

    stopping = EarlyStopping("max val_accuracy", "min val_loss", patience=patience, each=True)
    with sg.densify(budget=0, on_exceed="raise"):
        found = fit(model, optimizer, update, validate, epochs=epochs, stopping=stopping, **loop)
        _, accuracy = loss_and_accuracy(graph.test)
    return TrainingResult(
        **vars(found),
        test={"accuracy": accuracy},
        stored_bytes=A.nbytes,
        dense_bytes=graph.n_nodes**2 * A.dtype.itemsize,
        model=model,
    )
