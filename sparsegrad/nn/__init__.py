"""Modules with parameters, PyTorch's way: layers, containers, graph convolutions.

>>> import sparsegrad as sg
>>> model = sg.nn.Sequential(sg.nn.Linear(3, 4), sg.nn.ReLU(), sg.nn.Linear(4, 2))
>>> model(sg.ones(5, 3)).shape
(5, 2)
>>> [name for name, _ in model.named_parameters()]
['0.weight', '0.bias', '2.weight', '2.bias']
"""

from sparsegrad.nn import functional, init, utils
from sparsegrad.nn.activations import (
    ELU,
    GELU,
    Identity,
    LeakyReLU,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from sparsegrad.nn.containers import ModuleDict, ModuleList, ParameterList, Sequential
from sparsegrad.nn.convolution import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    Conv1d,
    Conv2d,
    Conv3d,
    Flatten,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    Unflatten,
)
from sparsegrad.nn.embedding import Embedding, EmbeddingBag
from sparsegrad.nn.graph import GCNConv, GINConv, LightGCN, SAGEConv, gcn_norm
from sparsegrad.nn.graph_attention import GATConv, GATv2Conv
from sparsegrad.nn.layers import Dropout, Linear, SparseLinear
from sparsegrad.nn.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    BPRLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SampledSoftmaxLoss,
    SmoothL1Loss,
)
from sparsegrad.nn.module import LoadResult, Module
from sparsegrad.nn.norm import BatchNorm1d, BatchNorm2d, LayerNorm
from sparsegrad.nn.parameter import Parameter, SparseParameter

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BPRLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "CrossEntropyLoss",
    "Dropout",
    "ELU",
    "Embedding",
    "EmbeddingBag",
    "Flatten",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GELU",
    "GINConv",
    "HuberLoss",
    "Identity",
    "KLDivLoss",
    "L1Loss",
    "LayerNorm",
    "LeakyReLU",
    "LightGCN",
    "Linear",
    "LoadResult",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "NLLLoss",
    "Parameter",
    "ParameterList",
    "ReLU",
    "SAGEConv",
    "SampledSoftmaxLoss",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "SparseLinear",
    "SparseParameter",
    "Tanh",
    "Unflatten",
    "functional",
    "gcn_norm",
    "init",
    "utils",
]
