"""What acceptance cases share: leaves, and a comparison with dense arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from op_db import FORMATS
from sparsegrad.sparse_tensor import SparseTensor

every_format = pytest.mark.parametrize("fmt", FORMATS)


def leaf(data: Any, dtype: Any = sg.float64) -> sg.Tensor:
    return sg.tensor(np.asarray(data), dtype=dtype, requires_grad=True)


def sparse_leaf(coords: Any, values: Any, shape: Any, fmt: str = "coo", dtype: Any = None) -> Any:
    """A leaf in `fmt` with the same entries."""
    values = np.asarray(values, np.float64) if dtype is None else np.asarray(values, dtype)
    A = sg.coo(coords, values, shape).to(fmt)
    return A.with_values(sg.Tensor(A.values.data.copy(), requires_grad=True))


def dense(x: Any) -> np.ndarray:
    return (x.to_dense() if isinstance(x, SparseTensor) else x).detach().numpy()


def mask_of(A: Any) -> np.ndarray:
    out = np.zeros(A.pattern.shape, bool)
    out[tuple(A.pattern.coords)] = True
    return out


def equal(found: Any, expected: Any, tol: float = 1e-12) -> None:
    np.testing.assert_allclose(dense(found), expected, rtol=tol, atol=tol)
