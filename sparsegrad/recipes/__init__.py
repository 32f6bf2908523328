"""Whole training runs, each a function short enough to copy and change."""

from sparsegrad.recipes.gcn import GCN, GCNResult, train_gcn

__all__ = ["GCN", "GCNResult", "train_gcn"]
