"""Modules with parameters, PyTorch's way: layers, containers, graph convolutions.

>>> import sparsegrad as sg
>>> model = sg.nn.Sequential(sg.nn.Linear(3, 4), sg.nn.ReLU(), sg.nn.Linear(4, 2))
>>> model(sg.ones(5, 3)).shape
(5, 2)
>>> [name for name, _ in model.named_parameters()]
['0.weight', '0.bias', '2.weight', '2.bias']
"""

from sparsegrad.nn import functional, init, utils
from sparsegrad.nn.graph import GCNConv, GINConv, LightGCN, SAGEConv, gcn_norm
from sparsegrad.nn.graph_attention import GATConv, GATv2Conv
from sparsegrad.nn.layers import Dropout, Linear, ReLU, Sequential
from sparsegrad.nn.losses import BCEWithLogitsLoss, BPRLoss, CrossEntropyLoss, MSELoss
from sparsegrad.nn.module import LoadResult, Module
from sparsegrad.nn.parameter import Parameter, SparseParameter

__all__ = [
    "BCEWithLogitsLoss",
    "BPRLoss",
    "CrossEntropyLoss",
    "Dropout",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "LightGCN",
    "Linear",
    "LoadResult",
    "MSELoss",
    "Module",
    "Parameter",
    "ReLU",
    "SAGEConv",
    "Sequential",
    "SparseParameter",
    "functional",
    "gcn_norm",
    "init",
    "utils",
]
