"""`sg.Function`: a user's forward and backward.

Every expected number is a derivative worked out by hand.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from byhand import Cube, const, equal, leaf


class Exp(sg.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = sg.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0]


def test_function_that_saves_an_input() -> None:
    x = leaf([2.0])
    y = Cube.apply(x)
    assert y.grad_fn.name == "Cube"
    equal(y, [8.0])
    y.sum().backward()
    equal(x.grad, [12.0])
    with pytest.raises(sg.GraphError, match="saved by Cube were freed"):
        y.sum().backward()


def test_function_to_third_order() -> None:
    x = leaf([2.0])
    d = Cube.apply(x)
    for expected in (12.0, 12.0, 6.0):
        (d,) = sg.grad(d.sum(), x, create_graph=True)
        equal(d, [expected])
    d = Exp.apply(x)
    for _ in range(3):
        (d,) = sg.grad(d.sum(), x, create_graph=True)
        equal(d, [np.exp(2.0)])
    sg.gradcheck(Cube.apply, x)
    sg.gradgradcheck(Exp.apply, x)


def test_function_checks_what_it_saved() -> None:
    x, c = leaf([2.0]), const([3.0])

    class Scale(sg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, c: Any) -> Any:
            ctx.save_for_backward(c)
            return x * c

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0], None

    y = Scale.apply(x, c)
    c.add_(1.0)
    with pytest.raises(sg.GraphError, match="Scale saved was changed in place"):
        y.sum().backward()
    y = Exp.apply(x)
    y.detach().zero_()
    with pytest.raises(sg.GraphError, match="Exp saved was changed in place"):
        y.sum().backward()


def test_function_knows_which_gradients_are_needed() -> None:
    seen: list[Any] = []

    class Probe(sg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, k: float, b: Any) -> Any:
            return a * k + b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(ctx.needs_input_grad)
            return g * 5, None, g * 7 if ctx.needs_input_grad[2] else None

    a, b = leaf([1.0]), const([2.0])
    Probe.apply(a, 5, b).sum().backward()
    assert seen == [(True, False, False)]
    equal(a.grad, [5.0])
    assert Probe.apply(b, 5, b).grad_fn is None
    with sg.no_grad():
        assert Probe.apply(a, 5, b).grad_fn is None


class TwoOutputs(sg.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2, x * x

    @staticmethod
    def backward(ctx: Any, g0: Any, g1: Any) -> Any:
        assert isinstance(g0, sg.Tensor) and isinstance(g1, sg.Tensor)
        return g0 * 2 + g1 * 10


def test_function_with_several_outputs_gets_zeros_for_unused_ones() -> None:
    x = leaf([3.0, 4.0])
    a, b = TwoOutputs.apply(x)
    assert a.grad_fn is b.grad_fn
    (g,) = sg.grad(a.sum(), x, retain_graph=True)
    equal(g, [2.0, 2.0])
    (g,) = sg.grad(b.sum(), x, retain_graph=True)
    equal(g, [10.0, 10.0])
    (a * b).sum().backward()  # 2 x^2 * 2 + 2x * 10
    equal(x.grad, [2 * 9 + 60.0, 2 * 16 + 80.0])
    ga, gb = sg.grad(sg.cat(TwoOutputs.apply(x)), [x, x], const([1.0, 1.0, 1.0, 1.0]))
    equal(ga, [12.0, 12.0])
    equal(gb, [12.0, 12.0])


def test_function_with_integer_outputs() -> None:
    class Split(sg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2, x.argmax()

        @staticmethod
        def backward(ctx: Any, g: Any, _: Any) -> Any:
            return g * 2

    x = leaf([3.0, 4.0])
    y, at = Split.apply(x)
    assert at.item() == 1 and not at.requires_grad
    y.sum().backward()
    equal(x.grad, [2.0, 2.0])


def test_function_with_no_gradient_at_all() -> None:
    class Stop(sg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return None

    x = leaf([3.0])
    (Stop.apply(x) + x * 2).sum().backward()
    equal(x.grad, [2.0])
    (g,) = sg.grad(Stop.apply(x).sum(), x, allow_unused=True)
    assert g is None


def test_function_with_the_wrong_number_of_gradients() -> None:
    class Wrong(sg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            return a + b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    a, b = leaf([1.0]), leaf([2.0])
    with pytest.raises(sg.GraphError, match=r"Wrong.backward: expected 2 gradients.*got 1"):
        Wrong.apply(a, b).sum().backward()
    assert a.grad is None and b.grad is None


def test_function_with_an_argument_that_took_its_default() -> None:
    class Scaled(sg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, factor: float = 3.0) -> Any:
            ctx.factor = factor
            return a * factor

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.factor, None

    a = leaf([1.0])
    (Scaled.apply(a) + Scaled.apply(a, 5.0)).sum().backward()
    equal(a.grad, [8.0])


def test_function_whose_gradient_has_the_wrong_shape_or_type() -> None:
    def function(result: Any) -> Any:
        class Odd(sg.Function):
            @staticmethod
            def forward(ctx: Any, a: Any) -> Any:
                return a * 1.0

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return result

        return Odd

    a = leaf([1.0, 2.0])
    with pytest.raises(sg.GraphError, match=r"Odd: a rule returned shape \(3,\) .*\(2,\)"):
        function(const(np.ones(3))).apply(a).sum().backward()
    with pytest.raises(sg.GraphError, match="Odd: a rule returned ndarray"):
        function(np.ones(2)).apply(a).sum().backward()
    with pytest.raises(TypeError, match=r"forward: expected tensors, got float"):
        type("Bad", (sg.Function,), {"forward": staticmethod(lambda ctx, x: 1.0)}).apply(a)
    assert a.grad is None


def test_function_gradients_that_alias_one_another() -> None:
    """backward returns its upstream gradient twice, in two shapes; one leaf then gets more."""

    class Join(sg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            return a + b.reshape(*a.shape)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, g.reshape(1, 2)

    a, b = leaf([1.0, 2.0]), leaf([[3.0, 4.0]])
    early = a * 100.0
    (Join.apply(a, b) * 2.0 + early).sum().backward()
    equal(a.grad, [102.0, 102.0])
    equal(b.grad, [[2.0, 2.0]])


def test_function_gradients_that_the_user_keeps() -> None:
    """What backward returns may be anyone's: the engine never adds into it."""
    kept = const([7.0, 8.0])

    class Fixed(sg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, c: Any) -> Any:
            ctx.save_for_backward(c)
            ctx.by_hand = kept
            return a * 1.0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return (ctx.saved_tensors[0] if ctx.saved_tensors[0].data[0] else ctx.by_hand), None

    a = leaf([1.0, 2.0])
    for c, expected in ((const([3.0, 4.0]), [3.0, 4.0]), (const([0.0, 0.0]), [7.0, 8.0])):
        a.grad = None
        before = c.numpy().copy()
        early = a * 100.0
        (Fixed.apply(a, c) + early).sum().backward()
        equal(a.grad, np.add(expected, 100))
        Fixed.apply(a, c).sum().backward()
        a.grad = None
        Fixed.apply(a, c).sum().backward()
        Fixed.apply(a, c).sum().backward()
        equal(a.grad, np.multiply(expected, 2))
        equal(kept, [7.0, 8.0])
        equal(c, before)


def test_function_that_returns_its_input() -> None:
    class Through(sg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * x

    x = leaf([3.0])
    y = Through.apply(x)
    assert y is not x and y.requires_grad and x.is_leaf
    (g,) = sg.grad(y.sum(), x, create_graph=True)
    equal(g, [3.0])
    (second,) = sg.grad(g.sum(), x)  # the saved x is the input, not the output
    equal(second, [1.0])


def test_function_of_sparse_arguments() -> None:
    class Square(sg.Function):
        @staticmethod
        def forward(ctx: Any, A: Any) -> Any:
            ctx.save_for_backward(A)
            return A.with_values(A.values * A.values)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (A,) = ctx.saved_tensors
            assert isinstance(A, sg.SparseTensor) and isinstance(g, sg.SparseTensor)
            return g.with_values(g.values * 2 * A.values)

    A = sg.coo([[0, 1], [1, 0]], const([2.0, 3.0]), (2, 2), requires_grad=True)
    B = Square.apply(A)
    assert isinstance(B, sg.SparseTensor)
    B.backward(sg.coo([[0, 1], [1, 0]], const([1.0, 10.0]), (2, 2)))
    equal(A.grad.values, [4.0, 60.0])
    (g,) = sg.grad(Square.apply(A).sum(), A, create_graph=True)
    assert g.pattern.same_as(A.pattern)
    (second,) = sg.grad(g.sum(), A)
    equal(second.values, [2.0, 2.0])


def test_function_that_saves_a_sparse_output() -> None:
    class SparseExp(sg.Function):
        @staticmethod
        def forward(ctx: Any, A: Any) -> Any:
            out = A.with_values(sg.exp(A.values))
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (out,) = ctx.saved_tensors
            return g.with_values(g.values * out.values)

    A = sg.coo([[0, 1], [1, 0]], const([2.0, 3.0]), (2, 2), requires_grad=True)
    (g,) = sg.grad(SparseExp.apply(A).sum(), A, create_graph=True)
    equal(g.values, np.exp([2.0, 3.0]))
    (second,) = sg.grad(g.sum(), A)
    equal(second.values, np.exp([2.0, 3.0]))


def test_function_gives_a_sparse_gradient_to_a_dense_argument() -> None:
    class Row(sg.Function):
        @staticmethod
        def forward(ctx: Any, w: Any) -> Any:
            ctx.shape = w.shape
            return w[1] * 1.0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return sg.coo([[1]], g.reshape(1, -1), ctx.shape)

    w = leaf(np.arange(6.0).reshape(3, 2))
    (Row.apply(w) * const([5.0, 7.0])).sum().backward()
    assert isinstance(w.grad, sg.SparseTensor)
    equal(w.grad.to_dense(), [[0, 0], [5, 7], [0, 0]])


def test_function_refuses_a_gradient_off_the_pattern() -> None:
    class Off(sg.Function):
        @staticmethod
        def forward(ctx: Any, A: Any) -> Any:
            return A * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return sg.coo([[1, 0], [1, 0]], const([1.0, 2.0]), (2, 2))

    A = sg.coo([[0, 1], [1, 0]], const([2.0, 3.0]), (2, 2), requires_grad=True)
    with pytest.raises(sg.GraphError, match=r"Off.backward: .*must lie on its pattern"):
        Off.apply(A).sum().backward()
    assert A.grad is None


def test_function_with_a_sparse_upstream_gradient() -> None:
    """A gather after a Function sends a row-sparse gradient back: matrix rules still work."""

    class MatMul(sg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, w: Any) -> Any:
            ctx.save_for_backward(a, w)
            return a @ w

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            a, w = ctx.saved_tensors
            return g @ w.T, a.T @ g

    a, w = leaf(np.arange(6.0).reshape(3, 2)), leaf([[1.0, 2.0], [3.0, 4.0]])
    MatMul.apply(a, w).take(sg.tensor([1])).sum().backward()
    equal(a.grad, [[0, 0], [3, 7], [0, 0]])
    equal(w.grad, [[2, 2], [3, 3]])


def test_function_frees_what_it_saved(no_gc: None) -> None:
    x = leaf([2.0])
    h = x * 2
    y = Cube.apply(h)
    ref = weakref.ref(h)
    del h
    assert ref() is not None
    y.sum().backward()
    assert ref() is None
    node = weakref.ref(y.grad_fn)
    del y
    assert node() is None
    y = Exp.apply(x)
    node = weakref.ref(y.grad_fn)
    del y
    assert node() is None
