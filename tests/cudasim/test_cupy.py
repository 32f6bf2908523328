"""The real CuPy on the simulator: its own kernels, and the stand-ins for NVIDIA's libraries."""

import numpy as np
import pytest
import scipy.sparse as sp

rng = np.random.default_rng(7)
A = rng.standard_normal((7, 5)).astype("f")
IDS = rng.integers(0, 7, 40)


def same(got, wanted, tolerance=1e-5):
    np.testing.assert_allclose(got.get(), wanted, rtol=tolerance, atol=tolerance)


def test_elementwise_and_reductions(sim):
    a = sim.asarray(A)
    same(a * 2 + 1, A * 2 + 1)
    same(a.sum(0), A.sum(0))
    same(a.max(), A.max())
    same(a.astype("e").astype("f"), A, 1e-3)
    assert float(a[0, 0]) == A[0, 0]


def test_indexing(sim):
    a, i = sim.asarray(A), sim.asarray(IDS)
    same(a[i], A[IDS])
    same(a[::2, 1:4].T, A[::2, 1:4].T)
    sums, wanted = sim.zeros((7, 5), "f"), np.zeros((7, 5), "f")
    sim.add.at(sums, i, a[i])
    np.add.at(wanted, IDS, A[IDS])
    same(sums, wanted)
    same(sim.cumsum(i), np.cumsum(IDS))


def test_implicit_conversion_is_refused(sim):
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(sim.zeros(3))


@pytest.mark.parametrize("dtype", ["i", "l", np.uint32, np.uint64, "f"])
def test_sort_is_stable(sim, dtype):
    keys = rng.integers(0, 9, 100).astype(dtype)
    same(sim.argsort(sim.asarray(keys)), np.argsort(keys, kind="stable"))
    same(sim.sort(sim.asarray(keys)), np.sort(keys))


def test_lexsort(sim):
    keys = rng.integers(0, 5, (2, 100))
    same(sim.lexsort(sim.asarray(keys)), np.lexsort(keys))


@pytest.mark.parametrize("dtype", "fd")
def test_blas(sim, dtype):
    x, y = A.astype(dtype), rng.standard_normal((5, 6)).astype(dtype)
    same(sim.asarray(x) @ sim.asarray(y), x @ y)
    same(sim.asarray(x).T @ sim.asarray(x), x.T @ x)
    same(sim.matmul(sim.asarray(np.stack([x, -x])), sim.asarray(y)), np.stack([x @ y, -x @ y]))


def test_random(sim):
    draw = sim.random.RandomState(3).standard_normal(1000, dtype="f").get()
    assert abs(draw.mean()) < 0.2 and abs(draw.std() - 1) < 0.1
    assert (draw == sim.random.RandomState(3).standard_normal(1000, dtype="f").get()).all()
    uniform = sim.random.RandomState(3).random_sample(100).get()
    assert uniform.min() > 0 and uniform.max() <= 1


def test_streams_and_events(sim):
    with sim.cuda.Stream(non_blocking=True) as stream:
        event = stream.record()
        x = sim.asarray(A)
    sim.cuda.Stream.null.wait_event(event)
    stream.synchronize()
    same(x, A)


# ---- cuSPARSE

S = sp.random_array((30, 20), density=0.2, format="csr", rng=1).astype("f")
X = rng.standard_normal((20, 6)).astype("f")


@pytest.mark.parametrize("index", ["i", "l"])
def test_cusparse_row_major(sim, index):
    """The binding itself, as a backend uses it: row-major, which CuPy's own products are not."""
    from cupy_backends.cuda.libs import cusparse

    arrays = [sim.asarray(x) for x in (S.indptr.astype(index), S.indices.astype(index), S.data)]
    x, out = sim.asarray(X), sim.empty((30, 6), "f")
    kind = cusparse.CUSPARSE_INDEX_32I if index == "i" else cusparse.CUSPARSE_INDEX_64I
    base, order = cusparse.CUSPARSE_INDEX_BASE_ZERO, cusparse.CUSPARSE_ORDER_ROW
    pointers = [array.data.ptr for array in arrays]
    a = cusparse.createCsr(30, 20, S.nnz, *pointers, kind, kind, base, 0)
    b = cusparse.createDnMat(20, 6, 6, x.data.ptr, 0, order)
    c = cusparse.createDnMat(30, 6, 6, out.data.ptr, 0, order)
    one, zero = np.ones(1, "f"), np.zeros(1, "f")
    plain, algorithm = cusparse.CUSPARSE_OPERATION_NON_TRANSPOSE, cusparse.CUSPARSE_SPMM_CSR_ALG2
    args = (1, plain, plain, one.ctypes.data, a, b, zero.ctypes.data, c, 0, algorithm)
    buffer = sim.empty(cusparse.spMM_bufferSize(*args), np.int8)
    cusparse.spMM(*args, buffer.data.ptr)
    same(out, S @ X)
    with pytest.raises(AttributeError, match="no sddmm"):
        cusparse.sddmm()


def test_cupyx_sparse(sim):
    import cupyx.scipy.sparse as csp

    a = csp.csr_matrix(tuple(map(sim.asarray, (S.data, S.indices, S.indptr))), shape=S.shape)
    same(a.toarray(), S.toarray())
    same(a @ sim.asarray(X), S @ X)
    same(a @ sim.ones(20, "f"), S @ np.ones(20, "f"))
    same(a.T @ sim.ones((30, 2), "f"), S.T @ np.ones((30, 2), "f"))
    same((a @ a.T.tocsr()).toarray(), (S @ S.T).toarray())
    same((a + a).toarray(), (S + S).toarray())
    same(a.tocsc().tocoo().toarray(), S.toarray())


# ---- headers

HALVES = """#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void k(const float* x, float* h, float* b, unsigned short* bits, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __half2 pair = __floats2half2_rn(x[i], 1.f);
  h[i] = __half2float(__float2half_rn(x[i]) + pair.y);
  __nv_bfloat16 v = __float2bfloat16_rn(x[i]);
  bits[i] = __bfloat16_as_ushort(v);
  b[i] = __bfloat162float(v * __float2bfloat16(2.f));
}"""


def test_half_headers(sim):
    x = np.concatenate([rng.standard_normal(500) * 10.0 ** rng.integers(-30, 30, 500), [0, -0.0]])
    x = np.concatenate([x, [np.inf, -np.inf, 1.00390625, 1.01171875]]).astype("f")
    n = len(x)
    h, b, bits = sim.empty(n, "f"), sim.empty(n, "f"), sim.empty(n, np.uint16)
    kernel = sim.RawModule(code=HALVES).get_function("k")
    kernel((-(-n // 64),), (64,), (sim.asarray(x), h, b, bits, np.int32(n)))
    word = x.view(np.uint32).astype(np.uint64)  # round to nearest, ties to even
    wanted = ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16)
    assert (bits.get() == wanted).all()
    with np.errstate(over="ignore"):
        same(h, (x.astype("e") + np.float16(1)).astype("f"), 0)
        same(b, (wanted.astype(np.uint32) << 16).view("f") * 2, 0)
    code = '#include <cuda_bf16.h>\nextern "C" __global__ void k(unsigned short* b)'
    nan = sim.RawModule(code=code + ' { b[0] = __bfloat16_as_ushort(__float2bfloat16(nanf(""))); }')
    nan.get_function("k")((1,), (1,), (bits,))
    assert bits.get()[0] == 0x7FFF
