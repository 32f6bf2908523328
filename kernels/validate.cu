// Indices that a user gave, checked where they lie, in one launch.
//
//   indices   one list, or two that are coordinates: is each inside its bounds; are they in order,
//             are there duplicates; the least and the largest of the first list
//   tables    the same of ids of several tables, which are listed by table on the way
//   offsets   do they start at 0, never fall, and end where they must
//
// Mapping   One thread an entry. What is wrong is rare: only then, and once a warp for the extent,
//           is anything written.
// Bytes     n i, or 2 n i; the entry before comes from L1.
// Found     Six words that the caller sets to all ones. 0, 1, 2: the place of the first bad index,
//           and a third of its value each; since places differ, the least word of each is that of
//           the same index. 3: a bit is cleared for what is out of order, and for duplicates.
//           4, 5: the least index, and the complement of the largest, with the sign bit flipped.
// Numbers   Atomics on integers: the same words from run to run.
// Replaces  min, max, comparisons and any, each with a wait of its own.

#define SG_FOUND_BITS 22  // of a value, in each of three words; places have the other 42

__device__ __forceinline__ void sg_found(unsigned long long* found, long long place,
                                         long long value) {
  const unsigned long long high = (unsigned long long)place << SG_FOUND_BITS;
  if (found[0] < high) return;  // stale at worst: then the atomics decide
  #pragma unroll
  for (int part = 0; part < 3; ++part) {
    const unsigned long long third = (unsigned long long)value >> (SG_FOUND_BITS * part);
    atomicMin(found + part, high | (third & ((1ull << SG_FOUND_BITS) - 1)));
  }
}

// Places: 2 i in the first list, 2 i + 1 in the second.
template <typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_validate_indices(const I* __restrict__ first, const I* __restrict__ second_or_null, long long n,
                    long long first_bound, long long second_bound, unsigned long long* found) {
  const unsigned long long sign = 1ull << 63;
  unsigned long long least = ~0ull, most = ~0ull;
  unsigned int order = 0;  // bit 0: not in order; bit 1: has duplicates
  for (long long i = sg_thread(); i < n; i += sg_threads()) {
    const long long a = first[i], b = second_or_null ? second_or_null[i] : 0;
    if (a < 0 || a >= first_bound) sg_found(found, 2 * i, a);
    if (second_or_null && (b < 0 || b >= second_bound)) sg_found(found, 2 * i + 1, b);
    least = min(least, (unsigned long long)a ^ sign);
    most = min(most, ~((unsigned long long)a ^ sign));
    if (i == 0) continue;
    const long long before = first[i - 1], beside = second_or_null ? second_or_null[i - 1] : 0;
    if (before > a || (before == a && beside > b)) order |= 1;
    else if (before == a && beside == b) order |= 2;
  }
  #pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    least = min(least, __shfl_xor_sync(SG_ALL_LANES, least, o));
    most = min(most, __shfl_xor_sync(SG_ALL_LANES, most, o));
    order |= __shfl_xor_sync(SG_ALL_LANES, order, o);
  }
  if (threadIdx.x & 31) return;
  if (order) atomicAnd(found + 3, ~(unsigned long long)order);
  if (least < found[4]) atomicMin(found + 4, least);
  if (most < found[5]) atomicMin(found + 5, most);
}

// How many rows tables have: by value, nothing is copied to the device for a launch.
struct SgBounds {
  int count, unused;
  long long bound[480];
};

// listed (count, n) = the columns of ids (n, width) from `first` on. Places: twice those in `listed`.
template <typename I, typename K>
__global__ void __launch_bounds__(256, SG_HALF)
sg_validate_tables(const SgBounds bounds, const I* __restrict__ ids, long long n, int width,
                   int first, K* __restrict__ listed, unsigned long long* found) {
  for (long long i = sg_thread(); i < n * bounds.count; i += sg_threads()) {
    const long long table = i / n, a = ids[(i - table * n) * width + first + table];
    if (a < 0 || a >= bounds.bound[table]) sg_found(found, 2 * i, a);
    listed[i] = (K)a;
  }
}

template <typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_validate_offsets(const I* __restrict__ offsets, long long n, long long end,
                    unsigned long long* found) {
  for (long long i = sg_thread(); i < n; i += sg_threads()) {
    const long long here = offsets[i], before = i > 0 ? offsets[i - 1] : 0;
    if (here < before || (i == 0 && here != 0) || (i == n - 1 && here != end))
      sg_found(found, i, here);
  }
}
