"""Module: parameters, buffers and modules in a tree, found by their attribute names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from sparsegrad import backends, dtypes
from sparsegrad.device import is_device, wanted
from sparsegrad.errors import DtypeError, PatternError, ShapeError
from sparsegrad.nn.parameter import Parameter
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.tensor import RemovableHandle, Tensor

__all__ = ["LoadResult", "Module"]

M = TypeVar("M", bound="Module")


class LoadResult(NamedTuple):
    """Names that a `load_state_dict(strict=False)` did not find, or did not know."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """Base class of layers and models. Subclasses call `super().__init__()`, assign Parameters
    and Modules to attributes, and define `forward`.

    >>> import sparsegrad as sg
    >>> class Scale(sg.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = sg.nn.Parameter([2.0])
    ...     def forward(self, x):
    ...         return x * self.weight
    >>> Scale()(sg.tensor([1.0, 2.0])).tolist()
    [2.0, 4.0]
    """

    training: bool
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]
    _pre_hooks: dict[int, Any]
    _hooks: dict[int, Any]
    _grad_hooks: dict[int, Any]

    def __init__(self) -> None:
        for name in ("_parameters", "_buffers", "_modules"):
            object.__setattr__(self, name, {})
        for name in ("_pre_hooks", "_hooks", "_grad_hooks"):
            object.__setattr__(self, name, {})
        object.__setattr__(self, "training", True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; called as `module(...)`."""
        raise NotImplementedError(f"{type(self).__name__}: forward is not defined")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (self._pre_hooks or self._hooks or self._grad_hooks):
            return self.forward(*args, **kwargs)
        for hook in list(self._pre_hooks.values()):
            changed = hook(self, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        out = self.forward(*args, **kwargs)
        for hook in list(self._hooks.values()):
            changed = hook(self, args, out)
            out = out if changed is None else changed
        if _is_tensor(out) and out.requires_grad:
            for hook in list(self._grad_hooks.values()):
                out.register_hook(lambda g, hook=hook: hook(self, g))
        return out

    # ---- hooks ---------------------------------------------------------------------------------
    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, args)` before `forward`; what it returns (if not None) replaces the
        positional arguments. `.remove()` of the handle takes it away."""
        return _hooked(self._pre_hooks, hook)

    def register_forward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, args, output)` after `forward`; what it returns (if not None)
        replaces the output.

        >>> import sparsegrad as sg
        >>> layer, seen = sg.nn.Linear(2, 3), []
        >>> handle = layer.register_forward_hook(lambda m, args, out: seen.append(out.shape))
        >>> _ = layer(sg.ones(5, 2))
        >>> handle.remove()
        >>> _ = layer(sg.ones(6, 2))
        >>> seen
        [(5, 3)]
        """
        return _hooked(self._hooks, hook)

    def register_output_grad_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, grad)` in each backward pass with the gradient of the output, if that
        is one tensor; what it returns (if not None) takes the gradient's place."""
        return _hooked(self._grad_hooks, hook)

    # ---- registration --------------------------------------------------------------------------
    def __setattr__(self, name: str, value: Any) -> None:
        tables = self.__dict__
        if "_parameters" not in tables:
            raise AttributeError(
                f"{type(self).__name__}: call super().__init__() before assigning {name!r}"
            )
        if isinstance(value, Parameter):
            kind = "_parameters"
        elif isinstance(value, Module):
            kind = "_modules"
        elif name in self._buffers and (value is None or _is_tensor(value)):
            kind = "_buffers"
        elif value is None and (name in self._parameters or name in self._modules):
            kind = "_parameters" if name in self._parameters else "_modules"
        elif name in self._parameters:
            raise TypeError(
                f"{type(self).__name__}.{name}: expected a Parameter or None, got "
                f"{type(value).__name__}; to change its elements, use copy_ under sg.no_grad()"
            )
        else:
            self._forget(name)
            object.__setattr__(self, name, value)
            return
        if name not in tables[kind]:
            self._forget(name)
        tables[kind][name] = value

    def __getattr__(self, name: str) -> Any:
        for kind in ("_parameters", "_buffers", "_modules"):
            held = self.__dict__.get(kind, {})
            if name in held:
                return held[name]
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self
        )

    def __delattr__(self, name: str) -> None:
        if not self._forget(name):
            object.__delattr__(self, name)

    def _forget(self, name: str) -> bool:
        found = [
            table.pop(name, self) is not self
            for table in (self._parameters, self._buffers, self._modules)
        ]
        if self.__dict__.pop(name, self) is not self:
            found.append(True)
        return any(found)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]

    def register_parameter(self, name: str, parameter: Any) -> None:
        """Add a Parameter (or None, to keep the name free) under `name`."""
        self._new_name(name)
        if parameter is not None and not isinstance(parameter, Parameter):
            raise TypeError(f"register_parameter: expected a Parameter, got {type(parameter)}")
        self._parameters[name] = parameter

    def register_buffer(self, name: str, tensor: Any) -> None:
        """Add a tensor, dense or sparse, that is saved with the state but not trained."""
        self._new_name(name)
        if tensor is not None and not _is_tensor(tensor):
            raise TypeError(f"register_buffer: expected a tensor or None, got {type(tensor)}")
        self._buffers[name] = tensor

    def add_module(self, name: str, module: Any) -> None:
        """Add a child module (or None) under `name`."""
        self._new_name(name)
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"add_module: expected a Module, got {type(module)}")
        self._modules[name] = module

    def _new_name(self, name: str) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise KeyError(f"{type(self).__name__}: a name may not be empty or hold '.': {name!r}")
        taken = name in self._parameters or name in self._buffers or name in self._modules
        if not taken and hasattr(self, name):
            raise KeyError(f"{type(self).__name__}: attribute {name!r} exists already")

    # ---- the tree ------------------------------------------------------------------------------
    def children(self) -> Iterator[Module]:
        """Modules directly below this one."""
        return (module for _, module in self.named_children())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of those directly below this one, each once."""
        first: dict[int, tuple[str, Module]] = {}
        for name, module in self._modules.items():
            if module is not None:
                first.setdefault(id(module), (name, module))
        return iter(first.values())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """(dotted name, module) of this module ("") and all below it, each once."""
        seen: set[int] = set()
        stack = [(prefix, self)]
        while stack:
            name, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield name, module
            lead = f"{name}." if name else ""
            below = [(lead + key, m) for key, m in module._modules.items() if m is not None]
            stack.extend(reversed(below))

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """(dotted name, parameter), a shared parameter once, under its first name."""
        return self._named("_parameters")

    def parameters(self) -> Iterator[Any]:
        """Every parameter once."""
        return (parameter for _, parameter in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Any]]:
        """(dotted name, buffer), a shared buffer once."""
        return self._named("_buffers")

    def buffers(self) -> Iterator[Any]:
        """Every buffer once."""
        return (buffer for _, buffer in self.named_buffers())

    def _named(self, kind: str, shared: bool = False) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for prefix, module in self.named_modules():
            for name, tensor in module.__dict__[kind].items():
                if tensor is None or (id(tensor) in seen and not shared):
                    continue
                seen.add(id(tensor))
                yield (f"{prefix}.{name}" if prefix else name), tensor

    def apply(self: M, fn: Callable[[Module], Any]) -> M:
        """Call `fn` on every module below and then on this one; returns this module."""
        for module in reversed(list(self.modules())):
            fn(module)
        return self

    # ---- modes and dtypes ----------------------------------------------------------------------
    def train(self: M, mode: bool = True) -> M:
        """Training mode (dropout drops), here and below; returns this module."""
        for module in self.modules():
            object.__setattr__(module, "training", bool(mode))
        return self

    def eval(self: M) -> M:
        """Evaluation mode, here and below; returns this module."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Train the parameters, or do not; returns this module."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or fill them with zeros."""
        for parameter in self.parameters():
            held = _dense(parameter)
            if set_to_none or held.grad is None:
                held.grad = None
            else:
                _dense(held.grad).zero_()

    def to(
        self: M, *targets: Any, device: Any = None, dtype: Any = None, non_blocking: bool = False
    ) -> M:
        """Parameters and buffers of floating-point dtype in another one, all on another device, or
        both, as `Tensor.to` takes them; in place, so optimizers keep their parameters. Returns
        this module.

        Raises DtypeError for a dtype that is not floating point, DeviceError for a device that
        cannot be used; nothing is changed then.
        """
        asked = wanted(targets, device, dtype)
        for target in asked:
            if is_device(target):
                backends.named(target)
            elif dtypes.kind(dtypes.as_dtype(target)) != "f":
                raise DtypeError(f"to: a module takes floating-point dtypes, got {target}")
        for target in asked:
            self._to(target)
        return self

    def cpu(self: M) -> M:
        """Everything in host memory."""
        return self.to("cpu")

    def cuda(self: M, index: int | None = None) -> M:
        """Everything on a CUDA device, by default that of `sg.cuda.set_device`; DeviceError where
        there is none."""
        return self.to("cuda" if index is None else f"cuda:{index}")

    def _to(self, target: Any) -> None:
        held = [tensor for kind in ("_parameters", "_buffers") for _, tensor in self._named(kind)]
        tensors = [_dense(tensor) for tensor in held]
        if not is_device(target):
            tensors = [tensor for tensor in tensors if tensor.is_floating_point()]
        moved = [tensor.detach().to(target).data for tensor in tensors]
        if is_device(target):
            for tensor in held:
                if isinstance(tensor, SparseTensor):
                    tensor.pattern = tensor.pattern.to_device(target)
        for tensor, data in zip(tensors, moved, strict=True):
            if data is tensor.data:
                continue
            tensor.data = data
            tensor._bump()
            if tensor.grad is not None:
                tensor.grad = tensor.grad.detach().to(target)

    def half(self: M) -> M:
        """Parameters in float16."""
        return self.to(dtypes.float16)

    def bfloat16(self: M) -> M:
        """Parameters in bfloat16 (extra `bf16`)."""
        return self.to("bfloat16")

    def float(self: M) -> M:
        """Parameters in float32."""
        return self.to(dtypes.float32)

    def double(self: M) -> M:
        """Parameters in float64."""
        return self.to(dtypes.float64)

    # ---- state ---------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers by dotted name, detached; memory is shared with the module.

        >>> import sparsegrad as sg
        >>> state = sg.nn.Linear(2, 1).state_dict()
        >>> {name: tensor.shape for name, tensor in state.items()}
        {'weight': (1, 2), 'bias': (1,)}
        """
        return {
            name: tensor.detach()
            for kind in ("_parameters", "_buffers")
            for name, tensor in self._named(kind, shared=True)
        }

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> LoadResult:
        """Copy tensors of a `state_dict` into parameters and buffers of the same name and shape,
        in their dtypes.

        strict: every name must be on both sides, or KeyError.

        Raises ShapeError for another shape, TypeError where one is sparse and the other dense,
        PatternError for a sparse tensor on another pattern. All is checked before anything is
        changed.
        """
        own = {
            name: tensor
            for kind in ("_parameters", "_buffers")
            for name, tensor in self._named(kind, shared=True)
        }
        result = LoadResult(
            [name for name in own if name not in state],
            [name for name in state if name not in own],
        )
        if strict and (result.missing_keys or result.unexpected_keys):
            raise KeyError(
                f"load_state_dict: missing {result.missing_keys}, "
                f"unexpected {result.unexpected_keys}"
            )
        shared = [name for name in own if name in state]
        for name in shared:
            _check_fits(name, own[name], state[name])
        for name in shared:
            target = _dense(own[name])
            target.data[...] = _dense(state[name]).to(target.device).data
            target._bump()
        return result

    # ---- text ----------------------------------------------------------------------------------
    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's line."""
        return ""

    def __repr__(self) -> str:
        head = f"{type(self).__name__}({self.extra_repr()}"
        if not self._modules:
            return head + ")"
        lines = [f"({name}): {module!r}" for name, module in self._modules.items()]
        inner = "\n".join(lines).replace("\n", "\n  ")
        return f"{head}\n  {inner}\n)"


def _hooked(hooks: dict[int, Any], hook: Callable[..., Any]) -> RemovableHandle:
    key = max(hooks, default=0) + 1
    hooks[key] = hook
    return RemovableHandle(hooks, key)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, SparseTensor))


def _dense(tensor: Any) -> Tensor:
    """The dense tensor that holds the numbers."""
    return tensor.values if isinstance(tensor, SparseTensor) else tensor


def _check_fits(name: str, own: Any, given: Any) -> None:
    if not _is_tensor(given) or isinstance(given, SparseTensor) != isinstance(own, SparseTensor):
        kind = "SparseTensor" if isinstance(own, SparseTensor) else "Tensor"
        raise TypeError(
            f"load_state_dict: {name} is a {kind}, the state has a {type(given).__name__}"
        )
    if tuple(given.shape) != tuple(own.shape):
        raise ShapeError(
            f"load_state_dict: {name} has shape {tuple(own.shape)}, the state has "
            f"{tuple(given.shape)}"
        )
    if isinstance(own, SparseTensor) and not own.pattern.same_as(given.pattern):
        raise PatternError(
            f"load_state_dict: the entries of {name} (nnz {own.nnz}) are not where those of the "
            f"state are (nnz {given.nnz})"
        )
    if _dense(given).dtype.kind == "c" and _dense(own).dtype.kind != "c":
        raise DtypeError(f"load_state_dict: {name} is real, the state is complex")
