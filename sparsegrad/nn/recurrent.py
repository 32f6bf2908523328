"""Recurrent layers: a step at a time, in ops, with PyTorch's parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sparsegrad import create, ops
from sparsegrad.errors import ShapeError
from sparsegrad.nn import init
from sparsegrad.nn.layers import check_width
from sparsegrad.nn.module import Module
from sparsegrad.nn.parameter import Parameter

__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell"]

_State = tuple[Any, ...]  # (h,), of an LSTM (h, c)


# ---- one step: what x and h come to at the gates, and the state -> the next state --------------
def _lstm(x: Any, h: Any, state: _State) -> _State:
    i, f, g, o = ops.chunk(x + h, 4, -1)
    c = ops.sigmoid(f) * state[1] + ops.sigmoid(i) * ops.tanh(g)
    return ops.sigmoid(o) * ops.tanh(c), c


def _gru(x: Any, h: Any, state: _State) -> _State:
    (xr, xz, xn), (hr, hz, hn) = ops.chunk(x, 3, -1), ops.chunk(h, 3, -1)
    n = ops.tanh(xn + ops.sigmoid(xr + hr) * hn)
    return (n + ops.sigmoid(xz + hz) * (state[0] - n),)


def _simple(x: Any, h: Any, state: _State, act: Callable[[Any], Any]) -> _State:
    return (act(x + h),)


def _steps(x: Any) -> list[Any]:
    """x[0], x[1], ..., halved again and again: gradients come together in n log n, not n²."""
    n = x.shape[0]
    if n == 1:
        return [ops.squeeze(x, 0)]
    half = n // 2
    return [*_steps(ops.narrow(x, 0, 0, half)), *_steps(ops.narrow(x, 0, half, n - half))]


class _Gated(Module):
    """Weights of gates, and what a step does with them."""

    _gates, _held = 1, 1  # parts of the weights, tensors of the state

    def _weights(
        self, suffix: str, width: int, hidden: int, bias: bool, dtype: Any
    ) -> tuple[Any, ...]:
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (self._gates * hidden, width),
            "weight_hh": (self._gates * hidden, hidden),
        }
        if bias:
            shapes |= dict.fromkeys(("bias_ih", "bias_hh"), (self._gates * hidden,))
        for name, shape in shapes.items():
            setattr(self, name + suffix, Parameter(create.empty(*shape, dtype=dtype)))
        return tuple(name + suffix for name in shapes)

    def reset_parameters(self) -> None:
        """Draw all weights anew: uniform in ±1 / sqrt(hidden_size), as in PyTorch."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size else 0.0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def _step(self, x: Any, h: Any, state: _State) -> _State:
        raise NotImplementedError

    def _next(self, x: Any, state: _State, names: tuple[str, ...]) -> _State:
        w, u, *biases = (getattr(self, name) for name in names)
        b, c = biases or (None, None)
        return self._step(ops.linear(x, w, b), ops.linear(state[0], u, c), state)

    def _start(self, op: str, state: Any, shape: tuple[int, ...], like: Any) -> _State:
        if state is None:
            zeros = create.zeros(*shape, dtype=like.dtype, device=like.device)
            return (zeros,) * self._held
        held = tuple(state) if self._held > 1 else (state,)
        if len(held) != self._held or any(tuple(h.shape) != shape for h in held):
            found = [tuple(h.shape) for h in held]
            raise ShapeError(f"{op}: expected {self._held} states of shape {shape}, got {found}")
        return held


# ---- whole sequences ---------------------------------------------------------------------------
class _Recurrent(_Gated):
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        ways = 2 if bidirectional else 1
        self._names: list[tuple[str, ...]] = []  # of the weights of each layer and direction
        for layer in range(num_layers):
            width = input_size if layer == 0 else ways * hidden_size
            for way in ("", "_reverse")[:ways]:
                names = self._weights(f"_l{layer}{way}", width, hidden_size, bias, dtype)
                self._names.append(names)
        self.reset_parameters()

    def forward(self, x: Any, state: Any = None) -> tuple[Any, Any]:
        """The last layer's h of every step, and the last state of every layer and direction."""
        name, ways = type(self).__name__, 2 if self.bidirectional else 1
        check_width(name, x, self.input_size)
        if x.ndim not in (2, 3) or not x.shape[1 if self.batch_first and x.ndim == 3 else 0]:
            raise ShapeError(f"{name}: expected steps (L, N, in) or (L, in), got {tuple(x.shape)}")
        swapped = self.batch_first and x.ndim == 3
        x = ops.transpose(x, 0, 1) if swapped else x
        shape = (len(self._names), *x.shape[1:-1], self.hidden_size)
        start = self._start(name, state, shape, x)
        steps, last = _steps(x), []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                steps = [ops.dropout(s, self.dropout, self.training) for s in steps]
            found = []
            for way in range(ways):
                at = layer * ways + way
                held, outs = tuple(h[at] for h in start), []
                for s in reversed(steps) if way else steps:
                    held = self._next(s, held, self._names[at])
                    outs.append(held[0])
                found.append(outs[::-1] if way else outs)
                last.append(held)
            steps = found[0] if ways == 1 else [ops.cat(pair, -1) for pair in zip(*found)]
        out = ops.stack(steps, 0)
        ends = tuple(ops.stack(list(held), 0) for held in zip(*last, strict=True))
        out = ops.transpose(out, 0, 1) if swapped else out
        return out, ends if self._held > 1 else ends[0]

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name in ("num_layers", "batch_first", "dropout", "bidirectional"):
            usual = 1 if name == "num_layers" else 0
            text += f", {name}={getattr(self, name)}" if getattr(self, name) != usual else ""
        return text


class LSTM(_Recurrent):
    """Long short-term memory: x (L, N, in) -> h of every step (L, N, hidden), and the last states
    (h, c), each (num_layers, N, hidden); without N too. With gates i, f, o and g = tanh:
    c = f c + i g and h = o tanh(c).

    batch_first: x and the result are (N, L, ...). dropout: between layers, in training.
    bidirectional: a second direction, from the end: (L, N, 2 hidden), (2 num_layers, N, hidden).
    Weights are PyTorch's, names included, and start uniform in ±1 / sqrt(hidden). Each step is a
    few ops: long sequences take long.

    Raises ShapeError for sizes that do not fit.

    Hochreiter and Schmidhuber, "Long short-term memory", Neural Computation 9, 1997.

    >>> import sparsegrad as sg
    >>> out, (h, c) = sg.nn.LSTM(3, 4, num_layers=2)(sg.randn(7, 5, 3))
    >>> out.shape, h.shape, c.shape
    ((7, 5, 4), (2, 5, 4), (2, 5, 4))
    """

    _gates, _held = 4, 2

    def _step(self, x: Any, h: Any, state: _State) -> _State:
        return _lstm(x, h, state)


class GRU(_Recurrent):
    """Gated recurrent units: x (L, N, in) -> h of every step (L, N, hidden), and the last h
    (num_layers, N, hidden). With gates r and z: n = tanh(x part + r * h part),
    h = (1 - z) n + z h. Arguments as of `LSTM`.

    Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine
    translation", EMNLP 2014.

    >>> import sparsegrad as sg
    >>> out, h = sg.nn.GRU(3, 4, batch_first=True)(sg.randn(5, 7, 3))
    >>> out.shape, h.shape
    ((5, 7, 4), (1, 5, 4))
    """

    _gates = 3

    def _step(self, x: Any, h: Any, state: _State) -> _State:
        return _gru(x, h, state)


class RNN(_Recurrent):
    """h = tanh(x part + h part), or relu: x (L, N, in) -> h of every step (L, N, hidden), and the
    last h (num_layers, N, hidden). Other arguments as of `LSTM`. Raises ValueError for another
    nonlinearity.

    Elman, "Finding structure in time", Cognitive Science 14, 1990.

    >>> import sparsegrad as sg
    >>> out, h = sg.nn.RNN(3, 4, bidirectional=True)(sg.randn(7, 3))
    >>> out.shape, h.shape
    ((7, 8), (2, 4))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: Any = None,
    ) -> None:
        sizes = (input_size, hidden_size, num_layers)
        super().__init__(*sizes, bias, batch_first, dropout, bidirectional, dtype)
        self.nonlinearity = _checked("RNN", nonlinearity)

    def _step(self, x: Any, h: Any, state: _State) -> _State:
        return _simple(x, h, state, getattr(ops, self.nonlinearity))


def _checked(op: str, nonlinearity: str) -> str:
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"{op}: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
    return nonlinearity


# ---- single steps ------------------------------------------------------------------------------
class _Cell(_Gated):
    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, dtype: Any = None
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self._names = self._weights("", input_size, hidden_size, bias, dtype)
        self.reset_parameters()

    def forward(self, x: Any, state: Any = None) -> Any:
        """x (N, in) or (in,), and the state (zeros by default) -> the next state."""
        name = type(self).__name__
        check_width(name, x, self.input_size)
        start = self._start(name, state, (*x.shape[:-1], self.hidden_size), x)
        held = self._next(x, start, self._names)
        return held if self._held > 1 else held[0]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"


class LSTMCell(_Cell):
    """One step of `LSTM`: x (N, in) and (h, c) -> (h, c), each (N, hidden).

    >>> import sparsegrad as sg
    >>> h, c = sg.nn.LSTMCell(3, 4)(sg.randn(5, 3))
    >>> h.shape, c.shape
    ((5, 4), (5, 4))
    """

    _gates, _held = 4, 2

    def _step(self, x: Any, h: Any, state: _State) -> _State:
        return _lstm(x, h, state)


class GRUCell(_Cell):
    """One step of `GRU`: x (N, in) and h -> h (N, hidden).

    >>> import sparsegrad as sg
    >>> sg.nn.GRUCell(3, 4)(sg.randn(5, 3)).shape
    (5, 4)
    """

    _gates = 3

    def _step(self, x: Any, h: Any, state: _State) -> _State:
        return _gru(x, h, state)


class RNNCell(_Cell):
    """One step of `RNN`: x (N, in) and h -> h (N, hidden).

    >>> import sparsegrad as sg
    >>> sg.nn.RNNCell(3, 4, nonlinearity="relu")(sg.randn(5, 3)).shape
    (5, 4)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, dtype)
        self.nonlinearity = _checked("RNNCell", nonlinearity)

    def _step(self, x: Any, h: Any, state: _State) -> _State:
        return _simple(x, h, state, getattr(ops, self.nonlinearity))
