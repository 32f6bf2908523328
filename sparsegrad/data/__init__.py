"""Data sets, files of one's own, splits, negative samples, mini-batches.

Graphs whose nodes have classes: `sbm` is generated; `planetoid`, `amazon`, `coauthor`,
`heterophilous`, `read_graph` are read. Who chose what: `interactions_sbm`; `gowalla`, `movielens`,
`read_ratings`, `read_lists`. Rows with labels: `bag_of_words`; `a9a`, `read_libsvm`. Networks to
run: `sparse_network`; `graphchallenge`, `read_network`. Edge lists and Matrix Market:
`sg.read_edges`, `sg.mmread`.

>>> import sparsegrad as sg
>>> sg.data.sbm(n=300, seed=0)
Graph('sbm': 300 nodes, ... edges, 1000 features, 5 classes, split 100/50/150)
"""

from sparsegrad.data.a9a import a9a
from sparsegrad.data.classified import Classified, bag_of_words, labelled
from sparsegrad.data.gowalla import gowalla, read_lists
from sparsegrad.data.graph import DataError, Graph
from sparsegrad.data.graphchallenge import (
    SparseNetwork,
    graphchallenge,
    read_network,
    sparse_network,
)
from sparsegrad.data.graphs import amazon, coauthor, heterophilous, read_graph
from sparsegrad.data.interactions import Interactions, bipartite, hold_out, interactions_sbm
from sparsegrad.data.libsvm import Labelled, read_libsvm
from sparsegrad.data.loader import DataLoader
from sparsegrad.data.negatives import NegativeSampler
from sparsegrad.data.neighbors import NeighborSampler
from sparsegrad.data.planetoid import planetoid
from sparsegrad.data.ratings import Ratings, movielens, rated, read_ratings
from sparsegrad.data.samples import TensorDataset, default_collate
from sparsegrad.data.sbm import sbm
from sparsegrad.data.splits import k_fold, per_class_split, random_split
from sparsegrad.data.workers import WorkerError

__all__ = [
    "Classified",
    "DataError",
    "DataLoader",
    "Graph",
    "Interactions",
    "Labelled",
    "NegativeSampler",
    "NeighborSampler",
    "Ratings",
    "SparseNetwork",
    "TensorDataset",
    "WorkerError",
    "a9a",
    "amazon",
    "bag_of_words",
    "bipartite",
    "coauthor",
    "default_collate",
    "gowalla",
    "graphchallenge",
    "heterophilous",
    "hold_out",
    "interactions_sbm",
    "k_fold",
    "labelled",
    "movielens",
    "per_class_split",
    "planetoid",
    "random_split",
    "rated",
    "read_graph",
    "read_libsvm",
    "read_lists",
    "read_network",
    "read_ratings",
    "sbm",
    "sparse_network",
]
