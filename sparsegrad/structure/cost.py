"""Which format: a table of measured costs, and the cheapest format by it.

The cost of a matrix (m, n) with `nnz` entries that is multiplied with a dense (n, k) is modelled
as linear, in microseconds:

    first      index work before the first products    c[0] + c[1] * (m + n) + c[2] * nnz
    product    A @ x                                    c[0] + c[1] * (m + n) * k + c[2] * nnz * k
    transposed A.T @ g, the backward of a product       the same form
    dense      the product of a dense matrix            c[0] + c[1] * (m + n) * k + c[2] * m * n * k

A format must be cheaper than CSR by `MARGIN` to be chosen over it: measurements are not exact.
"""

from __future__ import annotations

from typing import Any

from sparsegrad.config import current as settings

__all__ = [
    "FORMATS",
    "TABLE",
    "best_format",
    "dense_cost",
    "format_cost",
    "resolve",
    "table",
    "use_table",
]

FORMATS = ("csr", "coo", "csc")
MARGIN = 0.2

# The quietest of six runs of `sparsegrad.policy.calibrate()`; other machines differ, mostly by one
# factor that all rows share, and the choice depends on ratios only.
TABLE: dict[str, Any] = {
    "measured": "calibrate() on x86_64, 2 CPUs, float32, backend 'auto'",
    "csr": {
        "first": [164.3, 0.05008, 0.03281],
        "product": [27.06, 0.0007293, 2.718e-05],
        "transposed": [29.02, 0.0008388, 3.12e-05],
    },
    "coo": {
        "first": [139.5, 0.04591, 0.02148],
        "product": [27.03, 0.0008483, 3.356e-05],
        "transposed": [27.87, 0.0008414, 3.224e-05],
    },
    "csc": {
        "first": [163.2, 0.05251, 0.0296],
        "product": [27.29, 0.0007074, 3.263e-05],
        "transposed": [26.25, 0.0006498, 2.773e-05],
    },
    "dense": {"product": [5.545, 0.0, 1.217e-05]},
}

_held = TABLE


def table() -> dict[str, Any]:
    """The table in use."""
    return _held


def use_table(new: dict[str, Any]) -> None:
    """Put another table in use, for the whole process."""
    global _held
    for name in FORMATS:
        for kind in ("first", "product", "transposed"):
            _row(new, name, kind)
    _row(new, "dense", "product")
    _held = new


def _row(held: dict[str, Any], name: str, kind: str) -> list[float]:
    try:
        row = [float(c) for c in held[name][kind]]
    except (KeyError, TypeError, ValueError):
        row = []
    if len(row) != 3 or min(row) < 0:
        raise ValueError(f"cost table: {name}.{kind} must be three numbers >= 0")
    return row


def format_cost(
    name: str, shape: tuple[int, ...], nnz: int, width: int, uses: int, backward: bool
) -> float:
    """Microseconds of index work and `uses` products (and their backward) in one format."""
    sizes, width = shape[0] + shape[1], max(width, 1)

    def steps(kind: str, k: int) -> float:
        c = _held[name][kind]
        return c[0] + (c[1] * sizes + c[2] * nnz) * k

    each = steps("product", width) + (steps("transposed", width) if backward else 0.0)
    return steps("first", 1) + uses * each


def dense_cost(shape: tuple[int, ...], width: int, uses: int, backward: bool) -> float:
    """Microseconds of `uses` products (and their backward) of a dense matrix."""
    c = _held["dense"]["product"]
    work = c[1] * (shape[0] + shape[1]) + c[2] * shape[0] * shape[1]
    return uses * (1 + backward) * (c[0] + work * max(width, 1))


def best_format(
    shape: tuple[int, ...], nnz: int, width: int = 32, uses: int = 100, backward: bool = True
) -> Any:
    """The cheapest format for a pattern of this shape: "coo" unless it is a matrix."""
    if len(shape) != 2:
        return "coo"
    costs = {f: format_cost(f, shape, nnz, width, uses, backward) for f in FORMATS}
    best = min(FORMATS, key=costs.__getitem__)
    return best if costs[best] < (1 - MARGIN) * costs["csr"] else "csr"


def resolve(format: Any, shape: tuple[int, ...], nnz: int) -> Any:
    """A format by name; "auto" and None stand for `config.format`, and that, if it is "auto" too,
    for the cheapest."""
    if format is None or format == "auto":
        format = settings.get().format
        if format == "auto":
            return best_format(shape, nnz)
        return format if len(shape) == 2 else "coo"
    return format
