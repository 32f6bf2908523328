"""Recurrent layers and attention, against PyTorch's where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad import nn
from test_nn_convolution import torch_twin

rng = np.random.default_rng(0)
SEQUENCES = [
    ("LSTM(3, 4)", (7, 5, 3)),
    ("LSTM(3, 4, 2, batch_first=True)", (5, 7, 3)),
    ("LSTM(3, 2, 2, bidirectional=True)", (5, 3)),
    ("GRU(3, 4, 2, bias=False, bidirectional=True)", (6, 2, 3)),
    ("GRU(3, 4)", (1, 2, 3)),
    ("RNN(3, 4, 2)", (5, 2, 3)),
    ("RNN(3, 4, nonlinearity='relu', batch_first=True)", (2, 5, 3)),
]
CELLS = ["LSTMCell(3, 4)", "GRUCell(3, 4, bias=False)", "RNNCell(3, 4, nonlinearity='relu')"]


def flat(out: Any) -> list[Any]:
    return [t for part in out for t in flat(part)] if isinstance(out, tuple) else [out]


def agree(ours: Any, theirs: Any, arrays: list[np.ndarray], call: Any) -> None:
    """Results and all gradients, for the same random upstream."""
    torch = pytest.importorskip("torch")
    x = [sg.tensor(a, requires_grad=True) for a in arrays]
    y = [torch.tensor(a, requires_grad=True) for a in arrays]
    found, expected = flat(call(ours, x)), flat(call(theirs, y))
    assert len(found) == len(expected)
    draws = [np.random.default_rng(1).standard_normal(t.shape) for t in found]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f.detach(), e.detach(), atol=1e-10)
    sum((f * sg.tensor(d)).sum() for f, d in zip(found, draws, strict=True)).backward()
    sum((e * torch.tensor(d)).sum() for e, d in zip(expected, draws, strict=True)).backward()
    leaves = zip([*x, *ours.parameters()], [*y, *theirs.parameters()], strict=True)
    for a, b in leaves:
        np.testing.assert_allclose(a.grad, b.grad, atol=1e-9)


@pytest.mark.parametrize(("code", "shape"), SEQUENCES)
@pytest.mark.parametrize("given", [False, True])
def test_recurrent_layers_are_pytorchs(code: str, shape: tuple[int, ...], given: bool) -> None:
    ours, theirs = torch_twin(code)
    ways = (2 if "bidirectional" in code else 1) * ours.num_layers
    lead = (shape[0] if ours.batch_first else shape[1],) if len(shape) == 3 else ()
    count = (2 if "LSTM" in code else 1) if given else 0
    states = [rng.standard_normal((ways, *lead, ours.hidden_size)) for _ in range(count)]

    def call(module: Any, inputs: list[Any]) -> Any:
        x, *state = inputs
        return module(x, tuple(state) if len(state) > 1 else (state or [None])[0])

    agree(ours, theirs, [rng.standard_normal(shape), *states], call)


@pytest.mark.parametrize("code", CELLS)
@pytest.mark.parametrize("given", [False, True])
def test_cells_are_pytorchs(code: str, given: bool) -> None:
    ours, theirs = torch_twin(code)
    count = (2 if "LSTM" in code else 1) if given else 0

    def call(module: Any, inputs: list[Any]) -> Any:
        x, *state = inputs
        return module(x, tuple(state) if len(state) > 1 else (state or [None])[0])

    states = [rng.standard_normal((5, 4)) for _ in range(count)]
    agree(ours, theirs, [rng.standard_normal((5, 3)), *states], call)


def test_dropout_between_layers_only_in_training() -> None:
    layer, x = nn.GRU(2, 8, num_layers=2, dropout=0.5), sg.randn(4, 2)
    assert not sg.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert sg.equal(layer(x)[0], layer(x)[0])


HIDDEN = np.array([[False, True, False], [False, False, False], [True, False, False]])
PADDING = np.array([[False, False, True], [False, True, False]])


@pytest.mark.parametrize(
    "code", ["MultiheadAttention(4, 2)", "MultiheadAttention(4, 1, bias=False)"]
)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("masks", [(), ("attn",), ("padding",), ("attn", "padding"), ("added",)])
def test_attention_is_pytorchs(code: str, batch_first: bool, masks: tuple[str, ...]) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = torch_twin(code[:-1] + f", batch_first={batch_first})")
    arrays = [rng.standard_normal((2, 3, 4) if batch_first else (3, 2, 4)) for _ in range(3)]

    def call(module: Any, inputs: list[Any]) -> Any:
        make, options = (sg.tensor if module is ours else torch.tensor), {}
        if "attn" in masks:
            options["attn_mask"] = make(HIDDEN)
        if "padding" in masks:
            options["key_padding_mask"] = make(PADDING)
        if "added" in masks:
            options["attn_mask"] = make(np.arange(9.0).reshape(3, 3) / 9)
        return module(*inputs, **options)

    agree(ours, theirs, arrays, call)


def test_attention_without_a_batch_and_with_all_heads() -> None:
    ours, theirs = torch_twin("MultiheadAttention(4, 2)")
    arrays = [rng.standard_normal((n, 4)) for n in (3, 5, 5)]
    agree(ours, theirs, arrays, lambda m, x: m(*x, average_attn_weights=False))
    x = sg.randn(3, 2, 4, dtype="float64")
    causal, weights = ours(x, x, x, is_causal=True, need_weights=False)
    hidden = sg.tensor(np.triu(np.ones((3, 3), bool), 1))
    assert weights is None
    np.testing.assert_allclose(causal.detach(), ours(x, x, x, attn_mask=hidden)[0].detach())


LAYER = "TransformerEncoderLayer(4, 2, 6, 0.0"


@pytest.mark.parametrize(
    "code",
    [
        f"{LAYER})",
        f"{LAYER}, 'gelu', batch_first=True, norm_first=True)",
        f"TransformerEncoder(nn.{LAYER}), 2, nn.LayerNorm(4))",
    ],
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
@pytest.mark.parametrize("masked", [False, True])
def test_transformers_are_pytorchs(code: str, masked: bool) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = torch_twin(code)
    shape = (2, 3, 4) if "batch_first" in code else (3, 2, 4)

    def call(module: Any, inputs: list[Any]) -> Any:
        make = sg.tensor if module is ours else torch.tensor
        masks = (make(HIDDEN), make(PADDING)) if masked else ()
        return module(inputs[0], *masks)

    agree(ours, theirs, [rng.standard_normal(shape)], call)


def test_a_transformer_layer_calls_what_has_hooks() -> None:
    layer, x, seen = nn.TransformerEncoderLayer(4, 2, 6, 0.0), sg.randn(3, 2, 4), []
    expected = layer(x)
    layer.linear1.register_forward_hook(lambda m, args, out: seen.append(bool((out < 0).any())))
    np.testing.assert_allclose(layer(x).detach(), expected.detach(), rtol=1e-5, atol=1e-6)
    assert seen == [True]
    with pytest.raises(ValueError, match="activation must be 'relu', 'gelu' or a function"):
        nn.TransformerEncoderLayer(4, 2, activation="sin")


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: nn.LSTM(3, 4)(sg.ones(2, 2)), sg.ShapeError, r"LSTM: expected x \(..., 3\)"),
        (lambda: nn.LSTM(3, 4)(sg.ones(0, 3)), sg.ShapeError, r"LSTM: expected steps \(L, N, in\)"),
        (lambda: nn.GRU(3, 4)(sg.ones(2, 3), sg.ones(4)), sg.ShapeError, r"GRU: expected 1 states"),
        (lambda: nn.RNN(3, 4, nonlinearity="sin"), ValueError, "RNN: nonlinearity must be 'tanh'"),
        (lambda: nn.MultiheadAttention(4, 3), ValueError, "num_heads must divide embed_dim"),
        (
            lambda: nn.MultiheadAttention(4, 2)(*[sg.ones(2, 3)] * 3),
            sg.ShapeError,
            "MultiheadAttention: expected a width of 4",
        ),
        (
            lambda: nn.MultiheadAttention(4, 2)(sg.ones(2, 4), sg.ones(2, 1, 4), sg.ones(2, 1, 4)),
            sg.ShapeError,
            "MultiheadAttention: expected three tensors",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()
