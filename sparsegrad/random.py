"""Where random numbers stand: a seed and a position in its stream, on the host.

The numbers themselves are a function of these two, the same on every device
(`backends/philox.py`), so a generator is two integers, and drawing on a GPU waits for nothing.
"""

from __future__ import annotations

import operator
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sparsegrad.device import Device

__all__ = [
    "Generator",
    "generator",
    "get_rng_state",
    "manual_seed",
    "replayed",
    "seed_device",
    "set_rng_state",
    "state",
]

_SEEDS = 1 << 64


class Generator:
    """A stream of random numbers, for the argument `generator` of functions that draw.

    The stream is that of Philox4x32-10 (Salmon et al., SC 2011); it serves every device, with the
    same numbers. Without `manual_seed` it starts at a seed of the operating system.

    >>> import sparsegrad as sg
    >>> g = sg.Generator().manual_seed(3)
    >>> first = sg.rand(2, generator=g)
    >>> bool((sg.rand(2, generator=g.manual_seed(3)) == first).data.all())
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seed, self._offset = secrets.randbits(64), 0

    def __repr__(self) -> str:
        return f"Generator(seed={self._seed}, offset={self._offset})"

    def __reduce__(self) -> Any:
        return _rebuilt, (self._seed, self._offset)

    def manual_seed(self, seed: int) -> Generator:
        """Start anew at a seed, -2**63 to 2**64 - 1 (negative ones from the end, as in PyTorch);
        returns the generator. Raises ValueError for any other integer."""
        number = operator.index(seed)
        if not -(_SEEDS // 2) <= number < _SEEDS:
            raise ValueError(f"manual_seed: the seed must fit 64 bits, got {seed}")
        with self._lock:
            self._seed, self._offset = number % _SEEDS, 0
        return self

    def initial_seed(self) -> int:
        """The seed it started at."""
        return self._seed

    def seed(self) -> int:
        """Start anew at a seed of the operating system; returns it."""
        return self.manual_seed(secrets.randbits(64)).initial_seed()

    def get_state(self) -> np.ndarray:
        """Where it stands: 16 bytes (uint8), which `sg.save` and `numpy.save` can keep."""
        with self._lock:
            return np.array([self._seed, self._offset], dtype="<u8").view(np.uint8)

    def set_state(self, state: Any) -> None:
        """Go on from what `get_state` returned (an array or Tensor). Raises ValueError for anything
        else, and stays where it was."""
        array = np.array(state)
        if array.dtype != np.uint8 or array.shape != (16,):
            raise ValueError(
                "set_state: expected the 16 bytes of uint8 that get_state gives, got shape "
                f"{array.shape}, dtype {array.dtype}"
            )
        seed, offset = array.view("<u8").tolist()
        with self._lock:
            self._seed, self._offset = seed, offset

    def reserve(self, words: int) -> tuple[int, int]:
        """(seed, first block) of so many words of 32 bits that nobody else is given."""
        with self._lock:
            start = self._offset
            self._offset = (start + -(-words // 4)) % _SEEDS
            return self._seed, start


def _rebuilt(seed: int, offset: int) -> Generator:
    out = Generator()
    out._seed, out._offset = seed, offset
    return out


_shared = Generator()
_own: dict[Device, Generator] = {}  # of devices that were seeded apart


def generator(device: Device | None = None) -> Generator:
    """The generator of a device: the one that all share, unless the device was seeded apart."""
    return _own.get(device, _shared) if _own and device is not None else _shared


def manual_seed(seed: int) -> None:
    """Start the stream of all random numbers anew: initialisation, dropout, `sg.rand` and its like,
    on every device.

    All devices draw from one stream, so a run gives the same numbers wherever its tensors are;
    `sg.cuda.manual_seed` gives a device a stream of its own.

    >>> import sparsegrad as sg
    >>> sg.manual_seed(0)
    >>> first = sg.randn(3)
    >>> sg.manual_seed(0)
    >>> bool((sg.randn(3) == first).data.all())
    True
    """
    _shared.manual_seed(seed)
    _own.clear()


def seed_device(device: Device, seed: int) -> None:
    """Give a device a stream of its own."""
    _own[device] = Generator().manual_seed(seed)


def get_rng_state() -> np.ndarray:
    """Where the stream of random numbers stands, as an array of bytes that `sg.save` and
    `numpy.save` can keep. Of a device that was seeded apart: `sg.cuda.get_rng_state`.

    >>> import sparsegrad as sg
    >>> state = sg.get_rng_state()
    >>> first = sg.randn(3)
    >>> sg.set_rng_state(state)
    >>> bool((sg.randn(3) == first).data.all())
    True
    """
    return _shared.get_state()


def set_rng_state(state: Any) -> None:
    """Let the stream go on from what `get_rng_state` returned: an array or Tensor of uint8.

    Raises ValueError for anything else, and leaves the stream as it was.

    >>> import sparsegrad as sg
    >>> state = sg.get_rng_state()
    >>> x = sg.rand(3)
    >>> sg.set_rng_state(state)
    >>> sg.equal(sg.rand(3), x)
    True
    """
    _shared.set_state(state)


def state() -> Any:
    """Where all streams stand, for `replayed`."""
    return [(g, g.get_state()) for g in (_shared, *_own.values())]


@contextmanager
def replayed(at: Any) -> Iterator[None]:
    """The streams start at `at` inside, and go on afterwards as if nothing had been drawn."""
    here = state()
    for held, where in at:
        held.set_state(where)
    try:
        yield
    finally:
        for held, where in here:
            held.set_state(where)
