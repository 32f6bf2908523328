"""Which recipes `sparsegrad train` knows.

A recipe is `run(data, *, seed, device, epochs, ..., **loop) -> TrainingResult`; `loop` are keywords
that it passes on to `sparsegrad.recipes.fit`, which gives it logs, plots and checkpoints. One that
draws nothing has no `seed`, one without epochs no `loop`. Types and defaults of options are those
of the function.
"""

from __future__ import annotations

from sparsegrad import recipes
from sparsegrad.cli.data import CHOICES, NETWORKS, NODES, ROWS
from sparsegrad.cli.training import Recipe

__all__ = ["RECIPES"]

RECIPES = {
    "gcn": Recipe(
        recipes.train_gcn,
        "A two-layer graph convolutional network (Kipf and Welling, ICLR 2017).",
        data=NODES,
        options={
            "hidden": "Width of the hidden layer.",
            "lr": "Learning rate of Adam.",
            "dropout": "Share of features that is dropped, before each layer.",
            "weight_decay": "Of the first layer.",
        },
    ),
    "gat": Recipe(
        recipes.train_gat,
        "A two-layer graph attention network (Velickovic et al., ICLR 2018).",
        data=NODES,
        options={
            "hidden": "Width of each head of the hidden layer.",
            "heads": "Attention heads of the hidden layer.",
            "lr": "Learning rate of Adam.",
            "dropout": "Share of features and of attention weights that is dropped.",
            "weight_decay": "Of all weights but the biases.",
        },
    ),
    "lightgcn": Recipe(
        recipes.train_lightgcn,
        "LightGCN (He et al., SIGIR 2020), who will choose what, with a sampled softmax loss.",
        data=CHOICES,
        options={
            "dim": "Width of the embeddings.",
            "layers": "Propagations along the graph.",
            "batch": "Pairs of user and item in an update.",
            "negatives": "Random items that a batch is compared with.",
            "lr": "Learning rate of Adam.",
        },
        matrix="the graph of users and items",
    ),
    "mf": Recipe(
        recipes.train_mf,
        "Matrix factorization of ratings, or of choices by BPR.",
        data=CHOICES,
        options={
            "dim": "Width of the embeddings.",
            "batch": "Ratings in an update.",
            "lr": "Learning rate of AdamW.",
            "weight_decay": "Weight decay of AdamW.",
        },
        matrix="the matrix of ratings",
    ),
    "logreg": Recipe(
        recipes.train_logreg,
        "Logistic regression on sparse rows, to the optimum (Newton's method).",
        data=ROWS,
        options={"l2": "Penalty on half of the squared weights."},
        matrix="the matrix of rows",
        step="iteration",
    ),
    "sparse-mlp": Recipe(
        recipes.train_sparse_mlp,
        "A perceptron with sparse layers that are pruned and regrown (SET, Mocanu et al., 2018).",
        data=ROWS,
        options={
            "hidden": "Width of the two hidden layers.",
            "density": "Share of connections that exist.",
            "share": "Share of them that is moved after each epoch.",
            "batch": "Rows in an update.",
            "lr": "Learning rate of Adam.",
        },
        matrix="the sparse part",
    ),
    "graphchallenge": Recipe(
        recipes.infer_graphchallenge,
        "Inference of a sparse network on sparse images (GraphChallenge, HPEC 2019).",
        data=NETWORKS,
        matrix="the network",
        step="layer",
    ),
}
