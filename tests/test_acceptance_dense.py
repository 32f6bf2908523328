"""Failures that users met elsewhere with dense ops; each test is named after its case."""

from __future__ import annotations

import numpy as np

import sparsegrad as sg


def test_ac24_gather_with_sparse_gradient_through_matmul() -> None:
    x = sg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    index = sg.tensor([[1, 0], [1, 1]])
    grads = []
    for sparse_grad in (True, False):
        with sg.densify(budget=0, on_exceed="raise") as report:
            sg.gather(x @ x, 1, index, sparse_grad=sparse_grad).sum().backward()
        assert report.events == []
        grads.append(x.grad.detach().numpy())
        x.grad = None
    np.testing.assert_array_equal(*grads)


def test_ac48_only_the_last_write_gets_a_gradient() -> None:
    base = sg.zeros(2, requires_grad=True)
    values = sg.tensor([3.0, 4.0], requires_grad=True)
    out = sg.scatter(base, 0, sg.tensor([0, 0]), values)
    out.sum().backward()
    assert out.tolist() == [4.0, 0.0]
    assert values.grad.tolist() == [0.0, 1.0]
    assert base.grad.tolist() == [0.0, 1.0]
