"""Right first, fast second: results against float64 before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Expected", "WrongResult", "check"]


class WrongResult(AssertionError):
    """A candidate computed something else."""


@dataclass(frozen=True)
class Expected:
    """What a result should be.

    value: in float64.
    scale: what an error is measured against: for a sum, the sum of the absolute terms, because
        rounding grows with the terms and not with what is left after they cancel. None: the value.
    rtol: error / scale that is still right. The default is about 170 roundings of float32.
    """

    value: np.ndarray
    scale: Any = None
    rtol: float = 1e-5


def check(got: Mapping[str, Any], expected: Mapping[str, Expected]) -> float:
    """Largest error relative to its scale; WrongResult if a result is missing or wrong."""
    if set(got) != set(expected):
        raise WrongResult(f"results are {sorted(got)}, expected {sorted(expected)}")
    worst = 0.0
    for name, want in expected.items():
        array = np.asarray(got[name])
        if array.shape != want.value.shape:
            raise WrongResult(f"{name}: shape {array.shape}, expected {want.value.shape}")
        if not array.size:
            continue
        scale = np.abs(want.value) if want.scale is None else np.asarray(want.scale)
        floor = np.finfo(np.float64).tiny
        error = float(np.max(np.abs(array - want.value) / np.maximum(scale, floor)))
        if not error <= want.rtol:  # also catches NaN
            raise WrongResult(f"{name}: relative error {error:.1e}, allowed {want.rtol:.0e}")
        worst = max(worst, error)
    return worst
