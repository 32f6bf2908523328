"""Opening files: compression by name, and writing that leaves either the old file or the new."""

from __future__ import annotations

import bz2
import gzip
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from sparsegrad.errors import SparsegradError

__all__ = ["FileError", "opened", "replaced"]


class FileError(SparsegradError, ValueError):
    """A file is not what it should be: malformed, truncated, or of another kind."""


_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
_PACKERS: dict[str, Callable[..., Any]] = {
    ".gz": lambda raw: gzip.GzipFile("", "wb", fileobj=raw),  # no name of ours in the file
    ".bz2": lambda raw: bz2.BZ2File(raw, "wb"),
}


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].lower()


@contextmanager
def opened(source: Any, mode: str = "rb") -> Iterator[Any]:
    """A file by path, decompressed if it is called .gz or .bz2, or an open file as it is."""
    if hasattr(source, "read"):
        yield source
        return
    path = os.fspath(source)
    options = {} if "b" in mode else {"encoding": "utf-8"}
    with _OPENERS.get(_ending(path), open)(path, mode, **options) as file:
        yield file


@contextmanager
def replaced(target: Any, compress: bool = True) -> Iterator[Any]:
    """A file to write bytes to, which takes the place of `target` when all is written; a file
    object is written to directly. `compress` by the name's .gz or .bz2."""
    if isinstance(target, io.TextIOBase):
        buffer = io.BytesIO()
        yield buffer
        target.write(buffer.getvalue().decode("utf-8"))
        return
    if hasattr(target, "write"):
        yield target
        return
    path = os.path.abspath(os.fspath(target))
    scratch = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    packed = _PACKERS.get(_ending(path), nullcontext) if compress else nullcontext
    try:
        with open(scratch, "xb") as raw:
            with packed(raw) as file:
                yield file
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(scratch, path)
    except BaseException:
        if os.path.exists(scratch):
            os.unlink(scratch)
        raise
