"""One file that a killed run goes on from."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sparsegrad as sg

__all__ = ["Checkpoint", "load_weights"]


class Checkpoint:
    """A `.safetensors` file with all that a run needs to end as if it had never stopped.

    path: the file; it is replaced only when the next one is written in full, so that it can be
        read whenever the process dies. Its folder is made.
    parts: named objects with `state_dict` and `load_state_dict`: model, optimizer, ...
    settings: what must be the same to go on; texts, numbers, booleans.
    every: seconds that lie at least between two saves.

    The state of the random generator is kept too.
    """

    def __init__(
        self, path: Any, parts: Mapping[str, Any], settings: Mapping[str, Any], every: float
    ) -> None:
        self.path, self.parts, self.settings = Path(path), dict(parts), dict(settings)
        self.every, self._last = every, time.monotonic()
        if self.path.is_dir():
            raise ValueError(f"checkpoint: {self.path} is a folder, not a file")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for scratch in self.path.parent.glob(f"{self.path.name}.*.tmp"):
            scratch.unlink(missing_ok=True)  # of a run that was killed while it wrote

    def save(self, progress: Mapping[str, Any], now: bool = False) -> None:
        """Write the parts, and `progress`; unless the last time was less than `every` seconds ago,
        or `now`."""
        if not now and time.monotonic() - self._last < self.every:
            return
        state = {
            "settings": self.settings,
            "random": sg.get_rng_state(),
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "progress": progress,
        }
        sg.save(state, self.path)
        self._last = time.monotonic()

    def refuse_to_replace(self) -> None:
        """Raise FileExistsError if there is a file: hours of training may be in it."""
        if self.path.exists():
            raise FileExistsError(
                f"checkpoint: {self.path} exists; resume from it, remove it, or name another place"
            )

    def load(self) -> dict[str, Any] | None:
        """Bring the parts and the random generator to where they were; returns `progress`, or
        None if there is no file. Raises ValueError for a file of other settings."""
        if not self.path.exists():
            return None
        state = sg.load(self.path)
        if not isinstance(state, dict) or set(state) != {"settings", "random", "parts", "progress"}:
            raise ValueError(f"checkpoint: {self.path} is not a checkpoint of a training run")
        for name in sorted(self.settings | state["settings"]):
            was, now = state["settings"].get(name), self.settings.get(name)
            if was != now:
                raise ValueError(
                    f"checkpoint: {self.path} is of a run with {name} = {was!r}, this one has "
                    f"{now!r}"
                )
        for name, part in self.parts.items():  # the model first: it says what shapes a state has
            if isinstance(part, sg.nn.Module):
                load_weights(part, state["parts"][name])
            else:
                part.load_state_dict(state["parts"][name])
        sg.set_rng_state(state["random"])
        return state["progress"]


def load_weights(model: sg.nn.Module, state: Mapping[str, Any]) -> None:
    """`model.load_state_dict(state)`, where sparse parameters take the patterns of `state`: in a
    model that was pruned and regrown they have moved."""
    for name, p in model.named_parameters():
        held = state.get(name)
        if isinstance(p, sg.SparseTensor) and isinstance(held, sg.SparseTensor):
            p.repattern_(held.pattern)
    model.load_state_dict(state)
