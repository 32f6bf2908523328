"""Options and fixtures: which device, which backend column."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

import sparsegrad as sg
from sparsegrad.backends import base, cpu_jit_launch
from sparsegrad.engine.primitive import primitive, registry

pytest.register_assert_rewrite("backend_cases", "byhand")

settings.register_profile("ci", max_examples=50, derandomize=True, deadline=None)
settings.register_profile("deep", max_examples=2000, deadline=None)
settings.load_profile("ci")

BACKENDS = ("reference", "cpu", "cpu_jit")
# Beside tests marked `device`: what a run without the CPU still runs.
DEVICE_FILES = ("tests/cudasim/", "tests/test_kernel_compile.py")


def pytest_addoption(parser: Any) -> None:
    parser.addoption(
        "--device",
        default="cpu",
        help="where tests run: a list of cpu, cuda, cuda:<index>, cuda-sim (CUDA simulated on the "
        "CPU); without cpu only tests of devices run",
    )


def named_devices(config: Any) -> list[str]:
    return config.getoption("--device").split(",")


@pytest.hookimpl(trylast=True)  # the simulator's handler of faults goes above pytest's
def pytest_configure(config: Any) -> None:
    """A device named on the command line that cannot be opened is an error, never a skip."""
    for name in named_devices(config):
        kind = name.partition(":")[0]
        if kind == "cuda-sim":
            from cudasim import install

            install()  # then "cuda" is the simulator, in this process
        elif kind not in ("cpu", "cuda"):
            raise pytest.UsageError(f"--device={name}: expected cpu, cuda or cuda-sim")
        try:
            sg.backends.for_device("cuda" if kind == "cuda-sim" else name)
        except sg.DeviceError as error:
            raise pytest.UsageError(f"--device={name}: {error}") from None


def pytest_generate_tests(metafunc: Any) -> None:
    if "device" in metafunc.fixturenames:
        names = [name for name in named_devices(metafunc.config) if name != "cpu"]
        params = [pytest.param("cuda" if n == "cuda-sim" else n, id=n) for n in names]
        metafunc.parametrize("device", params, scope="session")


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    names = named_devices(config)
    kept, left = [], []
    for item in items:
        marked = item.get_closest_marker("device") is not None
        if marked:
            runs = any(name != "cpu" for name in names)
        else:
            runs = "cpu" in names or item.nodeid.startswith(DEVICE_FILES)
        (kept if runs else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture(params=BACKENDS)
def backend(request: Any) -> Any:
    """Every CPU backend in turn."""
    with sg.config(backend=request.param):
        yield request.param


@pytest.fixture
def threads(monkeypatch: Any) -> Iterator[Any]:
    """Sets the number of threads, and lets them share even small problems."""
    monkeypatch.setattr(cpu_jit_launch, "_PARALLEL", 0)
    before = cpu_jit_launch.get_num_threads()
    yield cpu_jit_launch.set_num_threads
    cpu_jit_launch.set_num_threads(before)


@pytest.fixture
def no_gc() -> Iterator[None]:
    """Only references keep things alive: the cyclic collector is off."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def define() -> Iterator[Any]:
    """`primitive`, and a registry without what the test defined afterwards."""
    before = set(registry)
    yield primitive
    for name in set(registry) - before:
        del registry[name]


@pytest.fixture
def index_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The index work of the reference backend, by method name."""
    seen: list[str] = []
    for name in ("sort_coo", "group", "expand", "compress", "order_facts", "check_indices"):
        original = getattr(base.Backend, name)

        def counted(self: Any, *args: Any, _name: str = name, _fn: Any = original) -> Any:
            seen.append(_name)
            return _fn(self, *args)

        monkeypatch.setattr(base.Backend, name, counted)
    with sg.config(backend="reference"):
        yield seen
