"""Layers of convolutional networks, against PyTorch's where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad import nn

CASES = [
    ("Conv1d(4, 6, 3, 2, 1, 2, 2)", (2, 4, 9)),
    ("Conv2d(3, 4, (3, 2), padding='same')", (2, 3, 5, 6)),
    ("Conv2d(3, 4, 3, padding=1, padding_mode='reflect')", (2, 3, 5, 6)),
    ("Conv2d(3, 4, 3, padding='same', dilation=2, padding_mode='circular')", (2, 3, 5, 6)),
    ("Conv2d(3, 4, 3, padding='valid', padding_mode='replicate', bias=False)", (3, 5, 6)),
    ("Conv3d(1, 2, 2, stride=(1, 2, 1))", (2, 1, 3, 4, 3)),
    ("BatchNorm2d(3)", (4, 3, 2, 5)),
    ("ConvTranspose1d(4, 6, 3, 2, 1, 1, 2)", (2, 4, 9)),
    ("ConvTranspose2d(3, 4, (3, 2), (2, 1), (1, 0), dilation=(1, 2), bias=False)", (2, 3, 5, 6)),
    ("ConvTranspose3d(2, 1, 2)", (2, 3, 4, 3)),
    ("BatchNorm3d(2)", (3, 2, 2, 3, 2)),
    ("Upsample(scale_factor=1.7)", (2, 3, 5)),
    ("Upsample((7, 3), mode='bilinear')", (2, 3, 4, 5)),
    ("PixelShuffle(2)", (2, 8, 3, 2)),
    ("PixelUnshuffle(2)", (2, 3, 4, 6)),
    ("ZeroPad2d((1, 0, 2, 3))", (2, 3, 4)),
    ("ConstantPad2d(1, 2.5)", (2, 3, 4)),
    ("ReflectionPad2d(1)", (2, 3, 3, 4)),
    ("ReplicationPad2d((2, 1, 0, 3))", (2, 3, 3, 4)),
    ("GroupNorm(2, 4)", (3, 4, 5)),
    ("InstanceNorm1d(3, affine=True)", (2, 3, 7)),
    ("InstanceNorm2d(3)", (2, 3, 4, 5)),
    ("RMSNorm((2, 3))", (4, 2, 3)),
    ("PReLU(3, 0.1)", (2, 3, 4)),
    ("Hardtanh(-0.5, max_val=1.5)", (3, 4)),
    ("Threshold(0.1, 20.0)", (3, 4)),
    ("GLU(1)", (3, 4)),
    ("Softmin(dim=0)", (3, 4)),
    *((f"{name}()", (3, 4)) for name in (
        "ReLU6", "Hardsigmoid", "Hardswish", "Hardshrink", "Softshrink", "Tanhshrink", "Softsign",
        "CELU", "SELU", "Mish", "LogSigmoid", "PReLU",
    )),
    ("MaxPool1d(3, 2, 1)", (2, 3, 8)),
    ("MaxPool2d(2, ceil_mode=True)", (2, 3, 5, 5)),
    ("MaxPool3d(2)", (1, 4, 4, 4)),
    ("AvgPool1d(2)", (2, 3, 8)),
    ("AvgPool2d(3, 2, 1, count_include_pad=False)", (2, 3, 5, 5)),
    ("AvgPool3d(2)", (1, 4, 4, 4)),
    ("AdaptiveAvgPool1d(3)", (2, 3, 8)),
    ("AdaptiveAvgPool2d((2, None))", (2, 3, 5, 4)),
    ("AdaptiveMaxPool1d(3)", (2, 3, 8)),
    ("AdaptiveMaxPool2d(2)", (2, 3, 5, 4)),
    ("Flatten()", (2, 3, 4)),
    ("Unflatten(1, (2, 3))", (4, 6)),
    ("Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(64, 3))", (5, 1, 6, 6)),
]  # fmt: skip


def torch_twin(code: str) -> tuple[Any, Any]:
    """The module and PyTorch's of the same code, with the same parameters, in float64."""
    torch = pytest.importorskip("torch")
    ours = eval(f"nn.{code}", {"nn": nn}).to("float64")
    theirs = eval(f"nn.{code}", {"nn": torch.nn}).double()
    with torch.no_grad():
        for (name, p), (other, q) in zip(
            ours.named_parameters(), theirs.named_parameters(), strict=True
        ):
            assert (name, p.shape) == (other, tuple(q.shape))
            q.copy_(torch.from_numpy(p.detach().numpy()))
    return ours, theirs


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize(("code", "shape"), CASES)
def test_same_as_pytorch(code: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = torch_twin(code)
    array = np.random.default_rng(0).standard_normal(shape)
    x = sg.tensor(array, requires_grad=True)
    y = torch.tensor(array, requires_grad=True)
    out, expected = ours(x), theirs(y)
    np.testing.assert_allclose(out.detach(), expected.detach(), atol=1e-10)
    upstream = np.random.default_rng(1).standard_normal(out.shape)
    out.backward(sg.tensor(upstream))
    expected.backward(torch.tensor(upstream))
    np.testing.assert_allclose(x.grad, y.grad, atol=1e-10)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.grad, q.grad, atol=1e-10)


def test_initial_weights_are_bounded_as_in_pytorch() -> None:
    sg.manual_seed(0)
    layer = nn.Conv2d(8, 16, 3, groups=2)
    assert layer.weight.shape == (16, 4, 3, 3)
    for p in (layer.weight, layer.bias):
        assert 0.8 / 6 < float(p.detach().abs().max()) <= 1 / 6


def test_a_transposed_convolution_of_a_wanted_size() -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = torch_twin("ConvTranspose2d(2, 3, 3, stride=3, padding=1)")
    array = np.random.default_rng(0).standard_normal((1, 2, 4, 4))
    for size in ((10, 10), (11, 12)):
        out = ours(sg.tensor(array), output_size=size)
        expected = theirs(torch.tensor(array), output_size=size)
        np.testing.assert_allclose(out.detach(), expected.detach(), atol=1e-10)
    with pytest.raises(sg.ShapeError, match=r"output_size must lie in \[10, 10\] to \[12, 12\]"):
        ours(sg.tensor(array), output_size=(9, 13))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="GroupNorm: num_groups must divide num_channels, got 2"):
        nn.GroupNorm(2, 3)
    with pytest.raises(sg.ShapeError, match="GroupNorm: expected x"):
        nn.GroupNorm(2, 4)(sg.ones(1, 2))
    with pytest.raises(sg.ShapeError, match="InstanceNorm1d: expected 3 dimensions and 2 channels"):
        nn.InstanceNorm1d(2)(sg.ones(1, 2))
    with pytest.raises(ValueError, match=r"Conv2d: groups must divide .*, got 2, 3 and 4"):
        nn.Conv2d(3, 4, 1, groups=2)
    with pytest.raises(ValueError, match="Conv1d: padding_mode must be one of"):
        nn.Conv1d(1, 1, 1, padding_mode="mirror")
    with pytest.raises(sg.ShapeError, match="Conv2d: kernel_size must be an integer"):
        nn.Conv2d(1, 1, (1, 2, 3))
    with pytest.raises(sg.ShapeError, match=r"BatchNorm2d: expected x \(n, 3, h, w\), got shape"):
        nn.BatchNorm2d(3)(sg.ones(2, 3))


def test_texts() -> None:
    assert repr(nn.Conv2d(1, 2, 3, 2, bias=False)) == (
        "Conv2d(1, 2, kernel_size=(3, 3), stride=2, bias=False)"
    )
    assert repr(nn.MaxPool2d(2, stride=1)) == "MaxPool2d(2, stride=1)"
    assert repr(nn.Flatten()) == "Flatten(start_dim=1, end_dim=-1)"


def test_a_small_network_learns() -> None:
    """Bars that lie or stand: half a minute of PyTorch tutorial in a second."""
    sg.manual_seed(0)
    rng = np.random.default_rng(0)
    images = np.zeros((64, 1, 6, 6), np.float32)
    lying, at = rng.integers(0, 2, 64), rng.integers(0, 6, 64)
    for image, flat, i in zip(images, lying, at, strict=True):
        image[(0, i) if flat else (0, slice(None), i)] = 1
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(36, 2),
    )  # fmt: skip
    optimizer = sg.optim.Adam(model.parameters(), lr=0.02)
    x, target = sg.tensor(images), sg.tensor(lying)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
    assert (model(x).argmax(1) == target).sum() == 64
