"""Sparse networks of the GraphChallenge: images, layers, and which images leave a trace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsegrad.data.files import find, malformed, read_arrays
from sparsegrad.sparse_tensor import SparseTensor, compressed
from sparsegrad.tensor import Tensor

__all__ = ["SparseNetwork", "graphchallenge", "read_network", "sparse_network"]

_KEYS = ("shape", "x_indptr", "x_indices", "w_indices", "true_categories")


@dataclass(frozen=True, eq=False, repr=False)
class SparseNetwork:
    """Y = min(max(Y W + bias, 0), cap) for each W of `layers` in turn, starting with `images`.

    images: SparseTensor (n, neurons), CSR. layers: SparseTensors (neurons, neurons), CSR.
    bias: added where Y W has entries. categories: Tensor, int64, the rows that are not empty at
        the end, in order.

    >>> import sparsegrad as sg
    >>> W = (sg.sparse_eye(4) * 2).to("csr")
    >>> network = sg.data.SparseNetwork("twice", sg.sparse_eye(4), (W,), -0.5, 32.0, sg.arange(4))
    >>> sg.relu(network.images @ network.layers[0]).nnz
    4
    """

    name: str
    images: SparseTensor
    layers: tuple[SparseTensor, ...]
    bias: float
    cap: float
    categories: Tensor

    def __repr__(self) -> str:
        n, neurons = self.images.shape
        return (
            f"SparseNetwork({self.name!r}: {n} images, {len(self.layers)} layers of {neurons} "
            f"neurons, {sum(W.nnz for W in self.layers)} connections)"
        )


def graphchallenge(folder: str | os.PathLike[str] | None = None) -> SparseNetwork:
    """The network of 30 layers of 1024 neurons with 1200 of its images, of which 19 leave a trace.

    folder: holds dnn/graphchallenge_n1024_l30.npz; by default the one that the environment variable
        SPARSEGRAD_DATA names.

    Raises DataError for a file that is missing or malformed.

    Kepner, Alford, Gadepally, Jones, Milechin, Robinett and Samsi, "Sparse deep neural network
    graph challenge", HPEC 2019.
    """
    file = "dnn/graphchallenge_n1024_l30.npz"
    path = find("graphchallenge", file, folder, "use the generated data set 'random'")
    return read_network(path, "graphchallenge")


def read_network(path: str | os.PathLike[str], name: str | None = None) -> SparseNetwork:
    """A network from an .npz file: `shape`, `x_indptr` and `x_indices` of the images, `w_indices`
    (layers, neurons, fan), the columns of the entries of each row of a layer, all of value 2 / fan,
    and `true_categories`.

    Raises DataError for a file that is malformed.
    """
    path = Path(path)
    held = read_arrays("read_network", path, _KEYS)
    with malformed("read_network", path):
        n, neurons = (int(size) for size in held["shape"])
        images = _ones(held["x_indptr"], held["x_indices"], (n, neurons), 1.0)
        layers = held["w_indices"].astype(np.int64)
        _, rows, fan = layers.shape
        indptr = np.arange(rows + 1) * fan
        return SparseNetwork(
            path.stem if name is None else name,
            images,
            tuple(_ones(indptr, W.reshape(-1), (rows, neurons), 2 / fan) for W in layers),
            bias=-0.3,
            cap=32.0,
            categories=Tensor(held["true_categories"].astype(np.int64)),
        )


def sparse_network(
    neurons: int = 256, layers: int = 6, fan: int = 8, images: int = 200, seed: int = 0
) -> SparseNetwork:
    """A generated network of that kind: `fan` random connections of each neuron to the next layer,
    and random images of all sizes; its categories are found with dense arrays of float64.

    Equal arguments give equal networks. Raises ValueError unless 1 <= fan <= neurons.

    >>> import sparsegrad as sg
    >>> sg.data.sparse_network()
    SparseNetwork('random': 200 images, 6 layers of 256 neurons, 12288 connections)
    """
    if not 1 <= fan <= neurons:
        raise ValueError(f"sparse_network: fan must lie in [1, {neurons}], got {fan}")
    rng = np.random.Generator(np.random.Philox(seed))
    indptr = np.arange(neurons + 1) * fan
    chosen = rng.random((layers, neurons, neurons)).argsort(axis=-1)[..., :fan]
    chosen.sort(axis=-1)
    made = tuple(_ones(indptr, W.reshape(-1), (neurons, neurons), 2 / fan) for W in chosen)
    lit = rng.random((images, neurons)) < rng.uniform(0, 0.4, (images, 1))
    Y = lit.astype(np.float64)
    for W in made:
        Y = np.clip(Y @ W.to_dense().numpy() - 0.3, 0, 32)
    starts = np.concatenate(([0], np.cumsum(lit.sum(1))))
    X = _ones(starts, lit.nonzero()[1], lit.shape, 1.0)
    categories = Tensor(np.flatnonzero(Y.any(1)))
    return SparseNetwork("random", X, made, bias=-0.3, cap=32.0, categories=categories)


def _ones(indptr: Any, indices: Any, shape: Any, value: float) -> SparseTensor:
    """A CSR matrix with one value everywhere."""
    return compressed("csr", indptr, indices, np.full(len(indices), value, np.float32), shape)
