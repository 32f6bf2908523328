"""Calls that should be refused, or succeed: wrong shapes, dtypes, indices and kinds of argument."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsegrad as sg

__all__ = ["hostile_call"]

THINGS = [
    "None", "'csr'", "1.5", "-3", "2", "nan", "True", "[]", "[[1.0, 2.0], [3.0]]", "object()",
    "np.ones((2, 3))", "np.ones((0, 2))", "np.array('x')", "np.array([1, 2], object)", "1j",
    "sg.ones(3)", "sg.ones(2, 2, 2)", "sg.tensor(2.0)", "sg.zeros(0, 3)", "sg.tensor([1, 2, 3])",
    "sg.tensor([True, False])", "sg.tensor([1j, 2.0])", "sg.ones(2, 2, dtype=sg.float16)",
    "sg.coo([[0, 999999]] * 2, [1.0, 2.0], (10**6, 10**6))",
    "sg.coo([[0, 999999]] * 4, [1.0, 2.0], (10**6,) * 4)",
    "sg.coo([[0, 10**12]] * 2, [1.0, 2.0], (10**12 + 1, 10**12 + 1))",
    "sg.coo([[0, 1, 1]] * 2, [1, 2, 3], (2, 2))", "sg.coo([[0, 1, 1]] * 2, None, (2, 3))",
    "sg.coo([[], []], [], (0, 5))", "sg.coo([[1], [1]], [True], (2, 2))",
    "sg.coo([[1, 0]], [1.0, nan], (2,))", "sg.csr([0, 1, 2], [1, 0], [1j, 2.0], (2, 2))",
    "sg.csr([0, 2, 2], [1, 0], [[1.0, 2.0], [3.0, 4.0]], (2, 2, 2))",
    "sg.csc([0, 2, 2], [1, 1], np.ones(2, 'f2'), (2, 2))", "sg.sparse_eye(3, 2, 'csc')",
]  # fmt: skip
DIMS = ["None", "0", "1", "-1", "5", "-7", "(0, 0)", "(0, 1)", "()", "'a'", "1.5", "[0]"]
INDICES = ["0", "-1", "99", "None", "...", "(..., ...)", "'a'", "1.5", "[0, 99]", "[0.5]", "[]",
           "slice(None, None, 0)", "(0, 0, 0, 0, 0)", "np.array([True])", "sg.tensor([0, -1])",
           "[[0], [0, 1]]", "slice(1.5, 2)", "(slice(None), [0, 0])", "True",
           "sg.ones(2)"]  # fmt: skip
SHAPES = ["(-1,)", "(2, -1, -1)", "(0,)", "(7, 13)", "'ab'", "None", "(1.5, 2)", "()", "(-2, 3)",
          "(10**20,)", "(2, 0, -1)"]  # fmt: skip
LISTS = ["[0, 1]", "[0, 5]", "[1, -1]", "[0.5, 1.0]", "[[0, 1]]", "[]", "None", "'ab'", "[2**40]",
         "[True, False]", "[0, 1, 2, 3]", "np.array([0, 3, 1], 'u8')", "5",
         "[None, 1]"]  # fmt: skip
BINARY = ["add", "sub", "mul", "div", "matmul", "spmm", "spgemm", "pow", "maximum", "minimum", "eq",
          "lt", "sparse_mask", "take", "embedding", "segment_sum", "segment_softmax", "nll_loss",
          "cross_entropy", "spsolve", "set_diagonal", "block_diag"]  # fmt: skip
UNARY = ["neg", "exp", "log", "sqrt", "tanh", "sigmoid", "relu", "abs", "clone", "coalesce",
         "to_sparse", "prune", "drop_zeros", "symmetrize", "row_normalize", "gcn_norm", "diag",
         "diagonal", "ones_like", "zeros_like", "norm", "add_self_loops", "remove_self_loops",
         "from_scipy", "sum", "mean", "amax", "squeeze"]  # fmt: skip
UNARY = [name for name in UNARY if hasattr(sg, name)]
ALONG = ["sum", "mean", "amax", "amin", "prod", "norm", "softmax", "log_softmax", "logsumexp",
         "squeeze", "unsqueeze", "max"]  # fmt: skip


def hostile_call(rng: np.random.Generator, pool: list[Any]) -> str:
    def one(options: Any) -> str:
        return str(options[rng.integers(len(options))])

    def thing() -> str:
        return one([v.name for v in pool]) if pool and rng.random() < 0.4 else one(THINGS)

    def tensor() -> str:
        sure = [t for t in THINGS if t.startswith("sg.")]
        return one([v.name for v in pool]) if pool and rng.random() < 0.4 else one(sure)

    kind = rng.integers(12)
    if kind <= 2:
        return f"sg.{one(BINARY)}({thing()}, {thing()})"
    if kind == 3:
        return f"sg.{one(UNARY)}({thing()})"
    if kind == 4:
        name = one(ALONG)
        extra = f", {one(DIMS)}" if name == "norm" else ""
        return f"sg.{name}({tensor()}{', 2' if extra else ''}, {one(DIMS)})"
    if kind == 5:
        return f"({tensor()})[{one(INDICES)}]"
    if kind == 6:
        return f"sg.{one(['reshape', 'permute', 'expand'])}({tensor()}, {one(SHAPES)})"
    if kind == 7:
        make = one(["sg.csr", "sg.csc"])
        return f"{make}({one(LISTS)}, {one(LISTS)}, {one(LISTS)}, {one(['(2, 2)', *SHAPES])})"
    if kind == 8:
        return f"sg.coo([{one(LISTS)}, {one(LISTS)}], {one(LISTS)}, {one(['(2, 2)', *SHAPES])})"
    if kind == 9:
        return f"sg.{one(['cat', 'stack'])}([{thing()}, {thing()}], {one(DIMS)})"
    if kind == 10:
        call = one(["sg.sddmm", "sg.spgemm_masked", "sg.sampled_addmm", "sg.addmm"])
        return f"{call}({thing()}, {thing()}, {thing()})"
    if rng.random() < 0.5:
        return f"sg.index_select({tensor()}, {one(DIMS)}, {one(LISTS)})"
    return f"sg.top_k({tensor()}, {one(['-1', '0', '1', '99', '1.5', 'None'])}, {one(DIMS)})"
