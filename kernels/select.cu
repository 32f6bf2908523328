// The entries that stay: who they are, then their positions, coordinates and offsets.
//
//   count          a bool of each entry, or a number that is compared with a threshold -> how many
//                  entries of its chunk stay up to each one, and in all of it
//   top            values in runs -> the same; the k largest of each run stay
//   kth            for each long run its k-th largest number, and the last that stays of those equal
//   compact        positions of those that stay, what up to three lists say of them, and the offsets
//                  of the runs that are left
//   cells          the true cells of a mask, numbered: entries of a matrix that lie in them
//   rank           floats and the run of each -> keys of 64 bits that sort by run, then by number
//   first          entries sorted within their runs -> whether each is among the first k
//
// Mapping   count and top: a block takes a chunk, a power of two of at least 1024 entries, 1024 in a
//           round; at most 1024 chunks. In top a thread looks through its run until it has met k
//           better entries, or, of a long one, compares its own with what kth has found. kth: a block
//           takes a run and counts its numbers by their 11 highest bits, then those that have the
//           right ones by the next 11, and so on; then equal ones by their places. All others: a
//           thread an entry, then a thread an offset; each block adds up the chunks before every
//           chunk, in shared memory.
// Bytes     count n (s D + 4), and i an entry for `order`; top n (s + 4), i an entry for each list,
//           and the runs, from L1; kth n (s + i) for every 11 bits of a number, and for every 11 of
//           the run's length where not all equal ones stay; compact n 4 + kept (1 + 2 lists) i +
//           runs (2 i + 4); cells n 4 + kept (4 i + 4); rank n (12 + 2 i); first n (8 + 3 i), and n
//           flags by index.
// Numbers   Integers; each place is written once: the same every time.
// Replaces  a comparison, flatnonzero (a scan and a kernel), a gather for each list, another scan and
//           a gather for the offsets; for top, a sort within each run.

const int SG_ROUND = 1024;  // entries that a block counts at a time
const int SG_CHUNKS = 1024;  // at most

// Counts up to each entry of chunks of 1 << shift, and in each chunk. stays(e): whether entry e does.
template <typename F>
__device__ __forceinline__ void sg_count(F stays, long long n, int shift, int* __restrict__ upto,
                                         int* __restrict__ counts) {
  const int ROUNDS = SG_ROUND / 256;  // of the block; a sum for each warp and round: 32
  __shared__ int sums[SG_ROUND / 32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const unsigned int here_and_before = SG_ALL_LANES >> (31 - lane);
  const long long chunks = (n + (1LL << shift) - 1) >> shift;
  for (long long chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const long long first = chunk << shift, after = min(first + (1LL << shift), n);
    int before = 0;
    for (long long at = first; at < after; at += SG_ROUND) {
      unsigned int votes[ROUNDS];
      #pragma unroll
      for (int r = 0; r < ROUNDS; ++r) {
        const long long e = at + 256 * r + threadIdx.x;
        votes[r] = __ballot_sync(SG_ALL_LANES, e < after && stays(e));
        if (lane == 0) sums[8 * r + warp] = __popc(votes[r]);
      }
      __syncthreads();
      const int own = sums[lane];
      int sum = own;  // of the warps and rounds up to the one of that number
      #pragma unroll
      for (int o = 1; o < 32; o <<= 1) {
        const int left = __shfl_up_sync(SG_ALL_LANES, sum, o);
        if (lane >= o) sum += left;
      }
      #pragma unroll
      for (int r = 0; r < ROUNDS; ++r) {
        const long long e = at + 256 * r + threadIdx.x;
        const int earlier = __shfl_sync(SG_ALL_LANES, sum - own, 8 * r + warp);
        if (e < after) upto[e] = before + earlier + __popc(votes[r] & here_and_before);
      }
      before += __shfl_sync(SG_ALL_LANES, sum, 31);
      __syncthreads();  // before `sums` is written again
    }
    if (threadIdx.x == 0) counts[chunk] = before;
  }
}

__device__ __forceinline__ bool sg_beyond(unsigned char flag, unsigned char) { return flag != 0; }
__device__ __forceinline__ bool sg_beyond(float x, float threshold) {
  return !(fabsf(x) <= threshold);  // nan is
}
__device__ __forceinline__ bool sg_beyond(double x, double threshold) {
  return !(fabs(x) <= threshold);
}

// An entry stays if any of its `width` numbers is beyond the threshold; entries as `order` lists them.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_select_count(const T* __restrict__ values, long long width, SG_ACC(T) threshold,
                const I* __restrict__ order_or_null, long long n, int shift,
                int* __restrict__ upto, int* __restrict__ counts) {
  sg_count([&](long long e) {
    const T* of = values + (order_or_null ? (long long)order_or_null[e] : e) * width;
    for (long long d = 0; d < width; ++d)
      if (sg_beyond(sg_widen(of[d]), threshold)) return true;
    return false;
  }, n, shift, upto, counts);
}

template <typename A> __device__ __forceinline__ A sg_infinity() {
  return A(__int_as_float(0x7f800000));
}

// What an entry is ranked by, the largest first: nan as infinity.
template <typename A>
__device__ __forceinline__ A sg_ranked(A x, int magnitude) {
  return x != x ? sg_infinity<A>() : magnitude && x < A(0) ? -x : x;
}

// Bits that rise with a number, and back; there is one zero.
__device__ __forceinline__ unsigned int sg_rising(float x) {
  const unsigned int bits = x == 0.0f ? 0u : __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ unsigned long long sg_rising(double x) {
  const unsigned long long bits = x == 0.0 ? 0ull : (unsigned long long)__double_as_longlong(x);
  return bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
}
__device__ __forceinline__ float sg_number(unsigned int rising) {
  return __uint_as_float(rising >> 31 ? rising ^ 0x80000000u : ~rising);
}
__device__ __forceinline__ double sg_number(unsigned long long rising) {
  return __longlong_as_double(
      (long long)(rising >> 63 ? rising ^ 0x8000000000000000ull : ~rising));
}

const int SG_DIGIT = 11;  // bits
const int SG_BINS = 1 << SG_DIGIT;

// The digit of the `need`-th of the entries begin to end by digit(p), the highest first; -1 for an
// entry that is out already. `need` becomes how many of those with that digit are wanted, `have` how
// many there are. The whole block; bins: shared memory, SG_BINS and 11 more.
template <typename F>
__device__ __forceinline__ int sg_find_digit(F digit, long long begin, long long end, int* bins,
                                             int& need, int& have) {
  const int FLIGHT = 8, EACH = SG_BINS / 256;
  int* const sums = bins + SG_BINS;
  int* const found = sums + 8;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int b = threadIdx.x; b < SG_BINS; b += 256) bins[b] = 0;
  __syncthreads();
  for (long long first = begin + threadIdx.x; first < end; first += 256 * FLIGHT) {
    int at[FLIGHT];
    #pragma unroll
    for (int u = 0; u < FLIGHT; ++u)
      at[u] = first + 256 * u < end ? digit(first + 256 * u) : -1;
    #pragma unroll
    for (int u = 0; u < FLIGHT; ++u)
      if (at[u] >= 0) atomicAdd(bins + at[u], 1);
  }
  __syncthreads();
  const int highest = SG_BINS - 1 - EACH * threadIdx.x;  // of the bins of this thread
  int own = 0;
  #pragma unroll
  for (int i = 0; i < EACH; ++i) own += bins[highest - i];
  int sum = own;
  #pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const int left = __shfl_up_sync(SG_ALL_LANES, sum, o);
    if (lane >= o) sum += left;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += sums[w];
  int before = sum - own;
  if (before < need && need <= sum) {  // one thread
    int bin = highest;
    for (; before + bins[bin] < need; --bin) before += bins[bin];
    found[0] = bin;
    found[1] = need - before;
    found[2] = bins[bin];
  }
  __syncthreads();
  need = found[1];
  have = found[2];
  return found[0];
}

// Of one run, the k-th of its entries, the largest number first, of equal ones the one that comes
// first: its number and its place. The whole block; 0 < k < end - begin.
template <typename U, typename F>
__device__ __forceinline__ U sg_find_kth(F rising, long long begin, long long end, int* bins,
                                         int k, long long& last) {
  U top = 0;
  int need = k, have = 0;
  for (int low = 8 * (int)sizeof(U); low > 0;) {
    const int bits = min(low, SG_DIGIT);
    low -= bits;
    const U mask = (U(1) << bits) - 1;
    top |= U(sg_find_digit(
               [&](long long p) {
                 const U key = rising(p) >> low;  // and `top` has zeros below
                 return (key & ~mask) == top >> low ? (int)(key & mask) : -1;
               },
               begin, end, bins, need, have))
           << low;
  }
  last = end;
  if (need == have) return top;  // all that are equal
  unsigned int back = 0;  // how far the place is from the end
  for (int low = 32 - __clz((int)(end - begin - 1)); low > 0;) {
    const int bits = min(low, SG_DIGIT);
    low -= bits;
    const unsigned int mask = (1u << bits) - 1;
    back |= (unsigned int)sg_find_digit(
                [&](long long p) {
                  const unsigned int key = (unsigned int)(end - 1 - p) >> low;
                  if ((key & ~mask) != back >> low) return -1;
                  return rising(p) == top ? (int)(key & mask) : -1;
                },
                begin, end, bins, need, have)
            << low;
  }
  last = end - 1 - back;
  return top;
}

// Runs as in `top`, of which those of more than `most` entries are meant: the number of the k-th
// largest, and the place of the last one that stays of those that are equal to it.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_select_kth(const T* __restrict__ values, int magnitude, long long k,
              const I* __restrict__ offsets, long long runs, int most,
              const I* __restrict__ order_or_null, SG_ACC(T)* __restrict__ top,
              I* __restrict__ last) {
  typedef SG_ACC(T) A;
  typedef decltype(sg_rising(A(0))) U;
  __shared__ int bins[SG_BINS + 11];
  __shared__ int chosen[256];  // a thread looks at a run, for the block
  const auto rising = [=](long long p) {
    const long long e = order_or_null ? (long long)order_or_null[p] : p;
    return sg_rising(sg_ranked<A>(sg_widen(values[e]), magnitude));
  };
  for (long long base = blockIdx.x; base < runs; base += 256ll * gridDim.x) {
    const long long mine = base + (long long)threadIdx.x * gridDim.x;
    chosen[threadIdx.x] = mine < runs && (long long)offsets[mine + 1] - offsets[mine] > most;
    __syncthreads();
    for (int t = 0; t < 256; ++t) {
      if (!chosen[t]) continue;  // the whole block
      const long long run = base + (long long)t * gridDim.x;
      const long long begin = offsets[run], end = offsets[run + 1];
      long long place = k > 0 ? end : begin - 1;
      A number = k > 0 ? -sg_infinity<A>() : sg_infinity<A>();
      if (0 < k && k < end - begin)
        number = sg_number(sg_find_kth<U>(rising, begin, end, bins, (int)k, place));
      if (threadIdx.x == 0) {
        top[run] = number;
        last[run] = (I)place;
      }
    }
    __syncthreads();  // before `chosen` is written again
  }
}

// Runs of the entries that `order` lists; `listed` says where in it an entry is. Both are null where
// entries are listed as they are, and `segment`, the run of each listed one, where there is one run.
// Of runs of more than `most` entries `top` and `last` are what kth has found.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_select_top(const T* __restrict__ values, int magnitude, long long k,
              const I* __restrict__ offsets, const I* __restrict__ segment_or_null,
              const I* __restrict__ order_or_null, const I* __restrict__ listed_or_null,
              int most, const SG_ACC(T)* __restrict__ top_or_null,
              const I* __restrict__ last_or_null, long long n, int shift,
              int* __restrict__ upto, int* __restrict__ counts) {
  typedef SG_ACC(T) A;
  sg_count([&](long long e) {
    const long long place = listed_or_null ? (long long)listed_or_null[e] : e;
    const long long run = segment_or_null ? (long long)segment_or_null[place] : 0;
    const A own = sg_ranked<A>(sg_widen(values[e]), magnitude);
    const long long begin = offsets[run], end = offsets[run + 1];
    if (top_or_null && end - begin > most)
      return own > top_or_null[run] || (own == top_or_null[run] && place <= last_or_null[run]);
    long long better = 0;
    for (long long p = begin; p < end && better < k; ++p) {
      const A other = sg_ranked<A>(
          sg_widen(values[order_or_null ? (long long)order_or_null[p] : p]), magnitude);
      better += other > own || (other == own && p < place);
    }
    return better < k;
  }, n, shift, upto, counts);
}

// How many of the entries up to e stay, from the counts within its chunk and those of chunks before.
__device__ __forceinline__ long long sg_upto(const long long* before, const int* __restrict__ upto,
                                             int shift, long long e) {
  return e < 0 ? 0 : before[e >> shift] + upto[e];
}

// Fills `before` with the entries that stay in chunks before each one: the whole block.
__device__ __forceinline__ void sg_add_chunks(const int* __restrict__ counts, long long chunks,
                                              long long* before) {
  const int EACH = SG_CHUNKS / 256;
  __shared__ long long sums[8];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int count[EACH];
  long long own = 0;
  #pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int chunk = EACH * threadIdx.x + i;
    count[i] = chunk < chunks ? counts[chunk] : 0;
    own += count[i];
  }
  long long sum = own;
  #pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const long long left = __shfl_up_sync(SG_ALL_LANES, sum, o);
    if (lane >= o) sum += left;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  sum -= own;
  for (int w = 0; w < warp; ++w) sum += sums[w];
  #pragma unroll
  for (int i = 0; i < EACH; ++i) {
    before[EACH * threadIdx.x + i] = sum;
    sum += count[i];
  }
  __syncthreads();
}

template <typename I>
__device__ __forceinline__ void sg_put(I* __restrict__ to, const I* __restrict__ from,
                                       long long place, long long entry) {
  if (from) to[place] = from[entry];
}

template <typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_select_compact(const int* __restrict__ upto, const int* __restrict__ counts, int shift,
                  long long n, const I* __restrict__ first_or_null,
                  const I* __restrict__ second_or_null, const I* __restrict__ third_or_null,
                  const I* __restrict__ offsets_or_null, long long runs, I* __restrict__ entries,
                  I* __restrict__ out_first_or_null, I* __restrict__ out_second_or_null,
                  I* __restrict__ out_third_or_null, I* __restrict__ out_offsets_or_null) {
  __shared__ long long before[SG_CHUNKS];
  sg_add_chunks(counts, (n + (1LL << shift) - 1) >> shift, before);
  for (long long e = sg_thread(); e < n; e += sg_threads()) {
    const long long place = sg_upto(before, upto, shift, e - 1);
    if (sg_upto(before, upto, shift, e) == place) continue;
    entries[place] = (I)e;
    sg_put(out_first_or_null, first_or_null, place, e);
    sg_put(out_second_or_null, second_or_null, place, e);
    sg_put(out_third_or_null, third_or_null, place, e);
  }
  if (!offsets_or_null) return;
  for (long long r = sg_thread(); r <= runs; r += sg_threads())
    out_offsets_or_null[r] = (I)sg_upto(before, upto, shift, (long long)offsets_or_null[r] - 1);
}

// Counted are the `skip` entries of a mask and, behind them, the n of these that a matrix has too.
// cell (n,): which of the mask's each of those is; entry (n,): where it is in the matrix. Null: the
// same number, with skip = 0.
template <typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_select_cells(const int* __restrict__ upto, const int* __restrict__ counts, int shift,
                long long skip, long long n, const I* __restrict__ cell_or_null,
                const I* __restrict__ entry_or_null, I* __restrict__ cells,
                I* __restrict__ entries) {
  __shared__ long long before[SG_CHUNKS];
  sg_add_chunks(counts, (skip + n + (1LL << shift) - 1) >> shift, before);
  const long long of_mask = sg_upto(before, upto, shift, skip - 1);
  for (long long e = sg_thread(); e < n; e += sg_threads()) {
    const long long sum = sg_upto(before, upto, shift, skip + e - 1), place = sum - of_mask;
    if (sg_upto(before, upto, shift, skip + e) == sum) continue;
    cells[place] = cell_or_null ? (I)(sg_upto(before, upto, shift, cell_or_null[e]) - 1) : (I)place;
    entries[place] = entry_or_null ? entry_or_null[e] : (I)e;
  }
}

// values, entries listed by run if `order` is null, else at its places; segment (n,): the run of each
// listed one, below 2^32. No value may be nan.
template <typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_select_rank(const float* __restrict__ values, const I* __restrict__ order_or_null,
               const I* __restrict__ segment, long long n, unsigned long long* __restrict__ key) {
  for (long long e = sg_thread(); e < n; e += sg_threads()) {
    const float value = values[order_or_null ? order_or_null[e] : e];
    key[e] = (unsigned long long)segment[e] << 32 | sg_rising(value);
  }
}

// sorted (n,): entries by run, and within it by what they are ranked by, as numbers of the list
// `order`, or as positions where that is null. segment (n,): the run of each.
template <typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_select_first(const long long* __restrict__ sorted, const I* __restrict__ order_or_null,
                const I* __restrict__ segment, const I* __restrict__ offsets, long long n,
                long long k, unsigned char* __restrict__ keep) {
  for (long long t = sg_thread(); t < n; t += sg_threads()) {
    const long long e = sorted[t];
    keep[order_or_null ? (long long)order_or_null[e] : e] = t - offsets[segment[t]] < k ? 1 : 0;
  }
}
