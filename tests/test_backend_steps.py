"""Steps of optimizers on every backend: what the pure reference gives."""

import numpy as np
import pytest

from backend_cases import ADAM, REFERENCE, Unchanged, fast, floats
from sparsegrad.backends.cpu_jit import CpuJit
from sparsegrad.backends.steps import (
    AdagradFactors,
    RmspropFactors,
    RowGradient,
    SgdFactors,
)

STEPS = [  # name, factors, state arrays of p's shape, and of one number a row
    pytest.param("sgd", SgdFactors(1, 0, 0.1, False), 0, None, id="sgd"),
    pytest.param("sgd", SgdFactors(0.1, 0.9, 0.1, False), 1, None, id="momentum"),
    pytest.param("sgd", SgdFactors(0.1, 0.9, 0.1, True), 1, None, id="nesterov"),
    pytest.param("sgd", SgdFactors(0.1, 0.9, 0.1, False, 0.3), 1, None, id="dampening"),
    pytest.param("adagrad", AdagradFactors(0.1, 0.1, 1e-8), 1, None, id="adagrad"),
    pytest.param("rowwise_adagrad", AdagradFactors(0.1, 0.1, 1e-8), 0, "sum", id="rowwise"),
    # centered: the root of a difference has few digits, which a large eps hides
    pytest.param("rmsprop", RmspropFactors(0.1, 0.9, 1e-8, 0, 0, False), 1, None, id="rmsprop"),
    pytest.param("rmsprop", RmspropFactors(0.1, 0.9, 10, 0.1, 0, True), 2, None, id="centered"),
    pytest.param("rmsprop", RmspropFactors(0.1, 0.9, 0.1, 0, 0.5, False), 2, None, id="speed"),
    pytest.param("rmsprop", RmspropFactors(0.1, 0.9, 10, 0.1, 0.5, True), 3, None, id="both"),
    pytest.param("adam", ADAM, 2, None, id="adam"),
    pytest.param("adam", ADAM, 2, "count", id="adam-per-row"),
    pytest.param("adam", ADAM._replace(amsgrad=True), 3, None, id="amsgrad"),
    pytest.param("adam", ADAM._replace(amsgrad=True), 3, "count", id="amsgrad-per-row"),
]
steps = pytest.mark.parametrize(("name", "factors", "wide", "by_row"), STEPS)


def stepped(be, name, factors, p, grad, wide, by_row):
    """p and state after a step from the same start."""
    rng = np.random.default_rng(1)
    arrays = [p.copy(order="A")]
    arrays += [np.abs(rng.standard_normal(p.shape)).astype(p.dtype) for _ in range(wide)]
    if by_row:
        arrays.append(np.arange(len(p)) if by_row == "count" else np.ones(len(p), p.dtype))
    getattr(be, name)(factors, arrays[0], grad, *arrays[1:])
    return arrays


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_steps_of_many_tables_are_those_of_each(threads, name):
    """To the bit, whichever thread makes them; gradients are parts of one array."""
    rng = np.random.default_rng(0)
    factors = ADAM if name == "adam" else SgdFactors(0.1, 0, 0.1, False)
    whole_g = rng.standard_normal((3000, 5 * 16)).astype("f4")
    rows = np.unique(rng.integers(0, 9000, 3000)).astype("i4")
    entries = [np.ascontiguousarray(whole_g[: len(rows), 16 * f : 16 * f + 16]) for f in range(5)]
    grads = [whole_g[: len(rows), 16 * f : 16 * f + 16] for f in range(5)]
    found = []
    for n in (0, 1, 2):
        tables = [np.full((9000, 16), f, "f4") for f in range(5)]
        state = [[np.ones_like(p) for _ in range(2 * (name == "adam"))] for p in tables]
        steps = [
            (factors, p, RowGradient(rows, None, None, g), *s)
            for p, g, s in zip(tables, grads if n else entries, state, strict=True)
        ]
        if n:
            threads(n)
            CpuJit().rows_of_many(name, steps)
        else:
            for step in steps:
                getattr(CpuJit(), f"{name}_rows")(*step)
        found.append([a.tobytes() for _, p, _, *held in steps for a in (p, *held)])
    assert found[0] == found[1] == found[2]


@fast
@steps
@pytest.mark.parametrize("shape", [(0, 3), (7,), (5, 0), (5, 3), (6, 2, 4), (70_001,)])
@floats
def test_steps(be, name, factors, wide, by_row, shape, dtype):
    rng = np.random.default_rng(0)
    p, g = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    for grad in (g, np.asfortranarray(g), np.broadcast_to(g[:1], g.shape) if len(g) else g):
        with Unchanged(grad):
            got = stepped(be, name, factors, p, grad, wide, by_row)
        want = stepped(REFERENCE, name, factors, p, grad, wide, by_row)
        for a, b in zip(got, want, strict=True):
            assert a.dtype == b.dtype
            tol = {"f2": 4e-3, "f4": 1e-5, "f8": 1e-13}[dtype]
            np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


@fast
@steps
@pytest.mark.parametrize("shape", [(9,), (9, 0), (9, 3), (9, 40), (9, 2, 4)])
@floats
def test_steps_of_rows(be, name, factors, wide, by_row, shape, dtype):
    rng = np.random.default_rng(0)
    p = rng.standard_normal(shape).astype(dtype)
    values = rng.integers(-3, 4, (12, *shape[1:])).astype(dtype)
    perm, indptr = rng.permutation(12).astype("i4"), np.array([0, 1, 9, 10, 12], "i4")
    values[perm[9]] = 0  # one row's entries are zero, another's sum
    values[perm[10]] = -values[perm[11]]
    rows = np.array([1, 2, 5, 8], "i4")
    summed = np.add.reduceat(values[perm].astype("f8"), indptr[:-1]).astype(dtype)
    gradients = [
        RowGradient(rows, perm, indptr, values),
        RowGradient(rows, None, indptr, values[perm]),
        RowGradient(rows.astype("i8"), None, None, summed),
        RowGradient(rows[:0], perm[:0], None, values[:0]),
    ]
    if p.ndim == 2:  # a part of the gradient of several tables
        part = np.pad(values, ((0, 0), (2, 1)), constant_values=9)[:, 2:-1]
        gradients.append(RowGradient(rows, perm, indptr, part))
    still = [0, 3, 4, 5, 6, 7, 8]
    for kind, grad in enumerate(gradients):
        got = stepped(be, f"{name}_rows", factors, p, grad, wide, by_row)
        want = stepped(REFERENCE, f"{name}_rows", factors, p, grad, wide, by_row)
        for a, b in zip(got, want, strict=True):
            assert a.dtype == b.dtype
            tol = {"f2": 4e-3, "f4": 1e-5, "f8": 1e-13}[dtype]
            np.testing.assert_allclose(a, b, rtol=tol, atol=tol)
        np.testing.assert_array_equal(got[0][still], p[still])
        if kind < 3 and p.size:
            assert (got[0][[1, 2]] != p[[1, 2]]).any(axis=tuple(range(1, p.ndim))).all()


def test_steps_of_16_bit_arrays_are_taken_in_float32():
    p, g = np.ones(3, "f2"), np.full(3, 1e-3, "f2")
    REFERENCE.adagrad(AdagradFactors(1, 0, 0), p, g, total := np.zeros(3, "f2"))
    np.testing.assert_allclose(p, 0, atol=2e-2)  # g² alone would lose its digits in float16
    assert total.dtype == "f2"
