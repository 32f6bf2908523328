"""Sparse @ dense with mean, max or min over the stored entries of a row instead of their sum."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad.engine.primitive import primitive
from sparsegrad.ops.index import put_rows_p, take_p
from sparsegrad.ops.shape import reshape_p

__all__: list[str] = []


@primitive(aux=("entry",))
def spmm_extreme_p(be: Any, values: Any, x: Any, *, pattern: Any, least: bool) -> Any:
    """Largest or least values[e] * x[col(e)] of each row of a coalesced pattern: values (nnz, *H),
    x (n, *H, k) -> (m, *H, k); aux: the entry each came from, -1 in an empty row."""
    return be.spmm_extreme(pattern, values, x, least)


def _sources(entry: Any, pattern: Any) -> tuple[Any, Any, Any]:
    """Flat positions of outputs that have an entry (None for all), of the values they came from
    and of the elements of x."""
    xp = pattern.core.backend.xp
    tail = entry.shape[1:]
    place = xp.arange(math.prod(tail)).reshape(tail)  # of an element in its row
    head = xp.arange(math.prod(tail[:-1])).reshape(*tail[:-1], 1)
    if not pattern.nnz:
        none = xp.zeros(0, dtype="int64")
        return none, none, none
    value = (entry * head.size + head).reshape(-1)
    element = (pattern.col.astype("int64")[entry] * place.size + place).reshape(-1)
    # Which rows are empty is the pattern's to know: asked once, not in every backward pass.
    full = pattern.cached(
        "no_empty_row",
        lambda: bool((xp.diff(pattern.rows()[0]) > 0).all()),  # sync
    )
    if full:
        return None, value, element
    kept = xp.flatnonzero(entry.reshape(-1) >= 0)  # sync
    return kept, value[kept], element[kept]


def _at(t: Any, index: Any) -> Any:
    return take_p(reshape_p(t, shape=(math.prod(t.shape),)), index=index)


def _put(t: Any, index: Any, shape: tuple[int, ...]) -> Any:
    return reshape_p(put_rows_p(t, index=index, n=math.prod(shape)), shape=shape)


def _extreme_rule(
    g: Any, values: Any, x: Any, entry: Any, pattern: Any, needs: tuple[bool, bool]
) -> tuple[Any, Any]:
    """Each output is one product, so the rule is gathers and scatters and needs no kernel."""
    kept, value, element = _sources(entry, pattern)
    g = reshape_p(g, shape=(math.prod(g.shape),)) if kept is None else _at(g, kept)
    dv = _put(g * _at(x, element), value, values.shape) if needs[0] else None
    dx = _put(g * _at(values, value), element, x.shape) if needs[1] else None
    return dv, dx


spmm_extreme_p.defvjp(("values", "x"), _extreme_rule)


@primitive(promote="float")
def spmm_mean_p(be: Any, values: Any, x: Any, *, pattern: Any) -> Any:
    """Mean of values[e] * x[col(e)] over the entries of each row of a coalesced pattern, 0 in an
    empty row: values (nnz, *H), x (n, *H, k) -> (m, *H, k)."""
    return be.spmm_mean(pattern, values, x)


def shared_by_rows(g: Any, pattern: Any) -> Any:
    """What each entry of a row gets of the row's gradient."""
    from sparsegrad.tensor import Tensor

    def share() -> Any:  # a count may not fit float16
        return (1 / pattern.core.backend.entries_of_rows(pattern, 1)).astype(g.dtype)

    of_row = pattern.cached(("share_of_row", g.dtype.name), share)
    return g * Tensor(of_row.reshape(-1, *(1,) * (g.ndim - 1)))
