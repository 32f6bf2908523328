// SDDMM, the masked product: out[e, h] = alpha * dot(x[row[e], h, :], y[col[e], h, :])
//                                        + beta * values[e, h]     (values may be null)
//
// Mapping   An item is one (entry, head). A warp takes 32 consecutive items at a time; each lane
//           reads the indices of one, coalesced. A group of `lanes` lanes (1 to 32, a power of two)
//           works on four items at once, whose indices it gets by shuffle: every lane has eight
//           loads of V elements (up to 16 bytes) in flight at each step along k. The four sums are
//           transposed while they are reduced, 2 + 1 + 1 + ... shuffles instead of 4 for each
//           halving, so that four lanes of a group store one result each, next to one another.
// Launch    V = elements a load; lanes = 8 for most k (launch table: `_lanes` in cuda_kernels.py).
//           The vectors of x and y lie x_stride_bytes and y_stride_bytes apart; both, and the two
//           addresses, are multiples of a load's size. k need not be: the rest is loaded singly
//           (but it must be even if V is 2: one register less).
//           There are less than 2^32 vectors, and a stride is less than 2^32 bytes, so that an
//           address is one multiply-add of 32 by 32 into 64 bits and not a pair of registers kept.
// Bytes     nnz * heads * (2 k s + s) + nnz * 2 i, at most: rows that repeat hit the first-level
//           cache, which sorted entries do for x.
// Numbers   fp16 and bf16 are summed in fp32. No atomics: results are the same from run to run, and
//           change in the last bits with `lanes` and V, so with the alignment of the arrays.
// Replaces  take, take, multiply, sum over axis 1: about 8 k s bytes an entry and two temporaries
//           of nnz * k. cuSPARSE has the product, CuPy does not reach it.

// The vector of a row; both factors have 32 bits and the product 64, which is one instruction.
template <typename T>
__device__ __forceinline__ const T* sg_row(const T* x, unsigned int id, unsigned int stride_bytes) {
  const char* bytes = reinterpret_cast<const char*>(x);
  return reinterpret_cast<const T*>(bytes + (unsigned long long)id * stride_bytes);
}

template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_sddmm(const I* __restrict__ row, const I* __restrict__ col, const T* __restrict__ x,
         const T* __restrict__ y, unsigned int x_stride_bytes, unsigned int y_stride_bytes, int k,
         int heads, int lanes, long long items, SG_ACC(T) alpha, SG_ACC(T) beta,
         const T* __restrict__ values_or_null, T* __restrict__ out) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, sub = lane & (lanes - 1);
  const int groups = 32 / lanes, group = lane / lanes;
  const int stride = 128 / lanes;  // items of a warp at once

  for (long long base = sg_thread() - lane; base < items; base += sg_threads()) {
    const int live = (int)min(items - base, 32LL);
    // Past the end, the last item once more: its loads are valid and nobody stores the result.
    const long long item = base + min(lane, live - 1);
    const long long entry = heads == 1 ? item : item / heads;
    const unsigned int head = (unsigned int)(item - entry * heads);
    const unsigned int x_id = (unsigned int)row[entry] * heads + head;
    const unsigned int y_id = (unsigned int)col[entry] * heads + head;

    for (int step = 0; step < live; step += stride) {
      unsigned int xs[4], ys[4];
      A sum[4];
      #pragma unroll
      for (int u = 0; u < 4; ++u) {  // with more than eight groups, earlier items again
        const int from = (step + u * groups + group) & 31;
        xs[u] = __shfl_sync(SG_ALL_LANES, x_id, from);
        ys[u] = __shfl_sync(SG_ALL_LANES, y_id, from);
        sum[u] = A(0);
      }
      for (int f = sub * V; f < k; f += lanes * V) {
        if (V <= 2 || f + V <= k) {
          T a[4][V], b[4][V];
          #pragma unroll
          for (int u = 0; u < 4; ++u) {
            sg_load(a[u], sg_row(x + f, xs[u], x_stride_bytes));
            sg_load(b[u], sg_row(y + f, ys[u], y_stride_bytes));
          }
          #pragma unroll
          for (int u = 0; u < 4; ++u)
            #pragma unroll
            for (int v = 0; v < V; ++v) sum[u] += A(sg_widen(a[u][v])) * A(sg_widen(b[u][v]));
        } else {
          for (int g = f; g < k; ++g)
            #pragma unroll
            for (int u = 0; u < 4; ++u)
              sum[u] += A(sg_widen(__ldg(sg_row(x + g, xs[u], x_stride_bytes)))) *
                        A(sg_widen(__ldg(sg_row(y + g, ys[u], y_stride_bytes))));
        }
      }

      // Lane `sub` ends with the sums of items u, or u and u + 1, or of all four.
      int u = 0, owned = 4;
      if (lanes > 1) {
        const bool odd = sub & 1;
        const A give0 = odd ? sum[0] : sum[2], give1 = odd ? sum[1] : sum[3];
        sum[0] = odd ? sum[2] : sum[0];
        sum[1] = odd ? sum[3] : sum[1];
        sum[0] += __shfl_xor_sync(SG_ALL_LANES, give0, 1);
        sum[1] += __shfl_xor_sync(SG_ALL_LANES, give1, 1);
        u = odd ? 2 : 0;
        owned = 2;
      }
      if (lanes > 2) {
        const bool odd = sub & 2;
        const A give = odd ? sum[0] : sum[1];
        sum[0] = odd ? sum[1] : sum[0];
        sum[0] += __shfl_xor_sync(SG_ALL_LANES, give, 2);
        for (int o = 4; o < lanes; o <<= 1)
          sum[0] += __shfl_xor_sync(SG_ALL_LANES, sum[0], o);
        u += odd;
        owned = sub < 4 ? 1 : 0;  // the other lanes hold copies
      }
      #pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int slot = step + (u + w) * groups + group;
        if (w < owned && slot < live) {
          A result = alpha * sum[w];
          if (values_or_null) result += beta * sg_widen(values_or_null[base + slot]);
          out[base + slot] = SgNarrow<T>::from(result);
        }
      }
    }
  }
}
