"""One frozen settings object in a context variable, and the one way to change it."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Config", "Settings", "config"]

_CHOICES = {
    "backend": ("auto", "reference", "cpu", "cpu_jit"),
    "format": ("auto", "coo", "csr", "csc"),
    "densify": ("warn", "raise", "record"),
}


_LEAST_POOL = 1 << 29  # bytes
_GROUP_LIMITS = (  # of a container, by the kernel's control groups
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


@cache
def _pool_size() -> int:
    """A quarter of the memory that the machine or the container has, in bytes."""
    found = []
    with suppress(AttributeError, ValueError, OSError):  # what the system does not say
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in _GROUP_LIMITS:
        with suppress(ValueError, OSError):  # "max": there is none
            found.append(int(Path(path).read_text()))
    return max(_LEAST_POOL, min(found, default=0) // 4)


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters of the engine.

    backend: which CPU backend serves ops: "auto" (Numba where it is installed and pays, else
        SciPy), "reference" (the pure-NumPy specification), "cpu" (SciPy), "cpu_jit" (Numba for
        every size).
    densify: what happens when the library turns something sparse dense without being asked and
        the array is larger than `densify_budget`: "warn", "raise", or only "record".
    densify_budget: bytes an unasked-for dense array may take without consequence.
    format: what `format="auto"` stands for, and what readers of files and graphs return: "coo",
        "csr", "csc", or "auto": the cheapest by the cost table of `sparsegrad.policy`.
    sparsity_threshold: share of zeros from which `sg.should_use_sparse` advises sparse storage.
    min_nnz_for_sparse: nonzeros from which it does.
    auto_convert_threshold: sparsity below which a product of a matrix, then nearly full, may use
        a dense temporary; 0 never.
    check_invariants: check every pattern that is made, also those that skip the check or that
        ops make; for finding faults, not for speed.
    enable_memory_pool: large results of CPU kernels lie in blocks that are used again.
    pool_size_limit: bytes of blocks that the pool keeps for later, a quarter of the memory there
        is (at least 512 MiB) unless it is set; no bound on what is in use. Linux may take large
        ones back at any time.
    deterministic: only kernels whose results have the same bits in every run, also on CUDA, at
        the price of some speed. Those on the CPU always do.
    """

    backend: str = "auto"
    densify: str = "warn"
    densify_budget: int = 1 << 20
    format: str = "auto"
    sparsity_threshold: float = 0.3
    min_nnz_for_sparse: int = 100
    auto_convert_threshold: float = 0.2
    check_invariants: bool = False
    enable_memory_pool: bool = True
    pool_size_limit: int = field(default_factory=_pool_size)
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"config: {name} must be one of {allowed}, got {getattr(self, name)!r}"
                )
        for name in ("densify_budget", "min_nnz_for_sparse", "pool_size_limit"):
            if getattr(self, name) < 0:
                raise ValueError(f"config: {name} must be >= 0, got {getattr(self, name)}")
        for name in ("sparsity_threshold", "auto_convert_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"config: {name} must be in [0, 1], got {getattr(self, name)}")


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
