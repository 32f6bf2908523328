"""NumPy's ufuncs on tensors: `np.exp(t)` and `array * t` are the ops of the same meaning."""

from __future__ import annotations

from typing import Any

__all__ = ["call"]

# The op of each ufunc whose name differs; the others are looked up by their own name.
_RENAMED = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "divide": "div",
    "equal": "eq",
    "fabs": "abs",
    "greater": "gt",
    "greater_equal": "ge",
    "invert": "bitwise_not",
    "less": "lt",
    "less_equal": "le",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "positive": "clone",
    "power": "pow",
    "rint": "round",
    "subtract": "sub",
    "true_divide": "div",
}
_SAME = {
    *("add", "bitwise_and", "bitwise_or", "bitwise_xor", "ceil", "cos", "cosh", "exp", "expm1"),
    *("floor", "floor_divide", "fmod", "isfinite", "isinf", "isnan", "log", "log10", "log1p"),
    *("log2", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "matmul"),
    "maximum",
    *("minimum", "reciprocal", "remainder", "sign", "sin", "sinh", "sqrt", "square", "tan"),
    *("tanh", "trunc"),
}


def call(ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What `ufunc(*inputs)` is where one of them is a tensor: a tensor, recorded.

    With `out=` an array, or for a method such as `reduce`, the tensors are read as arrays and the
    result is NumPy's. Raises TypeError for a ufunc without an op, GraphError where a tensor that
    requires a gradient would leave the engine.
    """
    name = ufunc.__name__
    name = _RENAMED.get(name, name if name in _SAME else "")
    if method == "__call__" and not options:
        if not name:
            raise TypeError(
                f"{ufunc.__name__}: no op of this meaning; write numpy.{ufunc.__name__}(t.numpy())"
            )
        return getattr(ops, name)(*inputs)
    arrays = []
    for x in inputs:
        if getattr(x, "_is_sparse", False):
            raise TypeError(
                f"{ufunc.__name__}: a SparseTensor does not turn into an array; write A.to_dense()"
            )
        arrays.append(x.numpy() if hasattr(x, "_requires_grad") else x)
    return getattr(ufunc, method)(*arrays, **options)


from sparsegrad import ops  # noqa: E402  (ops and tensors are the one import cycle)
