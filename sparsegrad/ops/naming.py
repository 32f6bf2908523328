"""NumPy's names of arguments on public ops, as in PyTorch: `axis` for `dim`, `keepdims` for
`keepdim`, and what `np.sum(t)` and its kin pass along. Inside the package there is one name each.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["with_numpy_names"]

_NAMES = {"axis": "dim", "keepdims": "keepdim", "ddof": "correction"}
_SPECIAL = {*_NAMES, "out", "dtype"}


def with_numpy_names(families: Iterable[Any], module: str) -> dict[str, Callable[..., Any]]:
    """Public functions of `families` with a parameter `dim`, by name, as functions of `module`
    that take NumPy's names too."""
    found = {}
    for family in families:
        for name in family.__all__:
            fn = getattr(family, name)
            if inspect.isfunction(fn) and "dim" in inspect.signature(fn).parameters:
                found[name] = _renaming(fn, name, module)
    return found


def _renaming(fn: Callable[..., Any], name: str, module: str) -> Callable[..., Any]:
    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs and not _SPECIAL.isdisjoint(kwargs):
            kwargs = _renamed(name, kwargs)
        return fn(*args, **kwargs)

    call.__module__, call.__qualname__ = module, name  # where pickle finds it
    return call


def _renamed(name: str, given: dict[str, Any]) -> dict[str, Any]:
    kwargs = {}
    for key, value in given.items():
        if key == "out":
            if value is not None:
                raise TypeError(f"{name}: out= is not supported; the result is a new tensor")
        elif key != "dtype" or value is not None:
            known = _NAMES.get(key, key)
            if known in kwargs:
                raise TypeError(f"{name}: got {known} twice, by two names")
            kwargs[known] = value
    return kwargs
