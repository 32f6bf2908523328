"""Parameters: leaf tensors that a Module finds by itself."""

from __future__ import annotations

from typing import Any

from sparsegrad.errors import GraphError, PatternError
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.tensor import Tensor

__all__ = ["Parameter", "SparseParameter"]


class _ParameterType(type):
    """A sparse parameter cannot also inherit from Tensor, but it is a Parameter."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or (
            cls is Parameter and isinstance(instance, SparseParameter)
        )


class Parameter(Tensor, metaclass=_ParameterType):
    """A leaf tensor of a Module, of the shape of `data`; results of ops on it are plain tensors.

    data: Tensor, array or nested list; memory is shared where it can be written. A SparseTensor
        gives a `SparseParameter`, of which `isinstance(p, Parameter)` holds too.
    requires_grad: whether it is trained.

    Raises GraphError for the result of an op, and PatternError for a SparseTensor that is not
    coalesced: the update of a duplicate would not be that of its entry.

    >>> import sparsegrad as sg
    >>> sg.nn.Parameter([1.0, 2.0])
    tensor([1., 2.], requires_grad=True)
    >>> sg.nn.Parameter(sg.coo([[0], [1]], [3.0], (2, 2)))
    SparseTensor(shape=(2, 2), nnz=1, density=0.25, format='coo', dtype=float32, device='cpu',
                 requires_grad=True, (0, 1): 3.)
    """

    __slots__ = ()

    # A stand-in has to be chosen before __init__ runs, which Python then skips for it.
    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Any:
        if isinstance(data, SparseTensor):
            return SparseParameter(data, requires_grad)
        return super().__new__(cls)

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__(_own(data), requires_grad=requires_grad)


class SparseParameter(SparseTensor):
    """A SparseTensor that a Module finds: its values are the parameter, its pattern is constant.

    A: a coalesced SparseTensor without history, of any shape and format.

    Raises GraphError for the result of an op, PatternError for a tensor that is not coalesced.

    >>> import sparsegrad as sg
    >>> W = sg.nn.SparseParameter(sg.sparse_eye(3))
    >>> W.requires_grad, W.nnz
    (True, 3)
    """

    __slots__ = ()

    def __init__(self, A: SparseTensor, requires_grad: bool = True) -> None:
        if not A.is_coalesced:
            raise PatternError(
                f"Parameter: needs a coalesced SparseTensor, each entry once and in order; got "
                f"shape {A.shape} with nnz {A.nnz}. Call .coalesce() first"
            )
        self.pattern = A.pattern
        self.values = Parameter(A.values, requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseParameter:
        out = _rebuild(self.values.__deepcopy__(memo), self.pattern)
        memo[id(self)] = out
        return out

    def __reduce__(self) -> Any:
        return _rebuild, (self.values, self.pattern)


def _rebuild(values: Tensor, pattern: Any) -> SparseParameter:
    out = SparseParameter.__new__(SparseParameter)
    out.values, out.pattern = values, pattern
    return out


def _own(data: Any) -> Any:
    """`data` as something a step of an optimizer may write into."""
    if isinstance(data, Tensor) and not data.is_leaf:
        raise GraphError(
            "Parameter: got the result of an op; use .detach() for one without history"
        )
    array = Tensor(data).data
    writable = all(s != 0 or n < 2 for n, s in zip(array.shape, array.strides, strict=True))
    flags = getattr(array, "flags", None)
    return array if writable and getattr(flags, "writeable", True) else array.copy()
