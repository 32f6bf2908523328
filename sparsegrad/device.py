"""Devices by name: "cpu", "cuda", "cuda:1"."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegrad.errors import DeviceError

__all__ = ["Device"]


@dataclass(frozen=True, slots=True)
class Device:
    """Where arrays live.

    >>> Device.parse("cuda:1")
    Device('cuda:1')
    >>> Device.parse("cpu").type
    'cpu'
    """

    type: str
    index: int = 0

    @classmethod
    def parse(cls, spec: str | Device) -> Device:
        """`spec` as a Device; DeviceError for a name that is neither "cpu" nor "cuda[:i]"."""
        if isinstance(spec, Device):
            return spec
        if not isinstance(spec, str):
            raise DeviceError(f"device: expected a name such as 'cpu' or 'cuda:0', got {spec!r}")
        kind, _, index = spec.partition(":")
        valid = (kind == "cpu" and index in ("", "0")) or kind == "cuda"
        if not valid or (index and not index.isdecimal()):
            raise DeviceError(f"device: expected 'cpu', 'cuda' or 'cuda:<index>', got {spec!r}")
        return cls(kind, int(index or 0))

    def __str__(self) -> str:
        return self.type if self.type == "cpu" else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"


CPU = Device("cpu")
