"""Optimizer: parameter groups, state, and what a step may touch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sparsegrad import backends
from sparsegrad.engine.mode import enable_grad, no_grad
from sparsegrad.errors import DtypeError, GraphError
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.tensor import Tensor

__all__ = ["Optimizer"]

# Elements a step works on at a time: parameter, gradient, state and scratch stay in the cache.
_BLOCK = 1 << 16


class Optimizer:
    """Base class. A subclass gives its defaults and defines `update`.

    params: leaf tensors, dense or sparse, that require a gradient; or dicts {"params": [...],
        "lr": ...} whose other entries override the defaults for that group.
    defaults: hyperparameters of every group.

    Raises TypeError, GraphError or ValueError for something else, for a result of an op, for a
    parameter given twice, and for no parameters.
    """

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Any, dict[str, Any]] = {}  # per parameter; tensors are looked up by id
        if isinstance(params, (Tensor, SparseTensor)):
            raise TypeError(f"{self._name}: params must be an iterable of tensors, got one tensor")
        groups = list(params)
        if not groups:
            raise ValueError(f"{self._name}: no parameters")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add {"params": tensors, ...}; hyperparameters that it lacks take the defaults."""
        params = group["params"]
        params = [params] if isinstance(params, (Tensor, SparseTensor)) else list(params)
        if unknown := sorted(set(group) - {"params", *self.defaults}):
            raise ValueError(f"{self._name}: unknown hyperparameter {unknown[0]!r}")
        held = {id(_dense(p)) for g in self.param_groups for p in g["params"]}
        for p in params:
            if not isinstance(p, (Tensor, SparseTensor)):
                raise TypeError(f"{self._name}: expected a tensor, got {type(p).__name__}")
            if not p.is_leaf:
                raise GraphError(
                    f"{self._name}: can only train leaves, got the result of {p.grad_fn} of shape "
                    f"{tuple(p.shape)}"
                )
            if p.dtype.kind != "f":
                raise DtypeError(f"{self._name}: parameters are floating point, got {p.dtype}")
            if id(_dense(p)) in held:
                raise ValueError(
                    f"{self._name}: a parameter of shape {tuple(p.shape)} is given twice"
                )
            held.add(id(_dense(p)))
        full = {**self.defaults, **group, "params": params}
        self.check(full)
        for target in map(_dense, params):
            if not getattr(getattr(target.data, "flags", None), "writeable", True):
                target.data = target.data.copy()  # implicit ones take no memory until trained
        self.param_groups.append(full)

    def check(self, group: dict[str, Any]) -> None:
        """Raise ValueError for hyperparameters out of range."""
        for name in ("lr", "weight_decay"):
            if not group[name] >= 0:
                raise ValueError(f"{self._name}: {name} must be >= 0, got {group[name]}")

    # ---- steps ---------------------------------------------------------------------------------
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or fill them with zeros."""
        for group in self.param_groups:
            for p in map(_dense, group["params"]):
                if set_to_none or p.grad is None:
                    p.grad = None
                else:
                    _dense(p.grad).zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, in place.

        closure: computes the loss and its gradients anew; what it returns is returned.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    self._step_one(p, group)
        return loss

    def _step_one(self, p: Any, group: dict[str, Any]) -> None:
        target = _dense(p)
        grad = target.grad
        if grad is None:
            return
        xp = backends.for_array(target.data).xp
        if not isinstance(grad, SparseTensor):
            factors, state = self._begin(p, target, group)
            for block in _blocks(target.data, grad.data, *state):
                self.update(xp, factors, *block)
        else:
            where, values = _touched(grad)
            if not len(values):
                return
            factors, state = self._begin(p, target, group)
            arrays = [target.data, *state]
            rows = [array[where] for array in arrays]
            self.update(xp, factors, rows[0], values, *rows[1:])
            for array, changed in zip(arrays, rows, strict=True):
                array[where] = changed
        target._bump()

    def _begin(self, p: Any, target: Tensor, group: dict[str, Any]) -> tuple[Any, list[Any]]:
        """Count a step: its numbers, and the state arrays it works on."""
        state = self.state.setdefault(p, {"step": 0})
        state["step"] += 1
        slots = self.slots(group)
        for name in slots:
            if name not in state:
                state[name] = Tensor(backends.for_array(target.data).xp.zeros_like(target.data))
        return self.factors(group, state["step"]), [state[name].data for name in slots]

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of the state arrays an update works on, each of the parameter's shape."""
        raise NotImplementedError

    def factors(self, group: dict[str, Any], step: int) -> Any:
        """Numbers that a step needs beside the arrays; steps count from 1."""
        raise NotImplementedError

    def update(self, xp: Any, factors: Any, p: Any, g: Any, *state: Any) -> None:
        """One step on arrays of one shape: change `p` and `state` in place, leave `g` alone."""
        raise NotImplementedError

    # ---- state ---------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Groups and state, with parameters replaced by their position; PyTorch's layout.

        State tensors are shared with the optimizer, as in PyTorch.
        """
        position: dict[int, int] = {}
        for p in self._parameters():
            position[id(p)] = len(position)
        return {
            "state": {position[id(p)]: dict(held) for p, held in self.state.items()},
            "param_groups": [
                {**group, "params": [position[id(p)] for p in group["params"]]}
                for group in self.param_groups
            ],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over (copies of) the groups and state of a `state_dict`.

        Raises ValueError if groups or shapes do not match; nothing is changed then.
        """
        groups = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in groups]
        own = [len(group["params"]) for group in self.param_groups]
        if sizes != own:
            raise ValueError(
                f"{self._name}: the state has groups of {sizes} parameters, this optimizer {own}"
            )
        places = [i for group in groups for i in group["params"]]
        by_place = dict(zip(places, self._parameters(), strict=True))
        state = {}
        for place, held in state_dict["state"].items():
            p = by_place[place]
            state[p] = {k: self._loaded(k, v, _dense(p)) for k, v in held.items()}
        updated = [
            {**mine, **copy.deepcopy({k: v for k, v in theirs.items() if k != "params"})}
            for mine, theirs in zip(self.param_groups, groups, strict=True)
        ]
        for group in updated:
            self.check(group)
        self.param_groups, self.state = updated, state

    def _loaded(self, name: str, value: Any, p: Tensor) -> Any:
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        if value.shape != p.shape:
            raise ValueError(
                f"{self._name}: state {name} has shape {value.shape}, its parameter {p.shape}"
            )
        return Tensor(value.to(p.device).data.astype(p.dtype, copy=True))

    def _parameters(self) -> Iterator[Any]:
        return (p for group in self.param_groups for p in group["params"])

    def __repr__(self) -> str:
        lines = []
        for i, group in enumerate(self.param_groups):
            settings = ", ".join(f"{k}={v}" for k, v in group.items() if k != "params")
            lines.append(f"  ({i}): {len(group['params'])} parameters, {settings}")
        return "\n".join([f"{self._name}(", *lines, ")"])


def _dense(p: Any) -> Tensor:
    """The dense tensor that a step changes: the values of a sparse one."""
    return p.values if isinstance(p, SparseTensor) else p


def _touched(grad: SparseTensor) -> tuple[Any, Any]:
    """Where a sparse gradient is not zero, each place once, and its values there.

    Rows of zeros count as not touched: a gradient that reaches most rows is stored on all of
    them (docs/gradients.md), and how it is stored must not change what a step does.
    """
    grad = grad.coalesce()
    values = grad.values.data
    xp = backends.for_array(values).xp
    live = (values != 0).any(axis=tuple(range(1, values.ndim)))
    coords = grad.pattern.coords
    if not bool(live.all()):
        live = xp.flatnonzero(live)
        coords, values = tuple(c[live] for c in coords), values[live]
    return coords[0] if len(coords) == 1 else coords, values


def _blocks(*arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Views of equal parts of arrays of one shape, small enough for the cache."""
    xp = backends.for_array(arrays[0]).xp
    small = arrays[0].size <= _BLOCK or xp.__name__ != "numpy"
    if small or not all(a.flags.c_contiguous for a in arrays):
        yield arrays
        return
    flat = [a.reshape(-1) for a in arrays]
    for start in range(0, flat[0].size, _BLOCK):
        yield tuple(a[start : start + _BLOCK] for a in flat)
