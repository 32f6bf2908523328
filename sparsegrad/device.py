"""Devices by name: "cpu", "cuda", "cuda:1"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sparsegrad.errors import DeviceError

__all__ = ["Device", "is_device", "wanted"]


@dataclass(frozen=True, slots=True)
class Device:
    """Where arrays live: `sg.device("cuda:1")`, or `sg.device("cuda", 1)`.

    DeviceError for a name that is neither "cpu" nor "cuda[:i]".

    >>> Device("cuda:1")
    Device('cuda:1')
    >>> Device("cpu").type
    'cpu'
    """

    type: str
    index: int = 0

    def __post_init__(self) -> None:
        name = self.type
        if isinstance(name, Device):  # a Device of a Device is that
            name = str(name)
        elif name == "cuda" or (name == "cpu" and self.index == 0):
            return
        if not isinstance(name, str):
            raise DeviceError(f"device: expected a name such as 'cpu' or 'cuda:0', got {name!r}")
        kind, _, index = name.partition(":")
        valid = (kind == "cpu" and index in ("", "0")) or (kind == "cuda" and index.isdecimal())
        if not valid or self.index:
            got = f"{name!r}, {self.index!r}" if self.index else repr(name)
            raise DeviceError(f"device: expected 'cpu', 'cuda' or 'cuda:<index>', got {got}")
        object.__setattr__(self, "type", kind)
        object.__setattr__(self, "index", int(index or 0))

    @classmethod
    def parse(cls, spec: str | Device) -> Device:
        """`spec` as a Device; DeviceError for a name that is neither "cpu" nor "cuda[:i]"."""
        return spec if isinstance(spec, Device) else cls(spec)

    def __str__(self) -> str:
        return self.type if self.type == "cpu" else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"


CPU = Device("cpu")


def is_device(target: Any) -> bool:
    """Whether this names a device rather than a dtype or format."""
    return isinstance(target, Device) or (
        isinstance(target, str) and target.partition(":")[0] in ("cpu", "cuda")
    )


def wanted(targets: Iterable[Any], device: Any, dtype: Any) -> list[Any]:
    """What the arguments of a method `to` ask for, one after the other: devices, dtypes, formats;
    of a tensor its device and its dtype. TypeError if they ask for nothing."""
    found = []
    for target in (*targets, device, dtype):
        if hasattr(target, "device") and hasattr(target, "dtype"):
            found += [target.device, target.dtype]
        elif target is not None:
            found.append(target)
    if not found:
        raise TypeError("to: expected a device, a dtype, or a tensor that has both")
    return found
