"""IEEE arithmetic without NumPy's warnings: 1 / 0 is inf and 0 / 0 is nan, silently, as in PyTorch.

    token = silence(SILENT)
    try: ...
    finally: restore(token)

`np.errstate` costs about a microsecond, too much for every op; the context variable that it sets
costs a tenth of that. Whatever the user chose by `np.seterr` holds for the user's own arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

import numpy as np

__all__ = ["SILENT", "quiet", "restore", "silence"]


def _found() -> tuple[ContextVar[Any], Any]:
    """NumPy's variable, and its value where nothing warns: what `np.errstate` changes."""
    before = copy_context()
    with np.errstate(all="ignore"):
        for variable, value in copy_context().items():
            if before.get(variable) is not value:
                return variable, value
    # A NumPy that keeps it elsewhere: warnings appear, results are the same.
    return ContextVar("sparsegrad_quiet"), None


_state, SILENT = _found()
silence, restore = _state.set, _state.reset


@contextmanager
def quiet() -> Iterator[None]:
    """The same as a `with` block, or a decorator, for what is not called a million times."""
    token = silence(SILENT)
    try:
        yield
    finally:
        restore(token)
