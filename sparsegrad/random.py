"""Random numbers: one generator, seeded by `manual_seed`."""

from __future__ import annotations

import numpy as np

__all__ = ["generator", "manual_seed"]

_generator = np.random.Generator(np.random.Philox())


def manual_seed(seed: int) -> None:
    """Start the generator of initialisation and dropout anew.

    >>> import sparsegrad as sg
    >>> sg.manual_seed(0)
    >>> first = sg.randn(3)
    >>> sg.manual_seed(0)
    >>> bool((sg.randn(3) == first).data.all())
    True
    """
    global _generator
    _generator = np.random.Generator(np.random.Philox(seed))


def generator() -> np.random.Generator:
    """The generator that random functions draw from (host side, Philox 4x64-10)."""
    return _generator
