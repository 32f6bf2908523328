"""What happens to "cuda" where there is none: a reason, never a silent fallback."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import sparsegrad as sg
from sparsegrad import backends


@pytest.fixture(autouse=True)
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As if CuPy were not installed."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    for asked in (backends.cuda_problem, backends._cuda):
        asked.cache_clear()
    yield
    monkeypatch.undo()
    for asked in (backends.cuda_problem, backends._cuda):
        asked.cache_clear()


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1"])
def test_cuda_is_refused_with_the_reason(name: str) -> None:
    x, A = sg.ones(2), sg.sparse_eye(2)
    reason = r"device cuda: CuPy is not installed \(pip install 'sparsegrad-engine\[cuda12\]'"
    for ask in (
        lambda: x.to(name),
        lambda: A.to(name),
        lambda: sg.zeros(2, device=name),
        lambda: sg.nn.Linear(2, 2).to(name),
        lambda: x.cuda(),
        lambda: A.cuda(),
        sg.cuda.synchronize,
        sg.cuda.memory_allocated,
        lambda: sg.cuda.set_device(0),
    ):
        with pytest.raises(sg.DeviceError, match=reason):
            ask()


def test_only_auto_falls_back() -> None:
    assert sg.zeros(2, device="auto").device == sg.Device("cpu")
    assert not sg.cuda.is_available()
    assert sg.cuda.device_count() == 0
    assert "CuPy is not installed" in str(sg.cuda.problem())


def test_a_broken_cupy_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ImportError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(backends.importlib, "import_module", broken)
    assert sg.cuda.problem() == (
        "CuPy cannot be imported: libcudart.so.12: cannot open shared object file"
    )
