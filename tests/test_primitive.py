"""`@primitive`: outputs, residuals, joint and variadic rules, optional inputs, what is refused.

Every expected number is a derivative worked out by hand.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from byhand import const, equal, leaf


def test_primitive_with_several_outputs(define: Any) -> None:
    @define(outputs=("s", "d"))
    def sumdiff_p(xp: Any, a: Any, b: Any) -> Any:
        return a + b, a * b

    sumdiff_p.defvjp(a=lambda g, b: g[0] + g[1] * b, b=lambda g, a: g[0] + g[1] * a)
    a, b = leaf([2.0]), leaf([3.0])
    s, d = sumdiff_p(a, b)
    assert s.grad_fn is d.grad_fn
    ga, gb = sg.grad(s.sum(), [a, b], retain_graph=True)
    equal(ga, [1.0])
    ga, gb = sg.grad(d.sum(), [a, b], retain_graph=True)
    equal(ga, [3.0])
    ga, gb = sg.grad((s * d).sum(), [a, b], create_graph=True)  # (a + b) a b
    equal(ga, [2 * 6 + 9.0])
    equal(gb, [4 + 2 * 2 * 3.0])
    (gab,) = sg.grad(ga.sum(), b)
    equal(gab, [2 * 2 + 2 * 3.0])


def test_primitive_with_named_outputs_in_rules(define: Any) -> None:
    @define(outputs=("e", "square"))
    def pair_p(xp: Any, x: Any) -> Any:
        return xp.exp(x), x * x

    pair_p.defvjp(x=lambda g, e, x: g[0] * e + g[1] * 2 * x)
    x = leaf([1.5])
    e, square = pair_p(x)
    (d,) = sg.grad((e * square).sum(), x, create_graph=True)
    ex = np.exp(1.5)
    equal(d, [ex * (2.25 + 3)])
    (d2,) = sg.grad(d.sum(), x)
    equal(d2, [ex * (2.25 + 3 + 3 + 2)])
    e2, _ = pair_p(x)
    e2.detach().zero_()
    with pytest.raises(sg.GraphError, match=r"pair saved.*changed in place"):
        e2.sum().backward()


def test_primitive_with_residuals(define: Any) -> None:
    @define(aux=("mask",))
    def clip_p(xp: Any, x: Any, *, low: float) -> Any:
        mask = x > low
        return xp.where(mask, x, low), mask

    clip_p.defvjp(x=lambda g, mask: g * sg.Tensor(mask))
    x = leaf([1.0, -1.0, 3.0])
    y = clip_p(x, low=0.5)
    assert isinstance(y, sg.Tensor)
    equal(y, [1.0, 0.5, 3.0])
    y.backward(const([2.0, 3.0, 4.0]))
    equal(x.grad, [2.0, 0.0, 4.0])


def test_joint_rule_is_told_what_is_needed(define: Any) -> None:
    seen: list[Any] = []

    @define
    def joint_p(xp: Any, a: Any, b: Any, c: Any) -> Any:
        return a * b + c

    def rule(g: Any, a: Any, b: Any, needs: Any) -> Any:
        seen.append(needs)
        return (g * b if needs[0] else None), (g * a if needs[1] else None)

    joint_p.defvjp(("a", "b"), rule, c=lambda g: g)
    a, b, c = leaf([2.0]), leaf([3.0]), leaf([5.0])
    joint_p(a, b, c).sum().backward()
    equal(a.grad, [3.0])
    equal(b.grad, [2.0])
    equal(c.grad, [1.0])
    sg.grad(joint_p(a, b, c).sum(), b)
    joint_p(a, const([3.0]), c).sum().backward()
    sg.grad(joint_p(a, b, c).sum(), c)  # the joint rule does not run
    assert seen == [(True, True), (False, True), (True, False)]


def test_variadic_primitive(define: Any) -> None:
    @define
    def total_p(xp: Any, *xs: Any, scale: float = 1.0) -> Any:
        return scale * sum(xs)

    total_p.defvjp(
        xs=lambda g, xs_meta, scale, needs: [
            g * scale if n else None for n, m in zip(needs, xs_meta, strict=True)
        ]
    )
    a, b, c = leaf([1.0]), const([2.0]), leaf([3.0])
    out = total_p(a, b, c, scale=4.0)
    equal(out, [24.0])
    out.sum().backward()
    equal(a.grad, [4.0])
    equal(c.grad, [4.0])
    assert total_p(b, b).grad_fn is None
    total_p(a).sum().backward()
    equal(a.grad, [5.0])


def test_variadic_primitive_checks_its_saved_inputs(define: Any) -> None:
    @define
    def product_p(xp: Any, *xs: Any) -> Any:
        return xs[0] * xs[1]

    product_p.defvjp(xs=lambda g, xs, needs: [g * xs[1], g * xs[0]])
    a, b = leaf([2.0]), const([3.0])
    y = product_p(a, b)
    b.add_(1.0)
    with pytest.raises(sg.GraphError, match=r"product saved.*changed in place"):
        y.sum().backward()
    b = const([3.0])
    b.add_(1.0)
    product_p(a, b).sum().backward()
    equal(a.grad, [4.0])


def test_optional_input(define: Any) -> None:
    @define
    def affine_p(xp: Any, x: Any, w: Any, b: Any = None) -> Any:
        return x * w if b is None else x * w + b

    affine_p.defvjp(x=lambda g, w: g * w, w=lambda g, x: g * x, b=lambda g: g)
    x, w, b = leaf([2.0]), leaf([3.0]), leaf([1.0])
    for args in ((x, w), (x, w, None)):
        for t in (x, w):
            t.grad = None
        affine_p(*args).sum().backward()
        equal(x.grad, [3.0])
        equal(w.grad, [2.0])
    affine_p(x, w, b).sum().backward()
    equal(b.grad, [1.0])
    equal(x.grad, [6.0])


def test_optional_input_named_by_a_rule(define: Any) -> None:
    @define
    def scaled_p(xp: Any, x: Any, s: Any = None) -> Any:
        return x * 1.0 if s is None else x * s

    scaled_p.defvjp(x=lambda g, s, s_meta: g if s is None else g * s, s=lambda g, x: g * x)
    x, s = leaf([2.0]), leaf([3.0])
    for args, expected in (((x,), 1.0), ((x, None), 1.0), ((x, s), 3.0)):
        (g,) = sg.grad(scaled_p(*args).sum(), x)
        equal(g, [expected])


def test_statics_with_defaults_reach_rules(define: Any) -> None:
    @define
    def power_p(xp: Any, x: Any, *, n: int = 2) -> Any:
        return x**n

    power_p.defvjp(x=lambda g, x, n: g * n * x ** (n - 1))
    x = leaf([3.0])
    (g,) = sg.grad(power_p(x).sum(), x)
    equal(g, [6.0])
    (g,) = sg.grad(power_p(x, n=3).sum(), x)
    equal(g, [27.0])


def test_meta_gives_shape_and_dtype_without_the_tensor(define: Any, no_gc: None) -> None:
    @define
    def first_p(xp: Any, x: Any) -> Any:
        return x[:1].copy()

    first_p.defvjp(x=lambda g, x_meta: g * sg.ones(x_meta.shape, dtype=x_meta.dtype))
    h = leaf([1.0, 2.0, 3.0]) * 1.0
    y = first_p(h)
    ref = weakref.ref(h)
    del h
    assert ref() is None
    y.sum().backward()


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (lambda p: p.defvjp(z=lambda g: g), r"bad_p: no differentiable input 'z'"),
        (lambda p: p.defvjp(k=lambda g: g), r"bad_p: no differentiable input 'k'"),
        (lambda p: p.defvjp(x=lambda g, q: g), r"bad_p: .*unknown \['q'\]"),
        (lambda p: p.defvjp(x=lambda g, needs: g), r"unknown \['needs'\]"),
        (lambda p: p.defvjp(x=lambda x: x), r"first parameter of a rule must be 'g'"),
        (lambda p: p.defvjp(x=lambda: None), r"first parameter of a rule must be 'g'"),
        (lambda p: p.defvjp(("x", "q"), lambda g: g), r"no differentiable input 'q'"),
        (lambda p: p.defvjp(("x", "y"), lambda g, needs, x: g), r"'needs' must be the last"),
        (lambda p: p.defvjp(x=lambda g: g).defvjp(x=lambda g: g), r"input 'x' has two rules"),
    ],
)
def test_bad_rules_fail_where_they_are_defined(define: Any, rules: Any, text: str) -> None:
    @define
    def bad_p(xp: Any, x: Any, y: Any, *, k: int = 0) -> Any:
        return x + y

    with pytest.raises(TypeError, match=text):
        rules(bad_p)


def test_bad_primitives_fail_where_they_are_defined(define: Any) -> None:
    with pytest.raises(TypeError, match="first parameter must be 'xp' or 'be'"):
        define(lambda x: x)
    with pytest.raises(ValueError, match="promote"):
        define(promote="up")(lambda xp, x: x)
    with pytest.raises(TypeError, match="a formula to fuse takes 'xp'"):
        define(fuse=True)(lambda be, x: x)

    @define
    def twice_p(xp: Any, x: Any) -> Any:
        return x

    with pytest.raises(TypeError, match="defined twice"):

        @define
        def twice_p(xp: Any, x: Any) -> Any:
            return x


def test_a_rule_that_returns_no_tensor(define: Any) -> None:
    @define
    def wrong_p(xp: Any, x: Any) -> Any:
        return x + 1

    wrong_p.defvjp(x=lambda g: 3.0)
    x = leaf([1.0])
    with pytest.raises(sg.GraphError, match="backward of wrong: a rule returned float"):
        wrong_p(x).sum().backward()
    assert x.grad is None


def test_errors_name_op_and_arguments() -> None:
    a, b = const(np.ones((2, 3))), const(np.ones((4, 3)))
    with pytest.raises(sg.ShapeError, match=r"mul: .*Tensor\(2, 3\) float64.*Tensor\(4, 3\)"):
        a * b
    with pytest.raises(TypeError, match=r"mul: expected a tensor, array or number, got object"):
        sg.mul(a, object())
    with pytest.raises(TypeError, match="exp"):
        sg.exp("text")
