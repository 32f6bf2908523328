"""Which instances of the templates in `kernels/*.cu` there are: nothing else is ever compiled."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

__all__ = ["INSTANCES", "SIZES"]

# Bytes of the types of C++ that kernels are instantiated for.
SIZES = {
    "__half": 2,
    "__nv_bfloat16": 2,
    "float": 4,
    "double": 8,
    "int": 4,
    "long long": 8,
    "unsigned int": 4,
    "unsigned long long": 8,
}


def _product(*choices: Iterable[Any]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(map(str, chosen)) for chosen in product(*choices))


_INDEX = ("int", "long long")
_KEY = ("unsigned int", "unsigned long long")
_VALUE = ("float", "double", "__half", "__nv_bfloat16", "int", "long long")


def _widths(ctype: str, all_of_them: bool) -> tuple[int, ...]:
    """Elements a load: those that fill 16 bytes, and then the halves down to 1, or only 1."""
    full = 16 // SIZES[ctype]
    steps = tuple(full >> i for i in range(full.bit_length()))
    return steps if all_of_them else (full, 1)


INSTANCES: dict[str, dict[str, tuple[tuple[str, ...], ...]]] = {
    "sddmm": {
        "sg_sddmm": tuple(
            instance
            for value in _VALUE[:4]
            for instance in _product((value,), _INDEX, _widths(value, True))
        ),
    },
    "coalesce": {
        "sg_coalesce_check": _product(_INDEX),
        "sg_coalesce_pack": _product(_KEY, _INDEX),
        "sg_coalesce_flag": _product(_KEY, _INDEX),
        "sg_coalesce_flag_wide": _product(_INDEX),
        "sg_coalesce_scatter": _product(_INDEX),
        "sg_coalesce_sum": _product(_VALUE, _INDEX),
        "sg_coalesce_sum_rows": tuple(
            instance
            for value in _VALUE
            for instance in _product((value,), _INDEX, _widths(value, False))
        ),
        "sg_coalesce_join": _product(_VALUE, _INDEX),
    },
}
