// Coalesce: sort entries by position, merge duplicates, sum their values. Index work is done once a
// pattern (the plan); the sums are then repeated for every new array of values.
//
//   check    is it sorted, has it duplicates?          (most real patterns: yes, none; then stop)
//   pack     n-d position -> one key of 32 or 64 bits, by shifts
//   [argsort of the keys: CuPy's, a stable radix sort]
//   flag     1 where a sorted entry starts a new position
//   [cumsum of the flags: CuPy's scan]
//   scatter  positions, and the start of the segment of each
//   sum      values of each segment: one level within a tile of entries, `join` across tiles
//
// Mapping   Index kernels: one thread an entry. sum: a warp takes tiles of 256 sorted entries and
//           reduces runs by a segmented scan. sum_rows: a group of lanes takes a tile of rows and a
//           block of columns, V columns a lane in one load, four rows in flight. Work is cut at
//           fixed places of the sorted order, not by segment: one segment of all the entries costs
//           no more than many small ones. What a cut divides goes to `partial`, two rows a tile:
//           the run that came from the left, and the one that goes on to the right; `join` adds a
//           run's parts in order.
// Bytes     pack i d + key; flag i d + i; scatter i, and i (2 d + 1) a position;
//           sum nnz * (i + i + s D) + u s D, gathers of D = 1 cost up to a sector of 32 each.
// Segments  that are empty are legal in sum, sum_rows and join, which leave their place in `out` as
//           it is: the caller fills it with zeros.
// Numbers   fp16 and bf16 are summed in fp32; the sum of bools is whether any is true. No float
//           atomics: bitwise the same from run to run, for one tile size. Duplicates are added in
//           input order (sum_rows), scalars by a fixed tree (sum).
// Replaces  cupyx's coo sum_duplicates (two merge sorts, two waits, float atomics, scalars only).

// flags: bit 0 = out of order, bit 1 = has duplicates. The caller clears it.
template <typename I>
__global__ void sg_coalesce_check(const I* __restrict__ indices, long long stride, int ndim,
                                  long long n, int* __restrict__ flags) {
  int found = 0;
  for (long long i = sg_thread() + 1; i < n; i += sg_threads()) {
    int order = 0;
    for (int d = 0; d < ndim && order == 0; ++d) {
      const I before = indices[d * stride + i - 1], here = indices[d * stride + i];
      order = (here > before) - (here < before);
    }
    if (order <= 0) found |= order < 0 ? 1 : 2;
  }
  if (found) atomicOr(flags, found);
}

// widths: bits of each dimension, one byte each, dimension 0 in the lowest: up to eight dimensions.
template <typename K, typename I>
__global__ void sg_coalesce_pack(const I* __restrict__ indices, long long stride, int ndim,
                                 unsigned long long widths, long long n, K* __restrict__ key) {
  for (long long i = sg_thread(); i < n; i += sg_threads()) {
    K packed = 0;
    for (int d = 0; d < ndim; ++d) {
      const int width = (int)(widths >> (8 * d)) & 255;
      // A shift by the full width is undefined; nothing lies above such a dimension.
      packed = width < 8 * (int)sizeof(K) ? packed << width : 0;
      packed |= (K)indices[d * stride + i];
    }
    key[i] = packed;
  }
}

// 1 where a sorted entry starts a new position.
template <typename I>
__global__ void sg_coalesce_flag(const I* __restrict__ indices, long long stride, int ndim,
                                 long long n, I* __restrict__ head) {
  for (long long i = sg_thread(); i < n; i += sg_threads()) {
    bool starts = i == 0;
    for (int d = 0; d < ndim && !starts; ++d)
      starts = indices[d * stride + i] != indices[d * stride + i - 1];
    head[i] = starts;
  }
}

// upto: the inclusive scan of the flags.
template <typename I>
__global__ void sg_coalesce_scatter(const I* __restrict__ indices, long long stride, int ndim,
                                    const I* __restrict__ upto, long long n,
                                    I* __restrict__ out_indices, long long out_stride,
                                    I* __restrict__ start) {
  for (long long i = sg_thread(); i < n; i += sg_threads()) {
    const I here = upto[i], s = here - 1;
    if (i == 0 || upto[i - 1] != here) {
      start[s] = (I)i;
      for (int d = 0; d < ndim; ++d)
        out_indices[d * out_stride + s] = indices[d * stride + i];
    }
    if (i == n - 1) start[here] = (I)n;
  }
}

// Scalar values. Tiles of 256: eight rounds of a warp.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_coalesce_sum(const T* __restrict__ values, const I* __restrict__ order,
                const I* __restrict__ segment, long long n, T* __restrict__ out,
                SG_ACC(T)* __restrict__ partial) {
  typedef SG_ACC(T) A;
  const int ROUNDS = 8;
  const int lane = threadIdx.x & 31;
  const long long tiles = (n + 32 * ROUNDS - 1) / (32 * ROUNDS), n_warps = sg_threads() >> 5;

  for (long long tile = sg_thread() >> 5; tile < tiles; tile += n_warps) {
    const long long first = tile * 32 * ROUNDS, after = min(first + 32 * ROUNDS, n);
    A value[ROUNDS];
    I seg[ROUNDS];
    #pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {  // all loads before the first use
      const long long i = first + 32 * r + lane;
      seg[r] = i < n ? segment[i] : I(-1);
      value[r] = i < n ? A(sg_widen(values[order[i]])) : A(0);
    }
    A carry = A(0);  // of the run that is open at the end of a round
    I open = I(-2);
    #pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      const I s = seg[r];
      A v = value[r];
      if (lane == 0 && s == open) v = carry + v;
      #pragma unroll
      for (int o = 1; o < 32; o <<= 1) {
        const A left = __shfl_up_sync(SG_ALL_LANES, v, o);
        const I left_s = __shfl_up_sync(SG_ALL_LANES, s, o);
        if (lane >= o && left_s == s) v = left + v;
      }
      const I next_round = __shfl_sync(SG_ALL_LANES, r + 1 < ROUNDS ? seg[(r + 1) % ROUNDS] : I(-1), 0);
      const I right = __shfl_down_sync(SG_ALL_LANES, s, 1);
      // The run, or its part here, ends. Lanes past the end are one run of -1 that never does.
      if ((lane < 31 ? right : next_round) != s) {
        const bool from_left = first > 0 && segment[first - 1] == s;
        const bool goes_on = after < n && segment[after] == s;
        if (!from_left && !goes_on) out[s] = SgNarrow<T>::from(v);
        else partial[2 * tile + (from_left ? 0 : 1)] = v;
      }
      carry = __shfl_sync(SG_ALL_LANES, v, 31);
      open = __shfl_sync(SG_ALL_LANES, s, 31);
    }
  }
}

// Values of `width` numbers an entry; V divides width. Groups of `lanes` lanes: a power of two.
template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_coalesce_sum_rows(const T* __restrict__ values, const I* __restrict__ order,
                     const I* __restrict__ segment, long long n, int width, int lanes,
                     int tile_rows, T* __restrict__ out, SG_ACC(T)* __restrict__ partial) {
  typedef SG_ACC(T) A;
  const int sub = threadIdx.x & (lanes - 1), blocks = (width + lanes * V - 1) / (lanes * V);
  const long long tiles = (n + tile_rows - 1) / tile_rows, n_groups = sg_threads() / lanes;

  for (long long work = sg_thread() / lanes; work < tiles * blocks; work += n_groups) {
    const long long tile = work / blocks;
    const int column = ((int)(work - tile * blocks) * lanes + sub) * V;
    if (column >= width) continue;  // no collectives below
    const long long first = tile * tile_rows;
    const int rows = (int)min(n - first, (long long)tile_rows);
    long long s = segment[first];  // of the run that `sum` belongs to
    A sum[V];
    #pragma unroll
    for (int v = 0; v < V; ++v) sum[v] = A(0);

    auto flush = [&]() {
      const bool from_left = first > 0 && segment[first - 1] == s;
      const bool goes_on = first + rows < n && segment[first + rows] == s;
      if (!from_left && !goes_on) {
        T narrow[V];
        #pragma unroll
        for (int v = 0; v < V; ++v) narrow[v] = SgNarrow<T>::from(sum[v]);
        sg_store(out + s * width + column, narrow);
      } else {
        A* to = partial + (2 * tile + (from_left ? 0 : 1)) * width + column;
        #pragma unroll
        for (int v = 0; v < V; ++v) to[v] = sum[v];
      }
    };

    for (int i = 0; i < rows; i += 4) {
      unsigned int starts = 0;  // one bit a row: a new segment begins
      T row[4][V];
      #pragma unroll
      for (int u = 0; u < 4; ++u) {  // past the end, the last row once more
        const long long at = first + min(i + u, rows - 1);
        if (i + u > 0 && i + u < rows && segment[at] != segment[at - 1]) starts |= 1u << u;
        const long long entry = order[at];
        sg_load(row[u], values + entry * width + column);
      }
      #pragma unroll
      for (int u = 0; u < 4; ++u) {
        if (i + u >= rows) break;
        if (starts >> u & 1) {
          flush();
          s = segment[first + i + u];  // not always s + 1: a segment may be empty
          #pragma unroll
          for (int v = 0; v < V; ++v) sum[v] = A(0);
        }
        #pragma unroll
        for (int v = 0; v < V; ++v) sum[v] += A(sg_widen(row[u][v]));
      }
    }
    flush();
  }
}

// Second level: a warp for each tile whose last run goes on, and each block of columns. Lanes are
// `columns` (a power of two) next to each other, times 32 / columns strides along the chain of
// tiles. tile_rows is that of the first level.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_coalesce_join(const SG_ACC(T)* __restrict__ partial, const I* __restrict__ segment, long long n,
                 int tile_rows, int width, int columns, T* __restrict__ out) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, blocks = (width + columns - 1) / columns;
  const int strides = 32 / columns, stride = lane / columns;
  const long long cuts = (n + tile_rows - 1) / tile_rows - 1, n_warps = sg_threads() >> 5;

  for (long long work = sg_thread() >> 5; work < cuts * blocks; work += n_warps) {
    const long long tile = work / blocks, first = tile * tile_rows, after = first + tile_rows;
    const I s = segment[after - 1];
    // The whole warp: the run began before, or ends here.
    if ((first > 0 && segment[first - 1] == s) || segment[after] != s) continue;
    const int column = (int)(work - tile * blocks) * columns + (lane & (columns - 1));
    const bool live = column < width;
    A sum = live && stride == 0 ? partial[(2 * tile + 1) * width + column] : A(0);
    if (live)
      for (long long t = tile + 1 + stride; t * tile_rows < n && segment[t * tile_rows] == s;
           t += strides)
        sum += partial[2 * t * width + column];
    for (int o = columns; o < 32; o <<= 1) sum += __shfl_xor_sync(SG_ALL_LANES, sum, o);
    if (live && stride == 0) out[(long long)s * width + column] = SgNarrow<T>::from(sum);
  }
}
