"""What the device did meanwhile: a range of NVTX and two events around an op, for profiles."""

from __future__ import annotations

import time
from typing import Any

import cupy
from cupy.cuda import nvtx

__all__ = ["Span"]


class Span:
    """From here to `close`: on the host a range of NVTX; on the device where `array` lies, if that
    is one, what its stream does in between. Nothing waits until `seconds` is asked for."""

    __slots__ = ("_begin", "_device", "_end", "_stream")

    def __init__(self, name: str, array: Any) -> None:
        nvtx.RangePush(name)
        self._stream = None
        if isinstance(array, cupy.ndarray):
            self._device = array.device
            with self._device:  # an event belongs to the device that it is made on
                self._stream = cupy.cuda.get_current_stream()
                self._begin, self._end = cupy.cuda.Event(), cupy.cuda.Event()
                self._stream.record(self._begin)

    def close(self) -> None:
        """The end; once."""
        if self._stream is not None:
            with self._device:  # work may have gone on to another one
                self._stream.record(self._end)
        nvtx.RangePop()

    @property
    def timed(self) -> bool:
        """Whether there was a device to time."""
        return self._stream is not None

    @property
    def done(self) -> bool:
        """Whether the device is through with it, so that `seconds` waits for nothing."""
        return bool(self._end.done)

    def started(self, anchors: dict[str, tuple[Any, int]]) -> tuple[str, int]:
        """The device, and when its stream came to the first event, by the host's clock in
        nanoseconds. anchors: for each device an event whose time is known to both; made once."""
        name = f"cuda:{self._device.id}"
        if name not in anchors:
            with self._device:
                self._device.synchronize()  # sync
                event = cupy.cuda.get_current_stream().record()
                event.synchronize()  # sync
                anchors[name] = event, time.perf_counter_ns()
        event, now = anchors[name]
        return name, now - round(1e6 * cupy.cuda.get_elapsed_time(self._begin, event))

    def seconds(self) -> float:
        """From when the stream came to the first event until it came to the second."""
        if not self.done:
            self._end.synchronize()  # sync
        return float(cupy.cuda.get_elapsed_time(self._begin, self._end)) / 1e3
