"""kernels/moments.cu against NumPy in float64: lengths, widths, dtypes, entries permuted."""

import numpy as np
import pytest

from cudasim.numbers import FLOATS, close, draw
from cudasim.test_segment import LENGTHS, runs
from sparsegrad import backends
from sparsegrad.structure.plan import Sums


@pytest.mark.parametrize("dense", [(), (3,), (40,)])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_variances(cp, lengths, dense):
    check(cp, lengths, dense)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", [f for f in FLOATS if f != "bfloat16"])
def test_dtypes(cp, dtype, index):
    check(cp, "random", (2,), dtype, index)
    check(cp, "long", (), dtype, index)


def test_a_mean_far_from_zero_takes_no_digits(cp):
    check(cp, "long", (), shift=1000.0)


def check(cp, lengths, dense, dtype="float32", index="int32", shift=0.0):
    counts = LENGTHS[lengths](np.random.default_rng(1))
    offsets = np.r_[0, np.cumsum(counts)].astype(index)
    rng = np.random.default_rng(offsets[-1])
    x = draw(rng, (int(offsets[-1]), *dense), dtype) + np.dtype(dtype).type(shift)
    cells = int(counts.max(initial=0)) + 3 if not shift else 5000
    for perm in (None, rng.permutation(len(x)).astype(index)):
        there = Sums(None if perm is None else cp.asarray(perm), cp.asarray(offsets))
        be = backends.for_array(cp.asarray(x))
        found, total = be.var_of_runs(cp.asarray(x), there, cells, cells - 1, False)
        root, _ = be.var_of_runs(cp.asarray(x), there, cells, cells - 1, True)
        listed = x.astype("d")[slice(None) if perm is None else perm]
        for i, run in enumerate(runs(offsets)):
            entries = listed[run]
            missing = np.zeros((cells - len(entries), *dense))
            expected = np.concatenate((entries, missing)).var(axis=0, ddof=1)
            # A lane adds up to a thousand squares; float16 has no smaller numbers than 6e-8.
            least = 6e-5 if dtype == "float16" else 0
            close(found.get()[i], expected, 4 * expected + least, dtype)
            close(root.get()[i], np.sqrt(expected), 4 * np.sqrt(expected) + least, dtype)
            close(total.get()[i], entries.sum(0), np.abs(entries).sum(0), dtype)
