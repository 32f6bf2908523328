"""kernels/spgemm_masked.cu against NumPy in float64: layouts, heads, long rows, dtypes."""

import numpy as np
import pytest
import scipy.sparse as sp

import cudasim
import sparsegrad as sg
from cudasim.numbers import FLOATS, TOLERANCE, notices, same_every_time
from sparsegrad.backends import cuda_product as product
from sparsegrad.backends import cuda_spmm
from sparsegrad.structure.pattern import Pattern

SIZES = {  # rows of left, rows of right, columns of right, share of entries
    "small": (7, 9, 8, 0.3),
    "long": (5, 60, 9, 0.5),  # rows of about 30: more than the longest that one group takes
    "wide": (6, 8, 70, 0.6),
    "none": (4, 5, 6, 0.0),
    "empty": (0, 5, 6, 0.0),
}


class Side:
    """A matrix on the device, values in some dtype with heads, and dense in float64."""

    def __init__(self, matrix, fmt, index, heads, dtype, rng):
        make = Pattern.compressed
        matrix = matrix.asformat(fmt)
        matrix.sort_indices()
        ids = (matrix.indptr.astype(index), matrix.indices.astype(index))
        self.pattern = make(fmt, *ids, matrix.shape).to_device("cuda")
        host = rng.standard_normal((matrix.nnz, *heads)).astype("f")
        self.values = sg.tensor(host, dtype=dtype, device="cuda").data
        wide = self.values.astype("f" if dtype != "float64" else "d").get().astype("d")
        at = matrix.tocoo()
        self.dense, self.stored = np.zeros((*matrix.shape, *heads)), np.zeros(matrix.shape, bool)
        self.dense[at.row, at.col], self.stored[at.row, at.col] = wide, True


def check(way, *, size="small", formats=("csr", "csr", "csr"), heads=(), dtype="float32",
          index="int32", longest=8):  # fmt: skip
    m, k, n, share = SIZES[size]
    rng = np.random.default_rng(m + n)
    left, right = (
        Side(sp.random_array(shape, density=share, rng=rng), fmt, index, heads, dtype, rng)
        for shape, fmt in zip(((m, k), (k, n)), formats)
    )
    reached = left.stored.astype(int) @ right.stored.astype(int) > 0
    where = reached if way == "all" else rng.random((m, n)) < 0.5
    mask = Side(sp.coo_array(where), formats[2], index, heads, dtype, rng)
    run = product.spgemm if way == "all" else product.spgemm_masked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_spmm, "LONGEST", longest)
        args = left.pattern, left.values, right.pattern, right.values, mask.pattern
        got = run(*args)
    assert got.shape == mask.values.shape
    assert got.dtype == mask.values.dtype
    row, col = mask.pattern.row.get(), mask.pattern.col.get()
    got = got.astype("f" if dtype != "float64" else "d").get()
    wanted, scale = (
        np.einsum("ik...,kj...->ij...", f(left.dense), f(right.dense))[row, col]
        for f in (np.asarray, np.abs)
    )
    assert (np.abs(got - wanted) <= TOLERANCE[dtype] * scale + 1e-30).all()
    return got


WAYS = pytest.mark.parametrize("way", ["all", "masked"])


@pytest.fixture(autouse=True)
def _device(cp):
    """Patterns and tensors go to the device that `cp` opens."""


@WAYS
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_sizes(way, size, index):
    check(way, size=size, index=index)
    check(way, size=size, index=index, longest=256)


@WAYS
def test_formats(way):
    """Values that lie in another order than the rows that the kernels walk."""
    for formats in (
        ("csc", "csr", "csr"),
        ("csr", "csc", "csr"),
        ("csr", "csr", "csc"),
        ("csc",) * 3,
    ):
        check(way, formats=formats)
        check(way, formats=formats, size="long", heads=(2,))


@WAYS
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", [(), (1,), (3,), (2, 3)])
def test_dtypes_and_heads(way, dtype, heads):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    check(way, dtype=dtype, heads=heads)
    check(way, dtype=dtype, heads=heads, size="long")


@WAYS
def test_no_heads(way):
    check(way, heads=(0,))


@WAYS
def test_schedules(way, seed):
    check(way, size="long", heads=(3,))
    check(way, size="wide")


@WAYS
def test_same_every_time(way):
    same_every_time(lambda: check(way, size="long"))


def test_launches(sim):
    """A clearing and a kernel, a second where rows are long; nothing waits."""
    A = sg.csr([0, 2, 3], [0, 1, 1], [1.0, 2.0, 3.0], (2, 2), device="cuda")
    args = A.pattern, A.values.data, A.pattern, A.values.data, A.pattern
    for run, wanted in ((product.spgemm, 2), (product.spgemm_masked, 1)):
        run(*args)  # builds what the patterns keep
        before = cudasim.synchronisations()
        with cudasim.record_launches() as launches:
            run(*args)
        assert len(launches) <= wanted
        assert cudasim.synchronisations() == before


MUTANTS = [  # text, what replaces it, what notices
    ("l_count > longer_than", "l_count > longer_than + 1",
     lambda cp: check("all", size="wide", longest=4)),
    ("low < size && searched[low] == key", "low < size", lambda cp: check("masked")),
    ("q < steps && low < size", "q < size && low < size", lambda cp: check("masked", size="long")),
    ("walk_left ? q : low", "q", lambda cp: check("masked", size="long")),
    ("head + h < heads", "true", lambda cp: check("masked", heads=(3,))),
    ("o_positions_or_null ? (long long)o_positions_or_null[low] : low", "low",
     lambda cp: check("all", formats=("csr", "csr", "csc"))),
    ("        }\n      }\n      __syncwarp();", "        }\n      }\n",
     lambda cp: all_orders(lambda: check("all", size="wide"))),
    ("<= longest", "< longest", lambda cp: check("all", size="wide", longest=5)),
]  # fmt: skip


def all_orders(run):
    for seed in range(4):
        with cudasim.schedule(seed):
            run()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant[0])
def test_mutant_is_noticed(sim, monkeypatch, mutant):
    notices(sim, monkeypatch, ("spgemm_masked", *mutant), product)
