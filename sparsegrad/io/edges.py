"""Edge lists: text with one edge a line."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from sparsegrad.dtypes import get_default_dtype
from sparsegrad.errors import DtypeError, PatternError
from sparsegrad.io.files import FileError, opened, replaced
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.structure import cost

__all__ = ["read_edges", "write_edges"]


def read_edges(
    source: Any,
    num_nodes: int | tuple[int, int] | None = None,
    *,
    delimiter: str | None = None,
    comments: str = "#",
    header: bool = False,
    weights: bool | None = None,
    undirected: bool = False,
    one_based: bool = False,
    format: str | None = None,
    dtype: Any = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """Read the adjacency of a graph from text lines "source target [weight]".

    source: path (.gz and .bz2 are decompressed) or open file.
    num_nodes: N, or (rows, columns) of a bipartite graph; by default 1 + the largest id of the
        file, which misses nodes without edges beyond it.
    delimiter: between columns; by default a comma if the first edge has one, else white space.
    comments: what starts a comment. header: skip the first line that is not a comment.
    weights: read the third column; by default if there is one. Values are 1 without.
    undirected: store each edge both ways, self-loops once.
    one_based: ids count from 1.
    format: "coo", "csr", "csc" or "auto"; by default `sg.config.format`.

    Repeated edges are kept, and mean a sum. Raises FileError, with the number of the line, for
    lines that are not numbers, PatternError for ids outside [0, N).

    >>> import io, sparsegrad as sg
    >>> sg.read_edges(io.StringIO("0 1\\n2 0\\n"), num_nodes=4).to_dense()
    tensor([[0., 1., 0., 0.],
            [0., 0., 0., 0.],
            [1., 0., 0., 0.],
            [0., 0., 0., 0.]])
    """
    name = getattr(source, "name", source)
    with opened(source, "rt") as file:
        text = file.read()
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    lines = [line.split(comments, 1)[0] if comments else line for line in text.splitlines()]
    kept = {i: line for i, line in enumerate(lines, 1) if line.strip()}  # by number, from 1
    if header and kept:
        del kept[next(iter(kept))]
    number, first = next(iter(kept.items()), (0, ""))
    if delimiter is None and "," in first:
        delimiter = ","
    columns = len(first.split(delimiter)) if kept else 2
    if columns < 2 or (weights and columns < 3):
        raise FileError(
            f"read_edges: {name}, line {number}: an edge needs {3 if weights else 2} columns, got "
            f"{first!r}"
        )
    weighted = columns > 2 if weights is None else weights
    edges, values = _parsed(name, kept, delimiter, weighted)
    edges = edges - int(one_based)
    if num_nodes is None:
        rows = cols = int(edges.max(initial=-1)) + 1
    else:
        rows, cols = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
    if undirected:
        other = edges[0] != edges[1]
        edges = np.concatenate((edges, edges[::-1, other]), axis=1)
        values = np.concatenate((values, values[other]))
    try:
        A = SparseTensor(list(edges), values, (rows, cols), copy=False)
    except PatternError as error:
        raise PatternError(f"read_edges: {name}: {error}") from None
    A = A.to(cost.resolve(format, A.shape, A.nnz))
    A = A.astype(get_default_dtype() if dtype is None else dtype)
    return A.requires_grad_() if requires_grad else A


def _parsed(
    name: Any, lines: dict[int, str], delimiter: str | None, weighted: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Ids (2, e) as integers, whatever their size, and values (e,)."""
    fields = [("u", np.int64), ("v", np.int64)]
    if weighted:
        fields.append(("w", np.float64))  # type: ignore[arg-type]
    if not lines:
        held = np.zeros(0, dtype=fields)
    else:
        try:
            held = np.loadtxt(
                io.StringIO("\n".join(lines.values())),
                dtype=fields,
                delimiter=delimiter,
                usecols=range(len(fields)),
                ndmin=1,
                comments=None,
            )
        except ValueError as error:
            reason = str(error).partition(" at row")[0]  # NumPy does not count what is left out
            where = _where(lines, fields, delimiter)
            raise FileError(f"read_edges: {name}{where}: {reason}") from error
    values = held["w"].copy() if weighted else np.ones(len(held))
    return np.stack((held["u"], held["v"])), values


def _where(lines: dict[int, str], fields: list[Any], delimiter: str | None) -> str:
    """The number of the first line that NumPy cannot read, as part of a message."""
    for number, line in lines.items():
        words = line.split(delimiter)[: len(fields)]
        try:
            complete = len([kind(word) for (_, kind), word in zip(fields, words)]) == len(fields)
        except (ValueError, OverflowError):
            complete = False
        if not complete:
            return f", line {number} ({line.strip()!r})"
    return ""


def write_edges(target: Any, A: SparseTensor, delimiter: str = " ", weights: bool = True) -> None:
    """Write the entries of a matrix as lines "row column [value]", in entry order.

    target: path (compressed if it ends in .gz or .bz2; replaced only when all is written) or
        file. Values are written so that the same number is read back.

    Raises PatternError unless `A` is a matrix without dense dimensions, DtypeError for complex.

    >>> import io
    >>> import sparsegrad as sg
    >>> file = io.StringIO()
    >>> sg.write_edges(file, sg.coo([[0, 1], [1, 0]], [2.0, 3.0], (2, 2)))
    >>> print(file.getvalue().rstrip())
    0 1 2.0
    1 0 3.0
    """
    if A.sparse_dim != 2 or A.dense_dim:
        raise PatternError(f"write_edges: needs a matrix, got shape {A.shape}")
    if A.dtype.kind == "c":
        raise DtypeError(f"write_edges: values must be real, got {A.dtype}")
    host = A.pattern.core.backend.to_host
    row, col = (host(c).tolist() for c in A.pattern.coords)
    with replaced(target) as file:
        if weights:
            numbers = A.values.detach().numpy()
            numbers = numbers.astype(np.int8) if numbers.dtype.kind == "b" else numbers
            values = [str(v) for v in numbers]
            rows = zip(row, col, values, strict=True)
            lines = (f"{u}{delimiter}{v}{delimiter}{w}\n" for u, v, w in rows)
        else:
            lines = (f"{u}{delimiter}{v}\n" for u, v in zip(row, col, strict=True))
        for line in lines:
            file.write(line.encode("utf-8"))
