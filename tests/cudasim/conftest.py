"""Fixtures of the tests in this directory, which need the simulator or, some of them, a GPU."""

from collections.abc import Iterator
from typing import Any

import pytest

import cudasim


def devices(config: Any) -> set[str]:
    """The kinds named by --device; without that option, the simulator."""
    named = config.getoption("--device", default=None) or "cuda-sim"
    return {name.partition(":")[0] for name in named.split(",")}


@pytest.fixture(scope="session")
def cp(request: Any) -> Any:
    """CuPy, on the simulator or on a GPU: whichever --device names."""
    named = devices(request.config)
    if "cuda-sim" in named:
        return cudasim.install()
    if "cuda" in named:
        return __import__("cupy")
    pytest.skip("needs --device=cuda-sim or --device=cuda")


@pytest.fixture(scope="session")
def sim(request: Any) -> Any:
    """CuPy on the simulator, for tests of the simulator itself."""
    if "cuda-sim" not in devices(request.config):
        pytest.skip("needs --device=cuda-sim")
    return cudasim.install()


@pytest.fixture(params=[0, 1, 2], ids="seed{}".format)
def seed(request: Any, cp: Any) -> Iterator[int]:
    """Three schedules on the simulator; a GPU chooses its own, so there is one."""
    if not cudasim.installed():
        if request.param:
            pytest.skip("a GPU has no seeds")
        yield 0
        return
    with cudasim.schedule(request.param):
        yield request.param
