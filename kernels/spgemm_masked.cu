// Sparse @ sparse at a known pattern: out[t, h] = sum over l of left[i, l, h] * right[l, j, h] for
// the entries t = (i, j) of a mask; the rest of the product is never computed.
//
//   masked    a dot product for each entry of the mask
//   rows      row by row, for a mask that holds every entry of the product
//
// Mapping   masked: a group of `lanes` lanes takes an entry and up to H heads. It walks the shorter
//           of row i of left and column j of right, each lane its own entries, and looks each up in
//           the longer by a binary search that starts where the last one ended.
//           rows: a group takes a row of left of up to `longest` entries. Entry after entry, its
//           lanes walk the row of right that it names and look the columns up in the row of `out`.
//           A row of right has each column once, so lanes never meet; between entries they wait for
//           each other. Rows of more entries would keep one group busy for long: their entries are
//           left to `masked`, which takes them all at once.
// Launch    left and out list their rows, right its rows (`rows`) or its columns (`masked`),
//           sorted. `..._positions`: where the values of those entries are; null where they
//           coincide. `rows` adds to `out`, which the caller clears.
// Bytes     masked: searches, min(row, column) * log(max(row, column)) probes an entry, mostly of
//           lines that the first-level cache holds. rows: a search and a sum for each product.
// Numbers   fp16 and bf16 are summed in fp32 (`rows` leaves the rounding to its caller). No
//           atomics: the same bits from run to run.
// Replaces  lists of all products in chunks: three binary searches as plain arrays, then a sort.
//           For one head of fp32 and fp64, cuSPARSE, which finds the pattern anew at every call,
//           waits for its size twice, and leaves the entries to be put in their places.

template <typename T, typename I, int H>
__global__ void __launch_bounds__(256, SG_HALF)
sg_spgemm_masked(const I* __restrict__ l_indptr, const I* __restrict__ l_cols,
                 const I* __restrict__ l_positions_or_null, const T* __restrict__ a,
                 const I* __restrict__ r_indptr, const I* __restrict__ r_rows,
                 const I* __restrict__ r_positions_or_null, const T* __restrict__ b,
                 const I* __restrict__ row, const I* __restrict__ col, long long entries,
                 int heads, int lanes, int longer_than, T* __restrict__ out) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, sub = lane & (lanes - 1), blocks = (heads + H - 1) / H;

  for (long long base = (sg_thread() - lane) / lanes; base < entries * blocks;
       base += sg_threads() / lanes) {
    const long long item = base + lane / lanes, t = blocks == 1 ? item : item / blocks;
    const int head = (int)(item - t * blocks) * H;
    bool live = t < entries;
    long long l_begin = 0, r_begin = 0, l_count = 0, r_count = 0;
    if (live) {
      const long long i = row[t], j = col[t];
      l_begin = l_indptr[i];
      l_count = l_indptr[i + 1] - l_begin;
      r_begin = r_indptr[j];
      r_count = r_indptr[j + 1] - r_begin;
      live = l_count > longer_than;
    }
    const bool walk_left = l_count <= r_count;
    const I* walked = walk_left ? l_cols + l_begin : r_rows + r_begin;
    const I* searched = walk_left ? r_rows + r_begin : l_cols + l_begin;
    const long long steps = live ? min(l_count, r_count) : 0, size = max(l_count, r_count);
    A sum[H];
    #pragma unroll
    for (int h = 0; h < H; ++h) sum[h] = A(0);

    long long low = 0;
    for (long long q = sub; q < steps && low < size; q += lanes) {
      const I key = walked[q];
      for (long long high = size; low < high;) {
        const long long middle = (low + high) >> 1;
        if (searched[middle] < key) low = middle + 1;
        else high = middle;
      }
      if (low < size && searched[low] == key) {
        long long at_a = l_begin + (walk_left ? q : low), at_b = r_begin + (walk_left ? low : q);
        if (l_positions_or_null) at_a = l_positions_or_null[at_a];
        if (r_positions_or_null) at_b = r_positions_or_null[at_b];
        #pragma unroll
        for (int h = 0; h < H; ++h)
          if (H == 1 || head + h < heads)
            sum[h] += A(sg_widen(__ldg(a + at_a * heads + head + h))) *
                      A(sg_widen(__ldg(b + at_b * heads + head + h)));
      }
    }
    for (int o = 1; o < lanes; o <<= 1)
      #pragma unroll
      for (int h = 0; h < H; ++h) sum[h] += __shfl_xor_sync(SG_ALL_LANES, sum[h], o);
    if (live && sub == 0)
      #pragma unroll
      for (int h = 0; h < H; ++h)
        if (H == 1 || head + h < heads)
          out[t * heads + head + h] = SgNarrow<T>::from(sum[h]);
  }
}

template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_spgemm_rows(const I* __restrict__ l_indptr, const I* __restrict__ l_cols,
               const I* __restrict__ l_positions_or_null, const T* __restrict__ a,
               const I* __restrict__ r_indptr, const I* __restrict__ r_cols,
               const I* __restrict__ r_positions_or_null, const T* __restrict__ b,
               const I* __restrict__ o_indptr, const I* __restrict__ o_cols,
               const I* __restrict__ o_positions_or_null, long long rows, int heads, int lanes,
               int longest, SG_ACC(T)* __restrict__ out) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, sub = lane & (lanes - 1);

  for (long long base = (sg_thread() - lane) / lanes; base < rows; base += sg_threads() / lanes) {
    const long long i = base + lane / lanes;
    long long l_begin = 0, o_begin = 0, o_end = 0;
    int count = 0;
    if (i < rows && l_indptr[i + 1] - l_indptr[i] <= longest) {
      l_begin = l_indptr[i];
      count = (int)(l_indptr[i + 1] - l_begin);
      o_begin = o_indptr[i];
      o_end = o_indptr[i + 1];
    }
    int most = count;  // of the rows of this warp: all lanes wait equally often
    for (int o = lanes; o < 32; o <<= 1) most = max(most, __shfl_xor_sync(SG_ALL_LANES, most, o));

    for (int e = 0; e < most; ++e) {
      if (e < count) {
        const long long line = l_cols[l_begin + e];
        const long long at_a = l_positions_or_null ? (long long)l_positions_or_null[l_begin + e]
                                                   : l_begin + e;
        const long long end = r_indptr[line + 1];
        long long low = o_begin;
        for (long long f = r_indptr[line] + sub; f < end; f += lanes) {
          const I key = r_cols[f];
          for (long long high = o_end; low < high;) {  // it is there
            const long long middle = (low + high) >> 1;
            if (o_cols[middle] < key) low = middle + 1;
            else high = middle;
          }
          const long long at = o_positions_or_null ? (long long)o_positions_or_null[low] : low;
          const long long at_b = r_positions_or_null ? (long long)r_positions_or_null[f] : f;
          for (int h = 0; h < heads; ++h)
            out[at * heads + h] += A(sg_widen(__ldg(a + at_a * heads + h))) *
                                   A(sg_widen(__ldg(b + at_b * heads + h)));
        }
      }
      __syncwarp();
    }
  }
}
