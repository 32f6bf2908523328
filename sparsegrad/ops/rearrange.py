"""Elements in other places: splitting, flipping, rolling, padding, repeating.

All of it is built of a few views and copies whose gradients are known (`shape.py`, `index.py`);
most of it works on sparse tensors because those do.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsegrad import backends
from sparsegrad.errors import ShapeError, memory_for
from sparsegrad.ops.elementwise import clone_p, where_p
from sparsegrad.ops.index import raw_index, take
from sparsegrad.ops.shape import (
    as_argument,
    as_axis,
    axes_or_none,
    broadcast_p,
    cat,
    expand,
    is_sparse,
    pad_p,
    permute,
    reshape,
    slice_p,
    squeeze,
    transpose,
)
from sparsegrad.ops.sparse_structure import reorder_p
from sparsegrad.structure import plan_index

__all__ = [
    "broadcast_to",
    "chunk",
    "flatten",
    "flip",
    "meshgrid",
    "movedim",
    "narrow",
    "pad",
    "ravel",
    "repeat_interleave",
    "roll",
    "split",
    "swapaxes",
    "tile",
    "unbind",
    "unflatten",
]


def _several(dims: Any) -> tuple[int, ...]:
    return (dims,) if isinstance(dims, int) else tuple(dims)


def _cut(x: Any, axis: int, start: int, stop: int) -> Any:
    return slice_p(x, axis=axis, start=start, stop=stop)


# ---- dimensions --------------------------------------------------------------------------------
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """`x` with the dimensions from `start_dim` to `end_dim` made one, in row-major order.

    >>> import sparsegrad as sg
    >>> sg.flatten(sg.zeros(2, 3, 4), 1).shape
    (2, 12)
    """
    x = as_argument("flatten", x)
    if x.ndim == 0:
        return reshape(x, (1,))
    first, last = as_axis("flatten", start_dim, x.ndim), as_axis("flatten", end_dim, x.ndim)
    if first > last:
        raise ShapeError(f"flatten: start_dim {start_dim} lies behind end_dim {end_dim}")
    size = math.prod(x.shape[first : last + 1])
    return reshape(x, (*x.shape[:first], size, *x.shape[last + 1 :]))


def ravel(x: Any) -> Any:
    """The elements in one dimension, in row-major order.

    >>> import sparsegrad as sg
    >>> sg.ravel(sg.ones(2, 2))
    tensor([1., 1., 1., 1.])
    """
    return flatten(x)


def unflatten(x: Any, dim: int, sizes: Any) -> Any:
    """`x` with dimension `dim` split into several of `sizes`, one of which may be -1.

    >>> import sparsegrad as sg
    >>> sg.unflatten(sg.zeros(2, 12), 1, (3, -1)).shape
    (2, 3, 4)
    """
    x = as_argument("unflatten", x)
    axis = as_axis("unflatten", dim, x.ndim)
    sizes = _several(sizes)
    known = math.prod(n for n in sizes if n != -1)
    if sizes.count(-1) == 1 and known:
        sizes = tuple(x.shape[axis] // known if n == -1 else n for n in sizes)
    if math.prod(sizes) != x.shape[axis]:
        raise ShapeError(f"unflatten: sizes {sizes} do not make dim {dim} of shape {x.shape}")
    return reshape(x, (*x.shape[:axis], *sizes, *x.shape[axis + 1 :]))


def movedim(x: Any, source: Any, destination: Any) -> Any:
    """`x` with dimensions `source` at `destination` (numbers or tuples), the others in order.

    >>> import sparsegrad as sg
    >>> sg.movedim(sg.zeros(2, 3, 4), 0, -1).shape
    (3, 4, 2)
    """
    x = as_argument("movedim", x)
    old, new = (axes_or_none("movedim", _several(d), x.ndim) for d in (source, destination))
    if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
        raise ShapeError(f"movedim: {source} cannot move to {destination}")
    rest = iter(d for d in range(x.ndim) if d not in old)
    places = dict(zip(new, old, strict=True))
    return permute(x, tuple(places[d] if d in places else next(rest) for d in range(x.ndim)))


def swapaxes(x: Any, axis0: int, axis1: int) -> Any:
    """`transpose` by NumPy's name.

    >>> import sparsegrad as sg
    >>> sg.swapaxes(sg.zeros(2, 3), 0, 1).shape
    (3, 2)
    """
    return transpose(x, axis0, axis1)


def broadcast_to(x: Any, shape: Any) -> Any:
    """`expand` by NumPy's name.

    >>> import sparsegrad as sg
    >>> sg.broadcast_to(sg.ones(3), (2, 3)).shape
    (2, 3)
    """
    return expand(x, shape)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Any, ...]:
    """Coordinate grids of vectors of sizes (n1,), (n2,), ...: as many tensors of shape (n1, n2,
    ...), or with the first two swapped for `indexing="xy"`. Views.

    >>> import sparsegrad as sg
    >>> x, y = sg.meshgrid(sg.arange(2), sg.arange(3))
    >>> x
    tensor([[0, 0, 0],
            [1, 1, 1]])
    """
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tuple(tensors[0])
    if indexing not in ("ij", "xy"):
        raise ValueError(f"meshgrid: indexing must be 'ij' or 'xy', got {indexing!r}")
    if any(t.ndim > 1 for t in tensors):
        raise ShapeError(f"meshgrid: expected vectors, got {[tuple(t.shape) for t in tensors]}")
    flat = [reshape(t, (-1,)) for t in tensors]
    shape = tuple(t.shape[0] for t in flat)
    grids = []
    for i, t in enumerate(flat):
        column = reshape(t, tuple(n if d == i else 1 for d, n in enumerate(shape)))
        grid = broadcast_p(column, shape=shape)
        grids.append(transpose(grid, 0, 1) if indexing == "xy" and len(shape) > 1 else grid)
    return tuple(grids)


# ---- parts -------------------------------------------------------------------------------------
def narrow(x: Any, dim: int, start: int, length: int) -> Any:
    """`length` slices of `x` along `dim` from `start` on: a view, or sparse of a sparse `x`.

    >>> import sparsegrad as sg
    >>> sg.narrow(sg.arange(5), 0, 1, 2)
    tensor([1, 2])
    """
    x = as_argument("narrow", x)
    axis = as_axis("narrow", dim, x.ndim)
    n = x.shape[axis]
    first = start + n if start < 0 else start
    if length < 0 or not 0 <= first <= n - length:
        raise ShapeError(f"narrow: {length} from {start} on do not fit dim {dim} of {x.shape}")
    return _cut(x, axis, first, first + length)


def split(x: Any, split_size_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """`x` in parts along `dim`: of one size (the last may be smaller), or of the sizes of a list,
    which add up to that of `x`. Views, or sparse parts of a sparse `x`.

    >>> import sparsegrad as sg
    >>> [part.tolist() for part in sg.split(sg.arange(5), 2)]
    [[0, 1], [2, 3], [4]]
    """
    x = as_argument("split", x)
    axis = as_axis("split", dim, x.ndim)
    n = x.shape[axis]
    if isinstance(split_size_or_sections, int):
        size = split_size_or_sections
        if size < 0 or (size == 0 and n):
            raise ShapeError(f"split: the size of a part must be positive, got {size}")
        count = max(1, -(-n // size)) if size else 1
        sections = [min(size, n - i * size) for i in range(count)]
    else:
        sections = list(split_size_or_sections)
        if builtins.sum(sections) != n or min(sections, default=0) < 0:
            raise ShapeError(f"split: sections {sections} do not add up to dim {dim} of {x.shape}")
    parts, start = [], 0
    for size in sections:
        parts.append(_cut(x, axis, start, start + size))
        start += size
    return tuple(parts)


def chunk(x: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """`x` in at most `chunks` parts of equal size (the last may be smaller) along `dim`.

    >>> import sparsegrad as sg
    >>> [part.tolist() for part in sg.chunk(sg.arange(5), 3)]
    [[0, 1], [2, 3], [4]]
    """
    x = as_argument("chunk", x)
    if chunks < 1:
        raise ValueError(f"chunk: chunks must be positive, got {chunks}")
    n = x.shape[as_axis("chunk", dim, x.ndim)]
    return split(x, -(-n // chunks), dim) if n else (x,) * chunks


def unbind(x: Any, dim: int = 0) -> tuple[Any, ...]:
    """The slices of `x` along `dim`, which goes.

    >>> import sparsegrad as sg
    >>> sg.unbind(sg.arange(3))
    (tensor(0), tensor(1), tensor(2))
    """
    x = as_argument("unbind", x)
    axis = as_axis("unbind", dim, x.ndim)
    return tuple(squeeze(_cut(x, axis, i, i + 1), axis) for i in range(x.shape[axis]))


# ---- order -------------------------------------------------------------------------------------
def flip(x: Any, *dims: Any) -> Any:
    """`x` in reverse order along `dims` (numbers, or one tuple): a copy, as in PyTorch.

    >>> import sparsegrad as sg
    >>> sg.flip(sg.arange(3), 0)
    tensor([2, 1, 0])
    """
    x = as_argument("flip", x)
    listed = _several(dims[0]) if len(dims) == 1 else dims
    axes = set(axes_or_none("flip", listed, x.ndim))
    turned = x[tuple(slice(None, None, -1 if d in axes else 1) for d in range(x.ndim))]
    return turned if is_sparse(x) else clone_p(turned)


def roll(x: Any, shifts: Any, dims: Any = None) -> Any:
    """`x` moved by `shifts` places along `dims`, what falls off coming in at the other end; without
    `dims` in row-major order.

    >>> import sparsegrad as sg
    >>> sg.roll(sg.arange(4), 1)
    tensor([3, 0, 1, 2])
    """
    x = as_argument("roll", x)
    if dims is None:
        return reshape(roll(reshape(x, (-1,)), shifts, 0), x.shape)
    shifts, dims = _several(shifts), _several(dims)
    if len(shifts) != len(dims):
        raise ShapeError(f"roll: {len(shifts)} shifts but {len(dims)} dims")
    for shift, dim in zip(shifts, dims, strict=True):
        axis = as_axis("roll", dim, x.ndim)
        n = x.shape[axis]
        if n and shift % n:
            at = n - shift % n
            if is_sparse(x) and axis < x.sparse_dim:
                pattern, moves = plan_index.rolled(x.pattern, axis, at)
                x = wrap(reorder_p(x.values, moves=moves), pattern)
            else:
                x = cat([_cut(x, axis, at, n), _cut(x, axis, 0, at)], axis)
    return x


# ---- more of it --------------------------------------------------------------------------------
_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def pad(x: Any, pad: Sequence[int], mode: str = "constant", value: float = 0) -> Any:
    """`x` with elements added at both ends of its last dimensions, as `torch.nn.functional.pad`.

    pad: (before, after) of the last dimension, then of the one before it, ...; a negative number
        takes elements off.
    mode: "constant" (filled with `value`), "reflect", "replicate" or "circular".
    A SparseTensor takes mode "constant" with value 0. Raises ShapeError for sizes that do not fit.

    >>> import sparsegrad as sg
    >>> sg.pad(sg.ones(1, 2), (1, 0, 0, 1))
    tensor([[0., 1., 1.],
            [0., 0., 0.]])
    """
    x = as_argument("pad", x)
    pad = tuple(pad)
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise ShapeError(f"pad: expected pairs for at most {x.ndim} dimensions, got {pad}")
    if mode != "constant" and mode not in _MODES:
        raise ValueError(f"pad: mode must be 'constant' or one of {sorted(_MODES)}, got {mode!r}")
    if is_sparse(x) and (mode != "constant" or value != 0):
        raise TypeError("pad: a sparse tensor is padded with zeros only")
    inside: list[slice] = [slice(None)] * x.ndim
    out = x
    for i in range(len(pad) // 2):
        axis, before, after = x.ndim - 1 - i, pad[2 * i], pad[2 * i + 1]
        n = x.shape[axis]
        if before < 0 or after < 0:
            start, stop = max(0, -before), n - max(0, -after)
            if start > stop:
                raise ShapeError(f"pad: {pad} takes more than there is off shape {x.shape}")
            out, before, after = _cut(out, axis, start, stop), max(0, before), max(0, after)
        if before or after:
            out = _padded(out, axis, before, after, mode)
            inside[axis] = slice(before, out.shape[axis] - after)
    if mode == "constant" and value != 0:
        mask = backends.for_array(out.data).xp.zeros(out.shape, dtype=bool)
        mask[tuple(inside)] = True
        out = where_p(out, value, mask=mask)
    return out


def _padded(x: Any, axis: int, before: int, after: int, mode: str) -> Any:
    if mode == "constant":
        return pad_p(x, axis=axis, before=before, after=after)
    n = x.shape[axis]
    if n <= max(before, after) - (mode != "reflect") and mode != "replicate":
        raise ShapeError(f"pad: {(before, after)} is too much for {mode} of {n} elements")
    xp = backends.for_array(x.data).xp
    ids = xp.pad(xp.arange(n), (before, after), mode=_MODES[mode])
    return take(x, ids, axis, sparse_grad=False)


def tile(x: Any, *dims: Any) -> Any:
    """`x` repeated `dims` times along its dimensions, as `numpy.tile`: the shorter of shape and
    dims is filled with ones in front.

    >>> import sparsegrad as sg
    >>> sg.tile(sg.tensor([1, 2]), 2, 2)
    tensor([[1, 2, 1, 2],
            [1, 2, 1, 2]])
    """
    x = as_argument("tile", x)
    times = _several(dims[0]) if len(dims) == 1 else tuple(dims)
    ndim = max(x.ndim, len(times))
    times = (1,) * (ndim - len(times)) + times
    shape = (1,) * (ndim - x.ndim) + tuple(x.shape)
    if any(r < 0 for r in times):
        raise ShapeError(f"tile: dims must not be negative, got {times}")
    column = reshape(x, tuple(m for n in shape for m in (1, n)))
    wide = broadcast_p(column, shape=tuple(m for pair in zip(times, shape) for m in pair))
    return reshape(wide, tuple(r * n for r, n in zip(times, shape)))


@memory_for("repeat_interleave")
def repeat_interleave(x: Any, repeats: Any, dim: int | None = None) -> Any:
    """Every slice along `dim` (every element without `dim`) `repeats` times in a row; a tensor of
    integers gives each its own number.

    >>> import sparsegrad as sg
    >>> sg.repeat_interleave(sg.tensor([5, 7]), sg.tensor([1, 2]))
    tensor([5, 7, 7])
    """
    x = as_argument("repeat_interleave", x)
    if dim is None:
        x, dim = reshape(x, (-1,)), 0
    axis = as_axis("repeat_interleave", dim, x.ndim)
    n = x.shape[axis]
    be = backends.for_device(x.device)
    counts = repeats if isinstance(repeats, int) else be.asarray(raw_index(repeats))
    if not isinstance(counts, int):
        if counts.ndim > 1 or counts.dtype.kind not in "iu" or counts.size not in (1, n):
            raise ShapeError(
                f"repeat_interleave: repeats must be an integer or {n} of them, got "
                f"{counts.dtype} of shape {counts.shape}"
            )
        counts = counts.reshape(-1)
    if counts < 0 if isinstance(counts, int) else bool((counts < 0).any()):
        raise ValueError("repeat_interleave: repeats must not be negative")
    if x._is_sparse:
        from sparsegrad.ops.sparse_index import index_select

        xp = np if isinstance(counts, int) else be.xp  # an index in host memory is known again
        return index_select(x, axis, xp.repeat(xp.arange(n), counts))
    return take(x, be.xp.repeat(be.xp.arange(n), counts), axis, sparse_grad=False)


from sparsegrad.sparse_tensor import wrap  # noqa: E402  (the one import cycle)
