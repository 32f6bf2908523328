"""Sums and softmax over consecutive runs of rows: the numeric half of many sparse ops."""

from __future__ import annotations

from typing import Any

from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import ShapeError

__all__ = ["segment_softmax", "segment_sum"]


@primitive(promote="none")
def segment_sum_p(be: Any, values: Any, *, indptr: Any) -> Any:
    """Values (nnz, *D), offsets (s + 1,) -> (s, *D)."""
    return be.segment_sum(values, indptr)


@primitive(promote="none")
def segment_expand_p(be: Any, x: Any, *, indptr: Any, nnz: int) -> Any:
    """The transpose of `segment_sum_p`: every run takes its row, (s, *D) -> (nnz, *D)."""
    return x[be.expand(indptr, nnz)]


segment_sum_p.defvjp(
    values=lambda g, indptr, values_meta: segment_expand_p(
        g, indptr=indptr, nnz=values_meta.shape[0]
    )
)
segment_expand_p.defvjp(x=lambda g, indptr: segment_sum_p(g, indptr=indptr))


@primitive(promote="float")
def segment_softmax_p(be: Any, values: Any, *, indptr: Any) -> Any:
    """Softmax within each run, shifted by its maximum: (nnz, *D)."""
    return be.segment_softmax(values, indptr)


@primitive
def segment_softmax_grad_p(be: Any, dy: Any, y: Any, *, indptr: Any) -> Any:
    """y * (dy - sum over the run of dy * y), fused: all (nnz, *D)."""
    return be.segment_softmax_grad(dy, y, indptr)


def _spread_dot(a: Any, b: Any, indptr: Any) -> Any:
    """sum over the run of a * b, at every entry of the run."""
    return segment_expand_p(segment_sum_p(a * b, indptr=indptr), indptr=indptr, nnz=a.shape[0])


segment_softmax_p.defvjp(
    values=lambda g, out, indptr: segment_softmax_grad_p(g, out, indptr=indptr)
)
segment_softmax_grad_p.defvjp(
    # Linear and symmetric in dy; in y it is y * (dy - <dy, y>).
    dy=lambda g, y, indptr: segment_softmax_grad_p(g, y, indptr=indptr),
    y=lambda g, dy, y, indptr: (
        g * (dy - _spread_dot(dy, y, indptr)) - dy * _spread_dot(g, y, indptr)
    ),
)


# ---- public names ------------------------------------------------------------------------------
def _offsets(op: str, values: Any, indptr: Any) -> Any:
    from sparsegrad.structure.pattern import check_offsets

    if values.ndim == 0:
        raise ShapeError(f"{op}: values need a leading dimension, got shape ()")
    return check_offsets(f"{op}: indptr", indptr, values.shape[0])


def segment_sum(values: Any, indptr: Any) -> Any:
    """Sums of consecutive runs of rows: values (nnz, *D), offsets (s + 1,) -> (s, *D).

    Run i is values[indptr[i]:indptr[i + 1]]; an empty run sums to 0. Raises PatternError for
    offsets that do not start at 0, end at nnz and rise.

    >>> import sparsegrad as sg
    >>> sg.segment_sum(sg.tensor([1.0, 2.0, 3.0]), [0, 2, 2, 3])
    tensor([3., 0., 3.])
    """
    return segment_sum_p(values, indptr=_offsets("segment_sum", values, indptr))


def segment_softmax(values: Any, indptr: Any) -> Any:
    """Softmax within consecutive runs of rows: values (nnz, *D), offsets (s + 1,) -> (nnz, *D).

    >>> import sparsegrad as sg
    >>> sg.segment_softmax(sg.tensor([0.0, 0.0, 5.0]), [0, 2, 3])
    tensor([0.5, 0.5, 1. ])
    """
    return segment_softmax_p(values, indptr=_offsets("segment_softmax", values, indptr))


def sparse_softmax(A: Any, dim: int) -> Any:
    """Softmax over the stored entries of each row (dim 1) or column (dim 0) of a matrix."""
    from sparsegrad.ops.sparse_structure import coalesce, reorder
    from sparsegrad.sparse_tensor import wrap
    from sparsegrad.structure.pattern import Pattern

    if A.sparse_dim != 2 or not -2 <= dim < 2:
        raise ShapeError(
            f"softmax: needs two sparse dimensions and dim 0 or 1; got shape {A.shape}, dim {dim}"
        )
    if not A.pattern.core.unique:
        A = coalesce(A)  # not linear: duplicates are one entry
    pattern = A.pattern
    lines = pattern if dim % 2 else pattern.T
    indptr, _, positions = lines.rows()
    if positions is None:
        return wrap(segment_softmax_p(A.values, indptr=indptr), pattern)
    axis = 0 if bool(dim % 2) != pattern.transposed else 1
    grouped = Pattern(pattern.core, pattern.format, pattern.core.grouped(axis), pattern.transposed)
    values = reorder(A.values, pattern, grouped)
    return wrap(reorder(segment_softmax_p(values, indptr=indptr), grouped, pattern), pattern)
