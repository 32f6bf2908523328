// The entries that stay: positions, coordinates and offsets, in one launch.
//
//   compact        upto (n,): how many of the entries up to each one stay -> the positions of those
//                  that do, what up to three lists say of them, and offsets of the runs left
//   rank           floats and the run of each -> keys of 64 bits that sort by run, then by number
//   first          entries sorted within their runs -> whether each is among the first k
//
// Mapping   A thread an entry, then a thread an offset. Neighbours write neighbours where entries
//           stay in order.
// Bytes     compact n i + kept (1 + 2 lists) i + runs (2 i, and a read by index); rank n (12 + 2 i);
//           first n (8 + 3 i), and n flags written by index.
// Numbers   Integers; each place is written once: the same every time.
// Replaces  flatnonzero (a scan and a kernel), a gather for each list, another scan and a gather for
//           the offsets.

template <typename I>
__device__ __forceinline__ void sg_put(I* __restrict__ to, const I* __restrict__ from,
                                       long long place, long long entry) {
  if (from) to[place] = from[entry];
}

template <typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_select_compact(const I* __restrict__ upto, long long n, const I* __restrict__ first_or_null,
                  const I* __restrict__ second_or_null, const I* __restrict__ third_or_null,
                  const I* __restrict__ offsets_or_null, long long runs, I* __restrict__ entries,
                  I* __restrict__ out_first_or_null, I* __restrict__ out_second_or_null,
                  I* __restrict__ out_third_or_null, I* __restrict__ out_offsets_or_null) {
  for (long long e = sg_thread(); e < n; e += sg_threads()) {
    const I place = e ? upto[e - 1] : I(0);
    if (upto[e] == place) continue;
    entries[place] = (I)e;
    sg_put(out_first_or_null, first_or_null, place, e);
    sg_put(out_second_or_null, second_or_null, place, e);
    sg_put(out_third_or_null, third_or_null, place, e);
  }
  if (!offsets_or_null) return;
  for (long long r = sg_thread(); r <= runs; r += sg_threads()) {
    const I end = offsets_or_null[r];
    out_offsets_or_null[r] = end ? upto[end - 1] : I(0);
  }
}

// values, entries listed by run if `order` is null, else at its places; segment (n,): the run of each
// listed one, below 2^32. No value may be nan or -0.
template <typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_select_rank(const float* __restrict__ values, const I* __restrict__ order_or_null,
               const I* __restrict__ segment, long long n, unsigned long long* __restrict__ key) {
  for (long long e = sg_thread(); e < n; e += sg_threads()) {
    const unsigned int bits = __float_as_uint(values[order_or_null ? order_or_null[e] : e]);
    const unsigned int rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    key[e] = (unsigned long long)segment[e] << 32 | rising;
  }
}

// sorted (n,): entries by run, and within it by what they are ranked by, as numbers of the list
// `order`, or as positions where that is null. segment (n,): the run of each.
template <typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_select_first(const long long* __restrict__ sorted, const I* __restrict__ order_or_null,
                const I* __restrict__ segment, const I* __restrict__ offsets, long long n,
                long long k, I* __restrict__ keep) {
  for (long long t = sg_thread(); t < n; t += sg_threads()) {
    const long long e = sorted[t];
    keep[order_or_null ? (long long)order_or_null[e] : e] = t - offsets[segment[t]] < k ? 1 : 0;
  }
}
