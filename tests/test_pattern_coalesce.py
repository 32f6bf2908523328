"""Coalesce: that of SciPy, and the flags that follow from it."""

from __future__ import annotations

import numpy as np
import pytest

import sparsegrad as sg
from patterns import FORMATS, as_format, every_matrix, triples


# ---- coalesce ----------------------------------------------------------------------------------
@every_matrix
@pytest.mark.parametrize("fmt", FORMATS)
def test_coalesce_is_that_of_scipy(name: str, fmt: str, backend: str) -> None:
    A = as_format(name, fmt)
    given = triples(A)
    flat = A.col.astype(np.int64) * max(1, A.shape[0]) + A.row
    if fmt != "csc":
        flat = A.row.astype(np.int64) * max(1, A.shape[1]) + A.col
    assert A.is_coalesced == bool((np.diff(flat) > 0).all())  # the flag is truthful
    C = A.coalesce()
    assert triples(A) == given  # A is what it was
    assert C.is_coalesced and C.format == fmt and C.shape == A.shape
    assert C.coalesce() is C  # idempotent
    want = A.to_scipy().copy()
    want.sum_duplicates()
    want = want.tocsc() if fmt == "csc" else want.tocsr()
    want.sort_indices()
    assert C.nnz == len({(i, j) for i, j, _ in given})
    listed = want.tocoo()
    np.testing.assert_array_equal(C.row, listed.coords[0])
    np.testing.assert_array_equal(C.col, listed.coords[1])
    np.testing.assert_allclose(C.values.data, listed.data, rtol=1e-15)


def test_explicit_zeros_stay_and_sums_that_come_to_zero_too() -> None:
    for fmt in FORMATS:
        C = as_format("zeros", fmt).coalesce()
        assert C.nnz == 3
        assert triples(C) == [(0, 1, 0.0), (1, 1, 0.0), (2, 0, 0.0)]


def test_flags_follow_every_handle() -> None:
    """Row-major entries are coalesced as coo and csr, not as csc; their transpose the other way."""
    A = sg.coo([[0, 0, 1], [0, 2, 1]], [1.0, 2.0, 3.0], (2, 3))
    assert A.is_coalesced
    assert not A.T.is_coalesced  # (0,0), (2,0), (1,1): column-major
    assert A.T.coalesce().row.tolist() == [0, 1, 2]
    csr, csc = A.to("csr"), A.to("csc")
    assert csr.is_coalesced and csc.is_coalesced
    assert csr.T.is_coalesced and csr.T.format == "csc"
    assert csc.T.is_coalesced and csc.T.format == "csr"
    unsorted = sg.csr([0, 2], [1, 0], [1.0, 2.0], (1, 2))
    assert not unsorted.is_coalesced and not unsorted.T.is_coalesced
    assert unsorted.coalesce().values.tolist() == [2.0, 1.0]
    assert unsorted.T.coalesce().format == "csc"
    # Column ids that rise only because a row ends: still in order.
    assert sg.csr([0, 1, 2], [1, 0], [1.0, 2.0], (2, 2)).is_coalesced
    # Sorted, but an entry twice.
    assert not sg.csr([0, 2, 2], [1, 1], [1.0, 2.0], (2, 2)).is_coalesced


def test_nothing_stored_is_coalesced() -> None:
    for fmt in FORMATS:
        for shape in ((3, 4), (0, 4), (3, 0), (0, 0)):
            A = sg.coo([[], []], [], shape).to(fmt)
            assert A.nnz == 0 and A.is_coalesced and A.coalesce() is A
            assert A.T.is_coalesced and A.T.shape == shape[::-1]
            assert A.density == 0
            assert A.row.shape == A.col.shape == (0,)
            assert A.indices.shape == ((2, 0) if fmt == "coo" else (0,))
            if fmt != "coo":
                assert A.indptr.tolist() == [0] * ((shape[0] if fmt == "csr" else shape[1]) + 1)
