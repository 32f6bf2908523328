"""The op table: one row per op, from which tests/test_ops.py generates every test.

Rows stand in `rows_*.py`, one file a family, each with a list ROWS. Add rows there, not test files.
"""

from __future__ import annotations

from op_db import (
    rows_blocks,
    rows_composite,
    rows_contract,
    rows_dense,
    rows_device,
    rows_elementwise,
    rows_fused,
    rows_graph,
    rows_linalg,
    rows_order,
    rows_products,
    rows_rearrange,
    rows_rectifiers,
    rows_reduce,
    rows_scatter,
    rows_sparse,
    rows_special,
    rows_structure,
    rows_window,
)
from op_db.case import FORMATS, Draw, OpCase, Sparse

OP_DB = [
    *rows_blocks.ROWS,
    *rows_composite.ROWS,
    *rows_contract.ROWS,
    *rows_dense.ROWS,
    *rows_device.ROWS,
    *rows_elementwise.ROWS,
    *rows_fused.ROWS,
    *rows_graph.ROWS,
    *rows_linalg.ROWS,
    *rows_order.ROWS,
    *rows_products.ROWS,
    *rows_rearrange.ROWS,
    *rows_rectifiers.ROWS,
    *rows_reduce.ROWS,
    *rows_scatter.ROWS,
    *rows_sparse.ROWS,
    *rows_special.ROWS,
    *rows_structure.ROWS,
    *rows_window.ROWS,
]
assert len({case.name for case in OP_DB}) == len(OP_DB)

__all__ = ["FORMATS", "OP_DB", "Draw", "OpCase", "Sparse"]
