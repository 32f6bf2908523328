"""Random numbers: one generator, seeded by `manual_seed`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["generator", "manual_seed", "replayed", "state"]

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


def state() -> Any:
    """Where the generator stands, for `replayed`."""
    return _generator.bit_generator.state


@contextmanager
def replayed(at: Any) -> Iterator[None]:
    """The generator starts at `at` inside, and goes on afterwards as if nothing had been drawn."""
    here = state()
    _generator.bit_generator.state = at
    try:
        yield
    finally:
        _generator.bit_generator.state = here


def generator() -> np.random.Generator:
    """The generator that random functions draw from (host side, Philox 4x64-10)."""
    return _generator
