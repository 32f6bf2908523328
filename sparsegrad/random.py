"""Random numbers: one generator, seeded by `manual_seed`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["generator", "get_rng_state", "manual_seed", "replayed", "set_rng_state", "state"]

_generator = np.random.Generator(np.random.Philox())
_STATE_BYTES = 13 * 8


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


def get_rng_state() -> np.ndarray:
    """Where the generator stands, as an array of bytes that `sg.save` and `numpy.save` can keep.

    >>> import sparsegrad as sg
    >>> state = sg.get_rng_state()
    >>> first = sg.randn(3)
    >>> sg.set_rng_state(state)
    >>> bool((sg.randn(3) == first).data.all())
    True
    """
    at = state()
    words = (*at["state"]["counter"], *at["state"]["key"], *at["buffer"])
    rest = (at["buffer_pos"], at["has_uint32"], at["uinteger"])
    return np.array([*words, *rest], dtype="<u8").view(np.uint8)


def set_rng_state(state: Any) -> None:
    """Let the generator go on from what `get_rng_state` returned: an array or Tensor of uint8.

    Raises ValueError for anything else, and leaves the generator as it was.
    """
    array = np.array(state)
    if array.dtype != np.uint8 or array.shape != (_STATE_BYTES,):
        raise ValueError(
            f"set_rng_state: expected {_STATE_BYTES} bytes of uint8 from get_rng_state, "
            f"got shape {array.shape}, dtype {array.dtype}"
        )
    words = array.view("<u8").astype(np.uint64)
    pos, has, integer = (int(n) for n in words[10:])
    _generator.bit_generator.state = {
        "bit_generator": "Philox",
        "state": {"counter": words[:4], "key": words[4:6]},
        "buffer": words[6:10],
        "buffer_pos": pos,
        "has_uint32": has,
        "uinteger": integer,
    }


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
