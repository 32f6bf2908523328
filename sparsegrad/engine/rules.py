"""What a primitive's rules ask for, compiled into plans: which values a call keeps, which rules
a backward pass runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sparsegrad.engine.primitive import Primitive

__all__ = ["AUX", "INPUT", "META", "OUT", "STATIC", "XS", "XS_META", "Plan", "Rule", "Step"]

# Where a value that a rule asks for comes from.
INPUT, META, STATIC, OUT, AUX, XS, XS_META = range(7)


class Rule(NamedTuple):
    """One gradient rule as given to `defvjp`."""

    fn: Callable[..., Any]
    inputs: tuple[str, ...]
    wants: tuple[str, ...]
    joint: bool
    sparse_g: bool


class Step(NamedTuple):
    """One rule of one call: where its arguments lie in `saved`, and which edges it serves."""

    fn: Callable[..., Any]
    slots: tuple[int, ...]
    edges: tuple[int | None, ...]  # per input of the rule: its edge, None if not needed
    joint: bool
    needs: bool
    sparse_g: bool


@dataclass(slots=True)  # attributes of a NamedTuple take longer to read
class Plan:
    """What one combination of inputs that need gradients keeps and runs."""

    inputs: tuple[int, ...]  # argument positions that get an edge
    saves: tuple[tuple[int, Any], ...]  # (kind, which) per saved slot
    tensors: tuple[int, ...]  # slots that hold input tensors (checked for in-place changes)
    outs: tuple[tuple[int, int], ...]  # (slot, output index) of saved outputs
    steps: tuple[Step, ...]


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


def make_plan(op: Primitive, n_args: int, needs: int) -> Plan | None:
    """The plan of a call with `n_args` inputs of which the bits of `needs` need gradients."""
    names = (op.variadic,) * n_args if op.variadic else op.inputs
    ruled = {name for rule in op.rules for name in rule.inputs}
    inputs = tuple(i for i in range(n_args) if needs >> i & 1 and names[i] in ruled)
    if not inputs:
        return None
    saves: dict[tuple[int, Any], int] = {}
    steps = []
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
        steps.append(Step(rule.fn, slots, edges, rule.joint, "needs" in rule.wants, rule.sparse_g))
    kinds = list(saves)
    return Plan(
        inputs,
        tuple(kinds),
        tuple(s for s, (kind, _) in enumerate(kinds) if kind in (INPUT, XS)),
        tuple((s, which) for s, (kind, which) in enumerate(kinds) if kind == OUT),
        tuple(steps),
    )


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
