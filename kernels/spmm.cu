// SpMM, sparse @ dense: out[i, h, :] = sum (mean, max or min) over the entries e of row i of
//                                      values[e, h] * x[col[e], h, :]
//
// Mapping   An item is one row (of up to `longest` entries) or one part of a longer row; a work
//           item is an item and a tile of the heads * k columns. A group of `lanes` lanes takes a
//           work item: `columns` of them lie side by side along the row of x, V elements each in
//           one load (up to 16 bytes), and lanes / columns strides go along the entries, four each
//           in flight. So a wide x is read as whole rows, and a narrow one (k = 1) by lanes along
//           the entries; a tree of shuffles sums the strides at the end. Heads are columns whose
//           scale differs: x is read at full width whatever k is.
// Parts     The list of parts of long rows is made once a pattern, in Python. They come first, so
//           that no long one starts last. Each leaves its sums in `partial`, and `join` adds those
//           of a row, in fixed order. Without long rows there is no list and no join.
// Launch    V divides k where there are heads, else heads * k; addresses of x are multiples of a
//           load. values[e * value_step]: a step of 0 is one value for all entries. `positions`:
//           the value of entry e is that at positions[e], so the transposed product needs no copy.
// Bytes     nnz * (heads k s + heads s + i) + m * heads k s; one value for all: no heads s.
// Numbers   fp16 and bf16 are summed and compared in fp32. No atomics and nothing to clear: the
//           same bits from run to run. Largest and least: the first entry wins ties, nan wins over
//           numbers; an empty row gives 0 and entry -1.
// Gradient  of extremes: `chosen` kernels, below; of sums: sddmm, and this with the transpose.
// Replaces  gather, multiply, sort, sum: about 6 nnz k s bytes and temporaries of nnz * k. For one
//           head of fp32 or fp64 it is the alternative to cuSPARSE that always gives the same bits.

// What a group of lanes works on: `count` entries from `begin`, columns from `f`.
template <typename I> struct SgSpmmWork {
  long long item, begin;
  int count, f;
  bool live;  // has something to store: not past the end, nor a row that is left to its parts
};

template <typename I>
__device__ __forceinline__ SgSpmmWork<I> sg_spmm_work(
    long long at, long long items, int parts, int longest, int width, int per_tile, int column,
    const I* __restrict__ indptr, const I* __restrict__ part_begin,
    const I* __restrict__ part_end) {
  const int tiles = (width + per_tile - 1) / per_tile;
  SgSpmmWork<I> work;
  work.item = tiles == 1 ? at : at / tiles;
  work.f = (int)(at - work.item * tiles) * per_tile + column;
  work.live = work.item < items && work.f < width;
  work.begin = work.count = 0;
  if (work.live) {
    const bool part = work.item < parts;
    const long long row = work.item - parts;
    work.begin = part ? part_begin[work.item] : indptr[row];
    const long long count = (part ? part_end[work.item] : indptr[row + 1]) - work.begin;
    work.live = count <= longest;
    work.count = work.live ? (int)count : 0;
  }
  return work;
}

template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_spmm(const I* __restrict__ indptr, const I* __restrict__ col,
        const I* __restrict__ positions_or_null, const T* __restrict__ values, int value_step,
        const T* __restrict__ x, int heads, int k, const I* __restrict__ part_begin_or_null,
        const I* __restrict__ part_end_or_null, int parts, long long rows, int longest, int columns,
        int lanes, int mean, T* __restrict__ out, SG_ACC(T)* __restrict__ partial_or_null) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, sub = lane & (lanes - 1), stride = sub / columns;
  const int strides = lanes / columns, width = heads * k, per_tile = columns * V;
  const long long total = (parts + rows) * ((width + per_tile - 1) / per_tile);

  for (long long base = (sg_thread() - lane) / lanes; base < total; base += sg_threads() / lanes) {
    const SgSpmmWork<I> work =
        sg_spmm_work(base + lane / lanes, parts + rows, parts, longest, width, per_tile,
                     (sub & (columns - 1)) * V, indptr, part_begin_or_null, part_end_or_null);
    const int head = heads == 1 ? 0 : work.f / k;
    const T* from = x + work.f;
    A sum[V];
    #pragma unroll
    for (int v = 0; v < V; ++v) sum[v] = A(0);

    for (int e = stride; e < work.count; e += 4 * strides) {
      A scale[4];
      T line[4][V];
      #pragma unroll
      for (int u = 0; u < 4; ++u) {  // past the end, the last entry once more
        const long long at = work.begin + min(e + u * strides, work.count - 1);
        const long long value = positions_or_null ? (long long)positions_or_null[at] : at;
        scale[u] = A(sg_widen(__ldg(values + value * value_step + head)));
        sg_load(line[u], from + (long long)col[at] * width);
      }
      #pragma unroll
      for (int u = 0; u < 4; ++u)
        if (e + u * strides < work.count)
          #pragma unroll
          for (int v = 0; v < V; ++v) sum[v] += scale[u] * A(sg_widen(line[u][v]));
    }
    for (int o = columns; o < lanes; o <<= 1)
      #pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += __shfl_xor_sync(SG_ALL_LANES, sum[v], o);

    if (!work.live || stride > 0) continue;  // no collectives below
    if (work.item >= parts) {
      const A count = A(mean ? max(work.count, 1) : 1);
      T narrow[V];
      #pragma unroll
      for (int v = 0; v < V; ++v) narrow[v] = SgNarrow<T>::from(sum[v] / count);
      sg_store(out + (work.item - parts) * width + work.f, narrow);
    } else {
      #pragma unroll
      for (int v = 0; v < V; ++v) partial_or_null[work.item * width + work.f + v] = sum[v];
    }
  }
}

// A warp for each long row and block of `columns` columns (a power of two); the other lanes are
// strides along its parts, which are slot[r] to slot[r + 1].
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_spmm_join(const SG_ACC(T)* __restrict__ partial, const I* __restrict__ indptr,
             const I* __restrict__ long_row, const I* __restrict__ slot, int long_rows, int width,
             int columns, int mean, T* __restrict__ out) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, blocks = (width + columns - 1) / columns;
  const int stride = lane / columns;
  const long long total = (long long)long_rows * blocks;

  for (long long at = sg_thread() >> 5; at < total; at += sg_threads() >> 5) {
    const long long r = at / blocks;
    const int f = (int)(at - r * blocks) * columns + (lane & (columns - 1));
    A sum = A(0);
    if (f < width)
      for (long long p = slot[r] + stride; p < slot[r + 1]; p += 32 / columns)
        sum += partial[p * width + f];
    for (int o = columns; o < 32; o <<= 1) sum += __shfl_xor_sync(SG_ALL_LANES, sum, o);
    if (f < width && stride == 0) {
      const long long row = long_row[r];
      const A count = A(mean ? indptr[row + 1] - indptr[row] : 1);
      out[row * width + f] = SgNarrow<T>::from(sum / count);
    }
  }
}

// Whether `a` of place i beats `b` of place j; a place of -1 is nothing yet.
template <typename A, typename P>
__device__ __forceinline__ bool sg_beats(A a, P i, A b, P j, bool least) {
  if (i < 0 || j < 0) return j < 0;
  const bool nan_a = a != a, nan_b = b != b;
  if (nan_a != nan_b) return nan_a;
  if (nan_a || a == b) return i < j;
  return least ? a < b : a > b;
}

// The columns of a row are in rising order, so the first entry is the lowest place. A place counts
// from the begin of an item; `entry` is where the value came from.
template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_spmm_extreme(const I* __restrict__ indptr, const I* __restrict__ col,
                const I* __restrict__ positions_or_null, const T* __restrict__ values,
                int value_step, const T* __restrict__ x, int heads, int k,
                const I* __restrict__ part_begin_or_null, const I* __restrict__ part_end_or_null,
                int parts, long long rows, int longest, int columns, int lanes, int least,
                T* __restrict__ out, long long* __restrict__ entry,
                SG_ACC(T)* __restrict__ partial_or_null, int* __restrict__ place_or_null) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, sub = lane & (lanes - 1), stride = sub / columns;
  const int strides = lanes / columns, width = heads * k, per_tile = columns * V;
  const long long total = (parts + rows) * ((width + per_tile - 1) / per_tile);

  for (long long base = (sg_thread() - lane) / lanes; base < total; base += sg_threads() / lanes) {
    const SgSpmmWork<I> work =
        sg_spmm_work(base + lane / lanes, parts + rows, parts, longest, width, per_tile,
                     (sub & (columns - 1)) * V, indptr, part_begin_or_null, part_end_or_null);
    const int head = heads == 1 ? 0 : work.f / k;
    const T* from = x + work.f;
    A best[V];
    int place[V];
    #pragma unroll
    for (int v = 0; v < V; ++v) best[v] = A(0), place[v] = -1;

    for (int e = stride; e < work.count; e += 2 * strides) {
      A scale[2];
      T line[2][V];
      #pragma unroll
      for (int u = 0; u < 2; ++u) {  // the last entry once more does no harm: it is no better
        const long long at = work.begin + min(e + u * strides, work.count - 1);
        const long long value = positions_or_null ? (long long)positions_or_null[at] : at;
        scale[u] = A(sg_widen(__ldg(values + value * value_step + head)));
        sg_load(line[u], from + (long long)col[at] * width);
      }
      #pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int here = min(e + u * strides, work.count - 1);
        #pragma unroll
        for (int v = 0; v < V; ++v) {
          const A product = scale[u] * A(sg_widen(line[u][v]));
          if (sg_beats(product, here, best[v], place[v], least)) best[v] = product, place[v] = here;
        }
      }
    }
    for (int o = columns; o < lanes; o <<= 1)
      #pragma unroll
      for (int v = 0; v < V; ++v) {
        const A other = __shfl_xor_sync(SG_ALL_LANES, best[v], o);
        const int there = __shfl_xor_sync(SG_ALL_LANES, place[v], o);
        if (sg_beats(other, there, best[v], place[v], least)) best[v] = other, place[v] = there;
      }

    if (!work.live || stride > 0) continue;  // no collectives below
    if (work.item >= parts) {
      const long long to = (work.item - parts) * width + work.f;
      T narrow[V];
      #pragma unroll
      for (int v = 0; v < V; ++v) {
        narrow[v] = SgNarrow<T>::from(best[v]);
        long long at = place[v] < 0 ? -1 : work.begin + place[v];
        if (at >= 0 && positions_or_null) at = positions_or_null[at];
        entry[to + v] = at;
      }
      sg_store(out + to, narrow);
    } else {
      #pragma unroll
      for (int v = 0; v < V; ++v) {
        partial_or_null[work.item * width + work.f + v] = best[v];
        place_or_null[work.item * width + work.f + v] = place[v];
      }
    }
  }
}

template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_spmm_extreme_join(const SG_ACC(T)* __restrict__ partial, const int* __restrict__ place,
                     const I* __restrict__ part_begin, const I* __restrict__ positions_or_null,
                     const I* __restrict__ long_row, const I* __restrict__ slot, int long_rows,
                     int width, int columns, int least, T* __restrict__ out,
                     long long* __restrict__ entry) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, blocks = (width + columns - 1) / columns;
  const int stride = lane / columns;
  const long long total = (long long)long_rows * blocks;

  for (long long at = sg_thread() >> 5; at < total; at += sg_threads() >> 5) {
    const long long r = at / blocks;
    const int f = (int)(at - r * blocks) * columns + (lane & (columns - 1));
    A best = A(0);
    long long from = -1;
    if (f < width)
      for (long long p = slot[r] + stride; p < slot[r + 1]; p += 32 / columns) {
        const A other = partial[p * width + f];
        const long long there = part_begin[p] + place[p * width + f];
        if (sg_beats(other, there, best, from, least)) best = other, from = there;
      }
    for (int o = columns; o < 32; o <<= 1) {
      const A other = __shfl_xor_sync(SG_ALL_LANES, best, o);
      const long long there = __shfl_xor_sync(SG_ALL_LANES, from, o);
      if (sg_beats(other, there, best, from, least)) best = other, from = there;
    }
    if (f < width && stride == 0) {
      const long long to = (long long)long_row[r] * width + f;
      out[to] = SgNarrow<T>::from(best);
      entry[to] = positions_or_null ? (long long)positions_or_null[from] : from;
    }
  }
}

// The gradient of extremes. `entry` (rows, heads, k) names the entry that each element of a result
// took, -1 for none; entries, and their row and col, are in the order of the values.

// A thread an element: values[e] * x[col[e]].
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_spmm_chosen(const I* __restrict__ col, const T* __restrict__ values, int value_step,
               const T* __restrict__ x, const long long* __restrict__ entry, long long elements,
               int heads, int k, T* __restrict__ out) {
  typedef SG_ACC(T) A;
  const int width = heads * k;
  for (long long i = sg_thread(); i < elements; i += sg_threads()) {
    const int f = (int)(i % width);
    const long long e = entry[i];
    A product = A(0);
    if (e >= 0)
      product = A(sg_widen(values[e * value_step + f / k])) *
                A(sg_widen(x[(long long)col[e] * width + f]));
    out[i] = SgNarrow<T>::from(product);
  }
}

// A group of `lanes` lanes an entry and head: the sum of g * x[col[e]] over the elements that took
// it. Lines of `entry` and g are read again for each entry of a row, from the caches.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_spmm_chosen_values(const I* __restrict__ row, const I* __restrict__ col,
                      const T* __restrict__ g, const T* __restrict__ x,
                      const long long* __restrict__ entry, long long items, int heads, int k,
                      int lanes, T* __restrict__ out) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, sub = lane & (lanes - 1);
  for (long long base = (sg_thread() - lane) / lanes; base < items; base += sg_threads() / lanes) {
    const long long item = base + lane / lanes, e = item / heads;
    const int head = (int)(item - e * heads);
    A sum = A(0);
    if (item < items) {
      const long long to = ((long long)row[e] * heads + head) * k;
      const long long from = ((long long)col[e] * heads + head) * k;
      for (int f = sub; f < k; f += lanes)
        if (entry[to + f] == e) sum += A(sg_widen(g[to + f])) * A(sg_widen(x[from + f]));
    }
    for (int o = 1; o < lanes; o <<= 1) sum += __shfl_xor_sync(SG_ALL_LANES, sum, o);
    if (item < items && sub == 0) out[item] = SgNarrow<T>::from(sum);
  }
}

// Rows here are those of the transposed matrix, so `col` names rows of g and `entry`: the product
// of sg_spmm with g, but of an entry only the elements that took it. One column a lane.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_spmm_chosen_x(const I* __restrict__ indptr, const I* __restrict__ col,
                 const I* __restrict__ positions_or_null, const T* __restrict__ values,
                 int value_step, const T* __restrict__ g, const long long* __restrict__ entry,
                 int heads, int k, const I* __restrict__ part_begin_or_null,
                 const I* __restrict__ part_end_or_null, int parts, long long rows, int longest,
                 int columns, int lanes, T* __restrict__ out,
                 SG_ACC(T)* __restrict__ partial_or_null) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, sub = lane & (lanes - 1), stride = sub / columns;
  const int strides = lanes / columns, width = heads * k;
  const long long total = (parts + rows) * ((width + columns - 1) / columns);

  for (long long base = (sg_thread() - lane) / lanes; base < total; base += sg_threads() / lanes) {
    const SgSpmmWork<I> work =
        sg_spmm_work(base + lane / lanes, parts + rows, parts, longest, width, columns,
                     sub & (columns - 1), indptr, part_begin_or_null, part_end_or_null);
    const int head = heads == 1 ? 0 : work.f / k;
    A sum = A(0);
    #pragma unroll 4
    for (int e = stride; e < work.count; e += strides) {
      const long long at = work.begin + e;
      const long long value = positions_or_null ? (long long)positions_or_null[at] : at;
      const long long from = (long long)col[at] * width + work.f;
      if (entry[from] == value)
        sum += A(sg_widen(values[value * value_step + head])) * A(sg_widen(g[from]));
    }
    for (int o = columns; o < lanes; o <<= 1) sum += __shfl_xor_sync(SG_ALL_LANES, sum, o);

    if (!work.live || stride > 0) continue;  // no collectives below
    if (work.item >= parts)
      out[(work.item - parts) * width + work.f] = SgNarrow<T>::from(sum);
    else
      partial_or_null[work.item * width + work.f] = sum;
  }
}
