"""Optimizer: parameter groups, state, and what a step may touch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sparsegrad import backends, dtypes
from sparsegrad.backends.quiet import quiet
from sparsegrad.backends.steps import RowGradient, blocks
from sparsegrad.engine.mode import enable_grad, no_grad, watcher
from sparsegrad.errors import DtypeError, GraphError, ShapeError
from sparsegrad.optim import rows
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.tensor import Tensor

__all__ = ["Optimizer"]

# Changes of hyperparameters that are kept for rows which have not caught up; more flush them.
_MOST_RUNS = 1024


class _Shared:
    """What the parameters of a group have in common in a step."""

    __slots__ = ("factors", "in_rows", "row_slots", "slots", "whole")

    def __init__(self, slots: tuple[str, ...], row_slots: dict[str, Any]) -> None:
        self.slots, self.row_slots = slots, row_slots
        self.factors: dict[int, Any] = {}  # by how many steps a parameter has made
        # By device, what one call does for all parameters there: steps in rows, and everywhere.
        self.in_rows: dict[Any, list[Any]] = {}
        self.whole: dict[Any, list[Any]] = {}


class Optimizer:
    """Base class. A subclass gives its defaults and defines `slots`, `factors` and `update`.

    params: leaf tensors, dense or sparse, that require a gradient; or dicts {"params": [...],
        "lr": ...} whose other entries override the defaults for that group.
    defaults: hyperparameters of every group.

    Three hyperparameters that every optimizer has, for every group:

    sparse: which rows (slices of the first dimension) a step touches. "dense": all of them.
        "lazy": those whose gradient is not zero; the others and their state stand still. Both
        whatever the type of the gradient. "auto": all for a dense gradient, those it stores (or
        its elements) for a sparse one; it suits parameters whose gradient is always of one type.
    decay: what weight decay and momentum do to rows that a step does not touch. "touched":
        nothing. "all": what a step with a gradient of zero does. "catch_up": the same, but later:
        before the row is next touched, or at `flush`; see `catch_up`. Only SGD and AdamW, whose
        steps without gradient are linear, know the last two.
    maximize: go up instead of down: minus the gradient takes its place.

    Raises TypeError, GraphError or ValueError for something else, for a result of an op, for a
    parameter given twice, and for no parameters.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([3.0], requires_grad=True)
    >>> optimizer = sg.optim.SGD([x], lr=0.5)
    >>> (x**2).sum().backward()
    >>> optimizer.step()
    >>> x
    tensor([0.], requires_grad=True)
    """

    decays: tuple[str, ...] = ("touched",)

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        shared = {"sparse": "auto", "decay": "touched", "maximize": False}
        self.defaults = shared | defaults
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Any, dict[str, Any]] = {}  # per parameter; tensors are looked up by id
        if isinstance(params, (Tensor, SparseTensor)) or not hasattr(params, "__iter__"):
            hint = "; see its parameters()" if hasattr(params, "parameters") else ""
            raise TypeError(
                f"{self._name}: params must be an iterable of tensors, got one "
                f"{type(params).__name__}{hint}"
            )
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
        if "params" not in group:
            raise ValueError(f"{self._name}: a group needs 'params', got {sorted(group)}")
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
            if dtypes.kind(p.dtype) != "f":
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
        if group["sparse"] not in ("auto", "lazy", "dense"):
            raise ValueError(
                f"{self._name}: sparse must be 'auto', 'lazy' or 'dense', got {group['sparse']!r}"
            )
        if group["decay"] not in ("touched", "all", "catch_up"):
            raise ValueError(
                f"{self._name}: decay must be 'touched', 'all' or 'catch_up', got "
                f"{group['decay']!r}"
            )
        if group["decay"] not in self.decays:
            raise ValueError(
                f"{self._name}: decay={group['decay']!r} has no meaning here: weight decay goes "
                f"through the averages of the gradient, which rows that are not touched do not "
                f"update; use decay='touched', sparse='dense', or AdamW"
            )
        if group["decay"] != "touched" and group["sparse"] == "dense":
            raise ValueError(
                f"{self._name}: decay={group['decay']!r} is about rows that a step does not touch; "
                f"with sparse='dense' there are none"
            )

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
        with no_grad(), quiet():
            watching = watcher.get()
            if watching is None:
                self._step()
            else:
                where = _dense(self.param_groups[0]["params"][0]).data
                watching.stepping(type(self).__name__, self._step, where)
        return loss

    def _step(self) -> None:
        for group in self.param_groups:
            shared = _Shared(self.slots(group), self.row_slots(group))
            for p in group["params"]:
                self._step_one(p, group, shared)
            if self.kernel is None:
                continue
            for steps in shared.in_rows.values():
                backends.for_array(steps[0][1]).rows_of_many(self.kernel, steps)
            for steps in shared.whole.values():
                backends.for_array(steps[0][1]).steps_of_many(self.kernel, steps)

    def _step_one(self, p: Any, group: dict[str, Any], shared: _Shared) -> None:
        """Make the step of one parameter, or add it to those that one call makes."""
        target = _dense(p)
        if target._grad is None:
            return
        grad = self._whole_rows(target._grad, group)
        if grad is not None:
            if len(grad.rows):
                factors, state = self._begin(p, target, group, shared)
                steps = shared.in_rows.setdefault(target.device, [])
                steps.append((factors, target.data, grad, *state))
                target._bump()
            return
        where, g = self._where(target.grad, group)
        if where is not None and not len(g) and group["decay"] == "touched":
            return
        factors, state = self._begin(p, target, group, shared)
        self._move_others(p, target, group, where)
        g = -g if group["maximize"] else g
        if where is None and self.kernel:
            shared.whole.setdefault(target.device, []).append((factors, target.data, g, *state))
        elif where is None:
            self._move(factors, target.data, g, *state)
        elif len(g):
            arrays = [target.data, *state]
            parts = [array[where] for array in arrays]
            self._move(factors, parts[0], g, *parts[1:])
            for array, changed in zip(arrays, parts, strict=True):
                array[where] = changed
        target._bump()

    def _whole_rows(self, grad: Any, group: dict[str, Any]) -> RowGradient | None:
        """The gradient by rows, where a kernel makes the step in just these."""
        if not self.kernel or group["decay"] != "touched" or group["sparse"] == "dense":
            return None
        found = None if isinstance(grad, Tensor) else rows.pending(grad)
        if found is None or not group["maximize"]:
            return found
        return found._replace(values=-found.values)

    def _move(self, factors: Any, *arrays: Any) -> None:
        """One step on arrays p, g, *state."""
        be = backends.for_array(arrays[0])
        if self.kernel:
            getattr(be, self.kernel)(factors, *arrays)
            return
        by_row = any(a.shape != arrays[0].shape for a in arrays)
        for block in blocks(be.xp, list(arrays), by_row):
            self.update(be.xp, factors, *block)

    def _where(self, grad: Any, group: dict[str, Any]) -> tuple[Any, Any]:
        """Which rows a step touches (None: all), and the gradient there."""
        mode = group["sparse"]
        if not isinstance(grad, SparseTensor):
            which = rows.live_rows(grad.data) if mode == "lazy" else None
            return which, grad.data if which is None else grad.data[which]
        if mode == "dense":
            return None, grad.to_dense().data
        whole = mode == "lazy" or group["decay"] != "touched" or self.row_slots(group)
        return rows.touched_rows(grad) if whole else rows.touched(grad)

    def _begin(
        self, p: Any, target: Tensor, group: dict[str, Any], shared: _Shared
    ) -> tuple[Any, list[Any]]:
        """Count a step: its numbers, and the state arrays it works on."""
        state = self.state.get(p)
        if state is None:
            state = self.state[p] = {"step": 0}
        step = state["step"] = state["step"] + 1
        slots, row_slots, shape = shared.slots, shared.row_slots, target.data.shape
        for name in slots:
            if name not in state or state[name].data.shape != shape:
                self._allot(state, name, target, shape, target.dtype, group)
        for name, dtype in row_slots.items():
            self._allot(state, name, target, shape[:1] or (1,), dtype or target.dtype, group)
        if group["decay"] == "catch_up":
            self._remember(p, group, backends.for_array(target.data).xp)
        factors = shared.factors.get(step)
        if factors is None:
            factors = shared.factors[step] = self.factors(group, step)
        return factors, [state[name].data for name in (*slots, *row_slots)]

    def _allot(
        self, state: Any, name: str, target: Tensor, shape: Any, dtype: Any, group: dict[str, Any]
    ) -> None:
        """Make the state of a first step; what is there must have the right shape."""
        if name not in state:
            xp = backends.for_array(target.data).xp
            state[name] = Tensor(xp.full(shape, self.initial(name, group), dtype=dtype))
        elif state[name].shape != shape:
            raise ShapeError(
                f"{self._name}: state {name} has shape {state[name].shape}, its parameter "
                f"{target.shape}; use optimizer.repattern_ to change a pattern"
            )

    # ---- rows that stand still -----------------------------------------------------------------
    def _move_others(self, p: Any, target: Tensor, group: dict[str, Any], where: Any) -> None:
        """What decay does beside the step that was begun, in rows `where` (None: all)."""
        step = self.state[p]["step"]
        if group["decay"] == "catch_up":
            self._catch_up(p, group, where, step - 1)
            self.state[p]["last"].data[... if where is None else where] = step
        elif group["decay"] == "all" and where is not None:
            others = backends.for_array(target.data).xp.ones(len(target.data), dtype=bool)
            others[where] = False
            runs = [[1, self.idle(group)]]
            self._skip(p, others.nonzero()[0], *rows.missed(runs, np.zeros(1, int), 1))

    def _remember(self, p: Any, group: dict[str, Any], xp: Any) -> None:
        """Note what the step that begins does to rows it does not touch."""
        state = self.state[p]
        if "last" not in state:
            n = _dense(p).shape[:1] or (1,)
            state["last"], state["runs"] = Tensor(xp.full(n, state["step"] - 1, dtype="int64")), []
        runs, idle = state["runs"], self.idle(group)
        if runs and (len(runs[0][1]) != len(idle) or len(runs) >= _MOST_RUNS):
            self._catch_up(p, group, None, state["step"] - 1)
            runs.clear()
        if not runs or runs[-1][1] != idle:
            runs.append([state["step"], idle])

    def _catch_up(self, p: Any, group: dict[str, Any], where: Any, upto: int) -> None:
        """Make up for the steps until `upto` that rows (None: all) have missed."""
        state = self.state[p]
        last = state["last"].data
        xp = backends.for_array(last).xp
        which = xp.arange(last.size) if where is None else where
        which = which[last[which] < upto]
        if not which.size or not state["runs"]:
            return
        host = backends.for_array(last).to_host(last[which])
        self._skip(p, which, *rows.missed(state["runs"], host, upto))
        last[which] = upto

    def _skip(self, p: Any, where: Any, maps: Any, which: Any) -> None:
        """(p, *state) of rows times a matrix (k, k) each: maps (u, k, k), row e takes which[e]."""
        target = _dense(p)
        state = self.state[p]
        names = self.moved[: maps.shape[1] - 1]
        arrays = [target.data, *(state[name].data for name in names)]
        if target.ndim == 0:
            arrays = [array.reshape(1) for array in arrays]
        be = backends.for_array(target.data)
        parts = [array[where] for array in arrays]
        lead = (-1, *(1,) * (arrays[0].ndim - 1))
        for i, array in enumerate(arrays):
            scales = [
                be.asarray(maps[which, i, j].astype(target.dtype)).reshape(lead)
                for j in range(len(arrays))
            ]
            array[where] = sum(s * part for s, part in zip(scales, parts, strict=True))
        target._bump()

    def catch_up(self, p: Any, index: Any) -> None:
        """Before rows of `p` are read: bring rows `index` (any shape, integers) up to date.

        For groups with decay="catch_up", whose rows are behind while nothing touches them; with
        it a training run equals that of the dense optimizer. Does nothing for other groups.
        """
        with no_grad():
            for group in self.param_groups:
                if any(p is q for q in group["params"]) and "last" in self.state.get(p, {}):
                    be = backends.for_array(_dense(p).data)
                    ids = be.asarray(index.data if isinstance(index, Tensor) else index)
                    ids = be.xp.unique(ids.reshape(-1))
                    self._catch_up(p, group, ids, self.state[p]["step"])

    def flush(self) -> None:
        """Bring all rows up to date: before evaluation or saving, for decay="catch_up"."""
        with no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if "last" in self.state.get(p, {}):
                        self._catch_up(p, group, None, self.state[p]["step"])
                        self.state[p]["runs"].clear()

    def repattern_(self, p: SparseTensor, pattern: Any) -> Any:
        """`p.repattern_(pattern)` for a parameter of this optimizer; its state moves along: kept
        where entries stay, 0 where they are new. Returns the plan, see `sg.repattern_`.

        Raises ValueError for a tensor that this optimizer does not train.
        """
        if not any(p is q for q in self._parameters()):
            raise ValueError(f"{self._name}: repattern_: not a parameter of this optimizer")
        old = p.nnz
        plan = p.repattern_(pattern)
        for name, held in self.state.get(p, {}).items():
            if isinstance(held, Tensor) and held.shape[:1] == (old,):
                self.state[p][name] = plan.apply(held)
        return plan

    # ---- what a subclass says ------------------------------------------------------------------
    kernel: str | None = None  # the method of a backend that is its step; None: `update`
    moved: tuple[str, ...] = ()  # slots that a step without gradient moves together with p

    def idle(self, group: dict[str, Any]) -> list[list[float]]:
        """What a step without gradient does to (p, *moved), as a matrix."""
        raise NotImplementedError

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of the state arrays an update works on, each of the parameter's shape."""
        raise NotImplementedError

    def row_slots(self, group: dict[str, Any]) -> dict[str, Any]:
        """State arrays with one number a row, and their dtypes (None: the parameter's)."""
        return {}

    def initial(self, name: str, group: dict[str, Any]) -> float:
        """What a state array is filled with at first."""
        return 0

    def factors(self, group: dict[str, Any], step: int) -> Any:
        """Numbers that a step needs beside the arrays; steps count from 1."""
        raise NotImplementedError

    def update(self, xp: Any, factors: Any, p: Any, g: Any, *state: Any) -> None:
        """One step on arrays of one shape (those of `row_slots`: one number a row), `slots` first:
        change `p` and `state` in place, leave `g` alone."""
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
        by_row = value.shape == (p.shape[:1] or (1,))
        if value.shape != p.shape and not by_row:
            raise ValueError(
                f"{self._name}: state {name} has shape {value.shape}, its parameter {p.shape}"
            )
        dtype = p.dtype if dtypes.kind(value.dtype) == "f" else value.dtype
        return Tensor(value.to(p.device).data.astype(dtype, copy=True))

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
