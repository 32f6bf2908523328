"""Thrust's sorts, which CuPy carries as compiled code, on NumPy. Stable, as Thrust's are."""

from typing import Any

import numpy as np

from . import mark_written, view


def install(thrust: Any) -> None:
    """Replace the functions of `cupy.cuda.thrust`."""

    def sort(dtype: Any, data: int, keys: int, shape: Any) -> None:
        view(data, tuple(shape), dtype).sort(axis=-1, kind="stable")

    def argsort(dtype: Any, index: int, data: int, keys: int, shape: Any) -> None:
        values, order = view(data, tuple(shape), dtype), view(index, tuple(shape), np.intp)
        order[...] = np.argsort(values, axis=-1, kind="stable")
        values.sort(axis=-1, kind="stable")
        mark_written(order)

    def lexsort(dtype: Any, index: int, keys: int, n_keys: int, n: int) -> None:
        order = view(index, (n,), np.intp)
        order[...] = np.lexsort(view(keys, (n_keys, n), dtype))
        mark_written(order)

    thrust.sort, thrust.argsort, thrust.lexsort = sort, argsort, lexsort
