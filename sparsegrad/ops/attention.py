"""Attention between dense sequences. That over the edges of a graph is `sg.softmax` of a
SparseTensor and `sg.spmm`."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad import backends
from sparsegrad.errors import DtypeError, ShapeError
from sparsegrad.ops.dense_matmul import matmul_p
from sparsegrad.ops.elementwise import dropout, where_p
from sparsegrad.ops.shape import as_argument, transpose
from sparsegrad.ops.softmaxes import softmax_p

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    """softmax(query @ key^T * scale) @ value: query (*B, L, E), key (*B, S, E), value (*B, S, D) ->
    (*B, L, D).

    attn_mask: what broadcasts to (*B, L, S): bool, true where a query sees a key (one that sees
        none gets zeros), or numbers that are added to the scores. is_causal: query i sees keys up
        to i, instead of a mask.
    dropout_p: the share of weights that is dropped; the caller says when. scale: 1 / sqrt(E).

    The weights (*B, L, S) are kept for the backward pass. Raises ShapeError for sizes that do not
    fit, ValueError for a mask beside is_causal.

    Vaswani et al., "Attention is all you need", NIPS 2017.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> sg.scaled_dot_product_attention(x, x, sg.tensor([[2.0], [4.0]]), is_causal=True)
    tensor([[2.],
            [3.]])
    """
    op = "scaled_dot_product_attention"
    query, key, value = (as_argument(op, t) for t in (query, key, value))
    if value.ndim < 2 or key.ndim < 2 or value.shape[-2] != key.shape[-2]:
        raise ShapeError(f"{op}: key and value differ in length: {key.shape} and {value.shape}")
    weights = attention_weights(op, query, key, attn_mask, is_causal, scale)
    return matmul_p(dropout(weights, dropout_p), value)


def attention_weights(
    op: str, query: Any, key: Any, mask: Any, is_causal: bool = False, scale: float | None = None
) -> Any:
    """The weights (*B, L, S) of `scaled_dot_product_attention`."""
    if query.ndim < 2 or key.ndim < 2 or query.shape[-1] != key.shape[-1]:
        raise ShapeError(f"{op}: query and key differ in width: {query.shape} and {key.shape}")
    if is_causal and mask is not None:
        raise ValueError(f"{op}: attn_mask and is_causal exclude each other")
    scale = 1 / math.sqrt(max(1, query.shape[-1])) if scale is None else scale
    scores = matmul_p(query * scale, transpose(key, -2, -1))
    be = backends.for_array(scores.data)
    if is_causal:
        seen = be.xp.tril(be.xp.ones(scores.shape[-2:], bool))
    elif mask is None:
        return softmax_p(scores, axis=scores.ndim - 1)
    else:
        mask = as_argument(op, mask)
        if mask.dtype.kind != "b":
            if mask.dtype.kind in "iu":
                raise DtypeError(f"{op}: attn_mask must be bool or floating, got {mask.dtype}")
            return softmax_p(scores + mask, axis=scores.ndim - 1)
        seen = be.asarray(mask.data)
    blind = ~seen.any(axis=-1, keepdims=True)  # sees all, and then nothing: no 0 / 0
    scores = where_p(scores, -math.inf, mask=seen | blind)
    return where_p(0, softmax_p(scores, axis=scores.ndim - 1), mask=blind)
