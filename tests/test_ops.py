"""Generated from op_db: adding an op adds a row there and no code here."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from op_db import OP_DB, Draw, OpCase, Sparse
from sparsegrad.dtypes import as_dtype
from sparsegrad.engine.primitive import registry
from sparsegrad.sparse_tensor import SparseTensor

TOL = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 5e-5, "float64": 1e-9}
GRAD_TOL = {"float32": 5e-4, "float64": 2e-6}

COLUMNS = [
    pytest.param(case, fmt, dtype, id=f"{case.name}-{fmt or 'dense'}-{dtype}")
    for case in OP_DB
    for fmt in (case.formats or (None,))
    for dtype in ("float32", "float64")
]
every_column = pytest.mark.parametrize(("case", "fmt", "dtype"), COLUMNS)
# Finite differences of non-linear ops need float64.
differentiable = pytest.mark.parametrize(
    ("case", "fmt", "dtype"),
    [
        c
        for c in COLUMNS
        if c.values[0].order > 0 and (c.values[0].bilinear or c.values[2] == "float64")
    ],
)
FORMATTED = [
    pytest.param(case, fmt, id=f"{case.name}-{fmt or 'dense'}")
    for case in OP_DB
    for fmt in (case.formats or (None,))
]


@pytest.fixture(autouse=True)
def strict_xfail(request: Any) -> None:
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    name = request.node.originalname
    if case is not None and name in case.xfail:
        request.applymarker(pytest.mark.xfail(reason=case.xfail[name], strict=True))


class Call:
    """One sample of a row: its leaves (values of sparse arguments, dense arguments), the op."""

    def __init__(self, case: OpCase, sample: Any, fmt: str | None, dtype: str) -> None:
        self.case, self.fmt = case, fmt
        args, static = sample
        self.args = [a.listed(fmt) if isinstance(a, Sparse) else a for a in args]
        self.static = {k: v.listed(fmt) if isinstance(v, Sparse) else v for k, v in static.items()}
        raw = [a.values if isinstance(a, Sparse) else a for a in self.args]
        self.arrays = [np.asarray(a, as_dtype(dtype)) for a in raw]

    def sparse_args(self, leaves: list[sg.Tensor]) -> list[Any]:
        return [
            a.build(self.fmt, leaf) if isinstance(a, Sparse) else leaf
            for a, leaf in zip(self.args, leaves, strict=True)
        ]

    def op(self, *leaves: sg.Tensor) -> Any:
        static = {
            k: v.build(self.fmt, sg.Tensor(v.values)) if isinstance(v, Sparse) else v
            for k, v in self.static.items()
        }
        return self.case.op(*self.sparse_args(list(leaves)), **static)

    def values(self, *leaves: sg.Tensor) -> sg.Tensor:
        out = self.op(*leaves)
        return out.values if isinstance(out, SparseTensor) else out

    def reference(self) -> np.ndarray:
        args = []
        for a, array in zip(self.args, self.arrays, strict=True):
            wide = array.astype(np.float64)
            if isinstance(a, Sparse):
                a = Sparse(a.coords, wide, a.shape)
                args.append(a if self.case.raw else a.dense())
            else:
                args.append(wide)
        return np.asarray(self.case.ref(*args, **self.static))

    def leaves(self, requires_grad: bool = False) -> list[sg.Tensor]:
        return [sg.Tensor(a.copy(), requires_grad=requires_grad) for a in self.arrays]


def calls(case: OpCase, fmt: str | None, dtype: str) -> list[Call]:
    return [Call(case, sample, fmt, dtype) for sample in case.samples(Draw())]


def dense(x: Any) -> np.ndarray:
    return (x.to_dense() if isinstance(x, SparseTensor) else x).detach().numpy()


def close(found: Any, expected: Any, tol: float) -> None:
    expected = np.asarray(expected)
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tol, atol=tol * scale)


# ---- forward -----------------------------------------------------------------------------------
@every_column
def test_forward_matches_reference(case: OpCase, fmt: Any, dtype: str, backend: str) -> None:
    for call in calls(case, fmt, dtype):
        leaves = call.leaves()
        before = [a.copy() for a in call.arrays]
        out = call.op(*leaves)
        close(dense(out).astype(np.float64), call.reference(), case.tol.get(dtype, TOL[dtype]))
        if case.order:
            assert out.dtype == np.dtype(dtype)
        for leaf, array in zip(leaves, before, strict=True):
            np.testing.assert_array_equal(leaf.data, array)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("case", "fmt"), [c for c in FORMATTED if c.values[0].order])
def test_half_precision_accumulates_in_float32(
    case: OpCase, fmt: Any, dtype: str, backend: str
) -> None:
    for call in calls(case, fmt, dtype):
        out = call.op(*call.leaves())
        assert out.dtype == dtype
        close(dense(out).astype(np.float64), call.reference(), case.tol.get(dtype, TOL[dtype]))


@pytest.mark.parametrize(("case", "fmt"), FORMATTED)
def test_layout_of_inputs_does_not_matter(case: OpCase, fmt: Any, backend: str) -> None:
    for call in calls(case, fmt, "float64"):
        expected = dense(call.op(*call.leaves()))
        for change in (_non_contiguous, np.asfortranarray, _read_only):
            found = dense(call.op(*[sg.Tensor(change(a)) for a in call.arrays]))
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        ones = [np.broadcast_to(np.ones((), a.dtype), a.shape) for a in call.arrays]
        found = dense(call.op(*[sg.Tensor(a) for a in ones]))
        expected = dense(call.op(*[sg.Tensor(a.copy()) for a in ones]))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def _non_contiguous(a: np.ndarray) -> np.ndarray:
    wide = np.zeros((*a.shape, 2), a.dtype)
    wide[..., 0] = a
    return wide[..., 0]


def _read_only(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


EXTREMES = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e4, -3e4, 6e-5, -1.0, 2.0, 0.5]


@pytest.mark.parametrize(("case", "fmt"), FORMATTED)
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_extreme_values_do_not_warn(case: OpCase, fmt: Any, dtype: str) -> None:
    """1 / 0 is inf and 0 / 0 is nan without a word, forward and backward (a warning is an error
    here)."""
    wide = np.array(EXTREMES)
    if dtype == "float64":
        wide[5:7] *= 1e300
    for call in calls(case, fmt, dtype):
        call.arrays = [np.resize(wide.astype(dtype), a.shape) for a in call.arrays]
        leaves = call.leaves(requires_grad=case.order > 0)
        try:
            out = call.values(*leaves)
            if out.requires_grad:
                out.backward(sg.Tensor(np.resize(wide.astype(dtype), out.shape)))
        except (sg.errors.SparsegradError, ValueError):
            continue  # what needs finite numbers may say so


# ---- gradients ---------------------------------------------------------------------------------
@differentiable
def test_gradient(case: OpCase, fmt: Any, dtype: str, backend: str) -> None:
    """Along a random direction, with a random upstream, one argument at a time."""
    eps = 1.0 if case.bilinear else 1e-5
    for n, call in enumerate(calls(case, fmt, dtype)):
        rng = np.random.default_rng(n)
        for i, array in enumerate(call.arrays):
            leaves = call.leaves()
            leaves[i].requires_grad = True
            out = call.values(*leaves)
            assert out.requires_grad
            upstream = rng.standard_normal(out.shape).astype(dtype)
            direction = rng.standard_normal(array.shape).astype(dtype)
            (g,) = sg.grad(out, leaves[i], sg.Tensor(upstream))
            assert g.shape == array.shape
            assert g.dtype == array.dtype
            exact = float((dense(g).astype(np.float64) * direction).sum())
            plus, minus = (
                call.values(
                    *[
                        sg.Tensor((a + s * eps * direction).astype(dtype)) if j == i else leaf
                        for j, (a, leaf) in enumerate(zip(call.arrays, leaves, strict=True))
                    ]
                ).detach().numpy().astype(np.float64)
                for s in (1, -1)
            )  # fmt: skip
            numeric = float((upstream * (plus - minus)).sum()) / (2 * eps)
            scale = max(
                1.0, float(np.abs(upstream * plus).sum()), float(np.abs(upstream * minus).sum())
            )
            assert abs(exact - numeric) <= GRAD_TOL[dtype] * scale, (n, i, exact, numeric)


@pytest.mark.parametrize(("case", "fmt"), [c for c in FORMATTED if c.values[0].order > 1])
def test_second_derivative(case: OpCase, fmt: Any, backend: str) -> None:
    for n, call in enumerate(calls(case, fmt, "float64")):
        leaves = call.leaves(requires_grad=True)
        if leaves and call.values(*leaves).requires_grad:
            sg.gradgradcheck(call.values, leaves, eps=1e-5, atol=2e-5, seed=n)


@pytest.mark.parametrize(
    ("case", "fmt"), [c for c in FORMATTED if c.values[0].formats and c.values[0].order]
)
def test_gradient_lies_on_the_pattern(case: OpCase, fmt: Any) -> None:
    for call in calls(case, fmt, "float64"):
        leaves = call.leaves(requires_grad=True)
        args = call.sparse_args(leaves)
        static = {
            k: v.build(fmt, sg.Tensor(v.values)) if isinstance(v, Sparse) else v
            for k, v in call.static.items()
        }
        out = call.case.op(*args, **static)
        out.backward(sg.ones_like(out))
        for a in args:
            if isinstance(a, SparseTensor):
                assert a.grad.pattern.same_as(a.coalesce().pattern) or a.pattern.core.unique
                assert a.grad.shape == a.shape
                assert a.values.grad.shape == a.values.shape


@pytest.mark.parametrize(("case", "fmt"), [c for c in FORMATTED if c.values[0].huge is not None])
def test_nothing_is_densified(case: OpCase, fmt: Any) -> None:
    """10^6 x 10^6 with ten entries: any dense array of that shape would need terabytes."""
    call = Call(case, case.huge(Draw(3)), fmt, "float64")
    with sg.densify(budget=0, on_exceed="raise") as report:
        leaves = call.leaves(requires_grad=True)
        out = call.values(*leaves)
        grads = sg.grad(out, leaves, sg.Tensor(np.ones(out.shape)))
    assert report.events == []
    for g, leaf in zip(grads, leaves, strict=True):
        assert g.shape == leaf.shape


@pytest.mark.parametrize(("case", "fmt"), FORMATTED)
def test_two_runs_are_bitwise_equal(case: OpCase, fmt: Any, backend: str) -> None:
    for call in calls(case, fmt, "float32"):
        np.testing.assert_array_equal(
            dense(call.op(*call.leaves())), dense(call.op(*call.leaves()))
        )


# ---- what is kept, what is refused, what is missing --------------------------------------------
DIRECT = [
    pytest.param(case, id=case.name)
    for case in OP_DB
    if case.order and not case.formats and f"{case.name}_p" == case.primitive
]


@pytest.mark.parametrize("case", DIRECT)
def test_nothing_is_kept_beyond_what_rules_name(case: OpCase) -> None:
    """While the result lives, an input lives exactly if a rule in use asks for it by name."""
    op = registry[case.primitive]
    call = calls(case, None, "float64")[0]
    for needy in range(len(call.arrays)):
        leaves = call.leaves()
        leaves[needy] = leaves[needy].requires_grad_() * 1.0
        refs = [weakref.ref(leaf) for leaf in leaves]
        out = call.values(*leaves)
        del leaves
        names = [op.variadic] * len(refs) if op.variadic else op.inputs
        wants = {w for rule in op.rules if names[needy] in rule.inputs for w in rule.wants}
        for name, ref in zip(names, refs, strict=True):
            assert (ref() is not None) == (name in wants), name
        del out


def test_a_rule_keeps_only_what_it_names() -> None:
    gc.disable()
    try:
        a = sg.ones(8, requires_grad=True)
        for op, kept in ((lambda h: h + 1.0, False), (lambda h: h * 3.0, False), (sg.exp, False),
                         (lambda h: h * a, True), (sg.log, True)):  # fmt: skip
            h = a * 2.0
            ref = weakref.ref(h)
            out = op(h)
            del h
            assert (ref() is not None) == kept
            held = weakref.ref(out.grad_fn)
            del out
            assert held() is None, "an op and its output form a cycle"
    finally:
        gc.enable()


ERRORS = [
    pytest.param(call, error, text, id=f"{case.name}-{n}")
    for case in OP_DB
    for n, (call, error, text) in enumerate(case.errors)
]


@pytest.mark.parametrize(("call", "error", "text"), ERRORS)
def test_bad_input_is_refused_by_name(call: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_every_primitive_has_a_row_and_a_rule() -> None:
    rows = {case.primitive for case in OP_DB if case.primitive}
    assert set(registry) == rows
    without = {name for name, op in registry.items() if not op.rules}
    assert without == {case.primitive for case in OP_DB if case.primitive and not case.order}
    for op in registry.values():
        ruled = {name for rule in op.rules for name in rule.inputs}
        if op.rules:
            assert ruled == set(op.inputs) | ({op.variadic} if op.variadic else set()), op
