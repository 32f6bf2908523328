"""Other names that PyTorch has for the same ops."""

from __future__ import annotations

from sparsegrad.ops.comparisons import ge, gt, le, lt, ne
from sparsegrad.ops.contract import outer
from sparsegrad.ops.elementwise import abs, div, mul, neg, sub
from sparsegrad.ops.linalg import det, inv, matrix_power, pinv, slogdet, trace
from sparsegrad.ops.rearrange import movedim
from sparsegrad.ops.shape import cat, transpose
from sparsegrad.ops.trigonometric import acos, acosh, asin, asinh, atan, atan2, atanh
from sparsegrad.ops.unary import sign, trunc

__all__ = [
    "absolute",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "concat",
    "concatenate",
    "det",
    "divide",
    "fix",
    "ger",
    "greater",
    "greater_equal",
    "inverse",
    "less",
    "less_equal",
    "matrix_power",
    "moveaxis",
    "multiply",
    "negative",
    "not_equal",
    "pinverse",
    "sgn",
    "slogdet",
    "subtract",
    "swapdims",
    "trace",
    "true_divide",
]

absolute, negative, subtract, multiply = abs, neg, sub, mul
divide = true_divide = div
not_equal, less, less_equal, greater, greater_equal = ne, lt, le, gt, ge
arccos, arccosh, arcsin, arcsinh = acos, acosh, asin, asinh
arctan, arctan2, arctanh, fix = atan, atan2, atanh, trunc
concat = concatenate = cat
moveaxis, swapdims = movedim, transpose
ger, inverse, pinverse, sgn = outer, inv, pinv, sign
