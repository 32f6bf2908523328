"""Layers of a transformer that reads: attention and a small network, each with a way around it."""

from __future__ import annotations

import copy
from typing import Any

from sparsegrad import ops
from sparsegrad.nn.attention import MultiheadAttention
from sparsegrad.nn.containers import ModuleList, plain
from sparsegrad.nn.layers import Dropout, Linear
from sparsegrad.nn.module import Module
from sparsegrad.nn.norm import LayerNorm

__all__ = ["TransformerEncoder", "TransformerEncoderLayer"]


class TransformerEncoderLayer(Module):
    """x + attention of x with itself, normalised, then x + linear2(activation(linear1(x))),
    normalised: x (L, N, E) -> same, (N, L, E) with batch_first; with PyTorch's parameters.

    dim_feedforward: the width between the two linear layers. dropout: of the weights of attention,
    of both results, and between the linear layers. activation: "relu", "gelu", or a function.
    norm_first: normalise before attention and network instead of after.

    Raises ValueError for heads that do not divide the width.

    Vaswani et al., "Attention is all you need", NIPS 2017.

    >>> import sparsegrad as sg
    >>> layer = sg.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> layer(sg.randn(3, 5, 8)).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if not callable(activation) and activation not in ("relu", "gelu"):
            raise ValueError(
                f"TransformerEncoderLayer: activation must be 'relu', 'gelu' or a function, got "
                f"{activation!r}"
            )
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first, dtype)
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.activation, self.norm_first = activation, norm_first

    def forward(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Any:
        """x (L, N, E) -> same. Masks as of `MultiheadAttention`, is_causal too."""

        def attend(x: Any) -> Any:
            masks = {"key_padding_mask": src_key_padding_mask, "attn_mask": src_mask}
            out, _ = self.self_attn(x, x, x, need_weights=False, is_causal=is_causal, **masks)
            return self.dropout1(out)

        def transform(x: Any) -> Any:
            return self.dropout2(self.linear2(self.dropout(self._activated(x))))

        if self.norm_first:
            x = src + attend(self.norm1(src))
            return x + transform(self.norm2(x))
        x = self.norm1(src + attend(src))
        return self.norm2(x + transform(x))

    def _activated(self, x: Any) -> Any:
        act = self.activation
        if not callable(act) and plain(self.linear1, Linear):
            return self.linear1.forward(x, act)
        return (act if callable(act) else getattr(ops, act))(self.linear1(x))


class TransformerEncoder(Module):
    """`num_layers` copies of a layer, one after another, and a `norm` at the end if there is one.

    >>> import sparsegrad as sg
    >>> layer = sg.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16)
    >>> sg.nn.TransformerEncoder(layer, 3)(sg.randn(5, 1, 8)).shape
    (5, 1, 8)
    """

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        src: Any,
        mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Any:
        """x (L, N, E) -> same; every layer is given the masks."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)
