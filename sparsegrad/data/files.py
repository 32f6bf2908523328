"""Where the files of data sets are, and reading them without executing anything."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sparsegrad.data.graph import DataError

__all__ = ["FOLDER_VARIABLE", "find", "local", "malformed", "read_arrays"]

FOLDER_VARIABLE = "SPARSEGRAD_DATA"

# What reading a damaged archive raises.
_UNREADABLE = (
    OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error
)  # fmt: skip


def local(path: str, folder: str | os.PathLike[str] | None) -> Path | None:
    """The file `path` of `folder`, by default of the folder that SPARSEGRAD_DATA names, if it is
    there."""
    folder = folder or os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    found = Path(folder) / path
    return found if found.is_file() else None


def find(loader: str, path: str, folder: str | os.PathLike[str] | None, otherwise: str) -> Path:
    """As `local`, but DataError where there is none; `otherwise` says what else can be done."""
    found = local(path, folder)
    if found is not None:
        return found
    held = folder or os.environ.get(FOLDER_VARIABLE)
    if not held:
        raise DataError(
            f"{loader}: {path} is read from a local folder, and the environment variable "
            f"{FOLDER_VARIABLE} does not name one; set it to the folder that holds {path}, or "
            f"{otherwise}"
        )
    raise DataError(
        f"{loader}: there is no {path} in the folder {held}; put it there, let {FOLDER_VARIABLE} "
        f"name the folder that holds it, or {otherwise}"
    )


def read_arrays(loader: str, path: Path, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """All arrays of an .npz file, never unpickled; DataError if it is none, or lacks `keys`."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            held = {key: file[key] for key in file}
    except _UNREADABLE as error:
        raise DataError(f"{loader}: {path} is not a readable .npz file: {error}") from None
    if missing := [key for key in keys if key not in held]:
        raise DataError(f"{loader}: {path} lacks {', '.join(missing)}; fetch the file anew")
    return held


@contextmanager
def malformed(loader: str, path: Any) -> Iterator[None]:
    """What goes wrong inside is the fault of the file."""
    try:
        yield
    except DataError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        raise DataError(f"{loader}: {path} is malformed: {error}") from None
