"""How cotangents add up, and how they reach `.grad`: the methods the engine is handed.

A cotangent of a dense tensor is a Tensor, a SparseTensor, or a `SparseSum`: sparse terms whose
merge is put off until somebody looks. Sums equal dense autograd in any order:

    Tensor + Tensor         in place into a buffer the engine owns
    sparse + sparse         same pattern: values add; else the term is kept and merged later
    Tensor + sparse         scattered into an owned copy of the dense one; stays dense
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from sparsegrad import backends
from sparsegrad.engine import graph
from sparsegrad.engine.mode import recording, watcher
from sparsegrad.errors import GraphError, ShapeError
from sparsegrad.memory import owner
from sparsegrad.ops.elementwise import add_p, cast, clone_p, where_p
from sparsegrad.ops.index import put_rows_p
from sparsegrad.ops.reduce import sum_p
from sparsegrad.ops.shape import broadcast_p, cat_p, reshape_p
from sparsegrad.ops.sparse_rows import as_rows
from sparsegrad.ops.sparse_structure import (
    add_rows_p,
    coalesce,
    entries_p,
    split_dense,
    to_dense,
)
from sparsegrad.sparse_tensor import SomeRows, SparseTensor, some_rows, wrap
from sparsegrad.structure import plan
from sparsegrad.structure.pattern import Pattern
from sparsegrad.tensor import Tensor, _make, as_tensor

__all__ = ["SparseSum"]

# A merge runs when pending entries exceed this multiple of the merged ones: memory stays flat and
# each entry is sorted a bounded number of times.
_PENDING = 2
# Share of the rows from which a row-sparse sum is stored on the full row range: its values are
# then the dense array, further terms are scattered into it, and it is still a SparseTensor.
_FULL = 0.5


class SparseSum:
    """A sum of sparse cotangents of one dense tensor, merged when it is looked at. Where one of
    them stands for a dense cotangent (`SomeRows`), so does the sum."""

    __slots__ = ("dense", "dtype", "merged_nnz", "parts", "shape")

    _is_sparse = True

    def __init__(self, parts: list[SparseTensor]) -> None:
        self.parts = parts
        self.shape, self.dtype = parts[0].shape, parts[0].dtype
        self.merged_nnz = parts[0].nnz
        self.dense = any(isinstance(part, SomeRows) for part in parts)

    def plus(self, term: SparseTensor) -> SparseSum:
        """This sum with another term; neither operand changes."""
        last = self.parts[-1]
        if last.sparse_dim == term.sparse_dim and last.pattern.same_as(term.pattern):
            out = SparseSum([*self.parts[:-1], wrap(add_p(last.values, term.values), last.pattern)])
        else:
            out = SparseSum([*self.parts, term])
        out.merged_nnz = self.merged_nnz
        out.dense = self.dense or isinstance(term, SomeRows)
        if sum(part.nnz for part in out.parts) > _PENDING * max(out.merged_nnz, 1024):
            dense, out = out.dense, SparseSum([out.merged()])
            out.dense = dense
        return out

    def merged(self) -> SparseTensor:
        """One SparseTensor; kept, so that looking twice merges once."""
        if len(self.parts) > 1:
            watching = watcher.get()
            merge = _merge if watching is None else watching.merging(_merge)
            self.parts = [merge(self.parts)]
            self.merged_nnz = self.parts[0].nnz
        merged = self.parts[0]
        return some_rows(merged.values, merged.pattern) if self.dense else merged


def _merge(parts: list[SparseTensor]) -> SparseTensor:
    kinds = sorted({part.sparse_dim for part in parts})
    if len(kinds) > 1:
        out, *finer = (_merge([p for p in parts if p.sparse_dim == dims]) for dims in kinds)
        for cells in finer:
            out = _meet(out, cells)
        return out
    xp = parts[0].pattern.core.backend.xp
    shape = parts[0].pattern.shape
    first, dims = parts[0], kinds[0]
    if dims == 1 and first.nnz == shape[0] and first.is_coalesced:  # full range: scatter
        values = first.values
        for part in parts[1:]:
            values = add_rows_p(values, part.values, index=part.row)
        return wrap(values, first.pattern)
    if len(parts) == 1:
        listed = first
    else:
        coords = [xp.concatenate(c) for c in zip(*(p.pattern.coords for p in parts), strict=True)]
        both = Pattern.coo(coords, shape, check=False, copy=False)
        listed = wrap(cat_p(*(p.values for p in parts), axis=0), both)
    out = coalesce(listed)
    if dims == 1 and out.nnz > _FULL * shape[0]:
        every = Pattern.coo([xp.arange(shape[0])], shape, check=False, copy=False)
        return wrap(put_rows_p(out.values, index=out.row, n=shape[0]), every)
    return out


def _meet(rows: SparseTensor, cells: SparseTensor) -> SparseTensor:
    """Row-sparse and element-sparse meet as row-sparse if that stores no more, else
    element-sparse. `rows` has fewer sparse dimensions, and "row" means an index over those."""
    sizes = cells.shape[rows.sparse_dim : cells.sparse_dim]
    width = 1
    for n in sizes:
        width *= n
    lead = cells.pattern.coords[: rows.sparse_dim]
    listed = Pattern.coo(list(lead), rows.pattern.shape, check=False, copy=False)
    touched = plan.coalesce(listed).pattern
    _, known = plan.locate(touched, rows.pattern)
    slots, _ = plan.locate(listed, touched)
    added = int(touched.nnz - known.sum()) * width
    if added <= cells.nnz - int(known[slots].sum()):
        return _merge([rows, as_rows(cells, touched, slots)])
    dense = cells.sparse_dim - rows.sparse_dim
    return _merge([split_dense(rows, dense), cells])


def _settled(g: Any) -> Any:
    return g.merged() if isinstance(g, SparseSum) else g


def _whole(g: Any) -> Any:
    """A cotangent made dense if it stands for a dense one, as it is to whoever looks at it."""
    if isinstance(g, SomeRows) or (isinstance(g, SparseSum) and g.dense):
        return to_dense(_settled(g))
    return g


def _scattered(x: Tensor, g: SparseTensor) -> Tensor:
    """A dense cotangent with the entries of a sparse one added: a new tensor."""
    return x + g


class _Algebra:
    """The methods `sparsegrad.engine.graph` calls."""

    tensor_type = Tensor

    # ---- the ends of a walk --------------------------------------------------------------------
    def place(self, op: str, tensor: Any) -> tuple[graph.Place, Any]:
        """Where a tensor sits in the graph, and the dense tensor whose `.grad` is meant."""
        if not isinstance(tensor, (Tensor, SparseTensor)):
            raise TypeError(f"{op}: expected a tensor, got {type(tensor).__name__}")
        values = tensor.values if isinstance(tensor, SparseTensor) else tensor
        if not values._requires_grad:
            raise GraphError(
                f"{op}: the tensor of shape {tuple(tensor.shape)} does not require a gradient"
            )
        node = values._node
        return (values if node is None else node, values._index), values

    def upstream(self, op: str, tensor: Any, g: Any) -> Any:
        """The cotangent an output starts with, checked and brought to its dtype."""
        shape = tuple(tensor.shape)
        if g is None:
            if isinstance(tensor, SparseTensor) or tensor.data.size != 1:
                hint = "sg.ones_like(A)" if isinstance(tensor, SparseTensor) else "its shape"
                raise GraphError(
                    f"{op}: a gradient of shape {shape} must be given for an output that is not a "
                    f"scalar (hint: {hint})"
                )
            xp = backends.for_array(tensor.data).xp
            return _make(xp.ones(shape, tensor.dtype), None, 0)
        if not isinstance(g, (Tensor, SparseTensor)):
            g = as_tensor(g, tensor.dtype)
        if tuple(g.shape) != shape:
            raise ShapeError(
                f"{op}: the gradient has shape {tuple(g.shape)}, the output has {shape}"
            )
        if isinstance(tensor, SparseTensor):
            g = _restricted(g, tensor.pattern)
        return g if g.dtype == tensor.dtype else cast(g, tensor.dtype)

    def present(self, tensor: Any, g: Any, materialize: bool) -> Any:
        """A captured cotangent as the gradient of `tensor` that a user sees."""
        g = _settled(_whole(g))
        if g is None and materialize:
            values = tensor.values if isinstance(tensor, SparseTensor) else tensor
            xp = backends.for_array(values.data).xp
            g = Tensor(xp.zeros(values.shape, values.dtype))
        if g is None or not isinstance(tensor, SparseTensor):
            return g
        return tensor._on_pattern(g)

    # ---- on the way ----------------------------------------------------------------------------
    def settle(self, g: Any) -> Any:
        """A cotangent a rule can take: pending sparse terms merged."""
        return _settled(g)

    def conform(self, g: Any, shape: tuple[int, ...], dtype: Any, op: str) -> Any:
        """`g` summed to the shape of the input it belongs to, in the input's dtype."""
        if isinstance(g, Tensor):
            data = g.data
            if data.shape != shape:
                g = _sum_to(g, shape, op)
            return g if data.dtype == dtype else cast(g, dtype)
        if not isinstance(g, SparseTensor):
            raise GraphError(f"backward of {op}: a rule returned {type(g).__name__}, not a tensor")
        fits = g if g.shape == shape else _sum_sparse_to(g, shape, op)
        fits = fits if fits.dtype == dtype else cast(fits, dtype)
        return g.passed_on(fits) if isinstance(g, SomeRows) else fits

    def add(self, a: Any, b: Any, owned: bool) -> Any:
        """a + b; into `a` if the engine owns its buffer."""
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            if owned:
                a.data += b.data
                return a
            return add_p.binary(a, b)
        if isinstance(a, Tensor):
            return _scattered(a, _settled(b))
        if isinstance(b, Tensor):
            return _scattered(b, _settled(a))
        a = a if isinstance(a, SparseSum) else SparseSum([a])
        for part in b.parts if isinstance(b, SparseSum) else [b]:
            a = a.plus(part)
        return a

    def fresh(self, result: Any, g: Any, g_owned: bool, saved: Any, results: Any) -> bool:
        """Whether nobody but the engine holds the memory of one of the results of a rule."""
        if isinstance(result, SparseSum) or type(g) is list:
            return False
        data = _memory(result)
        memory = _memory(g)
        own = owner(data)
        if own is data:  # owns its memory: new, unless it is g's or was saved
            new = g_owned if data is memory else not _holds(saved, data)
        else:
            new = g_owned and own is owner(memory) and _writable(data)
        if not new or len(results) == 1:
            return new
        holders = 0  # memory that two edges share is nobody's own
        for r in results:
            if r is not None and owner(_memory(r)) is own:
                holders += 1
        return holders < 2

    def run_hooks(self, hooks: Iterable[Callable[..., Any]], g: Any) -> Any:
        """`g` after the user's hooks; a hook may give another gradient of the same shape."""
        g = _settled(_whole(g))
        for hook in hooks:
            result = hook(g)
            if result is None:
                continue
            if not isinstance(result, (Tensor, SparseTensor)) or result.shape != g.shape:
                found = getattr(result, "shape", type(result).__name__)
                raise ShapeError(f"hook: expected a gradient of shape {g.shape}, got {found}")
            g = result
        return g

    # ---- into .grad ----------------------------------------------------------------------------
    def deposit(self, gradients: Iterable[tuple[Any, Any, bool]]) -> None:
        """Add to `.grad` of each tensor, which owns its buffers: (tensor, gradient, owned). Under
        create_graph out of place. What takes memory comes first, so that it is all or nothing."""
        ready = [(tensor, *self._ready(tensor._grad, g, owned)) for tensor, g, owned in gradients]
        for tensor, g, in_place in ready:
            if in_place:
                tensor._grad.data += g.data
                tensor._grad._bump()
            else:
                tensor._grad = g

    def _ready(self, held: Any, g: Any, owned: bool) -> tuple[Any, bool]:
        """The new `.grad` where `held` is the old one; or what is to be added to it in place."""
        whole = _whole(g)
        owned, g = owned or whole is not g, whole
        if recording.get():
            g = _settled(g)
            return (g if held is None else _settled(self.add(_settled(held), g, False))), False
        g = _detached(g)
        if isinstance(g, SparseSum) or (not owned and (held is None or g._is_sparse)):
            g = _copied(g)  # terms wait to be merged: nobody else may change them
        if held is None:
            return g, False
        mine = isinstance(held, Tensor) and not held._requires_grad and _writable(held.data)
        if mine and isinstance(g, Tensor):
            return g, True
        return self.add(held, g, False), False


def _restricted(g: Any, pattern: Pattern) -> Any:
    """Upstream gradient of a sparse output, at its entries: values (nnz, *D)."""
    if isinstance(g, Tensor):
        return entries_p(g, pattern=pattern)
    if g.pattern.same_as(pattern):
        return g.values
    g = coalesce(g if g.format == pattern.format else g.to(pattern.format))
    position, found = plan.locate(pattern, g.pattern)
    if g.nnz == 0:
        return Tensor(pattern.core.backend.xp.zeros((pattern.nnz, *g.values.shape[1:]), g.dtype))
    picked = g.values.take(Tensor(position), sparse_grad=False)
    mask = found.reshape(-1, *(1,) * (picked.ndim - 1))
    return where_p(picked, 0, mask=mask)


def _sum_to(g: Tensor, shape: tuple[int, ...], op: str) -> Tensor:
    lead = g.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(
        i + lead for i, n in enumerate(shape) if n == 1 and lead >= 0 and g.shape[i + lead] != 1
    )
    out = sum_p(g, axis=axes) if lead >= 0 and axes else g
    if out.data.shape == shape:
        return out
    if out.data.size != math.prod(shape):
        if lead < 0 or any(n not in (1, m) for n, m in zip(shape, g.shape[lead:], strict=True)):
            raise GraphError(
                f"backward of {op}: a rule returned shape {g.shape} for an input of shape {shape}"
            )
        return broadcast_p(g, shape=shape)
    return reshape_p(out, shape=shape)


def _sum_sparse_to(g: SparseTensor, shape: tuple[int, ...], op: str) -> Any:
    """Over all sparse dimensions the sum is small and dense. Over some of them, or dense ones, it
    is sparse: entries that meet stay duplicates. Anything else is made dense, an event."""
    lead = g.ndim - len(shape)
    dims = {*range(lead), *(i + lead for i, n in enumerate(shape) if n == 1)}
    if lead >= 0 and all(d in dims for d in range(g.sparse_dim)):
        total = sum_p(g.values, axis=(0,))
        if lead < g.sparse_dim:
            total = reshape_p(total, shape=(*(1,) * g.sparse_dim, *total.shape))
        return _sum_to(total, shape, op)
    if 0 <= lead < g.sparse_dim:
        values = _sum_to(g.values, (g.nnz, *shape[g.sparse_dim - lead :]), op)
        kept = shape[: g.sparse_dim - lead]
        if kept == g.pattern.shape:
            return wrap(values, g.pattern)
        return wrap(values, g.pattern.cached(("summed to", kept), lambda: _shrunk(g.pattern, kept)))
    return _sum_to(g._densify(f"backward of {op}"), shape, op)


def _shrunk(pattern: Pattern, shape: tuple[int, ...]) -> Pattern:
    """Entries where they come to when leading dimensions go and others shrink to size 1."""
    xp = pattern.core.backend.xp
    lead = pattern.ndim - len(shape)
    coords = [
        c if n == m else xp.zeros_like(c)
        for c, n, m in zip(pattern.coords[lead:], pattern.shape[lead:], shape, strict=True)
    ]
    return Pattern.coo(coords, shape, check=False, copy=False)


def _memory(x: Any) -> Any:
    return x.values.data if isinstance(x, SparseTensor) else x.data


def _holds(saved: Any, data: Any) -> bool:
    """Whether something that was saved for a rule is this array."""
    for s in saved:
        if s is data or (isinstance(s, Tensor) and s.data is data):
            return True
        if type(s) is tuple and _holds(s, data):  # variadic inputs
            return True
    return False


def _writable(data: Any) -> bool:
    """Neither read-only (as what NumPy broadcasts is, even to its own shape) nor repeated."""
    repeated = any(s == 0 and n > 1 for n, s in zip(data.shape, data.strides, strict=True))
    return not repeated and getattr(data.flags, "writeable", True)


def _detached(g: Any) -> Any:
    if isinstance(g, SparseSum):
        return SparseSum([part.detach() for part in g.parts])
    return g.detach() if g.requires_grad else g


def _copied(g: Any) -> Any:
    if isinstance(g, SparseSum):
        return SparseSum([_copied(part) for part in g.parts])
    return wrap(clone_p(g.values), g.pattern) if isinstance(g, SparseTensor) else clone_p(g)


graph.install_algebra(_Algebra())
