"""What tests on devices share: a small matrix, and counts of launches and waits."""

from __future__ import annotations

import sys
from typing import Any

import sparsegrad as sg

ROW, COL, VALUES = [0, 0, 2, 3], [1, 0, 2, 0], [1.0, 2.0, 3.0, 4.0]


def matrix(**options: Any) -> sg.SparseTensor:
    return sg.coo([ROW, COL], VALUES, (4, 3), **options)


def recorded() -> Any:
    """What is launched inside, on the simulator."""
    return sys.modules["cudasim"].record_launches()


def synchronisations() -> int | None:
    """How often the host has waited for the device; None on a GPU, which does not say."""
    simulator = sys.modules.get("cudasim")
    return simulator.synchronisations() if simulator and simulator.installed() else None
