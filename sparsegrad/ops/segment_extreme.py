"""The first extreme of each run and where it is: the numeric half of `max(dim)`, `argmax` and their
kin of sparse tensors."""

from __future__ import annotations

from typing import Any

from sparsegrad.engine.primitive import primitive
from sparsegrad.structure.pattern import Pattern

__all__: list[str] = []


@primitive(promote="none", outputs=("out", "at"))
def segment_first_p(be: Any, values: Any, *, rows: Pattern, least: bool) -> Any:
    """The largest (or least) of each row of a coalesced CSR pattern without empty rows, nan before
    all: values (nnz, *D) -> (m, *D); and the first entry that is it, int64 (m, *D)."""
    tail = values.shape[1:]
    key, sizes = ("ones", tail, values.dtype.name), (rows.shape[1], *tail, 1)
    ones = rows.cached(key, lambda: be.xp.ones(sizes, values.dtype))
    return tuple(x.reshape(x.shape[:-1]) for x in be.spmm_extreme(rows, values, ones, least))


@primitive(promote="none")
def put_chosen_p(be: Any, x: Any, *, at: Any, n: int) -> Any:
    """Zeros (n, *D), and of each column d the elements x[:, d] in the rows at[:, d], which differ:
    x and at (m, *D)."""
    return be.put_at(x, at, n)


@primitive(promote="none")
def take_chosen_p(be: Any, x: Any, *, at: Any) -> Any:
    """The transpose of `put_chosen_p`: x (n, *D), at (m, *D) -> (m, *D)."""
    return be.take_at(x, at)


segment_first_p.defvjp(
    values=lambda g, at, values_meta: put_chosen_p(g[0], at=at.data, n=values_meta.shape[0])
)
put_chosen_p.defvjp(x=lambda g, at: take_chosen_p(g, at=at))
take_chosen_p.defvjp(x=lambda g, at, x_meta: put_chosen_p(g, at=at, n=x_meta.shape[0]))
