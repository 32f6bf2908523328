"""Comparisons, elementwise: no gradient passes through them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparsegrad.engine.primitive import primitive

if TYPE_CHECKING:
    from sparsegrad.tensor import Tensor

__all__ = ["eq", "ge", "gt", "le", "lt", "ne"]


@primitive
def eq_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.equal(a, b)


@primitive
def ne_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.not_equal(a, b)


@primitive
def lt_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.less(a, b)


@primitive
def le_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.less_equal(a, b)


@primitive
def gt_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.greater(a, b)


@primitive
def ge_p(xp: Any, a: Any, b: Any) -> Any:
    return xp.greater_equal(a, b)


# ---- public names ------------------------------------------------------------------------------
def eq(a: Any, b: Any) -> Tensor:
    """a == b elementwise, broadcast, as bool.

    >>> import sparsegrad as sg
    >>> sg.eq(sg.tensor([1, 2]), 2)
    tensor([False,  True])
    """
    return eq_p.binary(a, b)


def ne(a: Any, b: Any) -> Tensor:
    """a != b elementwise, broadcast, as bool.

    >>> import sparsegrad as sg
    >>> sg.ne(sg.tensor([1, 2]), 2)
    tensor([ True, False])
    """
    return ne_p.binary(a, b)


def lt(a: Any, b: Any) -> Tensor:
    """a < b elementwise, broadcast, as bool.

    >>> import sparsegrad as sg
    >>> sg.lt(sg.tensor([1, 2, 3]), 2)
    tensor([ True, False, False])
    """
    return lt_p.binary(a, b)


def le(a: Any, b: Any) -> Tensor:
    """a <= b elementwise, broadcast, as bool.

    >>> import sparsegrad as sg
    >>> sg.le(sg.tensor([1, 2, 3]), 2)
    tensor([ True,  True, False])
    """
    return le_p.binary(a, b)


def gt(a: Any, b: Any) -> Tensor:
    """a > b elementwise, broadcast, as bool.

    >>> import sparsegrad as sg
    >>> sg.gt(sg.tensor([1, 2, 3]), 2)
    tensor([False, False,  True])
    """
    return gt_p.binary(a, b)


def ge(a: Any, b: Any) -> Tensor:
    """a >= b elementwise, broadcast, as bool.

    >>> import sparsegrad as sg
    >>> sg.ge(sg.tensor([1, 2, 3]), 2)
    tensor([False,  True,  True])
    """
    return ge_p.binary(a, b)
