"""CUDA through CuPy: cuSPARSE, our own kernels, and the reference for the rest.

Nothing here waits for the device but where a line says `# sync`: to learn a size, or to check
indices that a user gave.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from sparsegrad.backends import cuda_coalesce as coalesce
from sparsegrad.backends import cuda_cusparse as cusparse
from sparsegrad.backends import cuda_kernels as kernels
from sparsegrad.backends import cuda_probe as probe
from sparsegrad.backends import cuda_product as product
from sparsegrad.backends import cuda_random as philox
from sparsegrad.backends import cuda_segment as segment
from sparsegrad.backends import cuda_spmm as spmm
from sparsegrad.backends.base import Array, Backend, Survey
from sparsegrad.backends.cuda_degrees import CudaDegrees
from sparsegrad.backends.cuda_dense import CudaDense
from sparsegrad.backends.cuda_fused import CudaFused
from sparsegrad.backends.cuda_moments import CudaMoments
from sparsegrad.backends.cuda_rows import CudaRows, gather
from sparsegrad.backends.cuda_select import CudaSelect
from sparsegrad.backends.cuda_validate import CudaChecks, raise_pending
from sparsegrad.config import current as settings
from sparsegrad.device import Device
from sparsegrad.dtypes import accumulator, kind
from sparsegrad.errors import DeviceError, SparseEfficiencyWarning

__all__ = ["Cuda", "opened", "serving", "use"]

_FEW = 8  # columns up to which cuSPARSE's product leaves most lanes idle


@cache
def _warn_once(op: str, reason: str) -> None:
    warnings.warn(f"{op} on CUDA: {reason}", SparseEfficiencyWarning, stacklevel=3)


def _falls_back(op: str, reason: str) -> Callable[..., Any]:
    """A method of the reference that is slow on a GPU, and says so once."""
    reference = getattr(Backend, op)

    def method(self: Any, *args: Any) -> Any:
        _warn_once(op, reason)
        return reference(self, *args)

    method.__name__, method.__doc__ = op, reference.__doc__
    return method


class Cuda(CudaChecks, CudaRows, CudaFused, CudaDense, CudaDegrees, CudaMoments, CudaSelect):
    """CuPy arrays on the current device.

    Of the contract, what is not here is the reference on CuPy: `sum`, `matmul` and `compress` are a
    few launches each and good enough; what is slow is listed below by `_falls_back`.
    """

    name = "cuda"
    xp = cupy
    scatter_sorts = True
    keeps_ids = True

    # ---- creation and transfer -----------------------------------------------------------------
    def asarray(self, x: Any, dtype: Any = None) -> Array:
        return cupy.asarray(x, dtype=dtype)

    def to_host(self, array: Array) -> np.ndarray:
        host = cupy.asnumpy(array)  # sync
        raise_pending()
        return host

    def mark(self) -> Any:
        stream = cupy.cuda.get_current_stream()
        return stream.ptr, stream.record(cupy.cuda.Event(disable_timing=True))

    def wait(self, mark: Any) -> None:
        stream = cupy.cuda.get_current_stream()
        if stream.ptr != mark[0]:  # on the device: the host goes on
            stream.wait_event(mark[1])

    def erf(self, x: Array) -> Array:
        from cupyx.scipy.special import erf

        return erf(x).astype(x.dtype, copy=False)

    def special(self, name: str, *args: Any) -> Array:
        """CuPy has all that we ask for: nothing goes to the host."""
        from cupyx.scipy import special

        *numbers, x = args
        wide = accumulator(x.dtype)
        found = getattr(special, name)(*map(cupy.asarray, numbers), self.convert(x, wide))
        return found.astype(wide, copy=False)

    # ---- random numbers ------------------------------------------------------------------------
    def random_uniform(self, seed: int, offset: int, n: int, dtype: np.dtype) -> Array:
        return philox.uniform(seed, offset, n, dtype)

    def random_normal(self, seed: int, offset: int, n: int, dtype: np.dtype) -> Array:
        return philox.normal(seed, offset, n, dtype)

    def random_integers(self, seed: int, offset: int, n: int, low: int, span: int) -> Array:
        return philox.integers(seed, offset, n, low, span)

    def dropout(self, x: Array, p: float, seed: int, offset: int) -> Array:
        return philox.dropout(cupy.ascontiguousarray(x), p, seed, offset)

    # ---- index work ----------------------------------------------------------------------------
    def same(self, a: Array, b: Array) -> bool:
        return bool(_same(a, b))  # sync

    def expand(self, indptr: Array, nnz: int) -> Array:
        return segment.expand(indptr, nnz)

    def sort_coo(self, coords: tuple[Array, ...], shape: tuple[int, ...]) -> Array | None:
        if coords[0].size < 2:
            return None
        indices = _stacked(coords)
        if not int(coalesce.coalesce_check(indices)[0]) & 1:  # sync: a sorted pattern has no plan
            return None
        return coalesce.sort_order(indices, shape)

    def group(self, ids: Array, n: int) -> tuple[Array, Array]:
        perm, listed = self._sorted(ids, n)
        return perm, self.compress(listed, n)

    def order_facts(self, coords: tuple[Array, ...]) -> tuple[bool, bool]:
        if coords[0].size < 2:
            return True, True
        flags = int(coalesce.coalesce_check(_stacked(coords))[0])  # sync
        return not flags & 1, not flags

    def runs(self, coords: tuple[Array, ...]) -> tuple[tuple[Array, ...], Array]:
        found, start = coalesce.runs(_stacked(coords))
        return tuple(found), start

    def touched(self, ids: Array, n: int) -> tuple[Array, Array, Array, Array] | None:
        return coalesce.touched(_stacked((ids,)), n)

    def touched_tables(
        self, ids: Array, bound: int
    ) -> list[tuple[Array, Array, Array, Array]] | None:
        return coalesce.touched_tables(ids, bound)

    def survey(self, coords: tuple[Array, ...], shape: tuple[int, ...]) -> Survey | None:
        return None if coords[0].size < 2 else coalesce.survey(_stacked(coords), shape)

    def gather(self, x: Array, index: Array) -> Array:
        found = gather(x, index)
        return super().gather(x, index) if found is None else found

    # ---- sums by index -------------------------------------------------------------------------
    def scatter_add(self, out: Array, index: Array, values: Array) -> None:
        """Floats without atomics, the same bits every time: sorted by index, then summed."""
        if kind(out.dtype) != "f" or not coalesce.sums(out):
            self._add_at(out, index, values)
            return
        index, values = self.asarray(index), self.asarray(values)
        if index.size == 0 or out.size == 0:
            return
        if index.ndim != 1 or values.shape != (index.size, *out.shape[1:]):
            values = cupy.broadcast_to(values, (*index.shape, *out.shape[1:]))
            index, values = index.reshape(-1), values.reshape(-1, *out.shape[1:])
        ids = index if index.dtype.kind == "i" and index.itemsize >= 4 else index.astype(np.int64)
        out += self._sum_rows(values.astype(out.dtype, copy=False), ids, len(out))

    def add_rows(self, x: Array, index: Array, values: Array) -> Array:
        if x.dtype != values.dtype or not self._sums_rows(values, index):
            return super().add_rows(x, index, values)
        return x + self._sum_rows(values, index, len(x))

    def put_rows(self, values: Array, index: Array, n: int, distinct: bool = False) -> Array:
        if distinct:
            out = cupy.zeros((n, *values.shape[1:]), values.dtype)
            out[index] = values
            return out
        if not self._sums_rows(values, index):
            return super().put_rows(values, index, n)
        return self._sum_rows(values, index, n)

    def _sums_rows(self, values: Array, index: Array) -> bool:
        plain = kind(values.dtype) == "f" and coalesce.sums(values)
        return plain and index.dtype.name in ("int32", "int64") and bool(values.size)

    def _sum_rows(self, values: Array, ids: Array, n: int) -> Array:
        perm, listed = self._sorted(ids, n)
        return coalesce.segment_sum(cupy.ascontiguousarray(values), listed, perm, n)

    def _sorted(self, ids: Array, n: int) -> tuple[Array, Array]:
        """Permutation and sorted ids."""

        def build() -> tuple[Array, Array]:
            return coalesce.listed_ids(coalesce.sort_order(_stacked((ids,)), (n,)), ids)

        return self._kept(ids, n, build)

    def _kept(self, ids: Array, n: int, build: Callable[[], Any]) -> Any:
        """What is built of an index array, kept while it lives: those of a plan come again in every
        step."""
        key = id(ids), n
        held = _of_ids.get(key)
        if held is not None and held[0]() is ids:
            self.wait(held[2])
            return held[1]
        found = build()
        forget = weakref.ref(ids, lambda _: _of_ids.pop(key, None))
        _of_ids[key] = forget, found, self.mark()
        return found

    def _add_at(self, out: Array, index: Array, values: Array) -> None:
        if out.dtype.kind in "iu" and out.dtype.itemsize < 4:  # CuPy's atomics need 32 bits
            wide = out.astype(np.int32)
            cupy.add.at(wide, index, values.astype(np.int32))
            out[...] = wide
            return
        super().scatter_add(out, index, values)

    def segment_sum(self, values: Array, indptr: Array) -> Array:
        if values.dtype == bool:
            return segment.reduce(values.view("u1"), indptr, segment.LARGEST).view(bool)
        if not segment.serves(segment.SUM, values.dtype):
            return super().segment_sum(values, indptr)
        return segment.reduce(values, indptr, segment.SUM)

    def segment_max(self, values: Array, indptr: Array) -> Array:
        if not segment.serves(segment.LARGEST, values.dtype):
            return super().segment_max(values, indptr)
        return segment.reduce(values, indptr, segment.LARGEST)

    def sum_runs(self, values: Array, perm: Array, indptr: Array) -> Array:
        known = coalesce.sums(values) and perm.dtype.name in ("int32", "int64")
        if not (known and perm.dtype == indptr.dtype):
            return super().sum_runs(values, perm, indptr)
        runs = self._kept(indptr, perm.size, lambda: self.expand(indptr, perm.size))
        return coalesce.segment_sum(
            cupy.ascontiguousarray(values), runs, cupy.ascontiguousarray(perm), indptr.size - 1
        )

    def segment_spread(self, x: Array, indptr: Array, nnz: int) -> Array:
        found = segment.spread(x, indptr, nnz)
        return super().segment_spread(x, indptr, nnz) if found is None else found

    def segment_amax(self, values: Array, indptr: Array, absent: Array) -> Array:
        if not segment.serves(segment.LARGEST, values.dtype):
            return super().segment_amax(values, indptr, absent)
        return segment.reduce(values, indptr, segment.LARGEST, absent=absent)

    def segment_amin(self, values: Array, indptr: Array, absent: Array) -> Array:
        if not segment.serves(segment.LEAST, values.dtype):
            return super().segment_amin(values, indptr, absent)
        return segment.reduce(values, indptr, segment.LEAST, absent=absent)

    def segment_amax_grad(
        self, g: Array, values: Array, out: Array, indptr: Array, absent: Array
    ) -> Array:
        if not g.dtype == values.dtype == out.dtype:
            return super().segment_amax_grad(g, values, out, indptr, absent)
        return segment.largest_grad(g, values, out, indptr, absent)

    def segment_prod(self, values: Array, runs: Any, zeros: Array) -> Array:
        if not segment.serves(segment.PRODUCT, values.dtype):
            return super().segment_prod(values, runs, zeros)
        return segment.reduce(values, runs.indptr, segment.PRODUCT, absent=zeros)

    def segment_prod_grad(self, g: Array, values: Array, runs: Any, zeros: Array) -> Array:
        if kind(values.dtype) != "f" or g.dtype != values.dtype:
            return super().segment_prod_grad(g, values, runs, zeros)
        return segment.product_grad(g, values, runs.indptr, zeros)

    def segment_logsumexp(self, values: Array, indptr: Array) -> Array:
        return segment.reduce(values, indptr, segment.LOGSUMEXP)

    def segment_softmax(self, values: Array, indptr: Array) -> Array:
        return segment.softmax(values, indptr)

    def segment_log_softmax(self, values: Array, indptr: Array) -> Array:
        return segment.softmax(values, indptr, logarithm=True)

    def segment_softmax_grad(self, g: Array, out: Array, indptr: Array) -> Array:
        return segment.softmax_grad(g, out, indptr)

    def segment_log_softmax_grad(self, g: Array, out: Array, indptr: Array) -> Array:
        return segment.softmax_grad(g, out, indptr, logarithm=True)

    def extreme_at(self, out: Array, index: Array, values: Array, least: bool) -> None:
        """Integers and bools, by atomics; floats have kernels that need none."""
        wide = np.int32 if out.dtype.itemsize < 4 else out.dtype  # CuPy's atomics need 32 bits
        keys = out.astype(wide)
        (cupy.minimum if least else cupy.maximum).at(keys, index, values.astype(wide))
        out[...] = keys

    # ---- sparse products -----------------------------------------------------------------------
    def spmm(self, pattern: Any, values: Array, x: Array) -> Array:
        """cuSPARSE for wide matrices of float32 and float64, whose bits may differ from run to run;
        our kernel for heads, float16, few columns, values that are all one or in another order,
        and `sg.config.deterministic`. Other dtypes are the reference."""
        if kind(x.dtype) != "f":
            _warn_once("spmm", f"values of {x.dtype} are multiplied as plain arrays")
            return super().spmm(pattern, values, x)
        rows, x = spmm.rows_of(pattern), cupy.ascontiguousarray(x)
        ours = (
            x.dtype not in cusparse.DTYPES
            or x.ndim > 2
            or x.shape[1] <= _FEW
            or not (pattern.nnz and pattern.shape[0])
            or rows.positions is not None
            or spmm.broadcast_value(values)
            or settings.get().deterministic
        )
        if ours:
            return spmm.spmm(rows, values, x)
        return cusparse.spmm(pattern, rows, cupy.ascontiguousarray(values, dtype=x.dtype), x)

    def spmm_mean(self, pattern: Any, values: Array, x: Array) -> Array:
        if kind(x.dtype) != "f":
            return super().spmm_mean(pattern, values, x)
        return spmm.spmm(spmm.rows_of(pattern), values, x, mean=True)

    def sddmm(self, pattern: Any, x: Array, y: Array) -> Array:
        if kind(x.dtype) != "f":
            return super().sddmm(pattern, x, y)
        x, y = cupy.ascontiguousarray(x), cupy.ascontiguousarray(y, dtype=x.dtype)
        row, col = (cupy.ascontiguousarray(ids) for ids in (pattern.row, pattern.col))
        return kernels.sddmm(row, col, x, y)

    def spmm_extreme(
        self, pattern: Any, values: Array, x: Array, least: bool
    ) -> tuple[Array, Array]:
        if kind(x.dtype) != "f":
            _warn_once("spmm_extreme", f"values of {x.dtype} are compared by atomics, in chunks")
            return super().spmm_extreme(pattern, values, x, least)
        return spmm.spmm_extreme(spmm.rows_of(pattern, in_order=True), values, x, least)

    def chosen(self, pattern: Any, entry: Array) -> Array:
        return cupy.ascontiguousarray(entry)

    def chosen_products(self, pattern: Any, values: Array, x: Array, at: Array) -> Array:
        return spmm.chosen_products(pattern, values, x, at)

    def chosen_values(self, pattern: Any, dy: Array, x: Array, at: Array) -> Array:
        return spmm.chosen_values(pattern, dy, x, at)

    def chosen_x(self, pattern: Any, dy: Array, values: Array, at: Array) -> Array:
        return spmm.chosen_x(pattern, dy, values, at)

    def spgemm_pattern(self, left: Any, right: Any) -> tuple[Array, Array]:
        """cuSPARSE on ones, which cannot cancel."""
        if not left.nnz or not right.nnz:
            return super().spgemm_pattern(left, right)
        ones = (cupy.ones(p.nnz, np.float32) for p in (left, right))
        found = cusparse.spgemm(left, next(ones), right, next(ones))
        row, col = self.expand(found.indptr, found.indices.size), found.indices
        shape = left.shape[0], right.shape[1]
        row, col = self._distinct(row, col, shape)  # sync: sorted or not
        return self.compress(row, shape[0]), col

    def spgemm(self, left: Any, a: Array, right: Any, b: Array, out: Any) -> Array:
        if kind(a.dtype) != "f":
            _warn_once("spgemm", f"values of {a.dtype} are multiplied as plain arrays")
            return super().spgemm(left, a, right, b, out)
        return product.spgemm(left, a, right, b, out)

    def spgemm_masked(self, left: Any, a: Array, right: Any, b: Array, mask: Any) -> Array:
        if kind(a.dtype) != "f":
            _warn_once("spgemm_masked", f"values of {a.dtype} are multiplied as plain arrays")
            return super().spgemm_masked(left, a, right, b, mask)
        return product.spgemm_masked(left, a, right, b, mask)

    # ---- sparse solvers: direct ones by SciPy on the host --------------------------------------
    factorize = _falls_back("factorize", "solved on the host by SuperLU")
    triangular_solve = _falls_back("triangular_solve", "solved on the host by SciPy")


_same = cupy.ReductionKernel("T a, T b", "bool out", "a == b", "a && b", "out = a", "1", "sg_same")

_of_ids: dict[tuple[int, int], tuple[weakref.ref[Array], Any, Any]] = {}


def _stacked(coords: tuple[Array, ...]) -> Array:
    """Coordinates as one (ndim, nnz) array of a dtype that the kernels know."""
    dtype = np.result_type(*(c.dtype for c in coords), np.int32)
    if len(coords) == 1:
        return cupy.ascontiguousarray(coords[0], dtype).reshape(1, -1)
    return cupy.stack([c.astype(dtype, copy=False) for c in coords])


# ---- devices -----------------------------------------------------------------------------------
_BACKEND = Cuda()
_default = 0  # what "cuda" without a number means


@cache
def count() -> int:
    """How many devices there are."""
    return int(runtime.getDeviceCount())


def serving(array: Array) -> Cuda:
    """The backend, with the device of `array` the current one: work follows its arguments."""
    if count() > 1:
        _switch(array.device.id)
    return _BACKEND


def _switch(number: int) -> None:
    if runtime.getDevice() != number:
        runtime.setDevice(number)


def index(device: str | Device) -> int:
    """The number of a device; DeviceError for one there is not, or that is too old."""
    if device == "cuda":
        return _default
    number = Device.parse(device).index
    if number >= count():
        raise DeviceError(f"device cuda:{number}: there are {count()}, numbered from 0")
    if number and (complaint := _too_old(number)):  # the first one was looked at by `problem`
        raise DeviceError(f"device cuda:{number}: {complaint}")
    return number


_too_old = cache(probe.too_old)


def opened(device: str | Device) -> Cuda:
    """The backend, with `device` the current one; DeviceError for a number there is not."""
    _switch(index(device))
    return _BACKEND


def use(device: str | Device) -> None:
    """Make `device` what "cuda" means."""
    global _default
    _default = index(device)
    _switch(_default)


def synchronize() -> None:
    """Wait for all work on the current device, and raise what indices were found wrong."""
    cupy.cuda.Device().synchronize()  # sync
    raise_pending()


def describe() -> dict[str, str]:
    """Names and versions, for `sparsegrad info`."""
    names = []
    for number in range(count()):
        found = runtime.getDeviceProperties(number)
        name = found["name"].decode()
        names.append(
            f"cuda:{number} {name}, compute capability {found['major']}.{found['minor']}, "
            f"{found['totalGlobalMem'] / 1e9:.1f} GB"
        )
    return {
        "devices": "; ".join(names),
        "driver": probe.version(runtime.driverGetVersion()),
        "runtime": probe.version(runtime.runtimeGetVersion()),
        "libraries": f"nvrtc {probe.libraries()['nvrtc'][0]}, cusparse {cusparse.version()}",
        "cupy": cupy.__version__,
        "kernels": f"{sum(map(len, kernels.instances().values()))} instances in "
        f"{kernels.directory()}, compiled when they are first used",
    }


def memory_info() -> tuple[int, int]:
    """Bytes of the current device that are free, and all of them."""
    free, total = runtime.memGetInfo()
    return int(free), int(total)


def memory_in_use() -> int:
    """Bytes of the current device that arrays occupy."""
    return int(cupy.get_default_memory_pool().used_bytes())


def memory_held() -> int:
    """Bytes of the current device that the pool has taken."""
    return int(cupy.get_default_memory_pool().total_bytes())


def release_memory() -> None:
    """Return unused blocks of the pool to the device."""
    cupy.get_default_memory_pool().free_all_blocks()
