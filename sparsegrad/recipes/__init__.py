"""Whole training runs, each a function short enough to copy and change."""

from sparsegrad.recipes.fit import Fit, TrainingResult, fit
from sparsegrad.recipes.gat import GAT, train_gat
from sparsegrad.recipes.gcn import GCN, train_gcn
from sparsegrad.recipes.stopping import EarlyStopping

__all__ = [
    "EarlyStopping",
    "Fit",
    "GAT",
    "GCN",
    "TrainingResult",
    "fit",
    "train_gat",
    "train_gcn",
]
