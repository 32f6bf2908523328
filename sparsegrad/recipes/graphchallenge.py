"""Inference of a sparse network on sparse images (GraphChallenge, HPEC 2019): products of two
sparse matrices, whose result stays sparse."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

import sparsegrad as sg
from sparsegrad.recipes.fit import TrainingResult


def infer_graphchallenge(
    network: sg.data.SparseNetwork,
    *,
    device: str = "cpu",
    on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> TrainingResult:
    """Y = min(max(Y W + bias, 0), cap) for each layer W, entries that are 0 dropped; the categories
    are the images that have entries at the end.

    The history has a row a layer: epoch (its number), nnz, density. test: accuracy (share of images
    that are rightly among the categories or not), categories (how many were found). Nothing is made
    dense.

    >>> infer_graphchallenge(sg.data.sparse_network()).test["accuracy"]
    1.0
    """
    Y = network.images.to(device)
    layers = [W.to(device) for W in network.layers]
    n, neurons = Y.shape
    history: list[dict[str, float]] = []
    times = [time.perf_counter()]
    with sg.no_grad(), sg.densify(budget=0, on_exceed="raise"):
        for W in layers:
            Z = Y @ W
            Y = sg.drop_zeros(Z.with_values(sg.clamp(Z.values + network.bias, 0, network.cap)))
            times.append(time.perf_counter())
            row = {"epoch": len(history) + 1, "nnz": Y.nnz, "density": Y.nnz / (n * neurons)}
            history.append(row)
            if on_epoch is not None:
                on_epoch(row)
    found = np.unique(Y.to("cpu").row)
    true = network.categories.numpy()
    wrong = len(np.setxor1d(found, true))
    return TrainingResult(
        history=history,
        best={},
        seconds_per_epoch=statistics.median(np.diff(times)),
        test={"accuracy": 1 - wrong / n, "categories": len(found)},
        stored_bytes=sum(W.nbytes for W in layers),
        dense_bytes=len(layers) * neurons**2 * layers[0].dtype.itemsize,
        model=found,
    )
