"""Sparse @ dense with mean, max or min over the stored entries of a row instead of their sum."""

from __future__ import annotations

import math
from typing import Any

from sparsegrad.dtypes import accumulator, get_default_dtype, result_type
from sparsegrad.engine.primitive import primitive
from sparsegrad.ops.elementwise import cast_p
from sparsegrad.ops.index import put_rows_p, take_p
from sparsegrad.ops.shape import reshape_p

__all__: list[str] = []


@primitive(aux=("entry",))
def spmm_extreme_p(be: Any, values: Any, x: Any, *, pattern: Any, least: bool) -> Any:
    """Largest or least values[e] * x[col(e)] of each row of a coalesced pattern: values (nnz, *H),
    x (n, *H, k) -> (m, *H, k); aux: the entry each came from, -1 in an empty row."""
    return be.spmm_extreme(pattern, values, x, least)


def _sources(entry: Any, pattern: Any) -> tuple[Any, Any, Any]:
    """Flat positions of outputs that have an entry, of their values and of their elements of x."""
    xp = pattern.core.backend.xp
    tail, k = math.prod(entry.shape[1:]), entry.shape[-1]
    flat = entry.reshape(-1)
    kept = xp.flatnonzero(flat >= 0)
    e, within = flat[kept], kept % max(tail, 1)
    value = e * (tail // max(k, 1)) + within // max(k, 1)
    return kept, value, pattern.col[e].astype("int64") * tail + within


def _at(t: Any, index: Any) -> Any:
    return take_p(reshape_p(t, shape=(math.prod(t.shape),)), index=index)


def _put(t: Any, index: Any, shape: tuple[int, ...]) -> Any:
    return reshape_p(put_rows_p(t, index=index, n=math.prod(shape)), shape=shape)


def _values_rule(g: Any, x: Any, entry: Any, values_meta: Any, pattern: Any) -> Any:
    kept, value, element = _sources(entry, pattern)
    return _put(_at(g, kept) * _at(x, element), value, values_meta.shape)


def _x_rule(g: Any, values: Any, entry: Any, x_meta: Any, pattern: Any) -> Any:
    kept, value, element = _sources(entry, pattern)
    return _put(_at(g, kept) * _at(values, value), element, x_meta.shape)


# Each output is one product, so the rules are gathers and scatters and need no kernel.
spmm_extreme_p.defvjp(values=_values_rule, x=_x_rule)


def spmm_mean(values: Any, x: Any, pattern: Any) -> Any:
    """Mean of values[e] * x[col(e)] over the entries of each row of a coalesced pattern; 0 in an
    empty row."""
    from sparsegrad.ops.sparse_matmul import spmm_p
    from sparsegrad.tensor import Tensor

    xp = pattern.core.backend.xp
    count = xp.maximum(xp.diff(pattern.rows()[0]), 1).reshape(-1, *(1,) * (x.ndim - 1))
    dtype = result_type(values, x)
    if dtype.kind not in "fc":  # sums of small integers would overflow
        dtype = get_default_dtype()
    # A half-precision sum may overflow where its mean does not.
    wide = accumulator(dtype)
    values, x = (t if t.dtype == wide else cast_p(t, dtype=wide) for t in (values, x))
    out = spmm_p(values, x, pattern=pattern) / Tensor(count.astype(wide))
    return out if dtype == wide else cast_p(out, dtype=dtype)
