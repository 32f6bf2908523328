"""What acceptance cases share: sparse leaves, and a comparison with dense arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from byhand import dense
from op_db import FORMATS

every_format = pytest.mark.parametrize("fmt", FORMATS)


def sparse_leaf(coords: Any, values: Any, shape: Any, fmt: str = "coo", dtype: Any = None) -> Any:
    """A leaf in `fmt` with the same entries."""
    values = np.asarray(values, np.float64) if dtype is None else np.asarray(values, dtype)
    A = sg.coo(coords, values, shape).to(fmt)
    return A.with_values(sg.Tensor(A.values.data.copy(), requires_grad=True))


def mask_of(A: Any) -> np.ndarray:
    out = np.zeros(A.pattern.shape, bool)
    out[tuple(A.pattern.coords)] = True
    return out


def equal(found: Any, expected: Any, tol: float = 1e-12) -> None:
    np.testing.assert_allclose(dense(found), expected, rtol=tol, atol=tol)
