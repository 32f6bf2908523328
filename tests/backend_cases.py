"""What the tests of backends share: backends, dtypes, inputs of every kind, comparisons.

Most inputs are small whole numbers, so that sums are exact in every dtype and every order and the
results can be compared for equality.
"""

import numpy as np
import pytest

from sparsegrad.backends.base import Backend
from sparsegrad.backends.cpu import Cpu
from sparsegrad.backends.cpu_jit_narrow import CpuJitNarrow
from sparsegrad.backends.steps import AdamFactors
from sparsegrad.structure.pattern import Pattern

REFERENCE = Backend()
FAST = [pytest.param(Cpu(), id="cpu"), pytest.param(CpuJitNarrow(always=True), id="cpu_jit")]
FLOATS = ["f2", "f4", "f8"]
OTHERS = ["i8", "?", "c16"]
PATTERNS = [
    *["nothing", "no rows", "no columns", "no entries", "one", "full row", "duplicates"],
    *["wide", "tall", "medium", "long rows"],
]
RUNS = {
    "no runs": [],
    "empty runs": [0, 0, 0],
    "one run": [50],
    "mixed": [0, 3, 1, 0, 0, 40, 7, 0],
    "long": [3, 12_000, 0, 9_000, 1],
}
ADAM = AdamFactors(0.9, 0.99, 0.1, 0.3, 0.2, 1e-8, 0.1, 0.9)

fast = pytest.mark.parametrize("be", FAST)
every_backend = pytest.mark.parametrize("be", [pytest.param(REFERENCE, id="reference"), *FAST])
floats = pytest.mark.parametrize("dtype", FLOATS)
all_dtypes = pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS])
both_indices = pytest.mark.parametrize("index", ["i4", "i8"])
every_pattern = pytest.mark.parametrize("name", PATTERNS)
every_runs = pytest.mark.parametrize("runs", RUNS)


def whole(rng, shape, dtype):
    """Small whole numbers of a dtype."""
    if dtype == "?":
        return rng.random(shape) < 0.5
    low = -3 if np.dtype(dtype).kind in "fic" else 0
    return rng.integers(low, 4, shape).astype(dtype)


def layouts(array):
    """The same values in every memory layout a caller may bring."""
    yield array
    yield np.asfortranarray(array)
    wide = np.repeat(array[..., None], 2, axis=-1)
    yield wide[..., 0]
    locked = array.copy()
    locked.flags.writeable = False
    yield locked
    if len(array):
        yield np.broadcast_to(array[:1], array.shape)


def same(got, want, exact=True, rtol=None):
    assert type(got) is np.ndarray
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if exact:
        np.testing.assert_array_equal(got, want)
    else:
        rtol = rtol or {"f2": 2e-3, "f4": 2e-6, "f8": 1e-13}[got.dtype.str[1:]]
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * 1e-3)


class Unchanged:
    """Fails if an array is changed within the block."""

    def __init__(self, *arrays):
        self.arrays = arrays

    def __enter__(self):
        self.copies = [a.copy() for a in self.arrays]

    def __exit__(self, *error):
        for array, copy in zip(self.arrays, self.copies):
            np.testing.assert_array_equal(array, copy)


def coordinates(name):
    rng = np.random.default_rng(7)
    if name == "long rows":  # cut into chunks; the last chunk lies inside a row
        shape, lengths = (40, 300), np.full(40, 3)
        lengths[[1, 2, 39]] = 18_000, 9_000, 10_000
        row = np.repeat(np.arange(40), lengths)
        return shape, row, rng.integers(0, 300, row.size)
    shape, nnz = {
        "nothing": ((0, 0), 0),
        "no rows": ((0, 5), 0),
        "no columns": ((5, 0), 0),
        "no entries": ((4, 3), 0),
        "one": ((1, 1), 1),
        "full row": ((3, 50), 50),
        "duplicates": ((4, 5), 60),
        "wide": ((6, 4000), 300),
        "tall": ((4000, 6), 300),
        "medium": ((300, 200), 3000),
    }[name]
    row, col = rng.integers(0, max(1, shape[0]), nnz), rng.integers(0, max(1, shape[1]), nnz)
    if name == "full row":
        row, col = np.full(50, 1), np.arange(50)
    if name == "medium":
        row[row % 7 == 0] = 1  # empty rows, and a crowded one
        col[col % 5 == 0] = 3
    return shape, row, col


def with_index(pattern, index):
    """A new pattern with index arrays of that dtype (a dimension beyond int32 makes them int64)."""
    pattern.core.arrays = tuple(a.astype(index) for a in pattern.core.arrays)
    return pattern


def patterns(name, index="i4"):
    """The entries in every order and format: as given, CSR, CSC and transposed."""
    shape, row, col = coordinates(name)
    given = with_index(Pattern.coo((row, col), shape), index)
    yield given
    yield given.T
    yield given.to("csr")[0]
    yield given.to("csc")[0]
    indptr, indices, _ = given.rows()
    compressed = Pattern.compressed("csr", indptr, indices, shape)
    yield compressed
    yield compressed.T
    yield compressed.to("csc")[0]


def indptr_of(counts, index):
    """Where runs of so many entries begin and end."""
    return np.concatenate(([0], np.cumsum(counts))).astype(index)


def dense_layers(be, n, width, dtype, order="C"):
    """Results of every fused method on the same rows."""
    rng = np.random.default_rng(n)
    x, g = (np.asarray(rng.standard_normal((n, width)), dtype, order=order) for _ in range(2))
    weight, bias = (rng.standard_normal(width).astype(dtype) for _ in range(2))
    classes, factors = rng.integers(-1, width, n), np.abs(weight)
    out = []
    with Unchanged(x, g, weight, bias, classes, factors):
        out += [be.gelu(x), be.silu(x), be.gelu_grad(g, x), be.silu_grad(g, x)]
        out += [be.leaky_relu(x, 0.2), be.leaky_relu_grad(g, x, 0.2)]
        out += [be.elu(x, 0.7), be.elu_grad(g, x, 0.7)]
        for chosen, smoothing in ((None, 0.0), (factors, 0.0), (None, 0.1), (factors, 0.1)):
            loss, lse = be.cross_entropy(x, classes, chosen, smoothing)
            back = be.cross_entropy_grad(g[:, 0], x, lse, classes, chosen, smoothing)
            out += [loss, lse, back]
        for scale, shift in ((None, None), (weight, bias), (weight, None), (None, bias)):
            y, mean, factor = be.layer_norm(x, scale, shift, 1e-3)
            out += [y, mean, factor, be.layer_norm_grad(g, x, scale, mean, factor)]
        out.append(be.layer_norm_weight_grad(g, x, mean, factor))
        for length in {1, 2 - width % 2}:  # a number of each channel in a row, or two
            a, b = (t.reshape(n, width // length, length) for t in (x, g))
            a, b = (a, b) if length > 1 else (x, g)
            mean, variance = be.channel_moments(a)
            factor = 1 / np.sqrt(variance + 1)
            for scale, shift in ((None, None), (weight[: len(mean)], bias[: len(mean)])):
                out.append(be.batch_norm(a, scale, shift, mean, factor))
                out += be.batch_norm_grad(b, a, scale, mean, factor)
            out += [mean, variance]
    return out
