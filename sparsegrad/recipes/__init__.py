"""Whole training runs, each a function short enough to copy and change."""

from sparsegrad.recipes.fit import Fit, TrainingResult, fit
from sparsegrad.recipes.gat import GAT, train_gat
from sparsegrad.recipes.gcn import GCN, train_gcn
from sparsegrad.recipes.lightgcn import LightGCN, train_lightgcn
from sparsegrad.recipes.ranking import ranking
from sparsegrad.recipes.stopping import EarlyStopping

__all__ = [
    "EarlyStopping",
    "Fit",
    "GAT",
    "GCN",
    "LightGCN",
    "TrainingResult",
    "fit",
    "ranking",
    "train_gat",
    "train_gcn",
    "train_lightgcn",
]
