"""Data sets, files of one's own, splits.

Graphs whose nodes have classes: `sbm` is generated; `planetoid`, `amazon`, `coauthor`,
`heterophilous`, `read_graph` are read. Who chose what: `interactions_sbm` is generated; `gowalla`,
`movielens`, `read_ratings` are read. Rows with labels: `a9a`, `read_libsvm`. Edge lists and Matrix
Market: `sg.read_edges`, `sg.mmread`.

>>> import sparsegrad as sg
>>> sg.data.sbm(n=300, seed=0)
Graph('sbm': 300 nodes, ... edges, 1000 features, 5 classes, split 100/50/150)
"""

from sparsegrad.data.a9a import Classified, a9a
from sparsegrad.data.gowalla import gowalla
from sparsegrad.data.graph import DataError, Graph
from sparsegrad.data.graphs import amazon, coauthor, heterophilous, read_graph
from sparsegrad.data.interactions import Interactions, bipartite, hold_out, interactions_sbm
from sparsegrad.data.libsvm import Labelled, read_libsvm
from sparsegrad.data.planetoid import planetoid
from sparsegrad.data.ratings import Ratings, movielens, rated, read_ratings
from sparsegrad.data.sbm import sbm
from sparsegrad.data.splits import k_fold, per_class_split, random_split

__all__ = [
    "Classified",
    "DataError",
    "Graph",
    "Interactions",
    "Labelled",
    "Ratings",
    "a9a",
    "amazon",
    "bipartite",
    "coauthor",
    "gowalla",
    "heterophilous",
    "hold_out",
    "interactions_sbm",
    "k_fold",
    "movielens",
    "per_class_split",
    "planetoid",
    "random_split",
    "rated",
    "read_graph",
    "read_libsvm",
    "read_ratings",
    "sbm",
]
