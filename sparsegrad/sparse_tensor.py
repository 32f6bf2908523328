"""SparseTensor: a Pattern and the values of its entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegrad import display
from sparsegrad.device import CPU, Device, is_device, wanted
from sparsegrad.engine import differentiate, graph
from sparsegrad.engine.mode import report_densify
from sparsegrad.errors import DensifyError, DtypeError, PatternError, ShapeError
from sparsegrad.operators import Operators
from sparsegrad.structure import plan
from sparsegrad.structure.arrays import as_shape
from sparsegrad.structure.pattern import Pattern
from sparsegrad.tensor import RemovableHandle, Tensor, as_tensor, to_array

__all__ = ["SomeRows", "SparseTensor", "row_sparse", "some_rows"]


# Names of SciPy and PyTorch, and what they are here.
_ELSEWHERE = {
    "_indices": "A.indices",
    "_nnz": "A.nnz",
    "_values": "A.values",
    "H": "A.T, or A.conj().T",
    "adjoint": "A.T, or A.conj().T",
    "asformat": 'A.to("csr")',
    "check_format": "A.check_invariants()",
    "col_indices": "A.indices of a CSR tensor",
    "crow_indices": "A.indptr of a CSR tensor",
    "data": "A.values",
    "contiguous": "A.coalesce()",
    "conjugate": "A.conj()",
    "copy": "A.clone()",
    "eliminate_zeros": "sg.drop_zeros(A)",
    "getcol": "A[:, j]",
    "getnnz": "A.nnz",
    "getrow": "A[i]",
    "has_canonical_format": "A.is_coalesced",
    "has_sorted_indices": "A.is_coalesced",
    "is_cuda": "A.device",
    "item": "A[i, j].item(), or A.sum().item()",
    "layout": "A.format",
    "mH": "A.T, or A.conj().T",
    "mT": "A.T",
    "nanmax": "sg.amax(sg.nan_to_num(A, -inf, inf, -inf), dim)",
    "nanmin": "sg.amin(sg.nan_to_num(A, inf, inf, -inf), dim)",
    "numpy": "A.to_dense().numpy(), or A.to_scipy()",
    "power": "A ** n",
    "resize": "sg.pad(A, ...), or A[:m, :n]",
    "rint": "A.round()",
    "setdiag": "sg.set_diagonal(A, d)",
    "smm": "A @ x",
    "sort_indices": "A.coalesce()",
    "sorted_indices": "A.coalesce()",
    "sspaddmm": "sg.addmm(C, A, x)",
    "sum_duplicates": "A.coalesce()",
    "to_sparse_coo": 'A.to("coo")',
    "to_sparse_csc": 'A.to("csc")',
    "to_sparse_csr": 'A.to("csr")',
    "toarray": "A.to_dense().numpy()",
    "tocoo": 'A.to("coo")',
    "tocsc": 'A.to("csc")',
    "tocsr": 'A.to("csr")',
    "tensordot": "sg.tensordot(A, B, dims)",
    "tobsr": "A.to_scipy().tobsr()",
    "todense": "A.to_dense()",
    "todia": "A.to_scipy().todia()",
    "todok": "A.to_scipy().todok()",
    "tolil": "A.to_scipy().tolil()",
}


class SparseTensor(Operators):
    """A sparse tensor: where entries are (`pattern`) and what they are (`values`, a Tensor).

    It is a view of its values: `requires_grad`, `grad`, hooks and `backward` are those of
    `values`, seen on the pattern. Absent entries have no gradient.

    indices: integer array (sparse dims, nnz), in any order; duplicates mean a sum.
    values: (nnz, *dense dims); None reads as ones. A Tensor with history keeps it.
    shape: sizes of the sparse dimensions, then of the dense ones.
    requires_grad: make the values a leaf that requires a gradient.
    device: where to put it; by default where values and indices are. Where only one of them is on
        a GPU, the other follows.
    check, copy: validate the indices against `shape` (wrong ones that were let in may crash the
        process); copy them.

    Raises PatternError or ShapeError for arguments that do not fit.

    >>> import sparsegrad as sg
    >>> A = sg.SparseTensor([[0, 0, 1], [0, 2, 1]], [1.0, 2.0, 3.0], (2, 3), requires_grad=True)
    >>> (A @ sg.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]])).sum().backward()
    >>> A.grad.values
    tensor([1., 0., 2.])
    """

    __slots__ = ("__weakref__", "pattern", "values")

    _is_sparse = True

    pattern: Pattern
    values: Tensor

    def __init__(
        self,
        indices: Any,
        values: Any,
        shape: Any,
        requires_grad: bool = False,
        *,
        dtype: Any = None,
        device: Any = None,
        check: bool = True,
        copy: bool = True,
    ) -> None:
        shape = as_shape(shape)
        if isinstance(indices, Tensor):
            indices = indices.data
        if not hasattr(indices, "__len__"):
            raise PatternError(f"indices: expected (sparse dims, nnz), got {indices!r}")
        sparse_dims = len(indices)
        pattern = Pattern.coo(indices, shape[:sparse_dims], check=check, copy=copy)
        values = _own_values(values, pattern, shape[sparse_dims:], dtype, requires_grad)
        self.values, self.pattern = _together(values, pattern, device)

    # ---- what it is ----------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the sparse dimensions, then of the dense ones."""
        return self.pattern.shape + self.values.data.shape[1:]

    @property
    def ndim(self) -> int:
        """Number of dimensions, sparse and dense."""
        return self.pattern.ndim + self.values.data.ndim - 1

    @property
    def sparse_dim(self) -> int:
        """Number of sparse dimensions."""
        return self.pattern.ndim

    @property
    def dense_dim(self) -> int:
        """Number of trailing dense dimensions (of `values`)."""
        return self.values.data.ndim - 1

    @property
    def nnz(self) -> int:
        """Stored entries, explicit zeros and duplicates included."""
        return self.pattern.nnz

    @property
    def density(self) -> float:
        """Share of cells that are stored."""
        cells = 1
        for n in self.pattern.shape:
            cells *= n
        return self.nnz / cells if cells else 0.0

    @property
    def format(self) -> str:
        """Storage scheme: "coo", "csr" or "csc"."""
        return self.pattern.format

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the values."""
        return self.values.data.dtype

    @property
    def device(self) -> Device:
        """Where the values live."""
        return self.values.device

    @property
    def nbytes(self) -> int:
        """Bytes of values and index arrays, caches not counted."""
        return self.values.nbytes + sum(int(a.nbytes) for a in self.pattern.core.arrays)

    @property
    def indices(self) -> Any:
        """Index array: (sparse dims, nnz) for COO, (nnz,) for CSR and CSC."""
        return self.pattern.indices

    @property
    def indptr(self) -> Any:
        """Offsets of the rows (CSR) or columns (CSC)."""
        return self.pattern.indptr

    @property
    def row(self) -> Any:
        """Row of every entry (nnz,)."""
        return self.pattern.row

    @property
    def col(self) -> Any:
        """Column of every entry (nnz,)."""
        return self.pattern.col

    @property
    def is_coalesced(self) -> bool:
        """Whether entries are unique and in canonical order."""
        return self.pattern.is_coalesced

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Number of cells, stored or not."""
        cells = 1
        for n in self.shape:
            cells *= n
        return cells

    def dim(self) -> int:
        """Number of dimensions, sparse and dense."""
        return self.ndim

    def __getattr__(self, name: str) -> Any:
        """What other libraries, or dense tensors, call something is answered with its name here."""
        hint = _ELSEWHERE.get(name)
        if hint is None and not name.startswith("_") and hasattr(Tensor, name):
            hint = f"A.values.{name} for stored entries only"
            hint += "" if name.endswith("_") else f", or A.to_dense().{name}"
        there = f"; see {hint}" if hint else ""
        raise AttributeError(f"{name}: a SparseTensor has no such attribute{there}")

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        raise ValueError(
            f"bool: a SparseTensor of shape {self.shape} is neither true nor false; did you mean "
            "A.nnz > 0, or A.any()?"
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise DensifyError(
            f"array: a SparseTensor of shape {self.shape} does not turn into a dense array by "
            "itself; write A.to_dense().numpy(), or A.to_scipy()"
        )

    def __repr__(self) -> str:
        return display.as_text(self)

    def _repr_html_(self) -> str:
        return display.as_html(self)

    def spy(self, ax: Any = None) -> Any:
        """Draw where the entries of a matrix of any size are, and return the matplotlib axis.

        Entries are counted in at most 500 × 500 cells; colours are logarithmic. Needs the extra
        `plot`. Raises ShapeError unless there are two sparse dimensions.

        ax: the axis to draw on; the current one by default.
        """
        return display.spy(self, ax)

    # ---- autograd: the values', seen on the pattern --------------------------------------------
    @property
    def requires_grad(self) -> bool:
        """Whether ops on the values are recorded."""
        return self.values._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.values.requires_grad = value

    def requires_grad_(self, requires_grad: bool = True) -> SparseTensor:
        """Set `requires_grad` and return the tensor."""
        self.values.requires_grad = requires_grad
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether the values were made by the user rather than by a recorded op."""
        return self.values.is_leaf

    @property
    def grad_fn(self) -> graph.Node | None:
        """The recorded op the values are a result of."""
        return self.values._node

    @property
    def grad(self) -> SparseTensor | None:
        """Gradient with respect to the matrix: on this pattern where entries are unique, else on
        its coalesced pattern, each entry once. `A.values.grad` is per stored value."""
        g = self.values.grad
        return None if g is None else self._on_pattern(g)

    @grad.setter
    def grad(self, value: Any) -> None:
        if isinstance(value, SparseTensor):
            value = self._per_value(value)
        self.values.grad = value

    def _per_value(self, g: SparseTensor) -> Tensor:
        """A gradient of the matrix as a gradient of the stored values."""
        if self.pattern.same_as(g.pattern):
            return g.values
        merged = self.coalesce().pattern
        if not merged.same_as(g.pattern):
            raise PatternError(
                f"grad: its pattern {g.pattern} is not the pattern {self.pattern} of the tensor"
            )
        position, _ = plan.locate(self.pattern, merged)
        return ops.take(g.values, position, sparse_grad=False)

    def _on_pattern(self, g: Any) -> SparseTensor:
        """A gradient of the values as a gradient of the matrix."""
        if g._is_sparse:
            g = g.to_dense()  # sparse over entries: O(nnz), as large as the values themselves
        if self.pattern.is_coalesced or self.pattern.core.unique:
            return wrap(g, self.pattern)
        from sparsegrad.ops.sparse_structure import first_of_each

        return first_of_each(wrap(g, self.pattern))

    def retain_grad(self) -> None:
        """Keep the gradient of this result of an op."""
        self.values.retain_grad()

    def register_hook(self, hook: Any) -> RemovableHandle:
        """Call `hook(grad)` with the gradient, a SparseTensor on this pattern, when it is
        complete; what it returns (if not None) takes the gradient's place."""
        pattern = self.pattern

        def on_values(g: Any) -> Any:
            result = hook(wrap(g, pattern))
            if not isinstance(result, SparseTensor):
                return result
            if not pattern.same_as(result.pattern):
                raise PatternError(
                    f"hook: the gradient it returned lies on {result.pattern}, not on the pattern "
                    f"{pattern} of the tensor"
                )
            return result.values

        return self.values.register_hook(on_values)

    def register_post_accumulate_grad_hook(self, hook: Any) -> RemovableHandle:
        """Call `hook(tensor)` after `.grad` was updated by a backward pass."""
        pattern = self.pattern  # not self: values -> hook -> self -> values would be a cycle
        return self.values.register_post_accumulate_grad_hook(lambda v: hook(wrap(v, pattern)))

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Add the gradient of this tensor to `.grad` of every leaf it depends on.

        gradient: upstream gradient of this shape, sparse (`sg.ones_like(A)`) or dense. Only its
            stored entries count.
        """
        differentiate.backward(self, gradient, retain_graph, create_graph, inputs)

    def detach(self) -> SparseTensor:
        """The same data without history."""
        return wrap(self.values.detach(), self.pattern)

    def with_values(self, values: Any) -> SparseTensor:
        """This pattern with other values (nnz, *dense dims)."""
        values = as_tensor(values)
        if values.ndim == 0 or len(values) != self.nnz:
            raise ShapeError(f"with_values: expected {self.nnz} values, got shape {values.shape}")
        return wrap(values, self.pattern)

    # ---- structure -----------------------------------------------------------------------------
    @property
    def T(self) -> SparseTensor:
        """The transpose: O(1), shares pattern and values. CSR becomes CSC and back."""
        if self.dense_dim:
            raise ShapeError(f"T: needs a matrix without dense dimensions, got shape {self.shape}")
        return wrap(self.values, self.pattern.T)

    def t(self) -> SparseTensor:
        """The transpose."""
        return self.T

    def to(
        self, *targets: Any, device: Any = None, dtype: Any = None, non_blocking: bool = False
    ) -> SparseTensor:
        """In another format ("coo", "csr", "csc", or "auto": the cheapest, see `sg.config`), dtype,
        on another device, or several of these; as `Tensor.to`."""
        out = self
        for target in wanted(targets, device, dtype):
            out = out._to(target)
        return out

    def _to(self, target: Any) -> SparseTensor:
        if isinstance(target, str) and target in ("coo", "csr", "csc", "auto"):
            return ops.to_format(self, target)
        if is_device(target):
            return wrap(self.values.to(target), self.pattern.to_device(target))
        try:
            moved = self.values.to(target)
            if moved.dtype == self.dtype:
                return wrap(moved, self.pattern)
            return ops.cast(self, moved.dtype)  # of the matrix: duplicates may have to be summed
        except DtypeError:
            raise DtypeError(
                f"to: expected a format ('coo', 'csr', 'csc'), dtype or device, got {target!r}"
            ) from None

    def cpu(self) -> SparseTensor:
        """This tensor in host memory."""
        return self.to("cpu")

    def cuda(self, index: int | None = None) -> SparseTensor:
        """This tensor on a CUDA device, by default that of `sg.cuda.set_device`; DeviceError where
        there is none."""
        return self.to("cuda" if index is None else f"cuda:{index}")

    def __getitem__(self, index: Any) -> Any:
        """By numbers, slices, arrays, masks: sparse, or dense if no sparse dimension is left."""
        return ops.sparse_index.sparse_getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            "A[i] = v: the entries of a SparseTensor are fixed; write A.with_values(values), "
            "sg.set_diagonal(A, v), or A + B with the change as B"
        )

    def mask(self, x: Any) -> SparseTensor:
        """The elements of a dense (or sparse) `x` at the entries of this pattern."""
        return ops.sparse_mask(x, self.pattern)

    def prune(self, threshold: float = 0.0) -> SparseTensor:
        """The entries with |value| > threshold."""
        return ops.prune(self, threshold)

    def top_k(self, k: int, dim: int | None = None, by: str = "magnitude") -> SparseTensor:
        """The k largest entries, or those of each row or column; see `sg.top_k`."""
        return ops.top_k(self, k, dim, by)

    def repattern_(self, pattern: Any) -> Any:
        """Another pattern for this leaf, in place; see `sg.repattern_`."""
        return ops.repattern_(self, pattern)

    def check_invariants(self) -> SparseTensor:
        """The tensor itself if its indices lie in its shape, its offsets rise and its values line
        up with its entries; PatternError or ShapeError otherwise.

        `sg.config(check_invariants=True)` checks the indices of every pattern that is made.
        """
        self.pattern.core.validate()
        if len(self.values.shape) < 1 or self.values.shape[0] != self.nnz:
            raise ShapeError(
                f"check_invariants: {self.nnz} entries, values of shape {self.values.shape}"
            )
        return self

    def coalesce(self) -> SparseTensor:
        """Unique entries in canonical order, duplicates summed; itself if it is so already."""
        return ops.coalesce(self)

    def to_dense(self) -> Tensor:
        """Every cell as a dense Tensor, recorded."""
        return ops.to_dense(self)

    def to_scipy(self) -> Any:
        """A scipy.sparse array of the same shape and format, values detached and shared. ShapeError
        if there are dense dimensions, DtypeError for bfloat16."""
        import scipy.sparse as sp

        if self.dense_dim:
            raise ShapeError(f"to_scipy: scipy has no dense dimensions; got shape {self.shape}")
        if self.dtype.kind == "V":
            raise DtypeError("to_scipy: scipy has no bfloat16; write A.float().to_scipy()")
        host = self.detach().cpu()
        values = host.values.data
        if self.format == "coo":
            return sp.coo_array((values, host.pattern.coords), shape=self.shape)
        make = sp.csr_array if self.format == "csr" else sp.csc_array
        return make((values, host.indices, host.indptr), shape=self.shape)

    def _densify(self, op: str) -> Tensor:
        """Dense because `op` cannot take a sparse cotangent: an event, not a request."""
        report_densify(op, self.shape, self.dtype.itemsize)
        return ops.to_dense(self)

    def __reduce__(self) -> Any:
        return _rebuild, (self.values, self.pattern)


_new = SparseTensor.__new__


def wrap(values: Tensor, pattern: Pattern) -> SparseTensor:
    """A SparseTensor of parts that fit; nothing is checked."""
    out = _new(SparseTensor)
    out.values, out.pattern = values, pattern
    return out


def _rebuild(values: Tensor, pattern: Pattern) -> SparseTensor:
    return wrap(values, pattern)


def compressed(
    fmt: Any,
    indptr: Any,
    indices: Any,
    values: Any,
    shape: Any,
    requires_grad: bool = False,
    *,
    dtype: Any = None,
    device: Any = None,
    check: bool = True,
    copy: bool = True,
) -> SparseTensor:
    """A CSR or CSC tensor; arguments as in `sg.csr`."""
    shape = as_shape(shape)
    pattern = Pattern.compressed(fmt, indptr, indices, shape[:2], check=check, copy=copy)
    values = _own_values(values, pattern, shape[2:], dtype, requires_grad)
    return wrap(*_together(values, pattern, device))


def _together(values: Tensor, pattern: Pattern, device: Any) -> tuple[Tensor, Pattern]:
    """Both on one device: the one that is asked for, else that of the part which is on a GPU."""
    here, there = values.device, pattern.device
    if device is None and (here is there or here == there):
        return values, pattern
    target = device if device is not None else there if here == CPU else here
    moved = values.to(target)
    if values.is_leaf and moved is not values:
        moved = Tensor(moved.data, requires_grad=values.requires_grad)
    return moved, pattern.to_device(target)


def _own_values(
    values: Any, pattern: Pattern, dense: tuple[int, ...], dtype: Any, requires_grad: bool
) -> Tensor:
    expected = (pattern.nnz, *dense)
    if values is None:
        one = Tensor(1.0, dtype).data
        return Tensor(np.broadcast_to(one, expected), requires_grad=requires_grad)
    if isinstance(values, Tensor):
        out = values if dtype is None else values.astype(dtype)
        if requires_grad and not out.requires_grad:
            out = Tensor(out.data.copy(), requires_grad=True)
    else:
        data = to_array(values, dtype)
        shared = data is values or data.base is not None
        out = Tensor(data.copy() if shared else data, requires_grad=requires_grad)
    if out.shape != expected:
        raise ShapeError(f"values: expected shape {expected}, got {out.shape}")
    return out


def row_sparse(values: Tensor, index: Any, shape: tuple[int, ...]) -> SparseTensor:
    """A cotangent of a dense (n, *D) tensor that is zero but in the rows `index` (e,), where it
    is `values` (e, *D); repeated rows add up."""
    return wrap(values, Pattern.coo([index], shape[:1], check=False, copy=False))


class SomeRows(SparseTensor):
    """A dense cotangent given by some of its rows, because the others are zero: what indexing
    passes back. Rules take it as they take a row-sparse one; whoever else looks at it, the user
    included, gets it dense, and that is no event."""

    __slots__ = ()

    def _densify(self, op: str) -> Tensor:
        return ops.to_dense(self)

    def passed_on(self, result: Any) -> Any:
        """What a rule made of this cotangent, still standing for a dense one."""
        return some_rows(result.values, result.pattern) if type(result) is SparseTensor else result


def some_rows(values: Tensor, pattern: Pattern) -> SomeRows:
    """Rows `values` (e, *D) of a dense cotangent at a pattern (n,), the others zero."""
    out = SomeRows.__new__(SomeRows)
    out.values, out.pattern = values, pattern
    return out


from sparsegrad import ops  # noqa: E402  (ops and tensors are the one import cycle)
