"""Modules and parameters in lists and dicts. `Sequential` calls them; these only hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sparsegrad.nn.activations import ReLU, Sigmoid, Tanh
from sparsegrad.nn.layers import Linear
from sparsegrad.nn.module import Module

__all__ = ["ModuleDict", "ModuleList", "ParameterList", "Sequential"]

# Activations that are computed in one pass with the bias of the Linear before them.
_JOINED = {ReLU: "relu", Sigmoid: "sigmoid", Tanh: "tanh"}


class Sequential(Module):
    """Modules called one after another, each on what the one before returned.

    modules: Modules, or one mapping of names to Modules.

    A `Linear` and the `ReLU`, `Sigmoid` or `Tanh` after it are called as one, with the same
    result, if neither has hooks: bias and activation are then one pass.

    >>> import sparsegrad as sg
    >>> model = sg.nn.Sequential(sg.nn.Linear(3, 4), sg.nn.ReLU())
    >>> len(model), model[1]
    (2, ReLU())
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        named: Any = enumerate(modules)
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            named = modules[0].items()
        for name, module in named:
            self.add_module(str(name), module)

    def forward(self, x: Any) -> Any:
        """What the last module returns."""
        modules = list(self._modules.values())
        joined = False  # with the Linear before
        for module, after in zip(modules, [*modules[1:], None], strict=True):
            if joined:
                joined = False
                continue
            name = _JOINED.get(type(after))
            joined = name is not None and plain(module, Linear) and plain(after, type(after))
            x = module.forward(x, name) if joined else module(x)
        return x

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: int | slice) -> Any:
        chosen = list(self._modules.items())[index]
        return Sequential(dict(chosen)) if isinstance(chosen, list) else chosen[1]


def plain(module: Any, kind: Any) -> bool:
    """Whether a call of the module is the `forward` of this class and no more."""
    if type(module) is not kind or "forward" in vars(module):
        return False
    return not (module._pre_hooks or module._hooks or module._grad_hooks)


class ModuleList(Module):
    """Modules in a list: found by `parameters()`, saved as "0", "1", ...; not callable.

    >>> import sparsegrad as sg
    >>> layers = sg.nn.ModuleList([sg.nn.Linear(2, 2) for _ in range(3)])
    >>> layers.append(sg.nn.ReLU()) is layers, len(layers), layers[-1]
    (True, 4, ReLU())
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def append(self, module: Module) -> ModuleList:
        """Add a module at the end; returns the list."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add modules at the end; returns the list."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Put a module before position `index`, as in a list."""
        held = list(self)
        held.insert(index, module)
        self._modules.clear()
        self.extend(held)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: int | slice) -> Any:
        chosen = list(self._modules.values())[index]
        return ModuleList(chosen) if isinstance(chosen, list) else chosen

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(list(self._modules)[index], module)


class ModuleDict(Module):
    """Modules under names, in the order they were added; not callable.

    >>> import sparsegrad as sg
    >>> heads = sg.nn.ModuleDict({"a": sg.nn.Linear(2, 1)})
    >>> heads["b"] = sg.nn.Linear(2, 3)
    >>> list(heads), "b" in heads
    (['a', 'b'], True)
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add or replace modules."""
        for name, module in modules.items():
            self[name] = module

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> Iterable[Module]:
        """The modules."""
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Module]]:
        """Names and modules."""
        return self._modules.items()

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __getitem__(self, name: str) -> Module:
        return self._modules[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        del self._modules[name]


class ParameterList(Module):
    """Parameters in a list, dense or sparse: found by `parameters()`, saved as "0", "1", ...

    >>> import sparsegrad as sg
    >>> weights = sg.nn.ParameterList([sg.nn.Parameter([1.0]), sg.nn.Parameter([2.0, 3.0])])
    >>> [p.shape for p in weights], len(list(weights.parameters()))
    ([(1,), (2,)], 2)
    """

    def __init__(self, parameters: Iterable[Any] = ()) -> None:
        super().__init__()
        self.extend(parameters)

    def append(self, parameter: Any) -> ParameterList:
        """Add a Parameter at the end; returns the list."""
        self.register_parameter(str(len(self)), parameter)
        return self

    def extend(self, parameters: Iterable[Any]) -> ParameterList:
        """Add Parameters at the end; returns the list."""
        for parameter in parameters:
            self.append(parameter)
        return self

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parameters.values())

    def __getitem__(self, index: int) -> Any:
        return list(self._parameters.values())[index]

    def __setitem__(self, index: int, parameter: Any) -> None:
        setattr(self, list(self._parameters)[index], parameter)
