"""Which instances of the templates in `kernels/*.cu` there are: nothing else is ever compiled."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np

__all__ = ["BOUNDS", "INSTANCES", "SIZES", "SOURCES", "STRUCTS", "TABLES"]

# Bytes of the types of C++ that kernels are instantiated for.
SIZES = {
    "bool": 1,
    "__half": 2,
    "__nv_bfloat16": 2,
    "float": 4,
    "double": 8,
    "int": 4,
    "long long": 8,
    "unsigned char": 1,
    "unsigned short": 2,
    "unsigned int": 4,
    "unsigned long long": 8,
}

# As many as arguments have room for, in one launch:
TABLES = 28  # parameters that `rows.cu` steps
SOURCES = 96  # tables that it takes rows of
BOUNDS = 480  # tables whose ids `validate.cu` looks at

_TABLE = [
    *((name, "u8") for name in ("rows", "perm", "indptr", "count_at", "values")),
    *((name, "u8") for name in ("parts", "p", "first", "second", "third", "row_step")),
    *((name, "i8") for name in ("count", "limit", "entries")),
    *((name, "i4") for name in ("width", "lanes", "until", "stride")),
]
_SOURCE = [
    *((name, "u8") for name in ("x", "index")),
    ("limit", "i8"),
    *((name, "i4") for name in ("width", "column", "lanes", "until")),
]

# Structs that kernels take by value, as C++ lays them out.
STRUCTS = {
    name: np.dtype([("count", "i4"), ("unused", "i4"), (field, kind, (most,))])
    for name, field, kind, most in (
        ("SgTables", "table", _TABLE, TABLES),
        ("SgSources", "table", _SOURCE, SOURCES),
        ("SgBounds", "bound", "i8", BOUNDS),
    )
}


def _product(*choices: Iterable[Any]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(map(str, chosen)) for chosen in product(*choices))


_INDEX = ("int", "long long")
_KEY = ("unsigned int", "unsigned long long")
_FLOAT = ("float", "double", "__half", "__nv_bfloat16")
_VALUE = (*_FLOAT, "int", "long long")


def _widths(ctype: str, all_of_them: bool) -> tuple[int, ...]:
    """Elements a load: those that fill 16 bytes, and then the halves down to 1, or only 1."""
    full = 16 // SIZES[ctype]
    steps = tuple(full >> i for i in range(full.bit_length()))
    return steps if all_of_them else (full, 1)


def _loads(values: Iterable[str], all_of_them: bool) -> tuple[tuple[str, ...], ...]:
    """<value, index, elements a load>"""
    return tuple(
        instance
        for value in values
        for instance in _product((value,), _INDEX, _widths(value, all_of_them))
    )


# <value, index, sum | largest | log of the sum of exponentials | how many are equal | product |
# least>
_REDUCED = (
    *_product(_VALUE, _INDEX, (0, 1, 4, 5)),
    *_product(_FLOAT, _INDEX, (2, 3)),
    *_product(("unsigned char",), _INDEX, (1, 5)),  # bools
)

# <value, index, elements a load>: as many as registers hold of gradient, parameter and state.
_STEPPED = (
    *_product(("float", "__half", "__nv_bfloat16"), _INDEX, (4, 1)),
    *_product(("double",), _INDEX, (1,)),
)

INSTANCES: dict[str, dict[str, tuple[tuple[str, ...], ...]]] = {
    "sddmm": {
        "sg_sddmm": _loads(_FLOAT, True),
    },
    "coalesce": {
        "sg_coalesce_check": _product(_INDEX),
        "sg_coalesce_pack": _product(_KEY, _INDEX),
        "sg_coalesce_flag": _product(_INDEX),
        "sg_coalesce_scatter": _product(_INDEX),
        "sg_coalesce_sum": _product((*_VALUE, "bool"), _INDEX),
        "sg_coalesce_sum_rows": _loads(_VALUE, False),
        "sg_coalesce_join": _product((*_VALUE, "bool"), _INDEX),
    },
    "spmm": {
        "sg_spmm": _loads(_FLOAT, True),
        "sg_spmm_join": _product(_FLOAT, _INDEX),
        "sg_spmm_extreme": _loads(_FLOAT, False),
        "sg_spmm_extreme_join": _product(_FLOAT, _INDEX),
        "sg_spmm_chosen": _product(_FLOAT, _INDEX),
        "sg_spmm_chosen_values": _product(_FLOAT, _INDEX),
        "sg_spmm_chosen_x": _product(_FLOAT, _INDEX),
    },
    "segment": {
        "sg_segment_reduce": _REDUCED,
        "sg_segment_join": _REDUCED,
        "sg_segment_expand": _product(_INDEX),
        "sg_segment_spread": _product(
            ("unsigned short", "unsigned int", "unsigned long long"), _INDEX
        ),
        "sg_segment_largest_grad": _product(_FLOAT, _INDEX),
        "sg_segment_product_grad": _product(_FLOAT, _INDEX),
        "sg_segment_product_apply": _product(_FLOAT, _INDEX),
    },
    "moments": {
        "sg_moments": _product(_FLOAT, _INDEX),
        "sg_moments_join": _product(_FLOAT, _INDEX),
    },
    "softmax": {
        "sg_segment_softmax": _product(_FLOAT, _INDEX),
        "sg_segment_softmax_apply": _product(_FLOAT, _INDEX),
        "sg_segment_softmax_grad": _product(_FLOAT, _INDEX),
        "sg_segment_softmax_grad_apply": _product(_FLOAT, _INDEX),
    },
    "select": {
        "sg_select_count": _product(("unsigned char", *_FLOAT), _INDEX),
        "sg_select_top": _product(_FLOAT, _INDEX),
        "sg_select_kth": _product(_FLOAT, _INDEX),
        "sg_select_compact": _product(_INDEX),
        "sg_select_cells": _product(_INDEX),
        "sg_select_rank": _product(_INDEX),
        "sg_select_first": _product(_INDEX),
    },
    "spgemm_masked": {
        "sg_spgemm_masked": _product(_FLOAT, _INDEX, (1, 4)),
        "sg_spgemm_rows": _product(_FLOAT, _INDEX),
    },
    "rows": {
        "sg_rows_gather": _loads(("unsigned int",), True),
        "sg_rows_gather_tables": _loads(("unsigned int",), True),
        "sg_rows_parts": _STEPPED,
        "sg_rows_sgd": _STEPPED,
        "sg_rows_adagrad": _STEPPED,
        "sg_rows_rowwise_adagrad": _STEPPED,
        "sg_rows_rmsprop": _STEPPED,
        "sg_rows_adam": _STEPPED,
    },
    "validate": {
        "sg_validate_indices": _product(_INDEX),
        "sg_validate_tables": _product(_INDEX, _INDEX),
        "sg_validate_offsets": _product(_INDEX),
    },
    "philox": {
        "sg_random_uniform": _product(_FLOAT),
        "sg_random_normal": _product(_FLOAT),
        "sg_random_integers": _product(("long long",)),
        "sg_dropout": (
            *_product(("float", "__half", "__nv_bfloat16"), (4, 1)),
            ("double", "2"),
            ("double", "1"),
        ),
    },
}
