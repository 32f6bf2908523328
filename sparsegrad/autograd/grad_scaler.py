"""Loss scaling: small gradients of float16 ops are kept above what float16 rounds to zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsegrad import dtypes
from sparsegrad.autograd.clip import change, with_grad
from sparsegrad.errors import DtypeError, GraphError

__all__ = ["GradScaler"]


class GradScaler:
    """Multiplies the loss by a large number, divides the gradients by it before the optimizer's
    step, leaves the step out if a gradient is infinite or nan, and finds the number by itself.

    device: for code written for PyTorch; gradients know where they are.
    init_scale: the first scale. After a step that was left out it is multiplied by
        `backoff_factor`, after `growth_interval` good steps in a row by `growth_factor`.
    enabled: False makes everything do nothing but call the optimizer.

    Sparse gradients stay sparse: duplicates are summed, then the values are divided and looked at.
    One step waits for the device once.

    Raises ValueError for factors out of range.

    >>> import sparsegrad as sg
    >>> layer = sg.nn.Linear(4, 1)
    >>> optimizer = sg.optim.SGD(layer.parameters(), lr=0.1)
    >>> scaler = sg.amp.GradScaler(init_scale=1024.0)
    >>> for _ in range(3):
    ...     optimizer.zero_grad()
    ...     with sg.amp.autocast(dtype=sg.float16):
    ...         loss = (layer(sg.ones(2, 4)) ** 2).mean()
    ...     scaler.scale(loss).backward()
    ...     _ = scaler.step(optimizer)
    ...     scaler.update()
    >>> scaler.get_scale()
    1024.0
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if not (init_scale > 0 and growth_factor > 1 and 0 < backoff_factor < 1):
            raise ValueError(
                "GradScaler: expected init_scale > 0, growth_factor > 1 and 0 < backoff_factor < "
                f"1, got {init_scale}, {growth_factor} and {backoff_factor}"
            )
        if growth_interval < 1:
            raise ValueError(
                f"GradScaler: growth_interval must be at least 1, got {growth_interval}"
            )
        self._scale, self._enabled = float(init_scale), enabled
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval = growth_interval
        self._good_steps = 0
        # By optimizer, since the last update: whether something was not finite, at first as an
        # array on each device.
        self._found: dict[int, dict[Any, Any] | bool] = {}
        self._stepped: set[int] = set()

    def scale(self, outputs: Any) -> Any:
        """A loss, or a list or tuple of losses, times the scale: tensors of at least float32."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(out) for out in outputs)
        return outputs.to(dtypes.accumulator(outputs.dtype)) * self._scale

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, in place: before they
        are clipped. `step` does it where nobody did.

        Raises GraphError if that was done since the last `update`, DtypeError for gradients in
        float16: the scale is there because they cannot hold what comes of the division.
        """
        if not self._enabled:
            return
        if id(optimizer) in self._found:
            raise GraphError("GradScaler: unscale_ was called already since the last update()")
        held = with_grad(p for group in optimizer.param_groups for p in group["params"])
        for p in held:
            if p.grad.dtype == dtypes.float16:
                raise DtypeError(
                    f"GradScaler: the gradient of a parameter of shape {p.shape} is float16; "
                    "parameters are float32 in mixed precision, autocast takes care of the rest"
                )
        found: dict[Any, Any] = {}
        for p in held:
            finite = change(p, self._unscaled)
            found[p.device] = found.get(p.device, False) | ~finite
        self._found[id(optimizer)] = found

    def _unscaled(self, xp: Any, g: Any) -> Any:
        """Divide an array in place; whether all of it is finite, an array ()."""
        xp.multiply(g, g.dtype.type(1 / self._scale), out=g)
        if dtypes.accumulator(g.dtype) is not g.dtype:
            g = g.astype(dtypes.float32)
        return xp.isfinite(g).all()

    def step(self, optimizer: Any) -> Any:
        """`optimizer.step()`, unless a gradient is infinite or nan; returns what that returned.

        Raises GraphError if that was done since the last `update`.
        """
        if not self._enabled:
            return optimizer.step()
        key = id(optimizer)
        if key in self._stepped:
            raise GraphError("GradScaler: step was called already since the last update()")
        if key not in self._found:
            self.unscale_(optimizer)
        self._stepped.add(key)
        return None if self._not_finite(key) else optimizer.step()

    def _not_finite(self, key: int) -> bool:
        found = self._found[key]
        if not isinstance(found, bool):
            found = self._found[key] = any(bool(flag) for flag in found.values())  # sync
        return found

    def update(self, new_scale: float | None = None) -> None:
        """End an iteration: change the scale by what its steps found, or to `new_scale`.

        Raises GraphError if no gradients were looked at since the last update.
        """
        if not self._enabled:
            return
        if not self._found and new_scale is None:
            raise GraphError("GradScaler: update() without a step() or unscale_() before it")
        if new_scale is not None:
            self._scale = float(new_scale)
        elif any(self._not_finite(key) for key in self._found):
            self._scale *= self.backoff_factor
            self._good_steps = 0
        else:
            self._good_steps += 1
            if self._good_steps == self.growth_interval:
                self._scale *= self.growth_factor
                self._good_steps = 0
        self._found.clear()
        self._stepped.clear()

    def get_scale(self) -> float:
        """The scale; 1 where scaling is not enabled."""
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Whether anything is scaled."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """What another GradScaler needs to go on; PyTorch's names."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._good_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a `state_dict` was taken."""
        if not self._enabled:
            return
        self._scale, self._good_steps = state["scale"], state["_growth_tracker"]
        self.growth_factor, self.backoff_factor = state["growth_factor"], state["backoff_factor"]
        self.growth_interval = state["growth_interval"]
