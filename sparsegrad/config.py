"""One frozen settings object in a context variable, and the one way to change it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Config", "Settings", "config"]

_CHOICES = {
    "backend": ("auto", "reference", "cpu", "cpu_jit"),
    "densify": ("warn", "raise", "record"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters of the engine.

    backend: which CPU backend serves ops: "auto" (Numba where it is installed and pays, else
        SciPy), "reference" (the pure-NumPy specification), "cpu" (SciPy), "cpu_jit" (Numba for
        every size).
    densify: what happens when the library turns something sparse dense without being asked and
        the array is larger than `densify_budget`: "warn", "raise", or only "record".
    densify_budget: bytes an unasked-for dense array may take without consequence.
    """

    backend: str = "auto"
    densify: str = "warn"
    densify_budget: int = 1 << 20

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"config: {name} must be one of {allowed}, got {getattr(self, name)!r}"
                )
        if self.densify_budget < 0:
            raise ValueError(f"config: densify_budget must be >= 0, got {self.densify_budget}")


current: ContextVar[Settings] = ContextVar("sparsegrad_settings", default=Settings())  # noqa: B039  (frozen)


class Config:
    """Reads, sets and overrides the settings of the current thread or task.

    >>> import sparsegrad as sg
    >>> sg.config.densify
    'warn'
    >>> with sg.config(densify="raise"):
    ...     sg.config.densify
    'raise'
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(current.get(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        current.set(_changed({name: value}))

    @contextmanager
    def __call__(self, **changes: Any) -> Iterator[Settings]:
        """Settings that hold inside a `with` block."""
        token = current.set(_changed(changes))
        try:
            yield current.get()
        finally:
            current.reset(token)

    def __repr__(self) -> str:
        return repr(current.get())

    def __dir__(self) -> list[str]:
        return [f.name for f in fields(Settings)]


def _changed(changes: dict[str, Any]) -> Settings:
    known = {f.name for f in fields(Settings)}
    if unknown := sorted(set(changes) - known):
        raise AttributeError(f"config: unknown setting {unknown[0]!r}; known: {sorted(known)}")
    return replace(current.get(), **changes)


config = Config()
