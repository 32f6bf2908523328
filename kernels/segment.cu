// Reductions over segments, and what is given back to their entries (segments.cuh: how).
//
//   reduce         sum, largest, least, product, log of the sum of exponentials of each segment, or
//                  how many of its entries are equal to a number of its own
//   join           the same of the long ones
//   largest_grad   the gradient of the largest, or least, shared by those that are, absent zeros
//                  among them
//   product_grad   the gradient of the product: for each entry the product of all others
//   product_apply  the same in the long ones
//   expand         offsets -> the segment of every entry
//   spread         the row of its segment for every entry
//
// Products  of all others: nothing is divided, so zeros do no harm. Each lane goes up its entries,
//           leaving at each the product of those before, and down again with that of those after;
//           shuffles bring it the products of the other lanes. In long segments those of all other
//           pieces are multiplied for each piece.
// Bytes     reduce n width s + segments (width s + i); the gradient of products twice n width s, and
//           three times n width a (a: bytes of what it computes in).
// Numbers   nan wins over all; an empty segment is 0, or what changes nothing: the lowest number
//           there is for `largest`, the highest for `least`, 1 for products.
// Replaces  of products: log2(longest) rounds of two gathers and a multiplication, and three times as
//           many launches for the gradient.

// The result of a segment that has `absent` zeros besides, if they count; an extreme of nothing is
// then 0.
template <int OP, typename A>
__device__ __forceinline__ A sg_result(const SgState<A, OP>& state, bool empty,
                                       const long long* __restrict__ absent_or_null,
                                       long long segment) {
  if constexpr (OP == 1 || OP == 4 || OP == 5) {
    if (absent_or_null) {
      const bool zeros = absent_or_null[segment] > 0;
      if (OP == 4) return zeros ? A(0) : state.number;
      return zeros ? SgMeet<A, OP>::of(state.number, A(0)) : empty ? A(0) : state.number;
    }
  }
  return state.result(empty);
}

// wanted_or_null (segments, width): what entries are compared with, for OP 3, whose result goes to
// `wide`: a count may not fit T. absent_or_null (segments,): zeros that OP 1, 4 and 5 see as well.
template <typename T, typename I, int OP>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_reduce(const T* __restrict__ values, const I* __restrict__ offsets, long long segments,
                  long long n, int width, int columns, int lanes, int tile,
                  const T* __restrict__ wanted_or_null,
                  const long long* __restrict__ absent_or_null, T* __restrict__ out_or_null,
                  SG_ACC(T)* __restrict__ wide_or_null, long long apart,
                  SG_ACC(T)* __restrict__ partial_or_null, I* __restrict__ owner_or_null) {
  typedef SG_ACC(T) A;
  typedef SgState<A, OP> State;
  const int lane = threadIdx.x & 31;
  const long long total = segments * ((width + columns - 1) / columns);
  for (long long base = (sg_thread() - lane) / lanes; base < total; base += sg_threads() / lanes) {
    const SgSegmentWork work = sg_segment_work(offsets, base + lane / lanes, segments, width,
                                               columns, lanes, tile);
    const long long place = work.segment * width + work.column;
    State state;
    if (work.live) sg_want(state, wanted_or_null, place);
    sg_add_run<T, State, A>(state, values + work.at, nullptr, work.stride, work.count,
                            lanes / columns, width);
    sg_merge_lanes(state, columns, lanes);
    if (!work.live || work.stride > 0) continue;  // no collectives below
    const A result = sg_result<OP>(state, work.count == 0, absent_or_null, work.segment);
    if (wide_or_null) wide_or_null[place] = result;
    else out_or_null[place] = SgNarrow<T>::from(result);
  }
  sg_parts<State, A>(values, (const T*)nullptr, offsets, segments, n, width, columns, tile,
                     wanted_or_null, apart, partial_or_null, owner_or_null);
}

// A warp for each tile where a long segment begins, and block of columns: its result to `out` or
// `wide`, as `reduce`, or its state to `whole`, in the place of that tile.
template <typename T, typename I, int OP>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_join(const SG_ACC(T)* __restrict__ partial, const I* __restrict__ owner,
                const I* __restrict__ offsets, long long n, int width, int columns, int tile,
                long long apart, const long long* __restrict__ absent_or_null,
                T* __restrict__ out_or_null, SG_ACC(T)* __restrict__ wide_or_null,
                SG_ACC(T)* __restrict__ whole_or_null) {
  typedef SG_ACC(T) A;
  typedef SgState<A, OP> State;
  const int lane = threadIdx.x & 31, blocks = (width + columns - 1) / columns;
  const long long tiles = (n + tile - 1) / tile;
  for (long long at = sg_thread() >> 5; at < tiles * blocks; at += sg_threads() >> 5) {
    const long long t = at / blocks, segment = owner[2 * t + 1];
    if (segment < 0) continue;  // the whole warp
    const int column = (int)(at - t * blocks) * columns + (lane & (columns - 1));
    const State state = sg_joined<State>(partial, offsets, segment, tile, width, columns, column,
                                         apart);
    if (column >= width || lane >= columns) continue;
    if (whole_or_null) {
      state.keep(whole_or_null + t * width + column, apart);
      continue;
    }
    const A result = sg_result<OP>(state, false, absent_or_null, segment);
    if (wide_or_null) wide_or_null[segment * width + column] = result;
    else out_or_null[segment * width + column] = SgNarrow<T>::from(result);
  }
}

// ---- products of all others

// For entries first, first + step, ... of `count`, spread over lanes `columns` apart: write(e, the
// product of value() of all the others). held(e): where a number may lie in between.
template <typename A, typename Value, typename Held, typename Write>
__device__ __forceinline__ void sg_each_others(int first, int count, int step, int columns,
                                               int lanes, Value value, Held held, Write write) {
  A all = A(1), others = A(1);
  for (int e = first; e < count; e += step) {
    held(e) = all;
    all *= value(e);
  }
  for (int o = columns; o < lanes; o <<= 1) {
    const A theirs = __shfl_xor_sync(SG_ALL_LANES, all, o);
    others *= theirs;
    all *= theirs;
  }
  if (first >= count) return;  // no collectives below
  for (int e = first + (count - 1 - first) / step * step; e >= first; e -= step) {
    const A before = held(e), v = value(e);
    write(e, before * others);
    others *= v;
  }
}

// held (n, width): room for wide numbers, which is `out` where those are wide. absent (segments,):
// zeros that are factors as well.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_product_grad(const T* __restrict__ g, const T* __restrict__ values,
                        const long long* __restrict__ absent, const I* __restrict__ offsets,
                        long long segments, long long n, int width, int columns, int lanes,
                        int tile, SG_ACC(T)* held, T* out, long long apart,
                        SG_ACC(T)* __restrict__ partial_or_null, I* __restrict__ owner_or_null) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31;
  const long long total = segments * ((width + columns - 1) / columns);
  for (long long base = (sg_thread() - lane) / lanes; base < total; base += sg_threads() / lanes) {
    const SgSegmentWork work = sg_segment_work(offsets, base + lane / lanes, segments, width,
                                               columns, lanes, tile);
    const bool zero = work.live && absent[work.segment] > 0;
    const A by = work.live ? A(sg_widen(g[work.segment * width + work.column])) : A(0);
    const long long at = work.at, down = width;
    sg_each_others<A>(
        work.stride, work.count, lanes / columns, columns, lanes,
        [=](int e) { return A(sg_widen(__ldg(values + at + e * down))); },
        [=](int e) -> A& { return held[at + e * down]; },
        [=](int e, A others) {
          out[at + e * down] = SgNarrow<T>::from(zero ? A(0) : by * others);
        });
  }
  sg_parts<SgState<A, 4>, A>(values, (const T*)nullptr, offsets, segments, n, width, columns, tile,
                             (const T*)nullptr, apart, partial_or_null, owner_or_null);
}

// A warp for each piece of a long segment: the gradient there, by the products of other pieces.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_product_apply(const T* __restrict__ g, const T* __restrict__ values,
                         const long long* __restrict__ absent,
                         const SG_ACC(T)* __restrict__ partial, const I* __restrict__ owner,
                         const I* __restrict__ offsets, long long n, int width, int columns,
                         int tile, long long apart, SG_ACC(T)* held, T* out) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31;
  const long long tiles = (n + tile - 1) / tile;
  for (long long piece = sg_thread() >> 5; piece < 2 * tiles; piece += sg_threads() >> 5) {
    const long long segment = owner[piece], first = (piece >> 1) * tile;
    if (segment < 0) continue;  // the whole warp
    const long long begin = max((long long)offsets[segment], first);
    const long long end = min(first + tile, (long long)offsets[segment + 1]);
    const bool zero = absent[segment] > 0;
    for (int block = 0; block < width; block += columns) {
      const int column = block + (lane & (columns - 1));
      const bool live = column < width;
      const A by = live ? A(sg_widen(g[segment * width + column])) : A(0);
      const A away = sg_joined<SgState<A, 4>>(partial, offsets, segment, tile, width, columns,
                                              column, apart, piece >> 1).number;
      const long long at = begin * width + column, down = width;
      sg_each_others<A>(
          lane / columns, live ? (int)(end - begin) : 0, 32 / columns, columns, 32,
          [=](int e) { return A(sg_widen(__ldg(values + at + e * down))); },
          [=](int e) -> A& { return held[at + e * down]; },
          [=](int e, A others) {
            out[at + e * down] = SgNarrow<T>::from(zero ? A(0) : by * (away * others));
          });
    }
  }
}

// ---- by entries

// Calls work(entry, segment, column) for every entry and column: a warp takes 256 entries, finds the
// segments of the first and the last, and each lane searches between them for one of 32 at a time.
template <typename I, typename Work>
__device__ __forceinline__ void sg_each_entry(const I* __restrict__ offsets, long long segments,
                                              long long n, int width, Work work) {
  const int lane = threadIdx.x & 31;
  for (long long first = (sg_thread() >> 5) * 256; first < n; first += (sg_threads() >> 5) * 256) {
    const long long after = min(first + 256, n);
    const long long from = sg_segment_at(offsets, segments, first);
    const long long to = sg_segment_at(offsets, segments, after - 1);
    for (long long base = first; base < after; base += 32) {
      long long low = from, high = base + lane < after ? to : from;
      while (low < high) {  // the last that begins at or before the entry of this lane
        const long long middle = (low + high + 1) >> 1;
        if (offsets[middle] <= base + lane) low = middle;
        else high = middle - 1;
      }
      for (int round = 0; round < width; ++round) {  // lanes lie side by side along columns
        const int at = round * 32 + lane, i = at / width;
        const long long segment = __shfl_sync(SG_ALL_LANES, low, i);
        if (base + i < after) work(base + i, segment, at - i * width);
      }
    }
  }
}

template <typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_expand(const I* __restrict__ offsets, long long segments, long long n,
                  I* __restrict__ ids) {
  sg_each_entry(offsets, segments, n, 1,
                [=](long long e, long long segment, int) { ids[e] = (I)segment; });
}

// Rows of words: whatever they mean.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_spread(const T* __restrict__ x, const I* __restrict__ offsets, long long segments,
                  long long n, int width, T* __restrict__ out) {
  sg_each_entry(offsets, segments, n, width, [=](long long e, long long segment, int column) {
    out[e * width + column] = __ldg(x + segment * width + column);
  });
}

// top (segments, width): the largest (or least) of each; ties: how many entries are equal to it.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_largest_grad(const T* __restrict__ g, const T* __restrict__ values,
                        const T* __restrict__ top, const SG_ACC(T)* __restrict__ ties,
                        const long long* __restrict__ absent, const I* __restrict__ offsets,
                        long long segments, long long n, int width, T* __restrict__ out) {
  typedef SG_ACC(T) A;
  sg_each_entry(offsets, segments, n, width, [=](long long e, long long segment, int column) {
    const long long place = segment * width + column;
    const A largest = A(sg_widen(top[place]));
    A share = A(0);
    if (A(sg_widen(values[e * width + column])) == largest)
      share = A(sg_widen(g[place])) /
              (ties[place] + (largest == A(0) ? A(absent[segment]) : A(0)));
    out[e * width + column] = SgNarrow<T>::from(share);
  });
}
