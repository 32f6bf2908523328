// Variances of runs of entries, some of whose numbers are zeros that nobody stores (var, std).
//
//   moments  sum and squared deviations of each piece of a run, or the variance of a run that is one
//   join     the variance of runs of several pieces
//
// Numbers  two passes, deviations from the mean of the piece; pieces meet by the deviations of their
//          means. Both are sums of squares, so nothing cancels.
// Bytes    n width s + n i, the values once more from the cache.
// Replaces gathering the entries of a run, their sums, the deviations, and their sums: five launches.

template <typename A>
__device__ __forceinline__ A sg_from_mean(A sum, A squares, A count, A mean) {
  if (count == A(0)) return A(0);
  const A away = sum / count - mean;
  return squares + count * away * away;
}

template <typename A>
__device__ __forceinline__ A sg_variance(A total, A squares, A count, double cells, double free,
                                         int root) {
  const A mean = total / A(cells);
  const A out = (squares + A(cells - double(count)) * mean * mean) / A(free);
  return root ? sqrt(out) : out;
}

// bounds (pieces + 1,): entries, listed by perm if there is one. To `out` and `totals` where pieces
// are runs, else to `totals` and `squares`.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_moments(const T* __restrict__ values, const I* __restrict__ perm_or_null,
           const I* __restrict__ bounds, long long pieces, int width, int columns, int lanes,
           double cells, double free, int root, T* __restrict__ out_or_null,
           SG_ACC(T)* __restrict__ totals, SG_ACC(T)* __restrict__ squares_or_null) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, inside = lane & (lanes - 1);
  const int blocks = (width + columns - 1) / columns, step = lanes / columns;
  for (long long base = (sg_thread() - lane) / lanes; base < pieces * blocks;
       base += sg_threads() / lanes) {
    const long long item = base + lane / lanes, piece = item / blocks;
    const int column = (int)(item - piece * blocks) * columns + (inside & (columns - 1));
    const bool live = piece < pieces && column < width;
    const long long begin = live ? (long long)bounds[piece] : 0;
    const long long end = live ? (long long)bounds[piece + 1] : 0;
    const A count = A(end - begin);
    const auto value = [=](long long e) {
      const long long entry = perm_or_null ? (long long)perm_or_null[e] : e;
      return A(sg_widen(values[entry * width + column]));
    };
    A sum = A(0), squares = A(0);
    for (long long e = begin + inside / columns; e < end; e += step) sum += value(e);
    for (int o = columns; o < lanes; o <<= 1) sum += __shfl_xor_sync(SG_ALL_LANES, sum, o);
    const A mean = sum / count;
    for (long long e = begin + inside / columns; e < end; e += step) {
      const A away = value(e) - mean;
      squares += away * away;
    }
    for (int o = columns; o < lanes; o <<= 1) squares += __shfl_xor_sync(SG_ALL_LANES, squares, o);
    if (!live || inside >= columns) continue;  // no collectives below
    const long long place = piece * width + column;
    totals[place] = sum;
    if (squares_or_null) {
      squares_or_null[place] = squares;
      continue;
    }
    squares = sg_from_mean(sum, squares, count, sum / A(cells));
    out_or_null[place] = SgNarrow<T>::from(sg_variance(sum, squares, count, cells, free, root));
  }
}

// starts (segments + 1,): the pieces of each run. A warp for each run and column.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_moments_join(const SG_ACC(T)* __restrict__ sums, const SG_ACC(T)* __restrict__ squares,
                const I* __restrict__ bounds, const I* __restrict__ starts, long long segments,
                int width, double cells, double free, int root, T* __restrict__ out,
                SG_ACC(T)* __restrict__ totals) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31;
  for (long long at = sg_thread() >> 5; at < segments * width; at += sg_threads() >> 5) {
    const long long segment = at / width, first = starts[segment], last = starts[segment + 1];
    const long long column = at - segment * width;
    A total = A(0), away = A(0);
    for (long long p = first + lane; p < last; p += 32) total += sums[p * width + column];
    for (int o = 1; o < 32; o <<= 1) total += __shfl_xor_sync(SG_ALL_LANES, total, o);
    const A mean = total / A(cells);
    for (long long p = first + lane; p < last; p += 32)
      away += sg_from_mean(sums[p * width + column], squares[p * width + column],
                           A(bounds[p + 1] - bounds[p]), mean);
    for (int o = 1; o < 32; o <<= 1) away += __shfl_xor_sync(SG_ALL_LANES, away, o);
    if (lane) continue;  // no collectives below
    const A count = A(bounds[last] - bounds[first]);
    totals[at] = total;
    out[at] = SgNarrow<T>::from(sg_variance(total, away, count, cells, free, root));
  }
}
