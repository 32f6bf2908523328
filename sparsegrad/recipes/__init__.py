"""Whole training runs, each a function short enough to copy and change."""

from sparsegrad.recipes.fit import Fit, TrainingResult, fit
from sparsegrad.recipes.gat import GAT, train_gat
from sparsegrad.recipes.gcn import GCN, train_gcn
from sparsegrad.recipes.graphchallenge import infer_graphchallenge
from sparsegrad.recipes.lightgcn import LightGCN, train_lightgcn
from sparsegrad.recipes.logreg import train_logreg
from sparsegrad.recipes.mf import Factorization, train_mf
from sparsegrad.recipes.ranking import ranking
from sparsegrad.recipes.sparse_mlp import SparseMLP, regrow, train_sparse_mlp
from sparsegrad.recipes.stopping import EarlyStopping

__all__ = [
    "EarlyStopping",
    "Factorization",
    "Fit",
    "GAT",
    "GCN",
    "LightGCN",
    "SparseMLP",
    "TrainingResult",
    "fit",
    "infer_graphchallenge",
    "ranking",
    "regrow",
    "train_gat",
    "train_gcn",
    "train_lightgcn",
    "train_logreg",
    "train_mf",
    "train_sparse_mlp",
]
