// Reductions and softmax over segments: runs of consecutive entries, run i is offsets[i] to
// offsets[i + 1]; values (n, width), row-major. `width` is that of trailing dimensions or heads.
//
//   reduce         sum, largest, product, log of the sum of exponentials of each segment, or how many
//                  of its entries are equal to a number of its own
//   softmax        softmax or log_softmax within each segment, in one pass
//   softmax_grad   out * (g - sum(g * out)), or g - exp(out) * sum(g), likewise
//   largest_grad   the gradient of the largest, shared by those that are, absent zeros among them
//   product_grad   the gradient of the product: for each entry the product of all others
//   spread         offsets -> the row of its segment for every entry, or the segment itself
//
// Mapping   A group of `lanes` lanes takes a segment and a block of columns: `columns` lanes (up
//           to 32, a power of two) lie side by side, so that memory is read in one line; the others
//           are strides along the segment, four entries each in flight, joined by shuffles at the
//           end. Softmax keeps the first 8 entries of a lane in registers (its gradient 4, fp64 2):
//           segments of no more are read once. Of longer ones, maximum and sum are found together,
//           online.
// Long      Segments of more than `tile` entries are left to a second kernel, `parts`, which cuts
//           all entries into tiles of that length, whatever the segments: a warp a tile. A tile
//           holds a piece of at most two of them, the one that came from the left and the one that
//           goes on to the right. `join` adds the pieces of each in order, and for softmax `apply`
//           then writes. No list of long segments is made, so nothing waits for its length; where
//           n <= tile there are none and these kernels are not launched.
// Products  of all others: nothing is divided, so zeros do no harm. Each lane goes up its entries,
//           leaving at each the product of those before, and down again with that of those after;
//           shuffles bring it the products of the other lanes, `others` those of other tiles.
// Bytes     reduce n width s + segments (width s + i); softmax twice n width s, and a third time
//           what does not fit in registers; its gradient three times n width s; that of products
//           twice n width s, and three times n width a (a: bytes of what it computes in).
// Numbers   fp16 and bf16 are computed in fp32. No atomics: the same bits from run to run. nan wins
//           over all; an empty segment is 0, or the lowest number there is for `largest`.
// Replaces  of products: log2(longest) rounds of two gathers and a multiplication, and three times as
//           many launches for the gradient. Of softmax: search, gather, exp, two scatters with atomics, divide: about eight passes of n width.

template <typename A> struct SgLowest {
  static __device__ __forceinline__ A value();
};
template <> __device__ __forceinline__ float SgLowest<float>::value() {
  return __int_as_float((int)0xff800000u);
}
template <> __device__ __forceinline__ double SgLowest<double>::value() {
  return __longlong_as_double((long long)0xfff0000000000000ull);
}
template <> __device__ __forceinline__ unsigned char SgLowest<unsigned char>::value() { return 0; }
template <> __device__ __forceinline__ int SgLowest<int>::value() { return -2147483647 - 1; }
template <> __device__ __forceinline__ long long SgLowest<long long>::value() {
  return -9223372036854775807ll - 1;
}

// What is known of a part of a segment. `missing` changes nothing when it is added. FLIGHT values
// are added at once: an exponential of 8 bytes takes the registers of many.
template <typename A, int OP> struct SgState;

template <typename A> struct SgState<A, 0> {  // sum
  static const int FLIGHT = sizeof(A) == 4 ? 4 : 2;
  A sum;
  __device__ __forceinline__ SgState() : sum(A(0)) {}
  static __device__ __forceinline__ A missing() { return A(0); }
  template <int N> __device__ __forceinline__ void add(const A (&v)[N]) {
    #pragma unroll
    for (int i = 0; i < N; ++i) sum += v[i];
  }
  __device__ __forceinline__ void merge(const SgState& other) { sum += other.sum; }
  __device__ __forceinline__ A result(bool) const { return sum; }
  __device__ __forceinline__ SgState across(int lanes) const {
    SgState other;
    other.sum = __shfl_xor_sync(SG_ALL_LANES, sum, lanes);
    return other;
  }
  __device__ __forceinline__ void keep(A* to, long long) const { *to = sum; }
  __device__ __forceinline__ void take(const A* from, long long) { sum = *from; }
};

template <typename A> struct SgState<A, 1> {  // largest
  static const int FLIGHT = sizeof(A) == 4 ? 4 : 2;
  A top;
  __device__ __forceinline__ SgState() : top(missing()) {}
  static __device__ __forceinline__ A missing() { return SgLowest<A>::value(); }
  __device__ __forceinline__ void meet(A v) {
    if (v > top || v != v) top = v;
  }
  template <int N> __device__ __forceinline__ void add(const A (&v)[N]) {
    #pragma unroll
    for (int i = 0; i < N; ++i) meet(v[i]);
  }
  __device__ __forceinline__ void merge(const SgState& other) { meet(other.top); }
  __device__ __forceinline__ A result(bool) const { return top; }
  __device__ __forceinline__ SgState across(int lanes) const {
    SgState other;
    other.top = __shfl_xor_sync(SG_ALL_LANES, top, lanes);
    return other;
  }
  __device__ __forceinline__ void keep(A* to, long long) const { *to = top; }
  __device__ __forceinline__ void take(const A* from, long long) { top = *from; }
};

template <typename A> struct SgState<A, 4> {  // product
  static const int FLIGHT = sizeof(A) == 4 ? 4 : 2;
  A product;
  __device__ __forceinline__ SgState() : product(A(1)) {}
  static __device__ __forceinline__ A missing() { return A(1); }
  template <int N> __device__ __forceinline__ void add(const A (&v)[N]) {
    #pragma unroll
    for (int i = 0; i < N; ++i) product *= v[i];
  }
  __device__ __forceinline__ void merge(const SgState& other) { product *= other.product; }
  __device__ __forceinline__ A result(bool) const { return product; }
  __device__ __forceinline__ SgState across(int lanes) const {
    SgState other;
    other.product = __shfl_xor_sync(SG_ALL_LANES, product, lanes);
    return other;
  }
  __device__ __forceinline__ void keep(A* to, long long) const { *to = product; }
  __device__ __forceinline__ void take(const A* from, long long) { product = *from; }
};

template <typename A> struct SgState<A, 3> : SgState<A, 0> {  // how many are equal to `wanted`
  A wanted;
  static __device__ __forceinline__ A missing() { return A(0) / A(0); }
  template <int N> __device__ __forceinline__ void add(const A (&v)[N]) {
    #pragma unroll
    for (int i = 0; i < N; ++i) this->sum += v[i] == wanted ? A(1) : A(0);
  }
};
template <typename State, typename T>
__device__ __forceinline__ void sg_want(State&, const T*, long long) {}
template <typename A, typename T>
__device__ __forceinline__ void sg_want(SgState<A, 3>& state, const T* wanted, long long at) {
  state.wanted = A(sg_widen(wanted[at]));
}

// log of the sum of exponentials: sum = sum(exp(v - shift())). Of a segment that has -inf only, inf
// or nan, the shift is 0, and what follows is as in plain arithmetic.
template <typename A> struct SgState<A, 2> {
  static const int FLIGHT = sizeof(A) == 4 ? 4 : 1;
  A top, sum;
  __device__ __forceinline__ SgState() : top(missing()), sum(A(0)) {}
  static __device__ __forceinline__ A missing() { return SgLowest<A>::value(); }
  static __device__ __forceinline__ A finite(A v) { return v - v == A(0) ? v : A(0); }
  __device__ __forceinline__ A shift() const { return finite(top); }
  __device__ __forceinline__ void raise(A to) {
    if (to == top) return;
    if (top != missing()) sum *= exp(shift() - finite(to));
    top = to;
  }
  template <int N> __device__ __forceinline__ void add(const A (&v)[N]) {
    A high = top;
    #pragma unroll
    for (int i = 0; i < N; ++i) high = v[i] > high ? v[i] : high;
    raise(high);
    #pragma unroll
    for (int i = 0; i < N; ++i) sum += exp(v[i] - shift());
  }
  __device__ __forceinline__ void merge(SgState other) {
    const A high = other.top > top ? other.top : top;
    raise(high);
    other.raise(high);
    sum += other.sum;
  }
  __device__ __forceinline__ A result(bool empty) const {
    return empty ? A(0) : log(sum) + shift();
  }
  __device__ __forceinline__ SgState across(int lanes) const {
    SgState other;
    other.top = __shfl_xor_sync(SG_ALL_LANES, top, lanes);
    other.sum = __shfl_xor_sync(SG_ALL_LANES, sum, lanes);
    return other;
  }
  __device__ __forceinline__ void keep(A* to, long long apart) const {
    to[0] = top;
    to[apart] = sum;
  }
  __device__ __forceinline__ void take(const A* from, long long apart) {
    top = from[0];
    sum = from[apart];
  }
};

// The state of all lanes `columns` apart, in each of them.
template <typename State>
__device__ __forceinline__ void sg_merge_lanes(State& state, int columns, int lanes) {
  for (int o = columns; o < lanes; o <<= 1) state.merge(state.across(o));
}

// Adds entries first, first + step, ... of `count`; `from` is the column of the first of them, `by`
// a second factor.
template <typename T, typename State, typename A>
__device__ __forceinline__ void sg_add_run(State& state, const T* __restrict__ from,
                                           const T* __restrict__ by_or_null, int first, int count,
                                           int step, int width) {
  const int FLIGHT = State::FLIGHT;  // loads in flight
  for (int e = first; e < count; e += FLIGHT * step) {
    A v[FLIGHT];
    #pragma unroll
    for (int u = 0; u < FLIGHT; ++u) {
      const long long at = (long long)min(e + u * step, count - 1) * width;
      v[u] = A(sg_widen(__ldg(from + at)));
      if (by_or_null) v[u] *= A(sg_widen(__ldg(by_or_null + at)));
      if (e + u * step >= count) v[u] = State::missing();
    }
    state.add(v);
  }
}

// What a group of lanes works on: `count` entries of `segment`, in column `column`; `at` is the
// place of the first of them.
struct SgSegmentWork {
  long long segment, at;
  int count, column, stride;
  bool live;  // not past the end, nor a segment that is left to the tiles
};

template <typename I>
__device__ __forceinline__ SgSegmentWork sg_segment_work(const I* __restrict__ offsets,
                                                         long long item, long long segments,
                                                         int width, int columns, int lanes,
                                                         int tile) {
  const int blocks = (width + columns - 1) / columns, sub = threadIdx.x & (lanes - 1);
  SgSegmentWork work;
  work.segment = blocks == 1 ? item : item / blocks;
  work.column = (int)(item - work.segment * blocks) * columns + (sub & (columns - 1));
  work.stride = sub / columns;
  work.live = work.segment < segments && work.column < width;
  work.at = work.count = 0;
  if (work.live) {
    const long long begin = offsets[work.segment], count = offsets[work.segment + 1] - begin;
    work.at = begin * width + work.column;
    work.live = count <= tile;
    work.count = work.live ? (int)count : 0;
  }
  return work;
}

// The largest of a segment and of `absent` zeros; 0 for neither.
template <typename A>
__device__ __forceinline__ A sg_with_zeros(A top, bool empty, long long absent) {
  if (absent > 0) return top > A(0) || top != top ? top : A(0);
  return empty ? A(0) : top;
}

// wanted_or_null (segments, width): what entries are compared with, for OP 3, whose result goes to
// `wide`: a count may not fit T. absent_or_null (segments,): zeros that OP 1 and OP 4 see as well.
template <typename T, typename I, int OP>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_reduce(const T* __restrict__ values, const I* __restrict__ offsets, long long segments,
                  int width, int columns, int lanes, int tile, const T* __restrict__ wanted_or_null,
                  const long long* __restrict__ absent_or_null, T* __restrict__ out_or_null,
                  SG_ACC(T)* __restrict__ wide_or_null) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31;
  const long long total = segments * ((width + columns - 1) / columns);
  for (long long base = (sg_thread() - lane) / lanes; base < total; base += sg_threads() / lanes) {
    const SgSegmentWork work = sg_segment_work(offsets, base + lane / lanes, segments, width,
                                               columns, lanes, tile);
    const long long place = work.segment * width + work.column;
    SgState<A, OP> state;
    if (work.live) sg_want(state, wanted_or_null, place);
    sg_add_run<T, SgState<A, OP>, A>(state, values + work.at, nullptr, work.stride, work.count,
                                     lanes / columns, width);
    sg_merge_lanes(state, columns, lanes);
    if (!work.live || work.stride > 0) continue;  // no collectives below
    A result = state.result(work.count == 0);
    if (OP == 1 && absent_or_null)
      result = sg_with_zeros(result, work.count == 0, absent_or_null[work.segment]);
    if (OP == 4 && absent_or_null && absent_or_null[work.segment] > 0) result = A(0);
    if (OP == 3) wide_or_null[place] = result;
    else out_or_null[place] = SgNarrow<T>::from(result);
  }
}

// The softmax of a value, or its logarithm, where the state is that of the whole segment.
template <typename A>
__device__ __forceinline__ A sg_softmax_of(A v, const SgState<A, 2>& state, bool logarithm) {
  return logarithm ? v - state.shift() - log(state.sum) : exp(v - state.shift()) / state.sum;
}

template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_softmax(const T* __restrict__ values, const I* __restrict__ offsets, long long segments,
                   int width, int columns, int lanes, int tile, int logarithm,
                   T* __restrict__ out) {
  typedef SG_ACC(T) A;
  const int HELD = sizeof(A) == 4 ? 8 : 2;
  const int lane = threadIdx.x & 31, step = lanes / columns;
  const long long total = segments * ((width + columns - 1) / columns);
  for (long long base = (sg_thread() - lane) / lanes; base < total; base += sg_threads() / lanes) {
    const SgSegmentWork work = sg_segment_work(offsets, base + lane / lanes, segments, width,
                                               columns, lanes, tile);
    const T* from = values + work.at;
    SgState<A, 2> state;
    A held[HELD];
    #pragma unroll
    for (int r = 0; r < HELD; ++r) {
      const int e = work.stride + r * step;
      held[r] = e < work.count ? A(sg_widen(__ldg(from + (long long)e * width))) : state.missing();
    }
    state.add(held);
    const int rest = work.stride + HELD * step;
    sg_add_run<T, SgState<A, 2>, A>(state, from, nullptr, rest, work.count, step, width);
    sg_merge_lanes(state, columns, lanes);

    T* to = out + work.at;
    #pragma unroll
    for (int r = 0; r < HELD; ++r) {
      const int e = work.stride + r * step;
      if (e < work.count)
        to[(long long)e * width] = SgNarrow<T>::from(sg_softmax_of(held[r], state, logarithm));
    }
    for (int e = rest; e < work.count; e += step)
      to[(long long)e * width] = SgNarrow<T>::from(
          sg_softmax_of(A(sg_widen(__ldg(from + (long long)e * width))), state, logarithm));
  }
}

// The gradient, where `total` is the sum over the segment of g * y, or of g.
template <typename A>
__device__ __forceinline__ A sg_softmax_grad_of(A g, A y, A total, bool logarithm) {
  return logarithm ? g - exp(y) * total : y * (g - total);
}

template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_softmax_grad(const T* __restrict__ g, const T* __restrict__ y,
                        const I* __restrict__ offsets, long long segments, int width, int columns,
                        int lanes, int tile, int logarithm, T* __restrict__ out) {
  typedef SG_ACC(T) A;
  const int HELD = sizeof(A) == 4 ? 4 : 2;
  const int lane = threadIdx.x & 31, step = lanes / columns;
  const long long total = segments * ((width + columns - 1) / columns);
  for (long long base = (sg_thread() - lane) / lanes; base < total; base += sg_threads() / lanes) {
    const SgSegmentWork work = sg_segment_work(offsets, base + lane / lanes, segments, width,
                                               columns, lanes, tile);
    SgState<A, 0> state;
    A held_g[HELD], held_y[HELD];
    #pragma unroll
    for (int r = 0; r < HELD; ++r) {
      const int e = work.stride + r * step;
      const long long at = work.at + (long long)e * width;
      held_g[r] = e < work.count ? A(sg_widen(__ldg(g + at))) : A(0);
      held_y[r] = e < work.count ? A(sg_widen(__ldg(y + at))) : A(0);
    }
    #pragma unroll
    for (int r = 0; r < HELD; ++r) state.sum += logarithm ? held_g[r] : held_g[r] * held_y[r];
    const int rest = work.stride + HELD * step;
    sg_add_run<T, SgState<A, 0>, A>(state, g + work.at, logarithm ? nullptr : y + work.at, rest,
                                    work.count, step, width);
    sg_merge_lanes(state, columns, lanes);

    #pragma unroll
    for (int r = 0; r < HELD; ++r) {
      const int e = work.stride + r * step;
      if (e < work.count)
        out[work.at + (long long)e * width] =
            SgNarrow<T>::from(sg_softmax_grad_of(held_g[r], held_y[r], state.sum, logarithm));
    }
    for (int e = rest; e < work.count; e += step) {
      const long long at = work.at + (long long)e * width;
      out[at] = SgNarrow<T>::from(sg_softmax_grad_of(A(sg_widen(__ldg(g + at))),
                                                     A(sg_widen(__ldg(y + at))), state.sum,
                                                     logarithm));
    }
  }
}

// ---- long segments

// The segment that `entry` lies in, found by 32 probes at a time: the whole warp.
template <typename I>
__device__ __forceinline__ long long sg_segment_at(const I* __restrict__ offsets,
                                                   long long segments, long long entry) {
  long long low = 0, count = segments;
  while (count > 1) {
    const long long apart = (count + 31) / 32, probe = (threadIdx.x & 31) * apart;
    const bool begun = probe < count && offsets[low + probe] <= entry;
    const long long skip = (__popc(__ballot_sync(SG_ALL_LANES, begun)) - 1) * apart;
    low += skip;
    count = min(apart, count - skip);
  }
  return low;
}

// The pieces of long segments in a tile: `begin` to `end` of `segment`, which is -1 if there is
// none. Slot 0 is that of a segment that came from the left, slot 1 of one that begins here.
struct SgPiece {
  long long segment, begin, end;
};

template <typename I>
__device__ __forceinline__ SgPiece sg_piece(const I* __restrict__ offsets, long long segment,
                                            long long first, long long after, int tile, int slot) {
  SgPiece piece = {-1, 0, 0};
  const long long begin = offsets[segment], end = offsets[segment + 1];
  if (end - begin > tile && (begin < first) == (slot == 0)) {
    piece.segment = segment;
    piece.begin = max(begin, first);
    piece.end = min(end, after);
  }
  return piece;
}

// A warp a tile. partial: for each tile, slot and column the state, two numbers `apart` from each
// other; owner: for each tile and slot the segment, or -1.
template <typename T, typename I, int OP>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_parts(const T* __restrict__ values, const T* __restrict__ by_or_null,
                 const I* __restrict__ offsets, long long segments, long long n, int width,
                 int columns, int tile, long long apart, const T* __restrict__ wanted_or_null,
                 SG_ACC(T)* __restrict__ partial, I* __restrict__ owner) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, stride = lane / columns, step = 32 / columns;
  const long long tiles = (n + tile - 1) / tile;
  for (long long t = sg_thread() >> 5; t < tiles; t += sg_threads() >> 5) {
    const long long first = t * tile, after = min(first + tile, n);
    long long segment = sg_segment_at(offsets, segments, first);
    for (int slot = 0; slot < 2; ++slot) {
      if (slot == 1 && offsets[segment + 1] < after)
        segment = sg_segment_at(offsets, segments, after - 1);
      const SgPiece piece = sg_piece(offsets, segment, first, after, tile, slot);
      if (lane == 0) owner[2 * t + slot] = (I)piece.segment;
      if (piece.segment < 0) continue;  // the whole warp
      for (int block = 0; block < width; block += columns) {
        const int column = block + (lane & (columns - 1));
        SgState<A, OP> state;
        if (column < width) sg_want(state, wanted_or_null, piece.segment * width + column);
        if (column < width)
          sg_add_run<T, SgState<A, OP>, A>(
              state, values + piece.begin * width + column,
              by_or_null ? by_or_null + piece.begin * width + column : nullptr, stride,
              (int)(piece.end - piece.begin), step, width);
        sg_merge_lanes(state, columns, 32);
        if (column < width && stride == 0)
          state.keep(partial + (2 * t + slot) * width + column, apart);
      }
    }
  }
}

// A warp for each tile where a long segment begins, and block of columns: its result to `out` or
// `wide`, as `reduce`, or, for `apply`, its state to `whole`, in the place of that tile.
template <typename T, typename I, int OP>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_join(const SG_ACC(T)* __restrict__ partial, const I* __restrict__ owner,
                const I* __restrict__ offsets, long long n, int width, int columns, int tile,
                long long apart, const long long* __restrict__ absent_or_null,
                T* __restrict__ out_or_null, SG_ACC(T)* __restrict__ wide_or_null,
                SG_ACC(T)* __restrict__ whole_or_null) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, stride = lane / columns;
  const int blocks = (width + columns - 1) / columns;
  const long long tiles = (n + tile - 1) / tile;
  for (long long at = sg_thread() >> 5; at < tiles * blocks; at += sg_threads() >> 5) {
    const long long t = at / blocks, segment = owner[2 * t + 1];
    if (segment < 0) continue;  // the whole warp
    const int column = (int)(at - t * blocks) * columns + (lane & (columns - 1));
    const long long last = ((long long)offsets[segment + 1] - 1) / tile;
    SgState<A, OP> state;
    if (column < width)
      for (long long p = t + stride; p <= last; p += 32 / columns) {
        SgState<A, OP> piece;
        piece.take(partial + (2 * p + (p == t)) * width + column, apart);
        state.merge(piece);
      }
    sg_merge_lanes(state, columns, 32);
    if (column >= width || stride > 0) continue;
    A result = state.result(false);
    if (OP == 1 && absent_or_null)
      result = sg_with_zeros(result, false, absent_or_null[segment]);
    if (OP == 4 && absent_or_null && absent_or_null[segment] > 0) result = A(0);
    if (whole_or_null) state.keep(whole_or_null + t * width + column, apart);
    else if (wide_or_null) wide_or_null[segment * width + column] = result;
    else out_or_null[segment * width + column] = SgNarrow<T>::from(result);
  }
}

// A warp a tile: softmax of its pieces of long segments.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_softmax_apply(const T* __restrict__ values, const I* __restrict__ owner,
                         const I* __restrict__ offsets, long long n, int width, int columns,
                         int tile, long long apart, const SG_ACC(T)* __restrict__ whole,
                         int logarithm, T* __restrict__ out) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, step = 32 / columns;
  const long long tiles = (n + tile - 1) / tile;
  for (long long at = sg_thread() >> 5; at < 2 * tiles; at += sg_threads() >> 5) {
    const long long t = at >> 1, segment = owner[at];
    if (segment < 0) continue;
    const long long first = t * tile, begin = offsets[segment];
    const long long end = min(first + tile, (long long)offsets[segment + 1]);
    for (int column = lane & (columns - 1); column < width; column += columns) {
      SgState<A, 2> state;
      state.take(whole + begin / tile * width + column, apart);
      for (long long e = max(begin, first) + lane / columns; e < end; e += step)
        out[e * width + column] = SgNarrow<T>::from(
            sg_softmax_of(A(sg_widen(__ldg(values + e * width + column))), state, logarithm));
    }
  }
}

template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_softmax_grad_apply(const T* __restrict__ g, const T* __restrict__ y,
                              const I* __restrict__ owner, const I* __restrict__ offsets,
                              long long n, int width, int columns, int tile,
                              const SG_ACC(T)* __restrict__ whole, int logarithm,
                              T* __restrict__ out) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, step = 32 / columns;
  const long long tiles = (n + tile - 1) / tile;
  for (long long at = sg_thread() >> 5; at < 2 * tiles; at += sg_threads() >> 5) {
    const long long t = at >> 1, segment = owner[at];
    if (segment < 0) continue;
    const long long first = t * tile, begin = offsets[segment];
    const long long end = min(first + tile, (long long)offsets[segment + 1]);
    for (int column = lane & (columns - 1); column < width; column += columns) {
      const A total = whole[begin / tile * width + column];
      for (long long e = max(begin, first) + lane / columns; e < end; e += step) {
        const long long i = e * width + column;
        out[i] = SgNarrow<T>::from(sg_softmax_grad_of(A(sg_widen(__ldg(g + i))),
                                                      A(sg_widen(__ldg(y + i))), total, logarithm));
      }
    }
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
                        long long segments, int width, int columns, int lanes, int tile,
                        SG_ACC(T)* held, T* out) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31;
  const long long total = segments * ((width + columns - 1) / columns);
  for (long long base = (sg_thread() - lane) / lanes; base < total; base += sg_threads() / lanes) {
    const SgSegmentWork work = sg_segment_work(offsets, base + lane / lanes, segments, width,
                                               columns, lanes, tile);
    const bool zero = work.live && absent[work.segment] > 0;
    const A by = work.live ? A(sg_widen(g[work.segment * width + work.column])) : A(0);
    const long long at = work.at, apart = width;
    sg_each_others<A>(
        work.stride, work.count, lanes / columns, columns, lanes,
        [=](int e) { return A(sg_widen(__ldg(values + at + e * apart))); },
        [=](int e) -> A& { return held[at + e * apart]; },
        [=](int e, A others) {
          out[at + e * apart] = SgNarrow<T>::from(zero ? A(0) : by * others);
        });
  }
}

// A warp for each tile where a long segment begins, and block of columns: for each of its pieces the
// product of all others, to `whole`, in the place of that piece.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_product_others(const SG_ACC(T)* __restrict__ partial, const I* __restrict__ owner,
                          const I* __restrict__ offsets, long long n, int width, int columns,
                          int tile, SG_ACC(T)* whole) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, blocks = (width + columns - 1) / columns;
  const long long tiles = (n + tile - 1) / tile;
  for (long long at = sg_thread() >> 5; at < tiles * blocks; at += sg_threads() >> 5) {
    const long long t = at / blocks, segment = owner[2 * t + 1];
    if (segment < 0) continue;  // the whole warp
    const int column = (int)(at - t * blocks) * columns + (lane & (columns - 1));
    const long long last = ((long long)offsets[segment + 1] - 1) / tile;
    const auto place = [=](int p) { return (2 * (t + p) + (p == 0)) * width + column; };
    sg_each_others<A>(
        lane / columns, column < width ? (int)(last - t) + 1 : 0, 32 / columns, columns, 32,
        [=](int p) { return partial[place(p)]; }, [=](int p) -> A& { return whole[place(p)]; },
        [=](int p, A others) { whole[place(p)] = others; });
  }
}

// A warp for each piece of a long segment: the gradient there, by the products of other pieces.
template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_product_grad_apply(const T* __restrict__ g, const T* __restrict__ values,
                              const long long* __restrict__ absent, const I* __restrict__ owner,
                              const I* __restrict__ offsets, long long n, int width, int columns,
                              int tile, const SG_ACC(T)* __restrict__ whole, SG_ACC(T)* held,
                              T* out) {
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
      const A apart = live ? whole[piece * width + column] : A(0);
      const long long at = begin * width + column, down = width;
      sg_each_others<A>(
          lane / columns, live ? (int)(end - begin) : 0, 32 / columns, columns, 32,
          [=](int e) { return A(sg_widen(__ldg(values + at + e * down))); },
          [=](int e) -> A& { return held[at + e * down]; },
          [=](int e, A others) {
            out[at + e * down] = SgNarrow<T>::from(zero ? A(0) : by * (apart * others));
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

// top (segments, width): the largest of each; ties: how many entries are equal to it.
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
