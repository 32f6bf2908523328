"""Operators and methods that dense and sparse tensors share; each calls the op of its name."""

from __future__ import annotations

from typing import Any

from sparsegrad import ufuncs
from sparsegrad.methods import SharedMethods

__all__ = ["Operators"]


class Operators(SharedMethods):
    """Arithmetic of tensors."""

    __slots__ = ()

    __hash__ = object.__hash__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return ufuncs.call(ufunc, method, inputs, options)

    def __add__(self, other: Any) -> Any:
        return add_p.binary(self, other)

    def __radd__(self, other: Any) -> Any:
        return add_p.binary(other, self)

    def __sub__(self, other: Any) -> Any:
        return sub_p.binary(self, other)

    def __rsub__(self, other: Any) -> Any:
        return sub_p.binary(other, self)

    def __mul__(self, other: Any) -> Any:
        return mul_p.binary(self, other)

    def __rmul__(self, other: Any) -> Any:
        return mul_p.binary(other, self)

    def __truediv__(self, other: Any) -> Any:
        return div_p.binary(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return div_p.binary(other, self)

    def __pow__(self, other: Any) -> Any:
        return ops.elementwise.pow_p(self, other)

    def __rpow__(self, other: Any) -> Any:
        return ops.elementwise.pow_p(other, self)

    def __neg__(self) -> Any:
        return neg_p.unary(self)

    def __abs__(self) -> Any:
        return ops.elementwise.abs_p(self)

    def __mod__(self, other: Any) -> Any:
        return ops.remainder(self, other)

    def __rmod__(self, other: Any) -> Any:
        return ops.remainder(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return ops.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return ops.floor_divide(other, self)

    def __and__(self, other: Any) -> Any:
        return ops.bitwise_and(self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return ops.bitwise_or(self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Any:
        return ops.bitwise_xor(self, other)

    __rxor__ = __xor__

    def __invert__(self) -> Any:
        return ops.bitwise_not(self)

    def __eq__(self, other: Any) -> Any:
        return ops.comparisons.eq_p(self, other)

    def __ne__(self, other: Any) -> Any:
        return ops.comparisons.ne_p(self, other)

    def __lt__(self, other: Any) -> Any:
        return ops.comparisons.lt_p(self, other)

    def __le__(self, other: Any) -> Any:
        return ops.comparisons.le_p(self, other)

    def __gt__(self, other: Any) -> Any:
        return ops.comparisons.gt_p(self, other)

    def __ge__(self, other: Any) -> Any:
        return ops.comparisons.ge_p(self, other)

    @property
    def is_sparse(self) -> bool:
        """Whether this is a SparseTensor."""
        return bool(getattr(self, "_is_sparse", False))

    def __matmul__(self, other: Any) -> Any:
        return ops.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return ops.matmul(other, self)

    def neg(self) -> Any:
        """-self."""
        return -self

    def pow(self, exponent: Any) -> Any:
        """self ** exponent."""
        return self**exponent

    def matmul(self, other: Any) -> Any:
        """self @ other."""
        return self @ other

    def mm(self, other: Any) -> Any:
        """self @ other, two matrices; see `sg.mm`."""
        return ops.mm(self, other)

    def mv(self, other: Any) -> Any:
        """self @ other, a matrix and a vector; see `sg.mv`."""
        return ops.mv(self, other)

    def bmm(self, other: Any) -> Any:
        """self @ other, two batches of matrices; see `sg.bmm`."""
        return ops.bmm(self, other)

    def dot(self, other: Any) -> Any:
        """self @ other, SciPy's name."""
        return self @ other

    def addmm(self, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        """beta * self + alpha * (a @ b); see `sg.addmm`."""
        return ops.addmm(self, a, b, beta=beta, alpha=alpha)

    def abs(self) -> Any:
        """Elementwise absolute value."""
        return ops.abs(self)

    def sqrt(self) -> Any:
        """Elementwise square root."""
        return ops.sqrt(self)

    def tanh(self) -> Any:
        """Elementwise hyperbolic tangent."""
        return ops.tanh(self)

    def relu(self) -> Any:
        """Elementwise max(x, 0)."""
        return ops.relu(self)

    def reshape(self, *shape: Any) -> Any:
        """The same elements in another shape; see `sg.reshape`."""
        return ops.reshape(self, unpack(shape))

    view = reshape

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        """Dimensions from `start_dim` to `end_dim` made one; see `sg.flatten`."""
        return ops.flatten(self, start_dim, end_dim)

    def permute(self, *dims: Any) -> Any:
        """Dimensions in another order."""
        return ops.permute(self, unpack(dims))

    def expand(self, *shape: Any) -> Any:
        """Size-1 dimensions repeated; -1 keeps a size; see `sg.expand`."""
        return ops.expand(self, unpack(shape))

    def index_select(self, dim: int, index: Any) -> Any:
        """Slices along `dim` by integer index; see `sg.index_select`."""
        return ops.index_select(self, dim, index)

    def sparse_mask(self, pattern: Any) -> Any:
        """The elements at the entries of a pattern; see `sg.sparse_mask`."""
        return ops.sparse_mask(self, pattern)

    def transpose(self, dim0: int, dim1: int) -> Any:
        """Two dimensions swapped."""
        return ops.transpose(self, dim0, dim1)

    def astype(self, dtype: Any) -> Any:
        """In another dtype; see `sg.cast`."""
        return ops.cast(self, dtype)

    def half(self) -> Any:
        """In float16."""
        return ops.cast(self, "float16")

    def bfloat16(self) -> Any:
        """In bfloat16 (extra `bf16`)."""
        return ops.cast(self, "bfloat16")

    def float(self) -> Any:
        """In float32."""
        return ops.cast(self, "float32")

    def double(self) -> Any:
        """In float64."""
        return ops.cast(self, "float64")

    def clone(self) -> Any:
        """A copy, recorded."""
        return ops.clone(self)


def unpack(sizes: tuple[Any, ...]) -> Any:
    """Sizes given one by one, or as one sequence."""
    return sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes


from sparsegrad import ops  # noqa: E402  (ops and tensors are the one import cycle)
from sparsegrad.ops.elementwise import add_p, div_p, mul_p, neg_p, sub_p  # noqa: E402
