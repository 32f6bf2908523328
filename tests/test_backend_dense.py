"""Dense layers, sums and products of the backends: what the pure reference gives."""

import threading
import warnings

import numpy as np
import pytest
import threadpoolctl

import sparsegrad as sg
from backend_cases import FLOATS, REFERENCE, all_dtypes, dense_layers, fast, floats, same, whole
from sparsegrad.backends import blas, cpu_jit_matmul
from sparsegrad.backends.cpu_jit import CpuJit


@fast
@pytest.mark.parametrize(("n", "width"), [(1, 1), (5, 3), (70, 63), (40, 64), (9, 300), (5000, 4)])
@floats
def test_layers_of_dense_networks(be, n, width, dtype):
    want = dense_layers(REFERENCE, n, width, dtype)
    for order in "CF":
        for got, expected in zip(dense_layers(be, n, width, dtype, order), want, strict=True):
            assert got.dtype == expected.dtype
            tol = 1e-12 if dtype == "f8" else 2e-4 * max(1, np.abs(expected).max())
            np.testing.assert_allclose(got, expected, rtol=tol, atol=tol)


@fast
def test_losses_of_logits_that_are_not_finite(be):
    x = np.array([[np.inf, 0], [-np.inf, -np.inf], [np.nan, 0], [-np.inf, 0], [1e4, -1e4]])
    with np.errstate(all="ignore"):
        got, want = (b.cross_entropy(x, np.ones(5, int), None, 0.0) for b in (be, REFERENCE))
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[0], [np.nan, np.nan, np.nan, 0, 2e4])


@fast
@floats
def test_remainders_and_quotients_are_exact(be, dtype):
    rng, low = np.random.default_rng(0), np.finfo(dtype).smallest_subnormal
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, np.finfo(dtype).max, -np.finfo(dtype).tiny, low]
    odd += [1, -3, 0.1, 2.0**10 + 1]
    odd = np.array(odd, dtype)
    step = (rng.integers(1, 50, 3000) / 16).astype(dtype)
    near = (step * rng.integers(-(2**10), 2**10, 3000)).astype(dtype)
    pairs = [
        (odd[:, None], odd),
        (near, step),
        (np.nextafter(near, np.zeros(1, dtype)), step),
        (odd, 0.3),
    ]
    pairs += [(np.broadcast_to(near[::2], (2, 1500)), near[1::2]), (odd[:0], odd[:0])]
    for name in ("remainder", "fmod", "floor_divide"):
        for a, b in pairs:
            with np.errstate(all="ignore"):
                got, want = (x.divided(name, a, b) for x in (be, REFERENCE))
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@fast
@all_dtypes
def test_sum_and_matmul(be, dtype):
    rng = np.random.default_rng(0)
    a, b = whole(rng, (5, 7), dtype), whole(rng, (7, 3), dtype)
    for axis in (None, 0, (0, 1)):
        same(np.asarray(be.sum(a, axis)), np.asarray(REFERENCE.sum(a, axis)))
    same(be.matmul(a, b), REFERENCE.matmul(a, b))


@fast
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", [(2003, 7), (1024, 1), (9000, 200), (5000, 16), (3, 7), (0, 3)])
def test_sums_of_columns(be, shape, keepdims):
    a = np.random.default_rng(0).standard_normal(shape)
    for x in (a, np.asfortranarray(a), a[::2]):
        np.testing.assert_allclose(
            be.sum(x, (0,), keepdims), x.sum(axis=0, keepdims=keepdims), rtol=1e-12, atol=1e-12
        )


@fast
@pytest.mark.parametrize(
    "shape",
    [(7,), (100_001,), (0,), (4, 3, 5, 6), (2, 3, 40_000), (1, 20_000, 3), (9, 1, 40), (2, 9, 600)],
)
def test_sums_over_any_axes(be, shape):
    x = np.random.default_rng(0).standard_normal(shape)
    every = [tuple(a for a in range(x.ndim) if k >> a & 1) for k in range(1 << x.ndim)]
    for axis in (None, 0, -1, *every):
        for keepdims in (False, True):
            got, want = be.sum(x, axis, keepdims), x.sum(axis=axis, keepdims=keepdims)
            assert np.shape(got) == np.shape(want) and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
            assert not np.shares_memory(got, x)


@fast
@floats
@pytest.mark.parametrize("shape", [(4, 6), (300, 1), (40, 100), (3, 2, 5), (2, 300)])
def test_extremes_and_softmax_along_axes(be, shape, dtype):
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    if len(shape) == 2 and shape[1] > 4 and len(x) > 3:
        x[0, 3], x[1, :], x[2, 1], x[3, 2:4] = np.nan, -np.inf, np.inf, 1e4
    tol = {"rtol": 2e-3 if dtype == "f2" else 1e-5, "atol": 2e-7}
    with np.errstate(all="ignore"):
        for y in (x, np.asfortranarray(x), x[::-1]):
            for name in ("softmax", "log_softmax"):
                for axis in range(x.ndim):
                    got, want = (getattr(b, name)(y, axis) for b in (be, REFERENCE))
                    assert got.dtype == want.dtype
                    np.testing.assert_allclose(got, want, **tol)
            for axes in ((-1,), (0,), (x.ndim - 1,), tuple(range(x.ndim)), (x.ndim - 1, 0)):
                got, want = be.logsumexp(y, axes), REFERENCE.logsumexp(y, axes)
                assert got.shape == want.shape
                np.testing.assert_allclose(got, want, **tol)
                for keepdims in (False, True):
                    for name in ("amax", "amin"):
                        got, want = (getattr(b, name)(y, axes, keepdims) for b in (be, REFERENCE))
                        np.testing.assert_array_equal(got, want)


@fast
@floats
def test_the_error_function(be, dtype):
    x = [np.linspace(-6, 6, 3001), [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-7, 3e4]]
    x = np.concatenate(x).astype(dtype)
    got, want = be.erf(x), REFERENCE.erf(x)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@fast
@all_dtypes
@pytest.mark.parametrize("shape", [(4, 6), (300, 1), (40, 100), (3, 2, 5), (7,), (2, 300), (3, 0)])
def test_scans_and_places_in_the_order(be, shape, dtype):
    x = whole(np.random.default_rng(0), shape, dtype)
    if dtype in FLOATS and x.size > 20:
        x.flat[[3, 7, 9, 11]] = np.nan, np.inf, -np.inf, -0.0
    calls = [("cumsum",), ("argcummax", True), ("argcummax", False)]
    for y in (x, np.asfortranarray(x), x[::-1]):
        for axis in range(x.ndim):
            n = x.shape[axis]
            some = [("argmax", True), ("argmax", False), ("argkth", n // 2), ("argkth", n - 1)]
            for name, *args in calls + (some if n else []):
                with np.errstate(all="ignore"):
                    got, want = (getattr(b, name)(y, axis, *args) for b in (be, REFERENCE))
                assert got.dtype == want.dtype
                np.testing.assert_array_equal(got, want)


def test_long_sums_of_float32_are_exact_to_its_precision(threads):
    x = np.random.default_rng(0).random(3_000_000, "f4")
    want, found = x.sum(dtype="f8"), []
    for n in (1, 3):
        threads(n)
        found.append([CpuJit().sum(part, 0) for part in (x, x.reshape(-1, 3))])
    np.testing.assert_allclose(found[0][0], want, rtol=1e-6)
    np.testing.assert_allclose(found[0][1].sum(), want, rtol=1e-6)
    for one, three in zip(*found, strict=True):
        np.testing.assert_array_equal(one, three)


DENSE_PRODUCTS = [
    *(((m, k), (k, n)) for m, k, n in [(300, 300, 300), (5000, 64, 10), (64, 20000, 10)]),
    *(((m, k), (k, n)) for m, k, n in [(10, 500, 3000), (3, 2, 4), (0, 5, 9), (9, 0, 5)]),
    *(((m, k), (k, n)) for m, k, n in [(1, 90000, 1), (1, 300, 9000), (9000, 300, 1)]),
    *[((9000,), (9000,)), ((300, 900), (900,)), ((900,), (900, 300)), ((4, 100, 64), (64,))],
    *[((8, 100, 200), (200, 300)), ((8, 100, 200), (8, 200, 300)), ((100, 200), (8, 200, 300))],
    *[((1, 100, 200), (8, 200, 300)), ((3, 8, 100, 200), (8, 200, 30)), ((0, 9, 9), (0, 9, 9))],
]


@pytest.mark.parametrize("shapes", DENSE_PRODUCTS, ids=str)
def test_dense_products_on_our_threads(threads, shapes):
    threads(3)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape) for shape in shapes)
    for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b)), (a + 1j, b - 2j)):
        got, want = CpuJit(always=True).matmul(x, y), np.matmul(x, y)
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-10)


@pytest.mark.skipif(not blas.can_stand_in(), reason="another BLAS")
def test_dense_products_leave_blas_its_threads(threads):
    threads(3)
    count = lambda: {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
    seen = []

    def multiply(ticket, todo):
        seen.append(count())

    a = np.full((300, 300), np.inf)
    a[:, 0] = -np.inf
    with warnings.catch_warnings():  # where NumPy would warn, on any thread
        warnings.simplefilter("error")
        assert np.isnan((sg.tensor(a) @ sg.ones(300, 300, dtype="float64")).numpy()).all()
    assert 3 in count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_jit_matmul, "_multiply", multiply)
        cpu_jit_matmul.matmul(a, a)
    assert seen and all(1 in found for found in seen)  # NumPy's
    assert 3 in count()
    other = threading.Thread(target=threads, args=(2,))  # any thread may set the number
    other.start()
    other.join()
    assert count() == {2}
