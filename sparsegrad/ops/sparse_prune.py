"""Fewer entries: by size, by rank, those of another pattern. What is dropped has no gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

from sparsegrad import backends
from sparsegrad.errors import DtypeError, GraphError, PatternError, ShapeError, memory_for
from sparsegrad.ops.shape import check_sparse
from sparsegrad.ops.sparse_index import selected
from sparsegrad.ops.sparse_structure import each_once
from sparsegrad.structure import plan, plan_select
from sparsegrad.structure.pattern import Pattern

__all__ = ["drop_zeros", "prune", "repattern_", "top_k"]


@memory_for("prune")
def prune(A: Any, threshold: float = 0.0) -> Any:
    """The entries with |value| > threshold, in the format and order of `A`; NaN stays.

    Duplicates are summed first. An entry with dense dimensions stays if any of its elements does.
    The gradient of what is kept passes through unchanged.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 0, 1], [0, 1, 0]], [0.1, -2.0, 3.0], (2, 2))
    >>> sg.prune(A, 0.5).values
    tensor([-2.,  3.])
    """
    check_sparse("prune", "A", A)
    if not threshold >= 0:
        raise ValueError(f"prune: threshold must be >= 0, got {threshold}")
    A = each_once(A)
    keep = A.pattern.core.backend.beyond(A.values.data, threshold)
    chosen = plan_select.choose(A.pattern, keep)
    return A if chosen.entries is None else selected(A.values, chosen)


@memory_for("drop_zeros")
def drop_zeros(A: Any) -> Any:
    """`A` without its explicit zeros (after summing duplicates).

    >>> import sparsegrad as sg
    >>> sg.drop_zeros(sg.coo([[0, 1, 1]], [0.0, 1.0, -1.0], (2,))).nnz
    0
    """
    check_sparse("drop_zeros", "A", A)
    return prune(A)


@memory_for("top_k")
def top_k(A: Any, k: int, dim: int | None = None, by: str = "magnitude") -> Any:
    """The k largest entries of `A`, or of each row (dim 1) or column (dim 0) of a matrix.

    by: "magnitude" |value|, or "value". Of equal entries those that come first in canonical order
        are kept; NaN is largest. Entries keep their order, the result its format; fewer than k
        stay where there are fewer. Duplicates are summed first.

    Raises ShapeError for dense dimensions, or a `dim` of anything but a matrix, DtypeError for
    complex values by value.

    >>> import sparsegrad as sg
    >>> A = sg.csr([0, 2, 4], [0, 1, 0, 1], [1.0, -5.0, 3.0, 2.0], (2, 2))
    >>> sg.top_k(A, 2).values, sg.top_k(A, 1, dim=1).values
    (tensor([-5.,  3.]), tensor([-5.,  3.]))
    """
    check_sparse("top_k", "A", A)
    if not isinstance(k, int) or k < 0:
        raise ValueError(f"top_k: k must be an integer >= 0, got {k!r}")
    if by not in ("magnitude", "value"):
        raise ValueError(f"top_k: by must be 'magnitude' or 'value', got {by!r}")
    if A.dense_dim:
        raise ShapeError(f"top_k: entries with dense dimensions have no order; got {A.shape}")
    if dim is not None and (A.sparse_dim != 2 or dim not in (-2, -1, 0, 1)):
        raise ShapeError(f"top_k: dim {dim} needs a matrix and to be 0 or 1; got shape {A.shape}")
    if A.dtype.kind == "c" and by == "value":
        raise DtypeError(f"top_k: complex values have no order; got {A.dtype}; use by='magnitude'")
    A = each_once(A)
    runs = plan_select.ranked(A.pattern, dim)
    if k >= runs.longest:
        return A
    be, x = A.pattern.core.backend, A.values.data
    if x.dtype.kind in "iub":  # the smallest integer has no negative of its own
        x = x.astype(be.xp.float64)
    keep = be.largest_in_runs(x, runs, k, by == "magnitude")
    return selected(A.values, plan_select.choose(A.pattern, keep))


# ---- another pattern, in place -----------------------------------------------------------------
class Repattern(NamedTuple):
    """What `repattern_` did, for whatever else lies on the old pattern.

    kept: bool (new nnz,), the new entries that existed before. source: their old positions.
    """

    kept: Any
    source: Any

    def apply(self, state: Any) -> Any:
        """Optimizer state (old nnz, *D), an array or a tensor without history, on the new pattern:
        (new nnz, *D), 0 for entries that are new. A new array or tensor."""
        if hasattr(state, "_requires_grad"):
            return type(state)(self.apply(state.data))
        xp = backends.for_array(state).xp
        out = xp.zeros((self.kept.size, *state.shape[1:]), state.dtype)
        out[self.kept] = state[self.source]
        return out


@memory_for("repattern_")
def repattern_(A: Any, pattern: Any) -> Repattern:
    """Give a leaf SparseTensor another pattern, in place: entries of both keep their value, new
    ones are 0, the others are gone. For training that prunes and regrows.

    A: a coalesced leaf, a Parameter for instance. pattern: a coalesced Pattern of its shape, or a
    SparseTensor whose pattern is meant. Its gradient is cleared; other SparseTensors that share
    its values do not follow.

    Returns the plan: `plan.apply(array)` does the same to optimizer state.
    Raises GraphError for the result of an op, PatternError for a pattern with duplicates or out of
    order, ShapeError for one of another shape.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 1], [1, 0]], [2.0, 3.0], (2, 2), requires_grad=True)
    >>> plan = sg.repattern_(A, sg.coo([[1, 1], [0, 1]], None, (2, 2)))
    >>> A.values.detach(), plan.apply(sg.tensor([10.0, 20.0]))
    (tensor([3., 0.]), tensor([20.,  0.]))
    """
    check_sparse("repattern_", "A", A)
    target = pattern if isinstance(pattern, Pattern) else getattr(pattern, "pattern", None)
    if target is None:
        raise TypeError(
            f"repattern_: pattern must be a Pattern or SparseTensor, got {type(pattern).__name__}"
        )
    if not A.is_leaf:
        raise GraphError(f"repattern_: only leaves can change; this is the result of {A.grad_fn!r}")
    if target.shape != A.pattern.shape:
        raise ShapeError(f"repattern_: shapes differ; got A: {A.shape}, pattern: {target.shape}")
    for name, found in (("A", A.pattern), ("pattern", target)):
        if not found.is_coalesced:
            raise PatternError(f"repattern_: {name} must be coalesced, got {found}")
    xp = target.core.backend.xp
    if A.nnz:
        position, kept = plan.locate(target, A.pattern)
    else:
        position, kept = xp.zeros(target.nnz, dtype=int), xp.zeros(target.nnz, dtype=bool)
    change = Repattern(kept, position[kept])
    A.values.data = change.apply(A.values.data)
    A.values._bump()
    A.values.grad = None
    A.pattern = target
    return change
