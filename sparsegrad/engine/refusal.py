"""What an op says when it cannot do what it was asked: its name, its arguments, what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sparsegrad.errors import (
    DeviceError,
    DtypeError,
    OutOfMemoryError,
    ShapeError,
    lacks_memory,
    out_of_memory,
)

if TYPE_CHECKING:
    from sparsegrad.engine.primitive import Primitive

__all__ = ["check_devices", "complaint", "explained"]


def complaint(op: Primitive, args: Any, problem: str) -> str:
    """The text of an error."""
    names = [f"{op.variadic}[{i}]" for i in range(len(args))] if op.variadic else op.inputs
    found = ", ".join(f"{n}: {_described(a)}" for n, a in zip(names, args, strict=False))
    return f"{op.name.removesuffix('_p')}: {problem}; got {found}"


def _described(a: Any) -> str:
    if hasattr(a, "shape") and hasattr(a, "dtype"):
        return f"{type(a).__name__}{tuple(a.shape)} {a.dtype}"
    return repr(a) if isinstance(a, (int, float, complex)) or a is None else type(a).__name__


def check_devices(op: Primitive, args: Any, static: dict[str, Any]) -> None:
    """DeviceError unless tensors, and patterns among static arguments, share a device."""
    where = {a.device for a in args if hasattr(a, "_requires_grad")}
    where |= {s.device for s in static.values() if hasattr(s, "core")}
    if len(where) > 1:
        names = " and ".join(sorted(map(str, where)))
        raise DeviceError(complaint(op, args, f"arguments are on different devices, {names}"))


def explained(op: Primitive, error: Exception, args: Any, static: dict[str, Any]) -> Exception:
    """The error of an array library as one that names the op and its arguments; itself if it is of
    another kind."""
    if lacks_memory(error):
        return OutOfMemoryError(complaint(op, args, out_of_memory(error)))
    if not isinstance(error, (ValueError, TypeError, IndexError, OverflowError)):
        return error
    check_devices(op, args, static)
    text = complaint(op, args, str(error).strip())
    if isinstance(error, IndexError) and not isinstance(error, np.exceptions.AxisError):
        return IndexError(text)
    return ShapeError(text) if isinstance(error, ValueError) else DtypeError(text)
