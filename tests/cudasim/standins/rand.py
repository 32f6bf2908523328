"""cuRAND on NumPy's Philox. The distributions are right; the numbers are not those of a GPU."""

from types import ModuleType
from typing import Any

import numpy as np

from . import mark_written, replace_library, view


def install() -> None:
    """Replace CuPy's cuRAND binding."""
    rand = ModuleType("cupy_backends.cuda.libs.curand")
    generators: dict[int, np.random.Generator] = {}
    # curandRngType
    rand.CURAND_RNG_PSEUDO_DEFAULT = 100
    rand.CURAND_RNG_PSEUDO_XORWOW = 101
    rand.CURAND_RNG_PSEUDO_MRG32K3A = 121
    rand.CURAND_RNG_PSEUDO_MTGP32 = 141
    rand.CURAND_RNG_PSEUDO_MT19937 = 142
    rand.CURAND_RNG_PSEUDO_PHILOX4_32_10 = 161

    def seed(generator: int, value: int) -> None:
        generators[generator] = np.random.Generator(np.random.Philox(int(value)))

    def create(method: int) -> int:
        handle = len(generators) + 1
        seed(handle, 0)
        return handle

    def filler(dtype: Any, draw: Any) -> Any:
        def fill(generator: int, pointer: int, size: int, *args: float) -> None:
            out = view(pointer, (size,), dtype)
            out[...] = draw(generators[generator], size, *args)
            mark_written(out)

        return fill

    rand.createGenerator, rand.setPseudoRandomGeneratorSeed = create, seed
    for name in ("destroyGenerator", "setGeneratorOffset", "setStream"):
        setattr(rand, name, lambda *args: None)
    rand.generate = filler(np.uint32, lambda g, n: g.integers(0, 1 << 32, n, np.uint32))
    for suffix, dtype in (("", np.float32), ("Double", np.float64)):
        # cuRAND draws from (0, 1]
        setattr(rand, "generateUniform" + suffix, filler(dtype, lambda g, n: 1 - g.random(n)))
        normal = filler(dtype, lambda g, n, mean, scale: g.normal(mean, scale, n))
        setattr(rand, "generateNormal" + suffix, normal)
        lognormal = filler(dtype, lambda g, n, mean, scale: g.lognormal(mean, scale, n))
        setattr(rand, "generateLogNormal" + suffix, lognormal)
    replace_library("curand", rand)
