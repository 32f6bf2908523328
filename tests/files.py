"""What tests of files share: a small matrix and a comparison."""

from __future__ import annotations

import numpy as np

import sparsegrad as sg

FORMATS = ("coo", "csr", "csc")


def matrix(fmt="coo", dtype=np.float64):
    """Unsorted, a duplicate, an explicit zero, an empty row and an empty column."""
    where = np.array([[3, 0, 3, 1, 0], [1, 2, 1, 0, 0]])
    return sg.coo(where, np.array([1, 2, 3, 0, 5], dtype), (5, 4)).to(fmt)


def same(A, B):
    np.testing.assert_array_equal(np.stack(A.pattern.coords), np.stack(B.pattern.coords))
    np.testing.assert_array_equal(A.values.data, B.values.data)
    return (A.format, A.shape, A.dtype) == (B.format, B.shape, B.dtype)
