"""What is said where a GPU cannot be used: the reason, and what would help."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import sparsegrad as sg
from sparsegrad import backends

pytestmark = pytest.mark.device


@pytest.fixture
def probe(device: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that looks, with a runtime that a test may change."""
    from sparsegrad.backends import cuda_probe

    real = cuda_probe.runtime
    names = ("getDeviceCount", "getDeviceProperties", "driverGetVersion", "runtimeGetVersion")
    runtime = SimpleNamespace(**{name: getattr(real, name) for name in names})
    runtime.CUDARuntimeError = real.CUDARuntimeError
    monkeypatch.setattr(cuda_probe, "runtime", runtime)
    backends.cuda_problem.cache_clear()
    backends._cuda.cache_clear()
    yield cuda_probe
    monkeypatch.undo()
    backends.cuda_problem.cache_clear()
    backends._cuda.cache_clear()


def test_nothing_is_wrong(probe: Any) -> None:
    assert probe.problem() is None
    assert sg.cuda.problem() is None


def refused(text: str) -> None:
    """The reason is kept, stands in the error, and only "auto" goes on without the device."""
    assert text in str(sg.cuda.problem())
    assert not sg.cuda.is_available()
    with pytest.raises(sg.DeviceError, match="device cuda: ") as caught:
        sg.zeros(2, device="cuda")
    assert text in str(caught.value)
    assert sg.zeros(2, device="auto").device.type == "cpu"


def test_no_driver(probe: Any) -> None:
    probe.runtime.driverGetVersion = lambda: 0
    refused("no NVIDIA driver is found")


def test_a_driver_of_an_older_major_version(probe: Any) -> None:
    probe.runtime.runtimeGetVersion = lambda: 13000
    probe.runtime.driverGetVersion = lambda: 12040
    refused("CuPy is built for CUDA 13.0, and the driver knows CUDA up to 12.4")


def test_a_driver_of_an_older_minor_version_is_fine(probe: Any) -> None:
    probe.runtime.runtimeGetVersion = lambda: 12090
    probe.runtime.driverGetVersion = lambda: 12020
    assert sg.cuda.problem() is None


@pytest.mark.parametrize("raised", [False, True])
def test_no_device(probe: Any, raised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> int:
        if raised:
            raise probe.runtime.CUDARuntimeError(100)  # cudaErrorNoDevice
        return 0

    probe.runtime.getDeviceCount = count
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    refused("no device is visible (CUDA_VISIBLE_DEVICES is '')")


def test_a_card_that_is_too_old(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"name": b"Tesla P100", "major": 6, "minor": 0}
    probe.runtime.getDeviceProperties = lambda number: old
    refused("Tesla P100 has compute capability 6.0, and 7.0 or newer is needed")
    probe.runtime.getDeviceCount = lambda: 2
    assert "newer is needed; CUDA_VISIBLE_DEVICES=1 would leave it out" in probe.problem()
    from sparsegrad.backends import cuda

    monkeypatch.setattr(cuda, "count", lambda: 2)  # of two cards the second
    monkeypatch.setattr(cuda, "_too_old", probe.too_old)
    with pytest.raises(sg.DeviceError, match="device cuda:1: Tesla P100 has compute capability"):
        cuda.index("cuda:1")


def test_a_cupy_that_is_too_old(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.cupy, "__version__", "13.6.0rc1")
    refused("CuPy is 13.6.0rc1, and 14.2 or newer is needed (pip install")


@pytest.mark.parametrize("name", ["nvrtc", "cublas", "cusparse"])
def test_a_library_of_the_toolkit_is_missing(
    probe: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, f"cupy_backends.cuda.libs.{name}", None)
    refused(f"{name} of the CUDA toolkit cannot be loaded")
    assert probe.libraries()[name][0] == "missing"


def test_what_the_tiny_kernel_meets(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise RuntimeError("cudaErrorNoKernelImageForDevice:\n no kernel image is available")

    monkeypatch.setattr(probe.cupy, "arange", broken)
    refused("RuntimeError: cudaErrorNoKernelImageForDevice: no kernel image is available")


def test_a_wrong_result_of_the_tiny_kernel(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.cupy, "arange", lambda *args, **options: SimpleNamespace(sum=int))
    refused("a kernel gave a wrong result: 0 + 1 + 2 = 0")


def test_out_of_memory_names_op_and_bytes(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CuPy's pool says it, which the simulator does without."""
    import cupy

    def full(*args: Any, **options: Any) -> Any:
        raise cupy.cuda.memory.OutOfMemoryError(1 << 44, 1 << 30, 0)

    x = sg.ones(3, device=device)
    monkeypatch.setattr(cupy, "exp", full)
    text = r"exp: out of memory: Out of memory allocating 17,592,186,044,416 bytes .*Tensor\(3,\)"
    with pytest.raises(sg.OutOfMemoryError, match=text):
        sg.exp(x)
