"""Sparse @ dense with mean, max or min over the stored entries of a row instead of their sum."""

from __future__ import annotations

from typing import Any

from sparsegrad.engine.primitive import primitive

__all__: list[str] = []


@primitive(aux=("entry",))
def spmm_extreme_p(be: Any, values: Any, x: Any, *, pattern: Any, least: bool) -> Any:
    """Largest or least values[e] * x[col(e)] of each row of a coalesced pattern: values (nnz, *H),
    x (n, *H, k) -> (m, *H, k); aux: the entry each came from, -1 in an empty row."""
    return be.spmm_extreme(pattern, values, x, least)


@primitive
def chosen_p(be: Any, values: Any, x: Any, *, pattern: Any, at: Any) -> Any:
    """values[e] * x[col(e)] of chosen entries: values (nnz, *H), x (n, *H, k) -> (m, *H, k).
    `at` is what the backend's `chosen` made of them."""
    return be.chosen_products(pattern, values, x, at)


@primitive
def chosen_values_p(be: Any, dy: Any, x: Any, *, pattern: Any, at: Any) -> Any:
    """dy * x[col(e)], summed where an entry was chosen: dy (m, *H, k) -> (nnz, *H)."""
    return be.chosen_values(pattern, dy, x, at)


@primitive
def chosen_x_p(be: Any, dy: Any, values: Any, *, pattern: Any, at: Any) -> Any:
    """dy * values[e], summed in row col(e): dy (m, *H, k) -> (n, *H, k)."""
    return be.chosen_x(pattern, dy, values, at)


# Each is linear in both arguments, and the gradients of one are the other two.
chosen_p.defvjp(
    values=lambda g, x, pattern, at: chosen_values_p(g, x, pattern=pattern, at=at),
    x=lambda g, values, pattern, at: chosen_x_p(g, values, pattern=pattern, at=at),
)
chosen_values_p.defvjp(
    dy=lambda g, x, pattern, at: chosen_p(g, x, pattern=pattern, at=at),
    x=lambda g, dy, pattern, at: chosen_x_p(dy, g, pattern=pattern, at=at),
)
chosen_x_p.defvjp(
    dy=lambda g, values, pattern, at: chosen_p(values, g, pattern=pattern, at=at),
    values=lambda g, dy, pattern, at: chosen_values_p(dy, g, pattern=pattern, at=at),
)


def _extreme_rule(
    g: Any, values: Any, x: Any, entry: Any, pattern: Any, needs: tuple[bool, bool]
) -> tuple[Any, Any]:
    """Each output is one product, whose entry stays the same for small changes."""
    at = pattern.core.backend.chosen(pattern, entry)
    dv = chosen_values_p(g, x, pattern=pattern, at=at) if needs[0] else None
    dx = chosen_x_p(g, values, pattern=pattern, at=at) if needs[1] else None
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
