"""From one device to another, recorded."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegrad import backends
from sparsegrad.device import Device
from sparsegrad.engine.primitive import primitive

__all__ = ["to_device"]


@primitive(view=True, promote="none")
def to_device_p(be: Any, x: Any, *, device: Device, home: Device) -> Any:
    """x, which lies on `home`, on `device`; shared where they are the same."""
    target = backends.for_device(device)
    return target.asarray(be.to_host(x) if target.xp is np else x)


@to_device_p.defsparse
def _sparse(x: Any, *, device: Device, home: Device) -> Any:
    return x.to(device)


to_device_p.defvjp(
    x=lambda g, device, home: to_device_p(g, device=home, home=device), sparse_g=True
)


def to_device(x: Any, device: str | Device) -> Any:
    """`x` on another device: "cpu", "cuda" or "cuda:<index>"; itself if it is there already.

    Works on dense and sparse tensors of any shape. The gradient goes back to the device of `x`.
    Raises DeviceError, with the reason, for a device that cannot be used.

    >>> import sparsegrad as sg
    >>> x = sg.ones(2)
    >>> sg.to_device(x, "cpu") is x
    True
    """
    target = backends.named(device)
    if x.device == target:
        return x
    if getattr(x, "_is_sparse", False):
        return x.to(target)
    return to_device_p(x, device=target, home=x.device)
