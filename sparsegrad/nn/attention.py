"""Attention with several heads."""

from __future__ import annotations

from typing import Any

from sparsegrad import create, ops
from sparsegrad.errors import ShapeError
from sparsegrad.nn import init
from sparsegrad.nn.layers import Linear
from sparsegrad.nn.module import Module
from sparsegrad.nn.parameter import Parameter
from sparsegrad.ops.attention import attention_weights

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Attention of `num_heads` heads, each on its part of the width, with PyTorch's parameters:
    query (L, N, E), key and value (S, N, E) -> (L, N, E), without N too; (N, L, E) with
    batch_first.

    dropout: the share of weights that is dropped in training. bias: whether projections have one.

    `in_proj_weight` (3 E, E) starts Glorot-uniform, the biases zero. Raises ValueError for heads
    that do not divide the width, ShapeError for sizes that do not fit.

    Vaswani et al., "Attention is all you need", NIPS 2017.

    >>> import sparsegrad as sg
    >>> x = sg.randn(5, 2, 8)
    >>> out, weights = sg.nn.MultiheadAttention(8, 4)(x, x, x)
    >>> out.shape, weights.shape
    ((5, 2, 8), (2, 5, 5))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"MultiheadAttention: num_heads must divide embed_dim, got {num_heads} and "
                f"{embed_dim}"
            )
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.dropout, self.batch_first = dropout, batch_first
        self.in_proj_weight = Parameter(create.empty(3 * embed_dim, embed_dim, dtype=dtype))
        if bias:
            self.in_proj_bias = Parameter(create.empty(3 * embed_dim, dtype=dtype))
        else:
            self.register_parameter("in_proj_bias", None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew and set the biases to zero."""
        init.xavier_uniform_(self.in_proj_weight)
        self.out_proj.reset_parameters()
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Any, Any]:
        """The result and the weights (N, L, S), the mean of the heads (or (N, heads, L, S)); None
        without need_weights.

        key_padding_mask: (N, S), true for keys that nobody sees. attn_mask: (L, S) or (N * heads,
        L, S), true where a query does *not* see a key, or numbers added to the scores: as in
        PyTorch, the other way round than in `sg.scaled_dot_product_attention`. is_causal: query i
        sees keys up to i, whatever attn_mask says.
        """
        name, E = "MultiheadAttention", self.embed_dim
        given = (query, key, value)
        if len({t.ndim for t in given}) > 1 or query.ndim not in (2, 3):
            shapes = [tuple(t.shape) for t in given]
            raise ShapeError(f"{name}: expected three tensors (L, N, E) or (L, E), got {shapes}")
        if any(t.shape[-1] != E for t in given):
            raise ShapeError(f"{name}: expected a width of {E}, got {[t.shape[-1] for t in given]}")
        alone = query.ndim == 2
        if alone:
            query, key, value = (ops.unsqueeze(t, 0) for t in given)
        elif not self.batch_first:
            query, key, value = (ops.transpose(t, 0, 1) for t in given)
        weights = ops.split(self.in_proj_weight, E)
        biases = (None,) * 3 if self.in_proj_bias is None else ops.split(self.in_proj_bias, E)
        q, k, v = (
            self._heads(ops.linear(t, w, b))
            for t, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        mask = None if is_causal else self._mask(attn_mask, key_padding_mask, q, k)
        shares = attention_weights(name, q, k, mask, is_causal)
        mixed = ops.dropout(shares, self.dropout, self.training) @ v
        out = ops.reshape(ops.transpose(mixed, 1, 2), (*query.shape[:2], E))
        out = self.out_proj(out)
        if need_weights:
            shares = ops.mean(shares, 1) if average_attn_weights else shares
            shares = ops.squeeze(shares, 0) if alone else shares
        if alone:
            out = ops.squeeze(out, 0)
        elif not self.batch_first:
            out = ops.transpose(out, 0, 1)
        return out, shares if need_weights else None

    def _heads(self, x: Any) -> Any:
        """(N, L, E) -> (N, heads, L, E / heads)."""
        n, length, width = x.shape
        parts = ops.reshape(x, (n, length, self.num_heads, width // self.num_heads))
        return ops.transpose(parts, 1, 2)

    def _mask(self, attn_mask: Any, padding: Any, q: Any, k: Any) -> Any:
        """Both masks as one that broadcasts to (N, heads, L, S), true where a key is seen."""
        if attn_mask is not None:
            if attn_mask.ndim == 3:
                attn_mask = ops.reshape(attn_mask, (*q.shape[:3], k.shape[2]))
            if attn_mask.dtype.kind == "b":
                attn_mask = ~attn_mask
        if padding is None:
            return attn_mask
        seen = ~ops.reshape(padding, (-1, 1, 1, k.shape[2]))
        if attn_mask is None:
            return seen
        if attn_mask.dtype.kind == "b":
            return attn_mask & seen
        return ops.where(seen, attn_mask, float("-inf"))

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, dropout={self.dropout}"
