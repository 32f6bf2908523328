"""Rows of several tables at once: one gather, whose gradients are parts of the cotangent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sparsegrad import backends
from sparsegrad.engine.mode import anomaly
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import DeviceError, DtypeError, PatternError, ShapeError
from sparsegrad.ops.index import raw_index, take_rule
from sparsegrad.ops.shape import as_argument, reshape_p, slice_p
from sparsegrad.structure import plan_tables
from sparsegrad.structure.arrays import index_dtype

__all__ = ["embedding_collection"]


@primitive(promote="none", passes_g="parts")
def take_tables_p(be: Any, *tables: Any, index: Any, sparse: bool = False) -> Any:
    """Rows tables[f][index[f]] side by side: tables f of (V_f, D_f), index (F, e) -> (e, sum of
    D_f). Indices must be in range. sparse: gradients are row-sparse SparseTensors."""
    return be.gather_tables(tables, index)


def _take_tables_rule(
    g: Any, index: Any, sparse: bool, tables_meta: Any, needs: tuple[bool, ...]
) -> list[Any]:
    from sparsegrad.sparse_tensor import wrap

    where: Any = index  # rows of dense gradients, or patterns of sparse ones
    if sparse:
        where = plan_tables.patterns(index, tuple(meta.shape[0] for meta in tables_meta), needs)
    parts: list[Any] = []
    stop = 0
    for at, meta, needed in zip(where, tables_meta, needs, strict=True):
        start, stop = stop, stop + meta.shape[1]
        if not needed:
            parts.append(None)
            continue
        part = slice_p(g, axis=1, start=start, stop=stop)
        parts.append(wrap(part, at) if sparse else take_rule(part, at, False, None, False, meta))
    return parts


take_tables_p.defvjp(tables=_take_tables_rule)


def embedding_collection(weights: Iterable[Any], index: Any, sparse_grad: bool = True) -> Any:
    """Rows of several tables side by side: weights f of (V_f, D_f), integers (*B, F) -> (*B, sum
    of D_f). Column f of `index` looks up rows of weights[f].

    The same as `embedding` of each column and `cat` of the results, in one pass over all tables
    (FBGEMM's table-batched embeddings): of 26 small lookups most of the time is that of 26 calls.
    Each weight gets a row-sparse gradient, or a dense one without `sparse_grad`. A table may be
    given more than once.

    Raises ShapeError for weights that are not tables and an index of another number of columns,
    DtypeError and DeviceError for weights that differ in dtype or device, PatternError, which
    names the table, for an index outside [0, V_f).

    >>> import sparsegrad as sg
    >>> users, items = sg.ones(1000, 2, requires_grad=True), sg.zeros(50, 1, requires_grad=True)
    >>> out = sg.embedding_collection([users, items], [[7, 3], [7, 40]])
    >>> out
    tensor([[1., 1., 0.],
            [1., 1., 0.]], grad_fn=<take_tables>)
    >>> out.sum().backward()
    >>> users.grad.coalesce().values, items.grad.row
    (tensor([[2., 2.]]), array([ 3, 40], dtype=int32))
    """
    op = "embedding_collection"
    tables = _as_tables(op, weights)
    ids = raw_index(index, f"{op}: index")
    ids = ids if hasattr(ids, "dtype") else np.asarray(ids)
    if ids.dtype.kind not in "iu":
        raise PatternError(f"{op}: index must be integers, got {ids.dtype}")
    if ids.ndim == 0 or ids.shape[-1] != len(tables):
        raise ShapeError(
            f"{op}: expected an index (*B, {len(tables)}), one column a weight, got {ids.shape}"
        )
    be = backends.for_array(tables[0].data)
    listed = be.ids_by_table(
        f"{op}: index",
        be.asarray(ids).reshape(-1, len(tables)),
        tuple(len(table.data) for table in tables),
        index_dtype(tuple(len(table.data) for table in tables), ids.size),
        later=not anomaly.get(),
    )
    out = take_tables_p(*tables, index=listed, sparse=sparse_grad)
    return out if ids.ndim == 2 else reshape_p(out, shape=(*ids.shape[:-1], out.shape[1]))


def _as_tables(op: str, weights: Iterable[Any]) -> list[Any]:
    tables = [as_argument(op, weight) for weight in weights]
    if not tables:
        raise ShapeError(f"{op}: expected at least one weight")
    first = tables[0]
    for f, table in enumerate(tables):
        if table._is_sparse:
            raise TypeError(f"{op}: weights[{f}] must be dense, got a SparseTensor")
        if table.ndim != 2:
            raise ShapeError(f"{op}: expected weights[{f}] (V, D), got {table.shape}")
        if table.dtype != first.dtype:
            raise DtypeError(
                f"{op}: weights differ in dtype: {first.dtype} and, at {f}, {table.dtype}"
            )
        if table.device != first.device:
            raise DeviceError(
                f"{op}: weights are on different devices: {first.device} and, at {f}, "
                f"{table.device}"
            )
    return tables
