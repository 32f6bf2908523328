"""How a sparse tensor shows itself: text, HTML, a picture. Nothing here looks at more than a few
entries, but for the picture, which counts entries by cell. And tables of text."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsegrad.errors import ShapeError

__all__ = ["as_html", "as_string", "as_table", "as_text", "dense_as_html", "first_entries", "spy"]

_SHOWN = 3  # entries in the text
_HTML_SHOWN = 10
_CELLS = 500  # cells of a picture along its longer side


def as_text(A: Any) -> str:
    """The `repr`: what the tensor is, and its first entries."""
    head = ", ".join(f"{name}={text}" for name, text in _facts(A))
    entries = [f"{_place(place)}: {value}" for place, value in first_entries(A, _SHOWN)]
    if A.nnz > len(entries):
        entries.append("...")
    shown = f",\n             {', '.join(entries)}" if entries else ""
    return f"SparseTensor({head}{shown})"


def as_html(A: Any) -> str:
    """A table of the facts and one of the first entries, for notebooks."""
    facts = "".join(
        f"<tr><th style='text-align:left'>{name}</th><td>{html.escape(text)}</td></tr>"
        for name, text in [*_facts(A), ("nbytes", f"{A.nbytes:,}")]
    )
    entries = "".join(
        f"<tr><td>{_place(place)}</td><td>{html.escape(value)}</td></tr>"
        for place, value in first_entries(A, _HTML_SHOWN)
    )
    more = A.nnz - _HTML_SHOWN
    if more > 0:
        entries += f"<tr><td colspan='2'>{more:,} more</td></tr>"
    return (
        f"<table><caption>SparseTensor</caption>{facts}</table>"
        f"<table><tr><th>entry</th><th>value</th></tr>{entries}</table>"
    )


def dense_as_html(t: Any) -> str:
    """A dense tensor for notebooks: its facts, and its elements as the `repr` shows them."""
    facts = f"shape={t.shape}, dtype={t.dtype}, device='{t.device}'"
    if t.requires_grad:
        facts += ", requires_grad=True"
    return f"<div>Tensor({html.escape(facts)})<pre>{html.escape(repr(t))}</pre></div>"


def _facts(A: Any) -> list[tuple[str, str]]:
    facts = [
        ("shape", str(A.shape)),
        ("nnz", str(A.nnz)),
        ("density", f"{A.density:.3g}"),
        ("format", repr(A.format)),
        ("dtype", str(A.dtype)),
        ("device", repr(str(A.device))),
    ]
    if A.dense_dim:
        facts.insert(1, ("dense_dims", str(A.dense_dim)))
    if A.grad_fn is not None:
        facts.append(("grad_fn", repr(A.grad_fn)))
    elif A.requires_grad:
        facts.append(("requires_grad", "True"))
    return facts


def _place(place: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, place)) + ("," if len(place) == 1 else "") + ")"


def first_entries(A: Any, count: int) -> list[tuple[tuple[int, ...], str]]:
    """Coordinates and printed values of the first entries, in entry order; O(count log m)."""
    pattern, core = A.pattern, A.pattern.core
    be = core.backend
    count = min(count, core.nnz)
    perm = core.perm(pattern.order)
    at = be.xp.arange(count) if perm is None else perm[:count]
    if core.kind == "coo":
        coords = [be.to_host(a[at]) for a in core.arrays]
    else:
        indptr, minor = core.arrays
        major = be.xp.searchsorted(indptr, at, side="right") - 1
        coords = [be.to_host(major), be.to_host(minor[at])]
        if core.kind == "csc":
            coords.reverse()
    if pattern.transposed:
        coords.reverse()
    values = be.to_host(A.values.data[:count])
    places = [tuple(int(c[e]) for c in coords) for e in range(count)]
    return [(place, _printed(value)) for place, value in zip(places, values, strict=True)]


def as_string(array: np.ndarray, **options: Any) -> str:
    """`numpy.array2string`; of bfloat16 four digits, which is more than it holds."""
    if array.dtype.kind == "V":
        array, options = array.astype(np.float32), {"precision": 4} | options
    return np.array2string(array, **options)


def _printed(value: Any) -> str:
    text = as_string(np.asarray(value), separator=", ", threshold=6, edgeitems=2)
    return " ".join(text.split())


def spy(A: Any, ax: Any = None) -> Any:
    """Where entries are, drawn on a matplotlib axis; see `SparseTensor.spy`."""
    try:
        import matplotlib.pyplot as plt
        from matplotlib.colors import ListedColormap, LogNorm
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise ImportError(
            "spy: needs matplotlib; install it with pip install 'sparsegrad-engine[plot]'"
        ) from None

    if A.sparse_dim != 2:
        raise ShapeError(f"spy: needs two sparse dimensions, got shape {A.shape}")
    high, wide = (max(size, 1) for size in A.pattern.shape)
    ax = plt.gca() if ax is None else ax
    counts = density_grid(A, _grid_size(A, ax))
    top = int(counts.max(initial=0))
    colours = plt.get_cmap("viridis_r")(np.linspace(0.3, 1, 256))  # its palest are lost on white
    image = ax.imshow(
        np.ma.masked_equal(counts, 0),
        norm=LogNorm(1, top) if top > 1 else LogNorm(0.5, 1),
        cmap=ListedColormap(colours),
        extent=(-0.5, wide - 0.5, high - 0.5, -0.5),
        interpolation="nearest",
        aspect="equal" if 0.2 <= high / wide <= 5 else "auto",
    )
    # A margin, or the frame would hide a full first row.
    ax.set_xlim(-0.5 - 0.015 * wide, 1.015 * wide - 0.5)
    ax.set_ylim(1.015 * high - 0.5, -0.5 - 0.015 * high)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
    if top > 1:
        ticks = [10**k for k in range(len(str(top))) if 2 * 10**k <= top] + [top]
        bar = ax.figure.colorbar(image, ax=ax, label="entries in a cell", shrink=0.8)
        bar.set_ticks(ticks, labels=[f"{tick:,}" for tick in ticks])
        bar.minorticks_off()
    ax.set_title(f"{A.shape[0]:,} × {A.shape[1]:,}, nnz {A.nnz:,}, {A.format}")
    ax.set_xlabel("column")
    ax.set_ylabel("row")
    return ax


def _grid_size(A: Any, ax: Any) -> int:
    """Cells along a side: a cell must not be smaller than a pixel, or drawing would lose it, and
    a few entries in a large matrix must be large enough to see."""
    box = ax.get_window_extent()
    visible = int(min(box.width, box.height) / 1.5)
    return max(min(_CELLS, visible, 50 + int(4 * A.nnz**0.5)), 1)


def density_grid(A: Any, cells: int = _CELLS) -> np.ndarray:
    """Number of stored entries in each cell of a grid of at most `cells` × `cells`; O(nnz)."""
    m, n = A.pattern.shape
    height, width = min(max(m, 1), cells), min(max(n, 1), cells)
    host = A.pattern.core.backend.to_host
    row, col = (host(c).astype(np.int64) for c in A.pattern.coords)
    flat = (row * height // max(m, 1)) * width + col * width // max(n, 1)
    return np.bincount(flat, minlength=height * width).reshape(height, width)


def as_table(names: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Rows of text under names, the first two columns to the left; drawn by rich where that is
    installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(map(len, column)) for column in zip(names, *body, strict=True)]

        def line(row: Sequence[str]) -> str:
            cells = zip(row, widths, strict=True)
            return "  ".join(
                text.ljust(w) if i < 2 else text.rjust(w) for i, (text, w) in enumerate(cells)
            ).rstrip()

        return "\n".join([line(names), "  ".join("-" * w for w in widths), *map(line, body)])
    import io

    drawn = Table(box=box.SIMPLE_HEAD)
    for i, name in enumerate(names):
        drawn.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    for row in body:
        drawn.add_row(*row)
    out = io.StringIO()
    Console(file=out, width=120, color_system=None).print(drawn)
    return out.getvalue().rstrip("\n")
