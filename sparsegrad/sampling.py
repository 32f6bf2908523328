"""Random tensors: uniform, normal, integers, permutations, sparse matrices.

`generator` is where the numbers come from: by default the stream that `sg.manual_seed` starts. A
seed gives the same numbers on every device; only the rounding of other dtypes differs.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from sparsegrad import backends, dtypes, random
from sparsegrad.create import as_size, float_dtype, made_like
from sparsegrad.errors import DtypeError, ShapeError, memory_for
from sparsegrad.sparse_tensor import SparseTensor, wrap
from sparsegrad.structure import Pattern
from sparsegrad.tensor import Tensor, as_tensor

__all__ = [
    "bernoulli",
    "multinomial",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random_sparse",
    "randperm",
    "uniform",
]

Generator = random.Generator


def _drawn(
    op: str,
    method: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    device: Any,
    generator: Generator | None,
    *args: Any,
) -> Any:
    """An array of what the backend's `random_<method>` makes of the next words of the stream."""
    be, n = backends.for_device(device or "cpu"), math.prod(shape)
    source = random.generator(backends.named(device or "cpu")) if generator is None else generator
    seed, offset = source.reserve(n * (1 if dtype.itemsize < 8 else 2))
    with memory_for(op, shape, dtype):
        return getattr(be, f"random_{method}")(seed, offset, n, *(args or (dtype,))).reshape(shape)


def _floating(op: str, dtype: Any) -> np.dtype:
    dtype = float_dtype(dtype)
    if dtypes.kind(dtype) != "f":
        raise DtypeError(f"{op}: dtype must be floating point, got {dtype}")
    return dtype


def _shape(op: str, size: Any) -> tuple[int, ...]:
    return as_size(op, (size,) if isinstance(size, int) else tuple(size))


# ---- dense -------------------------------------------------------------------------------------
def rand(
    *size: Any,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    generator: Generator | None = None,
) -> Tensor:
    """Uniform numbers in [0, 1) of shape `size`, given as integers or one tuple: all multiples of
    2**-53 in float64, 2**-24 in float32, 2**-11 in float16, 2**-8 in bfloat16, equally likely.

    Raises ShapeError for sizes, DtypeError for a dtype that is not floating point.

    >>> import sparsegrad as sg
    >>> g = sg.Generator().manual_seed(0)
    >>> sg.rand(2, generator=g)
    tensor([0.39904642, 0.88052016])
    """
    shape, dtype = as_size("rand", size), _floating("rand", dtype)
    drawn = _drawn("rand", "uniform", shape, dtype, device, generator)
    return Tensor(drawn, requires_grad=requires_grad)


def randn(
    *size: Any,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    generator: Generator | None = None,
) -> Tensor:
    """Standard normal numbers of shape `size`, given as integers or one tuple: the inverse of the
    distribution function at uniform numbers of 52 bits for float64, 32 for narrower dtypes.

    Raises ShapeError for sizes, DtypeError for a dtype that is not floating point.

    Wichura, "Algorithm AS 241", Applied Statistics 37 (1988).

    >>> import sparsegrad as sg
    >>> g = sg.Generator().manual_seed(0)
    >>> bool(abs(sg.randn(10000, generator=g).mean()) < 0.05)
    True
    """
    shape, dtype = as_size("randn", size), _floating("randn", dtype)
    drawn = _drawn("randn", "normal", shape, dtype, device, generator)
    return Tensor(drawn, requires_grad=requires_grad)


def rand_like(x: Any, dtype: Any = None, requires_grad: bool = False) -> Any:
    """Uniform numbers in [0, 1) in the shape, dtype and device of `x`; for a SparseTensor on its
    pattern.

    >>> import sparsegrad as sg
    >>> sg.rand_like(sg.ones(2, 3)).shape
    (2, 3)
    """
    return made_like("rand_like", x, dtype, requires_grad, rand)


def randn_like(x: Any, dtype: Any = None, requires_grad: bool = False) -> Any:
    """Standard normal numbers in the shape, dtype and device of `x`; for a SparseTensor on its
    pattern.

    >>> import sparsegrad as sg
    >>> sg.randn_like(sg.ones(2, 3)).shape
    (2, 3)
    """
    return made_like("randn_like", x, dtype, requires_grad, randn)


def randint(
    low: int,
    high: Any,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    generator: Generator | None = None,
) -> Tensor:
    """Integers in [low, high) of shape `size`; `randint(high, size)` starts at 0. int64 by default.
    Raises ValueError unless low < high, and both fit 64 bits.

    >>> import sparsegrad as sg
    >>> sg.randint(5, 6, (2,)), sg.randint(1, (2,))
    (tensor([5, 5]), tensor([0, 0]))
    """
    if size is None:
        low, high, size = 0, low, high
    if not low < high:
        raise ValueError(f"randint: low must be less than high, got {low} and {high}")
    if low < -(2**63) or high > 2**63:
        raise ValueError(f"randint: the numbers must fit int64, got {low} and {high}")
    shape, span = _shape("randint", size), int(high) - int(low)
    drawn = _drawn("randint", "integers", shape, dtypes.int64, device, generator, int(low), span)
    return Tensor(drawn, dtypes.int64 if dtype is None else dtype)


def randint_like(x: Any, low: int, high: Any = None, dtype: Any = None) -> Any:
    """`randint` in the shape, dtype and device of `x`: integers in [low, high), or in [0, low).

    >>> import sparsegrad as sg
    >>> sg.randint_like(sg.ones(2), 5, 6)
    tensor([5., 5.])
    """
    x = as_tensor(x)
    low, high = (0, low) if high is None else (low, high)
    return randint(low, high, x.shape, x.dtype if dtype is None else dtype, x.device)


def randperm(
    n: int, dtype: Any = None, device: Any = None, generator: Generator | None = None
) -> Tensor:
    """The numbers 0 to n - 1 in random order: shape (n,), int64 by default.

    They are sorted by random keys of 64 bits less those of n.

    >>> import sparsegrad as sg
    >>> sorted(sg.randperm(4).tolist())
    [0, 1, 2, 3]
    """
    shape = as_size("randperm", (n,))
    order = _permutation(shape[0], device, generator)
    return Tensor(order, dtypes.int64 if dtype is None else dtype)


def _permutation(n: int, device: Any, generator: Generator | None) -> Any:
    drawn = _drawn("randperm", "integers", (n,), dtypes.int64, device, generator, 0, 2**63)
    xp, low = backends.for_array(drawn).xp, (1 << max(0, n - 1).bit_length()) - 1
    return xp.sort((drawn & ~low) | xp.arange(n)) & low  # distinct keys: any sort is stable


def normal(
    mean: Any,
    std: Any,
    size: Any = None,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    generator: Generator | None = None,
) -> Tensor:
    """Normal numbers of the given mean and standard deviation: numbers with a `size`, or tensors,
    which broadcast to the shape of the result and have no gradient.

    Raises ValueError for a negative standard deviation.

    >>> import sparsegrad as sg
    >>> sg.normal(5.0, 0.0, (2,)), sg.normal(sg.tensor([1.0, 2.0]), 0.0)
    (tensor([5., 5.]), tensor([1., 2.]))
    """
    held = [p for p in (mean, std) if hasattr(p, "requires_grad")]
    if device is None and held:
        device = held[0].device
    if dtype is None:
        dtype = next((p.dtype for p in held if p.is_floating_point()), None)
    dtype = _floating("normal", dtype)
    be = backends.for_device(device or "cpu")
    wide = dtypes.accumulator(dtype)
    centre, spread = (be.asarray(as_tensor(p, device=device).data, wide) for p in (mean, std))
    if bool((spread < 0).any()):
        raise ValueError(f"normal: std must not be negative, got {spread.min()}")
    shape: Any = np.broadcast_shapes(centre.shape, spread.shape)
    if size is not None:
        shape = _shape("normal", size)
    drawn = _drawn("normal", "normal", shape, wide, device, generator)
    return Tensor(centre + spread * drawn, dtype, requires_grad)


def uniform(
    low: float,
    high: float,
    size: Any,
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    generator: Generator | None = None,
) -> Tensor:
    """Uniform numbers in [low, high) of shape `size`. Raises ValueError if low > high.

    >>> import sparsegrad as sg
    >>> sg.uniform(2.0, 2.0, (2,))
    tensor([2., 2.])
    """
    if low > high:
        raise ValueError(f"uniform: low must not exceed high, got {low} and {high}")
    shape, dtype = _shape("uniform", size), _floating("uniform", dtype)
    drawn = _drawn("uniform", "uniform", shape, dtypes.accumulator(dtype), device, generator)
    out = (low + (high - low) * drawn).astype(dtype, copy=False)
    xp = backends.for_array(out).xp
    out = xp.where(out < dtype.type(high), out, dtype.type(low))  # what was rounded up to `high`
    return Tensor(out, dtype, requires_grad)


def bernoulli(p: Any, generator: Generator | None = None) -> Tensor:
    """1 with the probability that `p` gives for each element, else 0: the shape and dtype of `p`.
    Raises ValueError for a probability outside [0, 1].

    >>> import sparsegrad as sg
    >>> sg.bernoulli(sg.tensor([0.0, 1.0]))
    tensor([0., 1.])
    """
    p = as_tensor(p)
    chance = p.data
    if not bool(((chance >= 0) & (chance <= 1)).all()):
        raise ValueError("bernoulli: probabilities must lie in [0, 1]")
    wide = dtypes.float64 if p.dtype == dtypes.float64 else dtypes.float32
    drawn = _drawn("bernoulli", "uniform", p.shape, wide, p.device, generator)
    return Tensor((drawn < chance.astype(wide, copy=False)).astype(p.dtype))


def multinomial(
    weights: Any, num_samples: int, replacement: bool = False, generator: Generator | None = None
) -> Tensor:
    """Places drawn with probabilities that are proportional to `weights`: (m,) -> (num_samples,),
    or for each row of (n, m) -> (n, num_samples); int64.

    replacement: whether a place may be drawn again. Without, each of them is the first of what is
        left: the smallest of exponential numbers with these rates.

    Raises ValueError for weights that are negative, not finite or all 0, and for more samples
    without replacement than there are weights above 0; ShapeError for other shapes.

    >>> import sparsegrad as sg
    >>> sg.multinomial(sg.tensor([0.0, 1.0, 0.0]), 3, replacement=True)
    tensor([1, 1, 1])
    >>> sorted(sg.multinomial(sg.ones(4), 4).tolist())
    [0, 1, 2, 3]
    """
    weights = as_tensor(weights)
    if weights.ndim not in (1, 2) or not weights.shape[-1] or num_samples < 1:
        raise ShapeError(
            f"multinomial: expected weights (m,) or (n, m) with m > 0 and num_samples > 0, got "
            f"{tuple(weights.shape)} and {num_samples}"
        )
    p = weights.data.astype("float64")
    be = backends.for_array(p)
    if not bool(((p >= 0) & be.xp.isfinite(p)).all()) or not bool((p.sum(axis=-1) > 0).all()):
        raise ValueError("multinomial: weights must be finite, none negative, not all 0")
    if not replacement and num_samples > int((p > 0).sum(axis=-1).min()):
        raise ValueError(
            f"multinomial: {num_samples} samples without replacement, but a row has fewer weights "
            "above 0"
        )
    drawn = partial(_drawn, "multinomial", "uniform", dtype=dtypes.float64, device=weights.device)
    if replacement:
        u = drawn(shape=(*p.shape[:-1], num_samples), generator=generator)
        edges = be.xp.cumsum(p, axis=-1)
        marks = u * edges[..., -1:]
        rows = zip(edges.reshape(-1, p.shape[-1]), marks.reshape(-1, num_samples), strict=True)
        found = [be.xp.searchsorted(e, m, side="right") for e, m in rows]
        # What was rounded up to the sum belongs to the last weight above 0.
        last = p.shape[-1] - 1 - be.xp.argmax(p[..., ::-1] > 0, axis=-1)
        index = be.xp.minimum(be.xp.stack(found).reshape(marks.shape), last[..., None])
    else:
        u = drawn(shape=p.shape, generator=generator)
        time = -be.xp.log1p(-u) / be.xp.where(p > 0, p, 1)
        order = be.xp.argsort(be.xp.where(p > 0, time, math.inf), axis=-1)
        index = order[..., :num_samples]
    return Tensor(index.astype("int64"))


# ---- sparse ------------------------------------------------------------------------------------
def random_sparse(
    m: int,
    n: int,
    density: float = 0.01,
    format: Any = "coo",
    values: str = "uniform",
    dtype: Any = None,
    requires_grad: bool = False,
    device: Any = None,
    generator: Generator | None = None,
) -> SparseTensor:
    """A sparse (m, n) matrix with round(density * m * n) entries in random cells, none twice.

    values: "uniform" in [0, 1), or "normal". With O(nnz) memory, whatever the shape. Raises
    ValueError for a density outside [0, 1], ShapeError for 2**63 cells or more.

    >>> import sparsegrad as sg
    >>> A = sg.random_sparse(10**6, 10**6, 1e-10, "csr")
    >>> A.nnz, A.is_coalesced
    (100, True)
    """
    shape = as_size("random_sparse", (m, n))
    if not 0 <= density <= 1:
        raise ValueError(f"random_sparse: density must be between 0 and 1, got {density}")
    if values not in ("uniform", "normal"):
        raise ValueError(f"random_sparse: values must be 'uniform' or 'normal', got {values!r}")
    cells = shape[0] * shape[1]
    if cells >= 2**63:
        raise ShapeError(f"random_sparse: {shape} has too many cells to number them in 64 bits")
    row, col = np.divmod(_cells(cells, round(density * cells), generator), max(1, shape[1]))
    pattern = Pattern.coo([row, col], shape, check=False).to(format)[0]
    if device is not None:
        pattern = pattern.to_device(device)
    make = rand if values == "uniform" else randn
    made = make(
        pattern.nnz, dtype=dtype, requires_grad=requires_grad, device=device, generator=generator
    )
    return wrap(made, pattern)


def _cells(cells: int, count: int, generator: Generator | None) -> np.ndarray:
    """`count` of the numbers below `cells`, distinct and sorted."""
    if 3 * count > cells:
        return np.sort(_permutation(cells, None, generator)[:count])
    found = np.zeros(0, dtype=np.int64)
    while found.size < count:  # a few more are drawn than needed: of those, the first ones count
        more = (count - found.size) * 5 // 4 + 16
        drawn = _drawn(
            "random_sparse", "integers", (more,), dtypes.int64, None, generator, 0, cells
        )
        found = np.concatenate((found, drawn))
        first = np.unique(found, return_index=True)[1]
        found = found[np.sort(first)][:count]
    return np.sort(found)
