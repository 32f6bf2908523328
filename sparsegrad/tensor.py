"""Tensor: a dense array that remembers how it was made."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sparsegrad import backends, display, dtypes
from sparsegrad.backends.quiet import quiet
from sparsegrad.device import Device, is_device, wanted
from sparsegrad.engine import differentiate
from sparsegrad.engine import primitive as _primitive
from sparsegrad.engine.graph import Node, Version, next_seq
from sparsegrad.engine.mode import recording
from sparsegrad.errors import DtypeError, GraphError, ShapeError
from sparsegrad.methods import DenseMethods
from sparsegrad.operators import Operators

__all__ = ["RemovableHandle", "Tensor", "as_tensor"]

_hook_ids = itertools.count()


class RemovableHandle:
    """Takes a hook off again: `handle.remove()`, or leaving a `with` block."""

    def __init__(self, hooks: dict[int, Any], key: int) -> None:
        self._hooks, self._key = hooks, key

    def remove(self) -> None:
        """Take the hook off; more than once does nothing more."""
        self._hooks.pop(self._key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class Tensor(DenseMethods, Operators):
    """A dense array with a gradient.

    `data` is the raw array; `requires_grad`, `grad`, `grad_fn`, `backward` are PyTorch's.

    data: array, number or nested list. Arrays are shared, not copied (`sg.tensor` copies).
    requires_grad: record what is done with it; floating-point dtypes only (DtypeError).

    >>> import sparsegrad as sg
    >>> x = sg.Tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4.])
    """

    __slots__ = (
        "__weakref__",
        "_grad",
        "_hooks",
        "_index",
        "_node",
        "_requires_grad",
        "_version",
        "data",
    )

    __hash__ = object.__hash__
    _is_sparse = False

    _node: Node | None
    _version: Version | None
    _grad: Any
    _hooks: dict[str, dict[int, Any]] | None

    def __init__(
        self, data: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None
    ) -> None:
        self.data = to_array(data, dtype, device)
        self._node, self._index, self._version, self._grad, self._hooks = None, 0, None, None, None
        if isinstance(data, Tensor) and data.data is self.data:
            self._version = data._counter()
        self._requires_grad = False
        if requires_grad:
            self.requires_grad = True

    # ---- what it is ----------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return self.data.shape

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the elements."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.data.ndim

    @property
    def device(self) -> Device:
        """Where the array lives."""
        return backends.device_of(self.data)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.data.nbytes

    def dim(self) -> int:
        """Number of dimensions."""
        return self.data.ndim

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        return self.data.shape if dim is None else self.data.shape[dim]

    def numel(self) -> int:
        """Number of elements."""
        return self.data.size

    # ---- autograd ------------------------------------------------------------------------------
    @property
    def requires_grad(self) -> bool:
        """Whether ops on this tensor are recorded."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and dtypes.kind(self.data.dtype) != "f":
            raise DtypeError(
                f"requires_grad: only floating-point tensors have gradients, got {self.dtype}"
            )
        if not value and self._node is not None:
            raise GraphError(
                f"requires_grad: this tensor is the result of {self._node.name}; "
                "use .detach() for one without history"
            )
        self._requires_grad = bool(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set `requires_grad` and return the tensor."""
        self.requires_grad = requires_grad
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether it was made by the user rather than by a recorded op."""
        return self._node is None

    @property
    def grad_fn(self) -> Node | None:
        """The recorded op it is a result of."""
        return self._node

    @property
    def grad(self) -> Any:
        """Sum of the gradients of all backward passes: a Tensor, a SparseTensor, or None.

        Row-sparse where the tensor was only gathered from; see docs/gradients.md.
        """
        held = self._grad
        return held if held is None or not hasattr(held, "merged") else held.merged()

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            if not isinstance(value, Tensor) and not getattr(value, "_is_sparse", False):
                raise TypeError(f"grad: expected a tensor or None, got {type(value).__name__}")
            if tuple(value.shape) != self.shape:
                raise ShapeError(f"grad: expected shape {self.shape}, got {tuple(value.shape)}")
        self._grad = value

    @property
    def retains_grad(self) -> bool:
        """Whether a non-leaf keeps its gradient."""
        retains = self._node.retains if self._node is not None else None
        return retains is not None and self._index in retains

    def retain_grad(self) -> None:
        """Keep the gradient of this result of an op; nothing to do for a leaf."""
        if not self._requires_grad:
            raise GraphError("retain_grad: the tensor does not require a gradient")
        if self._node is not None:
            self._node.retains = self._node.retains or {}
            self._node.retains[self._index] = weakref.ref(self)

    def register_hook(self, hook: Callable[[Any], Any]) -> RemovableHandle:
        """Call `hook(grad)` whenever the gradient of this tensor is complete; what it returns
        (if not None) takes the gradient's place."""
        if not self._requires_grad:
            raise GraphError("register_hook: the tensor does not require a gradient")
        if self._node is None:
            hooks = self._hook_table()["tensor"]
        else:
            self._node.hooks = self._node.hooks or {}
            hooks = self._node.hooks.setdefault(self._index, {})
        key = next(_hook_ids)
        hooks[key] = hook
        return RemovableHandle(hooks, key)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], None]) -> RemovableHandle:
        """Call `hook(tensor)` after `.grad` of this leaf was updated by a backward pass."""
        if self._node is not None or not self._requires_grad:
            raise GraphError("register_post_accumulate_grad_hook: only for leaves with gradients")
        hooks = self._hook_table()["post"]
        key = next(_hook_ids)
        hooks[key] = hook
        return RemovableHandle(hooks, key)

    def _hook_table(self) -> dict[str, dict[int, Any]]:
        if self._hooks is None:
            self._hooks = {"tensor": {}, "post": {}}
        return self._hooks

    def _leaf_hooks(self) -> list[Callable[[Any], Any]]:
        return list(self._hooks["tensor"].values()) if self._hooks else []

    def _post_hooks(self) -> list[Callable[[Any], None]]:
        return list(self._hooks["post"].values()) if self._hooks else []

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Add the gradient of this tensor to `.grad` of every leaf it depends on.

        gradient: upstream gradient of this tensor's shape (Tensor or SparseTensor); may be left
            out for a scalar.
        retain_graph: keep what rules saved, to differentiate again (default: `create_graph`).
        create_graph: record the backward pass itself, for higher derivatives.
        inputs: tensors to accumulate into, instead of all leaves.

        Raises GraphError for a tensor without history, a missing gradient, a freed graph, or a
        saved tensor that was changed in place; `.grad` is then left as it was.
        """
        differentiate.backward(self, gradient, retain_graph, create_graph, inputs)

    def detach(self) -> Tensor:
        """The same data without history; in-place counters are shared."""
        out = _make(self.data, None, 0)
        out._version = self._counter()
        return out

    # ---- out of the engine ---------------------------------------------------------------------
    def numpy(self, *, force: bool = False) -> np.ndarray:
        """The array in host memory, shared where possible. GraphError if it requires a gradient:
        use `.detach().numpy()`, or `force`, which does that."""
        if self._requires_grad and not force:
            raise GraphError("numpy: the tensor requires a gradient; use .detach().numpy()")
        return self._on_host()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def item(self) -> Any:
        """The only element as a Python number."""
        if self.data.size != 1:
            raise ShapeError(f"item: needs exactly one element, got shape {self.shape}")
        return self._on_host().item()

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return self._on_host().tolist()

    def _on_host(self) -> np.ndarray:
        return backends.for_array(self.data).to_host(self.data)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.data.dtype.kind not in "iub":
            raise TypeError(f"only integer tensors can be an index, got {self.dtype}")
        return int(self.item())

    def __len__(self) -> int:
        if not self.data.ndim:
            raise TypeError("len: a zero-dimensional tensor has no length")
        return len(self.data)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return bool((self.data == (value.data if isinstance(value, Tensor) else value)).any())

    def __format__(self, spec: str) -> str:
        """One element is formatted as the number it is: f"{loss:.3f}"."""
        return format(self.item(), spec) if spec and not self.ndim else super().__format__(spec)

    def __repr__(self) -> str:
        text = display.as_string(self._on_host(), separator=", ", prefix="tensor(")
        notes = ""
        if self.data.dtype not in (dtypes.get_default_dtype(), dtypes.int64, dtypes.bool_):
            notes += f", dtype={self.data.dtype}"
        if not isinstance(self.data, np.ndarray):
            notes += f", device='{self.device}'"
        if self._node is not None:
            notes += f", grad_fn={self._node!r}"
        elif self._requires_grad:
            notes += ", requires_grad=True"
        return f"tensor({text}{notes})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._node is not None:
            raise GraphError("pickle: only leaves can be copied or pickled; use .detach()")
        # In host memory, whatever the device: who reads it may have no GPU.
        return _rebuild, (type(self), self._on_host(), self._requires_grad)

    def __copy__(self) -> Tensor:
        if self._node is not None:
            raise GraphError("copy: only leaves can be copied; use .detach() or .clone()")
        out = _rebuild(type(self), self.data, self._requires_grad)
        out._version = self._counter()
        return out

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self._node is not None:
            raise GraphError("deepcopy: only leaves can be copied; use .detach().clone()")
        out = _rebuild(type(self), self.data.copy(), self._requires_grad)
        memo[id(self)] = out
        grad = self.grad
        out._grad = None if grad is None else grad.detach().clone()
        return out

    # ---- in place ------------------------------------------------------------------------------
    def _writable(self, op: str, instead: str) -> None:
        if self._requires_grad and recording.get():
            raise GraphError(
                f"{op}: the tensor requires a gradient and cannot be changed in place; "
                f"use {instead}, or sg.no_grad() for an update that is not recorded"
            )

    def _write(self, op: str, instead: str, index: Any, value: Any) -> Tensor:
        self._writable(op, instead)
        if isinstance(value, Tensor):
            if value._requires_grad and recording.get():
                raise GraphError(f"{op}: the value requires a gradient; use {instead}")
            value = value.data
        if backends.is_array(value):  # from another device, as in PyTorch's copy_
            value = _moved(value, backends.for_array(self.data))
        try:
            with quiet():
                self.data[index] = value
        except (ValueError, TypeError) as error:
            raise ShapeError(f"{op}: {error}") from None
        self._bump()
        return self

    def _counter(self) -> Version:
        """The in-place counter of the storage; a node that may have saved it learns of it."""
        if self._version is None:
            self._version = Version()
            if self._node is not None:
                node = self._node
                node.out_versions = {**(node.out_versions or {}), self._index: self._version}
        return self._version

    def _bump(self) -> None:
        """Count a change of the storage."""
        self._counter().n = next_seq()

    def _update(self, op: str, fn: Any, other: Any) -> Tensor:
        self._writable(f"{op}_", f"sg.{op}")
        with _no_recording():
            result = fn(self, other)
        if result.shape != self.shape:
            raise ShapeError(f"{op}_: result has shape {result.shape}, tensor {self.shape}")
        if not np.can_cast(result.dtype, self.dtype, "same_kind"):
            raise DtypeError(f"{op}_: a {result.dtype} result does not fit a {self.dtype} tensor")
        return self._write(f"{op}_", f"sg.{op}", ..., result)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._write("t[i] = v", "sg.index_put or sg.where", ops.index.raw_index(index), value)

    def add_(self, other: Any, alpha: float = 1) -> Tensor:
        """In place: self + alpha * other."""
        return self._update("add", ops.elementwise.add_p, other if alpha == 1 else other * alpha)

    def sub_(self, other: Any) -> Tensor:
        """In place: self - other."""
        return self._update("sub", ops.elementwise.sub_p, other)

    def mul_(self, other: Any) -> Tensor:
        """In place: self * other."""
        return self._update("mul", ops.elementwise.mul_p, other)

    def div_(self, other: Any) -> Tensor:
        """In place: self / other."""
        return self._update("div", ops.elementwise.div_p, other)

    def copy_(self, other: Any) -> Tensor:
        """In place: the elements of `other`, broadcast to this shape."""
        return self._write("copy_", "the other tensor itself", ..., other)

    def fill_(self, value: float) -> Tensor:
        """In place: every element becomes `value`."""
        return self._write("fill_", "sg.full", ..., value)

    def zero_(self) -> Tensor:
        """In place: every element becomes 0."""
        return self._write("zero_", "sg.zeros", ..., 0)

    # ---- operators -----------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        return ops.index.getitem(self, index)

    # ---- ops as methods ------------------------------------------------------------------------

    def exp(self) -> Any:
        """Elementwise exponential."""
        return ops.exp(self)

    def log(self) -> Any:
        """Elementwise natural logarithm."""
        return ops.log(self)

    def sigmoid(self) -> Any:
        """Elementwise logistic function."""
        return ops.sigmoid(self)

    def t(self) -> Any:
        """The transpose of a matrix."""
        return self.T

    @property
    def T(self) -> Any:
        """Dimensions in reverse order."""
        return ops.permute(self, tuple(range(self.ndim))[::-1])

    @property
    def mT(self) -> Any:
        """Last two dimensions swapped."""
        return ops.transpose(self, -2, -1)

    def take(self, index: Any, dim: int = 0, sparse_grad: bool = True) -> Any:
        """Rows (slices along `dim`) by integer index; see `sg.take`."""
        return ops.take(self, index, dim, sparse_grad)

    def to(
        self, *targets: Any, device: Any = None, dtype: Any = None, non_blocking: bool = False
    ) -> Any:
        """This tensor on another device ("cpu", "cuda", "cuda:1"), with another dtype, or both, or
        as another tensor has them; itself if it is so. The gradient goes back to where and what
        this tensor is. non_blocking: for code written for PyTorch; nothing depends on it."""
        out = self
        for target in wanted(targets, device, dtype):
            out = ops.to_device(out, target) if is_device(target) else ops.cast(out, target)
        return out

    def cpu(self) -> Any:
        """This tensor in host memory."""
        return self.to("cpu")

    def cuda(self, index: int | None = None) -> Any:
        """This tensor on a CUDA device, by default that of `sg.cuda.set_device`; DeviceError where
        there is none."""
        return self.to("cuda" if index is None else f"cuda:{index}")

    def to_sparse(self, format: str = "coo", dense_dims: int = 0) -> Any:
        """The nonzero entries as a SparseTensor; see `sg.to_sparse`."""
        return ops.to_sparse(self, format, dense_dims)


def _rebuild(cls: type[Tensor], data: np.ndarray, requires_grad: bool) -> Tensor:
    out = cls.__new__(cls)
    Tensor.__init__(out, data, requires_grad=requires_grad)
    return out


_new = Tensor.__new__


def _make(array: Any, node: Node | None, index: int) -> Tensor:
    """A tensor around an array that an op produced; every attribute set, nothing checked."""
    t = _new(Tensor)
    t.data = array
    t._requires_grad = node is not None
    t._node = node
    t._index = index
    t._version = t._grad = t._hooks = None
    return t


class _no_recording:
    def __enter__(self) -> None:
        self._token = recording.set(False)

    def __exit__(self, *exc: object) -> None:
        recording.reset(self._token)


def to_array(data: Any, dtype: Any = None, device: Any = None) -> Any:
    """`data` as an array with a dtype that tensors have: Python floats take the default dtype,
    Python integers int64. Copies only if it must. Without `device`, an array stays where it is."""
    if isinstance(data, Tensor):
        data = data.data
    elif isinstance(data, np.ndarray):
        data = np.asarray(data)  # no subclass: `*` of np.matrix is a matrix product
    elif isinstance(data, (list, tuple)) and _holds_tensors(data):
        data = _plain(data)
    if hasattr(data, "tocsr"):
        raise TypeError(f"tensor: expected an array or nested list, got {_named(data)}")
    plain = isinstance(data, (int, float, complex, list, tuple))
    try:
        if device is None and backends.is_array(data):
            array = data
        elif plain:
            array = np.asarray(data)  # cast before it is moved
        else:
            array = _moved(data, backends.for_device(device or "cpu"))
    except ValueError as error:
        raise ShapeError(f"tensor: {error}") from None
    dtype = _dtype_for(data, array) if dtype is None else dtypes.as_dtype(dtype)
    if array.dtype != dtype:
        with quiet():
            array = array.astype(dtype)
    return backends.for_device(device or "cpu").asarray(array) if plain else array


def _dtype_for(data: Any, array: Any) -> Any:
    """The dtype of a tensor of `data`, which NumPy made `array` of."""
    dtype = array.dtype
    if not hasattr(data, "dtype"):
        if dtype == np.complex128:
            dtype = dtypes.result_type(0j)
        elif dtype == np.float64 or array.size == 0:
            dtype = dtypes.get_default_dtype()
    try:
        return dtypes.as_dtype(dtype)
    except DtypeError:
        kind = type(data).__name__
        raise DtypeError(f"tensor: no tensor holds {kind} of dtype {dtype}") from None


def _moved(data: Any, be: backends.Backend) -> Any:
    if backends.is_array(data) and not isinstance(data, np.ndarray) and be.xp is np:
        data = backends.for_array(data).to_host(data)
    return be.asarray(data)


def _holds_tensors(data: Any) -> bool:
    return any(
        isinstance(x, Tensor) or (isinstance(x, (list, tuple)) and _holds_tensors(x)) for x in data
    )


def _plain(data: Any) -> Any:
    if isinstance(data, Tensor):
        host = data._on_host()
        return host.item() if data.ndim == 0 else host
    return [_plain(x) for x in data] if isinstance(data, (list, tuple)) else data


def as_tensor(data: Any, dtype: Any = None, device: Device | None = None) -> Tensor:
    """`data` as a Tensor: itself if it is one of that dtype, sharing memory with an array.

    device: where to put what is no tensor yet; a tensor stays where it is.

    >>> import sparsegrad as sg
    >>> sg.as_tensor([1, 2])
    tensor([1, 2])
    """
    if isinstance(data, Tensor):
        same = dtype is None or data.dtype == dtypes.as_dtype(dtype)
        return data if same else Tensor(data, dtype)
    return Tensor(data, dtype, device=device)


def _named(data: Any) -> str:
    """The type of an argument that cannot be converted, and what does that."""
    name = f"{type(data).__module__.partition('.')[0]}.{type(data).__name__}"
    hint = {"scipy": "; see sg.from_scipy", "torch": "; see sg.from_dlpack"}
    return name.removeprefix("builtins.") + hint.get(name.partition(".")[0], "")


def _convert(data: Any, op: str) -> Tensor:
    """An argument of an op that is not a tensor yet; TypeError names the op."""
    plain = isinstance(data, (np.generic, list, tuple, int, float, bool, complex))
    if plain or backends.is_array(data):
        return as_tensor(data)
    raise TypeError(
        f"{op.removesuffix('_p')}: expected a tensor, array or number, got {_named(data)}"
    )


_primitive.use_tensor_type(Tensor, _make, _convert)

from sparsegrad import ops  # noqa: E402  (ops and tensors are the one import cycle)
