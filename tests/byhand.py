"""What tests of gradients worked out by hand share: float64 tensors and a comparison."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsegrad as sg

__all__ = ["Cube", "const", "dense", "equal", "leaf"]


def leaf(data: Any, dtype: Any = sg.float64) -> sg.Tensor:
    return sg.tensor(data, dtype=dtype, requires_grad=True)


def const(data: Any, dtype: Any = sg.float64) -> sg.Tensor:
    return sg.tensor(data, dtype=dtype)


def dense(x: Any) -> np.ndarray:
    return (x.to_dense() if isinstance(x, sg.SparseTensor) else x).detach().numpy()


def equal(found: Any, expected: Any) -> None:
    assert isinstance(found, sg.Tensor)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12, atol=1e-14)


def equal_dense(found: Any, expected: Any) -> None:
    """A gradient, dense or sparse, against an array."""
    np.testing.assert_allclose(dense(found), expected, rtol=1e-12, atol=1e-14)


def rows_added(n: int, ids: Any, rows: Any) -> np.ndarray:
    """Zeros (n, *D) with `rows` added at `ids`."""
    rows = np.asarray(rows, np.float64)
    out = np.zeros((n, *rows.shape[1:]))
    np.add.at(out, np.asarray(ids, int), rows)
    return out


class Cube(sg.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 3 * x * x
