"""Elements in other places by the names that NumPy and PyTorch have beyond the usual ones, each of
a few ops of `rearrange.py` and `shape.py`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from sparsegrad import backends
from sparsegrad.errors import ShapeError
from sparsegrad.ops.composite import dense_argument, diag_embed
from sparsegrad.ops.elementwise import cast, where_p
from sparsegrad.ops.index import take_p
from sparsegrad.ops.questions import numel
from sparsegrad.ops.rearrange import flip, meshgrid, narrow, split
from sparsegrad.ops.reduce import axis_of
from sparsegrad.ops.shape import as_argument, broadcast_p, cat, reshape_p, stack, transpose
from sparsegrad.ops.window import windows_p

__all__ = [
    "cartesian_prod",
    "column_stack",
    "combinations",
    "diagflat",
    "dsplit",
    "dstack",
    "fliplr",
    "flipud",
    "hsplit",
    "masked_scatter",
    "rot90",
    "select",
    "tensor_split",
    "unfold",
    "vsplit",
]


# ---- turned ------------------------------------------------------------------------------------
def rot90(x: Any, k: int = 1, dims: tuple[int, int] = (0, 1)) -> Any:
    """x turned k times by 90 degrees, from the first of two dimensions to the second.

    >>> import sparsegrad as sg
    >>> sg.rot90(sg.tensor([[1, 2], [3, 4]]))
    tensor([[2, 4],
            [1, 3]])
    """
    x = as_argument("rot90", x)
    a, b = (axis_of("rot90", d, x.ndim) for d in dims)
    if a == b:
        raise ShapeError(f"rot90: needs two different dimensions, got {dims}")
    k %= 4
    if k == 2:
        return flip(x, a, b)
    turned = transpose(x, a, b) if k else x
    return flip(turned, a if k == 1 else b) if k else turned


def fliplr(x: Any) -> Any:
    """`flip` along the second dimension.

    >>> import sparsegrad as sg
    >>> sg.fliplr(sg.tensor([[1, 2]]))
    tensor([[2, 1]])
    """
    return flip(_of_at_least("fliplr", x, 2), 1)


def flipud(x: Any) -> Any:
    """`flip` along the first dimension.

    >>> import sparsegrad as sg
    >>> sg.flipud(sg.tensor([1, 2]))
    tensor([2, 1])
    """
    return flip(_of_at_least("flipud", x, 1), 0)


def _of_at_least(op: str, x: Any, ndim: int) -> Any:
    x = as_argument(op, x)
    if x.ndim < ndim:
        raise ShapeError(f"{op}: expected at least {ndim} dimensions, got shape {tuple(x.shape)}")
    return x


# ---- joined ------------------------------------------------------------------------------------
def column_stack(tensors: Sequence[Any]) -> Any:
    """Joined along the second dimension; vectors and numbers as columns.

    >>> import sparsegrad as sg
    >>> sg.column_stack([sg.tensor([1, 2]), sg.tensor([3, 4])])
    tensor([[1, 3],
            [2, 4]])
    """
    made = [as_argument("column_stack", t) for t in tensors]
    return cat([t if t.ndim > 1 else reshape_p(t, shape=(-1, 1)) for t in made], 1)


def dstack(tensors: Sequence[Any]) -> Any:
    """Joined along the third dimension; vectors (n,) as (1, n, 1), matrices (m, n) as (m, n, 1).

    >>> import sparsegrad as sg
    >>> sg.dstack([sg.tensor([1, 2]), sg.tensor([3, 4])]).shape
    (1, 2, 2)
    """
    made = []
    for t in tensors:
        t = as_argument("dstack", t)
        shape = t.shape if t.ndim > 2 else (*t.shape, 1) if t.ndim == 2 else (1, numel(t), 1)
        made.append(reshape_p(t, shape=tuple(shape)))
    return cat(made, 2)


# ---- parted ------------------------------------------------------------------------------------
def tensor_split(x: Any, indices_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """Parts along `dim`, views: as many as asked for, sizes differing by at most one, larger ones
    first; or those between the given positions, as in NumPy's `array_split`.

    >>> import sparsegrad as sg
    >>> [len(part) for part in sg.tensor_split(sg.arange(7), 3)]
    [3, 2, 2]
    """
    x = _of_at_least("tensor_split", x, 1)
    axis = axis_of("tensor_split", dim, x.ndim)
    n = x.shape[axis]
    given = indices_or_sections
    if isinstance(given, int):
        if given < 1:
            raise ShapeError(f"tensor_split: needs at least one section, got {given}")
        small, more = divmod(n, given)
        sizes = [small + (i < more) for i in range(given)]
        return split(x, sizes, axis)
    marks = given.tolist() if hasattr(given, "tolist") else list(given)
    marks = [min(max(m + n if m < 0 else m, 0), n) for m in marks]
    pairs = itertools.pairwise([0, *marks, n])
    return tuple(narrow(x, axis, a, max(b - a, 0)) for a, b in pairs)


def hsplit(x: Any, indices_or_sections: Any) -> tuple[Any, ...]:
    """`tensor_split` along the second dimension (of a vector the first) into equal parts, or at
    positions. Raises ShapeError for a size that the number of parts does not divide.

    >>> import sparsegrad as sg
    >>> sg.hsplit(sg.tensor([1, 2, 3, 4]), 2)
    (tensor([1, 2]), tensor([3, 4]))
    """
    x = _of_at_least("hsplit", x, 1)
    return _equal_parts("hsplit", x, indices_or_sections, 1 if x.ndim > 1 else 0)


def vsplit(x: Any, indices_or_sections: Any) -> tuple[Any, ...]:
    """`hsplit` along the first dimension of at least two.

    >>> import sparsegrad as sg
    >>> sg.vsplit(sg.tensor([[1], [2]]), 2)
    (tensor([[1]]), tensor([[2]]))
    """
    return _equal_parts("vsplit", _of_at_least("vsplit", x, 2), indices_or_sections, 0)


def dsplit(x: Any, indices_or_sections: Any) -> tuple[Any, ...]:
    """`hsplit` along the third dimension of at least three.

    >>> import sparsegrad as sg
    >>> len(sg.dsplit(sg.ones(1, 1, 4), 2))
    2
    """
    return _equal_parts("dsplit", _of_at_least("dsplit", x, 3), indices_or_sections, 2)


def _equal_parts(op: str, x: Any, given: Any, axis: int) -> tuple[Any, ...]:
    if isinstance(given, int) and (given < 1 or x.shape[axis] % given):
        raise ShapeError(f"{op}: {given} parts do not divide dimension {axis} of {tuple(x.shape)}")
    return tensor_split(x, given, axis)


def select(x: Any, dim: int, index: int) -> Any:
    """Slice `index` along `dim`, which goes: `x[..., index, ...]`.

    >>> import sparsegrad as sg
    >>> sg.select(sg.tensor([[1, 2], [3, 4]]), 1, 0)
    tensor([1, 3])
    """
    x = _of_at_least("select", x, 1)
    return x[(slice(None),) * axis_of("select", dim, x.ndim) + (index,)]


def unfold(x: Any, dim: int, size: int, step: int) -> Any:
    """Windows of `size` every `step` along `dim`, a view: (..., n, ...) -> (..., o, ..., size).

    >>> import sparsegrad as sg
    >>> sg.unfold(sg.tensor([1, 2, 3, 4]), 0, 2, 1)
    tensor([[1, 2],
            [2, 3],
            [3, 4]])
    """
    x = _of_at_least("unfold", x, 1)
    axis = axis_of("unfold", dim, x.ndim)
    if not 0 <= size <= x.shape[axis] or step < 1:
        raise ShapeError(
            f"unfold: size must lie in [0, {x.shape[axis]}] and step be positive, got {size} and "
            f"{step}"
        )
    return windows_p(x, axis=axis, size=size, stride=step, dilation=1)


# ---- chosen ------------------------------------------------------------------------------------
def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """x with the elements where the bool `mask` (broadcast to x) is true replaced, in row-major
    order, by those of `source`. Raises ShapeError for a source with too few elements.

    >>> import sparsegrad as sg
    >>> sg.masked_scatter(sg.zeros(3), sg.tensor([True, False, True]), sg.tensor([7.0, 8.0, 9.0]))
    tensor([7., 0., 8.])
    """
    x, source = as_argument("masked_scatter", x), as_argument("masked_scatter", source)
    mask = as_argument("masked_scatter", mask)
    if mask.dtype != "bool":
        raise TypeError(f"masked_scatter: mask must be bool, got {mask.dtype}")
    chosen = broadcast_p(mask, shape=tuple(x.shape)).data
    be = backends.for_array(x.data)
    flat = cast(reshape_p(source, shape=(-1,)), x.dtype)
    places = be.xp.cumsum(chosen.reshape(-1)) - 1
    wanted = int(places[-1]) + 1 if places.size else 0  # sync
    if wanted > flat.shape[0]:
        raise ShapeError(
            f"masked_scatter: the mask chooses {wanted} elements, source has {flat.shape[0]}"
        )
    if not wanted:
        return x
    picked = take_p(flat, index=be.xp.maximum(places, 0))
    return where_p(reshape_p(picked, shape=tuple(x.shape)), x, mask=chosen)


def diagflat(x: Any, offset: int = 0) -> Any:
    """The elements of x, in row-major order, on a diagonal of a matrix of zeros.

    >>> import sparsegrad as sg
    >>> sg.diagflat(sg.tensor([1, 2]))
    tensor([[1, 0],
            [0, 2]])
    """
    return diag_embed(reshape_p(dense_argument("diagflat", x), shape=(-1,)), offset)


def cartesian_prod(*tensors: Any) -> Any:
    """All ways to take one element of each vector, in rows; of one vector itself.

    >>> import sparsegrad as sg
    >>> sg.cartesian_prod(sg.tensor([1, 2]), sg.tensor([3, 4])).tolist()
    [[1, 3], [1, 4], [2, 3], [2, 4]]
    """
    if len(tensors) == 1:
        return tensors[0]
    grids = meshgrid(*tensors)
    return stack([reshape_p(g, shape=(-1,)) for g in grids], 1)


def combinations(x: Any, r: int = 2, with_replacement: bool = False) -> Any:
    """All choices of r elements of a vector, each in order, in rows.

    >>> import sparsegrad as sg
    >>> sg.combinations(sg.tensor([1, 2, 3])).tolist()
    [[1, 2], [1, 3], [2, 3]]
    """
    x = as_argument("combinations", x)
    if x.ndim != 1 or r < 0:
        raise ShapeError(f"combinations: expected a vector and r >= 0, got {tuple(x.shape)}, {r}")
    pick = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(pick(range(x.shape[0]), r))
    be = backends.for_array(x.data)
    index = be.asarray([i for row in rows for i in row], be.xp.int64)
    return reshape_p(take_p(x, index=index), shape=(len(rows), r))
