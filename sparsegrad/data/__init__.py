"""Data sets: graphs generated from a seed, and citation graphs read from a local folder.

>>> import sparsegrad as sg
>>> sg.data.sbm(n=300, seed=0)
Graph('sbm': 300 nodes, ... edges, 1000 features, 5 classes, split 100/50/150)
"""

from sparsegrad.data.graph import DataError, Graph
from sparsegrad.data.planetoid import planetoid
from sparsegrad.data.sbm import sbm

__all__ = ["DataError", "Graph", "planetoid", "sbm"]
