"""Whole training runs, each a function short enough to copy and change."""

from sparsegrad.recipes.gat import GAT, train_gat
from sparsegrad.recipes.gcn import GCN, train_gcn
from sparsegrad.recipes.result import TrainingResult

__all__ = ["GAT", "GCN", "TrainingResult", "train_gat", "train_gcn"]
