"""Options and fixtures: which device, which backend column."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

import sparsegrad as sg

settings.register_profile("ci", max_examples=50, derandomize=True, deadline=None)
settings.register_profile("deep", max_examples=2000, deadline=None)
settings.load_profile("ci")

BACKENDS = ("reference", "cpu", "cpu_jit")


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--device", default="cpu", help="where tests run: cpu")


def pytest_configure(config: Any) -> None:
    device = config.getoption("--device")
    if device != "cpu":  # a device named on the command line that cannot be opened is an error
        try:
            sg.backends.for_device(device)
        except sg.DeviceError as error:
            raise pytest.UsageError(f"--device={device}: {error}") from None


@pytest.fixture(params=BACKENDS)
def backend(request: Any) -> Any:
    """Every CPU backend in turn."""
    with sg.config(backend=request.param):
        yield request.param
