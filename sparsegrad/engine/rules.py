"""What a primitive's rules ask for, compiled into plans: which values a call keeps, which rules
a backward pass runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from sparsegrad.engine.primitive import Primitive

__all__ = ["AUX", "INPUT", "META", "OUT", "STATIC", "XS", "XS_META", "Plan", "Rule"]

# Where a value that a rule asks for comes from.
INPUT, META, STATIC, OUT, AUX, XS, XS_META = range(7)


class Rule(NamedTuple):
    """One gradient rule as given to `defvjp`."""

    fn: Callable[..., Any]
    inputs: tuple[str, ...]
    wants: tuple[str, ...]
    joint: bool
    sparse_g: bool


# Rules of one call, as plain tuples: they are unpacked whenever a walk comes by.
# A rule of one input: its edge, the function, where its arguments lie in `saved`, whether it takes
# a sparse cotangent.
Single = tuple[int, Callable[..., Any], tuple[int, ...], bool]
# A joint one: the edge of each of its inputs, None if that needs no gradient; the function, its
# arguments; whether it is told which are needed; whether it takes a sparse cotangent.
Joint = tuple[tuple[int | None, ...], Callable[..., Any], tuple[int, ...], bool, bool]


@dataclass(slots=True)
class Plan:
    """What one combination of inputs that need gradients keeps and runs."""

    op: Primitive
    passes_g: bool | Literal["parts"]
    inputs: tuple[int, ...]  # argument positions that get an edge
    saves: tuple[tuple[int, Any], ...]  # (kind, which) per saved slot
    # From (*inputs, *outputs) to what is saved; None where a rule asks for more.
    kept: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None
    tensors: tuple[int, ...]  # slots that hold input tensors (checked for in-place changes)
    outs: tuple[tuple[int, int], ...]  # (slot, output index) of saved outputs
    lone: Callable[..., Any] | None  # the only rule, of one input and one output
    singles: tuple[Single, ...]
    joints: tuple[Joint, ...]
    sparse: tuple[int, ...]  # edges whose rules take a sparse cotangent


def parse(
    op: Primitive, names: tuple[str, ...], fn: Callable[..., Any], joint: bool, sparse_g: bool
) -> Rule:
    """A rule, checked against the signature of its primitive; TypeError names what is wrong."""
    differentiable = (*op.inputs, op.variadic)
    for name in names:
        if name not in differentiable:
            raise TypeError(f"{op.name}: no differentiable input {name!r} to give a rule to")
        if any(name in rule.inputs for rule in op.rules):
            raise TypeError(f"{op.name}: input {name!r} has two rules")
    wants = tuple(inspect.signature(fn).parameters)
    if not wants or wants[0] != "g":
        raise TypeError(f"{op.name}: the first parameter of a rule must be 'g', got {wants}")
    known = {*differentiable, *op.statics, *op.aux}
    known |= {f"{name}_meta" for name in differentiable}
    known |= set(op.outputs) or {"out"}
    if joint:
        known.add("needs")
    if unknown := sorted(set(wants[1:]) - known):
        raise TypeError(f"{op.name}: the rule for {names} asks for unknown {unknown}")
    if "needs" in wants and wants[-1] != "needs":
        raise TypeError(f"{op.name}: 'needs' must be the last parameter of a rule")
    if op.view and ("out" in wants or set(op.outputs) & set(wants)):
        raise TypeError(f"{op.name}: a view's rule cannot ask for its output")
    return Rule(fn, names, wants[1:], joint, sparse_g)


def ruled(op: Primitive) -> int:
    """Inputs that have a rule, one bit each; all bits for variadic ones."""
    names = {name for rule in op.rules for name in rule.inputs}
    if op.variadic:
        return -1 if op.variadic in names else 0
    return sum(1 << i for i, name in enumerate(op.inputs) if name in names)


def make_plan(op: Primitive, n_args: int, needs: int) -> Plan:
    """The plan of a call with `n_args` inputs of which the bits of `needs` need gradients."""
    inputs = tuple(i for i in range(n_args) if needs >> i & 1)
    saves: dict[tuple[int, Any], int] = {}
    singles: list[Single] = []
    joints: list[Joint] = []
    sparse: list[int] = []
    for rule in op.rules:
        if op.variadic:
            positions = list(range(n_args))
        else:
            positions = [op.inputs.index(name) for name in rule.inputs]
        if not any(i in inputs for i in positions):
            continue
        wants = [w for w in rule.wants if w != "needs"]
        slots = tuple(saves.setdefault(_source(op, w), len(saves)) for w in wants)
        edges = tuple(inputs.index(i) if i in inputs else None for i in positions)
        if rule.joint:
            joints.append((edges, rule.fn, slots, "needs" in rule.wants, rule.sparse_g))
        else:
            singles.append((inputs.index(positions[0]), rule.fn, slots, rule.sparse_g))
        if rule.sparse_g:
            sparse += [e for e in edges if e is not None]
    kinds = list(saves)
    kept = None
    if n_args == len(op.inputs) and all(kind in (INPUT, OUT) for kind, _ in kinds):
        kept = _picker([which if kind == INPUT else n_args + which for kind, which in kinds])
    alone = len(singles) == 1 and not joints and not op.outputs
    return Plan(
        op,
        op.passes_g,
        inputs,
        tuple(kinds),
        kept,
        tuple(s for s, (kind, _) in enumerate(kinds) if kind in (INPUT, XS)),
        tuple((s, which) for s, (kind, which) in enumerate(kinds) if kind == OUT),
        singles[0][1] if alone else None,
        tuple(singles),
        tuple(joints),
        tuple(sparse),
    )


def _picker(places: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function from a tuple to the tuple of its items at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def _source(op: Primitive, want: str) -> tuple[int, Any]:
    if want in op.outputs:
        return OUT, op.outputs.index(want)
    if want == "out":
        return OUT, 0
    if want in op.aux:
        return AUX, op.aux.index(want)
    if want in op.statics:
        return STATIC, want
    if want == op.variadic:
        return XS, None
    if want == f"{op.variadic}_meta":
        return XS_META, None
    if want in op.inputs:
        return INPUT, op.inputs.index(want)
    return META, op.inputs.index(want.removesuffix("_meta"))
