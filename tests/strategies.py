"""Hypothesis strategies: sparse tensors of every kind, as coordinates, values and shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

import sparsegrad as sg
from op_db import FORMATS, Sparse

__all__ = ["arrays", "build", "coordinates", "formats", "matrices", "tensors"]

sizes = st.integers(0, 6)
formats = st.sampled_from(FORMATS)
numbers = st.floats(-8, 8, width=16).map(lambda x: x + 0.0)  # exact in float32; no -0


@st.composite
def arrays(draw: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Float64 arrays of small numbers, zeros among them."""
    count = math.prod(shape)
    listed = draw(st.lists(numbers, min_size=count, max_size=count))
    return np.array(listed, np.float64).reshape(shape)


@st.composite
def coordinates(draw: Any, shape: tuple[int, ...], most: int = 14) -> np.ndarray:
    """Coordinates (ndim, nnz): in any order, none, some twice."""
    if 0 in shape:
        return np.zeros((len(shape), 0), np.int64)
    cell = st.tuples(*(st.integers(0, n - 1) for n in shape))
    cells = draw(st.lists(cell, max_size=most))
    return np.array(cells, np.int64).reshape(-1, len(shape)).T


@st.composite
def matrices(draw: Any, shape: Any = None, tail: tuple[int, ...] = ()) -> Sparse:
    """A sparse matrix (m, n, *tail) as a sample."""
    shape = draw(st.tuples(sizes, sizes)) if shape is None else shape
    coords = draw(coordinates(shape))
    return Sparse(coords, draw(arrays((coords.shape[1], *tail))), shape)


@st.composite
def tensors(draw: Any) -> Sparse:
    """One to four sparse dimensions and up to one dense one."""
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)))
    coords = draw(coordinates(shape))
    tail = draw(st.sampled_from([(), (2,), (0,)]))
    return Sparse(coords, draw(arrays((coords.shape[1], *tail))), shape)


def build(a: Sparse, fmt: str = "coo", dtype: Any = np.float64, requires_grad: bool = True) -> Any:
    """The sample as a leaf in `fmt`, made from raw arrays."""
    b = a.listed(fmt)
    return b.build(fmt, sg.Tensor(b.values.astype(dtype), requires_grad=requires_grad))
