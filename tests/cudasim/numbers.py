"""What the tests of kernels share: numbers of every float dtype, and mutants of the source."""

import numpy as np
import pytest

import cudasim
from sparsegrad.backends import cuda_kernels as kernels

# Relative to the sum of absolute values of the terms.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-6, "float64": 1e-14}
FLOATS = tuple(TOLERANCE)
INDEX = ("int32", "int64")


def store(x, dtype):
    """Numbers as an array of that dtype; of bfloat16 as its bits in uint16."""
    if dtype != "bfloat16":
        return x.astype(dtype)
    word = x.astype("f").view(np.uint32).astype(np.uint64)
    return ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16)


def load(x, dtype):
    """The same numbers in float64."""
    return (
        (x.astype(np.uint32) << 16).view("f").astype("d") if dtype == "bfloat16" else x.astype("d")
    )


def draw(rng, shape, dtype):
    return store(np.asarray(rng.standard_normal(shape)), dtype)


def close(got, wanted, scale, dtype):
    error = np.abs(load(got, dtype) - wanted)
    assert (error <= TOLERANCE[dtype] * scale + 1e-30).all(), (
        error / np.maximum(scale, 1e-30)
    ).max()


def same_every_time(run):
    """`run()` gives the same bits under every schedule."""
    runs = []
    for seed in (0, 1, 2) if cudasim.installed() else (0,) * 3:
        with cudasim.schedule(seed) if cudasim.installed() else memoryview(b""):
            runs.append(run())
    assert all((run == runs[0]).all() for run in runs)


def notices(cp, monkeypatch, mutant, *modules):
    """The check of a mutant (family, text, what replaces it, check) fails."""
    family, text, replacement, check = mutant
    sound = kernels.source
    assert sound(family).count(text) >= 1
    mutated = sound(family).replace(text, replacement)
    monkeypatch.setattr(kernels, "source", lambda name: mutated if name == family else sound(name))
    for module in (kernels, *modules):
        monkeypatch.setattr(
            module, "kernel", lambda *args: kernels.Kernel(args[0], args[1], args[2:])
        )
    with pytest.raises((AssertionError, cudasim.KernelError)):
        check(cp)
