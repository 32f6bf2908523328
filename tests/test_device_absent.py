"""What happens to "cuda" where there is none: a reason, never a silent fallback."""

from __future__ import annotations

import pickle
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
        sg.nn.Linear(2, 2).cuda,
        sg.cuda.Event,
        sg.cuda.get_device_properties,
        sg.cuda.device(0).__enter__,
    ):
        with pytest.raises(sg.DeviceError, match=reason):
            ask()


def test_only_auto_falls_back() -> None:
    assert sg.zeros(2, device="auto").device == sg.Device("cpu")
    assert not sg.cuda.is_available()
    assert sg.cuda.device_count() == 0
    assert "CuPy is not installed" in str(sg.cuda.problem())
    for harmless in (sg.cuda.empty_cache, lambda: sg.cuda.manual_seed(0)):  # as in PyTorch
        assert harmless() is None
    sg.cuda.manual_seed_all(0)


def test_a_broken_cupy_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ImportError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(backends.importlib, "import_module", broken)
    assert sg.cuda.problem() == (
        "CuPy cannot be imported: libcudart.so.12: cannot open shared object file"
    )


def test_a_device_is_made_from_its_name() -> None:
    assert sg.device("cuda:1") == sg.device("cuda", 1) == sg.Device.parse("cuda:1")
    assert sg.device(sg.device("cpu")) == sg.device("cpu:0") == sg.zeros(2).device
    assert isinstance(sg.zeros(2, device=sg.device("cpu")).device, sg.device)
    assert pickle.loads(pickle.dumps(sg.device("cuda:1"))) == sg.device("cuda:1")


@pytest.mark.parametrize("args", [("tpu",), ("cpu", 1), ("cuda:x",), ("cuda:1", 2), (3,)])
def test_a_name_of_no_device(args: tuple[Any, ...]) -> None:
    with pytest.raises(sg.DeviceError, match=f"device: expected .*, got .*{args[0]}"):
        sg.device(*args)


def test_an_unknown_name_has_what_python_needs_for_a_hint() -> None:
    model = sg.nn.Linear(1, 1)
    for ask, of in ((lambda: sg.sofmax, sg), (lambda: model.wieght, model)):
        with pytest.raises(AttributeError) as caught:
            ask()
        assert caught.value.obj is of and caught.value.name in ("sofmax", "wieght")
