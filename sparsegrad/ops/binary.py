"""Elementwise functions of two arguments: remainders, interpolation, logic on bools and bits."""

from __future__ import annotations

from typing import Any

from sparsegrad import dtypes
from sparsegrad.engine.primitive import primitive
from sparsegrad.errors import DensifyError
from sparsegrad.ops.elementwise import cast, div_p
from sparsegrad.ops.unary import floor_p, trunc_p

__all__ = [
    "allclose",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "equal",
    "floor_divide",
    "fmod",
    "isclose",
    "lerp",
    "logical_and",
    "logical_or",
    "logical_xor",
    "remainder",
]


# ---- quotients and remainders ------------------------------------------------------------------
@primitive
def floor_divide_p(be: Any, a: Any, b: Any) -> Any:
    return be.divided("floor_divide", a, b)


@primitive
def remainder_p(be: Any, a: Any, b: Any) -> Any:
    return be.divided("remainder", a, b)


remainder_p.defvjp(a=lambda g: g, b=lambda g, a, b: -(g * floor_p(div_p(a, b))))


@primitive
def fmod_p(be: Any, a: Any, b: Any) -> Any:
    return be.divided("fmod", a, b)


fmod_p.defvjp(a=lambda g: g, b=lambda g, a, b: -(g * trunc_p(div_p(a, b))))


# ---- logic (no gradient) -----------------------------------------------------------------------
@primitive
def logical_and_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.logical_and(a, b)


@primitive
def logical_or_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.logical_or(a, b)


@primitive
def logical_xor_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.logical_xor(a, b)


@primitive
def bitwise_and_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.bitwise_and(a, b)


@primitive
def bitwise_or_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.bitwise_or(a, b)


@primitive
def bitwise_xor_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.bitwise_xor(a, b)


@primitive
def bitwise_not_p(xp: Any, x: Any) -> Any:
    return xp.invert(x)


# ---- public names ------------------------------------------------------------------------------
def floor_divide(a: Any, b: Any) -> Any:
    """floor(a / b), broadcast, in the promoted dtype; not differentiable.

    >>> import sparsegrad as sg
    >>> sg.floor_divide(sg.tensor([-3, 3]), 2)
    tensor([-2,  1])
    """
    return floor_divide_p(a, b)


def quotient(a: Any, b: Any, rounding_mode: str) -> Any:
    """a / b rounded down ("floor") or towards 0 ("trunc"), in the promoted dtype."""
    if rounding_mode == "floor":
        return floor_divide_p(a, b)
    dtype = dtypes.result_type(a, b)
    if dtype.kind in "biu":  # exact where floating point is not
        down = floor_divide_p(a, b)
        return down + cast(logical_and_p(remainder_p(a, b) != 0, down < 0), dtype)
    return trunc_p(div_p(a, b))


def remainder(a: Any, b: Any) -> Any:
    """a - b * floor(a / b), broadcast: the sign of b, as `%` of Python.

    >>> import sparsegrad as sg
    >>> sg.remainder(sg.tensor([-3.0, 3.5]), 2)
    tensor([1. , 1.5])
    """
    return remainder_p(a, b)


def fmod(a: Any, b: Any) -> Any:
    """a - b * trunc(a / b), broadcast: the sign of a, as in C.

    >>> import sparsegrad as sg
    >>> sg.fmod(sg.tensor([-3.0, 3.5]), 2)
    tensor([-1. ,  1.5])
    """
    return fmod_p(a, b)


def lerp(start: Any, end: Any, weight: Any) -> Any:
    """start + weight * (end - start), broadcast; all three have gradients.

    >>> import sparsegrad as sg
    >>> sg.lerp(sg.tensor([0.0, 2.0]), sg.tensor([4.0, 4.0]), 0.25)
    tensor([1. , 2.5])
    """
    return start + weight * (end - start)


def logical_and(a: Any, b: Any) -> Any:
    """Whether both are nonzero, broadcast, as bool.

    >>> import sparsegrad as sg
    >>> sg.logical_and(sg.tensor([0.0, 2.0]), sg.tensor([True, True]))
    tensor([False,  True])
    """
    return logical_and_p(a, b)


def logical_or(a: Any, b: Any) -> Any:
    """Whether one or both are nonzero, broadcast, as bool.

    >>> import sparsegrad as sg
    >>> sg.logical_or(sg.tensor([0, 2]), sg.tensor([False, True]))
    tensor([False,  True])
    """
    return logical_or_p(a, b)


def logical_xor(a: Any, b: Any) -> Any:
    """Whether exactly one is nonzero, broadcast, as bool.

    >>> import sparsegrad as sg
    >>> sg.logical_xor(sg.tensor([0, 2]), sg.tensor([True, True]))
    tensor([ True, False])
    """
    return logical_xor_p(a, b)


def bitwise_and(a: Any, b: Any) -> Any:
    """a & b of bools or integers, broadcast; DtypeError for floating point.

    >>> import sparsegrad as sg
    >>> sg.bitwise_and(sg.tensor([6, 3]), 2)
    tensor([2, 2])
    """
    return bitwise_and_p(a, b)


def bitwise_or(a: Any, b: Any) -> Any:
    """a | b of bools or integers, broadcast; DtypeError for floating point.

    >>> import sparsegrad as sg
    >>> sg.bitwise_or(sg.tensor([6, 3]), 1)
    tensor([7, 3])
    """
    return bitwise_or_p(a, b)


def bitwise_xor(a: Any, b: Any) -> Any:
    """a ^ b of bools or integers, broadcast; DtypeError for floating point.

    >>> import sparsegrad as sg
    >>> sg.bitwise_xor(sg.tensor([True, False]), True)
    tensor([False,  True])
    """
    return bitwise_xor_p(a, b)


def bitwise_not(x: Any) -> Any:
    """~x of bools or integers, same shape; DtypeError for floating point.

    >>> import sparsegrad as sg
    >>> sg.bitwise_not(sg.tensor([True, False])), sg.bitwise_not(sg.tensor([0, 5]))
    (tensor([False,  True]), tensor([-1, -6]))
    """
    return bitwise_not_p(x)


def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """|a - b| <= atol + rtol * |b|, broadcast, as bool; equal infinities are close.

    >>> import sparsegrad as sg
    >>> sg.isclose(sg.tensor([1.0, 1.0]), sg.tensor([1.0000001, 2.0]))
    tensor([ True, False])
    """
    from sparsegrad import backends
    from sparsegrad.tensor import Tensor, as_tensor

    if any(getattr(t, "_is_sparse", False) for t in (a, b)):
        raise DensifyError(
            "isclose: absent cells, which are equal, would all become true; write sg.allclose, or "
            "sg.isclose with A.to_dense()"
        )
    a, b = as_tensor(a).data, as_tensor(b).data
    xp = backends.for_array(a).xp
    return Tensor(xp.isclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan))


def allclose(
    a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether all elements are close (`isclose`); of two sparse tensors their entries, absent ones
    counted as 0.

    >>> import sparsegrad as sg
    >>> sg.allclose(sg.tensor([1.0]), sg.tensor([1.0000001]))
    True
    """
    if getattr(a, "_is_sparse", False) and getattr(b, "_is_sparse", False):
        from sparsegrad.ops.sparse_elementwise import same_entries

        a, b = (t.values for t in same_entries("allclose", a, b))
    return bool(isclose(a, b, rtol, atol, equal_nan).data.all())


def equal(a: Any, b: Any) -> bool:
    """Whether two tensors, both dense or both sparse, have the same shape and the same elements.

    >>> import sparsegrad as sg
    >>> sg.equal(sg.tensor([1, 2]), sg.tensor([1, 2])), sg.equal(sg.ones(2), sg.ones(2, 1))
    (True, False)
    """
    from sparsegrad.tensor import as_tensor

    if getattr(a, "_is_sparse", False) and getattr(b, "_is_sparse", False):
        return a.shape == b.shape and not bool((a != b).any())
    a, b = as_tensor(a), as_tensor(b)
    return a.shape == b.shape and bool((a == b).data.all())
