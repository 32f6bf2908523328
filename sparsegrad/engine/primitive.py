"""Primitives: a forward on raw arrays, and one gradient rule per differentiable input.

    @primitive
    def mul_p(xp, a, b):
        return xp.multiply(a, b)

    mul_p.defvjp(a=lambda g, b: g * b, b=lambda g, a: g * a)

The first parameter is `xp` (the array module) or `be` (the backend). Further positional
parameters are differentiable inputs (`=None` makes one optional, `*xs` takes any number),
keyword-only ones are static. A rule's parameters say what it needs, by name, and that is what is
kept for it:

    g              the cotangent of the output (always first; a list for several outputs)
    out, <output>  the output, by its name where there are several
    <input>        an input           <input>_meta  its shape and dtype, without keeping it
    <static>       a static argument  <aux>         an auxiliary result
    needs          joint rules only: which of their inputs need a gradient
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from sparsegrad import backends, dtypes
from sparsegrad.backends.quiet import SILENT, restore, silence
from sparsegrad.engine import node as nodes
from sparsegrad.engine.graph import Edge
from sparsegrad.engine.mode import recording
from sparsegrad.engine.node import Meta, recorded
from sparsegrad.engine.refusal import check_devices, complaint, explained
from sparsegrad.engine.rules import (
    AUX,
    INPUT,
    META,
    OUT,
    STATIC,
    XS,
    Plan,
    Rule,
    make_plan,
    parse,
    ruled,
)
from sparsegrad.errors import SparsegradError
from sparsegrad.memory import owner

__all__ = ["Meta", "Primitive", "primitive", "registry"]

registry: dict[str, Primitive] = {}

_SCALARS = (int, float, bool, complex)
_F4, _F8 = np.dtype(np.float32), np.dtype(np.float64)
_ndarray = np.ndarray
_NO_STATIC: dict[str, Any] = {}
# The tensor class, handed over by `sparsegrad.tensor`: the engine does not import it.
_Tensor: Any = None
_make: Callable[[Any, Any, int], Any]
_convert: Callable[[Any, str], Any]


def use_tensor_type(cls: Any, make: Callable[..., Any], convert: Callable[..., Any]) -> None:
    """Hand the engine the class that primitives take and return."""
    global _Tensor, _make, _convert
    _Tensor, _make, _convert = cls, make, convert
    nodes.use_tensor_type(cls, make)


class Primitive:
    """A differentiable function of arrays. Make one with `@primitive`."""

    def __init__(
        self,
        forward: Callable[..., Any],
        *,
        aux: tuple[str, ...] = (),
        outputs: tuple[str, ...] = (),
        view: bool = False,
        passes_g: bool | Literal["parts"] = False,
        fuse: bool = False,
        promote: str = "same",
    ) -> None:
        if promote not in ("same", "float", "none"):
            raise ValueError(f"primitive: promote must be 'same', 'float' or 'none', got {promote}")
        self.forward, self.name, self.__doc__ = forward, forward.__name__, forward.__doc__
        self.__module__ = forward.__module__
        self.aux, self.outputs, self.view, self.promote = aux, outputs, view, promote
        params = list(inspect.signature(forward).parameters.values())
        if not params or params[0].name not in ("xp", "be"):
            raise TypeError(f"{self.name}: the first parameter must be 'xp' or 'be'")
        self._takes_xp = params[0].name == "xp"
        if fuse and not self._takes_xp:
            raise TypeError(f"{self.name}: a formula to fuse takes 'xp'")
        self._fused = fuse
        self.inputs = tuple(p.name for p in params[1:] if p.kind is p.POSITIONAL_OR_KEYWORD)
        variadic = [p.name for p in params if p.kind is p.VAR_POSITIONAL]
        self.variadic = variadic[0] if variadic else None
        statics = [p for p in params if p.kind is p.KEYWORD_ONLY]
        self.statics = tuple(p.name for p in statics)
        self._defaults = {p.name: p.default for p in statics if p.default is not p.empty}
        self.rules: list[Rule] = []
        self.sparse: Callable[..., Any] | None = None
        self._ruled = 0  # inputs that have a rule, one bit each
        self._plans: dict[int, Plan] = {}
        self._plain = not aux and not outputs
        self._simple = self._plain and not view and self._takes_xp
        self.passes_g = view or passes_g
        if self.name in registry:
            raise TypeError(f"primitive {self.name} is defined twice")
        registry[self.name] = self

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"

    # ---- rules ---------------------------------------------------------------------------------
    def defvjp(
        self,
        *joint: Any,
        sparse_g: bool | tuple[str, ...] = False,
        **rules: Callable[..., Any],
    ) -> Primitive:
        """Add gradient rules: `name=rule`, or `("a", "b"), rule` for a joint one.

        sparse_g: True, or the inputs whose rules take a sparse cotangent; others get a dense one.
        An unknown input, or a rule that asks for an unknown name, raises TypeError here.
        """
        if joint:
            names, rule = joint
            self.rules.append(parse(self, tuple(names), rule, True, bool(sparse_g)))
        for name, rule in rules.items():
            takes_sparse = sparse_g if isinstance(sparse_g, bool) else name in sparse_g
            self.rules.append(parse(self, (name,), rule, name == self.variadic, takes_sparse))
        self._plans.clear()
        self._ruled = ruled(self)
        return self

    def defsparse(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Say what a call with a SparseTensor among its inputs means (a decorator)."""
        self.sparse = fn
        return fn

    # ---- the call ------------------------------------------------------------------------------
    def __call__(self, *args: Any, **static: Any) -> Any:
        watched = _watched  # read once: another thread may close the last profile meanwhile
        if watched is not None:
            return watched(self, args, static)
        if self._simple and not static and _straight:
            if len(args) == 2:
                return _binary(self, args[0], args[1])
            if len(args) == 1:
                return _unary(self, args[0])
        return self._general(args, static)

    # Most ops of most programs are on NumPy's float32 or float64. These two are `__call__` with as
    # little overhead for them as Python allows, of primitives with `xp` and one output that is no
    # view. Whatever else comes, errors included, goes the general way.
    def unary(self, a: Any) -> Any:
        """`self(a)`."""
        if not _shortcut:
            watched = _watched
            return self(a) if watched is None else watched(self, (a,), _NO_STATIC)
        return _unary(self, a)

    def binary(self, a: Any, b: Any) -> Any:
        """`self(a, b)`."""
        if not _shortcut:
            watched = _watched
            return self(a, b) if watched is None else watched(self, (a, b), _NO_STATIC)
        return _binary(self, a, b)

    def _general(self, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Any inputs: their dtypes promoted, their device found."""
        tensor_type = _Tensor
        arrays: list[Any] = []
        needs = 0
        first: Any = None
        dtype: Any = None
        uniform = True
        complex_scalar = False
        bit = 1
        for a in args:
            if isinstance(a, tensor_type):
                data = a.data
                arrays.append(data)
                if a._requires_grad:
                    needs |= bit
                if dtype is None:
                    first, dtype = data, data.dtype
                elif data.dtype is not dtype and data.dtype != dtype:
                    uniform = False
                if type(data) is not type(first):
                    check_devices(self, args, static)
            elif a is None or type(a) in _SCALARS:
                arrays.append(a)
                complex_scalar = complex_scalar or type(a) is complex
            else:
                return self._foreign(args, static)
            bit += bit
        if first is None:
            return self._foreign(args, static)
        narrow = None
        if (not uniform or dtype.char not in "fd" or complex_scalar) and self.promote != "none":
            arrays, narrow = self._promoted(arrays, first)
        if type(first) is np.ndarray and self._takes_xp:
            lib: Any = np
        else:
            lib = backends.for_array(first)
            if type(first) is not np.ndarray:
                check_devices(self, args, static)
                static = {k: _moved(v, lib) for k, v in static.items()}
            if self._takes_xp and not self._fused:
                lib = lib.xp
        return self._finish(args, static, needs, lib, arrays, narrow)

    def _finish(
        self,
        args: tuple[Any, ...],
        static: dict[str, Any],
        needs: int,
        lib: Any,
        arrays: Any,
        narrow: np.dtype | None = None,
    ) -> Any:
        """Run the forward, and record it if an input needs a gradient."""
        token = silence(SILENT)
        try:
            if self._fused and lib is not np:
                result = lib.fused(self.forward, *arrays, **static)
            else:
                result = self.forward(lib, *arrays, **static)
            if narrow is not None:
                result = self._narrowed(result, narrow)
        except SparsegradError:
            raise
        except Exception as error:
            found = explained(self, error, args, static)
            if found is error:
                raise
            raise found from error
        finally:
            restore(token)
        if self._plain:
            if type(result) is not np.ndarray and isinstance(result, np.generic):
                result = np.asarray(result)
            # "V": bfloat16
            if needs & self._ruled and recording.get() and result.dtype.kind in "fcV":
                out = self._record(args, static, needs, (result,), ())
            else:
                out = _make(result, None, 0)
            if self.view:
                self._share_version(args[0], out)
            return out
        n = len(self.outputs) or 1
        outs = tuple(np.asarray(r) if isinstance(r, np.generic) else r for r in result[:n])
        if needs & self._ruled and recording.get():
            tensors = self._record(args, static, needs, outs, result[n:])
        else:
            tensors = tuple(_make(r, None, 0) for r in outs)
        return tensors if self.outputs else tensors[0]

    def _record(
        self, args: Any, static: dict[str, Any], needs: int, outs: tuple[Any, ...], aux: Any
    ) -> Any:
        if len(args) < len(self.inputs):  # optional inputs that were left out
            args = (*args, *(None,) * (len(self.inputs) - len(args)))
        key = 1 << len(args) | needs & self._ruled
        plan = self._plans.get(key) or self._plan(key)
        edges = []
        for i in plan.inputs:
            a = args[i]
            data = a.data
            edges.append((a._node or a, a._index, data.shape, data.dtype))
        saved = []
        for kind, which in plan.saves:
            if kind == INPUT:
                saved.append(args[which])
            elif kind == OUT:
                saved.append(outs[which])
            elif kind == STATIC:
                saved.append(static[which] if which in static else self._defaults[which])
            elif kind == META:
                saved.append(_meta(args[which]))
            elif kind == AUX:
                saved.append(aux[which])
            elif kind == XS:
                saved.append(args)
            else:
                saved.append(tuple(_meta(a) for a in args))
        node = recorded(plan, edges, saved)
        if self._plain:
            return _make(outs[0], node, 0)
        if len(outs) == 1:
            return (_make(outs[0], node, 0),)
        node.n_out = len(outs)
        node.outs_meta = [Meta(r.shape, r.dtype) for r in outs]
        return tuple([_make(r, node, i) for i, r in enumerate(outs)])

    def _plan(self, key: int) -> Plan:
        """What is kept and run, by inputs that need gradients: bits under a leading one, which
        says how many inputs there are."""
        plan = self._plans[key] = make_plan(self, key.bit_length() - 1, key)
        return plan

    # ---- arguments that need more than the fast path -------------------------------------------
    def _foreign(self, args: Any, static: dict[str, Any]) -> Any:
        """Inputs that are not tensors or numbers: sparse tensors, arrays, lists."""
        for a in args:
            if getattr(a, "_is_sparse", False):
                if self.sparse is None:
                    raise TypeError(complaint(self, args, "no meaning for sparse tensors"))
                return self.sparse(*args, **static)
        seen = any(isinstance(a, _Tensor) for a in args)
        converted = []
        for a in args:
            if not (a is None or isinstance(a, _Tensor) or (seen and type(a) in _SCALARS)):
                a, seen = _convert(a, self.name), True
            converted.append(a)
        if not seen:
            raise TypeError(complaint(self, args, "needs at least one tensor"))
        return self(*converted, **static)

    def _promoted(self, arrays: list[Any], first: Any) -> tuple[list[Any], np.dtype | None]:
        """The arrays in one dtype, and that of the result if it may come out wider.

        16-bit floats are for storage: what NumPy computes of them it computes in float32, rounded
        once. CuPy's functions do so by themselves, and backends take them as they are.
        """
        dtype = dtypes.result_type(*[a for a in arrays if a is not None])
        if self.promote == "float" and dtypes.kind(dtype) not in "fc":
            dtype = dtypes.get_default_dtype()
        wide = dtypes.accumulator(dtype)
        narrow = None if wide is dtype else dtype
        if self._takes_xp and type(first) is np.ndarray:
            dtype = wide
        be = backends.for_array(first)
        return [
            be.convert(a, dtype) if hasattr(a, "dtype") else a for a in arrays
        ], narrow  # Python numbers stay: they never widen an array that has the result's dtype

    def _narrowed(self, result: Any, dtype: np.dtype) -> Any:
        if self._plain:
            return _narrow(result, dtype)
        n = len(self.outputs) or 1
        return (*[_narrow(r, dtype) for r in result[:n]], *result[n:])

    def _share_version(self, source: Any, out: Any) -> None:
        """A view shares the in-place counter of what it looks into."""
        if owner(out.data) is owner(source.data):
            out._version = source._counter()


def _moved(value: Any, be: Any) -> Any:
    """A static argument with its index arrays and masks, if in host memory, on the device."""
    if type(value) is np.ndarray:
        return be.asarray(value)
    return tuple([_moved(v, be) for v in value]) if type(value) is tuple else value


def _narrow(array: Any, dtype: np.dtype) -> Any:
    if array.dtype.kind != "f" or array.dtype == dtype:
        return array
    if isinstance(array, np.generic):
        return array.astype(dtype)
    return backends.for_array(array).convert(array, dtype)


def _meta(a: Any) -> Any:
    if a is None:
        return None
    if isinstance(a, _Tensor):
        return Meta(a.data.shape, a.data.dtype)
    return Meta((), dtypes.result_type(a))


# ---- shortcuts ---------------------------------------------------------------------------------
def _unary(self: Primitive, a: Any) -> Any:
    if isinstance(a, _Tensor):
        x = a.data
        dtype = x.dtype
        if (dtype is _F4 or dtype is _F8) and type(x) is _ndarray:
            forward = self.forward
            token = silence(SILENT)
            try:
                out = forward(np, x)
            except Exception:
                return self._general((a,), _NO_STATIC)  # which says what is wrong
            finally:
                restore(token)
            if type(out) is not _ndarray:
                out = np.asarray(out)
            if a._requires_grad and recording.get() and self._ruled:
                plan = self._plans.get(3) or self._plan(3)
                if plan.kept is None:
                    return self._record((a,), _NO_STATIC, 1, (out,), ())
                edges = ((a._node or a, a._index, x.shape, dtype),)
                return _make(out, recorded(plan, edges, plan.kept((a, out))), 0)
            return _make(out, None, 0)
        return self._general((a,), _NO_STATIC)
    return self._foreign((a,), _NO_STATIC)


def _binary(self: Primitive, a: Any, b: Any) -> Any:
    if isinstance(a, _Tensor):
        x = a.data
        dtype = x.dtype
        needs = a._requires_grad
        if isinstance(b, _Tensor):
            y = b.data
            plain = type(x) is _ndarray and type(y) is _ndarray and y.dtype is dtype
            if b._requires_grad:
                needs += 2
        else:
            y = b
            plain = type(x) is _ndarray and (type(b) is float or type(b) is int)
    elif isinstance(b, _Tensor):
        x, y = a, b.data
        dtype = y.dtype
        needs = 2 * b._requires_grad
        plain = type(y) is _ndarray and (type(a) is float or type(a) is int)
    else:
        return self._foreign((a, b), _NO_STATIC)
    if plain and (dtype is _F4 or dtype is _F8):
        forward = self.forward
        token = silence(SILENT)
        try:
            out = forward(np, x, y)
        except Exception:
            return self._general((a, b), _NO_STATIC)
        finally:
            restore(token)
        if type(out) is not _ndarray:
            out = np.asarray(out)
        if needs and recording.get() and (needs := needs & self._ruled):
            plan = self._plans.get(4 | needs) or self._plan(4 | needs)
            if plan.kept is None:
                return self._record((a, b), _NO_STATIC, needs, (out,), ())
            edges: tuple[Edge, ...]
            if needs == 1:
                edges = ((a._node or a, a._index, x.shape, dtype),)
            elif needs == 2:
                edges = ((b._node or b, b._index, y.shape, dtype),)
            else:
                edges = (
                    (a._node or a, a._index, x.shape, dtype),
                    (b._node or b, b._index, y.shape, dtype),
                )
            return _make(out, recorded(plan, edges, plan.kept((a, b, out))), 0)
        return _make(out, None, 0)
    return self._general((a, b), _NO_STATIC)


_finish = Primitive._finish
_watched: Callable[..., Any] | None = None  # what calls go through
_straight = True  # they need not go through `_finish`
_shortcut = True  # nor `unary` and `binary` through `__call__`
_watching = threading.Lock()


def watch_calls(fn: Callable[[Primitive, Any, dict[str, Any]], Any] | None) -> None:
    """Let every call be `fn(primitive, args, static)`; None ends that. For profiles.

    A variable of the module: another `__call__` would make Python forget what it has learnt about
    every call of a primitive, at both ends of a profile."""
    global _watched, _shortcut
    with _watching:
        _watched, _shortcut = fn, _straight and fn is None


def watch_results(method: Callable[..., Any] | None) -> None:
    """Put a method in the place of `_finish`, which every call then goes through; None puts the
    original back. For anomaly mode."""
    global _shortcut, _straight
    with _watching:
        Primitive._finish = method or _finish  # type: ignore[method-assign]
        _straight = method is None
        _shortcut = _straight and _watched is None


def primitive(forward: Any = None, **options: Any) -> Any:
    """Make a Primitive of a function on arrays; see the module's description.

    aux: names of residuals returned after the outputs: saved for rules, not differentiated.
    outputs: names of the outputs where there are several.
    view: the output may share memory with the first input (in-place counters are then shared).
    passes_g: a rule may return the memory of g itself, as rules of views do: the gradient need not
        be copied again then. "parts": rules give each input a part of it, and no two share an
        element.
    fuse: the forward is a formula of the elements at one place, of arrays that broadcast, written
        in functions of `xp` alone: a device runs it as one kernel.
    promote: "same" brings inputs to one dtype, "float" also makes integers floating point,
        "none" leaves them.
    """
    if forward is None:
        return lambda fn: Primitive(fn, **options)
    return Primitive(forward, **options)
