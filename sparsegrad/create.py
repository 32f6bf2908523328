"""Making tensors: dense and sparse, from numbers, arrays, SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegrad import backends, dtypes, memory
from sparsegrad.backends import dlpack
from sparsegrad.backends.quiet import quiet
from sparsegrad.errors import ShapeError, memory_for, named
from sparsegrad.ops.shape import as_argument
from sparsegrad.ops.sparse_structure import to_sparse
from sparsegrad.sparse_tensor import SparseTensor, compressed, wrap
from sparsegrad.structure import Pattern
from sparsegrad.tensor import Tensor, as_tensor

__all__ = [
    "arange",
    "as_tensor",
    "coo",
    "csc",
    "csr",
    "empty",
    "empty_like",
    "ensure_tensor",
    "eye",
    "from_dense",
    "from_dlpack",
    "from_numpy",
    "from_scipy",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "sparse_eye",
    "tensor",
    "zeros",
    "zeros_like",
]


# ---- dense -------------------------------------------------------------------------------------
def tensor(data: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """A leaf tensor with a copy of `data` (array, number, nested list, Tensor).

    Python floats take the default dtype (float32), integers int64; arrays keep theirs.

    >>> import sparsegrad as sg
    >>> sg.tensor([[1, 2], [3, 4]], dtype=sg.float32, requires_grad=True)
    tensor([[1., 2.],
            [3., 4.]], requires_grad=True)
    """
    made = Tensor(data, dtype, device=device)
    return Tensor(memory.copied(made.data), requires_grad=requires_grad)


def ensure_tensor(data: Any, dtype: Any = None) -> Tensor:
    """`data` itself if it is a Tensor (of that dtype), else a Tensor that shares its memory.

    >>> import sparsegrad as sg
    >>> x = sg.ones(2)
    >>> sg.ensure_tensor(x) is x
    True
    """
    return as_tensor(data, dtype)


def from_numpy(array: np.ndarray) -> Tensor:
    """A Tensor that shares the memory of a NumPy array.

    >>> import sparsegrad as sg
    >>> import numpy as np
    >>> sg.from_numpy(np.ones(2))
    tensor([1., 1.], dtype=float64)
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: expected a numpy.ndarray, got {type(array).__name__}")
    return Tensor(array)


def as_size(op: str, size: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given as integers or as one tuple; ShapeError names the op."""
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = tuple(size[0])
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in size):
        raise ShapeError(f"{op}: sizes must be non-negative integers, got {size}")
    return tuple(int(n) for n in size)


def float_dtype(dtype: Any) -> np.dtype:
    """A dtype, by default the default one."""
    return dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)


def _new(
    op: str, make: str, shape: tuple[int, ...], dtype: Any, requires_grad: bool, device: Any
) -> Tensor:
    """What the array module's `make` gives; OutOfMemoryError with the bytes where it cannot."""
    xp = backends.for_device(device or "cpu").xp
    made = getattr(xp, make)
    with memory_for(op, shape, dtype):
        if made is np.empty or made is np.zeros:  # of weights, whose rows are read often
            array = memory.on_lines(made, shape, dtype)
        else:
            array = made(shape, dtype)
    return Tensor(array, requires_grad=requires_grad)


def zeros(*size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Zeros of shape `size`, given as integers or one tuple.

    >>> import sparsegrad as sg
    >>> sg.zeros(3)
    tensor([0., 0., 0.])
    """
    return _new("zeros", "zeros", as_size("zeros", size), float_dtype(dtype), requires_grad, device)


def ones(*size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Ones of shape `size`, given as integers or one tuple.

    >>> import sparsegrad as sg
    >>> sg.ones(2, 1)
    tensor([[1.],
            [1.]])
    """
    return _new("ones", "ones", as_size("ones", size), float_dtype(dtype), requires_grad, device)


def full(
    size: Any,
    fill_value: Any,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
) -> Tensor:
    """A tensor of shape `size` with one value everywhere.

    >>> import sparsegrad as sg
    >>> sg.full((2,), 7.0)
    tensor([7., 7.])
    """
    value = Tensor(fill_value, dtype, device="cpu").data
    shape = as_size("full", (size,) if isinstance(size, int) else tuple(size))
    out = _new("full", "empty", shape, value.dtype, False, device)
    out.data[...] = value.item()
    return out.requires_grad_(requires_grad)


def empty(*size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """A tensor of shape `size` with whatever its memory holds.

    >>> import sparsegrad as sg
    >>> sg.empty(2, 3).shape
    (2, 3)
    """
    return _new("empty", "empty", as_size("empty", size), float_dtype(dtype), requires_grad, device)


def zeros_like(x: Any, dtype: Any = None, requires_grad: bool = False) -> Any:
    """Zeros of the shape and dtype of `x`; for a SparseTensor explicit zeros on its pattern.

    >>> import sparsegrad as sg
    >>> sg.zeros_like(sg.ones(2))
    tensor([0., 0.])
    """
    return _constant_like(as_argument("zeros_like", x), 0, dtype, requires_grad)


def ones_like(x: Any, dtype: Any = None, requires_grad: bool = False) -> Any:
    """Ones of the shape and dtype of `x`; for a SparseTensor ones on its pattern: the upstream
    gradient to give a sparse output.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0], [1]], [5.0], (2, 2), requires_grad=True)
    >>> (A * 3).backward(sg.ones_like(A))
    >>> A.grad.values
    tensor([3.])
    """
    return _constant_like(as_argument("ones_like", x), 1, dtype, requires_grad)


def _constant_like(x: Any, value: int, dtype: Any, requires_grad: bool) -> Any:
    if isinstance(x, SparseTensor):
        return wrap(_constant_like(x.values, value, dtype, requires_grad), x.pattern)
    dtype = x.dtype if dtype is None else dtypes.as_dtype(dtype)
    xp = backends.for_array(x.data).xp if isinstance(x, Tensor) else np
    with quiet():
        return Tensor(xp.full(x.shape, value, dtype), requires_grad=requires_grad)


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
) -> Tensor:
    """Numbers from `start` (0 if only one is given) up to, without, `end`, `step` apart.

    >>> import sparsegrad as sg
    >>> sg.arange(3), sg.arange(1, 2, 0.5)
    (tensor([0, 1, 2]), tensor([1. , 1.5]))
    """
    if end is None:
        start, end = 0, start
    if step == 0:
        raise ValueError("arange: step must not be 0")
    numbers = np.arange(start, end, step)
    if dtype is None and numbers.dtype.kind == "f":
        dtype = dtypes.get_default_dtype()
    return Tensor(numbers, dtype, requires_grad=requires_grad, device=device)


def eye(
    n: int,
    m: int | None = None,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
) -> Tensor:
    """A dense (n, m) matrix (m = n by default) with ones on the diagonal, as in PyTorch; the sparse
    one is `sg.sparse_eye`.

    >>> import sparsegrad as sg
    >>> sg.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    size = as_size("eye", (n, n if m is None else m))
    xp = backends.for_device(device or "cpu").xp
    return Tensor(xp.eye(*size, dtype=float_dtype(dtype)), requires_grad=requires_grad)


# ---- dense: spaced, like another ---------------------------------------------------------
def linspace(
    start: float,
    end: float,
    steps: int,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
) -> Tensor:
    """`steps` numbers from `start` to `end`, both included, evenly spaced: shape (steps,).

    >>> import sparsegrad as sg
    >>> sg.linspace(0, 1, 3)
    tensor([0. , 0.5, 1. ])
    """
    (count,) = as_size("linspace", (steps,))
    return Tensor(np.linspace(start, end, count), float_dtype(dtype), requires_grad, device)


def logspace(
    start: float,
    end: float,
    steps: int,
    base: float = 10.0,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
) -> Tensor:
    """base ** linspace(start, end, steps): shape (steps,).

    >>> import sparsegrad as sg
    >>> sg.logspace(0, 2, 3)
    tensor([  1.,  10., 100.])
    """
    (count,) = as_size("logspace", (steps,))
    with quiet():
        numbers = np.logspace(start, end, count, base=base)
    return Tensor(numbers, float_dtype(dtype), requires_grad, device)


def empty_like(x: Any, dtype: Any = None, requires_grad: bool = False) -> Any:
    """A tensor of the shape, dtype and device of `x` with whatever its memory holds; for a
    SparseTensor such values on its pattern.

    >>> import sparsegrad as sg
    >>> sg.empty_like(sg.ones(2, 3)).shape
    (2, 3)
    """
    return made_like("empty_like", x, dtype, requires_grad, empty)


def full_like(x: Any, fill_value: Any, dtype: Any = None, requires_grad: bool = False) -> Any:
    """One value everywhere, in the shape, dtype and device of `x`; for a SparseTensor on its
    pattern.

    >>> import sparsegrad as sg
    >>> sg.full_like(sg.ones(2), 7)
    tensor([7., 7.])
    """
    return _constant_like(x, fill_value, dtype, requires_grad)


def made_like(op: str, x: Any, dtype: Any, requires_grad: bool, make: Any) -> Any:
    x = x if isinstance(x, SparseTensor) else as_tensor(x)
    if isinstance(x, SparseTensor):
        return wrap(made_like(op, x.values, dtype, requires_grad, make), x.pattern)
    dtype = x.dtype if dtype is None else dtype
    return make(x.shape, dtype=dtype, requires_grad=requires_grad, device=x.device)


def from_dlpack(x: Any) -> Tensor:
    """A Tensor that shares the memory of another library's array (PyTorch, JAX, CuPy, ...) by the
    DLPack protocol, on its device. It has no gradient there or here.

    >>> import sparsegrad as sg
    >>> import numpy as np
    >>> array = np.zeros(2)
    >>> x = sg.from_dlpack(array)
    >>> array[0] = 5
    >>> x
    tensor([5., 0.], dtype=float64)
    """
    if not hasattr(x, "__dlpack_device__"):
        raise TypeError(f"from_dlpack: {type(x).__name__} does not speak DLPack")
    on_gpu = int(x.__dlpack_device__()[0]) == 2  # kDLCUDA
    if not on_gpu:
        return Tensor(dlpack.shared(x))
    return Tensor(backends.for_device("cuda").xp.from_dlpack(x))


# ---- sparse ------------------------------------------------------------------------------------
def sparse_eye(
    n: int,
    m: int | None = None,
    format: Any = "coo",
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
) -> SparseTensor:
    """A sparse (n, m) matrix (m = n by default) with ones on the diagonal.

    >>> import sparsegrad as sg
    >>> sg.sparse_eye(2, 3, "csr").to_dense()
    tensor([[1., 0., 0.],
            [0., 1., 0.]])
    """
    shape = as_size("sparse_eye", (n, n if m is None else m))
    ids = np.arange(min(shape))
    pattern = Pattern.coo([ids, ids], shape, check=False).to(format)[0]
    if device is not None:
        pattern = pattern.to_device(device)
    return wrap(ones(ids.size, dtype=dtype, requires_grad=requires_grad, device=device), pattern)


@named
def coo(
    indices: Any, values: Any, shape: Any, requires_grad: bool = False, **options: Any
) -> SparseTensor:
    """A COO tensor: indices (sparse dims, nnz), values (nnz, *dense) or None for ones, shape.

    Any number of sparse dimensions; `dtype`, `device`, `check`, `copy` as in `SparseTensor`.

    >>> import sparsegrad as sg
    >>> sg.coo([[0, 1], [2, 0]], [1.0, 2.0], (2, 3)).to_dense()
    tensor([[0., 0., 1.],
            [2., 0., 0.]])
    """
    return SparseTensor(indices, values, shape, requires_grad, **options)


@named
def csr(
    indptr: Any, indices: Any, values: Any, shape: Any, requires_grad: bool = False, **options: Any
) -> SparseTensor:
    """A CSR matrix: offsets of the rows (m + 1,), columns (nnz,), values (nnz, *dense) or None.

    Options `dtype`, `device`, `check`, `copy` as in `SparseTensor`.

    >>> import sparsegrad as sg
    >>> sg.csr([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3)).to_dense()
    tensor([[1., 0., 2.],
            [0., 3., 0.]])
    """
    return compressed("csr", indptr, indices, values, shape, requires_grad, **options)


@named
def csc(
    indptr: Any, indices: Any, values: Any, shape: Any, requires_grad: bool = False, **options: Any
) -> SparseTensor:
    """A CSC matrix: offsets of the columns (n + 1,), rows (nnz,), values (nnz, *dense) or None.

    >>> import sparsegrad as sg
    >>> sg.csc([0, 1, 2], [1, 0], [2.0, 3.0], (2, 2)).to_dense()
    tensor([[0., 3.],
            [2., 0.]])
    """
    return compressed("csc", indptr, indices, values, shape, requires_grad, **options)


def from_dense(x: Any, format: str = "coo", requires_grad: bool = False) -> SparseTensor:
    """The nonzero elements of an array or tensor of the same shape as a leaf SparseTensor.

    >>> import sparsegrad as sg
    >>> sg.from_dense([[0.0, 2.0], [0.0, 0.0]]).nnz
    1
    """
    out = to_sparse(as_tensor(x).detach(), format)
    return wrap(Tensor(out.values.data.copy(), requires_grad=requires_grad), out.pattern)


def from_scipy(matrix: Any, requires_grad: bool = False) -> SparseTensor:
    """A scipy.sparse matrix or array as a SparseTensor of the same shape and format (formats other
    than coo, csr and csc become csr). Copies.

    >>> import sparsegrad as sg
    >>> import scipy.sparse
    >>> sg.from_scipy(scipy.sparse.eye_array(3, format="csr"))
    SparseTensor(shape=(3, 3), nnz=3, density=0.333, format='csr', dtype=float64, device='cpu',
                 (0, 0): 1., (1, 1): 1., (2, 2): 1.)
    """
    fmt = getattr(matrix, "format", None)
    if not hasattr(matrix, "tocsr"):
        raise TypeError(f"from_scipy: expected a scipy.sparse array, got {type(matrix).__name__}")
    if fmt == "coo":
        coords = getattr(matrix, "coords", None) or (matrix.row, matrix.col)
        return coo(list(coords), matrix.data, matrix.shape, requires_grad)
    if fmt not in ("csr", "csc"):
        matrix, fmt = matrix.tocsr(), "csr"
    make = csr if fmt == "csr" else csc
    return make(matrix.indptr, matrix.indices, matrix.data, matrix.shape, requires_grad)
