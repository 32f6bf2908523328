"""Launches that CuPy passes on in silence, and the simulator does not."""

import numpy as np
import pytest

KERNEL = """#include <cuda_fp16.h>
extern "C" __global__ void k(const float* x, const __half* h, const int* i, bool* m, float s,
                             long long n) {}"""


def launch_with(cp, **changed):
    arguments = {
        "x": cp.empty(8, "f"),
        "h": cp.empty(8, np.float16),
        "i": cp.empty(8, "i"),
        "m": cp.empty(8, bool),
        "s": np.float32(1),
        "n": np.int64(8),
    }
    arguments |= changed
    cp.RawModule(code=KERNEL).get_function("k")((1,), (1,), tuple(arguments.values()))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda cp: {"x": cp.empty(8, "d")}, "float64 for a pointer to 4-byte 'f'"),
        (lambda cp: {"h": cp.empty(8, np.int16)}, "int16 for a pointer to 2-byte 'h'"),
        (lambda cp: {"i": cp.empty(8, "l")}, "int64 for a pointer to 4-byte 'i'"),
        (lambda cp: {"i": cp.empty(8, "f")}, "float32 for a pointer to 4-byte 'i'"),
        (lambda cp: {"x": cp.empty(16, "f")[::2]}, "not contiguous"),
        (lambda cp: {"x": cp.empty((4, 4), "f").T}, "not contiguous"),
        (lambda cp: {"s": 1.0}, "float64 for a parameter of 4 bytes"),
        (lambda cp: {"s": np.int32(1)}, "int32 for a parameter of 4 bytes, kind 'f'"),
        (lambda cp: {"n": np.int32(8)}, "int32 for a parameter of 8 bytes"),
        (lambda cp: {"n": cp.empty(1, "l")}, "an array for a scalar"),
        (lambda cp: {"x": np.float32(1)}, "float32 for a parameter of 8 bytes, kind 'p'"),
        (lambda cp: {"n": None}, "None for a scalar"),
        (lambda cp: {"extra": 1}, "takes 6 arguments, 7 given"),
    ],
)
def test_wrong_launch(sim, changed, message):
    launch_with(sim)
    launch_with(sim, x=None)  # a null pointer is a legal argument
    with pytest.raises(TypeError, match=message):
        launch_with(sim, **changed(sim))


def test_a_struct_is_an_array_of_numpy(sim):
    code = """struct Pair { int a; double b; };
    extern "C" __global__ void k(const Pair pair, double* x) { x[0] = pair.a + pair.b; }"""
    kernel, x = sim.RawModule(code=code).get_function("k"), sim.zeros(1)
    pair = np.array((2, 0.5), np.dtype([("a", "i4"), ("b", "f8")], align=True))
    kernel((1,), (1,), (pair, x))
    assert x[0] == 2.5
    packed = np.array((2, 0.5), np.dtype([("a", "i4"), ("b", "f8")]))
    with pytest.raises(TypeError, match="12 bytes for 16 of kind 's'"):
        kernel((1,), (1,), (packed, x))
    with pytest.raises(TypeError, match="16 bytes for 8 of kind 'p'"):
        kernel((1,), (1,), (pair, pair))


def test_raw_kernel_is_strict_too(sim):
    kernel = sim.RawKernel('extern "C" __global__ void k(float* x) {}', "k")
    kernel((1,), (1,), (sim.empty(1, "f"),))
    with pytest.raises(TypeError, match="float64"):
        kernel((1,), (1,), (sim.empty(1, "d"),))
